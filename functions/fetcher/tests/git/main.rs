//! Git sources, from the Stack's spec to the stored tree, against real git.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod servers;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use driftless_contract::{FetchOutcome, FetchRequest, ObjectKey, VERSION, from_json, keys};
use driftless_core::Retention;
use driftless_source::{Limits, Manifest};
use driftless_testkit::{CLUSTER, Faults, World};
use fetcher::{Artifacts, Download, Place, Ports, Refusal, Settings, git, handle};
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
            retention: Retention::days(7),
            services: Vec::new(),
            source_kinds: Vec::new(),
            max_archive_bytes: 1 << 20,
            limits: Limits::default(),
            git: git::Settings {
                allow_local: true,
                github_api_url: "https://api.github.com".into(),
                known_hosts: String::new(),
                ca_certificates: String::new(),
                max_pack_bytes: 1 << 20,
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

    /// Commits all that is there, pushes it, and says what its id is.
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

    /// What a look at a Stack with this spec comes to.
    async fn look(&self, spec: Value) -> FetchOutcome {
        let key = Self::key();
        let mut spec = spec;
        spec["stack"] = json!("dev");
        let metadata = json!({ "namespace": "team", "name": "shop" });
        let stack = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec });
        self.world.insert(stack);
        Box::pin(self.answer(&key)).await
    }

    /// The same of a Workspace with this `spec.git`: the commit, or why there is none.
    async fn look_of_workspace(&self, git: Value) -> Result<String, String> {
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
        Ok(artifact.revision)
    }

    async fn answer(&self, key: &ObjectKey) -> FetchOutcome {
        let ports = Ports { cluster: &self.world, objects: &self.world, queues: &self.world, artifacts: &NoArtifacts };
        let request = FetchRequest { version: VERSION, source: key.clone(), hops: 0, collect: false };
        handle(&ports, &self.settings, &request, self.world.now()).await.unwrap();
        from_json("fetch outcome", &self.world.objects()[&keys::fetch(key)]).unwrap()
    }

    /// The commit that a look came to, and its files.
    async fn fetched(&self, spec: Value) -> (String, Manifest) {
        let outcome = self.look(spec).await;
        let artifact = outcome.artifact.unwrap_or_else(|| panic!("{:?}", outcome.failure));
        let folder = keys::tree(&Self::key(), &artifact.digest);
        let manifest = Manifest::parse(&self.world.objects()[&format!("{folder}manifest")]).unwrap();
        (artifact.revision, manifest)
    }

    /// Why a look came to nothing, and whether it is for good.
    async fn refused(&self, spec: Value) -> (String, bool) {
        let outcome = self.look(spec).await;
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

/// Runs git and gives what it says.
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

#[tokio::test]
async fn a_branch_becomes_a_tree_with_modes_and_links() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let site = Site::new();
    site.write("deep/down/file", "content");
    site.write("run.sh", "#!/bin/sh\n");
    std::fs::set_permissions(site.work().join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("deep/down/file", site.work().join("link")).unwrap();
    let commit = site.commit("more");
    let (_, url) = site.web(&[]).await;
    let (revision, manifest) = site.fetched(json!({ "projectRepo": url, "branch": "main" })).await;
    assert_eq!(revision, commit);
    let files: Vec<_> = manifest.files.iter().map(|(path, file)| (path.as_str(), file.size, file.executable)).collect();
    assert_eq!(files, [("Pulumi.yaml", 25, false), ("deep/down/file", 7, false), ("run.sh", 10, true)]);
    assert_eq!(manifest.links["link"], "deep/down/file");
    let digest = site.look(json!({ "projectRepo": url, "branch": "main" })).await.artifact.unwrap().digest;
    assert_eq!(digest, format!("sha1:{}", run(&site.work(), &["rev-parse", "HEAD^{tree}"])));
    let pack = &site.world.objects()[&format!("{}pack", keys::tree(&Site::key(), &digest))];
    assert_eq!(pack, b"name: shop\nruntime: yaml\ncontent#!/bin/sh\n");
}

#[tokio::test]
async fn a_branch_a_tag_a_full_ref_and_a_commit_are_understood() {
    let site = Site::new();
    let work = site.work();
    let first = run(&work, &["rev-parse", "HEAD"]);
    run(&work, &["tag", "light"]);
    run(&work, &["tag", "--annotate", "--message", "x", "annotated"]);
    run(&work, &["branch", "same"]);
    site.write("second", "2");
    let second = site.commit("second");
    run(&work, &["tag", "same"]);
    run(&work, &["branch", "feature/x"]);
    site.push();
    let (_, url) = site.web(&[]).await;
    for (field, value, commit) in [
        ("branch", "main", &second),
        ("branch", "refs/heads/main", &second),
        ("branch", "feature/x", &second),
        ("branch", "light", &first),
        ("branch", "annotated", &first),
        ("branch", "refs/tags/annotated", &first),
        ("branch", "refs/tags/light", &first),
        ("branch", "tags/same", &second),
        ("branch", "HEAD", &second),
        ("commit", "annotated", &first),
        ("commit", "main", &second),
        ("commit", &first, &first),
        // Of a branch and a tag with one name, the branch.
        ("branch", "same", &first),
    ] {
        let (revision, manifest) = site.fetched(json!({ "projectRepo": url, field: value })).await;
        assert_eq!(&revision, commit, "{field} {value}");
        assert_eq!(manifest.files.contains_key("second"), *commit == second, "{field} {value}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_named_and_looked_for_again() {
    let site = Site::new();
    let first = run(&site.work(), &["rev-parse", "HEAD"]);
    run(&site.work(), &["tag", "--annotate", "--message", "x", "annotated"]);
    site.push();
    let tag = run(&site.work(), &["rev-parse", "annotated"]);
    let (_, url) = site.web(&[]).await;
    for (field, value, words, terminal) in [
        ("branch", "gone", "no branch or tag \"gone\" in the repository (spec.branch)", false),
        // A prefix of a ref is not the ref.
        ("branch", "mai", "no branch or tag \"mai\"", false),
        ("commit", &first[..12], "all 40 digits", true),
        ("commit", "0123456789abcdef0123456789abcdef01234567", "does not have commit 0123456789abcdef", false),
        ("commit", &tag, "is not a commit", false),
        ("branch", "a b", "spec.branch is \"a b\"", true),
    ] {
        let (message, is_terminal) = site.refused(json!({ "projectRepo": url, field: value })).await;
        assert!(message.contains(words), "{value}: {message}");
        assert_eq!(is_terminal, terminal, "{value}: {message}");
    }
    let other = url.replace("shop.git", "other.git");
    let (message, terminal) = site.refused(json!({ "projectRepo": other, "branch": "main" })).await;
    assert!(message.contains("no repository at spec.projectRepo") && !terminal, "{message}");
}

#[tokio::test]
async fn when_nothing_changed_there_is_one_ls_refs_and_no_pack() {
    let site = Site::new();
    let (web, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    let (before, _) = site.fetched(spec.clone()).await;
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
    assert_eq!(site.fetched(spec.clone()).await.0, before);
    assert_eq!(web.requests(), ["info/refs", "ls-refs"]);
    // Another spec is another question.
    assert_eq!(site.fetched(json!({ "projectRepo": url, "branch": "refs/heads/main" })).await.0, before);
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
    site.write("new", "");
    let after = site.commit("new");
    assert_eq!(site.fetched(spec).await.0, after);
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
    // A commit is what it was.
    let spec = json!({ "projectRepo": url, "commit": after });
    site.fetched(spec.clone()).await;
    assert_eq!(web.requests(), ["info/refs", "fetch"]);
    site.fetched(spec).await;
    assert_eq!(web.requests(), [""; 0]);
}

#[tokio::test]
async fn a_tree_that_is_not_stored_any_more_is_fetched_again() {
    let site = Site::new();
    let (web, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    let outcome = site.look(spec.clone()).await;
    let manifest = format!("{}manifest", keys::tree(&Site::key(), &outcome.artifact.unwrap().digest));
    driftless_aws::Objects::delete(&site.world, &manifest).await.unwrap();
    web.requests();
    site.fetched(spec).await;
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
}

#[tokio::test]
async fn a_submodule_and_a_pointer_of_lfs_are_refused_by_name() {
    let site = Site::new();
    let (_, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    site.write("assets/big", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n");
    let commit = site.commit("lfs");
    let (message, terminal) = site.refused(spec.clone()).await;
    assert!(message.starts_with("\"assets/big\" is kept in Git LFS"), "{message}");
    assert!(!terminal, "a push mends it");
    assert!(site.refused(json!({ "projectRepo": url, "commit": commit })).await.1, "a commit stays what it is");
    std::fs::remove_dir_all(site.work().join("assets")).unwrap();
    run(&site.work(), &["submodule", "--quiet", "add", "../shop.git", "modules/shop"]);
    site.commit("submodule");
    let (message, terminal) = site.refused(spec).await;
    assert!(message.starts_with("\"modules/shop\" is a submodule"), "{message}");
    assert!(!terminal, "a push mends it");
}

#[tokio::test]
async fn content_that_leaves_the_tree_or_is_too_much_is_refused() {
    let mut site = Site::new();
    let (_, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    std::os::unix::fs::symlink("../../etc/passwd", site.work().join("link")).unwrap();
    site.commit("link");
    assert_eq!(site.refused(spec.clone()).await.0, "the link \"link\" leads out of the tree");
    std::fs::remove_file(site.work().join("link")).unwrap();
    // Incompressible, as far as zlib is concerned.
    let noise: Vec<u8> = (0..40_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).rotate_left(7).to_le_bytes()).collect();
    site.write("noise", noise);
    site.commit("noise");
    site.settings.limits.bytes = 1000;
    assert_eq!(
        site.refused(spec.clone()).await.0,
        "the content is larger than 1000 bytes; the installation's parameter UnpackMaxBytes is the limit"
    );
    site.settings.git.max_pack_bytes = 50_000;
    assert_eq!(
        site.refused(spec).await.0,
        "the git server sent more than 50000 bytes for one commit; raise the installation's limit, or use a smaller repository"
    );
}

#[tokio::test]
async fn a_tree_that_is_in_itself_many_times_is_not_walked_to_the_end() {
    use std::io::Write as _;
    let mut site = Site::new();
    site.settings.limits.entries = 1000;
    let (_, url) = site.web(&[]).await;
    let mut tree = run(&site.work(), &["rev-parse", "HEAD^{tree}"]);
    for _ in 0..12 {
        let mut mktree = Command::new("git")
            .current_dir(site.work())
            .arg("mktree")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let entries = (0..10).map(|n| format!("040000 tree {tree}\t{n}\n")).collect::<Vec<_>>().concat();
        mktree.stdin.take().unwrap().write_all(entries.as_bytes()).unwrap();
        tree = String::from_utf8(mktree.wait_with_output().unwrap().stdout).unwrap().trim().to_owned();
    }
    let commit = run(&site.work(), &["commit-tree", "-m", "bomb", &tree]);
    run(&site.work(), &["update-ref", "refs/heads/main", &commit]);
    site.push();
    let (message, _) = site.refused(json!({ "projectRepo": url, "branch": "main" })).await;
    assert_eq!(message, "more than 1000 files and directories; the installation's parameter UnpackMaxEntries is the limit");
}

#[tokio::test]
async fn a_server_with_the_old_protocol_is_understood() {
    let site = Site::new();
    run(&site.work(), &["tag", "--annotate", "--message", "x", "annotated"]);
    site.write("second", "2");
    let second = site.commit("second");
    let (web, address) = Web { root: site.root().into(), old: true, ..Web::default() }.serve().await;
    let spec = |field: &str, value: &str| json!({ "projectRepo": format!("http://{address}/shop.git"), field: value });
    assert_eq!(site.fetched(spec("branch", "main")).await.0, second);
    assert_eq!(web.requests(), ["info/refs", "other"]);
    site.fetched(spec("branch", "main")).await;
    assert_eq!(web.requests(), ["info/refs"]);
    assert_eq!(site.fetched(spec("branch", "annotated")).await.1.files.len(), 1);
    assert_eq!(site.fetched(spec("commit", &second)).await.0, second);
}

#[tokio::test]
async fn repositories_without_a_commit_or_with_other_ids_are_refused() {
    let site = Site::new();
    run(site.root(), &["init", "--quiet", "--bare", "empty.git"]);
    run(site.root(), &["init", "--quiet", "--bare", "--object-format", "sha256", "sha256.git"]);
    let (_, url) = site.web(&[]).await;
    for (name, words) in [("empty", "no branch or tag \"main\""), ("sha256", "SHA-256 format")] {
        let url = url.replace("shop", name);
        let (message, _) = site.refused(json!({ "projectRepo": url, "branch": "main" })).await;
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn tokens_and_passwords_open_a_repository_and_wrong_ones_are_named() {
    let site = Site::new();
    let (web, url) = site.web(&["git:canary-token", "me:canary-password"]).await;
    site.secret("git", &[("token", "canary-token\n"), ("bad", "canary-bad"), ("user", "me"), ("password", "canary-password")]);
    let spec = |auth: Value| json!({ "projectRepo": url, "branch": "main", "gitAuth": auth });
    site.fetched(spec(json!({ "accessToken": secret("git", "token") }))).await;
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"], "credentials go with the first request");
    let basic = |password| json!({ "basicAuth": { "userName": secret("git", "user"), "password": secret("git", password) } });
    site.fetched(spec(basic("password"))).await;
    let literal = json!({ "type": "Literal", "literal": { "value": "canary-token" } });
    site.fetched(spec(json!({ "accessToken": literal }))).await;
    for (auth, words) in [
        (
            json!({ "accessToken": secret("git", "bad") }),
            "the git server refused the credentials of Secret \"git\" key \"bad\" (spec.gitAuth.accessToken)",
        ),
        (basic("bad"), "Secret \"git\" key \"bad\" (spec.gitAuth.basicAuth.password)"),
        (json!({ "accessToken": secret("none", "x") }), "Secret \"none\" is not there (spec.gitAuth.accessToken)"),
        (json!({ "accessToken": secret("git", "x") }), "no key \"x\" found in Secret \"git\" (spec.gitAuth.accessToken)"),
        (
            json!({ "accessToken": { "type": "Literal", "literal": { "value": "canary-literal" } } }),
            "the git server refused the credentials of the literal in spec.gitAuth.accessToken",
        ),
        (
            json!({ "sshAuth": { "sshPrivateKey": secret("git", "token") } }),
            "is an http URL: Secret \"git\" key \"token\" (spec.gitAuth.sshAuth.sshPrivateKey) is no credential for it",
        ),
    ] {
        let (message, terminal) = site.refused(spec(auth)).await;
        assert!(message.contains(words), "{message}");
        assert!(!terminal, "{message}");
    }
    let (message, _) = site.refused(json!({ "projectRepo": url, "branch": "main" })).await;
    assert_eq!(message, "the git server wants credentials: set spec.gitAuth");
    let (message, terminal) = site.refused(spec(json!({}))).await;
    assert!(message.starts_with("gitAuth config must specify exactly one of 'personalAccessToken'"), "{message}");
    assert!(terminal);
}

#[tokio::test]
async fn the_deprecated_secret_has_the_forms_of_pko() {
    let site = Site::new();
    let (_, url) = site.web(&["git:canary-token", "me:canary-password"]).await;
    let spec = |name: &str| json!({ "projectRepo": url, "branch": "main", "gitAuthSecret": name, "gitAuth": {} });
    site.secret("token", &[("accessToken", "canary-token"), ("username", "canary"), ("password", "canary")]);
    site.fetched(spec("token")).await;
    site.secret("basic", &[("username", "me"), ("password", "canary-password")]);
    site.fetched(spec("basic")).await;
    site.secret("half", &[("username", "me")]);
    let (message, _) = site.refused(spec("half")).await;
    assert_eq!(message, "creating gitAuth: no key \"password\" found in Secret \"half\" (spec.gitAuthSecret)");
    site.secret("other", &[("x", "y")]);
    let (message, _) = site.refused(spec("other")).await;
    assert_eq!(message, "the git server wants credentials: set spec.gitAuth");
    site.secret("bad", &[("accessToken", "canary-bad")]);
    let (message, _) = site.refused(spec("bad")).await;
    assert_eq!(message, "the git server refused the credentials of Secret \"bad\" key \"accessToken\" (spec.gitAuthSecret)");
    let (message, _) = site.refused(spec("none")).await;
    assert!(message.starts_with("Secret \"none\" is not there (spec.gitAuthSecret)"), "{message}");
}

#[tokio::test]
async fn a_workspace_names_a_repository_with_its_own_fields() {
    let site = Site::new();
    let first = run(&site.work(), &["rev-parse", "HEAD"]);
    let (web, url) = site.web(&["git:canary-token", "me:canary-password"]).await;
    let ssh = Ssh::serve(&site, &[("key", "ed25519", "", &[]), ("locked", "ed25519", "canary-phrase", &[])]).await;
    let (key, locked) = (file(&site, "key"), file(&site, "locked"));
    let ssh_keys = [("key", &*key), ("locked", &*locked), ("phrase", "canary-phrase"), ("known_hosts", &*ssh.known_hosts[0])];
    site.secret("ssh", &ssh_keys);
    site.secret("git", &[("token", "canary-token"), ("bad", "canary-bad"), ("user", "me"), ("password", "canary-password")]);
    let of = |secret: &str, key: &str| json!({ "name": secret, "key": key });
    let ssh_url = format!("ssh://git@{}{}/shop.git", ssh.address, site.root().display());
    for (url, auth) in [
        (&url, json!({ "token": of("git", "token") })),
        (&url, json!({ "username": of("git", "user"), "password": of("git", "password") })),
        (&ssh_url, json!({ "sshPrivateKey": of("ssh", "key") })),
        (&ssh_url, json!({ "sshPrivateKey": of("ssh", "locked"), "password": of("ssh", "phrase") })),
    ] {
        assert_eq!(
            site.look_of_workspace(json!({ "url": url, "ref": "main", "auth": auth })).await.as_ref(),
            Ok(&first),
            "{auth}"
        );
    }
    for (url, git, words) in [
        (
            &url,
            json!({ "auth": { "token": of("git", "bad") } }),
            "refused the credentials of Secret \"git\" key \"bad\" (spec.git.auth.token)",
        ),
        (&url, json!({ "auth": { "token": of("none", "x") } }), "Secret \"none\" is not there (spec.git.auth.token)"),
        (&url, json!({}), "the git server wants credentials: set spec.git.auth"),
        (
            &url,
            json!({ "auth": { "sshPrivateKey": of("ssh", "key") } }),
            "use spec.git.auth.token, githubApp or username and password",
        ),
        (
            &ssh_url,
            json!({}),
            "spec.git.url is an ssh URL: nothing in spec.git.auth is no credential for it; set spec.git.auth.sshPrivateKey",
        ),
        (&url, json!({ "ref": "a b" }), "spec.git.ref is \"a b\""),
        (&"https://me:canary@example.com/a".into(), json!({}), "spec.git.url: it has a user or a password in it"),
        (
            &url,
            json!({ "ref": "gone", "auth": { "token": of("git", "token") } }),
            "no branch or tag \"gone\" in the repository (spec.git.ref)",
        ),
    ] {
        let git = driftless_api::merge(json!({ "url": url, "ref": "main" }), &git);
        let message = site.look_of_workspace(git).await.unwrap_err();
        assert!(message.contains(words), "{message}");
    }
    // A commit by its id is fetched once.
    let pinned = json!({ "url": url, "ref": first, "auth": { "token": of("git", "token") } });
    site.look_of_workspace(pinned.clone()).await.unwrap();
    web.requests();
    assert_eq!(site.look_of_workspace(pinned).await, Ok(first));
    assert_eq!(web.requests(), [""; 0]);
}

#[tokio::test]
async fn a_github_app_gets_a_token_of_its_installation() {
    let mut site = Site::new();
    let (_, url) = site.web(&["x-access-token:canary-installation"]).await;
    let (github, api) = GitHub::default().serve().await;
    site.settings.git.github_api_url = format!("http://{api}/api/v3/");
    let key = site.root().join("app");
    ssh_keygen(&key, "rsa", "", &["-b", "2048", "-m", "PEM"]);
    let pem = std::fs::read_to_string(&key).unwrap();
    assert!(pem.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    let pkcs8 = Command::new("openssl").args(["pkcs8", "-topk8", "-nocrypt", "-in"]).arg(&key).output().unwrap();
    let pkcs8 = String::from_utf8(pkcs8.stdout).unwrap();
    let id = [("id", "7"), ("one", "42"), ("unknown", "43"), ("strange", "401"), ("path", "../../x")];
    site.secret("app", &[&id[..], &[("key", &pem), ("pkcs8", &pkcs8), ("bad", "canary")]].concat());
    let spec = |installation: &str, key: &str| {
        let app = json!({
            "appID": secret("app", "id"),
            "installationID": secret("app", installation),
            "privateKey": secret("app", key),
        });
        json!({ "projectRepo": url, "branch": "main", "gitAuth": { "githubApp": app } })
    };
    site.fetched(spec("one", "key")).await;
    site.fetched(spec("one", "pkcs8")).await;
    let jwt = github.jwts.lock().unwrap()[0].clone();
    let parts: Vec<_> = jwt.split('.').collect();
    let part = |n: usize| base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(parts[n]).unwrap();
    let claims: Value = serde_json::from_slice(&part(1)).unwrap();
    let now = site.world.now().as_second();
    assert_eq!(claims, json!({ "iat": now - 60, "exp": now + 540, "iss": "7" }));
    assert_eq!(serde_json::from_slice::<Value>(&part(0)).unwrap()["alg"], "RS256");
    // openssl, which did not make the signature, takes it.
    let files = ["signed", "signature"].map(|name| site.root().join(name));
    std::fs::write(&files[0], format!("{}.{}", parts[0], parts[1])).unwrap();
    std::fs::write(&files[1], part(2)).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-prverify"]).arg(&key).arg("-signature").arg(&files[1]).arg(&files[0]);
    let verified = openssl.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&verified.stdout).trim(), "Verified OK");
    for (installation, key, words) in [
        ("unknown", "key", "has no installation as in spec.gitAuth.githubApp.installationID"),
        ("strange", "key", "is not accepted by GitHub"),
        ("path", "key", "installationID is not a number"),
        ("one", "bad", "is not an RSA private key"),
    ] {
        let (message, terminal) = site.refused(spec(installation, key)).await;
        assert!(message.contains(words) && message.contains(&format!("Secret \"app\" key {key:?}")), "{message}");
        assert!(!terminal, "{message}");
    }
}

#[tokio::test]
async fn https_is_verified_against_the_given_authorities() {
    let mut site = Site::new();
    let accepts = vec!["git:canary-token".into()];
    let (_, address, certificate) = Web { root: site.root().into(), accepts, ..Web::default() }.serve_tls().await;
    site.secret("git", &[("token", "canary-token")]);
    let url = format!("https://localhost:{}/shop.git", address.port());
    let spec = json!({ "projectRepo": url, "branch": "main", "gitAuth": { "accessToken": secret("git", "token") } });
    let (message, terminal) = site.refused(spec.clone()).await;
    assert!(message.starts_with("the git server cannot be reached") && message.contains("certificate"), "{message}");
    assert!(!terminal);
    site.settings.git.ca_certificates = certificate;
    site.fetched(spec).await;
}

#[tokio::test]
async fn without_the_setting_nothing_local_is_reached_and_no_credential_goes_in_clear() {
    let mut site = Site::new();
    let (web, url) = site.web(&[]).await;
    site.fetched(json!({ "projectRepo": format!("file://{}/shop.git", site.root().display()), "branch": "main" })).await;
    site.settings.git.allow_local = false;
    site.secret("git", &[("token", "canary-token")]);
    let port = url.split(':').nth(2).unwrap();
    for (repo, words, terminal) in [
        (url.clone(), "\"127.0.0.1\" is a loopback address", true),
        (format!("http://localhost:{port}"), "\"localhost\" is a loopback address", false),
        (format!("http://0x7f.1:{port}"), "\"127.0.0.1\" is a loopback address", true),
        ("https://169.254.169.254/latest".into(), "\"169.254.169.254\" is a link-local address", true),
        ("https://[fd00:ec2::254]/latest".into(), "metadata", true),
        ("ssh://git@127.0.0.1/shop.git".into(), "spec.gitAuth.sshAuth", false),
        (format!("file://{}/shop.git", site.root().display()), "a path on this machine", true),
    ] {
        let (message, is_terminal) = site.refused(json!({ "projectRepo": repo, "branch": "main" })).await;
        assert!(message.contains(words), "{repo}: {message}");
        assert_eq!(is_terminal, terminal, "{repo}: {message}");
    }
    let auth = json!({ "accessToken": secret("git", "token") });
    let (message, _) = site.refused(json!({ "projectRepo": "http://example.com/x", "branch": "main", "gitAuth": auth })).await;
    assert!(message.contains("use https"), "{message}");
    assert_eq!(web.requests(), [""; 0]);
    site.settings.git.allow_local = true;
    let (message, _) = site.refused(json!({ "projectRepo": "http://169.254.169.254/latest", "branch": "main" })).await;
    assert!(message.contains("link-local"), "{message}");
}

#[tokio::test]
async fn a_redirect_is_followed_on_the_same_host_only() {
    let site = Site::new();
    let (elsewhere, other) = site.web(&[]).await;
    let other = other.strip_suffix("/shop.git").unwrap().to_owned();
    let moved = [
        ("/old", "/shop.git"),
        ("/away", &format!("{other}/shop.git")),
        ("/metadata", "http://169.254.169.254/x"),
        ("/loop", "/loop"),
    ];
    let moved = moved.map(|(from, to)| (from.to_owned(), to.to_owned())).to_vec();
    let (web, address) = Web { root: site.root().into(), moved, ..Web::default() }.serve().await;
    let spec = |path: &str| json!({ "projectRepo": format!("http://{address}/{path}"), "branch": "main" });
    site.fetched(spec("old")).await;
    assert_eq!(web.requests(), ["info/refs", "info/refs", "ls-refs", "fetch"], "once, and from then on the new place");
    for path in ["away", "metadata", "loop"] {
        let (message, terminal) = site.refused(spec(path)).await;
        assert!(message.contains("redirects to another host, or too often"), "{path}: {message}");
        assert!(!terminal);
    }
    assert_eq!(elsewhere.requests(), [""; 0]);
}

/// An SSH server with two host keys, and keys that it lets in.
struct Ssh {
    address: SocketAddr,
    /// One `known_hosts` line each.
    known_hosts: Vec<String>,
    fingerprint: String,
}

impl Ssh {
    async fn serve(site: &Site, keys: &[(&str, &str, &str, &[&str])]) -> Self {
        let hosts = [("host-ed25519", "ed25519"), ("host-ecdsa", "ecdsa")].map(|(name, kind)| {
            let path = site.root().join(name);
            ssh_keygen(&path, kind, "", &[]);
            path
        });
        let public = |path: &Path| std::fs::read_to_string(path.with_extension("pub")).unwrap();
        let accepts = keys.iter().map(|(name, kind, passphrase, more)| {
            let path = site.root().join(name);
            ssh_keygen(&path, kind, passphrase, more);
            PublicKey::from_openssh(&public(&path)).unwrap()
        });
        let address = servers::ssh(&hosts, accepts.collect(), site.root()).await;
        let known_hosts = hosts.iter().map(|path| format!("[127.0.0.1]:{} {}", address.port(), public(path))).collect();
        let fingerprint = PublicKey::from_openssh(&public(&hosts[0])).unwrap().fingerprint(HashAlg::Sha256).to_string();
        Self { address, known_hosts, fingerprint }
    }

    fn spec(&self, site: &Site, auth: &Value) -> Value {
        let url = format!("ssh://git@{}{}/shop.git", self.address, site.root().display());
        json!({ "projectRepo": url, "branch": "main", "gitAuth": { "sshAuth": auth } })
    }
}

fn file(site: &Site, name: &str) -> String {
    std::fs::read_to_string(site.root().join(name)).unwrap()
}

#[tokio::test]
async fn ssh_keys_of_the_usual_kinds_open_a_repository() {
    let site = Site::new();
    let keys: [(&str, &str, &str, &[&str]); 5] = [
        ("ed25519", "ed25519", "", &[]),
        ("ecdsa", "ecdsa", "", &[]),
        ("rsa", "rsa", "", &["-b", "2048"]),
        ("rsa-pem", "rsa", "", &["-b", "2048", "-m", "PEM"]),
        ("locked", "ed25519", "canary-passphrase", &[]),
    ];
    let ssh = Ssh::serve(&site, &keys).await;
    for (name, _, passphrase, _) in keys {
        let known_hosts = &ssh.known_hosts[0];
        site.secret("ssh", &[("key", &file(&site, name)), ("passphrase", passphrase), ("known_hosts", known_hosts)]);
        let mut auth = json!({ "sshPrivateKey": secret("ssh", "key") });
        if !passphrase.is_empty() {
            auth["password"] = secret("ssh", "passphrase");
        }
        let (revision, manifest) = site.fetched(ssh.spec(&site, &auth)).await;
        assert_eq!(revision, run(&site.work(), &["rev-parse", "HEAD"]), "{name}");
        assert_eq!(manifest.files.len(), 1);
        // Another fetch would be none otherwise.
        driftless_aws::Objects::delete(&site.world, &keys::fetch(&Site::key())).await.unwrap();
    }
    site.secret(
        "old",
        &[("sshPrivateKey", &file(&site, "locked")), ("password", "canary-passphrase"), ("known_hosts", &ssh.known_hosts[0])],
    );
    let mut spec = ssh.spec(&site, &json!(null));
    spec["gitAuth"] = json!(null);
    spec["gitAuthSecret"] = json!("old");
    site.fetched(spec).await;
}

#[tokio::test]
async fn a_key_that_does_not_fit_is_named() {
    let site = Site::new();
    let ssh = Ssh::serve(&site, &[("locked", "ed25519", "canary-passphrase", &[])]).await;
    ssh_keygen(&site.root().join("stranger"), "ed25519", "", &[]);
    let known_hosts = ssh.known_hosts.concat();
    let locked = file(&site, "locked");
    site.secret("ssh", &[("key", &locked), ("bad", "canary"), ("known_hosts", &known_hosts)]);
    site.secret("stranger", &[("key", &file(&site, "stranger")), ("known_hosts", &known_hosts)]);
    for (auth, words) in [
        (
            json!({ "sshPrivateKey": secret("ssh", "key"), "password": secret("ssh", "bad") }),
            "the passphrase beside it is not its own",
        ),
        (json!({ "sshPrivateKey": secret("ssh", "key") }), "needs its passphrase"),
        (json!({ "sshPrivateKey": secret("ssh", "bad") }), "no private key in PEM form"),
        (
            json!({ "sshPrivateKey": secret("stranger", "key") }),
            "refused the credentials of Secret \"stranger\" key \"key\" (spec.gitAuth.sshAuth.sshPrivateKey)",
        ),
    ] {
        let (message, terminal) = site.refused(ssh.spec(&site, &auth)).await;
        assert!(message.contains(words), "{message}");
        assert!(!terminal, "{message}");
    }
    let mut spec = ssh.spec(&site, &json!(null));
    spec["gitAuth"] = json!({ "accessToken": secret("ssh", "bad") });
    let (message, _) = site.refused(spec).await;
    assert!(message.contains("set spec.gitAuth.sshAuth"), "{message}");
}

#[tokio::test]
async fn a_host_key_has_to_be_a_known_one() {
    let mut site = Site::new();
    let ssh = Ssh::serve(&site, &[("key", "ed25519", "", &[])]).await;
    let auth = json!({ "sshPrivateKey": secret("ssh", "key") });
    let key = file(&site, "key");
    site.secret("ssh", &[("key", &key)]);
    let (message, terminal) = site.refused(ssh.spec(&site, &auth)).await;
    assert!(message.contains(&ssh.fingerprint) && message.contains(&ssh.address.to_string()), "{message}");
    assert!(!terminal);
    // Another host's, and another key of this host.
    ssh_keygen(&site.root().join("wrong"), "ed25519", "", &[]);
    let wrong = format!("[127.0.0.1]:{} {}", ssh.address.port(), file(&site, "wrong.pub"));
    let other = ssh.known_hosts[0].replace("127.0.0.1", "example.com");
    site.secret("ssh", &[("key", &key), ("known_hosts", &format!("{wrong}{other}"))]);
    assert!(site.refused(ssh.spec(&site, &auth)).await.0.contains("not a known one"));
    // Whatever the kind of the key that is known; the installation's are as good, hashed too.
    site.settings.git.known_hosts = ssh.known_hosts[1].clone();
    site.secret("ssh", &[("key", &key)]);
    site.fetched(ssh.spec(&site, &auth)).await;
    driftless_aws::Objects::delete(&site.world, &keys::fetch(&Site::key())).await.unwrap();
    let path = site.root().join("known_hosts");
    std::fs::write(&path, &ssh.known_hosts[0]).unwrap();
    assert!(Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&path).output().unwrap().status.success());
    let hashed = file(&site, "known_hosts");
    assert!(hashed.starts_with("|1|"), "{hashed}");
    site.settings.git.known_hosts = String::new();
    site.secret("ssh", &[("key", &key), ("known_hosts", &hashed)]);
    site.fetched(ssh.spec(&site, &auth)).await;
}

#[tokio::test]
async fn an_ssh_server_without_the_repository_is_not_waited_for() {
    let site = Site::new();
    let ssh = Ssh::serve(&site, &[("key", "ed25519", "", &[])]).await;
    site.secret("ssh", &[("key", &file(&site, "key")), ("known_hosts", &ssh.known_hosts[0])]);
    let mut spec = ssh.spec(&site, &json!({ "sshPrivateKey": secret("ssh", "key") }));
    spec["projectRepo"] = json!(format!("ssh://{}/no'where", ssh.address));
    let (message, terminal) = site.refused(spec).await;
    assert!(message.contains("is spec.projectRepo right"), "{message}");
    assert!(!terminal);
}
