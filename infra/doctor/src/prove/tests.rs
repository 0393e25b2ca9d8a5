use std::{collections::BTreeMap, time::Duration};

use driftless_contract::keys;
use driftless_core::DefaultSize;
use serde_json::json;

use super::{
    budget::{self, Network, Price},
    installation::{self, named},
    record::{self, Cost, Figure, On, Proof, Scenario},
    scenarios::{access, minutes, refusal, seconds, still_there, throttling, violated},
};
use crate::credentials::Access;

fn proof(on: On, at: &str, passed: bool) -> Proof {
    let figures = Figure::of("RunTask to RUNNING", vec![40.0, 30.0, 35.0]).into_iter().collect();
    Proof {
        version: 1,
        at: at.parse().unwrap(),
        region: "eu-west-1".into(),
        on,
        release: "0.1.0".into(),
        tasks: 3,
        stacks: 5,
        scenarios: vec![Scenario { name: "start".into(), passed: Some(passed), said: "3 tasks".into(), figures }],
        cost: Cost { budget: 5.0, at_most: 1.0, estimate: 0.1 },
    }
}

#[test]
fn percentiles_are_nearest_ranks() {
    let of = |count: u32| Figure::of("x", (1..=count).rev().map(f64::from).collect()).unwrap();
    let shown = |figure: Figure| format!("{} {} {} {}", figure.n, figure.p50, figure.p95, figure.max);
    assert_eq!(shown(of(1)), "1 1 1 1");
    assert_eq!(shown(of(20)), "20 10 19 20");
    assert_eq!(shown(of(100)), "100 50 95 100");
    assert_eq!(Figure::of("x", vec![]), None);
}

#[test]
fn file_is_read_as_it_is_written_and_refuses_unknown_fields() {
    let proof = proof(On::Emulator, "2026-11-23T10:00:00Z", true);
    assert_eq!(proof.file(), "2026-11-23-eu-west-1.json");
    let mut written = serde_json::to_value(&proof).unwrap();
    assert_eq!(written["on"], "emulator");
    assert_eq!(serde_json::from_value::<Proof>(written.clone()).unwrap(), proof);
    written["more"] = json!(1);
    assert!(serde_json::from_value::<Proof>(written).is_err());
}

#[test]
fn readme_shows_the_newest_proof_of_aws_that_passed() {
    let newest = proof(On::Aws, "2026-11-20T10:00:00Z", true);
    let all = [
        proof(On::Aws, "2026-11-01T10:00:00Z", true),
        newest.clone(),
        proof(On::Aws, "2026-11-22T10:00:00Z", false),
        proof(On::Emulator, "2026-11-23T10:00:00Z", true),
    ];
    assert_eq!(record::readme(&all), newest.table());
    assert!(newest.table().contains("| RunTask to RUNNING | 3 | 35.0 s | 40.0 s |"), "{}", newest.table());
    assert_eq!(record::readme(&all[3..]), record::NOTHING);
}

#[test]
fn proof_without_scenarios_did_not_pass() {
    let mut proof = proof(On::Aws, "2026-11-20T10:00:00Z", true);
    assert!(proof.passed());
    let mut none = proof.scenarios[0].clone();
    (none.name, none.passed) = ("throttling".into(), None);
    assert!(none.to_string().starts_with("none  throttling"), "{none}");
    proof.scenarios.push(none);
    assert!(proof.passed(), "what was not measured fails nothing");
    proof.scenarios.remove(0);
    assert!(!proof.passed());
    proof.scenarios.clear();
    assert!(!proof.passed());
}

#[test]
fn throttling_without_a_refusal_is_not_measured() {
    let seen = throttling(&BTreeMap::new(), 100);
    assert!(!seen.measured && seen.said.starts_with("not measured: ECS refused none of 100 runs"), "{}", seen.said);
    let seen = throttling(&BTreeMap::from([("u".into(), "Rate exceeded".into())]), 100);
    assert!(
        seen.measured && seen.said == "ECS refused 1 of 100 runs at first, and all succeeded: Rate exceeded",
        "{}",
        seen.said
    );
}

#[test]
fn scenario_of_the_cluster_says_whether_it_measured_tokens_of_eks() {
    let eks = access(&Ok(Access::Eks { name: "prod".into(), region: None }));
    assert_eq!(eks, " with their own tokens of EKS, cluster prod");
    for other in [Ok(Access::Other), Err("AccessDenied".into())] {
        assert!(access(&other).contains("tokens of EKS were not measured"), "{other:?}");
    }
}

#[test]
fn deadline_follows_the_quota_and_the_number_of_runs() {
    let tasks = [(6.0, 1024), (6.0, 4096), (0.5, 1024), (16.0, 256)].map(|(vcpus, cpu)| budget::at_once(vcpus, cpu));
    assert_eq!(tasks, [6, 1, 1, 64]);
    let minutes = |runs, at_once| budget::queueing(runs, at_once).as_secs() / 60;
    // The quota of a new account: 17 groups of six.
    assert_eq!([minutes(100, Some(6)), minutes(6, Some(6)), minutes(100, Some(100)), minutes(100, None)], [48, 0, 0, 0]);
}

#[test]
fn budget_bounds_the_runs_and_the_bytes() {
    let price = |network, image_mib| Price { network, image_mib, ecr: false, size: DefaultSize::default() };
    let runs = budget::runs(10, 100, false);
    assert_eq!((runs, budget::runs(10, 100, true)), (114, 227));
    let [small, large] = [300.0, 2000.0].map(|image| price(Network::Nat, image).at_most(runs, 15.0, Duration::ZERO));
    let public = price(Network::Public, 2000.0).at_most(runs, 15.0, Duration::ZERO);
    // 228 pulls of 2,000 MiB through NAT are $21.5 of it.
    assert!(large - public > 20.0 && public < 3.0, "{small} {large} {public}");
    assert_eq!([small, large, public].map(|usd| format!("{usd:.2}")), ["5.18", "23.89", "2.56"]);
    let why = budget::check(large, 5.0).unwrap_err();
    assert!(why.contains("BUDGET_USD is 5.00") && why.contains("lower STACKS or TASKS"), "{why}");
    assert!(budget::check(public, 5.0).is_ok());
    let size = installation::size_of("Spot=never TaskCpu=4096 'TaskMemory=16384'");
    assert_eq!((size.cpu, size.memory_mib), (4096, 16_384));
    let large = Price { network: Network::Public, image_mib: 2000.0, ecr: false, size }.at_most(runs, 15.0, Duration::ZERO);
    assert!(large > 3.0 * public, "{large} {public}");
    let usual = installation::size_of("MaxTaskCpu=2 TaskTags=TaskCpu=1");
    assert_eq!((usual.cpu, usual.memory_mib), (1024, 4096));
    // An installation without a run only costs its hours.
    assert!(price(Network::Nat, 2000.0).of(0.0, 0.0, 1.0) < 0.1);
}

#[test]
fn times_of_kubernetes_s3_and_both_clis_are_read() {
    let same = [json!("2026-11-23T10:00:02Z"), json!("2026-11-23T10:00:02.000000+00:00"), json!(1_795_428_002.0)];
    for until in &same {
        assert_eq!(
            seconds(&json!("2026-11-23T10:00:00Z"), until).map(|seconds| seconds.to_string()),
            Some("2".into()),
            "{until}"
        );
    }
    assert_eq!(seconds(&same[0], &json!(null)), None);
    // The clocks of S3 and of a task differ by some milliseconds.
    assert_eq!(seconds(&same[0], &json!("2026-11-23T10:00:01Z")).map(|seconds| seconds.to_string()), Some("0".into()));
}

#[test]
fn refused_launches_are_counted_by_ecs_words() {
    let update = |waiting: &str| json!({ "metadata": { "name": "u" }, "status": { "driftless": { "waitingFor": waiting } } });
    let refused = refusal(&update("ECS did not start the task: ThrottlingException: Rate exceeded; next try in 15s"));
    assert_eq!(refused, Some(("u".into(), "ThrottlingException: Rate exceeded".into())));
    assert_eq!(refusal(&update("waiting for a slot")), None);
}

#[test]
fn exit_codes_of_the_check_in_a_task_have_a_meaning() {
    assert_eq!(violated("init container prove: exit code 14"), Some("a task can write into another's folder"));
    for other in ["init container prove: exit code 1", "CannotPullContainerError"] {
        assert_eq!(violated(other), None);
    }
}

#[test]
fn check_in_a_task_reads_and_writes_the_keys_of_the_contract() {
    let script = include_str!("scoping.py");
    let own = keys::task("AROA", "t").spec().replace("AROA:t", "{userid}");
    let other = keys::task("AROA", "t").progress().replace("AROA:t", "{userid.split(':')[0]}:{'0' * 32}");
    for key in [own, other] {
        assert!(script.contains(&format!("f\"{key}\"")), "{key}");
    }
}

#[test]
fn leftovers_are_found_by_task_and_by_prefix() {
    let ids = ["abc".to_owned()];
    let folders = json!({ "Contents": [{ "Key": "tasks/R:abc/in/spec" }, { "Key": "tasks/R:abc/out/result" }, { "Key": "tasks/R:def/in/spec" }] });
    let running = json!({ "taskArns": ["arn:aws:ecs:r:1:task/c/abc", "arn:aws:ecs:r:1:task/c/def"] });
    assert_eq!(still_there(&ids, &running, &folders), ["arn:aws:ecs:r:1:task/c/abc", "tasks/R:abc/in/spec"]);
    let names = json!(["p-hints", "https://sqs/1/p-runs", "/p/tasks", "p/kubeconfig", "proof", "other"]);
    assert_eq!(named("p", &names).collect::<Vec<_>>(), ["p-hints", "https://sqs/1/p-runs", "/p/tasks", "p/kubeconfig"]);
    assert_eq!(named("p", &json!(null)).count(), 0);
}

#[test]
fn run_is_paid_from_its_update_to_its_end() {
    let mut update =
        json!({ "metadata": { "creationTimestamp": "2026-11-23T10:00:00Z" }, "status": { "driftless": { "task": "arn" } } });
    let now = "2026-11-23T10:03:00Z".parse().unwrap();
    assert_eq!(minutes(&update, now).map(|minutes| minutes.to_string()), Some("3".into()));
    update["status"]["endTime"] = json!("2026-11-23T10:01:00Z");
    assert_eq!(minutes(&update, now).map(|minutes| minutes.to_string()), Some("1".into()));
    update["status"]["driftless"] = json!({});
    assert_eq!(minutes(&update, now), None);
}
