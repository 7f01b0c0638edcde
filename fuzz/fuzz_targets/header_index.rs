//! Any bytes as the header and index of a link: accepted, or refused by a rule, within the
//! published bound of memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::header_index(data));
