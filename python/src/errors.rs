//! Errors as Python's exceptions: `deltachain.Error` and its classes, which `deltachain/_errors.py`
//! defines.

use std::collections::BTreeMap;

use deltachain::{Error, ErrorClass, RULES};
use deltachain_store::{Face, advice};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// An error of the library as an exception of its class, with all that is known of the place.
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

/// The advice for an error of each class of SPEC section 11 that Python code raises itself: those
/// of rules, and the two that have none.
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

/// The caller's `stop` has ended what was waited for.
pub(crate) fn cancelled(py: Python<'_>) -> PyErr {
    own(py, "CANCELLED", "stopped; nothing has changed", None)
}

/// The exception class for an error class of SPEC section 11, or for `IN_USE`, `TIMEOUT`,
/// `CANCELLED`, `TORN`, `FORKED` and `INTERNAL`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    let classes = py.import("deltachain._errors")?.getattr("CLASSES")?;
    Ok(classes.get_item(name)?.cast_into::<PyType>()?)
}

/// An exception of a class that only this package has.
pub(crate) fn own(py: Python<'_>, name: &str, message: &str, file: Option<&str>) -> PyErr {
    let made = (|| {
        let fields = PyDict::new(py);
        fields.set_item("file", file)?;
        class(py, name)?.call((message,), Some(&fields))
    })();
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Same as [`own`], with more specific advice than that of the class.
pub(crate) fn advised(py: Python<'_>, name: &str, message: &str, advice: &str) -> PyErr {
    let made = (|| {
        let fields = PyDict::new(py);
        fields.set_item("advice", advice)?;
        class(py, name)?.call((message,), Some(&fields))
    })();
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The error for an object that is used after it was closed.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    advised(py, "USAGE", "USAGE: it has been closed", "open another one")
}

/// Something has panicked; what, Rust has written to stderr.
pub(crate) fn internal(py: Python<'_>) -> PyErr {
    own(
        py,
        "INTERNAL",
        "deltachain has a bug: please report it, with the output on stderr",
        None,
    )
}

/// An argument that is not what is wanted, such as `threads= must be a whole number`.
pub(crate) fn refused(given: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let shown = given
        .repr()
        .map_or_else(|_| given.get_type().to_string(), |shown| shown.to_string());
    usage(given.py(), format!("{wanted}, not {shown}"), None)
}

/// The caller erred: a value that makes no sense, of the tensor that is named.
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
