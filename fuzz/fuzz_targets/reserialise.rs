//! Any bytes as header fields and raw index behind good checksums: what is accepted is written
//! again with the same bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::reserialise(data));
