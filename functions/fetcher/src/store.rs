//! Stores a tree: the pack first, the manifest last. A tree exists if its manifest does.

use std::{fs::File, io};

use driftless_aws::Objects;
use driftless_contract::{
    ObjectKey,
    keys::{self, TreeFolder},
};
use driftless_source::{Error as SourceError, Manifest, Tree};

use crate::{Error, Refusal, Settings};

/// Each stored object counts as at least 1 MiB, so that the quota also limits the number of trees,
/// which every store lists.
const LEAST: u64 = 1 << 20;

/// Stores a tree of `source` whose content is in `spool`, unless it exceeds the quota of its
/// namespace. A second scratch file is used if the content is not in the order of the pack. Memory
/// does not grow with the content.
pub(crate) async fn store<O: Objects>(
    objects: &O,
    settings: &Settings,
    source: &ObjectKey,
    folder: &TreeFolder,
    tree: &Tree,
    spool: &mut File,
) -> Result<Result<(), Refusal>, Error> {
    let manifest = Manifest::of(tree);
    // Concurrent fetches may each find room, but a namespace has few of them at once.
    let stored = objects.size(&keys::trees_of_namespace(source), LEAST).await?;
    let limit = settings.max_tree_bytes;
    if stored.saturating_add(manifest.size) > limit {
        return Ok(Err(Refusal::Quota { namespace: source.namespace.clone(), stored, limit }));
    }
    let sorted = match (!tree.is_in_order()).then(|| sorted(tree, spool)).transpose() {
        Ok(sorted) => sorted,
        Err(error) => return Ok(Err(error.into())),
    };
    // The same tree always has the same bytes, so a concurrent store does no harm.
    objects.put_file(&folder.pack(), sorted.as_ref().unwrap_or(spool)).await?;
    drop(sorted);
    objects.put_new(&folder.manifest(), manifest.to_bytes()).await?;
    Ok(Ok(()))
}

fn sorted(tree: &Tree, spool: &mut File) -> io::Result<File> {
    let mut pack = tempfile::tempfile()?;
    tree.write_pack(spool, &mut pack)?;
    Ok(pack)
}

/// The refusal for a failed unpacking.
pub(crate) fn refusal(error: SourceError) -> Refusal {
    match error {
        SourceError::Refused(refusal) => refusal.into(),
        SourceError::Read(error) | SourceError::Spool(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use driftless_testkit::{CLUSTER, Faults, World};

    use super::*;
    use crate::tests::settings;

    fn source() -> ObjectKey {
        let [cluster, api_version, kind, namespace, name] =
            [CLUSTER, "pulumi.com/v1", "Program", "team", "shop"].map(String::from);
        ObjectKey { cluster, api_version, kind, namespace, name }
    }

    fn folder() -> TreeFolder {
        keys::tree(&source(), &"sha256:0".into())
    }

    fn stored(world: &World, files: &[(&str, &[u8])]) -> Option<bool> {
        let mut spool = tempfile::tempfile().unwrap();
        let tree = Tree::from_files(files.iter().copied(), &spool).unwrap();
        world
            .drive(store(world, &settings(), &source(), &folder(), &tree, &mut spool))
            .map(|stored| stored.is_ok_and(|stored| stored.is_ok()))
    }

    #[test]
    fn pack_is_ordered_by_path() {
        let (sorted, unsorted) = (World::new(0, Faults::NONE), World::new(0, Faults::NONE));
        assert_eq!(stored(&sorted, &[("a-b", b"1"), ("a/b", b"22"), ("b", b"")]), Some(true));
        assert_eq!(stored(&unsorted, &[("b", b""), ("a/b", b"22"), ("a-b", b"1")]), Some(true));
        assert_eq!(sorted.objects(), unsorted.objects());
        assert_eq!(sorted.objects()[&folder().pack()], b"122");
        assert_eq!(Manifest::parse(&sorted.objects()[&folder().manifest()]).unwrap().size, 3);
    }

    #[test]
    fn crash_leaves_no_manifest_without_pack_and_retry_completes_it() {
        let files: &[(&str, &[u8])] = &[("b", b"2"), ("a", b"1")];
        for calls in 0..3 {
            let world = World::new(0, Faults::NONE);
            world.crash_before_call(calls);
            assert_eq!(stored(&world, files), None);
            assert!(!world.objects().contains_key(&folder().manifest()), "after {calls} calls");
            assert_eq!(stored(&world, files), Some(true));
            assert_eq!(world.objects()[&folder().pack()], b"12");
        }
        for faults in [Faults { lost_answer: 500, ..Faults::NONE }, Faults { transient: 500, ..Faults::NONE }] {
            for seed in 0..20 {
                let world = World::new(seed, faults);
                let is_stored = stored(&world, files).unwrap();
                let objects = world.objects();
                assert!(!objects.contains_key(&folder().manifest()) || objects[&folder().pack()] == b"12", "seed {seed}");
                assert!(!is_stored || objects.contains_key(&folder().manifest()), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_manifest_that_is_there_is_not_written_again() {
        let world = World::new(0, Faults::NONE);
        world.drive(world.put(&folder().manifest(), b"complete".to_vec())).unwrap().unwrap();
        assert_eq!(stored(&world, &[("a", b"1")]), Some(true));
        assert_eq!(world.objects()[&folder().manifest()], b"complete");
    }

    #[test]
    fn namespace_stores_no_more_than_its_quota() {
        let mut spool = tempfile::tempfile().unwrap();
        let tree = Tree::from_files([("a", b"12345".as_slice())], &spool).unwrap();
        let settings = Settings { max_tree_bytes: LEAST + 5, ..settings() };
        for (kept, namespace, refused) in [(1 << 20, "team", false), ((1 << 20) + 1, "team", true), (2 << 20, "team-2", false)] {
            let world = World::new(0, Faults::NONE);
            world.drive(world.put(&format!("trees/{CLUSTER}/{namespace}/program.old/d/pack"), vec![0; kept])).unwrap().unwrap();
            let stored = world.drive(store(&world, &settings, &source(), &folder(), &tree, &mut spool)).unwrap().ok().unwrap();
            let words = stored.err().map(|refusal| refusal.to_string());
            let expected = "namespace \"team\" stores 1048577 bytes of sources, the maximum is 1048581; source is not fetched; raise \
                            MaxTreeBytesPerNamespace, or wait until unused trees expire (TreeRetentionDays)";
            assert_eq!(words.as_deref(), refused.then_some(expected), "{kept} {namespace}");
        }
        let world = World::new(0, Faults::NONE);
        for digest in ["d", "e"] {
            world.drive(world.put(&format!("trees/{CLUSTER}/team/program.old/{digest}/pack"), vec![0])).unwrap().unwrap();
        }
        let stored = world.drive(store(&world, &settings, &source(), &folder(), &tree, &mut spool)).unwrap().ok().unwrap();
        assert!(stored.is_err(), "two objects of a byte each count as 2 MiB");
    }
}
