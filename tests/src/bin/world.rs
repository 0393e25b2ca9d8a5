//! `make world`: the one-machine world in the foreground, in `target/world` or the folder of that
//! name, until SIGINT, SIGTERM or the end of one of its parts.

use std::{env, path::Path};

use anyhow::{Result, bail};
use driftless_tests::world::start::{LIMITS, WORLDS, World};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    driftless_tests::log();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let name = env::args().nth(1).unwrap_or_else(|| WORLDS[0].into());
    let world = tokio::select! {
        world = World::start(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), &name, LIMITS) => world?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    println!("world: ready; source {}", world.env_file().display());
    let failure = tokio::select! {
        failure = world.failure() => Some(failure),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    world.stop().await;
    match failure {
        Some(failure) => bail!(failure),
        None => Ok(()),
    }
}
