use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::{restore::RestoreError, *};

const LIMITS: Limits = Limits { content: 1 << 30, entries: 100_000, archive: 1 << 30 };

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Directory { mode: u32 },
    File { mode: u32, mtime: i64, content: Vec<u8> },
    Link { target: PathBuf },
}

/// Everything below a directory, by path.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Node> {
    let mut found = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(parent) = pending.pop() {
        for entry in fs::read_dir(parent).unwrap() {
            let path = entry.unwrap().path();
            let data = fs::symlink_metadata(&path).unwrap();
            let mode = data.mode() & 0o7777;
            let node = if data.is_dir() {
                pending.push(path.clone());
                Node::Directory { mode }
            } else if data.is_symlink() {
                Node::Link { target: fs::read_link(&path).unwrap() }
            } else if data.is_file() {
                Node::File { mode, mtime: data.mtime(), content: fs::read(&path).unwrap() }
            } else {
                continue;
            };
            found.insert(path.strip_prefix(dir).unwrap().to_owned(), node);
        }
    }
    found
}

fn write(path: &Path, mode: u32, mtime: i64, content: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set_mtime(path, mtime);
}

fn set_mtime(path: &Path, mtime: i64) {
    let distance = Duration::from_secs(mtime.unsigned_abs());
    let time = if mtime < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance };
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn root(dir: &Path) -> Root {
    Root { name: "source".into(), dir: dir.into() }
}

fn pack_paths(dir: &Path, paths: &[&str], limits: &Limits) -> Result<(Vec<u8>, Packed), PackError> {
    let mut out = Vec::new();
    let selection = Selection { root: root(dir), paths: paths.iter().map(PathBuf::from).collect() };
    let packed = pack(&[selection], "an image", limits, &mut out)?;
    Ok((out, packed))
}

fn pack_all(dir: &Path) -> Vec<u8> {
    pack_paths(dir, &[""], &LIMITS).unwrap().0
}

fn whole_index(archive: &[u8]) -> Result<Index, Damaged> {
    match index(archive, archive.len() as u64, &LIMITS)? {
        Tail::Index(index) => Ok(index),
        Tail::Needs(bytes) => panic!("needs {bytes} of {} bytes", archive.len()),
    }
}

fn bytes<'a>(archive: &'a [u8], frame: &Frame) -> &'a [u8] {
    let start = usize::try_from(frame.offset).unwrap();
    &archive[start..start + usize::try_from(frame.size).unwrap()]
}

/// Restores every frame of an archive.
fn restore_all(archive: &[u8], dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for frame in &whole_index(archive)?.frames {
        restore(frame, bytes(archive, frame), &[root(dir)])?;
    }
    Ok(())
}

/// Makes a frame of some bytes as if it were another one's.
fn frame(tar: &[u8], counts: Counts) -> (Frame, Vec<u8>) {
    let compressed = zstd::encode_all(tar, LEVEL).unwrap();
    let sha256 = hex(Sha256::new_with_prefix(&compressed));
    (Frame { offset: 0, size: compressed.len() as u64, sha256, counts }, compressed)
}

/// Appends an entry whose name is not checked.
fn entry(tar: &mut Vec<u8>, kind: EntryType, name: &[u8], content: &[u8], link: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    tar.extend(header.as_bytes());
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// The kind, the name, the content and the target of an entry.
type Raw<'a> = (EntryType, &'a [u8], &'a [u8], &'a [u8]);

/// Restores a frame of these entries with true counts.
fn restore_entries(dir: &Path, entries: &[Raw]) -> Result<Counts, RestoreError> {
    let mut tar = Vec::new();
    let mut counts = Counts::default();
    for (kind, name, content, link) in entries {
        entry(&mut tar, *kind, name, content, link);
        if !matches!(kind, EntryType::XHeader | EntryType::GNULongName) {
            counts = counts + Counts { entries: 1, content: content.len() as u64 };
        }
    }
    tar.resize(tar.len() + 1024, 0);
    let (frame, compressed) = frame(&tar, counts);
    restore(&frame, &compressed[..], &[root(dir)])
}

/// A tree with every kind of entry.
fn everything() -> TempDir {
    let dir = TempDir::new().unwrap();
    let at = |path: &str| dir.path().join(path);
    write(&at("plain"), 0o644, 1_700_000_000, b"content");
    write(&at("bin/tool"), 0o755, 0, b"#!/bin/sh\n");
    write(&at("private"), 0o600, -100, b"");
    write(&at("far"), 0o604, 10_000_000_000, b"after 2242");
    fs::create_dir_all(at("empty/below")).unwrap();
    fs::set_permissions(at("empty"), Permissions::from_mode(0o711)).unwrap();
    symlink("plain", at("relative")).unwrap();
    symlink("./bin//../bin/tool/", at("odd")).unwrap();
    symlink("/usr/bin/python3", at("python")).unwrap();
    symlink("../../outside", at("dangling")).unwrap();
    symlink("x/".repeat(200), at("long")).unwrap();
    fs::hard_link(at("plain"), at("second")).unwrap();
    write(&dir.path().join(OsStr::from_bytes(b"\xff\xfe")), 0o644, 1, b"not UTF-8");
    let long = [b'\xff'; 200];
    write(&at("deep").join(OsStr::from_bytes(&long)).join(OsStr::from_bytes(&long)), 0o644, 2, b"long name");
    for length in 95..=105_usize {
        write(&at(&"n".repeat(length)), 0o644, 3, &[7; 700][..length * 6]);
    }
    dir
}

#[test]
fn every_kind_of_entry_is_restored() {
    let (from, to) = (everything(), TempDir::new().unwrap());
    restore_all(&pack_all(from.path()), to.path()).unwrap();
    assert_eq!(tree(to.path()), tree(from.path()));
    let data = fs::metadata(to.path().join("second")).unwrap();
    assert_eq!(data.nlink(), 1);
}

#[test]
fn special_files_and_mode_bits_are_left_out() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&from.path().join("setuid"), 0o4755, 1, b"");
    fs::create_dir(from.path().join("read-only")).unwrap();
    fs::set_permissions(from.path().join("read-only"), Permissions::from_mode(0o1555)).unwrap();
    let _socket = UnixListener::bind(from.path().join("socket")).unwrap();
    let pipe = from.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    restore_all(&pack_all(from.path()), to.path()).unwrap();
    let expected = [
        ("read-only".into(), Node::Directory { mode: 0o755 }),
        ("setuid".into(), Node::File { mode: 0o755, mtime: 1, content: Vec::new() }),
    ];
    assert_eq!(tree(to.path()), BTreeMap::from(expected));
}

/// A tree of several frames, one with a file that is larger than a frame.
fn frames() -> TempDir {
    let dir = TempDir::new().unwrap();
    for number in 0..40_u8 {
        write(&dir.path().join(format!("package{}/file{number}", number % 4)), 0o644, 9, &vec![number; 1 << 20]);
    }
    write(&dir.path().join("package2/large"), 0o755, 9, &vec![1; 40 << 20]);
    dir
}

#[test]
fn frames_are_restored_in_any_order_and_at_once() {
    let from = frames();
    let archive = pack_all(from.path());
    let index = whole_index(&archive).unwrap();
    let sizes: Vec<u64> = index.frames.iter().map(|frame| frame.counts.content >> 20).collect();
    assert_eq!(sizes, [15, 15, 40, 10]);
    let expected = tree(from.path());

    let to = TempDir::new().unwrap();
    for frame in index.frames.iter().rev() {
        assert_eq!(restore(frame, bytes(&archive, frame), &[root(to.path())]).unwrap(), frame.counts);
    }
    assert!(tree(to.path()) == expected);

    let to = TempDir::new().unwrap();
    thread::scope(|scope| {
        for frame in &index.frames {
            scope.spawn(|| restore(frame, bytes(&archive, frame), &[root(to.path())]).unwrap());
        }
    });
    assert!(tree(to.path()) == expected);
}

#[test]
fn equal_trees_give_equal_archives_and_counts() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (dir, order) in [(&first, ["a", "b/c", "b.d"]), (&second, ["b.d", "b/c", "a"])] {
        for path in order {
            write(&dir.path().join(path), 0o644, 5, path.as_bytes());
        }
    }
    let (archive, packed) = pack_paths(first.path(), &[""], &LIMITS).unwrap();
    assert_eq!(pack_paths(second.path(), &["b.d", "b", "a", "b/c"], &LIMITS).unwrap(), (archive.clone(), packed));
    let packed = pack_paths(second.path(), &[""], &LIMITS).unwrap().1;
    let sha256 = hex(Sha256::new_with_prefix(&archive));
    let counts = Counts { entries: 4, content: 7 };
    assert_eq!(packed, Packed { bytes: archive.len() as u64, sha256, counts });
    let index = whole_index(&archive).unwrap();
    assert_eq!((index.origin.as_str(), index.counts()), ("an image", counts));
}

#[test]
fn entries_of_several_roots_return_to_theirs() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let roots = |dir: &Path| ["home", "plugins"].map(|name| Root { name: name.into(), dir: dir.join(format!("{name}-dir")) });
    for root in roots(from.path()) {
        write(&root.dir.join("kept/file"), 0o644, 1, root.name.as_bytes());
        write(&root.dir.join("left"), 0o644, 1, b"");
    }
    let selections = roots(from.path()).map(|root| Selection { root, paths: vec!["kept/file".into()] });
    let mut archive = Vec::new();
    pack(&selections, "", &LIMITS, &mut archive).unwrap();
    let index = whole_index(&archive).unwrap();
    restore(&index.frames[0], &archive[..], &roots(to.path())).unwrap();
    let mut expected = tree(from.path());
    expected.retain(|path, _| path.ends_with("kept/file"));
    let mut found = tree(to.path());
    found.retain(|_, node| matches!(node, Node::File { .. }));
    assert_eq!(found, expected);
}

#[test]
fn empty_selection_gives_an_archive_without_frames() {
    let dir = TempDir::new().unwrap();
    let (archive, packed) = pack_paths(dir.path(), &[], &LIMITS).unwrap();
    assert_eq!((packed.counts, whole_index(&archive).unwrap().frames.len()), (Counts::default(), 0));
}

#[test]
fn path_that_cannot_be_packed_is_named() {
    let dir = TempDir::new().unwrap();
    write(&dir.path().join("real/file"), 0o644, 1, b"");
    symlink("real", dir.path().join("link")).unwrap();
    for path in ["missing", "../file", "/etc/passwd", "link/file", "real/../real/file", "real/file/x"] {
        let error = pack_paths(dir.path(), &[path], &LIMITS).unwrap_err();
        let PackError::Entry { path: named, .. } = error else { panic!("{error}") };
        assert_eq!(named, Path::new("source").join(path));
    }
}

#[test]
fn name_of_4096_bytes_is_the_longest() {
    for (last, is_packed) in [(194, true), (195, false)] {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        // "source" and 19 names of 204 bytes, each with its slash.
        let parent: PathBuf = vec!["p".repeat(204); 19].iter().collect();
        let path = parent.join("f".repeat(last));
        let mut dirs = dirs::Dirs::create(from.path()).unwrap();
        rustix::fs::symlinkat("t".repeat(4095), dirs.at(&parent).unwrap(), path.file_name().unwrap()).unwrap();
        let packed = pack_paths(from.path(), &[""], &LIMITS);
        assert_eq!(packed.is_ok(), is_packed, "{}", path.as_os_str().len());
        if let Ok((archive, _)) = packed {
            restore_all(&archive, to.path()).unwrap();
            let mut dirs = dirs::Dirs::open(to.path()).unwrap();
            let (parent, name) = dirs.parent(&path).unwrap();
            let found = rustix::fs::readlinkat(parent, name, Vec::new()).unwrap();
            assert_eq!(found.as_bytes(), "t".repeat(4095).as_bytes());
        }
    }
}

/// Changes a file when the first bytes of the archive are written.
struct Changing<'a>(&'a Path, RefCell<Option<fn(&Path)>>);

impl Write for Changing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(change) = self.1.take() {
            change(self.0);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn file_that_changes_while_it_is_packed_is_an_error() {
    let changes: [fn(&Path); 3] = [
        |path| File::options().write(true).open(path).unwrap().set_len(5 << 20).unwrap(),
        |path| File::options().append(true).open(path).unwrap().write_all(b"more").unwrap(),
        |path| set_mtime(path, 77),
    ];
    for change in changes {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("file");
        let random: Vec<u8> = (0..2 << 20).flat_map(|number: u32| Sha256::digest(number.to_le_bytes())[..4].to_vec()).collect();
        write(&path, 0o644, 1, &random);
        let selection = Selection { root: root(dir.path()), paths: vec!["file".into()] };
        let error = pack(&[selection], "", &LIMITS, Changing(&path, RefCell::new(Some(change)))).unwrap_err();
        assert_eq!(error.to_string(), r#"cannot pack "source/file": file changed while it was packed"#);
    }
}

#[test]
fn limits_hold_when_packing() {
    let dir = TempDir::new().unwrap();
    for name in ["a", "b", "c"] {
        write(&dir.path().join(name), 0o644, 1, &[1; 1000]);
    }
    let exact = Limits { content: 3000, entries: 3, archive: pack_all(dir.path()).len() as u64 };
    pack_paths(dir.path(), &[""], &exact).unwrap();
    for (limits, expected) in [
        (Limits { content: 2999, ..exact }, ("bytes of content", 2999)),
        (Limits { entries: 2, ..exact }, ("entries", 2)),
        (Limits { archive: exact.archive - 1, ..exact }, ("bytes of archive", exact.archive - 1)),
        (Limits { archive: 0, ..exact }, ("bytes of archive", 0)),
    ] {
        let error = pack_paths(dir.path(), &[""], &limits).unwrap_err();
        let PackError::TooLarge { what, limit } = error else { panic!("{error}") };
        assert_eq!((what, limit), expected);
    }
}

#[test]
fn limits_hold_when_the_index_is_read() {
    let dir = everything();
    let (archive, packed) = pack_paths(dir.path(), &[""], &LIMITS).unwrap();
    let exact = Limits { content: packed.counts.content, entries: packed.counts.entries, archive: packed.bytes };
    let read = |limits| index(&archive, packed.bytes, &limits);
    assert!(matches!(read(exact), Ok(Tail::Index(_))));
    for limits in [
        Limits { content: exact.content - 1, ..exact },
        Limits { entries: exact.entries - 1, ..exact },
        Limits { archive: exact.archive - 1, ..exact },
    ] {
        read(limits).unwrap_err();
    }
}

#[test]
fn index_says_how_many_bytes_it_needs() {
    let archive = pack_all(everything().path());
    let size = archive.len() as u64;
    let mut needed = 0;
    let mut asked = Vec::new();
    let index = loop {
        match index(&archive[archive.len() - needed..], size, &LIMITS).unwrap() {
            Tail::Index(index) => break index,
            Tail::Needs(bytes) => needed = bytes,
        }
        asked.push(needed);
    };
    assert_eq!((asked.len(), asked[0]), (2, FOOTER));
    assert_eq!(index.frames[0].size + asked[1] as u64, size);
}

/// Makes the end of an archive with an index of this text.
fn tail(json: &[u8]) -> Vec<u8> {
    let mut tail = zstd::encode_all(json, LEVEL).unwrap();
    let (length, digest) = (tail.len() as u64, Sha256::digest(&tail));
    tail.extend([&MAGIC[..], &length.to_le_bytes(), &digest].concat());
    tail
}

fn index_error(tail: &[u8], reason: &str) {
    let error = index(tail, LIMITS.archive, &LIMITS).unwrap_err();
    assert!(error.to_string().contains(reason), "{error}: {reason}");
}

#[test]
fn hostile_index_is_refused() {
    let read = |json: &str, frames: usize| whole_index(&[vec![0; frames], tail(json.as_bytes())].concat());
    let index = |frames: &[(u64, u64, u64, u64)]| {
        let frames: Vec<String> = frames
            .iter()
            .map(|(offset, size, entries, content)| {
                format!(r#"{{"offset":{offset},"size":{size},"sha256":"","entries":{entries},"content":{content}}}"#)
            })
            .collect();
        format!(r#"{{"origin":"","frames":[{}]}}"#, frames.join(","))
    };
    read(&index(&[(0, 60, 1, 1), (60, 40, 1, 1)]), 100).unwrap();
    for (frames, reason) in [
        (vec![(0, 60, 1, 1), (60, u64::MAX, 1, 1)], "do not follow"),
        (vec![(0, 60, 1, 1), (50, 50, 1, 1)], "do not follow"),
        (vec![(0, 60, 1, 1), (70, 30, 1, 1)], "do not follow"),
        (vec![(60, 40, 1, 1), (0, 60, 1, 1)], "do not follow"),
        (vec![(0, 101, 1, 1)], "do not follow"),
        (vec![(0, u64::MAX, 1, 1)], "do not follow"),
        (vec![(0, 99, 1, 1)], "do not follow"),
        (vec![(0, 60, 1, 1), (60, 40, 1, u64::MAX)], "exceeds"),
        (vec![(0, 60, u64::MAX, 1), (60, 40, 1, 1)], "exceeds"),
        (vec![(0, 0, 0, 0); MAX_FRAMES + 1], "more than 10000 frames"),
    ] {
        let error = read(&index(&frames), 100).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}: {reason}");
    }
    for json in ["", "[]", "{}", r#"{"origin":"","frames":[{}]}"#] {
        read(json, 0).unwrap_err();
    }
    let mut long = tail(b"{}").split_off(tail(b"{}").len() - FOOTER);
    long[MAGIC.len()..][..8].copy_from_slice(&(MAX_INDEX + 1).to_le_bytes());
    index_error(&long, "invalid length");
    long[MAGIC.len() - 1] += 1;
    index_error(&long, "its format is unknown");
    let bomb = read(&" ".repeat(64 << 20), 0).unwrap_err();
    assert!(bomb.to_string().contains("more than 8388608 bytes"), "{bomb}");
}

#[test]
fn damage_of_any_byte_is_found() {
    let from = TempDir::new().unwrap();
    write(&from.path().join("a/file"), 0o644, 1, &Sha256::digest(b"some content")[..]);
    symlink("file", from.path().join("a/link")).unwrap();
    let archive = pack_all(from.path());
    for position in 0..archive.len() {
        let mut damaged = archive.clone();
        damaged[position] ^= 1 << (position % 8);
        let to = TempDir::new().unwrap();
        assert!(restore_all(&damaged, to.path()).is_err(), "byte {position} of {}", archive.len());
    }
}

#[test]
fn truncated_archive_is_refused() {
    let archive = pack_all(everything().path());
    for length in (0..archive.len()).step_by(7) {
        index(&archive[..length], length as u64, &LIMITS).unwrap_err();
    }
    let frame = &whole_index(&archive).unwrap().frames[0];
    let compressed = bytes(&archive, frame);
    for length in (0..compressed.len()).step_by(101) {
        let to = TempDir::new().unwrap();
        let error = restore(frame, &compressed[..length], &[root(to.path())]).unwrap_err();
        assert!(matches!(error, RestoreError::Damaged(_)), "{error}");
    }
}

/// Reads some bytes, then fails.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::Error::new(io::ErrorKind::ConnectionReset, "the connection broke")),
            read => Ok(read),
        }
    }
}

#[test]
fn error_of_the_reader_is_told_from_damage() {
    let archive = pack_all(everything().path());
    let frame = &whole_index(&archive).unwrap().frames[0];
    let compressed = bytes(&archive, frame);
    for length in [0, 1, 100, compressed.len() - 1] {
        let to = TempDir::new().unwrap();
        let error = restore(frame, Failing(&compressed[..length]), &[root(to.path())]).unwrap_err();
        assert_eq!(error.to_string(), "cannot read the archive: the connection broke");
    }
}

/// Is interrupted before every read.
struct Interrupted<'a>(&'a [u8], bool);

impl Read for Interrupted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 { Err(io::ErrorKind::Interrupted.into()) } else { self.0.read(buffer) }
    }
}

#[test]
fn interrupted_reads_are_repeated() {
    let (from, to) = (everything(), TempDir::new().unwrap());
    let archive = pack_all(from.path());
    let frame = &whole_index(&archive).unwrap().frames[0];
    restore(frame, Interrupted(bytes(&archive, frame), false), &[root(to.path())]).unwrap();
    assert_eq!(tree(to.path()), tree(from.path()));
}

#[test]
fn hostile_entries_are_refused() {
    let (file, dir, link) = (EntryType::Regular, EntryType::Directory, EntryType::Symlink);
    let outside = TempDir::new().unwrap();
    let target = outside.path().as_os_str().as_bytes();
    let cases: &[(&str, &[Raw])] = &[
        ("not below", &[(file, b"source/../x", b"x", b"")]),
        ("not below", &[(file, b"source/a/../../x", b"x", b"")]),
        ("not below", &[(file, b"source/..", b"x", b"")]),
        ("not below", &[(dir, b"source/../x", b"", b"")]),
        ("not below", &[(link, b"source/../x", b"", b"y")]),
        ("unknown", &[(file, b"../x", b"x", b"")]),
        ("unknown", &[(file, b"/source/x", b"x", b"")]),
        ("unknown", &[(file, b"./source/x", b"x", b"")]),
        ("unknown", &[(file, b"other/x", b"x", b"")]),
        ("not below", &[(file, b"source", b"x", b"")]),
        ("not below", &[(dir, b"source/", b"", b"")]),
        ("unknown", &[(file, b"", b"x", b"")]),
        ("Not a directory", &[(link, b"source/l", b"", target), (file, b"source/l/x", b"x", b"")]),
        ("Not a directory", &[(link, b"source/l", b"", target), (dir, b"source/l", b"", b"")]),
        ("Not a directory", &[(link, b"source/l", b"", target), (link, b"source/l/x", b"", b"y")]),
        ("File exists", &[(link, b"source/l", b"", target), (file, b"source/l", b"x", b"")]),
        ("Not a directory", &[(link, b"source/l", b"", b"."), (file, b"source/l/x", b"x", b"")]),
        ("Not a directory", &[(dir, b"source/d", b"", b""), (link, b"source/l", b"", b"d"), (dir, b"source/l/x", b"", b"")]),
        ("it has no target", &[(link, b"source/l", b"", b"")]),
        ("it is not a file", &[(link, b"source/l", b"x", b"y")]),
        ("it is not a file", &[(dir, b"source/d", b"x", b"")]),
        ("Not a directory", &[(file, b"source/f", b"x", b""), (file, b"source/f/g", b"x", b"")]),
        ("it is not a file", &[(EntryType::Link, b"source/x", b"", b"/etc/passwd")]),
        ("it is not a file", &[(EntryType::Char, b"source/x", b"", b"")]),
        ("it is not a file", &[(EntryType::Block, b"source/x", b"", b"")]),
        ("it is not a file", &[(EntryType::Fifo, b"source/x", b"", b"")]),
        ("it is not a file", &[(EntryType::Continuous, b"source/x", b"", b"")]),
        ("real_size", &[(EntryType::GNUSparse, b"source/x", b"", b"")]),
        ("it is not a file", &[(EntryType::XGlobalHeader, b"source/x", b"19 path=other/name\n", b"")]),
        ("not below", &[(EntryType::XHeader, b"source/x", b"20 path=source/../x\n", b""), (file, b"source/x", b"x", b"")]),
        ("Invalid argument", &[(EntryType::GNULongName, b"source/x", b"source/a\0b", b""), (file, b"source/x", b"x", b"")]),
        ("no future member", &[(EntryType::GNULongName, b"source/x", b"source/x", b"")]),
        ("it is not a file", &[(EntryType::new(b'?'), b"source/x", b"", b"")]),
    ];
    for (reason, entries) in cases {
        let to = TempDir::new().unwrap();
        let error = restore_entries(&to.path().join("root"), entries).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}: {reason}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{entries:?}");
        assert!(fs::read_dir(to.path()).unwrap().all(|entry| entry.unwrap().file_name() == "root"), "{entries:?}");
    }
}

#[test]
fn setuid_of_an_entry_is_not_restored() {
    let to = TempDir::new().unwrap();
    let mut header = Header::new_gnu();
    header.set_mode(0o6755);
    header.set_size(0);
    let mut tar = Builder::new(Vec::new());
    tar.append_data(&mut header, "source/tool", io::empty()).unwrap();
    let (frame, compressed) = frame(&tar.into_inner().unwrap(), Counts { entries: 1, content: 0 });
    restore(&frame, &compressed[..], &[root(to.path())]).unwrap();
    assert_eq!(fs::metadata(to.path().join("tool")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn frame_has_what_its_index_says() {
    let mut tar = Vec::new();
    entry(&mut tar, EntryType::Regular, b"source/a", &[0; 1000], b"");
    entry(&mut tar, EntryType::Directory, b"source/b", b"", b"");
    tar.resize(tar.len() + 1024, 0);
    let of = |entries, content| {
        let to = TempDir::new().unwrap();
        let (frame, compressed) = frame(&tar, Counts { entries, content });
        restore(&frame, &compressed[..], &[root(to.path())])
    };
    of(2, 1000).unwrap();
    for (entries, content) in [(1, 1000), (3, 1000), (2, 999), (2, 1001), (0, 0), (u64::MAX, u64::MAX)] {
        let error = of(entries, content).unwrap_err();
        assert!(matches!(error, RestoreError::Damaged(_)), "{error}");
    }
}

#[test]
fn bombs_are_refused_before_they_fill_memory_or_disk() {
    let counts = Counts { entries: 1, content: 10 };
    let zeros = vec![0; 64 << 20];
    let name = {
        let mut tar = Vec::new();
        entry(&mut tar, EntryType::GNULongName, b"././@LongLink", &vec![b'n'; 64 << 20], b"");
        tar
    };
    let content = {
        let mut tar = Vec::new();
        entry(&mut tar, EntryType::Regular, b"source/large", &zeros, b"");
        tar
    };
    let after = {
        let mut tar = Vec::new();
        entry(&mut tar, EntryType::Regular, b"source/small", &[0; 10], b"");
        tar.extend(&zeros);
        tar
    };
    for (tar, reason) in [(name, "too long a header"), (content, "more than its index"), (after, "too long a header")] {
        let to = TempDir::new().unwrap();
        let (frame, compressed) = frame(&tar, counts);
        let error = restore(&frame, &compressed[..], &[root(to.path())]).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!to.path().join("large").exists());
    }
}

#[test]
fn large_window_is_refused() {
    let mut tar = Vec::new();
    entry(&mut tar, EntryType::Regular, b"source/a", &[0; 1000], b"");
    tar.resize(8 << 20, 0);
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL).unwrap();
    encoder.window_log(WINDOW_LOG + 1).unwrap();
    encoder.write_all(&tar).unwrap();
    let compressed = encoder.finish().unwrap();
    let sha256 = hex(Sha256::new_with_prefix(&compressed));
    let frame = Frame { offset: 0, size: compressed.len() as u64, sha256, counts: Counts { entries: 1, content: 1000 } };
    let to = TempDir::new().unwrap();
    let error = restore(&frame, &compressed[..], &[root(to.path())]).unwrap_err();
    assert!(error.to_string().contains("too much memory"), "{error}");
}

#[test]
fn what_the_image_already_has_is_left_as_it_is() {
    let from = everything();
    let archive = pack_all(from.path());
    let inode = || fs::metadata(from.path().join("plain")).unwrap().ino();
    let (before, inode_before) = (tree(from.path()), inode());
    restore_all(&archive, from.path()).unwrap();
    assert_eq!((tree(from.path()), inode()), (before, inode_before));
}

#[test]
fn other_content_in_the_place_of_an_entry_is_an_error() {
    let from = TempDir::new().unwrap();
    write(&from.path().join("file"), 0o777, 1, b"content");
    let file = pack_all(from.path());
    let changes: [fn(&Path); 6] = [
        |path| write(path, 0o777, 1, b"longer content"),
        |path| write(path, 0o777, 2, b"content"),
        |path| write(path, 0o600, 1, b"content"),
        // A link of the same size, mode and time as the file.
        |path| {
            symlink("content", path).unwrap();
            let time = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        },
        |path| symlink("/dev/null", path).unwrap(),
        |path| fs::create_dir(path).unwrap(),
    ];
    for change in changes {
        let to = TempDir::new().unwrap();
        change(&to.path().join("file"));
        let before = tree(to.path());
        let error = restore_all(&file, to.path()).unwrap_err();
        assert!(error.to_string().contains(r#""source/file": File exists"#), "{error}");
        assert_eq!(tree(to.path()), before);
    }
    let from = TempDir::new().unwrap();
    symlink("target", from.path().join("link")).unwrap();
    let to = TempDir::new().unwrap();
    symlink("another", to.path().join("link")).unwrap();
    restore_all(&pack_all(from.path()), to.path()).unwrap_err();
}

#[test]
fn existing_directory_gets_the_mode_of_the_archive() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (dir, mode) in [(&from, 0o700), (&to, 0o755)] {
        fs::create_dir(dir.path().join("dir")).unwrap();
        fs::set_permissions(dir.path().join("dir"), Permissions::from_mode(mode)).unwrap();
    }
    restore_all(&pack_all(from.path()), to.path()).unwrap();
    assert_eq!(tree(to.path()), tree(from.path()));
}

fn name() -> impl Strategy<Value = OsString> {
    let byte = any::<u8>().prop_map(|byte| if byte == 0 || byte == b'/' { b'x' } else { byte });
    let few = prop::sample::select(&["a", "b", "c", "..."][..]).prop_map(OsString::from);
    let any = prop::collection::vec(byte, 1..130).prop_map(|name| match name.as_slice() {
        b"." | b".." => OsString::from("dots"),
        _ => OsString::from_vec(name),
    });
    prop_oneof![3 => few, 1 => any]
}

fn node() -> impl Strategy<Value = Node> {
    let size = prop_oneof![20 => prop::sample::select(&[0, 1, 511, 512, 513, 70_000][..]), 1 => Just(9 << 20)];
    let file = (0..=0o777_u32, -1_000_000_000..10_000_000_000_i64, size, any::<u8>());
    let file = file.prop_map(|(mode, mtime, size, byte)| Node::File { mode: mode | 0o400, mtime, content: vec![byte; size] });
    let target = prop::collection::vec(1..=255_u8, 1..300);
    prop_oneof![
        3 => file,
        1 => (0..=0o777_u32).prop_map(|mode| Node::Directory { mode: mode | 0o700 }),
        1 => target.prop_map(|target| Node::Link { target: OsString::from_vec(target).into() }),
    ]
}

fn create(dir: &Path, path: &[OsString], node: &Node) {
    let path = dir.join(path.iter().collect::<PathBuf>());
    // An earlier entry may be in the way.
    if fs::create_dir_all(path.parent().unwrap()).is_err() || fs::symlink_metadata(&path).is_ok() {
        return;
    }
    match node {
        Node::File { mode, mtime, content } => write(&path, *mode, *mtime, content),
        Node::Link { target } => symlink(target, &path).unwrap(),
        Node::Directory { mode } => {
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn trees_are_restored_as_they_were(
        nodes in prop::collection::vec((prop::collection::vec(name(), 1..5), node()), 0..40),
        is_reversed in any::<bool>(),
    ) {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        for (path, node) in &nodes {
            create(from.path(), path, node);
        }
        let archive = pack_all(from.path());
        let mut index = whole_index(&archive).unwrap();
        if is_reversed {
            index.frames.reverse();
        }
        for frame in &index.frames {
            restore(frame, bytes(&archive, frame), &[root(to.path())]).unwrap();
        }
        prop_assert_eq!(tree(to.path()), tree(from.path()));
        prop_assert!(pack_all(to.path()) == archive);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), is_forged in any::<bool>()) {
        let archive = if is_forged { tail(&bytes) } else { bytes.clone() };
        prop_assert!(matches!(index(&archive, archive.len() as u64, &LIMITS), Err(_) | Ok(Tail::Needs(_))));
        let to = TempDir::new().unwrap();
        let (frame, compressed) = frame(&bytes, Counts { entries: 1, content: 1 });
        restore(&frame, &compressed[..], &[root(to.path())]).unwrap_err();
    }
}
