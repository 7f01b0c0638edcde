//! What Python needs to compute sums (SPEC-in-place section 24) with torch, on the device that holds the memory.

use deltachain::sums;
use pyo3::prelude::*;

use crate::memory::{Buffer, Kept};

/// The fixed numbers that units are multiplied with: 4096 for each of the two sums by place, 2048 for each by row.
#[pyfunction]
pub(crate) fn sum_numbers() -> Buffer {
    Buffer::new(Kept::Int64(sums::numbers().map(i64::from).collect()))
}
