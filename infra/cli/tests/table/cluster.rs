//! The objects of a case in memory, their reconciliation, and an API server that returns them.

use std::{cell::Cell, collections::BTreeMap, convert::Infallible};

use axum::{body::Body, http};
use driftless_api::{
    Artifact, Program, ProgramStatus, Source, Stack, Update, Workspace,
    facts::{Compared, Facts, Fetch, Found, snapshot},
    finalizer,
};
use driftless_cli::cluster::Cluster;
use driftless_core::{
    ArtifactDigest, Effect, FailureReason, Governance, Guard, NewUpdate, PlanHash, PlannedChanges, Project, Readiness,
    RunOutcome, SourceRef, Stack as CoreStack, TreeState, decide, run::WaitReason,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::service_fn;

thread_local! {
    static NOW: Cell<Timestamp> = Cell::new(super::support::now());
}

/// The clock of the case.
pub fn now() -> Timestamp {
    NOW.get()
}

/// How often a case is reconciled until it is as expected, and the time in between.
const TURNS: u32 = 400;
const TURN: SignedDuration = SignedDuration::from_secs(30);
/// The duration of a run.
const RUN: SignedDuration = SignedDuration::from_secs(20);

/// The reasons of a Stack whose run has failed, and those of one whose run is live.
const FAILED: [&str; 4] = ["RetryingAfterFailure", "PreviewFailed", "UpdateFailed", "UpdateConflict"];
const LIVE: &str = "StackProcessing";
/// The reason of a Stack that waits for another one.
const UNMET: &str = "PrerequisiteNotSatisfied";
/// What the launcher says of an input that does not exist.
const NEXT: &str = "create it to start the run; next try within 1m";

/// The objects of a case, by kind and name.
#[derive(Clone)]
pub struct Objects {
    stack: String,
    api_version: String,
    all: BTreeMap<(String, String), Value>,
    outcomes: BTreeMap<String, RunOutcome>,
}

/// A JSON merge patch.
fn merge(base: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else { return base.clone_from(patch) };
    if !base.is_object() {
        *base = json!({});
    }
    for (key, patch) in patch {
        if patch.is_null() {
            base.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut base[key], patch);
        }
    }
}

impl Objects {
    /// The Program that most cases run, and no Stack.
    pub fn new(stack: &str, api_version: Option<&str>) -> Self {
        NOW.set(super::support::now());
        let mut objects = Self {
            stack: stack.into(),
            api_version: api_version.unwrap_or("pulumi.com/v1").into(),
            all: BTreeMap::new(),
            outcomes: BTreeMap::new(),
        };
        objects.apply("Program", "app", &json!({ "program": {} }));
        objects
    }

    fn get<K: DeserializeOwned>(&self, kind: &str, name: &str) -> Option<K> {
        let object = self.all.get(&(kind.to_owned(), name.to_owned()))?;
        Some(serde_json::from_value(object.clone()).unwrap())
    }

    fn put(&mut self, kind: &str, name: &str, object: Value) {
        self.all.insert((kind.to_owned(), name.to_owned()), object);
    }

    fn stacks(&self) -> Vec<String> {
        self.all.keys().filter(|(kind, _)| kind == "Stack").map(|(_, name)| name.clone()).collect()
    }

    /// Creates or patches an object. A change of what it says makes another generation.
    fn apply(&mut self, kind: &str, name: &str, patch: &Value) {
        let key = (kind.to_owned(), name.to_owned());
        let version = match kind {
            "Stack" => &*self.api_version,
            "Program" => "pulumi.com/v1",
            "Workspace" | "Update" => "auto.pulumi.com/v1alpha1",
            "ExternalArtifact" => "source.toolkit.fluxcd.io/v1",
            _ => "v1",
        };
        let base = json!({
            "apiVersion": version, "kind": kind,
            "metadata": {
                "name": name, "namespace": "team", "uid": format!("{kind}-{name}"), "generation": 0, "creationTimestamp": now(),
            },
        });
        let mut object = self.all.get(&key).cloned().unwrap_or(base);
        let before = [object["spec"].clone(), object["program"].clone()];
        merge(&mut object, patch);
        if object["metadata"]["generation"] == 0 || before != [object["spec"].clone(), object["program"].clone()] {
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        }
        if kind == "Program" {
            let generation = object["metadata"]["generation"].as_i64();
            let revision = generation.unwrap().to_string();
            let artifact = Artifact { revision: revision.clone(), digest: Some(digest(&revision)), ..Artifact::default() };
            object["status"] = json!(ProgramStatus { artifact: Some(artifact), observed_generation: generation });
        }
        self.all.insert(key, object);
    }

    fn usual(stack: &str, program: &str, spec: &Value) -> Value {
        let mut full = json!({
            "stack": stack, "backend": "file:///state", "programRef": { "name": program },
            "envRefs": { "PULUMI_CONFIG_PASSPHRASE": { "type": "Secret", "secret": { "name": "pulumi", "key": "passphrase" } } },
        });
        merge(&mut full, spec);
        full
    }

    /// The actions of a step.
    pub fn act(&mut self, step: &Value) {
        let wait = SignedDuration::from_secs(step["seconds"].as_i64().unwrap_or_default());
        NOW.set(now() + wait + SignedDuration::from_mins(1));
        for object in step["objects"].as_array().into_iter().flatten() {
            let text = object.to_string().replace("$STACK_UID", &format!("Stack-{}", self.stack));
            let mut object: Value =
                serde_json::from_str(&text.replace("$WORKSPACE_UID", &format!("Workspace-{}", self.stack))).unwrap();
            let [kind, own] = ["/kind", "/metadata/name"].map(|at| object.pointer(at).unwrap().as_str().unwrap().to_owned());
            object.as_object_mut().unwrap().remove("apiVersion");
            if kind == "Stack" {
                object["spec"] = Self::usual(&own, "app", &object["spec"]);
            }
            self.apply(&kind, &own, &object);
        }
        if !step["program"].is_null() {
            self.apply("Program", super::STACK, &json!({ "program": step["program"] }));
        }
        let stack = self.stack.clone();
        let mut patch = json!({ "metadata": step["metadata"], "spec": step["stack"] });
        let is_new = !self.all.contains_key(&("Stack".into(), stack.clone()));
        if is_new && !step["stack"].is_null() {
            let program = if step["program"].is_null() { "app" } else { super::STACK };
            patch["spec"] = Self::usual(super::STACK, program, &step["stack"]);
        }
        if !is_new || !step["stack"].is_null() {
            patch.as_object_mut().unwrap().retain(|_, patch| !patch.is_null());
            self.apply("Stack", &stack, &patch);
        }
        if !step["status"].is_null() {
            self.apply("Stack", &stack, &json!({ "status": step["status"] }));
        }
        for object in step["delete"].as_array().into_iter().flatten() {
            let (kind, own) = object.as_str().unwrap().split_once('/').unwrap();
            let is_kept = self.all.get(&(kind.to_owned(), own.to_owned())).is_some_and(|object| {
                object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
            });
            if is_kept {
                self.apply(kind, own, &json!({ "metadata": { "deletionTimestamp": now() } }));
                let generation = self.all[&(kind.to_owned(), own.to_owned())]["metadata"]["generation"].as_i64().unwrap();
                self.apply(kind, own, &json!({ "metadata": { "generation": generation + 1 } }));
            } else {
                self.all.remove(&(kind.to_owned(), own.to_owned()));
            }
        }
    }

    /// Reason and message of the Stack; `Gone` without Driftless's finalizer.
    fn state(&self) -> (String, String) {
        let Some(stack) = self.get::<Stack>("Stack", &self.stack) else { return ("Gone".into(), String::new()) };
        if stack.metadata.deletion_timestamp.is_some() && !finalizer::is_on(&stack) {
            return ("Gone".into(), String::new());
        }
        let core = CoreStack::from(&stack);
        let is_idle = core.status.current_update.is_none();
        match core.status.readiness {
            Some(Readiness::Reconciling { reason, message } | Readiness::Stalled { reason, message }) => {
                (reason.as_str().into(), message)
            }
            Some(Readiness::Ready) if is_idle => ("Ready".into(), String::new()),
            Some(Readiness::Ready) | None => Default::default(),
        }
    }

    /// Reconciles all Stacks until the one of the case has the wanted reason and message.
    pub async fn settle(&mut self, wanted: (&str, &str), is_wanted: impl Fn(&(String, String)) -> bool) -> (String, String) {
        self.continue_run(wanted);
        for _ in 0..TURNS {
            let before = self.all.clone();
            for name in self.stacks() {
                if let Some(stack) = self.get("Stack", &name) {
                    Box::pin(self.reconcile(stack, wanted)).await;
                }
            }
            if self.all != before {
                continue;
            }
            if is_wanted(&self.state()) {
                break;
            }
            NOW.set(now() + TURN);
        }
        self.state()
    }

    async fn reconcile(&mut self, mut stack: Stack, wanted: (&str, &str)) {
        let name = stack.name_any();
        let Ok(facts) = snapshot(&*self, CoreStack::from(&stack), now()).await;
        let plan = decide(&facts, now());
        stack.set_status(&plan.status, now());
        for effect in plan.effects {
            match effect {
                Effect::AddFinalizer => finalizer::add(&mut stack),
                Effect::RemoveFinalizer => finalizer::remove(&mut stack),
                Effect::Run(new) => self.run(&stack, &new, wanted),
                Effect::RequestReconcile { stack, request } => {
                    let annotations = json!({ driftless_core::metadata::RECONCILIATION_REQUEST: request });
                    self.apply("Stack", &stack, &json!({ "metadata": { "annotations": annotations } }));
                }
                _ => {}
            }
        }
        if stack.metadata.deletion_timestamp.is_some() && stack.finalizers().is_empty() {
            self.all.remove(&("Stack".to_owned(), name));
        } else {
            self.put("Stack", &name, json!(stack));
        }
    }

    /// Creates the Workspace and the Update of a run.
    fn run(&mut self, stack: &Stack, new: &NewUpdate, wanted: (&str, &str)) {
        let name = stack.name_any();
        let mut workspace = Workspace::of_stack(stack, new);
        workspace.metadata.uid = Some(format!("Workspace-{name}"));
        let mut update = Update::of_stack(stack, &workspace, new);
        update.metadata.uid = Some(format!("Update-{}", new.current.name));
        update.metadata.creation_timestamp = Some(Time(now()));
        self.put("Workspace", &name, json!(workspace));
        let is_first = stack.spec.program_ref.as_ref().is_some_and(|program| program.name == "app");
        let fails = if name == self.stack { FAILED.contains(&wanted.0) } else { wanted.0 == UNMET && !is_first };
        self.proceed(update, fails, wanted);
    }

    /// Continues the live run of the case's Stack.
    fn continue_run(&mut self, wanted: (&str, &str)) {
        let current = self.get::<Stack>("Stack", &self.stack).and_then(|stack| stack.status?.current_update?.name);
        if let Some(update) = current.and_then(|name| self.get::<Update>("Update", &name)).filter(|update| !update.is_complete())
        {
            self.proceed(update, FAILED.contains(&wanted.0), wanted);
        }
    }

    /// Ends a run, unless the Stack of the case is to wait for it.
    fn proceed(&mut self, mut update: Update, fails: bool, (reason, message): (&str, &str)) {
        let name = update.name_any();
        if reason == LIVE {
            if message != "stack is being processed" {
                update.set_waiting(WaitReason::InputNotFound, &message.replace('…', NEXT), now());
            }
            return self.put("Update", &name, json!(update));
        }
        let failed = match reason {
            "UpdateConflict" => (FailureReason::UpdateConflict, "the stack is locked by stranger on host elsewhere, process 42"),
            _ => (FailureReason::Unknown, "exit status 1"),
        };
        let (began, ended) = (now(), now() + RUN);
        NOW.set(ended);
        update.set_running("arn:aws:ecs:r:1:task/c/0b1c2d3e", "https://console.example/log", None, began);
        let (summary, log) = match &*update.spec.operation.clone().unwrap_or_default() {
            _ if fails => (None, format!("error: {}\n", failed.1)),
            "destroy" => (Some("-1"), log("- world:index:Object: (delete)")),
            _ => (Some("+1"), log("+ world:index:Object: (create)")),
        };
        let (said, log_name) = (update.spec.message.clone(), format!("{name}-log"));
        update.set_complete(fails.then_some((failed.0.as_str(), failed.1)), ended, |status| {
            status.end_time = Some(Time(ended));
            status.message = if fails { Some(failed.1.to_owned()) } else { said };
            let ours = status.driftless.get_or_insert_default();
            ours.log_config_map = Some(log_name.clone());
            ours.summary = summary.map(ToOwned::to_owned);
        });
        self.put("ConfigMap", &log_name, json!({ "metadata": {}, "data": { "0001": log } }));
        self.put("Update", &name, json!(update));
        let failure = fails.then(|| (Some(failed.0), failed.1.to_owned()));
        let project = Some(("app".to_owned(), "yaml".to_owned()));
        let outcome = RunOutcome { started: true, operated: true, project, ..RunOutcome::new(failure, false) };
        self.outcomes.insert(name, outcome);
    }

    fn found<K: DeserializeOwned>(&self, kind: &str, name: &str) -> Found<K> {
        self.get(kind, name).map_or(Found::Missing, |object| Found::Object(Box::new(object)))
    }

    /// A cluster whose API server returns the objects.
    pub fn cluster(&self) -> Cluster {
        let all = self.all.clone();
        let api = service_fn(move |request: http::Request<kube::client::Body>| {
            let answer = answer(&all, request.uri().path());
            async move {
                let missing =
                    json!({ "kind": "Status", "status": "Failure", "message": "no", "reason": "NotFound", "code": 404 });
                let status = if answer.is_some() { 200 } else { 404 };
                let body = Body::from(answer.unwrap_or(missing).to_string());
                Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
            }
        });
        Cluster::of(Client::new(api, "team"), "team")
    }
}

fn answer(all: &BTreeMap<(String, String), Value>, path: &str) -> Option<Value> {
    let (_, resource) = path.split_once("/namespaces/team/")?;
    let (plural, name) = resource.split_once('/').map_or((resource, None), |(plural, name)| (plural, Some(name)));
    let of_kind = |kind: &str| format!("{}s", kind.to_lowercase()) == plural;
    let mut found = all.iter().filter(|((kind, own), _)| of_kind(kind) && name.is_none_or(|name| name == own));
    if name.is_some() {
        return found.next().map(|(_, object)| object.clone());
    }
    Some(json!({ "metadata": {}, "items": found.map(|(_, object)| object).collect::<Vec<_>>() }))
}

fn log(step: &str) -> String {
    format!("    {step}\n        [urn=urn:pulumi:shop::app::world:index:Object::file]\n")
}

fn digest(revision: &str) -> String {
    format!("sha256:{revision:0>64}")
}

impl Facts for Objects {
    type Error = Infallible;

    fn system_namespace(&self) -> &'static str {
        "driftless-system"
    }

    async fn stack(&self, _: &str, name: &str) -> Result<Found<Stack>, Infallible> {
        Ok(self.found("Stack", name))
    }

    async fn update(&self, _: &str, name: &str) -> Result<Found<Update>, Infallible> {
        Ok(self.found("Update", name))
    }

    async fn program(&self, _: &str, name: &str) -> Result<Found<Program>, Infallible> {
        Ok(self.found("Program", name))
    }

    async fn flux(&self, _: &str, kind: &str, _: &str, name: &str) -> Result<Found<Source>, Infallible> {
        let object = self.get(kind, name);
        Ok(object.map_or(Found::Missing, |object| Found::Object(Box::new(Source::from_object(&object)))))
    }

    async fn outcome(&self, update: &Update) -> Result<Option<RunOutcome>, Infallible> {
        Ok(self.outcomes.get(&update.name_any()).cloned())
    }

    async fn fetch(&self, _: &CoreStack, _: &SourceRef, _: &str) -> Result<Option<Fetch>, Infallible> {
        Ok(None)
    }

    async fn tree(
        &self,
        _: &CoreStack,
        _: &SourceRef,
        _: &ArtifactDigest,
        _: Timestamp,
    ) -> Result<Option<TreeState>, Infallible> {
        Ok(Some(TreeState::Stored { project: Project::There, scope: None }))
    }

    async fn guard(&self) -> Result<Guard, Infallible> {
        Ok(Guard::Intact)
    }

    async fn governance(&self, _: &str) -> Result<Governance, Infallible> {
        Ok(Governance::Unread)
    }

    async fn planned(&self, _: &CoreStack, _: &PlanHash) -> Result<Option<PlannedChanges>, Infallible> {
        Ok(None)
    }

    async fn inputs(&self, _: &CoreStack) -> Result<Option<Compared>, Infallible> {
        Ok(None)
    }
}
