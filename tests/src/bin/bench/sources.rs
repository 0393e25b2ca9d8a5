//! From an archive to a tree in the bucket, and from there to a directory: the deployed binaries
//! beside `tar` and beside a Go consumer of Flux.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use driftless_contract::{Document as _, FetchOutcome, FetchRequest, ObjectKey, VERSION, keys, to_json};
use driftless_source::Digest;
use driftless_testkit::hostile;
use driftless_tests::function::Function;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    endpoints::{Archive, BUCKET, Endpoints},
    mebibytes, median,
};

/// Runs of each kind; the median is shown.
const RUNS: usize = 7;

/// The files of the measured tree, and the bytes of each.
const FILES: usize = 2000;
const FILE_BYTES: usize = 10_000;

/// Prints the figures.
pub async fn measure(project: &Path) -> Result<()> {
    // In memory if possible: the disk would slow down `tar` and Go, which write every file.
    let memory = Path::new("/dev/shm");
    let scratch = if memory.is_dir() { TempDir::new_in(memory)? } else { TempDir::new()? };
    let bench = Bench { project, scratch: scratch.path() };
    let first = bench.archive("first", text)?;
    let second = bench.archive("second", |file| text(if file == FILES / 2 { FILES } else { file }))?;
    println!(
        "\nSources, release build: {FILES} files, {:.1} MB, as an archive {:.1} MB; median of {RUNS}:",
        megabytes(FILES * FILE_BYTES),
        megabytes(first.bytes.len())
    );
    bench.unpack(&first).await?;
    let (manifest, pack) = bench.revisions(first.clone(), second).await?;
    bench.hydrate(&first, manifest, pack).await?;
    bench.large("large", 100, 1_000_000).await?;
    bench.large("many", 90_000, 100).await?;
    bench.hostile().await
}

struct Bench<'a> {
    project: &'a Path,
    scratch: &'a Path,
}

impl Bench<'_> {
    /// The fetcher's whole work beside `tar`, which starts with a local file, and Go.
    async fn unpack(&self, archive: &Archive) -> Result<()> {
        let endpoints = Endpoints::start(None).await?;
        let url = endpoints.offer("repository", archive.clone());
        let mut fetcher = self.fetcher(&endpoints).await?;
        let file = self.scratch.join("local.tar.gz").display().to_string();
        fs::write(&file, &archive.bytes)?;
        let mut times: [Vec<Duration>; 4] = Default::default();
        // The first run of each warms caches and connections.
        for run in 0..=RUNS {
            endpoints.puts();
            let begin = Instant::now();
            let stored = fetch(&mut fetcher, &endpoints, "repository").await?;
            // The first byte of the pack is sent after everything is unpacked and hashed.
            let pack = endpoints.puts().into_iter().find(|put| put.key.ends_with("/pack")).context("no pack was written")?;
            let tar = self.timed("tar", &["xzf", &file, "-C"]).await?;
            let go = self.timed(self.project.join("target/tools/untar"), &[&url, archive.digest.hex()]).await?;
            if run > 0 {
                for (all, time) in times.iter_mut().zip([pack.at.duration_since(begin), stored, tar, go]) {
                    all.push(time);
                }
            }
        }
        let [ours, stored, tar, go] = times.map(median);
        println!("  fetcher: fetch, verify, unpack, hash            {}", milliseconds(ours));
        println!(
            "  tar xzf, from a local file, to a directory      {}   ratio {:.2} (goal 1.0)",
            milliseconds(tar),
            ratio(ours, tar)
        );
        println!(
            "  Go: fetch, verify, unpack to a directory, hash  {}   ratio {:.2} (goal 0.7)",
            milliseconds(go),
            ratio(ours, go)
        );
        println!("  fetcher: the same and store, the whole call     {}", milliseconds(stored));
        Ok(())
    }

    /// Two revisions through moto. Returns the manifest and the pack of the first.
    async fn revisions(&self, first: Archive, second: Archive) -> Result<(Vec<u8>, Vec<u8>)> {
        let (moto, address) = self.moto().await?;
        let endpoints = Endpoints::start(Some(address)).await?;
        let key = source("repository");
        let folder = keys::tree(&key, &first.digest.as_str().into());
        let mut fetcher = self.fetcher(&endpoints).await?;
        endpoints.offer("repository", first);
        fetch(&mut fetcher, &endpoints, "repository").await?;
        let manifest = endpoints.get(&format!("{folder}manifest")).await?.to_vec();
        let pack = endpoints.get(&format!("{folder}pack")).await?.to_vec();
        endpoints.puts();
        endpoints.offer("repository", second);
        let took = fetch(&mut fetcher, &endpoints, "repository").await?;
        let puts = endpoints.puts();
        let bytes: u64 = puts.iter().map(|put| put.size).sum();
        println!(
            "  a second revision, one file changed, to moto    {}   {} PUTs (goal 3), {:.1} MB",
            milliseconds(took),
            puts.len(),
            megabytes(usize::try_from(bytes)?)
        );
        let again = fetch(&mut fetcher, &endpoints, "repository").await?;
        println!("  the same revision once more                     {}   {} PUT", milliseconds(again), endpoints.puts().len());
        drop(moto);
        Ok((manifest, pack))
    }

    /// The runner, from its start until it starts Pulumi, beside one GET of the archive and `tar`.
    async fn hydrate(&self, archive: &Archive, manifest: Vec<u8>, pack: Vec<u8>) -> Result<()> {
        let endpoints = Endpoints::start(None).await?;
        let url = endpoints.offer("repository", archive.clone());
        let folder = keys::task("AROA", "task");
        let spec = json!({
            "version": VERSION,
            "run": { "update": source("u"), "uid": "u", "claim": "c" },
            "operation": "up",
            "stack": "dev",
            "create": false,
            "source": { "tree": { "manifestSha256": Digest::sha256(&manifest).hex() } },
        });
        endpoints.put(&format!("{folder}in/spec"), spec.to_string().into());
        endpoints.put(&format!("{folder}in/manifest"), manifest.into());
        endpoints.put(&format!("{folder}in/pack"), pack.into());
        let bin = self.scratch.join("bin");
        fs::create_dir(&bin)?;
        let started = self.scratch.join("started");
        let pulumi = bin.join("pulumi");
        fs::write(&pulumi, format!("#!/bin/sh\n: >{}\nexec sleep 60\n", started.display()))?;
        fs::set_permissions(&pulumi, fs::Permissions::from_mode(0o755))?;
        let get = format!("curl --silent --fail --noproxy '*' {url} | tar xz -C $0");
        let (mut ours, mut tar) = (Vec::new(), Vec::new());
        for run in 0..=RUNS {
            let dir = TempDir::new_in(self.scratch)?;
            let begin = Instant::now();
            let mut runner = self.runner(&endpoints, &bin, dir.path())?;
            while !started.exists() {
                if let Some(status) = runner.try_wait()? {
                    let said = runner.wait_with_output().await?;
                    bail!("the runner ended, {status}: {}", String::from_utf8_lossy(&said.stdout));
                }
                ensure!(begin.elapsed() < Duration::from_mins(1), "the runner does not start pulumi");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let took = begin.elapsed();
            runner.kill().await?;
            fs::remove_file(&started)?;
            let by_tar = self.timed("sh", &["-c", &get]).await?;
            if run > 0 {
                ours.push(took);
                tar.push(by_tar);
            }
        }
        let (ours, tar) = (median(ours), median(tar));
        println!("  runner: start, get the tree, verify, write      {}", milliseconds(ours));
        println!("  curl of the archive | tar xz                    {}   ratio {:.2}", milliseconds(tar), ratio(ours, tar));
        Ok(())
    }

    /// The memory for a large archive, and for one of many files.
    async fn large(&self, name: &str, files: usize, file_bytes: usize) -> Result<()> {
        let endpoints = Endpoints::start(None).await?;
        let mut fetcher = self.fetcher(&endpoints).await?;
        let (mut tar, mut noise) = (hostile::Tar::default(), Noise(1));
        for file in 0..files {
            let content: Vec<u8> = (0..file_bytes).map(|_| noise.next(256).to_le_bytes()[0]).collect();
            tar = tar.file(&format!("services/service{:03}/source{file:05}.ts", file / 100), &content);
        }
        let path = self.scratch.join(format!("{name}.tar"));
        fs::write(&path, tar.end().bytes())?;
        run(Command::new("gzip").arg("-1").arg(&path)).await?;
        let bytes = fs::read(path.with_extension("tar.gz"))?;
        let size = bytes.len();
        endpoints.offer(name, Archive { digest: Digest::sha256(&bytes), bytes: bytes.into() });
        let took = fetch(&mut fetcher, &endpoints, name).await?;
        println!(
            "  {:<48}{}   peak memory {:.0} MiB{}",
            format!("an archive of {:.0} MB with {files} files", megabytes(size)),
            milliseconds(took),
            mebibytes(fetcher.peak()?),
            if size > 100_000_000 { " (goal 64)" } else { "" }
        );
        Ok(())
    }

    /// Each hostile archive as the archive of a source.
    async fn hostile(&self) -> Result<()> {
        let endpoints = Endpoints::start(None).await?;
        let mut fetcher = self.fetcher(&endpoints).await?;
        let archives = hostile::archives();
        let mut longest = Duration::ZERO;
        for hostile in &archives {
            let archive = Archive { digest: Digest::sha256(&hostile.bytes), bytes: hostile.bytes.clone().into() };
            endpoints.offer(hostile.name, archive);
            let (took, outcome) = fetched(&mut fetcher, &endpoints, hostile.name).await?;
            let failure = outcome.failure.with_context(|| format!("{} was not refused", hostile.name))?;
            ensure!(failure.terminal && failure.message.contains(hostile.refusal), "{}: {}", hostile.name, failure.message);
            longest = longest.max(took);
        }
        let trees = endpoints.puts().into_iter().filter(|put| put.key.starts_with("trees/")).count();
        ensure!(trees == 0, "something of a hostile archive was stored");
        println!(
            "  {} hostile archives, each refused in its words  {}   the longest; peak memory {:.0} MiB (goal 64)",
            archives.len(),
            milliseconds(longest),
            mebibytes(fetcher.peak()?)
        );
        Ok(())
    }

    async fn fetcher(&self, endpoints: &Endpoints) -> Result<Function> {
        let environment = [
            ("ARTIFACT_SERVICES", endpoints.address.clone()),
            ("AWS_ENDPOINT_URL", format!("http://{}", endpoints.address)),
            ("BUCKET", BUCKET.into()),
            ("TMPDIR", self.scratch.display().to_string()),
        ];
        Function::start(Command::new(self.project.join("target/lambda/fetcher/bootstrap")), &environment).await
    }

    fn runner(&self, endpoints: &Endpoints, bin: &Path, dir: &Path) -> Result<Child> {
        let address = format!("http://{}", endpoints.address);
        let runner = Command::new(self.project.join("target/lambda/runner/bootstrap"))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("TMPDIR", dir)
            .env("HOME", dir)
            .env("DRIFTLESS_BUCKET", BUCKET)
            .env("DRIFTLESS_ROLE_ID", "AROA")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL_S3", &address)
            .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{address}/credentials"))
            .env("ECS_CONTAINER_METADATA_URI_V4", format!("{address}/metadata"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        runner.context("the runner: run `make bench`")
    }

    /// moto on a free port, with the bucket. Killed when it is dropped.
    async fn moto(&self) -> Result<(Child, String)> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let moto = Command::new(self.project.join("target/tools/moto_server"))
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let address = format!("http://127.0.0.1:{port}");
        let bucket = format!("{address}/{BUCKET}");
        let create =
            async || run(Command::new("curl").args(["--silent", "--fail", "--noproxy", "*", "-X", "PUT", &bucket])).await;
        let begin = Instant::now();
        while let Err(error) = create().await {
            ensure!(begin.elapsed() < Duration::from_mins(1), "moto does not answer: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok((moto, address))
    }

    /// The duration of a command that fills a directory, its last argument.
    async fn timed(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<Duration> {
        let dir = TempDir::new_in(self.scratch)?;
        let begin = Instant::now();
        run(Command::new(program).args(arguments).arg(dir.path())).await?;
        Ok(begin.elapsed())
    }

    /// A tree like that of a repository: directories with directories and files, one of which has a
    /// directory's name and an extension.
    fn archive(&self, name: &str, content: impl Fn(usize) -> String) -> Result<Archive> {
        let tree = self.scratch.join(name);
        fs::create_dir_all(tree.join("services"))?;
        fs::write(tree.join("services.yaml"), "name: services\n")?;
        fs::write(tree.join("Pulumi.yaml"), "name: bench\nruntime: yaml\n")?;
        for file in 0..FILES {
            let dir = tree.join(format!("services/service{:02}/module{}", file / 100, file / 10 % 10));
            fs::create_dir_all(&dir)?;
            fs::write(dir.join(format!("source{file:04}.ts")), content(file))?;
        }
        let file = tree.with_extension("tar.gz");
        let ended = std::process::Command::new("tar")
            .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-C"])
            .arg(&tree)
            .arg("-czf")
            .arg(&file)
            .arg(".")
            .status()?;
        ensure!(ended.success(), "tar: {ended}");
        let bytes = fs::read(file)?;
        Ok(Archive { digest: Digest::sha256(&bytes), bytes: bytes.into() })
    }
}

/// Makes the fetcher fetch a source, which must succeed. Returns the time from the event to the
/// response.
async fn fetch(fetcher: &mut Function, endpoints: &Endpoints, name: &str) -> Result<Duration> {
    let (took, outcome) = fetched(fetcher, endpoints, name).await?;
    let failure = outcome.failure.map(|failure| failure.message);
    ensure!(failure.is_none(), "{name}: {failure:?}");
    Ok(took)
}

async fn fetched(fetcher: &mut Function, endpoints: &Endpoints, name: &str) -> Result<(Duration, FetchOutcome)> {
    let source = source(name);
    let request = FetchRequest::fetch(source.clone(), 0);
    let event = json!({ "Records": [{
        "messageId": "1",
        "receiptHandle": "r",
        "body": to_json(&request),
        "attributes": {},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:1:sources.fifo",
        "awsRegion": "us-east-1",
    }] });
    let begin = Instant::now();
    let (responded, response) = fetcher.invoke(event.to_string()).await?;
    let response: serde_json::Value = serde_json::from_slice(&response)?;
    ensure!(response["batchItemFailures"].as_array().is_none_or(Vec::is_empty), "{name}: {}", fetcher.log());
    let outcome = endpoints.get(&keys::fetch(&source)).await?;
    Ok((responded.duration_since(begin), FetchOutcome::parse(&outcome)?))
}

fn source(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "c".into(),
        api_version: "source.toolkit.fluxcd.io/v1".into(),
        kind: "GitRepository".into(),
        namespace: "bench".into(),
        name: name.into(),
    }
}

async fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Text that gzip shrinks to a third, like source code.
fn text(seed: usize) -> String {
    let mut noise = Noise(seed as u64 + 1);
    let mut text = String::with_capacity(FILE_BYTES + 16);
    while text.len() < FILE_BYTES {
        // Few words are frequent.
        let word = (noise.next(1 << 10) * noise.next(1 << 10)) >> 10;
        let end = [" ", ".", "(", ");\n", " = "][usize::try_from(noise.next(5)).unwrap_or_default()];
        let _infallible = write!(text, "{:x}{end}", word * 0x9e37 % 0xf_ffff);
    }
    text.truncate(FILE_BYTES);
    text
}

/// Pseudorandom numbers that are the same each time.
struct Noise(u64);

impl Noise {
    /// Below `below`.
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:7.1} ms", time.as_secs_f64() * 1e3)
}

fn ratio(ours: Duration, theirs: Duration) -> f64 {
    ours.as_secs_f64() / theirs.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
