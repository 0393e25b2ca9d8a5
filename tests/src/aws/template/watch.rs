//! The metrics of alarms and dashboards.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    error::Error,
    resources::{Alarm, Dashboard, Metric},
    shapes as raw,
};

/// The checks of `CloudWatch` when an alarm is created.
pub(super) fn alarm(id: &str, alarm: raw::Alarm) -> Result<Alarm, Error> {
    let fault = |words: String| Err(Error::new(id, words));
    let threshold = alarm.threshold.as_str().map_or_else(|| alarm.threshold.as_f64(), |text| text.parse().ok());
    if threshold.is_none() {
        return fault("its threshold is no number".into());
    }
    if alarm.evaluation_periods == 0 || alarm.datapoints_to_alarm.is_some_and(|points| points > alarm.evaluation_periods) {
        return fault("it needs a period at least, and no more data points than periods".into());
    }
    if alarm.metrics.iter().filter(|query| query.return_data.unwrap_or(true)).count() != 1 {
        return fault("one of its metrics, and no more, is what it watches".into());
    }
    let ids: BTreeSet<_> = alarm.metrics.iter().map(|query| query.id.as_str()).collect();
    let mut metrics = BTreeSet::new();
    for query in &alarm.metrics {
        if !is_id(&query.id) || ids.len() != alarm.metrics.len() {
            return fault(format!("{} is no id, or twice one", query.id));
        }
        match (&query.expression, &query.metric_stat) {
            (Some(expression), None) => {
                let known = |word: &str| ids.contains(word) || !is_id(word);
                let mut words = expression.split(|c: char| !c.is_ascii_alphanumeric());
                if let Some(unknown) = words.find(|word| !known(word)) {
                    return fault(format!("{unknown} in an expression is none of its metrics"));
                }
            }
            (None, Some(raw::Stat { period, metric, .. })) if *period > 0 && period % 60 == 0 => {
                let dimensions = metric.dimensions.iter().map(|dimension| (dimension.name.clone(), dimension.value.clone()));
                let (namespace, name) = (metric.namespace.clone(), metric.metric_name.clone());
                metrics.insert(Metric { namespace, name, dimensions: dimensions.collect() });
            }
            _ => return fault(format!("{} is either an expression or a metric of whole minutes", query.id)),
        }
    }
    Ok(Alarm { name: alarm.alarm_name, actions: alarm.alarm_actions, metrics })
}

/// Ids start with a small letter; functions of metric math with a capital one.
fn is_id(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
}

pub(super) fn dashboard(id: &str, body: &str) -> Result<Dashboard, Error> {
    let fault = |words: String| Error::new(id, words);
    let body: Value = serde_json::from_str(body).map_err(|error| fault(format!("its body: {error}")))?;
    let mut metrics = BTreeSet::new();
    for widget in body["widgets"].as_array().ok_or_else(|| fault("it has no widgets".into()))? {
        let rows = widget["properties"]["metrics"].as_array();
        for row in rows.ok_or_else(|| fault(format!("a widget without metrics: {widget}")))? {
            let unreadable = || fault(format!("a row that is not known here: {row}"));
            let words: Vec<&str> = row.as_array().ok_or_else(unreadable)?.iter().filter_map(Value::as_str).collect();
            match (words.as_slice(), row[0]["expression"].as_str()) {
                ([], Some(expression)) => metrics.extend(searched(expression).map_err(fault)?),
                ([namespace, name, dimensions @ ..], None) if dimensions.len() % 2 == 0 => {
                    let dimensions = dimensions.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
                    let (namespace, name) = ((*namespace).to_owned(), (*name).to_owned());
                    metrics.insert(Metric { namespace, name, dimensions: dimensions.collect() });
                }
                _ => return Err(unreadable()),
            }
        }
    }
    Ok(Dashboard { metrics })
}

/// The metrics of `SEARCH('{namespace,dimensions} MetricName="name"', …` in an expression; there
/// may be none.
fn searched(expression: &str) -> Result<Vec<Metric>, String> {
    let search = |text: &str| {
        let (schema, rest) = text.strip_prefix("'{")?.split_once("} MetricName=\"")?;
        let (name, _) = rest.split_once("\"'")?;
        let mut parts = schema.split(',');
        let namespace = parts.next()?.to_owned();
        Some(Metric { namespace, name: name.into(), dimensions: parts.map(|part| (part.to_owned(), String::new())).collect() })
    };
    let searches = expression.split("SEARCH(").skip(1);
    searches.map(|text| search(text).ok_or_else(|| format!("a search that is not known here: {expression}"))).collect()
}
