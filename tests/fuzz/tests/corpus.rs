//! Every input of the corpus, through its target.

#![allow(clippy::unwrap_used, reason = "this is a test; clippy only knows its test functions")]

use std::{collections::BTreeSet, fs, path::Path};

use driftless_fuzz::TARGETS;

#[test]
fn every_target_holds_for_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folders: BTreeSet<_> = fs::read_dir(&corpus).unwrap().map(|folder| folder.unwrap().file_name()).collect();
    assert_eq!(folders, TARGETS.iter().map(|(name, _)| name.into()).collect());
    for (name, check) in TARGETS {
        let inputs: Vec<_> = fs::read_dir(corpus.join(name)).unwrap().map(|input| input.unwrap().path()).collect();
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            println!("{}", input.display());
            check(&fs::read(input).unwrap());
        }
        check(b"");
    }
}
