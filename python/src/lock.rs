//! Locks that are released after any Python exception.
//!
//! Python may raise an exception between any two instructions: from a signal handler, or from
//! another thread (`PyThreadState_SetAsyncExc`). The lock is therefore taken in native code, by
//! `__enter__`, after which `with` releases it. If an exception is raised where `with` does not run
//! `__exit__`, the object that holds the lock is freed, which releases the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;

use crate::errors::usage;

/// Lock of an object that only one call may use at a time. Taking the lock never waits.
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

    /// Returns the context manager of one call, which holds the lock within its `with` block.
    /// `with` must hold the only reference to it, because the traceback of an exception keeps the
    /// objects in variables alive.
    fn call(&self) -> LockedCall {
        LockedCall {
            is_taken: Arc::clone(&self.is_taken),
            is_holder: AtomicBool::new(false),
        }
    }
}

/// A call that takes the lock when its `with` block begins, and holds it until the block ends or
/// the object is freed.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct LockedCall {
    is_taken: Arc<AtomicBool>,
    /// True while this call holds the lock.
    is_holder: AtomicBool,
}

#[pymethods]
impl LockedCall {
    /// Takes the lock.
    ///
    /// # Errors
    /// USAGE if another call holds the lock.
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

/// A claim that belongs forever to the first name that asks for it. It decides whether a thread
/// does a job, or the caller that was interrupted before it knew that the thread runs.
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

    /// True if this name was the first to ask, also when it asks again.
    fn belongs_to(&self, name: String) -> bool {
        *self.owner.get_or_init(|| name.clone()) == name
    }
}
