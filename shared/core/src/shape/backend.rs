//! Whether a backend outlives the runs that use it.

use std::path::Path;

use super::{DefaultSize, SHARE, TaskFields};

/// Directories on a task's own disk, besides the volumes of its Workspace.
const TASK_DIRECTORIES: [&str; 2] = [SHARE, "/tmp"];

impl TaskFields<'_> {
    /// Returns the URL of the backend if it is a path on the disk of a task, which is lost with its
    /// run.
    #[must_use]
    pub fn task_backend(&self) -> Option<String> {
        let (_, env) = self.environment().ok()?;
        let url = env.into_iter().rfind(|var| var.name == "PULUMI_BACKEND_URL")?.value?;
        let path = url.strip_prefix("file://")?;
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let mounts = self.shape(DefaultSize::default()).ok()?.mounts;
        let mut directories = mounts.iter().map(|mount| mount.path.as_str()).chain(TASK_DIRECTORIES);
        // Any other path is below the home or the project of the run.
        let is_below = !path.starts_with('/') || directories.any(|directory| Path::new(path).starts_with(directory));
        is_below.then(|| url.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{merge, shape::testing::WorkspaceSpec};

    fn task_backend(spec: Value) -> Option<String> {
        serde_json::from_value::<WorkspaceSpec>(spec).unwrap().task_backend("spec")
    }

    #[test]
    fn files_on_the_disk_of_a_task_are_known_by_their_path() {
        let mounts = json!([{ "name": "state", "mountPath": "/state/" }, { "name": "empty", "mountPath": "/empty" }]);
        for (url, expected) in [
            ("file:///state", true),
            ("file:///state/a?no_tmp_dir=true", true),
            ("file:///empty/a", true),
            ("file:///tmp/state", true),
            ("file:///share/state", true),
            ("file://~", true),
            ("file://.", true),
            ("file:///stateful", false),
            ("file:///mnt/state", false),
            ("s3://state", false),
            ("https://api.pulumi.com", false),
        ] {
            let volumes = json!([{ "name": "state", "secret": { "secretName": "s" } }, { "name": "empty", "emptyDir": {} }]);
            let containers = json!([{ "name": "pulumi", "volumeMounts": mounts }]);
            let pod = json!({ "podTemplate": { "spec": { "volumes": volumes, "containers": containers } } });
            let env = json!({ "env": [{ "name": "PULUMI_BACKEND_URL", "value": url }] });
            assert_eq!(task_backend(merge(pod, &env)).as_deref(), expected.then_some(url));
        }
    }

    #[test]
    fn backend_from_a_secret_is_not_validated() {
        let of_secret = json!({ "name": "PULUMI_BACKEND_URL", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } });
        assert_eq!(task_backend(json!({ "env": [of_secret] })), None);
        assert_eq!(task_backend(json!({})), None);
    }
}
