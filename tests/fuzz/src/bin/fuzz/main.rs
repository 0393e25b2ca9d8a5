//! libFuzzer on the target that `FUZZ_TARGET` names; see `tests/fuzz/run`.
#![no_main]

mod json;

use std::{env, sync::LazyLock};

use driftless_fuzz::TARGETS;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static CHECK: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = env::var("FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?}; name one of tests/fuzz/corpus")).1
});

fuzz_target!(|input: &[u8]| CHECK(input));

// Half of the time JSON stays JSON, because the parser would refuse most changed bytes.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let changed = if seed % 2 == 0 { json::changed(&data[..size], seed / 2) } else { None };
    match changed.filter(|changed| changed.len() <= max_size) {
        Some(changed) => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
});
