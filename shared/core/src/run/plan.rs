use jiff::{SignedDuration, Timestamp};

use super::{
    AbandonReason, Block, LaunchFacts, Need, Object, OwnerFacts, Question, RunFacts, Standing, TaskFacts, TaskFolderFacts,
    TaskResult, UpdateFacts, WaitReason,
};
use crate::{Cause, FailureReason, StopCode, TaskEnd, TaskLimits, backoff::start_backoff};

/// A Stack names its Update before it creates it, so a young Update may be named in a status that
/// this reconciliation did not read. An Update that its Stack does not name after this time was
/// created too late.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// ECS forgets a stopped task after an hour, and may not know a new one for moments. A task unknown
/// to ECS is gone if it is older than this.
const MISSING_IS_GONE: SignedDuration = SignedDuration::from_mins(10);
/// ECS lists a new task after moments.
const UNLISTED_SECONDS: u16 = 60;
/// The sweep hints an Update that is older than this once a minute.
const SWEPT_AFTER: SignedDuration = SignedDuration::from_mins(1);
/// An Update that waits is reconciled again after this time.
const WAIT_SECONDS: u16 = 15;

/// What to do for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunPlan {
    /// Nothing: the run is not Driftless's, or needs nothing.
    Leave,
    /// Start its task.
    Start,
    /// Report what it waits for.
    Wait {
        /// The reason.
        reason: WaitReason,
        /// The message of its condition.
        message: String,
        /// Requeue the Update after this many seconds; `None` leaves it to an event or the sweep.
        requeue: Option<u16>,
    },
    /// Supply the task that owns it.
    Supply {
        /// Fill the task's folder: the launch was interrupted before its end.
        fill: bool,
        /// Replace the task's tokens.
        renew: bool,
    },
    /// Ask again after this many seconds: the end of the task may be reported, and ECS does not
    /// list the task yet.
    AskAgain {
        /// The delay.
        seconds: u16,
    },
    /// Stop the task that owns it, for this reason.
    Stop(String),
    /// Close it, so that no task ever owns it.
    Abandon(AbandonReason),
    /// Record its outcome.
    Conclude(Ending),
    /// Publish the recorded outcome, and release what the run held.
    Publish,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No task ever owned it.
    Abandoned,
    /// Its task reported a result. `end` says why the task ended or is about to, if that matters.
    Reported {
        /// Empty if the result is sufficient.
        end: TaskEnd,
        /// The cause of its failure, if it failed.
        cause: Option<Cause>,
    },
    /// Its task ended without a result.
    Lost {
        /// Why the task ended.
        end: TaskEnd,
        /// The cause of that end.
        cause: Cause,
        /// It counts as a try: Pulumi may have started, or memory ended before its first process.
        began: bool,
    },
}

/// Decides what to do for a run. `Err` names the fact that the decision depends on next.
///
/// Only the bucket proves that a run has an owner or has ended: users can write the status of an
/// Update.
pub fn plan_run(facts: &RunFacts, now: Timestamp) -> Result<RunPlan, Need> {
    if facts.outcome()? {
        return Ok(RunPlan::Publish);
    }
    match (facts.owner()?, &facts.object) {
        (Some(OwnerFacts::Closed), _) => Ok(RunPlan::Conclude(Ending::Abandoned)),
        (Some(OwnerFacts::Task { since }), object) => owned(facts, object, since, now),
        (None, Object::Found(update)) => unowned(facts, update, now),
        (None, Object::Gone) => Ok(RunPlan::Abandon(AbandonReason::Deleted)),
        (None, Object::Unreadable) => Ok(RunPlan::Abandon(AbandonReason::UpdateUnreadable)),
    }
}

/// Decides what to do for a live task without a run: its launch lost it, or its run has ended and
/// is recorded. A new task gets its run within moments.
#[must_use]
pub fn plan_orphan(created: Timestamp, start_seconds: u32, now: Timestamp) -> RunPlan {
    let limits = TaskLimits { start_seconds, max_seconds: None };
    if limits.must_have_begun(now.duration_since(created)) { RunPlan::Stop("task owns no run".into()) } else { RunPlan::Leave }
}

fn owned(facts: &RunFacts, object: &Object, since: Timestamp, now: Timestamp) -> Result<RunPlan, Need> {
    let is_wanted = match object {
        Object::Found(update) => !update.deleting,
        Object::Unreadable => true,
        Object::Gone => false,
    };
    if !is_wanted && !facts.stopped {
        return Ok(RunPlan::Stop("Update was deleted".into()));
    }
    match facts.question {
        Question::Supply if !is_wanted => Ok(RunPlan::Leave),
        Question::Supply => supply(facts),
        Question::End => end(facts, since, now),
    }
}

/// What the task that owns a run needs.
fn supply(facts: &RunFacts) -> Result<RunPlan, Need> {
    if !facts.launch()?.is_some_and(|launch| launch.readable) {
        // A task without a spec ends by itself.
        return Ok(RunPlan::Leave);
    }
    let TaskFolderFacts { result, spec, old_tokens } = facts.task_folder()?;
    Ok(if result { RunPlan::Leave } else { RunPlan::Supply { fill: !spec, renew: spec && old_tokens } })
}

/// Decides whether a run that a task owns has ended.
fn end(facts: &RunFacts, since: Timestamp, now: Timestamp) -> Result<RunPlan, Need> {
    let age = now.duration_since(since);
    // Before anything that the task wrote is read: no report keeps an overdue task alive.
    if !facts.stopped {
        let max_seconds = facts.launch()?.and_then(|launch| launch.max_seconds);
        let limits = TaskLimits { start_seconds: facts.start_seconds, max_seconds };
        let began = !limits.must_have_begun(age) || facts.began()?;
        if let Some(why) = limits.overdue(age, began) {
            return Ok(RunPlan::Stop(why));
        }
    }
    let ending = match (facts.result()?, &facts.task) {
        // The result of an interrupted run has no cause, so ECS is asked.
        (Some(TaskResult { failure: Some(FailureReason::Interrupted) }), None) => return Err(Need::Task),
        (Some(TaskResult { failure }), task) => {
            let end = match task {
                Some(TaskFacts::Alive { end } | TaskFacts::Stopped { end }) => end.clone(),
                None | Some(TaskFacts::Missing) => TaskEnd::default(),
            };
            let cause = failure.map(|reason| end.cause_of(reason));
            Ending::Reported { end, cause }
        }
        (None, _) => match facts.task()? {
            TaskFacts::Stopped { end } => lost(facts, end.clone())?,
            TaskFacts::Missing if age > MISSING_IS_GONE => {
                lost(facts, TaskEnd { words: "ECS no longer lists the task".into(), ..TaskEnd::default() })?
            }
            // The event of its end may come before ECS lists it, and comes once.
            TaskFacts::Missing => return Ok(RunPlan::AskAgain { seconds: UNLISTED_SECONDS }),
            TaskFacts::Alive { .. } => return Ok(RunPlan::Leave),
        },
    };
    Ok(RunPlan::Conclude(ending))
}

fn lost(facts: &RunFacts, end: TaskEnd) -> Result<Ending, Need> {
    let began = end.code != Some(StopCode::FailedToStart) && facts.began()?;
    let cause = end.cause(began);
    Ok(Ending::Lost { began: began || cause == Cause::OutOfMemory, end, cause })
}

/// Decides for a run without an owner and an outcome.
fn unowned(facts: &RunFacts, update: &UpdateFacts, now: Timestamp) -> Result<RunPlan, Need> {
    let abandon = |reason| Ok(RunPlan::Abandon(reason));
    // Another operator's run, which has ended.
    if update.is_complete() && !update.ours && facts.launch()?.is_none() {
        return Ok(RunPlan::Leave);
    }
    if !facts.watched()? {
        // No run starts here. The claim and slot of an interrupted launch are released.
        return if facts.launch()?.is_some() { abandon(AbandonReason::Unwatched) } else { Ok(RunPlan::Leave) };
    }
    let standing = facts.standing()?;
    let is_foreign = standing == Standing::Foreign;
    // A finished Update whose documents have expired.
    if is_foreign && update.is_complete() && !update.finalizer {
        return Ok(RunPlan::Leave);
    }
    if update.deleting {
        return abandon(AbandonReason::Deleted);
    }
    if update.is_inherited() {
        return abandon(AbandonReason::Inherited);
    }
    if is_foreign && update.age > ABANDONED_AFTER {
        return abandon(AbandonReason::Superseded);
    }
    match standing {
        Standing::Foreign => Ok(RunPlan::Leave),
        Standing::Suspended if facts.holds()? => abandon(AbandonReason::Suspended),
        Standing::Suspended => Ok(RunPlan::Wait {
            reason: WaitReason::StackSuspended,
            message: "Stack is suspended; remove driftless.dev/suspend and spec.driftless.suspend to start the run".into(),
            requeue: None,
        }),
        // It would keep others from its Pulumi stack or slot, and the sweep would hint it each
        // minute until the window opens.
        Standing::OutsideWindow => abandon(AbandonReason::OutsideWindow),
        // The Stack decides anew, and makes a plan.
        Standing::Unapproved => abandon(AbandonReason::Unapproved),
        Standing::Current | Standing::Outdated => start(facts, update, standing == Standing::Outdated, now),
    }
}

/// Decides for a run that may start.
fn start(facts: &RunFacts, update: &UpdateFacts, is_outdated: bool, now: Timestamp) -> Result<RunPlan, Need> {
    let launch = facts.launch()?;
    match launch {
        Some(LaunchFacts { refused_since: Some(_), .. }) if is_outdated => return Ok(RunPlan::Abandon(AbandonReason::Outdated)),
        Some(LaunchFacts { readable: false, .. }) => return Ok(RunPlan::Abandon(AbandonReason::RecordUnreadable)),
        _ => {}
    }
    let (reason, message) = match facts.block.clone() {
        None => return Ok(RunPlan::Start),
        // As in PKO: its outcome states what is wrong, and the user creates another Update.
        Some(Block::Invalid(why)) if !update.of_stack => return Ok(RunPlan::Abandon(AbandonReason::Invalid(why))),
        // An edit of the Stack ends this wait.
        Some(Block::Invalid(why)) => (WaitReason::SpecInvalid, why),
        Some(Block::OtherProject) => return Ok(RunPlan::Abandon(AbandonReason::OtherProject)),
        Some(Block::Outdated) => return Ok(RunPlan::Abandon(AbandonReason::Outdated)),
        // Release them, so that other runs need not wait until this run's inputs exist again.
        Some(Block::Wait { message, is_of_inputs: true, .. }) if facts.holds()? => {
            return Ok(RunPlan::Abandon(AbandonReason::InputsGone(message)));
        }
        Some(Block::Wait { reason, message, .. }) => (reason, message),
    };
    if is_outdated {
        return Ok(RunPlan::Abandon(AbandonReason::Outdated));
    }
    let requeue = requeue(reason, launch, update, now);
    let message = match (reason, requeue) {
        (WaitReason::SpecInvalid, _) => message,
        (WaitReason::TaskNotStarted | WaitReason::TaskRefused, Some(seconds)) => format!("{message}; next try in {seconds}s"),
        _ => format!("{message}; next try within 1m"),
    };
    Ok(RunPlan::Wait { reason, message, requeue })
}

/// The seconds after which a waiting Update is reconciled again; `None` leaves that to an event or
/// the sweep.
fn requeue(reason: WaitReason, launch: Option<LaunchFacts>, update: &UpdateFacts, now: Timestamp) -> Option<u16> {
    // The event that ends the wait may come before the status shows the wait.
    let begins = update.waiting != Some(reason);
    match (reason, launch) {
        // Only a change of the Update or its Stack ends this wait, and both send an event.
        (WaitReason::SpecInvalid, _) => None,
        // The launch record has the time of the next call of ECS.
        (WaitReason::TaskNotStarted | WaitReason::TaskRefused, Some(launch)) => {
            u16::try_from(start_backoff(launch.refused_since.unwrap_or(now), now).as_secs()).ok()
        }
        // The recorder wakes the next Updates when a run releases its claim or slot.
        (WaitReason::StackClaimed | WaitReason::ConcurrencyLimit, _) => begins.then_some(WAIT_SECONDS),
        _ => (begins || update.age < SWEPT_AFTER).then_some(WAIT_SECONDS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_without_a_run_is_stopped_once_it_must_have_one() {
        let created = Timestamp::UNIX_EPOCH;
        for (age, expected) in [(300, RunPlan::Leave), (301, RunPlan::Stop("task owns no run".into()))] {
            assert_eq!(plan_orphan(created, 300, created + SignedDuration::from_secs(age)), expected, "{age}");
        }
    }

    #[test]
    fn waiting_update_is_requeued_unless_an_event_or_the_sweep_ends_its_wait() {
        let now = Timestamp::UNIX_EPOCH;
        let [young, old] = [30, 90].map(SignedDuration::from_secs);
        let record = |refused_since| Some(LaunchFacts { readable: true, refused_since, max_seconds: None });
        let waiting = |reason, age| UpdateFacts { waiting: Some(reason), age, ..UpdateFacts::default() };
        for (reason, launch, age, expected) in [
            (WaitReason::SpecInvalid, None, young, None),
            (WaitReason::StackClaimed, None, young, None),
            (WaitReason::ConcurrencyLimit, None, young, None),
            (WaitReason::InputNotFound, None, young, Some(15)),
            (WaitReason::InputNotFound, None, old, None),
            (WaitReason::TaskNotStarted, record(Some(now)), old, Some(15)),
            (WaitReason::TaskNotStarted, record(None), old, Some(15)),
            (WaitReason::TaskRefused, record(Some(now - SignedDuration::from_mins(4))), old, Some(60)),
            (WaitReason::TaskRefused, None, young, Some(15)),
            (WaitReason::TaskRefused, None, old, None),
        ] {
            assert_eq!(requeue(reason, launch, &waiting(reason, age), now), expected, "{reason} {launch:?} {age}");
        }
        // The first reconciliation of the wait.
        for reason in [WaitReason::StackClaimed, WaitReason::InputNotFound] {
            assert_eq!(requeue(reason, None, &waiting(WaitReason::TreeNotFound, old), now), Some(15), "{reason}");
        }
    }
}
