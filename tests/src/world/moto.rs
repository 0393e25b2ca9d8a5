//! S3, SQS and STS: moto, an existing emulator.

use std::{fs, net::Ipv4Addr};

use anyhow::Result;

use super::{
    dirs::Dirs,
    network::free_port,
    process::{Supervisor, command},
    ready,
};

/// A running moto server. Its content is in memory.
pub struct Moto {
    /// The URL of every AWS API, without a trailing slash.
    pub endpoint: String,
}

impl Moto {
    /// Starts it, empty.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor) -> Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?);
        let python = fs::canonicalize(dirs.tool("moto_server")?)?.with_file_name("python3");
        let mut moto = command(dirs, python);
        moto.args(["-c", include_str!("moto.py"), "--host", "127.0.0.1", "--port", &address.1.to_string()]);
        supervisor.start(dirs, "moto", moto)?;
        ready::until("moto answers", ready::START, || ready::answers(address, "/moto-api/")).await?;
        Ok(Self { endpoint: format!("http://127.0.0.1:{}", address.1) })
    }
}
