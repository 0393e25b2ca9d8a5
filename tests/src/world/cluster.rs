//! A Kubernetes cluster: real etcd, kube-apiserver with RBAC, and kube-controller-manager. It has
//! no nodes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::{encoding::AsDer, rand, signature};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::ServiceAccount,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{
    dirs::{Dirs, write_private},
    network::free_port,
    process::{Supervisor, command},
    ready,
};

/// The cluster's name: that of its context in every kubeconfig, and in every message.
pub const NAME: &str = "world";

/// The name of another cluster, without Flux, controllers and access to AWS.
pub const SECOND: &str = "second";

/// The host name of the API server of the cluster [`SECOND`] for functions: that of an EKS cluster
/// in another Region than the installation.
pub const SECOND_HOST: &str = "0A1B2C3D4E5F60718293A4B5C6D7E8F9.gr7.eu-west-1.eks.amazonaws.com";

/// The issuer of `ServiceAccount` tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The functions that act in a cluster. `infra/kubernetes/rbac.yaml` gives each group
/// `driftless:<name>` its rights.
const FUNCTIONS: [&str; 5] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper"];

/// The audit log of the cluster [`NAME`], beside the logs: a JSON object per line for every call of
/// its API server.
pub const AUDIT_LOG: &str = "audit.jsonl";

const ADMIN: &str = "admin";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const FLUX: &str = "flux";
const FORWARDER: &str = "forwarder";

/// The lifetime of a `ServiceAccount`'s token: longer than any world's.
const TOKEN_SECONDS: i64 = 366 * 24 * 60 * 60;

/// The required ones of the 40 controllers: nothing here schedules, runs or balances pods.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
     serviceaccount-token-controller,root-ca-certificate-publisher-controller,clusterrole-aggregation-controller";

/// The namespace that Flux's installation would create.
const FLUX_NAMESPACE: &str = "{ apiVersion: v1, kind: Namespace, metadata: { name: flux-system } }";

/// A running cluster.
pub struct Cluster {
    /// A kubeconfig with all rights.
    pub admin_kubeconfig: PathBuf,
    /// The URL of the API server.
    pub url: String,
    name: &'static str,
    /// The CA certificate, as PEM.
    authority: String,
    kubeconfigs: PathBuf,
}

impl Cluster {
    /// Starts the cluster [`NAME`] with Flux's CRDs and the content of `infra/kubernetes` of
    /// `project`: Driftless's CRDs, identities and namespaces. With an authenticator, a URL that
    /// identifies the holder of a token, it is like a cluster of EKS.
    pub async fn start(
        dirs: &Dirs,
        supervisor: &Supervisor,
        project: &Path,
        etcd: &str,
        authenticator: Option<&str>,
    ) -> Result<Self> {
        let cluster = Self::start_with_flux(dirs, supervisor, etcd, authenticator).await?;
        fill(project, &cluster.client(ADMIN).await?).await?;
        Ok(cluster)
    }

    /// Starts the cluster [`NAME`] with only the CRDs and the namespace of Flux.
    pub async fn start_with_flux(dirs: &Dirs, supervisor: &Supervisor, etcd: &str, authenticator: Option<&str>) -> Result<Self> {
        let cluster = Self::start_api_server(dirs, supervisor, NAME, etcd, authenticator).await?;
        let admin = cluster.client(ADMIN).await?;
        start_controller_manager(dirs, supervisor, &cluster)?;
        tokio::try_join!(service_accounts(&admin), async {
            for crds in ["source-controller-crds", "notification-controller-crds"] {
                apply(&admin, &dirs.tool(crds)?).await?;
            }
            apply_yaml(&admin, FLUX_NAMESPACE).await
        })?;
        Ok(cluster)
    }

    /// Starts the cluster [`SECOND`], with only the content of `infra/kubernetes`.
    pub async fn start_second(dirs: &Dirs, supervisor: &Supervisor, project: &Path, etcd: &str) -> Result<Self> {
        let cluster = Self::start_api_server(dirs, supervisor, SECOND, etcd, None).await?;
        fill(project, &cluster.client(ADMIN).await?).await?;
        Ok(cluster)
    }

    async fn start_api_server(
        dirs: &Dirs,
        supervisor: &Supervisor,
        name: &'static str,
        etcd: &str,
        authenticator: Option<&str>,
    ) -> Result<Self> {
        let files = dirs.create(&format!("kubernetes/{name}"))?;
        let kubeconfigs = dirs.create(&format!("kubeconfig/{name}"))?;
        let port = free_port(Ipv4Addr::LOCALHOST)?;
        let tokens = write_credentials(&files)?;
        let mut apiserver = apiserver(dirs, name, &files, etcd, port)?;
        if let Some(url) = authenticator {
            let config = files.join("authenticator");
            write_private(&config, &kubeconfig(&[("authenticator", json!({ "server": url }), json!({}))])?)?;
            apiserver
                .arg(flag("authentication-token-webhook-config-file", &config))
                .args(["--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=10s"]);
        }
        supervisor.start_always(dirs, &process(name, "kube-apiserver"), apiserver)?;

        let url = format!("https://127.0.0.1:{port}");
        let certificates = files.join("apiserver.crt");
        // The API server first writes its certificate and that of its generated CA.
        let authority = ready::until("the API server's certificate", ready::START, async || {
            let text = fs::read_to_string(&certificates)?;
            ensure!(text.matches("END CERTIFICATE").count() == 2, "it is not written to its end");
            Ok(text)
        })
        .await?;
        let cluster = Self { admin_kubeconfig: kubeconfigs.join(ADMIN), url, name, authority, kubeconfigs };
        for (user, token) in tokens {
            let text = kubeconfig(&[cluster.entry(json!({ "token": token }))])?;
            write_private(&cluster.kubeconfig(user), &text)?;
        }
        let admin = cluster.client(ADMIN).await?;
        ready::until("the API server is ready", ready::START, async || {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(admin.request_text(request).await?)
        })
        .await?;
        Ok(cluster)
    }

    /// The kubeconfig of `admin`, `flux` or `forwarder`. Its only context has the name of the
    /// cluster.
    #[must_use]
    pub fn kubeconfig(&self, identity: &str) -> PathBuf {
        self.kubeconfigs.join(identity)
    }

    /// This cluster with one of its users, for [`kubeconfig`].
    #[must_use]
    pub fn entry(&self, user: Value) -> (&str, Value, Value) {
        let authority = BASE64_STANDARD.encode(&self.authority);
        (self.name, json!({ "server": self.url, "certificate-authority-data": authority }), user)
    }

    /// The same with the host [`SECOND_HOST`].
    #[must_use]
    pub fn eks_entry(&self, user: Value) -> (&str, Value, Value) {
        let (name, mut cluster, user) = self.entry(user);
        cluster["server"] = self.url.replace("127.0.0.1", SECOND_HOST).into();
        // A name in its certificate.
        cluster["tls-server-name"] = "kubernetes".into();
        (name, cluster, user)
    }

    /// The user in the output of `aws eks update-kubeconfig`.
    #[must_use]
    pub fn eks_user(&self, region: &str) -> Value {
        let arguments = ["--region", region, "eks", "get-token", "--cluster-name", self.name, "--output", "json"];
        let api_version = "client.authentication.k8s.io/v1beta1";
        json!({ "exec": { "apiVersion": api_version, "command": "aws", "args": arguments } })
    }

    /// The users of `docs/clusters.md` for a cluster without access to AWS, by function.
    pub async fn service_account_users(&self, project: &Path) -> Result<BTreeMap<&'static str, Value>> {
        let admin = self.client(ADMIN).await?;
        apply(&admin, &project.join("infra/kubernetes/service-account/service-account.yaml")).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin, "driftless-system");
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let mut users = BTreeMap::new();
        for function in FUNCTIONS {
            let account = format!("driftless-{function}");
            let answer = accounts.create_token_request(&account, &PostParams::default(), &request).await?;
            let (token, name) = (answer.status.context("a token")?.token, format!("driftless:{function}"));
            users.insert(function, json!({ "token": token, "as": name, "as-groups": [name] }));
        }
        Ok(users)
    }

    /// A client that acts as `admin`, `flux` or `forwarder`.
    pub async fn client(&self, identity: &str) -> Result<Client> {
        Ok(Client::try_from(self.config(identity).await?)?)
    }

    /// A client with the rights of the function of that name.
    pub async fn client_like(&self, function: &str) -> Result<Client> {
        let mut config = self.config(ADMIN).await?;
        config.auth_info.impersonate = Some(format!("driftless:{function}"));
        config.auth_info.impersonate_groups = Some(vec![format!("driftless:{function}")]);
        Ok(Client::try_from(config)?)
    }

    async fn config(&self, identity: &str) -> Result<Config> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig(identity))?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // A test needs the first answer, not that of the fifteenth try.
        config.default_retry = false;
        Ok(config)
    }
}

/// Waits for all CRDs, including Driftless's.
async fn fill(project: &Path, admin: &Client) -> Result<()> {
    apply_yaml(admin, FLUX_NAMESPACE).await?;
    let infra = project.join("infra/kubernetes");
    apply(admin, &infra.join("crds")).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
    ready::until("the CRDs are established", ready::START, async || {
        let waits = crds.list(&ListParams::default()).await?.into_iter().find(|crd| !is_established(crd));
        waits.map_or(Ok(()), |crd| bail!("{} is not established", crd.name_any()))
    })
    .await?;
    apply(admin, &infra.join("rbac.yaml")).await?;
    apply(admin, &infra.join("approval.yaml")).await
}

/// Applies every object of a YAML file, or of a folder's `.yaml` files in the order of their names.
pub async fn apply(client: &Client, path: &Path) -> Result<()> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
        files.sort();
    }
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        apply_yaml(client, &text).await.with_context(|| format!("applying {}", file.display()))?;
    }
    Ok(())
}

/// Applies every object of a YAML text, in its order.
pub async fn apply_yaml(client: &Client, text: &str) -> Result<()> {
    for object in serde_saphyr::from_multiple::<DynamicObject>(text)? {
        let kind = object.types.as_ref().context("an object without apiVersion and kind")?;
        let (resource, capabilities) = pinned_kind(client, &GroupVersionKind::try_from(kind)?).await?;
        let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), &namespace, &resource),
        };
        let name = object.name_any();
        api.patch(&name, &PatchParams::apply("world").force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("{} {name}", kind.kind))?;
    }
    Ok(())
}

/// Starts the etcd that all clusters share. Returns its URL.
pub async fn start_etcd(dirs: &Dirs, supervisor: &Supervisor) -> Result<String> {
    let (clients, peers) = (free_port(Ipv4Addr::LOCALHOST)?, free_port(Ipv4Addr::LOCALHOST)?);
    let [clients_url, peers_url] = [clients, peers].map(|port| format!("http://127.0.0.1:{port}"));
    let mut etcd = command(dirs, dirs.tool("etcd")?);
    etcd.arg("--data-dir")
        .arg(dirs.root().join("etcd"))
        .args(["--listen-client-urls", &clients_url, "--advertise-client-urls", &clients_url])
        .args(["--listen-peer-urls", &peers_url, "--initial-advertise-peer-urls", &peers_url])
        .args(["--initial-cluster", &format!("default={peers_url}"), "--log-level", "warn"])
        // Its content is deleted at the next start.
        .arg("--unsafe-no-fsync");
    supervisor.start(dirs, "etcd", etcd)?;
    let address = (Ipv4Addr::LOCALHOST, clients);
    ready::until("etcd is healthy", ready::START, || ready::answers(address, "/health")).await?;
    Ok(clients_url)
}

/// The name of a process: that of the program alone for the cluster [`NAME`].
#[must_use]
pub fn process(cluster: &str, name: &str) -> String {
    if cluster == NAME { name.to_owned() } else { format!("{name}-{cluster}") }
}

fn apiserver(dirs: &Dirs, cluster: &str, files: &Path, etcd: &str, port: u16) -> Result<Command> {
    // The caller and the call, without the content.
    let policy = files.join("audit.yaml");
    fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- { level: None, nonResourceURLs: ['*'] }\n- { level: Metadata }\n",
    )?;
    let mut apiserver = command(dirs, dirs.tool("kube-apiserver")?);
    apiserver
        .args([
            "--etcd-servers",
            etcd,
            "--etcd-prefix",
            &format!("/{cluster}"),
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
        ])
        .arg(format!("--secure-port={port}"))
        .arg(flag("cert-dir", files))
        .arg(flag("audit-policy-file", &policy))
        .arg(flag("audit-log-path", &dirs.logs().join(process(cluster, "audit")).with_extension("jsonl")))
        // It stays one file, which tests read from a position.
        .arg("--audit-log-maxsize=0")
        .arg(flag("token-auth-file", &files.join("tokens.csv")))
        .arg(flag("service-account-key-file", &files.join("service-accounts.key")))
        .arg(flag("service-account-signing-key-file", &files.join("service-accounts.key")))
        .args([&format!("--service-account-issuer={ISSUER}"), "--authorization-mode=RBAC"])
        // A Pod here is only the target of a Service, so it needs no existing ServiceAccount.
        .arg("--disable-admission-plugins=ServiceAccount")
        // No client in the cluster uses the API server's Service, whose endpoint may not be
        // loopback.
        .args(["--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"]);
    Ok(apiserver)
}

fn start_controller_manager(dirs: &Dirs, supervisor: &Supervisor, cluster: &Cluster) -> Result<()> {
    let files = dirs.create(&format!("kubernetes/{}", cluster.name))?;
    let mut manager = command(dirs, dirs.tool("kube-controller-manager")?);
    manager
        .arg(flag("kubeconfig", &cluster.kubeconfig(CONTROLLER_MANAGER)))
        .arg(flag("root-ca-file", &files.join("apiserver.crt")))
        .arg(flag("service-account-private-key-file", &files.join("service-accounts.key")))
        .args([&format!("--controllers={CONTROLLERS}"), "--leader-elect=false", "--bind-address=127.0.0.1"])
        .arg(format!("--secure-port={}", free_port(Ipv4Addr::LOCALHOST)?));
    supervisor.start(dirs, "kube-controller-manager", manager)
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// Writes the key of `ServiceAccount` tokens and the file with all users' tokens. Returns user and
/// token of each.
fn write_credentials(files: &Path) -> Result<Vec<(&'static str, String)>> {
    let key = signature::EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_ASN1_SIGNING)?;
    let key = BASE64_STANDARD.encode(key.private_key().as_der()?.as_ref());
    write_private(
        &files.join("service-accounts.key"),
        &format!("-----BEGIN EC PRIVATE KEY-----\n{key}\n-----END EC PRIVATE KEY-----\n"),
    )?;
    let mut tokens = Vec::new();
    let mut lines = String::new();
    for user in [ADMIN, CONTROLLER_MANAGER, FLUX, FORWARDER] {
        let mut token = [0; 16];
        rand::fill(&mut token)?;
        let token = format!("{:032x}", u128::from_be_bytes(token));
        if user == FORWARDER {
            writeln!(lines, "{token},driftless:{user},{user},driftless:{user}")?;
        } else {
            writeln!(lines, "{token},{user},{user},system:masters")?;
        }
        tokens.push((user, token));
    }
    write_private(&files.join("tokens.csv"), &lines)?;
    Ok(tokens)
}

/// A kubeconfig with a context for each cluster and its user; the first is the current one.
pub fn kubeconfig(entries: &[(&str, Value, Value)]) -> Result<String> {
    let each = |entry: fn(&(&str, Value, Value)) -> Value| entries.iter().map(entry).collect::<Value>();
    Ok(serde_saphyr::to_string(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": each(|(name, cluster, _)| json!({ "name": name, "cluster": cluster })),
        "users": each(|(name, _, user)| json!({ "name": name, "user": user })),
        "contexts": each(|(name, ..)| json!({ "name": name, "context": { "cluster": name, "user": name } })),
        "current-context": entries.first().map(|(name, ..)| *name),
    }))?)
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Waits for the controllers in a new cluster: its namespaces have their `ServiceAccount`.
async fn service_accounts(admin: &Client) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    ready::until("kube-controller-manager works", ready::START, async || Ok(accounts.get("default").await?)).await?;
    Ok(())
}
