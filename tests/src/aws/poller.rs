//! Event source mappings: what Lambda's pollers do between a queue and a function.

mod event;

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, MessageSystemAttributeName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};

use super::{lambda::Lambda, site::Site, template::Mapping};

/// The pause after polls without messages: the shortest after a message, doubled each time. A long
/// poll of moto keeps a processor busy.
const BETWEEN_POLLS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(320)];
/// The pause after a failed poll.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// What a test can make a mapping do, and AWS may do at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Switches {
    /// No message is received or handled while this is set.
    pub paused: bool,
    /// Every event is delivered twice: at once on a standard queue, one after the other on a FIFO
    /// queue.
    pub duplicate: bool,
    /// The first message about each object is lost.
    pub drop_first: bool,
    /// Lambda has no concurrency left for the function: each message returns after its visibility
    /// timeout, and SQS counts that it was received.
    pub throttled: bool,
}

/// All mappings. Those of one function are switched, and counted, together.
pub struct Mappings(Vec<Arc<Poller>>);

struct Poller {
    site: Arc<Site>,
    lambda: Arc<Lambda>,
    function: String,
    mapping: Mapping,
    url: String,
    fifo: bool,
    /// The maximum number of concurrent batches, and a permit for each.
    instances: usize,
    concurrency: Arc<Semaphore>,
    switches: watch::Sender<Switches>,
    progress: Mutex<Progress>,
    /// Batches in delivery.
    in_flight: AtomicU64,
    delivered: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// The objects whose message was lost since the switch was set.
    lost: HashSet<String>,
    /// The receipts of failed messages that are hidden until their visibility timeout.
    hidden: Vec<String>,
}

impl Mappings {
    /// Starts one poller per mapping of the template. `instances` limits each, below the template's
    /// limit.
    pub fn start(site: &Arc<Site>, lambda: &Arc<Lambda>, instances: usize) -> Result<Self> {
        let mut pollers = Vec::new();
        for (id, function) in &site.template.functions {
            for mapping in &function.mappings {
                let queue = site.template.queue(&mapping.queue)?;
                let allowed = mapping.concurrency.min(instances);
                let poller = Arc::new(Poller {
                    site: Arc::clone(site),
                    lambda: Arc::clone(lambda),
                    function: id.clone(),
                    mapping: mapping.clone(),
                    url: queue.url.clone(),
                    fifo: queue.is_fifo(),
                    instances: allowed,
                    concurrency: Arc::new(Semaphore::new(allowed)),
                    switches: watch::Sender::default(),
                    progress: Mutex::default(),
                    in_flight: AtomicU64::new(0),
                    delivered: AtomicU64::new(0),
                    failed: AtomicU64::new(0),
                    dropped: AtomicU64::new(0),
                });
                site.tasks.spawn(poll(Arc::clone(&poller)));
                pollers.push(poller);
            }
        }
        Ok(Self(pollers))
    }

    /// Sets the switches of a function's mappings and resets their counts.
    pub async fn switch(&self, function: &str, switches: &Switches) -> Result<()> {
        for poller in self.of(function)? {
            poller.switch(switches.clone()).await?;
        }
        Ok(())
    }

    /// Resets the switches of every mapping.
    pub async fn reset(&self) -> Result<()> {
        for poller in &self.0 {
            poller.switch(Switches::default()).await?;
        }
        Ok(())
    }

    /// Ends the visibility timeout of the failed messages now. A message that another delivery
    /// deleted stays deleted.
    pub async fn expire(&self, function: &str) -> Result<usize> {
        let mut shown = 0;
        for poller in self.of(function)? {
            let hidden = std::mem::take(&mut poller.progress().hidden);
            for receipt in &hidden {
                let request = poller.site.sqs.change_message_visibility().queue_url(&poller.url).receipt_handle(receipt);
                shown += usize::from(request.visibility_timeout(0).send().await.is_ok());
            }
        }
        Ok(shown)
    }

    /// The counts and switches of each function's mappings.
    pub fn status(&self) -> Value {
        let functions: BTreeSet<&str> = self.0.iter().map(|poller| poller.function.as_str()).collect();
        let status = functions.into_iter().map(|function| {
            let of: Vec<_> = self.0.iter().filter(|poller| poller.function == function).collect();
            let count = |counter: fn(&Poller) -> &AtomicU64| -> u64 {
                of.iter().map(|poller| counter(poller).load(Ordering::Relaxed)).sum()
            };
            let queues: Vec<_> = of.iter().map(|poller| &poller.mapping.queue).collect();
            let hidden: usize = of.iter().map(|poller| poller.progress().hidden.len()).sum();
            let counts = json!({
                "queues": queues, "switches": *of[0].switches.borrow(), "delivered": count(|poller| &poller.delivered),
                "failed": count(|poller| &poller.failed), "dropped": count(|poller| &poller.dropped), "hidden": hidden,
                "inFlight": count(|poller| &poller.in_flight),
            });
            (function.to_owned(), counts)
        });
        Value::Object(status.collect())
    }

    fn of(&self, function: &str) -> Result<Vec<&Arc<Poller>>> {
        let of: Vec<_> = self.0.iter().filter(|poller| poller.function == function).collect();
        ensure!(!of.is_empty(), "no queue feeds {function}");
        Ok(of)
    }
}

async fn poll(poller: Arc<Poller>) {
    let mut switches = poller.switches.subscribe();
    let [least, most] = BETWEEN_POLLS;
    let mut pause = least;
    loop {
        if switches.wait_for(|switches| !switches.paused).await.is_err() {
            return;
        }
        let Ok(permit) = Arc::clone(&poller.concurrency).acquire_owned().await else { return };
        if switches.borrow().paused {
            continue;
        }
        match poller.receive().await {
            Ok(messages) if messages.is_empty() => {
                drop(permit);
                sleep(pause).await;
                pause = most.min(pause * 2);
            }
            Ok(messages) => {
                pause = least;
                let (work, poller) = (Arc::clone(&poller), &poller);
                poller.site.tasks.spawn(async move {
                    work.in_flight.fetch_add(1, Ordering::Relaxed);
                    work.handle(messages).await;
                    work.in_flight.fetch_sub(1, Ordering::Relaxed);
                    drop(permit);
                });
            }
            Err(error) => {
                poller.site.alarm(format!("{}: polling {} failed: {error:#}", poller.function, poller.mapping.queue));
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

impl Poller {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn switch(&self, switches: Switches) -> Result<()> {
        self.progress().lost.clear();
        let paused = switches.paused;
        self.switches.send_replace(switches);
        if paused {
            // Batches in progress end first.
            drop(self.concurrency.acquire_many(self.instances.try_into()?).await?);
        }
        Ok(())
    }

    async fn receive(&self) -> Result<Vec<Message>> {
        let request = self.site.sqs.receive_message().queue_url(&self.url).max_number_of_messages(self.mapping.batch_size.into());
        let request = request.wait_time_seconds(0).message_attribute_names("All");
        let answer = request.message_system_attribute_names(MessageSystemAttributeName::All).send().await?;
        Ok(answer.messages.unwrap_or_default())
    }

    /// Delivers a batch, once or twice, and deletes what succeeded.
    async fn handle(&self, messages: Vec<Message>) {
        let switches = self.switches.borrow().clone();
        let (lost, messages): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| self.loses(&switches, message));
        self.dropped.fetch_add(lost.len() as u64, Ordering::Relaxed);
        self.delete(&lost).await;
        if messages.is_empty() {
            return;
        }
        if switches.throttled {
            self.hide(messages);
        } else if switches.duplicate && self.fifo {
            self.deliver(&messages).await;
            self.deliver(&messages).await;
        } else if switches.duplicate {
            tokio::join!(self.deliver(&messages), self.deliver(&messages));
        } else {
            self.deliver(&messages).await;
        }
    }

    async fn deliver(&self, messages: &[Message]) {
        let event = event::sqs(messages, &self.mapping.queue, &self.site.template.region);
        // The function's failure has raised an alarm already.
        let answer = self.lambda.invoke(&self.function, &event).await;
        let ids: Vec<_> = messages.iter().filter_map(Message::message_id).collect();
        let failed = match &answer {
            Ok(answer) if self.mapping.partial => event::failures(answer, &ids),
            Ok(_) => HashSet::new(),
            Err(_) => ids.iter().copied().map(ToOwned::to_owned).collect(),
        };
        let failed = |message: &Message| message.message_id().is_none_or(|id| failed.contains(id));
        let (failed, done): (Vec<_>, Vec<_>) = messages.iter().cloned().partition(failed);
        self.delivered.fetch_add(done.len() as u64, Ordering::Relaxed);
        self.hide(failed);
        self.delete(&done).await;
    }

    /// Leaves messages to their visibility timeout.
    fn hide(&self, failed: Vec<Message>) {
        self.failed.fetch_add(failed.len() as u64, Ordering::Relaxed);
        self.progress().hidden.extend(failed.into_iter().filter_map(|message| message.receipt_handle));
    }

    /// A batch has at most ten messages, as many as one call deletes.
    async fn delete(&self, messages: &[Message]) {
        let entries = messages.iter().enumerate().filter_map(|(position, message)| {
            DeleteMessageBatchRequestEntry::builder()
                .id(position.to_string())
                .set_receipt_handle(message.receipt_handle.clone())
                .build()
                .ok()
        });
        let entries: Vec<_> = entries.collect();
        if entries.is_empty() {
            return;
        }
        if let Err(error) = self.site.sqs.delete_message_batch().queue_url(&self.url).set_entries(Some(entries)).send().await {
            self.site.alarm(format!("{}: messages could not be deleted: {error}", self.function));
        }
    }

    fn loses(&self, switches: &Switches, message: &Message) -> bool {
        switches.drop_first && self.progress().lost.insert(event::subject(message.body().unwrap_or_default()))
    }
}
