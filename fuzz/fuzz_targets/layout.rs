//! Any text as `deltachain.layout`: R-LAY-01 refuses it, or the layout lists every tensor once,
//! under names that stay inside a directory, and writing it again gives the same text; memory is
//! linear in the text.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::layout(data));
