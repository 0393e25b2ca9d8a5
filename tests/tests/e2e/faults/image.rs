//! A task whose image lacks a program.

use anyhow::{Context as _, Result, ensure};
use driftless_api::Stack;
use driftless_tests::scenario::{Source, commit, is_ready};

use crate::world::{nothing_was_given_up, shared};

/// No image has the host of this language.
const PROJECT: &str = "name: app\nruntime: cobol\n";

#[tokio::test]
async fn language_that_the_image_lacks_is_told_with_the_fields_of_the_image() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("no-language").await?;
    let repository = world.git.create(&team.name).await?;
    repository.commit("first", &[("Pulumi.yaml", PROJECT)]).await?;
    let source = Source::Git { url: &repository.url, reference: "branch: main", dir: "", auth: "" };
    team.apply_stack_as("app", "app", "{}", source, "").await?;

    let message = |stack: &Stack| stack.status.as_ref()?.last_update.as_ref()?.message.clone();
    let stack = team.wait("app", "to fail", |stack| message(stack).is_some()).await?;
    let message = message(&stack).context("a message")?;
    let words =
        ["a program was not found; ", "spec.workspaceTemplate.spec.image of the Stack", "RuntimeImages", "pulumi-language-cobol"];
    ensure!(words.iter().all(|words| message.contains(words)), "{message}");

    // As with an image that has the language.
    let project = format!("name: app\nruntime: yaml\n{}", team.program("app.txt", "one", "")?);
    let second = repository.commit("second", &[("Pulumi.yaml", &project)]).await?;
    team.wait("app", "to run the correction", |stack| commit(stack) == Some(&second) && is_ready(stack)).await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}
