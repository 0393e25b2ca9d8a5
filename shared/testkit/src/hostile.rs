//! Archives that a tenant may offer to do harm, or that are merely broken. Each must be refused
//! with its own message, and no content of it may be found outside. They are generated, byte for
//! byte the same each time, and small: large content appears only when they are unpacked.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};

/// An archive that must be refused.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// Its attack, in a few words with dashes, which also serves as an object's name.
    pub name: &'static str,
    /// The whole file, at most 1 MiB.
    pub bytes: Vec<u8>,
    /// A part of the refusal's message, with the default limits.
    pub refusal: &'static str,
}

/// All archives. Names are unique.
#[must_use]
pub fn archives() -> Vec<Hostile> {
    [not_archives(), damaged(), sizes(), bombs(), extended_headers(), paths(), links(), kinds()].concat()
}

/// An archive with one file, in the form of common tools.
#[must_use]
pub fn honest() -> Vec<u8> {
    Tar::default().file("Pulumi.yaml", b"name: honest\nruntime: yaml\n").gzip()
}

fn hostile(name: &'static str, bytes: Vec<u8>, refusal: &'static str) -> Hostile {
    Hostile { name, bytes, refusal }
}

/// Files that are offered as an archive, as copied OCI artifacts and Helm's indexes are.
fn not_archives() -> Vec<Hostile> {
    let text = "not a gzip-compressed archive but text";
    let index = b"apiVersion: v1\nentries:\n  shop:\n    - name: shop\n      version: 1.0.0\n      urls: [shop-1.0.0.tgz]\n";
    vec![
        hostile("empty", vec![], "the archive is empty"),
        hostile("empty-gzip", gzip(b""), "the archive is empty"),
        hostile("text", b"this is not an archive\n".to_vec(), text),
        hostile("helm-index", index.to_vec(), text),
        hostile("oci-manifest", br#"{"schemaVersion":2,"layers":[]}"#.to_vec(), text),
        hostile("zip", b"PK\x03\x04\x14\0\0\0\x08\0rest".to_vec(), "not a gzip-compressed archive but a zip archive"),
        hostile("xz", b"\xfd7zXZ\0\0\x04rest".to_vec(), "not a gzip-compressed archive but an xz file"),
        hostile("zstd", b"\x28\xb5\x2f\xfd\x04\0rest".to_vec(), "not a gzip-compressed archive but a zstd file"),
        hostile("bzip2", b"BZh91AY&SYrest".to_vec(), "not a gzip-compressed archive but a bzip2 file"),
        hostile("noise", noise(4000), "not a gzip-compressed archive but something else"),
        hostile("gzipped-text", gzip(&index.repeat(20)), "the content is not a tar archive"),
        hostile("gzipped-noise", gzip(&noise(4000)), "the content is not a tar archive"),
        hostile("gzip-in-gzip", gzip(&honest()), "the content is not a tar archive"),
    ]
}

/// Archives that are damaged or cut, or with content behind their end that only some readers find.
fn damaged() -> Vec<Hostile> {
    let good = Tar::default().file("first", &noise(3000)).file("second", &noise(3000));
    let packed = good.clone().gzip();
    let changed = |from_end: usize| {
        let mut bytes = packed.clone();
        let at = bytes.len() - from_end;
        bytes[at] ^= 0x55;
        bytes
    };
    let cut = |at: usize| gzip(&good.0[..at]);
    let flipped = |at: usize| {
        let mut tar = good.clone();
        tar.0[at] ^= 1;
        tar.gzip()
    };
    let early = "the archive ends early";
    let deflate = "the archive is damaged: its compressed data or checksum is invalid";
    let more = "the archive has data after its end";
    let ended = || good.clone().end();
    vec![
        hostile("cut-in-gzip-header", packed[..7].to_vec(), early),
        hostile("cut-in-half", packed[..packed.len() / 2].to_vec(), early),
        hostile("cut-in-gzip-trailer", packed[..packed.len() - 4].to_vec(), early),
        hostile("cut-in-header", cut(4096 - 512 + 300), early),
        hostile("cut-in-content", cut(2000), early),
        hostile("cut-in-padding", cut(512 + 3010), early),
        hostile("cut-in-long-name", gzip(&Tar::default().entry(b'L', b"l", b"", 300, &[b'n'; 300]).0[..700]), early),
        hostile("wrong-crc", changed(6), deflate),
        hostile("wrong-length", changed(2), deflate),
        hostile("wrong-deflate", changed(3000), deflate),
        hostile("garbage-after-gzip", [packed.clone(), b"garbage behind it".to_vec()].concat(), deflate),
        hostile("wrong-header-checksum", flipped(4096 - 512 + 2), "the archive is damaged: a header's checksum is wrong"),
        hostile("garbage-after-end", gzip(&[ended().0, noise(700)].concat()), more),
        hostile("second-archive-after-end", gzip(&[ended().0, ended().0].concat()), more),
        hostile("second-archive-after-one-zero-block", gzip(&[good.clone().0, vec![0; 512], ended().0].concat()), more),
        hostile("second-archive-as-gzip-member", [packed.clone(), honest()].concat(), more),
    ]
}

/// False sizes: readers that believe different ones see different archives.
fn sizes() -> Vec<Hostile> {
    let with_size = |size: &[u8; 12]| {
        let mut header = header(b'0', b"file", b"", 0);
        header[124..136].copy_from_slice(size);
        Tar::default().block(&mut header, b"content").gzip()
    };
    let pax_size = |size: &str| Tar::default().pax(&[("size", size)]).file("file", b"content").gzip();
    let number = "the archive is damaged: a number in a header is malformed";
    let differs = "an entry has two different sizes";
    let too_large = "content is too large, the maximum is";
    vec![
        hostile("size-lies", Tar::default().entry(b'0', b"file", b"", 5000, b"content").gzip(), "the archive ends early"),
        hostile("size-no-number", with_size(b"0000000000x\0"), number),
        hostile("size-hexadecimal", with_size(b"0x000000007\0"), number),
        hostile("size-signed", with_size(b"-0000000007\0"), number),
        hostile("size-absent", with_size(&[0; 12]), number),
        hostile("size-negative", with_size(&[0xff; 12]), number),
        hostile("size-of-96-bits", with_size(b"\x80\0\0\x01\0\0\0\0\0\0\0\x07"), number),
        hostile("size-of-64-bits", with_size(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"), too_large),
        hostile("size-of-64-gib", with_size(b"777777777777"), too_large),
        hostile("pax-size-differs", pax_size("6"), differs),
        hostile("pax-size-hides-an-entry", smuggled(), differs),
        hostile("pax-size-overflows", pax_size("18446744073709551615"), differs),
        hostile("pax-size-negative", pax_size("-7"), differs),
        hostile(
            "directory-with-content",
            Tar::default().entry(b'5', b"dir", b"", 7, b"content").gzip(),
            "\"dir\" is not a file but has content",
        ),
        hostile(
            "directory-by-slash-with-content",
            Tar::default().file("dir/", b"content").gzip(),
            "\"dir/\" is not a file but has content",
        ),
        hostile(
            "link-with-content",
            Tar::default().entry(b'2', b"link", b"file", 7, b"content").gzip(),
            "\"link\" is not a file but has content",
        ),
    ]
}

/// An entry in what some readers take for the content of another: the header states no content, the
/// extended header some.
fn smuggled() -> Vec<u8> {
    Tar::default().pax(&[("size", "512")]).entry(b'0', b"outer", b"", 0, b"").file("smuggled", b"").gzip()
}

/// Small archives with large content.
fn bombs() -> Vec<Hostile> {
    const MIB: usize = 1 << 20;
    let too_dense = "archive inflates too much, the maximum is 200 times its size";
    let zeros = Tar::default().file("zeros", &vec![0; 2 * MIB]).gzip();
    let header_bomb =
        |kind: u8| Tar::default().entry(kind, b"h", b"", 1 + (1 << 20), &vec![b'n'; 1 + MIB]).file("file", b"").gzip();
    let headers = "extended header is too large, the maximum is";
    let many = (0..2050).fold(Tar::default(), |tar, n| tar.file(&format!("{n:04}{}/f", "/d".repeat(47)), b""));
    let members = [gzip(&Tar::default().file("zeros", &vec![0; 2 * MIB]).0[..512]), gzip(&vec![0; MIB / 4]).repeat(8)].concat();
    let behind = [Tar::default().file("file", b"").end().0, vec![0; 2 * MIB]].concat();
    let long = (0..580).fold(Tar::default(), |tar, n| tar.file(&format!("{n:04}{}", "/ddddddddddddddd".repeat(62)), b""));
    let control = (0..2900).fold(Tar::default(), |tar, n| tar.file(&format!("{n:04}{}", "\u{1}".repeat(990)), b""));
    let deep = format!("{}f", "d/".repeat(100));
    vec![
        hostile("too-dense", zeros, too_dense),
        hostile("too-dense-behind-the-end", gzip(&behind), too_dense),
        hostile("too-dense-in-many-members", members, too_dense),
        hostile(
            "too-large",
            Tar::default().entry(b'0', b"file", b"", 1 << 32, b"content").gzip(),
            "content is too large, the maximum is",
        ),
        hostile("too-large-in-sum", too_large_in_sum(), "content is too large, the maximum is"),
        hostile("long-name-bomb", header_bomb(b'L'), headers),
        hostile("long-link-bomb", header_bomb(b'K'), headers),
        hostile("pax-bomb", header_bomb(b'x'), headers),
        hostile("global-pax-bomb", header_bomb(b'g'), headers),
        hostile("too-many-entries", many.gzip(), "too many files and directories, the maximum is 100000"),
        hostile("paths-too-long-in-sum", long.gzip(), "paths together are too long, the maximum is 16777216 bytes"),
        hostile("control-characters", control.gzip(), "paths together are too long, the maximum is 16777216 bytes"),
        hostile("too-deep", Tar::default().file(&deep, b"").gzip(), "has too many parts, the maximum is 64"),
        hostile("path-too-long", Tar::default().file(&"n".repeat(2000), b"").gzip(), "is too long, the maximum is 1024 bytes"),
        hostile(
            "target-too-long",
            Tar::default().link("link", &"n".repeat(2000)).gzip(),
            "target of the link \"link\" is too long, the maximum is 1024 bytes",
        ),
        hostile("link-maze", maze().gzip(), "the links take too long to follow"),
    ]
}

/// No file is too large, but all together are.
fn too_large_in_sum() -> Vec<u8> {
    Tar::default().file("first", &[0; 4000]).entry(b'0', b"second", b"", (256 << 20) - 2000, b"").gzip()
}

/// Each link is below the limit, but following all of them takes long.
fn maze() -> Tar {
    let (down, up) = ("d/".repeat(16), "../".repeat(16));
    let chain = (1..39).map(|n| (format!("{down}c{n:02}"), format!("{up}{down}c{:02}", n - 1)));
    let ways = (0..3600).map(|n| (format!("{down}w{n:04}"), format!("{up}{down}c38")));
    chain.chain(ways).fold(Tar::default(), |tar, (name, target)| tar.link(&name, &target))
}

/// Headers of the next entry that readers understand differently.
fn extended_headers() -> Vec<Hostile> {
    let pax = |records: &[(&str, &str)]| Tar::default().pax(records).file("file", b"content").gzip();
    let raw =
        |content: &[u8]| Tar::default().entry(b'x', b"h", b"", content.len() as u64, content).file("file", b"content").gzip();
    let global = |key: &str, value: &str| {
        let content = records(&[(key, value)]);
        Tar::default().entry(b'g', b"h", b"", content.len() as u64, &content).file("file", b"content").gzip()
    };
    let malformed = "the archive is damaged: an extended header is malformed";
    let path_twice = "the path of an entry occurs twice";
    let parent = "the path \"../outside\" contains `..`";
    let long = |kind: u8, name: &[u8]| Tar::default().entry(kind, b"././@LongLink", b"", name.len() as u64, name);
    let nothing = "the archive is damaged: a header describes an entry that does not follow";
    vec![
        hostile("pax-path-leaves", pax(&[("path", "../outside")]), parent),
        hostile("long-name-leaves", long(b'L', b"../outside\0").file("file", b"").gzip(), parent),
        hostile(
            "pax-link-leaves",
            Tar::default().pax(&[("linkpath", "../outside")]).link("link", "inside").gzip(),
            "the link \"link\" leads outside of the tree",
        ),
        hostile(
            "long-link-leaves",
            long(b'K', b"/outside\0").link("link", "inside").gzip(),
            "the link \"link\" leads outside of the tree",
        ),
        hostile("pax-path-twice", pax(&[("path", "inside"), ("path", "../outside")]), path_twice),
        hostile(
            "pax-twice",
            Tar::default().pax(&[("path", "inside")]).pax(&[("path", "../outside")]).file("file", b"").gzip(),
            "the extended header of an entry occurs twice",
        ),
        hostile("pax-and-long-name", long(b'L', b"inside\0").pax(&[("path", "../outside")]).file("file", b"").gzip(), path_twice),
        hostile("pax-path-empty", pax(&[("path", "")]), "the path \"\" is empty"),
        hostile("pax-path-with-nul", pax(&[("path", "inside\0/../../outside")]), "contains a NUL"),
        hostile("pax-no-length", raw(b"path=../outside\n"), malformed),
        hostile("pax-wrong-length", raw(b"99 path=../outside\n"), malformed),
        hostile("pax-no-equals-sign", raw(b"8 path \n"), malformed),
        hostile("pax-behind-empty-line", raw(b"\n19 path=../outside\n"), malformed),
        hostile("pax-record-in-a-record", raw(b"34 comment=x\n19 path=../outside\n"), malformed),
        hostile("pax-describes-nothing", Tar::default().file("file", b"").pax(&[("path", "other")]).gzip(), nothing),
        hostile("global-path", global("path", "../outside"), "a global header has the path of all entries"),
        hostile("global-link", global("linkpath", "../outside"), "a global header has the link of all entries"),
        hostile("global-size", global("size", "0"), "a global header has the size of all entries"),
        hostile(
            "pax-sparse",
            pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "../outside")]),
            "\"file\" is a sparse file",
        ),
        hostile(
            "pax-sparse-old",
            pax(&[("GNU.sparse.map", "0,1"), ("GNU.sparse.size", "99999999999")]),
            "\"file\" is a sparse file",
        ),
    ]
}

/// Names that are not a place in the tree.
fn paths() -> Vec<Hostile> {
    let file = |name: &str| Tar::default().file(name, b"content").gzip();
    let two = |first: &str, second: &str| Tar::default().file(first, b"1").file(second, b"2").gzip();
    let not_a_directory = "the path \"a\" is used as a directory but is not one";
    let twice = "the path \"a/x\" occurs twice";
    let raw = |name: &[u8]| Tar::default().entry(b'0', name, b"", 0, b"").gzip();
    vec![
        hostile("absolute", file("/etc/cron.d/outside"), "the path \"/etc/cron.d/outside\" is absolute"),
        hostile(
            "absolute-directory",
            Tar::default().entry(b'5', b"//outside/", b"", 0, b"").gzip(),
            "the path \"//outside/\" is absolute",
        ),
        hostile("parent-first", file("../outside"), "the path \"../outside\" contains `..`"),
        hostile("parent-in-the-middle", file("a/../../outside"), "the path \"a/../../outside\" contains `..`"),
        hostile("parent-last", file("a/b/.."), "the path \"a/b/..\" contains `..`"),
        hostile("parent-only", file(".."), "the path \"..\" contains `..`"),
        hostile(
            "parent-directory",
            Tar::default().entry(b'5', b"a/../../", b"", 0, b"").gzip(),
            "the path \"a/../../\" contains `..`",
        ),
        hostile("backslash", file("a\\..\\..\\outside"), "contains a backslash"),
        hostile("no-name", file(""), "the path \"\" is empty"),
        hostile("root-as-a-file", file("./."), "the path \"./.\" is empty"),
        hostile("name-not-utf8", raw(b"caf\xe9"), "is not UTF-8"),
        hostile("name-overlong-utf8", raw(b"\xc0\xae\xc0\xae/outside"), "is not UTF-8"),
        hostile("file-twice", two("a/x", "a/x"), twice),
        hostile("file-twice-in-other-words", two("a/x", "./a//x"), twice),
        hostile("file-then-directory", Tar::default().file("a/x", b"").entry(b'5', b"a/x", b"", 0, b"").gzip(), twice),
        hostile("directory-then-file", Tar::default().entry(b'5', b"a/x/", b"", 0, b"").file("a/x", b"").gzip(), twice),
        hostile("file-in-a-file", two("a", "a/x"), not_a_directory),
        hostile(
            "project-in-two-cases",
            two("app/Pulumi.yaml", "app/pulumi.YAML"),
            "the paths \"app/Pulumi.yaml\" and \"app/pulumi.YAML\" differ only in case",
        ),
        hostile(
            "project-in-two-directories",
            two("App/Pulumi.dev.yaml", "app/Pulumi.dev.yaml"),
            "the paths \"App/Pulumi.dev.yaml\" and \"app/Pulumi.dev.yaml\" differ only in case",
        ),
    ]
}

/// Links that point outside, alone or together, and files that would be written through them.
fn links() -> Vec<Hostile> {
    let leaves = "leads outside of the tree";
    let tar = Tar::default;
    let through = "the path \"a\" is used as a directory but is not one";
    let many = "leads through too many links";
    let chain = (0..50).fold(tar(), |tar, n| tar.link(&format!("l{n:02}"), &format!("l{:02}", n + 1)));
    vec![
        hostile("link-absolute", tar().link("link", "/etc/passwd").gzip(), leaves),
        hostile("link-to-parent", tar().link("link", "..").gzip(), leaves),
        hostile("link-relative", tar().link("a/link", "b/../../../outside").gzip(), leaves),
        hostile("link-through-a-link", tar().link("a/up", "..").link("link", "a/up/../outside").gzip(), leaves),
        hostile("link-through-a-later-link", tar().link("link", "up/..").link("up", "a/b/../../..").gzip(), leaves),
        hostile("link-loop", tar().link("a", "b").link("b", "a").gzip(), many),
        hostile("link-to-itself", tar().link("a", "./a").gzip(), many),
        hostile("link-chain", chain.gzip(), many),
        hostile("file-through-a-link", tar().link("a", "b").file("a/x", b"").gzip(), through),
        hostile("file-through-an-absolute-link", tar().link("a", "/tmp").file("a/x", b"").gzip(), through),
        hostile("link-in-place-of-a-directory", tar().file("a/x", b"").link("a", "/tmp").gzip(), "the path \"a\" occurs twice"),
        hostile("link-then-file", tar().link("a", "b").file("a", b"").gzip(), "the path \"a\" occurs twice"),
        hostile("link-to-nothing", tar().link("link", "").gzip(), "the target of the link \"link\" is empty"),
        hostile(
            "link-with-backslash",
            tar().link("link", "..\\outside").gzip(),
            "the target of the link \"link\" contains a backslash",
        ),
        hostile(
            "link-not-utf8",
            tar().entry(b'2', b"link", b"caf\xe9", 0, b"").gzip(),
            "the target of the link \"link\" is not UTF-8",
        ),
        hostile(
            "link-with-nul",
            tar().pax(&[("linkpath", "in\0side")]).link("link", "x").gzip(),
            "the target of the link \"link\" contains a NUL",
        ),
        hostile("hard-link-in", tar().file("a", b"").entry(b'1', b"b", b"a", 0, b"").gzip(), "\"b\" is a hard link"),
        hostile("hard-link-out", tar().entry(b'1', b"b", b"/etc/shadow", 0, b"").gzip(), "\"b\" is a hard link"),
    ]
}

/// Entries that are not files.
fn kinds() -> Vec<Hostile> {
    let kind = |kind: u8| Tar::default().entry(kind, b"x", b"", 0, b"").gzip();
    let sparse = {
        let mut header = header(b'S', b"x", b"", 0);
        header[257..265].copy_from_slice(b"ustar  \0");
        header[386..410].copy_from_slice(b"00000000000\x0000000001000\0");
        header[483..495].copy_from_slice(b"77777777777\0");
        Tar::default().block(&mut header, b"").gzip()
    };
    vec![
        hostile("character-device", kind(b'3'), "\"x\" is a character device"),
        hostile("block-device", kind(b'4'), "\"x\" is a block device"),
        hostile("pipe", kind(b'6'), "\"x\" is a named pipe"),
        hostile("unknown-kind", kind(b'Z'), "\"x\" is an entry of an unknown kind"),
        hostile("volume-label", kind(b'V'), "\"x\" is an entry of an unknown kind"),
        hostile("multi-volume", kind(b'M'), "\"x\" is an entry of an unknown kind"),
        hostile("sparse", sparse, "\"x\" is a sparse file"),
    ]
}

/// Writes tar archives entry by entry, without checks.
#[derive(Clone, Default)]
pub struct Tar(Vec<u8>);

impl Tar {
    /// Adds an entry of the kind (tar's type flag) whose header states `size`, whatever its content
    /// is. A name or link that does not fit into the header is cut.
    #[must_use]
    pub fn entry(self, kind: u8, name: &[u8], link: &[u8], size: u64, content: &[u8]) -> Self {
        self.block(&mut header(kind, name, link, size), content)
    }

    /// Adds a plain file.
    #[must_use]
    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.long(b"path", name).entry(b'0', name.as_bytes(), b"", content.len() as u64, content)
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(self, name: &str, target: &str) -> Self {
        self.long(b"linkpath", target).entry(b'2', name.as_bytes(), target.as_bytes(), 0, b"")
    }

    /// Adds a PAX header with these records for the next entry.
    #[must_use]
    pub fn pax(self, of_next: &[(&str, &str)]) -> Self {
        let content = records(of_next);
        self.entry(b'x', b"PaxHeaders/x", b"", content.len() as u64, &content)
    }

    /// Adds a header with its checksum computed, and content with its padding.
    #[must_use]
    pub fn block(mut self, header: &mut [u8; 512], content: &[u8]) -> Self {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend(&*header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// Adds the end of the archive.
    #[must_use]
    pub fn end(mut self) -> Self {
        self.0.resize(self.0.len() + 1024, 0);
        self
    }

    /// The bytes so far.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }

    /// The whole archive, with its end, compressed.
    #[must_use]
    pub fn gzip(self) -> Vec<u8> {
        gzip(&self.end().0)
    }

    fn long(self, key: &[u8], value: &str) -> Self {
        match std::str::from_utf8(key) {
            Ok(key) if value.len() > 100 => self.pax(&[(key, value)]),
            _ => self,
        }
    }
}

fn header(kind: u8, name: &[u8], link: &[u8], size: u64) -> [u8; 512] {
    let mut header = [0; 512];
    let (name, link) = (&name[..name.len().min(100)], &link[..link.len().min(100)]);
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000000\0");
    header[116..124].copy_from_slice(b"0000000\0");
    header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link);
    header[257..265].copy_from_slice(b"ustar\x0000");
    header
}

/// PAX's form: the length of the record, its own digits included, then key and value.
fn records(records: &[(&str, &str)]) -> Vec<u8> {
    let record = |(key, value): &(&str, &str)| {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while rest + length.to_string().len() != length {
            length = rest + length.to_string().len();
        }
        format!("{length} {key}={value}\n").into_bytes()
    };
    records.iter().flat_map(record).collect()
}

/// Compresses with the best ratio of gzip.
///
/// # Panics
/// Never: memory accepts every write.
#[must_use]
#[expect(clippy::expect_used, reason = "memory takes every write")]
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).and_then(|()| encoder.finish()).expect("memory takes every write")
}

/// Incompressible bytes, the same each time. They start like no known format.
fn noise(length: usize) -> Vec<u8> {
    let mut state: u64 = 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}
