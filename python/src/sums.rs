//! Sums (SPEC section 24) for Python: the numbers with which torch computes sums on a device, and
//! sums of CPU memory.

use deltachain::sums::{self, Sums};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::memory::{Buffer, BufferOwner, ByteView};
use crate::tensors::{Finder, TensorBytes};
use crate::work::{How, run};

/// Number of bytes that one thread adds up at a time. It is even.
const AT_ONCE: usize = 1 << 20;

/// Returns the fixed numbers that units are multiplied with. Each of the two sums has 4096 numbers
/// for places in a row, and 2048 for rows.
#[pyfunction]
pub(crate) fn sum_numbers() -> Buffer {
    Buffer::new(BufferOwner::Int64(sums::numbers().map(i64::from).collect()))
}

/// Computes the two sums of a tensor on the CPU. Its first byte is byte `begin` of a piece that
/// contains the whole tensor.
#[pyfunction]
pub(crate) fn sums_of(py: Python<'_>, tensor: &Bound<'_, PyAny>, begin: u64) -> PyResult<[u32; 2]> {
    let bytes = bytes_of(py, tensor)?;
    let bytes = bytes.bytes();
    if bytes.len() <= AT_ONCE {
        // Using other threads would take longer.
        return Ok(sum(bytes, begin).numbers());
    }
    run(py, &How::default(), |_| Ok(sum(bytes, begin).numbers()))
}

/// Computes the two sums of each of several tensors of `length` bytes, which lie one after another
/// in one tensor on the CPU.
#[pyfunction]
pub(crate) fn sums_of_each(
    py: Python<'_>,
    tensor: &Bound<'_, PyAny>,
    length: usize,
) -> PyResult<Vec<[u32; 2]>> {
    let bytes = bytes_of(py, tensor)?;
    let bytes = bytes.bytes();
    if length == 0 {
        return Err(crate::errors::usage(
            py,
            "tensors without bytes have no sums",
            None,
        ));
    }
    if bytes.len() <= AT_ONCE {
        let each = bytes.chunks(length);
        return Ok(each.map(|bytes| sum(bytes, 0).numbers()).collect());
    }
    run(py, &How::default(), |_| {
        let each = bytes.par_chunks(length);
        Ok(each.map(|bytes| sum(bytes, 0).numbers()).collect())
    })
}

/// Returns the bytes of a tensor on the CPU.
fn bytes_of(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<ByteView> {
    match Finder::new(py)?.find("", tensor, false)? {
        (_, TensorBytes::Here(bytes)) => Ok(bytes),
        _ => Err(crate::errors::usage(
            py,
            "the tensor is not on the CPU",
            None,
        )),
    }
}

/// Computes the sums of bytes of which the first is byte `begin` of a piece.
fn sum(bytes: &[u8], begin: u64) -> Sums {
    let (first, rest) = bytes.split_at(bytes.len().min((begin % 2 == 1).into()));
    let alone = Sums::of_lanes(1, &[u32::try_from(begin).unwrap_or(0)], first);
    let part = |(number, bytes): (usize, &[u8])| {
        let before = first.len() + number * AT_ONCE;
        Sums::of_bytes(begin + before as u64, bytes)
    };
    if rest.len() <= AT_ONCE {
        return part((0, rest)).plus(alone);
    }
    let sums = rest.par_chunks(AT_ONCE).enumerate().map(part);
    sums.reduce(|| Sums::ZERO, Sums::plus).plus(alone)
}
