//! The state that all parts of the AWS half share.

use std::{
    collections::VecDeque,
    fs::File,
    future::Future,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use anyhow::Result;
use serde_json::Value;
use tokio::{sync::watch, task::JoinSet};

use super::{federation::Federation, identity::Identities, outages::Outages, template::Template};
use crate::world::dirs::Dirs;

/// The number of alarms that are kept.
const ALARMS: usize = 100;

/// The record of every call at the gate, beside the logs: a JSON object per line.
pub const CALLS_LOG: &str = "aws-calls.jsonl";
/// The same of every invocation of a function.
pub const INVOCATIONS_LOG: &str = "invocations.jsonl";

/// The account: its endpoints, the template, and the keys.
pub struct Site {
    /// The world's folders.
    pub dirs: Arc<Dirs>,
    /// The gate's URL.
    pub endpoint: String,
    /// moto's URL.
    pub moto: String,
    /// The template.
    pub template: Template,
    /// The keys and their holders.
    pub identities: Identities,
    /// The roles of runs.
    pub federation: RwLock<Federation>,
    /// SQS, bypassing the gate.
    pub sqs: aws_sdk_sqs::Client,
    /// See [`super::Settings::etc_hosts`].
    pub etc_hosts: Option<PathBuf>,
    /// [`CALLS_LOG`]: every call at the gate.
    pub calls: Journal,
    /// [`INVOCATIONS_LOG`]: every invocation of a function.
    pub invocations: Journal,
    /// Calls of S3 that are held for a test.
    pub holds: Holds,
    /// Calls that fail.
    pub outages: Outages,
    /// All running tasks.
    pub tasks: Tasks,
    alarms: Mutex<VecDeque<String>>,
}

impl Site {
    /// Opens the journals.
    pub fn new(
        dirs: Arc<Dirs>,
        endpoint: String,
        moto: String,
        template: Template,
        identities: Identities,
        sqs: aws_sdk_sqs::Client,
        etc_hosts: Option<PathBuf>,
    ) -> Result<Self> {
        let journal = |name: &str| Journal::open(&dirs.logs().join(name));
        let (calls, invocations) = (journal(CALLS_LOG)?, journal(INVOCATIONS_LOG)?);
        Ok(Self {
            dirs,
            endpoint,
            moto,
            template,
            identities,
            federation: RwLock::default(),
            sqs,
            etc_hosts,
            calls,
            invocations,
            holds: Holds::default(),
            outages: Outages::default(),
            tasks: Tasks::default(),
            alarms: Mutex::default(),
        })
    }

    /// Records a forbidden event: a crash, a time-out, a function that does not start. Printed and
    /// kept for the tests.
    pub fn alarm(&self, text: String) {
        tracing::error!("{text}");
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        if alarms.len() == ALARMS {
            alarms.pop_front();
        }
        alarms.push_back(text);
    }

    /// Removes the alarms that contain this text, which a test caused.
    pub fn forgive(&self, words: &str) {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).retain(|alarm| !alarm.contains(words));
    }

    /// The last alarms.
    pub fn alarms(&self) -> Vec<String> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Calls of S3 that a test holds, to observe the state at that moment.
#[derive(Default)]
pub struct Holds {
    held: watch::Sender<Vec<String>>,
    waiting: Mutex<Vec<String>>,
}

impl Holds {
    /// Holds every call that matches one of these, until the next call: `METHOD` and the end of the
    /// path, such as `GET /in/pack`.
    pub fn set(&self, held: Vec<String>) {
        self.held.send_replace(held);
    }

    /// The held calls.
    pub fn waiting(&self) -> Vec<String> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns when the call may continue.
    pub async fn pass(&self, call: &str) {
        let is =
            |held: &String| held.split_once(' ').is_some_and(|(method, end)| call.starts_with(method) && call.ends_with(end));
        let may_pass = |held: &Vec<String>| !held.iter().any(is);
        if may_pass(&self.held.borrow()) {
            return;
        }
        let waiting = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().push(call.to_owned());
        let mut held = self.held.subscribe();
        // An error means that the world ends.
        let _: Result<_, _> = held.wait_for(may_pass).await.map(drop);
        waiting().retain(|other| other != call);
    }
}

/// A log of one JSON object per line.
pub struct Journal(Mutex<File>);

impl Journal {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self(Mutex::new(File::options().create(true).append(true).open(path)?)))
    }

    /// Adds a line.
    pub fn write(&self, entry: &Value) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(format!("{entry}\n").as_bytes()) {
            tracing::error!(%error, "a journal cannot be written");
        }
    }
}

/// The tasks of this half of the world, none of which outlives it. Each ends by itself or with the
/// world.
#[derive(Default)]
pub struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Starts one.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the world ended badly");
            }
        }
        tasks.spawn(task);
    }

    /// Requests the end of all tasks.
    pub fn abort(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Ends all tasks and waits for them.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }
}
