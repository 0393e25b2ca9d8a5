//! The template language's intrinsics, with every resource's name, URL and ARN as in one account
//! and Region.

use std::{cell::RefCell, collections::BTreeMap};

use driftless_contract::keys;
use serde_json::{Map, Value};

use super::error::Error;

/// The account and the parameters of the stack.
#[derive(Clone, Default)]
pub struct Settings {
    /// The account's number.
    pub account: String,
    /// The Region.
    pub region: String,
    /// The stack's name.
    pub stack: String,
    /// The URL before `/<account>/<queue>` in a queue's URL.
    pub endpoint: String,
    /// The webhook's URL.
    pub function_url: String,
    /// Parameters, lists with commas.
    pub parameters: BTreeMap<String, String>,
}

/// Replaces intrinsics in a template's sections.
pub(super) struct Resolver<'a> {
    settings: &'a Settings,
    parameters: BTreeMap<&'a str, Value>,
    conditions: &'a Map<String, Value>,
    resources: &'a Map<String, Value>,
    /// The resources whose names are being resolved: a repeated one is a cycle.
    open: RefCell<Vec<String>>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        declared: &'a Map<String, Value>,
        conditions: &'a Map<String, Value>,
        resources: &'a Map<String, Value>,
    ) -> Result<Self, Error> {
        if let Some(unknown) = settings.parameters.keys().find(|name| !declared.contains_key(*name)) {
            return Err(Error::new("Parameters", format!("{unknown} is given and not declared")));
        }
        let parameters = declared.iter().map(|(name, declaration)| {
            // CloudFormation compares numbers by their text.
            let text = |value: &Value| match value {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            };
            let value = settings.parameters.get(name).cloned().or_else(|| text(&declaration["Default"]));
            let value = value.ok_or_else(|| Error::new("Parameters", format!("{name} has no value")))?;
            let allowed = declaration["AllowedValues"].as_array();
            if allowed.is_some_and(|allowed| !allowed.iter().any(|allowed| text(allowed).as_ref() == Some(&value))) {
                return Err(Error::new("Parameters", format!("{name} may not be {value}")));
            }
            let list = declaration["Type"].as_str().is_some_and(|kind| kind == "CommaDelimitedList" || kind.starts_with("List<"));
            let value = if list { value.split(',').map(str::trim).collect() } else { value.into() };
            Ok((name.as_str(), value))
        });
        Ok(Self { settings, parameters: parameters.collect::<Result<_, _>>()?, conditions, resources, open: RefCell::default() })
    }

    /// The value with every intrinsic replaced, and without `AWS::NoValue`. `place` is for error
    /// messages.
    pub(super) fn resolve(&self, place: &str, value: &Value) -> Result<Value, Error> {
        match value {
            Value::Array(items) => {
                let items = items.iter().map(|item| self.resolve(place, item));
                items.filter(|item| !matches!(item, Ok(Value::Null))).collect()
            }
            Value::Object(fields) => {
                if let Some((name, argument)) = intrinsic(fields) {
                    self.intrinsic(place, name, argument)
                } else {
                    let fields =
                        fields.iter().map(|(name, value)| Ok((name.clone(), self.resolve(&format!("{place}.{name}"), value)?)));
                    let fields = fields.filter(|field| !matches!(field, Ok((_, Value::Null))));
                    fields.collect::<Result<Map<_, _>, Error>>().map(Value::Object)
                }
            }
            other => Ok(other.clone()),
        }
    }

    fn intrinsic(&self, place: &str, name: &str, argument: &Value) -> Result<Value, Error> {
        let unreadable = || Error::new(place, format!("{name} of {argument} is not known here"));
        match (name, argument) {
            ("Ref", Value::String(id)) => self.reference(place, id),
            ("Fn::GetAtt", Value::Array(path)) => match path.as_slice() {
                [Value::String(id), Value::String(attribute)] => self.attribute(place, id, attribute).map(Value::String),
                _ => Err(unreadable()),
            },
            ("Fn::Sub", Value::String(text)) => self.substitute(place, text).map(Value::String),
            ("Fn::Join", Value::Array(arguments)) => match arguments.as_slice() {
                [Value::String(separator), list] => {
                    let list = self.resolve(place, list)?;
                    let parts = list.as_array().ok_or_else(unreadable)?.iter().map(|part| part.as_str().ok_or_else(unreadable));
                    Ok(parts.collect::<Result<Vec<_>, _>>()?.join(separator).into())
                }
                _ => Err(unreadable()),
            },
            ("Fn::If", Value::Array(arguments)) => match arguments.as_slice() {
                [Value::String(condition), then, otherwise] => {
                    self.resolve(place, if self.condition(place, condition)? { then } else { otherwise })
                }
                _ => Err(unreadable()),
            },
            _ => Err(unreadable()),
        }
    }

    /// Returns whether the condition of that name holds.
    pub(super) fn condition(&self, place: &str, name: &str) -> Result<bool, Error> {
        let declared = self.conditions.get(name).ok_or_else(|| Error::new(place, format!("{name} is no condition")))?;
        self.holds(name, declared)
    }

    fn holds(&self, place: &str, condition: &Value) -> Result<bool, Error> {
        let unreadable = || Error::new(place, format!("the condition {condition} is not known here"));
        let (name, argument) = condition.as_object().and_then(intrinsic).ok_or_else(unreadable)?;
        match (name, argument.as_array().map(Vec::as_slice)) {
            ("Fn::Not", Some([condition])) => Ok(!self.holds(place, condition)?),
            ("Fn::Equals", Some([one, other])) => Ok(self.resolve(place, one)? == self.resolve(place, other)?),
            _ => Err(unreadable()),
        }
    }

    /// `${Id}`, `${Id.Attribute}` and `${!literal}`. Dynamic references are refused.
    fn substitute(&self, place: &str, text: &str) -> Result<String, Error> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or_else(|| Error::new(place, format!("an open ${{ in {text}")))?;
            out.push_str(before);
            match (name.strip_prefix('!'), name.split_once('.')) {
                (Some(literal), _) => out.extend(["${", literal, "}"]),
                (None, Some((id, attribute))) => out.push_str(&self.attribute(place, id, attribute)?),
                (None, None) => {
                    let value = self.reference(place, name)?;
                    out.push_str(value.as_str().ok_or_else(|| Error::new(place, format!("{name} is a list")))?);
                }
            }
            rest = after;
        }
        out.push_str(rest);
        if out.contains("{{resolve:") {
            return Err(Error::new(place, "a dynamic reference: a secret would stand in what CloudFormation and Lambda show"));
        }
        Ok(out)
    }

    fn reference(&self, place: &str, id: &str) -> Result<Value, Error> {
        let Settings { account, region, stack, .. } = self.settings;
        if let Some(parameter) = self.parameters.get(id) {
            return Ok(parameter.clone());
        }
        let value = match id {
            "AWS::NoValue" => return Ok(Value::Null),
            "AWS::AccountId" => account.clone(),
            "AWS::Region" => region.clone(),
            "AWS::Partition" => "aws".into(),
            "AWS::URLSuffix" => "amazonaws.com".into(),
            "AWS::StackName" => stack.clone(),
            _ => match self.kind(place, id)? {
                "AWS::SQS::Queue" => format!("{}/{account}/{}", self.settings.endpoint, self.name(id)?),
                "AWS::KMS::Key" => key_id(id),
                "AWS::IAM::ManagedPolicy" => format!("arn:aws:iam::{account}:policy/{}", self.name(id)?),
                _ => self.name(id)?,
            },
        };
        Ok(value.into())
    }

    fn attribute(&self, place: &str, id: &str, attribute: &str) -> Result<String, Error> {
        let Settings { account, region, .. } = self.settings;
        Ok(match (self.kind(place, id)?, attribute) {
            ("AWS::SQS::Queue", "QueueName") => self.name(id)?,
            ("AWS::SQS::Queue", "Arn") => format!("arn:aws:sqs:{region}:{account}:{}", self.name(id)?),
            ("AWS::S3::Bucket", "Arn") => format!("arn:aws:s3:::{}", self.name(id)?),
            ("AWS::Lambda::Url", "FunctionUrl") => self.settings.function_url.clone(),
            ("AWS::Lambda::Function", "Arn") => format!("arn:aws:lambda:{region}:{account}:function:{}", self.name(id)?),
            ("AWS::IAM::Role", "Arn") => format!("arn:aws:iam::{account}:role/{}", self.name(id)?),
            // AWS generates it; it only has to differ from the name.
            ("AWS::IAM::Role", "RoleId") => format!("AROA{:.17}", keys::hash(&["role", id])).to_uppercase(),
            ("AWS::KMS::Key", "Arn") => format!("arn:aws:kms:{region}:{account}:key/{}", key_id(id)),
            ("AWS::ECS::Cluster", "Arn") => format!("arn:aws:ecs:{region}:{account}:cluster/{}", self.name(id)?),
            ("AWS::Events::Rule", "Arn") => format!("arn:aws:events:{region}:{account}:rule/{}", self.name(id)?),
            ("AWS::Logs::LogGroup", "Arn") => format!("arn:aws:logs:{region}:{account}:log-group:{}:*", self.name(id)?),
            (kind, _) => {
                return Err(Error::new(place, format!("the attribute {attribute} of {id}, a {kind}, is not known here")));
            }
        })
    }

    fn kind(&self, place: &str, id: &str) -> Result<&'a str, Error> {
        let kind = self.resources.get(id).and_then(|resource| resource["Type"].as_str());
        kind.ok_or_else(|| Error::new(place, format!("{id} is neither a parameter nor a resource")))
    }

    /// The resource's name: the template's, or a generated one as in AWS.
    fn name(&self, id: &str) -> Result<String, Error> {
        let property = match self.kind(id, id)? {
            "AWS::SQS::Queue" => "QueueName",
            "AWS::S3::Bucket" => "BucketName",
            "AWS::Lambda::Function" => "FunctionName",
            "AWS::IAM::Role" => "RoleName",
            "AWS::IAM::ManagedPolicy" => "ManagedPolicyName",
            "AWS::CloudWatch::Dashboard" => "DashboardName",
            "AWS::ECS::Cluster" => "ClusterName",
            "AWS::Events::Rule" => "Name",
            "AWS::Logs::LogGroup" => "LogGroupName",
            kind => return Err(Error::new(id, format!("a {kind} has no name that is known here"))),
        };
        let given = &self.resources[id]["Properties"][property];
        if given.is_null() {
            return Ok(format!("{}-{id}", self.settings.stack));
        }
        if self.open.borrow().iter().any(|open| open == id) {
            return Err(Error::new(id, "its name depends on itself"));
        }
        self.open.borrow_mut().push(id.into());
        let name = self.resolve(id, given);
        self.open.borrow_mut().pop();
        name?.as_str().map(Into::into).ok_or_else(|| Error::new(id, "its name is not a string"))
    }
}

/// The function and its argument, if the fields are those of an intrinsic.
fn intrinsic(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let mut fields = fields.iter();
    match (fields.next(), fields.next()) {
        (Some((name, argument)), None)
            if name == "Ref" || name == "Condition" && argument.is_string() || name.starts_with("Fn::") =>
        {
            Some((name, argument))
        }
        _ => None,
    }
}

/// AWS generates it.
fn key_id(id: &str) -> String {
    keys::hash(&["key", id])
}
