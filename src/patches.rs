//! Patches: the changes of a link, tensor by tensor, as sorted lane numbers and new values; for
//! engines that patch memory.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::codec::changes::append_changes;
use crate::error::{Error, Result};
use crate::format::{Start, WrittenTensor};
use crate::limits::address;
use crate::link::{LinkReader, Segment};
use crate::source::Source;
use crate::tensor::{Dtype, State, TensorInfo, find_patchable, read_piece};

/// Number of segments that an iteration keeps decoded: small tensors share segments, and neighbours
/// by name alternate between the segments of a few dtypes and methods.
const KEPT_SEGMENTS: usize = 8;

/// New values of some lanes of one piece of a tensor.
///
/// A lane is an element, or a byte of a packed type. Lanes that no patch of a tensor names keep the
/// values that the tensor starts from: see [`Patch::start`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch<'a> {
    /// Name, dtype and shape of the whole tensor in the target.
    pub tensor: &'a TensorInfo,
    /// Whether the tensor's other lanes are the base's, or zero.
    pub start: Start,
    /// Changed lanes of the tensor, strictly ascending; `None` if all lanes of `lanes` are given,
    /// in order.
    pub indices: Option<Vec<u64>>,
    /// The lanes of the tensor that this patch concerns.
    pub lanes: Range<u64>,
    /// New values, one lane per index, little-endian: `indices.len() * dtype.lane_bytes()` bytes.
    pub values: Vec<u8>,
}

impl Patch<'_> {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    /// Number of lanes with new values.
    pub fn count(&self) -> usize {
        self.values.len() / self.dtype().lane_bytes()
    }
}

/// Iterator over the patches of a link: by tensor, then by piece.
struct Patches<'a, S> {
    link: &'a LinkReader<S>,
    base: Option<&'a dyn State>,
    /// The remaining pieces: number of the entry, number of the piece, selected lanes of the
    /// tensor.
    pending: VecDeque<(usize, u64, Range<u64>)>,
    /// Decoded segments, the most recently used one last.
    kept: VecDeque<(usize, Segment)>,
}

impl<S: Source> LinkReader<S> {
    /// The patches of all tensors whose names `select` accepts, by tensor, then by piece. Segments
    /// that hold none of them are not read.
    ///
    /// Absolute values need no base. With relative values, `base` has the old lanes; a patch then
    /// names the lanes that differ from it. Memory: a few segments.
    ///
    /// The base's digest is not checked here: use [`Replay`](crate::Replay) if the result must be
    /// proven.
    ///
    /// ```
    /// use deltachain::tensor::{Dtype, MemoryState};
    /// use deltachain::{DiffOptions, Limits, LinkReader, Profile, diff};
    ///
    /// # fn main() -> deltachain::Result<()> {
    /// let (mut base, mut target) = (MemoryState::new(), MemoryState::new());
    /// base.insert("w", Dtype::U8, &[5], vec![0, 1, 2, 3, 4])?;
    /// target.insert("w", Dtype::U8, &[5], vec![0, 9, 2, 3, 8])?;
    /// let mut file = Vec::new();
    /// diff(&base, &target, &DiffOptions::default().profile(Profile::Direct), &mut file)?;
    ///
    /// let link = LinkReader::open(file, &Limits::default())?;
    /// for patch in link.patches(|name| name == "w", None) {
    ///     let patch = patch?;
    ///     assert_eq!(patch.indices, Some(vec![1, 4]));
    ///     assert_eq!(patch.values, [9, 8]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn patches<'a, F: Fn(&str) -> bool>(
        &'a self,
        select: F,
        base: Option<&'a dyn State>,
    ) -> impl Iterator<Item = Result<Patch<'a>>> + use<'a, S, F> {
        let tensors = self.index().tensors.iter().enumerate();
        let pending = tensors
            .filter_map(|(number, entry)| Some((number, entry.written()?)))
            .filter(|(_, written)| select(written.info.name()))
            .flat_map(|(number, written)| wanted(number, written, &(0..written.info.lanes())))
            .collect();
        Patches {
            link: self,
            base,
            pending,
            kept: VecDeque::new(),
        }
    }

    /// The patches of one tensor, as far as they concern the given lanes. Only segments that hold
    /// pieces of these lanes are read. Empty if the link does not write the tensor.
    pub fn tensor_patches<'a>(
        &'a self,
        name: &str,
        lanes: Range<u64>,
        base: Option<&'a dyn State>,
    ) -> impl Iterator<Item = Result<Patch<'a>>> + use<'a, S> {
        let entry = self.index().find(name);
        let written =
            entry.and_then(|number| Some((number, self.index().tensors[number].written()?)));
        let pending = written
            .map(|(number, written)| wanted(number, written, &lanes))
            .unwrap_or_default()
            .into();
        Patches {
            link: self,
            base,
            pending,
            kept: VecDeque::new(),
        }
    }
}

/// The pieces of a tensor that have parts and hold some of these lanes.
fn wanted(
    entry: usize,
    written: &WrittenTensor,
    lanes: &Range<u64>,
) -> Vec<(usize, u64, Range<u64>)> {
    (0_u64..)
        .zip(&written.pieces)
        .filter(|(_, segment)| segment.is_some())
        .filter_map(|(piece, _)| {
            let own = written.info.piece_lanes(piece);
            let wanted = own.start.max(lanes.start)..own.end.min(lanes.end);
            (!wanted.is_empty()).then_some((entry, piece, wanted))
        })
        .collect()
}

impl<'a, S: Source> Patches<'a, S> {
    /// The patch of one piece that has a part, as far as it concerns the given lanes of the tensor.
    fn patch(&mut self, entry: usize, piece: u64, lanes: Range<u64>) -> Result<Patch<'a>> {
        let link = self.link;
        let written = link.written(entry)?;
        let number =
            written.pieces[address(piece)?].ok_or_else(|| Error::usage("the piece has no part"))?;
        let part = link.part(number, entry, piece);
        let coding = link.index().segments[number].coding;
        let base = self.base;
        let first = written.info.piece_lanes(piece).start;
        let in_tensor = |numbers: Vec<u32>| {
            numbers
                .into_iter()
                .map(|number| first + u64::from(number))
                .collect()
        };
        let segment = self.segment(number)?;
        let (mut indices, mut values): (Option<Vec<u64>>, _) = if coding.is_relative() {
            let Some(base) = base else {
                let message = format!(
                    "{} is coded relative to its base: give the base",
                    written.info.name()
                );
                return Err(Error::usage(message).of_tensor(written.info.name()));
            };
            let tensor = find_patchable(base.tensors(), &written.info).ok_or_else(|| {
                Error::usage("the base has no such tensor of this dtype and length")
                    .of_tensor(written.info.name())
            })?;
            let mut old = Vec::new();
            read_piece(base, tensor, piece, &mut old)?;
            let mut new = old.clone();
            link.locate(number, part, segment.apply(part, &mut new))?;
            let (mut numbers, mut values) = (Vec::new(), Vec::new());
            append_changes(
                coding.lane_bytes,
                0,
                (&old, &new),
                &mut numbers,
                &mut values,
            );
            (Some(in_tensor(numbers)), values)
        } else {
            let (numbers, values) = link.locate(number, part, segment.coded(part))?;
            (numbers.map(in_tensor), values)
        };

        let before = |lane: u64| match &indices {
            Some(indices) => Ok(indices.partition_point(|&index| index < lane)),
            None => address(lane - first),
        };
        let (begin, end) = (before(lanes.start)?, before(lanes.end)?);
        values.truncate(end * coding.lane_bytes);
        values.drain(..begin * coding.lane_bytes);
        if let Some(indices) = &mut indices {
            indices.truncate(end);
            indices.drain(..begin);
        }
        Ok(Patch {
            tensor: &written.info,
            start: written.start,
            indices,
            lanes,
            values,
        })
    }

    /// The failure to report if a piece has failed: that of the first selected segment in file
    /// order that fails (SPEC section 10). The iteration ends with it, because later patches would
    /// be unreliable.
    fn first_failure(&mut self, entry: usize, piece: u64, error: Error) -> Error {
        let segment_of = |entry: usize, piece: u64| {
            let written = self.link.index().tensors[entry].written()?;
            *written.pieces.get(usize::try_from(piece).ok()?)?
        };
        // A failure that is not the file's fault is reported first.
        let failed = error.rule().and_then(|_| segment_of(entry, piece));
        let wanted = self
            .pending
            .drain(..)
            .filter_map(|(entry, piece, _)| segment_of(entry, piece));
        let before: BTreeSet<usize> = wanted.filter(|number| Some(*number) < failed).collect();
        before
            .into_iter()
            .find_map(|number| self.link.segment(number).err())
            .unwrap_or(error)
    }

    /// A decoded segment, kept for the next pieces.
    fn segment(&mut self, number: usize) -> Result<&Segment> {
        let kept = self
            .kept
            .iter()
            .position(|(kept, _)| *kept == number)
            .and_then(|place| self.kept.remove(place));
        let decoded = match kept {
            Some(decoded) => decoded,
            None => (number, self.link.segment(number)?),
        };
        if self.kept.len() == KEPT_SEGMENTS {
            self.kept.pop_front();
        }
        self.kept.push_back(decoded);
        let last = self.kept.len() - 1;
        Ok(&self.kept[last].1)
    }
}

impl<'a, S: Source> Iterator for Patches<'a, S> {
    type Item = Result<Patch<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (entry, piece, lanes) = self.pending.pop_front()?;
        Some(
            self.patch(entry, piece, lanes)
                .map_err(|error| self.first_failure(entry, piece, error)),
        )
    }
}
