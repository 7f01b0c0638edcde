//! Tensors of the caller's that follow a chain: where they lie, which is compared with that when
//! they were bound whenever they are used, and how they are read and written: here, or on devices
//! by torch.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use deltachain::memory::{HostLanes, Peers, PlacedMemory, Places, Region, Rows, Span, TensorPart};
use deltachain::sums::Sums;
use deltachain::tensor::{PIECE_BYTES, State, TensorInfo, find};
use deltachain::{Error, ErrorClass, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::{raised, usage};
use crate::gate;
use crate::memory::{Buffer, BufferOwner, ByteView};
use crate::places::{self, TensorPlace};
use crate::tensors::{Finder, TensorBytes};
use crate::work::{Caller, other};

/// A given part of a tensor: an object that has some of it, and begin and end in its first
/// dimensions.
pub(crate) type GivenRow = (String, Py<TensorPlace>, Vec<(u64, u64)>);

/// A part of a tensor on a device: row, first lane, and for each dimension its length, begin, end
/// and stride.
type PartRow = (usize, u64, Vec<(u64, u64, u64, u64)>);

/// Sums of old and of new values of the lanes that change, by the address of what holds them and
/// the number of 16 MiB there.
pub(crate) type RowSums = BTreeMap<(usize, u64), [Sums; 2]>;

/// Lanes of 16 MiB: their numbers there, old and new values.
type LanesOfPiece = (Vec<u32>, [Vec<u8>; 2]);

/// A version that is prepared for them.
pub(crate) type LentVersion =
    deltachain_store::PreparedVersion<deltachain_store::InPlace<LentMemory>>;

/// The tensors.
pub(crate) struct LentMemory {
    places: Places,
    rows: Arc<Vec<MemoryRow>>,
    /// The bytes of each row, if they are here.
    bytes: Vec<Option<ByteView>>,
    device: Option<Device>,
    /// If they are wanted.
    sums: Option<Mutex<RowSums>>,
}

/// Memory that holds tensors.
struct MemoryRow {
    address: usize,
    /// Where the tensors lay that are in it.
    places: Vec<Py<TensorPlace>>,
}

/// The means to read and write tensors on devices, in the caller's thread.
struct Device {
    torch: Arc<Py<PyAny>>,
    caller: Arc<Caller>,
}

/// Lanes that have been proven, and the rows that they are in: here, or on devices, as torch knows
/// them.
pub(crate) struct LaneBatch {
    rows: Vec<usize>,
    here: Option<HostLanes>,
    there: Option<Arc<Py<PyAny>>>,
}

impl LentMemory {
    /// The memory of these tensors of a version, ascending by name; `torch` reads and writes them
    /// if some are on a device.
    ///
    /// # Errors
    /// USAGE if one is not of the dtype and the form that is wanted, cannot be written to, or
    /// shares memory with another one.
    pub(crate) fn new(
        py: Python<'_>,
        infos: Vec<TensorInfo>,
        given: &[GivenRow],
        torch: Option<Py<PyAny>>,
        (caller, wants_sums): (Arc<Caller>, bool),
    ) -> PyResult<Self> {
        let mut finder = Finder::new(py)?;
        let (mut rows, mut bytes, mut all) = (Vec::<MemoryRow>::new(), Vec::new(), Vec::new());
        let mut numbers: HashMap<(usize, usize, usize), usize> = HashMap::new();
        let mut alone: Vec<(usize, usize, String)> = Vec::new();
        for (name, place, index) in given {
            let (tensor, index) = (place.get().tensor(py), ranges(index));
            let info = find(&infos, name).map(|number| &infos[number]);
            let info =
                info.ok_or_else(|| usage(py, "the tensor is not in the chain", Some(name)))?;
            let width = info.dtype().lane_bytes();
            let found = finder.located(py, place.get())?;
            let can_move = found.bytes.is_none();
            if found.dtype != info.dtype() {
                let text = format!(
                    "the chain has {}, this is {}: only memory of the chain's dtype",
                    info.dtype(),
                    found.dtype
                );
                return Err(usage(py, text, Some(name)));
            }
            let (begin, length) = found.row;
            if found.shape.contains(&0) {
                let (row, first, strides) = (0, 0, None);
                all.push(Region {
                    name: name.into(),
                    row,
                    first,
                    shape: found.shape,
                    strides,
                    index,
                });
                continue;
            }
            let first = found
                .address
                .checked_sub(begin)
                .filter(|first| first.is_multiple_of(width));
            let first = first.ok_or_else(|| {
                usage(
                    py,
                    "the tensor does not begin with a whole element",
                    Some(name),
                )
            })?;
            let row = match &torch {
                Some(torch) => torch
                    .bind(py)
                    .call_method1("row", (tensor, width))?
                    .extract()?,
                None => *numbers.entry((begin, length, width)).or_insert(rows.len()),
            };
            if row == rows.len() {
                rows.push(MemoryRow {
                    address: begin,
                    places: Vec::new(),
                });
                let own = || ByteView::of_address(begin, length, tensor.clone().unbind());
                bytes.push(torch.is_none().then(|| found.bytes.unwrap_or_else(own)));
            }
            if !found.is_torch {
                alone.push((begin, begin + length, name.into()));
            }
            if can_move {
                rows[row].places.push(place.clone_ref(py));
            }
            let first = (first / width) as u64;
            all.push(Region {
                name: name.into(),
                row,
                first,
                shape: found.shape,
                strides: found.strides,
                index,
            });
        }
        check_alone(py, &numbers, &alone)?;
        let places = Places::new(infos, &all).map_err(|error| raised(py, &error))?;
        let device = torch.map(|torch| Device {
            torch: Arc::new(torch),
            caller,
        });
        let sums = wants_sums.then(Mutex::default);
        Ok(Self {
            places,
            rows: Arc::new(rows),
            bytes,
            device,
            sums,
        })
    }

    pub(crate) fn places_mut(&mut self) -> &mut Places {
        &mut self.places
    }

    /// Which elements of each tensor are here.
    fn elements(&self) -> Vec<Vec<&[Range<u64>]>> {
        let numbers = 0..self.places.tensors().len();
        numbers
            .map(|number| {
                self.places
                    .parts(number)
                    .iter()
                    .map(TensorPart::elements)
                    .collect()
            })
            .collect()
    }

    /// The sums of what has been staged since this was last asked, if they are wanted.
    pub(crate) fn take_sums(&self) -> RowSums {
        let Some(sums) = &self.sums else {
            return RowSums::new();
        };
        std::mem::take(&mut *sums.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Works with tensors here, with the interpreter's lock, so that no code in Python moves them
    /// after they have been compared. Whoever does so without the lock is noticed afterwards.
    fn still<T>(
        &mut self,
        rows: &[usize],
        work: impl FnOnce(&mut Here<'_>) -> Result<T>,
    ) -> Result<T> {
        let Self {
            places,
            rows: all,
            bytes,
            ..
        } = self;
        gate::attach(|py| {
            check(py, all, rows)?;
            let done = work(&mut Here { places, bytes });
            check(py, all, rows)?;
            done
        })?
    }

    /// Compares where tensors here lie.
    fn look(&self, rows: &[usize]) -> Result<()> {
        gate::attach(|py| check(py, &self.rows, rows))?
    }

    /// Asks torch, when it has been seen that the tensors are where they were. What `changes` them
    /// is looked at again.
    fn on_device<T: Send + 'static>(
        &self,
        rows: Vec<usize>,
        changes: bool,
        work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T> {
        let Some(Device { torch, caller }) = &self.device else {
            return Err(no_row());
        };
        let (torch, all) = (Arc::clone(torch), Arc::clone(&self.rows));
        caller.ask(move |py| {
            let here = |error: Error| raised(py, &error);
            check(py, &all, &rows).map_err(here)?;
            let done = work(torch.bind(py))?;
            if changes {
                check(py, &all, &rows).map_err(here)?;
            }
            Ok(done)
        })
    }

    /// Lanes that are on a device.
    fn gathered(&self, width: usize, spans: Vec<Span>, out: &mut [u8]) -> Result<()> {
        let length = out.len();
        if length == 0 {
            return Ok(());
        }
        let found = self.on_device(rows_of(&spans), false, move |torch| {
            let spans: Vec<SpanRow> = spans.into_iter().map(span_row).collect();
            Ok(
                ByteView::returned(&torch.call_method1("gather", (width, spans))?, length)?
                    .bytes()
                    .to_vec(),
            )
        })?;
        out.copy_from_slice(&found);
        Ok(())
    }

    fn add_sums(&self, width: usize, spans: &[Span], (old, new): (&[u8], &[u8])) {
        let Some(sums) = &self.sums else { return };
        let in_piece = PIECE_BYTES / width as u64;
        let mut all: BTreeMap<(usize, u64), LanesOfPiece> = BTreeMap::new();
        let mut at = 0;
        for span in spans {
            for lane in 0..span.count {
                let place = span
                    .places
                    .as_ref()
                    .map_or(lane as u64, |places| u64::from(places[lane]))
                    + span.first;
                let key = (
                    self.rows.get(span.row).map_or(0, |row| row.address),
                    place / in_piece,
                );
                let (numbers, [olds, news]) = all.entry(key).or_default();
                // Below 2^24.
                numbers.push(u32::try_from(place % in_piece).unwrap_or(0));
                olds.extend_from_slice(&old[at..at + width]);
                news.extend_from_slice(&new[at..at + width]);
                at += width;
            }
        }
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, (numbers, values)) in all {
            let own = sums.entry(key).or_default();
            for (sum, values) in own.iter_mut().zip(values) {
                *sum = sum.plus(Sums::of_lanes(width, &numbers, &values));
            }
        }
    }
}

fn ranges(index: &[(u64, u64)]) -> Vec<Range<u64>> {
    index.iter().map(|&(begin, end)| begin..end).collect()
}

/// Memory of other libraries than torch, whose views are not looked into, must not overlap other
/// memory.
fn check_alone(
    py: Python<'_>,
    rows: &HashMap<(usize, usize, usize), usize>,
    alone: &[(usize, usize, String)],
) -> PyResult<()> {
    for (begin, end, name) in alone {
        let overlaps = |&(other, length, _): &(usize, usize, usize)| {
            (other, other + length) != (*begin, *end) && other < *end && *begin < other + length
        };
        if rows.keys().any(overlaps) {
            return Err(usage(
                py,
                "the tensor shares a part of its memory with another one",
                Some(name),
            ));
        }
    }
    Ok(())
}

/// Refuses tensors that do not lie where they did.
fn check(py: Python<'_>, all: &[MemoryRow], rows: &[usize]) -> Result<()> {
    let places = rows
        .iter()
        .filter_map(|&row| all.get(row))
        .flat_map(|row| &row.places);
    let moved = places.map(Py::get).find(|place| !place.is_here(py));
    moved.map_or(Ok(()), |place| Err(places::moved(place.name())))
}

/// Each row once, in order.
fn distinct(rows: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut rows: Vec<usize> = rows.collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn rows_of(spans: &[Span]) -> Vec<usize> {
    distinct(spans.iter().map(|span| span.row))
}

fn all_rows(staged: &[LaneBatch]) -> Vec<usize> {
    distinct(staged.iter().flat_map(|staged| staged.rows.iter().copied()))
}

fn bytes_at(bytes: &[Option<ByteView>], row: usize) -> Option<&[u8]> {
    bytes.get(row).and_then(Option::as_ref).map(ByteView::bytes)
}

fn no_row() -> Error {
    Error::usage("there is no such memory")
}

/// Tensors here that have been compared.
struct Here<'a> {
    places: &'a mut Places,
    bytes: &'a mut [Option<ByteView>],
}

impl Rows for Here<'_> {
    fn places(&self) -> &Places {
        self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn state(&self) -> Option<&dyn State> {
        None
    }

    fn row(&self, row: usize) -> Result<&[u8]> {
        bytes_at(self.bytes, row).ok_or_else(no_row)
    }

    fn row_mut(&mut self, row: usize) -> Result<&mut [u8]> {
        self.bytes
            .get_mut(row)
            .and_then(Option::as_mut)
            .map(ByteView::bytes_mut)
            .ok_or_else(no_row)
    }
}

/// Spans as torch's side takes them.
type SpanRow = (usize, u64, Option<Buffer>, usize);

fn span_row(span: Span) -> SpanRow {
    // Below 2^31.
    let places = span
        .places
        .map(|places| places.into_iter().map(u32::cast_signed).collect());
    (
        span.row,
        span.first,
        places.map(|places| Buffer::new(BufferOwner::Int32(places))),
        span.count,
    )
}

fn bytes_row(bytes: Vec<u8>) -> Buffer {
    Buffer::new(BufferOwner::Bytes(bytes.into()))
}

impl PlacedMemory for LentMemory {
    type Staged = LaneBatch;

    fn places(&self) -> &Places {
        &self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn state(&self) -> Option<&dyn State> {
        let numbers = 0..self.places.tensors().len();
        let is_here = |number: usize| {
            self.places.tensors()[number].bytes() == 0 || self.whole(number).is_some()
        };
        let state: &dyn State = self;
        Some(state).filter(|_| numbers.into_iter().all(is_here))
    }

    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()> {
        let rows = rows_of(spans);
        if self.device.is_none() {
            self.look(&rows)?;
            return Here {
                places: &mut self.places,
                bytes: &mut self.bytes,
            }
            .gather(width, spans, out);
        }
        self.gathered(width, spans.to_vec(), out)
    }

    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<LaneBatch> {
        self.add_sums(width, &spans, (&old, &new));
        let rows = rows_of(&spans);
        if self.device.is_none() {
            return Ok(LaneBatch {
                rows,
                here: Some(HostLanes::new(width, spans, old, new)),
                there: None,
            });
        }
        let handle = self.on_device(rows.clone(), false, move |torch| {
            let spans: Vec<SpanRow> = spans.into_iter().map(span_row).collect();
            Ok(torch
                .call_method1("stage", (width, spans, bytes_row(old), bytes_row(new)))?
                .unbind())
        })?;
        Ok(LaneBatch {
            rows,
            here: None,
            there: Some(Arc::new(handle)),
        })
    }

    fn exchange(&mut self, staged: &[LaneBatch]) -> Result<Option<(usize, usize)>> {
        let rows = all_rows(staged);
        if self.device.is_none() {
            return self.still(&rows, |memory| HostLanes::exchange(memory, here(staged)));
        }
        let handles = handles(staged);
        self.on_device(rows, true, move |torch| {
            torch
                .call_method1("exchange", (listed(torch, &handles)?,))?
                .extract()
        })
    }

    fn put_back(&mut self, staged: &[LaneBatch]) -> Result<()> {
        let rows = all_rows(staged);
        if self.device.is_none() {
            return self.still(&rows, |memory| HostLanes::put_back(memory, here(staged)));
        }
        let handles = handles(staged);
        self.on_device(rows, true, move |torch| {
            torch
                .call_method1("put_back", (listed(torch, &handles)?,))
                .map(drop)
        })
    }

    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()> {
        if self.device.is_none() {
            return self.still(&[span.row], |here| here.fill(width, span, values));
        }
        let (span, values) = (span.clone(), values.to_vec());
        self.on_device(vec![span.row], true, move |torch| {
            torch
                .call_method1("fill", (width, span_row(span), bytes_row(values)))
                .map(drop)
        })
    }

    fn sums(&mut self, wanted: &[(usize, usize, u64)]) -> Result<Vec<Sums>> {
        let part =
            |tensor: usize, part: usize| self.places.parts(tensor).get(part).ok_or_else(no_row);
        let rows = wanted
            .iter()
            .map(|&(tensor, at, _)| Ok(part(tensor, at)?.row()))
            .collect::<Result<Vec<_>>>()?;
        let rows = distinct(rows.into_iter());
        if self.device.is_none() {
            self.look(&rows)?;
            return Here {
                places: &mut self.places,
                bytes: &mut self.bytes,
            }
            .sums(wanted);
        }
        let asked = wanted.iter().map(|&(tensor, at, piece)| {
            let (info, part) = (&self.places.tensors()[tensor], part(tensor, at)?);
            let (width, range) = (info.dtype().lane_bytes() as u64, info.piece(piece));
            let dimensions = part
                .dimensions()
                .map(|(length, here, stride)| (length, here.start, here.end, stride));
            let part: PartRow = (part.row(), part.range().start, dimensions.collect());
            Ok((part, range.start / width, range.end / width))
        });
        let asked = asked.collect::<Result<Vec<_>>>()?;
        let found = self.on_device(rows, false, move |torch| {
            torch
                .call_method1("sums", (asked,))?
                .extract::<Vec<[u32; 2]>>()
        })?;
        found
            .into_iter()
            .map(|numbers| Sums::new(numbers).ok_or_else(no_row))
            .collect()
    }
}

fn here(staged: &[LaneBatch]) -> impl Iterator<Item = &HostLanes> + Clone {
    staged.iter().filter_map(|staged| staged.here.as_ref())
}

fn handles(staged: &[LaneBatch]) -> Vec<Arc<Py<PyAny>>> {
    staged
        .iter()
        .filter_map(|staged| staged.there.clone())
        .collect()
}

fn listed<'py>(
    torch: &Bound<'py, PyAny>,
    handles: &[Arc<Py<PyAny>>],
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(
        torch.py(),
        handles.iter().map(|handle| handle.bind(torch.py())),
    )
}

impl LentMemory {
    /// The part that has all of a tensor.
    fn whole(&self, tensor: usize) -> Option<&TensorPart> {
        self.places.parts(tensor).iter().find(|part| part.is_all())
    }
}

impl State for LentMemory {
    fn tensors(&self) -> &[TensorInfo] {
        self.places.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let wrong = || Error::usage("no such range in the state");
        let info = self.tensors().get(tensor).ok_or_else(wrong)?;
        let width = info.dtype().lane_bytes();
        let (begin, end) = (
            offset / width as u64,
            (offset + out.len() as u64) / width as u64,
        );
        if out.is_empty() {
            return Ok(());
        }
        let part = self.whole(tensor).ok_or_else(wrong)?;
        let spans = part.spans(begin..end)?;
        if self.device.is_some() {
            return self.gathered(width, spans, out);
        }
        self.look(&[part.row()])?;
        Span::read(
            width,
            &spans,
            |row| bytes_at(&self.bytes, row).ok_or_else(no_row),
            out,
        )
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        // If the bytes cannot be shown, `read` says what is wrong.
        let part = self.whole(tensor)?;
        let begin = part
            .whole()?
            .checked_mul(self.tensors().get(tensor)?.dtype().lane_bytes() as u64)?;
        let own = usize::try_from(begin.checked_add(range.start)?).ok()?
            ..usize::try_from(begin.checked_add(range.end)?).ok()?;
        self.look(&[part.row()]).ok()?;
        bytes_at(&self.bytes, part.row())?.get(own)
    }
}

/// The processes of a group, by their object in Python.
pub(crate) struct ProcessGroup {
    pub(crate) ranks: Arc<Py<PyAny>>,
    pub(crate) caller: Arc<Caller>,
}

impl ProcessGroup {
    /// This process's error as an exception.
    fn exception(&self, error: Option<&Error>) -> Option<PyErr> {
        let error = error?;
        gate::attach(|py| self.caller.raised(py).unwrap_or_else(|| raised(py, error))).ok()
    }

    /// The error that has come from another process, as far as it matters whether it is about the
    /// memory.
    fn told(&self, error: Error) -> Error {
        let is_of_memory = gate::attach(|py| {
            let raised = self.caller.raised(py);
            raised.is_some_and(|raised| is_of_memory(raised.value(py)).unwrap_or(false))
        });
        if is_of_memory.unwrap_or(false) {
            return Error::refused(
                ErrorClass::StateMismatch,
                "another process has found other values",
            );
        }
        error
    }
}

/// Whether an exception says that the memory is not what it should be.
fn is_of_memory(raised: &Bound<'_, PyAny>) -> PyResult<bool> {
    let errors = raised.py().import("deltachain._errors")?;
    Ok(raised.is_instance(&errors.getattr("StateMismatchError")?)?
        || raised.is_instance(&errors.getattr("WrongBaseError")?)?)
}

impl Peers for ProcessGroup {
    fn add(&self, sums: &mut [[Sums; 2]], error: Option<&Error>) -> Result<()> {
        let (ranks, failed) = (Arc::clone(&self.ranks), self.exception(error));
        let numbers = sums.iter().flatten().flat_map(|sums| sums.numbers());
        let bytes: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
        let length = bytes.len();
        let words = self.caller.ask(move |py| {
            let words = ranks
                .bind(py)
                .call_method1("add", (PyBytes::new(py, &bytes), failed))?;
            words
                .try_iter()?
                .map(|word| ByteView::returned(&word?, length))
                .collect::<PyResult<Vec<_>>>()
        });
        let words = words.map_err(|error| self.told(error))?;
        sums.fill([Sums::ZERO; 2]);
        for word in words {
            let mut numbers = word
                .bytes()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&number| u32::from_le_bytes(number));
            for sums in sums.iter_mut().flatten() {
                let pair = numbers.next().zip(numbers.next());
                *sums = sums.plus(
                    pair.and_then(|(a, b)| Sums::new([a, b]))
                        .ok_or_else(no_row)?,
                );
            }
        }
        Ok(())
    }

    fn vote(&self, error: Option<&Error>) -> Result<Option<Error>> {
        let (ranks, failed) = (Arc::clone(&self.ranks), self.exception(error));
        let voted = self.caller.ask(move |py| {
            let voted = ranks.bind(py).call_method1("vote", (failed,));
            let of = |voted: Bound<'_, PyAny>| -> PyResult<_> {
                if voted.is_none() {
                    return Ok(None);
                }
                let is_other = is_of_memory(&voted)?;
                Ok(Some((PyErr::from_value(voted), is_other)))
            };
            Ok(voted.and_then(of))
        })?;
        match voted {
            Ok(None) => Ok(None),
            Ok(Some((failed, is_other))) => {
                self.caller.raise(failed);
                let class = if is_other {
                    ErrorClass::StateMismatch
                } else {
                    ErrorClass::Usage
                };
                Ok(Some(Error::refused(class, "another process has failed")))
            }
            // It is not known what the others have written.
            Err(lost) => {
                self.caller.raise_instead(lost);
                Err(other("another process is lost"))
            }
        }
    }
}

/// Tensors that have been found, until it is known what other processes have.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct FoundTensors(pub(crate) Mutex<Option<LentMemory>>);

#[pymethods]
impl FoundTensors {
    /// The facts that other processes have to know: which elements are here, and the names of those
    /// that are not needed.
    fn told(&self, py: Python<'_>, unused: Vec<String>) -> PyResult<Vec<u8>> {
        let lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = (
            lent.as_ref().map(LentMemory::elements).unwrap_or_default(),
            unused,
        );
        serde_json::to_vec(&told).map_err(|error| usage(py, error.to_string(), None))
    }
}

impl<'py> Finder<'py> {
    /// Where a tensor that can be written to lies.
    fn located(&mut self, py: Python<'py>, place: &TensorPlace) -> PyResult<TensorLocation> {
        let (name, object) = (place.name(), place.tensor(py));
        let is_torch = self.is_torch(object)?;
        if !is_torch && !self.is_numpy(object)? {
            let (info, bytes) = self.find(name, object, true)?;
            let TensorBytes::Here(bytes) = bytes else {
                return Err(usage(
                    py,
                    "only memory of the CPU can be written to in place",
                    Some(name),
                ));
            };
            let (address, length) = (bytes.bytes().as_ptr().addr(), bytes.bytes().len());
            let Region { shape, strides, .. } = Region::whole(&info, 0);
            let (dtype, row, bytes) = (info.dtype(), (address, length), Some(bytes));
            return Ok(TensorLocation {
                dtype,
                shape,
                strides,
                address,
                row,
                is_torch,
                bytes,
            });
        }
        let layout = place.layout(py)?;
        let dtype = self.dtype(name, &object.getattr("dtype")?)?;
        let width: i64 = if is_torch {
            1
        } else {
            object.getattr("itemsize")?.extract()?
        };
        if !is_torch && !object.getattr("flags")?.getattr("writeable")?.is_truthy()? {
            return Err(usage(py, "the array is read-only", Some(name)));
        }
        let in_elements = |strides: Vec<i64>| -> Option<Vec<u64>> {
            strides
                .into_iter()
                .map(|stride| (stride % width == 0).then_some(u64::try_from(stride / width).ok()?))
                .collect()
        };
        let strides = layout.strides.map(|strides| {
            in_elements(strides).ok_or_else(|| {
                usage(
                    py,
                    "its elements lie in reverse, or between others",
                    Some(name),
                )
            })
        });
        let strides = strides.transpose()?;
        let row = match layout.storage {
            Some(row) => row,
            None => {
                let reach = layout
                    .shape
                    .iter()
                    .zip(strides.iter().flatten())
                    .map(|(length, stride)| length.saturating_sub(1) * stride);
                let elements = if strides.is_some() {
                    1 + reach.sum::<u64>()
                } else {
                    layout.shape.iter().product()
                };
                let length = usize::try_from(elements.saturating_mul(width.unsigned_abs()));
                (
                    layout.address,
                    length.map_err(|_| usage(py, "the array is too long", Some(name)))?,
                )
            }
        };
        let (shape, address) = (layout.shape, layout.address);
        Ok(TensorLocation {
            dtype,
            shape,
            strides,
            address,
            row,
            is_torch,
            bytes: None,
        })
    }
}

/// How a tensor lies: in a row of bytes, with its address and length.
struct TensorLocation {
    dtype: deltachain::tensor::Dtype,
    shape: Vec<u64>,
    strides: Option<Vec<u64>>,
    address: usize,
    row: (usize, usize),
    is_torch: bool,
    /// Of an object that does not move them.
    bytes: Option<ByteView>,
}
