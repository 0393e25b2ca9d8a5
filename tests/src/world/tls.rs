//! Certificates: of a CA that only this world knows, and of a server on this machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{
    dirs::Dirs,
    process::{command, output},
};

const CONFIG: &str = "[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:*.eu-central-2.amazonaws.com, DNS:*.us-east-1.amazonaws.com
";

/// The certificate of a server, and the CA that its clients trust.
pub struct Certificates {
    /// The CA's certificate, as PEM.
    pub authority: String,
    /// The certificate of an unused CA, as PEM.
    pub other_authority: String,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Certificates {
    /// Creates both in `files`.
    pub async fn create(dirs: &Dirs, files: &Path) -> Result<Self> {
        fs::write(files.join("openssl.cnf"), CONFIG)?;
        let request = |name: &str, section: &str| {
            let mut openssl = command(dirs, "openssl");
            openssl.current_dir(files).args(["req", "-x509", "-config", "openssl.cnf", "-extensions", section]);
            openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365"]);
            openssl.args(["-subj", &format!("/CN={name}"), "-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")]);
            openssl
        };
        output(request("authority", "authority")).await?;
        output(request("other", "authority")).await?;
        let mut server = request("server", "server");
        server.args(["-CA", "authority.pem", "-CAkey", "authority.key"]);
        output(server).await?;
        let authority = fs::read_to_string(files.join("authority.pem"))?;
        let other_authority = fs::read_to_string(files.join("other.pem"))?;
        Ok(Self { authority, other_authority, certificate: files.join("server.pem"), key: files.join("server.key") })
    }
}
