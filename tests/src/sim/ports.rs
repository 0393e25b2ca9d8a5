use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Display,
    fs::File,
    future::{pending, poll_fn},
    rc::Rc,
    task::Poll,
};

use driftless_api::{Stack, names};
use driftless_aws::{Link, Objects, Queues, Started, TaskPage, TaskState, Tasks};
use driftless_contract::{FetchRequest, Hint, Launch, LaunchHint, ObjectKey, RunHint, TaskHint, keys, to_json};
use driftless_core::{Admissions, MAX_FAILURES, Stack as CoreStack, TaskShape};
use driftless_kubernetes::{
    Cluster, Endpoint, Error as KubernetesError, EventMarks, EventReason, EventType, LABELS_KEPT, Object, Page, Selector,
};
use driftless_testkit::{CLUSTER, Faults, World};
use fetcher::{Artifacts, Download, Place, Refusal};
use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt as _, core::DynamicObject};
use secrecy::SecretString;
use serde_json::Value;

use super::{
    Breakage, FaultKind, approvals,
    chances::{Chances, Trouble},
    ledger::Ledger,
    objects::{QUIET, STACK_KIND, key_in, list, secret},
    runner,
};

/// ECS may not know a younger task.
const NEW_TASK: SignedDuration = SignedDuration::from_secs(30);
/// The number of steps of a slowed write, to see what happens in between.
const SLOW: u32 = 8;

/// The ports as one invocation sees them. Before every call the others may continue; the ledger
/// records every effect.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) world: World,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) chances: Rc<Chances>,
    pub(super) breakage: Option<Breakage>,
    pub(super) function: &'static str,
    /// The invocation's name, for the trace.
    pub(super) who: String,
    /// The namespace of its message; empty if it has none.
    pub(super) subject: String,
}

impl Wire {
    async fn call<T, E: Display>(&self, what: impl FnOnce() -> String, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.call_with(Faults::NONE, what, call).await
    }

    /// A call during which the world has `faults`, besides those of the simulation.
    async fn call_with<T, E: Display>(
        &self,
        faults: Faults,
        what: impl FnOnce() -> String,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut waited = false;
        poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        let fault = self.ledger.borrow_mut().count_call();
        let fault = fault.or_else(|| self.strikes(Trouble::Transient).then_some(FaultKind::Transient));
        let fault = fault.or_else(|| self.strikes(Trouble::LostAnswer).then_some(FaultKind::LostAnswer));
        match fault {
            Some(FaultKind::CrashBefore) => self.crash().await,
            Some(FaultKind::Transient) => self.world.set_faults(Faults { transient: 1000, ..faults }),
            Some(FaultKind::LostAnswer) => self.world.set_faults(Faults { lost_answer: 1000, ..faults }),
            _ => self.world.set_faults(faults),
        }
        let answer = call.await;
        self.world.set_faults(Faults::NONE);
        match fault {
            Some(FaultKind::CrashAfter) => self.crash().await,
            Some(FaultKind::Transient | FaultKind::LostAnswer) => {
                self.ledger.borrow_mut().stats.injected += u64::from(answer.is_err());
            }
            _ => {}
        }
        self.ledger.borrow_mut().tell(|| {
            let error = answer.as_ref().err().map(|error| format!(" -> {error}")).unwrap_or_default();
            format!("{}: {}{error}", self.who, what())
        });
        answer
    }

    /// Ends the invocation: the machine removes it.
    async fn crash(&self) {
        self.ledger.borrow_mut().crash();
        pending::<()>().await;
    }

    fn strikes(&self, trouble: Trouble) -> bool {
        self.chances.strikes(self.function, trouble)
    }

    /// The outcome at that key, if it is the key of one.
    fn recorded(&self, key: &str) -> Option<Vec<u8>> {
        let calm = self.world.calm();
        key.ends_with("/outcome").then(|| calm.drive(Objects::get(&calm, key))?.ok()?).flatten()
    }

    /// The key of an object, as the bucket uses it.
    fn key(&self, key: &str) -> String {
        let one_for_all = self.is_broken(Breakage::Seals) && key.starts_with("sealed/");
        if one_for_all { format!("sealed/{CLUSTER}/{QUIET}/all") } else { key.into() }
    }

    fn is_broken(&self, breakage: Breakage) -> bool {
        self.breakage == Some(breakage)
    }
}

fn named<K: Object>(verb: &str, object: &K) -> String {
    format!("{verb} {} {}", K::kind(&()), object.meta().name.as_deref().unwrap_or_default())
}

/// The Lease of the admissions without the turns of the namespaces.
fn without_turns<K: Object>(mut lease: K) -> K {
    let annotation = lease.meta_mut().annotations.as_mut().and_then(|all| all.get_mut(keys::ADMISSIONS_ANNOTATION));
    if let Some(written) = annotation
        && let Ok(mut all) = serde_json::from_str::<Admissions>(written)
    {
        all.served.clear();
        *written = to_json(&all);
    }
    lease
}

/// A Stack with a changed `lastUpdate`.
fn with_last_update<K: Object>(stack: K, change: impl FnOnce(i64, &mut Value)) -> K {
    let mut value = serde_json::to_value(&stack).unwrap_or_default();
    let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
    if value["status"]["lastUpdate"].is_object() {
        change(generation, &mut value["status"]["lastUpdate"]);
    }
    serde_json::from_value(value).unwrap_or(stack)
}

/// A Stack with the outputs that the API server has.
fn with_first_outputs<K: Object>(stack: K, world: &World) -> K {
    let mut value = serde_json::to_value(&stack).unwrap_or_default();
    let namespace = stack.namespace().unwrap_or_default();
    let stored = world.object(&key_in(&namespace, STACK_KIND, &stack.name_any()));
    if let Some(outputs) = stored.map(|stored| stored["status"]["outputs"].clone()).filter(Value::is_object) {
        value["status"]["outputs"] = outputs;
    }
    serde_json::from_value(value).unwrap_or(stack)
}

/// A Stack whose plan is approved, if it was shown.
fn approved<K: Object>(stack: K) -> K {
    let mut value = serde_json::to_value(&stack).unwrap_or_default();
    let plan = &value["status"]["driftless"]["plan"];
    if plan["offered"] == true {
        value["metadata"]["annotations"][names::APPROVE] = plan["hash"].clone();
    }
    serde_json::from_value(value).unwrap_or(stack)
}

/// A Stack without the field of its JSON in `parent`.
fn without<K: Object>(stack: K, parent: &str, field: &str) -> K {
    let mut value = serde_json::to_value(&stack).unwrap_or_default();
    let removed = value.pointer_mut(parent).and_then(Value::as_object_mut).and_then(|fields| fields.remove(field));
    removed.and_then(|_| serde_json::from_value(value).ok()).unwrap_or(stack)
}

/// A spec of a run whose request for a plan has the digest of `text`.
fn with_binding(spec: Vec<u8>, text: &str) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&spec) else { return spec };
    if value["plan"].is_object() {
        value["plan"]["binding"] = approvals::hash(&[text]).to_string().into();
    }
    value.to_string().into_bytes()
}

/// A Stack that is deleted at once, if its TTL has ended.
fn without_warning<K: Object>(stack: K, now: Timestamp) -> K {
    let mut value = serde_json::to_value(&stack).unwrap_or_default();
    let ttl = serde_json::from_value::<Stack>(value.clone()).ok().and_then(|stack| CoreStack::from(&stack).ttl);
    let expiry = &mut value["status"]["driftless"]["expiry"];
    if expiry.is_object() && ttl.is_some_and(|ttl| ttl.ends <= now) {
        expiry["time"] = now.strftime("%FT%TZ").to_string().into();
    }
    serde_json::from_value(value).unwrap_or(stack)
}

/// An outcome without the time at which its run started, if the runner reported nothing.
fn without_begin(outcome: Vec<u8>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&outcome) else { return outcome };
    if value["verdict"]["kind"] != "succeeded" && value["verdict"]["message"] != runner::FAILURE {
        value["startedAt"] = Value::Null;
    }
    value.to_string().into_bytes()
}

impl Cluster for Wire {
    fn endpoint(&self) -> Endpoint {
        self.world.endpoint()
    }

    async fn get<K: Object>(&self, namespace: &str, name: &str) -> driftless_kubernetes::Result<Option<K>> {
        let anywhere = self.is_broken(Breakage::Secrets) && K::kind(&()) == "Secret";
        let namespace = if anywhere { QUIET } else { namespace };
        let found = self.call(|| format!("get {} {name}", K::kind(&())), Cluster::get(&self.world, namespace, name)).await;
        match self.breakage {
            Some(Breakage::Turns) if name == keys::ADMISSIONS => Ok(found?.map(without_turns)),
            Some(Breakage::Approvals) if K::kind(&()) == "Stack" => Ok(found?.map(approved)),
            Some(Breakage::Retries) if K::kind(&()) == "Stack" => {
                Ok(found?.map(|stack| without(stack, "/spec/driftless", "retries")))
            }
            Some(Breakage::Spent) if K::kind(&()) == "Stack" => {
                Ok(found?.map(|stack| without(stack, "/status/driftless/plan", "spent")))
            }
            _ => found,
        }
    }

    async fn get_dynamic(&self, key: &ObjectKey) -> driftless_kubernetes::Result<Option<DynamicObject>> {
        let found = self.call(|| format!("get {} {}", key.kind, key.name), self.world.get_dynamic(key)).await;
        let shipped = || approvals::shipped().find(|object| object["kind"] == *key.kind);
        match self.is_broken(Breakage::Policies).then(shipped).flatten() {
            Some(shipped) => Ok(serde_json::from_value(shipped).ok()),
            None => found,
        }
    }

    async fn of_cluster(&self, api_version: &str, plural: &str) -> driftless_kubernetes::Result<Vec<DynamicObject>> {
        self.call(|| format!("list {plural}"), self.world.of_cluster(api_version, plural)).await
    }

    async fn page<K: Object>(
        &self,
        namespace: Option<&str>,
        selector: Selector<'_>,
        from: Option<&str>,
    ) -> driftless_kubernetes::Result<Page<K>> {
        if self.is_broken(Breakage::Names) && K::kind(&()) == "Update" && self.function == "fetcher" {
            return Ok(Page { objects: Vec::new(), next: None });
        }
        let what = || format!("list {} {selector:?} from {from:?}", K::kind(&()));
        self.call(what, self.world.page(namespace, selector, from)).await
    }

    async fn watch_label(&self, namespace: &str) -> driftless_kubernetes::Result<Option<Option<String>>> {
        // Like the client of an instance.
        let key = (self.function, namespace.to_owned());
        let now = self.world.now();
        let kept = self.ledger.borrow().labels.get(&key).filter(|(read, _)| now < *read + LABELS_KEPT).cloned();
        if let Some((_, label)) = kept {
            return Ok(Some(label));
        }
        let label = self.call(|| format!("label of {namespace}"), self.world.watch_label(namespace)).await?;
        if let Some(label) = &label {
            self.ledger.borrow_mut().labels.insert(key, (self.world.now(), label.clone()));
        }
        Ok(label)
    }

    fn forget_label(&self, namespace: &str) {
        self.ledger.borrow_mut().labels.remove(&(self.function, namespace.to_owned()));
    }

    async fn watch_labels(&self) -> driftless_kubernetes::Result<BTreeMap<String, String>> {
        self.call(|| "labels of namespaces".into(), self.world.watch_labels()).await
    }

    async fn create<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        match self.call(|| named("create", object), self.world.create(object)).await {
            Err(KubernetesError::Conflict { .. }) if self.is_broken(Breakage::Claims) && K::kind(&()) == "Lease" => {
                Ok(object.clone())
            }
            created => created,
        }
    }

    async fn replace<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let (what, mut object) = (|| named("replace", object), object.clone());
        let overwrites = self.is_broken(Breakage::Admissions) && object.meta().name.as_deref() == Some(keys::ADMISSIONS);
        if overwrites {
            // A slow API server: others read and write in between.
            for _ in 0..SLOW {
                self.call(|| "slow".into(), async { Ok::<_, KubernetesError>(()) }).await?;
            }
        }
        let replace = async {
            if overwrites {
                object.meta_mut().resource_version = self.world.current_version(&object);
            }
            self.world.replace(&object).await
        };
        self.call(what, replace).await
    }

    async fn patch_metadata<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let removes = || object.meta().annotations.as_ref().and_then(|all| all.get(names::APPROVE)).is_some_and(String::is_empty);
        if self.is_broken(Breakage::Spent) && removes() {
            return Ok(object.clone());
        }
        self.call(|| named("patch", object), self.world.patch_metadata(object)).await
    }

    async fn replace_status<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let (what, mut object) = (|| named("replace status of", object), object.clone());
        if K::kind(&()) == "Stack" {
            object = match self.breakage {
                Some(Breakage::Generations) => with_last_update(object, |now, last| last["generation"] = now.into()),
                Some(Breakage::Warnings) => without_warning(object, self.world.now()),
                Some(Breakage::Outputs) => with_first_outputs(object, &self.world),
                Some(Breakage::Failures) => with_last_update(object, |_, last| {
                    if last["failures"].as_i64() > Some(0) {
                        last["failures"] = MAX_FAILURES.into();
                    }
                }),
                _ => object,
            };
        }
        let overwrites = self.is_broken(Breakage::Versions) && K::kind(&()) == "Stack";
        let replace = async {
            if overwrites {
                object.meta_mut().resource_version = self.world.current_version(&object);
            }
            self.world.replace_status(&object).await
        };
        self.call(what, replace).await
    }

    async fn apply<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        self.call(|| named("apply", object), self.world.apply(object)).await
    }

    async fn delete<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<()> {
        self.call(|| named("delete", object), Cluster::delete(&self.world, object)).await
    }

    async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audience: Option<&str>,
        seconds: u32,
    ) -> driftless_kubernetes::Result<(SecretString, Timestamp)> {
        let token = self.world.service_account_token(namespace, name, audience, seconds);
        self.call(|| format!("token of {namespace}/{name}"), token).await
    }

    async fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: EventReason,
        note: &str,
        marks: EventMarks<'_>,
        at: Timestamp,
    ) {
        let namespace = regarding.meta().namespace.as_deref().unwrap_or_default();
        let secret = Some(namespace)
            .filter(|_| self.is_broken(Breakage::Leaks))
            .and_then(|namespace| secret(&self.world.calm(), namespace));
        let note = format!("{note}{}", secret.unwrap_or_default());
        self.world.event(regarding, event_type, reason, &note, marks, at).await;
    }
}

impl Objects for Wire {
    async fn get(&self, key: &str) -> driftless_aws::Result<Option<Vec<u8>>> {
        let key = &self.key(key);
        self.call(|| format!("get {key}"), Objects::get(&self.world, key)).await
    }

    async fn get_range(&self, key: &str, offset: u64, size: u64) -> driftless_aws::Result<Option<Vec<u8>>> {
        self.call(|| format!("get a part of {key}"), self.world.get_range(key, offset, size)).await
    }

    async fn modified(&self, key: &str) -> driftless_aws::Result<Option<Timestamp>> {
        self.call(|| format!("age of {key}"), self.world.modified(key)).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> driftless_aws::Result<Vec<(String, Timestamp)>> {
        self.call(|| format!("list {prefix}"), self.world.list_after(prefix, after)).await
    }

    async fn size(&self, prefix: &str, least: u64) -> driftless_aws::Result<u64> {
        self.call(|| format!("size of {prefix}"), self.world.size(prefix, least)).await
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> driftless_aws::Result<()> {
        let key = &self.key(key);
        let content = match self.breakage {
            Some(Breakage::Digests) if key.ends_with("in/spec") => with_binding(content, &self.who),
            Some(Breakage::Bindings) if key.ends_with("in/spec") => with_binding(content, ""),
            _ => content,
        };
        let put = async {
            self.ledger.borrow_mut().object_written(&self.subject, key, &content);
            if key.ends_with("in/identity") && self.world.written_at(key).is_some() {
                self.ledger.borrow_mut().stats.renewals += 1;
                if self.is_broken(Breakage::Tokens) {
                    return Ok(());
                }
            }
            self.world.put(key, content).await
        };
        self.call(|| format!("put {key}"), put).await
    }

    async fn put_sealed(&self, key: &str, content: Vec<u8>) -> driftless_aws::Result<()> {
        self.put(key, content).await
    }

    async fn put_file(&self, key: &str, file: &File) -> driftless_aws::Result<()> {
        self.call(|| format!("put {key}"), self.world.put_file(key, file)).await
    }

    async fn put_new(&self, key: &str, content: Vec<u8>) -> driftless_aws::Result<bool> {
        let file = key.rsplit('/').next();
        let overwrite = file == Some("outcome") && self.is_broken(Breakage::Outcome);
        let forgets_begin = file == Some("outcome") && self.is_broken(Breakage::Began);
        let content = if forgets_begin { without_begin(content) } else { content };
        let put = async {
            self.ledger.borrow_mut().object_written(&self.subject, key, &content);
            let before = self.recorded(key);
            let new = if overwrite {
                self.world.put(key, content).await.map(|()| true)
            } else {
                self.world.put_new(key, content).await
            };
            self.ledger.borrow_mut().outcome_written(key, before.as_deref(), self.recorded(key).as_deref());
            if new? {
                // The answer to a client that retried after a lost answer.
                Ok(!self.strikes(Trouble::Forget))
            } else {
                Ok(file == Some("owner") && self.is_broken(Breakage::Owner))
            }
        };
        self.call(|| format!("put if new {key}"), put).await
    }

    async fn copy(&self, from: &str, to: &str) -> driftless_aws::Result<bool> {
        self.call(|| format!("copy {to}"), self.world.copy(from, to)).await
    }

    async fn link(&self, key: &str, now: Timestamp) -> driftless_aws::Result<Link> {
        self.world.link(key, now).await
    }

    async fn delete(&self, key: &str) -> driftless_aws::Result<()> {
        let key = &self.key(key);
        let deletion = async {
            self.ledger.borrow_mut().object_deleted(&self.subject, key, || list(&self.world.calm(), None));
            Objects::delete(&self.world, key).await
        };
        self.call(|| format!("delete {key}"), deletion).await
    }
}

impl Queues for Wire {
    async fn hint(&self, hint: &Hint, delay_seconds: u16) -> driftless_aws::Result<()> {
        self.call(|| format!("hint {} in {delay_seconds} s", hint.object), self.world.hint(hint, delay_seconds)).await
    }

    async fn hints(&self, hints: &[Hint]) -> driftless_aws::Result<Vec<usize>> {
        let objects = || hints.iter().map(|hint| hint.object.to_string()).collect::<Vec<_>>().join(", ");
        let send = async {
            // Single messages of a batch may be refused.
            let (refused, taken): (Vec<_>, Vec<_>) = (0..hints.len()).partition(|_| self.strikes(Trouble::Transient));
            let taken: Vec<_> = taken.into_iter().map(|i| hints[i].clone()).collect();
            self.world.hints(&taken).await.map(|_| refused)
        };
        self.call(|| format!("hint {}", objects()), send).await
    }

    async fn launch(&self, hint: &LaunchHint, delay_seconds: u16) -> driftless_aws::Result<()> {
        let delay_seconds = if self.is_broken(Breakage::Delays) { 900 } else { delay_seconds };
        self.call(|| format!("launch {} in {delay_seconds} s", hint.update), self.world.launch(hint, delay_seconds)).await
    }

    async fn run(&self, hint: &RunHint, delay_seconds: u16) -> driftless_aws::Result<()> {
        self.call(|| format!("record {} in {delay_seconds} s", hint.update), Queues::run(&self.world, hint, delay_seconds)).await
    }

    async fn task(&self, hint: &TaskHint) -> driftless_aws::Result<()> {
        self.call(|| format!("record {}", keys::task_id(&hint.task)), self.world.task(hint)).await
    }

    async fn fetch(&self, request: &FetchRequest, deduplication: &str) -> driftless_aws::Result<()> {
        self.call(|| format!("fetch {}", request.source), self.world.fetch(request, deduplication)).await
    }
}

impl Tasks for Wire {
    async fn definition(&self, shape: &TaskShape) -> driftless_aws::Result<String> {
        self.call(|| "task definition".into(), self.world.definition(shape)).await
    }

    async fn run(&self, launch: &Launch) -> driftless_aws::Result<Started> {
        self.ledger.borrow_mut().see_launch(launch);
        let mut launch = launch.clone();
        if self.is_broken(Breakage::Attempts) {
            launch.attempt = 0;
        } else if self.strikes(Trouble::Forget) {
            launch.attempt = self.chances.dice(self.function, "attempt").below(u32::MAX);
        }
        let faults = Faults { full: if self.strikes(Trouble::Full) { 1000 } else { 0 }, ..Faults::NONE };
        self.call_with(faults, || format!("run task for {}", launch.run.update), Tasks::run(&self.world, &launch)).await
    }

    async fn state(&self, arn: &str) -> driftless_aws::Result<TaskState> {
        let started = self.ledger.borrow().task_started(arn);
        let is_new = started.is_none_or(|at| self.world.now().duration_since(at) < NEW_TASK);
        let state =
            async { if is_new && self.strikes(Trouble::Forget) { Ok(TaskState::Missing) } else { self.world.state(arn).await } };
        self.call(|| format!("state of {}", keys::task_id(arn)), state).await
    }

    async fn live(&self, from: Option<&str>) -> driftless_aws::Result<TaskPage> {
        self.call(|| "list tasks".into(), self.world.live(from)).await
    }

    fn log_url(&self, arn: &str) -> String {
        self.world.log_url(arn)
    }

    async fn stop(&self, arn: &str, reason: &str) -> driftless_aws::Result<()> {
        let stop = async {
            self.ledger.borrow_mut().task_stopped(&self.subject, arn);
            let deaf = self.is_broken(Breakage::Stops) && self.function == "recorder";
            if deaf { Ok(()) } else { self.world.stop(arn, reason).await }
        };
        self.call(|| format!("stop {}: {reason}", keys::task_id(arn)), stop).await
    }
}

impl Artifacts for Wire {
    async fn get(&self, place: &Place, download: &mut Download) -> Result<(), Refusal> {
        let path = place.path();
        let archive = async {
            self.ledger.borrow_mut().artifact_fetched(&self.subject, path);
            if self.strikes(Trouble::Fail) {
                return Err(Refusal::Unreachable("a fault of the simulation".into()));
            }
            if self.ledger.borrow().refuses {
                return Err(Refusal::TooLarge { limit: 0 });
            }
            self.ledger.borrow().archives.get(path).cloned().ok_or(Refusal::Gone)
        };
        let archive = self.call(|| format!("get artifact {path}"), archive).await?;
        download.begin(None)?;
        download.write(&archive)
    }
}
