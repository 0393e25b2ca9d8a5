//! The handlers with a probe, and the settings of an installation.

use std::{collections::BTreeMap, pin::Pin};

use driftless_contract::RunLimits;
use driftless_core::{Architecture, DefaultSize, Limits, PodFields, Retention, WatchNamespaces};
use driftless_testkit::Message;
use jiff::{SignedDuration, Timestamp};

use super::ports::Probe;
use crate::scenario::SYSTEM;

/// The id of the task role.
pub(super) const ROLE: &str = "AROAMODEL";
/// No run is due because of time alone.
const NEVER_SECONDS: i64 = 10 * 365 * 86_400;

/// A handler's invocation with a probe. `Err` if it failed: whether a retry may succeed, and why.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<(), (bool, String)>>>>;

/// The invocation for a message.
pub(super) fn work(probe: Probe, message: Message, now: Timestamp, limits: Limits) -> Work {
    match message {
        Message::Hint(hint) => Box::pin(async move {
            let settings = reconciler::Settings {
                system_namespace: SYSTEM,
                namespaces: WatchNamespaces::All,
                retention: Retention { keep: SignedDuration::from_hours(24), grace: SignedDuration::from_hours(24) },
                resync_seconds: NEVER_SECONDS,
                min_resync_seconds: 60,
                pod_fields: PodFields::Ignore,
            };
            let reconciler = reconciler::Reconciler { cluster: &probe, objects: &probe, queues: &probe, settings, now };
            Box::pin(reconciler.handle(&hint)).await.map_err(|error| (error.is_transient(), error.to_string()))
        }),
        Message::Launch(hint) => Box::pin(async move {
            let settings = launcher::Settings {
                system_namespace: SYSTEM.into(),
                namespaces: WatchNamespaces::All,
                task_role_id: ROLE.into(),
                images: launcher::Images { by_runtime: BTreeMap::new(), default: "pulumi".into() },
                default_architecture: Architecture::Amd64,
                pod_fields: PodFields::Ignore,
                default_size: DefaultSize::default(),
                spot: false,
                limits,
                run_limits: RunLimits::default(),
                token_seconds: 3600,
                cache_entry_bytes: Some(1 << 20),
                fresh_key: vec![7; 32].into(),
            };
            let (probe, settings) = (&probe, &settings);
            let launcher = launcher::Launcher { cluster: probe, objects: probe, queues: probe, tasks: probe, settings, now };
            Box::pin(launcher.handle(&hint)).await.map_err(|error| (error.is_transient(), error.to_string()))
        }),
        Message::Run(about) => Box::pin(async move {
            let settings = recorder::Settings {
                system_namespace: SYSTEM.into(),
                task_role_id: ROLE.into(),
                start_seconds: 600,
                cache_entry_bytes: 1 << 20,
                cache_namespace_bytes: 1 << 22,
            };
            let handled = async {
                for (hint, due) in recorder::runs(&probe, &probe, &settings, about, now).await? {
                    let (probe, settings) = (&probe, &settings);
                    let recorder =
                        recorder::Recorder { cluster: probe, objects: probe, queues: probe, tasks: probe, settings, now };
                    recorder.handle(&hint, due).await?;
                }
                Ok(())
            };
            let done: Result<(), recorder::Error> = handled.await;
            done.map_err(|error| (error.is_transient(), error.to_string()))
        }),
        Message::Fetch(_) => Box::pin(async { Ok(()) }),
    }
}
