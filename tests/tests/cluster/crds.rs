//! Driftless's definitions in place of those of the Pulumi Kubernetes Operator (PKO), with its
//! objects.

use std::{env, fs, io};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    guide::Guide,
    world::{cluster::Cluster, dirs::Dirs, ready},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use super::LIMIT;

const PAGE: &str = include_str!("../../../docs/migration.md");
/// PKO's fields: a line for each with definition, path, type and constraints.
const FIELDS: &str = include_str!("../../../shared/api/tests/fields.tsv");
const AUTO: &str = "auto.pulumi.com/v1alpha1";

/// Replaces PKO's definitions by Driftless's, as the guide says. PKO's objects are unchanged and
/// valid, and both can write them.
pub async fn are_taken_over(cluster: &Cluster, dirs: &Dirs) -> Result<()> {
    let admin = cluster.client("admin").await?;
    let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
    let theirs = definitions()?;
    for (name, _) in &theirs {
        crds.delete(name, &DeleteParams::default()).await?;
        ready::until("our definition is gone", LIMIT, async || {
            ensure!(crds.get_opt(name).await?.is_none(), "{name} is there");
            Ok(())
        })
        .await?;
    }
    for (_, definition) in theirs {
        let manager = PostParams { field_manager: Some("helm".into()), ..PostParams::default() };
        crds.create(&manager, &serde_json::from_value(definition)?).await?;
    }
    let objects = objects();
    let mut before = Vec::new();
    for object in &objects {
        before.push(ready::until("PKO's object is made", LIMIT, async || as_pko(&admin, object).await).await?);
    }
    let suspend = Patch::Merge(json!({ "spec": { "driftless": { "suspend": true } } }));
    let stacks = api(&admin, "pulumi.com/v1", "Stack");
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let suspended = stacks.patch("shop", &dry, &suspend).await?;
    ensure!(suspended.data["spec"]["driftless"].is_null(), "these are not PKO's definitions");

    let kubeconfig = cluster.admin_kubeconfig.display().to_string();
    Guide::read(PAGE, dirs.tools(), &[("KUBECONFIG", &kubeconfig)])?.run("Install Driftless beside PKO", 0).await?;
    ready::until("our definition is served", LIMIT, async || {
        let suspended = stacks.patch("shop", &dry, &suspend).await?;
        ensure!(suspended.data["spec"]["driftless"]["suspend"] == true, "{}", suspended.data["spec"]);
        Ok(())
    })
    .await?;
    for (object, before) in objects.iter().zip(&before) {
        let api = api_of(&admin, object);
        let mut found = api.get(&before.name_any()).await?;
        assert_eq!(&found, before, "it is another one now");
        found.metadata.managed_fields = None;
        let written = api.replace(&found.name_any(), &PostParams::default(), &found).await?;
        let written = api.replace_status(&written.name_any(), &PostParams::default(), &written).await?;
        assert_eq!((&written.data, written.metadata.generation), (&before.data, before.metadata.generation));
        let again = as_pko(&admin, object).await?;
        assert_eq!((&again.data, again.metadata.generation), (&before.data, before.metadata.generation));
    }
    Ok(())
}

/// Objects of every kind, with fields of many types.
fn objects() -> Vec<Value> {
    let condition = json!({ "type": "Ready", "status": "True", "reason": "ProcessingCompleted", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let update = json!({ "generation": 1, "name": "shop-19a1b2c3d4e", "commit": "c" });
    let last = json!({
        "generation": 1, "name": "shop-19a1b2c3d4e", "type": "up", "state": "succeeded", "lastAttemptedCommit": "c",
        "lastSuccessfulCommit": "c", "lastResyncTime": "2026-01-01T00:00:00Z", "permalink": "https://app.pulumi.com/x",
    });
    let secret = |key: &str| json!({ "type": "Secret", "secret": { "name": "s", "key": key } });
    let pod = json!({ "spec": { "tolerations": [{ "key": "k", "operator": "Exists" }], "containers": [{ "name": "pulumi", "env": [{ "name": "A", "value": "b" }] }] } });
    let spec = json!({
        "stack": "org/shop/prod", "backend": "s3://state", "projectRepo": "https://git.example/shop", "branch": "main",
        "gitAuth": { "basicAuth": { "userName": secret("user"), "password": secret("password") } },
        "config": { "a": "b", "n": 1.5, "deep": { "list": [1, "two", null, true] } },
        "configRef": { "c": { "name": "m", "key": "k", "json": true } },
        "envRefs": { "A": secret("a"), "B": { "type": "Literal", "literal": { "value": "v" } } },
        "prerequisites": [{ "name": "base", "requirement": { "succeededWithinDuration": "1h" } }],
        "workspaceTemplate": { "metadata": { "labels": { "cost": "42" } }, "spec": { "podTemplate": pod, "resources": { "requests": { "cpu": 1, "memory": "1Gi" } } } },
        "updateTemplate": { "spec": { "remove": true, "ttlAfterCompleted": "1h0m0s" } }, "destroyOnFinalize": true,
        "workspaceReclaimPolicy": "Delete", "resyncFrequencySeconds": 120,
    });
    let status = json!({
        "observedGeneration": 1, "conditions": [condition], "currentUpdate": update, "lastUpdate": last,
        "outputs": { "a": "b", "n": 1.5, "deep": { "list": [1, { "x": null }] } }, "projectInfo": { "name": "shop", "runtime": "go" },
    });
    let program = json!({
        "configuration": { "c": { "type": "List<Number>", "default": [1, 2] } },
        "resources": { "r": { "type": "aws:s3:Bucket", "properties": { "tags": { "a": 1 } }, "options": { "dependsOn": ["${x}"], "protect": true } } },
        "variables": { "v": { "fn::invoke": { "function": "f" } } }, "outputs": { "o": "${r.id}" }, "packages": { "aws": "6.0.0" },
    });
    let artifact = json!({ "path": "p", "url": "http://pko/p", "revision": "1", "digest": "sha256:00", "size": 7, "lastUpdateTime": "2026-01-01T00:00:00Z" });
    let object = |api_version: &str, kind: &str, name: &str, fields: Value| {
        driftless_core::merge(
            json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name, "namespace": "default" } }),
            &fields,
        )
    };
    vec![
        object(
            "pulumi.com/v1",
            "Stack",
            "shop",
            json!({ "metadata": { "finalizers": ["finalizer.stack.pulumi.com"] }, "spec": spec, "status": status }),
        ),
        object(
            "pulumi.com/v1alpha1",
            "Stack",
            "old",
            json!({ "spec": { "stack": "dev", "projectRepo": "u", "commit": "c" }, "status": { "outputs": { "a": [1] } } }),
        ),
        object(
            "pulumi.com/v1",
            "Program",
            "shop",
            json!({ "program": program, "status": { "observedGeneration": 1, "artifact": artifact } }),
        ),
        object(
            AUTO,
            "Workspace",
            "shop",
            json!({
                "spec": {
                    "image": "i", "git": { "url": "u", "ref": "c", "auth": { "token": { "name": "s", "key": "k" } } }, "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                    "stacks": [{ "name": "dev", "create": true, "config": [{ "key": "a", "value": { "x": [1] }, "secret": true }] }],
                },
                "status": { "observedGeneration": 1, "address": "shop-workspace.default:50051", "pulumiVersion": "3.200.0", "conditions": [condition] },
            }),
        ),
        object(
            AUTO,
            "Update",
            "shop",
            json!({
                "spec": { "workspaceName": "shop", "stackName": "dev", "type": "up", "ttlAfterCompleted": "24h0m0s", "target": ["urn:a"], "parallel": 3 },
                "status": { "observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z", "outputs": "shop-stack-outputs", "conditions": [condition] },
            }),
        ),
    ]
}

/// Writes an object and its status as PKO does: a field of another manager would be a conflict.
async fn as_pko(admin: &Client, object: &Value) -> Result<DynamicObject> {
    let (api, name) = (api_of(admin, object), object["metadata"]["name"].as_str().context("a name")?);
    let manager = PatchParams::apply("pulumi-kubernetes-operator");
    let mut rest = object.clone();
    let status = rest.as_object_mut().and_then(|rest| rest.remove("status"));
    api.patch(name, &manager, &Patch::Apply(&rest)).await?;
    let status =
        json!({ "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": { "name": name }, "status": status });
    Ok(api.patch_status(name, &manager, &Patch::Apply(&status)).await?)
}

fn api_of(admin: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    api(admin, text("apiVersion"), text("kind"))
}

fn api(admin: &Client, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Api::default_namespaced_with(admin.clone(), &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
}

/// PKO's definitions: those in the folder that `PKO_CRDS` names, such as `deploy/crds` of its
/// repository, else ones made from its fields.
fn definitions() -> Result<Vec<(String, Value)>> {
    let Some(folder) = env::var_os("PKO_CRDS") else { return of_fields() };
    let named = |entry: io::Result<fs::DirEntry>| -> Result<_> {
        let definition: Value = serde_saphyr::from_str(&fs::read_to_string(entry?.path())?)?;
        Ok((definition["metadata"]["name"].as_str().context("a definition has a name")?.to_owned(), definition))
    };
    fs::read_dir(folder)?.map(named).collect()
}

fn of_fields() -> Result<Vec<(String, Value)>> {
    let mut found: Vec<(String, Value)> = Vec::new();
    for kind in ["Stack", "Program", "Workspace", "Update"] {
        let group = if ["Stack", "Program"].contains(&kind) { "pulumi.com" } else { "auto.pulumi.com" };
        let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
        let name = format!("{plural}.{group}");
        let mut versions = Vec::new();
        for version in ["v1", "v1alpha1"] {
            let mut schema = json!({ "type": "object", "properties": {} });
            let lines = FIELDS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
            for line in lines.filter(|line| line[0] == format!("{name}/{version}")) {
                let [_, path, kind, constraints @ ..] = &line[..] else { continue };
                add(&mut schema, path, kind, constraints.first().unwrap_or(&""))?;
            }
            if schema["properties"] != json!({}) {
                close(&mut schema);
                let stored = version == "v1" || group == "auto.pulumi.com";
                let schema = json!({ "openAPIV3Schema": schema });
                versions.push(json!({ "name": version, "served": true, "storage": stored, "schema": schema, "subresources": { "status": {} } }));
            }
        }
        let names = json!({ "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular });
        let spec = json!({ "group": group, "names": names, "scope": "Namespaced", "versions": versions });
        let metadata = json!({ "name": name });
        found.push((name, json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec })));
    }
    Ok(found)
}

/// Adds a field to a schema: `.` is a property, `[]` an item of a list, `{}` a value of a map.
fn add(schema: &mut Value, path: &str, kind: &str, constraints: &str) -> Result<()> {
    let path = path.replace("[]", ".[]").replace("{}", ".{}");
    let (parent, own) = path.rsplit_once('.').unwrap_or(("", &path));
    let mut at = schema;
    for part in parent.split('.').filter(|part| !part.is_empty()) {
        at = step(at, part);
    }
    let words: Vec<_> = constraints.split(' ').filter(|word| !word.is_empty()).collect();
    if words.contains(&"required") {
        at["required"] =
            json!(at["required"].as_array().cloned().unwrap_or_default().into_iter().chain([json!(own)]).collect::<Vec<_>>());
    }
    let field = step(at, own);
    match kind {
        "any" => field["x-kubernetes-preserve-unknown-fields"] = true.into(),
        "int-or-string" => field["x-kubernetes-int-or-string"] = true.into(),
        kind => field["type"] = kind.into(),
    }
    for word in words {
        match word.split_once('=') {
            Some(("default", value)) => field["default"] = serde_json::from_str(value)?,
            Some(("enum", values)) => field["enum"] = values.split('|').collect(),
            Some(("format", format)) => field["format"] = format.into(),
            Some(("list", list)) => {
                let (list, keys) = list.split_once(':').unwrap_or((list, ""));
                field["x-kubernetes-list-type"] = list.into();
                if !keys.is_empty() {
                    field["x-kubernetes-list-map-keys"] = keys.split(',').collect();
                }
            }
            _ => ensure!(word == "required", "the constraint {word:?} of {path} is not known"),
        }
    }
    Ok(())
}

fn step<'a>(schema: &'a mut Value, part: &str) -> &'a mut Value {
    match part {
        "[]" => &mut schema["items"],
        "{}" => &mut schema["additionalProperties"],
        property => &mut schema["properties"][property],
    }
}

/// An object without listed fields, such as the spec of a pod, keeps any field.
fn close(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let open = |fields: &Map<String, Value>| !fields.contains_key("properties") && !fields.contains_key("additionalProperties");
    if fields.get("type").is_some_and(|kind| kind == "object") && open(fields) {
        fields.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    for inner in ["items", "additionalProperties"] {
        fields.get_mut(inner).into_iter().for_each(close);
    }
    for property in fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        close(property.1);
    }
}
