//! A task whose image lacks a language.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::Stack;
use driftless_tests::scenario::{Namespace, Source, commit, is_ready};
use futures::future::try_join_all;

use crate::{
    programs::literal,
    world::{nothing_was_given_up, shared},
};

/// A runtime, a file by which its host knows a program, the file's content, and what the message
/// names: a program of the language, if the image has the host without the language, as Pulumi's
/// images do. The last runtime has no host at all.
const LANGUAGES: [(&str, &str, &str, &str); 6] = [
    ("dotnet", "app.csproj", "<Project />\n", "dotnet"),
    ("go", "go.mod", "module app\n", "go"),
    ("java", "pom.xml", "<project />\n", "mvn"),
    ("nodejs", "package.json", "{}\n", "npm"),
    ("python", "requirements.txt", "pulumi\n", "python"),
    ("cobol", "app.cob", "", "cobol"),
];

/// The PATH of an image that has Pulumi with its hosts and nothing else.
fn pulumi_alone(team: &Namespace<'_>) -> Result<String> {
    let folder = team.file("image")?;
    fs::create_dir_all(&folder)?;
    for tool in fs::read_dir(team.world.get("WORLD_TOOLS")?)? {
        let tool = tool?;
        if tool.file_name().to_string_lossy().starts_with("pulumi") {
            symlink(fs::canonicalize(tool.path())?, Path::new(&folder).join(tool.file_name()))?;
        }
    }
    Ok(folder)
}

#[tokio::test]
async fn missing_language_names_the_fields_of_the_image() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("no-language").await?;
    let repository = world.git.create(&team.name).await?;
    let files = LANGUAGES.iter().flat_map(|(runtime, file, content, _)| {
        let project = format!("name: app\nruntime: {runtime}\n");
        [(format!("{runtime}/Pulumi.yaml"), project), (format!("{runtime}/{file}"), (*content).to_owned())]
    });
    let files: Vec<_> = files.collect();
    let files: Vec<_> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    repository.commit("first", &files).await?;
    let path = literal("PATH", &pulumi_alone(&team)?);
    for (runtime, ..) in LANGUAGES {
        let source = Source::Git { url: &repository.url, reference: "branch: main", dir: runtime, auth: "" };
        team.apply_stack_as(runtime, runtime, "{}", source, &path).await?;
    }

    let message = |stack: &Stack| stack.status.as_ref()?.last_update.as_ref()?.message.clone();
    let failed = LANGUAGES.map(|(runtime, ..)| team.wait(runtime, "to fail", move |stack| message(stack).is_some()));
    for (stack, (runtime, .., program)) in try_join_all(failed).await?.iter().zip(LANGUAGES) {
        let message = message(stack).context("a message")?;
        let words = ["a program was not found; ", "spec.workspaceTemplate.spec.image of the Stack", "RuntimeImages"];
        let is_named = [program, &format!("pulumi-language-{runtime}")].iter().any(|name| message.contains(name));
        ensure!(words.iter().all(|words| message.contains(words)) && is_named, "{runtime}: {message}");
    }

    // As with an image that has the language.
    let project = format!("name: app\nruntime: yaml\n{}", team.program("app.txt", "one", "")?);
    let second = repository.commit("second", &[("cobol/Pulumi.yaml", &project)]).await?;
    team.wait("cobol", "to run the correction", |stack| commit(stack) == Some(&second) && is_ready(stack)).await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}
