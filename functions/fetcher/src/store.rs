//! Storing a tree: the pack first, the manifest last. A tree is there when its manifest is.

use std::{fs::File, io};

use driftless_aws::Objects;
use driftless_source::{Error as SourceError, Manifest, Tree};

use crate::{Error, Refusal};

/// Stores a tree whose content is in `spool`; a second scratch file is needed if that is not in the order of the pack. Memory does not
/// grow with the content.
pub(crate) async fn store<O: Objects>(
    objects: &O,
    folder: &str,
    tree: &Tree,
    spool: &mut File,
) -> Result<Result<(), Refusal>, Error> {
    let sorted = match (!tree.is_in_order()).then(|| sorted(tree, spool)).transpose() {
        Ok(sorted) => sorted,
        Err(error) => return Ok(Err(error.into())),
    };
    // The same tree makes the same bytes, so that whoever else stores it meanwhile does no harm.
    objects.put_file(&format!("{folder}pack"), sorted.as_ref().unwrap_or(spool)).await?;
    drop(sorted);
    objects.put_new(&format!("{folder}manifest"), Manifest::of(tree).to_bytes()).await?;
    Ok(Ok(()))
}

fn sorted(tree: &Tree, spool: &mut File) -> io::Result<File> {
    let mut pack = tempfile::tempfile()?;
    tree.write_pack(spool, &mut pack)?;
    Ok(pack)
}

/// What the words of a failed unpacking are.
pub(crate) fn refusal(error: SourceError) -> Refusal {
    match error {
        SourceError::Refused(refusal) => refusal.into(),
        SourceError::Read(error) | SourceError::Spool(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use driftless_testkit::{Faults, World};

    use super::*;

    fn stored(world: &World, files: &[(&str, &[u8])]) -> Option<bool> {
        let mut spool = tempfile::tempfile().unwrap();
        let tree = Tree::from_files(files.iter().copied(), &spool).unwrap();
        world.drive(store(world, "t/", &tree, &mut spool)).map(|stored| stored.is_ok_and(|stored| stored.is_ok()))
    }

    #[test]
    fn the_pack_is_in_the_order_of_paths_whatever_the_order_of_the_files() {
        let (sorted, unsorted) = (World::new(0, Faults::NONE), World::new(0, Faults::NONE));
        assert_eq!(stored(&sorted, &[("a-b", b"1"), ("a/b", b"22"), ("b", b"")]), Some(true));
        assert_eq!(stored(&unsorted, &[("b", b""), ("a/b", b"22"), ("a-b", b"1")]), Some(true));
        assert_eq!(sorted.objects(), unsorted.objects());
        assert_eq!(sorted.objects()["t/pack"], b"122");
        assert_eq!(Manifest::parse(&sorted.objects()["t/manifest"]).unwrap().size, 3);
    }

    #[test]
    fn a_crash_or_a_lost_answer_leaves_no_manifest_without_its_pack_and_another_try_completes_it() {
        let files: &[(&str, &[u8])] = &[("b", b"2"), ("a", b"1")];
        for calls in 0..2 {
            let world = World::new(0, Faults::NONE);
            world.crash_before_call(calls);
            assert_eq!(stored(&world, files), None);
            assert!(!world.objects().contains_key("t/manifest"), "after {calls} calls");
            assert_eq!(stored(&world, files), Some(true));
            assert_eq!(world.objects()["t/pack"], b"12");
        }
        for faults in [Faults { lost_answer: 500, ..Faults::NONE }, Faults { transient: 500, ..Faults::NONE }] {
            for seed in 0..20 {
                let world = World::new(seed, faults);
                let is_stored = stored(&world, files).unwrap();
                let objects = world.objects();
                assert!(!objects.contains_key("t/manifest") || objects["t/pack"] == b"12", "seed {seed}");
                assert!(!is_stored || objects.contains_key("t/manifest"), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_manifest_that_is_there_is_not_written_again() {
        let world = World::new(0, Faults::NONE);
        world.drive(world.put("t/manifest", b"complete".to_vec())).unwrap().unwrap();
        assert_eq!(stored(&world, &[("a", b"1")]), Some(true));
        assert_eq!(world.objects()["t/manifest"], b"complete");
    }
}
