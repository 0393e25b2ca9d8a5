//! Waits for a part to be ready, by polling with a deadline.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

/// The time limit of a part's start. The slowest needs 5 s on two idle cores.
pub const START: Duration = Duration::from_secs(90);

const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_secs(5);

/// Calls `look` until it succeeds. After `limit` the error is `look`'s last one.
///
/// A call that takes longer than 5 s counts as failed.
pub async fn until<T, F: Future<Output = Result<T>>>(what: &str, limit: Duration, look: impl FnMut() -> F) -> Result<T> {
    until_every(BETWEEN_LOOKS, what, limit, look).await
}

/// The same with this pause between calls: short if success comes soon, long if calls are
/// expensive.
pub async fn until_every<T, F: Future<Output = Result<T>>>(
    pause: Duration,
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> F,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let error = match timeout(LOOK, look()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(elapsed) => elapsed.into(),
        };
        if Instant::now() >= deadline {
            return Err(error).with_context(|| format!("{what}: not seen within {} s", limit.as_secs()));
        }
        sleep(pause).await;
    }
}

/// Succeeds if a server listens.
pub async fn listens(address: (Ipv4Addr, u16)) -> Result<()> {
    TcpStream::connect(address).await.with_context(|| format!("connecting to {}:{}", address.0, address.1))?;
    Ok(())
}

/// Succeeds if `GET path` is answered with 200.
pub async fn answers(address: (Ipv4Addr, u16), path: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {}:{}", address.0, address.1))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", address.0).as_bytes()).await?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer).await?;
    match answer.split_whitespace().nth(1) {
        Some("200") => Ok(()),
        _ => bail!("GET {path} at port {}: {}", address.1, answer.lines().next().unwrap_or("no answer")),
    }
}
