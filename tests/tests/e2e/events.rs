//! The samples in `events/`: the function of each reads it, tries to read the object that it names,
//! and does not find it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_tests::{
    aws::{CALLS_LOG, control::Invoked},
    scenario::{Handle, RUN},
    world::{cluster::AUDIT_LOG, ready},
};
use serde_json::{Value, json};

use crate::world::shared;

const STACK: &str = "/namespaces/shop/stacks/storefront";
const UPDATE: &str = "/namespaces/shop/updates/storefront-0c1d2e3f4a5b";
const TASK: &str = "0123456789abcdef0123456789abcdef/in/run";
const STACKS: &str = "/apis/pulumi.com/v1/stacks?";

/// A part of every call of AWS and Kubernetes that a function makes at least, for each sample.
const CALLS: [(&str, &[&str]); 18] = [
    ("fetcher/collect", &["trees/world/shop/gitrepository.storefront/"]),
    ("fetcher/fetch", &["fetches/world/shop/gitrepository.storefront", "/namespaces/shop/gitrepositories/storefront"]),
    ("launcher/launch", &[UPDATE]),
    ("launcher/look", &[STACK, "/namespaces/shop/workspaces/storefront"]),
    ("reconciler/hint", &[STACK]),
    ("reconciler/sweep", &[STACK, "spec.programRef.name%3Dstorefront"]),
    ("reconciler/webhook", &["/namespaces/shop/gitrepositories/storefront", STACKS]),
    ("recorder/hint", &[UPDATE, "runs/world/5f0c7a3e-8b1d-4c26-9e47-1a2b3c4d5e6f/"]),
    ("recorder/progress", &[TASK]),
    ("recorder/result", &[TASK]),
    ("recorder/spot-interruption", &[TASK]),
    ("recorder/task-stopped", &[TASK]),
    ("recorder/test-event", &[]),
    ("sweeper/tick", &[STACKS]),
    ("webhook/base64", &["storefront-bundle"]),
    ("webhook/flux", &[FLUX]),
    ("webhook/forged", &[]),
    ("webhook/github", &["github.com/acme/storefront"]),
];
/// The revision in `flux` and in `forged`.
const FLUX: &str = "main@sha1:8d5b5c1f0e6a4c7d9b3f2e1a0c9d8e7f6a5b4c3d";

/// The samples by their function.
fn samples() -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut samples = BTreeMap::new();
    for folder in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../events"))? {
        let folder = folder?;
        if !folder.file_type()?.is_dir() {
            continue;
        }
        let function = folder.file_name().to_string_lossy().into_owned();
        let files = fs::read_dir(folder.path())?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
        samples.insert(function, files);
    }
    // The webhook's samples were made from these.
    samples.remove("bodies").context("events/bodies")?;
    Ok(samples)
}

async fn answer(world: &Handle, function: &str, event: &Value) -> Result<Value> {
    // Its name in the template.
    let id = function[..1].to_uppercase() + &function[1..];
    match world.control.invoke(&id, event).await? {
        Invoked::Answer(answer) => Ok(answer),
        Invoked::Failure(words) => bail!("{words}"),
    }
}

/// The calls of a function since the journals had those sizes.
fn calls(world: &Handle, function: &str, [aws, kubernetes]: [u64; 2]) -> Result<Vec<String>> {
    let session = format!("/driftless-{function}");
    let of_aws = world.journal(CALLS_LOG, aws, |call| call["caller"].as_str().is_some_and(|arn| arn.ends_with(&session)))?;
    let group = json!(format!("driftless:{function}"));
    let of_kubernetes = world
        .journal(AUDIT_LOG, kubernetes, |call| call["user"]["groups"].as_array().is_some_and(|groups| groups.contains(&group)))?;
    Ok(of_aws.into_iter().chain(of_kubernetes).map(|call| call.to_string()).collect())
}

#[tokio::test]
async fn every_sample_event_is_accepted_by_its_function() -> Result<()> {
    let (world, _turn) = shared().await?;
    let samples = samples()?;
    let functions: Vec<_> = samples.keys().map(String::as_str).collect();
    assert_eq!(functions, ["fetcher", "launcher", "reconciler", "recorder", "sweeper", "webhook"]);
    for (function, file) in samples.iter().flat_map(|(function, files)| files.iter().map(move |file| (function, file))) {
        let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let event: Value = serde_json::from_slice(&fs::read(file)?)?;
        let logs = Path::new(world.get("WORLD_LOGS")?);
        let size = |log| Ok::<_, std::io::Error>(fs::metadata(logs.join(log))?.len());
        let before = [size(CALLS_LOG)?, size(AUDIT_LOG)?];
        let answer = answer(&world, function, &event).await.with_context(|| format!("{}", file.display()))?;
        let sample = format!("{function}/{name}");
        let (_, wanted) = CALLS.iter().find(|(known, _)| *known == sample).with_context(|| format!("no calls of {sample}"))?;
        ready::until(&format!("{sample} leads to calls"), RUN, async || {
            let calls = calls(&world, function, before)?;
            let missing = wanted.iter().find(|part| !calls.iter().any(|call| call.contains(**part)));
            ensure!(missing.is_none(), "{missing:?} is in none of {calls:#?}");
            Ok(())
        })
        .await?;
        if name == "forged" {
            let calls = calls(&world, function, before)?;
            ensure!(!calls.iter().any(|call| call.contains(FLUX)), "what is forged is sent on: {calls:#?}");
        }
        let expected = match (function.as_str(), name) {
            ("webhook", "forged") => json!(401),
            ("webhook", _) => json!(202),
            ("sweeper", _) => Value::Null,
            _ => json!([]),
        };
        let field = match function.as_str() {
            "webhook" => &answer["statusCode"],
            "sweeper" => &answer,
            _ => &answer["batchItemFailures"],
        };
        assert_eq!(field, &expected, "{}: {answer}", file.display());
    }

    // An unreadable message leads to a visible failure.
    let mut event: Value = serde_json::from_slice(&fs::read(&samples["launcher"][0])?)?;
    event["Records"][0]["body"] = "{}".into();
    let failed = answer(&world, "launcher", &event).await?;
    assert_eq!(failed["batchItemFailures"][0]["itemIdentifier"], event["Records"][0]["messageId"]);
    Ok(())
}
