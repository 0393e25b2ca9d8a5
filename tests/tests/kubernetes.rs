//! The manifests for a cluster: as a Kustomization, as a chart and as Flux's one file. These tests
//! compare texts and need no cluster.

#[path = "kubernetes/applied.rs"]
mod applied;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

const INSTALLATION: &str = include_str!("../../docs/installation.md");
const FORWARDER: &str = "driftless-forwarder";
const SYSTEM: &str = "driftless-system";

/// The values of an installation: their names in files and in the chart, and the values here.
const VALUES: [(&str, &str, &str); 5] = [
    ("CLUSTER", "cluster", "production"),
    ("AWS_REGION", "awsRegion", "eu-west-1"),
    ("HINTS_QUEUE_URL", "hintsQueueUrl", "https://sqs.eu-west-1.amazonaws.com/123456789012/hints"),
    ("WEBHOOK_URL", "webhookUrl", "https://abc.lambda-url.eu-west-1.on.aws/"),
    ("FORWARDER_IMAGE", "forwarderImage", "registry.example/forwarder@sha256:0123"),
];
const ADDRESS: &str = "https://abc.lambda-url.eu-west-1.on.aws/production";

/// Objects by their identity, for example `apps/v1 Deployment
/// driftless-system/driftless-forwarder`.
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
    let mut charted = objects(&charted(&["--set", "runNamespaces={team-a},serviceAccount=true,approverName=true"])?)?;
    assert!(kustomized.len() > 40, "{:?}", kustomized.keys());

    // Helm itself creates the namespace of a release.
    kustomized.remove(&format!("v1 Namespace /{SYSTEM}")).context("a namespace")?;
    // Helm keeps CRDs by default.
    for (id, object) in kustomized.iter_mut().filter(|(id, _)| id.contains(" CustomResourceDefinition ")) {
        let annotations = object["metadata"].as_object_mut().and_then(|metadata| metadata.remove("annotations"));
        assert_eq!(annotations, Some(json!({ "kustomize.toolkit.fluxcd.io/prune": "disabled" })), "{id}");
    }
    // Other values restart the forwarder: by a hash in the name, or beside it.
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

/// For an installation with `PublicWebhook: DISABLED`.
#[test]
fn no_webhook_leaves_provider_and_alert_out() -> Result<()> {
    let mut with = objects(&kustomized(false)?)?;
    with.retain(|id, _| !id.starts_with("notification.toolkit.fluxcd.io/"));
    let dir = overlay(false)?;
    let file = dir.path().join("kustomization.yaml");
    let text = fs::read_to_string(&file)?.replace("components:\n", "components:\n- ../../infra/kubernetes/no-webhook\n");
    fs::write(&file, text)?;
    let without = objects(&run("kubectl", ["kustomize", &dir.path().display().to_string()])?)?;
    assert_eq!(without, with);
    let charted = objects(&charted(&["--set", "webhookUrl="])?)?;
    assert!(charted.contains_key(&deployment()) && charted.keys().all(|id| !id.starts_with("notification.toolkit.fluxcd.io/")));
    Ok(())
}

/// An Alert with an unknown kind is refused, and with it everything that Flux applies in the same
/// step.
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
    wanted.insert("rbac.authorization.k8s.io/v1 RoleBinding team-a/driftless:stack-outputs".to_owned());
    wanted.insert("pulumi.com/v1 Stack team-a/shop".to_owned());
    assert_eq!(objects.into_keys().collect::<BTreeSet<_>>(), wanted);
    Ok(())
}

#[test]
fn chart_values_restart_the_forwarder_and_extend_its_pod() -> Result<()> {
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

/// Pulumi's program has its own copies as texts, because none of its resources reads a file and
/// fills in values.
#[test]
fn bootstrap_equals_the_one_file_and_the_namespace_bindings() -> Result<()> {
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
    // The only Pulumi part.
    let kustomization = installed.get_mut("kustomize.toolkit.fluxcd.io/v1 Kustomization flux-system/driftless");
    let metadata = kustomization.and_then(|object| object["metadata"].as_object_mut()).context("a Kustomization")?;
    assert_eq!(metadata.remove("annotations"), Some(json!({ "pulumi.com/waitFor": "condition=Ready" })));
    assert_eq!(installed, objects(&read("infra/flux/driftless.yaml")?)?);
    assert_eq!(program["config"]["driftlessVersion"]["default"], env!("CARGO_PKG_VERSION"));

    let bound = objects(&text("identity", &[("namespace", "default"), ("annotations", "")]))?;
    let bindings = objects(&read("infra/kubernetes/runs/runs.yaml")?)?;
    // Its own Stack has a Flux source and names no objects for its outputs.
    let is_needed = |id: &str| !["/driftless:git-credentials", "/driftless:stack-outputs"].iter().any(|end| id.ends_with(end));
    let needed = bindings.iter().filter(|(id, _)| is_needed(id));
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

/// The policies of the guide admit what they are written for.
#[test]
fn network_policies_of_the_guide_select_the_forwarder_and_its_ports() -> Result<()> {
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

/// Fails if a part of `written` is not in `there`. A whole number may be written as a fraction.
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

/// The YAML block of the guide with this text.
fn block(words: &str) -> Result<&'static str> {
    let mut blocks = INSTALLATION.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.find_map(|(block, _)| block.contains(words).then_some(block)).with_context(|| words.to_owned())
}

/// A folder with a kustomization of the guide, and the local manifests.
fn folder(kustomization: &str) -> Result<TempDir> {
    let dir = tempfile::tempdir_in(project().join("target"))?;
    let release = concat!("?ref=v", env!("CARGO_PKG_VERSION"));
    let text = kustomization.replace("https://github.com/driftless-dev/driftless//", "../../").replace(release, "");
    ensure!(!text.contains("?ref="), "it is not of this release: {text}");
    fs::write(dir.path().join("kustomization.yaml"), text)?;
    Ok(dir)
}

/// The guide's overlay; with `more` also its options: a namespace of a team, and the ServiceAccount
/// of the functions.
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

/// The output of `kubectl kustomize` for an overlay.
fn kustomized(more: bool) -> Result<String> {
    run("kubectl", ["kustomize", &overlay(more)?.path().display().to_string()])
}

/// The output of `helm template` for the chart with the test's values and `more` arguments.
fn charted(more: &[&str]) -> Result<String> {
    let (chart, values) = (project().join("infra/chart").display().to_string(), set_values());
    let template = ["template", "driftless", &chart, "--namespace", SYSTEM, "--include-crds", "--set", &values];
    run("helm", template.into_iter().chain(more.iter().copied()))
}

fn set_values() -> String {
    VALUES.map(|(_, name, value)| format!("{name}={value}")).join(",")
}

/// Runs one of the pinned programs to its end, which must be successful and without a warning about
/// its input.
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

/// The objects of a text of YAML documents. None may occur twice.
fn objects(text: &str) -> Result<Objects> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    by_id(documents.into_iter().filter(|document| !document.is_null()))
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
