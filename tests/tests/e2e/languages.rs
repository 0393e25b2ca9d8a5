//! Programs in general-purpose languages, with published providers: dependencies come from their
//! registries in every run, and each run has the same result.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update, names};
use driftless_tests::{
    scenario::{FLUX, Handle, Namespace, Source, commit, is_ready, output},
    world::{git::Repository, ready},
};
use futures::future::try_join_all;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{net::TcpStream, process::Command, sync::OnceCell, time::timeout};

use crate::{
    programs,
    updates::{ours, wait},
    world::{Turn, second, shared},
};

/// The limit of what installs or compiles all that a program needs: the SDK for Go takes minutes to
/// compile on a busy machine.
const INSTALLED_WITHIN: Duration = Duration::from_mins(20);
/// A registry without an answer within this time counts as unreachable.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
/// The value of the programs' secret.
const WORD: &str = "canary-word-4fd0";

/// The variables with which a machine behind a proxy names the CAs of the registries.
const TRUSTED: [&str; 3] = ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"];

/// A program of one resource.
struct Program {
    language: &'static str,
    /// The programs that must be on PATH.
    programs: &'static [&'static str],
    /// The source of the dependencies.
    registry: &'static str,
    /// A package manager that no Pulumi installation has.
    manager: Option<&'static str>,
    /// Path and content.
    files: &'static [(&'static str, &'static str)],
    /// The lock file, and the command that writes it. Empty if there is none.
    lock: (&'static str, &'static [&'static str]),
}

const RANDOM: &str = "pulumi-resource-random";

const TYPESCRIPT: Program = Program {
    language: "typescript",
    programs: &["pulumi-language-nodejs", RANDOM],
    registry: "registry.npmjs.org",
    manager: None,
    files: &[INDEX, PACKAGES, ("Pulumi.yaml", include_str!("languages/typescript/Pulumi.yaml"))],
    lock: ("package-lock.json", &["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit"]),
};
const INDEX: (&str, &str) = ("index.ts", include_str!("languages/typescript/index.ts"));
const PACKAGES: (&str, &str) = ("package.json", include_str!("languages/typescript/package.json"));

const YARN: Program = Program {
    language: "yarn",
    manager: Some("yarn"),
    files: &[
        INDEX,
        PACKAGES,
        ("Pulumi.yaml", "name: app\nruntime: { name: nodejs, options: { packagemanager: yarn } }\n"),
        (".yarnrc.yml", "nodeLinker: node-modules\n"),
    ],
    lock: ("yarn.lock", &["yarn", "install", "--mode=update-lockfile"]),
    ..TYPESCRIPT
};

const PNPM: Program = Program {
    language: "pnpm",
    manager: Some("pnpm"),
    files: &[
        INDEX,
        PACKAGES,
        ("Pulumi.yaml", "name: app\nruntime: { name: nodejs, options: { packagemanager: pnpm } }\n"),
        // pnpm requires a decision about each package with a script.
        ("pnpm-workspace.yaml", "allowBuilds: { protobufjs: false }\n"),
    ],
    lock: ("pnpm-lock.yaml", &["pnpm", "install", "--lockfile-only"]),
    ..TYPESCRIPT
};

const PYTHON: Program = Program {
    language: "python",
    programs: &["pulumi-language-python", "pulumi-language-python-exec", RANDOM],
    registry: "pypi.org",
    manager: None,
    files: &[
        MAIN,
        ("requirements.txt", include_str!("languages/python/requirements.txt")),
        ("Pulumi.yaml", include_str!("languages/python/Pulumi.yaml")),
    ],
    lock: ("", &[]),
};
const MAIN: (&str, &str) = ("__main__.py", include_str!("languages/python/__main__.py"));

const UV: Program = Program {
    language: "uv",
    manager: Some("uv"),
    files: &[
        MAIN,
        ("pyproject.toml", include_str!("languages/uv/pyproject.toml")),
        ("Pulumi.yaml", "name: app\nruntime: { name: python, options: { toolchain: uv } }\n"),
    ],
    lock: ("uv.lock", &["uv", "lock"]),
    ..PYTHON
};

const POETRY: Program = Program {
    language: "poetry",
    manager: Some("poetry"),
    files: &[
        MAIN,
        ("pyproject.toml", include_str!("languages/poetry/pyproject.toml")),
        ("Pulumi.yaml", "name: app\nruntime: { name: python, options: { toolchain: poetry } }\n"),
    ],
    lock: ("poetry.lock", &["poetry", "lock"]),
    ..PYTHON
};

const GO: Program = Program {
    language: "go",
    programs: &["pulumi-language-go", "go", RANDOM],
    registry: "proxy.golang.org",
    manager: None,
    files: &[
        ("main.go", include_str!("languages/go/main.go")),
        ("go.mod", include_str!("languages/go/go.mod")),
        ("Pulumi.yaml", include_str!("languages/go/Pulumi.yaml")),
    ],
    lock: ("", &[]),
};

/// A Python program whose resource runs commands.
const COMMAND: Program = Program {
    language: "command",
    programs: &["pulumi-language-python", "pulumi-language-python-exec", "pulumi-resource-command"],
    registry: "pypi.org",
    manager: None,
    files: &[
        ("__main__.py", include_str!("languages/command/__main__.py")),
        ("requirements.txt", include_str!("languages/command/requirements.txt")),
        ("Pulumi.yaml", include_str!("languages/command/Pulumi.yaml")),
    ],
    lock: ("", &[]),
};

#[tokio::test]
async fn a_typescript_program_is_run_checked_and_destroyed() -> Result<()> {
    Box::pin(lives(&TYPESCRIPT, ["length: 2", "length: 3"], [])).await
}

#[tokio::test]
async fn a_python_program_is_run_checked_and_destroyed() -> Result<()> {
    Box::pin(lives(&PYTHON, ["length=2", "length=3"], [])).await
}

#[tokio::test]
async fn a_go_program_is_run_checked_and_destroyed() -> Result<()> {
    if GO.is_skipped().await? {
        return Ok(());
    }
    Box::pin(lives(&GO, ["pulumi.Int(2)", "pulumi.Int(3)"], go_variables().await?)).await
}

/// The first run, one without a change, an edit, a drift check, and a destroy after the source is
/// gone; with secrets that a KMS key encrypts. The program creates a pet, whose name has as many
/// words as it says.
async fn lives(program: &Program, words: [&str; 2], variables: impl IntoIterator<Item = (&'static str, String)>) -> Result<()> {
    if program.is_skipped().await? {
        return Ok(());
    }
    let (world, _turn) = world().await?;
    let team = world.namespace(program.language).await?;
    let repository = world.git.create(program.language).await?;
    program.commit(&repository, words[0], words[0]).await?;
    team.apply_git_repository("app", &repository.url).await?;
    let source = || Source::Flux { api_version: FLUX, kind: "GitRepository", name: "app", dir: "app" };
    // A Region among the variables would hide whether the program sees the installation's.
    let mut environment: String = variables.into_iter().map(|(name, value)| programs::literal(name, &value)).collect();
    for name in programs::ADMINISTRATOR.into_iter().filter(|name| *name != "AWS_REGION") {
        environment += &programs::literal(name, world.get(name)?);
    }
    let provider = programs::new_key_provider(&world).await?;
    let secret = format!("  secretsRef: {{ 'app:word': {{ type: Literal, literal: {{ value: {WORD} }} }} }}\n");
    let spec = format!("{environment}  secretsProvider: '{provider}'\n{secret}  destroyOnFinalize: true\n");
    team.apply_stack("app", source(), &spec).await?;
    until_ready(&team, "app").await?;
    let first = team.ready_after("app", 1).await?;
    let pet = |stack: &Stack| output(stack, "pet").and_then(Value::as_str).unwrap_or_default().to_owned();
    assert_eq!(pet(&first).split('-').count(), 2, "{}", pet(&first));
    let keepers = json!({ "directory": "/share/source/app", "kubeconfig": "", "region": "" });
    assert_eq!(output(&first, "keepers"), Some(&keepers));
    assert_eq!(output(&first, "word"), Some(&json!("[secret]")));
    let encrypted = encrypted(&team, &provider)?;

    let second = runs_without_a_change(&team, source(), &spec).await?;
    assert_eq!(pet(&second), pet(&first));
    assert_eq!(self::encrypted(&team, &provider)?, encrypted, "the secrets have another key after the second run");

    let id = program.commit(&repository, words[0], words[1]).await?;
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

#[tokio::test]
async fn packages_are_restored_until_their_lock_file_changes() -> Result<()> {
    for program in [&TYPESCRIPT, &PYTHON, &GO] {
        if program.is_skipped().await? {
            continue;
        }
        let (world, _turn) = world().await?;
        let team = world.namespace(&format!("{}-cache", program.language)).await?;
        let repository = world.git.create(&team.name).await?;
        program.commit(&repository, "app", "app").await?;
        team.apply_git_repository("app", &repository.url).await?;
        let secret = format!("  secretsRef: {{ 'app:word': {{ type: Literal, literal: {{ value: {WORD} }} }} }}\n");
        let is_go = program.language == GO.language;
        // Each task has caches of its own.
        let own = ["GOCACHE", "GOMODCACHE"].map(|name| programs::literal(name, &format!("/share/go/{name}")));
        let shared = [programs::literal("CGO_ENABLED", "0"), programs::literal("GONOSUMDB", "*")];
        let environment = if is_go { [own, shared].concat().concat() } else { String::new() };
        let spec = format!("{environment}{secret}");
        let source = || Source::Flux { api_version: FLUX, kind: "GitRepository", name: "app", dir: "app" };
        let run = async |number, annotations: &str| run(&team, "app", annotations, source(), &spec, number).await;
        let (installed, ..) = run(1, "{}").await?;
        ensure!(installed.starts_with("installed in ") && installed.ends_with(": no cache entry"), "{installed}");
        let (restored, plan, stack) = run(2, "{}").await?;
        // Go's compiler has to run in each task.
        ensure!(restored.starts_with("restored ") && restored.contains(", installed in ") == is_go, "{restored}");
        if is_go {
            team.clear().await?;
            continue;
        }
        let (installed, fresh, fresh_stack) = run(3, &format!("{{ {}: 'off' }}", names::CACHE)).await?;
        ensure!(installed.starts_with("installed in "), "{installed}");
        assert_eq!((plan, output(&stack, "pet")), (fresh, output(&fresh_stack, "pet")), "another plan with restored packages");
        if program.language == TYPESCRIPT.language {
            assert_eq!(output(&stack, "types"), Some(&json!("20.19.0")));
            let id = program.commit(&repository, "20.19.0", "20.19.1").await?;
            team.reconcile_source("app", &id).await?;
            let types = |stack: &Stack| is_ready(stack) && output(stack, "types") == Some(&json!("20.19.1"));
            team.wait("app", "to have the changed package", types).await?;
        }
        team.clear().await?;
    }
    Ok(())
}

#[tokio::test]
async fn packages_of_every_manager_are_restored() -> Result<()> {
    let mut programs = Vec::new();
    for program in [&YARN, &PNPM, &UV, &POETRY] {
        if !program.is_skipped().await? {
            programs.push(program);
        }
    }
    if programs.is_empty() {
        return Ok(());
    }
    let (world, _turn) = world().await?;
    let team = world.namespace("managers").await?;
    try_join_all(programs.into_iter().map(|program| Box::pin(restores(program, &team)))).await?;
    team.clear().await
}

/// A run that installs the packages of a program, and one that restores them.
async fn restores(program: &Program, team: &Namespace<'_>) -> Result<()> {
    let name = program.language;
    let repository = team.world.git.create(&format!("{}-{name}", team.name)).await?;
    program.commit(&repository, "app", "app").await?;
    let trusted = TRUSTED.iter().filter_map(|name| Some(programs::literal(name, std::env::var_os(name)?.to_str()?)));
    let secret = format!("  secretsRef: {{ 'app:word': {{ type: Literal, literal: {{ value: {WORD} }} }} }}\n");
    let spec = trusted.collect::<String>() + &secret;
    let source = || Source::Git { url: &repository.url, reference: "branch: main", dir: "app", auth: "" };
    let (installed, _, first) = run(team, name, "{}", source(), &spec, 1).await?;
    ensure!(installed.starts_with("installed in ") && installed.ends_with(": no cache entry"), "{name}: {installed}");
    let (restored, _, second) = run(team, name, "{}", source(), &spec, 2).await?;
    ensure!(restored.starts_with("restored ") && !restored.contains("installed"), "{name}: {restored}");
    assert_eq!(output(&first, "pet"), output(&second, "pet"), "{name}");
    Ok(())
}

/// Requests a run of a Stack. Returns how it got its packages, what it changed, and the Stack.
async fn run(
    team: &Namespace<'_>,
    name: &str,
    annotations: &str,
    source: Source<'_>,
    spec: &str,
    number: usize,
) -> Result<(String, BTreeMap<String, i64>, Stack)> {
    let message = format!("{spec}  updateTemplate: {{ spec: {{ message: 'run {number}' }} }}\n");
    team.apply_stack_as(name, name, annotations, source, &message).await?;
    until_ready(team, name).await?;
    let stack = team.ready_after(name, number).await?;
    let update = team.updates(name).await?.pop().context("an Update")?;
    let update = ours(&wait(team, &update.name_any(), "to be complete", Update::is_complete).await?);
    Ok((update.dependencies.context("no word of dependencies")?, update.changes, stack))
}

#[tokio::test]
async fn a_program_sees_the_region_of_its_cluster_in_every_run() -> Result<()> {
    if COMMAND.is_skipped().await? {
        return Ok(());
    }
    let (world, _turn) = world().await?;
    let second = second(&world).await?;
    let team = second.namespace("abroad").await?;
    let marker = team.file("marker")?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    let environment = json!({ "KUBECONFIG": "", "MARKER": marker, "REGION": "eu-west-1", "SOURCE": "/share/source/app" });
    let spec = format!("  config: {{ 'app:marker': '{marker}' }}\n  destroyOnFinalize: true\n");
    is_the_same_abroad(&COMMAND, &second, &team, &spec, ("environment", environment)).await?;
    ensure!(fs::read_to_string(&marker)?.contains("name: app"), "the command did something else");
    team.clear().await?;
    ensure!(!fs::exists(&marker)?, "the command of the destroy was not run");
    Ok(())
}

#[tokio::test]
async fn programs_of_every_language_see_the_region_of_their_cluster() -> Result<()> {
    for program in [&TYPESCRIPT, &PYTHON, &GO] {
        if program.is_skipped().await? {
            continue;
        }
        let (world, _turn) = world().await?;
        let second = second(&world).await?;
        let team = second.namespace(program.language).await?;
        let variables = if program.language == GO.language { go_variables().await?.into() } else { Vec::new() };
        let environment: String = variables.into_iter().map(|(name, value)| programs::literal(name, &value)).collect();
        let secret = format!("  secretsRef: {{ 'app:word': {{ type: Literal, literal: {{ value: {WORD} }} }} }}\n");
        let keepers = json!({ "directory": "/share/source/app", "kubeconfig": "", "region": "eu-west-1" });
        let spec = format!("{environment}{secret}  destroyOnFinalize: true\n");
        Box::pin(is_the_same_abroad(program, &second, &team, &spec, ("keepers", keepers))).await?;
        team.clear().await?;
    }
    Ok(())
}

/// Runs a program twice in a cluster of another Region than the installation's. Both runs show the
/// same, and the second changes nothing.
async fn is_the_same_abroad(
    program: &Program,
    world: &Handle,
    team: &Namespace<'_>,
    spec: &str,
    (shown, expected): (&str, Value),
) -> Result<()> {
    // With a role, because EKS sets the Region of a pod whose ServiceAccount has one.
    let role = "eks.amazonaws.com/role-arn: 'arn:aws:iam::123456789012:role/deployer'";
    team.apply(&format!(
        "{{ apiVersion: v1, kind: ServiceAccount, metadata: {{ name: default, namespace: NAMESPACE, annotations: {{ {role} }} }} }}"
    ))
    .await?;
    let repository = world.git.create(&format!("{}-of-another-region", team.name)).await?;
    program.commit(&repository, "app", "app").await?;
    let source = || Source::Git { url: &repository.url, reference: "branch: main", dir: "app", auth: "" };
    team.apply_stack("app", source(), spec).await?;
    until_ready(team, "app").await?;
    let first = team.ready_after("app", 1).await?;
    assert_eq!(output(&first, shown), Some(&expected));
    let again = runs_without_a_change(team, source(), spec).await?;
    assert_eq!(output(&again, shown), Some(&expected));
    Ok(())
}

/// Waits for the end of a run that may install and compile all that the program needs.
async fn until_ready(team: &Namespace<'_>, name: &str) -> Result<()> {
    ready::until("the run", INSTALLED_WITHIN, async || {
        let stack = team.stack(name).await?;
        ensure!(is_ready(&stack), "{:#?}", stack.status);
        Ok(())
    })
    .await
}

/// Requests a second run of the unchanged program, which changes nothing.
async fn runs_without_a_change(team: &Namespace<'_>, source: Source<'_>, spec: &str) -> Result<Stack> {
    team.apply_stack("app", source, &format!("{spec}  updateTemplate: {{ spec: {{ message: again }} }}\n")).await?;
    let stack = team.ready_after("app", 2).await?;
    let mut changes = Vec::new();
    for update in team.updates("app").await? {
        // The Stack can be Ready before its Update is complete.
        changes.push(ours(&wait(team, &update.name_any(), "to be complete", Update::is_complete).await?).changes);
    }
    let [first, second] = &changes[..] else { anyhow::bail!("{changes:?}") };
    let resources = first.values().sum();
    ensure!(*second == BTreeMap::from([("same".to_owned(), resources)]), "the runs changed {changes:?}");
    Ok(stack)
}

/// Checks that the state's secrets are encrypted with the KMS key, and that none is in clear.
fn encrypted(team: &Namespace<'_>, provider: &str) -> Result<Value> {
    let secrets = programs::secrets_providers(team)?;
    ensure!(secrets["type"] == "cloud" && secrets["state"]["url"] == provider, "{secrets}");
    let state = state(team)?;
    ensure!(state.contains("ciphertext") && !state.contains(WORD), "{state}");
    Ok(secrets)
}

impl Program {
    /// Returns whether the program cannot run here, and prints what is missing; if LANGUAGES is
    /// `required`, a missing host is an error.
    async fn is_skipped(&self) -> Result<bool> {
        let absent = |name: &&str| !tools().join(name).exists();
        let missing = match (self.programs.iter().copied().find(absent), self.manager.filter(absent)) {
            (Some(absent), _) => format!("{absent} is not on PATH; a Pulumi installation puts it there"),
            (None, Some(manager)) => format!("tests/tools/install did not install {manager}; see its log"),
            (None, None) if is_reached(self.registry).await => return Ok(false),
            (None, None) => format!("{} is not reached", self.registry),
        };
        let is_required = std::env::var_os("LANGUAGES").is_some_and(|languages| languages == "required");
        ensure!(!is_required, "{} program: {missing}", self.language);
        println!("skipped: {} program: {missing}", self.language);
        Ok(true)
    }

    /// Commits its files in the directory `app`, with some words replaced.
    async fn commit(&self, repository: &Repository, words: &str, edited: &str) -> Result<String> {
        let mut files: Vec<_> =
            self.files.iter().map(|(name, text)| (format!("app/{name}"), text.replace(words, edited))).collect();
        if let (name, [manager, arguments @ ..]) = self.lock {
            files.push((format!("app/{name}"), lock(&files, name, manager, arguments).await?));
        }
        let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        repository.commit(edited, &files).await
    }
}

/// The lock file of a program, as a developer commits it.
async fn lock(files: &[(String, String)], name: &str, manager: &str, arguments: &[&str]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let app = folder.path().join("app");
    fs::create_dir(&app)?;
    for (name, text) in files {
        fs::write(folder.path().join(name), text)?;
    }
    let path = format!("{}:{}", tools().display(), std::env::var_os("PATH").unwrap_or_default().display());
    let mut command = Command::new(manager);
    command.env("PATH", path).args(arguments).current_dir(&app).kill_on_drop(true);
    let done = timeout(INSTALLED_WITHIN, command.output()).await.with_context(|| format!("{manager} takes too long"))??;
    let [printed, said] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    ensure!(done.status.success(), "{manager}: {printed}{said}");
    Ok(fs::read_to_string(app.join(name))?)
}

async fn is_reached(registry: &str) -> bool {
    matches!(timeout(REACHED_WITHIN, TcpStream::connect((registry, 443))).await, Ok(Ok(_)))
}

/// The folder of the world's programs. It is known without a world.
fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools")
}

/// The variables of an image with Go. Its caches outlive the clone, like those of the tools.
async fn go_variables() -> Result<[(&'static str, String); 4]> {
    let printed = Command::new(tools().join("go")).args(["env", "GOCACHE", "GOMODCACHE"]).output().await?;
    let printed = String::from_utf8(printed.stdout)?;
    let (cache, modules) = printed.trim().split_once('\n').with_context(|| format!("go env: {printed:?}"))?;
    // The proxy serves modules, but not the checksum database.
    Ok([("CGO_ENABLED", "0".into()), ("GOCACHE", cache.into()), ("GOMODCACHE", modules.into()), ("GONOSUMDB", "*".into())])
}

/// The world, with a limit of silence that npm and Go's compiler need on a busy machine.
async fn world() -> Result<(Handle, Turn)> {
    let (world, turn) = shared().await?;
    // Opening the world resets its settings; when this ends, all tests of this file have opened it.
    compile_go().await?;
    world.control.set("SILENCE_SECONDS", &INSTALLED_WITHIN.as_secs().to_string()).await?;
    Ok((world, turn))
}

/// Compiles the SDK for Go once, before any program runs: it takes minutes, and slows concurrent
/// programs.
async fn compile_go() -> Result<()> {
    static COMPILED: OnceCell<()> = OnceCell::const_new();
    COMPILED
        .get_or_try_init(async || {
            if !tools().join("go").exists() || !is_reached(GO.registry).await {
                return Ok(());
            }
            let folder = tempfile::tempdir()?;
            for (name, text) in GO.files {
                fs::write(folder.path().join(name), text)?;
            }
            go(&["mod", "tidy"], folder.path()).await?;
            go(&["build", "-o", "/dev/null", "."], folder.path()).await
        })
        .await?;
    Ok(())
}

/// Runs go in a folder.
async fn go(arguments: &[&str], folder: &Path) -> Result<()> {
    let mut command = Command::new(tools().join("go"));
    command.args(arguments).current_dir(folder).envs(go_variables().await?).kill_on_drop(true);
    let done =
        timeout(INSTALLED_WITHIN, command.output()).await.with_context(|| format!("go {arguments:?} takes too long"))??;
    ensure!(done.status.success(), "go {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// The state of the Pulumi stack, or an empty one.
fn state(team: &Namespace<'_>) -> Result<String> {
    let path = format!("{}/.pulumi/stacks/app/dev.json", team.state()?);
    if fs::exists(&path)? { fs::read_to_string(&path).context(path) } else { Ok(String::new()) }
}
