//! Following a chain: a copy of the model in memory, in a directory or in the caller's own tensors, and what changes in
//! it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use deltachain::chain::Unsigned;
use deltachain::memory::{PatchSet, Proof, StateMemory};
use deltachain::sums::Sums;
use deltachain::tensor::{Digest, State};
use deltachain::{Error, Result};
use deltachain_store::{
    Directory, Engine, Fallback, FollowOptions, Follower as ChainFollower, FollowerOptions, Lag, Memory, Observer,
    OtherFiles, Phase, Polling as ChainPolling, Prepared as PreparedFiles, PreparedPatches, PreparedRoute, Stop,
    Switched, lag, stored,
};
use pyo3::prelude::*;

use crate::errors::{cancelled, no_pickle, raised, usage};
use crate::gate;
use crate::into::Provided;
use crate::memory::{Buffer, Kept};
use crate::operations::{Info, digest_of, rows};
use crate::patches::{Row, Rows};
use crate::places;
use crate::plans::{Plans, TableRow, Tensors, table_rows, tensors_from};
use crate::signing::{TrustRow, trust as trusted};
use crate::store::Store;
use crate::tensors::Lent;
use crate::work::{How, OfProcess, Threads, run, run_apart, run_until};

/// What is kept at a version.
enum Copy {
    /// Memory of this process.
    Memory(ChainFollower<Memory>),
    /// A directory, whose `current` is switched.
    Directory(ChainFollower<Directory>),
    /// Tensors of the caller's, from the first version on.
    Into(ChainFollower<Memory<Lent>>),
    /// None: what is prepared is written by Python, or is the first version of the caller's tensors.
    Engine(ChainFollower<Engine>),
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
                let $wrap = Made::Into;
                $act
            }
            Copy::Engine($follower) => {
                let $wrap = |route| Made::Engine(Some(Arc::new(route)));
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
        }
    };
}

/// A version that has been prepared.
enum Made {
    Memory(PreparedPatches),
    /// Nothing once a switch to it has begun.
    Directory(Option<PreparedFiles>),
    Into(PreparedPatches<Lent>),
    /// Nothing once it has been switched to.
    Engine(Option<Arc<PreparedRoute>>),
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

/// The two sums of each piece of a tensor.
type PieceSums = Vec<[u32; 2]>;

/// Keeps a copy of a model at a version of a chain. One call at a time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Follower {
    copy: Mutex<OfProcess<Copy>>,
    /// The caller's tensors, if they are to be the copy.
    into: Option<Provided>,
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
    /// Keeps a copy in a directory if one is given, otherwise in memory: in tensors of the caller's, if they are given,
    /// which are overwritten: a function gives the mapping that they are in. With `is_engine` there is no copy: Python writes what is prepared to its tensors, and
    /// tells it.
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
        into: Option<Py<PyAny>>,
        trust: Option<TrustRow>,
        forget_trust: bool,
        is_engine: bool,
    ) -> PyResult<Self> {
        let rollback = digest_of(py, allow_rollback)?;
        let others = if other_files { OtherFiles::Assets } else { OtherFiles::None };
        let options = FollowerOptions::default()
            .tensors(tensors)
            .cache(cache)
            .other_files(others)
            .adopt(adopt)
            .trust(trusted(py, trust)?)
            .forget_trust(forget_trust);
        let into = into.map(|into| Provided { tensors: into, options: options.clone() });
        let options = options.allow_rollback(rollback);
        let stop = Stop::default();
        let chain = store.get().get(py)?.with_stop(stop.clone());
        let is_engine = is_engine || into.is_some();
        let copy = run(py, &How { stop: Some(stop.clone()), ..How::default() }, |_| {
            Ok(match &directory {
                Some(directory) => Copy::Directory(ChainFollower::in_directory(chain, directory, options)?),
                None if is_engine => Copy::Engine(ChainFollower::for_engine(chain, options)?),
                None => Copy::Memory(ChainFollower::in_memory(chain, options)?),
            })
        })?;
        let (switches, is_torn) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { copy: Mutex::new(OfProcess::new(copy)), into, switches, is_torn, store, stop })
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

    /// Whether a switch has begun and not come to its end: the copy may hold parts of two versions.
    #[getter]
    fn is_torn(&self) -> bool {
        self.is_torn.load(Ordering::SeqCst)
    }

    /// Whether the tensors that Python writes may hold parts of two versions.
    #[getter]
    fn is_engine_torn(&self, py: Python<'_>) -> PyResult<bool> {
        self.with_engine(py, |engine| engine.is_torn())
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
        let mut how = How { threads, progress, deadline, unsigned, stop, until };
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
        let mut how = How { threads, progress, deadline, unsigned, stop, until };
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
            match self.with_copy(py, &how, false, |copy, watch| polling.poll(copy, watch))? {
                None => return Ok(None),
                Some(Polled::New(prepared)) => return self.fitting(py, prepared).map(|prepared| Some(*prepared)),
                Some(Polled::Held | Polled::Missing) => {}
            }
        }
    }

    /// Makes the copy hold the prepared version, also after that was interrupted. Returns bytes fetched, routes, and
    /// seconds of each phase.
    fn switch(
        &self,
        py: Python<'_>,
        prepared: &Prepared,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Told> {
        let mut copy = free(py, &self.copy)?;
        let mut made = free(py, &prepared.made)?;
        if prepared.told().is_none() {
            let is_half_done = AtomicBool::new(false);
            let how = How { threads, progress, stop: Some(self.fresh_stop()), ..How::default() };
            self.note_written(py)?;
            if let (Some(name), Made::Into(patches)) = (self.moved(py, copy.get_mut(py)?)?, made.get(py)?)
                && !patches.is_whole()
            {
                return Err(raised(py, &places::moved(&name)));
            }
            if matches!(copy.get(py)?, Copy::Engine(_)) {
                self.load_first(py, copy.get_mut(py)?, made.get_mut(py)?, prepared, &how)?;
            } else {
                let switched = self.exchange(py, copy.get_mut(py)?, made.get_mut(py)?, prepared, &is_half_done, &how);
                if is_half_done.into_inner() {
                    // It has panicked, and nobody knows what the copy holds.
                    close(py, &mut copy)?;
                }
                switched?;
            }
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
        let mut copy = free(py, &self.copy)?;
        self.refuse_moved(py, copy.get_mut(py)?)?;
        Ok(match copy.get(py)? {
            Copy::Memory(subscriber) => rows(subscriber.state().tensors()),
            Copy::Into(subscriber) => rows(subscriber.state().tensors()),
            Copy::Engine(_) => Vec::new(),
            Copy::Directory(_) => return Err(usage(py, "its tensors are in files", None)),
        })
    }

    /// A copy of the bytes of a tensor in memory.
    fn read(&self, py: Python<'_>, number: usize) -> PyResult<Buffer> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        let bytes = run(py, &How::default(), |_| match copy {
            Copy::Memory(subscriber) => read_whole(&subscriber.state(), number),
            Copy::Into(subscriber) => read_whole(&subscriber.state(), number),
            Copy::Engine(_) | Copy::Directory(_) => Err(Error::usage("its tensors are in files")),
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
        self.prove(py, &How { threads, progress, until, ..How::default() }, Proof::Hashed)
    }

    /// Compares the sums of the copy in memory with those of the version held; hashes it where they are not known.
    fn check(
        &self,
        py: Python<'_>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        self.prove(py, &How { threads, progress, until, ..How::default() }, Proof::Memory)
    }

    // For tensors that Python writes.

    /// It begins to write a version.
    fn begin(&self, py: Python<'_>, prepared: &Prepared) -> PyResult<()> {
        let route = prepared.route(py)?;
        self.with_engine(py, |engine| engine.begin(&route))?.map_err(|error| raised(py, &error))
    }

    /// It has gone back; `is_intact` unless somebody else has written to the tensors.
    fn undone(&self, py: Python<'_>, prepared: &Prepared, is_intact: bool) -> PyResult<()> {
        let route = prepared.route(py)?;
        self.with_engine(py, |engine| engine.undone(&route, is_intact))?.map_err(|error| raised(py, &error))
    }

    /// It has written all of a version. Returns what `switch` does.
    fn switched(&self, py: Python<'_>, prepared: &Prepared, proof: &str) -> PyResult<Told> {
        let proof = proof_named(py, proof)?;
        let route = prepared.taken_route(py)?;
        let told = self.with_engine(py, |engine| engine.switched(route, proof))?.map_err(|error| raised(py, &error))?;
        let told = Told::of(&told);
        self.switches.fetch_add(1, Ordering::SeqCst);
        *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told.clone());
        Ok(told)
    }

    /// Nobody knows what the tensors hold.
    fn lost(&self, py: Python<'_>) -> PyResult<()> {
        self.with_engine(py, ChainFollower::<Engine>::lost)
    }

    /// A version could not be proven, for lack of memory if `is_budget`: it is to be loaded as a whole.
    fn failed(&self, py: Python<'_>, prepared: &Prepared, is_budget: bool) -> PyResult<()> {
        let route = prepared.route(py)?;
        let why = if is_budget { Fallback::Budget } else { Fallback::Proof };
        self.with_engine(py, |engine| engine.failed(&route, why))
    }

    /// The tensors lie elsewhere than before, or it is not known where: the next version is loaded as a whole.
    fn displaced(&self, py: Python<'_>) -> PyResult<()> {
        self.with_engine(py, ChainFollower::<Engine>::displaced)
    }

    /// All of the tensors have been compared with the version held: how far they are proven, or None if they are
    /// something else.
    fn checked(&self, py: Python<'_>, proof: Option<&str>) -> PyResult<()> {
        let proof = proof.map(|proof| proof_named(py, proof)).transpose()?;
        self.with_engine(py, |engine| engine.checked(proof))
    }

    /// For each tensor of the version held its sums, if they are known.
    fn sums(&self, py: Python<'_>) -> PyResult<Vec<(String, Option<PieceSums>)>> {
        self.with_engine(py, |engine| {
            let tables = engine.tables().zip(engine.sums());
            let rows = tables.flat_map(|(table, sums)| table.tensors.iter().zip(&sums.tensors));
            let numbers = |sums: &Vec<Sums>| sums.iter().map(|sums| sums.numbers()).collect();
            rows.map(|(info, sums)| (info.name().to_owned(), sums.as_ref().map(numbers))).collect()
        })
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
    /// Works with the copy, unless that `refuses` tensors that have been moved. None if the caller has ended it.
    fn with_copy<T: Send>(
        &self,
        py: Python<'_>,
        how: &How,
        refuses: bool,
        work: impl FnOnce(&mut Copy, &dyn Observer) -> Result<T> + Send,
    ) -> PyResult<Option<T>> {
        let mut copy = free(py, &self.copy)?;
        let copy = copy.get_mut(py)?;
        if refuses { self.refuse_moved(py, copy) } else { self.moved(py, copy).map(drop) }?;
        run_until(py, how, |watch| work(copy, watch))
    }

    /// Compares where the caller's tensors lie with where they lay. If one lies elsewhere, whose name this is, all are
    /// bound anew, and the next version is loaded as a whole.
    fn moved(&self, py: Python<'_>, copy: &mut Copy) -> PyResult<Option<String>> {
        let (Some(into), Copy::Into(lent)) = (&self.into, copy) else { return Ok(None) };
        let (name, now) = match into.moved(py, lent.memories()) {
            Ok(None) => return Ok(None),
            Ok(Some((name, now))) => (Ok(Some(name)), Some(now)),
            Err(error) => (Err(error), None),
        };
        lent.displaced(now).map_err(|error| raised(py, &error))?;
        name
    }

    /// The same for callers that are not to load anything.
    fn refuse_moved(&self, py: Python<'_>, copy: &mut Copy) -> PyResult<()> {
        self.moved(py, copy)?.map_or(Ok(()), |name| Err(raised(py, &places::moved(&name))))
    }

    /// Compares the copy in memory with the version held: hashed, or by its sums.
    fn prove(&self, py: Python<'_>, how: &How, proof: Proof) -> PyResult<()> {
        fn compare<M: StateMemory + Send>(
            memory: &mut ChainFollower<Memory<M>>,
            proof: Proof,
            watch: &dyn Observer,
        ) -> Result<()> {
            if proof == Proof::Hashed { memory.verify(watch) } else { memory.check(watch).map(drop) }
        }
        let proven = self.with_copy(py, how, true, |copy, watch| match copy {
            Copy::Memory(own) => compare(own, proof, watch),
            Copy::Into(lent) => compare(lent, proof, watch),
            Copy::Engine(_) => Ok(()),
            Copy::Directory(_) => Err(Error::usage("the files of a directory are checked by `deltachain fsck DIR`")),
        })?;
        proven.ok_or_else(|| cancelled(py))
    }

    /// Works with the follower whose tensors Python writes.
    fn with_engine<T>(&self, py: Python<'_>, work: impl FnOnce(&mut ChainFollower<Engine>) -> T) -> PyResult<T> {
        let mut copy = free(py, &self.copy)?;
        let Copy::Engine(engine) = copy.get_mut(py)? else {
            return Err(usage(py, "its tensors are not written by Python", None));
        };
        Ok(work(engine))
    }

    /// Prepares a version, or the head.
    fn prepared(&self, py: Python<'_>, version: Option<u64>, how: &mut How) -> PyResult<Polled> {
        let polled = self.with_copy(py, how, false, |copy, watch| {
            of_each!(copy, follower, wrap => {
                let made = follower.prepare(version, watch).map(|made| made.map(|made| prepared!(made, wrap)));
                Polled::of(made, |error| follower.is_missing(version, error, watch))
            })
        })?;
        how.unsigned = self.unsigned(py)?;
        Ok(match polled.ok_or_else(|| cancelled(py))? {
            Polled::New(prepared) => Polled::New(self.fitting(py, prepared)?),
            other => other,
        })
    }

    /// The caller must have the tensors of a first version.
    fn fitting(&self, py: Python<'_>, prepared: Box<Prepared>) -> PyResult<Box<Prepared>> {
        if let (Made::Engine(Some(route)), Some(into)) = (free(py, &prepared.made)?.get(py)?, &self.into) {
            into.lent(py, route)?;
        }
        Ok(prepared)
    }

    /// Switches the copy. What comes of it is noted before anything else can fail: Ctrl-C ends the waiting for a
    /// switch, not the switch.
    fn exchange(
        &self,
        py: Python<'_>,
        copy: &mut Copy,
        made: &mut Made,
        prepared: &Prepared,
        is_half_done: &AtomicBool,
        how: &How,
    ) -> PyResult<()> {
        run(py, how, |watch| {
            let was_torn = self.is_torn.swap(true, Ordering::SeqCst);
            let is_in_place = !matches!(copy, Copy::Directory(_));
            is_half_done.store(is_in_place, Ordering::SeqCst);
            let mut is_lost = false;
            let failed = || Error::usage("the switch to this version has failed: prepare it again");
            let told = match (&mut *copy, made) {
                (Copy::Memory(own), Made::Memory(patches)) => {
                    own.apply(patches, watch).map(|switched| Told::of(&switched))
                }
                (Copy::Into(lent), Made::Into(patches)) => {
                    let switched = if patches.is_whole() {
                        lent.apply(patches, watch).and_then(|switched| lent.verify(watch).map(|()| switched))
                    } else {
                        still_patched(lent, patches, watch, &mut is_lost)
                    };
                    switched.map(|switched| Told::of(&switched))
                }
                (Copy::Directory(directory), Made::Directory(files)) => {
                    let files = files.take().ok_or_else(failed);
                    files.and_then(|files| directory.apply(files)).map(|switched| Told::of(&switched))
                }
                _ => Err(Error::usage("this was prepared by another subscriber")),
            };
            is_half_done.store(false, Ordering::SeqCst);
            // In memory of its own an error comes before anything is changed; in a directory, `current` may lead to
            // either version then.
            let is_torn = match copy {
                Copy::Into(lent) => lent.is_torn() || is_lost,
                _ => told.is_err() && (was_torn || !is_in_place),
            };
            self.is_torn.store(is_torn, Ordering::SeqCst);
            let told = told?;
            self.switches.fetch_add(1, Ordering::SeqCst);
            *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
            Ok(())
        })
    }

    /// Writes the first version to the caller's tensors, which are the copy from then on.
    fn load_first(
        &self,
        py: Python<'_>,
        copy: &mut Copy,
        made: &mut Made,
        prepared: &Prepared,
        how: &How,
    ) -> PyResult<()> {
        let (Some(into), Copy::Engine(engine), Made::Engine(made)) = (&self.into, &mut *copy, made) else {
            return Err(usage(py, "this was prepared by another subscriber", None));
        };
        let Some(route) = made.clone() else { return Err(usage(py, "this has been applied", None)) };
        let store = self.store.get().get(py)?.with_stop(self.stop.clone());
        let lent = into.lent(py, &route)?;
        self.is_torn.store(true, Ordering::SeqCst);
        let follower = run(py, how, |watch| into.load(lent, &route, store, watch))?;
        drop(route);
        let route = made.take().and_then(Arc::into_inner);
        let route = route.ok_or_else(|| usage(py, "the version is still being read", None))?;
        let told = engine.switched(route, Proof::Hashed).map_err(|error| raised(py, &error))?;
        self.switches.fetch_add(1, Ordering::SeqCst);
        *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Told::of(&told));
        *copy = Copy::Into(follower);
        self.is_torn.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Tells torch that the caller's tensors are written to, so that a backward pass that needs the old values fails.
    fn note_written(&self, py: Python<'_>) -> PyResult<()> {
        let Some(into) = &self.into else { return Ok(()) };
        py.import("deltachain._tensors")?.getattr("note_written")?.call1((into.given(py)?,)).map(drop)
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

/// Patches the caller's tensors with the interpreter's lock, so that no code in Python moves them after they have been
/// compared. Whoever does so without the lock is noticed afterwards.
fn still_patched(
    lent: &mut ChainFollower<Memory<Lent>>,
    patches: &mut PreparedPatches<Lent>,
    watch: &dyn Observer,
    is_lost: &mut bool,
) -> Result<Switched<()>> {
    let switched = gate::attach(|py| {
        lent.memories().iter().try_for_each(|memory| memory.check(py))?;
        let switched = places::still(py, || lent.apply(patches, watch));
        let is_here = lent.memories().iter().try_for_each(|memory| memory.check(py));
        *is_lost = is_here.is_err();
        is_here.or_else(|error| lent.displaced(None).and(Err(error)))?;
        switched
    });
    switched.ok_or_else(|| Error::usage("the interpreter is about to end"))?
}

fn close(py: Python<'_>, copy: &mut OfProcess<Copy>) -> PyResult<()> {
    let closed = copy.close(py)?;
    py.detach(|| drop(closed));
    Ok(())
}

fn proof_named(py: Python<'_>, name: &str) -> PyResult<Proof> {
    let all = [Proof::ChangedLanes, Proof::Memory, Proof::Hashed];
    all.into_iter().find(|proof| proof.name() == name).ok_or_else(|| usage(py, format!("no proof {name:?}"), None))
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
    /// What is written by Python.
    fn route(&self, py: Python<'_>) -> PyResult<Arc<PreparedRoute>> {
        match free(py, &self.made)?.get(py)? {
            Made::Engine(Some(route)) => Ok(Arc::clone(route)),
            _ => Err(usage(py, "its tensors are not written by Python, or it has been applied", None)),
        }
    }

    /// The same, which is given up.
    fn taken_route(&self, py: Python<'_>) -> PyResult<PreparedRoute> {
        let mut made = free(py, &self.made)?;
        let Made::Engine(route) = made.get_mut(py)? else {
            return Err(usage(py, "its tensors are not written by Python", None));
        };
        let route = route.take().and_then(Arc::into_inner);
        route.ok_or_else(|| usage(py, "it has been applied, or its plans are still being read", None))
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

    /// Of a version for tensors that Python writes: whether it is taken in place, or else loaded as a whole.
    #[getter]
    fn is_in_place(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.route(py)?.kind() == deltachain_store::How::InPlace)
    }

    /// Equal in all processes that work from the same table and sums, with the same links.
    fn agreement(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.route(py)?.agreement().to_string())
    }

    /// Name, dtype, shape and digest of the tensors of the version.
    fn table(&self, py: Python<'_>) -> PyResult<Vec<TableRow>> {
        Ok(table_rows(&*self.route(py)?))
    }

    /// What links do to lanes, of a version that is taken in place.
    fn plans(&self, py: Python<'_>, threads: Option<Threads>) -> PyResult<Plans> {
        Plans::of(py, self.route(py)?, threads)
    }

    /// Some tensors of a version that is loaded as a whole, from number `begin` on, and the number to go on with.
    fn tensors(&self, py: Python<'_>, begin: usize, threads: Option<Threads>) -> PyResult<Tensors> {
        let route = self.route(py)?;
        run(py, &How { threads, ..How::default() }, |_| tensors_from(&route, begin))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("updates"))
    }
}

fn sets(made: &Made) -> &[PatchSet] {
    match made {
        Made::Memory(patches) => patches.patch_sets(),
        Made::Into(patches) => patches.patch_sets(),
        Made::Directory(_) | Made::Engine(_) => &[],
    }
}
