//! The end of the interpreter: no thread of this library may wait for the interpreter's lock when
//! it has gone, because Python ends threads that do so in a way that Rust cannot survive.
//!
//! A thread that is not Python's own goes through the gate before it takes the lock. At exit the
//! gate is closed: the threads inside come out first, and no other one enters.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use pyo3::prelude::*;

static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Time that the end waits for calls under way, which may be in the caller's code.
const PATIENCE: Duration = Duration::from_secs(10);

/// Being inside.
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Enters, unless the gate is closed.
pub(crate) fn enter() -> Option<Inside> {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let inside = Inside(());
    (!CLOSED.load(Ordering::SeqCst)).then_some(inside)
}

/// Whether the interpreter is about to end.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst)
}

/// Enters; where the gate is closed, the thread waits for the process to end.
pub(crate) fn enter_or_wait() -> Inside {
    loop {
        if let Some(inside) = enter() {
            return inside;
        }
        thread::park();
    }
}

/// Takes the interpreter's lock in a thread of this library.
///
/// # Errors
/// USAGE if the interpreter is about to end.
pub(crate) fn attach<T>(work: impl FnOnce(Python<'_>) -> T) -> Result<T> {
    let _inside = enter().ok_or_else(|| Error::usage("the interpreter is about to end"))?;
    Ok(Python::attach(work))
}

/// Closes the gate, and waits for those inside. Called when the interpreter is about to end.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) {
    CLOSED.store(true, Ordering::SeqCst);
    py.detach(|| {
        let began = Instant::now();
        while INSIDE.load(Ordering::SeqCst) > 0 && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Threads of the parent are not in a child. Called in the child after a fork.
#[pyfunction]
pub(crate) fn forked() {
    INSIDE.store(0, Ordering::SeqCst);
}
