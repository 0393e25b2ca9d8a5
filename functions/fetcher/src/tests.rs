//! The fetcher with ports in memory.

use std::{cell::RefCell, collections::BTreeMap};

use driftless_contract::{FetchedArtifact, ObjectKey, to_json};
use driftless_source::Digest;
use driftless_testkit::{CLUSTER, Faults, World};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;

const SYSTEM: &str = "system";
const DAY: SignedDuration = SignedDuration::from_hours(24);

pub(crate) fn settings() -> Settings {
    Settings {
        bucket: "bucket".into(),
        system_namespace: SYSTEM.into(),
        namespaces: WatchNamespaces::All,
        retention: Retention::days(30),
        services: vec!["source-controller.flux-system".into()],
        source_kinds: Vec::new(),
        max_archive_bytes: 1 << 20,
        max_tree_bytes: 1 << 30,
        limits: Limits::default(),
        git: git::Settings {
            allow_local: false,
            private_hosts: PrivateHosts::default(),
            github_api_url: String::new(),
            known_hosts: String::new(),
            ca_certificates: String::new(),
            max_pack_bytes: 1 << 20,
            servers: git::Servers::default(),
        },
    }
}

/// The files of source-controller by path, and what a request for one does.
struct Served<'a> {
    archives: RefCell<BTreeMap<String, Vec<u8>>>,
    meanwhile: Box<dyn Fn() + 'a>,
}

impl Artifacts for Served<'_> {
    async fn get(&self, place: &Place, download: &mut Download) -> Result<(), Refusal> {
        (self.meanwhile)();
        let archive = self.archives.borrow().get(place.path()).cloned().ok_or(Refusal::Gone)?;
        download.begin(None)?;
        download.write(&archive)
    }
}

fn key(api_version: &str, kind: &str, name: &str) -> ObjectKey {
    let (api_version, kind, name) = (api_version.into(), kind.into(), name.into());
    ObjectKey { cluster: CLUSTER.into(), api_version, kind, namespace: "team".into(), name }
}

fn repository() -> ObjectKey {
    key("source.toolkit.fluxcd.io/v1", "GitRepository", "shop")
}

fn insert(world: &World, key: &ObjectKey, mut rest: Value) {
    rest["apiVersion"] = json!(key.api_version);
    rest["kind"] = json!(key.kind);
    rest["metadata"]["namespace"] = json!(key.namespace);
    rest["metadata"]["name"] = json!(key.name);
    world.insert(rest);
}

fn insert_update(world: &World, namespace: &str, digest: &str, complete: bool) {
    let status = if complete { "True" } else { "False" };
    let update = ObjectKey { namespace: namespace.into(), ..key("auto.pulumi.com/v1alpha1", "Update", "u") };
    insert(
        world,
        &update,
        json!({
            "spec": { "driftless": { "tree": { "digest": digest } } },
            "status": { "conditions": [{
                "type": "Complete", "status": status, "reason": "r", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z",
            }] },
        }),
    );
}

fn insert_stack(world: &World, source: Value) {
    let mut spec = source;
    spec["stack"] = json!("dev");
    insert(world, &key("pulumi.com/v1", "Stack", "s"), json!({ "spec": spec }));
}

fn of_flux() -> Value {
    let ObjectKey { api_version, kind, name, .. } = repository();
    json!({ "fluxSource": { "sourceRef": { "apiVersion": api_version, "kind": kind, "name": name } } })
}

/// Makes the source offer an archive with that content. Returns its digest.
fn offer(world: &World, archive: &[u8], file: &str) -> String {
    let (key, digest) = (repository(), Digest::sha256(archive).to_string());
    let path = format!("gitrepository/team/shop/{file}");
    let artifact = json!({
        "digest": digest,
        "lastUpdateTime": "2020-01-01T00:00:00Z",
        "path": path,
        "revision": file,
        "url": format!("http://source-controller.flux-system.svc.cluster.local./{path}"),
    });
    insert(world, &key, json!({ "status": { "artifact": artifact } }));
    digest
}

fn archive(content: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    archive.append_data(&mut header, "Pulumi.yaml", content.as_bytes()).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// Stores a tree under that digest, whatever its content is.
fn store(world: &World, source: &ObjectKey, digest: &str) {
    for part in ["pack", "manifest"] {
        put(world, &format!("{}{part}", keys::tree(source, &digest.into())), vec![1]);
    }
}

fn put(world: &World, key: &str, content: Vec<u8>) {
    world.drive(world.put(key, content)).unwrap().unwrap();
}

fn is_there(world: &World, source: &ObjectKey, digest: &str) -> bool {
    let folder = keys::tree(source, &digest.into());
    let [manifest, pack] = ["manifest", "pack"].map(|part| world.objects().contains_key(&format!("{folder}{part}")));
    assert_eq!(manifest, pack, "half of the tree {digest}");
    manifest
}

fn ask_of(world: &World, served: &Served<'_>, source: &ObjectKey, collect: bool) -> Option<Result<(), Error>> {
    let request = if collect { FetchRequest::collect(source.clone()) } else { FetchRequest::fetch(source.clone(), 0) };
    world.drive(fetcher(world, served, &settings()).handle(&request, world.now(), || world.now()))
}

fn fetcher<'a>(
    world: &'a World,
    artifacts: &'a Served<'a>,
    settings: &'a Settings,
) -> Fetcher<'a, World, World, World, Served<'a>> {
    Fetcher { cluster: world, objects: world, queues: world, artifacts, settings, now: world.now() }
}

fn nothing_served() -> Served<'static> {
    Served { archives: RefCell::default(), meanwhile: Box::new(|| {}) }
}

/// Sends the sweeper's request to delete old trees.
fn collect_of(world: &World, source: &ObjectKey) -> Option<Result<(), Error>> {
    let source = keys::source_of_trees(CLUSTER, &keys::trees(source)).unwrap();
    ask_of(world, &nothing_served(), &source, true)
}

fn collect(world: &World) {
    collect_of(world, &repository()).unwrap().unwrap();
}

fn outcome(world: &World, source: &ObjectKey) -> FetchOutcome {
    world.document(&keys::fetch(source)).unwrap()
}

fn quiet() -> World {
    World::new(0, Faults::NONE)
}

#[test]
fn unused_old_tree_is_deleted_and_with_the_last_the_fetch_record() {
    let world = quiet();
    let trees = ["a", "b", "c"].map(|name| format!("sha256:{name}"));
    for digest in &trees {
        store(&world, &repository(), digest);
    }
    store(&world, &key("pulumi.com/v1", "Program", "shop"), "sha256:p");
    put(&world, &keys::fetch(&repository()), b"{}".to_vec());
    world.advance(DAY * 31 - SignedDuration::from_secs(1));
    collect(&world);
    assert!(trees.iter().all(|digest| is_there(&world, &repository(), digest)));
    world.advance(SignedDuration::from_secs(1));
    store(&world, &repository(), "sha256:young");
    collect(&world);
    assert!(!trees.iter().any(|digest| is_there(&world, &repository(), digest)));
    assert!(is_there(&world, &repository(), "sha256:young") && world.objects().contains_key(&*keys::fetch(&repository())));
    world.advance(DAY * 31);
    collect(&world);
    let left: Vec<_> = world.objects().into_keys().collect();
    assert!(left.iter().all(|key| key.contains("program.shop")) && left.len() == 2, "{left:?}");
}

#[test]
fn tree_named_by_an_update_is_kept_at_any_age() {
    for (namespace, complete) in [("team", false), ("team", true), (SYSTEM, false)] {
        let world = quiet();
        store(&world, &repository(), "sha256:a");
        store(&world, &repository(), "sha256:b");
        insert_update(&world, namespace, "sha256:a", complete);
        world.advance(DAY * 1000);
        collect(&world);
        assert!(is_there(&world, &repository(), "sha256:a"), "{namespace} {complete}");
        assert!(!is_there(&world, &repository(), "sha256:b"), "{namespace} {complete}");
    }
}

#[test]
fn current_and_last_requested_tree_of_a_stack_are_kept() {
    let world = quiet();
    let offered = offer(&world, &archive("offered"), "f");
    for digest in [&offered, "sha256:b", "sha256:c"] {
        store(&world, &repository(), digest);
        world.advance(SignedDuration::from_secs(1));
    }
    insert_stack(&world, of_flux());
    world.advance(DAY * 40);
    collect(&world);
    let there = || [&offered, "sha256:b", "sha256:c"].map(|digest| is_there(&world, &repository(), digest));
    assert_eq!(there(), [true, false, true]);
    // Now the Stack names another source.
    insert_stack(&world, json!({ "programRef": { "name": "shop" } }));
    collect(&world);
    assert_eq!(there(), [false; 3]);
}

#[test]
fn git_revision_of_a_stack_is_the_recorded_fetch() {
    let world = quiet();
    let git = key("pulumi.com/v1", "Stack", "s");
    insert_stack(&world, json!({ "projectRepo": "https://example.com/r", "branch": "main" }));
    for digest in ["sha256:a", "sha256:b", "sha256:c"] {
        store(&world, &git, digest);
        world.advance(SignedDuration::from_secs(1));
    }
    let artifact = Some(FetchedArtifact { revision: "r".into(), digest: "sha256:a".into() });
    let subject = "fingerprint".into();
    let outcome =
        FetchOutcome { version: VERSION, subject, at: world.now(), took_seconds: 0, artifact, failures: 0, failure: None };
    put(&world, &keys::fetch(&git), to_json(&outcome).into_bytes());
    world.advance(DAY * 40);
    collect_of(&world, &git).unwrap().unwrap();
    let there = ["sha256:a", "sha256:b", "sha256:c"].map(|digest| is_there(&world, &git, digest));
    assert_eq!(there, [true, false, true]);
}

#[test]
fn crashed_fetch_leaves_no_terminal_failure_for_a_good_source() {
    for calls in 0.. {
        let (world, content) = (quiet(), archive("x"));
        let digest = offer(&world, &content, "f");
        let failure = Some(FetchFailure { message: "archive is too large".into(), terminal: true });
        let (subject, at) = (digest.clone(), world.now());
        let before = FetchOutcome { version: VERSION, subject, at, took_seconds: 0, artifact: None, failures: 1, failure };
        put(&world, &keys::fetch(&repository()), to_json(&before).into_bytes());
        world.advance(DAY);
        let served =
            Served { archives: RefCell::new([("gitrepository/team/shop/f".into(), content)].into()), ..nothing_served() };
        world.crash_before_call(calls);
        let is_done = ask_of(&world, &served, &repository(), false).is_some();
        let failure = outcome(&world, &repository()).failure;
        let is_stored = world.objects().contains_key(&*keys::tree(&repository(), &digest.as_str().into()).manifest());
        assert!(!is_stored || !failure.is_some_and(|failure| failure.terminal), "after {calls} calls");
        if is_done {
            assert!(is_stored && calls > 6, "it made {calls} calls");
            break;
        }
    }
}

#[test]
fn requested_stored_tree_is_renewed_without_a_fetch() {
    let world = quiet();
    let digest = offer(&world, &archive("x"), "f");
    store(&world, &repository(), &digest);
    store(&world, &repository(), "sha256:old");
    world.advance(DAY * 30);
    ask_of(&world, &nothing_served(), &repository(), false).unwrap().unwrap();
    assert_eq!(outcome(&world, &repository()).failure, None);
    let manifest = format!("{}manifest", keys::tree(&repository(), &digest.as_str().into()));
    let modified = world.drive(world.modified(&manifest)).unwrap().unwrap().unwrap();
    assert!(settings().retention.is_usable(modified, world.now()));
    world.advance(DAY * 30);
    collect(&world);
    assert!(is_there(&world, &repository(), &digest));
    assert!(!is_there(&world, &repository(), "sha256:old"));
}

#[test]
fn next_collection_completes_a_crashed_one() {
    for calls in 0.. {
        let world = quiet();
        store(&world, &repository(), "sha256:a");
        store(&world, &repository(), "sha256:b");
        world.advance(DAY * 40);
        world.crash_before_call(calls);
        if collect_of(&world, &repository()).is_some() {
            assert!(calls > 6, "it made {calls} calls");
            break;
        }
        for digest in ["sha256:a", "sha256:b"] {
            let folder = keys::tree(&repository(), &digest.into());
            let [manifest, pack] = ["manifest", "pack"].map(|part| world.objects().contains_key(&format!("{folder}{part}")));
            assert!(pack || !manifest, "a manifest without its pack, after {calls} calls");
        }
        collect(&world);
        assert!(world.objects().is_empty(), "after {calls} calls: {:?}", world.objects().keys());
    }
}

#[test]
fn pack_without_a_manifest_is_deleted_after_a_day() {
    let world = quiet();
    put(&world, &format!("{}pack", keys::tree(&repository(), &"sha256:a".into())), vec![1]);
    insert_stack(&world, of_flux());
    world.advance(DAY - SignedDuration::from_secs(1));
    collect(&world);
    assert_eq!(world.objects().len(), 1);
    world.advance(SignedDuration::from_secs(1));
    collect(&world);
    assert_eq!(world.objects().len(), 0);
}

#[test]
fn a_tree_without_its_pack_is_stored_anew() {
    let world = quiet();
    let content = archive("x");
    let digest = offer(&world, &content, "f");
    put(&world, &format!("{}manifest", keys::tree(&repository(), &digest.as_str().into())), vec![1]);
    world.advance(DAY * 30);
    let served = Served { archives: RefCell::new([("gitrepository/team/shop/f".into(), content)].into()), ..nothing_served() };
    ask_of(&world, &served, &repository(), false).unwrap().unwrap();
    assert!(is_there(&world, &repository(), &digest));
}

#[test]
fn failed_collection_blocks_no_fetch() {
    let world = quiet();
    store(&world, &repository(), "sha256:a");
    world.advance(DAY * 40);
    world.set_faults(Faults { transient: 1000, ..Faults::NONE });
    collect(&world);
    world.set_faults(Faults::NONE);
    assert!(is_there(&world, &repository(), "sha256:a"));
}

#[test]
fn superseded_artifact_is_read_again_once() {
    let world = quiet();
    let newer = archive("newer");
    offer(&world, &archive("older"), "older");
    let served = Served {
        archives: RefCell::new([("gitrepository/team/shop/newer".into(), newer.clone())].into()),
        meanwhile: Box::new(|| drop(offer(&world, &newer, "newer"))),
    };
    ask_of(&world, &served, &repository(), false).unwrap().unwrap();
    let digest = Digest::sha256(&newer).to_string();
    assert!(is_there(&world, &repository(), &digest));
    assert_eq!((outcome(&world, &repository()).subject, outcome(&world, &repository()).failure), (digest, None));
}

#[test]
fn deleted_artifact_is_a_transient_failure() {
    let world = quiet();
    let digest = offer(&world, &archive("x"), "f");
    ask_of(&world, &nothing_served(), &repository(), false).unwrap().unwrap();
    let FetchOutcome { subject, failure, .. } = outcome(&world, &repository());
    assert_eq!((subject, failure.map(|failure| failure.terminal)), (digest, Some(false)));
}

#[test]
fn content_that_its_digest_does_not_match_is_not_stored() {
    let world = quiet();
    offer(&world, &archive("x"), "f");
    let other = [("gitrepository/team/shop/f".into(), archive("y"))].into();
    let served = Served { archives: RefCell::new(other), ..nothing_served() };
    ask_of(&world, &served, &repository(), false).unwrap().unwrap();
    let failure = outcome(&world, &repository()).failure.unwrap().message;
    assert!(failure.contains("does not match its digest"), "{failure}");
    assert_eq!(world.objects().len(), 1, "nothing but the outcome");
}

fn workspace() -> ObjectKey {
    key("auto.pulumi.com/v1alpha1", "Workspace", "w")
}

fn insert_workspace(world: &World, file: &str, digest: &str) {
    let url = format!("http://source-controller.flux-system.svc.cluster.local./gitrepository/team/shop/{file}");
    insert(world, &workspace(), json!({ "spec": { "flux": { "url": url, "digest": digest } } }));
}

#[test]
fn the_artifact_that_a_workspace_names_is_stored_for_it() {
    let world = quiet();
    let content = archive("x");
    let digest = Digest::sha256(&content).to_string();
    let served = Served { archives: RefCell::new([("gitrepository/team/shop/f".into(), content)].into()), ..nothing_served() };
    insert_workspace(&world, "f", &digest);
    ask_of(&world, &served, &workspace(), false).unwrap().unwrap();
    let FetchOutcome { artifact, failure, .. } = outcome(&world, &workspace());
    assert_eq!((artifact.map(|artifact| artifact.digest), failure), (Some(digest.as_str().into()), None));
    assert!(is_there(&world, &workspace(), &digest));
    let hints = |world: &World| world.sent().iter().filter(|sent| matches!(sent, driftless_testkit::Message::Hint(_))).count();
    assert_eq!(hints(&world), 1, "its look tells who waits");

    let zeros = format!("sha256:{}", "0".repeat(64));
    for (file, digest, words, terminal) in [
        ("gone", digest.as_str(), "which no longer exists; set url and digest", false),
        ("f", &zeros, "does not match its digest", false),
        ("f", "sha256:zz", "spec.flux.digest is \"sha256:zz\": ", true),
    ] {
        let world = quiet();
        insert_workspace(&world, file, digest);
        ask_of(&world, &served, &workspace(), false).unwrap().unwrap();
        let failure = outcome(&world, &workspace()).failure.unwrap();
        assert!(failure.message.contains(words) && failure.terminal == terminal, "{failure:?}");
        assert_eq!(world.objects().len(), 1, "nothing but the outcome");
    }

    // A Workspace and a Stack report what is wrong with their spec themselves.
    let world = quiet();
    insert(&world, &workspace(), json!({ "spec": { "flux": {}, "git": {} } }));
    ask_of(&world, &served, &workspace(), false).unwrap().unwrap();
    assert!(world.objects().is_empty() && world.sent().is_empty());
}

#[test]
fn trees_of_a_workspace_are_kept_until_it_is_deleted() {
    let world = quiet();
    for digest in ["sha256:a", "sha256:b", "sha256:c"] {
        store(&world, &workspace(), digest);
        world.advance(SignedDuration::from_secs(1));
    }
    insert_workspace(&world, "f", "sha256:a");
    let artifact = Some(FetchedArtifact { revision: "r".into(), digest: "sha256:a".into() });
    let subject = "fingerprint".into();
    let outcome =
        FetchOutcome { version: VERSION, subject, at: world.now(), took_seconds: 0, artifact, failures: 0, failure: None };
    put(&world, &keys::fetch(&workspace()), to_json(&outcome).into_bytes());
    insert_update(&world, "team", "sha256:b", false);
    store(&world, &workspace(), "sha256:d");
    world.advance(DAY * 40);
    let there = || ["sha256:a", "sha256:b", "sha256:c", "sha256:d"].map(|digest| is_there(&world, &workspace(), digest));
    collect_of(&world, &workspace()).unwrap().unwrap();
    assert_eq!(there(), [true, true, false, true]);
    insert(&world, &workspace(), json!({ "spec": { "projectInfo": { "name": "a", "runtime": "b" } } }));
    collect_of(&world, &workspace()).unwrap().unwrap();
    assert_eq!(there(), [false, true, false, false]);
}

#[test]
fn a_program_of_another_operators_namespace_keeps_its_status() {
    let world = quiet();
    let program = key("pulumi.com/v1", "Program", "shop");
    insert(
        &world,
        &program,
        json!({ "program": { "resources": {} }, "status": { "artifact": { "url": "theirs", "path": "p", "revision": "1", "lastUpdateTime": "2020-01-01T00:00:00Z" } } }),
    );
    world.label_namespace("team", "false");
    let before = world.cluster();
    ask_of(&world, &nothing_served(), &program, false).unwrap().unwrap();
    assert_eq!(world.cluster(), before);
    assert!(world.objects().is_empty() && world.sent().is_empty());
    world.label_namespace("team", "true");
    ask_of(&world, &nothing_served(), &program, false).unwrap().unwrap();
    assert!(world.object(&program).unwrap()["status"]["artifact"]["url"].as_str().unwrap().starts_with("s3://bucket/"));
}

/// Answers a request that was sent this long ago, with a fetch that takes this long.
fn ask_by(world: &World, sent_ago: SignedDuration, takes: SignedDuration) {
    let served = nothing_served();
    let request = FetchRequest::fetch(repository(), 0);
    let sent = world.now() - sent_ago;
    world.drive(fetcher(world, &served, &settings()).handle(&request, sent, || world.now() + takes)).unwrap().unwrap();
}

#[test]
fn request_that_is_older_than_the_last_answer_is_dropped() {
    let world = quiet();
    let digest = offer(&world, &archive("one"), "one.tar.gz");
    store(&world, &repository(), &digest);
    let second = SignedDuration::from_secs(1);
    ask_by(&world, SignedDuration::ZERO, SignedDuration::ZERO);
    let first = outcome(&world, &repository());
    world.advance(SignedDuration::from_mins(1));
    ask_by(&world, second * 70, SignedDuration::ZERO);
    assert_eq!(outcome(&world, &repository()), first);
    ask_by(&world, second * 50, SignedDuration::ZERO);
    assert!(outcome(&world, &repository()).at > first.at);
}

#[test]
fn slow_source_rests_until_it_offers_something_else() {
    let world = quiet();
    let digest = offer(&world, &archive("one"), "one.tar.gz");
    store(&world, &repository(), &digest);
    ask_by(&world, SignedDuration::ZERO, SignedDuration::from_secs(60));
    let slow = outcome(&world, &repository());
    assert_eq!((slow.took_seconds, slow.rests_until()), (60, world.now() + SignedDuration::from_mins(10)));
    world.advance(SignedDuration::from_mins(9));
    ask_by(&world, SignedDuration::ZERO, SignedDuration::ZERO);
    assert_eq!(outcome(&world, &repository()), slow);
    let other = offer(&world, &archive("two"), "two.tar.gz");
    store(&world, &repository(), &other);
    ask_by(&world, SignedDuration::ZERO, SignedDuration::ZERO);
    assert_eq!(outcome(&world, &repository()).subject, other);
}

#[test]
fn unused_kind_is_answered_and_malformed_reference_ignored() {
    let world = quiet();
    let served = nothing_served();
    let gadget = key("nobody.example.com/v1", "Gadget", "g");
    ask_of(&world, &served, &gadget, false).unwrap().unwrap();
    let FetchOutcome { subject, failure, .. } = outcome(&world, &gadget);
    let failure = failure.unwrap();
    assert!(subject.is_empty() && failure.terminal && failure.message.contains("nobody.example.com/Gadget"), "{failure:?}");
    let before = world.objects().len();
    for wrong in [key("x/v1", &"k".repeat(2000), "g"), key("x/v1", "Stack", "s"), key("x/v1", "Gadget", "../g")] {
        ask_of(&world, &served, &wrong, false).unwrap().unwrap();
    }
    assert_eq!(world.objects().len(), before);
}

#[test]
fn program_that_cannot_be_read_is_answered() {
    let (world, program) = (quiet(), key("pulumi.com/v1", "Program", "p"));
    insert(&world, &program, json!({ "program": 7 }));
    ask_of(&world, &nothing_served(), &program, false).unwrap().unwrap();
    let FetchOutcome { subject, failure, .. } = outcome(&world, &program);
    assert!(subject.is_empty() && failure.is_some_and(|failure| failure.terminal));
}
