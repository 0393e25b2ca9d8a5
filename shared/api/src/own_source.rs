//! The source that a Workspace names itself. A Stack's Workspace runs the Stack's source instead.

use std::fmt;

use driftless_core::{KeySelector, hash};
use kube::ResourceExt as _;

use crate::{FluxArtifact, Workspace, WorkspaceGit, WorkspaceGitAuth};

/// The fields that name a source.
const FIELDS: &str = "spec.git, spec.flux and spec.projectInfo";

/// The source for the runs of a Workspace. No field of it is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OwnSource<'a> {
    /// `spec.git`
    Git {
        /// `url`
        url: &'a str,
        /// `ref`: a branch, a tag, a full ref, or a commit by its full id; `HEAD`, the default
        /// branch, if absent.
        reference: &'a str,
        /// `auth`: at most one form of credential.
        auth: Option<&'a WorkspaceGitAuth>,
        /// `dir`, as a path within the tree; empty for its root.
        dir: &'a str,
    },
    /// `spec.flux`
    Flux {
        /// `url`
        url: &'a str,
        /// `digest`, which may be invalid.
        digest: &'a str,
        /// Like that of git.
        dir: &'a str,
    },
}

impl Workspace {
    /// Returns whether it belongs to a Stack.
    #[must_use]
    pub fn is_stacks(&self) -> bool {
        self.owner_references().iter().any(|owner| owner.kind == "Stack")
    }

    /// The source that is fetched for its runs. `None` if it belongs to a Stack, names the tree of
    /// a Stack, or is a project without a program. An error names the field, its value and the
    /// remedy.
    pub fn own_source(&self) -> Result<Option<OwnSource<'_>>, String> {
        let spec = &self.spec;
        if self.is_stacks() || spec.driftless.as_ref().is_some_and(|ours| ours.tree.is_some()) {
            return Ok(None);
        }
        if spec.local.is_some() {
            return Err(format!("spec.local has no meaning on Fargate; remove it, and set one of {FIELDS}"));
        }
        match (&spec.git, &spec.flux, &spec.project_info) {
            (None, None, None) => Err(format!("no source; set one of {FIELDS}, or name the Workspace of a Stack that has run")),
            (None, None, Some(_)) => Ok(None),
            (Some(git), None, None) => git.source().map(Some),
            (None, Some(flux), None) => flux.source().map(Some),
            (git, flux, project) => {
                let fields = [("git", git.is_some()), ("flux", flux.is_some()), ("projectInfo", project.is_some())];
                let set: Vec<_> = fields.iter().filter(|(_, set)| *set).map(|(field, _)| format!("spec.{field}")).collect();
                Err(format!("more than one source: {}; keep one", set.join(" and ")))
            }
        }
    }
}

impl WorkspaceGit {
    fn source(&self) -> Result<OwnSource<'_>, String> {
        let url = given("spec.git.url", self.url.as_deref(), "write the URL of the repository")?;
        let reference = self.r#ref.as_deref().map(str::trim).filter(|name| !name.is_empty()).unwrap_or("HEAD");
        let auth = self.auth.as_ref();
        if let Some(auth) = auth {
            auth.check()?;
        }
        Ok(OwnSource::Git { url, reference, auth, dir: dir("spec.git.dir", self.dir.as_deref())? })
    }
}

impl WorkspaceGitAuth {
    /// As in PKO, one form of credential is allowed; the password belongs to the user or to the
    /// key.
    fn check(&self) -> Result<(), String> {
        let Self { github_app, password, ssh_private_key, token, username } = self;
        let forms = [
            ("githubApp", github_app.is_some()),
            ("sshPrivateKey", ssh_private_key.is_some()),
            ("token", token.is_some()),
            ("username", username.is_some()),
        ];
        let set: Vec<_> = forms.iter().filter(|(_, set)| *set).map(|(form, _)| *form).collect();
        match (set.as_slice(), password) {
            ([_, _, ..], _) => Err(format!("more than one form of spec.git.auth: {}; keep one", set.join(" and "))),
            (["username"], None) => Err("spec.git.auth.username requires spec.git.auth.password".into()),
            ([] | ["githubApp" | "token"], Some(KeySelector { .. })) => {
                Err("spec.git.auth.password requires username or sshPrivateKey".into())
            }
            _ => Ok(()),
        }
    }
}

impl FluxArtifact {
    fn source(&self) -> Result<OwnSource<'_>, String> {
        let url =
            given("spec.flux.url", self.url.as_deref(), "write the status.artifact.url of a Flux source of this namespace")?;
        let remedy = "write the status.artifact.digest of the Flux source, such as sha256:…";
        let digest = given("spec.flux.digest", self.digest.as_deref(), remedy)?;
        Ok(OwnSource::Flux { url, digest, dir: dir("spec.flux.dir", self.dir.as_deref())? })
    }
}

fn given<'a>(field: &str, value: Option<&'a str>, remedy: &str) -> Result<&'a str, String> {
    value.map(str::trim).filter(|value| !value.is_empty()).ok_or_else(|| format!("{field} is missing; {remedy}"))
}

fn dir<'a>(field: &str, value: Option<&'a str>) -> Result<&'a str, String> {
    let dir = value.unwrap_or_default();
    if dir.split('/').any(|part| part == "..") {
        return Err(format!("{field} is {dir:?}, which leaves the source; remove every \"..\""));
    }
    Ok(dir.trim_start_matches("./").trim_matches('/'))
}

impl OwnSource<'_> {
    /// Changes with every field that affects what is fetched and how, or what is refused.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let fields = match self {
            Self::Git { url, reference, auth, dir } => serde_json::json!(["git", url, reference, auth, dir]),
            Self::Flux { url, digest, .. } => serde_json::json!(["flux", url, digest]),
        };
        hash(&[&fields.to_string()])
    }

    /// The project's directory within the tree; empty for its root.
    #[must_use]
    pub fn dir(&self) -> &str {
        match self {
            Self::Git { dir, .. } | Self::Flux { dir, .. } => dir,
        }
    }

    /// Returns whether it names something that can change: a branch, or a tag.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        match self {
            Self::Git { reference, .. } => reference.len() != 40 || !reference.bytes().all(|c| c.is_ascii_hexdigit()),
            Self::Flux { .. } => false,
        }
    }
}

/// As text for a condition, without the URL, which may contain a password.
impl fmt::Display for OwnSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Git { reference, .. } => write!(f, "spec.git at {reference}"),
            Self::Flux { digest, .. } => write!(f, "spec.flux at {digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workspace(owner: &str, spec: &Value) -> Workspace {
        let owner = json!({ "apiVersion": "x/v1", "kind": owner, "name": "s", "uid": "u" });
        let metadata = json!({ "name": "w", "namespace": "n", "ownerReferences": [owner] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    #[test]
    fn invalid_source_names_field_and_remedy() {
        let key = json!({ "name": "s", "key": "k" });
        let auth = |auth: Value| json!({ "git": { "url": "u", "ref": "main", "auth": auth } });
        for (spec, words) in [
            (json!({}), "no source; set one of spec.git, spec.flux and spec.projectInfo"),
            (json!({ "local": { "dir": "/app" } }), "spec.local has no meaning on Fargate; remove it"),
            (json!({ "git": { "url": "u" }, "flux": { "url": "u" } }), "more than one source: spec.git and spec.flux; keep one"),
            (
                json!({ "git": {}, "projectInfo": { "name": "a", "runtime": "b" } }),
                "more than one source: spec.git and spec.projectInfo; keep one",
            ),
            (json!({ "git": { "ref": "main" } }), "spec.git.url is missing; write the URL"),
            (
                json!({ "git": { "url": "u", "ref": "main", "dir": "a/../.." } }),
                "spec.git.dir is \"a/../..\", which leaves the source",
            ),
            (auth(json!({ "token": key, "sshPrivateKey": key })), "more than one form of spec.git.auth: "),
            (auth(json!({ "username": key })), "spec.git.auth.username requires"),
            (auth(json!({ "password": key })), "spec.git.auth.password requires username or sshPrivateKey"),
            (auth(json!({ "token": key, "password": key })), "spec.git.auth.password requires username or sshPrivateKey"),
            (json!({ "flux": { "digest": "sha256:0" } }), "spec.flux.url is missing"),
            (json!({ "flux": { "url": "u" } }), "spec.flux.digest is missing"),
        ] {
            let workspace = workspace("Other", &spec);
            let found = workspace.own_source().unwrap_err();
            assert!(found.starts_with(words), "{found}");
        }
    }

    #[test]
    fn stack_source_is_not_the_own_source_of_its_workspace() {
        let git = json!({ "git": { "url": "u" } });
        assert_eq!(workspace("Stack", &git).own_source(), Ok(None));
        let tree = json!({ "driftless": { "tree": { "digest": "sha256:0" } }, "local": {} });
        assert_eq!(workspace("Other", &tree).own_source(), Ok(None));
        assert_eq!(workspace("Other", &json!({ "projectInfo": { "name": "a", "runtime": "b" } })).own_source(), Ok(None));
    }

    #[test]
    fn fingerprint_covers_what_is_fetched() {
        let of = |spec: &Value| {
            let workspace = workspace("Other", spec);
            let source = workspace.own_source().unwrap().unwrap();
            (source.fingerprint(), source.dir().to_owned(), source.is_followed())
        };
        let base = json!({ "git": { "url": "u", "ref": "main", "dir": "./a/" } });
        let (first, dir, followed) = of(&base);
        assert_eq!((dir.as_str(), followed), ("a", true));
        let with = |git: Value| of(&driftless_core::merge(base.clone(), &json!({ "git": git })));
        assert_eq!(with(json!({ "dir": "a/", "shallow": true })).0, first);
        let default = with(json!({ "ref": null }));
        assert_eq!((default.0, default.2), (with(json!({ "ref": "HEAD" })).0, true));
        let key = json!({ "name": "s", "key": "k" });
        for other in
            [json!({ "url": "v" }), json!({ "ref": "other" }), json!({ "dir": "b" }), json!({ "auth": { "token": key } })]
        {
            assert_ne!(with(other.clone()).0, first, "{other}");
        }
        assert!(!with(json!({ "ref": "0123456789abcdef0123456789abcdef01234567" })).2);
        let flux = of(&json!({ "flux": { "url": "u", "digest": "main" } }));
        assert!(flux.0 != first && !flux.2);
    }
}
