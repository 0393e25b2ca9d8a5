//! Takes Flux's notifications at a function URL, and hints the source that they speak of.
//!
//! `POST /<cluster>` with the body and the `X-Signature` of a Flux Provider of type `generic-hmac`. The signature is verified over
//! the bytes as they came, with that cluster's key, before anything is parsed. There is no nonce in it: a replayed notification is
//! one hint more, which is harmless.

mod event;
mod keys;

use std::borrow::Cow;

use aws_lambda_events::lambda_function_urls::{LambdaFunctionUrlRequest, LambdaFunctionUrlResponse};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_aws::Queues;
use driftless_telemetry::metrics::{self, Metric};
use http::StatusCode;
use jiff::Timestamp;
pub use keys::{InvalidKeys, Keys};

/// The longest body that is looked at. Flux's messages have at most 39,000 characters.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Answers one request. Flux tries again after 429 and 5xx only, for as long as its Provider's timeout.
pub async fn answer(
    keys: &Keys,
    queues: &impl Queues,
    request: LambdaFunctionUrlRequest,
    now: Timestamp,
) -> LambdaFunctionUrlResponse {
    let (status, words) = match hint(keys, queues, &request, now).await {
        Ok(()) => (StatusCode::ACCEPTED, "accepted"),
        Err(refusal) => refusal,
    };
    let mut response = LambdaFunctionUrlResponse::default();
    response.status_code = status.as_u16().into();
    response.body = Some(words.into());
    response
}

/// A status and what it means here.
type Refusal = (StatusCode, &'static str);

async fn hint(keys: &Keys, queues: &impl Queues, request: &LambdaFunctionUrlRequest, now: Timestamp) -> Result<(), Refusal> {
    let body = body(request)?;
    let cluster = request.raw_path.as_deref().unwrap_or_default().trim_matches('/');
    let signature = request.headers.get("x-signature").map_or(&[][..], |value| value.as_bytes());
    if !keys.verify(cluster, &body, signature) {
        // Whether the cluster or the signature was wrong is nobody's business, but the operator's.
        tracing::warn!(cluster, "a notification without a good signature was refused");
        // Not by cluster: its name is anybody's word here.
        metrics::emit(&[(Metric::SignaturesRefused, 1.0)], &[("function", "webhook")], now);
        return Err((StatusCode::UNAUTHORIZED, "unknown cluster or bad signature"));
    }
    let event = event::parse(&body).map_err(|_| (StatusCode::BAD_REQUEST, "not an event of Flux"))?;
    let hint = event.hint(cluster).ok_or((StatusCode::OK, "ignored"))?;
    queues.hint(&hint, 0).await.map_err(|error| {
        tracing::error!(object = %hint.object, %error, "a hint was not sent");
        (StatusCode::SERVICE_UNAVAILABLE, "the hint was not sent; try again")
    })?;
    tracing::info!(object = %hint.object, revision = hint.revision, "hinted");
    Ok(())
}

/// The body's bytes as they were sent.
fn body(request: &LambdaFunctionUrlRequest) -> Result<Cow<'_, [u8]>, Refusal> {
    let text = request.body.as_deref().unwrap_or_default();
    if text.len() > MAX_BODY_BYTES {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is too long"));
    }
    if request.is_base64_encoded {
        BASE64_STANDARD.decode(text).map(Cow::Owned).map_err(|_| (StatusCode::BAD_REQUEST, "the body is not base64"))
    } else {
        Ok(Cow::Borrowed(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests;
