//! Caller-owned memory that is changed in place: the trait that such memory implements, and the
//! changes staged for it.

use crate::error::{Error, ErrorClass, Result};
use crate::limits::address;
use crate::memory::patch_set::{PatchSet, RunKind};
use crate::memory::places::{PartPiece, Places, Span, TensorPart};
use crate::progress::Progress;
use crate::rules;
use crate::sums::Sums;
use crate::tensor::{State, TensorInfo, find};

/// Memory of tensors, wherever it lies: in this process ([`LentState`](super::LentState)), on a
/// device, or as a share of the memory of several processes. It is used by one thread. A call is
/// for a few hundred thousand lanes at most, unless a link codes more lanes of one piece.
pub trait PlacedMemory: Send {
    /// Proven lanes, ready to be written.
    type Staged: Send;

    /// The places of the tensors.
    fn places(&self) -> &Places;

    /// Gives the tensors other shapes; see [`Places::describe`].
    ///
    /// # Errors
    /// Same errors as [`Places::describe`].
    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()>;

    /// The tensors as a state, if the processor can read all of each.
    fn state(&self) -> Option<&dyn State> {
        None
    }

    /// Fills `out` with the values of lanes of `width` bytes, span by span.
    ///
    /// # Errors
    /// The errors of the memory; USAGE if there are no such lanes.
    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()>;

    /// Prepares proven lanes, with their old and new values, to be written. Does not change the
    /// memory yet.
    ///
    /// # Errors
    /// The errors of the memory, such as for lack of room.
    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<Self::Staged>;

    /// Compares all lanes with their old values, and writes the new ones (R-SUM-05). Blocks until
    /// the writes are visible. If a lane has another value, returns the numbers of its staged lanes
    /// and span; then nothing has changed.
    ///
    /// # Errors
    /// The errors of the memory. Some lanes may have been written then.
    fn write(&mut self, staged: &[Self::Staged]) -> Result<Option<(usize, usize)>>;

    /// Writes the old values.
    ///
    /// # Errors
    /// The errors of the memory. Some lanes may have been written then.
    fn put_back(&mut self, staged: &[Self::Staged]) -> Result<()>;

    /// Overwrites lanes of `width` bytes.
    ///
    /// # Errors
    /// Same errors as [`gather`](Self::gather). Some lanes may have been written.
    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()>;

    /// The sums of the lanes that parts have of pieces.
    ///
    /// # Errors
    /// The errors of the memory.
    fn sums(&mut self, wanted: &[PartPiece]) -> Result<Vec<Sums>>;
}

/// The processes that hold a state's memory together. All of them make the same calls in the same
/// order, even after an error.
pub trait Peers: Sync {
    /// Adds up sums over all processes: of old values, and of new ones.
    ///
    /// # Errors
    /// The error of another process; IO if a process is lost.
    fn add(&self, sums: &mut [[Sums; 2]], error: Option<&Error>) -> Result<()>;

    /// Tells all processes whether this one has failed. Returns the error of another process, if
    /// there is one; then all processes know that one has failed.
    ///
    /// # Errors
    /// If it is unknown what the other processes know.
    fn vote(&self, error: Option<&Error>) -> Result<Option<Error>>;
}

/// A process that holds all of the memory.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Peers for Alone {
    fn add(&self, _sums: &mut [[Sums; 2]], _error: Option<&Error>) -> Result<()> {
        Ok(())
    }

    fn vote(&self, _error: Option<&Error>) -> Result<Option<Error>> {
        Ok(None)
    }
}

/// Proven lanes to be written, for a version with all of its shards.
#[derive(Debug)]
pub struct Changes<T> {
    staged: Vec<T>,
    /// The tensor of each span.
    tensors: Vec<Vec<usize>>,
    lanes: u64,
    bytes: u64,
    /// Maximum bytes of the changes.
    budget: u64,
    /// Whether any changes may have been written.
    is_written: bool,
}

/// Extent of [`Changes`] at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChangesMark {
    pub(crate) staged: usize,
    pub(crate) lanes: u64,
    pub(crate) bytes: u64,
}

impl<T> Changes<T> {
    /// No changes yet; `budget` bounds the bytes that they take.
    pub fn new(budget: u64) -> Self {
        Self {
            staged: Vec::new(),
            tensors: Vec::new(),
            lanes: 0,
            bytes: 0,
            budget,
            is_written: false,
        }
    }

    /// Number of lanes that change.
    pub fn lanes(&self) -> u64 {
        self.lanes
    }

    /// Bytes that the changes take: places, old and new values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A mark of the changes added so far, for [`forget`](Self::forget).
    pub(crate) fn mark(&self) -> ChangesMark {
        ChangesMark {
            staged: self.staged.len(),
            lanes: self.lanes,
            bytes: self.bytes,
        }
    }

    /// Forgets the changes that were added after a mark.
    pub(crate) fn forget(&mut self, mark: ChangesMark) {
        self.staged.truncate(mark.staged);
        self.tensors.truncate(mark.staged);
        self.lanes = mark.lanes;
        self.bytes = mark.bytes;
    }

    /// Adds proven lanes.
    ///
    /// # Errors
    /// USAGE if all changes together exceed the budget; errors of the memory.
    pub(crate) fn add<M: PlacedMemory<Staged = T> + ?Sized>(
        &mut self,
        memory: &mut M,
        width: usize,
        (spans, tensors): (Vec<Span>, Vec<usize>),
        (old, new): (Vec<u8>, Vec<u8>),
    ) -> Result<()> {
        if spans.is_empty() {
            return Ok(());
        }
        let places: usize = spans
            .iter()
            .filter_map(|span| span.places.as_ref())
            .map(Vec::len)
            .sum();
        self.lanes += spans.iter().map(|span| span.count as u64).sum::<u64>();
        self.bytes += (size_of::<u32>() * places + old.len() + new.len()) as u64;
        if self.bytes > self.budget {
            let (needed, budget) = (self.bytes, self.budget);
            return Err(Error::usage(format!(
                "the changes take {needed} bytes so far, {budget} are allowed"
            )));
        }
        self.staged.push(memory.stage(width, spans, old, new)?);
        self.tensors.push(tensors);
        Ok(())
    }

    /// Adds the differences between the memory, all of which must be readable, and a target that
    /// has been built beside it. Hashing is a proof for these lanes, too.
    ///
    /// # Errors
    /// UNSUPPORTED, without a rule, if tensors are added, removed or resized, like
    /// [`Replay::in_place`](crate::Replay::in_place); USAGE if the changes exceed the budget;
    /// errors of the memory.
    pub fn add_set<M: PlacedMemory<Staged = T> + ?Sized>(
        &mut self,
        memory: &mut M,
        set: &PatchSet,
    ) -> Result<()> {
        let refused = || {
            Error::refused(
                ErrorClass::Unsupported,
                "a tensor is set or removed, which cannot be done in place",
            )
        };
        if set.whole_tensors().next().is_some() || set.removed().next().is_some() {
            return Err(refused());
        }
        for run in set.runs() {
            let info = &set.table().tensors[run.tensor];
            let width = info.dtype().lane_bytes();
            let tensor = find(memory.places().tensors(), info.name()).ok_or_else(refused)?;
            let count = run.values.len() / width;
            let places = match &run.kind {
                RunKind::Lanes(range) => Some(set.numbers()[range.clone()].to_vec()),
                RunKind::Whole => None,
            };
            let whole = |part: &TensorPart| Some((part.row(), part.whole()?));
            let Some((row, first)) = memory.places().parts(tensor).iter().find_map(whole) else {
                return Err(refused());
            };
            if memory.places().tied(tensor).is_some() {
                continue;
            }
            let span = Span {
                row,
                first: first + run.first_lane,
                places,
                count,
            };
            let values = |arena: &[u8]| arena[run.values.clone()].to_vec();
            self.add(
                memory,
                width,
                (vec![span], vec![tensor]),
                (values(set.base_values()), values(set.values())),
            )?;
        }
        Ok(())
    }

    /// Writes the new values, if the memory still has the old ones.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if the memory was written to since the lanes were proven; nothing
    /// has changed. The errors of the memory, which may then hold parts of two states until the
    /// changes are [put back](Self::put_back). USAGE if the changes have been written, or may have
    /// been, and not put back.
    pub fn write<M: PlacedMemory<Staged = T> + ?Sized>(&mut self, memory: &mut M) -> Result<()> {
        if self.is_written {
            return Err(Error::usage(
                "the changes have been written, or may have been: undo them first",
            ));
        }
        self.is_written = true;
        if let Some((staged, span)) = memory.write(&self.staged)? {
            self.is_written = false;
            let message = "other code has written to the memory since its lanes were proven";
            let tensor = self
                .tensors
                .get(staged)
                .and_then(|tensors| tensors.get(span));
            let tensor = tensor.and_then(|&tensor| memory.places().tensors().get(tensor));
            return Err(of_tensor(Error::broken(&rules::APP_01, message), tensor));
        }
        Ok(())
    }

    /// Writes the old values again, if any new ones may have been written.
    ///
    /// # Errors
    /// The errors of the memory. It may hold parts of two states then; call this again.
    pub fn put_back<M: PlacedMemory<Staged = T> + ?Sized>(&mut self, memory: &mut M) -> Result<()> {
        if self.is_written {
            memory.put_back(&self.staged)?;
        }
        self.is_written = false;
        Ok(())
    }
}

fn of_tensor(error: Error, info: Option<&TensorInfo>) -> Error {
    match info {
        Some(info) => error.of_tensor(info.name()),
        None => error,
    }
}

/// Number of pieces whose sums are requested at once.
const PIECES: usize = 64;

/// Compares all of the memory with the sums of tensors, by their numbers: R-SUM-04. All processes
/// that hold it must make the same calls.
///
/// # Errors
/// R-SUM-04 with the first tensor that differs; errors of the memory, of other processes, and of
/// `progress`.
pub fn check_sums<M: PlacedMemory + ?Sized>(
    memory: &mut M,
    sums: &[(usize, &[Sums])],
    peers: &dyn Peers,
    progress: &dyn Progress,
) -> Result<()> {
    let mut covers = Covers::default();
    let done = compare_pieces(memory, sums, &mut covers, progress);
    let added = peers.add(&mut covers.found, done.as_ref().err());
    done.and(added)?;
    match covers.first_wrong() {
        Some(tensor) => Err(other_sums(memory, tensor)),
        None => Ok(()),
    }
}

/// Sums of pieces of which several processes have parts, for each cover of a piece.
#[derive(Default)]
struct Covers {
    /// The tensor and the expected sums.
    expected: Vec<(usize, Sums)>,
    /// The sums that were found, in the second place: [`Peers::add`] takes pairs.
    found: Vec<[Sums; 2]>,
}

impl Covers {
    /// Adds covers of a piece, and returns the index of the first one.
    fn add(&mut self, count: usize, tensor: usize, expected: Sums) -> usize {
        let first = self.found.len();
        self.found.resize(first + count, [Sums::ZERO; 2]);
        self.expected.resize(first + count, (tensor, expected));
        first
    }

    /// The tensor of the first cover whose sums are not the expected ones.
    fn first_wrong(&self) -> Option<usize> {
        let mut covers = self.expected.iter().zip(&self.found);
        let wrong = covers.find(|((_, expected), [_, found])| expected != found);
        wrong.map(|((tensor, _), _)| *tensor)
    }
}

/// Compares the pieces that this process has alone, and adds the sums of its parts of all others to
/// their covers.
fn compare_pieces<M: PlacedMemory + ?Sized>(
    memory: &mut M,
    sums: &[(usize, &[Sums])],
    covers: &mut Covers,
    progress: &dyn Progress,
) -> Result<()> {
    let mut pieces: Vec<(PartPiece, Sums)> = Vec::new();
    for &(tensor, sums) in sums {
        let info = memory.places().tensors().get(tensor);
        if info.map(TensorInfo::pieces) != Some(sums.len() as u64) {
            return Err(other_sums(memory, tensor));
        }
        let first_part = |piece| PartPiece {
            tensor,
            part: 0,
            piece,
        };
        pieces.extend((0..).map(first_part).zip(sums.iter().copied()));
    }
    for pieces in pieces.chunks(PIECES) {
        let mut wanted = Vec::new();
        // The expected sums of each part, and the first cover of its piece.
        let mut expected = Vec::new();
        for &(first, sums) in pieces {
            let places = memory.places();
            let cover = covers.add(places.covers(first.tensor), first.tensor, sums);
            for part in 0..places.parts(first.tensor).len() {
                wanted.push(PartPiece { part, ..first });
                expected.push((sums, cover));
            }
        }
        let found = memory.sums(&wanted)?;
        for ((wanted, (expected, first_cover)), found) in wanted.iter().zip(expected).zip(found) {
            match memory.places().joins(wanted.tensor, wanted.part)? {
                Some(joined) => {
                    for cover in joined {
                        let [_, sum] = &mut covers.found[first_cover + cover];
                        *sum = sum.plus(found);
                    }
                }
                None if found != expected => return Err(other_sums(memory, wanted.tensor)),
                None => {}
            }
            let range = memory.places().tensors()[wanted.tensor].piece(wanted.piece);
            progress.advance(range.end - range.start)?;
        }
    }
    Ok(())
}

fn other_sums<M: PlacedMemory + ?Sized>(memory: &M, tensor: usize) -> Error {
    let error = Error::broken(
        &rules::SUM_04,
        "the memory does not have the sums of the version",
    );
    of_tensor(error, memory.places().tensors().get(tensor))
}

/// Writes the bytes of a piece of a tensor to all places of its lanes, whatever is there. A tied
/// tensor is not written: the tensor whose memory it shares is.
///
/// # Errors
/// USAGE if there is no such piece; errors of the memory.
pub fn fill<M: PlacedMemory + ?Sized>(
    memory: &mut M,
    tensor: usize,
    piece: u64,
    bytes: &[u8],
) -> Result<()> {
    let places = memory.places();
    let info = places.tensors().get(tensor).ok_or_else(no_lanes)?;
    let (width, range) = (info.dtype().lane_bytes(), info.piece(piece));
    if range.end - range.start != bytes.len() as u64 {
        return Err(no_lanes());
    }
    let lanes = range.start / width as u64..range.end / width as u64;
    let mut spans = Vec::new();
    for part in if places.tied(tensor).is_none() {
        places.parts(tensor)
    } else {
        &[]
    } {
        if let Some(first) = part.whole() {
            spans.push((
                Span::all(part.row(), first + lanes.start, bytes.len() / width),
                None,
            ));
            continue;
        }
        let (mut places, mut values) = (Vec::new(), Vec::new());
        for one in part.stretches(lanes.clone()) {
            let begin = address(one.lane - lanes.start)? * width;
            values.extend_from_slice(&bytes[begin..begin + address(one.count)? * width]);
            places.extend(one.places());
        }
        let is_row = places
            .array_windows()
            .all(|[left, right]| left + 1 == *right);
        let mut rest = values;
        let found = match places.first() {
            Some(&first) if is_row => vec![Span::all(part.row(), first, places.len())],
            _ => Span::at(part.row(), &places),
        };
        for span in found {
            let others = rest.split_off(span.count * width);
            spans.push((span, Some(rest)));
            rest = others;
        }
    }
    spans.into_iter().try_for_each(|(span, values)| {
        memory.fill(width, &span, values.as_deref().unwrap_or(bytes))
    })
}

pub(super) fn no_lanes() -> Error {
    Error::usage("no such lanes in the memory")
}
