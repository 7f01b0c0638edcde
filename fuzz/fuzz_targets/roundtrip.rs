//! Any state and any change of it: links of both profiles and the snapshot give the target bit for
//! bit; the same input gives the same link; application, patches in order and patches by range
//! agree.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::roundtrip(data));
