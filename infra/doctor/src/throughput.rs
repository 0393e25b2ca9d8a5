//! Whether the functions receive their messages, and Lambda runs as many of them at once as the
//! queues may use.

use serde_json::Value;

use crate::{Finding, tools::Answer};

/// Checks the event source mappings of a function; one without mappings gets no finding.
#[must_use]
pub fn mappings(function: &str, listed: &Answer) -> Vec<Finding> {
    let listed = match listed {
        Ok(listed) => listed,
        Err(why) => {
            let what = format!("function {function}: cannot list its event sources");
            return vec![Finding::warn(what, why, "allow lambda:ListEventSourceMappings")];
        }
    };
    let all = listed["EventSourceMappings"].as_array().into_iter().flatten();
    all.map(|mapping| {
        let text = |field: &str| mapping[field].as_str().unwrap_or_default();
        let queue = text("EventSourceArn").rsplit(':').next().unwrap_or_default();
        if text("State") != "Enabled" {
            return Finding::fail(
                format!("queue {queue}: {function} does not read it; its mapping is {}", text("State")),
                text("StateTransitionReason"),
                format!("aws lambda update-event-source-mapping --enabled --uuid {}", text("UUID")),
            );
        }
        if text("LastProcessingResult").starts_with("PROBLEM") {
            let what = format!("queue {queue}: {function} does not receive its messages");
            return Finding::fail(what, text("LastProcessingResult"), "check the role of the function");
        }
        let concurrency = &mapping["ScalingConfig"]["MaximumConcurrency"];
        Finding::ok(format!("queue {queue}: feeds {function}, up to {concurrency} batches of {} at once", mapping["BatchSize"]))
    })
    .collect()
}

/// Checks whether Lambda has enough concurrent executions for all batches that the event source
/// mappings allow.
#[must_use]
pub fn concurrency<'a>(listed: impl IntoIterator<Item = &'a Value>, settings: &Answer) -> Finding {
    let mappings = listed.into_iter().flat_map(|listed| listed["EventSourceMappings"].as_array().into_iter().flatten());
    let wanted: u64 = mappings.filter_map(|mapping| mapping["ScalingConfig"]["MaximumConcurrency"].as_u64()).sum();
    let limit = settings.as_ref().map(|settings| settings["AccountLimit"]["UnreservedConcurrentExecutions"].as_u64());
    match limit {
        Ok(Some(free)) if free < wanted => Finding::warn(
            format!("Lambda: {free} concurrent executions are unreserved, and the queues may use {wanted}"),
            "the functions throttle each other under load",
            "request more (quota L-B99A9384), or lower the parameters …Concurrency (docs/scale.md)",
        ),
        Ok(Some(free)) => {
            Finding::ok(format!("Lambda: {free} concurrent executions are unreserved, the queues may use {wanted}"))
        }
        Ok(None) => Finding::warn("Lambda: its limits are not known", "the answer has no AccountLimit", "update the AWS CLI"),
        Err(why) => Finding::warn("Lambda: cannot read its limits", why, "allow lambda:GetAccountSettings"),
    }
}
