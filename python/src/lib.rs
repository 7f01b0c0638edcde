//! `deltachain._native`: the library and the store library for Python. The public names, their
//! documentation and their types are in `deltachain/*.py`, which calls the functions here.

#![allow(
    clippy::needless_pass_by_value,
    clippy::unused_self,
    reason = "what Python calls takes values of its own, and gives every argument of the Python \
              side its place"
)]

#[cfg(target_os = "linux")]
mod allocator;
mod directory;
mod engines;
mod errors;
mod forms;
mod gate;
mod given;
mod lent;
mod link;
mod lock;
mod memory;
mod operations;
mod patches;
mod places;
mod publisher;
mod settings;
mod signing;
mod store;
mod stream;
mod subscriber;
mod sums;
mod tensors;
mod work;

use pyo3::prelude::*;

/// The native part of the package `deltachain`. Private: it may change in any release.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::{
        directory::{FoundVersion, find_version, is_managed, status},
        engines::{Servers, difference, fleet, misfit, version_name},
        errors::class_advice,
        forms::{TensorDigest, TensorForm},
        gate::{forked, leave},
        lent::FoundTensors,
        link::{Link, LinkTensor},
        lock::{CallLock, Claim, LockedCall},
        memory::Buffer,
        operations::{
            apply_files, apply_tensors, check_settings, diff, digest, open_link, write_file,
        },
        patches::{TensorPatch, compare},
        places::TensorPlace,
        publisher::{CheckpointTensor, Head, Publisher, Snapshot, checkpoint, divide},
        signing::{public_key, secret_key},
        store::Store,
        stream::{Stream, TensorData},
        subscriber::{Follower, HeldVersion, PieceSums, PollResult, Polling, PreparedUpdate},
        sums::{sum_numbers, sums_of, sums_of_each},
    };

    use std::ffi::OsString;

    use pyo3::pyfunction;

    use crate::errors::internal;
    use crate::work::caught;

    use super::{Bound, PyModule, PyModuleMethods, PyResult, Python};

    /// Runs the command-line tool with these arguments and returns the exit code. The first
    /// argument is the program's name.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
        py.detach(|| caught(|| deltachain_cli::main(arguments)))
            .ok_or_else(|| internal(py))
    }

    /// Removes secret keys from a text, and passwords and queries from its URLs, so that it may be
    /// shown.
    #[pyfunction]
    fn without_secrets(text: &str) -> String {
        deltachain::without_secrets(text)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
