//! An open link: its header, its index, and its changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use deltachain::format::{Start, TensorEntry};
use deltachain::tensor::State;
use deltachain::{Error, FileSource, LinkReader, Patch, Result, Source};
use deltachain_store::Phase;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{no_pickle, usage};
use crate::given::{Given, Readable};
use crate::memory::{Buffer, Kept};
use crate::patches::{Changes, Row, Rows};
use crate::work::{How, Threads, run};

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

/// A tensor that a link lists: name, operation, dtype, shape, digest; without dtype and digest if it is removed.
type Entry = (String, &'static str, Option<String>, Vec<u64>, Option<String>);

/// A link, shared by what works with it.
pub(crate) type Opened = Arc<LinkReader<LinkSource>>;

/// A link whose header and index have been read and checked.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Link {
    /// Nothing once it has been closed.
    link: Mutex<Option<Opened>>,
    path: Option<PathBuf>,
}

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

    /// Name, operation, dtype, shape and digest of each tensor that it lists.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<Entry>> {
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
    fn verify(&self, py: Python<'_>, threads: Option<Threads>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let link = self.opened(py)?;
        run(py, &How { threads, progress, ..How::default() }, |watch| {
            let check = watch.of(Phase::Check);
            deltachain::Progress::expect(&check, link.header().segments_length);
            self.named(link.verify(&check))
        })
    }

    /// What changes in the tensors with these numbers in the index, ascending.
    fn patches(&self, py: Python<'_>, numbers: Vec<usize>, base: &Bound<'_, PyAny>) -> PyResult<Vec<Row>> {
        let link = self.opened(py)?;
        let base = Given::of(base)?;
        let collected = run(py, &How::default(), |_| {
            let base = match base {
                Given::Nothing => None,
                ref given => Some(given.open()?),
            };
            let rows = self.named(collected(&link, &numbers, base.as_ref().map(Readable::state)))?;
            base.map_or(Ok(()), |base| base.state().check_unchanged()).map(|()| rows)
        })?;
        Ok(collected.finish())
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

/// The patches of the tensors with these numbers in the index.
fn collected(link: &LinkReader<LinkSource>, numbers: &[usize], base: Option<&dyn State>) -> Result<Rows> {
    let mut rows = Rows::default();
    let entries = &link.index().tensors;
    let wanted = numbers.iter().filter_map(|&number| entries.get(number)?.written());
    let mut names: Vec<&str> = wanted.clone().map(|written| written.info.name()).collect();
    names.sort_unstable();
    let mut patches = link.patches(|name| names.binary_search(&name).is_ok(), base).peekable();
    for written in wanted {
        let is_own =
            |patch: &Result<Patch<'_>>| patch.as_ref().map_or(true, |patch| patch.tensor.name() == written.info.name());
        let mut changes = Changes::new(&written.info, written.start == Start::Zeros)?;
        while let Some(patch) = patches.next_if(is_own) {
            let patch = patch?;
            match &patch.indices {
                Some(lanes) => changes.add(lanes.iter().copied(), &patch.values)?,
                None => changes.add(patch.lanes.clone(), &patch.values)?,
            }
        }
        rows.add(changes);
    }
    Ok(rows)
}
