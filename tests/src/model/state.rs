//! A state of the model, and whether it is at rest.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use driftless_api::{Stack, Update, finalizer, uid_of};
use driftless_contract::{Hint, RunMessage, Uid, keys};
use driftless_core::{Admissions, Limits, Readiness, Stack as CoreStack};
use driftless_testkit::{CLUSTER, Message, World};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;

use super::{
    Bounds,
    ledger::Ledger,
    objects::{BY_HAND, get, get_object, list, stack_key},
    ports::{Rules, Tape, name},
};

/// The name of a user's action, and the forwarder's hint for it.
pub(super) type User = (&'static str, fn(&World) -> Option<Hint>);

/// The constants of a case, and its users.
pub(super) struct Scenario {
    pub(super) rules: Rc<Rules>,
    pub(super) limits: Limits,
    /// Hints go to the reconciler; else they are lost.
    pub(super) reconciles: bool,
    pub(super) users: &'static [User],
}

impl Scenario {
    /// The uid of the Stack, if it exists.
    pub(super) fn stack_uid(world: &World) -> Option<Uid> {
        world.object(&stack_key()).and_then(|stack| Some(stack["metadata"]["uid"].as_str()?.into()))
    }

    /// Names an object that is not in its final state.
    pub(super) fn unrest(&self, state: &State) -> Option<String> {
        let world = &state.world;
        for update in list::<Update>(world) {
            let name = update.name_any();
            let outcome = format!("{}outcome", keys::run(CLUSTER, &uid_of(&update)));
            if !update.is_complete() || get(world, &outcome).is_none() {
                return Some(format!("Update {name} has not ended"));
            }
            if finalizer::is_on(&update) && (self.reconciles || name == BY_HAND) {
                return Some(format!("Update {name} keeps its finalizer"));
            }
        }
        for lease in list::<Lease>(world) {
            let written = lease.annotations().values().next().map_or("", String::as_str);
            let is_used = |admissions: Admissions| !admissions.running.is_empty();
            let is_free = lease.name_any() == keys::ADMISSIONS && !serde_json::from_str(written).is_ok_and(is_used);
            if !is_free {
                return Some(format!("Lease {} is held: {written}", lease.name_any()));
            }
        }
        let is_left = |key: &&String| ["/in/spec", "/in/identity", "/out/result"].iter().any(|end| key.ends_with(end));
        if let Some(left) = world.objects().keys().find(is_left) {
            return Some(format!("{left} is left"));
        }
        let stack = get_object::<Stack>(world, &stack_key()).filter(|_| self.reconciles)?;
        let uid = uid_of(&stack);
        let CoreStack { status, deleting, generation, .. } = CoreStack::from(&stack);
        let is_ready = status.readiness == Some(Readiness::Ready) && status.current_update.is_none();
        let ran = state.ledger.ran(&uid);
        (deleting || !is_ready || ran != Some(generation)).then(|| format!("Stack is at {generation}, ran {ran:?}: {status:?}"))
    }
}

/// The progress of a run's task.
#[derive(Clone, Debug, Hash)]
pub(super) enum Progress {
    Running { uid: Uid },
    Reported,
}

/// An invocation of a handler that has more calls to make.
#[derive(Clone)]
pub(super) struct Flight {
    pub(super) message: Message,
    pub(super) began: Timestamp,
    pub(super) tape: Tape,
}

/// See the module.
#[derive(Clone)]
pub(super) struct State {
    pub(super) world: World,
    /// Messages that were sent and not delivered. Equal ones are one.
    pub(super) queue: Vec<Message>,
    pub(super) flights: Vec<Flight>,
    /// Tasks with a run, by ARN.
    pub(super) begun: Vec<(String, Progress)>,
    pub(super) ledger: Ledger,
    pub(super) left: Bounds,
    /// The users' actions that were taken.
    pub(super) users: u32,
    /// The last invocation that made a step, if it can continue. Matters if preemptions are
    /// bounded.
    pub(super) current: Option<usize>,
    pub(super) violation: Option<String>,
}

impl State {
    /// A state with that world and no invocation.
    pub(super) fn new(world: World, queue: Vec<Message>, left: Bounds) -> Self {
        let (flights, begun, ledger) = (Vec::new(), Vec::new(), Ledger::default());
        Self { world, queue, flights, begun, ledger, left, users: 0, current: None, violation: None }
    }

    /// Equal states have equal hashes, whatever path led to them.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.world.hash_into(&mut hasher);
        let mut messages: Vec<_> = self.queue.iter().map(|message| format!("{message:?}")).collect();
        messages.sort();
        let is_current = |position| self.current == Some(position);
        let flight = |(position, flight): (usize, &Flight)| {
            (format!("{:?}", flight.message), flight.began, flight.tape.digest, is_current(position))
        };
        let mut flights: Vec<_> = self.flights.iter().enumerate().map(flight).collect();
        flights.sort();
        let mut begun: Vec<_> = self.begun.iter().map(|(arn, progress)| (arn, format!("{progress:?}"))).collect();
        begun.sort();
        (messages, flights, begun, &self.ledger, &self.left, self.users).hash(&mut hasher);
        hasher.finish()
    }

    /// An independent copy.
    pub(super) fn fork(&self) -> Self {
        Self { world: self.world.snapshot(), ..self.clone() }
    }

    pub(super) fn violate(&mut self, checked: Result<(), String>) {
        if let (None, Err(violation)) = (&self.violation, checked) {
            self.violation = Some(violation);
        }
    }

    /// Puts a message into its queue, if the scenario has its function.
    pub(super) fn send(&mut self, message: Message, scenario: &Scenario) {
        let is_progress = |message: &Message| matches!(message, Message::Run(RunMessage::Objects(keys)) if keys.iter().all(|key| key.ends_with("/progress")));
        let is_known = scenario.reconciles || !matches!(message, Message::Hint(_));
        if is_known && !is_progress(&message) && !self.queue.contains(&message) {
            self.queue.push(message);
        }
    }

    /// The waiting messages.
    pub(super) fn queue(&self) -> &[Message] {
        &self.queue
    }

    pub(super) fn forget_messages(&mut self, forgotten: impl Fn(&Message) -> bool) {
        self.queue.retain(|message| !forgotten(message));
    }

    /// Names something that is not at rest; `None` if everything is.
    pub(super) fn unrest(&self, scenario: &Scenario) -> Option<String> {
        if !self.queue.is_empty() || !self.flights.is_empty() {
            return Some("messages wait".into());
        }
        if let Some(task) = self.world.live_tasks().first() {
            return Some(format!("task {} lives", keys::task_id(&task.arn)));
        }
        scenario.unrest(self)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages: Vec<_> = self.queue.iter().map(name).collect();
        let flights: Vec<_> =
            self.flights.iter().map(|flight| format!("{}, before: {}", name(&flight.message), flight.tape.next)).collect();
        writeln!(f, "queue {messages:?}, in flight {flights:?}, {:?}, left {:?}", self.ledger, self.left)?;
        for object in self.world.cluster() {
            if ["Stack", "Update", "Lease"].iter().any(|kind| object["kind"] == *kind) {
                writeln!(
                    f,
                    "{} {} {} {}",
                    object["kind"], object["metadata"], object["spec"]["holderIdentity"], object["status"]
                )?;
            }
        }
        let keys: Vec<_> =
            self.world.objects().into_keys().filter(|key| key.starts_with("runs/") || key.starts_with("tasks/")).collect();
        writeln!(f, "{keys:?}")
    }
}
