//! Who the program is: its ServiceAccount's tokens, in files as a pod has them, for as long as the run lasts.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    ffi::OsString,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use driftless_contract::{Identity, InvalidMessage, from_json};
use jiff::Timestamp;
use serde_json::json;

use crate::{
    mask::Mask,
    pulumi::say,
    s3::{Folder, StoreError},
};

/// New tokens come well before the old ones expire.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Why there are no new tokens.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    #[error("cannot write a token's file: {0}")]
    Write(#[from] io::Error),
}

/// The identity as the program has it.
pub(crate) struct ProgramIdentity {
    dir: PathBuf,
    given: RefCell<Identity>,
    expiry_told: Cell<bool>,
}

impl ProgramIdentity {
    /// Writes the files, in a directory of their own below `scratch`.
    pub(crate) fn new(scratch: &Path, given: Identity) -> io::Result<Self> {
        let dir = scratch.join("identity");
        DirBuilder::new().mode(0o700).create(&dir)?;
        write(&dir, &given)?;
        Ok(Self { dir, given: RefCell::new(given), expiry_told: Cell::new(false) })
    }

    /// What tells pulumi and its plugins where the files are.
    pub(crate) fn variables(&self, update_uid: &str) -> Vec<(OsString, OsString)> {
        let mut variables = vec![("KUBECONFIG".into(), self.dir.join("kubeconfig").into())];
        if let Some(web) = &self.given.borrow().web_identity {
            variables.extend([
                ("AWS_ROLE_ARN".into(), OsString::from(&web.role_arn)),
                ("AWS_WEB_IDENTITY_TOKEN_FILE".into(), self.dir.join("aws-token").into()),
                ("AWS_ROLE_SESSION_NAME".into(), format!("driftless-{update_uid}").into()),
                // As EKS sets it: older SDKs call the global endpoint of STS without it, which a VPC endpoint does not serve.
                ("AWS_STS_REGIONAL_ENDPOINTS".into(), "regional".into()),
            ]);
            // As EKS sets them in a pod whose ServiceAccount has a role.
            if let Some(region) = region_of_eks(&self.given.borrow().cluster.server) {
                variables.extend(["AWS_REGION", "AWS_DEFAULT_REGION"].map(|name| (name.into(), region.into())));
            }
        }
        variables
    }

    /// Adds the tokens to what is kept secret.
    pub(crate) fn hide(&self, mask: &Mask) {
        tokens(&self.given.borrow()).for_each(|token| mask.add_text(token));
    }

    /// Rewrites the files whenever the launcher has written new tokens.
    pub(crate) async fn keep(&self, folder: &Folder, mask: &Mask, now: fn() -> Timestamp) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let renewed = async { self.renew(&folder.get("in/identity").await?.bytes().await.map_err(StoreError::from)?, mask) };
            if let Err(error) = renewed.await {
                let next = LOOK_EVERY.as_secs();
                say(&format!("driftless: cannot renew the program's tokens, the next try is in {next} s: {error}"));
            }
            if let Some(words) = self.expired(now()) {
                say(&words);
            }
        }
    }

    fn renew(&self, document: &[u8], mask: &Mask) -> Result<(), RenewError> {
        let new: Identity = from_json("identity", document)?;
        if new == *self.given.borrow() {
            return Ok(());
        }
        // Before anybody can read them.
        tokens(&new).for_each(|token| mask.add_text(token));
        write(&self.dir, &new)?;
        self.given.replace(new);
        self.expiry_told.set(false);
        Ok(())
    }

    /// What to tell when no new tokens came, once. It is no failure: pulumi tells if it needed them.
    fn expired(&self, now: Timestamp) -> Option<String> {
        let at = self.given.borrow().expires_at;
        (now >= at && !self.expiry_told.replace(true))
            .then(|| format!("driftless: the tokens of the program's ServiceAccount expired at {at:.0}, and no new ones came"))
    }
}

/// Returns the Region of an EKS cluster by the address of its API server: `https://ID.gr7.REGION.eks.amazonaws.com`, or
/// `https://ID.gr7.REGION.api.aws` with IPv6. None for any other cluster.
fn region_of_eks(server: &str) -> Option<&str> {
    let host = server.strip_prefix("https://")?.split([':', '/']).next()?;
    let suffixes = [".eks.amazonaws.com", ".eks.amazonaws.com.cn", ".api.aws"];
    let before = suffixes.into_iter().find_map(|suffix| host.strip_suffix(suffix))?;
    before.rsplit_once('.').map(|(_, region)| region)
}

fn tokens(identity: &Identity) -> impl Iterator<Item = &str> {
    [&identity.cluster.token].into_iter().chain(identity.web_identity.as_ref().map(|web| &web.token)).map(String::as_str)
}

/// Who reads a file finds the old content or the new, whole.
fn write(dir: &Path, identity: &Identity) -> io::Result<()> {
    let file = |name: &str, content: &str| {
        let new = dir.join(format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(content.as_bytes())?;
        fs::rename(new, dir.join(name))
    };
    let Identity { cluster, web_identity, .. } = identity;
    file("token", &cluster.token)?;
    let mut reach = json!({ "server": cluster.server });
    if let Some(authority) = &cluster.certificate_authority {
        file("ca.crt", authority)?;
        reach["certificate-authority"] = dir.join("ca.crt").to_string_lossy().into();
    }
    if let Some(web) = web_identity {
        file("aws-token", &web.token)?;
    }
    let name = "driftless";
    // JSON is YAML.
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": reach }],
        "users": [{ "name": name, "user": { "tokenFile": dir.join("token").to_string_lossy() } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name, "namespace": cluster.namespace } }],
        "current-context": name,
    });
    file("kubeconfig", &kubeconfig.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
    fn the_program_finds_its_tokens_where_sdks_look_and_nobody_else_reads_them() {
        let scratch = scratch("files");
        let program = ProgramIdentity::new(&scratch, identity("1", true)).unwrap();
        let dir = scratch.join("identity");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, ["aws-token", "ca.crt", "kubeconfig", "token"].map(|name| dir.join(name)));
        for file in &names {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        let kubeconfig: Value = serde_json::from_slice(&fs::read(dir.join("kubeconfig")).unwrap()).unwrap();
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://cluster:6443");
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["certificate-authority"], dir.join("ca.crt").to_str().unwrap());
        assert_eq!(kubeconfig["users"][0]["user"]["tokenFile"], dir.join("token").to_str().unwrap());
        assert_eq!(kubeconfig["contexts"][0]["context"]["namespace"], "team");
        let variables =
            program.variables("uid-1").into_iter().map(|(name, value)| format!("{}={}", name.display(), value.display()));
        let at = |name: &str| dir.join(name).display().to_string();
        assert_eq!(
            variables.collect::<Vec<_>>(),
            [
                format!("KUBECONFIG={}", at("kubeconfig")),
                "AWS_ROLE_ARN=arn:aws:iam::1:role/app".into(),
                format!("AWS_WEB_IDENTITY_TOKEN_FILE={}", at("aws-token")),
                "AWS_ROLE_SESSION_NAME=driftless-uid-1".into(),
                "AWS_STS_REGIONAL_ENDPOINTS=regional".into(),
            ]
        );
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn without_a_role_there_is_only_the_cluster() {
        let scratch = scratch("cluster");
        let program = ProgramIdentity::new(&scratch, identity("1", false)).unwrap();
        assert_eq!(program.variables("u").len(), 1);
        let files = fs::read_dir(scratch.join("identity")).unwrap().count();
        assert_eq!(files, 2, "a token and a kubeconfig");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn new_tokens_are_masked_and_written_and_a_document_that_is_none_changes_nothing() {
        let scratch = scratch("renew");
        let program = ProgramIdentity::new(&scratch, identity("1", true)).unwrap();
        let mask = Mask::default();
        program.hide(&mask);
        let read = |name: &str| fs::read_to_string(scratch.join("identity").join(name)).unwrap();
        program.renew(to_json(&identity("2", true)).as_bytes(), &mask).unwrap();
        assert_eq!([read("token"), read("aws-token")], ["cluster-canary-2", "aws-canary-2"]);
        assert_eq!(mask.apply("cluster-canary-1 aws-canary-1 cluster-canary-2 aws-canary-2"), ["[secret]"; 4].join(" "));
        let words = program.renew(br#"{"version":1,"cluster":"canary"}"#, &mask).unwrap_err().to_string();
        assert!(words.contains("identity") && !words.contains("canary"), "{words}");
        assert_eq!(read("token"), "cluster-canary-2");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn that_tokens_expired_is_told_once_until_new_ones_came() {
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
