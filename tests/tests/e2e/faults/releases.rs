//! Documents and messages of another release: while two run side by side, and after a rollback.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{Stack, uid_of};
use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, RunHint, VERSION, keys, to_json};
use driftless_tests::{
    aws::control::{Invoked, Outage},
    scenario::{Handle, Namespace, RUN, Source, is_ready},
    world::{cluster, ready},
};
use serde_json::{Value, json};

use crate::{
    interruption::intact,
    updates::ours,
    world::{alone, looked, nothing_was_given_up, s3, shared},
};

/// A document of another release: with a field that this one does not know, and with another
/// version.
fn others(document: &[u8]) -> Result<[Vec<u8>; 2]> {
    let with = |field: &str, value: Value| -> Result<_> {
        let mut document: Value = serde_json::from_slice(document)?;
        document[field] = value;
        Ok(document.to_string().into_bytes())
    };
    Ok([with("ofAnotherRelease", json!({}))?, with("version", json!(VERSION + 1))?])
}

/// A document of the bucket that is replaced by another release's for a while.
struct Document<'a> {
    world: &'a Handle,
    s3: aws_sdk_s3::Client,
    key: String,
    ours: Vec<u8>,
}

impl<'a> Document<'a> {
    async fn new(world: &'a Handle, key: String) -> Result<Self> {
        let s3 = s3(world, None).await?;
        let object = s3.get_object().bucket(world.get("WORLD_BUCKET")?).key(&key).send().await?;
        let ours = object.body.collect().await?.into_bytes().to_vec();
        Ok(Self { world, s3, key, ours })
    }

    async fn put(&self, content: Vec<u8>) -> Result<()> {
        let put = self.s3.put_object().bucket(self.world.get("WORLD_BUCKET")?).key(&self.key).body(content.into());
        put.send().await?;
        Ok(())
    }

    /// Makes a function refuse the document in both forms of another release, and then restores it.
    async fn refused_by(&self, function: &str) -> Result<()> {
        for other in others(&self.ours)? {
            let before = refusals(self.world, function)?;
            self.put(other).await?;
            // Each delivery counts: after five of them a message is a dead letter.
            ready::until_every(Duration::from_secs(2), &format!("the {function} refuses {}", self.key), RUN, async || {
                if refusals(self.world, function)? == before {
                    self.world.control.expire(function).await?;
                    bail!("{before} refusals");
                }
                Ok(())
            })
            .await?;
        }
        self.put(self.ours.clone()).await
    }
}

/// How often a function could not read a launch record, by its log.
fn refusals(world: &Handle, function: &str) -> Result<usize> {
    let mut refusals = 0;
    for file in fs::read_dir(world.get("WORLD_LOGS")?)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with(&format!("{}-", function.to_lowercase())) {
            let log = fs::read_to_string(file.path())?;
            let words = ["not a launch record that this release can read", "a launch record of version"];
            refusals += log.lines().filter(|line| words.iter().any(|words| line.contains(words))).count();
        }
    }
    Ok(refusals)
}

#[tokio::test]
async fn documents_of_another_release_are_refused_until_it_has_acted() -> Result<()> {
    // Every message in flight to the function is delivered once more.
    let (world, _alone) = alone().await?;
    let team = world.namespace("two-releases").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    let more = "    TOKEN: { type: Secret, secret: { name: later, key: token } }\n";
    team.apply_stack_as("app", "app", "{}", Source::Program("app"), more).await?;
    let uid = ready::until("the Stack has an Update", RUN, async || {
        team.updates("app").await?.pop().map(|update| uid_of(&update)).context("no Update")
    })
    .await?;

    // The launch record of an interrupted launcher, as one of the other release may leave at the
    // end of an upgrade.
    let (by, call, about) = (Some("LauncherRole".to_owned()), "s3 PUT".to_owned(), format!("{uid}/launch"));
    let kill = Outage { by, call, about, percent: 1, status: 503, kills: true, lost: true, ..Outage::default() };
    world.control.outage(&kill).await?;
    team.apply_secret("later", &[("token", "t")]).await?;
    let folder = keys::run(cluster::NAME, &uid);
    let launch =
        ready::until("there is a launch record", RUN, async || Document::new(&world, format!("{folder}launch")).await).await?;
    launch.refused_by("Launcher").await?;
    let task = delivered(&team, "Launcher", async || {
        let update = team.updates("app").await?.pop().context("no Update")?;
        ours(&update).task.with_context(|| format!("no task: {:#?}", update.status))
    })
    .await?;

    // The same at the end of the run.
    team.running("app").await?;
    let [other, _] = others(&launch.ours)?;
    launch.put(other).await?;
    drop(hold);
    launch.refused_by("Recorder").await?;
    delivered(&team, "Recorder", async || {
        let stack = team.stack("app").await?;
        ensure!(is_ready(&stack), "{:#?}", stack.status);
        Ok(())
    })
    .await?;
    let update = team.updates("app").await?.pop().context("no Update")?;
    ensure!(ours(&update).task == Some(task), "another task ran: {:#?}", update.status);
    looked(&team, "app").await?;
    team.ready_after("app", 1).await?;
    intact(&team, "app", "app")?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}

/// Waits while the failed messages are delivered again.
async fn delivered<T, F: Future<Output = Result<T>>>(team: &Namespace<'_>, function: &str, look: impl Fn() -> F) -> Result<T> {
    // The fifth delivery is the last one, so an invocation has time to end before the next.
    ready::until_every(Duration::from_secs(5), &format!("the {function} acts"), RUN, async || {
        team.world.control.expire(function).await?;
        look().await
    })
    .await
}

#[tokio::test]
async fn runner_that_cannot_read_its_spec_fails_a_run_that_is_retried() -> Result<()> {
    const IMAGE: &str = "registry.example/other-release:1";
    let (world, _turn) = shared().await?;
    let team = world.namespace("other-runner").await?;
    // The spec is written before the task reads it.
    world.control.slow_starts(IMAGE, 15).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let template = format!("  workspaceTemplate: {{ spec: {{ image: {IMAGE:?} }} }}\n");
    team.apply_stack_as("app", "app", "{}", Source::Program("app"), &template).await?;
    let spec = ready::until("there is a spec", RUN, async || {
        let update = team.updates("app").await?.pop().context("no Update")?;
        let id = keys::task_id(&ours(&update).task.context("no task")?).to_owned();
        let all = crate::world::keys(&world, "tasks/").await?;
        let key = all.into_iter().find(|key| key.ends_with(&format!("{id}/in/spec"))).context("no spec")?;
        Document::new(&world, key).await
    })
    .await?;
    let [other, _] = others(&spec.ours)?;
    spec.put(other).await?;
    world.control.slow_starts(IMAGE, 0).await?;
    let message = |stack: &Stack| stack.status.as_ref()?.last_update.as_ref()?.message.clone();
    let told =
        |stack: &Stack| message(stack).is_some_and(|message| message.contains("not a run spec that this release can read"));
    team.wait("app", "to say what its runner cannot read", told).await?;
    team.ready_after("app", 2).await?;
    intact(&team, "app", "app")?;
    team.clear().await
}

#[tokio::test]
async fn messages_of_another_release_fail_alone() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("other-messages").await?;
    let key = |api_version: &str, kind: &str| ObjectKey {
        cluster: cluster::NAME.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: team.name.clone(),
        name: "none".into(),
    };
    let (stack, update) = (key("pulumi.com/v1", "Stack"), key("auto.pulumi.com/v1alpha1", "Update"));
    let messages = [
        ("Reconciler", to_json(&Hint::new(stack.clone()))),
        ("Fetcher", to_json(&FetchRequest::fetch(stack, 0))),
        ("Launcher", to_json(&LaunchHint { version: VERSION, update: update.clone(), hops: 0 })),
        ("Recorder", to_json(&RunHint { version: VERSION, update, uid: None, hops: 0 })),
    ];
    for (function, message) in messages {
        let [with_field, with_version] = others(message.as_bytes())?.map(|other| String::from_utf8_lossy(&other).into_owned());
        let bodies = [("field", with_field), ("ours", message), ("version", with_version)];
        let record = |(id, body): &(&str, String)| json!({ "messageId": id, "body": body, "eventSource": "aws:sqs" });
        let event = json!({ "Records": bodies.iter().map(record).collect::<Vec<_>>() });
        let expected = json!([{ "itemIdentifier": "field" }, { "itemIdentifier": "version" }]);
        match world.control.invoke(function, &event).await? {
            Invoked::Answer(answer) => assert_eq!(answer["batchItemFailures"], expected, "{function}"),
            failure @ Invoked::Failure(_) => bail!("{function}: {failure:?}"),
        }
    }
    Ok(())
}
