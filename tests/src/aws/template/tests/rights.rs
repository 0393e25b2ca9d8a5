//! The permissions of roles and the bucket, and their denials.

use super::*;
use crate::aws::policy::{self, Demand, Statement, Who};

#[test]
fn a_task_reaches_its_own_folder_only_and_cannot_even_ask_what_exists() {
    let template = read(TEMPLATE).unwrap();
    let id = &template.roles["TaskRole"].id;
    let may = |action: &str, key: &str| {
        let demand = Demand::new(action, format!("arn:aws:s3:::{}{key}", template.bucket));
        template.allows("TaskRole", &template.asked_by("TaskRole", &format!("{id}:t1"), &demand))
    };
    assert!(may("s3:GetObject", &format!("/tasks/{id}:t1/in/spec")));
    assert!(!may("s3:GetObject", &format!("/tasks/{id}:t1/out/result")));
    assert!(!may("s3:GetObject", &format!("/tasks/{id}:t2/in/spec")));
    assert!(!may("s3:GetObject", "/trees/kind/n/program.p/1/pack"));
    assert!(!may("s3:ListBucket", ""));
}

/// A PUT with the gate's demand: `once` has `If-None-Match: *`.
fn put(template: &Template, key: &str, once: bool) -> Demand {
    let demand = Demand::new("s3:PutObject", format!("arn:aws:s3:::{}/{key}", template.bucket));
    let demand = demand.with("s3:ObjectCreationOperation", "true");
    if once { demand.with("s3:if-none-match", "*") } else { demand }
}

/// Returns whether the bucket policy allows this to a principal of the account whose own policy
/// allows every action.
fn anyone_may(template: &Template, demand: &Demand) -> bool {
    let everything = serde_json::json!({ "Effect": "Allow", "Action": "*", "Resource": "*" });
    let everything: Statement = serde_json::from_value(everything).unwrap();
    let demand = template.asked_by("none", "AIDA", demand).with("aws:PrincipalArn", "arn:aws:iam::111122223333:role/ReadOnly");
    policy::allows(std::iter::once(&everything).chain(template.policy_of(&demand.resource)), Who::Role, &demand)
}

#[test]
fn a_task_writes_progress_lock_log_and_one_result_and_nothing_else() {
    let template = read(TEMPLATE).unwrap();
    let id = &template.roles["TaskRole"].id;
    let may = |demand: &Demand| template.allows("TaskRole", &template.asked_by("TaskRole", &format!("{id}:t1"), demand));
    let may_put = |key: &str, once: bool| may(&put(&template, &format!("tasks/{id}:{key}"), once));
    for name in ["progress", "lock", "live-log"] {
        assert!(may_put(&format!("t1/out/{name}"), false), "{name}");
    }
    assert!(may_put("t1/out/result", true));
    assert!(!may_put("t1/out/result", false), "a result without a condition could replace one");
    assert!(may_put("t1/out/log/0001", true));
    assert!(!may_put("t1/out/log/0001", false), "a part of the log without a condition could replace one");
    for key in ["t1/out/log", "t1/out/log/", "t1/out/log/001", "t1/out/log/00001", "t2/out/log/0001"] {
        assert!(!may_put(key, false) && !may_put(key, true), "{key}");
    }
    for key in ["t1/out/x", "t1/out/a/result", "t1/out/result/x", "t1/out/progress/", "t1/out/", "t1/in/spec", "t2/out/result"] {
        assert!(!may_put(key, false) && !may_put(key, true), "{key}");
    }
    for name in ["progress", "lock", "live-log", "result", "log/0001"] {
        let part = put(&template, &format!("tasks/{id}:t1/out/{name}"), true).with("s3:ObjectCreationOperation", "false");
        assert!(!may(&part), "a part of an upload of {name}");
        // A task's objects must be readable: neither archived nor encrypted under another key.
        for (header, value) in [
            ("x-amz-storage-class", "GLACIER"),
            ("x-amz-server-side-encryption", "aws:kms"),
            ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ] {
            let unreadable = put(&template, &format!("tasks/{id}:t1/out/{name}"), true).with(&format!("s3:{header}"), value);
            assert!(!may(&unreadable), "{header} of {name}");
        }
    }
}

#[test]
fn owner_outcome_result_and_key_are_write_once_for_everyone() {
    let template = read(TEMPLATE).unwrap();
    let task = &template.roles["TaskRole"].id;
    let result = format!("tasks/{task}:t1/out/result");
    let log = keys::task(task, "t1").log_chunk(1);
    let (audit, plan) = ("audit/kind/n/20261126T120000Z-u-uid", "plans/kind/uid/7f3a91c");
    for key in ["runs/kind/u/owner", "runs/arn:aws:eks:r:1:cluster/c/u/outcome", &result, &log, audit, plan, keys::INPUTS_KEY] {
        assert!([audit, plan].contains(&key) || anyone_may(&template, &put(&template, key, true)), "{key}");
        assert!(!anyone_may(&template, &put(&template, key, false)), "{key}");
    }
    for (role, key) in [
        ("LauncherRole", "runs/kind/u/owner"),
        ("LauncherRole", keys::INPUTS_KEY),
        ("RecorderRole", "runs/kind/u/owner"),
        ("RecorderRole", "runs/kind/u/outcome"),
        ("RecorderRole", audit),
        ("RecorderRole", plan),
    ] {
        let own = |once: bool| {
            let demand = template.asked_by(role, "AROA:f", &put(&template, key, once));
            policy::allows(&template.roles[role].policies, Who::Role, &demand)
        };
        assert!(own(true) && !own(false), "{role} {key}: its own policy");
    }
    let may = |role: &str, key: &str| template.allows(role, &template.asked_by(role, "AROA:f", &put(&template, key, true)));
    assert!(!may("LauncherRole", "runs/kind/u/outcome"));
    assert!(!may("RecorderRole", "runs/kind/u/launch"));
}

/// A task may write progress at any rate.
#[test]
fn progress_has_a_queue_of_its_own() {
    let template = read(TEMPLATE).unwrap();
    let told: BTreeSet<_> = template
        .notifications
        .iter()
        .map(|notification| {
            let rules = notification.filter.key.rules.iter().map(|rule| format!("{} {}", rule.name, rule.value));
            (rules.collect::<Vec<_>>().join(", "), template.queue(&notification.queue).unwrap().name.as_str())
        })
        .collect();
    let expected = [
        ("prefix tasks/, suffix /out/progress".to_owned(), "d-progress"),
        ("prefix tasks/, suffix /out/result".to_owned(), "d-runs"),
    ];
    assert_eq!(told, expected.into());
    let fed = |queue: &str| {
        let mappings = template.functions["Recorder"].mappings.iter();
        mappings.filter(|mapping| mapping.queue == template.queues[queue].arn).map(|mapping| mapping.concurrency).sum::<usize>()
    };
    assert_eq!(fed("Progress"), 2, "the least that Lambda takes");
    assert!(fed("Runs") > fed("Progress"));
    assert_eq!(template.queues["Progress"].attributes["MessageRetentionPeriod"], "60");
}

#[test]
fn bucket_is_closed_to_the_public_and_to_other_owners() {
    let template = read(TEMPLATE).unwrap();
    let bucket = &template.resources["Bucket"].properties;
    let access = ["BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"];
    assert!(access.iter().all(|name| bucket["PublicAccessBlockConfiguration"][name] == true), "{bucket}");
    assert_eq!(bucket["OwnershipControls"]["Rules"][0]["ObjectOwnership"], "BucketOwnerEnforced");
}

#[test]
fn leftovers_of_tasks_expire_after_the_longest_run() {
    let template = read(TEMPLATE).unwrap();
    let rules = template.resources["Bucket"].properties["LifecycleConfiguration"]["Rules"].as_array().unwrap();
    let tasks: Vec<_> = rules.iter().filter(|rule| rule["Prefix"] == "tasks/").collect();
    assert_eq!((tasks.len(), &tasks[0]["ExpirationInDays"], &tasks[0]["Status"]), (1, &1.into(), &"Enabled".into()));
    // `in/run` names the run of a live task until the end of the longest run.
    let raw: Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let longest = raw["Parameters"]["MaxRunSeconds"]["MaxValue"].as_u64();
    assert!(longest.is_none_or(|longest| longest + 3600 <= 86400), "a run of {longest:?} s outlives its task's folder");
    let parts = rules.iter().find(|rule| rule["Prefix"].is_null()).unwrap();
    assert_eq!(parts["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"], 1);
}

#[test]
fn attempts_at_a_message_outlive_it() {
    const SQS_DEFAULT_RETENTION: u64 = 4 * DAY;
    const DAY: u64 = 86_400;
    let template = read(TEMPLATE).unwrap();
    let rules = template.resources["Bucket"].properties["LifecycleConfiguration"]["Rules"].as_array().unwrap();
    let attempts: Vec<_> = rules.iter().filter(|rule| rule["Prefix"] == "attempts/").collect();
    let kept = DAY * attempts[0]["ExpirationInDays"].as_u64().unwrap();
    let queues = template.resources.values().filter(|resource| resource.kind == "AWS::SQS::Queue");
    let retentions = queues
        .filter(|queue| !queue.properties["RedrivePolicy"].is_null())
        .map(|queue| queue.properties["MessageRetentionPeriod"].as_u64().unwrap_or(SQS_DEFAULT_RETENTION));
    let longest = retentions.max().unwrap();
    assert!(longest >= SQS_DEFAULT_RETENTION && kept > longest, "{kept} s, {longest} s");
}

#[test]
fn logs_and_audit_records_expire_by_their_parameters() {
    let mut settings = settings();
    settings.parameters.extend([("LogRetentionDays".into(), "7".into()), ("AuditRetentionDays".into(), "400".into())]);
    let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    let rules = template.resources["Bucket"].properties["LifecycleConfiguration"]["Rules"].as_array().unwrap();
    for (prefix, days) in [("logs/", "7"), ("audit/", "400")] {
        let expiries: Vec<_> =
            rules.iter().filter(|rule| rule["Prefix"] == prefix).map(|rule| &rule["ExpirationInDays"]).collect();
        assert_eq!(expiries, [days], "{prefix}");
    }
}

#[test]
fn sealed_inputs_of_a_stack_never_expire() {
    let template = read(TEMPLATE).unwrap();
    let rules = template.resources["Bucket"].properties["LifecycleConfiguration"]["Rules"].as_array().unwrap();
    let expires = |rule: &Value| !rule["ExpirationInDays"].is_null();
    let is_sealed = |rule: &&Value| rule["Prefix"].as_str().is_none_or(|prefix| "sealed/".starts_with(prefix));
    assert!(!rules.iter().filter(is_sealed).any(expires), "{rules:?}");
}

#[test]
fn secrets_of_registries_are_no_kubeconfigs() {
    let raw: Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let parameter = |name: &str, field: &str| raw["Parameters"][name][field].as_str().unwrap().to_owned();
    let pattern = parameter("RegistrySecrets", "AllowedPattern");
    assert!(pattern.ends_with("registries$") && parameter("RegistrySecrets", "Default").ends_with("/registries"), "{pattern}");
    assert!(!parameter("KubeconfigSecret", "Default").contains("registries"));
}

#[test]
fn output_of_tasks_makes_no_metrics() {
    let template = read(TEMPLATE).unwrap();
    let properties = &template.resources["TaskMetrics"].properties;
    assert_eq!(properties["PolicyType"], "METRIC_EXTRACTION_POLICY");
    let document: Value = serde_json::from_str(properties["PolicyDocument"].as_str().unwrap()).unwrap();
    assert_eq!(document, serde_json::json!({ "EmbeddedMetricFormat": { "Status": "Disabled" } }));
    // The functions' own metrics are lines of their logs.
    assert_eq!(properties["SelectionCriteria"], "LogGroupName IN [\"/d/tasks\"]");
    assert!(template.log_groups.contains(&"/d/tasks".to_owned()));
    assert_eq!(template.functions["Launcher"].environment["LOG_GROUP"], "/d/tasks");

    let mut settings = settings();
    settings.parameters.insert("BlockTaskMetrics".into(), "false".into());
    let without = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    assert!(!without.resources.contains_key("TaskMetrics"));
}

#[test]
fn only_the_recorder_writes_logs_and_records_and_no_role_deletes_them() {
    let template = read(TEMPLATE).unwrap();
    let recorder: &[&str] = &["RecorderRole"];
    for (key, may_read) in [
        ("logs/kind/n/uid", recorder),
        ("audit/kind/n/20261126T120000Z-u-uid", recorder),
        // The reconciler asks the policies about the summary of a plan.
        ("plans/kind/uid/7f3a91c", &["ReconcilerRole", "RecorderRole"]),
    ] {
        let object = format!("arn:aws:s3:::{}/{key}", template.bucket);
        let write = put(&template, key, true);
        assert!(!anyone_may(&template, &write), "{key}");
        let may = |role: &str, demand: &Demand| template.allows(role, &template.asked_by(role, "AROA:f", demand));
        let writers: Vec<_> = template.roles.keys().filter(|role| may(role, &write)).collect();
        assert_eq!(writers, ["RecorderRole"], "{key}");
        let deletes = |role: &&String| may(role, &Demand::new("s3:DeleteObject", &object));
        assert_eq!(template.roles.keys().find(deletes), None, "{key}");
        let readers: Vec<_> = template.roles.keys().filter(|role| may(role, &Demand::new("s3:GetObject", &object))).collect();
        assert_eq!(readers, may_read, "{key}");
    }
}

/// AWS's policy `ReadOnlyAccess` has `s3:Get*` on every bucket.
#[test]
fn a_right_to_read_every_bucket_reads_no_run() {
    let template = read(TEMPLATE).unwrap();
    let task = &template.roles["TaskRole"].id;
    let secret = [
        format!("tasks/{task}:t1/in/spec"),
        format!("tasks/{task}:t1/in/identity"),
        format!("tasks/{task}:t1/out/result"),
        keys::task(task, "t1").log_chunk(1),
        keys::task(task, "t1").live_log(),
        "runs/kind/u/outcome".into(),
        "sealed/kind/n/u".into(),
        keys::INPUTS_KEY.into(),
    ];
    for key in &secret {
        for action in ["s3:GetObject", "s3:GetObjectVersion"] {
            let demand = Demand::new(action, format!("arn:aws:s3:::{}/{key}", template.bucket));
            assert!(!anyone_may(&template, &demand), "{action} {key}");
        }
    }
    let tree = Demand::new("s3:GetObject", format!("arn:aws:s3:::{}/trees/kind/n/program.p/1/pack", template.bucket));
    assert!(anyone_may(&template, &tree), "a tree holds no secret");

    let mut readers = BTreeSet::new();
    for (role, key) in template.roles.keys().flat_map(|role| secret.iter().map(move |key| (role, key))) {
        let demand = Demand::new("s3:GetObject", format!("arn:aws:s3:::{}/{key}", template.bucket));
        let demand = template.asked_by(role, &format!("{}:t1", template.roles[role].id), &demand);
        let by_its_own_policy = policy::allows(&template.roles[role].policies, Who::Role, &demand);
        assert_eq!(template.allows(role, &demand), by_its_own_policy, "{role} {key}");
        if by_its_own_policy {
            readers.insert(role.as_str());
        }
    }
    assert_eq!(readers, ["LauncherRole", "ReconcilerRole", "RecorderRole", "TaskRole"].into());
}

#[test]
fn tasks_pull_from_named_repositories() {
    let may = |repositories: Option<&str>, region: &str, account: &str, repository: &str| {
        let mut settings = settings();
        settings.parameters.extend(repositories.map(|repositories| ("ImageRepositories".to_owned(), repositories.to_owned())));
        let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
        let demand = Demand::new("ecr:BatchGetImage", format!("arn:aws:ecr:{region}:{account}:repository/{repository}"));
        template.allows("ExecutionRole", &demand)
    };
    let (own, other) = ("111122223333", "444455556666");
    assert!(may(None, "eu-west-1", own, "driftless-runner") && may(None, "us-east-1", own, "driftless/pulumi"));
    assert!(!may(None, "eu-west-1", own, "payroll/api"));
    assert!(!may(None, "eu-west-1", other, "driftless-runner"));
    let named = "arn:aws:ecr:*:444455556666:repository/pulumi/*, arn:aws:ecr:eu-west-1:111122223333:repository/runner";
    assert!(may(Some(named), "eu-west-1", other, "pulumi/nodejs") && may(Some(named), "eu-west-1", own, "runner"));
    assert!(!may(Some(named), "eu-west-1", other, "payroll/api"));
    assert!(!may(Some(named), "us-east-1", own, "runner"));
    assert!(!may(Some(named), "eu-west-1", own, "driftless-runner"));
}

#[test]
fn only_the_forwarders_service_account_gets_its_role() {
    let template = read(TEMPLATE).unwrap();
    let role = &template.roles["ForwarderRole"];
    let may = |namespace: &str, account: &str, cluster: &str| template.trusts_pod(role, cluster, namespace, account);
    let cluster = "arn:aws:eks:us-east-1:111122223333:cluster/prod";
    assert!(may("driftless-system", "driftless-forwarder", cluster));
    assert!(!may("team", "driftless-forwarder", cluster));
    assert!(!may("driftless-system", "default", cluster));
    assert!(!may("driftless-system", "driftless-forwarder", &cluster.replace("111122223333", "444455556666")));
}

#[test]
fn the_seal_key_is_for_sealed_inputs_through_s3() {
    let template = read(TEMPLATE).unwrap();
    let key = template.resource_policies.keys().find(|arn| arn.starts_with("arn:aws:kms:")).unwrap();
    let may = |role: &str, via: Option<&str>, object: &str| {
        let demand = Demand::new("kms:Decrypt", key);
        let demand = demand.with("kms:EncryptionContext:aws:s3:arn", format!("arn:aws:s3:::{}/{object}", template.bucket));
        let demand = via.iter().fold(demand, |demand, via| demand.with("kms:ViaService", *via));
        template.allows(role, &template.asked_by(role, "AROA:f", &demand))
    };
    let s3 = Some("s3.eu-west-1.amazonaws.com");
    assert!(may("LauncherRole", s3, "sealed/kind/n/u"));
    assert!(!may("RecorderRole", s3, "sealed/kind/n/u"));
    assert!(!may("LauncherRole", None, "sealed/kind/n/u"));
    assert!(!may("LauncherRole", s3, "tasks/AROA:t/in/spec"));
}

#[test]
fn bucket_refuses_requests_without_tls() {
    let template = read(TEMPLATE).unwrap();
    let get = Demand::new("s3:GetObject", format!("arn:aws:s3:::{}/runs/kind/u/launch", template.bucket));
    let get = template.asked_by("LauncherRole", "AROA:f", &get);
    assert!(template.allows("LauncherRole", &get));
    assert!(!template.allows("LauncherRole", &get.with("aws:SecureTransport", "false")));
}
