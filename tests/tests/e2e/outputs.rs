//! Outputs of a Stack in Secrets and ConfigMaps that it names, and the Stacks that read them.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Result, ensure};
use driftless_tests::{
    scenario::{Namespace, RUN, Source, commit, is_ready, output},
    world::ready,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::world::{alone, looked, quiet, shared};

/// The number of Stacks between the first and the last one of the diamond.
const MIDDLE: usize = 28;

fn maps(team: &Namespace<'_>) -> Api<ConfigMap> {
    Api::namespaced(team.world.client.clone(), &team.name)
}

/// The values of a ConfigMap by key.
async fn map(team: &Namespace<'_>, name: &str) -> Result<BTreeMap<String, String>> {
    Ok(maps(team).get(name).await?.data.unwrap_or_default())
}

/// The values of a Secret by key.
async fn secret(team: &Namespace<'_>, name: &str) -> Result<BTreeMap<String, String>> {
    let data = team.secret(name).await?.data.unwrap_or_default();
    Ok(data.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn outputs_are_written_to_named_objects_that_live_with_the_stack() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("outputs").await?;
    team.apply_secret("app", &[("password", "canary-outputs-5b2e")]).await?;
    team.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: { name: taken, namespace: NAMESPACE }\ndata: { mine: kept }").await?;
    let program = "configuration: { password: { type: String } }\n\
                   outputs: { url: 'https://app', ports: [80, 443], password: '${password}' }\n";
    team.apply_program("app", program).await?;
    let config = "  secretsRef:\n    password: { type: Secret, secret: { name: app, key: password } }\n";
    let apply = async |outputs: &str| {
        team.apply_stack("app", Source::Program("app"), &format!("{config}  driftless:\n    outputs: {outputs}\n")).await
    };
    apply(
        "[{ kind: Secret, name: login, keys: { PASSWORD: password, URL: url } }, { kind: ConfigMap, name: all },\
         { kind: ConfigMap, name: net, keys: { PORTS: ports, PASSWORD: password } }, { kind: ConfigMap, name: taken },\
         { kind: Secret, name: dropped }]",
    )
    .await?;
    team.ready_after("app", 1).await?;
    team.complete("app").await?;
    let login = pairs(&[("PASSWORD", "canary-outputs-5b2e"), ("URL", "https://app")]);
    assert_eq!(secret(&team, "login").await?, login);
    assert_eq!(secret(&team, "dropped").await?.len(), 3);
    assert_eq!(map(&team, "all").await?, pairs(&[("ports", "[80,443]"), ("url", "https://app")]));
    assert_eq!(map(&team, "net").await?, pairs(&[("PORTS", "[80,443]")]));
    assert_eq!(map(&team, "taken").await?, pairs(&[("mine", "kept")]));
    let event = "OutputsNotStored";
    team.told("app", event, &["output \"password\" is secret, so key \"PASSWORD\" of ConfigMap \"net\" is left out"]).await?;
    team.told("app", event, &["ConfigMap \"taken\" exists and was not created by Driftless for this Stack", "delete it"]).await?;

    apply("[{ kind: Secret, name: login, keys: { URL: url } }]").await?;
    team.wait("app", "to have run its second generation", |stack| is_ready(stack) && stack.metadata.generation == Some(2))
        .await?;
    team.complete("app").await?;
    assert_eq!(secret(&team, "login").await?, pairs(&[("URL", "https://app")]));
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), &team.name);
    ensure!(secrets.get_opt("dropped").await?.is_none() && maps(&team).get_opt("all").await?.is_none());
    ensure!(maps(&team).get_opt("net").await?.is_none());
    assert_eq!(map(&team, "taken").await?, pairs(&[("mine", "kept")]));

    team.clear().await?;
    ready::until("the Secret is deleted with its Stack", RUN, async || {
        ensure!(secrets.get_opt("login").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    assert_eq!(map(&team, "taken").await?, pairs(&[("mine", "kept")]));
    Ok(())
}

#[tokio::test]
async fn invalid_outputs_are_refused_by_the_api_server() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("outputs-refused").await?;
    for (outputs, words) in [
        ("[{ kind: Pod, name: a }]", "supported values: \"Secret\", \"ConfigMap\""),
        ("[{ kind: Secret, name: A_b }]", "spec.driftless.outputs[0].name"),
        ("[{ kind: Secret, name: a }, { kind: Secret, name: a }]", "duplicate entries for key"),
    ] {
        let more = format!("  driftless:\n    outputs: {outputs}\n");
        let refused = team.apply_stack("app", Source::Program("app"), &more).await;
        let refused = refused.map_or_else(|error| format!("{error:#}"), |()| "accepted".into());
        ensure!(refused.contains(words), "{outputs}: {refused}");
    }
    Ok(())
}

/// Applies the Program of the first Stack, which has two outputs.
async fn apply_top(team: &Namespace<'_>, read: &str, other: &str) -> Result<()> {
    team.apply_program("top", &format!("outputs: {{ read: {read}, other: {other} }}\n")).await
}

/// The number of Updates of each Stack.
async fn runs(team: &Namespace<'_>) -> Result<BTreeMap<String, usize>> {
    let mut runs = BTreeMap::new();
    for stack in team.stacks().await? {
        let name = stack.name_any();
        runs.insert(name.clone(), team.updates(&name).await?.len());
    }
    Ok(runs)
}

#[tokio::test]
async fn diamond_of_thirty_stacks_runs_each_once_per_change_of_a_value() -> Result<()> {
    let (world, lonely) = alone().await?;
    let team = world.namespace("diamond").await?;
    apply_top(&team, "one", "one").await?;
    team.apply_program("middle", "configuration: { value: { type: String } }\noutputs: { value: '${value}' }\n").await?;
    let (mut configuration, mut outputs) = (String::new(), String::new());
    for n in 0..MIDDLE {
        write!(configuration, "v{n}: {{ type: String }}, ")?;
        write!(outputs, "v{n}: '${{v{n}}}', ")?;
    }
    team.apply_program("end", &format!("configuration: {{ {configuration} }}\noutputs: {{ {outputs} }}\n")).await?;

    let named = |name: &str| format!("  driftless:\n    outputs: [{{ kind: ConfigMap, name: {name} }}]\n");
    team.apply_stack("top", Source::Program("top"), &named("top")).await?;
    let (mut values, mut required) = (String::new(), String::new());
    for n in 0..MIDDLE {
        let name = format!("m{n}");
        let reads = "  prerequisites: [{ name: top }]\n  configRef: { value: { name: top, key: read } }\n";
        team.apply_stack_as(&name, &name, "{}", Source::Program("middle"), &format!("{reads}{}", named(&name))).await?;
        write!(values, "v{n}: {{ name: m{n}, key: value }}, ")?;
        write!(required, "{{ name: m{n} }}, ")?;
    }
    let reads = format!("  prerequisites: [ {required} ]\n  configRef: {{ {values} }}\n");
    team.apply_stack("end", Source::Program("end"), &reads).await?;
    let end_has = async |value: &str| {
        team.wait("end", &format!("to have {value} everywhere"), |stack| {
            is_ready(stack) && (0..MIDDLE).all(|n| output(stack, &format!("v{n}")) == Some(&json!(value)))
        })
        .await
    };
    let each = |top: usize, others: usize| -> BTreeMap<String, usize> {
        let middle = (0..MIDDLE).map(|n| (format!("m{n}"), others));
        middle.chain([("end".to_owned(), others), ("top".to_owned(), top)]).collect()
    };
    end_has("one").await?;
    quiet(&world, &lonely).await?;
    assert_eq!(runs(&team).await?, each(1, 1));

    apply_top(&team, "two", "one").await?;
    end_has("two").await?;
    quiet(&world, &lonely).await?;
    assert_eq!(runs(&team).await?, each(2, 2));

    // No Stack reads the other value.
    apply_top(&team, "two", "two").await?;
    team.wait("top", "to have run its third Program", |stack| is_ready(stack) && commit(stack) == Some("3")).await?;
    looked(&team, "top").await?;
    quiet(&world, &lonely).await?;
    assert_eq!(map(&team, "top").await?, pairs(&[("other", "two"), ("read", "two")]));
    assert_eq!(runs(&team).await?, each(3, 2));
    Ok(())
}
