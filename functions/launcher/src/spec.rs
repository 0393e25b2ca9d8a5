//! The spec for the runner, made from the Update's own snapshot and the Secrets and ConfigMaps that
//! it names.

use driftless_api::{
    DriftlessUpdate, ObjectReference, OwnSource, Tree, Update, Workspace, WorkspaceSpec, WorkspaceStack, finalizer, uid_of,
};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Env, FetchRequest, FetchedArtifact, LaunchHint, ObjectKey, Operation, PROJECT_FILES, ProjectFile, ProjectInfo, Revision,
    RunId, RunSource, RunSpec, SealedInputs, StackId, VERSION,
    keys::{self, TreeFolder},
};
use driftless_core::{OwnSourceState, TaskShape, git_variables, repository, run::WaitReason};
use driftless_kubernetes::Cluster;
use driftless_source::Manifest;
use jiff::SignedDuration;
use kube::ResourceExt as _;
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Launcher, Stop,
    identity::{self, Account},
    inputs::Inputs,
    read::{Read, read},
    request::Request,
    snapshot::{OWN_WORKSPACE, own_workspace, project_alone, source_of},
};

const DEFAULT_BACKEND: &str = "https://api.pulumi.com";

/// A longer project file is not read, in bytes: the function has little memory, and a tenant wrote
/// the file.
const MAX_PROJECT_FILE: u64 = 1 << 20;

/// A run that is ready to start.
pub(crate) struct Prepared {
    pub(crate) run: RunId,
    pub(crate) spec: RunSpec,
    pub(crate) shape: TaskShape,
    pub(crate) project: Option<ProjectInfo>,
    /// `None` for a project without a source.
    pub(crate) tree: Option<StoredTree>,
    /// The policy packs that the run is held to, as in its spec.
    pub(crate) packs: Vec<StoredTree>,
    /// What the run installs may be kept for later runs of its source: its revision is one that its
    /// Stack follows.
    pub(crate) stores: bool,
    /// What to do with the sealed copy.
    pub(crate) seal: Seal,
    /// The identity of the program; or why a destroy runs without one.
    pub(crate) account: Result<Account, String>,
    /// It destroys the resources of a terminating namespace, in which no missing object can return.
    pub(crate) is_last: bool,
    /// The snapshot to store in the Update, if it is not there yet.
    pub(crate) kept: Option<DriftlessUpdate>,
}

/// What to do with the sealed copy of the inputs of a Stack's runs.
pub(crate) enum Seal {
    /// Replace it by the inputs of this run.
    Write(StackId),
    /// Delete it, because none is wanted.
    Delete(StackId),
    /// Leave it: it has the inputs of the last run that changed something.
    Leave,
}

/// The environment of an Update's run.
pub(crate) struct Snapshot {
    ours: DriftlessUpdate,
    pub(crate) workspace: WorkspaceSpec,
    /// The field in which the user wrote it.
    pub(crate) at: String,
    /// The namespace of the objects that it names.
    pub(crate) namespace: String,
}

/// A tree in the bucket.
pub(crate) struct StoredTree {
    pub(crate) source: ObjectKey,
    pub(crate) folder: TreeFolder,
    pub(crate) manifest: Vec<u8>,
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// The snapshot in the Update; for a user's Update without one, the current state of the
    /// Workspace that it names.
    pub(crate) async fn snapshot(&self, hint: &LaunchHint, update: &Update, request: &Request) -> Result<Snapshot, Stop> {
        let own = hint.update.namespace.clone();
        let Some(ours) = request.spec.driftless.clone() else { return self.named_workspace(hint, update, own).await };
        let workspace = own_workspace(&ours).map_err(Stop::invalid)?;
        let at = if request.stack.is_some() { "spec.workspaceTemplate.spec" } else { OWN_WORKSPACE };
        let namespace = request.stack.as_ref().map_or(own, |stack| stack.namespace.clone());
        Ok(Snapshot { ours, workspace, at: at.into(), namespace })
    }

    async fn named_workspace(&self, hint: &LaunchHint, update: &Update, namespace: String) -> Result<Snapshot, Stop> {
        let name = update.spec.workspace_name.as_deref().unwrap_or_default();
        let Some(found) = self.cluster.get::<Workspace>(&namespace, name).await? else {
            let words =
                format!("Workspace {name:?} not found in namespace {namespace:?}; create it, or correct spec.workspaceName");
            return Err(Stop::Wait(WaitReason::WorkspaceNotFound, words));
        };
        let of = format!("Workspace {name:?}");
        let fetched = match found.own_source().map_err(|words| Stop::invalid(format!("{of}: {words}")))? {
            Some(own) => {
                let key = hint.update.sibling(WORKSPACE.0, WORKSPACE.1, name);
                // A creation time is rounded down to whole seconds.
                let since = update.creation_timestamp().map_or(self.now, |created| created.0 + SignedDuration::from_secs(1));
                match self.own_source(&key, hint.hops, &own, Some(since)).await? {
                    OwnSourceState::There(artifact) => Some(fetched(name, &own, &artifact)),
                    OwnSourceState::Fetching(words) => {
                        return Err(Stop::Wait(WaitReason::SourceNotFetched, format!("{of}: {words}")));
                    }
                    OwnSourceState::Failed { words, .. } => {
                        return Err(Stop::Wait(WaitReason::SourceUnavailable, format!("{of}: {words}")));
                    }
                }
            }
            None => None,
        };
        let (workspace, tree) = runnable(found);
        let (commit, tree) = fetched.map_or((None, tree), |(commit, tree)| (Some(commit), Some(tree)));
        let at = format!("{of}: spec");
        let snapshot = serde_json::to_value(&workspace).map_err(|error| Stop::invalid(format!("{at}: {error}")))?;
        let ours = DriftlessUpdate { commit, tree, workspace: Some(snapshot), ..DriftlessUpdate::default() };
        Ok(Snapshot { ours, workspace, at, namespace })
    }

    /// Reads everything that a run needs, or returns what it waits for.
    pub(crate) async fn prepare(&self, hint: &LaunchHint, update: &Update, request: &Request) -> Result<Prepared, Stop> {
        let key = &hint.update;
        let asked = &request.spec;
        let Snapshot { ours, workspace, at, namespace } = self.snapshot(hint, update, request).await?;
        let kept =
            (request.stack.is_none() && !(update.spec.driftless.is_some() && finalizer::is_on(update))).then(|| ours.clone());
        let task = workspace.task(&at);
        self.settings.pod_fields.check(&task.pod_only()).map_err(Stop::invalid)?;
        let shape = task.shape(self.settings.default_size).map_err(Stop::invalid)?;
        let operation = request.operation;
        let stack_name = asked.stack_name.clone().unwrap_or_default();
        let preview_only = request.previews_only();
        let stack = workspace.stacks.iter().find(|stack| stack.name == stack_name).cloned();
        // PKO does the same for a stack that its Workspace does not list.
        let stack = stack.unwrap_or_else(|| WorkspaceStack { create: Some(true), ..WorkspaceStack::default() });
        let is_last = operation == Operation::Destroy && namespace != key.namespace;
        let mounted = task.mounted_files().map_err(Stop::invalid)?;
        let account = match identity::account(self.cluster, &namespace, &workspace, &mounted).await {
            Err(Stop::Wait(_, words)) if is_last => Err(words),
            account => Ok(account?),
        };

        let mut inputs = Inputs::new(self.cluster, &namespace);
        let Read { env, config, files } = match read(&mut inputs, &workspace, &mounted, &at, &stack_name).await {
            // In a terminating namespace, the Secrets and the right to read them are deleted first.
            Err(Stop::Wait(reason, words)) if operation == Operation::Destroy => {
                let Some(SealedInputs { env, config, files, .. }) =
                    self.sealed_inputs(&key.cluster, request.stack.as_ref()).await?
                else {
                    return Err(Stop::Wait(reason, words));
                };
                tracing::info!(update = %update.name_any(), %reason, words, "destroying with the sealed inputs of an earlier run");
                Read { env, config, files }
            }
            read => read?,
        };
        // After the inputs, because hundreds of Updates may wait for theirs, and a manifest is
        // large.
        let (source, project, tree) = self.source_of_run(hint, &namespace, &ours, &workspace).await?;

        let values = inputs.values();
        let uid = uid_of(update);
        let of = request.stack.as_ref().map_or(&uid, |stack| &stack.uid);
        let digest = self.inputs_digest(of, values.as_ref()).await?;

        let backend = env.iter().rfind(|env| env.name == "PULUMI_BACKEND_URL").map_or(DEFAULT_BACKEND, |env| &env.value);
        let claim =
            keys::claim(&namespace, backend, &qualified(&stack_name, project.as_ref().map_or("", |project| &project.name)));
        // Without this document the run reports a lock that a dead run left. An error here would
        // fail every later launch too.
        let lock = self.objects.read_if_valid(&keys::lock(&key.cluster, &claim)).await?;
        // Only used for the progress.
        let left = self.objects.read_if_valid(&keys::resources(&key.cluster, &claim)).await?;
        let run = RunId { update: key.clone(), uid, claim };
        // First, so that the user's own variables win.
        let env = git_environment(&ours).chain(env).collect();
        let mut spec = RunSpec {
            version: VERSION,
            run: run.clone(),
            operation,
            stack: stack_name,
            // The stack of a destroy by hand exists, or its name is wrong.
            create: stack.create.unwrap_or(false) && (operation != Operation::Destroy || request.stack.is_some()),
            secrets_provider: stack.secrets_provider.clone(),
            source,
            env,
            config,
            files,
            environments: stack.environment.clone(),
            identity: false,
            limits: request.limits,
            message: asked.message.clone(),
            parallel: asked.parallel,
            expect_no_changes: asked.expect_no_changes.unwrap_or(false),
            refresh: asked.refresh.unwrap_or(false),
            expect_no_refresh_changes: ours.expect_no_refresh_changes.unwrap_or(false),
            preview_only,
            targets: asked.target.clone(),
            target_dependents: asked.target_dependents.unwrap_or(false),
            replace: asked.replace.clone(),
            continue_on_error: asked.continue_on_error.unwrap_or(false),
            remove: asked.remove.unwrap_or(false),
            run_program: asked.run_program.unwrap_or(false),
            log_level: workspace.pulumi_log_level.and_then(|level| u32::try_from(level).ok()).filter(|level| *level > 0),
            inputs: digest,
            stale_lock: lock,
            resources: left.map(|left| left.count),
            cache: None,
            not_secret: request.not_secret.clone(),
            plan: None,
        };
        let scope = ours.tree.as_ref().and_then(|tree| tree.scope.as_deref());
        let (packs, trees) = self.policy_packs(hint, request).await?;
        self.request_plan(request, shape.image.as_deref(), scope, (packs, values.as_ref()), &mut spec).await?;
        // An Update without a Stack has no sealed copy, because no destroy of a Stack would use it.
        let seal = match (&request.stack, operation) {
            (Some(stack), _) if ours.seal == Some(true) && values.is_some_and(|values| !values.is_empty()) => {
                Seal::Write(stack.clone())
            }
            (Some(stack), Operation::Up | Operation::Refresh) if !preview_only => Seal::Delete(stack.clone()),
            _ => Seal::Leave,
        };
        let stores = request.stack.is_some();
        Ok(Prepared { run, spec, shape, project, tree, packs: trees, stores, seal, account, is_last, kept })
    }

    /// The sealed inputs of a Stack, if there are any.
    async fn sealed_inputs(&self, cluster: &str, stack: Option<&StackId>) -> Result<Option<SealedInputs>, Error> {
        let Some(stack) = stack else { return Ok(None) };
        let sealed = self.objects.read(&keys::sealed(cluster, stack)).await?;
        // The key names the same Stack. A copy that was moved to another key is ignored.
        Ok(sealed.filter(|sealed| sealed.stack == *stack))
    }

    /// The source of the run, its project if known, and the tree if there is one.
    async fn source_of_run(
        &self,
        hint: &LaunchHint,
        namespace: &str,
        ours: &DriftlessUpdate,
        workspace: &WorkspaceSpec,
    ) -> Result<(RunSource, Option<ProjectInfo>, Option<StoredTree>), Stop> {
        let Some(tree) = &ours.tree else {
            let project = project_alone(workspace).map_err(Stop::invalid)?;
            return Ok((RunSource::Project(project.clone()), Some(project), None));
        };
        let (source, digest) = source_of(tree).map_err(Stop::invalid)?;
        let object =
            ObjectKey { namespace: namespace.into(), ..hint.update.sibling(&source.api_version, &source.kind, &source.name) };
        let folder = keys::tree(&object, &digest);
        let Some(manifest) = self.objects.get(&folder.manifest()).await? else {
            if let Some(refused) = self.refused_source(&object, &digest).await? {
                return Err(Stop::invalid(format!("spec.driftless.tree.source: {refused}")));
            }
            self.request_tree(hint, object, &folder).await?;
            let words = format!(
                "tree of {} {:?} with digest {digest} is not stored; a new fetch was requested, which succeeds if the source still \
                 has that artifact",
                source.kind, source.name
            );
            return Err(Stop::Wait(WaitReason::TreeNotFound, words));
        };
        let dir = tree.dir.clone().unwrap_or_default();
        let project = self.project_of(&folder, &manifest, &dir).await?;
        let manifest_sha256 = base16ct::lower::encode_string(&Sha256::digest(&manifest));
        let source = RunSource::Tree { dir, paths: tree.paths.clone(), manifest_sha256 };
        Ok((source, project, Some(StoredTree { source: object, folder, manifest })))
    }

    /// Requests a fetch of a source whose tree is missing.
    pub(crate) async fn request_tree(&self, hint: &LaunchHint, source: ObjectKey, folder: &TreeFolder) -> Result<(), Error> {
        // The Updates of one source request it within moments of each other and are deduplicated; a
        // later request must not be.
        let deduplication = keys::hash(&["launcher", folder, &(self.now.as_second() / 60).to_string()]);
        let request = FetchRequest::fetch(source, hint.hops.saturating_add(1));
        Ok(self.queues.fetch(&request, &deduplication).await?)
    }

    /// The project, from its `Pulumi.yaml`; `None` if that is very long or cannot be read, which
    /// the runner will report.
    async fn project_of(&self, folder: &TreeFolder, manifest: &[u8], dir: &str) -> Result<Option<ProjectInfo>, Error> {
        let Ok(manifest) = Manifest::parse(manifest) else { return Ok(None) };
        for file in PROJECT_FILES {
            let path = if dir.is_empty() { file.to_owned() } else { format!("{dir}/{file}") };
            let Some(file) = manifest.files.get(&path) else { continue };
            if file.size > MAX_PROJECT_FILE {
                return Ok(None);
            }
            let Some(content) = self.objects.get_range(&folder.pack(), file.offset, file.size).await? else { continue };
            if let Ok(project) = serde_saphyr::from_slice::<ProjectFile>(&content) {
                return Ok(Some(project.into()));
            }
        }
        Ok(None)
    }
}

/// API version and kind of the object that the tree of a Workspace's own source is stored under.
const WORKSPACE: (&str, &str) = ("auto.pulumi.com/v1alpha1", "Workspace");

/// The commit and the tree that were fetched for a Workspace.
fn fetched(workspace: &str, own: &OwnSource<'_>, artifact: &FetchedArtifact) -> (String, Tree) {
    let (api_version, kind) = WORKSPACE;
    let source = ObjectReference { api_version: api_version.into(), kind: kind.into(), name: workspace.into() };
    let (reference, repository) = match own {
        OwnSource::Git { url, reference, .. } => (Some((*reference).to_owned()), repository(url)),
        OwnSource::Flux { .. } => (None, None),
    };
    let (digest, dir) = (Some(artifact.digest.to_string()), Some(own.dir().to_owned()));
    let tree = Tree { digest, dir, reference, repository, source: Some(source), ..Tree::default() };
    (artifact.revision.to_string(), tree)
}

/// The spec of a Workspace for a run, and a Stack's tree. For a Workspace's own source see
/// [`Workspace::own_source`].
pub(crate) fn runnable(workspace: Workspace) -> (WorkspaceSpec, Option<Tree>) {
    let mut spec = workspace.spec;
    let tree = spec.driftless.take().and_then(|ours| ours.tree);
    (spec.git, spec.flux, spec.local) = (None, None, None);
    (spec, tree)
}

/// The variables that name the commit to the program.
fn git_environment(ours: &DriftlessUpdate) -> impl Iterator<Item = Env> {
    let tree = ours.tree.as_ref();
    let text = |field: fn(&Tree) -> &Option<String>| tree.and_then(|tree| field(tree).as_deref());
    let dir = text(|tree| &tree.dir).unwrap_or_default();
    let commit = ours.commit.as_ref().map(Revision::from).unwrap_or_default();
    let variables = git_variables(&commit, text(|tree| &tree.reference), text(|tree| &tree.repository), dir);
    variables.into_iter().map(|(name, value)| Env { name: name.into(), value, secret: false, below_identity: true })
}

/// A stack's name with its organization and project: `dev`, `organization/dev` and
/// `organization/shop/dev` are one stack of the project `shop`. In Pulumi Cloud the default
/// organization is not known here, so `dev` may be a stack that another name spells out.
fn qualified(stack: &str, project: &str) -> String {
    match stack.split('/').collect::<Vec<_>>().as_slice() {
        [stack] => format!("organization/{project}/{stack}"),
        [organization, stack] => format!("{organization}/{project}/{stack}"),
        _ => stack.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use driftless_api::UpdateSpec;
    use driftless_contract::ConfigValue;
    use driftless_source::Tree;
    use serde_json::{Value, json};

    use super::*;

    /// The result of preparing an Update with that workspace and no tree.
    fn prepared(workspace: &Value) -> Result<Prepared, (&'static str, String)> {
        let spec = json!({ "type": "destroy", "stackName": "dev", "driftless": { "workspace": workspace } });
        let mut update = Update::new("u", serde_json::from_value::<UpdateSpec>(spec).unwrap());
        update.metadata.namespace = Some("ns".into());
        let world = crate::tests::quiet();
        let names = ["cluster", "auto.pulumi.com/v1alpha1", "Update", "ns", "u"].map(String::from);
        let [cluster, api_version, kind, namespace, name] = names;
        let key = ObjectKey { cluster, api_version, kind, namespace, name };
        let hint = LaunchHint { version: VERSION, update: key, hops: 0 };
        let settings = crate::tests::settings();
        let launcher = crate::tests::launcher(&world, &settings);
        let request = Request::of(&settings, &update, None, None).map_err(|why| ("invalid", why))?;
        world.drive(launcher.prepare(&hint, &update, &request)).unwrap().map_err(|stop| match stop {
            Stop::Wait(reason, message) => (reason.as_str(), message),
            Stop::Fail(error) => panic!("{error}"),
        })
    }

    /// The workspace of a project without a source, with additional `fields`.
    fn project(fields: &Value) -> Value {
        driftless_core::merge(json!({ "projectInfo": { "name": "shop", "runtime": "yaml" } }), fields)
    }

    /// A pod template with the token `/t/token`.
    fn token() -> Value {
        let source = json!({ "serviceAccountToken": { "path": "token" } });
        let volumes = json!([{ "name": "v", "projected": { "sources": [source] } }]);
        let containers = json!([{ "name": "pulumi", "volumeMounts": [{ "name": "v", "mountPath": "/t" }] }]);
        json!({ "podTemplate": { "spec": { "volumes": volumes, "containers": containers } } })
    }

    #[test]
    fn project_without_a_source_runs() {
        let prepared = prepared(&project(&json!({ "pulumiLogLevel": 3, "image": "mine" }))).unwrap();
        assert!(prepared.tree.is_none());
        let info = ProjectInfo { name: "shop".into(), runtime: "yaml".into() };
        assert_eq!(prepared.spec.source, RunSource::Project(info));
        assert_eq!(prepared.run.claim, keys::claim("ns", DEFAULT_BACKEND, "organization/shop/dev"));
        assert_eq!((prepared.spec.log_level, prepared.shape.image.as_deref()), (Some(3), Some("mine")));
    }

    #[test]
    fn invalid_spec_waits_with_a_message() {
        let config =
            |from: Value| project(&json!({ "stacks": [{ "name": "dev", "config": [{ "key": "k", "valueFrom": from }] }] }));
        for (workspace, words) in [
            (
                config(json!({ "env": "MISSING" })),
                r#"config key "k": valueFrom.env is "MISSING", which is not set in the environment of the run"#,
            ),
            (config(json!({ "path": "/x" })), r#"config key "k": valueFrom.path is "/x""#),
            (
                driftless_core::merge(config(json!({ "path": "/t/token", "json": true })), &token()),
                r#"config key "k": valueFrom.json is true, but "/t/token" is a token"#,
            ),
        ] {
            let (reason, message) = prepared(&workspace).err().unwrap();
            assert!(reason == "SpecInvalid" && message.contains(words), "{reason}: {message}");
        }
    }

    #[test]
    fn configuration_may_be_in_the_runs_environment() {
        let env = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "[2]" }]);
        let item = |key: &str, json: bool| json!({ "key": key, "valueFrom": { "env": "A", "json": json } });
        let stacks = json!([{ "name": "dev", "config": [item("text", false), item("json", true)] }]);
        let mut workspace = project(&json!({ "stacks": stacks }));
        workspace["env"] = env;
        let config = prepared(&workspace).unwrap().spec.config;
        assert!(config[0].value == ConfigValue::String("[2]".into()) && config[1].value == ConfigValue::Json(json!([2])));
    }

    #[test]
    fn a_projects_file_is_read_unless_it_is_very_long() {
        let project_of = |bytes: usize| {
            let world = crate::tests::quiet();
            let text = format!("name: shop\nruntime: yaml\n{}", "#".repeat(bytes));
            let mut pack = Vec::new();
            let tree = Tree::from_files([("app/Pulumi.yaml", text.as_bytes())], &mut pack).unwrap();
            let source = ObjectKey {
                cluster: "c".into(),
                api_version: "v1".into(),
                kind: "Bucket".into(),
                namespace: "n".into(),
                name: "b".into(),
            };
            let folder = keys::tree(&source, &"sha256:0".into());
            world.drive(world.put(&folder.pack(), pack)).unwrap().unwrap();
            let settings = crate::tests::settings();
            let launcher = crate::tests::launcher(&world, &settings);
            let manifest = Manifest::of(&tree).to_bytes();
            world.drive(launcher.project_of(&folder, &manifest, "app")).unwrap().unwrap().map(|project| project.name)
        };
        assert_eq!((project_of(9), project_of(1 << 20)), (Some("shop".into()), None));
    }

    #[test]
    fn spellings_of_a_stack_name_have_one_qualified_name() {
        for name in ["dev", "organization/dev", "organization/shop/dev"] {
            assert_eq!(qualified(name, "shop"), "organization/shop/dev");
        }
        for name in ["acme/dev", "acme/shop/dev"] {
            assert_eq!(qualified(name, "shop"), "acme/shop/dev");
        }
    }
}
