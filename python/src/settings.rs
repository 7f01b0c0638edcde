//! Settings that Python passes by name.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::{Borrowed, FromPyObject};

/// Settings in a mapping from names to values, or in the attributes of an object. An invalid value
/// raises its own error, without the names of the struct and field in Rust.
pub(crate) struct Named<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for Named<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let settings: Result<T, _> = object.extract();
        settings.map(Self).map_err(|error| {
            let mut error: PyErr = error.into();
            while let Some(cause) = error.cause(object.py()) {
                error = cause;
            }
            error
        })
    }
}
