use crate::{LastUpdateState, Operation, Stack};

/// What the deletion of a Stack asks for, once no run is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finalize {
    /// Nothing has to be destroyed, or it is: the finalizer may go.
    Release,
    /// Destroy first.
    Destroy,
}

/// Whether a Stack that is being deleted may go.
pub(crate) fn finalize(stack: &Stack) -> Finalize {
    let Some(last) = &stack.status.last_update else {
        // Nothing was ever run for it, so that there is nothing to destroy, whatever became of its source.
        return Finalize::Release;
    };
    let destroyed = last.operation == Some(Operation::Destroy)
        && last.state == LastUpdateState::Succeeded
        && last.generation == stack.generation;
    if destroyed || !stack.spec.destroy_on_finalize || stack.spec.preview { Finalize::Release } else { Finalize::Destroy }
}
