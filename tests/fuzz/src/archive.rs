//! The archives of sources, and the stored trees.

use std::{
    collections::BTreeMap,
    io::{Cursor, Read},
};

use driftless_source::{Digest, Error, Limits, Manifest, Tree, unpack};
use flate2::read::MultiGzDecoder;

use crate::input::{first_line, text};

/// Small, so that the fuzzer reaches them and stays quick.
pub const LIMITS: Limits = Limits { bytes: 4 << 20, entries: 500, path_length: 200, depth: 8, ratio: 200 };

/// Unpacks the input, unchanged and with corrected checksums: it is refused, or becomes a tree with
/// all promised properties.
pub fn check(archive: &[u8]) {
    unpacked(archive);
    unpacked(&sealed(archive.to_vec()));
}

fn unpacked(archive: &[u8]) {
    let mut spool = Cursor::new(Vec::new());
    let tree = match unpack(archive, &LIMITS, &mut spool) {
        Ok(tree) => tree,
        Err(Error::Refused(refusal)) => return assert!(refusal.to_string().len() < 2000, "{refusal}"),
        Err(error) => panic!("neither the reader nor the spool can fail: {error:?}"),
    };
    let manifest = sound(&tree, &mut spool);
    let files = manifest.files.into_iter().map(|(path, file)| (path, file.size)).collect();
    assert_eq!(files_as_others_see_them(archive), files);
}

/// Checks a tree and its content in the spool.
pub fn sound(tree: &Tree, spool: &mut (impl Read + std::io::Seek)) -> Manifest {
    let mut pack = Vec::new();
    tree.write_pack(spool, &mut pack).expect("the spool has all of the tree");
    let manifest = Manifest::of(tree);
    assert_eq!(Manifest::parse(&manifest.to_bytes()).expect("a manifest"), manifest);
    assert_eq!(manifest.size, pack.len() as u64);
    assert!(manifest.files.len() + manifest.links.len() <= LIMITS.entries);
    for path in manifest.files.keys().chain(manifest.links.keys()) {
        assert!(path.len() <= LIMITS.path_length && !path.contains(['\\', '\0']), "{path:?}");
        assert!(path.split('/').all(|part| !["", ".", ".."].contains(&part)), "{path:?}");
        let above = path.match_indices('/').map(|(end, _)| &path[..end]);
        assert!(above.clone().count() < LIMITS.depth, "{path:?}");
        for dir in above {
            assert!(!manifest.files.contains_key(dir) && !manifest.links.contains_key(dir), "{path:?} is below {dir:?}");
        }
    }
    for (path, file) in &manifest.files {
        let from = usize::try_from(file.offset).expect("it is in memory");
        let content = &pack[from..from + usize::try_from(file.size).expect("it is in memory")];
        assert_eq!(Digest::sha256(content), file.digest, "{path:?}");
    }
    manifest
}

/// The files of an archive, as another tar reader understands it.
fn files_as_others_see_them(archive: &[u8]) -> BTreeMap<String, u64> {
    let mut plain = Vec::new();
    if archive.starts_with(b"\x1f\x8b") {
        MultiGzDecoder::new(archive).read_to_end(&mut plain).expect("it was read before");
    } else {
        plain.extend(archive);
    }
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(plain.as_slice()).entries().expect("a tar archive") {
        let entry = entry.expect("an entry");
        let path = String::from_utf8(entry.path_bytes().into_owned()).expect("it was read before");
        let kind = entry.header().entry_type();
        if (kind.is_file() || kind.is_contiguous()) && !path.ends_with('/') {
            let parts: Vec<&str> = path.split('/').filter(|part| !["", "."].contains(part)).collect();
            files.insert(parts.join("/"), entry.size());
        }
    }
    files
}

/// A plain archive with correct checksums where a block may be a header, because otherwise every
/// change would end there.
fn sealed(mut tar: Vec<u8>) -> Vec<u8> {
    for block in tar.chunks_exact_mut(512).filter(|block| block.get(257..262) == Some(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    tar
}

/// The input is a path and a digest on a line, and a manifest.
pub fn manifest(input: &[u8]) {
    let (head, document) = first_line(text(input));
    let (path, digest) = head.split_once(' ').unwrap_or((head, ""));
    match digest.parse::<Digest>() {
        Ok(parsed) => {
            assert_eq!(parsed.as_str().parse(), Ok(parsed.clone()), "{digest:?}");
            assert!(parsed.as_str().eq_ignore_ascii_case(digest) && parsed.hex().len() >= 64);
        }
        Err(error) => assert!(error.to_string().len() < 200, "{error}"),
    }
    let manifest = match Manifest::parse(document.as_bytes()) {
        Ok(manifest) => manifest,
        Err(error) => return assert!(error.to_string().len() < 200 + 6 * document.len(), "{error}"),
    };
    assert_eq!(Manifest::parse(&manifest.to_bytes()).expect("a manifest"), manifest);
    for path in [path, ""].into_iter().chain(manifest.files.keys().map(String::as_str)) {
        let Some(part) = manifest.part(path) else { continue };
        assert!(part.offset + part.size <= manifest.size, "{path:?}: {part:?}");
        assert_eq!(part.files.iter().map(|(_, file)| file.size).sum::<u64>(), part.size, "{path:?}: {part:?}");
        let is_within = |found: &str| path.is_empty() || found.starts_with(path.trim_start_matches("./").trim_end_matches('/'));
        assert!(path.contains("./") || path == "." || part.files.iter().all(|(found, _)| is_within(found)), "{path:?}: {part:?}");
    }
}
