//! Reads the facts for a decision about a Stack, each from where it lives.

use std::sync::{Mutex, PoisonError};

use driftless_api::{
    PLAN_POLICIES, POLICY, Program, Source, Stack, Update,
    facts::{self, Compared, Facts, Fetch, Found},
    uid_of,
};
use driftless_aws::{Error as AwsError, Objects, Queues};
use driftless_contract::{FetchOutcome, ObjectKey, Outcome, PROJECT_FILES, Verdict, keys};
use driftless_core::{
    ArtifactDigest, ChangeKind, Governance, Guard, PlanHash, PlannedChanges, Previewed, Project, RunOutcome, Snapshot, SourceRef,
    Stack as CoreStack, TreeState, hash, paths,
};
use driftless_kubernetes::{Cluster, Error as KubernetesError, Object, Result as KubernetesResult};
use driftless_source::{Digest, InvalidManifest, Manifest};
use jiff::Timestamp;

use crate::{Error, Reconciler};

impl<C: Cluster, O: Objects, Q: Queues> Reconciler<'_, C, O, Q> {
    /// Reads all facts about a Stack that a decision needs.
    pub async fn snapshot(&self, cluster: &str, stack: &Stack) -> Result<Snapshot, Error> {
        Ok(self.load(cluster, stack).await?.0)
    }

    /// The same, with the Updates of the Stack that were read for it.
    pub(crate) async fn load(&self, cluster: &str, stack: &Stack) -> Result<(Snapshot, Vec<Update>), Error> {
        let mut core = CoreStack::from(stack);
        core.spec.default_resync_seconds = self.settings.resync_seconds;
        core.spec.min_resync_seconds = self.settings.min_resync_seconds;
        core.spec.refused = core.spec.refused.or_else(|| self.settings.pod_fields.check(&core.spec.pod_only).err());
        let reader = Reader { reconciler: self, cluster, updates: Mutex::default() };
        let snapshot = facts::snapshot(&reader, core, self.now).await?;
        Ok((snapshot, reader.updates.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The result of the last fetch of a source, if it was for this state of the source.
    pub(crate) async fn fetch_outcome(&self, source: &ObjectKey, subject: &str) -> Result<Option<FetchOutcome>, Error> {
        let outcome = self.objects.read(&keys::fetch(source)).await?;
        Ok(outcome.filter(|outcome| outcome.subject == subject))
    }
}

/// Reads objects from the cluster and documents from the bucket.
struct Reader<'a, C, O, Q> {
    reconciler: &'a Reconciler<'a, C, O, Q>,
    cluster: &'a str,
    /// The Updates of the Stack that were read.
    updates: Mutex<Vec<Update>>,
}

impl<C: Cluster, O: Objects, Q: Queues> Reader<'_, C, O, Q> {
    async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<Found<K>, Error> {
        found(self.reconciler.cluster.get(namespace, name).await)
    }

    fn key(&self, stack: &CoreStack, source: &SourceRef) -> ObjectKey {
        let (api_version, kind, name) = source.object();
        self.object(api_version, kind, &stack.namespace, name)
    }

    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            cluster: self.cluster.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

fn found<K>(got: KubernetesResult<Option<K>>) -> Result<Found<K>, Error> {
    match got {
        Ok(Some(object)) => Ok(Found::Object(Box::new(object))),
        Ok(None) => Ok(Found::Missing),
        Err(KubernetesError::Unreadable { message, .. }) => Ok(Found::Unreadable(message)),
        Err(error) => Err(error.into()),
    }
}

impl<C: Cluster, O: Objects, Q: Queues> Facts for Reader<'_, C, O, Q> {
    type Error = Error;

    fn system_namespace(&self) -> &str {
        self.reconciler.settings.system_namespace
    }

    async fn stack(&self, namespace: &str, name: &str) -> Result<Found<Stack>, Error> {
        self.get(namespace, name).await
    }

    async fn update(&self, namespace: &str, name: &str) -> Result<Found<Update>, Error> {
        self.get(namespace, name).await
    }

    async fn program(&self, namespace: &str, name: &str) -> Result<Found<Program>, Error> {
        self.get(namespace, name).await
    }

    async fn flux(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<Found<Source>, Error> {
        match self.reconciler.cluster.get_dynamic(&self.object(api_version, kind, namespace, name)).await {
            // A kind that is not served, or that the installation may not read.
            Err(KubernetesError::Permanent { message, .. }) => Ok(Found::Unreadable(message)),
            got => found(got.map(|object| object.as_ref().map(Source::from_object))),
        }
    }

    async fn outcome(&self, update: &Update) -> Result<Option<RunOutcome>, Error> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner).push(update.clone());
        // The Update's status is a view for people. What happened is in the bucket.
        let key = keys::run(self.cluster, &uid_of(update)).outcome();
        Ok(self.reconciler.objects.read(&key).await?.map(run_outcome))
    }

    async fn fetch(&self, stack: &CoreStack, source: &SourceRef, subject: &str) -> Result<Option<Fetch>, Error> {
        let outcome = self.reconciler.fetch_outcome(&self.key(stack, source), subject).await?;
        Ok(outcome.map(|outcome| Fetch {
            at: outcome.rests_until(),
            artifact: outcome.artifact.map(|artifact| (artifact.revision, artifact.digest)),
            failure: outcome.failure.map(|failure| (failure.terminal, failure.message)),
            failures: outcome.failures,
        }))
    }

    /// The state of the stored tree, for a run.
    async fn tree(
        &self,
        stack: &CoreStack,
        source: &SourceRef,
        digest: &ArtifactDigest,
        now: Timestamp,
    ) -> Result<Option<TreeState>, Error> {
        let key = keys::tree(&self.key(stack, source), digest).manifest();
        let Some((document, modified)) = self.reconciler.objects.get_modified(&key).await? else { return Ok(None) };
        // An old tree may be about to be deleted: it counts as not stored, and the fetcher stores
        // it again.
        if !self.reconciler.settings.retention.is_usable(modified, now) {
            return Ok(None);
        }
        let unreadable =
            |error: InvalidManifest| AwsError::Permanent { call: format!("s3:GetObject {key}"), message: error.to_string() };
        let manifest = Manifest::parse(&document).map_err(unreadable)?;
        let dir = source.dir();
        let project = if manifest.directory(dir).is_none() {
            Project::NoDirectory
        } else if PROJECT_FILES.iter().any(|file| manifest.digest_of(&format!("./{dir}/{file}")).is_some()) {
            Project::There
        } else {
            Project::NoFile
        };
        let paths = paths(stack);
        let scope = (!paths.is_empty()).then(|| {
            let digests: Vec<&str> = paths
                .iter()
                .flat_map(|path| [path.as_str(), manifest.digest_of(path).map_or("absent", Digest::as_str)])
                .collect();
            hash(&digests)
        });
        Ok(Some(TreeState::Stored { project, scope }))
    }

    async fn guard(&self) -> Result<Guard, Error> {
        let mut found = [None, None];
        for (kind, found) in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"].into_iter().zip(&mut found) {
            match self.reconciler.cluster.get_dynamic(&self.object("admissionregistration.k8s.io/v1", kind, "", POLICY)).await {
                // Kubernetes before 1.30, or no right to read it.
                Err(KubernetesError::Permanent { message, .. }) => {
                    return Ok(Guard::Broken(format!("{kind} {POLICY:?} cannot be read: {message}")));
                }
                Err(KubernetesError::Unreadable { message, .. }) => return Ok(Guard::Broken(message)),
                got => *found = got?,
            }
        }
        let [policy, binding] = found;
        Ok(driftless_api::guard(policy.as_ref(), binding.as_ref()))
    }

    async fn governance(&self, namespace: &str) -> Result<Governance, Error> {
        let read = driftless_kubernetes::rules_of(self.reconciler.cluster, PLAN_POLICIES, self.cluster, namespace).await?;
        Ok(driftless_api::governance(read))
    }

    async fn planned(&self, stack: &CoreStack, hash: &PlanHash) -> Result<Option<PlannedChanges>, Error> {
        Ok(self.reconciler.objects.read(&keys::plan(self.cluster, &stack.uid, hash)).await?.map(|record| record.plan))
    }

    async fn inputs(&self, stack: &CoreStack) -> Result<Option<Compared>, Error> {
        let seen = self.reconciler.objects.read(&keys::inputs(self.cluster, &stack.uid)).await?;
        Ok(seen.map(|seen| Compared { digest: seen.digest, at: seen.at, waits_for: seen.waits_for }))
    }
}

fn run_outcome(outcome: Outcome) -> RunOutcome {
    let failure = match outcome.verdict {
        Verdict::Succeeded {} => None,
        Verdict::Failed { reason, message, .. } => Some((Some(reason), message)),
        Verdict::Aborted { message } => Some((None, message)),
    };
    let Outcome { outputs, permalink, inputs, operated, started_at, drift, plan, platform_failure, .. } = outcome;
    let count =
        |(operation, count): (String, u64)| Some((ChangeKind::of_step(&operation)?, u32::try_from(count).unwrap_or(u32::MAX)));
    let is_preview = outcome.preview && drift.is_none() && plan.is_none();
    let previewed = is_preview
        .then(|| Previewed { counts: outcome.changes.into_iter().filter_map(count).collect(), first: outcome.would_change });
    RunOutcome {
        started: started_at.is_some(),
        operated: operated.unwrap_or(started_at.is_some()),
        drift,
        previewed,
        plan: plan.map(Box::new),
        outputs,
        project: outcome.project.map(|project| (project.name, project.runtime)),
        permalink,
        inputs,
        ..RunOutcome::new(failure, platform_failure)
    }
}
