//! The environment, read once, in a `main.rs`. An empty variable counts as not set.

use std::{fmt::Display, str::FromStr};

/// A variable without which a process cannot start. Never contains its value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It must be set and is not.
    #[error("the environment variable {name} is not set")]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// Its value is invalid.
    #[error("the environment variable {name} is not usable: {why}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// The parser's message.
        why: String,
    },
}

/// The value of a variable, if it is set and is UTF-8.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub fn optional(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The value of a required variable.
pub fn required(name: &'static str) -> Result<String, Error> {
    optional(name).ok_or(Error::Missing { name })
}

/// The parsed value of a required variable. The error of `T` becomes part of the message, so it
/// must not repeat a secret.
pub fn parsed<T: FromStr<Err: Display>>(name: &'static str) -> Result<T, Error> {
    required(name)?.parse().map_err(|error: T::Err| Error::Invalid { name, why: error.to_string() })
}

/// The comma-separated values of a required variable.
pub fn list(name: &'static str) -> Result<Vec<String>, Error> {
    Ok(split(&required(name)?))
}

/// The comma-separated values of a variable; empty if it is not set.
#[must_use]
pub fn optional_list(name: &str) -> Vec<String> {
    optional(name).map_or_else(Vec::new, |values| split(&values))
}

fn split(values: &str) -> Vec<String> {
    values.split(',').map(str::trim).filter(|value| !value.is_empty()).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_variable_and_not_its_value() {
        assert_eq!(required("DRIFTLESS_ABSENT").unwrap_err().to_string(), "the environment variable DRIFTLESS_ABSENT is not set");
        let error = parsed::<u8>("PATH").unwrap_err().to_string();
        assert_eq!(error, "the environment variable PATH is not usable: invalid digit found in string");
    }

    #[test]
    fn a_list_is_separated_by_commas() {
        assert_eq!(split("subnet-1, subnet-2,,"), ["subnet-1", "subnet-2"]);
    }
}
