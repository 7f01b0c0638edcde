//! A follower of caller-owned memory: of this process, of a device, or of several processes
//! together. Lanes are proven by sums and written in place; a version that cannot be taken in this
//! way is loaded as a whole.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use deltachain::chain::{FileReference, Plan};
use deltachain::memory::{Changes, Peers, PlacedMemory, Places, Proof, check_sums, fill};
use deltachain::sums::Sums;
use deltachain::tensor::{Digest, MemoryState, State, TensorInfo, find, total_bytes};
use deltachain::{Error, ErrorClass, FileSource, Replay, Result, StateSums, StateTable};

use crate::access::store::Store;
use crate::directory::held::HeldVersion;
use crate::directory::scratch::Scratch;
use crate::fallback::Fallback;
use crate::fetching::links::{Blame, FetchTotals};
use crate::following::follower::{Follower, FollowerOptions};
use crate::following::found::{check_found, sums_of_all, sums_of_taken};
use crate::following::opened::{LinkBase, OpenLinks};
use crate::following::reach::{ChainReader, Destination, PreparedVersion, is_trusted, is_whole};
use crate::following::selection::Selection;
use crate::following::shard::BaseShard;
use crate::following::switched::SwitchReport;
use crate::following::view::View;
use crate::observer::{InPhase, Observer, Phase};

/// The bytes that changes may always take, even if the model is smaller.
const LEAST_BUDGET: u64 = 1 << 26;

/// Memory of the caller that a [`Follower`] changes *in place* (SPEC section 24):
/// [of this process](deltachain::memory::LentState), or any other [placed memory](PlacedMemory).
///
/// A version is prepared and proven while the memory stays as it is. If a version has links of the
/// profile local, only the lanes that change are read, proven by sums, and compared once more when
/// they are written. The rest of the memory is not proven by this. Call [`check`](Follower::check)
/// from time to time, which proves all of it. Links without sums are proven by digests, if the
/// processor can read the memory. The first version is loaded as a whole, streamed into the memory.
/// So is a version that cannot be taken in place, or would take more memory than the model:
/// [`SwitchReport::fallback`] says why. While a whole version is loaded, and if that fails, the
/// memory is [torn](Follower::is_torn) until a version has been loaded.
///
/// Only the follower may write to the memory. A write by other code is noticed by the next version
/// that changes the same lanes, or by the next check. No record says which version the memory
/// holds: a new process begins from nothing.
///
/// A publisher cannot use a version that is held in place as its base: give it files, or the memory
/// as a state, which it hashes.
///
/// Memory is [bound](Follower::bind), a version is prepared, [proven](Follower::prove), and
/// [applied](Follower::apply). If the changes cannot be proven, the version is prepared again, and
/// loaded as a whole. If several processes hold the memory together, each has a follower for its
/// share, and all make the same calls. Before they prove a version, they compare its
/// [digest](PreparedVersion::agreement).
#[derive(Debug)]
pub struct InPlace<M> {
    /// The version that the memory holds; with a fault, the version that it held last. The chain
    /// must not be rolled back below it.
    last: Option<HeldVersion<()>>,
    /// Why the next version must be loaded as a whole.
    fault: Option<Fallback>,
    /// True if links failed while they were loaded: the next ones are proven before they are
    /// loaded.
    links_failed: bool,
    memory: Option<M>,
    /// Counts the changes of the memory. Each invalidates the versions that were prepared before.
    epoch: u64,
    /// The temporary cache, if the caller gave none. It is removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// The changes of a version whose files have been fetched and hashed.
#[derive(Debug)]
pub struct InPlaceChanges<M: PlacedMemory> {
    epoch: u64,
    is_whole: bool,
    links: OpenLinks,
    files: Vec<FileReference>,
    /// The sums of the version. If it is loaded as a whole, some of them may become known only
    /// while tensors are built.
    sums: Mutex<Vec<StateSums>>,
    changes: Option<Changes<M::Staged>>,
}

impl<M: PlacedMemory> PreparedVersion<InPlace<M>> {
    /// Whether the version is loaded as a whole: the first version, a version to which no path can
    /// be taken in place, or the version after a failure.
    pub fn is_whole(&self) -> bool {
        self.change.is_whole
    }

    /// Returns the selected tensors of the version with their digests, ascending by name. The
    /// memory must have exactly these tensors.
    pub fn tensors(&self) -> Vec<(&TensorInfo, Digest)> {
        let tables = self.held.shards.iter().map(|shard| &shard.table);
        let rows = tables.flat_map(|table| {
            table
                .tensors
                .iter()
                .zip(table.digests.tensors.iter().copied())
        });
        let mut rows: Vec<_> = rows
            .filter(|(info, _)| self.change.links.selection.takes(info.name()))
            .collect();
        rows.sort_unstable_by_key(|(info, _)| info.name());
        rows
    }

    /// Refuses a version in which tensors that lie in the same memory differ.
    ///
    /// # Errors
    /// USAGE, with the name of one of these tensors.
    pub fn check_ties(&self, places: &Places) -> Result<()> {
        let digests: BTreeMap<_, _> = self
            .tensors()
            .iter()
            .map(|(info, digest)| (info.name(), *digest))
            .collect();
        places.check_ties(|name| digests.get(name))
    }

    /// Returns a digest that processes compare before they go on, if they hold the memory together.
    /// It is equal if they use the same tables, sums and links (R-SUM-11).
    pub fn agreement(&self) -> Digest {
        let mut bytes = vec![u8::from(self.change.is_whole)];
        bytes.extend_from_slice(&self.held.commit.0);
        for base in self.change.links.bases() {
            bytes.extend_from_slice(&base.table.digests.state.0);
            for pieces in base.sums.iter().flat_map(|sums| &sums.tensors) {
                let pieces = pieces.as_deref();
                bytes.extend_from_slice(
                    &pieces
                        .map_or(u64::MAX, |pieces| pieces.len() as u64)
                        .to_le_bytes(),
                );
                let numbers = pieces.into_iter().flatten().flat_map(|sums| sums.numbers());
                bytes.extend(numbers.flat_map(u32::to_le_bytes));
            }
        }
        bytes.extend(self.change.files.iter().flat_map(|file| file.digest.0));
        Digest::of_bytes(&bytes)
    }

    /// Builds all tensors of a version that is loaded as a whole, in one pass, and passes each to
    /// `take` with its data once it has been proven. Tensors come in the order of the links. For
    /// callers that load tensors in their own way.
    ///
    /// # Errors
    /// USAGE if the version is not loaded as a whole; same errors as [`Replay::pieces`]; errors of
    /// `take`.
    pub fn each_tensor(
        &self,
        take: &mut (dyn FnMut(&TensorInfo, Vec<u8>) -> Result<()> + Send),
        observer: &dyn Observer,
    ) -> Result<()> {
        for shard in 0..self.held.shards.len() {
            let mut open: BTreeMap<usize, OpenTensor> = BTreeMap::new();
            self.each_piece(shard, observer, &mut |tensors, (number, piece), bytes| {
                let info = &tensors[number];
                let count = usize::try_from(info.pieces()).unwrap_or(usize::MAX);
                let (pieces, left) = open
                    .entry(number)
                    .or_insert_with(|| (vec![None; count], count));
                pieces[usize::try_from(piece).unwrap_or(usize::MAX)] = Some(bytes);
                *left -= 1;
                if *left > 0 {
                    return Ok(());
                }
                let pieces = open
                    .remove(&number)
                    .map(|(pieces, _)| pieces)
                    .unwrap_or_default();
                let mut pieces = pieces.into_iter().flatten();
                let mut data = pieces.next().unwrap_or_default();
                pieces.for_each(|piece| data.extend_from_slice(&piece));
                take(info, data)
            })?;
            // Tensors without data have no pieces.
            let table = &self.held.shards[shard].table;
            let taken = &self.change.links.selection;
            let empty = table
                .tensors
                .iter()
                .filter(|info| info.bytes() == 0 && taken.takes(info.name()));
            empty
                .into_iter()
                .try_for_each(|info| take(info, Vec::new()))?;
        }
        Ok(())
    }

    /// Builds the pieces of the selected tensors of a shard. Their sums are known afterwards.
    fn each_piece(&self, shard: usize, observer: &dyn Observer, take: TakePiece<'_>) -> Result<()> {
        if !self.change.is_whole {
            return Err(Error::usage("the version is not loaded as a whole"));
        }
        let building = InPhase::begin(observer, Phase::Build, 0);
        self.change.links.replay(shard, |replay| {
            let tensors = replay.tensors();
            observer.begin(Phase::Build, total_bytes(&tensors));
            let table = &self.held.shards[shard].table;
            // For each tensor, its number in the table if its sums are unknown.
            let unknown: Vec<Option<usize>> = {
                let mut sums = self
                    .change
                    .sums
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let sums = &mut sums[shard].tensors;
                sums.resize(table.tensors.len(), None);
                let find = |name: &str| find(&table.tensors, name);
                tensors
                    .iter()
                    .map(|info| find(info.name()).filter(|&number| sums[number].is_none()))
                    .collect()
            };
            let mut found: BTreeMap<usize, Vec<Sums>> = BTreeMap::new();
            let mut piece = |number: usize, piece: u64, bytes: Vec<u8>| {
                if let Some(unknown) = unknown[number] {
                    // These are sums of bytes that have just been hashed (R-SUM-02).
                    let own = found.entry(unknown).or_default();
                    let place = usize::try_from(piece).unwrap_or(usize::MAX);
                    own.resize(own.len().max(place + 1), Sums::ZERO);
                    own[place] = Sums::of_bytes(0, &bytes);
                }
                take(&tensors, (number, piece), bytes)
            };
            replay.pieces(&MemoryState::new(), &mut piece, &building)?;
            found.extend(
                unknown
                    .iter()
                    .flatten()
                    .filter(|&&n| table.tensors[n].bytes() == 0)
                    .map(|&n| (n, Vec::new())),
            );
            let mut sums = self
                .change
                .sums
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            found
                .into_iter()
                .for_each(|(number, own)| sums[shard].tensors[number] = Some(own));
            Ok(())
        })
    }
}

impl<M: PlacedMemory> Follower<InPlace<M>> {
    /// Creates a follower that holds no version. [Bind](Self::bind) the memory when the tensors of
    /// a version are known: it must have these tensors, and other processes may hold shares of
    /// them. The first version that is applied overwrites the memory.
    ///
    /// # Errors
    /// USAGE if no shard or tensor is selected or a pattern is not valid; IO.
    pub fn in_place(store: Store, options: FollowerOptions) -> Result<Self> {
        let (reader, scratch) = options.reader_for_memory(store)?;
        Ok(Self {
            reader,
            place: InPlace {
                last: None,
                fault: None,
                links_failed: false,
                memory: None,
                // A random start, so that a version prepared by another follower never matches.
                epoch: rand::random::<u32>().into(),
                _scratch: scratch,
            },
        })
    }

    /// Sets the memory. If it lies elsewhere than before, the caller must [say so](Self::doubt).
    pub fn bind(&mut self, memory: M) {
        self.place.memory = Some(memory);
    }

    /// Returns the memory, if it is bound.
    pub fn memory(&self) -> Option<&M> {
        self.place.memory.as_ref()
    }

    /// Whether the memory may hold parts of two versions: it is being written, a write has failed,
    /// or the caller [said so](Self::doubt).
    pub fn is_torn(&self) -> bool {
        self.place.fault == Some(Fallback::Torn)
    }

    /// Causes the next version to be loaded as a whole, for a reason that the caller knows.
    /// [`Fallback::Torn`]: the content of the memory is unknown. [`Fallback::Place`]: the memory
    /// was moved, or its place is unknown, and it must be [bound](Self::bind) again.
    /// [`Fallback::Budget`]: there was no room for the changes of a version; another known reason
    /// has priority.
    pub fn doubt(&mut self, why: Fallback) {
        let counts = match why {
            Fallback::Place => {
                self.place.memory = None;
                // If no version is held, the next one is loaded as a whole anyway.
                self.place.held().is_some()
            }
            Fallback::Budget => self.place.fault.is_none(),
            _ => true,
        };
        if counts {
            self.place.doubt(why);
        }
    }

    /// Proves the changes of a prepared version, unless it is loaded as a whole: reads the lanes
    /// that links code, and compares the sums of their old and new values. Nothing is written.
    ///
    /// # Errors
    /// USAGE if the memory is not bound, does not have the version's tensors, or has changed since
    /// the version was prepared. Other errors if the memory does not hold its version, if lanes are
    /// not enough, or if the changes take too much memory: the next version is then loaded as a
    /// whole. Errors of the memory, of other processes, and of the observer.
    pub fn prove(
        &mut self,
        prepared: &mut PreparedVersion<InPlace<M>>,
        peers: &dyn Peers,
        observer: &dyn Observer,
    ) -> Result<()> {
        let ready = self
            .place
            .check_epoch(prepared)
            .and_then(|()| self.place.check_tensors(prepared));
        if prepared.change.is_whole || prepared.change.changes.is_some() {
            return ready;
        }
        // Other processes learn of the error, so that they do not wait for this one.
        ready.inspect_err(|error| drop(peers.add(&mut [], Some(error))))?;
        let memory = self.place.memory.as_mut().ok_or_else(unknown)?;
        let began = Instant::now();
        let building = InPhase::begin(observer, Phase::Build, 0);
        let budget = total_bytes(memory.places().tensors()).max(LEAST_BUDGET);
        let mut changes = Changes::new(budget);
        let proven = prepared
            .change
            .links
            .bases()
            .enumerate()
            .try_for_each(|(shard, base)| {
                prepared.change.links.replay(shard, |replay| {
                    let work = replay.work();
                    observer.begin(Phase::Build, work);
                    let done = replay.in_place(memory, &mut changes, peers, &building);
                    let is_refused = |error: &Error| {
                        (error.class(), error.rule()) == (ErrorClass::Unsupported, None)
                    };
                    if !done.as_ref().is_err_and(is_refused) {
                        return done;
                    }
                    // All processes are refused here, and all exchange their results once more.
                    let done = done.or_else(|refused| {
                        if memory.state().is_none() {
                            return Err(refused);
                        }
                        observer.begin(Phase::Build, work);
                        by_digests((replay, &base.table), memory, &mut changes, &building)
                    });
                    let added = peers.add(&mut [], done.as_ref().err());
                    done.and(added)
                })
            });
        prepared.report.times.build += began.elapsed();
        // An error of the observer says nothing about the memory.
        if let Err(error) = proven {
            // After a wrong link, no other path in place is tried.
            let why = Fallback::of(&error).or_else(|| error.rule().map(|_| Fallback::NoRoute));
            if let Some(why) = why
                && observer.advance(Phase::Build, 0).is_ok()
            {
                self.place.doubt(why);
            }
            return Err(error);
        }
        prepared.report.written += changes.bytes();
        prepared.change.changes = Some(changes);
        Ok(())
    }

    /// Writes the prepared version to the memory: its changes, or the whole version. The observer
    /// sees the load of a whole version as [building](Phase::Build); the memory is then compared
    /// with its sums. All processes that hold the memory switch, or all roll back.
    ///
    /// # Errors
    /// USAGE if the memory has changed since the version was prepared, or the version has not been
    /// proven. R-APP-01 (`WRONG_BASE`) if other code has written to the memory since. Errors of the
    /// memory and of other processes. After these errors, nothing has changed or the memory
    /// [is torn](Self::is_torn). If loading a whole version fails, with rules of links, IO, or the
    /// observer's error, the memory is torn. R-SUM-04 if the loaded memory does not have the sums
    /// of the version: it then holds no version. If the observer stops only this comparison, the
    /// memory holds the version.
    pub fn apply(
        &mut self,
        prepared: &mut PreparedVersion<InPlace<M>>,
        peers: &dyn Peers,
        observer: &dyn Observer,
    ) -> Result<SwitchReport<()>> {
        let began = Instant::now();
        if let Err(error) = self
            .place
            .check_tensors(prepared)
            .and_then(|()| self.begin(prepared))
        {
            // Nothing changes here. The other processes roll back, and do not wait for this one.
            if peers.vote(Some(&error)).is_ok() && !prepared.change.is_whole {
                peers.vote(None).ok();
            }
            return Err(error);
        }
        let memory = self.place.memory.as_mut().ok_or_else(unknown)?;
        let done = match &mut prepared.change.changes {
            Some(changes) => changes.write(memory),
            None => self.place.load(prepared, observer),
        };
        // If the other processes cannot be reached, the memory stays torn.
        let failed = peers.vote(done.as_ref().err())?;
        if let Some(error) = done.err().or(failed) {
            return Err(self.place.go_back(prepared, peers, error));
        }
        prepared.report.times.switch = began.elapsed();
        let switched = self.finish(prepared)?;
        if !prepared.change.is_whole {
            return Ok(switched);
        }
        let proof = self.check(peers, observer)?.unwrap_or(switched.proof);
        Ok(SwitchReport { proof, ..switched })
    }

    /// Marks the memory as torn, before the caller loads a whole version in its own way. It stays
    /// torn until the caller has [finished](Self::finish).
    ///
    /// # Errors
    /// USAGE if the memory has changed since the version was prepared, or the version is not loaded
    /// as a whole and has not been proven.
    pub fn begin(&mut self, prepared: &PreparedVersion<InPlace<M>>) -> Result<()> {
        self.place.check_epoch(prepared)?;
        if !prepared.change.is_whole && prepared.change.changes.is_none() {
            return Err(Error::usage("the version has not been proven"));
        }
        // Proven changes are of no use if the memory has been in doubt since.
        if let Some(fault) = self.place.fault
            && !prepared.change.is_whole
        {
            return Err(Error::usage(format!(
                "the memory holds no version: {fault}"
            )));
        }
        self.place.fault = Some(Fallback::Torn);
        Ok(())
    }

    /// Makes the prepared version the held one; a whole version is not proven by this.
    ///
    /// # Errors
    /// USAGE if the memory has changed since the version was prepared, or the load was not
    /// [begun](Self::begin).
    pub fn finish(&mut self, prepared: &PreparedVersion<InPlace<M>>) -> Result<SwitchReport<()>> {
        self.place.check_epoch(prepared)?;
        if !self.is_torn() {
            return Err(Error::usage("loading of the version has not begun"));
        }
        if let Some(memory) = &mut self.place.memory {
            let tensors: Vec<TensorInfo> = prepared
                .tensors()
                .into_iter()
                .map(|(info, _)| info.clone())
                .collect();
            memory.describe(&tensors)?;
        }
        let sums = prepared
            .change
            .sums
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let held = HeldVersion {
            sums,
            ..prepared.held.clone()
        };
        let from = self.place.last.as_ref().map(|last| last.version);
        let switched = SwitchReport {
            from,
            ..prepared.report.clone()
        };
        (self.place.last, self.place.fault, self.place.links_failed) = (Some(held), None, false);
        self.place.epoch += 1;
        Ok(switched)
    }

    /// Compares the sums of all memory with those of the held version, which takes about as long as
    /// copying the memory. If sums are unknown, the memory is hashed. Returns the level of proof;
    /// `None` if no version has been held yet.
    ///
    /// # Errors
    /// `STATE_MISMATCH` (R-SUM-04, unless it was hashed) if other code has changed the memory: it
    /// then holds no version, and the next version is loaded as a whole. UNSUPPORTED if sums are
    /// unknown and the processor cannot read the memory. USAGE if the memory was known to hold no
    /// version before. The observer's error, if it stops the work.
    pub fn check(&mut self, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        let done = self.compare(peers, observer);
        self.place.note(done)
    }

    /// Same as [`check`](Self::check), for a caller that has [loaded](Self::finish) the version in
    /// its own way: if the content of the memory differs, the version still counts as held.
    ///
    /// # Errors
    /// Same errors as [`check`](Self::check).
    pub fn compare(&mut self, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        let expected = match self.place.to_prove() {
            Ok(None) => return Ok(None),
            Ok(Some(held)) => self.place.expected(held, &self.reader),
            Err(error) => Err(error),
        };
        // Other processes learn of the error, so that they do not wait for this one.
        let Some(all) = expected.inspect_err(|error| drop(peers.add(&mut [], Some(error))))? else {
            // Both ways to compare report the same class of error.
            let done =
                self.place
                    .verify(&self.reader, observer)
                    .map_err(|error| match error.class() {
                        ErrorClass::WrongBase => {
                            Error::refused(ErrorClass::StateMismatch, error.message())
                        }
                        _ => error,
                    });
            let added = peers.add(&mut [], done.as_ref().err());
            return done.and_then(|proof| added.map(|()| proof));
        };
        let memory = self.place.memory.as_mut().ok_or_else(unknown)?;
        let all: Vec<(usize, &[Sums])> = all
            .iter()
            .map(|(number, sums)| (*number, sums.as_slice()))
            .collect();
        let checking = InPhase::begin(
            observer,
            Phase::Hash,
            total_bytes(memory.places().tensors()),
        );
        check_sums(memory, &all, peers, &checking)?;
        drop(checking);
        self.place.proven(Proof::Memory);
        Ok(Some(Proof::Memory))
    }

    /// Hashes the memory and compares it with the held version.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if the memory was written to: it then holds no version. USAGE if it
    /// held no version before, or if the processor cannot read it. The observer's error, if it
    /// stops the work.
    pub fn verify(&mut self, observer: &dyn Observer) -> Result<()> {
        let done = self.place.verify(&self.reader, observer);
        self.place.note(done).map(drop)
    }
}

/// The pieces of a tensor that have been built, and the number of missing ones.
type OpenTensor = (Vec<Option<Vec<u8>>>, usize);

/// Receives a piece: the tensors that are built, the number of its tensor among them and its own
/// number, and its bytes.
type TakePiece<'a> = &'a mut (dyn FnMut(&[TensorInfo], (usize, u64), Vec<u8>) -> Result<()> + Send);

/// The sums that each tensor must have, with the tensor's number in the memory. `None` if sums are
/// unknown, but the memory can be hashed.
type ExpectedSums = Option<Vec<(usize, Vec<Sums>)>>;

fn unknown() -> Error {
    Error::usage("the places of the tensors are unknown")
}

impl<M: PlacedMemory> InPlace<M> {
    fn check_epoch(&self, prepared: &PreparedVersion<InPlace<M>>) -> Result<()> {
        if prepared.change.epoch == self.epoch {
            return Ok(());
        }
        Err(Error::usage(
            "the memory is not at the version that this was prepared for",
        ))
    }

    /// Notes that the next version must be loaded as a whole. Torn memory stays torn.
    fn doubt(&mut self, why: Fallback) {
        self.epoch += 1;
        if self.fault != Some(Fallback::Torn) {
            self.fault = Some(why);
        }
    }

    /// Returns the reason why the memory may not hold its version. A failure for lack of a path, or
    /// because changes took too much memory, says nothing about that.
    fn doubt_of_memory(&self) -> Option<Fallback> {
        self.fault
            .filter(|fault| !matches!(fault, Fallback::NoRoute | Fallback::Budget))
    }

    /// Returns the held version, to be proven; `None` if no version has been held yet.
    ///
    /// # Errors
    /// USAGE if the memory is known not to hold a version.
    fn to_prove(&self) -> Result<Option<&HeldVersion<()>>> {
        match self.doubt_of_memory() {
            None => Ok(self.last.as_ref()),
            Some(fault) => Err(Error::usage(format!(
                "the memory holds no version: {fault}"
            ))),
        }
    }

    /// Notes that all memory has been proven to be the held version.
    fn proven(&mut self, proof: Proof) {
        if let Some(version) = self
            .last
            .as_mut()
            .filter(|version| version.proof != Proof::Hashed)
        {
            version.proof = proof;
        }
    }

    /// Checks that the memory has the tensors of a version.
    fn check_tensors(&self, prepared: &PreparedVersion<InPlace<M>>) -> Result<()> {
        let memory = self.memory.as_ref().ok_or_else(unknown)?;
        let room = |info: &TensorInfo| (info.name().to_owned(), info.dtype(), info.bytes());
        let tensors = prepared.tensors();
        if memory
            .places()
            .tensors()
            .iter()
            .map(room)
            .eq(tensors.iter().map(|(info, _)| room(info)))
        {
            prepared.check_ties(memory.places())?;
            // Fails now, and not after the tensors have been written.
            let infos: Vec<TensorInfo> =
                tensors.into_iter().map(|(info, _)| info.clone()).collect();
            let is_same = memory.places().tensors() == infos;
            return if is_same {
                Ok(())
            } else {
                memory.places().clone().describe(&infos)
            };
        }
        Err(Error::usage(format!(
            "the caller-provided memory does not have the tensors of version {}, by name, dtype \
             and length; it cannot be resized",
            prepared.held.version
        )))
    }

    /// Streams a whole version into the memory.
    fn load(
        &mut self,
        prepared: &PreparedVersion<InPlace<M>>,
        observer: &dyn Observer,
    ) -> Result<()> {
        let memory = self.memory.as_mut().ok_or_else(unknown)?;
        (0..prepared.held.shards.len()).try_for_each(|shard| {
            let loaded =
                prepared.each_piece(shard, observer, &mut |tensors, (number, piece), bytes| {
                    let missing = || {
                        Error::usage("the memory does not have the tensor")
                            .of_tensor(tensors[number].name())
                    };
                    let number = find(memory.places().tensors(), tensors[number].name())
                        .ok_or_else(missing)?;
                    fill(memory, number, piece, &bytes)
                });
            // The next attempt proves links before it loads them.
            self.links_failed |= loaded.as_ref().is_err_and(|error| error.rule().is_some());
            loaded
        })
    }

    /// Restores the previous content of the memory, if that is possible, and returns the error.
    fn go_back(
        &mut self,
        prepared: &mut PreparedVersion<InPlace<M>>,
        peers: &dyn Peers,
        error: Error,
    ) -> Error {
        let (Some(changes), Some(memory)) = (&mut prepared.change.changes, &mut self.memory) else {
            return error;
        };
        let put_back = changes.put_back(memory);
        let voted = peers.vote(put_back.as_ref().err());
        if put_back.is_ok() && voted.is_ok_and(|failed| failed.is_none()) {
            // Memory that other code has written to does not hold a version.
            self.fault = is_other(&error).then_some(Fallback::Proof);
        }
        error
    }

    /// Returns the sums that the memory must have if it holds this version.
    fn expected(&self, held: &HeldVersion<()>, reader: &ChainReader) -> Result<ExpectedSums> {
        let memory = self.memory.as_ref().ok_or_else(unknown)?;
        let mut all = Vec::new();
        for (shard, sums) in held.shards.iter().zip(&held.sums) {
            let Some(known) = sums_of_taken(&reader.selection, &shard.table, sums) else {
                let unknown =
                    Error::refused(ErrorClass::Unsupported, "the sums of a tensor are unknown");
                return memory.state().map_or(Err(unknown), |_| Ok(None));
            };
            let taken = shard
                .table
                .tensors
                .iter()
                .filter(|info| reader.selection.takes(info.name()));
            for (info, sums) in taken.zip(known.tensors) {
                let number = find(memory.places().tensors(), info.name()).ok_or_else(unknown)?;
                all.push((number, sums.unwrap_or_default()));
            }
        }
        Ok(Some(all))
    }

    /// Hashes the memory and compares it with the held version. Its sums are known afterwards.
    fn verify(&mut self, reader: &ChainReader, observer: &dyn Observer) -> Result<Option<Proof>> {
        let Some(held) = self.to_prove()? else {
            return Ok(None);
        };
        let memory = self.memory.as_ref().ok_or_else(unknown)?;
        let state = memory.state().ok_or_else(|| {
            Error::usage(
                "no process can read all of the tensors, so they cannot be hashed: compare their \
                 sums",
            )
        })?;
        let hashing = InPhase::begin(observer, Phase::Hash, total_bytes(state.tensors()));
        let selection = &reader.selection;
        let mut sums = Vec::new();
        for shard in &held.shards {
            let memory = View::part(state, state.tensors(), &shard.table.tensors);
            let (now, own) = StateSums::hashed(&memory, &hashing)?;
            check_found(
                selection,
                held,
                shard,
                (memory.tensors(), now.digests.tensors),
            )?;
            sums.push(sums_of_all(selection, &shard.table, own));
        }
        if let Some(held) = &mut self.last {
            held.sums = sums;
        }
        self.proven(Proof::Hashed);
        Ok(Some(Proof::Hashed))
    }

    /// Notes that the memory holds no version if a check found that it differs.
    fn note(&mut self, done: Result<Option<Proof>>) -> Result<Option<Proof>> {
        if done.as_ref().is_err_and(is_other) {
            self.doubt(Fallback::Check);
        }
        done
    }
}

/// Whether an error says that the memory differs from its version.
fn is_other(error: &Error) -> bool {
    matches!(
        error.class(),
        ErrorClass::WrongBase | ErrorClass::StateMismatch
    )
}

/// Adds the changes of a shard, proven by digests: each piece that changes is built and hashed
/// beside the memory.
fn by_digests<M: PlacedMemory>(
    (replay, base): (&Replay<'_, FileSource>, &StateTable),
    memory: &mut M,
    changes: &mut Changes<M::Staged>,
    building: &InPhase<'_>,
) -> Result<()> {
    let state = memory.state().ok_or_else(unknown)?;
    let held = View::part(state, state.tensors(), &base.tensors);
    let set = replay.patches(&held, &held, u64::MAX, building)?;
    changes.add_set(memory, &set)
}

impl<M: PlacedMemory> Destination for InPlace<M> {
    type Change = InPlaceChanges<M>;
    type At = ();

    const IS_IN_PLACE: bool = true;

    fn held(&self) -> Option<&HeldVersion<()>> {
        match self.doubt_of_memory() {
            None => self.last.as_ref(),
            Some(_) => None,
        }
    }

    fn base(&self) -> Option<&HeldVersion<()>> {
        match self.fault {
            None => self.last.as_ref(),
            Some(_) => None,
        }
    }

    fn last(&self) -> Option<&HeldVersion<()>> {
        self.last.as_ref()
    }

    fn shards(&self, plan: &Plan, _: &Selection) -> Result<Vec<BaseShard<'_>>> {
        let shards = self
            .base()
            .into_iter()
            .flat_map(|held| held.shards.iter().zip(&held.sums));
        let shards = shards.map(|(record, sums)| {
            // The sums of routes that no commit names are not trusted (R-SUM-08). The memory is not
            // read here.
            let sums = if is_trusted(plan) {
                sums.clone()
            } else {
                StateSums::default()
            };
            BaseShard::held(record, Box::new(MemoryState::new()), Some(sums))
        });
        shards.collect()
    }

    fn fault(&self) -> Option<Fallback> {
        self.fault
    }

    fn make(
        &self,
        reader: &ChainReader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut FetchTotals,
    ) -> Result<(HeldVersion<()>, InPlaceChanges<M>), Blame> {
        let is_whole = is_whole(plan);
        let followed = reader.follow(plan, self, observer, received, |following, pushed| {
            following.begin(pushed)?;
            // Links need not be proven first if the memory holds no version that they could tear.
            let is_torn = self.fault == Some(Fallback::Torn);
            if is_whole && (self.links_failed || self.last.is_some() && !is_torn) {
                following.prove(pushed)?;
            }
            let mut bases = Vec::new();
            let mut sums = Vec::new();
            for pushed in pushed {
                bases.push(LinkBase {
                    table: pushed.shard.table.clone(),
                    sums: if is_whole {
                        None
                    } else {
                        pushed.shard.sums.clone()
                    },
                });
                // The sums at the end of an untrusted path are computed from its tensors, once
                // these have been hashed.
                sums.push(match pushed.replay.sums() {
                    Some(sums) if is_trusted(plan) => sums.clone(),
                    _ => StateSums::default(),
                });
            }
            Ok((bases, sums))
        })?;
        let (bases, sums) = followed.built;
        let shards = followed.shards;
        let links = OpenLinks::new(
            bases,
            followed.links.into_readers(followed.opened)?,
            &reader.selection,
        );
        let wanted = reader.selection.shards(plan.version, plan.shards.len())?;
        let files = plan.hops.iter().flat_map(|hop| {
            wanted
                .iter()
                .filter_map(|&shard| hop.files.get(shard).copied())
        });
        let change = InPlaceChanges {
            epoch: self.epoch,
            is_whole,
            links,
            files: files.collect(),
            sums: Mutex::new(sums),
            changes: None,
        };
        let held = HeldVersion {
            proof: Proof::ChangedLanes,
            ..reader.version(plan, self, false, shards)
        };
        Ok((held, change))
    }
}
