//! A second run in a new task beside `pulumi up` in a folder where everything is installed.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use driftless_api::Update;
use driftless_tests::{
    aws::CALLS_LOG,
    scenario::{Handle, Namespace, RUN, Source},
    world::{ready, start::World},
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::Value;
use tokio::process::Command;

use crate::{mebibytes, median};

/// Later runs of each program, and runs by hand; the median is shown.
const RUNS: usize = 5;
/// A first run downloads its packages.
const FIRST_RUN: Duration = Duration::from_mins(10);

/// A program of one resource, and its language host.
struct Program {
    name: &'static str,
    host: &'static str,
    files: &'static [(&'static str, &'static str)],
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "typescript",
        host: "pulumi-language-nodejs",
        files: &[
            ("Pulumi.yaml", "name: app\nruntime: nodejs\n"),
            ("index.ts", "import * as random from \"@pulumi/random\";\nexport const pet = new random.RandomPet(\"pet\").id;\n"),
            ("package.json", include_str!("../../../tests/e2e/languages/typescript/package.json")),
        ],
    },
    Program {
        name: "python",
        host: "pulumi-language-python",
        files: &[
            ("Pulumi.yaml", "name: app\nruntime: { name: python, options: { virtualenv: venv } }\n"),
            (
                "__main__.py",
                "import pulumi\nimport pulumi_random\n\npulumi.export(\"pet\", pulumi_random.RandomPet(\"pet\").id)\n",
            ),
            ("requirements.txt", include_str!("../../../tests/e2e/languages/python/requirements.txt")),
        ],
    },
];

/// A run: the time of its runner, what the machine received from the network, and how often
/// `pulumi` was started.
struct Run {
    took: Duration,
    received: u64,
    processes: usize,
    dependencies: String,
}

/// The bucket of the state.
const STATE: &str = "bench-state";

/// The runs of programs with packages, where their language hosts are on this machine, and the
/// calls of a backend in S3.
pub async fn measure(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    backend_calls(&handle).await?;
    println!("\nThe runner, from its first call to its last, beside `pulumi up` in a warm folder; median of {RUNS}:");
    for program in PROGRAMS {
        let tools = Path::new(handle.get("WORLD_TOOLS")?);
        if !tools.join(program.host).exists() {
            println!("  {:12} not measured: {} is not on PATH", program.name, program.host);
            continue;
        }
        Box::pin(program.measure(&handle)).await?;
    }
    Ok(())
}

/// Counts the calls of S3 that Pulumi itself makes in a run without a change, whose state is in a
/// bucket.
async fn backend_calls(handle: &Handle) -> Result<()> {
    let team = handle.namespace("backend").await?;
    let administrator = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"];
    let mut environment = String::new();
    for name in administrator {
        writeln!(environment, "    {name}: {{ type: Literal, literal: {{ value: '{}' }} }}", handle.get(name)?)?;
    }
    let command = |name: &str| -> Result<Command> {
        let tools = Path::new(handle.get("WORLD_TOOLS")?);
        let mut command = Command::new(tools.join(name));
        command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", tools.display()));
        for name in administrator {
            command.env(name, handle.get(name)?);
        }
        Ok(command)
    };
    succeed(command("aws")?.args(["s3api", "create-bucket", "--bucket", STATE])).await?;
    team.apply_program("app", &team.program("app.txt", "content", "")?).await?;
    let log = Path::new(handle.get("WORLD_LOGS")?).join(CALLS_LOG);
    let is_backends = |call: &Value| call["path"].as_str().is_some_and(|path| path.starts_with(&format!("/{STATE}")));
    let mut calls = 0;
    for number in 1..=2 {
        let before = fs::metadata(&log)?.len();
        team.apply(&format!(
            "apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: {{ name: app, namespace: NAMESPACE }}\nspec:\n  stack: dev\n  \
             backend: 's3://{STATE}'\n  programRef: {{ name: app }}\n  updateTemplate: {{ spec: {{ message: 'run {number}' }} }}\n  \
             envRefs:\n    PULUMI_CONFIG_PASSPHRASE: {{ type: Secret, secret: {{ name: pulumi, key: passphrase }} }}\n{environment}"
        ))
        .await?;
        team.ready_after("app", number).await?;
        calls = handle.journal(CALLS_LOG, before, is_backends)?.len();
    }
    let (folder, before) = (tempfile::tempdir()?, fs::metadata(&log)?.len());
    fs::write(
        folder.path().join("Pulumi.yaml"),
        format!("name: app\nruntime: yaml\n{}", team.program("app.txt", "content", "")?),
    )?;
    let mut up = command("pulumi")?;
    up.args(["up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev"]).current_dir(folder.path());
    succeed(up.envs(handle.pulumi_environment(&format!("s3://{STATE}"))?)).await?;
    let by_hand = handle.journal(CALLS_LOG, before, is_backends)?.len();
    println!("\nA run without a change, of a Program whose state is in S3:");
    println!("  calls of S3 by Pulumi's backend         {calls:6}");
    println!("  the same by `pulumi up` by hand         {by_hand:6}");
    Ok(())
}

async fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output().await?;
    let [printed, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    ensure!(output.status.success(), "{command:?}: {printed}{said}");
    Ok(())
}

impl Program {
    async fn measure(&self, handle: &Handle) -> Result<()> {
        let folder = tempfile::tempdir()?;
        for (name, text) in self.files {
            fs::write(folder.path().join(name), text)?;
        }
        if self.files.iter().any(|(name, _)| *name == "package.json") {
            let mut npm = Command::new("npm");
            npm.args(["install", "--package-lock-only", "--ignore-scripts", "--no-audit"]).current_dir(folder.path());
            ensure!(npm.output().await?.status.success(), "npm cannot lock the packages");
        }
        let names = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names = names.collect::<Result<Vec<_>>>()?;
        let texts = names.iter().map(|name| Ok((name.as_str(), fs::read_to_string(folder.path().join(name))?)));
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let files: Vec<_> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();

        let team = handle.namespace(&format!("warm-{}", self.name)).await?;
        let repository = handle.git.create(&team.name).await?;
        repository.commit("first", &files).await?;
        let url = repository.url.clone();
        let first = run(&team, &url, 1).await?;
        let mut later = Vec::new();
        for number in 2..=RUNS + 1 {
            later.push(run(&team, &url, number).await?);
        }
        let bare = by_hand(handle, folder.path()).await?;
        let took = median(later.iter().map(|run| run.took).collect());
        let received = later.iter().map(|run| run.received).max().unwrap_or_default();
        let processes = later.iter().map(|run| run.processes).max().unwrap_or_default();
        println!(
            "  {:12} first run {:6.2} s, {:6.1} MiB received",
            self.name,
            first.took.as_secs_f32(),
            mebibytes(first.received)
        );
        println!(
            "  {:12} later run {:6.2} s, {:6.1} MiB received, {processes} process(es) of pulumi: {}",
            "",
            took.as_secs_f32(),
            mebibytes(received),
            later.last().map_or("", |run| &run.dependencies)
        );
        println!("  {:12} by hand   {:6.2} s, ratio {:4.2}", "", bare.as_secs_f32(), took.as_secs_f32() / bare.as_secs_f32());
        Ok(())
    }
}

/// Starts another run of the Stack, and waits until its Update is complete.
async fn run(team: &Namespace<'_>, url: &str, number: usize) -> Result<Run> {
    let wrapper = Wrapper::new(team.world)?;
    let log = Path::new(team.world.get("WORLD_LOGS")?).join(CALLS_LOG);
    let (calls, received) = (fs::metadata(log)?.len(), received()?);
    let source = Source::Git { url, reference: "branch: main", dir: "", auth: "" };
    let more = format!(
        "    PATH: {{ type: Literal, literal: {{ value: '{}' }} }}\n  updateTemplate: {{ spec: {{ message: 'run {number}' }} }}\n",
        wrapper.path
    );
    team.apply_stack("app", source, &more).await?;
    let limit = if number == 1 { FIRST_RUN } else { RUN };
    let update = ready::until("the run", limit, async || {
        let updates = team.updates("app").await?;
        let update = updates.into_iter().nth(number - 1).filter(Update::is_complete).context("the Update is not complete")?;
        let status = update.status.clone().unwrap_or_default();
        ensure!(
            status.conditions.iter().any(|condition| condition.type_ == "Failed" && condition.status == "False"),
            "{status:#?}"
        );
        Ok(update)
    })
    .await?;
    let ours = update.status.as_ref().and_then(|status| status.driftless.clone()).with_context(|| update.name_any())?;
    let task = ours.task.context("a task")?;
    let id = task.rsplit('/').next().unwrap_or_default();
    let is_runners = |call: &Value| {
        let is_task = call["caller"].as_str().is_some_and(|caller| caller.contains("TaskRole") && caller.ends_with(id));
        is_task && call["service"] == "s3"
    };
    let calls = team.world.journal(CALLS_LOG, calls, is_runners)?;
    let at = |call: Option<&Value>| -> Result<Timestamp> {
        Ok(call.and_then(|call| call["at"].as_str()).context("no call")?.parse()?)
    };
    let took = at(calls.last())?.duration_since(at(calls.first())?).try_into()?;
    let dependencies = ours.dependencies.unwrap_or_default();
    Ok(Run { took, received: self::received()?.saturating_sub(received), processes: wrapper.calls()?, dependencies })
}

/// The median of `pulumi up` in a folder after an installation and a first `up`.
async fn by_hand(handle: &Handle, folder: &Path) -> Result<Duration> {
    let state = tempfile::tempdir()?;
    let backend = format!("file://{}", state.path().display());
    let up = &["up", "--yes", "--skip-preview"];
    for arguments in [&["install"][..], &["stack", "select", "--create", "dev"], up] {
        handle.pulumi(folder, &backend, arguments).await?;
    }
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        handle.pulumi(folder, &backend, up).await?;
        times.push(started.elapsed());
    }
    Ok(median(times))
}

/// What this machine has received from others, in bytes.
fn received() -> Result<u64> {
    let mut bytes = 0;
    for interface in fs::read_dir("/sys/class/net")? {
        let interface = interface?;
        if interface.file_name() != "lo" {
            bytes += fs::read_to_string(interface.path().join("statistics/rx_bytes"))?.trim().parse::<u64>()?;
        }
    }
    Ok(bytes)
}

/// A `pulumi` that counts how often it is started.
struct Wrapper {
    _folder: tempfile::TempDir,
    log: PathBuf,
    path: String,
}

impl Wrapper {
    fn new(handle: &Handle) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir()?;
        let tools = handle.get("WORLD_TOOLS")?;
        let (log, program) = (folder.path().join("calls"), folder.path().join("pulumi"));
        fs::write(&log, "")?;
        fs::write(&program, format!("#!/bin/sh\necho \"$*\" >> {}\nexec {tools}/pulumi \"$@\"\n", log.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let path = format!("{}:{tools}:/usr/local/bin:/usr/bin:/bin", folder.path().display());
        Ok(Self { _folder: folder, log, path })
    }

    fn calls(&self) -> Result<usize> {
        Ok(fs::read_to_string(&self.log)?.lines().count())
    }
}
