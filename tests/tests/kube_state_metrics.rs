//! The configuration of kube-state-metrics (`infra/kube-state-metrics`), interpreted as its
//! documentation says: gauges and state sets over objects. Driftless's types must read every field
//! of these, so that a renamed field fails here. kube-state-metrics itself is not run.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{Program, Stack, Update, Workspace};
use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const CONFIG: &str = include_str!("../../infra/kube-state-metrics/values.yaml");
const RULES: &str = include_str!("../../infra/kube-state-metrics/rules.yaml");
const PAGE: &str = include_str!("../../docs/operations.md");

#[test]
fn each_kind_has_its_metrics() -> Result<()> {
    let condition = |kind: &str, is: &str| json!({ "type": kind, "status": is, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let metadata = json!({ "namespace": "team", "name": "app", "generation": 3 });
    let last = json!({ "state": "failed", "failures": 2, "lastResyncTime": "2026-01-01T00:00:00Z" });
    let conditions = json!([condition("Ready", "False"), condition("Reconciling", "True"), condition("Drifted", "Unknown")]);
    for (kind, version, spec, status, expected) in [
        (
            "Stack",
            "pulumi.com/v1",
            json!({ "stack": "dev" }),
            json!({ "lastUpdate": last, "conditions": conditions }),
            vec![
                "driftless_stack_generation{name=app,namespace=team} 3",
                "driftless_stack_condition{name=app,namespace=team,type=Ready} 0",
                "driftless_stack_condition{name=app,namespace=team,type=Reconciling} 1",
                "driftless_stack_last_update_state{name=app,namespace=team,state=succeeded} 0",
                "driftless_stack_last_update_state{name=app,namespace=team,state=failed} 1",
                "driftless_stack_last_update_failures{name=app,namespace=team} 2",
                "driftless_stack_last_resync_timestamp_seconds{name=app,namespace=team} 1767225600",
            ],
        ),
        (
            "Stack",
            "pulumi.com/v1",
            json!({ "stack": "dev" }),
            json!({}),
            vec!["driftless_stack_generation{name=app,namespace=team} 3"],
        ),
        ("Program", "pulumi.com/v1", json!({}), json!({}), vec!["driftless_program_generation{name=app,namespace=team} 3"]),
        (
            "Update",
            "auto.pulumi.com/v1alpha1",
            json!({}),
            json!({ "conditions": [condition("Complete", "True")] }),
            vec!["driftless_update_condition{name=app,namespace=team,type=Complete} 1"],
        ),
        (
            "Workspace",
            "auto.pulumi.com/v1alpha1",
            json!({}),
            json!({ "conditions": [condition("Ready", "False")] }),
            vec!["driftless_workspace_condition{name=app,namespace=team,type=Ready} 0"],
        ),
    ] {
        let body = if kind == "Program" { "program" } else { "spec" };
        let object = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, body: spec, "status": status });
        let known = match kind {
            "Stack" => as_known::<Stack>(&object)?,
            "Program" => as_known::<Program>(&object)?,
            "Update" => as_known::<Update>(&object)?,
            _ => as_known::<Workspace>(&object)?,
        };
        assert_eq!(told(&known)?, expected, "{kind}");
    }
    Ok(())
}

#[test]
fn rules_have_the_names_of_pko_and_read_existing_metrics() -> Result<()> {
    let rules: Value = serde_saphyr::from_str(RULES)?;
    let rules = rules["groups"][0]["rules"].as_array().context("rules")?;
    let names: BTreeSet<_> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["programs_active", "stacks_active", "stacks_failing", "stacks_reconciling"]));
    let known: BTreeSet<_> = resources()?.iter().flat_map(metrics).map(|(name, _)| name).collect();
    for rule in rules {
        let words = rule["expr"].as_str().unwrap_or_default();
        let metric =
            words.split(|char: char| !char.is_ascii_lowercase() && char != '_').find(|word| word.starts_with("driftless_"));
        ensure!(metric.is_some_and(|metric| known.contains(metric)), "{words}: {known:?}");
    }
    for name in known.iter().map(String::as_str).chain(names) {
        ensure!(PAGE.contains(&format!("`{name}`")), "docs/operations.md does not name {name}");
    }
    Ok(())
}

fn resources() -> Result<Vec<Value>> {
    let values: Value = serde_saphyr::from_str(CONFIG)?;
    let config = &values["customResourceState"]["config"];
    ensure!(config["kind"] == "CustomResourceStateMetrics", "{config}");
    Ok(config["spec"]["resources"].as_array().context("resources")?.clone())
}

/// The metrics of a resource, by full name.
fn metrics(resource: &Value) -> Vec<(String, Value)> {
    let of =
        |metric: &Value| (format!("{}_{}", text(&resource["metricNamePrefix"]), text(&metric["name"])), metric["each"].clone());
    resource["metrics"].as_array().into_iter().flatten().map(of).collect()
}

/// The lines of an object, in the order of the configuration.
fn told(object: &Value) -> Result<Vec<String>> {
    let (group, version) = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).context("apiVersion")?;
    let wanted = json!({ "group": group, "version": version, "kind": object["kind"] });
    let resource = resources()?.into_iter().find(|resource| resource["groupVersionKind"] == wanted).context("a resource")?;
    let mut lines = Vec::new();
    for (name, each) in metrics(&resource) {
        let labels = labels(&resource["labelsFromPath"], object);
        match each["type"].as_str() {
            Some("Gauge") => {
                let gauge = &each["gauge"];
                let found = at(object, &gauge["path"]);
                for value in found.as_array().map_or_else(|| vec![found.clone()], Clone::clone) {
                    let own = labels.iter().cloned().chain(self::labels(&gauge["labelsFromPath"], &value)).collect();
                    let number = number(at(&value, &gauge["valueFrom"]));
                    lines.extend(number.map(|number| line(&name, &own, number)));
                }
            }
            Some("StateSet") => {
                let set = &each["stateSet"];
                let Value::String(state) = at(object, &set["path"]) else { continue };
                for one in set["list"].as_array().context("list")? {
                    let own = labels.iter().cloned().chain([(text(&set["labelName"]), text(one))]).collect();
                    lines.push(line(&name, &own, i64::from(one == state)));
                }
            }
            other => bail!("{name} is of the type {other:?}"),
        }
    }
    Ok(lines)
}

fn line(name: &str, labels: &BTreeSet<(String, String)>, number: i64) -> String {
    let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
    format!("{name}{{{}}} {number}", labels.join(","))
}

fn labels(paths: &Value, value: &Value) -> BTreeSet<(String, String)> {
    paths.as_object().into_iter().flatten().map(|(label, path)| (label.clone(), text(at(value, path)))).collect()
}

fn at<'a>(value: &'a Value, path: &Value) -> &'a Value {
    path.as_array().into_iter().flatten().fold(value, |value, part| &value[text(part)])
}

/// Numbers, times and the status of a condition are numbers.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) if text == "True" => Some(1),
        Value::String(text) if text == "False" => Some(0),
        Value::String(text) => text.parse::<Timestamp>().ok().map(Timestamp::as_second),
        value => value.as_i64(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The object as Driftless's type writes it.
fn as_known<K: DeserializeOwned + Serialize>(object: &Value) -> Result<Value> {
    Ok(serde_json::to_value(serde_json::from_value::<K>(object.clone())?)?)
}
