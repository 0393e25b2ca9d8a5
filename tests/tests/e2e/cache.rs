//! What a run installs is there in the next one. A plugin that the image does not have comes from a
//! server that counts its downloads; the packages of languages are in `languages`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use axum::{Router, body::Bytes, routing::get};
use driftless_api::{Stack, Update, names};
use driftless_tests::scenario::{Handle, Namespace, Source, is_ready, output};
use flate2::{Compression, write::GzEncoder};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    identity::apply_account,
    logs::printed,
    programs::literal,
    updates::{ours, wait},
    world::{alone, as_task, keys, s3, shared},
};

/// A version of the tests' provider that no image has.
const VERSION: &str = "0.2.0";

/// A server of plugins.
struct Plugins {
    url: String,
    downloads: Arc<AtomicUsize>,
}

impl Plugins {
    async fn start(world: &Handle) -> Result<Self> {
        let name = "pulumi-resource-world";
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        archive.append_path_with_name(format!("{}/{name}", world.get("WORLD_TOOLS")?), name)?;
        let archive = Bytes::from(archive.into_inner()?.finish()?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let downloads = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&downloads);
        let download = move || async move {
            count.fetch_add(1, Ordering::Relaxed);
            archive
        };
        let router = Router::new().route("/{plugin}", get(download));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { url, downloads })
    }

    fn downloads(&self) -> usize {
        self.downloads.load(Ordering::Relaxed)
    }

    /// The environment of a Stack whose plugins come from here, and neither from PATH nor from the
    /// home of Pulumi that all tasks of this world share: a task on Fargate has its own.
    fn environment(&self) -> String {
        literal("PULUMI_HOME", "/share/home")
            + &literal("PULUMI_IGNORE_AMBIENT_PLUGINS", "true")
            + &literal("PULUMI_PLUGIN_DOWNLOAD_URL_OVERRIDES", &format!("world={}", self.url))
    }

    /// A program whose resource needs the plugin.
    fn program(team: &Namespace<'_>, name: &str, content: &str) -> Result<String> {
        let path = team.file(&format!("{name}.txt"))?;
        Ok(format!(
            "resources: {{ file: {{ type: 'world:index:Object', properties: {{ path: '{path}', content: {content:?} }}, options: {{ version: {VERSION} }} }} }}\n\
             outputs: {{ content: '${{file.content}}' }}\n"
        ))
    }

    /// Applies a Program with that content and its Stack, waits until it is Ready, and returns how
    /// the last run got its dependencies.
    async fn run(&self, team: &Namespace<'_>, name: &str, content: &str) -> Result<String> {
        team.apply_program(name, &Self::program(team, name, content)?).await?;
        if content == "first" {
            team.apply_stack_as(name, name, "{}", Source::Program(name), &self.environment()).await?;
        }
        Self::dependencies(team, name, content).await
    }

    async fn dependencies(team: &Namespace<'_>, name: &str, content: &str) -> Result<String> {
        let has = |stack: &Stack| is_ready(stack) && output(stack, "content") == Some(&json!(content));
        team.wait(name, "to be Ready with the content", has).await?;
        let update = team.updates(name).await?.pop().context("an Update")?;
        // The Stack can be Ready before its Update is complete.
        let update = wait(team, &update.name_any(), "to be complete", Update::is_complete).await?;
        ours(&update).dependencies.context("no word of dependencies")
    }
}

async fn annotate(team: &Namespace<'_>, stack: &str, value: Option<&str>) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { (names::CACHE): value } } }));
    let stacks = Api::<Stack>::namespaced(team.world.client.clone(), &team.name);
    stacks.patch(stack, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The cache entries of a team.
async fn entries(world: &Handle, team: &Namespace<'_>) -> Result<Vec<String>> {
    Ok(keys(world, "caches/").await?.into_iter().filter(|key| key.contains(&format!("/{}/", team.name))).collect())
}

#[tokio::test]
async fn plugin_is_downloaded_once_and_restored_in_later_runs() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cache").await?;
    let plugins = Plugins::start(&world).await?;
    let first = plugins.run(&team, "app", "first").await?;
    ensure!(first.starts_with("installed in ") && plugins.downloads() == 1, "{first}");
    let stored = entries(&world, &team).await?;
    ensure!(stored.len() == 1 && stored[0].contains("/program.app/default/plugins-"), "{stored:?}");

    let second = plugins.run(&team, "app", "second").await?;
    ensure!(second.starts_with("restored ") && plugins.downloads() == 1, "{second}: {} downloads", plugins.downloads());

    annotate(&team, "app", Some(names::OFF)).await?;
    let off = plugins.run(&team, "app", "off").await?;
    ensure!(off.starts_with("installed in ") && plugins.downloads() == 2, "{off}");
    annotate(&team, "app", Some(names::REFRESH)).await?;
    let refreshed = plugins.run(&team, "app", "refreshed").await?;
    ensure!(refreshed.starts_with("installed in ") && plugins.downloads() == 3, "{refreshed}");
    annotate(&team, "app", None).await?;
    let restored = plugins.run(&team, "app", "restored").await?;
    ensure!(restored.starts_with("restored ") && plugins.downloads() == 3, "{restored}");

    // Another Stack of the same source, at the same time as the first.
    team.apply_program("app", &Plugins::program(&team, "app", "third")?).await?;
    team.apply_stack_as("twin", "twin", "{}", Source::Program("app"), &plugins.environment()).await?;
    for name in ["app", "twin"] {
        let words = Plugins::dependencies(&team, name, "third").await?;
        ensure!(words.starts_with("restored "), "{name}: {words}");
    }
    assert_eq!(plugins.downloads(), 3);
    team.clear().await
}

#[tokio::test]
async fn damaged_entry_is_replaced_and_no_other_namespace_uses_it() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cache-damaged").await?;
    let plugins = Plugins::start(&world).await?;
    plugins.run(&team, "app", "first").await?;
    let entry = entries(&world, &team).await?.pop().context("an entry")?;

    let hostile = world.namespace("cache-hostile").await?;
    let own = plugins.run(&hostile, "app", "first").await?;
    ensure!(own.starts_with("installed in ") && plugins.downloads() == 2, "{own}");

    let bucket = world.get("WORLD_BUCKET")?;
    let recorder = s3(&world, Some(world.control.credentials("RecorderRole", "recorder").await?)).await?;
    let damaged =
        recorder.put_object().bucket(bucket).key(&entry).body(b"no archive at all, and long enough for one".repeat(9).into());
    damaged.send().await?;
    let installed = plugins.run(&team, "app", "second").await?;
    let words = ": cannot use the cache entry of plugins: archive is damaged: ";
    ensure!(installed.contains(words) && plugins.downloads() == 3, "{installed}");
    let restored = plugins.run(&team, "app", "third").await?;
    ensure!(restored.starts_with("restored ") && plugins.downloads() == 3, "{restored}");
    team.clear().await?;
    hostile.clear().await
}

#[tokio::test]
async fn entry_serves_one_source_and_account_and_previews_store_none() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cache-scopes").await?;
    let plugins = Plugins::start(&world).await?;
    team.apply_program("app", &Plugins::program(&team, "app", "first")?).await?;
    team.apply_stack_as("seen", "seen", "{}", Source::Program("app"), &format!("{}  preview: true\n", plugins.environment()))
        .await?;
    team.wait("seen", "to have previewed", is_ready).await?;
    assert_eq!((entries(&world, &team).await?, plugins.downloads()), (vec![], 1));

    plugins.run(&team, "app", "first").await?;
    plugins.run(&team, "other", "first").await?;
    apply_account(&team, "deployer", &json!({})).await?;
    let account = format!("{}  serviceAccountName: deployer\n", plugins.environment());
    team.apply_stack_as("account", "account", "{}", Source::Program("app"), &account).await?;
    Plugins::dependencies(&team, "account", "first").await?;
    let scopes = entries(&world, &team).await?;
    for scope in ["program.app/default/", "program.app/deployer/", "program.other/default/"] {
        let own = scopes.iter().filter(|key| key.contains(scope)).count();
        ensure!(own == 1, "{scope} has {own} entries: {scopes:?}");
    }
    assert_eq!(plugins.downloads(), 4);
    team.clear().await
}

#[tokio::test]
async fn task_cannot_write_an_entry_of_the_cache() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("cache-attack").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let task = ours(&team.running("app").await?).task.context("a task")?;
    let (task, folder) = as_task(&world, &task).await?;
    let own = format!("{folder}out/cache/plugins");
    let bucket = world.get("WORLD_BUCKET")?;
    let put = |key: &str| task.put_object().bucket(bucket).key(key).body(b"planted".to_vec().into()).if_none_match("*");
    put(&own).send().await?;
    for key in [
        format!("caches/dev/{}/program.app/default/plugins-0", team.name),
        format!("{folder}in/cache/plugins"),
        format!("{folder}out/cache/other"),
    ] {
        ensure!(put(&key).send().await.is_err(), "a task wrote {key}");
    }
    ensure!(put(&own).send().await.is_err(), "a task wrote an archive twice");
    drop(hold);
    team.wait("app", "to be Ready", is_ready).await?;
    // The runner stored nothing: an archive that it does not report is no entry.
    assert_eq!(entries(&world, &team).await?, Vec::<String>::new());
    team.clear().await
}

#[tokio::test]
async fn full_cache_stores_nothing_and_fails_no_run() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("cache-full").await?;
    let plugins = Plugins::start(&world).await?;
    for (limit, why) in
        [("CACHE_NAMESPACE_MIB", ""), ("CACHE_ENTRY_MIB", "layer plugins not stored: installed dependencies exceed the limit")]
    {
        world.control.set(limit, "1").await?;
        let name = limit.to_lowercase().replace('_', "-");
        plugins.run(&team, &name, "first").await?;
        assert_eq!(entries(&world, &team).await?, Vec::<String>::new(), "{limit}");
        let update = team.updates(&name).await?.pop().context("an Update")?;
        let log = printed(&team, &update)?;
        ensure!(log.contains(why), "{log}");
    }
    team.clear().await
}
