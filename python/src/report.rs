//! What the tool's commands report, for functions that are their faces: `log`, `show`, `status`, `fsck` and so on.

use std::ffi::OsString;

use deltachain_store::{Stop, StoreOptions};
use pyo3::prelude::*;

use crate::store::Store;
use crate::work::{How, Threads, run};

/// The report of a command of `deltachain`, with these arguments, as JSON. How the chain is reached, the store says.
#[pyfunction]
pub(crate) fn report(
    py: Python<'_>,
    arguments: Vec<OsString>,
    store: Option<Py<Store>>,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let options = store.map_or_else(|| Ok(StoreOptions::default()), |store| store.get().options(py))?;
    let stop = Stop::default();
    let how = How { threads, progress, stop: Some(stop.clone()), ..How::default() };
    run(py, &how, |watch| Ok(deltachain_cli::report(arguments, options, watch, stop)?.to_string()))
}
