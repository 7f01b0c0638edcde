//! Places of torch and numpy tensors. These libraries move, free and replace the memory of tensors
//! that are still alive. So before memory that was bound in an earlier call is read or written, in
//! Rust or in Python, the tensor's place is compared with the one that was bound.

use deltachain::{Error, ErrorClass};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{raised, usage};
use crate::memory::borrowed;

/// Returns the error for a tensor whose memory has moved.
pub(crate) fn moved(name: &str) -> Error {
    let text = "the tensor's memory has moved: other code has moved, freed or replaced it";
    Error::refused(ErrorClass::StateMismatch, text).of_tensor(name)
}

/// Returns the error for a torch tensor without memory of its own, if its class keeps the values in
/// other tensors (`__tensor_flatten__`).
fn made_of_others(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<Option<PyErr>> {
    if !tensor.hasattr(intern!(tensor.py(), "__tensor_flatten__"))? {
        return Ok(None);
    }
    let text = format!(
        "a {} has no memory of its own, since it is made of other tensors: give these \
         (__tensor_flatten__ names them), or what its dequantize() returns",
        tensor.get_type().name()?
    );
    Ok(Some(usage(tensor.py(), text, Some(name))))
}

/// A tensor, the object that holds its memory, and its place when it was bound.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct TensorPlace {
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    tensor: Py<PyAny>,
    /// The storage of a torch tensor. This reference keeps the storage alive if the tensor gets
    /// another one.
    storage: Option<Py<PyAny>>,
    /// The facts that [`form_of`] returns: where the tensor lies, and how.
    form: Py<PyTuple>,
}

#[pymethods]
impl TensorPlace {
    /// Finds the place of a torch tensor on any device, of a numpy array, or of another object with
    /// a buffer.
    ///
    /// # Errors
    /// USAGE if the object is something else, or if its storage does not contain the whole tensor.
    #[new]
    pub(crate) fn of(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        if !tensor.hasattr(intern!(py, "untyped_storage"))?
            && !tensor.hasattr(intern!(py, "__array_interface__"))?
        {
            borrowed(name, &owner_of(tensor)?, true)?;
        }
        let form =
            form_of(tensor).or_else(|error| Err(made_of_others(name, tensor)?.unwrap_or(error)))?;
        let storage = tensor.getattr_opt(intern!(py, "untyped_storage"))?;
        let storage = storage
            .map(|storage| storage.call0().map(Bound::unbind))
            .transpose()?;
        let number = |at: usize| form.get_item(at)?.extract::<usize>();
        let numbers = |at: usize| form.get_item(at)?.extract::<Vec<usize>>();
        if storage.is_some() && !numbers(3)?.contains(&0) {
            let shape = numbers(3)?;
            let strides = numbers(4)?;
            let begin = number(5)?;
            let reach = shape
                .iter()
                .zip(strides)
                .map(|(length, stride)| (length - 1).saturating_mul(stride));
            let width: usize = tensor
                .call_method0(intern!(py, "element_size"))?
                .extract()?;
            let extent = reach.fold(1, usize::saturating_add).saturating_mul(width);
            let room = number(0)?
                .checked_sub(begin)
                .and_then(|offset| number(6).ok()?.checked_sub(offset));
            if begin == 0 || room.is_none_or(|room| room < extent) {
                let text = "the tensor has no data: its storage was freed, or is too small for it";
                return Err(
                    made_of_others(name, tensor)?.unwrap_or_else(|| usage(py, text, Some(name)))
                );
            }
        }
        Ok(Self {
            name: name.to_owned(),
            tensor: tensor.clone().unbind(),
            storage,
            form: form.unbind(),
        })
    }

    /// Refuses a tensor that has another name, or does not lie at this place.
    fn check(&self, name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tensor.py();
        let is_here = name == self.name && form_of(tensor)?.eq(self.form.bind(py))?;
        if is_here {
            Ok(())
        } else {
            Err(raised(py, &moved(&self.name)))
        }
    }
}

impl TensorPlace {
    /// True if the tensor has not moved.
    pub(crate) fn is_here(&self, py: Python<'_>) -> bool {
        let tensor = self.tensor.bind(py);
        form_of(tensor)
            .and_then(|form| form.eq(self.form.bind(py)))
            .unwrap_or(false)
    }

    /// The caller's name for the tensor.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The tensor that lies here.
    pub(crate) fn tensor<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.tensor.bind(py)
    }

    /// Returns the layout. Strides are in elements for torch, and in bytes for numpy.
    pub(crate) fn layout(&self, py: Python<'_>) -> PyResult<TensorLayout> {
        let item = |at: usize| self.form.bind(py).get_item(at);
        let storage = if self.storage.is_some() {
            Some((item(5)?.extract()?, item(6)?.extract()?))
        } else {
            None
        };
        // The strides of a contiguous numpy array are None.
        Ok(TensorLayout {
            address: item(0)?.extract()?,
            shape: item(3)?.extract()?,
            strides: item(4)?.extract()?,
            storage,
        })
    }
}

/// Layout of a tensor. `storage` is the address and the number of bytes of a torch tensor's
/// storage.
pub(crate) struct TensorLayout {
    pub(crate) address: usize,
    pub(crate) shape: Vec<u64>,
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) storage: Option<(usize, usize)>,
}

/// Returns the object that exports the buffer of an object that is not a torch or numpy tensor.
fn owner_of<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(tensor
        .getattr_opt(intern!(tensor.py(), "data"))?
        .unwrap_or_else(|| tensor.clone()))
}

/// Returns address, dtype, device, shape, strides, and address and bytes of the storage of a torch
/// tensor. A numpy array has no device and no storage, and whether it is writable instead; another
/// object has the address of the object that exports its buffer. None of this runs Python code,
/// which could let other threads take the interpreter's lock.
fn form_of<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = tensor.py();
    let field = |name| tensor.getattr_opt(name);
    let (dtype, shape) = (field(intern!(py, "dtype"))?, field(intern!(py, "shape"))?);
    if let Some(storage) = field(intern!(py, "untyped_storage"))? {
        let storage = storage.call0()?;
        let data_ptr = intern!(py, "data_ptr");
        let (address, strides) = (
            tensor.call_method0(data_ptr)?,
            tensor.call_method0(intern!(py, "stride"))?,
        );
        let (begin, length) = (
            storage.call_method0(data_ptr)?,
            storage.call_method0(intern!(py, "nbytes"))?,
        );
        return (
            address,
            dtype,
            tensor.getattr(intern!(py, "device"))?,
            shape,
            strides,
            begin,
            length,
        )
            .into_pyobject(py);
    }
    let Some(interface) = field(intern!(py, "__array_interface__"))? else {
        // An object that exports a buffer does not move it, so comparing the object is enough.
        return (owner_of(tensor)?.as_ptr().addr(), dtype, shape).into_pyobject(py);
    };
    let address = interface.get_item(intern!(py, "data"))?.get_item(0)?;
    let is_writable = tensor
        .getattr(intern!(py, "flags"))?
        .getattr(intern!(py, "writeable"))?;
    (
        address,
        dtype,
        is_writable,
        shape,
        interface.get_item(intern!(py, "strides"))?,
    )
        .into_pyobject(py)
}
