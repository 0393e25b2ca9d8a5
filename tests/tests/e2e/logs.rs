//! The log of a run, as a user with read access to its namespace sees it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::Update;
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source},
    world::ready,
};
use kube::ResourceExt as _;

use crate::{
    updates::{ours, wait},
    world::shared,
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

/// Runs the commands of docs/runs.md as the reader of a namespace.
async fn read(world: &Handle, reader: &str, namespace: &str, update: &str) -> Result<String> {
    let mut command = tokio::process::Command::new(Path::new(world.get("WORLD_TOOLS")?).join("kubectl"));
    let command = command
        .arg(format!("--as=system:serviceaccount:{reader}:reader"))
        .args(["--namespace", namespace, "get", "configmap", &format!("{update}-log")])
        .args(["--output", "go-template={{range .data}}{{.}}{{end}}"])
        .env("KUBECONFIG", world.get("KUBECONFIG")?);
    let output = command.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The output of an Update's task.
pub fn printed(team: &Namespace<'_>, update: &Update) -> Result<String> {
    let arn = ours(update).task.context("a task")?;
    let id = arn.rsplit('/').next().unwrap_or_default();
    Ok(fs::read_to_string(Path::new(team.world.get("WORLD_LOGS")?).join(format!("{id}.log")))?)
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
    // The failure names the file, and with it the password, which the provider does not know to be secret.
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
