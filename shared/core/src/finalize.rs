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
    // If nothing was ever run for it there is nothing to destroy, whatever became of its source.
    let Some(last) = stack.status.last_update.as_ref().filter(|_| stack.status.ran != Some(false)) else {
        return Finalize::Release;
    };
    let destroyed = last.operation == Some(Operation::Destroy)
        && last.state == LastUpdateState::Succeeded
        && last.generation == stack.generation;
    if destroyed || !stack.spec.destroy_on_finalize || stack.spec.preview { Finalize::Release } else { Finalize::Destroy }
}
