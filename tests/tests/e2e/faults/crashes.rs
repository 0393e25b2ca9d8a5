//! Functions that are killed at a call of AWS, before or after it is carried out, at each step of a
//! run.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update};
use driftless_contract::{LaunchHint, ObjectKey, keys::task_id, to_json};
use driftless_tests::{
    aws::{
        CALLS_LOG,
        control::{Invoked, Outage},
    },
    scenario::{Handle, Namespace, RUN, SYSTEM, Source, commit, is_ready},
    world::{cluster, git::Repository, ready},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde_json::Value;

use crate::{
    interruption::intact,
    notifications::{post, proof, push},
    updates::{ours, wait},
    world::{aws, keys, looked, nothing_was_given_up, shared},
};

/// When a function is killed: before a call is carried out, or between that and its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Before,
    After,
}

use When::{After, Before};

/// A role, a call and its subject: the first such call is the function's last.
type Step = (&'static str, &'static str, String);

/// Until a Stack has an Update. A message of the fetcher is delivered three times, any other five
/// times.
fn of_stack(when: When, namespace: &str, stack: &str) -> Vec<Step> {
    let about = |kind: &str, end: &str| format!("{kind}*{namespace}*{stack}{end}");
    let tree = |object: &str| format!("/{namespace}/program.{stack}/*/{object}");
    let mut steps = vec![
        ("ReconcilerRole", "sqs", about("Program", "\\")),
        ("ReconcilerRole", "sqs", about("Update", "-")),
        ("FetcherRole", "s3 PUT", tree(if when == Before { "pack" } else { "manifest" })),
    ];
    if when == Before {
        steps.push(("FetcherRole", "sqs", about("", "\\")));
    }
    steps
}

/// From the Update to its outcome, without the task's folder.
fn of_update(when: When, namespace: &str, stack: &str, uid: &str) -> Vec<Step> {
    let mut steps = vec![
        ("RecorderRole", "s3 PUT", format!("{uid}/outcome")),
        ("ReconcilerRole", "s3 GET", format!("{uid}/outcome")),
        ("RecorderRole", "sqs", format!("Stack*{namespace}*{stack}\\")),
    ];
    match when {
        Before => steps.extend(["launch", "owner"].map(|object| ("LauncherRole", "s3 PUT", format!("{uid}/{object}")))),
        After => steps.push(("LauncherRole", "ecs RunTask", uid.to_owned())),
    }
    steps
}

/// The writes and deletions in a task's folder.
fn of_task(when: When, id: &str) -> Vec<Step> {
    let objects = if when == Before { ["manifest", "spec"] } else { ["run", "spec"] };
    let mut steps = vec![("RecorderRole", "s3 POST", format!("{id}/in/spec"))];
    steps.extend(objects.map(|object| ("LauncherRole", "s3 PUT", format!("{id}/in/{object}"))));
    steps
}

/// The kills of a test.
struct Kills<'a> {
    world: &'a Handle,
    armed: RefCell<Vec<Outage>>,
    /// The launcher's message is not delivered again yet.
    launcher_waits: Cell<bool>,
}

impl Kills<'_> {
    async fn arm(&self, when: When, steps: Vec<Step>) -> Result<()> {
        for (role, call, about) in steps {
            let (call, by, code) = (call.to_owned(), Some(role.to_owned()), "Killed".to_owned());
            // The first of a hundred calls.
            let kill =
                Outage { call, by, about, percent: 1, status: 503, code, kills: true, lost: when == After, ..Outage::default() };
            self.world.control.outage(&kill).await?;
            self.armed.borrow_mut().push(kill);
        }
        Ok(())
    }

    async fn disarm(&self) -> Result<()> {
        let armed = self.armed.borrow().clone();
        for kill in armed {
            self.world.control.outage(&Outage { percent: 0, ..kill }).await?;
        }
        Ok(())
    }

    /// Delivers the messages of killed functions again, without end.
    async fn redeliver(&self) -> Result<Infallible> {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            tick.tick().await;
            for function in ["Reconciler", "Fetcher", "Launcher", "Recorder"] {
                if function != "Launcher" || !self.launcher_waits.get() {
                    self.world.control.expire(function).await?;
                }
            }
        }
    }

    /// Checks that each kill happened. Returns their number.
    fn all_happened(&self) -> Result<usize> {
        let kills = self.world.journal(CALLS_LOG, 0, |call| call["kills"] == true)?;
        let mut left = self.armed.borrow().clone();
        let count = left.len();
        left.retain(|kill| !kills.iter().any(|call| is(call, kill)));
        ensure!(left.is_empty(), "{left:#?} killed nobody; these were killed: {kills:#?}");
        Ok(count)
    }
}

/// Returns whether a call in the journal may be the one of an outage.
fn is(call: &Value, kill: &Outage) -> bool {
    let text = format!("{}{}", call["path"].as_str().unwrap_or_default(), call["input"]);
    let role = kill.by.as_deref().unwrap_or_default().trim_end_matches("Role").to_lowercase();
    let has_role = call["caller"].as_str().is_some_and(|caller| caller.to_lowercase().contains(&role));
    has_role && kill.call.split(' ').next() == call["service"].as_str() && kill.about.split('*').all(|part| text.contains(part))
}

#[tokio::test]
async fn functions_that_are_killed_at_any_step_leave_each_run_done_once() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("crashed").await?;
    let kills = Kills { world: &world, armed: RefCell::default(), launcher_waits: Cell::new(false) };
    let ended = tokio::select! {
        ended = killed(&team, &kills) => ended,
        failed = kills.redeliver() => failed.map(|never| match never {}),
    };
    kills.disarm().await?;
    ended?;
    assert_eq!(kills.all_happened()?, 27);
    nothing_was_given_up(&world).await
}

async fn killed(team: &Namespace<'_>, kills: &Kills<'_>) -> Result<()> {
    let repository = begin_pushed(team).await?;
    // One after the other: a message in a batch with those of a killed function counts as delivered
    // as often.
    for (stack, when) in [("before", Before), ("after", After)] {
        run(team, kills, stack, when).await?;
    }
    push_again(team, kills, &repository).await?;
    sweep(team.world, kills).await?;
    destroy(team, kills).await
}

/// Runs a Stack, and kills each function at each of its steps.
async fn run(team: &Namespace<'_>, kills: &Kills<'_>, stack: &str, when: When) -> Result<()> {
    kills.arm(when, of_stack(when, &team.name, stack)).await?;
    team.apply_program(stack, &team.program(&format!("{stack}.txt"), "one", "")?).await?;
    // The run waits for a Secret, so that its uid is known before its launch.
    let secret = format!("of-{stack}");
    let more = format!("    TOKEN: {{ type: Secret, secret: {{ name: {secret}, key: token }} }}\n  destroyOnFinalize: true\n");
    team.apply_stack_as(stack, stack, "{}", Source::Program(stack), &more).await?;
    // A first launch that is still on its way would fill the task's folder before the kills are
    // armed.
    let update = ready::until(&format!("{stack} has an Update that waits"), RUN, async || {
        let update = team.updates(stack).await?.pop().with_context(|| format!("no Update of {stack}"))?;
        ensure!(ours(&update).waiting_for.is_some(), "{:?}", update.status);
        Ok(update)
    })
    .await?;
    let uid = update.uid().context("a uid")?;
    kills.arm(when, of_update(when, &team.name, stack, &uid)).await?;
    kills.launcher_waits.set(true);
    team.apply_secret(&secret, &[("token", "t")]).await?;
    launch(team, &update).await?;
    // By then the launcher is dead.
    let task = ready::until_every(Duration::from_millis(50), &format!("{stack} has a task"), RUN, async || {
        // The first kill may have come before the request for the task.
        let tasks = tasks_of(team.world, &uid).await?;
        if tasks.is_empty() && when == Before {
            team.world.control.expire("Launcher").await?;
        }
        Ok(tasks.first().and_then(|task| task["taskArn"].as_str()).context("no task")?.to_owned())
    })
    .await?;
    kills.arm(when, of_task(when, task_id(&task))).await?;
    kills.launcher_waits.set(false);
    for _ in 0..2 {
        team.ready_after(stack, 1).await?;
        looked(team, stack).await?;
    }
    intact(team, stack, stack)?;
    nothing_is_held(team, stack).await
}

async fn tasks_of(world: &Handle, uid: &str) -> Result<Vec<Value>> {
    let mut tasks = world.control.status().await?.tasks;
    tasks.retain(|task| task["startedBy"] == uid);
    Ok(tasks)
}

/// Launches an Update now.
async fn launch(team: &Namespace<'_>, update: &Update) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(team.world, None).await?);
    let url = sqs.get_queue_url().queue_name("driftless-launches").send().await?.queue_url;
    let [cluster, api_version, kind] = [cluster::NAME, "auto.pulumi.com/v1alpha1", "Update"].map(ToOwned::to_owned);
    let key = ObjectKey { cluster, api_version, kind, namespace: team.name.clone(), name: update.name_any() };
    let hint = LaunchHint::after(0, key).context("a hint")?;
    sqs.send_message().set_queue_url(url).message_body(to_json(&hint)).send().await?;
    Ok(())
}

/// Checks that one task ran. The claim, the slot and the secrets of a Stack's one run are gone
/// before its Update is complete, which the Stack does not wait for.
async fn nothing_is_held(team: &Namespace<'_>, stack: &str) -> Result<()> {
    let update = team.updates(stack).await?.pop().context("an Update")?.name_any();
    let update = wait(team, &update, "to be complete", Update::is_complete).await?;
    let uid = update.uid().context("a uid")?;
    let tasks = tasks_of(team.world, &uid).await?;
    ensure!(tasks.len() == 1, "{stack}: {} tasks", tasks.len());
    let leases: Api<Lease> = Api::namespaced(team.world.client.clone(), SYSTEM);
    for lease in leases.list(&ListParams::default()).await? {
        ensure!(!serde_json::to_string(&lease)?.contains(&uid), "{stack}: {lease:#?}");
    }
    let id = ours(&update).task.context("a task")?;
    let folder = keys(team.world, "tasks/").await?;
    let secrets = ["in/spec", "in/identity"].map(|object| format!("{}/{object}", task_id(&id)));
    ensure!(!folder.iter().any(|key| secrets.iter().any(|secret| key.ends_with(secret))), "{stack}: {folder:?}");
    Ok(())
}

/// A Stack of a git repository whose pushes go to the webhook.
async fn begin_pushed(team: &Namespace<'_>) -> Result<Repository> {
    let repository = team.world.git.create(&team.name).await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("pushed.txt", "zero", "")?);
    repository.commit("first", &[("Pulumi.yaml", &project)]).await?;
    let source = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    // No poll of git happens before the test ends.
    team.apply_stack_as("pushed", "pushed", "{}", source, "  resyncFrequencySeconds: 3600\n").await?;
    Ok(repository)
}

/// The webhook is killed before it sends hints, and then after that: the sender repeats the push
/// until it has an answer.
async fn push_again(team: &Namespace<'_>, kills: &Kills<'_>, repository: &Repository) -> Result<()> {
    team.ready_after("pushed", 1).await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("pushed.txt", "one", "")?);
    let pushed = repository.commit("second", &[("Pulumi.yaml", &project)]).await?;
    let body = push("github", &repository.url, &pushed)?;
    let proof = proof("github", team.world.get("WORLD_WEBHOOK_KEY_OF_GIT")?, &body);
    let headers = [("x-github-event", "push"), ("x-hub-signature-256", &*proof)];
    for when in [Before, After] {
        kills.arm(when, vec![("WebhookRole", "sqs", format!("Repository*{}", team.name))]).await?;
        assert_eq!(post(team.world, "/github", &headers, body.clone()).await?, 502, "killed {when:?} it hinted");
    }
    assert_eq!(post(team.world, "/github", &headers, body).await?, 202, "the webhook lives");
    let has_run = |stack: &Stack| is_ready(stack) && commit(stack) == Some(&*pushed);
    team.wait("pushed", "to have run the push", has_run).await?;
    looked(team, "pushed").await?;
    team.ready_after("pushed", 2).await?;
    intact(team, "app", "pushed")
}

/// The next sweep does the work of a killed one.
async fn sweep(world: &Handle, kills: &Kills<'_>) -> Result<()> {
    kills.arm(Before, vec![("SweeperRole", "ecs ListTasks", "driftless".into())]).await?;
    let tick: Value = serde_json::from_str(include_str!("../../../../events/sweeper/tick.json"))?;
    // The killed sweep may be the schedule's own.
    let mut ends = Vec::new();
    for _ in 0..2 {
        ends.push(world.control.invoke("Sweeper", &tick).await?);
    }
    ensure!(matches!(ends[1], Invoked::Answer(_)), "{ends:?}");
    Ok(())
}

/// A deleted Stack is destroyed and released, although the reconciler is killed when it removes the
/// finalizer.
async fn destroy(team: &Namespace<'_>, kills: &Kills<'_>) -> Result<()> {
    for stack in team.stacks().await? {
        let (name, uid) = (stack.name_any(), stack.uid().context("a uid")?);
        let when = if name == "before" { Before } else { After };
        if name != "pushed" {
            kills.arm(when, vec![("ReconcilerRole", "s3 DELETE", format!("sealed/*{uid}"))]).await?;
        }
        let stacks = Api::<Stack>::namespaced(team.world.client.clone(), &team.name);
        stacks.delete(&name, &DeleteParams::default()).await?;
        // One process may reconcile both, and end at the kill of the other one before it has the
        // answer to its own.
        ready::until(&format!("{name} is deleted"), RUN, async || {
            ensure!(stacks.get_opt(&name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
    }
    team.clear().await?;
    for stack in ["before", "after"] {
        let file = team.file(&format!("{stack}.txt"))?;
        ensure!(!Path::new(&file).exists(), "{file} is still there");
    }
    Ok(())
}
