//! Archives that are honest, and archives that are not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::maybe_infinite_iter,
    reason = "this is a test; clippy only knows its test functions"
)]

use std::{
    collections::BTreeMap,
    io::{self, Cursor, Read, Write},
};

use driftless_source::{Error, Limits, Manifest, Refusal, Tree, unpack};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use tar::EntryType;

/// Writes archives entry by entry, with no check of its own.
#[derive(Default)]
struct Evil(Vec<u8>);

impl Evil {
    fn entry(mut self, kind: EntryType, name: &[u8], link: &str, stated: u64, content: &[u8]) -> Self {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(stated);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, name.as_bytes(), "", content.len() as u64, content)
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name.as_bytes(), target, 0, b"")
    }

    fn kind(self, kind: EntryType, name: &str) -> Self {
        self.entry(kind, name.as_bytes(), "x", 0, b"")
    }

    fn gzip(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        gzip(&self.0)
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|length| rest + length.to_string().len() == *length).unwrap();
        content.extend(format!("{length} {key}={value}\n").bytes());
    }
    content
}

fn refusal_within(limits: &Limits, archive: &[u8]) -> Refusal {
    match unpack(archive, limits, io::sink()) {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn refusal(archive: Evil) -> Refusal {
    refusal_within(&Limits::default(), &archive.gzip())
}

fn unpacked(archive: &[u8]) -> (Manifest, Vec<u8>) {
    let mut spool = Cursor::new(Vec::new());
    let tree = unpack(archive, &Limits::default(), &mut spool).unwrap();
    stored(&tree, &mut spool)
}

fn stored(tree: &Tree, spool: &mut Cursor<Vec<u8>>) -> (Manifest, Vec<u8>) {
    let mut pack = Vec::new();
    tree.write_pack(spool, &mut pack).unwrap();
    (Manifest::of(tree), pack)
}

#[test]
fn an_archive_as_flux_writes_it_becomes_a_tree() {
    let archive = Evil::default()
        .entry(EntryType::Directory, b".", "", 0, b"")
        .entry(EntryType::Directory, b"infra", "", 0, b"")
        .entry(EntryType::Directory, b"infra", "", 0, b"")
        .file("infra/b", b"bb")
        .file("./infra/a", b"a")
        .file("Pulumi.yaml", b"name: x");
    let (manifest, pack) = unpacked(&archive.gzip());
    assert_eq!(manifest.files.keys().collect::<Vec<_>>(), ["Pulumi.yaml", "infra/a", "infra/b"]);
    assert_eq!(pack, b"name: xabb");
    assert_eq!(Manifest::parse(&manifest.to_bytes()).unwrap(), manifest);
}

#[test]
fn only_the_executable_bit_of_a_mode_is_kept() {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode) in [("plain", 0o6644), ("group", 0o610), ("all", 0o777)] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_size(0);
        archive.append_data(&mut header, name, io::empty()).unwrap();
    }
    let (manifest, _) = unpacked(&gzip(&archive.into_inner().unwrap()));
    let executable = |name: &str| manifest.files[name].executable;
    assert_eq!((executable("plain"), executable("group"), executable("all")), (false, true, true));
}

#[test]
fn a_global_header_is_ignored_and_a_long_name_is_read() {
    let long = format!("{}/file", "d".repeat(180));
    let archive = Evil::default()
        .entry(EntryType::XGlobalHeader, b"pax_global_header", "", 52, &[b'x'; 52])
        .entry(EntryType::XHeader, b"h", "", pax(&[("path", &long)]).len() as u64, &pax(&[("path", &long)]))
        .file("short", b"content");
    let (manifest, pack) = unpacked(&archive.gzip());
    assert_eq!((manifest.files.keys().collect::<Vec<_>>(), pack), (vec![&long], b"content".to_vec()));
}

#[test]
fn an_archive_in_several_gzip_members_is_read_to_the_last() {
    let whole = Evil::default().file("a", b"1").file("b", b"2").0;
    let archive = [gzip(&whole[..700]), gzip(&whole[700..]), gzip(&[0; 1024])].concat();
    assert_eq!(unpacked(&archive).1, b"12");
}

#[test]
fn a_path_out_of_the_tree_is_refused() {
    let name = |name: &str| refusal(Evil::default().file(name, b""));
    assert_eq!(name("/etc/passwd"), Refusal::AbsolutePath { path: "/etc/passwd".into() });
    assert_eq!(name("a/../../b"), Refusal::ParentPath { path: "a/../../b".into() });
    assert_eq!(name(".."), Refusal::ParentPath { path: "..".into() });
    assert_eq!(name("a\\..\\b"), Refusal::InvalidPath { path: "a\\..\\b".into() });
    assert_eq!(unpacked(&Evil::default().file("a../..b", b"").gzip()).0.files.len(), 1);
}

#[test]
fn a_path_that_is_not_utf8_is_refused() {
    let archive = Evil::default().entry(EntryType::Regular, b"a\xff", "", 0, b"");
    assert_eq!(refusal(archive), Refusal::NotUtf8 { path: "a\u{fffd}".into() });
}

#[test]
fn a_link_out_of_the_tree_is_refused() {
    let leaves = |path: &str| Refusal::LinkLeavesTree { path: path.into() };
    assert_eq!(refusal(Evil::default().link("l", "/etc")), leaves("l"));
    assert_eq!(refusal(Evil::default().link("l", "..")), leaves("l"));
    assert_eq!(refusal(Evil::default().link("a/l", "b/../../..")), leaves("a/l"));
    // Each alone stays inside; together they do not.
    assert_eq!(refusal(Evil::default().link("a/up", "..").link("out", "a/up/../x")), leaves("out"));
    assert_eq!(refusal(Evil::default().link("x", "y/..").link("y", "a/b/../../..")), leaves("x"));
    assert_eq!(refusal(Evil::default().link("a", "b").link("b", "a")), Refusal::LinkLoop { path: "a".into() });
}

#[test]
fn a_link_within_the_tree_is_kept_as_it_was_written() {
    let archive = Evil::default().file("shared/x", b"").link("app/shared", "../shared").link("dangling", "./nowhere//to/");
    let (manifest, _) = unpacked(&archive.gzip());
    assert_eq!(manifest.links["app/shared"], "../shared");
    assert_eq!(manifest.links["dangling"], "./nowhere//to/");
    assert_eq!(manifest.directory("app").unwrap().links, [("app/shared", "../shared")]);
}

#[test]
fn nothing_is_written_through_a_link_or_a_file() {
    let not_a_directory = Refusal::NotADirectory { path: "a".into() };
    assert_eq!(refusal(Evil::default().link("a", "b").file("a/x", b"")), not_a_directory);
    assert_eq!(refusal(Evil::default().file("a", b"").file("a/x", b"")), not_a_directory);
    assert_eq!(refusal(Evil::default().file("a/x", b"").file("a", b"")), Refusal::Duplicate { path: "a".into() });
}

#[test]
fn an_entry_that_occurs_twice_is_refused() {
    let twice = Refusal::Duplicate { path: "a/x".into() };
    assert_eq!(refusal(Evil::default().file("a/x", b"1").file("a//x", b"2")), twice);
    assert_eq!(refusal(Evil::default().file("a/x", b"1").link("a/x", "y")), twice);
}

#[test]
fn what_is_neither_file_nor_directory_nor_link_is_refused() {
    let path = || "x".to_owned();
    assert_eq!(refusal(Evil::default().kind(EntryType::Link, "x")), Refusal::HardLink { path: path() });
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::new(b'Z')] {
        assert_eq!(refusal(Evil::default().kind(kind, "x")), Refusal::NotAFile { path: path() }, "{kind:?}");
    }
    let sparse = pax(&[("GNU.sparse.major", "1")]);
    let archive = Evil::default().entry(EntryType::XHeader, b"h", "", sparse.len() as u64, &sparse).file("x", b"");
    assert_eq!(refusal(archive), Refusal::Sparse { path: path() });
}

#[test]
fn a_size_that_lies_is_refused() {
    let archive = Evil::default().entry(EntryType::Regular, b"x", "", 5000, b"short");
    assert_eq!(refusal(archive), Refusal::Truncated);
    let huge = pax(&[("size", &u64::MAX.to_string())]);
    let archive = Evil::default().entry(EntryType::XHeader, b"h", "", huge.len() as u64, &huge).file("x", b"short");
    assert_eq!(refusal(archive), Refusal::Damaged("size overflow".into()));
}

#[test]
fn what_is_cut_short_or_damaged_is_refused() {
    let good = Evil::default().file("x", &[7; 3000]).gzip();
    let limits = Limits::default();
    assert_eq!(refusal_within(&limits, &good[..good.len() - 4]), Refusal::Truncated);
    assert_eq!(refusal_within(&limits, b""), Refusal::NotGzip);
    assert_eq!(refusal_within(&limits, b"name: a program, not an archive"), Refusal::NotGzip);
    let mut flipped = good.clone();
    let crc = flipped.len() - 6;
    flipped[crc] ^= 1;
    assert!(matches!(refusal_within(&limits, &flipped), Refusal::Damaged(_)));
    assert!(matches!(refusal_within(&limits, &[good, b"what follows is not gzip".to_vec()].concat()), Refusal::Damaged(_)));
    assert!(matches!(refusal_within(&limits, &gzip(&[b'x'; 1024])), Refusal::Damaged(_)));
}

#[test]
fn a_bomb_is_refused_before_it_is_inflated() {
    let zeros = vec![0; 8 << 20];
    let bomb = Evil::default().file("zeros", &zeros).gzip();
    assert_eq!(refusal_within(&Limits::default(), &bomb), Refusal::TooDense { limit: 200 });
    let limits = Limits { bytes: 1 << 20, ratio: u64::MAX, ..Limits::default() };
    assert_eq!(refusal_within(&limits, &bomb), Refusal::TooLarge { limit: 1 << 20 });
    // Also where it hides behind the end of the archive.
    let behind = [Evil::default().file("x", b"").gzip(), gzip(&zeros)].concat();
    assert_eq!(refusal_within(&Limits::default(), &behind), Refusal::TooDense { limit: 200 });
}

#[test]
fn headers_that_fill_the_memory_are_refused() {
    let name: Vec<u8> = (0..2 << 20).map(|i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0] | 1).collect();
    let archive = Evil::default().entry(EntryType::GNULongName, b"h", "", name.len() as u64, &name).file("x", b"");
    assert_eq!(refusal(archive), Refusal::HeaderTooLarge { limit: 1 << 20 });
}

#[test]
fn each_limit_is_named_when_it_is_passed() {
    let limits = Limits { entries: 3, path_length: 20, depth: 2, ..Limits::default() };
    let refused = |archive: Evil| refusal_within(&limits, &archive.gzip());
    assert_eq!(refused(Evil::default().file("a/b", b"").file("c/d", b"")), Refusal::TooManyEntries { limit: 3 });
    assert_eq!(refused(Evil::default().file("a/b/c", b"")), Refusal::TooDeep { path: "a/b/c".into(), limit: 2 });
    let long = "l".repeat(21);
    assert_eq!(refused(Evil::default().file(&long, b"")), Refusal::PathTooLong { path: long.clone(), limit: 20 });
    assert_eq!(refused(Evil::default().link("l", &long)), Refusal::PathTooLong { path: long, limit: 20 });
}

#[test]
fn a_reader_that_fails_is_no_fault_of_the_archive() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("connection reset"))
        }
    }
    let good = Evil::default().file("x", &[7; 3000]).gzip();
    let error = unpack(good[..good.len() / 2].chain(Broken), &Limits::default(), io::sink()).unwrap_err();
    assert!(matches!(&error, Error::Read(cause) if cause.to_string() == "connection reset"), "{error:?}");
}

fn trees() -> impl Strategy<Value = BTreeMap<String, (Vec<u8>, bool)>> {
    let path = proptest::collection::vec("[a-c.-]{1,2}", 1..4).prop_map(|parts| parts.join("/"));
    let file = (proptest::collection::vec(any::<u8>(), 0..40), any::<bool>());
    proptest::collection::btree_map(path, file, 0..20).prop_map(|mut files| {
        let valid = |path: &str| path.split('/').all(|part| part != "." && part != "..");
        let paths: Vec<String> = files.keys().cloned().collect();
        files.retain(|path, _| valid(path) && !paths.iter().any(|other| path.starts_with(&format!("{other}/"))));
        files
    })
}

proptest! {
    #[test]
    fn a_tree_comes_back_as_it_was_whatever_the_order_of_the_archive(files in trees(), seed in any::<u64>()) {
        let archive = |rotate: usize| {
            let mut entries: Vec<_> = files.iter().collect();
            let places = entries.len().max(1);
            entries.rotate_left(rotate % places);
            let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
            for (path, (content, executable)) in entries {
                let mut header = tar::Header::new_gnu();
                header.set_size(content.len() as u64);
                header.set_mode(if *executable { 0o700 } else { 0o600 });
                builder.append_data(&mut header, path, content.as_slice()).unwrap();
            }
            builder.into_inner().unwrap().finish().unwrap()
        };
        let (manifest, pack) = unpacked(&archive(0));
        let again = unpacked(&archive(usize::try_from(seed % 64).unwrap()));
        prop_assert_eq!((manifest.to_bytes(), &pack), (again.0.to_bytes(), &again.1));

        for dir in manifest.directories.keys() {
            let directory = manifest.directory(dir).unwrap();
            let from = usize::try_from(directory.offset).unwrap();
            let mut range = &pack[from..from + usize::try_from(directory.size).unwrap()];
            for (path, file) in directory.files {
                let (content, rest) = range.split_at(usize::try_from(file.size).unwrap());
                range = rest;
                prop_assert_eq!((content, file.executable), (files[path].0.as_slice(), files[path].1));
                prop_assert_eq!(&driftless_source::Digest::sha256(content), &file.digest);
            }
            prop_assert!(range.is_empty());
        }
        prop_assert_eq!(manifest.directory("").unwrap().files.len(), files.len());
    }

    #[test]
    fn no_bytes_make_it_panic(garbage in proptest::collection::vec(any::<u8>(), 0..2000), at in 0_usize..3000, with in any::<u8>()) {
        let _ = unpack(gzip(&garbage).as_slice(), &Limits::default(), io::sink());
        let mut archive = Evil::default().file("a", b"1").link("b", "a").kind(EntryType::Directory, "c").0;
        let at = at % archive.len();
        archive[at] = with;
        let result = unpack(gzip(&archive).as_slice(), &Limits::default(), io::sink());
        prop_assert!(!matches!(result, Err(Error::Read(_) | Error::Spool(_))));
    }
}
