//! The launcher with its ports and settings, and why a launch stops.

use driftless_contract::RunLimits;
use driftless_core::{Architecture, DefaultSize, Limits, PodFields, WatchNamespaces, run::WaitReason};
pub use driftless_kubernetes::CallError as Error;
use driftless_kubernetes::{Error as KubernetesError, Watch};
use jiff::Timestamp;
use secrecy::SecretSlice;

use crate::Images;

/// The settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the claims.
    pub system_namespace: String,
    /// The namespace filter.
    pub namespaces: WatchNamespaces,
    /// The task role's unique id (`AROA…`): the first part of `aws:userid` in a task.
    pub task_role_id: String,
    /// The images of runs whose Workspace names none.
    pub images: Images,
    /// The processor of a task whose Workspace selects none.
    pub default_architecture: Architecture,
    /// How fields that only concern the pod are treated.
    pub pod_fields: PodFields,
    /// The task size for a Workspace that sets none.
    pub default_size: DefaultSize,
    /// Whether runs that change nothing, or ask for it, start on Fargate Spot.
    pub spot: bool,
    /// The limits on concurrent runs of a cluster.
    pub limits: Limits,
    /// The time limits of a run. The annotation of an Update can only shorten them.
    pub run_limits: RunLimits,
    /// The requested lifetime of a run's tokens in seconds; they are renewed at half of it.
    pub token_seconds: u32,
    /// The maximum size of an entry of the cache of dependencies, in bytes. `None` if there is no
    /// cache.
    pub cache_entry_bytes: Option<u64>,
    /// 32 random bytes: the key of all digests of inputs, if none is stored yet.
    pub fresh_key: SecretSlice<u8>,
}

impl Settings {
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch { namespaces: self.namespaces, system_namespace: &self.system_namespace }
    }
}

/// The launcher, for one message of a cluster.
#[derive(Debug)]
pub struct Launcher<'a, C, O, Q, T> {
    /// The cluster that the hint names.
    pub cluster: &'a C,
    /// The bucket with trees, runs and task folders.
    pub objects: &'a O,
    /// The queues for requeues and hints.
    pub queues: &'a Q,
    /// Fargate.
    pub tasks: &'a T,
    /// The settings of the installation.
    pub settings: &'a Settings,
    /// When the invocation began to handle the message.
    pub now: Timestamp,
}

/// Why a launch stops.
pub(crate) enum Stop {
    /// It waits: the reason and the message of the Update's condition.
    Wait(WaitReason, String),
    /// It failed.
    Fail(Error),
}

impl Stop {
    pub(crate) fn wait(reason: WaitReason, message: impl Into<String>) -> Self {
        Self::Wait(reason, message.into())
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::wait(WaitReason::SpecInvalid, message)
    }
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        match error.into() {
            // The user can fix it: a Workspace, a Secret or a ServiceAccount that the run names.
            Error::Kubernetes(error @ KubernetesError::Unreadable { .. }) => Self::invalid(error.to_string()),
            error => Self::Fail(error),
        }
    }
}
