//! Fields of a spec with a syntax of their own.

use driftless_api::WorkspaceSpec;
use driftless_core::{DefaultSize, Schedule, duration, repository};
use fetcher::{
    Place as ArtifactPlace,
    git::{Place, Wanted},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use url::Url;

use crate::input::{first_line, text};

/// The input is a schedule on the first line, and its time zone. The schedule may also be a
/// duration.
pub fn schedule(input: &[u8]) {
    let (line, zone) = first_line(text(input));
    if let Some(found) = duration(line) {
        assert!(!found.is_negative(), "{line:?}: {found}");
        assert_eq!(duration(&found.to_string()), Some(found), "{line:?}");
    }
    let Ok(schedule) = Schedule::parse(line, Some(zone).filter(|zone| !zone.is_empty())) else { return };
    let year = |year: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365 * (year - 1970));
    for (after, own) in [(Timestamp::MIN, 0), (year(2026), 1 << 40), (year(2400), u64::MAX), (Timestamp::MAX, 7)] {
        let mut time = after;
        for _ in 0..5 {
            let Some(next) = schedule.next(time, own) else { break };
            assert!(next > time, "{next} after {time}");
            if let Schedule::Every(every) = schedule {
                assert!(next.duration_since(time) <= every, "{next} after {time}");
            }
            time = next;
        }
    }
}

/// The input is a quantity of a resource.
pub fn quantity(input: &[u8]) {
    let amount = text(input);
    let default = DefaultSize::default();
    let asked = |field: &str, amount: &str| {
        let resources = json!({ "limits": { field: amount } });
        let spec: WorkspaceSpec = serde_json::from_value(json!({ "resources": resources })).expect("a Workspace's spec");
        spec.task("spec").shape(default)
    };
    for field in ["cpu", "memory", "ephemeral-storage"] {
        match (asked(field, amount), asked(field, &format!("1{amount}"))) {
            (Ok(shape), more) => {
                assert!((256..=16_384).contains(&shape.cpu) && (512..=122_880).contains(&shape.memory_mib), "{shape:?}");
                assert!(shape.ephemeral_gib.is_none_or(|gib| (21..=200).contains(&gib)), "{shape:?}");
                // `+1` is a quantity, `1+1` is not.
                if let Ok(more) = more {
                    let sizes = |shape: &driftless_core::TaskShape| (shape.cpu, shape.memory_mib, shape.ephemeral_gib);
                    let ((cpu, memory, disk), (more_cpu, more_memory, more_disk)) = (sizes(&shape), sizes(&more));
                    assert!(
                        more_cpu >= cpu && more_memory >= memory && more_disk >= disk,
                        "1{amount}: {more:?}, {amount}: {shape:?}"
                    );
                }
            }
            (Err(words), _) => assert!(words.contains("spec"), "{words}"),
        }
    }
}

/// The input is the URL of a repository or of an artifact, and the artifact's path or a revision.
pub fn urls(input: &[u8]) {
    let (url, rest) = first_line(text(input));
    if let Some(name) = repository(url) {
        assert_eq!(name, name.to_lowercase(), "{url:?}");
        let (host, path) = name.split_once('/').expect("a host and a path");
        assert!(!host.is_empty() && !path.is_empty(), "{url:?}");
        if host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.') {
            assert_eq!(repository(&format!("https://{name}.git")).as_deref(), Some(&*name), "{url:?}");
        }
    }
    match Place::parse(url, false) {
        Ok(place) => {
            assert!(place.server().is_some(), "{url:?} is a path");
            if let Place::Ssh { path, .. } = place {
                assert!(!path.is_empty() && !path.starts_with('-'), "{url:?}");
            }
        }
        Err(error) => {
            assert!(error.is_terminal() && error.to_string().len() < 300, "{error}");
            let password = Url::parse(url).ok().and_then(|url| Some(url.password()?.to_owned()));
            let is_told = password.is_some_and(|password| password.len() > 20 && error.to_string().contains(&password));
            assert!(!is_told, "{error}");
        }
    }
    for wanted in [Wanted::parse(rest, ""), Wanted::parse("", rest)] {
        if let Err(error) = wanted {
            assert!(error.is_terminal() && error.to_string().len() < 2000, "{error}");
        }
    }
    if let Some(place) = ArtifactPlace::of_url(url, rest) {
        assert_eq!(place.path(), rest);
        if place.is_among(&["source-controller.flux-system".to_owned()]) {
            let host = url["http://".len()..].split('/').next().expect("a host");
            let host = host.strip_suffix(":80").unwrap_or(host).trim_end_matches('.').trim_end_matches(".cluster.local");
            assert!(matches!(host, "source-controller.flux-system" | "source-controller.flux-system.svc"), "{url:?}");
        }
    }
}
