//! Reads `infra/template.yaml` like AWS, so that the one-machine world has the wiring that AWS is
//! deployed with. An unsupported resource, property or intrinsic is an error, never skipped.

mod error;
mod reader;
mod resolve;
mod resources;
mod shapes;
mod watch;

use std::{collections::BTreeMap, path::Path};

pub use error::Error;
use reader::Raw;
use resolve::Resolver;
pub use resolve::Settings;
pub use resources::{Alarm, Dashboard, Destination, Function, Mapping, Metric, Queue, Resource, Role, Rule, Schedule, Template};
use serde_json::Value;

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
        let resolver = Resolver::new(settings, &parameters, &conditions, &resources)?;

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
}

#[cfg(test)]
mod tests;
