//! Work on the tensors of two states that all layouts share.

use deltachain::tensor::{State, TensorInfo};
use deltachain::{Error, Result};
use rayon::prelude::*;

/// Checks that both states have the same tensors: names, dtypes and shapes.
pub(crate) fn same(base: &[TensorInfo], target: &[TensorInfo]) -> Result<()> {
    let find = |among: &[TensorInfo], info: &TensorInfo| {
        among
            .binary_search_by(|other| other.name().cmp(info.name()))
            .ok()
            .map(|place| among[place].clone())
    };
    let refuse = |info: &TensorInfo, what: &str| {
        Err(
            Error::usage(format!("the layout cannot carry a tensor that {what}"))
                .of_tensor(info.name()),
        )
    };
    for info in target {
        match find(base, info) {
            None => return refuse(info, "is added"),
            Some(old) if old != *info => return refuse(info, "changes its dtype or shape"),
            Some(_) => {}
        }
    }
    match base.iter().find(|info| find(target, info).is_none()) {
        Some(info) => refuse(info, "is removed"),
        None => Ok(()),
    }
}

/// Reads all bytes of a tensor.
pub(crate) fn bytes_of(state: &dyn State, tensor: usize) -> Result<Vec<u8>> {
    let info = state
        .tensors()
        .get(tensor)
        .ok_or_else(|| Error::usage("no such tensor in the state"))?;
    let mut bytes = vec![0; address(info.bytes())?];
    state.read(tensor, 0, &mut bytes)?;
    Ok(bytes)
}

/// Converts a length to one in memory.
pub(crate) fn address(length: u64) -> Result<usize> {
    usize::try_from(length)
        .map_err(|_| Error::usage(format!("{length} bytes exceed the address space")))
}

/// Calls `work` with each number below `count`, in parallel; returns the results, or the error of
/// the lowest number that failed.
pub(crate) fn each<T: Send>(
    count: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let results: Vec<Result<T>> = (0..count).into_par_iter().map(&work).collect();
    results.into_iter().collect()
}

/// Replaces `bytes` with their exclusive or with `others`, which are as many.
pub(crate) fn xor(bytes: &mut [u8], others: &[u8]) {
    for (byte, other) in bytes.iter_mut().zip(others) {
        *byte ^= other;
    }
}

/// Returns the changed elements of two bytes each: their positions, and their old and new bits.
pub(crate) fn changed_pairs(old: &[u8], new: &[u8]) -> (Vec<u64>, Vec<[u16; 2]>) {
    let (mut places, mut bits) = (Vec::new(), Vec::new());
    for (place, (old, new)) in (0_u64..).zip(pairs(old).zip(pairs(new))) {
        if old != new {
            places.push(place);
            bits.push([old, new]);
        }
    }
    (places, bits)
}

/// Returns the elements of two bytes each.
pub(crate) fn pairs(bytes: &[u8]) -> impl ExactSizeIterator<Item = u16> {
    bytes
        .as_chunks::<2>()
        .0
        .iter()
        .map(|pair| u16::from_le_bytes(*pair))
}
