//! Receives notifications at a function URL, and hints the objects that they name.
//!
//! `POST /<cluster>` is for Flux: a source with a new artifact, a Kustomization or a `HelmRelease`
//! that applied objects. `POST /<cluster>/github`, `/gitlab` and `/gitea` are for pushes to the
//! repositories that Stacks name themselves.
//!
//! The signature is verified over the bytes as received, with the keys of that cluster and sender,
//! before they are parsed. Most senders sign no time: a replayed notification is one more hint,
//! which is harmless.

mod event;
mod keys;
mod push;
mod refusals;
mod sender;

use std::borrow::Cow;

use aws_lambda_events::lambda_function_urls::{LambdaFunctionUrlRequest, LambdaFunctionUrlResponse};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_aws::Queues;
use driftless_contract::Hint;
use http::StatusCode;
use jiff::Timestamp;
pub use keys::{InvalidKeys, KeySecret, Keys};
pub use refusals::Refusals;

use crate::sender::Sender;

/// The maximum length of a body. Flux's messages have at most 39,000 characters; a push grows with
/// its commits.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Answers one request. Flux retries after 429 and 5xx only, up to its Provider's timeout; git
/// hosts do not retry, or only much later.
pub async fn answer(
    keys: &Keys,
    refusals: &Refusals,
    queues: &impl Queues,
    request: LambdaFunctionUrlRequest,
    now: Timestamp,
) -> LambdaFunctionUrlResponse {
    let (status, words) = match hints(keys, &request, now) {
        Ok(hints) => send(queues, &hints).await,
        Err(refusal) => refusal,
    };
    refusals.after(status, now);
    let mut response = LambdaFunctionUrlResponse::default();
    response.status_code = status.as_u16().into();
    response.body = Some(words.into());
    response
}

/// A status with its meaning here.
type Answer = (StatusCode, &'static str);

fn hints(keys: &Keys, request: &LambdaFunctionUrlRequest, now: Timestamp) -> Result<Vec<Hint>, Answer> {
    let body = body(request)?;
    let (cluster, sender) = Sender::of_path(request.raw_path.as_deref().unwrap_or_default());
    if !keys.know(cluster, sender, &request.headers, &body, now) {
        // The caller does not learn which of the two was wrong.
        return Err((StatusCode::UNAUTHORIZED, "unknown cluster or bad signature"));
    }
    let hints = sender.hints(cluster, &request.headers, &body);
    hints.map_err(|_| (StatusCode::BAD_REQUEST, "body is not a JSON event of this sender"))
}

async fn send(queues: &impl Queues, hints: &[Hint]) -> Answer {
    for hint in hints {
        if let Err(error) = queues.hint(hint, 0).await {
            tracing::error!(object = %hint.object, %error, "cannot send a hint");
            return (StatusCode::SERVICE_UNAVAILABLE, "cannot send the hint; try again");
        }
        tracing::info!(object = %hint.object, revision = hint.revision, "hinted");
    }
    if hints.is_empty() { (StatusCode::OK, "ignored") } else { (StatusCode::ACCEPTED, "accepted") }
}

/// The bytes of the body as sent.
fn body(request: &LambdaFunctionUrlRequest) -> Result<Cow<'_, [u8]>, Answer> {
    let text = request.body.as_deref().unwrap_or_default();
    if text.len() > MAX_BODY_BYTES {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, "body is too long"));
    }
    if request.is_base64_encoded {
        BASE64_STANDARD.decode(text).map(Cow::Owned).map_err(|_| (StatusCode::BAD_REQUEST, "body is not base64"))
    } else {
        Ok(Cow::Borrowed(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests;
