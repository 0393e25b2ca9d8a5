//! Digests, the unpacking of untrusted archives, and the stored form of a tree.
//!
//! A tree is stored as two objects. The *manifest* is a JSON document that lists every file with
//! its size, SHA-256 and position in the pack; the *pack* is the files' content, one after the
//! other in the order of their paths, so that any directory is one ranged read. The same tree
//! always makes the same two objects, byte for byte.
//!
//! Two passes keep memory bounded whatever the archive: [`unpack`] (or [`Builder`]) checks every
//! entry and appends its content to a *spool*, a scratch file of the caller's, in the order of
//! arrival; if that is not the order of paths ([`Tree::is_in_order`]), [`Tree::write_pack`] then
//! copies from the spool.
//!
//! **Invariant:** no code here opens a file, a socket or a clock, and [`unpack`] only returns paths
//! within the tree.

mod archive;
mod digest;
mod limits;
mod manifest;
mod path;
mod refusal;
mod tree;

pub use archive::unpack;
pub use digest::{Algorithm, Digest, DigestMismatch, Hasher, InvalidDigest, Verifier};
pub use limits::Limits;
pub use manifest::{Directory, File, InvalidManifest, MANIFEST_VERSION, Manifest};
pub use refusal::Refusal;
pub use tree::{Builder, Error, Tree};
