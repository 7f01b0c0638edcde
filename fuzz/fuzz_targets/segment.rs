//! Any bytes as a segment with any parts, without a checksum: refused by a rule, or decoded within
//! a bound that follows from its streams; writing its table again gives the same bytes, and it
//! changes no more lanes than it codes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::segment(data));
