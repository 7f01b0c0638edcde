//! How much memory something needs: a counting allocator, for the programs that link this crate.
//!
//! It counts what Rust code asks for. What zstd allocates for itself, about 160 KiB for a decompression, is not seen.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Does `work`; also returns the peak of allocated bytes above those allocated before. Counts all threads.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    (result, ALLOCATOR.peak_usage().saturating_sub(before) as u64)
}
