//! Runners: one per task. A runner waits for its spec, runs an operation for a while, reports, and
//! stops.

use driftless_api::{Update, uid_of};
use driftless_aws::Objects;
use driftless_contract::{
    Document as _, Drift, FailureReason, Lock, OutputValue, Phase, PlannedChanges, RunResult, RunSpec, Uid, VERSION, Verdict,
    keys, to_json,
};
use driftless_core::{StopCode, TaskEnd};
use driftless_kubernetes::Cluster;
use driftless_testkit::{LiveTask, World};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    chances::{Chances, Dice, Trouble},
    hostile,
    ledger::Ledger,
    objects::{CANARY, project_of, pulumi_stack},
};
use crate::scenario::SYSTEM;

/// The id of the task role.
pub(super) const ROLE: &str = "AROASIM";

/// A task that never gets a spec ends after this long.
const SPEC_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// How often it polls for the spec.
const SPEC_EVERY: SignedDuration = SignedDuration::from_secs(5);
/// A hanging operation outlasts everything else.
const NEVER: SignedDuration = SignedDuration::from_hours(24);
/// ECS kills a stopped task after this time; until then `pulumi` saves its state.
const STOP_SECONDS: u32 = 120;

/// A runner's message about a failed operation.
pub(super) const FAILURE: &str = "it fails";
/// The reason of a task whose image cannot be pulled, so that it fails to start.
const UNPULLED: &str = "CannotPullContainerError";

/// The runner of a task.
pub(super) struct Runner {
    pub(super) arn: String,
    /// The name of the Update for which it was started.
    update: String,
    /// The namespace of that Update.
    namespace: String,
    /// When it acts next.
    pub(super) wake: Timestamp,
    /// When the task was started.
    pub(super) began: Timestamp,
    conduct: Conduct,
    step: Step,
    dice: Dice,
}

/// The behaviour of a task. Any but `Good` is a task of the hostile tenant.
#[derive(Clone, Copy, PartialEq)]
enum Conduct {
    Good,
    /// Shows no progress and never ends.
    Silent,
    /// Shows progress and never ends.
    Endless,
    /// Writes a result at once, or garbage in its place, and continues.
    Forges {
        garbage: bool,
    },
    /// Changes its Update while it has no spec: see [`hostile::ambush`].
    Ambushes,
}

impl Conduct {
    fn draw(dice: &mut Dice) -> Self {
        match dice.below(6) {
            0 => Self::Silent,
            1 => Self::Endless,
            2 => Self::Forges { garbage: false },
            3 => Self::Forges { garbage: true },
            _ => Self::Ambushes,
        }
    }
}

enum Step {
    Waiting {
        until: Timestamp,
    },
    Running {
        spec: Box<RunSpec>,
        began: Timestamp,
        end: End,
        drift: u32,
        /// The plan that it made, if its Stack is guarded.
        plan: Option<Box<PlannedChanges>>,
        /// What its Pulumi stack has after a success, if it changes it.
        content: Option<String>,
        hangs: bool,
        told: bool,
    },
    Stopping,
    /// Ends only if it is stopped. `update_uid` if it was given a run.
    Rogue {
        update_uid: Option<Uid>,
        told: bool,
    },
}

/// How an operation ends.
enum End {
    Reported(Verdict),
    Killed,
}

impl Runner {
    /// The runner of a new task, whose image is pulled first.
    pub(super) fn new(task: &LiveTask, now: Timestamp, is_hostile: bool, mut dice: Dice) -> Self {
        let conduct = if is_hostile { Conduct::draw(&mut dice) } else { Conduct::Good };
        let wake = if conduct == Conduct::Ambushes { now } else { now + dice.seconds(90) };
        let (arn, update, namespace) = (task.arn.clone(), task.run.update.name.clone(), task.run.update.namespace.clone());
        Self { arn, update, namespace, wake, began: now, conduct, step: Step::Waiting { until: wake + SPEC_WITHIN }, dice }
    }

    /// Continues until ECS is asked to stop it.
    fn never_end(&mut self, update_uid: Option<Uid>, now: Timestamp, ledger: &mut Ledger) {
        ledger.stats.rogues += 1;
        ledger.tell(|| format!("task {} does not end by itself", keys::task_id(&self.arn)));
        self.wake = now + NEVER;
        self.step = Step::Rogue { update_uid, told: false };
    }

    fn folder(&self) -> String {
        keys::task(ROLE, &self.arn).to_string()
    }

    /// Its Update was deleted: half of the operations end only if they are stopped.
    pub(super) fn deleted(&mut self, update_uid: &Uid) {
        if let Step::Running { spec, began, hangs: true, told: false, .. } = &self.step
            && spec.run.uid == *update_uid
        {
            self.wake = *began + NEVER;
        }
    }

    /// ECS stops the task.
    pub(super) fn stop(&mut self, now: Timestamp, ledger: &mut Ledger, chances: &Chances) {
        if let Step::Rogue { update_uid, told: told @ false } = &mut self.step {
            *told = true;
            self.wake = now + self.dice.seconds_or(30, STOP_SECONDS, chances.odds.get());
            ledger.stats.stops += 1;
            ledger.tell(|| format!("task {} is told to stop", keys::task_id(&self.arn)));
            // From here on the claim and the slot are free: ECS accepted the stop.
            if let Some(uid) = update_uid {
                ledger.end_operation(uid, None);
            }
        }
        let Step::Running { spec, end, told, .. } = &mut self.step else { return };
        if std::mem::replace(told, true) {
            return;
        }
        ledger.tell(|| format!("runner: {} is told to stop", spec.run.update.name));
        ledger.stats.stops += 1;
        let at = now + self.dice.seconds_or(30, STOP_SECONDS, chances.odds.get());
        if at < self.wake {
            self.wake = at;
            ledger.interrupt(&spec.run.uid);
            *end = if self.dice.chance(chances.odds.get().of(Trouble::Kill)) {
                End::Killed
            } else {
                End::Reported(failed(FailureReason::Interrupted))
            };
        }
    }

    /// Takes the next step. Returns `false` when the task has ended.
    pub(super) fn turn(&mut self, world: &World, ledger: &mut Ledger, chances: &Chances) -> bool {
        let (now, odds) = (world.now(), chances.odds.get());
        if let Step::Running { spec, began, .. } = &self.step
            && spec.identity
            && let Some(written) = world.written_at(&format!("{}in/identity", self.folder()))
        {
            ledger.check_tokens(&spec.run.update.name, *began, written);
        }
        let ended = match &self.step {
            Step::Waiting { until } => {
                let told = world.live_tasks().iter().any(|task| task.arn == self.arn && task.stopping);
                match get(world, &format!("{}in/spec", self.folder())) {
                    _ if told => Some("told to stop"),
                    _ if self.conduct == Conduct::Silent => {
                        self.never_end(None, now, ledger);
                        None
                    }
                    None if now >= *until => Some("task received no run"),
                    None => {
                        if self.conduct == Conduct::Ambushes {
                            hostile::ambush(&self.update, now.as_second().unsigned_abs(), world);
                        }
                        self.wake = now + SPEC_EVERY;
                        None
                    }
                    Some(_) if chances.outage.get() == Some(&*self.namespace) => {
                        ledger.stats.outages += 1;
                        Some(UNPULLED)
                    }
                    Some(_) if self.dice.chance(odds.of(Trouble::Kill) / 4) => Some(UNPULLED),
                    Some(document) => {
                        self.begin(&document, world, ledger, chances);
                        None
                    }
                }
            }
            Step::Running { spec, end: End::Killed, .. } => {
                ledger.end_operation(&spec.run.uid, None);
                Some("killed")
            }
            Step::Running { spec, began, end: End::Reported(verdict), drift, plan, content, .. } => {
                report(world, &self.folder(), verdict.clone(), spec, *began, *drift, plan.as_deref());
                if let (Verdict::Succeeded {}, Some(content)) = (verdict, content) {
                    ledger.end_change(pulumi_stack(&spec.stack), content.clone());
                }
                ledger.end_operation(&spec.run.uid, Some((matches!(verdict, Verdict::Succeeded {}), *drift)));
                self.step = Step::Stopping;
                self.wake = if self.dice.chance(300) { now } else { now + self.dice.seconds(20) };
                None
            }
            Step::Stopping => Some("exit code 0"),
            Step::Rogue { .. } => Some("killed by ECS"),
        };
        if let Some(why) = ended {
            ledger.tell(|| format!("task {} ends: {why}", keys::task_id(&self.arn)));
            if why == UNPULLED {
                ledger.never_started(&self.update);
                let end = TaskEnd { code: Some(StopCode::FailedToStart), words: why.into(), ..TaskEnd::default() };
                world.stop_task(&self.arn, end);
            } else {
                world.end_task(&self.arn, why);
            }
        }
        ended.is_none()
    }

    fn begin(&mut self, document: &[u8], world: &World, ledger: &mut Ledger, chances: &Chances) {
        let (now, odds) = (world.now(), chances.odds.get());
        let folder = self.folder();
        let spec = match RunSpec::parse(document) {
            Ok(spec) => spec,
            Err(error) => return ledger.violate(|| format!("3: a runner cannot read its spec: {error}")),
        };
        let pack = get(world, &format!("{folder}in/pack")).unwrap_or_default();
        let key = &spec.run.update;
        let update = world.drive(Cluster::get::<Update>(world, &key.namespace, &key.name)).and_then(Result::ok).flatten();
        let update = update.filter(|update| uid_of(update) == spec.run.uid);
        if spec.identity && get(world, &format!("{folder}in/identity")).is_none() {
            ledger.violate(|| format!("3: {} begins and has no identity", key.name));
        }
        ledger.begin_operation(update.as_ref(), &spec, pulumi_stack(&spec.stack), &pack);
        match self.conduct {
            Conduct::Good | Conduct::Ambushes => {}
            Conduct::Silent | Conduct::Endless => {
                put(world, &format!("{folder}out/progress"), "{}".into());
                return self.never_end(Some(spec.run.uid), now, ledger);
            }
            Conduct::Forges { garbage: true } => {
                put(world, &format!("{folder}out/lock"), "{".into());
                put(world, &format!("{folder}out/result"), "{".into());
                return self.never_end(Some(spec.run.uid), now, ledger);
            }
            Conduct::Forges { garbage: false } => {
                report(world, &folder, Verdict::Succeeded {}, &spec, now, 0, None);
                return self.never_end(Some(spec.run.uid), now, ledger);
            }
        }
        let lock = Lock {
            version: VERSION,
            host: "sim".into(),
            pid: 1,
            not_before: now,
            not_after: None,
            removes: false,
            earlier: Vec::new(),
        };
        put(world, &format!("{folder}out/lock"), to_json(&lock));
        let broken = pack.windows(6).any(|bytes| bytes == b"broken") && spec.operation != driftless_contract::Operation::Destroy;
        let stack = update.as_ref().and_then(|update| update.stack(SYSTEM)).map(|stack| stack.uid.into()).unwrap_or_default();
        let target = pulumi_stack(&spec.stack);
        let plan = spec.plan.as_ref().map(|request| ledger.plan(&spec, request, &stack, target, &pack));
        let is_stale = plan.as_ref().is_some_and(|plan| ledger.is_stale(&spec, plan));
        if is_stale {
            ledger.touches_nothing(&spec.run.uid);
        }
        let end = if self.dice.chance(odds.of(Trouble::Kill)) {
            End::Killed
        } else if is_stale {
            End::Reported(failed(FailureReason::PlanStale))
        } else if self.dice.chance(odds.of(Trouble::Fail) / 2) {
            End::Reported(failed(FailureReason::UpdateConflict))
        } else if broken || self.dice.chance(odds.of(Trouble::Fail)) {
            End::Reported(failed(FailureReason::Unknown))
        } else {
            End::Reported(Verdict::Succeeded {})
        };
        self.wake = now + self.dice.seconds_or(90, 600, odds);
        let (hangs, drift) = (self.dice.chance(500), self.dice.below(3));
        let content = (!spec.is_preview() && !is_stale).then(|| ledger.content(&spec, target, &pack));
        if content.is_some() {
            if let Some(plan) = &plan {
                ledger.apply_plan(&spec, &stack, plan);
            }
            let is_locked = matches!(&end, End::Reported(Verdict::Failed { reason: FailureReason::UpdateConflict, .. }));
            if !is_locked {
                ledger.begin_change(target);
            }
        } else if plan.as_ref().is_some_and(PlannedChanges::is_empty) && matches!(end, End::Reported(Verdict::Succeeded {})) {
            ledger.is_deployed(&stack, &spec);
        }
        let plan = plan.map(Box::new);
        self.step = Step::Running { spec: Box::new(spec), began: now, end, drift, plan, content, hangs, told: false };
    }
}

fn failed(reason: FailureReason) -> Verdict {
    Verdict::Failed { phase: Phase::Run, reason, message: FAILURE.into() }
}

fn report(
    world: &World,
    folder: &str,
    verdict: Verdict,
    spec: &RunSpec,
    began: Timestamp,
    drift: u32,
    plan: Option<&PlannedChanges>,
) {
    let value = format!("{}{}output", spec.run.update.namespace, CANARY).into();
    let source = OutputValue { value: json!(spec.source), secret: false };
    let outputs = [("n".to_owned(), OutputValue { value, secret: true }), ("source".to_owned(), source)];
    let outputs = matches!(verdict, Verdict::Succeeded {}).then(|| outputs.into());
    let result = RunResult {
        outputs,
        project: Some(project_of(&spec.stack)),
        changes: [("create".to_owned(), 1)].into(),
        drift: (spec.preview_only && spec.plan.is_none()).then(|| Drift { count: drift, resources: Vec::new() }),
        plan: plan.cloned(),
        inputs: spec.inputs.clone(),
        ..RunResult::new(verdict, began, world.now())
    };
    put(world, &format!("{folder}out/result"), to_json(&result));
}

fn get(world: &World, key: &str) -> Option<Vec<u8>> {
    world.drive(Objects::get(world, key))?.ok()?
}

fn put(world: &World, key: &str, document: String) {
    // Calls never fail in a calm world.
    let _: Option<_> = world.drive(Objects::put(world, key, document.into_bytes()));
}
