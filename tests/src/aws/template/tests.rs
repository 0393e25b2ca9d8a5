use std::collections::BTreeSet;

use super::*;

const TEMPLATE: &str = include_str!("../../../../infra/template.yaml");

fn settings() -> Settings {
    let parameters = [
        ("ClusterNames", "kind, other"),
        ("KubeconfigLayer", "layer"),
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
        secrets: [("driftless/webhook-keys".to_owned(), "{\"kind\":\"k\"}".to_owned())].into(),
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
    assert_eq!(template.functions["Webhook"].environment["WEBHOOK_KEYS"], "{\"kind\":\"k\"}");
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
        .filter(|(_, function)| function.environment.contains_key("KUBECONFIG"))
        .map(|(id, _)| id.as_str())
        .collect();
    assert_eq!(with, ["Fetcher", "Launcher", "Reconciler", "Recorder", "Sweeper"]);
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
        let demand = Demand::new(action, format!("arn:aws:s3:::{}{key}", template.bucket)).with("aws:userid", format!("{id}:t1"));
        template.allows("TaskRole", &demand.with("aws:SecureTransport", "true"))
    };
    assert!(may("s3:GetObject", &format!("/tasks/{id}:t1/in/spec")));
    assert!(may("s3:PutObject", &format!("/tasks/{id}:t1/out/result")));
    assert!(!may("s3:GetObject", &format!("/tasks/{id}:t1/out/result")));
    assert!(!may("s3:PutObject", &format!("/tasks/{id}:t1/in/spec")));
    assert!(!may("s3:GetObject", &format!("/tasks/{id}:t2/in/spec")));
    assert!(!may("s3:GetObject", "/trees/kind/n/program.p/1/pack"));
    assert!(!may("s3:ListBucket", ""));
}

#[test]
fn the_bucket_refuses_whoever_comes_without_tls() {
    let template = read(TEMPLATE).unwrap();
    let get = Demand::new("s3:GetObject", format!("arn:aws:s3:::{}/runs/kind/u/launch", template.bucket));
    assert!(template.allows("LauncherRole", &get.clone().with("aws:SecureTransport", "true")));
    assert!(!template.allows("LauncherRole", &get.with("aws:SecureTransport", "false")));
}

#[test]
fn the_limits_of_runs_are_documented_as_they_are() {
    let template: serde_json::Value = serde_saphyr::from_str(TEMPLATE).unwrap();
    let docs = include_str!("../../../../docs/runs.md").split("\n## ").find(|section| section.starts_with("Limits")).unwrap();
    let rows: Vec<_> = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).collect();
    assert_eq!(rows.len(), 5);
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
        ("AWS::ECS::Cluster", "AWS::ECS::Service", "Cluster: AWS::ECS::Service is not known here"),
        ("Ref: TaskLogs", "Ref: TaskLog", "TaskLog is neither a parameter nor a resource"),
        ("Fn::GetAtt: [TaskRole, RoleId]", "Fn::GetAtt: [TaskRole, Name]", "the attribute Name of TaskRole"),
        ("RecursiveLoop: Allow", "RecursiveLoops: Allow", "unknown field `RecursiveLoops`"),
        ("SqsManagedSseEnabled: true", "KmsMasterKeyId: x", "KmsMasterKeyId is not known here"),
        ("DependsOn: RunsPolicy", "Condition: RunsPolicy", "Condition is not known here"),
        ("Outputs:", "Conditions:", "this section is not known here"),
        ("Fn::Join:", "Fn::Split:", "Fn::Split"),
        ("${WebhookKeysSecret}", "no-such-secret", "there is no secret no-such-secret"),
        ("\"${AWS::StackName}-hints\"", "\"${Hints.Arn}-hints\"", "its name depends on itself"),
        ("MemorySize: 256", "MemorySize: much", "a property is not of its type"),
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
        ("Service: lambda.amazonaws.com", "Service: ecs-tasks.amazonaws.com", "does not trust lambda.amazonaws.com"),
        ("Fn::GetAtt: [SourcesDeadLetters, Arn]", "Fn::GetAtt: [HintsDeadLetters, Arn]", "must both be FIFO"),
    ] {
        let error = broken(from, to);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn no_secret_is_in_an_error() {
    let mut settings = settings();
    settings.secrets.insert("driftless/webhook-keys".into(), "canary".repeat(1000));
    let error = Template::parse(TEMPLATE, Path::new("."), &settings).err().unwrap().to_string();
    assert!(error.contains("more than Lambda's 4096") && !error.contains("canary"), "{error}");
}
