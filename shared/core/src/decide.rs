use jiff::{SignedDuration, Timestamp};

use crate::{
    CurrentUpdate, Effect, EventType, LastUpdate, LastUpdateState, NewUpdate, Operation, Plan, Readiness, RunState, Snapshot,
    SourceRef, Stack, StackStatus, Sync, TreeState, Why,
    finalize::{Finalize, finalize},
    is_synced,
    names::update_name,
    observe, paths, prerequisites, reason, retry,
    source::{self, Resolved, SOURCE_RETRY_SECONDS},
    validate, workspace,
};

/// What a look at a Stack leads to.
#[must_use]
pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let stack = &snapshot.stack;
    if stack.deleting && !stack.finalizer {
        return Plan { status: stack.status.clone(), effects: Vec::new(), look_at: None };
    }
    let mut look = Look::at(snapshot, now);
    let readiness = look.absorb().unwrap_or_else(|| look.proceed());
    look.end(readiness)
}

/// A look in progress: the Stack as its status becomes, and what is to be done so far.
struct Look<'a> {
    snapshot: &'a Snapshot,
    /// With the status as it is to be.
    stack: Stack,
    effects: Vec<Effect>,
    booked: Option<Timestamp>,
    now: Timestamp,
}

impl<'a> Look<'a> {
    fn at(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let mut stack = snapshot.stack.clone();
        stack.status.observed_generation = Some(stack.generation);
        stack.status.observed_reconcile_request.clone_from(&stack.reconcile_request);
        let effects = if stack.finalizer { Vec::new() } else { vec![Effect::AddFinalizer] };
        Self { snapshot, stack, effects, booked: None, now }
    }

    fn end(mut self, readiness: Readiness) -> Plan {
        self.effects.sort_by_key(|effect| match effect {
            Effect::AddFinalizer => 0,
            Effect::RemoveFinalizer => 2,
            _ => 1,
        });
        let before = &self.snapshot.stack.status;
        // Kubernetes keeps whole seconds: what is read back has to be what was booked, or every look would book another.
        self.booked =
            self.booked.map(|at| Timestamp::from_second(at.as_second() + i64::from(at.subsec_nanosecond() > 0)).unwrap_or(at));
        // A look that was booked at that time is on its way; one in the past was answered by this look.
        let look_at = self.booked.filter(|at| before.next_look != Some(*at) || *at <= self.now);
        let status = StackStatus { readiness: Some(readiness), next_look: self.booked, ..self.stack.status };
        Plan { status, effects: self.effects, look_at }
    }

    fn in_seconds(&self, seconds: i64) -> Timestamp {
        // One that is booked for then or earlier will do: every look would book another otherwise.
        let fresh = self.now + SignedDuration::from_secs(seconds);
        self.snapshot.stack.status.next_look.filter(|at| *at > self.now && *at <= fresh).unwrap_or(fresh)
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
                let message = format!("Update {name:?} was not made for this Stack; delete it");
                Some(Readiness::stalled(reason::UPDATE_CONFLICT, message))
            }
            RunState::Live(run) => {
                // The Update's own words: another look may have created it from an older or a newer spec than this one's.
                self.stack.status.current_update = Some(CurrentUpdate {
                    name: run.name.clone(),
                    generation: run.generation,
                    reconcile_request: run.reconcile_request.clone(),
                    commit: run.commit.clone(),
                });
                self.effects.push(Effect::Launch { update: run.name.clone() });
                Some(Readiness::processing("stack is being processed"))
            }
            RunState::Ended(run, outcome) => {
                let (status, event) = observe(&self.stack.status, run, outcome, self.now);
                self.stack.status = status;
                self.effects.push(Effect::ReleaseUpdate { update: run.name.clone() });
                self.effects.push(event);
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
        if let Some(message) = validate::invalid(&self.stack) {
            if self.snapshot.stack.status.readiness != Some(Readiness::stalled(reason::SPEC_INVALID, message.clone())) {
                let event_type = EventType::Warning;
                self.effects.push(Effect::Event { event_type, reason: "StackConfigInvalid", note: message.clone() });
            }
            return Readiness::stalled(reason::SPEC_INVALID, message);
        }
        let (Some(source), Some(state)) = (self.snapshot.stack.spec.sources.first(), &self.snapshot.source) else {
            return Readiness::stalled(reason::SPEC_INVALID, "no source");
        };
        match source::resolve(source, state) {
            Resolved::Unavailable(readiness) => {
                self.booked = Some(self.in_seconds(SOURCE_RETRY_SECONDS));
                readiness
            }
            Resolved::Unknown { subject } => self.fetch(source, subject),
            Resolved::At { revision, digest, polled } => match is_synced(&self.stack, revision, self.now) {
                Sync::Synced => {
                    let readiness = self.synced();
                    self.poll(source, polled);
                    readiness
                }
                // To destroy, what is known of the source is enough: it may be gone.
                Sync::Run(_) if !self.stack.deleting && source::is_stale(polled, self.now) => {
                    self.fetch(source, "its latest commit")
                }
                Sync::Run(why) => self.run(source, revision, digest, &why),
            },
        }
    }

    fn fetch(&mut self, source: &SourceRef, subject: &str) -> Readiness {
        let before = &self.snapshot.stack.status;
        // Somebody asks for it: a wrong credential may have been mended, which nobody tells of.
        let insisted = before.observed_reconcile_request != self.stack.reconcile_request;
        let (readiness, ask, next_look) = source::fetch(source, subject, &self.snapshot.tree, before, insisted, self.now);
        if ask {
            self.effects.push(Effect::Fetch(source.clone()));
        }
        self.booked = next_look;
        readiness
    }

    /// Git tells of no change: it is asked every now and then.
    fn poll(&mut self, source: &SourceRef, polled: Option<Timestamp>) {
        let Some(polled) = polled else { return };
        let due = polled + retry::resync_period(&self.snapshot.stack.spec);
        let look = match self.snapshot.stack.status.next_look {
            _ if due > self.now => due,
            // It was asked: the answer is on its way until that look.
            Some(asked) if asked > self.now => asked,
            _ => {
                self.effects.push(Effect::Fetch(source.clone()));
                self.in_seconds(SOURCE_RETRY_SECONDS)
            }
        };
        self.booked = Some(self.booked.map_or(look, |booked| booked.min(look)));
    }

    /// Nothing is to be run now.
    fn synced(&mut self) -> Readiness {
        let Some(last) = &self.stack.status.last_update else { return Readiness::Ready };
        self.booked = retry::next_run(&self.stack, last).map(|at| at.max(self.now + SignedDuration::from_secs(1)));
        match last {
            LastUpdate { state: LastUpdateState::Failed, failures, .. } if *failures >= retry::MAX_FAILURES => {
                let operation = last.operation.map_or("update", Operation::as_str);
                let message = format!("{operation} failed {failures} times; not retrying until the spec or source changes");
                Readiness::stalled(reason::UPDATE_FAILED, message)
            }
            LastUpdate { state: LastUpdateState::Failed, operation: Some(Operation::Preview), failures, .. } => {
                Readiness::Reconciling {
                    reason: reason::PREVIEW_FAILED,
                    message: format!("preview failed ({failures} attempt(s))"),
                }
            }
            LastUpdate { state: LastUpdateState::Failed, failures, .. } => Readiness::Reconciling {
                reason: reason::RETRYING_AFTER_FAILURE,
                message: format!("{failures} update failure(s)"),
            },
            LastUpdate { state: LastUpdateState::Succeeded | LastUpdateState::Unknown, .. } => Readiness::Ready,
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
        self.effects.push(Effect::Event { event_type: EventType::Normal, reason: "RevisionSkipped", note });
        true
    }

    fn run(&mut self, source: &SourceRef, revision: &str, digest: &str, why: &Why) -> Readiness {
        let spec = &self.snapshot.stack.spec;
        if matches!(why, Why::Commit(_)) && self.skip(revision) {
            return self.synced();
        }
        if !self.stack.deleting
            && let Some((message, requests)) = prerequisites::unmet(&spec.prerequisites, &self.snapshot.prerequisites, self.now)
        {
            self.effects.extend(requests);
            self.booked = Some(self.in_seconds(60));
            return Readiness::Reconciling { reason: reason::PREREQUISITE_NOT_SATISFIED, message };
        }
        let TreeState::Stored { project, scope } = &self.snapshot.tree else { return self.fetch(source, revision) };
        if let Some(readiness) = source::unusable(source, revision, *project) {
            self.booked = None;
            return readiness;
        }
        let operation = match (self.stack.deleting, spec.preview) {
            (true, _) => Operation::Destroy,
            (false, true) => Operation::Preview,
            (false, false) => Operation::Up,
        };
        let forward = operation != Operation::Destroy;
        let current = CurrentUpdate {
            name: update_name(&self.stack),
            generation: self.stack.generation,
            reconcile_request: self.stack.reconcile_request.clone(),
            commit: revision.into(),
        };
        self.stack.status.current_update = Some(current.clone());
        let update = current.name.clone();
        let event_type = EventType::Normal;
        self.effects.push(Effect::Event { event_type, reason: "StackUpdateDetected", note: why.to_string() });
        self.effects.push(Effect::Run(Box::new(NewUpdate {
            current,
            operation,
            message: why.to_string(),
            targets: if forward { spec.targets.clone() } else { Vec::new() },
            target_dependents: forward && spec.target_dependents,
            refresh: forward && spec.refresh,
            run_program: !forward && spec.run_program,
            source: source.clone(),
            digest: digest.into(),
            paths: paths(&self.snapshot.stack),
            scope: scope.clone(),
            workspace: workspace(spec),
        })));
        self.effects.push(Effect::Launch { update });
        Readiness::processing("stack is being processed")
    }
}
