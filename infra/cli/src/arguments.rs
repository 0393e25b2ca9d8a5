//! The command line.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use driftless_core::{Operation, duration};
use driftless_doctor::command::{Capacity, Cost, Doctor};

use crate::{render::Format, request::RunSettings};

/// Shows Stacks, explains why they run or wait, reads their logs, and requests runs.
///
/// Exit codes: 0 done; 1 failed, or diff found differences; 2 wrong usage, or diff or migrate
/// failed; 124 the timeout has passed.
#[derive(Debug, Parser)]
#[command(name = "kubectl-driftless", bin_name = "kubectl driftless", version, max_term_width = 100)]
pub struct Arguments {
    /// Which cluster, and how.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and how.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// The kubeconfig file; $KUBECONFIG or ~/.kube/config without it.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; the current one without it.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The namespace; that of the context without it.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the Stacks of a namespace at a glance.
    Get {
        /// The only Stacks to show.
        stacks: Vec<String>,
        /// Show the Stacks of all namespaces.
        #[arg(long, short = 'A')]
        all_namespaces: bool,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Shows a Stack with its source, its Updates and their tasks.
    Tree {
        /// The Stack.
        stack: String,
        /// The number of Updates to show, the newest first.
        #[arg(long, default_value_t = 5)]
        last: usize,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Explains why a Stack or an Update runs, waits or rests, and when it is reconciled next.
    Explain {
        /// The Stack or the Update: NAME, stack/NAME or update/NAME.
        target: String,
        /// The namespace of Driftless itself.
        #[arg(long, default_value = "driftless-system")]
        system_namespace: String,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Shows what the last preview would change, the last update changed, and the last drift check
    /// found.
    ///
    /// Exit codes, as of kubectl diff: 0 no difference is left to apply or to put back; 1 one is; 2
    /// the command failed, or a run failed, so that this is not known.
    Diff {
        /// The Stack.
        stack: String,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Prints the masked log of an Update, or of a Stack's current or last Update.
    Logs {
        /// The Stack or the Update: NAME, stack/NAME or update/NAME.
        target: String,
        /// Print further lines until the run has ended.
        #[arg(long, short)]
        follow: bool,
        /// The number of runs of a Stack whose logs to print, the newest at the end.
        #[arg(long, value_name = "N")]
        last: Option<NonZeroUsize>,
    },
    /// Serves a page on loopback that shows the Stacks, their runs and their logs, prints its URL,
    /// and opens it in the browser if the output is a terminal of a desktop. Ctrl-C ends it.
    Ui {
        /// Show the Stacks of all namespaces.
        #[arg(long, short = 'A')]
        all_namespaces: bool,
        /// The port of 127.0.0.1; a free one without it.
        #[arg(long, default_value_t = 0, hide_default_value = true)]
        port: u16,
        /// Open the browser even if the output is no terminal, or no display is found.
        #[arg(long)]
        browser: bool,
        /// Open no browser.
        #[arg(long, conflicts_with = "browser")]
        no_browser: bool,
        /// The namespace of Driftless itself.
        #[arg(long, default_value = "driftless-system")]
        system_namespace: String,
    },
    /// Requests another run of a Stack.
    Reconcile {
        /// The Stack.
        stack: String,
        /// Ask Flux to fetch the source first.
        #[arg(long)]
        with_source: bool,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Suspends a Stack: no run of it starts.
    Suspend {
        /// The Stack.
        stack: String,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Resumes a suspended Stack.
    Resume {
        /// The Stack.
        stack: String,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Cancels the current run of a Stack, or the run of an Update, by deleting the Update.
    Cancel {
        /// The Stack or the Update: NAME, stack/NAME or update/NAME.
        target: String,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Ignores properties in drift checks of a Stack.
    Ignore {
        /// The Stack.
        stack: String,
        /// The properties: PATH, or TYPE#PATH for the resources of a type. A path covers all within
        /// it.
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Puts back the drift that the last drift check of a Stack found.
    Remediate {
        /// The Stack.
        stack: String,
        /// Put back all drift that later checks find, too.
        #[arg(long)]
        always: bool,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Takes the drift that the last drift check found over into the state, and changes no
    /// resource.
    ///
    /// The next update changes the resources back to what the program says. Change the program
    /// first to keep them as they are.
    Adopt {
        /// The Stack.
        stack: String,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Approves the plan of a Stack with the annotation driftless.dev/approval: exactly that plan
    /// is applied, once.
    Approve {
        /// The Stack.
        stack: String,
        /// The hash of the plan, all 64 digits; the current plan without it.
        #[arg(long, value_name = "HASH")]
        plan: Option<String>,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Rejects the plan of a Stack: it is not applied.
    Reject {
        /// The Stack.
        stack: String,
        /// The hash of the plan, all 64 digits; the current plan without it.
        #[arg(long, value_name = "HASH")]
        plan: Option<String>,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Runs an operation once, with the source that the Stack ran last.
    Run {
        /// The operation.
        operation: RunOperation,
        /// The Stack.
        stack: String,
        /// The settings of the run.
        #[command(flatten)]
        settings: RunSettings,
        /// Wait until the run has ended; exit with 1 if it failed.
        #[arg(long)]
        wait: bool,
        /// The longest time to wait, such as 10m.
        #[arg(long, default_value = "1h", value_parser = parse_duration)]
        timeout: Duration,
        /// Confirm a destroy.
        #[arg(long)]
        yes: bool,
        /// Whether something is changed.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Waits until a Stack has applied its spec, or a commit.
    Wait {
        /// The Stack.
        stack: String,
        /// Wait until the Stack has applied its spec.
        #[arg(long, required = true)]
        applied: bool,
        /// The commit that has to be applied; seven or more digits of its hash, or the whole
        /// revision of the source.
        #[arg(long, value_name = "SHA")]
        commit: Option<String>,
        /// The longest time to wait, such as 10m.
        #[arg(long, default_value = "30m", value_parser = parse_duration)]
        timeout: Duration,
    },
    /// Checks an installation of Driftless with the AWS CLI and kubectl, and names what is wrong
    /// and the remedy.
    ///
    /// --context names the only cluster to check; without it, all that the installation serves. The
    /// canary is a Stack in --namespace.
    Doctor {
        /// What to check.
        #[command(flatten)]
        doctor: Doctor,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Says what becomes of the objects of the Pulumi Kubernetes Operator, with kubectl.
    ///
    /// Exit codes: 0 none is refused; 1 one is; 2 they cannot be read.
    Migrate {
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Estimates what an installation costs a month in us-east-1; docs/cost.md says what is
    /// assumed.
    Cost {
        /// The installation.
        #[command(flatten)]
        cost: Cost,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Says what a load needs of an installation, and what limits it first; docs/scale.md says what
    /// is assumed.
    Capacity {
        /// The load.
        #[command(flatten)]
        capacity: Capacity,
        /// The format of the output.
        #[command(flatten)]
        output: Output,
    },
    /// Prints the completion script of a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// The format of the output.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// The format; text without it.
    #[arg(long, short, value_enum)]
    pub output: Option<Format>,
}

/// Whether something is changed.
#[derive(Clone, Copy, Debug, Args)]
pub struct DryRun {
    /// Print the object or the patch, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The format of what --dry-run prints; text without it.
    #[arg(long, short, value_enum, requires = "dry_run")]
    pub output: Option<Format>,
}

/// An operation of Pulumi.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunOperation {
    /// Show what an update would change.
    Preview,
    /// Update the resources.
    Up,
    /// Read the live resources into the state.
    Refresh,
    /// Delete the resources.
    Destroy,
}

impl From<RunOperation> for Operation {
    fn from(operation: RunOperation) -> Self {
        match operation {
            RunOperation::Preview => Self::Preview,
            RunOperation::Up => Self::Up,
            RunOperation::Refresh => Self::Refresh,
            RunOperation::Destroy => Self::Destroy,
        }
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = duration(text).and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| format!("{text:?} is not a duration; write one such as 10m or 1h30m"))
}
