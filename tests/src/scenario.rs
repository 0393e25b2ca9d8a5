//! What a user does with the world, for the demo and for the tests: namespaces, Programs, Stacks, commits, and waiting for what comes
//! of them. It reaches a running world through what `target/world/env` says, as a shell would.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use driftless_api::{Program, Stack, Update};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use crate::{
    aws::control,
    world::{cluster, git::GitServer, ready},
};

/// How long a run may take, with its start and end, on a busy machine.
pub const RUN: Duration = Duration::from_mins(2);

/// The passphrase of every stack's secrets. No log, message or object of the world may hold it, but the user's own Secret.
pub const PASSPHRASE: &str = "canary-passphrase-7d1f";

/// A running world.
pub struct Handle {
    /// As administrator.
    pub client: Client,
    /// The git server.
    pub git: GitServer,
    /// Test hooks.
    pub control: control::Client,
    /// What `target/world/env` sets.
    pub env: BTreeMap<String, String>,
}

impl Handle {
    /// The world whose `env` file that is.
    pub async fn open(env_file: &Path) -> Result<Self> {
        let text = fs::read_to_string(env_file).with_context(|| format!("reading {}", env_file.display()))?;
        let line = |line: &str| {
            let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
            Some((name.to_owned(), value.trim_matches(['\'', '"']).to_owned()))
        };
        let env: BTreeMap<String, String> = text.lines().filter_map(line).collect();
        let get = |name: &str| env.get(name).cloned().with_context(|| format!("{} does not set {name}", env_file.display()));
        let kubeconfig = Kubeconfig::read_from(get("KUBECONFIG")?)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self {
            client: Client::try_from(config)?,
            git: GitServer { root: get("WORLD_GIT_ROOT")?.into(), url: get("WORLD_GIT_URL")? },
            control: control::Client::new(&get("WORLD_CONTROL")?)?,
            env,
        })
    }

    /// A value of `target/world/env`.
    pub fn get(&self, name: &str) -> Result<&str> {
        self.env.get(name).map(String::as_str).with_context(|| format!("the world does not set {name}"))
    }

    /// A namespace that runs may come from, with the Secret `pulumi` that holds the passphrase.
    pub async fn namespace(&self, name: &str) -> Result<Namespace<'_>> {
        let namespace = self.foreign_namespace(name).await?;
        namespace.allow_runs().await?;
        Ok(namespace)
    }

    /// The same, but nobody has allowed runs to come from it.
    pub async fn foreign_namespace(&self, name: &str) -> Result<Namespace<'_>> {
        let objects = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{ name: {name} }}\n---\n\
             apiVersion: v1\nkind: Secret\nmetadata: {{ name: pulumi, namespace: {name} }}\nstringData: {{ passphrase: {PASSPHRASE} }}\n"
        );
        cluster::apply_yaml(&self.client, &objects).await?;
        let namespace = Namespace { world: self, name: name.to_owned() };
        fs::create_dir_all(namespace.state()?)?;
        Ok(namespace)
    }
}

/// A namespace of the world.
pub struct Namespace<'a> {
    /// The world that it is in.
    pub world: &'a Handle,
    /// Its name.
    pub name: String,
}

/// What a Stack is fed from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The Program of that name.
    Program(&'a str),
    /// The GitRepository of that name.
    GitRepository(&'a str),
}

impl Namespace<'_> {
    /// Lets runs come from this namespace, as an installation's guide says.
    pub async fn allow_runs(&self) -> Result<()> {
        let bindings = include_str!("../../infra/kubernetes/runs.yaml");
        self.apply(&bindings.replace("namespace: default", "namespace: NAMESPACE")).await
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

    /// The file that the resource `name` of a program of this namespace is.
    pub fn file(&self, name: &str) -> Result<String> {
        let state = self.world.get("WORLD_STATE")?.strip_prefix("file://").context("a file backend")?;
        Ok(format!("{state}-of-programs/{}/{name}", self.name))
    }

    /// The resources and outputs of a program: one file, and the text that was written to it as an output. `more` are further
    /// properties of the file.
    pub fn program(&self, file: &str, content: &str, more: &str) -> Result<String> {
        let path = self.file(file)?;
        Ok(format!(
            "resources: {{ file: {{ type: 'world:index:Object', properties: {{ path: {path}, content: {content:?}{more} }} }} }}\n\
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

    /// Applies a Stack. `more` are further lines of its spec, each indented by two spaces.
    pub async fn apply_stack(&self, name: &str, source: Source<'_>, more: &str) -> Result<()> {
        let source = match source {
            Source::Program(name) => format!("programRef: {{ name: {name} }}"),
            Source::GitRepository(name) => format!(
                "fluxSource: {{ sourceRef: {{ apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, name: {name} }} }}"
            ),
        };
        let backend = self.state()?;
        self.apply(&format!(
            "apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: {{ name: {name}, namespace: NAMESPACE }}\nspec:\n  stack: dev\n  \
             backend: file://{backend}\n  {source}\n  envRefs:\n    PULUMI_CONFIG_PASSPHRASE: {{ type: Secret, secret: {{ name: pulumi, key: \
             passphrase }} }}\n{more}"
        ))
        .await
    }

    /// Applies a GitRepository of Flux that follows `main` of a repository.
    pub async fn apply_git_repository(&self, name: &str, url: &str) -> Result<()> {
        self.apply(&format!(
            "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {{ name: {name}, namespace: NAMESPACE }}\n\
             spec: {{ interval: 1h, url: '{url}', ref: {{ branch: main }} }}"
        ))
        .await
    }

    /// Asks source-controller to look at a GitRepository now, as `flux reconcile source git` does.
    pub async fn reconcile_source(&self, name: &str, request: &str) -> Result<()> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", "GitRepository"));
        let sources: Api<DynamicObject> = Api::namespaced_with(self.world.client.clone(), &self.name, &kind);
        let patch = json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/requestedAt": request } } });
        sources.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Applies the Provider and the Alert that tell the webhook of this namespace's sources.
    pub async fn apply_alert(&self) -> Result<()> {
        let (address, token) = (self.world.get("WORLD_WEBHOOK_URL")?, self.world.get("WORLD_WEBHOOK_KEY")?);
        self.apply(&format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{ name: driftless-webhook, namespace: NAMESPACE }}\nstringData: {{ token: {token} }}\n\
             ---\napiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Provider\nmetadata: {{ name: driftless, namespace: NAMESPACE }}\n\
             spec: {{ type: generic-hmac, address: '{address}', secretRef: {{ name: driftless-webhook }} }}\n\
             ---\napiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Alert\nmetadata: {{ name: driftless, namespace: NAMESPACE }}\n\
             spec: {{ providerRef: {{ name: driftless }}, eventSources: [{{ kind: GitRepository, name: '*' }}] }}\n"
        ))
        .await
    }

    /// A Stack as it is now.
    pub async fn stack(&self, name: &str) -> Result<Stack> {
        Ok(Api::<Stack>::namespaced(self.world.client.clone(), &self.name).get(name).await?)
    }

    /// A Program as it is now.
    pub async fn program_object(&self, name: &str) -> Result<Program> {
        Ok(Api::<Program>::namespaced(self.world.client.clone(), &self.name).get(name).await?)
    }

    /// A Secret as it is now.
    pub async fn secret(&self, name: &str) -> Result<Secret> {
        Ok(Api::<Secret>::namespaced(self.world.client.clone(), &self.name).get(name).await?)
    }

    /// The Updates of a Stack, oldest first.
    pub async fn updates(&self, stack: &str) -> Result<Vec<Update>> {
        let all = Api::<Update>::namespaced(self.world.client.clone(), &self.name).list(&ListParams::default()).await?;
        let mut updates: Vec<_> = all.items.into_iter().filter(|update| update.stack_name() == Some(stack)).collect();
        updates.sort_by_key(|update| update.creation_timestamp().map(|time| time.0));
        Ok(updates)
    }

    /// Waits until a Stack is as `wanted` says; the error tells how it was last, with its Updates.
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

/// Ready, for what the Stack asks for now.
#[must_use]
pub fn is_ready(stack: &Stack) -> bool {
    let Some(status) = &stack.status else { return false };
    status.observed_generation == stack.metadata.generation
        && status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The condition that is not Ready: type, reason and message.
#[must_use]
pub fn condition(stack: &Stack) -> Option<(String, String, String)> {
    let conditions = &stack.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ != "Ready")?;
    Some((condition.type_.clone(), condition.reason.clone(), condition.message.clone()))
}

/// An output of a Stack, as its status shows it.
#[must_use]
pub fn output<'a>(stack: &'a Stack, name: &str) -> Option<&'a serde_json::Value> {
    stack.status.as_ref()?.outputs.as_ref()?.get(name)
}

/// The revision that ran last with success.
#[must_use]
pub fn commit(stack: &Stack) -> Option<&str> {
    stack.status.as_ref()?.last_update.as_ref()?.last_successful_commit.as_deref()
}
