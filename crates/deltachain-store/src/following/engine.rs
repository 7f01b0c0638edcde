//! A follower for memory that somebody else reads and writes: of a device, or of several processes together. It has the
//! version's table, sums and record, and no data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use deltachain::StateSums;
use deltachain::chain::{FileReference, Plan};
use deltachain::memory::Proof;
use deltachain::sums::Sums;
use deltachain::tensor::{Digest, MemoryState, State, TensorInfo};
use deltachain::{Error, ErrorClass, PiecePlan, Result, StateTable};

use crate::access::store::Store;
use crate::directory::record::Record;
use crate::directory::scratch::Scratch;
use crate::fallback::Fallback;
use crate::fetching::links::{Failure, Received};
use crate::following::follower::{Follower, FollowerOptions, sealed::Place};
use crate::following::held_memory::{HeldMemory, Holding};
use crate::following::opened::Opened;
use crate::following::reach::{Destination, Reached, Reader, is_trusted, is_whole};
use crate::following::shard::Shard;
use crate::following::switched::{HeldVersion, Preparation, Switched};
use crate::observer::Observer;

/// The memory of an engine, which an *executor* reads and writes: a program that does with the memory, wherever it
/// lies, what a [prepared route](PreparedRoute) says. A [`Follower`] keeps what is known of it. So it holds nothing at
/// first; and a version that cannot be taken in place, which needs the memory read as a whole, is loaded as a whole.
///
/// The executor proves all [plans](PreparedRoute::plans) of a version, says that it [begins to write](Follower::begin),
/// writes, and says that it [has](Follower::switched). If the proof fails, it says [so](Follower::failed), and the same
/// version is prepared as a whole; if something goes wrong after that, the memory is [lost](Follower::lost).
#[derive(Debug)]
pub struct Engine {
    budget: u64,
    held: HeldMemory,
    /// Counts what happens to the memory: what was prepared before is of no use then.
    epoch: u64,
    /// When writing began.
    began: Option<Instant>,
    /// The cache, if the caller has given none. Removed when this is dropped.
    _scratch: Option<Scratch>,
}

/// How a prepared version comes into the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// By [`PreparedRoute::plans`].
    InPlace,
    /// By [`PreparedRoute::tensors`]: the first version, one to which no route can be taken in place, and one after a
    /// failure.
    Whole,
}

/// Tensors with their data, and the number of the next one.
type Batch = (Vec<(TensorInfo, Vec<u8>)>, Option<usize>);

/// A version that is ready for an executor: all of its files have been fetched and hashed.
#[derive(Debug)]
pub struct PreparedRoute {
    how: How,
    epoch: u64,
    base: Option<u64>,
    record: Record,
    links: Opened,
    files: Vec<FileReference>,
    /// Of the version; of one that is loaded as a whole, some may become known while tensors are built.
    sums: Mutex<Vec<StateSums>>,
    budget: u64,
    preparation: Preparation,
}

impl PreparedRoute {
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

    /// How it comes into the memory.
    pub fn kind(&self) -> How {
        self.how
    }

    /// Why the version is to be loaded as a whole. `None` if it is not, or if it is the first one.
    pub fn fallback(&self) -> Option<Fallback> {
        self.preparation.fallback
    }

    /// The table of each shard of the version, also of tensors that are not selected.
    pub fn tables(&self) -> impl Iterator<Item = &StateTable> {
        self.record.shards.iter().map(|shard| &shard.table)
    }

    /// Whether a tensor is selected.
    pub fn takes(&self, name: &str) -> bool {
        self.links.takes(name)
    }

    /// The table of each shard that the links start from: what tensors of [plans](Self::plans) count in.
    pub fn base_tables(&self) -> impl Iterator<Item = &StateTable> {
        self.links.bases().map(|(table, _)| table)
    }

    /// The sums of each shard of the version, as far as they are known.
    pub fn sums(&self) -> Vec<StateSums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What processes that divide the memory among them compare before they begin: equal if they work from the same
    /// tables and sums with the same links (R-SUM-11).
    pub fn agreement(&self) -> Digest {
        let mut bytes = vec![u8::from(self.how == How::InPlace)];
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

    /// What the links do to the lanes that they code: `each` gets the place of a shard among the selected ones, and the
    /// plan of a piece, whose tensor counts in the shard's [base table](Self::base_tables). Nothing may be written
    /// before all plans of all shards have been proven, in all their steps.
    ///
    /// # Errors
    /// USAGE if the version is to be loaded as a whole, or if the plans together take more than the
    /// [budget](FollowerOptions::budget); as for [`Replay::plans`](deltachain::Replay::plans); those of `each`.
    pub fn plans(&self, each: &mut dyn FnMut(usize, PiecePlan) -> Result<()>) -> Result<()> {
        if self.how == How::Whole {
            return Err(Error::usage("the version has no plans: it is to be loaded as a whole"));
        }
        let mut bytes = 0_u64;
        for shard in 0..self.links.count() {
            self.links.replay(shard, &|_| true, |replay| {
                for plan in replay.plans()? {
                    let plan = plan?;
                    bytes = bytes.saturating_add(bytes_of(&plan));
                    if bytes > self.budget {
                        let budget = self.budget;
                        let message = format!("the changes take {bytes} bytes so far, {budget} are allowed");
                        return Err(Error::usage(message));
                    }
                    each(shard, plan)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// How many tensors the version has, of all shards, as far as they are selected.
    pub fn count(&self) -> usize {
        self.rows().len()
    }

    /// Some tensors of a version that is loaded as a whole, proven by their digests: from tensor number `begin` on, in
    /// the order of shards and names, as many as have `most_bytes` bytes, but one at least. And the number to go on
    /// with; `None` if these are the last. Segments of links are decoded again for each call that needs them.
    ///
    /// # Errors
    /// USAGE if the version is to be taken in place, or has no such tensor; as for
    /// [`Replay::run`](deltachain::Replay::run).
    pub fn tensors(&self, begin: usize, most_bytes: u64) -> Result<Batch> {
        if self.how == How::InPlace {
            return Err(Error::usage("the version is not loaded as a whole: it has plans"));
        }
        let rows = self.rows();
        let Some(&(shard, ..)) = rows.get(begin) else { return Err(Error::usage("the version has no such tensor")) };
        let mut chosen: BTreeSet<&str> = BTreeSet::new();
        let mut bytes = 0_u64;
        for &(_, _, info) in rows[begin..].iter().take_while(|(of, ..)| *of == shard) {
            bytes = bytes.saturating_add(info.bytes());
            if !chosen.is_empty() && bytes > most_bytes {
                break;
            }
            chosen.insert(info.name());
        }
        let end = begin + chosen.len();
        let built = self.links.replay(shard, &|name| chosen.contains(name), |replay| {
            let mut built = MemoryState::zeros(&replay.tensors())?;
            replay.run(&MemoryState::new(), &built.writer(), &())?;
            Ok(built)
        })?;
        self.learn_sums(shard, &rows[begin..end], &built);
        let tensors = built.iter().map(|(info, data)| (info.clone(), data.to_vec())).collect();
        Ok((tensors, (end < rows.len()).then_some(end)))
    }

    /// Takes sums, where they are unknown, from tensors that have just been built and hashed (R-SUM-02).
    fn learn_sums(&self, shard: usize, rows: &[(usize, usize, &TensorInfo)], built: &MemoryState) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let tensors = &mut sums[shard].tensors;
        tensors.resize(self.record.shards[shard].table.tensors.len(), None);
        for (number, &(_, place, info)) in rows.iter().enumerate() {
            if tensors[place].is_none() {
                let piece = |piece| built.bytes(number, info.piece(piece)).map(|bytes| Sums::of_bytes(0, bytes));
                tensors[place] = (0..info.pieces()).map(piece).collect();
            }
        }
    }

    /// The tensors that are taken, with their shard and their place in its table.
    fn rows(&self) -> Vec<(usize, usize, &TensorInfo)> {
        let shards = self.record.shards.iter().enumerate();
        let rows = shards.flat_map(|(shard, record)| {
            record.table.tensors.iter().enumerate().map(move |(place, info)| (shard, place, info))
        });
        rows.filter(|(.., info)| self.links.takes(info.name())).collect()
    }
}

/// Bytes that the executor of a plan holds: its numbers and values, and the old and new values of its lanes.
fn bytes_of(plan: &PiecePlan) -> u64 {
    let numbers = |numbers: &Option<Vec<u32>>| numbers.as_ref().map_or(0, |numbers| 4 * numbers.len());
    let steps: usize = plan.steps.iter().map(|step| step.values.len() + numbers(&step.places)).sum();
    (numbers(&plan.lanes) + 2 * steps) as u64
}

impl Follower<Engine> {
    /// Begins with nothing.
    ///
    /// # Errors
    /// USAGE if no shard or tensor is selected or a pattern is not valid; IO.
    pub fn for_engine(store: Store, options: FollowerOptions) -> Result<Self> {
        let budget = options.budget;
        let (reader, scratch) = options.reader_for_memory(store)?;
        let place = Engine { budget, held: HeldMemory::default(), epoch: 0, began: None, _scratch: scratch };
        Ok(Self { reader, place })
    }

    /// The table of each held shard, with the tensors that are not selected: what the memory is compared with.
    pub fn tables(&self) -> impl Iterator<Item = &StateTable> {
        self.place.held.holding().into_iter().flat_map(|held| held.record.shards.iter().map(|shard| &shard.table))
    }

    /// The sums of each held shard, as far as they are known: what the memory is checked by.
    pub fn sums(&self) -> &[StateSums] {
        self.place.held.holding().map_or(&[], |holding| &holding.sums)
    }

    /// Whether the memory may hold parts of two versions: it is being written, or it has been [lost](Self::lost).
    pub fn is_torn(&self) -> bool {
        self.place.held.fault == Some(Fallback::Torn)
    }

    /// The executor begins to write what it has proven: until it [has](Self::switched), or all is
    /// [undone](Self::undone), the memory counts as torn.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared.
    pub fn begin(&mut self, prepared: &PreparedRoute) -> Result<()> {
        self.place.check(prepared)?;
        self.place.held.fault = Some(Fallback::Torn);
        self.place.began = Some(Instant::now());
        Ok(())
    }

    /// The executor has gone back: the memory holds what it held when this was prepared. Somebody may have written to
    /// it, so the next version is loaded as a whole, unless `is_intact`.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared, or if the version was loaded as a whole, over
    /// what was there.
    pub fn undone(&mut self, prepared: &PreparedRoute, is_intact: bool) -> Result<()> {
        self.place.check(prepared)?;
        if prepared.how == How::Whole {
            return Err(Error::usage("a version that is loaded as a whole cannot be undone"));
        }
        self.place.held.fault = (!is_intact).then_some(Fallback::Proof);
        Ok(())
    }

    /// The executor has written all of it: the version is held from now on, and proven that far.
    ///
    /// # Errors
    /// USAGE if the memory is not what it was when this was prepared; the memory is lost then.
    pub fn switched(&mut self, prepared: PreparedRoute, proof: Proof) -> Result<Switched<()>> {
        if let Err(error) = self.place.check(&prepared) {
            self.lost();
            return Err(error);
        }
        let PreparedRoute { base, record, sums, mut preparation, .. } = prepared;
        if let Some(began) = self.place.began.take() {
            preparation.times.switch = began.elapsed();
        }
        let public = HeldVersion::new(&record, (), proof);
        let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.place.held.hold(Some(Holding { record, sums, proof }));
        if proof != Proof::ChangedLanes {
            self.place.held.proven(proof);
        }
        self.place.epoch += 1;
        Ok(Switched::new(base, public, preparation))
    }

    /// Nobody knows what the memory holds: it counts as torn, and the next version is loaded as a whole.
    pub fn lost(&mut self) {
        self.place.doubt(Fallback::Torn);
    }

    /// The memory lies elsewhere than before, or it is not known where, and nobody has written to it: the next version is
    /// loaded as a whole.
    pub fn displaced(&mut self) {
        // Otherwise that is so already.
        if self.place.held.holding().is_some() {
            self.place.doubt(Fallback::Place);
        }
    }

    /// The plans could not be proven, or not within bounds, and nothing has been written: the next version, or this one
    /// again, is loaded as a whole.
    pub fn failed(&mut self, prepared: &PreparedRoute, why: Fallback) {
        // Of an older one it says nothing.
        if prepared.epoch == self.place.epoch {
            self.place.doubt(why);
        }
    }

    /// The executor has compared all of the memory with the [sums](Self::sums) or the [digests](Self::tables) of the
    /// version held: how far it is proven, or `None` if it is something else. Then the next version is loaded as a
    /// whole.
    pub fn checked(&mut self, proof: Option<Proof>) {
        match proof {
            Some(proof) => self.place.held.proven(proof),
            None => self.place.doubt(Fallback::Check),
        }
    }
}

impl Engine {
    fn check(&self, prepared: &PreparedRoute) -> Result<()> {
        if prepared.epoch == self.epoch {
            return Ok(());
        }
        Err(Error::usage("the memory is not what it was when this was prepared"))
    }

    fn doubt(&mut self, why: Fallback) {
        self.epoch += 1;
        self.began = None;
        self.held.doubt(why);
    }
}

impl Place for Engine {
    type Prepared = PreparedRoute;
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
    ) -> Result<Option<PreparedRoute>> {
        let base = self.held.base().map(|(version, _)| version);
        match reader.prepare(version, self.held.record(), self, observer)? {
            Reached::Made(made, preparation) => Ok(Some(PreparedRoute { base, preparation, ..made })),
            Reached::Held => Ok(None),
        }
    }

    fn switch(&mut self, _prepared: PreparedRoute, _observer: &dyn Observer) -> Result<Switched<()>> {
        Err(Error::usage("an engine's memory is written by its executor: prepare, write, and say that it has switched"))
    }
}

impl Destination for Engine {
    type Made = PreparedRoute;

    fn held(&self) -> Option<&Record> {
        self.held.holding().map(|holding| &holding.record)
    }

    fn shards(&self, _plan: &Plan) -> Result<Vec<Shard<'_>>> {
        let Some(Holding { record, sums, .. }) = self.held.holding() else { return Ok(Vec::new()) };
        let shards = record.shards.iter().zip(sums);
        // Nothing is read of the memory here.
        shards.map(|(record, sums)| Shard::held(record, Box::new(MemoryState::new()), Some(sums.clone()))).collect()
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
    ) -> Result<PreparedRoute, Failure> {
        let is_whole = is_whole(plan);
        if !is_whole && !is_trusted(plan) {
            let message = "the path has a route that no commit names, which is not taken in place";
            return Err(Failure::Held(Some(Fallback::NoRoute), Error::refused(ErrorClass::Unsupported, message)));
        }
        let ((bases, sums), shards, links) = reader.follow(plan, self, observer, received, |following, pushed| {
            following.begin(pushed)?;
            if is_whole && self.held.proves_before() {
                following.prove(pushed)?;
            }
            let (mut bases, mut sums) = (Vec::new(), Vec::new());
            for (place, pushed) in pushed.iter().enumerate() {
                if !is_whole {
                    pushed.replay.plans().map(drop).map_err(|error| following.not_in_place(place, error))?;
                }
                bases.push((pushed.shard.table.clone(), pushed.shard.sums.clone().filter(|_| !is_whole)));
                // Those of an untrusted snapshot are taken from its tensors, when these have been hashed.
                sums.push(pushed.replay.sums().filter(|_| is_trusted(plan)).cloned().unwrap_or_default());
            }
            Ok((bases, sums))
        })?;
        let links = Opened::new(bases, links.into_files()?, &reader.choice, &reader.limits)?;
        let wanted = reader.choice.shards(plan.version, plan.shards.len())?;
        let files = plan.hops.iter().flat_map(|hop| wanted.iter().filter_map(|&shard| hop.files.get(shard).copied()));
        Ok(PreparedRoute {
            how: if is_whole { How::Whole } else { How::InPlace },
            epoch: self.epoch,
            base: None,
            record: reader.record(plan, self.held.record(), false, shards),
            links,
            files: files.collect(),
            sums: Mutex::new(sums),
            budget: self.budget,
            preparation: Preparation::default(),
        })
    }
}
