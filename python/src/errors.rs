//! Errors as Python's exceptions: `deltachain.Error` and its classes, which `deltachain/_errors.py`
//! defines.

use std::collections::BTreeMap;

use deltachain::{Error, ErrorClass, RULES};
use deltachain_store::{Face, advice};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// Converts an error of the library to an exception of its class, with everything known about the
/// place.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).unwrap_or_else(|other| other)
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = class(
        py,
        if error.is_in_use() {
            "IN_USE"
        } else {
            error.class().name()
        },
    )?;
    let fields = PyDict::new(py);
    fields.set_item("rule", error.rule())?;
    fields.set_item("section", error.section())?;
    fields.set_item("offset", error.offset())?;
    fields.set_item("tensor", error.tensor())?;
    fields.set_item("file", error.file())?;
    fields.set_item("link", error.link())?;
    fields.set_item("advice", advice(error, Face::Python))?;
    fields.set_item("retryable", error.may_retry())?;
    Ok(PyErr::from_value(
        class.call((format!("{error:#}"),), Some(&fields))?,
    ))
}

/// Returns the advice for each class of SPEC section 11, for errors that Python code raises itself:
/// the classes of rules, and the two classes without rules.
#[pyfunction]
pub(crate) fn class_advice() -> BTreeMap<&'static str, &'static str> {
    let classes = RULES
        .iter()
        .map(|rule| rule.class)
        .chain([ErrorClass::Io, ErrorClass::Usage]);
    classes
        .map(|class| (class.name(), class.advice()))
        .collect()
}

/// Returns the error of a wait that the caller's `stop` has ended.
pub(crate) fn cancelled(py: Python<'_>) -> PyErr {
    own(py, "CANCELLED", "stopped; nothing has changed", None)
}

/// Returns the exception class for an error class of SPEC section 11, or for `IN_USE`, `TIMEOUT`,
/// `CANCELLED`, `TORN`, `FORKED` and `INTERNAL`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    let classes = py.import("deltachain._errors")?.getattr("CLASSES")?;
    Ok(classes.get_item(name)?.cast_into::<PyType>()?)
}

/// Makes an exception of the class with this name, for errors that the Rust library does not have.
pub(crate) fn own(py: Python<'_>, name: &str, message: &str, file: Option<&str>) -> PyErr {
    let made = (|| {
        let fields = PyDict::new(py);
        fields.set_item("file", file)?;
        class(py, name)?.call((message,), Some(&fields))
    })();
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Same as [`own`], with more specific advice than the class has, instead of a file.
pub(crate) fn advised(py: Python<'_>, name: &str, message: &str, advice: &str) -> PyErr {
    let made = (|| {
        let fields = PyDict::new(py);
        fields.set_item("advice", advice)?;
        class(py, name)?.call((message,), Some(&fields))
    })();
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns the error for an object that is used after it was closed.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    advised(py, "USAGE", "USAGE: it has been closed", "open another one")
}

/// Returns the error for a panic, whose message Rust has written to stderr.
pub(crate) fn internal(py: Python<'_>) -> PyErr {
    own(
        py,
        "INTERNAL",
        "deltachain has a bug: please report it, with the output on stderr",
        None,
    )
}

/// Returns the error for an argument with an invalid value. `wanted` is a text such as
/// `threads= must be a whole number`.
pub(crate) fn refused(given: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let shown = given
        .repr()
        .map_or_else(|_| given.get_type().to_string(), |shown| shown.to_string());
    usage(given.py(), format!("{wanted}, not {shown}"), None)
}

/// Returns a USAGE error, about a tensor if one is named.
pub(crate) fn usage(py: Python<'_>, message: impl Into<String>, tensor: Option<&str>) -> PyErr {
    let error = Error::usage(message);
    raised(
        py,
        &if let Some(name) = tensor {
            error.of_tensor(name)
        } else {
            error
        },
    )
}
