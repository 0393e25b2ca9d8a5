//! A run that is stopped, by a person or by its limit.

use super::*;

#[tokio::test]
async fn stop_before_the_run_ends_the_task() {
    let aws = Aws::new("none");
    let stopping = async {
        aws.answered("GET in/spec 404", 2).await;
        aws.tell.send_replace(true);
    };
    let (ended, ()) = tokio::join!(aws.run(), stopping);
    assert!(matches!(ended, Err(Error::Stopped { late: false })), "{ended:?}");
    assert!(aws.served.lock().unwrap().objects.is_empty(), "nothing is written");
}

#[tokio::test]
async fn stop_during_the_download_is_reported() {
    for name in ["identity", "manifest"] {
        let aws = Aws::new(name);
        aws.launch(|spec| spec.identity = name == "identity");
        aws.put(&format!("in/{name}"), UNAVAILABLE.into());
        let stopping = async {
            aws.answered(&format!("GET in/{name} 503"), 2).await;
            aws.tell.send_replace(true);
        };
        let (ended, ()) = tokio::join!(aws.run(), stopping);
        ended.unwrap();
        let (phase, reason, message) = aws.failure();
        assert_eq!((phase, reason.as_str()), (Phase::Fetch, "Interrupted"), "{message}");
        assert!(aws.calls().is_empty());
    }
}

#[tokio::test]
async fn a_stop_in_any_call_interrupts_it_and_begins_no_other() {
    for (call, phase) in
        [("install", Phase::Install), ("stack select", Phase::Init), ("config set-all", Phase::Init), ("up", Phase::Run)]
    {
        let aws = Aws::new(&format!("stop-{}", call.replace(' ', "-")));
        aws.launch(|_| {});
        aws.stop_in(call).await;
        let (found, reason, message) = aws.failure();
        assert_eq!((found, reason.as_str()), (phase, "Interrupted"), "{call}: {message}");
        assert!(message.ends_with("output of pulumi:\nerror: interrupted here"), "{call}: {message}");
        assert_eq!(aws.calls().last().unwrap(), call);
        assert!(aws.result().outputs.is_none());
    }
}

#[tokio::test]
async fn a_stop_after_the_operation_does_not_take_its_outputs() {
    let aws = Aws::new("outputs");
    aws.launch(|_| {});
    let released = async {
        aws.until("the stop", |aws| *aws.tell.borrow()).await;
        let before = aws.rounds();
        aws.until("rounds after the stop", |aws| aws.rounds() >= before + 10).await;
        fs::remove_file(aws.dir.join("hang")).unwrap();
    };
    tokio::join!(aws.stop_in("stack output"), released);
    let result = aws.result();
    assert_eq!(result.verdict, Verdict::Succeeded {});
    assert_eq!(result.outputs.unwrap()["n"].value, 1);
}

#[tokio::test]
async fn a_stop_while_the_result_is_stored_does_not_lose_it() {
    let aws = Aws::new("store");
    aws.launch(|_| {});
    aws.put("out/result", UNAVAILABLE.into());
    let stopping = async {
        aws.answered("PUT out/result 503", 1).await;
        aws.tell.send_replace(true);
        aws.served.lock().unwrap().objects.remove(&format!("{TASK}out/result"));
    };
    let (ended, ()) = tokio::join!(aws.run(), stopping);
    ended.unwrap();
    assert_eq!(aws.result().verdict, Verdict::Succeeded {});
}

#[tokio::test]
async fn run_at_its_limit_is_interrupted_and_names_its_step() {
    let begun = r#"{"resourcePreEvent":{"metadata":{"op":"create","urn":"urn:slow","new":{"custom":true}}}}"#;
    // Long enough to reach that step on a busy machine.
    let (silence, whole) = (
        (4, RunLimits { silence_seconds: Some(4), max_seconds: None }),
        (8, RunLimits { silence_seconds: None, max_seconds: Some(8) }),
    );
    let runs = [("silence", "Silent", silence), ("whole", "TimedOut", whole)].map(async |(name, reason, (seconds, limits))| {
        let aws = Aws::new(name);
        fs::write(aws.dir.join("events"), format!("{begun}\n")).unwrap();
        fs::write(aws.dir.join("hang"), "up").unwrap();
        aws.launch(|spec| spec.limits = limits);
        let told = aws.until("progress of the operation", |aws| {
            aws.document::<Progress>("out/progress").is_some_and(|progress| progress.phase == Phase::Run)
        });
        let (ended, ()) = tokio::join!(aws.run(), told);
        ended.unwrap();
        let (phase, found, message) = aws.failure();
        assert_eq!((phase, found.as_str()), (Phase::Run, reason), "{message}");
        let words = [format!("{seconds}s"), "the last step was create urn:slow".into()];
        assert!(words.iter().all(|words| message.contains(words)), "{message}");
    });
    join_all(runs).await;
}

#[tokio::test]
async fn drift_check_can_be_stopped_and_is_a_refresh() {
    let aws = Aws::new("stop-drift");
    aws.launch(|spec| (spec.operation, spec.preview_only) = (Operation::Refresh, true));
    aws.stop_in("refresh").await;
    let (phase, reason, message) = aws.failure();
    assert_eq!((phase, reason.as_str(), aws.result().drift), (Phase::Run, "Interrupted", None), "{message}");
    let aws = Aws::new("drift-up");
    aws.launch(|spec| spec.preview_only = true);
    aws.run().await.unwrap();
    let (_, _, message) = aws.failure();
    assert_eq!(message, "a drift check requires type refresh; the type of the Update is \"up\"");
    assert_eq!(aws.calls(), ["install"]);
}
