//! Archives that a tenant may offer to do harm.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::Update;
use driftless_testkit::hostile::{archives, honest};
use driftless_tests::{
    scenario::{FLUX, Handle, RUN, SYSTEM, Source, condition},
    world::ready,
};
use kube::{Api, api::ListParams};

use crate::world::{alone, nothing_was_given_up, quiet, s3};

#[tokio::test]
async fn every_hostile_archive_is_refused_and_leaves_nothing_outside() -> Result<()> {
    let (world, turn) = alone().await?;
    let team = world.namespace("hostile").await?;
    // A valid one takes the same path, so the others are refused for their content.
    team.offer(FLUX, "ExternalArtifact", "honest", "one", &honest()).await?;
    let archives = archives();
    ensure!(archives.len() >= 40, "{}", archives.len());
    let before = outside(&world)?;
    // New processes, whose peak memory is that of these archives.
    world.control.chill("Fetcher").await?;
    let earlier = fetches(&world)?.len();
    for hostile in &archives {
        team.offer(FLUX, "ExternalArtifact", hostile.name, "one", &hostile.bytes).await?;
    }
    for name in archives.iter().map(|hostile| hostile.name).chain(["honest"]) {
        let source = Source::Flux { api_version: FLUX, kind: "ExternalArtifact", name, dir: "" };
        team.apply_stack_as(name, name, "{}", source, "").await?;
    }
    team.ready_after("honest", 1).await?;
    let told = ready::until("every Stack has a word", RUN, async || {
        let mut told = BTreeMap::new();
        for stack in team.stacks().await? {
            let name = stack.metadata.name.clone().context("a name")?;
            if let Some((type_, reason, message)) = condition(&stack) {
                ensure!(type_ == "Stalled", "{name}: {type_} {reason}: {message}");
                told.insert(name, (reason, message));
            } else {
                ensure!(name == "honest", "{name}: {:?}", stack.status);
            }
        }
        ensure!(told.len() == archives.len(), "{} of {} are told of", told.len(), archives.len());
        Ok(told)
    })
    .await?;
    for hostile in &archives {
        let (reason, message) = &told[hostile.name];
        let refused = reason == "SourceUnavailable" && message.contains(hostile.refusal);
        ensure!(refused, "{}: {reason}: {message}; wanted {:?}", hostile.name, hostile.refusal);
        ensure!(message.contains("not retried until the source changes"), "{}: {message}", hostile.name);
    }
    let updates = Api::<Update>::namespaced(world.client.clone(), &team.name).list(&ListParams::default()).await?;
    ensure!(
        updates.items.iter().all(|update| update.stack(SYSTEM).is_some_and(|owner| owner.name == "honest")),
        "one was run: {updates:#?}"
    );
    println!("{} hostile archives, each refused", archives.len());

    let (s3, bucket) = (s3(&world, None).await?, world.get("WORLD_BUCKET")?);
    let listed = s3.list_objects_v2().bucket(bucket).prefix("trees/world/hostile/").send().await?;
    let keys: Vec<_> = listed.contents().iter().filter_map(|object| object.key()).collect();
    let honest = keys.iter().filter(|key| key.contains("/externalartifact.honest/"));
    assert_eq!((keys.len(), honest.count()), (2, 2), "manifest and pack of the honest one, and nothing else: {keys:?}");
    assert_eq!(outside(&world)?, before, "files appeared");
    team.clear().await?;
    quiet(&world, &turn).await?;

    let peak = fetches(&world)?.split_off(earlier).into_iter().max().context("no fetch")?;
    let documented = readme_kib()?;
    println!("the fetcher's most memory, of a development build: {peak} KiB; the README has {documented} KiB of a release build");
    ensure!(peak < 3 * documented, "{peak} KiB of memory, and {documented} KiB in the README");
    nothing_was_given_up(&world).await
}

/// The fetcher's peak memory with these archives in the README, for the release build.
fn readme_kib() -> Result<u64> {
    let figure = include_str!("../../../README.md").split("hostile archives, all refused | ").nth(1);
    let mib = figure.and_then(|figure| figure.split(" MiB").next()).context("the README has no such figure")?;
    Ok(mib.parse::<u64>()? << 10)
}

/// The files around the fetcher's folders, and at the archives' absolute paths.
fn outside(world: &Handle) -> Result<Vec<String>> {
    let root = Path::new(world.get("WORLD_LOGS")?).parent().context("the world's folder")?;
    let mut found: Vec<_> = ["/outside", "/etc/cron.d/outside", "/tmp/outside", "/tmp/x", "/tmp/a"]
        .into_iter()
        .filter(|path| Path::new(path).symlink_metadata().is_ok())
        .map(Into::into)
        .collect();
    for folder in [root, &root.join("tmp"), root.parent().context("a folder")?, Path::new("/tmp")] {
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if ["outside", "inside", "Pulumi.yaml"].contains(&name.as_str()) {
                found.push(format!("{}/{name}", folder.display()));
            }
        }
    }
    Ok(found)
}

/// The peak memory of the process at the end of each invocation of the fetcher, in KiB.
fn fetches(world: &Handle) -> Result<Vec<u64>> {
    let fetches = world.journal("invocations.jsonl", 0, |invocation| invocation["function"] == "Fetcher")?;
    Ok(fetches.iter().filter_map(|invocation| invocation["peakKib"].as_u64()).collect())
}
