//! A tenant's objects, from the API server to the decision, and back to the status.

use driftless_api::{Stack, StackSpec, StackStatus};
use driftless_aws::{Error, Objects as _};
use driftless_contract::{Hint, LaunchHint, ObjectKey, RunLimits, RunMessage, VERSION};
use driftless_core::{
    self as core, Architecture, DefaultSize, DriftVerdict, Limits, PodFields, Readiness, Retention, WatchNamespaces, decide,
    violations,
};
use driftless_testkit::{CLUSTER, Faults, Message, World};
use jiff::{SignedDuration, Timestamp};
use recorder::Due;
use serde_json::{Value, json};

/// The maximum number of messages that are handled after the objects.
const MESSAGES: usize = 30;
const NAMESPACE: &str = "team";
const SYSTEM: &str = "driftless";
const RETENTION: Retention = Retention { keep: SignedDuration::from_hours(48), grace: SignedDuration::from_hours(24) };

/// An object of the namespace.
pub fn key(api_version: &str, kind: &str, name: &str) -> ObjectKey {
    let [cluster, api_version, kind, namespace, name] = [CLUSTER, api_version, kind, NAMESPACE, name].map(str::to_owned);
    ObjectKey { cluster, api_version, kind, namespace, name }
}

/// The input is a list of objects of one namespace, and of the bucket's documents,
/// `{"key":"fetches/…","document":{…}}`. Every object is hinted. No plan breaks an invariant, and
/// no object fails a message: only a document may.
pub fn check(input: &[u8]) {
    let Ok(Value::Array(items)) = serde_json::from_slice(input) else { return };
    let world = World::new(0, Faults::NONE);
    let mut keys = Vec::new();
    for item in items.into_iter().take(12) {
        if let (Some(key), document @ Value::Object(_)) = (item["key"].as_str(), &item["document"]) {
            drive(&world, world.put(key, document.to_string().into_bytes())).expect("a world without faults");
        } else if let Some((key, object)) = accepted(item) {
            keys.push(key);
            world.insert(object);
        }
    }
    for key in keys.iter().filter(|key| key.kind == "Stack") {
        planned(&world, key);
    }
    for key in keys {
        reconciled(&world, &Hint::new(key.clone()));
        if key.kind == "Workspace" || key.kind == "Update" {
            launched(&world, &LaunchHint { version: VERSION, update: key, hops: 0 });
        }
    }
    for message in std::iter::from_fn(|| world.receive()).take(MESSAGES) {
        match message {
            Message::Hint(hint) => reconciled(&world, &hint),
            Message::Launch(hint) => launched(&world, &hint),
            Message::Run(RunMessage::Hint(hint)) => {
                let settings = recorder::Settings {
                    system_namespace: SYSTEM.into(),
                    task_role_id: "AROA".into(),
                    start_seconds: 900,
                    cache_entry_bytes: 1 << 20,
                    cache_namespace_bytes: 1 << 22,
                };
                let (world, settings, now) = (&world, &settings, world.now());
                let recorder = recorder::Recorder { cluster: world, objects: world, queues: world, tasks: world, settings, now };
                match drive(world, recorder.handle(&hint, Due::Outcome)) {
                    Ok(()) | Err(recorder::Error::Aws(Error::Permanent { .. })) => {}
                    Err(error) => panic!("the recorder, {}: {error}", hint.update),
                }
            }
            Message::Run(_) | Message::Fetch(_) => {}
        }
    }
}

/// The object as the API server accepts it, with a valid name, uid and generation.
fn accepted(mut object: Value) -> Option<(ObjectKey, Value)> {
    let name = |value: &Value| {
        let name = value.as_str().filter(|name| (1..=63).contains(&name.len()))?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        is_name.then(|| name.to_owned())
    };
    let key = key(object["apiVersion"].as_str()?, object["kind"].as_str()?, &name(&object["metadata"]["name"])?);
    let metadata = object["metadata"].as_object_mut()?;
    metadata.insert("namespace".into(), NAMESPACE.into());
    if metadata.get("uid").is_none_or(|uid| name(uid).is_none()) {
        metadata.remove("uid");
    }
    if metadata.get("generation").is_none_or(|generation| generation.as_i64().is_none_or(|generation| generation <= 0)) {
        metadata.remove("generation");
    }
    metadata.remove("resourceVersion");
    Some((key, object))
}

fn drive<T>(world: &World, process: impl Future<Output = T>) -> T {
    world.drive(process).expect("a world without faults")
}

fn reconciler(world: &World) -> reconciler::Reconciler<'_, World, World, World> {
    let settings = reconciler::Settings {
        system_namespace: SYSTEM,
        namespaces: WatchNamespaces::All,
        retention: RETENTION,
        resync_seconds: 600,
        min_resync_seconds: 60,
        pod_fields: PodFields::Ignore,
    };
    reconciler::Reconciler { cluster: world, objects: world, queues: world, settings, now: world.now() }
}

fn planned(world: &World, key: &ObjectKey) {
    let stack = world.object(key).and_then(|object| serde_json::from_value::<Stack>(object).ok());
    let Some(stack) = stack else { return };
    let now = world.now();
    let Ok(snapshot) = drive(world, reconciler(world).snapshot(CLUSTER, &stack)) else { return };
    let plan = decide(&snapshot, now);
    assert_eq!(violations(&snapshot, &plan, now), Vec::<String>::new(), "{plan:#?} of {snapshot:#?}");
    assert_eq!(decide(&snapshot, now), plan, "the same facts, another plan");
    round_trip(&plan.status, now);
}

fn reconciled(world: &World, hint: &Hint) {
    match drive(world, reconciler(world).handle(hint)) {
        Ok(()) | Err(reconciler::Error::Aws(Error::Permanent { .. })) => {}
        Err(error) => panic!("the reconciler, {}: {error}", hint.object),
    }
}

fn launched(world: &World, hint: &LaunchHint) {
    let settings = launcher::Settings {
        system_namespace: SYSTEM.into(),
        namespaces: WatchNamespaces::All,
        task_role_id: "AROA".into(),
        images: launcher::Images { by_runtime: std::collections::BTreeMap::new(), default: "pulumi".into() },
        default_architecture: Architecture::Amd64,
        pod_fields: PodFields::Ignore,
        default_size: DefaultSize::default(),
        spot: true,
        limits: Limits { runs: Some(2), runs_per_namespace: Some(1) },
        run_limits: RunLimits { silence_seconds: Some(900), max_seconds: None },
        token_seconds: 3600,
        cache_entry_bytes: Some(1 << 20),
        fresh_key: vec![7; 32].into(),
    };
    let (settings, now) = (&settings, world.now());
    let launcher = launcher::Launcher { cluster: world, objects: world, queues: world, tasks: world, settings, now };
    match drive(world, launcher.handle(hint)) {
        Ok(()) | Err(launcher::Error::Aws(Error::Permanent { .. })) => {}
        Err(error) => panic!("the launcher, {}: {error}", hint.update),
    }
}

/// The input is the status of a Stack, which may come from another operator or any user.
pub fn status(input: &[u8]) {
    if let Ok(status) = serde_json::from_slice::<StackStatus>(input) {
        round_trip(&(&status).into(), Timestamp::UNIX_EPOCH);
    }
}

/// Checks that a status reads back as written, in whole seconds and with messages of bounded
/// length.
fn round_trip(status: &core::StackStatus, now: Timestamp) {
    let mut stack = Stack::new("shop", StackSpec::default());
    stack.set_status(status, now);
    let written = json!(stack);
    let read: Stack = serde_json::from_value(written.clone()).expect("a Stack");
    let read = core::StackStatus::from(&read.status.unwrap_or_default());
    assert_eq!(read, as_kept(status.clone()));
    let mut again = Stack::new("shop", StackSpec::default());
    again.set_status(&read, now);
    assert_eq!(json!(again), written);
}

/// The status as Kubernetes stores it.
fn as_kept(mut status: core::StackStatus) -> core::StackStatus {
    let last = status.last_update.as_mut().and_then(|last| last.last_resync_time.as_mut());
    let expiry = status.expiry.as_mut().map(|expiry| &mut expiry.at);
    let proposal = status.plan.proposal.as_mut();
    let (expires, made) = proposal.map_or((None, None), |proposal| {
        let made = proposal.plan.as_mut().map(|plan| &mut plan.made_at).or(proposal.failed_at.as_mut());
        (proposal.expires.as_mut(), made)
    });
    for time in
        [last, status.next_reconciliation.as_mut(), status.drift.checked.as_mut(), expiry, expires, made].into_iter().flatten()
    {
        let before = i64::from(time.subsec_nanosecond() < 0);
        *time = Timestamp::from_second(time.as_second() - before).expect("it is one already");
    }
    let readiness = match &mut status.readiness {
        Some(Readiness::Reconciling { message, .. } | Readiness::Stalled { message, .. }) => Some(message),
        Some(Readiness::Ready) | None => None,
    };
    let verdict = match &mut status.drift.verdict {
        Some(DriftVerdict::Unknown(message)) => Some(message),
        _ => None,
    };
    let note = status.plan.proposal.as_mut().map(|proposal| &mut proposal.note);
    for message in [readiness, verdict, note].into_iter().flatten() {
        if message.len() > 8 << 10 {
            message.truncate(message.floor_char_boundary((8 << 10) - 3));
            message.push('…');
        }
    }
    status
}
