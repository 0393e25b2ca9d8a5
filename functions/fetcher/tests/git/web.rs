//! Git over http and https: credentials, certificates and redirects.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use jiff::SignedDuration;

use super::*;
use crate::ssh::{Ssh, file};

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
        (json!({ "accessToken": secret("none", "x") }), "Secret \"none\" not found (spec.gitAuth.accessToken)"),
        (json!({ "accessToken": secret("git", "x") }), "no key \"x\" found in Secret \"git\" (spec.gitAuth.accessToken)"),
        (
            json!({ "accessToken": { "type": "Literal", "literal": { "value": "canary-literal" } } }),
            "the git server refused the credentials of the literal in spec.gitAuth.accessToken",
        ),
        (
            json!({ "sshAuth": { "sshPrivateKey": secret("git", "token") } }),
            "is an http URL: Secret \"git\" key \"token\" (spec.gitAuth.sshAuth.sshPrivateKey) is not a credential for it",
        ),
    ] {
        let (message, terminal) = site.refused(spec(auth)).await;
        assert!(message.contains(words), "{message}");
        assert!(!terminal, "{message}");
    }
    let (message, _) = site.refused(json!({ "projectRepo": url, "branch": "main" })).await;
    assert_eq!(message, "git server requires credentials; set spec.gitAuth");
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
    assert_eq!(message, "git server requires credentials; set spec.gitAuth");
    site.secret("bad", &[("accessToken", "canary-bad")]);
    let (message, _) = site.refused(spec("bad")).await;
    assert_eq!(message, "the git server refused the credentials of Secret \"bad\" key \"accessToken\" (spec.gitAuthSecret)");
    let (message, _) = site.refused(spec("none")).await;
    assert!(message.starts_with("Secret \"none\" not found (spec.gitAuthSecret)"), "{message}");
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
            site.poll_of_workspace(json!({ "url": url, "ref": "main", "auth": auth })).await.as_ref(),
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
        (&url, json!({ "auth": { "token": of("none", "x") } }), "Secret \"none\" not found (spec.git.auth.token)"),
        (&url, json!({}), "git server requires credentials; set spec.git.auth"),
        (
            &url,
            json!({ "auth": { "sshPrivateKey": of("ssh", "key") } }),
            "use spec.git.auth.token, githubApp or username and password",
        ),
        (
            &ssh_url,
            json!({}),
            "spec.git.url is an ssh URL: spec.git.auth is not a credential for it; set spec.git.auth.sshPrivateKey",
        ),
        (&url, json!({ "ref": "a b" }), "spec.git.ref is \"a b\""),
        (&"https://me:canary@example.com/a".into(), json!({}), "spec.git.url contains a user or a password"),
        (
            &url,
            json!({ "ref": "gone", "auth": { "token": of("git", "token") } }),
            "branch or tag \"gone\" not found in the repository (spec.git.ref)",
        ),
    ] {
        let git = driftless_core::merge(json!({ "url": url, "ref": "main" }), &git);
        let message = site.poll_of_workspace(git).await.unwrap_err();
        assert!(message.contains(words), "{message}");
    }
    // Without a name the default branch is used.
    let default = site.poll_of_workspace(json!({ "url": url, "auth": { "token": of("git", "token") } })).await;
    assert_eq!(default.as_ref(), Ok(&first));
    // A commit id is fetched once.
    let pinned = json!({ "url": url, "ref": first, "auth": { "token": of("git", "token") } });
    site.poll_of_workspace(pinned.clone()).await.unwrap();
    web.requests();
    assert_eq!(site.poll_of_workspace(pinned).await, Ok(first));
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
    // openssl, an independent implementation, accepts the signature.
    let files = ["signed", "signature"].map(|name| site.root().join(name));
    std::fs::write(&files[0], format!("{}.{}", parts[0], parts[1])).unwrap();
    std::fs::write(&files[1], part(2)).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-prverify"]).arg(&key).arg("-signature").arg(&files[1]).arg(&files[0]);
    let verified = openssl.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&verified.stdout).trim(), "Verified OK");
    for (installation, key, words) in [
        ("unknown", "key", "has no installation spec.gitAuth.githubApp.installationID"),
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
async fn local_hosts_and_clear_text_credentials_are_refused() {
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
        (format!("file://{}/shop.git", site.root().display()), "a local path", true),
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

#[tokio::test]
async fn silent_server_is_asked_once_in_two_minutes_for_all_repositories() {
    let site = Site::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(connection);
        }
    });
    let spec = |path: &str| json!({ "projectRepo": format!("http://{address}/{path}"), "branch": "main" });
    for (path, connections) in [("shop.git", 1), ("other.git", 1), ("other.git", 2)] {
        if connections == 2 {
            site.world.advance(SignedDuration::from_mins(2));
        }
        let (message, terminal) = site.refused(spec(path)).await;
        let words = "git server did not answer within 15s; none of its repositories is fetched for 2m; check the server and the port \
                     in spec.projectRepo";
        assert_eq!((&*message, terminal), (words, false));
        assert_eq!(asked.load(Ordering::SeqCst), connections, "{path}");
    }
    let (_, healthy) = site.web(&[]).await;
    site.fetched(json!({ "projectRepo": healthy, "branch": "main" })).await;
}

#[tokio::test]
async fn slow_fetch_limits_only_slow_fetches_of_its_server() {
    let site = Site::new();
    run(site.root(), &["clone", "--quiet", "--bare", "shop.git", "large.git"]);
    let slow = Some(("/large.git".to_owned(), Duration::from_secs(11)));
    let (_, address) = Web { root: site.root().into(), slow, ..Web::default() }.serve().await;
    let spec = |path: &str| json!({ "projectRepo": format!("http://{address}/{path}"), "branch": "main" });
    site.fetched(spec("large.git")).await;
    // The slow fetch took 11 s, in which this world's clock stood still.
    site.world.advance(SignedDuration::from_secs(11));
    site.fetched(spec("shop.git")).await;
    for _ in 0..2 {
        let outcome = site.poll(spec("large.git")).await;
        let words = "fetch took longer than 10s, the limit after a slow fetch from its git server; repository is not fetched; check the \
                     git server of spec.projectRepo, or use a smaller repository";
        let failure = outcome.failure.unwrap();
        assert_eq!((&*failure.message, failure.terminal), (words, false));
        // It had less time than others, so the rest does not start again.
        assert_eq!(outcome.failures, 1);
        site.world.advance(SignedDuration::from_secs(11));
    }
    // Twice as long as the slow fetch took.
    site.world.advance(SignedDuration::from_secs(10));
    site.fetched(spec("shop.git")).await;
    site.fetched(spec("large.git")).await;
}

#[tokio::test]
async fn git_server_beyond_its_share_is_fetched_later() {
    let site = Site::new();
    run(site.root(), &["clone", "--quiet", "--bare", "shop.git", "large.git"]);
    let slow = Some(("/large.git".to_owned(), Duration::from_secs(9)));
    let (web, address) = Web { root: site.root().into(), slow, ..Web::default() }.serve().await;
    let spec = |path: &str| json!({ "projectRepo": format!("http://{address}/{path}"), "branch": "main" });
    for _ in 0..2 {
        site.fetched(spec("shop.git")).await;
        site.fetched(spec("large.git")).await;
        site.world.advance(SignedDuration::from_secs(9));
    }
    web.requests();
    let last = site.poll(spec("shop.git")).await;
    assert_eq!(web.requests(), [""; 0]);
    assert_eq!(last.at, site.world.now() - SignedDuration::from_secs(9), "the request was answered");
    let (_, healthy) = site.web(&[]).await;
    site.fetched(json!({ "projectRepo": healthy, "branch": "main" })).await;
    site.world.advance(SignedDuration::from_secs(8));
    site.fetched(spec("shop.git")).await;
}
