//! The volumes of a pod template in a task. An `emptyDir` is a volume of the task; Secrets,
//! `ConfigMap`s and tokens are files that the runner writes before Pulumi starts.

use std::{collections::BTreeSet, sync::Arc};

use serde::Deserialize;
use serde_json::Value;

use super::{
    Mount, SHARE,
    fields::{is_label, is_set, list, meaningless, typed},
    mount_path::{check_file, check_path, is_ours},
};
use crate::merge;

/// The name of the volume at [`SHARE`], which every container has, as in PKO.
const SHARE_NAME: &str = "share";
/// The maximum number of mounts of a container: the launcher reads a volume once for each of them.
const MAX_MOUNTS: usize = 64;
/// The maximum number of tokens: each costs a call at the start and at every renewal.
const MAX_TOKENS: usize = 8;
/// Kubernetes' default mode of files.
const DEFAULT_MODE: u32 = 0o644;

/// The files of a volume at a mount path of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedFiles {
    /// The mount path: a directory, or the file itself if [`MountedFiles::sub_path`] names one.
    pub path: String,
    /// The only file or directory of the volume that is mounted.
    pub sub_path: Option<String>,
    /// The sources of the files, with the mode of those that set none. All mounts of a volume share
    /// them.
    pub sources: Arc<[(u32, FileSource)]>,
}

impl MountedFiles {
    /// The path of a file of the volume; `None` if it is not mounted.
    #[must_use]
    pub fn place(&self, file: &str) -> Option<String> {
        let Some(sub_path) = &self.sub_path else { return Some(format!("{}/{file}", self.path)) };
        let rest = file.strip_prefix(sub_path.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{}{rest}", self.path))
    }

    /// The paths of the volume's tokens at this mount, with the audience and the mode of each.
    pub fn tokens(&self) -> impl Iterator<Item = (&Option<String>, String, u32)> {
        self.sources.iter().filter_map(|(mode, source)| match source {
            FileSource::Token { audience, path } => Some((audience, self.place(path)?, *mode)),
            FileSource::Secret(_) | FileSource::ConfigMap(_) => None,
        })
    }

    /// Returns whether this mount can never have a file of the volume, whatever its objects
    /// contain.
    fn is_always_empty(&self) -> bool {
        let is_elsewhere = |source: &FileSource| match source {
            FileSource::Secret(object) | FileSource::ConfigMap(object) => {
                !object.items.is_empty() && object.items.iter().all(|item| self.place(&item.path).is_none())
            }
            FileSource::Token { path, .. } => self.place(path).is_none(),
        };
        self.sources.iter().all(|(_, source)| is_elsewhere(source))
    }
}

/// The source of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// A Secret.
    Secret(MountedObject),
    /// A `ConfigMap`.
    ConfigMap(MountedObject),
    /// A token of the `ServiceAccount`.
    Token {
        /// The audience; `None` for the API server.
        audience: Option<String>,
        /// The file, relative to the mount path.
        path: String,
    },
}

/// A Secret or `ConfigMap` whose keys are files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountedObject {
    /// The object's name.
    pub name: String,
    /// The keys that become files; empty for all keys.
    pub items: Vec<KeyToPath>,
    /// The object and its keys may be missing.
    pub optional: bool,
}

/// A key of an object as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyToPath {
    /// The key.
    pub key: String,
    /// The file, relative to the mount path.
    pub path: String,
    /// Its mode; `None` for the volume's.
    pub mode: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Volume {
    name: String,
    secret: Option<Object>,
    config_map: Option<Object>,
    projected: Option<Projected>,
    #[serde(rename = "emptyDir")]
    _empty_dir: Option<Value>,
}

/// Both kinds of objects, as a volume and as a part of a projected one.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Object {
    #[serde(alias = "secretName")]
    name: String,
    items: Vec<KeyToPath>,
    optional: bool,
    default_mode: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Projected {
    #[serde(default)]
    sources: Vec<Projection>,
    default_mode: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Projection {
    secret: Option<Object>,
    config_map: Option<Object>,
    service_account_token: Option<Token>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Token {
    #[serde(default)]
    audience: String,
    path: String,
    /// The installation sets the lifetime of tokens, and they are renewed.
    #[serde(rename = "expirationSeconds")]
    _expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: String,
    #[serde(default)]
    sub_path: String,
    /// Each run has its own files, so its changes affect only itself.
    #[serde(rename = "readOnly")]
    _read_only: Option<bool>,
}

/// Files of a volume: the mode of those that set none, and their source.
type Content = (u32, FileSource);

/// The volumes of a pod template.
pub(super) struct Volumes<'a> {
    pod: &'a str,
    volumes: Vec<(Volume, Arc<[Content]>)>,
}

/// A volume mounted in a container.
struct Place<'a> {
    /// The field in which the user wrote it.
    at: String,
    mount: VolumeMount,
    /// Empty for an `emptyDir`.
    files: &'a Arc<[Content]>,
}

impl<'a> Volumes<'a> {
    /// Reads the volumes. `pod` is the field with the pod's spec.
    pub(super) fn of(pod: &'a str, spec: &Value) -> Result<Self, String> {
        let volumes: Vec<_> = list(&spec["volumes"]).iter().map(|volume| read(pod, volume)).collect::<Result<_, String>>()?;
        let mut names = BTreeSet::new();
        match volumes.iter().find(|(volume, _)| !names.insert(&volume.name)) {
            Some((volume, _)) => Err(format!("{pod}.volumes has two volumes with the name {:?}; rename one", volume.name)),
            None => Ok(Self { pod, volumes }),
        }
    }

    /// The mounts of the container `pulumi`, and the files at them. `at` is the field with the
    /// container.
    pub(super) fn of_main(&self, at: &str, mounts: &[Value]) -> Result<(Vec<Mount>, Vec<MountedFiles>), String> {
        let (mut own, mut mounted) = (Vec::new(), Vec::new());
        for Place { at, mount: VolumeMount { name, mount_path: path, sub_path, .. }, files } in self.places(at, mounts)? {
            // A single file is written into the image's own directory.
            if !is_ours(&path) && sub_path.is_empty() {
                own.push(Mount { volume: name, path: path.clone() });
            }
            let sub_path = Some(sub_path).filter(|sub_path| !sub_path.is_empty());
            let files = MountedFiles { path, sub_path, sources: Arc::clone(files) };
            if let Some(sub_path) = files.sub_path.as_ref().filter(|_| files.is_always_empty()) {
                return Err(format!(
                    "{at}.subPath is {sub_path:?}, which is not a file of the volume; write the path of one of its files"
                ));
            }
            mounted.extend(Some(files).filter(|files| !files.sources.is_empty()));
        }
        let tokens = mounted.iter().flat_map(MountedFiles::tokens).count();
        if tokens > MAX_TOKENS {
            return Err(format!("{at}.volumeMounts has {tokens} tokens, the maximum is {MAX_TOKENS}; remove some"));
        }
        Ok((own, mounted))
    }

    /// The mounts of an init container. The runner, which writes the files, starts after it.
    pub(super) fn of_init(&self, at: &str, mounts: &[Value]) -> Result<Vec<Mount>, String> {
        let own = |Place { at, mount: VolumeMount { name, mount_path: path, .. }, files }: Place<'_>| {
            if files.is_empty() {
                return Ok(Mount { volume: name, path });
            }
            let remedy = "mount an emptyDir here, and the volume in the container pulumi";
            Err(format!("{at}: the files of {name:?} are written after the init containers have ended; {remedy}"))
        };
        self.places(at, mounts)?.into_iter().map(own).collect()
    }

    /// The mounts of a container, except for that of the volume that every container has.
    fn places(&self, container_at: &str, mounts: &[Value]) -> Result<Vec<Place<'_>>, String> {
        if mounts.len() > MAX_MOUNTS {
            let remedy = "combine volumes as sources of one projected volume";
            let number = mounts.len();
            return Err(format!("{container_at}.volumeMounts has {number} entries, the maximum is {MAX_MOUNTS}; {remedy}"));
        }
        let mut places: Vec<Place<'_>> = Vec::new();
        for mount in mounts {
            let at = format!("{container_at}.volumeMounts[{}]", mount["name"].as_str().unwrap_or_default());
            let remedy = if is_set(&mount["subPathExpr"]) { "write the path in subPath" } else { "remove it" };
            only_known(&at, mount, &["name", "mountPath", "subPath", "readOnly"], remedy)?;
            let mut mount: VolumeMount = typed(&at, merge(Value::Null, mount))?;
            mount.mount_path.truncate(mount.mount_path.trim_end_matches('/').len());
            mount.sub_path.truncate(mount.sub_path.trim_end_matches('/').len());
            let VolumeMount { name, mount_path: path, sub_path, .. } = &mount;
            if name == SHARE_NAME {
                if path == SHARE && sub_path.is_empty() {
                    continue;
                }
                return Err(format!("{at}: the volume {SHARE_NAME:?} is always mounted at {SHARE}; remove the mount"));
            }
            let Some((_, files)) = self.volumes.iter().find(|(volume, _)| volume.name == *name) else {
                return Err(format!("{at} refers to a volume that {}.volumes does not have; add it there", self.pod));
            };
            check_path(&format!("{at}.mountPath"), path)?;
            if !sub_path.is_empty() {
                check_file(&format!("{at}.subPath"), sub_path)?;
            }
            if files.is_empty() && (is_ours(path) || !sub_path.is_empty()) {
                return Err(format!(
                    "{at}: an emptyDir supports no subPath, and no mountPath with other files; write another \
                     mountPath"
                ));
            }
            if places.iter().any(|place| place.mount.mount_path == *path) {
                return Err(format!("{at}.mountPath is {path:?}, which another mount has too; write another path"));
            }
            places.push(Place { at, mount, files });
        }
        Ok(places)
    }
}

/// A volume and its files.
fn read(pod: &str, volume: &Value) -> Result<(Volume, Arc<[Content]>), String> {
    let at = format!("{pod}.volumes[{}]", volume["name"].as_str().unwrap_or_default());
    let known = ["name", "secret", "configMap", "projected", "emptyDir"];
    let other = volume.as_object().into_iter().flatten().find(|(field, value)| is_set(value) && !known.contains(&field.as_str()));
    if let Some((field, _)) = other {
        let remedy = match field.as_str() {
            // In PKO's own manifests such a volume holds the state.
            "persistentVolumeClaim" => {
                "the disk of a task is deleted after its run; remove the volume and its volumeMounts, and keep the state of \
                 Pulumi in an object store (PULUMI_BACKEND_URL=s3://BUCKET)"
            }
            _ => "use secret, configMap, projected or emptyDir",
        };
        return Err(format!("{}; {remedy}", meaningless(&at, field)));
    }
    for (number, source) in list(&volume["projected"]["sources"]).iter().enumerate() {
        let remedy = "use secret, configMap or serviceAccountToken";
        only_known(
            &format!("{at}.projected.sources[{number}]"),
            source,
            &["secret", "configMap", "serviceAccountToken"],
            remedy,
        )?;
    }
    let volume: Volume = typed(&at, merge(Value::Null, volume))?;
    if !is_label(&volume.name) {
        return Err(format!("{at} has the name {:?}; write at most 63 characters of a-z, 0-9 and -", volume.name));
    }
    let files = files(&at, &volume)?;
    if volume.name == SHARE_NAME && !files.is_empty() {
        return Err(format!("{at}: the name {SHARE_NAME:?} is reserved for the volume that all containers share; rename yours"));
    }
    Ok((volume, files.into()))
}

/// Refuses a map with a field other than these.
fn only_known(at: &str, map: &Value, known: &[&str], remedy: &str) -> Result<(), String> {
    let is_other = |(field, value): &(&String, &Value)| !value.is_null() && !known.contains(&field.as_str());
    match map.as_object().into_iter().flatten().find(is_other) {
        Some((field, _)) => Err(format!("{}; {remedy}", meaningless(at, field))),
        None => Ok(()),
    }
}

/// The files of a volume, with their modes; empty for an `emptyDir`.
fn files(at: &str, volume: &Volume) -> Result<Vec<Content>, String> {
    let of_object = |at: &str, object: &Object| {
        if object.name.is_empty() {
            return Err(format!("{at} has no name; write the name of the object"));
        }
        object.items.iter().try_for_each(|item| check_file(&format!("{at}.items[{}].path", item.key), &item.path))?;
        Ok(MountedObject { name: object.name.clone(), items: object.items.clone(), optional: object.optional })
    };
    let mut files = Vec::new();
    if let Some(secret) = &volume.secret {
        let source = FileSource::Secret(of_object(&format!("{at}.secret"), secret)?);
        files.push((secret.default_mode.unwrap_or(DEFAULT_MODE), source));
    }
    if let Some(map) = &volume.config_map {
        files
            .push((map.default_mode.unwrap_or(DEFAULT_MODE), FileSource::ConfigMap(of_object(&format!("{at}.configMap"), map)?)));
    }
    if let Some(projected) = &volume.projected {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        for (number, Projection { secret, config_map, service_account_token: token }) in projected.sources.iter().enumerate() {
            let at = format!("{at}.projected.sources[{number}]");
            if let Some(secret) = secret {
                files.push((mode, FileSource::Secret(of_object(&format!("{at}.secret"), secret)?)));
            }
            if let Some(map) = config_map {
                files.push((mode, FileSource::ConfigMap(of_object(&format!("{at}.configMap"), map)?)));
            }
            if let Some(Token { audience, path, .. }) = token {
                check_file(&format!("{at}.serviceAccountToken.path"), path)?;
                let audience = Some(audience.clone()).filter(|audience| !audience.is_empty());
                files.push((mode, FileSource::Token { audience, path: path.clone() }));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
