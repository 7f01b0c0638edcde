//! The shards of a version on the way to the version wanted, of which a reader may take a part.

use std::collections::BTreeSet;
use std::path::Path;

use deltachain::files::{Layout, SafetensorsState, ScratchState, StagedSafetensors};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, StateWriter};
use deltachain::{Application, LinkReader, Result, Source, StateTable};

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
        let digests = StateDigests::of(&state, &())?;
        let mut data = MemoryState::copy_of(&state)?;
        for info in state.tensors().iter().filter(|info| !take.has_tensor(info.name())) {
            data.remove(info.name());
        }
        let table = StateTable::new(state.tensors().to_vec(), digests.tensors);
        Ok(Self { table, layout: Some(state.layout().clone()), data: Box::new(data) })
    }

    /// Of the whole shard, whatever is taken of it.
    pub(super) fn digest(&self) -> Digest {
        self.table.digests.state
    }

    pub(super) fn table(&self) -> &StateTable {
        &self.table
    }

    /// The shard that a link makes of this one: steps 7 to 9 of SPEC section 10.
    pub(super) fn apply(&self, link: &LinkReader<impl Source>, take: &Take, scratch: &Path) -> Result<Self> {
        let application = Application::of_part(&*self.data, &self.table, link, &|name| take.has_tensor(name))?;
        let table = application.table().clone();
        // R-LAY-01.
        let layout = Layout::of_target(&link.index().metadata, self.layout.as_ref(), &table.tensors)?;
        let data = ScratchState::create_in(scratch, application.tensors())?;
        application.run(&data, &())?;
        Ok(Self { table, layout: Some(layout), data: Box::new(data) })
    }

    /// Writes what is taken.
    pub(super) fn save(&self, out: &Path) -> Result<()> {
        save(&*self.data, out)
    }
}

/// Writes a state as one file, whatever the layout.
pub(super) fn save(state: &dyn State, out: &Path) -> Result<()> {
    let tensors = state.tensors();
    let staged = StagedSafetensors::create(out, tensors, &Layout::single_file(tensors), None, false)?;
    for (number, (_, bytes)) in MemoryState::copy_of(state)?.iter().enumerate() {
        staged.write(number, 0, bytes)?;
    }
    staged.commit()
}
