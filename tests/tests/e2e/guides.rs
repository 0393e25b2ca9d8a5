//! The guides, command by command as a new user types them. The guide for a migration has its own
//! file.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_tests::{guide::Guide, world::cluster};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, config::Kubeconfig};

use crate::world::{alone, shared};

/// The functions that call clusters.
const FUNCTIONS: [&str; 5] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper"];

#[tokio::test]
async fn getting_started_leads_to_a_stack_that_follows_git() -> Result<()> {
    let (world, _turn) = shared().await?;
    let name = "getting-started";
    let repository = world.git.create(name).await?;
    let project = "name: infra\nruntime: yaml\noutputs: { at: git }\n";
    repository.commit("one", &[("Pulumi.yaml", project)]).await?;
    let backend = format!("{}/{name}", world.get("WORLD_STATE")?);
    fs::create_dir_all(backend.trim_start_matches("file://"))?;
    let environment =
        [("KUBECONFIG", world.get("KUBECONFIG")?), ("NAMESPACE", name), ("BACKEND", &backend), ("REPOSITORY", &repository.url)];
    let page = include_str!("../../../docs/getting-started.md");
    let guide = Guide::read(page, Path::new(world.get("WORLD_TOOLS")?), &environment)?;
    for block in 0..3 {
        guide.run("Prepare a namespace", block).await?;
    }
    guide.run("Run the first Stack", 0).await?;
    assert_eq!(guide.run("Run the first Stack", 1).await?.lines().last(), Some("hello"));
    let shown = guide.run("Run the first Stack", 2).await?;
    assert!(shown.contains("StackCreated") || shown.contains("StackUpdateSuccessful"), "{shown}");
    for block in 0..2 {
        guide.run("Change the Program", block).await?;
    }
    guide.run("Follow git", 0).await?;
    if let Err(error) = guide.run("Delete the Stacks", 0).await {
        // Its conditions name what it waits for.
        let left = Api::<Namespace>::all(world.client.clone()).get_opt(name).await?;
        bail!("{error:#}\n{:#?}", left.map(|namespace| namespace.status));
    }
    guide.all_were_run()
}

#[tokio::test]
async fn a_cluster_that_is_not_of_eks_is_added_by_its_service_account() -> Result<()> {
    let (world, _turn) = shared().await?;
    let folder = tempfile::tempdir()?;
    let admin = Kubeconfig::read_from(world.get("KUBECONFIG")?)?;
    let server = admin.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone()).context("no server")?;
    fs::copy(world.get("KUBECONFIG")?, folder.path().join("clusters.yaml"))?;
    let place = folder.path().display().to_string();
    let environment = [("KUBECONFIG", world.get("KUBECONFIG")?), ("CLUSTER", "edge"), ("SERVER", &server), ("FOLDER", &place)];
    let page = include_str!("../../../docs/clusters.md");
    let guide = Guide::read(page, Path::new(world.get("WORLD_TOOLS")?), &environment)?;
    guide.run("Add any other cluster", 0).await?;
    for function in FUNCTIONS {
        let token = &Kubeconfig::read_from(folder.path().join(format!("edge.{function}.yaml")))?.auth_infos[0];
        ensure!(token.auth_info.as_ref().is_some_and(|user| user.token.is_some()), "no token of the {function}");
    }
    guide.all_were_run()?;
    let all = Kubeconfig::read_from(folder.path().join("all.yaml"))?;
    let contexts: BTreeSet<_> = all.contexts.iter().map(|context| context.name.as_str()).collect();
    let edge = FUNCTIONS.map(|function| format!("edge.{function}"));
    assert_eq!(contexts, edge.iter().map(String::as_str).chain([cluster::NAME]).collect());
    let kubectl = Path::new(world.get("WORLD_TOOLS")?).join("kubectl");
    for (context, question, answer) in [
        ("edge.reconciler", "list stacks.pulumi.com", "yes"),
        ("edge.sweeper", "list stacks.pulumi.com", "yes"),
        ("edge.recorder", "list stacks.pulumi.com", "no"),
        ("edge.launcher", "delete leases.coordination.k8s.io", "no"),
        ("edge.fetcher", "get secrets", "no"),
    ] {
        let asked = tokio::process::Command::new(&kubectl)
            .args(["auth", "can-i", "--all-namespaces"])
            .args(question.split(' '))
            .args(["--context", context])
            .env("KUBECONFIG", folder.path().join("all.yaml"))
            .output()
            .await?;
        assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), answer, "{context}: {question}: {asked:?}");
    }
    Ok(())
}

#[tokio::test]
async fn upgrade_applies_crds_and_rights_over_existing_ones() -> Result<()> {
    let (world, _alone) = alone().await?;
    let page = include_str!("../../../docs/upgrade.md");
    let guide = Guide::read(page, Path::new(world.get("WORLD_TOOLS")?), &[("KUBECONFIG", world.get("KUBECONFIG")?)])?;
    let applied = guide.run("Steps", 0).await?;
    assert!(applied.contains("stacks.pulumi.com serverside-applied"), "{applied}");
    guide.all_were_run()
}
