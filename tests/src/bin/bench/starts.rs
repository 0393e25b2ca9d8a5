//! The start times of functions.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use driftless_tests::function::{Function, secrets_manager};
use tokio::process::Command;

use crate::{mebibytes, median};

/// Starts of each function; the median is shown.
const STARTS: usize = 15;

/// Each function's start beside that of an empty one.
pub async fn measure(project: &Path) -> Result<()> {
    println!("Functions, release build; median of {STARTS} starts, from the start of the process to its first response:");
    println!("  {:12} {:>9} {:>10} {:>9}", "", "start", "peak", "size");
    // Only the webhook reads a secret before its first event.
    let (endpoint, _served) = secrets_manager(r#"{"c":{"flux":"k"}}"#).await?;
    let mut base = None;
    for (name, event) in [
        ("empty", "{}"),
        ("reconciler", r#"{"Records":[]}"#),
        ("fetcher", r#"{"Records":[]}"#),
        ("launcher", r#"{"Records":[]}"#),
        ("recorder", r#"{"Records":[]}"#),
        ("sweeper", "{}"),
        ("webhook", WEBHOOK_EVENT),
    ] {
        let binary = project.join("target/lambda").join(name).join("bootstrap");
        let size = fs::metadata(&binary).with_context(|| format!("{}: run `make bench`", binary.display()))?.len();
        let mut times = Vec::new();
        let mut peak = 0;
        for _ in 0..STARTS {
            let mut function = Function::start(Command::new(&binary), std::slice::from_ref(&endpoint)).await?;
            let (at, _) = function.invoke(event.into()).await.with_context(|| format!("starting {name}"))?;
            times.push(at.duration_since(function.started));
            peak = peak.max(function.peak()?);
        }
        let time = median(times);
        let (base_time, base_peak) = *base.get_or_insert((time, peak));
        println!(
            "  {name:12} {:6.1} ms {:6.1} MiB {:5.1} MiB   {:4.1} × the start and {:4.1} × the memory of the empty one",
            time.as_secs_f32() * 1e3,
            mebibytes(peak),
            mebibytes(size),
            time.as_secs_f32() / base_time.as_secs_f32(),
            mebibytes(peak) / mebibytes(base_peak),
        );
    }
    Ok(())
}

const WEBHOOK_EVENT: &str = r#"{"version":"2.0","routeKey":"$default","rawPath":"/c","rawQueryString":"","headers":{},"requestContext":{"accountId":"1","apiId":"a","domainName":"d","domainPrefix":"p","http":{"method":"POST","path":"/c","protocol":"HTTP/1.1","sourceIp":"127.0.0.1","userAgent":"bench"},"requestId":"r","routeKey":"$default","stage":"$default","time":"01/Jan/2026:00:00:00 +0000","timeEpoch":0},"body":"{}","isBase64Encoded":false}"#;
