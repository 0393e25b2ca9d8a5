//! What caused the end of a task: the program, or the platform under it.

use jiff::Timestamp;

use crate::FailureReason;

/// Why a task stopped, as far as a decision needs it; named after the stop codes of ECS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCode {
    /// A container did not start: an image, a network interface, an init container.
    FailedToStart,
    /// The main container exited.
    Exited,
    /// Driftless stopped it.
    Requested,
    /// A person or another system stopped it.
    Outside,
    /// Fargate Spot reclaims the capacity.
    Spot,
    /// AWS stops the task: maintenance, a retired host.
    Maintenance,
}

/// Why a task stopped or is about to, by the place where it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskEnd {
    /// The stop code; `None` if there is none.
    pub code: Option<StopCode>,
    /// The main container was killed because it exceeded its memory.
    pub out_of_memory: bool,
    /// Stop code, reason and the containers' exit codes, as reported.
    pub words: String,
    /// When the task was seen to stop; `None` if that is not reported.
    pub at: Option<Timestamp>,
}

/// The remedy for a task that ran out of memory: the field for a Stack's run, and that for an
/// Update made by hand.
pub const MORE_MEMORY: &str = "give it more memory with spec.workspaceTemplate.spec.resources.limits.memory of the Stack, or \
                           spec.resources.limits.memory of the Workspace";

/// The remedy for a task whose disk is full, in the same way.
pub const MORE_DISK: &str = "give it a larger disk with spec.workspaceTemplate.spec.resources.limits.ephemeral-storage of the Stack, or \
                             spec.resources.limits.ephemeral-storage of the Workspace";

/// The remedy for an image without a program that the run calls: the same fields, and the parameter
/// of the installation.
pub const OTHER_IMAGE: &str = "name one that has it in spec.workspaceTemplate.spec.image of the Stack, in spec.image of the Workspace, or \
                               for a whole installation in the parameter RuntimeImages (docs/images.md)";

/// The remedy for a runner that was killed for a reason that ECS does not name.
const KILLED: &str = "a signal killed the runner, most often because the task ran out of memory: set more memory with \
                      spec.workspaceTemplate.spec.resources.limits.memory of the Stack, or spec.resources.limits.memory of the Workspace";

/// The runner's exit code if its task has no run, or if S3 denies the read: S3 answers the same in
/// both cases.
pub const EXIT_NO_RUN: u8 = 40;
/// The runner's exit code if S3 refuses its requests, so that it cannot report the reason.
pub const EXIT_REFUSED: u8 = 41;
/// The runner's exit code if it cannot reach S3, or the endpoint of its credentials.
pub const EXIT_UNREACHABLE: u8 = 42;

/// What ended a run that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The program.
    Program,
    /// The program exceeded its memory.
    OutOfMemory,
    /// Fargate Spot reclaimed the capacity.
    Spot,
    /// AWS stopped the task for maintenance.
    Maintenance,
    /// A person or another system stopped the task.
    Outside,
    /// Any other cause outside Pulumi.
    Platform,
}

impl Cause {
    /// Returns whether the platform failed, so that the failure does not count. A retry of a
    /// program that exceeded its memory fails in the same way, so that counts.
    #[must_use]
    pub fn is_platform(self) -> bool {
        match self {
            Self::Program | Self::OutOfMemory => false,
            Self::Spot | Self::Maintenance | Self::Outside | Self::Platform => true,
        }
    }
}

/// ECS's message, in lower case, for an image that is not built for the task's processor:
/// `CannotPullContainerError: image Manifest does not contain descriptor matching platform
/// 'linux/amd64'`.
const OTHER_ARCHITECTURE: &str = "descriptor matching platform";

/// The remedy if the Workspace selects a processor that the image is not built for.
pub const SELECT_ARCHITECTURE: &str = "select another processor with the node label kubernetes.io/arch in \
                                       spec.workspaceTemplate.spec.podTemplate.spec.nodeSelector, or remove the label";

impl TaskEnd {
    /// Returns what ended a run without a result. The runner reports every failure of Pulumi, so a
    /// missing report is the platform's failure, unless Driftless stopped the task: that is how an
    /// overdue run ends. `began` means that Pulumi may have started.
    #[must_use]
    pub fn cause(&self, began: bool) -> Cause {
        match self.code {
            _ if self.out_of_memory => Cause::OutOfMemory,
            Some(StopCode::Spot) => Cause::Spot,
            Some(StopCode::Maintenance) => Cause::Maintenance,
            Some(StopCode::Outside) => Cause::Outside,
            Some(StopCode::Requested) if began => Cause::Program,
            _ => Cause::Platform,
        }
    }

    /// Returns what caused a failure that the runner reported with this reason. A run did not fail
    /// if AWS or a person stopped its task and that interrupted it.
    #[must_use]
    pub fn cause_of(&self, reason: FailureReason) -> Cause {
        match (reason, self.code) {
            (FailureReason::Interrupted, Some(StopCode::Spot)) => Cause::Spot,
            (FailureReason::Interrupted, Some(StopCode::Maintenance)) => Cause::Maintenance,
            (FailureReason::Interrupted, Some(StopCode::Outside)) => Cause::Outside,
            (FailureReason::PlatformFailure | FailureReason::OtherArchitecture, _) => Cause::Platform,
            _ => Cause::Program,
        }
    }

    /// Returns whether an image of the task is not built for the task's processor.
    #[must_use]
    pub fn is_other_architecture(&self) -> bool {
        self.words.to_lowercase().contains(OTHER_ARCHITECTURE)
    }

    /// Returns the remedy for this end.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        if self.code == Some(StopCode::Outside) {
            return "stopped from outside Driftless; nothing to do";
        }
        let exits = [
            (
                EXIT_NO_RUN,
                "S3 denies the task its folder, or nothing was written there; check the policies of the task role, the bucket and the VPC \
                 endpoint for S3",
            ),
            (
                EXIT_REFUSED,
                "S3 refuses the task's requests; see its error code in the task's log, check the Region of the bucket, and proxies",
            ),
            (EXIT_UNREACHABLE, "the task cannot reach S3; check the route to it from the subnets"),
        ];
        // Only the main container counts: an init container is the tenant's, and may exit with any
        // code.
        let exit = exits.into_iter().find(|(code, _)| self.words.contains(&format!("pulumi: exit code {code}")));
        if let Some((_, remedy)) = exit {
            return remedy;
        }
        let remedies = [
            ("outofmemory", MORE_MEMORY),
            ("pulumi: exit code 137", KILLED),
            (OTHER_ARCHITECTURE, SELECT_ARCHITECTURE),
            (
                "cannotpull",
                "check the Workspace's image and the pull limits of its registry, and name a private registry in PrivateRegistries",
            ),
            ("resourceinitializationerror", "check the routes from the subnets to ECR, CloudWatch Logs and the image registries"),
            ("network interface", "check the free addresses of the subnets"),
            ("dependency graph", "see the log of the init container that failed"),
        ];
        // ECS and EC2 write the same failure in different cases.
        let words = self.words.to_lowercase();
        let known = remedies.into_iter().find(|(word, _)| words.contains(word));
        known.map_or("see the task's log if it lasts", |(_, remedy)| remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(code: Option<StopCode>, out_of_memory: bool) -> TaskEnd {
        TaskEnd { code, out_of_memory, ..TaskEnd::default() }
    }

    #[test]
    fn only_pulumi_and_its_memory_fail_a_run() {
        use StopCode::{Exited, FailedToStart, Maintenance, Outside, Requested, Spot};
        for (code, out_of_memory, began, expected) in [
            (Some(FailedToStart), false, false, Cause::Platform),
            (Some(FailedToStart), false, true, Cause::Platform),
            (Some(Exited), false, false, Cause::Platform),
            (Some(Exited), false, true, Cause::Platform),
            (Some(Exited), true, true, Cause::OutOfMemory),
            (Some(Exited), true, false, Cause::OutOfMemory),
            (Some(Requested), false, false, Cause::Platform),
            (Some(Requested), false, true, Cause::Program),
            (Some(Outside), false, false, Cause::Outside),
            (Some(Outside), false, true, Cause::Outside),
            (Some(Spot), false, true, Cause::Spot),
            (Some(Maintenance), false, true, Cause::Maintenance),
            (None, false, true, Cause::Platform),
        ] {
            assert_eq!(end(code, out_of_memory).cause(began), expected, "{code:?} {out_of_memory} {began}");
        }
    }

    #[test]
    fn reported_failure_is_the_platforms_only_if_it_stopped_the_task() {
        use StopCode::{Exited, FailedToStart, Maintenance, Outside, Requested, Spot};
        for code in [Exited, FailedToStart, Requested, Outside, Spot, Maintenance] {
            for reason in FailureReason::ALL {
                let expected = match (reason, code) {
                    (FailureReason::Interrupted, Spot) => Cause::Spot,
                    (FailureReason::Interrupted, Maintenance) => Cause::Maintenance,
                    (FailureReason::Interrupted, Outside) => Cause::Outside,
                    (FailureReason::PlatformFailure | FailureReason::OtherArchitecture, _) => Cause::Platform,
                    _ => Cause::Program,
                };
                assert_eq!(end(Some(code), false).cause_of(*reason), expected, "{code:?} {reason}");
            }
        }
        for (cause, expected) in [
            (Cause::Program, false),
            (Cause::OutOfMemory, false),
            (Cause::Spot, true),
            (Cause::Maintenance, true),
            (Cause::Outside, true),
            (Cause::Platform, true),
        ] {
            assert_eq!(cause.is_platform(), expected, "{cause:?}");
        }
    }

    #[test]
    fn remedy_matches_the_message_of_ecs() {
        for (words, expected) in [
            ("TaskFailedToStart; CannotPullContainerError: toomanyrequests", "pull limits"),
            (
                "CannotPullContainerError: image Manifest does not contain descriptor matching platform 'linux/amd64'",
                "kubernetes.io/arch",
            ),
            ("pulumi: exit code 137, OutOfMemoryError: Container killed", "spec.workspaceTemplate.spec.resources.limits.memory"),
            ("EssentialContainerExited; pulumi: exit code 137", "most often because the task ran out of memory"),
            ("EssentialContainerExited; pulumi: exit code 40", "policies of the task role"),
            ("EssentialContainerExited; pulumi: exit code 41", "Region of the bucket"),
            ("EssentialContainerExited; pulumi: exit code 42", "route to it from the subnets"),
            ("ResourceInitializationError: unable to pull secrets", "routes from the subnets"),
            ("Timeout waiting for network interface provisioning to complete.", "free addresses"),
            ("Unexpected EC2 error while attempting to Create Network Interface", "free addresses"),
            ("dependency graph: failed to resolve container ordering dependency [init-a]", "init container"),
            ("", "the task's log"),
        ] {
            let end = TaskEnd { words: words.into(), ..TaskEnd::default() };
            assert!(end.remedy().contains(expected), "{words}: {}", end.remedy());
        }
        let stopped = TaskEnd { words: "UserInitiated; pulumi: exit code 137".into(), ..end(Some(StopCode::Outside), false) };
        assert!(stopped.remedy().ends_with("stopped from outside Driftless; nothing to do"), "{}", stopped.remedy());
    }
}
