//! The shards of a version on the path to the wanted version. A reader may select a part of them.

use std::collections::BTreeSet;
use std::path::Path;

use deltachain::chain::{LayoutProof, Plan, named_layouts};
use deltachain::files::{LAYOUT_KEY, Layout, SafetensorsState, StagedSafetensors, scratch_state};
use deltachain::tensor::{Digest, MemoryState, State, StateWriter, TensorInfo};
use deltachain::{Error, LinkReader, Replay, Result, Source, StateSums, StateTable};

use crate::taken::taken;

/// The selected part of a version.
#[derive(Debug, Default)]
pub(super) struct Take {
    /// Numbers of the selected shards; `None` for all.
    pub(super) shards: Option<BTreeSet<u64>>,
    /// Names of the selected tensors; `None` for all.
    pub(super) tensors: Option<BTreeSet<String>>,
}

/// The check of a shard's layout along a plan (SPEC section 25.2).
#[derive(Debug, Clone, Copy)]
pub(super) struct LayoutCheck<'a> {
    pub(super) plan: &'a Plan,
    pub(super) shard: usize,
    /// True if the reader has trust.
    pub(super) must_be_proven: bool,
}

impl Take {
    pub(super) fn has_shard(&self, number: usize) -> bool {
        self.shards
            .as_ref()
            .is_none_or(|shards| u64::try_from(number).is_ok_and(|number| shards.contains(&number)))
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.tensors
            .as_ref()
            .is_none_or(|tensors| tensors.contains(name))
    }
}

/// A shard: the table and the layout of the whole shard, and the data of the selected tensors.
pub(super) struct Shard {
    table: StateTable,
    layout: Option<Layout>,
    proof: LayoutProof,
    data: Box<dyn State>,
}

impl Shard {
    pub(super) fn empty() -> Self {
        let table = StateTable::new(Vec::new(), Vec::new());
        Self {
            table,
            layout: None,
            proof: LayoutProof::default(),
            data: Box::new(MemoryState::new()),
        }
    }

    /// Opens a shard of the held version, whose state is in a file. `layout` is the recorded text,
    /// and whether it is proven.
    pub(super) fn open(path: &Path, layout: Option<&(String, bool)>, take: &Take) -> Result<Self> {
        let state = SafetensorsState::open(path)?;
        let table = StateTable::of(&state, &())?;
        let mut data = MemoryState::copy_of(&state)?;
        for info in state
            .tensors()
            .iter()
            .filter(|info| !take.has_tensor(info.name()))
        {
            data.remove(info.name());
        }
        let text = layout
            .map(|(text, _)| Layout::parse(text, state.tensors()))
            .transpose()?;
        let layout_held = text.unwrap_or_else(|| state.layout().clone());
        let proof = LayoutProof::held(layout.is_some_and(|(_, is_proven)| *is_proven));
        Ok(Self {
            table,
            layout: Some(layout_held),
            proof,
            data: Box::new(data),
        })
    }

    /// Returns the digest of the whole shard, even if only a part is selected.
    pub(super) fn digest(&self) -> Digest {
        self.table.digests.state
    }

    pub(super) fn table(&self) -> &StateTable {
        &self.table
    }

    /// Returns the digest of the layout of the whole shard.
    pub(super) fn layout(&self) -> Option<Digest> {
        self.layout.as_ref().map(Layout::digest)
    }

    /// Applies links one after another; returns the resulting shard: steps 7 to 9 of SPEC section
    /// 10.
    pub(super) fn follow(
        &self,
        links: &[LinkReader<impl Source>],
        check: Option<LayoutCheck<'_>>,
        take: &Take,
        scratch: &Path,
    ) -> Result<Self> {
        let is_taken = |name: &str| take.has_tensor(name);
        let mut replay =
            Replay::of_part(self.table.clone(), &is_taken).with_layout(self.layout.clone());
        let mut proof = self.proof.clone();
        for (number, link) in links.iter().enumerate() {
            replay.push(link)?;
            let hop = check
                .and_then(|LayoutCheck { plan, shard, .. }| Some((plan.hops.get(number)?, shard)));
            if let (Some((hop, shard)), Some(layout)) = (hop, replay.layout()) {
                proof.follow(
                    hop,
                    shard,
                    (link.index().metadata.contains_key(LAYOUT_KEY), true),
                    || layout.digest(),
                )?;
            }
        }
        if let Some(LayoutCheck {
            plan,
            shard,
            must_be_proven,
        }) = check
        {
            if let (true, Some(layout)) = (links.is_empty(), &self.layout) {
                let named = named_layouts(&plan.metadata, plan.shards.len());
                proof.compare(named.as_ref().and_then(|named| named.get(shard)), || {
                    layout.digest()
                })?;
            }
            if must_be_proven {
                proof.check_proven()?;
            }
        }
        let data = scratch_state(scratch, &replay.tensors())?;
        replay.run(&*self.data, &data, &())?;
        Ok(Self {
            table: replay.table().clone(),
            layout: replay.layout().cloned(),
            proof,
            data: Box::new(data),
        })
    }

    /// Applies links in place (SPEC section 24.6); returns the resulting shard. An error names the
    /// link that is refused.
    pub(super) fn take_in_place(&self, links: &[LinkReader<impl Source>]) -> Result<Self> {
        let first = |count: usize| {
            let (memory, table, layout) = take(&links[..count], &*self.data, self.layout.clone())?;
            Ok(Self {
                table,
                layout,
                proof: self.proof.clone(),
                data: Box::new(memory),
            })
        };
        // Adds one link each time, to find out which one is refused.
        let named = |count: usize| {
            first(count).map_err(|error: Error| error.of_link(count.saturating_sub(1)))
        };
        (1..links.len()).try_for_each(|count| named(count).map(drop))?;
        named(links.len())
    }

    /// Writes the selected tensors.
    pub(super) fn save(&self, out: &Path) -> Result<()> {
        write(&MemoryState::copy_of(&*self.data)?, out)
    }
}

/// Writes a state to a file.
pub(super) fn write(state: &MemoryState, out: &Path) -> Result<()> {
    let staged = stage(state.tensors(), out)?;
    for (number, (_, bytes)) in state.iter().enumerate() {
        staged.write(number, 0, bytes)?;
    }
    staged.commit().map(drop)
}

/// Creates a file for a state, whatever the layout.
pub(super) fn stage(tensors: &[TensorInfo], out: &Path) -> Result<StagedSafetensors> {
    StagedSafetensors::create(out, tensors, &Layout::single_file(tensors), None, false)
}

/// Applies consecutive links in place to memory that holds a state, which is hashed first. Returns
/// the memory, and the table and the layout that the links promise.
pub(super) fn take(
    links: &[LinkReader<impl Source>],
    base: &dyn State,
    layout: Option<Layout>,
) -> Result<(MemoryState, StateTable, Option<Layout>)> {
    let (table, sums) = StateSums::hashed(base, &())?;
    let mut replay = Replay::new(table).with_layout(layout).with_sums(sums);
    links.iter().try_for_each(|link| replay.push(link))?;
    let memory = taken(&replay, base)?;
    Ok((memory, replay.table().clone(), replay.layout().cloned()))
}
