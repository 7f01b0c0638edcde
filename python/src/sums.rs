//! The parts that Python needs for sums (SPEC section 24): the numbers with which torch computes
//! them on a device, and sums of memory that the processor can reach.

use deltachain::sums::{self, Sums};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::memory::{Buffer, BufferOwner};
use crate::tensors::{Finder, TensorBytes};
use crate::work::{How, run};

/// How much one thread takes at once; an even number.
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
    let (_, TensorBytes::Here(bytes)) = Finder::new(py)?.find("", tensor, false)? else {
        return Err(crate::errors::usage(
            py,
            "the tensor is not on the CPU",
            None,
        ));
    };
    run(py, &How::default(), |_| {
        let (first, rest) = bytes
            .bytes()
            .split_at(bytes.bytes().len().min((begin % 2 == 1).into()));
        let alone = Sums::of_lanes(1, &[u32::try_from(begin).unwrap_or(0)], first);
        let sums = rest.par_chunks(AT_ONCE).enumerate().map(|(number, bytes)| {
            let before = first.len() + number * AT_ONCE;
            Sums::of_bytes(begin + before as u64, bytes)
        });
        Ok(sums.reduce(|| Sums::ZERO, Sums::plus).plus(alone).numbers())
    })
}
