//! The facts about a Stack that its user may read. What Driftless keeps in S3 is taken from
//! statuses, or recorded as unknown.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use driftless_api::{
    Program, Source, Stack, Update, Workspace,
    facts::{Compared, Facts, Fetch, Found},
};
use driftless_core::{
    ArtifactDigest, FailureReason, Governance, Guard, PlanHash, PlannedChanges, Project, RunOutcome, SourceRef,
    Stack as CoreStack, TreeState, paths,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::{Error, Result, cluster::Cluster, view};

/// A fact that a decision depends on and that only Driftless can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Unknown {
    /// How a run ended: its Update's status is taken for it.
    Outcome,
    /// Whether git has a newer commit: the one that ran last is taken for the newest.
    Git,
    /// How the last fetch of the source ended.
    Fetch,
    /// Whether the tree of the source is stored.
    Tree,
    /// Whether Secrets and ConfigMaps have changed.
    Inputs,
}

impl Unknown {
    /// The fact, and what stands for it.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Outcome => "the recorded outcome of the run is in S3; the status of its Update is used instead",
            Self::Git => "whether git has a newer commit is unknown here; the commit of the last run counts as the newest",
            Self::Fetch => "the result of the last fetch is in S3; the status of the Stack has its message",
            Self::Tree => "whether the source is stored for a run is only known in S3",
            Self::Inputs => "whether a Secret or ConfigMap has changed since the last run is only known in S3",
        }
    }
}

/// Reads objects with the user's rights.
pub struct Reader<'a> {
    cluster: &'a Cluster,
    system_namespace: &'a str,
    unknown: Mutex<BTreeSet<Unknown>>,
}

impl<'a> Reader<'a> {
    /// A reader of this cluster.
    #[must_use]
    pub fn new(cluster: &'a Cluster, system_namespace: &'a str) -> Self {
        Self { cluster, system_namespace, unknown: Mutex::default() }
    }

    /// The facts that were asked for and are unknown.
    #[must_use]
    pub fn unknown(self) -> Vec<Unknown> {
        self.unknown.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
    }

    fn lacks(&self, fact: Unknown) {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).insert(fact);
    }

    /// The digest of the tree that the Stack's last run used, and the digest of its paths.
    async fn last_tree(&self, stack: &CoreStack) -> Option<(ArtifactDigest, Option<String>)> {
        // A Workspace that the user may not read leaves the tree unknown.
        let workspace = self.cluster.find::<Workspace>(&stack.namespace, &stack.name).await;
        let tree = workspace.ok().flatten().and_then(|workspace| workspace.spec.driftless?.tree);
        tree.and_then(|tree| Some((tree.digest?.into(), tree.scope)))
    }
}

fn found<T>(got: Option<T>) -> Found<T> {
    got.map_or(Found::Missing, |object| Found::Object(Box::new(object)))
}

impl Facts for Reader<'_> {
    type Error = Error;

    fn system_namespace(&self) -> &str {
        self.system_namespace
    }

    async fn stack(&self, namespace: &str, name: &str) -> Result<Found<Stack>> {
        Ok(found(self.cluster.find(namespace, name).await?))
    }

    async fn update(&self, namespace: &str, name: &str) -> Result<Found<Update>> {
        Ok(found(self.cluster.find(namespace, name).await?))
    }

    async fn program(&self, namespace: &str, name: &str) -> Result<Found<Program>> {
        Ok(found(self.cluster.find(namespace, name).await?))
    }

    async fn flux(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<Found<Source>> {
        // A kind that this user may not read may be one that Driftless reads.
        let object = self.cluster.find_dynamic(api_version, kind, namespace, name).await?;
        Ok(found(object.as_ref().map(Source::from_object)))
    }

    async fn outcome(&self, update: &Update) -> Result<Option<RunOutcome>> {
        if !update.is_complete() {
            return Ok(None);
        }
        self.lacks(Unknown::Outcome);
        let status = update.status.clone().unwrap_or_default();
        let failure = view::condition(update, "Failed").filter(|failed| failed.status == "True");
        let failure = failure.map(|failed| (FailureReason::parse(&failed.reason), failed.message.clone()));
        let platform_failure = matches!(failure, Some((Some(FailureReason::PlatformFailure), _)));
        let started = status.start_time.is_some();
        Ok(Some(RunOutcome {
            started,
            operated: started,
            project: status.project_info.map(|project| (project.name, project.runtime)),
            permalink: status.permalink,
            ..RunOutcome::new(failure, platform_failure)
        }))
    }

    async fn fetch(&self, stack: &CoreStack, source: &SourceRef, subject: &str) -> Result<Option<Fetch>> {
        let SourceRef::Git(git) = source else {
            self.lacks(Unknown::Fetch);
            return Ok(None);
        };
        self.lacks(if subject == git.fingerprint { Unknown::Git } else { Unknown::Fetch });
        let last = stack.status.last_update.as_ref().map(|last| last.last_attempted_commit.clone());
        let Some(commit) = last.filter(|commit| subject == git.fingerprint && !commit.is_empty()) else { return Ok(None) };
        let Some((digest, _)) = self.last_tree(stack).await else { return Ok(None) };
        let at = stack.status.last_update.as_ref().and_then(|last| last.last_resync_time).unwrap_or_default();
        Ok(Some(Fetch { artifact: Some((commit, digest)), at, ..Fetch::default() }))
    }

    async fn tree(&self, stack: &CoreStack, _: &SourceRef, digest: &ArtifactDigest, _: Timestamp) -> Result<Option<TreeState>> {
        match self.last_tree(stack).await {
            Some((last, scope)) if last == *digest => {
                let scope = scope.filter(|_| !paths(stack).is_empty());
                Ok(Some(TreeState::Stored { project: Project::There, scope }))
            }
            _ => {
                self.lacks(Unknown::Tree);
                Ok(None)
            }
        }
    }

    async fn guard(&self) -> Result<Guard> {
        // A team may rarely read the policies of its cluster. The Stack's condition names a missing
        // one.
        Ok(Guard::Intact)
    }

    async fn governance(&self, _: &str) -> Result<Governance> {
        // A team may rarely read the policies of its cluster. The Stack's condition has what they
        // say.
        Ok(Governance::Unread)
    }

    async fn planned(&self, _: &CoreStack, _: &PlanHash) -> Result<Option<PlannedChanges>> {
        Ok(None)
    }

    async fn inputs(&self, _: &CoreStack) -> Result<Option<Compared>> {
        self.lacks(Unknown::Inputs);
        Ok(None)
    }
}
