//! Metrics, alarms and the dashboard.

use super::*;

/// AWS's own metrics, as far as they are used, with their dimensions.
const OF_AWS: [(&str, &str, &[&str]); 8] = [
    ("AWS/SQS", "ApproximateAgeOfOldestMessage", &["QueueName"]),
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible", &["QueueName"]),
    ("AWS/Lambda", "Errors", &["FunctionName"]),
    ("AWS/Lambda", "Throttles", &["FunctionName"]),
    ("AWS/Lambda", "Duration", &["FunctionName"]),
    ("AWS/Lambda", "Invocations", &["FunctionName"]),
    ("AWS/Lambda", "ConcurrentExecutions", &["FunctionName"]),
    ("AWS/Usage", "ResourceCount", &["Class", "Resource", "Service", "Type"]),
];

/// Returns why no function writes this metric with these dimensions; `None` if one does.
fn unwritten(template: &Template, metric: &Metric) -> Option<String> {
    let dimensions: BTreeSet<&str> = metric.dimensions.keys().map(String::as_str).collect();
    let is = |names: &&[&str]| names.iter().copied().collect::<BTreeSet<_>>() == dimensions;
    let known = if metric.namespace == metrics::NAMESPACE {
        let written = metrics::Metric::ALL.iter().find(|written| written.name() == metric.name);
        written.is_some_and(|written| written.dimensions().iter().any(&is))
    } else {
        OF_AWS.iter().any(|(namespace, name, names)| metric.namespace == *namespace && metric.name == *name && is(names))
    };
    let values = metric.dimensions.iter().all(|(name, value)| match name.as_str() {
        "QueueName" | "queue" => template.queues.values().any(|queue| queue.name == *value),
        "FunctionName" => template.functions.values().any(|function| function.name == *value),
        _ => true,
    });
    (!known || !values).then(|| format!("{metric:?}"))
}

#[test]
fn what_the_dashboard_and_the_alarms_read_is_written() {
    let template = read(TEMPLATE).unwrap();
    let [dashboard] = template.dashboards.as_slice() else { panic!("one dashboard") };
    let read_by_alarms = template.alarms.values().flat_map(|alarm| &alarm.metrics);
    let unknown: Vec<_> =
        dashboard.metrics.iter().chain(read_by_alarms).filter_map(|metric| unwritten(&template, metric)).collect();
    assert_eq!(unknown, Vec::<String>::new());
    let shown: BTreeSet<_> = dashboard.metrics.iter().map(|metric| metric.name.as_str()).collect();
    for metric in metrics::Metric::ALL {
        assert!(shown.contains(metric.name()), "{metric:?} is written and not shown");
    }
    for (from, to) in
        [("RunsEnded", "RunsEnd"), ("{Driftless,cluster,reason}", "{Driftless,cluster}"), ("${Runs.QueueName}", "runs")]
    {
        assert!(TEMPLATE.contains(from));
        let other = read(&TEMPLATE.replace(from, to)).unwrap();
        assert!(other.dashboards[0].metrics.iter().any(|metric| unwritten(&other, metric).is_some()), "{from}");
    }
}

#[test]
fn every_queue_and_every_function_is_shown_and_alarmed() {
    let template = read(TEMPLATE).unwrap();
    let values = |metrics: &BTreeSet<Metric>, name: &str, dimension: &str| -> BTreeSet<String> {
        metrics
            .iter()
            .filter(|metric| metric.name == name)
            .filter_map(|metric| metric.dimensions.get(dimension))
            .cloned()
            .collect()
    };
    let (dead, alive): (BTreeSet<_>, BTreeSet<_>) =
        template.queues.values().map(|queue| queue.name.clone()).partition(|name| name.contains("dead-letters"));
    let functions: BTreeSet<_> = template.functions.values().map(|function| function.name.clone()).collect();
    let all: BTreeSet<_> = dead.union(&alive).cloned().collect();
    let of = |alarm: &str, name: &str, dimension: &str| values(&template.alarms[alarm].metrics, name, dimension);
    let shown = |name: &str, dimension: &str| values(&template.dashboards[0].metrics, name, dimension);
    assert_eq!(of("DeadLettersAlarm", "ApproximateNumberOfMessagesVisible", "QueueName"), dead);
    assert_eq!(of("OldMessagesAlarm", "ApproximateAgeOfOldestMessage", "QueueName"), alive);
    // SQS leaves messages that were received three times out of its metric. Those of `progress`
    // expire before.
    let redelivered = template.queues.values().filter(|queue| queue.retention() > queue.visibility());
    let redelivered = redelivered.map(|queue| queue.name.clone()).filter(|name| alive.contains(name)).collect();
    assert_eq!(of("OldMessagesAlarm", "RedeliveredMessageAge", "queue"), redelivered);
    assert_eq!(shown("RedeliveredMessageAge", "queue"), redelivered);
    assert_eq!(of("FunctionErrorsAlarm", "Errors", "FunctionName"), functions);
    assert_eq!(of("FunctionThrottlesAlarm", "Throttles", "FunctionName"), functions);
    assert_eq!(shown("ApproximateNumberOfMessagesVisible", "QueueName"), all);
    assert_eq!(shown("ApproximateAgeOfOldestMessage", "QueueName"), alive);
    for name in ["Errors", "Throttles", "Duration", "ConcurrentExecutions"] {
        assert_eq!(shown(name, "FunctionName"), functions, "{name}");
    }
}

#[test]
fn alarms_go_to_the_topic_if_there_is_one() {
    let actions = |settings: &Settings| -> BTreeSet<Vec<String>> {
        let template = Template::parse(TEMPLATE, Path::new("/p/infra"), settings).unwrap();
        template.alarms.into_values().map(|alarm| alarm.actions).collect()
    };
    let mut settings = settings();
    assert_eq!(actions(&settings), [vec![]].into());
    settings.parameters.insert("AlarmTopicArn".into(), "arn:aws:sns:eu-west-1:1:ops".into());
    assert_eq!(actions(&settings), [vec!["arn:aws:sns:eu-west-1:1:ops".to_owned()]].into());
}

#[test]
fn every_metric_and_every_alarm_is_documented_as_it_is() {
    let docs = include_str!("../../../../../docs/operations.md");
    let section = |name: &str| docs.split("\n## ").find(|section| section.starts_with(name)).unwrap();
    let rows = |name: &str| -> Vec<Vec<String>> {
        let rows = section(name).lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect()).collect()
    };
    let written = metrics::Metric::ALL.iter().map(|metric| {
        let sets: Vec<_> = metric.dimensions().iter().map(|set| set.join(", ")).collect();
        vec![metric.name().to_owned(), metric.unit().to_owned(), sets.join("; ")]
    });
    let documented: Vec<_> = rows("Metrics")
        .into_iter()
        .map(|mut row| {
            row.truncate(3);
            row
        })
        .collect();
    assert_eq!(documented, written.collect::<Vec<_>>());
    let alarms: BTreeSet<_> = rows("Alarms").into_iter().map(|row| row[0].clone()).collect();
    let template = read(TEMPLATE).unwrap();
    assert_eq!(alarms, template.alarms.values().map(|alarm| alarm.name.trim_start_matches("d-").to_owned()).collect());
}
