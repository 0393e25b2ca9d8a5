//! Checks a Workspace when it is created, before its first run: its status says whether runs can
//! use it.

use driftless_api::{Update, Workspace};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{FetchedArtifact, LaunchHint};
use driftless_core::{OwnSourceState, run::WaitReason};
use driftless_kubernetes::{Cluster, Pages, Selector};
use kube::ResourceExt as _;

use crate::{Error, Launcher, Stop, WAIT_HOPS, WAIT_SECONDS, facts::Run, identity, requeue_in, spec};

/// The number of waiting Updates of a source that are woken at once. The sweep hints the others.
const WOKEN: usize = 50;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Reconciles the Workspace that the reconciler applied for the Update of a Stack, at its first
    /// launch. No run waits for that, and the sweep finds a Workspace that was not checked.
    pub(crate) async fn reconcile_workspace_of_stack(&self, hint: &LaunchHint, run: &Run) {
        let Some(name) = run.update.spec.workspace_name.as_deref() else { return };
        if run.stack.is_none() || run.update.waits_for().is_some() {
            return;
        }
        let key = hint.update.sibling("auto.pulumi.com/v1alpha1", "Workspace", name);
        let hint = LaunchHint { update: key, ..hint.clone() };
        if let Err(error) = self.reconcile_workspace_if(&hint, Workspace::needs_check).await {
            tracing::warn!(workspace = %hint.update, %error, "cannot check the Workspace of a Stack; the sweep hints it");
        }
    }

    /// Reconciles a Workspace. A transient cause is repeated by the sweep and by the hint that
    /// follows the fetcher's answer.
    pub(crate) async fn reconcile_workspace(&self, hint: &LaunchHint) -> Result<(), Error> {
        self.reconcile_workspace_if(hint, |workspace| workspace.metadata.deletion_timestamp.is_none()).await
    }

    async fn reconcile_workspace_if(&self, hint: &LaunchHint, is_due: impl FnOnce(&Workspace) -> bool) -> Result<(), Error> {
        let key = &hint.update;
        let workspace = self.cluster.get::<Workspace>(&key.namespace, &key.name).await?;
        let Some(mut workspace) = workspace.filter(is_due) else { return Ok(()) };
        let (definition, source) = match self.check_workspace(hint, &workspace).await {
            Ok((definition, source)) => (Ok(definition), source),
            Err(Stop::Wait(reason, message)) => (Err((reason, message)), None),
            Err(Stop::Fail(error)) => return Err(error),
        };
        let lacks_account =
            matches!(definition, Err((WaitReason::ServiceAccountNotFound | WaitReason::ServiceAccountForbidden, _)));
        let lacks_definition = matches!(definition, Err((WaitReason::TaskNotStarted | WaitReason::TaskRefused, _)));
        let (ready, passes) = match (&definition, &source) {
            (Err((reason, message)), _) => (Err((*reason, message.as_str())), lacks_account || lacks_definition),
            (Ok(_), Some(OwnSourceState::Fetching(words))) => (Err((WaitReason::SourceNotFetched, words.as_str())), true),
            (Ok(_), Some(OwnSourceState::Failed { words, terminal })) => {
                (Err((WaitReason::SourceUnavailable, words.as_str())), !terminal)
            }
            (Ok(definition), Some(OwnSourceState::There(_)) | None) => (Ok(definition.as_str()), false),
        };
        let changed = workspace.set_ready(ready, passes, self.now);
        if changed {
            self.cluster.replace_status(&workspace).await?;
        }
        match source {
            Some(OwnSourceState::There(_)) => self.wake_updates_of_source(hint).await?,
            Some(OwnSourceState::Failed { .. }) if changed => self.wake_updates_of_source(hint).await?,
            _ => {}
        }
        if lacks_account && hint.hops < WAIT_HOPS { requeue_in(self.queues, hint, WAIT_SECONDS).await } else { Ok(()) }
    }

    /// The task definition of its runs, and the state of its own source, if it has one; or why it
    /// can have no runs.
    async fn check_workspace(
        &self,
        hint: &LaunchHint,
        workspace: &Workspace,
    ) -> Result<(String, Option<OwnSourceState<FetchedArtifact>>), Stop> {
        let own = workspace.own_source().map_err(Stop::invalid)?;
        let (spec, _) = spec::runnable(workspace.clone());
        let task = spec.task("spec");
        self.settings.pod_fields.check(&task.pod_only()).map_err(Stop::invalid)?;
        let shape = task.shape(self.settings.default_size).map_err(Stop::invalid)?;
        let mounted = task.mounted_files().map_err(Stop::invalid)?;
        identity::account(self.cluster, &hint.update.namespace, &spec, &mounted).await?;
        let definition = self.definition(&self.settings.images.default, shape).await?;
        let source = match own {
            Some(own) => Some(self.own_source(&hint.update, hint.hops, &own, None).await?),
            None => None,
        };
        Ok((definition, source))
    }

    /// Hints the Updates that wait for the source.
    async fn wake_updates_of_source(&self, hint: &LaunchHint) -> Result<(), Error> {
        let key = &hint.update;
        let selector = format!("spec.workspaceName={}", key.name);
        let mut pages = Pages::<_, Update>::new(self.cluster, Some(&key.namespace), Selector::Fields(&selector));
        let mut woken = 0;
        // Any user may have written the status, but it only leads to a reconciliation.
        let waits = |update: &Update| {
            let reason = update.waits_for().and_then(|(reason, _)| reason);
            matches!(reason, Some(WaitReason::SourceNotFetched | WaitReason::SourceUnavailable)) && !update.is_complete()
        };
        while let Some(page) = pages.next().await? {
            for update in page.iter().filter(|update| waits(update)) {
                let update = key.sibling("auto.pulumi.com/v1alpha1", "Update", &update.name_any());
                let Some(launch) = LaunchHint::after(hint.hops, update).filter(|_| woken < WOKEN) else { return Ok(()) };
                self.queues.launch(&launch, 0).await?;
                woken += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use driftless_contract::{ObjectKey, VERSION};
    use driftless_testkit::CLUSTER;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{quiet, reconcile};

    /// The status of a Workspace with that spec: the conditions with their reasons and messages,
    /// and its task definition.
    fn status(spec: &Value, owner: &str) -> (Vec<[String; 4]>, Option<String>) {
        let world = quiet();
        let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": owner, "name": "s", "uid": "uid" });
        let metadata = json!({ "namespace": "n", "name": "w", "ownerReferences": [owner] });
        let object = json!({ "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "metadata": metadata, "spec": spec });
        world.insert(object);
        let [api_version, kind, namespace, name] = ["auto.pulumi.com/v1alpha1", "Workspace", "n", "w"].map(String::from);
        let key = ObjectKey { cluster: CLUSTER.into(), api_version, kind, namespace, name };
        let hint = LaunchHint { version: VERSION, update: key.clone(), hops: 0 };
        reconcile(&world, &hint);
        let found = world.object(&key).unwrap();
        reconcile(&world, &hint);
        assert_eq!(world.object(&key).unwrap(), found, "it is written once");
        let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let conditions = found["status"]["conditions"].as_array().unwrap().iter();
        let conditions = conditions.map(|condition| ["type", "status", "reason", "message"].map(|field| text(condition, field)));
        (conditions.collect(), found["status"]["driftless"]["taskDefinition"].as_str().map(Into::into))
    }

    #[test]
    fn workspace_status_names_its_task_definition() {
        let project = json!({ "name": "shop", "runtime": "yaml" });
        let tree = json!({ "tree": { "digest": "sha256:1" } });
        for (spec, owner) in [
            (json!({ "projectInfo": project }), "Other"),
            (json!({ "driftless": tree, "git": { "url": "u" } }), "Other"),
            (json!({ "flux": { "url": "u" } }), "Stack"),
        ] {
            let (conditions, definition) = status(&spec, owner);
            assert_eq!(conditions, [["Ready", "True", "Succeeded", ""].map(String::from)], "{spec}");
            assert!(definition.unwrap().contains("task-definition/driftless-"));
        }
    }

    #[test]
    fn invalid_workspace_reports_its_cause() {
        let project = json!({ "name": "shop", "runtime": "yaml" });
        let with = |fields: Value| driftless_core::merge(json!({ "projectInfo": project }), &fields);
        for (spec, reason, words, stalled) in [
            (json!({}), "SpecInvalid", "no source; set one of spec.git", true),
            (json!({ "git": { "ref": "v1" } }), "SpecInvalid", "spec.git.url is missing", true),
            (json!({ "git": { "url": "u" } }), "SourceNotFetched", "fetching spec.git at HEAD", false),
            (json!({ "git": { "url": "u", "ref": "v1" } }), "SourceNotFetched", "fetching spec.git at v1", false),
            (with(json!({ "securityProfile": "none" })), "SpecInvalid", "spec.securityProfile is \"none\"", true),
            (with(json!({ "resources": { "limits": { "cpu": "99" } } })), "SpecInvalid", "spec.resources", true),
            (with(json!({ "serviceAccountName": "gone" })), "ServiceAccountNotFound", "\"gone\" not found", false),
        ] {
            let (conditions, definition) = status(&spec, "Other");
            assert_eq!(definition, None);
            let types: Vec<_> = conditions.iter().map(|[kind, is, ..]| (kind.as_str(), is.as_str())).collect();
            let expected = if stalled { &[("Ready", "False"), ("Stalled", "True")][..] } else { &[("Ready", "False")] };
            assert_eq!(types, expected);
            assert!(conditions.iter().all(|[_, _, is, said]| is == reason && said.contains(words)), "{conditions:?}");
        }
    }
}
