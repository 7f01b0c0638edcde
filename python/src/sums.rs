//! The parts that Python needs for sums (SPEC section 24): the numbers with which torch computes
//! them on a device, and sums of memory that the processor can reach.

use deltachain::sums::{self, Sums};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::memory::{Buffer, BufferOwner, ByteView};
use crate::tensors::{Finder, TensorBytes};
use crate::work::{How, run};

/// Number of bytes that one thread takes at once; even.
const AT_ONCE: usize = 1 << 20;

/// The fixed numbers that units are multiplied with: 4096 for each of the two sums by place, 2048
/// for each by row.
#[pyfunction]
pub(crate) fn sum_numbers() -> Buffer {
    Buffer::new(BufferOwner::Int64(sums::numbers().map(i64::from).collect()))
}

/// The two sums of a tensor on the CPU whose first byte stands at `begin` in its piece, in which
/// all of it lies.
#[pyfunction]
pub(crate) fn sums_of(py: Python<'_>, tensor: &Bound<'_, PyAny>, begin: u64) -> PyResult<[u32; 2]> {
    let bytes = bytes_of(py, tensor)?;
    let bytes = bytes.bytes();
    if bytes.len() <= AT_ONCE {
        // Handing it to other threads takes longer.
        return Ok(sum(bytes, begin).numbers());
    }
    run(py, &How::default(), |_| Ok(sum(bytes, begin).numbers()))
}

/// The two sums of each of several tensors of this many bytes, which lie one after another in one
/// tensor on the CPU.
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

/// The bytes of a tensor on the CPU.
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

/// The sums of bytes of which the first stands at `begin` in its piece.
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
