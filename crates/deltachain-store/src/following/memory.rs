//! Keeps the follower's own memory at versions of a chain: changes are prepared and proven beside
//! the memory, then written.

use std::time::Instant;

use deltachain::chain::{Plan, VersionId};
use deltachain::memory::{PatchSet, StagedPatches};
use deltachain::tensor::{MemoryState, State, StateDigests, total_bytes};
use deltachain::{Error, Result};

use crate::access::store::Store;
use crate::directory::held::HeldVersion;
use crate::directory::scratch::Scratch;
use crate::fetching::links::{Blame, FetchTotals};
use crate::following::follower::{Follower, FollowerOptions};
use crate::following::found::check_found;
use crate::following::reach::{ChainReader, Destination, PreparedVersion};
use crate::following::selection::Selection;
use crate::following::shard::BaseShard;
use crate::following::switched::SwitchReport;
use crate::following::view::View;
use crate::observer::{InPhase, Observer, Phase};

/// Memory of its own that a [`Follower`] keeps at a version of a chain. Memory of the caller is
/// changed [in place](crate::InPlace).
///
/// A version is prepared and proven beside the memory; no byte of the memory changes before the
/// version is [applied](Follower::apply). Applying takes as long as writing the values that differ.
/// A version is always hashed: each piece that changes is read, built and hashed beside the memory.
/// No record says which version the memory holds: a new process begins from nothing.
///
/// ```
/// # use deltachain::tensor::{Dtype, MemoryState, State};
/// # use deltachain_store::{Base, Follower, FollowerOptions, PublishOptions, Publisher, Store, StoreOptions, init};
/// # fn main() -> deltachain::Result<()> {
/// # let place = tempfile::tempdir().unwrap();
/// # let store = Store::create(place.path().to_str().unwrap(), StoreOptions::default())?;
/// # init(&store)?;
/// # let model = place.path().join("model.safetensors");
/// # std::fs::write(
/// #     &model,
/// #     b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}   \x07",
/// # )
/// # .unwrap();
/// # let files = deltachain::files::SafetensorsState::open(&model)?;
/// # Publisher::open(store.clone(), PublishOptions::default())?.publish(&files, Base::Nothing, &())?;
/// let mut follower = Follower::in_memory(store, FollowerOptions::default())?;
/// if let Some(mut prepared) = follower.prepare(None, &())? {
///     // Everything that can fail is done.
///     let switched = follower.apply(&mut prepared)?;
///     assert_eq!(switched.version, 0);
/// }
/// let mut weight = [0];
/// follower.state().read(0, 0, &mut weight)?;
/// assert_eq!(weight, [7]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Memory {
    held: Option<HeldVersion<()>>,
    /// The memory of each held shard.
    memories: Vec<MemoryState>,
    /// The temporary cache, if the caller gave none. It is removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// The changes of a version, ready to be written.
#[derive(Debug)]
pub struct OwnChanges {
    /// The version that the memory holds.
    base: Option<VersionId>,
    /// The changes in the memory of each shard.
    sets: Vec<PatchSet>,
    /// New memory, if the version has other shards than the held one.
    memories: Option<Vec<MemoryState>>,
    is_applied: bool,
}

impl PreparedVersion<Memory> {
    /// The changes in the memory of each shard: lanes and their values, and whole tensors. After
    /// the version has been applied, the whole tensors are those of the previous version.
    pub fn patch_sets(&self) -> &[PatchSet] {
        &self.change.sets
    }
}

impl Follower<Memory> {
    /// Creates a follower that holds no version, with memory of its own.
    ///
    /// # Errors
    /// USAGE if no shard or tensor is selected or a pattern is not valid; IO.
    pub fn in_memory(store: Store, options: FollowerOptions) -> Result<Self> {
        let (reader, scratch) = options.reader_for_memory(store)?;
        Ok(Self {
            reader,
            place: Memory {
                held: None,
                memories: Vec::new(),
                _scratch: scratch,
            },
        })
    }

    /// Returns the tensors of all held shards.
    pub fn state(&self) -> impl State {
        View::joined(&self.place.memories)
    }

    /// Writes the changes of the prepared version to the memory.
    ///
    /// # Errors
    /// USAGE if the memory is no longer at the version for which this one was prepared. Nothing has
    /// changed then.
    pub fn apply(&mut self, prepared: &mut PreparedVersion<Memory>) -> Result<SwitchReport<()>> {
        let began = Instant::now();
        let PreparedVersion {
            held,
            change,
            report,
        } = prepared;
        let Memory {
            held: holds,
            memories: own,
            ..
        } = &mut self.place;
        if change.is_applied || holds.as_ref().map(HeldVersion::held) != change.base {
            return Err(Error::usage(
                "the memory is not at the version that this was prepared for",
            ));
        }
        change.is_applied = true;
        let mut memories = change.memories.take();
        stage(&mut change.sets, memories.as_mut().unwrap_or(own))?
            .iter_mut()
            .try_for_each(StagedPatches::write)?;
        *own = memories.unwrap_or_else(|| std::mem::take(own));
        *holds = Some(held.clone());
        report.times.switch = began.elapsed();
        Ok(report.clone())
    }

    /// Hashes the memory and compares it with the held version.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if the memory has changed. The observer's error, if it stops the
    /// work.
    pub fn verify(&self, observer: &dyn Observer) -> Result<()> {
        let Some(held) = &self.place.held else {
            return Ok(());
        };
        let bytes = total_bytes(self.place.memories.iter().flat_map(State::tensors));
        let hashing = InPhase::begin(observer, Phase::Hash, bytes);
        for (shard, memory) in held.shards.iter().zip(&self.place.memories) {
            let found = StateDigests::of(memory, &hashing)?.tensors;
            check_found(
                &self.reader.selection,
                held,
                shard,
                (memory.tensors(), found),
            )?;
        }
        Ok(())
    }
}

impl Destination for Memory {
    type Change = OwnChanges;
    type At = ();

    fn held(&self) -> Option<&HeldVersion<()>> {
        self.held.as_ref()
    }

    fn prepare(
        &mut self,
        reader: &ChainReader,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<Self>>> {
        let mut prepared = reader.prepare(version, self, observer)?;
        if let Some(OwnChanges {
            sets,
            memories: None,
            ..
        }) = prepared.as_mut().map(|prepared| &mut prepared.change)
        {
            stage(sets, &mut self.memories)?;
        }
        Ok(prepared)
    }

    fn shards(&self, _: &Plan, _: &Selection) -> Result<Vec<BaseShard<'_>>> {
        let shards = self
            .held
            .iter()
            .flat_map(|held| &held.shards)
            .zip(&self.memories);
        shards
            .map(|(record, memory)| {
                BaseShard::held(
                    record,
                    Box::new(View::joined(std::slice::from_ref(memory))),
                    None,
                )
            })
            .collect()
    }

    fn make(
        &self,
        reader: &ChainReader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut FetchTotals,
    ) -> Result<(HeldVersion<()>, OwnChanges), Blame> {
        let wanted = reader.selection.shards(plan.version, plan.shards.len())?;
        let last = self.held.as_ref();
        let is_same = wanted.iter().eq(last
            .into_iter()
            .flat_map(|held| &held.shards)
            .map(|shard| &shard.number));
        let memories = (!is_same).then(|| vec![MemoryState::new(); wanted.len()]);
        let over = memories.as_ref().unwrap_or(&self.memories);
        let patch = reader.follow(plan, self, observer, received, |following, pushed| {
            following.patch(pushed, over)
        });
        let followed = patch?;
        let sets = followed.built;
        received.written += sets.iter().map(PatchSet::bytes).sum::<u64>();
        let change = OwnChanges {
            base: last.map(HeldVersion::held),
            sets,
            memories,
            is_applied: false,
        };
        Ok((reader.version(plan, self, false, followed.shards), change))
    }
}

/// Stages all sets in their memories, if they fit.
fn stage<'m>(
    sets: &'m mut [PatchSet],
    memories: &'m mut [MemoryState],
) -> Result<Vec<StagedPatches<'m>>> {
    sets.iter_mut()
        .zip(memories)
        .map(|(set, memory)| set.stage(memory))
        .collect()
}
