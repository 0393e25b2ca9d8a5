//! The machine: whose turn it is, and what time it is.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use driftless_api::{PodFields, Stack, Update};
use driftless_aws::Objects as _;
use driftless_contract::{Hint, ObjectKey, RunLimits, RunMessage, keys};
use driftless_core::{Architecture, DefaultSize, Limits, Retention, Stack as CoreStack, WatchNamespaces};
use driftless_kubernetes::Watch;
use driftless_testkit::{CLUSTER, Faults, LiveTask, Message, World};
use jiff::{SignedDuration, Timestamp};

use super::{
    Breakage, Dice, Failure, Fault, Mode, Odds, Stats,
    hostile::{self, HOSTILE, QUIET},
    ledger::Ledger,
    outside::{self, Action, NAMESPACE, Outside, SERVICE},
    ports::Wire,
    runner::{ROLE, Runner},
};
use crate::scenario::SYSTEM;

/// As the template has it: the time between two sweeps, and the time in which every Stack is looked at once.
pub(super) const SWEEP_SECONDS: i64 = 60;
/// A task that shows no progress is stopped after this.
const START_SECONDS: u32 = 900;
pub(super) const LOOK_PERIOD_SECONDS: i64 = 600;
/// The limit of a run. Runs that end by themselves take less.
pub(super) const MAX_RUN_SECONDS: u32 = 900;
/// Every source is looked at once in this time for trees that nobody needs. Days are minutes here, or nothing would ever be too old.
const COLLECT_SECONDS: i64 = 120;
pub(super) const RETENTION: Retention = Retention { keep: SignedDuration::from_mins(4), grace: SignedDuration::from_mins(2) };
/// As the template has it.
pub(super) const RECONCILER: reconciler::Settings<'static> = reconciler::Settings {
    system_namespace: SYSTEM,
    namespaces: WatchNamespaces::All,
    retention: RETENTION,
    resync_seconds: 600,
    min_resync_seconds: 60,
    pod_fields: PodFields::Ignore,
};
/// Lambda ends an invocation then.
const TIMEOUT: SignedDuration = SignedDuration::from_secs(60);
/// A message that was not handled is delivered again within this time. As the template has it, it takes longer; this is as good.
const VISIBILITY_SECONDS: u32 = 90;
/// Invocations at a time.
const CONCURRENCY: usize = 8;
/// After the disturbance everything has to be at rest in this time: four tries of what fails, each with a task that takes its time,
/// one after another for Stacks that share a Pulumi stack, and a prerequisite before them.
const SETTLED_WITHIN: SignedDuration = SignedDuration::from_hours(3);
/// How long the tasks of a namespace fail to start after the disturbance, where they do: longer than another namespace's change may take.
const OUTAGE: SignedDuration = SignedDuration::from_hours(2);
/// And it has to stay so for more than one period, in which an Update that was created too late is given up, too.
const AT_REST: SignedDuration = SignedDuration::from_secs(LOOK_PERIOD_SECONDS + 5 * SWEEP_SECONDS);
/// While more are waiting, none is doubled: each of a chain of looks that wait for something would be, and each of those again.
const FEW_MESSAGES: usize = 12;
/// Namespaces with Stacks.
pub(super) const TENANTS: u32 = 3;
/// A machine that takes more turns runs in circles.
const MAX_TURNS: u32 = 200_000;

/// Why an invocation failed.
struct Broken {
    transient: bool,
    words: String,
}

pub(super) struct Invocation {
    work: Pin<Box<dyn Future<Output = Result<(), Broken>>>>,
    /// `None` for a sweep.
    message: Option<Message>,
    who: String,
    began: Timestamp,
    /// Held up until then.
    wake: Timestamp,
}

enum Event {
    Sweep,
    Action(Action),
    Hint(Hint),
    Message(Message),
    Garbage,
    /// The outage ends.
    Recovery,
    /// A hint of the quiet Stack that nothing asks for.
    Loop,
    /// Fargate Spot takes a task's capacity back.
    Reclaim(LiveTask),
}

/// One simulated world and all that goes on in it.
pub(super) struct Machine {
    seed: u64,
    pub(super) world: World,
    pub(super) calm: World,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    odds: Rc<Cell<Odds>>,
    mode: Mode,
    breakage: Option<Breakage>,
    dice: Dice,
    pub(super) outside: Outside,
    limits: Limits,
    pub(super) invocations: Vec<Invocation>,
    pub(super) runners: Vec<Runner>,
    /// What will happen, by time and in the order that it was planned.
    agenda: BTreeMap<(Timestamp, u32), Event>,
    planned: u32,
    pub(super) disturbed: bool,
    pub(super) disturbed_until: Timestamp,
    pub(super) at_rest_since: Option<Timestamp>,
    /// Looks of the reconciler since then.
    pub(super) looks_at_rest: u64,
    /// What the Stacks wait for.
    pub(super) waits: Option<String>,
    /// The cluster changed since that was found out.
    pub(super) changed: bool,
}

/// What a machine runs under.
struct Conditions {
    seed: u64,
    odds: Odds,
    mode: Mode,
    limits: Limits,
    breakage: Option<Breakage>,
}

impl Machine {
    pub(super) fn new(seed: u64, breakage: Option<Breakage>, events: usize) -> Self {
        let mode = Mode::draw(&mut Dice::new(seed, 6));
        let mut odds = Odds::draw(&mut Dice::new(seed, 1));
        if mode == Mode::Unswept {
            odds = Odds { crash: 0, transient: 0, lost_answer: 0, drop: 0, deaf: 0, ..odds };
        }
        let limits = limits(&mut Dice::new(seed, 4), breakage);
        let script = |begin| {
            let (mut script, end) = outside::script(&mut Dice::new(seed, 2), begin);
            script.extend(hostile::script(&mut Dice::new(seed, 5), begin, end));
            if mode == Mode::Unswept {
                script.retain(|(_, action)| !action.needs_sweep());
            }
            (script, end)
        };
        Self::of(Conditions { seed, odds, mode, limits, breakage }, script, events)
    }

    /// One for a short calm script with one fault.
    pub(super) fn with_fault(fault: Option<Fault>, events: usize) -> Self {
        let (odds, limits) = (Odds::default(), Limits::default());
        let conditions = Conditions { seed: 0, odds, mode: Mode::Swept, limits, breakage: None };
        let machine = Self::of(conditions, outside::calm_script, events);
        machine.ledger.borrow_mut().fault = fault;
        machine
    }

    /// `script` gives the actions and the end of the disturbance.
    fn of(
        Conditions { seed, odds, mode, limits, breakage }: Conditions,
        script: impl FnOnce(Timestamp) -> (Vec<(Timestamp, Action)>, Timestamp),
        events: usize,
    ) -> Self {
        let faults = Faults { transient: odds.transient, lost_answer: odds.lost_answer, full: odds.full, ..Faults::NONE };
        let world = World::new(seed, faults);
        let begin = world.now();
        let (script, disturbed_until) = script(begin);
        let mut machine = Self {
            seed,
            calm: world.calm(),
            ledger: Rc::new(RefCell::new(Ledger::new(begin, limits, events))),
            odds: Rc::new(Cell::new(odds)),
            mode,
            breakage,
            dice: Dice::new(seed, 3),
            outside: Outside::default(),
            limits,
            invocations: Vec::new(),
            runners: Vec::new(),
            agenda: BTreeMap::new(),
            planned: 0,
            disturbed: true,
            disturbed_until,
            at_rest_since: None,
            looks_at_rest: 0,
            waits: None,
            changed: true,
            world,
        };
        for (at, action) in script {
            machine.plan(at, Event::Action(action));
        }
        if breakage != Some(Breakage::Redelivery) {
            machine.plan(begin + SignedDuration::from_secs(SWEEP_SECONDS), Event::Sweep);
        }
        if breakage == Some(Breakage::Loops) {
            machine.plan(begin, Event::Loop);
        }
        machine.ledger.borrow_mut().stats.unswept = u64::from(mode == Mode::Unswept);
        machine
    }

    /// Runs until all is at rest, or an invariant is broken. Returns what happened and what it came to.
    pub(super) fn run(mut self) -> Result<(Stats, String), Box<Failure>> {
        let ended = (0..MAX_TURNS).find_map(|_| self.turn().transpose());
        let ended = ended.unwrap_or_else(|| Err("8: it runs in circles".into()));
        let rest = self.rest();
        let mut ledger = self.ledger.borrow_mut();
        ledger.stats.seconds = u64::try_from(self.world.now().duration_since(ledger.begin).as_secs()).unwrap_or_default();
        match ended {
            Ok(()) => Ok((ledger.stats, rest)),
            Err(violation) => {
                Err(Box::new(Failure { seed: self.seed, fault: ledger.fault, violation, trace: ledger.take_trace() }))
            }
        }
    }

    /// One thing happens. `Some` when all is at rest.
    fn turn(&mut self) -> Result<Option<()>, String> {
        let now = self.world.now();
        if self.disturbed && now >= self.disturbed_until {
            self.calm_down();
        }
        if let Some(violation) = self.ledger.borrow_mut().take_violation() {
            return Err(violation);
        }
        if self.happen() || self.work() {
            return Ok(None);
        }
        // Nothing is to be done at this time.
        self.check_bounds()?;
        let waits = self.waits_for();
        let rest = waits.is_none().then(|| *self.at_rest_since.get_or_insert(now));
        self.at_rest_since = rest;
        if rest.is_none() {
            self.looks_at_rest = 0;
        }
        if rest.is_some_and(|since| now.duration_since(since) > AT_REST) {
            let mut ledger = self.ledger.borrow_mut();
            ledger.stats.looks_at_rest = self.looks_at_rest;
            drop(ledger);
            return self.check_end().map(Some);
        }
        let calm_since = self.disturbed_until + if self.mode == Mode::Outage { OUTAGE } else { SignedDuration::ZERO };
        if now.duration_since(calm_since) > SETTLED_WITHIN {
            return Err(format!("2, 8: {}", waits.unwrap_or_else(|| "it never comes to rest".into())));
        }
        let wakes =
            self.invocations.iter().map(|invocation| invocation.wake).chain(self.runners.iter().map(|runner| runner.wake));
        let next = wakes.chain(self.agenda.keys().map(|(at, _)| *at)).chain(self.world.next_due()).min();
        // With nothing planned, the time is up.
        let end = calm_since + SETTLED_WITHIN + SignedDuration::from_secs(1);
        self.advance(next.unwrap_or(end).duration_since(now));
        Ok(None)
    }

    fn advance(&mut self, by: SignedDuration) {
        self.world.advance(by);
        self.ledger.borrow_mut().now = self.world.now();
    }

    fn calm_down(&mut self) {
        self.world.set_faults(Faults::NONE);
        let outage = (self.mode == Mode::Outage).then_some(NAMESPACE);
        self.odds.set(Odds { outage, ..Odds::default() });
        if outage.is_some() {
            self.plan(self.disturbed_until + OUTAGE, Event::Recovery);
        }
        self.disturbed = false;
        let mut ledger = self.ledger.borrow_mut();
        ledger.is_calm = true;
        ledger.tell(|| "the disturbance ends".into());
    }

    fn plan(&mut self, at: Timestamp, event: Event) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), event);
    }

    /// Whether the tasks of a namespace fail to start.
    pub(super) fn is_outage(&self) -> bool {
        self.odds.get().outage.is_some()
    }

    /// Whether something was due that is not an invocation's.
    fn happen(&mut self) -> bool {
        let now = self.world.now();
        if let Some(i) = self.runners.iter().position(|runner| runner.wake <= now) {
            let mut ledger = self.ledger.borrow_mut();
            if !self.runners[i].turn(&self.calm, &mut ledger, &mut self.dice, self.odds.get()) {
                self.runners.swap_remove(i);
            }
            return true;
        }
        let Some(due) = self.agenda.first_entry().filter(|entry| entry.key().0 <= now) else { return false };
        match due.remove() {
            Event::Sweep => {
                self.plan(now + SignedDuration::from_secs(SWEEP_SECONDS), Event::Sweep);
                self.plan(now, Event::Garbage);
                if self.mode != Mode::Unswept {
                    self.sweep();
                }
            }
            Event::Action(action) => {
                let hint = self.outside.act(action, &self.calm, &mut self.ledger.borrow_mut());
                if let Some(hint) = hint {
                    self.tell(hint);
                }
            }
            Event::Hint(hint) => drop(self.calm.drive(driftless_aws::Queues::hint(&self.calm, &hint, 0))),
            Event::Message(message) => self.invoke(message),
            Event::Garbage => outside::collect_garbage(&self.calm),
            Event::Loop => {
                self.plan(now + SignedDuration::from_secs(2), Event::Loop);
                self.plan(now, Event::Hint(Hint::new(outside::key_in(QUIET, outside::STACK_KIND, hostile::STACK))));
            }
            Event::Recovery => {
                self.odds.set(Odds::default());
                self.ledger.borrow_mut().tell(|| "the outage ends".into());
            }
            Event::Reclaim(task) => {
                self.ledger.borrow_mut().reclaim(&task);
                self.world.reclaim_task(&task.arn);
            }
        }
        self.watch();
        true
    }

    /// The forwarder or the webhook sends a hint, sooner or later, or never.
    fn tell(&mut self, hint: Hint) {
        if self.dice.chance(self.odds.get().deaf) {
            self.ledger.borrow_mut().stats.drops += 1;
            return;
        }
        let at = self.world.now() + self.dice.seconds_or(1, 60);
        self.plan(at, Event::Hint(hint));
    }

    /// What the watchers see.
    fn watch(&mut self) {
        for key in self.world.written() {
            self.changed = true;
            let object = self.world.object(&key);
            if let Some(object) = &object {
                self.ledger.borrow_mut().cluster_written(&key, object);
            }
            // The hostile tenant forges its objects.
            let is_hostile = key.namespace == HOSTILE;
            if object.is_none() {
                let at = self.world.now() + self.dice.seconds(30);
                self.plan(at, Event::Garbage);
            }
            match (key.kind.as_str(), &object) {
                ("Stack", _) if is_hostile => {}
                ("Stack", None) => self.ledger.borrow_mut().stack_gone(&key.name),
                ("Stack", Some(object)) => {
                    if let Ok(stack) = serde_json::from_value::<Stack>(object.clone()) {
                        self.ledger.borrow_mut().stack_written(&CoreStack::from(&stack));
                    }
                }
                ("Update", Some(object)) => {
                    if let Ok(update) = serde_json::from_value::<Update>(object.clone()) {
                        let manifest = |folder: &str| format!("{folder}manifest");
                        let modified = |folder: &str| self.calm.drive(self.calm.modified(&manifest(folder)));
                        let is_stored = |folder: &str| matches!(modified(folder), Some(Ok(Some(_))));
                        if !is_hostile {
                            self.ledger.borrow_mut().update_written(&update, is_stored);
                        }
                        if let (Some(uid), Some(_)) = (&update.metadata.uid, &update.metadata.deletion_timestamp) {
                            self.runners.iter_mut().for_each(|runner| runner.deleted(uid));
                        }
                    }
                }
                _ => {}
            }
            if let Some(hint) = self.outside.forward(&key, object.as_ref()) {
                self.tell(hint);
            }
        }
    }

    /// Whether an invocation went on or began.
    fn work(&mut self) -> bool {
        let now = self.world.now();
        let awake: Vec<usize> = (0..self.invocations.len()).filter(|i| self.invocations[*i].wake <= now).collect();
        let choice = self.dice.index(awake.len() + 1);
        if choice == awake.len() && self.invocations.len() < CONCURRENCY && self.receive() {
            return true;
        }
        match awake.get(choice).or(awake.first()) {
            Some(i) => {
                self.go_on(*i);
                true
            }
            None => false,
        }
    }

    /// Takes a message, if there is one.
    fn receive(&mut self) -> bool {
        let Some(message) = self.world.receive() else { return false };
        let odds = self.odds.get();
        if self.breakage == Some(Breakage::Fairness) && subject(&message) == QUIET {
            return true;
        }
        // The recorder's own are spared: two losses in a row, of an end and of what makes up for it, are an operator's case.
        let spared = matches!(message, Message::Run(RunMessage::Hint(_)));
        let (lost, late) = (self.dice.chance(odds.drop) && !spared, self.dice.chance(odds.delay));
        let twice = self.world.waiting() < FEW_MESSAGES && self.dice.chance(odds.duplicate);
        let twice = self.ledger.borrow_mut().count_message() || twice;
        let mut ledger = self.ledger.borrow_mut();
        match (lost, late) {
            (true, _) => ledger.stats.drops += 1,
            (false, true) => ledger.stats.delays += 1,
            (false, false) => ledger.stats.duplicates += u64::from(twice),
        }
        if lost {
            ledger.tell(|| format!("lost: {message:?}"));
            return true;
        }
        drop(ledger);
        if late || twice {
            let seconds = if self.dice.chance(500) { 1 } else { 60 };
            self.redeliver(message.clone(), seconds);
        }
        if !late {
            self.invoke(message);
        }
        true
    }

    /// What is delivered again is not lost a second time.
    fn redeliver(&mut self, message: Message, within_seconds: u32) {
        let at = self.world.now() + self.dice.seconds(within_seconds);
        self.plan(at, Event::Message(message));
    }

    fn wire(&self, function: &str, subject: &str) -> Wire {
        let mut ledger = self.ledger.borrow_mut();
        ledger.stats.invocations += 1;
        Wire {
            world: self.world.clone(),
            ledger: Rc::clone(&self.ledger),
            odds: Rc::clone(&self.odds),
            breakage: self.breakage,
            who: format!("{function} {}", ledger.stats.invocations),
            subject: subject.into(),
        }
    }

    fn begin(&mut self, who: String, message: Option<Message>, work: impl Future<Output = Result<(), Broken>> + 'static) {
        let now = self.world.now();
        self.ledger.borrow_mut().tell(|| format!("{who} begins: {message:?}"));
        self.invocations.push(Invocation { work: Box::pin(work), message, who, began: now, wake: now });
    }

    fn invoke(&mut self, message: Message) {
        let now = self.world.now();
        // While a message of a group is in flight, no other is delivered.
        if let Message::Fetch(request) = &message
            && self.invocations.iter().any(|other| {
                matches!(&other.message, Some(Message::Fetch(other)) if *keys::fetch(&other.source) == *keys::fetch(&request.source))
            })
        {
            return self.redeliver(message, 5);
        }
        match message.clone() {
            Message::Hint(hint) => {
                self.looks_at_rest += 1;
                self.check_plan(&hint.object);
                let wire = self.wire("reconciler", subject(&message));
                self.begin(wire.who.clone(), Some(message), async move {
                    let ports = reconciler::Ports { cluster: &wire, objects: &wire, queues: &wire, settings: RECONCILER };
                    let looked = Box::pin(reconciler::handle(&ports, &hint, now)).await;
                    looked.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
            Message::Fetch(request) => {
                let wire = self.wire("fetcher", subject(&message));
                let settings = fetcher::Settings {
                    bucket: "bucket".into(),
                    system_namespace: SYSTEM.into(),
                    namespaces: WatchNamespaces::All,
                    retention: RETENTION,
                    services: vec![SERVICE.into()],
                    source_kinds: Vec::new(),
                    max_archive_bytes: 1 << 20,
                    max_tree_bytes: 1 << 30,
                    limits: driftless_source::Limits::default(),
                    git: fetcher::git::Settings {
                        allow_local: false,
                        private_hosts: fetcher::PrivateHosts::default(),
                        github_api_url: String::new(),
                        known_hosts: String::new(),
                        ca_certificates: String::new(),
                        max_pack_bytes: 1 << 20,
                        servers: fetcher::git::Servers::default(),
                    },
                };
                self.begin(wire.who.clone(), Some(message), async move {
                    let ports = fetcher::Ports { cluster: &wire, objects: &wire, queues: &wire, artifacts: &wire };
                    let fetched = Box::pin(fetcher::handle(&ports, &settings, &request, now, || now)).await;
                    fetched.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
            Message::Launch(hint) => {
                let wire = self.wire("launcher", subject(&message));
                let settings = launcher::Settings {
                    system_namespace: SYSTEM.into(),
                    namespaces: WatchNamespaces::All,
                    task_role_id: ROLE.into(),
                    default_image: "pulumi".into(),
                    default_architecture: Architecture::Amd64,
                    pod_fields: PodFields::Ignore,
                    default_size: DefaultSize::default(),
                    spot: true,
                    limits: self.limits,
                    run_limits: RunLimits { max_seconds: Some(MAX_RUN_SECONDS), ..RunLimits::default() },
                    token_seconds: 3600,
                    fresh_key: vec![7; 32].into(),
                };
                self.begin(wire.who.clone(), Some(message), async move {
                    let ports = launcher::Ports { cluster: &wire, objects: &wire, queues: &wire, tasks: &wire };
                    let launched = Box::pin(launcher::handle(&ports, &settings, &hint, now)).await;
                    launched.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
            Message::Run(about) => {
                let wire = self.wire("recorder", subject(&message));
                let settings = recorder::Settings {
                    system_namespace: SYSTEM.into(),
                    task_role_id: ROLE.into(),
                    start_seconds: START_SECONDS,
                };
                self.begin(wire.who.clone(), Some(message), async move {
                    let recorded = async {
                        for (hint, due) in recorder::runs(&wire, &wire, &settings, about, now).await? {
                            let ports = recorder::Ports { cluster: &wire, objects: &wire, queues: &wire, tasks: &wire };
                            recorder::handle(&ports, &settings, &hint, due, now).await?;
                        }
                        Ok(())
                    };
                    let recorded: Result<(), recorder::Error> = recorded.await;
                    recorded.map_err(|error| Broken { transient: error.is_transient(), words: error.to_string() })
                });
            }
        }
    }

    fn sweep(&mut self) {
        let now = self.world.now();
        let wire = self.wire("sweeper", "");
        let settings = sweeper::Settings {
            watch: Watch { namespaces: WatchNamespaces::All, system_namespace: SYSTEM },
            tick_seconds: SWEEP_SECONDS,
            period_seconds: LOOK_PERIOD_SECONDS,
            collect_seconds: COLLECT_SECONDS,
            retention: RETENTION,
        };
        self.begin(wire.who.clone(), None, async move {
            // One that fails is followed by the next.
            let swept = async {
                sweeper::sweep(CLUSTER, &wire, &wire, settings, now).await?;
                sweeper::collect(CLUSTER, &wire, &wire, settings, now).await?;
                sweeper::attend(&wire, &wire, settings, now).await
            };
            let swept: Result<usize, sweeper::Error> = swept.await;
            swept.map(drop).map_err(|error| Broken { transient: true, words: error.to_string() })
        });
    }

    /// Lets an invocation go on to its next call, or ends it there.
    fn go_on(&mut self, i: usize) {
        let odds = self.odds.get();
        let now = self.world.now();
        let too_late = now.duration_since(self.invocations[i].began) > TIMEOUT;
        if too_late || self.dice.chance(odds.crash) {
            return self.end_early(i);
        }
        let polled = self.invocations[i].work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if self.ledger.borrow_mut().take_crash() {
            return self.end_early(i);
        }
        let took = 1 + self.dice.below(20);
        self.advance(SignedDuration::from_millis(took.into()));
        match polled {
            Poll::Pending => {
                let stall = if self.dice.chance(odds.stall) { self.dice.seconds(50) } else { SignedDuration::ZERO };
                self.invocations[i].wake = self.world.now() + stall;
            }
            Poll::Ready(ended) => {
                let Invocation { who, message, .. } = self.invocations.swap_remove(i);
                if let Err(Broken { transient, words }) = ended {
                    let mut ledger = self.ledger.borrow_mut();
                    ledger.tell(|| format!("{who} fails: {words}"));
                    if !transient {
                        ledger.violate(|| format!("8: {who} fails for good: {words}"));
                    }
                    drop(ledger);
                    self.failed(message);
                }
            }
        }
        self.watch();
        for task in self.world.live_tasks() {
            if self.ledger.borrow_mut().see_task(&task) {
                // After the disturbance the tenant's tasks behave, or its queue of runs would take hours.
                let is_hostile = self.disturbed && task.run.update.namespace == HOSTILE;
                self.runners.push(Runner::new(&task, self.world.now(), is_hostile, &mut self.dice));
                if task.spot && self.dice.chance(odds.kill) {
                    let at = self.world.now() + self.dice.seconds(180);
                    self.plan(at, Event::Reclaim(task));
                }
            } else if task.stopping
                && let Some(runner) = self.runners.iter_mut().find(|runner| runner.arn == task.arn)
            {
                runner.stop(self.world.now(), &mut self.ledger.borrow_mut(), &mut self.dice, odds);
            }
        }
    }

    fn end_early(&mut self, i: usize) {
        let Invocation { who, message, .. } = self.invocations.swap_remove(i);
        let mut ledger = self.ledger.borrow_mut();
        ledger.stats.crashes += 1;
        ledger.tell(|| format!("{who} crashes"));
        drop(ledger);
        self.failed(message);
    }

    /// After a crash or a failure the message comes again, when its visibility timeout is over.
    fn failed(&mut self, message: Option<Message>) {
        if let Some(message) = message.filter(|_| self.breakage != Some(Breakage::Redelivery)) {
            self.redeliver(message, VISIBILITY_SECONDS);
        }
    }
}

/// The namespace that a message is about; empty if the message does not say.
fn subject(message: &Message) -> &str {
    let about: &ObjectKey = match message {
        Message::Hint(hint) => &hint.object,
        Message::Fetch(request) => &request.source,
        Message::Launch(hint) => &hint.update,
        Message::Run(RunMessage::Hint(hint)) => &hint.update,
        Message::Run(_) => return "",
    };
    &about.namespace
}

/// How many runs may go on at once. A third of the seeds have limits; in half of these the namespaces contend for a single slot.
fn limits(dice: &mut Dice, breakage: Option<Breakage>) -> Limits {
    let single = Limits { runs: Some(1), runs_per_namespace: None };
    if matches!(breakage, Some(Breakage::Admissions | Breakage::Turns)) {
        return single;
    }
    let tenants = TENANTS as usize;
    match dice.below(6) {
        0..4 => Limits::default(),
        4 => single,
        _ => Limits { runs: Some(tenants), runs_per_namespace: Some(1 + dice.index(tenants)) },
    }
}
