//! Collects the differences between two states: stretch by stretch within a piece, piece by piece
//! within a set.

use crate::codec::changes::append_changes;
use crate::codec::lane::{Lane, with_lane};
use crate::error::{Error, Result};
use crate::memory::patch_set::{PatchSet, Run, RunKind};
use crate::table::StateTable;
use crate::tensor::{MemoryState, State, TensorInfo, find_patchable, total_bytes};

/// Runs begin at multiples of this in the arena of values.
const ALIGNMENT: usize = 8;

/// Numbers of lanes count from a multiple of this.
const LANES_PER_BLOCK: u64 = 1 << 32;

/// The changes in one piece. They take no more bytes than the piece and one stretch.
#[derive(Debug)]
pub(crate) struct PieceChanges {
    lane_bytes: usize,
    /// End of the last stretch.
    end: u64,
    spans: Vec<ChangeSpan>,
    /// Lanes within the piece.
    numbers: Vec<u32>,
    values: Vec<u8>,
    /// The values of the base in the same places.
    old: Vec<u8>,
}

/// Changes of one kind.
#[derive(Debug)]
enum ChangeSpan {
    /// This many of the next numbers.
    Lanes(usize),
    /// All bytes of a range: where it begins, and its length.
    Whole(u64, usize),
}

impl PieceChanges {
    /// No changes yet, for a piece of a tensor with lanes of `lane_bytes` bytes.
    pub(crate) fn new(lane_bytes: usize) -> Self {
        Self {
            lane_bytes,
            end: 0,
            spans: Vec::new(),
            numbers: Vec::new(),
            values: Vec::new(),
            old: Vec::new(),
        }
    }

    /// Compares the next stretch of whole lanes, which begins at byte `begin` of the piece: its
    /// bytes in base and target. If the new bytes are not longer than numbers and values, all of
    /// them are kept instead.
    pub(crate) fn add(&mut self, begin: u64, old: &[u8], new: &[u8]) {
        self.end = begin + new.len() as u64;
        let (numbers, values) = (self.numbers.len(), self.values.len());
        // Lanes of a piece are 2^24 at most.
        let first = u32::try_from(begin / self.lane_bytes as u64).unwrap_or(u32::MAX);
        append_changes(
            self.lane_bytes,
            first,
            (old, new),
            &mut self.numbers,
            &mut self.values,
        );
        let changed = self.numbers.len() - numbers;
        if changed == 0 {
            return;
        }
        if changed * (size_of::<u32>() + self.lane_bytes) < new.len() {
            let own = self.old.len();
            self.old.resize(self.values.len(), 0);
            with_lane!(self.lane_bytes, L => {
                let (lanes, old) = (&self.numbers[numbers..], L::chunks(old));
                for (value, &lane) in L::chunks_mut(&mut self.old[own..]).iter_mut().zip(lanes) {
                    *value = old[(lane - first) as usize];
                }
            });
            match self.spans.last_mut() {
                Some(ChangeSpan::Lanes(count)) => *count += changed,
                _ => self.spans.push(ChangeSpan::Lanes(changed)),
            }
        } else {
            self.numbers.truncate(numbers);
            self.values.truncate(values);
            self.values.extend_from_slice(new);
            self.old.extend_from_slice(old);
            match self.spans.last_mut() {
                Some(ChangeSpan::Whole(first, length)) if *first + *length as u64 == begin => {
                    *length += new.len();
                }
                _ => self.spans.push(ChangeSpan::Whole(begin, new.len())),
            }
        }
    }
}

/// A collector that makes a [`PatchSet`] from the changes of pieces.
#[derive(Debug)]
pub(crate) struct PatchCollector {
    set: PatchSet,
    budget: u64,
    /// Bytes of the new tensors.
    new_bytes: u64,
}

impl PatchCollector {
    /// No changes yet between the base's tensors, ascending by name, and a target. `budget` bounds
    /// [`PatchSet::bytes`].
    ///
    /// # Errors
    /// USAGE if the target's new tensors exceed the budget.
    pub(crate) fn new(base: &[TensorInfo], target: &StateTable, budget: u64) -> Result<Self> {
        let over = target
            .tensors
            .iter()
            .map(|info| find_patchable(base, info))
            .collect();
        let set = PatchSet {
            base: base.to_vec(),
            table: target.clone(),
            over,
            runs: Vec::new(),
            numbers: Vec::new(),
            values: Vec::new(),
            old: Vec::new(),
            other: MemoryState::new(),
            written: 0,
            is_switched: false,
        };
        let mut collector = Self {
            set,
            budget,
            new_bytes: 0,
        };
        collector.new_bytes = total_bytes(collector.new_tensors().map(|(_, info)| info));
        collector.check_budget()?;
        Ok(collector)
    }

    /// The base's tensor that a target's tensor is laid over: of the same name, dtype and byte
    /// length. `None` if it is new.
    pub(crate) fn over(&self, tensor: usize) -> Option<usize> {
        self.set.over(tensor)
    }

    /// The target's tensors that are new, with their numbers.
    pub(crate) fn new_tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        self.set
            .table
            .tensors
            .iter()
            .enumerate()
            .filter(|(number, _)| self.over(*number).is_none())
    }

    /// Appends the changes of a piece of a tensor that is laid over one of the base. Pieces of a
    /// tensor ascend; tensors may alternate.
    ///
    /// # Errors
    /// USAGE if all changes together exceed the budget, or if these changes do not fit the piece.
    pub(crate) fn add(&mut self, tensor: usize, piece: u64, changes: PieceChanges) -> Result<()> {
        let info = &self.set.table.tensors[tensor];
        let range = info.piece(piece);
        let lane_bytes = info.dtype().lane_bytes();
        if self.set.over[tensor].is_none()
            || changes.lane_bytes != lane_bytes
            || changes.end > range.end - range.start
        {
            return Err(
                Error::usage("the changes are not those of this piece").of_tensor(info.name())
            );
        }
        let first_lane = range.start / lane_bytes as u64;
        let (mut numbers, mut values) = (changes.numbers.as_slice(), changes.values.as_slice());
        let mut old = changes.old.as_slice();
        for span in changes.spans {
            let length = match span {
                ChangeSpan::Lanes(count) => {
                    let now;
                    (now, numbers) = numbers.split_at(count);
                    self.add_lanes(tensor, first_lane, now);
                    count * lane_bytes
                }
                ChangeSpan::Whole(begin, length) => {
                    self.add_whole(tensor, first_lane + begin / lane_bytes as u64, lane_bytes);
                    length
                }
            };
            let now;
            (now, values) = values.split_at(length);
            self.set.values.extend_from_slice(now);
            let now;
            (now, old) = old.split_at(length);
            self.set.old.extend_from_slice(now);
            if let Some(run) = self.set.runs.last_mut() {
                run.values.end = self.set.values.len();
            }
        }
        self.check_budget()
    }

    /// Appends numbers, which count from this lane, to the last run or to a new one, whose values
    /// follow.
    fn add_lanes(&mut self, tensor: usize, first_lane: u64, numbers: &[u32]) {
        let (block, offset) = split(first_lane);
        let begin = self.set.numbers.len();
        self.set
            .numbers
            .extend(numbers.iter().map(|number| offset + number));
        let end = self.set.numbers.len();
        match self.set.runs.last_mut() {
            Some(Run {
                tensor: last,
                first_lane,
                kind: RunKind::Lanes(range),
                ..
            }) if (*last, *first_lane) == (tensor, block) => {
                range.end = end;
            }
            _ => self.begin(tensor, block, RunKind::Lanes(begin..end)),
        }
    }

    /// Continues a whole run that ends at this lane, or begins one.
    fn add_whole(&mut self, tensor: usize, first_lane: u64, lane_bytes: usize) {
        let goes_on = self.set.runs.last().is_some_and(|run| {
            let end = run.first_lane + (run.values.len() / lane_bytes) as u64;
            (run.tensor, &run.kind, end) == (tensor, &RunKind::Whole, first_lane)
        });
        if !goes_on {
            self.begin(tensor, first_lane, RunKind::Whole);
        }
    }

    fn begin(&mut self, tensor: usize, first_lane: u64, kind: RunKind) {
        let begin = self.set.values.len().next_multiple_of(ALIGNMENT);
        self.set.values.resize(begin, 0);
        self.set.old.resize(begin, 0);
        self.set.runs.push(Run {
            tensor,
            first_lane,
            kind,
            values: begin..begin,
        });
    }

    fn check_budget(&self) -> Result<()> {
        let needed = self.set.arenas().saturating_add(self.new_bytes);
        if needed > self.budget {
            let budget = self.budget;
            return Err(Error::usage(format!(
                "the changes take {needed} bytes so far, {budget} are allowed"
            )));
        }
        Ok(())
    }

    /// Returns the set, with the new tensors, which must be exactly the tensors of `new`.
    ///
    /// # Errors
    /// USAGE if `new` holds other tensors.
    pub(crate) fn finish(self, new: MemoryState) -> Result<PatchSet> {
        if !self.new_tensors().map(|(_, info)| info).eq(new.tensors()) {
            return Err(Error::usage("the new tensors are not those of the target"));
        }
        let mut set = self.set;
        set.other = new.among(&set.table.tensors);
        set.runs.sort_by_key(|run| run.tensor);
        set.numbers.shrink_to_fit();
        set.values.shrink_to_fit();
        set.old.shrink_to_fit();
        Ok(set)
    }
}

/// Splits a lane into the lane that its number counts from, and the number.
fn split(lane: u64) -> (u64, u32) {
    // Less than 2^32.
    let number = lane % LANES_PER_BLOCK;
    (lane - number, u32::try_from(number).unwrap_or(0))
}
