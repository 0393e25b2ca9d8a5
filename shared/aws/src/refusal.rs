//! The meaning of an ECS error for the run that is to start.

use std::error::Error as StdError;

use aws_sdk_ecs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::config::http::HttpResponse;

use crate::{
    Error,
    sdk::{failure, is_load},
};

/// The maximum length of a message in characters: it is shown in a condition, and ECS repeats the
/// request in it.
const MESSAGE: usize = 400;
/// A shorter value of a variable is no secret, and occurs in many words.
const SECRET: usize = 4;

const RIGHTS: &str = "the operator has to allow the launcher's role this call, and the roles it passes";
const ACCOUNT: &str = "the operator has to open a case with AWS Support";
const CLUSTER: &str = "the operator has to check the ECS cluster of the installation";
const PLATFORM: &str = "the operator has to check that Fargate offers this in the Region";
const NETWORK: &str = "the operator has to check Subnets and SecurityGroups of the installation";
const ROLES: &str = "the operator has to check the task role and the execution role";
const SERVICE_ROLE: &str = "the operator has to create ECS's service-linked role: aws iam create-service-linked-role --aws-service-name \
                            ecs.amazonaws.com";
const LOGS: &str = "the operator has to check the log group of the installation with `make doctor`";
const INSTALLATION: &str = "the operator has to check the installation with `make doctor`";

/// The cause of an ECS error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Too much load, or a quota: the same call may succeed later.
    Load,
    /// The content of a tenant's spec.
    Spec,
    /// The installation or the account, with the remedy for the operator.
    Installation(&'static str),
}

fn cause(call: &str, code: &str, message: &str) -> Cause {
    let lower = message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| lower.contains(words));
    let registers = call == "ecs:RegisterTaskDefinition";
    match code {
        _ if is_load(code, message) => Cause::Load,
        "ServerException" | "LimitExceededException" => Cause::Load,
        "AccessDeniedException" => Cause::Installation(RIGHTS),
        "BlockedException" => Cause::Installation(ACCOUNT),
        "ClusterNotFoundException" => Cause::Installation(CLUSTER),
        "PlatformUnknownException" | "PlatformTaskDefinitionIncompatibilityException" | "UnsupportedFeatureException" => {
            Cause::Installation(PLATFORM)
        }
        "ClientException" | "InvalidParameterException" if has(&["service linked role", "service-linked role"]) => {
            Cause::Installation(SERVICE_ROLE)
        }
        // A tenant chooses neither the driver nor its options.
        "ClientException" | "InvalidParameterException" if has(&["logconfiguration", "log driver", "awslogs"]) => {
            Cause::Installation(LOGS)
        }
        "ClientException" | "InvalidParameterException" if registers && has(&["role is not valid"]) => Cause::Installation(ROLES),
        "ClientException" | "InvalidParameterException" if registers => Cause::Spec,
        "ClientException" | "InvalidParameterException" if has(&["subnet", "security group"]) => Cause::Installation(NETWORK),
        "ClientException" | "InvalidParameterException" if has(&["role"]) => Cause::Installation(ROLES),
        _ => Cause::Installation(INSTALLATION),
    }
}

/// Classifies an error of a call that registers a task definition or starts a task by its cause.
/// `values` are removed from its message, because ECS repeats what it refuses.
pub(crate) fn refusal<'a, E>(call: &str, error: &SdkError<E, HttpResponse>, values: impl IntoIterator<Item = &'a String>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let shown = |message: String| bounded(values.into_iter().fold(message, |message, value| without(&message, value)));
    match failure(call, error) {
        Error::Transient { call, message } => Error::Transient { call, message: shown(message) },
        Error::Invalid { call, message } | Error::Permanent { call, message } => {
            let message = shown(message);
            match cause(&call, error.code().unwrap_or_default(), error.message().unwrap_or_default()) {
                Cause::Load => Error::Transient { call, message },
                Cause::Spec => Error::Invalid { call, message },
                Cause::Installation(remedy) => Error::Permanent { call, message: format!("{message}; {remedy}") },
            }
        }
    }
}

fn without(message: &str, value: &str) -> String {
    if value.len() < SECRET { message.to_owned() } else { message.replace(value, "[value]") }
}

fn bounded(message: String) -> String {
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{} …", message.get(..end).unwrap_or_default()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_ecs_are_sorted_by_their_cause() {
        let (register, run) = ("ecs:RegisterTaskDefinition", "ecs:RunTask");
        let ec2 =
            "Error retrieving security group information for [sg-1]: Request limit exceeded. (ErrorCode: RequestLimitExceeded)";
        let network = "Error retrieving subnet information for [subnet-1]: The subnet ID 'subnet-1' does not exist (ErrorCode: InvalidSubnetID.NotFound)";
        for (call, code, message, expected) in [
            (run, "InvalidParameterException", ec2, Cause::Load),
            (run, "ClientException", "Rate exceeded", Cause::Load),
            (run, "InvalidParameterException", "Throttling: slow down", Cause::Load),
            (run, "ServerException", "", Cause::Load),
            (run, "LimitExceededException", "", Cause::Load),
            (run, "ClientException", "You've reached the limit on the number of vCPUs you can run concurrently", Cause::Load),
            (
                register,
                "ClientException",
                "Too many concurrent attempts to create a new revision of the specified family.",
                Cause::Load,
            ),
            (register, "ClientException", "Container.image contains invalid characters.", Cause::Spec),
            (register, "ClientException", "Actual length: '70000'. Max allowed length is '65536' bytes.", Cause::Spec),
            (register, "InvalidParameterException", "No Fargate configuration exists for given values.", Cause::Spec),
            (register, "ClientException", "Role is not valid", Cause::Installation(ROLES)),
            (run, "InvalidParameterException", network, Cause::Installation(NETWORK)),
            (
                run,
                "InvalidParameterException",
                "Security group sg-1 does not appear to belong to the same VPC",
                Cause::Installation(NETWORK),
            ),
            (
                run,
                "ClientException",
                "ECS was unable to assume the role 'r' that was provided for this task.",
                Cause::Installation(ROLES),
            ),
            (
                run,
                "InvalidParameterException",
                "Unable to assume the service linked role. Please verify that the ECS service linked role exists.",
                Cause::Installation(SERVICE_ROLE),
            ),
            (register, "ClientException", "Log driver awslogs requires options: awslogs-group", Cause::Installation(LOGS)),
            (run, "ClientException", "TaskDefinition is inactive", Cause::Installation(INSTALLATION)),
            (run, "AccessDeniedException", "not authorized to perform: ecs:RunTask", Cause::Installation(RIGHTS)),
            (register, "AccessDeniedException", "not authorized to perform: iam:PassRole", Cause::Installation(RIGHTS)),
            (run, "BlockedException", "Your AWS account has been blocked.", Cause::Installation(ACCOUNT)),
            (run, "ClusterNotFoundException", "Cluster not found.", Cause::Installation(CLUSTER)),
            (run, "PlatformUnknownException", "", Cause::Installation(PLATFORM)),
            (run, "UnsupportedFeatureException", "", Cause::Installation(PLATFORM)),
            (run, "", "", Cause::Installation(INSTALLATION)),
        ] {
            assert_eq!(cause(call, code, message), expected, "{call} {code}: {message}");
        }
    }

    #[test]
    fn message_is_bounded_and_has_no_value_of_a_variable() {
        assert_eq!(without("Value 'hunter22' at 'environment'", "hunter22"), "Value '[value]' at 'environment'");
        assert_eq!(without("1 of 2", "1"), "1 of 2");
        let long = bounded("ä".repeat(1000));
        assert_eq!(long.chars().count(), MESSAGE + 2);
        assert_eq!(bounded("short".into()), "short");
    }
}
