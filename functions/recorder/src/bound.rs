//! Bounds what a task reported, because the tenant's program may have written it and it becomes
//! part of objects. A Stack that etcd refuses, above 1.5 MiB, could not even be deleted.

use driftless_contract::{
    Drift, FailureReason, Installed, Phase, PlanMode, PlannedChanges, PreviewedChange, ProjectInfo, ResourceFailure,
    ResourceStep, RunResult, Verdict,
};
use jiff::Timestamp;

/// The maximum length of a text, in bytes.
const MAX_TEXT: usize = 4 << 10;

/// The maximum number of entries of a list.
const MAX_ENTRIES: usize = 200;

/// The maximum number of failed resources.
const MAX_FAILURES: usize = 10;

/// The maximum memory of a parsed report, in bytes: a function has 256 MiB, for four messages at
/// once.
pub(crate) const MAX_PARSED: usize = 16 << 20;

/// The length of a digest of inputs: HMAC-SHA256 in hex.
const DIGEST_LENGTH: usize = 64;

/// Returns as much of a result as can be kept, for a run with an owner since `owned`. Outputs that
/// are too large are left out and do not change the verdict.
pub(crate) fn bounded(result: RunResult, owned: Timestamp, now: Timestamp) -> RunResult {
    let result = result.fitting();
    let RunResult { version, verdict, outputs, left_out, project, permalink, changes, .. } = result;
    let RunResult { pending_operations, failures, steps, drift, would_change, plan, inputs, installed, pull_millis, .. } = result;
    let verdict = match verdict {
        Verdict::Succeeded {} => verdict,
        Verdict::Failed { phase, reason, message } => Verdict::Failed { phase, reason, message: cut(&message) },
        Verdict::Aborted { message } => Verdict::Aborted { message: cut(&message) },
    };
    let failure = |ResourceFailure { urn, message }| ResourceFailure { urn: cut(&urn), message: cut(&message) };
    let ended_at = result.ended_at.clamp(owned, now.max(owned));
    RunResult {
        version,
        verdict,
        outputs,
        left_out,
        project: project.map(|ProjectInfo { name, runtime }| ProjectInfo { name: cut(&name), runtime: cut(&runtime) }),
        permalink: permalink.filter(|link| link.len() <= MAX_TEXT),
        changes: changes.into_iter().take(MAX_ENTRIES).map(|(operation, count)| (cut(&operation), count)).collect(),
        pending_operations: pending_operations.iter().take(MAX_ENTRIES).map(|operation| cut(operation)).collect(),
        failures: failures.into_iter().take(MAX_FAILURES).map(failure).collect(),
        steps: ResourceStep::longest(steps),
        drift: drift.map(Drift::bounded),
        would_change: PreviewedChange::bounded(would_change),
        plan: plan.map(PlannedChanges::bounded),
        inputs: inputs.filter(|digest| digest.len() == DIGEST_LENGTH),
        installed: installed.map(|installed| Installed { summary: cut(&installed.summary), ..installed }),
        pull_millis,
        started_at: result.started_at.clamp(owned, ended_at),
        ended_at,
    }
}

/// Returns the result with a plan only if the launcher asked for one. A success without it, or with
/// another one than the approved, is the claim of a program, so it counts as a failure.
pub(crate) fn of_mode(mode: Option<&PlanMode>, mut result: RunResult) -> RunResult {
    let hash = result.plan.as_ref().map(|plan| &plan.hash);
    let problem = match mode {
        None => {
            result.plan = None;
            return result;
        }
        Some(PlanMode::Apply { hash: approved, .. }) if hash.is_some_and(|hash| hash != approved) => {
            "result of the task reports a success with another plan than the approved one"
        }
        Some(_) if hash.is_none() => "result of the task reports a success without a plan",
        Some(PlanMode::Propose { .. } | PlanMode::Apply { .. }) => return result,
    };
    if result.verdict == (Verdict::Succeeded {}) {
        result.verdict = unknown(problem);
        result.outputs = None;
    }
    result
}

/// A failure without a known reason.
pub(crate) fn unknown(message: &str) -> Verdict {
    Verdict::Failed { phase: Phase::Run, reason: FailureReason::Unknown, message: cut(message) }
}

/// The text, or its beginning and a mark that it was cut.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT { text.to_owned() } else { format!("{}…", &text[..text.floor_char_boundary(MAX_TEXT - 3)]) }
}

#[cfg(test)]
mod tests {
    use driftless_contract::{ChangeKind, DriftedResource, OutputValue, to_json};
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;

    const OWNED: Timestamp = Timestamp::UNIX_EPOCH;

    fn now() -> Timestamp {
        OWNED + SignedDuration::from_mins(5)
    }

    #[test]
    fn any_report_of_a_task_is_bounded() {
        let long = || "é<".repeat(3 << 10);
        let texts = || (0..10_000).map(|n| format!("{n}{}", "x".repeat(100)));
        let failure = || ResourceFailure { urn: long(), message: long() };
        let step =
            |urn| ResourceStep { urn, operation: "create".into(), started_at: Timestamp::MAX, seconds: u64::MAX, failed: true };
        let resource = DriftedResource { urn: long(), change: long(), properties: vec![long(); 9] };
        let change = PreviewedChange { kind: ChangeKind::Create, urn: long() };
        let verdict = || Verdict::Failed { phase: Phase::Init, reason: FailureReason::Unknown, message: long() };
        let result = RunResult {
            project: Some(ProjectInfo { name: long(), runtime: long() }),
            permalink: Some(long()),
            changes: texts().map(|text| (text, 1)).chain([(long(), 1)]).collect(),
            pending_operations: texts().chain([long()]).collect(),
            failures: (0..99).map(|_| failure()).collect(),
            steps: vec![step("u".repeat(1000)); 999].into_iter().chain([step(long())]).collect(),
            drift: Some(Drift { count: 1000, resources: vec![resource; 150] }),
            would_change: vec![change; 999],
            inputs: Some(long()),
            ..RunResult::new(verdict(), Timestamp::MIN, Timestamp::MAX)
        };
        let result = bounded(result, OWNED, now());
        let bytes = to_json(&result).len();
        assert!(bytes < 256 << 10, "{bytes}");
        assert_eq!((result.permalink, result.inputs), (None, None));
        assert!(matches!(result.verdict, Verdict::Failed { phase: Phase::Init, reason: FailureReason::Unknown, .. }));
        assert_eq!((result.started_at, result.ended_at), (OWNED, now()));
        assert_eq!((result.changes.len(), result.failures.len()), (MAX_ENTRIES, MAX_FAILURES));
        assert_eq!(result.steps.len(), ResourceStep::MAX);
    }

    #[test]
    fn report_of_the_runner_is_unchanged() {
        let verdict = Verdict::Failed { phase: Phase::Run, reason: FailureReason::Interrupted, message: "told to stop".into() };
        let [began, ended] = [10, 20].map(|seconds| OWNED + SignedDuration::from_secs(seconds));
        let result = RunResult {
            outputs: Some([("n".to_owned(), OutputValue { value: json!({ "a": [1] }), secret: true })].into()),
            permalink: Some("https://app.pulumi.com/o/p/s/updates/1".into()),
            changes: [("create".to_owned(), 3)].into(),
            pending_operations: vec!["creating urn:a".into()],
            inputs: Some("0".repeat(DIGEST_LENGTH)),
            ..RunResult::new(verdict, began, ended)
        };
        assert!(bounded(result.clone(), OWNED, now()) == result);
        // A clock that runs behind the others.
        assert_eq!(bounded(result, ended, began).ended_at, ended);
    }
}
