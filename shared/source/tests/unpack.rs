//! Honest archives, and limits. `hostile.rs` has the refused ones.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::maybe_infinite_iter,
    reason = "this is a test; clippy only knows its test functions"
)]

use std::{
    collections::BTreeMap,
    io::{self, Cursor, Read},
};

use driftless_source::{Error, Limits, Manifest, Refusal, unpack};
use driftless_testkit::hostile::{Tar, gzip};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

fn refusal_within(limits: &Limits, archive: &[u8]) -> Refusal {
    match unpack(archive, limits, io::sink()) {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn unpacked(archive: &[u8]) -> (Manifest, Vec<u8>) {
    let (mut spool, mut pack) = (Cursor::new(Vec::new()), Vec::new());
    let tree = unpack(archive, &Limits::default(), &mut spool).unwrap();
    tree.write_pack(&mut spool, &mut pack).unwrap();
    assert!(!tree.is_in_order() || pack == spool.into_inner());
    (Manifest::of(&tree), pack)
}

#[test]
fn flux_archive_becomes_a_tree() {
    let archive = Tar::default()
        .entry(b'5', b".", b"", 0, b"")
        .entry(b'5', b"infra", b"", 0, b"")
        .entry(b'5', b"infra", b"", 0, b"")
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
    let commit = b"52 comment=0123456789012345678901234567890123456789\n";
    let archive =
        Tar::default().entry(b'g', b"pax_global_header", b"", 52, commit).pax(&[("path", &long)]).file("short", b"content");
    let (manifest, pack) = unpacked(&archive.gzip());
    assert_eq!((manifest.files.keys().collect::<Vec<_>>(), pack), (vec![&long], b"content".to_vec()));
}

#[test]
fn an_archive_in_several_gzip_members_is_read_to_the_last() {
    let whole = Tar::default().file("a", b"1").file("b", b"2").bytes();
    let archive = [gzip(&whole[..700]), gzip(&whole[700..]), gzip(&[0; 1024])].concat();
    assert_eq!(unpacked(&archive).1, b"12");
}

#[test]
fn a_link_within_the_tree_is_kept_as_it_was_written() {
    let archive = Tar::default().file("shared/x", b"").link("app/shared", "../shared").link("dangling", "./nowhere//to/");
    let (manifest, _) = unpacked(&archive.gzip());
    assert_eq!(manifest.links["app/shared"], "../shared");
    assert_eq!(manifest.links["dangling"], "./nowhere//to/");
    assert_eq!(manifest.directory("app").unwrap().links, [("app/shared", "../shared")]);
}

#[test]
fn exceeded_limit_is_named() {
    let limits = Limits { entries: 3, path_length: 20, depth: 2, ..Limits::default() };
    let refused = |archive: Tar| refusal_within(&limits, &archive.gzip());
    assert_eq!(refused(Tar::default().file("a/b", b"").file("c/d", b"")), Refusal::TooManyEntries { limit: 3 });
    assert_eq!(refused(Tar::default().file("a/b/c", b"")), Refusal::TooDeep { path: "a/b/c".into(), limit: 2 });
    let long = "l".repeat(21);
    assert_eq!(refused(Tar::default().file(&long, b"")), Refusal::PathTooLong { path: long.clone(), limit: 20 });
    assert_eq!(refused(Tar::default().link("l", &long)), Refusal::TargetTooLong { path: "l".into(), limit: 20 });
    let zeros = Tar::default().file("zeros", &vec![0; 8 << 20]).gzip();
    let limits = Limits { bytes: 1 << 20, ratio: u64::MAX, ..Limits::default() };
    assert_eq!(refusal_within(&limits, &zeros), Refusal::TooLarge { limit: 1 << 20 });
    let noise = (0..3 << 20_u32).map(|n: u32| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect::<Vec<_>>();
    let behind = [Tar::default().file("a", b"").bytes(), vec![0; 2 << 20]].concat();
    assert_eq!(refusal_within(&limits, &gzip(&behind)), Refusal::TooLarge { limit: 1 << 20 });
    assert_eq!(
        refusal_within(&Limits { ratio: 1, ..Limits::default() }, &Tar::default().file("noise", &noise).gzip()),
        Refusal::TooDense { limit: 1 }
    );
    assert_eq!(refusal_within(&Limits { ratio: 0, ..Limits::default() }, &zeros), Refusal::TooDense { limit: 0 });
}

#[test]
fn a_plain_tar_archive_is_read_too() {
    let tar = Tar::default().file("a", b"1").file("b/c", b"2").end().bytes();
    assert_eq!(unpacked(&tar), unpacked(&gzip(&tar)));
}

#[test]
fn a_helm_chart_is_an_archive_with_one_directory() {
    let chart =
        Tar::default().file("shop/Chart.yaml", b"name: shop\n").file("shop/templates/deployment.yaml", b"kind: Deployment\n");
    let (manifest, _) = unpacked(&chart.gzip());
    assert_eq!(manifest.directories.keys().collect::<Vec<_>>(), ["", "shop", "shop/templates"]);
    assert_eq!(manifest.directory("shop").unwrap().files.len(), 2);
}

#[test]
fn names_that_differ_in_case_or_spelling_are_two_files() {
    let readme = Tar::default().file("README", b"1").file("readme", b"2");
    let spellings =
        readme.file("caf\u{e9}", b"3").file("cafe\u{301}", b"4").file("a/Pulumi.yaml", b"5").file("b/pulumi.yaml", b"6");
    assert_eq!(unpacked(&spellings.gzip()).0.files.len(), 6);
}

#[test]
fn an_archive_without_an_end_or_with_much_padding_is_whole() {
    let tar = Tar::default().file("a", b"1").bytes();
    assert_eq!(unpacked(&gzip(&tar)), unpacked(&gzip(&[tar.clone(), vec![0; 10_000]].concat())));
    assert_eq!(unpacked(&gzip(&[0; 1024])).0.files.len(), 0);
}

#[test]
fn a_size_in_96_bits_and_names_in_two_fields_are_read() {
    let mut header = [0; 512];
    header[..4].copy_from_slice(b"name");
    header[100..108].copy_from_slice(b"0000755\0");
    header[124..136].copy_from_slice(b"\x80\0\0\0\0\0\0\0\0\0\0\x02");
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[345..348].copy_from_slice(b"dir");
    let (manifest, pack) = unpacked(&Tar::default().block(&mut header, b"ok").gzip());
    assert_eq!((pack.as_slice(), manifest.files["dir/name"].executable), (b"ok".as_slice(), true));
}

#[test]
fn read_error_is_not_a_refusal_of_the_archive() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("connection reset"))
        }
    }
    let good = Tar::default().file("x", &[7; 3000]).gzip();
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
    fn tree_is_equal_for_every_order_of_the_archive(files in trees(), seed in any::<u64>()) {
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
}
