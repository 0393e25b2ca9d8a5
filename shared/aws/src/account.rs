use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials as _, SharedCredentialsProvider},
};
use aws_sdk_secretsmanager::Client;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Request;
use jiff::Timestamp;
use secrecy::SecretString;

use crate::{Error, Keyring, Result, sdk::failure};

/// The value of `X-Amz-Expires`. STS uses `X-Amz-Date`, but EKS requires the field.
const EXPIRES: Duration = Duration::from_mins(1);

/// The function's own account, and its role there.
#[derive(Clone, Debug)]
pub struct Account {
    secrets: Client,
    credentials: Option<SharedCredentialsProvider>,
    region: String,
}

impl Account {
    /// Uses the configuration's credentials and Region.
    #[must_use]
    pub fn new(config: &SdkConfig) -> Self {
        let region = config.region().map(ToString::to_string).unwrap_or_default();
        Self { secrets: Client::new(config), credentials: config.credentials_provider(), region }
    }
}

impl Keyring for Account {
    async fn secret(&self, id: &str) -> Result<SecretString> {
        let call = || format!("secretsmanager:GetSecretValue {id}");
        let secret = self.secrets.get_secret_value().secret_id(id).send().await.map_err(|error| failure(call(), &error))?;
        let text = secret
            .secret_string
            .ok_or_else(|| Error::Permanent { call: call(), message: "it is binary; store it with --secret-string".into() })?;
        Ok(text.into())
    }

    async fn eks_token(&self, cluster: &str, region: Option<&str>, now: Timestamp) -> Result<SecretString> {
        let call = || format!("make a token for the EKS cluster {cluster}");
        let credentials = match &self.credentials {
            Some(credentials) => credentials.provide_credentials().await,
            None => return Err(Error::Permanent { call: call(), message: "this function has no credentials".into() }),
        };
        let credentials = credentials.map_err(|error| Error::Transient { call: call(), message: error.to_string() })?;
        let token = token(credentials, region.unwrap_or(&self.region), cluster, now);
        Ok(token.map_err(|message| Error::Permanent { call: call(), message })?.into())
    }
}

/// The URL of a presigned `sts:GetCallerIdentity` for one cluster only, which EKS accepts as a
/// token: its call returns the identity of the signer. No call is made here.
fn token(credentials: Credentials, region: &str, cluster: &str, now: Timestamp) -> std::result::Result<String, String> {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let url = format!("https://sts.{region}.{domain}/?Action=GetCallerIdentity&Version=2011-06-15");
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(EXPIRES);
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("sts")
        .time(SystemTime::from(now))
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?
        .into();
    let header = [("x-k8s-aws-id", cluster)];
    let signable = SignableRequest::new("GET", &url, header.into_iter(), SignableBody::Bytes(&[]));
    let signable = signable.map_err(|error| error.to_string())?;
    let (instructions, _) = sign(signable, &params).map_err(|error| error.to_string())?.into_parts();
    let mut request = Request::get(&url).body(()).map_err(|error| error.to_string())?;
    instructions.apply_to_request_http1x(&mut request);
    Ok(format!("k8s-aws-v1.{}", BASE64_URL_SAFE_NO_PAD.encode(request.uri().to_string())))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _};

    use hmac::{Hmac, KeyInit as _, Mac as _};
    use sha2::{Digest as _, Sha256};

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn keys(session_token: Option<&str>) -> Credentials {
        Credentials::new("ASIAEXAMPLE", SECRET, session_token.map(Into::into), None, "test")
    }

    fn at() -> Timestamp {
        "2026-11-22T05:06:07.89Z".parse().unwrap()
    }

    fn url(token: &str) -> String {
        let encoded = token.strip_prefix("k8s-aws-v1.").unwrap();
        String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).unwrap()).unwrap()
    }

    fn hmac(key: &[u8], text: &str) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    }

    fn hex(text: &str) -> String {
        base16ct::lower::encode_string(&Sha256::digest(text))
    }

    /// AWS's signature, version 4, implemented a second time.
    fn signature(query: &BTreeMap<String, String>, region: &str, host: &str, cluster: &str) -> String {
        let mut canonical = String::new();
        for (name, value) in query {
            let encoded: String = value.bytes().fold(String::new(), |mut text, byte| {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
                    _ => write!(text, "%{byte:02X}").unwrap(),
                }
                text
            });
            write!(canonical, "{}{name}={encoded}", if canonical.is_empty() { "" } else { "&" }).unwrap();
        }
        let request = format!("GET\n/\n{canonical}\nhost:{host}\nx-k8s-aws-id:{cluster}\n\nhost;x-k8s-aws-id\n{}", hex(""));
        let scope = format!("20261122/{region}/sts/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n20261122T050607Z\n{scope}\n{}", hex(&request));
        let key = ["20261122", region, "sts", "aws4_request"]
            .iter()
            .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| hmac(&key, part));
        base16ct::lower::encode_string(&hmac(&key, &text))
    }

    #[test]
    fn eks_token_is_a_presigned_identity_request_for_one_cluster() {
        for (region, host, session_token) in [
            ("eu-west-1", "sts.eu-west-1.amazonaws.com", Some("FwoGZXIvYXdzE+/=")),
            ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn", None),
        ] {
            let url = url::Url::parse(&url(&token(keys(session_token), region, "shop-1", at()).unwrap())).unwrap();
            assert_eq!((url.scheme(), url.host_str(), url.port(), url.path()), ("https", Some(host), None, "/"));
            let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
            let mut query: BTreeMap<String, String> = pairs.iter().cloned().collect();
            assert_eq!(query.len(), pairs.len(), "each once");
            let signed = query.remove("X-Amz-Signature");
            let credential = format!("ASIAEXAMPLE/20261122/{region}/sts/aws4_request");
            let mut expected: BTreeMap<_, _> = [
                ("Action", "GetCallerIdentity"),
                ("Version", "2011-06-15"),
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
                ("X-Amz-Credential", &credential),
                ("X-Amz-Date", "20261122T050607Z"),
                ("X-Amz-Expires", "60"),
                ("X-Amz-SignedHeaders", "host;x-k8s-aws-id"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
            expected.extend(session_token.map(|token| ("X-Amz-Security-Token".to_owned(), token.to_owned())));
            assert_eq!(query, expected);
            assert_eq!(signed, Some(signature(&query, region, host, "shop-1")));
            assert_ne!(signed, Some(signature(&query, region, host, "shop-2")));
        }
    }

    /// The signature of botocore 1.44 with the same keys at the same time.
    #[test]
    fn a_token_is_the_one_that_aws_eks_get_token_prints() {
        let url = url(&token(keys(Some("FwoGZXIvYXdzE+/=")), "eu-west-1", "shop-1", at()).unwrap());
        let signature = "a8e9999e6ec2712885b0eb021cc526dce72f2d9777a11236e3ce93bcfd3eeab9";
        assert!(url.contains(&format!("&X-Amz-Signature={signature}")), "{url}");
    }
}
