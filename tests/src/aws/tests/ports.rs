//! The guarantees of the AWS ports, checked for the adapters on moto and the local Fargate.
//! [`driftless_testkit::World`] has the same.

use anyhow::{Context as _, Result};
use aws_sdk_s3::types::StorageClass;
use driftless_aws::{Bucket, Ecs, QueueUrls, Sqs, TaskState, Tasks as _};
use driftless_contract::{Document as _, FetchRequest, Hint, LaunchHint, RunMessage, keys, parse_run_message};
use driftless_testkit::{
    Message,
    contract::{objects, queues, tasks},
};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};

use super::{tasks::client, *};

/// The adapters with an administrator's keys, and their surroundings.
struct Real {
    world: TestWorld,
    bucket: Bucket,
    queues: Sqs,
    tasks: Ecs,
}

impl Real {
    async fn start() -> Result<Self> {
        let world = TestWorld::start("ports").await;
        // The cases receive the messages themselves.
        for function in ["Reconciler", "Fetcher", "Launcher", "Recorder"] {
            world.hooks.switch(function, &control::Switches { paused: true, ..control::Switches::default() }).await?;
        }
        world.hooks.slow_starts(tasks::PENDING, 3600).await?;
        let config = world.config(&world.aws.administrator).await;
        let [hints, sources, launches, runs] =
            ["Hints", "Sources", "Launches", "Runs"].map(|queue| Some(world.aws.queues[queue].clone()));
        let bucket = Bucket::new(&config, world.aws.bucket.clone());
        Ok(Self {
            bucket: bucket.sealing_with(format!("arn:aws:kms:{REGION}:{ACCOUNT}:key/contract")),
            queues: Sqs::new(&config, QueueUrls { hints, sources, launches, runs }),
            tasks: client(&world, &world.aws.administrator).await,
            world,
        })
    }

    /// Receives all available messages of a queue.
    async fn receive_from(&self, queue: &str) -> Result<Vec<String>> {
        let (client, url) = (self.world.sqs(&self.world.aws.administrator).await, &self.world.aws.queues[queue]);
        let mut bodies = Vec::new();
        loop {
            let answer = client.receive_message().queue_url(url).max_number_of_messages(10).send().await?;
            let messages = answer.messages.unwrap_or_default();
            if messages.is_empty() {
                return Ok(bodies);
            }
            for message in messages {
                client.delete_message().queue_url(url).set_receipt_handle(message.receipt_handle).send().await?;
                bodies.push(message.body.context("a body")?);
            }
        }
    }
}

impl objects::Fixture for Real {
    type Port = Bucket;

    fn port(&self) -> &Bucket {
        &self.bucket
    }

    fn now(&self) -> Timestamp {
        now()
    }

    async fn archive(&self, key: &str) -> Result<()> {
        let s3 = self.world.s3(&self.world.aws.administrator).await;
        let put = s3.put_object().bucket(&self.world.aws.bucket).key(key).storage_class(StorageClass::Glacier);
        Ok(put.send().await.map(drop)?)
    }
}

impl queues::Fixture for Real {
    type Port = Sqs;
    type Bucket = Bucket;

    fn port(&self) -> &Sqs {
        &self.queues
    }

    fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    async fn receive(&self) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        for body in self.receive_from("Hints").await? {
            messages.push(Message::Hint(Hint::parse(body.as_bytes())?));
        }
        for body in self.receive_from("Launches").await? {
            messages.push(Message::Launch(LaunchHint::parse(body.as_bytes())?));
        }
        for queue in ["Runs", "Progress"] {
            for body in self.receive_from(queue).await? {
                messages.push(Message::Run(parse_run_message(&body)?));
            }
        }
        for body in self.receive_from("Sources").await? {
            messages.push(Message::Fetch(FetchRequest::parse(body.as_bytes())?));
        }
        messages.retain(|message| *message != Message::Run(RunMessage::Test));
        Ok(messages)
    }
}

impl tasks::Fixture for Real {
    type Port = Ecs;

    fn port(&self) -> &Ecs {
        &self.tasks
    }

    fn now(&self) -> Timestamp {
        now()
    }

    async fn set_capacity(&self, is_there: bool) -> Result<()> {
        self.world.hooks.refuse_tasks(if is_there { 0 } else { u32::MAX }).await
    }

    async fn reclaim(&self, arn: &str) -> Result<()> {
        self.world.hooks.reclaim(arn).await
    }

    async fn exit(&self, arn: &str) -> Result<()> {
        let file = self.world.root.join("pids").join(keys::task_id(arn));
        let pid = ready::until("the task's process", SOON, async || {
            Pid::from_raw(fs::read_to_string(&file)?.trim().parse()?).context("a process id")
        });
        Ok(kill_process(pid.await?, Signal::TERM)?)
    }

    async fn stopped(&self, arn: &str) -> Result<()> {
        ready::until("the task's end", SOON, async || match self.tasks.state(arn).await? {
            TaskState::Stopped { .. } => Ok(()),
            other => anyhow::bail!("{other:?}"),
        })
        .await
    }

    async fn forget(&self) -> Result<()> {
        self.world.hooks.forget_tasks().await
    }

    async fn is_told(&self, arn: &str) -> Result<bool> {
        let told = RunMessage::Task { task: arn.into() };
        ready::until("an event", SOON, async || {
            let bodies = self.receive_from("Runs").await?;
            anyhow::ensure!(bodies.iter().any(|body| parse_run_message(body).is_ok_and(|message| message == told)), "{bodies:?}");
            Ok(true)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_give_every_guarantee_of_the_ports_to_aws() {
    let real = Real::start().await.unwrap();
    let reports = [objects::check(&real).await, queues::check(&real).await, tasks::check(&real).await];
    let checked: usize = reports.iter().map(|report| report.checked).sum();
    let broken: Vec<_> = reports.into_iter().filter_map(|report| report.into_result().err()).collect();
    assert!(broken.is_empty(), "of {checked} guarantees: {broken:#?}");
}
