//! A secret value occurs where it belongs and nowhere else.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    scenario::{Handle, PASSPHRASE, RUN, Source, output},
    world::ready,
};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    cli::Page,
    world::{alone, keys, quiet, s3},
};

const CONFIG: &str = "canary-config-93be";
const ENV: &str = "canary-env-55aa";

#[tokio::test]
async fn secret_value_appears_only_in_its_secrets() -> Result<()> {
    let (world, turn) = alone().await?;
    let team = world.namespace("canary").await?;
    team.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{ name: app, namespace: NAMESPACE }}\nstringData: {{ password: {CONFIG}, token: {ENV} }}"
    ))
    .await?;
    let program = |marker: &str| -> Result<String> {
        let body = team.program("app.txt", "one", &format!(", secretContent: '${{password}}'{marker}"))?;
        Ok(format!(
            "configuration: {{ password: {{ type: String }} }}\n{}",
            body.replace("outputs: {", "outputs: { secret: '${password}',")
        ))
    };
    let marker = team.file("marker")?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    // A failing run beside a successful one, because failures have messages too.
    team.apply_program("app", &program(&format!(", failWhenExists: {marker}"))?).await?;
    let more = "    TOKEN: { type: Secret, secret: { name: app, key: token } }\n  secretsRef:\n    password: { type: Secret, secret: { name: app, \
                key: password } }\n";
    team.apply_stack("app", Source::Program("app"), more).await?;
    team.wait("app", "to fail", |stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        last.is_some_and(|last| last.state.as_deref() == Some("failed"))
    })
    .await?;
    fs::remove_file(&marker)?;
    let stack = team.ready_after("app", 2).await?;
    quiet(&world, &turn).await?;

    assert_eq!(output(&stack, "secret"), Some(&json!("[secret]")));
    assert_eq!(fs::read_to_string(team.file("app.txt")?)?, format!("one{CONFIG}"), "the program got the value");
    let updates = team.updates("app").await?;
    let outputs = updates[1].status.as_ref().and_then(|status| status.outputs.clone()).context("an outputs Secret")?;
    let outputs = team.secret(&outputs).await?;
    assert_eq!(outputs.data.context("data")?["secret"].0, json!(CONFIG).to_string().into_bytes());
    assert_eq!(outputs.metadata.annotations.context("annotations")?["pulumi.com/secrets"], r#"["secret"]"#);

    let uid = updates[1].uid().context("a uid")?;
    let canaries = [CONFIG, ENV, PASSPHRASE];
    for canary in canaries {
        in_no_object_but_secrets(&world, canary).await?;
    }
    let page = Page::open(&world, &team.name).await?;
    let run = updates[1].name_any();
    for (path, shown) in page.everything(&team.name, "app", &run).await? {
        let is_of_run = ["api/stack?", "api/diff?", "api/update?"].iter().any(|start| path.starts_with(start));
        ensure!(!is_of_run || shown.contains(&run), "{path}: {shown}");
        ensure!(!canaries.iter().any(|canary| shown.contains(canary)), "{path}: {shown}");
    }
    in_no_file(Path::new(world.get("WORLD_LOGS")?), &canaries)?;
    in_no_file(Path::new(&team.state()?), &canaries)?;
    in_no_s3_object(&world, &canaries, &["trees/world/canary/".to_owned(), format!("runs/world/{uid}")]).await
}

/// For example in the logs of all processes and tasks; the calls log has every message and every
/// ECS call in full.
pub(crate) fn in_no_file(folder: &Path, canaries: &[&str]) -> Result<()> {
    let mut files = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            in_no_file(&path, canaries)?;
            continue;
        }
        files += 1;
        let content = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        let line = content.lines().find(|line| canaries.iter().any(|canary| line.contains(canary)));
        ensure!(line.is_none(), "{}: {}", path.display(), line.unwrap_or_default());
    }
    println!("{files} files in {}", folder.display());
    Ok(())
}

/// Every object of the API server, except for the contents of Secrets.
async fn in_no_object_but_secrets(world: &Handle, canary: &str) -> Result<()> {
    let kubectl = Path::new(world.get("WORLD_TOOLS")?).join("kubectl");
    let run = async |arguments: &[&str]| -> Result<String> {
        let mut command = tokio::process::Command::new(&kubectl);
        let output = command.args(arguments).env("KUBECONFIG", world.get("KUBECONFIG")?).output().await?;
        ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let kinds = run(&["api-resources", "--verbs=list", "--output=name"]).await?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| *kind != "secrets").collect();
    ensure!(kinds.iter().any(|kind| kind.starts_with("updates.")), "{kinds:?}");
    let objects = run(&["get", &kinds.join(","), "--all-namespaces", "--output=json"]).await?;
    ensure!(objects.contains("[secret]"), "the Stack's outputs are not among the objects");
    ensure!(!objects.contains(canary), "{canary} in a Kubernetes object");
    Ok(())
}

/// The content of the bucket after all runs are recorded. The folders of tasks are empty then.
async fn in_no_s3_object(world: &Handle, canaries: &[&str], prefixes: &[String]) -> Result<()> {
    let (s3, bucket) = (s3(world, None).await?, world.get("WORLD_BUCKET")?);
    let keys = ready::until("the folders of tasks are empty", RUN, async || {
        let keys = keys(world, "").await?;
        let inputs: Vec<_> = keys.iter().filter(|key| key.starts_with("tasks/") && key.contains("/in/")).collect();
        ensure!(inputs.is_empty(), "{inputs:?}");
        Ok(keys)
    })
    .await?;
    for prefix in prefixes {
        ensure!(keys.iter().any(|key| key.starts_with(prefix)), "no {prefix} in {keys:?}");
    }
    for key in keys {
        let content = s3.get_object().bucket(bucket).key(&key).send().await?.body.collect().await?.to_vec();
        let content = String::from_utf8_lossy(&content);
        for canary in canaries {
            ensure!(!content.contains(canary), "{canary} in {key}");
        }
    }
    Ok(())
}
