//! Stacks that name a git repository themselves.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, DirEntry},
    io,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::{encoding::AsDer as _, rsa};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use driftless_tests::scenario::{Handle, Namespace, Source, commit, is_ready, output};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::world::{looked, shared};

/// A reference to a key of the Secret `name`.
fn key(name: &str, key: &str) -> String {
    format!("{{ type: Secret, secret: {{ name: {name}, key: {key} }} }}")
}

/// A form of credential: its name, whether it is for ssh, the lines of the spec, and the keys of
/// the Secret of that name with the credentials that they have.
type Form = (&'static str, bool, String, &'static [(&'static str, &'static str)]);

/// The forms of `gitAuth`, and of `gitAuthSecret`.
fn forms() -> Vec<Form> {
    let basic = format!("gitAuth: {{ basicAuth: {{ userName: {}, password: {} }} }}", key("basic", "user"), key("basic", "word"));
    let token = format!("gitAuth: {{ accessToken: {} }}", key("token", "token"));
    let app = format!(
        "gitAuth: {{ githubApp: {{ appID: {}, installationID: {}, privateKey: {} }} }}",
        key("app", "app"),
        key("app", "installation"),
        key("app", "pem")
    );
    let plain = format!("gitAuth: {{ sshAuth: {{ sshPrivateKey: {} }} }}", key("key", "id"));
    let locked =
        format!("gitAuth: {{ sshAuth: {{ sshPrivateKey: {}, password: {} }} }}", key("locked", "id"), key("locked", "word"));
    vec![
        ("basic", false, basic, &[("user", "username"), ("word", "password")]),
        ("token", false, token, &[("token", "token")]),
        ("key", true, plain, &[("id", "ssh-key")]),
        ("locked", true, locked, &[("id", "ssh-key-locked"), ("word", "ssh-passphrase")]),
        ("old-basic", false, "gitAuthSecret: old-basic".into(), &[("username", "username"), ("password", "password")]),
        ("old-token", false, "gitAuthSecret: old-token".into(), &[("accessToken", "token")]),
        ("old-key", true, "gitAuthSecret: old-key".into(), &[("sshPrivateKey", "ssh-key")]),
        (
            "old-locked",
            true,
            "gitAuthSecret: old-locked".into(),
            &[("sshPrivateKey", "ssh-key-locked"), ("password", "ssh-passphrase")],
        ),
        ("app", false, app, &[("app", "app-id"), ("installation", "installation-id"), ("pem", "app-key")]),
    ]
}

/// A form of credential, the changes in its Secret (a key without a value is left out), and parts
/// of the condition's message.
type Case<'a> = (&'a str, &'a [(&'a str, Option<&'a str>)], &'a [&'a str]);

/// The credentials of the world by name.
pub fn credentials(world: &Handle) -> Result<BTreeMap<String, String>> {
    let mut credentials = BTreeMap::new();
    for file in fs::read_dir(world.get("WORLD_GIT_CREDENTIALS")?)? {
        let path = file?.path();
        if let (Some(name), None) = (path.file_stem().and_then(OsStr::to_str), path.extension()) {
            credentials.insert(name.to_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(credentials)
}

/// A private repository with a project that writes `one`, its URLs over https and ssh, and its
/// commit.
async fn private(world: &Handle, team: &Namespace<'_>) -> Result<([String; 2], String)> {
    let repository = world.private_git.create(&team.name).await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("${pulumi.stack}.txt", "one", "")?);
    let id = repository.commit("one", &[("deep/Pulumi.yaml", &project)]).await?;
    Ok(([repository.url, format!("{}/{}.git", world.get("WORLD_GIT_SSH_URL")?, team.name)], id))
}

async fn apply(team: &Namespace<'_>, name: &str, url: &str, auth: &str) -> Result<()> {
    team.apply_stack_as(name, name, "{}", Source::Git { url, reference: "branch: main", dir: "deep", auth }, "").await
}

#[tokio::test]
async fn a_private_repository_is_read_with_every_form_of_credential() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("private").await?;
    let ([https, ssh], id) = private(&world, &team).await?;
    let credentials = credentials(&world)?;
    for (name, is_ssh, auth, keys) in forms() {
        let values: Vec<_> = keys.iter().map(|(key, credential)| (*key, credentials[*credential].as_str())).collect();
        team.apply_secret(name, &values).await?;
        apply(&team, name, if is_ssh { &ssh } else { &https }, &auth).await?;
    }
    for (name, ..) in forms() {
        let stack = team.ready_after(name, 1).await.with_context(|| name)?;
        assert_eq!((output(&stack, "content"), commit(&stack)), (Some(&json!("one")), Some(id.as_str())), "{name}");
    }

    // The logs of the functions, the tasks and AWS contain no credential.
    for file in fs::read_dir(world.get("WORLD_LOGS")?)? {
        let file = file?.path();
        let log = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
        for name in ["password", "token", "ssh-key", "ssh-key-locked", "ssh-passphrase", "app-key"] {
            let line = credentials[name].lines().find(|line| !line.starts_with("-----")).context(name)?;
            ensure!(!log.contains(line), "{name} is in {}", file.display());
        }
    }
    team.clear().await
}

#[tokio::test]
async fn a_wrong_credential_names_its_secret_and_key_and_heals_with_it() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("wrong").await?;
    let ([https, ssh], _) = private(&world, &team).await?;
    let right = credentials(&world)?;
    let another_key = rsa::KeyPair::generate(rsa::KeySize::Rsa2048)?.as_der()?;
    let another_key = BASE64_STANDARD.encode(another_key.as_ref());
    let another_key = format!("-----BEGIN PRIVATE KEY-----\n{another_key}\n-----END PRIVATE KEY-----\n");
    let stranger = strangers_key(&world).await?;

    let canary = "canary-wrong-3b7d";
    let cases: [Case<'_>; 9] = [
        ("basic", &[("word", Some(canary))], &["refused the credentials of", "Secret \"basic\" key \"word\""]),
        ("token", &[("token", Some(canary))], &["refused the credentials of", "Secret \"token\" key \"token\""]),
        ("key", &[("id", Some(&stranger))], &["refused the credentials of", "Secret \"key\" key \"id\""]),
        ("locked", &[("word", Some(canary))], &["Secret \"locked\" key \"id\"", "cannot be opened"]),
        ("old-basic", &[("password", None)], &["no key \"password\" found in Secret \"old-basic\""]),
        (
            "old-token",
            &[("accessToken", Some(canary))],
            &["refused the credentials of", "Secret \"old-token\" key \"accessToken\""],
        ),
        ("old-key", &[("sshPrivateKey", Some(canary))], &["Secret \"old-key\" key \"sshPrivateKey\"", "cannot be opened"]),
        ("old-locked", &[("password", None)], &["Secret \"old-locked\" key \"sshPrivateKey\"", "needs its passphrase"]),
        ("app", &[("pem", Some(&another_key))], &["Secret \"app\" key \"pem\"", "is not accepted by GitHub"]),
    ];
    let forms: BTreeMap<_, _> = forms().into_iter().map(|(name, is_ssh, auth, keys)| (name, (is_ssh, auth, keys))).collect();
    for (name, wrong, _) in &cases {
        let (is_ssh, auth, keys) = &forms[name];
        let mut values: BTreeMap<_, _> = keys.iter().map(|(key, credential)| (*key, right[*credential].as_str())).collect();
        for (key, value) in *wrong {
            values.remove(key);
            values.extend(value.map(|value| (*key, value)));
        }
        team.apply_secret(name, &values.into_iter().collect::<Vec<_>>()).await?;
        apply(&team, name, if *is_ssh { &ssh } else { &https }, auth).await?;
    }
    apply(&team, "anonymous", &https, "").await?;
    apply(&team, "no-secret", &https, "gitAuthSecret: not-there").await?;
    for (name, _, words) in &cases {
        let stack = team.unavailable(name, words[0]).await.with_context(|| (*name).to_owned())?;
        let status = serde_json::to_string(&stack.status)?.replace("\\\"", "\"");
        ensure!(words.iter().all(|word| status.contains(word)), "{name}: {status}; wanted {words:?}");
        ensure!(!status.contains(canary), "{status}");
    }
    team.unavailable("anonymous", "git server requires credentials; set spec.gitAuth").await?;
    team.unavailable("no-secret", "Secret \"not-there\" not found (spec.gitAuthSecret)").await?;

    team.apply_secret("basic", &[("user", &right["username"]), ("word", &right["password"])]).await?;
    team.ready_after("basic", 1).await?;
    team.clear().await
}

#[tokio::test]
async fn submodule_outside_the_project_does_not_prevent_the_run() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("submodule").await?;
    let module = world.git.create("submodule").await?;
    module.commit("one", &[("README.md", "elsewhere")]).await?;
    let repository = world.git.create("with-submodule").await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("app.txt", "one", "")?);
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n", "a".repeat(64));
    repository.commit("one", &[("app/Pulumi.yaml", &project), ("assets/model.bin", &pointer)]).await?;
    repository.add_submodule("modules/shop", &module).await?;
    let commit = repository.commit("two", &[]).await?;
    let reference = format!("commit: {commit}");
    for (name, dir) in [("app", "app"), ("model", "assets"), ("shop", "modules/shop")] {
        let source = Source::Git { url: &repository.url, reference: &reference, dir, auth: "" };
        team.apply_stack_as(name, name, "{}", source, "").await?;
    }
    team.ready_after("app", 1).await?;
    team.unavailable("model", "\"assets/model.bin\" is stored in Git LFS").await?;
    team.unavailable("shop", "\"modules/shop\" is a submodule").await?;
    team.clear().await
}

#[tokio::test]
async fn unsafe_git_content_is_refused_by_name() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("unsafe-git").await?;
    let ([_, ssh], _) = private(&world, &team).await?;
    team.apply_secret("old-key", &[("sshPrivateKey", &credentials(&world)?["ssh-key"])]).await?;
    // The same server under a name without a known key.
    apply(&team, "stranger", &ssh.replace("127.0.0.1", "localhost"), "gitAuthSecret: old-key").await?;

    let repository = world.git.create("pointers").await?;
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n", "a".repeat(64));
    repository.commit("one", &[("Pulumi.yaml", "name: app\nruntime: yaml\n"), ("model.bin", &pointer)]).await?;
    let pointers = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    team.apply_stack_as("pointers", "pointers", "{}", pointers, "").await?;

    team.unavailable("stranger", "if it is genuine, add its known_hosts line").await?;
    team.unavailable("pointers", "\"model.bin\" is stored in Git LFS").await?;
    ensure!(team.updates("stranger").await?.is_empty() && team.updates("pointers").await?.is_empty(), "one was run");

    // With the host's key in it, the Secret decides which host is trusted.
    let scan = Command::new("ssh-keyscan").args(["-p", port(&ssh)?, "localhost"]).output().await?;
    let known = String::from_utf8(scan.stdout)?;
    ensure!(known.contains("localhost"), "ssh-keyscan: {}", String::from_utf8_lossy(&scan.stderr));
    let key = &credentials(&world)?["ssh-key"];
    team.apply_secret("old-key", &[("sshPrivateKey", key), ("known_hosts", &known)]).await?;
    team.ready_after("stranger", 1).await?;
    team.clear().await
}

/// The port of an ssh URL.
fn port(url: &str) -> Result<&str> {
    url.rsplit_once(':').and_then(|(_, rest)| rest.split('/').next()).with_context(|| format!("{url} has no port"))
}

/// A key that the ssh server does not know.
async fn strangers_key(world: &Handle) -> Result<String> {
    let path = Path::new(world.get("WORLD_LOGS")?).with_file_name("strangers-key");
    let keygen =
        tokio::process::Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).status().await?;
    ensure!(keygen.success(), "ssh-keygen: {keygen}");
    Ok(fs::read_to_string(path)?)
}

#[tokio::test]
async fn forbidden_git_secrets_name_the_role_to_bind() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.foreign_namespace("private-foreign").await?;
    let ([https, _], _) = private(&world, &team).await?;
    let credentials = credentials(&world)?;
    team.apply_secret("old-token", &[("accessToken", &credentials["token"])]).await?;
    apply(&team, "app", &https, "gitAuthSecret: old-token").await?;
    team.unavailable("app", "bind the ClusterRole driftless:git-credentials in this namespace").await?;
    team.allow_runs().await?;
    team.ready_after("app", 1).await?;
    team.clear().await
}

/// The commit and its name that Pulumi recorded with the only update of a stack, named
/// `project/stack`.
fn update_head(team: &Namespace<'_>, stack: &str) -> Result<Value> {
    let folder = format!("{}/.pulumi/history/{stack}", team.state()?);
    let files = fs::read_dir(&folder)?.collect::<io::Result<Vec<_>>>()?;
    let file = files.iter().map(DirEntry::path).find(|path| path.to_string_lossy().ends_with(".history.json"));
    let update: Value = serde_json::from_str(&fs::read_to_string(file.context(folder)?)?)?;
    Ok(json!([update["environment"]["git.head"], update["environment"]["git.headName"]]))
}

#[tokio::test]
async fn branch_is_polled_and_commit_is_not() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("polled").await?;
    let repository = world.git.create("polled").await?;
    let project = |content: &str| -> Result<_> {
        Ok(format!("name: app\nruntime: yaml\n{}", team.program("${pulumi.stack}.txt", content, "")?))
    };
    let first = repository.commit("one", &[("Pulumi.yaml", &project("one")?)]).await?;
    let url = &repository.url;
    team.apply_stack_as("branch", "branch", "{}", Source::Git { url, reference: "branch: main", dir: "", auth: "" }, "").await?;
    let pinned = format!("commit: {first}");
    team.apply_stack_as("commit", "commit", "{}", Source::Git { url, reference: &pinned, dir: "", auth: "" }, "").await?;
    for name in ["branch", "commit"] {
        let stack = team.ready_after(name, 1).await?;
        assert_eq!(commit(&stack), Some(first.as_str()), "{name}");
    }
    // What Pulumi stores with an update, and Pulumi Cloud shows.
    assert_eq!(update_head(&team, "app/branch")?, json!([first, "main"]));
    assert_eq!(update_head(&team, "app/commit")?, json!([first, null]));
    let second = repository.commit("two", &[("Pulumi.yaml", &project("two")?)]).await?;
    let stack = team.wait("branch", "to have run the push", |stack| commit(stack) == Some(&second) && is_ready(stack)).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("two")));
    for name in ["branch", "commit"] {
        looked(&team, name).await?;
    }
    team.ready_after("branch", 2).await?;
    team.ready_after("commit", 1).await?;
    team.clear().await
}
