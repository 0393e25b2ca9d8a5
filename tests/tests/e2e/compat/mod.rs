//! The behaviour of the Pulumi Kubernetes Operator, row by row: the cases in `cases`, and the page
//! that describes them.

mod case;
mod history;
mod page;
mod seen;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use driftless_api::Stack;
use driftless_tests::{
    aws::CALLS_LOG,
    scenario::{Handle, Namespace, RUN, Source, is_ready},
    world::ready,
};
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace as CoreNamespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use crate::world::{alone, s3, shared};

use case::Case;
use history::History;

const REFUSED: &str = include_str!("cases/refused.yaml");
const RUNS: &str = include_str!("cases/runs.yaml");
const DELETION: &str = include_str!("cases/deletion.yaml");
const TIME: &str = include_str!("cases/time.yaml");

/// The number of concurrent cases that start tasks: the machine has few cores, and other tests run
/// too.
const SIDE_BY_SIDE: usize = 5;
/// A Stack may be reconciled once more just after its state was seen.
const STILL: Duration = Duration::from_secs(20);

#[tokio::test]
async fn refused_cases_name_their_cause() -> Result<()> {
    let then = async |team: &Namespace<'_>, cases: &[Case]| {
        settled(team, cases, Some(0)).await?;
        Box::pin(seen::is_worded(team, cases)).await
    };
    group("compat-refused", REFUSED, usize::MAX, then).await
}

#[tokio::test]
async fn run_cases_do_what_their_fields_say() -> Result<()> {
    group("compat-runs", RUNS, SIDE_BY_SIDE, async |team, cases| settled(team, cases, None).await).await
}

#[tokio::test]
async fn deletion_cases_destroy_on_finalize() -> Result<()> {
    group("compat-deletion", DELETION, SIDE_BY_SIDE, async |_, _| Ok(())).await
}

#[tokio::test]
async fn timed_cases_run_when_due() -> Result<()> {
    group("compat-time", TIME, usize::MAX, async |_, _| Ok(())).await
}

#[tokio::test]
async fn dependent_runs_right_after_its_prerequisite_without_a_sweep() -> Result<()> {
    let (world, _turn) = alone().await?;
    let team = namespace(&world, "compat-at-once").await?;
    world.control.pause_schedule(true).await?;
    let ran = async {
        team.apply_stack_as("second", "second", "{}", Source::Program("app"), "  prerequisites: [{ name: first }]\n").await?;
        team.wait("second", "to wait", |stack| stack.status.as_ref().is_some_and(|status| !status.conditions.is_empty())).await?;
        team.apply_stack_as("first", "first", "{}", Source::Program("app"), "").await?;
        team.ready_after("second", 1).await?;
        team.wait("first", "to be Ready", is_ready).await
    }
    .await;
    world.control.pause_schedule(false).await?;
    let last = ran?.status.and_then(|status| status.last_update).context("lastUpdate")?;
    let ended = last.last_resync_time.context("lastResyncTime")?.0;
    // In whole seconds.
    let started = team.updates("second").await?[0].creation_timestamp().context("a time")?.0 + SignedDuration::from_secs(1);
    // Its own requeue is delayed, and the fetch for both hinted it before.
    let about_second = format!("\"namespace\":{:?},\"name\":\"second\"", team.name);
    let wakes = world.journal(CALLS_LOG, 0, |call| {
        let (input, at) = (&call["input"], call["at"].as_str().and_then(|at| at.parse::<Timestamp>().ok()));
        call["caller"].as_str().is_some_and(|caller| caller.ends_with("/driftless-reconciler"))
            && input["MessageBody"].as_str().is_some_and(|body| body.contains(&about_second))
            && input["DelaySeconds"].as_u64().unwrap_or_default() == 0
            && at.is_some_and(|at| (ended..started).contains(&at))
    })?;
    ensure!(
        !wakes.is_empty(),
        "nothing hinted it between {ended}, when its prerequisite succeeded, and {started}, when it started"
    );
    clear(&team).await
}

#[tokio::test]
async fn terminating_namespace_destroys_its_stacks_first() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = namespace(&world, "compat-terminating").await?;
    team.apply_stack("app", Source::Program("app"), "  destroyOnFinalize: true\n").await?;
    team.ready_after("app", 1).await?;
    let file = team.file("dev.txt")?;
    ensure!(Path::new(&file).exists(), "there is no {file}");
    let sealed = format!("sealed/world/{}/{}", team.name, team.stack("app").await?.uid().unwrap_or_default());
    let bucket = world.get("WORLD_BUCKET")?;
    let administrator = s3(&world, None).await?;
    let head = administrator.head_object().bucket(bucket).key(&sealed).send().await?;
    ensure!(head.ssekms_key_id().is_some(), "the sealed inputs are not encrypted under a key of their own");
    for role in ["ReconcilerRole", "FetcherRole", "RecorderRole", "SweeperRole", "TaskRole"] {
        let other = s3(&world, Some(world.control.credentials(role, "other").await?)).await?;
        let refused = other.get_object().bucket(bucket).key(&sealed).send().await.err();
        let code = refused.as_ref().and_then(|error| error.code());
        ensure!(code == Some("AccessDenied"), "{role} reads sealed inputs: {code:?}");
    }
    let namespaces: Api<CoreNamespace> = Api::all(world.client.clone());
    namespaces.delete(&team.name, &DeleteParams::default()).await?;
    ready::until("the namespace is gone", RUN, async || {
        let left = team.stacks().await?;
        ensure!(left.is_empty(), "{:#?}", left[0].status);
        ensure!(namespaces.get_opt(&team.name).await?.is_none(), "it is terminating");
        Ok(())
    })
    .await?;
    ensure!(!Path::new(&file).exists(), "{file} is still there");
    let left = administrator.head_object().bucket(bucket).key(&sealed).send().await;
    ensure!(left.is_err(), "the sealed inputs outlive their Stack");
    Ok(())
}

/// A namespace with the Program that most cases run.
async fn namespace<'a>(world: &'a Handle, name: &str) -> Result<Namespace<'a>> {
    let team = world.namespace(name).await?;
    team.apply_program("app", &team.program("${pulumi.stack}.txt", "one", "")?).await?;
    Ok(team)
}

fn cases(team: &Namespace<'_>, text: &str) -> Result<Vec<Case>> {
    case::read(text, &team.name, &team.state()?, team.file("")?.trim_end_matches('/'))
}

/// Runs cases in their own namespace and checks the state afterwards. Everything is deleted,
/// whatever the result, because it would keep the world busy.
async fn group(
    namespace: &str,
    text: &str,
    side_by_side: usize,
    then: impl AsyncFnOnce(&Namespace<'_>, &[Case]) -> Result<()>,
) -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = self::namespace(&world, namespace).await?;
    let cases = cases(&team, text)?;
    let history = History::begin(Api::namespaced(world.client.clone(), &team.name)).await?;
    let all = async {
        run(&team, &cases, &history, side_by_side.min(cases.len())).await?;
        for case in &cases {
            Box::pin(seen::is_seen(&team, case)).await.with_context(|| case.name.clone())?;
        }
        then(&team, &cases).await
    };
    let ran = tokio::select! {
        ran = all => ran,
        failed = history.record() => Err(failed),
    };
    let cleared = clear(&team).await;
    ran.and(cleared)
}

/// Runs cases, this many concurrently, and reports all failures.
async fn run(team: &Namespace<'_>, cases: &[Case], history: &History, side_by_side: usize) -> Result<()> {
    let results = stream::iter(cases).map(async |case| (case, case.run(team, history).await)).buffer_unordered(side_by_side);
    let failed = results.filter_map(async |(case, result)| Some(format!("{}: {:?}", case.name, result.err()?)));
    report(&failed.collect::<Vec<_>>().await, cases.len())
}

fn report(failed: &[String], of: usize) -> Result<()> {
    if failed.is_empty() { Ok(()) } else { bail!("{} of {of} cases failed\n\n{}", failed.len(), failed.join("\n\n")) }
}

/// Checks that the settled state is unchanged, with this number of Updates or the earlier one;
/// `kubectl` agrees.
async fn settled(team: &Namespace<'_>, cases: &[Case], updates: Option<usize>) -> Result<()> {
    let mut failed = Vec::new();
    let (mut ready, mut stalled) = (Vec::new(), Vec::new());
    for case in cases {
        let Some(last) = case.steps.last() else { continue };
        if last.expect.ready {
            ready.push(case.object());
        } else if last.expect.stalled.is_some() {
            stalled.push(case.object());
        }
        if let Err(error) = case.until(team, &last.expect, STILL, Vec::new).await {
            failed.push(format!("{}, when all is done: {error:?}", case.name));
        }
        let found = team.updates(case.object()).await?.len();
        if updates.is_some_and(|wanted| wanted != found) {
            failed.push(format!("{} has {found} Updates", case.name));
        }
    }
    report(&failed, cases.len())?;
    kubectl_wait(team, "Ready", &ready).await?;
    kubectl_wait(team, "Stalled", &stalled).await
}

async fn kubectl_wait(team: &Namespace<'_>, condition: &str, stacks: &[&str]) -> Result<()> {
    if stacks.is_empty() {
        return Ok(());
    }
    let kubectl = Path::new(team.world.get("WORLD_TOOLS")?).join("kubectl");
    let mut kubectl = tokio::process::Command::new(kubectl);
    // kubectl watches one Stack after the other, which took longer than 20 s for all of them on a
    // busy machine.
    kubectl.args(["wait", "--timeout=180s", "--namespace", &team.name, &format!("--for=condition={condition}")]);
    kubectl
        .args(stacks.iter().map(|stack| format!("stacks.pulumi.com/{stack}")))
        .env("KUBECONFIG", team.world.get("KUBECONFIG")?);
    let ended = kubectl.output().await?;
    ensure!(ended.status.success(), "kubectl wait: {}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}

/// Releases the Stacks that a case holds, and deletes the others.
async fn clear(team: &Namespace<'_>) -> Result<()> {
    let stacks: Api<Stack> = Api::namespaced(team.world.client.clone(), &team.name);
    for stack in team.stacks().await? {
        if stack.finalizers().iter().any(|finalizer| finalizer == "driftless.dev/hold") {
            let rest: Vec<_> = stack.finalizers().iter().filter(|finalizer| *finalizer != "driftless.dev/hold").collect();
            let patch = json!({ "metadata": { "finalizers": rest, "resourceVersion": stack.resource_version() } });
            stacks.patch(&stack.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    team.clear().await
}
