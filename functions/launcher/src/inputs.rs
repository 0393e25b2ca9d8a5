//! The values that a run reads from Secrets and ConfigMaps. Each object is read once.

use std::collections::BTreeMap;

use driftless_core::run::WaitReason;
use driftless_kubernetes::{Cluster, Error};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};

use crate::Stop;

/// The maximum size of all objects that one run reads, in bytes: the function has 256 MiB for four
/// runs at once, and holds several copies.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of objects that one run reads: each is a call to the API server.
const MAX_OBJECTS: usize = 200;

/// The values of an object by key.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// The Secrets and ConfigMaps of one namespace that were read.
pub(crate) struct Inputs<'a, C> {
    cluster: &'a C,
    namespace: &'a str,
    /// `None` for an object that does not exist.
    read: BTreeMap<(Kind, String), Option<Data>>,
    /// The size of what was read.
    size: usize,
    used: Values,
}

/// The values that a run reads, by kind, name and key of their object.
pub(crate) type Values = BTreeMap<(Kind, String, String), Vec<u8>>;

/// The kind of object that holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Secret,
    ConfigMap,
}

impl<'a, C: Cluster> Inputs<'a, C> {
    pub(crate) fn new(cluster: &'a C, namespace: &'a str) -> Self {
        Self { cluster, namespace, read: BTreeMap::new(), size: 0, used: Values::new() }
    }

    /// The requested values that exist; `None` if no object was asked for.
    pub(crate) fn values(self) -> Option<Values> {
        (!self.read.is_empty()).then_some(self.used)
    }

    /// All keys of an object with their values, or what the run waits for. Empty for an optional
    /// object that does not exist.
    pub(crate) async fn all(&mut self, kind: Kind, name: &str, optional: bool) -> Result<BTreeMap<String, String>, Stop> {
        let mut all = BTreeMap::new();
        for key in self.keys(kind, name, optional).await? {
            if let Some(value) = self.key(kind, name, &key, optional).await? {
                all.insert(key, value);
            }
        }
        Ok(all)
    }

    /// The names of all keys of an object, or what the run waits for. Their values do not count as
    /// read by the run.
    pub(crate) async fn keys(&mut self, kind: Kind, name: &str, optional: bool) -> Result<Vec<String>, Stop> {
        match self.data(kind, name).await? {
            Some(data) => Ok(data.keys().cloned().collect()),
            None if optional => Ok(Vec::new()),
            None => Err(missing(kind, name, None)),
        }
    }

    /// One key of an object, or what the run waits for. `None` if it is optional and does not
    /// exist.
    pub(crate) async fn key(&mut self, kind: Kind, name: &str, key: &str, optional: bool) -> Result<Option<String>, Stop> {
        self.bytes(kind, name, key, optional).await?.map(|value| text(kind, name, key, &value)).transpose()
    }

    /// The same for a value that need not be text.
    pub(crate) async fn bytes(&mut self, kind: Kind, name: &str, key: &str, optional: bool) -> Result<Option<Vec<u8>>, Stop> {
        match self.data(kind, name).await?.map(|data| data.get(key).cloned()) {
            Some(Some(value)) => {
                self.used.insert((kind, name.to_owned(), key.to_owned()), value.clone());
                Ok(Some(value))
            }
            _ if optional => Ok(None),
            Some(None) => Err(missing(kind, name, Some(key))),
            None => Err(missing(kind, name, None)),
        }
    }

    async fn data(&mut self, kind: Kind, name: &str) -> Result<Option<&Data>, Stop> {
        let id = (kind, name.to_owned());
        if !self.read.contains_key(&id) {
            let data = match kind {
                Kind::Secret => self.cluster.get::<Secret>(self.namespace, name).await.map(|secret| secret.map(secret_data)),
                Kind::ConfigMap => self.cluster.get::<ConfigMap>(self.namespace, name).await.map(|map| map.map(config_map_data)),
            };
            let data = data.map_err(refused)?;
            let size = |data: &Data| data.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            self.size += data.as_ref().map_or(0, size);
            if self.size > MAX_BYTES || self.read.len() >= MAX_OBJECTS {
                return Err(Stop::invalid(format!(
                    "inputs exceed the maximum of {} MiB from {MAX_OBJECTS} Secrets and ConfigMaps at {kind:?} {name:?}; \
                     reference fewer or smaller objects",
                    MAX_BYTES >> 20
                )));
            }
            self.read.insert(id.clone(), data);
        }
        Ok(self.read.get(&id).and_then(Option::as_ref))
    }
}

/// A `RoleBinding` grants the namespaces that runs may come from. Without it the API server
/// refuses, and its message names what is missing.
fn refused(error: Error) -> Stop {
    match error {
        Error::Permanent { message, .. } => {
            let remedy =
                "to let runs come from this namespace, bind the ClusterRole driftless:run-inputs in it (infra/kubernetes/runs)";
            Stop::wait(WaitReason::InputForbidden, format!("{message}; {remedy}"))
        }
        error => error.into(),
    }
}

fn secret_data(secret: Secret) -> Data {
    secret.data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect()
}

fn config_map_data(map: ConfigMap) -> Data {
    let binary = map.binary_data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value));
    map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes())).chain(binary).collect()
}

fn missing(kind: Kind, name: &str, key: Option<&str>) -> Stop {
    let message = match key {
        Some(key) => format!("{kind:?} {name:?} has no key {key:?}"),
        None => format!("{kind:?} {name:?} not found"),
    };
    Stop::wait(WaitReason::InputNotFound, format!("{message}; create it to start the run"))
}

fn text(kind: Kind, name: &str, key: &str, value: &[u8]) -> Result<String, Stop> {
    String::from_utf8(value.to_vec()).map_err(|_| {
        let what = "the value is not UTF-8 text, which environment variables and Pulumi configuration require";
        Stop::wait(WaitReason::InputNotFound, format!("{kind:?} {name:?}, key {key:?}: {what}"))
    })
}
