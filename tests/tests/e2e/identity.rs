//! The identity of a run.

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    aws::CALLS_LOG,
    scenario::{Namespace, RUN, Source, condition, is_ready, output},
    world::{cluster::AUDIT_LOG, ready},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::world::{aside, shared};

pub const ROLE: &str = "arn:aws:iam::123456789012:role/deployer";

/// A ServiceAccount that may create ConfigMaps.
pub const MAY_MAKE: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: makes, namespace: NAMESPACE }
rules: [{ apiGroups: [''], resources: [configmaps], verbs: [create] }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: makes, namespace: NAMESPACE }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: makes }
subjects: [{ kind: ServiceAccount, name: deployer, namespace: NAMESPACE }]
";

/// A program whose one resource is a ConfigMap that it creates with its own identity.
pub async fn apply_program(team: &Namespace<'_>, name: &str) -> Result<()> {
    let resource = format!("made: {{ type: 'world:index:Identity', properties: {{ configMap: {name} }} }}");
    team.apply_program(
        name,
        &format!("resources: {{ {resource} }}\noutputs: {{ role: '${{made.role}}', region: '${{made.region}}' }}\n"),
    )
    .await
}

pub async fn apply_account(team: &Namespace<'_>, name: &str, annotations: &Value) -> Result<()> {
    let metadata = json!({ "name": name, "namespace": team.name, "annotations": annotations });
    team.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }).to_string()).await
}

async fn config_map(team: &Namespace<'_>, name: &str) -> Result<Option<ConfigMap>> {
    Ok(Api::<ConfigMap>::namespaced(team.world.client.clone(), &team.name).get_opt(name).await?)
}

#[tokio::test]
async fn program_has_the_rights_of_its_service_account() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("identity").await?;
    team.apply(MAY_MAKE).await?;
    for name in ["made", "denied"] {
        apply_program(&team, name).await?;
    }
    let sts = world.get("AWS_ENDPOINT_URL")?;
    let sts = format!("    AWS_ENDPOINT_URL_STS: {{ type: Literal, literal: {{ value: '{sts}' }} }}\n");

    // The ServiceAccount does not exist yet.
    team.apply_stack_as("made", "made", "{}", Source::Program("made"), &format!("{sts}  serviceAccountName: deployer\n")).await?;
    let waits = |words: &'static str| {
        move |stack: &driftless_api::Stack| condition(stack).is_some_and(|(_, _, message)| message.contains(words))
    };
    team.wait("made", "to wait for its ServiceAccount", waits(r#"ServiceAccount "deployer""#)).await?;
    apply_account(&team, "deployer", &json!({ "eks.amazonaws.com/role-arn": "deployer" })).await?;
    team.wait("made", "to say that the role is none", waits("eks.amazonaws.com/role-arn")).await?;
    apply_account(&team, "deployer", &json!({ "eks.amazonaws.com/role-arn": ROLE })).await?;
    let stack = team.ready_after("made", 1).await?;
    assert_eq!(output(&stack, "region"), Some(&json!("")), "the installation's Region is not the program's");
    let made = config_map(&team, "made").await?.context("the ConfigMap was not made")?;
    assert_eq!(made.data.context("data")?["role"], ROLE);
    let asked = asked_for_roles(&team)?;
    let expected = json!({
        "role": ROLE, "session": "driftless-identity.made", "audience": ["sts.amazonaws.com"],
        "subject": "system:serviceaccount:identity:deployer",
    });
    assert_eq!(asked, [expected]);

    // Another ServiceAccount of the same namespace lacks the right.
    team.apply_stack_as("denied", "denied", "{}", Source::Program("denied"), "").await?;
    let failed = |stack: &driftless_api::Stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        last.is_some_and(|last| last.state.as_deref() == Some("failed"))
    };
    let stack = team.wait("denied", "to have failed", failed).await?;
    let message = stack.status.and_then(|status| status.last_update?.message).unwrap_or_default();
    ensure!(message.contains("system:serviceaccount:identity:default") && message.contains("forbidden"), "{message}");
    ensure!(config_map(&team, "denied").await?.is_none(), "it was made");
    let update = team.updates("denied").await?[0].name_any();
    for regarding in ["denied", &update] {
        team.told(regarding, "ResourceFailed", &["world:index:Identity::made", "forbidden"]).await?;
    }
    // An administrator grants it.
    let everybody =
        MAY_MAKE.replace("name: deployer,", "name: default,").replace("name: makes, namespace", "name: all, namespace");
    team.apply(&everybody.replace("kind: Role, name: makes", "kind: Role, name: all")).await?;
    team.wait("denied", "to be Ready", is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn role_that_does_not_trust_the_service_account_is_denied() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("untrusted").await?;
    team.apply(&MAY_MAKE.replace("name: deployer,", "name: other,")).await?;
    apply_account(&team, "other", &json!({ "eks.amazonaws.com/role-arn": ROLE })).await?;
    apply_program(&team, "app").await?;
    let sts = world.get("AWS_ENDPOINT_URL")?;
    let sts = format!("    AWS_ENDPOINT_URL_STS: {{ type: Literal, literal: {{ value: '{sts}' }} }}\n");
    team.apply_stack_as("app", "app", "{}", Source::Program("app"), &format!("{sts}  serviceAccountName: other\n")).await?;
    let is_denied = |stack: &driftless_api::Stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        let message = last.and_then(|last| last.message.as_deref()).unwrap_or_default();
        message.contains("AccessDenied") && message.contains("sts:AssumeRoleWithWebIdentity")
    };
    team.wait("app", "to have the denial of STS", is_denied).await?;
    ensure!(config_map(&team, "app").await?.is_none(), "it was made");
    team.clear().await
}

/// The calls of `AssumeRoleWithWebIdentity` for a ServiceAccount of the namespace.
fn asked_for_roles(team: &Namespace<'_>) -> Result<Vec<Value>> {
    let subject = format!("system:serviceaccount:{}:", team.name);
    let asked = team.world.journal(CALLS_LOG, 0, |call| {
        call["operation"] == "AssumeRoleWithWebIdentity"
            && call["input"]["subject"].as_str().is_some_and(|found| found.starts_with(&subject))
    })?;
    Ok(asked.into_iter().map(|mut call| call["input"].take()).collect())
}

#[tokio::test]
async fn run_that_outlives_its_tokens_receives_new_ones() -> Result<()> {
    // Tokens are valid for ten minutes here, the API server's minimum, and are renewed after five:
    // by the next sweep, a minute later at most, and the runner sees them within half a minute.
    // Each step is shorter than the silence after which a run is interrupted.
    const STEPS: usize = 15;
    let (world, _turn) = aside().await?;
    let team = world.namespace("outlives").await?;
    team.apply(&MAY_MAKE.replace("deployer", "default")).await?;
    let path = team.file("step")?;
    let step = |n: usize| {
        let after = if n == 0 { "first".into() } else { format!("s{}", n - 1) };
        let properties = format!("{{ path: '{path}{n}', content: x, delaySeconds: 30 }}");
        format!(
            "  s{n}: {{ type: 'world:index:Object', properties: {properties}, options: {{ dependsOn: ['${{{after}}}'] }} }}\n"
        )
    };
    let makes = |name: &str, options: &str| {
        format!("  {name}: {{ type: 'world:index:Identity', properties: {{ configMap: {name} }}{options} }}\n")
    };
    let last = makes("last", &format!(", options: {{ dependsOn: ['${{s{}}}'] }}", STEPS - 1));
    let steps: String = (0..STEPS).map(step).collect();
    team.apply_program("app", &format!("resources:\n{}{steps}{last}", makes("first", ""))).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    for name in ["first", "last"] {
        ready::until(&format!("ConfigMap {name}"), RUN * 2, async || {
            ensure!(config_map(&team, name).await?.is_some(), "{:#?}", team.stack("app").await?.status);
            Ok(())
        })
        .await?;
    }
    team.ready_after("app", 1).await?;
    let made = world.journal(AUDIT_LOG, 0, |call| {
        call["user"]["username"] == "system:serviceaccount:outlives:default"
            && call["verb"] == "create"
            && call["objectRef"]["resource"] == "configmaps"
    })?;
    let tokens: Vec<_> = made.iter().map(|call| &call["user"]["extra"]["authentication.kubernetes.io/credential-id"]).collect();
    ensure!(matches!(&tokens[..], [first, last] if first.is_array() && first != last), "{tokens:?}");
    team.clear().await
}
