//! Drift: the live state is changed by hand, reported, and fixed on request. The meaning of a
//! pause, and of a maintenance window.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{DriftedResource, Stack, Update, names};
use driftless_tests::{
    scenario::{Namespace, RUN, Source, condition, is_ready},
    world::ready,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{canary::in_no_file, updates::wait, world::shared};

/// A secret property that must not be shown: as applied, and as changed by hand.
const SECRETS: [&str; 2] = ["canary-drift-applied-51c2", "canary-drift-changed-77ab"];

fn drifted(stack: &Stack) -> Option<&Condition> {
    stack.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == "Drifted")
}

fn says(stack: &Stack, status: &str, reason: &str) -> bool {
    drifted(stack).is_some_and(|condition| condition.status == status && condition.reason == reason)
}

/// The drifted resources, by change, with name and properties.
fn resources(stack: &Stack) -> Vec<(String, String, Vec<String>)> {
    let drift = stack.status.as_ref().and_then(|status| status.driftless.as_ref()?.drift.clone()).unwrap_or_default();
    let name = |urn: &str| urn.rsplit("::").next().unwrap_or_default().to_owned();
    let mut found: Vec<_> =
        drift.resources.into_iter().map(|DriftedResource { change, properties, urn }| (change, name(&urn), properties)).collect();
    found.sort();
    found
}

fn resource(change: &str, name: &str, properties: &[&str]) -> (String, String, Vec<String>) {
    (change.into(), name.into(), properties.iter().map(|path| (*path).to_owned()).collect())
}

/// Sets annotations that anyone may write without causing a run.
async fn annotate(team: &Namespace<'_>, annotations: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    Api::<Stack>::namespaced(team.world.client.clone(), &team.name).patch("app", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The Updates of the Stack: drift checks first, then the others.
async fn checks_and_runs(team: &Namespace<'_>) -> Result<(Vec<Update>, Vec<Update>)> {
    let updates = team.updates("app").await?;
    Ok(updates.into_iter().partition(|update| update.labels().contains_key(names::DRIFT_CHECK)))
}

fn applied(content: &str, path: &str, more: &str) -> String {
    format!("{{ type: 'world:index:Object', properties: {{ path: '{path}', content: {content}{more} }} }}")
}

#[tokio::test]
async fn drift_is_named_on_schedule_and_remediated_on_request() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("drift").await?;
    let [kept, edited, removed, secret] = ["kept", "edited", "removed", "secret"].map(|name| team.file(name));
    let (kept, edited, removed, secret) = (kept?, edited?, removed?, secret?);
    let program = format!(
        "resources:\n  kept: {}\n  edited: {}\n  removed: {}\n  secret: {}\n",
        applied("one", &kept, ""),
        applied("one", &edited, ""),
        applied("one", &removed, ""),
        applied(&format!("{{ 'fn::secret': {} }}", SECRETS[0]), &secret, ""),
    );
    team.apply_program("app", &program).await?;
    let schedule = format!("{{ {}: 1m }}", names::DRIFT_SCHEDULE);
    team.apply_stack_as("app", "dev", &schedule, Source::Program("app"), "").await?;
    let clean = team.wait("app", "to be without drift", |stack| says(stack, "False", "NoDrift")).await?;
    ensure!(is_ready(&clean), "{:#?}", clean.status);

    // By hand, one resource is changed, one is deleted, and a secret one is changed.
    fs::write(&edited, "changed")?;
    fs::remove_file(&removed)?;
    fs::write(&secret, SECRETS[1])?;
    let expected = [
        resource("delete", "removed", &[]),
        resource("update", "edited", &["content"]),
        resource("update", "secret", &["content"]),
    ];
    let found = team
        .wait("app", "to tell of all drift", |stack| says(stack, "True", "DriftDetected") && resources(stack) == expected)
        .await?;
    ensure!(is_ready(&found), "drift holds nothing up: {:#?}", found.status);
    assert_eq!((fs::read_to_string(&edited)?.as_str(), fs::exists(&removed)?), ("changed", false), "nothing was changed");
    let status = |stack: &Stack| stack.status.clone().context("a status");
    let (before, after) = (status(&clean)?, status(&found)?);
    assert_eq!((before.last_update, before.outputs, None), (after.last_update, after.outputs, after.current_update));
    team.told("app", "DriftDetected", &["3 resources drifted: "]).await?;
    let (checks, runs) = checks_and_runs(&team).await?;
    ensure!(runs.len() == 1 && checks.len() >= 2, "{checks:#?}\n{runs:#?}");
    ensure!(checks.iter().all(|check| check.spec.operation.as_deref() == Some("refresh")), "{checks:#?}");

    // Only the drift that this check found is fixed.
    let drift = after.driftless.and_then(|ours| ours.drift).context("status.driftless.drift")?;
    let check = drift.last_check.context("lastCheck")?;
    let message = drifted(&found).context("Drifted")?.message.clone();
    ensure!(message.ends_with(&format!("{}={check}", names::REMEDIATE)), "{message}");
    annotate(&team, json!({ names::DRIFT_SUSPEND: "true", names::REMEDIATE: check })).await?;
    team.wait("app", "to be put back", |stack| says(stack, "False", "Remediated") && is_ready(stack)).await?;
    for (path, content) in [(&kept, "one"), (&edited, "one"), (&removed, "one"), (&secret, SECRETS[0])] {
        assert_eq!(fs::read_to_string(path)?, content, "{path}");
    }
    let (_, runs) = checks_and_runs(&team).await?;
    let messages: Vec<_> = runs.iter().filter_map(|run| run.spec.message.as_deref()).collect();
    assert_eq!(messages, ["Initial stack update", "Drift detected: 3 resource(s)"]);

    // A property that is ignored is no drift, and nothing puts it back.
    fs::write(&edited, "ignored")?;
    let ignored =
        json!({ names::DRIFT_SUSPEND: null, names::REMEDIATE: names::ALWAYS, names::DRIFT_IGNORE: "world:index:Object#content" });
    annotate(&team, ignored).await?;
    team.wait("app", "to be without drift", |stack| says(stack, "False", "NoDrift")).await?;
    ensure!(fs::read_to_string(&edited)? == "ignored", "it was put back");
    annotate(&team, json!({ names::DRIFT_IGNORE: null, names::REMEDIATE: null })).await?;

    // The state takes the drift over, and the next update changes it back.
    let found = team.wait("app", "to be drifted", |stack| says(stack, "True", "DriftDetected")).await?;
    let check = found.status.and_then(|status| status.driftless?.drift?.last_check).context("lastCheck")?;
    annotate(&team, json!({ names::DRIFT_SUSPEND: "true", names::ADOPT: check })).await?;
    let adopted = team.wait("app", "to be adopted", |stack| says(stack, "False", "Adopted") && is_ready(stack)).await?;
    ensure!(fs::read_to_string(&edited)? == "ignored", "a refresh changed a resource");
    let last = adopted.status.and_then(|status| status.last_update).context("lastUpdate")?;
    assert_eq!((last.operation.as_deref(), last.state.as_deref()), (Some("refresh"), Some("succeeded")));
    annotate(&team, json!({ names::RECONCILIATION_REQUEST: "again" })).await?;
    ready::until("the file is changed back", RUN, async || {
        let stack = team.stack("app").await?;
        let content = fs::read_to_string(&edited)?;
        ensure!(content == "one" && is_ready(&stack), "{content}, {:#?}", stack.status);
        Ok(())
    })
    .await?;

    // From now on, all drift is fixed.
    fs::write(&edited, "changed again")?;
    annotate(&team, json!({ names::DRIFT_SUSPEND: null, names::REMEDIATE: names::ALWAYS })).await?;
    ready::until("the file is put back", RUN, async || {
        let stack = team.stack("app").await?;
        let content = fs::read_to_string(&edited)?;
        ensure!(content == "one" && says(&stack, "False", "Remediated"), "{content}, {:#?}", drifted(&stack));
        Ok(())
    })
    .await?;

    let told = serde_json::to_string(&(team.updates("app").await?, team.stack("app").await?))?;
    ensure!(!SECRETS.iter().any(|secret| told.contains(secret)), "an Update or the Stack tells a secret");
    in_no_file(Path::new(world.get("WORLD_LOGS")?), &SECRETS)?;
    annotate(&team, json!({ names::DRIFT_SCHEDULE: null })).await
}

#[tokio::test]
async fn update_does_not_wait_for_a_drift_check() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("drift-interrupted").await?;
    let file = team.file("slow")?;
    // The check takes longer than the test waits.
    let program = |content: &str| format!("resources:\n  slow: {}\n", applied(content, &file, ", readSeconds: 600"));
    team.apply_program("app", &program("one")).await?;
    let schedule = format!("{{ {}: 1m }}", names::DRIFT_SCHEDULE);
    team.apply_stack_as("app", "dev", &schedule, Source::Program("app"), "").await?;
    let running = |update: &Update| {
        let ours = update.status.as_ref().and_then(|status| status.driftless.clone()).unwrap_or_default();
        ours.progress.is_some_and(|progress| progress.phase.as_deref() == Some("run"))
    };
    let check = ready::until("drift is looked for", RUN, async || {
        let (checks, _) = checks_and_runs(&team).await?;
        let Some(check) = checks.iter().find(|check| running(check)) else { bail!("{checks:#?}") };
        Ok(check.name_any())
    })
    .await?;
    team.apply_program("app", &program("two")).await?;
    ready::until("the second update", RUN, async || {
        let content = fs::read_to_string(&file)?;
        let stack = team.stack("app").await?;
        ensure!(content == "two" && is_ready(&stack), "{content}: {:#?}", stack.status);
        Ok(())
    })
    .await?;
    let (_, runs) = checks_and_runs(&team).await?;
    ensure!(runs.len() == 2, "{runs:#?}");
    // The update may start before the Update of the check is complete.
    let ended = wait(&team, &check, "to be complete", Update::is_complete).await?;
    let failed = ended.status.as_ref().and_then(|status| status.conditions.iter().find(|condition| condition.type_ == "Failed"));
    ensure!(failed.is_some_and(|failed| failed.reason == "Interrupted"), "{ended:#?}");
    // The check had no result, so the status has no drift.
    let stack = team.stack("app").await?;
    ensure!(drifted(&stack).is_none(), "{:#?}", stack.status);
    annotate(&team, json!({ names::DRIFT_SCHEDULE: null })).await
}

#[tokio::test]
async fn run_waits_for_the_maintenance_window_and_a_preview_does_not() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("window").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    // Open for a minute of each 29th of February.
    let closed = format!("{{ {}: '0 0 29 2 *', {}: 1m }}", names::WINDOW_SCHEDULE, names::WINDOW_DURATION);
    team.apply_stack_as("app", "dev", &closed, Source::Program("app"), "").await?;
    let held = |stack: &Stack| {
        condition(stack).is_some_and(|(_, reason, message)| {
            reason == "OutsideWindow" && message.contains("window opens at 20") && message.contains("-02-29T00:00:00Z")
        })
    };
    team.wait("app", "to wait for its window", held).await?;
    ensure!(team.updates("app").await?.is_empty(), "{}", team.state()?);

    // Another window is open.
    annotate(&team, json!({ names::WINDOW_SCHEDULE: "* * * * *", names::WINDOW_DURATION: "1h" })).await?;
    team.ready_after("app", 1).await?;
    annotate(&team, json!({ names::WINDOW_SCHEDULE: "0 0 29 2 *" })).await?;
    team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
    let stack = team.wait("app", "to wait for its window", held).await?;
    let (_, _, message) = condition(&stack).context("a condition")?;
    ensure!(message.starts_with("New commit detected") && team.updates("app").await?.len() == 1, "{message}: {}", team.state()?);

    let preview = Patch::Merge(json!({ "spec": { "preview": true } }));
    Api::<Stack>::namespaced(world.client.clone(), &team.name).patch("app", &PatchParams::default(), &preview).await?;
    team.ready_after("app", 2).await?;
    annotate(&team, json!({ names::WINDOW_SCHEDULE: "soon" })).await?;
    let refused = |stack: &Stack| {
        condition(stack).is_some_and(|(_, reason, message)| {
            reason == "SpecInvalid" && message.contains(r#"annotation driftless.dev/window-schedule is "soon"; write"#)
        })
    };
    team.wait("app", "to be refused", refused).await?;
    annotate(&team, json!({ names::WINDOW_SCHEDULE: null, names::WINDOW_DURATION: null })).await?;
    team.clear().await
}
