//! Health and actions for Argo CD (`infra/argocd`), run as Argo CD runs its own: each kind has a
//! `health_test.yaml`, a Stack also an `action_test.yaml`. Driftless's types must read every field
//! of the objects in `testdata`, so that a renamed field fails here.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use driftless_api::{Program, Stack, Update, Workspace, names};
use mlua::{Lua, LuaSerdeExt as _};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const CONFIG: &str = include_str!("../../infra/argocd/argocd-cm.yaml");
const PAGE: &str = include_str!("../../docs/argocd.md");
const KINDS: [(&str, &str); 4] = [
    ("Stack", "pulumi.com_Stack"),
    ("Program", "pulumi.com_Program"),
    ("Update", "auto.pulumi.com_Update"),
    ("Workspace", "auto.pulumi.com_Workspace"),
];

#[test]
fn each_kind_has_the_health_that_its_status_says() -> Result<()> {
    for (kind, name) in KINDS {
        let script = setting(&format!("resource.customizations.health.{name}"))?;
        let tests = read(kind, "health_test.yaml")?;
        for test in tests["tests"].as_array().context("tests")? {
            let input = object(kind, &test["inputPath"])?;
            assert_eq!(run(&script, &input)?, test["healthStatus"], "{kind} {}", test["inputPath"]);
        }
    }
    Ok(())
}

#[test]
fn actions_of_a_stack_are_offered_when_they_change_something() -> Result<()> {
    let (actions, tests) = (actions()?, read("Stack", "actions/action_test.yaml")?);
    let discovery = actions["discovery.lua"].as_str().context("discovery.lua")?;
    for test in tests["discoveryTests"].as_array().context("discoveryTests")? {
        let wanted = test["result"].as_array().context("result")?;
        let wanted: serde_json::Map<_, _> =
            wanted.iter().map(|one| (text(&one["name"]), json!({ "disabled": one["disabled"] }))).collect();
        assert_eq!(run(discovery, &object("Stack", &test["inputPath"])?)?, Value::Object(wanted), "{}", test["inputPath"]);
    }
    Ok(())
}

#[test]
fn actions_of_a_stack_set_the_annotations_that_driftless_reads() -> Result<()> {
    let (actions, tests) = (actions()?, read("Stack", "actions/action_test.yaml")?);
    let definitions = actions["definitions"].as_array().context("definitions")?;
    let tests = tests["actionTests"].as_array().context("actionTests")?;
    assert_eq!(tests.len(), definitions.len());
    for test in tests {
        let action = definitions.iter().find(|one| one["name"] == test["action"]).context("an action")?;
        let script = action["action.lua"].as_str().context("action.lua")?;
        ensure!(
            PAGE.contains(&format!("\n| `{}` | ", text(&test["action"]))),
            "docs/argocd.md has no row for {}",
            test["action"]
        );
        let wanted = object("Stack", &test["expectedOutputPath"])?;
        let mut got = run(script, &object("Stack", &test["inputPath"])?)?;
        // A Lua table without entries is neither a list nor a map.
        if got["metadata"]["annotations"] == json!([]) {
            got["metadata"]["annotations"] = json!({});
        }
        assert_eq!(got, wanted, "{}", test["action"]);
    }
    for name in [names::RECONCILIATION_REQUEST, names::SUSPEND, names::REMEDIATE] {
        ensure!(CONFIG.contains(&format!("[\"{name}\"]")), "no action sets {name}");
    }
    Ok(())
}

fn setting(name: &str) -> Result<String> {
    let config: Value = serde_saphyr::from_str(CONFIG)?;
    Ok(config["data"][name].as_str().with_context(|| format!("argocd-cm.yaml has no {name}"))?.to_owned())
}

fn actions() -> Result<Value> {
    Ok(serde_saphyr::from_str(&setting("resource.customizations.actions.pulumi.com_Stack")?)?)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(kind: &str, path: &str) -> Result<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/argocd").join(kind).join(path);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_saphyr::from_str(&text)?)
}

/// An object of `testdata`, every field of which Driftless's types know.
fn object(kind: &str, path: &Value) -> Result<Value> {
    let object = read(kind, &text(path))?;
    let known = match kind {
        "Stack" => round_trip::<Stack>(&object)?,
        "Program" => round_trip::<Program>(&object)?,
        "Update" => round_trip::<Update>(&object)?,
        _ => round_trip::<Workspace>(&object)?,
    };
    for part in ["spec", "status"] {
        for field in leaves(&object[part], format!("/{part}")) {
            ensure!(known.pointer(&field).is_some(), "{kind} {path}: our types have no {field}");
        }
    }
    Ok(object)
}

fn round_trip<K: DeserializeOwned + Serialize>(object: &Value) -> Result<Value> {
    Ok(serde_json::to_value(serde_json::from_value::<K>(object.clone())?)?)
}

/// The JSON pointers of all values that are neither objects nor lists.
fn leaves(value: &Value, at: String) -> Vec<String> {
    match value {
        Value::Null => vec![],
        Value::Object(fields) => fields.iter().flat_map(|(name, value)| leaves(value, format!("{at}/{name}"))).collect(),
        Value::Array(items) => items.iter().enumerate().flat_map(|(index, item)| leaves(item, format!("{at}/{index}"))).collect(),
        _ => vec![at],
    }
}

/// Runs a script with `obj`, at a fixed time.
fn run(script: &str, object: &Value) -> Result<Value> {
    let lua = Lua::new();
    let run = || {
        lua.globals().set("obj", lua.to_value(object)?)?;
        lua.load("package.loaded.os = { date = function() return \"2026-01-01T00:00:00Z\" end }").exec()?;
        lua.from_value(lua.load(script).eval()?)
    };
    // A Lua error is not `Send`.
    run().map_err(|error: mlua::Error| anyhow!("{error}"))
}
