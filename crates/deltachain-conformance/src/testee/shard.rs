//! The shards of a version on the way to the version wanted. A reader may take a part of them.

use std::collections::BTreeSet;
use std::path::Path;

use deltachain::files::{Layout, SafetensorsState, ScratchState, StagedSafetensors};
use deltachain::tensor::{Digest, MemoryState, State, StateWriter, TensorInfo};
use deltachain::{LinkReader, Replay, Result, Source, StateTable};

/// What is taken of a version.
#[derive(Debug, Default)]
pub(super) struct Take {
    /// Numbers; `None` for all.
    pub(super) shards: Option<BTreeSet<u64>>,
    /// Names; `None` for all.
    pub(super) tensors: Option<BTreeSet<String>>,
}

impl Take {
    pub(super) fn has_shard(&self, number: usize) -> bool {
        self.shards.as_ref().is_none_or(|shards| u64::try_from(number).is_ok_and(|number| shards.contains(&number)))
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.tensors.as_ref().is_none_or(|tensors| tensors.contains(name))
    }
}

/// A shard: the table and the layout of all of it, and the data of the tensors that are taken.
pub(super) struct Shard {
    table: StateTable,
    layout: Option<Layout>,
    data: Box<dyn State>,
}

impl Shard {
    pub(super) fn empty() -> Self {
        let table = StateTable::new(Vec::new(), Vec::new());
        Self { table, layout: None, data: Box::new(MemoryState::new()) }
    }

    /// A shard of the version held, whose state is in a file.
    pub(super) fn open(path: &Path, take: &Take) -> Result<Self> {
        let state = SafetensorsState::open(path)?;
        let table = StateTable::of(&state, &())?;
        let mut data = MemoryState::copy_of(&state)?;
        for info in state.tensors().iter().filter(|info| !take.has_tensor(info.name())) {
            data.remove(info.name());
        }
        Ok(Self { table, layout: Some(state.layout().clone()), data: Box::new(data) })
    }

    /// Of the whole shard, also if only a part is taken.
    pub(super) fn digest(&self) -> Digest {
        self.table.digests.state
    }

    pub(super) fn table(&self) -> &StateTable {
        &self.table
    }

    /// The shard that links make of this one, one after another: steps 7 to 9 of SPEC section 10.
    pub(super) fn follow(&self, links: &[LinkReader<impl Source>], take: &Take, scratch: &Path) -> Result<Self> {
        let is_taken = |name: &str| take.has_tensor(name);
        let mut replay = Replay::of_part(self.table.clone(), &is_taken).with_layout(self.layout.clone());
        links.iter().try_for_each(|link| replay.push(link))?;
        let data = ScratchState::create_in(scratch, &replay.tensors())?;
        replay.run(&*self.data, &data, &())?;
        Ok(Self { table: replay.table().clone(), layout: replay.layout().cloned(), data: Box::new(data) })
    }

    /// Writes what is taken.
    pub(super) fn save(&self, out: &Path) -> Result<()> {
        write(&MemoryState::copy_of(&*self.data)?, out)
    }
}

/// A state as a file.
pub(super) fn write(state: &MemoryState, out: &Path) -> Result<()> {
    let staged = stage(state.tensors(), out)?;
    for (number, (_, bytes)) in state.iter().enumerate() {
        staged.write(number, 0, bytes)?;
    }
    staged.commit().map(drop)
}

/// A file for a state, whatever the layout.
pub(super) fn stage(tensors: &[TensorInfo], out: &Path) -> Result<StagedSafetensors> {
    StagedSafetensors::create(out, tensors, &Layout::single_file(tensors), None, false)
}
