//! Where documents lie in the bucket, and how claims and Updates are named.
//!
//! Names of clusters, namespaces and objects are DNS labels or subdomains, so that they are path parts as they are; everything
//! else is hashed or encoded before it becomes part of a key.

pub use driftless_core::hash;

use std::collections::BTreeMap;

use driftless_core::StoredTree;
use jiff::Timestamp;

use crate::{ObjectKey, StackId};

/// The path part that stands for a source: `<lower-case kind>.<name>`.
fn source(object: &ObjectKey) -> String {
    format!("{}/{}/{}.{}", object.cluster, object.namespace, object.kind.to_lowercase(), object.name)
}

/// The folder of a tree, with a trailing slash: it holds `manifest` and `pack`. `digest` is the source's own, such as `sha256:…`.
#[must_use]
pub fn tree(object: &ObjectKey, digest: &str) -> String {
    format!("trees/{}/{}/", source(object), digest.replace(':', "-"))
}

/// The folder of all trees of a cluster, with a trailing slash.
#[must_use]
pub fn trees_of_cluster(cluster: &str) -> String {
    format!("trees/{cluster}/")
}

/// The folder of all trees of a source's namespace, with a trailing slash.
#[must_use]
pub fn trees_of_namespace(source: &ObjectKey) -> String {
    format!("{}{}/", trees_of_cluster(&source.cluster), source.namespace)
}

/// The folder of all trees of a source, with a trailing slash.
#[must_use]
pub fn trees(object: &ObjectKey) -> String {
    format!("trees/{}/", source(object))
}

/// The source that a tree of a cluster is of, by the tree's folder. Its kind is in lower case and its API version is not known, which
/// makes the same keys as the source itself.
#[must_use]
pub fn source_of_trees(cluster: &str, folder: &str) -> Option<ObjectKey> {
    let mut parts = folder.strip_prefix(&trees_of_cluster(cluster))?.split('/');
    let (namespace, source) = (parts.next()?, parts.next()?);
    let (kind, name) = source.split_once('.')?;
    Some(ObjectKey {
        cluster: cluster.into(),
        api_version: String::new(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    })
}

/// The trees that a listing of keys and times shows, by folder.
#[must_use]
pub fn stored_trees<'a>(listing: impl IntoIterator<Item = (&'a str, Timestamp)>) -> BTreeMap<&'a str, StoredTree> {
    let mut trees = BTreeMap::<&str, StoredTree>::new();
    for (key, modified) in listing {
        if let Some(folder) = key.strip_suffix("manifest") {
            trees.entry(folder).or_default().manifest = Some(modified);
        } else if let Some(folder) = key.strip_suffix("pack") {
            trees.entry(folder).or_default().pack = Some(modified);
        }
    }
    trees
}

/// How the last fetch of a source ended.
#[must_use]
pub fn fetch(object: &ObjectKey) -> String {
    format!("fetches/{}", source(object))
}

/// What the Secrets and ConfigMaps of a Stack were when somebody last looked.
#[must_use]
pub fn inputs(cluster: &str, stack_uid: &str) -> String {
    format!("inputs/{cluster}/{stack_uid}")
}

/// The key of the digests in [`inputs`]: 32 random bytes that only the launcher may read.
pub const INPUTS_KEY: &str = "keys/inputs";

/// The sealed copy of what the last run of a Stack read from Secrets and ConfigMaps: to destroy what it made when those are gone.
#[must_use]
pub fn sealed(cluster: &str, stack: &StackId) -> String {
    format!("sealed/{cluster}/{}/{}", stack.namespace, stack.uid)
}

/// The folder of a run, with a trailing slash: it holds `launch`, `owner` and `outcome`, each written once.
#[must_use]
pub fn run(cluster: &str, update_uid: &str) -> String {
    format!("runs/{cluster}/{update_uid}/")
}

/// The folder of a task, with a trailing slash: `in/` is written by the launcher, `out/` by the runner. The name is what IAM calls
/// `aws:userid` of the task's credentials.
#[must_use]
pub fn task(role_id: &str, task_id: &str) -> String {
    format!("tasks/{role_id}:{task_id}/")
}

/// The folder of the task that wrote `key`, if the key is the progress or the result of one.
#[must_use]
pub fn task_of_report(key: &str) -> Option<&str> {
    let folder = ["out/result", "out/progress"].into_iter().find_map(|report| key.strip_suffix(report))?;
    (folder.starts_with("tasks/") && folder.matches('/').count() == 2).then_some(folder)
}

/// A task's log has no more chunks than this, numbered from 1. Enough for a run of a day.
pub const MAX_LOG_CHUNKS: u16 = 400;

/// The maximum size of a chunk of a task's log, in bytes.
pub const MAX_LOG_CHUNK_BYTES: usize = 64 << 10;

/// The number of a chunk of a log as it is written in names, so that the order of the names is that of the chunks: `0001`.
#[must_use]
pub fn log_number(number: u16) -> String {
    format!("{number:04}")
}

/// The name of a chunk of a task's log in the task's folder. Each is written once, in order and without gaps, as UTF-8: whole lines of
/// what the runner printed, secrets masked. The first that is absent ends the log as it is now.
#[must_use]
pub fn log_chunk(number: u16) -> String {
    format!("out/log/{}", log_number(number))
}

/// The locks that dead runs left in their backend, by claim.
#[must_use]
pub fn lock(cluster: &str, claim: &str) -> String {
    format!("locks/{cluster}/{claim}")
}

/// [`crate::Resources`], by claim.
#[must_use]
pub fn resources(cluster: &str, claim: &str) -> String {
    format!("resources/{cluster}/{claim}")
}

/// [`crate::UnfitArchitecture`] of a run's namespace, by [`driftless_core::TaskShape::images`].
#[must_use]
pub fn architecture(update: &ObjectKey, images: &str) -> String {
    format!("architectures/{}/{}/{images}", update.cluster, update.namespace)
}

/// The last part of a task's ARN.
#[must_use]
pub fn task_id(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or(arn)
}

/// The name of the Lease that is the claim of a Pulumi stack. Two Updates that name the same stack of the same backend from the
/// same namespace come to the same claim.
#[must_use]
pub fn claim(namespace: &str, backend: &str, stack: &str) -> String {
    let backend = backend.trim().trim_end_matches('/');
    format!("claim-{}", hash(&[namespace, backend, stack]))
}

/// The Lease in the system's namespace that says which runs go on and which wait, where there are limits.
pub const ADMISSIONS: &str = "driftless-admissions";

/// The annotation of [`ADMISSIONS`]: [`driftless_core::Admissions`] as JSON.
pub const ADMISSIONS_ANNOTATION: &str = "driftless.dev/admissions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_report_in_a_tasks_own_folder_names_a_task() {
        for report in ["result", "progress"] {
            assert_eq!(task_of_report(&format!("tasks/AROA1:abc/out/{report}")), Some("tasks/AROA1:abc/"));
        }
        for other in ["out/lock", &log_chunk(1)] {
            assert_eq!(task_of_report(&format!("tasks/AROA1:abc/{other}")), None);
        }
        assert_eq!(task_of_report("tasks/AROA1:abc/out/x/out/result"), None);
        assert_eq!(task_of_report("runs/c/u/out/result"), None);
    }

    #[test]
    fn a_tree_tells_its_source_although_not_in_the_sources_own_words() {
        let source = ObjectKey {
            cluster: "arn:aws:eks:eu-west-1:1:cluster/c".into(),
            api_version: "source.toolkit.fluxcd.io/v1".into(),
            kind: "OCIRepository".into(),
            namespace: "n".into(),
            name: "a.b".into(),
        };
        let folder = tree(&source, "sha256:00");
        let found = source_of_trees(&source.cluster, &folder).unwrap();
        assert_eq!((found.kind.as_str(), found.name.as_str()), ("ocirepository", "a.b"));
        assert_eq!((tree(&found, "sha256:00"), fetch(&found)), (folder.clone(), fetch(&source)));
        assert!(folder.starts_with(&trees(&source)));
        assert_eq!(source_of_trees("other", &folder), None);

        let (written, keys) = (Timestamp::UNIX_EPOCH, [format!("{folder}manifest"), format!("{folder}pack")]);
        let stored = stored_trees(keys.iter().map(|key| (key.as_str(), written)));
        assert_eq!(stored, [(folder.as_str(), StoredTree { manifest: Some(written), pack: Some(written) })].into());
    }

    /// The policies of the bucket and of the task role name chunks by four characters.
    #[test]
    fn names_of_log_chunks_sort_as_their_numbers_and_have_four_characters() {
        let names: Vec<_> = (1..=MAX_LOG_CHUNKS).map(log_chunk).collect();
        assert!(names.is_sorted() && names[0] == "out/log/0001" && names[399] == "out/log/0400");
        assert!(names.iter().all(|name| name.len() == "out/log/????".len()));
    }

    #[test]
    fn a_claim_forgets_how_the_backend_was_written() {
        assert_eq!(claim("n", "s3://state/", "o/p/s"), claim("n", " s3://state", "o/p/s"));
        assert_ne!(claim("n", "s3://state", "o/p/s"), claim("m", "s3://state", "o/p/s"));
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
    }
}
