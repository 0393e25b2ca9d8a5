use crate::{GitSource, MAX_PREREQUISITES, ResourceRef, SourceRef, Stack, paths};

/// Why a spec is invalid: the field, its value and the remedy. `None` if it can be run. Errors in
/// its source are ignored where no source is needed.
#[must_use]
pub fn invalid_spec(stack: &Stack, needs_source: bool) -> Option<String> {
    let spec = &stack.spec;
    if spec.stack.trim().is_empty() {
        return Some("spec.stack is empty; name the Pulumi stack as STACK, ORG/STACK or ORG/PROJECT/STACK".into());
    }
    if spec.refused.is_some() {
        return spec.refused.clone();
    }
    match spec.sources.as_slice() {
        _ if !needs_source => None,
        [] => Some("no source; set one of spec.programRef, spec.fluxSource and spec.projectRepo".into()),
        [SourceRef::Git(git)] => invalid_git(git),
        [SourceRef::Flux { api_version, .. }] if !valid_api_version(api_version) => Some(format!(
            "cannot process source reference: spec.fluxSource.sourceRef.apiVersion is {api_version:?}; write GROUP/VERSION, such as \
             source.toolkit.fluxcd.io/v1"
        )),
        [_] => None,
        several => {
            let fields: Vec<_> = several.iter().map(SourceRef::field).collect();
            Some(format!("more than one source: {}; keep one", fields.join(", ")))
        }
    }
    .or_else(|| invalid_dir(spec.sources.first().filter(|_| needs_source)?))
    .or_else(|| {
        let path = paths::invalid(stack)?;
        Some(format!("annotation driftless.dev/paths has {path:?}; list directories within the source, separated by commas"))
    })
    .or_else(|| spec.env_refs.iter().find_map(|(key, reference)| {
        let why = invalid_reference(reference, &stack.namespace)?;
        Some(format!("resolving env variable reference for {key:?}: {why}"))
    }))
    .or_else(|| spec.secrets_ref.iter().find_map(|(key, reference)| {
        let why = invalid_reference(reference, &stack.namespace)?;
        Some(format!("failed to set stack config: updating secretRef for {key:?}: {why}"))
    }))
    .or_else(|| {
        let count = Some(spec.prerequisites.len()).filter(|count| !stack.deleting && *count > MAX_PREREQUISITES)?;
        Some(format!(
            "spec.prerequisites has {count} entries, the maximum is {MAX_PREREQUISITES}; chain Stacks instead"
        ))
    })
    .or_else(|| duplicate_config(stack))
    .or_else(|| duplicate_env(stack))
}

fn valid_api_version(api_version: &str) -> bool {
    matches!(api_version.split('/').collect::<Vec<_>>().as_slice(), [group, version] if !group.is_empty() && !version.is_empty())
}

fn invalid_dir(source: &SourceRef) -> Option<String> {
    let dir = source.dir();
    let field = if matches!(source, SourceRef::Git(_)) { "spec.repoDir" } else { "spec.fluxSource.dir" };
    dir.split('/').any(|part| part == "..").then(|| format!("{field} is {dir:?}, which leaves the source; remove every \"..\""))
}

/// PKO's messages come first.
fn invalid_git(git: &GitSource) -> Option<String> {
    let message = match (git.repo.trim(), git.branch.trim(), git.commit.trim()) {
        ("", ..) => r#"missing "projectRepo"; set spec.projectRepo to the repository's URL"#,
        (_, "", "") => r#"missing "commit" or "branch"; set one of spec.commit and spec.branch"#,
        (_, branch, commit) if !branch.is_empty() && !commit.is_empty() => {
            r#"only one of "commit" or "branch" should be specified; remove one of spec.commit and spec.branch"#
        }
        _ if git.auth_forms == Some(0) => {
            "gitAuth config must specify exactly one of 'personalAccessToken', 'sshPrivateKey', 'basicAuth', or 'githubApp': set one in \
             spec.gitAuth, or remove it"
        }
        _ => return None,
    };
    Some(message.into())
}

/// PKO's message where it has one. PKO only logs the last two.
fn invalid_reference(reference: &ResourceRef, namespace: &str) -> Option<String> {
    match (reference.selector.as_str(), &reference.secret, &reference.literal) {
        ("Secret", Some((Some(other), ..)), _) if !other.is_empty() && other != namespace => {
            Some("cross-namespace refs are not allowed".into())
        }
        ("Secret", Some(_), _) | ("Literal", _, Some(_)) => None,
        ("Secret", None, _) => Some("missing secret reference in ResourceRef; set secret.name and secret.key".into()),
        ("Literal", _, None) => Some("missing literal reference in ResourceRef; set literal.value".into()),
        ("Env" | "FS", ..) => Some(format!("ref type {:?} is deprecated", reference.selector)),
        (other, ..) => Some(format!("unsupported selector type: {other}; use Secret or Literal")),
    }
}

/// The same key in two fields: their precedence is not defined, so the user has to choose.
fn duplicate_config(stack: &Stack) -> Option<String> {
    let spec = &stack.spec;
    let fields: [(&str, Vec<&String>); 4] = [
        ("spec.config", spec.config.keys().collect()),
        ("spec.configRef", spec.config_ref.keys().collect()),
        ("spec.secrets", spec.secrets.keys().collect()),
        ("spec.secretsRef", spec.secrets_ref.keys().collect()),
    ];
    fields.iter().enumerate().find_map(|(i, (field, keys))| {
        let (other, key) =
            fields[i + 1..].iter().find_map(|(other, others)| Some((other, keys.iter().find(|key| others.contains(key))?)))?;
        Some(format!("config key {key:?} is in {field} and in {other}; keep one"))
    })
}

fn duplicate_env(stack: &Stack) -> Option<String> {
    let spec = &stack.spec;
    [
        ("PULUMI_BACKEND_URL", "spec.backend", spec.backend.is_some()),
        ("PULUMI_ACCESS_TOKEN", "spec.accessTokenSecret", spec.access_token_secret.is_some()),
    ]
    .into_iter()
    .find(|(name, _, set)| *set && spec.env_refs.contains_key(*name))
    .map(|(name, field, _)| format!("environment variable {name:?} is set by {field} and by spec.envRefs; keep one"))
}
