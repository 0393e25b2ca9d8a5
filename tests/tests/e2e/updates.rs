//! Updates and Workspaces that a user creates, and changes during a run.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{DriftlessUpdateStatus, Stack, Update, Workspace, names};
use driftless_tests::{
    scenario::{Namespace, RUN, Source, condition, is_ready},
    world::{ready, start::LIMITS},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    migration::kubectl,
    world::{alone, aside, looked, shared},
};

/// The Updates of a namespace.
pub fn updates(team: &Namespace<'_>) -> Api<Update> {
    Api::namespaced(team.world.client.clone(), &team.name)
}

/// Applies an Update as a user would. `spec` is a YAML flow mapping.
pub async fn apply_update(team: &Namespace<'_>, name: &str, annotations: &str, spec: &str) -> Result<()> {
    let head = "apiVersion: auto.pulumi.com/v1alpha1\nkind: Update\nmetadata";
    team.apply(&format!("{head}: {{ name: {name}, namespace: NAMESPACE, annotations: {annotations} }}\nspec: {spec}")).await
}

/// Waits until an Update matches `wanted`.
pub async fn wait(team: &Namespace<'_>, name: &str, what: &str, wanted: impl Fn(&Update) -> bool) -> Result<Update> {
    ready::until(&format!("Update {name} {what}"), RUN, async || {
        let update = updates(team).get(name).await?;
        if wanted(&update) { Ok(update) } else { bail!("{}", serde_json::to_string_pretty(&update.status)?) }
    })
    .await
}

/// Status, reason and message of a condition of an Update.
pub fn is(update: &Update, type_: &str) -> Option<(String, String, String)> {
    let conditions = &update.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
}

/// The status fields that PKO does not have.
pub fn ours(update: &Update) -> DriftlessUpdateStatus {
    update.status.as_ref().and_then(|status| status.driftless.clone()).unwrap_or_default()
}

/// Waits for the end of an Update, which must be successful.
pub async fn succeeded(team: &Namespace<'_>, name: &str) -> Result<Update> {
    let update = wait(team, name, "to be complete", Update::is_complete).await?;
    let failed = is(&update, "Failed").context("Failed")?;
    ensure!(failed.0 == "False", "{name}: {failed:?}");
    Ok(update)
}

/// Waits until an Update no longer exists.
pub async fn gone(team: &Namespace<'_>, name: &str) -> Result<()> {
    ready::until(&format!("Update {name} is gone"), RUN, async || {
        let left = updates(team).get_opt(name).await?;
        ensure!(left.is_none(), "{left:#?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn user_runs_any_pulumi_operation_in_the_workspace_of_a_stack() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("by-hand").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let file = team.file("app.txt")?;

    let spec = |more: &str| format!("{{ workspaceName: app, stackName: dev, {more} }}");
    apply_update(&team, "preview", "{}", &spec("type: preview, expectNoChanges: true, message: looks the same")).await?;
    let preview = succeeded(&team, "preview").await?;
    assert_eq!(ours(&preview).summary.as_deref(), Some("no changes"));
    ensure!(ours(&preview).log.is_some_and(|log| log.contains("/cloudwatch/")), "{:?}", preview.status);
    wait(&team, "preview", "to lose our finalizer, which comes last", |update| update.finalizers().is_empty()).await?;
    let table = kubectl(&world, &["get", "updates.auto.pulumi.com", "preview", "--namespace", &team.name]).await?;
    ensure!(["CHANGES", "DURATION", "no changes"].iter().all(|text| table.contains(text)), "{table}");

    // The resources are changed by hand: a refresh sees it, and an up corrects it.
    std::fs::write(&file, "drifted")?;
    apply_update(&team, "strict", "{}", &spec("type: refresh, expectNoChanges: true")).await?;
    let strict = wait(&team, "strict", "to be complete", Update::is_complete).await?;
    assert_eq!(is(&strict, "Failed").context("Failed")?.0, "True", "a change was expected by nobody");
    apply_update(&team, "refresh", "{}", &spec("type: refresh")).await?;
    let refresh = succeeded(&team, "refresh").await?;
    apply_update(&team, "up", "{}", &spec("type: up, parallel: 1, ttlAfterCompleted: 1s")).await?;
    gone(&team, "up").await?;
    assert_eq!(std::fs::read_to_string(&file)?, "one");
    for update in [&preview, &refresh] {
        let status = update.status.clone().unwrap_or_default();
        ensure!(status.start_time.is_some() && status.end_time.is_some() && ours(update).duration.is_some(), "{status:#?}");
    }
    apply_update(&team, "wary", "{}", &spec("type: destroy, expectNoChanges: true")).await?;
    let wary = wait(&team, "wary", "to be complete", Update::is_complete).await?;
    let (failed, _, words) = is(&wary, "Failed").context("Failed")?;
    ensure!(failed == "True" && words.contains("the destroy would change 2 resource(s)"), "{words}");
    ensure!(Path::new(&file).exists(), "it was destroyed");
    apply_update(&team, "destroy", "{}", &spec("type: destroy, remove: true")).await?;
    assert_eq!(ours(&succeeded(&team, "destroy").await?).summary.as_deref(), Some("-2"));
    ensure!(!Path::new(&file).exists(), "{file} is still there");

    // As a recorder leaves it that ends between the last two steps.
    let kept = json!({ "metadata": { "finalizers": [names::FINALIZER] } });
    updates(&team).patch("destroy", &PatchParams::default(), &Patch::Merge(kept)).await?;
    updates(&team).delete("destroy", &DeleteParams::default()).await?;
    gone(&team, "destroy").await?;

    // An Update that cannot run yet says why.
    apply_update(&team, "no-workspace", "{}", "{ workspaceName: nobody, stackName: dev, type: up }").await?;
    wait(&team, "no-workspace", "to say what is wrong", |update| {
        ours(update).waiting_for.is_some_and(|told| told.contains("nobody"))
    })
    .await?;
    updates(&team).delete("no-workspace", &DeleteParams::default()).await?;
    gone(&team, "no-workspace").await?;
    // The Stack is not affected by any of it.
    looked(&team, "app").await?;
    team.ready_after("app", 1).await?;
    team.clear().await
}

#[tokio::test]
async fn an_update_with_an_invalid_field_fails_at_once() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("invalid-updates").await?;
    // Without a Workspace there is no wait.
    for (name, annotations, spec, words) in [
        (
            "no-type",
            "{}",
            "{ workspaceName: app, stackName: dev, type: apply }",
            "spec.type is \"apply\"; use up, preview, refresh or destroy",
        ),
        ("no-stack", "{}", "{ workspaceName: app, type: up }", "spec.stackName is missing"),
        (
            "no-ttl",
            "{}",
            "{ workspaceName: app, stackName: dev, type: up, ttlAfterCompleted: soon }",
            "spec.ttlAfterCompleted is",
        ),
        (
            "no-limit",
            "{ driftless.dev/max-duration: soon }",
            "{ workspaceName: app, stackName: dev, type: up }",
            "driftless.dev/max-duration is \"soon\"",
        ),
        (
            "no-tree",
            "{}",
            "{ stackName: dev, type: up, driftless: { workspace: {}, \
             tree: { digest: ../x, source: { apiVersion: x/v1, kind: Any, name: any } } } }",
            "spec.driftless.tree.digest is \"../x\"",
        ),
        (
            "no-shape",
            "{}",
            "{ stackName: dev, type: destroy, driftless: { workspace: { local: { dir: /app } } } }",
            "spec.driftless.workspace.local has no meaning on Fargate",
        ),
    ] {
        apply_update(&team, name, annotations, spec).await?;
        let update = wait(&team, name, "to be complete", Update::is_complete).await?;
        let (failed, reason, message) = is(&update, "Failed").context("Failed")?;
        ensure!((failed.as_str(), reason.as_str()) == ("True", "Aborted") && message.contains(words), "{reason}: {message}");
        ensure!(ours(&update).task.is_none(), "{:?}", update.status);
    }
    team.clear().await
}

#[tokio::test]
async fn updates_of_one_stack_queue_and_a_deleted_one_is_interrupted() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("deleted").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let first = team.running("app").await?.name_any();
    apply_update(&team, "behind", "{}", "{ workspaceName: app, stackName: dev, type: refresh }").await?;
    wait(&team, "behind", "to wait", |update| {
        ours(update).waiting_for.is_some_and(|words| words.contains(&format!("in use by deleted/{first}")))
    })
    .await?;
    assert_eq!(ours(&updates(&team).get("behind").await?).waiting_reason.as_deref(), Some("StackClaimed"));

    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    updates(&team).delete(&first, &DeleteParams::default()).await?;
    let stack = team
        .wait("app", "to have been interrupted", |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.is_some_and(|last| last.message.as_deref().is_some_and(|words| words.contains("interrupted")))
        })
        .await?;
    assert_eq!(stack.status.and_then(|status| status.last_update?.name), Some(first.clone()));
    gone(&team, &first).await?;
    succeeded(&team, "behind").await?;
    team.wait("app", "to be Ready", is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn a_forged_status_leads_to_nothing() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("forged").await?;
    let victim = world.namespace("victim").await?;
    let hold = victim.hold()?;
    victim.apply_program("app", &victim.program("app.txt", "one", &hold.property())?).await?;
    victim.apply_stack("app", Source::Program("app"), "").await?;
    let task = ours(&victim.running("app").await?).task.context("a task")?;
    // It waits for a Secret; a user forges a complete status, with the neighbour's task.
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "  envSecrets: [missing]\n").await?;
    let name = ready::until("the Update waits", RUN, async || {
        let update = team.updates("app").await?.into_iter().next().context("no Update")?;
        ensure!(ours(&update).waiting_for.is_some(), "{:#?}", update.status);
        Ok(update.name_any())
    })
    .await?;
    // A user also creates the object that is to have its outputs.
    team.apply_secret(&format!("{name}-stack-outputs"), &[("content", "forged")]).await?;
    let done = |type_: &str, status: &str| json!({ "type": type_, "status": status, "reason": "Updated", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let conditions = [done("Progressing", "False"), done("Failed", "False"), done("Complete", "True")];
    let forged = json!({ "status": { "conditions": conditions, "outputs": "pulumi", "driftless": { "task": task } } });
    updates(&team).patch_status(&name, &PatchParams::default(), &Patch::Merge(forged)).await?;
    looked(&team, "app").await?;
    let stack = team.stack("app").await?;
    ensure!(!is_ready(&stack), "{:#?}", stack.status);
    team.apply_secret("missing", &[("A", "1")]).await?;
    let stack = team.ready_after("app", 1).await?;
    // Until its run is complete, it has what was forged.
    let ended = |update: &Update| update.status.as_ref().is_some_and(|status| status.end_time.is_some());
    let outputs = wait(&team, &name, "to have ended", ended).await?.status.and_then(|status| status.outputs);
    assert_eq!((outputs, stack.status.and_then(|status| status.last_update?.name)), (None, Some(name)));
    ensure!(Path::new(&team.file("app.txt")?).exists(), "it was not run");
    // The neighbour's run was not affected.
    drop(hold);
    victim.ready_after("app", 1).await?;
    team.clear().await?;
    victim.clear().await
}

/// Status, reason and message of a condition of a Workspace.
pub fn workspace_says(workspace: &Workspace, type_: &str) -> Option<(String, String, String)> {
    let conditions = &workspace.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
}

#[tokio::test]
async fn workspace_reports_whether_it_is_usable() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("workspaces").await?;
    let workspaces: Api<Workspace> = Api::namespaced(world.client.clone(), &team.name);
    let wait = async |what: &str, wanted: &dyn Fn(&Workspace) -> bool| {
        ready::until(&format!("the Workspace {what}"), RUN, async || {
            let workspace = workspaces.get("own").await?;
            if wanted(&workspace) { Ok(workspace) } else { bail!("{}", serde_json::to_string_pretty(&workspace.status)?) }
        })
        .await
    };
    let apply = async |spec: &str| {
        let head = "apiVersion: auto.pulumi.com/v1alpha1\nkind: Workspace\nmetadata: { name: own, namespace: NAMESPACE }";
        team.apply(&format!("{head}\nspec: {spec}")).await
    };
    let ready = |workspace: &Workspace| {
        workspace_says(workspace, "Ready").is_some_and(|(status, ..)| status == "True")
            && workspace.status.as_ref().is_some_and(|status| status.observed_generation == workspace.metadata.generation)
    };
    let project = "projectInfo: { name: app, runtime: yaml }";
    apply(&format!("{{ {project}, resources: {{ requests: {{ cpu: '64' }} }} }}")).await?;
    let stalled = wait("is Stalled", &|workspace| workspace_says(workspace, "Stalled").is_some()).await?;
    let (_, reason, message) = workspace_says(&stalled, "Stalled").context("Stalled")?;
    ensure!(reason == "SpecInvalid" && message.contains("spec.resources"), "{reason}: {message}");
    apply(&format!("{{ {project}, serviceAccountName: nobody, resources: {{ requests: {{ cpu: '1' }} }} }}")).await?;
    let words = r#"ServiceAccount "nobody""#;
    wait("names its ServiceAccount", &|workspace| {
        workspace_says(workspace, "Ready").is_some_and(|(.., message)| message.contains(words))
    })
    .await?;
    let env = "env: [{ name: PULUMI_CONFIG_PASSPHRASE, valueFrom: { secretKeyRef: { name: pulumi, key: passphrase } } }, \
               { name: PULUMI_BACKEND_URL, value: 'file://STATE' }]";
    let env = env.replace("STATE", &team.state()?);
    apply(&format!("{{ {project}, {env}, serviceAccountName: default, resources: {{ requests: {{ cpu: '1' }} }} }}")).await?;
    let own = wait("is Ready", &ready).await?;
    let definition = own.status.and_then(|status| status.driftless?.task_definition).context("a task definition")?;
    ensure!(definition.contains(":task-definition/driftless-"), "{definition}");

    // A Stack's resources are destroyed in a user's own Workspace, from its state.
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    apply_update(&team, "destroy", "{}", "{ workspaceName: own, stackName: dev, type: destroy }").await?;
    succeeded(&team, "destroy").await?;
    ensure!(!Path::new(&team.file("app.txt")?).exists(), "it is still there");
    team.clear().await
}

#[tokio::test]
async fn a_run_that_is_silent_or_takes_too_long_is_interrupted() -> Result<()> {
    let (world, _turn) = aside().await?;
    let team = world.namespace("limits").await?;
    for (name, template, words) in [
        ("silent", "", "SilenceSeconds"),
        (
            "long",
            "  updateTemplate: { metadata: { annotations: { driftless.dev/max-duration: 8s } } }\n",
            "driftless.dev/max-duration",
        ),
    ] {
        team.apply_program(name, &team.program(&format!("{name}.txt"), "one", ", delaySeconds: 300")?).await?;
        team.apply_stack_as(name, name, "{}", Source::Program(name), template).await?;
        let told = |stack: &Stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.is_some_and(|last| last.message.as_deref().is_some_and(|message| message.contains(words)))
        };
        let stack = team.wait(name, "to have been interrupted", told).await?;
        let interrupted = stack.status.and_then(|status| status.last_update?.name).context("an Update")?;
        // The Stack may show the outcome before the Update does.
        let update = wait(&team, &interrupted, "to be complete", Update::is_complete).await?;
        let (failed, reason, _) = is(&update, "Failed").context("Failed")?;
        assert_eq!((failed.as_str(), reason.as_str()), ("True", if name == "silent" { "Silent" } else { "TimedOut" }));
        // It continues as if nothing had happened. 8 s are short on a busy machine even for a
        // program that does not hang.
        team.apply_program(name, &team.program(&format!("{name}.txt"), "one", "")?).await?;
        team.apply_stack_as(name, name, "{}", Source::Program(name), &template.replace("8s", "8h")).await?;
        team.wait(name, "to be Ready", is_ready).await?;
    }
    team.apply_program("wrong", &team.program("wrong.txt", "one", "")?).await?;
    let template = "  updateTemplate: { metadata: { annotations: { driftless.dev/max-duration: soon } } }\n";
    team.apply_stack_as("wrong", "wrong", "{}", Source::Program("wrong"), template).await?;
    team.wait("wrong", "to name the annotation", |stack| {
        condition(stack).is_some_and(|(.., message)| message.contains("driftless.dev/max-duration") && message.contains("soon"))
    })
    .await?;
    // The Update that cannot start is replaced by one of the corrected spec.
    team.apply_stack_as("wrong", "wrong", "{}", Source::Program("wrong"), &template.replace("soon", "8h")).await?;
    team.wait("wrong", "to be Ready", is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn concurrent_runs_stay_within_the_limit_and_all_run() -> Result<()> {
    const STACKS: usize = 12;
    let most = LIMITS.runs_per_namespace.context("a limit")?;
    let (world, _turn) = alone().await?;
    let team = world.namespace("many").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("${pulumi.stack}.txt", "one", &hold.property())?).await?;
    for n in 0..STACKS {
        let name = format!("s{n}");
        team.apply_stack_as(&name, &name, "{}", Source::Program("app"), "").await?;
    }
    let all = async || Ok::<_, kube::Error>(updates(&team).list(&ListParams::default()).await?.items);
    let running = |all: &[Update]| all.iter().filter(|update| ours(update).task.is_some() && !update.is_complete()).count();
    ready::until("as many run as may, and all others wait", RUN, async || {
        let all = all().await?;
        let words = format!("namespace \"many\" has reached its limit of {most} runs");
        let waits = all.iter().filter(|update| ours(update).waiting_for.is_some_and(|told| told.contains(&words))).count();
        ensure!((running(&all), waits) == (most, STACKS - most), "{} run, {waits} wait", running(&all));
        Ok(())
    })
    .await?;
    drop(hold);
    ready::until("all Stacks are Ready", RUN, async || {
        let waiting: Vec<_> = team.stacks().await?.into_iter().filter(|stack| !is_ready(stack)).collect();
        ensure!(waiting.is_empty(), "{} wait, such as {:#?}", waiting.len(), waiting[0].status);
        Ok(())
    })
    .await?;
    assert_eq!(most_tasks_at_once(&world.control.status().await?.tasks, &all().await?)?, most);
    team.clear().await
}

/// The maximum number of concurrent tasks of these Updates, by ECS's times: a task counts until its
/// stop is requested or it has ended.
fn most_tasks_at_once(tasks: &[Value], updates: &[Update]) -> Result<usize> {
    let uids: BTreeSet<_> = updates.iter().filter_map(|update| update.metadata.uid.as_deref()).collect();
    let mut changes = Vec::new();
    for task in tasks.iter().filter(|task| task["startedBy"].as_str().is_some_and(|uid| uids.contains(uid))) {
        let created = task["createdAt"].as_f64().context("createdAt")?;
        let ended = task["stoppingAt"].as_f64().or(task["stoppedAt"].as_f64()).unwrap_or(f64::INFINITY);
        changes.extend([(created, true), (ended, false)]);
    }
    // At the same time, `false` comes first: the one frees the slot for the other.
    changes.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let (mut live, mut most) = (0, 0);
    for (_, begins) in changes {
        if begins {
            live += 1;
        } else {
            live -= 1;
        }
        most = most.max(live);
    }
    Ok(most)
}

#[test]
fn tasks_that_overlap_count_together_and_one_after_another_do_not() {
    let update: Update = serde_json::from_value(json!({ "metadata": { "uid": "u" }, "spec": {} })).unwrap();
    let most = |tasks: Value| most_tasks_at_once(tasks.as_array().unwrap(), std::slice::from_ref(&update)).unwrap();
    let task = |created: f64, stopping: Option<f64>, stopped: Option<f64>| json!({ "startedBy": "u", "createdAt": created, "stoppingAt": stopping, "stoppedAt": stopped });
    assert_eq!(most(json!([task(1.0, None, Some(2.0)), task(2.0, Some(3.0), Some(5.0)), task(3.0, None, None)])), 1);
    assert_eq!(most(json!([task(1.0, None, Some(2.001)), task(2.0, None, None)])), 2);
    assert_eq!(most(json!([{ "startedBy": "another", "createdAt": 1.0 }])), 0);
}

#[tokio::test]
async fn run_without_capacity_waits_and_does_not_fail() -> Result<()> {
    let (world, _turn) = alone().await?;
    let team = world.namespace("capacity").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    world.control.refuse_tasks(2).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let words = "ECS did not start the task";
    team.wait("app", "to say that there is no capacity", |stack| {
        condition(stack).is_some_and(|(.., message)| message.contains(words) && message.contains("; next try in 15s"))
    })
    .await?;
    let stack = team.ready_after("app", 1).await?;
    assert_eq!(stack.status.and_then(|status| status.last_update?.failures), Some(0));
    team.clear().await
}

#[tokio::test]
async fn run_of_300_resources_shows_its_progress() -> Result<()> {
    const RESOURCES: usize = 300;
    let (world, _turn) = shared().await?;
    let team = world.namespace("progress").await?;
    let folder = team.file("")?;
    let hold = team.hold()?;
    let resources: Vec<_> = (0..RESOURCES)
        .map(|n| {
            let waits = if n == 0 { hold.property() } else { String::new() };
            let properties = format!("path: '{folder}{n}', content: x{waits}");
            format!("  r{n}: {{ type: 'world:index:Object', properties: {{ {properties} }} }}\n")
        })
        .collect();
    let program = format!("resources:\n{}", resources.concat());
    team.apply_program("app", &program).await?;
    let template = "  updateTemplate: { spec: { parallel: 8 } }\n";
    team.apply_stack("app", Source::Program("app"), template).await?;
    // All but the one that waits.
    let (update, progress) = ready::until("the progress shows", RUN, async || {
        let update = team.running("app").await?;
        let progress = ours(&update).progress.context("no progress yet")?;
        ensure!(usize::try_from(progress.done)? >= RESOURCES - 1, "{progress:?}");
        Ok((update, progress))
    })
    .await?;
    ensure!(progress.started > progress.done && progress.planned == progress.started, "nothing is known before: {progress:?}");
    ensure!(progress.current.as_deref().is_some_and(|it| it.starts_with("create urn:") && it.ends_with("::r0")), "{progress:?}");
    assert_eq!(ours(&update).summary, Some(format!("{}/{}", progress.done, progress.started)));
    drop(hold);
    team.ready_after("app", 1).await?;
    let update = team.complete("app").await?.remove(0);
    assert_eq!(ours(&update).summary.as_deref(), Some("+301"), "with the stack itself");
    assert_eq!(ours(&update).progress, None);

    // The next run knows how many there are.
    let hold = team.hold()?;
    team.apply_program("app", &program.replacen("content: x", "content: z", RESOURCES / 4)).await?;
    let update = team.running("app").await?;
    let progress = ours(&update).progress.context("a progress")?;
    // A provider is a step too, but no resource: it is only known once its step has started.
    ensure!((301..=302).contains(&progress.planned) && progress.done < progress.planned, "{progress:?}");
    assert_eq!(ours(&update).summary, Some(format!("{}/{}", progress.done, progress.planned)));
    drop(hold);
    // The Stack is still Ready, from its first run.
    ready::until("the second run ends", RUN, async || {
        let summary = ours(&team.updates("app").await?[1]).summary;
        ensure!(summary.as_deref() == Some("~75"), "{summary:?}");
        Ok(())
    })
    .await?;
    team.ready_after("app", 2).await?;
    team.clear().await
}
