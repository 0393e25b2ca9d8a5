//! The corpus of hostile archives: the refusal of each, and that no content of it is found outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is a test; clippy only knows its test functions"
)]

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::Path,
    sync::LazyLock,
};

use driftless_source::{Error, Limits, unpack};
use driftless_testkit::hostile::{Hostile, Tar, archives, gzip, honest};

static ARCHIVES: LazyLock<Vec<Hostile>> = LazyLock::new(archives);

#[test]
fn each_hostile_archive_is_refused_with_its_own_message() {
    let mut wrong = Vec::new();
    for hostile in ARCHIVES.iter() {
        match unpack(hostile.bytes.as_slice(), &Limits::default(), io::sink()) {
            Err(Error::Refused(refusal)) if refusal.to_string().contains(hostile.refusal) => {}
            other => {
                wrong.push(format!(
                    "{}: {:?}, not {:?}",
                    hostile.name,
                    other.map_err(|error| error.to_string()),
                    hostile.refusal
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_corpus_is_small_and_its_names_are_good_for_objects() {
    let names: BTreeSet<&str> = ARCHIVES.iter().map(|hostile| hostile.name).collect();
    assert_eq!(names.len(), ARCHIVES.len());
    assert!(ARCHIVES.len() >= 40, "{}", ARCHIVES.len());
    assert!(ARCHIVES.iter().zip(archives()).all(|(one, other)| one.bytes == other.bytes), "not the same each time");
    for hostile in ARCHIVES.iter() {
        assert!(hostile.bytes.len() <= 1 << 20, "{} has {} bytes", hostile.name, hostile.bytes.len());
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(hostile.name.len() <= 40 && hostile.name.chars().all(label), "{}", hostile.name);
    }
}

#[test]
fn nothing_is_written_but_the_spool() {
    let here = tempfile::tempdir().unwrap();
    let before = files(here.path());
    for hostile in ARCHIVES.iter() {
        let dir = tempfile::tempdir_in(here.path()).unwrap();
        let spool = fs::File::create(dir.path().join("spool")).unwrap();
        unpack(hostile.bytes.as_slice(), &Limits::default(), spool).unwrap_err();
        assert_eq!(files(dir.path()), BTreeSet::from(["spool".into()]), "{}", hostile.name);
    }
    assert_eq!(files(here.path()), before);
}

fn files(dir: &Path) -> BTreeSet<std::ffi::OsString> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn refusal_message_contains_no_content() {
    // A private file that is offered as an archive in every way.
    let secret = "correct-horse-battery-staple\n".repeat(100);
    let secret = secret.as_bytes();
    let header = |content: &[u8]| Tar::default().entry(b'x', b"h", b"", content.len() as u64, content);
    let in_header = [Tar::default().file("file", b"").bytes(), secret.to_vec()].concat();
    let after_end = Tar::default().file("file", b"").end();
    for archive in [
        secret.to_vec(),
        gzip(secret),
        gzip(&in_header),
        gzip(&header(secret).bytes()),
        header(secret).gzip(),
        Tar::default().file("file", secret).entry(b'3', b"device", b"", 0, b"").gzip(),
        gzip(&[after_end.bytes(), secret.to_vec()].concat()),
        [honest(), secret.to_vec()].concat(),
    ] {
        let error = unpack(archive.as_slice(), &Limits::default(), io::sink()).unwrap_err();
        let words = format!("{error} {error:?}");
        assert!(!words.contains("horse"), "{words}");
    }
}

#[test]
fn slow_reader_gives_the_same_tree() {
    struct Slow<'a>(&'a [u8], bool);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let length = buffer.len().min(1);
            self.0.read(&mut buffer[..length])
        }
    }
    for hostile in ARCHIVES.iter().filter(|hostile| hostile.bytes.len() < 20_000) {
        let words = |result: Result<_, Error>| result.unwrap_err().to_string();
        let quick = words(unpack(hostile.bytes.as_slice(), &Limits::default(), io::sink()));
        let slow = words(unpack(Slow(&hostile.bytes, false), &Limits::default(), io::sink()));
        assert_eq!(quick, slow, "{}", hostile.name);
    }
}
