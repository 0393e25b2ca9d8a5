use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::PROCESS;

/// The `CloudWatch` namespace of all metrics.
const NAMESPACE: &str = "Driftless";

/// Counts `value` of `name`: one line in `CloudWatch`'s embedded metric format on stdout. The dimensions are the process and those
/// given; each combination of their values is a metric that costs, so nothing that grows with the number of Stacks may be one.
#[expect(clippy::disallowed_methods, reason = "a clock adapter: the format wants the time")]
pub fn metric(name: &str, value: f64, dimensions: &[(&str, &str)]) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    println!("{}", line(PROCESS.get().unwrap_or(&"unknown"), name, value, dimensions, now.as_millis()));
}

fn line(process: &str, name: &str, value: f64, dimensions: &[(&str, &str)], now_milliseconds: u128) -> Value {
    let dimensions = [&[("Process", process)], dimensions].concat();
    let names: Vec<_> = dimensions.iter().map(|(name, _)| name).collect();
    let directive = json!({ "Namespace": NAMESPACE, "Dimensions": [names], "Metrics": [{ "Name": name, "Unit": "Count" }] });
    let mut line: Map<_, _> = dimensions.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    line.insert(
        "_aws".into(),
        json!({ "Timestamp": u64::try_from(now_milliseconds).unwrap_or_default(), "CloudWatchMetrics": [directive] }),
    );
    line.insert(name.into(), json!(value));
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_a_line_that_names_what_is_in_it() {
        let expected = json!({
            "_aws": {
                "Timestamp": 1_700_000_000_000_u64,
                "CloudWatchMetrics": [{
                    "Namespace": "Driftless",
                    "Dimensions": [["Process", "Kind"]],
                    "Metrics": [{ "Name": "HopsExceeded", "Unit": "Count" }],
                }],
            },
            "Process": "reconciler",
            "Kind": "Stack",
            "HopsExceeded": 1.0,
        });
        assert_eq!(line("reconciler", "HopsExceeded", 1.0, &[("Kind", "Stack")], 1_700_000_000_000), expected);
    }
}
