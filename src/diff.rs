//! Makes a link: the difference of two states, one group of pieces after another (SPEC sections 6
//! to 8).

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use crate::codec::encode::{EncodedSegment, encode};
use crate::codec::lane::with_lane;
use crate::codec::piece::{PieceInput, PieceSink, Profile};
use crate::error::{Error, Result};
use crate::format::stream::Compressor;
use crate::format::{Index, Start, TensorEntry, WrittenTensor};
use crate::groups::grouped;
use crate::in_order::in_order;
use crate::limits::address;
use crate::link_writer::LinkWriter;
use crate::progress::Progress;
use crate::sums::{LinkSums, PieceSums, Sums};
use crate::tensor::{
    Digest, State, StateDigests, TensorInfo, digests_of, find, find_patchable, total_bytes,
};

crate::setters! {
    /// Options for making a link.
    #[derive(Debug, Clone)]
    pub struct DiffOptions<'a> {
        /// The profile: the smallest file, or a coding for readers that cannot read the whole base.
        pub profile: Profile = Profile::default(),
        /// The base's digests, if they are known: a publisher has them from the report of the
        /// previous link. Then the base need not be hashed. With `None`, they are computed. With
        /// digests of another state, the link fits no state.
        pub base_digests: Option<&'a StateDigests> = None,
        /// Whether the link carries sums, so that readers can take it in place (SPEC section 24.3).
        pub sums: bool = false,
        /// Free text for people and tools: step number, run name.
        pub metadata: BTreeMap<String, String> = BTreeMap::new(),
        /// Receives the number of bytes of base and target that have been processed.
        pub progress: &'a dyn Progress = &(),
    }
}

/// Figures about the content of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiffReport {
    /// State digest of the base.
    pub base: Digest,
    /// Digests of the target.
    pub target: StateDigests,
    /// Length of the link in bytes.
    pub bytes: u64,
    /// Total bytes of the target's tensors.
    pub target_bytes: u64,
    /// Number of lanes of the target. A lane is an element, or a byte of a packed type.
    pub elements: u64,
    /// Number of lanes of the target that differ from the base's, or are new.
    pub changed: u64,
    /// Number of tensors that the link lists.
    pub tensors: usize,
    /// Whether all values in the link are absolute, so that it can be read without the base. This
    /// may be so with any profile.
    pub is_direct: bool,
    /// True if the link neither adds nor removes tensors: all of its entries start from the base's.
    pub patches_alone: bool,
}

/// A piece of the target, and the base's tensor that it is compared with.
#[derive(Debug, Clone, Copy)]
struct PiecePair {
    tensor: usize,
    piece: u64,
    base: Option<usize>,
}

/// Writes the link from `base` to `target`. Reads each state once, in pieces of 16 MiB; Memory per
/// thread: one group of pieces (32 MiB for both states) and its compressed form. The same input
/// gives the same bytes, whatever the number of threads.
///
/// # Errors
/// The errors of reading the states, of writing, and of `options.progress`; LIMIT if a state
/// exceeds the format's maxima; USAGE if `options.base_digests` has another number of tensors than
/// the base, or if a state [has changed](State::check_unchanged) meanwhile.
pub fn diff(
    base: &dyn State,
    target: &dyn State,
    options: &DiffOptions<'_>,
    out: &mut dyn Write,
) -> Result<DiffReport> {
    let known_digests = known_digests(base, options)?;
    let drafts = target
        .tensors()
        .iter()
        .map(|info| Draft::of(base, info))
        .collect::<Result<Vec<_>>>()?;
    let groups = grouped(drafts.iter().enumerate().flat_map(pieces_of));
    let mut encoded = EncodedLink {
        drafts,
        writer: LinkWriter::new(),
        changed: 0,
    };
    let encode = |context: &mut Context, group: &Vec<PiecePair>| {
        encode_group(base, target, options, group, context)
    };
    let add = |group: &Vec<PiecePair>, done: EncodedGroup| encoded.add(group, done);
    in_order(&groups, Context::default, encode, add)?;

    let EncodedLink {
        drafts,
        writer,
        changed,
    } = encoded;
    let base_digests = digests_of_base(base, known_digests, &drafts, options.progress)?;
    base.check_unchanged()?;
    target.check_unchanged()?;
    let target_digests = drafts.iter().map(|draft| draft.written.digest()).collect();
    let target_digests = StateDigests::from_tensors(target.tensors(), target_digests);

    let entries = entries_of(base, target, &base_digests, drafts);
    let (tensors, sums): (Vec<TensorEntry>, Vec<Vec<PieceSums>>) = entries.into_iter().unzip();
    let listed = tensors.len();
    let patches_alone = tensors.iter().all(|entry| match entry.written() {
        Some(written) => written.start == Start::Base,
        None => false,
    });
    let index = Index {
        metadata: options.metadata.clone(),
        segments: Vec::new(),
        tensors,
    };
    let is_direct = writer.is_direct();
    let sums = options.sums.then_some(LinkSums { entries: sums });
    let bytes = writer.finish(
        base_digests.state,
        target_digests.state,
        index,
        sums.as_ref(),
        out,
    )?;
    Ok(DiffReport {
        base: base_digests.state,
        target: target_digests,
        bytes,
        target_bytes: total_bytes(target.tensors()),
        elements: target.tensors().iter().map(TensorInfo::lanes).sum(),
        changed,
        tensors: listed,
        is_direct,
        patches_alone,
    })
}

/// The digests of the base's tensors that the caller knows.
fn known_digests(base: &dyn State, options: &DiffOptions<'_>) -> Result<Vec<Option<Digest>>> {
    match options.base_digests {
        None => Ok(vec![None; base.tensors().len()]),
        Some(known) if known.tensors.len() == base.tensors().len() => {
            Ok(known.tensors.iter().copied().map(Some).collect())
        }
        Some(_) => Err(Error::usage(
            "the digests are not those of the base's tensors",
        )),
    }
}

/// The pieces of a tensor of the target, with the base's tensor that they are compared with.
fn pieces_of(
    (tensor, draft): (usize, &Draft),
) -> impl Iterator<Item = (&TensorInfo, u64, PiecePair)> {
    let base = draft.base;
    let info = &draft.written.info;
    (0..info.pieces()).map(move |piece| {
        let pair = PiecePair {
            tensor,
            piece,
            base,
        };
        (info, piece, pair)
    })
}

/// The encoded segments of a link, and drafts of its entries.
struct EncodedLink {
    drafts: Vec<Draft>,
    writer: LinkWriter,
    /// Number of lanes that differ from the base's, or are new.
    changed: u64,
}

impl EncodedLink {
    /// Adds a group of pieces.
    fn add(&mut self, group: &[PiecePair], (segments, pieces): EncodedGroup) -> Result<()> {
        for (compared, seen) in group.iter().zip(pieces) {
            let draft = &mut self.drafts[compared.tensor];
            let piece = address(compared.piece)?;
            self.changed += seen.changed;
            draft.written.digests[piece] = seen.new;
            draft.sums[piece] = seen.sums;
            draft.old.extend(seen.old);
        }
        for segment in segments {
            let number = self.writer.push(segment.coding, &segment.bytes)?;
            for piece in segment.pieces {
                let PiecePair { tensor, piece, .. } = group[piece];
                self.drafts[tensor].written.pieces[address(piece)?] = Some(number);
            }
        }
        Ok(())
    }
}

/// The digests of all tensors of the base: those that are known, those whose pieces were hashed
/// when they were compared, and the others, which are read now.
fn digests_of_base(
    base: &dyn State,
    mut known: Vec<Option<Digest>>,
    drafts: &[Draft],
    progress: &dyn Progress,
) -> Result<StateDigests> {
    for draft in drafts {
        if let Some(number) = draft.base {
            known[number].get_or_insert_with(|| Digest::of_pieces(&draft.old));
        }
    }
    fill_missing(base, known, progress)
}

/// The entries of the tensors that change or are removed, with their sums, ascending by name.
fn entries_of(
    base: &dyn State,
    target: &dyn State,
    base_digests: &StateDigests,
    drafts: Vec<Draft>,
) -> Vec<(TensorEntry, Vec<PieceSums>)> {
    let mut entries = Vec::new();
    for draft in drafts {
        let is_changed = match draft.base {
            None => true,
            Some(old) => {
                base.tensors()[old] != draft.written.info
                    || base_digests.tensors[old] != draft.written.digest()
            }
        };
        if is_changed {
            entries.push((TensorEntry::Write(draft.written.into()), draft.sums));
        }
    }
    for info in base.tensors() {
        if find(target.tensors(), info.name()).is_none() {
            entries.push((TensorEntry::Remove(info.name().to_owned()), Vec::new()));
        }
    }
    entries.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
    entries
}

/// A draft of the index entry of a tensor of the target.
struct Draft {
    /// The base's tensor that it is compared with.
    base: Option<usize>,
    written: WrittenTensor,
    sums: Vec<PieceSums>,
    /// Digests of the pieces of the base's tensor, unless the base's digests are known. Groups
    /// arrive in the order of pieces.
    old: Vec<Digest>,
}

impl Draft {
    fn of(base: &dyn State, info: &TensorInfo) -> Result<Self> {
        let base = find_patchable(base.tensors(), info);
        let pieces = address(info.pieces())?;
        let start = if base.is_some() {
            Start::Base
        } else {
            Start::Zeros
        };
        // A tensor without pieces has the digest of no bytes.
        let digests = vec![Digest::of_bytes(&[]); pieces.max(1)];
        let written = WrittenTensor {
            info: info.clone(),
            start,
            pieces: vec![None; pieces],
            digests,
        };
        Ok(Self {
            base,
            written,
            sums: vec![PieceSums::default(); pieces],
            old: Vec::new(),
        })
    }
}

/// Facts about a piece that has been encoded.
struct PieceFacts {
    /// Number of lanes that differ from the base's, or are new.
    changed: u64,
    /// Digest in the target.
    new: Digest,
    /// Digest in the base, if there is a base whose digests are not known.
    old: Option<Digest>,
    /// Zero unless the link carries sums.
    sums: PieceSums,
}

/// Hashes a piece of the target, and computes its sums, while it is compared with the base's.
struct PieceObserver<'a> {
    piece: &'a PieceInput<'a>,
    lane_bytes: usize,
    /// Whether the base's digests are known.
    is_base_known: bool,
    hasher: blake3::Hasher,
    sums: Option<SumsSoFar>,
}

/// Sums of the stretches of a piece that have been shown.
#[derive(Default)]
struct SumsSoFar {
    /// Number of lanes that have been compared, and of bytes that have been summed.
    lanes: u32,
    bytes: u64,
    sums: PieceSums,
}

impl PieceSink for PieceObserver<'_> {
    type Seen = PieceFacts;

    fn changed(&mut self, target: &[u8], lanes: &[u16]) {
        if let Some(seen) = &mut self.sums {
            let coded = Sums::of_places(self.lane_bytes, seen.lanes, lanes, target);
            seen.sums.coded = seen.sums.coded.plus(coded);
            // A piece has 2^24 lanes at most.
            seen.lanes += u32::try_from(target.len() / self.lane_bytes).unwrap_or(0);
        }
    }

    fn passed(&mut self, _base: Option<&[u8]>, target: &[u8]) {
        self.hasher.update(target);
        if let Some(seen) = &mut self.sums {
            seen.sums.piece = seen.sums.piece.plus(Sums::of_bytes(seen.bytes, target));
            seen.bytes += target.len() as u64;
        }
    }

    fn end(self, changed: u64) -> PieceFacts {
        let PieceInput { base, target, .. } = *self.piece;
        let new = Digest::of_hashed(&self.hasher);
        let hash_old = |old| {
            if changed == 0 {
                new
            } else {
                Digest::of_bytes(old)
            }
        };
        let old = match base {
            Some(base) if !self.is_base_known => Some(hash_old(base)),
            _ => None,
        };
        let changed = if base.is_some() {
            changed
        } else {
            (target.len() / self.lane_bytes) as u64
        };
        PieceFacts {
            changed,
            new,
            old,
            sums: self.sums.map_or_else(PieceSums::default, |seen| seen.sums),
        }
    }
}

/// Memory that a thread reuses for each group: fresh pages would cost more than the work on them.
#[derive(Default)]
struct Context {
    compressor: Compressor,
    /// The group's pieces of base and target, one after another.
    old: Vec<u8>,
    new: Vec<u8>,
}

/// The segments of a group, and facts about its pieces.
type EncodedGroup = (Vec<EncodedSegment>, Vec<PieceFacts>);

fn encode_group(
    base: &dyn State,
    target: &dyn State,
    options: &DiffOptions<'_>,
    group: &[PiecePair],
    context: &mut Context,
) -> Result<EncodedGroup> {
    let range = |compared: &PiecePair| target.tensors()[compared.tensor].piece(compared.piece);
    let olds = group
        .iter()
        .filter_map(|compared| Some((compared.base?, range(compared))));
    let news = group
        .iter()
        .map(|compared| (compared.tensor, range(compared)));
    let mut olds = PieceReader::of(base, olds, &mut context.old)?;
    let mut news = PieceReader::of(target, news, &mut context.new)?;
    let mut inputs = Vec::with_capacity(group.len());
    for compared in group {
        let new = news.next(compared.tensor, range(compared))?;
        let old = compared
            .base
            .map(|number| olds.next(number, range(compared)))
            .transpose()?;
        options
            .progress
            .advance((new.len() + old.map_or(0, <[u8]>::len)) as u64)?;
        inputs.push(PieceInput {
            base: old,
            target: new,
            sparse: false,
        });
    }
    let dtype = target.tensors()[group[0].tensor].dtype();
    let lane_bytes = dtype.lane_bytes();
    let (segments, mut pieces) = with_lane!(lane_bytes, L => {
        encode::<L, _>(dtype, &inputs, options.profile, &mut context.compressor, |piece| PieceObserver {
            piece,
            lane_bytes,
            is_base_known: options.base_digests.is_some(),
            hasher: blake3::Hasher::new(),
            sums: options.sums.then(SumsSoFar::default),
        })
    })?;
    // Dense parts code all lanes.
    for segment in segments
        .iter()
        .filter(|segment| !segment.coding.is_sparse())
    {
        segment
            .pieces
            .iter()
            .for_each(|&piece| pieces[piece].sums.coded = pieces[piece].sums.piece);
    }
    Ok((segments, pieces))
}

/// Pieces of a state, read one after another into a buffer unless they are in memory anyway.
struct PieceReader<'a> {
    state: &'a dyn State,
    room: &'a mut [u8],
}

impl<'a> PieceReader<'a> {
    /// Prepares to read these ranges of tensors.
    fn of(
        state: &'a dyn State,
        ranges: impl Iterator<Item = (usize, Range<u64>)>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Self> {
        let read = ranges.filter(|(tensor, range)| state.bytes(*tensor, range.clone()).is_none());
        buffer.resize(
            address(read.map(|(_, range)| range.end - range.start).sum())?,
            0,
        );
        Ok(Self {
            state,
            room: buffer,
        })
    }

    /// Reads the next range.
    fn next(&mut self, tensor: usize, range: Range<u64>) -> Result<&'a [u8]> {
        if let Some(bytes) = self.state.bytes(tensor, range.clone()) {
            return Ok(bytes);
        }
        let length = address(range.end - range.start)?;
        let (bytes, rest) = std::mem::take(&mut self.room).split_at_mut(length);
        self.room = rest;
        self.state.read(tensor, range.start, bytes)?;
        Ok(bytes)
    }
}

/// Computes the digests of the base's tensors that were not compared: removed, retyped or resized
/// ones.
fn fill_missing(
    base: &dyn State,
    known: Vec<Option<Digest>>,
    progress: &dyn Progress,
) -> Result<StateDigests> {
    let missing = (0..known.len()).filter(|&number| known[number].is_none());
    let mut hashed = digests_of(base, missing, progress)?.into_iter();
    let all = known
        .into_iter()
        .map(|digest| digest.or_else(|| hashed.next()).unwrap_or(Digest([0; 32])))
        .collect();
    Ok(StateDigests::from_tensors(base.tensors(), all))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::limits::Limits;
    use crate::link::LinkReader;
    use crate::replay::apply;
    use crate::state_sums::StateSums;
    use crate::table::target_table;
    use crate::tensor::{Dtype, MemoryState, PIECE_BYTES, read_once};

    fn state(tensors: &[(&str, Dtype, Vec<u8>)]) -> MemoryState {
        let mut state = MemoryState::new();
        for (name, dtype, data) in tensors {
            let elements = data.len() as u64 * 8 / dtype.bits();
            state
                .insert(name, *dtype, &[elements], data.clone())
                .unwrap();
        }
        state
    }

    /// Tensors that change in few lanes, in many, and in none; one has two pieces; others come, go,
    /// and change their dtype or shape.
    fn pair() -> (MemoryState, MemoryState) {
        let ramp = |count: usize, times: usize| {
            (0..count)
                .map(|byte| u8::try_from(byte * times % 251).unwrap())
                .collect::<Vec<u8>>()
        };
        let long = address(PIECE_BYTES).unwrap() + 40_000;
        let mut changed = ramp(long, 1);
        for byte in [0, 5, long - 20_000, long - 1] {
            changed[byte] ^= 0x11;
        }
        let base = state(&[
            ("few", Dtype::BF16, ramp(long, 1)),
            ("gone", Dtype::U8, ramp(10, 1)),
            ("many", Dtype::F32, ramp(80_000, 1)),
            ("other", Dtype::F32, ramp(8, 1)),
            ("same", Dtype::U8, ramp(100_000, 1)),
        ]);
        let target = state(&[
            ("empty", Dtype::U8, Vec::new()),
            ("few", Dtype::BF16, changed),
            ("many", Dtype::F32, ramp(80_000, 3)),
            ("new", Dtype::F16, ramp(long, 7)),
            ("other", Dtype::I32, ramp(8, 1)),
            ("same", Dtype::U8, ramp(100_000, 1)),
        ]);
        (base, target)
    }

    /// Other bytes at each reading, like a state that somebody writes to.
    struct Restless(MemoryState, AtomicU8);

    impl State for Restless {
        fn tensors(&self) -> &[TensorInfo] {
            self.0.tensors()
        }

        fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
            self.0.read(tensor, offset, out)?;
            let times = self.1.fetch_add(1, Ordering::Relaxed);
            out.iter_mut()
                .step_by(1000)
                .for_each(|byte| *byte = byte.wrapping_add(times));
            Ok(())
        }

        fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
            self.0.bytes(tensor, range)
        }
    }

    #[test]
    fn sums_of_a_link_are_those_of_the_target() {
        let (base, target) = pair();
        let (table, sums) = StateSums::hashed(&base, &()).unwrap();
        for profile in [Profile::Compact, Profile::Local, Profile::Direct] {
            let mut file = Vec::new();
            diff(
                &base,
                &target,
                &DiffOptions::default().profile(profile).sums(true),
                &mut file,
            )
            .unwrap();
            let link = LinkReader::open(file.clone(), &Limits::default()).unwrap();
            link.verify(&()).unwrap();
            assert!(apply(&base, &link).unwrap() == target);
            let link_sums = link.sums().unwrap();
            let (_, origins) = target_table(&table.tensors, &table.digests, &link).unwrap();
            let after = sums.follow(&origins, link_sums.as_ref());
            assert_eq!(after, StateSums::hashed(&target, &()).unwrap().1);
            after.check(&target, &()).unwrap();
            assert_eq!(
                after.check(&base, &()).unwrap_err().rule(),
                Some("R-SUM-04")
            );
            // A damaged area is none, and nothing else changes.
            let end = file.len() - 1;
            file[end] ^= 1;
            let link = LinkReader::open(file, &Limits::default()).unwrap();
            assert_eq!(link.sums().unwrap(), None);
            assert!(apply(&base, &link).unwrap() == target);
            assert!(sums.follow(&origins, None).tensors.contains(&None));
        }
    }

    #[test]
    fn of_a_state_that_is_written_meanwhile_link_and_digests_agree() {
        let (base, target) = pair();
        let restless = Restless(target, AtomicU8::new(1));
        for profile in [Profile::Compact, Profile::Direct] {
            let mut file = Vec::new();
            let options = DiffOptions::default().profile(profile);
            let report = diff(&base, &read_once(&restless), &options, &mut file).unwrap();
            let built = apply(&base, &LinkReader::open(file, &Limits::default()).unwrap()).unwrap();
            assert!(built != restless.0);
            assert_eq!(StateDigests::of(&built, &()).unwrap(), report.target);
        }
    }
}
