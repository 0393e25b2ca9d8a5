//! A preview as Pulumi reports it: its events, its digest on standard output, and the file of
//! `--save-plan`.

use std::collections::{BTreeMap, BTreeSet};

use driftless_contract::{ChangeKind, Listed, PlannedChange, PlannedChanges, PlannedLeaf};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{resource::Resource, violation::Violations};
use crate::mask::Mask;

/// The resources of a preview.
#[derive(Default)]
pub(crate) struct Preview {
    resources: BTreeMap<String, Resource>,
    /// The values that another preview had differently, by resource and path.
    unstable: BTreeSet<(String, String)>,
    /// See [`PlannedChanges::advice`].
    pub(crate) advice: Vec<String>,
}

/// Resources that two previews of one program and state change in different ways, so that no plan
/// of them holds.
pub(crate) struct Unstable {
    /// Their URNs.
    pub urns: Vec<String>,
}

impl Preview {
    /// Reads the event log, one event per line. Events that a new version of Pulumi adds are
    /// skipped.
    pub(crate) fn read_events(&mut self, events: &[u8]) -> serde_json::Result<()> {
        for line in events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Value = serde_json::from_slice(line)?;
            for (name, take) in
                [("resourcePreEvent", Resource::start as fn(&mut Resource, &Value)), ("resOutputsEvent", Resource::end)]
            {
                let step = &event[name]["metadata"];
                if let Some(urn) = step["urn"].as_str() {
                    take(self.resources.entry(urn.to_owned()).or_default(), step);
                }
            }
        }
        Ok(())
    }

    /// Reads the standard output of `pulumi preview --json`.
    pub(crate) fn read_states(&mut self, digest: &[u8]) -> serde_json::Result<()> {
        #[derive(Deserialize)]
        struct Digest {
            #[serde(default)]
            steps: Vec<Value>,
        }
        let Digest { steps } = serde_json::from_slice(digest)?;
        for step in &steps {
            if let Some(urn) = step["urn"].as_str() {
                self.resources.entry(urn.to_owned()).or_default().states(step);
            }
        }
        Ok(())
    }

    /// Reads the file of `--save-plan`, in which secrets are in clear. Call it last.
    pub(crate) fn read_plan(&mut self, plan: &[u8]) -> serde_json::Result<()> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Plan {
            resource_plans: BTreeMap<String, Value>,
        }
        let Plan { resource_plans } = serde_json::from_slice(plan)?;
        for (urn, plan) in &resource_plans {
            self.resources.entry(urn.clone()).or_default().plan(plan);
        }
        Ok(())
    }

    /// Whether the plan makes new objects. Their names may be generated, so that only a second
    /// preview shows what is stable.
    pub(crate) fn is_new(&self) -> bool {
        self.resources.values().any(Resource::is_new)
    }

    /// Leaves out the values that a second preview of the same program has differently. Fails if it
    /// takes other steps.
    pub(crate) fn settle(&mut self, second: &Self) -> Result<(), Unstable> {
        let urns: BTreeSet<&String> = self.resources.keys().chain(second.resources.keys()).collect();
        let differs = |urn: &&String| match (self.resources.get(*urn), second.resources.get(*urn)) {
            (Some(one), Some(other)) => !one.has_facts_of(other),
            _ => true,
        };
        let urns: Vec<String> = urns.into_iter().filter(differs).cloned().collect();
        if !urns.is_empty() {
            return Err(Unstable { urns });
        }
        for (urn, resource) in &mut self.resources {
            let Some(other) = second.resources.get(urn) else { continue };
            self.unstable.extend(resource.take_unstable(other).into_iter().map(|path| (urn.clone(), path)));
        }
        Ok(())
    }

    /// What messages about a violation of the plan may show.
    pub(crate) fn violations(&self) -> Violations {
        let of = |(urn, resource): (&String, &Resource)| (urn.clone(), resource.properties());
        Violations { properties: self.resources.iter().map(of).collect() }
    }

    /// What the digest of the resources covers.
    pub(super) fn document(&self) -> Value {
        let resources: BTreeMap<&String, Value> =
            self.resources.iter().map(|(urn, resource)| (urn, resource.document())).collect();
        json!({ "resources": resources, "unstable": self.unstable })
    }

    /// Returns whether some values are not fixed by the plan, so that only the program decides
    /// them.
    pub(super) fn is_open(&self) -> bool {
        !self.unstable.is_empty() || self.resources.values().any(|resource| !resource.unknown().is_empty())
    }

    /// The number of resources by kind of change, and the changes.
    pub(super) fn changes(&self, mask: &Mask) -> (BTreeMap<ChangeKind, u32>, Listed<PlannedChange>) {
        let mut counts = BTreeMap::new();
        let mut changes: Vec<_> = self
            .resources
            .iter()
            .filter_map(|(urn, resource)| Some((resource.change(urn)?, urn, resource)))
            .inspect(|(kind, ..)| *counts.entry(*kind).or_default() += 1)
            .collect();
        changes.sort_by_key(|(kind, urn, _)| (*kind, *urn));
        let masked = |paths: &BTreeSet<String>| {
            paths.iter().take(PlannedChanges::MAX_PATHS).map(|path| mask.apply(path)).collect::<Vec<_>>()
        };
        let first = changes.iter().take(PlannedChanges::MAX_CHANGES).map(|(kind, urn, resource)| PlannedChange {
            urn: mask.apply(urn),
            resource_type: mask.apply(resource.resource_type()),
            kind: *kind,
            paths: masked(resource.paths(*kind)),
            replaced_by: masked(resource.replaced_by()),
        });
        let listed = Listed { count: u32::try_from(changes.len()).unwrap_or(u32::MAX), first: first.collect() };
        (counts, listed)
    }

    /// The values that are only known when the update runs.
    pub(super) fn unknown(&self, mask: &Mask) -> Listed<PlannedLeaf> {
        let all = self
            .resources
            .iter()
            .flat_map(|(urn, resource)| resource.unknown().into_iter().map(move |path| (urn.as_str(), path)));
        leaves(all.collect::<Vec<_>>().iter().map(|(urn, path)| (*urn, path.as_str())), mask)
    }

    /// The values that are different in each preview.
    pub(super) fn unstable(&self, mask: &Mask) -> Listed<PlannedLeaf> {
        leaves(self.unstable.iter().map(|(urn, path)| (urn.as_str(), path.as_str())), mask)
    }
}

fn leaves<'a>(all: impl ExactSizeIterator<Item = (&'a str, &'a str)>, mask: &Mask) -> Listed<PlannedLeaf> {
    let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let leaf = |(urn, path)| PlannedLeaf { urn: mask.apply(urn), path: mask.apply(path) };
    Listed { count, first: all.take(PlannedChanges::MAX_LEAVES).map(leaf).collect() }
}
