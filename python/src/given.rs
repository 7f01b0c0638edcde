//! States that callers pass: None, files, or mappings of tensors.

use std::path::{Path, PathBuf};

use deltachain::Result;
use deltachain::files::{Layout, SafetensorsState};
use deltachain::tensor::{MemoryState, State};
use pyo3::prelude::*;

use crate::tensors::Tensors;

/// A state that the caller passes.
pub(crate) enum GivenState {
    /// None: the empty state.
    Nothing,
    /// A safetensors file, or a directory of them.
    Path(PathBuf),
    /// A mapping from names to tensors.
    Tensors(Tensors),
}

/// A state that can be read.
pub(crate) enum Readable<'a> {
    Nothing(MemoryState),
    Files(SafetensorsState),
    Tensors(&'a Tensors),
}

impl GivenState {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            Ok(Self::Nothing)
        } else if let Ok(path) = object.extract() {
            Ok(Self::Path(path))
        } else {
            Ok(Self::Tensors(Tensors::of(object)?))
        }
    }

    pub(crate) fn open(&self) -> Result<Readable<'_>> {
        Ok(match self {
            Self::Nothing => Readable::Nothing(MemoryState::new()),
            Self::Path(path) => Readable::Files(SafetensorsState::open(path)?),
            Self::Tensors(tensors) => Readable::Tensors(tensors),
        })
    }
}

impl Readable<'_> {
    pub(crate) fn state(&self) -> &dyn State {
        match self {
            Self::Nothing(state) => state,
            Self::Files(state) => state,
            Self::Tensors(state) => *state,
        }
    }

    /// Refuses an output that is an input, or lies in one.
    pub(crate) fn check_apart(&self, out: &Path) -> Result<()> {
        if let Self::Files(files) = self {
            files.check_apart(out)
        } else {
            Ok(())
        }
    }

    pub(crate) fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Files(files) => Some(files.layout()),
            Self::Nothing(_) | Self::Tensors(_) => None,
        }
    }
}
