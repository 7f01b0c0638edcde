//! Any sequence of links, good or damaged: applied one by one, in one pass, or as patches of
//! memory, they give the same state or the same fault, and memory can be restored.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::sequence(data));
