use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{ProjectInfo, StackOutputs, Tree, json, names};

/// The `spec` of an Update: one run of Pulumi, which happens at most once.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Update",
    namespaced,
    status = "UpdateStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "pulumi",
    doc = "One run of Pulumi, which happens at most once.",
    validation = Rule::new("!has(oldSelf.spec.driftless) || self.spec == oldSelf.spec")
        .message(Message::Message("spec is immutable once spec.driftless is set; create another Update".into())),
    selectable = ".spec.workspaceName",
    selectable = ".status.driftless.waitingReason",
    selectable = ".status.endTime",
    printcolumn(name = "Workspace", type_ = "string", json_path = ".spec.workspaceName"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type", priority = 10),
    printcolumn(name = "Start Time", type_ = "date", json_path = ".status.startTime", priority = 10),
    printcolumn(name = "End Time", type_ = "date", json_path = ".status.endTime", priority = 10),
    printcolumn(name = "Progressing", type_ = "string", json_path = r#".status.conditions[?(@.type=="Progressing")].status"#),
    printcolumn(name = "Failed", type_ = "string", json_path = r#".status.conditions[?(@.type=="Failed")].status"#),
    printcolumn(name = "Complete", type_ = "string", json_path = r#".status.conditions[?(@.type=="Complete")].status"#),
    printcolumn(name = "Changes", type_ = "string", json_path = ".status.driftless.summary"),
    printcolumn(name = "Duration", type_ = "string", json_path = ".status.driftless.duration"),
    printcolumn(name = "Waiting", type_ = "string", json_path = ".status.driftless.waitingReason", priority = 10),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.permalink")
)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSpec {
    /// Continue with other resources after one has failed.
    pub continue_on_error: Option<bool>,
    /// Fields that the Pulumi Kubernetes Operator does not have: the run that a Stack has decided.
    pub driftless: Option<DriftlessUpdate>,
    /// Fail if there are changes.
    pub expect_no_changes: Option<bool>,
    /// Message of the update.
    pub message: Option<String>,
    /// Maximum number of concurrent operations.
    pub parallel: Option<i32>,
    /// Refresh the state before the operation.
    pub refresh: Option<bool>,
    /// Remove the stack after the destroy.
    pub remove: Option<bool>,
    /// URNs of resources to replace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<String>,
    /// Run the program during a refresh or a destroy.
    pub run_program: Option<bool>,
    /// Name of the Pulumi stack.
    pub stack_name: Option<String>,
    /// URNs of the only resources to update.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<String>,
    /// Include the resources that depend on `target`.
    pub target_dependents: Option<bool>,
    /// Time after which a completed Update is deleted, such as `24h`. It is kept if this is not
    /// set.
    pub ttl_after_completed: Option<String>,
    /// `up`, `preview`, `refresh` or `destroy`.
    #[serde(rename = "type")]
    pub operation: Option<String>,
    /// Name of the Workspace, in the same namespace, that defines the run.
    pub workspace_name: Option<String>,
}

/// The run that a Stack has decided. Neither a retry nor a later change of the Stack, its source or
/// its Workspace changes it. An Update made by hand has none of these fields.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessUpdate {
    /// Take drift over into the state. Only for a refresh.
    pub adopt: Option<bool>,
    /// Revision of the source, as in the status of the Stack.
    pub commit: Option<String>,
    /// Refresh before the operation, and fail if that finds changes.
    pub expect_no_refresh_changes: Option<bool>,
    /// Secrets and `ConfigMap`s that receive the outputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<StackOutputs>,
    /// Hash of the approved plan that the run applies. A run that would do anything else changes
    /// nothing.
    pub plan: Option<String>,
    /// Preview the operation only: report the drift that a refresh finds, or make the plan of a
    /// destroy.
    pub preview_only: Option<bool>,
    /// Make a plan for an approval. Only for a run that changes nothing.
    pub propose: Option<bool>,
    /// Value of the annotation `pulumi.com/reconciliation-request` of the Stack that the Update
    /// answers.
    pub reconcile_request: Option<String>,
    /// Client, schedule or event that the Stack runs for: for a client, the name of its field
    /// manager. For people: Driftless decides nothing from it.
    pub requested_by: Option<String>,
    /// Keep a sealed copy of the inputs of the run, for the destroy of the Stack.
    pub seal: Option<bool>,
    /// The Stack of an Update that is not in the namespace of its Stack, because a terminating
    /// namespace accepts no new objects. Only valid in the system namespace, where no user may
    /// write.
    pub stack: Option<StackReference>,
    /// Generation of the Stack.
    pub stack_generation: Option<i64>,
    /// The stored tree of the source.
    pub tree: Option<Tree>,
    /// Copy of the spec of the Workspace. The API server does not validate it.
    #[schemars(schema_with = "json::object")]
    pub workspace: Option<Value>,
}

/// The Stack of an Update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackReference {
    /// Name of the Stack.
    pub name: String,
    /// Namespace of the Stack.
    pub namespace: String,
    /// UID of the Stack.
    pub uid: String,
}

/// The `status` of an Update.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStatus {
    /// Conditions `Progressing`, `Failed` and `Complete`.
    #[schemars(schema_with = "json::conditions")]
    #[serde(deserialize_with = "json::lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Fields that the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessUpdateStatus>,
    /// Time at which the run ended, a selectable field.
    #[serde(deserialize_with = "json::lenient")]
    pub end_time: Option<Time>,
    /// Message of the update, or the reason of its failure.
    pub message: Option<String>,
    /// The last reconciled generation.
    pub observed_generation: Option<i64>,
    /// Name of the Secret with the outputs.
    pub outputs: Option<String>,
    /// Page of the run in Pulumi Cloud.
    pub permalink: Option<String>,
    /// Project of the run.
    pub project_info: Option<ProjectInfo>,
    /// Time at which the run started.
    #[serde(deserialize_with = "json::lenient")]
    pub start_time: Option<Time>,
}

/// Fields of the status of an Update that the Pulumi Kubernetes Operator does not have. They are
/// for people: Driftless decides nothing from them.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessUpdateStatus {
    /// Number of resources by kind of change, such as created, updated or deleted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changes: BTreeMap<String, i64>,
    /// How the run got its dependencies: `restored 98 MB in 0.6s`, `installed in 41s: no cache
    /// entry`.
    pub dependencies: Option<String>,
    /// Duration of the run, such as `1m12s`.
    pub duration: Option<String>,
    /// Duration of the image pull by ECS, such as `12s`.
    pub image_pull: Option<String>,
    /// Address of the whole log.
    pub log: Option<String>,
    /// Link to the whole masked log.
    pub log_link: Option<LogLink>,
    /// Name of the ConfigMap with the last 512 KiB of the log, in parts with ordered keys.
    pub log_config_map: Option<String>,
    /// Progress of a live run.
    pub progress: Option<UpdateProgress>,
    /// Steps that changed resources, or tried to: the 50 that took longest, in the order of their
    /// starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<UpdateStep>,
    /// Short form of the changes or of the progress: `+3 ~1 -2`, `12/40`.
    pub summary: Option<String>,
    /// ARN of the ECS task.
    pub task: Option<String>,
    /// Message about what the run waits for, if it has not started.
    pub waiting_for: Option<String>,
    /// Reason of the wait, a selectable field.
    pub waiting_reason: Option<String>,
}

/// Link to the whole masked log of a run. It works for an hour, without credentials.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogLink {
    /// Time at which the link stops working. A live run replaces it before that.
    #[serde(deserialize_with = "json::lenient")]
    pub expires: Option<Time>,
    /// URL of the log. A range of bytes can be requested.
    pub url: String,
}

impl LogLink {
    /// A link that works until it expires.
    #[must_use]
    pub fn new(url: String, expires: Timestamp) -> Self {
        Self { expires: Some(Time(expires)), url }
    }
}

/// A link to a log is renewed when it works for less than this.
const RENEWED_WITHIN: SignedDuration = SignedDuration::from_mins(30);

/// A reader's request for a link to a log has an effect for this time, so that each link needs a
/// request.
const REQUESTED_FOR: SignedDuration = SignedDuration::from_mins(30);

impl Update {
    /// Returns whether the link to the log is absent, or expires soon.
    #[must_use]
    pub fn needs_log_link(&self, now: Timestamp) -> bool {
        let link = self.status.as_ref().and_then(|status| status.driftless.as_ref()?.log_link.as_ref());
        link.and_then(|link| link.expires.as_ref()).is_none_or(|expires| expires.0 < now + RENEWED_WITHIN)
    }

    /// Returns whether a reader has asked for a new link to the log of its ended run, and it needs
    /// one.
    #[must_use]
    pub fn asks_for_log(&self, now: Timestamp) -> bool {
        let asked = self.annotations().get(names::LOG_REQUESTED_AT).and_then(|at| at.parse::<Timestamp>().ok());
        let is_recent = asked.is_some_and(|at| now.duration_since(at).abs() < REQUESTED_FOR);
        is_recent && self.is_complete() && self.needs_log_link(now)
    }

    /// Sets the link to the log.
    pub fn set_log_link(&mut self, link: LogLink) {
        self.status.get_or_insert_default().driftless.get_or_insert_default().log_link = Some(link);
    }
}

/// Step of a run that changed a resource, or tried to.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStep {
    /// Duration of the step, such as `1m12s`.
    pub duration: String,
    /// Whether the step failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Pulumi's name of the step, such as `create` or `create-replacement`.
    pub operation: String,
    /// Time of its start.
    #[serde(deserialize_with = "json::lenient")]
    pub start_time: Option<Time>,
    /// URN of the resource.
    pub urn: String,
}

/// Progress of a run. Pulumi discovers resources while the program runs, so `planned` may grow.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateProgress {
    /// A step in progress: `update URN`.
    pub current: Option<String>,
    /// How the run got its dependencies, once known.
    pub dependencies: Option<String>,
    /// Number of completed resource steps.
    pub done: i64,
    /// Number of failed resource steps.
    pub failed: i64,
    /// `fetch`, `install`, `init` or `run`.
    pub phase: Option<String>,
    /// Number of known resource steps: one for each resource of the last run, or the number of
    /// started steps if that is higher.
    pub planned: i64,
    /// Number of started resource steps.
    pub started: i64,
    /// Time of this progress report.
    #[serde(deserialize_with = "json::lenient")]
    pub time: Option<Time>,
}
