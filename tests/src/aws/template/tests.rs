use std::collections::BTreeSet;

use driftless_contract::keys;
use driftless_source::Limits;
use driftless_telemetry::metrics;

use super::*;

const TEMPLATE: &str = include_str!("../../../../infra/template.yaml");

fn settings() -> Settings {
    let parameters = [
        ("ClusterNames", "kind, other"),
        ("Subnets", "subnet-1,subnet-2"),
        ("SecurityGroups", "sg-1"),
        ("RunnerImage", "runner:1"),
    ];
    Settings {
        account: "111122223333".into(),
        region: "eu-west-1".into(),
        stack: "d".into(),
        endpoint: "http://gate".into(),
        function_url: "http://hook/".into(),
        parameters: parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
    }
}

fn read(text: &str) -> Result<Template, String> {
    Template::parse(text, Path::new("/p/infra"), &settings()).map_err(|error| error.to_string())
}

/// Reads the template with one text replaced, and gives the error's words.
fn broken(from: &str, to: &str) -> String {
    assert!(TEMPLATE.contains(from), "the template has no {from:?} to break");
    read(&TEMPLATE.replacen(from, to, 1)).err().unwrap_or_else(|| panic!("{to:?} in place of {from:?} was accepted"))
}

#[test]
fn a_region_without_spot_gets_none() {
    let providers = |text: &str| read(text).unwrap().capacity_providers;
    assert_eq!(providers(TEMPLATE), ["FARGATE", "FARGATE_SPOT"]);
    assert_eq!(providers(&TEMPLATE.replacen("Default: previews", "Default: never", 1)), ["FARGATE"]);
}

#[test]
fn an_account_with_few_concurrent_executions_reserves_none() {
    let reserved = |text: &str| read(text).unwrap().functions["Webhook"].reserved_concurrency;
    assert_eq!(reserved(TEMPLATE), Some(5));
    let parameter = "WebhookConcurrency:\n    Type: Number\n    Default: 5";
    assert!(TEMPLATE.contains(parameter));
    assert_eq!(reserved(&TEMPLATE.replacen(parameter, &parameter.replace('5', "0"), 1)), None);
}

#[test]
fn the_template_comes_out_with_names_urls_and_arns() {
    let template = read(TEMPLATE).unwrap();
    let launcher = &template.functions["Launcher"];
    let variable = |name: &str| launcher.environment[name].as_str();
    assert_eq!(launcher.name, "d-launcher");
    assert_eq!(launcher.code, Path::new("/p/target/lambda/launcher"));
    assert_eq!(variable("HINTS_QUEUE_URL"), "http://gate/111122223333/d-hints");
    assert_eq!(variable("SOURCES_QUEUE_URL"), "http://gate/111122223333/d-sources.fifo");
    assert_eq!(variable("BUCKET"), "d-111122223333-eu-west-1");
    assert_eq!(variable("SUBNETS"), "subnet-1,subnet-2");
    assert_eq!(variable("TASK_ROLE_ID"), template.roles["TaskRole"].id);
    assert_eq!(variable("TASK_ROLE_ARN"), template.roles["TaskRole"].arn);
    assert_eq!(template.functions["Sweeper"].environment["CLUSTERS"], "kind,other");
    assert_eq!(template.functions["Webhook"].environment["WEBHOOK_KEYS_SECRET"], "driftless/webhook-keys");
    assert_eq!(template.queues["Hints"].arn, "arn:aws:sqs:eu-west-1:111122223333:d-hints");
    assert!(template.queues["Sources"].is_fifo() && !template.queues["Hints"].is_fifo());
    assert_eq!(template.rules["TaskStopped"].pattern["detail"]["clusterArn"][0], "arn:aws:ecs:eu-west-1:111122223333:cluster/d");
    assert_eq!(template.functions["Sweeper"].schedules[0].every.as_secs(), 60);
    assert_eq!(template.outputs["WebhookUrl"], "http://hook/");
}

#[test]
fn every_function_that_has_a_cluster_has_a_kubeconfig_and_the_webhook_has_none() {
    let template = read(TEMPLATE).unwrap();
    let with: Vec<_> = template
        .functions
        .iter()
        .filter_map(|(id, function)| Some((id.as_str(), function.environment.get("KUBECONFIG_SECRET")?)))
        .collect();
    let ids: Vec<_> = with.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["Fetcher", "Launcher", "Reconciler", "Recorder", "Sweeper"]);
    for (id, secret) in &with {
        assert_eq!(**secret, format!("driftless/kubeconfig/{}", id.to_lowercase()));
        let arn = format!("arn:aws:secretsmanager:eu-west-1:111122223333:secret:{secret}-abcdef");
        let read = Demand::new("secretsmanager:GetSecretValue", arn);
        let readers = template.functions.iter().filter(|(_, function)| template.allows(&function.role, &read));
        assert_eq!(readers.map(|(reader, _)| reader.as_str()).collect::<Vec<_>>(), [*id], "each reads its own and no other");
    }
}

#[test]
fn archives_have_the_limits_that_the_crate_has_by_itself() {
    let environment = &read(TEMPLATE).unwrap().functions["Fetcher"].environment;
    let set =
        ["BYTES", "ENTRIES", "PATH_LENGTH", "DEPTH", "RATIO"].map(|name| environment[&format!("UNPACK_MAX_{name}")].clone());
    let Limits { bytes, entries, path_length, depth, ratio } = Limits::default();
    assert_eq!(set, [bytes.to_string(), entries.to_string(), path_length.to_string(), depth.to_string(), ratio.to_string()]);
}

#[test]
fn messages_are_hidden_for_six_time_limits_and_every_fed_queue_has_dead_letters() {
    let template = read(TEMPLATE).unwrap();
    for (id, function) in &template.functions {
        for mapping in &function.mappings {
            let queue = template.queue(&mapping.queue).unwrap();
            assert!(queue.visibility() >= function.timeout * 6, "{id}");
            assert!(queue.attributes.contains_key("RedrivePolicy") && mapping.partial, "{id}");
        }
    }
}

#[test]
fn each_function_that_rbac_knows_has_an_access_entry_with_its_group() {
    let template: Value = serde_saphyr::from_str(include_str!("../../../../infra/cluster.yaml")).unwrap();
    let resources = template["Resources"].as_object().unwrap();
    let entries = resources.iter().filter(|(_, entry)| entry["Type"] == "AWS::EKS::AccessEntry");
    let entries: BTreeSet<String> = entries
        .map(|(id, entry)| {
            assert_eq!(entry["Properties"]["PrincipalArn"]["Ref"], format!("{id}RoleArn"));
            let group = entry["Properties"]["KubernetesGroups"][0].as_str().unwrap();
            assert_eq!(group, format!("driftless:{}", id.to_lowercase()));
            group.to_owned()
        })
        .collect();
    let rbac = include_str!("../../../../infra/kubernetes/rbac.yaml");
    let groups = rbac.split("kind: Group\n").skip(1).filter_map(|rest| rest.trim_start().strip_prefix("name: "));
    let groups: BTreeSet<String> = groups.filter_map(|rest| rest.lines().next()).map(Into::into).collect();
    // The forwarder's group is its ServiceAccount's matter.
    assert_eq!(entries, groups.into_iter().filter(|group| group != "driftless:forwarder").collect());
}

/// The console shows a parameter that is in no group at the end, without a heading.
#[test]
fn every_parameter_is_in_one_group() {
    let template: Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let groups = template["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"].as_array().unwrap();
    let mut grouped: Vec<_> = groups.iter().flat_map(|group| group["Parameters"].as_array().unwrap()).cloned().collect();
    let mut parameters: Vec<Value> =
        template["Parameters"].as_object().unwrap().keys().map(|name| name.as_str().into()).collect();
    grouped.sort_by_key(Value::to_string);
    parameters.sort_by_key(Value::to_string);
    assert_eq!(grouped, parameters);
}

#[test]
fn only_functions_in_a_vpc_may_have_network_interfaces_made() {
    let may = |settings: &Settings, role: &str, function: Option<&str>| {
        let template = Template::parse(TEMPLATE, Path::new("/p/infra"), settings).unwrap();
        // Of the account that shares its VPC.
        let demand = Demand::new("ec2:CreateNetworkInterface", "arn:aws:ec2:eu-west-1:444455556666:subnet/subnet-1");
        let function = function.map(|name| format!("arn:aws:lambda:eu-west-1:111122223333:function:{name}"));
        template.allows(role, &function.map_or(demand.clone(), |arn| demand.with("lambda:SourceFunctionArn", arn)))
    };
    let mut settings = settings();
    assert!(!may(&settings, "LauncherRole", None));
    settings.parameters.insert("FunctionSubnets".into(), "subnet-1,subnet-2".into());
    settings.parameters.insert("FunctionSecurityGroups".into(), "sg-1".into());
    for role in ["ReconcilerRole", "FetcherRole", "LauncherRole", "RecorderRole", "SweeperRole"] {
        assert!(may(&settings, role, None), "{role}");
        assert!(!may(&settings, role, Some("d-launcher")), "{role}");
    }
    assert!(!may(&settings, "WebhookRole", None) && !may(&settings, "TaskRole", None));
}

/// Whoever may send to a queue that leads back to itself would be stopped by Lambda after 16 hops.
#[test]
fn a_function_in_a_cycle_of_messages_allows_it_and_no_other_does() {
    let template = read(TEMPLATE).unwrap();
    let next = |from: &str| -> BTreeSet<String> {
        let role = &template.functions[from].role;
        let sends = |queue: &str| template.allows(role, &Demand::new("sqs:SendMessage", queue));
        let fed = template.functions.iter().filter(|(_, function)| function.mappings.iter().any(|mapping| sends(&mapping.queue)));
        fed.map(|(id, _)| id.clone()).collect()
    };
    for (id, function) in &template.functions {
        let mut reached = next(id);
        while let Some(more) = reached.iter().flat_map(|id| next(id)).find(|id| !reached.contains(id)) {
            reached.insert(more);
        }
        assert_eq!(function.recursive, reached.contains(id), "{id}");
    }
}

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

/// A PUT as the gate asks for it: `once` has `If-None-Match: *`.
fn put(template: &Template, key: &str, once: bool) -> Demand {
    let demand = Demand::new("s3:PutObject", format!("arn:aws:s3:::{}/{key}", template.bucket));
    let demand = demand.with("s3:ObjectCreationOperation", "true");
    if once { demand.with("s3:if-none-match", "*") } else { demand }
}

/// Whether somebody of the account may do this whose own policy allows every action on every resource.
fn anyone_may(template: &Template, demand: &Demand) -> bool {
    let everything = serde_json::json!({ "Effect": "Allow", "Action": "*", "Resource": "*" });
    let everything: Statement = serde_json::from_value(everything).unwrap();
    let demand = template.asked_by("none", "AIDA", demand).with("aws:PrincipalArn", "arn:aws:iam::111122223333:role/ReadOnly");
    policy::allows(std::iter::once(&everything).chain(template.policy_of(&demand.resource)), Who::Role, &demand)
}

#[test]
fn a_task_writes_progress_lock_and_one_result_and_nothing_else() {
    let template = read(TEMPLATE).unwrap();
    let id = &template.roles["TaskRole"].id;
    let may = |demand: &Demand| template.allows("TaskRole", &template.asked_by("TaskRole", &format!("{id}:t1"), demand));
    let may_put = |key: &str, once: bool| may(&put(&template, &format!("tasks/{id}:{key}"), once));
    for name in ["progress", "lock"] {
        assert!(may_put(&format!("t1/out/{name}"), false), "{name}");
    }
    assert!(may_put("t1/out/result", true));
    assert!(!may_put("t1/out/result", false), "a result without a condition could replace one");
    for key in ["t1/out/x", "t1/out/a/result", "t1/out/result/x", "t1/out/progress/", "t1/out/", "t1/in/spec", "t2/out/result"] {
        assert!(!may_put(key, false) && !may_put(key, true), "{key}");
    }
    for name in ["progress", "lock", "result"] {
        let part = put(&template, &format!("tasks/{id}:t1/out/{name}"), true).with("s3:ObjectCreationOperation", "false");
        assert!(!may(&part), "a part of an upload of {name}");
    }
}

#[test]
fn owner_outcome_result_and_key_are_write_once_for_everyone() {
    let template = read(TEMPLATE).unwrap();
    let task = &template.roles["TaskRole"].id;
    let result = format!("tasks/{task}:t1/out/result");
    for key in ["runs/kind/u/owner", "runs/arn:aws:eks:r:1:cluster/c/u/outcome", result.as_str(), keys::INPUTS_KEY] {
        assert!(anyone_may(&template, &put(&template, key, true)), "{key}");
        assert!(!anyone_may(&template, &put(&template, key, false)), "{key}");
    }
    for (role, key) in [
        ("LauncherRole", "runs/kind/u/owner"),
        ("LauncherRole", keys::INPUTS_KEY),
        ("RecorderRole", "runs/kind/u/owner"),
        ("RecorderRole", "runs/kind/u/outcome"),
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

/// A task may write progress as often as it likes.
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
fn leftovers_of_tasks_expire_after_the_longest_run() {
    let template = read(TEMPLATE).unwrap();
    let rules = template.resources["Bucket"].properties["LifecycleConfiguration"]["Rules"].as_array().unwrap();
    let tasks: Vec<_> = rules.iter().filter(|rule| rule["Prefix"] == "tasks/").collect();
    assert_eq!((tasks.len(), &tasks[0]["ExpirationInDays"], &tasks[0]["Status"]), (1, &2.into(), &"Enabled".into()));
    // `in/run` says which run a live task is of, to the end of the longest run.
    let raw: Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let longest = raw["Parameters"]["MaxRunSeconds"]["MaxValue"].as_u64();
    assert!(longest.is_none_or(|longest| longest + 3600 <= 2 * 86400), "a run of {longest:?} s outlives its task's folder");
    let parts = rules.iter().find(|rule| rule["Prefix"].is_null()).unwrap();
    assert_eq!(parts["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"], 1);
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

/// AWS's policy `ReadOnlyAccess` has `s3:Get*` on every bucket.
#[test]
fn a_right_to_read_every_bucket_reads_no_run() {
    let template = read(TEMPLATE).unwrap();
    let task = &template.roles["TaskRole"].id;
    let secret = [
        format!("tasks/{task}:t1/in/spec"),
        format!("tasks/{task}:t1/in/identity"),
        format!("tasks/{task}:t1/out/result"),
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
    let may = |namespace: &str, account: &str, cluster: &str| {
        let role = &template.roles["ForwarderRole"];
        ["sts:AssumeRole", "sts:TagSession"].iter().all(|action| {
            let demand = Demand::new(*action, &role.arn)
                .with("aws:RequestTag/kubernetes-namespace", namespace)
                .with("aws:RequestTag/kubernetes-service-account", account)
                .with("aws:RequestTag/eks-cluster-arn", cluster);
            policy::allows(&role.trust, Who::Service("pods.eks.amazonaws.com"), &demand)
        })
    };
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
fn the_bucket_refuses_whoever_comes_without_tls() {
    let template = read(TEMPLATE).unwrap();
    let get = Demand::new("s3:GetObject", format!("arn:aws:s3:::{}/runs/kind/u/launch", template.bucket));
    let get = template.asked_by("LauncherRole", "AROA:f", &get);
    assert!(template.allows("LauncherRole", &get));
    assert!(!template.allows("LauncherRole", &get.with("aws:SecureTransport", "false")));
}

#[test]
fn the_limits_of_runs_are_documented_as_they_are() {
    let template: serde_json::Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let docs = include_str!("../../../../docs/runs.md").split("\n## ").find(|section| section.starts_with("Limits")).unwrap();
    let rows: Vec<_> = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).collect();
    assert_eq!(rows.len(), 6);
    for (name, rest) in rows {
        let default = match template["Parameters"][name]["Default"].as_i64() {
            Some(0) => "none".to_owned(),
            Some(default) => default.to_string(),
            None => panic!("{name} is no parameter with a number for default"),
        };
        assert_eq!(rest.split(" |").next(), Some(default.as_str()), "{name}");
    }
}

#[test]
fn what_is_not_known_or_does_not_resolve_is_named() {
    for (from, to, words) in [
        (
            "AWS::ECS::ClusterCapacityProviderAssociations",
            "AWS::ECS::Service",
            "CapacityProviders: AWS::ECS::Service is not known here",
        ),
        ("Ref: TaskLogs", "Ref: TaskLog", "TaskLog is neither a parameter nor a resource"),
        ("Fn::GetAtt: [TaskRole, RoleId]", "Fn::GetAtt: [TaskRole, Name]", "the attribute Name of TaskRole"),
        ("RecursiveLoop: Allow", "RecursiveLoops: Allow", "unknown field `RecursiveLoops`"),
        ("SqsManagedSseEnabled: true", "KmsMasterKeyId: x", "KmsMasterKeyId is not known here"),
        ("DependsOn: [RunsPolicy, ProgressPolicy]", "Condition: RunsPolicy", "RunsPolicy is no condition"),
        ("DependsOn: [RunsPolicy, ProgressPolicy]", "CreationPolicy: RunsPolicy", "CreationPolicy is not known here"),
        ("Outputs:", "Mappings:", "this section is not known here"),
        ("AWS::CloudWatch::Dashboard", "AWS::CloudWatch::CompositeAlarm", "AWS::CloudWatch::CompositeAlarm is not known here"),
        ("OKActions", "InsufficientDataActions", "unknown field `InsufficientDataActions`"),
        ("Fn::If: [HasAlarmTopic", "Fn::If: [HasTopic", "HasTopic is no condition"),
        ("Fn::Equals:", "Fn::Contains:", "is not known here"),
        ("MAX([hintsDeadLetters", "MAX([hintDeadLetters", "hintDeadLetters in an expression is none of its metrics"),
        ("SEARCH('{Driftless", "SEARCH('Driftless", "a search that is not known here"),
        ("{\"widgets\": [", "{\"widgets\": ", "its body: "),
        ("Fn::Join:", "Fn::Split:", "Fn::Split"),
        ("\"${AWS::StackName}-hints\"", "\"${Hints.Arn}-hints\"", "its name depends on itself"),
        ("MemorySize: 256", "MemorySize: much", "a property is not of its type"),
    ] {
        let error = broken(from, to);
        assert!(error.contains(words), "{error}");
    }
}

/// What AWS has of its own, as far as it is used, and the dimensions.
const OF_AWS: [(&str, &str, &[&str]); 8] = [
    ("AWS/SQS", "ApproximateAgeOfOldestMessage", &["QueueName"]),
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible", &["QueueName"]),
    ("AWS/Lambda", "Errors", &["FunctionName"]),
    ("AWS/Lambda", "Throttles", &["FunctionName"]),
    ("AWS/Lambda", "Duration", &["FunctionName"]),
    ("AWS/Lambda", "Invocations", &["FunctionName"]),
    ("AWS/Lambda", "ConcurrentExecutions", &["FunctionName"]),
    ("AWS/Usage", "ResourceCount", &["Class", "Resource", "Service", "Type"]),
];

/// Why nobody writes this metric, or nobody with these dimensions.
fn nobody_writes(template: &Template, metric: &Metric) -> Option<String> {
    let dimensions: BTreeSet<&str> = metric.dimensions.keys().map(String::as_str).collect();
    let is = |names: &&[&str]| names.iter().copied().collect::<BTreeSet<_>>() == dimensions;
    let known = if metric.namespace == metrics::NAMESPACE {
        let written = metrics::Metric::ALL.iter().find(|written| written.name() == metric.name);
        written.is_some_and(|written| written.dimensions().iter().any(&is))
    } else {
        OF_AWS.iter().any(|(namespace, name, names)| metric.namespace == *namespace && metric.name == *name && is(names))
    };
    let values = metric.dimensions.iter().all(|(name, value)| match name.as_str() {
        "QueueName" => template.queues.values().any(|queue| queue.name == *value),
        "FunctionName" => template.functions.values().any(|function| function.name == *value),
        _ => true,
    });
    (!known || !values).then(|| format!("{metric:?}"))
}

#[test]
fn what_the_dashboard_and_the_alarms_read_is_written() {
    let template = read(TEMPLATE).unwrap();
    let [dashboard] = template.dashboards.as_slice() else { panic!("one dashboard") };
    let read_by_alarms = template.alarms.values().flat_map(|alarm| &alarm.metrics);
    let unknown: Vec<_> =
        dashboard.metrics.iter().chain(read_by_alarms).filter_map(|metric| nobody_writes(&template, metric)).collect();
    assert_eq!(unknown, Vec::<String>::new());
    let shown: BTreeSet<_> = dashboard.metrics.iter().map(|metric| metric.name.as_str()).collect();
    for metric in metrics::Metric::ALL {
        assert!(shown.contains(metric.name()), "{metric:?} is written and not shown");
    }
    for (from, to) in
        [("RunsEnded", "RunsEnd"), ("{Driftless,cluster,reason}", "{Driftless,cluster}"), ("${Runs.QueueName}", "runs")]
    {
        assert!(TEMPLATE.contains(from));
        let other = read(&TEMPLATE.replace(from, to)).unwrap();
        assert!(other.dashboards[0].metrics.iter().any(|metric| nobody_writes(&other, metric).is_some()), "{from}");
    }
}

#[test]
fn every_queue_and_every_function_is_shown_and_alarmed() {
    let template = read(TEMPLATE).unwrap();
    let values = |metrics: &BTreeSet<Metric>, name: &str, dimension: &str| -> BTreeSet<String> {
        metrics
            .iter()
            .filter(|metric| metric.name == name)
            .filter_map(|metric| metric.dimensions.get(dimension))
            .cloned()
            .collect()
    };
    let (dead, alive): (BTreeSet<_>, BTreeSet<_>) =
        template.queues.values().map(|queue| queue.name.clone()).partition(|name| name.contains("dead-letters"));
    let functions: BTreeSet<_> = template.functions.values().map(|function| function.name.clone()).collect();
    let all: BTreeSet<_> = dead.union(&alive).cloned().collect();
    let of = |alarm: &str, name: &str, dimension: &str| values(&template.alarms[alarm].metrics, name, dimension);
    let shown = |name: &str, dimension: &str| values(&template.dashboards[0].metrics, name, dimension);
    assert_eq!(of("DeadLettersAlarm", "ApproximateNumberOfMessagesVisible", "QueueName"), dead);
    assert_eq!(of("OldMessagesAlarm", "ApproximateAgeOfOldestMessage", "QueueName"), alive);
    assert_eq!(of("FunctionErrorsAlarm", "Errors", "FunctionName"), functions);
    assert_eq!(of("FunctionThrottlesAlarm", "Throttles", "FunctionName"), functions);
    assert_eq!(shown("ApproximateNumberOfMessagesVisible", "QueueName"), all);
    assert_eq!(shown("ApproximateAgeOfOldestMessage", "QueueName"), alive);
    for name in ["Errors", "Throttles", "Duration", "ConcurrentExecutions"] {
        assert_eq!(shown(name, "FunctionName"), functions, "{name}");
    }
}

#[test]
fn alarms_go_to_the_topic_if_there_is_one() {
    let actions = |settings: &Settings| -> BTreeSet<Vec<String>> {
        let template = Template::parse(TEMPLATE, Path::new("/p/infra"), settings).unwrap();
        template.alarms.into_values().map(|alarm| alarm.actions).collect()
    };
    let mut settings = settings();
    assert_eq!(actions(&settings), [vec![]].into());
    settings.parameters.insert("AlarmTopicArn".into(), "arn:aws:sns:eu-west-1:1:ops".into());
    assert_eq!(actions(&settings), [vec!["arn:aws:sns:eu-west-1:1:ops".to_owned()]].into());
}

#[test]
fn every_metric_and_every_alarm_is_documented_as_it_is() {
    let docs = include_str!("../../../../docs/operations.md");
    let section = |name: &str| docs.split("\n## ").find(|section| section.starts_with(name)).unwrap();
    let rows = |name: &str| -> Vec<Vec<String>> {
        let rows = section(name).lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect()).collect()
    };
    let written = metrics::Metric::ALL.iter().map(|metric| {
        let sets: Vec<_> = metric.dimensions().iter().map(|set| set.join(", ")).collect();
        vec![metric.name().to_owned(), metric.unit().to_owned(), sets.join("; ")]
    });
    let documented: Vec<_> = rows("Metrics")
        .into_iter()
        .map(|mut row| {
            row.truncate(3);
            row
        })
        .collect();
    assert_eq!(documented, written.collect::<Vec<_>>());
    let alarms: BTreeSet<_> = rows("Alarms").into_iter().map(|row| row[0].clone()).collect();
    let template = read(TEMPLATE).unwrap();
    assert_eq!(alarms, template.alarms.values().map(|alarm| alarm.name.trim_start_matches("d-").to_owned()).collect());
}

#[test]
fn a_wrong_wire_is_found_before_anything_starts() {
    for (from, to, words) in [
        ("VisibilityTimeout: 360", "VisibilityTimeout: 30", "show again before its time limit is over"),
        ("Service: events.amazonaws.com", "Service: sns.amazonaws.com", "does not let events.amazonaws.com send"),
        ("Service: s3.amazonaws.com", "Service: sns.amazonaws.com", "does not let s3.amazonaws.com send"),
        ("[sqs:ReceiveMessage, sqs:DeleteMessage,", "[sqs:DeleteMessage,", "permission to call sqs:ReceiveMessage"),
        ("Service: lambda.amazonaws.com", "Service: ecs-tasks.amazonaws.com", "does not trust lambda.amazonaws.com"),
        ("Action: lambda:InvokeFunctionUrl", "Action: lambda:GetFunction", "no permission lets in lambda:InvokeFunctionUrl"),
        ("InvokedViaFunctionUrl: true", "InvokedViaFunctionUrl: false", "no permission lets in lambda:InvokeFunction by"),
        ("Fn::GetAtt: [SweeperSweep, Arn]", "Fn::GetAtt: [TaskStopped, Arn]", "no permission lets in lambda:InvokeFunction by"),
        ("Ref: Reconciler\n      EventSourceArn", "Ref: Hints\n      EventSourceArn", "no function of the template is"),
        ("Fn::GetAtt: [SourcesDeadLetters, Arn]", "Fn::GetAtt: [HintsDeadLetters, Arn]", "must both be FIFO"),
    ] {
        let error = broken(from, to);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn no_environment_of_a_function_has_a_secret_written_into_it() {
    let of_cloudformation = "Fn::Sub: \"{{resolve:secretsmanager:${WebhookKeysSecret}}}\"";
    let error = broken(
        "WEBHOOK_KEYS_SECRET:\n            Ref: WebhookKeysSecret",
        &format!("WEBHOOK_KEYS:\n            {of_cloudformation}"),
    );
    assert!(error.contains("a secret would stand in what CloudFormation and Lambda show"), "{error}");
}

#[test]
fn no_secret_is_in_an_error() {
    let mut settings = settings();
    settings.parameters.insert("GitCaCertificates".into(), "canary".repeat(1000));
    let error = Template::parse(TEMPLATE, Path::new("."), &settings).err().unwrap().to_string();
    assert!(error.contains("more than Lambda's 4096") && !error.contains("canary"), "{error}");
}
