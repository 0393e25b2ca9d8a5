//! Web identities: a workload assumes a role with a token of an OIDC provider that the account
//! knows, here a cluster.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use axum::http::StatusCode;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use jiff::Timestamp;
use serde_json::Value;

use super::policy::{self, Demand, Policy, Statement, Who};

/// The audience of tokens for STS: the provider's one client id.
const AUDIENCE: &str = "sts.amazonaws.com";
const ACTION: &str = "sts:AssumeRoleWithWebIdentity";

/// What an administrator adds to IAM for the runs of a cluster: the cluster as an OIDC provider,
/// and roles that trust it.
#[derive(Default)]
pub struct Federation {
    /// The issuer of the cluster's tokens, with `https://`.
    pub issuer: String,
    /// The JWKS document of the issuer. Only keys for ES256 are supported.
    pub keys: Value,
    /// The trust policies of roles outside the template, by ARN.
    pub roles: BTreeMap<String, Policy>,
}

/// Why STS refuses a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The token is none of the provider for STS.
    #[error("{0}")]
    Invalid(&'static str),
    /// The token was valid.
    #[error("Token expired: the current time must be before the expiration time")]
    Expired,
    /// The role does not trust the holder, or does not exist.
    #[error("Not authorized to perform sts:AssumeRoleWithWebIdentity")]
    Untrusted,
}

impl Denial {
    /// The status and the code of STS's answer.
    pub fn answer(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, "InvalidIdentityToken"),
            Self::Expired => (StatusCode::BAD_REQUEST, "ExpiredTokenException"),
            Self::Untrusted => (StatusCode::FORBIDDEN, "AccessDenied"),
        }
    }
}

impl Federation {
    /// Returns whether the holder of the token may assume the role, whose trust policy is that of
    /// the template, if it has the role.
    pub fn admit(
        &self,
        account: &str,
        role: &str,
        trust: Option<&[Statement]>,
        token: &str,
        now: Timestamp,
    ) -> Result<(), Denial> {
        let claims = self.verify(token, now)?;
        let issuer = self.issuer.trim_start_matches("https://");
        let demand = Demand::new(ACTION, role)
            .with(&format!("{issuer}:aud"), AUDIENCE)
            .with(&format!("{issuer}:sub"), claims["sub"].as_str().unwrap_or_default());
        let provider = format!("arn:aws:iam::{account}:oidc-provider/{issuer}");
        let trust = trust.or_else(|| self.roles.get(role).map(|policy| &policy.statement[..])).unwrap_or_default();
        if policy::allows(trust, Who::Federated(&provider), &demand) { Ok(()) } else { Err(Denial::Untrusted) }
    }

    /// The claims of a valid token.
    fn verify(&self, token: &str, now: Timestamp) -> Result<Value, Denial> {
        let parse = || {
            let (signed, signature) = token.rsplit_once('.')?;
            let (header, claims) = signed.split_once('.')?;
            Some((signed, decode(signature)?, json(header)?, json(claims)?))
        };
        let (signed, signature, header, claims) = parse().ok_or(Denial::Invalid(
            "The ID Token provided is not a valid JWT. (You may see this error if you sent an Access Token)",
        ))?;
        if self.issuer.is_empty() || claims["iss"] != self.issuer.as_str() {
            return Err(Denial::Invalid("No OpenIDConnect provider found in your account for the issuer of the token"));
        }
        let mut keys = self.keys["keys"].as_array().into_iter().flatten();
        let key = keys.find(|key| key["kid"] == header["kid"] && key["alg"] == "ES256" && header["alg"] == "ES256");
        let point = key.and_then(|key| Some([vec![4], decode(key["x"].as_str()?)?, decode(key["y"].as_str()?)?].concat()));
        let point = point.ok_or(Denial::Invalid("Couldn't retrieve verification key from your identity provider"))?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(signed.as_bytes(), &signature)
            .map_err(|_| Denial::Invalid("The signature of the token is not that of its issuer"))?;
        if claims["aud"] != AUDIENCE && !claims["aud"].as_array().is_some_and(|all| all.iter().any(|one| one == AUDIENCE)) {
            return Err(Denial::Invalid("Incorrect token audience"));
        }
        if claims["exp"].as_i64().is_none_or(|expires| expires <= now.as_second()) {
            return Err(Denial::Expired);
        }
        Ok(claims)
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}

fn json(text: &str) -> Option<Value> {
    serde_json::from_slice(&decode(text)?).ok()
}
