//! The course of links over the lineages that are built: which entries write a piece, which
//! segments have its parts, and which pieces are built together.

use crate::error::{Error, Result};
use crate::format::WrittenTensor;
use crate::groups::grouped;
use crate::limits::address;
use crate::link::LinkReader;
use crate::replay::lineage::{EntryId, Lineage};
use crate::source::Source;

/// A segment of a sequence of links: the number of the link, and of the segment in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentId {
    pub(super) link: usize,
    pub(super) segment: usize,
}

/// A piece of a lineage, by their numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) lineage: usize,
    pub(super) piece: u64,
}

/// The links, and the lineages that are built.
#[derive(Debug)]
pub(super) struct Course<'a, S> {
    pub(super) links: &'a [&'a LinkReader<S>],
    pub(super) lineages: Vec<Lineage<'a>>,
    /// The entries that write the lineages; [`Lineage::entries`] are ranges of these.
    pub(super) entries: Vec<EntryId>,
}

/// A broken rule, and where it stands in the order of SPEC section 10. Of several faults, the least
/// is reported.
#[derive(Debug)]
pub(super) struct Fault {
    order: FaultOrder,
    pub(super) error: Error,
}

/// Position of a fault in the order in which a reader checks links one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FaultOrder {
    link: usize,
    stage: Stage,
    /// The number of the segment when decoding, otherwise of the entry.
    segment_or_entry: usize,
    /// When decoding, 0 for the segment, then its parts; otherwise the number of the piece.
    part_or_piece: u64,
}

/// The last steps of a link, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Step 8 of SPEC section 10.
    Decode,
    /// Step 9 of SPEC section 10, or step 3 of section 24.6.
    Compare,
}

impl Fault {
    /// A fault of a segment itself: steps 8.1 to 8.4.
    pub(super) fn of_segment(id: SegmentId, error: Error) -> Self {
        let order = FaultOrder {
            link: id.link,
            stage: Stage::Decode,
            segment_or_entry: id.segment,
            part_or_piece: 0,
        };
        Self::new(order, error)
    }

    /// A fault of a part of a segment, which is found after those of the segment: step 8.5.
    pub(super) fn of_part(id: SegmentId, part: usize, error: Error) -> Self {
        let order = FaultOrder {
            link: id.link,
            stage: Stage::Decode,
            segment_or_entry: id.segment,
            part_or_piece: 1 + part as u64,
        };
        Self::new(order, error)
    }

    /// A piece that is not what an entry promises.
    pub(super) fn of_piece(id: EntryId, piece: u64, error: Error) -> Self {
        let order = FaultOrder {
            link: id.link,
            stage: Stage::Compare,
            segment_or_entry: id.entry,
            part_or_piece: piece,
        };
        Self::new(order, error)
    }

    fn new(order: FaultOrder, error: Error) -> Self {
        Self {
            order,
            error: error.of_link(order.link),
        }
    }

    /// The lesser one, if any.
    pub(super) fn least(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        left.into_iter()
            .chain(right)
            .min_by_key(|fault| fault.order)
    }
}

/// Pieces that are built together, and the segments with parts of them, ascending.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) items: Vec<Item>,
    pub(super) segments: Vec<SegmentId>,
}

impl<'a, S: Source> Course<'a, S> {
    pub(super) fn lineage(&self, number: usize) -> &Lineage<'a> {
        &self.lineages[number]
    }

    /// The entries that write a lineage, in the order of the links.
    pub(super) fn entries_of(&self, lineage: &Lineage<'_>) -> &[EntryId] {
        &self.entries[lineage.entries.clone()]
    }

    pub(super) fn written(&self, id: EntryId) -> Result<&'a WrittenTensor> {
        self.links[id.link].written(id.entry)
    }

    /// The segment that has the entry's part of a piece, if it has one.
    pub(super) fn segment_of(&self, id: EntryId, piece: u64) -> Result<Option<SegmentId>> {
        let segment = self
            .written(id)?
            .pieces
            .get(address(piece)?)
            .copied()
            .flatten();
        Ok(segment.map(|segment| SegmentId {
            link: id.link,
            segment,
        }))
    }

    /// Pieces in groups: each has at most as many bytes as a full piece, and one dtype.
    pub(super) fn grouped(&self, items: impl IntoIterator<Item = Item>) -> Result<Vec<Group>> {
        let pieces = items
            .into_iter()
            .map(|item| (self.lineage(item.lineage).info, item.piece, item));
        let groups = grouped(pieces).into_iter().map(|items| {
            let mut segments = Vec::new();
            for item in &items {
                for &id in self.entries_of(self.lineage(item.lineage)) {
                    // Pieces of one segment come one after another, or nearly so (R-IDX-19).
                    segments.extend(
                        self.segment_of(id, item.piece)?
                            .filter(|segment| segments.last() != Some(segment)),
                    );
                }
            }
            segments.sort_unstable();
            segments.dedup();
            Ok(Group { items, segments })
        });
        groups.collect()
    }
}
