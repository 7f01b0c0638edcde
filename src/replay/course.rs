//! The course of links over the lineages that are built: which entries write a piece, which
//! segments have its parts, and which pieces are dealt with together.

use crate::error::{Error, Result};
use crate::format::WrittenTensor;
use crate::groups::grouped;
use crate::limits::address;
use crate::link::LinkReader;
use crate::replay::lineage::{EntryPlace, Lineage};
use crate::source::Source;

/// A segment of a sequence of links: the number of the link, and of the segment in it.
pub(super) type SegmentNumber = (usize, usize);

/// A piece of a lineage, by their numbers.
pub(super) type Item = (usize, u64);

/// The links, and the lineages that are built.
#[derive(Debug)]
pub(super) struct Course<'a, S> {
    pub(super) links: &'a [&'a LinkReader<S>],
    pub(super) lineages: Vec<Lineage<'a>>,
    /// The entries that write them.
    pub(super) places: Vec<EntryPlace>,
}

/// A broken rule, and where: by the link, the step of SPEC section 10 (9 for sums), the segment or
/// the entry, the part or the piece. Of several the first counts.
#[derive(Debug)]
pub(super) struct Fault {
    place: (usize, u8, usize, u64),
    pub(super) error: Error,
}

impl Fault {
    pub(super) fn new(place: (usize, u8, usize, u64), error: Error) -> Self {
        Self {
            place,
            error: error.of_link(place.0),
        }
    }

    /// The lesser one, if any.
    pub(super) fn least(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        left.into_iter()
            .chain(right)
            .min_by_key(|fault| fault.place)
    }
}

/// Pieces that are dealt with together, and the segments with parts of them, ascending.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) items: Vec<Item>,
    pub(super) segments: Vec<SegmentNumber>,
}

impl<'a, S: Source> Course<'a, S> {
    pub(super) fn lineage(&self, number: usize) -> &Lineage<'a> {
        &self.lineages[number]
    }

    /// The entries that write a lineage.
    pub(super) fn places(&self, lineage: &Lineage<'_>) -> &[EntryPlace] {
        &self.places[lineage.places.clone()]
    }

    pub(super) fn written(&self, (link, entry): EntryPlace) -> Result<&'a WrittenTensor> {
        self.links[link].written(entry)
    }

    /// The segment that has a part of a piece.
    pub(super) fn segment_of(
        &self,
        (link, entry): EntryPlace,
        piece: u64,
    ) -> Result<Option<SegmentNumber>> {
        let segment = self
            .written((link, entry))?
            .pieces
            .get(address(piece)?)
            .copied()
            .flatten();
        Ok(segment.map(|segment| (link, segment)))
    }

    /// Pieces in groups: each has about as many bytes as a full piece, and one dtype.
    pub(super) fn grouped(&self, items: impl IntoIterator<Item = Item>) -> Result<Vec<Group>> {
        let pieces = items
            .into_iter()
            .map(|(number, piece)| (self.lineage(number).info, piece, (number, piece)));
        let groups = grouped(pieces).into_iter().map(|items| {
            let mut segments = Vec::new();
            for &(number, piece) in &items {
                for &place in self.places(self.lineage(number)) {
                    // Pieces of one segment come one after another, or nearly so.
                    segments.extend(
                        self.segment_of(place, piece)?
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
