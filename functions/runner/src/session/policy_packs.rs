//! The policy packs that a preview or an update is held to.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use backon::Retryable;
use driftless_contract::{PROJECT_FILES, PlanRequest};
use serde_json::Value;

use super::Session;
use crate::{
    failure::Failure,
    hydrate::{HydrateError, hydrate},
    s3::back_off,
};

/// The file that makes a directory a policy pack.
const PACK: &str = "PulumiPolicy.yaml";

/// The variable with which Pulumi uses a process that runs already as the host of a language, which
/// runs the packs in it, too.
const ATTACHED: &str = "PULUMI_DEBUG_LANGUAGES";

/// The kinds of plugins that run policy packs.
const HOSTS: [&str; 2] = ["analyzers", "languages"];

impl Session<'_> {
    /// Writes the policy packs beside the program and returns their directories. Before each call
    /// of Pulumi, because the program or what its dependencies install may have written to them.
    pub(super) async fn policy_packs(&self, request: &PlanRequest) -> Result<Vec<PathBuf>, Failure> {
        let mut dirs = Vec::new();
        if let (Some(pack), Some(what)) = (request.packs.first(), self.replaces_hosts()) {
            return Err(Failure::unknown(format!("{what} can replace what runs {pack}; nothing was changed; remove it")));
        }
        for (number, pack) in request.packs.iter().enumerate() {
            let root = self.scratch.join("policies").join(number.to_string());
            let tree = self.folder.keys.policy_pack(number);
            let once = || hydrate(self.folder, &tree, &pack.dir, &[], &pack.manifest_sha256, &root);
            let written = async { once.retry(back_off()).when(HydrateError::passes).await.map_err(HydrateError::failure) };
            let failed =
                |failure: Failure| Failure { message: format!("{pack}: {}; nothing was changed", failure.message), ..failure };
            self.unless_stopped(async { written.await.map_err(failed) }).await?;
            let dir = root.join(&pack.dir);
            if !dir.join(PACK).is_file() {
                let at = if pack.dir.is_empty() { "its root".to_owned() } else { format!("{:?}", pack.dir) };
                return Err(Failure::unknown(format!(
                    "{pack}: the artifact has no {PACK} in {at}; nothing was changed; correct spec.policyPacks.dir of the PlanPolicy"
                )));
            }
            dirs.push(dir);
        }
        Ok(dirs)
    }

    /// What of the environment or the project makes Pulumi run policy packs by another program.
    fn replaces_hosts(&self) -> Option<String> {
        let is_attached = self.pulumi.environment.contains_key(OsStr::new(ATTACHED));
        is_attached.then(|| format!("environment variable {ATTACHED}")).or_else(|| own_hosts(&self.pulumi.dir))
    }
}

/// The part of a project that names plugins of its own that can run policy packs.
fn own_hosts(project: &Path) -> Option<String> {
    PROJECT_FILES.iter().find_map(|file| {
        let text = match fs::read_to_string(project.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            text => text.unwrap_or_default(),
        };
        let Ok(project) = serde_saphyr::from_str::<Value>(&text) else { return Some(format!("the unreadable {file}")) };
        // Pulumi ignores the case of keys in JSON.
        let part = |of: &Value, name: &str| {
            of.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, part)| part.clone())
        };
        let plugins = part(&project, "plugins")?;
        let own = HOSTS.iter().find(|kind| part(&plugins, kind).is_some())?;
        Some(format!("plugins.{own} of {file}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_that_brings_its_own_hosts_is_found() {
        let dir = std::env::temp_dir().join(format!("driftless-hosts-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(own_hosts(&dir), None);
        for (text, expected) in [
            ("name: p\nruntime: yaml\n", None),
            ("name: p\nplugins:\n  providers: [{ name: a, path: ./a }]\n", None),
            ("name: p\nplugins:\n  analyzers: [{ name: policy-x, path: ./x }]\n", Some("plugins.analyzers of Pulumi.yaml")),
            ("name: p\nplugins: &p\n  languages: [{ name: nodejs, path: ./x }]\n", Some("plugins.languages of Pulumi.yaml")),
            ("name: [", Some("the unreadable Pulumi.yaml")),
        ] {
            fs::write(dir.join("Pulumi.yaml"), text).unwrap();
            assert_eq!(own_hosts(&dir).as_deref(), expected, "{text}");
        }
        // Pulumi reads one of several files.
        fs::write(dir.join("Pulumi.yaml"), "name: p\n").unwrap();
        fs::write(dir.join("Pulumi.json"), r#"{"Plugins":{"Languages":[{"name":"python","path":"."}]}}"#).unwrap();
        assert_eq!(own_hosts(&dir).as_deref(), Some("plugins.languages of Pulumi.json"));
        fs::remove_dir_all(dir).unwrap();
    }
}
