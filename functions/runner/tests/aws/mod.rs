//! A task's AWS: a script in place of Pulumi, and one server with a small bucket and the addresses
//! of ECS.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Cursor, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use driftless_contract::{
    Config, ConfigValue, Document, ObjectKey, Operation, Phase, RunId, RunLimits, RunPack, RunResult, RunSource, RunSpec,
    VERSION, Verdict, to_json,
};
use driftless_source::{Digest, Manifest, Tree};
use jiff::Timestamp;
use runner::{BucketEndpoint, CredentialsEndpoint, Error, Settings};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

/// The script records the call, hangs in one if told to, round by round, and else does the little
/// that a run needs of Pulumi.
const PULUMI: &str = r#"#!/bin/sh
call="$1"
case "$1" in stack|config) call="$1 $2" ;; esac
echo "$call" >> "$DIR/calls"
echo "$*" >> "$DIR/arguments"
env > "$DIR/env"
for argument; do case "$argument" in
  --event-log=*) log="${argument#*=}" ;;
  --save-plan=*) cat "$DIR/plan" > "${argument#*=}" ;;
esac; done
[ -z "$log" ] || cat "$DIR/events" > "$log"
[ "$call" != "config set" ] || cat >> "$DIR/input"
[ "$call" != install ] || . "$DIR/installs"
[ "$call" != "$(cat "$DIR/dies")" ] || kill -KILL $$
[ ! -e "$DIR/gone" ] || case "$*" in
  *--create*) rm "$DIR/gone" ;;
  *--stack=*) echo "error: no stack named 'dev' found" >&2; exit 255 ;;
esac
[ ! -e "$DIR/denied" ] || case "$call" in
  install) ;;
  login) echo "error: could not log in: invalid access token" >&2; exit 1 ;;
  *) echo "error: denied" >&2; exit 1 ;;
esac
[ "$call" != "$(cat "$DIR/starves")" ] || { echo "oom_kill 4" > "$DIR/vmstat"; echo "error: the plugin is gone" >&2; exit 255; }
[ ! -e "$DIR/lacks" ] || sh -c kubectl-missing || exit 255
if [ "$call" = "$(cat "$DIR/hang")" ]; then
  trap 'echo "error: interrupted here" >&2; exit 1' INT
  touch "$DIR/hangs"
  while [ -e "$DIR/hang" ]; do echo "$call" >> "$DIR/rounds"; sleep 0.02; done
fi
[ "$call" != up ] || cat "$DIR/says"
[ "$call" != version ] || echo v3.259.0
[ "$call" != preview ] || [ ! -e "$DIR/digest" ] || cat "$DIR/digest"
[ ! -e "$DIR/fails" ] || case "$*" in
  *"$(cat "$DIR/fails")"*) cat "$DIR/says" >&2; exit 255 ;;
esac
[ "$call" != "stack export" ] || cat "$DIR/state"
[ "$call" != "stack output" ] || case "$*" in
  *--show-secrets*) cat "$DIR/outputs" ;;
  *) cat "$DIR/masked" 2> /dev/null || cat "$DIR/outputs" ;;
esac
"#;

pub const TASK: &str = "tasks/AROA1:t1/";

/// The content of an object that can be neither read nor written.
pub const UNAVAILABLE: &[u8] = b"503";

/// The prefix of an object's content that makes the server refuse it with the code that follows.
pub const REFUSED: &[u8] = b"403 ";

/// The time limit of what a test waits for, however busy the machine is.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Default)]
pub struct Served {
    pub objects: BTreeMap<String, Vec<u8>>,
    /// Each answered request with its status: `GET in/spec 404`.
    pub requests: Vec<String>,
}

pub struct Aws {
    pub dir: PathBuf,
    pub served: Arc<Mutex<Served>>,
    settings: Settings,
    pub tell: watch::Sender<bool>,
}

impl Drop for Aws {
    fn drop(&mut self) {
        let _: io::Result<()> = fs::remove_dir_all(&self.dir);
    }
}

impl Aws {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("driftless-run-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).unwrap();
        let script = dir.join("bin/pulumi");
        fs::write(&script, PULUMI).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        for file in ["hang", "dies", "installs", "starves", "events", "says", "state"] {
            fs::write(dir.join(file), "").unwrap();
        }
        fs::write(dir.join("outputs"), r#"{"n":1}"#).unwrap();
        fs::write(dir.join("project"), "name: p\nruntime: nodejs\n").unwrap();
        let served = Arc::<Mutex<Served>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // The runner may have closed the connection.
                let _: io::Result<()> = serve(stream.unwrap(), &serving);
            }
        });
        let variable = |name: &str, value: &str| (name.into(), value.into());
        let settings = Settings {
            bucket: BucketEndpoint { url: url.clone(), region: "eu-west-1".into(), bucket: "bucket".into() },
            role_id: "AROA1".into(),
            credentials: CredentialsEndpoint { url: format!("{url}/credentials"), authorization: None },
            metadata: format!("{url}/metadata"),
            certificates: None,
            environment: vec![
                variable("PATH", &format!("{}:/usr/bin:/bin", dir.join("bin").display())),
                variable("DIR", &dir.display().to_string()),
                variable("HOME", "/tmp"),
                variable("PULUMI_HOME", &dir.join("home").display().to_string()),
            ],
            share: dir.join("share"),
            secrets: dir.join("secrets"),
            vmstat: dir.join("vmstat"),
            runner: env!("CARGO_BIN_EXE_runner").into(),
            now,
        };
        Self { dir, served, settings, tell: watch::Sender::new(false) }
    }

    pub fn put(&self, name: &str, content: Vec<u8>) {
        self.served.lock().unwrap().objects.insert(format!("{TASK}{name}"), content);
    }

    /// Gives the task an `up` of a tree that has only its project.
    pub fn launch(&self, change: impl FnOnce(&mut RunSpec)) {
        let project = fs::read_to_string(self.dir.join("project")).unwrap();
        let (manifest, pack) = stored(&[("Pulumi.yaml", &project)]);
        let manifest = manifest.to_bytes();
        let mut spec = spec(Digest::sha256(&manifest).hex());
        change(&mut spec);
        self.put("in/manifest", manifest);
        self.put("in/pack", pack);
        self.put("in/spec", to_json(&spec).into_bytes());
    }

    /// Gives the task the policy pack `world` of these files.
    pub fn put_policy_pack(&self, files: &[(&str, &str)]) -> RunPack {
        let (manifest, pack) = stored(files);
        let manifest = manifest.to_bytes();
        let manifest_sha256 = Digest::sha256(&manifest).hex().to_owned();
        self.put("in/policies/0/manifest", manifest);
        self.put("in/policies/0/pack", pack);
        RunPack { policy: "prod".into(), name: "rules".into(), dir: "world".into(), manifest_sha256 }
    }

    pub async fn run(&self) -> Result<(), Error> {
        let ended = timeout(2 * PATIENCE, runner::run(&self.settings, self.tell.subscribe())).await;
        ended.unwrap_or_else(|_| panic!("the run does not end: {}", self.state()))
    }

    pub fn document<D: Document>(&self, name: &str) -> Option<D> {
        let content = self.served.lock().unwrap().objects.get(&format!("{TASK}{name}")).cloned();
        content.map(|bytes| D::parse(&bytes).unwrap())
    }

    pub fn result(&self) -> RunResult {
        self.document("out/result").unwrap()
    }

    pub fn failure(&self) -> (Phase, String, String) {
        match self.result().verdict {
            Verdict::Failed { phase, reason, message } => (phase, reason.to_string(), message),
            verdict => panic!("{verdict:?}"),
        }
    }

    /// The lines that the script wrote.
    pub fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.dir.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub fn calls(&self) -> Vec<String> {
        self.lines("calls")
    }

    pub fn rounds(&self) -> usize {
        self.lines("rounds").len()
    }

    /// Everything known about the run, for a failing test.
    fn state(&self) -> String {
        let requests = self.served.lock().unwrap().requests.clone();
        format!(
            "requests {requests:#?}, calls {:?}, rounds {}, told to stop {}",
            self.calls(),
            self.rounds(),
            *self.tell.borrow()
        )
    }

    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "waited for {what}: {}", self.state());
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a request has had this answer this many times.
    pub async fn answered(&self, request: &str, times: usize) {
        let count = |aws: &Self| aws.served.lock().unwrap().requests.iter().filter(|answered| *answered == request).count();
        self.until(&format!("{times} times {request}"), |aws| count(aws) >= times).await;
    }

    /// Makes Pulumi hang in a call, and then stops the task.
    pub async fn stop_in(&self, call: &str) {
        fs::write(self.dir.join("hang"), call).unwrap();
        let stopping = async {
            self.until(&format!("pulumi to hang in {call}"), |aws| aws.dir.join("hangs").exists()).await;
            self.tell.send_replace(true);
        };
        let (ended, ()) = tokio::join!(self.run(), stopping);
        ended.unwrap();
    }
}

#[expect(clippy::disallowed_methods, reason = "requests are signed")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The manifest and the pack of a tree of these files.
pub fn stored(files: &[(&str, &str)]) -> (Manifest, Vec<u8>) {
    let (mut spool, mut pack) = (Cursor::new(Vec::new()), Vec::new());
    let tree = Tree::from_files(files.iter().map(|(path, text)| (*path, text.as_bytes())), &mut spool).unwrap();
    tree.write_pack(&mut spool, &mut pack).unwrap();
    (Manifest::of(&tree), pack)
}

fn spec(manifest_sha256: &str) -> RunSpec {
    let update = ObjectKey {
        cluster: "c".into(),
        api_version: "auto.pulumi.com/v1alpha1".into(),
        kind: "Update".into(),
        namespace: "n".into(),
        name: "u".into(),
    };
    RunSpec {
        version: VERSION,
        run: RunId { update, uid: "uid-1".into(), claim: "claim-1".into() },
        operation: Operation::Up,
        stack: "dev".into(),
        create: true,
        secrets_provider: None,
        source: RunSource::Tree { dir: String::new(), paths: vec![], manifest_sha256: manifest_sha256.into() },
        env: vec![],
        config: vec![Config { key: "k".into(), path: false, value: ConfigValue::String("v".into()), secret: false }],
        environments: vec![],
        identity: false,
        limits: RunLimits::default(),
        message: None,
        parallel: None,
        expect_no_changes: false,
        refresh: false,
        expect_no_refresh_changes: false,
        targets: vec![],
        target_dependents: false,
        replace: vec![],
        continue_on_error: false,
        remove: false,
        run_program: false,
        preview_only: false,
        log_level: None,
        inputs: None,
        stale_lock: None,
        resources: None,
        files: vec![],
        cache: None,
        not_secret: vec![],
        plan: None,
    }
}

/// Answers one request, as ECS or as S3.
fn serve(mut stream: TcpStream, served: &Mutex<Served>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let lines = reader.by_ref().lines().take_while(|line| line.as_ref().map_or(true, |line| !line.is_empty()));
    let lines: Vec<String> = lines.collect::<io::Result<_>>()?;
    let Some((first, headers)) = lines.split_first() else { return Ok(()) };
    let headers: BTreeMap<String, &str> =
        headers.iter().filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value)).collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body)?;
    let (method, path) = first.split_once(' ').unwrap_or_default();
    let path = path.split(' ').next().unwrap_or_default().replace("%3A", ":");
    let key = path.trim_start_matches("/bucket/");
    let Served { objects, requests } = &mut *served.lock().unwrap();
    let (status, answer) = match (method, objects.get(key)) {
        (_, _) if key == "/metadata/task" => (200, br#"{"TaskARN":"arn:aws:ecs:eu-west-1:1:task/c/t1"}"#.to_vec()),
        (_, _) if key == "/metadata" => (200, br#"{"ImageID":"sha256:image"}"#.to_vec()),
        (_, _) if key == "/credentials" => {
            let keys = r#"{"AccessKeyId":"a","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#;
            (200, keys.as_bytes().to_vec())
        }
        (_, Some(content)) if content == UNAVAILABLE => (503, vec![]),
        ("GET", Some(content)) if content.starts_with(REFUSED) => {
            let code = String::from_utf8_lossy(&content[REFUSED.len()..]);
            (403, format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code></Error>").into_bytes())
        }
        // As the policy of the task's role and S3 require.
        ("PUT", _)
            if ["/out/result", "/out/log/", "/out/cache/"].iter().any(|once| key.contains(once))
                && headers.get("if-none-match") != Some(&"*") =>
        {
            (403, vec![])
        }
        ("PUT", Some(_)) if headers.contains_key("if-none-match") => (412, vec![]),
        ("PUT", _) => {
            objects.insert(key.into(), body);
            (200, vec![])
        }
        (_, Some(content)) if key.contains("/in/cache/") => (206, ranged(content, headers["range"]).to_vec()),
        (_, Some(content)) => (200, content.clone()),
        (_, None) => (404, vec![]),
    };
    requests.push(format!("{method} {} {status}", key.trim_start_matches(TASK)));
    let whole = objects.get(key).map_or(0, Vec::len);
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\ncontent-range: bytes 0-0/{whole}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&answer)
}

/// The part of an object that a request asks for.
fn ranged<'a>(content: &'a [u8], range: &str) -> &'a [u8] {
    let (first, last) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).unwrap();
    let last: usize = last.parse().unwrap();
    match first.parse::<usize>() {
        Ok(first) => &content[first.min(content.len())..content.len().min(last + 1)],
        Err(_) => &content[content.len().saturating_sub(last)..],
    }
}
