//! Why a run failed, as a message and a reason.

use std::fmt::Display;

use driftless_contract::{FailureReason, Lock, MORE_DISK, MORE_MEMORY, OTHER_IMAGE};

use crate::{events::Events, lock, plan};

/// Parts of the messages of languages, of Pulumi and of the kernel about packages and plugins that
/// cannot be used.
const UNUSABLE: [&str; 9] = [
    "annot find module",
    "ERR_MODULE_NOT_FOUND",
    "No module named",
    "ImportError",
    "SyntaxError",
    "invalid ELF header",
    "xec format error",
    "resource plugin",
    "language plugin",
];

/// Why a run failed: the condition's reason, and Pulumi's own message with secrets masked.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub reason: FailureReason,
    pub message: String,
}

impl Failure {
    pub(crate) fn unknown(message: impl Display) -> Self {
        Self { reason: FailureReason::Unknown, message: message.to_string() }
    }

    /// The runner could not use the bucket before Pulumi started: the run does not count as a
    /// failure.
    pub(crate) fn platform(message: impl Display) -> Self {
        Self { reason: FailureReason::PlatformFailure, message: message.to_string() }
    }

    /// The task has another processor than the image: the run does not count as a failure either.
    pub(crate) fn other_architecture(message: impl Display) -> Self {
        Self { reason: FailureReason::OtherArchitecture, message: message.to_string() }
    }

    /// Pulumi failed with this message. The reasons are PKO's, and so is their detection by text:
    /// Pulumi has no other sign. `dead` has the known locks of dead runs.
    pub(crate) fn of_pulumi(words: &str, dead: Option<&Lock>) -> Self {
        let reason = if lock::is_locked(words) || lock::is_busy(words) {
            return Self { reason: FailureReason::UpdateConflict, message: lock::conflict(words, dead) };
        } else if words.contains("Legacy DIY state is deprecated") {
            let why = "state of the backend has the legacy layout without projects, which this version of pulumi refuses";
            let remedy = "run `pulumi state upgrade` on it once, or set PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1 in the Stack's \
                          environment";
            let message = format!("{why}; {remedy}; output of pulumi:\n{words}");
            return Self { reason: FailureReason::LegacyState, message };
        } else if words.contains("unknown flag: --json") {
            let remedy = "use an image with pulumi 3.202.0 or newer";
            let message = format!("this pulumi supports no JSON configuration; {remedy}; output of pulumi:\n{words}");
            return Self { reason: FailureReason::Unknown, message };
        } else if ["invalid access token", "No credentials provided or are invalid"].iter().any(|known| words.contains(known)) {
            FailureReason::InvalidAccessToken
        } else {
            FailureReason::Unknown
        };
        Self { reason, message: if words.is_empty() { "pulumi failed without output".into() } else { words.into() } }
    }

    /// Names the remedy if this Pulumi cannot plan.
    pub(crate) fn of_plan_flags(self) -> Self {
        if !["unknown flag: --save-plan", "unknown flag: --plan"].iter().any(|flag| self.message.contains(flag)) {
            return self;
        }
        let remedy = "nothing was changed; use an image with a newer pulumi; 3.259.0 is tested";
        let message = format!("this pulumi cannot apply a plan; {remedy}; output of pulumi:\n{}", self.message);
        Self { reason: FailureReason::PlanUnsupported, message }
    }

    /// Names the mandatory policies of policy packs that failed a preview or an update. Without
    /// their messages, which may contain values. `acted`: it had begun to change resources.
    pub(crate) fn of_policies(self, events: &Events, acted: bool) -> Self {
        if events.violated.is_empty() || self.reason != FailureReason::Unknown || plan::is_violation(&self.message) {
            return self;
        }
        let changed = if acted { "the update stopped there, and earlier steps remain" } else { "nothing was changed" };
        let remedy = "the log has the messages of the policies; change the resources, or have the policy changed";
        let message = format!("mandatory {}; {changed}; {remedy}", events.violated.join(", "));
        Self { reason: FailureReason::PolicyViolation, message }
    }

    /// Adapts the failure of an update under the plan `hash`. `acted`: it had begun to change
    /// resources.
    pub(crate) fn of_plan(self, hash: &str, acted: bool) -> Self {
        if !plan::is_violation(&self.message) {
            return self.of_plan_flags();
        }
        let changed = if acted { "it stopped there, and earlier steps remain" } else { "nothing was changed" };
        let remedy = "make the program deterministic, then review the next plan";
        let message =
            format!("the program does not do what plan {hash} says; {changed}; {remedy}; output of pulumi:\n{}", self.message);
        Self { reason: FailureReason::PlanViolated, message }
    }

    /// A signal that the runner did not send ended Pulumi: the kernel sends one when the task runs
    /// out of memory.
    pub(crate) fn of_killed(self) -> Self {
        let why = "pulumi was killed, probably because the task ran out of memory";
        Self { message: format!("{why}; {MORE_MEMORY}; output of pulumi:\n{}", self.message), ..self }
    }

    /// The kernel killed a process of the run, such as a provider, and Pulumi failed.
    pub(crate) fn of_memory(self) -> Self {
        let why = "the task ran out of memory and a process was killed";
        Self { message: format!("{why}; {MORE_MEMORY}; output of pulumi:\n{}", self.message), ..self }
    }

    /// Names the field for a larger disk if the message says that a disk is full: the task's, or
    /// that of a machine that the program manages.
    pub(crate) fn of_disk(self) -> Self {
        if !self.message.to_lowercase().contains("no space left on device") {
            return self;
        }
        Self { message: format!("a disk is full; if it is the task's, {MORE_DISK}; {}", self.message), ..self }
    }

    /// Names the fields for another image if the message says that a program was not found: on the
    /// task's PATH, or on another machine that runs commands. `has` tells whether the task has a
    /// program. The remedy comes first, because a long message loses its end.
    pub(crate) fn of_image(self, has: impl Fn(&str) -> bool) -> Self {
        if !lacks_program(&self.message, has) {
            return self;
        }
        Self { message: format!("a program was not found; if the run's image lacks it, {OTHER_IMAGE}; {}", self.message), ..self }
    }

    /// Returns whether the packages or plugins of the run cannot be used.
    pub(crate) fn is_of_packages(&self) -> bool {
        self.reason == FailureReason::Unknown && UNUSABLE.iter().any(|words| self.message.contains(words))
    }

    /// Returns whether the backend has no such stack.
    pub(crate) fn is_of_no_stack(&self) -> bool {
        self.message.contains("no stack named")
    }

    /// Adapts the message for a destroy, which creates no stack.
    pub(crate) fn of_destroy(self, stack: &str) -> Self {
        if !self.is_of_no_stack() {
            return self;
        }
        let why = format!("the backend has no stack {stack:?}; nothing was destroyed");
        let remedy = "correct the name of the stack or PULUMI_BACKEND_URL, or set destroyOnFinalize: false to delete the Stack \
             and keep its resources";
        Self { message: format!("{why}; {remedy}; output of pulumi:\n{}", self.message), ..self }
    }

    /// Adapts the failure for the refresh that must find no changes. If Pulumi reports no error,
    /// the changes are the failure.
    pub(crate) fn of_refresh(self, events: &Events) -> Self {
        let found = if events.errors().is_empty() { events.changed.join(", ") } else { String::new() };
        let what = if found.is_empty() {
            format!("failed: {}", self.message)
        } else {
            format!("found changes (undo them, or accept them with an Update of type refresh): {found}")
        };
        Self { message: format!("expectNoRefreshChanges: the refresh {what}"), ..self }
    }
}

/// Returns whether the text has the message of a language, a shell or pulumi that did not find a
/// program.
fn lacks_program(text: &str, has: impl Fn(&str) -> bool) -> bool {
    // The start and the end of each message; a line can have other text around them.
    const MESSAGES: [(&str, &str); 7] = [
        // Go, and with it pulumi and its providers.
        ("exec: ", "executable file not found in $PATH"),
        // Kubernetes' client for Go, for the login program of a kubeconfig.
        ("exec: executable ", " not found"),
        // pulumi, if a part of the program is in another language.
        ("no language plugin ", "found in the workspace"),
        // The hosts of Go, of Python, and of the package managers of Python and Node.js.
        ("unable to find program: ", ""),
        ("failed to locate any of ", " on your PATH"),
        ("Could not find `", "` executable"),
        // bash.
        ("", ": command not found"),
    ];
    // The same around the name of the program, for languages that have one message for a program
    // and a working directory.
    const NAMED: [(&str, &str); 4] = [
        // Node.js.
        ("spawn ", " ENOENT"),
        ("spawnSync ", " ENOENT"),
        // Java.
        ("Cannot run program ", "No such file or directory"),
        // .NET.
        ("trying to start process ", "No such file or directory"),
    ];
    let between = |line: &str, (start, end): (&str, &str)| {
        let (_, rest) = line.split_once(start)?;
        Some(rest.split_once(end)?.0.to_owned())
    };
    let of_language = |line: &str| {
        MESSAGES.iter().any(|message| between(line, *message).is_some())
            || NAMED.iter().filter_map(|message| between(line, *message)).any(|name| !has(first_word(&name)))
    };
    // dash and BusyBox, as /bin/sh; a line with "refresh: " is neither.
    let of_shell = |line: &str| {
        line.split_once("sh: ")
            .is_some_and(|(before, rest)| !before.ends_with(char::is_alphabetic) && rest.trim_end().ends_with(": not found"))
    };
    // Python has the same error for a file that it cannot open, and for a working directory, which
    // is a path.
    let of_python = |line: &str| {
        let name = between(line, ("FileNotFoundError: [Errno 2] No such file or directory: '", "'"));
        name.is_some_and(|name| !name.contains('/') && !has(&name))
    };
    let is_python = text.contains("in _execute_child");
    text.lines().any(|line| of_language(line) || of_shell(line) || is_python && of_python(line))
}

/// The first word of a text, which may be in quotes.
fn first_word(text: &str) -> &str {
    match text.chars().next() {
        Some(quote @ ('"' | '\'')) => text[1..].split(quote).next().unwrap_or_default(),
        _ => text.split(' ').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn expected_empty_refresh_reports_changes_or_failure() {
        let message = |changed: &[&str], words: &str| {
            let mut events = Events::default();
            events.changed.extend(changed.iter().map(|change| (*change).to_owned()));
            Failure::unknown(words).of_refresh(&events).message
        };
        let found = message(&["update urn:a", "delete urn:b"], "error: no changes were expected for refresh");
        assert!(found.starts_with("expectNoRefreshChanges: the refresh found changes"), "{found}");
        assert!(found.ends_with(": update urn:a, delete urn:b"), "{found}");
        let words = "error: no resource named 'urn:c' found";
        assert_eq!(message(&[], words), format!("expectNoRefreshChanges: the refresh failed: {words}"));
    }

    #[test]
    fn destroy_of_a_missing_stack_names_the_remedy() {
        let message = |words: &str| Failure::of_pulumi(words, None).of_destroy("dev").message;
        let told = message("error: no stack named 'dev' found");
        assert!(told.starts_with("the backend has no stack \"dev\"; nothing was destroyed; correct the name"), "{told}");
        assert!(told.ends_with("\nerror: no stack named 'dev' found"), "{told}");
        assert_eq!(message("error: invalid access token"), "error: invalid access token");
    }

    #[test]
    fn only_an_unknown_failure_is_of_packages() {
        let failure = |reason, message: &str| Failure { reason, message: message.into() }.is_of_packages();
        assert!(failure(FailureReason::Unknown, "Error: Cannot find module 'lodash'"));
        assert!(failure(FailureReason::Unknown, "ModuleNotFoundError: No module named 'yaml'"));
        assert!(!failure(FailureReason::Unknown, "error: wrong passphrase"));
        assert!(!failure(FailureReason::OtherArchitecture, "exec format error"));
    }

    #[test]
    fn full_disk_names_the_field_to_raise() {
        let message = |words: &str| Failure::unknown(words).of_disk().message;
        for words in ["write /tmp/x: no space left on device", "cannot write \"x\": No space left on device (os error 28)"] {
            let told = message(words);
            assert!(told.starts_with("a disk is full; if it is the task's, give it a larger disk with spec."), "{told}");
            assert!(told.ends_with(&format!("; {words}")), "{told}");
        }
        assert_eq!(message("error: update failed"), "error: update failed");
    }

    #[test]
    fn missing_program_names_the_image_fields() {
        let message = |words: &str| Failure::unknown(words).of_image(|program| ["sh", "/bin/sh"].contains(&program)).message;
        // The output of the programs of this machine.
        let said = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(!output.status.success(), "{program} {arguments:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        for words in [
            said("sh", &["-c", "kubectl-missing get pods"]),
            said("python3", &["-c", "import subprocess; subprocess.run(['kubectl-missing', 'get'])"]),
            // dash in the error of a provider, bash, BusyBox.
            "error: exit status 127: running \" kubectl get\":\n/bin/sh: 1: kubectl: not found".into(),
            "./deploy: line 3: kubectl: command not found".into(),
            "sh: helm: not found".into(),
            // Go 1.26, Node.js 20, Java 17.
            "error: exec: \"kubectl\": executable file not found in $PATH".into(),
            "getting credentials: exec: executable aws not found\n\nIt looks like you are trying to use a client-go credential plugin".into(),
            "Error: spawn kubectl ENOENT\n    at ChildProcess._handle.onexit (node:internal/child_process:285:19)".into(),
            "Error: spawnSync kubectl ENOENT\n    at Object.spawnSync (node:internal/child_process:1123:20)".into(),
            "java.io.IOException: Cannot run program \"kubectl\": error=2, No such file or directory".into(),
            // .NET 8, whose message always has the working directory.
            "An error occurred trying to start process 'kubectl' with working directory '/share/source/app'. No such file or directory"
                .into(),
            "error: no language plugin 'pulumi-language-python' found in the workspace or on your $PATH".into(),
            // Pulumi 3.259 in an image that has the hosts of its languages, and not the languages.
            "error: failed to discover package requirements: couldn't find go binary: unable to find program: go".into(),
            "error: installing dependencies: failed to locate any of [\"python3\" \"python\"] on your PATH. Have you installed Python 3.6 or \
             greater?"
                .into(),
            "error: installing dependencies: could not find npm on the $PATH; npm is installed with Node.js available at \
             https://nodejs.org/: Could not find `npm` executable.\nInstall npm and make sure it is in your PATH."
                .into(),
            "error: an unhandled error occurred: could not find node on the $PATH: exec: \"node\": executable file not found in $PATH"
                .into(),
        ] {
            let told = message(&words);
            assert!(
                told.starts_with("a program was not found; if the run's image lacks it, name one that has it in spec."),
                "{told}"
            );
            assert!(told.contains("RuntimeImages") && told.ends_with(&format!("; {words}")), "{told}");
        }
        for words in [
            "error: update failed",
            "error: GET https://example.com/a: 404 not found",
            "error: resource plugin 'random' not found",
            "error: refresh: the stack: not found",
            "Error: ENOENT: no such file or directory, open 'spawn.txt'",
            "FileNotFoundError: [Errno 2] No such file or directory: 'settings.json'",
        ] {
            assert_eq!(message(words), words);
        }
        // A working directory that is not there: of programs of this machine, Go 1.26, Node.js 20,
        // Java 17, .NET 8, bash.
        for words in [
            said("sh", &["-c", "cd /missing"]),
            said("python3", &["-c", "import subprocess; subprocess.run(['sh'], cwd='/missing')"]),
            "error: chdir /missing: no such file or directory: running \"ls\":".into(),
            "Error: spawn sh ENOENT\n    at ChildProcess._handle.onexit (node:internal/child_process:285:19)".into(),
            "Error: spawnSync /bin/sh ENOENT\n    at Object.spawnSync (node:internal/child_process:1123:20)".into(),
            "java.io.IOException: Cannot run program \"sh\" (in directory \"/missing\"): error=2, No such file or directory"
                .into(),
            "An error occurred trying to start process 'sh' with working directory '/missing'. No such file or directory".into(),
            "bash: line 1: cd: /missing: No such file or directory".into(),
        ] {
            assert_eq!(message(&words), words);
        }
    }

    #[test]
    fn old_pulumi_without_json_configuration_names_the_remedy() {
        let message = |words: &str| Failure::of_pulumi(words, None).message;
        let told = message("error: unknown flag: --json");
        assert!(
            told.starts_with("this pulumi supports no JSON configuration; use an image with pulumi 3.202.0 or newer"),
            "{told}"
        );
        assert!(told.ends_with("\nerror: unknown flag: --json"), "{told}");
        assert_eq!(message("error: unknown flag: --other"), "error: unknown flag: --other");
    }

    #[test]
    fn failure_reasons_are_those_of_pko() {
        let reason = |words: &str| Failure::of_pulumi(words, None).reason;
        assert_eq!(reason("error: the stack is currently locked by 2 lock(s)."), FailureReason::UpdateConflict);
        assert_eq!(reason("error: [409] Conflict: Another update is currently in progress."), FailureReason::UpdateConflict);
        assert_eq!(reason("error: invalid access token"), FailureReason::InvalidAccessToken);
        let refused = "error: could not log in to the state backend \"https://api.pulumi.com\": Unauthorized: No credentials provided \
                       or are invalid.";
        assert_eq!(reason(refused), FailureReason::InvalidAccessToken);
        assert_eq!(
            reason("error: \n=====\nLegacy DIY state is deprecated, please upgrade your state"),
            FailureReason::LegacyState
        );
        assert_eq!(reason("error: update failed"), FailureReason::Unknown);
    }
}
