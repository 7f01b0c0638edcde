//! Any sequence of links with or without sums, good or damaged, applied in place to memory that is
//! the base or nearly so: the result is the target, or the links are refused, and every executor of
//! the plans gets the same result.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::in_place(data));
