//! `diff`: what the last preview would change, what the last update changed, and what the last
//! drift check found.

use std::{collections::BTreeMap, fmt::Write as _};

use driftless_api::{Stack, Update};
use driftless_core::{DriftVerdict, LastUpdateState, Operation, PlanState, Revision, Stack as CoreStack, summary};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    render::{Style, Tone, age, clean, short},
    view::{self, Phase},
};

/// The operations of a run that leave a resource as it is.
const UNCHANGED: [&str; 3] = ["same", "read", "refresh"];

/// The recorded differences of a Stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The Stack.
    pub object: String,
    /// Whether a difference is left to apply or to put back. `None` if the last run of a kind
    /// failed, so that this is not recorded.
    pub differs: Option<bool>,
    /// The runs that recorded them: the last preview, update and drift check.
    pub runs: Vec<Run>,
}

/// The kind of a run that records differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A plan that waits for an approval: exactly what an approval would change.
    Plan,
    /// `pulumi preview`: what an update would change.
    Preview,
    /// An `up`, `refresh` or `destroy`: what it changed.
    Update,
    /// A drift check: what differs from the last update.
    DriftCheck,
}

/// A run and the differences that it recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its kind.
    pub kind: Kind,
    /// Its Update.
    pub update: String,
    /// Of a plan that waits for an approval: the hash that approves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Of the plan of a pull request: the Stack that applies it after the merge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The revision of the source that it ran, if its Update says so.
    pub revision: Revision,
    /// The differences in a line.
    pub summary: String,
    /// The number of resources by operation, `same` included.
    pub changes: BTreeMap<String, i64>,
    /// The resources that differ.
    pub resources: Vec<Resource>,
    /// Resources that differ and are not in `resources`.
    pub unnamed: i64,
    /// Whether a difference is left to apply or to put back. `None` if that is not recorded.
    pub differs: Option<bool>,
}

/// A resource that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// The operation, such as `create`, `update`, `replace` or `delete`.
    pub change: String,
    /// The resource.
    pub urn: String,
    /// Of drift: the paths of the properties that differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<String>,
    /// Of another run: the properties as Pulumi shows them in the log, secrets masked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The last preview and the last update that ended: the runs whose logs [`of`] reads.
#[must_use]
pub fn last(updates: &[Update]) -> [Option<&Update>; 2] {
    [Kind::Preview, Kind::Update].map(|kind| {
        let ended = updates.iter().filter(|update| update.is_complete() && view::times(update).0.is_some());
        ended.filter(|update| self::kind(update) == kind).max_by_key(|update| view::times(update).1)
    })
}

fn kind(update: &Update) -> Kind {
    match view::operation(update).as_str() {
        "drift check" => Kind::DriftCheck,
        "preview" => Kind::Preview,
        _ => Kind::Update,
    }
}

/// The differences of a Stack. `logs` has the text of the logs that can be read, by the name of the
/// Update.
#[must_use]
pub fn of(stack: &Stack, updates: &[Update], logs: &BTreeMap<String, String>) -> Diff {
    let core = CoreStack::from(stack);
    let run = |update: &Update| run(update, logs.get(&update.name_any()).map_or("", String::as_str));
    let [preview, update] = last(updates).map(|found| found.map(run));
    let update = update.or_else(|| deleted(&core, Kind::Update));
    let preview = preview.or_else(|| deleted(&core, Kind::Preview));
    // An update since then has made an older preview obsolete.
    let preview = preview.filter(|preview| update.as_ref().is_none_or(|update| update.ended < preview.ended));
    let runs: Vec<_> = plan(&core).into_iter().chain(preview).chain(update).chain(drift(&core)).collect();
    let is_known = runs.iter().all(|run| run.differs.is_some());
    let is_left = runs.iter().any(|run| run.differs == Some(true));
    let differs = (is_known || is_left).then_some(is_left);
    Diff { object: format!("Stack {}/{}", core.namespace, core.name), differs, runs }
}

fn run(update: &Update, log: &str) -> Run {
    let kind = kind(update);
    let changes = view::ours(update).changes;
    let count: i64 = changes.iter().filter(|(operation, _)| is_change(operation)).map(|(_, count)| count).sum();
    let resources = resources(log);
    let summary = view::ours(update).summary;
    let (differs, summary) = match (view::phase(update), kind) {
        (Phase::Failed(reason), _) => {
            (None, format!("failed ({reason}){}", summary.map(|summary| format!(": {summary}")).unwrap_or_default()))
        }
        (_, Kind::Preview) => (Some(count > 0), summary.unwrap_or_else(|| "no changes".into())),
        _ => (Some(false), summary.unwrap_or_else(|| "no changes".into())),
    };
    Run {
        kind,
        update: update.name_any(),
        hash: None,
        of: None,
        ended: view::times(update).1,
        revision: view::revision(update).unwrap_or_default().into(),
        summary,
        unnamed: (count - i64::try_from(resources.len()).unwrap_or(i64::MAX)).max(0),
        changes,
        resources,
        differs,
    }
}

/// The last run of a Stack whose Update is deleted. The status of the Stack has its end and no
/// changes.
fn deleted(stack: &CoreStack, kind: Kind) -> Option<Run> {
    let last = stack.status.last_update.as_ref()?;
    if (last.operation == Some(Operation::Preview)) != (kind == Kind::Preview) {
        return None;
    }
    let succeeded = last.state == LastUpdateState::Succeeded;
    let state = view::last_state(last.state);
    Some(Run {
        kind,
        update: last.name.clone(),
        hash: None,
        of: None,
        ended: last.last_resync_time,
        revision: last.last_attempted_commit.clone(),
        summary: format!("{state}; its changes are unknown, because its Update was deleted"),
        changes: BTreeMap::new(),
        resources: Vec::new(),
        unnamed: 0,
        differs: (succeeded && kind == Kind::Update).then_some(false),
    })
}

/// The plan of a guarded Stack that waits for an approval, or that of a pull request.
fn plan(stack: &CoreStack) -> Option<Run> {
    let is_current = |state: PlanState| state.is_pending() || state == PlanState::Preview;
    let proposal = stack.status.plan.proposal.as_ref().filter(|proposal| is_current(proposal.state))?;
    let plan = proposal.plan.as_ref()?;
    let resources: Vec<_> = plan
        .changes
        .first
        .iter()
        .map(|change| Resource {
            change: change.kind.as_str().into(),
            urn: change.urn.clone(),
            properties: change.paths.clone(),
            detail: String::new(),
        })
        .collect();
    Some(Run {
        kind: Kind::Plan,
        update: proposal.update.clone(),
        hash: matches!(proposal.state, PlanState::Proposed | PlanState::Preview).then(|| plan.hash.to_string()),
        of: stack.shown_for().cloned(),
        ended: Some(plan.made_at),
        revision: proposal.wish.commit.clone(),
        summary: format!("{} ({})", summary(plan), proposal.state.as_str()),
        changes: plan.counts.iter().map(|(kind, count)| (kind.as_str().to_owned(), i64::from(*count))).collect(),
        unnamed: i64::from(plan.changes.count) - i64::try_from(resources.len()).unwrap_or_default(),
        resources,
        differs: Some(true),
    })
}

fn drift(stack: &CoreStack) -> Option<Run> {
    let status = &stack.status.drift;
    let (differs, summary, found) = match status.verdict.as_ref()? {
        DriftVerdict::None => (Some(false), "no drift".to_owned(), None),
        DriftVerdict::Remediated => (Some(false), "an update has remediated the drift".into(), None),
        DriftVerdict::Adopted => {
            (Some(false), "the state has taken the drift over; the next update changes it back to the program".into(), None)
        }
        DriftVerdict::Found(drift) => {
            let resources = if drift.count == 1 { "resource" } else { "resources" };
            (Some(true), format!("{} {resources} drifted", drift.count), Some(drift))
        }
        DriftVerdict::Unknown(why) => (None, why.clone(), None),
    };
    let named = found.into_iter().flat_map(|drift| &drift.resources);
    let resources: Vec<_> = named
        .map(|resource| Resource {
            change: resource.change.clone(),
            urn: resource.urn.clone(),
            properties: resource.properties.clone(),
            detail: String::new(),
        })
        .collect();
    Some(Run {
        kind: Kind::DriftCheck,
        update: status.last.clone().unwrap_or_default(),
        hash: None,
        of: None,
        ended: status.checked,
        revision: Revision::default(),
        summary,
        changes: BTreeMap::new(),
        unnamed: found.map_or(0, |drift| i64::from(drift.count)) - i64::try_from(resources.len()).unwrap_or_default(),
        resources,
        differs,
    })
}

fn is_change(operation: &str) -> bool {
    !UNCHANGED.contains(&operation)
}

/// The resources that a log of `pulumi preview --diff` or `pulumi up --diff` shows as changed, in
/// its order. A log is for people, and the program writes to it too: nothing is decided from it.
#[must_use]
pub fn resources(log: &str) -> Vec<Resource> {
    let mut found: Vec<Resource> = Vec::new();
    // The operation of the last step and its indentation, and the resource whose properties follow.
    let mut step = ("", 0);
    let mut shown: Option<usize> = None;
    for line in log.lines() {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        if is_title(line) {
            found.clear();
            shown = None;
        } else if let Some(operation) = operation(text) {
            step = (operation, indent);
            shown = None;
        } else if let Some(urn) = text.strip_prefix("[urn=").and_then(|urn| urn.strip_suffix(']')).filter(|_| is_change(step.0)) {
            let index = found.iter().position(|resource| resource.urn == urn).unwrap_or(found.len());
            // The steps of a replacement are of one resource, and each has its properties.
            let change = if index < found.len() { "replace" } else { step.0 };
            let resource = Resource { change: change.to_owned(), urn: urn.to_owned(), ..Resource::default() };
            match found.get_mut(index) {
                Some(earlier) => *earlier = resource,
                None => found.push(resource),
            }
            shown = Some(index);
        } else if indent == 0 || text.starts_with("--outputs:--") {
            shown = None;
        } else if let Some(resource) = shown.and_then(|index| found.get_mut(index)).filter(|_| !text.starts_with('[')) {
            // Pulumi indents the sign of a property by two columns more than its resource.
            let _ = writeln!(resource.detail, "{}", line.get(step.1 + 2..).unwrap_or(text).trim_end());
        }
    }
    found
}

/// Whether Pulumi begins an operation with this line, such as `Previewing update (prod):`.
fn is_title(line: &str) -> bool {
    let verbs = ["Previewing ", "Updating ", "Refreshing ", "Destroying "];
    line.ends_with("):") && verbs.iter().any(|verb| line.starts_with(verb))
}

/// The operation of a line such as `+ aws:s3/bucket:Bucket: (create)`.
fn operation(line: &str) -> Option<&str> {
    let (head, operation) = line.strip_suffix(')')?.rsplit_once(": (")?;
    let type_ = head.rsplit(' ').next()?;
    (type_.split(':').count() == 3 && operation.chars().all(|c| c.is_ascii_lowercase() || c == '-')).then_some(operation)
}

/// The sign of an operation, as in the column `CHANGES` of `kubectl get updates`.
fn sign(change: &str) -> (Tone, char) {
    match change {
        "create" => (Tone::Good, '+'),
        "delete" => (Tone::Bad, '-'),
        "replace" => (Tone::Bad, '±'),
        "import" => (Tone::Good, '='),
        _ => (Tone::Busy, '~'),
    }
}

/// The differences as text.
#[must_use]
pub fn render(diff: &Diff, style: Style, now: Timestamp) -> String {
    let mut text = format!("{}\n", clean(&diff.object));
    for run in &diff.runs {
        let what = match run.kind {
            Kind::Plan => "plan",
            Kind::Preview => "preview",
            Kind::Update => "update",
            Kind::DriftCheck => "drift check",
        };
        let revision = if run.revision.is_empty() { String::new() } else { format!(" of {}", short(run.revision.as_str())) };
        let ended = run.ended.map(|at| format!(", {} ago", age(at, now))).unwrap_or_default();
        let tone = if run.differs == Some(false) { Tone::Plain } else { Tone::Bad };
        let _ = writeln!(
            text,
            "\nThe last {what}{}, Update {}{ended}: {}",
            clean(&revision),
            clean(&run.update),
            style.paint(tone, &run.summary)
        );
        for resource in &run.resources {
            let (tone, sign) = sign(&resource.change);
            let _ = writeln!(text, "  {} {}", style.paint(tone, &format!("{sign} {}", resource.change)), clean(&resource.urn));
            for line in resource.properties.iter().map(String::as_str).chain(resource.detail.lines()) {
                let _ = writeln!(text, "      {}", clean(line));
            }
        }
        if let (Some(hash), Some((namespace, name))) = (&run.hash, diff.object.trim_start_matches("Stack ").split_once('/')) {
            let [namespace, name] = [clean(namespace), clean(run.of.as_deref().unwrap_or(name))];
            let _ = writeln!(
                text,
                "  to approve exactly this: kubectl driftless approve {name} --namespace {namespace} --plan {hash}"
            );
        }
        match run.unnamed {
            0 => {}
            1 => text += "  1 resource is not listed; see the log of the Update\n",
            more => {
                let _ = writeln!(text, "  {more} resources are not listed; see the log of the Update");
            }
        }
    }
    text
}
