use driftless_core::{
    self as core, EmbeddedMetadata, FieldOwner, NewUpdate, Operation, PlanHash, Purpose, Run, RunTerms, Template, Uid,
    run::{UpdateFacts, WaitReason},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference, Time};
use kube::{Resource, ResourceExt as _, core::ObjectMeta};

use super::workspace::{labels, over, templated, tree};
use crate::{
    DriftlessUpdate, DriftlessUpdateStatus, LogLink, Stack, StackReference, Update, UpdateProgress, UpdateSpec, UpdateStatus,
    Workspace,
    condition::{cut, set_condition},
    finalizer, names,
};

/// Returns whether an owner is a Stack.
#[must_use]
pub fn is_stack(owner: &OwnerReference) -> bool {
    owner.kind == "Stack" && owner.api_version.starts_with("pulumi.com/")
}

/// The field of a Stack with the template of its Updates.
const TEMPLATE: &str = "spec.updateTemplate";

/// Why a Stack's `updateTemplate` is refused, as a message.
pub(super) fn update_refused(stack: &Stack) -> Option<String> {
    match core::merged(TEMPLATE, &UpdateSpec::default(), stack.spec.update_template.as_ref()) {
        Ok((_, spec)) => core::update_refused(TEMPLATE, spec.operation.as_deref(), spec.ttl_after_completed.as_deref()),
        Err(words) => Some(words),
    }
}

/// Why the runs of a guarded Stack cannot have a plan, as a message.
pub(super) fn unplannable(stack: &Stack) -> Option<String> {
    let (_, spec) = update_templated(stack, &UpdateSpec::default());
    core::unplannable(TEMPLATE, spec.operation.as_deref())
}

/// Returns whether updates of a Stack refresh first, as its spec or its template says, and whether
/// its template makes another operation of them.
pub(super) fn forward(stack: &Stack) -> (bool, bool) {
    let up = Operation::Up.as_str();
    let spec = UpdateSpec { operation: Some(up.into()), refresh: stack.spec.refresh, ..UpdateSpec::default() };
    let (_, templated) = update_templated(stack, &spec);
    (templated.refresh == Some(true), templated.operation.as_deref() != Some(up))
}

/// Merges the Stack's template over a spec. A template that cannot be merged was refused earlier.
fn update_templated(stack: &Stack, spec: &UpdateSpec) -> (EmbeddedMetadata, UpdateSpec) {
    core::merged(TEMPLATE, spec, stack.spec.update_template.as_ref())
        .unwrap_or_else(|_| (EmbeddedMetadata::default(), spec.clone()))
}

/// The clients that own fields of a Stack.
fn owners(stack: &Stack) -> Vec<FieldOwner> {
    let owner = |entry: &ManagedFieldsEntry| {
        let fields = &entry.fields_v1.as_ref()?.0;
        let annotations = fields["f:metadata"]["f:annotations"].as_object().into_iter().flat_map(serde_json::Map::keys);
        Some(FieldOwner {
            name: entry.manager.clone()?,
            changed: entry.time.as_ref().map(|time| time.0),
            spec: fields["f:spec"].is_object(),
            annotations: annotations.filter_map(|field| field.strip_prefix("f:")).map(ToOwned::to_owned).collect(),
        })
    };
    stack.metadata.managed_fields.iter().flatten().filter_map(owner).collect()
}

/// The fields of an Update that PKO does not have.
fn driftless(stack: &Stack, new: &NewUpdate, terms: &RunTerms) -> DriftlessUpdate {
    DriftlessUpdate {
        adopt: terms.adopts.then_some(true),
        commit: Some(new.current.commit.to_string()),
        expect_no_refresh_changes: terms.expect_no_refresh_changes.then_some(true),
        outputs: if terms.writes_outputs { stack.outputs().to_vec() } else { Vec::new() },
        plan: terms.plan.as_ref().map(ToString::to_string),
        preview_only: terms.preview_only.then_some(true),
        propose: terms.proposes.then_some(true),
        reconcile_request: Some(new.current.reconcile_request.clone()),
        requested_by: new.asked.by(&owners(stack), stack.annotations()),
        seal: terms.seals.then_some(true),
        stack_generation: Some(new.current.generation),
        tree: new.tree.as_ref().map(tree),
        // The spec of this generation of the Stack, whatever happens to the Workspace later.
        workspace: serde_json::to_value(templated(stack, &new.workspace).spec).ok(),
        ..DriftlessUpdate::default()
    }
}

/// The Update of a Stack on these terms, with its template merged over it.
fn of_terms(stack: &Stack, new: &NewUpdate, terms: &RunTerms) -> Update {
    let spec = UpdateSpec {
        driftless: Some(driftless(stack, new, terms)),
        message: Some(new.message.clone()),
        operation: Some(terms.operation.as_str().into()),
        refresh: terms.refresh,
        run_program: terms.run_program,
        stack_name: Some(new.workspace.stack.clone()),
        target: new.targets.clone(),
        target_dependents: terms.target_dependents,
        ttl_after_completed: Some("24h".into()),
        workspace_name: Some(stack.name_any()),
        ..UpdateSpec::default()
    };
    let (metadata, templated) = update_templated(stack, &spec);
    // The template is a part of it already. A run that fixes drift refreshes whatever the template
    // says.
    let refresh = spec.refresh.or(templated.refresh);
    let spec = match terms.template {
        Template::Metadata => spec,
        Template::AllButOperation => UpdateSpec { driftless: spec.driftless, operation: spec.operation, refresh, ..templated },
        Template::All => UpdateSpec { driftless: spec.driftless, refresh, ..templated },
    };
    let mut update = Update::new(&new.current.name, spec);
    let text = |(name, value): (&str, String)| (name.to_owned(), value);
    let capacity = terms.capacity.clone().map(|capacity| (names::CAPACITY, capacity));
    let plan = terms.plan.as_ref().map(|plan| (names::PLAN, plan.to_string()));
    let annotations = over(metadata.annotations, capacity.into_iter().chain(plan).map(text).collect());
    let owner = stack.owner_ref(&()).map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner });
    update.metadata = ObjectMeta {
        namespace: stack.namespace(),
        labels: Some(over(metadata.labels, labels(stack))),
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
        finalizers: Some(vec![names::FINALIZER.to_owned()]),
        owner_references: Some(owner.into_iter().collect()),
        ..update.metadata
    };
    update
}

/// The terms of an Update of a Stack.
fn terms(stack: &Stack, new: &NewUpdate, purpose: Purpose) -> RunTerms {
    let annotations = core::Annotations(stack.annotations());
    // A preview for a pull request has the flags of the run after the merge.
    let is_plan = purpose == Purpose::Run && annotations.pull_request_of().is_some() && new.operation == Operation::Preview;
    let purpose = if is_plan { Purpose::Proposal } else { purpose };
    new.terms(purpose, stack.spec.destroy_on_finalize == Some(true), annotations)
}

impl UpdateSpec {
    /// Returns whether the run reads only: a preview or a drift check.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.driftless.as_ref().and_then(|ours| ours.preview_only) == Some(true)
            || self.operation.as_deref() == Some(core::Operation::Preview.as_str())
    }

    /// Returns whether the run makes the plan of a guarded Stack, and changes nothing.
    #[must_use]
    pub fn is_proposal(&self) -> bool {
        self.changes_nothing() && self.driftless.as_ref().and_then(|ours| ours.propose) == Some(true)
    }

    /// The approved plan that the run applies.
    #[must_use]
    pub fn plan(&self) -> Option<PlanHash> {
        PlanHash::parse(self.driftless.as_ref()?.plan.as_deref()?)
    }
}

impl Update {
    /// The Update of a Stack that runs `new` with a snapshot of `workspace`.
    #[must_use]
    pub fn of_stack(stack: &Stack, workspace: &Workspace, new: &NewUpdate) -> Self {
        let mut update = of_terms(stack, new, &terms(stack, new, Purpose::Run));
        update.owner_references_mut().splice(0..0, workspace.controller_owner_ref(&()));
        update
    }

    /// The Update of a Stack's proposal.
    #[must_use]
    pub fn of_proposal(stack: &Stack, new: &NewUpdate) -> Self {
        let mut update = of_terms(stack, new, &terms(stack, new, Purpose::Proposal));
        update.labels_mut().insert(names::PLAN.to_owned(), String::new());
        update
    }

    /// The Update of a Stack's drift check.
    #[must_use]
    pub fn of_check(stack: &Stack, new: &NewUpdate) -> Self {
        let mut update = of_terms(stack, new, &terms(stack, new, Purpose::Check));
        update.labels_mut().insert(names::DRIFT_CHECK.to_owned(), "true".to_owned());
        update
    }

    /// The same Update of a Stack in the system namespace, for a Stack in a terminating namespace.
    /// Kubernetes has no owners across namespaces.
    #[must_use]
    pub fn elsewhere(self, stack: &Stack, system_namespace: &str) -> Self {
        let mut update = self;
        let namespace = stack.namespace().unwrap_or_default();
        update.labels_mut().insert(names::STACK_NAMESPACE.to_owned(), namespace.clone());
        update.metadata.namespace = Some(system_namespace.to_owned());
        update.metadata.owner_references = None;
        let reference = StackReference { name: stack.name_any(), namespace, uid: stack.uid().unwrap_or_default() };
        update.spec.driftless.get_or_insert_default().stack = Some(reference);
        update
    }

    /// The Stack that it claims: its owner, or in the system namespace the one in its spec. A user
    /// who may write the Update may write this too, so it counts only after a comparison with the
    /// existing Stack.
    #[must_use]
    pub fn stack(&self, system_namespace: &str) -> Option<StackReference> {
        let namespace = self.namespace().unwrap_or_default();
        if namespace == system_namespace {
            return self.spec.driftless.as_ref()?.stack.clone();
        }
        let owner = self.owner_references().iter().find(|owner| is_stack(owner))?;
        Some(StackReference { name: owner.name.clone(), namespace, uid: owner.uid.clone() })
    }

    /// The facts about its run, if it belongs to the Stack with that uid.
    #[must_use]
    pub fn run_of(&self, stack_uid: &Uid, system_namespace: &str) -> Option<Run> {
        let owned = self.stack(system_namespace).is_some_and(|stack| *stack_uid == *stack.uid);
        let ours = self.spec.driftless.as_ref().filter(|_| owned)?;
        let operation = Operation::parse(self.spec.operation.as_deref()?)?;
        Some(Run {
            namespace: self.namespace().unwrap_or_default(),
            name: self.name_any(),
            generation: ours.stack_generation?,
            reconcile_request: ours.reconcile_request.clone().unwrap_or_default(),
            commit: ours.commit.as_ref()?.into(),
            operation,
            scope: ours.tree.as_ref().and_then(|tree| tree.scope.clone()),
            refresh: self.spec.refresh == Some(true),
            // A template may have written the mark.
            adopts: operation == Operation::Refresh && ours.adopt == Some(true),
            plan: match &ours.plan {
                Some(text) => Some(PlanHash::parse(text)?),
                None => None,
            },
        })
    }

    /// The reason and the message of its wait; `None` for the reason of another release. This is a
    /// view for people, which only decides what a Stack shows.
    #[must_use]
    pub fn waits_for(&self) -> Option<(Option<WaitReason>, &str)> {
        let ours = self.status.as_ref()?.driftless.as_ref()?;
        Some((ours.waiting_reason.as_deref().and_then(WaitReason::parse), ours.waiting_for.as_deref()?))
    }

    /// Returns whether its status has the outcome.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let conditions = self.status.as_ref().map_or(&[][..], |status| &status.conditions);
        conditions.iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
    }

    /// The facts for a decision about it.
    #[must_use]
    pub fn facts(&self, system_namespace: &str, now: Timestamp) -> UpdateFacts {
        let conditions = self.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let complete = conditions.iter().find(|condition| condition.type_ == "Complete" && condition.status == "True");
        let of_stack = self.stack(system_namespace).is_some();
        let finalizer = finalizer::is_on(self);
        let is_ours = |ours: &DriftlessUpdate| if of_stack { ours.stack_generation.is_some() } else { finalizer };
        UpdateFacts {
            age: self.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0)),
            deleting: self.metadata.deletion_timestamp.is_some(),
            finalizer,
            of_stack,
            snapshot: self.spec.driftless.is_some(),
            ours: self.spec.driftless.as_ref().is_some_and(is_ours),
            complete_since: complete.map(|condition| condition.last_transition_time.0),
            ttl: self.spec.ttl_after_completed.as_deref().and_then(core::duration),
            waiting: self.waits_for().and_then(|(reason, _)| reason),
            asks_for_log: self.asks_for_log(now),
            task: self.status.as_ref().is_some_and(|status| status.driftless.as_ref().is_some_and(|ours| ours.task.is_some())),
        }
    }

    /// Sets the waiting reason. Returns `false` if the status is unchanged.
    pub fn set_waiting(&mut self, reason: WaitReason, message: &str, now: Timestamp) -> bool {
        let reason = reason.as_str();
        self.set(
            [("Progressing", "False", reason), ("Failed", "False", "Progressing"), ("Complete", "False", "Progressing")],
            message,
            now,
            |status| {
                let ours = status.driftless.get_or_insert_default();
                ours.waiting_for = Some(cut(message.to_owned()));
                ours.waiting_reason = Some(reason.to_owned());
            },
        )
    }

    /// Sets the task, the address of its log, and the link to it. Returns `false` if the status is
    /// unchanged.
    pub fn set_running(&mut self, task: &str, log: &str, link: Option<LogLink>, now: Timestamp) -> bool {
        self.set(
            [("Progressing", "True", "Progressing"), ("Failed", "False", "Progressing"), ("Complete", "False", "Progressing")],
            "",
            now,
            |status| {
                status.start_time.get_or_insert(Time(now));
                status.driftless = Some(DriftlessUpdateStatus {
                    log: Some(log.to_owned()),
                    log_link: link,
                    task: Some(task.to_owned()),
                    ..DriftlessUpdateStatus::default()
                });
            },
        )
    }

    /// Sets the progress, and the ConfigMap with the log and the link to it, if there is a new one.
    /// Returns `false` if the status is unchanged, or the Update is not running.
    pub fn set_progress(&mut self, progress: UpdateProgress, log: Option<String>, link: Option<LogLink>) -> bool {
        let Some(ours) = self.status.as_mut().and_then(|status| status.driftless.as_mut()) else { return false };
        let log = log.or_else(|| ours.log_config_map.clone());
        let is_same = (ours.progress.as_ref(), &ours.log_config_map) == (Some(&progress), &log) && link.is_none();
        if ours.task.is_none() || is_same {
            return false;
        }
        ours.log_link = link.or_else(|| ours.log_link.take());
        ours.summary = Some(format!("{}/{}", progress.done, progress.planned));
        ours.progress = Some(progress);
        ours.log_config_map = log;
        true
    }

    /// Sets the outcome. `failure` is the reason and Pulumi's message, if it failed. Returns
    /// `false` if the status is unchanged.
    pub fn set_complete(
        &mut self,
        failure: Option<(&str, &str)>,
        now: Timestamp,
        change: impl FnOnce(&mut UpdateStatus),
    ) -> bool {
        let (failed, reason, message) = match failure {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", "UpdateSucceeded", ""),
        };
        self.set(
            [("Progressing", "False", "Complete"), ("Failed", failed, reason), ("Complete", "True", "Updated")],
            message,
            now,
            |status| {
                if let Some(ours) = &mut status.driftless {
                    (ours.waiting_for, ours.waiting_reason, ours.progress, ours.summary) = (None, None, None, None);
                }
                change(status);
            },
        )
    }

    fn set(
        &mut self,
        conditions: [(&str, &str, &str); 3],
        message: &str,
        now: Timestamp,
        change: impl FnOnce(&mut UpdateStatus),
    ) -> bool {
        let before = self.status.clone().unwrap_or_default();
        let generation = self.metadata.generation;
        let mut status = before.clone();
        status.observed_generation = generation;
        status.conditions = conditions
            .into_iter()
            .map(|(type_, is, reason)| {
                let words = if reason == "Progressing" && is == "False" { "" } else { message };
                set_condition((type_, is, reason, words.to_owned()), &before.conditions, generation, now)
            })
            .collect();
        change(&mut status);
        let changed = status != before;
        self.status = Some(status);
        changed
    }
}
