//! Reports which objects of the Pulumi Kubernetes Operator (PKO) run under Driftless as they are, and which need a change. The functions'
//! own code decides. A report has no value of a Secret, a variable or a configuration key.

use std::fmt;

use driftless_api::{Stack, Update, Workspace, WorkspaceSpec};
use driftless_core::{DefaultSize, SourceRef, Stack as CoreStack, frequent_resync, invalid_spec, login_in};
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::tools::Kubectl;

/// Annotations of a `ServiceAccount` by which a pod, and no task, gets an identity, and what does so here.
const IDENTITIES: [(&str, &str); 2] = [
    ("iam.gke.io/gcp-service-account", "mount a token with a projected volume, for workload identity federation"),
    ("azure.workload.identity/client-id", "mount a token with a projected volume, for workload identity federation"),
];
/// The same by which a task gets one, too.
const ROLE: &str = "eks.amazonaws.com/role-arn";

/// What gives a program credentials of AWS, and a Region, without a role of its `ServiceAccount`: variables and configuration keys.
const AWS_KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "aws:accessKey"];
const AWS_REGION: [&str; 3] = ["AWS_REGION", "AWS_DEFAULT_REGION", "aws:region"];

/// What a task has in place of `imagePullSecrets`.
const LOGINS: &str = "name the registry in PrivateRegistries if an image of a run is there (docs/images.md)";

/// What an object, or a part of it, is under Driftless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As under PKO.
    Same,
    /// It works, and does more.
    Better,
    /// It works, and not as under PKO.
    Different,
    /// It does not work.
    Refused,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Different => "different",
            Self::Refused => "refused",
        })
    }
}

/// One thing to know of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What it is.
    pub verdict: Verdict,
    /// What is so, with the field.
    pub what: String,
    /// The remedy. Empty where there is nothing to do, or where `what` has the remedy.
    pub remedy: &'static str,
}

/// What is to be known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// `Kind namespace/name`.
    pub object: String,
    /// None of an object that stays as it is.
    pub notes: Vec<Note>,
}

impl Report {
    /// That of the worst note.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.notes.iter().map(|note| note.verdict).max().unwrap_or(Verdict::Same)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:9}  {}", self.verdict(), self.object)?;
        for Note { verdict, what, remedy } in &self.notes {
            write!(formatter, "\n             {verdict}: {what}")?;
            if !remedy.is_empty() {
                write!(formatter, "\n               do: {remedy}")?;
            }
        }
        Ok(())
    }
}

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
    /// Lists them; `Err` in kubectl's words.
    pub fn read(kubectl: &Kubectl) -> Result<Self, String> {
        let list = |kind: &str| {
            let mut answer = kubectl.json(&["get", kind, "--all-namespaces"])?;
            match answer["items"].take() {
                Value::Array(items) => Ok(items),
                _ => Err(format!("kubectl get {kind} lists nothing")),
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

/// What becomes of each Stack, of each Workspace that is no Stack's, and of each Update that is not complete.
#[must_use]
pub fn scan(objects: &Objects) -> Vec<Report> {
    let stacks = objects.stacks.iter().map(|object| report(object, |stack| of_stack(stack, &objects.accounts)));
    let workspaces =
        objects.workspaces.iter().map(|object| report(object, |workspace| of_workspace(workspace, &objects.accounts)));
    let updates = objects.updates.iter().map(|object| report(object, of_update));
    let is_worth_a_line = |report: &Report| !report.notes.is_empty();
    stacks.chain(workspaces.filter(is_worth_a_line)).chain(updates.filter(is_worth_a_line)).collect()
}

fn report<K: DeserializeOwned>(object: &Value, notes: impl FnOnce(&K) -> Vec<Note>) -> Report {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let name = format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
    let notes = match K::deserialize(object) {
        Ok(object) => notes(&object),
        // Of serde, which may quote a value.
        Err(_) => vec![refused("a field has another type than the definition says", "compare it with kubectl explain")],
    };
    Report { object: name, notes }
}

fn of_stack(stack: &Stack, accounts: &[Value]) -> Vec<Note> {
    let core = CoreStack::from(stack);
    let mut notes = Vec::new();
    notes.extend(invalid_spec(&core, true).or_else(|| core.spec.old_pulumi.clone()).map(|words| refused(words, "")));
    notes.extend(frequent_resync(&core.spec).map(|words| different(words, "")));
    if core.spec.destroy_on_finalize {
        let what =
            "spec.destroyOnFinalize: from its first run on, a destroy needs neither the source nor the Secrets; PKO's needs both";
        notes.push(better(what));
    }
    if !core.spec.prerequisites.is_empty() {
        let what = "spec.prerequisites: this Stack runs as soon as they have succeeded, not at its next retry";
        notes.push(better(what));
    }
    if matches!(core.spec.sources.as_slice(), [SourceRef::Git(_)]) {
        let remedy = "a program that runs git needs another way to what it reads there, such as spec.envRefs";
        notes.push(different("spec.projectRepo: the program finds the files of the commit, and no .git", remedy));
    }
    notes.extend(stack.spec.project_repo.as_deref().and_then(|url| login("spec.projectRepo", url)));
    let workspace = stack.workspace();
    notes.extend(of_runs("spec.workspaceTemplate.spec", stack.metadata.namespace.as_deref(), &workspace, accounts));
    notes
}

fn of_workspace(workspace: &Workspace, accounts: &[Value]) -> Vec<Note> {
    let is_stacks = workspace.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Stack");
    if is_stacks {
        return vec![];
    }
    let mut spec = workspace.spec.clone();
    let mut notes = Vec::new();
    notes.extend(workspace.own_source().err().map(|words| refused(words, "")));
    notes.extend(spec.git.as_ref().and_then(|git| git.url.as_deref()).and_then(|url| login("spec.git.url", url)));
    (spec.git, spec.flux, spec.local) = (None, None, None);
    notes.extend(spec.shape("spec", DefaultSize::default()).err().map(|words| refused(words, "")));
    notes.extend(of_runs("spec", workspace.metadata.namespace.as_deref(), &spec, accounts));
    notes
}

fn of_update(update: &Update) -> Vec<Note> {
    if update.is_complete() {
        return vec![];
    }
    vec![different(
        "it is not complete",
        "wait for it, or delete it, before its namespace is handed over: else it ends as Aborted, and its Stack runs once more",
    )]
}

fn login(field: &str, url: &str) -> Option<Note> {
    let url = Url::parse(url).ok()?;
    let what = login_in(&url)?;
    let remedy = if url.scheme() == "ssh" {
        "take it out, and name a Secret that has the key in gitAuth (of a Workspace: git.auth)"
    } else {
        "take it out, and name a Secret that has it in gitAuth (of a Workspace: git.auth)"
    };
    Some(refused(format!("{field} has {what} in it; it is not fetched"), remedy))
}

/// What a program for AWS lacks whose `ServiceAccount` names no role. A note only where the object itself tells of AWS; nothing is known of
/// variables that come with a whole `ConfigMap`, a Secret or an environment of Pulumi ESC.
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
            format!("ServiceAccount {account:?} has no {ROLE}: a role of EKS Pod Identity or of the node is no task's"),
            "annotate it with a role, if the program or the backend has its rights from one of these",
        ));
    }
    if (is_configured || has(AWS_KEYS)) && !has(AWS_REGION) {
        notes.push(different(
            format!("no aws:region in the Stack's configuration, and no {ROLE}: a task has no AWS_REGION, and no node to ask"),
            "set aws:region, unless Pulumi.STACK.yaml of the source or the program has it",
        ));
    }
    notes
}

/// What concerns the runs of a workspace, whatever its source is.
fn of_runs(at: &str, namespace: Option<&str>, workspace: &WorkspaceSpec, accounts: &[Value]) -> Vec<Note> {
    let mut notes = Vec::new();
    let (logins, ignored): (Vec<_>, Vec<_>) =
        workspace.pod_only(at).into_iter().partition(|field| field.ends_with(".imagePullSecrets"));
    for field in logins {
        notes.push(different(format!("{field} mean nothing to a task"), LOGINS));
    }
    if !ignored.is_empty() {
        let remedy = "nothing, unless the installation has PodFields=refuse";
        notes.push(different(format!("ignored, as a run is no pod: {}", ignored.join(", ")), remedy));
    }
    let is_file = |url: &str| url.starts_with("file://");
    let backend = workspace.env.iter().rfind(|env| env.name == "PULUMI_BACKEND_URL").and_then(|env| env.value.as_deref());
    if backend.is_some_and(is_file) {
        let what =
            "the backend is file://, on a disk of PKO's pod: a task finds no state there, and would create everything once more";
        let remedy =
            "move the state to a backend that a task reaches, such as s3:// (pulumi stack export, import), before the hand-over";
        notes.push(refused(what, remedy));
    }
    let name = workspace.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let account = accounts
        .iter()
        .find(|account| account["metadata"]["name"] == name && account["metadata"]["namespace"].as_str() == namespace);
    let Some(account) = account else {
        notes.push(refused(format!("ServiceAccount {name:?} is not there"), "create it, or correct serviceAccountName"));
        return notes;
    };
    let annotations = &account["metadata"]["annotations"];
    if annotations[ROLE].is_string() {
        let what = format!("ServiceAccount {name:?}: the role of {ROLE} is the program's");
        notes.push(Note { verdict: Verdict::Same, what, remedy: "" });
    } else {
        notes.extend(without_role(name, backend, workspace));
    }
    for (annotation, remedy) in IDENTITIES.into_iter().filter(|(annotation, _)| annotations[*annotation].is_string()) {
        notes.push(different(format!("ServiceAccount {name:?}: {annotation} means nothing to a task"), remedy));
    }
    if account["imagePullSecrets"].as_array().is_some_and(|secrets| !secrets.is_empty()) {
        notes.push(different(format!("ServiceAccount {name:?}: imagePullSecrets mean nothing to a task"), LOGINS));
    }
    notes
}

fn better(what: &str) -> Note {
    Note { verdict: Verdict::Better, what: what.into(), remedy: "" }
}

fn different(what: impl Into<String>, remedy: &'static str) -> Note {
    Note { verdict: Verdict::Different, what: what.into(), remedy }
}

fn refused(what: impl Into<String>, remedy: &'static str) -> Note {
    Note { verdict: Verdict::Refused, what: what.into(), remedy }
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
        let spec = driftless_api::merge(usual, spec);
        json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "namespace": "shop", "name": "app" }, "spec": spec })
    }

    fn template(spec: &Value) -> Value {
        json!({ "workspaceTemplate": { "spec": spec } })
    }

    fn pod(spec: &Value) -> Value {
        template(&json!({ "podTemplate": { "spec": spec } }))
    }

    #[test]
    fn each_stack_is_judged_by_what_decides_of_it() {
        let accounts = vec![account(&json!({ ROLE: "arn:aws:iam::123456789012:role/a" }), &Value::Null)];
        let env = |reference: Value| json!({ "backend": null, "envRefs": { "PULUMI_BACKEND_URL": reference } });
        let volumes = json!({ "volumes": [{ "name": "v", "secret": { "secretName": "s" } }] });
        let git = json!({ "programRef": null, "projectRepo": "https://git.example/a.git", "branch": "main" });
        for (spec, verdict, words) in [
            (json!({}), Verdict::Same, ""),
            (pod(&volumes), Verdict::Same, ""),
            (json!({ "destroyOnFinalize": true }), Verdict::Better, "destroyOnFinalize"),
            (json!({ "prerequisites": [{ "name": "other" }] }), Verdict::Better, "prerequisites"),
            (git, Verdict::Different, "no .git"),
            (pod(&json!({ "tolerations": [{ "key": "a" }] })), Verdict::Different, "podTemplate.spec.tolerations"),
            (
                pod(&json!({ "imagePullSecrets": [{ "name": "login" }] })),
                Verdict::Different,
                "podTemplate.spec.imagePullSecrets mean nothing to a task\n               do: name the registry in PrivateRegistries",
            ),
            (
                json!({ "continueResyncOnCommitMatch": true, "resyncFrequencySeconds": 60 }),
                Verdict::Different,
                "spec.resyncFrequencySeconds is 60: each resync is a task, 1440 a day",
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
                driftless_api::merge(template(&json!({ "image": "pulumi/pulumi:3.197.0" })), &json!({ "config": { "n": 1 } })),
                Verdict::Refused,
                "spec.workspaceTemplate.spec.image is \"pulumi/pulumi:3.197.0\"",
            ),
            (pod(&json!({ "hostNetwork": true })), Verdict::Refused, "podTemplate.spec.hostNetwork has no meaning on Fargate"),
            (json!({ "backend": "file:///state" }), Verdict::Refused, "the backend is file://"),
            (
                env(json!({ "type": "Literal", "literal": { "value": "file:///state" } })),
                Verdict::Refused,
                "the backend is file://",
            ),
            (env(json!({ "type": "Env", "env": { "name": "A" } })), Verdict::Refused, "ref type \"Env\" is deprecated"),
            (json!({ "stack": 7 }), Verdict::Refused, "a field has another type"),
            (json!({ "serviceAccountName": "gone" }), Verdict::Refused, "ServiceAccount \"gone\" is not there"),
        ] {
            let objects = Objects { stacks: vec![stack(&spec)], accounts: accounts.clone(), ..Objects::default() };
            let [report] = &scan(&objects)[..] else { panic!("one report") };
            assert_eq!((report.verdict(), report.object.as_str()), (verdict, "Stack shop/app"), "{spec}: {report}");
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
            assert!(text.starts_with("refused") && text.contains("spec.projectRepo has a") && text.contains("gitAuth"), "{text}");
            assert!(!text.contains("t0ken"), "{text}");
        }
        for url in ["https://git.example/a@b.git", "ssh://git@git.example/a", "git@git.example:me/a.git"] {
            assert!(of(url).starts_with("different"), "{}", of(url));
        }
    }

    #[test]
    fn program_for_aws_without_a_role_is_told_what_a_task_lacks() {
        let (role, region) = ("is no task's", "no aws:region in the Stack's configuration");
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
    fn identities_and_logins_of_a_service_account_are_told() {
        for (annotations, secrets, verdict, words) in [
            (json!({ ROLE: "arn:aws:iam::123456789012:role/a" }), Value::Null, Verdict::Same, "is the program's"),
            (json!({ "iam.gke.io/gcp-service-account": "a@b" }), Value::Null, Verdict::Different, "means nothing to a task"),
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
    fn workspaces_and_updates_are_told_of_where_a_person_has_to_act() {
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
        let told: Vec<_> = scan(&objects).iter().map(|report| (report.object.clone(), report.verdict())).collect();
        assert_eq!(told, [("Workspace shop/app".into(), Verdict::Refused), ("Update shop/app".into(), Verdict::Different)]);
    }
}
