//! From a push to Ready, for every kind of Flux source.

use std::{fs, time::Instant};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    aws::CALLS_LOG,
    scenario::{FLUX, Handle, Namespace, RUN, Source, commit, is_ready, output},
    world::{git::Repository, ready},
};
use serde_json::json;

use crate::world::{Frozen, alone, looked, nothing_was_given_up, quiet, s3, shared};

/// The origin of each kind's content.
struct Origins<'a> {
    team: Namespace<'a>,
    git: Repository,
    charts: Repository,
    s3: aws_sdk_s3::Client,
}

/// The kinds, each with the project's directory.
const KINDS: [(&str, &str); 4] = [("GitRepository", ""), ("OCIRepository", ""), ("Bucket", ""), ("HelmChart", "chart")];

impl<'a> Origins<'a> {
    async fn new(world: &'a Handle, name: &str) -> Result<Self> {
        let team = world.namespace(name).await?;
        let (git, charts) = (world.git.create(name).await?, world.git.create(&format!("{name}-charts")).await?);
        let s3 = s3(world, None).await?;
        s3.create_bucket().bucket(name).send().await?;
        Ok(Self { team, git, charts, s3 })
    }

    /// Pushes a project that writes `content` to every origin.
    async fn push(&self, content: &str) -> Result<()> {
        let project = |kind: &str| -> Result<String> {
            let name = kind.to_lowercase();
            Ok(format!("name: {name}\nruntime: yaml\n{}", self.team.program(&format!("{name}.txt"), content, "")?))
        };
        self.git.commit(content, &[("Pulumi.yaml", &project("GitRepository")?)]).await?;
        let chart = "apiVersion: v2\nname: chart\nversion: 0.1.0\n";
        self.charts.commit(content, &[("chart/Chart.yaml", chart), ("chart/Pulumi.yaml", &project("HelmChart")?)]).await?;
        self.team.world.registry.push(&self.team.name, "latest", &[("Pulumi.yaml", &project("OCIRepository")?)]).await?;
        let object = self.s3.put_object().bucket(&self.team.name).key("Pulumi.yaml");
        object.body(project("Bucket")?.into_bytes().into()).send().await?;
        Ok(())
    }

    async fn apply_sources(&self) -> Result<()> {
        let team = &self.team;
        team.apply_git_repository("app", &self.git.url).await?;
        team.apply_oci_repository("app", &team.name).await?;
        team.apply_bucket("app", &team.name).await?;
        team.apply_git_repository("charts", &self.charts.url).await?;
        let chart =
            "{ interval: 1h, chart: ./chart, reconcileStrategy: Revision, sourceRef: { kind: GitRepository, name: charts } }";
        team.apply_source("HelmChart", "app", chart).await
    }

    /// Requests a reconciliation of all of them from source-controller. The chart is rebuilt after
    /// its repository's artifact.
    async fn reconcile(&self, request: &str) -> Result<()> {
        for (kind, name) in [("GitRepository", "app"), ("OCIRepository", "app"), ("Bucket", "app"), ("GitRepository", "charts")] {
            self.team.reconcile(kind, name, request).await?;
        }
        Ok(())
    }

    /// Waits until the Stack of every kind has run `content`.
    async fn has_run(&self, content: &str) -> Result<()> {
        for (kind, _) in KINDS {
            let ran = |stack: &_| output(stack, "content") == Some(&json!(content)) && is_ready(stack);
            self.team.wait(&kind.to_lowercase(), &format!("to have run {content:?}"), ran).await?;
        }
        Ok(())
    }

    /// Checks that there were this many runs, the last with `content`, of the revision that the
    /// source names.
    async fn ran(&self, runs: usize, content: &str) -> Result<()> {
        for (kind, _) in KINDS {
            let stack = self.team.ready_after(&kind.to_lowercase(), runs).await?;
            assert_eq!(output(&stack, "content"), Some(&json!(content)), "{kind}");
            assert_eq!(commit(&stack), self.team.revision(kind, "app").await?.as_deref(), "{kind}");
            assert_eq!(fs::read_to_string(self.team.file(&format!("{}.txt", kind.to_lowercase()))?)?, content, "{kind}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn push_to_each_source_kind_runs_once_by_webhook_or_watch() -> Result<()> {
    let (world, turn) = alone().await?;
    let origins = Origins::new(&world, "kinds").await?;
    origins.push("one").await?;
    origins.team.apply_alert().await?;
    origins.apply_sources().await?;
    for (kind, dir) in KINDS {
        let source = Source::Flux { api_version: FLUX, kind, name: "app", dir };
        origins.team.apply_stack(&kind.to_lowercase(), source, "").await?;
    }
    origins.has_run("one").await?;
    quiet(&world, &turn).await?;
    origins.ran(1, "one").await?;

    world.control.pause_schedule(true).await?;
    let forwarder = Frozen::new(&world, "forwarder")?;
    origins.push("two").await?;
    origins.reconcile("two").await?;
    origins.has_run("two").await?;
    drop(forwarder);
    world.control.disable_url(true).await?;
    origins.push("three").await?;
    origins.reconcile("three").await?;
    origins.has_run("three").await?;
    world.control.disable_url(false).await?;
    quiet(&world, &turn).await?;
    origins.ran(3, "three").await?;
    nothing_was_given_up(&world).await
}

/// The calls of S3 that wrote a key with `part` in it.
fn writes(world: &Handle, part: &str) -> Result<Vec<String>> {
    let writes = world.journal(CALLS_LOG, 0, |call| call["service"] == "s3" && call["method"] == "PUT")?;
    Ok(writes.iter().filter_map(|call| call["path"].as_str()).filter(|path| path.contains(part)).map(Into::into).collect())
}

#[tokio::test]
async fn thirty_stacks_on_one_source_cost_one_fetch_and_run_once_each() -> Result<()> {
    const STACKS: usize = 30;
    let (world, _turn) = shared().await?;
    let team = world.namespace("thirty").await?;
    let repository = world.git.create("thirty").await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("${pulumi.stack}.txt", "one", "")?);
    repository.commit("one", &[("Pulumi.yaml", &project)]).await?;
    let names: Vec<_> = (0..STACKS).map(|n| format!("s{n:02}")).collect();
    for name in &names {
        team.apply_stack_as(name, name, "{}", Source::GitRepository("app"), "").await?;
    }
    let started = Instant::now();
    team.apply_git_repository("app", &repository.url).await?;
    ready::until("all Stacks are Ready", RUN, async || {
        let waiting: Vec<_> = team.stacks().await?.into_iter().filter(|stack| !is_ready(stack)).collect();
        ensure!(waiting.is_empty(), "{} wait, such as {:#?}", waiting.len(), waiting[0].status);
        Ok(())
    })
    .await?;
    println!("{STACKS} Stacks on one source: Ready after {:?}", started.elapsed());
    for name in &names {
        looked(&team, name).await?;
        team.ready_after(name, 1).await?;
        assert_eq!(fs::read_to_string(team.file(&format!("{name}.txt"))?)?, "one");
    }
    let packs: Vec<_> = writes(&world, "/trees/world/thirty/")?.into_iter().filter(|path| path.ends_with("/pack")).collect();
    assert_eq!(packs.len(), 1, "the source was fetched more than once: {packs:?}");
    team.clear().await
}

#[tokio::test]
async fn revision_outside_the_listed_directories_counts_as_run() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("paths").await?;
    let repository = world.git.create("paths").await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("app.txt", "one", "")?);
    let files = [("infra/Pulumi.yaml", project.as_str()), ("modules/net/main.yaml", "1\n"), ("docs/readme.md", "1\n")];
    repository.commit("one", &files).await?;
    team.apply_git_repository("app", &repository.url).await?;
    let source = Source::Flux { api_version: FLUX, kind: "GitRepository", name: "app", dir: "infra" };
    team.apply_stack_as("app", "dev", "{ driftless.dev/paths: 'modules/net, shared' }", source, "").await?;
    team.ready_after("app", 1).await?;
    assert_eq!(team.events("app", "RevisionSkipped").await?, Vec::<String>::new());

    let push = async |path: &str, content: &str, runs: usize| -> Result<String> {
        let revision = format!("main@sha1:{}", repository.commit(path, &[(path, content)]).await?);
        team.reconcile_source("app", &revision).await?;
        team.wait("app", &format!("to be at {revision}"), |stack| commit(stack) == Some(&revision) && is_ready(stack)).await?;
        looked(&team, "app").await?;
        team.ready_after("app", runs).await?;
        Ok(revision)
    };
    let skipped = push("docs/readme.md", "2\n", 1).await?;
    team.told("app", "RevisionSkipped", &[&skipped, "infra, modules/net, shared"]).await?;
    let events = team.events("app", "RevisionSkipped").await?;
    ensure!(events.len() == 1, "{events:?}");
    push("modules/net/main.yaml", "2\n", 2).await?;
    push("shared/new.yaml", "1\n", 3).await?;
    push("modules/other.yaml", "1\n", 3).await?;
    push("infra/Pulumi.yaml", &format!("{project}# another line\n"), 4).await?;
    Ok(())
}

#[tokio::test]
async fn an_artifact_of_another_object_or_from_another_host_is_not_fetched() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, other) = (world.namespace("tenant").await?, world.namespace("neighbour").await?);
    let archive = driftless_testkit::hostile::honest();
    other.offer(FLUX, "ExternalArtifact", "app", "one", &archive).await?;
    let theirs = other.objects(FLUX, "ExternalArtifact")?.get("app").await?.data["status"]["artifact"].clone();
    let host = "http://source-controller.flux-system.svc.cluster.local./";
    let cases = [
        ("path", json!({}), "the path of an artifact of this object begins with externalartifact/tenant/path/"),
        ("traversal", json!({ "path": "externalartifact/tenant/traversal/../../neighbour/app/x.tar.gz" }), "begins with"),
        (
            "metadata",
            json!({ "url": "http://169.254.169.254/latest" }),
            "host not in ArtifactServices, which lists source-controller.flux-system",
        ),
        (
            "host",
            json!({ "url": "http://evil.example/x.tar.gz" }),
            "host not in ArtifactServices, which lists source-controller.flux-system",
        ),
        (
            "apiserver",
            json!({ "url": "https://kubernetes.default.svc/api" }),
            "expected http://HOST/PATH with the path of status.artifact.path",
        ),
    ];
    for (name, change, _) in &cases {
        team.offer(FLUX, "ExternalArtifact", name, "one", &archive).await?;
        let own = format!("externalartifact/tenant/{name}/x.tar.gz");
        let mut artifact = theirs.clone();
        if let Some(url) = change["url"].as_str() {
            artifact["path"] = own.clone().into();
            artifact["url"] = if url.starts_with("https") {
                url.into()
            } else {
                format!("{}/{own}", url.rsplit_once('/').context("a path")?.0).into()
            };
        }
        if let Some(path) = change["path"].as_str() {
            artifact["path"] = path.into();
            artifact["url"] = format!("{host}{path}").into();
        }
        team.patch_status(FLUX, "ExternalArtifact", name, &json!({ "artifact": artifact })).await?;
        let source = Source::Flux { api_version: FLUX, kind: "ExternalArtifact", name, dir: "" };
        team.apply_stack_as(name, name, "{}", source, "").await?;
    }
    for (name, _, words) in &cases {
        team.unavailable(name, words).await?;
    }
    assert_eq!(writes(&world, "/trees/world/tenant/")?, Vec::<String>::new());
    Ok(())
}
