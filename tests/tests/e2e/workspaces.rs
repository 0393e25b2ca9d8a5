//! A user's Workspaces with their own source, without a Stack.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::{Update, Workspace};
use driftless_tests::{
    scenario::{FLUX, Namespace, RUN},
    world::ready,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};

use crate::{
    git::credentials,
    updates::{apply_update, gone, ours, succeeded, updates, wait, workspace_says},
    world::shared,
};

fn workspaces(team: &Namespace<'_>) -> Api<Workspace> {
    Api::namespaced(team.world.client.clone(), &team.name)
}

/// Applies a Workspace whose stacks are in the namespace's backend. `source` has fields of a YAML
/// flow mapping.
async fn apply_workspace(team: &Namespace<'_>, name: &str, source: &str) -> Result<()> {
    let head =
        format!("apiVersion: auto.pulumi.com/v1alpha1\nkind: Workspace\nmetadata: {{ name: {name}, namespace: NAMESPACE }}");
    let passphrase = "{ name: PULUMI_CONFIG_PASSPHRASE, valueFrom: { secretKeyRef: { name: pulumi, key: passphrase } } }";
    let backend = format!("{{ name: PULUMI_BACKEND_URL, value: 'file://{}' }}", team.state()?);
    team.apply(&format!("{head}\nspec: {{ env: [{passphrase}, {backend}], {source} }}")).await
}

/// Waits until the present Workspace has a condition of that type with this status, reason and
/// message.
async fn says(team: &Namespace<'_>, name: &str, type_: &str, wanted: (&str, &str, &str)) -> Result<()> {
    ready::until(&format!("Workspace {name} says {type_} {wanted:?}"), RUN, async || {
        let workspace = workspaces(team).get(name).await?;
        let observed = workspace.status.as_ref().and_then(|status| status.observed_generation);
        match workspace_says(&workspace, type_) {
            Some((status, reason, message))
                if (status.as_str(), reason.as_str()) == (wanted.0, wanted.1)
                    && message.contains(wanted.2)
                    && observed == workspace.metadata.generation =>
            {
                Ok(())
            }
            _ => bail!("{}", serde_json::to_string_pretty(&workspace.status)?),
        }
    })
    .await
}

/// The commit that an Update ran.
fn commit(update: &Update) -> Option<&str> {
    update.spec.driftless.as_ref()?.commit.as_deref()
}

/// Deletes the Workspaces of a namespace, because one that is not ready is reconciled every minute.
async fn clear(team: &Namespace<'_>) -> Result<()> {
    workspaces(team).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    team.clear().await
}

const UP: &str = "{ workspaceName: app, stackName: dev, type: up }";

/// Everything with which a PKO Workspace can extend its pod: init containers, volumes, tokens of
/// another audience, variables from a file.
#[tokio::test]
async fn a_workspace_extends_its_pod_as_under_pko() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("own-pod").await?;
    let repository = world.private_git.create("own-pod").await?;
    let variables = "{ password: { 'fn::readFile': /etc/driftless-own-pod/password } }";
    let program = team.program("app.txt", "${password}", "")?;
    repository.commit("one", &[("Pulumi.yaml", &format!("name: app\nruntime: yaml\nvariables: {variables}\n{program}"))]).await?;
    team.apply_secret("token", &[("token", &credentials(&world)?["token"])]).await?;
    team.apply_secret("db", &[("password", "password-of-the-pod")]).await?;
    let git = format!("git: {{ url: '{}', ref: main, auth: {{ token: {{ name: token, key: token }} }} }}", repository.url);
    let own = "securityProfile: restricted, resources: { requests: { cpu: 1, memory: 512Mi }, limits: { cpu: 1, memory: 2Gi } }";
    let init = "{ name: extra, image: busybox, command: [sh, -c, 'echo EXTRA=one >> $PULUMI_ENV'], \
                securityContext: { allowPrivilegeEscalation: false }, volumeMounts: [{ name: share, mountPath: /share }] }";
    let main = "{ name: pulumi, volumeMounts: [{ name: db, mountPath: /etc/driftless-own-pod, readOnly: true }, \
                { name: oidc, mountPath: /var/run/secrets/pulumi }] }";
    let volumes = "[{ name: db, secret: { secretName: db } }, { name: oidc, projected: { sources: [{ serviceAccountToken: { \
                   audience: 'urn:pulumi:org:acme', path: token, expirationSeconds: 3600 } }] } }]";
    let pod = format!(
        "podTemplate: {{ metadata: {{ labels: {{ team: one }} }}, spec: {{ terminationGracePeriodSeconds: 3600, tolerations: [{{ \
         operator: Exists }}], initContainers: [{init}], containers: [{main}], volumes: {volumes} }} }}"
    );
    let stacks = "stacks: [{ name: dev, create: true, config: [{ key: 'pulumi:oidcToken', valueFrom: { path: \
                  /var/run/secrets/pulumi/token }, secret: true }, { key: 'data.nums[0]', path: true, value: '1' }] }]";
    apply_workspace(&team, "app", &format!("{git}, {own}, {pod}, {stacks}")).await?;
    apply_update(&team, "first", "{}", UP).await?;
    succeeded(&team, "first").await?;
    assert_eq!(fs::read_to_string(team.file("app.txt")?)?, "password-of-the-pod");
    clear(&team).await
}

#[tokio::test]
async fn update_runs_the_branch_as_of_its_creation() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("own-git").await?;
    let repository = world.private_git.create("own-git").await?;
    let project =
        |content: &str| -> Result<_> { Ok(format!("name: app\nruntime: yaml\n{}", team.program("app.txt", content, "")?)) };
    let first = repository.commit("one", &[("deep/Pulumi.yaml", &project("one")?)]).await?;
    let canary = "canary-own-git-51ce";
    team.apply_secret("token", &[("token", canary)]).await?;
    let auth = "auth: { token: { name: token, key: token } }";
    apply_workspace(&team, "app", &format!("git: {{ url: '{}', ref: main, dir: deep, {auth} }}", repository.url)).await?;
    apply_update(&team, "first", "{}", UP).await?;
    let words = "the git server refused the credentials of Secret \"token\" key \"token\" (spec.git.auth.token)";
    says(&team, "app", "Ready", ("False", "SourceUnavailable", words)).await?;
    let told = |update: &Update| ours(update).waiting_for.is_some_and(|told| told.contains(words));
    let waiting = wait(&team, "first", "to say that the credential is wrong", told).await?;
    assert_eq!(ours(&waiting).waiting_reason.as_deref(), Some("SourceUnavailable"));
    let shown = serde_json::to_string(&(&waiting.status, workspaces(&team).get("app").await?.status))?;
    ensure!(!shown.contains(canary), "{shown}");

    // A later Update requests the fetch at once, and the waiting ones are hinted.
    team.apply_secret("token", &[("token", &credentials(&world)?["token"])]).await?;
    apply_update(&team, "second", "{}", "{ workspaceName: app, stackName: other, type: preview }").await?;
    assert_eq!(commit(&succeeded(&team, "first").await?), Some(first.as_str()));
    assert_eq!(commit(&succeeded(&team, "second").await?), Some(first.as_str()));
    assert_eq!(fs::read_to_string(team.file("app.txt")?)?, "one");
    says(&team, "app", "Ready", ("True", "Succeeded", "")).await?;

    let second = repository.commit("two", &[("deep/Pulumi.yaml", &project("two")?)]).await?;
    apply_update(&team, "third", "{}", UP).await?;
    assert_eq!(commit(&succeeded(&team, "third").await?), Some(second.as_str()));
    assert_eq!(fs::read_to_string(team.file("app.txt")?)?, "two");

    // A commit that is named by its id never changes.
    apply_workspace(&team, "app", &format!("git: {{ url: '{}', ref: '{first}', dir: deep, {auth} }}", repository.url)).await?;
    apply_update(&team, "back", "{}", UP).await?;
    assert_eq!(commit(&succeeded(&team, "back").await?), Some(first.as_str()));
    assert_eq!(fs::read_to_string(team.file("app.txt")?)?, "one");
    apply_update(&team, "destroy", "{}", "{ workspaceName: app, stackName: dev, type: destroy }").await?;
    succeeded(&team, "destroy").await?;
    ensure!(!fs::exists(team.file("app.txt")?)?, "it is still there");
    clear(&team).await
}

#[tokio::test]
async fn workspace_artifact_comes_from_its_own_namespace() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, other) = (world.namespace("own-flux").await?, world.namespace("own-flux-neighbour").await?);
    let repository = world.git.create("own-flux").await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("app.txt", "one", "")?);
    repository.commit("one", &[("deep/Pulumi.yaml", &project)]).await?;
    team.apply_git_repository("app", &repository.url).await?;
    let artifact = ready::until("the GitRepository has an artifact", RUN, async || {
        let source = team.objects(FLUX, "GitRepository")?.get("app").await?;
        let artifact = &source.data["status"]["artifact"];
        let text = |field: &str| artifact[field].as_str().map(String::from).with_context(|| source.data["status"].to_string());
        Ok((text("url")?, text("digest")?))
    })
    .await?;
    let flux = |(url, digest): &(String, String)| format!("flux: {{ url: '{url}', digest: '{digest}', dir: deep }}");
    apply_workspace(&team, "app", &flux(&artifact)).await?;
    apply_update(&team, "up", "{}", UP).await?;
    assert_eq!(commit(&succeeded(&team, "up").await?), Some(artifact.1.as_str()));
    assert_eq!(fs::read_to_string(team.file("app.txt")?)?, "one");
    says(&team, "app", "Ready", ("True", "Succeeded", "")).await?;

    other.offer(FLUX, "ExternalArtifact", "app", "one", &driftless_testkit::hostile::honest()).await?;
    let theirs = other.objects(FLUX, "ExternalArtifact")?.get("app").await?.data["status"]["artifact"].clone();
    let text = |field: &str| theirs[field].as_str().map(String::from).context("an artifact");
    let theirs = (text("url")?, text("digest")?);
    let zeros = (artifact.0.clone(), format!("sha256:{}", "0".repeat(64)));
    let foreign = "expected the status.artifact.url of a Flux source in namespace \"own-flux\"";
    for (name, source, condition, reason, words) in [
        ("theirs", flux(&theirs), "Stalled", "SourceUnavailable", foreign),
        ("zeros", flux(&zeros), "Ready", "SourceUnavailable", "does not match its digest"),
        ("local", "local: { dir: /app }".into(), "Stalled", "SpecInvalid", "spec.local has no meaning on Fargate; remove it"),
    ] {
        apply_workspace(&team, name, &source).await?;
        let status = if condition == "Stalled" { "True" } else { "False" };
        says(&team, name, condition, (status, reason, words)).await?;
        apply_update(&team, name, "{}", &format!("{{ workspaceName: {name}, stackName: dev, type: up }}")).await?;
        wait(&team, name, "to say what is wrong", |update| ours(update).waiting_for.is_some_and(|told| told.contains(words)))
            .await?;
        updates(&team).delete(name, &DeleteParams::default()).await?;
        gone(&team, name).await?;
    }
    clear(&team).await
}
