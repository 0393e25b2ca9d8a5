//! What a user asks of a Stack: the annotations and Updates that they would otherwise write by
//! hand.

use std::collections::BTreeSet;

use driftless_api::{Stack, Update, UpdateSpec, names};
use driftless_core::{
    Drift, DriftVerdict, Ignored, Operation, PlanHash, PlanState, PlannedChanges, SourceRef, Stack as CoreStack, summary,
};
use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _, core::ObjectMeta};
use serde_json::{Value, json};

use crate::{
    Error, Result,
    cluster::{Cluster, Target},
    render::{Format, formatted},
};

/// The request annotation of Flux.
const FLUX_REQUEST: &str = "reconcile.fluxcd.io/requestedAt";
/// How long an Update by hand is kept after it completed.
const TTL: &str = "24h";
/// The API server appends five characters to a generated name of at most 63.
const MAX_GENERATED: usize = 57;

/// A change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A merge patch of an object of this API version, kind and name.
    Patch {
        /// API version, kind and name.
        object: (String, String, String),
        /// The patch.
        patch: Value,
    },
    /// A new Update.
    Create(Box<Update>),
    /// The end of an Update.
    Delete(String),
}

impl Change {
    /// The change as a value, in a namespace.
    fn document(&self, namespace: &str) -> Value {
        match self {
            Self::Patch { object: (api_version, kind, name), patch } => json!({
                "change": "patch", "apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name, "patch": patch,
            }),
            Self::Create(update) => json!({ "change": "create", "object": placed(update, namespace) }),
            Self::Delete(name) => json!({
                "change": "delete", "apiVersion": Update::api_version(&()), "kind": "Update", "namespace": namespace, "name": name,
            }),
        }
    }
}

/// An Update in a namespace.
fn placed(update: &Update, namespace: &str) -> Update {
    let mut update = update.clone();
    update.metadata.namespace = Some(namespace.to_owned());
    update
}

/// The changes that a command requests, and their message.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// The message after they are made.
    pub done: String,
}

impl Request {
    fn of(change: Change, done: impl Into<String>) -> Self {
        Self { changes: vec![change], done: done.into() }
    }

    /// The objects and patches that would be written, as `--dry-run` shows them: text, or a list in
    /// a format.
    pub fn dry_run(&self, namespace: &str, format: Option<Format>) -> Result<String> {
        if let Some(format) = format {
            let changes: Vec<_> = self.changes.iter().map(|change| change.document(namespace)).collect();
            return formatted(&changes, format);
        }
        let mut documents = Vec::new();
        for change in &self.changes {
            documents.push(match change {
                Change::Patch { object: (_, kind, name), patch } => {
                    format!("# merge patch of {kind} {namespace}/{name}\n{}", formatted(patch, Format::Yaml)?)
                }
                Change::Create(update) => format!("# create\n{}", formatted(&placed(update, namespace), Format::Yaml)?),
                Change::Delete(name) => format!("# delete Update {namespace}/{name}\n"),
            });
        }
        Ok(documents.join("---\n"))
    }

    /// Makes the changes. Returns the Update that was created, if one was.
    pub async fn carry_out(&self, cluster: &Cluster) -> Result<Option<Update>> {
        let mut created = None;
        for change in &self.changes {
            match change {
                Change::Patch { object: (api_version, kind, name), patch } => {
                    cluster.patch_dynamic(api_version, kind, name, patch).await?;
                }
                Change::Create(update) => created = Some(cluster.create(&**update).await?),
                Change::Delete(name) => cluster.delete::<Update>(name).await?,
            }
        }
        Ok(created)
    }
}

fn annotate(stack: &Stack, annotation: &str, value: Option<&str>) -> Change {
    let patch = json!({ "metadata": { "annotations": { annotation: value } } });
    Change::Patch { object: ("pulumi.com/v1".into(), "Stack".into(), stack.name_any()), patch }
}

fn place(stack: &Stack) -> String {
    format!("Stack {}/{}", stack.namespace().unwrap_or_default(), stack.name_any())
}

/// Asks for another run of a Stack; `with_source` asks Flux for its source first.
pub fn reconcile(stack: &Stack, with_source: bool, now: Timestamp) -> Result<Request> {
    let value = now.to_string();
    let mut changes = Vec::new();
    if with_source {
        let core = CoreStack::from(stack);
        let [SourceRef::Flux { api_version, kind, name, .. }] = core.spec.sources.as_slice() else {
            return Err(Error::failed(format!("{} has no Flux source; omit --with-source", place(stack))));
        };
        let patch = json!({ "metadata": { "annotations": { FLUX_REQUEST: value } } });
        changes.push(Change::Patch { object: (api_version.clone(), kind.clone(), name.clone()), patch });
    }
    changes.push(annotate(stack, names::RECONCILIATION_REQUEST, Some(&value)));
    let done = if stack.is_suspended() {
        format!("requested a run of {}, which is suspended; no run starts until it is resumed", place(stack))
    } else {
        format!("requested a run of {}", place(stack))
    };
    Ok(Request { changes, done })
}

/// Suspends a Stack.
#[must_use]
pub fn suspend(stack: &Stack) -> Request {
    let done = format!("{} is suspended; no run starts, and a live run continues", place(stack));
    Request::of(annotate(stack, names::SUSPEND, Some("true")), done)
}

/// Resumes a Stack.
pub fn resume(stack: &Stack) -> Result<Request> {
    if stack.spec.driftless.as_ref().and_then(|ours| ours.suspend) == Some(true) {
        let place = place(stack);
        return Err(Error::failed(format!(
            "{place} is suspended by its spec; set spec.driftless.suspend to false in its source"
        )));
    }
    Ok(Request::of(annotate(stack, names::SUSPEND, None), format!("{} is resumed", place(stack))))
}

/// The drift of a Stack that the last check found, and that check. `verb` is what is to be done
/// with the drift.
fn found(core: &CoreStack, place: &str, verb: &str) -> Result<(Drift, String)> {
    match (&core.status.drift.verdict, &core.status.drift.last) {
        (Some(DriftVerdict::Found(drift)), Some(check)) => Ok((drift.clone(), check.clone())),
        _ => Err(Error::failed(format!("{place} has no drift to {verb}; its condition Drifted is not True"))),
    }
}

/// When a request that was just made is carried out, if that is not soon.
fn delay(stack: &Stack) -> &'static str {
    if stack.is_suspended() { "; it is suspended, so this waits until it is resumed" } else { "" }
}

/// Refuses a Stack whose drift no run can end. `verb` and `done` are what is to be done with it.
fn can_run(core: &CoreStack, place: &str, verb: &str, done: &str) -> Result<()> {
    if core.drift.is_none() {
        let annotation = names::DRIFT_SCHEDULE;
        return Err(Error::failed(format!("{place} has no drift schedule; no drift is {done}; set the annotation {annotation}")));
    }
    if core.spec.preview {
        return Err(Error::failed(format!("{place} only previews, so no run can {verb} its drift; set spec.preview to false")));
    }
    Ok(())
}

/// Takes the drift that the last check found over into the state.
pub fn adopt(stack: &Stack) -> Result<Request> {
    let (core, place) = (CoreStack::from(stack), place(stack));
    can_run(&core, &place, "adopt", "adopted")?;
    let (drift, check) = found(&core, &place, "adopt")?;
    if !core.status.has_succeeded() {
        return Err(Error::failed(format!("the last update of {place} has not succeeded; adopt its drift after one has")));
    }
    let done = format!(
        "{place} adopts the drift that check {check} found: {drift}; no resource is changed; the next update changes them back, unless \
         the program has the same values{}",
        delay(stack)
    );
    Ok(Request::of(annotate(stack, names::ADOPT, Some(&check)), done))
}

/// Puts back the drift that the last check found, or with `always` all drift from now on.
pub fn remediate(stack: &Stack, always: bool) -> Result<Request> {
    let (core, place) = (CoreStack::from(stack), place(stack));
    can_run(&core, &place, "remediate", "remediated")?;
    if always {
        let done = format!("{place} remediates all drift that a check finds{}", delay(stack));
        return Ok(Request::of(annotate(stack, names::REMEDIATE, Some(names::ALWAYS)), done));
    }
    let (drift, check) = found(&core, &place, "remediate")?;
    let done = format!("{place} remediates the drift that check {check} found: {drift}{}", delay(stack));
    Ok(Request::of(annotate(stack, names::REMEDIATE, Some(&check)), done))
}

/// Adds properties that never count as drift of a Stack.
pub fn ignore(stack: &Stack, entries: &[String]) -> Result<Request> {
    let added = entries.join(",");
    Ignored::parse_all(&added).map_err(|why| Error::failed(format!("cannot ignore {why}")))?;
    let before = stack.annotations().get(names::DRIFT_IGNORE).map(String::as_str).filter(|text| !text.is_empty());
    let all: BTreeSet<&str> =
        before.into_iter().chain([added.as_str()]).flat_map(|text| text.split(',')).map(str::trim).collect();
    let value = all.into_iter().collect::<Vec<_>>().join(",");
    let done = format!("drift of {} does not count in {value}, from the next check on", place(stack));
    Ok(Request::of(annotate(stack, names::DRIFT_IGNORE, Some(&value)), done))
}

/// The current plan of a Stack, if it is that of the hash.
fn plan(stack: &Stack, hash: Option<&str>) -> Result<PlannedChanges> {
    let core = CoreStack::from(stack);
    let pending = core.status.plan.proposal.filter(|proposal| proposal.state.is_pending());
    let plan = pending.and_then(|proposal| proposal.plan);
    let plan = plan.ok_or_else(|| Error::failed(format!("{} has no plan that waits for an approval", place(stack))))?;
    match hash {
        Some(text) if text != plan.hash.as_str() => {
            let remedy =
                if PlanHash::parse(text).is_none() { "write all 64 digits" } else { "see it with kubectl driftless diff" };
            Err(Error::failed(format!("{text} is not the current plan of {}, which is {}; {remedy}", place(stack), plan.hash)))
        }
        _ => Ok(plan),
    }
}

/// Approves a plan of a Stack in the name of a user. `others` are the Stacks of its namespace, if
/// the plan is an [`early`] one.
pub fn approve(stack: &Stack, others: &[Stack], hash: Option<&str>, user: &str) -> Result<Request> {
    let (plan, before) = match early(stack, hash) {
        Some(hash) => {
            let found = others.iter().find_map(|other| shown(other, stack, &hash));
            let why = || format!("{} has no plan {hash}, and no pull request of it shows that plan now", place(stack));
            let status = CoreStack::from(stack).status.plan;
            if !status.takes_early {
                let why = "it needs a reconciliation since its consent, and the admission policy; try again in a minute";
                return Err(Error::failed(format!("{} takes no approval of a pull request yet: {why}", place(stack))));
            }
            let before = status.early.filter(|early| early.hash != hash);
            (found.ok_or_else(|| Error::failed(why()))?, before)
        }
        None => (plan(stack, hash)?, None),
    };
    let (hash, mut what) = (&plan.hash, summary(&plan));
    if let Some(before) = before {
        what = format!("{what}; replaces the approval of plan {}", before.hash.short());
    }
    let mut annotations = json!({ names::APPROVE: hash.as_str(), names::APPROVED_BY: user });
    if stack.annotations().get(names::REJECT).map(String::as_str) == Some(hash.as_str()) {
        annotations[names::REJECT] = Value::Null;
    }
    let patch = json!({ "metadata": { "annotations": annotations } });
    let change = Change::Patch { object: ("pulumi.com/v1".into(), "Stack".into(), stack.name_any()), patch };
    Ok(Request::of(change, format!("approved for {}, as {user}: {what}", place(stack))))
}

/// The plan of that hash, if a Stack shows it for a pull request of another one.
fn shown(other: &Stack, of: &Stack, hash: &PlanHash) -> Option<PlannedChanges> {
    let other = CoreStack::from(other);
    let is_of = other.shown_for() == of.metadata.name.as_ref();
    let proposal = other.status.plan.proposal.filter(|proposal| is_of && proposal.state == PlanState::Preview)?;
    proposal.plan.filter(|plan| plan.hash == *hash)
}

/// The hash of a plan that only a pull request of the Stack may show.
#[must_use]
pub fn early(stack: &Stack, hash: Option<&str>) -> Option<PlanHash> {
    let mut core = CoreStack::from(stack);
    core.approval.as_mut().unwrap_or(&mut core.answers).approved = PlanHash::parse(hash?);
    core.early_approval().filter(|_| stack.is_guarded()).cloned()
}

/// Rejects a plan of a Stack.
pub fn reject(stack: &Stack, hash: Option<&str>) -> Result<Request> {
    let plan = plan(stack, hash)?;
    let done = format!("rejected for {}: {}", place(stack), summary(&plan));
    Ok(Request::of(annotate(stack, names::REJECT, Some(plan.hash.as_str())), done))
}

/// Cancels a run: its Update is deleted, and its task is stopped.
pub fn cancel(target: &Target) -> Result<Request> {
    let (name, note) = match target {
        Target::Update(update) if update.is_complete() => {
            return Err(Error::failed(format!("Update {} has ended; nothing to cancel", update.name_any())));
        }
        Target::Update(update) => (update.name_any(), String::new()),
        Target::Stack(stack) => {
            let status = stack.status.as_ref();
            let current = status.and_then(|status| status.current_update.as_ref()?.name.clone());
            let name =
                current.ok_or_else(|| Error::failed(format!("{} has no current Update; nothing to cancel", place(stack))))?;
            let note = if stack.is_suspended() { "" } else { "; the Stack retries it unless it is suspended" };
            (name, note.to_owned())
        }
    };
    let done = format!("canceled Update {name}: its task is being stopped{note}");
    Ok(Request::of(Change::Delete(name), done))
}

/// The settings of a run by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct RunSettings {
    /// URNs of the only resources to act on.
    #[arg(long = "target", value_name = "URN")]
    pub targets: Vec<String>,
    /// Include the resources that depend on --target.
    #[arg(long)]
    pub target_dependents: bool,
    /// Refresh the state first.
    #[arg(long)]
    pub refresh: bool,
    /// The message of the Update.
    #[arg(long)]
    pub message: Option<String>,
}

/// Runs an operation once in the Workspace of a Stack, with the source that the Stack ran last.
pub fn run(stack: &Stack, operation: Operation, settings: &RunSettings) -> Result<Request> {
    if stack.is_suspended() {
        return Err(Error::failed(format!("{} is suspended; resume it before a run", place(stack))));
    }
    let spec = UpdateSpec {
        message: Some(settings.message.clone().unwrap_or_else(|| format!("{} by kubectl driftless", operation.as_str()))),
        operation: Some(operation.as_str().into()),
        refresh: settings.refresh.then_some(true),
        stack_name: Some(stack.spec.stack.clone()),
        target: settings.targets.clone(),
        target_dependents: settings.target_dependents.then_some(true),
        ttl_after_completed: Some(TTL.into()),
        workspace_name: Some(stack.name_any()),
        ..UpdateSpec::default()
    };
    let mut prefix = stack.name_any();
    prefix.truncate(MAX_GENERATED - operation.as_str().len() - 2);
    let prefix = format!("{}-{}-", prefix.trim_end_matches(['.', '-']), operation.as_str());
    let metadata = ObjectMeta { generate_name: Some(prefix), ..ObjectMeta::default() };
    let update = Update { metadata, spec, status: None };
    Ok(Request::of(Change::Create(Box::new(update)), format!("requested {} of {}", operation.as_str(), place(stack))))
}
