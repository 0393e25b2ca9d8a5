//! Signatures of requests: each is computed again from the caller's secret key and compared. For S3
//! also the hash and the checksums of a body, which are verified while the body passes.

use std::{
    collections::BTreeMap,
    error::Error,
    iter::successors,
    time::{Duration, SystemTime},
};

use aws_lc_rs::digest;
use aws_sigv4::{
    http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SignatureLocation, SigningSettings,
        UriPathNormalizationMode, sign,
    },
    sign::v4,
};
use aws_smithy_checksums::{ChecksumAlgorithm, http::HttpChecksum};
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, StatusCode, header, request::Parts},
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures::{TryStreamExt as _, future, stream};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

use url::form_urlencoded;

use super::{
    chunks::{Chunks, TRAILED},
    identity::Credentials,
};

/// The services whose calls the world answers itself or checks in detail. Any other is the
/// administrator's, at moto.
const KNOWN: [&str; 5] = ["ecs", "s3", "secretsmanager", "sqs", "sts"];
/// The maximum difference between a caller's clock and that of AWS.
const SKEW: SignedDuration = SignedDuration::from_mins(15);
/// Headers that the signer adds itself.
const ADDED: [&str; 3] = [CONTENT, "x-amz-date", "x-amz-security-token"];
/// The SHA-256 of a body in hex, or why the signature is of no body.
const CONTENT: &str = "x-amz-content-sha256";

/// A flaw of a request's signature or body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The key pair is of no caller, or has expired.
    #[error("the access key id you provided does not exist in our records")]
    Key,
    /// No time, or none in the form of AWS.
    #[error("the request has no valid date")]
    Time,
    /// The time is too far from now.
    #[error("the difference between the request time and the current time is too large")]
    Skew,
    /// The token of the session is not the one of these keys.
    #[error("the security token included in the request is invalid")]
    Token,
    /// Signed for another Region or service.
    #[error("the credential is not scoped to this Region and service")]
    Scope,
    /// The link no longer works.
    #[error("Request has expired")]
    Expired,
    /// Signed with another secret, or another request was signed.
    #[error("the request signature we calculated does not match the signature you provided")]
    Signature,
    /// The body has another hash than the signed one.
    #[error("the provided 'x-amz-content-sha256' header does not match what was computed")]
    Content,
    /// The body has another checksum than a header says.
    #[error("the checksum you specified did not match the calculated checksum")]
    Digest,
}

impl Flaw {
    /// The status and the code of a service's answer.
    pub fn answer(self, service: &str) -> (StatusCode, &'static str) {
        match (service, self) {
            ("ecs" | "secretsmanager" | "sqs", Self::Key | Self::Token) => {
                (StatusCode::BAD_REQUEST, "UnrecognizedClientException")
            }
            ("ecs" | "secretsmanager" | "sqs", _) => (StatusCode::BAD_REQUEST, "InvalidSignatureException"),
            ("s3", Self::Key) => (StatusCode::FORBIDDEN, "InvalidAccessKeyId"),
            ("s3", Self::Time | Self::Expired) => (StatusCode::FORBIDDEN, "AccessDenied"),
            ("s3", Self::Skew) => (StatusCode::FORBIDDEN, "RequestTimeTooSkewed"),
            ("s3", Self::Token) => (StatusCode::BAD_REQUEST, "InvalidToken"),
            ("s3", Self::Scope) => (StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed"),
            (_, Self::Content) => (StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch"),
            (_, Self::Digest) => (StatusCode::BAD_REQUEST, "BadDigest"),
            (_, Self::Key | Self::Token) => (StatusCode::FORBIDDEN, "InvalidClientTokenId"),
            _ => (StatusCode::FORBIDDEN, "SignatureDoesNotMatch"),
        }
    }

    /// The flaw for which a body was not sent to its end.
    pub fn of_body(error: &(dyn Error + 'static)) -> Option<Self> {
        successors(Some(error), |&error| error.source()).find_map(|error| error.downcast_ref().copied())
    }
}

/// The access key id of a request that is signed in its query: a link.
pub fn link_key(parts: &Parts) -> Option<String> {
    let mut pairs = form_urlencoded::parse(parts.uri.query()?.as_bytes());
    let scope = pairs.find(|(name, _)| name == "X-Amz-Credential")?.1.into_owned();
    scope.split('/').next().map(ToOwned::to_owned)
}

/// Verifies a link: a GET of S3 that is signed in its query, by the holder of these keys, and not
/// expired.
pub fn verify_link(parts: &Parts, keys: &Credentials, region: &str, now: Timestamp) -> Result<(), Flaw> {
    let query: BTreeMap<_, _> = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let parameter = |name: &str| query.get(name).map(String::as_str);
    let scope: Vec<_> = parameter("X-Amz-Credential").unwrap_or_default().split('/').collect();
    let [_, _, signed_region, "s3", "aws4_request"] = scope[..] else { return Err(Flaw::Scope) };
    if signed_region != region || parts.method != Method::GET {
        return Err(Flaw::Scope);
    }
    let at = parameter("X-Amz-Date").and_then(time).ok_or(Flaw::Time)?;
    let lifetime: u64 = parameter("X-Amz-Expires").and_then(|seconds| seconds.parse().ok()).ok_or(Flaw::Time)?;
    if parameter("X-Amz-Security-Token") != keys.session_token.as_deref() {
        return Err(Flaw::Token);
    }
    let age = now.duration_since(at);
    if age < -SKEW || age > SignedDuration::from_secs(i64::try_from(lifetime).map_err(|_| Flaw::Time)?) {
        return Err(Flaw::Expired);
    }
    let made = link_signature(parts, keys, signed_region, at, Duration::from_secs(lifetime));
    if made.is_some() && made.as_deref() == parameter("X-Amz-Signature") { Ok(()) } else { Err(Flaw::Signature) }
}

/// The signature of the holder of the keys for a link.
fn link_signature(parts: &Parts, keys: &Credentials, region: &str, at: Timestamp, lifetime: Duration) -> Option<String> {
    let mut settings = settings("s3", false);
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(lifetime);
    let Credentials { access_key_id, secret_access_key, session_token } = keys.clone();
    let identity = aws_credential_types::Credentials::new(access_key_id, secret_access_key, session_token, None, "world").into();
    let params = v4::SigningParams::builder().identity(&identity).region(region).name("s3").time(SystemTime::from(at));
    let params = params.settings(settings).build().ok()?.into();
    // What the signer adds itself.
    let own =
        parts.uri.query()?.split('&').filter(|pair| pair.starts_with("x-id=") || !pair.to_lowercase().starts_with("x-amz-"));
    let own = own.collect::<Vec<_>>().join("&");
    let uri = format!("http://{}{}?{own}", text(&parts.headers, header::HOST.as_str())?, parts.uri.path());
    let body = SignableBody::UnsignedPayload;
    let request = SignableRequest::new(parts.method.as_str(), uri, std::iter::empty(), body).ok()?;
    Some(sign(request, &params).ok()?.into_parts().1)
}

/// Verifies the signature of a request by the holder of these keys. `body` is that of every service
/// but S3, whose requests have its hash in a header.
pub fn verify(parts: &Parts, body: Option<&Bytes>, keys: &Credentials, region: &str, now: Timestamp) -> Result<(), Flaw> {
    let authorization = text(&parts.headers, header::AUTHORIZATION.as_str()).unwrap_or_default();
    let scope: Vec<_> = part(authorization, "Credential=").unwrap_or_default().split('/').collect();
    let [_, _, signed_region, service, "aws4_request"] = scope[..] else { return Err(Flaw::Scope) };
    if KNOWN.contains(&service) && (signed_region != region || service != addressed(parts)) {
        return Err(Flaw::Scope);
    }
    let at = text(&parts.headers, "x-amz-date").and_then(time).ok_or(Flaw::Time)?;
    if text(&parts.headers, "x-amz-security-token") != keys.session_token.as_deref() {
        return Err(Flaw::Token);
    }
    if now.duration_since(at).abs() > SKEW {
        return Err(Flaw::Skew);
    }
    let made = signature(parts, body, authorization, keys, (signed_region, service), at);
    if made.is_some() && made.as_deref() == part(authorization, "Signature=") { Ok(()) } else { Err(Flaw::Signature) }
}

/// The service that a request is for. On AWS each has its own host, here its own protocol.
fn addressed(parts: &Parts) -> &str {
    let target = text(&parts.headers, "x-amz-target").and_then(|target| target.split_once('.'));
    match target {
        Some(("AmazonSQS", _)) => "sqs",
        Some(("AmazonEC2ContainerServiceV20141113", _)) => "ecs",
        Some((other, _)) => other,
        None if is_form(parts) => "sts",
        None => "s3",
    }
}

/// Returns whether it is in the protocol of STS: a form, sent to no path.
pub fn is_form(parts: &Parts) -> bool {
    let kind = text(&parts.headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    parts.uri.path() == "/" && kind.starts_with("application/x-www-form-urlencoded")
}

/// The signature of the holder of the keys.
fn signature(
    parts: &Parts,
    body: Option<&Bytes>,
    authorization: &str,
    keys: &Credentials,
    (region, service): (&str, &str),
    at: Timestamp,
) -> Option<String> {
    let signed: Vec<_> = part(authorization, "SignedHeaders=")?.split(';').collect();
    let settings = settings(service, body.is_none() || signed.contains(&CONTENT));
    let Credentials { access_key_id, secret_access_key, session_token } = keys.clone();
    let identity = aws_credential_types::Credentials::new(access_key_id, secret_access_key, session_token, None, "world").into();
    let params = v4::SigningParams::builder().identity(&identity).region(region).name(service).time(SystemTime::from(at));
    let params = params.settings(settings).build().ok()?.into();
    let names = signed.into_iter().filter(|name| !ADDED.contains(name));
    let headers: Option<Vec<_>> = names.map(|name| Some((name, text(&parts.headers, name)?))).collect();
    let uri = format!("http://{}{}", text(&parts.headers, header::HOST.as_str())?, parts.uri);
    let body = match body {
        Some(body) => SignableBody::Bytes(body),
        None => SignableBody::Precomputed(text(&parts.headers, CONTENT)?.into()),
    };
    let request = SignableRequest::new(parts.method.as_str(), uri, headers?.into_iter(), body).ok()?;
    Some(sign(request, &params).ok()?.into_parts().1)
}

/// The settings of a service's signatures. `hashed`: the hash of the body is a header too.
pub(super) fn settings(service: &str, hashed: bool) -> SigningSettings {
    let mut settings = SigningSettings::default();
    if service == "s3" {
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    }
    if hashed {
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    }
    settings.excluded_headers = None;
    settings
}

/// The body of a request to S3. If it is not the declared one, it ends with a [`Flaw`] in place of
/// its last piece, so that the far end never has all of it.
pub fn checked(headers: &HeaderMap, body: Body) -> reqwest::Body {
    let state = Some((body.into_data_stream(), Declared::of(headers), Bytes::new()));
    let pieces = stream::try_unfold(state, async |state| {
        let Some((mut pieces, mut declared, held)) = state else { return Ok::<_, Box<dyn Error + Send + Sync>>(None) };
        let Some(piece) = pieces.try_next().await? else {
            declared.verify()?;
            return Ok(Some((held, None)));
        };
        declared.update(&piece);
        Ok(Some((held, Some((pieces, declared, piece)))))
    });
    reqwest::Body::wrap_stream(pieces.try_filter(|piece| future::ready(!piece.is_empty())))
}

/// The hash and the checksums that the headers of a request declare. A body in chunks has its
/// checksum behind them, and no hash.
pub struct Declared {
    /// In hex, with that of the body so far.
    hash: Option<(String, digest::Context)>,
    checksums: Vec<(Vec<u8>, Box<dyn HttpChecksum>)>,
    chunks: Option<Chunks>,
}

impl Declared {
    /// Reads them.
    pub fn of(headers: &HeaderMap) -> Self {
        // A link declares none.
        let hash = text(headers, CONTENT).unwrap_or("UNSIGNED-PAYLOAD");
        if TRAILED.contains(&hash) {
            return Self { hash: None, checksums: Vec::new(), chunks: Some(Chunks::of(headers)) };
        }
        let hash = (hash != "UNSIGNED-PAYLOAD").then(|| (hash.to_owned(), digest::Context::new(&digest::SHA256)));
        let checksums = headers.iter().filter_map(|(name, value)| {
            let algorithm: ChecksumAlgorithm = name.as_str().strip_prefix("x-amz-checksum-")?.parse().ok()?;
            // A text that is no Base64 is no checksum of any body.
            Some((BASE64_STANDARD.decode(value).unwrap_or_default(), algorithm.into_impl()))
        });
        Self { hash, checksums: checksums.collect(), chunks: None }
    }

    fn update(&mut self, piece: &[u8]) {
        if let Some((_, context)) = &mut self.hash {
            context.update(piece);
        }
        for (_, checksum) in &mut self.checksums {
            checksum.update(piece);
        }
        if let Some(chunks) = &mut self.chunks {
            chunks.update(piece);
        }
    }

    /// Returns whether the body so far is the declared one.
    pub fn verify(self) -> Result<(), Flaw> {
        if self.hash.is_some_and(|(hash, context)| base16ct::lower::encode_string(context.finish().as_ref()) != hash) {
            return Err(Flaw::Content);
        }
        let differs = self.checksums.into_iter().any(|(declared, checksum)| checksum.finalize() != declared);
        if differs || self.chunks.is_some_and(|chunks| !chunks.verify()) { Err(Flaw::Digest) } else { Ok(()) }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn part<'a>(authorization: &'a str, name: &str) -> Option<&'a str> {
    authorization.split_once(name)?.1.split([',', ' ']).next()
}

fn time(text: &str) -> Option<Timestamp> {
    Some(DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}
