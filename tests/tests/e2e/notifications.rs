//! Notifications of changes besides the forwarder's: pushes from git hosts, and Flux's events about
//! applied objects.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::hmac;
use driftless_tests::{
    aws::http_client,
    scenario::{Handle, Namespace, RUN, Source, commit, is_ready, output},
    world::{cluster, ready},
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::{Frozen, alone, looked, shared};

/// A git host: its name, the header and the value of a push's event, and the header of the proof.
type Host = (&'static str, (&'static str, &'static str), &'static str);

const HOSTS: [Host; 3] = [
    ("github", ("x-github-event", "push"), "x-hub-signature-256"),
    ("gitlab", ("x-gitlab-event", "Push Hook"), "x-gitlab-token"),
    ("gitea", ("x-gitea-event", "push"), "x-gitea-signature"),
];

/// The notification of a host after a push to `main` of the repository at `url`.
pub fn push(host: &str, url: &str, commit: &str) -> Result<String> {
    let sample = match host {
        "github" => include_str!("../../../events/bodies/github-push.json"),
        "gitlab" => include_str!("../../../events/bodies/gitlab-push.json"),
        _ => include_str!("../../../events/bodies/gitea-push.json"),
    };
    let mut push: Value = serde_json::from_str(sample)?;
    let field = if host == "gitlab" { "git_http_url" } else { "clone_url" };
    push["repository"][field] = url.into();
    push["after"] = commit.into();
    Ok(push.to_string())
}

fn signature(key: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    base16ct::lower::encode_string(hmac::sign(&key, body.as_bytes()).as_ref())
}

/// The proof of a host that has this key.
pub fn proof(host: &str, key: &str, body: &str) -> String {
    match host {
        "github" => format!("sha256={}", signature(key, body)),
        "gitlab" => key.to_owned(),
        _ => signature(key, body),
    }
}

/// Posts to the webhook, at a path after the cluster's. Returns the status of the answer.
pub async fn post(world: &Handle, path: &str, headers: &[(&str, &str)], body: String) -> Result<u16> {
    let request = http_client()?.post(format!("{}{path}", world.get("WORLD_WEBHOOK_URL")?));
    let request = request.header("Content-Type", "application/json").body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    Ok(request.send().await?.status().as_u16())
}

/// How often the reconciler found that a Stack already has the pushed commit, by its log.
fn known(team: &Namespace<'_>, stack: &str, commit: &str) -> Result<usize> {
    let words = [
        "\"push skipped: its commit is already known\"".to_owned(),
        format!("\"{}/Stack/{}/{stack}\"", cluster::NAME, team.name),
        format!("\"{commit}\""),
    ];
    let mut found = 0;
    for file in fs::read_dir(team.world.get("WORLD_LOGS")?)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with("reconciler-") {
            let log = fs::read_to_string(file.path())?;
            found += log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
        }
    }
    Ok(found)
}

#[tokio::test]
async fn signed_push_runs_once_and_forged_or_replayed_one_does_not() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("pushed").await?;
    let repository = world.git.create("pushed").await?;
    let project =
        |content: &str| -> Result<_> { Ok(format!("name: app\nruntime: yaml\n{}", team.program("pushed.txt", content, "")?)) };
    repository.commit("first", &[("Pulumi.yaml", &project("first")?)]).await?;
    let url = &repository.url;
    let source = Source::Git { url, reference: "branch: main", dir: "", auth: "" };
    // No poll of git happens before the test ends.
    team.apply_stack("app", source, "  resyncFrequencySeconds: 3600\n").await?;
    let mut last = team.ready_after("app", 1).await?;

    let (key, of_flux) = (world.get("WORLD_WEBHOOK_KEY_OF_GIT")?, world.get("WORLD_WEBHOOK_KEY")?);
    for (runs, (host, event, header)) in (1..).zip(HOSTS) {
        let before = commit(&last).context("a commit")?.to_owned();
        let id = repository.commit(host, &[("Pulumi.yaml", &project(host)?)]).await?;
        let (path, body) = (format!("/{host}"), push(host, url, &id)?);

        // Also with the key of another sender.
        for forger in ["a-key-of-nobody", of_flux] {
            let forged = proof(host, forger, &body);
            assert_eq!(post(&world, &path, &[event, (header, &forged)], body.clone()).await?, 401, "{host}");
        }
        looked(&team, "app").await?;
        let stack = team.ready_after("app", runs).await.context(host)?;
        assert_eq!(commit(&stack), Some(before.as_str()), "{host}: forged");

        let good = proof(host, key, &body);
        assert_eq!(post(&world, &path, &[event, (header, &good)], body.clone()).await?, 202, "{host}");
        let what = format!("to have run what was pushed to {host}");
        let stack = team.wait("app", &what, |stack| commit(stack) == Some(&id) && is_ready(stack)).await?;
        assert_eq!(output(&stack, "content"), Some(&json!(host)));

        let replays = known(&team, "app", &id)?;
        assert_eq!(post(&world, &path, &[event, (header, &good)], body).await?, 202, "{host}");
        ready::until("the replayed push is looked at", RUN, async || {
            ensure!(known(&team, "app", &id)? > replays, "{replays} were known");
            Ok(())
        })
        .await?;
        looked(&team, "app").await?;
        last = team.ready_after("app", runs + 1).await.context(host)?;
    }
    team.clear().await
}

/// A Flux event about what applied objects, from one of the samples.
fn applied(sample: &str, team: &Namespace<'_>) -> Result<(String, Value)> {
    let mut event: Value = serde_json::from_str(sample)?;
    let object = &mut event["involvedObject"];
    object["namespace"] = team.name.as_str().into();
    let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).context("a group")?.0.to_owned();
    let labels = json!({ format!("{group}/name"): object["name"], format!("{group}/namespace"): team.name });
    Ok((event.to_string(), labels))
}

#[tokio::test]
async fn stack_applied_by_flux_runs_without_the_forwarder() -> Result<()> {
    let (world, _turn) = alone().await?;
    let team = world.namespace("applied").await?;
    let (kustomization, of_kustomization) = applied(include_str!("../../../events/bodies/flux-kustomization.json"), &team)?;
    let (release, of_release) = applied(include_str!("../../../events/bodies/flux-helmrelease.json"), &team)?;
    for (name, kind, labels) in [("kustomized", "Program", &of_kustomization), ("released", "Stack", &of_release)] {
        team.apply_program(name, &team.program(&format!("{name}.txt"), "one", "")?).await?;
        team.apply_stack_as(name, name, "{}", Source::Program(name), "").await?;
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        team.objects("pulumi.com/v1", kind)?.patch(name, &PatchParams::default(), &patch).await?;
        team.ready_after(name, 1).await?;
    }

    world.control.pause_schedule(true).await?;
    let forwarder = Frozen::new(&world, "forwarder")?;
    let key = world.get("WORLD_WEBHOOK_KEY")?;
    team.apply_program("kustomized", &team.program("kustomized.txt", "two", "")?).await?;
    team.apply_stack_as("released", "released", "{}", Source::Program("released"), "  refresh: true\n").await?;
    let signed = format!("sha256={}", signature(key, &kustomization));
    let bearer = format!("Bearer {key}");
    assert_eq!(post(&world, "", &[("x-signature", &signed)], kustomization).await?, 202);
    assert_eq!(post(&world, "", &[("authorization", &bearer)], release).await?, 202);
    team.wait("kustomized", "to have run generation 2 of its Program", |stack| commit(stack) == Some("2")).await?;
    let ran = |stack: &driftless_api::Stack| stack.status.as_ref()?.last_update.as_ref()?.generation;
    team.wait("released", "to have run its generation 2", |stack| ran(stack) == Some(2)).await?;
    drop(forwarder);
    for name in ["kustomized", "released"] {
        looked(&team, name).await?;
        team.ready_after(name, 2).await?;
    }
    team.clear().await
}
