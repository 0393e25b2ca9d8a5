//! IAM's policy evaluation, as far as the template uses it. An unsupported element is an error when
//! the template is read, so that no rule is ever skipped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A policy document.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct Policy {
    /// The language's version; only `2012-10-17` has policy variables.
    pub version: Version,
    /// The rules.
    pub statement: Vec<Statement>,
}

/// The version of the policy language.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Version {
    /// The current one.
    #[serde(rename = "2012-10-17")]
    Current,
}

/// One rule of a policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct Statement {
    /// A name, for people.
    pub sid: Option<String>,
    /// The effect of a match.
    pub effect: Effect,
    /// The callers; only in policies of resources and in trust policies.
    pub principal: Option<Principal>,
    /// Action patterns.
    pub action: OneOrMany,
    /// Resource patterns; absent in a trust policy.
    pub resource: Option<OneOrMany>,
    /// All of these must hold.
    #[serde(default)]
    pub condition: BTreeMap<Operator, BTreeMap<String, OneOrMany>>,
}

/// What a matching statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Effect {
    /// Allows, unless another denies.
    Allow,
    /// Denies, whatever others allow.
    Deny,
}

/// The callers of a statement in a resource's policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Principal {
    /// `"*"`
    Anyone(Star),
    /// `{Service: …}`
    Service {
        /// A service's principal, such as `events.amazonaws.com`.
        #[serde(rename = "Service")]
        service: OneOrMany,
    },
    /// `{AWS: …}`
    Aws {
        /// ARNs of roles. The ARN of an account delegates to that account's own policies, which are
        /// not evaluated here.
        #[serde(rename = "AWS")]
        aws: OneOrMany,
    },
    /// `{Federated: …}`
    Federated {
        /// ARNs of OIDC providers.
        #[serde(rename = "Federated")]
        federated: OneOrMany,
    },
}

/// `"*"`
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Star {
    /// `"*"`
    #[serde(rename = "*")]
    Star,
}

/// The supported condition operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Operator {
    /// Exactly equal.
    StringEquals,
    /// Equal with `*` and `?`.
    StringLike,
    /// The same as [`Operator::ArnLike`], as in IAM.
    ArnEquals,
    /// Equal with `*` and `?`, within each part of the ARN.
    ArnLike,
    /// The opposite of [`Operator::ArnEquals`]; holds for a request without the key.
    ArnNotEquals,
    /// `true` or `false`.
    Bool,
    /// `true` for a request without the key, `false` for one with it.
    Null,
}

/// A list that may be written as its only element.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// The only element.
    One(String),
    /// The list.
    Many(Vec<String>),
}

impl OneOrMany {
    /// The elements.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// The condition keys of a request, such as `aws:userid`; names are compared without case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Context(BTreeMap<String, String>);

impl Context {
    /// The same with one more key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.0.insert(key.to_lowercase(), value.into());
        self
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(&key.to_lowercase()).map(String::as_str)
    }
}

/// A permission that a call needs. The journal of calls has a list of these three fields.
#[derive(Clone, Debug, Deserialize)]
pub struct Demand {
    /// The action, such as `s3:GetObject`.
    pub action: String,
    /// An ARN, or `*` where the action has no resource.
    pub resource: String,
    /// Condition keys beyond the caller's own.
    #[serde(default)]
    pub context: Context,
}

impl Demand {
    /// A demand without condition keys.
    #[must_use]
    pub fn new(action: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { action: action.into(), resource: resource.into(), context: Context::default() }
    }

    /// The same with one more condition key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.context = self.context.with(key, value);
        self
    }
}

/// The caller, as seen by the policies of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who<'a> {
    /// A role's session.
    Role,
    /// AWS itself, such as `events.amazonaws.com`.
    Service(&'a str),
    /// The holder of a token of the OIDC provider with this ARN.
    Federated(&'a str),
}

/// Returns whether these statements, of the caller's role and of the resource together, allow the
/// demand: one must allow and none may deny. That is IAM's rule within one account.
pub fn allows<'a>(statements: impl IntoIterator<Item = &'a Statement>, who: Who<'_>, demand: &Demand) -> bool {
    let mut allowed = false;
    for statement in statements.into_iter().filter(|statement| statement.matches(who, demand)) {
        match statement.effect {
            Effect::Allow => allowed = true,
            Effect::Deny => return false,
        }
    }
    allowed
}

/// Returns whether a statement denies it.
pub fn denies<'a>(statements: impl IntoIterator<Item = &'a Statement>, who: Who<'_>, demand: &Demand) -> bool {
    statements.into_iter().any(|statement| statement.effect == Effect::Deny && statement.matches(who, demand))
}

impl Statement {
    fn matches(&self, who: Who<'_>, demand: &Demand) -> bool {
        let principal = match (&self.principal, who) {
            (None, Who::Role) | (Some(Principal::Anyone(_)), _) => true,
            (Some(Principal::Service { service }), Who::Service(name)) => {
                service.as_slice().iter().any(|service| service == name)
            }
            (Some(Principal::Aws { aws }), Who::Role) => {
                aws.as_slice().iter().any(|arn| demand.context.get("aws:PrincipalArn") == Some(arn.as_str()))
            }
            (Some(Principal::Federated { federated }), Who::Federated(provider)) => {
                federated.as_slice().iter().any(|arn| arn == provider)
            }
            _ => false,
        };
        let any = |patterns: &OneOrMany, test: &dyn Fn(&str) -> bool| patterns.as_slice().iter().any(|pattern| test(pattern));
        let action = demand.action.to_lowercase();
        principal
            && any(&self.action, &|pattern| like(&pattern.to_lowercase(), &action, &demand.context))
            && self
                .resource
                .as_ref()
                .is_none_or(|resource| any(resource, &|pattern| arn_like(pattern, &demand.resource, &demand.context)))
            && self.condition.iter().all(|(operator, keys)| {
                keys.iter().all(|(key, values)| operator.holds(values, demand.context.get(key), &demand.context))
            })
    }
}

impl Operator {
    /// `found` is the key's value in the request, if it has one.
    fn holds(self, wanted: &OneOrMany, found: Option<&str>, context: &Context) -> bool {
        let is_wanted = |found: &str| wanted.as_slice().iter().any(|wanted| self.matches(wanted, found, context));
        match self {
            Self::Null => wanted.as_slice().iter().any(|wanted| wanted.eq_ignore_ascii_case("true") == found.is_none()),
            Self::ArnNotEquals => !found.is_some_and(is_wanted),
            _ => found.is_some_and(is_wanted),
        }
    }

    /// Compares one value, without the negation of the operator.
    fn matches(self, wanted: &str, found: &str, context: &Context) -> bool {
        match self {
            Self::StringEquals => {
                tokens(wanted, context).is_some_and(|tokens| tokens.into_iter().map(Token::literally).eq(found.chars()))
            }
            Self::StringLike => like(wanted, found, context),
            Self::ArnEquals | Self::ArnLike | Self::ArnNotEquals => arn_like(wanted, found, context),
            Self::Bool | Self::Null => wanted.eq_ignore_ascii_case(found),
        }
    }
}

/// Matches each of the six parts of an ARN: a `*` does not cross a colon, except in the last part.
fn arn_like(pattern: &str, arn: &str, context: &Context) -> bool {
    if pattern == "*" {
        return true;
    }
    let (patterns, parts): (Vec<_>, Vec<_>) = (pattern.splitn(6, ':').collect(), arn.splitn(6, ':').collect());
    patterns.len() == parts.len() && patterns.iter().zip(parts).all(|(pattern, part)| like(pattern, part, context))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Literal(char),
    One,
    Any,
}

impl Token {
    fn literally(self) -> char {
        match self {
            Self::Literal(char) => char,
            Self::One => '?',
            Self::Any => '*',
        }
    }
}

/// Parses a pattern with its variables replaced; `None` if the request has no value for one. The
/// value of a variable is never a wildcard, because a caller could otherwise choose its name to
/// match everything.
fn tokens(pattern: &str, context: &Context) -> Option<Vec<Token>> {
    let mut tokens = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(char) = rest.chars().next() {
        if let Some((variable, after)) = rest.strip_prefix("${").and_then(|rest| rest.split_once('}')) {
            let value = if matches!(variable, "*" | "?" | "$") { variable } else { context.get(variable)? };
            tokens.extend(value.chars().map(Token::Literal));
            rest = after;
            continue;
        }
        tokens.push(match char {
            '*' => Token::Any,
            '?' => Token::One,
            char => Token::Literal(char),
        });
        rest = &rest[char.len_utf8()..];
    }
    Some(tokens)
}

/// Returns whether a text matches a pattern with `*`, `?` and variables.
#[must_use]
pub fn like(pattern: &str, text: &str, context: &Context) -> bool {
    let Some(tokens) = tokens(pattern, context) else { return false };
    let text: Vec<char> = text.chars().collect();
    // Where to continue if the rest after the last `*` does not match: that star then covers one
    // more character.
    let mut retry: Option<(usize, usize)> = None;
    let (mut token, mut at) = (0, 0);
    while at < text.len() {
        match tokens.get(token) {
            Some(Token::Any) => {
                retry = Some((token, at));
                token += 1;
            }
            Some(Token::One) => (token, at) = (token + 1, at + 1),
            Some(Token::Literal(char)) if *char == text[at] => (token, at) = (token + 1, at + 1),
            _ => match retry {
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    (token, at) = (star + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    tokens[token..].iter().all(|token| *token == Token::Any)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OWN: &str = "arn:aws:s3:::b/tasks/${aws:userid}/in/*";

    fn statements(statements: &serde_json::Value) -> Vec<Statement> {
        let policy: Policy = serde_json::from_value(json!({ "Version": "2012-10-17", "Statement": statements })).unwrap();
        policy.statement
    }

    fn get(key: &str, userid: &str) -> Demand {
        Demand::new("s3:GetObject", format!("arn:aws:s3:::b/{key}")).with("aws:userid", userid)
    }

    #[test]
    fn a_task_reads_its_own_folder_and_no_other() {
        let rules = statements(&json!([{ "Effect": "Allow", "Action": "s3:GetObject", "Resource": OWN }]));
        let read = |key: &str, userid: &str| allows(&rules, Who::Role, &get(key, userid));
        assert!(read("tasks/AROA1:aa/in/spec", "AROA1:aa"));
        assert!(!read("tasks/AROA1:ab/in/spec", "AROA1:aa"));
        assert!(!read("tasks/AROA1:aa/out/result", "AROA1:aa"));
        assert!(!read("tasks/AROA1:aa/in", "AROA1:aa"));
    }

    #[test]
    fn a_wildcard_in_a_session_name_is_no_wildcard() {
        let rules = statements(&json!([{ "Effect": "Allow", "Action": "s3:*", "Resource": OWN }]));
        assert!(!allows(&rules, Who::Role, &get("tasks/AROA1:aa/in/spec", "*")));
        assert!(allows(&rules, Who::Role, &get("tasks/*/in/spec", "*")));
    }

    #[test]
    fn a_variable_without_a_value_matches_nothing() {
        let rules = statements(&json!([{ "Effect": "Allow", "Action": "*", "Resource": OWN }]));
        assert!(!allows(&rules, Who::Role, &Demand::new("s3:GetObject", "arn:aws:s3:::b/tasks//in/spec")));
    }

    #[test]
    fn a_denial_wins_over_every_permission() {
        let rules = statements(&json!([
            { "Effect": "Allow", "Action": "*", "Resource": "*" },
            { "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*", "Condition": { "Bool": { "aws:SecureTransport": "false" } } },
        ]));
        assert!(!allows(&rules, Who::Role, &get("k", "u").with("aws:securetransport", "false")));
        assert!(allows(&rules, Who::Role, &get("k", "u").with("aws:SecureTransport", "true")));
        assert!(!allows(&[], Who::Role, &get("k", "u")), "what nothing allows is denied");
    }

    #[test]
    fn every_condition_must_hold_and_an_absent_key_does_not() {
        let rules = statements(&json!([{
            "Effect": "Allow", "Principal": { "Service": "s3.amazonaws.com" }, "Action": "sqs:SendMessage", "Resource": "arn:aws:sqs:r:1:q",
            "Condition": { "StringEquals": { "aws:SourceAccount": "1" }, "ArnEquals": { "aws:SourceArn": "arn:aws:s3:::b*" } },
        }]));
        let send = Demand::new("sqs:SendMessage", "arn:aws:sqs:r:1:q").with("aws:SourceAccount", "1");
        let service = Who::Service("s3.amazonaws.com");
        assert!(!allows(&rules, service, &send));
        assert!(allows(&rules, service, &send.clone().with("aws:SourceArn", "arn:aws:s3:::bucket")));
        assert!(!allows(&rules, service, &send.clone().with("aws:SourceArn", "arn:aws:s3:::other")));
        assert!(!allows(&rules, Who::Service("sns.amazonaws.com"), &send.clone().with("aws:SourceArn", "arn:aws:s3:::b")));
        assert!(!allows(&rules, Who::Role, &send.with("aws:SourceArn", "arn:aws:s3:::b")));
    }

    #[test]
    fn null_asks_whether_the_request_has_the_key() {
        let rules = statements(&json!([
            { "Effect": "Allow", "Action": "s3:PutObject", "Resource": "*" },
            { "Effect": "Deny", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/final", "Condition": { "Null": { "s3:if-none-match": "true" } } },
        ]));
        let put = |key: &str| Demand::new("s3:PutObject", format!("arn:aws:s3:::b/{key}"));
        assert!(!allows(&rules, Who::Role, &put("final")));
        assert!(allows(&rules, Who::Role, &put("final").with("s3:if-none-match", "*")));
        assert!(allows(&rules, Who::Role, &put("other")));
        let rules = statements(&json!([
            { "Effect": "Allow", "Action": "s3:PutObject", "Resource": "*", "Condition": { "Null": { "s3:if-none-match": "false" } } },
        ]));
        assert!(!allows(&rules, Who::Role, &put("final")));
        assert!(allows(&rules, Who::Role, &put("final").with("s3:if-none-match", "*")));
    }

    #[test]
    fn a_negated_condition_holds_for_all_but_the_listed_values() {
        let rules = statements(&json!([
            { "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*" },
            {
                "Effect": "Deny", "Principal": "*", "Action": "s3:GetObject*", "Resource": "*",
                "Condition": { "ArnNotEquals": { "aws:PrincipalArn": ["arn:aws:iam::1:role/a", "arn:aws:iam::1:role/b"] } },
            },
        ]));
        let by = |role: &str| get("k", "u").with("aws:PrincipalArn", format!("arn:aws:iam::1:role/{role}"));
        assert!(allows(&rules, Who::Role, &by("a")) && allows(&rules, Who::Role, &by("b")));
        assert!(!allows(&rules, Who::Role, &by("c")));
        assert!(!allows(&rules, Who::Role, &get("k", "u")), "a request without the key is not one of the listed");
    }

    #[test]
    fn wildcards_match_as_iam_says() {
        let none = Context::default();
        for (pattern, text, fits) in [
            ("s3:Get*", "s3:GetObject", true),
            ("s3:Get?bject", "s3:GetObject", true),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
            ("a**", "a", true),
            ("", "a", false),
            ("${*}", "*", true),
            ("${*}", "x", false),
        ] {
            assert_eq!(like(pattern, text, &none), fits, "{pattern} against {text}");
        }
        assert!(
            !arn_like("arn:aws:ecs:*:task/c/1", "arn:aws:ecs:r:1:task/c/1", &none),
            "a star stays within its part of the ARN"
        );
    }

    #[test]
    fn what_is_not_known_is_refused_when_it_is_read() {
        let read = |statement: serde_json::Value| {
            serde_json::from_value::<Policy>(json!({ "Version": "2012-10-17", "Statement": [statement] })).is_err()
        };
        assert!(read(json!({ "Effect": "Allow", "NotAction": "s3:*", "Resource": "*" })));
        assert!(read(
            json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*", "Condition": { "DateGreaterThan": { "aws:CurrentTime": "x" } } })
        ));
        assert!(read(json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*", "Principal": { "CanonicalUser": "x" } })));
    }
}
