use std::{
    future::Future,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use super::{GitError, times::ANSWER_TIME};

/// The limits of a fetch, and which of them stopped it first: gitoxide's errors say where it
/// stopped, but often not why. A clone shares the same limits.
#[doc(hidden)]
#[derive(Clone)]
pub struct Bounds(Arc<State>);

struct State {
    runtime: Handle,
    seconds: u64,
    deadline: Instant,
    limit: u64,
    received: AtomicU64,
    interrupt: AtomicBool,
    hidden: AtomicBool,
    stopped_by: Mutex<Option<GitError>>,
}

impl Bounds {
    /// At most `limit` bytes, and `time` from now. Requires a runtime.
    #[must_use]
    pub fn new(limit: u64, time: Duration) -> Self {
        Self(Arc::new(State {
            runtime: Handle::current(),
            seconds: time.as_secs(),
            deadline: Instant::now() + time,
            limit,
            received: AtomicU64::new(0),
            interrupt: AtomicBool::new(false),
            hidden: AtomicBool::new(false),
            stopped_by: Mutex::new(None),
        }))
    }

    /// Waits within the time limit.
    pub(super) async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, GitError> {
        let in_time = tokio::time::timeout_at(self.0.deadline, future).await;
        in_time.map_err(|_| {
            self.0.interrupt.store(true, Ordering::Relaxed);
            GitError::TooSlow { seconds: self.0.seconds }
        })
    }

    /// Waits for a server's first answer. Its error says that the server, and not one of its
    /// repositories, is slow.
    pub(super) async fn first_answer<T>(&self, future: impl Future<Output = T>) -> Result<T, GitError> {
        self.within(tokio::time::timeout(ANSWER_TIME, future)).await?.map_err(|_| GitError::Silent)
    }

    /// Waits for a server's first answer on a thread that may block.
    pub(super) fn wait_for_first_answer<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        self.0.runtime.block_on(self.first_answer(future)).map_err(|error| self.stop(error))
    }

    /// The same as [`Bounds::within`] on a thread that may block.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        self.0.runtime.block_on(self.within(future)).map_err(|error| self.stop(error))
    }

    /// Returns an error after the time limit, for work that does not wait.
    pub(super) fn check(&self) -> Result<(), GitError> {
        if Instant::now() < self.0.deadline { Ok(()) } else { Err(GitError::TooSlow { seconds: self.0.seconds }) }
    }

    /// Counts received bytes.
    pub(super) fn count(&self, bytes: usize) -> io::Result<()> {
        let received = self.0.received.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if received > self.0.limit { Err(self.stop(GitError::TooLarge { limit: self.0.limit })) } else { Ok(()) }
    }

    /// Records why the fetch stops, and returns the error that stops it.
    pub(super) fn stop(&self, error: GitError) -> io::Error {
        self.0.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        io::Error::other("stopped")
    }

    /// Why the fetch stopped, if a limit stopped it, else `otherwise`.
    pub(super) fn reason(&self, otherwise: GitError) -> GitError {
        self.0.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(otherwise)
    }

    /// Hides connection errors from the tenant, because the server is in a private network.
    pub(super) fn hide(&self) {
        self.0.hidden.store(true, Ordering::Relaxed);
    }

    /// Returns whether connection errors are hidden from the tenant.
    pub(super) fn is_hidden(&self) -> bool {
        self.0.hidden.load(Ordering::Relaxed)
    }

    /// Set after the time limit, for work that does not wait.
    pub(super) fn interrupt(&self) -> &AtomicBool {
        &self.0.interrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_and_bytes_are_bounded_and_the_first_reason_is_kept() {
        let bounds = Bounds::new(10, Duration::from_millis(1));
        assert!(bounds.count(10).is_ok());
        let blocking = bounds.clone();
        let stopped = tokio::task::spawn_blocking(move || blocking.wait(std::future::pending::<()>())).await.unwrap();
        assert!(stopped.is_err());
        assert!(bounds.interrupt().load(Ordering::Relaxed));
        assert!(bounds.count(1).is_err());
        assert!(matches!(bounds.reason(GitError::Pack), GitError::TooSlow { .. }));
    }
}
