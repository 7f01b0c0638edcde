//! Python tensors as states of the library, without copies: torch tensors, numpy arrays, objects
//! with the buffer protocol, and `deltachain.Tensor`, which may have any dtype and may be read
//! piece by piece.

use std::collections::HashMap;
use std::ops::Range;

use deltachain::tensor::{Dtype, MemoryWriter, State, TensorInfo};
use deltachain::{Error, Result};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};

use crate::errors::usage;
use crate::gate;
use crate::memory::{ByteView, borrowed};
use crate::places::TensorPlace;

/// Number of bytes read at a time from memory that is not on the CPU.
pub(crate) const STRETCH: usize = 16 << 20;

/// A tensor's bytes, by where they are.
pub(crate) enum TensorBytes {
    /// In CPU memory, which is read without a copy.
    Here(ByteView),
    /// Elsewhere, such as on a device. The callable gets an offset and a length in bytes, and
    /// returns an object with the buffer protocol.
    Elsewhere(Py<PyAny>),
}

impl TensorBytes {
    pub(crate) fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let wrong = || Error::usage("no such range in the state");
        match self {
            Self::Here(bytes) => out.copy_from_slice(stretch(bytes, range).ok_or_else(wrong)?),
            Self::Elsewhere(reader) => gate::attach(|py| {
                let read = reader.call1(py, (range.start, range.end - range.start))?;
                out.copy_from_slice(ByteView::returned(read.bind(py), out.len())?.bytes());
                Ok(())
            })?
            .map_err(|error: PyErr| {
                Error::io("reading a tensor", std::io::Error::other(error.to_string()))
            })?,
        }
        Ok(())
    }
}

fn stretch(bytes: &ByteView, range: Range<u64>) -> Option<&[u8]> {
    bytes
        .bytes()
        .get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// A tensor's description and bytes.
struct FoundTensor {
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: TensorBytes,
}

/// Finds the dtype, shape and bytes of tensor objects. Looks up classes and dtypes once for many
/// tensors.
pub(crate) struct Finder<'py> {
    torch: Option<Bound<'py, PyAny>>,
    numpy: Option<Bound<'py, PyAny>>,
    own: Bound<'py, PyAny>,
    /// Dtypes, by the address of torch's or numpy's dtype object, which lives as long as its
    /// library.
    dtypes: HashMap<usize, Dtype>,
}

impl<'py> Finder<'py> {
    pub(crate) fn new(py: Python<'py>) -> PyResult<Self> {
        let modules = py
            .import("sys")?
            .getattr("modules")?
            .cast_into::<PyDict>()?;
        // A library that has not been imported has no tensors.
        let class = |module: &str, class: &str| -> PyResult<Option<Bound<'py, PyAny>>> {
            // A module that is still being imported may lack the class.
            Ok(modules
                .get_item(module)?
                .and_then(|module| module.getattr(class).ok()))
        };
        Ok(Self {
            torch: class("torch", "Tensor")?,
            numpy: class("numpy", "ndarray")?,
            own: py.import("deltachain._tensors")?.getattr("Tensor")?,
            dtypes: HashMap::new(),
        })
    }

    /// True if the object is a torch tensor.
    pub(crate) fn is_torch(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.torch
            .as_ref()
            .map_or(Ok(false), |class| object.is_instance(class))
    }

    /// True if the object is a numpy array.
    pub(crate) fn is_numpy(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.numpy
            .as_ref()
            .map_or(Ok(false), |class| object.is_instance(class))
    }

    /// Returns the description and bytes of a tensor object. The number of bytes must fit dtype and
    /// shape. With `writable`, the memory must be writable.
    pub(crate) fn find(
        &mut self,
        name: &str,
        object: &Bound<'py, PyAny>,
        writable: bool,
    ) -> PyResult<(TensorInfo, TensorBytes)> {
        let found = if self.is_torch(object)? {
            self.of_torch(name, object)
        } else if self.is_numpy(object)? {
            self.of_numpy(name, object, writable)
        } else if object.is_instance(&self.own)? {
            self.own(name, object, writable)
        } else {
            of_buffer(name, object, writable)
        };
        checked(object.py(), name, found?)
    }

    /// Same as [`find`](Self::find), with the name as a Python object.
    fn find_named(
        &mut self,
        name: &Bound<'py, PyAny>,
        object: &Bound<'py, PyAny>,
        writable: bool,
    ) -> PyResult<(TensorInfo, TensorBytes)> {
        let py = name.py();
        let Ok(name) = name.cast::<PyString>() else {
            return Err(usage(
                py,
                format!("names of tensors must be strings, not {}", name.repr()?),
                None,
            ));
        };
        let name = name.to_cow().or_else(|_| {
            Err(usage(
                py,
                format!("the name {} is not Unicode text", name.repr()?),
                None,
            ))
        })?;
        self.find(&name, object, writable)
    }

    fn of_torch(&mut self, name: &str, object: &Bound<'py, PyAny>) -> PyResult<FoundTensor> {
        let py = object.py();
        let dtype = self.dtype(name, &object.getattr(intern!(py, "dtype"))?)?;
        check_dense(name, object)?;
        let mut shape: Vec<u64> = object.getattr(intern!(py, "shape"))?.extract()?;
        if object.hasattr(intern!(py, "to_local"))? {
            let text = "the tensor is spread over processes (DTensor): gather it, or use a \
                        Publisher with group=";
            return Err(usage(py, text, Some(name)));
        }
        if dtype == Dtype::F4 {
            // torch's shape counts bytes, which hold two elements each.
            shape
                .iter_mut()
                .rev()
                .take(1)
                .for_each(|last| *last = last.saturating_mul(2));
        }
        if !object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            let reader = py
                .import("deltachain._device")?
                .getattr("reader")?
                .call1((name, object))?;
            return Ok(FoundTensor {
                dtype,
                shape,
                bytes: TensorBytes::Elsewhere(reader.unbind()),
            });
        }
        check_contiguous(name, object)?;
        let length: usize = object.getattr(intern!(py, "nbytes"))?.extract()?;
        let address = TensorPlace::of(name, object)?.layout(py)?.address;
        let bytes = ByteView::of_address(address, length, object.clone().unbind());
        Ok(FoundTensor {
            dtype,
            shape,
            bytes: TensorBytes::Here(bytes),
        })
    }

    fn of_numpy(
        &mut self,
        name: &str,
        object: &Bound<'py, PyAny>,
        writable: bool,
    ) -> PyResult<FoundTensor> {
        let py = object.py();
        let dtype = self.dtype(name, &object.getattr(intern!(py, "dtype"))?)?;
        let shape: Vec<u64> = object.getattr(intern!(py, "shape"))?.extract()?;
        let flags = object.getattr(intern!(py, "flags"))?;
        if !flags.getattr(intern!(py, "c_contiguous"))?.is_truthy()? {
            return Err(usage(
                py,
                "the array is not C-contiguous: give numpy.ascontiguousarray(array)",
                Some(name),
            ));
        }
        if writable && !flags.getattr(intern!(py, "writeable"))?.is_truthy()? {
            return Err(usage(py, "the array is read-only", Some(name)));
        }
        // The buffer protocol is quicker, but does not work for arrays with dtypes from outside of
        // numpy.
        let bytes = PyUntypedBuffer::get(object)
            .ok()
            .and_then(ByteView::of_buffer);
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => {
                let length: usize = object.getattr(intern!(py, "nbytes"))?.extract()?;
                let address = TensorPlace::of(name, object)?.layout(py)?.address;
                ByteView::of_address(address, length, object.clone().unbind())
            }
        };
        Ok(FoundTensor {
            dtype,
            shape,
            bytes: TensorBytes::Here(bytes),
        })
    }

    fn own(
        &mut self,
        name: &str,
        object: &Bound<'py, PyAny>,
        writable: bool,
    ) -> PyResult<FoundTensor> {
        let py = object.py();
        let (dtype, shape) = (
            object.getattr(intern!(py, "dtype"))?,
            object.getattr(intern!(py, "shape"))?,
        );
        let Ok(text) = dtype.extract::<String>() else {
            return Err(usage(
                py,
                format!("unknown dtype {}", dtype.repr()?),
                Some(name),
            ));
        };
        let dtype = dtype_named(py, name, &text)?;
        let Ok(shape) = shape.extract::<Vec<u64>>() else {
            return Err(usage(
                py,
                format!("{} is not a shape", shape.repr()?),
                Some(name),
            ));
        };
        let data = object.getattr(intern!(py, "data"))?;
        let bytes = if data.is_callable() && !writable {
            TensorBytes::Elsewhere(data.unbind())
        } else {
            TensorBytes::Here(borrowed(name, &data, writable)?.0)
        };
        Ok(FoundTensor {
            dtype,
            shape,
            bytes,
        })
    }

    /// Converts a dtype object of torch or numpy.
    pub(crate) fn dtype(&mut self, name: &str, object: &Bound<'py, PyAny>) -> PyResult<Dtype> {
        let key = object.as_ptr().addr();
        if let Some(dtype) = self.dtypes.get(&key) {
            return Ok(*dtype);
        }
        let named: String = object
            .py()
            .import("deltachain._tensors")?
            .getattr("dtype_name")?
            .call1((object,))?
            .extract()?;
        let Some(dtype) = Dtype::from_name(&named) else {
            let text = if named.starts_with('>') {
                format!(
                    "the bytes are in another order (dtype {named}): give \
                     array.astype(array.dtype.newbyteorder('='))"
                )
            } else {
                format!("unknown dtype {object}")
            };
            return Err(usage(object.py(), text, Some(name)));
        };
        self.dtypes.insert(key, dtype);
        Ok(dtype)
    }
}

/// Refuses torch tensors that are not dense. A nested tensor has no shape, and the elements of a
/// sparse tensor are not contiguous.
fn check_dense(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    let layout = object.getattr(intern!(py, "layout"))?.str()?;
    if layout.to_cow()? != "torch.strided"
        || object.getattr(intern!(py, "is_nested"))?.is_truthy()?
    {
        return Err(usage(
            py,
            "the tensor is sparse or nested: give a dense one",
            Some(name),
        ));
    }
    Ok(())
}

/// Refuses torch tensors whose memory does not hold their values one after another.
fn check_contiguous(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    if !object
        .call_method0(intern!(py, "is_contiguous"))?
        .is_truthy()?
    {
        return Err(usage(
            py,
            "the tensor is not contiguous: give tensor.contiguous()",
            Some(name),
        ));
    }
    if object.call_method0(intern!(py, "is_conj"))?.is_truthy()?
        || object.call_method0(intern!(py, "is_neg"))?.is_truthy()?
    {
        return Err(usage(
            py,
            "the tensor is a lazy view: give tensor.resolve_conj().resolve_neg()",
            Some(name),
        ));
    }
    Ok(())
}

/// Returns the dtype with a name of SPEC section 2.1.
pub(crate) fn dtype_named(py: Python<'_>, tensor: &str, name: &str) -> PyResult<Dtype> {
    Dtype::from_name(name).ok_or_else(|| usage(py, format!("unknown dtype {name:?}"), Some(tensor)))
}

fn of_buffer(name: &str, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<FoundTensor> {
    let (bytes, format, shape) = borrowed(name, object, writable)?;
    // Formats of Python's module `struct`. The native byte order is little-endian wherever this is
    // built.
    let dtype = match format.trim_start_matches(['@', '=', '<']) {
        "?" => Dtype::BOOL,
        "B" | "c" => Dtype::U8,
        "b" => Dtype::I8,
        "H" => Dtype::U16,
        "h" => Dtype::I16,
        "I" => Dtype::U32,
        "i" => Dtype::I32,
        "Q" | "L" => Dtype::U64,
        "q" | "l" => Dtype::I64,
        "e" => Dtype::F16,
        "f" => Dtype::F32,
        "d" => Dtype::F64,
        _ => {
            return Err(usage(
                object.py(),
                format!("unsupported buffer format {format:?}"),
                Some(name),
            ));
        }
    };
    Ok(FoundTensor {
        dtype,
        shape,
        bytes: TensorBytes::Here(bytes),
    })
}

/// A mapping from names to tensors. Keeps the tensors alive.
pub(crate) struct Tensors {
    infos: Vec<TensorInfo>,
    bytes: Vec<TensorBytes>,
}

impl Tensors {
    /// Reads a mapping, or an object with `keys()` and `get_tensor()`, such as an open safetensors
    /// file.
    ///
    /// # Errors
    /// USAGE if the object is neither, a name is not a string, or a value is not a supported
    /// tensor; the message says why.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (infos, bytes) = found(object, false)?.into_iter().unzip();
        Ok(Self { infos, bytes })
    }
}

/// Returns name, dtype, shape and bytes of all tensors, ascending by name.
fn found(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Vec<(TensorInfo, TensorBytes)>> {
    let py = object.py();
    let mut finder = Finder::new(py)?;
    let mut all = Vec::new();
    if let Ok(mapping) = object.cast::<PyDict>() {
        for (name, value) in mapping.iter() {
            all.push(finder.find_named(&name, &value, writable)?);
        }
    } else if let Ok(mapping) = object.cast::<PyMapping>() {
        for item in mapping.items()?.iter() {
            let item = item.cast_into::<PyTuple>()?;
            all.push(finder.find_named(&item.get_item(0)?, &item.get_item(1)?, writable)?);
        }
    } else if object.hasattr("get_tensor")? && object.hasattr("keys")? {
        for name in object.call_method0("keys")?.try_iter()? {
            let name = name?;
            let value = object.call_method1("get_tensor", (&name,))?;
            all.push(finder.find_named(&name, &value, writable)?);
        }
    } else {
        let kind = object.get_type();
        return Err(usage(
            py,
            format!("a state must be a path or a mapping from names to tensors, not {kind}"),
            None,
        ));
    }
    all.sort_by(|(left, _): &(TensorInfo, TensorBytes), (right, _)| left.name().cmp(right.name()));
    Ok(all)
}

/// Returns the description and the bytes of a tensor if the number of bytes fits dtype and shape.
fn checked(py: Python<'_>, name: &str, found: FoundTensor) -> PyResult<(TensorInfo, TensorBytes)> {
    let FoundTensor {
        dtype,
        shape,
        bytes,
    } = found;
    let info = TensorInfo::new(name, dtype, shape.as_slice());
    let length = match &bytes {
        TensorBytes::Here(bytes) => Some(bytes.bytes().len() as u64),
        TensorBytes::Elsewhere(_) => None,
    };
    let info = info.filter(|info| length.is_none_or(|length| length == info.bytes()));
    let info = info.ok_or_else(|| {
        let held = length.map_or_else(String::new, |length| format!("{length} bytes do not fit "));
        usage(
            py,
            format!("{held}dtype {dtype} of shape {shape:?}"),
            Some(name),
        )
    })?;
    Ok((info, bytes))
}

impl State for Tensors {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.get(tensor).ok_or_else(no_tensor)?;
        let read = bytes.read(offset..offset.saturating_add(out.len() as u64), out);
        read.map_err(|error| match self.infos.get(tensor) {
            Some(info) => error.of_tensor(info.name()),
            None => error,
        })
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        match self.bytes.get(tensor)? {
            TensorBytes::Here(bytes) => stretch(bytes, range),
            TensorBytes::Elsewhere(_) => None,
        }
    }
}

/// Tensors that were allocated for a state, ascending by name. They are written in the call in
/// which they were bound, so that their memory cannot have moved.
pub(crate) struct TensorRoom {
    infos: Vec<TensorInfo>,
    bytes: Vec<ByteView>,
}

impl TensorRoom {
    /// Reads a mapping of writable tensors.
    ///
    /// # Errors
    /// Same errors as [`Tensors::of`]; USAGE if a tensor is read-only, is not on the CPU, or shares
    /// memory with another one.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let (mut infos, mut all) = (Vec::new(), Vec::new());
        let mut places: Vec<(usize, usize, String)> = Vec::new();
        for (info, bytes) in found(object, true)? {
            let TensorBytes::Here(bytes) = bytes else {
                return Err(usage(
                    py,
                    "only CPU memory can be written to",
                    Some(info.name()),
                ));
            };
            let begin = bytes.bytes().as_ptr().addr();
            places.push((begin, begin + bytes.bytes().len(), info.name().to_owned()));
            infos.push(info);
            all.push(bytes);
        }
        places.retain(|(begin, end, _)| begin < end);
        places.sort();
        if let Some([(_, _, first), (_, _, second)]) = places
            .array_windows()
            .find(|[left, right]| left.1 > right.0)
        {
            let text = format!("the tensor shares memory with {first:?}: give each tensor once");
            return Err(usage(py, text, Some(second)));
        }
        Ok(Self { infos, bytes: all })
    }

    pub(crate) fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    /// Returns a writer to the tensors, in the order of their names.
    pub(crate) fn writer(&mut self) -> MemoryWriter<'_> {
        MemoryWriter::new(self.bytes.iter_mut().map(ByteView::bytes_mut))
    }
}

fn no_tensor() -> Error {
    Error::usage("no such tensor")
}
