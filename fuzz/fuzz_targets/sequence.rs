//! Any sequence of states: the links between them, joined, give the last state, as applying them in order does,
//! with or without comparing digests on the way.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::sequence(data));
