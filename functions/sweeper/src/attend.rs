//! Hints live tasks, whatever their Updates say: a tenant may mark an Update complete, or delete
//! it.

use driftless_aws::{Queues, TaskPage, Tasks};
use driftless_contract::{TaskHint, VERSION};
use driftless_core::its_turn;
use futures::future::try_join_all;
use jiff::Timestamp;

use crate::{BATCH, Error, Settings};

/// Hints every live task once in the period. Returns the number of hints.
pub async fn attend<Q: Queues, T: Tasks>(tasks: &T, queues: &Q, settings: Settings<'_>, now: Timestamp) -> Result<usize, Error> {
    let (mut sent, mut from) = (0, None);
    loop {
        let TaskPage { tasks: live, next } = tasks.live(from.as_deref()).await?;
        let due = live.into_iter().filter(|arn| its_turn(arn, settings.period_seconds, settings.tick_seconds, 1, now));
        let hints: Vec<_> = due.map(|task| TaskHint { version: VERSION, task }).collect();
        for hints in hints.chunks(BATCH) {
            try_join_all(hints.iter().map(|hint| queues.task(hint))).await?;
        }
        sent += hints.len();
        if next.is_none() {
            return Ok(sent);
        }
        from = next;
    }
}

#[cfg(test)]
mod tests {
    use driftless_contract::RunMessage;
    use driftless_testkit::{Faults, Message, World};
    use jiff::SignedDuration;

    use super::*;
    use crate::tests::SETTINGS;

    #[test]
    fn every_live_task_is_hinted_once_in_the_period() {
        let world = World::new(0, Faults::NONE);
        let mut arns: Vec<_> = (0..250).map(|number| world.start_task(&format!("uid-{number}"))).collect();
        world.end_task(&arns.remove(0), "done");
        let before = world.sent().len();
        for _ in 0..SETTINGS.period_seconds / SETTINGS.tick_seconds {
            world.drive(attend(&world, &world, SETTINGS, world.now())).unwrap().unwrap();
            world.advance(SignedDuration::from_secs(SETTINGS.tick_seconds));
        }
        let hinted = world.sent().into_iter().skip(before).map(|message| match message {
            Message::Run(RunMessage::Live { task: arn }) => arn,
            other => panic!("{other:?}"),
        });
        let mut hinted: Vec<_> = hinted.collect();
        hinted.sort();
        arns.sort();
        assert_eq!(hinted, arns);
    }
}
