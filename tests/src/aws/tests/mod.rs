//! The AWS half of the world with the real moto, with scripts as functions and runner.

mod calls;
mod functions;
mod ports;
mod tasks;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, sign},
    sign::v4,
};
use serde_json::{Value, json};

use super::{
    control::{Client, Outage},
    machine::{now, random_hex},
    *,
};
use crate::world::{moto::Moto, process::Supervisor, ready};

const FUNCTIONS: [&str; 6] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper", "webhook"];
const KUBECONFIG: &str = "canary-kubeconfig";
const SOON: std::time::Duration = std::time::Duration::from_secs(20);

/// A separate world for one test, below `target/tmp`.
struct TestWorld {
    aws: Aws,
    hooks: Client,
    http: reqwest::Client,
    root: PathBuf,
    _moto: Supervisor,
}

impl TestWorld {
    async fn start(test: &str) -> Self {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let project = repository.join("target/tmp/aws").join(test);
        let _ = fs::remove_dir_all(project.join("infra"));
        fs::create_dir_all(project.join("target")).unwrap();
        fs::create_dir_all(project.join("infra")).unwrap();
        // A link from an earlier path of the checkout is dead.
        let _ = fs::remove_file(project.join("target/tools"));
        symlink(repository.join("target/tools"), project.join("target/tools")).unwrap();
        let script = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        for function in FUNCTIONS {
            script(&project.join("target/lambda").join(function).join("bootstrap"), include_str!("bootstrap.py"));
        }
        script(&project.join("runner"), include_str!("runner.sh"));
        let template = include_str!("../../../../infra/template.yaml");
        // A shorter time limit of the webhook, so that its test does not take ten seconds.
        fs::write(project.join("infra/template.yaml"), template.replace("Timeout: 10\n", "Timeout: 2\n")).unwrap();

        let dirs = Arc::new(Dirs::fresh(&project).unwrap());
        let supervisor = Supervisor::default();
        let moto = Moto::start(&dirs, &supervisor).await.unwrap();
        let parameters =
            [("ClusterNames", "kind"), ("Subnets", "subnet-1"), ("SecurityGroups", "sg-1"), ("RunnerImage", "runner:1")];
        let secrets = [("driftless/webhook-keys", r#"{"kind":"key"}"#), ("driftless/kubeconfig/sweeper", KUBECONFIG)];
        let settings = Settings {
            region: REGION.into(),
            stack: STACK.into(),
            administrator: Credentials::random().unwrap(),
            is_deployed: false,
            template: project.join("infra/template.yaml"),
            parameters: parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            secrets: secrets.map(|(name, text)| (name.to_owned(), text.to_owned())).into(),
            objects: BTreeMap::new(),
            etc_hosts: None,
            runner: project.join("runner"),
            image: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            moto: moto.endpoint,
            instances: 2,
        };
        let root = dirs.root().to_owned();
        let aws = Aws::start(dirs, settings).await.unwrap();
        let hooks = Client::new(&aws.control).unwrap();
        hooks.pause_schedule(true).await.unwrap();
        Self { hooks, aws, http: gate::http_client().unwrap(), root, _moto: supervisor }
    }

    /// The notes of the function with that name.
    fn notes(&self, function: &str) -> Vec<Value> {
        let notes = fs::read_to_string(self.root.join(format!("events/driftless-{function}.jsonl"))).unwrap_or_default();
        notes.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The bodies that the function has received, in order.
    fn taken(&self, function: &str) -> Vec<String> {
        self.notes(function).iter().filter_map(|note| note["end"].as_str().map(Into::into)).collect()
    }

    async fn config(&self, keys: &Credentials) -> aws_config::SdkConfig {
        let keys = aws_credential_types::Credentials::new(
            &keys.access_key_id,
            &keys.secret_access_key,
            keys.session_token.clone(),
            None,
            "test",
        );
        let config = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .region(Region::from_static(REGION))
            .endpoint_url(&self.aws.endpoint);
        config.credentials_provider(keys).load().await
    }

    async fn sqs(&self, keys: &Credentials) -> aws_sdk_sqs::Client {
        aws_sdk_sqs::Client::new(&self.config(keys).await)
    }

    async fn s3(&self, keys: &Credentials) -> aws_sdk_s3::Client {
        let config = self.config(keys).await;
        aws_sdk_s3::Client::from_conf(aws_sdk_s3::config::Builder::from(&config).force_path_style(true).build())
    }

    /// Sends as the administrator, whatever the mappings' switches are.
    async fn send(&self, queue: &str, body: &str, group: Option<&str>) {
        let client = self.sqs(&self.aws.administrator).await;
        let send = client.send_message().queue_url(&self.aws.queues[queue]).message_body(body);
        let deduplication = group.map(|_| random_hex(8).unwrap());
        send.set_message_group_id(group.map(Into::into)).set_message_deduplication_id(deduplication).send().await.unwrap();
    }

    /// The number of messages in a queue, including hidden ones.
    async fn depth(&self, queue: &str) -> usize {
        use aws_sdk_sqs::types::QueueAttributeName::{ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible};
        let client = self.sqs(&self.aws.administrator).await;
        let request = client.get_queue_attributes().queue_url(&self.aws.queues[queue]);
        let request = request.attribute_names(ApproximateNumberOfMessages).attribute_names(ApproximateNumberOfMessagesNotVisible);
        let attributes = request.send().await.unwrap().attributes.unwrap_or_default();
        attributes.values().map(|value| value.parse::<usize>().unwrap()).sum()
    }

    /// Makes a call of ECS's JSON API. Returns the status and the body.
    async fn ecs(&self, keys: &Credentials, operation: &str, input: &Value) -> (u16, Value) {
        let call = Call::json("ecs", &format!("AmazonEC2ContainerServiceV20141113.{operation}"), &input.to_string());
        let (status, answer) = self.call(keys, &call).await;
        (status, serde_json::from_str(&answer).unwrap())
    }

    /// Makes a signed call. Returns the status and the body.
    async fn call(&self, keys: &Credentials, call: &Call) -> (u16, String) {
        let uri = format!("{}{}", self.aws.endpoint, call.path);
        let headers = call.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let signable = SignableRequest::new(call.method, &uri, headers, call.signed.clone()).unwrap();
        let (keys, now) = (keys.clone(), std::time::SystemTime::from(now()));
        let keys =
            aws_credential_types::Credentials::new(keys.access_key_id, keys.secret_access_key, keys.session_token, None, "test");
        let (identity, settings) = (keys.into(), signature::settings(call.service, call.service == "s3"));
        let params = v4::SigningParams::builder().identity(&identity).region(call.region).name(call.service).time(now);
        let params = params.settings(settings).build().unwrap().into();
        let (signed, _) = sign(signable, &params).unwrap().into_parts();
        let mut request = http::Request::builder().method(call.method).uri(uri).body(call.body.clone()).unwrap();
        for (name, value) in &call.headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        signed.apply_to_request_http1x(&mut request);
        let answer = self.http.execute(request.try_into().unwrap()).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// A call as no SDK makes it: its signature may be of another body, Region or service.
struct Call {
    method: &'static str,
    path: String,
    region: &'static str,
    service: &'static str,
    headers: Vec<(&'static str, String)>,
    signed: SignableBody<'static>,
    body: Vec<u8>,
}

impl Call {
    fn new(method: &'static str, service: &'static str, path: &str, body: &[u8]) -> Self {
        let signed = SignableBody::Precomputed(sha256(body));
        Self { method, path: path.into(), region: REGION, service, headers: Vec::new(), signed, body: body.into() }
    }

    fn json(service: &'static str, target: &str, body: &str) -> Self {
        let headers = vec![("x-amz-target", target.into()), ("content-type", "application/x-amz-json-1.1".into())];
        Self { headers, ..Self::new("POST", service, "/", body.as_bytes()) }
    }

    fn form(service: &'static str, body: &str) -> Self {
        let headers = vec![("content-type", "application/x-www-form-urlencoded".into())];
        Self { headers, ..Self::new("POST", service, "/", body.as_bytes()) }
    }
}

fn sha256(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Waits until the condition holds, and reports the state if it does not.
async fn eventually(what: &str, state: impl AsyncFn() -> Value, holds: impl Fn(&Value) -> bool) -> Value {
    let look = || async {
        let state = state().await;
        if holds(&state) { Ok(state) } else { Err(anyhow::anyhow!("{state:#}")) }
    };
    ready::until(what, SOON, look).await.unwrap_or_else(|error| panic!("{error:?}"))
}
