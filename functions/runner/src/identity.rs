//! The identity of the program: its ServiceAccount's tokens, in files as in a pod, for the whole
//! run.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use driftless_contract::{Document as _, Identity, InvalidMessage, ProjectedToken};
use jiff::Timestamp;
use reqwest::Url;
use serde_json::json;

use crate::{
    environment::REGIONS,
    files,
    log::Log,
    mask::Mask,
    s3::{Folder, StoreError},
};

/// How often new tokens are read. The launcher writes them well before the old ones expire.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The maximum length of a role session's name in STS.
const MAX_SESSION_NAME: usize = 64;

/// Why there are no new tokens.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// The directory of a pod's ServiceAccount files, and that of the token for AWS from EKS's webhook,
/// below [`driftless_contract::SECRETS`].
const ACCOUNT: &str = "kubernetes.io/serviceaccount";
const AWS_TOKEN: &str = "eks.amazonaws.com/serviceaccount/token";

/// The identity in the form of a pod: a provider or a client that finds its cluster in a pod finds
/// it here, and stores nothing of it.
pub(crate) struct ProgramIdentity {
    secrets: PathBuf,
    given: RefCell<Identity>,
    expiry_told: Cell<bool>,
}

impl ProgramIdentity {
    /// Writes the files below `secrets`.
    pub(crate) fn new(secrets: &Path, given: Identity) -> io::Result<Self> {
        write(secrets, &given)?;
        Ok(Self { secrets: secrets.to_owned(), given: RefCell::new(given), expiry_told: Cell::new(false) })
    }

    /// The variables that name the files to Pulumi and its plugins. They are the same in every run
    /// of a stack, because a program may store its environment.
    pub(crate) fn variables(&self, stack: &str) -> Vec<(OsString, OsString)> {
        let given = self.given.borrow();
        let mut variables: Vec<(OsString, OsString)> = match service(&given.cluster.server) {
            Some((host, port)) => {
                vec![("KUBERNETES_SERVICE_HOST".into(), host.into()), ("KUBERNETES_SERVICE_PORT".into(), port.to_string().into())]
            }
            None => vec![("KUBECONFIG".into(), self.secrets.join(ACCOUNT).join("kubeconfig").into())],
        };
        if let Some(web) = &given.web_identity {
            variables.extend([
                ("AWS_ROLE_ARN".into(), OsString::from(&web.role_arn)),
                ("AWS_WEB_IDENTITY_TOKEN_FILE".into(), self.secrets.join(AWS_TOKEN).into()),
                ("AWS_ROLE_SESSION_NAME".into(), session_name(&given.cluster.namespace, stack).into()),
                // As EKS sets it: without it older SDKs call the global endpoint of STS, which a
                // VPC endpoint does not serve.
                ("AWS_STS_REGIONAL_ENDPOINTS".into(), "regional".into()),
            ]);
            // As EKS sets them in a pod whose ServiceAccount has a role.
            if let Some(region) = region_of_eks(&given.cluster.server) {
                variables.extend(REGIONS.map(|name| (name.into(), region.into())));
            }
        }
        variables
    }

    /// Adds the tokens to the masked secrets.
    pub(crate) fn hide(&self, mask: &Mask) {
        tokens(&self.given.borrow()).for_each(|token| mask.add_text(token));
    }

    /// Rewrites the files after each renewal by the launcher.
    pub(crate) async fn keep(&self, folder: &Folder, mask: &Mask, log: &Log, now: fn() -> Timestamp) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let renewed =
                async { self.renew(&folder.get(&folder.keys.identity()).await?.bytes().await.map_err(StoreError::from)?, mask) };
            if let Err(error) = renewed.await {
                let next = LOOK_EVERY.as_secs();
                log.say(&format!("driftless: cannot renew the tokens of the program; next try in {next}s: {error}"));
            }
            if let Some(words) = self.expired(now()) {
                log.say(&words);
            }
        }
    }

    fn renew(&self, document: &[u8], mask: &Mask) -> Result<(), RenewError> {
        let new = Identity::parse(document)?;
        if new == *self.given.borrow() {
            return Ok(());
        }
        // Before any process can read them.
        tokens(&new).for_each(|token| mask.add_text(token));
        write(&self.secrets, &new)?;
        self.given.replace(new);
        self.expiry_told.set(false);
        Ok(())
    }

    /// The warning after tokens expired without a renewal, once. It is no failure: Pulumi fails if
    /// it needs them.
    fn expired(&self, now: Timestamp) -> Option<String> {
        let at = self.given.borrow().expires_at;
        (now >= at && !self.expiry_told.replace(true))
            .then(|| format!("driftless: tokens of the ServiceAccount expired at {at:.0} and were not renewed"))
    }
}

/// Returns the session name that AWS's logs show for the program's calls:
/// `driftless-NAMESPACE.STACK`, with a dot for each character that STS does not allow, cut to its
/// maximum length.
fn session_name(namespace: &str, stack: &str) -> String {
    let is_taken = |character: char| character.is_ascii_alphanumeric() || "_+=,.@-".contains(character);
    let name = format!("driftless-{namespace}.{stack}");
    name.chars().map(|character| if is_taken(character) { character } else { '.' }).take(MAX_SESSION_NAME).collect()
}

/// Returns the Region of an EKS cluster from the address of its API server:
/// `https://ID.gr7.REGION.eks.amazonaws.com`, or `https://ID.gr7.REGION.api.aws` with IPv6. `None`
/// for any other cluster.
fn region_of_eks(server: &str) -> Option<&str> {
    let host = server.strip_prefix("https://")?.split([':', '/']).next()?;
    let suffixes = [".eks.amazonaws.com", ".eks.amazonaws.com.cn", ".api.aws"];
    let before = suffixes.into_iter().find_map(|suffix| host.strip_suffix(suffix))?;
    before.rsplit_once('.').map(|(_, region)| region)
}

/// Returns the host and the port of an API server for clients in a pod; `None` if its address has a
/// path, as behind a proxy for many clusters.
fn service(server: &str) -> Option<(String, u16)> {
    let url = Url::parse(server).ok()?;
    let is_plain = url.scheme() == "https" && url.path() == "/";
    let host = url.host_str()?.trim_matches(['[', ']']);
    Some((host.to_owned(), url.port_or_known_default()?)).filter(|_| is_plain)
}

fn tokens(identity: &Identity) -> impl Iterator<Item = &str> {
    let own = [&identity.cluster.token].into_iter().chain(identity.web_identity.as_ref().map(|web| &web.token));
    own.chain(identity.projected.iter().map(|projected| &projected.token)).map(String::as_str)
}

fn write(secrets: &Path, identity: &Identity) -> io::Result<()> {
    let file = |path: &Path, content: &str| files::write(path, content.as_bytes(), 0o600, 0o700);
    let (Identity { cluster, web_identity, projected, .. }, account) = (identity, secrets.join(ACCOUNT));
    file(&account.join("token"), &cluster.token)?;
    file(&account.join("namespace"), &cluster.namespace)?;
    if let Some(authority) = &cluster.certificate_authority {
        file(&account.join("ca.crt"), authority)?;
    }
    if let Some(web) = web_identity {
        file(&secrets.join(AWS_TOKEN), &web.token)?;
    }
    for ProjectedToken { path, mode, token } in projected {
        files::mount(path, token.as_bytes(), *mode)?;
    }
    if service(&cluster.server).is_some() {
        return Ok(());
    }
    let place = |name: &str| account.join(name).display().to_string();
    let authority = cluster.certificate_authority.as_ref().map(|_| place("ca.crt"));
    let name = "driftless";
    // JSON is YAML.
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": { "server": cluster.server, "certificate-authority": authority } }],
        "users": [{ "name": name, "user": { "tokenFile": place("token") } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name, "namespace": cluster.namespace } }],
        "current-context": name,
    });
    file(&account.join("kubeconfig"), &kubeconfig.to_string())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use driftless_contract::{ClusterAccess, VERSION, WebIdentity, to_json};
    use serde_json::Value;

    use super::*;

    fn identity(generation: &str, web: bool) -> Identity {
        Identity {
            version: VERSION,
            cluster: ClusterAccess {
                server: "https://cluster:6443".into(),
                certificate_authority: web.then(|| "-----BEGIN CERTIFICATE-----\n".into()),
                namespace: "team".into(),
                token: format!("cluster-canary-{generation}"),
            },
            web_identity: web
                .then(|| WebIdentity { role_arn: "arn:aws:iam::1:role/app".into(), token: format!("aws-canary-{generation}") }),
            projected: Vec::new(),
            expires_at: "2026-11-21T19:00:00Z".parse().unwrap(),
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("driftless-identity-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn region_is_that_of_the_eks_cluster() {
        for (server, region) in [
            ("https://AB12.gr7.us-east-1.eks.amazonaws.com", Some("us-east-1")),
            ("https://AB12.gr7.us-east-1.eks.amazonaws.com:443/", Some("us-east-1")),
            ("https://AB12.yl4.cn-north-1.eks.amazonaws.com.cn", Some("cn-north-1")),
            ("https://AB12.gr7.eu-west-1.api.aws", Some("eu-west-1")),
            ("https://eks.amazonaws.com", None),
            ("https://127.0.0.1:6443", None),
        ] {
            assert_eq!(region_of_eks(server), region, "{server}");
        }
    }

    #[test]
    fn session_name_is_one_that_sts_takes() {
        for (namespace, stack, expected) in [
            ("team", "dev", "driftless-team.dev"),
            ("team", "acme/shop/dev_1", "driftless-team.acme.shop.dev_1"),
            ("team", "a b:é", "driftless-team.a.b.."),
        ] {
            assert_eq!(session_name(namespace, stack), expected);
        }
        let longest = session_name(&"n".repeat(63), "dev");
        assert_eq!((longest.len(), longest.starts_with("driftless-nnn")), (MAX_SESSION_NAME, true));
    }

    /// The files of a run, and its variables as `NAME=VALUE`.
    fn found(scratch: &Path, given: Identity) -> (Vec<PathBuf>, Vec<String>) {
        let program = ProgramIdentity::new(scratch, given).unwrap();
        let dirs = [ACCOUNT, "eks.amazonaws.com/serviceaccount"].map(|dir| scratch.join(dir));
        let files = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        let variables = program.variables("acme/shop/dev").into_iter();
        (files, variables.map(|(name, value)| format!("{}={}", name.display(), value.display())).collect())
    }

    #[test]
    fn tokens_are_private_files_at_the_paths_of_a_pod() {
        let scratch = scratch("files");
        let (files, variables) = found(&scratch, identity("1", true));
        let expected = [AWS_TOKEN, &format!("{ACCOUNT}/ca.crt"), &format!("{ACCOUNT}/namespace"), &format!("{ACCOUNT}/token")];
        assert_eq!(files, expected.map(|file| scratch.join(file)));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for file in &files {
            assert_eq!((mode(file), mode(file.parent().unwrap())), (0o600, 0o700), "{}", file.display());
        }
        assert_eq!(fs::read_to_string(scratch.join(ACCOUNT).join("namespace")).unwrap(), "team");
        assert_eq!(
            variables,
            [
                "KUBERNETES_SERVICE_HOST=cluster".into(),
                "KUBERNETES_SERVICE_PORT=6443".into(),
                "AWS_ROLE_ARN=arn:aws:iam::1:role/app".into(),
                format!("AWS_WEB_IDENTITY_TOKEN_FILE={}", scratch.join(AWS_TOKEN).display()),
                "AWS_ROLE_SESSION_NAME=driftless-team.acme.shop.dev".into(),
                "AWS_STS_REGIONAL_ENDPOINTS=regional".into(),
            ]
        );
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn an_api_server_with_a_path_is_named_by_a_kubeconfig() {
        let scratch = scratch("cluster");
        let mut given = identity("1", false);
        given.cluster.server = "https://rancher/k8s/clusters/c-1".into();
        let (files, variables) = found(&scratch, given);
        let account = scratch.join(ACCOUNT);
        assert_eq!(files, ["kubeconfig", "namespace", "token"].map(|file| account.join(file)));
        assert_eq!(variables, [format!("KUBECONFIG={}", account.join("kubeconfig").display())]);
        let kubeconfig: Value = serde_json::from_slice(&fs::read(account.join("kubeconfig")).unwrap()).unwrap();
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://rancher/k8s/clusters/c-1");
        assert_eq!(kubeconfig["users"][0]["user"]["tokenFile"], account.join("token").to_str().unwrap());
        assert_eq!(kubeconfig["contexts"][0]["context"]["namespace"], "team");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn service_is_the_host_and_the_port_of_an_address_without_a_path() {
        for (server, expected) in [
            ("https://AB12.gr7.us-east-1.eks.amazonaws.com", Some("ab12.gr7.us-east-1.eks.amazonaws.com 443")),
            ("https://10.0.0.1:6443/", Some("10.0.0.1 6443")),
            ("https://[fd00::1]:6443", Some("fd00::1 6443")),
            ("https://proxy/clusters/a", None),
            ("http://127.0.0.1:8080", None),
            ("cluster", None),
        ] {
            let found = service(server).map(|(host, port)| format!("{host} {port}"));
            assert_eq!(found.as_deref(), expected, "{server}");
        }
    }

    #[test]
    fn new_tokens_are_masked_and_an_invalid_document_is_ignored() {
        let scratch = scratch("renew");
        let program = ProgramIdentity::new(&scratch, identity("1", true)).unwrap();
        let mask = Mask::default();
        program.hide(&mask);
        let read = |name: &str| fs::read_to_string(scratch.join(name)).unwrap();
        let token = || read(&format!("{ACCOUNT}/token"));
        program.renew(to_json(&identity("2", true)).as_bytes(), &mask).unwrap();
        assert_eq!([token(), read(AWS_TOKEN)], ["cluster-canary-2", "aws-canary-2"]);
        assert_eq!(mask.apply("cluster-canary-1 aws-canary-1 cluster-canary-2 aws-canary-2"), ["[secret]"; 4].join(" "));
        let words = program.renew(br#"{"version":1,"cluster":"canary"}"#, &mask).unwrap_err().to_string();
        assert!(words.contains("identity") && !words.contains("canary"), "{words}");
        assert_eq!(token(), "cluster-canary-2");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn expired_tokens_are_reported_once_until_renewed() {
        let scratch = scratch("expiry");
        let program = ProgramIdentity::new(&scratch, identity("1", false)).unwrap();
        let expiry = identity("1", false).expires_at;
        let second = jiff::SignedDuration::from_secs(1);
        assert_eq!(program.expired(expiry - second), None);
        assert!(program.expired(expiry).unwrap().contains("expired at 2026-11-21T19:00:00Z"));
        assert_eq!(program.expired(expiry), None);
        program.renew(to_json(&identity("2", false)).as_bytes(), &Mask::default()).unwrap();
        assert!(program.expired(expiry + second).is_some());
        fs::remove_dir_all(scratch).unwrap();
    }
}
