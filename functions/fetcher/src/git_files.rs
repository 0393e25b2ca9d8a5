//! Files that every git fetch needs and that are too large for a function's environment. Each is an
//! object of S3 whose ARN is a parameter of the template.

use driftless_aws::Objects;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// The host keys of an installation that sets none.
const KNOWN_HOSTS: &str = "\
github.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl
gitlab.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfuCHKVTjquxvt6CM6tdG4SLp1Btn/nOeHHE5UOzRdf
";

/// Why a parameter's object cannot be used. Never holds its content.
#[derive(Debug, thiserror::Error)]
#[error("{parameter} is {arn:?}: {why}; no git source is fetched; {remedy}")]
pub struct Error {
    parameter: &'static str,
    arn: String,
    why: String,
    remedy: String,
}

impl Error {
    fn new(parameter: &'static str, arn: &str, why: impl Into<String>) -> Self {
        let remedy = format!("deploy with PARAMETERS={parameter}=@FILE");
        Self { parameter, arn: arn.into(), why: why.into(), remedy }
    }
}

/// Reads the lines of `known_hosts` that `GitKnownHosts` names, or returns those of github.com and
/// gitlab.com. `open` opens a bucket.
pub async fn known_hosts<O: Objects>(arn: Option<String>, open: impl FnOnce(String) -> O) -> Result<String, Error> {
    match arn {
        Some(arn) => read("GitKnownHosts", &arn, open).await,
        None => Ok(KNOWN_HOSTS.into()),
    }
}

/// Reads the certificates that `GitCaCertificates` names, as PEM, and checks each of them. Empty if
/// the parameter is not set.
pub async fn ca_certificates<O: Objects>(arn: Option<String>, open: impl FnOnce(String) -> O) -> Result<String, Error> {
    const PARAMETER: &str = "GitCaCertificates";
    let Some(arn) = arn else { return Ok(String::new()) };
    let text = read(PARAMETER, &arn, open).await?;
    check(&text).map_err(|why| Error::new(PARAMETER, &arn, why))?;
    Ok(text)
}

async fn read<O: Objects>(parameter: &'static str, arn: &str, open: impl FnOnce(String) -> O) -> Result<String, Error> {
    let wrong = |why: String| Error::new(parameter, arn, why);
    let (bucket, key) = object(arn).ok_or_else(|| wrong("it is not the ARN of an object in S3".into()))?;
    let content = open(bucket.into()).get(key).await.map_err(|error| wrong(error.to_string()))?;
    let content = content.ok_or_else(|| wrong("object not found".into()))?;
    String::from_utf8(content).map_err(|_| wrong("it is not UTF-8 text".into()))
}

/// The bucket and the key of an object's ARN, `arn:<partition>:s3:::<bucket>/<key>`.
fn object(arn: &str) -> Option<(&str, &str)> {
    let (_, name) = arn.strip_prefix("arn:")?.split_once(":s3:::")?;
    name.split_once('/').filter(|(bucket, key)| !bucket.is_empty() && !key.is_empty())
}

fn check(pem: &str) -> Result<(), String> {
    let (mut roots, mut count) = (RootCertStore::empty(), 0_usize);
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        count += 1;
        let added =
            certificate.map_err(|error| error.to_string()).and_then(|one| roots.add(one).map_err(|error| error.to_string()));
        added.map_err(|why| format!("certificate {count} is not valid PEM of an X.509 certificate: {why}"))?;
    }
    if count == 0 { Err("it contains no PEM certificate".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use driftless_testkit::{Faults, World};

    use super::*;

    #[test]
    fn object_is_bucket_and_key_of_its_arn() {
        assert_eq!(object("arn:aws:s3:::b/git/ca.pem"), Some(("b", "git/ca.pem")));
        assert_eq!(object("arn:aws-cn:s3:::b/k"), Some(("b", "k")));
        for wrong in ["", "b/k", "arn:aws:s3:::b", "arn:aws:s3:::b/", "arn:aws:sqs:::b/k", "-----BEGIN CERTIFICATE-----"] {
            assert_eq!(object(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bundle_without_valid_certificates_is_refused() {
        for (pem, words) in [
            ("", "it contains no PEM certificate"),
            ("github.com ssh-ed25519 AAAA", "it contains no PEM certificate"),
            ("-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n", "certificate 1 is not valid PEM"),
            ("-----BEGIN CERTIFICATE-----\nYQ==\n", "certificate 1 is not valid PEM"),
        ] {
            assert!(check(pem).unwrap_err().starts_with(words), "{pem:?}: {:?}", check(pem));
        }
    }

    #[tokio::test]
    async fn error_names_the_parameter_and_the_remedy() {
        let open = |_| World::new(1, Faults::NONE);
        let error = ca_certificates(Some("arn:aws:s3:::b/ca.pem".into()), open).await.unwrap_err().to_string();
        let words = "GitCaCertificates is \"arn:aws:s3:::b/ca.pem\": object not found; no git source is fetched; deploy \
                     with PARAMETERS=GitCaCertificates=@FILE";
        assert_eq!(error, words);
        let error = known_hosts(Some("github.com ssh-ed25519 A".into()), open).await.unwrap_err().to_string();
        assert!(error.contains("it is not the ARN of an object in S3"), "{error}");
        assert!(known_hosts(None, open).await.unwrap().starts_with("github.com ssh-ed25519 "));
        assert_eq!(ca_certificates(None, open).await.unwrap(), "");
    }
}
