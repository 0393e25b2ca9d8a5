//! A hundred Stacks at once: the time until all are Ready, and the number of calls.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use driftless_tests::{
    scenario::{Handle, Source, is_ready},
    world::{ready, start::World},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::calls::Since;

const STACKS: usize = 100;
/// Two cores run a hundred `pulumi`s one after the other.
const WITHIN: Duration = Duration::from_mins(15);

/// Applies them at once; each has one Update at the end.
pub async fn measure(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    let team = handle.namespace("hundred").await?;
    team.apply_program("app", &team.program("app", "content", "")?).await?;
    let since = Since::now(&handle)?;
    let started = Instant::now();
    stream::iter(0..STACKS)
        .map(|i| {
            let team = &team;
            async move { team.apply_stack_as(&format!("app{i}"), &format!("s{i}"), "", Source::Program("app"), "").await }
        })
        .buffer_unordered(20)
        .try_collect::<()>()
        .await?;
    ready::until("all Stacks are Ready", WITHIN, async || {
        let stacks = team.stacks().await?;
        let ready = stacks.iter().filter(|stack| is_ready(stack)).count();
        ensure!(ready == STACKS, "{ready} of {} are", stacks.len());
        Ok(())
    })
    .await?;
    let took = started.elapsed();
    for i in 0..STACKS {
        let updates = team.updates(&format!("app{i}")).await?.len();
        ensure!(updates == 1, "app{i} has {updates} Updates");
    }
    println!("\n{STACKS} Stacks of one Program, applied at once; each Ready after one Update:");
    println!("  until all are Ready                     {:6.1} s", took.as_secs_f32());
    let mut whole = BTreeMap::<String, usize>::new();
    for ((api, part), count) in since.calls()? {
        let who = if api == "Kubernetes" { format!("{api}, {part}") } else { format!("AWS, {api}") };
        *whole.entry(who).or_default() += count;
        *whole.entry(format!("all of {}", if api == "Kubernetes" { "Kubernetes" } else { "AWS" })).or_default() += count;
    }
    for (who, count) in whole {
        println!("  calls per Stack, {who:<22} {:6.1}", per_stack(count));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn per_stack(count: usize) -> f64 {
    count as f64 / STACKS as f64
}
