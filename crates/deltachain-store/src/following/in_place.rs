//! A follower for memory that somebody else has: of this process, of a device, or of several processes together. Lanes
//! are proven by sums and written where they are; what cannot be taken so is loaded as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use deltachain::chain::{FileReference, Plan, check_held};
use deltachain::memory::{Alone, Changes, Peers, PlacedMemory, Proof, check_sums, fill};
use deltachain::sums::Sums;
use deltachain::tensor::{Digest, MemoryState, State, TensorInfo, total_bytes};
use deltachain::{Error, ErrorClass, FileSource, Replay, Result, StateSums, StateTable};

use crate::access::store::Store;
use crate::directory::record::Record;
use crate::directory::scratch::Scratch;
use crate::fallback::Fallback;
use crate::fetching::links::{Failure, Received};
use crate::following::follower::{Follower, FollowerOptions, sealed::Place};
use crate::following::found::{found, sums_of_taken};
use crate::following::held_memory::{HeldMemory, Holding};
use crate::following::opened::Opened;
use crate::following::reach::{Destination, Reached, Reader, is_trusted, is_whole};
use crate::following::shard::Shard;
use crate::following::switched::{HeldVersion, Preparation, Switched};
use crate::following::view::View;
use crate::observer::{InPhase, Observer, Phase};

/// What changes may take at least, whatever the size of the model.
const LEAST_BUDGET: u64 = 1 << 26;

/// Memory of the caller that a [`Follower`] changes *in place* (SPEC section 24): [of this
/// process](deltachain::memory::LentState), or whatever else is [placed memory](PlacedMemory).
///
/// A version is prepared and proven while the memory stays as it is. Of a version with links of the profile local only
/// the lanes that change are read, proven by sums, and compared once more when they are written. So the rest of the
/// memory is not proven; [`check`](Follower::check) does that, and [`Follower::follow`] from time to time. Links
/// without sums are taken by digests, if the processor can read the memory. What cannot be taken in place, or would
/// take more memory than the model, is loaded as a whole, streamed into the memory, and so is the first version:
/// [`Switched::fallback`] says why. While a whole version is loaded, and if that fails, the memory is
/// [torn](Follower::is_torn), until one has been loaded.
///
/// Nobody but the follower may write to the memory. If somebody does, the next version that changes such lanes notices
/// it, or the next check. Nothing records which version the memory holds: another process begins from nothing.
///
/// A version that is held in place is no base for a publisher: give it files, or the memory as a state, which it
/// hashes.
///
/// If several processes hold the memory together, each has a follower [for a share](Follower::for_share) of it, and all
/// make the same calls: they prepare a version, find [that it is the same](PreparedInPlace::agreement),
/// [prove](Follower::prove) it, and [apply](Follower::apply) it.
#[derive(Debug)]
pub struct InPlace<M> {
    held: HeldMemory,
    memory: Option<M>,
    /// Whether versions are proven as soon as they are fetched.
    proves: bool,
    /// Counts what happens to the memory: what was prepared before is of no use then.
    epoch: u64,
    /// The cache, if the caller has given none. Removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// A version whose files have been fetched and hashed. It is ready if it is loaded as a whole, or if its changes have
/// been proven.
#[derive(Debug)]
pub struct PreparedInPlace<M: PlacedMemory> {
    epoch: u64,
    base: Option<u64>,
    record: Record,
    is_whole: bool,
    links: Opened,
    files: Vec<FileReference>,
    /// Of the version; of one that is loaded as a whole, some may become known while tensors are built.
    sums: Mutex<Vec<StateSums>>,
    changes: Option<Changes<M::Staged>>,
    is_applied: AtomicBool,
    preparation: Preparation,
}

impl<M: PlacedMemory> PreparedInPlace<M> {
    /// The version.
    pub fn version(&self) -> u64 {
        self.record.version
    }

    /// State digest of the version.
    pub fn state(&self) -> Digest {
        self.record.state
    }

    /// Digest of its commit's bytes.
    pub fn commit(&self) -> Digest {
        self.record.commit
    }

    /// Its commit's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.record.metadata
    }

    /// Whether the version is loaded as a whole: the first one, one to which no path can be taken in place, and one
    /// after a failure.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The changes that have been proven, unless it is loaded as a whole.
    pub fn changes(&self) -> Option<&Changes<M::Staged>> {
        self.changes.as_ref()
    }

    /// The tensors of the version that are selected, with their digests, ascending by name: what the memory must have.
    pub fn tensors(&self) -> Vec<(&TensorInfo, Digest)> {
        let tables = self.record.shards.iter().map(|shard| &shard.table);
        let rows = tables.flat_map(|table| table.tensors.iter().zip(table.digests.tensors.iter().copied()));
        let mut rows: Vec<_> = rows.filter(|(info, _)| self.links.takes(info.name())).collect();
        rows.sort_unstable_by_key(|(info, _)| info.name());
        rows
    }

    /// What processes that hold the memory together compare before they go on: equal if they work from the same tables
    /// and sums with the same links (R-SUM-11).
    pub fn agreement(&self) -> Digest {
        let mut bytes = vec![u8::from(self.is_whole)];
        bytes.extend_from_slice(&self.record.commit.0);
        for (table, sums) in self.links.bases() {
            bytes.extend_from_slice(&table.digests.state.0);
            for pieces in sums.into_iter().flat_map(|sums| &sums.tensors) {
                let pieces = pieces.as_deref();
                bytes.extend_from_slice(&pieces.map_or(u64::MAX, |pieces| pieces.len() as u64).to_le_bytes());
                let numbers = pieces.into_iter().flatten().flat_map(|sums| sums.numbers());
                bytes.extend(numbers.flat_map(u32::to_le_bytes));
            }
        }
        bytes.extend(self.files.iter().flat_map(|file| file.digest.0));
        Digest::of_bytes(&bytes)
    }

    /// Builds all tensors of a version that is loaded as a whole, in one pass, and hands over each with its data when
    /// it has been proven. They come in the order of the links. For a caller that loads them in its own way.
    ///
    /// # Errors
    /// USAGE if the version is not loaded as a whole; as for [`Replay::pieces`]; those of `take`.
    pub fn each_tensor(
        &self,
        take: &mut (dyn FnMut(&TensorInfo, Vec<u8>) -> Result<()> + Send),
        observer: &dyn Observer,
    ) -> Result<()> {
        for shard in 0..self.links.count() {
            let mut open: BTreeMap<usize, OpenTensor> = BTreeMap::new();
            self.each_piece(shard, observer, &mut |tensors, (number, piece), bytes| {
                let info = &tensors[number];
                let count = usize::try_from(info.pieces()).unwrap_or(usize::MAX);
                let (pieces, left) = open.entry(number).or_insert_with(|| (vec![None; count], count));
                pieces[usize::try_from(piece).unwrap_or(usize::MAX)] = Some(bytes);
                *left -= 1;
                if *left > 0 {
                    return Ok(());
                }
                let pieces = open.remove(&number).map(|(pieces, _)| pieces).unwrap_or_default();
                let mut pieces = pieces.into_iter().flatten();
                let mut data = pieces.next().unwrap_or_default();
                pieces.for_each(|piece| data.extend_from_slice(&piece));
                take(info, data)
            })?;
            // Those without data have no pieces.
            let table = &self.record.shards[shard].table;
            let empty = table.tensors.iter().filter(|info| info.bytes() == 0 && self.links.takes(info.name()));
            empty.into_iter().try_for_each(|info| take(info, Vec::new()))?;
        }
        Ok(())
    }

    /// Builds the pieces of the tensors of a shard that are taken; their sums are known then.
    fn each_piece(&self, shard: usize, observer: &dyn Observer, take: TakePiece<'_>) -> Result<()> {
        if !self.is_whole {
            return Err(Error::usage("the version is not loaded as a whole"));
        }
        let building = InPhase::begin(observer, Phase::Build, 0);
        self.links.replay(shard, |replay| {
            let tensors = replay.tensors();
            observer.begin(Phase::Build, total_bytes(&tensors));
            let table = &self.record.shards[shard].table;
            // The numbers in the table, of those whose sums are not known.
            let unknown: Vec<Option<usize>> = {
                let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
                let sums = &mut sums[shard].tensors;
                sums.resize(table.tensors.len(), None);
                let find = |name: &str| table.tensors.binary_search_by(|info| info.name().cmp(name)).ok();
                tensors.iter().map(|info| find(info.name()).filter(|&number| sums[number].is_none())).collect()
            };
            let mut found: BTreeMap<usize, Vec<Sums>> = BTreeMap::new();
            let mut piece = |number: usize, piece: u64, bytes: Vec<u8>| {
                if let Some(unknown) = unknown[number] {
                    // Of bytes that have just been hashed (R-SUM-02).
                    let own = found.entry(unknown).or_default();
                    let place = usize::try_from(piece).unwrap_or(usize::MAX);
                    own.resize(own.len().max(place + 1), Sums::ZERO);
                    own[place] = Sums::of_bytes(0, &bytes);
                }
                take(&tensors, (number, piece), bytes)
            };
            replay.pieces(&MemoryState::new(), &mut piece, &building)?;
            found
                .extend(unknown.iter().flatten().filter(|&&n| table.tensors[n].bytes() == 0).map(|&n| (n, Vec::new())));
            let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            found.into_iter().for_each(|(number, own)| sums[shard].tensors[number] = Some(own));
            Ok(())
        })
    }
}

impl<M: PlacedMemory> Follower<InPlace<M>> {
    /// Begins with nothing, in memory of the caller, which must have the tensors that the chain's versions have.
    /// Whatever it holds is overwritten by the first version that is applied.
    ///
    /// # Errors
    /// USAGE if no shard or tensor is selected or a pattern is not valid; IO.
    pub fn into_memory(store: Store, memory: M, options: FollowerOptions) -> Result<Self> {
        let mut follower = Self::for_share(store, options)?;
        (follower.place.memory, follower.place.proves) = (Some(memory), true);
        Ok(follower)
    }

    /// Begins with nothing, in memory that is [given](Self::bind) when the tensors of a version are known, and of which
    /// other processes may hold shares. A version is not proven when it is prepared.
    ///
    /// # Errors
    /// As for [`into_memory`](Self::into_memory).
    pub fn for_share(store: Store, options: FollowerOptions) -> Result<Self> {
        let (reader, scratch) = options.reader_for_memory(store)?;
        let (held, memory) = (HeldMemory::default(), None);
        Ok(Self { reader, place: InPlace { held, memory, proves: false, epoch: 0, _scratch: scratch } })
    }

    /// The memory, from now on. The caller says whether it [lies elsewhere](Self::displaced) than before.
    pub fn bind(&mut self, memory: M) {
        self.place.memory = Some(memory);
    }

    /// The memory, if it is known.
    pub fn memory(&self) -> Option<&M> {
        self.place.memory.as_ref()
    }

    /// The table of each held shard, with the tensors that are not selected.
    pub fn tables(&self) -> impl Iterator<Item = &StateTable> {
        self.place.held.holding().into_iter().flat_map(|held| held.record.shards.iter().map(|shard| &shard.table))
    }

    /// The sums of each held shard, as far as they are known.
    pub fn sums(&self) -> &[StateSums] {
        self.place.held.holding().map_or(&[], |holding| &holding.sums)
    }

    /// Whether the memory may hold parts of two versions: it is being written, or that has failed, or it has been
    /// [lost](Self::lost).
    pub fn is_torn(&self) -> bool {
        self.place.is_torn()
    }

    /// Nobody knows what the memory holds: it counts as torn, and the next version is loaded as a whole.
    pub fn lost(&mut self) {
        self.place.doubt(Fallback::Torn);
    }

    /// The memory lies elsewhere than before, or it is not known where: it has to be [bound](Self::bind) again, and the
    /// next version is loaded as a whole.
    pub fn displaced(&mut self) {
        self.place.memory = None;
        // Otherwise that is so already.
        if self.place.held.holding().is_some() {
            self.place.doubt(Fallback::Place);
        }
    }

    /// There was no room for the changes of a version: the next one is loaded as a whole.
    pub fn exceeded(&mut self) {
        // Whatever else is known says more.
        if self.place.held.fault.is_none() {
            self.place.doubt(Fallback::Budget);
        }
    }

    /// Proves the changes of a prepared version, unless it is loaded as a whole: reads the lanes that links code, and
    /// compares the sums of their old and new values. Nothing is written.
    ///
    /// # Errors
    /// USAGE if the memory is not known, does not have the version's tensors, or is not what it was when this was
    /// prepared. If the memory does not hold what it should, if lanes are not enough, or if the changes take too much
    /// memory: why; the next version is then loaded as a whole. Those of the memory, of other processes, and of the
    /// observer.
    pub fn prove(
        &mut self,
        prepared: &mut PreparedInPlace<M>,
        peers: &dyn Peers,
        observer: &dyn Observer,
    ) -> Result<()> {
        self.place.prove(prepared, peers, observer)
    }

    /// Makes the memory hold the prepared version: values are exchanged, or the whole version is loaded, which the
    /// observer sees as [building](Phase::Build), and compared with its sums. All processes that hold the memory do so,
    /// or all go back.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared, or it has not been proven. R-APP-01
    /// (`WRONG_BASE`) if somebody has written to the memory since. Those of the memory and of other processes. Nothing
    /// has changed then, or the memory [is torn](Self::is_torn), as it is if loading a whole version fails: with rules
    /// of links, IO, or the observer's error. R-SUM-04 if what has been loaded is not there; it holds no version then.
    /// If the observer ends just this comparison, it holds the version.
    pub fn apply(
        &mut self,
        prepared: &mut PreparedInPlace<M>,
        peers: &dyn Peers,
        observer: &dyn Observer,
    ) -> Result<Switched<()>> {
        self.place.apply(&self.reader, prepared, peers, observer)
    }

    /// The caller begins to load a version as a whole in its own way: until it has [finished](Self::finish), the memory
    /// is torn.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared.
    pub fn begin(&mut self, prepared: &PreparedInPlace<M>) -> Result<()> {
        self.place.begin(prepared)
    }

    /// The memory holds the version from now on; of a whole one nothing is proven.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared, or nobody has [begun](Self::begin).
    pub fn finish(&mut self, prepared: &PreparedInPlace<M>) -> Result<Switched<()>> {
        self.place.finish(prepared)
    }

    /// Compares the sums of all of the memory with those of the version held, which takes about as long as copying it.
    /// Where the sums are not known, it is hashed. Says how far it is proven; `None` if no version has been held yet.
    ///
    /// # Errors
    /// R-SUM-04 (`STATE_MISMATCH`) if something has changed the memory: it holds no version then, and the next one is
    /// loaded as a whole. UNSUPPORTED if sums are not known, and the processor cannot read the memory. USAGE if it
    /// holds none already. What the observer wants it to end with.
    pub fn check(&mut self, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        self.place.check(&self.reader, peers, observer)
    }

    /// As [`check`](Self::check), for a caller that has [loaded](Self::finish) the version in its own way: if the
    /// memory is something else, the version counts as held all the same.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn compare(&mut self, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        self.place.compare(&self.reader, peers, observer)
    }

    /// Hashes the memory and compares it with what the version held is.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if somebody has written to it: it holds no version then. USAGE if it holds none already,
    /// or if the processor cannot read it. What the observer wants it to end with.
    pub fn verify(&mut self, observer: &dyn Observer) -> Result<()> {
        let done = self.place.verify(&self.reader, observer);
        self.place.note(done).map(drop)
    }
}

/// The pieces of a tensor that are there, and how many are missing.
type OpenTensor = (Vec<Option<Vec<u8>>>, usize);

/// Takes a piece: the tensors that are built, its tensor's number among them and its own, and its bytes.
type TakePiece<'a> = &'a mut (dyn FnMut(&[TensorInfo], (usize, u64), Vec<u8>) -> Result<()> + Send);

/// What memory is compared with.
enum Expected {
    /// The sums of each tensor, by its number in the memory.
    Sums(Vec<(usize, Vec<Sums>)>),
    /// Sums are not known, but the memory can be hashed.
    Digests,
}

fn unknown() -> Error {
    Error::usage("it is not known where the tensors are")
}

impl<M: PlacedMemory> InPlace<M> {
    fn check_epoch(&self, prepared: &PreparedInPlace<M>) -> Result<()> {
        if prepared.epoch == self.epoch {
            return Ok(());
        }
        Err(Error::usage("the memory is not at the version that this was prepared for"))
    }

    fn is_torn(&self) -> bool {
        self.held.fault == Some(Fallback::Torn)
    }

    fn doubt(&mut self, why: Fallback) {
        self.epoch += 1;
        self.held.doubt(why);
    }

    /// The memory must have the tensors of a version.
    fn check_tensors(&self, prepared: &PreparedInPlace<M>) -> Result<()> {
        let memory = self.memory.as_ref().ok_or_else(unknown)?;
        let room = |info: &TensorInfo| (info.name().to_owned(), info.dtype(), info.bytes());
        let tensors = prepared.tensors();
        if memory.places().tensors().iter().map(room).eq(tensors.iter().map(|(info, _)| room(info))) {
            let digests: BTreeMap<&str, Digest> = tensors.iter().map(|(info, digest)| (info.name(), *digest)).collect();
            memory.places().check_ties(|name| digests.get(name))?;
            // Found out now, and not when they have been written.
            let infos: Vec<TensorInfo> = tensors.into_iter().map(|(info, _)| info.clone()).collect();
            let is_same = memory.places().tensors() == infos;
            return if is_same { Ok(()) } else { memory.places().clone().describe(&infos) };
        }
        Err(Error::usage(format!(
            "the caller-provided memory does not have the tensors of version {}, by name, dtype and length; it cannot be \
             resized",
            prepared.version()
        )))
    }

    fn prove(&mut self, prepared: &mut PreparedInPlace<M>, peers: &dyn Peers, observer: &dyn Observer) -> Result<()> {
        let ready = self.check_epoch(prepared).and_then(|()| self.check_tensors(prepared));
        if prepared.is_whole || prepared.changes.is_some() {
            return ready;
        }
        if let Err(error) = ready {
            // The others do not wait for this one.
            peers.add(&mut [], Some(&error)).ok();
            return Err(error);
        }
        let memory = self.memory.as_mut().ok_or_else(unknown)?;
        let began = Instant::now();
        let building = InPhase::begin(observer, Phase::Build, 0);
        let budget = total_bytes(memory.places().tensors()).max(LEAST_BUDGET);
        let mut changes = Changes::new(budget);
        let proven = prepared.links.bases().enumerate().try_for_each(|(shard, (base, _))| {
            prepared.links.replay(shard, |replay| {
                let work = replay.work();
                observer.begin(Phase::Build, work);
                let done = replay.in_place(memory, &mut changes, peers, &building);
                let is_refused = |error: &Error| (error.class(), error.rule()) == (ErrorClass::Unsupported, None);
                if !done.as_ref().is_err_and(is_refused) {
                    return done;
                }
                // All processes are refused, and all tell each other once more.
                let done = done.or_else(|refused| {
                    if memory.state().is_none() {
                        return Err(refused);
                    }
                    observer.begin(Phase::Build, work);
                    by_digests((replay, base), memory, &mut changes, &building)
                });
                let added = peers.add(&mut [], done.as_ref().err());
                done.and(added)
            })
        });
        prepared.preparation.times.build += began.elapsed();
        // That it is to end says nothing about the memory.
        if let Err(error) = proven {
            // A link that is wrong is on no other path in place.
            let why = Fallback::of(&error).or_else(|| error.rule().map(|_| Fallback::NoRoute));
            if let Some(why) = why.filter(|_| observer.advance(Phase::Build, 0).is_ok()) {
                self.doubt(why);
            }
            return Err(error);
        }
        prepared.preparation.received.written += changes.bytes();
        prepared.changes = Some(changes);
        Ok(())
    }

    fn apply(
        &mut self,
        reader: &Reader,
        prepared: &mut PreparedInPlace<M>,
        peers: &dyn Peers,
        observer: &dyn Observer,
    ) -> Result<Switched<()>> {
        let began = Instant::now();
        if let Err(error) = self.check_tensors(prepared).and_then(|()| self.begin(prepared)) {
            // Nothing changes here. The others go back, and do not wait for this one.
            if peers.vote(Some(&error)).is_ok() && !prepared.is_whole {
                peers.vote(None).ok();
            }
            return Err(error);
        }
        let memory = self.memory.as_mut().ok_or_else(unknown)?;
        let done = match &mut prepared.changes {
            Some(changes) => changes.write(memory),
            None => self.load(prepared, observer),
        };
        // If the others cannot be asked, it stays torn.
        let failed = peers.vote(done.as_ref().err())?;
        if let Some(error) = done.err().or(failed) {
            return Err(self.go_back(prepared, peers, error));
        }
        prepared.preparation.times.switch = began.elapsed();
        let switched = self.finish(prepared)?;
        if !prepared.is_whole {
            return Ok(switched);
        }
        let proof = self.check(reader, peers, observer)?.unwrap_or(switched.proof);
        Ok(Switched { proof, ..switched })
    }

    fn begin(&mut self, prepared: &PreparedInPlace<M>) -> Result<()> {
        self.check_epoch(prepared)?;
        if prepared.is_applied.load(Ordering::Relaxed) || !prepared.is_whole && prepared.changes.is_none() {
            return Err(Error::usage("the version has not been proven, or it has been applied"));
        }
        // What was proven before some of it may have been written is of no use.
        if let Some(fault) = self.held.fault.filter(|_| !prepared.is_whole) {
            return Err(Error::usage(format!("the memory holds no version: {fault}")));
        }
        self.held.fault = Some(Fallback::Torn);
        Ok(())
    }

    fn finish(&mut self, prepared: &PreparedInPlace<M>) -> Result<Switched<()>> {
        self.check_epoch(prepared)?;
        if !self.is_torn() {
            return Err(Error::usage("nobody has begun to load the version"));
        }
        if let Some(memory) = &mut self.memory {
            let tensors: Vec<TensorInfo> = prepared.tensors().into_iter().map(|(info, _)| info.clone()).collect();
            memory.describe(&tensors)?;
        }
        let record = prepared.record.clone();
        let public = HeldVersion::new(&record, (), Proof::ChangedLanes);
        let sums = prepared.sums.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.held.hold(Some(Holding { record, sums, proof: Proof::ChangedLanes }));
        self.epoch += 1;
        prepared.is_applied.store(true, Ordering::Relaxed);
        Ok(Switched::new(prepared.base, public, prepared.preparation.clone()))
    }

    /// Streams a whole version into the memory.
    fn load(&mut self, prepared: &PreparedInPlace<M>, observer: &dyn Observer) -> Result<()> {
        let memory = self.memory.as_mut().ok_or_else(unknown)?;
        (0..prepared.links.count()).try_for_each(|shard| {
            let loaded = prepared.each_piece(shard, observer, &mut |tensors, (number, piece), bytes| {
                let missing = || Error::usage("the memory does not have the tensor").of_tensor(tensors[number].name());
                let number = memory.places().find(tensors[number].name()).ok_or_else(missing)?;
                fill(memory, number, piece, &bytes)
            });
            // Bad links are told from good ones before the next attempt.
            self.held.links_failed |= loaded.as_ref().is_err_and(|error| error.rule().is_some());
            loaded
        })
    }

    /// Brings back what the memory held, if that is possible.
    fn go_back(&mut self, prepared: &mut PreparedInPlace<M>, peers: &dyn Peers, error: Error) -> Error {
        let (Some(changes), Some(memory)) = (&mut prepared.changes, &mut self.memory) else { return error };
        let undone = changes.undo(memory);
        let voted = peers.vote(undone.as_ref().err());
        if undone.is_ok() && voted.is_ok_and(|failed| failed.is_none()) {
            // If somebody has written to the memory, it is no version.
            let is_other = matches!(error.class(), ErrorClass::WrongBase | ErrorClass::StateMismatch);
            self.held.fault = is_other.then_some(Fallback::Proof);
        }
        error
    }

    fn check(&mut self, reader: &Reader, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        let done = self.compare(reader, peers, observer);
        self.note(done)
    }

    /// Compares all of the memory with the version held, and notes how far it is proven.
    fn compare(&mut self, reader: &Reader, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        let expected = match self.expected(reader) {
            Ok(None) => return Ok(None),
            Ok(Some(expected)) => expected,
            Err(error) => {
                // The others do not wait for this one.
                peers.add(&mut [], Some(&error)).ok();
                return Err(error);
            }
        };
        let Expected::Sums(all) = expected else {
            let done = self.verify(reader, observer);
            let added = peers.add(&mut [], done.as_ref().err());
            return done.and_then(|proof| added.map(|()| proof));
        };
        let memory = self.memory.as_mut().ok_or_else(unknown)?;
        let all: Vec<(usize, &[Sums])> = all.iter().map(|(number, sums)| (*number, sums.as_slice())).collect();
        let checking = InPhase::begin(observer, Phase::Hash, total_bytes(memory.places().tensors()));
        check_sums(memory, &all, peers, &checking)?;
        drop(checking);
        self.held.proven(Proof::Memory);
        Ok(Some(Proof::Memory))
    }

    /// What the memory has to hold; `None` if nothing has been held yet.
    fn expected(&self, reader: &Reader) -> Result<Option<Expected>> {
        let Some(Holding { record, sums, .. }) = self.held.to_prove()? else { return Ok(None) };
        let memory = self.memory.as_ref().ok_or_else(unknown)?;
        let mut all = Vec::new();
        for (shard, sums) in record.shards.iter().zip(sums) {
            let Some(known) = sums_of_taken(&reader.choice, &shard.table, sums) else {
                return if memory.state().is_some() {
                    Ok(Some(Expected::Digests))
                } else {
                    Err(Error::refused(ErrorClass::Unsupported, "the sums of a tensor are not known"))
                };
            };
            let taken = shard.table.tensors.iter().filter(|info| reader.choice.takes(info.name()));
            for (info, sums) in taken.zip(known.tensors) {
                let number = memory.places().find(info.name()).ok_or_else(unknown)?;
                all.push((number, sums.unwrap_or_default()));
            }
        }
        Ok(Some(Expected::Sums(all)))
    }

    /// Hashes the memory; its sums are known then.
    fn verify(&mut self, reader: &Reader, observer: &dyn Observer) -> Result<Option<Proof>> {
        let Some(Holding { record, .. }) = self.held.to_prove()? else { return Ok(None) };
        let memory = self.memory.as_ref().ok_or_else(unknown)?;
        let state = memory.state().ok_or_else(|| {
            Error::usage("no process can read all of the tensors, so they cannot be hashed: compare their sums")
        })?;
        let hashing = InPhase::begin(observer, Phase::Hash, total_bytes(state.tensors()));
        let expected = record.states();
        let mut sums = Vec::new();
        for shard in &record.shards {
            let memory = part(state, &shard.table.tensors, |name: &str| reader.choice.takes(name))?;
            let (now, own) = found(&reader.choice, &memory, Some(&shard.table), true, &hashing)?;
            check_held(&expected, record.of, [(shard.number, now.digests.state)])?;
            sums.extend(own);
        }
        if let Some(holding) = &mut self.held.last {
            holding.sums = sums;
        }
        self.held.proven(Proof::Hashed);
        Ok(Some(Proof::Hashed))
    }

    /// Memory that has been found to be something else holds no version.
    fn note(&mut self, done: Result<Option<Proof>>) -> Result<Option<Proof>> {
        let is_other = |error: &Error| matches!(error.class(), ErrorClass::WrongBase | ErrorClass::StateMismatch);
        if done.as_ref().is_err_and(is_other) {
            self.doubt(Fallback::Check);
        }
        done
    }
}

/// The changes of a shard, by digests: each piece that changes is built and hashed beside the memory.
fn by_digests<M: PlacedMemory>(
    (replay, base): (&Replay<'_, FileSource>, &StateTable),
    memory: &mut M,
    changes: &mut Changes<M::Staged>,
    building: &InPhase<'_>,
) -> Result<()> {
    let state = memory.state().ok_or_else(unknown)?;
    let held = part(state, &base.tensors, |name| state.find(name).is_some())?;
    let set = replay.patches(&held, &held, u64::MAX, building)?;
    changes.add_set(memory, &set)
}

/// Those tensors of a state that are wanted.
fn part<'a>(
    state: &'a dyn State,
    tensors: &[TensorInfo],
    takes: impl Fn(&str) -> bool,
) -> Result<View<'a, dyn State + 'a>> {
    let taken = tensors.iter().filter(|info| takes(info.name()));
    let rows = taken.map(|info| {
        let number = state.find(info.name()).ok_or_else(unknown)?;
        Ok((info.clone(), state, number))
    });
    Ok(View::of(rows.collect::<Result<Vec<_>>>()?))
}

impl<M: PlacedMemory> Place for InPlace<M> {
    type Prepared = PreparedInPlace<M>;
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
    ) -> Result<Option<PreparedInPlace<M>>> {
        loop {
            let base = self.held.base().map(|(version, _)| version);
            let Reached::Made(made, preparation) = reader.prepare(version, self.held.record(), self, observer)? else {
                return Ok(None);
            };
            let mut prepared = PreparedInPlace { base, preparation, ..made };
            if !self.proves {
                return Ok(Some(prepared));
            }
            self.check_tensors(&prepared)?;
            match self.prove(&mut prepared, &Alone, observer) {
                Ok(()) => return Ok(Some(prepared)),
                // It is loaded as a whole then.
                Err(_) if self.held.fault.is_some() && !prepared.is_whole => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn switch(
        &mut self,
        reader: &Reader,
        mut prepared: PreparedInPlace<M>,
        observer: &dyn Observer,
    ) -> Result<Switched<()>> {
        self.apply(reader, &mut prepared, &Alone, observer)
    }

    fn check_if_due(&mut self, reader: &Reader, every: Duration, observer: &dyn Observer) -> Option<Result<Proof>> {
        if self.held.is_due(every) { self.check(reader, &Alone, observer).transpose() } else { None }
    }
}

impl<M: PlacedMemory> Destination for InPlace<M> {
    type Made = PreparedInPlace<M>;

    fn held(&self) -> Option<&Record> {
        self.held.base_in_place().map(|holding| &holding.record)
    }

    fn shards(&self, plan: &Plan) -> Result<Vec<Shard<'_>>> {
        let Some(Holding { record, sums, .. }) = self.held.base_in_place() else { return Ok(Vec::new()) };
        let shards = record.shards.iter().zip(sums).map(|(record, sums)| {
            // The sums of routes that no commit names are not trusted (R-SUM-08). Nothing is read of the memory here.
            let sums = if is_trusted(plan) { sums.clone() } else { StateSums::default() };
            Shard::held(record, Box::new(MemoryState::new()), Some(sums))
        });
        shards.collect()
    }

    fn lacks_files(&self, _plan: &Plan) -> bool {
        false
    }

    fn is_in_place(&self) -> bool {
        true
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
    ) -> Result<PreparedInPlace<M>, Failure> {
        let is_whole = is_whole(plan);
        let ((bases, sums), shards, links) = reader.follow(plan, self, observer, received, |following, pushed| {
            following.begin(pushed)?;
            if is_whole && self.held.proves_before() {
                following.prove(pushed)?;
            }
            let bases = pushed
                .iter()
                .map(|pushed| (pushed.shard.table.clone(), pushed.shard.sums.clone().filter(|_| !is_whole)));
            // Those of an untrusted path are taken from its tensors, when these have been hashed.
            let sums = |replay: Option<&StateSums>| replay.filter(|_| is_trusted(plan)).cloned().unwrap_or_default();
            Ok((bases.collect::<Vec<_>>(), pushed.iter().map(|pushed| sums(pushed.replay.sums())).collect()))
        })?;
        let links = Opened::new(bases, links.into_files()?, &reader.choice, &reader.limits)?;
        let wanted: BTreeSet<usize> = reader.choice.shards(plan.version, plan.shards.len())?.into_iter().collect();
        let files = plan.hops.iter().flat_map(|hop| wanted.iter().filter_map(|&shard| hop.files.get(shard).copied()));
        Ok(PreparedInPlace {
            epoch: self.epoch,
            base: None,
            record: reader.record(plan, self.held.record(), false, shards),
            is_whole,
            links,
            files: files.collect(),
            sums: Mutex::new(sums),
            changes: None,
            is_applied: AtomicBool::new(false),
            preparation: Preparation::default(),
        })
    }
}
