//! What caused the end of a task: the program, or the platform under it.

use jiff::Timestamp;

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

/// What ended a run whose runner reported no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The program: the failure counts.
    Program,
    /// The program exceeded its memory: the failure counts, because a retry fails in the same way.
    OutOfMemory,
    /// Fargate Spot reclaimed the capacity.
    Spot,
    /// Any other cause outside Pulumi.
    Platform,
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
            Some(StopCode::Requested) if began => Cause::Program,
            _ => Cause::Platform,
        }
    }

    /// Returns whether AWS or a person stops the task. A run that such a stop interrupts did not
    /// fail.
    #[must_use]
    pub fn is_taken_away(&self) -> bool {
        matches!(self.code, Some(StopCode::Spot | StopCode::Maintenance | StopCode::Outside))
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
            (Some(Outside), false, false, Cause::Platform),
            (Some(Outside), false, true, Cause::Platform),
            (Some(Spot), false, true, Cause::Spot),
            (Some(Maintenance), false, true, Cause::Platform),
            (None, false, true, Cause::Platform),
        ] {
            assert_eq!(end(code, out_of_memory).cause(began), expected, "{code:?} {out_of_memory} {began}");
        }
    }

    #[test]
    fn task_is_taken_away_by_aws_or_a_person() {
        use StopCode::{Exited, FailedToStart, Maintenance, Outside, Requested, Spot};
        for (code, expected) in
            [(Exited, false), (FailedToStart, false), (Requested, false), (Outside, true), (Spot, true), (Maintenance, true)]
        {
            assert_eq!(end(Some(code), false).is_taken_away(), expected, "{code:?}");
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
