//! The watch of one kind.

use std::{fmt::Debug, mem, pin::pin};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    runtime::{
        utils::Backoff as _,
        watcher::{self, DefaultBackoff, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::Mutex, time::sleep};

/// Lists and watches one kind. The watcher resumes, and lists again after a 410. After an error,
/// such as a kind that is not installed, it waits up to half a minute and continues, so it never
/// ends. `lists` is held while a kind is listed: with one page in memory at a time, more kinds of
/// large objects take no more memory.
pub(crate) async fn watch<K: Resource + Clone + Debug + DeserializeOwned + Send + 'static>(
    api: Api<K>,
    config: watcher::Config,
    kind: &str,
    lists: &Mutex<()>,
    mut changed: impl FnMut(Event<K>),
) {
    let mut backoff = DefaultBackoff::default();
    let (mut failing, mut listing) = (false, None);
    let mut events = pin!(watcher(api, config));
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                match event {
                    Event::Init => listing = Some(lists.lock().await),
                    Event::InitDone => drop(listing.take()),
                    Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => {}
                }
                // `Init` only announces a list: kube's own back-off would start again with each.
                if !matches!(event, Event::Init) {
                    backoff.reset();
                    if mem::take(&mut failing) {
                        tracing::info!(kind, "watch restored");
                    }
                }
                changed(event);
            }
            Err(error) => {
                drop(listing.take());
                if !mem::replace(&mut failing, true) {
                    tracing::warn!(kind, %error, "watch failed; retrying");
                }
                if let Some(pause) = backoff.next() {
                    sleep(pause).await;
                }
            }
        }
    }
}
