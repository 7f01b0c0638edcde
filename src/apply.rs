//! Applying a link: base + link -> target, piece by piece (SPEC section 9).

use rayon::prelude::*;

use crate::codec::decode::PartChanges;
use crate::error::{Error, Result};
use crate::format::Part;
use crate::in_order::in_order;
use crate::limits::address;
use crate::link::LinkReader;
use crate::progress::Progress;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::table::{Origin, StateTable, target_table};
use crate::tensor::{Digest, MemoryState, PieceDigests, State, StateDigests, StateWriter, TensorInfo};

/// A link that fits its base and can be applied: the target's table is known, nothing has been written.
#[derive(Debug)]
pub struct Application<'a, B: ?Sized, S> {
    base: &'a B,
    link: &'a LinkReader<S>,
    /// Of the whole target.
    table: StateTable,
    /// The tensors that are built, ascending by name.
    tensors: Vec<TensorInfo>,
    /// Which one of the table each of them is.
    numbers: Vec<usize>,
    /// Where each of them comes from, the base's tensors being those of `base`.
    origins: Vec<Origin>,
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

impl<'a, B: State + ?Sized, S: Source> Application<'a, B, S> {
    /// Checks that the link leads from this base to what it promises: step 7 of SPEC section 10. `base_digests` are those of
    /// `base`.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`), R-APP-02, R-APP-05; USAGE if there are not as many digests as tensors.
    pub fn new(base: &'a B, base_digests: &StateDigests, link: &'a LinkReader<S>) -> Result<Self> {
        let (table, origins) = target_table(base.tensors(), base_digests, link)?;
        let numbers = (0..table.tensors.len()).collect();
        Ok(Self { base, link, tensors: table.tensors.clone(), table, numbers, origins, unproven: &[] })
    }

    /// As [`new`](Self::new), for a reader that takes only the tensors whose names `is_taken` chooses (SPEC section 9.1).
    ///
    /// `base` is the table of the whole base, and the link is checked against all of it, as if all were taken. `held` has the
    /// data of just those tensors of it that are taken; the result has those of the target that are. Segments without a part of
    /// one of these are not read. What [`table`](Self::table) gives is to be kept for the next link.
    ///
    /// # Errors
    /// As for [`new`](Self::new); USAGE if `held` has others than the base's tensors that are taken.
    pub fn of_part(
        held: &'a B,
        base: &StateTable,
        link: &'a LinkReader<S>,
        is_taken: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let (table, all_origins) = target_table(&base.tensors, &base.digests, link)?;
        let mut places = Vec::with_capacity(base.tensors.len());
        let mut count = 0;
        for info in &base.tensors {
            places.push(count);
            count += usize::from(held.tensors().get(count).is_some_and(|own| own == info));
        }
        let taken = base.tensors.iter().filter(|info| is_taken(info.name()));
        if !held.tensors().iter().eq(taken) {
            return Err(Error::usage("what is held are not the tensors of the base that are taken"));
        }
        let (mut tensors, mut numbers, mut origins) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (info, origin)) in table.tensors.iter().zip(all_origins).enumerate() {
            if is_taken(info.name()) {
                tensors.push(info.clone());
                numbers.push(number);
                origins.push(match origin {
                    Origin::Base(number) => Origin::Base(places[number]),
                    Origin::Link(entry, start) => Origin::Link(entry, start.map(|number| places[number])),
                });
            }
        }
        Ok(Self { base: held, link, table, tensors, numbers, origins, unproven: &[] })
    }

    /// For a base that [`run_unproven`](Self::run_unproven) has built: what it said of each tensor.
    #[must_use]
    pub fn with_unproven(self, unproven: &'a [bool]) -> Self {
        Self { unproven, ..self }
    }

    /// The tensors that are built, ascending by name: those of the target, or those of them that are taken.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The table of the whole target, whichever of its tensors are taken.
    pub fn table(&self) -> &StateTable {
        &self.table
    }

    /// Bytes that [`run`](Self::run) reports to its progress: all of [`tensors`](Self::tensors).
    pub fn work(&self) -> u64 {
        self.tensors.iter().map(TensorInfo::bytes).fold(0, u64::saturating_add)
    }

    /// Builds the target and checks it: steps 8 and 9 of SPEC section 10. `out` has been created for
    /// [`tensors`](Self::tensors) and reads as zeros where nothing is written. What it holds must not be made visible
    /// before this has returned without error. Memory: per thread one segment. Returns the digests of the
    /// [`table`](Self::table).
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
        let digests = self.build(&vec![false; self.tensors.len()], out, progress)?;
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
        let mut pieces = PieceDigests::new(self.tensors.iter())?;
        let building = Building { is_compared, out, progress };

        // First what needs no segment: these may still be on their way.
        self.carry_over(&mut pieces, &building)?;
        let segments: Vec<usize> = self.segments(&places).collect();
        let apply_one = |(): &mut (), &number: &usize| self.apply_segment(number, &places, &building);
        let take = |_: &usize, digests: Vec<(Part, Digest)>| {
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
    ) -> Result<Vec<(Part, Digest)>> {
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
        let unchanged = self.origins.iter().zip(&self.tensors).enumerate().flat_map(|(place, (origin, info))| {
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
    ) -> Result<Option<Digest>> {
        let info = &self.tensors[place];
        let start = match self.origins[place] {
            Origin::Base(number) => Some(number),
            Origin::Link(_, start) => start,
        };
        let mut hasher = building.is_compared[place].then(blake3::Hasher::new);
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
        Ok(hasher.as_ref().map(Digest::of_hashed))
    }

    /// Step 9 of SPEC section 10.
    fn check(&self, is_compared: &[bool], pieces: &PieceDigests) -> Result<StateDigests> {
        for (place, origin) in self.origins.iter().enumerate().filter(|(place, _)| is_compared[*place]) {
            let found = pieces.of_tensor(place);
            let is_promised = match *origin {
                Origin::Base(_) => Digest::of_pieces(found) == self.table.digests.tensors[self.numbers[place]],
                Origin::Link(entry, _) => {
                    self.link.index().tensors[entry].written().is_some_and(|written| written.digests == found)
                }
            };
            ensure(is_promised, &rules::APP_04, || "the result differs from what the link promises".into())
                .map_err(|error| error.of_tensor(self.tensors[place].name()))?;
        }
        Ok(self.table.digests.clone())
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
