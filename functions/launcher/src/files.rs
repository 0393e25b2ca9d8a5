//! The files of a run: the Secrets and ConfigMaps that its Workspace mounts.

use driftless_contract::File;
use driftless_core::{FileSource, KeyToPath, MountedFiles, MountedObject, run::WaitReason};
use driftless_kubernetes::Cluster;

use crate::{
    Stop,
    inputs::{Inputs, Kind},
};

/// The maximum size of all files of a run with their paths, in bytes. An object may be mounted more
/// than once.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of files of a run, because empty files take memory too.
const MAX_FILES: usize = 1000;

/// Reads the files, or returns what the run waits for. Tokens are not included, because they are
/// renewed during the run.
pub(crate) async fn read<C: Cluster>(inputs: &mut Inputs<'_, C>, mounted: &[MountedFiles]) -> Result<Vec<File>, Stop> {
    let mut files = Files::default();
    for mount in mounted {
        let before = files.all.len();
        let mut waited_for = Vec::new();
        for (mode, source) in &*mount.sources {
            let (kind, object) = match source {
                FileSource::Secret(object) => (Kind::Secret, object),
                FileSource::ConfigMap(object) => (Kind::ConfigMap, object),
                FileSource::Token { .. } => continue,
            };
            read_object(inputs, &mut files, mount, kind, object, *mode).await?;
            if !object.optional {
                waited_for.push(format!("{kind:?} {:?}", object.name));
            }
        }
        let is_empty = files.all.len() == before && mount.tokens().next().is_none();
        if let Some(sub_path) = mount.sub_path.as_ref().filter(|_| is_empty && !waited_for.is_empty()) {
            let (has, objects) = (if waited_for.len() == 1 { "has" } else { "have" }, waited_for.join(" and "));
            let message =
                format!("{objects} {has} no file {sub_path:?}, the subPath of {:?}; create it to start the run", mount.path);
            return Err(Stop::wait(WaitReason::InputNotFound, message));
        }
    }
    Ok(files.all)
}

/// Returns whether a token is mounted at this path.
pub(crate) fn is_token(mounted: &[MountedFiles], path: &str) -> bool {
    mounted.iter().flat_map(MountedFiles::tokens).any(|(_, place, _)| place == path)
}

/// The files read so far.
#[derive(Default)]
struct Files {
    all: Vec<File>,
    bytes: usize,
}

/// Reads only the mounted keys of an object.
async fn read_object<C: Cluster>(
    inputs: &mut Inputs<'_, C>,
    files: &mut Files,
    mount: &MountedFiles,
    kind: Kind,
    MountedObject { name, items, optional }: &MountedObject,
    default_mode: u32,
) -> Result<(), Stop> {
    let every_key;
    let items = if items.is_empty() {
        let keys = inputs.keys(kind, name, *optional).await?;
        every_key = keys.into_iter().map(|key| KeyToPath { path: key.clone(), key, mode: None }).collect();
        &every_key
    } else {
        items
    };
    for KeyToPath { key, path, mode } in items {
        let Some(path) = mount.place(path) else { continue };
        let Some(content) = inputs.bytes(kind, name, key, *optional).await? else { continue };
        files.bytes += path.len() + content.len();
        if files.bytes > MAX_BYTES || files.all.len() == MAX_FILES {
            let limit = MAX_BYTES >> 20;
            return Err(Stop::invalid(format!(
                "mounted files exceed the maximum of {MAX_FILES} files and {limit} MiB at {kind:?} {name:?}, mounted at {:?}; \
                 mount fewer or smaller keys",
                mount.path
            )));
        }
        files.all.push(File { path, mode: mode.unwrap_or(default_mode), content, secret: kind == Kind::Secret });
    }
    Ok(())
}
