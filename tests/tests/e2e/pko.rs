//! The manifests of the Pulumi Kubernetes Operator's repository and of documents about it. Each is
//! written anew in `pko`, with the fields and values that matter, and applied;
//! `docs/pko-manifests.md` has the results.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{Stack, Workspace, names};
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, condition, is_ready, output},
    world::ready,
};
use futures::{StreamExt as _, stream};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    git::credentials,
    programs,
    updates::{apply_update, is, ours, succeeded, wait, workspace_says},
    world::{s3, shared},
};

/// The namespaces of the test and their manifests.
const GROUPS: [(&str, &str); 4] = [
    ("pko-e2e", include_str!("pko/e2e.yaml")),
    ("pko-examples", include_str!("pko/examples.yaml")),
    ("pko-stack-examples", include_str!("pko/stack-examples.yaml")),
    ("pko-documents", include_str!("pko/documents.yaml")),
];
const SIDE_BY_SIDE: usize = 5;

const PAGE: &str = include_str!("../../../docs/pko-manifests.md");
/// The markers around the page's table.
const BEGIN: &str = "<!-- The test pko::manifests_of_pko_are_ready_twice_or_name_the_cause writes this table. -->\n";
const END: &str = "<!-- The end of the table. -->";

/// The backend of manifests that keep their state in a volume.
const IN_A_VOLUME: &str = "file:///state/";
const PULL: &str = "CannotPullContainerError: pull image manifest has been retried 1 time(s): repository does not exist";

/// A manifest, or the part of one with one Stack or Workspace, which is the last of its objects.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// The first three columns without the result, and the last.
    file: String,
    uses: String,
    why: String,
    objects: Vec<Value>,
    /// The changes that the messages of its refusals ask for, one after the other, each as a merge
    /// patch of the spec.
    #[serde(default)]
    remedies: Vec<Value>,
    /// The change that starts the second run, as a merge patch of the spec; without it, a request
    /// for a reconciliation.
    again: Option<Value>,
    /// Outputs of the Stack; null for a missing one.
    #[serde(default)]
    outputs: BTreeMap<String, Value>,
    /// The Pulumi stack, as `project/name`, that exists in the backend before.
    existing: Option<String>,
    /// The image that no registry has.
    unpullable: Option<String>,
}

/// Reason and message of a refusal.
type Refusal = (String, String);

/// The environment in which manifests are applied.
struct Place<'a> {
    team: &'a Namespace<'a>,
    /// The values of words such as `$EXAMPLES_URL`.
    words: BTreeMap<&'static str, String>,
    /// The folder that is the backend.
    state: String,
}

#[tokio::test]
async fn manifests_of_pko_are_ready_twice_or_name_the_cause() -> Result<()> {
    let (world, _turn) = shared().await?;
    let words = words(&world).await?;
    let mut teams = Vec::new();
    for (name, text) in GROUPS {
        let chains: Vec<Vec<Manifest>> = serde_saphyr::from_str(text).context(name)?;
        teams.push((world.namespace(name).await?, chains));
    }
    let chains = teams.iter().flat_map(|(team, chains)| chains.iter().map(move |chain| (team, chain)));
    let numbered = stream::iter(chains.enumerate());
    let results =
        numbered.map(async |(number, (team, chain))| (number, tried(team, &words, chain).await)).buffer_unordered(SIDE_BY_SIDE);
    let results: BTreeMap<_, _> = results.collect().await;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for result in results.into_values() {
        match result {
            Ok(told) => rows.extend(told),
            Err(error) => failed.push(format!("{error:?}")),
        }
    }
    for (team, _) in &teams {
        // The remains of a failure.
        failed.extend(team.clear().await.err().map(|error| format!("{error:?}")));
    }
    ensure!(failed.is_empty(), "{} failed\n\n{}", failed.len(), failed.join("\n\n"));
    check_page(&rows)
}

/// Checks that the page has exactly these rows.
fn check_page(rows: &[String]) -> Result<()> {
    let seen =
        format!("\n| manifest | what it uses | result | why that is right |\n| --- | --- | --- | --- |\n{}\n\n", rows.join("\n"));
    let told = PAGE.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).context("the page has no table")?.0;
    if told == seen {
        return Ok(());
    }
    let table = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pko-manifests.md");
    fs::write(&table, &seen)?;
    let only = |here: &str, there: &str, sign: &str| {
        let lines = here.lines().filter(|line| !there.lines().any(|other| other == *line)).map(|line| format!("{sign} {line}\n"));
        lines.collect::<String>()
    };
    let diff = only(told, &seen, "-") + &only(&seen, told, "+");
    bail!("docs/pko-manifests.md is not what was seen, which is in {}:\n{diff}", table.display())
}

/// Applies the manifests of a chain one after the other, and deletes their Stacks.
async fn tried(team: &Namespace<'_>, words: &BTreeMap<&'static str, String>, chain: &[Manifest]) -> Result<Vec<String>> {
    let (_, name) = chain.first().context("an empty chain")?.subject()?;
    let mut words = words.clone();
    words.insert("$NAMESPACE", team.name.clone());
    let place = Place { team, words, state: format!("{}/{name}", team.state()?) };
    fs::create_dir_all(&place.state)?;
    let mut rows = Vec::new();
    for manifest in chain {
        rows.push(place.row(manifest).await.with_context(|| manifest.file.clone())?);
    }
    for manifest in chain.iter().rev() {
        place.delete(manifest).await.with_context(|| format!("{}, when it is deleted", manifest.file))?;
    }
    Ok(rows)
}

impl Manifest {
    /// Kind and name of its main object.
    fn subject(&self) -> Result<(&str, &str)> {
        let last = self.objects.last().context("a manifest without objects")?;
        Ok((last["kind"].as_str().context("kind")?, last["metadata"]["name"].as_str().context("name")?))
    }
}

impl Place<'_> {
    /// Applies a manifest. Returns its row.
    async fn row(&self, manifest: &Manifest) -> Result<String> {
        if let Some(existing) = &manifest.existing {
            self.make_stack(existing)?;
        }
        for object in &manifest.objects {
            self.apply(object).await?;
        }
        let (kind, name) = manifest.subject()?;
        let refusals = if kind == "Stack" { self.stack(manifest, name).await? } else { self.workspace(manifest, name).await? };
        let mut results: Vec<_> = refusals.iter().map(|(reason, message)| format!("`{reason}`: {message}")).collect();
        if manifest.unpullable.is_none() {
            results.push("Ready twice".into());
        }
        let result = results.join("; when that is done, ");
        // Values that differ from run to run.
        let own = self.words.iter().filter(|(word, _)| word.ends_with("_COMMIT"));
        let result = own.fold(result, |text, (_, commit)| text.replace(commit, "…"));
        let cells = [&manifest.file, &manifest.uses, &result, &manifest.why].map(|cell| cell.trim().replace('|', "\\|"));
        Ok(format!("| {} |", cells.join(" | ")))
    }

    /// Waits until a Stack has run twice, the second time without a change. Returns why it was
    /// refused before.
    async fn stack(&self, manifest: &Manifest, name: &str) -> Result<Vec<Refusal>> {
        let team = self.team;
        let mut refusals = Vec::new();
        for remedy in &manifest.remedies {
            let refused = team.wait(name, "to be refused", |stack| stalled(stack).is_some()).await?;
            refusals.extend(stalled(&refused));
            self.patch("Stack", name, &json!({ "spec": remedy })).await?;
        }
        let first = last_update(&team.wait(name, "to be Ready", has_run).await?);
        let patch = match &manifest.again {
            Some(spec) => json!({ "spec": spec }),
            // A request that the Stack has not answered yet.
            None => json!({ "metadata": { "annotations": { names::RECONCILIATION_REQUEST: first } } }),
        };
        self.patch("Stack", name, &patch).await?;
        let has_run_again = |stack: &Stack| has_run(stack) && last_update(stack) != first;
        let stack = team.wait(name, "to be Ready again", has_run_again).await?;
        for (key, wanted) in &manifest.outputs {
            let found = output(&stack, key).unwrap_or(&Value::Null);
            ensure!(found == wanted, "the output {key} is {found}, not {wanted}");
        }
        // The Stack can show the end of the run before the Update does.
        let update = succeeded(team, &last_update(&stack).context("lastUpdate")?).await?;
        // A preview shows what the Stack beside it does not have.
        let changes = ours(&update).summary;
        let is_unchanged = changes.as_deref() == Some("no changes") || update.spec.operation.as_deref() == Some("preview");
        ensure!(is_unchanged, "the second run changed {changes:?}");
        Ok(refusals)
    }

    /// The same for a Workspace, with Updates by hand.
    async fn workspace(&self, manifest: &Manifest, name: &str) -> Result<Vec<Refusal>> {
        let team = self.team;
        let says = async |type_: &str, status: &str| {
            ready::until(&format!("Workspace {name} is {type_}"), RUN, async || {
                let workspace = Api::<Workspace>::namespaced(team.world.client.clone(), &team.name).get(name).await?;
                let observed = workspace.status.as_ref().and_then(|status| status.observed_generation);
                match workspace_says(&workspace, type_) {
                    Some((found, reason, message)) if found == status && observed == workspace.metadata.generation => {
                        Ok((reason, message))
                    }
                    _ => bail!("{}", serde_json::to_string_pretty(&workspace.status)?),
                }
            })
            .await
        };
        let mut refusals = Vec::new();
        for remedy in &manifest.remedies {
            refusals.push(says("Stalled", "True").await?);
            self.patch("Workspace", name, &json!({ "spec": remedy })).await?;
        }
        says("Ready", "True").await?;
        let up = format!("{{ workspaceName: {name}, stackName: dev, type: up }}");
        if let Some(image) = &manifest.unpullable {
            team.world.control.fail_starts(image, Some(PULL)).await?;
            let update = format!("{name}-unpulled");
            apply_update(team, &update, "{}", &up).await?;
            let failed =
                wait(team, &update, "to fail", |update| is(update, "Failed").is_some_and(|(status, ..)| status == "True"));
            return Ok(is(&failed.await?, "Failed").map(|(_, reason, message)| (reason, message)).into_iter().collect());
        }
        for number in ["first", "second"] {
            let update = format!("{name}-{number}");
            apply_update(team, &update, "{}", &up).await?;
            let changes = ours(&succeeded(team, &update).await?).summary;
            ensure!(number == "first" || changes.as_deref() == Some("no changes"), "the second run changed {changes:?}");
        }
        Ok(refusals)
    }

    async fn delete(&self, manifest: &Manifest) -> Result<()> {
        let (kind, name) = manifest.subject()?;
        let objects = self.subjects(kind)?;
        if objects.get_opt(name).await?.is_some() {
            objects.delete(name, &DeleteParams::default()).await?;
        }
        ready::until(&format!("{kind} {name} is gone"), RUN, async || {
            let left = objects.get_opt(name).await?;
            ensure!(left.is_none(), "{left:#?}");
            Ok(())
        })
        .await
    }

    fn subjects(&self, kind: &str) -> Result<Api<DynamicObject>> {
        let api_version = if kind == "Stack" { "pulumi.com/v1" } else { "auto.pulumi.com/v1alpha1" };
        self.team.objects(api_version, kind)
    }

    async fn patch(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let patch = Patch::Merge(self.filled(patch.clone()));
        self.subjects(kind)?.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn apply(&self, object: &Value) -> Result<()> {
        let mut object = self.filled(object.clone());
        let (kind, name) = (text(&object, "/kind")?, text(&object, "/metadata/name")?);
        if kind != "ClusterRoleBinding" && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = self.team.name.clone().into();
        }
        match kind.as_str() {
            "Stack" => self.reach_from_stack(&mut object)?,
            "Workspace" => self.reach_from_workspace(&mut object),
            _ => {
                self.team.apply(&object.to_string()).await?;
                return if kind == "GitRepository" || kind == "Bucket" { self.offered(&kind, &name).await } else { Ok(()) };
            }
        }
        // Server-side apply would refuse an unknown field; `kubectl` leaves it to the server to
        // drop it.
        if self.subjects(&kind)?.get_opt(&name).await?.is_some() {
            return self.patch(&kind, &name, &json!({ "spec": object["spec"] })).await;
        }
        self.subjects(&kind)?.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// Waits until a source has an artifact, because the Stack reports an error before.
    async fn offered(&self, kind: &str, name: &str) -> Result<()> {
        ready::until(&format!("{kind} {name} has an artifact"), RUN, async || {
            self.team.revision(kind, name).await?.map(drop).with_context(|| format!("no revision of {name}"))
        })
        .await
    }

    /// Replaces the words in every text by their values.
    fn filled(&self, value: Value) -> Value {
        match value {
            Value::String(text) if text == IN_A_VOLUME => format!("file://{}", self.state).into(),
            Value::String(text) => self.words.iter().fold(text, |text, (word, value)| text.replace(word, value)).into(),
            Value::Array(items) => items.into_iter().map(|item| self.filled(item)).collect(),
            Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, self.filled(value))).collect(),
            other => other,
        }
    }

    /// Replaces Pulumi Cloud by the folder, and its organization by that of such a backend. The
    /// world's S3 needs an endpoint.
    fn reach_from_stack(&self, stack: &mut Value) -> Result<()> {
        let spec = &mut stack["spec"];
        let literal = |value: &str| json!({ "type": "Literal", "literal": { "value": value } });
        if spec["backend"].as_str().is_some_and(|url| url.starts_with("s3://")) {
            spec["envRefs"]["AWS_ENDPOINT_URL"] = literal(self.team.world.get("AWS_ENDPOINT_URL")?);
        } else if spec["envRefs"]["PULUMI_BACKEND_URL"].is_null() {
            spec["backend"] = format!("file://{}", self.state).into();
            spec["envRefs"]["PULUMI_CONFIG_PASSPHRASE"] = literal("test");
        }
        let name = spec["stack"].as_str().context("stack")?;
        spec["stack"] = name.replace("acme/", "organization/").into();
        Ok(())
    }

    fn reach_from_workspace(&self, workspace: &mut Value) {
        let Some(environment) = workspace["spec"]["env"].as_array_mut() else { return };
        if !environment.iter().any(|variable| variable["name"] == "PULUMI_BACKEND_URL") {
            environment.push(json!({ "name": "PULUMI_BACKEND_URL", "value": format!("file://{}", self.state) }));
        }
    }

    /// Creates an empty Pulumi stack.
    fn make_stack(&self, existing: &str) -> Result<()> {
        let folder = Path::new(&self.state).join(".pulumi");
        let file = folder.join("stacks").join(existing).with_extension("json");
        fs::create_dir_all(file.parent().context("a folder")?)?;
        fs::write(folder.join("meta.yaml"), "version: 1\n")?;
        Ok(fs::write(file, json!({ "version": 3, "checkpoint": { "latest": null } }).to_string())?)
    }
}

/// Why the Stack is refused now.
fn stalled(stack: &Stack) -> Option<Refusal> {
    let is_observed = stack.status.as_ref()?.observed_generation == stack.metadata.generation;
    let (type_, reason, message) = condition(stack)?;
    (type_ == "Stalled" && is_observed).then_some((reason, message))
}

fn has_run(stack: &Stack) -> bool {
    is_ready(stack) && stack.status.as_ref().is_some_and(|status| status.current_update.is_none())
}

fn last_update(stack: &Stack) -> Option<String> {
    stack.status.as_ref()?.last_update.as_ref()?.name.clone()
}

fn text(object: &Value, pointer: &str) -> Result<String> {
    object.pointer(pointer).and_then(Value::as_str).map(Into::into).with_context(|| format!("{pointer} of {object}"))
}

/// The values of the manifests' words. The repositories, buckets and keys are created for them.
async fn words(world: &Handle) -> Result<BTreeMap<&'static str, String>> {
    let project = |name: &str| {
        let resources = "resources: { kept: { type: 'pulumi:index:Stash', properties: { input: kept } } }";
        format!(
            "name: {name}\nruntime: yaml\n{resources}\noutputs: {{ simpleOutput: foo, secretOutput: {{ 'fn::secret': hush }} }}\n"
        )
    };
    let module = world.git.create("pko-devcontainer").await?;
    module.commit("one", &[("README.md", "elsewhere")]).await?;
    let examples = world.git.create("pko-examples").await?;
    let folders =
        [("random-yaml", "random-yaml"), ("kubernetes-ts-nginx", "k8s-nginx"), ("aws-ts-s3-folder", "aws-ts-s3-folder")];
    let folders = folders.map(|(folder, name)| (format!("{folder}/Pulumi.yaml"), project(name)));
    let files: Vec<_> = folders.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    examples.commit("projects", &files).await?;
    examples.add_submodule(".github/devcontainer", &module).await?;
    let examples_commit = examples.commit_on("master", "submodule", &[]).await?;
    let (bucket, private) = (world.git.create("pko-bucket").await?, world.private_git.create("pko-private").await?);
    let (root, shop) = (project("s3-op-project"), project("shop"));
    let bucket_commit = bucket.commit("projects", &[("Pulumi.yaml", &root), ("basic/Pulumi.yaml", &shop)]).await?;
    let private_commit = private.commit("projects", &[("Pulumi.yaml", &root), ("resources/Pulumi.yaml", &shop)]).await?;
    private.commit_on("master", "another branch", &[("README.md", "master")]).await?;
    let (state_bucket, source_bucket) = ("pko-state", "pko-source");
    let s3 = s3(world, None).await?;
    for name in [state_bucket, source_bucket] {
        s3.create_bucket().bucket(name).send().await?;
    }
    s3.put_object().bucket(source_bucket).key("basic/Pulumi.yaml").body(shop.into_bytes().into()).send().await?;
    let mut credentials = credentials(world)?;
    let mut credential = |name: &str| credentials.remove(name).with_context(|| name.to_owned());
    let world_is = |name: &str| world.get(name).map(ToOwned::to_owned);
    Ok(BTreeMap::from([
        ("$AWS_KEY", world_is("AWS_ACCESS_KEY_ID")?),
        ("$AWS_SECRET", world_is("AWS_SECRET_ACCESS_KEY")?),
        ("$BUCKET_COMMIT", bucket_commit),
        ("$BUCKET_ENDPOINT", world.get("WORLD_BUCKET_ENDPOINT")?.trim_start_matches("http://").to_owned()),
        ("$BUCKET_URL", bucket.url),
        ("$CLOUD_TOKEN", "pul-of-nobody-51c7".to_owned()),
        ("$EXAMPLES_COMMIT", examples_commit),
        ("$EXAMPLES_URL", examples.url),
        ("$GIT_PASSWORD", credential("password")?),
        ("$GIT_TOKEN", credential("token")?),
        ("$GIT_USER", credential("username")?),
        ("$KMS_KEY", programs::key(world).await?),
        ("$PRIVATE_COMMIT", private_commit),
        ("$PRIVATE_SSH", format!("{}/pko-private.git", world.get("WORLD_GIT_SSH_URL")?)),
        ("$PRIVATE_URL", private.url),
        ("$REGION", world_is("AWS_REGION")?),
        ("$SOURCE_BUCKET", source_bucket.to_owned()),
        ("$SSH_KEY", credential("ssh-key-locked")?),
        ("$SSH_PASSPHRASE", credential("ssh-passphrase")?),
        ("$STATE_BUCKET", format!("{state_bucket}?s3ForcePathStyle=true")),
    ]))
}
