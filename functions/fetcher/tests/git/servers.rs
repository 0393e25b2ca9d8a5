//! Git servers that run the git program, and a GitHub API.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path as UrlPath, Request, State},
    http::{HeaderMap, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use russh::{
    Channel, ChannelId,
    keys::{PrivateKey, PublicKey, load_secret_key},
    server::{self, Auth, ChannelOpenHandle, Msg, Session},
};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    process::Command,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, pki_types::pem::PemObject as _},
    server::TlsStream,
};

/// The behaviour of a web server, and its requests.
#[derive(Default)]
pub struct Web {
    pub root: PathBuf,
    /// Accepted logins, as `user:password`; any login if empty.
    pub accepts: Vec<String>,
    /// Redirected prefixes of paths.
    pub moved: Vec<(String, String)>,
    /// A repository whose packs are delayed, and the delay.
    pub slow: Option<(String, Duration)>,
    /// It supports only the first version of the protocol.
    pub old: bool,
    pub asked: Mutex<Vec<String>>,
}

impl Web {
    /// The requests since the last call: `info/refs`, `ls-refs`, `fetch`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub async fn serve(self) -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let web = Arc::new(self);
        let router = Router::new().fallback(answer).with_state(Arc::clone(&web));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (web, address)
    }

    /// The same with TLS, as `localhost`, and the certificate to trust.
    pub async fn serve_tls(self) -> (Arc<Self>, SocketAddr, String) {
        let certificate = self.root.join("certificate.pem");
        let key = self.root.join("key.pem");
        let made = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext"])
            .args(["subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![rustls::pki_types::CertificateDer::from_pem_file(&certificate).unwrap()],
                rustls::pki_types::PrivateKeyDer::from_pem_file(&key).unwrap(),
            )
            .unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let listener = Tls { tcp, acceptor: TlsAcceptor::from(Arc::new(tls)) };
        let web = Arc::new(self);
        let router = Router::new().fallback(answer).with_state(Arc::clone(&web));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (web, address, std::fs::read_to_string(certificate).unwrap())
    }
}

struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let Ok((stream, address)) = self.tcp.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Runs git's own CGI program.
async fn answer(State(web): State<Arc<Web>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let path = parts.uri.path().to_owned();
    let kind = match body.windows(8).any(|bytes| bytes == b"command=") {
        true if body.windows(15).any(|bytes| bytes == b"command=ls-refs") => "ls-refs",
        true => "fetch",
        false if path.ends_with("/info/refs") => "info/refs",
        false => "other",
    };
    web.asked.lock().unwrap().push(kind.to_owned());
    for (from, to) in &web.moved {
        if let Some(rest) = parts.uri.to_string().strip_prefix(from) {
            return (StatusCode::MOVED_PERMANENTLY, [(LOCATION, format!("{to}{rest}"))]).into_response();
        }
    }
    if !web.accepts.is_empty() && !web.accepts.contains(&basic(&parts.headers)) {
        // As a server might that shows users what they sent.
        let sent = parts.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        return (StatusCode::UNAUTHORIZED, format!("wrong: {sent:?} {}", basic(&parts.headers))).into_response();
    }
    if let Some((_, late)) = web.slow.as_ref().filter(|(slow, _)| kind == "fetch" && path.starts_with(slow)) {
        tokio::time::sleep(*late).await;
    }
    let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default();
    let mut git = Command::new("git")
        .args(["-c", "safe.directory=*", "http-backend"])
        .env("GIT_PROJECT_ROOT", &web.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("PATH_INFO", &path)
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("GIT_PROTOCOL", if web.old { "" } else { header("git-protocol") })
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    git.stdin.take().unwrap().write_all(&body).await.unwrap();
    let output = git.wait_with_output().await.unwrap().stdout;
    let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let mut response = Response::new(Bytes::copy_from_slice(&output[end + 4..]).into());
    for line in std::str::from_utf8(&output[..end]).unwrap().lines() {
        let (name, value) = line.split_once(": ").unwrap();
        match name {
            "Status" => *response.status_mut() = value[..3].parse().unwrap(),
            _ => drop(
                response
                    .headers_mut()
                    .insert(name.to_lowercase().parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap()),
            ),
        }
    }
    response
}

fn basic(headers: &HeaderMap) -> String {
    let pair = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Basic ")).unwrap_or_default();
    String::from_utf8(STANDARD.decode(pair).unwrap()).unwrap()
}

/// The part of the GitHub API that issues tokens of installation 42. It records the requests.
#[derive(Default)]
pub struct GitHub {
    pub jwts: Mutex<Vec<String>>,
}

impl GitHub {
    pub async fn serve(self) -> (Arc<Self>, SocketAddr) {
        async fn token(
            State(github): State<Arc<GitHub>>,
            UrlPath(installation): UrlPath<String>,
            headers: HeaderMap,
        ) -> (StatusCode, Json<Value>) {
            let jwt = headers["authorization"].to_str().unwrap().strip_prefix("Bearer ").unwrap().to_owned();
            github.jwts.lock().unwrap().push(jwt);
            match installation.as_str() {
                "42" => {
                    (StatusCode::CREATED, Json(json!({ "token": "canary-installation", "expires_at": "2030-01-01T00:00:00Z" })))
                }
                "401" => (StatusCode::UNAUTHORIZED, Json(json!({ "message": "canary" }))),
                _ => (StatusCode::NOT_FOUND, Json(json!({ "message": "canary" }))),
            }
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let github = Arc::new(self);
        let router = Router::new()
            .route("/api/v3/app/installations/{installation}/access_tokens", post(token))
            .with_state(Arc::clone(&github));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (github, address)
    }
}

/// Makes a key pair with ssh-keygen, again if the library cannot read it: one of 256 ECDSA keys.
pub fn ssh_keygen(path: &Path, kind: &str, passphrase: &str, more: &[&str]) {
    loop {
        let made = std::process::Command::new("ssh-keygen")
            .args(["-q", "-t", kind, "-N", passphrase, "-C", "test", "-f"])
            .arg(path)
            .args(more)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        if kind != "ecdsa" || load_secret_key(path, Some(passphrase).filter(|phrase| !phrase.is_empty())).is_ok() {
            return;
        }
        for path in [path.to_owned(), path.with_added_extension("pub")] {
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// An SSH server that runs commands in a shell, as OpenSSH does, for clients with one of the keys.
pub async fn ssh(host_keys: &[PathBuf], accepts: Vec<PublicKey>, root: &Path) -> SocketAddr {
    let keys: Vec<PrivateKey> = host_keys.iter().map(|path| load_secret_key(path, None).unwrap()).collect();
    let config = Arc::new(server::Config { keys, auth_rejection_time: std::time::Duration::ZERO, ..server::Config::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let root = root.to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let shell =
                Shell { accepts: accepts.clone(), root: root.clone(), channels: BTreeMap::new(), protocol: String::new() };
            if let Ok(session) = server::run_stream(Arc::clone(&config), stream, shell).await {
                tokio::spawn(session);
            }
        }
    });
    address
}

struct Shell {
    accepts: Vec<PublicKey>,
    root: PathBuf,
    channels: BTreeMap<ChannelId, Channel<Msg>>,
    protocol: String,
}

impl server::Handler for Shell {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, user: &str, key: server::VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        let known = self.accepts.iter().any(|known| known.key_data() == key.public_key.key_data());
        Ok(if known && user == "git" { Auth::Accept } else { Auth::reject() })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn env_request(&mut self, _: ChannelId, name: &str, value: &str, _: &mut Session) -> Result<(), russh::Error> {
        if name == "GIT_PROTOCOL" {
            value.clone_into(&mut self.protocol);
        }
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, command: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        let channel = self.channels.remove(&id).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", std::str::from_utf8(command).unwrap()])
            .current_dir(&self.root)
            .env("GIT_PROTOCOL", &self.protocol)
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "safe.directory")
            .env("GIT_CONFIG_VALUE_0", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        session.channel_success(id)?;
        let handle = session.handle();
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(channel.into_stream());
            let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            tokio::spawn(async move { tokio::io::copy(&mut read, &mut stdin).await });
            let _: std::io::Result<u64> = tokio::io::copy(&mut stdout, &mut write).await;
            let status = child.wait().await.map_or(1, |status| u32::from(!status.success()));
            let _: Result<(), ()> = handle.exit_status_request(id, status).await;
            let _: Result<(), ()> = handle.eof(id).await;
            let _: Result<(), ()> = handle.close(id).await;
        });
        Ok(())
    }
}
