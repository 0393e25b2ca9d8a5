//! A commit's files, straight from the pack: no work tree, no filter, and no code of the repository
//! runs.

use std::{collections::BTreeSet, fs::File, io::BufWriter};

use driftless_source::{Builder, Error, Limits, Tree};
use gix_hash::{ObjectId, oid};
use gix_object::{CommitRefIter, Kind, TreeRefIter, tree::EntryKind};
use gix_pack::{Bundle, cache::Never, data::decode::header::ResolvedBase};
use gix_zlib::Inflate;

use super::{GitError, bounds::Bounds};

/// The start of a Git LFS pointer file. Such a file is short.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const MAX_LFS_POINTER: usize = 1024;
/// The maximum number of deltas to an object. Git uses 50, and each may be an object of the maximum
/// size on the way to a small one.
const MAX_DELTAS: u32 = 100;

/// The id of a commit's tree, and the tree with its content in the spool. Outside the `needed`
/// directories a submodule is left out, and a pointer of Git LFS is a file with its text; within
/// them both are errors. The time limit is checked before each object, which takes seconds at most.
pub(super) fn read(
    bundle: &Bundle,
    bounds: &Bounds,
    commit: &oid,
    limits: &Limits,
    needed: &BTreeSet<String>,
    spool: &File,
) -> Result<(ObjectId, Tree), GitError> {
    let mut objects = Objects { bundle, bounds, inflate: Inflate::default() };
    let mut buffer = Vec::new();
    let kind = objects.find(commit, &mut buffer)?;
    let root = CommitRefIter::from_bytes(&buffer, gix_hash::Kind::Sha1).tree_id();
    let (Kind::Commit, Ok(root)) = (kind, root) else {
        return Err(GitError::NotACommit { id: commit.to_string() });
    };
    let mut builder = Builder::new(*limits, BufWriter::new(spool));
    let mut content = Vec::new();
    let mut directories = vec![(Vec::new(), root)];
    while let Some((directory, id)) = directories.pop() {
        objects.expect(&id, Kind::Tree, &mut buffer)?;
        for entry in TreeRefIter::from_bytes(&buffer, gix_hash::Kind::Sha1) {
            let entry = entry.map_err(|_| GitError::Pack)?;
            let mut path = directory.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.filename);
            let text = String::from_utf8_lossy(&path);
            let shown = || text.chars().take(200).collect();
            match entry.mode.kind() {
                EntryKind::Tree => {
                    // Also limits how often a tree that occurs in many others is walked.
                    builder.directory(&path)?;
                    directories.push((path, entry.oid.to_owned()));
                }
                EntryKind::Commit if is_needed(&text, needed) => return Err(GitError::Submodule { path: shown() }),
                EntryKind::Commit => {}
                EntryKind::Link => {
                    objects.expect(entry.oid, Kind::Blob, &mut content)?;
                    builder.link(&path, &content)?;
                }
                kind @ (EntryKind::Blob | EntryKind::BlobExecutable) => {
                    objects.expect(entry.oid, Kind::Blob, &mut content)?;
                    let is_pointer = content.len() < MAX_LFS_POINTER && content.starts_with(LFS_POINTER);
                    if is_pointer && is_needed(&text, needed) {
                        return Err(GitError::Lfs { path: shown() });
                    }
                    builder.file(&path, kind == EntryKind::BlobExecutable, &mut &content[..]).map_err(failed)?;
                }
            }
        }
    }
    Ok((root, builder.finish().map_err(failed)?))
}

/// Returns whether a path lies in one of the directories, or contains one.
fn is_needed(path: &str, directories: &BTreeSet<String>) -> bool {
    let within = |path: &str, dir: &str| {
        dir.is_empty() || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    directories.iter().any(|dir| within(path, dir) || within(dir, path))
}

struct Objects<'a> {
    bundle: &'a Bundle,
    bounds: &'a Bounds,
    inflate: Inflate,
}

impl Objects<'_> {
    fn find(&mut self, id: &oid, into: &mut Vec<u8>) -> Result<Kind, GitError> {
        self.bounds.check()?;
        let Bundle { index, pack } = self.bundle;
        let entry = |id: &oid| index.lookup(id).map(|found| pack.entry(index.pack_offset_at_index(found))).transpose();
        let base = |id: &oid| Ok(entry(id)?.map(ResolvedBase::InPack));
        let found = entry(id).ok().flatten().ok_or(GitError::Pack)?;
        let header = pack.decode_header(found, &mut self.inflate, &base).map_err(|_| GitError::Pack)?;
        if header.num_deltas > MAX_DELTAS {
            return Err(GitError::Deltas { limit: MAX_DELTAS });
        }
        let found = self.bundle.find(id, into, &mut self.inflate, &mut Never).ok().flatten();
        found.map(|(object, _)| object.kind).ok_or(GitError::Pack)
    }

    fn expect(&mut self, id: &oid, kind: Kind, into: &mut Vec<u8>) -> Result<(), GitError> {
        if self.find(id, into)? == kind { Ok(()) } else { Err(GitError::Pack) }
    }
}

fn failed(error: Error) -> GitError {
    match error {
        Error::Refused(refusal) => refusal.into(),
        Error::Read(error) | Error::Spool(error) => GitError::Scratch(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, io::Write as _, time::Duration};

    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    use flate2::{Compression, write::ZlibEncoder};
    use gix_pack::bundle::write::Options;

    use super::{super::session::bounded, *};

    /// An object of a pack: its type, its base, and its content or delta.
    struct Packed {
        kind: u8,
        base: Option<usize>,
        content: Vec<u8>,
    }

    /// The memory for reading an object in these tests.
    const READ_BYTES: usize = 20 << 20;

    const COMMIT: u8 = 1;
    const TREE: u8 = 2;
    const BLOB: u8 = 3;

    fn whole(kind: u8, content: Vec<u8>) -> Packed {
        Packed { kind, base: None, content }
    }

    /// A delta of the object at that position and of that size: its first bytes, as many as one
    /// byte can state.
    fn first_bytes(base: usize, base_size: usize, bytes: u8) -> Packed {
        let mut content = size(base_size);
        content.extend([bytes, 0b1001_0000, bytes]);
        Packed { kind: 6, base: Some(base), content }
    }

    /// A number in groups of seven bits, the lowest first.
    fn size(mut rest: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let low = u8::try_from(rest & 0x7f).unwrap();
            rest >>= 7;
            bytes.push(if rest == 0 { low } else { low | 0x80 });
            if rest == 0 {
                return bytes;
            }
        }
    }

    fn pack(objects: &[Packed]) -> Vec<u8> {
        let mut pack = b"PACK\0\0\0\x02".to_vec();
        pack.extend(u32::try_from(objects.len()).unwrap().to_be_bytes());
        let mut offsets = Vec::new();
        for Packed { kind, base, content } in objects {
            let offset = pack.len();
            let low = u8::try_from(content.len() & 0xf).unwrap();
            let rest = content.len() >> 4;
            pack.push(kind << 4 | low | if rest == 0 { 0 } else { 0x80 });
            if rest > 0 {
                pack.extend(size(rest));
            }
            if let Some(base) = base {
                let mut distance: usize = offset - offsets[*base];
                let mut bytes = vec![u8::try_from(distance & 0x7f).unwrap()];
                while distance > 0x7f {
                    distance = (distance >> 7) - 1;
                    bytes.insert(0, u8::try_from(distance & 0x7f).unwrap() | 0x80);
                }
                pack.extend(bytes);
            }
            let mut zlib = ZlibEncoder::new(&mut pack, Compression::fast());
            zlib.write_all(content).unwrap();
            zlib.finish().unwrap();
            offsets.push(offset);
        }
        let trailer = digest(&SHA1_FOR_LEGACY_USE_ONLY, &pack);
        pack.extend(trailer.as_ref());
        pack
    }

    fn id(kind: &str, content: &[u8]) -> ObjectId {
        let object = [format!("{kind} {}\0", content.len()).as_bytes(), content].concat();
        ObjectId::from_bytes_or_panic(digest(&SHA1_FOR_LEGACY_USE_ONLY, &object).as_ref())
    }

    /// Reads a commit whose tree has these names, each for the blob `z`, from a pack with these
    /// blobs before its tree and commit.
    fn read_names(names: usize, mut objects: Vec<Packed>, time: Duration) -> Result<(ObjectId, Tree), GitError> {
        let blob = id("blob", b"z");
        let tree: Vec<u8> =
            (0..names).flat_map(|name| [format!("100644 {name:06}\0").as_bytes(), blob.as_bytes()].concat()).collect();
        let commit = format!("tree {}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\n", id("tree", &tree)).into_bytes();
        let (head, tree_id) = (id("commit", &commit), id("tree", &tree));
        objects.extend([whole(TREE, tree), whole(COMMIT, commit)]);
        let folder = tempfile::tempdir().unwrap();
        let written = Bundle::write_to_directory(
            &mut &pack(&objects)[..],
            Some(folder.path()),
            &mut gix_utils::progress::Discard,
            &std::sync::atomic::AtomicBool::new(false),
            None::<gix_object::find::Never>,
            gix_hash::Kind::Sha1,
            Options { thread_limit: Some(1), ..Options::default() },
        );
        let bundle = written.ok().and_then(|written| written.to_bundle()?.ok()).ok_or(GitError::Pack)?;
        let bundle = bounded(bundle, READ_BYTES);
        let bounds = Bounds::new(u64::MAX, time);
        let found = read(&bundle, &bounds, &head, &Limits::default(), &BTreeSet::new(), &tempfile::tempfile().unwrap());
        assert!(found.as_ref().is_ok_and(|(root, _)| *root == tree_id) || found.is_err());
        found
    }

    /// A blob of this many bytes, and `z` as a delta of it.
    fn large_base(bytes: usize) -> Vec<Packed> {
        vec![whole(BLOB, vec![b'z'; bytes]), first_bytes(0, bytes, 1)]
    }

    #[tokio::test]
    async fn costly_commit_is_read_until_its_time_limit() {
        read_names(3, large_base(1000), Duration::from_mins(1)).unwrap();
        // Each name inflates the whole blob again: without the limit this takes many minutes.
        let error = read_names(20_000, large_base(8 << 20), Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, GitError::TooSlow { .. }), "{error}");
    }

    #[tokio::test]
    async fn deltas_that_take_more_memory_than_an_object_are_refused() {
        // Each delta repeats the copy of one byte. All deltas of a chain are in memory at once.
        let chain = |mib: usize| {
            let bytes = mib << 19;
            let copies: Vec<u8> = [0x90, 1].repeat(bytes);
            let mut objects = vec![whole(BLOB, b"zz".to_vec())];
            for (base, base_size) in [(0, 2), (1, bytes), (2, bytes)] {
                let content = [size(base_size), size(bytes), copies.clone()].concat();
                objects.push(Packed { kind: 6, base: Some(base), content });
            }
            objects.push(first_bytes(3, bytes, 1));
            read_names(1, objects, Duration::from_mins(5))
        };
        chain(1).unwrap();
        assert!(matches!(chain(8).unwrap_err(), GitError::Pack));
    }

    const CHILD_MEMORY: &str = "CHILD_MEMORY_MIB";

    /// Does what the next test requests, as a function with that memory. Without a request it does
    /// nothing.
    #[tokio::test]
    async fn child_of_the_next_test() {
        let Some(mib) = std::env::var_os(CHILD_MEMORY) else { return };
        crate::limit_memory(mib.to_str().unwrap().parse().unwrap()).unwrap();
        let bytes: usize = 1 << 20;
        // One new byte, then the base without its last byte.
        let like = |base: usize, byte: u8| {
            let content = [&size(bytes)[..], &size(bytes), &[1, byte, 0xf0, 0xff, 0xff, 0x0f]].concat();
            Packed { kind: 6, base: Some(base), content }
        };
        let mut objects = vec![whole(BLOB, vec![b'z'; bytes])];
        for level in 0..24 {
            objects.extend([like(usize::from(level) * 2, 2 * level), like(usize::from(level) * 2, 2 * level + 1)]);
        }
        objects.push(first_bytes(0, bytes, 1));
        let told = read_names(1, objects, Duration::from_mins(1)).map_or_else(|error| error.to_string(), |_| "read".into());
        println!("child: {told}");
    }

    #[test]
    fn pack_that_takes_more_memory_than_the_function_has_is_refused() {
        // While a blob is read, each level above it that has another one below is in memory: 24
        // levels of 1 MiB.
        for (mib, expected) in [("24", "child: git server sent a pack that is damaged"), ("1024", "child: read")] {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "git::tree::tests::child_of_the_next_test", "--nocapture"]).env(CHILD_MEMORY, mib);
            let output = child.output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains(expected), "{mib} MiB: {output:?}");
        }
    }

    #[tokio::test]
    async fn object_behind_more_deltas_than_git_makes_is_refused() {
        let chain = |deltas: u32| {
            let long = u8::try_from(deltas).unwrap();
            let mut objects = vec![whole(BLOB, vec![b'z'; 200])];
            objects.extend((1..=long).map(|delta| {
                let before = usize::from(delta) - 1;
                first_bytes(before, if before == 0 { 200 } else { usize::from(long - delta) + 2 }, long - delta + 1)
            }));
            read_names(1, objects, Duration::from_mins(1))
        };
        chain(MAX_DELTAS).unwrap();
        let error = chain(MAX_DELTAS + 1).unwrap_err();
        assert!(matches!(error, GitError::Deltas { .. }), "{error}");
    }
}
