//! A tenant's writes cannot reach another tenant's Secrets.

use anyhow::{Context as _, Result, ensure};
use driftless_api::Update;
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source},
    world::ready,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    updates::{apply_update, gone, ours, updates, wait},
    world::{alone, keys, s3, shared},
};

/// An Update's own workspace: a project without a source, whose variable `A` comes from the Secret
/// `name`.
fn workspace(team: &Namespace<'_>, name: &str) -> Result<String> {
    let backend = format!("{{ name: PULUMI_BACKEND_URL, value: 'file://{}' }}", team.state()?);
    let variable = |variable: &str, secret: &str, key: &str| {
        format!("{{ name: {variable}, valueFrom: {{ secretKeyRef: {{ name: {secret}, key: {key} }} }} }}")
    };
    let env = [backend, variable("PULUMI_CONFIG_PASSPHRASE", "pulumi", "passphrase"), variable("A", name, "a")].join(", ");
    Ok(format!(
        "workspace: {{ projectInfo: {{ name: app, runtime: yaml }}, env: [{env}], stacks: [{{ name: dev, create: true }}] }}"
    ))
}

/// The sealed objects of a namespace, with their `ETag`s.
async fn sealed(world: &Handle, namespace: &str) -> Result<Vec<(String, Option<String>)>> {
    let (s3, bucket) = (s3(world, None).await?, world.get("WORLD_BUCKET")?);
    let mut found = Vec::new();
    for key in keys(world, &format!("sealed/world/{namespace}/")).await? {
        let head = s3.head_object().bucket(bucket).key(&key).send().await?;
        found.push((key, head.e_tag));
    }
    Ok(found)
}

#[tokio::test]
async fn updates_without_a_stack_share_no_sealed_inputs() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (attacker, victim) = (world.namespace("sealing").await?, world.namespace("unsealing").await?);
    attacker.apply_secret("mine", &[("a", "from-the-attacker")]).await?;
    let ours_of = |team: &Namespace<'_>, more: &str| -> Result<String> {
        Ok(format!("driftless: {{ {}, {more} }}", workspace(team, "mine")?))
    };
    let up = format!("{{ stackName: dev, type: up, {} }}", ours_of(&attacker, "seal: true")?);
    apply_update(&attacker, "seal", "{}", &up).await?;
    wait(&attacker, "seal", "to be complete", Update::is_complete).await?;
    let stray: Vec<_> = keys(&world, "sealed/").await?.into_iter().filter(|key| key.matches('/').count() != 3).collect();
    ensure!(stray.is_empty(), "sealed inputs of no Stack: {stray:?}");
    ensure!(sealed(&world, &attacker.name).await?.is_empty(), "an Update without a Stack sealed its inputs");

    // The victim's Secret is missing: its run waits for it, whatever another tenant sealed.
    let destroy = format!("{{ stackName: dev, type: destroy, {} }}", ours_of(&victim, "seal: false")?);
    apply_update(&victim, "destroy", "{}", &destroy).await?;
    wait(&victim, "destroy", "to wait for its Secret", |update| ours(update).waiting_reason.as_deref() == Some("InputNotFound"))
        .await?;
    updates(&victim).delete("destroy", &DeleteParams::default()).await?;
    gone(&victim, "destroy").await
}

/// The attacker stops a launch between the owner and the spec, then makes its Update look like one
/// of the victim's Stack.
#[tokio::test]
async fn forged_owner_of_a_running_update_reads_no_sealed_inputs() -> Result<()> {
    let (world, _alone) = alone().await?;
    let (attacker, victim) = (world.namespace("forging").await?, world.namespace("forged-owner").await?);
    victim.apply_program("app", &victim.program("app.txt", "one", "")?).await?;
    victim.apply_stack("app", Source::Program("app"), "  destroyOnFinalize: true\n").await?;
    let uid = victim.ready_after("app", 1).await?.uid().context("a uid")?;
    let before = sealed(&world, &victim.name).await?;
    ensure!(before.len() == 1, "{before:?}");

    attacker.apply_secret("mine", &[("a", "from-the-attacker")]).await?;
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "mine", "namespace": "NAMESPACE" } });
    attacker.apply(&account.to_string()).await?;
    let spec = workspace(&attacker, "mine")?.replace("workspace: { ", "workspace: { serviceAccountName: mine, ");
    world.control.hold(&["PUT /owner"]).await?;
    apply_update(&attacker, "run", "{}", &format!("{{ stackName: dev, type: up, target: [], driftless: {{ {spec} }} }}")).await?;
    ready::until("the launcher makes a task the owner", RUN, async || {
        let held = world.control.status().await?.held;
        ensure!(!held.is_empty(), "nothing waits");
        Ok(())
    })
    .await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), &attacker.name);
    accounts.delete("mine", &DeleteParams::default()).await?;
    let patch = |patch: Value| async { updates(&attacker).patch("run", &PatchParams::default(), &Patch::Merge(patch)).await };
    let changed = patch(json!({ "spec": { "type": "destroy" } })).await;
    let words = changed.err().context("the spec of a launched Update was changed")?.to_string();
    ensure!(words.contains("spec is immutable once spec.driftless is set"), "{words}");
    let owner = json!({ "apiVersion": "no.such/v1", "kind": "Stack", "name": "app", "uid": uid });
    patch(json!({ "metadata": { "ownerReferences": [owner] } })).await?;
    world.control.hold(&[]).await?;
    wait(&attacker, "run", "to miss its ServiceAccount", |update| ours(update).waiting_reason.is_some()).await?;
    attacker.apply(&account.to_string()).await?;
    // A project without a source fails an `up`: the run does what was recorded.
    let done = wait(&attacker, "run", "to be complete", Update::is_complete).await?;
    let message = done.status.and_then(|status| status.message).unwrap_or_default();
    ensure!(message.contains("the type of the Update is \"up\""), "{message}");
    assert_eq!(sealed(&world, &victim.name).await?, before, "the victim's sealed inputs are as they were");
    ensure!(sealed(&world, &attacker.name).await?.is_empty(), "the attacker sealed inputs");
    updates(&attacker).delete("run", &DeleteParams::default()).await?;
    gone(&attacker, "run").await?;
    victim.clear().await
}
