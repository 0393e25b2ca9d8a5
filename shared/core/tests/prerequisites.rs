//! Stacks that wait for other Stacks.

mod support;

use driftless_core::*;
use support::*;

use LastUpdateState::{Failed, Succeeded};

#[test]
fn unmet_prerequisite_blocks_the_run_and_outdated_one_is_run() {
    let reference = |name: &str, within| PrerequisiteRef { name: name.into(), succeeded_within_seconds: within };
    let found = |last_update| Some(Prerequisite { generation: 1, reconcile_request: String::new(), last_update });
    let rows = [
        (reference("db", None), None, "unable to fetch prerequisite \"db\": there is no such Stack in this namespace"),
        (reference("db", None), found(None), "prerequisite not satisfied for \"db\": prerequisite has not run to completion"),
        (
            reference("db", None),
            found(Some(last_update(Failed, 0, 1))),
            "prerequisite not satisfied for \"db\": prerequisite failed",
        ),
        (
            reference("db", Some(60)),
            found(Some(last_update(Succeeded, 0, 61))),
            "prerequisite not satisfied for \"db\": prerequisite is out of date",
        ),
    ];
    for (reference, prerequisite, words) in rows {
        let mut snapshot = snapshot(stack());
        snapshot.stack.spec.prerequisites = vec![reference];
        snapshot.prerequisites = vec![prerequisite];
        let plan = plan(&snapshot);
        assert_eq!(condition(&plan), format!("Reconciling/PrerequisiteNotSatisfied: {words}"));
        let asked = Effect::RequestReconcile { stack: "db".into(), request: "after-shop-000".into() };
        assert_eq!(plan.effects.contains(&asked), words.ends_with("out of date"), "{words}");
    }
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.prerequisites = vec![reference("db", Some(60))];
    snapshot.prerequisites = vec![found(Some(last_update(Succeeded, 0, 60)))];
    assert!(created(&plan(&snapshot)).is_some());
}

#[test]
fn cycle_of_prerequisites_is_reported() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.prerequisites = vec![PrerequisiteRef { name: "db".into(), succeeded_within_seconds: None }];
    snapshot.prerequisites = vec![None];
    let plan = |snapshot: &Snapshot| {
        let plan = plan(snapshot);
        (condition(&plan), plan.status.waits_for)
    };
    snapshot.requires = [("shop", "db"), ("db", "net"), ("net", "db")].map(|(a, b)| (a.into(), vec![b.into()])).into();
    let (words, waits_for) = plan(&snapshot);
    assert!(words.starts_with("Reconciling/PrerequisiteNotSatisfied"), "the cycle of others is theirs: {words}");
    assert_eq!(waits_for.as_deref(), Some("db"));
    snapshot.requires.insert("net".into(), vec!["dns".into(), "shop".into()]);
    let (words, waits_for) = plan(&snapshot);
    assert_eq!(words, "Stalled/SpecInvalid: spec.prerequisites form a cycle: shop -> db -> net -> shop; remove one of them");
    assert_eq!(waits_for, None);
}
