//! Any operations of a publisher, a follower and the maintenance of a chain, while any requests
//! fail: versions never go back, fork or get lost, the follower's directory is at one of them at
//! every instant, and after the faults every version can be built.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::store(data));
