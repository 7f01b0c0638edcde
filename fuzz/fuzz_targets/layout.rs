//! Any text as `deltachain.layout`: refused by R-LAY-01, or a layout that lists every tensor once,
//! under names that stay inside a directory, and that is written again as it was; memory is linear
//! in the text.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltachain_fuzz::layout(data));
