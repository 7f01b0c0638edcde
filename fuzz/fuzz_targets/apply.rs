//! Any bytes as a link, applied to a state in a file as the command-line tool does: if it is
//! refused, the base's file is what it was and nothing else is there; if it is applied, the new
//! file holds the state that was promised.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::apply(data));
