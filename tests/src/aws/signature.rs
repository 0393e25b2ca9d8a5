//! Signatures of requests to S3: each is computed again from the caller's secret key and compared.

use std::time::SystemTime;

use aws_sigv4::{
    http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode, sign,
    },
    sign::v4,
};
use axum::http::{HeaderMap, header, request::Parts};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

use super::identity::Credentials;

/// The maximum difference between a caller's clock and S3's.
const SKEW: SignedDuration = SignedDuration::from_mins(15);
/// Headers that the signer adds itself.
const ADDED: [&str; 3] = ["x-amz-content-sha256", "x-amz-date", "x-amz-security-token"];

/// Returns S3's error code for an invalid signature of a request by the holder of these keys.
pub fn flaw(parts: &Parts, keys: &Credentials, now: Timestamp) -> Option<&'static str> {
    let Some(at) = text(&parts.headers, "x-amz-date").and_then(time) else { return Some("AccessDenied") };
    if text(&parts.headers, "x-amz-security-token") != keys.session_token.as_deref() {
        return Some("InvalidToken");
    }
    if now.duration_since(at).abs() > SKEW {
        return Some("RequestTimeTooSkewed");
    }
    let authorization = text(&parts.headers, header::AUTHORIZATION.as_str()).unwrap_or_default();
    let made = signature(parts, authorization, keys, at);
    if made.is_some() && made.as_deref() == part(authorization, "Signature=") { None } else { Some("SignatureDoesNotMatch") }
}

/// The signature of the holder of the keys.
fn signature(parts: &Parts, authorization: &str, keys: &Credentials, at: Timestamp) -> Option<String> {
    let [_, _, region, service, _] = part(authorization, "Credential=")?.split('/').collect::<Vec<_>>()[..] else { return None };
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings.excluded_headers = None;
    let Credentials { access_key_id, secret_access_key, session_token } = keys.clone();
    let identity = aws_credential_types::Credentials::new(access_key_id, secret_access_key, session_token, None, "world").into();
    let params = v4::SigningParams::builder().identity(&identity).region(region).name(service).time(SystemTime::from(at));
    let params = params.settings(settings).build().ok()?.into();
    let names = part(authorization, "SignedHeaders=")?.split(';').filter(|name| !ADDED.contains(name));
    let headers: Option<Vec<_>> = names.map(|name| Some((name, text(&parts.headers, name)?))).collect();
    let uri = format!("http://{}{}", text(&parts.headers, header::HOST.as_str())?, parts.uri);
    let body = SignableBody::Precomputed(text(&parts.headers, "x-amz-content-sha256")?.into());
    let request = SignableRequest::new(parts.method.as_str(), uri, headers?.into_iter(), body).ok()?;
    Some(sign(request, &params).ok()?.into_parts().1)
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
