//! Any bytes as a document of a chain: a rule refuses them, or writing the document again gives the
//! same bytes; memory is proportional to them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::document(data));
