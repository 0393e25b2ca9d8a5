//! A row of the table: its steps, and the expected result.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use driftless_api::{Stack, Update};
use driftless_tests::{
    scenario::{Namespace, condition, is_ready},
    world::ready,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{
    history::{History, kstatus},
    seen,
};

/// The time limit of a step. A failed run is retried after 90 s at most, and others run at the same
/// time.
const STEP: Duration = Duration::from_mins(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(400);

const FINALIZER: &str = "finalizer.stack.pulumi.com";

/// A case. In its texts `$SELF` is its name, `$NAMESPACE` its namespace, `$STATE` the folder that
/// is the backend, `$FILES` the folder for the files that its programs write.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Case {
    pub name: String,
    /// The Stack's name, if it differs from the case's.
    object: Option<String>,
    /// The Stack's API version, if it is not v1.
    api_version: Option<String>,
    pub steps: Vec<Step>,
}

/// The actions of a step, in the order of the fields, and the expected result.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// Waits this many seconds.
    seconds: u64,
    /// Files to write, or to remove.
    files: BTreeMap<String, Option<String>>,
    /// Objects to apply, with their status. A Stack's spec is merged over the usual one.
    /// `$STACK_UID` and `$WORKSPACE_UID` are those of the case's own objects.
    objects: Vec<Value>,
    /// The Program with the case's name.
    program: Option<Value>,
    /// In the first such step the Stack's spec, merged over the usual one; then a merge patch of
    /// it.
    stack: Option<Value>,
    /// The same for the Stack's metadata.
    metadata: Option<Value>,
    /// A merge patch of the Stack's status.
    status: Option<Value>,
    /// Objects to delete, as `Kind/name`.
    delete: Vec<String>,
    pub expect: Expect,
}

/// The expected state. In texts `…` stands for anything. Fields are named by JSON pointers, in
/// which a word selects the item of a list that has it as its `type`, `kind` or `name`; null means
/// that the field is absent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The Stack is Ready and no run is live.
    pub ready: bool,
    /// Reason and message of the condition `Stalled`. A state that lasts only seconds may be over
    /// when the test reads it: any version of the Stack since the actions may have it, if `stack`
    /// is true of the same version. Everything else must be true now.
    pub stalled: Option<(String, String)>,
    /// Reason and message of the condition `Reconciling`, in the same way.
    pub reconciling: Option<(String, String)>,
    /// The Stack no longer has Driftless's finalizer.
    released: bool,
    /// The Stack no longer exists.
    gone: bool,
    /// Fields of the Stack.
    stack: BTreeMap<String, Value>,
    /// The number of the Stack's Updates.
    updates: Option<usize>,
    /// Fields of its last Update.
    update: BTreeMap<String, Value>,
    /// Fields of objects by `Kind/name`; null for one that does not exist.
    objects: BTreeMap<String, Option<BTreeMap<String, Value>>>,
    /// The note of an Event of the Stack, by reason.
    events: BTreeMap<String, String>,
    /// The content of files; null for a missing file, true for any content.
    files: BTreeMap<String, Value>,
}

/// The cases of a file, for a namespace.
pub fn read(text: &str, namespace: &str, state: &str, files: &str) -> Result<Vec<Case>> {
    let text = text.replace("$NAMESPACE", namespace).replace("$STATE", state).replace("$FILES", files);
    let cases = serde_saphyr::from_str::<Vec<Value>>(&text)?;
    let of = |case: Value| {
        let name = case["name"].as_str().context("a case without a name")?;
        serde_json::from_str(&case.to_string().replace("$SELF", name)).with_context(|| name.to_owned())
    };
    cases.into_iter().map(of).collect()
}

impl Case {
    /// The Stack's name.
    pub fn object(&self) -> &str {
        self.object.as_deref().unwrap_or(&self.name)
    }

    /// Runs all steps, one after the other.
    pub async fn run(&self, team: &Namespace<'_>, history: &History) -> Result<()> {
        for (number, step) in self.steps.iter().enumerate() {
            let number = number + 1;
            self.act(team, step).await.with_context(|| format!("step {number}"))?;
            let done = history.now(self.object()).await?;
            let since = || history.since(self.object(), done);
            self.until(team, &step.expect, STEP, since).await.with_context(|| format!("after step {number}"))?;
            Box::pin(seen::is_explained_now(team, self.object())).await.with_context(|| format!("after step {number}"))?;
        }
        Ok(())
    }

    /// Polls until the state is as expected, now or, for a transient state, in one of the Stack's
    /// versions that count.
    pub async fn until(
        &self,
        team: &Namespace<'_>,
        expect: &Expect,
        limit: Duration,
        versions: impl Fn() -> Vec<Stack>,
    ) -> Result<()> {
        let look = async || self.look(team, expect, &versions()).await;
        match ready::until_every(BETWEEN_LOOKS, "what is expected", limit, look).await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.state(team).await)),
        }
    }

    async fn act(&self, team: &Namespace<'_>, step: &Step) -> Result<()> {
        sleep(Duration::from_secs(step.seconds)).await;
        for (file, content) in &step.files {
            write(file, content.as_deref()).with_context(|| file.clone())?;
        }
        for object in &step.objects {
            self.apply(team, object).await?;
        }
        if let Some(program) = &step.program {
            let program = json!({ "kind": "Program", "metadata": { "name": self.name }, "program": program });
            self.apply(team, &program).await?;
        }
        let stacks = api(team, "Stack")?;
        let name = self.object();
        if stacks.get_opt(name).await?.is_none() {
            if let Some(spec) = &step.stack {
                self.create(team, step, spec).await?;
            }
        } else {
            let patch = json!({ "metadata": step.metadata, "spec": step.stack });
            let patch: Map<String, Value> =
                patch.as_object().into_iter().flatten().filter(|(_, patch)| !patch.is_null()).map(own).collect();
            if !patch.is_empty() {
                stacks.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        if let Some(status) = &step.status {
            stacks.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
        }
        for object in &step.delete {
            let (kind, name) = object.split_once('/').context("Kind/name")?;
            api(team, kind)?.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    async fn create(&self, team: &Namespace<'_>, step: &Step, spec: &Value) -> Result<()> {
        let program = step.program.as_ref().map_or("app", |_| &self.name);
        let mut full = usual(team, &self.name, program)?;
        merge(&mut full, spec);
        let mut metadata = json!({ "name": self.object(), "namespace": team.name });
        merge(&mut metadata, step.metadata.as_ref().unwrap_or(&json!({})));
        let version = self.api_version.as_deref().unwrap_or("pulumi.com/v1");
        team.apply(&json!({ "apiVersion": version, "kind": "Stack", "metadata": metadata, "spec": full }).to_string()).await
    }

    async fn apply(&self, team: &Namespace<'_>, object: &Value) -> Result<()> {
        let mut text = object.to_string();
        for (word, kind) in [("$STACK_UID", "Stack"), ("$WORKSPACE_UID", "Workspace")] {
            if text.contains(word) {
                text = text.replace(word, &api(team, kind)?.get(self.object()).await?.uid().context("a uid")?);
            }
        }
        let mut object: Value = serde_json::from_str(&text)?;
        let kind = object["kind"].as_str().context("kind")?.to_owned();
        let name = object["metadata"]["name"].as_str().context("name")?.to_owned();
        object["apiVersion"] = resource(&kind)?.api_version.into();
        object["metadata"]["namespace"] = team.name.clone().into();
        if kind == "Stack" {
            let mut spec = usual(team, &name, "app")?;
            merge(&mut spec, &object["spec"]);
            object["spec"] = spec;
        }
        let status = object.as_object_mut().and_then(|object| object.remove("status"));
        team.apply(&object.to_string()).await?;
        if let Some(status) = status {
            let patch = Patch::Merge(json!({ "status": status }));
            api(team, &kind)?.patch_status(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Fails unless the state is as expected.
    async fn look(&self, team: &Namespace<'_>, expect: &Expect, versions: &[Stack]) -> Result<()> {
        let stack = Api::<Stack>::namespaced(team.world.client.clone(), &team.name).get_opt(self.object()).await?;
        if let Some(stack) = &stack {
            kstatus(stack)?;
            ensure!(!expect.gone, "it is still there");
            ensure!(
                !expect.released || !stack.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
                "it has our finalizer"
            );
            if !expect.passes() || !versions.iter().any(|version| expect.is_of(version).is_ok()) {
                let was = || format!("{:?} before", versions.iter().filter_map(condition).collect::<BTreeSet<_>>());
                expect.is_of(stack).with_context(was)?;
            }
        } else {
            ensure!(expect.gone || expect.released || expect.is_of_others(), "there is no Stack");
        }
        for (object, wanted) in &expect.objects {
            let (kind, name) = object.split_once('/').context("Kind/name")?;
            let found = api(team, kind)?.get_opt(name).await?;
            match (found, wanted) {
                (Some(found), Some(wanted)) => fields(&serde_json::to_value(found)?, wanted).with_context(|| object.clone())?,
                (None, None) => {}
                (Some(_), None) => bail!("{object} is there"),
                (None, Some(_)) => bail!("{object} is not there"),
            }
        }
        if expect.updates.is_some() || !expect.update.is_empty() {
            let updates = team.updates(self.object()).await?;
            let wanted = expect.updates.unwrap_or(updates.len());
            ensure!(updates.len() == wanted, "{} Updates, not {wanted}", updates.len());
            let last = updates.last().map(serde_json::to_value).transpose()?.unwrap_or_default();
            fields(&last, &expect.update).context("the last Update")?;
        }
        for (reason, note) in &expect.events {
            let notes = team.events(self.object(), reason).await?;
            ensure!(notes.iter().any(|found| matches(note, found)), "Events {reason}: {notes:?}, not {note:?}");
        }
        for (file, wanted) in &expect.files {
            let found = fs::read_to_string(file).ok();
            let same = match (wanted, &found) {
                (Value::Bool(_), found) => found.is_some(),
                (Value::String(wanted), Some(found)) => matches(wanted, found),
                (wanted, found) => wanted.is_null() && found.is_none(),
            };
            ensure!(same, "{file} holds {found:?}, not {wanted}");
        }
        Ok(())
    }

    /// Everything that may explain a failure.
    async fn state(&self, team: &Namespace<'_>) -> String {
        let stack = team.stack(self.object()).await.map(|stack| serde_json::to_string_pretty(&stack.status));
        let line = |update: &Update| {
            let spec = [&update.spec.operation, &update.spec.message].map(|text| text.as_deref().unwrap_or_default());
            format!("{} {spec:?}: {}", update.name_any(), serde_json::to_string(&update.status).unwrap_or_default())
        };
        let updates: Vec<_> = team.updates(self.object()).await.unwrap_or_default().iter().map(line).collect();
        match stack {
            Ok(Ok(status)) => format!("{status}\n{}", updates.join("\n")),
            Ok(Err(error)) => error.to_string(),
            Err(error) => format!("{error}\n{}", updates.join("\n")),
        }
    }
}

impl Expect {
    /// Returns whether it does not concern the Stack itself.
    fn is_of_others(&self) -> bool {
        !self.ready && self.stalled.is_none() && self.reconciling.is_none() && self.stack.is_empty()
    }

    /// Returns whether it includes a transient state.
    fn passes(&self) -> bool {
        self.stalled.is_some() || self.reconciling.is_some()
    }

    /// Checks its expectations of the Stack itself for a version.
    fn is_of(&self, stack: &Stack) -> Result<()> {
        if self.ready {
            let running = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
            ensure!(is_ready(stack) && running.is_none(), "it is not Ready");
        }
        for (type_, wanted) in [("Stalled", &self.stalled), ("Reconciling", &self.reconciling)] {
            let Some((reason, message)) = wanted else { continue };
            let found = condition(stack);
            let same = found.as_ref().is_some_and(|(found_type, found_reason, found_message)| {
                found_type == type_ && found_reason == reason && matches(message, found_message)
            });
            ensure!(same, "{found:?}, not {:?}", (type_, reason, message));
            ensure!(is_observed(stack), "its generation is not observed");
        }
        fields(&serde_json::to_value(stack)?, &self.stack)
    }
}

/// The spec over which a case's is merged.
fn usual(team: &Namespace<'_>, stack: &str, program: &str) -> Result<Value> {
    Ok(json!({
        "stack": stack,
        "backend": format!("file://{}", team.state()?),
        "programRef": { "name": program },
        "envRefs": { "PULUMI_CONFIG_PASSPHRASE": { "type": "Secret", "secret": { "name": "pulumi", "key": "passphrase" } } },
    }))
}

fn resource(kind: &str) -> Result<ApiResource> {
    let (group, version) = match kind {
        "Stack" | "Program" => ("pulumi.com", "v1"),
        "Workspace" | "Update" => ("auto.pulumi.com", "v1alpha1"),
        "Secret" | "ConfigMap" => ("", "v1"),
        "ExternalArtifact" => ("source.toolkit.fluxcd.io", "v1"),
        other => bail!("the table does not know the kind {other}"),
    };
    Ok(ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
}

fn api(team: &Namespace<'_>, kind: &str) -> Result<Api<DynamicObject>> {
    Ok(Api::namespaced_with(team.world.client.clone(), &team.name, &resource(kind)?))
}

fn own((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// A JSON merge patch.
fn merge(base: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else { return base.clone_from(patch) };
    if !base.is_object() {
        *base = json!({});
    }
    for (key, patch) in patch {
        if patch.is_null() {
            if let Some(base) = base.as_object_mut() {
                base.remove(key);
            }
        } else {
            merge(&mut base[key], patch);
        }
    }
}

fn write(file: &str, content: Option<&str>) -> io::Result<()> {
    match content {
        Some(content) => {
            fs::create_dir_all(Path::new(file).parent().unwrap_or(Path::new("/")))?;
            fs::write(file, content)
        }
        None => match fs::remove_file(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        },
    }
}

fn is_observed(stack: &Stack) -> bool {
    stack.status.as_ref().is_some_and(|status| status.observed_generation == stack.metadata.generation)
}

fn fields(object: &Value, wanted: &BTreeMap<String, Value>) -> Result<()> {
    for (pointer, wanted) in wanted {
        let found = at(object, pointer);
        let same = match (wanted, found) {
            (Value::String(pattern), Some(Value::String(text))) => matches(pattern, text),
            (wanted, found) => found.unwrap_or(&Value::Null) == wanted,
        };
        ensure!(same, "{pointer} is {}, not {wanted}", found.unwrap_or(&Value::Null));
    }
    Ok(())
}

fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).try_fold(object, |value, token| {
        match value {
            Value::Array(items) => match token.parse::<usize>() {
                Ok(index) => items.get(index),
                Err(_) => items.iter().find(|item| ["type", "kind", "name"].iter().any(|key| item[*key] == token.as_str())),
            },
            value => value.get(&token),
        }
    })
}

/// Returns whether a text matches a pattern, in which `…` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let parts: Vec<_> = pattern.split('…').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn a_pattern_fits_its_texts_and_no_others() {
    assert!(matches("a", "a") && !matches("a", "ab") && !matches("", "a"));
    assert!(matches("a…", "ab") && matches("…b", "ab") && matches("…", "") && matches("a…c…e", "abcde"));
    assert!(!matches("b…", "ab") && !matches("a…a", "a") && !matches("a…x…e", "abcde"));
}

#[test]
fn a_pointer_finds_an_item_by_its_type_or_name() -> Result<()> {
    let object = json!({ "a/b": [{ "type": "x", "is": 1 }, { "name": "y", "is": 2 }] });
    assert_eq!(at(&object, "/a~1b/x/is").and_then(Value::as_u64), Some(1));
    assert_eq!(at(&object, "/a~1b/1/is").ok_or_else(|| anyhow!("nothing"))?, 2);
    assert_eq!(at(&object, "/a~1b/z/is"), None);
    Ok(())
}
