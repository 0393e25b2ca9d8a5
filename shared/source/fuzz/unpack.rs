//! The fuzzer of [`driftless_source::unpack`]. What it checks also runs in `cargo test`, see `../tests/hostile.rs`.
#![no_main]

mod check;

libfuzzer_sys::fuzz_target!(|archive: &[u8]| {
    check::check(archive);
    check::check(&check::sealed(archive.to_vec()));
});
