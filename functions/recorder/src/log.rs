//! The log of a run for users who can read the Update's namespace but nothing on AWS: its last part
//! in a ConfigMap, and a link to all of it.

use std::collections::BTreeMap;

use driftless_api::{LogLink, Update, names};
use driftless_aws::{Error as AwsError, Objects, Queues, Tasks};
use driftless_contract::{
    Outcome,
    keys::{self, MAX_LIVE_LOG_BYTES, MAX_LOG_CHUNK_BYTES, MAX_LOG_CHUNKS, TaskFolder, log_number},
};
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventMarks, EventReason, EventType};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::{Error, Recorder, owned};

/// The maximum size of a log in a ConfigMap, in bytes: a ConfigMap holds 1 MiB, and each added part
/// rewrites it.
const MAX_LOG: usize = 512 << 10;

/// The maximum size of a live log that is kept, in bytes.
const MAX_LIVE_LOG: u64 = MAX_LIVE_LOG_BYTES as u64;

/// The key of the note that earlier parts are left out. It sorts before those of all parts.
const NOTE: &str = "0000";

/// The number of parts that are added at once while a run is live.
pub(crate) const SOME: u16 = 20;

/// Another reconciliation of the same run may write the log at the same time.
const TRIES: u32 = 3;

/// Why a log is not in its ConfigMap.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStored {
    /// It cannot be copied, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A retry may succeed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Copies the rest of a log when its run is recorded, and publishes an Event if it cannot be
    /// copied. Returns the name of the ConfigMap, if the task wrote a log.
    pub(crate) async fn finish_log(&self, update: &Update, task: &TaskFolder) -> Result<Option<String>, Error> {
        match self.copy_log(update, task, MAX_LOG_CHUNKS).await {
            Ok(name) => Ok(name),
            Err(NotStored::Failed(error)) => Err(error),
            Err(NotStored::Refused(why)) => {
                if !update.is_complete() {
                    self.cluster
                        .event(update, EventType::Warning, EventReason::LogNotStored, &why, EventMarks::default(), self.now)
                        .await;
                }
                Ok(None)
            }
        }
    }

    /// A link to the log at this key. Readers of the Update's status can use it for a short time.
    pub(crate) async fn log_link(&self, key: &str) -> Result<LogLink, Error> {
        let link = self.objects.link(key, self.now).await?;
        Ok(LogLink::new(link.url, link.expires))
    }

    /// Writes a new link to the kept log of a published run into its Update, if a reader asks for
    /// it. Returns `false` otherwise. The log is kept after the run has released everything, so
    /// nothing else is left to do.
    pub(crate) async fn renew_log_link(&self, update: Option<&Update>, outcome: &Outcome) -> Result<bool, Error> {
        let kept = keys::log(&outcome.run.update, &outcome.run.uid);
        let Some(update) = update.filter(|update| update.asks_for_log(self.now)) else { return Ok(false) };
        if !self.objects.exists(&kept).await? {
            return Ok(false);
        }
        let mut update = update.clone();
        update.set_log_link(self.log_link(&kept).await?);
        self.cluster.replace_status(&update).await?;
        Ok(true)
    }

    /// Copies the live log of a recorded run to where it is kept and where no task can change it,
    /// and returns the link to the copy, if the task wrote a log. A recorded link is kept until it
    /// is due for renewal.
    pub(crate) async fn keep_log(&self, update: &Update, outcome: &Outcome, task: &TaskFolder) -> Result<Option<LogLink>, Error> {
        if update.is_complete() && !update.needs_log_link(self.now) {
            return Ok(update.status.as_ref().and_then(|status| status.driftless.as_ref()?.log_link.clone()));
        }
        let (live, kept) = (task.live_log(), keys::log(&outcome.run.update, &outcome.run.uid));
        let copied = match self.objects.size(&live, 0).await {
            Ok(1..=MAX_LIVE_LOG) => self.objects.copy(&live, &kept).await,
            // The task wrote no log, or its program wrote another object in its place.
            size => size.map(|_| false),
        };
        match copied {
            Ok(true) => self.log_link(&kept).await.map(Some),
            Ok(false) => Ok(None),
            Err(error) if error.is_transient() => Err(error.into()),
            Err(error) => {
                tracing::warn!(task = &**task, %error, "cannot keep the log of a task");
                Ok(None)
            }
        }
    }

    /// Copies up to `most` parts that the ConfigMap does not have yet. Returns its name, if there
    /// is one.
    pub(crate) async fn copy_log(&self, update: &Update, task: &TaskFolder, most: u16) -> Result<Option<String>, NotStored> {
        let (namespace, name) = (update.namespace().unwrap_or_default(), name(&update.name_any()));
        // The Update of a terminating namespace: tenants cannot read the system namespace, so the
        // right to write ConfigMaps there would serve no purpose.
        if namespace == self.settings.system_namespace {
            return Ok(None);
        }
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let wrong = match self.add_log_parts(update, task, &namespace, &name, most).await {
                Ok(is_there) => return Ok(is_there.then_some(name)),
                Err(NotStored::Failed(Error::Kubernetes(KubernetesError::Conflict { .. }))) if tries > 0 => continue,
                Err(NotStored::Failed(Error::Kubernetes(error))) => error,
                Err(other) => return Err(other),
            };
            return match wrong {
                // The namespace is deleted, and its readers with it.
                KubernetesError::NamespaceTerminating { .. } => Ok(None),
                KubernetesError::Unreadable { message, .. } => {
                    Err(NotStored::Refused(format!("cannot read ConfigMap {name:?}: {message}; delete it and run again")))
                }
                KubernetesError::Permanent { message, .. } => Err(NotStored::Refused(format!(
                    "cannot store the log in ConfigMap {name:?}: {message}; {}; the whole log is at status.driftless.log",
                    owned::BIND
                ))),
                wrong => Err(NotStored::Failed(wrong.into())),
            };
        }
    }

    /// Adds parts with one write. Returns whether there is a ConfigMap.
    async fn add_log_parts(
        &self,
        update: &Update,
        task: &TaskFolder,
        namespace: &str,
        name: &str,
        most: u16,
    ) -> Result<bool, NotStored> {
        let found = self.cluster.get::<ConfigMap>(namespace, name).await.map_err(Error::from)?;
        if let Some(found) = &found
            && !owned::is_of(found, update)
        {
            return Err(NotStored::Refused(owned::is_another("ConfigMap", name)));
        }
        let mut stored = Parts::of(found.as_ref().and_then(|found| found.data.clone()).unwrap_or_default());
        let first = stored.next();
        for number in (first..=MAX_LOG_CHUNKS).take(most.into()) {
            let Some(part) = self.log_part(task, number).await? else { break };
            stored.add(number, part);
        }
        if stored.next() == first {
            return Ok(found.is_some());
        }
        let data = Some(stored.into_data());
        match found {
            Some(found) => self.cluster.replace(&ConfigMap { data, binary_data: None, ..found }).await,
            None => self.cluster.create(&config_map(update, name, data)).await,
        }
        .map_err(Error::from)?;
        Ok(true)
    }

    /// A part that the task wrote; `None` at the end of the log. The tenant's program may have
    /// written it, so it is cut and stripped of what a terminal would execute.
    async fn log_part(&self, task: &TaskFolder, number: u16) -> Result<Option<String>, Error> {
        let content = match self.objects.get_range(&task.log_chunk(number), 0, MAX_LOG_CHUNK_BYTES as u64).await {
            Err(AwsError::Permanent { call, message }) => {
                tracing::warn!(call, message, "cannot read a part of the log of a task");
                return Ok(None);
            }
            content => content?,
        };
        let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
        Ok(content.map(|content| String::from_utf8_lossy(&content).chars().map(shown).collect()))
    }
}

/// The parts of a log by their numbers, of bounded size together.
struct Parts {
    parts: BTreeMap<u16, String>,
    /// Earlier parts are left out.
    is_cut: bool,
}

impl Parts {
    /// The parts in a ConfigMap. A user may have changed it: other keys are left out.
    fn of(data: BTreeMap<String, String>) -> Self {
        let is_cut = data.contains_key(NOTE);
        let number =
            |key: &str| key.parse().ok().filter(|number| (1..=MAX_LOG_CHUNKS).contains(number) && log_number(*number) == key);
        Self { parts: data.into_iter().filter_map(|(key, part)| Some((number(&key)?, part))).collect(), is_cut }
    }

    /// The number of the part after the last.
    fn next(&self) -> u16 {
        self.parts.last_key_value().map_or(1, |(number, _)| number + 1)
    }

    /// Adds a part, and drops the earliest while all together are too large.
    fn add(&mut self, number: u16, part: String) {
        self.parts.insert(number, part);
        let mut total: usize = self.parts.values().map(String::len).sum();
        while total > MAX_LOG
            && let Some((_, first)) = self.parts.pop_first()
        {
            total -= first.len();
            self.is_cut = true;
        }
    }

    fn into_data(self) -> BTreeMap<String, String> {
        let note = self.is_cut.then(|| {
            let note = format!("[earlier lines are left out: only the last {} KiB are here; ", MAX_LOG >> 10);
            (NOTE.to_owned(), note + "the whole log is at status.driftless.log of the Update]\n")
        });
        note.into_iter().chain(self.parts.into_iter().map(|(number, part)| (log_number(number), part))).collect()
    }
}

/// The name of the ConfigMap with the log of an Update.
fn name(update: &str) -> String {
    format!("{update}{}", names::LOG_SUFFIX)
}

fn config_map(update: &Update, name: &str, data: Option<BTreeMap<String, String>>) -> ConfigMap {
    ConfigMap { metadata: owned::metadata(update, name.to_owned()), data, ..ConfigMap::default() }
}
