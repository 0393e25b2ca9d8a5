//! The answers of git servers, and their packs.

use std::{
    io::{Cursor, Write as _, sink},
    sync::LazyLock,
    time::Duration,
};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use fetcher::git::{Bounds, Found, GitError, Wanted, talk};
use flate2::{Compression, write::ZlibEncoder};
use gix_hash::ObjectId;
use gix_transport::{
    Protocol,
    client::git::{ConnectMode, blocking_io::Connection},
};
use tokio::runtime::{Builder, Runtime};

use crate::archive::{LIMITS, sound};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// The input is everything that a server sends when asked for the branch `main`.
pub fn conversation(input: &[u8]) {
    if let Ok(found) = asked(input.to_vec()) {
        checked(found);
    }
}

/// The input is the objects of a pack, in a form without checksums and ids: see [`Object`]. The
/// server sends them correctly.
pub fn pack(input: &[u8]) {
    let (pack, commit) = packed(&Object::all(input));
    match asked(answers(&pack, commit)) {
        Ok(found) => assert_eq!(checked(found), commit),
        Err(error) => assert!(!matches!(error, GitError::Protocol { .. }), "{error}"),
    }
}

fn asked(answers: Vec<u8>) -> Result<Found, GitError> {
    let _entered = RUNTIME.enter();
    let host = None::<(&str, Option<u16>)>;
    let connection = Connection::new(Cursor::new(answers), sink(), Protocol::V2, "/r", host, ConnectMode::Process, false);
    let wanted = Wanted::Name { field: "spec.branch", name: "main".into() };
    let bounds = Bounds::new(1 << 20, Duration::from_mins(1));
    let found = talk(Box::new(connection), &bounds, &wanted, None, &LIMITS, &[String::new()].into());
    let found = found.inspect_err(|error| assert!(error.to_string().len() < 2000, "{error}"))?;
    Ok(found.expect("no commit is known"))
}

fn checked(Found { commit, tree: (_, tree, mut spool) }: Found) -> ObjectId {
    sound(&tree, &mut spool);
    commit
}

/// An object of a pack.
struct Object<'a> {
    /// Git's number of its type: 1 to 4 are commit, tree, blob and tag, 6 is a delta.
    kind: u8,
    /// The distance to the base of a delta, in objects.
    back: u8,
    /// The content, or the delta. In a tree, the byte 0xff and the next one stand for the id of the
    /// object of that number.
    content: &'a [u8],
}

impl<'a> Object<'a> {
    /// Each starts with its kind, `back` and the length of its content in two bytes.
    fn all(mut input: &'a [u8]) -> Vec<Self> {
        let mut objects = Vec::new();
        while let [kind, back, high, low, rest @ ..] = input
            && objects.len() < 64
        {
            let (content, rest) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes([*high, *low]))));
            objects.push(Self { kind: kind % 7, back: *back, content });
            input = rest;
        }
        objects
    }

    /// The content as it is packed.
    fn bytes(&self, ids: &[ObjectId]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut content = self.content.iter();
        while let Some(byte) = content.next() {
            match (self.kind, byte) {
                (2, 0xff) => {
                    let id = content.next().and_then(|number| ids.get(usize::from(*number)));
                    bytes.extend(id.map_or([0; 20].as_slice(), |id| id.as_bytes()));
                }
                _ => bytes.push(*byte),
            }
        }
        bytes
    }
}

/// The pack of these objects and of a commit of the last tree, and the commit's id.
fn packed(objects: &[Object<'_>]) -> (Vec<u8>, ObjectId) {
    let mut pack = b"PACK\0\0\0\x02".to_vec();
    pack.extend(u32::try_from(objects.len() + 1).expect("few objects").to_be_bytes());
    let (mut offsets, mut ids, mut tree) = (Vec::new(), Vec::new(), id("tree", b""));
    for object in objects {
        let content = object.bytes(&ids);
        let kind = ["blob", "commit", "tree", "blob", "tag", "blob", "blob"][usize::from(object.kind)];
        ids.push(id(kind, &content));
        if object.kind == 2 {
            tree = id(kind, &content);
        }
        let back = offsets.len().checked_sub(usize::from(object.back)).and_then(|base| offsets.get(base));
        let offset = pack.len();
        add(&mut pack, object.kind, back.map(|base| offset - base), &content);
        offsets.push(offset);
    }
    let commit = format!("tree {tree}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\n");
    add(&mut pack, 1, None, commit.as_bytes());
    let trailer = digest(&SHA1_FOR_LEGACY_USE_ONLY, &pack);
    pack.extend(trailer.as_ref());
    (pack, id("commit", commit.as_bytes()))
}

/// Adds an object to a pack; a delta names its base by the distance in bytes.
fn add(pack: &mut Vec<u8>, kind: u8, distance: Option<usize>, content: &[u8]) {
    let low = |number: usize| u8::try_from(number & 0x7f).expect("seven bits");
    let mut rest = content.len() >> 4;
    pack.push(kind << 4 | low(content.len() & 0xf) | if rest == 0 { 0 } else { 0x80 });
    while rest > 0 {
        pack.push(low(rest) | if rest > 0x7f { 0x80 } else { 0 });
        rest >>= 7;
    }
    if kind == 6 {
        let mut distance = distance.unwrap_or_default();
        let mut bytes = vec![low(distance)];
        while distance > 0x7f {
            distance = (distance >> 7) - 1;
            bytes.insert(0, low(distance) | 0x80);
        }
        pack.extend(bytes);
    }
    let mut zlib = ZlibEncoder::new(pack, Compression::fast());
    zlib.write_all(content).expect("memory");
    zlib.finish().expect("memory");
}

fn id(kind: &str, content: &[u8]) -> ObjectId {
    let object = [format!("{kind} {}\0", content.len()).as_bytes(), content].concat();
    ObjectId::from_bytes_or_panic(digest(&SHA1_FOR_LEGACY_USE_ONLY, &object).as_ref())
}

/// A server's capabilities, its branch and the pack, in version 2 of the protocol.
fn answers(pack: &[u8], commit: ObjectId) -> Vec<u8> {
    let line = |content: &[u8]| [format!("{:04x}", content.len() + 4).as_bytes(), content].concat();
    let mut answers = Vec::new();
    for said in [&b"version 2\n"[..], b"ls-refs=unborn\n", b"fetch=shallow\n", b"object-format=sha1\n"] {
        answers.extend(line(said));
    }
    answers.extend(b"0000");
    answers.extend(line(format!("{commit} refs/heads/main\n").as_bytes()));
    answers.extend(b"0000");
    answers.extend(line(b"shallow-info\n"));
    answers.extend(line(format!("shallow {commit}").as_bytes()));
    answers.extend(b"0001");
    answers.extend(line(b"packfile\n"));
    for piece in pack.chunks(60_000) {
        answers.extend(line(&[&[1], piece].concat()));
    }
    answers.extend(b"0000");
    answers
}
