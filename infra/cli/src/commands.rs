//! Carries a command out: reads objects, has a pure module render them, and prints the text.

use std::{fmt::Write as _, num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::CommandFactory as _;
use driftless_api::{Artifact, Program, Source, Stack, Update, Workspace, uid_of};
use driftless_core::{Operation, SourceRef, SourceState, Stack as CoreStack, run::Standing};
use driftless_doctor::{Level, tools::Kubectl};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    Error, Result,
    arguments::{Arguments, Command, Connection, DryRun, Output, RunOperation},
    cluster::{Cluster, Target},
    complete::Completion,
    diff, explain,
    get::{self, Row},
    log,
    render::{Style, formatted},
    request::{self, Request},
    stack::{difference, explanation, updates, whole},
    tree, ui, view, wait,
};

/// Where a command prints, and what time it is.
pub struct Terminal<'a> {
    /// The name that the command was started by.
    pub program: &'a str,
    /// The style of the output.
    pub style: Style,
    /// Whether the output is a terminal of a desktop, which has a browser.
    pub has_desktop: bool,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// Prints output.
    pub out: &'a mut dyn FnMut(&str),
    /// Prints a note for a person, beside the output.
    pub note: &'a mut dyn FnMut(&str),
}

impl Terminal<'_> {
    fn show<T: Serialize>(&mut self, value: &T, output: Output, text: impl FnOnce(&T, Style, Timestamp) -> String) -> Result<()> {
        let text = match output.output {
            Some(format) => formatted(value, format)?,
            None => self.style.wrap(&text(value, self.style, (self.now)())),
        };
        (self.out)(&text);
        Ok(())
    }
}

/// Carries a command out. Returns its exit code.
pub async fn run(Arguments { connection, command }: Arguments, terminal: &mut Terminal<'_>) -> Result<ExitCode> {
    match command {
        Command::Completion { shell } => (terminal.out)(&completion(shell, terminal.program)),
        Command::Cost { cost, output } => {
            let bill = cost.bill();
            terminal.show(&bill.document(), output, |_, _, _| format!("{bill}\n"))?;
        }
        Command::Capacity { capacity, output } => {
            let demand = capacity.demand();
            terminal.show(&demand.document(), output, |_, _, _| format!("{demand}\n"))?;
        }
        Command::Doctor { doctor, output } => {
            let namespace = connection.namespace.as_deref().unwrap_or("default");
            let Terminal { out, style, .. } = terminal;
            // The text of a section does not wait for the next one; a document is printed whole.
            let diagnosis = doctor.run(&kubectl(&connection), namespace, &mut |section| {
                if output.output.is_none() {
                    out(&style.wrap(&section.to_string()));
                }
            });
            if let Some(format) = output.output {
                out(&formatted(&diagnosis, format)?);
            }
            return Ok(exit_code(diagnosis.level != Level::Fail));
        }
        Command::Migrate { output } => {
            let migration = driftless_doctor::command::migrate(&kubectl(&connection)).map_err(Error::Unknown)?;
            terminal.show(&migration, output, |migration, _, _| migration.to_string())?;
            return Ok(exit_code(migration.counts.refused == 0));
        }
        Command::Diff { stack, output } => {
            let unknown = |error: Error| Error::Unknown(error.to_string());
            let cluster = open(&connection).await.map_err(unknown)?;
            return diff(&cluster, &stack, output, terminal).await.map_err(unknown);
        }
        Command::Ui { all_namespaces, port, browser, no_browser, system_namespace } => {
            let page = ui::Page { cluster: open(&connection).await?, all_namespaces, system_namespace, now: terminal.now };
            let server = ui::Server::bind(port).await?;
            (terminal.out)(&format!("{}\n", server.url()));
            (terminal.note)("the URL contains the key of this page; keep it secret; stop the page with Ctrl-C");
            server.serve(page, (browser || terminal.has_desktop) && !no_browser, &mut *terminal.note).await?;
        }
        command => Box::pin(in_cluster(&open(&connection).await?, command, terminal)).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The program kubectl, for the checks of an installation.
fn kubectl(Connection { kubeconfig, context, .. }: &Connection) -> Kubectl {
    let kubeconfig = kubeconfig.as_ref().map(|path| path.to_string_lossy().into_owned());
    Kubectl { context: context.clone(), kubeconfig }
}

async fn open(Connection { kubeconfig, context, namespace }: &Connection) -> Result<Cluster> {
    Cluster::open(kubeconfig.as_deref(), context.as_deref(), namespace.as_deref()).await
}

/// Carries out a command that calls the API server; nothing for another one.
pub async fn in_cluster(cluster: &Cluster, command: Command, terminal: &mut Terminal<'_>) -> Result<()> {
    match command {
        Command::Get { stacks, all_namespaces, output } => get(cluster, &stacks, all_namespaces, output, terminal).await,
        Command::Tree { stack, last, output } => tree(cluster, &stack, last, output, terminal).await,
        Command::Explain { target, system_namespace, output } => {
            let target = cluster.target(&target).await?;
            explain(cluster, target, &system_namespace, output, terminal).await
        }
        Command::Logs { target, follow, last } => logs(cluster, &target, follow, last, terminal).await,
        Command::Reconcile { stack, with_source, dry_run } => {
            let request = request::reconcile(&cluster.get(&stack).await?, with_source, (terminal.now)())?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Suspend { stack, dry_run } => {
            let request = request::suspend(&cluster.get(&stack).await?);
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Resume { stack, dry_run } => {
            let request = request::resume(&cluster.get(&stack).await?)?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Cancel { target, dry_run } => {
            let request = request::cancel(&cluster.target(&target).await?)?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Remediate { stack, always, dry_run } => {
            let request = request::remediate(&cluster.get(&stack).await?, always)?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Adopt { stack, dry_run } => {
            let request = request::adopt(&cluster.get(&stack).await?)?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Ignore { stack, paths, dry_run } => {
            let request = request::ignore(&cluster.get(&stack).await?, &paths)?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Approve { stack, plan, dry_run } => {
            let stack: Stack = cluster.get(&stack).await?;
            let others = match request::early(&stack, plan.as_deref()) {
                Some(_) => cluster.list(stack.metadata.namespace.as_deref(), None).await?,
                None => Vec::new(),
            };
            let request = request::approve(&stack, &others, plan.as_deref(), &cluster.user().await?)?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Reject { stack, plan, dry_run } => {
            let request = request::reject(&cluster.get(&stack).await?, plan.as_deref())?;
            carry_out(cluster, &request, dry_run, terminal).await.map(drop)
        }
        Command::Run { operation, stack, settings, wait, timeout, yes, dry_run } => {
            if operation == RunOperation::Destroy && !yes && !dry_run.dry_run {
                return Err(Error::failed("a destroy deletes the resources of the Stack; repeat the command with --yes"));
            }
            let stack: Stack = cluster.get(&stack).await?;
            let request = request::run(&stack, Operation::from(operation), &settings)?;
            if cluster.find::<Workspace>(&cluster.namespace, &stack.name_any()).await?.is_none() {
                let name = stack.name_any();
                return Err(Error::failed(format!("Stack {name:?} has no Workspace to run in; reconcile the Stack first")));
            }
            let created = carry_out(cluster, &request, dry_run, terminal).await?;
            match created.filter(|_| wait) {
                Some(update) => wait::until_complete(cluster, &update, wait::Deadline::after(timeout), &mut *terminal.note).await,
                None => Ok(()),
            }
        }
        Command::Wait { stack, commit, timeout, applied: _ } => {
            let deadline = wait::Deadline::after(timeout);
            wait::until_applied(cluster, &stack, commit.as_deref(), deadline, &mut *terminal.note).await?;
            let what = commit.map_or_else(|| "its spec".to_owned(), |commit| format!("commit {commit}"));
            (terminal.out)(&format!("Stack {}/{stack} has applied {what}\n", cluster.namespace));
            Ok(())
        }
        Command::Completion { .. }
        | Command::Capacity { .. }
        | Command::Cost { .. }
        | Command::Diff { .. }
        | Command::Doctor { .. }
        | Command::Migrate { .. }
        | Command::Ui { .. } => Ok(()),
    }
}

/// The completion script of a shell for a program of this name.
#[must_use]
pub fn completion(shell: clap_complete::Shell, program: &str) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), program, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// How long a completion waits for a cluster.
const COMPLETED_WITHIN: Duration = Duration::from_secs(3);

/// What may stand in place of the last of the words after `kubectl driftless`, as kubectl reads it.
/// The Stacks of a cluster that cannot be read are left out.
pub async fn complete(words: &[String]) -> String {
    let completion = Completion::of(words);
    let mut stacks = Vec::new();
    if let Some(connection) = &completion.cluster {
        let list = async {
            let cluster = open(connection).await?;
            cluster.list(Some(&cluster.namespace), None).await
        };
        // The shell waits for the answer.
        if let Ok(Ok(found)) = tokio::time::timeout(COMPLETED_WITHIN, list).await {
            stacks = found;
        }
    }
    completion.answer(&stacks)
}

async fn get(cluster: &Cluster, names: &[String], all: bool, output: Output, terminal: &mut Terminal<'_>) -> Result<()> {
    let mut stacks: Vec<Stack> = Vec::new();
    if names.is_empty() {
        stacks = cluster.list(Some(&*cluster.namespace).filter(|_| !all), None).await?;
    }
    for name in names {
        stacks.push(cluster.get(name).await?);
    }
    let rows: Vec<_> = stacks.iter().map(Row::of).collect();
    if rows.is_empty() && output.output.is_none() {
        let place = if all { "any namespace".to_owned() } else { format!("namespace {:?}", cluster.namespace) };
        (terminal.note)(&format!("no Stacks in {place}"));
        return Ok(());
    }
    terminal.show(&rows, output, |rows, style, now| get::render(rows, all, style, now))
}

async fn tree(cluster: &Cluster, name: &str, last: usize, output: Output, terminal: &mut Terminal<'_>) -> Result<()> {
    let stack: Stack = cluster.get(name).await?;
    let core = CoreStack::from(&stack);
    let namespace = &cluster.namespace;
    let since = |artifact: Option<&Artifact>| artifact.and_then(|artifact| Some(artifact.last_update_time.as_ref()?.0));
    let offer = match core.spec.sources.as_slice() {
        [SourceRef::Program { name }] => {
            let found = cluster.find::<Program>(namespace, name).await?;
            let artifact = found.as_ref().and_then(|program| program.status.as_ref()?.artifact.as_ref());
            Some((found.as_ref().map_or(SourceState::NotFound, SourceState::from), since(artifact)))
        }
        // The user may read Stacks and not Flux's objects: the rest of the tree is shown.
        [SourceRef::Flux { api_version, kind, name, .. }] => {
            let found = cluster.find_dynamic(api_version, kind, namespace, name).await.ok();
            found.map(|found| {
                let found = found.as_ref().map(Source::from_object);
                let artifact = found.as_ref().and_then(|source| source.artifact.as_ref());
                (found.as_ref().map_or(SourceState::NotFound, SourceState::from), since(artifact))
            })
        }
        _ => None,
    };
    let updates = updates(cluster, &stack).await?;
    let shown = &updates[..updates.len().min(last)];
    let others = if stack.outputs().is_empty() { Vec::new() } else { cluster.list::<Stack>(Some(namespace), None).await? };
    let root = tree::of(&stack, offer.as_ref(), shown, &others, (terminal.now)());
    terminal.show(&root, output, |root, style, _| {
        let mut text = tree::render(root, style);
        if updates.len() > shown.len() {
            let _ = writeln!(text, "{} earlier Updates are not shown; see --last", updates.len() - shown.len());
        }
        text
    })
}

/// Prints the recorded differences of a Stack. Returns the exit code of `kubectl diff`.
pub async fn diff(cluster: &Cluster, name: &str, output: Output, terminal: &mut Terminal<'_>) -> Result<ExitCode> {
    let diff = difference(cluster, &cluster.get(name).await?, terminal.now, &mut *terminal.note).await?;
    if diff.runs.is_empty() {
        let remedy = format!("start a preview with: kubectl driftless run preview {name}");
        return Err(Error::failed(format!("{} has no ended preview, update or drift check; {remedy}", diff.object)));
    }
    terminal.show(&diff, output, diff::render)?;
    match diff.differs {
        Some(differs) => Ok(exit_code(!differs)),
        None => Err(Error::failed(format!("{}: a run failed; its differences are unknown", diff.object))),
    }
}

async fn explain(
    cluster: &Cluster,
    target: Target,
    system_namespace: &str,
    output: Output,
    terminal: &mut Terminal<'_>,
) -> Result<()> {
    let now = (terminal.now)();
    let explanation = match target {
        Target::Stack(stack) => explanation(cluster, &stack, system_namespace, now).await?,
        Target::Update(update) => {
            let standing = standing(cluster, &update, system_namespace, now).await?;
            explain::update(&update, standing, system_namespace, whole(now))
        }
    };
    terminal.show(&explanation, output, |explanation, style, _| explain::render(explanation, style, whole(now)))
}

/// How an Update and its Stack stand to each other.
async fn standing(cluster: &Cluster, update: &Update, system_namespace: &str, now: Timestamp) -> Result<Standing> {
    let Some(reference) = update.stack(system_namespace) else { return Ok(Standing::Current) };
    let stack: Option<Stack> = cluster.find(&reference.namespace, &reference.name).await?;
    let Some(stack) = stack.filter(|stack| uid_of(stack) == *reference.uid) else {
        return Ok(Standing::Foreign);
    };
    let generation = update.spec.driftless.as_ref().and_then(|ours| ours.stack_generation);
    let is_generation = generation == stack.metadata.generation;
    let hold = CoreStack::from(&stack).hold(!update.spec.changes_nothing(), update.spec.plan().as_ref(), now);
    Ok(Standing::of_stack(stack.names(&update.name_any()), hold, is_generation))
}

/// Prints the log of an Update, or of the current or last run of a Stack; with `last`, of so many
/// runs of the Stack, the newest at the end.
async fn logs(
    cluster: &Cluster,
    target: &str,
    follow: bool,
    last: Option<NonZeroUsize>,
    terminal: &mut Terminal<'_>,
) -> Result<()> {
    let mut runs = match (cluster.target(target).await?, last) {
        (Target::Update(update), None) => vec![*update],
        (Target::Update(update), Some(_)) => {
            return Err(Error::failed(format!("Update {} is one run; omit --last, or name its Stack", update.name_any())));
        }
        (Target::Stack(stack), None) => {
            let place = format!("Stack {}/{}", cluster.namespace, stack.name_any());
            let name = log::of_stack(&stack).ok_or_else(|| Error::failed(format!("{place} has no run yet")))?;
            let gone = format!("{place} last ran as Update {name}, which was deleted with its log");
            let found: Option<Update> = cluster.find(&cluster.namespace, &name).await?;
            vec![found.ok_or_else(|| Error::failed(gone))?]
        }
        (Target::Stack(stack), Some(last)) => {
            let mut runs = updates(cluster, &stack).await?;
            runs.truncate(last.get());
            runs
        }
    };
    runs.reverse();
    if runs.is_empty() {
        return Err(Error::failed(format!(
            "Stack {}/{target} has no Update; the logs of older runs were deleted",
            cluster.namespace
        )));
    }
    let runs = log::renewed(cluster, runs, terminal.now, &mut *terminal.note).await?;
    let newest = runs.len() - 1;
    for (index, run) in runs.into_iter().enumerate() {
        if last.is_some() {
            let what = format!("{}, {}", view::operation(&run), explain::phase(&run, (terminal.now)()));
            (terminal.out)(&format!("{}==> Update {}: {what}\n", if index > 0 { "\n" } else { "" }, run.name_any()));
        }
        match log::print(cluster, run, follow && index == newest, &mut *terminal.out, &mut *terminal.note).await {
            // The logs of the other runs are printed.
            Err(error) if last.is_some() => (terminal.note)(&error.to_string()),
            printed => printed?,
        }
    }
    Ok(())
}

async fn carry_out(cluster: &Cluster, request: &Request, dry_run: DryRun, terminal: &mut Terminal<'_>) -> Result<Option<Update>> {
    if dry_run.dry_run {
        (terminal.out)(&request.dry_run(&cluster.namespace, dry_run.output)?);
        return Ok(None);
    }
    let created = request.carry_out(cluster).await?;
    let name = created.as_ref().map(|update| format!(": Update {}", update.name_any())).unwrap_or_default();
    (terminal.out)(&format!("{}{name}\n", request.done));
    Ok(created)
}
