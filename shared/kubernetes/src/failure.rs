//! The classification of failed calls.

use std::{error::Error as StdError, io};

use hyper_util::client::legacy;
use kube::core::Status;

use crate::Error;

/// Classifies a failed call. The API server's message is passed on, but no body that does not
/// decode, because it could be a Secret's.
pub(crate) fn failure(call: String, error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => answer(call, *status),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
            Error::Transient { call, message: words(&error) }
        }
        kube::Error::SerdeError(error) if error.is_data() || is_too_deep(&error) => {
            Error::Unreadable { call, message: unreadable(&error) }
        }
        // Not from the API server: a proxy's page, or an answer that was cut off.
        kube::Error::SerdeError(error) => Error::Transient { call, message: unreadable(&error) },
        error => Error::Permanent { call, message: words(&error) },
    }
}

/// The same for a write to an object that was read: if the object no longer exists, that is a
/// conflict.
pub(crate) fn failed_write(call: String, error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) if status.is_not_found() && !is_about_namespace(&status) => {
            Error::Conflict { call, message: status.message }
        }
        error => failure(call, error),
    }
}

/// The maximum nesting that `serde_json` reads.
const MAX_DEPTH: u8 = 127;

/// Why an answer cannot be read. The API server accepts free JSON with 10,000 levels of nesting.
fn unreadable(error: &serde_json::Error) -> String {
    if is_too_deep(error) {
        format!("it is nested more than {MAX_DEPTH} levels deep; simplify it")
    } else {
        format!("{:?} error in the answer", error.classify())
    }
}

/// Its category is that of a syntax error, so only the message distinguishes it.
fn is_too_deep(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}

/// What a call waited for until its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// A connection: the API server, or the network before it, drops packets.
    Connect,
    /// The answer to a request that was sent.
    Answer,
}

/// Returns what a call waited for, if it failed by its time limit.
pub(crate) fn timeout(error: &(dyn StdError + 'static)) -> Option<Timeout> {
    let (mut is_connect, mut is_timeout, mut cause) = (false, false, Some(error));
    while let Some(error) = cause {
        is_connect |= error.downcast_ref().is_some_and(legacy::Error::is_connect);
        is_timeout |= error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::TimedOut);
        cause = error.source();
    }
    is_timeout.then_some(if is_connect { Timeout::Connect } else { Timeout::Answer })
}

fn answer(call: String, status: Status) -> Error {
    let terminating =
        status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating");
    let gone = status.is_not_found() && is_about_namespace(&status);
    let Status { code, message, .. } = status;
    match code {
        403 if terminating => Error::NamespaceTerminating { call, message },
        404 if gone => Error::NamespaceTerminating { call, message },
        409 => Error::Conflict { call, message },
        // 401: the next reconciliation has other credentials, see `Clusters`. 410: a page's token
        // expired, the list starts again.
        401 | 408 | 410 | 429 | 500.. => Error::Transient { call, message },
        _ => Error::Permanent { call, message },
    }
}

fn is_about_namespace(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

/// An error and its causes; kube's text has only its own.
fn words(error: &dyn StdError) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
        source = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(code: u16, reason: &str, kind: &str, cause: &str) -> kube::Error {
        let status = json!({ "code": code, "reason": reason, "details": { "kind": kind, "causes": [{ "reason": cause }] } });
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn api_errors_are_conflict_transient_or_permanent() {
        let kind = |error| match failure("x".into(), error) {
            Error::Conflict { .. } => "conflict",
            Error::Transient { .. } => "transient",
            Error::NamespaceTerminating { .. } => "terminating",
            Error::Unreadable { .. } => "unreadable",
            Error::Permanent { .. } => "permanent",
        };
        for (code, reason, about, cause, expected) in [
            (409, "Conflict", "stacks", "", "conflict"),
            (409, "AlreadyExists", "updates", "", "conflict"),
            (403, "Forbidden", "updates", "NamespaceTerminating", "terminating"),
            (404, "NotFound", "namespaces", "", "terminating"),
            (403, "Forbidden", "updates", "", "permanent"),
            (404, "NotFound", "stacks", "", "permanent"),
            (422, "Invalid", "stacks", "", "permanent"),
            (401, "Unauthorized", "", "", "transient"),
            (410, "Expired", "stacks", "", "transient"),
            (429, "TooManyRequests", "", "", "transient"),
            (500, "InternalError", "", "", "transient"),
            (504, "Timeout", "", "", "transient"),
        ] {
            assert_eq!(kind(status(code, reason, about, cause)), expected, "{code} {reason}");
        }
    }

    #[test]
    fn a_write_to_an_object_that_is_gone_is_a_conflict() {
        assert!(matches!(failed_write("x".into(), status(404, "NotFound", "stacks", "")), Error::Conflict { .. }));
        assert!(matches!(
            failed_write("x".into(), status(404, "NotFound", "namespaces", "")),
            Error::NamespaceTerminating { .. }
        ));
    }

    #[test]
    fn a_body_that_does_not_decode_is_not_repeated() {
        let error = serde_json::from_str::<u8>("\"canary\"").unwrap_err();
        assert!(error.to_string().contains("canary"));
        assert_eq!(
            failure("get Secret a/b".into(), kube::Error::SerdeError(error)).to_string(),
            "get Secret a/b: Data error in the answer"
        );
    }

    #[test]
    fn non_json_response_does_not_make_the_object_unreadable() {
        for answer in ["<html>", "{ \"kind\": \"Upd"] {
            let error = serde_json::from_str::<serde_json::Value>(answer).unwrap_err();
            let error = failure("get Update a/b".into(), kube::Error::SerdeError(error));
            assert!(error.is_transient(), "{answer}: {error}");
        }
    }

    #[test]
    fn object_that_is_nested_too_deep_is_unreadable_and_says_so() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(serde_json::from_str::<serde_json::Value>(&nested(MAX_DEPTH.into())).is_ok());
        let error = serde_json::from_str::<serde_json::Value>(&nested(usize::from(MAX_DEPTH) + 1)).unwrap_err();
        let error = failure("get Program a/b".into(), kube::Error::SerdeError(error));
        assert!(matches!(error, Error::Unreadable { .. }) && !error.is_transient());
        assert_eq!(error.to_string(), "get Program a/b: it is nested more than 127 levels deep; simplify it");
    }
}
