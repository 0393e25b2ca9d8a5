//! Writes the corpus of hostile archives into a folder, as seeds for the fuzzer and for whoever wants to look at them:
//! `cargo run --package driftless-source --example corpus FOLDER`.

use std::{env, fs, io, path::PathBuf};

use driftless_testkit::hostile;

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or_else(|| io::Error::other("name a folder"))?);
    fs::create_dir_all(&folder)?;
    for hostile in hostile::archives() {
        fs::write(folder.join(hostile.name), hostile.bytes)?;
    }
    fs::write(folder.join("honest"), hostile::honest())
}
