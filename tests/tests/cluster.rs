//! The cluster half of the one-machine world, alone: the path of a commit until Driftless sees it.

#[path = "cluster/crds.rs"]
mod crds;
#[path = "cluster/ports.rs"]
mod ports;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use driftless_tests::world::{
    cluster::{Cluster, apply, apply_yaml, start_etcd},
    dirs::Dirs,
    flux,
    git::GitServer,
    moto::Moto,
    process::Supervisor,
    ready,
};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};

const LIMIT: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_commit_becomes_an_artifact_that_the_fetcher_alone_may_read() -> Result<()> {
    let dirs = Dirs::fresh(project())?;
    let supervisor = Supervisor::default();
    supervisor.guard(Box::pin(commit_to_artifact(&dirs, &supervisor))).await?;
    supervisor.stop().await;
    assert_eq!(fs::read_dir(dirs.pids())?.count(), 0, "no process is left");

    // Once more in the same folder, and this time a part dies.
    drop(dirs);
    let dirs = Dirs::fresh(project())?;
    let supervisor = Supervisor::default();
    Moto::start(&dirs, &supervisor).await?;
    let pid = fs::read_to_string(dirs.pids().join("moto"))?.trim().parse()?;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).context("a pid")?, rustix::process::Signal::KILL)?;
    let failure = supervisor.failure().await.to_string();
    assert!(failure.starts_with("moto ended unexpectedly: signal: 9"), "{failure}");
    Ok(())
}

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

async fn commit_to_artifact(dirs: &Dirs, supervisor: &Supervisor) -> Result<()> {
    let cluster = async {
        let etcd = start_etcd(dirs, supervisor).await?;
        let cluster = Cluster::start(dirs, supervisor, project(), &etcd, None).await?;
        flux::start(dirs, supervisor, &cluster).await?;
        apply(&cluster.client("admin").await?, &project().join("infra/kubernetes/runs/runs.yaml")).await?;
        Ok(cluster)
    };
    let started = std::time::Instant::now();
    let (cluster, git, _) = tokio::try_join!(cluster, GitServer::start(dirs, supervisor), Moto::start(dirs, supervisor))?;
    println!("ready after {:?}", started.elapsed());

    let admin = cluster.client("admin").await?;
    let repository = git.create("app").await?;
    let commit = repository.commit("first", &[("Pulumi.yaml", "name: app\nruntime: yaml\n"), ("deep/er/file", "1\n")]).await?;
    apply_yaml(&admin, &git_repository(&repository.url)).await?;
    artifact_of(&admin, &commit).await?;
    let commit = repository.commit("second", &[("deep/er/file", "2\n")]).await?;
    apply_yaml(
        &admin,
        &git_repository(&repository.url).replace("annotations: {}", "annotations: { reconcile.fluxcd.io/requestedAt: now }"),
    )
    .await?;
    let url = artifact_of(&admin, &commit).await?;

    let artifact = url.strip_prefix("http://source-controller.flux-system.svc.cluster.local./").context(url.clone())?;
    let path = format!("/api/v1/namespaces/flux-system/services/http:source-controller:80/proxy/{artifact}");
    for (identity, status) in [("fetcher", 200), ("launcher", 403), ("reconciler", 403)] {
        let client = cluster.client_like(identity).await?;
        let answer = client.send(Request::get(&path).body(kube::client::Body::empty())?).await?;
        assert_eq!(answer.status().as_u16(), status, "{identity}");
        if status == 200 {
            let body = answer.into_body().collect().await?.to_bytes();
            assert_eq!(body[..2], [0x1f, 0x8b], "it is a gzip file");
        }
    }
    secrets_are_read_where_runs_come_from_and_nowhere_else(&cluster).await?;
    a_deleted_namespace_goes_away(&admin).await?;
    ports::give_every_guarantee(&cluster).await?;
    // Last, because it removes Driftless's definitions.
    crds::are_taken_over(&cluster, dirs).await
}

fn git_repository(url: &str) -> String {
    format!(
        "apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {{ name: app, namespace: default, annotations: {{}} }}
spec: {{ interval: 10m, url: {url}, ref: {{ branch: main }} }}
"
    )
}

/// Waits for the artifact of `commit`, and returns its URL.
async fn artifact_of(admin: &Client, commit: &str) -> Result<String> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", "GitRepository"));
    let sources: Api<DynamicObject> = Api::default_namespaced_with(admin.clone(), &kind);
    ready::until("the artifact", LIMIT, async || {
        let source = sources.get("app").await?;
        let artifact = &source.data["status"]["artifact"];
        ensure!(artifact["revision"] == format!("main@sha1:{commit}"), "{}", source.data["status"]);
        Ok(artifact["url"].as_str().context("an artifact has a URL")?.to_owned())
    })
    .await
}

async fn secrets_are_read_where_runs_come_from_and_nowhere_else(cluster: &Cluster) -> Result<()> {
    let code = async |identity: &str, namespace: &str| -> Result<u16> {
        let secrets: Api<Secret> = Api::namespaced(cluster.client_like(identity).await?, namespace);
        match secrets.get("none").await {
            Err(kube::Error::Api(status)) => Ok(status.code),
            other => anyhow::bail!("{other:?}"),
        }
    };
    for identity in ["launcher", "fetcher"] {
        assert_eq!((code(identity, "default").await?, code(identity, "kube-system").await?), (404, 403), "{identity}");
    }
    assert_eq!(code("reconciler", "default").await?, 403);
    Ok(())
}

async fn a_deleted_namespace_goes_away(admin: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let namespace = serde_json::from_value(serde_json::json!({ "metadata": { "name": "passing" } }))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    namespaces.delete("passing", &DeleteParams::default()).await?;
    ready::until("the namespace's end", LIMIT, async || {
        let names: Vec<_> = namespaces.list(&ListParams::default()).await?.into_iter().filter_map(|n| n.metadata.name).collect();
        ensure!(!names.contains(&"passing".to_owned()), "{names:?}");
        Ok(())
    })
    .await
}
