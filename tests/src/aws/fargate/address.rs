//! Fargate's own addresses for tasks: ECS at 169.254.170.2, and S3 by its name in the Region, with
//! TLS.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Result;
use axum::serve::Listener;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::world::{dirs::Dirs, tls::Certificates};

/// The address of ECS in every task.
pub(super) const ECS: Ipv4Addr = Ipv4Addr::new(169, 254, 170, 2);

/// The files with which a task finds these addresses.
pub struct Files {
    /// In place of `/etc/hosts`, with the name of S3.
    pub(super) hosts: PathBuf,
    /// The CA of the certificate of S3.
    pub(super) authority: PathBuf,
}

/// The addresses of one world.
pub struct Own {
    /// The listener for the endpoint of ECS.
    pub ecs: TcpListener,
    /// The listener for S3.
    pub s3: Tls,
    /// See [`Files`].
    pub files: Files,
}

impl Own {
    /// Takes the addresses, if this machine (or network namespace) has that of ECS and no other
    /// world uses it. Nothing adds it to the machine, because a machine on AWS may have its own
    /// credentials there.
    pub async fn claim(dirs: &Dirs, region: &str) -> Result<Option<Self>> {
        let Ok(ecs) = TcpListener::bind((ECS, 80)).await else { return Ok(None) };
        let folder = dirs.create("fargate")?;
        let certificates = Certificates::create(dirs, &folder).await?;
        let [hosts, authority] = ["hosts", "authority"].map(|name| folder.join(name));
        fs::write(&hosts, format!("127.0.0.1 localhost\n{ECS} s3.{region}.amazonaws.com\n"))?;
        fs::write(&authority, &certificates.authority)?;
        let s3 = Tls { listener: TcpListener::bind((ECS, 443)).await?, acceptor: acceptor(&certificates)? };
        Ok(Some(Self { ecs, s3, files: Files { hosts, authority } }))
    }
}

fn acceptor(certificates: &Certificates) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(&certificates.certificate)?.collect::<Result<_, _>>()?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&certificates.key)?)?;
    Ok(Arc::new(config).into())
}

/// The head and the body of an answer are two writes. Without this, the second waits for the
/// caller's acknowledgement of the first, which takes 40 ms.
pub fn send_at_once(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::warn!(%error, "a connection stays slow");
    }
}

/// A listener for TLS.
pub struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            send_at_once(&stream);
            match self.acceptor.accept(stream).await {
                Ok(stream) => return (stream, address),
                Err(error) => tracing::warn!(%error, "a TLS handshake failed"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
