//! The fields of a Workspace that only concern the pod, and whether they are refused.

use std::str::FromStr;

use super::{
    ARCHITECTURE, TaskFields,
    fields::{CONTAINER_ONLY, POD_ONLY, list, set_of},
};

/// How a Workspace's fields that only concern the pod are treated: `PodFields` of the installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodFields {
    /// They are ignored, and an Event of the Stack names them.
    #[default]
    Ignore,
    /// The spec is refused.
    Refuse,
}

impl FromStr for PodFields {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "ignore" => Ok(Self::Ignore),
            "refuse" => Ok(Self::Refuse),
            _ => Err(format!("{word:?} is neither ignore nor refuse")),
        }
    }
}

impl PodFields {
    /// Refuses a spec with such fields, if the installation does.
    ///
    /// # Errors
    ///
    /// The first such field, with the remedy.
    pub fn check(self, pod_only: &[String]) -> Result<(), String> {
        match pod_only.first() {
            Some(field) if self == Self::Refuse => Err(format!(
                "{field} has no meaning on Fargate, and this installation refuses such fields (PodFields=refuse); remove it"
            )),
            _ => Ok(()),
        }
    }
}

impl TaskFields<'_> {
    /// Returns the fields that only concern the pod.
    #[must_use]
    pub fn pod_only(&self) -> Vec<String> {
        let own = [("serviceTemplate", self.service_metadata.is_some()), ("podTemplate.metadata", self.pod_metadata.is_some())];
        let own = own.into_iter().filter(|(_, is_there)| *is_there).map(|(field, _)| field.to_owned());
        let selector = self.pod["nodeSelector"].as_object();
        let is_architecture = selector.is_some_and(|labels| labels.keys().all(|label| label == ARCHITECTURE));
        let pod = set_of(self.pod, &POD_ONLY).filter(move |field| !(is_architecture && *field == "nodeSelector"));
        let pod = pod.map(|field| format!("podTemplate.spec.{field}"));
        let containers = ["containers", "initContainers"].into_iter().flat_map(|kind| {
            list(&self.pod[kind]).iter().flat_map(move |container| {
                let name = container["name"].as_str().unwrap_or_default();
                set_of(container, &CONTAINER_ONLY).map(move |field| format!("podTemplate.spec.{kind}[{name}].{field}"))
            })
        });
        own.chain(pod).chain(containers).map(|field| format!("{}.{field}", self.at)).collect()
    }
}
