//! Properties of all code that reads untrusted bytes. Each target is a function that panics if a
//! property is broken: libFuzzer calls it with generated inputs (`make fuzz`), and `cargo test`
//! with those in `corpus/`.

#![allow(clippy::expect_used, clippy::panic, clippy::missing_panics_doc, reason = "a broken promise is a panic, as in a test")]

pub mod archive;
mod contract;
mod git;
mod input;
mod kubeconfig;
mod objects;
mod recorder;
mod runner;
mod text;
mod webhook;

/// A target. It panics if the input breaks a property.
pub type Check = fn(&[u8]);

/// The targets, by the name of their corpus.
pub const TARGETS: [(&str, Check); 16] = [
    ("archive", archive::check),
    ("contract", contract::check),
    ("dotenv", runner::dotenv),
    ("events", runner::events),
    ("git", git::conversation),
    ("kubeconfig", kubeconfig::check),
    ("manifest", archive::manifest),
    ("objects", objects::check),
    ("output", runner::output),
    ("pack", git::pack),
    ("quantity", text::quantity),
    ("recorder", recorder::check),
    ("schedule", text::schedule),
    ("status", objects::status),
    ("urls", text::urls),
    ("webhook", webhook::check),
];
