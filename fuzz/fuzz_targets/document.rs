//! Any bytes as a document of a chain: refused by a rule, or written again as they were; memory in
//! proportion to them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::document(data));
