//! Git over SSH: keys of users and of hosts.

use super::*;

/// An SSH server with two host keys, and the keys that it accepts.
pub(crate) struct Ssh {
    pub(crate) address: SocketAddr,
    /// One `known_hosts` line each.
    pub(crate) known_hosts: Vec<String>,
    fingerprint: String,
}

impl Ssh {
    pub(crate) async fn serve(site: &Site, keys: &[(&str, &str, &str, &[&str])]) -> Self {
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

    pub(crate) fn spec(&self, site: &Site, auth: &Value) -> Value {
        let url = format!("ssh://git@{}{}/shop.git", self.address, site.root().display());
        json!({ "projectRepo": url, "branch": "main", "gitAuth": { "sshAuth": auth } })
    }
}

pub(crate) fn file(site: &Site, name: &str) -> String {
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
        // Otherwise the next fetch would be answered from this one.
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
async fn wrong_ssh_key_is_named() {
    let site = Site::new();
    let ssh = Ssh::serve(&site, &[("locked", "ed25519", "canary-passphrase", &[])]).await;
    ssh_keygen(&site.root().join("stranger"), "ed25519", "", &[]);
    let known_hosts = ssh.known_hosts.concat();
    let locked = file(&site, "locked");
    site.secret("ssh", &[("key", &locked), ("bad", "canary"), ("known_hosts", &known_hosts)]);
    site.secret("stranger", &[("key", &file(&site, "stranger")), ("known_hosts", &known_hosts)]);
    for (auth, words) in [
        (json!({ "sshPrivateKey": secret("ssh", "key"), "password": secret("ssh", "bad") }), "its passphrase is wrong"),
        (json!({ "sshPrivateKey": secret("ssh", "key") }), "needs its passphrase"),
        (json!({ "sshPrivateKey": secret("ssh", "bad") }), "not a private key in PEM form"),
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
async fn ssh_host_key_must_be_known() {
    let mut site = Site::new();
    let ssh = Ssh::serve(&site, &[("key", "ed25519", "", &[])]).await;
    let auth = json!({ "sshPrivateKey": secret("ssh", "key") });
    let key = file(&site, "key");
    site.secret("ssh", &[("key", &key)]);
    let (message, terminal) = site.refused(ssh.spec(&site, &auth)).await;
    assert!(message.contains(&ssh.fingerprint) && message.contains(&ssh.address.to_string()), "{message}");
    assert!(!terminal);
    // The key of another host, and another key of this host.
    ssh_keygen(&site.root().join("wrong"), "ed25519", "", &[]);
    let wrong = format!("[127.0.0.1]:{} {}", ssh.address.port(), file(&site, "wrong.pub"));
    let other = ssh.known_hosts[0].replace("127.0.0.1", "example.com");
    site.secret("ssh", &[("key", &key), ("known_hosts", &format!("{wrong}{other}"))]);
    assert!(site.refused(ssh.spec(&site, &auth)).await.0.contains("is unknown: "));
    // Every kind of known key is accepted, and those of the installation too, also hashed.
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
    assert!(message.contains("check spec.projectRepo"), "{message}");
    assert!(!terminal);
}
