use std::collections::BTreeMap;

use driftless_aws::{Ecs, Error, Started, TaskSettings, Tasks as _};
use driftless_contract::Launch;
use driftless_core::{InitContainer, TaskShape};

use super::*;

/// A definition as the launcher registers it.
fn definition(world: &TestWorld) -> Value {
    let roles = &world.aws.site.template.roles;
    json!({
        "family": "driftless-shape", "networkMode": "awsvpc", "requiresCompatibilities": ["FARGATE"], "cpu": "512", "memory": "1024",
        "taskRoleArn": roles["TaskRole"].arn, "executionRoleArn": roles["ExecutionRole"].arn, "volumes": [{ "name": "driftless" }],
        "containerDefinitions": [
            {
                "name": "runner-init", "image": "runner:1", "essential": false, "command": ["install", "/driftless/runner"],
                "mountPoints": [{ "sourceVolume": "driftless", "containerPath": "/driftless" }],
            },
            {
                "name": "pulumi", "image": "pulumi/pulumi", "essential": true, "entryPoint": ["/driftless/runner"], "stopTimeout": 2,
                "dependsOn": [{ "containerName": "runner-init", "condition": "SUCCESS" }],
                "environment": [{ "name": "DRIFTLESS_BUCKET", "value": "b" }],
                "mountPoints": [{ "sourceVolume": "driftless", "containerPath": "/driftless", "readOnly": true }],
            },
        ],
    })
}

/// Keys of the launcher with its definition registered, and the definition's ARN.
async fn launcher(world: &TestWorld) -> (Credentials, String) {
    let keys = world.hooks.credentials("LauncherRole", "driftless-launcher").await.unwrap();
    let (status, answer) = world.ecs(&keys, "RegisterTaskDefinition", &definition(world)).await;
    assert_eq!(status, 200, "{answer}");
    (keys, answer["taskDefinition"]["taskDefinitionArn"].as_str().unwrap().into())
}

fn run(definition: &str, token: &str, command: &[&str]) -> Value {
    json!({
        "cluster": "driftless", "taskDefinition": definition, "count": 1, "launchType": "FARGATE", "clientToken": token, "startedBy": "uid-1",
        "networkConfiguration": { "awsvpcConfiguration": { "subnets": ["subnet-1"], "securityGroups": ["sg-1"] } },
        "overrides": { "containerOverrides": [{ "name": "pulumi", "command": command }] },
    })
}

async fn described(world: &TestWorld, keys: &Credentials, task: &Value) -> Value {
    let (_, answer) = world.ecs(keys, "DescribeTasks", &json!({ "cluster": "driftless", "tasks": [task] })).await;
    answer["tasks"].get(0).or(answer["failures"].get(0)).cloned().unwrap_or_default()
}

async fn until_status(world: &TestWorld, keys: &Credentials, task: &Value, status: &str) -> Value {
    eventually(&format!("the task is {status}"), async || described(world, keys, task).await, |task| task["lastStatus"] == status)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_has_the_environment_of_a_task_and_nothing_else() {
    let world = TestWorld::start("environment").await;
    let (keys, definition) = launcher(&world).await;
    let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, "t", &["exit", "5"])).await;
    let arn = &answer["tasks"][0]["taskArn"];
    let id = driftless_contract::keys::task_id(arn.as_str().unwrap());
    let stopped = until_status(&world, &keys, arn, "STOPPED").await;
    assert_eq!((&stopped["stopCode"], &stopped["containers"][1]["exitCode"]), (&json!("EssentialContainerExited"), &json!(5)));
    let told = fs::read_to_string(world.root.join("tasks").join(id).join("own/told")).unwrap();
    let told: BTreeMap<_, _> = told.lines().filter_map(|line| line.split_once('=')).collect();
    assert_eq!((told["DRIFTLESS_BUCKET"], told["ARGUMENTS"], told["PATH"]), ("b", "exit 5", "/usr/bin:/bin"));
    assert_eq!((told["HOME"], told["TMPDIR"]), ("/tmp/driftless-task/home", "/tmp/driftless-task/tmp"), "the same in every task");
    let expected = [
        "ARGUMENTS",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_EXECUTION_ENV",
        "AWS_REGION",
        "DRIFTLESS_BUCKET",
        "ECS_CONTAINER_METADATA_URI_V4",
        "HOME",
        "PATH",
        "PWD",
        "TMPDIR",
    ];
    // The shell adds these.
    let names: Vec<_> = told.keys().copied().filter(|name| !["OLDPWD", "_", "SHLVL"].contains(name)).collect();
    assert_eq!(names, expected);
    let gone = world.http.get(told["AWS_CONTAINER_CREDENTIALS_FULL_URI"]).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 404, "a stopped task gets no credentials");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tasks_credentials_carry_its_id_and_its_metadata_name_it() {
    let world = TestWorld::start("credentials").await;
    let (keys, definition) = launcher(&world).await;
    let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, "t", &["wait"])).await;
    let arn = answer["tasks"][0]["taskArn"].as_str().unwrap();
    let id = driftless_contract::keys::task_id(arn);
    let path = world.root.join("tasks").join(id).join("own/told");
    let told =
        eventually("the task tells", async || fs::read_to_string(&path).unwrap_or_default().into(), |told| *told != "").await;
    let told: BTreeMap<_, _> = told.as_str().unwrap().lines().filter_map(|line| line.split_once('=')).collect();
    let get = async |url: String| {
        serde_json::from_slice::<Value>(&world.http.get(url).send().await.unwrap().bytes().await.unwrap()).unwrap()
    };
    let task = get(format!("{}/task", told["ECS_CONTAINER_METADATA_URI_V4"])).await;
    assert_eq!((&task["TaskARN"], &task["Family"]), (&json!(arn), &json!("driftless-shape")));
    let found = get(told["AWS_CONTAINER_CREDENTIALS_FULL_URI"].into()).await;
    assert_eq!(found["RoleArn"], world.aws.site.template.roles["TaskRole"].arn.as_str());
    let (caller, _) = world.aws.site.identities.holder(found["AccessKeyId"].as_str().unwrap(), now()).unwrap();
    assert_eq!(caller.userid, format!("{}:{id}", world.aws.site.template.roles["TaskRole"].id));
    assert!(world.root.join("pids").join(id).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_platform_are_told_as_ecs_does() {
    let world = TestWorld::start("platform").await;
    let (keys, definition) = launcher(&world).await;
    let reason = "CannotPullContainerError: toomanyrequests";
    world.hooks.fail_starts("pulumi/pulumi", Some(reason)).await.unwrap();
    let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, "pull", &["exit", "0"])).await;
    let stopped = until_status(&world, &keys, &answer["tasks"][0]["taskArn"], "STOPPED").await;
    assert_eq!((&stopped["stopCode"], &stopped["stoppedReason"]), (&json!("TaskFailedToStart"), &json!(reason)));
    let main = &stopped["containers"][1];
    assert_eq!((&main["reason"], &main["exitCode"]), (&json!(reason), &Value::Null));
    world.hooks.fail_starts("pulumi/pulumi", None).await.unwrap();

    let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, "memory", &["wait"])).await;
    let arn = &answer["tasks"][0]["taskArn"];
    until_status(&world, &keys, arn, "RUNNING").await;
    world.hooks.exhaust(arn.as_str().unwrap()).await.unwrap();
    let stopped = until_status(&world, &keys, arn, "STOPPED").await;
    let main = &stopped["containers"][1];
    assert_eq!((&stopped["stopCode"], &main["exitCode"]), (&json!("EssentialContainerExited"), &json!(137)));
    assert_eq!(main["reason"], "OutOfMemoryError: Container killed due to memory usage");

    // More than the task's 1,024 MiB.
    let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, "hog", &["hog", "1500000000"])).await;
    let stopped = until_status(&world, &keys, &answer["tasks"][0]["taskArn"], "STOPPED").await;
    let main = &stopped["containers"][1];
    assert_eq!(
        (&main["exitCode"], &main["reason"]),
        (&json!(137), &json!("OutOfMemoryError: Container killed due to memory usage"))
    );

    let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, "maintenance", &["wait"])).await;
    let arn = &answer["tasks"][0]["taskArn"];
    until_status(&world, &keys, arn, "RUNNING").await;
    world.hooks.retire(arn.as_str().unwrap()).await.unwrap();
    let stopped = until_status(&world, &keys, arn, "STOPPED").await;
    assert_eq!(stopped["stopCode"], "ServiceSchedulerInitiated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_a_sigterm_and_after_the_stop_timeout_a_sigkill() {
    let world = TestWorld::start("signals").await;
    let (keys, definition) = launcher(&world).await;
    for (token, command, exit) in [("polite", "wait", 7), ("stubborn", "stubborn", 137)] {
        let (_, answer) = world.ecs(&keys, "RunTask", &run(&definition, token, &[command])).await;
        let arn = &answer["tasks"][0]["taskArn"];
        let told = world.root.join("tasks").join(driftless_contract::keys::task_id(arn.as_str().unwrap())).join("own/told");
        eventually("its traps are set", async || told.exists().into(), |told| *told == true).await;
        let (_, list) =
            world.ecs(&world.aws.administrator, "ListTasks", &json!({ "cluster": "driftless", "startedBy": "uid-1" })).await;
        assert_eq!(list["taskArns"], json!([arn]));
        world.ecs(&keys, "StopTask", &json!({ "cluster": "driftless", "task": arn, "reason": "asked" })).await;
        let stopped = until_status(&world, &keys, arn, "STOPPED").await;
        assert_eq!((&stopped["stopCode"], &stopped["stoppedReason"]), (&json!("UserInitiated"), &json!("asked")));
        assert_eq!(stopped["containers"][1]["exitCode"], exit, "{command}");
        // The test event of S3 may come after it.
        let is_of_task = |body: &&Value| body.as_str().is_some_and(|body| body.contains(arn.as_str().unwrap()));
        let taken = eventually(
            "the recorder hears of it",
            async || world.taken("recorder").into(),
            |taken| taken.as_array().unwrap().iter().any(|body| is_of_task(&body)),
        );
        let taken = taken.await;
        let event = taken.as_array().unwrap().iter().rfind(is_of_task).unwrap();
        let event: Value = serde_json::from_str(event.as_str().unwrap()).unwrap();
        assert_eq!(
            (&event["detail"]["lastStatus"], &event["detail"]["containers"][1]["exitCode"]),
            (&json!("STOPPED"), &json!(exit))
        );
        assert!(event["detail"]["stoppedAt"].is_string() && event["detail"]["version"].as_u64() > Some(2), "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ecs_refuses_is_refused() {
    let world = TestWorld::start("refusals").await;
    let (keys, definition) = launcher(&world).await;
    let refused = async |change: &dyn Fn(&mut Value)| {
        let mut input = run(&definition, "t", &["exit", "0"]);
        change(&mut input);
        let (status, answer) = world.ecs(&keys, "RunTask", &input).await;
        assert_eq!(status, 400, "{answer}");
        format!("{} {}", answer["__type"].as_str().unwrap(), answer["message"].as_str().unwrap())
    };
    let long = "x".repeat(8192);
    assert!(refused(&|input| input["cluster"] = "other".into()).await.starts_with("ClusterNotFoundException"));
    assert!(refused(&|input| input["taskDefinition"] = "driftless-none".into()).await.contains("TaskDefinition not found"));
    assert!(
        refused(&|input| input["overrides"]["containerOverrides"][0]["name"] = "x".into()).await.contains("is not a container")
    );
    assert!(refused(&|input| input["overrides"]["containerOverrides"][0]["image"] = "x".into()).await.contains("image"));
    assert!(
        refused(&|input| input["overrides"]["containerOverrides"][0]["command"] = json!([long])).await.contains("at most 8192")
    );
    assert!(refused(&|input| input["startedBy"] = "a b".into()).await.contains("startedBy"));
    assert!(refused(&|input| input["networkConfiguration"] = Value::Null).await.contains("Network Configuration"));
    assert!(
        refused(&|input| input["networkConfiguration"]["awsvpcConfiguration"]["assignPublicIp"] = true.into())
            .await
            .contains("assignPublicIp")
    );
    let role = world.aws.site.template.roles["LauncherRole"].arn.clone();
    let passed = refused(&|input| input["overrides"]["taskRoleArn"] = role.clone().into()).await;
    assert!(passed.starts_with("AccessDeniedException") && passed.contains("iam:PassRole"), "{passed}");

    let recorder = world.hooks.credentials("RecorderRole", "f").await.unwrap();
    let (status, answer) = world.ecs(&recorder, "RunTask", &run(&definition, "t", &[])).await;
    assert_eq!((status, &answer["__type"]), (400, &json!("AccessDeniedException")));
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_and_quota_are_of_the_tasks_of_one_image() {
    let world = TestWorld::start("outages").await;
    let (keys, definition) = launcher(&world).await;
    let call = |image: &str, percent| Outage {
        call: "ecs RunTask".into(),
        about: image.into(),
        percent,
        status: 400,
        code: "ThrottlingException".into(),
        message: "Rate exceeded".into(),
        ..Outage::default()
    };
    let start = async |token: &str| world.ecs(&keys, "RunTask", &run(&definition, token, &["wait"])).await;
    world.hooks.outage(&call("another-image", 100)).await.unwrap();
    let (_, first) = start("first").await;
    let first = &first["tasks"][0]["taskArn"];
    world.hooks.outage(&call("pulumi/pulumi", 50)).await.unwrap();
    let throttled = start("second").await;
    assert_eq!(throttled, (400, json!({ "__type": "ThrottlingException", "message": "Rate exceeded" })));
    world.hooks.limit_tasks("pulumi/pulumi", Some(1)).await.unwrap();
    let (status, refused) = start("second").await;
    assert_eq!((status, &refused["tasks"]), (200, &json!([])));
    assert!(refused["failures"][0]["reason"].as_str().unwrap().contains("number of vCPUs"), "{refused}");
    world.hooks.outage(&call("pulumi/pulumi", 0)).await.unwrap();
    world.ecs(&keys, "StopTask", &json!({ "cluster": "driftless", "task": first })).await;
    until_status(&world, &keys, first, "STOPPED").await;
    assert!(start("third").await.1["tasks"][0]["taskArn"].is_string());

    let mut odd = self::definition(&world);
    odd["containerDefinitions"][1]["image"] = "pulumi:{latest}".into();
    let (status, answer) = world.ecs(&keys, "RegisterTaskDefinition", &odd).await;
    assert_eq!((status, &answer["__type"]), (400, &json!("ClientException")), "{answer}");
}

/// The launcher's client of ECS.
pub(super) async fn client(world: &TestWorld, keys: &Credentials) -> Ecs {
    let roles = &world.aws.site.template.roles;
    let settings = TaskSettings {
        role_arn: roles["TaskRole"].arn.clone(),
        role_id: roles["TaskRole"].id.clone(),
        execution_role_arn: roles["ExecutionRole"].arn.clone(),
        subnets: vec!["subnet-1".into()],
        security_groups: vec!["sg-1".into()],
        assign_public_ip: "DISABLED".into(),
        runner_image: "runner:1".into(),
        log_group: format!("/{STACK}/tasks"),
        bucket: world.aws.bucket.clone(),
        region: REGION.into(),
        tags: Vec::new(),
        private_registries: Vec::new(),
        registry_secrets: "driftless/registries".into(),
    };
    Ecs::new(&world.config(keys).await, "driftless".into(), Some(settings))
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_ecs_are_sorted_as_the_sdk_reads_them() {
    let world = TestWorld::start("ecs-errors").await;
    let keys = world.hooks.credentials("LauncherRole", "driftless-launcher").await.unwrap();
    let ecs = client(&world, &keys).await;
    let shape = |image: &str| TaskShape { image: Some(image.into()), ..TaskShape::default() };
    let refused = ecs.definition(&shape("pulumi:{latest}")).await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid { message, .. } if message.contains("Container.image")), "{refused:?}");
    let long = "A".repeat(70_000);
    let init = [("TOKEN".to_owned(), long)].into();
    let init = InitContainer { name: "a".into(), env: init, ..InitContainer::default() };
    let refused = ecs.definition(&TaskShape { init: vec![init], ..shape("image") }).await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid { message, .. } if message.contains("65536")), "{refused:?}");

    let definition = ecs.definition(&shape("image")).await.unwrap();
    let update =
        json!({ "cluster": "kind", "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "namespace": "n", "name": "u" });
    let launch = json!({
        "version": driftless_contract::VERSION, "run": { "update": update, "uid": "uid", "claim": "claim" }, "attempt": 0,
        "taskDefinition": definition, "at": "2026-01-01T00:00:00Z",
    });
    let launch: Launch = serde_json::from_value(launch).unwrap();
    let busy =
        "Error retrieving security group information for [sg-1]: Request limit exceeded. (ErrorCode: RequestLimitExceeded)";
    for (status, code, message, remedy) in [
        (400, "ThrottlingException", "Rate exceeded", None),
        (400, "InvalidParameterException", busy, None),
        (500, "ServerException", "Service Unavailable. Please try again later.", None),
        (400, "InvalidParameterException", "The subnet ID 'subnet-1' does not exist", Some("Subnets and SecurityGroups")),
        (400, "BlockedException", "Your account is currently blocked.", Some("AWS Support")),
        (400, "AccessDeniedException", "not authorized to perform: ecs:RunTask", Some("allow the launcher's role")),
    ] {
        let [call, about, code_, message_] = ["ecs RunTask", "", code, message].map(String::from);
        let outage = Outage { call, about, percent: 100, status, code: code_, message: message_, ..Outage::default() };
        world.hooks.outage(&outage).await.unwrap();
        let error = ecs.run(&launch).await.unwrap_err();
        assert_eq!(error.is_transient(), remedy.is_none(), "{error:?}");
        assert!(error.to_string().starts_with(&format!("ecs:RunTask: {code}: {message}")), "{error}");
        assert!(remedy.is_none_or(|remedy| error.to_string().contains(remedy)), "{error}");
    }
    // If a task was started although the answer was lost, the next call returns that task.
    let [call, code, message] = ["ecs RunTask", "ServerException", "lost"].map(String::from);
    let outage = Outage { call, code, message, percent: 50, status: 500, lost: true, ..Outage::default() };
    world.hooks.outage(&outage).await.unwrap();
    let attempt = Launch { attempt: 1, ..launch.clone() };
    let started = ecs.run(&attempt).await.unwrap();
    let tasks = world.hooks.status().await.unwrap().tasks;
    assert!(
        matches!(&started, Started::Task { task: arn } if tasks.len() == 1 && tasks[0]["taskArn"] == arn.as_str()),
        "{started:?} {tasks:?}"
    );
    world.hooks.reset().await.unwrap();
    world.hooks.limit_tasks("image", Some(0)).await.unwrap();
    let started = ecs.run(&launch).await.unwrap();
    assert!(matches!(&started, Started::Refused { why } if why.contains("number of vCPUs")), "{started:?}");
}

/// The same call on a capacity provider.
fn run_on(provider: &str, definition: &str, token: &str, command: &[&str]) -> Value {
    let mut input = run(definition, token, command);
    input["capacityProviderStrategy"] = json!([{ "capacityProvider": provider, "weight": 1 }]);
    input.as_object_mut().unwrap().remove("launchType");
    input
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_on_spot_says_so_and_can_lose_its_capacity() {
    let world = TestWorld::start("spot").await;
    let (keys, definition) = launcher(&world).await;
    let (status, answer) = world.ecs(&keys, "RunTask", &run_on("FARGATE_CHEAP", &definition, "t", &["wait"])).await;
    assert_eq!((status, &answer["__type"]), (400, &json!("InvalidParameterException")));
    let mut both = run_on("FARGATE_SPOT", &definition, "t", &["wait"]);
    both["launchType"] = "FARGATE".into();
    assert_eq!(world.ecs(&keys, "RunTask", &both).await.0, 400);

    world.hooks.refuse_spot(1).await.unwrap();
    let (_, other) = world.ecs(&keys, "RunTask", &run(&definition, "on-demand", &["wait"])).await;
    let other = &other["tasks"][0];
    assert_eq!((&other["launchType"], &other["capacityProviderName"]), (&json!("FARGATE"), &Value::Null));
    world.hooks.reclaim(other["taskArn"].as_str().unwrap()).await.unwrap_err();
    let (_, refused) = world.ecs(&keys, "RunTask", &run_on("FARGATE_SPOT", &definition, "refused", &["wait"])).await;
    assert_eq!((&refused["tasks"], refused["failures"].as_array().map(Vec::len)), (&json!([]), Some(1)));

    let (_, answer) = world.ecs(&keys, "RunTask", &run_on("FARGATE_SPOT", &definition, "spot", &["wait"])).await;
    let task = &answer["tasks"][0];
    assert_eq!((&task["launchType"], &task["capacityProviderName"]), (&Value::Null, &json!("FARGATE_SPOT")));
    let arn = task["taskArn"].as_str().unwrap();
    let told = world.root.join("tasks").join(driftless_contract::keys::task_id(arn)).join("own/told");
    eventually("its traps are set", async || told.exists().into(), |told| *told == true).await;
    world.hooks.reclaim(arn).await.unwrap();
    let at_once = described(&world, &keys, &json!(arn)).await;
    assert_eq!((&at_once["desiredStatus"], &at_once["stopCode"]), (&json!("STOPPED"), &json!("SpotInterruption")));
    let stopped = until_status(&world, &keys, &json!(arn), "STOPPED").await;
    assert_eq!((&stopped["stopCode"], &stopped["containers"][1]["exitCode"]), (&json!("SpotInterruption"), &json!(7)));
    assert_eq!(stopped["stoppedReason"], "Your Spot Task was interrupted.");
}

/// The definition with init containers that run these scripts.
fn with_init(world: &TestWorld, scripts: &[(&str, &str)]) -> Value {
    let mut definition = definition(world);
    let share = |read_only| json!({ "sourceVolume": "share", "containerPath": "/share", "readOnly": read_only });
    let after = |name: &str| json!({ "containerName": name, "condition": "SUCCESS" });
    let env = json!({ "name": "PULUMI_ENV", "value": "/share/.env" });
    definition["family"] = "driftless-init".into();
    definition["ephemeralStorage"] = json!({ "sizeInGiB": 21 });
    definition["volumes"].as_array_mut().unwrap().push(json!({ "name": "share" }));
    let all = definition["containerDefinitions"].as_array_mut().unwrap();
    let mut main = all.pop().unwrap();
    all[0]["command"].as_array_mut().unwrap().push("/share".into());
    all[0]["mountPoints"].as_array_mut().unwrap().push(share(false));
    let mut previous = "runner-init";
    for (name, script) in scripts {
        all.push(json!({
            "name": name, "image": "busybox", "essential": false, "entryPoint": ["sh", "-c"], "command": [script], "environment": [env],
            "mountPoints": [share(false)], "dependsOn": [after(previous)],
        }));
        main["dependsOn"].as_array_mut().unwrap().push(after(name));
        previous = name;
    }
    main["environment"].as_array_mut().unwrap().push(env);
    main["mountPoints"].as_array_mut().unwrap().push(share(true));
    all.push(main);
    definition
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_in_order_and_hand_a_file_over() {
    let world = TestWorld::start("init").await;
    let (keys, _) = launcher(&world).await;
    let scripts = [("init-a", r#"echo A=1 >> "$PULUMI_ENV""#), ("init-b", "grep -q A=1 /share/.env && echo B=2 >> /share/.env")];
    let (_, answer) = world.ecs(&keys, "RegisterTaskDefinition", &with_init(&world, &scripts)).await;
    let definition = answer["taskDefinition"]["taskDefinitionArn"].as_str().unwrap();
    let (_, answer) = world.ecs(&keys, "RunTask", &run(definition, "t", &["exit", "5"])).await;
    let arn = &answer["tasks"][0]["taskArn"];
    let stopped = until_status(&world, &keys, arn, "STOPPED").await;
    assert_eq!(stopped["stopCode"], "EssentialContainerExited", "{stopped:#}");
    let exits: Vec<_> = stopped["containers"].as_array().unwrap().iter().map(|container| &container["exitCode"]).collect();
    assert_eq!(exits, [0, 0, 0, 5]);
    let task = world.root.join("tasks").join(driftless_contract::keys::task_id(arn.as_str().unwrap()));
    let told = fs::read_to_string(task.join("own/told")).unwrap();
    assert!(told.lines().any(|line| line == "PULUMI_ENV=/share/.env"), "{told}");
    assert_eq!(fs::read_to_string(task.join("volumes/share/.env")).unwrap(), "A=1\nB=2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_init_container_that_fails_ends_its_task() {
    let world = TestWorld::start("failing-init").await;
    let (keys, _) = launcher(&world).await;
    let definition = with_init(&world, &[("init-a", "exit 3"), ("init-b", "exit 0")]);
    let (_, answer) = world.ecs(&keys, "RegisterTaskDefinition", &definition).await;
    let definition = answer["taskDefinition"]["taskDefinitionArn"].as_str().unwrap();
    let (_, answer) = world.ecs(&keys, "RunTask", &run(definition, "t", &["exit", "0"])).await;
    let arn = &answer["tasks"][0]["taskArn"];
    let stopped = until_status(&world, &keys, arn, "STOPPED").await;
    assert_eq!(stopped["stopCode"], "TaskFailedToStart", "{stopped:#}");
    let exits: Vec<_> = stopped["containers"].as_array().unwrap().iter().map(|container| &container["exitCode"]).collect();
    assert_eq!(exits, [&json!(0), &json!(3), &Value::Null, &Value::Null]);
    let main = stopped["containers"][3]["reason"].as_str().unwrap();
    assert!(main.contains("dependency [init-a] for target [pulumi]"), "{main}");
    let task = world.root.join("tasks").join(driftless_contract::keys::task_id(arn.as_str().unwrap()));
    assert!(!task.join("own/told").exists(), "the runner never started");
}
