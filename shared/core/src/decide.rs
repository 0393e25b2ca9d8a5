mod checks;
mod notes;
mod plans;

pub use notes::frequent_resync;

use jiff::{SignedDuration, Timestamp};
use notes::notes;

use crate::{
    ArtifactDigest, CurrentUpdate, Effect, EventReason, EventType, Expiry, LastUpdate, LastUpdateState, NewTree, NewUpdate,
    Operation, Plan, Project, Proposal, Readiness, Revision, Run, RunState, Snapshot, SourceRef, Stack, StackReason, StackStatus,
    Sync, TreeState, Why, Workspace, apply_name,
    approval::{GUARD_SECONDS, guard},
    drift,
    finalize::{Finalize, finalize},
    is_synced,
    life::{Life, life},
    names::update_name,
    observe, paths, prerequisites,
    pull_request::approve_early,
    retry::{self, Retry},
    run::UpdateFacts,
    source::{self, Resolved, SOURCE_RETRY_SECONDS},
    synced::go_duration,
    unfit_pull_request, validate, workspace,
};

/// A Stack that succeeds wakes its dependents. This period repairs the loss of that hint.
const PREREQUISITE_SECONDS: i64 = 60;

/// The API server may refuse the deletion of a Stack whose TTL has ended: another try comes after
/// this time.
const DELETION_SECONDS: i64 = 600;

/// The API server may refuse the Update of a run, and sends no event when it would take it. Another
/// try comes after this time.
pub const REFUSED_SECONDS: u16 = 120;

/// A Stack whose run ends wakes those that wait for it before they run with changed inputs. This
/// period repairs the loss of that hint.
const INPUTS_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// A change of it requests a reconciliation.
const RECONCILIATION_REQUEST: &str = "the annotation pulumi.com/reconciliation-request";

/// Decides what a reconciliation of a Stack does.
#[must_use]
pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let stack = &snapshot.stack;
    if stack.deleting && !stack.finalizer {
        return Plan { status: stack.status.clone(), effects: Vec::new(), requeue_at: None };
    }
    let mut reconciliation = Reconciliation::at(snapshot, now);
    reconciliation.absorb_check();
    reconciliation.absorb_proposal();
    let absorbed = reconciliation.absorb();
    reconciliation.sort_plan();
    let readiness = absorbed.unwrap_or_else(|| reconciliation.proceed());
    reconciliation.end(readiness)
}

/// A reconciliation in progress: the Stack with its new status, and the effects so far.
struct Reconciliation<'a> {
    snapshot: &'a Snapshot,
    /// With the new status.
    stack: Stack,
    effects: Vec<Effect>,
    requeue_at: Option<Timestamp>,
    /// When its TTL requires another reconciliation.
    ttl_at: Option<Timestamp>,
    /// A hint is expected before the requeue, and the sweep repairs its loss.
    is_answered: bool,
    now: Timestamp,
}

impl<'a> Reconciliation<'a> {
    fn at(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let mut stack = snapshot.stack.clone();
        stack.status.observed_generation = Some(stack.generation);
        stack.status.waits_for = None;
        stack.status.suspended = stack.suspended;
        guard(&mut stack, snapshot);
        approve_early(&mut stack, &snapshot.guard, now);
        let effects = if stack.finalizer { Vec::new() } else { vec![Effect::AddFinalizer] };
        Self { snapshot, stack, effects, requeue_at: None, ttl_at: None, is_answered: false, now }
    }

    fn end(mut self, readiness: Readiness) -> Plan {
        // The end of a run leads to a reconciliation.
        if let Some(at) = self.ttl_at.filter(|_| self.stack.status.current_update.is_none()) {
            self.requeue_by(at);
        }
        self.end_plan();
        let before = &self.snapshot.stack.status;
        // Kubernetes stores whole seconds. Without rounding, the time that is read back would
        // differ and each reconciliation would requeue.
        self.requeue_at = self
            .requeue_at
            .map(|at| Timestamp::from_second(at.as_second() + i64::from(at.subsec_nanosecond() > 0)).unwrap_or(at));
        // A requeue for that time was already sent, unless the time has passed: then this is the
        // reconciliation that it led to.
        let requeue_at =
            self.requeue_at.filter(|at| !self.is_answered && (before.next_reconciliation != Some(*at) || *at <= self.now));
        let status = StackStatus { readiness: Some(readiness), next_reconciliation: self.requeue_at, ..self.stack.status };
        Plan { status, effects: self.effects, requeue_at }
    }

    fn in_seconds(&self, seconds: i64) -> Timestamp {
        // A requeue for that time or earlier is enough. Otherwise each reconciliation would send
        // another one.
        let fresh = self.now + SignedDuration::from_secs(seconds);
        self.snapshot.stack.status.next_reconciliation.filter(|at| *at > self.now && *at <= fresh).unwrap_or(fresh)
    }

    /// Takes over the state of the current Update. Returns the condition if nothing else can be
    /// done now.
    fn absorb(&mut self) -> Option<Readiness> {
        match &self.snapshot.run {
            // A missing Update is created below. It has the same name, because no run was recorded
            // in between.
            RunState::None | RunState::Missing => {
                self.stack.status.current_update = None;
                None
            }
            RunState::Foreign => {
                self.requeue_at = Some(self.in_seconds(SOURCE_RETRY_SECONDS));
                let name = self.stack.status.current_update.as_ref().map_or("", |current| &current.name);
                let message = format!("Update {name:?} does not belong to this Stack or cannot be read; delete it");
                Some(Readiness::stalled(StackReason::UpdateConflict, message))
            }
            RunState::Live(run, update, waiting) => {
                // Taken from the Update itself: another reconciliation may have created it from an
                // older or a newer spec.
                self.stack.status.current_update = Some(CurrentUpdate {
                    name: run.name.clone(),
                    generation: run.generation,
                    reconcile_request: run.reconcile_request.clone(),
                    commit: run.commit.clone(),
                });
                self.effects.extend(launch(&self.snapshot.stack, run, update));
                Some(waiting.clone().unwrap_or_else(|| Readiness::processing("stack is being processed")))
            }
            RunState::Ended(run, outcome) => {
                let (status, mut event) = observe(&self.stack, run, outcome, self.now);
                self.stack.status = status;
                self.judge_preview(&mut event);
                self.effects.push(event);
                if outcome.succeeded {
                    self.effects.push(Effect::WakeDependents);
                }
                // Last, because the finalizer on the Update shows that the steps before may not
                // have been done.
                self.effects.push(Effect::ReleaseUpdate { namespace: run.namespace.clone(), update: run.name.clone() });
                None
            }
        }
    }

    /// Without a live run: decides whether one is wanted.
    fn proceed(&mut self) -> Readiness {
        if self.stack.deleting && finalize(&self.stack) == Finalize::Release {
            self.effects.push(Effect::RemoveFinalizer);
            return Readiness::Ready;
        }
        if self.stack.suspended {
            // The end of a Stack that is resumed is announced again.
            self.stack.status.expiry = None;
            return self.suspended();
        }
        if let Some(readiness) = self.expire() {
            return readiness;
        }
        // Not earlier: while a run is live, or none may start, a request causes no fetch.
        self.stack.status.observed_reconcile_request.clone_from(&self.stack.reconcile_request);
        // As in PKO, a deletion does not need a source that is gone: the resources can be destroyed
        // from the state. A stored tree is preferred.
        let project = self.stack.status.project.clone().filter(|_| self.stack.deleting && !self.stack.spec.run_program);
        let from_state = project.filter(|_| !matches!(self.snapshot.tree, TreeState::Stored { project: Project::There, .. }));
        if let Some(message) = validate::invalid_spec(&self.stack, from_state.is_none()) {
            return self.invalid(StackReason::SpecInvalid, message);
        }
        if let Some(message) = unfit_pull_request(&self.stack, self.snapshot.named.as_deref()).filter(|_| !self.stack.deleting) {
            // A change of the other Stack sends no event to this one.
            self.requeue_at = Some(self.in_seconds(GUARD_SECONDS));
            return self.invalid(StackReason::SpecInvalid, message);
        }
        if let Some(message) = self.stack.spec.old_pulumi.clone() {
            return self.invalid(StackReason::PulumiVersionTooLow, message);
        }
        if let Some(project) = from_state {
            let revision = Revision::default();
            return match self.wants(&revision) {
                Sync::Synced => self.synced(),
                Sync::Run(why) => {
                    if let Some(opens) = self.closed_until() {
                        return self.outside_window(opens, &why);
                    }
                    if let Some(readiness) = self.failed_preview(&revision, &why) {
                        return readiness;
                    }
                    let workspace = Workspace { project: Some(project), ..workspace(&self.stack.spec) };
                    self.start(&why, revision, None, workspace)
                }
            };
        }
        let (Some(source), Some(state)) = (self.snapshot.stack.spec.sources.first(), &self.snapshot.source) else {
            return Readiness::stalled(StackReason::SpecInvalid, "no source");
        };
        match source::resolve(source, state) {
            Resolved::Unavailable(readiness) => {
                self.requeue_at = Some(self.in_seconds(SOURCE_RETRY_SECONDS));
                readiness
            }
            Resolved::Unknown { subject } => self.fetch(source, subject),
            Resolved::At { revision, digest, polled } => {
                // For a destroy, the last known revision is enough, because the source may no
                // longer exist.
                let must_ask = !self.stack.deleting && source::is_stale(polled, self.now);
                let mut wanted = self.wants(revision);
                if matches!(wanted, Sync::Run(Why::Commit(_))) && !must_ask && self.skip(revision) {
                    // A run may be due for another reason.
                    wanted = self.wants(revision);
                }
                match wanted {
                    Sync::Synced => {
                        self.forget_plan();
                        let readiness = self.settled(source, polled);
                        self.check_drift(source, revision, digest);
                        readiness
                    }
                    Sync::Run(why) if let Some(opens) = self.closed_until() => self.outside_window(opens, &why),
                    Sync::Run(_) if must_ask && !self.has_plan(revision) => self.fetch(source, "its latest commit"),
                    Sync::Run(Why::Inputs) if let Some(readiness) = self.wait_for_inputs() => readiness,
                    Sync::Run(why) => {
                        let readiness = self.run(source, revision, digest, &why);
                        self.poll_while_waiting(source, polled);
                        readiness
                    }
                }
            }
        }
    }

    /// Announces the end of the Stack's life, or ends it. Returns the condition if it ends now.
    fn expire(&mut self) -> Option<Readiness> {
        let ttl = self.snapshot.stack.ttl.as_ref().filter(|_| !self.stack.deleting);
        let life = ttl.map(|ttl| life(&self.snapshot.stack, ttl, self.now));
        self.stack.status.expiry = None;
        match life? {
            Life::Goes(until) => self.ttl_at = Some(until),
            Life::Announced(expiry) => {
                self.ttl_at = Some(expiry.at).filter(|_| expiry.blocked.is_none());
                self.stack.status.expiry = Some(expiry);
            }
            Life::Announce(expiry) => {
                self.ttl_at = Some(expiry.at).filter(|_| expiry.blocked.is_none());
                self.effects.push(expiry.warning());
                self.stack.status.expiry = Some(expiry);
            }
            Life::Ended(at) => {
                self.effects.push(Effect::DeleteStack);
                self.requeue_at = Some(self.in_seconds(DELETION_SECONDS));
                let message = format!("TTL ended at {}; Stack is being deleted", at.strftime("%FT%TZ"));
                self.stack.status.expiry = Some(Expiry { at, blocked: None });
                return Some(Readiness::Reconciling { reason: StackReason::Expired, message });
            }
        }
        None
    }

    /// The source is available and no run is wanted now.
    fn settled(&mut self, source: &SourceRef, polled: Option<Timestamp>) -> Readiness {
        let readiness = self.synced();
        self.poll(source, polled);
        readiness
    }

    /// Git and Secrets send no event when they change, so they are polled.
    fn poll(&mut self, source: &SourceRef, polled: Option<Timestamp>) {
        let spec = &self.snapshot.stack.spec;
        if let Some(polled) = polled {
            self.ask_again(polled.checked_add(retry::poll_period(spec)).ok(), Effect::Fetch(source.clone()));
        }
        if let Some(inputs) = &self.snapshot.inputs {
            // A plan has read them, too.
            let read = self.stack.status.plan.proposal.as_ref().and_then(Proposal::made).max(Some(inputs.read));
            let due = read.and_then(|read| read.checked_add(retry::resync_period(spec)).ok());
            self.ask_again(due, Effect::CompareInputs);
        }
    }

    /// Waits while a run of a prerequisite may change the inputs once more, so that a change of
    /// several of them leads to one run.
    fn wait_for_inputs(&mut self) -> Option<Readiness> {
        let inputs = self.snapshot.inputs.as_ref()?;
        let name = inputs.waits_for.clone()?;
        self.ask_again(inputs.read.checked_add(INPUTS_PERIOD).ok(), Effect::CompareInputs);
        let message = format!("a Secret or ConfigMap changed; waiting for Stack {name:?}, whose run may change another one");
        self.stack.status.waits_for = Some(name);
        Some(Readiness::Reconciling { reason: StackReason::PrerequisiteNotSatisfied, message })
    }

    /// The spec cannot be run. One Event reports it.
    fn invalid(&mut self, reason: StackReason, message: String) -> Readiness {
        let readiness = Readiness::stalled(reason, message.clone());
        if self.snapshot.stack.status.readiness.as_ref() != Some(&readiness) {
            let event_type = EventType::Warning;
            self.effects.push(Effect::Event {
                event_type,
                reason: EventReason::StackConfigInvalid,
                note: message,
                revision: None,
                change_request: None,
            });
        }
        readiness
    }

    /// A suspended Stack starts no updates and no drift checks. It stays Ready if its last update
    /// matches its spec.
    fn suspended(&self) -> Readiness {
        let Stack { generation, reconcile_request, deleting, status, .. } = &self.stack;
        let has_run = !deleting
            && status.last_update.as_ref().is_some_and(|last| {
                last.state == LastUpdateState::Succeeded
                    && last.generation == *generation
                    && last.reconcile_request == *reconcile_request
            });
        if has_run {
            return Readiness::Ready;
        }
        let what = if *deleting { "nothing is destroyed" } else { "no update begins" };
        let message =
            format!("{what} before the Stack is resumed: remove the annotation driftless.dev/suspend and spec.driftless.suspend");
        Readiness::Reconciling { reason: StackReason::Suspended, message }
    }

    /// When the maintenance window opens; `None` if a run may start now. A preview changes nothing,
    /// so it does not wait, and neither does the plan of a guarded Stack.
    fn closed_until(&self) -> Option<Timestamp> {
        let waits = (self.stack.deleting || !self.stack.spec.preview) && self.stack.approval.is_none();
        self.stack.window.as_ref().filter(|_| waits)?.closed_until(self.now)
    }

    fn outside_window(&mut self, opens: Timestamp, why: &Why) -> Readiness {
        self.requeue_at = Some(opens);
        let message = format!(
            "{why}; the run starts when the maintenance window opens at {}; remove the annotation driftless.dev/window-schedule to \
             start it now",
            opens.strftime("%FT%TZ")
        );
        Readiness::Reconciling { reason: StackReason::OutsideWindow, message }
    }

    fn fetch(&mut self, source: &SourceRef, subject: &str) -> Readiness {
        let before = &self.snapshot.stack.status;
        // A user's request also retries a failed fetch: the credential may have been corrected,
        // which causes no event.
        let insisted = before.observed_reconcile_request != self.stack.reconcile_request;
        let fetch = source::fetch(source, subject, &self.snapshot.tree, before, insisted, self.now);
        if fetch.ask {
            self.effects.push(Effect::Fetch(source.clone()));
        }
        (self.requeue_at, self.is_answered) = (fetch.next_reconciliation, fetch.is_asked);
        fetch.readiness
    }

    /// Returns whether the Stack needs a run at this revision. Inputs are not compared right after
    /// an update was recorded, because its run has just read them. A stale run of a guarded Stack,
    /// or a preview that is no update of it, has applied none.
    fn wants(&self, revision: &Revision) -> Sync {
        let [now, before] =
            [&self.stack, &self.snapshot.stack].map(|stack| stack.status.last_update.as_ref().map(|last| &last.name));
        is_synced(&self.stack, revision, self.snapshot.inputs.as_ref().filter(|_| now == before), self.now)
    }

    /// Requests something that is due and requeues for the answer; else requeues for when it is
    /// due. Nothing is due after the end of the calendar.
    fn ask_again(&mut self, due: Option<Timestamp>, effect: Effect) {
        let Some(due) = due else { return };
        let at = match self.snapshot.stack.status.next_reconciliation {
            _ if due > self.now => due,
            // It was requested: the answer is expected before that time.
            Some(asked) if asked > self.now => asked,
            _ => {
                self.effects.push(effect);
                self.in_seconds(SOURCE_RETRY_SECONDS)
            }
        };
        self.requeue_by(at);
    }

    fn requeue_by(&mut self, at: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// No run is wanted now.
    fn synced(&mut self) -> Readiness {
        let Some(last) = &self.stack.status.last_update else { return Readiness::Ready };
        self.requeue_at = retry::next_run(&self.stack, last).map(|at| at.max(self.now + SignedDuration::from_secs(1)));
        let LastUpdate { state, operation, failures, message, .. } = last;
        if *state != LastUpdateState::Failed {
            if self.stack.spec.reclaim_workspace && *state == LastUpdateState::Succeeded {
                self.effects.push(Effect::ReclaimWorkspace);
            }
            return Readiness::Ready;
        }
        if let Some(platform) = self.stack.status.platform_failures {
            let wait = go_duration(retry::platform_cooldown(platform.count));
            let is_platform = platform.count > 0;
            return Readiness::Reconciling {
                reason: if is_platform { StackReason::PlatformFailure } else { StackReason::RetryingAfterFailure },
                message: format!("{message}; not counted as a failed update; retried after {wait}"),
            };
        }
        let word = operation.map_or("update", Operation::as_str);
        match (retry::retry(&self.stack, *failures), operation) {
            (Retry::Conflict, _) => {
                // The first line names the owner of the lock.
                let held = message.lines().next().unwrap_or_default().trim_end_matches('.');
                let remedy = "set spec.retryOnUpdateConflict to retry, or change";
                Readiness::stalled(StackReason::UpdateConflict, format!("{held}; {remedy} {RECONCILIATION_REQUEST}"))
            }
            (Retry::GivenUp, _) => {
                let message = match self.stack.spec.retries {
                    None => format!("{word} failed {failures} times; not retrying until the spec or source changes"),
                    Some(retries) => format!(
                        "{word} failed after {} retries (spec.driftless.retries.limit); not retrying until the spec, the source or \
                         {RECONCILIATION_REQUEST} changes",
                        retries.limit
                    ),
                };
                Readiness::stalled(StackReason::UpdateFailed, message)
            }
            // A destroy is retried without end, but a person should investigate.
            (Retry::After(_), Some(Operation::Destroy)) if *failures >= retry::MAX_FAILURES => {
                let at = self.requeue_at.map_or_else(String::new, |at| format!("; next try at {}", at.strftime("%FT%TZ")));
                Readiness::stalled(StackReason::UpdateFailed, format!("{word} failed {failures} times{at}"))
            }
            (Retry::After(_), Some(Operation::Preview)) => Readiness::Reconciling {
                reason: StackReason::PreviewFailed,
                message: format!("preview failed ({failures} attempt(s))"),
            },
            (Retry::After(_), _) => Readiness::Reconciling {
                reason: StackReason::RetryingAfterFailure,
                message: format!("{failures} update failure(s)"),
            },
        }
    }

    /// Records a new revision as run if no path changed that the Stack uses.
    fn skip(&mut self, revision: &Revision) -> bool {
        let TreeState::Stored { scope: Some(scope), .. } = &self.snapshot.tree else { return false };
        let same = self.stack.status.scope.as_ref() == Some(scope);
        let Some(last) = self.stack.status.last_update.as_mut().filter(|last| same && last.state == LastUpdateState::Succeeded)
        else {
            return false;
        };
        last.last_attempted_commit = revision.clone();
        last.last_successful_commit = revision.clone();
        let note = format!("Nothing changed in {} at {revision:?}: no update is needed", paths(&self.snapshot.stack).join(", "));
        self.effects.push(Effect::Event {
            event_type: EventType::Normal,
            reason: EventReason::RevisionSkipped,
            note,
            revision: Some(revision.clone()),
            change_request: None,
        });
        true
    }

    fn run(&mut self, source: &SourceRef, revision: &Revision, digest: &ArtifactDigest, why: &Why) -> Readiness {
        let spec = &self.snapshot.stack.spec;
        if !self.stack.deleting
            && let Some(unmet) = prerequisites::unmet(&spec.prerequisites, &self.snapshot.prerequisites, self.now)
        {
            self.requeue_at = Some(self.in_seconds(PREREQUISITE_SECONDS));
            if let Some(cycle) = prerequisites::cycle(&self.stack.name, &self.snapshot.requires) {
                let message = format!("spec.prerequisites form a cycle: {}; remove one of them", cycle.join(" -> "));
                return self.invalid(StackReason::SpecInvalid, message);
            }
            self.effects.extend(unmet.requests);
            self.stack.status.waits_for = Some(unmet.first);
            return Readiness::Reconciling { reason: StackReason::PrerequisiteNotSatisfied, message: unmet.message };
        }
        if let Some(readiness) = self.failed_preview(revision, why) {
            return readiness;
        }
        let TreeState::Stored { project, scope } = &self.snapshot.tree else { return self.fetch(source, revision.as_str()) };
        if let Some(readiness) = source::unusable(source, revision, *project) {
            self.requeue_at = None;
            return readiness;
        }
        let tree =
            NewTree { source: source.clone(), digest: digest.clone(), paths: paths(&self.snapshot.stack), scope: scope.clone() };
        self.start(why, revision.clone(), Some(tree), workspace(spec))
    }

    /// The operation of the run that is wanted. A failed adoption is retried as one while it is
    /// wanted.
    fn operation(&self, why: &Why) -> Operation {
        match why {
            _ if self.stack.deleting => Operation::Destroy,
            _ if self.snapshot.stack.spec.preview => Operation::Preview,
            Why::Adoption(_) => Operation::Refresh,
            Why::Backoff(_) if drift::failed_adoption(&self.stack) => Operation::Refresh,
            _ => Operation::Up,
        }
    }

    /// Creates the Update. A guarded Stack gets a plan first, and the Update once that is approved.
    fn start(&mut self, why: &Why, commit: Revision, tree: Option<NewTree>, mut workspace: Workspace) -> Readiness {
        let spec = &self.snapshot.stack.spec;
        let operation = self.operation(why);
        // A destroy creates no stack. Here `create` means that the stack may be missing, because no
        // run came far enough to create something. In any other case a missing stack means a wrong
        // name or backend, and its destroy would leave every resource behind.
        workspace.create &= operation != Operation::Destroy || self.stack.status.operated == Some(false);
        let mut new = self.new_update(operation, why, commit, tree, workspace);
        match (self.stack.approval.clone(), operation) {
            (None, _) | (Some(_), Operation::Preview) => {}
            (Some(settings), Operation::Up | Operation::Refresh | Operation::Destroy) => {
                match self.gate(&settings, why, &mut new) {
                    Ok(hash) => new.plan = Some(hash),
                    Err(readiness) => return readiness,
                }
                new.current.name = apply_name(&self.stack);
            }
        }
        let last = self.stack.status.last_update.as_ref();
        self.stack.status.current_update = Some(new.current.clone());
        let (event_type, revision) = (EventType::Normal, Some(new.current.commit.clone()).filter(|commit| !commit.is_empty()));
        // Once per edit, not with every run of it. Another operator's runs sent no such Event.
        let is_told = last.is_some_and(|last| last.generation == new.current.generation && self.stack.status.ran.is_some());
        let notes = if is_forward(operation) && !is_told { notes(spec) } else { Vec::new() };
        self.effects.push(Effect::Event {
            event_type,
            reason: EventReason::StackUpdateDetected,
            note: why.to_string(),
            revision,
            change_request: None,
        });
        self.effects.extend(notes);
        self.effects.push(Effect::Run(Box::new(new)));
        Readiness::processing("stack is being processed")
    }

    /// The Update of the next run.
    fn new_update(
        &self,
        operation: Operation,
        why: &Why,
        commit: Revision,
        tree: Option<NewTree>,
        workspace: Workspace,
    ) -> NewUpdate {
        let spec = &self.snapshot.stack.spec;
        let forward = is_forward(operation);
        // Also for a retry, or a run for another reason, because any of them refreshes first.
        let remediates = operation == Operation::Up && drift::to_remediate(&self.stack).is_some();
        let has_failed = self.stack.status.last_update.as_ref().is_some_and(|last| last.state == LastUpdateState::Failed);
        NewUpdate {
            current: CurrentUpdate {
                name: update_name(&self.stack),
                generation: self.stack.generation,
                reconcile_request: self.stack.reconcile_request.clone(),
                commit,
            },
            operation,
            message: why.to_string(),
            asked: why.asked(spec.sources.first()),
            targets: if operation == Operation::Destroy { Vec::new() } else { spec.targets.clone() },
            target_dependents: forward && spec.target_dependents,
            refresh: forward && (spec.refresh || remediates),
            expect_no_refresh_changes: forward && spec.expect_no_refresh_changes && !remediates,
            run_program: !forward && spec.run_program,
            tree,
            workspace,
            on_demand: has_failed,
            plan: None,
        }
    }
}

/// Returns whether the operation applies the program.
const fn is_forward(operation: Operation) -> bool {
    matches!(operation, Operation::Up | Operation::Preview)
}

/// The launch of a run that a reconciliation of its Stack sends. The reconciliation that created
/// the Update has sent the first one.
fn launch(stack: &Stack, run: &Run, update: &UpdateFacts) -> Option<Effect> {
    update.wants_launch(run, stack).then(|| Effect::Launch { namespace: run.namespace.clone(), update: run.name.clone() })
}
