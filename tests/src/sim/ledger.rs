//! The checks, by the numbers of the design's invariants:
//!
//! - 1: two operations of one Pulumi stack are never in progress, from when a runner has its spec
//!   until it reports or its task ends; with limits, no more operations are in progress than they
//!   allow.
//! - 2: `lastUpdate` names the generation, the request and the revision that its run was given; and
//!   a state that ran successfully is not run again.
//! - 3: an operation has the configuration of the generation, and the tree of the revision, that
//!   its Update names; the tree exists from when an Update names it until that Update is deleted.
//! - 5: an outcome does not change; `lastUpdate` is never followed by an older run's, never changes
//!   for the same run, and has the runner's report; no Update's operation starts twice.
//! - 6: at the end no task folder has a spec or a result.
//! - 7: a Stack is Ready only if the generation that it observed ran successfully; a waiting one
//!   has a run or a requeue; a reconciliation of a Stack at rest finds nothing to do.
//! - No task is started for another operator's namespace, except by a reconciliation that started
//!   before the change.
//! - 8: everything settles after the disturbance; no claim, no finalizer, no unfinished Update is
//!   left. A Stack with a destroy policy is deleted only after its destroy, also with its
//!   namespace, if a run of it ever started.
//! - 9: a function fetches an archive only for messages about the namespace of its source.
//! - 10: `lastUpdate.failures` counts no more runs than failed, and none that the platform failed.
//! - 11: where nothing goes wrong, a change is run and its Stack is Ready within the bounds of
//!   `latency.rs`.
//! - 12: the tokens of a run are renewed before they expire.
//! - 13: a guarded Stack is changed only by plans that its users approved, each at most once per
//!   approval; a plan has the same binding for the same inputs, and another one for others
//!   (`approvals.rs`).
//! - 14: a state whose run failed is run again at most as often as `spec.driftless.retries` of its
//!   Stack allows.
//! - 15: a Stack that no user deletes is deleted only at the end of its TTL, if that destroys it,
//!   and after a warning in time.
//! - 16: troubles change no final state that follows from a Stack's spec, source and Secret alone
//!   (`Machine::settled`).
//!
//! The rules about the hostile tenant have the names of the attacks that they rule out:
//!
//! - S1: functions write the values of a namespace's Secrets and secret outputs only to that
//!   namespace's Secrets, tasks and sealed inputs, and to no Event and no message; only messages
//!   about the quiet namespace lead to a write or a deletion of its sealed inputs and of the digest
//!   of its inputs.
//! - S3: every task ends within `TASK_ENDS_WITHIN`, whatever it does; no message about the hostile
//!   namespace stops a task of the quiet one.
//! - S9: the last change of the quiet Stack runs within `RUN_WITHIN`. After the disturbance, while
//!   the quiet Stack waits for a slot, no other namespace takes the last free slot twice.
//!
//! The hostile tenant's own objects only have to keep 1, 5 (an operation starts once), 6 and the
//! claims of 8: the tenant forges their statuses and specs.
//!
//! In addition, `driftless_core::violations` checks the plan of every reconciliation.

mod lives;
mod stacks;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    rc::Rc,
};

use driftless_api::Update;
use driftless_contract::{ConfigValue, Launch, ObjectKey, Operation, RunSource, RunSpec, keys};
use driftless_core::{LastUpdate, Limits, Revision, Uid};
use driftless_testkit::{CLUSTER, LiveTask};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::{
    Fault, FaultKind, Stats,
    facts::{Approvals, Changes},
    objects::{HOSTILE, NAMESPACE, QUIET, STACK, project_of, secret_in},
};
use crate::scenario::SYSTEM;

/// The maximum time of a reconciliation.
pub(super) const LOOK: SignedDuration = SignedDuration::from_secs(90);

/// The state that an operation runs: the Stack's uid, generation, request, revision, operation and
/// the value of its Secret.
type State = (Uid, i64, String, Revision, Operation, Option<String>);

/// What an Update asks for, as `lastUpdate` names it: the generation, the request and the revision.
type Asked = (i64, String, Revision);

/// The known facts about an Update's operation.
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
struct Run {
    /// `None` once its Update was deleted by force.
    state: Option<State>,
    /// The uid of its Stack; `None` for a user's Update, or one that was deleted before it started.
    stack: Option<Uid>,
    operation: Operation,
    update: String,
    namespace: String,
    pulumi_stack: String,
    /// The number of operations that started before it.
    place: usize,
    /// The runner's report.
    succeeded: Option<bool>,
    /// The platform stopped its task.
    taken_away: bool,
    /// Its task was stopped, by whatever.
    interrupted: bool,
    /// Drift to fix came after it, so its state may run again.
    superseded: bool,
    /// It was a drift check, which changes nothing, and its result.
    drift: Option<u32>,
    /// It was neither a drift check nor a proposal.
    changes: bool,
}

/// What a Stack says of its end, as long as it is not being deleted.
#[derive(Clone, Copy, Default)]
struct Life {
    /// When its TTL ends, and the least time between the warning and the deletion.
    ttl: Option<(Timestamp, SignedDuration)>,
    /// Whether its deletion destroys.
    destroys: bool,
    /// When its end was first announced for the present time, and that time.
    announced: Option<(Timestamp, Timestamp)>,
}

/// The history, as far as the checks need it.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) now: Timestamp,
    pub(super) begin: Timestamp,
    pub(super) stats: Stats,
    /// The archives of source-controller, by path.
    pub(super) archives: HashMap<String, Rc<[u8]>>,
    /// The fetcher refuses all of them.
    pub(super) refuses: bool,
    pub(super) limits: Limits,
    pub(super) changes: Changes,
    pub(super) approvals: Approvals,
    /// The lifetime of tokens, if runs that started after the disturbance never have to continue
    /// with old ones.
    pub(super) tokens_live: Option<SignedDuration>,
    /// Since when the namespace of the Stacks is another operator's.
    pub(super) given_away: Option<Timestamp>,
    /// The labels of namespaces that functions cache, and since when.
    pub(super) labels: HashMap<(&'static str, String), (Timestamp, Option<String>)>,
    /// The single fault, and whether it is a crash that is due now.
    fault: Option<Fault>,
    crashes: bool,
    violation: Option<String>,
    /// The trace, if it is kept.
    trace: Option<Vec<String>>,
    /// By the Update's uid.
    runs: BTreeMap<Uid, Run>,
    /// Uids of Updates that were deleted by force.
    forgotten: HashSet<Uid>,
    /// The uid of the Update whose operation is in progress, by Pulumi stack.
    live: BTreeMap<String, Uid>,
    /// When a task was first seen, by ARN.
    tasks: HashMap<String, Timestamp>,
    /// The namespace of the Update for which a task was started, by the task's id.
    pub(super) namespaces: HashMap<String, String>,
    /// The generation of the quiet Stack that has to run, and since when.
    pub(super) wanted: Option<(i64, Timestamp)>,
    /// When the disturbance ended, if it did.
    pub(super) calm_since: Option<Timestamp>,
    /// The uids of the Updates that have a slot.
    pub(super) admitted: HashSet<Uid>,
    /// The namespaces that took the last free slot while the quiet Stack waits for one. `None`
    /// while it does not wait.
    pub(super) preferred: Option<HashSet<String>>,
    /// The order in which Updates were first created, by name.
    updates: HashMap<String, usize>,
    /// Their requests, by name: one that was deleted before it started may be followed by another
    /// of that name.
    asked: HashMap<String, Asked>,
    /// The names of Stacks' Updates that refresh, first or only.
    refreshes: HashSet<String>,
    /// The uids of the Updates whose task's capacity Spot reclaimed.
    reclaimed: HashSet<Uid>,
    /// The names of Updates whose last task failed to start.
    never_started: HashSet<String>,
    /// By the Stack's uid.
    last: HashMap<Uid, LastUpdate>,
    /// The uid of an existing Stack and whether its deletion destroys, by name.
    pub(super) stacks: HashMap<String, (Uid, bool)>,
    /// The value of its Secret in a Stack's last operation, by the Stack's uid.
    pub(super) secrets: HashMap<Uid, Option<String>>,
    /// The limit on retries, by the Stack's uid and generation.
    retries: HashMap<(Uid, i64), i64>,
    /// What the Stacks say of their ends, by name.
    lives: HashMap<String, Life>,
    /// The names of the Stacks that users deleted.
    deleted_by_users: HashSet<String>,
}

impl Ledger {
    pub(super) fn new(begin: Timestamp, limits: Limits, fault: Option<Fault>, traced: bool) -> Self {
        Self { now: begin, begin, limits, fault, trace: traced.then(Vec::new), ..Self::default() }
    }

    /// Adds an event to the trace.
    pub(super) fn tell(&mut self, event: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:9.3} {}", self.now.duration_since(self.begin).as_secs_f64(), event()));
        }
    }

    pub(super) fn take_trace(&mut self) -> Option<Vec<String>> {
        self.trace.take()
    }

    pub(super) fn take_violation(&mut self) -> Option<String> {
        self.violation.take()
    }

    /// Records a violation. Only the first one counts.
    pub(super) fn violate(&mut self, violation: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(violation());
        }
    }

    /// Counts a call of a port. Returns its fault.
    pub(super) fn count_call(&mut self) -> Option<FaultKind> {
        self.stats.calls += 1;
        let is_now = |fault: &Fault| fault.kind != FaultKind::Duplicate && fault.at + 1 == self.stats.calls;
        self.fault.filter(is_now).map(|fault| fault.kind)
    }

    /// Counts a message. Returns whether it is delivered twice.
    pub(super) fn count_message(&mut self) -> bool {
        self.stats.messages += 1;
        let twice = self.fault.is_some_and(|fault| fault.kind == FaultKind::Duplicate && fault.at + 1 == self.stats.messages);
        self.stats.injected += u64::from(twice);
        twice
    }

    /// Makes the invocation of the present call end with it.
    pub(super) fn crash(&mut self) {
        self.crashes = true;
        self.stats.injected += 1;
    }

    pub(super) fn take_crash(&mut self) -> bool {
        std::mem::take(&mut self.crashes)
    }

    /// The last successful run of each Pulumi stack.
    pub(super) fn effects(&self) -> BTreeMap<&str, String> {
        let mut runs: Vec<_> = self.runs.values().filter(|run| run.succeeded == Some(true) && run.changes).collect();
        runs.sort_by_key(|run| run.place);
        // A destroy may have the project's tree or none.
        let effect = |run: &Run| match (&run.state, run.operation) {
            (_, Operation::Destroy) => "destroyed".into(),
            (state, _) => format!(
                "{:?}",
                state.as_ref().map(|(_, generation, request, commit, _, secret)| (generation, request, commit, secret))
            ),
        };
        runs.into_iter().map(|run| (&*run.pulumi_stack, effect(run))).collect()
    }

    pub(super) fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violate(violation);
        }
    }

    pub(super) fn task_started(&self, arn: &str) -> Option<Timestamp> {
        self.tasks.get(arn).copied()
    }

    /// Records the launch of a task.
    pub(super) fn see_launch(&mut self, launch: &Launch) {
        let may_be_theirs = [NAMESPACE, SYSTEM].contains(&launch.run.update.namespace.as_str());
        let theirs = may_be_theirs && self.given_away.is_some_and(|since| self.now.duration_since(since) > LOOK);
        self.check(!theirs, || format!("{} begins in a namespace that is another operator's", launch.run.update));
        self.see_guarded_launch(launch);
    }

    /// Returns whether the task is new.
    pub(super) fn see_task(&mut self, LiveTask { arn, run, .. }: &LiveTask) -> bool {
        if self.tasks.contains_key(arn) {
            return false;
        }
        self.namespaces.insert(keys::task_id(arn).into(), run.update.namespace.clone());
        self.tasks.insert(arn.clone(), self.now);
        true
    }

    pub(super) fn outcome_written(&mut self, key: &str, before: Option<&[u8]>, after: Option<&[u8]>) {
        self.check(before.is_none() || before == after, || format!("5: {key} was written, and is written again"));
    }

    /// Records that an Update was deleted by force, so that its Stack need not record its run.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.forgotten.insert(uid.clone());
        if let Some(run) = self.runs.get_mut(uid) {
            run.state = None;
        }
    }

    pub(super) fn is_forgotten(&self, uid: &Uid) -> bool {
        self.forgotten.contains(uid)
    }

    /// Records that a runner starts its operation. `pack` is the content of its tree.
    pub(super) fn begin_operation(&mut self, update: Option<&Update>, spec: &RunSpec, pulumi_stack: &str, pack: &[u8]) {
        self.stats.operations += 1;
        self.never_started.remove(&spec.run.update.name);
        let is_hostile = spec.run.update.namespace == HOSTILE;
        // Both tenants have a Pulumi stack of that name.
        let pulumi_stack = if is_hostile { spec.run.claim.as_str() } else { pulumi_stack };
        // The tenant may have changed its Update since the launch.
        let update = update.filter(|_| !is_hostile);
        let (name, uid) = (spec.run.update.name.clone(), spec.run.uid.clone());
        self.tell(|| format!("runner: begins {:?} of {name} on {pulumi_stack}", spec.operation));
        self.check(!self.runs.contains_key(&uid), || format!("5: the operation of Update {name} begins twice"));
        let other = self.live.get(pulumi_stack).map(|other| self.runs[other].update.clone());
        self.check(other.is_none(), || format!("1: {name} begins while {other:?} runs on {pulumi_stack}"));
        let stack = update.and_then(|update| update.stack(SYSTEM)).map(|stack| stack.uid.into());
        self.stats.by_hand += u64::from(update.is_some() && stack.is_none());
        self.stats.elsewhere += u64::from(spec.run.update.namespace == SYSTEM);
        let known = update.filter(|_| !self.forgotten.contains(&uid));
        self.check(is_hostile || known.is_some() || self.forgotten.contains(&uid), || {
            format!("3: {name} begins and is not there")
        });
        let state = known.and_then(|update| self.state(update, spec, pack));
        let runs = known.and_then(|update| update.spec.driftless.as_ref()?.stack_generation).filter(|_| !spec.is_preview());
        if spec.run.update.namespace == QUIET
            && let Some((_, since)) = self.wanted.take_if(|(generation, _)| runs.is_some_and(|runs| runs >= *generation))
        {
            let delay = u64::try_from(self.now.duration_since(since).as_secs()).unwrap_or_default();
            self.stats.quiet_delay = self.stats.quiet_delay.max(delay);
        }
        self.live.insert(pulumi_stack.into(), uid.clone());
        let (namespace, pulumi_stack, place) = (spec.run.update.namespace.clone(), pulumi_stack.into(), self.runs.len());
        let is_check = spec.preview_only && spec.plan.is_none();
        let (operation, drift) = (spec.operation, is_check.then_some(0));
        self.stats.checks += u64::from(is_check);
        self.runs.insert(
            uid,
            Run {
                state,
                stack,
                operation,
                update: name,
                namespace,
                pulumi_stack,
                place,
                succeeded: None,
                taken_away: false,
                interrupted: false,
                superseded: false,
                drift,
                changes: !spec.is_preview(),
            },
        );
        self.check_limits();
    }

    fn check_limits(&mut self) {
        let mut of_namespaces = BTreeMap::<_, usize>::new();
        for uid in self.live.values() {
            *of_namespaces.entry(self.runs[uid].namespace.clone()).or_default() += 1;
        }
        let exceeds = |runs: usize, most: Option<usize>| most.is_some_and(|most| runs > most);
        let exceeded = exceeds(self.live.len(), self.limits.runs)
            || of_namespaces.values().any(|runs| exceeds(*runs, self.limits.runs_per_namespace));
        let limits = self.limits;
        self.check(!exceeded, || format!("1: {of_namespaces:?} operations run, and {limits:?}"));
    }

    /// The state that the operation of an Update runs, after a check of it.
    fn state(&mut self, update: &Update, spec: &RunSpec, pack: &[u8]) -> Option<State> {
        let name = update.name_any();
        let ours = update.spec.driftless.as_ref()?;
        let (generation, commit) = (ours.stack_generation?, Revision::from(ours.commit.as_ref()?));
        let marker = spec.config.first().map(|config| config.value == ConfigValue::String(generation.to_string()));
        self.check(spec.operation == Operation::Destroy || marker == Some(true), || {
            format!("3: {name} is of generation {generation}, its configuration is not")
        });
        let text = format!("state {commit};");
        let as_named = match &spec.source {
            RunSource::Tree { .. } => pack.windows(text.len()).any(|bytes| bytes == text.as_bytes()),
            RunSource::Project(project) => {
                spec.operation == Operation::Destroy && *project == project_of(&spec.stack) && pack.is_empty()
            }
        };
        self.check(as_named, || format!("3: {name} is of revision {commit}, its tree is not"));
        let request = ours.reconcile_request.clone().unwrap_or_default();
        let secret = secret_in(spec);
        let stack_uid = Uid::from(update.stack(SYSTEM)?.uid);
        if spec.is_preview() {
            return None;
        }
        let adopts = spec.operation == Operation::Refresh;
        self.stats.adoptions += u64::from(adopts);
        self.secrets.extend((!adopts).then_some((stack_uid.clone(), secret.clone())));
        self.change_runs(&stack_uid, generation, &request, &commit);
        if spec.refresh || adopts {
            // A drift fix runs for the live state and not for a change; if it fails, another one
            // runs.
            self.supersede(&stack_uid);
            return None;
        }
        let state = Some((stack_uid, generation, request, commit, spec.operation, secret));
        let again = self
            .runs
            .values()
            .find(|run| run.state == state && run.succeeded == Some(true) && !run.superseded)
            .map(|run| run.update.clone());
        self.check(again.is_none(), || format!("2: {name} runs what {again:?} ran with success: {state:?}"));
        state
    }

    /// Allows a repetition of what a Stack ran so far.
    fn supersede(&mut self, stack_uid: &Uid) {
        let of_stack = |run: &&mut Run| run.stack.as_ref() == Some(stack_uid);
        self.runs.values_mut().filter(of_stack).for_each(|run| run.superseded = true);
    }

    /// The value of its Secret in a Stack's last operation.
    pub(super) fn secret_of(&self, stack_uid: &Uid) -> Option<&str> {
        self.secrets.get(stack_uid)?.as_deref()
    }

    /// Records that a run ends before its operation.
    pub(super) fn touches_nothing(&mut self, uid: &Uid) {
        if let Some(run) = self.runs.get_mut(uid) {
            run.changes = false;
        }
    }

    /// Records the end of an operation: its report, or that it was killed.
    pub(super) fn end_operation(&mut self, uid: &Uid, reported: Option<(bool, u32)>) {
        let succeeded = reported.map(|(succeeded, _)| succeeded);
        self.stats.failures += u64::from(succeeded != Some(true));
        let Some(run) = self.runs.get_mut(uid) else { return };
        run.succeeded = succeeded;
        run.drift = run.drift.and(reported.map(|(_, drift)| drift));
        let (update, pulumi_stack) = (run.update.clone(), run.pulumi_stack.clone());
        if self.live.get(&pulumi_stack).is_some_and(|live| live == uid) {
            self.live.remove(&pulumi_stack);
        }
        self.tell(|| format!("runner: {update} ends: {succeeded:?}"));
        if succeeded == Some(false) {
            self.check_retries(uid);
        }
    }

    /// Checks an operation that started at `began` and has ended, whose tokens were last written at
    /// `written`.
    pub(super) fn check_tokens(&mut self, update: &str, began: Timestamp, written: Timestamp) {
        let (now, calm) = (self.now, self.calm_since.is_some_and(|since| since <= began));
        let expired = self.tokens_live.is_some_and(|live| now.duration_since(written) > live);
        self.check(!calm || !expired, || format!("12: {update} continues with tokens of {written} until {now}"));
    }

    /// Records that Spot reclaims the capacity of a task.
    pub(super) fn reclaim(&mut self, task: &LiveTask) {
        self.tell(|| format!("Spot takes the capacity of {} back", keys::task_id(&task.arn)));
        self.stats.reclaims += 1;
        self.reclaimed.insert(task.run.uid.clone());
    }

    /// Records that the task of an Update failed to start.
    pub(super) fn never_started(&mut self, update: &str) {
        self.stats.failed_starts += 1;
        self.never_started.insert(update.to_owned());
    }

    /// Checks a deletion of an object of the bucket.
    pub(super) fn object_deleted(&mut self, subject: &str, key: &str, updates: impl FnOnce() -> Vec<Update>) {
        self.check_owner(subject, key);
        let Some(folder) = key.strip_suffix("manifest").filter(|folder| folder.starts_with("trees/")) else { return };
        self.stats.collections += 1;
        // The hostile tenant forges statuses, so the trees of its own namespace may be deleted
        // early.
        let names = |update: &Update| {
            update.namespace().as_deref() != Some(HOSTILE) && tree_of(update).is_some_and(|tree| tree == folder)
        };
        let named_by = updates().iter().find(|update| names(update)).map(kube::ResourceExt::name_any);
        self.check(named_by.is_none(), || format!("3: {folder} is deleted, and Update {named_by:?} names it"));
    }

    /// Records a write of an Update. `is_stored` says whether there is a tree in a folder.
    pub(super) fn update_written(&mut self, update: &Update, is_stored: impl FnOnce(&str) -> bool) {
        let tree = tree_of(update).unwrap_or_default();
        // A drift check may have its tree fetched again.
        let looks = update.spec.driftless.as_ref().is_some_and(|ours| ours.preview_only == Some(true));
        self.check(looks || tree.is_empty() || is_stored(&tree), || {
            format!("3: Update {} names {tree}, which is not stored", update.name_any())
        });
        self.tell(|| {
            let words = if update.is_complete() { "complete" } else { "not complete" };
            let deleting = if update.metadata.deletion_timestamp.is_some() { ", deleting" } else { "" };
            format!("Update {} is {words}{deleting}, finalizers {:?}", update.name_any(), update.finalizers())
        });
        let ours = update.spec.driftless.as_ref();
        if let Some(asked) = ours.and_then(|ours| {
            Some((ours.stack_generation?, ours.reconcile_request.clone().unwrap_or_default(), ours.commit.as_ref()?.into()))
        }) {
            self.asked.insert(update.name_any(), asked);
        }
        let refreshes =
            update.spec.refresh == Some(true) || update.spec.operation.as_deref() == Some(Operation::Refresh.as_str());
        self.refreshes.extend(refreshes.then(|| update.name_any()));
        // An Update that a delayed reconciliation creates again is the same run, and never starts.
        let order = self.updates.len();
        self.updates.entry(update.name_any()).or_insert(order);
    }
}

/// The folder of the tree that an Update names.
fn tree_of(update: &Update) -> Option<String> {
    let tree = update.spec.driftless.as_ref()?.tree.as_ref()?;
    let source = tree.source.as_ref()?;
    let source = ObjectKey {
        cluster: CLUSTER.into(),
        api_version: source.api_version.clone(),
        kind: source.kind.clone(),
        namespace: update.stack(SYSTEM).map_or_else(|| update.namespace(), |stack| Some(stack.namespace))?,
        name: source.name.clone(),
    };
    Some(keys::tree(&source, &tree.digest.as_ref()?.into()).to_string())
}
