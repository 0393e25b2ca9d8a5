//! `make bench`: the figures of the README, each beside its comparison, from one run.

mod calls;
mod endpoints;
mod hundred;
mod sources;
mod stack;
mod starts;
mod sweep;
mod warm;

use std::{path::Path, time::Duration};

use anyhow::Result;
use driftless_core::Limits;
use driftless_tests::world::start::{WORLDS, World};
use jiff::Timestamp;

#[tokio::main]
async fn main() -> Result<()> {
    driftless_tests::log();
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize()?;
    // The requested figures; none for all.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wants = |figures: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == figures);
    if wants("starts") {
        starts::measure(&project).await?;
    }
    if wants("sources") {
        Box::pin(sources::measure(&project)).await?;
    }
    if wants("sweep") {
        Box::pin(sweep::measure(&project)).await?;
    }
    if ["stack", "calls", "hundred", "warm"].into_iter().any(&wants) {
        let world = World::start(&project, WORLDS[0], Limits::default()).await?;
        let measured = Box::pin(async {
            if wants("stack") {
                stack::measure(&world).await?;
            }
            if wants("calls") {
                calls::measure(&world).await?;
            }
            if wants("warm") {
                Box::pin(warm::measure(&world)).await?;
            }
            if wants("hundred") {
                hundred::measure(&world).await?;
            }
            Ok(())
        });
        let measured: Result<()> = measured.await;
        world.stop().await;
        measured?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "what functions and the world take for now")]
fn now() -> Timestamp {
    Timestamp::now()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
