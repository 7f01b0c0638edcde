//! Work on the tensors of two states that all layouts share.

use deltachain::tensor::{State, StateWriter, TensorInfo, find};
use deltachain::{Error, Progress, Result};
use rayon::prelude::*;

/// Checks that both states have the same tensors: names, dtypes and shapes.
pub(crate) fn same(base: &[TensorInfo], target: &[TensorInfo]) -> Result<()> {
    for info in target {
        match find(base, info.name()) {
            None => return Err(refused(info, "is added")),
            Some(place) if base[place] != *info => {
                return Err(refused(info, "changes its dtype or shape"));
            }
            Some(_) => {}
        }
    }
    match base.iter().find(|info| find(target, info.name()).is_none()) {
        Some(info) => Err(refused(info, "is removed")),
        None => Ok(()),
    }
}

fn refused(info: &TensorInfo, what: &str) -> Error {
    Error::usage(format!("the layout cannot carry a tensor that {what}")).of_tensor(info.name())
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

/// Writes the result of `change` on each tensor of the base, several at once. An error names its
/// tensor.
pub(crate) fn change_tensors<T: Send>(
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
    change: impl Fn(&TensorInfo, &mut [u8]) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    each(base.tensors().len(), |tensor| {
        let info = &base.tensors()[tensor];
        change_tensor(base, out, progress, tensor, |bytes| change(info, bytes))
    })
}

/// Writes the result of `change` on a tensor of the base. An error names the tensor.
pub(crate) fn change_tensor<T>(
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
    tensor: usize,
    change: impl FnOnce(&mut [u8]) -> Result<T>,
) -> Result<T> {
    let info = &base.tensors()[tensor];
    let in_tensor = |error: Error| error.of_tensor(info.name());
    let mut bytes = bytes_of(base, tensor).map_err(in_tensor)?;
    let result = change(&mut bytes).map_err(in_tensor)?;
    out.write(tensor, 0, &bytes).map_err(in_tensor)?;
    progress.advance(info.bytes()).map_err(in_tensor)?;
    Ok(result)
}

/// Changes `bytes` to their exclusive or with as many others.
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
