//! The settings of drift checks, and the drift that they find.

use serde::{Deserialize, Serialize};

use crate::{
    Schedule,
    bound::{self, MAX_BYTES, MAX_PATH_BYTES, MAX_URN_BYTES},
};

/// The maximum number of resources that a message names.
const NAMED: usize = 3;

/// The settings of a Stack's drift checks and of the fix.
#[derive(Clone, Debug, PartialEq)]
pub struct DriftSettings {
    /// When to check; `None` while checks are paused.
    pub schedule: Option<Schedule>,
    /// The check whose drift the state takes over, if it is the last check.
    pub adopt: Option<String>,
    /// Which drift to fix, if any.
    pub remediate: Option<Remediate>,
    /// Properties that never count as drift.
    pub ignored: Vec<Ignored>,
}

/// Properties that never count as drift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The type of the resources; `None` for all.
    pub resource_type: Option<String>,
    /// The path of a property. It covers that property and all within it.
    pub path: String,
}

impl Ignored {
    /// Parses the annotation `driftless.dev/drift-ignore`: `PATH` or `TYPE#PATH`, separated by
    /// commas. `Err` says what is wrong with it.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let wrong = || format!("{text:?}; write paths such as tags.owner or aws:s3/bucket:Bucket#tags, separated by commas");
        let entry = |entry: &str| {
            let (resource_type, path) = entry.trim().split_once('#').map_or((None, entry.trim()), |(of, path)| (Some(of), path));
            let is_valid = !path.is_empty() && resource_type.is_none_or(|resource_type| !resource_type.is_empty());
            let resource_type = resource_type.map(str::to_owned);
            is_valid.then(|| Self { resource_type, path: path.to_owned() }).ok_or_else(wrong)
        };
        text.split(',').map(entry).collect()
    }

    pub(crate) fn covers(&self, urn: &str, path: &str) -> bool {
        // `urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME`
        let types = urn.split("::").nth(2).unwrap_or_default();
        let is_of_type = self.resource_type.as_deref().is_none_or(|wanted| types.rsplit('$').next() == Some(wanted));
        let is_within = path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        is_of_type && is_within
    }
}

/// Which drift is fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remediate {
    /// All drift that is found.
    Always,
    /// The drift that the check of this name found, if it is the last check.
    Check(String),
}

/// The result of a check: a contract between the runner, the recorder and the reconciler. It has no
/// property values, because the provider may return a secret that is not marked as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Drift {
    /// The number of resources that differ from what was applied.
    pub count: u32,
    /// The first of them, by URN; see [`Drift::bounded`].
    pub resources: Vec<DriftedResource>,
}

/// A resource that differs from what was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DriftedResource {
    /// Its URN.
    pub urn: String,
    /// Pulumi's operation for it: `update` or `delete`.
    pub change: String,
    /// The paths of the first properties that differ, such as `tags.owner`. Empty for a deleted
    /// resource.
    pub properties: Vec<String>,
}

impl Drift {
    /// The maximum number of resources in the list.
    pub const MAX_RESOURCES: usize = 100;
    /// The maximum number of properties of each.
    pub const MAX_PROPERTIES: usize = 20;

    /// Returns as much as a status may hold: less than 64 KiB of JSON.
    #[must_use]
    pub fn bounded(self) -> Self {
        let mut bytes = 0;
        let bounded = self.resources.into_iter().take(Self::MAX_RESOURCES).map(|resource| DriftedResource {
            urn: bound::line(&resource.urn, MAX_URN_BYTES),
            change: bound::line(&resource.change, MAX_PATH_BYTES),
            properties: bound::paths(&resource.properties, Self::MAX_PROPERTIES),
        });
        let fitting = bounded.take_while(|resource| {
            bytes += serde_json::to_string(resource).map_or(MAX_BYTES, |json| json.len()) + 1;
            bytes <= MAX_BYTES
        });
        Self { resources: fitting.collect(), ..self }
    }
}

impl std::fmt::Display for Drift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named: Vec<_> = self.resources.iter().take(NAMED).map(ToString::to_string).collect();
        let resources = if self.count == 1 { "resource" } else { "resources" };
        write!(f, "{} {resources} drifted: {}", self.count, named.join("; "))?;
        match usize::try_from(self.count).unwrap_or(usize::MAX).saturating_sub(named.len()) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::fmt::Display for DriftedResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.change, self.urn)?;
        if self.properties.is_empty() { Ok(()) } else { write!(f, " ({})", self.properties.join(", ")) }
    }
}
