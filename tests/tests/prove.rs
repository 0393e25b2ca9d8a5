//! `make prove` without an installation: it deploys into an account of this machine, runs every scenario, including 100 Stacks,
//! removes everything that it created, and writes the file. `e2e/prove.rs` runs it on an existing installation.

use std::{collections::BTreeSet, fs, path::Path, process::Output};

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

    let program = Path::new(env!("CARGO_BIN_EXE_world")).with_file_name("prove");
    ensure!(program.exists(), "there is no {}: run `make build`", program.display());
    let variables = [("PREFIX", PREFIX), ("BUDGET_USD", "10"), ("NETWORK", "public"), ("TASKS", "3"), ("STACKS", "100")];
    let prove = || {
        let mut prove = Command::new(&program);
        // moto only supports this architecture of functions. The functions are those of `make build`.
        prove.envs(variables).env("ARCHITECTURE", "x86_64").env("BUILD", "no");
        prove.env("RUNNER_IMAGE", "driftless/runner").env("FORWARDER_IMAGE", "driftless/forwarder");
        prove.env("CLUSTER", cluster::NAME).env("PROOFS", &proofs).current_dir(project);
        prove
    };
    let text =
        |output: &Output| format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let aws = async |arguments: &[&str]| {
        let mut aws = Command::new("aws");
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
    for name in ["pulumi-base", "pulumi-python-3.13"] {
        let expected = format!("public.ecr.aws/pulumi/{name}:");
        ensure!(images.iter().any(|image| image.starts_with(&expected)), "Programs run with {images:?}");
    }
    Ok(())
}
