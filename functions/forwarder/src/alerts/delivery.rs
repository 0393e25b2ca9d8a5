use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::event::{FluxEvent, InvolvedObject};

/// The maximum number of waiting Events. Beyond that the oldest of the namespace with the most is
/// dropped.
const MOST: usize = 1000;
/// How long delivery of an Event is tried, from when the forwarder saw it.
const WITHIN: Duration = Duration::from_mins(10);
/// The first and the longest pause between two tries.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Why Flux did not accept an Event.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// Transient.
    Passing(String),
    /// Permanent.
    Refused(String),
}

/// The Events that are not delivered yet.
#[derive(Default)]
pub(crate) struct Delivery {
    waiting: RefCell<Waiting>,
    filled: Notify,
    dropped: Cell<u64>,
}

impl Delivery {
    /// Queues an Event for Flux.
    pub(crate) fn put(&self, event: FluxEvent) {
        if let Some(dropped) = self.waiting.borrow_mut().push(event) {
            self.lost(&dropped, "the queue is full");
        }
        self.filled.notify_one();
    }

    /// Posts the waiting Events one after another, without end.
    pub(crate) async fn drain(&self, post: impl AsyncFn(&FluxEvent) -> Result<(), Failed>) -> Infallible {
        loop {
            let next = self.waiting.borrow_mut().pop();
            match next {
                Some((since, event)) => {
                    if let Err(why) = until(since + WITHIN, &event, &post).await {
                        self.lost(&event, &why);
                    }
                }
                None => self.filled.notified().await,
            }
        }
    }

    fn lost(&self, event: &FluxEvent, why: &str) {
        self.dropped.set(self.dropped.get() + 1);
        let (InvolvedObject { namespace, name, .. }, dropped) = (&event.involved_object, self.dropped.get());
        tracing::warn!(stack = %format!("{namespace}/{name}"), reason = event.reason, why, dropped, "Event not delivered to \
             notification-controller");
    }
}

/// Events by namespace, the oldest first. The namespaces take turns, so that many Events of one
/// delay no other.
#[derive(Default)]
struct Waiting {
    events: BTreeMap<String, VecDeque<(Instant, FluxEvent)>>,
    /// Each namespace with Events, once.
    turns: VecDeque<String>,
}

impl Waiting {
    /// Adds an Event. Returns the one that is dropped for it, if there is no room.
    fn push(&mut self, event: FluxEvent) -> Option<FluxEvent> {
        let namespace = &event.involved_object.namespace;
        if !self.events.contains_key(namespace) {
            self.turns.push_back(namespace.clone());
        }
        self.events.entry(namespace.clone()).or_default().push_back((Instant::now(), event));
        if self.events.values().map(VecDeque::len).sum::<usize>() <= MOST {
            return None;
        }
        let most = self.events.iter().max_by_key(|(_, events)| events.len())?.0.clone();
        self.pop_of(&most).map(|(_, dropped)| dropped)
    }

    /// The next Event, and when it was seen.
    fn pop(&mut self) -> Option<(Instant, FluxEvent)> {
        let namespace = self.turns.pop_front()?;
        self.turns.push_back(namespace.clone());
        self.pop_of(&namespace)
    }

    fn pop_of(&mut self, namespace: &str) -> Option<(Instant, FluxEvent)> {
        let events = self.events.get_mut(namespace)?;
        let oldest = events.pop_front();
        if events.is_empty() {
            self.events.remove(namespace);
            self.turns.retain(|turn| turn != namespace);
        }
        oldest
    }
}

/// Retries until the deadline. Returns why the Event was not accepted.
async fn until(deadline: Instant, event: &FluxEvent, post: impl AsyncFn(&FluxEvent) -> Result<(), Failed>) -> Result<(), String> {
    let (mut pause, mut last) = (PAUSE, "it waited too long".to_owned());
    while Instant::now() < deadline {
        match post(event).await {
            Ok(()) => return Ok(()),
            Err(Failed::Refused(why)) => return Err(why),
            Err(Failed::Passing(why)) => last = why,
        }
        tracing::info!(why = last, "retrying the delivery of an Event to notification-controller");
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::alerts::event::{Event, flux};

    fn event(number: usize) -> FluxEvent {
        flux(&Event { reason: Some(number.to_string()), ..Event::default() })
    }

    /// Delivers for a while. Returns the posts, as (seconds, number).
    async fn drain(delivery: &Delivery, seconds: u64, answer: impl Fn(u64, usize) -> Result<(), Failed>) -> Vec<(u64, usize)> {
        let (begin, posts) = (Instant::now(), RefCell::new(Vec::new()));
        let post = async |event: &FluxEvent| {
            let (now, number) = (begin.elapsed().as_secs(), event.reason.parse().unwrap());
            posts.borrow_mut().push((now, number));
            answer(now, number)
        };
        assert!(timeout(Duration::from_secs(seconds), delivery.drain(post)).await.is_err());
        posts.into_inner()
    }

    fn down() -> Result<(), Failed> {
        Err(Failed::Passing("down".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_posted_once_and_in_order() {
        let delivery = Delivery::default();
        delivery.put(event(1));
        delivery.put(event(2));
        let later = async {
            sleep(Duration::from_secs(5)).await;
            delivery.put(event(3));
        };
        let (posts, ()) = tokio::join!(drain(&delivery, 60, |_, _| Ok(())), later);
        assert_eq!((posts, delivery.dropped.get()), (vec![(0, 1), (0, 2), (5, 3)], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn transient_error_is_retried_with_back_off_in_order() {
        let delivery = Delivery::default();
        delivery.put(event(1));
        delivery.put(event(2));
        let posts = drain(&delivery, 60, |now, _| if now < 7 { down() } else { Ok(()) }).await;
        assert_eq!((posts, delivery.dropped.get()), (vec![(0, 1), (1, 1), (3, 1), (7, 1), (7, 2)], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_event_is_dropped_immediately() {
        let delivery = Delivery::default();
        delivery.put(event(1));
        delivery.put(event(2));
        let refuse = |_, number| if number == 1 { Err(Failed::Refused("bad".into())) } else { Ok(()) };
        assert_eq!((drain(&delivery, 60, refuse).await, delivery.dropped.get()), (vec![(0, 1), (0, 2)], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_posted_later_than_ten_minutes_after_it_was_seen() {
        let delivery = Delivery::default();
        delivery.put(event(1));
        delivery.put(event(2));
        let later = async {
            sleep(Duration::from_mins(9)).await;
            delivery.put(event(3));
        };
        let outage = Duration::from_mins(11).as_secs();
        let (posts, ()) = tokio::join!(drain(&delivery, 2000, |now, _| if now < outage { down() } else { Ok(()) }), later);
        let (first, rest) = posts.split_at(posts.iter().position(|(_, number)| *number != 1).unwrap());
        assert_eq!(first.last().unwrap().0, 571, "the next would have been at 601: {first:?}");
        assert!(rest.iter().all(|(_, number)| *number == 3), "the second was too old when its turn came: {rest:?}");
        assert!(rest.last().unwrap().0 < outage + 30, "{rest:?}");
        assert_eq!(delivery.dropped.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_of_one_namespace_neither_delay_nor_drop_those_of_another() {
        let of = |namespace: &str, number| {
            let mut event = event(number);
            event.involved_object.namespace = namespace.to_owned();
            event
        };
        let delivery = Delivery::default();
        (1..=5).for_each(|number| delivery.put(of("quiet", number)));
        (0..2 * MOST).for_each(|number| delivery.put(of("flood", 10 + number)));
        let posts = drain(&delivery, 60, |_, _| Ok(())).await;
        assert_eq!((posts.len(), delivery.dropped.get()), (MOST, 1005));
        let places: Vec<_> = posts.iter().enumerate().filter(|(_, (_, number))| *number < 10).map(|(place, _)| place).collect();
        assert_eq!(places, [0, 2, 4, 6, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn full_queue_drops_the_oldest_event() {
        let delivery = Delivery::default();
        (0..MOST + 3).for_each(|number| delivery.put(event(number)));
        let posts = drain(&delivery, 60, |_, _| Ok(())).await;
        assert_eq!((posts.len(), posts[0], delivery.dropped.get()), (MOST, (0, 3), 3));
    }
}
