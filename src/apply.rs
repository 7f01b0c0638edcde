//! Applying a link: base + link -> target, piece by piece (SPEC section 9).

use rayon::prelude::*;

use crate::codec::decode::PartChanges;
use crate::error::Result;
use crate::format::{Part, Start, TensorEntry};
use crate::in_order::in_order;
use crate::limits::address;
use crate::link::LinkReader;
use crate::progress::Progress;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::tensor::{
    MemoryState, PieceDigest, PieceDigests, PieceHasher, State, StateDigests, StateWriter, TensorInfo,
};

/// A link that fits its base and can be applied: the target's tensors are known, nothing has been written.
#[derive(Debug)]
pub struct Application<'a, B: ?Sized, S> {
    base: &'a B,
    base_digests: &'a StateDigests,
    link: &'a LinkReader<S>,
    /// Tensors of the target, ascending by name.
    target: Vec<TensorInfo>,
    /// Where each of them comes from.
    origins: Vec<Origin>,
    /// These are only some tensors of base and target.
    is_part: bool,
    /// Whether each tensor of the base is still to be compared with its digest; all have been if this is empty.
    unproven: &'a [bool],
}

/// Where each entry of the link stands in the target, if it is taken and not removed.
type Places = Vec<Option<usize>>;

/// Bytes that are read, changed, written and hashed before the next: what a core keeps to itself. Whole blocks of the codec.
const STRETCH_BYTES: usize = 1 << 18;

/// What building a target needs.
struct Building<'a, W> {
    /// Whether each tensor is compared with its digest.
    is_compared: &'a [bool],
    out: &'a W,
    progress: &'a dyn Progress,
}

/// Where a tensor of the target comes from.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// The base's tensor with this number, unchanged.
    Base(usize),
    /// The link's entry with this number, on top of the base's tensor or of zeros.
    Link(usize, Option<usize>),
}

impl<'a, B: State + ?Sized, S: Source> Application<'a, B, S> {
    /// Checks that the link belongs to this base: step 7 of SPEC section 10. `base_digests` are those of `base`.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`), R-APP-02.
    pub fn new(base: &'a B, base_digests: &'a StateDigests, link: &'a LinkReader<S>) -> Result<Self> {
        Self::plan(base, base_digests, link, None)
    }

    /// As [`new`](Self::new), for a reader that takes only the tensors whose names `is_taken` chooses (SPEC section 19):
    /// `base` and `base_digests.tensors` have no others, and the target will have no others. `base_digests.state` is the
    /// digest of the whole base, which cannot be computed from these; whoever gives it has it from the commit.
    ///
    /// # Errors
    /// As for [`new`](Self::new), as far as these tensors are concerned.
    pub fn of_part(
        base: &'a B,
        base_digests: &'a StateDigests,
        link: &'a LinkReader<S>,
        is_taken: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        Self::plan(base, base_digests, link, Some(is_taken))
    }

    fn plan(
        base: &'a B,
        base_digests: &'a StateDigests,
        link: &'a LinkReader<S>,
        is_taken: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<Self> {
        let expected = link.header().base;
        ensure(base_digests.state == expected, &rules::APP_01, || {
            format!("the link is for base {expected}, this base is {}", base_digests.state)
        })?;
        let mut target = Vec::new();
        let mut origins = Vec::new();
        let mut bases = base.tensors().iter().enumerate().peekable();
        let changes = link.index().tensors.iter().enumerate();
        for (entry, change) in changes.filter(|(_, change)| is_taken.is_none_or(|is_taken| is_taken(change.name()))) {
            while let Some((number, info)) = bases.next_if(|(_, info)| info.name() < change.name()) {
                target.push(info.clone());
                origins.push(Origin::Base(number));
            }
            let own = bases.next_if(|(_, info)| info.name() == change.name());
            let TensorEntry::Write(written) = change else { continue };
            let start = match written.start {
                Start::Zeros => None,
                Start::Base => {
                    ensure(own.is_some_and(|(_, old)| written.info.can_patch(old)), &rules::APP_02, || {
                        "the base has no such tensor of this dtype and length".into()
                    })
                    .map_err(|error| error.of_tensor(change.name()))?;
                    own.map(|(number, _)| number)
                }
            };
            target.push(written.info.clone());
            origins.push(Origin::Link(entry, start));
        }
        for (number, info) in bases {
            target.push(info.clone());
            origins.push(Origin::Base(number));
        }
        Ok(Self { base, base_digests, link, target, origins, is_part: is_taken.is_some(), unproven: &[] })
    }

    /// For a base that [`run_unproven`](Self::run_unproven) has built: what it said of each tensor.
    #[must_use]
    pub fn with_unproven(self, unproven: &'a [bool]) -> Self {
        Self { unproven, ..self }
    }

    /// The target's tensors, ascending by name.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.target
    }

    /// Bytes that [`run`](Self::run) reports to its progress: all of the target.
    pub fn work(&self) -> u64 {
        self.target.iter().map(TensorInfo::bytes).fold(0, u64::saturating_add)
    }

    /// Builds the target and checks it: steps 8 and 9 of SPEC section 10. `out` has been created for
    /// [`tensors`](Self::tensors) and reads as zeros where nothing is written. What it holds must not be made visible
    /// before this has returned without error. Memory: per thread one segment. Of a part, the `state` of the
    /// digests that are returned is that of the whole target, which the link promises.
    ///
    /// # Errors
    /// The class and rule of the first check that fails; those of reading, writing and `progress`.
    pub fn run(&self, out: &impl StateWriter, progress: &dyn Progress) -> Result<StateDigests> {
        self.build(&self.not_compared_yet(), out, progress)
    }

    /// Builds a target that is only the base of the next link, as SPEC section 9 allows: its tensors are not compared with
    /// their digests, which are those that the link promises. Also returns which tensors that concerns: the next application
    /// is to be made [`with_unproven`](Self::with_unproven), and the last one to be [`run`](Self::run). If anything fails from
    /// here on, only another attempt that runs each link tells which of them is at fault.
    ///
    /// # Errors
    /// As for [`run`](Self::run), without R-APP-04.
    pub fn run_unproven(&self, out: &impl StateWriter, progress: &dyn Progress) -> Result<(StateDigests, Vec<bool>)> {
        let digests = self.build(&vec![false; self.target.len()], out, progress)?;
        Ok((digests, self.not_compared_yet()))
    }

    /// Of each tensor of the target, whether nobody has compared it with its digest when it is written.
    fn not_compared_yet(&self) -> Vec<bool> {
        let of = |origin: &Origin| match *origin {
            Origin::Base(number) => self.unproven.get(number) == Some(&true),
            Origin::Link(..) => true,
        };
        self.origins.iter().map(of).collect()
    }

    /// Builds the target; those tensors of it that `is_compared` says are compared with their digests.
    fn build(&self, is_compared: &[bool], out: &impl StateWriter, progress: &dyn Progress) -> Result<StateDigests> {
        let places = self.places();
        let mut pieces = PieceDigests::new(self.target.iter())?;
        let building = Building { is_compared, out, progress };

        // First what needs no segment: these may still be on their way.
        self.carry_over(&mut pieces, &building)?;
        let segments: Vec<usize> = self.segments(&places).collect();
        let apply_one = |(): &mut (), &number: &usize| self.apply_segment(number, &places, &building);
        let take = |_: &usize, digests: Vec<(Part, PieceDigest)>| {
            for (part, digest) in digests {
                if let Some(place) = places[part.entry] {
                    pieces.set(place, part.piece, digest)?;
                }
            }
            Ok(())
        };
        in_order(&segments, || (), apply_one, take)?;
        self.check(is_compared, &pieces)
    }

    /// Bytes of the link's segments that [`run`](Self::run) reads: all of them, unless only some tensors are taken.
    pub fn segment_bytes(&self) -> u64 {
        let entries = &self.link.index().segments;
        self.segments(&self.places()).map(|number| entries[number].stored_length).fold(0, u64::saturating_add)
    }

    fn places(&self) -> Places {
        let mut places = vec![None; self.link.index().tensors.len()];
        for (place, origin) in self.origins.iter().enumerate() {
            if let Origin::Link(entry, _) = *origin {
                places[entry] = Some(place);
            }
        }
        places
    }

    /// The segments that are needed.
    fn segments(&self, places: &Places) -> impl Iterator<Item = usize> {
        let is_needed = |number: usize| self.link.parts(number).iter().any(|part| places[part.entry].is_some());
        (0..self.link.index().segments.len()).filter(move |&number| is_needed(number))
    }

    /// Builds the pieces that a segment changes. Its parts are independent of each other, so that a thread which has no segment
    /// left can help.
    fn apply_segment(
        &self,
        number: usize,
        places: &Places,
        building: &Building<'_, impl StateWriter>,
    ) -> Result<Vec<(Part, PieceDigest)>> {
        let segment = self.link.segment(number)?;
        let parts = self.link.parts(number).par_iter().enumerate();
        let taken = parts.filter_map(|(index, &part)| Some((index, part, places[part.entry]?)));
        let digests = taken.map_init(Vec::new, |buffer, (index, part, place)| {
            let mut changes = segment.changes(index);
            let digest = self.build_piece(place, part.piece, Some(&mut *changes), building, buffer)?;
            self.link.locate(number, index, changes.finish())?;
            Ok(digest.map(|digest| (part, digest)))
        });
        // The first failure in the order of parts, whatever the threads did.
        digests.collect::<Vec<Result<_>>>().into_iter().filter_map(Result::transpose).collect()
    }

    /// Builds every piece that no segment changes.
    fn carry_over(&self, pieces: &mut PieceDigests, building: &Building<'_, impl StateWriter>) -> Result<()> {
        let unchanged = self.origins.iter().zip(&self.target).enumerate().flat_map(|(place, (origin, info))| {
            let segments = match *origin {
                Origin::Base(_) => None,
                Origin::Link(entry, _) => self.link.index().tensors[entry].written().map(|written| &written.pieces),
            };
            (0..info.pieces())
                .zip(0..)
                .filter(move |&(_, i)| segments.is_none_or(|segments| segments.get(i).is_none_or(Option::is_none)))
                .map(move |(piece, _)| (place, piece))
        });
        let unchanged: Vec<(usize, u64)> = unchanged.collect();
        let hashed = unchanged
            .into_par_iter()
            .map_init(Vec::new, |buffer, (place, piece)| {
                let digest = self.build_piece(place, piece, None, building, buffer)?;
                Ok(digest.map(|digest| (place, piece, digest)))
            })
            .collect::<Result<Vec<_>>>()?;
        for (place, piece, digest) in hashed.into_iter().flatten() {
            pieces.set(place, piece, digest)?;
        }
        Ok(())
    }

    /// Writes a piece, by stretches that stay in the cache: what its tensor starts from, with `changes`. Its digest, if
    /// the tensor's is compared.
    fn build_piece(
        &self,
        place: usize,
        piece: u64,
        mut changes: Option<&mut (dyn PartChanges + '_)>,
        building: &Building<'_, impl StateWriter>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<PieceDigest>> {
        let info = &self.target[place];
        let start = match self.origins[place] {
            Origin::Base(number) => Some(number),
            Origin::Link(_, start) => start,
        };
        let mut hasher = building.is_compared[place].then(|| PieceHasher::new(info, piece));
        let whole = info.piece(piece);
        for begin in whole.clone().step_by(STRETCH_BYTES) {
            let range = begin..whole.end.min(begin + STRETCH_BYTES as u64);
            let mut make = |bytes: &mut [u8]| {
                match start {
                    Some(number) => self.base.read(number, begin, bytes)?,
                    None => bytes.fill(0),
                }
                if let Some(changes) = &mut changes {
                    changes.apply(bytes);
                }
                if let Some(hasher) = &mut hasher {
                    hasher.update(bytes);
                }
                Ok(())
            };
            if let Some(filled) = building.out.fill(place, range.clone(), &mut make) {
                filled?;
            } else {
                buffer.resize(address(range.end - begin)?, 0);
                make(buffer)?;
                // Zeros are there already.
                if start.is_some() || changes.is_some() {
                    building.out.write(place, begin, buffer)?;
                }
            }
            building.progress.advance(range.end - begin)?;
        }
        Ok(hasher.map(|hasher| hasher.finish()))
    }

    /// Step 9 of SPEC section 10.
    fn check(&self, is_compared: &[bool], pieces: &PieceDigests) -> Result<StateDigests> {
        let mut tensors = Vec::with_capacity(self.target.len());
        for (place, origin) in self.origins.iter().enumerate() {
            let promised = match *origin {
                Origin::Base(number) => Some(self.base_digests.tensors[number]),
                Origin::Link(entry, _) => self.link.index().tensors[entry].written().map(|written| written.digest),
            };
            if is_compared[place] {
                ensure(Some(pieces.of_tensor(place)) == promised, &rules::APP_04, || {
                    "the result differs from what the link promises".into()
                })
                .map_err(|error| error.of_tensor(self.target[place].name()))?;
            }
            tensors.extend(promised);
        }
        let promised = self.link.header().target;
        if self.is_part {
            return Ok(StateDigests { tensors, state: promised });
        }
        let digests = StateDigests::from_tensors(&self.target, tensors);
        ensure(digests.state == promised, &rules::APP_05, || {
            format!("the result is {}, the link promises {promised}", digests.state)
        })?;
        Ok(digests)
    }
}

/// Applies a link to a base, both of which fit in memory. The base's digest is computed here.
///
/// # Errors
/// As for [`Application::new`] and [`Application::run`].
pub fn apply<S: Source>(base: &(impl State + ?Sized), link: &LinkReader<S>) -> Result<MemoryState> {
    let digests = StateDigests::of(base, &())?;
    let application = Application::new(base, &digests, link)?;
    let mut target = MemoryState::zeros(application.tensors())?;
    application.run(&target.writer(), &())?;
    Ok(target)
}
