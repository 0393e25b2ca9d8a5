//! What is applied to a cluster: as a Kustomization, as a chart and as Flux's one file, by kubectl, helm and Flux themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
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
use tempfile::TempDir;
use tokio::sync::Mutex;

const INSTALLATION: &str = include_str!("../../docs/installation.md");
/// The section that has the page's commands.
const APPLIED: &str = "What is applied to a cluster";
const LIMIT: Duration = Duration::from_mins(2);
const FORWARDER: &str = "driftless-forwarder";
const SYSTEM: &str = "driftless-system";

/// The values of an installation: as files name them, as the chart does, and what they are here.
const VALUES: [(&str, &str, &str); 5] = [
    ("CLUSTER", "cluster", "production"),
    ("AWS_REGION", "awsRegion", "eu-west-1"),
    ("HINTS_QUEUE_URL", "hintsQueueUrl", "https://sqs.eu-west-1.amazonaws.com/123456789012/hints"),
    ("WEBHOOK_URL", "webhookUrl", "https://abc.lambda-url.eu-west-1.on.aws/"),
    ("FORWARDER_IMAGE", "forwarderImage", "registry.example/forwarder@sha256:0123"),
];
const ADDRESS: &str = "https://abc.lambda-url.eu-west-1.on.aws/production";

/// There is one folder for all worlds.
static TURN: Mutex<()> = Mutex::const_new(());

/// Objects by what they are, for example `apps/v1 Deployment driftless-system/driftless-forwarder`.
type Objects = BTreeMap<String, Value>;

#[test]
fn an_overlay_s_values_are_filled_in_everywhere() -> Result<()> {
    let text = kustomized(false)?;
    assert!(!text.contains(".invalid"), "a value of values.env is left");
    let objects = objects(&text)?;
    assert_eq!(objects["notification.toolkit.fluxcd.io/v1beta3 Provider flux-system/driftless"]["spec"]["address"], ADDRESS);
    let container = &objects[&deployment()]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], VALUES[4].2);
    let name = container["envFrom"][0]["configMapRef"]["name"].as_str().context("a name")?;
    assert_eq!(objects[&format!("v1 ConfigMap {SYSTEM}/{name}")]["data"], values());
    Ok(())
}

#[test]
fn the_chart_has_what_the_kustomization_has() -> Result<()> {
    let mut kustomized = objects(&kustomized(true)?)?;
    let mut charted = objects(&charted(&["--set", "runNamespaces={team-a},serviceAccount=true"])?)?;
    assert!(kustomized.len() > 40, "{:?}", kustomized.keys());

    // Helm makes the namespace of a release itself.
    kustomized.remove(&format!("v1 Namespace /{SYSTEM}")).context("a namespace")?;
    // It keeps CRDs without being asked to.
    for (id, object) in kustomized.iter_mut().filter(|(id, _)| id.contains(" CustomResourceDefinition ")) {
        let annotations = object["metadata"].as_object_mut().and_then(|metadata| metadata.remove("annotations"));
        assert_eq!(annotations, Some(json!({ "kustomize.toolkit.fluxcd.io/prune": "disabled" })), "{id}");
    }
    // How other values start the forwarder anew: by a hash in the name, or beside it.
    let hashed = kustomized.keys().find(|id| id.contains(" ConfigMap ")).context("a ConfigMap")?.clone();
    let mut config = kustomized.remove(&hashed).context("it")?;
    let name = config["metadata"]["name"].take();
    config["metadata"]["name"] = json!("driftless-values");
    kustomized.insert(format!("v1 ConfigMap {SYSTEM}/driftless-values"), config);
    let container = &mut kustomized.get_mut(&deployment()).context("a Deployment")?["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["envFrom"][0]["configMapRef"]["name"], name);
    container["envFrom"][0]["configMapRef"]["name"] = json!("driftless-values");
    let pod = &mut charted.get_mut(&deployment()).context("a Deployment")?["spec"]["template"]["metadata"];
    let annotations = pod.as_object_mut().and_then(|metadata| metadata.remove("annotations")).context("annotations")?;
    assert!(annotations.as_object().is_some_and(|all| all.keys().eq(["checksum/values"])), "{annotations}");

    assert_eq!(kustomized.keys().collect::<Vec<_>>(), charted.keys().collect::<Vec<_>>());
    for (id, object) in kustomized {
        includes(&id, &object, &charted[&id])?;
        includes(&id, &charted[&id], &object)?;
    }
    Ok(())
}

/// An Alert with another kind is refused, and what Flux applies beside it too.
#[test]
fn the_alert_names_no_kind_that_older_alerts_do_not_know() -> Result<()> {
    let objects = objects(&kustomized(false)?)?;
    let sources = &objects["notification.toolkit.fluxcd.io/v1beta3 Alert flux-system/driftless"]["spec"]["eventSources"];
    let kinds: Vec<_> = sources.as_array().into_iter().flatten().filter_map(|source| source["kind"].as_str()).collect();
    assert_eq!(kinds, ["GitRepository", "OCIRepository", "Bucket", "HelmChart", "Kustomization", "HelmRelease"]);
    Ok(())
}

#[test]
fn a_namespace_of_the_guide_has_the_bindings_that_it_does_not_leave_out() -> Result<()> {
    let dir = folder(block("driftless:git-credentials")?)?;
    let stack = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "name": "shop" }, "spec": {} });
    fs::write(dir.path().join("stack.yaml"), stack.to_string())?;
    let objects = objects(&run("kubectl", ["kustomize", &dir.path().display().to_string()])?)?;
    let binding = |name: &str| format!("rbac.authorization.k8s.io/v1 RoleBinding team-a/driftless:run-{name}");
    let mut wanted = BTreeSet::from(["identity", "inputs", "outputs"].map(binding));
    wanted.insert("pulumi.com/v1 Stack team-a/shop".to_owned());
    assert_eq!(objects.into_keys().collect::<BTreeSet<_>>(), wanted);
    Ok(())
}

#[test]
fn other_values_start_the_chart_s_forwarder_anew_and_its_pod_can_be_added_to() -> Result<()> {
    let pod = |more: &[&str]| -> Result<Value> {
        Ok(objects(&charted(more)?)?.remove(&deployment()).context("a Deployment")?["spec"]["template"].take())
    };
    let [first, second] = [pod(&[])?, pod(&["--set", "cluster=staging,podSpec.nodeSelector.disk=ssd"])?];
    assert_ne!(first["metadata"]["annotations"], second["metadata"]["annotations"]);
    assert_eq!(second["spec"]["nodeSelector"], json!({ "disk": "ssd" }));
    assert_eq!(second["spec"]["containers"], first["spec"]["containers"]);
    Ok(())
}

#[test]
fn the_chart_says_what_is_missing_or_wrong() -> Result<()> {
    let chart = project().join("infra/chart").display().to_string();
    let template = ["template", "driftless", &chart];
    for (arguments, words) in [
        (
            vec!["--namespace", SYSTEM],
            "missing properties 'cluster', 'awsRegion', 'hintsQueueUrl', 'webhookUrl', 'forwarderImage'",
        ),
        (vec!["--namespace", SYSTEM, "--set", "awsRegion=Ireland"], "at '/awsRegion': 'Ireland' does not match pattern"),
        (
            vec!["--namespace", SYSTEM, "--set", "webhookUrl=https://a/b"],
            "at '/webhookUrl': 'https://a/b' does not match pattern",
        ),
        (vec!["--namespace", SYSTEM, "--set", "Cluster=a"], "additional properties 'Cluster' not allowed"),
        (vec!["--set", &set_values()], "install it with --namespace driftless-system --create-namespace"),
    ] {
        let error = run("helm", template.into_iter().chain(arguments.iter().copied())).err().context(words)?.to_string();
        assert!(error.contains(words), "{error}");
    }
    Ok(())
}

/// Pulumi's program has them as texts of its own, as no resource of its reads a file and fills values in.
#[test]
fn the_bootstrap_has_what_the_one_file_and_the_bindings_of_a_namespace_have() -> Result<()> {
    let read = |path: &str| fs::read_to_string(project().join(path)).with_context(|| path.to_owned());
    let program: Value = serde_saphyr::from_str(&read("infra/bootstrap/Pulumi.yaml")?)?;
    let text = |resource: &str, settings: &[(&str, &str)]| {
        let text = program["resources"][resource]["properties"]["yaml"].as_str().unwrap_or_default().to_owned();
        settings.iter().fold(text, |text, (name, value)| text.replace(&format!("${{{name}}}"), value))
    };
    let settings = [
        ("cluster", "${CLUSTER}"),
        ("region", "${AWS_REGION}"),
        ("hintsQueueUrl", "${HINTS_QUEUE_URL}"),
        ("webhookUrl", "${WEBHOOK_URL}"),
        ("forwarderImage", "${FORWARDER_IMAGE}"),
        ("driftlessVersion", "${VERSION}"),
        ("driftlessUrl", program["config"]["driftlessUrl"]["default"].as_str().context("a default")?),
    ];
    let mut installed = objects(&text("driftless", &settings))?;
    // The one thing that is Pulumi's.
    let kustomization = installed.get_mut("kustomize.toolkit.fluxcd.io/v1 Kustomization flux-system/driftless");
    let metadata = kustomization.and_then(|object| object["metadata"].as_object_mut()).context("a Kustomization")?;
    assert_eq!(metadata.remove("annotations"), Some(json!({ "pulumi.com/waitFor": "condition=Ready" })));
    assert_eq!(installed, objects(&read("infra/flux/driftless.yaml")?)?);
    assert_eq!(program["config"]["driftlessVersion"]["default"], env!("CARGO_PKG_VERSION"));

    let bound = objects(&text("identity", &[("namespace", "default"), ("annotations", "")]))?;
    let bindings = objects(&read("infra/kubernetes/runs/runs.yaml")?)?;
    // Its own Stack has a source of Flux's.
    let needed = bindings.iter().filter(|(id, _)| !id.ends_with("/driftless:git-credentials"));
    let (ids, wanted): (Vec<_>, Vec<_>) = needed.map(|(id, binding)| (id, Some(binding))).unzip();
    assert_eq!(ids.iter().map(|id| bound.get(*id)).collect::<Vec<_>>(), wanted, "{ids:?}");
    Ok(())
}

#[test]
fn the_chart_has_this_version() -> Result<()> {
    let chart: Value = serde_saphyr::from_str(&fs::read_to_string(project().join("infra/chart/Chart.yaml"))?)?;
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(env!("CARGO_PKG_VERSION"))));
    Ok(())
}

#[tokio::test]
async fn kubectl_and_helm_each_apply_it_and_the_forwarder_sees_all_it_watches() -> Result<()> {
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
        let charted_values = charted_values.chain([("runNamespaces", json!(["team-a"])), ("serviceAccount", json!(true))]);
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

        run_in(&cluster, &["delete", "--ignore-not-found", "--filename", &written(&cluster, "kustomized", &kustomized)?])?;
        guide.run(APPLIED, 2).await?;
        guide.all_were_run()?;
        is_there(&cluster, "charted", &charted(&["--set", "runNamespaces={team-a},serviceAccount=true"])?).map(drop)
    };
    supervisor.guard(Box::pin(applied)).await?;
    supervisor.stop().await;
    Ok(())
}

/// By itself, as `make flux`: kustomize-controller takes long to build.
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

async fn cluster(dirs: &Dirs, supervisor: &Supervisor) -> Result<(Cluster, Client)> {
    let etcd = cluster::start_etcd(dirs, supervisor).await?;
    let cluster = Cluster::start(dirs, supervisor, project(), &etcd, None).await?;
    let admin = cluster.client("admin").await?;
    Ok((cluster, admin))
}

/// The one file is all that the cluster is given: source, build, apply and health check are Flux's.
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
    // There is no node here, so that nobody else says that the Pod is there.
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

/// The policies of the guide let in whom they are for.
#[test]
fn the_guide_s_policies_are_about_the_forwarder_and_the_ports_that_it_posts_to() -> Result<()> {
    let objects = objects(&format!("{}\n---\n{}", kustomized(false)?, block("NetworkPolicy")?))?;
    let policy = |name: &str| &objects[&format!("networking.k8s.io/v1 NetworkPolicy {name}")]["spec"];
    let (ours, theirs) = (policy(&format!("{SYSTEM}/{FORWARDER}")), policy("flux-system/driftless-events"));
    let out = ours["egress"].as_array().context("rules")?.last().context("one")?;
    let ingress = &theirs["ingress"][0];
    assert_eq!(out["to"][0]["podSelector"], theirs["podSelector"]);
    assert_eq!(out["ports"], ingress["ports"]);
    assert_eq!(ingress["from"][0]["podSelector"], ours["podSelector"]);
    assert_eq!(ingress["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], SYSTEM);
    Ok(())
}

/// What the guides have somebody ask for by hand.
async fn annotations_of_the_guides_arrive(cluster: &Cluster, admin: &Client) -> Result<()> {
    let shop = "{ apiVersion: pulumi.com/v1, kind: Stack, metadata: { name: shop, namespace: team-a }, spec: { stack: dev } }";
    let platform = "{ apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: { name: platform, namespace: team-a }, \
                    spec: { interval: 5m, url: 'https://git.example/platform' } }";
    for object in [shop, platform] {
        apply_yaml(admin, object).await?;
    }
    for (page, section, object, annotation) in [
        (include_str!("../../docs/drift.md"), "Putting it back", "stack/shop", "driftless.dev/remediate"),
        (include_str!("../../docs/notifications.md"), "In", "gitrepository/platform", "reconcile.fluxcd.io/requestedAt"),
    ] {
        let guide = guide(cluster, page, &[("NAMESPACE", "team-a")])?;
        guide.run(section, 0).await?;
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

/// How Flux names an object in its inventory.
fn inventory_id(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().replace(':', "__");
    let version = text(&object["apiVersion"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    format!("{}_{}_{group}_{}", text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]), text(&object["kind"]))
}

/// Applies all of it as a user does, first without effect, and finds everything in the answer as it was written.
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

/// The objects of a text as the API server has them, all that was written in them.
fn is_there(cluster: &Cluster, name: &str, text: &str) -> Result<Objects> {
    let there = there(&run_in(cluster, &["get", "--output", "json", "--filename", &written(cluster, name, text)?])?)?;
    for (id, object) in &objects(text)? {
        includes(id, &there[id], object)?;
    }
    Ok(there)
}

/// The program as the Deployment has it, but for the network, and but for where a Pod has its token and the API server's address: it
/// lists and watches every kind, and is refused nothing.
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
        let calls = calls(&fs::read_to_string(&log)?, &user);
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

/// What the API server has heard of a user. The last line may not be written to its end.
fn calls(log: &str, user: &str) -> Vec<Value> {
    let calls = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    calls.filter(|call| call["user"]["username"] == user).collect()
}

/// Fails if something of `written` is not in `there`. A whole number may be written as a fraction.
fn includes(path: &str, there: &Value, written: &Value) -> Result<()> {
    match (there, written) {
        (Value::Object(there), Value::Object(written)) => written
            .iter()
            .try_for_each(|(key, value)| includes(&format!("{path}.{key}"), there.get(key).unwrap_or(&Value::Null), value)),
        (Value::Array(there), Value::Array(written)) if there.len() == written.len() => {
            let pairs = there.iter().zip(written).enumerate();
            pairs.into_iter().try_for_each(|(at, (there, written))| includes(&format!("{path}[{at}]"), there, written))
        }
        _ => {
            let same = there == written || there.as_f64().is_some_and(|number| written.as_f64() == Some(number));
            ensure!(same, "{path}: {there} is there, not {written}");
            Ok(())
        }
    }
}

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn deployment() -> String {
    format!("apps/v1 Deployment {SYSTEM}/{FORWARDER}")
}

fn values() -> Value {
    VALUES.map(|(name, _, value)| (name, value)).into_iter().collect()
}

/// The YAML block of the guide that has these words.
fn block(words: &str) -> Result<&'static str> {
    let mut blocks = INSTALLATION.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.find_map(|(block, _)| block.contains(words).then_some(block)).with_context(|| words.to_owned())
}

/// A folder with a kustomization of the guide, of our files as they are here.
fn folder(kustomization: &str) -> Result<TempDir> {
    let dir = tempfile::tempdir_in(project().join("target"))?;
    let release = concat!("?ref=v", env!("CARGO_PKG_VERSION"));
    let text = kustomization.replace("https://github.com/driftless-dev/driftless//", "../../").replace(release, "");
    ensure!(!text.contains("?ref="), "it is not of this release: {text}");
    fs::write(dir.path().join("kustomization.yaml"), text)?;
    Ok(dir)
}

/// An overlay as the guide has it; with `more` also with its options: a namespace of a team, and the ServiceAccount of the functions.
fn overlay(more: bool) -> Result<TempDir> {
    let guide = block("configMapGenerator")?;
    let dir = folder(&if more {
        guide.replace("# - ", "- ").replace("resources:\n", "resources:\n- team\n")
    } else {
        guide.to_owned()
    })?;
    let team = json!({ "namespace": "team-a", "resources": ["../../../infra/kubernetes/runs"] });
    fs::create_dir(dir.path().join("team"))?;
    fs::write(dir.path().join("team/kustomization.yaml"), team.to_string())?;
    fs::write(dir.path().join("values.env"), VALUES.map(|(name, _, value)| format!("{name}={value}\n")).concat())?;
    Ok(dir)
}

/// What `kubectl kustomize` makes of an overlay.
fn kustomized(more: bool) -> Result<String> {
    run("kubectl", ["kustomize", &overlay(more)?.path().display().to_string()])
}

/// What `helm template` makes of the chart with our values and `more` arguments.
fn charted(more: &[&str]) -> Result<String> {
    let (chart, values) = (project().join("infra/chart").display().to_string(), set_values());
    let template = ["template", "driftless", &chart, "--namespace", SYSTEM, "--include-crds", "--set", &values];
    run("helm", template.into_iter().chain(more.iter().copied()))
}

fn set_values() -> String {
    VALUES.map(|(_, name, value)| format!("{name}={value}")).join(",")
}

/// Runs one of the pinned programs to its end, which has to be a good one, without a warning about what it was given.
fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a str>) -> Result<String> {
    let tool = project().join("target/tools").join(program);
    ensure!(tool.exists(), "there is no {}: run tests/tools/install {program}", tool.display());
    let output = Command::new(tool)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", project().join("target"))
        .stdin(Stdio::null())
        .output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !words.contains("Warning"), "{program}: {}: {words}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn run_in(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let kubeconfig = format!("--kubeconfig={}", cluster.admin_kubeconfig.display());
    run("kubectl", [kubeconfig.as_str()].into_iter().chain(arguments.iter().copied()))
}

/// Writes a file beside the cluster's kubeconfig, and tells where.
fn written(cluster: &Cluster, name: &str, text: &str) -> Result<String> {
    let file: PathBuf = cluster.admin_kubeconfig.with_file_name(format!("{name}.yaml"));
    fs::write(&file, text)?;
    Ok(file.display().to_string())
}

/// The objects of a text of YAML documents. None may be there twice.
fn objects(text: &str) -> Result<Objects> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    by_id(documents.into_iter().filter(|document| !document.is_null()))
}

/// The objects of what kubectl prints as JSON.
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

fn by_id(objects: impl Iterator<Item = Value>) -> Result<Objects> {
    let mut all = Objects::new();
    for object in objects {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, kind) = (&object["metadata"], text(&object["kind"]));
        let id = format!("{} {kind} {}/{}", text(&object["apiVersion"]), text(&metadata["namespace"]), text(&metadata["name"]));
        ensure!(all.insert(id.clone(), object).is_none(), "{id} is there twice");
    }
    Ok(all)
}

/// The files below a folder, as the paths that they have below `at`.
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
