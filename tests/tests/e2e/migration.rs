//! `docs/migration.md`, command by command, with objects as the Pulumi Kubernetes Operator (PKO)
//! leaves them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, VERSION, to_json};
use driftless_tests::{
    guide::Guide,
    scenario::{Handle, Namespace, RUN, Source, commit, is_ready, output},
    world::{
        cluster::{self, AUDIT_LOG, apply_yaml},
        git::Repository,
        ready,
    },
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::world::{Alone, alone, aws, looked, quiet, swept_until};

const PAGE: &str = include_str!("../../../docs/migration.md");
/// PKO's namespace.
const PKO: &str = "migration-pko";
/// The variable that the template's parameter of that name sets.
const WATCH_NAMESPACES: &str = "WATCH_NAMESPACES";
const FENCED: &str = "this namespace is handed over to Driftless";
const FINALIZER: &str = "finalizer.stack.pulumi.com";
/// The Update that PKO started and did not complete.
const UNFINISHED: &str = "half-19a1b2c3d4f";
/// The number of sweeps before the hand-over.
const SWEEPS: usize = 3;
const AUTO: &str = "auto.pulumi.com/v1alpha1";

#[tokio::test]
async fn a_namespace_is_handed_over_and_back_without_another_run() -> Result<()> {
    let (world, alone) = alone().await?;
    world.control.set(WATCH_NAMESPACES, "labelled").await?;
    let team = world.foreign_namespace("migration").await?;
    let repository = world.git.create(&team.name).await?;
    let first = repository.commit("one", &[("Pulumi.yaml", &project(&team, "one")?)]).await?;
    let backend = PathBuf::from(team.state()?).join(".pulumi/stacks/app");
    for stack in ["shop", "old"] {
        pulumi_up(&team, &project(&team, "one")?, stack).await?;
    }
    leave_as_pko(&team, &repository, &first).await?;
    install_pko(&world).await?;
    let guide = guide(&world, &team)?;

    what_is_there(&guide).await?;
    for block in 0..3 {
        guide.run("Install Driftless beside PKO", block).await?;
    }
    guide.run("Fence PKO off", 0).await?;
    let (objects, from) = (objects(&team).await?, audit_size(&world)?);
    nobody_writes(&team, &alone, from).await?;
    ensure!(self::objects(&team).await? == objects, "an object changed");
    as_pko(&world, &team).await?;

    let of_pko = async || -> Result<_> {
        let state = [fs::read(backend.join("shop.json"))?, fs::read(backend.join("old.json"))?];
        Ok((state, [settled(&team, "shop").await?, settled(&team, "old").await?, settled(&team, "hello").await?]))
    };
    let before = of_pko().await?;
    hand_over(&guide, &team).await?;
    let (after, recorded) = of_pko().await?;
    ensure!(after == before.0, "the hand-over changed the state in the backend");
    assert_eq!(recorded, before.1, "the hand-over changed what is recorded");

    a_push_is_run_once(&team, &repository).await?;
    guide.run("Hand over a namespace", 8).await?;
    for kind in ["statefulsets", "services"] {
        ensure!(kubectl(&world, &["get", kind, "-n", &team.name, "-o", "name"]).await?.is_empty(), "{kind} are left");
    }
    what_pko_made_is_destroyed(&team).await?;
    world.control.set(WATCH_NAMESPACES, "all").await?;
    hand_back(&guide, &team, &alone).await?;

    for block in 0..3 {
        guide.run("Remove PKO", block).await?;
    }
    guide.all_were_run()?;
    kubectl(&world, &["label", "namespace", &team.name, "driftless.dev/watch=true", "--overwrite"]).await?;
    team.clear().await
}

fn guide(world: &Handle, team: &Namespace<'_>) -> Result<Guide> {
    let before = std::env::temp_dir().join(format!("driftless-updates-before-{}", std::process::id()));
    Guide::read(
        PAGE,
        Path::new(world.get("WORLD_TOOLS")?),
        &[
            ("KUBECONFIG", world.get("KUBECONFIG")?),
            ("NAMESPACE", &team.name),
            ("PKO_NAMESPACE", PKO),
            ("BEFORE", &before.display().to_string()),
        ],
    )
}

/// The project of the repository.
fn project(team: &Namespace<'_>, content: &str) -> Result<String> {
    Ok(format!("name: app\nruntime: yaml\n{}", team.program("${pulumi.stack}.txt", content, "")?))
}

/// Runs `pulumi up` like PKO's workspace in its pod.
async fn pulumi_up(team: &Namespace<'_>, project: &str, stack: &str) -> Result<()> {
    let home = tempfile::tempdir()?;
    fs::write(home.path().join("Pulumi.yaml"), project)?;
    let backend = format!("file://{}", team.state()?);
    for arguments in [&["stack", "select", "--create", stack][..], &["up", "--yes", "--skip-preview"]] {
        team.world.pulumi(home.path(), &backend, arguments).await?;
    }
    Ok(())
}

/// Five Stacks: two of git and one of a Program that PKO has run, one with a live run of PKO, and
/// one that is being deleted.
async fn leave_as_pko(team: &Namespace<'_>, repository: &Repository, commit: &str) -> Result<()> {
    team.apply_program("app", &team.program("${pulumi.stack}.txt", "one", "")?).await?;
    let artifact = json!({
        "path": format!("programs/{}/app/1.tar.gz", team.name), "revision": "1", "digest": "sha256:00", "size": 1,
        "url": format!("http://pulumi-kubernetes-operator.{PKO}/programs/{}/app/1", team.name),
        "lastUpdateTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({ "observedGeneration": 1, "artifact": artifact });
    apply_as_pko(team, "pulumi.com/v1", "Program", "app", &json!({}), &status).await?;

    let git = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    for name in ["shop", "old"] {
        team.apply_stack_as(name, name, "{}", git, "  destroyOnFinalize: true\n").await?;
    }
    for name in ["hello", "half", "going"] {
        team.apply_stack_as(name, name, "{}", Source::Program("app"), "").await?;
    }
    for (name, commit) in [("shop", commit), ("old", commit), ("hello", "1")] {
        workspace(team, name).await?;
        let update = &format!("{name}-19a1b2c3d4e");
        let outputs = format!("{update}-stack-outputs");
        self::update(team, name, update, &json!({ "observedGeneration": 1, "outputs": outputs, "conditions": ended() })).await?;
        outputs_secret(team, update, &outputs).await?;
        let last = json!({
            "generation": 1, "name": update, "type": "up", "state": "succeeded", "lastAttemptedCommit": commit,
            "lastSuccessfulCommit": commit, "lastResyncTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({
            "observedGeneration": 1, "lastUpdate": last, "outputs": { "content": "one", "size": 3 },
            "projectInfo": { "name": "app", "runtime": "yaml" },
            "conditions": [condition("Ready", "True", "ProcessingCompleted", "the stack has been processed and is up to date")],
        });
        apply_as_pko(team, "pulumi.com/v1", "Stack", name, &json!({ "finalizers": [FINALIZER] }), &status).await?;
    }
    workspace(team, "half").await?;
    let begun = ["Progressing", "Failed", "Complete"]
        .map(|kind| condition(kind, if kind == "Progressing" { "True" } else { "False" }, "Progressing", ""));
    update(team, "half", UNFINISHED, &json!({ "observedGeneration": 1, "conditions": begun })).await?;
    let processing = json!([
        condition("Ready", "False", "NotReadyInProgress", "reconciliation is in progress"),
        condition("Reconciling", "True", "StackProcessing", "stack is being processed"),
    ]);
    let status = json!({
        "observedGeneration": 1, "conditions": processing, "currentUpdate": { "generation": 1, "name": UNFINISHED, "commit": "1" },
    });
    apply_as_pko(team, "pulumi.com/v1", "Stack", "half", &json!({ "finalizers": [FINALIZER] }), &status).await?;
    apply_as_pko(team, "pulumi.com/v1", "Stack", "going", &json!({ "finalizers": [FINALIZER] }), &json!({})).await?;
    kubectl(team.world, &["delete", "stack", "going", "-n", &team.name, "--wait=false"]).await.map(drop)
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let at = "2026-01-01T00:00:00Z";
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at })
}

/// The conditions of a successful Update.
fn ended() -> Value {
    json!([
        condition("Progressing", "False", "Complete", ""),
        condition("Failed", "False", "UpdateSucceeded", ""),
        condition("Complete", "True", "Updated", ""),
    ])
}

/// The owner references and labels of a Stack's Workspace.
async fn owner(team: &Namespace<'_>, kind: &str, name: &str, controls: bool) -> Result<Value> {
    let api_version = if kind == "Stack" { "pulumi.com/v1" } else { AUTO };
    let uid = team.objects(api_version, kind)?.get(name).await?.uid().context("a uid")?;
    let owner = json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid });
    Ok(driftless_core::merge(
        owner,
        &if controls { json!({ "controller": true }) } else { json!({ "blockOwnerDeletion": true }) },
    ))
}

/// A Stack's Workspace in PKO's form.
async fn workspace(team: &Namespace<'_>, name: &str) -> Result<()> {
    let labels = json!({ "pulumi.com/component": "stack", "pulumi.com/stack-name": name });
    let metadata = json!({ "labels": labels, "ownerReferences": [owner(team, "Stack", name, true).await?] });
    let spec = json!({
        "flux": { "url": format!("http://pulumi-kubernetes-operator.{PKO}/programs/1"), "digest": "sha256:00" },
        "stacks": [{ "name": name, "create": true }], "serviceAccountName": "default",
    });
    let address = format!("{name}-workspace.{}:50051", team.name);
    let status = json!({
        "observedGeneration": 1, "address": address, "pulumiVersion": "3.200.0",
        "conditions": [condition("Ready", "True", "Succeeded", "")],
    });
    apply_object(team, AUTO, "Workspace", name, &json!({ "metadata": metadata, "spec": spec }), &status).await?;

    let labels = json!({ "auto.pulumi.com/component": "workspace", "auto.pulumi.com/workspace-name": name });
    let metadata = json!({ "labels": labels, "ownerReferences": [owner(team, "Workspace", name, true).await?] });
    let name = format!("{name}-workspace");
    let pod =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "pulumi", "image": "pulumi/pulumi" }] } });
    let spec = json!({ "selector": { "matchLabels": labels }, "serviceName": name, "template": pod });
    apply_object(team, "apps/v1", "StatefulSet", &name, &json!({ "metadata": metadata, "spec": spec }), &Value::Null).await?;
    let spec = json!({ "clusterIP": "None", "selector": labels, "ports": [{ "name": "grpc", "port": 50051 }] });
    apply_object(team, "v1", "Service", &name, &json!({ "metadata": metadata, "spec": spec }), &Value::Null).await
}

async fn update(team: &Namespace<'_>, stack: &str, name: &str, status: &Value) -> Result<()> {
    let owners = [owner(team, "Workspace", stack, true).await?, owner(team, "Stack", stack, false).await?];
    let labels = json!({ "pulumi.com/component": "stack", "pulumi.com/stack-name": stack });
    let metadata = json!({ "labels": labels, "ownerReferences": owners, "finalizers": [FINALIZER] });
    let spec = json!({
        "workspaceName": stack, "stackName": stack, "type": "up", "ttlAfterCompleted": "100000h0m0s", "message": "Initial stack update",
    });
    apply_object(team, AUTO, "Update", name, &json!({ "metadata": metadata, "spec": spec }), status).await
}

async fn outputs_secret(team: &Namespace<'_>, update: &str, name: &str) -> Result<()> {
    let labels = json!({ "auto.pulumi.com/component": "update", "auto.pulumi.com/update-name": update });
    let metadata = json!({
        "labels": labels, "annotations": { "pulumi.com/secrets": "[]" }, "ownerReferences": [owner(team, "Update", update, true).await?],
    });
    let object = json!({ "metadata": metadata, "immutable": true, "stringData": { "content": "\"one\"", "size": "3" } });
    apply_object(team, "v1", "Secret", name, &object, &Value::Null).await
}

/// An object of PKO's: metadata and status of one that a user created.
async fn apply_as_pko(
    team: &Namespace<'_>,
    api_version: &str,
    kind: &str,
    name: &str,
    metadata: &Value,
    status: &Value,
) -> Result<()> {
    let api = api(team, api_version, kind);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let manager = PatchParams { field_manager: Some("pulumi-kubernetes-operator".into()), ..PatchParams::default() };
    api.patch(name, &manager, &patch).await?;
    apply_status(&api, api_version, kind, name, status).await
}

/// An object that PKO creates, with its status.
async fn apply_object(
    team: &Namespace<'_>,
    api_version: &str,
    kind: &str,
    name: &str,
    object: &Value,
    status: &Value,
) -> Result<()> {
    let api = api(team, api_version, kind);
    let head = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name } });
    let object = driftless_core::merge(head, object);
    api.patch(name, &PatchParams::apply("pulumi-kubernetes-operator"), &Patch::Apply(&object))
        .await
        .with_context(|| object.to_string())?;
    if status.is_null() { Ok(()) } else { apply_status(&api, api_version, kind, name, status).await }
}

async fn apply_status(api: &Api<DynamicObject>, api_version: &str, kind: &str, name: &str, status: &Value) -> Result<()> {
    let manager = format!("pulumi-kubernetes-operator/{}-status", kind.to_lowercase());
    let patch = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name }, "status": status });
    api.patch_status(name, &PatchParams::apply(&manager).force(), &Patch::Apply(&patch))
        .await
        .with_context(|| patch.to_string())?;
    Ok(())
}

fn api(team: &Namespace<'_>, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(team.world.client.clone(), &team.name, &resource)
}

/// PKO's namespace, and its rights.
async fn install_pko(world: &Handle) -> Result<()> {
    let labels = "labels: { app.kubernetes.io/name: pulumi-kubernetes-operator }";
    let pods = "{ control-plane: controller-manager }";
    apply_yaml(
        &world.client,
        &format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{ name: {PKO} }}\n\
             ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: controller-manager, namespace: {PKO} }}\n\
             ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{ name: migration-pko, {labels} }}\n\
             rules: [{{ apiGroups: [pulumi.com, auto.pulumi.com], resources: ['*'], verbs: ['*'] }}]\n\
             ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{ name: migration-pko, {labels} }}\n\
             roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: migration-pko }}\n\
             subjects: [{{ kind: ServiceAccount, name: controller-manager, namespace: {PKO} }}]\n\
             ---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: controller-manager, namespace: {PKO} }}\n\
             spec: {{ replicas: 1, selector: {{ matchLabels: {pods} }}, template: {{ metadata: {{ labels: {pods} }}, \
             spec: {{ serviceAccountName: controller-manager, containers: [{{ name: manager, image: pulumi/pulumi-kubernetes-operator }}] \
             }} }} }}\n"
        ),
    )
    .await
}

/// The output of `kubectl` for the administrator of the world.
pub async fn kubectl(world: &Handle, arguments: &[&str]) -> Result<String> {
    let output = Command::new(Path::new(world.get("WORLD_TOOLS")?).join("kubectl"))
        .args(arguments)
        .env("KUBECONFIG", world.get("KUBECONFIG")?)
        .output()
        .await?;
    ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// A write of PKO's that records a Stack.
async fn as_pko(world: &Handle, team: &Namespace<'_>) -> Result<String> {
    let account = format!("--as=system:serviceaccount:{PKO}:controller-manager");
    let patch = ["patch", "stack", "hello", "-n", &team.name, "--subresource=status", "--type=merge", "-p"];
    kubectl(world, &[&[account.as_str()], &patch[..], &[r#"{"status":{"observedGeneration":1}}"#]].concat()).await
}

async fn what_is_there(guide: &Guide) -> Result<()> {
    let all = guide.run("List what PKO manages", 0).await?;
    ensure!(["stack.pulumi.com/shop", "program.pulumi.com/app", UNFINISHED].iter().all(|name| all.contains(name)), "{all}");
    Ok(())
}

/// Makes every function handle everything, by each sweep and by messages, and checks that none has
/// written since the audit log had that size.
async fn nobody_writes(team: &Namespace<'_>, alone: &Alone, from: u64) -> Result<()> {
    let world = team.world;
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    let send = async |queue: &str, body: String, group: Option<&str>| -> Result<()> {
        let url = sqs.get_queue_url().queue_name(format!("driftless-{queue}")).send().await?.queue_url;
        let message = sqs.send_message().set_queue_url(url).message_body(&body).set_message_group_id(group.map(Into::into));
        message.set_message_deduplication_id(group.map(|group| format!("{group}{from}{body}"))).send().await?;
        Ok(())
    };
    let key = |api_version: &str, kind: &str, name: &str| {
        let [cluster, api_version, kind, namespace, name] =
            [cluster::NAME, api_version, kind, &team.name, name].map(ToOwned::to_owned);
        ObjectKey { cluster, api_version, kind, namespace, name }
    };
    for sweep in 0..SWEEPS {
        for (api_version, kind, name) in [
            ("pulumi.com/v1", "Stack", "half"),
            ("pulumi.com/v1", "Stack", "hello"),
            ("pulumi.com/v1", "Stack", "going"),
            ("pulumi.com/v1", "Program", "app"),
            (AUTO, "Update", UNFINISHED),
            (AUTO, "Workspace", "half"),
        ] {
            let update = key(api_version, kind, name);
            send("hints", to_json(&Hint::new(update.clone())), None).await?;
            if kind != "Program" {
                send("launches", to_json(&LaunchHint { version: VERSION, update, hops: 0 }), None).await?;
            }
        }
        let source = key("pulumi.com/v1", "Program", "app");
        let hops = u8::try_from(sweep)?;
        send("sources.fifo", to_json(&FetchRequest::fetch(source, hops)), Some("migration")).await?;
        quiet(world, alone).await?;
    }
    let calls = audit(world, from)?;
    for function in ["reconciler", "launcher", "fetcher"] {
        let looked =
            |call: &&Call| call.user == function && call.verb == "get" && call.object == format!("namespaces/{}", team.name);
        ensure!(calls.iter().filter(looked).count() >= SWEEPS, "the {function} did not look whether the namespace is ours");
    }
    let writes = |call: &&Call| call.namespace == team.name && !["get", "list", "watch"].contains(&call.verb.as_str());
    let written: Vec<_> = calls.iter().filter(writes).collect();
    ensure!(written.is_empty(), "{written:?}");
    Ok(())
}

/// A call of one of Driftless's functions.
#[derive(Debug)]
struct Call {
    user: String,
    verb: String,
    namespace: String,
    /// Its resource and name.
    object: String,
}

fn audit_size(world: &Handle) -> Result<u64> {
    Ok(fs::metadata(Path::new(world.get("WORLD_LOGS")?).join(AUDIT_LOG))?.len())
}

/// The calls of the API server since its audit log had that size.
fn audit(world: &Handle, from: u64) -> Result<Vec<Call>> {
    let call = |entry: &Value| {
        let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut groups = entry.pointer("/user/groups")?.as_array()?.iter().filter_map(Value::as_str);
        let user = groups.find_map(|group| group.strip_prefix("driftless:"))?.to_owned();
        let object = format!("{}/{}", text("/objectRef/resource"), text("/objectRef/name"));
        Some(Call { user, verb: text("/verb"), namespace: text("/objectRef/namespace"), object })
    };
    Ok(world.journal(AUDIT_LOG, from, |_| true)?.iter().filter_map(call).collect())
}

/// The version of every object of the namespace that belongs to PKO or a user, by kind and name.
async fn objects(team: &Namespace<'_>) -> Result<BTreeMap<String, Option<String>>> {
    let mut found = BTreeMap::new();
    for (api_version, kind) in [
        ("pulumi.com/v1", "Stack"),
        ("pulumi.com/v1", "Program"),
        (AUTO, "Workspace"),
        (AUTO, "Update"),
        ("apps/v1", "StatefulSet"),
        ("v1", "Service"),
        ("v1", "Secret"),
        ("v1", "Event"),
    ] {
        for object in api(team, api_version, kind).list(&ListParams::default()).await? {
            found.insert(format!("{kind}/{}", object.name_any()), object.resource_version());
        }
    }
    Ok(found)
}

/// A Stack's status of its last run, and its Updates.
async fn settled(team: &Namespace<'_>, stack: &str) -> Result<(Value, BTreeSet<String>)> {
    let mut status = serde_json::to_value(team.stack(stack).await?.status)?;
    // PKO leaves a 0 out, and Driftless writes it.
    if let Some(last) = status["lastUpdate"].as_object_mut() {
        last.entry("failures").or_insert_with(|| 0.into());
    }
    let recorded =
        ["lastUpdate", "outputs", "projectInfo", "currentUpdate"].map(|field| (field.to_owned(), status[field].clone()));
    let updates = team.updates(stack).await?.iter().map(ResourceExt::name_any).collect();
    Ok((Value::Object(recorded.into_iter().collect()), updates))
}

async fn hand_over(guide: &Guide, team: &Namespace<'_>) -> Result<()> {
    let over = "Hand over a namespace";
    assert_eq!(guide.run(over, 0).await?, format!("{UNFINISHED}\n"));
    ensure!(team.stack("going").await?.finalizers() == [FINALIZER], "it was let go before");
    for block in 1..3 {
        guide.run(over, block).await?;
    }
    assert_eq!(guide.run(over, 3).await?, "the fence works\n");
    let updates = team.updates("half").await?.len();
    let not_ready = swept_until(team.world, "every Stack is reconciled", async || guide.run(over, 4).await).await?;
    ensure!(not_ready.contains("half: "), "{not_ready}");
    ensure!(!["shop: ", "old: ", "hello: "].iter().any(|stack| not_ready.contains(stack)), "{not_ready}");
    ensure!(team.updates("half").await?.len() == updates, "a suspended Stack was run");
    swept_until(team.world, "every Stack is resumed", async || guide.run(over, 5).await).await?;
    for stack in ["shop", "old", "hello"] {
        looked(team, stack).await?;
    }
    ready::until("the Stack that was being deleted is gone", RUN, async || {
        let left = api(team, "pulumi.com/v1", "Stack").get_opt("going").await?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await?;
    team.wait("half", "to be run", |stack| is_ready(stack) && commit(stack) == Some("1")).await?;
    let made = guide.run(over, 6).await?;
    let made: Vec<_> = made.lines().collect();
    let of_half: Vec<_> = team.updates("half").await?.iter().map(ResourceExt::name_any).collect();
    ensure!(of_half.len() == 2 && of_half[0] == UNFINISHED, "{of_half:?}");
    assert_eq!(made, [format!("update.auto.pulumi.com/{}", of_half[1])], "the others were not run");
    swept_until(team.world, "the Update that PKO did not finish has ended", async || {
        let status = team.objects(AUTO, "Update")?.get(UNFINISHED).await?.data["status"].clone();
        let failed = status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == "Failed");
        ensure!(failed.is_some_and(|failed| failed["reason"] == "Aborted"), "{status}");
        Ok(())
    })
    .await?;

    guide.run(over, 7).await?;
    ready::until("PKO is kept out", RUN, async || {
        let error = as_pko(team.world, team).await.err().context("PKO wrote a status")?;
        ensure!(error.to_string().contains(FENCED), "{error}");
        Ok(())
    })
    .await
}

async fn a_push_is_run_once(team: &Namespace<'_>, repository: &Repository) -> Result<()> {
    let second = repository.commit("two", &[("Pulumi.yaml", &project(team, "two")?)]).await?;
    team.wait("shop", "to have run the push", |stack| commit(stack) == Some(&second) && is_ready(stack)).await?;
    looked(team, "shop").await?;
    let stack = team.ready_after("shop", 2).await?;
    assert_eq!((output(&stack, "content"), output(&stack, "size")), (Some(&json!("two")), Some(&json!(3))));
    assert_eq!(fs::read_to_string(team.file("shop.txt")?)?, "two");
    team.secret("shop-19a1b2c3d4e-stack-outputs").await?;
    Ok(())
}

/// One that Driftless never ran, and one that it ran.
async fn what_pko_made_is_destroyed(team: &Namespace<'_>) -> Result<()> {
    for stack in ["old", "shop"] {
        let file = team.file(&format!("{stack}.txt"))?;
        ensure!(Path::new(&file).exists(), "there is no {file}");
        kubectl(team.world, &["delete", "stack", stack, "-n", &team.name, "--timeout=5m"]).await?;
        ensure!(!Path::new(&file).exists(), "{file} is still there");
    }
    Ok(())
}

async fn hand_back(guide: &Guide, team: &Namespace<'_>, alone: &Alone) -> Result<()> {
    let world = team.world;
    let before = settled(team, "half").await?;
    let head = "apiVersion: auto.pulumi.com/v1alpha1\nkind: Workspace";
    let workspace = format!(
        "{head}\nmetadata: {{ name: half, namespace: {} }}\nspec: {{ stacks: [{{ name: half, create: false }}] }}\n",
        team.name
    );
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), workspace)?;
    let path = file.path().display().to_string();
    let account = format!("--as=system:serviceaccount:{PKO}:controller-manager");
    let apply = ["apply", "--server-side", "--field-manager=pulumi-kubernetes-operator", "-f", &path];
    let refused = kubectl(world, &apply).await.err().context("the Workspace is PKO's already")?;
    ensure!(refused.to_string().contains("conflict"), "{refused}");

    for block in 0..2 {
        guide.run("Hand a namespace back", block).await?;
    }
    ensure!(settled(team, "half").await? == before, "what was recorded changed, or an Update went");
    ready::until("PKO may write again", RUN, async || as_pko(world, team).await.map(drop)).await?;
    kubectl(world, &[&[account.as_str()], &apply[..]].concat()).await?;
    let from = audit_size(world)?;
    let edit = Patch::Merge(json!({ "spec": { "config": { "a": "b" } } }));
    for stack in ["half", "hello"] {
        api(team, "pulumi.com/v1", "Stack").patch(stack, &PatchParams::default(), &edit).await?;
    }
    nobody_writes(team, alone, from).await?;
    ensure!(settled(team, "half").await? == before, "it was run once more");
    let ready = json!({ "conditions": [condition("Ready", "True", "ProcessingCompleted", "the stack has been processed and is up to date")] });
    apply_status(&api(team, "pulumi.com/v1", "Stack"), "pulumi.com/v1", "Stack", "half", &ready).await?;
    let status = serde_json::to_value(team.stack("half").await?.status)?;
    let conditions: Vec<_> = status["conditions"].as_array().into_iter().flatten().map(|condition| &condition["type"]).collect();
    ensure!(conditions == ["Ready"] && status["driftless"].is_null(), "{status}");
    Ok(())
}
