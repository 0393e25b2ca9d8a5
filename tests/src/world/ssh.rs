//! An ssh server that only runs git: OpenSSH's, as the present user, with its own keys.

use std::{
    fs::{self, DirBuilder},
    net::Ipv4Addr,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use anyhow::{Context, Result};

use super::{
    dirs::{Dirs, write_private},
    network::free_port,
    process::{Supervisor, command, output},
    ready,
};

/// The passphrase of the key `ssh-key-locked`.
const PASSPHRASE: &str = "canary-ssh-passphrase-40be";

/// A running ssh server.
pub struct Ssh {
    /// The prefix of a path on this machine: `ssh://<user>@127.0.0.1:<port>`.
    pub url: String,
    /// The line of a `known_hosts` file.
    pub known_hosts: String,
}

impl Ssh {
    /// Starts it. A holder of one of the keys that it writes into `credentials` may use git:
    /// `ssh-key`, and `ssh-key-locked` with its passphrase `ssh-passphrase`.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor, credentials: &Path) -> Result<Self> {
        let files = dirs.create("ssh")?;
        let (host_key, plain, locked) = (files.join("host"), credentials.join("ssh-key"), credentials.join("ssh-key-locked"));
        tokio::try_join!(key(dirs, &host_key, ""), key(dirs, &plain, ""), key(dirs, &locked, PASSPHRASE))?;
        write_private(&credentials.join("ssh-passphrase"), PASSPHRASE)?;
        fs::write(files.join("authorized_keys"), format!("{}{}", public(&plain)?, public(&locked)?))?;
        // As root it confines itself to a folder that otherwise an init system creates.
        if rustix::process::geteuid().is_root() {
            DirBuilder::new().recursive(true).mode(0o755).create("/run/sshd").context("creating /run/sshd")?;
        }
        let address = (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?);
        let config = files.join("sshd_config");
        fs::write(&config, configuration(&files, address.1))?;
        let mut sshd = command(dirs, dirs.tool("sshd")?);
        sshd.args(["-D", "-e", "-f"]).arg(&config);
        supervisor.start(dirs, "sshd", sshd)?;
        ready::until("the ssh server listens", ready::START, || ready::listens(address)).await?;

        let mut id = command(dirs, "id");
        id.arg("-un");
        Ok(Self {
            url: format!("ssh://{}@127.0.0.1:{}", output(id).await?.trim(), address.1),
            known_hosts: format!("[127.0.0.1]:{} {}", address.1, public(&host_key)?),
        })
    }
}

fn configuration(files: &Path, port: u16) -> String {
    let files = files.display();
    format!(
        r#"ListenAddress 127.0.0.1:{port}
HostKey {files}/host
AuthorizedKeysFile {files}/authorized_keys
PidFile none
UsePAM no
# The folder is in a clone that may be anybody's.
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
DisableForwarding yes
AcceptEnv GIT_PROTOCOL
ForceCommand exec git shell -c "$SSH_ORIGINAL_COMMAND"
"#
    )
}

/// Makes a key pair with the fewest rounds, because security does not matter here.
async fn key(dirs: &Dirs, path: &Path, passphrase: &str) -> Result<()> {
    let mut keygen = command(dirs, "ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-a", "1", "-C", "world", "-N", passphrase, "-f"]).arg(path);
    output(keygen).await.map(drop)
}

/// The kind and the key, with a line break.
fn public(key: &Path) -> Result<String> {
    let path = key.with_extension("pub");
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}
