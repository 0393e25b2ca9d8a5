//! The ports of one invocation: earlier answers from a tape, then one call of the world.

use std::{
    any::Any,
    cell::RefCell,
    collections::BTreeMap,
    fmt::{Debug, Write as _},
    fs::File,
    future::pending,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    rc::Rc,
};

use driftless_aws::{Link, Objects, Queues, Result, Started, TaskPage, TaskState, Tasks};
use driftless_contract::{FetchRequest, Hint, Launch, LaunchHint, ObjectKey, RunHint, RunMessage, TaskHint, keys};
use driftless_core::TaskShape;
use driftless_kubernetes::{
    Cluster, Endpoint, Error as KubernetesError, EventMarks, EventReason, EventType, Object, Page, Selector,
};
use driftless_testkit::{Message, World};
use jiff::{SignedDuration, Timestamp};
use kube::core::DynamicObject;
use secrecy::SecretString;

use super::Breakage;

/// A message with a longer delay is a timer, which the sweep replaces.
const TIMER_SECONDS: u16 = 5;
/// Parts of keys in the bucket whose objects no step of a scenario changes, so that their calls
/// always have the same answer.
const CONSTANT: [&str; 6] = ["trees/", "keys/", "sealed/", "inputs/", "architectures/", "fetches/"];
/// Keys that affect no decision: the locks of dead runs, the resources that the last run left, and
/// the task's copy of the tree. They are neither written nor found.
const IGNORED: [&str; 9] =
    ["locks/", "resources/", "/in/manifest", "/in/pack", "/out/lock", "/out/log/", "/out/live-log", "audit/", "plans/"];

/// A longer answer is not printed.
const SHOWN: usize = 120;

/// The answers of an invocation so far, in order, and its next call.
#[derive(Clone, Default)]
pub(super) struct Tape {
    answers: Vec<Rc<dyn Any>>,
    /// Hash of the answers.
    pub(super) digest: u64,
    /// Its next call. Empty if it has ended.
    pub(super) next: String,
}

/// One run of an invocation's handler: over the tape, then this many calls.
#[derive(Default)]
pub(super) struct Run {
    pub(super) tape: Tape,
    /// The number of answers that it used.
    pub(super) position: usize,
    /// Calls that others could notice, or whose answer others could change.
    pub(super) calls: u32,
    /// Whether it stopped before a call.
    pub(super) stopped: bool,
    /// ECS has forgotten the client token of a task that it started.
    pub(super) forgets: bool,
    /// Messages that the run sent.
    pub(super) sent: Vec<Message>,
    /// The call that was made.
    pub(super) made: String,
    pub(super) violation: Option<String>,
}

/// The constants of all steps.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) breakage: Option<Breakage>,
    /// Kinds whose objects no step of the scenario changes.
    pub(super) constant_kinds: &'static [&'static str],
}

/// See the module.
#[derive(Clone)]
pub(super) struct Probe {
    pub(super) world: World,
    pub(super) run: Rc<RefCell<Run>>,
    pub(super) rules: Rc<Rules>,
}

impl Probe {
    /// A call that commutes with all others: its answer never changes, and it changes nothing that
    /// another call reads.
    async fn free<T: Clone + Debug + 'static>(&self, call: impl Future<Output = T>) -> T {
        if let Some(answer) = self.replay() {
            return answer;
        }
        if self.run.borrow().stopped {
            // Another of the handler's concurrent calls comes first.
            return pending().await;
        }
        let answer = call.await;
        self.record(&answer);
        answer
    }

    /// A call that is a step of the model.
    async fn step<T: Clone + Debug + 'static>(&self, what: impl FnOnce() -> String, call: impl Future<Output = T>) -> T {
        if let Some(answer) = self.replay() {
            return answer;
        }
        if !self.may_go_on(what) {
            return pending().await;
        }
        let answer = call.await;
        let shown = self.record(&answer);
        if shown.len() < SHOWN {
            _ = write!(self.run.borrow_mut().made, " -> {shown}");
        }
        answer
    }

    async fn call<T: Clone + Debug + 'static>(
        &self,
        is_free: bool,
        what: impl FnOnce() -> String,
        call: impl Future<Output = T>,
    ) -> T {
        if is_free { self.free(call).await } else { self.step(what, call).await }
    }

    /// Returns whether a step may be made now; else the invocation stops before it.
    fn may_go_on(&self, what: impl FnOnce() -> String) -> bool {
        let mut run = self.run.borrow_mut();
        if run.stopped {
            return false;
        }
        if run.calls == 0 {
            (run.tape.next, run.stopped) = (what(), true);
            return false;
        }
        run.calls -= 1;
        run.made = what();
        true
    }

    fn replay<T: Clone + 'static>(&self) -> Option<T> {
        let mut run = self.run.borrow_mut();
        let answer = run.tape.answers.get(run.position)?.downcast_ref::<T>().cloned();
        run.position += 1;
        if answer.is_none() {
            run.violation = Some("model: a handler made another call when it was run again".into());
        }
        answer
    }

    /// Adds an answer to the tape. Returns it as readable text.
    fn record<T: Clone + Debug + 'static>(&self, answer: &T) -> String {
        let shown = format!("{answer:?}");
        let mut hasher = DefaultHasher::new();
        let mut run = self.run.borrow_mut();
        (run.tape.digest, &shown).hash(&mut hasher);
        run.tape.digest = hasher.finish();
        run.tape.answers.push(Rc::new(answer.clone()));
        run.position += 1;
        shown
    }

    fn violate(&self, violation: String) {
        self.run.borrow_mut().violation.get_or_insert(violation);
    }

    fn is_broken(&self, breakage: Breakage) -> bool {
        self.rules.breakage == Some(breakage)
    }

    fn is_constant_kind(&self, kind: &str) -> bool {
        ["Namespace", "ServiceAccount", "Secret", "ConfigMap", "GitRepository"].contains(&kind)
            || self.rules.constant_kinds.contains(&kind)
    }

    /// A call about an object of the cluster.
    async fn about<T: Clone + Debug + 'static>(
        &self,
        verb: &str,
        kind: &str,
        name: &str,
        call: impl Future<Output = driftless_kubernetes::Result<T>>,
    ) -> driftless_kubernetes::Result<T> {
        let is_constant = self.is_constant_kind(kind);
        if is_constant && !["get", "list", "token of"].contains(&verb) {
            self.violate(format!("model: {verb} {kind} {name}, which nothing changes"));
        }
        self.call(is_constant, || format!("{verb} {kind} {name}"), call).await
    }

    async fn on<K: Object>(
        &self,
        verb: &str,
        object: &K,
        call: impl Future<Output = driftless_kubernetes::Result<K>>,
    ) -> driftless_kubernetes::Result<K> {
        self.about(verb, &K::kind(&()), object.meta().name.as_deref().unwrap_or_default(), call).await
    }

    /// Sends a message, unless it is a timer. Its hops are not counted, because they would make
    /// every state different.
    async fn send(&self, message: Message, delay_seconds: u16) -> Result<()> {
        if delay_seconds > TIMER_SECONDS {
            return Ok(());
        }
        let what = || format!("send {}", name(&message));
        let send = async {
            self.run.borrow_mut().sent.push(message.clone());
            Ok(())
        };
        self.step(what, send).await
    }

    /// A write of an object of the bucket.
    async fn write<T: Clone + Debug + 'static>(
        &self,
        verb: &str,
        key: &str,
        write: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let checked = async {
            let before = self.content(key).filter(|_| is_constant(key));
            let answer = write.await;
            if is_constant(key) && self.content(key) != before {
                self.violate(format!("model: {verb} {key}, which nothing changes"));
            }
            answer
        };
        self.call(is_constant(key), || format!("{verb} {key}"), checked).await
    }

    fn content(&self, key: &str) -> Option<Vec<u8>> {
        self.world.drive(Objects::get(&self.world, key))?.ok()?
    }

    /// The outcome at that key, if it is the key of one.
    fn outcome(&self, key: &str) -> Option<Vec<u8>> {
        key.ends_with("/outcome").then(|| self.content(key)).flatten()
    }
}

fn is_constant(key: &str) -> bool {
    CONSTANT.iter().any(|prefix| key.starts_with(prefix))
}

fn is_ignored(key: &str) -> bool {
    IGNORED.iter().any(|part| key.contains(part))
}

impl Cluster for Probe {
    fn endpoint(&self) -> Endpoint {
        self.world.endpoint()
    }

    async fn get<K: Object>(&self, namespace: &str, name: &str) -> driftless_kubernetes::Result<Option<K>> {
        self.about("get", &K::kind(&()), name, Cluster::get(&self.world, namespace, name)).await
    }

    async fn get_dynamic(&self, key: &ObjectKey) -> driftless_kubernetes::Result<Option<DynamicObject>> {
        self.about("get", &key.kind, &key.name, self.world.get_dynamic(key)).await
    }

    async fn of_cluster(&self, api_version: &str, plural: &str) -> driftless_kubernetes::Result<Vec<DynamicObject>> {
        self.about("list", plural, "", self.world.of_cluster(api_version, plural)).await
    }

    async fn page<K: Object>(
        &self,
        namespace: Option<&str>,
        selector: Selector<'_>,
        from: Option<&str>,
    ) -> driftless_kubernetes::Result<Page<K>> {
        self.about("list", &K::kind(&()), &format!("{selector:?}"), self.world.page(namespace, selector, from)).await
    }

    async fn watch_label(&self, namespace: &str) -> driftless_kubernetes::Result<Option<Option<String>>> {
        self.about("get", "Namespace", namespace, self.world.watch_label(namespace)).await
    }

    async fn watch_labels(&self) -> driftless_kubernetes::Result<BTreeMap<String, String>> {
        self.about("list", "Namespace", "", self.world.watch_labels()).await
    }

    async fn create<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let (kind, broken) = (K::kind(&()), self.rules.breakage);
        let create = async {
            match self.world.create(object).await {
                Err(KubernetesError::Conflict { .. }) if broken == Some(Breakage::Claim) && kind == "Lease" => Ok(object.clone()),
                Err(KubernetesError::Conflict { .. }) if broken == Some(Breakage::Creation) && kind == "Update" => {
                    self.world.insert(serde_json::to_value(object).unwrap_or_default());
                    Ok(object.clone())
                }
                created => created,
            }
        };
        self.on("create", object, create).await
    }

    async fn replace<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let replace = async {
            let mut object = object.clone();
            if self.is_broken(Breakage::Admissions) && object.meta().name.as_deref() == Some(keys::ADMISSIONS) {
                object.meta_mut().resource_version = self.world.current_version(&object);
            }
            self.world.replace(&object).await
        };
        self.on("replace", object, replace).await
    }

    async fn patch_metadata<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        self.on("patch", object, self.world.patch_metadata(object)).await
    }

    async fn replace_status<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        self.on("replace status of", object, self.world.replace_status(object)).await
    }

    async fn apply<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        self.on("apply", object, self.world.apply(object)).await
    }

    async fn delete<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<()> {
        let (kind, name) = (K::kind(&()), object.meta().name.as_deref().unwrap_or_default());
        let delete = async {
            let kept = self.is_broken(Breakage::Release) && kind == "Lease";
            if kept { Ok(()) } else { Cluster::delete(&self.world, object).await }
        };
        self.about("delete", &kind, name, delete).await
    }

    async fn service_account_token(
        &self,
        _: &str,
        name: &str,
        _: Option<&str>,
        seconds: u32,
    ) -> driftless_kubernetes::Result<(SecretString, Timestamp)> {
        let expires = self.world.now() + SignedDuration::from_secs(seconds.into());
        self.about("token of", "ServiceAccount", name, async { Ok(("token".into(), expires)) }).await
    }

    async fn event<K: Object>(&self, _: &K, _: EventType, _: EventReason, _: &str, _: EventMarks<'_>, _: Timestamp) {}
}

impl Objects for Probe {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        if is_ignored(key) {
            return Ok(None);
        }
        self.call(is_constant(key), || format!("get {key}"), Objects::get(&self.world, key)).await
    }

    async fn get_range(&self, key: &str, offset: u64, size: u64) -> Result<Option<Vec<u8>>> {
        if is_ignored(key) {
            return Ok(None);
        }
        self.call(is_constant(key), || format!("get {key}"), self.world.get_range(key, offset, size)).await
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>> {
        if is_ignored(key) {
            return Ok(None);
        }
        self.call(is_constant(key), || format!("age of {key}"), self.world.modified(key)).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<(String, Timestamp)>> {
        self.call(is_constant(prefix), || format!("list {prefix}"), self.world.list_after(prefix, after)).await
    }

    async fn size(&self, prefix: &str, least: u64) -> Result<u64> {
        if is_ignored(prefix) {
            return Ok(0);
        }
        self.call(is_constant(prefix), || format!("size of {prefix}"), self.world.size(prefix, least)).await
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        if is_ignored(key) {
            return Ok(());
        }
        self.write("put", key, self.world.put(key, content)).await
    }

    async fn put_sealed(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.put(key, content).await
    }

    async fn put_file(&self, key: &str, file: &File) -> Result<()> {
        self.write("put", key, self.world.put_file(key, file)).await
    }

    async fn put_new(&self, key: &str, content: Vec<u8>) -> Result<bool> {
        if is_ignored(key) {
            return Ok(true);
        }
        let put = async {
            let before = self.outcome(key);
            let overwrites = self.is_broken(Breakage::Outcome) && key.ends_with("/outcome");
            let content = if self.is_broken(Breakage::Began) { without_begin(key, content) } else { content };
            let is_new = if overwrites {
                self.world.put(key, content).await.map(|()| true)
            } else {
                self.world.put_new(key, content).await
            };
            if before.is_some() && self.outcome(key) != before {
                self.violate(format!("outcome: {key} is written again"));
            }
            if self.is_broken(Breakage::Owner) && key.ends_with("/owner") { Ok(true) } else { is_new }
        };
        self.write("put if new", key, put).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<bool> {
        if is_ignored(to) {
            return Ok(true);
        }
        self.step(|| format!("copy {to}"), self.world.copy(from, to)).await
    }

    async fn link(&self, key: &str, now: Timestamp) -> Result<Link> {
        self.world.link(key, now).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        if is_ignored(key) {
            return Ok(());
        }
        self.write("delete", key, Objects::delete(&self.world, key)).await
    }
}

/// An outcome like that of a run that never started.
fn without_begin(key: &str, content: Vec<u8>) -> Vec<u8> {
    match serde_json::from_slice::<serde_json::Value>(&content) {
        Ok(mut outcome) if key.ends_with("/outcome") && outcome["verdict"]["kind"] != "succeeded" => {
            outcome["startedAt"] = serde_json::Value::Null;
            outcome["operated"] = false.into();
            outcome.to_string().into_bytes()
        }
        _ => content,
    }
}

impl Queues for Probe {
    async fn hint(&self, hint: &Hint, delay_seconds: u16) -> Result<()> {
        self.send(Message::Hint(Hint { hops: 0, ..hint.clone() }), delay_seconds).await
    }

    async fn hints(&self, hints: &[Hint]) -> Result<Vec<usize>> {
        for hint in hints {
            self.hint(hint, 0).await?;
        }
        Ok(Vec::new())
    }

    async fn launch(&self, hint: &LaunchHint, delay_seconds: u16) -> Result<()> {
        self.send(Message::Launch(LaunchHint { hops: 0, ..hint.clone() }), delay_seconds).await
    }

    async fn run(&self, hint: &RunHint, delay_seconds: u16) -> Result<()> {
        self.send(Message::Run(RunMessage::Hint(RunHint { hops: 0, ..hint.clone() })), delay_seconds).await
    }

    async fn task(&self, hint: &TaskHint) -> Result<()> {
        self.send(Message::Run(RunMessage::Live { task: hint.task.clone() }), 0).await
    }

    /// Every tree is stored.
    async fn fetch(&self, request: &FetchRequest, _: &str) -> Result<()> {
        self.violate(format!("model: {} is to be fetched", request.source));
        Ok(())
    }
}

impl Tasks for Probe {
    async fn definition(&self, shape: &TaskShape) -> Result<String> {
        self.free(self.world.definition(shape)).await
    }

    async fn run(&self, launch: &Launch) -> Result<Started> {
        let run = async {
            let mut launch = launch.clone();
            if self.run.borrow().forgets || self.is_broken(Breakage::Owner) {
                // Another client token, which is a function of the state: of the answers so far.
                launch.attempt += 1000 + u32::try_from(self.world.live_tasks().len()).unwrap_or_default();
            }
            Tasks::run(&self.world, &launch).await
        };
        self.step(|| format!("run task for {}", launch.run.update.name), run).await
    }

    async fn state(&self, arn: &str) -> Result<TaskState> {
        self.step(|| format!("state of {}", keys::task_id(arn)), self.world.state(arn)).await
    }

    async fn live(&self, from: Option<&str>) -> Result<TaskPage> {
        self.step(|| "list tasks".into(), self.world.live(from)).await
    }

    fn log_url(&self, arn: &str) -> String {
        self.world.log_url(arn)
    }

    async fn stop(&self, arn: &str, reason: &str) -> Result<()> {
        self.step(|| format!("stop {}: {reason}", keys::task_id(arn)), self.world.stop(arn, reason)).await
    }
}

/// The subject of a message, in a word or two.
pub(super) fn name(message: &Message) -> String {
    match message {
        Message::Hint(hint) => format!("reconciler for {} {}", hint.object.kind, hint.object.name),
        Message::Launch(hint) => format!("launcher for {} {}", hint.update.kind, hint.update.name),
        Message::Run(RunMessage::Hint(hint)) => format!("recorder for {}", hint.update.name),
        Message::Run(RunMessage::Objects(keys)) => format!("recorder for {}", keys.join(", ")),
        Message::Run(RunMessage::Task { task: arn }) => format!("recorder for the end of {}", keys::task_id(arn)),
        Message::Run(RunMessage::Live { task: arn }) => format!("recorder for the life of {}", keys::task_id(arn)),
        Message::Run(RunMessage::Test) => "recorder for nothing".into(),
        Message::Fetch(request) => format!("fetcher for {}", request.source.name),
    }
}
