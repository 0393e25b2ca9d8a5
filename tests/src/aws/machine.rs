//! The parts of the machine that AWS stands on: its clock, its random numbers, and its ports.

use std::net::Ipv4Addr;

use anyhow::Result;
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::world::dirs::Dirs;

pub(super) async fn listener() -> Result<TcpListener> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?)
}

pub(super) fn address(listener: &TcpListener) -> Result<String> {
    Ok(format!("http://{}", listener.local_addr()?))
}

/// The clock of this half of the world.
#[expect(clippy::disallowed_methods, reason = "this is the clock adapter")]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

/// The environment of a process whose wall clock is shifted by this many seconds, while its
/// monotonic clock is right. It only affects programs that read the time through libc: those in
/// Rust, and none in Go.
pub(super) fn wrong_clock(dirs: &Dirs, seconds: i64) -> Result<[(&'static str, String); 3]> {
    let library = dirs.tool("libfaketime.so.1")?.display().to_string();
    Ok([("LD_PRELOAD", library), ("FAKETIME", format!("{seconds:+}")), ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into())])
}

/// So many random bytes in hex.
pub(super) fn random_hex(bytes: usize) -> Result<String> {
    use std::io::Read as _;
    let mut buffer = vec![0; bytes];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut buffer)?;
    Ok(base16ct::lower::encode_string(&buffer))
}
