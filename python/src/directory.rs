//! The content of a directory that a subscriber keeps, perhaps another process's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use deltachain_store::Health;
use pyo3::prelude::*;

use crate::errors::usage;
use crate::store::report;
use crate::work::{How, run};

/// How a follower's directory is, as JSON. `max_lag` is a number of versions, or a time such as
/// `10m`.
#[pyfunction]
pub(crate) fn status(
    py: Python<'_>,
    directory: PathBuf,
    max_lag: Option<&str>,
) -> PyResult<String> {
    let max_lag = max_lag.map(str::parse).transpose();
    let max_lag = max_lag.map_err(|text| usage(py, format!("max_lag= {text}"), None))?;
    run(py, &How::default(), |_| {
        report(&Health::of(&directory, max_lag)?)
    })
}

/// Whether a subscriber manages this directory, or did.
#[pyfunction]
pub(crate) fn is_managed(directory: PathBuf) -> bool {
    deltachain_store::is_managed(&directory)
}

/// Number, state digest, directory and metadata of a version.
type VersionRow = (u64, String, PathBuf, BTreeMap<String, String>);

/// A version in a subscriber's directory: the one that is shown if `version` is None. None if it is
/// not there.
#[pyfunction]
pub(crate) fn find_version(
    py: Python<'_>,
    directory: PathBuf,
    version: Option<u64>,
) -> PyResult<Option<VersionRow>> {
    let found = run(py, &How::default(), |_| {
        deltachain_store::find_version(&directory, version)
    })?;
    Ok(found.map(|found| {
        (
            found.version,
            found.state.to_string(),
            found.directory,
            found.metadata,
        )
    }))
}
