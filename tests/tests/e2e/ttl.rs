//! The end of a Stack with a TTL.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, StackExpiry, names};
use driftless_tests::{
    scenario::{RUN, Source},
    world::ready,
};
use jiff::SignedDuration;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::world::shared;

fn expiry(stack: &Stack) -> Option<StackExpiry> {
    stack.status.as_ref()?.driftless.as_ref()?.expiry.clone()
}

#[tokio::test]
async fn stack_is_destroyed_at_its_announced_end_and_others_say_what_is_missing() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("ttl").await?;
    let file = team.file("app.txt")?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    for name in ["kept", "applied"] {
        team.apply_program(name, &team.program(&format!("{name}.txt"), "one", "")?).await?;
    }
    let lives = format!("{{ {}: 1m }}", names::TTL);
    team.apply_stack_as("app", "dev", &lives, Source::Program("app"), "  destroyOnFinalize: true\n").await?;
    team.apply_stack_as("kept", "dev", &lives, Source::Program("kept"), "").await?;
    team.apply_stack_as("applied", "dev", &lives, Source::Program("applied"), "  destroyOnFinalize: true\n").await?;
    let flux = json!({ "kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system" });
    let stacks = Api::<Stack>::namespaced(world.client.clone(), &team.name);
    stacks.patch("applied", &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "labels": flux } }))).await?;

    let warned = team.wait("app", "to announce its end", |stack| expiry(stack).is_some()).await?;
    let ends = expiry(&warned).and_then(|expiry| expiry.time).context("a time")?.0;
    let created = warned.creation_timestamp().context("a creation")?.0;
    ensure!(ends >= created + SignedDuration::from_mins(1), "{created} to {ends}");
    ensure!(fs::exists(&file)? && warned.metadata.deletion_timestamp.is_none(), "{warned:#?}");
    let at = ends.strftime("%FT%TZ").to_string();
    team.told("app", "TtlEnds", &["Stack is deleted at", &at, "raise or remove the annotation driftless.dev/ttl"]).await?;
    for (name, words) in [("kept", "spec.destroyOnFinalize is not set"), ("applied", "Kustomization flux-system/apps applies it")]
    {
        let is_blocked = |stack: &Stack| expiry(stack).and_then(|expiry| expiry.blocked).is_some_and(|why| why.contains(words));
        team.wait(name, "to say what is missing", is_blocked).await?;
        team.told(name, "TtlEnds", &["Stack is not deleted then: ", words]).await?;
    }

    ready::until("the Stack is gone", RUN, async || {
        let stack = stacks.get_opt("app").await?;
        ensure!(stack.is_none(), "{:#?}", stack.and_then(|stack| stack.status));
        Ok(())
    })
    .await?;
    ensure!(!fs::exists(&file)?, "{file} is left");
    team.told("app", "TtlExpired", &["Stack deleted, and its resources are destroyed"]).await?;
    for name in ["kept", "applied"] {
        ensure!(fs::exists(team.file(&format!("{name}.txt"))?)?, "{name} was destroyed");
        ensure!(team.stack(name).await?.metadata.deletion_timestamp.is_none(), "{name} is deleted");
        assert_eq!(team.events(name, "TtlEnds").await?.len(), 1, "announced once");
    }
    team.clear().await
}
