//! Turns a Program into a tree with one file, `Pulumi.yaml`, and publishes it in `status.artifact`,
//! in the form of a Flux source.

use std::fs::File;

use driftless_api::{Artifact, Program, ProgramBody, ProgramStatus};
use driftless_aws::{Objects, Queues};
use driftless_contract::{ArtifactDigest, ObjectKey, keys};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_source::{Digest, Tree};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{Answer, Error, Fetcher, Refusal, collect::is_stored, store, transport::Artifacts};

/// A Pulumi YAML project: the program's own fields beside the project's.
#[derive(Serialize)]
struct Project<'a> {
    name: &'a str,
    runtime: &'static str,
    #[serde(flatten)]
    program: &'a ProgramBody,
}

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Fetcher<'_, C, O, Q, A> {
    pub(crate) async fn fetch_program(&self, key: &ObjectKey) -> Result<Option<Answer>, Error> {
        let Some(program) = self.cluster.get::<Program>(&key.namespace, &key.name).await? else { return Ok(None) };
        let generation = format!("generation {}", program.metadata.generation.unwrap_or_default());
        let content = match document(&program) {
            Ok(content) => content,
            Err(refusal) => return Ok(Some((generation, Err(refusal)))),
        };
        let digest = ArtifactDigest::from(Digest::sha256(content.as_bytes()).to_string());
        let (tree, mut spool) = match tree(&content) {
            Ok(tree) => tree,
            Err(refusal) => return Ok(Some((generation, Err(refusal)))),
        };
        let folder = keys::tree(key, &digest);
        let stored = if is_stored(self.objects, &folder, self.settings.retention, self.now).await? {
            Ok(())
        } else {
            store::store(self.objects, self.settings, key, &folder, &tree, &mut spool).await?
        };
        if stored.is_ok() {
            self.publish_program(program, &folder, &digest, content.len()).await?;
        }
        Ok(Some((generation, stored.map(|()| None))))
    }

    async fn publish_program(
        &self,
        mut program: Program,
        folder: &str,
        digest: &ArtifactDigest,
        size: usize,
    ) -> Result<(), Error> {
        let generation = program.metadata.generation;
        let published = program.status.as_ref().filter(|status| status.observed_generation == generation);
        if published.and_then(|status| status.artifact.as_ref()?.digest.as_deref()) == Some(digest.as_str()) {
            return Ok(());
        }
        program.status = Some(ProgramStatus {
            artifact: Some(Artifact {
                digest: Some(digest.to_string()),
                last_update_time: Some(Time(self.now)),
                path: folder.to_owned(),
                revision: generation.unwrap_or_default().to_string(),
                size: i64::try_from(size).ok(),
                url: format!("s3://{}/{folder}", self.settings.bucket),
                ..Artifact::default()
            }),
            observed_generation: generation,
        });
        match self.cluster.replace_status(&program).await {
            // It was edited in the meantime: the Stacks will request the newer generation.
            Ok(_) | Err(KubernetesError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn tree(document: &str) -> Result<(Tree, File), Refusal> {
    let spool = tempfile::tempfile()?;
    let tree = Tree::from_files([("Pulumi.yaml", document.as_bytes())], &spool).map_err(store::refusal)?;
    Ok((tree, spool))
}

/// The `Pulumi.yaml` of a Program. The project has the name of the object, as in PKO.
fn document(program: &Program) -> Result<String, Refusal> {
    let body = program.spec.program.clone().unwrap_or_default();
    let project = Project { name: &program.name_any(), runtime: "yaml", program: &body };
    serde_saphyr::to_string(&project).map_err(|error| Refusal::Program(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_program_becomes_a_yaml_project_named_after_it() {
        let program: Program = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1",
            "kind": "Program",
            "metadata": { "name": "shop" },
            "program": {
                "resources": { "bucket": { "type": "aws:s3:Bucket", "properties": { "tags": { "on": "yes", "n": 1.5 } } } },
                "outputs": { "name": "${bucket.id}" },
            },
        }))
        .unwrap();
        let text = document(&program).unwrap();
        let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back["name"], "shop");
        assert_eq!(back["runtime"], "yaml");
        assert_eq!(back["resources"]["bucket"]["properties"]["tags"], json!({ "on": "yes", "n": 1.5 }), "{text}");
        assert!(text.contains("\"on\"") || text.contains("'on'"), "words that YAML 1.1 reads as booleans are quoted: {text}");
    }
}
