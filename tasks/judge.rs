//! Chooses one of the library's mutants. `tasks/judge.py` adds this to a copy of the library, with
//! the number of changed functions.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The mutant that the library is; 0 for none.
static CHOSEN: AtomicU32 = AtomicU32::new(0);
/// For each function that has mutants: true if it has been called.
static REACHED: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];

/// Makes the library one of its mutants.
pub fn choose(mutant: u32) {
    CHOSEN.store(mutant, Ordering::Relaxed);
}

/// Returns the mutant that is to run instead of this function.
#[inline]
pub(crate) fn instead_of(function: usize) -> u32 {
    REACHED[function].store(true, Ordering::Relaxed);
    CHOSEN.load(Ordering::Relaxed)
}

/// Forgets which functions have been called.
pub fn forget() {
    for function in &REACHED {
        function.store(false, Ordering::Relaxed);
    }
}

/// The functions that have been called.
pub fn reached() -> impl Iterator<Item = usize> {
    (0..FUNCTIONS).filter(|&function| REACHED[function].load(Ordering::Relaxed))
}
