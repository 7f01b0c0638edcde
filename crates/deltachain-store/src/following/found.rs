//! What is found in memory: the table of a shard, and its sums.

use deltachain::StateSums;
use deltachain::tensor::{State, StateDigests, TensorInfo};
use deltachain::{Error, Progress, Result, StateTable};

use crate::following::selection::Choice;

/// The table of a shard's memory, and its sums if these are wanted. Both come from one reading. `whole` has the digests
/// of tensors that are not taken.
pub(crate) fn found(
    choice: &Choice,
    memory: &impl State,
    whole: Option<&StateTable>,
    wants_sums: bool,
    progress: &dyn Progress,
) -> Result<(StateTable, Option<StateSums>)> {
    if !wants_sums {
        let digests = StateDigests::of(memory, progress)?;
        let found = StateTable { tensors: memory.tensors().to_vec(), digests };
        return Ok((in_whole(choice, found, whole)?, None));
    }
    let (found, sums) = StateSums::hashed(memory, progress)?;
    let table = in_whole(choice, found, whole)?;
    let mut sums = sums.tensors.into_iter();
    let taken = |info: &TensorInfo| if choice.takes(info.name()) { sums.next().flatten() } else { None };
    let tensors = table.tensors.iter().map(taken).collect();
    Ok((table, Some(StateSums { tensors })))
}

/// The sums of the tensors that are taken, if all of them are known.
pub(crate) fn sums_of_taken(choice: &Choice, table: &StateTable, sums: &StateSums) -> Option<StateSums> {
    let known = sums.tensors.iter().chain(std::iter::repeat(&None));
    let taken = table.tensors.iter().zip(known).filter(|(info, _)| choice.takes(info.name()));
    let tensors: Option<Vec<_>> = taken.map(|(_, sums)| sums.clone().map(Some)).collect();
    tensors.map(|tensors| StateSums { tensors })
}

/// The table of a shard, with the digests of the tensors that have been found in memory. `whole` has those of tensors
/// that are not taken.
fn in_whole(choice: &Choice, found: StateTable, whole: Option<&StateTable>) -> Result<StateTable> {
    let Some(whole) = whole else { return Ok(found) };
    let taken = whole.tensors.iter().filter(|info| choice.takes(info.name()));
    if !taken.eq(&found.tensors) {
        return Err(Error::usage("the memory does not contain exactly the selected tensors"));
    }
    let mut found = found.digests.tensors.into_iter();
    let rows = whole.tensors.iter().zip(&whole.digests.tensors);
    let digests =
        rows.map(|(info, &digest)| if choice.takes(info.name()) { found.next() } else { None }.unwrap_or(digest));
    Ok(StateTable::new(whole.tensors.clone(), digests.collect()))
}
