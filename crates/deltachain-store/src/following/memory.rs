//! Brings memory to versions of a chain: the changes are prepared and proven beside it, then exchanged with the values
//! that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use deltachain::chain::{Plan, check_held, check_union, union_of};
use deltachain::files::{Layout, SafetensorsState};
use deltachain::memory::{PatchSet, Ready, StateMemory};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, total_bytes};
use deltachain::{Error, Limits, Result, StateTable};

use crate::access::documents::commit_of;
use crate::access::store::Store;
use crate::directory::marker::Kind;
use crate::directory::own::{check_outside, own};
use crate::directory::scratch::Scratch;
use crate::following::held::{Record, ShardRecord};
use crate::following::joined::Joined;
use crate::following::links::{Failure, Received};
use crate::following::reach::{Consent, Destination, Reached, Reader};
use crate::following::replay::rows;
use crate::following::selection::Choice;
use crate::following::shard::{Part, Shard};
use crate::following::switched::{HeldVersion, Switched, Trip};
use crate::observer::{InPhase, Observer, Phase};

/// How a subscriber in memory works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// What documents and links may make the subscriber allocate.
    pub limits: Limits,
    /// As [`SubscriberOptions::shards`](crate::SubscriberOptions::shards).
    pub shards: Option<Vec<usize>>,
    /// As [`SubscriberOptions::tensors`](crate::SubscriberOptions::tensors).
    pub tensors: Option<Vec<String>>,
    /// The directory where links are kept, which no other process may use meanwhile; a temporary one if `None`. One that
    /// is not empty and that this did not make is refused (USAGE), and one in the chain's own directory.
    pub cache: Option<PathBuf>,
    /// Bytes of links that are kept there when they have been used.
    pub cache_bytes: u64,
    /// Bytes that a prepared version may take in addition to the memory that it changes. What takes more is refused as
    /// USAGE. Without a bound, that is at most as much as the model itself. The first version, which comes from
    /// nothing, is not bounded.
    pub budget: u64,
    /// As [`SubscriberOptions::allow_rollback`](crate::SubscriberOptions::allow_rollback).
    pub allow_rollback: Option<Digest>,
    /// As [`SubscriberOptions::adopt`](crate::SubscriberOptions::adopt).
    pub adopt: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            shards: None,
            tensors: None,
            cache: None,
            cache_bytes: 1 << 30,
            budget: u64::MAX,
            allow_rollback: None,
            adopt: false,
        }
    }
}

impl MemoryOptions {
    deltachain::setters! {
        limits: Limits,
        shards: Option<Vec<usize>>,
        tensors: Option<Vec<String>>,
        cache: Option<PathBuf>,
        cache_bytes: u64,
        budget: u64,
        allow_rollback: Option<Digest>,
        adopt: bool,
    }
}

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

    /// The tensors that are [taken](MemoryOptions::tensors) of the shard with this table. The whole table is needed to
    /// check links.
    pub fn part(memory: M, table: StateTable) -> Self {
        Self { memory, table: Some(table) }
    }
}

/// Keeps memory at a version of a chain: its own, or [lent](deltachain::memory::LentState) by the caller.
///
/// A version is prepared and proven beside the memory; no byte of the memory changes before the version is
/// [applied](Self::apply). To apply takes as long as exchanging the values that differ, and can be undone. Nothing
/// records which version the memory holds: another process begins from nothing, from files, or from
/// [weights](Self::with_weights) whose version it knows.
///
/// Nobody but the subscriber may write to memory that is lent. Where other processes read it, let the memory of each shard have
/// a mark of its own: all are odd before the first byte of any is written.
///
/// ```
/// # use deltachain::tensor::{Dtype, MemoryState, State};
/// # use deltachain_store::{Base, MemoryOptions, MemorySubscriber, PublishOptions, Publisher, Store, StoreOptions, init};
/// # fn main() -> deltachain::Result<()> {
/// # let place = tempfile::tempdir().unwrap();
/// # let store = Store::create(place.path().to_str().unwrap(), StoreOptions::default())?;
/// # init(&store)?;
/// # let model = place.path().join("model.safetensors");
/// # std::fs::write(&model, b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}   \x07").unwrap();
/// # let files = deltachain::files::SafetensorsState::open(&model)?;
/// # Publisher::open(store.clone(), PublishOptions::default())?.publish(&files, Base::Nothing, &())?;
/// let mut subscriber = MemorySubscriber::open(store, MemoryOptions::default())?;
/// if let Some(mut prepared) = subscriber.prepare(None, &())? {
///     // Everything that can fail is done.
///     let switched = subscriber.apply(&mut prepared)?;
///     assert_eq!(switched.version, 0);
/// }
/// let mut weight = [0];
/// subscriber.state().read(0, 0, &mut weight)?;
/// assert_eq!(weight, [7]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemorySubscriber<M = MemoryState> {
    reader: Reader,
    budget: u64,
    held: Option<Record>,
    /// One for each shard held.
    memories: Vec<M>,
    /// The cache, if the caller has given none. Removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// A version that is ready to be exchanged with what the subscriber's memory holds. Once it has been, it is the way back.
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
    trip: Trip,
}

/// Which way values go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forth,
    /// There is no way back.
    Settle,
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

    /// What changes in the memory of each shard: lanes and their values, and tensors that come whole. These are the new
    /// version's values until it is applied, and then the values of the version before.
    pub fn patch_sets(&self) -> &[PatchSet] {
        &self.sets
    }
}

impl MemorySubscriber {
    /// Begins with nothing, in memory of its own.
    ///
    /// # Errors
    /// USAGE if no shard or tensor is wanted or a pattern is malformed; IO.
    pub fn open(store: Store, options: MemoryOptions) -> Result<Self> {
        Self::new(store, options)
    }

    /// Begins with safetensors files that hold this version: for each shard that is wanted, ascending by number, a file or a
    /// directory. What is taken of them is read into memory.
    ///
    /// # Errors
    /// As for [`with_weights`](Self::with_weights), and as for [`SafetensorsState::open`].
    pub fn with_files(
        store: Store,
        version: u64,
        files: &[impl AsRef<Path>],
        options: MemoryOptions,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let mut subscriber = Self::new(store, options)?;
        let load = |path| {
            let files = SafetensorsState::open(path)?;
            let Some(selection) = &subscriber.reader.choice.selection else {
                return Ok(Weights::whole(MemoryState::copy_of(&files)?));
            };
            let table = StateTable::of(&files, &hashing(observer, [&files]))?;
            let part = MemoryState::copy_of(&Part::of(&files, &table, Some(selection))?)?;
            Ok(Weights::part(part, table))
        };
        let weights = files.iter().map(load).collect::<Result<_>>()?;
        subscriber.begin(version, weights, observer)?;
        Ok(subscriber)
    }
}

impl<M: StateMemory> MemorySubscriber<M> {
    /// Begins with weights that are loaded already, in memory that is handed over or lent: one for each shard that is wanted,
    /// ascending by number. All of them are hashed, and compared with the commit of the version that they are said to be.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if they are not the version's weights; R-CHN-01 to R-CHN-04, R-CHN-12 and the rules of
    /// documents; USAGE if there are not as many as shards, if they do not have exactly the tensors that are taken, or
    /// if a mark says that the memory is being changed; as for [`open`](MemorySubscriber::open).
    pub fn with_weights(
        store: Store,
        version: u64,
        weights: Vec<Weights<M>>,
        options: MemoryOptions,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let mut subscriber = Self::new(store, options)?;
        subscriber.begin(version, weights, observer)?;
        Ok(subscriber)
    }

    fn new(store: Store, options: MemoryOptions) -> Result<Self> {
        let MemoryOptions { limits, shards, tensors, cache, cache_bytes, budget, allow_rollback, adopt } = options;
        let consent = Consent { rollback: allow_rollback, adopt };
        let choice = Choice::new(shards, tensors)?;
        let (cache, scratch) = match cache {
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
        let reader = Reader::open(store, (cache, cache_bytes), choice, limits, consent)?;
        Ok(Self { reader, budget, held: None, memories: Vec::new(), _scratch: scratch })
    }

    /// Takes weights that the caller says are those of a version.
    fn begin(&mut self, version: u64, weights: Vec<Weights<M>>, observer: &dyn Observer) -> Result<()> {
        let choice = &self.reader.choice;
        let (held, commit) = commit_of(&self.reader.store, version, &self.reader.limits)?;
        let of = commit.shards.len();
        let wanted = choice.shards(version, of)?;
        if weights.len() != wanted.len() {
            let message = format!("memory for {} shards was given, {} are selected", weights.len(), wanted.len());
            return Err(Error::usage(message));
        }
        if weights.iter().any(|weights| weights.memory.is_being_changed()) {
            return Err(Error::usage("an update of this memory was interrupted, so it holds no version"));
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
        let (state, assets) = (commit.state, false);
        let (commit, chain) = (held.commit, held.chain);
        let (accepted, files) = (BTreeSet::new(), BTreeMap::new());
        self.held = Some(Record { version, commit, chain, state, of, taken, assets, accepted, files, shards });
        self.memories = weights.into_iter().map(|weights| weights.memory).collect();
        Ok(())
    }

    /// The version that the memory holds.
    pub fn held(&self) -> Option<HeldVersion<()>> {
        self.held.as_ref().map(|record| HeldVersion::new(record, ()))
    }

    /// The table of each held shard, with the tensors that are not taken: another process can begin with it by
    /// [`Weights::part`].
    pub fn tables(&self) -> impl Iterator<Item = &StateTable> {
        self.held.iter().flat_map(|record| record.shards.iter().map(|shard| &shard.table))
    }

    /// The memory of each shard held.
    pub fn memories(&self) -> &[M] {
        &self.memories
    }

    /// The tensors of all shards held.
    pub fn state(&self) -> impl State {
        Joined::new(&self.memories)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.reader.store
    }

    /// Fetches and proves a version, or the head, and prepares the changes. Everything that can fail happens here; the
    /// memory stays as it is. `None` if it holds this version already.
    ///
    /// # Errors
    /// The rules of SPEC section 19, if no path is left or the version does not have a wanted shard; USAGE if it does not
    /// have any wanted tensor, if the changes take more than the [budget](MemoryOptions::budget), or if tensors or shards
    /// come, go or change their size and the memory is lent; IO; the observer's error, if it stops the work.
    pub fn prepare(&mut self, version: Option<u64>, observer: &dyn Observer) -> Result<Option<PreparedPatches<M>>> {
        let known = self.held.as_ref();
        let base = known.map(|known| (known.version, known.commit));
        let Reached::Made(made, trip) = self.reader.prepare(version, known, self, observer)? else { return Ok(None) };
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
            trip,
        }))
    }

    /// Exchanges the prepared values with the values that the memory holds. As long as it is kept, there is a way
    /// [back](Self::undo).
    ///
    /// # Errors
    /// USAGE if the memory is not at the version any more that this was prepared for, or its mark says that somebody
    /// else is changing it. Nothing has changed then.
    pub fn apply(&mut self, prepared: &mut PreparedPatches<M>) -> Result<Switched<()>> {
        let began = Instant::now();
        self.switch(prepared, Way::Forth)?;
        let mut trip = prepared.trip.clone();
        trip.times.switch = began.elapsed();
        Ok(Switched::new(prepared.base.map(|(version, _)| version), prepared.public.clone(), trip))
    }

    /// As [`apply`](Self::apply), without a way back: the prepared version keeps its values, which are only read. So
    /// others may go on reading them.
    ///
    /// # Errors
    /// As for [`apply`](Self::apply).
    pub fn settle(&mut self, prepared: &mut PreparedPatches<M>) -> Result<Switched<()>> {
        let began = Instant::now();
        self.switch(prepared, Way::Settle)?;
        let mut trip = prepared.trip.clone();
        trip.times.switch = began.elapsed();
        Ok(Switched::new(prepared.base.map(|(version, _)| version), prepared.public.clone(), trip))
    }

    /// Makes the memory hold the version before again, bit for bit. What has been prepared can be applied again.
    ///
    /// # Errors
    /// USAGE if the memory is not at the version that was prepared; otherwise as for [`apply`](Self::apply).
    pub fn undo(&mut self, prepared: &mut PreparedPatches<M>) -> Result<()> {
        self.switch(prepared, Way::Back)
    }

    fn switch(&mut self, prepared: &mut PreparedPatches<M>, way: Way) -> Result<()> {
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
        // Those who read several together see that before anything changes in any of them.
        ready.iter_mut().for_each(Ready::begin);
        ready.iter_mut().for_each(match way {
            Way::Forth => Ready::apply,
            Way::Settle => Ready::settle,
            Way::Back => Ready::undo,
        });
        if let Some(memories) = &mut other.memories {
            std::mem::swap(&mut self.memories, memories);
        }
        std::mem::swap(&mut self.held, &mut other.record);
        prepared.is_applied = is_forth;
        Ok(())
    }

    /// Hashes the memory and compares it with what the version held is.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if somebody has written to it; what the observer wants it to end with.
    pub fn verify(&self, observer: &dyn Observer) -> Result<()> {
        let Some(record) = &self.held else { return Ok(()) };
        let hashing = hashing(observer, &self.memories);
        let mut expected = vec![Digest::of_empty_state(); record.of];
        for shard in &record.shards {
            expected[shard.number] = shard.table.digests.state;
        }
        for (shard, memory) in record.shards.iter().zip(&self.memories) {
            let found = found_table(&self.reader.choice, memory, Some(&shard.table), &hashing)?;
            check_held(&expected, record.of, [(shard.number, found.digests.state)])?;
        }
        Ok(())
    }
}

/// Changes of memory, before it is known that they fit.
pub(crate) struct Made<M> {
    record: Record,
    /// Memory without tensors, if the version has other shards than the one held.
    memories: Option<Vec<M>>,
    sets: Vec<PatchSet>,
}

impl<M: StateMemory> Destination for MemorySubscriber<M> {
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
