//! The fixture of a checked cluster, and the objects of the cases.

use std::borrow::Cow;

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Update, UpdateSpec, UpdateStatus};
use driftless_contract::ObjectKey;
use driftless_kubernetes::{Cluster, Error, Object};
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, api::core::v1::ConfigMap};
use kube::{
    ResourceExt,
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde::{Deserialize, Serialize};

/// A cluster with Driftless's CRDs. Each of its namespaces has a `ServiceAccount` `default`.
pub trait Fixture {
    /// The implementation.
    type Port: Cluster;

    /// The implementation.
    fn port(&self) -> &Self::Port;

    /// The implementation with credentials that may not read Secrets.
    fn denied(&self) -> impl Future<Output = Result<Self::Port>>;

    /// The time by the clock of the API server.
    fn now(&self) -> Timestamp;

    /// Creates a namespace, with this value of the label [`driftless_kubernetes::WATCH`] if there
    /// is one.
    fn namespace(&self, name: &str, watch: Option<&str>) -> impl Future<Output = Result<()>>;

    /// Deletes a namespace, and waits until every object in it is deleted or waits for a finalizer.
    fn terminate(&self, namespace: &str) -> impl Future<Output = Result<()>>;

    /// The Events of a namespace: `<kind> <namespace>/<name> <type> <reason>: <note>`.
    fn events(&self, namespace: &str) -> impl Future<Output = Result<Vec<String>>>;

    /// Returns whether a token is for this audience.
    fn is_for(&self, token: &str, audience: &str) -> bool;
}

/// The namespace for cases without one of their own.
pub(super) const NAMESPACE: &str = "default";

pub(super) fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(namespace.into()), name: Some(format!("contract-{name}")), ..ObjectMeta::default() }
}

pub(super) fn config_map(namespace: &str, name: &str, value: &str) -> ConfigMap {
    let data = Some([("k".to_owned(), value.to_owned())].into());
    ConfigMap { metadata: meta(namespace, name), data, ..ConfigMap::default() }
}

/// An object with a status.
pub(super) fn update(name: &str, message: &str) -> Update {
    let spec = UpdateSpec { message: Some(message.into()), workspace_name: Some("w".into()), ..UpdateSpec::default() };
    Update { metadata: meta(NAMESPACE, name), spec, status: None }
}

pub(super) fn with_status(update: Update, message: &str) -> Update {
    Update { status: Some(UpdateStatus { message: Some(message.into()), ..UpdateStatus::default() }), ..update }
}

pub(super) fn labelled<K: Object>(mut object: K, name: &str) -> K {
    object.labels_mut().insert(name.into(), "x".into());
    object
}

/// Reads the object again.
pub(super) async fn again<F: Fixture, K: Object>(fixture: &F, object: &K) -> Result<K> {
    find(fixture, object).await?.context("it is gone")
}

pub(super) async fn find<F: Fixture, K: Object>(fixture: &F, object: &K) -> Result<Option<K>> {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    Ok(fixture.port().get(meta.namespace.as_deref().unwrap_or_default(), name).await?)
}

/// A client of one cluster ignores the cluster's name.
pub(super) fn key(api_version: &str, kind: &str, name: &str) -> ObjectKey {
    let [cluster, namespace] = [crate::CLUSTER, NAMESPACE].map(String::from);
    ObjectKey { cluster, api_version: api_version.into(), kind: kind.into(), namespace, name: format!("contract-{name}") }
}

/// A `ConfigMap` with a type that only some of them match.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Immutable {
    pub(super) metadata: ObjectMeta,
    pub(super) immutable: bool,
}

impl kube::Resource for Immutable {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        ConfigMap::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        ConfigMap::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        ConfigMap::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        ConfigMap::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Fails unless the answer is a conflict.
pub(super) fn conflicts<T: std::fmt::Debug>(answer: &driftless_kubernetes::Result<T>) -> Result<()> {
    ensure!(matches!(answer, Err(Error::Conflict { .. })), "no conflict: {answer:?}");
    Ok(())
}

/// Fails unless the answer is a permanent error.
pub(super) fn is_permanent<T: std::fmt::Debug>(answer: &driftless_kubernetes::Result<T>) -> Result<()> {
    ensure!(matches!(answer, Err(Error::Permanent { .. })), "no permanent error: {answer:?}");
    Ok(())
}

pub(super) fn lease(name: &str) -> Lease {
    Lease { metadata: meta(NAMESPACE, name), spec: None }
}
