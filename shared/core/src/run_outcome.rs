use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{Drift, PlannedChanges, Previewed};

crate::reasons! {
    /// Why a run failed: the reason of an Update's condition `Failed`. The first three that PKO has
    /// are PKO's.
    FailureReason {
        UpdateConflict: "Another process holds the lock of the Pulumi stack.", "See that no run is in progress elsewhere, then do what the message says.";
        InvalidAccessToken: "The backend refuses the access token.", "Correct the token in the Stack's environment.";
        LegacyState: "A file or bucket backend has the layout without projects, which newer versions of Pulumi refuse.", "Run `pulumi state upgrade` on it once.";
        Aborted: "The task ended without a result.", "Correct what the message says.";
        Interrupted: "The task was stopped.", "Nothing, if it was cancelled; else see the message.";
        OtherArchitecture: "The image is not built for the task's processor.", "Nothing; the next run has the other processor.";
        PlatformFailure: "The runner could not use the bucket before Pulumi started.", "Correct what the message says.";
        PlanStale: "The plan is not the approved one any more; nothing was changed.", "Review the new plan and approve it.";
        PlanViolated: "Pulumi stopped because the program did something else than the approved plan.", "Make the program deterministic, then review the next plan.";
        PlanUnstable: "Two previews of the same program take different steps, so no plan holds; nothing was changed.", "Make the program deterministic.";
        PlanUnsupported: "The image has a version of Pulumi that cannot apply a plan.", "Use an image with a newer Pulumi; 3.259.0 is tested.";
        PolicyViolation: "A mandatory policy of a policy pack is violated.", "Change the resource that the message names, or have the policy changed (docs/policies.md).";
        PendingOperations: "An earlier run left pending operations, so no plan is complete.", "Refresh the stack, then review the next plan.";
        Silent: "The run printed nothing for too long.", "See the log; raise `SilenceSeconds` if the program needs it.";
        TimedOut: "The run took too long.", "See the log; raise the limit that the message names.";
        Unknown: "Pulumi failed.", "Correct what the message says.";
    }
}

impl Serialize for FailureReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A reason of another release, or one that a program made up, is `Unknown`.
impl<'de> Deserialize<'de> for FailureReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::parse(&String::deserialize(deserializer)?).unwrap_or(Self::Unknown))
    }
}

/// How a run ended, as recorded in S3.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are facts of their own")]
pub struct RunOutcome {
    /// A task owned it, so it may have had effects.
    pub started: bool,
    /// Pulumi's operation may have started, so the stack may have resources.
    pub operated: bool,
    /// It succeeded.
    pub succeeded: bool,
    /// Why it failed, secrets masked.
    pub message: String,
    /// It failed because another process held the backend's lock.
    pub conflict: bool,
    /// It was stopped before its end.
    pub interrupted: bool,
    /// The platform failed: Pulumi never started, or the task was stopped from outside. It does not
    /// count as a failure.
    pub platform_failure: bool,
    /// The drift that a successful check found.
    pub drift: Option<Drift>,
    /// The changes that a preview found; `None` for any other run, and for one that makes a plan.
    pub previewed: Option<Previewed>,
    /// The plan that it made.
    pub plan: Option<Box<PlannedChanges>>,
    /// The approved plan was not the one that it made, so it changed nothing.
    pub stale: bool,
    /// Outputs, secret ones masked; `None` if the operation reports none.
    pub outputs: Option<BTreeMap<String, Value>>,
    /// The project's name and runtime.
    pub project: Option<(String, String)>,
    /// A link to the update in Pulumi Cloud.
    pub permalink: Option<String>,
    /// A digest of what it read from Secrets and ConfigMaps, if known.
    pub inputs: Option<String>,
}

impl RunOutcome {
    /// The outcome of a run of which only the end is known. A failure has a message, and a reason
    /// if a report names one that this release knows.
    #[must_use]
    pub fn new(failure: Option<(Option<FailureReason>, String)>, platform_failure: bool) -> Self {
        let succeeded = failure.is_none();
        let (reason, message) = failure.unwrap_or_default();
        Self {
            succeeded,
            message,
            conflict: reason == Some(FailureReason::UpdateConflict),
            interrupted: reason == Some(FailureReason::Interrupted) || platform_failure,
            platform_failure,
            stale: reason == Some(FailureReason::PlanStale),
            ..Self::default()
        }
    }
}
