//! A set of patches that turns one state into another in place: new values of lanes, and whole
//! tensors.

use std::ops::Range;

use crate::table::StateTable;
use crate::tensor::{MemoryState, TensorInfo, find};

/// All differences between two states, the base and the target, whatever links lie between them.
/// Numbers and values lie in arenas, which can be copied to a device as they are: the target's
/// values, and the values that the base was proven to have, which undo the changes.
#[derive(Debug)]
pub struct PatchSet {
    /// The tensors of the base.
    pub(super) base: Vec<TensorInfo>,
    pub(super) table: StateTable,
    /// The base's tensor that each of the target's is laid over; `None` if it is new. Ascending:
    /// both are sorted by name.
    pub(super) over: Vec<Option<usize>>,
    pub(super) runs: Vec<Run>,
    pub(super) numbers: Vec<u32>,
    pub(super) values: Vec<u8>,
    /// The values of the base in the same places, in the same layout.
    pub(super) old: Vec<u8>,
    /// The other state's tensors; a tensor that shares its memory with one of this state has no
    /// data here.
    pub(super) other: MemoryState,
    /// Number of runs written so far.
    pub(super) written: usize,
    /// Whether the tensors have been exchanged, which comes last.
    pub(super) is_switched: bool,
}

/// New values of some lanes of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The tensor's number in the table of the target.
    pub tensor: usize,
    /// The lane that numbers count from, a multiple of 2^32; for a whole run, the first lane.
    pub first_lane: u64,
    /// The lanes of the run.
    pub kind: RunKind,
    /// Range of the values in [`PatchSet::values`], lane by lane, little-endian. The start is a
    /// multiple of 8.
    pub values: Range<usize>,
}

/// The lanes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunKind {
    /// The lanes whose numbers are in this range of [`PatchSet::numbers`], strictly ascending.
    Lanes(Range<usize>),
    /// All lanes from the first one on, as many as there are values.
    Whole,
}

impl PatchSet {
    /// The table of the target.
    pub fn table(&self) -> &StateTable {
        &self.table
    }

    /// The base's tensor that a tensor of the target is laid over, by its number: it has the same
    /// name, dtype and byte length. `None` if the tensor is new.
    pub(crate) fn over(&self, tensor: usize) -> Option<usize> {
        self.over[tensor]
    }

    /// The changes within tensors, as runs: ascending by tensor and lane.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Numbers of lanes; each run has a range of them.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Values of lanes in the target.
    pub fn values(&self) -> &[u8] {
        &self.values
    }

    /// The values that lanes have in the base, laid out as the [target's](Self::values).
    pub(crate) fn base_values(&self) -> &[u8] {
        &self.old
    }

    /// The tensors that the set contains as a whole, with their data: no tensor of the base has
    /// their name, dtype and byte length. After the set has been applied, the base's tensors that
    /// were replaced or removed.
    pub fn whole_tensors(&self) -> impl Iterator<Item = (&TensorInfo, &[u8])> {
        let shared = shared(&self.over).map(|(new, old)| if self.is_switched { old } else { new });
        let mut shared = shared.peekable();
        self.other
            .iter()
            .enumerate()
            .filter_map(move |(number, tensor)| {
                if shared.next_if_eq(&number).is_some() {
                    None
                } else {
                    Some(tensor)
                }
            })
    }

    /// The names of the base's tensors that the target does not have.
    pub fn removed(&self) -> impl Iterator<Item = &str> {
        let is_left = |name: &str| find(&self.table.tensors, name).is_some();
        self.base
            .iter()
            .map(TensorInfo::name)
            .filter(move |name| !is_left(name))
    }

    /// Number of lanes that the runs change.
    pub fn lanes(&self) -> u64 {
        let width = |run: &Run| self.table.tensors[run.tensor].dtype().lane_bytes();
        self.runs
            .iter()
            .map(|run| (run.values.len() / width(run)) as u64)
            .sum()
    }

    /// Bytes in memory: the arenas and the whole tensors.
    pub fn bytes(&self) -> u64 {
        let whole: usize = self.whole_tensors().map(|(_, data)| data.len()).sum();
        self.arenas() + whole as u64
    }

    /// Bytes of the arenas.
    pub(super) fn arenas(&self) -> u64 {
        (size_of_val(self.numbers.as_slice()) + self.values.len() + self.old.len()) as u64
    }
}

/// The tensors that are laid over the base's: their numbers in the target and in the base,
/// ascending.
pub(super) fn shared(over: &[Option<usize>]) -> impl Iterator<Item = (usize, usize)> {
    over.iter()
        .enumerate()
        .filter_map(|(new, old)| Some((new, (*old)?)))
}
