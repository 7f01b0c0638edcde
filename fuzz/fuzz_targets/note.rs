//! Any bytes as a note on a commit: it counts for a key only if it has the one line that the key's
//! owner would write. As a key: writing it again gives the same text.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::note(data));
