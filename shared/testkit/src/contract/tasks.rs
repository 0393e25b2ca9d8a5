//! The guarantees of [`Tasks`], and of the events that ECS sends to the recorder.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use driftless_aws::{Error, Started, TaskState, Tasks};
use driftless_contract::{Launch, RunId, VERSION, keys};
use driftless_core::{StopCode, TaskEnd, TaskShape};
use futures::future::try_join;
use jiff::Timestamp;
use serde_json::json;

/// ECS. Its tasks run until they are stopped.
pub trait Fixture {
    /// The implementation.
    type Port: Tasks;

    /// The implementation.
    fn port(&self) -> &Self::Port;

    /// The time by the clock of ECS.
    fn now(&self) -> Timestamp;

    /// Sets whether ECS has capacity from now on.
    fn set_capacity(&self, is_there: bool) -> impl Future<Output = Result<()>>;

    /// Reclaims the capacity of a task on Spot.
    fn reclaim(&self, arn: &str) -> impl Future<Output = Result<()>>;

    /// Makes the main container of a task exit by itself.
    fn exit(&self, arn: &str) -> impl Future<Output = Result<()>>;

    /// Waits until a task with a requested stop, or whose container exited, has stopped.
    fn stopped(&self, arn: &str) -> impl Future<Output = Result<()>>;

    /// Makes ECS forget the stopped tasks, as it does after an hour.
    fn forget(&self) -> impl Future<Output = Result<()>>;

    /// Returns whether ECS notifies the recorder of a change of the task's state.
    fn is_told(&self, arn: &str) -> impl Future<Output = Result<bool>>;
}

/// The image of tasks that stay pending as long as the fixture exists.
pub const PENDING: &str = "pending";

/// More tasks than one page of ECS.
const MANY: usize = 101;

suite! {
    shape_has_one_definition
    shape_that_ecs_refuses_is_invalid
    launched_task_is_alive
    launch_of_an_unknown_definition_is_refused
    same_launch_is_the_same_task
    next_attempt_is_another_task
    client_token_with_other_parameters_names_its_task
    forgotten_task_is_missing_and_frees_its_client_token
    refused_launch_stays_refused_until_the_next_attempt
    stop_is_shown_at_once_and_is_requested
    stop_of_a_task_that_is_gone_is_harmless
    task_that_exits_by_itself_says_so
    task_on_spot_says_that_it_is_taken_away
    stopped_task_is_told_to_the_recorder
    live_lists_tasks_until_they_are_asked_to_stop
    live_lists_every_page
    log_url_names_the_task
}

fn shape(image: &str) -> TaskShape {
    TaskShape { image: Some(image.into()), ..TaskShape::default() }
}

/// The first launch attempt of the Update with that uid.
async fn launch<F: Fixture>(fixture: &F, uid: &str) -> Result<Launch> {
    launch_of(fixture, uid, "image").await
}

async fn launch_of<F: Fixture>(fixture: &F, uid: &str, image: &str) -> Result<Launch> {
    let update =
        json!({ "cluster": "c", "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "namespace": "n", "name": "u" });
    let run = RunId { update: serde_json::from_value(update)?, uid: format!("contract-{uid}").into(), claim: "claim".into() };
    let definition = fixture.port().definition(&shape(image)).await?;
    let launch = json!({ "version": VERSION, "run": run, "attempt": 0, "taskDefinition": definition, "at": fixture.now() });
    Ok(serde_json::from_value(launch)?)
}

async fn run<F: Fixture>(fixture: &F, launch: &Launch) -> Result<String> {
    match fixture.port().run(launch).await? {
        Started::Task { task: arn } => Ok(arn),
        Started::Refused { why } => bail!("refused: {why}"),
    }
}

async fn start<F: Fixture>(fixture: &F, uid: &str) -> Result<String> {
    run(fixture, &launch(fixture, uid).await?).await
}

async fn shape_has_one_definition<F: Fixture>(fixture: &F) -> Result<()> {
    let tasks = fixture.port();
    let first = tasks.definition(&shape("image")).await?;
    ensure!(tasks.definition(&shape("image")).await? == first);
    ensure!(tasks.definition(&shape("other")).await? != first);
    Ok(())
}

async fn shape_that_ecs_refuses_is_invalid<F: Fixture>(fixture: &F) -> Result<()> {
    let refused = fixture.port().definition(&shape("pulumi:{latest}")).await;
    ensure!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    Ok(())
}

async fn launched_task_is_alive<F: Fixture>(fixture: &F) -> Result<()> {
    let before = fixture.now();
    let arn = start(fixture, "alive").await?;
    match fixture.port().state(&arn).await? {
        TaskState::Alive { end, created: Some(created) } => {
            ensure!(end == TaskEnd::default(), "{end:?}");
            let seconds = before.as_second()..=fixture.now().as_second();
            ensure!(seconds.contains(&created.as_second()) && created.subsec_nanosecond() == 0, "{created}");
            Ok(())
        }
        other => bail!("{other:?}"),
    }
}

async fn launch_of_an_unknown_definition_is_refused<F: Fixture>(fixture: &F) -> Result<()> {
    let launch = launch(fixture, "unknown").await?;
    let unknown = Launch { definition: launch.definition.replace("driftless-", "unknown-"), ..launch };
    let refused = fixture.port().run(&unknown).await;
    ensure!(matches!(refused, Err(Error::Permanent { .. })), "{refused:?}");
    Ok(())
}

async fn same_launch_is_the_same_task<F: Fixture>(fixture: &F) -> Result<()> {
    let launch = launch(fixture, "same").await?;
    let (arn, other) = try_join(run(fixture, &launch), run(fixture, &launch)).await?;
    ensure!(other == arn, "at once");
    ensure!(run(fixture, &launch).await? == arn, "while it is alive");
    fixture.port().stop(&arn, "contract").await?;
    ensure!(run(fixture, &launch).await? == arn, "while it stops");
    fixture.stopped(&arn).await?;
    ensure!(run(fixture, &launch).await? == arn, "after it stopped");
    Ok(())
}

async fn next_attempt_is_another_task<F: Fixture>(fixture: &F) -> Result<()> {
    let launch = launch(fixture, "attempts").await?;
    let first = run(fixture, &launch).await?;
    ensure!(run(fixture, &Launch { attempt: 1, ..launch }).await? != first);
    Ok(())
}

async fn client_token_with_other_parameters_names_its_task<F: Fixture>(fixture: &F) -> Result<()> {
    let first = start(fixture, "parameters").await?;
    let other = launch_of(fixture, "parameters", "other").await?;
    ensure!(run(fixture, &other).await? == first);
    Ok(())
}

async fn forgotten_task_is_missing_and_frees_its_client_token<F: Fixture>(fixture: &F) -> Result<()> {
    let launch = launch(fixture, "forgotten").await?;
    let arn = run(fixture, &launch).await?;
    fixture.port().stop(&arn, "contract").await?;
    fixture.stopped(&arn).await?;
    fixture.forget().await?;
    ensure!(fixture.port().state(&arn).await? == TaskState::Missing);
    ensure!(run(fixture, &launch).await? != arn);
    Ok(())
}

async fn refused_launch_stays_refused_until_the_next_attempt<F: Fixture>(fixture: &F) -> Result<()> {
    let launch = launch(fixture, "refused").await?;
    for is_there in [false, true] {
        fixture.set_capacity(is_there).await?;
        let started = fixture.port().run(&launch).await;
        ensure!(matches!(started, Ok(Started::Refused { .. })), "with capacity: {is_there}: {started:?}");
    }
    run(fixture, &Launch { attempt: 1, ..launch }).await.map(drop)
}

async fn stop_is_shown_at_once_and_is_requested<F: Fixture>(fixture: &F) -> Result<()> {
    let (tasks, arn) = (fixture.port(), start(fixture, "stop").await?);
    for _ in 0..2 {
        tasks.stop(&arn, "contract").await?;
        let end = tasks.state(&arn).await?.into_end();
        ensure!(end.code == Some(StopCode::Requested), "at once: {end:?}");
    }
    fixture.stopped(&arn).await?;
    match tasks.state(&arn).await? {
        TaskState::Stopped { end } => ensure!(end.code == Some(StopCode::Requested) && end.at.is_some(), "{end:?}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn stop_of_a_task_that_is_gone_is_harmless<F: Fixture>(fixture: &F) -> Result<()> {
    let (tasks, arn) = (fixture.port(), start(fixture, "gone").await?);
    let unknown = arn.replace(keys::task_id(&arn), &"0".repeat(32));
    ensure!(tasks.state(&unknown).await? == TaskState::Missing);
    tasks.stop(&unknown, "contract").await?;
    fixture.exit(&arn).await?;
    fixture.stopped(&arn).await?;
    let before = tasks.state(&arn).await?;
    tasks.stop(&arn, "contract").await?;
    ensure!(tasks.state(&arn).await? == before);
    Ok(())
}

async fn task_that_exits_by_itself_says_so<F: Fixture>(fixture: &F) -> Result<()> {
    let arn = start(fixture, "exits").await?;
    fixture.exit(&arn).await?;
    fixture.stopped(&arn).await?;
    match fixture.port().state(&arn).await? {
        TaskState::Stopped { end } => ensure!(end.code == Some(StopCode::Exited) && end.at.is_some(), "{end:?}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn task_on_spot_says_that_it_is_taken_away<F: Fixture>(fixture: &F) -> Result<()> {
    let launch = Launch { spot: true, ..launch(fixture, "spot").await? };
    let arn = run(fixture, &launch).await?;
    fixture.reclaim(&arn).await?;
    let end = fixture.port().state(&arn).await?.into_end();
    ensure!(end.code == Some(StopCode::Spot), "at once: {end:?}");
    // Another client requests the stop too.
    fixture.port().stop(&arn, "contract").await?;
    fixture.stopped(&arn).await?;
    let end = fixture.port().state(&arn).await?.into_end();
    ensure!(end.code == Some(StopCode::Spot), "at its end: {end:?}");
    Ok(())
}

async fn stopped_task_is_told_to_the_recorder<F: Fixture>(fixture: &F) -> Result<()> {
    let arn = start(fixture, "told").await?;
    fixture.exit(&arn).await?;
    fixture.stopped(&arn).await?;
    ensure!(fixture.is_told(&arn).await?);
    Ok(())
}

/// The live tasks, page by page.
async fn pages<F: Fixture>(fixture: &F) -> Result<Vec<Vec<String>>> {
    let (mut pages, mut from) = (Vec::new(), None);
    loop {
        let page = fixture.port().live(from.as_deref()).await?;
        pages.push(page.tasks);
        match page.next {
            Some(next) => from = Some(next),
            None => return Ok(pages),
        }
    }
}

async fn live_lists_tasks_until_they_are_asked_to_stop<F: Fixture>(fixture: &F) -> Result<()> {
    let (one, other) = (start(fixture, "live").await?, start(fixture, "live-too").await?);
    let is_live = async |arn: &String| anyhow::Ok(pages(fixture).await?.iter().flatten().any(|live| live == arn));
    ensure!(is_live(&one).await? && is_live(&other).await?);
    fixture.port().stop(&one, "contract").await?;
    ensure!(!is_live(&one).await? && is_live(&other).await?, "one was asked to stop");
    fixture.exit(&other).await?;
    fixture.stopped(&other).await?;
    ensure!(!is_live(&other).await?, "the other one stopped");
    Ok(())
}

async fn live_lists_every_page<F: Fixture>(fixture: &F) -> Result<()> {
    let mut started = BTreeSet::new();
    for n in 0..MANY {
        started.insert(run(fixture, &launch_of(fixture, &format!("page-{n}"), PENDING).await?).await?);
    }
    let pages = pages(fixture).await?;
    ensure!(pages.len() > 1, "one page");
    let mut listed = pages.into_iter().flatten().filter(|arn| started.contains(arn)).collect::<Vec<_>>();
    listed.sort();
    ensure!(listed.iter().eq(&started), "{} of {MANY} tasks", listed.len());
    Ok(())
}

async fn log_url_names_the_task<F: Fixture>(fixture: &F) -> Result<()> {
    let arn = start(fixture, "log").await?;
    let url = fixture.port().log_url(&arn);
    url.contains(keys::task_id(&arn)).then_some(()).context(url)
}
