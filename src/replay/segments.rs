//! The decoded segments of several links: each is decoded when the first group opens it, and
//! dropped when the last one closes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::link::{LinkReader, Segment};
use crate::replay::course::{Group, SegmentId};
use crate::source::Source;

/// The segments of links.
#[derive(Debug)]
pub(super) struct Segments<'a, S> {
    links: &'a [&'a LinkReader<S>],
    /// For each link, the slots of its segments.
    slots: Vec<Vec<Mutex<Slot>>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Number of groups that have not read it yet.
    uses: usize,
    segment: Option<Arc<Segment>>,
}

impl<'a, S: Source> Segments<'a, S> {
    /// Creates empty slots, and counts for each segment the groups that will open it.
    pub(super) fn of(links: &'a [&'a LinkReader<S>], groups: &[Group]) -> Self {
        let slots = |link: &&LinkReader<S>| {
            link.index()
                .segments
                .iter()
                .map(|_| Mutex::default())
                .collect()
        };
        let segments = Self {
            links,
            slots: links.iter().map(slots).collect(),
        };
        groups
            .iter()
            .flat_map(|group| &group.segments)
            .for_each(|&id| segments.slot(id).uses += 1);
        segments
    }

    fn slot(&self, id: SegmentId) -> MutexGuard<'_, Slot> {
        // It does not matter what a thread was doing when it failed: the work ends then.
        self.slots[id.link][id.segment]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a group will still open the segment.
    pub(super) fn is_expected(&self, id: SegmentId) -> bool {
        self.slot(id).uses > 0
    }

    /// Returns the decoded segment, and decodes it first if necessary: steps 8.1 to 8.4 of SPEC
    /// section 10. Other threads that open it wait meanwhile.
    pub(super) fn open(&self, id: SegmentId) -> Result<Arc<Segment>> {
        let mut slot = self.slot(id);
        if let Some(segment) = &slot.segment {
            return Ok(segment.clone());
        }
        let segment = self.links[id.link]
            .segment(id.segment)
            .map_err(|error| error.of_link(id.link))?;
        Ok(slot.segment.insert(Arc::new(segment)).clone())
    }

    /// Ends a group's use of the segment. It is dropped if no other group will open it, or if
    /// `room_is_short`: then it may be decoded again.
    pub(super) fn close(&self, id: SegmentId, room_is_short: bool) {
        let mut slot = self.slot(id);
        slot.uses = slot.uses.saturating_sub(1);
        if slot.uses == 0 || room_is_short {
            slot.segment = None;
        }
    }
}
