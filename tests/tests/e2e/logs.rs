//! The log of a run, as a user with read access to its namespace sees it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use aws_sdk_s3::presigning::PresigningConfig;
use driftless_api::{LogLink, Update};
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source},
    world::ready,
};
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::{sleep, timeout},
};

use crate::{
    cli::{Page, command},
    updates::{ours, wait},
    world::{alone, keys, s3, shared},
};

const CANARY: &str = "canary-log-7c1e";

/// A ServiceAccount with Kubernetes' role `view` in its own namespace.
const READER: &str = "\
apiVersion: v1
kind: ServiceAccount
metadata: { name: reader, namespace: NAMESPACE }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: reader, namespace: NAMESPACE }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view }
subjects: [{ kind: ServiceAccount, name: reader, namespace: NAMESPACE }]
";

/// `kubectl` in a namespace, as the reader of one.
fn kubectl(world: &Handle, reader: &str, namespace: &str) -> Result<tokio::process::Command> {
    let mut command = tokio::process::Command::new(Path::new(world.get("WORLD_TOOLS")?).join("kubectl"));
    command.arg(format!("--as=system:serviceaccount:{reader}:reader")).args(["--namespace", namespace]);
    command.env("KUBECONFIG", world.get("KUBECONFIG")?);
    Ok(command)
}

/// Runs the commands of docs/runs.md as the reader of a namespace.
async fn read(world: &Handle, reader: &str, namespace: &str, update: &str) -> Result<String> {
    let mut command = kubectl(world, reader, namespace)?;
    command.args(["get", "configmap", &format!("{update}-log")]);
    let output = command.args(["--output", "go-template={{range .data}}{{.}}{{end}}"]).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The file with the output of an Update's task.
fn output(team: &Namespace<'_>, update: &Update) -> Result<PathBuf> {
    let arn = ours(update).task.context("a task")?;
    let id = arn.rsplit('/').next().unwrap_or_default();
    Ok(Path::new(team.world.get("WORLD_LOGS")?).join(format!("{id}.log")))
}

/// The output of an Update's task.
pub fn printed(team: &Namespace<'_>, update: &Update) -> Result<String> {
    Ok(fs::read_to_string(output(team, update)?)?)
}

/// The status and the content that a link without credentials answers with.
async fn answer(url: &str) -> Result<(u16, String)> {
    let response = reqwest::Client::builder().no_proxy().build()?.get(url).send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

#[expect(clippy::disallowed_methods, reason = "a delay is compared with the time of a file")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn log_link(update: &Update) -> Result<LogLink> {
    ours(update).log_link.context("a link to the log")
}

#[tokio::test]
async fn log_of_a_run_is_read_with_kubectl_by_its_namespace_alone() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, other) = (world.namespace("logs").await?, world.namespace("logs-elsewhere").await?);
    for namespace in [&team, &other] {
        namespace.apply(READER).await?;
    }
    team.apply_secret("app", &[("password", CANARY)]).await?;
    let hold = team.hold()?;
    // The failure names the file, and with it the password, which the provider does not know to be
    // secret.
    let marker = team.file(CANARY)?;
    fs::write(&marker, "")?;
    let fails = format!("{}, failWhenExists: '{}'", hold.property(), team.file("${password}")?);
    let program = team.program("app.txt", "one", &fails)?;
    team.apply_program("app", &format!("configuration: {{ password: {{ type: String }} }}\n{program}")).await?;
    let more = "  secretsRef:\n    password: { type: Secret, secret: { name: app, key: password } }\n";
    team.apply_stack("app", Source::Program("app"), more).await?;

    let update = team.running("app").await?;
    let name = update.name_any();
    let first = ready::until("the first lines show while the run goes on", RUN, async || {
        let first = read(&world, &team.name, &team.name, &name).await?;
        ensure!(!first.is_empty(), "no line yet");
        Ok(first)
    })
    .await?;
    ensure!(printed(&team, &update)?.starts_with(&first), "{first}");
    let update = wait(&team, &name, "to name its log", |update| ours(update).log_config_map.is_some()).await?;
    ensure!(!update.is_complete() && ours(&update).log_config_map == Some(format!("{name}-log")), "{:#?}", update.status);
    drop(hold);

    let update = wait(&team, &name, "to be complete", Update::is_complete).await?;
    let log = read(&world, &team.name, &team.name, &name).await?;
    assert_eq!(log, printed(&team, &update)?, "all that the task printed");
    ensure!(log.contains("/[secret] exists") && !log.contains(CANARY), "{log}");
    let refused = read(&world, &other.name, &team.name, &name).await.err().context("another namespace reads the log")?;
    ensure!(refused.to_string().contains("Forbidden"), "{refused}");

    fs::remove_file(&marker)?;
    team.ready_after("app", 2).await?;
    other.clear().await?;
    team.clear().await
}

/// A Stack whose run prints a secret value when it fails, and is held before that. Returns its
/// Update.
async fn held(team: &Namespace<'_>, property: &str) -> Result<Update> {
    team.apply(READER).await?;
    team.apply_secret("app", &[("password", CANARY)]).await?;
    let marker = team.file(CANARY)?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    let program = team.program("app.txt", "one", &format!("{property}, failWhenExists: '{}'", team.file("${password}")?))?;
    team.apply_program("app", &format!("configuration: {{ password: {{ type: String }} }}\n{program}")).await?;
    let more = "  secretsRef:\n    password: { type: Secret, secret: { name: app, key: password } }\n";
    team.apply_stack("app", Source::Program("app"), more).await?;
    ready::until("the Stack has an Update", RUN, async || team.updates("app").await?.pop().context("no Update")).await
}

#[tokio::test]
async fn log_is_followed_within_two_seconds_and_whole_at_its_end() -> Result<()> {
    // Beside other tests, the progress of their runs would wait in the same queue.
    let (world, _alone) = alone().await?;
    let team = world.namespace("logs-live").await?;
    let hold = team.hold()?;
    let name = held(&team, &hold.property()).await?.name_any();
    let mut follow = command(&world, &team.name, &["logs", "--follow", &format!("update/{name}")])?;
    let mut follow = follow.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(follow.stdout.take().context("its output")?).lines();
    let first_printed = async {
        let update = wait(&team, &name, "to have a task", |update| ours(update).task.is_some()).await?;
        let file = output(&team, &update)?;
        loop {
            if let Ok(about) = fs::metadata(&file)
                && about.len() > 0
            {
                return anyhow::Ok((update, about.modified()?));
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let first_shown = async {
        let line = timeout(RUN, lines.next_line()).await??.context("a line")?;
        anyhow::Ok((line, now()))
    };
    let ((update, printed_at), (line, shown_at)) = tokio::try_join!(first_printed, first_shown)?;
    let after = shown_at.duration_since(printed_at).unwrap_or_default();
    println!("the first line is shown {after:?} after it was printed");
    ensure!(after <= Duration::from_secs(2), "{after:?}");
    ensure!(printed(&team, &update)?.starts_with(&line), "{line}");
    drop(hold);
    let mut shown = line + "\n";
    while let Some(line) = timeout(RUN, lines.next_line()).await?? {
        shown = shown + &line + "\n";
    }
    ensure!(follow.wait().await?.success(), "{shown}");
    assert_eq!(shown, printed(&team, &update)?, "all that the task printed");
    ensure!(shown.contains("/[secret] exists") && !shown.contains(CANARY), "{shown}");
    fs::remove_file(team.file(CANARY)?)?;
    team.ready_after("app", 2).await?;
    team.clear().await
}

#[tokio::test]
async fn link_to_a_log_is_for_its_namespace_and_for_one_object_for_an_hour() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, other) = (world.namespace("logs-link").await?, world.namespace("logs-link-elsewhere").await?);
    other.apply(READER).await?;
    let hold = team.hold()?;
    let name = held(&team, &hold.property()).await?.name_any();
    let update = wait(&team, &name, "to have a link to its log", |update| ours(update).log_link.is_some()).await?;
    let live = log_link(&update)?;
    let content = ready::until("the link has the log", RUN, async || {
        let (status, content) = answer(&live.url).await?;
        ensure!(status == 200 && content == printed(&team, &update)?, "{status}: {content}");
        Ok(content)
    })
    .await?;
    ensure!(!content.is_empty(), "no line");
    drop(hold);
    let update = wait(&team, &name, "to be complete", Update::is_complete).await?;
    let kept = log_link(&update)?;
    let whole = printed(&team, &update)?;
    assert_eq!(answer(&kept.url).await?, (200, whole.clone()));
    ensure!(whole.contains("/[secret] exists") && !whole.contains(CANARY), "{whole}");
    let key = format!("/logs/world/{}/{}", team.name, update.uid().context("a uid")?);
    ensure!(kept.url.contains(&key), "{}", kept.url);

    // Another object, a longer life, no signature.
    let link = &kept.url;
    for forged in [
        link.replace(&key, "/logs/world/other/uid"),
        link.replace(&format!("/{}/", team.name), &format!("/{}/", other.name)),
        link.replace("X-Amz-Expires=3600", "X-Amz-Expires=36000"),
        link.split_once('?').context("a query")?.0.to_owned(),
    ] {
        ensure!(forged != *link, "{link}");
        assert_eq!(answer(&forged).await?.0, 403, "{forged}");
    }
    // Signed by the recorder two hours ago, and now by a task for the log of another run.
    let signed = async |role: &str, ago: u64| -> Result<String> {
        let s3 = s3(&world, Some(world.control.credentials(role, &"a".repeat(32)).await?)).await?;
        let start = now() - Duration::from_secs(ago);
        let signing = PresigningConfig::builder().start_time(start).expires_in(Duration::from_hours(1)).build()?;
        let object = s3.get_object().bucket(world.get("WORLD_BUCKET")?).key(&key[1..]);
        Ok(object.presigned(signing).await?.uri().to_owned())
    };
    assert_eq!(answer(&signed("RecorderRole", 0).await?).await?.0, 200);
    let (status, text) = answer(&signed("RecorderRole", 7200).await?).await?;
    ensure!(status == 403 && text.contains("Request has expired"), "{status}: {text}");
    assert_eq!(answer(&signed("TaskRole", 0).await?).await?.0, 403);
    // Kubernetes guards the link.
    let get = ["get", "update", &name, "--output", "jsonpath={.status.driftless.logLink.url}"];
    let mut read = kubectl(&world, &team.name, &team.name)?;
    // The recorder may have signed another one: the result and the end of the task are two
    // messages.
    let read = String::from_utf8(read.args(get).output().await?.stdout)?;
    ensure!(read.split_once('?').map(|(object, _)| object) == link.split_once('?').map(|(object, _)| object), "{read}");
    let refused = kubectl(&world, &other.name, &team.name)?.args(get).output().await?;
    ensure!(String::from_utf8_lossy(&refused.stderr).contains("Forbidden"), "{refused:?}");

    let signature = |link: &str| link.split_once("X-Amz-Signature=").map(|(_, rest)| rest[..64].to_owned());
    let signatures = [signature(&live.url).context("a signature")?, signature(link).context("a signature")?];
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    // The world's S3 logs its own requests.
    let logs = fs::read_dir(world.get("WORLD_LOGS")?)?.collect::<Result<Vec<_>, _>>()?;
    for log in logs.into_iter().filter(|entry| is_file(entry) && entry.file_name() != "moto.log") {
        let content = String::from_utf8_lossy(&fs::read(log.path())?).into_owned();
        let shown = signatures.iter().find(|signature| content.contains(*signature));
        ensure!(shown.is_none() && !content.contains(CANARY), "{}: a link or a secret", log.path().display());
    }
    let events = Api::<Event>::namespaced(world.client.clone(), &team.name).list(&ListParams::default()).await?;
    ensure!(!events.items.is_empty() && !serde_json::to_string(&events.items)?.contains("X-Amz-"), "a link in an Event");
    fs::remove_file(team.file(CANARY)?)?;
    team.ready_after("app", 2).await?;
    other.clear().await?;
    team.clear().await
}

/// The world's kubeconfig, with the identity of the reader of a namespace.
fn kubeconfig_of_reader(team: &Namespace<'_>) -> Result<PathBuf> {
    let mut config: Value = serde_saphyr::from_str(&fs::read_to_string(team.world.get("KUBECONFIG")?)?)?;
    for user in config["users"].as_array_mut().context("users")? {
        user["user"]["as"] = json!(format!("system:serviceaccount:{}:reader", team.name));
    }
    let path = PathBuf::from(team.file("reader.json")?);
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(&path, serde_json::to_string(&config)?)?;
    Ok(path)
}

#[tokio::test]
async fn expired_link_to_a_log_is_renewed_for_a_reader_who_may_ask() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("logs-renewed").await?;
    team.apply(READER).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let name = team.updates("app").await?.pop().context("an Update")?.name_any();
    let update = wait(&team, &name, "to be complete", Update::is_complete).await?;
    let whole = printed(&team, &update)?;
    // As after an hour.
    let expired = json!({ "logLink": { "expires": "2026-01-01T00:00:00Z", "url": "https://127.0.0.1:1/expired" } });
    let expired = Patch::Merge(json!({ "status": { "driftless": expired } }));
    let updates = Api::<Update>::namespaced(world.client.clone(), &team.name);
    let (logs, kubeconfig) = (["logs", "app"], kubeconfig_of_reader(&team)?);
    ready::until("a reader who may not ask has the last part", RUN, async || {
        // The recorder may write the status once more: the result and the end of the task are two
        // messages.
        updates.patch_status(&name, &PatchParams::default(), &expired).await?;
        let shown = command(&world, &team.name, &logs)?.env("KUBECONFIG", &kubeconfig).output().await?;
        let (text, note) = (String::from_utf8(shown.stdout)?, String::from_utf8(shown.stderr)?);
        ensure!(shown.status.success() && text == whole, "{text}\n{note}");
        let refused =
            ["no new one can be requested, and the last 512 KiB are shown: patch Update", "forbidden", "ask for a Role"];
        ensure!(refused.iter().all(|words| note.contains(words)), "its note is {note:?}");
        Ok(())
    })
    .await?;

    // Only the link has the log from here on.
    let maps = Api::<ConfigMap>::namespaced(world.client.clone(), &team.name);
    maps.delete(&format!("{name}-log"), &DeleteParams::default()).await?;
    let shown = command(&world, &team.name, &logs)?.output().await?;
    let (text, note) = (String::from_utf8(shown.stdout)?, String::from_utf8(shown.stderr)?);
    ensure!(shown.status.success() && text == whole, "{text}\n{note}");
    assert_eq!(note, "link to the log has expired; requested a new one by the annotation driftless.dev/log-requested-at\n");
    let renewed = updates.get(&name).await?;
    assert_eq!(answer(&log_link(&renewed)?.url).await?, (200, whole.clone()));

    // The page asks once and reads again; the link may be there at once.
    updates.patch_status(&name, &PatchParams::default(), &expired).await?;
    let page = Page::open(&world, &team.name).await?;
    let path = format!("/api/update?namespace={}&name={name}&after=&requested=", team.name);
    let first = page.read(&path).await?;
    let requested = first["requested"].as_str().context("a request")?;
    ensure!(first["note"].as_str().is_some_and(|note| note.starts_with("link to the log has expired; requested")), "{first}");
    ready::until("the page has the whole log", RUN, async || {
        let run = page.read(&format!("{path}{requested}")).await?;
        ensure!(run["log"] == whole.as_str() && run["requested"].is_null() && run["note"].is_null(), "{run}");
        Ok(())
    })
    .await?;
    updates.patch_status(&name, &PatchParams::default(), &expired).await?;
    let shown = command(&world, &team.name, &["diff", "app"])?.output().await?;
    let (text, note) = (String::from_utf8(shown.stdout)?, String::from_utf8(shown.stderr)?);
    ensure!(text.contains("+ create urn:pulumi:") && note.contains("expired; requested a new one"), "{text}\n{note}");
    ensure!(renewed.status.as_ref().map(|status| &status.conditions) == update.status.as_ref().map(|status| &status.conditions));
    team.clear().await
}

#[tokio::test]
async fn audit_records_say_what_each_run_changed_without_secrets() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("audit").await?;
    let first = held(&team, "").await?;
    wait(&team, &first.name_any(), "to be complete", Update::is_complete).await?;
    fs::remove_file(team.file(CANARY)?)?;
    team.ready_after("app", 2).await?;
    let last = team.updates("app").await?.pop().context("an Update")?;
    wait(&team, &last.name_any(), "to be complete", Update::is_complete).await?;

    let prefix = format!("audit/world/{}/", team.name);
    let found = keys(&world, &prefix).await?;
    let s3 = s3(&world, None).await?;
    let mut records = Vec::new();
    for key in &found {
        let object = s3.get_object().bucket(world.get("WORLD_BUCKET")?).key(key).send().await?;
        let text = String::from_utf8(object.body.collect().await?.to_vec())?;
        ensure!(!text.contains(CANARY) && !text.contains("X-Amz-"), "{text}");
        records.push(serde_json::from_str::<Value>(&text)?);
    }
    // Their names begin with the time of the end.
    let [failed, succeeded] = records.as_slice() else { bail!("{found:?}") };
    let uid = team.stack("app").await?.uid();
    for (record, update, outcome, requester) in
        [(failed, &first, "Unknown", "world"), (succeeded, &last, "succeeded", "retry after ")]
    {
        let spec = update.spec.driftless.as_ref().context("the spec of a run")?;
        assert_eq!((record["run"]["uid"].as_str(), record["outcome"].as_str()), (update.uid().as_deref(), Some(outcome)));
        assert_eq!((record["stack"]["uid"].as_str(), record["operation"].as_str()), (uid.as_deref(), Some("up")));
        assert_eq!(
            (record["stackGeneration"].as_i64(), record["commit"].as_str()),
            (spec.stack_generation, spec.commit.as_deref())
        );
        // The client that applied the Stack, then none.
        let by = record["requestedBy"].as_str().unwrap_or_default();
        ensure!(by.starts_with(requester) && record["task"].is_string(), "{record:#}");
    }
    ensure!(succeeded["changes"]["create"].as_u64() > Some(0), "{succeeded:#}");
    team.clear().await
}
