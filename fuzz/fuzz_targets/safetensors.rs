//! Any bytes as a safetensors file: refused, or understood as the safetensors crate understands
//! them; memory is linear in the file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::safetensors(data));
