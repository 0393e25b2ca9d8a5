use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use driftless_aws::{Account, Bucket, Keyring as _, Objects as _};
use secrecy::ExposeSecret as _;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_task_reads_its_own_folder_and_is_refused_anothers() {
    let world = TestWorld::start("folders").await;
    let role = &world.aws.site.template.roles["TaskRole"].id;
    let (own, other) = (format!("tasks/{role}:t1"), format!("tasks/{role}:t2"));
    let bucket = &world.aws.bucket;
    let administrator = world.s3(&world.aws.administrator).await;
    for folder in [&own, &other] {
        administrator
            .put_object()
            .bucket(bucket)
            .key(format!("{folder}/in/spec"))
            .body(b"secret".to_vec().into())
            .send()
            .await
            .unwrap();
    }
    let keys = world.hooks.credentials("TaskRole", "t1").await.unwrap();
    let task = world.s3(&keys).await;
    let get = async |key: String| match task.get_object().bucket(bucket).key(key).send().await {
        Ok(object) => Ok(object.body.collect().await.unwrap().into_bytes()),
        Err(error) => Err(error.code().unwrap_or_default().to_owned()),
    };
    assert_eq!(get(format!("{own}/in/spec")).await.unwrap(), "secret");
    assert_eq!(get(format!("{other}/in/spec")).await.unwrap_err(), "AccessDenied");
    assert_eq!(get(format!("{own}/in/later")).await.unwrap_err(), "AccessDenied", "404 is for those who may list");
    let put = async |key: String, content: Vec<u8>| {
        let put = task.put_object().bucket(bucket).key(key).if_none_match("*").body(content.into()).send().await;
        put.map(drop).map_err(|error| error.code().unwrap_or_default().to_owned())
    };
    let large = vec![7; 3 << 20];
    put(format!("{own}/out/result"), large.clone()).await.unwrap();
    let found = administrator.get_object().bucket(bucket).key(format!("{own}/out/result")).send().await.unwrap();
    assert_eq!(found.body.collect().await.unwrap().into_bytes(), large);
    assert_eq!(put(format!("{own}/out/result"), Vec::new()).await.unwrap_err(), "PreconditionFailed");
    put(format!("{own}/out/log/0001"), b"line".to_vec()).await.unwrap();
    assert_eq!(put(format!("{own}/out/log/0001"), Vec::new()).await.unwrap_err(), "PreconditionFailed");
    assert_eq!(put(format!("{other}/out/log/0001"), Vec::new()).await.unwrap_err(), "AccessDenied");
    assert_eq!(get(format!("{own}/out/log/0001")).await.unwrap_err(), "AccessDenied", "the recorder alone reads it");
    for name in ["log", "x", "a/result", "progress/result"] {
        assert_eq!(put(format!("{own}/out/{name}"), Vec::new()).await.unwrap_err(), "AccessDenied", "{name}");
    }
    assert_eq!(put(format!("{own}/in/spec"), Vec::new()).await.unwrap_err(), "AccessDenied");
    assert_eq!(put(format!("{other}/out/result"), Vec::new()).await.unwrap_err(), "AccessDenied");

    for name in ["progress", "lock", "result", "log/0001"] {
        let plain = task.put_object().bucket(bucket).key(format!("{own}/out/{name}")).send().await;
        let code = plain.err().and_then(|error| error.code().map(str::to_owned));
        assert_eq!(
            code.as_deref(),
            ["result", "log/0001"].contains(&name).then_some("AccessDenied"),
            "{name} without a condition"
        );
    }
    let parts = task.create_multipart_upload().bucket(bucket).key(format!("{own}/out/progress")).send().await.unwrap_err();
    assert_eq!(parts.code(), Some("AccessDenied"));

    let launcher = world.s3(&world.hooks.credentials("LauncherRole", "f").await.unwrap()).await;
    let missing = launcher.get_object().bucket(bucket).key("runs/kind/u/owner").send().await.unwrap_err();
    assert_eq!(missing.code(), Some("NoSuchKey"));
    let calls = fs::read_to_string(world.root.join("logs/aws-calls.jsonl")).unwrap();
    assert!(calls.contains(r#""allowed":false"#) && !calls.contains("secret\""), "the journal has what was asked and no content");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweeper_finds_old_trees_and_the_fetcher_alone_may_delete_them() {
    let world = TestWorld::start("collection").await;
    let key = "trees/kind/team/ocirepository.shop/sha256-00/manifest";
    let administrator = world.s3(&world.aws.administrator).await;
    administrator.put_object().bucket(&world.aws.bucket).key(key).body(b"{}".to_vec().into()).send().await.unwrap();
    let bucket = async |role: &str| {
        let keys = world.hooks.credentials(role, "f").await.unwrap();
        Bucket::new(&world.config(&keys).await, world.aws.bucket.clone())
    };
    let (sweeper, fetcher) = (bucket("SweeperRole").await, bucket("FetcherRole").await);
    let found = sweeper.list_after("trees/kind/", "").await.unwrap();
    assert!(sweeper.list_after("runs/", "").await.is_err());
    assert!(sweeper.delete(key).await.is_err());

    assert_eq!(found, [(key.to_owned(), fetcher.modified(key).await.unwrap().unwrap())]);
    fetcher.delete(key).await.unwrap();
    assert_eq!(fetcher.modified(key).await.unwrap(), None);
    assert!(fetcher.delete("runs/kind/u/owner").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_and_outcome_are_written_once() {
    let world = TestWorld::start("once").await;
    let bucket = async |role: &str| {
        let keys = world.hooks.credentials(role, "f").await.unwrap();
        Bucket::new(&world.config(&keys).await, world.aws.bucket.clone())
    };
    for (role, key) in [
        ("LauncherRole", "runs/kind/u/owner"),
        ("LauncherRole", "keys/inputs"),
        ("RecorderRole", "runs/kind/v/owner"),
        ("RecorderRole", "runs/kind/v/outcome"),
    ] {
        let bucket = bucket(role).await;
        let refused = bucket.put(key, b"plain".to_vec()).await.unwrap_err().to_string();
        assert!(refused.contains("AccessDenied"), "{role} {key}: {refused}");
        assert!(bucket.put_new(key, b"first".to_vec()).await.unwrap(), "{role} {key}");
        assert!(!bucket.put_new(key, b"second".to_vec()).await.unwrap(), "{role} {key}");
    }
    assert_eq!(bucket("RecorderRole").await.get("runs/kind/v/outcome").await.unwrap().unwrap(), b"first");
    // The launcher counts refused attempts in the launch record.
    let launcher = bucket("LauncherRole").await;
    assert!(launcher.put_new("runs/kind/u/launch", b"0".to_vec()).await.unwrap());
    launcher.put("runs/kind/u/launch", b"1".to_vec()).await.unwrap();
    assert!(bucket("RecorderRole").await.put_new("runs/kind/w/launch", Vec::new()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn write_whose_answer_is_lost_is_known_as_the_writers_own() {
    let world = TestWorld::start("lost-write").await;
    let keys = world.hooks.credentials("LauncherRole", "f").await.unwrap();
    let bucket = Bucket::new(&world.config(&keys).await, world.aws.bucket.clone());
    let [call, about, code, message] =
        ["s3 PUT", " if-none-match", "InternalError", "We encountered an internal error."].map(String::from);
    let outage = Outage { call, about, percent: 50, status: 500, code, message, lost: true, ..Outage::default() };
    world.hooks.outage(&outage).await.unwrap();
    assert!(bucket.put_new("runs/kind/u/owner", b"first".to_vec()).await.unwrap());
    // The answer to another caller is lost too.
    assert!(!bucket.put_new("runs/kind/u/owner", b"second".to_vec()).await.unwrap());
    assert_eq!(bucket.get("runs/kind/u/owner").await.unwrap().unwrap(), b"first");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_task_reports_reaches_the_recorder_after_the_test_event() {
    let world = TestWorld::start("notification").await;
    let role = &world.aws.site.template.roles["TaskRole"].id;
    let task = world.s3(&world.hooks.credentials("TaskRole", "t1").await.unwrap()).await;
    for name in ["lock", "progress", "result"] {
        let key = format!("tasks/{role}:t1/out/{name}");
        let put = task.put_object().bucket(&world.aws.bucket).key(key).if_none_match("*").body(b"{}".to_vec().into());
        put.send().await.unwrap();
    }
    // The bodies are counted by queue, because both kinds are parsed alike.
    let taken = async || {
        let records = world.notes("recorder").into_iter().filter_map(|note| note["event"]["Records"].as_array().cloned());
        let messages = records.flatten().map(|record| {
            let message = driftless_contract::parse_run_message(record["body"].as_str().unwrap()).unwrap();
            json!([record["eventSourceARN"].as_str().unwrap().rsplit(':').next(), format!("{message:?}")])
        });
        messages.collect::<Vec<_>>().into()
    };
    let report = |queue: &str, name: &str| {
        let message = driftless_contract::RunMessage::Objects(vec![format!("tasks/{role}:t1/out/{name}")]);
        json!([queue, format!("{message:?}")])
    };
    let expected = [report("driftless-progress", "progress"), report("driftless-runs", "result")];
    let has_all = |taken: &Value| expected.iter().all(|report| taken.as_array().unwrap().contains(report));
    let taken = eventually("both are taken", taken, has_all).await;
    let tests = [json!(["driftless-progress", "Test"]), json!(["driftless-runs", "Test"])];
    let others = taken.as_array().unwrap().iter().filter(|message| !tests.contains(message) && !expected.contains(message));
    assert_eq!(others.count(), 0, "nobody is told of a lock: {taken:#}");
    assert!(taken.as_array().unwrap().contains(&tests[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_sends_to_its_own_queues_only_and_strangers_do_nothing() {
    let world = TestWorld::start("queues").await;
    let send = async |role: &str, queue: &str| {
        let sqs = world.sqs(&world.hooks.credentials(role, "f").await.unwrap()).await;
        let sent = sqs.send_message().queue_url(&world.aws.queues[queue]).message_body("hello").send().await;
        sent.map(drop).map_err(|error| error.code().unwrap_or_default().to_owned())
    };
    assert_eq!(send("WebhookRole", "Hints").await, Ok(()));
    assert!(send("WebhookRole", "Launches").await.unwrap_err().contains("AccessDenied"));
    assert!(send("SweeperRole", "Launches").await.unwrap_err().contains("AccessDenied"));

    let stranger = Credentials { access_key_id: "AKIASTRANGER".into(), secret_access_key: "x".into(), session_token: None };
    let refused = world.s3(&stranger).await.list_objects_v2().bucket(&world.aws.bucket).send().await.unwrap_err();
    assert_eq!(refused.code(), Some("InvalidAccessKeyId"));
    assert_eq!(
        world.http.get(format!("{}/{}", world.aws.endpoint, world.aws.bucket)).send().await.unwrap().status().as_u16(),
        403
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_who_it_is_is_told() {
    let world = TestWorld::start("identity").await;
    let keys = world.hooks.credentials("TaskRole", "t1").await.unwrap();
    let (_, answer) = world.call(&keys, &Call::form("sts", "Action=GetCallerIdentity&Version=2011-06-15")).await;
    assert!(answer.contains("<Arn>arn:aws:sts::123456789012:assumed-role/driftless-TaskRole/t1</Arn>"), "{answer}");
    assert!(answer.contains(&format!("<UserId>{}:t1</UserId>", world.aws.site.template.roles["TaskRole"].id)), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_is_for_those_whose_policy_names_its_secret() {
    let world = TestWorld::start("secrets").await;
    let read = async |role: &str, secret: &str| {
        let keys = world.hooks.credentials(role, "f").await.unwrap();
        let read = Account::new(&world.config(&keys).await).secret(secret).await;
        read.map(|text| text.expose_secret().to_owned()).map_err(|error| error.to_string())
    };
    let refused = |role: &str, secret: &str| {
        format!(
            "secretsmanager:GetSecretValue {secret}: AccessDeniedException: User: arn:aws:sts::123456789012:assumed-role/driftless-{role}/f \
             is not authorized to perform: secretsmanager:GetSecretValue on resource: "
        )
    };
    assert_eq!(read("SweeperRole", "driftless/kubeconfig/sweeper").await.unwrap(), KUBECONFIG);
    assert_eq!(read("WebhookRole", "driftless/webhook-keys").await.unwrap(), r#"{"kind":"key"}"#);
    for (role, secret) in [
        ("WebhookRole", "driftless/kubeconfig/sweeper"),
        ("FetcherRole", "driftless/kubeconfig/sweeper"),
        ("SweeperRole", "driftless/webhook-keys"),
        ("SweeperRole", "driftless/none"),
    ] {
        let error = read(role, secret).await.unwrap_err();
        assert!(error.starts_with(&refused(role, secret)), "{error}");
    }
    let calls = fs::read_to_string(world.root.join("logs/aws-calls.jsonl")).unwrap();
    assert!(calls.contains("\"operation\":\"GetSecretValue\"") && !calls.contains(KUBECONFIG), "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_call_with_another_secret_or_token_is_refused() {
    let world = TestWorld::start("signatures").await;
    let keys = world.hooks.credentials("TaskRole", "t1").await.unwrap();
    let key = format!("tasks/{}:t1/out/progress", world.aws.site.template.roles["TaskRole"].id);
    let call = async |keys: &control::Credentials| {
        let put = world.s3(keys).await.put_object().bucket(&world.aws.bucket).key(&key).body(vec![1].into());
        put.send().await.err().and_then(|error| error.code().map(str::to_owned))
    };
    assert_eq!(call(&keys).await, None);
    let guessed = control::Credentials { secret_access_key: "guessed".into(), ..keys.clone() };
    assert_eq!(call(&guessed).await.as_deref(), Some("SignatureDoesNotMatch"));
    let other = control::Credentials { session_token: Some("of another session".into()), ..keys };
    assert_eq!(call(&other).await.as_deref(), Some("InvalidToken"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_stores_no_body_other_than_the_signed_one() {
    let world = TestWorld::start("bodies").await;
    let keys = world.hooks.credentials("TaskRole", "t1").await.unwrap();
    let key = format!("tasks/{}:t1/out/progress", world.aws.site.template.roles["TaskRole"].id);
    let path = format!("/{}/{}", world.aws.bucket, key.replace(':', "%3A"));
    let administrator = world.s3(&world.aws.administrator).await;
    let stored = async || {
        let object = administrator.get_object().bucket(&world.aws.bucket).key(&key).send().await.ok()?;
        Some(object.body.collect().await.unwrap().into_bytes())
    };
    // More than one piece of the connection, and a difference in the last byte.
    let (large, mut changed) = (vec![7; 3 << 20], vec![7; 3 << 20]);
    *changed.last_mut().unwrap() = 8;
    for (signed, sent) in [(&b"one"[..], &b"two"[..]), (b"one", b""), (b"", b"two"), (&large, &changed)] {
        let call = Call { body: sent.into(), ..Call::new("PUT", "s3", &path, signed) };
        let (status, answer) = world.call(&keys, &call).await;
        assert!(status == 400 && answer.contains("<Code>XAmzContentSHA256Mismatch</Code>"), "{status} {answer}");
        assert_eq!(stored().await, None);
    }
    let unsigned = SignableBody::UnsignedPayload;
    let (status, answer) = world.call(&keys, &Call { signed: unsigned, ..Call::new("PUT", "s3", &path, b"two") }).await;
    assert_eq!((status, stored().await.as_deref()), (200, Some(&b"two"[..])), "{answer}");

    for (name, of_hello) in [
        ("x-amz-checksum-crc32", "NhCmhg=="),
        ("x-amz-checksum-crc32c", "mnG7TA=="),
        ("x-amz-checksum-sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00="),
        ("x-amz-checksum-sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="),
    ] {
        let put = |body| Call { headers: vec![(name, of_hello.into())], ..Call::new("PUT", "s3", &path, body) };
        let (status, answer) = world.call(&keys, &put(b"other")).await;
        assert!(status == 400 && answer.contains("<Code>BadDigest</Code>"), "{name}: {status} {answer}");
        assert_ne!(stored().await.unwrap(), &b"other"[..]);
        let (status, answer) = world.call(&keys, &put(b"hello")).await;
        assert_eq!((status, stored().await.as_deref()), (200, Some(&b"hello"[..])), "{name}: {answer}");
    }

    // The SDK sends a file in chunks, with the checksum behind them.
    let headers =
        [("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-decoded-content-length", "11"), ("content-encoding", "aws-chunked")];
    for (checksum, expected, content) in [("AAAAAA==", 400, &b"hello"[..]), ("DUoRhQ==", 200, b"hello world")] {
        let body = format!("b\r\nhello world\r\n0\r\nx-amz-checksum-crc32:{checksum}\r\n\r\n");
        let headers = headers.map(|(name, value)| (name, value.into())).to_vec();
        let signed = SignableBody::StreamingUnsignedPayloadTrailer;
        let put = Call { headers, signed, ..Call::new("PUT", "s3", &path, body.as_bytes()) };
        let (status, answer) = world.call(&keys, &put).await;
        assert_eq!((status, answer.contains("<Code>BadDigest</Code>")), (expected, expected == 400), "{answer}");
        assert_eq!(stored().await.as_deref(), Some(content));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_signed_with_other_keys_or_for_another_region_or_service_is_refused() {
    let world = TestWorld::start("scopes").await;
    let keys = world.hooks.credentials("LauncherRole", "f").await.unwrap();
    let describe =
        || Call::json("ecs", "AmazonEC2ContainerServiceV20141113.DescribeTasks", r#"{"cluster":"driftless","tasks":["t"]}"#);
    let url = json!({ "QueueUrl": world.aws.queues["Hints"], "MessageBody": "hello" }).to_string();
    let send = || Call::json("sqs", "AmazonSQS.SendMessage", &url);
    let secret = || Call::json("secretsmanager", "secretsmanager.GetSecretValue", r#"{"SecretId":"driftless/none"}"#);
    let who = || Call::form("sts", "Action=GetCallerIdentity&Version=2011-06-15");
    let get = || Call::new("GET", "s3", &format!("/{}/runs/kind/u/owner", world.aws.bucket), b"");
    for (call, passes) in [(describe(), 200), (send(), 200), (secret(), 400), (who(), 200), (get(), 404)] {
        let (status, answer) = world.call(&keys, &call).await;
        assert_eq!(status, passes, "{}: {answer}", call.service);
    }

    let guessed = Credentials { secret_access_key: "guessed".into(), ..keys.clone() };
    let other = Credentials { session_token: Some("of another session".into()), ..keys.clone() };
    let abroad = |call| Call { region: "eu-west-1", ..call };
    let disguised = |call, service| Call { service, ..call };
    let changed = |call: Call| Call { signed: SignableBody::Precomputed(sha256(b"{}")), ..call };
    for (keys, call, status, code) in [
        (&guessed, describe(), 400, "InvalidSignatureException"),
        (&guessed, send(), 400, "InvalidSignatureException"),
        (&guessed, secret(), 400, "InvalidSignatureException"),
        (&guessed, who(), 403, "SignatureDoesNotMatch"),
        (&guessed, get(), 403, "SignatureDoesNotMatch"),
        (&other, describe(), 400, "UnrecognizedClientException"),
        (&other, who(), 403, "InvalidClientTokenId"),
        (&other, get(), 400, "InvalidToken"),
        (&keys, changed(describe()), 400, "InvalidSignatureException"),
        (&keys, changed(send()), 400, "InvalidSignatureException"),
        (&keys, abroad(describe()), 400, "InvalidSignatureException"),
        (&keys, abroad(send()), 400, "InvalidSignatureException"),
        (&keys, abroad(secret()), 400, "InvalidSignatureException"),
        (&keys, abroad(who()), 403, "SignatureDoesNotMatch"),
        (&keys, abroad(get()), 400, "AuthorizationHeaderMalformed"),
        (&keys, disguised(describe(), "sqs"), 400, "InvalidSignatureException"),
        (&keys, disguised(send(), "ecs"), 400, "InvalidSignatureException"),
        (&keys, disguised(who(), "s3"), 400, "AuthorizationHeaderMalformed"),
    ] {
        let (found, answer) = world.call(keys, &call).await;
        assert!(found == status && answer.contains(code), "{code} for {}: {found} {answer}", call.service);
    }
    assert!(world.hooks.status().await.unwrap().alarms.is_empty());
}

/// A token of an issuer with this key.
fn token(key: &EcdsaKeyPair, claims: &Value) -> String {
    let encode = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&json!({ "alg": "ES256", "kid": "1" })), encode(claims));
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test(flavor = "multi_thread")]
async fn role_is_assumed_only_with_a_valid_token_that_it_trusts() {
    const ROLE: &str = "arn:aws:iam::123456789012:role/deployer";
    const ISSUER: &str = "oidc.example/id/1";
    let world = TestWorld::start("federation").await;
    let [own, other] = [(); 2].map(|()| EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());
    // 4 and the two coordinates.
    let [x, y] = [1..33, 33..65].map(|part| BASE64_URL_SAFE_NO_PAD.encode(&own.public_key().as_ref()[part]));
    let trust = json!({ "Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Action": "sts:AssumeRoleWithWebIdentity",
        "Principal": { "Federated": format!("arn:aws:iam::123456789012:oidc-provider/{ISSUER}") },
        "Condition": { "StringEquals": {
            format!("{ISSUER}:aud"): "sts.amazonaws.com", format!("{ISSUER}:sub"): "system:serviceaccount:team:deployer",
        } },
    }] });
    world.aws.federate(Federation {
        issuer: format!("https://{ISSUER}"),
        keys: json!({ "keys": [{ "kid": "1", "alg": "ES256", "kty": "EC", "crv": "P-256", "x": x, "y": y }] }),
        roles: [(ROLE.to_owned(), serde_json::from_value(trust).unwrap())].into(),
    });
    let assume = async |role: &str, token: &str| {
        let form = [("Action", "AssumeRoleWithWebIdentity"), ("RoleArn", role), ("WebIdentityToken", token)];
        let form = ::url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let call = world.http.post(&world.aws.endpoint).header("content-type", "application/x-www-form-urlencoded").body(form);
        let answer = call.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let claims = |change: &[(&str, Value)]| {
        let mut claims = json!({
            "iss": format!("https://{ISSUER}"), "aud": ["sts.amazonaws.com"], "sub": "system:serviceaccount:team:deployer",
            "exp": now().as_second() + 600,
        });
        for (name, value) in change {
            claims[*name] = value.clone();
        }
        claims
    };
    let valid = token(&own, &claims(&[]));
    let (status, answer) = assume(ROLE, &valid).await;
    assert_eq!(status, 200, "{answer}");

    let (signed, _) = valid.rsplit_once('.').unwrap();
    let invalid = (400, "InvalidIdentityToken");
    for (role, token, (status, code)) in [
        (ROLE, "no token".to_owned(), invalid),
        (ROLE, format!("{signed}."), invalid),
        (ROLE, token(&other, &claims(&[])), invalid),
        (ROLE, token(&own, &claims(&[("iss", "https://other.example".into())])), invalid),
        (ROLE, token(&own, &claims(&[("aud", json!(["https://kubernetes.default.svc"]))])), invalid),
        (ROLE, token(&own, &claims(&[("exp", (now().as_second() - 1).into())])), (400, "ExpiredTokenException")),
        (ROLE, token(&own, &claims(&[("sub", "system:serviceaccount:team:default".into())])), (403, "AccessDenied")),
        ("arn:aws:iam::123456789012:role/none", valid.clone(), (403, "AccessDenied")),
        (&world.aws.site.template.roles["TaskRole"].arn, valid.clone(), (403, "AccessDenied")),
    ] {
        let (found, answer) = assume(role, &token).await;
        let expected = format!("<ErrorResponse><Error><Code>{code}</Code>");
        assert!(found == status && answer.contains(&expected), "{code}: {found} {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_identity_gives_the_forwarders_keys_to_its_service_account_only() {
    let world = TestWorld::start("pod-identity").await;
    let keys = |role, namespace, account| world.aws.pod_identity(role, "kind", namespace, account);
    let forwarder = keys("ForwarderRole", "driftless-system", "driftless-forwarder").unwrap();
    let sqs = world.sqs(&forwarder).await;
    sqs.send_message().queue_url(&world.aws.queues["Hints"]).message_body("hello").send().await.unwrap();
    for (role, namespace, account) in [
        ("ForwarderRole", "team", "driftless-forwarder"),
        ("ForwarderRole", "driftless-system", "default"),
        ("LauncherRole", "driftless-system", "driftless-forwarder"),
    ] {
        let refused = keys(role, namespace, account).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|refused| refused.starts_with("AccessDenied")), "{role}: {refused:?}");
    }
}
