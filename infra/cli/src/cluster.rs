//! The cluster, with the rights of the user.

use std::{fmt::Debug, path::Path, time::Duration};

use driftless_api::{Stack, Update};
use http::{
    Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use kube::{
    Api, Client, Config, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{Error, Result};

/// The field manager of all that the CLI writes.
const MANAGER: &str = "kubectl-driftless";
/// Objects per page of a list.
const PAGE: u32 = 500;
/// A request that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A namespaced kind that is known at compile time.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}
impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

/// The cluster of a context of the user's kubeconfig. RBAC decides what succeeds.
pub struct Cluster {
    client: Client,
    /// The namespace of the context, or the one that the user named.
    pub namespace: String,
}

/// What a Stack or an Update is named by: `NAME`, `stack/NAME` or `update/NAME`.
#[derive(Debug)]
pub enum Target {
    /// A Stack.
    Stack(Box<Stack>),
    /// An Update.
    Update(Box<Update>),
}

impl Cluster {
    /// The cluster that a client calls.
    #[must_use]
    pub fn of(client: Client, namespace: impl Into<String>) -> Self {
        Self { client, namespace: namespace.into() }
    }

    /// The cluster of this context, or of the current one, of this kubeconfig, or of the one that
    /// kubectl uses.
    pub async fn open(kubeconfig: Option<&Path>, context: Option<&str>, namespace: Option<&str>) -> Result<Self> {
        let unusable = |error: &dyn std::fmt::Display| Error::failed(format!("cannot use the kubeconfig: {error}"));
        let read = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
        let read = read.map_err(|error| unusable(&error))?;
        let options = KubeConfigOptions { context: context.map(ToOwned::to_owned), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(&error))?;
        config.read_timeout = Some(TIMEOUT);
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), ToOwned::to_owned);
        let client = Client::try_from(config).map_err(|error| unusable(&error))?;
        Ok(Self::of(client, namespace))
    }

    fn api<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The object, if it exists.
    pub async fn find<K: Kind>(&self, namespace: &str, name: &str) -> Result<Option<K>> {
        let got = self.api::<K>(namespace).get_opt(name).await;
        got.map_err(|error| failure(&format!("get {} {namespace}/{name}", K::kind(&())), &error))
    }

    /// The object of the user's namespace. It is an error if it does not exist.
    pub async fn get<K: Kind>(&self, name: &str) -> Result<K> {
        let (kind, namespace) = (K::kind(&()), &self.namespace);
        let missing = || Error::failed(format!("{kind} {name:?} not found in namespace {namespace:?}; set --namespace"));
        self.find(namespace, name).await?.ok_or_else(missing)
    }

    /// The object of a kind that is known only at run time. `Err` also for a kind that the cluster
    /// does not serve.
    pub async fn find_dynamic(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>> {
        let got = self.dynamic(api_version, kind, namespace).get_opt(name).await;
        got.map_err(|error| failure(&format!("get {kind} {namespace}/{name}"), &error))
    }

    fn dynamic(&self, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// The Stack or the Update of the user's namespace that is named.
    pub async fn target(&self, name: &str) -> Result<Target> {
        let stack = async |name: &str| Ok(Target::Stack(Box::new(self.get(name).await?)));
        let update = async |name: &str| Ok(Target::Update(Box::new(self.get(name).await?)));
        match name.split_once('/') {
            Some(("stack" | "stacks", name)) => stack(name).await,
            Some(("update" | "updates", name)) => update(name).await,
            Some((kind, _)) => Err(Error::failed(format!("unknown kind {kind:?}; use stack/NAME or update/NAME"))),
            None => match self.find(&self.namespace, name).await? {
                Some(found) => Ok(Target::Stack(Box::new(found))),
                None => match self.find(&self.namespace, name).await? {
                    Some(found) => Ok(Target::Update(Box::new(found))),
                    None => Err(Error::failed(format!(
                        "no Stack or Update {name:?} in namespace {:?}; set --namespace",
                        self.namespace
                    ))),
                },
            },
        }
    }

    /// All objects of a namespace, or of all, that a field selector chooses.
    pub async fn list<K: Kind>(&self, namespace: Option<&str>, fields: Option<&str>) -> Result<Vec<K>> {
        let api: Api<K> = namespace.map_or_else(|| Api::all(self.client.clone()), |namespace| self.api(namespace));
        let mut params = ListParams { field_selector: fields.map(ToOwned::to_owned), limit: Some(PAGE), ..ListParams::default() };
        let mut found = Vec::new();
        loop {
            let page = api.list(&params).await.map_err(|error| failure(&format!("list {}", K::plural(&())), &error))?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(found),
            }
        }
    }

    /// The objects of a namespace, or of all, in the columns that kubectl prints, from the cache of
    /// the API server. The rows of one namespace have no metadata, which would be most of the
    /// answer.
    pub async fn table<K: Kind, T: DeserializeOwned>(&self, namespace: Option<&str>) -> Result<T> {
        let call = format!("list {}", K::plural(&()));
        let object = if namespace.is_some() { "None" } else { "Metadata" };
        let uri = format!("{}?resourceVersion=0&includeObject={object}", K::url_path(&(), namespace));
        let request = Request::get(uri).header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io").body(Vec::new());
        let request = request.map_err(|error| Error::failed(format!("{call}: {error}")))?;
        self.client.request(request).await.map_err(|error| failure(&call, &error))
    }

    /// Creates an object in the user's namespace.
    pub async fn create<K: Kind>(&self, object: &K) -> Result<K> {
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let created = self.api::<K>(&self.namespace).create(&params, object).await;
        created.map_err(|error| failure(&format!("create {} in {}", K::kind(&()), self.namespace), &error))
    }

    /// Merges a patch into an object.
    pub async fn patch<K: Kind>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K> {
        let call = format!("patch {} {namespace}/{name}", K::kind(&()));
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let patched = self.api::<K>(namespace).patch(name, &params, &Patch::Merge(patch)).await;
        patched.map_err(|error| failure(&call, &error))
    }

    /// Merges a patch into an object of a kind that is known only at run time.
    pub async fn patch_dynamic(&self, api_version: &str, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let api = self.dynamic(api_version, kind, &self.namespace);
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop).map_err(|error| failure(&format!("patch {kind} {}/{name}", self.namespace), &error))
    }

    /// The name of the user, as the API server knows it.
    pub async fn user(&self) -> Result<String> {
        let call = "create SelfSubjectReview";
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header(CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes());
        let request = request.map_err(|error| Error::failed(format!("{call}: {error}")))?;
        let review: Value = self.client.request(request).await.map_err(|error| failure(call, &error))?;
        let name = review["status"]["userInfo"]["username"].as_str();
        name.map(ToOwned::to_owned).ok_or_else(|| Error::failed(format!("{call}: the answer has no username")))
    }

    /// Deletes an object of the user's namespace.
    pub async fn delete<K: Kind>(&self, name: &str) -> Result<()> {
        let deleted = self.api::<K>(&self.namespace).delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(|error| failure(&format!("delete {} {}/{name}", K::kind(&()), self.namespace), &error))
    }
}

/// The message of a call that failed.
fn failure(call: &str, error: &kube::Error) -> Error {
    Error::failed(match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!("{call}: {}; ask for a Role that allows it", status.message)
        }
        kube::Error::Api(status) if status.code == 401 => format!("{call}: credentials refused; log in again"),
        kube::Error::Api(status) if status.code == 404 && status.reason != "NotFound" => {
            format!("{call}: cluster does not serve this kind; install its CRD or choose another --context")
        }
        kube::Error::Api(status) => format!("{call}: {}", status.message),
        other => format!("{call}: {other}"),
    })
}
