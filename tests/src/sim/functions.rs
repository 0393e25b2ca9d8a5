//! Invocations of the functions.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use driftless_contract::{RunLimits, keys};
use driftless_core::{Architecture, DefaultSize, PodFields, WatchNamespaces};
use driftless_kubernetes::Watch;
use driftless_testkit::{CLUSTER, Message};

use super::{
    knobs::MAX_RUN_SECONDS,
    machine::{Broken, Invocation, Machine, subject},
    outside::SERVICE,
    ports::Wire,
    runner::ROLE,
};
use crate::scenario::SYSTEM;

/// A task without progress is stopped after this time, in seconds.
const START_SECONDS: u32 = 900;
/// Every source is checked once in this time for trees that no object needs, in seconds.
const COLLECT_SECONDS: i64 = 120;

impl Machine {
    fn wire(&self, function: &'static str, subject: &str) -> Wire {
        let mut ledger = self.ledger.borrow_mut();
        ledger.stats.invocations += 1;
        Wire {
            world: self.world.clone(),
            ledger: Rc::clone(&self.ledger),
            chances: Rc::clone(&self.chances),
            breakage: self.breakage,
            function,
            who: format!("{function} {}", ledger.stats.invocations),
            subject: subject.into(),
        }
    }

    fn begin<F>(&mut self, wire: Wire, message: Option<Message>, work: impl FnOnce(Wire) -> F)
    where
        F: Future<Output = Result<(), Broken>> + 'static,
    {
        let now = self.world.now();
        let (function, who) = (wire.function, wire.who.clone());
        self.ledger.borrow_mut().tell(|| format!("{who} begins: {message:?}"));
        self.invocations.push(Invocation { work: Box::pin(work(wire)), message, function, who, began: now, wake: now });
    }

    pub(super) fn invoke(&mut self, message: Message) {
        let now = self.world.now();
        // While a message of a group is in flight, no other is delivered.
        if let Message::Fetch(request) = &message
            && self.invocations.iter().any(|other| {
                matches!(&other.message, Some(Message::Fetch(other)) if *keys::fetch(&other.source) == *keys::fetch(&request.source))
            })
        {
            return self.redeliver(message, 5);
        }
        match message.clone() {
            Message::Hint(hint) => {
                self.looks_at_rest += 1;
                self.check_plan(&hint.object);
                let wire = self.wire("reconciler", subject(&message));
                let settings = self.knobs.reconciler();
                self.begin(wire, Some(message), |wire| async move {
                    let reconciler = reconciler::Reconciler { cluster: &wire, objects: &wire, queues: &wire, settings, now };
                    let done = Box::pin(reconciler.handle(&hint)).await;
                    done.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
            Message::Fetch(request) => {
                let wire = self.wire("fetcher", subject(&message));
                let settings = fetcher::Settings {
                    bucket: "bucket".into(),
                    system_namespace: SYSTEM.into(),
                    namespaces: WatchNamespaces::All,
                    retention: self.knobs.retention,
                    services: vec![SERVICE.into()],
                    source_kinds: Vec::new(),
                    max_archive_bytes: 1 << 20,
                    max_tree_bytes: 1 << 30,
                    limits: driftless_source::Limits::default(),
                    git: fetcher::git::Settings {
                        allow_local: false,
                        private_hosts: fetcher::PrivateHosts::default(),
                        github_api_url: String::new(),
                        known_hosts: String::new(),
                        ca_certificates: String::new(),
                        max_pack_bytes: 1 << 20,
                        servers: fetcher::git::Servers::default(),
                    },
                };
                self.begin(wire, Some(message), |wire| async move {
                    let (wire, settings) = (&wire, &settings);
                    let fetcher = fetcher::Fetcher { cluster: wire, objects: wire, queues: wire, artifacts: wire, settings, now };
                    let done = Box::pin(fetcher.handle(&request, now, || now)).await;
                    done.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
            Message::Launch(hint) => {
                let wire = self.wire("launcher", subject(&message));
                let settings = launcher::Settings {
                    system_namespace: SYSTEM.into(),
                    namespaces: WatchNamespaces::All,
                    task_role_id: ROLE.into(),
                    images: launcher::Images { by_runtime: BTreeMap::new(), default: "pulumi".into() },
                    default_architecture: Architecture::Amd64,
                    pod_fields: PodFields::Ignore,
                    default_size: DefaultSize::default(),
                    spot: true,
                    limits: self.limits,
                    run_limits: RunLimits { max_seconds: Some(MAX_RUN_SECONDS), ..RunLimits::default() },
                    token_seconds: self.knobs.token_seconds,
                    cache_entry_bytes: Some(1 << 20),
                    fresh_key: vec![7; 32].into(),
                };
                self.begin(wire, Some(message), |wire| async move {
                    let (wire, settings) = (&wire, &settings);
                    let launcher = launcher::Launcher { cluster: wire, objects: wire, queues: wire, tasks: wire, settings, now };
                    let done = Box::pin(launcher.handle(&hint)).await;
                    done.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
            Message::Run(about) => {
                let wire = self.wire("recorder", subject(&message));
                let settings = recorder::Settings {
                    system_namespace: SYSTEM.into(),
                    task_role_id: ROLE.into(),
                    start_seconds: START_SECONDS,
                    cache_entry_bytes: 1 << 20,
                    cache_namespace_bytes: 1 << 22,
                };
                self.begin(wire, Some(message), |wire| async move {
                    let handled = async {
                        for (hint, due) in recorder::runs(&wire, &wire, &settings, about, now).await? {
                            let (wire, settings) = (&wire, &settings);
                            let recorder =
                                recorder::Recorder { cluster: wire, objects: wire, queues: wire, tasks: wire, settings, now };
                            recorder.handle(&hint, due).await?;
                        }
                        Ok(())
                    };
                    let done: Result<(), recorder::Error> = handled.await;
                    done.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
        }
    }

    pub(super) fn sweep(&mut self) {
        let now = self.world.now();
        let wire = self.wire("sweeper", "");
        let settings = sweeper::Settings {
            watch: Watch { namespaces: WatchNamespaces::All, system_namespace: SYSTEM },
            tick_seconds: self.knobs.sweep_seconds,
            period_seconds: self.knobs.period_seconds,
            token_seconds: self.knobs.token_seconds.into(),
            collect_seconds: COLLECT_SECONDS,
            retention: self.knobs.retention,
        };
        self.begin(wire, None, |wire| async move {
            // A failed sweep is followed by the next.
            let swept = async {
                sweeper::sweep(CLUSTER, &wire, &wire, settings, &RefCell::default(), || false, now).await?;
                sweeper::collect(CLUSTER, &wire, &wire, settings, now).await?;
                sweeper::attend(&wire, &wire, settings, now).await
            };
            let swept: Result<usize, sweeper::Error> = swept.await;
            swept.map(drop).map_err(|error| Broken { transient: true, words: error.to_string() })
        });
    }
}
