//! Runs that make a plan first. What real versions of Pulumi plan is in `tests/plans.rs`.

use std::fs;

use driftless_contract::{ChangeKind, Env, Lock, Operation, PlanHash, PlanRequest, RunResult, RunSpec, Verdict};

use crate::aws::{self, Aws};

const EVENTS: &str = r#"{"preludeEvent":{"config":{}}}
{"resourcePreEvent":{"metadata":{"op":"update","urn":"urn:a","type":"t","old":{"id":"1"},"new":{"inputs":{"content":"v2"}},"diffs":["content"]},"planning":true}}
{"summaryEvent":{"resourceChanges":{"update":1}}}
"#;
const CREATION: &str = r#"{"resourcePreEvent":{"metadata":{"op":"create","urn":"urn:b","type":"t","old":null,"new":{"inputs":{}}},"planning":true}}
"#;
const VIOLATION: &str = r#"{"diagnosticEvent":{"urn":"urn:a","message":"resource urn:a violates plan: properties changed: ~~content[{OLD-CANARY}!={NEW-CANARY}]","severity":"error"}}
"#;

fn request(approved: Option<&PlanHash>) -> PlanRequest {
    let binding = PlanHash::parse(&"b".repeat(64)).unwrap();
    PlanRequest { key: "5".repeat(64), binding, tree: Some("tree".into()), approved: approved.cloned(), packs: Vec::new() }
}

fn planning(name: &str) -> Aws {
    let aws = Aws::new(&format!("plan-{name}"));
    for (file, content) in [
        ("events", EVENTS),
        ("plan", r#"{"resourcePlans":{}}"#),
        ("digest", r#"{"steps":[]}"#),
        ("state", r#"{"deployment":{}}"#),
    ] {
        fs::write(aws.dir.join(file), content).unwrap();
    }
    aws
}

/// Runs one more task in the same place, with another spec.
async fn run(aws: &Aws, change: impl FnOnce(&mut RunSpec)) -> RunResult {
    let _: std::io::Result<()> = fs::remove_dir_all(aws.dir.join("share"));
    for file in ["calls", "arguments"] {
        fs::write(aws.dir.join(file), "").unwrap();
    }
    aws.served.lock().unwrap().objects.clear();
    aws.launch(change);
    aws.run().await.unwrap();
    aws.result()
}

async fn proposed(aws: &Aws) -> PlanHash {
    let result = run(aws, |spec| (spec.operation, spec.plan) = (Operation::Preview, Some(request(None)))).await;
    assert_eq!(result.verdict, Verdict::Succeeded {});
    result.plan.unwrap().hash
}

async fn applied(aws: &Aws, approved: &PlanHash) -> RunResult {
    run(aws, |spec| spec.plan = Some(request(Some(approved)))).await
}

fn failure(result: &RunResult) -> (&str, &str) {
    match &result.verdict {
        Verdict::Failed { reason, message, .. } => (reason.as_str(), message),
        verdict => panic!("{verdict:?}"),
    }
}

fn stored(aws: &Aws) -> String {
    let objects = aws.served.lock().unwrap();
    let outbox = objects.objects.iter().filter(|(key, _)| key.contains("/out/"));
    outbox.map(|(_, content)| String::from_utf8_lossy(content).into_owned()).collect()
}

#[tokio::test]
async fn proposal_reports_its_plan_and_runs_no_update() {
    let aws = planning("proposal");
    for operation in [Operation::Preview, Operation::Up] {
        let result = run(&aws, |spec| (spec.operation, spec.plan) = (operation, Some(request(None)))).await;
        assert_eq!((&result.verdict, result.outputs.is_none()), (&Verdict::Succeeded {}, true));
        let plan = result.plan.unwrap();
        assert_eq!((plan.operation, plan.count(ChangeKind::Update), plan.parts.pulumi.as_str()), (Operation::Up, 1, "v3.259.0"));
        assert_eq!(aws.calls(), ["install", "stack select", "config set-all", "version", "stack export", "preview"]);
        let left: Vec<_> =
            fs::read_dir(aws.dir.join("share/.driftless")).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().contains("plan")), "{left:?}");
    }
    assert!(stored(&aws).contains("driftless: plan ") && !stored(&aws).contains("v2"), "{}", stored(&aws));
}

#[tokio::test]
async fn plan_that_creates_is_previewed_twice() {
    let aws = planning("twice");
    fs::write(aws.dir.join("events"), format!("{EVENTS}{CREATION}")).unwrap();
    proposed(&aws).await;
    assert_eq!(aws.calls()[3..], ["version", "stack export", "preview", "preview"]);
}

#[tokio::test]
async fn approved_plan_is_applied_with_a_preview_of_its_own() {
    let aws = planning("applied");
    let hash = proposed(&aws).await;
    let result = applied(&aws, &hash).await;
    assert_eq!(result.verdict, Verdict::Succeeded {});
    assert_eq!((result.plan.unwrap().hash, result.outputs.unwrap().len()), (hash, 1));
    let arguments = aws.lines("arguments");
    let up = arguments.iter().find(|line| line.starts_with("up ")).unwrap();
    assert!(up.contains(" --plan=") && up.contains(" --yes") && !up.contains("--skip-preview"), "{up}");
}

#[tokio::test]
async fn plan_that_is_not_the_approved_one_touches_nothing() {
    let aws = planning("stale");
    let hash = proposed(&aws).await;
    let changes: [(&str, String); 3] = [
        ("state", r#"{"deployment":{"resources":[{"urn":"urn:a"}]}}"#.into()),
        ("events", EVENTS.replace("v2", "v3")),
        ("plan", r#"{"resourcePlans":{"urn:a":{"steps":["update"]}}}"#.into()),
    ];
    for (file, content) in changes {
        fs::write(aws.dir.join(file), content).unwrap();
        let result = applied(&aws, &hash).await;
        let (reason, message) = failure(&result);
        assert!(reason == "PlanStale" && message.contains(hash.short()), "{message}");
        assert!(result.plan.is_some_and(|plan| plan.hash != hash), "{file}");
        assert!(!aws.calls().iter().any(|call| call == "up"), "{:?}", aws.calls());
    }
}

#[tokio::test]
async fn update_that_leaves_its_plan_shows_no_value() {
    let aws = planning("violated");
    fs::write(aws.dir.join("events"), format!("{EVENTS}{VIOLATION}")).unwrap();
    let hash = proposed(&aws).await;
    fs::write(
        aws.dir.join("says"),
        "  error: resource urn:a violates plan: properties changed: ~~content[{OLD-\nCANARY}]\nCANARY",
    )
    .unwrap();
    fs::write(aws.dir.join("fails"), " --plan=").unwrap();
    let result = applied(&aws, &hash).await;
    let (reason, message) = failure(&result);
    assert!(reason == "PlanViolated" && message.contains("urn:a violates plan: properties changed: content"), "{message}");
    assert!(message.contains("nothing was changed"), "{message}");
    assert!(!stored(&aws).contains("CANARY"), "{}", stored(&aws));
}

#[tokio::test]
async fn run_without_a_plan_says_why() {
    let pending = r#"{"deployment":{"pending_operations":[{"resource":{"urn":"urn:a"},"type":"creating"}]}}"#;
    let aws = planning("refused");
    for (file, content, reason, words) in [
        ("state", pending, "PendingOperations", "1 operation(s) pending (creating urn:a)"),
        ("state", "[\"canary\"]", "Unknown", "the exported state is not a state of pulumi"),
        ("state", r#"{"deployment":{}}"#, "Unknown", "expectNoChanges: the plan would change 1 resource(s)"),
        ("plan", "\"canary\"", "Unknown", "the preview of pulumi cannot be read"),
        ("fails", "--save-plan", "PlanUnsupported", "this pulumi cannot apply a plan"),
    ] {
        fs::write(aws.dir.join(file), content).unwrap();
        fs::write(aws.dir.join("says"), "error: unknown flag: --save-plan").unwrap();
        let result = run(&aws, |spec| (spec.plan, spec.expect_no_changes) = (Some(request(None)), true)).await;
        let failed = failure(&result);
        assert!(failed.0 == reason && failed.1.contains(words) && !failed.1.contains("canary"), "{failed:?}");
        assert!(!aws.calls().iter().any(|call| call == "up"), "{:?}", aws.calls());
    }
}

#[tokio::test]
async fn destroy_is_proposed_and_applied_by_its_state() {
    let aws = planning("destroy");
    let destroy = |approved: Option<&PlanHash>| {
        let plan = Some(request(approved));
        move |spec: &mut RunSpec| {
            (spec.operation, spec.preview_only) = (Operation::Destroy, plan.as_ref().is_some_and(|plan| plan.approved.is_none()));
            spec.plan = plan;
        }
    };
    let hash = run(&aws, destroy(None)).await.plan.unwrap().hash;
    assert!(aws.lines("arguments").last().unwrap().starts_with("destroy --suppress-progress --preview-only "));
    let result = run(&aws, destroy(Some(&hash))).await;
    assert_eq!(result.verdict, Verdict::Succeeded {});
    assert!(aws.lines("arguments").last().unwrap().contains(" --yes --skip-preview"));
    fs::write(aws.dir.join("state"), r#"{"deployment":{"resources":[{"urn":"urn:b"}]}}"#).unwrap();
    assert_eq!(failure(&run(&aws, destroy(Some(&hash))).await).0, "PlanStale");
    // A stack that nothing has created.
    fs::write(aws.dir.join("gone"), "").unwrap();
    let result = run(&aws, destroy(None)).await;
    assert!(result.verdict == Verdict::Succeeded {} && result.plan.unwrap().is_empty());
}

#[tokio::test]
async fn preview_with_an_approval_is_refused() {
    let aws = planning("preview");
    let hash = proposed(&aws).await;
    let result = run(&aws, |spec| (spec.operation, spec.plan) = (Operation::Preview, Some(request(Some(&hash))))).await;
    assert!(failure(&result).1.starts_with("a preview cannot apply an approved plan"));
    let lock: Option<Lock> = aws.document("out/lock");
    assert_eq!(lock, None);
}

type Change<'a> = &'a dyn Fn(&mut RunSpec);

#[tokio::test]
async fn policy_pack_is_the_one_of_the_run_before_its_preview() {
    const PACK: [(&str, &str); 2] = [("other/x", ""), ("world/PulumiPolicy.yaml", "runtime: nodejs\n")];
    let aws = planning("packs");
    let call = async |change: &dyn Fn(&mut RunSpec)| {
        let result = run(&aws, |spec| {
            spec.operation = Operation::Preview;
            spec.plan = Some(PlanRequest { packs: vec![aws.put_policy_pack(&PACK)], ..request(None) });
            change(spec);
        });
        result.await
    };
    assert_eq!(call(&|_| {}).await.verdict, Verdict::Succeeded {});
    let flag = format!(" --policy-pack={} ", aws.dir.join("share/.driftless/policies/0/world").display());
    assert!(
        aws.lines("arguments").iter().any(|line| line.starts_with("preview ") && line.contains(&flag)),
        "{:?}",
        aws.lines("arguments")
    );

    let of = "policy pack \"rules\" of PlanPolicy \"prod\"";
    // Another tree than the launcher names, a file that changed on the way, and directories that
    // are no packs.
    let other = |_: &mut RunSpec| aws.put("in/policies/0/manifest", aws::stored(&[("world/a", "")]).0.to_bytes());
    let changed = |_: &mut RunSpec| aws.put("in/policies/0/pack", aws::stored(&PACK).1.to_ascii_uppercase());
    let none = |spec: &mut RunSpec| spec.plan.as_mut().unwrap().packs[0].dir = "none".into();
    let root = |spec: &mut RunSpec| spec.plan.as_mut().unwrap().packs[0].dir = String::new();
    let attached = |spec: &mut RunSpec| {
        let (name, value) = ("PULUMI_DEBUG_LANGUAGES".into(), "nodejs:1".into());
        spec.env.push(Env { name, value, secret: false, below_identity: false });
    };
    let cases: [(Change<'_>, String); 5] = [
        (&other, format!("{of}: tree has another manifest than the run names; nothing was changed")),
        (&changed, format!("{of}: file \"world/PulumiPolicy.yaml\": ")),
        (&none, format!("{of}: source has no directory \"none\"; nothing was changed")),
        (&root, format!("{of}: the artifact has no PulumiPolicy.yaml in its root; nothing was changed")),
        (
            &attached,
            format!("environment variable PULUMI_DEBUG_LANGUAGES can replace what runs {of}; nothing was changed; remove it"),
        ),
    ];
    for (change, words) in cases {
        let result = call(change).await;
        let (_, message) = failure(&result);
        assert!(message.starts_with(&words), "{message}");
        assert!(!aws.calls().iter().any(|call| call == "preview"), "{:?}", aws.calls());
    }
}
