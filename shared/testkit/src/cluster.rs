use std::collections::{BTreeMap, BTreeSet};

use driftless_contract::ObjectKey;
use driftless_kubernetes::{
    Cluster, Endpoint, Error, EventMarks, EventReason, EventType, Object, Page, Result, Selector, WATCH, metadata_patch,
};
use jiff::{SignedDuration, Timestamp};
use kube::core::DynamicObject;
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::{
    fields::{fields, is_selected, merge, omit_empty, release, unselectable},
    stored::Stored,
    world::{State, World},
};

/// The name of the one cluster.
pub const CLUSTER: &str = "sim";
/// Objects per page of a list: few, so that even a small cluster has more than one page.
const PAGE: usize = 3;
/// The shortest lifetime of a token.
const TOKEN_SECONDS: u32 = 600;
/// The longest note of an Event.
const NOTE_BYTES: usize = 1024;

impl World {
    /// Writes an object as it is, status included, like a user, Flux or another controller. The
    /// world adds a missing uid and generation; finalizers and versions are not respected.
    pub fn insert(&self, mut object: Value) {
        let mut state = self.state();
        let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let key =
            ObjectKey { cluster: CLUSTER.into(), api_version, kind, namespace: metadata("namespace"), name: metadata("name") };
        state.fill_in(&key, &mut object);
        state.commit(key, object);
    }

    /// The keys of the objects that were written or removed since the last call, in order, as a
    /// watch shows them.
    #[must_use]
    pub fn written(&self) -> Vec<ObjectKey> {
        self.state().written.drain(..).collect()
    }

    /// Labels a namespace, which need not exist otherwise.
    pub fn label_namespace(&self, namespace: &str, watch: &str) {
        let metadata = json!({ "name": namespace, "labels": { WATCH: watch } });
        self.insert(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    }

    /// Terminates a namespace: no object can be created in it, and all objects in it are deleted.
    pub fn terminate_namespace(&self, namespace: &str) {
        let mut state = self.state();
        state.terminating.insert(namespace.into());
        let keys: Vec<_> = state.cluster.keys().filter(|key| key.namespace == namespace).cloned().collect();
        for key in &keys {
            state.delete(key);
        }
    }

    /// From now on, RBAC denies all access to objects of this kind.
    pub fn forbid(&self, kind: &str) {
        self.state().forbidden.insert(kind.into());
    }

    /// From now on, RBAC allows that again.
    pub fn allow(&self, kind: &str) {
        self.state().forbidden.remove(kind);
    }

    /// An object, if it exists.
    #[must_use]
    pub fn object(&self, key: &ObjectKey) -> Option<Value> {
        self.stored(key).map(|object| Value::clone(&object))
    }

    /// The same without a copy of its JSON.
    #[must_use]
    pub fn stored(&self, key: &ObjectKey) -> Option<Stored> {
        self.state().cluster.get(key).cloned()
    }

    /// The present version of an object. A write with it overwrites any change since the object was
    /// read.
    #[must_use]
    pub fn current_version<K: Object>(&self, object: &K) -> Option<String> {
        self.stored(&key_of(object))?["metadata"]["resourceVersion"].as_str().map(Into::into)
    }

    /// The objects with an owner that was deleted, and their other owners: Kubernetes' garbage
    /// collector deletes an object without another owner, and removes the references to deleted
    /// owners from the others.
    #[must_use]
    pub fn orphans(&self) -> Vec<(ObjectKey, Vec<Value>)> {
        let state = self.state();
        let uids: BTreeSet<_> = state.cluster.values().filter_map(|object| object["metadata"]["uid"].as_str()).collect();
        let lives = |owner: &&Value| owner["uid"].as_str().is_some_and(|uid| uids.contains(uid));
        let orphans = state.cluster.iter().filter_map(|(key, object)| {
            let owners = object["metadata"]["ownerReferences"].as_array()?;
            let left: Vec<_> = owners.iter().filter(lives).cloned().collect();
            (left.len() < owners.len()).then(|| (key.clone(), left))
        });
        orphans.collect()
    }

    /// Every object of the cluster.
    #[must_use]
    pub fn cluster(&self) -> Vec<Value> {
        self.state().cluster.values().map(|object| Value::clone(object)).collect()
    }

    /// Every Event that was published: `<kind> <namespace>/<name> <type> <reason>: <note>`.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.state().events.clone()
    }

    /// Makes one call, with `verb` and an object.
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
    /// An object as a read returns it. Each namespace that is not terminating has a
    /// `ServiceAccount` `default`, which Kubernetes creates.
    fn find(&self, key: &ObjectKey) -> Option<Stored> {
        let made = || {
            let is_default = (key.kind.as_str(), key.name.as_str()) == ("ServiceAccount", "default");
            let object = || json!({ "metadata": { "namespace": key.namespace, "name": key.name } });
            (is_default && !self.terminating.contains(&key.namespace)).then(|| object().into())
        };
        self.cluster.get(key).cloned().or_else(made)
    }

    /// Adds what the API server gives every new object.
    fn fill_in(&mut self, key: &ObjectKey, object: &mut Value) {
        let uid = format!("00000000-0000-0000-0000-{:012x}", self.number(&format!("uid of {key}")));
        let given = [("uid", json!(uid)), ("generation", json!(1)), ("creationTimestamp", json!(self.now.to_string()))];
        for (field, value) in given {
            let field = &mut object["metadata"][field];
            if field.is_null() {
                *field = value;
            }
        }
    }

    /// Stores an object under a new version; removes it if it is deleted and has no finalizer.
    fn commit(&mut self, key: ObjectKey, mut object: Value) -> Stored {
        object["metadata"]["resourceVersion"] = json!(self.number(&format!("version of {key}")).to_string());
        let metadata = &object["metadata"];
        let finalized = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
        let stays = metadata["deletionTimestamp"].is_null() || !finalized;
        let object = Stored::from(object);
        if stays {
            self.cluster.insert(key.clone(), object.clone());
        } else {
            self.cluster.remove(&key);
            self.applied.remove(&key);
        }
        self.written.push_back(key);
        object
    }

    fn create(&mut self, key: ObjectKey, mut object: Value) -> Result<Stored> {
        let call = format!("create {} {}/{}", key.kind, key.namespace, key.name);
        if self.terminating.contains(&key.namespace) {
            return Err(Error::NamespaceTerminating { call, message: "the namespace is terminating".into() });
        }
        if !object["metadata"]["resourceVersion"].is_null() {
            // The API server answers 500.
            let message = "resourceVersion should not be set on objects to be created".into();
            return Err(Error::Transient { call, message });
        }
        if self.cluster.contains_key(&key) {
            return Err(Error::Conflict { call, message: "already exists".into() });
        }
        if has_status(&key) {
            fields(&mut object).remove("status");
        }
        fields(&mut object["metadata"]).retain(|field, _| !["uid", "generation", "creationTimestamp"].contains(&field.as_str()));
        omit_empty(&mut object);
        self.fill_in(&key, &mut object);
        Ok(self.commit(key, object))
    }

    /// The stored object, if it still has the version of `object`.
    fn current(&self, key: &ObjectKey, object: &Value) -> Result<Stored> {
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

    /// Refuses an object without a version if it would overwrite an existing one. Only kinds of the
    /// core group, such as Secrets, can be overwritten without a version.
    fn versioned(&self, key: &ObjectKey, object: &Value) -> Result<()> {
        let is_blind = object["metadata"]["resourceVersion"].is_null();
        if is_blind && !key.group().is_empty() && self.cluster.contains_key(key) {
            let call = format!("write {} {}/{}", key.kind, key.namespace, key.name);
            return Err(Error::Permanent { call, message: "metadata.resourceVersion: must be specified for an update".into() });
        }
        Ok(())
    }

    /// Replaces everything but the status, if that is a subresource.
    fn replace(&mut self, key: ObjectKey, mut object: Value) -> Result<Stored> {
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
        omit_empty(&mut object);
        let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let (before, now) = (finalizers(&current), finalizers(&object));
        if !current["metadata"]["deletionTimestamp"].is_null() && now.iter().any(|finalizer| !before.contains(finalizer)) {
            let call = format!("write {} {}/{}", key.kind, key.namespace, key.name);
            let message = "metadata.finalizers: no new finalizers can be added if the object is being deleted".into();
            return Err(Error::Permanent { call, message });
        }
        if object == *current {
            return Ok(current);
        }
        if object["spec"] != current["spec"] {
            object["metadata"]["generation"] = json!(current["metadata"]["generation"].as_u64().unwrap_or_default() + 1);
        }
        Ok(self.commit(key, object))
    }

    fn replace_status(&mut self, key: ObjectKey, object: &Value) -> Result<Stored> {
        let current = self.current(&key, object)?;
        let mut next = Value::clone(&current);
        next["status"] = object["status"].clone();
        Ok(if next == *current { current } else { self.commit(key, next) })
    }

    /// Server-side apply, simplified: lists are replaced, and a field has another owner if its
    /// value is not the applied one.
    fn apply(&mut self, key: ObjectKey, mut object: Value) -> Result<Stored> {
        if has_status(&key) {
            fields(&mut object).remove("status");
        }
        let applied = match self.cluster.get(&key).map(|object| Value::clone(object)) {
            Some(mut merged) => {
                if let Some(before) = self.applied.get(&key) {
                    release(&mut merged, before, &object);
                }
                merge(&mut merged, object.clone());
                self.replace(key.clone(), merged)?
            }
            None => self.create(key.clone(), object.clone())?,
        };
        self.applied.insert(key, object);
        Ok(applied)
    }

    fn delete(&mut self, key: &ObjectKey) {
        if let Some(mut object) = self.cluster.get(key).map(|object| Value::clone(object))
            && object["metadata"]["deletionTimestamp"].is_null()
        {
            object["metadata"]["deletionTimestamp"] = json!(self.now.to_string());
            // As in the API server, a deletion changes the generation.
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
        let get = |state: &mut State| {
            if is_served(key) {
                return state.cluster.get(key).map(read).transpose();
            }
            let call = format!("get {} {}/{}", key.kind, key.namespace, key.name);
            Err(Error::Permanent { call, message: format!("cluster does not serve {} of {}", key.kind, key.api_version) })
        };
        self.kubernetes("get", key, get).await
    }

    /// The plural is taken for the lower-case kind with an ending.
    async fn of_cluster(&self, api_version: &str, plural: &str) -> Result<Vec<DynamicObject>> {
        let key = ObjectKey { api_version: api_version.to_owned(), kind: plural.to_owned(), ..namespace_key("") };
        let stem = plural.trim_end_matches("ies");
        let list = |state: &mut State| {
            let of_kind = |(key, _): &(&ObjectKey, &Stored)| {
                key.api_version == api_version && key.kind.to_lowercase().trim_end_matches('y') == stem
            };
            state.cluster.iter().filter(of_kind).map(|(_, object)| read(object)).collect()
        };
        self.kubernetes("list", &key, list).await
    }

    /// Each page is from the present list, as with a token that expired.
    async fn page<K: Object>(&self, namespace: Option<&str>, selector: Selector<'_>, from: Option<&str>) -> Result<Page<K>> {
        let (begin_namespace, begin_name) = from.and_then(|from| from.split_once('/')).unwrap_or_default();
        let begin = key::<K>(begin_namespace, begin_name);
        let list = |state: &mut State| {
            if let Some(field) = unselectable(&begin.kind, selector) {
                let message = format!("field label not supported: {field}");
                return Err(Error::Permanent { call: format!("list {}", begin.kind), message });
            }
            let of_kind = state
                .cluster
                .range(&begin..)
                .take_while(|(key, _)| (&key.api_version, &key.kind) == (&begin.api_version, &begin.kind));
            let in_namespace = of_kind.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace));
            let mut selected = in_namespace.filter(|(_, object)| is_selected(object, selector));
            Ok(Page {
                objects: selected.by_ref().take(PAGE).filter_map(|(_, object)| read(object).ok()).collect(),
                next: selected.next().map(|(key, _)| format!("{}/{}", key.namespace, key.name)),
            })
        };
        self.kubernetes("list", &begin, list).await
    }

    /// Every namespace exists.
    async fn watch_label(&self, namespace: &str) -> Result<Option<Option<String>>> {
        let key = namespace_key(namespace);
        self.kubernetes("get", &key, |state| Ok(Some(state.cluster.get(&key).and_then(|object| watch_label(object))))).await
    }

    async fn watch_labels(&self) -> Result<BTreeMap<String, String>> {
        let of_namespace = |(key, object): (&ObjectKey, &Stored)| {
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
        let replace = |state: &mut State| {
            state.versioned(&key, &object)?;
            state.replace(key.clone(), object)
        };
        read(&self.kubernetes("replace", &key, replace).await?)
    }

    async fn patch_metadata<K: Object>(&self, object: &K) -> Result<K> {
        let key = key_of(object);
        let patch = |state: &mut State| {
            let patch = metadata_patch(object);
            let current = state.current(&key, &patch)?;
            let mut patched = Value::clone(&current);
            merge(&mut patched, patch);
            state.replace(key.clone(), patched)
        };
        read(&self.kubernetes("patch", &key, patch).await?)
    }

    async fn replace_status<K: Object>(&self, object: &K) -> Result<K> {
        let (key, object) = write(object)?;
        let replace = |state: &mut State| {
            state.versioned(&key, &object)?;
            state.replace_status(key.clone(), &object)
        };
        read(&self.kubernetes("replace status of", &key, replace).await?)
    }

    async fn apply<K: Object>(&self, object: &K) -> Result<K> {
        let (key, object) = write(object)?;
        read(&self.kubernetes("apply", &key, |state| state.apply(key.clone(), object)).await?)
    }

    async fn delete<K: Object>(&self, object: &K) -> Result<()> {
        let key = key_of(object);
        let version = json!({ "metadata": { "uid": object.meta().uid, "resourceVersion": object.meta().resource_version } });
        let delete = |state: &mut State| {
            if state.cluster.contains_key(&key) {
                state.current(&key, &version)?;
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
            if seconds < TOKEN_SECONDS {
                return Err(Error::Permanent { call, message: "may not specify a duration less than 10 minutes".into() });
            }
            let token = format!("token {} of {namespace}/{name} for {}", state.number("token"), audience.unwrap_or("kubernetes"));
            Ok((token.into(), state.now + SignedDuration::from_secs(seconds.into())))
        };
        self.kubernetes("create a token of", &key, token).await
    }

    async fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: EventReason,
        note: &str,
        _marks: EventMarks<'_>,
        _at: Timestamp,
    ) {
        let meta = regarding.meta();
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let note = &note[..note.floor_char_boundary(NOTE_BYTES)];
        let mut state = self.state();
        if !state.terminating.contains(namespace) {
            state.events.push(format!("{} {namespace}/{name} {event_type:?} {reason}: {note}", K::kind(&())));
        }
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

fn key_of<K: Object>(object: &K) -> ObjectKey {
    let [namespace, name] = [&object.meta().namespace, &object.meta().name].map(|part| part.as_deref().unwrap_or_default());
    key::<K>(namespace, name)
}

fn write<K: Object>(object: &K) -> Result<(ObjectKey, Value)> {
    Ok((key_of(object), serde_json::to_value(object).map_err(malformed)?))
}

fn read<T: serde::de::DeserializeOwned + Clone + 'static>(object: &Stored) -> Result<T> {
    object
        .typed()
        .map_err(|error| Error::Unreadable { call: "read an object".into(), message: format!("{:?} error", error.classify()) })
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn malformed(error: serde_json::Error) -> Error {
    Error::Permanent { call: "write an object".into(), message: error.to_string() }
}

/// Driftless's kinds have the status as a subresource; the kinds of Kubernetes that it writes do
/// not.
fn has_status(key: &ObjectKey) -> bool {
    key.group().ends_with("pulumi.com")
}

/// Returns whether the cluster serves the kinds of an object's group: those of Kubernetes, Flux and
/// Driftless.
fn is_served(key: &ObjectKey) -> bool {
    let group = key.group();
    group.is_empty() || [".k8s.io", ".toolkit.fluxcd.io", "pulumi.com"].iter().any(|served| group.ends_with(served))
}
