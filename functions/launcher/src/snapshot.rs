//! The snapshot in an Update: its Workspace, and its tree or project.

use driftless_api::{DriftlessUpdate, ObjectReference, Tree, WorkspaceSpec};
use driftless_contract::{ArtifactDigest, ProjectInfo};
use driftless_core::{invalid_digest, invalid_object};

use crate::Settings;

/// The field of an Update with the Workspace of its own snapshot.
pub(crate) const OWN_WORKSPACE: &str = "spec.driftless.workspace";

pub(crate) fn own_workspace(ours: &DriftlessUpdate) -> Result<WorkspaceSpec, String> {
    let Some(workspace) = ours.workspace.clone() else {
        let remedy = "write the spec of a Workspace, or replace spec.driftless by spec.workspaceName";
        return Err(format!("{OWN_WORKSPACE} is missing; {remedy}"));
    };
    serde_json::from_value(workspace).map_err(|error| format!("{OWN_WORKSPACE}: {error}"))
}

/// Why no run can have this snapshot, which a user wrote into an Update. The Update's spec is
/// immutable by then.
pub(crate) fn check_own(settings: &Settings, ours: &DriftlessUpdate) -> Result<(), String> {
    let workspace = own_workspace(ours)?;
    let task = workspace.task(OWN_WORKSPACE);
    settings.pod_fields.check(&task.pod_only())?;
    task.shape(settings.default_size)?;
    task.mounted_files()?;
    match &ours.tree {
        Some(tree) => source_of(tree).map(drop),
        None => project_alone(&workspace).map(drop),
    }
}

/// The project of a workspace without a source.
pub(crate) fn project_alone(workspace: &WorkspaceSpec) -> Result<ProjectInfo, String> {
    let info = workspace.project_info.as_ref().filter(|info| !info.name.is_empty() && !info.runtime.is_empty());
    info.map(|info| ProjectInfo { name: info.name.clone(), runtime: info.runtime.clone() }).ok_or_else(|| {
        "Workspace has neither a stored source nor projectInfo with a name and a runtime; set projectInfo, or name a Workspace \
         with a source"
            .into()
    })
}

/// The object and the digest that a tree is stored under.
pub(crate) fn source_of(tree: &Tree) -> Result<(&ObjectReference, ArtifactDigest), String> {
    let (Some(source), Some(digest)) = (&tree.source, &tree.digest) else {
        return Err("spec.driftless.tree requires source and digest".into());
    };
    let digest = ArtifactDigest::from(digest);
    let wrong = invalid_object("spec.driftless.tree.source", &source.api_version, &source.kind, &source.name)
        .or_else(|| invalid_digest("spec.driftless.tree.digest", &digest));
    wrong.map_or(Ok((source, digest)), Err)
}
