use crate::{LastUpdateState, Operation, Stack};

/// What the deletion of a Stack requires when it has no live run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finalize {
    /// Nothing is left to destroy, or nothing is to be destroyed: the finalizer is removed.
    Release,
    /// A destroy comes first.
    Destroy,
}

/// Decides whether the finalizer of a deleted Stack can be removed.
pub(crate) fn finalize(stack: &Stack) -> Finalize {
    // If no run ever started, there is nothing to destroy, even where the source is gone.
    let Some(last) = stack.status.last_update.as_ref().filter(|_| stack.status.ran != Some(false)) else {
        return Finalize::Release;
    };
    let destroyed = last.operation == Some(Operation::Destroy)
        && last.state == LastUpdateState::Succeeded
        && last.generation == stack.generation;
    if destroyed || !stack.spec.destroy_on_finalize || stack.spec.preview { Finalize::Release } else { Finalize::Destroy }
}
