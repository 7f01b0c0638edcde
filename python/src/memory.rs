//! Memory that Python and this library share: bytes of Python objects without copies, and bytes of
//! this library as Python buffers.
//!
//! Only this file and the allocator have unsafe code. A comment at each block says what it relies
//! on.
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

/// Bytes of a Python object. The reference to the object keeps the bytes where they are, unless the
/// object's library moves them. So code that uses the bytes after the call in which they were bound
/// must first compare the places (`places.rs`).
pub(crate) struct ByteView {
    pointer: NonNull<u8>,
    length: usize,
    #[expect(dead_code, reason = "held until the bytes are no longer needed")]
    buffer: Option<PyUntypedBuffer>,
    #[expect(dead_code, reason = "held until the bytes are no longer needed")]
    owner: Option<Py<PyAny>>,
}

// SAFETY: `pointer` is the address of memory that the buffer or the owner keeps alive, and is valid
// in every thread. Buffer and owner may be dropped in any thread: PyO3 attaches to the interpreter
// first, or defers the drop.
unsafe impl Send for ByteView {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for ByteView {}

impl ByteView {
    /// Returns the bytes that an object exports through the buffer protocol, or `None` if they are
    /// not contiguous.
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

    /// Returns the bytes of an object that a reader has returned. It must have exactly `length`
    /// bytes.
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

    /// Returns the bytes at an address, which `owner` keeps alive unless other code moves or frees
    /// them. The caller has asked the owner's library for the address and the length, and checked
    /// that the bytes are on the CPU.
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

    /// The bytes. The package's documentation forbids writing to them, or moving them, during a
    /// call.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the object keeps `length` bytes there, or there are none and the pointer is
        // dangling. Code that uses this view after the call in which it was made has checked that
        // the bytes have not moved. They are plain bytes, which have no invalid values.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    /// The bytes, for writing. The caller has checked that the object is writable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`. No other code in this library has a reference, since `self` is
        // borrowed mutably.
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

/// Returns the bytes of an object with the buffer protocol, and the buffer's format and shape.
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

/// Returns the error for an object without a buffer, with the function that makes an array of it.
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

/// Numbers or bytes that have been copied for Python, exported through the buffer protocol:
/// `memoryview`, `numpy.frombuffer` and `torch.frombuffer` use them without another copy.
///
/// The view is one-dimensional, contiguous and read-only, unless it is [writable](Self::writable).
/// This library does not read the memory again, so Python may change it.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Buffer {
    kept: Arc<BufferOwner>,
    is_writable: bool,
}

/// The content of a [`Buffer`].
pub(crate) enum BufferOwner {
    /// Raw bytes.
    Bytes(Box<[u8]>),
    /// Numbers of lanes below 2^31.
    Int32(Box<[i32]>),
    /// Numbers of lanes.
    Int64(Box<[i64]>),
}

impl BufferOwner {
    /// Returns the address, the number of items, the bytes of each item, and the format of items
    /// for Python.
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

    /// Returns a writable buffer with the same memory, for torch, which has no read-only tensors.
    fn writable(&self) -> Self {
        Self {
            kept: Arc::clone(&self.kept),
            is_writable: true,
        }
    }

    /// Exports the memory. Python calls this; see the buffer protocol of its C API.
    ///
    /// # Safety
    /// `view` must be null, or point to a `Py_buffer` that may be written to, as Python guarantees.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        // SAFETY: `view` points to a structure of the caller's. The protocol requires that `obj` is
        // null after a failure, and it stays null on every failure below.
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
    /// `view` must have been filled by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` is the box of two numbers that `__getbuffer__` has leaked; Python
        // calls this once for each.
        drop(unsafe { Box::from_raw((*view).internal.cast::<[isize; 2]>()) });
    }
}
