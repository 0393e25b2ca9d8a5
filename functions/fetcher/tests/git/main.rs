//! Git sources, from the Stack's spec to the stored tree, with real git.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod content;
mod servers;
mod ssh;
mod web;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use driftless_contract::{FetchOutcome, FetchRequest, ObjectKey, keys};
use driftless_core::{Retention, WatchNamespaces};
use driftless_source::{Limits, Manifest};
use driftless_testkit::{CLUSTER, Faults, World};
use fetcher::{Artifacts, Download, Fetcher, Place, Refusal, Settings, git};
use russh::keys::{HashAlg, PublicKey};
use serde_json::{Value, json};
use tempfile::TempDir;

use servers::{GitHub, Web, ssh_keygen};

struct NoArtifacts;

impl Artifacts for NoArtifacts {
    async fn get(&self, _: &Place, _: &mut Download) -> Result<(), Refusal> {
        Err(Refusal::Gone)
    }
}

/// A world with one Stack, and a folder with the repository `shop.git`.
struct Site {
    world: World,
    settings: Settings,
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), &["init", "--quiet", "--bare", "--initial-branch", "main", "shop.git"]);
        run(folder.path(), &["init", "--quiet", "--initial-branch", "main", "work"]);
        let settings = Settings {
            bucket: "bucket".into(),
            system_namespace: "driftless".into(),
            namespaces: WatchNamespaces::All,
            retention: Retention::days(7),
            services: Vec::new(),
            source_kinds: Vec::new(),
            max_archive_bytes: 1 << 20,
            max_tree_bytes: 1 << 30,
            limits: Limits::default(),
            git: git::Settings {
                allow_local: true,
                private_hosts: fetcher::PrivateHosts::default(),
                github_api_url: "https://api.github.com".into(),
                known_hosts: String::new(),
                ca_certificates: String::new(),
                max_pack_bytes: 1 << 20,
                servers: git::Servers::default(),
            },
        };
        let site = Self { world: World::new(0, Faults::NONE), settings, folder };
        site.write("Pulumi.yaml", "name: shop\nruntime: yaml\n");
        site.commit("first");
        site
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn work(&self) -> PathBuf {
        self.root().join("work")
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.work().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Commits and pushes all changes. Returns the commit's id.
    fn commit(&self, message: &str) -> String {
        let work = self.work();
        run(&work, &["add", "--all"]);
        run(&work, &["commit", "--quiet", "--allow-empty", "--message", message]);
        self.push();
        run(&work, &["rev-parse", "HEAD"])
    }

    fn push(&self) {
        run(&self.work(), &["push", "--quiet", "--mirror", "../shop.git"]);
    }

    fn key() -> ObjectKey {
        ObjectKey {
            cluster: CLUSTER.into(),
            api_version: "pulumi.com/v1".into(),
            kind: "Stack".into(),
            namespace: "team".into(),
            name: "shop".into(),
        }
    }

    fn secret(&self, name: &str, data: &[(&str, &str)]) {
        let data: serde_json::Map<String, Value> =
            data.iter().map(|(key, value)| ((*key).to_owned(), json!(STANDARD.encode(value)))).collect();
        let metadata = json!({ "namespace": "team", "name": name });
        self.world.insert(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data }));
    }

    /// The result of a fetch for a Stack with this spec.
    async fn poll(&self, spec: Value) -> FetchOutcome {
        let key = Self::key();
        let mut spec = spec;
        spec["stack"] = json!("dev");
        let metadata = json!({ "namespace": "team", "name": "shop" });
        let stack = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec });
        self.world.insert(stack);
        Box::pin(self.answer(&key)).await
    }

    /// The same for a Workspace with this `spec.git`: the commit, or the error.
    async fn poll_of_workspace(&self, git: Value) -> Result<String, String> {
        let (api_version, kind) = ("auto.pulumi.com/v1alpha1", "Workspace");
        let metadata = json!({ "namespace": "team", "name": "shop" });
        let spec = json!({ "git": git });
        self.world.insert(json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec }));
        let key = Self::key().sibling(api_version, kind, "shop");
        let outcome = Box::pin(self.answer(&key)).await;
        if let Some(failure) = outcome.failure {
            assert!(!failure.message.contains("canary"), "{}", failure.message);
            return Err(failure.message);
        }
        let artifact = outcome.artifact.unwrap();
        assert!(self.world.objects().contains_key(&format!("{}manifest", keys::tree(&key, &artifact.digest))));
        Ok(artifact.revision.to_string())
    }

    async fn answer(&self, key: &ObjectKey) -> FetchOutcome {
        let (world, settings, artifacts) = (&self.world, &self.settings, &NoArtifacts);
        let request = FetchRequest::fetch(key.clone(), 0);
        let fetcher = Fetcher { cluster: world, objects: world, queues: world, artifacts, settings, now: world.now() };
        Box::pin(fetcher.handle(&request, world.now(), || world.now())).await.unwrap();
        self.world.document(&keys::fetch(key)).unwrap()
    }

    /// The commit of a successful fetch, and its files.
    async fn fetched(&self, spec: Value) -> (String, Manifest) {
        let outcome = self.poll(spec).await;
        let artifact = outcome.artifact.unwrap_or_else(|| panic!("{:?}", outcome.failure));
        let folder = keys::tree(&Self::key(), &artifact.digest);
        let manifest = Manifest::parse(&self.world.objects()[&format!("{folder}manifest")]).unwrap();
        (artifact.revision.to_string(), manifest)
    }

    /// The message of a failed fetch, and whether it is permanent.
    async fn refused(&self, spec: Value) -> (String, bool) {
        let outcome = self.poll(spec).await;
        let failure = outcome.failure.unwrap_or_else(|| panic!("{:?}", outcome.artifact));
        assert!(!failure.message.contains("canary"), "{}", failure.message);
        (failure.message, failure.terminal)
    }

    /// A web server for the folder.
    async fn web(&self, accepts: &[&str]) -> (Arc<Web>, String) {
        let accepts = accepts.iter().map(|pair| (*pair).to_owned()).collect();
        let (web, address) = Web { root: self.root().into(), accepts, ..Web::default() }.serve().await;
        (web, format!("http://{address}/shop.git"))
    }
}

/// Runs git and returns its output.
fn run(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(directory)
        .args(arguments)
        .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example.com")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@example.com"), ("GIT_ALLOW_PROTOCOL", "file")])
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn secret(name: &str, key: &str) -> Value {
    json!({ "type": "Secret", "secret": { "name": name, "key": key } })
}
