//! The archives of the testkit through the target for archives: cut, and with some bytes changed,
//! without a fuzzer.

#![allow(clippy::unwrap_used, reason = "this is a test; clippy only knows its test functions")]

use std::{io::Read, sync::LazyLock};

use driftless_fuzz::archive::check;
use driftless_testkit::hostile::{Hostile, archives, gzip, honest};
use flate2::read::MultiGzDecoder;
use proptest::prelude::*;

static ARCHIVES: LazyLock<Vec<Hostile>> = LazyLock::new(archives);

#[test]
fn every_hostile_archive_cut_anywhere_is_refused_or_a_tree() {
    for hostile in ARCHIVES.iter() {
        let bytes = &hostile.bytes[..hostile.bytes.len().min(20_000)];
        for cut in 0..8 {
            check(&bytes[..bytes.len() * cut / 8]);
        }
        check(&hostile.bytes);
    }
    check(&honest());
}

/// A small archive with some bytes changed, before it is compressed or after.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let small: Vec<Vec<u8>> = ARCHIVES.iter().map(|hostile| hostile.bytes.clone()).filter(|bytes| bytes.len() < 5000).collect();
    let plain: Vec<Vec<u8>> = small.iter().chain([&honest()]).filter_map(|bytes| inflated(bytes)).collect();
    let seed = proptest::sample::select([small, plain].concat());
    let change = (any::<proptest::sample::Index>(), any::<u8>());
    (seed, proptest::collection::vec(change, 0..6)).prop_map(|(mut bytes, changes)| {
        for (at, with) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
        }
        bytes
    })
}

fn inflated(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(bytes).take(30_000).read_to_end(&mut plain);
    read.is_ok().then_some(plain)
}

proptest! {
    #[test]
    fn mutated_archive_is_refused_or_a_tree(archive in mutated()) {
        check(&archive);
        check(&gzip(&archive));
    }
}
