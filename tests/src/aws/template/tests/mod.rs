//! The content of the template, and the errors of invalid ones.

mod alarms;
mod rights;

use std::collections::BTreeSet;

use driftless_contract::keys;
use driftless_core::DefaultSize;
use driftless_source::Limits;
use driftless_telemetry::metrics;

use super::*;
use crate::aws::policy::Demand;

const TEMPLATE: &str = include_str!("../../../../../infra/template.yaml");

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

/// Reads the template with one text replaced, and returns the error's message.
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
fn fetcher_reads_the_named_git_files_and_no_other_object() {
    let [known_hosts, certificates] = crate::aws::GIT_FILES;
    let may = |template: &Template, arn: &str| template.allows("FetcherRole", &Demand::new("s3:GetObject", arn.to_owned()));
    let mut settings = settings();
    for (named, other) in [(known_hosts, certificates), (certificates, known_hosts)] {
        settings.parameters.remove(other.0);
        settings.parameters.insert(named.0.into(), named.1.into());
        let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
        assert!(may(&template, named.1), "{}", named.0);
        assert!(!may(&template, other.1) && !may(&template, &format!("{}.bak", named.1)), "{}", named.0);
    }
    assert!(!may(&read(TEMPLATE).unwrap(), certificates.1));
}

#[test]
fn default_size_of_tasks_is_that_of_the_core_and_a_parameter() {
    let size = |template: &Template| {
        ["TASK_CPU", "TASK_MEMORY_MIB"].map(|name| template.functions["Launcher"].environment[name].clone())
    };
    let DefaultSize { cpu, memory_mib } = DefaultSize::default();
    assert_eq!(size(&read(TEMPLATE).unwrap()), [cpu.to_string(), memory_mib.to_string()]);
    let mut settings = settings();
    settings.parameters.extend([("TaskCpu", "512"), ("TaskMemory", "4096")].map(|(name, value)| (name.into(), value.into())));
    let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    assert_eq!(size(&template), ["512", "4096"]);
    settings.parameters.insert("TaskCpu".into(), "1000".into());
    assert!(Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).is_err());
}

#[test]
fn throughput_of_every_queue_is_a_parameter() {
    let names = ["Reconciler", "Fetcher", "Launcher", "Recorder", "Progress"];
    let mut settings = settings();
    for (number, name) in (3..).zip(names) {
        settings.parameters.insert(format!("{name}Concurrency"), (number * 10).to_string());
        settings.parameters.insert(format!("{name}BatchSize"), number.to_string());
    }
    let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    let mappings = template.functions.values().flat_map(|function| &function.mappings);
    let mut found: Vec<_> = mappings.map(|mapping| (mapping.batch_size, mapping.concurrency)).collect();
    found.sort_unstable();
    assert_eq!(found, [(3, 30), (4, 40), (5, 50), (6, 60), (7, 70)]);
    settings.parameters.insert("LauncherBatchSize".into(), "11".into());
    assert!(Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).is_err());
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
fn without_a_public_webhook_nothing_of_it_is_made() {
    let mut settings = settings();
    settings.parameters.insert("PublicWebhook".into(), "DISABLED".into());
    let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    let all = read(TEMPLATE).unwrap();
    let gone: Vec<_> = all.resources.keys().filter(|id| !template.resources.contains_key(*id)).collect();
    assert_eq!(
        gone,
        ["Webhook", "WebhookLogs", "WebhookRole", "WebhookUrl", "WebhookUrlInvokePermission", "WebhookUrlPermission"]
    );
    assert!(template.functions.values().all(|function| !function.has_url) && !template.outputs.contains_key("WebhookUrl"));
    let public = template.resources.values().filter(|resource| resource.kind == "AWS::Lambda::Permission");
    assert!(public.into_iter().all(|permission| permission.properties["Principal"] != "*"));
}

#[test]
fn a_permissions_boundary_is_on_every_role() {
    let boundary = "arn:aws:iam::111122223333:policy/boundary";
    let mut settings = settings();
    settings.parameters.insert("PermissionsBoundary".into(), boundary.into());
    for (text, expected) in [
        (read(TEMPLATE), None),
        (Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).map_err(|error| error.to_string()), Some(boundary)),
    ] {
        let template = text.unwrap();
        let roles: Vec<_> = template.resources.iter().filter(|(_, resource)| resource.kind == "AWS::IAM::Role").collect();
        assert_eq!(roles.len(), 9);
        for (id, role) in roles {
            assert_eq!(role.properties["PermissionsBoundary"].as_str(), expected, "{id}");
        }
    }
}

#[test]
fn the_launcher_tags_tasks_and_definitions_only_when_it_makes_them() {
    let template = read(TEMPLATE).unwrap();
    let tag = |resource: &str, by: Option<&str>| {
        let demand = Demand::new("ecs:TagResource", format!("arn:aws:ecs:eu-west-1:111122223333:{resource}"));
        template.allows("LauncherRole", &by.map_or(demand.clone(), |by| demand.with("ecs:CreateAction", by)))
    };
    assert!(tag("task/d/*", Some("RunTask")));
    let definition = "task-definition/driftless-0a1b:*";
    assert!(tag(definition, Some("RegisterTaskDefinition")) && !tag(definition, None) && !tag(definition, Some("RunTask")));
    assert!(!tag("task-definition/other:*", Some("RegisterTaskDefinition")));
    assert!(!tag("task/d/t1", None) && !tag("task/other/*", Some("RunTask")) && !tag("task/d/*", Some("CreateService")));
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
fn scheduled_function_that_fails_is_not_invoked_again() {
    let template = read(TEMPLATE).unwrap();
    for (id, function) in template.functions.iter().filter(|(_, function)| !function.schedules.is_empty()) {
        assert_eq!((function.retries, function.event_age.as_secs()), (0, 60), "{id}");
    }
    assert_eq!((template.functions["Webhook"].retries, template.functions["Webhook"].event_age.as_secs()), (2, 21_600));
    for wrong in ["MaximumRetryAttempts: 3", "MaximumRetryAttempts: 0\n      Destination: x"] {
        assert!(read(&TEMPLATE.replacen("MaximumRetryAttempts: 0", wrong, 1)).is_err(), "{wrong}");
    }
    assert!(read(&TEMPLATE.replacen("MaximumEventAgeInSeconds: 60", "MaximumEventAgeInSeconds: 59", 1)).is_err());
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
fn each_function_moves_failed_messages_to_the_dead_letters_of_its_queue() {
    let template = read(TEMPLATE).unwrap();
    for (id, function) in template.functions.iter().filter(|(_, function)| !function.mappings.is_empty()) {
        let redrives = function.mappings.iter().filter_map(|mapping| {
            let queue = template.queue(&mapping.queue).unwrap();
            // A message that expires before its next delivery is never a dead letter.
            let policy: Value = serde_json::from_str(&queue.attributes["RedrivePolicy"]).unwrap();
            (queue.retention() > queue.visibility()).then(|| (queue, policy["deadLetterTargetArn"].as_str().unwrap().to_owned()))
        });
        let [(queue, target)] = &redrives.collect::<Vec<_>>()[..] else { panic!("{id} needs one dead-letter queue") };
        assert_eq!(function.environment["DEAD_LETTERS_QUEUE_URL"], template.queue(target).unwrap().url, "{id}");
        assert!(template.allows(&function.role, &Demand::new("sqs:SendMessage", target)), "{id}");
        // It fails that often before it expires.
        let attempts: u32 = function.environment["MAX_ATTEMPTS"].parse().unwrap();
        assert!(queue.visibility() * (attempts - 1) < queue.retention(), "{id}");
        let attempt = Demand::new("s3:PutObject", format!("arn:aws:s3:::{}/{}", template.bucket, keys::attempts("m").attempt(1)));
        assert!(template.allows(&function.role, &attempt), "{id}");
    }
}

#[test]
fn each_function_that_rbac_knows_has_an_access_entry_with_its_group() {
    let template: Value = serde_saphyr::from_str(include_str!("../../../../../infra/cluster.yaml")).unwrap();
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
    let rbac = include_str!("../../../../../infra/kubernetes/rbac.yaml");
    let groups = rbac.split("kind: Group\n").skip(1).filter_map(|rest| rest.trim_start().strip_prefix("name: "));
    let groups: BTreeSet<String> = groups.filter_map(|rest| rest.lines().next()).map(Into::into).collect();
    // The forwarder's group belongs to its ServiceAccount.
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
fn queue_urls_of_docs_and_values_name_queues_of_the_template() {
    let settings = Settings { stack: "driftless".into(), ..settings() };
    let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    let queues: BTreeSet<_> = template.queues.values().filter_map(|queue| queue.arn.rsplit(':').next()).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path());
    let pages = pages.filter(|page| page.is_file());
    let values = ["README.md", "infra/chart/values.yaml", "infra/bootstrap/Pulumi.yaml", "infra/flux/driftless.yaml"];
    let mut named = 0;
    for file in pages.chain(values.map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&file).unwrap();
        for url in text.split("https://sqs.").skip(1) {
            let path = url.split(|char: char| !char.is_ascii_alphanumeric() && !"-./".contains(char)).next().unwrap();
            let name = path.rsplit('/').next().unwrap();
            assert!(queues.contains(name), "{} names the queue {name}, which the template has not", file.display());
            named += 1;
        }
    }
    assert!(named >= 2, "only {named} URLs of queues were found");
}

#[test]
fn template_manifests_chart_and_bootstrap_name_the_same_objects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let default = |template: &str, name: &str| {
        let template: Value = serde_saphyr::from_str(template).unwrap();
        template["Parameters"][name]["Default"].as_str().unwrap().to_owned()
    };
    let cluster = text("infra/cluster.yaml");
    for name in ["SystemNamespace", "ForwarderServiceAccount"] {
        assert_eq!(default(TEMPLATE, name), default(&cluster, name), "{name}");
    }
    let (namespace, account) = (default(TEMPLATE, "SystemNamespace"), default(TEMPLATE, "ForwarderServiceAccount"));
    let forwarder = text("infra/kubernetes/forwarder.yaml");
    assert!(forwarder.contains(&format!("kind: ServiceAccount\nmetadata:\n  name: {account}\n  namespace: {namespace}\n")));
    assert!(forwarder.contains(&format!("serviceAccountName: {account}\n")));
    for file in ["infra/flux/driftless.yaml", "infra/bootstrap/Pulumi.yaml"] {
        assert!(text(file).contains(&format!("namespace: {namespace}\n")), "{file}");
    }
    // Flux's key: `make deploy` prints how to create it, the program creates it, and the Provider
    // names it.
    assert!(text("infra/kubernetes/flux.yaml").contains("secretRef:\n    name: driftless\n"));
    assert!(text("infra/deploy").contains("--namespace flux-system create secret generic driftless "));
    assert!(
        text("infra/bootstrap/Pulumi.yaml")
            .contains("kind: Secret\n        metadata:\n          name: driftless\n          namespace: flux-system\n")
    );
    // `infra/images/build` gives the images these names.
    for file in ["infra/chart/values.yaml", "docs/bootstrap.md", "docs/aws.md"] {
        for image in
            text(file).split(".amazonaws.com/").skip(1).filter_map(|rest| rest.split_once('@')).map(|(name, _)| name.to_owned())
        {
            let named = image.split(char::is_whitespace).next().unwrap();
            assert!(
                !named.starts_with("driftless") || ["driftless-runner", "driftless-forwarder"].contains(&named),
                "{file} names {named}"
            );
        }
    }
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
    for role in ["ReconcilerRole", "FetcherRole", "LauncherRole", "RecorderRole", "SweeperRole", "WebhookRole"] {
        assert!(may(&settings, role, None), "{role}");
        assert!(!may(&settings, role, Some("d-launcher")), "{role}");
    }
    assert!(!may(&settings, "TaskRole", None));
    let template = Template::parse(TEMPLATE, Path::new("/p/infra"), &settings).unwrap();
    for (id, resource) in template.resources.iter().filter(|(_, resource)| resource.kind == "AWS::Lambda::Function") {
        assert_eq!(resource.properties["VpcConfig"]["SubnetIds"], serde_json::json!(["subnet-1", "subnet-2"]), "{id}");
    }
}

/// Lambda stops a function after 16 hops if its messages return to it.
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
fn the_limits_of_runs_are_documented_as_they_are() {
    let template: serde_json::Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let docs = include_str!("../../../../../docs/runs.md").split("\n## ").find(|section| section.starts_with("Limits")).unwrap();
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
        ("[FARGATE, FARGATE_SPOT]", "[FARGATE, SPOT]", "SPOT is no capacity provider of Fargate"),
    ] {
        let error = broken(from, to);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_wrong_wire_is_found_before_anything_starts() {
    for (from, to, words) in [
        ("VisibilityTimeout: 360", "VisibilityTimeout: 30", "show again before its time limit is over"),
        ("Service: events.amazonaws.com", "Service: sns.amazonaws.com", "does not let events.amazonaws.com send"),
        ("Service: s3.amazonaws.com", "Service: sns.amazonaws.com", "does not let s3.amazonaws.com send"),
        ("[sqs:ReceiveMessage, sqs:DeleteMessage,", "[sqs:DeleteMessage,", "permission to call sqs:ReceiveMessage"),
        ("LogGroup:\n          Ref: WebhookLogs", "LogGroup:\n          Ref: Webhook", "its log group is none of the template"),
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
    settings.parameters.insert("GitPrivateHosts".into(), "canary".repeat(1000));
    let error = Template::parse(TEMPLATE, Path::new("."), &settings).err().unwrap().to_string();
    assert!(error.contains("more than Lambda's 4096") && !error.contains("canary"), "{error}");
}
