//! Any bytes as a link that is checked (SPEC.md section 10): accepted, or refused by a rule, within
//! the published bound of memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::link(data));
