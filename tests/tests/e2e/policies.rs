//! What a cluster demands of the plans of its Stacks: policies, and an annotation of a Namespace.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, names};
use driftless_testkit::hostile::Tar;
use driftless_tests::{
    scenario::{FLUX, Namespace, RUN, Source, condition, is_ready},
    world::ready,
};
use kube::{Api, Client, api::DeleteParams};
use serde_json::{Value, json};

use crate::{
    approval::{annotate, approve, content, gone, is_reason, plan, proposed, ups},
    world::shared,
};

/// A policy for one namespace.
fn policy(name: &str, namespace: &str, rules: &str) -> String {
    format!(
        "apiVersion: driftless.dev/v1alpha1\nkind: PlanPolicy\nmetadata: {{ name: {name} }}\nspec:\n  namespaceSelector:\n    \
         matchLabels: {{ kubernetes.io/metadata.name: {namespace} }}\n  rules:\n{rules}"
    )
}

/// The files of a policy pack for the tests' own analyzer.
const PACK: [(&str, &str); 2] = [
    ("packs/world/PulumiPolicy.yaml", "runtime: world\nversion: 1.0.0\n"),
    (
        "packs/world/rules.json",
        r#"[
          { "name": "no-open", "level": "mandatory", "word": "\"content\":\"open\"" },
          { "name": "no-one", "level": "advisory", "word": "\"content\":\"one\"" }
        ]"#,
    ),
];

const RULES: &str = r#"
  - { name: no-deletes, action: Deny, expression: "changes.exists(c, c.kind == 'delete' && c.type.startsWith('world:'))", message: "ask the platform team" }
  - { name: changes, action: RequireApproval, expression: "counts.update + counts.replace > 0" }
  - { name: creates, action: Warn, expression: "stack.name == 'app' && changes.exists(c, c.kind == 'create')", message: "it is new" }
"#;

fn message(stack: &Stack) -> String {
    condition(stack).map(|(_, _, message)| message).unwrap_or_default()
}

/// Changes an object as the administrator, or as another user.
async fn patch(client: &Client, uri: &str, user: Option<&str>, patch: &Value) -> kube::Result<Value> {
    let mut request = http::Request::patch(uri).header("content-type", "application/merge-patch+json");
    if let Some(user) = user {
        request = request.header("impersonate-user", user);
    }
    client.request(request.body(patch.to_string().into_bytes()).map_err(kube::Error::HttpError)?).await
}

/// The policy decides about each plan of a Stack that asks for no approvals itself.
#[tokio::test]
async fn plan_policy_warns_demands_an_approval_and_denies() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("policies").await?;
    let file = team.file("app.txt")?;
    let archive = PACK.iter().fold(Tar::default(), |tar, (path, content)| tar.file(path, content.as_bytes())).gzip();
    team.offer(FLUX, "ExternalArtifact", "packs", "one", &archive).await?;
    let offered = team.objects(FLUX, "ExternalArtifact")?.get("packs").await?.data["status"]["artifact"]["digest"].clone();
    let packs = format!(
        "  policyPacks:\n  - {{ name: rules, digest: {offered}, dir: packs/world, sourceRef: {{ kind: ExternalArtifact, namespace: {}, \
         name: packs }} }}\n",
        team.name
    );
    team.apply(&policy("e2e-policies", &team.name, &format!("{RULES}{packs}"))).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack_as("app", "dev", "{}", Source::Program("app"), "  destroyOnFinalize: true\n").await?;
    let stack = team.wait("app", "to be Ready", is_ready).await?;
    let first = plan(&stack);
    ensure!(first.state.as_deref() == Some("Applied") && first.governed == Some(true), "{first:?}");
    ensure!(first.approved_by.is_none() && content(&file).as_deref() == Some("one"), "{first:?}");
    let advice = "policy \"no-one\" of pack \"world\": urn:pulumi:dev::";
    team.told("app", "PolicyWarning", &["PlanPolicy \"e2e-policies\", rule \"creates\": it is new", advice]).await?;

    // A policy pack fails the preview, so that there is no plan.
    team.apply_program("app", &team.program("app.txt", "open", "")?).await?;
    let words = "no plan: mandatory policy \"no-open\" of pack \"world\": urn:pulumi:dev::";
    team.wait("app", "to violate a policy", |stack| message(stack).starts_with(words)).await?;
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));

    team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
    let second = proposed(&team, first.hash.as_deref().unwrap_or_default()).await?;
    let demanded = second.demanded_by.unwrap_or_default();
    ensure!(demanded.starts_with("PlanPolicy \"e2e-policies\", rule \"changes\""), "{demanded}");
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));
    let second = second.hash.context("a hash")?;
    approve(&team, &second).await?;
    team.wait("app", "to be Ready", |stack| is_ready(stack) && plan(stack).hash.as_ref() == Some(&second)).await?;
    ensure!(content(&file).as_deref() == Some("two"), "{:?}", content(&file));

    // The resource is gone from the program. No approval helps.
    let other = team.program("other.txt", "one", "")?.replace("{ file: {", "{ other: {").replace("${file.", "${other.");
    team.apply_program("app", &other).await?;
    let denied = team.wait("app", "to be denied", |stack| is_reason(stack, "PolicyViolation")).await?;
    let words = message(&denied);
    ensure!(words.contains("denied by PlanPolicy \"e2e-policies\", rule \"no-deletes\": ask the platform team"), "{words}");
    let third = plan(&denied).hash.context("a hash")?;
    approve(&team, &third).await?;
    let request = json!({ names::RECONCILIATION_REQUEST: "again" });
    annotate(&world.client, &team, request).await?;
    team.told("app", "PolicyViolation", &["rule \"no-deletes\""]).await?;
    team.wait("app", "to be denied", |stack| is_reason(stack, "PolicyViolation")).await?;
    ensure!(Path::new(&file).exists(), "it was deleted");

    // A rule that does not compile denies, too; without a policy, the change is made.
    let broken = "  - { name: broken, action: Warn, expression: \"changes.exists(\" }\n";
    team.apply(&policy("e2e-policies", &team.name, broken)).await?;
    annotate(&world.client, &team, json!({ names::RECONCILIATION_REQUEST: "broken" })).await?;
    team.wait("app", "to be denied", |stack| message(stack).contains("rule \"broken\" cannot be evaluated")).await?;
    ensure!(Path::new(&file).exists(), "it was deleted");
    let uri = "/apis/driftless.dev/v1alpha1/planpolicies/e2e-policies";
    let _: Value = world.client.request(http::Request::delete(uri).body(Vec::new())?).await?;
    annotate(&world.client, &team, json!({ names::APPROVE: "", names::RECONCILIATION_REQUEST: "free" })).await?;
    team.wait("app", "to be Ready", |stack| is_ready(stack) && plan(stack).guarded.is_none()).await?;
    ensure!(!Path::new(&file).exists(), "it was not deleted");

    // The rules apply to a destroy, too.
    let rule = "  - { name: keep, action: Deny, expression: \"operation == 'destroy' && counts.delete > 0\" }\n";
    team.apply(&policy("e2e-policies", &team.name, rule)).await?;
    let stacks = Api::<Stack>::namespaced(world.client.clone(), &team.name);
    stacks.delete("app", &DeleteParams::default()).await?;
    team.wait("app", "not to be destroyed", |stack| is_reason(stack, "PolicyViolation")).await?;
    let _: Value = world.client.request(http::Request::delete(uri).body(Vec::new())?).await?;
    annotate(&world.client, &team, json!({ names::RECONCILIATION_REQUEST: "destroy" })).await?;
    gone(&stacks).await
}

/// All Stacks of a namespace need approvals, and only a user with the verb changes that.
#[tokio::test]
async fn namespace_requires_approvals_of_all_its_stacks() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("floor").await?;
    let file = team.file("app.txt")?;
    let uri = format!("/api/v1/namespaces/{}", team.name);
    let floor = |value: Value| json!({ "metadata": { "annotations": { names::APPROVAL: value } } });
    patch(&world.client, &uri, None, &floor(json!("required"))).await?;
    team.apply(&editor(&team)).await?;
    let user = "e2e-namespace-editor";
    ready::until("the user may edit the Namespace", RUN, async || {
        patch(&world.client, &uri, Some(user), &json!({ "metadata": { "labels": { "edited": "true" } } })).await?;
        Ok(())
    })
    .await?;
    for value in [json!(null), json!("unless delete")] {
        let loosened = patch(&world.client, &uri, Some(user), &floor(value)).await;
        ensure!(matches!(&loosened, Err(kube::Error::Api(status)) if status.code == 403), "{loosened:?}");
    }

    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let more = "  destroyOnFinalize: true\n";
    // The Stack's own policy is weaker, and does not count.
    let annotations = format!("{{ {}: 'unless delete' }}", names::APPROVAL);
    team.apply_stack_as("app", "dev", &annotations, Source::Program("app"), more).await?;
    let first = proposed(&team, "").await?;
    let demanded = first.demanded_by.unwrap_or_default();
    ensure!(demanded == format!("annotation driftless.dev/approval of Namespace {:?}", team.name), "{demanded}");
    ensure!(content(&file).is_none() && ups(&team.updates("app").await?) == 0, "nothing is changed");
    let first = first.hash.context("a hash")?;
    approve(&team, &first).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    ensure!(content(&file).as_deref() == Some("one"), "{:?}", content(&file));

    // The removal of its annotation changes nothing. The destroy is a plan of its own.
    annotate(&world.client, &team, json!({ names::APPROVAL: null })).await?;
    let stacks = Api::<Stack>::namespaced(world.client.clone(), &team.name);
    stacks.delete("app", &DeleteParams::default()).await?;
    let destroy = proposed(&team, &first).await?;
    ensure!(destroy.demanded_by.is_some() && Path::new(&file).exists(), "{destroy:?}");
    approve(&team, &destroy.hash.context("a hash")?).await?;
    gone(&stacks).await?;
    ensure!(!Path::new(&file).exists(), "it was not destroyed");
    Ok(())
}

/// A user who may edit the Namespace, and nothing else.
fn editor(team: &Namespace<'_>) -> String {
    let name = format!("e2e:{}", team.name);
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{ name: {name:?} }}\nrules:\n- apiGroups: ['']\n  \
         resources: [namespaces]\n  resourceNames: [{}]\n  verbs: [get, patch]\n---\napiVersion: \
         rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{ name: {name:?} }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: ClusterRole, name: {name:?} }}\nsubjects:\n- {{ apiGroup: rbac.authorization.k8s.io, kind: \
         User, name: e2e-namespace-editor }}\n",
        team.name
    )
}
