//! Any bytes as a segment of any parts, behind no checksum: refused by a rule, or decoded within a
//! bound that follows from its streams; its table is written again with the same bytes, and it
//! changes no more lanes than it codes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::segment(data));
