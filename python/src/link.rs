//! An open link: what its header and index say, and what it changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use deltachain::format::{Start, TensorEntry};
use deltachain::tensor::{State, TensorInfo};
use deltachain::{Error, FileSource, LinkReader, Result, Source};
use deltachain_store::Phase;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{no_pickle, usage};
use crate::memory::{Buffer, Kept};
use crate::operations::Given;
use crate::work::{How, run};

/// Where a link's bytes are.
pub(crate) enum LinkSource {
    Bytes(Vec<u8>),
    File(FileSource),
}

impl Source for LinkSource {
    fn length(&self) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => bytes.length(),
            Self::File(file) => file.length(),
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Bytes(bytes) => bytes.read_at(offset, out),
            Self::File(file) => file.read_at(offset, out),
        }
    }
}

/// A link, shared by what works with it.
pub(crate) type Opened = Arc<LinkReader<LinkSource>>;

/// A link whose header and index have been read and checked.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Link {
    /// Nothing once it has been closed.
    link: Mutex<Option<Opened>>,
    path: Option<PathBuf>,
}

/// What changes in a tensor: its name, dtype and shape, lane numbers if not all lanes are given, and values.
type TensorPatch = (String, String, Vec<u64>, Option<Buffer>, Buffer);

impl Link {
    pub(crate) fn new(link: LinkReader<LinkSource>, path: Option<PathBuf>) -> Self {
        Self { link: Mutex::new(Some(Arc::new(link))), path }
    }

    /// The link, unless it has been closed.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Opened> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        link.ok_or_else(|| usage(py, "the link has been closed", None))
    }

    /// An error says which file it is about.
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match &self.path {
            Some(path) => error.in_file(path),
            None => error,
        })
    }
}

#[pymethods]
impl Link {
    /// The path that it was opened by.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// State digest of the base, in hexadecimal digits.
    #[getter]
    fn base(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.opened(py)?.header().base.to_string())
    }

    /// State digest of the target.
    #[getter]
    fn target(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.opened(py)?.header().target.to_string())
    }

    /// Length in bytes.
    #[getter]
    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.opened(py)?.header().file_length())
    }

    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<BTreeMap<String, String>> {
        Ok(self.opened(py)?.index().metadata.clone())
    }

    #[getter]
    fn is_direct(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.opened(py)?.is_direct())
    }

    /// Fields of the header.
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let link = self.opened(py)?;
        let header = link.header();
        let fields = PyDict::new(py);
        fields.set_item("base", header.base.to_string())?;
        fields.set_item("target", header.target.to_string())?;
        fields.set_item("compatible_features", header.compatible_features)?;
        fields.set_item("index_stored", header.index_stored)?;
        fields.set_item("index_raw", header.index_raw)?;
        fields.set_item("segments_length", header.segments_length)?;
        fields.set_item("extension_length", header.extension_length)?;
        fields.set_item("file_length", header.file_length())?;
        Ok(fields)
    }

    /// Coding and stored length of each segment.
    fn segments(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, usize, u64)>> {
        let link = self.opened(py)?;
        let row = |entry: &deltachain::format::SegmentEntry| {
            (entry.coding.describe(), entry.coding.lane_bytes, entry.stored_length)
        };
        Ok(link.index().segments.iter().map(row).collect())
    }

    /// Name, operation, dtype, shape and digest of each tensor that it lists.
    fn tensors(
        &self,
        py: Python<'_>,
    ) -> PyResult<Vec<(String, &'static str, Option<String>, Vec<u64>, Option<String>)>> {
        let link = self.opened(py)?;
        let row = |entry: &TensorEntry| match entry {
            TensorEntry::Remove(name) => (name.clone(), "remove", None, Vec::new(), None),
            TensorEntry::Write(written) => {
                let info = &written.info;
                let operation = if written.start == Start::Base { "patch" } else { "set" };
                let dtype = info.dtype().name().to_owned();
                (
                    info.name().to_owned(),
                    operation,
                    Some(dtype),
                    info.shape().to_vec(),
                    Some(written.digest().to_string()),
                )
            }
        };
        Ok(link.index().tensors.iter().map(row).collect())
    }

    /// Decodes and checks all segments.
    fn verify(&self, py: Python<'_>, threads: Option<usize>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let link = self.opened(py)?;
        run(py, &How { threads, progress, deadline: None }, |watch| {
            let check = watch.of(Phase::Check);
            deltachain::Progress::expect(&check, link.header().segments_length);
            self.named(link.verify(&check))
        })
    }

    /// What changes in the tensors with these numbers in the index, ascending. The values of all stand in one arena, and so do
    /// the lane numbers of each width.
    fn patches(&self, py: Python<'_>, numbers: Vec<usize>, base: &Bound<'_, PyAny>) -> PyResult<Vec<TensorPatch>> {
        let link = self.opened(py)?;
        let base = Given::of(base)?;
        let collected = run(py, &How::default(), |_| {
            let base = match base {
                Given::Nothing => None,
                ref given => Some(given.open()?),
            };
            self.named(Collected::of(&link, &numbers, base.as_ref().map(|base| base.state())))
        })?;
        collected.shown().ok_or_else(|| usage(py, "the patches do not fit their arenas", None))
    }

    /// The bytes of the link.
    fn to_bytes(&self, py: Python<'_>) -> PyResult<Buffer> {
        let link = self.opened(py)?;
        let bytes = run(py, &How::default(), |_| {
            let length =
                usize::try_from(link.header().file_length()).map_err(|_| Error::usage("the link is too long"))?;
            let mut bytes = vec![0; length];
            self.named(link.source().read_at(0, &mut bytes)).map(|()| bytes)
        })?;
        Ok(Buffer::new(Kept::Bytes(bytes.into())))
    }

    /// Gives up the file or the memory.
    fn close(&self) {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("links"))
    }
}

/// Patches of some tensors in arenas.
#[derive(Default)]
struct Collected {
    values: Vec<u8>,
    short: Vec<i32>,
    long: Vec<i64>,
    tensors: Vec<(TensorInfo, Option<Lanes>, Stretch)>,
}

/// A part of an arena: where it begins, and how long it is.
type Stretch = (usize, usize);

/// Where lane numbers stand.
enum Lanes {
    Short(Stretch),
    Long(Stretch),
}

impl Collected {
    fn of(link: &LinkReader<LinkSource>, numbers: &[usize], base: Option<&dyn State>) -> Result<Self> {
        let mut collected = Self::default();
        let entries = &link.index().tensors;
        let wanted = numbers.iter().filter_map(|&number| entries.get(number)?.written());
        let mut wanted_names = wanted.clone().map(|written| written.info.name()).collect::<Vec<_>>();
        wanted_names.sort_unstable();
        let mut patches = link.patches(|name| wanted_names.binary_search(&name).is_ok(), base).peekable();
        for written in wanted {
            let info = &written.info;
            let width = info.dtype().lane_bytes();
            let begin = collected.values.len();
            let mut found = Vec::new();
            let is_own = |patch: &Result<deltachain::Patch<'_>>| {
                patch.as_ref().map_or(true, |patch| patch.tensor.name() == info.name())
            };
            while let Some(patch) = patches.next_if(is_own) {
                found.push(patch?);
            }
            let given: usize = found.iter().map(deltachain::Patch::count).sum();
            if written.start == Start::Zeros || given as u64 == info.lanes() {
                // Lanes that are not named are zero.
                let length = usize::try_from(info.bytes()).map_err(|_| Error::usage("the tensor is too long"))?;
                collected.values.resize(begin + length, 0);
                let values = &mut collected.values[begin..];
                for patch in &found {
                    for (lane, value) in lanes(patch).zip(patch.values.chunks_exact(width)) {
                        let lane = usize::try_from(lane).map_err(|_| Error::usage("the tensor is too long"))?;
                        values[lane * width..][..width].copy_from_slice(value);
                    }
                }
                collected.tensors.push((info.clone(), None, (begin, length)));
                continue;
            }
            if given == 0 {
                continue;
            }
            let is_short = info.lanes() <= 1 << 31;
            let first = if is_short { collected.short.len() } else { collected.long.len() };
            for patch in &found {
                let too_many = |_| Error::usage("the tensor has too many lanes");
                for lane in lanes(patch) {
                    if is_short {
                        collected.short.push(i32::try_from(lane).map_err(too_many)?);
                    } else {
                        collected.long.push(i64::try_from(lane).map_err(too_many)?);
                    }
                }
                collected.values.extend_from_slice(&patch.values);
            }
            let numbers = if is_short { Lanes::Short((first, given)) } else { Lanes::Long((first, given)) };
            collected.tensors.push((info.clone(), Some(numbers), (begin, given * width)));
        }
        Ok(collected)
    }

    /// The arenas as buffers, and for each tensor its parts of them.
    fn shown(self) -> Option<Vec<TensorPatch>> {
        let whole = |kept| Arc::new(Buffer::new(kept));
        let values = whole(Kept::Bytes(self.values.into()));
        let (short, long) = (whole(Kept::Int32(self.short.into())), whole(Kept::Int64(self.long.into())));
        let show = |(info, lanes, (begin, length)): (TensorInfo, Option<Lanes>, Stretch)| {
            let lanes = match lanes {
                None => None,
                Some(Lanes::Short((first, count))) => Some(Buffer::part(&short, first, count)?),
                Some(Lanes::Long((first, count))) => Some(Buffer::part(&long, first, count)?),
            };
            let values = Buffer::part(&values, begin, length)?;
            Some((info.name().to_owned(), info.dtype().name().to_owned(), info.shape().to_vec(), lanes, values))
        };
        self.tensors.into_iter().map(show).collect()
    }
}

/// The lanes that a patch gives.
fn lanes<'a>(patch: &'a deltachain::Patch<'_>) -> Box<dyn Iterator<Item = u64> + 'a> {
    match &patch.indices {
        Some(indices) => Box::new(indices.iter().copied()),
        None => Box::new(patch.lanes.clone()),
    }
}
