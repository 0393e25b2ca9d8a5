//! `make prove` with this world: the same scenarios and the same code as on AWS.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{aws::control::Outage, world::cluster};
use serde_json::Value;
use tokio::process::Command;

use crate::world::aside;

const NAMESPACE: &str = "proof";

#[tokio::test]
async fn scenarios_of_a_proof_pass_and_leave_nothing() -> Result<()> {
    let (world, _turn) = aside().await?;
    let proofs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proof");
    let _ = fs::remove_dir_all(&proofs);
    let mut prove = Command::new(Path::new(env!("CARGO_BIN_EXE_world")).with_file_name("prove"));
    prove.env("PATH", format!("{}:{}", world.get("WORLD_TOOLS")?, std::env::var_os("PATH").unwrap_or_default().display()));
    for name in ["KUBECONFIG", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        prove.env(name, world.get(name)?);
    }
    let variables = [("INSTALLATION", "driftless"), ("TASKS", "3"), ("STACKS", "5"), ("NETWORK", "public"), ("BUDGET_USD", "5")];
    prove.envs(variables).env("CLUSTER", cluster::NAME).env("NAMESPACE", NAMESPACE).env("PROOFS", &proofs);
    // Of four calls for a task of the many Stacks ECS refuses three: as many as the SDK makes
    // before a Stack learns of it.
    let [call, about, code, message] =
        ["ecs RunTask", "prove-many-", "ThrottlingException", "Rate exceeded"].map(ToOwned::to_owned);
    let throttled = Outage { call, about, percent: 75, status: 400, code, message, ..Outage::default() };
    world.control.outage(&throttled).await?;
    let output = prove.output().await?;
    world.control.outage(&Outage { percent: 0, ..throttled }).await?;
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{printed}");

    let file = fs::read_dir(&proofs)?.next().context("no file was written")??.path();
    let proof: Value = serde_json::from_slice(&fs::read(&file)?)?;
    ensure!(proof["on"] == "emulator", "{proof:#}");
    let scenarios: Vec<_> = proof["scenarios"].as_array().into_iter().flatten().collect();
    let names: Vec<_> = scenarios.iter().filter_map(|scenario| scenario["name"].as_str()).collect();
    let expected =
        ["start", "pull", "events", "cluster", "scoping", "conditional", "kill", "spot", "stacks", "throttling", "left"];
    assert_eq!(names, expected, "{printed}");
    ensure!(scenarios.iter().all(|scenario| scenario["passed"] == true), "{proof:#}");
    Ok(())
}
