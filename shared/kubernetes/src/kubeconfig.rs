//! Reads one cluster from a kubeconfig, without access to files and programs. No error repeats a
//! value that could be secret.

use kube::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster, NamedContext};
use secrecy::SecretString;

/// One context.
#[derive(Debug)]
pub struct Entry {
    /// The context itself.
    pub context: NamedContext,
    /// The cluster of the context.
    pub cluster: Cluster,
    /// The user of the context, without a program to run.
    pub user: AuthInfo,
    /// Set for a user of an EKS cluster.
    pub eks: Option<Eks>,
}

/// The parameters of `aws eks get-token`.
#[derive(Debug, PartialEq, Eq)]
pub struct Eks {
    /// The EKS cluster's name.
    pub cluster: String,
    /// Its Region, if the program gets one.
    pub region: Option<String>,
}

impl Entry {
    /// Reads the context with the name of the cluster.
    pub fn read(text: &str, name: &str) -> Result<Self, String> {
        let Kubeconfig { clusters, auth_infos, contexts, .. } =
            Kubeconfig::from_yaml(text).map_err(|error| unreadable(&error))?;
        let Some(context) = contexts.iter().find(|context| context.name == name).cloned() else {
            return Err(unknown(name, &contexts));
        };
        let place = |words: String| format!("context {name:?} of the kubeconfig: {words}");
        let lacking = |what: &str, name: &str| place(format!("{what} {name:?} not found"));
        let (cluster_name, user_name) = match &context.context {
            Some(context) => (context.cluster.as_str(), context.user.as_deref().unwrap_or_default()),
            None => return Err(lacking("cluster", "")),
        };
        let cluster = clusters.into_iter().find(|cluster| cluster.name == cluster_name).and_then(|cluster| cluster.cluster);
        let cluster = cluster.ok_or_else(|| lacking("cluster", cluster_name))?;
        let user = auth_infos.into_iter().find(|user| user.name == user_name).and_then(|user| user.auth_info);
        let mut user = user.ok_or_else(|| lacking("user", user_name))?;
        usable(&cluster, &user).map_err(place)?;
        let eks = user.exec.take().map(|exec| eks(&exec)).transpose().map_err(place)?;
        Ok(Self { context, cluster, user, eks })
    }

    /// A kubeconfig with this context only. `token` is for an EKS cluster.
    #[must_use]
    pub fn into_kubeconfig(self, token: Option<SecretString>) -> Kubeconfig {
        let Self { context, cluster, mut user, .. } = self;
        user.token = token.or(user.token);
        let names = context.context.clone().unwrap_or_default();
        Kubeconfig {
            clusters: vec![NamedCluster { name: names.cluster, cluster: Some(cluster), ..NamedCluster::default() }],
            auth_infos: vec![NamedAuthInfo {
                name: names.user.unwrap_or_default(),
                auth_info: Some(user),
                ..NamedAuthInfo::default()
            }],
            current_context: Some(context.name.clone()),
            contexts: vec![context],
            ..Kubeconfig::default()
        }
    }
}

/// The parser's own message quotes the text around the error.
fn unreadable(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| format!(", at line {} and column {}", at.line(), at.column()));
            format!("kubeconfig is not valid YAML{}", place.unwrap_or_default())
        }
        other => other.to_string(),
    }
}

fn unknown(name: &str, contexts: &[NamedContext]) -> String {
    let known: Vec<_> = contexts.iter().map(|context| context.name.as_str()).collect();
    format!("cluster {name:?} not found; the contexts of the kubeconfig are {}", known.join(", "))
}

/// Refuses settings that need a file, a plugin or a proxy, or that would send credentials in clear
/// text.
fn usable(cluster: &Cluster, user: &AuthInfo) -> Result<(), String> {
    let server: Option<http::Uri> = cluster.server.as_deref().and_then(|server| server.parse().ok());
    if server.is_some_and(|server| server.scheme_str() == Some("http") && !is_this_machine(&server)) {
        return Err("server begins with http://, which sends credentials in clear text; use https://".into());
    }
    let files = [
        ("certificate-authority", &cluster.certificate_authority, cluster.certificate_authority_data.is_some()),
        ("client-certificate", &user.client_certificate, user.client_certificate_data.is_some()),
        ("client-key", &user.client_key, user.client_key_data.is_some()),
        ("tokenFile", &user.token_file, user.token.is_some()),
    ];
    for (field, path, inline) in files {
        if path.is_some() && !inline {
            let instead = if field == "tokenFile" { "token".to_owned() } else { format!("{field}-data") };
            return Err(format!(
                "{field} names a file, which a function does not have; set {instead}, as `kubectl config view --flatten` does"
            ));
        }
    }
    let fields = [("auth-provider", user.auth_provider.is_some()), ("proxy-url", cluster.proxy_url.is_some())];
    match fields.into_iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => Err(format!("{field} is not supported; remove it, and use the token of a ServiceAccount")),
        None => Ok(()),
    }
}

/// Traffic to a loopback address stays on the machine, and so needs no TLS.
fn is_this_machine(server: &http::Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The EKS cluster of the program's token. `env`, such as the author's AWS profile, has no meaning
/// here.
fn eks(exec: &ExecConfig) -> Result<Eks, String> {
    let command = exec.command.as_deref().unwrap_or_default();
    let verb: &[&str] = match command.rsplit(['/', '\\']).next().map(|name| name.trim_end_matches(".exe")) {
        Some("aws") => &["eks", "get-token"],
        Some("aws-iam-authenticator") => &["token"],
        _ => {
            return Err(format!(
                "its user runs {command:?}, but functions support only `aws eks get-token` and `aws-iam-authenticator token`; \
                 use the token of a ServiceAccount"
            ));
        }
    };
    let (mut words, mut cluster, mut region) = (Vec::new(), None, None);
    let mut arguments = exec.args.iter().flatten().map(String::as_str);
    while let Some(argument) = arguments.next() {
        if !argument.starts_with('-') {
            words.push(argument);
            continue;
        }
        let (option, value) = match argument.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (argument, arguments.next()),
        };
        match option {
            "--cluster-name" | "--cluster-id" | "-i" => cluster = value.map(ToOwned::to_owned),
            "--region" => region = value.map(ToOwned::to_owned),
            "--output" => {}
            "--role-arn" | "--role" | "-r" => {
                return Err(format!(
                    "{command:?} assumes a role ({option}), but a function uses its own role; remove the option, and add \
                     access entries for the roles of the functions"
                ));
            }
            _ => return Err(format!("{command:?} has the option {option}, which is not supported; remove it")),
        }
    }
    match cluster {
        Some(cluster) if words == verb => Ok(Eks { cluster, region }),
        Some(_) => Err(format!("{command:?} runs another command than `{}`, which is the only supported one", verb.join(" "))),
        None => Err(format!("{command:?} names no cluster; add --cluster-name")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(cluster: &Value, user: &Value) -> Result<Entry, String> {
        let text = json!({
            "clusters": [{ "name": "other", "cluster": {} }, { "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "shop", "context": { "cluster": "c", "user": "u" } }],
        });
        Entry::read(&text.to_string(), "shop")
    }

    fn exec(command: &str, arguments: &str) -> Result<Eks, String> {
        let arguments: Vec<_> = arguments.split(' ').collect();
        let user = json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": command, "args": arguments,
            "env": [{ "name": "AWS_PROFILE", "value": "mine" }], "interactiveMode": "IfAvailable", "provideClusterInfo": false,
        } });
        let entry = read(&json!({ "server": "https://c" }), &user)?;
        assert!(entry.user.exec.is_none(), "kube would run it");
        Ok(entry.eks.unwrap())
    }

    #[test]
    fn eks_exec_plugins_name_cluster_and_region() {
        for (command, arguments, cluster, region) in [
            ("aws", "--region eu-west-1 eks get-token --cluster-name a --output json", "a", Some("eu-west-1")),
            ("/usr/local/bin/aws", "eks get-token --cluster-name a", "a", None),
            ("C:\\Programs\\aws.exe", "eks get-token --cluster-name=a --region=eu-west-1", "a", Some("eu-west-1")),
            ("aws", "eks get-token --cluster-id 1-2-3", "1-2-3", None),
            ("aws-iam-authenticator", "token -i a", "a", None),
            ("/opt/aws-iam-authenticator", "token --cluster-id a --region eu-west-1", "a", Some("eu-west-1")),
        ] {
            let expected = Eks { cluster: cluster.into(), region: region.map(Into::into) };
            assert_eq!(exec(command, arguments), Ok(expected), "{command} {arguments}");
        }
    }

    #[test]
    fn unsupported_exec_plugin_is_refused_without_its_values() {
        for (command, arguments, words) in [
            ("gke-gcloud-auth-plugin", "", "runs \"gke-gcloud-auth-plugin\", but functions support only"),
            ("kubelogin", "get-token --client-secret canary", "runs \"kubelogin\""),
            ("", "", "runs \"\""),
            ("aws", "eks get-token --cluster-name a --role-arn arn:aws:iam::1:role/r", "assumes a role (--role-arn)"),
            ("aws-iam-authenticator", "token -i a -r arn:aws:iam::1:role/r", "assumes a role (-r)"),
            ("aws", "eks get-token --cluster-name a --profile mine", "the option --profile, which is not supported"),
            ("aws", "eks get-token --cluster-name a --token=canary", "the option --token, which"),
            ("aws", "eks get-token --region eu-west-1", "names no cluster; add --cluster-name"),
            ("aws", "eks get-token --cluster-name", "names no cluster"),
            ("aws", "sts get-session-token --cluster-name a", "runs another command than `eks get-token`"),
        ] {
            let error = exec(command, arguments).unwrap_err();
            assert!(error.starts_with("context \"shop\" of the kubeconfig: ") && error.contains(words), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn inline_credentials_are_accepted() {
        for (cluster, user) in [
            (json!({ "server": "https://c", "certificate-authority-data": "YQ==" }), json!({ "token": "t" })),
            (json!({ "server": "https://c", "tls-server-name": "d" }), json!({ "token": "t", "tokenFile": "/unused" })),
            (json!({ "server": "https://c" }), json!({ "client-certificate-data": "YQ==", "client-key-data": "YQ==" })),
            (json!({ "server": "https://c" }), json!({ "username": "a", "password": "b" })),
            (json!({ "server": "https://c" }), json!({ "token": "t", "as": "driftless", "as-groups": ["a", "b"] })),
            (json!({ "server": "http://127.0.0.1:8001" }), json!({})),
            (json!({ "server": "http://[::1]:8001" }), json!({})),
        ] {
            let entry = read(&cluster, &user).unwrap();
            assert!(entry.eks.is_none());
            let kept = serde_json::to_value(entry.into_kubeconfig(None)).unwrap();
            assert_eq!((&kept["clusters"][0]["cluster"], &kept["current-context"]), (&cluster, &json!("shop")));
            for (field, value) in user.as_object().unwrap() {
                assert_eq!(&kept["users"][0]["user"][field], value);
            }
        }
    }

    #[test]
    fn credential_files_are_refused() {
        let server = json!({ "server": "https://c" });
        for (cluster, user, words) in [
            (json!({ "server": "https://c", "certificate-authority": "/ca" }), json!({}), "set certificate-authority-data, as"),
            (
                server.clone(),
                json!({ "tokenFile": "/token" }),
                "tokenFile names a file, which a function does not have; set token, as",
            ),
            (server.clone(), json!({ "client-certificate": "/c", "client-key-data": "YQ==" }), "set client-certificate-data, as"),
            (server.clone(), json!({ "client-certificate-data": "YQ==", "client-key": "/k" }), "set client-key-data, as"),
            (
                server,
                json!({ "auth-provider": { "name": "oidc", "config": { "id-token": "canary" } } }),
                "auth-provider is not supported",
            ),
            (json!({ "server": "https://c", "proxy-url": "http://a:canary@p" }), json!({}), "proxy-url is not supported"),
        ] {
            let error = read(&cluster, &user).unwrap_err();
            assert!(error.contains(words) && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn clear_text_to_another_machine_is_refused() {
        for server in ["http://c", "HTTP://c:6443", "http://10.0.0.1", "http://127.0.0.1.example", "http://localhost"] {
            let error = read(&json!({ "server": server }), &json!({ "token": "canary" })).unwrap_err();
            assert!(error.contains("use https://") && !error.contains("canary"), "{server}: {error}");
        }
    }

    #[test]
    fn missing_entry_is_named_and_invalid_yaml_is_not_quoted() {
        let text = "contexts: [{name: a, context: {cluster: x, user: y}}, {name: b, context: {cluster: c, user: y}}]\n\
                    clusters: [{name: c, cluster: {server: 'https://c'}}]\n";
        for (cluster, words) in [
            ("a", "context \"a\" of the kubeconfig: cluster \"x\" not found"),
            ("b", "context \"b\" of the kubeconfig: user \"y\" not found"),
            ("z", "cluster \"z\" not found; the contexts of the kubeconfig are a, b"),
        ] {
            assert_eq!(Entry::read(text, cluster).unwrap_err(), words);
        }
        for text in
            ["users: [{name: u, user: {token: {canary: canary}}}]", "users: canary", "{canary", "users:\n- user: canary\n"]
        {
            let error = Entry::read(text, "a").unwrap_err();
            assert!(error.starts_with("kubeconfig is not valid YAML, at line ") && !error.contains("canary"), "{error}");
        }
    }
}
