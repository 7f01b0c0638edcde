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

/// The bytes that changes may take at least, whatever the size of the model.
const LEAST_BUDGET: u64 = 1 << 26;

/// Memory of the caller that a [`Follower`] changes *in place* (SPEC section 24): [of this
/// process](deltachain::memory::LentState), or whatever else is [placed memory](PlacedMemory).
///
/// A version is prepared and proven while the memory stays as it is. If a version has links of the
/// profile local, only the lanes that change are read, proven by sums, and compared once more when
/// they are written. So the rest of the memory is not proven; [`check`](Follower::check) does that:
/// call it from time to time. Links without sums are taken by digests, if the processor can read
/// the memory. A version that cannot be taken in place, or would take more memory than the model,
/// is loaded as a whole, streamed into the memory, and so is the first version:
/// [`SwitchReport::fallback`] says why. While a whole version is loaded, and if that fails, the
/// memory is [torn](Follower::is_torn), until one has been loaded.
///
/// Nobody but the follower may write to the memory. If somebody does, the next version that changes
/// such lanes notices it, or the next check. Nothing records which version the memory holds:
/// another process begins from nothing.
///
/// A version that is held in place is no base for a publisher: give it files, or the memory as a
/// state, which it hashes.
///
/// Memory is [bound](Follower::bind), a version is prepared, [proven](Follower::prove), and
/// [applied](Follower::apply). If that cannot be proven, it is prepared again, and loaded as a
/// whole. If several processes hold the memory together, each has a follower for its share, and all
/// make the same calls; before they prove a version, they find
/// [that it is the same](PreparedVersion::agreement).
#[derive(Debug)]
pub struct InPlace<M> {
    /// The version that the memory holds; with a fault, the one that it held last. Chains must not
    /// go back behind it.
    last: Option<HeldVersion<()>>,
    /// Why the next version must be loaded as a whole.
    fault: Option<Fallback>,
    /// Whether links have failed while they were loaded: the next ones are proven before.
    links_failed: bool,
    memory: Option<M>,
    /// Counts what happens to the memory: what was prepared before is of no use then.
    epoch: u64,
    /// The cache, if the caller has given none. Removed when this is dropped.
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
    /// Whether the version is loaded as a whole: the first one, one to which no path can be taken
    /// in place, and one after a failure.
    pub fn is_whole(&self) -> bool {
        self.change.is_whole
    }

    /// The tensors of the version that are selected, with their digests, ascending by name: what
    /// the memory must have.
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
    /// USAGE, with the name of one.
    pub fn check_ties(&self, places: &Places) -> Result<()> {
        let digests: BTreeMap<_, _> = self
            .tensors()
            .iter()
            .map(|(info, digest)| (info.name(), *digest))
            .collect();
        places.check_ties(|name| digests.get(name))
    }

    /// The digest that processes which hold the memory together compare before they go on: equal if
    /// they work from the same tables and sums with the same links (R-SUM-11).
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

    /// Builds all tensors of a version that is loaded as a whole, in one pass, and hands over each
    /// with its data when it has been proven. They come in the order of the links. For a caller
    /// that loads them in its own way.
    ///
    /// # Errors
    /// USAGE if the version is not loaded as a whole; as for [`Replay::pieces`]; those of `take`.
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

    /// Builds the pieces of the tensors of a shard that are taken; their sums are known then.
    fn each_piece(&self, shard: usize, observer: &dyn Observer, take: TakePiece<'_>) -> Result<()> {
        if !self.change.is_whole {
            return Err(Error::usage("the version is not loaded as a whole"));
        }
        let building = InPhase::begin(observer, Phase::Build, 0);
        self.change.links.replay(shard, |replay| {
            let tensors = replay.tensors();
            observer.begin(Phase::Build, total_bytes(&tensors));
            let table = &self.held.shards[shard].table;
            // The numbers in the table, of those whose sums are not known.
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
    /// Begins with nothing, in memory that is [given](Self::bind) when the tensors of a version are
    /// known, which it must have, and of which other processes may hold shares. Whatever it holds
    /// is overwritten by the first version that is applied.
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

    /// The memory, from now on. The caller says whether it [lies elsewhere](Self::doubt) than
    /// before.
    pub fn bind(&mut self, memory: M) {
        self.place.memory = Some(memory);
    }

    /// The memory, if it is known.
    pub fn memory(&self) -> Option<&M> {
        self.place.memory.as_ref()
    }

    /// Whether the memory may hold parts of two versions: it is being written, or that has failed,
    /// or the caller [says so](Self::doubt).
    pub fn is_torn(&self) -> bool {
        self.place.fault == Some(Fallback::Torn)
    }

    /// Makes the next version be loaded as a whole, for a reason that the caller knows.
    /// [`Fallback::Torn`]: the content of the memory is unknown. [`Fallback::Place`]: the memory
    /// was moved, or its place is unknown, and it must be [bound](Self::bind) again.
    /// [`Fallback::Budget`]: there was no room for the changes of a version; another known reason
    /// has priority.
    pub fn doubt(&mut self, why: Fallback) {
        let counts = match why {
            Fallback::Place => {
                self.place.memory = None;
                // Otherwise that is so already.
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
    /// USAGE if the memory is not known, does not have the version's tensors, or is not what it was
    /// when this was prepared. If the memory does not hold what it should, if lanes are not enough,
    /// or if the changes take too much memory: why; the next version is then loaded as a whole. The
    /// errors of the memory, of other processes, and of the observer.
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
        // The others do not wait for this one.
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
                    // All processes are refused, and all tell each other once more.
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
        // If the observer ends the work, this says nothing about the memory.
        if let Err(error) = proven {
            // A link that is wrong is on no other path in place.
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

    /// Makes the memory hold the prepared version: values are written, or the whole version is
    /// loaded, which the observer sees as [building](Phase::Build), and compared with its sums. All
    /// processes that hold the memory do so, or all go back.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared, or it has not been proven.
    /// R-APP-01 (`WRONG_BASE`) if somebody has written to the memory since. The errors of the
    /// memory and of other processes. Nothing has changed then, or the memory
    /// [is torn](Self::is_torn), as it is if loading a whole version fails: with rules of links,
    /// IO, or the observer's error. R-SUM-04 if what has been loaded is not there; it holds no
    /// version then. If the observer ends just this comparison, it holds the version.
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
            // Nothing changes here. The others go back, and do not wait for this one.
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
        // If the others cannot be asked, it stays torn.
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

    /// The caller begins to load a version as a whole in its own way: until it has
    /// [finished](Self::finish), the memory is torn.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared.
    pub fn begin(&mut self, prepared: &PreparedVersion<InPlace<M>>) -> Result<()> {
        self.place.check_epoch(prepared)?;
        if !prepared.change.is_whole && prepared.change.changes.is_none() {
            return Err(Error::usage("the version has not been proven"));
        }
        // Changes that were proven before some of the memory may have been written are of no use.
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
    /// USAGE if the memory is not what it was when this was prepared, or the load was not
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

    /// Compares the sums of all of the memory with those of the version held, which takes about as
    /// long as copying it. Where the sums are not known, it is hashed. Says how far it is proven;
    /// `None` if no version has been held yet.
    ///
    /// # Errors
    /// `STATE_MISMATCH` (R-SUM-04, unless it was hashed) if something has changed the memory: it
    /// holds no version then, and the next one is loaded as a whole. UNSUPPORTED if sums are not
    /// known, and the processor cannot read the memory. USAGE if it holds none already. The
    /// observer's error, if it stops the work.
    pub fn check(&mut self, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        let done = self.compare(peers, observer);
        self.place.note(done)
    }

    /// Same as [`check`](Self::check), for a caller that has [loaded](Self::finish) the version in
    /// its own way: if the memory has another content, the version still counts as held.
    ///
    /// # Errors
    /// Same errors as [`check`](Self::check).
    pub fn compare(&mut self, peers: &dyn Peers, observer: &dyn Observer) -> Result<Option<Proof>> {
        let expected = match self.place.to_prove() {
            Ok(None) => return Ok(None),
            Ok(Some(held)) => self.place.expected(held, &self.reader),
            Err(error) => Err(error),
        };
        // The others do not wait for this one.
        let Some(all) = expected.inspect_err(|error| drop(peers.add(&mut [], Some(error))))? else {
            // However it was compared, it is said in the same way.
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

/// The pieces of a tensor that are there, and how many are missing.
type OpenTensor = (Vec<Option<Vec<u8>>>, usize);

/// Takes a piece: the tensors that are built, its tensor's number among them and its own, and its
/// bytes.
type TakePiece<'a> = &'a mut (dyn FnMut(&[TensorInfo], (usize, u64), Vec<u8>) -> Result<()> + Send);

/// The sums that memory is compared with, of each tensor, by its number in the memory. `None` if
/// sums are not known, but the memory can be hashed.
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

    /// The next version must be loaded as a whole. Torn memory stays torn.
    fn doubt(&mut self, why: Fallback) {
        self.epoch += 1;
        if self.fault != Some(Fallback::Torn) {
            self.fault = Some(why);
        }
    }

    /// The reason why the memory is not known to hold a version. A version for which lanes were not
    /// enough, or too many, says nothing about this.
    fn doubt_of_memory(&self) -> Option<Fallback> {
        self.fault
            .filter(|fault| !matches!(fault, Fallback::NoRoute | Fallback::Budget))
    }

    /// The version held, for who wants to prove it; `None` if nothing has been held yet.
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

    /// All of the memory has been proven to be the version held.
    fn proven(&mut self, proof: Proof) {
        if let Some(version) = self
            .last
            .as_mut()
            .filter(|version| version.proof != Proof::Hashed)
        {
            version.proof = proof;
        }
    }

    /// The memory must have the tensors of a version.
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
            // Found out now, and not when they have been written.
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

    /// Brings back what the memory held, if that is possible.
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
            // Memory that was written to does not hold a version.
            self.fault = is_other(&error).then_some(Fallback::Proof);
        }
        error
    }

    /// The sums that the memory has to have if it holds this version.
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

    /// Hashes the memory; its sums are known then.
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

    /// Memory that has been found to be something else holds no version.
    fn note(&mut self, done: Result<Option<Proof>>) -> Result<Option<Proof>> {
        if done.as_ref().is_err_and(is_other) {
            self.doubt(Fallback::Check);
        }
        done
    }
}

/// Whether memory was found to be something else.
fn is_other(error: &Error) -> bool {
    matches!(
        error.class(),
        ErrorClass::WrongBase | ErrorClass::StateMismatch
    )
}

/// The changes of a shard, by digests: each piece that changes is built and hashed beside the
/// memory.
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
            // The sums of routes that no commit names are not trusted (R-SUM-08). Nothing is read
            // of the memory here.
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
            // Not where they have nothing to tear.
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
                // The sums at the end of an untrusted path are taken from its tensors, when these
                // have been hashed.
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
