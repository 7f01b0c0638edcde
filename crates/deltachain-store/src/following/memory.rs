//! Brings memory to versions of a chain: the changes are prepared and proven beside it, then exchanged with the values
//! that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use deltachain::chain::{Plan, check_held, check_union, union_of};
use deltachain::files::Layout;
use deltachain::memory::{PatchSet, Ready, StateMemory};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, total_bytes};
use deltachain::{Error, Result, StateTable};

use crate::access::documents::commit_of;
use crate::access::store::Store;
use crate::directory::marker::Kind;
use crate::directory::own::{check_outside, own};
use crate::directory::record::{Record, ShardRecord};
use crate::directory::scratch::Scratch;
use crate::fetching::links::{Failure, Received};
use crate::following::follower::{Follower, FollowerOptions, sealed::Place};
use crate::following::joined::Joined;
use crate::following::reach::{Destination, Reached, Reader};
use crate::following::replay::rows;
use crate::following::selection::Choice;
use crate::following::shard::Shard;
use crate::following::switched::{HeldVersion, Preparation, Switched};
use crate::following::trusting::Trusting;
use crate::observer::{InPhase, Observer, Phase};

/// Weights of one shard that are loaded already.
#[derive(Debug)]
pub struct Weights<M> {
    memory: M,
    table: Option<StateTable>,
}

impl<M> Weights<M> {
    /// All tensors of the shard.
    pub fn whole(memory: M) -> Self {
        Self { memory, table: None }
    }

    /// The tensors that are [selected](FollowerOptions::tensors) of the shard with this table. The whole table is needed to
    /// check links.
    pub fn part(memory: M, table: StateTable) -> Self {
        Self { memory, table: Some(table) }
    }
}

/// Memory at a version of a chain: its own, or [the caller's](deltachain::memory::LentState). A [`Follower`] keeps it.
///
/// A version is prepared and proven beside the memory; no byte of the memory changes before the version is
/// [applied](Follower::apply). To apply takes as long as exchanging the values that differ, and can be undone. Nothing
/// records which version the memory holds: another process begins from nothing, from files, or from
/// [weights](Follower::with_weights) whose version it knows.
///
/// Nobody but the follower may write to memory that is caller-provided.
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
pub struct Memory<M = MemoryState> {
    budget: u64,
    held: Option<Record>,
    /// One for each shard held.
    memories: Vec<M>,
    /// The cache, if the caller has given none. Removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// A version that is ready to be exchanged with what the memory holds. Once it has been, it is the way back.
#[derive(Debug)]
pub struct PreparedPatches<M = MemoryState> {
    public: HeldVersion<()>,
    /// The version, and the commit, that the memory holds, or held.
    base: Option<(u64, Digest)>,
    /// What changes in the memory of each shard.
    sets: Vec<PatchSet>,
    /// What else is exchanged.
    other: Side<M>,
    is_applied: bool,
    preparation: Preparation,
}

/// Which way values go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forth,
    Back,
}

/// One of two versions.
#[derive(Debug)]
struct Side<M> {
    record: Option<Record>,
    /// Its memory, if it has other shards than the other one, so that nothing changes in place.
    memories: Option<Vec<M>>,
}

impl<M> PreparedPatches<M> {
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

    /// What changes in the memory of each shard: lanes and their values, and tensors that come whole. When it has been applied,
    /// the tensors that come whole are those of the version before.
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
        Memory::follower(store, options)
    }
}

impl<M: StateMemory> Follower<Memory<M>> {
    /// Begins with weights that are loaded already, in memory that is handed over or caller-provided: one for each selected
    /// shard, ascending by number. All of them are hashed, and compared with the commit of the version that they are said
    /// to be.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if they are not the version's weights; R-CHN-01 to R-CHN-04, R-CHN-12 and the rules of
    /// documents; USAGE if there are not as many as shards, or if they do not have exactly the selected tensors; as for
    /// [`in_memory`](Follower::in_memory).
    pub fn with_weights(
        store: Store,
        version: u64,
        weights: Vec<Weights<M>>,
        options: FollowerOptions,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let mut follower = Memory::follower(store, options)?;
        follower.place.begin(&follower.reader, version, weights, observer)?;
        Ok(follower)
    }

    /// The table of each held shard, with the tensors that are not selected: another process can begin with it by
    /// [`Weights::part`].
    pub fn tables(&self) -> impl Iterator<Item = &StateTable> {
        self.place.held.iter().flat_map(|record| record.shards.iter().map(|shard| &shard.table))
    }

    /// The memory of each shard held.
    pub fn memories(&self) -> &[M] {
        &self.place.memories
    }

    /// The tensors of all shards held.
    pub fn state(&self) -> impl State {
        Joined::new(&self.place.memories)
    }

    /// Exchanges the prepared values with the values that the memory holds. As long as it is kept, it can be
    /// [undone](Self::undo).
    ///
    /// # Errors
    /// USAGE if the memory is not at the version any more that this was prepared for; R-APP-01 if somebody has written to it.
    /// Nothing has changed then, unless a [set](PreparedPatches::patch_sets) says that it is torn.
    pub fn apply(&mut self, prepared: &mut PreparedPatches<M>) -> Result<Switched<()>> {
        self.place.go(prepared, Way::Forth)
    }

    /// Makes the memory hold the version before again, bit for bit. What has been prepared can be applied again.
    ///
    /// # Errors
    /// USAGE if the memory is not at the version that was prepared; otherwise as for [`apply`](Self::apply).
    pub fn undo(&mut self, prepared: &mut PreparedPatches<M>) -> Result<()> {
        self.place.exchange(prepared, Way::Back)
    }

    /// Hashes the memory and compares it with what the version held is.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if somebody has written to it; what the observer wants it to end with.
    pub fn verify(&self, observer: &dyn Observer) -> Result<()> {
        let Some(record) = &self.place.held else { return Ok(()) };
        let hashing = hashing(observer, &self.place.memories);
        let mut expected = vec![Digest::of_empty_state(); record.of];
        for shard in &record.shards {
            expected[shard.number] = shard.table.digests.state;
        }
        for (shard, memory) in record.shards.iter().zip(&self.place.memories) {
            let found = found_table(&self.reader.choice, memory, Some(&shard.table), &hashing)?;
            check_held(&expected, record.of, [(shard.number, found.digests.state)])?;
        }
        Ok(())
    }
}

impl<M: StateMemory> Memory<M> {
    fn follower(store: Store, mut options: FollowerOptions) -> Result<Follower<Self>> {
        let choice = options.choice()?;
        let (cache, scratch) = match options.cache.take() {
            Some(cache) => {
                check_outside(&cache, store.directory().as_deref())?;
                own(&cache, Kind::Cache)?;
                (cache, None)
            }
            None => {
                let made = Scratch::new(None)?;
                (made.path().join("cache"), Some(made))
            }
        };
        let trust = options.trust.take().map(Trusting::in_memory);
        let reader = options.reader(store, cache, choice, trust)?;
        let place = Self { budget: options.budget, held: None, memories: Vec::new(), _scratch: scratch };
        Ok(Follower { reader, place })
    }

    /// Takes weights that the caller says are those of a version.
    fn begin(
        &mut self,
        reader: &Reader,
        version: u64,
        weights: Vec<Weights<M>>,
        observer: &dyn Observer,
    ) -> Result<()> {
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
            let table = found_table(choice, memory, table.as_ref(), &hashing)?;
            check_held(&commit.shards, of, [(number, table.digests.state)])?;
            shards.push(ShardRecord { number, layout: Layout::single_file(&table.tensors).to_json(), table });
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

    fn go(&mut self, prepared: &mut PreparedPatches<M>, way: Way) -> Result<Switched<()>> {
        let began = Instant::now();
        self.exchange(prepared, way)?;
        let mut preparation = prepared.preparation.clone();
        preparation.times.switch = began.elapsed();
        Ok(Switched::new(prepared.base.map(|(version, _)| version), prepared.public.clone(), preparation))
    }

    fn exchange(&mut self, prepared: &mut PreparedPatches<M>, way: Way) -> Result<()> {
        let is_forth = way != Way::Back;
        let own = prepared.public.commit;
        let expected = if is_forth { prepared.base.map(|(_, commit)| commit) } else { Some(own) };
        let held = self.held.as_ref().map(|record| record.commit);
        if prepared.is_applied == is_forth || held != expected {
            return Err(Error::usage("the memory is not at the version that this was prepared for"));
        }
        let PreparedPatches { sets, other, .. } = &mut *prepared;
        let memories = match &mut other.memories {
            Some(new) if is_forth => new,
            _ => &mut self.memories,
        };
        let mut ready = fit(sets, memories)?;
        for place in 0..ready.len() {
            let done = if is_forth { ready[place].apply() } else { ready[place].undo() };
            if done.is_err() && is_forth {
                // If that fails too, the set says that it is torn.
                ready[..place].iter_mut().for_each(|ready| drop(ready.undo()));
            }
            done?;
        }
        if let Some(memories) = &mut other.memories {
            std::mem::swap(&mut self.memories, memories);
        }
        std::mem::swap(&mut self.held, &mut other.record);
        prepared.is_applied = is_forth;
        Ok(())
    }
}

impl<M: StateMemory> Place for Memory<M> {
    type Prepared = PreparedPatches<M>;
    type At = ();

    fn held(&self) -> Option<HeldVersion<()>> {
        self.held.as_ref().map(|record| HeldVersion::new(record, ()))
    }

    fn is_there(&self) -> bool {
        true
    }

    fn prepare(
        &mut self,
        reader: &Reader,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedPatches<M>>> {
        let known = self.held.as_ref();
        let base = known.map(|known| (known.version, known.commit));
        let Reached::Made(made, preparation) = reader.prepare(version, known, self, observer)? else { return Ok(None) };
        let Made { record, memories, mut sets } = made;
        if memories.is_none() {
            fit(&mut sets, &mut self.memories)?;
        }
        Ok(Some(PreparedPatches {
            public: HeldVersion::new(&record, ()),
            base,
            sets,
            other: Side { record: Some(record), memories },
            is_applied: false,
            preparation,
        }))
    }

    fn switch(&mut self, mut prepared: PreparedPatches<M>) -> Result<Switched<()>> {
        self.go(&mut prepared, Way::Forth)
    }
}

/// Changes of memory, before it is known that they fit.
pub(crate) struct Made<M> {
    record: Record,
    /// Memory without tensors, if the version has other shards than the one held.
    memories: Option<Vec<M>>,
    sets: Vec<PatchSet>,
}

impl<M: StateMemory> Destination for Memory<M> {
    type Made = Made<M>;

    fn held(&self) -> Option<&Record> {
        self.held.as_ref()
    }

    fn shards(&self) -> Result<Vec<Shard<'_>>> {
        let shards = self.held.iter().flat_map(|record| &record.shards).zip(&self.memories);
        shards.map(|(record, memory)| Shard::held(record, Box::new(memory))).collect()
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
    ) -> Result<Made<M>, Failure> {
        let wanted = reader.choice.shards(plan.version, plan.shards.len())?;
        let held = self.held.iter().flat_map(|record| &record.shards).map(|shard| &shard.number);
        let memories = if wanted.iter().eq(held) {
            None
        } else {
            let memories = wanted.iter().map(|_| M::nothing()).collect::<Option<Vec<M>>>();
            Some(memories.ok_or_else(|| {
                Error::usage("the number of shards has changed; caller-provided memory cannot be resized")
            })?)
        };
        let over = memories.as_ref().unwrap_or(&self.memories);
        let budget = if self.held.is_some() { self.budget } else { u64::MAX };
        let patch =
            reader.follow(plan, self, observer, received, |following, pushed| following.patch(pushed, over, budget));
        let (sets, shards) = patch?;
        let accepted = reader.accepted(self.held.as_ref(), plan.commit);
        received.written += sets.iter().map(PatchSet::bytes).sum::<u64>();
        Ok(Made { record: Record::new(plan, reader.choice.patterns(), false, accepted, shards), memories, sets })
    }
}

/// All sets with their memories, if they fit.
fn fit<'m, M: StateMemory>(sets: &'m mut [PatchSet], memories: &'m mut [M]) -> Result<Vec<Ready<'m, M>>> {
    sets.iter_mut().zip(memories).map(|(set, memory)| set.fit(memory)).collect()
}

/// Begins to hash states.
fn hashing<'o, 's>(observer: &'o dyn Observer, states: impl IntoIterator<Item = &'s (impl State + 's)>) -> InPhase<'o> {
    let tensors = states.into_iter().flat_map(State::tensors);
    InPhase::begin(observer, Phase::Hash, total_bytes(tensors))
}

/// The table of a shard, with the digests that are found in memory. `whole` has the digests of tensors that are not
/// taken.
fn found_table(
    choice: &Choice,
    memory: &impl State,
    whole: Option<&StateTable>,
    hashing: &InPhase<'_>,
) -> Result<StateTable> {
    let found = StateDigests::of(memory, hashing)?;
    let Some(whole) = whole else { return Ok(StateTable { tensors: memory.tensors().to_vec(), digests: found }) };
    let taken: Vec<_> = whole.tensors.iter().filter(|info| choice.takes(info.name())).collect();
    if !taken.into_iter().eq(memory.tensors()) {
        return Err(Error::usage("the memory does not contain exactly the selected tensors"));
    }
    let mut found = found.tensors.into_iter();
    let rows = whole.tensors.iter().zip(&whole.digests.tensors);
    let digests =
        rows.map(|(info, &digest)| if choice.takes(info.name()) { found.next() } else { None }.unwrap_or(digest));
    Ok(StateTable::new(whole.tensors.clone(), digests.collect()))
}
