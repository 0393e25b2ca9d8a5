//! The inputs and actions of runners: the facts for the rules. Statuses do not count.

use driftless_api::Update;
use driftless_contract::{Operation, RunSpec, Uid};
use driftless_core::Limits;

use crate::scenario::SYSTEM;

/// An operation of Pulumi that a runner started.
#[derive(Clone, Debug, Hash)]
struct Op {
    /// The Update's uid.
    uid: Uid,
    update: String,
    /// The uid of its Stack, and the Stack's generation.
    stack: Option<(Uid, i64)>,
    destroys: bool,
    pulumi_stack: String,
    /// `None` while it is in progress.
    succeeded: Option<bool>,
}

/// All operations, in the order of their starts.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Ledger {
    ops: Vec<Op>,
}

impl Ledger {
    /// A runner starts an operation. Returns the rule that this breaks.
    pub(super) fn begin(&mut self, spec: &RunSpec, update: Option<&Update>, limits: Limits) -> Result<(), String> {
        let generation = || update?.spec.driftless.as_ref()?.stack_generation;
        let stack = update.and_then(|update| update.stack(SYSTEM));
        let op = Op {
            uid: spec.run.uid.clone(),
            update: spec.run.update.name.clone(),
            stack: stack.map(|stack| (stack.uid.into(), generation().unwrap_or_default())),
            destroys: spec.operation == Operation::Destroy,
            // `dev` and `organization/p/dev` are one Pulumi stack of the only project.
            pulumi_stack: spec.stack.rsplit('/').next().unwrap_or_default().into(),
            succeeded: None,
        };
        let name = &op.update;
        let mut live = self.ops.iter().filter(|other| other.succeeded.is_none());
        let broken = if let Some(other) = live.clone().find(|other| other.pulumi_stack == op.pulumi_stack) {
            Some(format!("claim: {name} begins while {} runs on {}", other.update, op.pulumi_stack))
        } else if self.ops.iter().any(|other| other.uid == op.uid) {
            Some(format!("once: the operation of {name} begins again"))
        } else if limits.runs.is_some_and(|most| live.by_ref().count() >= most) {
            Some(format!("limit: {name} begins as one too many of {limits:?}"))
        } else {
            self.ops
                .iter()
                .find(|other| op.repeats(other))
                .map(|other| format!("successor: {name} runs what {} ran", other.update))
        };
        self.ops.push(op);
        broken.map_or(Ok(()), Err)
    }

    /// An operation ends. `None` if its task was killed.
    pub(super) fn end(&mut self, uid: &Uid, succeeded: Option<bool>) {
        if let Some(op) = self.ops.iter_mut().rfind(|op| op.uid == *uid && op.succeeded.is_none()) {
            op.succeeded = Some(succeeded == Some(true));
        }
    }

    /// A Stack no longer exists. Returns the rule that this breaks.
    pub(super) fn gone(&self, stack_uid: &Uid) -> Result<(), String> {
        let last = self.ops.iter().rfind(|op| op.stack.as_ref().is_some_and(|(uid, _)| uid == stack_uid));
        match last.filter(|last| !(last.destroys && last.succeeded == Some(true))) {
            None => Ok(()),
            Some(last) => Err(format!("finalizer: the Stack is gone, and its last operation was {last:?}")),
        }
    }

    /// The generation of the last successful run of a Pulumi stack.
    pub(super) fn ran(&self, stack_uid: &Uid) -> Option<i64> {
        let ran = self.ops.iter().rfind(|op| op.succeeded == Some(true) && op.stack.is_some())?;
        ran.stack.as_ref().filter(|(uid, _)| uid == stack_uid).map(|(_, generation)| *generation)
    }
}

impl Op {
    /// Returns whether this repeats a state of its Stack that ran successfully, or runs an older
    /// one.
    fn repeats(&self, earlier: &Self) -> bool {
        match (&self.stack, &earlier.stack) {
            (Some((uid, generation)), Some((other, earlier_generation))) if uid == other => {
                generation < earlier_generation || generation == earlier_generation && earlier.succeeded != Some(false)
            }
            _ => false,
        }
    }
}
