//! The identity of a run's program: its `ServiceAccount`, as in a pod.

use std::collections::BTreeMap;

use driftless_api::WorkspaceSpec;
use driftless_contract::{ClusterAccess, Identity, ProjectedToken, VERSION, WebIdentity};
use driftless_core::{MountedFiles, run::WaitReason};
use driftless_kubernetes::{Cluster, Endpoint, Error};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::ResourceExt as _;
use secrecy::ExposeSecret as _;

use crate::Stop;

/// EKS's annotations of a `ServiceAccount` with a role.
const ROLE: &str = "eks.amazonaws.com/role-arn";
const AUDIENCE: &str = "eks.amazonaws.com/audience";
const STS: &str = "sts.amazonaws.com";

/// A `ServiceAccount` for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    namespace: String,
    name: String,
    /// The AWS role that it may assume, and the audience of the token for that.
    role: Option<(String, String)>,
    /// The tokens of its projected volumes, by audience: the files of each, with their permissions.
    projected: BTreeMap<Option<String>, Vec<(String, u32)>>,
}

impl Account {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// The `ServiceAccount` of a workspace, or what the run waits for.
pub(crate) async fn account<C: Cluster>(
    cluster: &C,
    namespace: &str,
    workspace: &WorkspaceSpec,
    mounted: &[MountedFiles],
) -> Result<Account, Stop> {
    let name = workspace.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let Some(found) = cluster.get::<ServiceAccount>(namespace, name).await.map_err(refused)? else {
        let words =
            format!("ServiceAccount {name:?} not found in namespace {namespace:?}; create it, or correct serviceAccountName");
        return Err(Stop::Wait(WaitReason::ServiceAccountNotFound, words));
    };
    let annotation = |key: &str| found.annotations().get(key).cloned();
    let role = annotation(ROLE).map(|role| (role, annotation(AUDIENCE).unwrap_or_else(|| STS.into())));
    if let Some((role, _)) = role.as_ref().filter(|(role, _)| !is_role(role)) {
        let words = format!(
            "annotation {ROLE} of ServiceAccount {name:?} is {role:?}; write the ARN of a role such as \
             arn:aws:iam::123456789012:role/deploy, or remove it"
        );
        return Err(Stop::Wait(WaitReason::ServiceAccountInvalid, words));
    }
    let mut projected = BTreeMap::<_, Vec<_>>::new();
    for mount in mounted {
        for (audience, path, mode) in mount.tokens() {
            projected.entry(audience.clone()).or_default().push((path, mode));
        }
    }
    Ok(Account { namespace: namespace.into(), name: name.into(), role, projected })
}

/// Returns whether tokens of this age are due for renewal: at half of their lifetime.
pub(crate) fn is_old(token_seconds: u32, made: Timestamp, now: Timestamp) -> bool {
    now.duration_since(made) >= SignedDuration::from_secs(i64::from(token_seconds)) / 2
}

/// Requests new tokens of a `ServiceAccount` with this lifetime in seconds.
pub(crate) async fn tokens<C: Cluster>(cluster: &C, account: &Account, seconds: u32) -> Result<Identity, Error> {
    let Account { namespace, name, role, projected } = account;
    let (token, mut expires_at) = cluster.service_account_token(namespace, name, None, seconds).await?;
    let mut web_identity = None;
    if let Some((role_arn, audience)) = role {
        let (token, expires) = cluster.service_account_token(namespace, name, Some(audience), seconds).await?;
        expires_at = expires_at.min(expires);
        web_identity = Some(WebIdentity { role_arn: role_arn.clone(), token: token.expose_secret().into() });
    }
    let mut files = Vec::new();
    for (audience, places) in projected {
        let (token, expires) = cluster.service_account_token(namespace, name, audience.as_deref(), seconds).await?;
        expires_at = expires_at.min(expires);
        let file = |(path, mode): &(String, u32)| ProjectedToken {
            path: path.clone(),
            mode: *mode,
            token: token.expose_secret().into(),
        };
        files.extend(places.iter().map(file));
    }
    let Endpoint { server, certificate_authority } = cluster.endpoint();
    let token = token.expose_secret().into();
    let access = ClusterAccess { server, certificate_authority, namespace: namespace.clone(), token };
    Ok(Identity { version: VERSION, cluster: access, web_identity, projected: files, expires_at })
}

/// A `RoleBinding` grants which `ServiceAccounts` a run may use, and from which namespaces runs may
/// come.
pub(crate) fn refused(error: Error) -> Stop {
    match error {
        Error::Permanent { message, .. } => {
            let remedy = "to let runs use the ServiceAccounts of this namespace, bind the ClusterRole driftless:run-identity \
                 in it (infra/kubernetes/runs)";
            Stop::Wait(WaitReason::ServiceAccountForbidden, format!("{message}; {remedy}"))
        }
        error => error.into(),
    }
}

/// `arn:<partition>:iam::<account>:role/<path and name>`
fn is_role(arn: &str) -> bool {
    let parts: Vec<_> = arn.splitn(6, ':').collect();
    let ["arn", partition, "iam", "", account, role] = parts[..] else { return false };
    let name = role.strip_prefix("role/").unwrap_or_default();
    !partition.is_empty()
        && partition.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'-'))
        && account.len() == 12
        && account.bytes().all(|byte| byte.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_+=,.@-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use driftless_testkit::{Faults, World};
    use serde_json::json;

    use super::*;

    /// The account of a workspace that names `deploy`, with the annotations.
    fn account_with(world: &World, annotations: &serde_json::Value) -> Result<Account, (&'static str, String)> {
        world.insert(json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "namespace": "n", "name": "deploy", "annotations": annotations },
        }));
        read(world, Some("deploy"))
    }

    fn read(world: &World, name: Option<&str>) -> Result<Account, (&'static str, String)> {
        let workspace = WorkspaceSpec { service_account_name: name.map(Into::into), ..WorkspaceSpec::default() };
        world.drive(account(world, "n", &workspace, &[])).unwrap().map_err(|stop| match stop {
            Stop::Wait(reason, words) => (reason.as_str(), words),
            Stop::Fail(error) => panic!("{error}"),
        })
    }

    #[test]
    fn run_uses_the_service_account_of_its_workspace_or_default() {
        let world = World::new(0, Faults::NONE);
        let role = "arn:aws:iam::123456789012:role/ci/deploy";
        let deploy = account_with(&world, &json!({ ROLE: role })).unwrap();
        let identity = world.drive(tokens(&world, &deploy, 3600)).unwrap().ok().unwrap();
        assert!(identity.cluster.token.ends_with("of n/deploy for kubernetes"), "{}", identity.cluster.token);
        assert_eq!((identity.cluster.server.as_str(), identity.cluster.namespace.as_str()), ("https://kubernetes.example", "n"));
        assert_eq!(identity.expires_at, world.now() + SignedDuration::from_hours(1));
        let web = identity.web_identity.unwrap();
        assert!(web.role_arn == role && web.token.ends_with("of n/deploy for sts.amazonaws.com"));
        let account = account_with(&world, &json!({ ROLE: role, AUDIENCE: "mine" })).unwrap();
        let web = world.drive(tokens(&world, &account, 3600)).unwrap().ok().unwrap().web_identity.unwrap();
        assert!(web.token.ends_with("for mine"));
        for name in [None, Some("")] {
            let account = read(&world, name).unwrap();
            assert_eq!((account.name.as_str(), &account.role), ("default", &None));
        }
    }

    #[test]
    fn missing_service_account_and_invalid_role_are_named() {
        let world = World::new(0, Faults::NONE);
        let (reason, words) = read(&world, Some("gone")).unwrap_err();
        assert_eq!(reason, "ServiceAccountNotFound");
        assert!(words.contains("ServiceAccount \"gone\" not found in namespace \"n\"; create it"), "{words}");
        for role in [
            "",
            "deploy",
            "arn:aws:iam::12345678901:role/x",
            "arn:aws:iam::12345678901x:role/x",
            "arn:aws:iam:eu-west-1:123456789012:role/x",
            "arn:aws:iam::123456789012:user/x",
            "arn:aws:iam::123456789012:role/",
            "arn:aws:iam::123456789012:role/x y",
            "arn::iam::123456789012:role/x",
        ] {
            let (reason, words) = account_with(&world, &json!({ ROLE: role })).unwrap_err();
            assert_eq!(reason, "ServiceAccountInvalid");
            assert!(
                words.contains(&format!("annotation {ROLE} of ServiceAccount \"deploy\" is {role:?}; write the ARN of a role")),
                "{words}"
            );
        }
        assert!(is_role("arn:aws-us-gov:iam::123456789012:role/a+b=c,d.e@f_g-h"));
        let forbidden = refused(Error::Permanent { call: "get".into(), message: "forbidden".into() });
        assert!(
            matches!(forbidden, Stop::Wait(WaitReason::ServiceAccountForbidden, words) if words.contains("driftless:run-identity"))
        );
    }
}
