//! The content of a subscriber's directory, which may belong to another process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use deltachain_store::Health;
use pyo3::prelude::*;

use crate::errors::usage;
use crate::store::report;
use crate::work::{How, run};

/// Reports on a follower's directory. `max_lag` is a number of versions, or a time such as `10m`.
#[pyfunction]
pub(crate) fn status<'py>(
    py: Python<'py>,
    directory: PathBuf,
    max_lag: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let max_lag = max_lag.map(str::parse).transpose();
    let max_lag = max_lag.map_err(|text| usage(py, format!("max_lag= {text}"), None))?;
    let found = run(py, &How::default(), |_| Health::of(&directory, max_lag))?;
    report(py, &found)
}

/// True if a subscriber manages this directory, or once did.
#[pyfunction]
pub(crate) fn is_managed(directory: PathBuf) -> bool {
    deltachain_store::is_managed(&directory)
}

/// A version in a subscriber's directory.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct FoundVersion {
    version: u64,
    /// Its state digest.
    digest: String,
    /// The directory of its files.
    directory: PathBuf,
    metadata: BTreeMap<String, String>,
}

/// Finds a version in a subscriber's directory; the current one if `version` is None. Returns None
/// if the version is not there.
#[pyfunction]
pub(crate) fn find_version(
    py: Python<'_>,
    directory: PathBuf,
    version: Option<u64>,
) -> PyResult<Option<FoundVersion>> {
    let found = run(py, &How::default(), |_| {
        deltachain_store::find_version(&directory, version)
    })?;
    Ok(found.map(|found| FoundVersion {
        version: found.version,
        digest: found.state.to_string(),
        directory: found.directory,
        metadata: found.metadata,
    }))
}
