//! Checks of the secrets of an installation: the kubeconfig of each function, and the keys of the
//! webhook.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Finding,
    tools::{Answer, Aws},
};

/// The functions that call clusters, each with its own kubeconfig.
const CALLERS: [&str; 5] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper"];

/// Secrets that are compared and never shown.
#[derive(Default)]
pub struct Keys(BTreeMap<String, Senders>);

/// The keys of one cluster.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Senders {
    /// One key for all senders, as in earlier releases.
    All(String),
    /// The key of each sender.
    Each(BTreeMap<String, String>),
}

impl Senders {
    /// The keys that Flux may use.
    fn of_flux(&self) -> Vec<&str> {
        let keys: Vec<_> = match self {
            Self::All(key) => vec![key],
            Self::Each(keys) => {
                let of_flux = |name: &str| name.split('/').next() == Some("flux");
                keys.iter().filter(|(name, _)| of_flux(name)).map(|(_, key)| key).collect()
            }
        };
        keys.into_iter().map(String::as_str).filter(|key| !key.is_empty()).collect()
    }
}

impl Keys {
    /// Returns whether it is a key of the cluster's Flux.
    #[must_use]
    pub fn is(&self, cluster: &str, key: &str) -> bool {
        self.0.get(cluster).is_some_and(|senders| senders.of_flux().contains(&key))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// How the functions reach a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// EKS: each function with its own role.
    Eks {
        /// The cluster's name in EKS.
        name: String,
        /// Its region; `None` for the installation's.
        region: Option<String>,
    },
    /// Any other cluster: with a user of the kubeconfig.
    Other,
}

/// The facts from the secrets of an installation.
#[derive(Default)]
pub(crate) struct Secrets {
    /// How the functions reach each cluster.
    pub access: BTreeMap<String, Access>,
    /// The keys of the webhook, by cluster; empty without a webhook.
    pub keys: Keys,
}

/// Checks the secrets of an installation that serves these clusters, and returns what the other
/// checks need of them.
pub(crate) fn secrets(
    aws: &Aws,
    parameters: &BTreeMap<String, String>,
    clusters: &[String],
    has_webhook: bool,
) -> (Vec<Finding>, Secrets) {
    let read = |name: &str| {
        let arguments = ["secretsmanager", "get-secret-value", "--secret-id", name, "--query", "SecretString"];
        aws.json(&arguments).map(|value| value.as_str().unwrap_or_default().to_owned())
    };
    let (mut findings, mut found) = (Vec::new(), Secrets::default());
    if let Some(name) = parameters.get("KubeconfigSecret") {
        let mut kubeconfigs = Vec::new();
        for function in CALLERS {
            let name = format!("{name}/{function}");
            let parsed = read(&name).and_then(|text| serde_saphyr::from_str(&text).map_err(|_| "it is not YAML".to_owned()));
            let (more, access) = kubeconfig(&name, &parsed, clusters);
            findings.extend(more);
            found.access.extend(access);
            kubeconfigs.extend(parsed);
        }
        findings.extend(shared_credentials(name, &kubeconfigs, clusters));
    }
    if let Some(name) = parameters.get("WebhookKeysSecret").filter(|_| has_webhook) {
        let keys = read(name)
            .and_then(|text| serde_json::from_str(&text).map_err(|_| "it is not a JSON object of clusters and keys".to_owned()));
        findings.extend(webhook_keys(name, keys.as_ref(), clusters));
        found.keys = Keys(keys.unwrap_or_default());
    }
    (findings, found)
}

/// Checks that the kubeconfig has each cluster, and reads how the functions reach it.
#[must_use]
pub fn kubeconfig(secret: &str, kubeconfig: &Answer, clusters: &[String]) -> (Vec<Finding>, BTreeMap<String, Access>) {
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        Err(why) => {
            let what = format!("secret {secret}: cannot use the kubeconfig");
            return (vec![Finding::fail(what, why, "run make deploy KUBECONFIG_FILE=…")], BTreeMap::new());
        }
    };
    let named = |list: &str, name: &Value| {
        kubeconfig[list].as_array().into_iter().flatten().find(|entry| entry["name"] == *name).cloned()
    };
    let (mut findings, mut access) = (Vec::new(), BTreeMap::new());
    for cluster in clusters {
        let context = named("contexts", &cluster.as_str().into()).map(|context| context["context"].clone());
        let Some(context) = context else {
            findings.push(Finding::fail(
                format!("secret {secret}: no context {cluster}"),
                "ClusterNames names it, but none of its Stacks is reconciled",
                "run make deploy KUBECONFIG_FILE=… with a context of that name",
            ));
            continue;
        };
        let server = named("clusters", &context["cluster"]).map(|cluster| cluster["cluster"].clone());
        let server = server.filter(|server| server["server"].is_string());
        let Some((user, server)) = named("users", &context["user"]).map(|user| user["user"].clone()).zip(server) else {
            findings.push(Finding::fail(
                format!("secret {secret}: context {cluster} is incomplete"),
                "its cluster or its user is not in the kubeconfig, or the cluster has no server",
                "run make deploy KUBECONFIG_FILE=…",
            ));
            continue;
        };
        findings.extend(encryption(secret, cluster, &server));
        let (finding, way) = user_of(secret, cluster, &user);
        findings.push(finding);
        access.extend(way.map(|way| (cluster.clone(), way)));
    }
    (findings, access)
}

/// Checks that credentials and Secrets are encrypted on the way to an API server.
fn encryption(secret: &str, cluster: &str, server: &Value) -> Option<Finding> {
    let url = server["server"].as_str().unwrap_or_default();
    if url.starts_with("http://") && !url.starts_with("http://127.") && !url.starts_with("http://[::1]") {
        return Some(Finding::fail(
            format!("secret {secret}: the server of {cluster} is not https"),
            "the functions refuse it, because it would receive credentials in clear text",
            "run make deploy KUBECONFIG_FILE=… with an https server",
        ));
    }
    (server["insecure-skip-tls-verify"] == true).then(|| {
        Finding::warn(
            format!("secret {secret}: cluster {cluster} has insecure-skip-tls-verify"),
            "an attacker on the network can impersonate the API server",
            "run make deploy KUBECONFIG_FILE=… with certificate-authority-data instead",
        )
    })
}

/// The clusters for which several functions have the same credential.
#[must_use]
pub fn shared_credentials(secret: &str, kubeconfigs: &[Value], clusters: &[String]) -> Option<Finding> {
    let named = |kubeconfig: &Value, list: &str, name: &Value| {
        kubeconfig[list].as_array().into_iter().flatten().find(|entry| entry["name"] == *name).cloned()
    };
    let is_shared = |cluster: &&String| {
        let users = kubeconfigs.iter().filter_map(|kubeconfig| {
            let context = named(kubeconfig, "contexts", &cluster.as_str().into())?;
            let user = named(kubeconfig, "users", &context["context"]["user"])?["user"].take();
            // An EKS cluster gets the function's own role.
            user["exec"].is_null().then(|| [&user["token"], &user["client-certificate-data"]].map(ToString::to_string))
        });
        let users: Vec<_> = users.collect();
        users.iter().collect::<BTreeSet<_>>().len() < users.len()
    };
    let shared: Vec<_> = clusters.iter().filter(is_shared).map(String::as_str).collect();
    (!shared.is_empty()).then(|| {
        Finding::warn(
            format!("secrets {secret}/…: several functions share one credential for {}", shared.join(", ")),
            "the fetcher, which reads untrusted content, has the rights of the launcher there",
            "give each function its own ServiceAccount (docs/clusters.md)",
        )
    })
}

fn user_of(secret: &str, cluster: &str, user: &Value) -> (Finding, Option<Access>) {
    let arguments: Vec<_> = user["exec"]["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let after = |name: &str| {
        let position = arguments.iter().position(|argument| *argument == name)?;
        arguments.get(position + 1).map(|value| (*value).to_owned())
    };
    let command = user["exec"]["command"].as_str().map(|command| command.rsplit('/').next().unwrap_or_default());
    match (command, after("--cluster-name")) {
        (Some("aws"), Some(name)) if arguments.contains(&"get-token") => {
            let what = format!("secret {secret}: cluster {cluster} is the EKS cluster {name}");
            (Finding::ok(what), Some(Access::Eks { name, region: after("--region") }))
        }
        (Some(command), _) => (
            Finding::fail(
                format!("secret {secret}: cannot use the user of {cluster}"),
                format!("it runs {command}, which a function does not have"),
                "use a user that `aws eks update-kubeconfig` writes, a token, or a client certificate",
            ),
            None,
        ),
        (None, _) if ["token", "client-certificate-data"].iter().any(|field| user[field].is_string()) => {
            (Finding::ok(format!("secret {secret}: cluster {cluster} has a token or a client certificate")), Some(Access::Other))
        }
        (None, _) => (
            Finding::fail(
                format!("secret {secret}: cannot use the user of {cluster}"),
                "it has neither a token nor a client certificate",
                "put the files into the kubeconfig with kubectl config view --raw --flatten, then run make deploy \
                 KUBECONFIG_FILE=…",
            ),
            None,
        ),
    }
}

/// Checks that the Flux of each cluster has a key that it shares with no other sender.
#[must_use]
pub fn webhook_keys(secret: &str, keys: Result<&BTreeMap<String, Senders>, &String>, clusters: &[String]) -> Vec<Finding> {
    let keys = match keys {
        Ok(keys) => keys,
        Err(why) => {
            let what = format!("secret {secret}: cannot use the keys of the webhook");
            return vec![Finding::fail(what, why.as_str(), "make deploy")];
        }
    };
    let those = |which: &dyn Fn(Option<&Senders>) -> bool| {
        let chosen: Vec<_> = clusters.iter().filter(|name| which(keys.get(*name))).map(String::as_str).collect();
        Some(chosen.join(", ")).filter(|names| !names.is_empty())
    };
    let mut findings = Vec::new();
    findings.push(match those(&|senders| senders.is_none_or(|senders| senders.of_flux().is_empty())) {
        None => Finding::ok(format!("secret {secret}: has a key for each cluster")),
        Some(names) => Finding::fail(
            format!("secret {secret}: no key for {names}"),
            "the webhook refuses notifications of these clusters",
            "run make deploy, which creates one",
        ),
    });
    findings.extend(those(&|senders| matches!(senders, Some(Senders::All(key)) if !key.is_empty())).map(|names| {
        Finding::warn(
            format!("secret {secret}: one key for all senders of {names}"),
            "each sender, such as a git host, can send notifications as Flux",
            "give each sender a key of its own (docs/notifications.md)",
        )
    }));
    findings
}
