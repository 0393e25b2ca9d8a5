//! Reports which objects of the Pulumi Kubernetes Operator (PKO) run under Driftless unchanged, and
//! which need a change. The functions' own code decides. A report has no value of a Secret, a
//! variable or a configuration key.

mod git;
mod report;

use driftless_api::{Stack, Update, Workspace, WorkspaceSpec};
use driftless_core::{DefaultSize, SourceRef, Stack as CoreStack, frequent_resync, invalid_spec};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::Value;
use url::Url;

use crate::tools::Kubectl;
use git::of_git;
pub use report::{Migration, Note, Report, Verdict};
use report::{better, different, refused};

/// Annotations of a `ServiceAccount` that give a pod an identity, but not a task, and the
/// replacement for each.
const IDENTITIES: [(&str, &str); 2] = [
    ("iam.gke.io/gcp-service-account", "mount a token with a projected volume, for workload identity federation"),
    ("azure.workload.identity/client-id", "mount a token with a projected volume, for workload identity federation"),
];
/// The annotation that gives a task an identity too.
const ROLE: &str = "eks.amazonaws.com/role-arn";

/// Variables and configuration keys that give a program AWS credentials or a Region without a role
/// of its `ServiceAccount`.
const AWS_KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "aws:accessKey"];
const AWS_REGION: [&str; 3] = ["AWS_REGION", "AWS_DEFAULT_REGION", "aws:region"];

/// The replacement for `imagePullSecrets`.
const LOGINS: &str = "list the registry in PrivateRegistries if a run uses an image from it (docs/images.md)";

/// The suffixes of the cluster's own names, which a task cannot reach.
const CLUSTER_NAMES: [&str; 2] = [".svc", ".cluster.local"];

/// The objects of a cluster, as its API server lists them.
#[derive(Debug, Default)]
pub struct Objects {
    /// `stacks.pulumi.com`
    pub stacks: Vec<Value>,
    /// `workspaces.auto.pulumi.com`
    pub workspaces: Vec<Value>,
    /// `updates.auto.pulumi.com`
    pub updates: Vec<Value>,
    /// `serviceaccounts`
    pub accounts: Vec<Value>,
}

impl Objects {
    /// Lists them. `Err` has kubectl's message.
    pub fn read(kubectl: &Kubectl) -> Result<Self, String> {
        let list = |kind: &str| {
            let mut answer = kubectl.json(&["get", kind, "--all-namespaces"])?;
            match answer["items"].take() {
                Value::Array(items) => Ok(items),
                _ => Err(format!("kubectl get {kind} returned no list")),
            }
        };
        Ok(Self {
            stacks: list("stacks.pulumi.com")?,
            workspaces: list("workspaces.auto.pulumi.com")?,
            updates: list("updates.auto.pulumi.com")?,
            accounts: list("serviceaccounts")?,
        })
    }
}

/// Reports on each Stack, each Workspace without a Stack, and each incomplete Update.
#[must_use]
pub fn scan(objects: &Objects) -> Vec<Report> {
    let stacks = objects.stacks.iter().map(|object| report(object, |stack| of_stack(stack, &objects.accounts)));
    let workspaces =
        objects.workspaces.iter().map(|object| report(object, |workspace| of_workspace(workspace, &objects.accounts)));
    let updates = objects.updates.iter().map(|object| report(object, of_update));
    let is_worth_a_line = |report: &Report| !report.notes.is_empty();
    stacks.chain(workspaces.filter(is_worth_a_line)).chain(updates.filter(is_worth_a_line)).collect()
}

/// The Stacks, and the Workspaces that are no Stack's, whose runs have the image of the
/// installation. PKO's has programs that the small images lack.
#[must_use]
pub fn without_image(objects: &Objects) -> Vec<String> {
    let stacks =
        objects.stacks.iter().filter(|object| Stack::deserialize(*object).is_ok_and(|stack| names_none(stack.workspace())));
    let is_bare = |object: &&Value| {
        Workspace::deserialize(*object).is_ok_and(|workspace| !is_of_stack(&workspace) && names_none(workspace.spec))
    };
    stacks.chain(objects.workspaces.iter().filter(is_bare)).map(name).collect()
}

/// Whether neither the field nor the container `pulumi` of the pod template names an image,
/// whatever else the spec has.
fn names_none(workspace: WorkspaceSpec) -> bool {
    let pod = workspace.pod_template.and_then(|pod| pod.spec).unwrap_or_default();
    let main = pod["containers"].as_array().into_iter().flatten().filter(|container| container["name"] == "pulumi");
    let image = main.filter_map(|container| container["image"].as_str()).next_back();
    image.or(workspace.image.as_deref()).is_none_or(str::is_empty)
}

fn is_of_stack(workspace: &Workspace) -> bool {
    workspace.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Stack")
}

/// `Kind namespace/name`.
fn name(object: &Value) -> String {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
}

fn report<K: DeserializeOwned>(object: &Value, notes: impl FnOnce(&K) -> Vec<Note>) -> Report {
    let notes = match K::deserialize(object) {
        Ok(object) => notes(&object),
        // serde's message may quote a value, so it is not shown.
        Err(_) => vec![refused("a field has another type than in the definition", "compare it with kubectl explain")],
    };
    Report::of(name(object), notes)
}

fn of_stack(stack: &Stack, accounts: &[Value]) -> Vec<Note> {
    let core = CoreStack::from(stack);
    let mut notes = Vec::new();
    notes.extend(invalid_spec(&core, true).or_else(|| core.spec.old_pulumi.clone()).map(|words| refused(words, "")));
    notes.extend(frequent_resync(&core.spec).map(|words| different(words, "")));
    if core.spec.destroy_on_finalize {
        let what =
            "spec.destroyOnFinalize: after the first run, a destroy needs neither the source nor the Secrets; PKO needs both";
        notes.push(better(what));
    }
    if !core.spec.prerequisites.is_empty() {
        let what = "spec.prerequisites: the Stack runs as soon as they have succeeded, not at its next retry";
        notes.push(better(what));
    }
    if matches!(core.spec.sources.as_slice(), [SourceRef::Git(_)]) {
        let remedy = "if the program runs git, pass what it reads in another way, such as spec.envRefs";
        notes.push(different("spec.projectRepo: the program has the files of the commit without .git", remedy));
    }
    let (spec, is_set) = (&stack.spec, |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty()));
    let has_login = spec.git_auth.is_some() || is_set(&spec.git_auth_secret);
    notes.extend(spec.project_repo.iter().flat_map(|url| of_git("spec.projectRepo", url, has_login)));
    let workspace = stack.workspace();
    notes.extend(of_runs("spec.workspaceTemplate.spec", stack.metadata.namespace.as_deref(), &workspace, accounts));
    notes
}

fn of_workspace(workspace: &Workspace, accounts: &[Value]) -> Vec<Note> {
    if is_of_stack(workspace) {
        return vec![];
    }
    let mut spec = workspace.spec.clone();
    let mut notes = Vec::new();
    notes.extend(workspace.own_source().err().map(|words| refused(words, "")));
    if let Some(git) = &spec.git {
        notes.extend(git.url.iter().flat_map(|url| of_git("spec.git.url", url, git.auth.is_some())));
    }
    (spec.git, spec.flux, spec.local) = (None, None, None);
    notes.extend(spec.task("spec").shape(DefaultSize::default()).err().map(|words| refused(words, "")));
    notes.extend(of_runs("spec", workspace.metadata.namespace.as_deref(), &spec, accounts));
    notes
}

fn of_update(update: &Update) -> Vec<Note> {
    if update.is_complete() {
        return vec![];
    }
    vec![different(
        "the Update is not complete",
        "wait for it or delete it before the hand-over of its namespace; else it ends as Aborted, and its Stack runs once more",
    )]
}

/// Returns whether a backend's URL, or the `endpoint` in it, names a Service of the cluster.
fn is_in_cluster(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let bucket = ["s3", "gs", "azblob"].contains(&url.scheme());
    let host = url.host_str().filter(|_| !bucket).map(str::to_owned);
    let endpoint = url.query_pairs().find(|(name, _)| name == "endpoint").map(|(_, endpoint)| {
        let address = endpoint.split_once("://").map_or(&*endpoint, |(_, address)| address);
        address.split([':', '/']).next().unwrap_or_default().to_owned()
    });
    host.into_iter().chain(endpoint).any(|host| CLUSTER_NAMES.iter().any(|end| host.ends_with(end)))
}

/// What a program for AWS lacks if its `ServiceAccount` names no role. A note is only added if the
/// object itself shows the use of AWS; the variables of a whole `ConfigMap`, a Secret or an
/// environment of Pulumi ESC are unknown.
fn without_role(account: &str, backend: Option<&str>, workspace: &WorkspaceSpec) -> Vec<Note> {
    let stacks = &workspace.stacks;
    if !workspace.env_from.is_empty() || stacks.iter().any(|stack| !stack.environment.is_empty()) {
        return vec![];
    }
    let keys = || stacks.iter().flat_map(|stack| &stack.config).map(|item| item.key.as_str());
    let has =
        |names: [&str; 3]| keys().chain(workspace.env.iter().map(|env| env.name.as_str())).any(|name| names.contains(&name));
    let is_configured = keys().any(|key| key.starts_with("aws:"));
    let providers = stacks.iter().filter_map(|stack| stack.secrets_provider.as_deref());
    let mut urls = providers.chain(backend);
    let mut notes = Vec::new();
    if (is_configured || urls.any(|url| url.starts_with("s3://") || url.starts_with("awskms://"))) && !has(AWS_KEYS) {
        notes.push(different(
            format!(
                "ServiceAccount {account:?} has no {ROLE}; a task has neither the role of EKS Pod Identity nor that of a \
                 node"
            ),
            "annotate it with a role if the program or the backend uses one of these",
        ));
    }
    if (is_configured || has(AWS_KEYS)) && !has(AWS_REGION) {
        notes.push(different(
            format!(
                "no aws:region in the configuration of the Stack, and no {ROLE}; a task has neither AWS_REGION nor the \
                 metadata of a node"
            ),
            "set aws:region unless Pulumi.STACK.yaml of the source or the program sets it",
        ));
    }
    notes
}

/// Notes about the runs of a workspace, whatever its source is.
fn of_runs(at: &str, namespace: Option<&str>, workspace: &WorkspaceSpec, accounts: &[Value]) -> Vec<Note> {
    let mut notes = Vec::new();
    let (logins, ignored): (Vec<_>, Vec<_>) =
        workspace.task(at).pod_only().into_iter().partition(|field| field.ends_with(".imagePullSecrets"));
    for field in logins {
        notes.push(different(format!("{field} have no effect on a task"), LOGINS));
    }
    if !ignored.is_empty() {
        let remedy = "nothing, unless the installation sets PodFields=refuse";
        notes.push(different(format!("ignored, because a run is a Fargate task and not a pod: {}", ignored.join(", ")), remedy));
    }
    let is_file = |url: &str| url.starts_with("file://");
    let backend = workspace.env.iter().rfind(|env| env.name == "PULUMI_BACKEND_URL").and_then(|env| env.value.as_deref());
    if backend.is_some_and(is_file) {
        let what = "backend is file:// on the disk of PKO's pod; a task has no state there and would create all resources again";
        let remedy = "move the state to a backend that a task can reach, such as s3:// (pulumi stack export, import), before the \
             hand-over";
        notes.push(refused(what, remedy));
    }
    if backend.is_some_and(is_in_cluster) {
        let what = "backend is a Service of the cluster; a task is outside the network of the cluster and cannot reach it";
        let remedy =
            "use an address that a task can reach, such as that of a load balancer, or move the state, before the hand-over";
        notes.push(refused(what, remedy));
    }
    let name = workspace.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let account = accounts
        .iter()
        .find(|account| account["metadata"]["name"] == name && account["metadata"]["namespace"].as_str() == namespace);
    let Some(account) = account else {
        notes.push(refused(format!("ServiceAccount {name:?} not found"), "create it, or correct serviceAccountName"));
        return notes;
    };
    let annotations = &account["metadata"]["annotations"];
    if annotations[ROLE].is_string() {
        let what = format!("ServiceAccount {name:?}: the program uses the role of {ROLE}");
        notes.push(Note { verdict: Verdict::Same, what, remedy: "" });
    } else {
        notes.extend(without_role(name, backend, workspace));
    }
    for (annotation, remedy) in IDENTITIES.into_iter().filter(|(annotation, _)| annotations[*annotation].is_string()) {
        notes.push(different(format!("ServiceAccount {name:?}: {annotation} has no effect on a task"), remedy));
    }
    if account["imagePullSecrets"].as_array().is_some_and(|secrets| !secrets.is_empty()) {
        notes.push(different(format!("ServiceAccount {name:?}: imagePullSecrets have no effect on a task"), LOGINS));
    }
    notes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account(annotations: &Value, pull_secrets: &Value) -> Value {
        json!({ "metadata": { "namespace": "shop", "name": "default", "annotations": annotations }, "imagePullSecrets": pull_secrets })
    }

    fn stack(spec: &Value) -> Value {
        let usual = json!({ "stack": "dev", "backend": "s3://state", "programRef": { "name": "app" } });
        let spec = driftless_core::merge(usual, spec);
        json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "namespace": "shop", "name": "app" }, "spec": spec })
    }

    fn template(spec: &Value) -> Value {
        json!({ "workspaceTemplate": { "spec": spec } })
    }

    fn pod(spec: &Value) -> Value {
        template(&json!({ "podTemplate": { "spec": spec } }))
    }

    #[test]
    fn each_stack_is_judged_by_its_own_spec() {
        let accounts = vec![account(&json!({ ROLE: "arn:aws:iam::123456789012:role/a" }), &Value::Null)];
        let env = |reference: Value| json!({ "backend": null, "envRefs": { "PULUMI_BACKEND_URL": reference } });
        let volumes = json!({ "volumes": [{ "name": "v", "secret": { "secretName": "s" } }] });
        let git = json!({ "programRef": null, "projectRepo": "https://git.example/a.git", "branch": "main" });
        for (spec, verdict, words) in [
            (json!({}), Verdict::Same, ""),
            (pod(&volumes), Verdict::Same, ""),
            (json!({ "destroyOnFinalize": true }), Verdict::Better, "destroyOnFinalize"),
            (json!({ "prerequisites": [{ "name": "other" }] }), Verdict::Better, "prerequisites"),
            (git, Verdict::Different, "without .git"),
            (pod(&json!({ "tolerations": [{ "key": "a" }] })), Verdict::Different, "podTemplate.spec.tolerations"),
            (
                pod(&json!({ "imagePullSecrets": [{ "name": "login" }] })),
                Verdict::Different,
                "podTemplate.spec.imagePullSecrets have no effect on a task\n               do: list the registry in PrivateRegistries",
            ),
            (
                json!({ "continueResyncOnCommitMatch": true, "resyncFrequencySeconds": 60 }),
                Verdict::Different,
                "spec.resyncFrequencySeconds is 60: each resync starts a task, 1440 a day",
            ),
            (
                template(&json!({ "serviceTemplate": { "metadata": { "labels": { "a": "b" } } } })),
                Verdict::Different,
                "serviceTemplate",
            ),
            (
                template(&json!({ "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] })),
                Verdict::Refused,
                "env[A].valueFrom.fieldRef has no meaning on Fargate",
            ),
            (json!({ "programRef": null }), Verdict::Refused, "no source; set one of"),
            (
                driftless_core::merge(template(&json!({ "image": "pulumi/pulumi:3.197.0" })), &json!({ "config": { "n": 1 } })),
                Verdict::Refused,
                "spec.workspaceTemplate.spec.image is \"pulumi/pulumi:3.197.0\"",
            ),
            (pod(&json!({ "hostNetwork": true })), Verdict::Refused, "podTemplate.spec.hostNetwork has no meaning on Fargate"),
            (json!({ "backend": "file:///state" }), Verdict::Refused, "backend is file://"),
            (env(json!({ "type": "Literal", "literal": { "value": "file:///state" } })), Verdict::Refused, "backend is file://"),
            (env(json!({ "type": "Env", "env": { "name": "A" } })), Verdict::Refused, "ref type \"Env\" is deprecated"),
            (json!({ "stack": 7 }), Verdict::Refused, "a field has another type"),
            (json!({ "serviceAccountName": "gone" }), Verdict::Refused, "ServiceAccount \"gone\" not found"),
        ] {
            let objects = Objects { stacks: vec![stack(&spec)], accounts: accounts.clone(), ..Objects::default() };
            let [report] = &scan(&objects)[..] else { panic!("one report") };
            assert_eq!((report.verdict, report.object.as_str()), (verdict, "Stack shop/app"), "{spec}: {report}");
            assert!(report.to_string().contains(words), "{report}");
        }
    }

    #[test]
    fn login_in_a_git_url_is_refused_and_not_shown() {
        let of = |url: &str| {
            let spec = json!({ "programRef": null, "projectRepo": url, "branch": "main" });
            let objects =
                Objects { stacks: vec![stack(&spec)], accounts: vec![account(&Value::Null, &Value::Null)], ..Objects::default() };
            scan(&objects)[0].to_string()
        };
        for url in [
            "https://me:t0ken@git.example/a.git",
            "https://t0ken@git.example/a",
            "http://:t0ken@git.example/a",
            "ssh://git:t0ken@git.example/a",
        ] {
            let text = of(url);
            assert!(
                text.starts_with("refused") && text.contains("spec.projectRepo contains a") && text.contains("gitAuth"),
                "{text}"
            );
            assert!(!text.contains("t0ken"), "{text}");
        }
        for url in ["https://git.example/a@b.git", "ssh://git@git.example/a", "git@git.example:me/a.git"] {
            assert!(of(url).starts_with("different"), "{}", of(url));
        }
    }

    #[test]
    fn git_servers_that_need_a_parameter_or_https_are_reported() {
        let (private, http, key) = ("only if GitPrivateHosts lists it", "is an http URL with credentials", "is unknown");
        let none = json!({});
        let own = json!({ "token": { "name": "login", "key": "token" } });
        let secret = json!({ "gitAuthSecret": "login" });
        let token = json!({ "gitAuth": { "accessToken": { "type": "Secret", "secret": { "name": "login", "key": "token" } } } });
        for (url, auth, words) in [
            ("https://github.com/a/b.git", &secret, &[][..]),
            ("https://10.1.2.3/a.git", &none, &[private]),
            ("https://100.64.1.2/a.git", &none, &[private]),
            ("https://[fd00::1]/a.git", &none, &[private]),
            ("https://172.32.0.1/a.git", &none, &[]),
            ("https://100.128.0.1/a.git", &none, &[]),
            ("https://git/a.git", &none, &[private]),
            ("https://git.team.svc/a.git", &none, &[private]),
            ("https://git.team.svc.cluster.local:3000/a.git", &none, &[private]),
            ("https://git.corp.internal/a.git", &none, &[private]),
            ("https://Git.Corp.LOCAL./a.git", &none, &[private]),
            ("https://internal.example/a.git", &none, &[]),
            ("http://git.example/a.git", &none, &[]),
            ("http://git.example/a.git", &secret, &[http]),
            ("http://git.example/a.git", &token, &[http]),
            ("http://git.team.svc/a.git", &token, &[private, http]),
            ("ssh://git@github.com/a/b.git", &secret, &[]),
            ("git@GitLab.com:a/b.git", &secret, &[]),
            ("ssh://git@git.example:2222/a/b.git", &secret, &[key]),
            ("git@git.example:a/b.git", &secret, &[key]),
            ("git@10.1.2.3:a/b.git", &secret, &[private, key]),
        ] {
            let usual = json!({ "programRef": null, "projectRepo": url, "branch": "main" });
            let of_stack = stack(&driftless_core::merge(usual, auth));
            let of_workspace = json!({
                "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "metadata": { "namespace": "shop", "name": "own" },
                "spec": { "git": { "url": url, "auth": (*auth != none).then_some(&own) } },
            });
            let accounts = vec![account(&json!({ ROLE: "arn:aws:iam::123456789012:role/a" }), &Value::Null)];
            let reports =
                scan(&Objects { stacks: vec![of_stack], workspaces: vec![of_workspace], accounts, ..Objects::default() });
            assert_eq!(reports.len(), 2, "{url}");
            for (report, field) in reports.iter().zip(["spec.projectRepo", "spec.git.url"]) {
                let text = report.to_string();
                for part in [private, http, key] {
                    assert_eq!(text.contains(part), words.contains(&part), "{part}: {url}\n{text}");
                }
                assert!(words.is_empty() || text.contains(field), "{text}");
                assert_eq!(report.verdict == Verdict::Refused, words.contains(&http), "{text}");
            }
        }
    }

    #[test]
    fn backend_in_the_network_of_the_cluster_is_reported() {
        for (url, expected) in [
            ("s3://state?endpoint=minio.minio.svc:9000&s3ForcePathStyle=true", true),
            ("s3://state?endpoint=http://minio.minio.svc.cluster.local", true),
            ("s3://state?endpoint=http%3A%2F%2Fminio.minio.svc%3A9000", true),
            ("https://pulumi.team.svc/api", true),
            ("s3://state.svc", false),
            ("s3://state?endpoint=minio.example:9000", false),
            ("s3://state.svc.example", false),
        ] {
            let accounts = vec![account(&json!({ ROLE: "arn:aws:iam::123456789012:role/a" }), &Value::Null)];
            let objects = Objects { stacks: vec![stack(&json!({ "backend": url }))], accounts, ..Objects::default() };
            let text = scan(&objects)[0].to_string();
            assert_eq!(text.contains("outside the network of the cluster"), expected, "{url}\n{text}");
            assert_eq!(text.starts_with("refused"), expected, "{url}\n{text}");
        }
    }

    #[test]
    fn aws_program_without_a_role_is_reported() {
        let (role, region) = ("a task has neither the role", "no aws:region in the configuration of the Stack");
        let variable = |name: &str| json!({ name: { "type": "Literal", "literal": { "value": "a" } } });
        let cloud = json!({ "backend": "https://api.pulumi.com" });
        for (spec, words) in [
            (json!({}), &[role][..]),
            (cloud.clone(), &[]),
            (json!({ "backend": "https://api.pulumi.com", "secretsProvider": "awskms://alias/a" }), &[role]),
            (json!({ "backend": "https://api.pulumi.com", "config": { "aws:profile": "a" } }), &[role, region]),
            (json!({ "config": { "aws:region": "eu-west-1" } }), &[role]),
            (json!({ "envRefs": variable("AWS_ACCESS_KEY_ID") }), &[region]),
            (json!({ "envRefs": variable("AWS_REGION"), "config": { "aws:accessKey": "a" } }), &[]),
            (json!({ "envSecrets": ["all"] }), &[]),
        ] {
            let of = |annotations: &Value| {
                let accounts = vec![account(annotations, &Value::Null)];
                scan(&Objects { stacks: vec![stack(&spec)], accounts, ..Objects::default() })[0].to_string()
            };
            let text = of(&Value::Null);
            for part in [role, region] {
                assert_eq!(text.contains(part), words.contains(&part), "{part}: {spec}\n{text}");
            }
            let text = of(&json!({ ROLE: "arn:aws:iam::123456789012:role/a" }));
            assert!(text.starts_with("same") && !text.contains(role) && !text.contains(region), "{text}");
        }
    }

    #[test]
    fn identities_and_logins_of_a_service_account_are_reported() {
        for (annotations, secrets, verdict, words) in [
            (json!({ ROLE: "arn:aws:iam::123456789012:role/a" }), Value::Null, Verdict::Same, "the program uses the role"),
            (
                json!({ "iam.gke.io/gcp-service-account": "a@b" }),
                Value::Null,
                Verdict::Different,
                "iam.gke.io/gcp-service-account has no effect on a task\n               do: mount a token with a projected volume",
            ),
            (
                json!({ "azure.workload.identity/client-id": "a" }),
                Value::Null,
                Verdict::Different,
                "azure.workload.identity/client-id has no effect on a task\n               do: mount a token with a projected volume",
            ),
            (Value::Null, json!([{ "name": "login" }]), Verdict::Different, "PrivateRegistries"),
        ] {
            let objects = Objects {
                stacks: vec![stack(&json!({}))],
                accounts: vec![account(&annotations, &secrets)],
                ..Objects::default()
            };
            let text = scan(&objects)[0].to_string();
            assert!(text.starts_with(&verdict.to_string()) && text.contains(words), "{text}");
        }
    }

    #[test]
    fn stacks_and_workspaces_without_an_image_are_named() {
        let named = |name: &str, spec: &Value| {
            let mut stack = stack(spec);
            stack["metadata"]["name"] = name.into();
            stack
        };
        let workspace = |name: &str, spec: Value, owner: &str| {
            let owners = json!([{ "apiVersion": "pulumi.com/v1", "kind": owner, "name": "app", "uid": "1" }]);
            let metadata = json!({ "namespace": "shop", "name": name, "ownerReferences": owners });
            json!({ "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "metadata": metadata, "spec": spec })
        };
        let git = json!({ "git": { "url": "https://git.example/a.git" } });
        let objects = Objects {
            stacks: vec![
                named("none", &json!({})),
                named("empty", &template(&json!({ "image": "" }))),
                named("field", &template(&json!({ "image": "mine" }))),
                named("container", &pod(&json!({ "containers": [{ "name": "pulumi", "image": "mine" }] }))),
                named("refused", &pod(&json!({ "hostNetwork": true, "containers": [{ "name": "pulumi", "image": "mine" }] }))),
                named("refused-none", &template(&json!({ "local": { "dir": "/app" } }))),
                named("sidecar", &pod(&json!({ "containers": [{ "name": "other", "image": "mine" }] }))),
                named("unread", &json!({ "stack": 7 })),
            ],
            workspaces: vec![
                workspace("own", git.clone(), "Other"),
                workspace("image", driftless_core::merge(git.clone(), &json!({ "image": "mine" })), "Other"),
                workspace("of-stack", git, "Stack"),
            ],
            ..Objects::default()
        };
        let expected =
            ["Stack shop/none", "Stack shop/empty", "Stack shop/refused-none", "Stack shop/sidecar", "Workspace shop/own"];
        assert_eq!(without_image(&objects), expected);
    }

    #[test]
    fn workspaces_and_updates_that_need_action_are_reported() {
        let own = |kind: &str, spec: Value, owner: &str| {
            let owners = json!([{ "apiVersion": "pulumi.com/v1", "kind": owner, "name": "app", "uid": "1" }]);
            json!({
                "apiVersion": "auto.pulumi.com/v1alpha1", "kind": kind, "spec": spec,
                "metadata": { "namespace": "shop", "name": "app", "ownerReferences": owners },
            })
        };
        let local = json!({ "local": { "dir": "/src" } });
        let objects = Objects {
            workspaces: vec![own("Workspace", local.clone(), "Stack"), own("Workspace", local, "Other")],
            updates: vec![own("Update", json!({}), "Stack")],
            accounts: vec![account(&Value::Null, &Value::Null)],
            ..Objects::default()
        };
        let told: Vec<_> = scan(&objects).iter().map(|report| (report.object.clone(), report.verdict)).collect();
        assert_eq!(told, [("Workspace shop/app".into(), Verdict::Refused), ("Update shop/app".into(), Verdict::Different)]);
    }
}
