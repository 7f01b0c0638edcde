//! What links do to the lineages that are built: which entries write a piece, which segments have its parts, and which pieces
//! are dealt with together.

use crate::error::{Error, Result};
use crate::format::WrittenTensor;
use crate::groups::Groups;
use crate::limits::address;
use crate::link::LinkReader;
use crate::replay::lineage::{Lineage, Place, Taken};
use crate::source::Source;

/// A segment of a sequence of links: the number of the link, and of the segment in it.
pub(super) type SegmentNumber = (usize, usize);

/// A piece of a lineage, by their numbers.
pub(super) type Item = (usize, u64);

/// The links, and the lineages that are built.
#[derive(Debug)]
pub(super) struct Course<'a, S> {
    pub(super) links: &'a [&'a LinkReader<S>],
    pub(super) taken: &'a Taken<'a>,
}

impl<S> Clone for Course<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Course<'_, S> {}

/// Pieces that are dealt with together, and the segments with parts of them, ascending.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) items: Vec<Item>,
    pub(super) segments: Vec<SegmentNumber>,
}

impl<'a, S: Source> Course<'a, S> {
    pub(super) fn lineage(&self, number: usize) -> &'a Lineage<'a> {
        &self.taken.lineages[number]
    }

    /// What writes a lineage.
    pub(super) fn places(&self, lineage: &Lineage<'_>) -> &'a [Place] {
        &self.taken.places[lineage.places.clone()]
    }

    pub(super) fn written(&self, (link, entry): Place) -> Result<&'a WrittenTensor> {
        // Lineages are made of written tensors only.
        self.links[link].index().tensors[entry].written().ok_or_else(|| Error::usage("the tensor is removed"))
    }

    /// The segment that has a part of a piece.
    pub(super) fn segment_of(&self, (link, entry): Place, piece: u64) -> Result<Option<SegmentNumber>> {
        let segment = self.written((link, entry))?.pieces.get(address(piece)?).copied().flatten();
        Ok(segment.map(|segment| (link, segment)))
    }

    /// The number of the part that a segment has of a piece.
    pub(super) fn part(&self, (link, segment): SegmentNumber, entry: usize, piece: u64) -> usize {
        self.links[link].parts(segment).partition_point(|part| (part.entry, part.piece) < (entry, piece))
    }

    /// Pieces in groups: each has about as many bytes as a full piece, and one dtype.
    pub(super) fn grouped(&self, items: impl IntoIterator<Item = Item>) -> Result<Vec<Group>> {
        let (mut groups, mut open) = (Vec::new(), Groups::new());
        for (number, piece) in items {
            let info = self.lineage(number).info;
            let range = info.piece(piece);
            groups.extend(open.push(info.dtype(), range.end - range.start, (number, piece)));
        }
        groups.extend(open.finish().map(|(_, group)| group));
        let groups = groups.into_iter().map(|items| {
            let mut segments = Vec::new();
            for &(number, piece) in &items {
                for &place in self.places(self.lineage(number)) {
                    // Those of one group come one after another, or nearly so.
                    segments.extend(self.segment_of(place, piece)?.filter(|segment| segments.last() != Some(segment)));
                }
            }
            segments.sort_unstable();
            segments.dedup();
            Ok(Group { items, segments })
        });
        groups.collect()
    }
}
