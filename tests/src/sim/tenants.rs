//! The checks of tenants: their secrets, their slots, and their tasks.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use driftless_contract::{ObjectKey, keys};
use driftless_core::{Admissions, Applicant, Uid};
use driftless_testkit::CLUSTER;
use serde_json::Value;

use super::{
    ledger::Ledger,
    objects::{CANARY, HOSTILE, NAMESPACE, QUIET, STACK},
};
use crate::scenario::SYSTEM;

impl Ledger {
    /// A function writes an object of the bucket. `subject` is the namespace of its message.
    pub(super) fn object_written(&mut self, subject: &str, key: &str, content: &[u8]) {
        self.check_owner(subject, key);
        let task = key.strip_prefix("tasks/").and_then(|key| key.split('/').next()?.split(':').nth(1));
        let of_task = task.and_then(|task| self.namespaces.get(task)).cloned();
        for namespace in revealed(&String::from_utf8_lossy(content)) {
            let own = key.starts_with(&format!("sealed/{CLUSTER}/{namespace}/"))
                || of_task.as_deref().is_some_and(|of_task| is_of(of_task, namespace));
            self.check(own, || format!("S1: {key} has a Secret of the namespace {namespace}"));
        }
    }

    /// An object of the cluster was written.
    pub(super) fn cluster_written(&mut self, key: &ObjectKey, object: &Value) {
        let decoded = |(name, value): (&String, &Value)| {
            let bytes = BASE64_STANDARD.decode(value.as_str()?).ok()?;
            Some(format!("{name} {}", String::from_utf8_lossy(&bytes)))
        };
        let data: Vec<String> = object["data"].as_object().into_iter().flatten().filter_map(decoded).collect();
        let mut found: BTreeSet<_> = data.iter().flat_map(|text| revealed(text)).collect();
        strings(object, &mut |text| found.extend(revealed(text)));
        for namespace in found {
            let own = key.kind == "Secret" && is_of(&key.namespace, namespace);
            self.check(own, || format!("S1: {key} has a Secret of the namespace {namespace}"));
        }
        let admissions = object["metadata"]["annotations"][keys::ADMISSIONS_ANNOTATION].as_str();
        if key.kind == "Lease"
            && let Some(all) = admissions.and_then(|written| serde_json::from_str(written).ok())
        {
            self.admissions_written(&all);
        }
    }

    /// The list of the runs with a slot and of the waiting ones was written.
    fn admissions_written(&mut self, all: &Admissions) {
        self.tell(|| {
            let names = |runs: &BTreeMap<Uid, Applicant>| {
                runs.values().map(|run| format!("{}/{}", run.tenant(), run.name)).collect::<Vec<_>>().join(", ")
            };
            format!("slots: {}; waiting: {}; served {:?}", names(&all.running), names(&all.waiting), all.served)
        });
        self.stats.waits += u64::from(!all.waiting.is_empty());
        let is_quiet = |run: &Applicant| run.tenant() == QUIET;
        if all.waiting.values().any(is_quiet) && !all.running.values().any(is_quiet) {
            let mut preferred = self.preferred.take().unwrap_or_else(|| {
                self.stats.queued += 1;
                HashSet::new()
            });
            // With another slot free, the quiet Stack has one that it did not take yet. During the
            // disturbance its requests get lost.
            let is_last = self.calm_since.is_some() && self.limits.runs.is_some_and(|most| all.running.len() >= most);
            let admitted = std::mem::take(&mut self.admitted);
            for (uid, run) in all.running.iter().filter(|(uid, _)| is_last && !admitted.contains(*uid)) {
                let is_first = preferred.insert(run.tenant().to_owned());
                self.check(is_first, || {
                    let namespace = run.tenant();
                    format!("S9: {namespace} gets a slot for {uid}, the second one while the namespace {QUIET} waits for one")
                });
            }
            self.preferred = Some(preferred);
        } else {
            self.preferred = None;
        }
        self.admitted = all.running.keys().cloned().collect();
    }

    /// Returns whether an object of the bucket belongs to the quiet Stack: its sealed inputs, or
    /// the digest of its inputs.
    fn is_kept_of_quiet(&self, key: &str) -> bool {
        key.starts_with(&format!("sealed/{CLUSTER}/{QUIET}/"))
            || self.stacks.get(STACK).is_some_and(|(uid, _)| key.ends_with(&format!("/{uid}")))
    }

    pub(super) fn check_owner(&mut self, subject: &str, key: &str) {
        let may = subject == QUIET || !self.is_kept_of_quiet(key);
        self.check(may, || format!("S1: {key} is written or deleted for a message about the namespace {subject:?}"));
    }

    /// A function fetches an archive.
    pub(super) fn artifact_fetched(&mut self, subject: &str, path: &str) {
        let namespace = path.split('/').nth(1).unwrap_or_default();
        self.check(subject == namespace, || format!("9: {path} is fetched for a message about the namespace {subject:?}"));
    }

    /// A function asks ECS to stop a task.
    pub(super) fn task_stopped(&mut self, subject: &str, arn: &str) {
        let attacked = subject == HOSTILE && self.namespaces.get(keys::task_id(arn)).is_some_and(|namespace| namespace == QUIET);
        self.check(!attacked, || {
            format!("S3: {arn} of the namespace {QUIET} is stopped for a message about the namespace {subject}")
        });
    }

    /// Records that the quiet Stack was changed, and that the change has to run.
    pub(super) fn want(&mut self, stack: Option<&Value>) {
        let generation = stack.and_then(|stack| stack["metadata"]["generation"].as_i64());
        self.wanted = generation.map(|generation| (generation, self.now));
    }
}

/// The namespaces whose Secrets occur in a text.
pub(super) fn revealed(text: &str) -> impl Iterator<Item = &'static str> + '_ {
    // Few texts have any.
    let names = if text.contains(CANARY) { &[NAMESPACE, QUIET, HOSTILE][..] } else { &[] };
    names.iter().copied().filter(move |name| text.contains(&format!("{name}{CANARY}")))
}

/// Visits the names and the texts in a document.
fn strings(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, visit)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            visit(name);
            strings(value, visit);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns whether an object in `own` may contain a Secret of `namespace`. Runs of Stacks in a
/// terminating namespace are in the system namespace.
fn is_of(own: &str, namespace: &str) -> bool {
    own == namespace || own == SYSTEM && namespace == NAMESPACE
}
