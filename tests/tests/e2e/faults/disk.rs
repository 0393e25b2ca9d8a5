//! A task whose disk is full.

use anyhow::{Result, ensure};
use driftless_api::Stack;
use driftless_tests::scenario::{Source, is_ready};
use futures::future::try_join;

use crate::{
    interruption::intact,
    world::{nothing_was_given_up, shared},
};

const IMAGE: &str = "registry.example/small-disk:1";
const MIB: u64 = 2;

/// The counted failures, and the message of the last.
fn failed(stack: &Stack) -> Option<(i64, String)> {
    let last = stack.status.as_ref()?.last_update.as_ref()?;
    (last.state.as_deref() == Some("failed")).then(|| Some((last.failures?, last.message.clone()?)))?
}

#[tokio::test]
async fn full_disk_names_the_field_and_a_larger_one_recovers() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("full-disk").await?;
    world.control.limit_disk(IMAGE, MIB).await?;
    let template = format!("  workspaceTemplate: {{ spec: {{ image: {IMAGE:?} }} }}\n");
    // One has a source that does not fit; the program of the other fills the disk, which Pulumi and
    // the runner need too.
    let large = "0123456789abcdef".repeat(3 << 16);
    let repository = world.git.create(&team.name).await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("source.txt", "one", "")?);
    repository.commit("first", &[("Pulumi.yaml", &*project), ("large.txt", &*large)]).await?;
    let source = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    team.apply_stack_as("source", "source", "{}", source, &template).await?;
    team.apply_program("program", &filling()).await?;
    team.apply_stack_as("program", "program", "{}", Source::Program("program"), &template).await?;

    // At the same time: the second one may fail again while the first is awaited.
    let fails = async |stack: &str| team.wait(stack, "to fail", |stack| failed(stack).is_some()).await;
    let (source, program) = try_join(fails("source"), fails("program")).await?;
    for (stack, words) in [(source, "cannot write \"large.txt\""), (program, "")] {
        let (failures, message) = failed(&stack).unwrap_or_default();
        let field = "spec.workspaceTemplate.spec.resources.limits.ephemeral-storage";
        let is_told = [words, field].iter().all(|words| message.contains(words));
        ensure!(is_told && message.to_lowercase().contains("no space left on device"), "{message}");
        ensure!(failures == 0, "the first failure of a generation is not counted: {failures}");
    }
    // As with a larger disk.
    world.control.limit_disk(IMAGE, 0).await?;
    team.apply_program("program", &team.program("program.txt", "one", "")?).await?;
    for (project, stack) in [("app", "source"), ("program", "program")] {
        team.wait(stack, "to be Ready", is_ready).await?;
        intact(&team, project, stack)?;
    }
    team.clear().await?;
    nothing_was_given_up(&world).await
}

/// A program that writes 4 MiB below its task's `/tmp`.
fn filling() -> String {
    let times = |name: &str| format!("${{{name}}}").repeat(16);
    let (b, c, d) = (times("a"), times("b"), times("c"));
    let a = "0123456789abcdef".repeat(64);
    format!(
        "variables: {{ a: {a}, b: '{b}', c: '{c}', d: '{d}' }}\n\
         resources: {{ file: {{ type: 'world:index:Object', properties: {{ path: '{}/tmp/full', content: '${{d}}' }} }} }}\n",
        driftless_tests::world::session::TASK
    )
}
