use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::{Finding, Level, canary, capacity, cluster, credentials, installation, throughput};

type Answer = Result<Value, String>;

fn no() -> Answer {
    Err("no".into())
}

/// Checks the level and a part of the text of each case.
#[track_caller]
fn check(cases: impl IntoIterator<Item = (Finding, Level, &'static str)>) {
    for (finding, level, words) in cases {
        assert_eq!(finding.level, level, "{finding}");
        assert!(finding.to_string().contains(words), "{words:?} is not in: {finding}");
        assert_eq!(
            level == Level::Ok,
            finding.why.is_empty() && finding.remedy.is_empty(),
            "what is not well has a reason and a remedy: {finding}"
        );
    }
}

#[test]
fn stack_state_is_judged() {
    let state = |state: &str| installation::stack_state("driftless", &Ok(json!({ "Stacks": [{ "StackStatus": state }] })));
    check([
        (state("CREATE_COMPLETE"), Level::Ok, "CREATE_COMPLETE"),
        (state("UPDATE_COMPLETE"), Level::Ok, "UPDATE_COMPLETE"),
        (state("UPDATE_IN_PROGRESS"), Level::Warn, "wait"),
        (state("UPDATE_ROLLBACK_COMPLETE"), Level::Warn, "rolled back"),
        (state("ROLLBACK_COMPLETE"), Level::Fail, "describe-stack-events --stack-name driftless"),
        (installation::stack_state("driftless", &no()), Level::Fail, "make deploy STACK=driftless"),
    ]);
}

#[test]
fn functions_and_their_event_sources_are_judged() {
    let function = |state: &str, update: &str, architecture: &str| {
        let state = json!({ "State": state, "LastUpdateStatus": update, "Architecture": architecture, "StateReason": "why" });
        installation::function("f", Some("arm64"), &Ok(state))
    };
    let mapping = |state: &str, result: &str| {
        let mapping = json!({ "State": state, "LastProcessingResult": result, "UUID": "u-1", "StateTransitionReason": "by a user",
                              "EventSourceArn": "arn:aws:sqs:r:1:driftless-hints", "BatchSize": 10,
                              "ScalingConfig": { "MaximumConcurrency": 7 } });
        throughput::mappings("f", &Ok(json!({ "EventSourceMappings": [mapping] }))).remove(0)
    };
    check([
        (function("Active", "Successful", "arm64"), Level::Ok, "Active, arm64"),
        (function("Inactive", "Successful", "arm64"), Level::Ok, "Inactive"),
        (function("Failed", "Successful", "arm64"), Level::Fail, "why: why"),
        (
            installation::function(
                "f",
                None,
                &Ok(json!({ "State": "Active", "LastUpdateStatus": "Failed", "LastUpdateStatusReason": "r" })),
            ),
            Level::Fail,
            "last update",
        ),
        (function("Active", "Successful", "x86_64"), Level::Fail, "built for x86_64"),
        (installation::function("f", None, &no()), Level::Fail, "cannot be read"),
        (mapping("Enabled", "OK"), Level::Ok, "driftless-hints: feeds f, up to 7 batches of 10 at once"),
        (mapping("Enabled", "No records processed"), Level::Ok, "feeds f"),
        (mapping("Disabled", "OK"), Level::Fail, "--enabled --uuid u-1"),
        (mapping("Enabled", "PROBLEM: Function call failed"), Level::Fail, "does not receive its messages"),
        (throughput::mappings("f", &no()).remove(0), Level::Warn, "lambda:ListEventSourceMappings"),
    ]);
    let mappings = json!({ "EventSourceMappings": [{ "ScalingConfig": { "MaximumConcurrency": 7 } }] });
    let concurrency = |free: Value| {
        let limit = json!({ "AccountLimit": { "UnreservedConcurrentExecutions": free } });
        throughput::concurrency([&mappings, &mappings], &Ok(limit))
    };
    check([
        (concurrency(json!(14)), Level::Ok, "the queues may use 14"),
        (concurrency(json!(13)), Level::Warn, "throttle each other"),
        (concurrency(Value::Null), Level::Warn, "are not known"),
        (throughput::concurrency([], &no()), Level::Warn, "lambda:GetAccountSettings"),
    ]);
    assert_eq!(throughput::mappings("webhook", &Ok(json!({ "EventSourceMappings": [] }))), []);
}

#[test]
fn rules_queues_bucket_alarms_and_quotas_are_judged() {
    let queue = |name: &str, count: &str| {
        installation::queue(name, &Ok(json!({ "Attributes": { "ApproximateNumberOfMessages": count } })))
    };
    let alarms = |state: &str| {
        let alarm = json!({ "AlarmName": "a", "StateValue": state, "StateReason": "r" });
        installation::alarms(&Ok(json!({ "MetricAlarms": [alarm] }))).remove(0)
    };
    let quota = |value: Value| installation::quota(&Ok(json!({ "Quota": { "Value": value } })));
    check([
        (installation::rule("r", &Ok(json!({ "State": "ENABLED" }))), Level::Ok, "enabled"),
        (installation::rule("r", &Ok(json!({ "State": "DISABLED" }))), Level::Fail, "aws events enable-rule --name r"),
        (installation::rule("r", &no()), Level::Fail, "cannot be read"),
        (queue("driftless-hints", "7"), Level::Ok, "7 waiting"),
        (queue("driftless-sources-dead-letters.fifo", "0"), Level::Ok, "empty"),
        (queue("driftless-hints-dead-letters", "2"), Level::Fail, "2 dead letters"),
        (installation::queue("q", &no()), Level::Fail, "cannot be read"),
        (installation::notifications("b", &Ok(json!({ "QueueConfigurations": [1, 2] }))), Level::Ok, "2 notifications"),
        (installation::notifications("b", &Ok(Value::Null)), Level::Fail, "no notifications"),
        (installation::notifications("b", &no()), Level::Fail, "cannot be read"),
        (alarms("OK"), Level::Ok, "none of 1 in ALARM"),
        (alarms("INSUFFICIENT_DATA"), Level::Ok, "none of 1 in ALARM"),
        (alarms("ALARM"), Level::Fail, "docs/operations.md"),
        (installation::alarms(&no()).remove(0), Level::Warn, "cloudwatch:DescribeAlarms"),
        (quota(json!(6.0)), Level::Warn, "request-service-quota-increase"),
        (quota(json!(100.0)), Level::Ok, "100 vCPUs"),
        (quota(Value::Null), Level::Warn, "cannot read the quota"),
        (installation::quota(&no()), Level::Warn, "servicequotas:GetServiceQuota"),
    ]);
}

#[test]
fn webhook_must_refuse_unsigned_requests() {
    let webhook = |status| installation::webhook("https://u/", Ok(status));
    check([
        (webhook("401"), Level::Ok, "refuses"),
        (webhook("403"), Level::Fail, "lambda:InvokeFunctionUrl"),
        (webhook("429"), Level::Warn, "SignaturesRefused"),
        (webhook("502"), Level::Fail, "status 502"),
        (webhook("202"), Level::Fail, "status 202"),
        (installation::webhook("https://u/", Err(&"no".into())), Level::Fail, "internet"),
    ]);
}

#[test]
fn images_of_ecr_are_looked_up() {
    let host = "123456789012.dkr.ecr.eu-west-1.amazonaws.com";
    let found = |image: &str| {
        installation::ecr_image(image).map(|(account, region, repository, id)| format!("{account} {region} {repository} {id}"))
    };
    for (image, expected) in [
        (format!("{host}/driftless/runner:1"), Some("123456789012 eu-west-1 driftless/runner imageTag=1")),
        (format!("{host}/runner"), Some("123456789012 eu-west-1 runner imageTag=latest")),
        (format!("{host}/runner:1@sha256:ab"), Some("123456789012 eu-west-1 runner imageDigest=sha256:ab")),
        ("public.ecr.aws/x/runner:1".into(), None),
        ("ghcr.io/x/runner@sha256:ab".into(), None),
        ("runner".into(), None),
    ] {
        assert_eq!(found(&image).as_deref(), expected, "{image}");
    }
    check([
        (installation::runner_image("i", None), Level::Warn, "not in ECR"),
        (installation::runner_image("i", Some(Ok(json!({})))), Level::Ok, "found"),
        (installation::runner_image("i", Some(no())), Level::Fail, "RUNNER_IMAGE"),
    ]);
}

#[test]
fn the_kubeconfig_has_each_cluster_and_says_how_it_is_reached() {
    let kubeconfig = json!({
        "clusters": [{ "name": "c", "cluster": { "server": "https://c" } }],
        "contexts": [
            { "name": "eks", "context": { "cluster": "c", "user": "eks" } },
            { "name": "token", "context": { "cluster": "c", "user": "token" } },
            { "name": "gke", "context": { "cluster": "c", "user": "gke" } },
            { "name": "empty", "context": { "cluster": "c", "user": "empty" } },
            { "name": "half", "context": { "cluster": "c", "user": "nobody" } },
        ],
        "users": [
            { "name": "eks", "user": { "exec": { "command": "aws", "args": ["--region", "r", "eks", "get-token", "--cluster-name", "prod"] } } },
            { "name": "token", "user": { "token": "canary-93be" } },
            { "name": "gke", "user": { "exec": { "command": "/bin/gke-gcloud-auth-plugin" } } },
            { "name": "empty", "user": { "tokenFile": "/run/token" } },
        ],
    });
    let names = ["eks", "token", "gke", "empty", "half", "none"].map(ToOwned::to_owned);
    let (findings, access) = credentials::kubeconfig("s", &Ok(kubeconfig), &names);
    assert!(findings.iter().all(|finding| !finding.to_string().contains("canary-93be")));
    let eks = credentials::Access::Eks { name: "prod".into(), region: Some("r".into()) };
    assert_eq!(access, BTreeMap::from([("eks".into(), eks), ("token".into(), credentials::Access::Other)]));
    let expected = [
        (Level::Ok, "the EKS cluster prod"),
        (Level::Ok, "has a token or a client certificate"),
        (Level::Fail, "gke-gcloud-auth-plugin"),
        (Level::Fail, "--flatten"),
        (Level::Fail, "is incomplete"),
        (Level::Fail, "no context none"),
    ];
    check(findings.into_iter().zip(expected).map(|(finding, (level, words))| (finding, level, words)));
    let (findings, access) = credentials::kubeconfig("s", &no(), &names);
    assert_eq!(access, BTreeMap::new());
    check(findings.into_iter().map(|finding| (finding, Level::Fail, "KUBECONFIG_FILE")));
}

#[test]
fn clear_text_and_unverified_servers_are_reported() {
    let of = |server: Value| {
        let kubeconfig = json!({
            "clusters": [{ "name": "c", "cluster": server }],
            "contexts": [{ "name": "a", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
        });
        credentials::kubeconfig("s", &Ok(kubeconfig), &["a".to_owned()]).0.remove(0)
    };
    check([
        (of(json!({ "server": "https://c" })), Level::Ok, "has a token or a client certificate"),
        (of(json!({ "server": "http://127.0.0.1:1" })), Level::Ok, "has a token or a client certificate"),
        (of(json!({ "server": "http://10.0.0.1" })), Level::Fail, "is not https"),
        (of(json!({ "server": "https://c", "insecure-skip-tls-verify": true })), Level::Warn, "insecure-skip-tls-verify"),
    ]);
}

#[test]
fn functions_that_share_a_credential_are_reported() {
    let of = |user: Value| {
        json!({
            "contexts": [{ "name": "a", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": user }],
        })
    };
    let (one, other) = (of(json!({ "token": "canary" })), of(json!({ "token": "b" })));
    let eks = of(json!({ "exec": { "command": "aws" } }));
    let shared = |kubeconfigs: &[Value]| credentials::shared_credentials("s", kubeconfigs, &["a".to_owned()]);
    assert_eq!(shared(&[one.clone(), other.clone()]), None);
    assert_eq!(shared(&[eks.clone(), eks]), None);
    let finding = shared(&[one.clone(), other, one]).unwrap();
    assert!(!finding.to_string().contains("canary"));
    check([(finding, Level::Warn, "one credential for a")]);
}

#[test]
fn inbound_rules_and_movable_images_are_reported() {
    let groups = |rules: Value| {
        let groups = json!([{ "GroupId": "sg-1", "IpPermissions": [] }, { "GroupId": "sg-2", "IpPermissions": rules }]);
        installation::security_groups(&Ok(json!({ "SecurityGroups": groups }))).remove(0)
    };
    check([
        (groups(json!([])), Level::Ok, "no inbound rules"),
        (groups(json!([{ "IpProtocol": "-1", "UserIdGroupPairs": [{ "GroupId": "sg-2" }] }])), Level::Warn, "sg-2"),
        (installation::security_groups(&no()).remove(0), Level::Warn, "ec2:DescribeSecurityGroups"),
        (installation::default_images("all@sha256:ab", "yaml=base@sha256:cd"), Level::Ok, "pinned"),
        (installation::default_images("all:1", ""), Level::Warn, "without a digest: all:1"),
        (installation::default_images("all@sha256:ab", "yaml=base:1,go=go:1"), Level::Warn, "without a digest: base:1, go:1"),
    ]);
}

#[test]
fn each_cluster_has_a_key() {
    let keys =
        json!({ "a": { "flux/eu": "canary-93be", "github": "canary" }, "b": { "github": "canary" }, "d": "canary", "e": "" });
    let keys = serde_json::from_value(keys).unwrap();
    let of = |clusters: &[&str], which: usize| {
        let clusters: Vec<_> = clusters.iter().map(|name| (*name).to_owned()).collect();
        let mut findings = credentials::webhook_keys("s", Ok(&keys), &clusters);
        assert!(findings.iter().all(|finding| !finding.to_string().contains("canary")));
        findings.remove(which)
    };
    check([
        (of(&["a"], 0), Level::Ok, "each cluster"),
        (of(&["a", "b", "c", "d", "e"], 0), Level::Fail, "no key for b, c, e"),
        (of(&["a", "d", "e"], 1), Level::Warn, "one key for all senders of d"),
        (credentials::webhook_keys("s", Err(&"no".into()), &[]).remove(0), Level::Fail, "cannot use"),
    ]);
}

#[test]
fn crds_of_this_release_are_told_from_others() {
    let ours = driftless_api::crds::all().unwrap();
    let ours: Vec<_> = ours.iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let levels = |items: &[Value]| {
        let findings = cluster::crds(&Ok(json!({ "items": items })));
        findings.iter().map(|finding| finding.level).collect::<Vec<_>>()
    };
    assert_eq!(levels(&ours), [Level::Ok; 5]);
    assert_eq!(levels(&ours[1..]), [Level::Fail, Level::Ok, Level::Ok, Level::Ok, Level::Ok]);
    let mut older = ours.clone();
    let spec = &mut older[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert!(spec.as_object_mut().unwrap().remove("backend").is_some());
    assert_eq!(levels(&older), [Level::Warn, Level::Ok, Level::Ok, Level::Ok, Level::Ok]);
    assert_eq!(cluster::crds(&no()), []);
}

#[test]
fn rights_and_namespaces_are_judged() {
    let right = |may: Result<bool, String>| cluster::rights([("driftless:launcher", "create leases".to_owned(), may)]).remove(0);
    let open = |may: Result<bool, String>| cluster::opened("team", &[("get secrets".to_owned(), may)]);
    check([
        (right(Ok(true)), Level::Ok, "each function"),
        (right(Ok(false)), Level::Fail, "driftless:launcher may not create leases"),
        (right(Err("no".into())), Level::Warn, "impersonate"),
        (open(Ok(true)), Level::Ok, "allows runs"),
        (open(Ok(false)), Level::Fail, "infra/kubernetes/runs"),
    ]);
}

#[test]
fn artifact_services_are_reached_through_the_api_server() {
    let answer = |answer: Result<&str, &str>| {
        let answer = answer.map(ToOwned::to_owned).map_err(|words| format!("Error from server {words}"));
        cluster::reached("source-controller", "flux-system", answer)
    };
    check([
        (answer(Ok("<pre></pre>")), Level::Ok, "Service flux-system/source-controller: the API server reaches it"),
        (answer(Err("(NotFound): the server could not find the requested resource")), Level::Ok, "reaches it"),
        (answer(Err("(NotFound): services \"source-controller\" not found")), Level::Fail, "not found"),
        (
            answer(Err("(ServiceUnavailable): error trying to reach service: dial tcp 10.0.0.7:9090: i/o timeout")),
            Level::Fail,
            "Network policies of Flux",
        ),
        (answer(Err("(Forbidden): services \"source-controller\" is forbidden")), Level::Warn, "services/proxy"),
    ]);
    let services = |parameters: &[(&str, &str)]| {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let services = cluster::artifact_services(&parameters);
        services.iter().map(|one| format!("{}/{}:{}", one.namespace, one.name, one.port)).collect::<Vec<_>>()
    };
    assert_eq!(services(&[]), ["flux-system/source-controller:80"]);
    let listed = ("ArtifactServices", "one.ns:8080, two.ns.svc.cluster.local, archives.example.com");
    assert_eq!(services(&[listed]), ["ns/one:8080", "ns/two:80"]);
    assert_eq!(services(&[listed, ("ArtifactTransport", "direct")]), [""; 0]);
}

/// The doctor's defaults without the checks of AWS.
#[test]
fn artifacts_come_from_where_the_template_says() {
    let template = template();
    let defaults = ["ArtifactServices", "ArtifactTransport"].map(|name| {
        let default = template["Parameters"][name]["Default"].as_str().unwrap();
        (name.to_owned(), default.to_owned())
    });
    assert_eq!(cluster::artifact_services(&defaults.into()), cluster::artifact_services(&BTreeMap::new()));
}

#[test]
fn objects_in_the_cluster_are_judged() {
    let provider = |spec: Value| cluster::provider(&Ok(json!({ "spec": spec })), Some("https://u/prod"));
    let condition = json!({ "status": "False", "message": "no image" });
    check([
        (cluster::forwarder(&Ok(json!({ "status": { "availableReplicas": 1 } }))), Level::Ok, "runs"),
        (cluster::forwarder(&Ok(json!({ "status": { "conditions": [condition] } }))), Level::Fail, "why: no image"),
        (cluster::forwarder(&no()), Level::Fail, "not found"),
        (provider(json!({ "address": "https://u/prod" })), Level::Ok, "found"),
        (provider(json!({ "address": "https://u/other" })), Level::Fail, "wrong address"),
        (provider(json!({ "address": "https://u/prod", "suspend": true })), Level::Warn, "suspended"),
        (cluster::provider(&no(), None), Level::Warn, "not found"),
        (cluster::alert(&Ok(json!({ "spec": {} }))), Level::Ok, "found"),
        (cluster::alert(&Ok(json!({ "spec": { "suspend": true } }))), Level::Warn, "suspended"),
        (cluster::alert(&no()), Level::Warn, "not found"),
        (cluster::webhook_secret("prod", Ok(true)), Level::Ok, "key of the webhook"),
        (cluster::webhook_secret("prod", Ok(false)), Level::Fail, "prod/webhook-secret"),
        (cluster::webhook_secret("prod", Err("no".into())), Level::Fail, "no key"),
    ]);
}

#[test]
fn eks_access_of_the_functions_is_judged() {
    let eks = |status: &str, mode: &str| cluster::eks("prod", &Ok(json!({ "Status": status, "Mode": mode })));
    let entry = |groups: Value| {
        cluster::access_entry("driftless:launcher", "arn", &Ok(json!({ "accessEntry": { "kubernetesGroups": groups } })))
    };
    check([
        (eks("ACTIVE", "API"), Level::Ok, "API"),
        (eks("ACTIVE", "CONFIG_MAP"), Level::Fail, "update-cluster-config --name prod"),
        (eks("UPDATING", "API"), Level::Warn, "wait"),
        (cluster::eks("prod", &no()), Level::Warn, "eks:DescribeCluster"),
        (entry(json!(["driftless:launcher"])), Level::Ok, "arn"),
        (entry(json!(["driftless:fetcher"])), Level::Fail, "the group is missing"),
        (cluster::access_entry("driftless:launcher", "arn", &no()), Level::Fail, "infra/cluster.yaml"),
        (cluster::pod_identity(&Ok(json!({ "associations": [{}] }))), Level::Ok, "found"),
        (cluster::pod_identity(&Ok(json!({ "associations": [] }))), Level::Fail, "eks-pod-identity-agent"),
        (cluster::pod_identity(&no()), Level::Warn, "eks:ListPodIdentityAssociations"),
    ]);
}

#[test]
fn late_canary_names_where_it_is_stuck() {
    let object = |conditions: Value, more: Value| {
        let mut object = json!({ "status": { "conditions": conditions } });
        object["status"]["driftless"] = more;
        object
    };
    let processing = json!([{ "type": "Reconciling", "status": "True", "reason": "StackProcessing", "message": "fetching" }]);
    let stack = object(processing, Value::Null);
    let stalled =
        object(json!([{ "type": "Stalled", "status": "True", "reason": "SpecInvalid", "message": "spec.x" }]), Value::Null);
    let update = |more: Value| object(json!([]), more);
    let mut failed = object(json!([{ "type": "Failed", "status": "True" }]), Value::Null);
    failed["status"]["message"] = "no such bucket".into();
    let late =
        |stack: &Value, update: &Value, task: Option<Value>| canary::stuck(stack, update, task.as_ref(), Duration::from_mins(1));
    let running = update(json!({ "task": "arn", "log": "https://log" }));
    let stopped = json!({ "lastStatus": "STOPPED", "stoppedReason": "Essential", "containers": [{ "reason": "CannotPullContainerError" }] });
    check([
        (late(&json!({}), &Value::Null, None), Level::Fail, "was not reconciled"),
        (late(&stalled, &Value::Null, None), Level::Fail, "SpecInvalid: spec.x"),
        (late(&stack, &Value::Null, None), Level::Fail, "StackProcessing: fetching"),
        (late(&stack, &failed, None), Level::Fail, "no such bucket"),
        (
            late(&stack, &update(json!({ "waitingReason": "InputNotFound", "waitingFor": "Secret x" })), None),
            Level::Fail,
            "InputNotFound: Secret x",
        ),
        (late(&stack, &update(Value::Null), None), Level::Fail, "no task was started"),
        (late(&stack, &running, Some(stopped)), Level::Fail, "CannotPullContainerError"),
        (late(&stack, &running, Some(json!({ "lastStatus": "RUNNING" }))), Level::Fail, "https://log"),
        (late(&stack, &running, Some(json!({ "lastStatus": "PENDING" }))), Level::Fail, "state in ECS: PENDING"),
    ]);
}

#[test]
fn ready_requires_the_present_generation() {
    let stack = |observed: Value, status: &str| {
        json!({ "metadata": { "generation": 2 }, "status": { "observedGeneration": observed,
            "conditions": [{ "type": "Ready", "status": status }] } })
    };
    assert!(canary::is_ready(&stack(json!(2), "True")));
    assert!(!canary::is_ready(&stack(json!(1), "True")));
    assert!(!canary::is_ready(&stack(json!(2), "False")));
    assert!(!canary::is_ready(&json!({})));
    let updates = json!({ "items": [{ "metadata": { "name": "a" } }, { "metadata": { "name": "b" } }] });
    let latest = |status: Value| canary::latest(&json!({ "status": status }), &updates)["metadata"]["name"].clone();
    assert_eq!(latest(json!({ "currentUpdate": { "name": "b" }, "lastUpdate": { "name": "a" } })), "b");
    assert_eq!(latest(json!({ "lastUpdate": { "name": "a" } })), "a");
    assert_eq!(latest(json!({})), Value::Null);
}

fn template() -> Value {
    serde_saphyr::from_str(include_str!("../../template.yaml")).unwrap()
}

#[test]
fn the_bill_has_as_many_mappings_and_metrics_of_alarms_as_the_template() {
    let template = template();
    let of_type = |kind: &str| {
        let all = template["Resources"].as_object().unwrap().values();
        all.filter(|resource| resource["Type"] == kind).map(|resource| resource["Properties"].clone()).collect::<Vec<_>>()
    };
    let metrics = of_type("AWS::CloudWatch::Alarm").into_iter().map(|alarm| {
        let metrics = alarm["Metrics"].as_array().cloned();
        metrics.map_or(1, |metrics| metrics.iter().filter(|metric| metric["MetricStat"].is_object()).count())
    });
    assert_eq!(metrics.sum::<usize>().to_string(), crate::cost::ALARM_METRICS.to_string());
    let mappings = of_type("AWS::Lambda::EventSourceMapping").len();
    assert_eq!(mappings.to_string(), (crate::cost::STANDARD_MAPPINGS + 1.0).to_string());
}

#[test]
fn the_bill_counts_the_calls_of_a_run_that_the_readme_has() {
    let readme = include_str!("../../../README.md");
    let first = |what: &str| {
        let row = readme.lines().find_map(|line| line.strip_prefix(&format!("| {what} | "))).unwrap();
        row.split([',', ' ']).next().unwrap().to_owned()
    };
    assert_eq!(first("calls of AWS: S3, SQS, ECS"), crate::cost::RUN_S3_CALLS.to_string());
    assert_eq!(first("invocations of functions"), crate::cost::RUN_INVOCATIONS.to_string());
    assert_eq!(capacity::RUN_MESSAGES.iter().sum::<f64>().to_string(), crate::cost::RUN_INVOCATIONS.to_string());
    assert_eq!(first("calls of the Kubernetes API"), capacity::RUN_KUBERNETES_CALLS.to_string());
    let sweep = readme.lines().find_map(|line| line.strip_prefix("| the sweep | ")?.split(" | ").nth(1)).unwrap();
    let seconds: f64 = sweep.split(' ').next().unwrap().parse().unwrap();
    assert!((seconds / 10_000.0 - capacity::SWEEP_SECONDS_OF_A_CORE).abs() < 1e-9, "{sweep}");
}

#[test]
fn default_images_have_the_pulumi_that_is_tested() {
    let versions = include_str!("../../../tests/tools/pulumi/go.mod");
    let version =
        versions.split("github.com/pulumi/pulumi/pkg/v3 v").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let image = format!("public.ecr.aws/pulumi/pulumi:{version}-nonroot");
    let template = template();
    assert_eq!(template["Parameters"]["DefaultImage"]["Default"], image);
    let small = template["Parameters"]["RuntimeImages"]["Default"].as_str().unwrap();
    let (runtimes, images): (Vec<_>, Vec<_>) = small.split(',').filter_map(|entry| entry.split_once('=')).unzip();
    assert_eq!(runtimes, ["yaml", "nodejs", "python", "go", "dotnet", "java"]);
    assert!(images.iter().all(|image| image.ends_with(&format!(":{version}"))), "{small}");
    let page = include_str!("../../../docs/images.md");
    for image in images.into_iter().chain([&*image]) {
        let name = image.strip_prefix("public.ecr.aws/pulumi/").unwrap();
        assert!(page.contains(&format!("`{name}`")), "docs/images.md has no {name}");
    }
}

#[test]
fn the_page_on_aws_has_every_parameter_with_its_default() {
    let page = include_str!("../../../docs/aws.md");
    let table: Vec<_> = page.split("## Parameters").nth(1).unwrap().lines().filter(|line| line.starts_with("| `")).collect();
    let template = template();
    let parameters = template["Parameters"].as_object().unwrap();
    for (name, parameter) in parameters {
        let row = table.iter().find(|row| row.starts_with(&format!("| `{name}` | ")));
        let row = row.unwrap_or_else(|| panic!("docs/aws.md has no parameter {name}"));
        let default = match &parameter["Default"] {
            Value::Null => "required".to_owned(),
            Value::String(text) if text.is_empty() => "none".to_owned(),
            // Too long for a table: the page names the hosts.
            Value::String(text) if text.contains('\n') => {
                text.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>().join(", ")
            }
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        assert!(row.starts_with(&format!("| `{name}` | {default} | ")), "{row}: its default is {default}");
    }
    assert_eq!(table.len(), parameters.len(), "docs/aws.md has parameters that the template has not");
}
