//! The world: its state, its clock, and the faults of its calls.

use std::{
    cell::{RefCell, RefMut},
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, RunId, RunMessage, keys};
use driftless_core::{StopCode, TaskEnd};
use jiff::{SignedDuration, Timestamp};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng as _, SeedableRng as _},
};
use serde_json::Value;

use crate::stored::Stored;

/// A process that only awaits ports is done after one poll; joins, which wake themselves, need
/// more.
const MAX_POLLS: u32 = 10_000;
/// How long ECS remembers a stopped task, and with it its client token.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// The probability of each fault, in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The process ends before a call.
    pub crash: u32,
    /// A call fails with a transient error, and has no effect.
    pub transient: u32,
    /// A call has its effect, and fails with a transient error.
    pub lost_answer: u32,
    /// A message is delivered once more.
    pub duplicate: u32,
    /// A message is never delivered.
    pub drop: u32,
    /// ECS starts no task, and gives the same answer to the same client token again.
    pub full: u32,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self { crash: 0, transient: 0, lost_answer: 0, duplicate: 0, drop: 0, full: 0 };
}

/// All ports at once. A clone shares the same world.
#[derive(Clone)]
pub struct World {
    state: Rc<RefCell<State>>,
    pub(crate) calm: bool,
}

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) now: Timestamp,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) faults: Faults,
    pub(crate) calls_until_crash: Option<u32>,
    pub(crate) crashed: bool,
    /// The last number given to an object's version or uid, a message or a task.
    pub(crate) last: u64,
    /// How many numbers each subject has: see [`World::number_by_subject`].
    pub(crate) numbers: Option<BTreeMap<String, u64>>,
    pub(crate) objects: BTreeMap<String, (Vec<u8>, Timestamp)>,
    /// Keys of objects whose content S3 does not return.
    pub(crate) archived: BTreeSet<String>,
    pub(crate) queue: Vec<Queued>,
    pub(crate) sent: Vec<Message>,
    /// When a fetch request was sent, by its source and deduplication.
    pub(crate) deduplications: BTreeMap<(String, String), Timestamp>,
    pub(crate) definitions: BTreeSet<String>,
    pub(crate) tasks: BTreeMap<String, Task>,
    /// Client tokens that started no task.
    pub(crate) refused: BTreeSet<String>,
    pub(crate) cluster: BTreeMap<ObjectKey, Stored>,
    /// The last applied fields, by object.
    pub(crate) applied: BTreeMap<ObjectKey, Value>,
    pub(crate) written: VecDeque<ObjectKey>,
    pub(crate) terminating: BTreeSet<String>,
    /// Kinds to which the API server denies all access.
    pub(crate) forbidden: BTreeSet<String>,
    pub(crate) events: Vec<String>,
}

/// A message of any queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// On `hints`.
    Hint(Hint),
    /// On `launches`.
    Launch(LaunchHint),
    /// On `runs`: Driftless's, the bucket's or ECS's.
    Run(RunMessage),
    /// On `sources.fifo`.
    Fetch(FetchRequest),
}

#[derive(Clone)]
pub(crate) struct Queued {
    pub(crate) due: Timestamp,
    /// The position in its FIFO group.
    pub(crate) place: u64,
    pub(crate) message: Message,
}

impl Queued {
    pub(crate) fn group(&self) -> Option<String> {
        match &self.message {
            Message::Fetch(request) => Some(keys::fetch(&request.source).to_string()),
            _ => None,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) run: RunId,
    pub(crate) client_token: String,
    pub(crate) created: Timestamp,
    pub(crate) spot: bool,
    /// Why a stop was requested.
    pub(crate) stopping: Option<StopCode>,
    pub(crate) stopped: Option<(Timestamp, TaskEnd)>,
}

impl Task {
    /// The first request for a stop sets the reason.
    pub(crate) fn stop(&mut self, code: StopCode) {
        if self.stopped.is_none() {
            self.stopping.get_or_insert(code);
        }
    }

    /// The task as ECS shows it.
    fn shown(&self) -> String {
        format!("{:?} {:?}", self.stopping, self.stopped)
    }

    pub(crate) fn is_forgotten(&self, now: Timestamp) -> bool {
        self.stopped.as_ref().is_some_and(|(at, _)| now.duration_since(*at) > MEMORY)
    }
}

/// A task that has not stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTask {
    /// Its ARN.
    pub arn: String,
    /// The run that it was started for.
    pub run: RunId,
    /// It runs on Fargate Spot.
    pub spot: bool,
    /// A stop was requested.
    pub stopping: bool,
}

impl World {
    /// An empty world. The same seed and the same calls give the same faults.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let state = State {
            now: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365 * 50),
            rng: ChaCha8Rng::seed_from_u64(seed),
            faults,
            calls_until_crash: None,
            crashed: false,
            last: 0,
            numbers: None,
            objects: BTreeMap::new(),
            archived: BTreeSet::new(),
            queue: Vec::new(),
            sent: Vec::new(),
            deduplications: BTreeMap::new(),
            definitions: BTreeSet::new(),
            tasks: BTreeMap::new(),
            refused: BTreeSet::new(),
            cluster: BTreeMap::new(),
            applied: BTreeMap::new(),
            written: VecDeque::new(),
            terminating: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            events: Vec::new(),
        };
        Self { state: Rc::new(RefCell::new(state)), calm: false }
    }

    /// A handle whose calls never fail: for users, AWS and observers.
    #[must_use]
    pub fn calm(&self) -> Self {
        Self { state: Rc::clone(&self.state), calm: true }
    }

    /// An independent copy of this world.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self { state: Rc::new(RefCell::new(self.state().clone())), calm: self.calm }
    }

    /// From now on a version, uid or ARN depends only on its subject and on how many the subject
    /// got before. Worlds with the same writes in another order are then equal.
    pub fn number_by_subject(&self) {
        self.state().numbers = Some(BTreeMap::new());
    }

    /// Hashes everything that a call of a port can return: the time, the bucket, the cluster and
    /// the tasks. Not the queues or Events.
    pub fn hash_into(&self, hasher: &mut impl Hasher) {
        let State { now, objects, cluster, applied, tasks, .. } = &*self.state();
        (now, objects, cluster, applied).hash(hasher);
        for (arn, task) in tasks {
            (arn, task.shown()).hash(hasher);
        }
    }

    /// Runs a process to its end. `None` if it crashed: its effects until then stay.
    ///
    /// # Panics
    /// If the process waits for anything but ports.
    #[expect(clippy::panic, reason = "a mistake of the test")]
    pub fn drive<T>(&self, process: impl Future<Output = T>) -> Option<T> {
        let mut process = pin!(process);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..MAX_POLLS {
            if let Poll::Ready(output) = process.as_mut().poll(&mut context) {
                return Some(output);
            }
            if mem::take(&mut self.state().crashed) {
                return None;
            }
        }
        panic!("the process waits for something that is not of this world");
    }

    /// Crashes the next process before its `n`-th call, counted from 0, if it makes that many.
    pub fn crash_before_call(&self, n: u32) {
        self.state().calls_until_crash = Some(n);
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.state().now
    }

    /// Advances the clock.
    pub fn advance(&self, by: SignedDuration) {
        self.state().now += by;
    }

    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// One call of a port: `None` if its caller must see a failure.
    pub(crate) async fn call<T>(&self, effect: impl FnOnce(&mut State) -> T) -> Option<T> {
        let fault = if self.calm { None } else { self.state().fault() };
        match fault {
            None => Some(effect(&mut self.state())),
            Some(Fault::Transient) => None,
            Some(Fault::LostAnswer) => {
                effect(&mut self.state());
                None
            }
            Some(Fault::Crash) => {
                self.state().crashed = true;
                pending().await
            }
        }
    }
}

enum Fault {
    Crash,
    Transient,
    LostAnswer,
}

impl State {
    pub(crate) fn random(&mut self, below: u32) -> u32 {
        self.rng.next_u32().checked_rem(below).unwrap_or(0)
    }

    /// A probability of 0 or 1 uses no number of the seed.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        match per_mille {
            0 => false,
            1000.. => true,
            _ => self.random(1000) < per_mille,
        }
    }

    /// A number that is unique for `subject`.
    pub(crate) fn number(&mut self, subject: &str) -> u64 {
        let Some(numbers) = &mut self.numbers else {
            self.last += 1;
            return self.last;
        };
        let number = numbers.entry(subject.to_owned()).or_default();
        *number += 1;
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        // A uid has room for 48 bits.
        (hasher.finish() >> 32 << 16) + *number
    }

    fn fault(&mut self) -> Option<Fault> {
        match &mut self.calls_until_crash {
            Some(0) => {
                self.calls_until_crash = None;
                return Some(Fault::Crash);
            }
            Some(calls) => *calls -= 1,
            None => {}
        }
        let Faults { crash, transient, lost_answer, .. } = self.faults;
        if self.chance(crash) {
            Some(Fault::Crash)
        } else if self.chance(transient) {
            Some(Fault::Transient)
        } else if self.chance(lost_answer) {
            Some(Fault::LostAnswer)
        } else {
            None
        }
    }
}

/// The start of a time's second: S3 and ECS report most times without a fraction.
pub(crate) fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The error of an AWS call that a fault made fail.
pub(crate) fn lost(call: &str) -> driftless_aws::Error {
    driftless_aws::Error::Transient { call: call.into(), message: "a fault of the simulation".into() }
}
