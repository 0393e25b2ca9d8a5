//! `tests/tools/install` with a server in place of the projects' hosts, and a replacement for `go`.

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use axum::{
    Router,
    body::{Body, Bytes},
    http::{StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use driftless_testkit::hostile::Tar;
use driftless_tests::world::{
    dirs::Dirs,
    network::free_port,
    process::{command, output},
    ready,
};
use futures::{StreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{net::TcpListener, process::Command};

use super::{project, stage};

/// Paths below the mirror, which start with the host.
const CRANE: &str = "/crane.example/v1.2.3/crane.tar.gz";
const HELM: &str = "/helm.example/v1.2.3/helm";
const RELEASED: &str = "#!/bin/sh\necho released\n";
const BUILT: &str = "built\n";
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn published_programs_are_downloaded_once() -> Result<()> {
    let dirs = stage("tools-downloaded")?;
    let tree = Tree::create(&dirs, &pins(&archive()))?;
    let server = Server::start([(CRANE, Answer::Whole(archive())), (HELM, Answer::Whole(RELEASED.into()))]).await?;
    let (code, said) = tree.install(&server.url).await?;
    assert_eq!(code, 0, "{said}");
    for tool in ["crane", "helm"] {
        assert_eq!(output(command(&dirs, tree.tool(tool))).await?, "released\n");
    }
    assert_eq!(tree.cached("go"), [""; 0], "nothing is built");
    for mirror in [&*server.url, "none"] {
        assert_eq!(tree.install(mirror).await?, (0, String::new()));
    }
    assert_eq!(server.asked(), [CRANE, HELM]);
    Ok(())
}

#[tokio::test]
async fn checksum_mismatch_stops_the_installation() -> Result<()> {
    let dirs = stage("tools-mismatch")?;
    let changed = Tar::default().file("pack/crane", b"#!/bin/sh\necho changed\n").gzip();
    let tree = Tree::create(&dirs, &pins(&archive()))?;
    let server = Server::start([(CRANE, Answer::Whole(changed.clone())), (HELM, Answer::Whole(RELEASED.into()))]).await?;
    let (code, said) = tree.install(&server.url).await?;
    assert_eq!(code, 1, "{said}");
    let url = format!("{}{CRANE}", server.url);
    for word in [&*url, &sha256(&changed), &sha256(&archive()), "tests/tools/downloads.txt", "TOOLS_MIRROR=none"] {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!tree.tool("crane").is_symlink(), "{said}");
    assert_eq!([tree.cached("releases"), tree.cached("go")], [[""; 0]; 2], "neither kept nor built");

    let (code, said) = tree.install("none").await?;
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_to_string(tree.tool("crane"))?, BUILT);
    assert_eq!(server.asked(), [CRANE]);
    Ok(())
}

#[tokio::test]
async fn unreachable_host_is_tried_once_and_tools_are_built() -> Result<()> {
    let dirs = stage("tools-unreachable")?;
    let tree = Tree::create(&dirs, &pins(&archive()))?;
    let closed = format!("http://127.0.0.1:{}", free_port(Ipv4Addr::LOCALHOST)?);
    let (code, said) = tree.install(&closed).await?;
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.matches(": downloading ").count(), 1, "{said}");
    assert_eq!(said.matches("; building from source, without trying further downloads\n").count(), 1, "{said}");
    for tool in ["crane", "helm"] {
        assert_eq!(fs::read_to_string(tree.tool(tool))?, BUILT);
    }
    assert_eq!(tree.install(&closed).await?, (0, String::new()), "what is built is not downloaded");
    Ok(())
}

#[tokio::test]
async fn file_that_the_host_lacks_leads_to_one_build() -> Result<()> {
    let dirs = stage("tools-missing")?;
    let tree = Tree::create(&dirs, &pins(&archive()))?;
    let server = Server::start([(HELM, Answer::Whole(RELEASED.into()))]).await?;
    let (code, said) = tree.install(&server.url).await?;
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_to_string(tree.tool("crane"))?, BUILT);
    assert_eq!(fs::read_to_string(tree.tool("helm"))?, RELEASED);
    Ok(())
}

#[tokio::test]
async fn interrupted_download_leaves_nothing_in_the_cache() -> Result<()> {
    let dirs = stage("tools-interrupted")?;
    let tree = Tree::create(&dirs, &pins(&archive()))?;
    let server = Server::start([(CRANE, Answer::Stuck)]).await?;
    let mut script = tree.command(&server.url).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    let partial = async || {
        let cached = tree.cached("releases");
        ensure!(cached.iter().any(|name| name.ends_with(".partial")), "{cached:?}");
        Ok(())
    };
    ready::until("the download", LIMIT, partial).await?;
    let group = script.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it runs")?;
    kill_process_group(group, Signal::TERM)?;
    assert!(!script.wait().await?.success());
    assert_eq!([tree.cached("releases"), tree.cached("go")], [[""; 0]; 2]);

    let server = Server::start([(CRANE, Answer::Cut), (HELM, Answer::Whole(RELEASED.into()))]).await?;
    let (code, said) = tree.install(&server.url).await?;
    assert_eq!(code, 0, "{said}");
    assert!(tree.cached("releases").iter().all(|name| name.starts_with("helm-1.2.3-")), "{said}");
    assert_eq!(fs::read_to_string(tree.tool("crane"))?, BUILT);
    assert_eq!(fs::read_to_string(tree.tool("helm"))?, RELEASED);
    Ok(())
}

#[test]
fn pinned_downloads_have_the_versions_that_are_built() -> Result<()> {
    let tools = project()?.join("tests/tools");
    let [script, pins] = ["install", "downloads.txt"].map(|name| fs::read_to_string(tools.join(name)));
    let (script, pins) = (script?, pins?);
    let mut platforms = BTreeMap::<_, Vec<_>>::new();
    for row in pins.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let columns: Vec<_> = row.split(' ').collect();
        let [tool, version, platform, checksum, url, ..] = columns[..] else { panic!("{row}: too few columns") };
        assert!(checksum.len() == 64 && checksum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{row}");
        assert!(url.starts_with("https://") && url.contains(version), "{row}");
        let built = if let Some(name) = tool.strip_prefix("cargo-") {
            script.contains(&format!("cargo_tool {name} {version};"))
        } else {
            let (_, call) = script.split_once(&format!("version_of {tool} ")).context("the script has the tool")?;
            let (module, _) = call.split_once(')').context("a call")?;
            let required = fs::read_to_string(tools.join(tool).join("go.mod"))?;
            required.lines().any(|line| line.trim_end_matches(" // indirect").ends_with(&format!("{module} v{version}")))
        };
        assert!(built, "{row}: another version would be built");
        platforms.entry(tool).or_default().push(platform);
    }
    assert!(platforms.len() >= 6, "{platforms:?}");
    for (tool, mut platforms) in platforms {
        platforms.sort_unstable();
        let half = platforms.len() / 2;
        let expected = [vec!["Linux-aarch64"; half], vec!["Linux-x86_64"; half]].concat();
        assert_eq!(platforms, expected, "{tool}");
    }
    Ok(())
}

/// The script, with the test's pins, in a writable folder.
struct Tree<'a> {
    dirs: &'a Dirs,
    root: PathBuf,
}

impl<'a> Tree<'a> {
    fn create(dirs: &'a Dirs, pins: &str) -> Result<Self> {
        let root = dirs.create("tree")?;
        let tools = root.join("tests/tools");
        for (tool, module) in [("registry", "github.com/google/go-containerregistry"), ("helm", "helm.sh/helm/v4")] {
            fs::create_dir_all(tools.join(tool))?;
            fs::write(tools.join(tool).join("go.mod"), format!("require {module} v1.2.3\n"))?;
        }
        fs::write(tools.join("downloads.txt"), pins)?;
        fs::copy(project()?.join("tests/tools/install"), tools.join("install"))?;
        fs::create_dir(root.join("bin"))?;
        let go = "for word; do case $word in */) out=$word ;; esac; done\necho built >\"$out${word##*/}\"\n";
        // Whatever helm the machine has, this one is too old.
        for (name, script) in [("go", go), ("helm", "echo v1.2.2")] {
            let path = root.join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}"))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { dirs, root })
    }

    fn command(&self, mirror: &str) -> Command {
        let mut command = command(self.dirs, self.root.join("tests/tools/install"));
        command
            .args(["registry", "helm"])
            .env("PATH", format!("{}:/usr/bin:/bin", self.root.join("bin").display()))
            .env("XDG_CACHE_HOME", self.root.join("cache"))
            .env("TOOLS_MIRROR", mirror);
        command
    }

    /// Installs crane, then helm. Returns the exit status, and the output.
    async fn install(&self, mirror: &str) -> Result<(i32, String)> {
        let ended = self.command(mirror).kill_on_drop(true).output().await?;
        Ok((ended.status.code().context("it was killed")?, String::from_utf8(ended.stderr)?))
    }

    fn tool(&self, name: &str) -> PathBuf {
        self.root.join("target/tools").join(name)
    }

    /// The names of the cached files of a kind, without logs and locks.
    fn cached(&self, kind: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("cache/driftless").join(kind)).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn pins(archive: &[u8]) -> String {
    let row = |tool: &str, content: &[u8], url: &str, member: &str| {
        format!("{tool} 1.2.3 Linux-{} {} https:/{url}{member}\n", std::env::consts::ARCH, sha256(content))
    };
    row("registry", archive, CRANE, " pack/crane") + &row("helm", RELEASED.as_bytes(), HELM, "")
}

fn archive() -> Vec<u8> {
    Tar::default().file("pack/LICENSE", b"").file("pack/crane", RELEASED.as_bytes()).gzip()
}

fn sha256(content: &[u8]) -> String {
    base16ct::lower::encode_string(digest(&SHA256, content).as_ref())
}

#[derive(Clone)]
enum Answer {
    Whole(Vec<u8>),
    /// The connection breaks in the middle.
    Cut,
    /// The beginning, and then silence.
    Stuck,
}

struct Server {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start<const N: usize>(answers: [(&'static str, Answer); N]) -> Result<Self> {
        let (answers, asked) = (BTreeMap::from(answers), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&asked);
        let answer = async move |uri: Uri| -> Response {
            log.lock().unwrap_or_else(PoisonError::into_inner).push(uri.path().to_owned());
            let begin = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"half"))]);
            match answers.get(uri.path()) {
                None => StatusCode::NOT_FOUND.into_response(),
                Some(Answer::Whole(content)) => content.clone().into_response(),
                Some(Answer::Cut) => {
                    let broken = stream::once(async {
                        // Lets the server send its data while it waits for more.
                        tokio::task::yield_now().await;
                        Err(std::io::ErrorKind::ConnectionReset.into())
                    });
                    Body::from_stream(begin.chain(broken)).into_response()
                }
                Some(Answer::Stuck) => Body::from_stream(begin.chain(stream::pending())).into_response(),
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async { axum::serve(listener, Router::new().fallback(answer)).await });
        Ok(Self { url, asked })
    }

    /// The requested paths.
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
