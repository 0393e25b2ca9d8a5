use super::{Block, Ending, Object, OwnerFacts, RunFacts, RunPlan, Standing, TaskFacts};

/// The invariants that a plan for a run breaks, each with its number. Empty for a valid plan.
#[must_use]
pub fn run_violations(facts: &RunFacts, plan: &RunPlan) -> Vec<&'static str> {
    let has_no_outcome = facts.outcome == Some(false);
    let has_no_owner = has_no_outcome && facts.owner == Some(None);
    let has_task = has_no_outcome && matches!(facts.owner, Some(Some(OwnerFacts::Task { .. })));
    let is_found = |wanted: fn(&super::UpdateFacts) -> bool| matches!(&facts.object, Object::Found(update) if wanted(update));
    let may_start = is_found(|update| !update.deleting && !update.is_inherited())
        && facts.watched == Some(true)
        && matches!(facts.standing, Some(Standing::Current | Standing::Outdated));
    let result = facts.result.flatten();
    let rules: &[(bool, &str)] = match plan {
        RunPlan::Leave => &[],
        RunPlan::Start => &[
            (has_no_owner, "1: a run starts that has an owner or an outcome"),
            (may_start, "3: a run starts that its Stack does not name, or that Driftless does not own"),
            (facts.block.is_none(), "7: a blocked run starts again without a wait"),
        ],
        RunPlan::Wait { .. } => &[
            (has_no_owner, "1: a run waits that has an owner or an outcome"),
            (
                facts.holds != Some(true) || !matches!(facts.block, Some(Block::Wait { is_of_inputs: true, .. }) | None),
                "2: a run that cannot start keeps a claim or a slot that others wait for",
            ),
        ],
        RunPlan::Supply { .. } => &[
            (has_task, "1: a folder is filled for a task that owns no run, or whose run has ended"),
            (result.is_none(), "6: a task gets secrets after it reported its result"),
        ],
        RunPlan::AskAgain { .. } => {
            &[(has_task && result.is_none(), "7: a run without a task, or one that has reported its result, is asked for again")]
        }
        RunPlan::Stop(_) => &[(has_task && !facts.stopped, "5: a task is stopped that owns no run, or was stopped")],
        RunPlan::Abandon(_) => &[(has_no_owner, "1: a run is abandoned that has an owner or an outcome")],
        RunPlan::Conclude(Ending::Abandoned) => &[(
            has_no_outcome && facts.owner == Some(Some(OwnerFacts::Closed)),
            "5: a run counts as abandoned that is not closed",
        )],
        RunPlan::Conclude(Ending::Reported { .. }) => &[
            (has_task, "5: a result counts whose task owns no run, or whose outcome is recorded"),
            (result.is_some(), "5: a result counts that was not reported"),
        ],
        RunPlan::Conclude(Ending::Lost { .. }) => &[
            (has_task, "5: an end counts whose task owns no run, or whose outcome is recorded"),
            (result.is_none() && facts.result.is_some(), "5: a reported result is ignored"),
            (matches!(facts.task, Some(TaskFacts::Stopped { .. } | TaskFacts::Missing)), "1: a run ends while its task is alive"),
        ],
        RunPlan::Publish => &[(facts.outcome == Some(true), "5: an outcome is published that is not recorded")],
    };
    rules.iter().filter(|(holds, _)| !holds).map(|(_, rule)| *rule).collect()
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::{
        FailureReason, StopCode, TaskEnd,
        run::{
            AbandonReason, LaunchFacts, Need, Question, TaskFolderFacts, TaskResult, UpdateFacts, WaitReason, plan_run,
            plan_update,
        },
    };

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const BOOLS: [bool; 2] = [false, true];

    /// The answers of the bucket, the cluster and ECS: all that a caller can read.
    #[derive(Clone)]
    struct Answers(RunFacts);

    impl Answers {
        /// Reads each needed fact until there is a plan, as the functions do.
        fn plan(&self) -> (RunFacts, RunPlan) {
            let Self(all) = self;
            let RunFacts { object, question, block, stopped, start_seconds, .. } = all.clone();
            let mut facts = RunFacts { object, question, block, stopped, start_seconds, ..RunFacts::default() };
            for _ in 0..12 {
                match plan_run(&facts, NOW) {
                    Ok(plan) => return (facts, plan),
                    Err(need) => self.read(need, &mut facts),
                }
            }
            panic!("a fact is needed again that was read: {facts:?}")
        }

        fn read(&self, need: Need, facts: &mut RunFacts) {
            let Self(all) = self;
            match need {
                Need::Watched => facts.watched = all.watched,
                Need::Standing => facts.standing = all.standing,
                Need::Named => facts.named = all.named,
                Need::Outcome => facts.outcome = all.outcome,
                Need::Owner => facts.owner = all.owner,
                Need::Launch => facts.launch = all.launch,
                Need::Holds => facts.holds = all.holds,
                Need::TaskFolder => facts.task_folder = all.task_folder,
                Need::Task => facts.task.clone_from(&all.task),
                Need::Began => facts.began = all.began,
                Need::Result => facts.result = all.result,
            }
        }
    }

    /// Every Update, as far as a decision depends on it.
    fn updates() -> Vec<UpdateFacts> {
        let mut all = Vec::new();
        for bits in 0_u8..64 {
            let is = |bit: u8| bits & (1 << bit) != 0;
            for minutes in [0, 5, 11] {
                all.push(UpdateFacts {
                    age: SignedDuration::from_mins(minutes),
                    deleting: is(0),
                    finalizer: is(1),
                    of_stack: is(2),
                    snapshot: is(3),
                    ours: is(4),
                    complete_since: is(5).then_some(NOW - SignedDuration::from_mins(1)),
                    ttl: (minutes == 5).then_some(SignedDuration::from_secs(30)),
                    asks_for_log: false,
                    waiting: None,
                    task: false,
                });
            }
        }
        all
    }

    fn objects() -> Vec<Object> {
        updates().into_iter().map(Object::Found).chain([Object::Unreadable, Object::Gone]).collect()
    }

    /// Every state of a run without an outcome and an owner.
    fn unowned() -> Vec<Answers> {
        let mut all = Vec::new();
        let wait = |is_of_inputs| Block::Wait { reason: WaitReason::InputNotFound, message: "no Secret".into(), is_of_inputs };
        let blocks = [None, Some(wait(false)), Some(wait(true)), Some(Block::Invalid("bad".into())), Some(Block::OtherProject)];
        let record = |readable, refused| LaunchFacts { readable, refused_since: refused, max_seconds: None };
        let launches = [None, Some(record(true, None)), Some(record(true, Some(NOW))), Some(record(false, None))];
        let standings = [
            Standing::Current,
            Standing::Outdated,
            Standing::Suspended,
            Standing::OutsideWindow,
            Standing::Unapproved,
            Standing::Foreign,
        ];
        for object in objects() {
            for (standing, launch) in standings.into_iter().flat_map(|standing| launches.map(|launch| (standing, launch))) {
                for (watched, holds) in BOOLS.into_iter().flat_map(|watched| BOOLS.map(|holds| (watched, holds))) {
                    all.extend(blocks.iter().map(|block| {
                        Answers(RunFacts {
                            object: object.clone(),
                            watched: Some(watched),
                            standing: Some(standing),
                            outcome: Some(false),
                            owner: Some(None),
                            launch: Some(launch),
                            holds: Some(holds),
                            block: block.clone(),
                            ..RunFacts::default()
                        })
                    }));
                }
            }
        }
        all
    }

    /// Every state of a run without an outcome that a task owns.
    fn owned() -> Vec<Answers> {
        let mut all = Vec::new();
        let end = |code| TaskEnd { code, ..TaskEnd::default() };
        let codes = [None, Some(StopCode::FailedToStart), Some(StopCode::Spot), Some(StopCode::Requested)];
        let stopped = codes.map(|code| TaskFacts::Stopped { end: end(code) });
        let tasks: Vec<_> =
            stopped.into_iter().chain([TaskFacts::Alive { end: TaskEnd::default() }, TaskFacts::Missing]).collect();
        let failures = [None, Some(FailureReason::Unknown), Some(FailureReason::Interrupted)];
        let results = [None].into_iter().chain(failures.map(|failure| Some(TaskResult { failure }))).collect::<Vec<_>>();
        let launches = [None, Some(60), Some(6000)].map(|max_seconds| {
            max_seconds.map(|max_seconds| LaunchFacts { readable: true, refused_since: None, max_seconds: Some(max_seconds) })
        });
        let found = |deleting| Object::Found(UpdateFacts { deleting, ..UpdateFacts::default() });
        for object in [found(false), found(true), Object::Unreadable, Object::Gone] {
            for (question, minutes) in [Question::Supply, Question::End].into_iter().flat_map(|q| [1, 9, 11].map(|m| (q, m))) {
                for (result, launch) in results.iter().flat_map(|&result| launches.map(|launch| (result, launch))) {
                    for bits in 0_u8..16 {
                        let is = |bit: u8| bits & (1 << bit) != 0;
                        all.extend(tasks.iter().map(|task| {
                            Answers(RunFacts {
                                object: object.clone(),
                                question,
                                outcome: Some(false),
                                owner: Some(Some(OwnerFacts::Task { since: NOW - SignedDuration::from_mins(minutes) })),
                                launch: Some(launch),
                                task_folder: Some(TaskFolderFacts { result: result.is_some(), spec: is(0), old_tokens: is(1) }),
                                task: Some(task.clone()),
                                began: Some(is(2)),
                                result: Some(result),
                                stopped: is(3),
                                start_seconds: 300,
                                ..RunFacts::default()
                            })
                        }));
                    }
                }
            }
        }
        all
    }

    #[test]
    fn no_state_of_a_run_leads_to_a_plan_that_breaks_an_invariant() {
        let (unowned, owned) = (unowned(), owned());
        let states = unowned.len() + owned.len();
        let mut plans: Vec<std::mem::Discriminant<RunPlan>> = Vec::new();
        for answers in unowned.iter().chain(&owned) {
            let (facts, plan) = answers.plan();
            assert_eq!(run_violations(&facts, &plan), [""; 0], "{plan:?} of {facts:?}");
            // No fact that was not read would forbid the plan either.
            assert_eq!(run_violations(&answers.0, &plan), [""; 0], "{plan:?} of {:?}", answers.0);
            if !plans.contains(&std::mem::discriminant(&plan)) {
                plans.push(std::mem::discriminant(&plan));
            }
        }
        println!("{states} states of a run, {} kinds of plans", plans.len());
        // All but `Publish`, which requires an outcome.
        assert_eq!(plans.len(), 8);
    }

    #[test]
    fn recorded_outcome_is_always_published() {
        for answers in unowned().iter().chain(&owned()) {
            let (_, plan) = Answers(RunFacts { outcome: Some(true), ..answers.0.clone() }).plan();
            assert_eq!(plan, RunPlan::Publish);
        }
    }

    #[test]
    fn unwanted_run_ends_in_a_few_steps() {
        // Each plan changes the facts and so leads to another plan; the last plan leads to none.
        let stopped = TaskFacts::Stopped { end: TaskEnd::default() };
        let fresh = |answers: &&Answers| answers.0.object == Object::Gone && !answers.0.stopped;
        for answers in unowned().iter().chain(&owned()).filter(fresh) {
            let mut answers = answers.clone();
            answers.0.question = Question::End;
            let mut plans = Vec::new();
            for _ in 0..4 {
                let (_, plan) = answers.plan();
                match &plan {
                    RunPlan::Abandon(_) => answers.0.owner = Some(Some(OwnerFacts::Closed)),
                    RunPlan::Stop(_) => {
                        answers.0.stopped = true;
                        answers.0.task = Some(stopped.clone());
                    }
                    RunPlan::Conclude(_) => answers.0.outcome = Some(true),
                    RunPlan::Publish => break,
                    other => panic!("{other:?} of {:?}", answers.0),
                }
                plans.push(plan);
            }
            assert!(plans.len() <= 2 && answers.0.outcome == Some(true), "{plans:?}");
        }
    }

    #[test]
    fn plan_that_breaks_an_invariant_is_detected() {
        let abandon = RunPlan::Abandon(AbandonReason::Deleted);
        let lost = RunPlan::Conclude(Ending::Lost { end: TaskEnd::default(), cause: crate::Cause::Platform, began: false });
        let owner = |owner| RunFacts { outcome: Some(false), owner: Some(Some(owner)), ..RunFacts::default() };
        let task = || owner(OwnerFacts::Task { since: NOW });
        for (facts, plan, rule) in [
            (task(), RunPlan::Start, "1: a run starts"),
            (task(), abandon.clone(), "1: a run is abandoned"),
            (owner(OwnerFacts::Closed), RunPlan::Supply { fill: true, renew: false }, "1: a folder is filled"),
            (RunFacts { stopped: true, ..task() }, RunPlan::Stop("late".into()), "5: a task is stopped"),
            (
                RunFacts { result: Some(None), task: Some(TaskFacts::Alive { end: TaskEnd::default() }), ..task() },
                lost,
                "1: a run ends",
            ),
            (task(), RunPlan::Conclude(Ending::Abandoned), "5: a run counts as abandoned"),
            (owner(OwnerFacts::Closed), RunPlan::AskAgain { seconds: 60 }, "7: a run without a task"),
            (task(), RunPlan::Publish, "5: an outcome is published"),
        ] {
            let rules = run_violations(&facts, &plan);
            assert!(rules.iter().any(|found| found.starts_with(rule)), "{plan:?}: {rules:?}");
        }
    }

    #[test]
    fn live_run_is_launched_in_any_state_of_its_stack() {
        for update in updates().iter().filter(|update| !update.is_complete()) {
            let facts = RunFacts { watched: Some(true), ..RunFacts::default() };
            assert_eq!(plan_update(update, &facts, NOW), Ok(vec![crate::run::UpdateEffect::Launch]), "{update:?}");
        }
    }

    #[test]
    fn update_is_released_and_deleted_only_after_its_run() {
        use crate::run::UpdateEffect::{Delete, HintDependents, Launch, Release};
        for update in updates() {
            for bits in 0_u8..8 {
                let is = |bit: u8| bits & (1 << bit) != 0;
                let facts = RunFacts { watched: Some(is(0)), outcome: Some(is(1)), named: Some(is(2)), ..RunFacts::default() };
                let effects = plan_update(&update, &facts, NOW).unwrap();
                let has = |effect| effects.contains(&effect);
                if has(Release) || has(HintDependents) {
                    assert!(update.is_complete() && !is(2) && update.of_stack, "{update:?} {facts:?} {effects:?}");
                    assert!(!update.finalizer || update.is_inherited() || is(1), "{update:?} {facts:?} {effects:?}");
                }
                if has(Delete) {
                    assert!(update.is_complete() && !update.finalizer && !(update.of_stack && is(2)), "{update:?} {effects:?}");
                }
                assert!(is(0) || effects.iter().all(|effect| *effect == Launch), "unwatched: {effects:?}");
                assert!(!has(Launch) || !has(Release), "{update:?} {effects:?}");
            }
        }
    }
}
