//! Pull requests show what they would change: the recipe of docs/pull-requests.md, with stand-ins
//! for the APIs of its hosts. The templates of Flux Operator are filled in here.

mod hosts;

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{Stack, StackPlan, names};
use driftless_tests::{
    guide::{objects, rendered},
    scenario::{FLUX, Namespace, RUN, Source, is_ready},
    world::{git::Repository, ready},
};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::hosts::{Host, Hosts};
use crate::{
    approval::{annotate, approve, content, emptied, plan, proposed},
    world::shared,
};

const PAGE: &str = include_str!("../../../docs/pull-requests.md");

/// The pull requests: one that changes the project, another one, one of a fork, that of a forged
/// Event, and one that is approved before its merge.
const CHANGES: &str = "17";
const UNRELATED: &str = "18";
const FORK: &str = "19";
const FORGED: &str = "20";
const APPROVED: &str = "21";

#[tokio::test]
async fn pull_request_shows_what_it_would_change_and_a_fork_runs_nothing() -> Result<()> {
    let hosts = Hosts::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}/acme/platform", listener.local_addr()?);
    tokio::select! {
        ended = axum::serve(listener, hosts.router()) => bail!("{ended:?}"),
        ended = story(&hosts, &address) => ended,
    }
}

/// The recipe of the page, in its namespace.
struct Recipe<'a> {
    team: &'a Namespace<'a>,
    repository: Repository,
    page: Vec<Value>,
}

impl Recipe<'_> {
    /// Applies the objects of the page that are not of Flux Operator, with the address of the
    /// stand-ins, and Providers and Alerts of the other hosts.
    async fn apply(&self, hosts: &Hosts, address: &str) -> Result<()> {
        for object in &self.page {
            match object["kind"].as_str().unwrap_or_default() {
                "ResourceSet" | "ResourceSetInputProvider" | "Receiver" => {}
                "Provider" | "Alert" => {
                    for host in hosts.all() {
                        self.team.apply(&of_host(object, host, address)?.to_string()).await?;
                    }
                }
                _ => self.team.apply(&object.to_string()).await?,
            }
        }
        Ok(())
    }

    /// Applies what Flux Operator makes of a `ResourceSet` for a pull request, with the repository
    /// and the state of this world. That of [`APPROVED`] makes the plan of the Stack `app`.
    async fn preview(&self, set: &str, number: &str, branch: &str, commit: &str) -> Result<()> {
        let is_set = |object: &&Value| object["kind"] == "ResourceSet" && object["metadata"]["name"] == set;
        let set = self.page.iter().find(is_set).context("the page has no such ResourceSet")?;
        for mut object in rendered(set, &[("id", number), ("branch", branch), ("sha", commit)])? {
            if number == APPROVED && object["kind"] == "Stack" {
                object["metadata"]["annotations"][names::PULL_REQUEST_OF] = "app".into();
                object["spec"]["useLocalStackOnly"] = false.into();
            }
            let spec = object["spec"].as_object_mut().context("a spec")?;
            if spec.contains_key("backend") {
                let passphrase = json!({ "type": "Secret", "secret": { "name": "pulumi", "key": "passphrase" } });
                spec.insert("backend".into(), format!("file://{}", self.team.state()?).into());
                spec.insert("envRefs".into(), json!({ "PULUMI_CONFIG_PASSPHRASE": passphrase }));
            } else {
                spec.remove("secretRef");
                spec.insert("url".into(), self.repository.url.clone().into());
            }
            self.team.apply(&object.to_string()).await?;
        }
        Ok(())
    }

    /// The project, whose file has the name of the Pulumi stack and this content.
    fn project(&self, content: &str) -> Result<String> {
        Ok(format!("name: shop\nruntime: yaml\n{}", self.team.program("${pulumi.stack}.txt", content, "")?))
    }
}

/// A Provider or an Alert of the page for this host: by the page's table of types.
fn of_host(object: &Value, host: &Host, address: &str) -> Result<Value> {
    let row = PAGE.lines().find(|line| line.starts_with(&format!("| {} |", host.name)));
    let types: Vec<_> = row.context("the table has no such host")?.split('`').skip(3).step_by(2).collect();
    let [comments, statuses] = types[..] else { bail!("{types:?}") };
    let mut object = object.clone();
    let name = object["metadata"]["name"].as_str().context("a name")?.to_owned();
    let kind = if name == "comments" { comments } else { statuses };
    object["metadata"]["name"] = kind.into();
    if object["kind"] == "Provider" {
        object["spec"]["type"] = kind.into();
        object["spec"]["address"] = address.into();
    } else {
        object["spec"]["providerRef"]["name"] = kind.into();
    }
    Ok(object)
}

/// Publishes an Event about a preview as a user who may write Events can.
async fn forge(team: &Namespace<'_>, number: &str) -> Result<()> {
    let event: Event = serde_json::from_value(json!({
        "metadata": {
            "generateName": "forged-",
            "namespace": team.name,
            "annotations": { "event.toolkit.fluxcd.io/change_request": number },
        },
        "eventTime": "2026-11-20T21:11:25.000000Z",
        "type": "Normal",
        "reason": "StackCreated",
        "action": "StackCreated",
        "note": "hello",
        "regarding": { "apiVersion": "pulumi.com/v1", "kind": "Stack", "namespace": team.name, "name": "forged" },
        "reportingController": "driftless",
        "reportingInstance": "test",
    }))?;
    Api::namespaced(team.world.client.clone(), &team.name).create(&PostParams::default(), &event).await?;
    Ok(())
}

/// The plan of a pull request is approved before the merge. After it, the Stack applies exactly
/// that plan, unless the state of the Pulumi stack has changed.
async fn approved_before_the_merge(hosts: &Hosts, recipe: &Recipe<'_>) -> Result<()> {
    let Recipe { team, repository, .. } = recipe;
    annotate(&team.world.client, team, json!({ names::APPROVAL: "required", names::PULL_REQUESTS: "preview" })).await?;
    let (file, state) = (team.file("prod.txt")?, format!("{}/.pulumi/stacks/shop/prod.json", team.state()?));
    for (before, new) in [("one", "three"), ("three", "four")] {
        let program = recipe.project(new)?;
        let commit = repository.commit_on("approve", new, &[("shop/Pulumi.yaml", &program)]).await?;
        recipe.preview("shop", APPROVED, "approve", &commit).await?;
        let is_shown = |stack: &Stack| {
            let StackPlan { state, commit: of, .. } = plan(stack);
            state.as_deref() == Some("Preview") && of.is_some_and(|of| of.ends_with(&commit))
        };
        let hash = plan(&team.wait("shop-21", "to show its plan", is_shown).await?).hash.context("a hash")?;
        let command = format!("to approve it before the merge: kubectl driftless approve app --namespace previews --plan {hash}");
        for host in hosts.all() {
            host.wait(APPROVED, &command).await?;
        }
        approve(team, &hash).await?;
        let is_kept = |stack: &Stack| plan(stack).early_approval.is_some_and(|early| early.hash == hash);
        team.wait("app", "to keep the approval", is_kept).await?;
        ensure!(content(&file).as_deref() == Some(before), "{:?}", content(&file));

        if new == "four" {
            let found = fs::read_to_string(&state)?;
            ensure!(found.contains("\"three\""), "{found}");
            fs::write(&state, found.replace("\"three\"", "\"outside\""))?;
        }
        repository.commit("merge", &[("shop/Pulumi.yaml", &program), ("README.md", new)]).await?;
        team.reconcile_source("main", new).await?;
        if new == "four" {
            proposed(team, &hash).await?;
        } else {
            let is_applied = |stack: &Stack| is_ready(stack) && plan(stack).state.as_deref() == Some("Applied");
            let applied = plan(&team.wait("app", "to be Ready", is_applied).await?);
            ensure!(applied.approved_by.is_some() && applied.early_approval.is_none(), "{applied:?}");
            emptied(team).await?;
        }
        ensure!(content(&file).as_deref() == Some("three"), "{:?}", content(&file));
    }
    Ok(())
}

async fn story(hosts: &Hosts, address: &str) -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("previews").await?;
    team.apply_secret("git-comment", &[("username", "flux"), ("password", "canary-pull-requests-5d1e")]).await?;
    let recipe = Recipe { team: &team, repository: world.git.create("pull-requests").await?, page: objects(PAGE)? };
    let Recipe { repository, .. } = &recipe;
    recipe.apply(hosts, address).await?;

    let main = [("shop/Pulumi.yaml", &*recipe.project("one")?), ("modules/network/size", "1"), ("README.md", "one")];
    repository.commit("main", &main).await?;
    team.apply_git_repository("main", &repository.url).await?;
    let source = Source::Flux { api_version: FLUX, kind: "GitRepository", name: "main", dir: "shop" };
    team.apply_stack_as("app", "prod", "{ driftless.dev/paths: modules/network }", source, "").await?;
    team.wait("app", "to be applied", is_ready).await?;
    // Flux loses events that arrive before its cache has an Alert.
    ready::until("the Alerts are known", RUN, async || {
        forge(&team, "20/../19").await?;
        forge(&team, FORGED).await?;
        ensure!(hosts.all().iter().all(|host| !host.comments(FORGED).is_empty()), "no comment");
        Ok(())
    })
    .await?;

    let unrelated = repository.commit_on("words", "words", &[("README.md", "two")]).await?;
    let changed = repository.commit_on("grow", "grow", &[("shop/Pulumi.yaml", &recipe.project("two")?)]).await?;
    recipe.preview("shop", UNRELATED, "words", &unrelated).await?;
    recipe.preview("shop", CHANGES, "grow", &changed).await?;
    recipe.preview("shop-review", CHANGES, "grow", &changed).await?;
    for host in hosts.all() {
        let first = host.wait(CHANGES, "Preview succeeded: +0 ~1 -0 ±0 (updates world:index:Object file)").await?;
        for words in [
            "ℹ️ ExternalArtifact/previews/shop-17",
            "`command`: kubectl driftless diff shop-17 --namespace previews",
            &format!("`revision`: grow@sha1:{changed}"),
        ] {
            ensure!(first.contains(words), "{first}");
        }
    }
    team.told("shop-18", "StackCreated", &["Preview succeeded: no changes"]).await?;

    let reverted = repository.commit_on("grow", "not yet", &[("shop/Pulumi.yaml", &recipe.project("one")?)]).await?;
    recipe.preview("shop", CHANGES, "grow", &reverted).await?;
    for host in hosts.all() {
        let last = host.wait(CHANGES, "Preview succeeded: no changes").await?;
        ensure!(last.contains(&reverted), "{last}");
    }

    // Its commit is not on the branch of that name here.
    let foreign = repository.commit_at("refs/pull/19/head", "fork", &[("shop/Pulumi.yaml", &recipe.project("fork")?)]).await?;
    recipe.preview("shop", FORK, "main", &foreign).await?;
    team.unavailable("shop-19", "unable to resolve commit object").await?;
    assert_eq!(team.updates("shop-19").await?.len(), 0, "a fork ran");

    for host in hosts.all() {
        let mut numbers: Vec<_> = host.received().comments.iter().map(|(number, _)| number.clone()).collect();
        // Two forged Events at once may each find no comment.
        numbers.dedup();
        assert_eq!(numbers, [FORGED, CHANGES], "{}: one for each that has something to show", host.name);
        ready::until(&format!("the commits have their statuses at {}", host.name), RUN, async || {
            let statuses = host.received().statuses.clone();
            let has = |commit: &String| statuses.contains(&(commit.clone(), "success".into()));
            ensure!([&unrelated, &changed, &reverted].into_iter().all(has), "{statuses:?}");
            Ok(())
        })
        .await?;
    }

    approved_before_the_merge(hosts, &recipe).await?;

    // As Flux Operator does when the pull request is closed.
    team.wait("shop-review-17", "to be applied", is_ready).await?;
    let review = team.file("review-17.txt")?;
    assert_eq!(fs::read_to_string(&review)?, "two");
    for (api_version, kind) in [(FLUX, "GitRepository"), ("pulumi.com/v1", "Stack")] {
        team.objects(api_version, kind)?.delete("shop-review-17", &DeleteParams::default()).await?;
    }
    team.clear().await?;
    ensure!(!fs::exists(&review)? && fs::read_to_string(team.file("prod.txt")?)? == "three", "{review} is left, or prod changed");
    Ok(())
}
