//! Brings memory to versions of a chain: the changes are prepared and proven beside it, then exchanged with the values
//! that it holds. The caller's memory is changed in place: lanes are proven by sums, and what cannot be taken so is
//! loaded as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::time::{Duration, Instant};

use deltachain::StateSums;
use deltachain::chain::{Plan, check_held, check_union, union_of};
use deltachain::files::Layout;
use deltachain::memory::{PatchSet, Proof, Ready, StateMemory};
use deltachain::tensor::{Digest, MemoryState, State, total_bytes};
use deltachain::{Error, FileSource, Replay, Result, StateTable};

use crate::access::documents::commit_of;
use crate::access::store::Store;
use crate::directory::record::{Record, ShardRecord};
use crate::directory::scratch::Scratch;
use crate::fallback::Fallback;
use crate::fetching::links::{Failure, Received};
use crate::following::follower::{Follower, FollowerOptions, sealed::Place};
use crate::following::found::{found, sums_of_taken};
use crate::following::held_memory::{HeldMemory, Holding};
use crate::following::opened::Opened;
use crate::following::reach::{Destination, Reached, Reader, is_trusted, is_whole};
use crate::following::replay::rows;
use crate::following::shard::Shard;
use crate::following::switched::{HeldVersion, Preparation, Switched};
use crate::following::view::View;
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
/// The follower's own memory is always hashed: each piece that changes is read, built and hashed beside it.
///
/// Memory of the caller is changed *in place* (SPEC section 24): of a version with links of the profile local
/// only the lanes that change are read, proven by sums, and compared once more when they are written. So the rest of
/// the memory is not proven; [`check`](Follower::check) does that, and [`Follower::follow`] from time to time. What
/// cannot be taken in place is loaded as a whole, streamed into the memory, and so is the first version:
/// [`Switched::fallback`] says why. While a whole version is loaded, and if that fails, the memory is
/// [torn](Follower::is_torn), until one has been loaded.
///
/// Nobody but the follower may write to memory that is caller-provided. If somebody does, the next version that changes
/// such lanes notices it, or the next check.
///
/// A version that is held in place is no base for a publisher: give it files, or the memory as a state, which it
/// hashes.
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
///     let switched = follower.apply(&mut prepared, &())?;
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
    held: HeldMemory,
    /// One for each shard held. The caller's, which is changed in place, is here before anything is held.
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
    /// What changes in the memory of each shard; nothing if the version is loaded as a whole.
    sets: Vec<PatchSet>,
    /// The links of a version that is loaded as a whole. That cannot be undone.
    load: Option<Opened>,
    /// What else is exchanged.
    other: Side<M>,
    is_applied: bool,
    preparation: Preparation,
}

/// One of two versions.
#[derive(Debug)]
struct Side<M> {
    holding: Option<Holding>,
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

    /// Whether the version is loaded as a whole into the caller's memory: nothing is prepared but its links.
    pub fn is_whole(&self) -> bool {
        self.load.is_some()
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
        Memory::follower(store, options)
    }
}

impl<M: StateMemory + Send> Follower<Memory<M>> {
    /// Begins with nothing, in memory of the caller: one for each selected shard, ascending by number, with the tensors
    /// that the chain's versions have. Whatever it holds is overwritten by the first version that is applied.
    ///
    /// # Errors
    /// USAGE if the memory is of a kind that a follower can make itself; as for [`in_memory`](Follower::in_memory).
    pub fn into_memory(store: Store, memories: Vec<M>, options: FollowerOptions) -> Result<Self> {
        if !Memory::<M>::changes_in_place() {
            return Err(Error::usage("this kind of memory is the follower's own, and begins empty"));
        }
        let mut follower = Memory::follower(store, options)?;
        follower.place.memories = memories;
        Ok(follower)
    }

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
        self.place.held.holding().into_iter().flat_map(|held| held.record.shards.iter().map(|shard| &shard.table))
    }

    /// The memory of each shard held.
    pub fn memories(&self) -> &[M] {
        &self.place.memories
    }

    /// The tensors of all shards held.
    pub fn state(&self) -> impl State {
        View::joined(&self.place.memories)
    }

    /// Whether the memory may hold parts of two versions, because loading a whole version, or going back, has failed.
    pub fn is_torn(&self) -> bool {
        self.place.held.fault == Some(Fallback::Torn)
    }

    /// Makes the memory hold the prepared version: values are exchanged, or the whole version is loaded, which the
    /// observer sees as [building](Phase::Build). As long as values that were exchanged are kept, this can be
    /// [undone](Self::undo).
    ///
    /// # Errors
    /// USAGE if the memory is not at the version any more that this was prepared for. R-APP-01 (`WRONG_BASE`) if
    /// somebody has written to the caller's memory since. Nothing has changed then, or the memory [is
    /// torn](Self::is_torn), as it is if loading a whole version fails: with rules of links, IO, or the observer's
    /// error.
    pub fn apply(&mut self, prepared: &mut PreparedPatches<M>, observer: &dyn Observer) -> Result<Switched<()>> {
        self.place.apply(prepared, observer)
    }

    /// Makes the memory hold the version before again, bit for bit. What has been prepared can be applied again.
    ///
    /// # Errors
    /// USAGE if the memory is not at the version that was prepared, or that was loaded as a whole; otherwise as for
    /// [`apply`](Self::apply).
    pub fn undo(&mut self, prepared: &mut PreparedPatches<M>) -> Result<()> {
        self.place.exchange(prepared, false)
    }

    /// The caller's memory lies elsewhere than before, and these are the memories now; `None` if they cannot be had. The
    /// next version is loaded as a whole.
    ///
    /// # Errors
    /// USAGE if the memory is the follower's own, or if they do not have the same tensors, by name, dtype and length.
    pub fn displaced(&mut self, memories: Option<Vec<M>>) -> Result<()> {
        if !Memory::<M>::changes_in_place() {
            return Err(Error::usage("this kind of memory is the follower's own"));
        }
        self.place.held.doubt(Fallback::Place);
        let Some(mut memories) = memories else { return Ok(()) };
        if memories.len() != self.place.memories.len() {
            return Err(Error::usage("there must be one memory for each shard"));
        }
        for (memory, old) in memories.iter_mut().zip(&self.place.memories) {
            memory.describe(old.tensors())?;
        }
        self.place.memories = memories;
        Ok(())
    }

    /// Hashes the memory and compares it with what the version held is.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if somebody has written to it: the caller's memory holds no version then, and the next
    /// one is loaded as a whole. USAGE if it holds none already. What the observer wants it to end with.
    pub fn verify(&mut self, observer: &dyn Observer) -> Result<()> {
        let done = self.place.verify(&self.reader, observer);
        self.place.note(done, Proof::Hashed).map(drop)
    }

    /// Reads all of the memory and compares its sums with those of the version held, which takes about as long as
    /// copying it. Where the sums are not known, as in the follower's own memory, it is hashed. Says how far it is
    /// proven; `None` if no version has been held yet.
    ///
    /// # Errors
    /// R-SUM-04 (`STATE_MISMATCH`) if something has changed the memory; otherwise as for [`verify`](Self::verify).
    pub fn check(&mut self, observer: &dyn Observer) -> Result<Option<Proof>> {
        self.place.check(&self.reader, observer)
    }
}

impl<M: StateMemory + Send> Memory<M> {
    fn follower(store: Store, options: FollowerOptions) -> Result<Follower<Self>> {
        let budget = options.budget;
        let (reader, scratch) = options.reader_for_memory(store)?;
        let place = Self { budget, held: HeldMemory::default(), memories: Vec::new(), _scratch: scratch };
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
        let (mut shards, mut sums) = (Vec::with_capacity(of), Vec::new());
        for (&number, Weights { memory, table }) in wanted.iter().zip(&weights) {
            if table.is_none() && choice.selection.is_some() {
                return Err(Error::usage("only some tensors are selected: the table of the whole shard is needed"));
            }
            let (table, own) = found(choice, memory, table.as_ref(), Self::changes_in_place(), &hashing)?;
            sums.extend(own);
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
        let record = Record { version, commit, chain, state, metadata, of, taken, assets, accepted, files, shards };
        self.held.hold(Some(Holding { record, sums, proof: Proof::Hashed }));
        self.held.proven(Proof::Hashed);
        self.memories = weights.into_iter().map(|weights| weights.memory).collect();
        Ok(())
    }

    /// Whether links are taken in place, because nothing else is there to build in.
    fn changes_in_place() -> bool {
        M::nothing().is_none()
    }

    fn apply(&mut self, prepared: &mut PreparedPatches<M>, observer: &dyn Observer) -> Result<Switched<()>> {
        let began = Instant::now();
        match &prepared.load {
            Some(_) => self.load(prepared, observer)?,
            None => self.exchange(prepared, true)?,
        }
        let mut preparation = prepared.preparation.clone();
        preparation.times.switch = began.elapsed();
        Ok(Switched::new(prepared.base.map(|(version, _)| version), prepared.public.clone(), preparation))
    }

    /// Checks that the memory is at the version that a change begins with.
    fn check_at(&self, prepared: &PreparedPatches<M>, is_forth: bool) -> Result<()> {
        let own = prepared.public.commit;
        let expected = if is_forth { prepared.base.map(|(_, commit)| commit) } else { Some(own) };
        // What is loaded as a whole, or was compared with what the memory holds, does not depend on that.
        let is_fit = prepared.load.is_some() || !Self::changes_in_place() || self.held.fault.is_none();
        if prepared.is_applied == is_forth || self.held.base().map(|(_, commit)| commit) != expected || !is_fit {
            return Err(Error::usage("the memory is not at the version that this was prepared for"));
        }
        Ok(())
    }

    /// Streams a whole version into the memory.
    fn load(&mut self, prepared: &mut PreparedPatches<M>, observer: &dyn Observer) -> Result<()> {
        self.check_at(prepared, true)?;
        let Some(links) = &prepared.load else { return Ok(()) };
        let building =
            InPhase::begin(observer, Phase::Build, total_bytes(self.memories.iter().flat_map(State::tensors)));
        self.held.fault = Some(Fallback::Torn);
        for (place, memory) in self.memories.iter_mut().enumerate() {
            let load = |replay: &Replay<'_, FileSource>| replay.load(&MemoryState::new(), memory, &building);
            let loaded = links.replay(place, &|_| true, load);
            // Bad links are told from good ones before the next attempt.
            self.held.links_failed |= loaded.as_ref().is_err_and(|error| error.rule().is_some());
            loaded?;
        }
        self.held.hold(prepared.other.holding.take());
        self.held.proven(Proof::Hashed);
        prepared.is_applied = true;
        Ok(())
    }

    fn exchange(&mut self, prepared: &mut PreparedPatches<M>, is_forth: bool) -> Result<()> {
        self.check_at(prepared, is_forth)?;
        if prepared.load.is_some() {
            return Err(Error::usage("the version was loaded as a whole, which cannot be undone"));
        }
        let PreparedPatches { sets, other, .. } = &mut *prepared;
        let memories = match &mut other.memories {
            Some(new) if is_forth => new,
            _ => &mut self.memories,
        };
        let mut ready = fit(sets, memories)?;
        self.held.fault = Some(Fallback::Torn);
        for place in 0..ready.len() {
            let done = if is_forth { ready[place].apply() } else { ready[place].undo() };
            if let Err(error) = done {
                let mut is_torn = !is_forth;
                for ready in ready[..place].iter_mut().filter(|_| is_forth) {
                    is_torn |= ready.undo().is_err();
                }
                is_torn |= sets.iter().any(PatchSet::is_torn);
                // What somebody has written to the memory stays in it.
                self.held.fault = Some(if is_torn { Fallback::Torn } else { Fallback::Proof });
                return Err(error);
            }
        }
        if let Some(memories) = &mut other.memories {
            std::mem::swap(&mut self.memories, memories);
        }
        let before = self.held.last.take();
        self.held.hold(std::mem::replace(&mut other.holding, before));
        prepared.is_applied = is_forth;
        Ok(())
    }

    /// Hashes the memory; its sums are known then.
    fn verify(&mut self, reader: &Reader, observer: &dyn Observer) -> Result<()> {
        let Some(Holding { record, .. }) = self.held.to_prove()? else { return Ok(()) };
        let hashing = hashing(observer, &self.memories);
        let mut expected = vec![Digest::of_empty_state(); record.of];
        for shard in &record.shards {
            expected[shard.number] = shard.table.digests.state;
        }
        let mut sums = Vec::new();
        for (shard, memory) in record.shards.iter().zip(&self.memories) {
            let (found, own) = found(&reader.choice, memory, Some(&shard.table), Self::changes_in_place(), &hashing)?;
            check_held(&expected, record.of, [(shard.number, found.digests.state)])?;
            sums.extend(own);
        }
        if let Some(holding) = &mut self.held.last {
            holding.sums = sums;
        }
        Ok(())
    }

    fn check(&mut self, reader: &Reader, observer: &dyn Observer) -> Result<Option<Proof>> {
        let Some(Holding { record, sums, .. }) = self.held.to_prove()? else { return Ok(None) };
        let of_taken = |(shard, sums): (&ShardRecord, _)| sums_of_taken(&reader.choice, &shard.table, sums);
        let known: Option<Vec<StateSums>> = record.shards.iter().zip(sums).map(of_taken).collect();
        let Some(sums) = known.filter(|known| known.len() == record.shards.len()) else {
            let done = self.verify(reader, observer);
            return self.note(done, Proof::Hashed).map(Some);
        };
        let checking = hashing(observer, &self.memories);
        let done = sums.iter().zip(&self.memories).try_for_each(|(sums, memory)| sums.check(memory, &checking));
        drop(checking);
        self.note(done, Proof::Memory).map(Some)
    }

    /// What has come of proving all of the memory.
    fn note(&mut self, done: Result<()>, proof: Proof) -> Result<Proof> {
        match &done {
            Ok(()) => self.held.proven(proof),
            Err(error) if error.rule().is_some() && Self::changes_in_place() => self.held.fault = Some(Fallback::Check),
            Err(_) => {}
        }
        done.map(|()| proof)
    }

    /// As [`make`](Destination::make), for memory that is changed in place.
    fn make_in_place(
        &self,
        reader: &Reader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Made<M>, Failure> {
        let wanted = reader.choice.shards(plan.version, plan.shards.len())?;
        if wanted.len() != self.memories.len() {
            return Err(Error::usage(format!(
                "version {} has {} shards that are selected, but memory for {} was given",
                plan.version,
                wanted.len(),
                self.memories.len()
            ))
            .into());
        }
        let is_whole = is_whole(plan);
        let ((sets, sums), shards, links) = reader.follow(plan, self, observer, received, |following, pushed| {
            following.begin_in_place(pushed, &self.memories)?;
            let sums: Vec<_> = pushed.iter().map(|shard| shard.replay.sums().cloned().unwrap_or_default()).collect();
            if !is_whole {
                return Ok((following.take_in_place(pushed, &self.memories, self.budget)?, sums));
            }
            if self.held.proves_before() {
                following.prove(pushed)?;
            }
            Ok((Vec::new(), sums))
        })?;
        let load = if is_whole {
            let nothing = wanted.iter().map(|_| (StateTable::new(Vec::new(), Vec::new()), None));
            Some(Opened::new(nothing, links.into_files()?, &reader.choice, &reader.limits)?)
        } else {
            None
        };
        received.written += sets.iter().map(PatchSet::bytes).sum::<u64>();
        let record = reader.record(plan, self.held.record(), false, shards);
        // The digests of an untrusted document's route prove the state, but not its sums.
        let sums = if is_trusted(plan) { sums } else { vec![StateSums::default(); sums.len()] };
        let proof = if is_whole { Proof::Hashed } else { Proof::ChangedLanes };
        Ok(Made { holding: Holding { record, sums, proof }, memories: None, sets, load })
    }
}

impl<M: StateMemory + Send> Place for Memory<M> {
    type Prepared = PreparedPatches<M>;
    type At = ();

    fn held(&self) -> Option<HeldVersion<()>> {
        self.held.public()
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
        let base = self.held.base();
        let reached = reader.prepare(version, self.held.record(), self, observer)?;
        let Reached::Made(made, preparation) = reached else { return Ok(None) };
        let Made { holding, memories, mut sets, load } = made;
        if memories.is_none() && load.is_none() {
            fit(&mut sets, &mut self.memories)?;
        }
        Ok(Some(PreparedPatches {
            public: HeldVersion::new(&holding.record, (), holding.proof),
            base,
            sets,
            load,
            other: Side { holding: Some(holding), memories },
            is_applied: false,
            preparation,
        }))
    }

    fn switch(&mut self, mut prepared: PreparedPatches<M>, observer: &dyn Observer) -> Result<Switched<()>> {
        self.apply(&mut prepared, observer)
    }

    fn check_if_due(&mut self, reader: &Reader, every: Duration, observer: &dyn Observer) -> Option<Result<Proof>> {
        let is_due = Self::changes_in_place() && self.held.is_due(every);
        if is_due { self.check(reader, observer).transpose() } else { None }
    }
}

/// What comes of a plan, before it is known that it fits.
pub(crate) struct Made<M> {
    holding: Holding,
    /// Memory without tensors, if the version has other shards than the one held.
    memories: Option<Vec<M>>,
    sets: Vec<PatchSet>,
    /// If the version is loaded as a whole.
    load: Option<Opened>,
}

impl<M: StateMemory + Send> Destination for Memory<M> {
    type Made = Made<M>;

    fn held(&self) -> Option<&Record> {
        self.held.holding().map(|holding| &holding.record)
    }

    fn shards(&self, plan: &Plan) -> Result<Vec<Shard<'_>>> {
        let Some(Holding { record, sums, .. }) = self.held.holding() else { return Ok(Vec::new()) };
        let mut sums = sums.iter().cloned();
        let shards = record.shards.iter().zip(&self.memories).map(|(record, memory)| {
            // Without sums, pieces are read as a whole and proven by their digests.
            let sums = sums.next().map(|sums| if is_trusted(plan) { sums } else { StateSums::default() });
            Shard::held(record, Box::new(View::joined(slice::from_ref(memory))), sums)
        });
        shards.collect()
    }

    fn lacks_files(&self, _plan: &Plan) -> bool {
        false
    }

    fn is_in_place(&self) -> bool {
        Self::changes_in_place()
    }

    fn fault(&self) -> Option<Fallback> {
        self.held.fault
    }

    fn make(
        &self,
        reader: &Reader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Made<M>, Failure> {
        if Self::changes_in_place() {
            return self.make_in_place(reader, plan, observer, received);
        }
        let wanted = reader.choice.shards(plan.version, plan.shards.len())?;
        let known = self.held.record();
        let is_same = wanted.iter().eq(known.into_iter().flat_map(|record| &record.shards).map(|shard| &shard.number));
        let memories: Option<Vec<M>> = if is_same { None } else { wanted.iter().map(|_| M::nothing()).collect() };
        let over = memories.as_ref().unwrap_or(&self.memories);
        let budget = if known.is_some() { self.budget } else { u64::MAX };
        let patch =
            reader.follow(plan, self, observer, received, |following, pushed| following.patch(pushed, over, budget));
        let (sets, shards, _) = patch?;
        received.written += sets.iter().map(PatchSet::bytes).sum::<u64>();
        let record = reader.record(plan, known, false, shards);
        let holding = Holding { record, sums: Vec::new(), proof: Proof::Hashed };
        Ok(Made { holding, memories, sets, load: None })
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
