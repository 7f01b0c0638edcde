//! Links whose header fields, index or single streams were mutated, with all lengths and checksums
//! corrected: a rule refuses them, or every way of reading them agrees: check, apply to the right
//! base, patches in order, patches by range. No reader returns another state than the header
//! promises.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    deltachain_fuzz::mutate(data, size, max_size, seed, fuzzer_mutate)
});

fuzz_target!(|data: &[u8]| deltachain_fuzz::reseal(data));
