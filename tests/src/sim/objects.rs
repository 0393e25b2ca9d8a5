//! The objects of the simulated cluster: their names, and how users and checks read and write them.

use std::iter;

use driftless_api::Stack;
use driftless_contract::{ConfigValue, ObjectKey, ProjectInfo, RunSpec};
use driftless_core::Revision;
use driftless_kubernetes::{Cluster, Object, Pages, Selector};
use driftless_testkit::{CLUSTER, World};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

/// The namespace of the Stacks.
pub(super) const NAMESPACE: &str = "team";
/// The namespace of the hostile tenant.
pub(super) const HOSTILE: &str = "hostile";
/// The namespace under attack. Its Stack has `destroyOnFinalize` and a Secret, so that the launcher
/// seals its inputs.
pub(super) const QUIET: &str = "quiet";
/// The name of the Stack in either namespace.
pub(super) const STACK: &str = "q";
/// The part of every value of a Secret after the name of its namespace.
pub(super) const CANARY: &str = "-canary-";

pub(super) const STACK_KIND: (&str, &str) = ("pulumi.com/v1", "Stack");
pub(super) const UPDATE_KIND: (&str, &str) = ("auto.pulumi.com/v1alpha1", "Update");
/// The Secret to which every Stack refers.
pub(super) const SECRET: &str = "db";
pub(super) const PROGRAM: (&str, &str, &str) = ("pulumi.com/v1", "Program", "p");
pub(super) const REPOSITORY: (&str, &str, &str) = ("source.toolkit.fluxcd.io/v1", "GitRepository", "shop");

/// The Stacks: name, Pulumi stack as written in their spec, source, prerequisite, and the actual
/// Pulumi stack. `b` and `c` write the same one differently. The last one is not in [`NAMESPACE`]:
/// the quiet namespace and the hostile one each have a Stack like it.
pub(super) const STACKS: [(&str, &str, Field, Option<&str>, &str); 5] = [
    ("a", "dev", Field::Program, None, "p/dev"),
    ("b", "organization/dev", Field::Flux, None, "shop/dev"),
    ("c", "organization/shop/dev", Field::Flux, None, "shop/dev"),
    ("d", "prod", Field::Program, Some("a"), "p/prod"),
    (STACK, "quiet", Field::Program, None, "p/quiet"),
];
pub(super) const QUIET_STACK: usize = STACKS.len() - 1;
/// The Stack all of whose plans need an approval, in a script that guards Stacks.
pub(super) const GUARDED: usize = 1;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Field {
    Program,
    Flux,
}

/// The Pulumi stack of a spec, by what is written there.
pub(super) fn pulumi_stack(written: &str) -> &'static str {
    STACKS.iter().find(|known| known.1 == written).map_or("", |known| known.4)
}

/// The project of that Pulumi stack.
pub(super) fn project_of(written: &str) -> ProjectInfo {
    let (name, _) = pulumi_stack(written).split_once('/').unwrap_or_default();
    ProjectInfo { name: name.into(), runtime: "yaml".into() }
}

/// The kind of a Stack's source.
pub(super) fn source_kind(stack: &str) -> &'static str {
    match STACKS.iter().find(|known| known.0 == stack) {
        Some((_, _, Field::Flux, ..)) => REPOSITORY.1,
        _ => PROGRAM.1,
    }
}

/// The revision of a source as written. `None` if the object is no source, or has none yet.
pub(super) fn revision(key: &ObjectKey, object: &Value) -> Option<Revision> {
    match key.kind.as_str() {
        "Program" => Some(object["metadata"]["generation"].to_string().into()),
        "GitRepository" => Some(object["status"]["artifact"]["revision"].as_str()?.into()),
        _ => None,
    }
}

pub(super) fn key((api_version, kind, name): (&str, &str, &str)) -> ObjectKey {
    key_in(NAMESPACE, (api_version, kind), name)
}

pub(super) fn key_in(namespace: &str, (api_version, kind): (&str, &str), name: &str) -> ObjectKey {
    ObjectKey {
        cluster: CLUSTER.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

pub(super) fn stack_key(stack: usize) -> ObjectKey {
    key_in(NAMESPACE, STACK_KIND, STACKS[stack].0)
}

pub(super) fn get<K: Object>(world: &World, name: &str) -> Option<K> {
    get_in(world, NAMESPACE, name)
}

pub(super) fn get_in<K: Object>(world: &World, namespace: &str, name: &str) -> Option<K> {
    world.drive(Cluster::get(world, namespace, name))?.ok()?
}

/// The objects of a namespace, or of all.
pub(super) fn list<K: Object>(world: &World, namespace: Option<&str>) -> Vec<K> {
    let mut pages = Pages::new(world, namespace, Selector::All);
    // Calls never fail in a calm world.
    iter::from_fn(|| world.drive(pages.next()).and_then(Result::ok).flatten()).flatten().collect()
}

/// The existing Stacks.
pub(super) fn stacks(world: &World) -> Vec<Stack> {
    let namespace = |name: &str| if name == STACK { QUIET } else { NAMESPACE };
    STACKS.iter().filter_map(|stack| get_in::<Stack>(world, namespace(stack.0), stack.0)).collect()
}

/// The value in the Secret to which every Stack of a namespace refers.
pub(super) fn secret(world: &World, namespace: &str) -> Option<String> {
    let secret = get_in::<Secret>(world, namespace, SECRET)?.data?.remove("password")?;
    String::from_utf8(secret.0).ok()
}

/// The value of its Secret that a run was given.
pub(super) fn secret_in(spec: &RunSpec) -> Option<String> {
    spec.config.iter().find(|config| config.secret).map(|config| match &config.value {
        ConfigValue::String(value) | ConfigValue::Token(value) => value.clone(),
        ConfigValue::Json(value) => value.to_string(),
    })
}

/// A change by a client that ignores versions.
pub(super) fn edit(world: &World, key: &ObjectKey, change: impl FnOnce(&mut Value)) {
    if let Some(mut object) = world.object(key).filter(|object| object["metadata"]["deletionTimestamp"].is_null()) {
        change(&mut object);
        world.insert(object);
    }
}

pub(super) fn edit_marker(stack: &mut Value) {
    let generation = raise_generation(stack);
    stack["spec"]["config"]["marker"] = json!(generation.to_string());
}

pub(super) fn raise_generation(object: &mut Value) -> i64 {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
    object["metadata"]["generation"] = json!(generation);
    generation
}

/// Sets or removes annotations of a Stack, even of one that is being deleted.
pub(super) fn annotate(world: &World, stack: &ObjectKey, annotations: &[(&str, Option<&str>)]) {
    let Some(mut object) = world.object(stack) else { return };
    for (name, value) in annotations {
        let there = &mut object["metadata"]["annotations"];
        match (value, there.as_object_mut()) {
            (Some(value), _) => there[*name] = json!(value),
            (None, Some(there)) => _ = there.remove(*name),
            (None, None) => {}
        }
    }
    world.insert(object);
}

pub(super) fn delete<K: Object>(world: &World, name: &str) {
    delete_in::<K>(world, NAMESPACE, name);
}

pub(super) fn delete_in<K: Object>(world: &World, namespace: &str, name: &str) {
    if let Some(object) = get_in::<K>(world, namespace, name) {
        // Calls never fail in a calm world, and the object was not written in between.
        let _: Option<_> = world.drive(Cluster::delete(world, &object));
    }
}
