//! Protects the library's threads when the interpreter ends: none may wait for the interpreter's
//! lock then, because Python ends such threads in a way that Rust cannot survive.
//!
//! A thread that Python did not start enters the gate before it takes the lock, and so does a
//! caller's thread that takes the lock again after waiting for work. At exit the gate is closed: no
//! more threads enter, and the interpreter waits until the threads inside have left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use pyo3::prelude::*;

static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Maximum time that [`leave`] waits for running calls, which may be in the caller's code.
const PATIENCE: Duration = Duration::from_secs(10);

/// Guard of a thread that is inside the gate.
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Enters the gate, unless it is closed.
pub(crate) fn enter() -> Option<Inside> {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let inside = Inside(());
    (!CLOSED.load(Ordering::SeqCst)).then_some(inside)
}

/// True if the interpreter is about to end.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst)
}

/// Enters the gate. If it is closed, blocks until the process ends.
pub(crate) fn enter_or_wait() -> Inside {
    loop {
        if let Some(inside) = enter() {
            return inside;
        }
        thread::park();
    }
}

/// Runs `work` with the interpreter's lock, in a thread of this library.
///
/// # Errors
/// USAGE if the interpreter is about to end.
pub(crate) fn attach<T>(work: impl FnOnce(Python<'_>) -> T) -> Result<T> {
    let _inside = enter().ok_or_else(|| Error::usage("the interpreter is about to end"))?;
    Ok(Python::attach(work))
}

/// Closes the gate, and waits for the threads inside. Called when the interpreter is about to end.
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

/// Resets the count in the child after a fork, where the parent's threads do not exist.
#[pyfunction]
pub(crate) fn forked() {
    INSIDE.store(0, Ordering::SeqCst);
}
