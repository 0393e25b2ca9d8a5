//! Fargate Spot: which runs start on it, and the effect of a reclaimed capacity.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update, names};
use driftless_contract::keys;
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source, condition, is_ready},
    world::ready,
};
use kube::ResourceExt as _;

use crate::{
    updates::{apply_update, ours, succeeded, wait},
    world::{alone, shared},
};

const SPOT: &str = "FARGATE_SPOT";
const ON_DEMAND: &str = "FARGATE";

/// The capacity provider of an Update's task, from ECS.
async fn capacity(world: &Handle, update: &Update) -> Result<String> {
    let arn = ours(update).task.with_context(|| format!("no task: {:#?}", update.status))?;
    let tasks = world.control.status().await?.tasks;
    let task = tasks.iter().find(|task| task["taskArn"] == arn).context("ECS no longer lists the task")?;
    let words = task["capacityProviderName"].as_str().or(task["launchType"].as_str());
    Ok(words.context("neither a capacity provider nor a launch type")?.into())
}

/// The first Update of a Stack, when it is complete: a Stack can be Ready just before that.
async fn first(team: &Namespace<'_>, stack: &str) -> Result<Update> {
    let name = team.updates(stack).await?.first().context("no Update")?.name_any();
    wait(team, &name, "to be complete", Update::is_complete).await
}

fn annotations(capacity: &str) -> String {
    format!("{{ {}: {capacity} }}", names::CAPACITY)
}

fn has_no_drift(stack: &Stack) -> bool {
    let conditions = stack.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions.iter().any(|condition| condition.type_ == "Drifted" && condition.reason == "NoDrift")
}

#[tokio::test]
async fn read_only_runs_use_spot_and_others_on_request() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("spot").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let schedule = format!("{{ {}: 1m }}", names::DRIFT_SCHEDULE);
    team.apply_stack_as("app", "dev", &schedule, Source::Program("app"), "").await?;
    team.apply_stack_as("cheap", "cheap", &annotations("spot"), Source::Program("app"), "").await?;
    team.wait("app", "to be without drift", has_no_drift).await?;
    team.wait("cheap", "to be Ready", is_ready).await?;
    for update in team.updates("app").await?.iter().filter(|update| update.is_complete()) {
        let is_check = update.labels().contains_key(names::DRIFT_CHECK);
        assert_eq!(capacity(&world, update).await?, if is_check { SPOT } else { ON_DEMAND }, "{}", update.name_any());
    }
    assert_eq!(capacity(&world, &first(&team, "cheap").await?).await?, SPOT);

    for (name, annotations, operation, expected) in [
        ("preview", "{}".to_owned(), "preview", SPOT),
        ("refresh", "{}".to_owned(), "refresh", ON_DEMAND),
        ("cheap-refresh", annotations("spot"), "refresh", SPOT),
        ("sure-preview", annotations("on-demand"), "preview", ON_DEMAND),
    ] {
        apply_update(&team, name, &annotations, &format!("{{ workspaceName: cheap, stackName: cheap, type: {operation} }}"))
            .await?;
        let update = succeeded(&team, name).await?;
        assert_eq!(capacity(&world, &update).await?, expected, "{name}");
    }

    team.apply_stack_as("odd", "odd", &annotations("cheapest"), Source::Program("app"), "").await?;
    team.wait("odd", "to name its annotation", |stack| {
        let words = r#"annotation driftless.dev/capacity is "cheapest"; write "spot" or "on-demand", or remove it"#;
        condition(stack).is_some_and(|(type_, _, message)| type_ == "Stalled" && message == words)
    })
    .await?;
    team.clear().await
}

#[tokio::test]
async fn run_without_spot_capacity_runs_on_demand() -> Result<()> {
    let (world, _turn) = alone().await?;
    let team = world.namespace("spot-full").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    world.control.refuse_spot(u32::MAX).await?;
    team.apply_stack("app", Source::Program("app"), "  preview: true\n").await?;
    let waits = |stack: &Stack| condition(stack).is_some_and(|(.., message)| message.contains("ECS did not start the task"));
    team.wait("app", "to say that there is no capacity", waits).await?;
    team.ready_after("app", 1).await?;
    assert_eq!(capacity(&world, &first(&team, "app").await?).await?, ON_DEMAND);
    team.clear().await
}

#[tokio::test]
async fn spot_interruption_saves_state_and_the_next_run_continues() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("spot-taken").await?;
    let [first, second, third] = ["first", "second", "third"].map(|name| team.file(name));
    let (first, second, third) = (first?, second?, third?);
    let hold = team.hold()?;
    let resource = |path: &str, more: &str, options: &str| {
        format!("{{ type: 'world:index:Object', properties: {{ path: '{path}', content: one{more} }}{options} }}")
    };
    let after = |name: &str| format!(", options: {{ dependsOn: ['${{{name}}}'] }}");
    let program = format!(
        "resources:\n  first: {}\n  second: {}\n  third: {}\n",
        resource(&first, "", ""),
        resource(&second, &hold.property(), &after("first")),
        resource(&third, "", &after("second")),
    );
    team.apply_program("app", &program).await?;
    team.apply_stack_as("app", "dev", &annotations("spot"), Source::Program("app"), "").await?;
    ready::until("the first resource is there", RUN, async || {
        ensure!(fs::exists(&first)?, "{:#?}", team.stack("app").await?.status);
        Ok(())
    })
    .await?;
    let update = team.running("app").await?;
    assert_eq!(capacity(&world, &update).await?, SPOT);
    let task = ours(&update).task.context("a task")?;
    world.control.reclaim(&task).await?;
    let log = Path::new(world.get("WORLD_LOGS")?).join(format!("{}.log", keys::task_id(&task)));
    ready::until("the runner interrupts pulumi", RUN, async || {
        let said = fs::read_to_string(&log)?;
        ensure!(said.contains("driftless: interrupted: task was stopped"), "{said}");
        Ok(())
    })
    .await?;
    drop(hold);

    let ended = wait(&team, &update.name_any(), "to be complete", Update::is_complete).await?;
    let failed = ended.status.iter().flat_map(|status| &status.conditions).find(|condition| condition.type_ == "Failed");
    let failed = failed.context("Failed")?;
    ensure!(failed.reason == "Interrupted" && failed.message.starts_with("Fargate Spot reclaimed the capacity: "), "{failed:?}");
    ensure!(!fs::exists(&third)?, "it was done before it was interrupted");

    let stack = team.ready_after("app", 2).await?;
    assert_eq!(stack.status.and_then(|status| status.last_update?.failures), Some(0));
    let next = team.complete("app").await?.remove(1);
    assert_eq!(capacity(&world, &next).await?, ON_DEMAND, "it gets through");
    // All of it would be four, with the stack itself. Steps in progress at the interruption were
    // completed.
    let summary = ours(&next).summary.unwrap_or_default();
    ensure!(["+1", "+2"].contains(&summary.as_str()), "{summary}: what was made is made again");
    ensure!(fs::exists(&third)?, "the third resource");
    team.clear().await
}
