//! What the clients share: their configuration, and what a failure means.

use std::{error::Error as StdError, iter::successors, time::Duration};

use aws_config::{BehaviorVersion, SdkConfig, timeout::TimeoutConfig};
use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};

use crate::Error;

/// One attempt of one call. The SDK makes three, so that a function with a minute to spend sees the last one fail.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);

/// Error codes that pass by themselves although they come with a status of 4xx.
const PASSING: [&str; 9] = [
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
    "RequestThrottled",
    "RequestTimeout",
    "SlowDown",
    "ExpiredToken",
    "ExpiredTokenException",
];

/// Region, credentials and endpoints from the standard environment.
pub async fn config() -> SdkConfig {
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT_TIMEOUT).build();
    aws_config::defaults(BehaviorVersion::v2026_01_12()).timeout_config(timeouts).load().await
}

/// Whether the service answered this status.
pub(crate) fn answered<E>(error: &SdkError<E, HttpResponse>, status: u16) -> bool {
    error.raw_response().is_some_and(|response| response.status().as_u16() == status)
}

/// Sorts a failed call into [`Error::Transient`] and [`Error::Permanent`].
pub(crate) fn failure<E>(call: impl Into<String>, error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let passing = match error {
        SdkError::ConstructionFailure(_) => false,
        SdkError::ServiceError(answer) => {
            let status = answer.raw().status().as_u16();
            status >= 500 || status == 429 || error.code().is_some_and(|code| PASSING.contains(&code))
        }
        _ => true,
    };
    let (call, message) = (call.into(), words(error));
    if passing { Error::Transient { call, message } } else { Error::Permanent { call, message } }
}

/// The service's code and message, or what stood between us and the service.
fn words<E>(error: &SdkError<E, HttpResponse>) -> String
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    if let (Some(code), Some(message)) = (error.code(), error.message()) {
        return format!("{code}: {message}");
    }
    if let (None, Some(response)) = (error.code(), error.raw_response()) {
        return format!("status {}", response.status().as_u16());
    }
    successors(Some(error as &dyn StdError), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
