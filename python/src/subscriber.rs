//! Following a chain: a copy of the model in memory, in a directory or in the caller's own tensors, and what changes in
//! it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use deltachain::chain::Unsigned;
use deltachain::memory::{Alone, PatchSet, Peers, PlacedMemory, Places};
use deltachain::sums::Sums;
use deltachain::tensor::{Digest, State, TensorInfo};
use deltachain::{Error, Result};
use deltachain_store::{
    Directory, Fallback, FollowOptions, Follower as ChainFollower, FollowerOptions, InPlace, Lag, Memory, Observer,
    OtherFiles, Phase, Polling as ChainPolling, Prepared as PreparedFiles, PreparedInPlace, PreparedPatches, Stop,
    Switched, lag, stored,
};
use pyo3::prelude::*;
use rayon::ThreadPool;

use crate::errors::{cancelled, no_pickle, raised, usage};
use crate::lent::{Elements, GivenRow, Group, Lent, Placed, RowSums};
use crate::memory::{Buffer, Kept};
use crate::operations::{Info, digest_of, rows};
use crate::patches::{Row, Rows};
use crate::signing::{TrustRow, trust as trusted};
use crate::store::Store;
use crate::stream::Stream;
use crate::work::{Caller, How, OfProcess, Threads, new_pool, run, run_apart, run_until};

/// What is kept at a version.
enum Copy {
    /// Memory of this process.
    Memory(ChainFollower<Memory>),
    /// A directory, whose `current` is switched.
    Directory(ChainFollower<Directory>),
    /// Tensors of the caller's.
    Into(ChainFollower<InPlace<Lent>>),
}

/// The same for each kind of copy, and what makes a [`Made`] of what it has prepared.
macro_rules! of_each {
    ($copy:expr, $follower:ident, $wrap:ident => $act:expr) => {
        match $copy {
            Copy::Memory($follower) => {
                let $wrap = Made::Memory;
                $act
            }
            Copy::Directory($follower) => {
                let $wrap = |files| Made::Directory(Some(files));
                $act
            }
            Copy::Into($follower) => {
                let $wrap = |version| Made::Into(Arc::new(version));
                $act
            }
        }
    };
}

/// What a kind of copy has prepared, as Python gets it.
macro_rules! prepared {
    ($made:ident, $wrap:ident) => {
        Prepared {
            version: $made.version(),
            digest: $made.state(),
            commit: $made.commit(),
            metadata: $made.metadata().clone(),
            made: Mutex::new(OfProcess::new($wrap($made))),
            told: Mutex::new(None),
            sums: Mutex::default(),
        }
    };
}

/// A version that has been prepared.
enum Made {
    Memory(PreparedPatches),
    /// Nothing once a switch to it has begun.
    Directory(Option<PreparedFiles>),
    /// Shared with those who read its tensors.
    Into(Arc<PreparedInPlace<Lent>>),
}

/// What a poll has found.
enum Polled {
    /// No such version yet, or no chain.
    Missing,
    Held,
    New(Box<Prepared>),
}

impl Polled {
    /// From what has been prepared, or why nothing was.
    fn of(made: Result<Option<Prepared>>, is_missing: impl FnOnce(&Error) -> bool) -> Result<Self> {
        match made {
            Ok(None) => Ok(Self::Held),
            Ok(Some(prepared)) => Ok(Self::New(Box::new(prepared))),
            Err(error) if is_missing(&error) => Ok(Self::Missing),
            Err(error) => Err(error),
        }
    }
}

/// How a chain is polled.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Polling {
    polling: Mutex<ChainPolling>,
    failure: Mutex<Option<String>>,
}

#[pymethods]
impl Polling {
    /// With the shortest and the longest pause, in seconds.
    #[new]
    fn new(poll: f64, poll_longest: f64) -> Self {
        let (poll, longest) = (seconds(poll), seconds(poll_longest));
        let polling = ChainPolling::new(&FollowOptions::default().poll(poll).poll_longest(longest.max(poll)));
        Self { polling: Mutex::new(polling), failure: Mutex::default() }
    }

    /// Why the last poll failed.
    #[getter]
    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("what polls"))
    }
}

impl Polling {
    /// A poll of the head.
    fn poll(&self, copy: &mut Copy, watch: &dyn Observer) -> Result<Polled> {
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        of_each!(copy, follower, wrap => {
            let made = polling.poll(follower, watch).map(|made| made.map(|made| prepared!(made, wrap)));
            let failure = made.as_ref().err().map(|error| format!("{error:#}"));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
            Polled::of(made, |error| follower.is_missing(None, error, watch)).or_else(|error| {
                // That it is to end is no failure.
                watch.advance(Phase::Wait, 0)?;
                polling.failed(follower, error).map(|_| Polled::Held)
            })
        })
    }

    /// Waits until the next poll. Whether the caller has ended that.
    fn wait(&self, py: Python<'_>, how: &How) -> PyResult<bool> {
        let waited = run_apart(py, how, |watch| {
            let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
            polling.wait(watch, || Ok(ControlFlow::Continue(()))).map(drop)
        })?;
        Ok(waited.is_none())
    }
}

/// Address of a storage, number of 16 MiB of it, and sums of old and of new values of what changes there.
type SumsRow = (usize, u64, [u32; 2], [u32; 2]);

/// Name, dtype, shape and digest.
type TableRow = (String, String, Vec<u64>, String);

/// Keeps a copy of a model at a version of a chain. One call at a time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Follower {
    copy: Mutex<OfProcess<Copy>>,
    /// What work on the caller's tensors asks of the caller's thread.
    caller: Arc<Caller>,
    /// Threads of its own for work that waits for other processes, and how many there were to be.
    pool: Mutex<Option<(Option<Threads>, Arc<ThreadPool>)>>,
    /// How often the copy has been switched.
    switches: AtomicU64,
    /// Whether a switch has begun and not come to its end.
    is_torn: AtomicBool,
    store: Py<Store>,
    /// Ends what the copy waits for in the store.
    stop: Stop,
}

/// A version that is ready.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Prepared {
    made: Mutex<OfProcess<Made>>,
    #[pyo3(get)]
    version: u64,
    digest: Digest,
    commit: Digest,
    /// Of its commit.
    #[pyo3(get)]
    metadata: BTreeMap<String, String>,
    /// What has changed, once the copy has been switched to it.
    told: Mutex<Option<Told>>,
    /// What changes in the caller's memory, if that is wanted.
    sums: Mutex<RowSums>,
}

/// What is told of a switch.
#[derive(Clone, IntoPyObject)]
struct Told {
    downloaded: u64,
    routes: Vec<(Option<u64>, u64)>,
    times: [f64; 4],
    /// Why the tensors were loaded as a whole.
    fallback: Option<&'static str>,
}

/// What is being used by another thread is not waited for: it may itself wait for the interpreter's lock.
fn free<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> PyResult<MutexGuard<'a, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        Err(std::sync::TryLockError::WouldBlock) => Err(usage(py, "another thread is using it: one at a time", None)),
    }
}

#[pymethods]
impl Follower {
    /// Keeps a copy in a directory if one is given, otherwise in memory: of its own, or, if `is_into`, in tensors of
    /// the caller's, which are bound when the tensors of a version are known.
    #[new]
    #[expect(clippy::fn_params_excessive_bools, reason = "what Python's constructor is given")]
    fn new(
        py: Python<'_>,
        store: Py<Store>,
        directory: Option<PathBuf>,
        tensors: Option<Vec<String>>,
        cache: Option<PathBuf>,
        other_files: bool,
        allow_rollback: Option<&str>,
        adopt: bool,
        trust: Option<TrustRow>,
        forget_trust: bool,
        is_into: bool,
    ) -> PyResult<Self> {
        let rollback = digest_of(py, allow_rollback)?;
        let others = if other_files { OtherFiles::Assets } else { OtherFiles::None };
        let options = FollowerOptions::default()
            .tensors(tensors)
            .cache(cache)
            .other_files(others)
            .adopt(adopt)
            .trust(trusted(py, trust)?)
            .forget_trust(forget_trust)
            .allow_rollback(rollback);
        let stop = Stop::default();
        let chain = store.get().get(py)?.with_stop(stop.clone());
        let copy = run(py, &How { stop: Some(stop.clone()), ..How::default() }, |_| {
            Ok(match &directory {
                Some(directory) => Copy::Directory(ChainFollower::in_directory(chain, directory, options)?),
                None if is_into => Copy::Into(ChainFollower::for_share(chain, options)?),
                None => Copy::Memory(ChainFollower::in_memory(chain, options)?),
            })
        })?;
        let (switches, is_torn) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self {
            copy: Mutex::new(OfProcess::new(copy)),
            caller: Arc::default(),
            pool: Mutex::default(),
            switches,
            is_torn,
            store,
            stop,
        })
    }

    /// Version, digest, and directory of the files if there is one; None if nothing is held.
    fn held(&self, py: Python<'_>) -> PyResult<Option<(u64, String, Option<PathBuf>)>> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        let held =
            of_each!(copy, follower, _wrap => follower.held().map(|held| (held.version, held.state.to_string())));
        let files = if let Copy::Directory(kept) = copy { kept.held().map(|held| held.directory) } else { None };
        Ok(held.map(|(version, state)| (version, state, files)))
    }

    /// Digest of the commit of the version held, and its metadata.
    fn held_commit(&self, py: Python<'_>) -> PyResult<Option<(String, BTreeMap<String, String>)>> {
        let copy = free(py, &self.copy)?;
        Ok(of_each!(copy.get(py)?, follower, _wrap => {
            follower.held().map(|held| (held.commit.to_string(), held.metadata))
        }))
    }

    /// How far the copy is proven to be the version held; None if nothing is.
    #[getter]
    fn proof(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let copy = free(py, &self.copy)?;
        Ok(of_each!(copy.get(py)?, follower, _wrap => follower.held().map(|held| held.proof.name())))
    }

    /// How often the copy has been switched.
    #[getter]
    fn switches(&self) -> u64 {
        self.switches.load(Ordering::SeqCst)
    }

    /// Whether the copy may hold parts of two versions: a switch has begun and not come to its end.
    #[getter]
    fn is_torn(&self, py: Python<'_>) -> PyResult<bool> {
        if let Copy::Into(follower) = free(py, &self.copy)?.get(py)? {
            return Ok(follower.is_torn());
        }
        Ok(self.is_torn.load(Ordering::SeqCst))
    }

    /// Polls once for a version, or the head: whether it is there, and what has been prepared unless it is held
    /// already. `until` ends it, as it ends `prepare`.
    fn poll(
        &self,
        py: Python<'_>,
        version: Option<u64>,
        timeout: Option<f64>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<(bool, Option<Prepared>)> {
        let (deadline, stop, unsigned) = (deadline(timeout), Some(self.fresh_stop()), self.unsigned(py)?);
        let mut how = How { threads, progress, deadline, unsigned, stop, until, ..How::default() };
        Ok(match self.prepared(py, version, &mut how)? {
            Polled::Missing => (false, None),
            Polled::Held => (true, None),
            Polled::New(prepared) => (true, Some(*prepared)),
        })
    }

    /// Waits for a version, or for another one than the one held. None if the version is held already.
    fn prepare(
        &self,
        py: Python<'_>,
        version: Option<u64>,
        timeout: Option<f64>,
        poll: f64,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<Option<Prepared>> {
        let (deadline, stop, unsigned) = (deadline(timeout), Some(self.fresh_stop()), self.unsigned(py)?);
        let mut how = How { threads, progress, deadline, unsigned, stop, until, ..How::default() };
        let polling = Polling::new(poll, poll);
        loop {
            match self.prepared(py, version, &mut how)? {
                Polled::New(prepared) => return Ok(Some(*prepared)),
                Polled::Held if version.is_some() => return Ok(None),
                Polled::Held | Polled::Missing if polling.wait(py, &how)? => return Err(cancelled(py)),
                Polled::Held | Polled::Missing => {}
            }
        }
    }

    /// Waits for the next version, after a pause if `waits`; retries what fails. None once `until` returns something
    /// true.
    fn next(
        &self,
        py: Python<'_>,
        polling: &Polling,
        mut waits: bool,
        until: Option<Py<PyAny>>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Option<Prepared>> {
        let how = How { threads, progress, stop: Some(self.fresh_stop()), until, ..How::default() };
        loop {
            if waits && polling.wait(py, &how)? {
                return Ok(None);
            }
            waits = true;
            match self.with_copy(py, &how, |copy, watch| polling.poll(copy, watch))? {
                None => return Ok(None),
                Some(Polled::New(prepared)) => return Ok(Some(*prepared)),
                Some(Polled::Held | Polled::Missing) => {}
            }
        }
    }

    /// Makes the copy hold the prepared version, also after that was interrupted. Returns bytes fetched, routes, and
    /// seconds of each phase. `ranks` are the processes that hold the caller's tensors together.
    fn switch(
        &self,
        py: Python<'_>,
        prepared: &Prepared,
        ranks: Option<Py<PyAny>>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Told> {
        let mut copy = free(py, &self.copy)?;
        let mut made = free(py, &prepared.made)?;
        if prepared.told().is_none() {
            let is_half_done = AtomicBool::new(false);
            let how = How { threads, progress, stop: Some(self.fresh_stop()), ..How::default() };
            let how = self.with_caller(py, how, ranks.is_some())?;
            let peers = self.peers(ranks);
            let (copy_of, made) = (copy.get_mut(py)?, made.get_mut(py)?);
            let switched = self.exchange(py, (copy_of, made), (prepared, &*peers), &is_half_done, &how);
            if is_half_done.into_inner() {
                // It has panicked, and nobody knows what the copy holds.
                close(py, &mut copy)?;
            }
            switched?;
        }
        prepared.told().ok_or_else(|| usage(py, "this was prepared by another subscriber", None))
    }

    /// How far a version is behind the head: versions, and seconds since its commit was stored, if the store tells.
    fn lag(&self, py: Python<'_>, version: u64) -> PyResult<(u64, Option<f64>)> {
        let Lag { versions, seconds, .. } = self.store.get().ask(py, |store| Ok(lag(store, version)))?;
        Ok((versions, seconds))
    }

    /// When a version was published, by the store's clock, if the store tells.
    fn stored(&self, py: Python<'_>, version: u64) -> PyResult<Option<SystemTime>> {
        self.store.get().ask(py, |store| stored(store, version))
    }

    /// Name, dtype and shape of the tensors in memory.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<Info>> {
        match free(py, &self.copy)?.get(py)? {
            Copy::Memory(subscriber) => Ok(rows(subscriber.state().tensors())),
            Copy::Into(_) | Copy::Directory(_) => Err(usage(py, "its tensors are elsewhere", None)),
        }
    }

    /// A copy of the bytes of a tensor in memory.
    fn read(&self, py: Python<'_>, number: usize) -> PyResult<Buffer> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        let bytes = run(py, &How::default(), |_| match copy {
            Copy::Memory(subscriber) => read_whole(&subscriber.state(), number),
            Copy::Into(_) | Copy::Directory(_) => Err(Error::usage("its tensors are elsewhere")),
        })?;
        Ok(Buffer::new(Kept::Bytes(bytes.into())))
    }

    /// Hashes the copy in memory and compares it with the version held.
    fn verify(
        &self,
        py: Python<'_>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let how = self.with_caller(py, How { threads, progress, until, ..How::default() }, false)?;
        self.compared(py, &how, |copy, watch| match copy {
            Copy::Memory(own) => own.verify(watch),
            Copy::Into(lent) => lent.verify(watch),
            Copy::Directory(_) => Err(Error::usage("the files of a directory are checked by `deltachain fsck DIR`")),
        })
    }

    /// Compares the sums of the caller's tensors with those of the version held; hashes a copy of its own. If they
    /// differ, the caller's tensors hold no version any more, if it `doubts`.
    fn check(
        &self,
        py: Python<'_>,
        ranks: Option<Py<PyAny>>,
        doubts: bool,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let how = self.with_caller(py, How { threads, progress, until, ..How::default() }, ranks.is_some())?;
        let peers = self.peers(ranks);
        self.compared(py, &how, |copy, watch| match copy {
            Copy::Memory(own) => own.verify(watch),
            Copy::Into(lent) if doubts => lent.check(&*peers, watch).map(drop),
            Copy::Into(lent) => lent.compare(&*peers, watch).map(drop),
            Copy::Directory(_) => Err(Error::usage("the files of a directory are checked by `deltachain fsck DIR`")),
        })
    }

    // For tensors of the caller's.

    /// Where those are that are given of a version's tensors; `torch` reads and writes them if some are on a device.
    fn place<'py>(
        &self,
        py: Python<'py>,
        prepared: &Prepared,
        given: Vec<GivenRow<'py>>,
        torch: Option<Py<PyAny>>,
        wants_sums: bool,
    ) -> PyResult<Placed> {
        let version = prepared.version_in_place(py)?;
        let tensors = version.tensors();
        let infos: Vec<TensorInfo> = tensors.iter().map(|(info, _)| (*info).clone()).collect();
        let lent = Lent::new(py, infos, &given, torch, (Arc::clone(&self.caller), wants_sums))?;
        check_ties(lent.places(), &version).map_err(|error| raised(py, &error))?;
        Ok(Placed(Mutex::new(Some(lent))))
    }

    /// Refuses a version in which tensors differ that lie in the same memory.
    fn check_ties(&self, py: Python<'_>, prepared: &Prepared) -> PyResult<()> {
        let version = prepared.version_in_place(py)?;
        let checked =
            self.with_into(py, |follower| follower.memory().map_or(Ok(()), |lent| check_ties(lent.places(), &version)));
        checked?.map_err(|error| raised(py, &error))
    }

    /// Follows the chain with these from now on. `all` has what each process has of each tensor, `own` is the number of
    /// this one; of those in `unused`, none is needed.
    fn bind(
        &self,
        py: Python<'_>,
        placed: &Placed,
        own: usize,
        all: Vec<Elements>,
        unused: Vec<String>,
    ) -> PyResult<()> {
        let lent = placed.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut lent = lent.ok_or_else(|| usage(py, "this has been bound", None))?;
        let of = |parts: Vec<Vec<(u64, u64)>>| {
            parts.into_iter().map(|part| part.into_iter().map(|(begin, end)| begin..end).collect()).collect()
        };
        let all: Vec<Vec<_>> =
            all.into_iter().map(|rank| rank.into_iter().map(|(_, parts)| of(parts)).collect()).collect();
        let needs = |name: &str| !unused.iter().any(|unused| unused == name);
        lent.places_mut().divide(own, &all, needs).map_err(|error| raised(py, &error))?;
        self.with_into(py, |follower| follower.bind(lent))
    }

    /// Proves the changes of a version.
    fn prove(
        &self,
        py: Python<'_>,
        prepared: &Prepared,
        ranks: Option<Py<PyAny>>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let how = self.with_caller(py, How { threads, progress, ..How::default() }, ranks.is_some())?;
        let peers = self.peers(ranks);
        let mut made = free(py, &prepared.made)?;
        let Made::Into(version) = made.get_mut(py)? else { return Err(not_into(py)) };
        let version = Arc::get_mut(version).ok_or_else(|| being_read(py))?;
        self.compared(py, &how, |copy, watch| match copy {
            Copy::Into(follower) => {
                // Of a proof that came to no end, nothing counts.
                drop(follower.memory().map(Lent::take_sums));
                follower.prove(version, &*peers, watch)?;
                let sums = follower.memory().map(Lent::take_sums).unwrap_or_default();
                *prepared.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
                Ok(())
            }
            _ => Err(Error::usage("its tensors are not the caller's")),
        })
    }

    /// The caller begins to load a version in its own way.
    fn begin(&self, py: Python<'_>, prepared: &Prepared) -> PyResult<()> {
        let version = prepared.version_in_place(py)?;
        self.with_into(py, |follower| follower.begin(&version))?.map_err(|error| raised(py, &error))
    }

    /// It has loaded all of the version. Returns what `switch` does.
    fn finish(&self, py: Python<'_>, prepared: &Prepared) -> PyResult<Told> {
        let version = prepared.version_in_place(py)?;
        let told = self.with_into(py, |follower| follower.finish(&version))?.map_err(|error| raised(py, &error))?;
        let told = Told::of(&told);
        self.switches.fetch_add(1, Ordering::SeqCst);
        *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told.clone());
        Ok(told)
    }

    /// Nobody knows what the tensors hold.
    fn lost(&self, py: Python<'_>) -> PyResult<()> {
        self.with_into(py, ChainFollower::<InPlace<Lent>>::lost)
    }

    /// The tensors lie elsewhere than before, or it is not known where: the next version is loaded as a whole.
    fn displaced(&self, py: Python<'_>) -> PyResult<()> {
        self.with_into(py, ChainFollower::<InPlace<Lent>>::displaced)
    }

    /// There was no room for changes: the next version is loaded as a whole.
    fn exceeded(&self, py: Python<'_>) -> PyResult<()> {
        self.with_into(py, ChainFollower::<InPlace<Lent>>::exceeded)
    }

    /// Gives up the copy, its connections and its lock.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        close(py, &mut *free(py, &self.copy)?)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("subscribers"))
    }
}

impl Follower {
    /// Works with the copy. None if the caller has ended it.
    fn with_copy<T: Send>(
        &self,
        py: Python<'_>,
        how: &How,
        work: impl FnOnce(&mut Copy, &dyn Observer) -> Result<T> + Send,
    ) -> PyResult<Option<T>> {
        let mut copy = free(py, &self.copy)?;
        let copy = copy.get_mut(py)?;
        run_until(py, how, |watch| work(copy, watch))
    }

    /// The same for work that reads the tensors, which the caller may end.
    fn compared(
        &self,
        py: Python<'_>,
        how: &How,
        work: impl FnOnce(&mut Copy, &dyn Observer) -> Result<()> + Send,
    ) -> PyResult<()> {
        self.with_copy(py, how, work)?.ok_or_else(|| cancelled(py))
    }

    /// For work on the caller's tensors, which may wait for other processes.
    fn with_caller(&self, py: Python<'_>, how: How, waits: bool) -> PyResult<How> {
        let mut pool = None;
        if waits {
            let mut own = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
            if own.as_ref().is_none_or(|(threads, _)| *threads != how.threads) {
                *own = Some((how.threads, Arc::new(new_pool(py, how.threads)?)));
            }
            pool = own.as_ref().map(|(_, pool)| Arc::clone(pool));
        }
        Ok(How { caller: Some(Arc::clone(&self.caller)), pool, ..how })
    }

    fn with_into<T>(&self, py: Python<'_>, work: impl FnOnce(&mut ChainFollower<InPlace<Lent>>) -> T) -> PyResult<T> {
        let mut copy = free(py, &self.copy)?;
        let Copy::Into(follower) = copy.get_mut(py)? else { return Err(not_into(py)) };
        Ok(work(follower))
    }

    /// The processes that hold the tensors together.
    fn peers(&self, ranks: Option<Py<PyAny>>) -> Box<dyn Peers + Send> {
        match ranks {
            Some(ranks) => Box::new(Group { ranks: Arc::new(ranks), caller: Arc::clone(&self.caller) }),
            None => Box::new(Alone),
        }
    }

    /// Prepares a version, or the head.
    fn prepared(&self, py: Python<'_>, version: Option<u64>, how: &mut How) -> PyResult<Polled> {
        let polled = self.with_copy(py, how, |copy, watch| {
            of_each!(copy, follower, wrap => {
                let made = follower.prepare(version, watch).map(|made| made.map(|made| prepared!(made, wrap)));
                Polled::of(made, |error| follower.is_missing(version, error, watch))
            })
        })?;
        how.unsigned = self.unsigned(py)?;
        polled.ok_or_else(|| cancelled(py))
    }

    /// Switches the copy. What comes of it is noted before anything else can fail: Ctrl-C ends the waiting for a
    /// switch, not the switch.
    fn exchange(
        &self,
        py: Python<'_>,
        (copy, made): (&mut Copy, &mut Made),
        (prepared, peers): (&Prepared, &(dyn Peers + Send)),
        is_half_done: &AtomicBool,
        how: &How,
    ) -> PyResult<()> {
        run(py, how, |watch| {
            let was_torn = self.is_torn.swap(true, Ordering::SeqCst);
            let is_in_memory = !matches!(copy, Copy::Directory(_));
            is_half_done.store(is_in_memory, Ordering::SeqCst);
            let failed = || Error::usage("the switch to this version has failed: prepare it again");
            let told = match (&mut *copy, made) {
                (Copy::Memory(own), Made::Memory(patches)) => own.apply(patches).map(|switched| Told::of(&switched)),
                (Copy::Into(lent), Made::Into(version)) => {
                    let version = Arc::get_mut(version).ok_or_else(|| Error::usage("the version is being read"));
                    version.and_then(|version| lent.apply(version, peers, watch)).map(|switched| Told::of(&switched))
                }
                (Copy::Directory(directory), Made::Directory(files)) => {
                    let files = files.take().ok_or_else(failed);
                    files.and_then(|files| directory.apply(files)).map(|switched| Told::of(&switched))
                }
                _ => Err(Error::usage("this was prepared by another subscriber")),
            };
            is_half_done.store(false, Ordering::SeqCst);
            // In memory an error comes before anything is changed, or it knows; in a directory, `current` may lead to
            // either version then.
            self.is_torn.store(told.is_err() && (was_torn || !is_in_memory), Ordering::SeqCst);
            let told = told?;
            self.switches.fetch_add(1, Ordering::SeqCst);
            *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
            Ok(())
        })
    }

    /// The newest version that exists and that the trusted keys have not signed, as far as is known.
    fn unsigned(&self, py: Python<'_>) -> PyResult<Option<Unsigned>> {
        let copy = free(py, &self.copy)?;
        Ok(of_each!(copy.get(py)?, follower, _wrap => follower.unsigned()))
    }

    /// What was stopped before goes on now.
    fn fresh_stop(&self) -> Stop {
        self.stop.reset();
        self.stop.clone()
    }
}

fn check_ties(places: &Places, version: &PreparedInPlace<Lent>) -> Result<()> {
    let tensors = version.tensors();
    let digests: BTreeMap<&str, Digest> = tensors.iter().map(|(info, digest)| (info.name(), *digest)).collect();
    places.check_ties(|name| digests.get(name))
}

fn not_into(py: Python<'_>) -> PyErr {
    usage(py, "its tensors are not the caller's", None)
}

fn being_read(py: Python<'_>) -> PyErr {
    usage(py, "tensors of the version are still being read", None)
}

fn close(py: Python<'_>, copy: &mut OfProcess<Copy>) -> PyResult<()> {
    let closed = copy.close(py)?;
    py.detach(|| drop(closed));
    Ok(())
}

/// A pause; one that cannot be counted is the longest.
fn seconds(pause: f64) -> Duration {
    Duration::try_from_secs_f64(pause.max(0.0)).unwrap_or(Duration::MAX)
}

/// When the time is over; `None` also for a time that never is.
fn deadline(timeout: Option<f64>) -> Option<Instant> {
    Instant::now().checked_add(Duration::try_from_secs_f64(timeout?.max(0.0)).ok()?)
}

impl Told {
    fn of<D>(switched: &Switched<D>) -> Self {
        let times = switched.times;
        let times = [times.plan, times.download, times.build, times.switch].map(|time| time.as_secs_f64());
        let fallback = switched.fallback.map(Fallback::name);
        Self { downloaded: switched.downloaded, routes: switched.routes.clone(), times, fallback }
    }
}

fn read_whole(state: &dyn State, number: usize) -> Result<Vec<u8>> {
    let info = state.tensors().get(number).ok_or_else(|| Error::usage("no such tensor"))?;
    let length = usize::try_from(info.bytes()).map_err(|_| Error::usage("the tensor is too long"))?;
    let mut bytes = vec![0; length];
    state.read(number, 0, &mut bytes)?;
    Ok(bytes)
}

impl Prepared {
    /// A version for the caller's tensors.
    fn version_in_place(&self, py: Python<'_>) -> PyResult<Arc<PreparedInPlace<Lent>>> {
        match free(py, &self.made)?.get(py)? {
            Made::Into(version) => Ok(Arc::clone(version)),
            _ => Err(not_into(py)),
        }
    }

    fn told(&self) -> Option<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[pymethods]
impl Prepared {
    #[getter]
    fn digest(&self) -> String {
        self.digest.to_string()
    }

    #[getter]
    fn commit(&self) -> String {
        self.commit.to_string()
    }

    /// The directory of its files, if it is for a directory and has not been switched to.
    fn directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        let made = free(py, &self.made)?;
        let Made::Directory(Some(files)) = made.get(py)? else { return Ok(None) };
        Ok(Some(files.directory().to_owned()))
    }

    /// Whether the copy has been switched to it.
    #[getter]
    fn is_applied(&self) -> bool {
        self.told().is_some()
    }

    /// Patches from number `begin` on, some at a time: one for each tensor that changes, in the order of shards and
    /// names.
    fn patches(&self, py: Python<'_>, begin: usize) -> PyResult<Vec<Row>> {
        let guard = free(py, &self.made)?;
        let made = guard.get(py)?;
        let rows = run(py, &How::default(), |_| {
            let (mut rows, mut passed) = (Rows::default(), begin);
            sets(made).iter().try_for_each(|set| rows.add_set(set, &mut passed))?;
            Ok(rows)
        })?;
        Ok(rows.finish())
    }

    /// What has been told of the switch to it; None before.
    #[getter(told)]
    fn told_of(&self) -> Option<Told> {
        self.told()
    }

    /// Of a version for the caller's tensors: whether it is taken in place, or else loaded as a whole.
    #[getter]
    fn is_in_place(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.version_in_place(py)?.is_whole())
    }

    /// What is written of a version that is taken in place, by the addresses of the storages and the numbers of the 16
    /// MiB of each: sums of old and of new values; None of one that is loaded as a whole.
    fn changes(&self, py: Python<'_>) -> PyResult<Option<Vec<SumsRow>>> {
        if self.version_in_place(py)?.is_whole() {
            return Ok(None);
        }
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(&(address, piece), sums): (&(usize, u64), &[Sums; 2])| {
            let [old, new] = sums.map(Sums::numbers);
            (address, piece, old, new)
        };
        Ok(Some(sums.iter().map(row).collect()))
    }

    /// Equal in all processes that work from the same table and sums, with the same links.
    fn agreement(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.version_in_place(py)?.agreement().to_string())
    }

    /// Name, dtype, shape and digest of the tensors of the version that are selected.
    fn table(&self, py: Python<'_>) -> PyResult<Vec<TableRow>> {
        let version = self.version_in_place(py)?;
        let row = |(info, digest): (&TensorInfo, Digest)| {
            (info.name().to_owned(), info.dtype().name().to_owned(), info.shape().to_vec(), digest.to_string())
        };
        Ok(version.tensors().into_iter().map(row).collect())
    }

    /// All tensors of a version that is loaded as a whole, one by one.
    fn tensors(&self, py: Python<'_>, threads: Option<Threads>) -> PyResult<Stream> {
        Stream::of(py, self.version_in_place(py)?, threads)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("updates"))
    }
}

fn sets(made: &Made) -> &[PatchSet] {
    match made {
        Made::Memory(patches) => patches.patch_sets(),
        Made::Directory(_) | Made::Into(_) => &[],
    }
}
