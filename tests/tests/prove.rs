//! `make prove` without an installation: it deploys into an account of this machine, runs every
//! scenario, including 100 Stacks, removes everything that it created, and writes the file.
//! `e2e/prove.rs` runs it on an existing installation.

use std::{collections::BTreeSet, env, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Output};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    aws::{CALLS_LOG, control::Outage},
    world::{
        account::{Empty, REGION},
        cluster,
    },
};
use serde_json::Value;
use tokio::process::Command;

const PREFIX: &str = "driftless-proof";
const SCENARIOS: [&str; 12] =
    ["start", "pull", "events", "cluster", "scoping", "conditional", "kill", "spot", "stacks", "throttling", "left", "undeploy"];
/// crane without a registry: a line of a file per copy. No registry of the internet answers a test.
const CRANE: &str = r#"#!/bin/sh
copies=$(dirname "$0")/copies
case $1 in
copy) echo "${3%:*}@${2#*@}" >>"$copies" ;;
digest)
  case $2 in
  *.dkr.ecr.*) grep -qxF "$2" "$copies" || { echo MANIFEST_UNKNOWN >&2; exit 1; } ;;
  *) echo "sha256:$(printf %s "$2" | sha256sum | cut -d ' ' -f 1)" ;;
  esac ;;
esac
"#;

#[tokio::test(flavor = "multi_thread")]
async fn proof_deploys_runs_100_stacks_and_leaves_nothing() -> Result<()> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a folder above")?;
    // ECS refuses every second call for a task of the many Stacks.
    let [call, about, code, message] =
        ["ecs RunTask", "prove-many-", "ThrottlingException", "Rate exceeded"].map(ToOwned::to_owned);
    let throttled = Outage { call, about, percent: 50, status: 400, code, message, ..Outage::default() };
    let world = Empty::start(project, "world-prove", vec![throttled]).await?;
    let proofs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("full-proof");
    let _ = fs::remove_dir_all(&proofs);

    let bin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("full-proof-bin");
    let _ = fs::remove_dir_all(&bin);
    fs::create_dir_all(&bin)?;
    fs::write(bin.join("crane"), CRANE)?;
    fs::set_permissions(bin.join("crane"), fs::Permissions::from_mode(0o755))?;
    let path = env::join_paths(
        [bin, world.aws_cli.folder().to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    let program = Path::new(env!("CARGO_BIN_EXE_world")).with_file_name("prove");
    ensure!(program.exists(), "there is no {}: run `make build`", program.display());
    let variables = [("PREFIX", PREFIX), ("BUDGET_USD", "10"), ("NETWORK", "public"), ("TASKS", "3"), ("STACKS", "100")];
    let prove = || {
        let mut prove = Command::new(&program);
        // moto only supports this architecture of functions. The functions are those of `make
        // build`.
        prove.envs(variables).env("ARCHITECTURE", "x86_64").env("BUILD", "no").env("PATH", &path);
        prove.env("RUNNER_IMAGE", "driftless/runner").env("FORWARDER_IMAGE", "driftless/forwarder");
        prove.env("CLUSTER", cluster::NAME).env("PROOFS", &proofs).current_dir(project);
        prove
    };
    let text =
        |output: &Output| format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let aws = async |arguments: &[&str]| {
        let mut aws = Command::new(&world.aws_cli.program);
        aws.args(arguments).args(["--output", "text", "--region", REGION]);
        let output = world.run(aws).await?;
        ensure!(output.status.success(), "{}", text(&output));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    // A prefix in use would lose what is under it.
    let queue = aws(&["sqs", "create-queue", "--queue-name", &format!("{PREFIX}-hints")]).await?;
    let refused = world.run(prove()).await?;
    ensure!(!refused.status.success() && text(&refused).contains("the account has the queue "), "{}", text(&refused));
    let found = aws(&["sqs", "list-queues"]).await?;
    ensure!(found.contains(&queue), "{found} has no {queue}");
    aws(&["sqs", "delete-queue", "--queue-url", &queue]).await?;

    let output = world.run(prove()).await?;
    let printed = text(&output);
    world.stop().await;
    ensure!(output.status.success(), "{printed}");

    let file = fs::read_dir(&proofs)?.next().context("no file was written")??.path();
    let proof: Value = serde_json::from_slice(&fs::read(&file)?)?;
    ensure!(proof["on"] == "emulator" && proof["stacks"] == 100, "{proof:#}");
    let scenarios: Vec<_> = proof["scenarios"].as_array().into_iter().flatten().collect();
    let names: Vec<_> = scenarios.iter().filter_map(|scenario| scenario["name"].as_str()).collect();
    assert_eq!(names, SCENARIOS, "{printed}");
    ensure!(scenarios.iter().all(|scenario| scenario["passed"] == true), "{proof:#}");

    let calls = fs::read_to_string(project.join("target/world-prove/logs").join(CALLS_LOG))?;
    let calls = calls.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let definition = |call: &&Value| call["operation"] == "RegisterTaskDefinition";
    let images =
        calls.iter().filter(definition).flat_map(|call| call["input"]["containerDefinitions"].as_array().into_iter().flatten());
    let images: BTreeSet<_> = images.filter_map(|container| container["image"].as_str()).collect();
    for name in ["pulumi-yaml", "pulumi-python", "runner"] {
        let copy = format!(".dkr.ecr.{REGION}.amazonaws.com/{PREFIX}/copies/{name}@sha256:");
        ensure!(images.iter().any(|image| image.contains(&copy)), "tasks run with {images:?}, not with {copy}");
    }
    Ok(())
}
