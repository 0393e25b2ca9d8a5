//! The actions of a user in the world, for the demo and for the tests: namespaces, Programs,
//! Stacks, commits, and waiting for their results. It connects to a running world with the
//! variables of `target/world/env`, as a shell would.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest;
use driftless_api::{KINDS, Program, Stack, Update};
use k8s_openapi::api::{
    core::v1::{Namespace as CoreNamespace, Secret},
    events::v1::Event,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    aws::control,
    world::{cluster, git::GitServer, journal, ready, registry::Registry},
};

/// The time limit of a run, with its start and end, on a machine that runs as many others as it
/// can.
pub const RUN: Duration = Duration::from_mins(5);

/// The passphrase of every stack's secrets. Only the user's own Secret may contain it, but no log,
/// message or other object of the world.
pub const PASSPHRASE: &str = "canary-passphrase-7d1f";

/// The namespace with the system's own objects.
pub const SYSTEM: &str = "driftless-system";

/// The label of namespaces that tests create.
pub const OF_TESTS: &str = "world.example/test";

/// The API version of Flux's sources.
pub const FLUX: &str = "source.toolkit.fluxcd.io/v1";

/// The definition of a namespaced kind of version `v1` with a status and any content.
#[must_use]
pub fn definition(group: &str, kind: &str) -> String {
    let singular = kind.to_lowercase();
    format!(
        "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{ name: {singular}s.{group} }}
spec:
  group: {group}
  names: {{ kind: {kind}, plural: {singular}s, singular: {singular} }}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {{ status: {{}} }}
    schema: {{ openAPIV3Schema: {{ type: object, x-kubernetes-preserve-unknown-fields: true }} }}
"
    )
}

/// A running world.
pub struct Handle {
    /// A client with an administrator's rights.
    pub client: Client,
    /// The git server.
    pub git: GitServer,
    /// The git server that requires credentials.
    pub private_git: GitServer,
    /// The OCI registry.
    pub registry: Registry,
    /// Test hooks.
    pub control: control::Client,
    /// The variables of `target/world/env`.
    pub env: BTreeMap<String, String>,
}

impl Handle {
    /// The world with that `env` file, and its cluster [`cluster::NAME`].
    pub async fn open(env_file: &Path) -> Result<Self> {
        Self::open_with(env_file, "KUBECONFIG").await
    }

    /// The same world and its cluster [`cluster::SECOND`], whose Stacks use another backend.
    pub async fn open_second(env_file: &Path) -> Result<Self> {
        let mut second = Self::open_with(env_file, "WORLD_SECOND_KUBECONFIG").await?;
        if let Some(state) = second.env.get_mut("WORLD_STATE") {
            *state = format!("{state}-second");
        }
        Ok(second)
    }

    async fn open_with(env_file: &Path, kubeconfig: &str) -> Result<Self> {
        let text = fs::read_to_string(env_file).with_context(|| format!("reading {}", env_file.display()))?;
        let line = |line: &str| {
            let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
            Some((name.to_owned(), value.trim_matches(['\'', '"']).to_owned()))
        };
        let env: BTreeMap<String, String> = text.lines().filter_map(line).collect();
        let get = |name: &str| env.get(name).cloned().with_context(|| format!("{} does not set {name}", env_file.display()));
        let kubeconfig = Kubeconfig::read_from(get(kubeconfig)?)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self {
            client: Client::try_from(config)?,
            git: GitServer { root: get("WORLD_GIT_ROOT")?.into(), url: get("WORLD_GIT_URL")? },
            private_git: GitServer { root: get("WORLD_GIT_PRIVATE_ROOT")?.into(), url: get("WORLD_GIT_PRIVATE_URL")? },
            registry: Registry { host: get("WORLD_OCI")?, tools: get("WORLD_TOOLS")?.into(), tmp: std::env::temp_dir() },
            control: control::Client::new(&get("WORLD_CONTROL")?)?,
            env,
        })
    }

    /// A value of `target/world/env`.
    pub fn get(&self, name: &str) -> Result<&str> {
        self.env.get(name).map(String::as_str).with_context(|| format!("the world does not set {name}"))
    }

    /// The selected entries of a journal beside the logs, such as [`cluster::AUDIT_LOG`], from that
    /// size on.
    pub fn journal(&self, name: &str, from: u64, wanted: impl Fn(&Value) -> bool) -> Result<Vec<Value>> {
        let log = Path::new(self.get("WORLD_LOGS")?).join(name);
        journal::entries(&log, from)?.filter(|entry| entry.as_ref().map_or(true, &wanted)).collect()
    }

    /// A new namespace that allows runs, with the Secret `pulumi` that has the passphrase.
    pub async fn namespace(&self, name: &str) -> Result<Namespace<'_>> {
        let namespace = self.foreign_namespace(name).await?;
        namespace.allow_runs().await?;
        Ok(namespace)
    }

    /// The environment in which a user's `pulumi` equals that of the tasks' image, logged in to a
    /// backend.
    pub fn pulumi_environment(&self, backend: &str) -> Result<[(&'static str, String); 5]> {
        let home = Path::new(self.get("WORLD_LOGS")?).with_file_name("image").join("pulumi");
        Ok([
            ("PULUMI_HOME", home.display().to_string()),
            ("PULUMI_BACKEND_URL", backend.to_owned()),
            ("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE.to_owned()),
            ("PULUMI_SKIP_UPDATE_CHECK", "true".to_owned()),
            ("KUBECONFIG", self.get("KUBECONFIG")?.to_owned()),
        ])
    }

    /// Runs the `pulumi` of the tasks' image by hand, on the program in a folder. Returns its
    /// output.
    pub async fn pulumi(&self, folder: &Path, backend: &str, arguments: &[&str]) -> Result<String> {
        let tools = self.get("WORLD_TOOLS")?;
        let output = Command::new(Path::new(tools).join("pulumi"))
            .args(arguments)
            .args(["--non-interactive", "--color=never"])
            .current_dir(folder)
            .env("PATH", format!("{tools}:/usr/local/bin:/usr/bin:/bin"))
            .envs(self.pulumi_environment(backend)?)
            .output()
            .await?;
        let [printed, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        ensure!(output.status.success(), "pulumi {arguments:?}: {printed}{said}");
        Ok(printed)
    }

    /// A new namespace with that Secret that does not allow runs.
    pub async fn foreign_namespace(&self, name: &str) -> Result<Namespace<'_>> {
        let labels = Some([(OF_TESTS.into(), String::new())].into());
        let metadata = ObjectMeta { name: Some(name.into()), labels, ..ObjectMeta::default() };
        let object = CoreNamespace { metadata, ..CoreNamespace::default() };
        // Not applied: of two tests with one namespace, one would find the other's objects.
        Api::<CoreNamespace>::all(self.client.clone()).create(&PostParams::default(), &object).await?;
        let namespace = Namespace { world: self, name: name.to_owned() };
        namespace.apply_secret("pulumi", &[("passphrase", PASSPHRASE)]).await?;
        // An earlier namespace of that name has left its files.
        for left in [namespace.state()?, namespace.file("")?] {
            if Path::new(&left).exists() {
                fs::remove_dir_all(&left)?;
            }
        }
        fs::create_dir_all(namespace.state()?)?;
        Ok(namespace)
    }
}

/// A namespace of the world.
pub struct Namespace<'a> {
    /// The world of the namespace.
    pub world: &'a Handle,
    /// Its name.
    pub name: String,
}

/// Keeps a run in progress until it is dropped, so that a test cannot come too late to see it.
#[must_use]
pub struct Hold {
    marker: String,
}

impl Hold {
    /// The additional property of the resources that wait.
    #[must_use]
    pub fn property(&self) -> String {
        format!(", waitWhileExists: '{}'", self.marker)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A marker that no longer exists holds no run.
        let _: std::io::Result<()> = fs::remove_file(&self.marker);
    }
}

/// The source of a Stack.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The Program of that name.
    Program(&'a str),
    /// The GitRepository of that name.
    GitRepository(&'a str),
    /// An object with an artifact.
    Flux {
        /// The API version, such as [`FLUX`].
        api_version: &'a str,
        /// Its kind.
        kind: &'a str,
        /// Its name.
        name: &'a str,
        /// The project's directory.
        dir: &'a str,
    },
    /// A git repository.
    Git {
        /// `projectRepo`
        url: &'a str,
        /// `branch: …` or `commit: …`
        reference: &'a str,
        /// `repoDir`
        dir: &'a str,
        /// `gitAuth: …` or `gitAuthSecret: …` or empty.
        auth: &'a str,
    },
}

impl Namespace<'_> {
    /// Allows runs from this namespace, as the installation guide says.
    pub async fn allow_runs(&self) -> Result<()> {
        self.bind("driftless:").await
    }

    /// Binds those of the roles of runs whose names begin so.
    pub async fn bind(&self, role: &str) -> Result<()> {
        let name = format!("\n  name: {role}");
        let bindings =
            include_str!("../../infra/kubernetes/runs/runs.yaml").split("---\n").filter(|binding| binding.contains(&name));
        self.apply(&bindings.collect::<Vec<_>>().join("---\n").replace("namespace: default", "namespace: NAMESPACE")).await
    }

    /// Applies objects of this namespace.
    pub async fn apply(&self, yaml: &str) -> Result<()> {
        cluster::apply_yaml(&self.world.client, &yaml.replace("NAMESPACE", &self.name)).await.with_context(|| yaml.to_owned())
    }

    /// The folder that is the backend of this namespace's Pulumi stacks.
    pub fn state(&self) -> Result<String> {
        let state = self.world.get("WORLD_STATE")?.strip_prefix("file://").context("a file backend")?;
        Ok(format!("{state}/{}", self.name))
    }

    /// The file of the resource `name` of a program of this namespace.
    pub fn file(&self, name: &str) -> Result<String> {
        let state = self.world.get("WORLD_STATE")?.strip_prefix("file://").context("a file backend")?;
        Ok(format!("{state}-of-programs/{}/{name}", self.name))
    }

    /// The file that exists while there is a [`Hold`].
    pub fn hold_marker(&self) -> Result<String> {
        self.file("hold")
    }

    /// Makes resources of this namespace's programs wait.
    pub fn hold(&self) -> Result<Hold> {
        let hold = Hold { marker: self.hold_marker()? };
        fs::create_dir_all(Path::new(&hold.marker).parent().context("a folder")?)?;
        fs::write(&hold.marker, "")?;
        Ok(hold)
    }

    /// The resources and outputs of a program: one file, and its text as an output. `more` are
    /// additional properties of the file.
    pub fn program(&self, file: &str, content: &str, more: &str) -> Result<String> {
        let path = self.file(file)?;
        Ok(format!(
            "resources: {{ file: {{ type: 'world:index:Object', properties: {{ path: '{path}', content: {content:?}{more} }} }} }}\n\
             outputs: {{ content: '${{file.content}}', size: '${{file.size}}' }}\n"
        ))
    }

    /// Applies a Program.
    pub async fn apply_program(&self, name: &str, body: &str) -> Result<()> {
        let body = body.lines().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "  {line}");
            text
        });
        let head = "apiVersion: pulumi.com/v1\nkind: Program\nmetadata";
        self.apply(&format!("{head}: {{ name: {name}, namespace: NAMESPACE }}\nprogram:\n{body}")).await
    }

    /// Applies a Stack. `more` are additional lines of its spec, each indented by two spaces.
    pub async fn apply_stack(&self, name: &str, source: Source<'_>, more: &str) -> Result<()> {
        self.apply_stack_as(name, "dev", "{}", source, more).await
    }

    /// The same with the name of the Pulumi stack, and with annotations, which are a YAML flow
    /// mapping.
    pub async fn apply_stack_as(&self, name: &str, stack: &str, annotations: &str, source: Source<'_>, more: &str) -> Result<()> {
        let flux = |api_version: &str, kind: &str, name: &str, dir: &str| {
            format!("fluxSource: {{ sourceRef: {{ apiVersion: {api_version}, kind: {kind}, name: {name} }}, dir: '{dir}' }}")
        };
        let source = match source {
            Source::Program(name) => format!("programRef: {{ name: {name} }}"),
            Source::GitRepository(name) => flux(FLUX, "GitRepository", name, ""),
            Source::Flux { api_version, kind, name, dir } => flux(api_version, kind, name, dir),
            Source::Git { url, reference, dir, auth } => {
                format!("projectRepo: '{url}'\n  {reference}\n  repoDir: '{dir}'\n  {auth}")
            }
        };
        let backend = self.state()?;
        self.apply(&format!(
            "apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: {{ name: {name}, namespace: NAMESPACE, annotations: {annotations} }}\n\
             spec:\n  stack: {stack}\n  backend: file://{backend}\n  {source}\n  envRefs:\n    PULUMI_CONFIG_PASSPHRASE: {{ type: \
             Secret, secret: {{ name: pulumi, key: passphrase }} }}\n{more}"
        ))
        .await
    }

    /// Applies a Secret.
    pub async fn apply_secret(&self, name: &str, values: &[(&str, &str)]) -> Result<()> {
        let values: BTreeMap<&str, &str> = values.iter().copied().collect();
        let metadata = json!({ "name": name, "namespace": self.name });
        self.apply(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values }).to_string()).await
    }

    /// Applies a Flux source. `spec` is a YAML flow mapping.
    pub async fn apply_source(&self, kind: &str, name: &str, spec: &str) -> Result<()> {
        let head = format!("apiVersion: {FLUX}\nkind: {kind}\nmetadata: {{ name: {name}, namespace: NAMESPACE }}");
        self.apply(&format!("{head}\nspec: {spec}")).await
    }

    /// Applies a Flux GitRepository that follows `main` of a repository.
    pub async fn apply_git_repository(&self, name: &str, url: &str) -> Result<()> {
        self.apply_source("GitRepository", name, &format!("{{ interval: 1h, url: '{url}', ref: {{ branch: main }} }}")).await
    }

    /// Applies a Flux OCIRepository that follows the tag `latest` of an artifact of the world's
    /// registry.
    pub async fn apply_oci_repository(&self, name: &str, artifact: &str) -> Result<()> {
        let url = format!("oci://{}/{artifact}", self.world.registry.host);
        self.apply_source(
            "OCIRepository",
            name,
            &format!("{{ interval: 1h, url: '{url}', insecure: true, ref: {{ tag: latest }} }}"),
        )
        .await
    }

    /// Applies a Flux Bucket that follows a bucket of the world's S3.
    pub async fn apply_bucket(&self, name: &str, bucket: &str) -> Result<()> {
        let endpoint = self.world.get("WORLD_BUCKET_ENDPOINT")?.trim_start_matches("http://");
        self.apply_secret("s3", &[("accesskey", "test"), ("secretkey", "test")]).await?;
        let spec = format!(
            "{{ interval: 1h, provider: generic, bucketName: {bucket}, endpoint: '{endpoint}', region: us-east-1, insecure: true, \
             secretRef: {{ name: s3 }} }}"
        );
        self.apply_source("Bucket", name, &spec).await
    }

    /// Applies an object with `archive` as its artifact, at the place where source-controller would
    /// serve it.
    pub async fn offer(&self, api_version: &str, kind: &str, name: &str, revision: &str, archive: &[u8]) -> Result<()> {
        let digest = base16ct::lower::encode_string(digest::digest(&digest::SHA256, archive).as_ref());
        let path = format!("{}/{}/{name}/{digest}.tar.gz", kind.to_lowercase(), self.name);
        let file = Path::new(self.world.get("WORLD_ARTIFACTS")?).join(&path);
        fs::create_dir_all(file.parent().context("a folder")?)?;
        fs::write(&file, archive)?;
        let artifact = json!({
            "digest": format!("sha256:{digest}"),
            "lastUpdateTime": "2026-01-01T00:00:00Z",
            "path": path,
            "revision": revision,
            "url": format!("http://source-controller.flux-system.svc.cluster.local./{path}"),
        });
        let metadata = json!({ "name": name, "namespace": self.name });
        self.apply(&json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata }).to_string()).await?;
        self.patch_status(api_version, kind, name, &json!({ "artifact": artifact })).await
    }

    /// The objects of a kind in this namespace.
    pub fn objects(&self, api_version: &str, kind: &str) -> Result<Api<DynamicObject>> {
        let (group, version) = api_version.split_once('/').context("a group and a version")?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Ok(Api::namespaced_with(self.world.client.clone(), &self.name, &kind))
    }

    /// Writes fields of an object's status, as its controller would.
    pub async fn patch_status(&self, api_version: &str, kind: &str, name: &str, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.objects(api_version, kind)?.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The revision of a Flux source's artifact, once it has one.
    pub async fn revision(&self, kind: &str, name: &str) -> Result<Option<String>> {
        let source = self.objects(FLUX, kind)?.get(name).await?;
        Ok(source.data["status"]["artifact"]["revision"].as_str().map(Into::into))
    }

    /// Requests a reconciliation of a GitRepository from source-controller, as `flux reconcile
    /// source git` does.
    pub async fn reconcile_source(&self, name: &str, request: &str) -> Result<()> {
        self.reconcile("GitRepository", name, request).await
    }

    /// The same for a source of any kind.
    pub async fn reconcile(&self, kind: &str, name: &str, request: &str) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/requestedAt": request } } });
        self.objects(FLUX, kind)?.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Applies the Provider and the Alert that notify the webhook of this namespace's sources.
    pub async fn apply_alert(&self) -> Result<()> {
        let (address, token) = (self.world.get("WORLD_WEBHOOK_URL")?, self.world.get("WORLD_WEBHOOK_KEY")?);
        let sources = KINDS.map(|(_, kind)| format!("{{ kind: {kind}, name: '*' }}")).join(", ");
        self.apply(&format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{ name: driftless-webhook, namespace: NAMESPACE }}\nstringData: {{ token: {token} }}\n\
             ---\napiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Provider\nmetadata: {{ name: driftless, namespace: NAMESPACE }}\n\
             spec: {{ type: generic-hmac, address: '{address}', secretRef: {{ name: driftless-webhook }} }}\n\
             ---\napiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Alert\nmetadata: {{ name: driftless, namespace: NAMESPACE }}\n\
             spec: {{ providerRef: {{ name: driftless }}, eventSources: [{sources}] }}\n"
        ))
        .await
    }

    /// The present state of a Stack.
    pub async fn stack(&self, name: &str) -> Result<Stack> {
        Ok(Api::<Stack>::namespaced(self.world.client.clone(), &self.name).get(name).await?)
    }

    /// Deletes every Stack and waits until none is left. Otherwise each would be reconciled at
    /// intervals until the world ends.
    pub async fn clear(&self) -> Result<()> {
        let stacks: Api<Stack> = Api::namespaced(self.world.client.clone(), &self.name);
        stacks.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        ready::until("the Stacks are gone", RUN, async || {
            let left = self.stacks().await?;
            ensure!(left.is_empty(), "{} are left, such as {:#?}", left.len(), left[0].metadata);
            Ok(())
        })
        .await
    }

    /// The present state of every Stack.
    pub async fn stacks(&self) -> Result<Vec<Stack>> {
        Ok(Api::<Stack>::namespaced(self.world.client.clone(), &self.name).list(&ListParams::default()).await?.items)
    }

    /// The notes of a Stack's Events with that reason.
    pub async fn events(&self, stack: &str, reason: &str) -> Result<Vec<String>> {
        let all = Api::<Event>::namespaced(self.world.client.clone(), &self.name).list(&ListParams::default()).await?;
        let about = |event: &Event| {
            let regarding = event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref());
            regarding == Some(stack) && event.reason.as_deref() == Some(reason)
        };
        Ok(all.items.into_iter().filter(about).filter_map(|event| event.note).collect())
    }

    /// Waits until a Stack, or another object of that name, has an Event with that reason and these
    /// words. A function writes the status first.
    pub async fn told(&self, name: &str, reason: &str, words: &[&str]) -> Result<()> {
        ready::until(&format!("an Event {reason} of {name} has {words:?}"), RUN, async || {
            let events = self.events(name, reason).await?;
            ensure!(events.iter().any(|note| words.iter().all(|words| note.contains(words))), "{events:?}");
            Ok(())
        })
        .await
    }

    /// The present state of a Program.
    pub async fn program_object(&self, name: &str) -> Result<Program> {
        Ok(Api::<Program>::namespaced(self.world.client.clone(), &self.name).get(name).await?)
    }

    /// The present state of a Secret.
    pub async fn secret(&self, name: &str) -> Result<Secret> {
        Ok(Api::<Secret>::namespaced(self.world.client.clone(), &self.name).get(name).await?)
    }

    /// The Updates of a Stack, oldest first.
    pub async fn updates(&self, stack: &str) -> Result<Vec<Update>> {
        let all = Api::<Update>::namespaced(self.world.client.clone(), &self.name).list(&ListParams::default()).await?;
        let mut updates: Vec<_> =
            all.items.into_iter().filter(|update| update.stack(SYSTEM).is_some_and(|owner| owner.name == stack)).collect();
        updates.sort_by_key(|update| update.creation_timestamp().map(|time| time.0));
        Ok(updates)
    }

    /// Waits until the Updates of a Stack are complete: it may be Ready just before they are.
    pub async fn complete(&self, stack: &str) -> Result<Vec<Update>> {
        ready::until(&format!("the Updates of Stack {stack} are complete"), RUN, async || {
            let updates = self.updates(stack).await?;
            ensure!(updates.iter().all(Update::is_complete), "{updates:#?}");
            Ok(updates)
        })
        .await
    }

    /// Waits until a Stack matches `wanted`; the error has its last state, with its Updates.
    pub async fn wait(&self, stack: &str, what: &str, wanted: impl Fn(&Stack) -> bool) -> Result<Stack> {
        ready::until(&format!("Stack {stack} {what}"), RUN, async || {
            let found = self.stack(stack).await?;
            if wanted(&found) {
                return Ok(found);
            }
            let status = serde_json::to_string_pretty(&found.status)?;
            let mut updates = String::new();
            for update in self.updates(stack).await? {
                writeln!(updates, "{}: {}", update.name_any(), serde_json::to_string(&update.status)?)?;
            }
            bail!("{status}\n{updates}")
        })
        .await
    }

    /// Waits until the operation of a Stack's newest Update is in progress, which a [`Hold`] keeps
    /// there.
    pub async fn running(&self, stack: &str) -> Result<Update> {
        ready::until(&format!("Stack {stack} runs"), RUN, async || {
            let update = self.updates(stack).await?.pop().with_context(|| format!("no Update of {stack}"))?;
            let ours = update.status.as_ref().and_then(|status| status.driftless.as_ref());
            let phase = ours.and_then(|ours| ours.progress.as_ref()?.phase.as_deref());
            ensure!(phase == Some("run") && !update.is_complete(), "{:#?}", update.status);
            Ok(update)
        })
        .await
    }

    /// Waits until a Stack reports that its source is not available, with this message.
    pub async fn unavailable(&self, stack: &str, words: &str) -> Result<Stack> {
        self.wait(stack, &format!("to say {words:?} of its source"), |stack| {
            condition(stack).is_some_and(|(type_, reason, message)| {
                type_ == "Stalled" && reason == "SourceUnavailable" && message.contains(words)
            })
        })
        .await
    }

    /// Waits until a Stack is Ready after `runs` Updates.
    pub async fn ready_after(&self, stack: &str, runs: usize) -> Result<Stack> {
        let settled =
            |stack: &Stack| is_ready(stack) && stack.status.as_ref().is_some_and(|status| status.current_update.is_none());
        let found = self.wait(stack, &format!("to be Ready after {runs} Updates"), settled).await?;
        let updates = self.updates(stack).await?;
        ensure!(updates.len() == runs, "{} Updates, not {runs}: {:#?}", updates.len(), names(&updates));
        Ok(found)
    }
}

fn names(updates: &[Update]) -> Vec<String> {
    updates
        .iter()
        .map(|update| format!("{} ({})", update.name_any(), update.spec.message.as_deref().unwrap_or_default()))
        .collect()
}

/// Returns whether it is Ready for what the Stack requests now.
#[must_use]
pub fn is_ready(stack: &Stack) -> bool {
    let Some(status) = &stack.status else { return false };
    status.observed_generation == stack.metadata.generation
        && status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The condition with the reason why it is not Ready: type, reason and message.
#[must_use]
pub fn condition(stack: &Stack) -> Option<(String, String, String)> {
    let conditions = &stack.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|condition| ["Reconciling", "Stalled"].contains(&condition.type_.as_str()))?;
    Some((condition.type_.clone(), condition.reason.clone(), condition.message.clone()))
}

/// An output of a Stack, as its status shows it.
#[must_use]
pub fn output<'a>(stack: &'a Stack, name: &str) -> Option<&'a serde_json::Value> {
    stack.status.as_ref()?.outputs.as_ref()?.get(name)
}

/// The revision of the last successful run.
#[must_use]
pub fn commit(stack: &Stack) -> Option<&str> {
    stack.status.as_ref()?.last_update.as_ref()?.last_successful_commit.as_deref()
}
