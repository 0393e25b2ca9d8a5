//! The spec of a Workspace as JSON has it.

use serde::Deserialize;
use serde_json::Value;

use super::{DefaultSize, MountedFiles, TaskFields, TaskShape};
use crate::{EmbeddedMetadata, EnvFromSource, EnvVar, ResourceRequirements};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WorkspaceSpec {
    git: Option<Value>,
    flux: Option<Value>,
    local: Option<Value>,
    image: Option<String>,
    image_pull_policy: Option<String>,
    resources: Option<ResourceRequirements>,
    env: Vec<EnvVar>,
    env_from: Vec<EnvFromSource>,
    pod_template: Template,
    service_template: Template,
    pulumi_log_level: Option<i32>,
    security_profile: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: Option<EmbeddedMetadata>,
    spec: Value,
}

impl WorkspaceSpec {
    fn fields<'a>(&'a self, at: &'a str) -> TaskFields<'a> {
        let sources = [("git", &self.git), ("flux", &self.flux), ("local", &self.local)];
        TaskFields {
            at,
            source: sources.into_iter().find(|(_, source)| source.is_some()).map(|(field, _)| field),
            image: self.image.as_deref(),
            image_pull_policy: self.image_pull_policy.as_deref(),
            resources: self.resources.as_ref(),
            env: &self.env,
            env_from: &self.env_from,
            pod: &self.pod_template.spec,
            pod_metadata: self.pod_template.metadata.as_ref(),
            service_metadata: self.service_template.metadata.as_ref(),
            log_level: self.pulumi_log_level,
            security_profile: self.security_profile.as_deref(),
        }
    }

    pub(super) fn shape(&self, at: &str, default: DefaultSize) -> Result<TaskShape, String> {
        self.fields(at).shape(default)
    }

    pub(super) fn environment(&self, at: &str) -> Result<(Vec<EnvFromSource>, Vec<EnvVar>), String> {
        self.fields(at).environment()
    }

    pub(super) fn mounted_files(&self, at: &str) -> Result<Vec<MountedFiles>, String> {
        self.fields(at).mounted_files()
    }

    pub(super) fn pod_only(&self, at: &str) -> Vec<String> {
        self.fields(at).pod_only()
    }

    pub(super) fn task_backend(&self, at: &str) -> Option<String> {
        self.fields(at).task_backend()
    }
}
