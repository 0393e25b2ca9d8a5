//! The world outside the functions: tasks continue, S3 and ECS notify, and the sweep comes.

use driftless_api::{Stack, Update, finalizer, uid_of};
use driftless_contract::{
    Document as _, FailureReason, Hint, LaunchHint, Phase, RunMessage, RunResult, RunSpec, VERSION, Verdict, keys, to_json,
};
use driftless_testkit::{LiveTask, Message};
use kube::ResourceExt as _;

use super::{
    handlers::ROLE,
    objects::{get, get_object, key, list, put},
    state::{Progress, Scenario, State},
};
use crate::scenario::SYSTEM;

/// The next step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It reads its spec, and Pulumi starts.
    Begin,
    /// It reports success.
    Succeed,
    /// It reports a failure of Pulumi.
    Fail,
    /// It reports that it was stopped.
    Interrupt,
    /// It ends.
    End,
    /// It ends without a report.
    Kill,
}

impl State {
    /// Returns whether only the sweep or a user can cause the next event.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty() && self.turns().is_empty()
    }

    /// The steps that the live tasks can take.
    pub(super) fn turns(&self) -> Vec<(usize, Turn)> {
        let tasks = self.world.live_tasks();
        tasks
            .iter()
            .enumerate()
            .flat_map(|(position, task)| self.turns_of(task).iter().map(move |turn| (position, *turn)))
            .collect()
    }

    pub(super) fn turns_of(&self, task: &LiveTask) -> &'static [Turn] {
        match self.begun.iter().find(|(arn, _)| *arn == task.arn) {
            None if task.stopping => &[Turn::End],
            None if get(&self.world, &format!("{}in/spec", folder(&task.arn))).is_some() => &[Turn::Begin],
            None => &[],
            Some((_, Progress::Running { .. })) if task.stopping => &[Turn::Succeed, Turn::Interrupt, Turn::Kill],
            Some((_, Progress::Running { .. })) => &[Turn::Succeed],
            Some((_, Progress::Reported)) => &[Turn::End],
        }
    }

    pub(super) fn turn(&mut self, arn: &str, turn: Turn, scenario: &Scenario) {
        let now = self.world.now();
        let position = self.begun.iter().position(|(begun, _)| begun == arn);
        let uid = position.and_then(|position| match &self.begun[position].1 {
            Progress::Running { uid } => Some(uid.clone()),
            Progress::Reported => None,
        });
        let folder = folder(arn);
        let failed = |reason| Verdict::Failed { phase: Phase::Run, reason, message: "it fails".into() };
        let verdict = match turn {
            Turn::Begin => {
                put(&self.world, &format!("{folder}out/progress"), "{}".into());
                let spec = get(&self.world, &format!("{folder}in/spec")).unwrap_or_default();
                match RunSpec::parse(&spec) {
                    Err(error) => self.violate(Err(format!("model: {error}"))),
                    Ok(spec) => {
                        self.begun.push((arn.into(), Progress::Running { uid: spec.run.uid.clone() }));
                        let update = get_object::<Update>(&self.world, &spec.run.update);
                        let update = update.filter(|update| uid_of(update) == spec.run.uid);
                        let begun = self.ledger.begin(&spec, update.as_ref(), scenario.limits);
                        self.violate(begun);
                    }
                }
                None
            }
            Turn::Succeed => Some(Verdict::Succeeded {}),
            Turn::Fail => Some(failed(FailureReason::Unknown)),
            Turn::Interrupt => Some(failed(FailureReason::Interrupted)),
            Turn::End | Turn::Kill => {
                let is_told = self.world.live_tasks().iter().any(|task| task.arn == arn && task.stopping);
                if turn == Turn::Kill && !is_told {
                    self.left.kills = self.left.kills.saturating_sub(1);
                }
                if let Some(uid) = &uid {
                    self.ledger.end(uid, None);
                }
                self.begun.retain(|(begun, _)| begun != arn);
                self.world.end_task(arn, "it ends");
                None
            }
        };
        if let (Some(verdict), Some(uid), Some(position)) = (verdict, uid, position) {
            if turn == Turn::Fail {
                self.left.failures -= 1;
            }
            let succeeded = matches!(verdict, Verdict::Succeeded {});
            self.ledger.end(&uid, Some(succeeded));
            put(&self.world, &format!("{folder}out/result"), to_json(&RunResult::new(verdict, now, now)));
            self.begun[position].1 = Progress::Reported;
        }
        self.notify(scenario);
    }

    /// Sends the notifications of S3 and ECS.
    pub(super) fn notify(&mut self, scenario: &Scenario) {
        while let Some(message) = self.world.receive() {
            self.send(message, scenario);
        }
    }

    /// Sends the hints of a sweep for everything that is not at rest. Returns their number.
    pub(super) fn sweep(&mut self, scenario: &Scenario) -> usize {
        for update in list::<Update>(&self.world) {
            let key = key("auto.pulumi.com/v1alpha1", "Update", &update.namespace().unwrap_or_default(), &update.name_any());
            let hint = if scenario.reconciles {
                Message::Hint(Hint::new(key))
            } else {
                Message::Launch(LaunchHint { version: VERSION, update: key, hops: 0 })
            };
            // The launcher handles those that no Stack has to record, on behalf of the reconciler,
            // which releases the others itself.
            let is_kept = finalizer::is_on(&update) && (scenario.reconciles || update.stack(SYSTEM).is_none());
            if !update.is_complete() || is_kept {
                self.send(hint, scenario);
            }
        }
        for stack in list::<Stack>(&self.world) {
            let key = key("pulumi.com/v1", "Stack", &stack.namespace().unwrap_or_default(), &stack.name_any());
            self.send(Message::Hint(Hint::new(key)), scenario);
        }
        for task in self.world.live_tasks() {
            self.send(Message::Run(RunMessage::Live { task: task.arn }), scenario);
        }
        self.queue.len()
    }
}

fn folder(arn: &str) -> String {
    keys::task(ROLE, arn).to_string()
}
