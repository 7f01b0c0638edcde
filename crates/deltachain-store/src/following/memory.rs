//! Brings memory of the follower's own to versions of a chain: the changes are prepared and proven beside it, then
//! exchanged with the values that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use deltachain::chain::{Plan, check_held, check_union, union_of};
use deltachain::files::Layout;
use deltachain::memory::{PatchSet, Proof, Ready};
use deltachain::tensor::{Digest, MemoryState, State, total_bytes};
use deltachain::{Error, Result, StateTable};

use crate::access::documents::commit_of;
use crate::access::store::Store;
use crate::directory::record::{Record, ShardRecord};
use crate::directory::scratch::Scratch;
use crate::fetching::links::{Failure, Received};
use crate::following::follower::{Follower, FollowerOptions, sealed::Place};
use crate::following::found::found;
use crate::following::reach::{Destination, Reached, Reader};
use crate::following::replay::rows;
use crate::following::shard::Shard;
use crate::following::switched::{HeldVersion, Preparation, Switched};
use crate::following::view::View;
use crate::observer::{InPhase, Observer, Phase};

/// Weights of one shard that are loaded already.
#[derive(Debug)]
pub struct Weights {
    memory: MemoryState,
    table: Option<StateTable>,
}

impl Weights {
    /// All tensors of the shard.
    pub fn whole(memory: MemoryState) -> Self {
        Self { memory, table: None }
    }

    /// The tensors that are [selected](FollowerOptions::tensors) of the shard with this table. The whole table is
    /// needed to check links.
    pub fn part(memory: MemoryState, table: StateTable) -> Self {
        Self { memory, table: Some(table) }
    }
}

/// Memory of the follower's own at a version of a chain. A [`Follower`] keeps it. Memory of the caller is changed [in
/// place](crate::InPlace).
///
/// A version is prepared and proven beside the memory; no byte of the memory changes before the version is
/// [applied](Follower::apply). To apply takes as long as exchanging the values that differ, and can be undone. It is
/// always hashed: each piece that changes is read, built and hashed beside it. Nothing records which version the memory
/// holds: another process begins from nothing, from files, or from [weights](Follower::with_weights) whose version it
/// knows.
///
/// ```
/// # use deltachain::tensor::{Dtype, MemoryState, State};
/// # use deltachain_store::{Base, Follower, FollowerOptions, PublishOptions, Publisher, Store, StoreOptions, init};
/// # fn main() -> deltachain::Result<()> {
/// # let place = tempfile::tempdir().unwrap();
/// # let store = Store::create(place.path().to_str().unwrap(), StoreOptions::default())?;
/// # init(&store)?;
/// # let model = place.path().join("model.safetensors");
/// # std::fs::write(&model, b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}   \x07").unwrap();
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
    held: Option<Record>,
    /// One for each shard held.
    memories: Vec<MemoryState>,
    /// The cache, if the caller has given none. Removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// A version that is ready to be exchanged with what the memory holds. Once it has been, it is the way back.
#[derive(Debug)]
pub struct PreparedPatches {
    public: HeldVersion<()>,
    /// The version, and the commit, that the memory holds, or held.
    base: Option<(u64, Digest)>,
    /// What changes in the memory of each shard.
    sets: Vec<PatchSet>,
    /// What else is exchanged: the record of the other version, and its memory, if it has other shards, so that nothing
    /// changes in place.
    other: (Option<Record>, Option<Vec<MemoryState>>),
    is_applied: bool,
    preparation: Preparation,
}

impl PreparedPatches {
    /// The version.
    pub fn version(&self) -> u64 {
        self.public.version
    }

    /// State digest of the version.
    pub fn state(&self) -> Digest {
        self.public.state
    }

    /// Digest of its commit's bytes.
    pub fn commit(&self) -> Digest {
        self.public.commit
    }

    /// Its commit's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.public.metadata
    }

    /// What changes in the memory of each shard: lanes and their values, and tensors that come whole. When it has been
    /// applied, the tensors that come whole are those of the version before.
    pub fn patch_sets(&self) -> &[PatchSet] {
        &self.sets
    }
}

impl Follower<Memory> {
    /// Begins with nothing, in memory of its own.
    ///
    /// # Errors
    /// USAGE if no shard or tensor is selected or a pattern is not valid; IO.
    pub fn in_memory(store: Store, options: FollowerOptions) -> Result<Self> {
        let (reader, scratch) = options.reader_for_memory(store)?;
        Ok(Self { reader, place: Memory { held: None, memories: Vec::new(), _scratch: scratch } })
    }

    /// Begins with weights that are loaded already: one for each selected shard, ascending by number. All of them are
    /// hashed, and compared with the commit of the version that they are said to be.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if they are not the version's weights; R-CHN-01 to R-CHN-04, R-CHN-12 and the rules of
    /// documents; USAGE if there are not as many as shards, or if they do not have exactly the selected tensors; as for
    /// [`in_memory`](Follower::in_memory).
    pub fn with_weights(
        store: Store,
        version: u64,
        weights: Vec<Weights>,
        options: FollowerOptions,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let mut follower = Self::in_memory(store, options)?;
        follower.place.begin(&follower.reader, version, weights, observer)?;
        Ok(follower)
    }

    /// The table of each held shard, with the tensors that are not selected: another process can begin with it by
    /// [`Weights::part`].
    pub fn tables(&self) -> impl Iterator<Item = &StateTable> {
        self.place.held.iter().flat_map(|held| held.shards.iter().map(|shard| &shard.table))
    }

    /// The memory of each shard held.
    pub fn memories(&self) -> &[MemoryState] {
        &self.place.memories
    }

    /// The tensors of all shards held.
    pub fn state(&self) -> impl State {
        View::joined(&self.place.memories)
    }

    /// Makes the memory hold the prepared version: values are exchanged. As long as these are kept, this can be
    /// [undone](Self::undo).
    ///
    /// # Errors
    /// USAGE if the memory is not at the version any more that this was prepared for. Nothing has changed then.
    pub fn apply(&mut self, prepared: &mut PreparedPatches) -> Result<Switched<()>> {
        self.place.apply(prepared)
    }

    /// Makes the memory hold the version before again, bit for bit. What has been prepared can be applied again.
    ///
    /// # Errors
    /// USAGE if the memory is not at the version that was prepared.
    pub fn undo(&mut self, prepared: &mut PreparedPatches) -> Result<()> {
        self.place.exchange(prepared, false)
    }

    /// Hashes the memory and compares it with what the version held is.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if something has changed it. What the observer wants it to end with.
    pub fn verify(&self, observer: &dyn Observer) -> Result<()> {
        let Some(record) = &self.place.held else { return Ok(()) };
        let hashing = hashing(observer, &self.place.memories);
        let expected = record.states();
        for (shard, memory) in record.shards.iter().zip(&self.place.memories) {
            let (found, _) = found(&self.reader.choice, memory, Some(&shard.table), false, &hashing)?;
            check_held(&expected, record.of, [(shard.number, found.digests.state)])?;
        }
        Ok(())
    }
}

impl Memory {
    /// Takes weights that the caller says are those of a version.
    fn begin(&mut self, reader: &Reader, version: u64, weights: Vec<Weights>, observer: &dyn Observer) -> Result<()> {
        let choice = &reader.choice;
        let (held, commit) = commit_of(&reader.store, version, &reader.limits)?;
        let of = commit.shards.len();
        let wanted = choice.shards(version, of)?;
        if weights.len() != wanted.len() {
            let message = format!("memory for {} shards was given, {} are selected", weights.len(), wanted.len());
            return Err(Error::usage(message));
        }
        let hashing = hashing(observer, weights.iter().map(|weights| &weights.memory));
        let mut shards = Vec::with_capacity(of);
        for (&number, Weights { memory, table }) in wanted.iter().zip(&weights) {
            if table.is_none() && choice.selection.is_some() {
                return Err(Error::usage("only some tensors are selected: the table of the whole shard is needed"));
            }
            let (table, _) = found(choice, memory, table.as_ref(), false, &hashing)?;
            check_held(&commit.shards, of, [(number, table.digests.state)])?;
            let layout = Layout::single_file(&table.tensors).to_json();
            shards.push(ShardRecord { number, layout, proven: false, table });
        }
        let tables = rows(shards.iter().map(|shard| &shard.table));
        if wanted.len() == of { check_union(commit.state, tables) } else { union_of(tables).map(drop) }?;
        let taken = choice.patterns().map(<[String]>::to_vec);
        let (state, metadata, assets) = (commit.state, commit.metadata, false);
        let (commit, chain) = (held.commit, held.chain);
        let (accepted, files) = (BTreeSet::new(), BTreeMap::new());
        self.held =
            Some(Record { version, commit, chain, state, metadata, of, taken, assets, accepted, files, shards });
        self.memories = weights.into_iter().map(|weights| weights.memory).collect();
        Ok(())
    }

    fn apply(&mut self, prepared: &mut PreparedPatches) -> Result<Switched<()>> {
        let began = Instant::now();
        self.exchange(prepared, true)?;
        let mut preparation = prepared.preparation.clone();
        preparation.times.switch = began.elapsed();
        Ok(Switched::new(prepared.base.map(|(version, _)| version), prepared.public.clone(), preparation))
    }

    fn exchange(&mut self, prepared: &mut PreparedPatches, is_forth: bool) -> Result<()> {
        let expected = if is_forth { prepared.base.map(|(_, commit)| commit) } else { Some(prepared.public.commit) };
        if prepared.is_applied == is_forth || self.held.as_ref().map(|held| held.commit) != expected {
            return Err(Error::usage("the memory is not at the version that this was prepared for"));
        }
        let PreparedPatches { sets, other, .. } = &mut *prepared;
        let memories = match &mut other.1 {
            Some(new) if is_forth => new,
            _ => &mut self.memories,
        };
        for mut ready in fit(sets, memories)? {
            if is_forth { ready.apply() } else { ready.undo() }?;
        }
        if let Some(memories) = &mut other.1 {
            std::mem::swap(&mut self.memories, memories);
        }
        std::mem::swap(&mut self.held, &mut other.0);
        prepared.is_applied = is_forth;
        Ok(())
    }
}

impl Place for Memory {
    type Prepared = PreparedPatches;
    type At = ();

    fn held(&self) -> Option<HeldVersion<()>> {
        self.held.as_ref().map(|record| HeldVersion::new(record, (), Proof::Hashed))
    }

    fn is_there(&self) -> bool {
        true
    }

    fn prepare(
        &mut self,
        reader: &Reader,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedPatches>> {
        let base = self.held.as_ref().map(|record| (record.version, record.commit));
        let reached = reader.prepare(version, self.held.as_ref(), self, observer)?;
        let Reached::Made(Made { record, memories, mut sets }, preparation) = reached else { return Ok(None) };
        if memories.is_none() {
            fit(&mut sets, &mut self.memories)?;
        }
        let public = HeldVersion::new(&record, (), Proof::Hashed);
        Ok(Some(PreparedPatches {
            public,
            base,
            sets,
            other: (Some(record), memories),
            is_applied: false,
            preparation,
        }))
    }

    fn switch(
        &mut self,
        _reader: &Reader,
        mut prepared: PreparedPatches,
        _observer: &dyn Observer,
    ) -> Result<Switched<()>> {
        self.apply(&mut prepared)
    }
}

/// What comes of a plan, before it is known that it fits.
pub(crate) struct Made {
    record: Record,
    /// Memory without tensors, if the version has other shards than the one held.
    memories: Option<Vec<MemoryState>>,
    sets: Vec<PatchSet>,
}

impl Destination for Memory {
    type Made = Made;

    fn held(&self) -> Option<&Record> {
        self.held.as_ref()
    }

    fn shards(&self, _plan: &Plan) -> Result<Vec<Shard<'_>>> {
        let shards = self.held.iter().flat_map(|record| &record.shards).zip(&self.memories);
        shards
            .map(|(record, memory)| Shard::held(record, Box::new(View::joined(std::slice::from_ref(memory))), None))
            .collect()
    }

    fn lacks_files(&self, _plan: &Plan) -> bool {
        false
    }

    fn make(
        &self,
        reader: &Reader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Made, Failure> {
        let wanted = reader.choice.shards(plan.version, plan.shards.len())?;
        let known = self.held.as_ref();
        let is_same = wanted.iter().eq(known.into_iter().flat_map(|record| &record.shards).map(|shard| &shard.number));
        let memories = (!is_same).then(|| vec![MemoryState::new(); wanted.len()]);
        let over = memories.as_ref().unwrap_or(&self.memories);
        let patch = reader.follow(plan, self, observer, received, |following, pushed| following.patch(pushed, over));
        let (sets, shards, _) = patch?;
        received.written += sets.iter().map(PatchSet::bytes).sum::<u64>();
        Ok(Made { record: reader.record(plan, known, false, shards), memories, sets })
    }
}

/// All sets with their memories, if they fit.
fn fit<'m>(sets: &'m mut [PatchSet], memories: &'m mut [MemoryState]) -> Result<Vec<Ready<'m>>> {
    sets.iter_mut().zip(memories).map(|(set, memory)| set.fit(memory)).collect()
}

/// Begins to hash states.
fn hashing<'o, 's>(observer: &'o dyn Observer, states: impl IntoIterator<Item = &'s (impl State + 's)>) -> InPhase<'o> {
    let tensors = states.into_iter().flat_map(State::tensors);
    InPhase::begin(observer, Phase::Hash, total_bytes(tensors))
}
