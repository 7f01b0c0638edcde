//! How much memory something needs: a counting allocator, for the programs that link this crate.
//!
//! It counts what Rust code asks for. What zstd allocates for itself, about 160 KiB for a
//! decompression, is not seen.

use std::sync::Once;

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Does `work`; also returns the peak of allocated bytes above those allocated before. Counts all
/// threads.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    (result, ALLOCATOR.peak_usage().saturating_sub(before) as u64)
}

/// From now on the library works in the thread that calls this, which is the only one to run
/// targets: that is faster for small inputs, and memory is counted without others taking part.
pub(crate) fn single_threaded() {
    static POOL: Once = Once::new();
    POOL.call_once(|| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .use_current_thread();
        pool.build_global()
            .expect("no thread pool has been used before");
    });
}
