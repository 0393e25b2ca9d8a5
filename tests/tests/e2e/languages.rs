//! Programs in general-purpose languages, with a provider that is published: dependencies from their registries in every run, and the
//! same result in each.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, names};
use driftless_tests::{
    scenario::{FLUX, Handle, Namespace, Source, commit, is_ready, output},
    world::ready,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{net::TcpStream, process::Command, time::timeout};

use crate::world::shared;

/// A first run installs, and compiles, all that the program needs.
const FIRST_RUN: Duration = Duration::from_mins(20);
/// A registry that does not answer so soon is not reached from here.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// A program that makes one pet with a name of two words.
struct Program {
    language: &'static str,
    /// What has to be on PATH.
    programs: &'static [&'static str],
    /// Where the dependencies come from.
    registry: &'static str,
    /// Path and content. The first has the number of words.
    files: &'static [(&'static str, &'static str)],
    words: [&'static str; 2],
    /// Variables that name a cache which an image would bring along, and the commands that fill it.
    caches: &'static [&'static str],
    fill: &'static [&'static [&'static str]],
}

const PROVIDER: &str = "pulumi-resource-random";

const TYPESCRIPT: Program = Program {
    language: "typescript",
    programs: &["pulumi-language-nodejs", PROVIDER],
    registry: "registry.npmjs.org",
    files: &[
        ("index.ts", include_str!("languages/typescript/index.ts")),
        ("package.json", include_str!("languages/typescript/package.json")),
        ("Pulumi.yaml", include_str!("languages/typescript/Pulumi.yaml")),
    ],
    words: ["length: 2", "length: 3"],
    caches: &[],
    fill: &[],
};

const PYTHON: Program = Program {
    language: "python",
    programs: &["pulumi-language-python", "pulumi-language-python-exec", PROVIDER],
    registry: "pypi.org",
    files: &[
        ("__main__.py", include_str!("languages/python/__main__.py")),
        ("requirements.txt", include_str!("languages/python/requirements.txt")),
        ("Pulumi.yaml", include_str!("languages/python/Pulumi.yaml")),
    ],
    words: ["length=2", "length=3"],
    caches: &[],
    fill: &[],
};

const GO: Program = Program {
    language: "go",
    programs: &["pulumi-language-go", "go", PROVIDER],
    registry: "proxy.golang.org",
    files: &[
        ("main.go", include_str!("languages/go/main.go")),
        ("go.mod", include_str!("languages/go/go.mod")),
        ("Pulumi.yaml", include_str!("languages/go/Pulumi.yaml")),
    ],
    words: ["pulumi.Int(2)", "pulumi.Int(3)"],
    caches: &["GOCACHE", "GOPATH"],
    // Compiling the SDK takes minutes, in which nothing is said, and a run of this world may be silent for 40 seconds.
    fill: &[&["go", "mod", "tidy"], &["go", "build", "-o", "/dev/null", "."]],
};

#[tokio::test]
async fn a_typescript_program_is_run_checked_and_destroyed() -> Result<()> {
    lives(&TYPESCRIPT).await
}

#[tokio::test]
async fn a_python_program_is_run_checked_and_destroyed() -> Result<()> {
    lives(&PYTHON).await
}

#[tokio::test]
async fn a_go_program_is_run_checked_and_destroyed() -> Result<()> {
    lives(&GO).await
}

/// The first run, one without a change, an edit, a look for drift, and a destroy after the source is gone.
async fn lives(program: &Program) -> Result<()> {
    let (world, _turn) = shared().await?;
    if let Some(missing) = missing(&world, program).await? {
        println!("skipped: {missing}");
        return Ok(());
    }
    let team = world.namespace(program.language).await?;
    let repository = world.git.create(program.language).await?;
    let commit_with = async |words: &str| {
        let texts = program.files.iter().map(|(name, text)| (format!("app/{name}"), text.replace(program.words[0], words)));
        let texts: Vec<_> = texts.collect();
        let files: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        repository.commit(words, &files).await
    };
    commit_with(program.words[0]).await?;
    team.apply_git_repository("app", &repository.url).await?;
    let source = || Source::Flux { api_version: FLUX, kind: "GitRepository", name: "app", dir: "app" };
    let environment = environment(&team, program)?;
    fill(&team, program, &environment).await?;
    let lines: String = environment.iter().map(|(name, value)| literal(name, value)).collect();
    let apply = async |more: &str| team.apply_stack("app", source(), &format!("{lines}  destroyOnFinalize: true\n{more}")).await;
    apply("").await?;
    ready::until("the first run", FIRST_RUN, async || {
        let stack = team.stack("app").await?;
        ensure!(is_ready(&stack), "{:#?}", stack.status);
        Ok(())
    })
    .await?;
    let first = team.ready_after("app", 1).await?;
    let pet = |stack: &Stack| output(stack, "pet").and_then(Value::as_str).unwrap_or_default().to_owned();
    assert_eq!(pet(&first).split('-').count(), 2, "{}", pet(&first));
    let keepers = json!({ "directory": "/share/source/app", "kubeconfig": "", "region": "" });
    assert_eq!(output(&first, "keepers"), Some(&keepers));

    apply("  updateTemplate: { spec: { expectNoChanges: true } }\n").await?;
    let second = team.ready_after("app", 2).await?;
    assert_eq!(pet(&second), pet(&first));

    apply("").await?;
    team.ready_after("app", 3).await?;
    let id = commit_with(program.words[1]).await?;
    team.reconcile_source("app", &id).await?;
    let revision = format!("main@sha1:{id}");
    let edited = team.wait("app", "to have run the edit", |stack| is_ready(stack) && commit(stack) == Some(&revision)).await?;
    assert_eq!(pet(&edited).split('-').count(), 3, "{}", pet(&edited));

    let schedule = Patch::Merge(json!({ "metadata": { "annotations": { (names::DRIFT_SCHEDULE): "1m" } } }));
    Api::<Stack>::namespaced(world.client.clone(), &team.name).patch("app", &PatchParams::default(), &schedule).await?;
    team.wait("app", "to be without drift", |stack| {
        let conditions = stack.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "Drifted" && condition.reason == "NoDrift")
    })
    .await?;

    team.objects(FLUX, "GitRepository")?.delete("app", &DeleteParams::default()).await?;
    ensure!(state(&team)?.contains("RandomPet"), "{}", state(&team)?);
    team.clear().await?;
    ensure!(!state(&team)?.contains("RandomPet"), "{}", state(&team)?);
    Ok(())
}

/// What keeps the program from being run here.
async fn missing(world: &Handle, program: &Program) -> Result<Option<String>> {
    let tools = Path::new(world.get("WORLD_TOOLS")?);
    if let Some(absent) = program.programs.iter().find(|name| !tools.join(name).exists()) {
        return Ok(Some(format!("{absent} is not on PATH; a Pulumi installation puts it there")));
    }
    let reached = timeout(REACHED_WITHIN, TcpStream::connect((program.registry, 443))).await;
    Ok((!matches!(reached, Ok(Ok(_)))).then(|| format!("{} is not reached", program.registry)))
}

/// What an image of the language would have set.
fn environment(team: &Namespace<'_>, program: &Program) -> Result<BTreeMap<&'static str, String>> {
    let mut variables = BTreeMap::new();
    for cache in program.caches {
        let path = team.file(cache)?;
        fs::create_dir_all(&path)?;
        variables.insert(*cache, path);
    }
    if !variables.is_empty() {
        // The proxy serves modules, and not what the checksum database says of them.
        variables.insert("GONOSUMDB", "*".into());
    }
    Ok(variables)
}

/// An entry of `envRefs`.
fn literal(name: &str, value: &str) -> String {
    format!("    {name}: {{ type: Literal, literal: {{ value: '{value}' }} }}\n")
}

async fn fill(team: &Namespace<'_>, program: &Program, environment: &BTreeMap<&'static str, String>) -> Result<()> {
    let folder = team.file("fill")?;
    fs::create_dir_all(&folder)?;
    for (name, text) in program.files {
        fs::write(Path::new(&folder).join(name), text)?;
    }
    for command in program.fill {
        let run = Command::new(command[0]).args(&command[1..]).envs(environment).current_dir(&folder).kill_on_drop(true).output();
        let done = timeout(FIRST_RUN, run).await.with_context(|| format!("{command:?} takes too long"))??;
        ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

/// The state of the Pulumi stack, or nothing.
fn state(team: &Namespace<'_>) -> Result<String> {
    let path = format!("{}/.pulumi/stacks/app/dev.json", team.state()?);
    if fs::exists(&path)? { fs::read_to_string(&path).context(path) } else { Ok(String::new()) }
}
