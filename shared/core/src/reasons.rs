//! The reasons in conditions and Events. docs/messages.md lists all of them, with meaning and
//! remedy.

/// Declares a closed set of reasons that a user reads. Each variant has the spelling of its reason,
/// a meaning, and a remedy.
#[macro_export]
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($reason:ident: $meaning:literal, $remedy:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $(#[doc = $meaning] $reason,)*
        }

        impl $name {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The spelling in a status or an Event.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason),)*
                }
            }

            /// Its meaning.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => $meaning,)*
                }
            }

            /// The remedy.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$reason => $remedy,)*
                }
            }

            /// Parses a reason; `None` for one of another release.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// The reasons of a Stack's conditions `Reconciling` and `Stalled`. The names that PKO has are
    /// PKO's.
    StackReason {
        ApprovalRequired: "A plan of the changes waits for an approval.", "Approve or reject it, as the message says (docs/approval.md).";
        ApprovalUnguarded: "The cluster does not enforce who may approve, so no approval counts.", "Apply the admission policy that the message names.";
        Expired: "The TTL of the Stack has ended, and Driftless deletes it.", "Nothing; if the Stack stays, an Event names the cause.";
        OutsideWindow: "A run is wanted, and the maintenance window is closed.", "Nothing; it starts when the window opens. To start it now, remove the annotations of the window.";
        PlanRefused: "The reconciliation would break an invariant of Driftless, and changed nothing.", "Report it with the \
             message; a change of the Stack retries it.";
        PlanRejected: "The plan of the changes was rejected.", "Push another change; for a destroy, do what the message says.";
        PlatformFailure: "AWS did not start or ended the task before Pulumi was done. The run is retried with its own back-off, and not counted as a failed update.", "Usually nothing; the message has the reason of ECS and the remedy.";
        PolicyUnknown: "The plan policies of the cluster cannot be read, so no plan is applied.", "Do what the message says; the Stack continues by itself.";
        PolicyViolation: "A plan policy of the cluster denies the plan, so it is not applied.", "Push another change, or have the policy changed (docs/policies.md).";
        PrerequisiteNotSatisfied: "A Stack in `spec.prerequisites` has not succeeded, or its last success is too old.", "See the named Stack; this one continues by itself.";
        PreviewFailed: "A preview failed, and is retried.", "Correct what the message says.";
        PulumiVersionTooLow: "The image's Pulumi is older than the Stack's fields need.", "Use the image that the message asks for, in `workspaceTemplate.spec.image`.";
        RetryingAfterFailure: "A run failed, and is retried with a back-off.", "Correct what the message says; a new commit or a change of the spec runs immediately.";
        SourceUnavailable: "The source does not exist, has no artifact, or cannot be fetched or used.", "Correct the source or the reference to it.";
        SpecInvalid: "The spec cannot be run.", "Correct the field that the message names.";
        StackProcessing: "A run is in progress or waits, or the source is fetched.", "Nothing; the message says what it waits for.";
        Suspended: "The Stack is suspended: nothing starts.", "Remove the annotation or the field that suspends it.";
        UpdateConflict: "Another process holds the lock of the Pulumi stack, or another object has the name of the Update.", "Make \
             sure that no run is in progress elsewhere, then do what the message says.";
        UpdateFailed: "The run failed too often, and is not retried.", "Correct the program or the spec, or request a reconciliation.";
    }
}

reasons! {
    /// The reasons of a Stack's condition `Drifted`.
    DriftReason {
        Adopted: "A refresh took drift over into the state.", "Change the program to the live values, or the next update changes them back.";
        DriftCheckFailed: "The last drift check failed, so drift is unknown.", "Correct what the message says.";
        DriftDetected: "Resources differ from what was applied.", "Change the program, remediate, or adopt (docs/drift.md).";
        NoDrift: "The last drift check found no difference.", "Nothing.";
        Remediated: "An update has put the drift back: it refreshed, or the state had taken the drift over.", "Nothing.";
    }
}

reasons! {
    /// The reasons of Events on Stacks and Updates. The names that PKO has are PKO's.
    EventReason {
        ConfigLeftOut: "A destroy without its Secrets leaves out the configuration that it cannot read.", "Restore the Secret if the destroy needs it.";
        DriftAdopted: "A refresh took drift over into the state.", "Change the program to the live values, or the next update changes them back.";
        DriftCheckFailed: "A drift check failed, so drift is unknown.", "Correct what the note says.";
        DriftDetected: "Resources differ from what was applied.", "Change the program, remediate, or adopt (docs/drift.md).";
        DriftResolved: "Earlier drift is gone.", "Nothing.";
        FrequentResync: "The Stack asks for many resync runs; each costs a task.", "Raise `spec.resyncFrequencySeconds`.";
        LogNotStored: "The log of a run could not be stored in its ConfigMap.", "Correct what the note says; CloudWatch has the log.";
        NoIdentity: "A destroy runs without the tokens of its ServiceAccount.", "Restore the ServiceAccount if the destroy needs it.";
        OutputsNotStored: "Outputs could not be written to their Secret, or to an object that the Stack names.", "Correct what the note says; the next run writes them.";
        PendingOperations: "An interrupted run left operations whose result Pulumi does not know.", "Check the resources with the provider, then refresh.";
        PlanFailed: "The preview of a guarded Stack failed, so there is no plan to approve.", "Correct what the note says.";
        PlanProposed: "A plan of the changes waits for an approval.", "Approve or reject it (docs/approval.md).";
        PlanStale: "The run would do something else than what was approved, so it did nothing.", "Approve the new plan.";
        PlatformFailure: "AWS did not start or ended a task before Pulumi was done.", "Usually nothing; the run is retried.";
        PolicyViolation: "A plan policy of the cluster denies the plan, so it is not applied.", "Push another change, or have the policy changed (docs/policies.md).";
        PolicyWarning: "A plan policy of the cluster warns about the plan.", "Read the plan before you approve it.";
        PodFieldsIgnored: "The template has fields that only matter to a pod.", "Nothing, or remove them.";
        ResourceFailed: "A resource failed in a run.", "Correct what the note says.";
        RevisionSkipped: "A revision changes none of the paths that the Stack depends on: no run.", "Nothing.";
        StackConfigInvalid: "The spec cannot be run.", "Correct the field that the note names.";
        StackCreated: "A run succeeded, the first or a later one.", "Nothing.";
        StackUpdateDetected: "A run starts; the note says why.", "Nothing.";
        StackUpdateFailure: "A run failed.", "Correct what the note says.";
        StateNotKept: "The backend is on the disk of the task, so each run creates all resources again.", "Keep the state in an object store, such as `s3://BUCKET`.";
        TtlEnds: "The TTL of the Stack ends soon; the note says when the Stack is deleted, or what prevents that.", "Nothing; to keep the Stack, raise or remove the annotation `driftless.dev/ttl`.";
        TtlExpired: "The TTL of the Stack has ended.", "Nothing; if the API server refuses the deletion, do what the note says.";
        UpdateRefused: "The API server refuses the Update or the Workspace of a run.", "Correct the template, the quota or the admission policy that the note names.";
        WorkspaceDeleted: "The Workspace was deleted after the run, as `workspaceReclaimPolicy` says.", "Nothing.";
    }
}

impl EventReason {
    /// Returns whether an Event with this reason says how a run ended. It may become a comment on a
    /// pull request.
    #[must_use]
    pub fn is_result(self) -> bool {
        matches!(self, Self::StackCreated | Self::StackUpdateFailure)
    }

    /// Returns whether an Event with this reason may set a commit status. An update that starts is
    /// no result, and Flux would show it as a success.
    #[must_use]
    pub fn is_verdict(self) -> bool {
        self.is_result() || self == Self::RevisionSkipped
    }

    /// The command of `kubectl driftless` that shows more about the Stack of an Event with this
    /// reason.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::LogNotStored
            | Self::PendingOperations
            | Self::PlanFailed
            | Self::ResourceFailed
            | Self::StackUpdateDetected
            | Self::StackUpdateFailure => "logs",
            Self::DriftAdopted
            | Self::DriftDetected
            | Self::DriftResolved
            | Self::PlanProposed
            | Self::PlanStale
            | Self::PolicyViolation
            | Self::PolicyWarning
            | Self::StackCreated => "diff",
            Self::ConfigLeftOut
            | Self::DriftCheckFailed
            | Self::FrequentResync
            | Self::NoIdentity
            | Self::OutputsNotStored
            | Self::PlatformFailure
            | Self::PodFieldsIgnored
            | Self::RevisionSkipped
            | Self::StackConfigInvalid
            | Self::StateNotKept
            | Self::TtlEnds
            | Self::TtlExpired
            | Self::UpdateRefused
            | Self::WorkspaceDeleted => "explain",
        }
    }
}

reasons! {
    /// Why an Update does not start yet: `status.driftless.waitingReason`, and the reason of its
    /// condition `Progressing`. A Workspace that is not ready has the same reasons.
    WaitReason {
        ApprovalRequired: "A Stack with the same Pulumi stack requires approvals.", "Change the Stack instead, or remove its annotation `driftless.dev/approval`.";
        ConcurrencyLimit: "A limit of concurrent runs is reached.", "Nothing; raise `MaxRuns` or `MaxRunsPerNamespace` if it lasts.";
        InputForbidden: "Driftless has no right to read a Secret or a ConfigMap.", "Bind the ClusterRole that the message names \
             (docs/installation.md).";
        InputNotFound: "A Secret or a ConfigMap, or a key of one, does not exist.", "Create it, or correct the reference.";
        InputsChanged: "The inputs name another backend or project than the launch record.", "Nothing; the Stack continues with another Update.";
        PolicyPackUnavailable: "The content of a policy pack that the run is held to is not stored.", "Nothing while it is fetched; else \
             correct the PlanPolicy or the source that the message names.";
        ServiceAccountForbidden: "Driftless has no right to request a token of the ServiceAccount.", "Bind the ClusterRole that the message \
             names (docs/installation.md).";
        ServiceAccountInvalid: "An annotation of the ServiceAccount is invalid.", "Correct the annotation that the message names.";
        ServiceAccountNotFound: "The ServiceAccount does not exist.", "Create it, or correct `serviceAccountName`.";
        SourceNotFetched: "The Workspace's own source is being fetched.", "Nothing.";
        SourceUnavailable: "The Workspace's own source cannot be fetched.", "Correct the source in the Workspace.";
        SpecInvalid: "The spec cannot be run.", "Correct the field that the message names.";
        StackClaimed: "Another run uses the Pulumi stack.", "Nothing; it starts when that run ends.";
        StackSuspended: "The Stack is suspended.", "Resume the Stack.";
        TaskNotStarted: "ECS started no task: capacity, a quota, or throttling.", "Nothing; ask AWS for a higher quota if it lasts.";
        TaskRefused: "ECS refuses to start tasks: the installation or the account is the cause.", "Have the operator correct what the message says.";
        TreeNotFound: "The source's tree is not stored.", "Nothing; it is fetched again.";
        WorkspaceNotFound: "The Workspace does not exist.", "Create it, or correct `spec.workspaceName`.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_round_trip() {
        for reason in WaitReason::ALL {
            assert_eq!(WaitReason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(WaitReason::parse("Progressing"), None);
        assert_eq!(StackReason::PlanRefused.to_string(), "PlanRefused");
    }
}
