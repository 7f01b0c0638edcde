//! The decoded segments of several links: each is decoded when its first part is needed, and let go
//! after its last one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::link::{LinkReader, Segment};
use crate::replay::course::{Group, SegmentNumber};
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
    /// None is decoded. These groups will ask for theirs.
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
            .for_each(|&number| segments.slot(number).uses += 1);
        segments
    }

    fn slot(&self, (link, number): SegmentNumber) -> MutexGuard<'_, Slot> {
        // It does not matter what a thread was doing when it failed: the work ends then.
        self.slots[link][number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any group will still ask for the segment.
    pub(super) fn is_expected(&self, number: SegmentNumber) -> bool {
        self.slot(number).uses > 0
    }

    /// The decoded segment: steps 8.1 to 8.4 of SPEC section 10. Other threads that want it wait
    /// meanwhile.
    pub(super) fn open(&self, number: SegmentNumber) -> Result<Arc<Segment>> {
        let mut slot = self.slot(number);
        if let Some(segment) = &slot.segment {
            return Ok(segment.clone());
        }
        let segment = self.links[number.0]
            .segment(number.1)
            .map_err(|error| error.of_link(number.0))?;
        Ok(slot.segment.insert(Arc::new(segment)).clone())
    }

    /// A group is done with the segment. It is let go if no other group will ask for it, or if
    /// `room_is_short`: then it may be decoded again.
    pub(super) fn close(&self, number: SegmentNumber, room_is_short: bool) {
        let mut slot = self.slot(number);
        slot.uses = slot.uses.saturating_sub(1);
        if slot.uses == 0 || room_is_short {
            slot.segment = None;
        }
    }
}
