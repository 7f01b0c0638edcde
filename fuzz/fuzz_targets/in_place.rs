//! Any sequence of links with or without sums, good or damaged, in place of memory that is the base
//! or not quite: it leads to the target or is refused, and whoever executes the plans gets the
//! same.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::in_place(data));
