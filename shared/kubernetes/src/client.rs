use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_contract::{EVENT_REPORTER, ObjectKey};
use driftless_core::metadata::CHANGE_REQUEST;
use futures::AsyncBufReadExt as _;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, ServiceAccount},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{ListMeta, MicroTime, ObjectMeta},
};
use kube::{
    Api, Config, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    client::{ClientBuilder, retry::RetryPolicy},
    core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta, Request},
};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::value::RawValue;
use tower::{BoxError, ServiceBuilder, buffer::BufferLayer, retry::RetryLayer, util::MapResultLayer};

use crate::{
    Cluster, EVENT_REVISION, Endpoint, Error, EventMarks, EventReason, EventType, MAX_OF_CLUSTER, Object, Page, Result, Selector,
    WATCH,
    failure::{Timeout, failed_write, failure, timeout},
    metadata_patch,
};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// A larger page is not read to its end, so that no tenant's objects fill a function's memory.
const PAGE_BYTES: usize = 8 << 20;
/// A list whose page is too large is read again with this many objects per page: etcd stores at
/// most 1.5 MiB of each.
const FEW: u32 = 5;
/// How long the cluster may be silent within an answer: a function's own time is short.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The time limit of a new connection, TLS included. A cluster that drops packets costs a
/// function's batch this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// An API server counts as unreachable after this many requests in a row without an answer: a
/// single one may have requested much.
const UNANSWERED: u32 = 3;
/// Tries after a 429, 503 or 504. Few, because redelivery and later reconciliations are the outer
/// retry.
const RETRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// The number of requests that may wait in the client; a function sends one at a time, or a handful
/// at once.
const WAITING: usize = 64;
/// The API server's limit for an Event's note.
const NOTE_BYTES: usize = 1024;

/// One real cluster.
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
    endpoint: Endpoint,
    manager: &'static str,
    seen: Arc<Seen>,
}

/// What the calls so far revealed about the API server.
#[derive(Debug)]
struct Seen {
    /// The API server answered 401.
    refused: AtomicBool,
    /// Requests without an answer since the last answer. For an API server that has never answered
    /// this client, one more request reaches [`UNANSWERED`]; a connection that timed out counts as
    /// that many.
    unanswered: AtomicU32,
    /// The answers of [`Cluster::watch_label`], by namespace. A missing namespace is not kept.
    labels: Mutex<HashMap<String, Option<String>>>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { refused: AtomicBool::new(false), unanswered: AtomicU32::new(UNANSWERED - 1), labels: Mutex::default() }
    }
}

impl Client {
    /// A client with this configuration; connects with the first call. `manager` is the field
    /// manager of all writes: `driftless-<function>`.
    pub fn new(mut config: Config, manager: &'static str) -> Result<Self> {
        let certificate_authority =
            config.root_cert.as_ref().map(|certificates| certificates.iter().map(|der| pem(der)).collect());
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        config.read_timeout = Some(TIMEOUT);
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // kube's own retry would last minutes.
        config.default_retry = false;
        let retry = RetryPolicy::new(FIRST_RETRY, LAST_RETRY, RETRIES, false).map_err(unusable)?;
        // The buffer makes the service below it cloneable, as a retry requires.
        let layers = ServiceBuilder::new().layer(RetryLayer::new(retry)).layer(BufferLayer::new(WAITING)).into_inner();
        let seen = Arc::new(Seen::default());
        let noted = Arc::clone(&seen);
        let note = move |answer: std::result::Result<Response<_>, BoxError>| {
            let timeout = answer.as_ref().err().and_then(|error| timeout(error.as_ref()));
            match (&answer, timeout) {
                (Ok(response), _) => {
                    noted.unanswered.store(0, Ordering::Relaxed);
                    noted.refused.fetch_or(response.status() == StatusCode::UNAUTHORIZED, Ordering::Relaxed);
                }
                (Err(_), Some(Timeout::Connect)) => noted.unanswered.store(UNANSWERED, Ordering::Relaxed),
                (Err(_), Some(Timeout::Answer)) => drop(noted.unanswered.fetch_add(1, Ordering::Relaxed)),
                (Err(_), None) => {}
            }
            answer
        };
        let builder = ClientBuilder::try_from(config).map_err(unusable)?.with_layer(&layers);
        let kube = builder.with_layer(&MapResultLayer::new(note)).build();
        Ok(Self { kube, endpoint: Endpoint { server, certificate_authority }, manager, seen })
    }

    /// Returns whether the API server answered that it does not accept the credentials.
    pub(crate) fn is_refused(&self) -> bool {
        self.seen.refused.load(Ordering::Relaxed)
    }

    /// Returns whether the API server accepts no connection, or answers no request.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.seen.unanswered.load(Ordering::Relaxed) >= UNANSWERED
    }

    /// Forgets the labels of namespaces, so that they are read again.
    pub(crate) fn forget_labels(&self) {
        self.seen.labels.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The underlying client, for calls that the port does not have.
    #[must_use]
    pub fn kube(&self) -> &kube::Client {
        &self.kube
    }

    /// A page as text, or a smaller page at the same position. An expired token is replaced by one
    /// that continues at the same position in the present list. `None` if even a few objects are
    /// too large for this function's memory.
    async fn page_text(&self, list: &Request, mut params: ListParams) -> kube::Result<Option<Vec<u8>>> {
        let mut text = self.text(list, &params).await;
        if let Err(kube::Error::Api(status)) = &text
            && status.code == 410
            && let Some(token) = status.metadata.as_ref().and_then(|metadata| metadata.continue_.clone())
        {
            params.continue_token = Some(token);
            text = self.text(list, &params).await;
        }
        if let Ok(None) = text {
            params.limit = Some(FEW);
            text = self.text(list, &params).await;
        }
        text
    }

    /// The answer to a list request, unless it is larger than [`PAGE_BYTES`].
    async fn text(&self, list: &Request, params: &ListParams) -> kube::Result<Option<Vec<u8>>> {
        let request = list.list(params).map_err(kube::Error::BuildRequest)?;
        let mut answer = pin!(self.kube.request_stream(request).await?);
        let mut text = Vec::new();
        // Not `read_to_end`, which fills all allocated memory with zeros whenever it has to wait.
        loop {
            let piece = answer.fill_buf().await.map_err(kube::Error::ReadEvents)?;
            let length = piece.len();
            if length == 0 || text.len() + length > PAGE_BYTES {
                return Ok((length == 0).then_some(text));
            }
            text.extend_from_slice(piece);
            answer.consume_unpin(length);
        }
    }

    /// Reads, and retries once after a transient error: a connection that died while the function
    /// was frozen fails the first request on it. An unreachable API server is not asked again.
    async fn again<T>(&self, read: impl AsyncFn() -> Result<T>) -> Result<T> {
        match read().await {
            Err(Error::Transient { call, message }) if !self.is_unreachable() => {
                tracing::info!(call, message, "reading again");
                read().await
            }
            other => other,
        }
    }

    fn api<K: Object>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.kube.clone(), namespace)
    }

    fn post(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.into()), ..PostParams::default() }
    }
}

/// A page as received. kube's own type copies every object twice before it is read.
#[derive(Deserialize)]
struct List<'a> {
    metadata: ListMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// An unreadable object, such as another operator's, is skipped, so that it hides no other.
fn readable<K: Object>(object: &RawValue) -> Option<K> {
    // Not kube's `ObjectMeta`, which reads `managedFields`, nested as deep as the object.
    #[derive(Default, Deserialize)]
    struct Named {
        metadata: Place,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Place {
        namespace: String,
        name: String,
    }
    let warn = |error: &serde_json::Error| {
        let Named { metadata: Place { namespace, name } } = serde_json::from_str(object.get()).unwrap_or_default();
        let name = format!("{namespace}/{name}");
        tracing::warn!(kind = %K::kind(&()), name, %error, "object skipped: cannot read it");
    };
    serde_json::from_str(object.get()).inspect_err(warn).ok()
}

impl Cluster for Client {
    fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<Option<K>> {
        if !(is_name(namespace) && is_name(name)) {
            return Ok(None);
        }
        self.again(async || {
            let got = self.api(namespace).get_opt(name).await;
            got.map_err(|error| failure(format!("get {} {namespace}/{name}", K::kind(&())), error))
        })
        .await
    }

    async fn get_dynamic(&self, key: &ObjectKey) -> Result<Option<DynamicObject>> {
        let ObjectKey { api_version, kind, namespace, name, .. } = key;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if !(group.is_empty() || is_name(group))
            || !(namespace.is_empty() || is_name(namespace))
            || ![version, kind, name].into_iter().all(is_name)
        {
            return Ok(None);
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = match namespace.as_str() {
            "" => Api::all_with(self.kube.clone(), &resource),
            namespace => Api::namespaced_with(self.kube.clone(), namespace, &resource),
        };
        self.again(async || {
            match api.get(name).await {
                Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
                // The API server answers an unknown path without a reason.
                Err(kube::Error::Api(status)) if status.code == 404 => Err(Error::Permanent {
                    call: format!("get {kind} {namespace}/{name}"),
                    message: format!(
                        "cluster does not serve {kind} of {api_version}; install its CRD, or correct apiVersion and kind"
                    ),
                }),
                got => got.map(Some).map_err(|error| failure(format!("get {kind} {namespace}/{name}"), error)),
            }
        })
        .await
    }

    async fn of_cluster(&self, api_version: &str, plural: &str) -> Result<Vec<DynamicObject>> {
        let call = || format!("list {plural}.{api_version}");
        let list = Request::new(format!("/apis/{api_version}/{plural}"));
        let params = ListParams { limit: u32::try_from(MAX_OF_CLUSTER).ok(), ..ListParams::default() };
        let text = match self.again(async || Ok(self.text(&list, &params).await)).await? {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            text => text.map_err(|error| failure(call(), error))?,
        };
        let too_many =
            || Error::Permanent { call: call(), message: format!("more than {MAX_OF_CLUSTER} objects, or too large ones") };
        let unreadable = |error: serde_json::Error| Error::Permanent {
            call: call(),
            message: format!("{:?} error in the answer", error.classify()),
        };
        let text = text.ok_or_else(too_many)?;
        let List { metadata, items } = serde_json::from_slice(&text).map_err(unreadable)?;
        if metadata.continue_.is_some_and(|token| !token.is_empty()) {
            return Err(too_many());
        }
        items.into_iter().map(|item| serde_json::from_str(item.get()).map_err(unreadable)).collect()
    }

    async fn page<K: Object>(&self, namespace: Option<&str>, selector: Selector<'_>, from: Option<&str>) -> Result<Page<K>> {
        let call = || format!("list {}", K::plural(&()));
        let list = Request::new(K::url_path(&(), namespace));
        let (fields, labels) = match selector {
            Selector::All => (None, None),
            Selector::Fields(fields) => (Some(fields.to_owned()), None),
            Selector::Labels(labels) => (None, Some(labels.to_owned())),
        };
        let params = ListParams {
            field_selector: fields,
            label_selector: labels,
            limit: Some(PAGE),
            continue_token: from.map(Into::into),
            ..ListParams::default()
        };
        let text =
            self.again(async || self.page_text(&list, params.clone()).await.map_err(|error| failure(call(), error))).await?;
        let too_large =
            || Error::Permanent { call: call(), message: format!("{FEW} objects are larger than {PAGE_BYTES} bytes") };
        let text = text.ok_or_else(too_large)?;
        // Not the fault of an object: the items are read one by one below.
        let no_list = |error: serde_json::Error| Error::Permanent {
            call: call(),
            message: format!("{:?} error in the answer", error.classify()),
        };
        let List { metadata, items } = serde_json::from_slice(&text).map_err(no_list)?;
        Ok(Page {
            objects: items.into_iter().filter_map(readable).collect(),
            next: metadata.continue_.filter(|token| !token.is_empty()),
        })
    }

    async fn watch_label(&self, namespace: &str) -> Result<Option<Option<String>>> {
        if !is_name(namespace) {
            return Ok(None);
        }
        let labels = || self.seen.labels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = labels().get(namespace) {
            return Ok(Some(label.clone()));
        }
        let namespaces: Api<Namespace> = Api::all(self.kube.clone());
        let found = self.again(async || {
            let got = namespaces.get_metadata_opt(namespace).await;
            got.map_err(|error| failure(format!("get Namespace {namespace}"), error))
        });
        let label = found.await?.map(|found| found.labels().get(WATCH).cloned());
        if let Some(label) = &label {
            labels().insert(namespace.to_owned(), label.clone());
        }
        Ok(label)
    }

    fn forget_label(&self, namespace: &str) {
        self.seen.labels.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    async fn watch_labels(&self) -> Result<BTreeMap<String, String>> {
        let namespaces: Api<Namespace> = Api::all(self.kube.clone());
        let labelled = ListParams::default().labels(WATCH);
        let found = self.again(async || {
            let listed = namespaces.list_metadata(&labelled).await;
            listed.map_err(|error| failure("list namespaces".into(), error))
        });
        let label = |found: PartialObjectMeta<Namespace>| Some((found.name_any(), found.labels().get(WATCH)?.clone()));
        Ok(found.await?.items.into_iter().filter_map(label).collect())
    }

    async fn create<K: Object>(&self, object: &K) -> Result<K> {
        let (namespace, _) = place(object);
        let created = self.api(namespace).create(&self.post(), object).await;
        created.map_err(|error| failure(call("create", object), error))
    }

    async fn replace<K: Object>(&self, object: &K) -> Result<K> {
        let (namespace, name) = place(object);
        let replaced = self.api(namespace).replace(name, &self.post(), object).await;
        replaced.map_err(|error| failed_write(call("replace", object), error))
    }

    async fn patch_metadata<K: Object>(&self, object: &K) -> Result<K> {
        let (namespace, name) = place(object);
        let params = PatchParams { field_manager: Some(self.manager.into()), ..PatchParams::default() };
        let patched = self.api(namespace).patch(name, &params, &Patch::Merge(metadata_patch(object))).await;
        patched.map_err(|error| failed_write(call("patch", object), error))
    }

    async fn replace_status<K: Object>(&self, object: &K) -> Result<K> {
        let (namespace, name) = place(object);
        let replaced = self.api(namespace).replace_status(name, &self.post(), object).await;
        replaced.map_err(|error| failed_write(call("replace status of", object), error))
    }

    async fn apply<K: Object>(&self, object: &K) -> Result<K> {
        let (namespace, name) = place(object);
        let applied = self.api(namespace).patch(name, &PatchParams::apply(self.manager).force(), &Patch::Apply(object)).await;
        applied.map_err(|error| failed_write(call("apply", object), error))
    }

    async fn delete<K: Object>(&self, object: &K) -> Result<()> {
        let (namespace, name) = place(object);
        let ObjectMeta { uid, resource_version, .. } = object.meta().clone();
        let params = DeleteParams { preconditions: Some(Preconditions { resource_version, uid }), ..DeleteParams::default() };
        match self.api::<K>(namespace).delete(name, &params).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            deleted => deleted.map(drop).map_err(|error| failure(call("delete", object), error)),
        }
    }

    async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audience: Option<&str>,
        seconds: u32,
    ) -> Result<(SecretString, Timestamp)> {
        let call = format!("create a token of ServiceAccount {namespace}/{name}");
        if !(is_name(namespace) && is_name(name)) {
            return Err(Error::Permanent { call, message: "invalid name of a ServiceAccount".into() });
        }
        let spec = TokenRequestSpec {
            audiences: audience.into_iter().map(ToOwned::to_owned).collect(),
            expiration_seconds: Some(seconds.into()),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        match self.api::<ServiceAccount>(namespace).create_token_request(name, &self.post(), &request).await {
            Ok(TokenRequest { status: Some(status), .. }) => Ok((status.token.into(), status.expiration_timestamp.0)),
            Ok(_) => Err(Error::Transient { call, message: "the answer has no token".into() }),
            Err(error) => Err(failure(call, error)),
        }
    }

    async fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: EventReason,
        note: &str,
        marks: EventMarks<'_>,
        at: Timestamp,
    ) {
        let (namespace, name) = place(regarding);
        let revision = marks.revision.map(|revision| (EVENT_REVISION.to_owned(), revision.to_string()));
        let change_request = marks.change_request.map(|number| (CHANGE_REQUEST.to_owned(), number.to_string()));
        let annotations: BTreeMap<_, _> = revision.into_iter().chain(change_request).collect();
        let event = Event {
            action: Some(reason.as_str().into()),
            event_time: Some(MicroTime(at)),
            metadata: ObjectMeta {
                generate_name: Some(format!("{name:.200}-")),
                namespace: Some(namespace.into()),
                annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
                ..ObjectMeta::default()
            },
            note: Some(note[..note.floor_char_boundary(NOTE_BYTES)].into()),
            reason: Some(reason.as_str().into()),
            regarding: Some(regarding.object_ref(&())),
            reporting_controller: Some(EVENT_REPORTER.into()),
            reporting_instance: Some(self.manager.into()),
            type_: Some(format!("{event_type:?}")),
            ..Event::default()
        };
        if let Err(error) = self.api(namespace).create(&self.post(), &event).await {
            tracing::warn!(error = %failure(call("publish an Event about", regarding), error), "cannot publish an Event");
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn unusable(error: impl ToString) -> Error {
    Error::Permanent { call: "connect to the cluster".into(), message: error.to_string() }
}

fn pem(der: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(der))
}

fn call<K: Object>(verb: &str, object: &K) -> String {
    let (namespace, name) = place(object);
    format!("{verb} {} {namespace}/{name}", K::kind(&()))
}

/// The namespace and the name of an object. Every written object has both; the API server refuses
/// any other.
fn place<K: Object>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Returns whether it can be part of a URL's path unchanged. Names come from tenants: a name that
/// is a path would reach another namespace with Driftless's rights. No object has such a name.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests;
