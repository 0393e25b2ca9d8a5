//! The generated definitions equal those in `infra/kubernetes/crds`, and have PKO's fields.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::{Map, Value};

/// Fields by `<crd>/<version>` and path. `[]` stands for the items of a list and `{}` for the
/// values of a map.
type Fields = BTreeMap<(String, String), String>;

#[test]
fn the_definitions_on_disk_are_the_generated_ones() {
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("crds");
    fs::remove_dir_all(&fresh).ok();
    fs::create_dir_all(&fresh).unwrap();
    assert!(Command::new(env!("CARGO_BIN_EXE_crdgen")).arg(&fresh).status().unwrap().success());

    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/kubernetes/crds");
    assert_eq!(names(&fresh), names(&kept), "run `make crds`");
    for name in names(&fresh) {
        let (fresh, kept) = (fs::read_to_string(fresh.join(&name)).unwrap(), fs::read_to_string(kept.join(&name)).unwrap());
        assert!(fresh == kept, "{name} is not what the types say: run `make crds`");
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn crds_have_every_pko_field_with_type_and_constraints() {
    let ours = generated();
    let wrong: Vec<_> = listed()
        .into_iter()
        .filter(|(key, facts)| ours.get(key) != Some(facts))
        .map(|(key, facts)| format!("{} {}: PKO {facts:?}, ours {:?}", key.0, key.1, ours.get(&key)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn new_fields_are_under_driftless() {
    let theirs = listed();
    let stray: Vec<_> = generated()
        .into_keys()
        .filter(|key| !theirs.contains_key(key))
        // PKO has no such kind.
        .filter(|(version, _)| !version.starts_with("planpolicies."))
        // `stack()` in crds.rs says why the older version has the newer one's status.
        .filter(|(version, path)| !(version == "stacks.pulumi.com/v1alpha1" && path.starts_with("status.")))
        .filter(|(_, path)| !path.starts_with("spec.driftless") && !path.starts_with("status.driftless"))
        .collect();
    assert!(stray.is_empty(), "{stray:?}");
}

#[test]
fn one_version_of_each_kind_is_stored_and_all_are_served() {
    let versions: Vec<_> = driftless_api::crds::all()
        .unwrap()
        .into_iter()
        .flat_map(|crd| crd.spec.versions.into_iter().map(move |version| (crd.spec.names.kind.clone(), version)))
        .map(|(kind, version)| (kind, version.name, version.storage, version.served, version.subresources.is_some()))
        .collect();
    let expected = [
        ("Stack", "v1", true, true),
        ("Stack", "v1alpha1", false, true),
        ("Program", "v1", true, true),
        ("Workspace", "v1alpha1", true, true),
        ("Update", "v1alpha1", true, true),
        ("PlanPolicy", "v1alpha1", true, false),
    ];
    assert_eq!(versions, expected.map(|(kind, version, stored, status)| (kind.into(), version.into(), stored, true, status)));
}

/// PKO's fields: `fields.tsv` has a line for each with definition, path, type and constraints.
fn listed() -> Fields {
    include_str!("fields.tsv")
        .lines()
        .map(|line| {
            let (crd, rest) = line.split_once('\t').unwrap();
            let (path, facts) = rest.split_once('\t').unwrap();
            ((crd.into(), path.into()), facts.into())
        })
        .collect()
}

/// Driftless's fields, in the same notation.
fn generated() -> Fields {
    let mut fields = Fields::new();
    for crd in driftless_api::crds::all().unwrap() {
        for version in crd.spec.versions {
            let mut schema = serde_json::to_value(version.schema.unwrap().open_api_v3_schema.unwrap()).unwrap();
            // kube's types require a `spec`; PKO's do not, although its objects are useless if it
            // is missing.
            schema.as_object_mut().unwrap().remove("required");
            let id = format!("{}/{}", crd.metadata.name.as_ref().unwrap(), version.name);
            children(&id, "", &schema, &mut fields);
        }
    }
    fields
}

fn children(crd: &str, path: &str, schema: &Value, fields: &mut Fields) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        field(crd, path, property, required.contains(&name.as_str()), fields);
    }
    for (suffix, inner) in [("{}", &schema["additionalProperties"]), ("[]", &schema["items"])] {
        if inner.is_object() {
            field(crd, format!("{path}{suffix}"), inner, false, fields);
        }
    }
}

fn field(crd: &str, path: String, schema: &Value, required: bool, fields: &mut Fields) {
    children(crd, &path, schema, fields);
    fields.insert((crd.into(), path), facts(schema.as_object().unwrap(), required));
}

/// Type, and the constraints in alphabetical order.
fn facts(schema: &Map<String, Value>, required: bool) -> String {
    let words = |key: &str, separator: &str| {
        let words = schema.get(key)?.as_array()?;
        Some(words.iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>().join(separator))
    };
    let kind = match schema.get("type") {
        Some(kind) => kind.as_str().unwrap(),
        None if schema.contains_key("x-kubernetes-int-or-string") => "int-or-string",
        None => "any",
    };
    let constraints = [
        schema.get("default").map(|value| format!("default={value}")),
        words("enum", "|").map(|words| format!("enum={words}")),
        schema.get("format").map(|format| format!("format={}", format.as_str().unwrap())),
        schema.get("x-kubernetes-list-type").map(|kind| {
            let keys = words("x-kubernetes-list-map-keys", ",").map(|keys| format!(":{keys}")).unwrap_or_default();
            format!("list={}{keys}", kind.as_str().unwrap())
        }),
        required.then(|| "required".into()),
    ];
    let constraints = constraints.into_iter().flatten().collect::<Vec<_>>().join(" ");
    format!("{kind}\t{constraints}").trim_end().into()
}
