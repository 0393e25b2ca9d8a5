//! The archive in which the runner keeps what `pulumi install` installed, for the next task to
//! restore in parallel.
//!
//! | part | content |
//! | --- | --- |
//! | frames | each is a tar archive of whole entries, compressed with zstd: about 16 MiB of content, or one larger file |
//! | index | the origin, and place, digest and counts of each frame: JSON, compressed with zstd |
//! | footer | 48 bytes: magic and format version, length and SHA-256 of the compressed index |
//!
//! An entry is named `<root>/<path below the root>`. Entries are files, directories and symbolic
//! links. The digests find damage; they do not authenticate the archive, so every limit and every
//! path is checked as if an attacker had written it.

mod dirs;
mod pack;
mod restore;
#[cfg(test)]
mod tests;

use std::{
    error::Error,
    io::{self, BufReader, Read},
    ops::Add,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(crate) use self::{
    pack::{PackError, Packed, Selection, pack},
    restore::restore,
};

/// What the footer begins with: the magic, and the format version in its last byte.
const MAGIC: &[u8; 8] = b"driftpk1";
const FOOTER: usize = MAGIC.len() + 8 + 32;

/// The most frames of an archive.
const MAX_FRAMES: usize = 10_000;

/// The most bytes of an index, compressed or not.
const MAX_INDEX: u64 = 8 << 20;

/// The most bytes of an entry's name, and of a link's target: Linux takes no longer path.
const MAX_NAME: usize = 4096;

const LEVEL: i32 = 3;

/// The window of the compression level, 2 MiB. It bounds the memory of a decoder.
const WINDOW_LOG: u32 = 21;

/// A directory that entries lie below, under a name that is the same wherever the directory is.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
}

/// The largest archive that is written or read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of all files.
    pub(crate) content: u64,
    /// Files, directories and links.
    pub(crate) entries: u64,
    /// Bytes of the archive.
    pub(crate) archive: u64,
}

impl Limits {
    /// Returns the limit that is exceeded, and its unit.
    fn exceeded(&self, counts: Counts) -> Option<(&'static str, u64)> {
        let limits = [("bytes of content", self.content, counts.content), ("entries", self.entries, counts.entries)];
        limits.into_iter().find(|(_, limit, count)| count > limit).map(|(what, limit, _)| (what, limit))
    }
}

/// How much a frame or an archive contains.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Files, directories and links.
    pub(crate) entries: u64,
    /// Bytes of files.
    pub(crate) content: u64,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let content = self.content.saturating_add(other.content);
        Self { entries: self.entries.saturating_add(other.entries), content }
    }
}

/// What an archive contains.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    /// The packer's label, such as the digest of the image whose files the archive completes.
    pub(crate) origin: String,
    pub(crate) frames: Vec<Frame>,
}

impl Index {
    pub(crate) fn counts(&self) -> Counts {
        self.frames.iter().fold(Counts::default(), |sum, frame| sum + frame.counts)
    }
}

/// A part of an archive that is restored on its own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Frame {
    /// The first byte's position in the archive.
    pub(crate) offset: u64,
    /// Compressed bytes.
    pub(crate) size: u64,
    /// The digest of the compressed bytes, in hexadecimal digits.
    pub(crate) sha256: String,
    #[serde(flatten)]
    pub(crate) counts: Counts,
}

/// What the end of an archive says.
#[derive(Debug)]
pub(crate) enum Tail {
    Index(Index),
    /// The index begins earlier: so many of the archive's last bytes are needed.
    Needs(usize),
}

/// The archive is not as it was written, or exceeds the limits.
#[derive(Debug, thiserror::Error)]
#[error("archive is damaged: {0}")]
pub(crate) struct Damaged(Box<dyn Error + Send + Sync>);

fn damaged(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Damaged {
    Damaged(reason.into())
}

/// Reads the index from the last bytes of an archive of `size` bytes.
pub(crate) fn index(tail: &[u8], size: u64, limits: &Limits) -> Result<Tail, Damaged> {
    let smallest = FOOTER.max(tail.len()) as u64;
    if size < smallest || size > limits.archive {
        return Err(damaged(format!("its size is {size} bytes, not between {smallest} and {}", limits.archive)));
    }
    let Some((rest, footer)) = tail.split_last_chunk::<FOOTER>() else { return Ok(Tail::Needs(FOOTER)) };
    let Some((length, digest)) = footer.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk) else {
        return Err(damaged("its format is unknown"));
    };
    let length = u64::from_le_bytes(*length);
    let end = (size - FOOTER as u64).checked_sub(length).filter(|_| length <= MAX_INDEX);
    let (Some(end), Ok(length)) = (end, usize::try_from(length)) else { return Err(damaged("its index has an invalid length")) };
    let Some(start) = rest.len().checked_sub(length) else { return Ok(Tail::Needs(length + FOOTER)) };
    if Sha256::digest(&rest[start..])[..] != *digest {
        return Err(damaged("its index has another digest"));
    }
    let mut json = Vec::new();
    decoder(&rest[start..]).and_then(|decoder| decoder.take(MAX_INDEX + 1).read_to_end(&mut json)).map_err(damaged)?;
    if json.len() as u64 > MAX_INDEX {
        return Err(damaged(format!("its index has more than {MAX_INDEX} bytes")));
    }
    let index: Index = serde_json::from_slice(&json).map_err(damaged)?;
    if index.frames.len() > MAX_FRAMES {
        return Err(damaged(format!("it has more than {MAX_FRAMES} frames")));
    }
    if let Some((what, limit)) = limits.exceeded(index.counts()) {
        return Err(damaged(format!("it exceeds the limit of {limit} {what}")));
    }
    let follow = |offset: u64, frame: &Frame| offset.checked_add(frame.size).filter(|_| frame.offset == offset);
    if index.frames.iter().try_fold(0, follow) != Some(end) {
        return Err(damaged("its frames do not follow one another up to its index"));
    }
    Ok(Tail::Index(index))
}

fn decoder<R: Read>(compressed: R) -> io::Result<zstd::Decoder<'static, BufReader<R>>> {
    let mut decoder = zstd::Decoder::new(compressed)?;
    decoder.window_log_max(WINDOW_LOG)?;
    Ok(decoder)
}

fn hex(digest: Sha256) -> String {
    base16ct::lower::encode_string(&digest.finalize())
}
