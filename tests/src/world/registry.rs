//! An OCI registry: crane's. Its content is in memory.

use std::{fs, net::Ipv4Addr, path::PathBuf};

use anyhow::{Context, Result, ensure};
use driftless_testkit::hostile::Tar;

use super::{
    dirs::Dirs,
    network::free_port,
    process::{Supervisor, command},
    ready,
};

/// A registry without authentication.
pub struct Registry {
    /// Host and port: the artifact `a` is at `oci://<host>/a`.
    pub host: String,
    /// The path of `crane`.
    pub tools: PathBuf,
    /// The folder for temporary files.
    pub tmp: PathBuf,
}

impl Registry {
    /// Starts it, empty.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor) -> Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?);
        let host = format!("127.0.0.1:{}", address.1);
        let mut crane = command(dirs, dirs.tool("crane")?);
        crane.args(["registry", "serve", "--address", &host]);
        supervisor.start(dirs, "registry", crane)?;
        ready::until("the registry answers", ready::START, || ready::answers(address, "/v2/")).await?;
        Ok(Self { host, tools: dirs.tools().to_owned(), tmp: dirs.tmp() })
    }

    /// Pushes files (path and content) as an artifact of one layer, and returns its digest.
    pub async fn push(&self, name: &str, tag: &str, files: &[(&str, &str)]) -> Result<String> {
        let layer = self.tmp.join(format!("{name}.{tag}.tar.gz"));
        let archive = files.iter().fold(Tar::default(), |tar, (path, content)| tar.file(path, content.as_bytes()));
        fs::write(&layer, archive.gzip())?;
        let output = tokio::process::Command::new(self.tools.join("crane"))
            .args(["append", "--insecure", "--new_tag", &format!("{}/{name}:{tag}", self.host), "--new_layer"])
            .arg(&layer)
            .kill_on_drop(true)
            .output()
            .await?;
        ensure!(output.status.success(), "crane append: {}", String::from_utf8_lossy(&output.stderr));
        let pushed = String::from_utf8(output.stdout)?;
        let (_, digest) = pushed.trim().rsplit_once('@').with_context(|| pushed.clone())?;
        Ok(digest.to_owned())
    }
}
