//! Several clusters, and the access to one.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use driftless_api::Stack;
use driftless_aws::{Account, Keyring as _};
use driftless_contract::{Hint, ObjectKey, to_json};
use driftless_tests::{
    aws::control::Credentials,
    scenario::{Handle, SYSTEM, Source, output},
    world::{
        cluster::{self, AUDIT_LOG},
        ready,
    },
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use crate::world::{aws, keys, looked, nothing_was_given_up, second, shared};

/// The part of a key that names its cluster.
async fn clusters_in(world: &Handle, prefix: &str, name: &str) -> Result<BTreeSet<String>> {
    let keys = keys(world, prefix).await?;
    let of_name = keys.iter().filter(|key| key.contains(name)).filter_map(|key| key.split('/').nth(1));
    Ok(of_name.map(ToOwned::to_owned).collect())
}

#[tokio::test]
async fn a_stack_of_one_name_in_two_clusters_is_two_stacks() -> Result<()> {
    let (world, _turn) = shared().await?;
    let second = second(&world).await?;
    let (one, other) = (world.namespace("same-name").await?, second.namespace("same-name").await?);
    // No controller creates it there.
    other.apply("{ apiVersion: v1, kind: ServiceAccount, metadata: { name: default, namespace: NAMESPACE } }").await?;
    let hold = other.hold()?;
    for (team, content, more) in [(&one, "of the first", String::new()), (&other, "of the second", hold.property())] {
        team.apply_program("app", &team.program("app.txt", content, &more)?).await?;
        team.apply_stack("app", Source::Program("app"), "").await?;
    }
    // Both run at once, because a claim belongs to one cluster.
    let claims = async |world: &Handle| -> Result<BTreeSet<String>> {
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
        Ok(leases.list(&ListParams::default()).await?.iter().map(kube::ResourceExt::name_any).collect())
    };
    ready::until("the second cluster has a claim of its own", ready::START, async || {
        ensure!(claims(&second).await?.iter().any(|name| name != "driftless-admissions"), "there is none");
        Ok(())
    })
    .await?;
    drop(hold);
    let (first, last) = tokio::try_join!(one.ready_after("app", 1), other.ready_after("app", 1))?;
    assert_eq!(output(&first, "content"), Some(&json!("of the first")));
    assert_eq!(output(&last, "content"), Some(&json!("of the second")));
    assert_eq!(fs::read_to_string(other.file("app.txt")?)?, "of the second");

    let both: BTreeSet<String> = [cluster::NAME, cluster::SECOND].map(ToOwned::to_owned).into();
    assert_eq!(clusters_in(&world, "trees/", "/same-name/").await?, both);
    for (team, cluster) in [(&one, cluster::NAME), (&other, cluster::SECOND)] {
        let uid = team.updates("app").await?[0].uid().context("a uid")?;
        assert_eq!(clusters_in(&world, "runs/", &uid).await?, [cluster.to_owned()].into());
    }

    // An edit in one cluster, reported by its own forwarder, leads to a run only there.
    other.apply_program("app", &other.program("app.txt", "edited", "")?).await?;
    let stack = other.wait("app", "to be edited", |stack| output(stack, "content") == Some(&json!("edited"))).await?;
    assert_eq!(stack.name_any(), "app");
    assert_eq!(other.updates("app").await?.len(), 2);
    assert_eq!(output(&one.ready_after("app", 1).await?, "content"), Some(&json!("of the first")));
    // No controller there completes a namespace's deletion, so its objects are deleted one by one.
    other.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn hints_for_another_cluster_change_nothing() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("hinted").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let before = team.ready_after("app", 1).await?;

    let forwarder = world.control.credentials("ForwarderRole", "compromised").await?;
    let sqs = aws_sdk_sqs::Client::new(&aws(&world, Some(forwarder)).await?);
    let url = aws_sdk_sqs::Client::new(&aws(&world, None).await?).get_queue_url().queue_name("driftless-hints").send().await?;
    let run = team.updates("app").await?[0].name_any();
    for (api_version, kind, name) in [
        ("pulumi.com/v1", "Stack", "app"),
        ("pulumi.com/v1", "Stack", "none"),
        ("pulumi.com/v1", "Program", "app"),
        ("auto.pulumi.com/v1alpha1", "Update", &*run),
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "app"),
        ("unserved.example.com/v1", "Gadget", "app"),
    ] {
        let [cluster, namespace] = [cluster::NAME, &team.name].map(ToOwned::to_owned);
        let [api_version, kind, name] = [api_version, kind, name].map(ToOwned::to_owned);
        let object = ObjectKey { cluster, api_version, kind, namespace, name };
        let hint = Hint { revision: Some("main@sha1:0000".into()), ..Hint::new(object) };
        sqs.send_message().set_queue_url(url.queue_url.clone()).message_body(to_json(&hint)).send().await?;
    }
    looked(&team, "app").await?;
    let after = team.ready_after("app", 1).await?;
    let facts = |stack: Stack| stack.status.map(|status| (status.conditions, status.last_update, status.outputs));
    assert_eq!(facts(after), facts(before));
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn the_token_of_one_function_has_no_rights_of_another() -> Result<()> {
    let (world, _turn) = shared().await?;
    let administrator = Account::new(&aws(&world, None).await?);
    let text = administrator.secret("driftless/kubeconfig/fetcher").await?;
    let options = KubeConfigOptions { context: Some(cluster::SECOND.into()), ..KubeConfigOptions::default() };
    let text = text.expose_secret().replace(cluster::SECOND_HOST, "127.0.0.1");
    let fetcher = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text)?, &options).await?;
    // As the fetcher, as its bare ServiceAccount, and as the launcher: the first may read Stacks,
    // but no claims.
    for (user, stacks, leases) in
        [(Some("driftless:fetcher"), 200, 403), (None, 403, 403), (Some("driftless:launcher"), 403, 403)]
    {
        let mut config = fetcher.clone();
        config.default_retry = false;
        config.auth_info.impersonate = user.map(ToOwned::to_owned);
        config.auth_info.impersonate_groups = user.map(|user| vec![user.to_owned()]);
        let client = Client::try_from(config)?;
        let found = status(Api::<driftless_api::Stack>::default_namespaced(client.clone()).get_opt("none").await)?;
        assert_eq!(found, stacks, "{user:?} reads a Stack");
        let found = status(Api::<Lease>::namespaced(client, SYSTEM).list(&ListParams::default()).await)?;
        assert_eq!(found, leases, "{user:?} lists claims");
    }
    Ok(())
}

/// The status of an API server's answer.
fn status<T>(answer: kube::Result<T>) -> Result<u16> {
    match answer {
        Ok(_) => Ok(200),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

/// The API server's answer to a request for the Stacks with this token.
async fn answer(world: &Handle, token: SecretString) -> Result<u16> {
    let kubeconfig = Kubeconfig::read_from(world.get("KUBECONFIG")?)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.token = Some(token);
    config.default_retry = false;
    let stacks: Api<driftless_api::Stack> = Api::all(Client::try_from(config)?);
    status(stacks.list(&ListParams::default()).await)
}

async fn token(world: &Handle, keys: Credentials, cluster: &str) -> Result<SecretString> {
    Ok(Account::new(&aws(world, Some(keys)).await?).eks_token(cluster, None, now()).await?)
}

#[expect(clippy::disallowed_methods, reason = "a token is for now")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[tokio::test]
async fn cluster_admits_only_roles_with_an_access_entry() -> Result<()> {
    let (world, _turn) = shared().await?;
    let keys = async |role: &str| world.control.credentials(role, "somebody").await;
    for (role, status) in [
        // RBAC refuses what a function may not do.
        ("ReconcilerRole", 200),
        ("RecorderRole", 403),
        ("WebhookRole", 401),
        ("TaskRole", 401),
    ] {
        assert_eq!(answer(&world, token(&world, keys(role).await?, cluster::NAME).await?).await?, status, "{role}");
    }
    let reconciler = keys("ReconcilerRole").await?;
    assert_eq!(answer(&world, token(&world, reconciler.clone(), "another").await?).await?, 401, "a token of another cluster");
    let guessed = Credentials { secret_access_key: "guessed".into(), ..reconciler };
    assert_eq!(answer(&world, token(&world, guessed, cluster::NAME).await?).await?, 401, "another secret key");

    // The audit log records which identity made each call.
    let calls =
        world.journal(AUDIT_LOG, 0, |call| call["user"]["username"].as_str().is_some_and(|name| name.ends_with("/somebody")))?;
    let user = &calls.first().context("a call")?["user"];
    assert_eq!(user["username"], "arn:aws:sts::123456789012:assumed-role/driftless-ReconcilerRole/somebody");
    assert_eq!(user["groups"], json!(["driftless:reconciler", "system:authenticated"]));
    Ok(())
}

#[tokio::test]
async fn each_function_reads_its_own_kubeconfig_alone_and_shows_it_nowhere() -> Result<()> {
    let (world, _turn) = shared().await?;
    let functions = ["Reconciler", "Fetcher", "Launcher", "Recorder", "Sweeper"];
    let administrator = Account::new(&aws(&world, None).await?);
    let mut tokens = BTreeSet::new();
    for owner in functions {
        let secret = format!("driftless/kubeconfig/{}", owner.to_lowercase());
        for role in functions.iter().chain(&["Webhook", "Forwarder", "Task"]) {
            let keys = world.control.credentials(&format!("{role}Role"), "somebody").await?;
            let read = Account::new(&aws(&world, Some(keys)).await?).secret(&secret).await.err().map(|error| error.to_string());
            let refused = format!("secretsmanager:GetSecretValue {secret}: AccessDeniedException: ");
            ensure!(read.is_none() == (*role == owner), "{role} and {secret}: {read:?}");
            ensure!(read.is_none_or(|error| error.starts_with(&refused)), "{role} and {secret}");
        }
        let kubeconfig = Kubeconfig::from_yaml(administrator.secret(&secret).await?.expose_secret())?;
        let token = kubeconfig.auth_infos.into_iter().find_map(|user| user.auth_info?.token);
        tokens.insert(token.context("the second cluster's token")?.expose_secret().to_owned());
    }
    assert_eq!(tokens.len(), functions.len(), "each has a token of its own");
    let mut files = fs::read_dir(world.get("WORLD_LOGS")?)?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    let mut reads = 0;
    for path in files {
        let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        reads += text.matches("\"operation\":\"GetSecretValue\"").count();
        // The prefix of every token for EKS.
        let shown = text.contains("k8s-aws-v1.") || tokens.iter().any(|token| text.contains(token));
        ensure!(!shown, "{} has a token", path.display());
    }
    ensure!(reads >= 8, "{reads} reads are in the journal");
    Ok(())
}
