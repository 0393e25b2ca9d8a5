//! The Secrets and ConfigMaps that a Stack names for its outputs.

use std::collections::{BTreeMap, BTreeSet};

use driftless_api::{Stack, StackOutputs, Update, names, uid_of};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Outcome, OutputObjects, OutputValue, VERSION, Verdict, keys};
use driftless_core::{ExistingOutputs, Operation, Output, OutputKind, OutputStep, output_data, output_step};
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventMarks, EventReason, EventType, Object};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Resource as _, ResourceExt as _, core::ObjectMeta};

use crate::{Error, Recorder, events};

/// A user may change the object at the same time.
const TRIES: u32 = 3;

/// The remedy if the API server refuses to write an object.
const BIND: &str = "bind the ClusterRoles driftless:run-outputs and driftless:stack-outputs in this namespace (infra/kubernetes/runs) and run again";

/// The content of an object by key.
type Data = BTreeMap<String, Vec<u8>>;

/// A kind of object that receives outputs.
trait Receiver: Object {
    const KIND: OutputKind;
    /// Its content.
    fn content(&self) -> Data;
    /// The same object with this content only.
    fn with(self, data: BTreeMap<String, String>) -> Self;
    fn named(metadata: ObjectMeta) -> Self;
}

impl Receiver for Secret {
    const KIND: OutputKind = OutputKind::Secret;

    fn content(&self) -> Data {
        self.data.iter().flatten().map(|(key, ByteString(value))| (key.clone(), value.clone())).collect()
    }

    fn with(self, data: BTreeMap<String, String>) -> Self {
        let data = data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect();
        Self { data: Some(data), ..self }
    }

    fn named(metadata: ObjectMeta) -> Self {
        Self { metadata, ..Self::default() }
    }
}

impl Receiver for ConfigMap {
    const KIND: OutputKind = OutputKind::ConfigMap;

    fn content(&self) -> Data {
        let binary = self.binary_data.iter().flatten().map(|(key, ByteString(value))| (key.clone(), value.clone()));
        self.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes())).chain(binary).collect()
    }

    fn with(self, data: BTreeMap<String, String>) -> Self {
        Self { data: Some(data), binary_data: None, ..self }
    }

    fn named(metadata: ObjectMeta) -> Self {
        Self { metadata, ..Self::default() }
    }
}

/// A run of a Stack whose outputs are written.
struct Writer<'a, C> {
    cluster: &'a C,
    stack: Stack,
    outputs: BTreeMap<&'a str, Output<'a>>,
    /// When the run was recorded.
    recorded: Timestamp,
    /// Why an object does not have what the spec says.
    problems: Vec<String>,
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Writes the outputs of a successful update into the objects that its Stack names, and deletes
    /// those that the Stack no longer names. The bucket has a list of all that may exist.
    pub(crate) async fn write_named_outputs(
        &self,
        update: &Update,
        outcome: &Outcome,
        outputs: &BTreeMap<String, OutputValue>,
    ) -> Result<(), Error> {
        let is_up = update.spec.operation.as_deref() == Some(Operation::Up.as_str()) && !outcome.preview;
        let stack = events::stack_of(update, self.settings).filter(|stack| stack.namespace() == update.namespace());
        let (Some(stack), true, Verdict::Succeeded {}) = (stack, is_up, &outcome.verdict) else { return Ok(()) };
        let wanted = update.spec.driftless.as_ref().map_or(&[][..], |ours| &ours.outputs);
        let list = keys::outputs(&outcome.run.update.cluster, &uid_of(&stack));
        let before = self.objects.read(&list).await?.map_or_else(BTreeSet::new, |read| read.objects);
        let named: BTreeSet<_> = wanted.iter().map(|object| (object.kind, object.name.clone())).collect();
        let all: BTreeSet<_> = before.union(&named).cloned().collect();
        if all != before {
            // Before an object is created, so that a crash leaves none that the list lacks.
            self.objects.write(&list, &OutputObjects { version: VERSION, objects: all }).await?;
        }
        let outputs = outputs
            .iter()
            .map(|(name, output)| (name.as_str(), Output { value: &output.value, secret: output.secret }))
            .collect();
        let recorded = outcome.recorded_at.unwrap_or(self.now);
        let mut writer = Writer { cluster: self.cluster, stack, outputs, recorded, problems: Vec::new() };
        for object in wanted {
            match object.kind {
                OutputKind::Secret => writer.settle::<Secret>(&object.name, Some(object)).await?,
                OutputKind::ConfigMap => writer.settle::<ConfigMap>(&object.name, Some(object)).await?,
            }
        }
        for (kind, name) in before.difference(&named) {
            match kind {
                OutputKind::Secret => writer.settle::<Secret>(name, None).await?,
                OutputKind::ConfigMap => writer.settle::<ConfigMap>(name, None).await?,
            }
        }
        if !before.is_subset(&named) {
            self.objects.write(&list, &OutputObjects { version: VERSION, objects: named }).await?;
        }
        for problem in writer.problems {
            let (kind, reason) = (EventType::Warning, EventReason::OutputsNotStored);
            self.cluster.event(&writer.stack, kind, reason, &problem, EventMarks::default(), self.now).await;
        }
        Ok(())
    }
}

impl<C: Cluster> Writer<'_, C> {
    /// Writes the object that the Stack names, or deletes one that it no longer names. A refusal of
    /// the API server is a problem to report and does not keep the run from ending.
    async fn settle<K: Receiver>(&mut self, name: &str, wanted: Option<&StackOutputs>) -> Result<(), Error> {
        let kind = K::KIND;
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let error = match self.step::<K>(name, wanted).await {
                Err(KubernetesError::Conflict { .. }) if tries > 0 => continue,
                Err(error) => error,
                Ok(()) => return Ok(()),
            };
            match error {
                // The namespace is deleted, and its readers with it.
                KubernetesError::NamespaceTerminating { .. } => {}
                KubernetesError::Unreadable { message, .. } => {
                    self.problems.push(format!("cannot read {kind:?} {name:?}: {message}; delete it and run again"));
                }
                KubernetesError::Permanent { message, .. } => {
                    self.problems.push(format!("cannot write the outputs to {kind:?} {name:?}: {message}; {BIND}"));
                }
                error => return Err(error.into()),
            }
            return Ok(());
        }
    }

    async fn step<K: Receiver>(&mut self, name: &str, wanted: Option<&StackOutputs>) -> Result<(), KubernetesError> {
        let found = self.cluster.get::<K>(&self.stack.namespace().unwrap_or_default(), name).await?;
        let content = wanted.map(|object| output_data((K::KIND, name), &object.keys, &self.outputs)).unwrap_or_default();
        let bytes: Data = content.data.iter().map(|(key, value)| (key.clone(), value.clone().into_bytes())).collect();
        let existing = found.as_ref().map(|found| {
            let recorded_at = found.annotations().get(names::RECORDED_AT);
            let is_owned = found.owner_references().iter().any(|owner| Some(&owner.uid) == self.stack.metadata.uid.as_ref());
            ExistingOutputs {
                is_ours: is_owned && recorded_at.is_some(),
                recorded_at: recorded_at.and_then(|at| at.parse().ok()),
                is_same: found.content() == bytes,
            }
        });
        let mut problems = content.problems;
        match (output_step(existing.as_ref(), wanted.is_some(), self.recorded), found) {
            (OutputStep::Create, _) => drop(self.cluster.create(&K::named(self.metadata(name)).with(content.data)).await?),
            (OutputStep::Replace, Some(mut found)) => {
                found.annotations_mut().insert(names::RECORDED_AT.to_owned(), self.recorded.to_string());
                self.cluster.replace(&found.with(content.data)).await?;
            }
            (OutputStep::Delete, Some(found)) => self.cluster.delete(&found).await?,
            (OutputStep::Refuse, _) => {
                problems = vec![format!(
                    "{:?} {name:?} exists and was not created by Driftless for this Stack, so it receives no outputs; delete it, or \
                     name another in spec.driftless.outputs",
                    K::KIND
                )];
            }
            (OutputStep::Keep | OutputStep::Replace | OutputStep::Delete, _) => {}
        }
        self.problems.append(&mut problems);
        Ok(())
    }

    /// The metadata of a new object.
    fn metadata(&self, name: &str) -> ObjectMeta {
        // Without `blockOwnerDeletion`, which would need a right on the finalizers of Stacks.
        let owner = self.stack.owner_ref(&()).map(|owner| vec![owner]);
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: self.stack.namespace(),
            labels: Some([(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned())].into()),
            annotations: Some([(names::RECORDED_AT.to_owned(), self.recorded.to_string())].into()),
            owner_references: owner,
            ..ObjectMeta::default()
        }
    }
}
