use serde_json::Value;

use crate::{EnvFromSource, EnvVar, EnvVarSource, KeySelector, ObjectSelector, ResourceRef, StackSpec};

/// The environment of a run, without secret values: the content of a Workspace object.
#[derive(Clone, Debug, PartialEq)]
pub struct Workspace {
    /// `spec.projectInfo`: name and runtime of a project without a source.
    pub project: Option<(String, String)>,
    /// `spec.serviceAccountName`
    pub service_account_name: Option<String>,
    /// `spec.env`, in order; each name once.
    pub env: Vec<EnvVar>,
    /// `spec.envFrom`, in order; a later one wins, and `env` wins over all.
    pub env_from: Vec<EnvFromSource>,
    /// `spec.stacks[0].name`
    pub stack: String,
    /// `spec.stacks[0].create`
    pub create: bool,
    /// `spec.stacks[0].secretsProvider`
    pub secrets_provider: Option<String>,
    /// `spec.stacks[0].config`, in order; each key once.
    pub config: Vec<ConfigItem>,
    /// `spec.stacks[0].environment`
    pub environment: Vec<String>,
}

/// A key of a Secret or ConfigMap in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRef {
    /// The object's name.
    pub name: String,
    /// The key.
    pub key: String,
}

/// A configuration value.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigItem {
    /// Its key.
    pub key: String,
    /// The source of its value.
    pub source: ConfigSource,
    /// It is stored encrypted.
    pub secret: bool,
}

/// The source of a configuration value.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigSource {
    /// An inline value.
    Value(Value),
    /// In a ConfigMap, as JSON if so marked.
    ConfigMap(KeyRef, bool),
    /// In a Secret.
    Secret(KeyRef),
}

/// The environment that a Stack's spec requests. The spec is valid; an invalid reference was
/// refused earlier and is left out here.
#[must_use]
pub fn workspace(spec: &StackSpec) -> Workspace {
    let backend = spec.backend.iter().map(|url| plain_var("PULUMI_BACKEND_URL", url.clone()));
    let token = spec
        .access_token_secret
        .iter()
        .map(|name| secret_var("PULUMI_ACCESS_TOKEN", KeyRef { name: name.clone(), key: "accessToken".into() }));
    let references = spec.env_refs.iter().filter_map(|(name, reference)| match resolve(reference)? {
        Resolved::Literal(value) => Some(plain_var(name, value)),
        Resolved::Secret(key) => Some(secret_var(name, key)),
    });
    let object = |name: &String| Some(ObjectSelector { name: name.clone(), optional: None });
    let plain = spec.config.iter().map(|(key, value)| item(key, ConfigSource::Value(value.clone()), false));
    let maps = spec.config_ref.iter().map(|(key, map)| {
        item(key, ConfigSource::ConfigMap(KeyRef { name: map.name.clone(), key: map.key.clone() }, map.json), false)
    });
    let secrets = spec.secrets.iter().map(|(key, value)| item(key, ConfigSource::Value(value.clone().into()), true));
    let secret_references = spec.secrets_ref.iter().filter_map(|(key, reference)| {
        let source = match resolve(reference)? {
            Resolved::Literal(value) => ConfigSource::Value(value.into()),
            Resolved::Secret(key) => ConfigSource::Secret(key),
        };
        Some(item(key, source, true))
    });
    Workspace {
        project: None,
        service_account_name: spec.service_account_name.clone(),
        env: backend.chain(token).chain(references).collect(),
        env_from: spec
            .envs
            .iter()
            .map(|name| EnvFromSource { config_map_ref: object(name), ..EnvFromSource::default() })
            .chain(spec.env_secrets.iter().map(|name| EnvFromSource { secret_ref: object(name), ..EnvFromSource::default() }))
            .collect(),
        stack: spec.stack.clone(),
        create: !spec.use_local_stack_only,
        secrets_provider: spec.secrets_provider.clone(),
        config: plain.chain(maps).chain(secrets).chain(secret_references).collect(),
        environment: spec.environment.clone(),
    }
}

fn plain_var(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value), value_from: None }
}

fn secret_var(name: &str, KeyRef { name: object, key }: KeyRef) -> EnvVar {
    let selector = KeySelector { key, name: object, optional: None };
    let from = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: name.into(), value: None, value_from: Some(from) }
}

fn item(key: &str, source: ConfigSource, secret: bool) -> ConfigItem {
    ConfigItem { key: key.into(), source, secret }
}

enum Resolved {
    Literal(String),
    Secret(KeyRef),
}

fn resolve(reference: &ResourceRef) -> Option<Resolved> {
    match reference.selector.as_str() {
        "Literal" => reference.literal.clone().map(Resolved::Literal),
        "Secret" => reference.secret.clone().map(|(_, name, key)| Resolved::Secret(KeyRef { name, key })),
        _ => None,
    }
}
