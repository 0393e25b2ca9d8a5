//! Git's smart protocol over SSH, without an ssh program.

use std::{
    borrow::Cow,
    io::{self, BufReader, Read, Write},
    net::SocketAddr,
    sync::Arc,
};

use gix_transport::{
    Protocol,
    client::{
        blocking_io::Transport,
        git::{ConnectMode, blocking_io::Connection},
    },
};
use russh::{
    Channel, Preferred, client,
    keys::{
        Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate,
        known_hosts::known_host_keys_path,
    },
};
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf},
    net::TcpStream,
};

use super::{GitError, bounds::Bounds, key};

/// A private key, its passphrase, and the lines of the accepted host keys.
pub(super) struct Key {
    pub pem: SecretString,
    pub passphrase: Option<SecretString>,
    pub known_hosts: String,
    pub source_name: String,
}

/// The location of a repository on an SSH server.
pub(super) struct Server {
    pub user: String,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub addresses: Vec<SocketAddr>,
}

/// Connects, authenticates, and starts git on the server.
pub(super) async fn connect(server: &Server, key: &Key, bounds: &Bounds) -> Result<Box<dyn Transport + Send>, GitError> {
    let private = private_key(key, bounds).await?;
    let known = known_keys(server, &key.known_hosts)?;
    let mut config = client::Config::default();
    if !known.is_empty() {
        // A server has keys of several kinds and presents one: only kinds with a known key are
        // requested.
        let is_known = |kind: &&Algorithm| {
            known.iter().any(|key| key.algorithm() == **kind || (key.algorithm().is_rsa() && (*kind).clone().is_rsa()))
        };
        let kinds: Vec<_> = Preferred::DEFAULT.key.iter().filter(is_known).cloned().collect();
        config.preferred = Preferred { key: Cow::Owned(kinds), ..Preferred::DEFAULT };
    }
    let host = Host { name: format!("{}:{}", server.host, server.port), known, bounds: bounds.clone() };
    let failed = |error: russh::Error| bounds.reason(unreachable(&error));
    let connected = async {
        let stream = TcpStream::connect(&server.addresses[..]).await.map_err(|error| unreachable(&error))?;
        client::connect_stream(Arc::new(config), stream, host).await.map_err(failed)
    };
    let mut session = bounds.first_answer(connected).await??;
    let hash = if private.algorithm().is_rsa() {
        // A server that does not state it supports SHA-2; the exceptions are too old to be accepted
        // with SHA-1.
        session.best_supported_rsa_hash().await.map_err(failed)?.flatten().or(Some(HashAlg::Sha256))
    } else {
        None
    };
    let private = PrivateKeyWithHashAlg::new(Arc::new(private), hash);
    if !session.authenticate_publickey(&server.user, private).await.map_err(failed)?.success() {
        return Err(GitError::Denied { source_name: key.source_name.clone() });
    }
    let channel = session.channel_open_session().await.map_err(failed)?;
    // A server may ignore it, and then uses an older version of the protocol.
    channel.set_env(false, "GIT_PROTOCOL", "version=2").await.map_err(failed)?;
    channel.exec(true, format!("git-upload-pack {}", quoted(&server.path))).await.map_err(failed)?;
    Ok(transport(session, channel, &server.path, bounds))
}

fn transport(
    session: client::Handle<Host>,
    channel: Channel<client::Msg>,
    path: &str,
    bounds: &Bounds,
) -> Box<dyn Transport + Send> {
    let (read, write) = tokio::io::split(channel.into_stream());
    let incoming = BufReader::new(Incoming { read, bounds: bounds.clone(), _session: session });
    let outgoing = Outgoing { write, bounds: bounds.clone() };
    let host = None::<(&str, Option<u16>)>;
    Box::new(Connection::new(incoming, outgoing, Protocol::V2, path, host, ConnectMode::Process, false))
}

async fn private_key(key: &Key, bounds: &Bounds) -> Result<PrivateKey, GitError> {
    let (pem, passphrase) = (key.pem.clone(), key.passphrase.clone());
    let open = move || key::open(pem.expose_secret(), passphrase.as_ref().map(ExposeSecret::expose_secret));
    let opened = bounds.within(tokio::task::spawn_blocking(open)).await?;
    let opened = opened.unwrap_or_else(|_| Err("cannot be opened; use an Ed25519 key".into()));
    opened.map_err(|why| GitError::Credential { source_name: key.source_name.clone(), why })
}

/// The accepted host keys of a server. The library reads them from a file.
fn known_keys(server: &Server, lines: &str) -> Result<Vec<PublicKey>, GitError> {
    let mut file = tempfile::NamedTempFile::new().map_err(GitError::Scratch)?;
    // The library accepts only single spaces between words.
    let lines: Vec<_> = lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    file.write_all(lines.join("\n").as_bytes()).map_err(GitError::Scratch)?;
    let wrong = |_| GitError::KnownHosts { host: server.host.clone() };
    let known = known_host_keys_path(&server.host, server.port, file.path()).map_err(wrong)?;
    Ok(known.into_iter().map(|(_, key)| key).collect())
}

/// Quotes a word for a shell on the server.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''").replace('!', r"'\!'"))
}

fn unreachable(error: &dyn std::fmt::Display) -> GitError {
    GitError::Unreachable { who: "the SSH server", why: error.to_string() }
}

struct Host {
    name: String,
    known: Vec<PublicKey>,
    bounds: Bounds,
}

impl client::Handler for Host {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let shown = shown.public_key();
        let is_known = self.known.iter().any(|known| known.key_data() == shown.key_data());
        if !is_known {
            let fingerprint = shown.fingerprint(HashAlg::Sha256).to_string();
            self.bounds.stop(GitError::HostKey { host: self.name.clone(), fingerprint });
        }
        Ok(is_known)
    }
}

type Stream = russh::ChannelStream<client::Msg>;

struct Incoming {
    read: ReadHalf<Stream>,
    bounds: Bounds,
    /// Kept because the connection ends when it is dropped.
    _session: client::Handle<Host>,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bounds.wait(self.read.read(buffer))??;
        self.bounds.count(read)?;
        Ok(read)
    }
}

struct Outgoing {
    write: WriteHalf<Stream>,
    bounds: Bounds,
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bounds.wait(self.write.write(bytes))?
    }

    fn flush(&mut self) -> io::Result<()> {
        self.bounds.wait(self.write.flush())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_quoted_for_the_shell() {
        assert_eq!(quoted("/a b/c.git"), "'/a b/c.git'");
        assert_eq!(quoted("a'; rm -rf ~; '!"), r"'a'\''; rm -rf ~; '\'''\!''");
    }
}
