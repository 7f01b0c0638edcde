//! The pass over a piece: finds the lanes that change, and sorts the coded lanes into contexts.

use crate::codec::blocks::{BLOCK, Compare, LanePlaces, STRETCH, Work, dispatch};
use crate::codec::contexts::{Contexts, Members};
use crate::codec::lane::{Lane, LaneKind};
use crate::codec::piece::{Method, PieceInput, PieceSink, differing, old_block};
use crate::format::coding::Positions;
use crate::format::segment::MAX_CONTEXTS;

/// Bytes of the target that are sorted before they are shown to the sink; a whole number of
/// stretches.
const PASSED_BYTES: usize = 1 << 16;

/// The coded lanes of a segment, by context and then in order of parts and lanes.
pub(super) struct CodedContext<L> {
    pub(super) gaps: Vec<u32>,
    pub(super) values: Vec<L>,
    /// Coded lanes of each part.
    pub(super) coded: Vec<u32>,
    /// Members of each part.
    pub(super) members: Vec<u32>,
}

/// The content of a segment: the pieces that are coded by one method.
pub(super) struct Bucket<L> {
    pub(super) method: Method,
    pub(super) contexts: Vec<CodedContext<L>>,
    /// The pieces that are its parts, by their numbers.
    pub(super) pieces: Vec<usize>,
    /// Thresholds of each part, one after another.
    pub(super) thresholds: Vec<u16>,
}

/// Memory for the changes of one stretch.
pub(super) struct Scratchpad {
    pub(super) places: LanePlaces,
    members: Members,
}

impl Scratchpad {
    pub(super) fn new() -> Self {
        Self {
            places: LanePlaces::new(),
            members: Members::new(),
        }
    }
}

impl<L: Lane> Bucket<L> {
    pub(super) fn new(method: Method, contexts: usize) -> Self {
        let none = || CodedContext {
            gaps: Vec::new(),
            values: Vec::new(),
            coded: Vec::new(),
            members: Vec::new(),
        };
        Self {
            method,
            contexts: (0..contexts).map(|_| none()).collect(),
            pieces: Vec::new(),
            thresholds: Vec::new(),
        }
    }

    /// Sorts the lanes of the piece with this number, as one more part, and shows them to `sink`;
    /// returns the number of lanes that change.
    pub(super) fn add(
        &mut self,
        kind: LaneKind<L>,
        number: usize,
        piece: &PieceInput<'_>,
        thresholds: &[u16],
        found: &mut Scratchpad,
        sink: &mut impl PieceSink,
    ) -> u64 {
        let (base, target) = (piece.base.map(L::chunks), L::chunks(piece.target));
        let contexts = &Contexts::new(kind, thresholds);
        if let ((Positions::Dense, _), [only]) = (self.method, self.contexts.as_mut_slice()) {
            only.values.reserve(target.len());
        }
        let mut begun = SortState::default();
        let mut coded_before = [0; MAX_CONTEXTS];
        coded_before
            .iter_mut()
            .zip(&self.contexts)
            .for_each(|(coded, context)| *coded = context.values.len());
        let passed = PASSED_BYTES / size_of::<L>();
        for begin in (0..target.len()).step_by(passed) {
            let target = &target[begin..target.len().min(begin + passed)];
            let base = base.map(|base| &base[begin..begin + target.len()]);
            dispatch(Sort {
                kind,
                base,
                target,
                contexts,
                found,
                begun: &mut begun,
                sorted: self,
                sink,
            });
            sink.passed(base.map(L::flat), L::flat(target));
        }
        let SortState {
            changed, members, ..
        } = begun;
        for ((context, members), before) in self.contexts.iter_mut().zip(members).zip(coded_before)
        {
            context.members.push(members);
            // At most 2^24, the maximum number of lanes of a piece.
            context
                .coded
                .push(u32::try_from(context.values.len() - before).unwrap_or(u32::MAX));
        }
        self.pieces.push(number);
        self.thresholds.extend_from_slice(thresholds);
        changed
    }

    /// The values of the piece that was added last, which has one context.
    pub(super) fn last(&self) -> &[L] {
        let [CodedContext { values, coded, .. }] = self.contexts.as_slice() else {
            return &[];
        };
        &values[values.len() - coded.last().map_or(0, |&coded| coded as usize)..]
    }

    /// Removes the piece that was added last. It has one context and sparse positions.
    pub(super) fn take_back(&mut self) {
        self.pieces.pop();
        for CodedContext {
            gaps,
            values,
            coded,
            members,
        } in &mut self.contexts
        {
            members.pop();
            let kept = values.len() - coded.pop().map_or(0, |coded| coded as usize);
            values.truncate(kept);
            gaps.truncate(kept);
        }
    }

    /// Number of coded lanes of all pieces.
    pub(super) fn coded(&self) -> usize {
        self.contexts
            .iter()
            .map(|context| context.values.len())
            .sum()
    }

    /// Removes the pieces that need no part because they have no coded lanes.
    pub(super) fn leave_out(&mut self, is_needless: impl Fn(usize) -> bool) {
        let needed: Vec<bool> = self
            .pieces
            .iter()
            .map(|&piece| !is_needless(piece))
            .collect();
        for context in &mut self.contexts {
            keep(&mut context.members, 1, &needed);
            keep(&mut context.coded, 1, &needed);
        }
        keep(&mut self.pieces, 1, &needed);
        keep(&mut self.thresholds, self.contexts.len() - 1, &needed);
    }
}

/// Keeps the items of the pieces in `kept`. Every piece has `each` items.
fn keep<T>(items: &mut Vec<T>, each: usize, kept: &[bool]) {
    let mut kept = kept.iter().flat_map(|kept| std::iter::repeat_n(kept, each));
    items.retain(|_| kept.next() == Some(&true));
}

/// Counts of the stretches of a piece that have been sorted so far.
#[derive(Default)]
struct SortState {
    changed: u64,
    /// Members of each context.
    members: [u32; MAX_CONTEXTS],
    /// The rank after the last coded lane of each context.
    next: [u32; MAX_CONTEXTS],
}

/// Sorts the coded lanes of some stretches.
struct Sort<'a, L: Lane, S> {
    kind: LaneKind<L>,
    base: Option<&'a [L::Bytes]>,
    target: &'a [L::Bytes],
    contexts: &'a Contexts<L>,
    found: &'a mut Scratchpad,
    begun: &'a mut SortState,
    sorted: &'a mut Bucket<L>,
    sink: &'a mut S,
}

impl<L: Lane, S: PieceSink> Work for Sort<'_, L, S> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        let Self {
            kind,
            base,
            target,
            contexts,
            found:
                Scratchpad {
                    places,
                    members: found,
                },
            begun,
            sorted,
            sink,
        } = self;
        let Bucket {
            method: (positions, relative),
            contexts: sorted,
            ..
        } = sorted;
        let value = |old, new| {
            if *relative {
                kind.difference(old, new)
            } else {
                new
            }
        };
        let SortState {
            changed: all_changed,
            members,
            next,
        } = begun;
        let has_one = sorted.len() == 1;
        for (number, target) in target.chunks(STRETCH).enumerate() {
            let base = base.map(|base| &base[number * STRETCH..][..target.len()]);
            let changed = places.of(&differing::<L>(compare, base, target));
            *all_changed += changed.len() as u64;
            sink.changed(L::flat(target), changed);
            // With one context a lane is its rank.
            if !has_one {
                contexts.find(compare, base.unwrap_or(&[]), found);
            }
            if *positions == Positions::Dense {
                for (number, new) in target.chunks(BLOCK).enumerate() {
                    let old = old_block::<L>(base, number, new.len());
                    let values = old
                        .iter()
                        .zip(new)
                        .map(|(&old, &new)| value(L::load(old), L::load(new)));
                    if has_one {
                        sorted[0].values.extend(values);
                        continue;
                    }
                    for (value, context) in values.zip(contexts.of_block(&old)) {
                        sorted[usize::from(context)].values.push(value);
                    }
                }
            } else {
                for &lane in changed {
                    let place = usize::from(lane);
                    let old = base.map_or(L::default(), |base| L::load(base[place]));
                    let (context, rank) = if has_one {
                        (0, u32::from(lane))
                    } else {
                        let context = contexts.of(compare, old);
                        (context, found.rank(context, place))
                    };
                    let rank = members[context] + rank;
                    sorted[context]
                        .values
                        .push(value(old, L::load(target[place])));
                    sorted[context].gaps.push(rank - next[context]);
                    next[context] = rank + 1;
                }
            }
            if has_one {
                // A stretch has a few thousand lanes.
                members[0] += u32::try_from(target.len()).unwrap_or(0);
            } else {
                members
                    .iter_mut()
                    .enumerate()
                    .for_each(|(context, members)| *members += found.count(context));
            }
        }
    }
}
