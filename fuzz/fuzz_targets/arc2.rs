//! Any bytes as a file of ARC, applied to a small base: refused with a class that says why, within
//! a bound of memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::arc2(data));
