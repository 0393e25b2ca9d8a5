//! `explain`: why a Stack or an Update runs, waits or rests, and when it is reconciled next, by the
//! code that decides.

use std::fmt::Write as _;

use driftless_api::Update;
use driftless_core::{
    Effect, LastUpdate, Plan, Readiness, RunState, Snapshot, SourceRef, SourceState, Stack, StackReason, Sync, decide, due,
    is_synced, its_turn, refused,
    run::{
        Block, LaunchFacts, Object, OwnerFacts, Question, RunFacts, RunPlan, Standing, TaskFacts, UpdateEffect, UpdateFacts,
        WaitReason, plan_run, plan_update,
    },
    violations,
};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    facts::Unknown,
    render::{Style, Tone, age, clean, short, span, time},
    view::{self, Phase},
};

/// `LookPeriodSeconds` of an installation that does not set it: each Stack is reconciled once in
/// this time.
const PERIOD_SECONDS: i64 = 600;
/// The sweep hints a live run in this time, with the default `TokenSeconds`.
const LIVE_SECONDS: i64 = 150;
/// The sweep runs once a minute.
const TICK_SECONDS: i64 = 60;

/// What an object does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Doing {
    /// A run is in progress, or is to start.
    Runs,
    /// It waits, and continues by itself.
    Waits,
    /// It is as wanted.
    Rests,
    /// It needs a person.
    Stalled,
}

impl Doing {
    fn words(self) -> (Tone, &'static str) {
        match self {
            Self::Runs => (Tone::Busy, "runs"),
            Self::Waits => (Tone::Busy, "waits"),
            Self::Rests => (Tone::Good, "rests"),
            Self::Stalled => (Tone::Bad, "is stalled"),
        }
    }
}

/// When an object is reconciled next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Next {
    /// The time, if it is known.
    pub at: Option<Timestamp>,
    /// What leads to it.
    pub why: String,
}

/// A fact that an explanation rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The fact's name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// What a reason means, and what a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What it means.
    pub meaning: &'static str,
    /// What a person does.
    pub remedy: &'static str,
}

/// Why an object is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The object.
    pub object: String,
    /// What it does.
    pub doing: Doing,
    /// The reason, as a condition has it.
    pub reason: String,
    /// The message of the reason.
    pub message: String,
    /// What the reason means, and what a person does, as on the page of reasons.
    #[serde(flatten)]
    pub advice: Option<Advice>,
    /// Whether reason and message are the status' own, because the decision depends on an unknown
    /// fact.
    pub from_status: bool,
    /// When it is reconciled next.
    pub next: Next,
    /// What a reconciliation does now, one sentence each.
    pub now: Vec<String>,
    /// The facts.
    pub facts: Vec<Fact>,
    /// The facts that are not known here.
    pub unknown: Vec<Unknown>,
}

/// Explains a Stack. `update` is its current Update, if there is one.
#[must_use]
pub fn stack(snapshot: &Snapshot, unknown: Vec<Unknown>, update: Option<&Update>, now: Timestamp) -> Explanation {
    let stack = &snapshot.stack;
    let plan = plan(snapshot, now);
    let recorded = stack.status.readiness.clone();
    let is_seen = stack.status.observed_generation == Some(stack.generation)
        && stack.status.observed_reconcile_request == stack.reconcile_request
        && stack.status.suspended == stack.suspended;
    // The reconciler knew all facts when it wrote the status.
    let from_status = !unknown.is_empty() && is_seen && recorded.is_some() && recorded != plan.status.readiness;
    let readiness = if from_status { recorded } else { plan.status.readiness.clone() };
    let is_running = update.is_some_and(|update| view::phase(update) == Phase::Running);
    let starts = plan.effects.iter().any(|effect| matches!(effect, Effect::Run(_)));
    let (_, reason, message) = view::readiness(readiness.as_ref(), stack.suspended);
    let doing = match &readiness {
        Some(Readiness::Stalled { .. }) => Doing::Stalled,
        Some(Readiness::Ready) => Doing::Rests,
        _ if is_running || starts && !from_status => Doing::Runs,
        Some(Readiness::Reconciling { .. }) | None => Doing::Waits,
    };
    let mut now_does: Vec<_> = plan.effects.iter().filter_map(effect).collect();
    if let Some(sentence) = wanted(snapshot, &plan.effects, now) {
        now_does.insert(0, sentence);
    }
    if now_does.is_empty() {
        now_does.push("it changes nothing".into());
    }
    Explanation {
        object: format!("Stack {}/{}", stack.namespace, stack.name),
        doing,
        message: if message.is_empty() { rest(stack) } else { message },
        advice: StackReason::parse(&reason).map(|reason| Advice { meaning: reason.meaning(), remedy: reason.remedy() }),
        reason,
        from_status,
        next: next(snapshot, plan.status.next_reconciliation, now),
        now: now_does,
        facts: stack_facts(snapshot, update, now),
        unknown,
    }
}

/// The plan that a reconciliation carries out now.
fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let plan = decide(snapshot, now);
    let rules = violations(snapshot, &plan, now);
    if rules.is_empty() { plan } else { refused(snapshot, &rules) }
}

/// Why a Stack has nothing to do.
fn rest(stack: &Stack) -> String {
    match &stack.status.last_update {
        Some(last) if stack.suspended => format!("suspended; the last update matches generation {}", last.generation),
        Some(last) => {
            let commit = if last.last_successful_commit.is_empty() {
                String::new()
            } else {
                format!(" and {}", short(last.last_successful_commit.as_str()))
            };
            format!("the last update matches generation {}{commit}", last.generation)
        }
        None => "no update is needed".into(),
    }
}

/// The run that is wanted and does not start now, with its reason.
fn wanted(snapshot: &Snapshot, effects: &[Effect], now: Timestamp) -> Option<String> {
    if effects.iter().any(|effect| matches!(effect, Effect::Run(_))) || matches!(snapshot.run, RunState::Live(..)) {
        return None;
    }
    let Some(SourceState::Artifact { revision, .. }) = &snapshot.source else { return None };
    match is_synced(&snapshot.stack, revision, snapshot.inputs.as_ref(), now) {
        Sync::Run(why) if !snapshot.stack.suspended => Some(format!("a run is wanted and does not start yet: {why}")),
        Sync::Run(_) | Sync::Synced => None,
    }
}

/// What an effect does, unless that is of no interest to a user.
fn effect(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Event { .. } => return None,
        Effect::AddFinalizer => "it adds the finalizer".into(),
        Effect::Fetch(source) => format!("it requests a fetch of {}", source_name(source)),
        Effect::Run(new) => {
            let revision =
                if new.current.commit.is_empty() { String::new() } else { format!(" of {}", short(new.current.commit.as_str())) };
            format!("it starts {}{revision} as Update {}: {}", new.operation.as_str(), new.current.name, new.message)
        }
        Effect::Propose(new) => format!("it makes a plan as Update {}", new.current.name),
        Effect::SpendApproval => "it empties the annotation of the approval that a run has used".into(),
        Effect::CheckDrift(new) => format!("it starts a drift check as Update {}", new.current.name),
        Effect::Launch { update, .. } => format!("it hints Update {update}"),
        Effect::ReleaseUpdate { update, .. } => format!("it records the outcome of Update {update} on the Stack"),
        Effect::CompareInputs => "it requests a comparison of the Secrets and ConfigMaps with those of the last run".into(),
        Effect::WakeDependents => "it hints the Stacks that wait for this one".into(),
        Effect::ReclaimWorkspace => "it deletes the Workspace".into(),
        Effect::RequestReconcile { stack, .. } => format!("it requests a run of Stack {stack}"),
        Effect::DeleteStack => "it deletes the Stack, whose TTL has ended".into(),
        Effect::RemoveFinalizer => "it removes the finalizer, and the Stack is deleted".into(),
    })
}

fn source_name(source: &SourceRef) -> String {
    match source {
        SourceRef::Git(git) => format!("git repository {}", git.repo),
        SourceRef::Program { .. } | SourceRef::Flux { .. } => {
            let (_, kind, name) = source.object();
            format!("{kind} {name}")
        }
    }
}

/// When a Stack is reconciled next. `planned` is the time that a reconciliation now would set.
fn next(snapshot: &Snapshot, planned: Option<Timestamp>, now: Timestamp) -> Next {
    let stack = &snapshot.stack;
    let booked = stack.status.next_reconciliation.filter(|at| *at > now);
    let tick = |ticks: i64| Timestamp::from_second((now.as_second() / TICK_SECONDS + ticks) * TICK_SECONDS).ok();
    let is_due = due(stack, false, now);
    let (at, why) = match (booked, planned) {
        (Some(at), _) => (Some(at), "when the last reconciliation requeued it, or earlier after an event"),
        (None, _) if is_due => (
            tick(1),
            "a change is not reconciled yet, or a reconciliation is overdue; the sweep or an \
             event hints it",
        ),
        (None, Some(at)) if at > now => {
            (Some(at), "an earlier reconciliation requeues it for that time, or an event hints it earlier")
        }
        _ => {
            let turn = (1..=PERIOD_SECONDS / TICK_SECONDS)
                .filter_map(tick)
                .find(|at| its_turn(stack.uid.as_str(), PERIOD_SECONDS, TICK_SECONDS, 1, *at));
            (turn, "its time in the sweep with the default LookPeriodSeconds of 600, or earlier after an event")
        }
    };
    Next { at, why: why.into() }
}

fn fact(name: &str, value: impl Into<String>) -> Fact {
    Fact { name: name.into(), value: value.into() }
}

fn stack_facts(snapshot: &Snapshot, update: Option<&Update>, now: Timestamp) -> Vec<Fact> {
    let Stack { generation, suspended, deleting, reconcile_request, status, spec, .. } = &snapshot.stack;
    let observed = status.observed_generation.map_or("none".to_owned(), |seen| seen.to_string());
    let mut facts = vec![fact("generation", format!("{generation}, reconciled: {observed}"))];
    for (name, value) in [("suspended", suspended), ("being deleted", deleting)] {
        if *value {
            facts.push(fact(name, "yes"));
        }
    }
    if *reconcile_request != status.observed_reconcile_request {
        facts.push(fact("request", format!("{reconcile_request:?}, not reconciled yet")));
    }
    facts.extend(spec.sources.iter().map(|source| {
        let state = match &snapshot.source {
            _ if matches!(snapshot.run, RunState::Live(..)) => "not read while a run is in progress".to_owned(),
            Some(SourceState::Artifact { revision, .. }) => format!("offers {}", short(revision.as_str())),
            Some(SourceState::NotFound) => "not found".into(),
            Some(SourceState::NoArtifact { why }) => format!("has no artifact: {why}").trim_end_matches(": ").to_owned(),
            Some(SourceState::Unfit { why }) => format!("cannot be used: {why}"),
            Some(SourceState::Unknown { subject }) => format!("{subject} is not fetched yet"),
            None => "not read".into(),
        };
        fact("source", format!("{} {state}", source_name(source)))
    }));
    if let Some(last) = &status.last_update {
        facts.push(fact("last update", last_update(last, now)));
    }
    if let Some(update) = update {
        facts.push(fact("current update", format!("{}: {}", update.name_any(), phase(update, now))));
    }
    for (reference, found) in spec.prerequisites.iter().zip(&snapshot.prerequisites) {
        let last = found.as_ref().and_then(|found| found.last_update.as_ref());
        let state = match (found, last) {
            (None, _) => "not found".to_owned(),
            (Some(_), None) => "has not run".into(),
            (Some(found), Some(last)) if last.generation != found.generation => {
                format!("generation {} has not run", found.generation)
            }
            (Some(_), Some(last)) => last_update(last, now),
        };
        facts.push(fact("prerequisite", format!("{}: {state}", reference.name)));
    }
    let (_, drift) = view::drift(&snapshot.stack);
    if let Some(checked) = status.drift.checked {
        facts.push(fact("drift", format!("{drift}, checked {} ago", age(checked, now))));
    }
    facts
}

fn last_update(last: &LastUpdate, now: Timestamp) -> String {
    let operation = last.operation.map_or("update", driftless_core::Operation::as_str);
    let ago = last.last_resync_time.map(|at| format!(" {} ago", age(at, now))).unwrap_or_default();
    let commit = short(last.last_attempted_commit.as_str());
    let commit = if commit.is_empty() { commit } else { format!(" of {commit}") };
    let failures = if last.failures > 0 { format!(", {} counted failures", last.failures) } else { String::new() };
    format!("{operation}{commit} {}{ago}{failures}", view::last_state(last.state))
}

/// The text for how far an Update is.
pub(crate) fn phase(update: &Update, now: Timestamp) -> String {
    let (started, ended) = view::times(update);
    let for_ = |at: Option<Timestamp>| at.map_or_else(|| "unknown".into(), |at| age(at, now));
    match view::phase(update) {
        Phase::Waiting(reason, _) if reason.is_empty() => "its task has not started".into(),
        Phase::Waiting(reason, _) => format!("waits: {reason}"),
        Phase::Running => {
            let summary = view::ours(update).summary.map(|summary| format!(", {summary} steps")).unwrap_or_default();
            format!("runs for {}{summary}", for_(started))
        }
        Phase::Succeeded => format!("succeeded {} ago", for_(ended)),
        Phase::Failed(reason) => format!("failed ({reason}) {} ago", for_(ended)),
    }
}

/// Explains an Update. `standing` says whether its Stack still wants it.
#[must_use]
pub fn update(update: &Update, standing: Standing, system_namespace: &str, now: Timestamp) -> Explanation {
    let known = update.facts(system_namespace, now);
    let facts = run_facts(update, known, standing);
    let phase = view::phase(update);
    let (doing, reason, message) = match plan_run(&facts, now) {
        Ok(plan) => run_words(&plan, update, &phase, now),
        Err(need) => (Doing::Waits, "Unknown".into(), format!("the decision depends on a fact that is unknown here: {need:?}")),
    };
    let effects = plan_update(&known, &facts, now).unwrap_or_default();
    let name = update.name_any();
    let mut now_does: Vec<_> = effects.iter().map(|effect| update_effect(*effect).to_owned()).collect();
    if now_does.is_empty() {
        now_does.push("it changes nothing".into());
    }
    Explanation {
        object: format!("Update {}/{name}", update.namespace().unwrap_or_default()),
        doing,
        advice: WaitReason::parse(&reason).map(|reason| Advice { meaning: reason.meaning(), remedy: reason.remedy() }),
        reason,
        message,
        from_status: false,
        next: update_next(&known, &facts, &phase, now),
        now: now_does,
        facts: update_facts(update, standing, now),
        unknown: if update.is_complete() || known.task { vec![Unknown::Outcome] } else { Vec::new() },
    }
}

/// What the run planner is to know: the status stands for the documents in S3, and for the state of
/// the task.
fn run_facts(update: &Update, known: UpdateFacts, standing: Standing) -> RunFacts {
    let (started, _) = view::times(update);
    let max_seconds =
        update.annotations().get(driftless_api::names::MAX_DURATION).and_then(|text| driftless_core::duration(text));
    let max_seconds = max_seconds.and_then(|limit| u32::try_from(limit.as_secs()).ok());
    let launch = LaunchFacts { readable: true, refused_since: None, max_seconds };
    let is_tried = matches!(known.waiting, Some(WaitReason::TaskNotStarted | WaitReason::TaskRefused));
    let block = update.waits_for().and_then(|(reason, message)| {
        Some(match reason? {
            WaitReason::SpecInvalid => Block::Invalid(message.to_owned()),
            reason => Block::Wait { reason, message: message.to_owned(), is_of_inputs: false },
        })
    });
    RunFacts {
        object: Object::Found(known),
        question: Question::End,
        watched: Some(true),
        standing: Some(standing),
        named: Some(standing != Standing::Foreign),
        outcome: Some(known.is_complete()),
        owner: Some(known.task.then(|| OwnerFacts::Task { since: started.unwrap_or_default() })),
        launch: Some((known.task || is_tried).then_some(launch)),
        holds: Some(false),
        block,
        task_folder: None,
        task: Some(TaskFacts::Alive { end: driftless_core::TaskEnd::default() }),
        began: Some(view::ours(update).progress.is_some()),
        result: Some(None),
        stopped: false,
        // StartSeconds and MaxRunSeconds of the installation are not known here.
        start_seconds: u32::MAX,
    }
}

fn run_words(plan: &RunPlan, update: &Update, phase: &Phase, now: Timestamp) -> (Doing, String, String) {
    let name = |word: &str| word.to_owned();
    match (plan, phase) {
        (RunPlan::Publish, Phase::Failed(reason)) => {
            let message = view::condition(update, "Failed").map(|failed| failed.message.clone()).unwrap_or_default();
            (Doing::Stalled, reason.clone(), message)
        }
        (RunPlan::Publish, _) => (Doing::Rests, name("UpdateSucceeded"), "the run succeeded".into()),
        (RunPlan::Stop(why), _) => (Doing::Runs, name("Progressing"), format!("the task is stopped: {why}")),
        (RunPlan::Wait { reason, message, .. }, Phase::Waiting(_, shown)) => {
            (Doing::Waits, reason.to_string(), if shown.is_empty() { message.clone() } else { shown.clone() })
        }
        (RunPlan::Abandon(reason), _) => (Doing::Stalled, name("Aborted"), reason.to_string()),
        (_, Phase::Running) | (RunPlan::Supply { .. } | RunPlan::AskAgain { .. } | RunPlan::Conclude(_), _) => {
            (Doing::Runs, name("Progressing"), self::phase(update, now))
        }
        (RunPlan::Start, _) => (Doing::Waits, name("Progressing"), "no known reason prevents the start of its task".into()),
        (RunPlan::Leave, _) => (Doing::Rests, name("Superseded"), "its Stack does not name it; it does not run".into()),
        (RunPlan::Wait { reason, message, .. }, _) => (Doing::Waits, reason.to_string(), message.clone()),
    }
}

fn update_effect(effect: UpdateEffect) -> &'static str {
    match effect {
        UpdateEffect::Launch => "it requests a reconciliation by the launcher",
        UpdateEffect::HintStack => "it hints the Stack",
        UpdateEffect::HintDependents => "it hints the Stacks that wait for its Stack",
        UpdateEffect::Release => "it removes the finalizer",
        UpdateEffect::Delete => "it deletes the Update: ttlAfterCompleted has elapsed",
    }
}

fn update_next(known: &UpdateFacts, facts: &RunFacts, phase: &Phase, now: Timestamp) -> Next {
    let after = |seconds: i64| Some(now + SignedDuration::from_secs(seconds));
    let requeue = match plan_run(facts, now) {
        Ok(RunPlan::Wait { requeue, .. }) => requeue.map(i64::from),
        _ => None,
    };
    let (at, why) = match phase {
        Phase::Waiting(..) if requeue.is_some() => (requeue.and_then(after), "a waiting Update is requeued at the latest then"),
        Phase::Waiting(..) => {
            (after(TICK_SECONDS), "the sweep hints a waiting Update once a minute, and the end of another run wakes it")
        }
        Phase::Running => {
            (after(LIVE_SECONDS), "the sweep hints a live run at the latest then; the end of its task is an event before that")
        }
        Phase::Succeeded | Phase::Failed(_) if known.finalizer => (
            after(TICK_SECONDS),
            "its outcome is not recorded on the \
             Stack yet",
        ),
        Phase::Succeeded | Phase::Failed(_) => {
            match known.complete_since.zip(known.ttl).and_then(|(since, ttl)| since.checked_add(ttl).ok()) {
                Some(at) if at <= now => (after(TICK_SECONDS), "ttlAfterCompleted has elapsed, and the sweep hints it"),
                Some(at) => (Some(at), "it is deleted when ttlAfterCompleted has elapsed"),
                None => (None, "it has ended, and is kept"),
            }
        }
    };
    Next { at, why: why.into() }
}

fn update_facts(update: &Update, standing: Standing, now: Timestamp) -> Vec<Fact> {
    let created = view::created(update).map(|at| format!("{} ago", age(at, now))).unwrap_or_default();
    let mut facts = vec![fact("operation", view::operation(update)), fact("created", created)];
    if let Some(message) = &update.spec.message {
        facts.push(fact("message", message));
    }
    if let Some(revision) = view::revision(update) {
        facts.push(fact("revision", short(revision)));
    }
    let standing = match standing {
        Standing::Current => "its Stack names it, or it has none",
        Standing::Outdated => "its Stack names it and has changed since",
        Standing::Suspended => "its Stack names it and is suspended",
        Standing::OutsideWindow => "its Stack names it, and its maintenance window is closed",
        Standing::Unapproved => "its Stack names it and requires an approval that it does not have",
        Standing::Foreign => "its Stack does not name it",
    };
    facts.push(fact("stack", standing));
    if let Some(task) = view::ours(update).task {
        facts.push(fact("task", task.rsplit('/').next().unwrap_or(&task)));
    }
    let (started, ended) = view::times(update);
    for (name, at) in [("started", started), ("ended", ended)] {
        facts.extend(at.map(|at| fact(name, time(at))));
    }
    facts
}

/// The explanation as text.
#[must_use]
pub fn render(explanation: &Explanation, style: Style, now: Timestamp) -> String {
    let Explanation { object, doing, reason, message, advice, from_status, next, now: now_does, facts, unknown } = explanation;
    let (tone, words) = doing.words();
    let mut text = format!("{object} {}: {reason}\n", style.paint(tone, words));
    if !message.is_empty() {
        let _ = writeln!(text, "  {}", clean(message.trim_end()).replace('\n', "\n  "));
    }
    if let Some(Advice { meaning, remedy }) = advice {
        let _ = write!(text, "\nMeaning: {meaning}\nRemedy: {remedy}\n");
    }
    let at = match next.at {
        Some(at) if at > now => format!("{} (in {})", time(at), span(at.duration_since(now))),
        Some(at) => time(at),
        None => "no time".into(),
    };
    let _ = write!(text, "\nNext reconciliation: {at}\n  {}\n\nA reconciliation now:\n", next.why);
    for sentence in now_does {
        let _ = writeln!(text, "  - {}", clean(sentence));
    }
    if *from_status {
        text += "  - the state above is that of the last reconciliation, which knew all facts\n";
    }
    text += "\nFacts:\n";
    let width = facts.iter().map(|fact| fact.name.chars().count()).max().unwrap_or_default();
    for Fact { name, value } in facts {
        let _ = writeln!(text, "  {name:width$}   {}", clean(value));
    }
    for unknown in unknown {
        text += &style.paint(Tone::Faint, &format!("  {:width$}   {}", "not known", unknown.sentence()));
        text.push('\n');
    }
    text
}
