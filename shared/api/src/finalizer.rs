//! Our finalizer: what has it does not go before what it stands for is done.

use kube::ResourceExt;

use crate::names::FINALIZER;

/// Whether an object has our finalizer.
pub fn is_on<K: ResourceExt>(object: &K) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Gives an object our finalizer, if it has not got it.
pub fn add<K: ResourceExt>(object: &mut K) {
    if !is_on(object) {
        object.finalizers_mut().push(FINALIZER.to_owned());
    }
}

/// Takes our finalizer off an object, and leaves those of others.
pub fn remove<K: ResourceExt>(object: &mut K) {
    object.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
}
