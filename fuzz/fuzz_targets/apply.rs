//! Any bytes as a link, applied to a state in a file as the command-line tool does: if the link is
//! refused, the base's file is unchanged and no other file exists; if it is applied, the new file
//! holds the promised state.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::apply(data));
