//! Links of which header fields, index or single streams were mutated and every length and checksum
//! was made right again: refused by a rule, or every way of reading them agrees: check, apply to
//! the right base, patches in order, patches by range. No result is passed off that is not the
//! state that the header promises.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    deltachain_fuzz::mutate(data, size, max_size, seed, fuzzer_mutate)
});

fuzz_target!(|data: &[u8]| deltachain_fuzz::reseal(data));
