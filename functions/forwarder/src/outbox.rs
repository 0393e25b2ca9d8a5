use std::{cell::RefCell, collections::BTreeSet, convert::Infallible, fmt, mem, time::Duration};

use driftless_aws::BATCH;
use driftless_contract::{Hint, ObjectKey};
use tokio::{sync::Notify, time::sleep};

/// Changes of one object within this time lead to one hint.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two tries while the queue is down.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The objects whose hints are not sent yet: at most one entry per object, however long the queue
/// is down.
#[derive(Default)]
pub(crate) struct Outbox {
    objects: RefCell<BTreeSet<ObjectKey>>,
    filled: Notify,
}

impl Outbox {
    /// Queues hints for these objects.
    pub(crate) fn put(&self, objects: impl IntoIterator<Item = ObjectKey>) {
        self.objects.borrow_mut().extend(objects);
        if !self.objects.borrow().is_empty() {
            self.filled.notify_one();
        }
    }

    /// Sends the queued hints, without end. A hint that was not sent stays queued.
    pub(crate) async fn drain<E: fmt::Display>(&self, send: impl AsyncFn(&[Hint]) -> Result<Vec<usize>, E>) -> Infallible {
        let mut pause = PAUSE;
        loop {
            self.filled.notified().await;
            let hints: Vec<_> = mem::take(&mut *self.objects.borrow_mut()).into_iter().map(Hint::new).collect();
            let mut unsent = Vec::new();
            let mut rest = hints.as_slice();
            while !rest.is_empty() {
                let (batch, later) = rest.split_at(rest.len().min(BATCH));
                match send(batch).await {
                    Ok(refused) => {
                        unsent.extend(refused.into_iter().filter_map(|position| batch.get(position)));
                        rest = later;
                    }
                    Err(error) => {
                        tracing::warn!(hints = rest.len(), %error, "hints not sent; retrying");
                        unsent.extend(mem::take(&mut rest));
                    }
                }
            }
            tracing::debug!(hints = hints.len(), unsent = unsent.len(), "sent");
            pause = if unsent.is_empty() { PAUSE } else { (pause * 2).min(MAX_PAUSE) };
            self.put(unsent.into_iter().map(|hint| hint.object.clone()));
            sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    fn object(number: usize) -> ObjectKey {
        let text = String::from;
        ObjectKey {
            cluster: text("c"),
            api_version: text("pulumi.com/v1"),
            kind: text("Stack"),
            namespace: text("n"),
            name: number.to_string(),
        }
    }

    fn number(hint: &Hint) -> usize {
        hint.object.name.parse().unwrap()
    }

    /// Sends for a while. Returns what was sent, as (seconds, numbers).
    async fn drain(
        outbox: &Outbox,
        seconds: u64,
        answer: impl Fn(u64, &[Hint]) -> Result<Vec<usize>, &'static str>,
    ) -> Vec<(u64, Vec<usize>)> {
        let (begin, calls) = (Instant::now(), RefCell::new(Vec::new()));
        let send = async |hints: &[Hint]| {
            calls.borrow_mut().push((begin.elapsed().as_secs(), hints.iter().map(number).collect()));
            answer(begin.elapsed().as_secs(), hints)
        };
        assert!(timeout(Duration::from_secs(seconds), outbox.drain(send)).await.is_err());
        calls.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_changes_often_is_hinted_once_a_second() {
        let outbox = Outbox::default();
        outbox.put([object(1), object(1)]);
        let changes = async {
            for _ in 0..29 {
                sleep(Duration::from_millis(100)).await;
                outbox.put([object(1)]);
            }
        };
        let (sent, ()) = tokio::join!(drain(&outbox, 10, |_, _| Ok(vec![])), changes);
        assert_eq!(sent, [(0, vec![1]), (1, vec![1]), (2, vec![1]), (3, vec![1])]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_hints_go_in_batches_of_ten() {
        let outbox = Outbox::default();
        outbox.put((0..25).map(object));
        let sent = drain(&outbox, 5, |_, _| Ok(vec![])).await;
        assert_eq!(sent.iter().map(|(_, hints)| hints.len()).collect::<Vec<_>>(), [10, 10, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn unsent_hints_are_retried_with_back_off() {
        let outbox = Outbox::default();
        outbox.put([object(1), object(2)]);
        let sent = drain(&outbox, 60, |now, hints| match now {
            0..5 => Err("down"),
            _ if hints.len() == 2 => Ok(vec![1]),
            _ => Ok(vec![]),
        });
        assert_eq!(sent.await, [(0, vec![1, 2]), (2, vec![1, 2]), (6, vec![1, 2]), (14, vec![2])]);
    }
}
