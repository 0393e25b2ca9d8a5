//! A guarded Stack: proposal, approval, and exactly that plan; and what else cannot change it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{Stack, StackPlan, Update, names};
use driftless_tests::{
    scenario::{Namespace, RUN, Source, condition, is_ready},
    world::ready,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::world::{alone, shared};

/// The plan in the status of a Stack.
pub fn plan(stack: &Stack) -> StackPlan {
    stack.status.as_ref().and_then(|status| status.driftless.as_ref()?.plan.clone()).unwrap_or_default()
}

/// Returns whether the condition of a Stack has that reason.
pub fn is_reason(stack: &Stack, reason: &str) -> bool {
    condition(stack).is_some_and(|(_, found, _)| found == reason)
}

/// Annotates the Stack `app`.
pub async fn annotate(client: &Client, team: &Namespace<'_>, annotations: Value) -> kube::Result<Stack> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    Api::namespaced(client.clone(), &team.name).patch("app", &PatchParams::default(), &patch).await
}

/// The name of the administrator of the world, as the API server knows it.
async fn user(client: &Client) -> Result<String> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())?;
    let review: Value = client.request(request).await?;
    Ok(review["status"]["userInfo"]["username"].as_str().context("a name")?.to_owned())
}

/// Waits for a plan that waits for its approval, other than `before`.
pub async fn proposed(team: &Namespace<'_>, before: &str) -> Result<StackPlan> {
    let wanted = |stack: &Stack| {
        let plan = plan(stack);
        is_reason(stack, "ApprovalRequired") && plan.hash.as_deref().is_some_and(|hash| hash != before)
    };
    Ok(plan(&team.wait("app", "to have a plan", wanted).await?))
}

/// Approves a plan of the Stack `app`.
pub async fn approve(team: &Namespace<'_>, hash: &str) -> Result<()> {
    let user = user(&team.world.client).await?;
    annotate(&team.world.client, team, json!({ names::APPROVE: hash, names::APPROVED_BY: user })).await?;
    Ok(())
}

/// Waits until the Stack `app` is gone.
pub async fn gone(stacks: &Api<Stack>) -> Result<()> {
    ready::until("the Stack is gone", RUN, async || {
        if let Some(stack) = stacks.get_opt("app").await? {
            bail!("{:#?}", stack.status);
        }
        Ok(())
    })
    .await
}

/// Waits until Driftless has emptied the approval.
pub async fn emptied(team: &Namespace<'_>) -> Result<()> {
    ready::until("the approval is emptied", RUN, async || {
        let stack = team.stack("app").await?;
        let left = stack.annotations().get(names::APPROVE).cloned().unwrap_or_default();
        // Until a reconciliation has seen that, another approval of the same plan would be emptied,
        // too.
        ensure!(left.is_empty() && plan(&stack).spent.is_none(), "{left:?}, {:?}", stack.status);
        Ok(())
    })
    .await
}

/// The content of a file, if it exists.
pub fn content(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The number of Updates that change something.
pub fn ups(updates: &[Update]) -> usize {
    updates.iter().filter(|update| update.spec.operation.as_deref() == Some("up")).count()
}

fn guarded(policy: &str) -> String {
    format!("{{ {}: '{policy}' }}", names::APPROVAL)
}

#[tokio::test]
async fn approved_plan_is_applied_and_nothing_else() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("approval").await?;
    let file = team.file("app.txt")?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack_as("app", "dev", &guarded("required"), Source::Program("app"), "  destroyOnFinalize: true\n").await?;
    let first = proposed(&team, "").await?;
    let hash = first.hash.context("a hash")?;
    ensure!(first.state.as_deref() == Some("Proposed") && first.counts.get("create") > Some(&0), "{:?}", first.counts);
    ensure!(content(&file).is_none() && ups(&team.updates("app").await?) == 0, "nothing is changed");

    // Neither another hash nor a forged approver counts.
    let forged = annotate(&world.client, &team, json!({ names::APPROVE: hash, names::APPROVED_BY: "someone" })).await;
    ensure!(matches!(&forged, Err(kube::Error::Api(status)) if status.code == 403), "{forged:?}");
    approve(&team, &"f".repeat(64)).await?;
    team.wait("app", "to wait for its approval", |stack| is_reason(stack, "ApprovalRequired")).await?;
    ensure!(content(&file).is_none(), "another plan was approved");

    approve(&team, &hash).await?;
    let stack = team.wait("app", "to be Ready", is_ready).await?;
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));
    let applied = plan(&stack);
    ensure!(applied.state.as_deref() == Some("Applied") && applied.hash.as_ref() == Some(&hash), "{applied:?}");
    ensure!(applied.approved_by == Some(user(&world.client).await?), "{applied:?}");
    emptied(&team).await?;

    // A push makes another plan, and the approval of the older one does not apply it.
    team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
    let second = proposed(&team, &hash).await?.hash.context("a hash")?;
    team.apply_program("app", &team.program("app.txt", "three", "")?).await?;
    let third = proposed(&team, &second).await?.hash.context("a hash")?;
    approve(&team, &second).await?;
    team.wait("app", "to wait for its approval", |stack| is_reason(stack, "ApprovalRequired")).await?;
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));
    approve(&team, &third).await?;
    team.wait("app", "to be Ready", |stack| is_ready(stack) && plan(stack).hash.as_ref() == Some(&third)).await?;
    ensure!(content(&file).as_deref() == Some("three"), "{:?}", content(&file));

    // The deletion waits, and a user with the verb ends that.
    let stacks = Api::<Stack>::namespaced(world.client.clone(), &team.name);
    stacks.delete("app", &DeleteParams::default()).await?;
    proposed(&team, &third).await?;
    ensure!(Path::new(&file).exists(), "it was destroyed without an approval");
    annotate(&world.client, &team, json!({ names::APPROVAL: null })).await?;
    gone(&stacks).await?;
    ensure!(!Path::new(&file).exists(), "it was not destroyed");
    Ok(())
}

/// A Stack that ran once with this ConfigMap in its environment, and is deleted.
async fn deleted(team: &Namespace<'_>, file: &str) -> Result<(Api<Stack>, StackPlan)> {
    team.apply(&settings(team, "one")).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let more = "  destroyOnFinalize: true\n  envs: [settings]\n";
    team.apply_stack_as("app", "dev", &guarded("unless delete"), Source::Program("app"), more).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    ensure!(content(file).as_deref() == Some("one"), "{:?}", content(file));
    let stacks = Api::<Stack>::namespaced(team.world.client.clone(), &team.name);
    stacks.delete("app", &DeleteParams::default()).await?;
    let plan = proposed(team, "").await?;
    ensure!(plan.operation.as_deref() == Some("destroy") && plan.counts.get("delete") > Some(&1), "{plan:?}");
    Ok((stacks, plan))
}

fn settings(team: &Namespace<'_>, value: &str) -> String {
    let metadata = format!("{{ name: settings, namespace: {} }}", team.name);
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\ndata: {{ SETTING: {value} }}\n")
}

#[tokio::test]
async fn destroy_is_what_was_approved_or_touches_nothing() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("approval-destroy").await?;
    let file = team.file("app.txt")?;
    let (stacks, first) = deleted(&team, &file).await?;
    ensure!(first.changes.iter().any(|change| change.change == "delete" && change.urn.ends_with("::file")), "{first:?}");
    let first = first.hash.context("a hash")?;
    ensure!(content(&file).is_some(), "it was destroyed without an approval");

    // What the run reads is another value than when the plan was made.
    team.apply(&settings(&team, "two")).await?;
    approve(&team, &first).await?;
    team.told("app", "PlanStale", &["the inputs or the settings of the run changed; nothing was touched"]).await?;
    let second = proposed(&team, &first).await?.hash.context("a hash")?;
    ensure!(content(&file).is_some(), "it was destroyed by a stale plan");

    annotate(&world.client, &team, json!({ names::REJECT: second })).await?;
    team.wait("app", "to be rejected", |stack| is_reason(stack, "PlanRejected")).await?;
    annotate(&world.client, &team, json!({ names::REJECT: null })).await?;
    team.wait("app", "to wait for its approval", |stack| is_reason(stack, "ApprovalRequired")).await?;
    approve(&team, &second).await?;
    gone(&stacks).await?;
    ensure!(content(&file).is_none(), "it was not destroyed");
    Ok(())
}

/// No object can be created in a terminating namespace, whose ConfigMap is gone.
#[tokio::test]
async fn destroy_in_a_terminating_namespace_is_approved() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("approval-ends").await?;
    let file = team.file("app.txt")?;
    team.apply(&settings(&team, "one")).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let more = "  destroyOnFinalize: true\n  envs: [settings]\n";
    team.apply_stack_as("app", "dev", &guarded("unless delete"), Source::Program("app"), more).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(world.client.clone());
    namespaces.delete(&team.name, &DeleteParams::default()).await?;
    let stacks = Api::<Stack>::namespaced(world.client.clone(), &team.name);
    let plan = proposed(&team, "").await?;
    ensure!(plan.operation.as_deref() == Some("destroy") && content(&file).is_some(), "{plan:?}");
    // The plan is another one if the ConfigMap was still there when it was made.
    ready::until("the Stack is gone", RUN, async || {
        let Some(stack) = stacks.get_opt("app").await? else { return Ok(()) };
        let hash = self::plan(&stack).hash.unwrap_or_default();
        if is_reason(&stack, "ApprovalRequired") && stack.annotations().get(names::APPROVE) != Some(&hash) {
            approve(&team, &hash).await?;
        }
        bail!("{:#?}", stack.status)
    })
    .await?;
    ensure!(content(&file).is_none(), "it was not destroyed");
    Ok(())
}

#[tokio::test]
async fn plan_without_the_named_changes_needs_no_approval() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("approval-unless").await?;
    let file = team.file("app.txt")?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack_as("app", "dev", &guarded("unless delete,replace"), Source::Program("app"), "").await?;
    let stack = team.wait("app", "to be Ready", is_ready).await?;
    ensure!(plan(&stack).state.as_deref() == Some("Applied") && plan(&stack).approved_by.is_none(), "{:?}", plan(&stack));
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));
    // The resource is gone from the program: its deletion needs an approval.
    let other = team.program("other.txt", "one", "")?.replace("{ file: {", "{ other: {").replace("${file.", "${other.");
    team.apply_program("app", &other).await?;
    let deletion = proposed(&team, "").await?;
    ensure!(deletion.counts.get("delete") == Some(&1) && content(&file).is_some(), "{deletion:?}");
    approve(&team, &deletion.hash.context("a hash")?).await?;
    ready::until("the file is deleted", RUN, async || {
        ensure!(content(&file).is_none(), "it exists");
        Ok(())
    })
    .await?;
    team.wait("app", "to be Ready", is_ready).await?;
    Ok(())
}

#[tokio::test]
async fn changed_secret_is_a_plan() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("approval-secret").await?;
    let file = team.file("app.txt")?;
    team.apply_secret("words", &[("word", "canary-approval-one")]).await?;
    let program = team.program("app.txt", "${word}", "")?;
    team.apply_program("app", &format!("configuration: {{ word: {{ type: String }} }}\n{program}")).await?;
    let more = "  resyncFrequencySeconds: 60\n  secretsRef:\n    word: { type: Secret, secret: { name: words, key: word } }\n";
    team.apply_stack_as("app", "dev", &guarded("unless update"), Source::Program("app"), more).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    ensure!(content(&file).as_deref() == Some("canary-approval-one"), "{:?}", content(&file));
    team.apply_secret("words", &[("word", "canary-approval-two")]).await?;
    let change = proposed(&team, "").await?;
    ensure!(change.counts.get("update") == Some(&1), "{change:?}");
    ensure!(content(&file).as_deref() == Some("canary-approval-one"), "{:?}", content(&file));
    approve(&team, &change.hash.context("a hash")?).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    ensure!(content(&file).as_deref() == Some("canary-approval-two"), "{:?}", content(&file));
    let told = serde_json::to_string(&(team.updates("app").await?, team.stack("app").await?))?;
    ensure!(!told.contains("canary-approval"), "an Update or the Stack tells the Secret");
    Ok(())
}

/// It changes the policy of the cluster, so it needs a world of its own.
#[tokio::test]
async fn unguarded_cluster_counts_no_approval() -> Result<()> {
    let (world, _turn) = alone().await?;
    let team = world.namespace("approval-unguarded").await?;
    let file = team.file("app.txt")?;
    let uri = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/driftless-approval";
    let _: Value = world.client.request(http::Request::delete(uri).body(Vec::new())?).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack_as("app", "dev", &guarded("required"), Source::Program("app"), "").await?;
    let stack = team.wait("app", "to have a plan", |stack| is_reason(stack, "ApprovalUnguarded")).await?;
    let (_, _, message) = condition(&stack).context("a condition")?;
    ensure!(message.contains("ValidatingAdmissionPolicyBinding \"driftless-approval\" does not exist"), "{message}");
    let hash = plan(&stack).hash.context("a hash")?;
    approve(&team, &hash).await?;
    // Neither does the removal of the annotation.
    annotate(&world.client, &team, json!({ names::APPROVAL: null })).await?;
    team.wait("app", "to stay guarded", |stack| is_reason(stack, "ApprovalUnguarded")).await?;
    ensure!(content(&file).is_none() && ups(&team.updates("app").await?) == 0, "it was changed without an approval");

    // Nor does the approval count once the policy is restored.
    team.apply(include_str!("../../../infra/kubernetes/approval.yaml")).await?;
    annotate(&world.client, &team, json!({ names::APPROVAL: "required", names::RECONCILIATION_REQUEST: "again" })).await?;
    emptied(&team).await?;
    ensure!(content(&file).is_none(), "it was changed without an approval");
    let hash = proposed(&team, "").await?.hash.context("a hash")?;
    approve(&team, &hash).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));
    Ok(())
}
