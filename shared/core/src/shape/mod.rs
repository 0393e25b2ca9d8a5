//! The fields of a Workspace that have a meaning on Fargate. Fields that only concern the pod are
//! ignored, with an Event; any other field without a meaning is refused by name, because a run that
//! ignored it would do something else.

mod backend;
mod fields;
mod mount_path;
mod pod_fields;
mod resources;
mod task;
#[cfg(test)]
mod testing;
mod volumes;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{
    fields::{CONTAINER_ONLY, POD_ONLY, is_label, is_set, list, meaningless, only, typed},
    resources::Asked,
    volumes::Volumes,
};
pub use self::{
    pod_fields::PodFields,
    task::{Architecture, DefaultSize, InitContainer, Mount, RUNNER_VOLUME, SECRETS, SHARE, TaskShape},
    volumes::{FileSource, KeyToPath, MountedFiles, MountedObject},
};
use crate::{EmbeddedMetadata, EnvFromSource, EnvVar, ResourceRequirements, merge};

/// The container that a pod template changes.
const MAIN: &str = "pulumi";
/// PKO's own init containers, which a pod template may change there.
const PKO_INIT: [&str; 2] = ["bootstrap", "fetch"];
/// A task has at most ten containers, and two are Driftless's.
const MAX_INIT: usize = 8;

/// The node label that a task has a counterpart for.
const ARCHITECTURE: &str = "kubernetes.io/arch";

/// Labels and annotations by which a webhook gives a pod an identity or files, and the replacement
/// for each, as in docs/migration.md. An init container cannot log in for the program, because it
/// has neither a token nor a Secret.
const INJECTORS: [(&str, &str); 3] = [
    (
        "azure.workload.identity/use",
        "mount a serviceAccountToken of a projected volume for the audience api://AzureADTokenExchange in the container pulumi, \
         and set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE",
    ),
    ("iam.amazonaws.com/role", "name the role in the annotation eks.amazonaws.com/role-arn of the ServiceAccount"),
    (
        "vault.hashicorp.com/agent-inject",
        "mount a serviceAccountToken of a projected volume for Vault's audience in the container pulumi, set VAULT_ADDR (and \
         VAULT_NAMESPACE), and have the program log in to Vault with that token",
    ),
];

/// The fields of the container `pulumi` that have a meaning: the Workspace's own, with the pod
/// template's merged over them.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Main {
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_pull_policy: Option<String>,
    resources: ResourceRequirements,
    env: Vec<EnvVar>,
    env_from: Vec<EnvFromSource>,
    volume_mounts: Vec<Value>,
}

/// The fields of an init container that have a meaning.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Init {
    name: String,
    image: Option<String>,
    image_pull_policy: Option<String>,
    command: Vec<String>,
    args: Vec<String>,
    env: Vec<EnvVar>,
    resources: ResourceRequirements,
    volume_mounts: Vec<Value>,
}

/// The fields of a Workspace's spec that its tasks are made of, as the user wrote them.
#[derive(Clone, Copy, Debug)]
pub struct TaskFields<'a> {
    /// The field in which the user wrote the spec: `spec`, or `spec.workspaceTemplate.spec` of a
    /// Stack.
    pub at: &'a str,
    /// The source of its own that it sets: `git`, `flux` or `local`.
    pub source: Option<&'static str>,
    /// `image`
    pub image: Option<&'a str>,
    /// `imagePullPolicy`
    pub image_pull_policy: Option<&'a str>,
    /// `resources`
    pub resources: Option<&'a ResourceRequirements>,
    /// `env`
    pub env: &'a [EnvVar],
    /// `envFrom`
    pub env_from: &'a [EnvFromSource],
    /// `podTemplate.spec`; null without one.
    pub pod: &'a Value,
    /// `podTemplate.metadata`
    pub pod_metadata: Option<&'a EmbeddedMetadata>,
    /// `serviceTemplate.metadata`
    pub service_metadata: Option<&'a EmbeddedMetadata>,
    /// `pulumiLogLevel`
    pub log_level: Option<i32>,
    /// `securityProfile`
    pub security_profile: Option<&'a str>,
}

impl TaskFields<'_> {
    /// The shape of a task. An error names the field that has no meaning on Fargate or exceeds
    /// Fargate's limits, with the remedy. Errors do not depend on `default`.
    pub fn shape(&self, default: DefaultSize) -> Result<TaskShape, String> {
        let at = self.at;
        self.check_own()?;
        let pod = format!("{at}.podTemplate.spec");
        only(&pod, self.pod, &["containers", "initContainers", "volumes"], &POD_ONLY)?;
        for (field, items) in [("containers", "containers"), ("initContainers", "containers"), ("volumes", "volumes")] {
            if !matches!(self.pod[field], Value::Array(_) | Value::Null) {
                return Err(format!("{pod}.{field} is not a list of {items}"));
            }
        }
        let (main, main_at) = (self.main()?, format!("{pod}.containers[{MAIN}]"));
        let patched = |field| self.patches().any(|patch| is_set(&patch[field]));
        let home = |field| if patched(field) { &main_at } else { at };
        check_pull(home("imagePullPolicy"), main.image_pull_policy.as_deref())?;
        check_env(home("env"), &main.env)?;
        let mut asked = Asked::default();
        asked.add(&format!("{}.resources", home("resources")), &main.resources, true)?;
        let volumes = Volumes::of(&pod, self.pod)?;
        let (mounts, _) = volumes.of_main(&main_at, &main.volume_mounts)?;
        let init = inits(&pod, list(&self.pod["initContainers"]), &volumes, &mut asked)?;
        let (cpu, memory_mib) = asked.size(at, default)?;
        let image = main.image.filter(|image| !image.is_empty());
        Ok(TaskShape {
            image,
            architecture: self.architecture(&pod)?,
            cpu,
            memory_mib,
            ephemeral_gib: asked.disk(at)?,
            mounts,
            init,
        })
    }

    /// Pulumi's environment, `envFrom` and `env`: the Workspace's own with that of its pod
    /// template's container `pulumi` merged over it. An error names a field of the wrong type,
    /// which [`TaskFields::shape`] refuses too.
    pub fn environment(&self) -> Result<(Vec<EnvFromSource>, Vec<EnvVar>), String> {
        self.main().map(|main| (main.env_from, main.env))
    }

    /// The files at Pulumi's mount paths. Errors are also errors of [`TaskFields::shape`].
    pub fn mounted_files(&self) -> Result<Vec<MountedFiles>, String> {
        let pod = format!("{}.podTemplate.spec", self.at);
        let (_, files) =
            Volumes::of(&pod, self.pod)?.of_main(&format!("{pod}.containers[{MAIN}]"), &self.main()?.volume_mounts)?;
        Ok(files)
    }

    fn check_own(&self) -> Result<(), String> {
        let at = self.at;
        if let Some(field) = self.source {
            let remedy = "remove it, and set one of spec.projectRepo, spec.fluxSource and spec.programRef of the Stack";
            return Err(format!("{}; {remedy}", meaningless(at, field)));
        }
        if let Some(metadata) = self.pod_metadata {
            let has = |key: &str| metadata.labels.contains_key(key) || metadata.annotations.contains_key(key);
            if let Some((key, instead)) = INJECTORS.into_iter().find(|(key, _)| has(key)) {
                let field = format!("podTemplate.metadata, {key}");
                return Err(format!("{}; remove it, and {instead}", meaningless(at, &field)));
            }
        }
        if let Some(level) = self.log_level.filter(|level| *level < 0) {
            return Err(format!("{at}.pulumiLogLevel is {level}; write 0 or more"));
        }
        match self.security_profile {
            None | Some("" | "restricted" | "baseline") => Ok(()),
            Some(other) => Err(format!("{at}.securityProfile is {other:?}; use restricted or baseline")),
        }
    }

    /// The architecture of the node that the pod would get.
    fn architecture(&self, pod: &str) -> Result<Option<Architecture>, String> {
        let Some(name) = self.pod["nodeSelector"][ARCHITECTURE].as_str() else { return Ok(None) };
        let words = |error| format!("{pod}.nodeSelector[{ARCHITECTURE}]: {error}; write one of them");
        name.parse().map(Some).map_err(words)
    }

    /// The pod template's entries for the container `pulumi`.
    fn patches(&self) -> impl Iterator<Item = &Value> {
        list(&self.pod["containers"]).iter().filter(|container| container["name"] == MAIN)
    }

    fn main(&self) -> Result<Main, String> {
        let at = format!("{}.podTemplate.spec.containers", self.at);
        for container in list(&self.pod["containers"]) {
            let name = container["name"].as_str().unwrap_or_default();
            if name != MAIN {
                let remedy = "remove it, or make it an init container";
                return Err(format!("{} beside {MAIN}; {remedy}", meaningless(&at, &format!("[{name}]"))));
            }
            let at = format!("{at}[{name}]");
            only(
                &at,
                container,
                &["name", "image", "imagePullPolicy", "resources", "env", "envFrom", "volumeMounts"],
                &CONTAINER_ONLY,
            )?;
        }
        let own = Main {
            image: self.image.map(str::to_owned),
            image_pull_policy: self.image_pull_policy.map(str::to_owned),
            resources: self.resources.cloned().unwrap_or_default(),
            env: self.env.to_vec(),
            env_from: self.env_from.to_vec(),
            volume_mounts: Vec::new(),
        };
        let own = serde_json::to_value(own).unwrap_or_default();
        typed(&format!("{at}[{MAIN}]"), self.patches().fold(own, merge))
    }
}

fn inits(pod: &str, containers: &[Value], volumes: &Volumes<'_>, asked: &mut Asked) -> Result<Vec<InitContainer>, String> {
    if containers.len() > MAX_INIT {
        return Err(format!("{pod}.initContainers has {} entries, the maximum is {MAX_INIT}; combine some", containers.len()));
    }
    let mut names = BTreeSet::new();
    let mut init = Vec::new();
    for container in containers {
        let name = container["name"].as_str().unwrap_or_default();
        let at = format!("{pod}.initContainers[{name}]");
        if PKO_INIT.contains(&name) {
            return Err(format!(
                "{at} is a container of the Pulumi Kubernetes Operator, which does not exist on Fargate; remove \
                 it, or rename yours"
            ));
        }
        if !is_label(name) || !names.insert(name) {
            return Err(format!("{at} has the name {name:?}; write a unique name of at most 63 characters of a-z, 0-9 and -"));
        }
        init.push(init_container(&at, container, volumes, asked)?);
    }
    Ok(init)
}

fn init_container(at: &str, container: &Value, volumes: &Volumes<'_>, asked: &mut Asked) -> Result<InitContainer, String> {
    let fields = ["name", "image", "imagePullPolicy", "command", "args", "env", "resources", "volumeMounts"];
    only(at, container, &fields, &CONTAINER_ONLY)?;
    let Init { name, image, image_pull_policy, command, args, env, resources, volume_mounts } =
        typed(at, merge(Value::Null, container))?;
    let mounts = volumes.of_init(at, &volume_mounts)?;
    check_pull(at, image_pull_policy.as_deref())?;
    asked.add(&format!("{at}.resources"), &resources, false)?;
    if let Some(var) = env.iter().find(|var| var.value_from.is_some()) {
        let remedy = "write a value, or give the variable to pulumi with the Stack's spec.envRefs";
        return Err(format!("{at}.env[{}].valueFrom cannot be resolved for an init container; {remedy}", var.name));
    }
    let env: Vec<_> = env.into_iter().map(|var| (var.name, var.value.unwrap_or_default())).collect();
    let variables = env.iter().map(|(name, _)| name.as_str()).chain(["PULUMI_ENV"]);
    let texts: Vec<_> = command.iter().chain(&args).chain(env.iter().map(|(_, value)| value)).collect();
    for variable in variables {
        if texts.iter().any(|text| text.contains(&format!("$({variable})"))) {
            return Err(format!("{at} has $({variable}), which only Kubernetes expands; let a shell expand ${variable}"));
        }
    }
    Ok(InitContainer { name, image: image.filter(|image| !image.is_empty()), entry_point: command, command: args, env, mounts })
}

fn check_pull(at: &str, policy: Option<&str>) -> Result<(), String> {
    match policy {
        None | Some("" | "Always" | "IfNotPresent") => Ok(()),
        Some(other) => Err(format!("{at}.imagePullPolicy is {other:?}, but Fargate always pulls an image; remove it")),
    }
}

fn check_env(at: &str, env: &[EnvVar]) -> Result<(), String> {
    for (name, from) in env.iter().filter_map(|var| Some((&var.name, var.value_from.as_ref()?))) {
        let pods = [
            (".fieldRef", from.field_ref.is_some()),
            (".resourceFieldRef", from.resource_field_ref.is_some()),
            (".fileKeyRef", from.file_key_ref.is_some()),
            ("", from.secret_key_ref.is_none() && from.config_map_key_ref.is_none()),
        ];
        if let Some((field, _)) = pods.into_iter().find(|(_, set)| *set) {
            let remedy = "write a value, or use secretKeyRef or configMapKeyRef";
            return Err(format!("{}; {remedy}", meaningless(at, &format!("env[{name}].valueFrom{field}"))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::{testing::WorkspaceSpec, *};

    fn workspace(spec: Value) -> WorkspaceSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn pod(spec: Value) -> Value {
        Value::from_iter([("podTemplate", Value::from_iter([("spec", spec)]))])
    }

    #[test]
    fn workspace_is_converted_to_a_task_shape() {
        let default = TaskShape::default();
        let of = |cpu, memory_mib, ephemeral_gib| TaskShape { cpu, memory_mib, ephemeral_gib, ..default.clone() };
        let image = |image: &str| TaskShape { image: Some(image.into()), ..default.clone() };
        let resources = |requests: Value, limits: Value| json!({ "resources": { "requests": requests, "limits": limits } });
        for (spec, expected) in [
            (json!({}), default.clone()),
            (
                json!({ "image": "pulumi/pulumi:3", "imagePullPolicy": "Always", "securityProfile": "baseline" }),
                image("pulumi/pulumi:3"),
            ),
            (
                pod(json!({ "nodeSelector": { "kubernetes.io/arch": "arm64" } })),
                TaskShape { architecture: Some(Architecture::Arm64), ..default.clone() },
            ),
            (json!({ "podTemplate": { "spec": {} }, "projectInfo": { "name": "p", "runtime": "yaml" } }), default.clone()),
            (resources(json!({ "cpu": 1, "memory": "64Mi" }), json!({ "memory": "4Gi" })), of(1024, 4096, None)),
            (resources(json!({ "cpu": "2" }), json!({ "cpu": "100m" })), of(2048, 4096, None)),
            (resources(json!({ "cpu": "100m", "memory": "64Mi" }), json!({})), default.clone()),
            (resources(json!({ "memory": "5Gi" }), json!({})), of(1024, 5120, None)),
            (resources(json!({}), json!({ "cpu": "250m", "memory": "512Mi" })), of(256, 512, None)),
            (
                pod(json!({ "initContainers": [{ "name": "a", "resources": { "limits": { "memory": "64Mi" } } }] })),
                TaskShape { init: vec![InitContainer { name: "a".into(), ..InitContainer::default() }], ..default.clone() },
            ),
            (resources(json!({ "ephemeral-storage": "20Gi" }), json!({})), of(1024, 4096, None)),
            (resources(json!({ "ephemeral-storage": "20.1Gi" }), json!({})), of(1024, 4096, Some(21))),
            (resources(json!({ "ephemeral-storage": "200Gi" }), json!({})), of(1024, 4096, Some(200))),
            (
                pod(json!({ "containers": [{ "name": "pulumi", "image": "mine", "securityContext": {}, "ports": null }] })),
                image("mine"),
            ),
            (
                json!({
                    "image": "base", "resources": { "requests": { "cpu": "4", "memory": "1Gi" } },
                    "podTemplate": { "spec": {
                        "tolerations": [],
                        "containers": [{ "name": "pulumi", "resources": { "requests": { "cpu": "1" } } }],
                        "initContainers": [{ "name": "a", "resources": { "limits": { "memory": "5Gi" } } }],
                    } },
                }),
                TaskShape {
                    init: vec![InitContainer { name: "a".into(), ..InitContainer::default() }],
                    image: Some("base".into()),
                    ..of(1024, 5120, None)
                },
            ),
            (
                pod(json!({ "initContainers": [{
                    "name": "vault", "image": "vault:1", "command": ["sh", "-c"], "args": ["echo A=$(hostname) >> $PULUMI_ENV"],
                    "env": [{ "name": "B", "value": "1" }, { "name": "C" }],
                    "volumeMounts": [{ "name": "share", "mountPath": "/share" }],
                }] })),
                TaskShape {
                    init: vec![InitContainer {
                        name: "vault".into(),
                        image: Some("vault:1".into()),
                        entry_point: vec!["sh".into(), "-c".into()],
                        command: vec!["echo A=$(hostname) >> $PULUMI_ENV".into()],
                        env: vec![("B".into(), "1".into()), ("C".into(), String::new())],
                        mounts: Vec::new(),
                    }],
                    ..default.clone()
                },
            ),
        ] {
            assert_eq!(workspace(spec.clone()).shape("spec", DefaultSize::default()), Ok(expected), "{spec}");
        }
    }

    #[test]
    fn pod_only_fields_are_ignored_and_named_or_refused() {
        let set = |fields: &[&str]| fields.iter().map(|field| ((*field).to_owned(), json!("x"))).collect::<Map<_, _>>();
        let mut template = set(&POD_ONLY);
        let container = |name: &str| {
            let mut container = set(&CONTAINER_ONLY);
            container.insert("name".into(), name.into());
            container
        };
        template.insert("containers".into(), json!([container("pulumi")]));
        template.insert("initContainers".into(), json!([container("a")]));
        let metadata = json!({ "labels": { "a": "b" } });
        let spec = workspace(json!({
            "podTemplate": { "metadata": metadata, "spec": template }, "serviceTemplate": { "metadata": metadata },
        }));
        assert!(spec.shape("spec", DefaultSize::default()).is_ok());
        let ignored = spec.pod_only("spec");
        assert_eq!(ignored.len(), 2 + POD_ONLY.len() + 2 * CONTAINER_ONLY.len(), "{ignored:?}");
        let named =
            ["podTemplate.metadata", "podTemplate.spec.tolerations", "podTemplate.spec.initContainers[a].securityContext"];
        assert!(named.iter().all(|field| ignored.contains(&format!("spec.{field}"))), "{ignored:?}");
        assert_eq!(PodFields::Ignore.check(&ignored), Ok(()));
        let refused = PodFields::Refuse.check(&ignored).unwrap_err();
        assert!(
            refused.starts_with("spec.serviceTemplate has no meaning on Fargate") && refused.ends_with("remove it"),
            "{refused}"
        );
        let arm = pod(json!({ "nodeSelector": { "kubernetes.io/arch": "arm64" } }));
        for spec in [json!({}), arm, pod(json!({ "tolerations": [], "containers": [{ "name": "pulumi", "ports": null }] }))] {
            assert_eq!(PodFields::Refuse.check(&workspace(spec).pod_only("spec")), Ok(()));
        }
    }

    #[test]
    fn pod_only_fields_stall_no_stack() {
        let how = json!({ "exec": { "command": ["sleep", "5"] } });
        let spec = workspace(pod(json!({
            "automountServiceAccountToken": true, "dnsConfig": { "options": [{ "name": "ndots", "value": "1" }] }, "os": { "name": "linux" },
            "containers": [{ "name": "pulumi", "lifecycle": { "preStop": how } }],
        })));
        assert_eq!(spec.shape("spec", DefaultSize::default()).err(), None);
        let pod = "spec.podTemplate.spec";
        let expected = [".automountServiceAccountToken", ".containers[pulumi].lifecycle", ".dnsConfig", ".os"];
        let mut named = spec.pod_only("spec");
        named.sort();
        assert_eq!(named, expected.map(|field| format!("{pod}{field}")));
    }

    #[test]
    fn fields_that_change_what_a_program_reaches_are_refused() {
        for (field, value) in [
            ("dnsConfig", json!({ "nameservers": ["10.0.0.1"], "options": [{ "name": "ndots", "value": "1" }] })),
            ("dnsConfig", json!({ "searches": ["example.com"] })),
            ("hostAliases", json!([{ "ip": "10.0.0.1" }])),
        ] {
            let error = workspace(pod(json!({ field: value }))).shape("spec", DefaultSize::default()).unwrap_err();
            assert_eq!(error, format!("spec.podTemplate.spec.{field} has no meaning on Fargate; remove it"));
        }
    }

    fn assert_refused(spec: &Value, words: &str) {
        let error =
            workspace(spec.clone()).shape("spec.workspaceTemplate.spec", DefaultSize::default()).expect_err(&spec.to_string());
        assert!(error.starts_with("spec.workspaceTemplate.spec.") && error.contains(words), "{error}\n{words}");
    }

    #[test]
    fn unsupported_field_is_refused_by_name() {
        let init = |fields: Value| pod(json!({ "initContainers": [merge(json!({ "name": "a" }), &fields)] }));
        let main = |fields: Value| pod(json!({ "containers": [merge(json!({ "name": "pulumi" }), &fields)] }));
        let env = |from: Value| json!({ "env": [{ "name": "A", "valueFrom": from }] });
        let field = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
        for (spec, words) in [
            (pod(json!({ "hostNetwork": true })), "podTemplate.spec.hostNetwork has no meaning on Fargate; remove it"),
            (pod(json!({ "nonsense": 1 })), "podTemplate.spec.nonsense has no meaning on Fargate; remove it"),
            (
                pod(json!({ "containers": [{ "name": "proxy" }] })),
                "podTemplate.spec.containers[proxy] has no meaning on Fargate beside pulumi",
            ),
            (
                pod(json!({ "automountServiceAccountToken": false })),
                "podTemplate.spec.automountServiceAccountToken has no meaning on Fargate; remove it",
            ),
            (
                json!({ "podTemplate": { "metadata": { "labels": { "azure.workload.identity/use": "true" } } } }),
                "podTemplate.metadata, azure.workload.identity/use has no meaning on Fargate; remove it, and mount a serviceAccountToken \
                 of a projected volume for the audience api://AzureADTokenExchange in the container pulumi, and set AZURE_CLIENT_ID, \
                 AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE",
            ),
            (
                json!({ "podTemplate": { "metadata": { "annotations": { "vault.hashicorp.com/agent-inject": "true" } } } }),
                "podTemplate.metadata, vault.hashicorp.com/agent-inject has no meaning on Fargate; remove it, and mount a \
                 serviceAccountToken of a projected volume for Vault's audience in the container pulumi, set VAULT_ADDR",
            ),
            (
                main(json!({ "lifecycle": { "postStart": { "exec": { "command": ["sh"] } }, "preStop": {} } })),
                "podTemplate.spec.containers[pulumi].lifecycle.postStart has no meaning on Fargate; remove it, and run the command",
            ),
            (json!({ "git": {} }), "git has no meaning on Fargate; remove it, and set one of spec.projectRepo"),
            (json!({ "flux": {} }), "flux has no meaning"),
            (json!({ "local": {} }), "local has no meaning"),
            (json!({ "imagePullPolicy": "Never" }), r#"imagePullPolicy is "Never", but Fargate always pulls"#),
            (json!({ "securityProfile": "root" }), r#"securityProfile is "root"; use restricted or baseline"#),
            (json!({ "pulumiLogLevel": -1 }), "pulumiLogLevel is -1; write 0 or more"),
            (env(field.clone()), "env[A].valueFrom.fieldRef has no meaning"),
            (
                env(json!({ "resourceFieldRef": { "resource": "limits.cpu" } })),
                "env[A].valueFrom.resourceFieldRef has no meaning",
            ),
            (
                env(json!({ "fileKeyRef": { "key": "k", "path": "p", "volumeName": "v" } })),
                "env[A].valueFrom.fileKeyRef has no meaning",
            ),
            (env(json!({ "someday": 1 })), "env[A].valueFrom has no meaning on Fargate; write a value"),
            (main(env(field)), "podTemplate.spec.containers[pulumi].env[A].valueFrom.fieldRef has no meaning"),
            (main(json!({ "env": 1 })), "podTemplate.spec.containers[pulumi]: invalid type"),
            (main(json!({ "command": ["sh"] })), "podTemplate.spec.containers[pulumi].command has no meaning"),
            (
                main(json!({ "resources": { "limits": { "gpu": 1 } } })),
                "podTemplate.spec.containers[pulumi].resources.limits[gpu] has no",
            ),
            (
                init(json!({ "name": "fetch" })),
                "podTemplate.spec.initContainers[fetch] is a container of the Pulumi Kubernetes Operator",
            ),
            (init(json!({ "name": "A b" })), r#"podTemplate.spec.initContainers[A b] has the name "A b"; write"#),
            (init(json!({ "restartPolicy": "Always" })), "podTemplate.spec.initContainers[a].restartPolicy has no meaning"),
            (
                init(env(json!({ "secretKeyRef": { "name": "n", "key": "k" } }))),
                "initContainers[a].env[A].valueFrom cannot be resolved",
            ),
            (
                init(json!({ "envFrom": [{ "secretRef": { "name": "s" } }] })),
                "initContainers[a].envFrom has no meaning on Fargate",
            ),
            (init(json!({ "workingDir": "/a" })), "initContainers[a].workingDir has no meaning on Fargate"),
            (init(json!({ "args": ["$(PULUMI_ENV)"] })), "initContainers[a] has $(PULUMI_ENV), which only Kubernetes expands"),
            (
                pod(json!({ "initContainers": [{ "name": "a" }, { "name": "a" }] })),
                r#"initContainers[a] has the name "a"; write a unique name"#,
            ),
            (
                pod(json!({ "initContainers": vec![json!({}); 9] })),
                "podTemplate.spec.initContainers has 9 entries, the maximum is 8",
            ),
            (pod(json!({ "containers": { "name": "pulumi" } })), "podTemplate.spec.containers is not a list of containers"),
            (pod(json!({ "volumes": {} , "hostIPC": true })), "podTemplate.spec.hostIPC has no meaning"),
            (
                pod(json!({ "nodeSelector": { "kubernetes.io/arch": "s390x" } })),
                r#"podTemplate.spec.nodeSelector[kubernetes.io/arch]: "s390x" is neither amd64 nor arm64; write one of them"#,
            ),
            (pod(json!({ "volumes": "x" })), "podTemplate.spec.volumes is not a list of volumes"),
            (pod(json!({ "containers": ["x"] })), "podTemplate.spec.containers[] has no meaning"),
        ] {
            assert_refused(&spec, words);
        }
    }

    #[test]
    fn request_that_no_task_can_have_is_refused_by_name() {
        let requests = |name: &str, amount: &str| json!({ "resources": { "requests": { name: amount } } });
        for (spec, words) in [
            (requests("nvidia.com/gpu", "1"), "resources.requests[nvidia.com/gpu] has no meaning"),
            (requests("cpu", "a lot"), r#"resources.requests[cpu] is "a lot"; write an amount such as 500m or 2Gi"#),
            (
                requests("cpu", "16001m"),
                "resources requests 17 CPUs and 0 GiB of memory, the maximum of Fargate is 16 CPUs and 120 GiB",
            ),
            (requests("memory", "121Gi"), "resources requests 0 CPUs and 121 GiB"),
            (
                requests("ephemeral-storage", "201Gi"),
                "resources requests 201 GiB of ephemeral-storage, the maximum of Fargate is 200",
            ),
            (json!({ "resources": { "claims": [{ "name": "gpu" }] } }), "resources.claims has no meaning"),
        ] {
            assert_refused(&spec, words);
        }
    }

    #[test]
    fn pod_template_environment_overrides_the_workspace() {
        let spec = json!({
            "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }], "envFrom": [{ "secretRef": { "name": "s" } }],
            "podTemplate": { "spec": { "containers": [{ "name": "pulumi", "env": [{ "name": "B", "value": "3" }, { "name": "C", "value": "4" }] }] } },
        });
        let (env_from, env) = workspace(spec).environment("spec").unwrap();
        let env: Vec<_> = env.iter().map(|var| (var.name.as_str(), var.value.as_deref().unwrap())).collect();
        assert_eq!(env, [("A", "1"), ("B", "3"), ("C", "4")]);
        assert_eq!(env_from.len(), 1);
    }
}
