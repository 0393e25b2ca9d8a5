//! Programs of an extreme size, and names and values in many alphabets.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update};
use driftless_tests::scenario::{Namespace, Source, is_ready, output};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    updates::wait,
    world::{aside, nothing_was_given_up, shared},
};

/// Ten thousand work too, but occupy the processors for a minute.
const RESOURCES: usize = 3_000;

/// A project with this many resources, which are one file: the load is Pulumi's reports about them.
fn project(team: &Namespace<'_>, resources: usize) -> Result<String> {
    let path = team.file("one-of-many")?;
    let mut project = format!("name: app\nruntime: yaml\nvariables: {{ path: '{path}' }}\nresources:\n");
    for number in 0..resources {
        let properties = "{ path: '${path}', content: one }";
        writeln!(project, "  r{number}: {{ type: 'world:index:Object', properties: {properties} }}")?;
    }
    Ok(project + "outputs: { content: '${r0.content}' }\n")
}

#[tokio::test]
async fn stack_of_three_thousand_resources_is_ready_after_one_run() -> Result<()> {
    let (world, _turn) = aside().await?;
    let team = world.namespace("thousands").await?;
    let repository = world.git.create(&team.name).await?;
    repository.commit("first", &[("Pulumi.yaml", &project(&team, RESOURCES)?)]).await?;
    let source = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    // Otherwise Pulumi writes the whole checkpoint after each resource.
    let more = "    PULUMI_EXPERIMENTAL: { type: Literal, literal: { value: 'true' } }\n\
                \x20   PULUMI_SKIP_CHECKPOINTS: { type: Literal, literal: { value: 'true' } }\n\
                \x20 resyncFrequencySeconds: 3600\n";
    team.apply_stack_as("app", "app", "{}", source, more).await?;
    let stack = team.ready_after("app", 1).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("one")));
    let state: Value = serde_json::from_slice(&fs::read(format!("{}/.pulumi/stacks/app/app.json", team.state()?))?)?;
    let resources = state["checkpoint"]["latest"]["resources"].as_array().map_or(0, Vec::len);
    ensure!(resources == RESOURCES + 2, "{resources} resources");
    team.clear().await?;
    nothing_was_given_up(&world).await
}

/// Cyrillic, Japanese, a combining accent, Arabic, an emoji of two code points, and characters that
/// YAML and shells interpret.
const TEXT: &str = "Привет, 日本語; e\u{301} مرحبا 👩‍🚀 \"'$(x)`%";
const DIR: &str = "проект/日本語 🚀";

#[tokio::test]
async fn names_paths_and_values_are_of_any_alphabet() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("alphabets").await?;
    let marker = team.file("препятствие-💥")?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    let path = team.file("файл-日本")?;
    let project = json!({
        "name": "app",
        "runtime": "yaml",
        "description": TEXT,
        "config": { "ключ": { "type": "string" }, "тайна": { "type": "string", "secret": true } },
        "variables": { "текст": { "fn::readFile": "данные/e\u{301}.txt" } },
        "resources": {
            "ресурс-日本": {
                "type": "world:index:Object",
                "properties": {
                    "path": path, "content": "${ключ}", "secretContent": "${тайна}", "failWhenExists": marker,
                },
            },
        },
        "outputs": { "ключ": "${ключ}", "имя": "${текст}", "тайна": "${тайна}", "é": "1", "ü": "2" },
    });
    let repository = world.git.create(&team.name).await?;
    let files = [(format!("{DIR}/Pulumi.yaml"), project.to_string()), (format!("{DIR}/данные/e\u{301}.txt"), TEXT.to_owned())];
    let files: Vec<_> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    let branch = "ветка/日本";
    let commit = repository.commit_on(branch, TEXT, &files).await?;
    team.apply_secret("secret", &[("value", "тайное-значение-日本")]).await?;
    let (reference, config) = (format!("branch: {branch:?}"), json!({ "ключ": TEXT }));
    let more = format!(
        "    TEXT: {{ type: Literal, literal: {{ value: {} }} }}\n  config: {config}\n  secretsRef:\n    тайна: {{ type: Secret, secret: {{ \
         name: secret, key: value }} }}\n",
        json!(TEXT)
    );
    let source = Source::Git { url: &repository.url, reference: &reference, dir: DIR, auth: "" };
    team.apply_stack_as("app", "app", "{}", source, &more).await?;

    let message = |stack: &Stack| stack.status.as_ref()?.last_update.as_ref()?.message.clone();
    let told = team.wait("app", "to fail", |stack| message(stack).is_some()).await?;
    let message = message(&told).unwrap_or_default();
    ensure!(message.contains(&format!("cannot write {path} while {marker} exists")), "{message}");
    fs::remove_file(&marker)?;
    let stack = team.wait("app", "to be Ready", is_ready).await?;
    assert_eq!(driftless_tests::scenario::commit(&stack), Some(&*commit));
    assert_eq!(fs::read_to_string(&path)?, format!("{TEXT}тайное-значение-日本"));
    let shown = [("ключ", TEXT), ("имя", TEXT), ("тайна", "[secret]"), ("é", "1"), ("ü", "2")];
    for (name, value) in shown {
        assert_eq!(output(&stack, name), Some(&json!(value)), "{name}");
    }
    // A Secret's keys are ASCII: each output has its own key.
    let update = team.updates("app").await?.pop().context("an Update")?;
    // The Stack can be Ready before its outputs are stored.
    let update = wait(&team, &update.name_any(), "to be complete", Update::is_complete).await?;
    let secret = team.secret(&format!("{}-stack-outputs", update.name_any())).await?;
    let kept: BTreeMap<_, _> = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
    let mut values: Vec<_> = kept.values().map(|value| String::from_utf8_lossy(value).into_owned()).collect();
    let mut expected = [TEXT, TEXT, "тайное-значение-日本", "1", "2"].map(|value| json!(value).to_string());
    values.sort();
    expected.sort();
    assert_eq!(values, expected, "{:?}", kept.keys());
    team.clear().await?;
    nothing_was_given_up(&world).await
}
