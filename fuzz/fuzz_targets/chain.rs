//! Any objects as the store of a chain: the planner ends after a number of steps that follows from
//! their length, plans are paths, and following them gives the state of the commit, whatever was
//! held, missing, damaged or met first.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    deltachain_fuzz::mutate_chain(data, size, max_size, seed, fuzzer_mutate)
});

fuzz_target!(|data: &[u8]| deltachain_fuzz::chain(data));
