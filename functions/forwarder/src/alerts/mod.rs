//! Sends every Event that Driftless publishes about a Stack to Flux's notification-controller,
//! once; the user's Alerts select from them. Events from before the start are not sent, and an
//! Event that cannot be delivered within ten minutes is dropped.

mod client;
mod delivery;
mod event;
mod seen;

use std::{convert::Infallible, future::pending};

pub use client::Flux;
use delivery::Delivery;
use driftless_contract::EVENT_REPORTER;
use event::Event;
use kube::{Api, Client, runtime::watcher};
use seen::Seen;
use tokio::sync::Mutex;

use crate::watch::watch;

/// Events per page of a list. Events of the core group have texts of any length: etcd stores at
/// most 1.5 MiB of each, in binary, and a control character takes six bytes in JSON.
const PAGE: u32 = 3;

/// Sends Events until it is dropped.
pub(crate) async fn deliver(client: Client, flux: &Flux, lists: &Mutex<()>) -> Infallible {
    let (mut seen, delivery) = (Seen::default(), Delivery::default());
    let ours =
        watcher::Config::default().page_size(PAGE).fields(&format!("reportingController={EVENT_REPORTER},regarding.kind=Stack"));
    let watching = watch(Api::<Event>::all(client), ours, "Event", lists, |change| {
        if let Some(event) = seen.unseen(change) {
            delivery.put(event::flux(&event));
        }
    });
    tokio::select! {
        never = delivery.drain(async |event: &_| flux.post(event).await) => never,
        () = watching => pending().await,
    }
}
