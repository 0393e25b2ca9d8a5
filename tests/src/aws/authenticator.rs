//! The authentication of an EKS cluster: a `TokenReview` webhook that accepts the same tokens as
//! EKS, with the same checks, for the roles with an access entry. Here these are the functions with
//! a kubeconfig. There is no STS to ask, so the signature is computed again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use axum::{Json, Router, extract::State};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    identity::{Caller, Credentials},
    machine::now,
    site::Site,
    template::Template,
};

/// The maximum length of a token.
const BYTES: usize = 4096;
/// The maximum age of a signature in STS.
const AGE: SignedDuration = SignedDuration::from_mins(15);
/// How far a caller's clock may be ahead of STS's.
const AHEAD: SignedDuration = SignedDuration::from_mins(5);
/// All fields that a token's query may have.
const NAMES: [&str; 9] = [
    "action",
    "version",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// An EKS cluster's authenticator.
pub struct Eks {
    /// The cluster's name in EKS.
    pub cluster: String,
    /// The listener for the API server.
    pub listener: TcpListener,
}

/// Serves until the world ends.
pub fn serve(site: &Arc<Site>, eks: Eks) {
    let state = Arc::new((Arc::clone(site), eks.cluster));
    let router = Router::new().fallback(review).with_state(state);
    site.tasks.spawn(async move {
        if let Err(error) = axum::serve(eks.listener, router).await {
            tracing::error!(%error, "the authenticator ended");
        }
    });
}

async fn review(State(state): State<Arc<(Arc<Site>, String)>>, Json(review): Json<Value>) -> Json<Value> {
    let (site, cluster) = &*state;
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let holder = |key: &str| site.identities.holder(key, now());
    let admitted = caller(token, cluster, now(), holder).and_then(|caller| {
        let group = group(&site.template, &caller).with_context(|| format!("{} has no access entry", caller.arn))?;
        Ok(json!({ "authenticated": true, "user": { "username": caller.arn, "uid": caller.userid, "groups": [group] } }))
    });
    let status = admitted.unwrap_or_else(|error| {
        tracing::info!(error = format!("{error:#}"), "a token is refused");
        json!({ "authenticated": false, "error": format!("{error:#}") })
    });
    Json(json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status }))
}

/// The name of the function with this role in `infra/kubernetes/rbac.yaml`.
fn group(template: &Template, caller: &Caller) -> Option<String> {
    let role = caller.role.as_ref()?;
    let (id, function) = template.functions.iter().find(|(_, function)| function.role == *role)?;
    function.environment.contains_key("KUBECONFIG_SECRET").then(|| format!("driftless:{}", id.to_lowercase()))
}

/// The signer of a token for that cluster. `holder` knows the keys.
fn caller(
    token: &str,
    cluster: &str,
    now: Timestamp,
    holder: impl Fn(&str) -> Option<(Arc<Caller>, Credentials)>,
) -> Result<Arc<Caller>> {
    ensure!(token.len() <= BYTES, "it is too long");
    let url = token.strip_prefix("k8s-aws-v1.").context("it is none of EKS")?;
    let url = url::Url::parse(std::str::from_utf8(&BASE64_URL_SAFE_NO_PAD.decode(url)?)?)?;
    let mut query = BTreeMap::new();
    for (name, value) in url.query_pairs() {
        let name = name.to_lowercase();
        ensure!(NAMES.contains(&name.as_str()), "its query has {name}");
        ensure!(query.insert(name.clone(), value.into_owned()).is_none(), "its query has {name} twice");
    }
    let get = |name: &str| query.get(name).map(String::as_str).with_context(|| format!("its query has no {name}"));

    let credential: Vec<_> = get("x-amz-credential")?.split('/').collect();
    let [key, _, region, "sts", "aws4_request"] = credential[..] else { bail!("it is not signed for STS") };
    let host = format!("sts.{region}.amazonaws.com");
    ensure!(url.scheme() == "https" && url.host_str() == Some(&host) && url.port().is_none(), "it does not go to {host}");
    ensure!(url.path() == "/" && url.username().is_empty() && url.fragment().is_none(), "its path is not /");
    ensure!(get("action")? == "GetCallerIdentity", "it does not ask who calls");
    let signed: BTreeSet<_> = get("x-amz-signedheaders")?.split(';').collect();
    ensure!(signed.contains("x-k8s-aws-id"), "the cluster is not signed");
    let expires: u64 = get("x-amz-expires")?.parse()?;
    ensure!(expires <= 900, "it is to last {expires} s");
    let date = DateTime::strptime("%Y%m%dT%H%M%SZ", get("x-amz-date")?)?.to_zoned(TimeZone::UTC)?.timestamp();
    ensure!(date <= now + AHEAD && now <= date + AGE, "it is of {date}");

    let (caller, keys) = holder(key).context("nobody has these keys")?;
    ensure!(query.get("x-amz-security-token") == keys.session_token.as_ref(), "it is of another session");
    let question = format!("https://{host}/?Action=GetCallerIdentity&Version={}", get("version")?);
    ensure!(get("x-amz-signature")? == signature(&keys, region, &question, cluster, date, expires)?, "its signature is wrong");
    Ok(caller)
}

/// The signature of the holder of these keys for this cluster.
fn signature(keys: &Credentials, region: &str, url: &str, cluster: &str, at: Timestamp, expires: u64) -> Result<String> {
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(Duration::from_secs(expires));
    let Credentials { access_key_id, secret_access_key, session_token } = keys.clone();
    let identity = aws_credential_types::Credentials::new(access_key_id, secret_access_key, session_token, None, "world").into();
    let params = v4::SigningParams::builder().identity(&identity).region(region).name("sts");
    let params = params.time(SystemTime::from(at)).settings(settings).build()?.into();
    let header = [("x-k8s-aws-id", cluster)];
    let (_, signature) =
        sign(SignableRequest::new("GET", url, header.into_iter(), SignableBody::Bytes(&[]))?, &params)?.into_parts();
    Ok(signature)
}

#[cfg(test)]
mod tests {
    use driftless_aws::{Account, Keyring as _};
    use secrecy::ExposeSecret as _;

    use super::*;

    fn keys(secret: &str) -> Credentials {
        Credentials {
            access_key_id: "ASIA1".into(),
            secret_access_key: secret.into(),
            session_token: Some("a+session/token=".into()),
        }
    }

    fn at() -> Timestamp {
        "2026-11-22T05:06:07Z".parse().unwrap()
    }

    /// A function's token for the cluster `shop`.
    async fn token(keys: Credentials) -> String {
        let Credentials { access_key_id, secret_access_key, session_token } = keys;
        let keys = aws_credential_types::Credentials::new(access_key_id, secret_access_key, session_token, None, "test");
        let config = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::v2026_01_12())
            .region(aws_config::Region::new("eu-west-1"))
            .credentials_provider(aws_credential_types::provider::SharedCredentialsProvider::new(keys))
            .build();
        Account::new(&config).eks_token("shop", None, at()).await.unwrap().expose_secret().to_owned()
    }

    fn refused(token: &str, cluster: &str, now: Timestamp) -> Option<String> {
        let arn = "arn:aws:sts::1:assumed-role/r/s";
        let known = Arc::new(Caller { arn: arn.into(), userid: "AROA:s".into(), role: Some("R".into()), expires: None });
        let caller = caller(token, cluster, now, |key| (key == "ASIA1").then(|| (Arc::clone(&known), keys("secret"))));
        caller.inspect(|caller| assert_eq!(caller.arn, arn)).err().map(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn a_token_admits_its_signer_to_its_cluster_for_15_minutes() {
        let good = token(keys("secret")).await;
        for (seconds, admitted) in [(-301, false), (-300, true), (0, true), (840, true), (900, true), (901, false)] {
            let error = refused(&good, "shop", at() + SignedDuration::from_secs(seconds));
            assert_eq!(error.is_none(), admitted, "{seconds}: {error:?}");
        }
        assert_eq!(refused(&good, "other", at()).as_deref(), Some("its signature is wrong"));
        assert_eq!(refused(&token(keys("guessed")).await, "shop", at()).as_deref(), Some("its signature is wrong"));
        let stranger = Credentials { access_key_id: "ASIA2".into(), ..keys("secret") };
        assert_eq!(refused(&token(stranger).await, "shop", at()).as_deref(), Some("nobody has these keys"));
        let other_session = Credentials { session_token: None, ..keys("secret") };
        assert_eq!(refused(&token(other_session).await, "shop", at()).as_deref(), Some("it is of another session"));
    }

    #[tokio::test]
    async fn what_is_changed_in_a_token_is_noticed() {
        let good = token(keys("secret")).await;
        let url = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(good.strip_prefix("k8s-aws-v1.").unwrap()).unwrap()).unwrap();
        for (from, to, words) in [
            ("https://", "http://", "does not go to sts.eu-west-1"),
            ("sts.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com.example", "does not go to sts.eu-west-1"),
            ("sts.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com:444", "does not go to sts.eu-west-1"),
            ("/?", "/x?", "its path is not /"),
            ("GetCallerIdentity", "AssumeRole", "it does not ask who calls"),
            ("Version=", "DurationSeconds=1&Version=", "its query has durationseconds"),
            ("Version=", "Action=GetCallerIdentity&Version=", "its query has action twice"),
            ("%3Bx-k8s-aws-id", "", "the cluster is not signed"),
            ("X-Amz-Expires=60", "X-Amz-Expires=901", "it is to last 901 s"),
            ("X-Amz-Expires=60", "X-Amz-Expires=61", "its signature is wrong"),
            ("T050607Z", "T050606Z", "its signature is wrong"),
            ("Fsts%2F", "Fs3%2F", "it is not signed for STS"),
        ] {
            assert!(url.contains(from), "{from} is not in {url}");
            let token = format!("k8s-aws-v1.{}", BASE64_URL_SAFE_NO_PAD.encode(url.replacen(from, to, 1)));
            let error = refused(&token, "shop", at()).unwrap_or_default();
            assert!(error.contains(words), "{to}: {error:?}");
        }
        assert_eq!(refused("another-token", "shop", at()).as_deref(), Some("it is none of EKS"));
        assert_eq!(refused(&format!("{good}{}", "a".repeat(BYTES)), "shop", at()).as_deref(), Some("it is too long"));
    }
}
