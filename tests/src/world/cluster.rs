//! A Kubernetes cluster: real etcd, kube-apiserver with RBAC, and kube-controller-manager. It has no nodes.

use std::{
    fmt::Write as _,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::{encoding::AsDer, rand, signature};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use k8s_openapi::{
    api::core::v1::ServiceAccount, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde_json::json;

use super::{
    dirs::{Dirs, write_private},
    network::free_port,
    process::{Supervisor, command},
    ready,
};

/// The cluster's name: of its context in every kubeconfig, and in every message.
pub const NAME: &str = "world";

/// Who acts in the cluster on behalf of the system. `infra/kubernetes/rbac.yaml` gives each group `driftless:<name>` its rights.
pub const IDENTITIES: [&str; 6] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper", "forwarder"];

/// The API server's record of every call, beside the logs: a JSON object per line.
pub const AUDIT_LOG: &str = "audit.jsonl";

const ADMIN: &str = "admin";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const FLUX: &str = "flux";

/// What the world needs of the 40 controllers: nothing here schedules, runs or balances pods.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
     serviceaccount-token-controller,root-ca-certificate-publisher-controller,clusterrole-aggregation-controller";

/// A running cluster.
pub struct Cluster {
    /// A kubeconfig with all rights.
    pub admin_kubeconfig: PathBuf,
    /// Where the API server listens.
    pub url: String,
    kubeconfigs: PathBuf,
}

impl Cluster {
    /// Starts it, empty but for Flux's CRDs and what is in `infra/kubernetes` of `project`: our CRDs, identities and namespaces.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor, project: &Path) -> Result<Self> {
        let etcd = start_etcd(dirs, supervisor).await?;
        let files = dirs.create("kubernetes")?;
        let kubeconfigs = dirs.create("kubeconfig")?;
        let port = free_port(Ipv4Addr::LOCALHOST)?;
        let tokens = write_credentials(&files)?;
        start_apiserver(dirs, supervisor, &files, &etcd, port)?;

        let url = format!("https://127.0.0.1:{port}");
        let certificates = files.join("apiserver.crt");
        // The API server writes its certificate, and that of the authority that it made for it, as the first thing it does.
        let authority = ready::until("the API server's certificate", ready::START, async || {
            let text = fs::read_to_string(&certificates)?;
            ensure!(text.matches("END CERTIFICATE").count() == 2, "it is not written to its end");
            Ok(text)
        })
        .await?;
        for (user, token) in &tokens {
            write_private(&kubeconfigs.join(user), &kubeconfig(user, token, &url, &authority)?)?;
        }
        let cluster = Self { admin_kubeconfig: kubeconfigs.join(ADMIN), url, kubeconfigs };
        let admin = cluster.client(ADMIN).await?;
        ready::until("the API server is ready", ready::START, async || {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(admin.request_text(request).await?)
        })
        .await?;
        start_controller_manager(dirs, supervisor, &files, &cluster)?;
        tokio::try_join!(service_accounts(&admin), cluster.fill(dirs, project, &admin))?;
        Ok(cluster)
    }

    /// The kubeconfig of one of [`IDENTITIES`]. Its only context is named like the cluster.
    #[must_use]
    pub fn kubeconfig(&self, identity: &str) -> PathBuf {
        self.kubeconfigs.join(identity)
    }

    /// A client that acts as one of [`IDENTITIES`], or as `admin`.
    pub async fn client(&self, identity: &str) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig(identity))?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // A test wants to see the first answer, not that of the fifteenth try.
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// As in any cluster that we come to, Flux is there before us: its namespace and CRDs.
    async fn fill(&self, dirs: &Dirs, project: &Path, admin: &Client) -> Result<()> {
        apply_yaml(admin, "{ apiVersion: v1, kind: Namespace, metadata: { name: flux-system } }").await?;
        let infra = project.join("infra/kubernetes");
        for crds in [dirs.tool("source-controller-crds")?, dirs.tool("notification-controller-crds")?, infra.join("crds")] {
            apply(admin, &crds).await?;
        }
        let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
        ready::until("the CRDs are established", ready::START, async || {
            let waits = crds.list(&ListParams::default()).await?.into_iter().find(|crd| !is_established(crd));
            waits.map_or(Ok(()), |crd| bail!("{} is not established", crd.name_any()))
        })
        .await?;
        apply(admin, &infra.join("rbac.yaml")).await
    }
}

/// Applies every object of a YAML file, or of a folder's `.yaml` files by name.
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

async fn start_etcd(dirs: &Dirs, supervisor: &Supervisor) -> Result<String> {
    let (clients, peers) = (free_port(Ipv4Addr::LOCALHOST)?, free_port(Ipv4Addr::LOCALHOST)?);
    let [clients_url, peers_url] = [clients, peers].map(|port| format!("http://127.0.0.1:{port}"));
    let mut etcd = command(dirs, dirs.tool("etcd")?);
    etcd.arg("--data-dir")
        .arg(dirs.root().join("etcd"))
        .args(["--listen-client-urls", &clients_url, "--advertise-client-urls", &clients_url])
        .args(["--listen-peer-urls", &peers_url, "--initial-advertise-peer-urls", &peers_url])
        .args(["--initial-cluster", &format!("default={peers_url}"), "--log-level", "warn"])
        // What it holds is thrown away at the next start.
        .arg("--unsafe-no-fsync");
    supervisor.start(dirs, "etcd", etcd)?;
    let address = (Ipv4Addr::LOCALHOST, clients);
    ready::until("etcd is healthy", ready::START, || ready::answers(address, "/health")).await?;
    Ok(clients_url)
}

fn start_apiserver(dirs: &Dirs, supervisor: &Supervisor, files: &Path, etcd: &str, port: u16) -> Result<()> {
    // Who called for what: nothing of what was said.
    let policy = files.join("audit.yaml");
    fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- { level: None, nonResourceURLs: ['*'] }\n- { level: Metadata }\n",
    )?;
    let mut apiserver = command(dirs, dirs.tool("kube-apiserver")?);
    apiserver
        .args(["--etcd-servers", etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--secure-port={port}"))
        .arg(flag("cert-dir", files))
        .arg(flag("audit-policy-file", &policy))
        .arg(flag("audit-log-path", &dirs.logs().join(AUDIT_LOG)))
        .arg(flag("token-auth-file", &files.join("tokens.csv")))
        .arg(flag("service-account-key-file", &files.join("service-accounts.key")))
        .arg(flag("service-account-signing-key-file", &files.join("service-accounts.key")))
        .args(["--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--authorization-mode=RBAC"])
        // A Pod here is only an entry that a Service leads to: it needs no ServiceAccount to be there first.
        .arg("--disable-admission-plugins=ServiceAccount")
        // Nothing in the cluster looks for the API server by its Service, whose endpoint may not be loopback.
        .args(["--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"]);
    supervisor.start(dirs, "kube-apiserver", apiserver)
}

fn start_controller_manager(dirs: &Dirs, supervisor: &Supervisor, files: &Path, cluster: &Cluster) -> Result<()> {
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

/// Writes the key of `ServiceAccount` tokens and the file of everybody's tokens. Returns user and token of each.
fn write_credentials(files: &Path) -> Result<Vec<(String, String)>> {
    let key = signature::EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_ASN1_SIGNING)?;
    let key = BASE64_STANDARD.encode(key.private_key().as_der()?.as_ref());
    write_private(
        &files.join("service-accounts.key"),
        &format!("-----BEGIN EC PRIVATE KEY-----\n{key}\n-----END EC PRIVATE KEY-----\n"),
    )?;
    let mut tokens = Vec::new();
    let mut lines = String::new();
    for user in [ADMIN, CONTROLLER_MANAGER, FLUX].into_iter().chain(IDENTITIES) {
        let mut token = [0; 16];
        rand::fill(&mut token)?;
        let token = format!("{:032x}", u128::from_be_bytes(token));
        if IDENTITIES.contains(&user) {
            writeln!(lines, "{token},driftless:{user},{user},driftless:{user}")?;
        } else {
            writeln!(lines, "{token},{user},{user},system:masters")?;
        }
        tokens.push((user.to_owned(), token));
    }
    write_private(&files.join("tokens.csv"), &lines)?;
    Ok(tokens)
}

fn kubeconfig(user: &str, token: &str, url: &str, authority: &str) -> Result<String> {
    Ok(serde_saphyr::to_string(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": NAME,
            "cluster": { "server": url, "certificate-authority-data": BASE64_STANDARD.encode(authority) },
        }],
        "users": [{ "name": user, "user": { "token": token } }],
        "contexts": [{ "name": NAME, "context": { "cluster": NAME, "user": user } }],
        "current-context": NAME,
    }))?)
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Waits for what the controllers do in a new cluster: its namespaces have their `ServiceAccount`.
async fn service_accounts(admin: &Client) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    ready::until("kube-controller-manager works", ready::START, async || Ok(accounts.get("default").await?)).await?;
    Ok(())
}
