//! What a team's program relies on between runs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update};
use driftless_tests::{
    scenario::{Handle, Namespace, Source, is_ready, output},
    world::pulumi_cloud::{PulumiCloud, TOKEN, USER},
};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    identity::MAY_MAKE,
    updates::{ours, wait},
    world::shared,
};

/// The variables with which the AWS CLI, and Pulumi in a task, call the world's AWS as its
/// administrator.
pub const ADMINISTRATOR: [&str; 4] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"];

/// An entry of `envRefs`.
pub fn literal(name: &str, value: &str) -> String {
    format!("    {name}: {{ type: Literal, literal: {{ value: '{value}' }} }}\n")
}

/// The ARN of a new KMS key.
pub async fn key(world: &Handle) -> Result<String> {
    let mut command = Command::new(Path::new(world.get("WORLD_TOOLS")?).join("aws"));
    for name in ADMINISTRATOR {
        command.env(name, world.get(name)?);
    }
    command.args(["--region", world.get("AWS_REGION")?, "--output", "text"]);
    let output = command.args(["kms", "create-key", "--query", "KeyMetadata.Arn"]).output().await?;
    ensure!(output.status.success(), "aws kms: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// A secrets provider with a new KMS key.
pub async fn new_key_provider(world: &Handle) -> Result<String> {
    Ok(format!("awskms:///{}?region={}", key(world).await?, world.get("AWS_REGION")?))
}

/// The secrets provider in the state of the Pulumi stack `dev` of the project `app`: its type, and
/// its own state.
pub fn secrets_providers(team: &Namespace<'_>) -> Result<Value> {
    let state = format!("{}/.pulumi/stacks/app/dev.json", team.state()?);
    let mut state: Value = serde_json::from_str(&fs::read_to_string(&state).with_context(|| state)?)?;
    Ok(state["checkpoint"]["latest"]["secrets_providers"].take())
}

#[tokio::test]
async fn secrets_encrypted_by_a_key_stay_encrypted_across_runs() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("secrets-provider").await?;
    let environment = ADMINISTRATOR.into_iter().map(|name| Ok(literal(name, world.get(name)?)));
    let environment: String = environment.collect::<Result<_>>()?;
    let more = format!("{environment}  secretsProvider: '{}'\n", new_key_provider(&world).await?);
    let secret = ", secretContent: { 'fn::secret': hush }";
    for (run, content) in [(1, "one"), (2, "two")] {
        team.apply_program("app", &team.program("app.txt", content, secret)?).await?;
        if run == 1 {
            // The environment also has the passphrase of every Stack of the world.
            team.apply_stack("app", Source::Program("app"), &more).await?;
        }
        let is_done = |stack: &Stack| is_ready(stack) && output(stack, "content") == Some(&json!(content));
        team.wait("app", "to be Ready with the content", is_done).await?;
        assert_eq!(secrets_providers(&team)?["type"], "cloud", "after run {run}");
    }
    team.clear().await
}

#[tokio::test]
async fn configuration_joins_the_settings_file_of_the_source() -> Result<()> {
    const HIDDEN: &str = "canary-settings-5d1e";
    let (world, _turn) = shared().await?;
    let team = world.namespace("settings").await?;
    let names = ["own", "added", "hidden"];
    let part = |of: &dyn Fn(&str) -> String| names.map(of).join(", ");
    let (configuration, outputs) =
        (part(&|name| format!("{name}: {{ type: String }}")), part(&|name| format!("{name}: '${{{name}}}'")));
    let project = format!("name: app\nruntime: yaml\nconfiguration: {{ {configuration} }}\noutputs: {{ {outputs} }}\n");
    // As a developer makes it, with the passphrase of the world.
    let (folder, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::write(folder.path().join("Pulumi.yaml"), &project)?;
    let backend = format!("file://{}", state.path().display());
    for arguments in [&["stack", "init", "dev"][..], &["config", "set", "--stack", "dev", "own", "of the source"]] {
        world.pulumi(folder.path(), &backend, arguments).await?;
    }
    let settings = fs::read_to_string(folder.path().join("Pulumi.dev.yaml"))?;
    let salt = settings.lines().find_map(|line| line.strip_prefix("encryptionsalt: ")).context("a salt")?;
    let repository = world.git.create(&team.name).await?;
    repository.commit("first", &[("Pulumi.yaml", &project), ("Pulumi.dev.yaml", &settings)]).await?;
    let source = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    let secret = format!("  secretsRef: {{ hidden: {{ type: Literal, literal: {{ value: {HIDDEN} }} }} }}\n");
    team.apply_stack("app", source, &format!("  config: {{ added: of the Stack }}\n{secret}")).await?;
    let stack = team.ready_after("app", 1).await?;
    let found = names.map(|name| output(&stack, name).cloned().unwrap_or_default());
    assert_eq!(found, [json!("of the source"), json!("of the Stack"), json!("[secret]")]);
    let provider = secrets_providers(&team)?;
    ensure!(provider["state"]["salt"] == salt && !provider.to_string().contains(HIDDEN), "{provider}");
    team.clear().await
}

#[tokio::test]
async fn esc_environments_provide_configuration_and_variables() -> Result<()> {
    const HUSH: &str = "canary-esc-value-b7f2";
    let (world, _turn) = shared().await?;
    let team = world.namespace("esc").await?;
    team.apply(&MAY_MAKE.replace("deployer", "default")).await?;
    let cloud = PulumiCloud::start().await?;
    let both = |greeting: &str| {
        let config = json!({ "app:greeting": greeting, "app:hush": { "fn::secret": HUSH } });
        json!({ "pulumiConfig": config, "environmentVariables": { "AWS_REGION": "eu-central-1" } })
    };
    cloud.set_environment("app/shared", &both("of all"));
    cloud.set_environment("app/dev", &json!({ "pulumiConfig": { "app:greeting": "hello" } }));
    team.apply_secret("cloud", &[("accessToken", "pul-another")]).await?;
    team.apply_program(
        "app",
        "configuration:\n  greeting: { type: String }\n  hush: { type: String }\n\
         resources: { made: { type: 'world:index:Identity', properties: { configMap: made } } }\n\
         outputs: { greeting: '${greeting}', hush: '${hush}', region: '${made.region}' }\n",
    )
    .await?;
    let apply = async |message: &str| {
        team.apply(&format!(
            "apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: {{ name: app, namespace: NAMESPACE }}\nspec:\n  \
             stack: {USER}/dev\n  backend: {}\n  accessTokenSecret: cloud\n  programRef: {{ name: app }}\n  \
             environment: [app/shared, app/dev]\n  destroyOnFinalize: true\n  \
             envRefs: {{ PULUMI_CONSOLE_DOMAIN: {{ type: Literal, literal: {{ value: console.example }} }} }}\n  \
             updateTemplate: {{ spec: {{ message: {message} }} }}\n",
            cloud.url
        ))
        .await
    };
    apply("refused").await?;
    let words = "No credentials provided or are invalid";
    team.wait("app", "to have a token that is refused", |stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        last.and_then(|last| last.message.as_deref()).is_some_and(|message| message.contains(words))
    })
    .await?;
    // The Stack shows the failure before its Update is complete.
    let refused = team.updates("app").await?.first().context("an Update")?.name_any();
    let refused = wait(&team, &refused, "to be complete", Update::is_complete).await?;
    let conditions = refused.status.iter().flat_map(|status| &status.conditions);
    ensure!(conditions.into_iter().any(|condition| condition.reason == "InvalidAccessToken"), "{:#?}", refused.status);
    team.apply_secret("cloud", &[("accessToken", TOKEN)]).await?;
    apply("first").await?;

    let outputs = |greeting: &str| {
        let outputs = json!({ "greeting": greeting, "hush": "[secret]", "region": "eu-central-1" });
        move |stack: &Stack| is_ready(stack) && stack.status.as_ref().is_some_and(|status| json!(status.outputs) == outputs)
    };
    team.wait("app", "to have the values of ESC", outputs("hello")).await?;
    apply("second").await?;
    team.wait("app", "to be Ready after a second run", outputs("hello")).await?;
    // The Stack can be Ready before its Update is complete.
    let second = team.updates("app").await?.pop().context("an Update")?;
    let second = wait(&team, &second.name_any(), "to be complete", Update::is_complete).await?;
    let changes = ours(&second).changes;
    ensure!(changes.keys().eq(["same"]), "{changes:?}");
    let permalink = second.status.and_then(|status| status.permalink).context("a permalink")?;
    let place = format!("http://console.example/{USER}/app/dev/updates/");
    ensure!(permalink.starts_with(&place), "{permalink}");
    let last = team.stack("app").await?.status.and_then(|status| status.last_update);
    assert_eq!(last.and_then(|last| last.permalink), Some(permalink));
    let state = json!(cloud.stacks()).to_string();
    ensure!(state.contains("ciphertext") && !state.contains(HUSH), "{state}");

    cloud.set_environment("app/dev", &json!({ "pulumiConfig": { "app:greeting": "good evening" } }));
    apply("third").await?;
    team.wait("app", "to have the new value", outputs("good evening")).await?;
    team.clear().await?;
    let state = json!(cloud.stacks()).to_string();
    ensure!(!state.contains("world:index:Identity"), "{state}");
    Ok(())
}
