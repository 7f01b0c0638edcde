//! Any bytes as header fields and a raw index behind valid checksums: writing accepted ones again
//! gives the same bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::reserialise(data));
