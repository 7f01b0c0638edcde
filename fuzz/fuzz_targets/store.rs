//! Any operations of one who publishes, one who follows and one who maintains a chain, while any
//! requests fail: versions never go back, fork or get lost, the follower's directory is one of them
//! at every instant, and when the faults end each can be built.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::store(data));
