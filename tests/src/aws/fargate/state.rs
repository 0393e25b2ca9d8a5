//! The state of ECS: its task definitions, its tasks, and what a test has set.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::address::Files;
use crate::aws::{identity::Credentials, site::Site};

/// How long ECS remembers a stopped task, and its client token.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);
/// The lifetime of a task's credentials; new ones are available before they expire.
pub(super) const SESSION: SignedDuration = SignedDuration::from_hours(6);
/// The capacity provider that may reclaim tasks.
pub(super) const SPOT: &str = "FARGATE_SPOT";
/// The host of a registry that requires a login.
pub const PRIVATE_REGISTRY: &str = "private.example";

/// An error of the API.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The code, such as `ClientException`.
    pub code: &'static str,
    pub(super) message: String,
    /// The tasks that hold a client token.
    pub(super) resources: Vec<String>,
}

impl Fault {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), resources: Vec::new() }
    }

    pub(super) fn client(message: impl Into<String>) -> Self {
        Self::new("ClientException", message)
    }

    pub(super) fn parameter(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterException", message)
    }

    /// The body of the answer.
    pub fn into_json(self) -> Value {
        match self.resources.as_slice() {
            [] => json!({ "__type": self.code, "message": self.message }),
            resources => json!({ "__type": self.code, "message": self.message, "resourceIds": resources }),
        }
    }
}

/// The service.
pub struct Fargate {
    pub(super) site: Arc<Site>,
    pub(super) runner: PathBuf,
    pub(super) image: BTreeMap<String, String>,
    /// The endpoint for tasks' metadata and credentials.
    pub endpoint: String,
    /// If tasks find their endpoints at Fargate's own addresses.
    pub(super) files: Option<Files>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Revisions by family; revision n has index n - 1.
    pub(super) definitions: BTreeMap<String, Vec<Value>>,
    /// Tasks by ARN.
    pub(super) tasks: BTreeMap<String, Task>,
    pub(super) tokens: HashMap<String, Ticket>,
    /// The number of `RunTask` calls that will find no capacity.
    pub(super) refusals: u32,
    /// The same for Spot.
    pub(super) spot_refusals: u32,
    /// Images that cannot be pulled, and why.
    pub(super) unpullable: BTreeMap<String, String>,
    /// Images that are built for one processor only, by ECS's name for it.
    pub(super) built_for: BTreeMap<String, String>,
    /// Images that are pulled slowly, and how long their tasks stay pending.
    pub(super) slow: BTreeMap<String, Duration>,
    /// Images whose tasks have a small disk, and its size in MiB.
    pub(super) disks: BTreeMap<String, u64>,
    /// Images whose tasks have a shifted clock, and the shift in seconds.
    pub(super) clocks: BTreeMap<String, i64>,
    /// The maximum number of tasks with a text in their definition.
    pub(super) quotas: BTreeMap<String, usize>,
}

/// The instruction to the main container of a task.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    Run,
    /// SIGTERM, and SIGKILL after the stop timeout.
    Stop,
    /// Exceeded its memory: SIGKILL.
    Kill,
}

pub(super) struct Task {
    /// The task as `DescribeTasks` shows it.
    pub(super) wire: Value,
    /// The text of its definition.
    pub(super) definition: String,
    pub(super) stopped: Option<Timestamp>,
    /// It stopped so long ago that ECS has forgotten it.
    pub(super) forgotten: bool,
    pub(super) order: watch::Sender<Order>,
    /// The unguessable part of its endpoints' paths.
    pub(super) secret: String,
    /// The logical id of its role.
    pub(super) role: String,
    pub(super) credentials: (Credentials, Timestamp),
}

impl Task {
    pub(super) fn is_known(&self, now: Timestamp) -> bool {
        !self.forgotten && self.stopped.is_none_or(|stopped| now.duration_since(stopped) < REMEMBERED)
    }

    /// Tells its containers to stop, unless a stop was requested before.
    pub(super) fn stop(&mut self, code: &str, reason: &str, now: Timestamp) {
        if self.stopped.is_none() && self.wire["desiredStatus"] != "STOPPED" {
            self.wire["desiredStatus"] = "STOPPED".into();
            self.wire["stopCode"] = code.into();
            self.wire["stoppedReason"] = reason.into();
            self.wire["stoppingAt"] = epoch(now);
            self.order.send_replace(Order::Stop);
        }
    }
}

/// The answer for a client token.
pub(super) struct Ticket {
    pub(super) input: Value,
    pub(super) task: Option<String>,
    pub(super) failures: Value,
    pub(super) at: Timestamp,
}

impl Fargate {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arn(&self, resource: &str) -> String {
        format!("arn:aws:ecs:{}:{}:{resource}", self.site.template.region, self.site.template.account)
    }

    pub(super) fn task_arn(&self, task: &str) -> String {
        if task.starts_with("arn:") { task.into() } else { self.arn(&format!("task/{}/{task}", self.site.template.cluster)) }
    }

    /// The ARN of the cluster that a call names: there is only one.
    pub(super) fn cluster(&self, input: &Value) -> Result<String, Fault> {
        let name = &self.site.template.cluster;
        let arn = self.arn(&format!("cluster/{name}"));
        let wanted = input["cluster"].as_str().unwrap_or("default");
        if wanted == name || wanted == arn { Ok(arn) } else { Err(Fault::new("ClusterNotFoundException", "Cluster not found.")) }
    }
}

/// The API's times: seconds since 1970.
#[expect(clippy::cast_precision_loss, reason = "the API has milliseconds")]
pub(super) fn epoch(at: Timestamp) -> Value {
    json!(at.as_millisecond() as f64 / 1000.0)
}
