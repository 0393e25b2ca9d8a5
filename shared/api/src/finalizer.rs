//! Driftless's finalizer, which delays the deletion of an object until the work for it is done.

use kube::ResourceExt;

use crate::names::FINALIZER;

/// Returns whether an object has Driftless's finalizer.
pub fn is_on<K: ResourceExt>(object: &K) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Adds Driftless's finalizer to an object, if it is missing.
pub fn add<K: ResourceExt>(object: &mut K) {
    if !is_on(object) {
        object.finalizers_mut().push(FINALIZER.to_owned());
    }
}

/// Removes Driftless's finalizer from an object, and leaves other finalizers.
pub fn remove<K: ResourceExt>(object: &mut K) {
    object.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
}
