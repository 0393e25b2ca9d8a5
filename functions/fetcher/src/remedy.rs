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

/// The remedy for a kind that is not used.
pub(crate) fn kind_remedy(group: &str, kind: &str) -> String {
    if kind == "HelmRepository" {
        return "; name a HelmChart, a GitRepository or an OCIRepository".into();
    }
    format!("; name a source of Flux, or add {group}/{kind} to SourceKinds and grant the right to read it")
}
