//! The keys of all objects in the bucket, each with the type of its document, and the names of
//! Leases.
//!
//! Names of clusters, namespaces and objects are DNS labels or subdomains, so they become path
//! segments unchanged. All other parts of a key are hashed or encoded.

pub use driftless_core::hash;

use std::{collections::BTreeMap, fmt, ops::Deref};

use driftless_core::{ArtifactDigest, Claim, Layer, PlanHash, StoredTree, Uid};
use jiff::Timestamp;

use crate::{
    AuditRecord, FetchOutcome, Identity, InputsRead, Key, Launch, Lock, ObjectKey, Outcome, OutputObjects, Owner, PlanRecord,
    Progress, Resources, RunId, RunResult, RunSpec, SealedInputs, StackId, TaskRun, UnfitArchitecture,
};

/// The path part that stands for a source: `<lower-case kind>.<name>`.
fn source(object: &ObjectKey) -> String {
    format!("{}/{}/{}.{}", object.cluster, object.namespace, object.kind.to_lowercase(), object.name)
}

/// A folder of the bucket: the prefix of its objects' keys, with a trailing slash.
macro_rules! folder {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(String);

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

folder! {
    /// The folder of a stored tree. Trees are never shared between namespaces.
    TreeFolder
}

const MANIFEST: &str = "manifest";

/// Returns whether a key is that of a tree's manifest.
#[must_use]
pub fn is_manifest(key: &str) -> bool {
    key.rsplit_once('/').is_some_and(|(_, name)| name == MANIFEST)
}

impl TreeFolder {
    /// The key of the tree's manifest. The manifest is written last: a tree is stored if it is
    /// there.
    #[must_use]
    pub fn manifest(&self) -> String {
        format!("{self}{MANIFEST}")
    }

    /// The key of the tree's pack, which holds the content of its files.
    #[must_use]
    pub fn pack(&self) -> String {
        format!("{self}pack")
    }
}

/// The folder of a tree. `digest` is the one that the source states, such as `sha256:…`.
#[must_use]
pub fn tree(object: &ObjectKey, digest: &ArtifactDigest) -> TreeFolder {
    TreeFolder(format!("trees/{}/{}/", source(object), digest.as_str().replace(':', "-")))
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

/// The source of a tree, from the folder of the tree. Its kind is in lower case and its API version
/// is unknown, but the keys made from it are those of the source itself.
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

/// The trees in a listing of keys and times, by folder.
#[must_use]
pub fn stored_trees<'a>(listing: impl IntoIterator<Item = (&'a str, Timestamp)>) -> BTreeMap<TreeFolder, StoredTree> {
    let mut trees = BTreeMap::<_, StoredTree>::new();
    for (key, modified) in listing {
        let Some((folder, name)) = key.rsplit_once('/') else { continue };
        let folder = TreeFolder(format!("{folder}/"));
        match name {
            MANIFEST => trees.entry(folder).or_default().manifest = Some(modified),
            "pack" => trees.entry(folder).or_default().pack = Some(modified),
            _ => {}
        }
    }
    trees
}

/// How the last fetch of a source ended.
#[must_use]
pub fn fetch(object: &ObjectKey) -> Key<FetchOutcome> {
    Key::new(format!("fetches/{}", source(object)))
}

/// What the Secrets and ConfigMaps of a Stack held at their last comparison.
#[must_use]
pub fn inputs(cluster: &str, stack_uid: &Uid) -> Key<InputsRead> {
    Key::new(format!("inputs/{cluster}/{stack_uid}"))
}

/// The key of the HMAC in [`inputs`]: 32 random bytes that only the launcher may read.
pub const INPUTS_KEY: &str = "keys/inputs";

/// A key beside [`INPUTS_KEY`], under the same policy of the bucket, for a proof of that policy.
#[must_use]
pub fn beside_inputs_key(name: &str) -> String {
    format!("keys/{name}")
}

/// What the last run of a Stack read from Secrets and ConfigMaps, encrypted. A destroy uses it when
/// those are gone.
#[must_use]
pub fn sealed(cluster: &str, stack: &StackId) -> Key<SealedInputs> {
    Key::new(format!("sealed/{cluster}/{}/{}", stack.namespace, stack.uid))
}

folder! {
    /// The folder of the cache entries that a program may restore: those that runs of the same
    /// source stored as the same `ServiceAccount`. A person who can change one of the two cannot
    /// change what another program executes.
    CacheFolder
}

impl CacheFolder {
    /// The key of an entry: an archive of a layer.
    #[must_use]
    pub fn entry(&self, layer: Layer, name: &str) -> String {
        format!("{self}{}-{name}", layer.as_str())
    }
}

/// The folder of the cache entries of a source and a `ServiceAccount`.
#[must_use]
pub fn cache(object: &ObjectKey, service_account: &str) -> CacheFolder {
    CacheFolder(format!("caches/{}/{service_account}/", source(object)))
}

/// The folder of all cache entries of the namespace that an entry is of, with a trailing slash.
#[must_use]
pub fn caches_of_namespace(entry: &str) -> Option<String> {
    let (namespace, _) = entry.rmatch_indices('/').nth(2).map(|(end, _)| entry.split_at(end + 1))?;
    Some(namespace.to_owned())
}

folder! {
    /// The folder of a run.
    RunFolder
}

impl RunFolder {
    /// The launch record.
    #[must_use]
    pub fn launch(&self) -> Key<Launch> {
        Key::new(format!("{self}launch"))
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> Key<Owner> {
        Key::new(format!("{self}owner"))
    }

    /// The outcome.
    #[must_use]
    pub fn outcome(&self) -> Key<Outcome> {
        Key::new(format!("{self}outcome"))
    }
}

/// The folder of the run of an Update.
#[must_use]
pub fn run(cluster: &str, update_uid: &Uid) -> RunFolder {
    RunFolder(format!("runs/{cluster}/{update_uid}/"))
}

folder! {
    /// The folder of a task. The launcher writes `in/`, the runner writes `out/`. Its name is the
    /// task's `aws:userid` in IAM.
    TaskFolder
}

impl TaskFolder {
    /// The run of the task.
    #[must_use]
    pub fn run(&self) -> Key<TaskRun> {
        Key::new(format!("{self}in/run"))
    }

    /// The spec of the run.
    #[must_use]
    pub fn spec(&self) -> Key<RunSpec> {
        Key::new(format!("{self}in/spec"))
    }

    /// The tokens of the program.
    #[must_use]
    pub fn identity(&self) -> Key<Identity> {
        Key::new(format!("{self}in/identity"))
    }

    /// The tree of the program.
    #[must_use]
    pub fn tree(&self) -> TreeFolder {
        TreeFolder(format!("{self}in/"))
    }

    /// The tree of a policy pack, by its place in [`crate::PlanRequest::packs`].
    #[must_use]
    pub fn policy_pack(&self, number: usize) -> TreeFolder {
        TreeFolder(format!("{self}in/policies/{number}/"))
    }

    /// The archive of a layer that an earlier run installed.
    #[must_use]
    pub fn restored(&self, layer: Layer) -> String {
        format!("{self}in/cache/{}", layer.as_str())
    }

    /// The archive of a layer that the run installed.
    #[must_use]
    pub fn installed(&self, layer: Layer) -> String {
        format!("{self}out/cache/{}", layer.as_str())
    }

    /// The progress of the run.
    #[must_use]
    pub fn progress(&self) -> Key<Progress> {
        Key::new(format!("{self}out/progress"))
    }

    /// The lock that Pulumi takes in the backend.
    #[must_use]
    pub fn lock(&self) -> Key<Lock> {
        Key::new(format!("{self}out/lock"))
    }

    /// The result of the run.
    #[must_use]
    pub fn result(&self) -> Key<RunResult> {
        Key::new(format!("{self}out/result"))
    }

    /// The key of a chunk of the log. Chunks are written once, in order and without gaps: UTF-8
    /// text of whole lines that the runner printed, with secrets masked. The first absent chunk
    /// ends the log so far.
    #[must_use]
    pub fn log_chunk(&self, number: u16) -> String {
        format!("{self}out/log/{}", log_number(number))
    }

    /// The key of the live log: all that the runner printed so far, with secrets masked. Each write
    /// adds whole lines at the end.
    #[must_use]
    pub fn live_log(&self) -> String {
        format!("{self}out/live-log")
    }
}

/// The whole log of a recorded run, for the retention of the template.
#[must_use]
pub fn log(update: &ObjectKey, uid: &Uid) -> String {
    format!("logs/{}/{}/{uid}", update.cluster, update.namespace)
}

/// The audit record of a recorded run. The records of a namespace sort by the times at which their
/// runs ended.
#[must_use]
pub fn audit(outcome: &Outcome) -> Key<AuditRecord> {
    let (RunId { update, uid, .. }, at) = (&outcome.run, outcome.ended_at.strftime("%Y%m%dT%H%M%SZ"));
    Key::new(format!("audit/{}/{}/{at}-{}-{uid}", update.cluster, update.namespace, update.name))
}

/// The record of a plan of a Stack, for the retention of audit records.
#[must_use]
pub fn plan(cluster: &str, stack_uid: &Uid, hash: &PlanHash) -> Key<PlanRecord> {
    Key::new(format!("plans/{cluster}/{stack_uid}/{hash}"))
}

/// The folder of all folders of tasks.
pub const TASKS: &str = "tasks/";

/// Returns whether a key is that of an input of a task.
#[must_use]
pub fn is_task_input(key: &str) -> bool {
    key.strip_prefix(TASKS).and_then(|rest| rest.split_once('/')).is_some_and(|(_, name)| name.starts_with("in/"))
}

/// The folder of a task, by its name in the place where it runs, or the last part of that.
/// `role_id` is the unique id of the task role.
#[must_use]
pub fn task(role_id: &str, task: &str) -> TaskFolder {
    TaskFolder(format!("{TASKS}{role_id}:{}/", task_id(task)))
}

/// What a task reports in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// [`TaskFolder::progress`]
    Progress,
    /// [`TaskFolder::result`]
    Result,
}

/// The folder of the task that wrote `key`, if the key is that of a report.
#[must_use]
pub fn task_of_report(key: &str) -> Option<(TaskFolder, Report)> {
    let of = |name: &str, report| key.strip_suffix(name).map(|folder| (folder, report));
    let (folder, report) = of("out/result", Report::Result).or_else(|| of("out/progress", Report::Progress))?;
    let is_task = folder.starts_with(TASKS) && folder.ends_with('/') && folder.matches('/').count() == 2;
    is_task.then(|| (TaskFolder(folder.into()), report))
}

/// The maximum number of chunks of a task's log, which are numbered from 1. Enough for a run of a
/// day.
pub const MAX_LOG_CHUNKS: u16 = 400;

/// The maximum size of a chunk of a task's log, in bytes.
pub const MAX_LOG_CHUNK_BYTES: usize = 64 << 10;

/// The maximum size of a live log, in bytes. A longer one ends with a line that says so.
pub const MAX_LIVE_LOG_BYTES: usize = 8 << 20;

/// The number of a chunk as written in names, with leading zeros so that names sort in the order of
/// the chunks: `0001`.
#[must_use]
pub fn log_number(number: u16) -> String {
    format!("{number:04}")
}

/// The locks that dead runs left in their backend, by claim.
#[must_use]
pub fn lock(cluster: &str, claim: &Claim) -> Key<Lock> {
    Key::new(format!("locks/{cluster}/{claim}"))
}

/// How many resources the last run left, by claim.
#[must_use]
pub fn resources(cluster: &str, claim: &Claim) -> Key<Resources> {
    Key::new(format!("resources/{cluster}/{claim}"))
}

/// The objects that receive outputs of a Stack.
#[must_use]
pub fn outputs(cluster: &str, stack_uid: &Uid) -> Key<OutputObjects> {
    Key::new(format!("outputs/{cluster}/{stack_uid}"))
}

/// The architecture that images of a namespace do not support, by
/// [`driftless_core::TaskShape::images`].
#[must_use]
pub fn architecture(update: &ObjectKey, images: &str) -> Key<UnfitArchitecture> {
    Key::new(format!("architectures/{}/{}/{images}", update.cluster, update.namespace))
}

folder! {
    /// The folder of the attempts of functions at a message that failed or was delivered again.
    AttemptsFolder
}

impl AttemptsFolder {
    /// The key of the attempt at a delivery, by its number. The object is empty.
    #[must_use]
    pub fn attempt(&self, delivery: u32) -> String {
        format!("{self}{delivery}")
    }
}

/// The folder of the attempts at a message of SQS.
#[must_use]
pub fn attempts(message_id: &str) -> AttemptsFolder {
    AttemptsFolder(format!("attempts/{message_id}/"))
}

/// The last part of a task's name in the place where it runs, which is unique there.
#[must_use]
pub fn task_id(task: &str) -> &str {
    task.rsplit('/').next().unwrap_or(task)
}

/// The name of the Lease that is the claim of a Pulumi stack. Two Updates of one namespace that
/// name the same stack of the same backend have the same claim.
#[must_use]
pub fn claim(namespace: &str, backend: &str, stack: &str) -> Claim {
    let backend = backend.trim().trim_end_matches('/');
    format!("claim-{}", hash(&[namespace, backend, stack])).into()
}

/// The Lease in the system's namespace that lists the runs with a slot and the waiting ones, where
/// there are limits.
pub const ADMISSIONS: &str = "driftless-admissions";

/// The annotation of [`ADMISSIONS`]: [`driftless_core::Admissions`] as JSON.
pub const ADMISSIONS_ANNOTATION: &str = "driftless.dev/admissions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_report_in_a_tasks_own_folder_names_a_task() {
        let task = task("AROA1", "arn:aws:ecs:r:1:task/c/abc");
        assert_eq!(&*task, "tasks/AROA1:abc/");
        assert_eq!(task_of_report(&task.result()), Some((task.clone(), Report::Result)));
        assert_eq!(task_of_report(&task.progress()), Some((task.clone(), Report::Progress)));
        for other in [&*task.lock(), &task.log_chunk(1), &task.live_log()] {
            assert_eq!(task_of_report(other), None);
        }
        assert_eq!(task_of_report("tasks/AROA1:abc/out/x/out/result"), None);
        assert_eq!(task_of_report("runs/c/u/out/result"), None);
        assert_eq!(task_of_report("tasks/AROA1:abc/without/result"), None);
    }

    #[test]
    fn source_is_derived_from_the_key_of_a_tree() {
        let source = ObjectKey {
            cluster: "arn:aws:eks:eu-west-1:1:cluster/c".into(),
            api_version: "source.toolkit.fluxcd.io/v1".into(),
            kind: "OCIRepository".into(),
            namespace: "n".into(),
            name: "a.b".into(),
        };
        let folder = tree(&source, &"sha256:00".into());
        let found = source_of_trees(&source.cluster, &folder).unwrap();
        assert_eq!((found.kind.as_str(), found.name.as_str()), ("ocirepository", "a.b"));
        assert_eq!((tree(&found, &"sha256:00".into()), &*fetch(&found)), (folder.clone(), &*fetch(&source)));
        assert!(folder.starts_with(&trees(&source)));
        assert_eq!(source_of_trees("other", &folder), None);

        let (written, keys) = (Timestamp::UNIX_EPOCH, [folder.manifest(), folder.pack()]);
        let stored = stored_trees(keys.iter().map(|key| (key.as_str(), written)));
        let entry = cache(&source, "deployer").entry(Layer::Build, "0");
        assert_eq!(entry, format!("caches/{}/n/ocirepository.a.b/deployer/build-0", source.cluster));
        assert_eq!(caches_of_namespace(&entry), Some(format!("caches/{}/n/", source.cluster)));
        assert_eq!(stored, [(folder, StoredTree { manifest: Some(written), pack: Some(written) })].into());
    }

    /// The policies of the bucket and of the task role match chunk names of exactly four
    /// characters.
    #[test]
    fn names_of_log_chunks_sort_as_their_numbers_and_have_four_characters() {
        let task = task("AROA1", "abc");
        let keys: Vec<_> = (1..=MAX_LOG_CHUNKS).map(|number| task.log_chunk(number)).collect();
        assert!(keys.is_sorted() && keys[0] == "tasks/AROA1:abc/out/log/0001" && keys[399].ends_with("/0400"));
        assert!(keys.iter().all(|key| key.len() == keys[0].len()));
    }

    #[test]
    fn claim_is_equal_for_all_spellings_of_a_backend() {
        assert_eq!(claim("n", "s3://state/", "o/p/s"), claim("n", " s3://state", "o/p/s"));
        assert_ne!(claim("n", "s3://state", "o/p/s"), claim("m", "s3://state", "o/p/s"));
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
    }
}
