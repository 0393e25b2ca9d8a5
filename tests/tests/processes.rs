//! The world's guarantees about its processes, and tasks at Fargate's own addresses, which most
//! worlds do not use.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use driftless_contract::EXIT_REFUSED;
use driftless_tests::{
    aws::CALLS_LOG,
    world::{
        dirs::Dirs,
        process::{Process, Supervisor, command, output},
        ready,
        tls::Certificates,
    },
};
use rustix::process::Pid;

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn process_that_ends_by_itself_is_named_with_its_last_output() -> Result<()> {
    let dirs = fresh("ends")?;
    let supervisor = Supervisor::default();
    let mut part = command(&dirs, "sh");
    part.args(["-c", "echo no licence >&2; exit 3"]);
    supervisor.start(&dirs, "part", part)?;
    let failure = supervisor.guard(std::future::pending::<Result<()>>()).await.unwrap_err().to_string();
    assert!(failure.starts_with("part ended unexpectedly: exit status: 3"), "{failure}");
    assert!(failure.ends_with("\n  no licence"), "{failure}");
    Ok(())
}

#[tokio::test]
async fn stopping_asks_first_and_leaves_no_descendant_in_whatever_group() -> Result<()> {
    let dirs = fresh("stops")?;
    let supervisor = Supervisor::default();
    let descendant = start_with_descendant(&dirs, |part| supervisor.start(&dirs, "part", part)).await?;
    supervisor.stop().await;
    assert!(fs::read_to_string(dirs.logs().join("part.log"))?.contains("asked to end"));
    assert_eq!(fs::read_dir(dirs.pids())?.count(), 0);
    is_gone(descendant).await
}

#[tokio::test]
async fn next_world_ends_the_processes_of_a_killed_one() -> Result<()> {
    let dirs = fresh("leftovers")?;
    let mut process = None;
    let descendant = start_with_descendant(&dirs, |part| {
        process = Some(Process::start(&dirs, "part", part)?);
        Ok(())
    })
    .await?;
    // As after a kill -9: there is no clean-up, and the lock is free.
    std::mem::forget(process);
    drop(dirs);
    fresh("leftovers")?;
    is_gone(descendant).await
}

#[tokio::test]
async fn foreign_process_with_a_recorded_id_is_spared() -> Result<()> {
    let dirs = fresh("stranger")?;
    let mut stranger = command(&dirs, "sleep").arg("60").current_dir("/").kill_on_drop(true).spawn()?;
    let pid = stranger.id().context("it runs")?;
    fs::write(dirs.pids().join("part"), pid.to_string())?;
    drop(dirs);
    fresh("stranger")?;
    ensure!(stranger.try_wait()?.is_none(), "it was ended");
    Ok(())
}

#[tokio::test]
async fn one_folder_has_one_world() -> Result<()> {
    let _dirs = fresh("lock")?;
    let refused = fresh("lock").err().context("a second world was let in")?.to_string();
    assert!(refused.starts_with("another world is running in "), "{refused}");
    Ok(())
}

#[tokio::test]
async fn task_uses_ecs_credentials_and_the_s3_of_its_region() -> Result<()> {
    let dirs = fresh("fargate")?;
    let tls = Certificates::create(&dirs, &dirs.create("tls")?).await?;
    let [authority, hosts] = ["authority.pem", "hosts"].map(|name| dirs.root().join(name));
    fs::write(&authority, &tls.authority)?;
    fs::write(&hosts, "127.0.0.1 s3.eu-central-2.amazonaws.com\n")?;
    let project = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let runner = project.join("target/lambda/runner/bootstrap");
    let runner = runner.canonicalize().with_context(|| format!("there is no {}: run `make build`", runner.display()))?;
    let mut fargate = command(&dirs, "unshare");
    fargate.args(["--net", "--mount", "python3", "-c", include_str!("fargate.py")]).env("SSL_CERT_FILE", &authority);
    fargate.args([&tls.certificate, &tls.key, &hosts, &runner]);
    let printed = output(fargate).await?;
    let seen: serde_json::Value = serde_json::from_str(&printed)?;
    let asked: Vec<_> = seen["asked"].as_array().into_iter().flatten().filter_map(|asked| asked.as_str()).collect();
    ensure!(asked.contains(&"169.254.170.2 /v2/credentials/x "), "{printed}");
    let spec = "s3.eu-central-2.amazonaws.com /bucket/tasks/AROAROLE%3Aa/in/spec AWS4-HMAC-SHA256 Credential=ASIAKEY/";
    let read = asked.iter().find(|asked| asked.starts_with(spec)).with_context(|| printed.clone())?;
    ensure!(read.contains("/eu-central-2/s3/aws4_request"), "{printed}");
    ensure!(seen["code"] == EXIT_REFUSED && printed.contains("RequestTimeTooSkewed"), "{printed}");
    Ok(())
}

#[tokio::test]
async fn whole_runs_work_at_fargates_own_addresses() -> Result<()> {
    const WORLD: &str = "world-fargate";
    // A network of its own: with ECS's address, and one for the API server's service proxy.
    const NETWORK: &str = "ip link set lo up && ip address add 169.254.170.2/32 dev lo &&
        ip address add 198.18.0.1/32 dev lo && exec \"$@\"";
    let dirs = fresh("whole-runs")?;
    let mut demo = command(&dirs, "unshare");
    demo.args(["--net", "sh", "-c", NETWORK, "sh", env!("CARGO_BIN_EXE_demo"), WORLD]);
    let printed = output(demo).await?;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target").join(WORLD);
    let env = fs::read_to_string(root.join("env"))?;
    ensure!(env.contains("WORLD_TASK_ENDPOINT='http://169.254.170.2'\n"), "{env}");
    let calls = fs::read_to_string(root.join("logs").join(CALLS_LOG))?;
    let calls = calls.lines().map(serde_json::from_str).collect::<Result<Vec<serde_json::Value>, _>>()?;
    let of_tasks = calls.iter().filter(|call| call["caller"].as_str().is_some_and(|caller| caller.contains("TaskRole/")));
    let hosts: BTreeSet<_> = of_tasks.map(|call| call["host"].as_str().unwrap_or_default()).collect();
    ensure!(hosts == BTreeSet::from(["s3.us-east-1.amazonaws.com"]), "{hosts:?}\n{printed}");
    Ok(())
}

fn fresh(name: &str) -> Result<Dirs> {
    let project = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("processes").join(name);
    fs::create_dir_all(&project)?;
    Dirs::fresh(&project)
}

/// Starts a part that leaves a `sleep` in its own process group, and handles SIGTERM. Returns the
/// id of the `sleep`.
async fn start_with_descendant(dirs: &Dirs, start: impl FnOnce(tokio::process::Command) -> Result<()>) -> Result<Pid> {
    let mut part = command(dirs, "bash");
    part.args(["-c", "trap 'echo asked to end; exit' TERM; set -m; sleep 600 & echo $! >descendant; wait"]);
    start(part)?;
    let file = dirs.root().join("descendant");
    ready::until("the descendant", LIMIT, async || {
        let pid = fs::read_to_string(&file)?.trim().parse()?;
        Pid::from_raw(pid).context("a process id")
    })
    .await
}

async fn is_gone(pid: Pid) -> Result<()> {
    ready::until("the descendant's end", LIMIT, async || {
        let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        ensure!(status.is_empty() || status.contains(") Z "), "it lives: {status}");
        Ok(())
    })
    .await
}
