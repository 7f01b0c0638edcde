//! Models of callers, and the states that links lead from and to.

use std::borrow::Cow;

use deltachain::Result;
use deltachain::files::{Layout, SafetensorsState};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, read_once};

/// A model that is published, or that links are made from.
#[derive(Debug, Clone, Copy)]
pub enum Model<'a> {
    /// Files. A version gets their layout, too.
    Files(&'a SafetensorsState),
    /// Any other state, such as one in memory. Its layout is a single file without metadata.
    State(&'a dyn State),
    /// A state that is divided into files like the given ones, and has the other files of their
    /// directory: for a model in training, with the checkpoint that it began with. A tensor that
    /// the files do not have belongs to the last file in the longest folder that the tensor's name
    /// begins with.
    Like(&'a dyn State, &'a SafetensorsState),
}

impl<'a> Model<'a> {
    pub(crate) fn files(self) -> Option<&'a SafetensorsState> {
        match self {
            Self::Files(files) | Self::Like(_, files) => Some(files),
            Self::State(_) => None,
        }
    }

    /// The layout of its tensors; `None` for a single file without metadata.
    ///
    /// # Errors
    /// R-LAY-01 if there is no file for a tensor.
    pub(crate) fn layout(self) -> Result<Option<Cow<'a, Layout>>> {
        Ok(match self {
            Self::Files(files) => Some(Cow::Borrowed(files.layout())),
            Self::Like(state, files) => {
                Some(Cow::Owned(files.layout().carried_over(state.tensors())?))
            }
            Self::State(_) => None,
        })
    }

    pub(crate) fn state(self) -> &'a dyn State {
        match self {
            Self::Files(files) => files,
            Self::State(state) | Self::Like(state, _) => state,
        }
    }

    /// The state with bytes that are read only once, since another thread may be writing to it.
    pub(crate) fn lent(self) -> impl State + Copy + 'a {
        read_once(self.state())
    }

    /// A shard of the model, given its tensors.
    pub(crate) fn shard<'s>(self, tensors: &'s dyn State) -> Model<'s>
    where
        'a: 's,
    {
        match self.files() {
            Some(files) => Model::Like(tensors, files),
            None => Model::State(tensors),
        }
    }
}

impl<'a> From<&'a SafetensorsState> for Model<'a> {
    fn from(files: &'a SafetensorsState) -> Self {
        Self::Files(files)
    }
}

impl<'a> From<&'a MemoryState> for Model<'a> {
    fn from(state: &'a MemoryState) -> Self {
        Self::State(state)
    }
}

/// A state that a link leads from or to.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) state: &'a dyn State,
    /// `None` for a single file without metadata.
    pub(crate) layout: Option<&'a Layout>,
    /// For a base, the digest of the layout that its version has in the chain, if the commit names
    /// it. If that layout differs from `layout`, a link from this base must state the layout of its
    /// target (R-PUB-12).
    pub(crate) named: Option<Digest>,
    /// The digests of the state, if they are known: they are not computed again.
    pub(crate) digests: Option<&'a StateDigests>,
}
