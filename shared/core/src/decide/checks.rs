//! The part of a decision that concerns drift checks.

use super::{Reconciliation, launch};
use crate::{
    ArtifactDigest, Asked, CurrentUpdate, DriftVerdict, Effect, NewTree, NewUpdate, Operation, Revision, RunState, SourceRef,
    check_name, drift, metadata, paths, workspace,
};

impl Reconciliation<'_> {
    /// Takes over the state of the current drift check. A check delays nothing.
    pub(super) fn absorb_check(&mut self) {
        let drift = &mut self.stack.status.drift;
        match &self.snapshot.check {
            // An Update that was not created is created below, under the same name.
            RunState::None | RunState::Missing => drift.current = None,
            RunState::Foreign => {
                let name = drift.current.take();
                let why =
                    format!("Update {:?} does not belong to this Stack or cannot be read", name.as_deref().unwrap_or_default());
                (drift.last, drift.checked, drift.verdict) = (name, Some(self.now), Some(DriftVerdict::Unknown(why)));
            }
            RunState::Live(run, update, _) => {
                self.effects.extend(launch(&self.snapshot.stack, run, update));
            }
            RunState::Ended(run, outcome) => {
                let (after, event) = drift::observe_check(&self.stack, run, outcome, self.now);
                self.stack.status.drift = after;
                self.effects.extend(event);
                self.effects.push(Effect::ReleaseUpdate { namespace: run.namespace.clone(), update: run.name.clone() });
            }
        }
        // Without drift checks nothing is known about drift.
        if self.stack.drift.is_none() {
            (self.stack.status.drift.checked, self.stack.status.drift.verdict) = (None, None);
        }
    }

    /// Starts a drift check if one is due, else requeues for when it is. If its tree is not stored,
    /// the launcher has it fetched.
    pub(super) fn check_drift(&mut self, source: &SourceRef, revision: &Revision, digest: &ArtifactDigest) {
        let Some(due) = drift::next_check(&self.stack).filter(|_| self.stack.status.drift.current.is_none()) else { return };
        if due > self.now {
            return self.requeue_by(due);
        }
        let name = check_name(&self.stack);
        self.stack.status.drift.current = Some(name.clone());
        let spec = &self.snapshot.stack.spec;
        self.effects.push(Effect::CheckDrift(Box::new(NewUpdate {
            current: CurrentUpdate {
                name,
                generation: self.stack.generation,
                reconcile_request: self.stack.reconcile_request.clone(),
                commit: revision.clone(),
            },
            operation: Operation::Refresh,
            message: "Drift check".into(),
            asked: Asked::Schedule(metadata::DRIFT_SCHEDULE),
            targets: spec.targets.clone(),
            target_dependents: false,
            refresh: false,
            expect_no_refresh_changes: false,
            run_program: spec.run_program,
            tree: Some(NewTree {
                source: source.clone(),
                digest: digest.clone(),
                paths: paths(&self.snapshot.stack),
                scope: None,
            }),
            workspace: workspace(spec),
            on_demand: false,
            plan: None,
        })));
    }
}
