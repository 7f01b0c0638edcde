//! Memory that Python and this library share: bytes of Python's objects without copies, and bytes
//! of ours as buffers of Python.
//!
//! With the allocator the only file with unsafe code. What it relies on is said at each block.
#![allow(
    unsafe_code,
    reason = "memory of Python's objects is reached by pointers; the reason stands at each block"
)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::usage;

/// Bytes of an object of Python. The object is held, so that they stay where they are, unless its
/// library moves them: then there are places to be compared, by whoever uses the bytes later than
/// in the call in which they were bound.
pub(crate) struct ByteView {
    pointer: NonNull<u8>,
    length: usize,
    #[expect(dead_code, reason = "held until the bytes are no longer needed")]
    buffer: Option<PyUntypedBuffer>,
    #[expect(dead_code, reason = "held until the bytes are no longer needed")]
    owner: Option<Py<PyAny>>,
}

// SAFETY: `pointer` is an address of memory that the buffer or the owner keeps, valid in every
// thread. These may be dropped in any thread: PyO3 attaches to the interpreter first, or puts it
// off.
unsafe impl Send for ByteView {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for ByteView {}

impl ByteView {
    /// The bytes that an object shows through the buffer protocol; `None` if they are not in one
    /// contiguous row.
    pub(crate) fn of_buffer(buffer: PyUntypedBuffer) -> Option<Self> {
        if !buffer.is_c_contiguous() {
            return None;
        }
        let pointer = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        Some(Self {
            pointer,
            length: buffer.len_bytes(),
            buffer: Some(buffer),
            owner: None,
        })
    }

    /// The bytes that a call has returned, which has to return this many.
    pub(crate) fn returned(object: &Bound<'_, PyAny>, length: usize) -> PyResult<Self> {
        let bytes =
            Self::of_buffer(PyUntypedBuffer::get(object)?).filter(|bytes| bytes.length == length);
        bytes.ok_or_else(|| {
            PyTypeError::new_err(
                "a reader must return an object with the buffer protocol and exactly the requested \
                 number of bytes",
            )
        })
    }

    /// The bytes at an address, which `owner` keeps as long as it is not told otherwise: the caller
    /// has asked its library where they are, that they are on the CPU, and how many they are.
    pub(crate) fn of_address(address: usize, length: usize, owner: Py<PyAny>) -> Self {
        let pointer = match NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
            Some(pointer) if length > 0 => pointer,
            _ => NonNull::dangling(),
        };
        Self {
            pointer,
            length,
            buffer: None,
            owner: Some(owner),
        }
    }

    /// The bytes. The documentation of the package forbids to write to them during a call, and to
    /// move them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the object keeps `length` bytes there, or there are none and the pointer is
        // dangling. Whoever uses this later than in the call in which it was made has asked whether
        // they are here. They are plain bytes, which have no invalid values.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    /// The bytes, to be written. The caller has asked that the object may be written to.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`. No other code in this library has a reference, since `self` is
        // borrowed.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for ByteView {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsMut<[u8]> for ByteView {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// The bytes of an object with the buffer protocol, and the buffer's format and shape.
pub(crate) fn borrowed(
    name: &str,
    object: &Bound<'_, PyAny>,
    writable: bool,
) -> PyResult<(ByteView, String, Vec<u64>)> {
    let py = object.py();
    let buffer = PyUntypedBuffer::get(object).map_err(|_| not_a_tensor(name, object))?;
    if writable && buffer.readonly() {
        return Err(usage(py, "the buffer is read-only", Some(name)));
    }
    let format = buffer.format().to_string_lossy().into_owned();
    let shape = buffer.shape().iter().map(|&length| length as u64).collect();
    let bytes = ByteView::of_buffer(buffer)
        .ok_or_else(|| usage(py, "the buffer is not contiguous", Some(name)))?;
    Ok((bytes, format, shape))
}

/// The refusal of an object that shows no memory, with the function that makes an array of it.
fn not_a_tensor(name: &str, object: &Bound<'_, PyAny>) -> PyErr {
    let has = |attribute: &str| object.hasattr(attribute).unwrap_or(false);
    let advice = if has("__dlpack__") {
        "give the result of numpy.from_dlpack or torch.from_dlpack"
    } else if has("__array__") {
        "give the result of numpy.asarray"
    } else {
        "give a torch.Tensor, a numpy.ndarray, an object with the buffer protocol, or a \
        deltachain.Tensor"
    };
    let text = format!("the value is of type {}: {advice}", object.get_type());
    usage(object.py(), text, Some(name))
}

/// Numbers or bytes that have been copied for Python, shown through the buffer protocol:
/// `memoryview`, `numpy.frombuffer` and `torch.frombuffer` take them without another copy.
///
/// The view is one-dimensional, contiguous and read-only, unless it is [writable](Self::writable).
/// This library reads the memory no more, so whatever Python does to it stays there.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Buffer {
    kept: Arc<BufferOwner>,
    is_writable: bool,
}

/// The content that a [`Buffer`] shows.
pub(crate) enum BufferOwner {
    /// Raw bytes.
    Bytes(Box<[u8]>),
    /// Numbers of lanes below 2^31.
    Int32(Box<[i32]>),
    /// Numbers of lanes.
    Int64(Box<[i64]>),
}

impl BufferOwner {
    /// Its address, the number of its items, their length in bytes, and their format for Python.
    fn view(&self) -> (*const c_void, usize, usize, &'static CStr) {
        match self {
            Self::Bytes(bytes) => (bytes.as_ptr().cast(), bytes.len(), 1, c"B"),
            Self::Int32(numbers) => (numbers.as_ptr().cast(), numbers.len(), 4, c"i"),
            Self::Int64(numbers) => (numbers.as_ptr().cast(), numbers.len(), 8, c"q"),
        }
    }
}

impl Buffer {
    pub(crate) fn new(kept: BufferOwner) -> Self {
        Self {
            kept: Arc::new(kept),
            is_writable: false,
        }
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.kept.view().1
    }

    /// The same memory, which may be written to: torch has no tensors that may not.
    fn writable(&self) -> Self {
        Self {
            kept: Arc::clone(&self.kept),
            is_writable: true,
        }
    }

    /// Shows the memory. Python calls this; see the buffer protocol of its C interface.
    ///
    /// # Safety
    /// `view` is what Python gives.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        // SAFETY: `view` points to a structure of the caller's; nothing holds an object yet, as for
        // any failure from here on.
        unsafe { (*view).obj = std::ptr::null_mut() };
        let Self { kept, is_writable } = slf.get();
        if flags & ffi::PyBUF_WRITABLE != 0 && !is_writable {
            return Err(PyBufferError::new_err(
                "it is read-only: copy it before you change it",
            ));
        }
        let (pointer, items, width, format) = kept.view();
        let wrong = |_| PyBufferError::new_err("too long");
        let length = isize::try_from(items * width).map_err(wrong)?;
        let shape = Box::new([
            isize::try_from(items).map_err(wrong)?,
            isize::try_from(width).map_err(wrong)?,
        ]);
        // Shape and stride, freed by `__releasebuffer__`.
        let shape = Box::into_raw(shape).cast::<isize>();
        // SAFETY: `view` points to a structure of the caller's. All fields are set: the memory
        // stays where it is as long as the object lives, which `obj` holds; `shape` has two
        // numbers, of which the second is the stride; `format` is static.
        unsafe {
            (*view).buf = pointer.cast_mut();
            (*view).len = length;
            (*view).itemsize = *shape.add(1);
            (*view).readonly = c_int::from(!is_writable);
            (*view).ndim = 1;
            (*view).format = format.as_ptr().cast_mut();
            (*view).shape = shape;
            (*view).strides = shape.add(1);
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = shape.cast();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }

    /// # Safety
    /// `view` is one that `__getbuffer__` has filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` is the box of two numbers that `__getbuffer__` has leaked; Python
        // calls this once for each.
        drop(unsafe { Box::from_raw((*view).internal.cast::<[isize; 2]>()) });
    }
}
