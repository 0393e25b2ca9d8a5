//! Every state that a Stack can be in is explained with its reason and a time, as the reconciler
//! writes them.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::{fs, path::Path};

use driftless_api::Stack;
use driftless_cli::{
    explain::{self, Doing, Explanation},
    facts::Unknown,
    render::Style,
};
use driftless_core::{
    Governance, Guard, PlanPolicy, Readiness, Snapshot, Stack as CoreStack, StackReason, decide, refused,
    run::{Standing, WaitReason},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use support::{facts_of, now, stack};

/// The Stack `network` after an edit of its object.
fn network(edit: impl FnOnce(&mut Value)) -> CoreStack {
    let mut object = serde_json::to_value(stack("network")).unwrap();
    edit(&mut object);
    CoreStack::from(&serde_json::from_value::<Stack>(object).unwrap())
}

/// The same after an update that failed `failures` counted times, `seconds` ago.
fn failed(failures: i64, seconds: i64, edit: impl FnOnce(&mut Value)) -> CoreStack {
    network(|object| {
        let at = now() - SignedDuration::from_secs(seconds);
        object["status"]["lastUpdate"]["failures"] = json!(failures);
        object["status"]["lastUpdate"]["lastResyncTime"] = json!(at);
        edit(object);
    })
}

/// A guarded Stack with a plan that has no approval.
fn planned(edit: impl FnOnce(&mut Value)) -> CoreStack {
    failed(0, 3600, |object| {
        let digits = |digit: &str| digit.repeat(64);
        object["metadata"]["annotations"] = json!({ "driftless.dev/approval": "required" });
        object["status"]["driftless"]["plan"] = json!({
            "guarded": true, "state": "Proposed", "hash": digits("7"), "generation": 2, "commit": "2", "reconcileRequest": "",
            "update": "network-p", "expiresAt": now() + SignedDuration::from_hours(72), "counts": { "create": 1 }, "changesTotal": 1,
            "changes": [{ "urn": "urn:pulumi:prod::shop::aws:ec2/vpc:Vpc::vpc", "change": "create" }], "madeAt": now(),
            "digests": { "binding": digits("1"), "pulumi": "v3.259.0", "resources": digits("2"), "state": digits("3"), "version": 1 },
        });
        edit(object);
    })
}

/// The facts about a Stack in a state. Some states have a cluster without the admission policy, or
/// with policies.
fn facts(reason: &str, stack: CoreStack) -> Snapshot {
    let mut snapshot = facts_of(stack, true);
    if reason == StackReason::ApprovalUnguarded.as_str() {
        snapshot.guard = Guard::Broken("the policy is missing".into());
    }
    if reason == StackReason::PolicyUnknown.as_str() {
        snapshot.governance = Governance::Unreadable("planpolicies is forbidden".into());
    }
    if reason == StackReason::PolicyViolation.as_str() {
        let policy = PlanPolicy { name: "production".into(), rules: Err("unknown action".into()), packs: Vec::new() };
        snapshot.governance = Governance::Known { floor: None, policies: vec![policy] };
        snapshot.planned = snapshot.stack.status.plan.proposal.as_ref().and_then(|proposal| proposal.plan.clone());
    }
    snapshot
}

/// A Stack in each state, by the reason of its condition.
fn states() -> Vec<(&'static str, CoreStack)> {
    let old = |mut core: CoreStack| {
        core.spec.old_pulumi = Some("pulumi 3.0.0 of the image is too old; use 3.100 or newer".into());
        core
    };
    let source = |name: &str| {
        let name = name.to_owned();
        move |object: &mut Value| object["spec"]["programRef"] = json!({ "name": name })
    };
    vec![
        ("Ready", CoreStack::from(&stack("shop"))),
        (StackReason::StackProcessing.as_str(), CoreStack::from(&stack("web"))),
        (StackReason::StackProcessing.as_str(), failed(0, 3600, |_| ())),
        (StackReason::RetryingAfterFailure.as_str(), failed(1, 5, |_| ())),
        (StackReason::PreviewFailed.as_str(), failed(1, 5, |object| object["status"]["lastUpdate"]["type"] = json!("preview"))),
        (
            StackReason::PlatformFailure.as_str(),
            failed(0, 5, |object| object["status"]["driftless"]["platformFailures"] = json!({ "count": 2, "fresh": false })),
        ),
        (StackReason::PrerequisiteNotSatisfied.as_str(), CoreStack::from(&stack("api"))),
        (StackReason::SpecInvalid.as_str(), network(|object| object["spec"]["projectRepo"] = json!("https://git.example/a.git"))),
        (StackReason::PulumiVersionTooLow.as_str(), old(network(|_| ()))),
        (StackReason::SourceUnavailable.as_str(), network(source("missing"))),
        (StackReason::UpdateFailed.as_str(), CoreStack::from(&stack("network"))),
        (StackReason::UpdateConflict.as_str(), failed(0, 5, |object| object["status"]["driftless"]["conflict"] = json!(true))),
        (StackReason::UpdateConflict.as_str(), network(|object| object["status"]["currentUpdate"] = json!({ "name": "web-3" }))),
        (
            StackReason::Expired.as_str(),
            network(|object| {
                object["metadata"]["annotations"] = json!({ "driftless.dev/ttl": "1h" });
                object["metadata"]["creationTimestamp"] = json!("2026-11-26T08:00:00Z");
                object["spec"]["destroyOnFinalize"] = json!(true);
                object["status"]["driftless"]["expiry"] = json!({ "time": "2026-11-26T09:30:00Z" });
            }),
        ),
        (StackReason::ApprovalRequired.as_str(), planned(|_| ())),
        (StackReason::ApprovalUnguarded.as_str(), planned(|_| ())),
        (StackReason::PolicyUnknown.as_str(), planned(|_| ())),
        (StackReason::PolicyViolation.as_str(), planned(|_| ())),
        (
            StackReason::PlanRejected.as_str(),
            planned(|object| object["metadata"]["annotations"]["driftless.dev/reject"] = json!("7".repeat(64))),
        ),
        (
            StackReason::OutsideWindow.as_str(),
            failed(0, 3600, |object| {
                object["metadata"]["annotations"] =
                    json!({ "driftless.dev/window-schedule": "0 0 29 2 *", "driftless.dev/window-duration": "1m" });
            }),
        ),
        (
            StackReason::Suspended.as_str(),
            network(|object| object["metadata"]["annotations"] = json!({ "driftless.dev/suspend": "true" })),
        ),
    ]
}

fn shown(readiness: Option<&Readiness>) -> (&str, &str) {
    match readiness {
        Some(Readiness::Reconciling { reason, message } | Readiness::Stalled { reason, message }) => (reason.as_str(), message),
        Some(Readiness::Ready) | None => ("Ready", ""),
    }
}

#[test]
fn every_state_has_its_reason_and_a_next_time() {
    let shown: Vec<_> = states().into_iter().map(|(reason, _)| reason).collect();
    // No state leads to the refused plan, which has a test of its own.
    let missing =
        StackReason::ALL.iter().find(|reason| **reason != StackReason::PlanRefused && !shown.contains(&reason.as_str()));
    assert_eq!(missing, None);
    for (reason, stack) in states() {
        let snapshot = facts(reason, stack);
        let explanation = explain::stack(&snapshot, Vec::new(), None, now());
        assert_eq!(explanation.reason, reason, "{explanation:#?}");
        assert!(!explanation.message.is_empty() && !explanation.now.is_empty(), "{explanation:#?}");
        let remedy = StackReason::parse(reason).map(StackReason::remedy);
        assert_eq!(explanation.advice.map(|advice| advice.remedy), remedy, "{explanation:#?}");
        assert!(explanation.next.at.is_some_and(|at| at > now()), "{explanation:#?}");
    }
}

/// The text of `explain` for each state. `BLESS=1` writes the file.
#[test]
fn text_of_every_state_is_the_kept_one() {
    let texts = states().into_iter().map(|(reason, stack)| {
        let snapshot = facts(reason, stack);
        let explanation = explain::stack(&snapshot, Vec::new(), None, now());
        format!("==> {reason}\n{}\n", explain::render(&explanation, Style::default(), now()))
    });
    let text: String = texts.collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/explain-states.txt");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&file).unwrap(), "BLESS=1 writes {}", file.display());
}

#[test]
fn explanation_agrees_with_the_next_plan() {
    for (reason, stack) in states() {
        let snapshot = facts(reason, stack);
        let plan = decide(&snapshot, now());
        let explanation = explain::stack(&snapshot, Vec::new(), None, now());
        let (planned, message) = shown(plan.status.readiness.as_ref());
        assert_eq!((explanation.reason.as_str(), planned), (reason, planned));
        assert!(message.is_empty() || explanation.message == message, "{explanation:#?}");
        assert!(!explanation.from_status);

        // As the reconciler leaves it: the time that it requeued is the next.
        let mut after = snapshot.stack.clone();
        after.status = plan.status.clone();
        let explanation = explain::stack(&facts(reason, after), Vec::new(), None, now());
        if let Some(requeued) = plan.status.next_reconciliation {
            assert_eq!(explanation.next.at, Some(requeued), "{reason}: {explanation:#?}");
        }
    }
}

#[test]
fn status_is_shown_if_the_decision_needs_an_unknown_fact() {
    let message = "Program \"network\" at generation 2: it is too large; not retried until the source changes";
    let mut stack = failed(0, 3600, |_| ());
    stack.status.readiness = Some(Readiness::stalled(StackReason::SourceUnavailable, message));
    let explain = |unknown| explain::stack(&facts_of(stack.clone(), false), unknown, None, now());
    let explanation = explain(vec![Unknown::Fetch, Unknown::Tree]);
    assert_eq!((explanation.reason.as_str(), explanation.message.as_str()), (StackReason::SourceUnavailable.as_str(), message));
    assert!(explanation.from_status);
    let all_known = explain(Vec::new());
    assert_eq!(all_known.reason, StackReason::StackProcessing.as_str());
}

#[test]
fn refused_plan_is_shown_as_the_reconciler_shows_it() {
    let snapshot = facts_of(CoreStack::from(&stack("shop")), true);
    let plan = refused(&snapshot, &["a rule".into()]);
    let mut stack = snapshot.stack.clone();
    stack.status = plan.status;
    let explanation = explain::stack(&facts_of(stack, true), vec![Unknown::Inputs], None, now());
    assert_eq!(explanation.reason, StackReason::PlanRefused.as_str());
    assert!(explanation.next.at.is_some_and(|at| at > now()), "the sweep hints it: {explanation:#?}");
}

#[test]
fn every_wait_of_an_update_has_its_reason_and_a_next_time() {
    for reason in WaitReason::ALL {
        let mut update = support::update("shop-refresh-x7k2p");
        // The invalid spec of an Update by hand ends it.
        update.metadata.owner_references = support::update("web-3").metadata.owner_references;
        update.set_waiting(*reason, "it waits", now());
        let explanation = explain::update(&update, Standing::Current, "driftless-system", now());
        let Explanation { doing, advice, next, message, .. } = &explanation;
        assert_eq!((&*explanation.reason, message.as_str(), *doing), (reason.as_str(), "it waits", Doing::Waits));
        assert_eq!(advice.map(|advice| (advice.meaning, advice.remedy)), Some((reason.meaning(), reason.remedy())), "{reason}");
        assert!(next.at.is_some_and(|at| at > now()) && !next.why.is_empty(), "{explanation:#?}");
        let text = explain::render(&explanation, Style::default(), now());
        assert!(
            text.contains(&format!(" waits: {reason}\n  it waits\n")) && text.contains("\nNext reconciliation: 2026-"),
            "{text}"
        );
    }
}

#[test]
fn edit_that_is_not_reconciled_yet_is_due_within_a_minute() {
    let mut stack = CoreStack::from(&stack("network"));
    stack.generation += 1;
    let explanation = explain::stack(&facts_of(stack, true), Vec::new(), None, now());
    let minute: Timestamp = "2026-11-26T12:01:00Z".parse().unwrap();
    assert_eq!(explanation.next.at, Some(minute));
    assert!(explanation.now.iter().any(|sentence| sentence.contains("New stack generation: 3")), "{explanation:#?}");
}
