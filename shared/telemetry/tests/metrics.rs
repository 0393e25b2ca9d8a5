//! The lines of metrics against `CloudWatch`'s specification.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use driftless_telemetry::metrics::{Metric, count, emit, lines};
use driftless_testkit::emf::{check, written};
use jiff::Timestamp;
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt as _;

fn at() -> Timestamp {
    Timestamp::constant(1_700_000_000, 123_000_000)
}

#[test]
fn metric_line_has_values_dimensions_and_properties() {
    let ((), lines) = written(|| {
        let values = [(Metric::RunsEnded, 1.0), (Metric::VcpuSeconds, 30.5)];
        let fields = [("cluster", "kind"), ("operation", "up"), ("outcome", "Failed"), ("update", "kind/Update/n/\"u\"\n")];
        emit(&values, &fields, at());
    });
    let directive = |name: &str, unit: &str, dimensions: Value| json!({ "Namespace": "Driftless", "Dimensions": dimensions, "Metrics": [{ "Name": name, "Unit": unit }] });
    let expected = json!({
        "_aws": {
            "Timestamp": 1_700_000_000_123_u64,
            "CloudWatchMetrics": [
                directive("RunsEnded", "Count", json!([["outcome"], ["cluster", "operation", "outcome"]])),
                directive("VcpuSeconds", "None", json!([["cluster"]])),
            ],
        },
        "cluster": "kind", "operation": "up", "outcome": "Failed", "update": "kind/Update/n/\"u\"\n",
        "RunsEnded": 1.0, "VcpuSeconds": 30.5,
    });
    assert_eq!(lines, [expected]);
}

#[test]
fn every_metric_can_be_written_and_its_dimensions_are_few() {
    let bounded = ["cluster", "function", "operation", "outcome", "queue", "reason"];
    let mut names = BTreeSet::new();
    for metric in Metric::ALL {
        let ((), lines) = written(|| emit(&[(*metric, count(3))], &bounded.map(|name| (name, "x")), at()));
        assert_eq!(lines[0][metric.name()], 3.0);
        assert!(metric.dimensions().iter().flat_map(|set| set.iter()).all(|name| bounded.contains(name)), "{metric:?}");
        assert!(names.insert(metric.name()), "{metric:?}");
    }
}

#[test]
fn violation_of_the_metric_format_is_found() {
    let good = || {
        let ((), mut lines) = written(|| emit(&[(Metric::Stacks, 1.0)], &[("cluster", "kind")], at()));
        lines.remove(0)
    };
    let breaks = |change: fn(&mut Value), words: &str| {
        let mut line = good();
        change(&mut line);
        let found = check(&line.to_string(), Some(at())).unwrap_err();
        assert!(found.contains(words), "{found}");
    };
    assert_eq!(check(&good().to_string(), Some(at())), Ok(good()));
    breaks(|line| *line = json!([]), "not an object");
    breaks(|line| line["_aws"]["Timestamp"] = 1_700_000_000_u32.into(), "too long ago");
    breaks(|line| line["_aws"]["Timestamp"] = "now".into(), "no time");
    breaks(|line| line["_aws"]["CloudWatchMetrics"] = json!([]), "no directive");
    breaks(|line| line["cluster"] = 1.into(), "cluster, a dimension, is no string");
    breaks(|line| line["cluster"] = " ".into(), "a dimension's value");
    breaks(|line| line["Stacks"] = "1".into(), "Stacks, a metric, is no number");
    breaks(|line| drop(line.as_object_mut().unwrap().remove("Stacks")), "Stacks, a metric, is no number");
    for (field, value, words) in [
        ("Namespace", json!(""), "the namespace"),
        ("Dimensions", json!([]), "no set of dimensions"),
        ("Dimensions", json!([["stack"]]), "stack, a dimension, is no string"),
        ("Dimensions", json!([vec!["cluster"; 31]]), "more than 30 dimensions"),
        ("Metrics", json!([]), "0 or more than 100 metrics"),
        ("Metrics", json!([{ "Name": "x".repeat(256), "Unit": "Count" }]), "a metric's name"),
        ("Metrics", json!([{ "Name": "Stacks", "Unit": "Pieces" }]), "a unit"),
        ("Metrics", json!([{ "Name": "Stacks" }]), "the members"),
    ] {
        let mut line = good();
        line["_aws"]["CloudWatchMetrics"][0][field] = value;
        let found = check(&line.to_string(), Some(at())).unwrap_err();
        assert!(found.contains(words), "{found}");
    }
    assert!(check(&format!("INFO {}", good()), None).unwrap_err().contains("not JSON"));
}

#[test]
fn a_log_line_is_no_metric() {
    let ((), metrics) = written(|| tracing::error!("a log line"));
    assert!(metrics.is_empty());
    let heard = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&heard);
    let listener = tracing_subscriber::registry().with(lines(move |_| *counted.lock().unwrap() += 1));
    tracing::subscriber::with_default(listener, || emit(&[(Metric::Stacks, 1.0)], &[("cluster", "kind")], at()));
    emit(&[(Metric::Stacks, 1.0)], &[("cluster", "kind")], at());
    assert_eq!(*heard.lock().unwrap(), 1);
}
