//! Opening what the user names: states in safetensors files, and links.

use std::fs;
use std::path::{Path, PathBuf};

use deltachain::files::{Layout, SafetensorsState};
use deltachain::tensor::{MemoryState, State, StateDigests, TensorInfo};
use deltachain::{Error, FileSource, Limits, LinkReader, Result};

use crate::output::Output;

/// The state that a link is made from or applied to.
#[derive(Debug)]
pub(crate) enum Base {
    /// No tensors: the base of a snapshot.
    Empty(MemoryState),
    Files(SafetensorsState),
}

impl Base {
    /// The empty state if there is no path.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        path.map_or_else(|| Ok(Self::Empty(MemoryState::new())), |path| open_state(path).map(Self::Files))
    }

    pub(crate) fn state(&self) -> &dyn State {
        match self {
            Self::Empty(state) => state,
            Self::Files(state) => state,
        }
    }

    pub(crate) fn files(&self) -> Option<&SafetensorsState> {
        match self {
            Self::Empty(_) => None,
            Self::Files(state) => Some(state),
        }
    }

    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.files().map(SafetensorsState::layout)
    }
}

/// A link with the path that it was opened by.
#[derive(Debug)]
pub(crate) struct OpenedLink {
    pub(crate) path: PathBuf,
    pub(crate) reader: LinkReader<FileSource>,
}

impl OpenedLink {
    pub(crate) fn open(path: &Path, limits: &Limits) -> Result<Self> {
        require(path)?;
        let reader = FileSource::open(path)
            .and_then(|source| LinkReader::open(source, limits))
            .map_err(|error| error.in_file(path))?;
        Ok(Self { path: path.to_owned(), reader })
    }

    /// Opens links in order.
    pub(crate) fn open_all(paths: &[PathBuf], limits: &Limits) -> Result<Vec<Self>> {
        paths.iter().map(|path| Self::open(path, limits)).collect()
    }
}

/// Opens a safetensors file or a directory of them.
pub(crate) fn open_state(path: &Path) -> Result<SafetensorsState> {
    require(path)?;
    SafetensorsState::open(path)
}

/// A path that leads nowhere is the user's mistake, not the operating system's.
fn require(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::usage("there is no such file or directory").in_file(path))
        }
        _ => Ok(()),
    }
}

/// Bytes of all tensors.
pub(crate) fn bytes_of(tensors: &[TensorInfo]) -> u64 {
    tensors.iter().map(TensorInfo::bytes).fold(0, u64::saturating_add)
}

/// Reads and hashes a state, with a progress bar.
pub(crate) fn digests_of(state: &dyn State, output: Output) -> Result<StateDigests> {
    StateDigests::of(state, &output.meter("hashing", bytes_of(state.tensors())))
}
