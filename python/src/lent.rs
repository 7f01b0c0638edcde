//! The caller's tensors that follow a chain. Before each use, the places of the tensors are
//! compared with the places where they were bound. Tensors in CPU memory are read and written here,
//! tensors on devices by torch.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use deltachain::memory::{
    HostLanes, LentState, PartPiece, Peers, PlacedMemory, Places, Region, Span, TensorPart,
};
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

/// A part of a tensor that the caller provides: the tensor's name, the place of the object that
/// holds the part, and the part's begin and end in each of the first dimensions.
pub(crate) type GivenRow = (String, Py<TensorPlace>, Vec<(u64, u64)>);

/// A part of a tensor on a device: row, first lane, and for each dimension its length, begin, end
/// and stride.
type PartRow = (usize, u64, Vec<(u64, u64, u64, u64)>);

/// Sums of the old and of the new values of changed lanes, by the address of the memory that holds
/// them and the number of the 16 MiB piece in it.
pub(crate) type RowSums = BTreeMap<(usize, u64), [Sums; 2]>;

/// Lanes of a piece of 16 MiB: their numbers in it, and their old and new values.
type LanesOfPiece = (Vec<u32>, [Vec<u8>; 2]);

/// A version that is prepared for the caller's tensors.
pub(crate) type LentVersion =
    deltachain_store::PreparedVersion<deltachain_store::InPlace<LentMemory>>;

/// The caller's tensors, and the memory that holds them.
pub(crate) struct LentMemory {
    rows: Arc<Vec<MemoryRow>>,
    tensors: LentTensors,
    /// Sums of the staged changes; `None` if they are not wanted.
    sums: Option<Mutex<RowSums>>,
}

/// Tensors, by whether torch is needed to read and write them.
enum LentTensors {
    Here(LentState<ByteView>),
    Device(DeviceTensors),
}

/// Memory that holds tensors.
struct MemoryRow {
    address: usize,
    /// The places at which its tensors were bound.
    places: Vec<Py<TensorPlace>>,
}

/// Tensors on devices, which torch reads and writes in the caller's thread.
struct DeviceTensors {
    places: Places,
    torch: Arc<Py<PyAny>>,
    caller: Arc<Caller>,
}

/// Staged lanes, and the numbers of the rows that they are in.
pub(crate) struct LaneBatch {
    rows: Vec<usize>,
    lanes: StagedLanes,
}

/// Staged lanes, by whether torch is needed to write them.
enum StagedLanes {
    Here(HostLanes),
    Device(Arc<Py<PyAny>>),
}

/// A range of bytes that is bound as a row.
#[derive(PartialEq, Eq, Hash)]
struct RowRange {
    begin: usize,
    length: usize,
    /// Bytes of a lane.
    width: usize,
}

/// Memory of a library other than torch.
struct AloneRange {
    begin: usize,
    end: usize,
    /// The name of the tensor.
    name: String,
}

/// The memory of the caller's tensors, which are added one by one.
struct GivenMemory<'a, 'py> {
    infos: &'a [TensorInfo],
    torch: Option<&'a Py<PyAny>>,
    finder: Finder<'py>,
    rows: Vec<MemoryRow>,
    /// The bytes of each row, unless torch reads and writes them.
    bytes: Vec<ByteView>,
    regions: Vec<Region>,
    /// The number of each row, unless torch counts them.
    numbers: HashMap<RowRange, usize>,
    alone: Vec<AloneRange>,
}

impl<'a, 'py> GivenMemory<'a, 'py> {
    fn new(
        py: Python<'py>,
        infos: &'a [TensorInfo],
        torch: Option<&'a Py<PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            infos,
            torch,
            finder: Finder::new(py)?,
            rows: Vec::new(),
            bytes: Vec::new(),
            regions: Vec::new(),
            numbers: HashMap::new(),
            alone: Vec::new(),
        })
    }

    /// Adds a tensor, or the part of it that `index` selects in its first dimensions.
    fn add(
        &mut self,
        py: Python<'py>,
        name: &str,
        place: &Py<TensorPlace>,
        index: Vec<Range<u64>>,
    ) -> PyResult<()> {
        let info = find(self.infos, name).map(|number| &self.infos[number]);
        let info = info.ok_or_else(|| usage(py, "the tensor is not in the chain", Some(name)))?;
        let width = info.dtype().lane_bytes();
        let mut found = self.finder.locate(py, place.get())?;
        if found.dtype != info.dtype() {
            let text = format!(
                "the chain has {}, but this memory has {}: give memory of the chain's dtype",
                info.dtype(),
                found.dtype
            );
            return Err(usage(py, text, Some(name)));
        }
        if found.shape.contains(&0) {
            self.regions.push(Region {
                name: name.into(),
                row: 0,
                first: 0,
                shape: found.shape,
                strides: None,
                index,
            });
            return Ok(());
        }
        let first = found.first_lane(width).ok_or_else(|| {
            usage(
                py,
                "the tensor does not begin with a whole element",
                Some(name),
            )
        })?;
        let can_move = found.bytes.is_none();
        let row = self.find_row(place.get().tensor(py), &mut found, width)?;
        if !found.is_torch {
            let (begin, length) = found.row;
            self.alone.push(AloneRange {
                begin,
                end: begin + length,
                name: name.into(),
            });
        }
        if can_move {
            self.rows[row].places.push(place.clone_ref(py));
        }
        self.regions.push(Region {
            name: name.into(),
            row,
            first,
            shape: found.shape,
            strides: found.strides,
            index,
        });
        Ok(())
    }

    /// Returns the number of the row that a tensor lies in. Adds the row if it is new.
    fn find_row(
        &mut self,
        tensor: &Bound<'py, PyAny>,
        found: &mut TensorLocation,
        width: usize,
    ) -> PyResult<usize> {
        let (begin, length) = found.row;
        let row = match self.torch {
            Some(torch) => torch
                .bind(tensor.py())
                .call_method1("row", (tensor, width))?
                .extract()?,
            None => {
                let range = RowRange {
                    begin,
                    length,
                    width,
                };
                *self.numbers.entry(range).or_insert(self.rows.len())
            }
        };
        if row == self.rows.len() {
            self.rows.push(MemoryRow {
                address: begin,
                places: Vec::new(),
            });
            let own = || ByteView::of_address(begin, length, tensor.clone().unbind());
            if self.torch.is_none() {
                self.bytes.push(found.bytes.take().unwrap_or_else(own));
            }
        }
        Ok(row)
    }

    /// Checks that memory of libraries other than torch does not overlap other memory. Views of
    /// such memory are not resolved to the memory below them.
    fn check_alone(&self, py: Python<'_>) -> PyResult<()> {
        for AloneRange { begin, end, name } in &self.alone {
            let overlaps = |row: &RowRange| {
                let other = row.begin..row.begin + row.length;
                other != (*begin..*end) && other.start < *end && *begin < other.end
            };
            if self.numbers.keys().any(overlaps) {
                return Err(usage(
                    py,
                    "the tensor shares a part of its memory with another tensor",
                    Some(name),
                ));
            }
        }
        Ok(())
    }
}

impl LentMemory {
    /// Finds the memory of these tensors of a version, ascending by name. `torch` reads and writes
    /// them if some are on a device.
    ///
    /// # Errors
    /// USAGE if a tensor has the wrong dtype or form, is read-only, or shares memory with another
    /// one.
    pub(crate) fn new(
        py: Python<'_>,
        infos: Vec<TensorInfo>,
        given: &[GivenRow],
        torch: Option<Py<PyAny>>,
        caller: Arc<Caller>,
        wants_sums: bool,
    ) -> PyResult<Self> {
        let mut memory = GivenMemory::new(py, &infos, torch.as_ref())?;
        for (name, place, index) in given {
            memory.add(py, name, place, ranges(index))?;
        }
        memory.check_alone(py)?;
        let GivenMemory {
            rows,
            bytes,
            regions,
            ..
        } = memory;
        let places = Places::new(infos, &regions).map_err(|error| raised(py, &error))?;
        let tensors = match torch {
            None => LentTensors::Here(LentState::placed(places, bytes)),
            Some(torch) => LentTensors::Device(DeviceTensors {
                places,
                torch: Arc::new(torch),
                caller,
            }),
        };
        Ok(Self {
            rows: Arc::new(rows),
            tensors,
            sums: wants_sums.then(Mutex::default),
        })
    }

    pub(crate) fn places_mut(&mut self) -> &mut Places {
        match &mut self.tensors {
            LentTensors::Here(state) => state.places_mut(),
            LentTensors::Device(device) => &mut device.places,
        }
    }

    /// Lists the elements of each tensor that are in this process.
    fn elements(&self) -> Vec<Vec<&[Range<u64>]>> {
        let places = self.places();
        (0..places.tensors().len())
            .map(|number| {
                places
                    .parts(number)
                    .iter()
                    .map(TensorPart::elements)
                    .collect()
            })
            .collect()
    }

    /// Takes the sums of the changes that were staged since the last call, if sums are wanted.
    pub(crate) fn take_sums(&self) -> RowSums {
        let Some(sums) = &self.sums else {
            return RowSums::new();
        };
        std::mem::take(&mut *sums.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Refuses tensors that have moved.
    fn check(&self, rows: &[usize]) -> Result<()> {
        gate::attach(|py| check(py, &self.rows, rows))?
    }

    fn add_sums(&self, width: usize, spans: &[Span], old: &[u8], new: &[u8]) {
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
                // The number is below 2^24.
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

/// Changes tensors in CPU memory while holding the interpreter's lock, so that no Python code moves
/// them after the check. The second check detects moves by code that does not hold the lock.
fn still<T>(all: &[MemoryRow], rows: &[usize], change: impl FnOnce() -> Result<T>) -> Result<T> {
    gate::attach(|py| {
        check(py, all, rows)?;
        let done = change();
        check(py, all, rows)?;
        done
    })?
}

impl DeviceTensors {
    /// Runs `work` with torch in the caller's thread, after checking that the tensors have not
    /// moved. If the work `changes` them, checks again afterwards.
    fn ask<T: Send + 'static>(
        &self,
        all: &Arc<Vec<MemoryRow>>,
        rows: Vec<usize>,
        changes: bool,
        work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T> {
        let torch = Arc::clone(&self.torch);
        let all = Arc::clone(all);
        self.caller.ask(move |py| {
            let here = |error: Error| raised(py, &error);
            check(py, &all, &rows).map_err(here)?;
            let done = work(torch.bind(py))?;
            if changes {
                check(py, &all, &rows).map_err(here)?;
            }
            Ok(done)
        })
    }

    fn gather(
        &self,
        all: &Arc<Vec<MemoryRow>>,
        width: usize,
        spans: Vec<Span>,
        out: &mut [u8],
    ) -> Result<()> {
        let length = out.len();
        if length == 0 {
            return Ok(());
        }
        let found = self.ask(all, rows_of(&spans), false, move |torch| {
            let spans: Vec<SpanRow> = spans.into_iter().map(span_row).collect();
            let returned = torch.call_method1("gather", (width, spans))?;
            Ok(ByteView::returned(&returned, length)?.bytes().to_vec())
        })?;
        out.copy_from_slice(&found);
        Ok(())
    }

    fn sums(
        &self,
        all: &Arc<Vec<MemoryRow>>,
        rows: Vec<usize>,
        wanted: &[PartPiece],
    ) -> Result<Vec<Sums>> {
        let asked = wanted.iter().map(|wanted| {
            let tensors = self.places.tensors();
            let info = tensors.get(wanted.tensor).ok_or_else(no_row)?;
            let part = self.places.part(wanted).ok_or_else(no_row)?;
            let width = info.dtype().lane_bytes() as u64;
            let range = info.piece(wanted.piece);
            let dimensions = part
                .dimensions()
                .map(|(length, here, stride)| (length, here.start, here.end, stride));
            let part: PartRow = (part.row(), part.range().start, dimensions.collect());
            Ok((part, range.start / width, range.end / width))
        });
        let asked = asked.collect::<Result<Vec<_>>>()?;
        let found = self.ask(all, rows, false, move |torch| {
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

fn ranges(index: &[(u64, u64)]) -> Vec<Range<u64>> {
    index.iter().map(|&(begin, end)| begin..end).collect()
}

/// Refuses tensors that have moved.
fn check(py: Python<'_>, all: &[MemoryRow], rows: &[usize]) -> Result<()> {
    let places = rows
        .iter()
        .filter_map(|&row| all.get(row))
        .flat_map(|row| &row.places);
    let moved = places.map(Py::get).find(|place| !place.is_here(py));
    moved.map_or(Ok(()), |place| Err(places::moved(place.name())))
}

/// Returns each row once, in ascending order.
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

fn no_row() -> Error {
    Error::usage("there is no such memory")
}

/// A span in the form that `deltachain/_device_memory.py` takes.
type SpanRow = (usize, u64, Option<Buffer>, usize);

fn span_row(span: Span) -> SpanRow {
    // Places are below 2^31.
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
        match &self.tensors {
            LentTensors::Here(state) => state.places(),
            LentTensors::Device(device) => &device.places,
        }
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places_mut().describe(tensors)
    }

    fn state(&self) -> Option<&dyn State> {
        self.places().are_whole().then_some(self as &dyn State)
    }

    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()> {
        let rows = rows_of(spans);
        match &mut self.tensors {
            LentTensors::Here(state) => {
                gate::attach(|py| check(py, &self.rows, &rows))??;
                state.gather(width, spans, out)
            }
            LentTensors::Device(device) => device.gather(&self.rows, width, spans.to_vec(), out),
        }
    }

    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<LaneBatch> {
        self.add_sums(width, &spans, &old, &new);
        let rows = rows_of(&spans);
        let lanes = match &mut self.tensors {
            LentTensors::Here(state) => StagedLanes::Here(state.stage(width, spans, old, new)?),
            LentTensors::Device(device) => {
                let handle = device.ask(&self.rows, rows.clone(), false, move |torch| {
                    let spans: Vec<SpanRow> = spans.into_iter().map(span_row).collect();
                    let values = (width, spans, bytes_row(old), bytes_row(new));
                    Ok(torch.call_method1("stage", values)?.unbind())
                })?;
                StagedLanes::Device(Arc::new(handle))
            }
        };
        Ok(LaneBatch { rows, lanes })
    }

    fn write(&mut self, staged: &[LaneBatch]) -> Result<Option<(usize, usize)>> {
        let rows = all_rows(staged);
        match &mut self.tensors {
            LentTensors::Here(state) => {
                still(&self.rows, &rows, || state.write_lanes(here(staged)))
            }
            LentTensors::Device(device) => {
                let handles = handles(staged);
                device.ask(&self.rows, rows, true, move |torch| {
                    torch
                        .call_method1("write", (listed(torch, &handles)?,))?
                        .extract()
                })
            }
        }
    }

    fn put_back(&mut self, staged: &[LaneBatch]) -> Result<()> {
        let rows = all_rows(staged);
        match &mut self.tensors {
            LentTensors::Here(state) => {
                still(&self.rows, &rows, || state.put_lanes_back(here(staged)))
            }
            LentTensors::Device(device) => {
                let handles = handles(staged);
                device.ask(&self.rows, rows, true, move |torch| {
                    torch
                        .call_method1("put_back", (listed(torch, &handles)?,))
                        .map(drop)
                })
            }
        }
    }

    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()> {
        match &mut self.tensors {
            LentTensors::Here(state) => {
                still(&self.rows, &[span.row], || state.fill(width, span, values))
            }
            LentTensors::Device(device) => {
                let row = span.row;
                let span = span_row(span.clone());
                let values = bytes_row(values.to_vec());
                device.ask(&self.rows, vec![row], true, move |torch| {
                    torch.call_method1("fill", (width, span, values)).map(drop)
                })
            }
        }
    }

    fn sums(&mut self, wanted: &[PartPiece]) -> Result<Vec<Sums>> {
        let row = |wanted| {
            let part = self.places().part(wanted).ok_or_else(no_row)?;
            Ok(part.row())
        };
        let rows = wanted.iter().map(row).collect::<Result<Vec<_>>>()?;
        let rows = distinct(rows.into_iter());
        match &mut self.tensors {
            LentTensors::Here(state) => {
                gate::attach(|py| check(py, &self.rows, &rows))??;
                state.sums(wanted)
            }
            LentTensors::Device(device) => device.sums(&self.rows, rows, wanted),
        }
    }
}

fn here(staged: &[LaneBatch]) -> impl Iterator<Item = &HostLanes> + Clone {
    staged.iter().filter_map(|staged| match &staged.lanes {
        StagedLanes::Here(lanes) => Some(lanes),
        StagedLanes::Device(_) => None,
    })
}

fn handles(staged: &[LaneBatch]) -> Vec<Arc<Py<PyAny>>> {
    let handle = |staged: &LaneBatch| match &staged.lanes {
        StagedLanes::Here(_) => None,
        StagedLanes::Device(handle) => Some(Arc::clone(handle)),
    };
    staged.iter().filter_map(handle).collect()
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
    /// Returns the row that holds a tensor, if one part has all of it.
    fn row(&self, tensor: usize) -> Option<usize> {
        self.places().whole(tensor).map(TensorPart::row)
    }
}

impl State for LentMemory {
    fn tensors(&self) -> &[TensorInfo] {
        self.places().tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.tensors {
            LentTensors::Here(state) => {
                self.check(self.row(tensor).as_slice())?;
                state.read(tensor, offset, out)
            }
            LentTensors::Device(device) => {
                let info = device.places.tensors().get(tensor).ok_or_else(no_row)?;
                let width = info.dtype().lane_bytes();
                let spans = device.places.spans_of_bytes(tensor, offset, out.len())?;
                device.gather(&self.rows, width, spans, out)
            }
        }
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        // Without bytes, callers use `read`, which returns the error of a tensor that has moved.
        let LentTensors::Here(state) = &self.tensors else {
            return None;
        };
        self.check(self.row(tensor).as_slice()).ok()?;
        state.bytes(tensor, range)
    }
}

/// A group of processes, represented by an object in Python.
pub(crate) struct ProcessGroup {
    pub(crate) ranks: Arc<Py<PyAny>>,
    pub(crate) caller: Arc<Caller>,
}

impl ProcessGroup {
    /// Converts this process's error to an exception.
    fn exception(&self, error: Option<&Error>) -> Option<PyErr> {
        let error = error?;
        gate::attach(|py| self.caller.raised(py).unwrap_or_else(|| raised(py, error))).ok()
    }

    /// Converts an error that comes from another process: to `STATE_MISMATCH` if its exception says
    /// that the memory is not what it should be. Other errors stay as they are.
    fn told(&self, error: Error) -> Error {
        let is_of_memory = gate::attach(|py| {
            let raised = self.caller.raised(py);
            raised.is_some_and(|raised| is_of_memory(raised.value(py)).unwrap_or(false))
        });
        if is_of_memory.unwrap_or(false) {
            return Error::refused(
                ErrorClass::StateMismatch,
                "another process found other values",
            );
        }
        error
    }
}

/// True if an exception says that the memory is not what it should be.
fn is_of_memory(raised: &Bound<'_, PyAny>) -> PyResult<bool> {
    let errors = raised.py().import("deltachain._errors")?;
    Ok(raised.is_instance(&errors.getattr("StateMismatchError")?)?
        || raised.is_instance(&errors.getattr("WrongBaseError")?)?)
}

impl Peers for ProcessGroup {
    fn add(&self, sums: &mut [[Sums; 2]], error: Option<&Error>) -> Result<()> {
        let ranks = Arc::clone(&self.ranks);
        let failed = self.exception(error);
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
        let ranks = Arc::clone(&self.ranks);
        let failed = self.exception(error);
        let voted = self.caller.ask(move |py| {
            let voted = ranks.bind(py).call_method1("vote", (failed,));
            Ok(voted.and_then(failure_of))
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
            // It is unknown what the other processes have written.
            Err(lost) => {
                self.caller.raise_instead(lost);
                Err(other("another process is lost"))
            }
        }
    }
}

/// Returns the exception that a vote has ended with, and whether it is about the memory.
fn failure_of(voted: Bound<'_, PyAny>) -> PyResult<Option<(PyErr, bool)>> {
    if voted.is_none() {
        return Ok(None);
    }
    let is_of_memory = is_of_memory(&voted)?;
    Ok(Some((PyErr::from_value(voted), is_of_memory)))
}

/// The caller's tensors, before it is known which tensors other processes have.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct FoundTensors(pub(crate) Mutex<Option<LentMemory>>);

#[pymethods]
impl FoundTensors {
    /// Returns what other processes must know: the elements of each tensor that are in this
    /// process, and the names of the tensors that it does not need.
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
    /// Finds the location of a tensor, which must be writable.
    fn locate(&mut self, py: Python<'py>, place: &TensorPlace) -> PyResult<TensorLocation> {
        let name = place.name();
        let object = place.tensor(py);
        let is_torch = self.is_torch(object)?;
        if !is_torch && !self.is_numpy(object)? {
            return self.locate_buffer(name, object);
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
        let strides = layout.strides.map(|strides| {
            in_elements(&strides, width).ok_or_else(|| {
                usage(
                    py,
                    "negative or interleaved strides are not supported",
                    Some(name),
                )
            })
        });
        let strides = strides.transpose()?;
        let row = match layout.storage {
            Some(row) => row,
            None => {
                let elements = extent(&layout.shape, strides.as_deref());
                let length = usize::try_from(elements.saturating_mul(width.unsigned_abs()));
                (
                    layout.address,
                    length.map_err(|_| usage(py, "the array is too long", Some(name)))?,
                )
            }
        };
        Ok(TensorLocation {
            dtype,
            shape: layout.shape,
            strides,
            address: layout.address,
            row,
            is_torch,
            bytes: None,
        })
    }

    /// Finds the location of an object with a buffer, of neither torch nor numpy.
    fn locate_buffer(
        &mut self,
        name: &str,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<TensorLocation> {
        let (info, bytes) = self.find(name, object, true)?;
        let TensorBytes::Here(bytes) = bytes else {
            return Err(usage(
                object.py(),
                "only CPU memory can be written in place",
                Some(name),
            ));
        };
        let address = bytes.bytes().as_ptr().addr();
        let length = bytes.bytes().len();
        let Region { shape, strides, .. } = Region::whole(&info, 0);
        Ok(TensorLocation {
            dtype: info.dtype(),
            shape,
            strides,
            address,
            row: (address, length),
            is_torch: false,
            bytes: Some(bytes),
        })
    }
}

/// Converts strides from bytes to elements of `width` bytes. Returns `None` if a stride is negative
/// or not a multiple of `width`.
fn in_elements(strides: &[i64], width: i64) -> Option<Vec<u64>> {
    strides
        .iter()
        .map(|stride| (stride % width == 0).then_some(u64::try_from(stride / width).ok()?))
        .collect()
}

/// Counts the elements from the first one of an array to its last one. A contiguous array has no
/// strides.
fn extent(shape: &[u64], strides: Option<&[u64]>) -> u64 {
    let Some(strides) = strides else {
        return shape.iter().product();
    };
    let reach = shape
        .iter()
        .zip(strides)
        .map(|(length, stride)| length.saturating_sub(1) * stride);
    1 + reach.sum::<u64>()
}

/// Location of a tensor in a row of bytes. `row` is the row's address and length.
struct TensorLocation {
    dtype: deltachain::tensor::Dtype,
    shape: Vec<u64>,
    strides: Option<Vec<u64>>,
    address: usize,
    row: (usize, usize),
    is_torch: bool,
    /// The bytes, if the tensor is an object with a buffer, which does not move them.
    bytes: Option<ByteView>,
}

impl TensorLocation {
    /// Returns the number of the first lane in the row, if the tensor begins with a whole lane of
    /// `width` bytes.
    fn first_lane(&self, width: usize) -> Option<u64> {
        let (begin, _) = self.row;
        let first = self.address.checked_sub(begin)?;
        if first.is_multiple_of(width) {
            Some((first / width) as u64)
        } else {
            None
        }
    }
}
