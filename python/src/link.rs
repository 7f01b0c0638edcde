//! An open link: its header, its index, and its changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use deltachain::format::{Header, Start, TensorEntry};
use deltachain::tensor::State;
use deltachain::{Error, LinkReader, Patch, Result, Source};
use deltachain_store::Phase;
use pyo3::prelude::*;

use crate::errors::usage;
use crate::given::{GivenState, Readable};
use crate::memory::{Buffer, BufferOwner};
use crate::patches::{PatchRows, TensorChanges, TensorPatch};
use crate::work::{How, Threads, run};

/// A link's bytes, in memory or in a file.
pub(crate) struct LinkSource(pub(crate) Box<dyn Source + Send>);

impl Source for LinkSource {
    fn length(&self) -> Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, out)
    }
}

/// A tensor that a link lists.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct LinkTensor {
    name: String,
    /// `patch`, `set` or `remove`.
    operation: &'static str,
    /// `None` if the tensor is removed; `digest` is `None` then, too.
    dtype: Option<String>,
    shape: Vec<u64>,
    digest: Option<String>,
}

impl LinkTensor {
    fn of(entry: &TensorEntry) -> Self {
        match entry {
            TensorEntry::Remove(name) => Self {
                name: name.clone(),
                operation: "remove",
                dtype: None,
                shape: Vec::new(),
                digest: None,
            },
            TensorEntry::Write(written) => {
                let info = &written.info;
                let operation = match written.start {
                    Start::Base => "patch",
                    Start::Zeros => "set",
                };
                Self {
                    name: info.name().to_owned(),
                    operation,
                    dtype: Some(info.dtype().name().to_owned()),
                    shape: info.shape().to_vec(),
                    digest: Some(written.digest().to_string()),
                }
            }
        }
    }
}

/// The fields of a header, with the field names of `deltachain.reports.Header`.
#[derive(IntoPyObject)]
struct HeaderFields {
    base: String,
    target: String,
    compatible_features: u64,
    index_stored: u64,
    index_raw: u64,
    segments_length: u64,
    extension_length: u64,
    file_length: u64,
}

impl HeaderFields {
    fn of(header: &Header) -> Self {
        Self {
            base: header.base.to_string(),
            target: header.target.to_string(),
            compatible_features: header.compatible_features.into(),
            index_stored: header.index_stored,
            index_raw: header.index_raw,
            segments_length: header.segments_length,
            extension_length: header.extension_length,
            file_length: header.file_length(),
        }
    }
}

/// A link that several operations share.
pub(crate) type OpenLink = Arc<LinkReader<LinkSource>>;

/// A link whose header and index have been read and checked.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Link {
    /// `None` once the link has been closed.
    link: Mutex<Option<OpenLink>>,
    path: Option<PathBuf>,
}

impl Link {
    pub(crate) fn new(link: LinkReader<LinkSource>, path: Option<PathBuf>) -> Self {
        Self {
            link: Mutex::new(Some(Arc::new(link))),
            path,
        }
    }

    /// Returns the link, or an error if it has been closed.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<OpenLink> {
        let link = self
            .link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        link.ok_or_else(|| usage(py, "the link has been closed", None))
    }

    /// Adds the link's file to an error.
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match &self.path {
            Some(path) => error.in_file(path),
            None => error,
        })
    }
}

#[pymethods]
impl Link {
    /// The path that the link was opened with; None if it is in memory.
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

    /// The fields of the header.
    fn header(&self, py: Python<'_>) -> PyResult<HeaderFields> {
        Ok(HeaderFields::of(self.opened(py)?.header()))
    }

    /// The tensors that the link lists.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<LinkTensor>> {
        let link = self.opened(py)?;
        Ok(link.index().tensors.iter().map(LinkTensor::of).collect())
    }

    /// Decodes and checks all segments.
    fn verify(
        &self,
        py: Python<'_>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let link = self.opened(py)?;
        run(
            py,
            &How {
                threads,
                progress,
                ..How::default()
            },
            |watch| {
                let check = watch.of(Phase::Check);
                deltachain::Progress::expect(&check, link.header().segments_length);
                self.named(link.verify(&check))
            },
        )
    }

    /// Returns the changes in the tensors with these numbers in the index, which must ascend.
    fn patches(
        &self,
        py: Python<'_>,
        numbers: Vec<usize>,
        base: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<TensorPatch>> {
        let link = self.opened(py)?;
        let base = GivenState::of(base)?;
        let collected = run(py, &How::default(), |_| {
            let base = match base {
                GivenState::Nothing => None,
                ref given => Some(given.open()?),
            };
            let rows = self.named(collected(
                &link,
                &numbers,
                base.as_ref().map(Readable::state),
            ))?;
            base.map_or(Ok(()), |base| base.state().check_unchanged())
                .map(|()| rows)
        })?;
        collected.finish(py)
    }

    /// Copies the bytes of the link.
    fn to_bytes(&self, py: Python<'_>) -> PyResult<Buffer> {
        let link = self.opened(py)?;
        let bytes = run(py, &How::default(), |_| {
            let length = usize::try_from(link.header().file_length())
                .map_err(|_| Error::usage("the link is too long"))?;
            let mut bytes = vec![0; length];
            self.named(link.source().read_at(0, &mut bytes))
                .map(|()| bytes)
        })?;
        Ok(Buffer::new(BufferOwner::Bytes(bytes.into())))
    }

    /// Closes the file, or frees the memory.
    fn close(&self) {
        self.link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

/// Collects the patches of the tensors with these numbers in the index.
fn collected(
    link: &LinkReader<LinkSource>,
    numbers: &[usize],
    base: Option<&dyn State>,
) -> Result<PatchRows> {
    let mut rows = PatchRows::default();
    let entries = &link.index().tensors;
    let wanted = numbers
        .iter()
        .filter_map(|&number| entries.get(number)?.written());
    let mut names: Vec<&str> = wanted.clone().map(|written| written.info.name()).collect();
    names.sort_unstable();
    let mut patches = link
        .patches(|name| names.binary_search(&name).is_ok(), base)
        .peekable();
    for written in wanted {
        let is_own = |patch: &Result<Patch<'_>>| {
            patch
                .as_ref()
                .map_or(true, |patch| patch.tensor.name() == written.info.name())
        };
        let mut changes = TensorChanges::new(&written.info, written.start == Start::Zeros)?;
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
