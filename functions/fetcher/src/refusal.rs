//! The remedies for content that is refused.

/// The parameter to raise for content that exceeds a limit, as the end of a message.
pub(crate) fn limit_remedy(refusal: &driftless_source::Refusal) -> String {
    use driftless_source::Refusal::{PathTooLong, TargetTooLong, TooDeep, TooDense, TooLarge, TooManyEntries};
    let parameter = match refusal {
        TooLarge { .. } => "UnpackMaxBytes",
        TooManyEntries { .. } => "UnpackMaxEntries",
        PathTooLong { .. } | TargetTooLong { .. } => "UnpackMaxPathLength",
        TooDeep { .. } => "UnpackMaxDepth",
        TooDense { .. } => "UnpackMaxRatio",
        _ => return String::new(),
    };
    format!("; source is not fetched; raise {parameter}")
}
