//! Counts the memory that a piece of work needs, with an allocator for the programs that link this
//! crate.
//!
//! The allocator counts what Rust code allocates, but not the memory that zstd allocates for
//! itself, about 160 KiB for a decompression.

use std::sync::Once;

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work`; also returns the peak of allocated bytes above those allocated before, in all
/// threads.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    (result, ALLOCATOR.peak_usage().saturating_sub(before) as u64)
}

/// Makes the library work in the calling thread from now on. It is the only thread that runs
/// targets: small inputs run faster, and no other thread's memory is counted.
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
