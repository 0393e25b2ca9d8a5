//! The plan of a guarded Stack: what its run is asked for, and the runs by hand that it excludes.

use driftless_api::{PLAN_POLICIES, Stack, Update, uid_of};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Env, LaunchHint, Operation, PlanMode, PlanRequest, RunPack, RunSource, RunSpec, Uid};
use driftless_core::{
    Governance, PlanHash,
    run::{Block, WaitReason},
    unfit_pull_request,
};
use driftless_kubernetes::{Cluster, Pages, Selector};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{Error, Launcher, digest::Key, inputs::Values, request::Request, spec::Prepared};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Adds the plan to the spec of the run.
    pub(crate) async fn request_plan(
        &self,
        request: &Request,
        image: Option<&str>,
        scope: Option<&str>,
        (packs, values): (Vec<RunPack>, Option<&Values>),
        spec: &mut RunSpec,
    ) -> Result<(), Error> {
        let (Some(mode), Some(stack)) = (&request.plan, &request.stack) else { return Ok(()) };
        // In place of its own, a preview for a pull request has the identity of the Stack that
        // applies the plan: the hash is the one after the merge.
        let (of, inputs) = match mode {
            PlanMode::Propose { of: Some(of) } => (of, self.inputs_digest(of, values).await?),
            PlanMode::Propose { of: None } | PlanMode::Apply { .. } => (&stack.uid, spec.inputs.clone()),
        };
        let tree = match &spec.source {
            RunSource::Tree { manifest_sha256, .. } => Some(scope.unwrap_or(manifest_sha256).to_owned()),
            RunSource::Project(_) => None,
        };
        let key = Key::read(self.objects, self.settings).await?;
        let approved = match mode {
            PlanMode::Propose { .. } => None,
            PlanMode::Apply { hash, .. } => Some(hash.clone()),
        };
        spec.plan = Some(PlanRequest {
            key: base16ct::lower::encode_string(&key.digest([b"plan".as_slice(), of.as_str().as_bytes()])),
            binding: binding(&key, (of, inputs), image, &packs, spec),
            tree,
            approved,
            packs,
        });
        Ok(())
    }

    /// The Stack whose plan a Stack previews, if it names one; or why it must not. A recorded run
    /// has the key of one Stack, and makes no plan of another.
    pub(crate) async fn named(
        &self,
        stack: Option<&Stack>,
        recorded: Option<&Request>,
    ) -> Result<Result<Option<Stack>, Block>, Error> {
        let is_same = |named: Option<&Stack>| match recorded.map(|request| &request.plan) {
            Some(Some(PlanMode::Propose { of: Some(of) })) => named.map(uid_of).as_ref() == Some(of),
            _ => true,
        };
        let core = stack.map(driftless_core::Stack::from).filter(|core| !core.deleting);
        let named = match core.as_ref().and_then(|core| Some((core, core.pull_request_of.as_ref()?))) {
            Some((core, name)) => {
                let named = self.cluster.get::<Stack>(&core.namespace, name).await?;
                let why = unfit_pull_request(core, named.as_ref().map(driftless_core::Stack::from).as_ref());
                if let Some(message) = why.filter(|_| is_same(named.as_ref())) {
                    return Ok(Err(Block::Wait { reason: WaitReason::SpecInvalid, message, is_of_inputs: true }));
                }
                named
            }
            None => None,
        };
        Ok(if is_same(named.as_ref()) { Ok(named) } else { Err(Block::Outdated) })
    }

    /// Why a user's Update may not run: it changes the Pulumi stack of a guarded Stack of its
    /// namespace.
    pub(crate) async fn guard_against(
        &self,
        hint: &LaunchHint,
        update: &Update,
        request: &Request,
        prepared: &Prepared,
    ) -> Result<Option<String>, Error> {
        if request.stack.is_some() || update.spec.changes_nothing() {
            return Ok(None);
        }
        let name = update.spec.stack_name.as_deref().unwrap_or_default();
        let project = prepared.project.as_ref().map(|project| project.name.as_str());
        let namespace = update.namespace().unwrap_or_default();
        if let Some(what) = self.demands(&hint.update.cluster, &namespace).await? {
            return Ok(Some(format!(
                "{what} asks for a plan of each change in the namespace, and an Update by hand has none; use a Stack"
            )));
        }
        let mut pages = Pages::<C, Stack>::new(self.cluster, Some(&namespace), Selector::All);
        while let Some(page) = pages.next().await? {
            if let Some(stack) = page.iter().find(|stack| stack.is_guarded() && is_same(stack, name, project)) {
                return Ok(Some(format!(
                    "Stack {:?} requires approvals for this Pulumi stack; change the Stack instead, or have a user with the verb \
                     approve remove its annotation driftless.dev/approval",
                    stack.name_any()
                )));
            }
        }
        Ok(None)
    }

    /// What of the cluster asks for plans in a namespace.
    pub(crate) async fn demands(&self, cluster: &str, namespace: &str) -> Result<Option<String>, Error> {
        let read = driftless_kubernetes::rules_of(self.cluster, PLAN_POLICIES, cluster, namespace).await?;
        let (floor, policies) = match driftless_api::governance(read) {
            Governance::Known { floor, policies } => (floor, policies),
            Governance::Unreadable(why) => return Ok(Some(format!("an unreadable PlanPolicy ({why})"))),
            Governance::Unread => return Ok(None),
        };
        let policy = policies.first().map(|policy| format!("PlanPolicy {:?}", policy.name));
        Ok(policy.or_else(|| floor.map(|_| format!("annotation driftless.dev/approval of Namespace {namespace:?}"))))
    }
}

/// The digest of what a run is asked to do. It is equal for the proposal and for the run that
/// applies it. It is keyed, because it covers secret values.
fn binding(
    key: &Key,
    (stack_uid, inputs): (&Uid, Option<String>),
    image: Option<&str>,
    packs: &[RunPack],
    spec: &RunSpec,
) -> PlanHash {
    // The commit is in variables below the identity. A program that uses it has another plan.
    let env: Vec<&Env> = spec.env.iter().filter(|env| !env.below_identity).collect();
    let operation = if spec.operation == Operation::Preview { Operation::Up } else { spec.operation };
    let (dir, paths) = match &spec.source {
        // Without the program, a destroy depends on no source, which may be gone before the
        // approval.
        RunSource::Tree { .. } if operation == Operation::Destroy && !spec.run_program => (None, None),
        RunSource::Tree { dir, paths, .. } => (Some(dir), Some(paths)),
        RunSource::Project(_) => (None, None),
    };
    let mut flags = json!({
        "operation": operation.as_str(),
        "stack": spec.stack,
        "create": spec.create,
        "secretsProvider": spec.secrets_provider,
        "dir": dir,
        "paths": paths,
        "env": env,
        "files": spec.files,
        "config": spec.config,
        "environments": spec.environments,
        "expectNoChanges": spec.expect_no_changes,
        "refresh": spec.refresh,
        "expectNoRefreshChanges": spec.expect_no_refresh_changes,
        "targets": spec.targets,
        "targetDependents": spec.target_dependents,
        "replace": spec.replace,
        "continueOnError": spec.continue_on_error,
        "remove": spec.remove,
        "runProgram": spec.run_program,
        "inputs": inputs,
        "image": image,
    });
    if !packs.is_empty() {
        flags["policyPacks"] = packs.iter().map(|pack| json!([pack.manifest_sha256, pack.dir])).collect();
    }
    PlanHash::from(key.digest([b"binding".as_slice(), stack_uid.as_str().as_bytes(), flags.to_string().as_bytes()]))
}

/// Returns whether the Stack may be of that Pulumi stack. An unknown project may be any.
fn is_same(stack: &Stack, name: &str, project: Option<&str>) -> bool {
    let theirs = stack.status.as_ref().and_then(|status| status.project_info.as_ref()).map(|project| project.name.as_str());
    let (ours, theirs) = (parts(name, project), parts(&stack.spec.stack, theirs));
    ours.1 == theirs.1 && ours.0.zip(theirs.0).is_none_or(|(ours, theirs)| ours == theirs)
}

/// Project and name of a Pulumi stack.
fn parts<'a>(name: &'a str, project: Option<&'a str>) -> (Option<&'a str>, &'a str) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [_, project, stack] => (Some(project), stack),
        [.., stack] => (project, stack),
        [] => (project, name),
    }
}

#[cfg(test)]
mod tests {
    use driftless_api::{ProjectInfo, StackSpec, StackStatus};

    use super::*;

    #[test]
    fn guarded_stack_excludes_updates_of_its_pulumi_stack_only() {
        let mut stack = Stack::new("shop", StackSpec { stack: "acme/dev".into(), ..StackSpec::default() });
        assert!(is_same(&stack, "dev", Some("shop")) && !is_same(&stack, "prod", Some("shop")));
        let project_info = Some(ProjectInfo { name: "shop".into(), runtime: "yaml".into() });
        stack.status = Some(StackStatus { project_info, ..StackStatus::default() });
        for (name, project, same) in [
            ("dev", Some("shop"), true),
            ("other/dev", Some("shop"), true),
            ("acme/shop/dev", None, true),
            ("dev", None, true),
            ("dev", Some("net"), false),
            ("acme/net/dev", Some("shop"), false),
            ("prod", Some("shop"), false),
        ] {
            assert_eq!(is_same(&stack, name, project), same, "{name} {project:?}");
        }
    }
}
