use std::collections::BTreeMap;

use driftless_contract::ObjectKey;
use driftless_kubernetes::{Cluster, Endpoint, Error, EventType, Object, Page, Result, WATCH, metadata_patch};
use jiff::{SignedDuration, Timestamp};
use kube::core::DynamicObject;
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use crate::{State, World};

/// The name of the one cluster.
pub const CLUSTER: &str = "sim";
/// Objects per page of a list: few, so that the smallest of clusters has more than one.
const PAGE: usize = 3;

impl World {
    /// Writes an object as it is given, status included: what a user, Flux or another controller does. Its uid and generation are
    /// given by the world where it has none; finalizers and versions are not respected.
    pub fn insert(&self, mut object: Value) {
        let mut state = self.state();
        let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let key =
            ObjectKey { cluster: CLUSTER.into(), api_version, kind, namespace: metadata("namespace"), name: metadata("name") };
        state.fill_in(&mut object);
        state.commit(key, object);
    }

    /// The keys of the objects that were written or removed since it was last asked, in order: what a watch shows.
    #[must_use]
    pub fn written(&self) -> Vec<ObjectKey> {
        self.state().written.drain(..).collect()
    }

    /// Labels a namespace, which need not be there for anything else.
    pub fn label_namespace(&self, namespace: &str, watch: &str) {
        let metadata = json!({ "name": namespace, "labels": { WATCH: watch } });
        self.insert(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    }

    /// Begins the end of a namespace: nothing can be created in it, and all that is in it is deleted.
    pub fn terminate_namespace(&self, namespace: &str) {
        let mut state = self.state();
        state.terminating.insert(namespace.into());
        let keys: Vec<_> = state.cluster.keys().filter(|key| key.namespace == namespace).cloned().collect();
        for key in &keys {
            state.delete(key);
        }
    }

    /// From now on, RBAC allows nothing on objects of this kind.
    pub fn forbid(&self, kind: &str) {
        self.state().forbidden.insert(kind.into());
    }

    /// An object, if it is there.
    #[must_use]
    pub fn object(&self, key: &ObjectKey) -> Option<Value> {
        self.state().cluster.get(key).cloned()
    }

    /// Every object of the cluster.
    #[must_use]
    pub fn cluster(&self) -> Vec<Value> {
        self.state().cluster.values().cloned().collect()
    }

    /// Every Event that was published: `<kind> <namespace>/<name> <type> <reason>: <note>`.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.state().events.clone()
    }

    /// One call, on behalf of `verb` and an object.
    async fn kubernetes<T>(&self, verb: &str, key: &ObjectKey, effect: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let call = || format!("{verb} {} {}/{}", key.kind, key.namespace, key.name);
        let lost = || Err(Error::Transient { call: call(), message: "a fault of the simulation".into() });
        let allowed = |state: &mut State| {
            if state.forbidden.contains(&key.kind) {
                return Err(Error::Permanent { call: call(), message: format!("{} is forbidden", key.kind) });
            }
            effect(state)
        };
        self.call(allowed).await.unwrap_or_else(lost)
    }
}

impl State {
    /// An object as it is read. Each namespace that is not terminating has a `ServiceAccount` `default`, as Kubernetes makes one.
    fn find(&self, key: &ObjectKey) -> Option<Value> {
        let made = || {
            let is_default = (key.kind.as_str(), key.name.as_str()) == ("ServiceAccount", "default");
            let metadata = json!({ "namespace": key.namespace, "name": key.name });
            (is_default && !self.terminating.contains(&key.namespace)).then(|| json!({ "metadata": metadata }))
        };
        self.cluster.get(key).cloned().or_else(made)
    }

    /// What the API server gives every new object.
    fn fill_in(&mut self, object: &mut Value) {
        let uid = format!("00000000-0000-0000-0000-{:012x}", self.number());
        let given = [("uid", json!(uid)), ("generation", json!(1)), ("creationTimestamp", json!(self.now.to_string()))];
        for (field, value) in given {
            let field = &mut object["metadata"][field];
            if field.is_null() {
                *field = value;
            }
        }
    }

    /// Stores an object under a new version; removes it if it is deleted and has no finalizer.
    fn commit(&mut self, key: ObjectKey, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = json!(self.number().to_string());
        let metadata = &object["metadata"];
        let finalized = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
        if metadata["deletionTimestamp"].is_null() || !finalized {
            self.cluster.insert(key.clone(), object.clone());
        } else {
            self.cluster.remove(&key);
        }
        self.written.push_back(key);
        object
    }

    fn create(&mut self, key: ObjectKey, mut object: Value) -> Result<Value> {
        let call = format!("create {} {}/{}", key.kind, key.namespace, key.name);
        if self.terminating.contains(&key.namespace) {
            return Err(Error::NamespaceTerminating { call, message: "the namespace is terminating".into() });
        }
        if self.cluster.contains_key(&key) {
            return Err(Error::Conflict { call, message: "already exists".into() });
        }
        if has_status(&key) {
            fields(&mut object).remove("status");
        }
        fields(&mut object["metadata"]).retain(|field, _| !["uid", "generation", "creationTimestamp"].contains(&field.as_str()));
        self.fill_in(&mut object);
        Ok(self.commit(key, object))
    }

    /// The stored object, if it is still of the version that `object` was read at.
    fn current(&self, key: &ObjectKey, object: &Value) -> Result<Value> {
        let conflict = |message: &str| Error::Conflict {
            call: format!("write {} {}/{}", key.kind, key.namespace, key.name),
            message: message.into(),
        };
        let current = self.cluster.get(key).ok_or_else(|| conflict("not found"))?;
        let differs =
            |field: &str| !object["metadata"][field].is_null() && object["metadata"][field] != current["metadata"][field];
        if differs("resourceVersion") || differs("uid") {
            Err(conflict("the object has been modified"))
        } else {
            Ok(current.clone())
        }
    }

    /// Everything but the status, which has its own way where it is a subresource.
    fn replace(&mut self, key: ObjectKey, mut object: Value) -> Result<Value> {
        let current = self.current(&key, &object)?;
        for field in ["uid", "generation", "creationTimestamp", "deletionTimestamp", "resourceVersion"] {
            let field_of_current = &current["metadata"][field];
            if field_of_current.is_null() {
                fields(&mut object["metadata"]).remove(field);
            } else {
                object["metadata"][field] = field_of_current.clone();
            }
        }
        if has_status(&key) {
            fields(&mut object).remove("status");
            current.get("status").cloned().into_iter().for_each(|status| object["status"] = status);
        }
        if object == current {
            return Ok(object);
        }
        if object["spec"] != current["spec"] {
            object["metadata"]["generation"] = json!(current["metadata"]["generation"].as_u64().unwrap_or_default() + 1);
        }
        Ok(self.commit(key, object))
    }

    fn replace_status(&mut self, key: ObjectKey, object: &Value) -> Result<Value> {
        let current = self.current(&key, object)?;
        let mut next = current.clone();
        next["status"] = object["status"].clone();
        Ok(if next == current { current } else { self.commit(key, next) })
    }

    fn delete(&mut self, key: &ObjectKey) {
        if let Some(mut object) = self.cluster.get(key).cloned()
            && object["metadata"]["deletionTimestamp"].is_null()
        {
            object["metadata"]["deletionTimestamp"] = json!(self.now.to_string());
            // As the API server does: that it is to go is a change of what is desired.
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_u64().unwrap_or_default() + 1);
            self.commit(key.clone(), object);
        }
    }
}

impl Cluster for World {
    fn endpoint(&self) -> Endpoint {
        Endpoint { server: "https://kubernetes.example".into(), certificate_authority: Some("authority".into()) }
    }

    async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<Option<K>> {
        let key = key::<K>(namespace, name);
        self.kubernetes("get", &key, |state| state.find(&key).as_ref().map(read).transpose()).await
    }

    async fn get_dynamic(&self, key: &ObjectKey) -> Result<Option<DynamicObject>> {
        self.kubernetes("get", key, |state| state.cluster.get(key).map(read).transpose()).await
    }

    /// Each page is of the list as it is now, as from a token that expired.
    async fn page<K: Object>(
        &self,
        namespace: Option<&str>,
        field_selector: Option<&str>,
        from: Option<&str>,
    ) -> Result<Page<K>> {
        let (begin_namespace, begin_name) = from.and_then(|from| from.split_once('/')).unwrap_or_default();
        let begin = key::<K>(begin_namespace, begin_name);
        let list = |state: &mut State| {
            let of_kind = state
                .cluster
                .range(&begin..)
                .take_while(|(key, _)| (&key.api_version, &key.kind) == (&begin.api_version, &begin.kind));
            let in_namespace = of_kind.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace));
            let mut selected = in_namespace.filter(|(_, object)| is_selected(object, field_selector));
            Ok(Page {
                objects: selected.by_ref().take(PAGE).map(|(_, object)| read(object)).collect::<Result<_>>()?,
                next: selected.next().map(|(key, _)| format!("{}/{}", key.namespace, key.name)),
            })
        };
        self.kubernetes("list", &begin, list).await
    }

    /// Every namespace is there.
    async fn watch_label(&self, namespace: &str) -> Result<Option<Option<String>>> {
        let key = namespace_key(namespace);
        self.kubernetes("get", &key, |state| Ok(Some(state.cluster.get(&key).and_then(watch_label)))).await
    }

    async fn watch_labels(&self) -> Result<BTreeMap<String, String>> {
        let of_namespace = |(key, object): (&ObjectKey, &Value)| {
            (key.kind == "Namespace").then(|| Some((key.name.clone(), watch_label(object)?))).flatten()
        };
        self.kubernetes("list", &namespace_key(""), |state| Ok(state.cluster.iter().filter_map(of_namespace).collect())).await
    }

    async fn create<K: Object>(&self, object: &K) -> Result<K> {
        let (key, object) = write(object)?;
        read(&self.kubernetes("create", &key, |state| state.create(key.clone(), object)).await?)
    }

    async fn replace<K: Object>(&self, object: &K) -> Result<K> {
        let (key, object) = write(object)?;
        read(&self.kubernetes("replace", &key, |state| state.replace(key.clone(), object)).await?)
    }

    async fn patch_metadata<K: Object>(&self, object: &K) -> Result<K> {
        let (key, _) = write(object)?;
        let patch = |state: &mut State| {
            let patch = metadata_patch(object);
            let mut patched = state.current(&key, &patch)?;
            merge(&mut patched, patch);
            state.replace(key.clone(), patched)
        };
        read(&self.kubernetes("patch", &key, patch).await?)
    }

    async fn replace_status<K: Object>(&self, object: &K) -> Result<K> {
        let (key, object) = write(object)?;
        read(&self.kubernetes("replace status of", &key, |state| state.replace_status(key.clone(), &object)).await?)
    }

    async fn apply<K: Object>(&self, object: &K) -> Result<K> {
        let (key, object) = write(object)?;
        let apply = |state: &mut State| match state.cluster.get(&key).cloned() {
            Some(mut merged) => {
                merge(&mut merged, object);
                state.replace(key.clone(), merged)
            }
            None => state.create(key.clone(), object),
        };
        read(&self.kubernetes("apply", &key, apply).await?)
    }

    async fn delete<K: Object>(&self, object: &K) -> Result<()> {
        let (key, object) = write(object)?;
        let delete = |state: &mut State| {
            if state.cluster.contains_key(&key) {
                state.current(&key, &object)?;
                state.delete(&key);
            }
            Ok(())
        };
        self.kubernetes("delete", &key, delete).await
    }

    async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audience: Option<&str>,
        seconds: u32,
    ) -> Result<(SecretString, Timestamp)> {
        let key = ObjectKey {
            cluster: CLUSTER.into(),
            api_version: "v1".into(),
            kind: "ServiceAccount".into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let token = |state: &mut State| {
            let call = format!("create a token of ServiceAccount {namespace}/{name}");
            if state.terminating.contains(namespace) {
                return Err(Error::NamespaceTerminating { call, message: "the namespace is terminating".into() });
            }
            if state.find(&key).is_none() {
                return Err(Error::Permanent { call, message: format!("serviceaccounts {name:?} not found") });
            }
            let token = format!("token {} of {namespace}/{name} for {}", state.number(), audience.unwrap_or("kubernetes"));
            Ok((token.into(), state.now + SignedDuration::from_secs(seconds.into())))
        };
        self.kubernetes("create a token of", &key, token).await
    }

    async fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: &str,
        note: &str,
        _revision: Option<&str>,
        _at: Timestamp,
    ) {
        let meta = regarding.meta();
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        self.state().events.push(format!("{} {namespace}/{name} {event_type:?} {reason}: {note}", K::kind(&())));
    }
}

fn namespace_key(name: &str) -> ObjectKey {
    let [cluster, api_version, kind] = [CLUSTER, "v1", "Namespace"].map(String::from);
    ObjectKey { cluster, api_version, kind, namespace: String::new(), name: name.into() }
}

fn watch_label(namespace: &Value) -> Option<String> {
    namespace["metadata"]["labels"][WATCH].as_str().map(Into::into)
}

fn key<K: Object>(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: CLUSTER.into(),
        api_version: K::api_version(&()).into(),
        kind: K::kind(&()).into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn write<K: Object>(object: &K) -> Result<(ObjectKey, Value)> {
    let meta = object.meta();
    let key = key::<K>(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    Ok((key, serde_json::to_value(object).map_err(malformed)?))
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Result<T> {
    T::deserialize(object)
        .map_err(|error| Error::Unreadable { call: "read an object".into(), message: format!("{:?} error", error.classify()) })
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn malformed(error: serde_json::Error) -> Error {
    Error::Permanent { call: "write an object".into(), message: error.to_string() }
}

/// Our kinds have the status as a subresource; those of Kubernetes that we write have none.
fn has_status(key: &ObjectKey) -> bool {
    key.group().ends_with("pulumi.com")
}

/// `a.b=c,d.e!=f`; a field that is absent is empty.
fn is_selected(object: &Value, selector: Option<&str>) -> bool {
    selector.into_iter().flat_map(|selector| selector.split(',')).all(|term| {
        let (path, expected) = term.split_once('=').unwrap_or((term, ""));
        let (path, equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
        let found = object.pointer(&format!("/{}", path.replace('.', "/")));
        let found = found.map_or_else(String::new, |value| value.as_str().map_or_else(|| value.to_string(), Into::into));
        (found == expected) == equal
    })
}

/// A merge patch, and server-side apply, simplified: objects are merged, everything else is replaced, and nothing is taken away.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (field, value) in from {
                merge(into.entry(field).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The fields of a value that is an object, or is made one.
fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object"),
    }
}
