//! `kubectl driftless`, as a user runs it: the binary with a kubeconfig, without AWS.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update};
use driftless_tests::{
    scenario::{Handle, Namespace, PASSPHRASE, RUN, Source},
    world::ready,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{logs::printed, updates::wait, world::shared};

/// The CLI with the world's kubeconfig.
pub fn command(world: &Handle, namespace: &str, arguments: &[&str]) -> Result<Command> {
    let binary = Path::new(env!("CARGO_BIN_EXE_world")).with_file_name("kubectl-driftless");
    ensure!(binary.exists(), "{}: run `make build`", binary.display());
    let mut command = Command::new(binary);
    command.env_clear().env("KUBECONFIG", world.get("KUBECONFIG")?).args(["--namespace", namespace]).args(arguments);
    Ok(command)
}

/// The page of `kubectl driftless ui`, as the browser of its user reads it.
pub struct Page {
    _process: Child,
    client: reqwest::Client,
    root: String,
    token: String,
    port: String,
}

impl Page {
    /// Starts the command.
    pub async fn open(world: &Handle, namespace: &str) -> Result<Self> {
        let mut command = command(world, namespace, &["ui"])?;
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(process.stdout.take().context("its output")?).lines();
        let url = { lines }.next_line().await?.context("a URL")?;
        let (root, token) = url.split_once("/?token=").context("a token")?;
        let port = root.rsplit(':').next().context("a port")?.to_owned();
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { _process: process, client, root: root.to_owned(), token: token.to_owned(), port })
    }

    /// The answer to a request with this token.
    async fn answer(&self, path: &str, token: &str) -> Result<reqwest::Response> {
        let cookie = format!("driftless-{}={token}", self.port);
        Ok(self.client.get(format!("{}{path}", self.root)).header("cookie", cookie).send().await?)
    }

    /// The text that a path is answered with. A browser that reads it may load nothing from another
    /// host.
    async fn text(&self, path: &str) -> Result<String> {
        let answer = self.answer(path, &self.token).await?;
        let (status, policy) = (answer.status(), answer.headers().get("content-security-policy").cloned());
        let text = answer.text().await?;
        ensure!(status == 200, "{path}: {status} {text}");
        let policy = policy.as_ref().and_then(|policy| policy.to_str().ok()).with_context(|| format!("{path}: no policy"))?;
        let mut directives = policy.split(';').map(|directive| directive.split_whitespace().collect::<Vec<_>>());
        ensure!(directives.any(|directive| directive == ["default-src", "'none'"]), "{path}: {policy}");
        let elsewhere = policy.split([';', ' ']).find(|word| word.contains(['*', '.', ':']));
        ensure!(elsewhere.is_none(), "{path} may load from {elsewhere:?}");
        Ok(text)
    }

    /// What a path answers.
    pub async fn read(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.text(path).await?)?)
    }

    /// All that the page, its script and its styles are answered with about a Stack and a run, by
    /// path.
    pub async fn everything(&self, namespace: &str, stack: &str, run: &str) -> Result<Vec<(String, String)>> {
        let script = self.text("/page.js").await?;
        // The script requests nothing but these: infra/cli/tests/ui.rs.
        let paths: Vec<_> = script.split("read(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        ensure!(paths.len() == 5, "{paths:?}");
        let mut found = vec![("/page.js".to_owned(), script.clone())];
        for path in [String::new(), "page.css".to_owned()].into_iter().chain(paths.into_iter().map(|path| {
            let name = if path == "api/update" { run } else { stack };
            format!("{path}?namespace={namespace}&name={name}&after=&requested=")
        })) {
            let text = self.text(&format!("/{path}")).await?;
            found.push((path, text));
        }
        Ok(found)
    }
}

/// What the CLI prints and its exit code.
async fn run(team: &Namespace<'_>, arguments: &[&str]) -> Result<(String, i32)> {
    let Output { stdout, stderr, status } = command(team.world, &team.name, arguments)?.output().await?;
    let text = format!("{}{}", String::from_utf8(stdout)?, String::from_utf8(stderr)?);
    Ok((text, status.code().context("an exit code")?))
}

/// What the CLI prints when it succeeds.
async fn done(team: &Namespace<'_>, arguments: &[&str]) -> Result<String> {
    let (text, code) = run(team, arguments).await?;
    ensure!(code == 0, "{arguments:?} ended with {code}: {text}");
    Ok(text)
}

/// What `explain` says about a Stack or an Update.
pub async fn explained(team: &Namespace<'_>, target: &str) -> Result<Value> {
    Ok(serde_json::from_str(&done(team, &["explain", target, "--output", "json"]).await?)?)
}

/// The reason and the message of the condition with the reason why a Stack is not Ready, and when
/// it is reconciled next.
fn shown(stack: &Stack) -> Option<(String, String, Option<Value>)> {
    let (_, reason, message) = driftless_tests::scenario::condition(stack)?;
    let next = stack.status.as_ref()?.driftless.as_ref()?.next_look.as_ref();
    Some((reason, message, next.and_then(|next| serde_json::to_value(next).ok())))
}

#[tokio::test]
async fn cli_shows_a_stack_while_it_waits_runs_and_rests() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cli").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "  prerequisites: [{ name: base }]\n").await?;
    let waits = |stack: &Stack| shown(stack).is_some_and(|(reason, ..)| reason == "PrerequisiteNotSatisfied");
    team.wait("app", "to wait for its prerequisite", waits).await?;

    // From the objects alone, the CLI decides the same as the reconciler.
    ready::until("the explanation agrees with the status", RUN, async || {
        let explanation = explained(&team, "app").await?;
        let (reason, message, next) = shown(&team.stack("app").await?).context("a condition")?;
        let said = [&explanation["reason"], &explanation["message"]];
        ensure!(said == [&Value::from(reason), &Value::from(message)] && explanation["fromStatus"] == false, "{explanation}");
        ensure!(Some(&explanation["next"]["at"]) == next.as_ref(), "{explanation}: {next:?}");
        Ok(())
    })
    .await?;
    let all = done(&team, &["get", "--all-namespaces"]).await?;
    ensure!(
        all.lines().any(|line| line.starts_with("cli ") && line.contains(" app ") && line.contains("PrerequisiteNot")),
        "{all}"
    );

    let hold = team.hold()?;
    team.apply_program("base", &team.program("base.txt", "one", &hold.property())?).await?;
    team.apply_stack_as("base", "base", "{}", Source::Program("base"), "").await?;
    let update = team.running("base").await?;
    let name = update.name_any();
    let explanation = explained(&team, "base").await?;
    ensure!(explanation["doing"] == "runs" && explanation["reason"] == "StackProcessing", "{explanation}");
    let explanation = explained(&team, &format!("update/{name}")).await?;
    ensure!(explanation["doing"] == "runs", "{explanation}");
    let tree = done(&team, &["tree", "base"]).await?;
    ensure!(tree.contains("Program base") && tree.contains(&format!("Update {name}  up, current, runs")), "{tree}");
    ensure!(tree.contains("└─ task "), "{tree}");
    let (text, code) = run(&team, &["wait", "base", "--applied", "--timeout", "1s"]).await?;
    ensure!(code == 124 && text.contains("timed out after 1s: Stack \"base\" is StackProcessing"), "{code}: {text}");

    let mut follow = command(&world, &team.name, &["logs", "--follow", "base"])?;
    let (log, ()) = tokio::try_join!(async { anyhow::Ok(follow.kill_on_drop(true).output().await?) }, async {
        wait(&team, &name, "to name its log", |update| crate::updates::ours(update).log_config_map.is_some()).await?;
        drop(hold);
        anyhow::Ok(())
    })?;
    ensure!(log.status.success(), "{log:?}");
    let update = wait(&team, &name, "to be complete", Update::is_complete).await?;
    assert_eq!(String::from_utf8(log.stdout)?, printed(&team, &update)?, "all that the task printed");
    let tree = done(&team, &["tree", "base"]).await?;
    ensure!(tree.contains("└─ resource urn:pulumi:base::") && tree.contains("  create took "), "{tree}");

    done(&team, &["wait", "app", "--applied", "--timeout", "5m"]).await?;
    let applied = team.ready_after("app", 1).await?;
    let commit = applied.status.and_then(|status| status.last_update?.last_successful_commit).context("a commit")?;
    done(&team, &["wait", "app", "--applied", "--commit", &commit, "--timeout", "10s"]).await?;
    let (text, code) = run(&team, &["wait", "app", "--applied", "--commit", &"0".repeat(40), "--timeout", "1s"]).await?;
    ensure!(code == 124, "{code}: {text}");
    let last = team.updates("app").await?.pop().context("an Update")?.name_any();
    wait(&team, &last, "to be complete, which its Stack does not wait for", Update::is_complete).await?;
    let explanation = explained(&team, "app").await?;
    ensure!(explanation["doing"] == "rests" && explanation["reason"] == "Ready", "{explanation}");
    let (text, code) = run(&team, &["explain", "absent"]).await?;
    ensure!(code == 1 && text == "error: no Stack or Update \"absent\" in namespace \"cli\"; set --namespace\n", "{text}");
    team.clear().await
}

#[tokio::test]
async fn cli_requests_suspends_cancels_and_runs() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cli-requests").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let before = team.ready_after("app", 1).await?;
    let printed = done(&team, &["suspend", "app", "--dry-run"]).await?;
    ensure!(printed.contains("driftless.dev/suspend: \"true\""), "{printed}");
    ensure!(!team.stack("app").await?.is_suspended(), "--dry-run changed {:?}", before.metadata);

    done(&team, &["suspend", "app"]).await?;
    let suspended = |stack: &Stack| {
        stack.status.as_ref().is_some_and(|status| status.driftless.as_ref().is_some_and(|ours| ours.suspended == Some(true)))
    };
    team.wait("app", "to be suspended", suspended).await?;
    let explanation = explained(&team, "app").await?;
    ensure!(explanation["reason"] == "Suspended", "{explanation}");
    let (text, code) = run(&team, &["run", "up", "app"]).await?;
    ensure!(code == 1 && text == "error: Stack cli-requests/app is suspended; resume it before a run\n", "{text}");
    done(&team, &["resume", "app"]).await?;
    team.wait("app", "to be resumed", |stack| !suspended(stack)).await?;

    done(&team, &["reconcile", "app"]).await?;
    ready::until("app has a second Update", RUN, async || {
        let updates = team.updates("app").await?.len();
        ensure!(updates == 2, "{updates} Updates");
        Ok(())
    })
    .await?;
    team.ready_after("app", 2).await?;
    let (text, code) = run(&team, &["run", "destroy", "app"]).await?;
    ensure!(code == 1 && text.contains("repeat the command with --yes"), "{text}");
    let text = done(&team, &["run", "refresh", "app", "--wait", "--timeout", "5m"]).await?;
    ensure!(text.starts_with("requested refresh of Stack cli-requests/app: Update app-refresh-"), "{text}");

    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "two", &hold.property())?).await?;
    let name = team.running("app").await?.name_any();
    done(&team, &["suspend", "app"]).await?;
    let text = done(&team, &["cancel", "app"]).await?;
    ensure!(text.contains(&format!("canceled Update {name}")), "{text}");
    let failed = |stack: &Stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.clone()).unwrap_or_default();
        last.name.as_deref() == Some(name.as_str()) && last.state.as_deref() == Some("failed")
    };
    team.wait("app", "to have recorded the canceled run", failed).await?;
    drop(hold);
    done(&team, &["resume", "app"]).await?;
    team.wait("app", "to be Ready", driftless_tests::scenario::is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn cli_serves_its_page_to_its_user_alone() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cli-page").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let last = team.updates("app").await?.pop().context("an Update")?.name_any();
    wait(&team, &last, "to be complete, which its Stack does not wait for", Update::is_complete).await?;
    // The page has the log by the link of the Update then.
    let maps = Api::<ConfigMap>::namespaced(world.client.clone(), &team.name);
    maps.delete(&format!("{last}-log"), &DeleteParams::default()).await?;
    let log = printed(&team, &team.updates("app").await?.pop().context("an Update")?)?;
    let page = Page::open(&world, &team.name).await?;
    for (path, text) in page.everything(&team.name, "app", &last).await? {
        let loads = text.replace("http://www.w3.org/2000/svg", "");
        let is_asset = !path.starts_with("api/");
        ensure!(!is_asset || !["://", "url(", "@import"].iter().any(|word| loads.contains(word)), "{path}: {text}");
        ensure!(!text.contains(PASSPHRASE), "{path}: {text}");
    }
    let fleet = page.read("/api/stacks").await?;
    ensure!(fleet["rows"][0]["name"] == "app" && fleet["rows"][0]["state"] == "Ready", "{fleet}");
    let stack = page.read("/api/stack?namespace=cli-page&name=app").await?;
    ensure!(stack["explanation"]["reason"] == "Ready" && stack["runs"][0]["state"] == "succeeded", "{stack}");
    let run = stack["runs"][0]["name"].as_str().context("a run")?;
    let run = page.read(&format!("/api/update?namespace=cli-page&name={run}&after=&requested=")).await?;
    ensure!(run["complete"] == true && run["log"] == log.as_str() && log.contains("Resources:"), "{run}");
    ensure!(run["resources"].as_array().is_some_and(|found| !found.is_empty()), "{run}");
    for (path, token) in [("/", String::new()), ("/api/stacks", "0".repeat(64))] {
        let answer = page.answer(path, &token).await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status == 403 && !text.contains("app"), "{path}: {status} {text}");
    }
    let diff = done(&team, &["diff", "app"]).await?;
    ensure!(diff.contains("The last update of") && diff.contains("+ create urn:pulumi:"), "{diff}");
    team.clear().await
}

#[tokio::test]
async fn kubectl_completes_commands_and_the_names_of_stacks() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cli-completion").await?;
    team.apply_stack("app", Source::Program("absent"), "").await?;
    let tools = Path::new(world.get("WORLD_TOOLS")?);
    let folder = tempfile::tempdir()?;
    let binary = Path::new(env!("CARGO_BIN_EXE_world")).with_file_name("kubectl-driftless");
    for name in ["kubectl-driftless", "kubectl_complete-driftless"] {
        std::os::unix::fs::symlink(&binary, folder.path().join(name))?;
    }
    for (words, expected) in [
        (&["tre"][..], "tree\tShows a Stack with its source, its Updates and their tasks\n"),
        (&["--namespace", &team.name, "explain", ""], "app\n"),
    ] {
        // It completes no names if the cluster does not answer within three seconds.
        ready::until("kubectl completes", RUN, async || {
            let mut kubectl = Command::new(tools.join("kubectl"));
            kubectl.env_clear().env("KUBECONFIG", world.get("KUBECONFIG")?).env("PATH", folder.path());
            let output = kubectl.args(["__complete", "driftless"]).args(words).output().await?;
            let text = String::from_utf8(output.stdout)?;
            ensure!(output.status.success() && text == format!("{expected}:4\n"), "{words:?}: {text}");
            Ok(())
        })
        .await?;
    }
    team.clear().await
}
