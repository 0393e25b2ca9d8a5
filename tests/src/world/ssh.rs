//! An ssh server that does nothing but git: OpenSSH's, as this very user, with keys of its own.

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

/// What opens the key `ssh-key-locked`.
const PASSPHRASE: &str = "canary-ssh-passphrase-40be";

/// A running ssh server.
pub struct Ssh {
    /// What a path on this machine is added to: `ssh://<user>@127.0.0.1:<port>`.
    pub url: String,
    /// The line of a `known_hosts` file.
    pub known_hosts: String,
}

impl Ssh {
    /// Starts it. Who has one of the keys that it writes into `credentials` may use git: `ssh-key`, and `ssh-key-locked`, which
    /// `ssh-passphrase` opens.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor, credentials: &Path) -> Result<Self> {
        let files = dirs.create("ssh")?;
        let (host_key, plain, locked) = (files.join("host"), credentials.join("ssh-key"), credentials.join("ssh-key-locked"));
        tokio::try_join!(key(dirs, &host_key, ""), key(dirs, &plain, ""), key(dirs, &locked, PASSPHRASE))?;
        write_private(&credentials.join("ssh-passphrase"), PASSPHRASE)?;
        fs::write(files.join("authorized_keys"), format!("{}{}", public(&plain)?, public(&locked)?))?;
        // As root it confines itself to a folder, which an init system makes elsewhere.
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

/// Makes a key pair; the fewest rounds, as nobody is to be kept out.
async fn key(dirs: &Dirs, path: &Path, passphrase: &str) -> Result<()> {
    let mut keygen = command(dirs, "ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-a", "1", "-C", "world", "-N", passphrase, "-f"]).arg(path);
    output(keygen).await.map(drop)
}

/// Kind and key, with the line's end.
fn public(key: &Path) -> Result<String> {
    let path = key.with_extension("pub");
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}
