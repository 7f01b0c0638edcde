//! Locks that no exception of Python leaves taken.
//!
//! Python may raise an exception between any two instructions: the handler of a signal does, and so
//! does another thread (`PyThreadState_SetAsyncExc`). What such a lock guards is therefore taken in
//! native code, by `__enter__`, after which `with` has the end in hand; and if an exception comes
//! where `with` does not reach, the object that holds the lock goes, which gives the lock back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;

use crate::errors::usage;

/// The lock of an object that one call may use at a time. Taking it never waits.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct CallLock {
    is_taken: Arc<AtomicBool>,
}

#[pymethods]
impl CallLock {
    #[new]
    fn new() -> Self {
        Self {
            is_taken: Arc::default(),
        }
    }

    /// The context of one call, in which the call has the lock. `with` has to hold the only
    /// reference: an exception keeps what variables hold.
    fn call(&self) -> LockedCall {
        LockedCall {
            is_taken: Arc::clone(&self.is_taken),
            is_holder: AtomicBool::new(false),
        }
    }
}

/// A call that takes the lock when its `with` block begins, and has it until the block ends or the
/// object goes.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct LockedCall {
    is_taken: Arc<AtomicBool>,
    /// True while this call has the lock.
    is_holder: AtomicBool,
}

#[pymethods]
impl LockedCall {
    /// Takes the lock.
    ///
    /// # Errors
    /// USAGE if another call has it.
    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return Err(usage(py, "another thread is using it: one at a time", None));
        }
        self.is_holder.store(true, Ordering::Release);
        Ok(())
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.give_back();
    }
}

impl LockedCall {
    fn give_back(&self) {
        if self.is_holder.swap(false, Ordering::AcqRel) {
            self.is_taken.store(false, Ordering::Release);
        }
    }
}

impl Drop for LockedCall {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Something that the first to ask gets for good: a job that either its thread does, or the caller
/// who was interrupted before it was known that the thread runs.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Claim {
    owner: OnceLock<String>,
}

#[pymethods]
impl Claim {
    #[new]
    fn new() -> Self {
        Self {
            owner: OnceLock::new(),
        }
    }

    /// True if this is the name that was the first to ask, also when it asks again.
    fn belongs_to(&self, name: String) -> bool {
        *self.owner.get_or_init(|| name.clone()) == name
    }
}
