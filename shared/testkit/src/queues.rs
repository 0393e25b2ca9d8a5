use std::collections::btree_map::Entry;

use driftless_aws::{BATCH, Error, Queues, Result};
use driftless_contract::{FetchRequest, Hint, LaunchHint, RunHint, RunMessage, TaskHint};
use jiff::{SignedDuration, Timestamp};

use crate::world::{Message, Queued, State, World, lost};

/// SQS's longest delay.
const MAX_DELAY_SECONDS: u16 = 900;
/// How long SQS drops messages with the same deduplication id.
const DEDUPLICATION: SignedDuration = SignedDuration::from_mins(5);
/// How long until a message that was not handled is delivered again.
const VISIBILITY: SignedDuration = SignedDuration::from_secs(30);

impl World {
    /// Receives one of the due messages, but never a later one of a FIFO group.
    #[must_use]
    pub fn receive(&self) -> Option<Message> {
        let mut state = self.state();
        loop {
            let queue = &state.queue;
            let is_first = |queued: &Queued| {
                let blocks = |other: &Queued| other.place < queued.place && other.group() == queued.group();
                queued.group().is_none() || !queue.iter().any(blocks)
            };
            let receivable = queue.iter().enumerate().filter(|(_, queued)| queued.due <= state.now && is_first(queued));
            let receivable: Vec<_> = receivable.map(|(index, _)| index).collect();
            let choice = state.random(u32::try_from(receivable.len()).unwrap_or(u32::MAX));
            let index = *receivable.get(choice as usize)?;
            let queued = state.queue.remove(index);
            let faults = state.faults;
            if state.chance(faults.duplicate) {
                let due = state.now + VISIBILITY;
                state.queue.push(Queued { due, ..queued.clone() });
            }
            if !state.chance(faults.drop) {
                return Some(queued.message);
            }
        }
    }

    /// Returns a message to its queue for a later delivery: its handler crashed or reported it as
    /// failed.
    pub fn put_back(&self, message: Message) {
        let mut state = self.state();
        // Positions start at 1, so that it precedes the rest of its group.
        let queued = Queued { due: state.now + VISIBILITY, place: 0, message };
        state.queue.push(queued);
    }

    /// When the next message that is not due yet becomes due.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let state = self.state();
        state.queue.iter().map(|queued| queued.due).filter(|due| *due > state.now).min()
    }

    /// How many messages are in the queues, due or not.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    /// The messages in the queues, and when they are due.
    #[must_use]
    pub fn queued(&self) -> Vec<(Timestamp, Message)> {
        self.state().queue.iter().map(|queued| (queued.due, queued.message.clone())).collect()
    }

    /// All messages ever sent.
    #[must_use]
    pub fn sent(&self) -> Vec<Message> {
        self.state().sent.clone()
    }

    async fn send(&self, queue: &str, message: Message, delay_seconds: u16, deduplication: Option<&str>) -> Result<()> {
        let call = format!("sqs:SendMessage {queue}");
        if delay_seconds > MAX_DELAY_SECONDS {
            return Err(Error::Permanent { call, message: format!("a delay of {delay_seconds} s") });
        }
        self.call(|state| state.enqueue(message, delay_seconds, deduplication)).await.ok_or_else(|| lost(&call))
    }
}

impl State {
    pub(crate) fn enqueue(&mut self, message: Message, delay_seconds: u16, deduplication: Option<&str>) {
        self.sent.push(message.clone());
        let now = self.now;
        let queued = Queued { due: now + SignedDuration::from_secs(delay_seconds.into()), place: self.number("queue"), message };
        if let (Some(id), Some(group)) = (deduplication, queued.group()) {
            self.deduplications.retain(|_, sent| now.duration_since(*sent) < DEDUPLICATION);
            // The five minutes start with the message that is delivered.
            match self.deduplications.entry((group, id.into())) {
                Entry::Occupied(_) => return,
                Entry::Vacant(vacant) => vacant.insert(now),
            };
        }
        self.queue.push(queued);
    }
}

impl Queues for World {
    async fn hint(&self, hint: &Hint, delay_seconds: u16) -> Result<()> {
        self.send("hints", Message::Hint(hint.clone()), delay_seconds, None).await
    }

    async fn hints(&self, hints: &[Hint]) -> Result<Vec<usize>> {
        let call = "sqs:SendMessageBatch hints";
        if !(1..=BATCH).contains(&hints.len()) {
            return Err(Error::Permanent { call: call.into(), message: format!("{} messages", hints.len()) });
        }
        // Single messages of a batch may be refused.
        let per_mille = if self.calm { 0 } else { self.state().faults.transient };
        let send = self.call(|state| {
            let mut refused = Vec::new();
            for (position, hint) in hints.iter().enumerate() {
                if per_mille > 0 && state.chance(per_mille) {
                    refused.push(position);
                } else {
                    state.enqueue(Message::Hint(hint.clone()), 0, None);
                }
            }
            refused
        });
        send.await.ok_or_else(|| lost(call))
    }

    async fn launch(&self, hint: &LaunchHint, delay_seconds: u16) -> Result<()> {
        self.send("launches", Message::Launch(hint.clone()), delay_seconds, None).await
    }

    async fn run(&self, hint: &RunHint, delay_seconds: u16) -> Result<()> {
        self.send("runs", Message::Run(RunMessage::Hint(hint.clone())), delay_seconds, None).await
    }

    async fn task(&self, hint: &TaskHint) -> Result<()> {
        self.send("runs", Message::Run(RunMessage::Live { task: hint.task.clone() }), 0, None).await
    }

    async fn fetch(&self, request: &FetchRequest, deduplication: &str) -> Result<()> {
        self.send("sources", Message::Fetch(request.clone()), 0, Some(deduplication)).await
    }
}
