//! The objects of the model: their names, and access to them.

use std::iter;

use driftless_aws::Objects;
use driftless_contract::ObjectKey;
use driftless_kubernetes::{Cluster, Object, Pages, Selector};
use driftless_testkit::{CLUSTER, World};

pub(super) const NAMESPACE: &str = "team";
pub(super) const STACK: &str = "a";
pub(super) const BY_HAND: &str = "by-hand";

pub(super) fn stack_key() -> ObjectKey {
    key("pulumi.com/v1", "Stack", NAMESPACE, STACK)
}

pub(super) fn key(api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectKey {
    let [cluster, api_version, kind, namespace, name] = [CLUSTER, api_version, kind, namespace, name].map(String::from);
    ObjectKey { cluster, api_version, kind, namespace, name }
}

/// All objects of a kind.
pub(super) fn list<K: Object>(world: &World) -> Vec<K> {
    let mut pages = Pages::new(world, None, Selector::All);
    iter::from_fn(|| world.drive(pages.next())?.ok()?).flatten().collect()
}

pub(super) fn get(world: &World, key: &str) -> Option<Vec<u8>> {
    world.drive(Objects::get(world, key))?.ok()?
}

pub(super) fn put(world: &World, key: &str, document: String) {
    // Calls never fail in this world.
    _ = world.drive(Objects::put(world, key, document.into_bytes()));
}

pub(super) fn get_object<K: Object>(world: &World, key: &ObjectKey) -> Option<K> {
    world.drive(Cluster::get(world, &key.namespace, &key.name))?.ok()?
}
