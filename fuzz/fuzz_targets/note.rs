//! Any bytes as a note on a commit: it counts for a key only by the line that the key's owner would
//! write. As a key: written again as it was.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::note(data));
