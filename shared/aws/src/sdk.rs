//! Shared by all clients: their configuration, and the classification of errors.

use std::{error::Error as StdError, iter::successors, time::Duration};

use aws_config::{BehaviorVersion, SdkConfig, timeout::TimeoutConfig};
use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};

use crate::Error;

/// The time limit of one attempt. The SDK makes three, so that a function with a time limit of a
/// minute sees the last one fail.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);

/// Error codes that are transient although their status is 4xx.
const PASSING: [&str; 10] = [
    "RequestLimitExceeded",
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

/// Parts of ECS's and EC2's messages, in lower case, about too much load or an exhausted quota.
/// EC2's message comes within `InvalidParameterException` or `ClientException`, which have no code
/// for it.
const LOAD: [&str; 7] = [
    "throttl",
    "rate exceeded",
    "request limit exceeded",
    "requestlimitexceeded",
    "too many concurrent attempts",
    "reached the limit",
    "capacity is unavailable",
];

/// Region, credentials and endpoints from the standard environment.
pub async fn config() -> SdkConfig {
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT_TIMEOUT).build();
    aws_config::defaults(BehaviorVersion::v2026_01_12()).timeout_config(timeouts).load().await
}

/// Returns whether the service answered with this status.
pub(crate) fn answered<E>(error: &SdkError<E, HttpResponse>, status: u16) -> bool {
    error.raw_response().is_some_and(|response| response.status().as_u16() == status)
}

/// Returns whether ECS refuses a call because of load, by its code and message: the same call may
/// succeed later.
pub(crate) fn is_load(code: &str, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["ClientException", "InvalidParameterException"].contains(&code) && LOAD.iter().any(|words| message.contains(words))
}

/// Returns whether ECS answers with this code, and not because of load.
pub(crate) fn has_code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>, code: &str) -> bool {
    error.code() == Some(code) && !is_load(code, error.message().unwrap_or_default())
}

/// Classifies a failed call as [`Error::Transient`] or [`Error::Permanent`].
pub(crate) fn failure<E>(call: impl Into<String>, error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let passing = match error {
        SdkError::ConstructionFailure(_) => false,
        SdkError::ServiceError(answer) => {
            let status = answer.raw().status().as_u16();
            let code = error.code().unwrap_or_default();
            status >= 500 || status == 429 || PASSING.contains(&code) || is_load(code, error.message().unwrap_or_default())
        }
        _ => true,
    };
    let (call, message) = (call.into(), words(error));
    if passing { Error::Transient { call, message } } else { Error::Permanent { call, message } }
}

/// The service's code and message, or the error on the way to the service.
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

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        io::{BufRead as _, BufReader, Read as _, Write as _},
        net::{TcpListener, TcpStream},
        thread,
    };

    use aws_config::Region;
    use aws_credential_types::Credentials;
    use aws_sdk_ecs::{
        config::http::HttpResponse,
        error::{ErrorMetadata, SdkError},
        operation::stop_task::StopTaskError,
    };
    use aws_sdk_s3::primitives::SdkBody;

    use super::*;

    /// The configuration for a fake AWS service that answers each request by its head, in lower
    /// case, and its body.
    pub(crate) async fn service(answer: impl Fn(&str, &str) -> (u16, String) + Send + 'static) -> SdkConfig {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || listener.incoming().for_each(|stream| serve(&stream.unwrap(), &answer)));
        let config = aws_config::defaults(BehaviorVersion::v2026_01_12()).region(Region::new("eu-west-1")).endpoint_url(url);
        config.credentials_provider(Credentials::new("a", "s", None, None, "test")).load().await
    }

    /// Answers one request.
    fn serve(mut stream: &TcpStream, answer: impl Fn(&str, &str) -> (u16, String)) {
        let mut reader = BufReader::new(stream);
        let lines = reader.by_ref().lines().map(|line| line.unwrap().to_lowercase());
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let length =
            head.iter().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let (status, text) = answer(&head.join("\n"), str::from_utf8(&body).unwrap());
        let length = text.len();
        write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}").unwrap();
    }

    fn answer(status: u16, code: &str, message: &str) -> SdkError<StopTaskError, HttpResponse> {
        let error = StopTaskError::generic(ErrorMetadata::builder().code(code).message(message).build());
        SdkError::service_error(error, HttpResponse::new(status.try_into().unwrap(), SdkBody::empty()))
    }

    #[test]
    fn throttling_is_transient_in_all_its_forms() {
        for (status, code, message, is_transient) in [
            (400, "ThrottlingException", "Rate exceeded", true),
            (400, "ClientException", "Rate exceeded", true),
            (400, "InvalidParameterException", "Request limit exceeded. (ErrorCode: RequestLimitExceeded)", true),
            (400, "RequestLimitExceeded", "", true),
            (429, "", "", true),
            (500, "ServerException", "", true),
            (400, "InvalidParameterException", "The referenced task was not found", false),
            (400, "ClusterNotFoundException", "Cluster not found.", false),
        ] {
            let error = answer(status, code, message);
            assert_eq!(failure("ecs:StopTask", &error).is_transient(), is_transient, "{code}: {message}");
            assert_eq!(has_code(&error, "InvalidParameterException"), message.starts_with("The referenced"), "{code}: {message}");
        }
    }
}
