//! The manifests that kubectl, helm and Flux apply to a real API server.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use driftless_tests::{
    guide::Guide,
    world::{
        cluster::{self, AUDIT_LOG, Cluster, apply_yaml},
        dirs::Dirs,
        flux,
        git::GitServer,
        journal,
        process::{Process, Supervisor, command},
        ready,
    },
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authentication::v1::TokenRequest,
    core::v1::{ConfigMap, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{
    FORWARDER, INSTALLATION, Objects, SYSTEM, VALUES, block, by_id, charted, includes, kustomized, objects, overlay, project, run,
};

/// The section with the page's commands.
const APPLIED: &str = "Apply Driftless to a cluster";
const LIMIT: Duration = Duration::from_mins(2);

/// All worlds share one folder.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn kubectl_and_helm_apply_it_and_the_forwarder_sees_its_kinds() -> Result<()> {
    let _turn = TURN.lock().await;
    let dirs = Dirs::fresh(project())?;
    let supervisor = Supervisor::default();
    let applied = async {
        let (cluster, admin) = cluster(&dirs, &supervisor).await?;
        apply_yaml(&admin, "{ apiVersion: v1, kind: Namespace, metadata: { name: team-a } }").await?;
        let (overlay, values) = (overlay(true)?, dirs.tmp().join("values.yaml"));
        let key = dirs.tmp().join("webhook-key");
        fs::write(&key, "the key")?;
        let charted_values = VALUES.map(|(_, name, value)| (name, json!(value))).into_iter();
        let charted_values = charted_values.chain([
            ("runNamespaces", json!(["team-a"])),
            ("serviceAccount", json!(true)),
            ("approverName", json!(true)),
        ]);
        fs::write(&values, charted_values.collect::<Value>().to_string())?;
        let [key, overlay_path, values] = [&key, overlay.path(), &values].map(|path| path.display().to_string());
        let guide = guide(&cluster, INSTALLATION, &[("KEY", &key), ("OVERLAY", &overlay_path), ("VALUES", &values)])?;

        guide.run(APPLIED, 0).await?;
        let secret = run_in(
            &cluster,
            &["get", "secret", "driftless", "-n", "flux-system", "-o", "go-template={{.data.token | base64decode}}"],
        )?;
        assert_eq!(secret, "the key");
        guide.run(APPLIED, 1).await?;
        let kustomized = kustomized(true)?;
        kubectl_applies(&cluster, "kustomized", &kustomized)?;
        kubectl_applies(&cluster, "policies", block("NetworkPolicy")?)?;
        the_forwarder_sees_all_it_watches(&dirs, &cluster, &admin).await?;
        annotations_of_the_guides_arrive(&cluster, &admin).await?;
        settings_of_argo_cd_are_merged(&cluster, &admin).await?;

        run_in(&cluster, &["delete", "--ignore-not-found", "--filename", &written(&cluster, "kustomized", &kustomized)?])?;
        guide.run(APPLIED, 2).await?;
        guide.all_were_run()?;
        is_there(&cluster, "charted", &charted(&["--set", "runNamespaces={team-a},serviceAccount=true,approverName=true"])?)
            .map(drop)
    };
    supervisor.guard(Box::pin(applied)).await?;
    supervisor.stop().await;
    Ok(())
}

/// Run alone, by `make flux`, because kustomize-controller takes long to build.
#[tokio::test]
async fn flux_applies_it_by_its_one_file() -> Result<()> {
    let _turn = TURN.lock().await;
    let dirs = Dirs::fresh(project())?;
    let supervisor = Supervisor::default();
    let applied = async {
        let ((cluster, admin), git) =
            tokio::try_join!(Box::pin(cluster(&dirs, &supervisor)), GitServer::start(&dirs, &supervisor))?;
        cluster::apply(&admin, &dirs.tool("kustomize-controller-crds")?).await?;
        let events = flux::start(&dirs, &supervisor, &cluster).await?;
        flux::start_kustomize_controller(&dirs, &supervisor, &cluster, &events).await?;
        flux_applies_one_file(&cluster, &admin, &git, &kustomized(false)?).await
    };
    supervisor.guard(Box::pin(applied)).await?;
    supervisor.stop().await;
    Ok(())
}

/// Through Kubernetes' own roles, whose rules its controller aggregates.
#[tokio::test]
async fn view_reads_our_objects_and_edit_writes_them() -> Result<()> {
    let _turn = TURN.lock().await;
    let dirs = Dirs::fresh(project())?;
    let supervisor = Supervisor::default();
    let applied = async {
        let (cluster, admin) = cluster(&dirs, &supervisor).await?;
        for name in ["team-a", "team-b"] {
            apply_yaml(&admin, &format!("{{ apiVersion: v1, kind: Namespace, metadata: {{ name: {name} }} }}")).await?;
        }
        apply_yaml(
            &admin,
            "{ apiVersion: pulumi.com/v1, kind: Stack, metadata: { name: shop, namespace: team-a }, spec: { stack: dev } }",
        )
        .await?;
        for role in ["view", "edit"] {
            run_in(&cluster, &["create", "rolebinding", role, "-n", "team-a", "--clusterrole", role, "--user", role])?;
        }
        ready::until("the roles are aggregated", LIMIT, async || {
            for kind in ["stacks", "programs", "workspaces", "updates"] {
                run_in(&cluster, &["get", kind, "-n", "team-a", "--as", "view"])?;
            }
            run_in(&cluster, &["annotate", "stack", "shop", "-n", "team-a", "a=b", "--as", "edit"])
        })
        .await?;
        for (user, arguments) in [
            ("view", &["annotate", "stack", "shop", "-n", "team-a", "c=d"][..]),
            ("view", &["delete", "stack", "shop", "-n", "team-a"]),
            ("view", &["get", "stacks", "-n", "team-b"]),
            ("edit", &["patch", "stack", "shop", "-n", "team-a", "--subresource=status", "--type=merge", "-p", "{}"]),
            ("edit", &["get", "stacks", "-n", "team-b"]),
        ] {
            let refused = run_in(&cluster, &[arguments, &["--as", user]].concat()).err().context(user)?;
            ensure!(refused.to_string().contains("forbidden"), "{refused}");
        }
        Ok(())
    };
    supervisor.guard(Box::pin(applied)).await?;
    supervisor.stop().await;
    Ok(())
}

/// The shipped policy, as the API server enforces it: who may approve, loosen, forge, and write the
/// state of a plan.
#[tokio::test]
async fn policy_lets_only_users_with_the_verb_approve() -> Result<()> {
    let _turn = TURN.lock().await;
    let dirs = Dirs::fresh(project())?;
    let supervisor = Supervisor::default();
    let applied = async {
        let (cluster, admin) = cluster(&dirs, &supervisor).await?;
        apply_yaml(&admin, "{ apiVersion: v1, kind: Namespace, metadata: { name: team-a } }").await?;
        let metadata = "{ name: shop, namespace: team-a, annotations: { driftless.dev/approval: required } }";
        apply_yaml(
            &admin,
            &format!("{{ apiVersion: pulumi.com/v1, kind: Stack, metadata: {metadata}, spec: {{ stack: dev }} }}"),
        )
        .await?;
        for (role, users) in [("driftless:approver", &["ann"][..]), ("driftless:view", &["bob"]), ("driftless:edit", &["bob"])] {
            for user in users {
                let name = format!("{user}-{}", role.replace(':', "-"));
                run_in(&cluster, &["create", "rolebinding", &name, "-n", "team-a", "--clusterrole", role, "--user", user])?;
            }
        }
        // The API server takes up a policy within seconds. Until then the annotation can be
        // removed.
        ready::until("the policy is enforced", LIMIT, async || {
            annotates(&cluster, "admin", &["driftless.dev/approval=required"])?;
            ensure!(annotates(&cluster, "bob", &["driftless.dev/approval-"]).is_err(), "the annotation is removed");
            Ok(())
        })
        .await?;
        let verb = "the verb approve on stacks.pulumi.com is required";
        let name = "driftless.dev/approved-by must be the name";
        for (user, annotations, refusal) in [
            ("bob", &["x=y"][..], None),
            ("bob", &["driftless.dev/approve=aaa", "driftless.dev/approved-by=bob"], Some(verb)),
            ("bob", &["driftless.dev/approval=unless delete"], Some(verb)),
            ("bob", &["driftless.dev/approved-by=ann"], Some(name)),
            ("ann", &["driftless.dev/approve=aaa", "driftless.dev/approved-by=bob"], Some(name)),
            ("ann", &["driftless.dev/approve=aaa"], Some(name)),
            ("ann", &["driftless.dev/approve=aaa", "driftless.dev/approved-by=ann"], None),
            ("bob", &["driftless.dev/reject=bbb"], None),
            ("bob", &["driftless.dev/reject-"], Some(verb)),
            ("ann", &["driftless.dev/reject-"], None),
            ("driftless:reconciler", &["driftless.dev/approve=", "driftless.dev/approved-by="], None),
        ] {
            let words = annotates(&cluster, user, annotations).err().map(|error| error.to_string()).unwrap_or_default();
            let is_expected = refusal.map_or(words.is_empty(), |refusal| words.contains(refusal));
            ensure!(is_expected, "{user} {annotations:?}: {words}");
        }
        // A user with the right to write statuses still writes no plan.
        let role = "create clusterrole statuses --verb=get,patch,update --resource=stacks.pulumi.com,stacks.pulumi.com/status";
        run_in(&cluster, &role.split(' ').collect::<Vec<_>>())?;
        run_in(&cluster, &["create", "clusterrolebinding", "statuses", "--clusterrole", "statuses", "--user", "eve"])?;
        let patches = |user: &str, status: &str| {
            let patch = format!("{{\"status\":{status}}}");
            let call = ["patch", "stack", "shop", "-n", "team-a", "--subresource=status", "--type=merge", "-p", &patch];
            run_in(&cluster, &[&call[..], &as_user(user)].concat())
        };
        let plan = "{\"driftless\":{\"plan\":{\"state\":\"Approved\"}}}";
        ready::until("the role is bound", LIMIT, async || patches("eve", "{\"driftless\":{\"ran\":true}}")).await?;
        let refused = patches("eve", plan).err().context("eve wrote a plan")?;
        ensure!(refused.to_string().contains("only Driftless writes status.driftless.plan"), "{refused}");
        patches("admin", plan)?;
        name_is_written(&cluster).await?;
        annotates(&cluster, "ann", &["driftless.dev/approval-"])
    };
    supervisor.guard(Box::pin(applied)).await?;
    supervisor.stop().await;
    Ok(())
}

/// The optional policy that writes the approver's name, with which the other one still refuses what
/// it refused.
async fn name_is_written(cluster: &Cluster) -> Result<()> {
    let policy = project().join("infra/kubernetes/approver-name/approver-name.yaml").display().to_string();
    run_in(cluster, &["apply", "--server-side", "-f", &policy])?;
    let by = || {
        run_in(
            cluster,
            &["get", "stack", "shop", "-n", "team-a", "-o", r"jsonpath={.metadata.annotations.driftless\.dev/approved-by}"],
        )
    };
    ready::until("the name is written", LIMIT, async || annotates(cluster, "ann", &["driftless.dev/approve=ccc"])).await?;
    ensure!(by()? == "ann", "{}", by()?);
    let refused = annotates(cluster, "bob", &["driftless.dev/approve=ddd"]).err().context("bob approved")?;
    ensure!(refused.to_string().contains("the verb approve"), "{refused}");
    annotates(cluster, "ann", &["driftless.dev/approve=ddd", "driftless.dev/approved-by=bob"])?;
    ensure!(by()? == "ann", "{}", by()?);
    annotates(cluster, "driftless:reconciler", &["driftless.dev/approve=", "driftless.dev/approved-by="])?;
    ensure!(by()?.is_empty(), "{}", by()?);
    // As Flux applies a manifest from git, again and again.
    let manifest = "apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: { name: shop, namespace: team-a, annotations: \
        { driftless.dev/approval: required, driftless.dev/approve: eee } }\nspec: { stack: dev }\n";
    let path = written(cluster, "approved", manifest)?;
    for _ in 0..2 {
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=flux", "-f", &path, "--as", "ann"];
        run_in(cluster, &apply)?;
        ensure!(by()? == "ann", "{}", by()?);
    }
    Ok(())
}

/// The arguments of a call as that user; a part of the system is in its group.
fn as_user(user: &str) -> Vec<&str> {
    match user {
        "admin" => Vec::new(),
        user if user.starts_with("driftless:") => vec!["--as", user, "--as-group", user],
        user => vec!["--as", user],
    }
}

fn annotates(cluster: &Cluster, user: &str, annotations: &[&str]) -> Result<String> {
    let call = ["annotate", "stack", "shop", "-n", "team-a", "--overwrite"];
    run_in(cluster, &[&call[..], annotations, &as_user(user)].concat())
}

async fn cluster(dirs: &Dirs, supervisor: &Supervisor) -> Result<(Cluster, Client)> {
    let etcd = cluster::start_etcd(dirs, supervisor).await?;
    let cluster = Cluster::start(dirs, supervisor, project(), &etcd, None).await?;
    let admin = cluster.client("admin").await?;
    Ok((cluster, admin))
}

/// The cluster only gets the one file: source, build, apply and health check are Flux's.
async fn flux_applies_one_file(cluster: &Cluster, admin: &Client, git: &GitServer, kustomized: &str) -> Result<()> {
    let repository = git.create("driftless").await?;
    let mut files = Vec::new();
    read_below(&project().join("infra/kubernetes"), Path::new("infra/kubernetes"), &mut files)?;
    files.push(("infra/other/kustomization.yaml".to_owned(), "not one\n".to_owned()));
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let commit = repository.commit("a release", &files).await?;
    let tag = concat!("v", env!("CARGO_PKG_VERSION"));
    let tagged = Command::new("git").arg("-C").arg(&repository.path).args(["tag", tag, &commit]).status()?;
    ensure!(tagged.success(), "git tag: {tagged}");

    let file = project().join("infra/flux/driftless.yaml");
    let mut text = fs::read_to_string(&file)?;
    for (name, value) in VALUES.map(|(name, _, value)| (name, value)).into_iter().chain([("VERSION", env!("CARGO_PKG_VERSION"))])
    {
        let placeholder = format!("${{{name}}}");
        ensure!(text.matches(&placeholder).count() == 1, "{placeholder} is to be there once");
        text = text.replace(&placeholder, value);
    }
    ensure!(!text.contains("${"), "a placeholder is left: {text}");
    let text = text.replace("https://github.com/driftless-dev/driftless", &repository.url);
    kubectl_applies(cluster, "flux", &text)?;

    let deployments: Api<Deployment> = Api::namespaced(admin.clone(), SYSTEM);
    // There is no node here, so the test itself writes the Deployment's status.
    let generation = ready::until("the Deployment", LIMIT, async || {
        deployments.get(FORWARDER).await.with_context(|| cluster.admin_kubeconfig.display().to_string())
    });
    let generation = generation.await?.metadata.generation;
    let available = json!({ "status": {
        "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [
            { "type": "Available", "status": "True" },
            { "type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable" },
        ],
    } });
    deployments.patch_status(FORWARDER, &PatchParams::default(), &Patch::Merge(available)).await?;

    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("kustomize.toolkit.fluxcd.io", "v1", "Kustomization"));
    let kustomizations: Api<DynamicObject> = Api::namespaced_with(admin.clone(), "flux-system", &kind);
    let status = ready::until("the Kustomization", LIMIT, async || {
        let status = kustomizations.get("driftless").await?.data["status"].take();
        let ready = status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        ensure!(ready, "{status}");
        Ok(status)
    })
    .await?;
    assert_eq!(status["lastAppliedRevision"], format!("{tag}@sha1:{commit}"));

    let objects = objects(kustomized)?;
    let entries = status["inventory"]["entries"].as_array().context("an inventory")?;
    let entries: BTreeSet<_> = entries.iter().filter_map(|entry| entry["id"].as_str().map(ToOwned::to_owned)).collect();
    assert_eq!(entries, objects.values().map(inventory_id).collect());
    let there = is_there(cluster, "there", kustomized)?;
    for id in objects.keys() {
        assert_eq!(there[id]["metadata"]["labels"]["kustomize.toolkit.fluxcd.io/name"], "driftless", "{id}");
    }
    Ok(())
}

/// The guide for Argo CD adds to its ConfigMap and keeps the existing entries.
async fn settings_of_argo_cd_are_merged(cluster: &Cluster, admin: &Client) -> Result<()> {
    apply_yaml(admin, "{ apiVersion: v1, kind: Namespace, metadata: { name: argocd } }").await?;
    let own =
        "{ apiVersion: v1, kind: ConfigMap, metadata: { name: argocd-cm, namespace: argocd }, data: { url: 'https://argo' } }";
    apply_yaml(admin, own).await?;
    let guide = guide(cluster, include_str!("../../../docs/argocd.md"), &[])?;
    guide.run("Install", 0).await?;
    guide.all_were_run()?;
    let merged: Value = serde_json::from_str(&run_in(cluster, &["get", "configmap/argocd-cm", "-n", "argocd", "-o", "json"])?)?;
    assert_eq!(merged["data"]["url"], "https://argo");
    ensure!(merged["data"]["resource.customizations.health.pulumi.com_Stack"].is_string(), "{merged:#}");
    Ok(())
}

/// The annotations that the guides set by hand.
async fn annotations_of_the_guides_arrive(cluster: &Cluster, admin: &Client) -> Result<()> {
    let shop = "{ apiVersion: pulumi.com/v1, kind: Stack, metadata: { name: shop, namespace: team-a }, spec: { stack: dev } }";
    let platform = "{ apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: { name: platform, namespace: team-a }, \
                    spec: { interval: 5m, url: 'https://git.example/platform' } }";
    for object in [shop, platform] {
        apply_yaml(admin, object).await?;
    }
    for (page, section, object, annotation) in [
        (include_str!("../../../docs/drift.md"), "Put drift back", "stack/shop", "driftless.dev/remediate"),
        (
            include_str!("../../../docs/notifications.md"),
            "Receive notifications",
            "gitrepository/platform",
            "reconcile.fluxcd.io/requestedAt",
        ),
    ] {
        let guide = guide(cluster, page, &[("NAMESPACE", "team-a")])?;
        guide.run(section, 0).await?;
        if section == "Put drift back" {
            guide.run("Adopt drift", 0).await?;
        }
        guide.all_were_run()?;
        let there = run_in(cluster, &["get", object, "-n", "team-a", "-o", "json"])?;
        let there: Value = serde_json::from_str(&there)?;
        assert_ne!(there["metadata"]["annotations"][annotation].as_str().unwrap_or_default(), "", "{object}");
    }
    Ok(())
}

fn guide(cluster: &Cluster, page: &str, more: &[(&str, &str)]) -> Result<Guide> {
    let kubeconfig = cluster.admin_kubeconfig.display().to_string();
    Guide::read(page, &project().join("target/tools"), &[&[("KUBECONFIG", kubeconfig.as_str())], more].concat())
}

/// The name of an object in Flux's inventory.
fn inventory_id(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().replace(':', "__");
    let version = text(&object["apiVersion"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    format!("{}_{}_{group}_{}", text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]), text(&object["kind"]))
}

/// Applies everything as a user does, first as a dry run, and finds each field in the answer as
/// written.
fn kubectl_applies(cluster: &Cluster, name: &str, text: &str) -> Result<()> {
    let file = written(cluster, name, text)?;
    let written = objects(text)?;
    for more in [&["--dry-run=server"][..], &[]] {
        let apply = ["apply", "--server-side", "--force-conflicts", "--validate=strict", "--output", "json", "--filename", &file];
        let there = there(&run_in(cluster, &[&apply, more].concat())?)?;
        assert_eq!(there.keys().collect::<Vec<_>>(), written.keys().collect::<Vec<_>>(), "{name}");
        for (id, object) in &written {
            includes(id, &there[id], object)?;
        }
    }
    Ok(())
}

/// The objects of a text as the API server has them, with every written field.
fn is_there(cluster: &Cluster, name: &str, text: &str) -> Result<Objects> {
    let there = there(&run_in(cluster, &["get", "--output", "json", "--filename", &written(cluster, name, text)?])?)?;
    for (id, object) in &objects(text)? {
        includes(id, &there[id], object)?;
    }
    Ok(there)
}

/// The program of the Deployment, except for the network and the places of a Pod's token and the
/// API server's address: it lists and watches every kind, and no call is refused.
async fn the_forwarder_sees_all_it_watches(dirs: &Dirs, cluster: &Cluster, admin: &Client) -> Result<()> {
    let deployment = Api::<Deployment>::namespaced(admin.clone(), SYSTEM).get(FORWARDER).await?;
    let pod = serde_json::to_value(deployment)?["spec"]["template"]["spec"].take();
    let container = &pod["containers"][0];
    let config = container["envFrom"][0]["configMapRef"]["name"].as_str().context("a ConfigMap")?;
    let mut env = Api::<ConfigMap>::namespaced(admin.clone(), SYSTEM).get(config).await?.data.context("data")?;
    for variable in container["env"].as_array().into_iter().flatten() {
        let [name, value] = ["name", "value"].map(|key| variable[key].as_str().unwrap_or_default().to_owned());
        env.insert(name, value);
    }

    let account = pod["serviceAccountName"].as_str().context("a ServiceAccount")?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), SYSTEM);
    let token = accounts.create_token_request(account, &PostParams::default(), &TokenRequest::default()).await?;
    let mut kubeconfig = serde_json::to_value(Kubeconfig::read_from(&cluster.admin_kubeconfig)?)?;
    kubeconfig["users"][0]["user"] = json!({ "token": token.status.context("a token")?.token });
    let path = dirs.tmp().join(FORWARDER);
    fs::write(&path, serde_json::to_string(&kubeconfig)?)?;

    let program = project().join("target/lambda/forwarder/bootstrap");
    let program = program.canonicalize().with_context(|| format!("there is no {}: run `make build`", program.display()))?;
    let mut forwarder = command(dirs, program);
    forwarder.envs(env).env("KUBECONFIG", path);
    let forwarder = Process::start(dirs, FORWARDER, forwarder)?;
    let user = format!("system:serviceaccount:{SYSTEM}:{account}");
    let kinds: BTreeSet<_> = [
        "stacks",
        "programs",
        "workspaces",
        "updates",
        "gitrepositories",
        "ocirepositories",
        "buckets",
        "helmcharts",
        "externalartifacts",
        "events",
    ]
    .into_iter()
    .map(ToOwned::to_owned)
    .collect();
    let log = dirs.logs().join(AUDIT_LOG);
    ready::until("every kind is watched", LIMIT, async || {
        let calls: Vec<_> = journal::entries(&log, 0)?.collect::<Result<_>>()?;
        let calls: Vec<_> = calls.iter().filter(|call| call["user"]["username"] == user).collect();
        if let Some(refused) = calls.iter().find(|call| call["responseStatus"]["code"] == 403) {
            bail!("{refused}");
        }
        let watches = calls.iter().filter(|call| call["verb"] == "watch" && call["responseStatus"]["code"] == 200);
        let seen: BTreeSet<_> =
            watches.filter_map(|call| call["objectRef"]["resource"].as_str().map(ToOwned::to_owned)).collect();
        ensure!(seen == kinds, "{seen:?}; {}", forwarder.last_words());
        Ok(())
    })
    .await
}

fn run_in(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let kubeconfig = format!("--kubeconfig={}", cluster.admin_kubeconfig.display());
    run("kubectl", [kubeconfig.as_str()].into_iter().chain(arguments.iter().copied()))
}

/// Writes a file beside the cluster's kubeconfig. Returns its path.
fn written(cluster: &Cluster, name: &str, text: &str) -> Result<String> {
    let file: PathBuf = cluster.admin_kubeconfig.with_file_name(format!("{name}.yaml"));
    fs::write(&file, text)?;
    Ok(file.display().to_string())
}

/// The objects in kubectl's JSON output.
fn there(text: &str) -> Result<Objects> {
    let mut objects = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value? {
            Value::Object(mut list) if list.get("kind") == Some(&json!("List")) => {
                objects.extend(
                    list.remove("items").and_then(|mut items| items.as_array_mut().map(std::mem::take)).unwrap_or_default(),
                );
            }
            object => objects.push(object),
        }
    }
    by_id(objects.into_iter())
}

/// The files below a folder, with their paths below `at`.
fn read_below(folder: &Path, at: &Path, files: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let at = at.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read_below(&entry.path(), &at, files)?;
        } else {
            files.push((at.display().to_string(), fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}
