//! The digests and sums of a shard, as they are found in memory.

use deltachain::StateSums;
use deltachain::chain::check_held;
use deltachain::tensor::{Digest, TensorInfo};
use deltachain::{Error, Result, StateTable};

use crate::directory::held::{HeldVersion, ShardRecord};
use crate::following::selection::Selection;

/// Checks that a held shard is unchanged: `found` are the digests of its `tensors` in memory.
///
/// # Errors
/// R-APP-01 (`WRONG_BASE`) if it has changed; USAGE if `tensors` are not the selected tensors.
pub(crate) fn check_found(
    selection: &Selection,
    held: &HeldVersion<()>,
    shard: &ShardRecord,
    (tensors, found): (&[TensorInfo], Vec<Digest>),
) -> Result<()> {
    let whole = &shard.table;
    let taken = whole
        .tensors
        .iter()
        .filter(|info| selection.takes(info.name()));
    if !taken.eq(tensors) {
        return Err(Error::usage(
            "the memory does not contain exactly the selected tensors",
        ));
    }
    let mut found = found.into_iter();
    let rows = whole.tensors.iter().zip(&whole.digests.tensors);
    let digests = rows.map(|(info, &digest)| {
        if selection.takes(info.name()) {
            found.next()
        } else {
            None
        }
        .unwrap_or(digest)
    });
    let now = StateTable::new(whole.tensors.clone(), digests.collect())
        .digests
        .state;
    let mut expected = vec![Digest::of_empty_state(); held.of];
    expected[shard.number] = whole.digests.state;
    check_held(&expected, held.of, [(shard.number, now)])
}

/// Returns the sums of all tensors of a shard: `found` has those of the selected tensors, and the
/// others are unknown.
pub(crate) fn sums_of_all(
    selection: &Selection,
    table: &StateTable,
    found: StateSums,
) -> StateSums {
    let mut found = found.tensors.into_iter();
    let sums = |info: &TensorInfo| {
        if selection.takes(info.name()) {
            found.next().flatten()
        } else {
            None
        }
    };
    StateSums {
        tensors: table.tensors.iter().map(sums).collect(),
    }
}

/// Returns the sums of the selected tensors; `None` if one of them is unknown.
pub(crate) fn sums_of_taken(
    selection: &Selection,
    table: &StateTable,
    sums: &StateSums,
) -> Option<StateSums> {
    let known = sums.tensors.iter().chain(std::iter::repeat(&None));
    let taken = table
        .tensors
        .iter()
        .zip(known)
        .filter(|(info, _)| selection.takes(info.name()));
    let tensors: Option<Vec<_>> = taken.map(|(_, sums)| sums.clone().map(Some)).collect();
    tensors.map(|tensors| StateSums { tensors })
}
