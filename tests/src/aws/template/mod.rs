//! Reads `infra/template.yaml` like AWS, so that the one-machine world has the wiring that AWS is
//! deployed with. An unsupported resource, property or intrinsic is an error, never skipped.

mod resolve;
mod resources;
mod shapes;
mod watch;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub use resources::{Destination, Function, Mapping, Queue, Role, Rule, Schedule};
use resources::{Notification, Raw};
use serde_json::Value;
pub use watch::{Alarm, Dashboard, Metric};

use super::policy::{self, Demand, Statement, Who};

/// An error in the template.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Error {
    place: String,
    message: String,
}

impl Error {
    pub(crate) fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }
}

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

/// A resource of the template, with everything resolved.
pub struct Resource {
    /// `Type`
    pub kind: String,
    /// The value of `Ref`, if it is known here.
    pub reference: Option<String>,
    /// `Properties`. Has secrets.
    pub properties: Value,
}

/// The template with everything resolved. Maps are by logical id.
pub struct Template {
    /// The account's number.
    pub account: String,
    /// The Region.
    pub region: String,
    /// Every resource whose condition holds.
    pub resources: BTreeMap<String, Resource>,
    /// The functions.
    pub functions: BTreeMap<String, Function>,
    /// The queues.
    pub queues: BTreeMap<String, Queue>,
    /// The bucket's name.
    pub bucket: String,
    /// The bucket's notifications.
    pub notifications: Vec<Notification>,
    /// The rules for AWS's own events.
    pub rules: BTreeMap<String, Rule>,
    /// The roles.
    pub roles: BTreeMap<String, Role>,
    /// The ECS cluster's name.
    pub cluster: String,
    /// Its capacity providers.
    pub capacity_providers: Vec<String>,
    /// The log groups' names.
    pub log_groups: Vec<String>,
    /// The alarms.
    pub alarms: BTreeMap<String, Alarm>,
    /// The dashboards' content.
    pub dashboards: Vec<Dashboard>,
    /// The outputs' values.
    pub outputs: BTreeMap<String, String>,
    /// The policies of resources, by the resource's ARN (for a bucket, without the key).
    pub resource_policies: BTreeMap<String, Vec<Statement>>,
}

impl Template {
    /// Reads a template file. Paths of code are relative to it.
    pub fn read(path: &Path, settings: &Settings) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::new(path.display().to_string(), error.to_string()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(".")), settings)
    }

    /// Reads a template's text.
    pub fn parse(text: &str, folder: &Path, settings: &Settings) -> Result<Self, Error> {
        let template: Value = serde_saphyr::from_str(text).map_err(|error| Error::new("template", error.to_string()))?;
        let section = |name: &str| template[name].as_object().cloned().unwrap_or_default();
        let known = ["AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Conditions", "Resources", "Outputs"];
        if let Some(other) =
            template.as_object().and_then(|sections| sections.keys().find(|name| !known.contains(&name.as_str())))
        {
            return Err(Error::new(other, "this section is not known here"));
        }
        let (parameters, conditions) = (section("Parameters"), section("Conditions"));
        let resources = section("Resources");
        let resolver = resolve::Resolver::new(settings, &parameters, &conditions, &resources)?;

        let (mut raw, mut written) = (Raw::default(), BTreeMap::new());
        for (id, resource) in &resources {
            const KNOWN: [&str; 6] = ["Type", "Properties", "DependsOn", "Condition", "DeletionPolicy", "UpdateReplacePolicy"];
            let other = resource.as_object().and_then(|fields| fields.keys().find(|name| !KNOWN.contains(&name.as_str())));
            if let Some(other) = other {
                return Err(Error::new(id, format!("{other} is not known here")));
            }
            if let Some(condition) = resource["Condition"].as_str()
                && !resolver.condition(id, condition)?
            {
                continue;
            }
            let attribute = |attribute: &str| resolver.resolve(id, &serde_json::json!({ "Fn::GetAtt": [id, attribute] }));
            let reference = || resolver.resolve(id, &serde_json::json!({ "Ref": id }));
            let kind = resource["Type"].as_str().unwrap_or_default();
            let properties = resolver.resolve(id, &resource["Properties"])?;
            raw.add(id, kind, properties.clone(), &reference, &attribute)?;
            let reference = reference().ok().and_then(|reference| reference.as_str().map(Into::into));
            written.insert(id.clone(), Resource { kind: kind.into(), reference, properties });
        }
        let mut outputs = BTreeMap::new();
        for (name, output) in section("Outputs") {
            if let Some(condition) = output["Condition"].as_str()
                && !resolver.condition(&name, condition)?
            {
                continue;
            }
            let value = resolver.resolve(&name, &output["Value"])?;
            outputs.insert(name, value.as_str().unwrap_or_default().into());
        }
        raw.finish(folder, settings, written, outputs)
    }

    /// The queue of that ARN.
    pub fn queue(&self, arn: &str) -> Result<&Queue, Error> {
        self.queues
            .values()
            .find(|queue| queue.arn == arn)
            .ok_or_else(|| Error::new(arn, "no queue of the template has this ARN"))
    }

    /// The role of that ARN, with its logical id.
    pub fn role(&self, arn: &str) -> Result<(&str, &Role), Error> {
        let mut roles = self.roles.iter().map(|(id, role)| (id.as_str(), role));
        roles.find(|(_, role)| role.arn == arn).ok_or_else(|| Error::new(arn, "no role of the template has this ARN"))
    }

    /// The demand with IAM's facts about its caller: a session of the role, by its logical id and
    /// `aws:userid`.
    #[must_use]
    pub fn asked_by(&self, role: &str, userid: &str, demand: &Demand) -> Demand {
        let arn = self.roles.get(role).map_or("", |role| &role.arn);
        let demand = demand.clone().with("aws:userid", userid).with("aws:PrincipalArn", arn);
        // The world's endpoint replaces AWS's, which uses TLS.
        demand.with("aws:PrincipalAccount", &self.account).with("aws:SecureTransport", "true")
    }

    /// Returns whether a session of the role may do this. `role` is a logical id.
    #[must_use]
    pub fn allows(&self, role: &str, demand: &Demand) -> bool {
        let own = self.roles.get(role).map_or(&[][..], |role| &role.policies);
        policy::allows(own.iter().chain(self.policy_of(&demand.resource)), Who::Role, demand)
    }

    /// Returns whether a service of AWS may do this by the resource's policy alone.
    #[must_use]
    pub fn allows_service(&self, service: &str, demand: &Demand) -> bool {
        policy::allows(self.policy_of(&demand.resource), Who::Service(service), demand)
    }

    /// Returns whether the resource's policy denies this to every caller.
    #[must_use]
    pub fn denies(&self, demand: &Demand) -> bool {
        policy::denies(self.policy_of(&demand.resource), Who::Role, demand)
    }

    /// Returns whether a service of AWS may assume a role on behalf of `source`, the ARN of a
    /// resource of this account.
    #[must_use]
    pub fn trusts(&self, role: &Role, service: &str, source: &str) -> bool {
        let assume = Demand::new("sts:AssumeRole", &role.arn);
        let assume = assume.with("aws:SourceAccount", &self.account).with("aws:SourceArn", source);
        policy::allows(&role.trust, Who::Service(service), &assume)
    }

    /// Returns whether EKS Pod Identity may assume a role for the pods of a `ServiceAccount`.
    /// `cluster` is the cluster's ARN.
    #[must_use]
    pub fn trusts_pod(&self, role: &Role, cluster: &str, namespace: &str, account: &str) -> bool {
        ["sts:AssumeRole", "sts:TagSession"].iter().all(|action| {
            let demand = Demand::new(*action, &role.arn)
                .with("aws:RequestTag/kubernetes-namespace", namespace)
                .with("aws:RequestTag/kubernetes-service-account", account)
                .with("aws:RequestTag/eks-cluster-arn", cluster);
            policy::allows(&role.trust, Who::Service("pods.eks.amazonaws.com"), &demand)
        })
    }

    fn policy_of(&self, arn: &str) -> &[Statement] {
        let resource = if arn.starts_with("arn:aws:s3:::") { arn.split('/').next().unwrap_or(arn) } else { arn };
        self.resource_policies.get(resource).map_or(&[], Vec::as_slice)
    }
}

/// The folder with a function's `bootstrap`.
fn code(folder: &Path, uri: &str) -> PathBuf {
    folder.join(uri).components().fold(PathBuf::new(), |mut path, part| {
        if part.as_os_str() == ".." && path.file_name().is_some() {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}

#[cfg(test)]
mod tests;
