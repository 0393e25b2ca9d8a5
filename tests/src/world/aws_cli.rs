//! The AWS CLI without its slow start.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

use super::{
    dirs::Dirs,
    process::{Supervisor, command},
    ready,
};

/// A process that has imported the AWS CLI, and a program that runs a call in a fork of it.
#[derive(Clone)]
pub struct AwsCli {
    /// A replacement for `aws` with the same arguments, environment, streams and exit codes.
    pub program: PathBuf,
}

impl AwsCli {
    /// Starts it. `program` works while `supervisor` runs.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor) -> Result<Self> {
        let folder = dirs.create("aws-cli")?;
        let (socket, program) = (folder.join("socket"), folder.join("aws"));
        let python = fs::canonicalize(dirs.tool("aws")?)?.with_file_name("python3");
        let client = include_str!("aws_cli_client.py").replace("SOCKET", &format!("'{}'", socket.display()));
        fs::write(&program, format!("#!{} -IS\n{client}", python.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;

        let mut server = command(dirs, python);
        server.args(["-c", include_str!("aws_cli.py")]).arg(&socket);
        supervisor.start(dirs, "aws-cli", server)?;
        ready::until("the AWS CLI is imported", ready::START, async || {
            ensure!(socket.exists(), "it does not listen yet");
            Ok(())
        })
        .await?;
        Ok(Self { program })
    }

    /// Its folder, for a `PATH`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.program.parent().unwrap_or(&self.program)
    }
}
