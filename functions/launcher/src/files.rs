//! The files of a run: what its Workspace mounts of Secrets and ConfigMaps.

use driftless_api::{FileSource, KeyToPath, MountedFiles, MountedObject};
use driftless_contract::File;
use driftless_kubernetes::Cluster;

use crate::{
    Stop,
    inputs::{Inputs, Kind},
};

/// The maximum size of all files of a run, in bytes. An object may be mounted more than once.
const MAX_BYTES: usize = 4 << 20;

/// Reads the files, or finds what is waited for. Tokens are not among them: they are renewed while the run lasts.
pub(crate) async fn read<C: Cluster>(inputs: &mut Inputs<'_, C>, mounted: &[MountedFiles]) -> Result<Vec<File>, Stop> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for mount in mounted {
        let (kind, object) = match &mount.source {
            FileSource::Secret(object) => (Kind::Secret, object),
            FileSource::ConfigMap(object) => (Kind::ConfigMap, object),
            FileSource::Token { .. } => continue,
        };
        let before = files.len();
        for (file, mode, content) in contents(inputs, kind, object).await? {
            bytes += content.len();
            if bytes > MAX_BYTES {
                let limit = MAX_BYTES >> 20;
                return Err(Stop::invalid(format!(
                    "files are too large: a run has at most {limit} MiB of mounted files; {kind:?} {:?} at {:?} is beyond that; mount fewer or smaller objects",
                    object.name, mount.path
                )));
            }
            let place = mount.place(&file, mode);
            files.extend(place.map(|(path, mode)| File { path, mode, content, secret: kind == Kind::Secret }));
        }
        if let Some(sub_path) = mount.sub_path.as_ref().filter(|_| files.len() == before && !object.optional) {
            return Err(Stop::wait(
                "InputNotFound",
                format!(
                    "{kind:?} {:?} has no file {sub_path:?}, the subPath of {:?}; the run starts when it has",
                    object.name, mount.path
                ),
            ));
        }
    }
    Ok(files)
}

/// Whether a token is mounted at this path.
pub(crate) fn is_token(mounted: &[MountedFiles], path: &str) -> bool {
    mounted.iter().any(|mount| match &mount.source {
        FileSource::Token { path: file, .. } => mount.place(file, None).is_some_and(|(place, _)| place == path),
        _ => false,
    })
}

/// The files of an object, with their permissions if the Workspace states them.
async fn contents<C: Cluster>(
    inputs: &mut Inputs<'_, C>,
    kind: Kind,
    MountedObject { name, items, optional }: &MountedObject,
) -> Result<Vec<(String, Option<u32>, Vec<u8>)>, Stop> {
    if items.is_empty() {
        let all = inputs.all_bytes(kind, name, *optional).await?;
        return Ok(all.into_iter().map(|(key, content)| (key, None, content)).collect());
    }
    let mut files = Vec::new();
    for KeyToPath { key, path, mode } in items {
        let content = inputs.bytes(kind, name, key, *optional).await?;
        files.extend(content.map(|content| (path.clone(), *mode, content)));
    }
    Ok(files)
}
