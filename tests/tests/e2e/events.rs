//! The samples in `events/`: each is taken by the process of its function. What they name is not there, so that nothing follows.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use driftless_tests::{aws::control::Invoked, scenario::Handle};
use serde_json::{Value, json};

use crate::world::shared;

/// The samples by the function that gets them.
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
    // What the webhook's samples were made of.
    samples.remove("bodies").context("events/bodies")?;
    Ok(samples)
}

async fn answer(world: &Handle, function: &str, event: &Value) -> Result<Value> {
    // The template's name of it.
    let id = function[..1].to_uppercase() + &function[1..];
    match world.control.invoke(&id, event).await? {
        Invoked::Answer(answer) => Ok(answer),
        Invoked::Failure(words) => bail!("{words}"),
    }
}

#[tokio::test]
async fn every_sample_is_taken_by_its_function() -> Result<()> {
    let (world, _turn) = shared().await?;
    let samples = samples()?;
    let functions: Vec<_> = samples.keys().map(String::as_str).collect();
    assert_eq!(functions, ["fetcher", "launcher", "reconciler", "recorder", "sweeper", "webhook"]);
    for (function, file) in samples.iter().flat_map(|(function, files)| files.iter().map(move |file| (function, file))) {
        let event: Value = serde_json::from_slice(&fs::read(file)?)?;
        let answer = answer(&world, function, &event).await.with_context(|| format!("{}", file.display()))?;
        let expected = match (function.as_str(), file.file_stem().and_then(|name| name.to_str()).unwrap_or_default()) {
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

    // A message that cannot be read shows.
    let mut event: Value = serde_json::from_slice(&fs::read(&samples["launcher"][0])?)?;
    event["Records"][0]["body"] = "{}".into();
    let failed = answer(&world, "launcher", &event).await?;
    assert_eq!(failed["batchItemFailures"][0]["itemIdentifier"], event["Records"][0]["messageId"]);
    Ok(())
}
