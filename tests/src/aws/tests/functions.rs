use std::{collections::BTreeMap, sync::atomic::Ordering};

use super::{super::control::Switches, *};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_its_function_once_and_is_deleted() {
    let world = TestWorld::start("message").await;
    world.send("Hints", "hello", None).await;
    eventually("the message is taken", async || world.taken("reconciler").into(), |taken| *taken == json!(["hello"])).await;
    eventually("and deleted", async || world.depth("Hints").await.into(), |depth| *depth == 0).await;

    let notes = world.notes("reconciler");
    let environment = &notes[0]["environment"];
    assert_eq!(environment["KUBECONFIG_SECRET"], "driftless/kubeconfig/reconciler");
    assert_eq!(environment["AWS_ENDPOINT_URL"], world.aws.endpoint.as_str());
    assert_eq!(environment["HOME"], Value::Null, "nothing of this process's environment gets in");
    let record = &notes.iter().find_map(|note| note["event"]["Records"].get(0)).unwrap();
    assert_eq!(record["eventSourceARN"], "arn:aws:sqs:us-east-1:123456789012:driftless-hints");
    assert_eq!(record["attributes"]["ApproximateReceiveCount"], "1");
    for attribute in ["SentTimestamp", "SenderId", "ApproximateFirstReceiveTimestamp"] {
        assert!(record["attributes"][attribute].is_string(), "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_shows_again_and_ends_among_the_dead_letters() {
    use aws_sdk_sqs::types::QueueAttributeName::RedrivePolicy;
    let world = TestWorld::start("failing").await;
    let client = world.sqs(&world.aws.administrator).await;
    let target = "arn:aws:sqs:us-east-1:123456789012:driftless-hints-dead-letters";
    let policy = json!({ "deadLetterTargetArn": target, "maxReceiveCount": 5 }).to_string();
    let change = client.set_queue_attributes().queue_url(&world.aws.queues["Hints"]).attributes(RedrivePolicy, policy);
    change.send().await.unwrap();
    world.send("Hints", "fail", None).await;
    for attempt in 1..=5 {
        eventually(
            "the attempt fails",
            async || world.hooks.status().await.unwrap().mappings["Reconciler"]["failed"].clone(),
            |failed| *failed == attempt,
        )
        .await;
        world.hooks.expire("Reconciler").await.unwrap();
    }
    eventually("it is a dead letter", async || world.depth("HintsDeadLetters").await.into(), |depth| *depth == 1).await;
    assert_eq!(world.depth("Hints").await, 0);
    assert_eq!(world.taken("reconciler").len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn message_that_failed_is_gone_after_its_retention_period() {
    use aws_sdk_sqs::types::QueueAttributeName::MessageRetentionPeriod;
    let world = TestWorld::start("retention").await;
    let client = world.sqs(&world.aws.administrator).await;
    let period = client.set_queue_attributes().queue_url(&world.aws.queues["Hints"]).attributes(MessageRetentionPeriod, "1");
    period.send().await.unwrap();
    world.send("Hints", "fail", None).await;
    eventually("it fails", async || world.taken("reconciler").into(), |taken| *taken == json!(["fail"])).await;
    eventually("it is gone", async || world.depth("Hints").await.into(), |depth| *depth == 0).await;
    assert_eq!((world.depth("HintsDeadLetters").await, world.taken("reconciler").len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_a_group_go_one_after_the_other_and_groups_side_by_side() {
    let world = TestWorld::start("fifo").await;
    for message in ["slow a1", "slow a2", "slow b1", "slow a3", "slow b2"] {
        world.send("Sources", message, Some(&message[5..6])).await;
    }
    eventually("all are taken", async || world.taken("fetcher").into(), |taken| taken.as_array().unwrap().len() == 5).await;
    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    let (mut order, mut most): (BTreeMap<String, String>, usize) = (BTreeMap::new(), 0);
    for note in world.notes("fetcher") {
        if let Some(begun) = note["begin"].as_str() {
            let count = open.entry(begun[5..6].into()).or_default();
            *count += 1;
            assert_eq!(*count, 1, "two of one group at once: {begun}");
            order.entry(begun[5..6].into()).or_default().push_str(&begun[6..7]);
            most = most.max(open.values().sum());
        } else if let Some(ended) = note["end"].as_str() {
            *open.get_mut(&ended[5..6]).unwrap() -= 1;
        }
    }
    assert_eq!((order["a"].as_str(), order["b"].as_str(), most), ("123", "12", 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_double_and_lose_messages_and_hold_them_back() {
    let world = TestWorld::start("switches").await;
    let set = async |switches: Switches| world.hooks.switch("Reconciler", &switches).await.unwrap();
    set(Switches { duplicate: true, ..Switches::default() }).await;
    world.send("Hints", "twice", None).await;
    eventually("it comes twice", async || world.taken("reconciler").into(), |taken| *taken == json!(["twice", "twice"])).await;

    set(Switches { drop_first: true, ..Switches::default() }).await;
    world.send("Hints", "lost once", None).await;
    eventually(
        "it is lost",
        async || world.hooks.status().await.unwrap().mappings["Reconciler"]["dropped"].clone(),
        |dropped| *dropped == 1,
    )
    .await;
    world.send("Hints", "lost once", None).await;
    eventually("the next one is not", async || world.taken("reconciler").into(), |taken| taken[2] == "lost once").await;

    set(Switches { paused: true, ..Switches::default() }).await;
    world.send("Hints", "first", None).await;
    world.send("Hints", "second", None).await;
    world.send("Launches", "meanwhile", None).await;
    eventually("another's comes", async || world.taken("launcher").into(), |taken| *taken == json!(["meanwhile"])).await;
    assert_eq!((world.depth("Hints").await, world.taken("reconciler").len()), (2, 3));
    set(Switches::default()).await;
    eventually("they come when it goes on", async || world.taken("reconciler").len().into(), |taken| *taken == 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_quota_throttles_every_function() {
    let world = TestWorld::start("quota").await;
    let post = async || world.http.post(&world.aws.webhook_url).send().await.unwrap().status().as_u16();
    world.hooks.limit_functions(Some(0)).await.unwrap();
    world.send("Hints", "hello", None).await;
    let throttled =
        async |function: &str| world.hooks.status().await.unwrap().functions[function]["failures"]["throttle"].clone();
    eventually("it is throttled", async || throttled("Reconciler").await, |count| *count == 1).await;
    assert_eq!(post().await, 429);
    assert_eq!((throttled("Webhook").await, world.taken("reconciler").len()), (json!(1), 0));

    world.hooks.limit_functions(Some(1)).await.unwrap();
    // Another function may run at that time.
    eventually("it is answered", async || post().await.into(), |status| *status == 202).await;
    eventually("it is hidden", async || world.hooks.expire("Reconciler").await.unwrap().into(), |shown| *shown == 1).await;
    eventually("it comes again", async || world.taken("reconciler").into(), |taken| *taken == json!(["hello"])).await;
    assert_eq!(world.hooks.status().await.unwrap().alarms, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_turns_everything_on_again() {
    let world = TestWorld::start("reset").await;
    let post = async || world.http.post(&world.aws.webhook_url).send().await.unwrap().status().as_u16();
    world.hooks.switch("Reconciler", &Switches { paused: true, ..Switches::default() }).await.unwrap();
    world.hooks.set("WATCH_NAMESPACES", "labelled").await.unwrap();
    world.hooks.disable_url(true).await.unwrap();
    world.hooks.hold(&["GET /in/pack"]).await.unwrap();
    assert_eq!(post().await, 503);

    world.hooks.reset().await.unwrap();
    world.send("Hints", "hello", None).await;
    eventually("it comes", async || world.taken("reconciler").into(), |taken| *taken == json!(["hello"])).await;
    assert_eq!(world.notes("reconciler")[0]["environment"]["WATCH_NAMESPACES"], "all");
    assert_eq!(post().await, 202);
    world.aws.site.holds.pass("GET /in/pack").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_and_a_function_that_does_not_start_are_named() {
    let world = TestWorld::start("crash").await;
    world.send("Launches", "crash", None).await;
    let alarms = async || world.hooks.status().await.unwrap().alarms.into();
    let alarmed = |words: &'static str| {
        move |alarms: &Value| alarms.as_array().unwrap().iter().any(|alarm| alarm.as_str().unwrap().contains(words))
    };
    eventually("the crash is named", alarms, alarmed("Launcher: Runtime exited: exit status: 3")).await;

    fs::write(world.root.join("broken-driftless-fetcher"), "").unwrap();
    world.send("Sources", "hello", Some("g")).await;
    eventually("the failed start is named", alarms, alarmed("this function does not start")).await;

    world.send("Launches", "after", None).await;
    eventually(
        "another instance goes on",
        async || world.taken("launcher").into(),
        |taken| taken.as_array().unwrap().contains(&"after".into()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_function_url_speaks_payload_2_0_and_keeps_the_time_limit() {
    let world = TestWorld::start("url").await;
    let post = async |path: &str, kind: &'static str, body: &'static [u8]| {
        let url = format!("{}{path}", world.aws.webhook_url);
        world.http.post(url).header("Content-Type", kind).header("X-Signature", "sha256=aa").body(body).send().await.unwrap()
    };
    let answer = post("hooks/kind?a=1", "application/json", b"{\"a\":1}").await;
    assert_eq!((answer.status().as_u16(), answer.headers()["x-from"].to_str().unwrap()), (202, "driftless-webhook"));
    assert_eq!(answer.text().await.unwrap(), "done");
    post("", "application/octet-stream", &[0xff, 0]).await;
    let events: Vec<_> = world.notes("webhook").into_iter().filter(|note| note["event"].is_object()).collect();
    let event = &events[0]["event"];
    assert_eq!(
        (&event["version"], &event["rawPath"], &event["rawQueryString"]),
        (&json!("2.0"), &json!("/hooks/kind"), &json!("a=1"))
    );
    assert_eq!(
        (&event["headers"]["x-signature"], &event["requestContext"]["http"]["method"]),
        (&json!("sha256=aa"), &json!("POST"))
    );
    assert_eq!((&event["body"], &event["isBase64Encoded"]), (&json!("{\"a\":1}"), &json!(false)));
    assert_eq!((&events[1]["event"]["body"], &events[1]["event"]["isBase64Encoded"]), (&json!("/wA="), &json!(true)));

    assert_eq!(post("hang", "text/plain", b"").await.status().as_u16(), 502);
    let alarms = world.hooks.status().await.unwrap().alarms;
    assert!(alarms.iter().any(|alarm| alarm.contains("Webhook: Task timed out after 2 seconds")), "{alarms:?}");
    world.hooks.disable_url(true).await.unwrap();
    assert_eq!(post("", "text/plain", b"").await.status().as_u16(), 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schedule_ticks_when_told_with_the_event_that_eventbridge_sends() {
    let world = TestWorld::start("schedule").await;
    world.hooks.trigger("Sweeper").await.unwrap();
    let ticked =
        eventually("the tick is taken", async || world.notes("sweeper").get(1).cloned().unwrap_or_default(), Value::is_object)
            .await;
    let event = &ticked["event"];
    assert_eq!(
        (&event["detail-type"], &event["source"], &event["detail"]),
        (&json!("Scheduled Event"), &json!("aws.events"), &json!({}))
    );
    assert_eq!(event["resources"][0], "arn:aws:events:us-east-1:123456789012:rule/driftless-SweeperSweep");
    assert!(world.hooks.trigger("Webhook").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_running_when_the_world_stops() {
    let world = TestWorld::start("stop").await;
    world.send("Hints", "hello", None).await;
    eventually("an instance runs", async || world.root.join("pids/reconciler-1").exists().into(), |runs| *runs == true).await;
    let pid = fs::read_to_string(world.root.join("pids/reconciler-1")).unwrap();
    let TestWorld { aws, .. } = world;
    aws.stop().await;
    let alive = std::sync::atomic::AtomicBool::new(true);
    let state = async || {
        alive.store(Path::new("/proc").join(pid.trim()).exists(), Ordering::Relaxed);
        alive.load(Ordering::Relaxed).into()
    };
    eventually("it is gone", state, |alive| *alive == false).await;
}
