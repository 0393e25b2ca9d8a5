use jiff::{SignedDuration, Timestamp};

use crate::{
    CurrentUpdate, DriftStatus, DriftVerdict, Effect, EventReason, EventType, LastUpdate, LastUpdateState, NewTree, NewUpdate,
    Operation, Plan, Project, Readiness, Run, RunState, Snapshot, SourceRef, Stack, StackReason, StackSpec, StackStatus, Sync,
    TreeState, Why, Workspace, check_name, drift,
    finalize::{Finalize, finalize},
    is_synced,
    names::update_name,
    observe, paths, prerequisites,
    retry::{self, Retry},
    run::UpdateFacts,
    source::{self, Resolved, SOURCE_RETRY_SECONDS},
    synced::go_duration,
    validate, workspace,
};

/// A prerequisite that is met is told of; this makes up for a hint that got lost.
const PREREQUISITE_SECONDS: i64 = 60;

/// Whoever changes it asks for another look.
const RECONCILIATION_REQUEST: &str = "the annotation pulumi.com/reconciliation-request";

/// What a look at a Stack leads to.
#[must_use]
pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let stack = &snapshot.stack;
    if stack.deleting && !stack.finalizer {
        return Plan { status: stack.status.clone(), effects: Vec::new(), look_at: None };
    }
    let mut look = Look::at(snapshot, now);
    look.absorb_check();
    let readiness = look.absorb().unwrap_or_else(|| look.proceed());
    look.end(readiness)
}

/// An Event tells of resyncs with a shorter period.
const OFTEN: SignedDuration = SignedDuration::from_mins(5);
const SECONDS_PER_DAY: i64 = 86_400;

/// A look in progress: the Stack as its status becomes, and what is to be done so far.
struct Look<'a> {
    snapshot: &'a Snapshot,
    /// With the status as it is to be.
    stack: Stack,
    effects: Vec<Effect>,
    booked: Option<Timestamp>,
    /// A hint comes before the booked time, and the sweep after it.
    is_answered: bool,
    now: Timestamp,
}

impl<'a> Look<'a> {
    fn at(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let mut stack = snapshot.stack.clone();
        stack.status.observed_generation = Some(stack.generation);
        stack.status.waits_for = None;
        stack.status.suspended = stack.suspended;
        let effects = if stack.finalizer { Vec::new() } else { vec![Effect::AddFinalizer] };
        Self { snapshot, stack, effects, booked: None, is_answered: false, now }
    }

    fn end(mut self, readiness: Readiness) -> Plan {
        let before = &self.snapshot.stack.status;
        // Kubernetes keeps whole seconds: what is read back has to be what was booked, or every look would book another.
        self.booked =
            self.booked.map(|at| Timestamp::from_second(at.as_second() + i64::from(at.subsec_nanosecond() > 0)).unwrap_or(at));
        // A look that was booked at that time is on its way; one in the past was answered by this look.
        let look_at = self.booked.filter(|at| !self.is_answered && (before.next_look != Some(*at) || *at <= self.now));
        let status = StackStatus { readiness: Some(readiness), next_look: self.booked, ..self.stack.status };
        Plan { status, effects: self.effects, look_at }
    }

    fn in_seconds(&self, seconds: i64) -> Timestamp {
        // One that is booked for then or earlier will do: every look would book another otherwise.
        let fresh = self.now + SignedDuration::from_secs(seconds);
        self.snapshot.stack.status.next_look.filter(|at| *at > self.now && *at <= fresh).unwrap_or(fresh)
    }

    /// Takes in what became of the Update that looks for drift. It holds nothing up.
    fn absorb_check(&mut self) {
        let drift = &mut self.stack.status.drift;
        match &self.snapshot.check {
            // One that was not created is created below, under the same name.
            RunState::None | RunState::Missing => drift.current = None,
            RunState::Foreign => {
                let name = drift.current.take();
                let why =
                    format!("Update {:?} was not made for this Stack, or cannot be read", name.as_deref().unwrap_or_default());
                *drift =
                    DriftStatus { current: None, last: name, checked: Some(self.now), verdict: Some(DriftVerdict::Unknown(why)) };
            }
            RunState::Live(run, update, _) => {
                self.effects.extend(launch(&self.snapshot.stack, run, update));
            }
            RunState::Ended(run, outcome) => {
                let (after, event) = drift::observe_check(drift, run, outcome, self.now);
                *drift = after;
                self.effects.extend(event);
                self.effects.push(Effect::ReleaseUpdate { namespace: run.namespace.clone(), update: run.name.clone() });
            }
        }
        // What is not looked for is not known.
        if self.stack.drift.is_none() {
            (drift.checked, drift.verdict) = (None, None);
        }
    }

    /// Takes in what became of the current Update. The condition, if that is all that can be done now.
    fn absorb(&mut self) -> Option<Readiness> {
        match &self.snapshot.run {
            // A missing one is created anew below: it has the same name, as no run was recorded in between.
            RunState::None | RunState::Missing => {
                self.stack.status.current_update = None;
                None
            }
            RunState::Foreign => {
                self.booked = Some(self.in_seconds(SOURCE_RETRY_SECONDS));
                let name = self.stack.status.current_update.as_ref().map_or("", |current| &current.name);
                let message = format!("Update {name:?} was not made for this Stack, or cannot be read; delete it");
                Some(Readiness::stalled(StackReason::UpdateConflict, message))
            }
            RunState::Live(run, update, waiting) => {
                // The Update's own words: another look may have created it from an older or a newer spec than this one's.
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
                let (status, event) = observe(&self.stack.status, run, outcome, self.now);
                self.stack.status = status;
                self.effects.push(event);
                if outcome.succeeded {
                    self.effects.push(Effect::WakeDependents);
                }
                // Last: as long as our finalizer is on it, it is known that this may not have been done.
                self.effects.push(Effect::ReleaseUpdate { namespace: run.namespace.clone(), update: run.name.clone() });
                None
            }
        }
    }

    /// No run is under way: is one wanted?
    fn proceed(&mut self) -> Readiness {
        if self.stack.deleting && finalize(&self.stack) == Finalize::Release {
            self.effects.push(Effect::RemoveFinalizer);
            return Readiness::Ready;
        }
        if self.stack.suspended {
            return self.suspended();
        }
        // Not before: while a run is under way, or none may begin, nothing is fetched again for whoever asks.
        self.stack.status.observed_reconcile_request.clone_from(&self.stack.reconcile_request);
        // PKO's way out of a source that is gone: what is in the state can be destroyed without it. A stored tree is better.
        let project = self.stack.status.project.clone().filter(|_| self.stack.deleting && !self.stack.spec.run_program);
        let from_state = project.filter(|_| !matches!(self.snapshot.tree, TreeState::Stored { project: Project::There, .. }));
        if let Some(message) = validate::invalid_spec(&self.stack, from_state.is_none()) {
            return self.invalid(StackReason::SpecInvalid, message);
        }
        if let Some(message) = self.stack.spec.old_pulumi.clone() {
            return self.invalid(StackReason::PulumiVersionTooLow, message);
        }
        if let Some(project) = from_state {
            return match self.wants("") {
                Sync::Synced => self.synced(),
                Sync::Run(why) => {
                    let workspace = Workspace { project: Some(project), ..workspace(&self.stack.spec) };
                    self.start(&why, String::new(), None, workspace)
                }
            };
        }
        let (Some(source), Some(state)) = (self.snapshot.stack.spec.sources.first(), &self.snapshot.source) else {
            return Readiness::stalled(StackReason::SpecInvalid, "no source");
        };
        match source::resolve(source, state) {
            Resolved::Unavailable(readiness) => {
                self.booked = Some(self.in_seconds(SOURCE_RETRY_SECONDS));
                readiness
            }
            Resolved::Unknown { subject } => self.fetch(source, subject),
            Resolved::At { revision, digest, polled } => {
                // To destroy, what is known of the source is enough: it may be gone.
                let must_ask = !self.stack.deleting && source::is_stale(polled, self.now);
                let mut wanted = self.wants(revision);
                if matches!(wanted, Sync::Run(Why::Commit(_))) && !must_ask && self.skip(revision) {
                    // It may be time for a run nonetheless.
                    wanted = self.wants(revision);
                }
                match wanted {
                    Sync::Synced => {
                        let readiness = self.settled(source, polled);
                        self.check_drift(source, revision, digest);
                        readiness
                    }
                    Sync::Run(_) if must_ask => self.fetch(source, "its latest commit"),
                    Sync::Run(why) => self.run(source, revision, digest, &why),
                }
            }
        }
    }

    /// Nothing is to be run now, and the source is there.
    fn settled(&mut self, source: &SourceRef, polled: Option<Timestamp>) -> Readiness {
        let readiness = self.synced();
        let spec = &self.snapshot.stack.spec;
        // Neither git nor a Secret tells of its changes: they are asked every now and then.
        if let Some(polled) = polled {
            self.ask_again(polled.checked_add(retry::poll_period(spec)).ok(), Effect::Fetch(source.clone()));
        }
        if let Some(inputs) = self.snapshot.inputs {
            self.ask_again(inputs.read.checked_add(retry::resync_period(spec)).ok(), Effect::CompareInputs);
        }
        readiness
    }

    /// Looks for drift if that is due, else books a look for when it is. The launcher has the tree fetched again if it must.
    fn check_drift(&mut self, source: &SourceRef, revision: &str, digest: &str) {
        let Some(due) = drift::next_check(&self.stack).filter(|_| self.stack.status.drift.current.is_none()) else { return };
        if due > self.now {
            return self.look_by(due);
        }
        let name = check_name(&self.stack);
        self.stack.status.drift.current = Some(name.clone());
        let spec = &self.snapshot.stack.spec;
        self.effects.push(Effect::CheckDrift(Box::new(NewUpdate {
            current: CurrentUpdate {
                name,
                generation: self.stack.generation,
                reconcile_request: self.stack.reconcile_request.clone(),
                commit: revision.into(),
            },
            operation: Operation::Refresh,
            message: "Drift check".into(),
            targets: spec.targets.clone(),
            target_dependents: false,
            refresh: false,
            expect_no_refresh_changes: false,
            run_program: spec.run_program,
            tree: Some(NewTree {
                source: source.clone(),
                digest: digest.into(),
                paths: paths(&self.snapshot.stack),
                scope: None,
            }),
            workspace: workspace(spec),
            on_demand: false,
        })));
    }

    /// The spec cannot be run. An Event tells of it once.
    fn invalid(&mut self, reason: StackReason, message: String) -> Readiness {
        let readiness = Readiness::stalled(reason, message.clone());
        if self.snapshot.stack.status.readiness.as_ref() != Some(&readiness) {
            let event_type = EventType::Warning;
            self.effects.push(Effect::Event {
                event_type,
                reason: EventReason::StackConfigInvalid,
                note: message,
                revision: None,
            });
        }
        readiness
    }

    /// Nothing begins, and nothing is looked for. It is Ready if it ran as its spec says.
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

    fn fetch(&mut self, source: &SourceRef, subject: &str) -> Readiness {
        let before = &self.snapshot.stack.status;
        // Somebody asks for it: a wrong credential may have been mended, which nobody tells of.
        let insisted = before.observed_reconcile_request != self.stack.reconcile_request;
        let fetch = source::fetch(source, subject, &self.snapshot.tree, before, insisted, self.now);
        if fetch.ask {
            self.effects.push(Effect::Fetch(source.clone()));
        }
        (self.booked, self.is_answered) = (fetch.next_look, fetch.is_asked);
        fetch.readiness
    }

    /// Whether a run is wanted at a revision. One that just ended has read its inputs as they are.
    fn wants(&self, revision: &str) -> Sync {
        let ended = matches!(self.snapshot.run, RunState::Ended(..));
        is_synced(&self.stack, revision, self.snapshot.inputs.filter(|_| !ended), self.now)
    }

    /// Asks for something that is due, and books a look for the answer; else a look for when it is. Nothing is due after the end of the
    /// calendar.
    fn ask_again(&mut self, due: Option<Timestamp>, effect: Effect) {
        let Some(due) = due else { return };
        let look = match self.snapshot.stack.status.next_look {
            _ if due > self.now => due,
            // It was asked: the answer is on its way until that look.
            Some(asked) if asked > self.now => asked,
            _ => {
                self.effects.push(effect);
                self.in_seconds(SOURCE_RETRY_SECONDS)
            }
        };
        self.look_by(look);
    }

    fn look_by(&mut self, at: Timestamp) {
        self.booked = Some(self.booked.map_or(at, |booked| booked.min(at)));
    }

    /// Nothing is to be run now.
    fn synced(&mut self) -> Readiness {
        let Some(last) = &self.stack.status.last_update else { return Readiness::Ready };
        self.booked = retry::next_run(&self.stack, last).map(|at| at.max(self.now + SignedDuration::from_secs(1)));
        let LastUpdate { state, operation, failures, message, .. } = last;
        if *state != LastUpdateState::Failed {
            if self.stack.spec.reclaim_workspace && *state == LastUpdateState::Succeeded {
                self.effects.push(Effect::ReclaimWorkspace);
            }
            return Readiness::Ready;
        }
        if let Some(platform) = self.stack.status.platform_failures {
            let wait = go_duration(retry::platform_cooldown(platform.count));
            return Readiness::Reconciling {
                reason: StackReason::PlatformFailure,
                message: format!("{message}; not counted as a failed update, retried after {wait}"),
            };
        }
        let word = operation.map_or("update", Operation::as_str);
        match (retry::retry(&self.stack, *failures), operation) {
            (Retry::Conflict, _) => {
                // The first line says who holds it.
                let held = message.lines().next().unwrap_or_default().trim_end_matches('.');
                let remedy = "set spec.retryOnUpdateConflict to have it tried again, or change";
                Readiness::stalled(StackReason::UpdateConflict, format!("{held}; {remedy} {RECONCILIATION_REQUEST}"))
            }
            (Retry::GivenUp, _) => Readiness::stalled(
                StackReason::UpdateFailed,
                format!("{word} failed {failures} times; not retrying until the spec or source changes"),
            ),
            // Somebody should look, although it goes on.
            (Retry::After(_), Some(Operation::Destroy)) if *failures >= retry::MAX_FAILURES => {
                let at = self.booked.map_or_else(String::new, |at| format!("; trying again at {}", at.strftime("%FT%TZ")));
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

    /// Takes a new revision as run if nothing changed in it that matters to the Stack.
    fn skip(&mut self, revision: &str) -> bool {
        let TreeState::Stored { scope: Some(scope), .. } = &self.snapshot.tree else { return false };
        let same = self.stack.status.scope.as_ref() == Some(scope);
        let Some(last) = self.stack.status.last_update.as_mut().filter(|last| same && last.state == LastUpdateState::Succeeded)
        else {
            return false;
        };
        last.last_attempted_commit = revision.into();
        last.last_successful_commit = revision.into();
        let note = format!("Nothing changed in {} at {revision:?}: no update is needed", paths(&self.snapshot.stack).join(", "));
        self.effects.push(Effect::Event {
            event_type: EventType::Normal,
            reason: EventReason::RevisionSkipped,
            note,
            revision: Some(revision.into()),
        });
        true
    }

    fn run(&mut self, source: &SourceRef, revision: &str, digest: &str, why: &Why) -> Readiness {
        let spec = &self.snapshot.stack.spec;
        if !self.stack.deleting
            && let Some(unmet) = prerequisites::unmet(&spec.prerequisites, &self.snapshot.prerequisites, self.now)
        {
            self.booked = Some(self.in_seconds(PREREQUISITE_SECONDS));
            if let Some(cycle) = prerequisites::cycle(&self.stack.name, &self.snapshot.requires) {
                let message = format!("spec.prerequisites form a cycle: {}; remove one of them", cycle.join(" -> "));
                return self.invalid(StackReason::SpecInvalid, message);
            }
            self.effects.extend(unmet.requests);
            self.stack.status.waits_for = Some(unmet.first);
            return Readiness::Reconciling { reason: StackReason::PrerequisiteNotSatisfied, message: unmet.message };
        }
        let TreeState::Stored { project, scope } = &self.snapshot.tree else { return self.fetch(source, revision) };
        if let Some(readiness) = source::unusable(source, revision, *project) {
            self.booked = None;
            return readiness;
        }
        let tree =
            NewTree { source: source.clone(), digest: digest.into(), paths: paths(&self.snapshot.stack), scope: scope.clone() };
        self.start(why, revision.into(), Some(tree), workspace(spec))
    }

    /// Creates the Update.
    fn start(&mut self, why: &Why, commit: String, tree: Option<NewTree>, mut workspace: Workspace) -> Readiness {
        let spec = &self.snapshot.stack.spec;
        let operation = match (self.stack.deleting, spec.preview) {
            (true, _) => Operation::Destroy,
            (false, true) => Operation::Preview,
            (false, false) => Operation::Up,
        };
        let forward = operation != Operation::Destroy;
        let last = self.stack.status.last_update.as_ref();
        // A destroy creates no stack. Here it says that the stack may be missing: no run came as far as to make something. Otherwise the
        // name or the backend is another one, and the destroy of a missing stack would leave everything behind.
        workspace.create &= forward || self.stack.status.operated == Some(false);
        // Also one that is tried again, or is run for another reason: it starts from what is there.
        let remediates = operation == Operation::Up && drift::to_remediate(&self.stack).is_some();
        let current = CurrentUpdate {
            name: update_name(&self.stack),
            generation: self.stack.generation,
            reconcile_request: self.stack.reconcile_request.clone(),
            commit,
        };
        self.stack.status.current_update = Some(current.clone());
        let (event_type, revision) = (EventType::Normal, Some(current.commit.clone()).filter(|commit| !commit.is_empty()));
        // Not with every run of an edit. The runs of another operator did not tell.
        let is_told = last.is_some_and(|last| last.generation == current.generation && self.stack.status.ran.is_some());
        let notes = if forward && !is_told { notes(spec) } else { Vec::new() };
        self.effects.push(Effect::Event {
            event_type,
            reason: EventReason::StackUpdateDetected,
            note: why.to_string(),
            revision,
        });
        self.effects.extend(notes);
        self.effects.push(Effect::Run(Box::new(NewUpdate {
            current,
            operation,
            message: why.to_string(),
            targets: if forward { spec.targets.clone() } else { Vec::new() },
            target_dependents: forward && spec.target_dependents,
            refresh: forward && (spec.refresh || remediates),
            expect_no_refresh_changes: forward && spec.expect_no_refresh_changes && !remediates,
            run_program: !forward && spec.run_program,
            tree,
            workspace,
            on_demand: last.is_some_and(|last| last.state == LastUpdateState::Failed),
        })));
        Readiness::processing("stack is being processed")
    }
}

/// The launch of a run that a reconciliation of its Stack sends. The reconciliation that created the Update has sent the first one.
fn launch(stack: &Stack, run: &Run, update: &UpdateFacts) -> Option<Effect> {
    update.wants_launch(run, stack).then(|| Effect::Launch { namespace: run.namespace.clone(), update: run.name.clone() })
}

/// The Events that tell what of a spec is ignored, what of it costs much, and that its state is lost.
fn notes(spec: &StackSpec) -> Vec<Effect> {
    let event = |event_type, reason, note| Effect::Event { event_type, reason, note, revision: None };
    let ignored = (!spec.pod_only.is_empty()).then(|| {
        let note = format!("ignored, as a run is a task on Fargate and no pod: {}", spec.pod_only.join(", "));
        event(EventType::Normal, EventReason::PodFieldsIgnored, note)
    });
    let frequent = frequent_resync(spec).map(|note| event(EventType::Warning, EventReason::FrequentResync, note));
    let lost = spec.task_backend.as_ref().map(|url| {
        let fact = format!("the backend {url:?} is on the disk of the task, which ends with the run");
        let remedy = "keep the state in an object store, such as s3://BUCKET";
        event(
            EventType::Warning,
            EventReason::StateNotKept,
            format!("{fact}; the next run finds no state and creates everything again; {remedy}"),
        )
    });
    ignored.into_iter().chain(frequent).chain(lost).collect()
}

/// The words for a Stack that asks for more resyncs than the installation allows, or for many.
#[must_use]
pub fn frequent_resync(spec: &StackSpec) -> Option<String> {
    let asked = spec.resync_frequency_seconds.filter(|_| spec.continue_resync_on_commit_match)?;
    let period = retry::resync_period(spec);
    let seconds = period.as_secs();
    let raised = if asked < spec.min_resync_seconds {
        format!("; it is {seconds}, as MinResyncSeconds of this installation is {}", spec.min_resync_seconds)
    } else {
        String::new()
    };
    let each = format!("each resync is a task, {} a day", SECONDS_PER_DAY / seconds);
    (!raised.is_empty() || period < OFTEN).then(|| format!("spec.resyncFrequencySeconds is {asked}{raised}: {each}"))
}
