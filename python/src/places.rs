//! Places of tensors of torch and numpy. These libraries move, free and replace the memory of
//! tensors that are still alive. So memory that is used later than it was bound is compared with
//! what was bound first: here, for whoever reads or writes it, in Rust and in Python.

use deltachain::{Error, ErrorClass};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{raised, usage};
use crate::memory::borrowed;

/// The tensor with this name does not lie where it should.
pub(crate) fn moved(name: &str) -> Error {
    let text = "the tensor's memory has moved: other code has moved, freed or replaced it";
    Error::refused(ErrorClass::StateMismatch, text).of_tensor(name)
}

/// The refusal of a tensor without memory, if its class of torch has the values in tensors that it
/// is made of.
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

/// A tensor, what holds its memory, and where it lay when it was bound.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct TensorPlace {
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    tensor: Py<PyAny>,
    /// The storage that a tensor of torch lies in: held, so that a tensor that is given another one
    /// does not free it.
    storage: Option<Py<PyAny>>,
    /// All that says where and how it lies.
    form: Py<PyTuple>,
}

#[pymethods]
impl TensorPlace {
    /// The place of a tensor of torch, on any device, of an array of numpy, or of another object
    /// with a buffer.
    ///
    /// # Errors
    /// USAGE if it is something else, or if its storage does not have all of it.
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

    /// Refuses a tensor that does not lie where this one did.
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
    /// Whether it lies where it did.
    pub(crate) fn is_here(&self, py: Python<'_>) -> bool {
        let tensor = self.tensor.bind(py);
        form_of(tensor)
            .and_then(|form| form.eq(self.form.bind(py)))
            .unwrap_or(false)
    }

    /// The name that it has for the caller.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The tensor that lies here.
    pub(crate) fn tensor<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.tensor.bind(py)
    }

    /// Address, and length and distance of neighbours in each dimension: of torch in elements, of
    /// numpy in bytes. Of torch also address and bytes of the storage.
    pub(crate) fn layout(&self, py: Python<'_>) -> PyResult<TensorLayout> {
        let item = |at: usize| self.form.bind(py).get_item(at);
        let storage = if self.storage.is_some() {
            Some((item(5)?.extract()?, item(6)?.extract()?))
        } else {
            None
        };
        // A contiguous array of numpy has no strides here.
        Ok(TensorLayout {
            address: item(0)?.extract()?,
            shape: item(3)?.extract()?,
            strides: item(4)?.extract()?,
            storage,
        })
    }
}

/// Layout of a tensor.
pub(crate) struct TensorLayout {
    pub(crate) address: usize,
    pub(crate) shape: Vec<u64>,
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) storage: Option<(usize, usize)>,
}

/// The object that shows the buffer of an object that is no tensor of torch or numpy.
fn owner_of<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(tensor
        .getattr_opt(intern!(tensor.py(), "data"))?
        .unwrap_or_else(|| tensor.clone()))
}

/// Address, dtype, device, shape, strides, and address and bytes of the storage; of numpy as far as
/// it has them, and of other objects what shows their buffer. None of this runs code in Python,
/// during which other threads might have the interpreter's lock.
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
        // An object that shows a buffer keeps it where it is; only another such object may take its
        // place.
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
