use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{ObjectReference, ProjectInfo, json};

/// The `spec` of an Update: one run, at most once.
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
    doc = "One run of Pulumi, at most once.",
    validation = Rule::new("!has(oldSelf.spec.driftless) || self.spec == oldSelf.spec")
        .message(Message::Message("spec is immutable once spec.driftless is set; create another Update".into())),
    selectable = ".spec.workspaceName",
    selectable = ".status.driftless.waitingReason",
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
    /// Go on with other resources after one failed.
    pub continue_on_error: Option<bool>,
    /// What the Pulumi Kubernetes Operator does not have: what a Stack's Update runs.
    pub driftless: Option<DriftlessUpdate>,
    /// Fail if there are changes.
    pub expect_no_changes: Option<bool>,
    /// The update's message.
    pub message: Option<String>,
    /// How many operations may go on at once.
    pub parallel: Option<i32>,
    /// Refresh the state first.
    pub refresh: Option<bool>,
    /// Remove the stack after it is destroyed.
    pub remove: Option<bool>,
    /// URNs of resources to replace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<String>,
    /// Run the program for a refresh or destroy.
    pub run_program: Option<bool>,
    /// The Pulumi stack.
    pub stack_name: Option<String>,
    /// URNs of the only resources to update.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<String>,
    /// Include what depends on `target`.
    pub target_dependents: Option<bool>,
    /// How long it is kept after it completed, such as `24h`; for ever if it is not there.
    pub ttl_after_completed: Option<String>,
    /// `up`, `preview`, `refresh` or `destroy`.
    #[serde(rename = "type")]
    pub operation: Option<String>,
    /// The Workspace in the same namespace to run in.
    pub workspace_name: Option<String>,
}

/// What a Stack's Update runs: all that was decided, so that neither a later change of the Stack, its source or its Workspace nor a
/// retry makes it another run. An Update made by hand has none of it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessUpdate {
    /// The revision of the source, as the Stack's status names it.
    pub commit: Option<String>,
    /// Refresh before the operation, and fail if that changes anything.
    pub expect_no_refresh_changes: Option<bool>,
    /// Of a refresh: change nothing, and tell of drift.
    pub preview_only: Option<bool>,
    /// The annotation `pulumi.com/reconciliation-request` of the Stack that it answers.
    pub reconcile_request: Option<String>,
    /// Keep a sealed copy of what the run reads, for the destroy of the Stack.
    pub seal: Option<bool>,
    /// The Stack that it is of, where it is not in the Stack's namespace: nothing can be created in that once it is terminating. It counts
    /// in the system's namespace only, where no user may write.
    pub stack: Option<StackReference>,
    /// The Stack's generation.
    pub stack_generation: Option<i64>,
    /// The source as it was stored.
    pub tree: Option<Tree>,
    /// A copy of the Workspace's spec. Not checked by the API server.
    #[schemars(schema_with = "json::object")]
    pub workspace: Option<Value>,
}

/// The Stack of an Update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackReference {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
}

/// A source as it was stored.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tree {
    /// The digest that the source stated.
    pub digest: Option<String>,
    /// The project's directory within the tree; its root if it is not there.
    pub dir: Option<String>,
    /// The directories and files of the tree that the run gets; all of it if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The branch, tag or ref of a git repository, as its user wrote it.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// The name of a git repository: `host/owner/name`.
    pub repository: Option<String>,
    /// The digest of `paths`.
    pub scope: Option<String>,
    /// The object that the tree is of.
    pub source: Option<ObjectReference>,
}

/// The `status` of an Update.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStatus {
    /// `Progressing`, `Failed` and `Complete`.
    #[schemars(schema_with = "json::conditions")]
    #[serde(deserialize_with = "json::lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessUpdateStatus>,
    /// When the run ended.
    #[serde(deserialize_with = "json::lenient")]
    pub end_time: Option<Time>,
    /// The update's message, or why it failed.
    pub message: Option<String>,
    /// The generation that was looked at last.
    pub observed_generation: Option<i64>,
    /// The Secret with the outputs.
    pub outputs: Option<String>,
    /// The run's page in Pulumi Cloud.
    pub permalink: Option<String>,
    /// The project that ran.
    pub project_info: Option<ProjectInfo>,
    /// When the run started.
    #[serde(deserialize_with = "json::lenient")]
    pub start_time: Option<Time>,
}

/// What the status of an Update has besides PKO's fields. For people: nothing is decided from it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessUpdateStatus {
    /// How many resources were created, updated, deleted and so on, by what was done.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changes: BTreeMap<String, i64>,
    /// How the run got its dependencies: `restored 98 MB in 0.6s`, `installed in 41s: no cache entry`.
    pub dependencies: Option<String>,
    /// How long the run took, such as `1m12s`.
    pub duration: Option<String>,
    /// How long ECS pulled the images of the task, such as `12s`.
    pub image_pull: Option<String>,
    /// Where its whole log is.
    pub log: Option<String>,
    /// The ConfigMap with its log: the last 512 KiB, in parts whose keys are in order.
    pub log_config_map: Option<String>,
    /// How far it is, while it runs.
    pub progress: Option<UpdateProgress>,
    /// The steps that changed resources, or tried to: the 50 that took longest, in the order in which they started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<UpdateStep>,
    /// What it changed, or how far it is, in a few characters: `+3 ~1 -2`, `12/40`.
    pub summary: Option<String>,
    /// The ARN of the ECS task.
    pub task: Option<String>,
    /// What the run waits for, if it has not started.
    pub waiting_for: Option<String>,
    /// The same in a word, which it can be found by.
    pub waiting_reason: Option<String>,
}

/// A step of a run that changed a resource, or tried to.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStep {
    /// How long it took, such as `1m12s`.
    pub duration: String,
    /// Whether it failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Pulumi's name for the step, such as `create` or `create-replacement`.
    pub operation: String,
    /// When it started.
    #[serde(deserialize_with = "json::lenient")]
    pub start_time: Option<Time>,
    /// The resource.
    pub urn: String,
}

/// How far a run is. Pulumi learns of resources while the program runs, so that what is planned may grow.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateProgress {
    /// A step that is under way: `update URN`.
    pub current: Option<String>,
    /// How the run got its dependencies, once that is known.
    pub dependencies: Option<String>,
    /// Resource steps that have ended.
    pub done: i64,
    /// Resource steps that have failed.
    pub failed: i64,
    /// `fetch`, `install`, `init` or `run`.
    pub phase: Option<String>,
    /// Resource steps to be taken, as far as is known: one for each resource that the last run left, or as many as have begun.
    pub planned: i64,
    /// Resource steps that have begun.
    pub started: i64,
    /// When this was so.
    #[serde(deserialize_with = "json::lenient")]
    pub time: Option<Time>,
}
