//! Follows a chain: keeps a copy of the model in memory, in a directory or in the caller's own
//! tensors, and returns the changes of each version.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use deltachain::memory::{Alone, Elements, PatchSet, Peers, PlacedMemory, Places};
use deltachain::sums::Sums;
use deltachain::tensor::{State, TensorInfo};
use deltachain::{Error, Result};
use deltachain_store::{
    Directory, Fallback, FollowOptions, Follower as ChainFollower, FollowerOptions,
    HeldVersion as ChainHeldVersion, InPlace, Memory, Observer, OtherFiles, Phase, Place,
    Poller as ChainPoller, PreparedVersion, Stop, SwitchReport, lag, stored,
};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use rayon::ThreadPool;

use crate::errors::{cancelled, raised, usage};
use crate::forms::{TensorDigest, TensorForm, forms};
use crate::lent::{FoundTensors, GivenRow, LentMemory, LentVersion, ProcessGroup, RowSums};
use crate::memory::{Buffer, BufferOwner};
use crate::operations::digest_of;
use crate::patches::{PatchRows, TensorPatch};
use crate::settings::Named;
use crate::signing::{TrustedKeys, trust as trusted};
use crate::store::Store;
use crate::stream::Stream;
use crate::work::{
    AskedStore, Caller, How, OfProcess, Threads, Watch, new_pool, run, run_apart, run_until,
    seconds,
};

/// The follower of a chain, by where it keeps its copy of the model.
enum Keeper {
    /// Memory of this process.
    Memory(ChainFollower<Memory>),
    /// A directory, whose `current` is switched.
    Directory(ChainFollower<Directory>),
    /// The caller's tensors.
    Into(ChainFollower<InPlace<LentMemory>>),
}

impl Keeper {
    /// Returns the methods that every kind of copy has.
    fn copy(&self) -> &dyn ModelCopy {
        match self {
            Self::Memory(follower) => follower,
            Self::Directory(follower) => follower,
            Self::Into(follower) => follower,
        }
    }

    fn copy_mut(&mut self) -> &mut dyn ModelCopy {
        match self {
            Self::Memory(follower) => follower,
            Self::Directory(follower) => follower,
            Self::Into(follower) => follower,
        }
    }
}

/// Methods that every kind of copy has.
trait ModelCopy {
    /// The held version, with the directory of its files.
    fn held(&self, directory: Option<PathBuf>) -> Option<HeldVersion>;

    /// Level of proof that the copy is the held version.
    fn proof(&self) -> Option<&'static str>;

    /// The newest existing version if the trusted keys have not signed it.
    fn unsigned(&self) -> Option<String>;

    /// Prepares a version, or the head.
    fn prepare(
        &mut self,
        version: Option<u64>,
        watch: &dyn Observer,
    ) -> Result<Option<PreparedUpdate>>;

    /// Prepares the head if a poll is due.
    fn poll(
        &mut self,
        poller: &mut ChainPoller,
        watch: &dyn Observer,
    ) -> Result<Option<PreparedUpdate>>;

    /// Reports a failure to the poller. Returns the error if no retry can help.
    fn failed(&self, poller: &mut ChainPoller, error: Error) -> Result<()>;

    /// True if the error says that there is no such version yet, or no chain.
    fn is_missing(&self, version: Option<u64>, error: &Error, watch: &dyn Observer) -> bool;
}

impl<P: Place> ModelCopy for ChainFollower<P>
where
    Pending: From<PreparedVersion<P>>,
{
    fn held(&self, directory: Option<PathBuf>) -> Option<HeldVersion> {
        Some(HeldVersion::of(Self::held(self)?, directory))
    }

    fn proof(&self) -> Option<&'static str> {
        Some(Self::held(self)?.proof.name())
    }

    fn unsigned(&self) -> Option<String> {
        Self::unsigned(self).map(|unsigned| unsigned.to_string())
    }

    fn prepare(
        &mut self,
        version: Option<u64>,
        watch: &dyn Observer,
    ) -> Result<Option<PreparedUpdate>> {
        let prepared = Self::prepare(self, version, watch)?;
        Ok(prepared.map(PreparedUpdate::of))
    }

    fn poll(
        &mut self,
        poller: &mut ChainPoller,
        watch: &dyn Observer,
    ) -> Result<Option<PreparedUpdate>> {
        let prepared = poller.poll(self, watch)?;
        Ok(prepared.map(PreparedUpdate::of))
    }

    fn failed(&self, poller: &mut ChainPoller, error: Error) -> Result<()> {
        poller.failed(self, error).map(drop)
    }

    fn is_missing(&self, version: Option<u64>, error: &Error, watch: &dyn Observer) -> bool {
        Self::is_missing(self, version, error, watch)
    }
}

/// A version that has been prepared.
enum Pending {
    Memory(PreparedVersion<Memory>),
    /// `None` once a switch to the version has begun.
    Directory(Option<PreparedVersion<Directory>>),
    /// Shared with the streams that read its tensors.
    Into(Arc<LentVersion>),
}

impl From<PreparedVersion<Memory>> for Pending {
    fn from(version: PreparedVersion<Memory>) -> Self {
        Self::Memory(version)
    }
}

impl From<PreparedVersion<Directory>> for Pending {
    fn from(version: PreparedVersion<Directory>) -> Self {
        Self::Directory(Some(version))
    }
}

impl From<LentVersion> for Pending {
    fn from(version: LentVersion) -> Self {
        Self::Into(Arc::new(version))
    }
}

/// The result of a poll.
enum Outcome {
    /// The version does not exist yet, or there is no chain; the error says which.
    Missing(Error),
    Held,
    New(Box<PreparedUpdate>),
}

impl Outcome {
    /// Converts the result of preparing a version.
    fn of(
        made: Result<Option<PreparedUpdate>>,
        is_missing: impl FnOnce(&Error) -> bool,
    ) -> Result<Self> {
        match made {
            Ok(None) => Ok(Self::Held),
            Ok(Some(prepared)) => Ok(Self::New(Box::new(prepared))),
            Err(error) if is_missing(&error) => Ok(Self::Missing(error)),
            Err(error) => Err(error),
        }
    }
}

/// Polls a chain.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Polling {
    polling: Mutex<ChainPoller>,
    failure: Mutex<Option<String>>,
}

#[pymethods]
impl Polling {
    /// Makes a poller with the minimum and maximum pause, in seconds. It waits for versions whose
    /// number is a multiple of `every`.
    #[new]
    fn new(poll: f64, poll_longest: f64, every: Option<NonZeroU64>) -> Self {
        let poll = seconds(poll);
        let longest = seconds(poll_longest);
        let options = FollowOptions::default()
            .poll(poll)
            .poll_longest(longest.max(poll))
            .every(every);
        let polling = ChainPoller::new(&options);
        Self {
            polling: Mutex::new(polling),
            failure: Mutex::default(),
        }
    }

    /// Error of the last poll; None if it succeeded.
    #[getter]
    fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Polling {
    /// Polls the head.
    fn poll(&self, copy: &mut Keeper, watch: &dyn Observer) -> Result<Outcome> {
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = copy.copy_mut();
        let made = copy.poll(&mut polling, watch);
        let failure = made.as_ref().err().map(|error| format!("{error:#}"));
        // If the work has been stopped, the error is not a failure of the poll.
        watch.advance(Phase::Wait, 0)?;
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        match Outcome::of(made, |error| copy.is_missing(None, error, watch)) {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                watch.advance(Phase::Wait, 0)?;
                copy.failed(&mut polling, error)?;
                Ok(Outcome::Held)
            }
        }
    }

    /// Waits until the next poll. Returns true if the caller has ended the wait.
    fn wait(&self, py: Python<'_>, how: &How) -> PyResult<bool> {
        let waited = run_apart(py, how, |watch| {
            let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
            polling
                .wait(watch, || Ok(ControlFlow::Continue(())))
                .map(drop)
        })?;
        Ok(waited.is_none())
    }
}

/// The version that a copy has.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct HeldVersion {
    version: u64,
    /// The version's state digest.
    digest: String,
    /// The digest of its commit.
    commit: String,
    /// The digest of its chain's document.
    chain: String,
    metadata: BTreeMap<String, String>,
    /// The directory of its files; `None` if there are none.
    directory: Option<PathBuf>,
}

impl HeldVersion {
    fn of<D>(held: &ChainHeldVersion<D>, directory: Option<PathBuf>) -> Self {
        Self {
            version: held.version,
            digest: held.state.to_string(),
            commit: held.commit.to_string(),
            chain: held.chain.to_string(),
            metadata: held.metadata.clone(),
            directory,
        }
    }
}

/// The result of one poll.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct PollResult {
    /// False if there is no such version yet, or no chain.
    is_there: bool,
    /// The update that has been prepared; `None` if the version is held already.
    prepared: Option<Py<PreparedUpdate>>,
}

#[pymethods]
impl PollResult {
    #[new]
    fn new(is_there: bool, prepared: Option<Py<PreparedUpdate>>) -> Self {
        Self { is_there, prepared }
    }
}

/// The sums of the changes in a piece of 16 MiB of a storage.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct PieceSums {
    /// The address of the storage.
    storage: usize,
    /// The number of the piece in the storage.
    piece: u64,
    /// The sums of the old values of the changed lanes.
    old: (u32, u32),
    /// The sums of the new values.
    new: (u32, u32),
}

impl PieceSums {
    fn of(storage: usize, piece: u64, sums: [Sums; 2]) -> Self {
        let [old, new] = sums.map(|sums| sums.numbers().into());
        Self {
            storage,
            piece,
            old,
            new,
        }
    }
}

/// The lag of a version behind the head of its chain, with the field names of `deltachain`'s `Lag`.
#[derive(IntoPyObject)]
struct LagFigures {
    versions: u64,
    seconds: Option<f64>,
}

/// The settings of a [`Follower`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct FollowerSettings {
    /// Directory of the copy; `None` for memory.
    directory: Option<PathBuf>,
    /// Patterns of the tensors that are wanted; `None` for all.
    tensors: Option<Vec<String>>,
    cache: Option<PathBuf>,
    other_files: bool,
    allow_rollback: Option<String>,
    adopt: bool,
    trust: Option<TrustedKeys>,
    forget_trust: bool,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
}

/// Keeps a copy of a model at a version of a chain. Allows one call at a time.
#[pyclass(frozen, subclass, module = "deltachain._native")]
pub(crate) struct Follower {
    copy: Mutex<OfProcess<Keeper>>,
    /// The caller's thread, in which torch does the work on the caller's tensors.
    caller: Arc<Caller>,
    /// Threads for work that waits for other processes, if there has been such work.
    pool: Mutex<Option<Arc<ThreadPool>>>,
    /// Number of switches of the copy.
    switches: AtomicU64,
    /// True if a switch has begun, but has not ended.
    is_torn: AtomicBool,
    store: Py<Store>,
    /// The store, and the trouble that this follower has with it.
    asked: Arc<AskedStore>,
    /// Ends the copy's waits for the store.
    stop: Stop,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
}

/// A version that is ready to be switched to.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct PreparedUpdate {
    made: Mutex<OfProcess<Pending>>,
    #[pyo3(get)]
    version: u64,
    #[pyo3(get)]
    digest: String,
    #[pyo3(get)]
    commit: String,
    /// The metadata of the version's commit.
    #[pyo3(get)]
    metadata: BTreeMap<String, String>,
    /// The facts of the switch, once the copy has been switched to this version.
    told: Mutex<Option<SwitchFacts>>,
    /// The sums of the changes in the caller's memory; empty if they are not wanted.
    sums: Mutex<RowSums>,
}

/// Facts about a switch.
#[derive(Clone, IntoPyObject)]
struct SwitchFacts {
    downloaded: u64,
    routes: Vec<(Option<u64>, u64)>,
    times: SwitchTimes,
    /// The reason why the tensors were loaded as a whole, if they were.
    fallback: Option<&'static str>,
}

/// Seconds of each phase, with the field names of `deltachain`'s `Times`.
#[derive(Clone, IntoPyObject)]
struct SwitchTimes {
    plan: f64,
    download: f64,
    build: f64,
    switch: f64,
}

/// Locks a value. Returns an error instead of waiting if another thread is using the value, because
/// that thread may itself wait for the interpreter's lock.
fn free<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> PyResult<MutexGuard<'a, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        Err(std::sync::TryLockError::WouldBlock) => {
            Err(usage(py, "another thread is using it: one at a time", None))
        }
    }
}

#[pymethods]
impl Follower {
    /// Keeps a copy in the directory of the settings; without a directory, in memory of its own, or
    /// in the caller's tensors if `is_into`. The caller's tensors are bound when the tensors of a
    /// version are known.
    #[new]
    fn new(
        py: Python<'_>,
        store: Py<Store>,
        is_into: bool,
        settings: Named<FollowerSettings>,
    ) -> PyResult<Self> {
        let settings = settings.0;
        let others = if settings.other_files {
            OtherFiles::Assets
        } else {
            OtherFiles::None
        };
        let options = FollowerOptions::default()
            .tensors(settings.tensors)
            .cache(settings.cache)
            .other_files(others)
            .adopt(settings.adopt)
            .trust(trusted(py, settings.trust)?)
            .forget_trust(settings.forget_trust)
            .allow_rollback(digest_of(py, settings.allow_rollback.as_deref())?);
        let stop = Stop::default();
        let chain = store.get().get(py)?.with_stop(stop.clone());
        let asked = Arc::new(AskedStore::new(&chain));
        let copy = run(
            py,
            &How {
                stop: Some(stop.clone()),
                ..How::default()
            },
            |_| {
                Ok(match &settings.directory {
                    Some(directory) => {
                        Keeper::Directory(ChainFollower::in_directory(chain, directory, options)?)
                    }
                    None if is_into => Keeper::Into(ChainFollower::in_place(chain, options)?),
                    None => Keeper::Memory(ChainFollower::in_memory(chain, options)?),
                })
            },
        )?;
        Ok(Self {
            copy: Mutex::new(OfProcess::new(copy)),
            caller: Arc::default(),
            pool: Mutex::default(),
            switches: AtomicU64::new(0),
            is_torn: AtomicBool::new(false),
            store,
            asked,
            stop,
            threads: settings.threads,
            progress: settings.progress,
        })
    }

    /// The held version, if there is one.
    fn held(&self, py: Python<'_>) -> PyResult<Option<HeldVersion>> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        let files = if let Keeper::Directory(kept) = copy {
            kept.held().map(|held| held.directory.clone())
        } else {
            None
        };
        Ok(copy.copy().held(files))
    }

    /// Level of proof that the copy is the held version; None if no version is held.
    #[getter]
    fn proof(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let copy = free(py, &self.copy)?;
        Ok(copy.get(py)?.copy().proof())
    }

    /// Number of switches of the copy.
    #[getter]
    fn switches(&self) -> u64 {
        self.switches.load(Ordering::SeqCst)
    }

    /// True if the copy may hold parts of two versions, because a switch has begun, but has not
    /// ended.
    #[getter]
    fn is_torn(&self, py: Python<'_>) -> PyResult<bool> {
        if let Keeper::Into(follower) = free(py, &self.copy)?.get(py)? {
            return Ok(follower.is_torn());
        }
        Ok(self.is_torn.load(Ordering::SeqCst))
    }

    /// Polls once for a version, or the head, and prepares it unless it is held already. As in
    /// `prepare`, the work ends when `until` returns something true.
    fn poll(
        &self,
        py: Python<'_>,
        version: Option<u64>,
        timeout: Option<f64>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<PollResult> {
        let unsigned = self.unsigned(py)?;
        let mut how = How {
            deadline: deadline(timeout),
            is_unsigned: unsigned.is_some(),
            waits_for: unsigned,
            ..self.stoppable(py, until)
        };
        let outcome = self.prepared(py, version, &mut how)?;
        Ok(PollResult {
            is_there: !matches!(outcome, Outcome::Missing(_)),
            prepared: match outcome {
                Outcome::New(prepared) => Some(Py::new(py, *prepared)?),
                Outcome::Missing(_) | Outcome::Held => None,
            },
        })
    }

    /// Waits for a version, or for any version other than the held one, and prepares it. Returns
    /// None if the version is held already.
    fn prepare(
        &self,
        py: Python<'_>,
        version: Option<u64>,
        timeout: Option<f64>,
        poll: f64,
        until: Option<Py<PyAny>>,
    ) -> PyResult<Option<PreparedUpdate>> {
        let unsigned = self.unsigned(py)?;
        let mut how = How {
            deadline: deadline(timeout),
            is_unsigned: unsigned.is_some(),
            waits_for: unsigned,
            ..self.stoppable(py, until)
        };
        let polling = Polling::new(poll, poll, None);
        loop {
            match self.prepared(py, version, &mut how)? {
                Outcome::New(prepared) => return Ok(Some(*prepared)),
                Outcome::Held if version.is_some() => return Ok(None),
                Outcome::Held | Outcome::Missing(_) if polling.wait(py, &how)? => {
                    return Err(cancelled(py));
                }
                Outcome::Held | Outcome::Missing(_) => {}
            }
        }
    }

    /// Waits for the next version, after a pause if `waits`, and prepares it. Retries after
    /// failures. Returns None once `until` returns something true.
    fn next(
        &self,
        py: Python<'_>,
        polling: &Polling,
        mut waits: bool,
        until: Option<Py<PyAny>>,
    ) -> PyResult<Option<PreparedUpdate>> {
        let how = self.stoppable(py, until);
        loop {
            if waits && polling.wait(py, &how)? {
                return Ok(None);
            }
            waits = true;
            match self.with_copy(py, &how, |copy, watch| polling.poll(copy, watch))? {
                None => return Ok(None),
                Some(Outcome::New(prepared)) => return Ok(Some(*prepared)),
                Some(Outcome::Held | Outcome::Missing(_)) => {}
            }
        }
    }

    /// Switches the copy to the prepared version. May be called again after an interrupted call: if
    /// that call has switched the copy, returns its facts. `ranks` are the processes that hold the
    /// caller's tensors together.
    fn switch(
        &self,
        py: Python<'_>,
        prepared: &PreparedUpdate,
        ranks: Option<Py<PyAny>>,
    ) -> PyResult<SwitchFacts> {
        let mut copy = free(py, &self.copy)?;
        let mut made = free(py, &prepared.made)?;
        if prepared.told().is_none() {
            let is_half_done = AtomicBool::new(false);
            let how = self.with_caller(py, self.stoppable(py, None), ranks.is_some())?;
            let peers = self.peers(ranks);
            let copy_of = copy.get_mut(py)?;
            let made = made.get_mut(py)?;
            let switched = run(py, &how, |watch| {
                self.exchange(copy_of, made, prepared, &*peers, &is_half_done, watch)
            });
            if is_half_done.into_inner() {
                // The call panicked, and the content of the copy is unknown.
                close(py, &mut copy)?;
            }
            switched?;
        }
        prepared
            .told()
            .ok_or_else(|| usage(py, "the update was prepared by another subscriber", None))
    }

    /// The lag of a version behind the head. Its seconds are None if the store has no times.
    fn lag(&self, py: Python<'_>, version: u64) -> PyResult<LagFigures> {
        let store = self.store.get();
        let lag = store.work(py, How::default(), |store, _| Ok(lag(store, version)))?;
        Ok(LagFigures {
            versions: lag.versions,
            seconds: lag.seconds,
        })
    }

    /// The time at which a version was published, by the store's clock, if the store has times.
    fn stored(&self, py: Python<'_>, version: u64) -> PyResult<Option<SystemTime>> {
        self.store
            .get()
            .work(py, How::default(), |store, _| stored(store, version))
    }

    /// Name, dtype and shape of the tensors in memory.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<TensorForm>> {
        match free(py, &self.copy)?.get(py)? {
            Keeper::Memory(subscriber) => Ok(forms(subscriber.state().tensors())),
            Keeper::Into(_) | Keeper::Directory(_) => {
                Err(usage(py, "its tensors are elsewhere", None))
            }
        }
    }

    /// A copy of the bytes of a tensor in memory.
    fn read(&self, py: Python<'_>, number: usize) -> PyResult<Buffer> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        let bytes = run(py, &How::default(), |_| match copy {
            Keeper::Memory(subscriber) => read_whole(&subscriber.state(), number),
            Keeper::Into(_) | Keeper::Directory(_) => {
                Err(Error::usage("its tensors are elsewhere"))
            }
        })?;
        Ok(Buffer::new(BufferOwner::Bytes(bytes.into())))
    }

    /// Hashes the copy in memory and compares it with the held version.
    fn verify(&self, py: Python<'_>, until: Option<Py<PyAny>>) -> PyResult<()> {
        let how = self.with_caller(py, self.how(py, until), false)?;
        self.compared(py, &how, |copy, watch| match copy {
            Keeper::Memory(own) => own.verify(watch),
            Keeper::Into(lent) => lent.verify(watch),
            Keeper::Directory(_) => Err(Error::usage(
                "the files of a directory are checked by `deltachain fsck DIR`",
            )),
        })
    }

    /// Compares the sums of the caller's tensors with the sums of the held version. A copy in
    /// memory of its own is hashed instead. If the caller's tensors differ, they count as holding
    /// no version if `doubts`, and still as holding their version otherwise.
    fn check(
        &self,
        py: Python<'_>,
        ranks: Option<Py<PyAny>>,
        doubts: bool,
        until: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let how = self.with_caller(py, self.how(py, until), ranks.is_some())?;
        let peers = self.peers(ranks);
        self.compared(py, &how, |copy, watch| match copy {
            Keeper::Memory(own) => own.verify(watch),
            Keeper::Into(lent) if doubts => lent.check(&*peers, watch).map(drop),
            Keeper::Into(lent) => lent.compare(&*peers, watch).map(drop),
            Keeper::Directory(_) => Err(Error::usage(
                "the files of a directory are checked by `deltachain fsck DIR`",
            )),
        })
    }

    // The methods from here to `doubt` are for the caller's tensors.

    /// Finds the places of the caller's tensors for a version. `torch` reads and writes them if
    /// some are on a device.
    fn place(
        &self,
        py: Python<'_>,
        prepared: &PreparedUpdate,
        given: Vec<GivenRow>,
        torch: Option<Py<PyAny>>,
        wants_sums: bool,
    ) -> PyResult<FoundTensors> {
        let version = prepared.version_in_place(py)?;
        let tensors = version.tensors();
        let infos: Vec<TensorInfo> = tensors.iter().map(|(info, _)| (*info).clone()).collect();
        let lent = LentMemory::new(
            py,
            infos,
            &given,
            torch,
            Arc::clone(&self.caller),
            wants_sums,
        )?;
        version
            .check_ties(lent.places())
            .map_err(|error| raised(py, &error))?;
        Ok(FoundTensors(Mutex::new(Some(lent))))
    }

    /// True if a version has the tensors that are bound. Refuses a version in which tensors that
    /// lie in the same memory differ.
    fn fits(&self, py: Python<'_>, prepared: &PreparedUpdate) -> PyResult<bool> {
        let version = prepared.version_in_place(py)?;
        let found = self.with_into(py, |follower| match follower.memory() {
            Some(lent) => fits(lent.places(), &version),
            None => Ok(false),
        });
        found?.map_err(|error| raised(py, &error))
    }

    /// Binds these tensors, which follow the chain from now on. `all` has the result of
    /// [`FoundTensors::told`] of each process; `own` is the number of this process.
    fn bind(
        &self,
        py: Python<'_>,
        placed: &FoundTensors,
        own: usize,
        all: Vec<PyBackedBytes>,
    ) -> PyResult<()> {
        let lent = bound_once(py, placed)?;
        let told = all
            .iter()
            .map(|word| serde_json::from_slice(word))
            .collect::<serde_json::Result<Vec<_>>>();
        let told = told.map_err(|error| {
            usage(
                py,
                format!("the message of another process is invalid: {error}"),
                None,
            )
        })?;
        let (all, unused): (Vec<Vec<Vec<Elements>>>, Vec<BTreeSet<String>>) =
            told.into_iter().unzip();
        let needs = |name: &str| !unused.iter().all(|unused| unused.contains(name));
        self.bind_divided(py, lent, own, &all, needs)
    }

    /// Binds these tensors, which follow the chain from now on, when no other process has any.
    /// `unused` are the names of the tensors that are not needed.
    fn bind_alone(
        &self,
        py: Python<'_>,
        placed: &FoundTensors,
        unused: BTreeSet<String>,
    ) -> PyResult<()> {
        let lent = bound_once(py, placed)?;
        let places = lent.places();
        let parts = (0..places.tensors().len()).map(|number| places.parts(number));
        let elements = parts.map(|parts| parts.iter().map(|part| part.elements().into()).collect());
        let own: Vec<Vec<Elements>> = elements.collect();
        self.bind_divided(py, lent, 0, &[own], |name| !unused.contains(name))
    }

    /// Proves the changes of a version, without writing them.
    fn prove(
        &self,
        py: Python<'_>,
        prepared: &PreparedUpdate,
        ranks: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let how = self.with_caller(py, self.how(py, None), ranks.is_some())?;
        let peers = self.peers(ranks);
        let mut made = free(py, &prepared.made)?;
        let Pending::Into(version) = made.get_mut(py)? else {
            return Err(not_into(py));
        };
        let version = Arc::get_mut(version).ok_or_else(|| being_read(py))?;
        self.compared(py, &how, |copy, watch| match copy {
            Keeper::Into(follower) => {
                // Drops the sums of an earlier proof that did not end.
                drop(follower.memory().map(LentMemory::take_sums));
                follower.prove(version, &*peers, watch)?;
                let sums = follower
                    .memory()
                    .map(LentMemory::take_sums)
                    .unwrap_or_default();
                *prepared.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
                Ok(())
            }
            _ => Err(Error::usage("its tensors are not the caller's")),
        })
    }

    /// Records that the caller begins to load a version in its own way.
    fn begin(&self, py: Python<'_>, prepared: &PreparedUpdate) -> PyResult<()> {
        let version = prepared.version_in_place(py)?;
        self.with_into(py, |follower| follower.begin(&version))?
            .map_err(|error| raised(py, &error))
    }

    /// Returns all tensors of a version that is loaded as a whole, in batches.
    fn stream(&self, py: Python<'_>, prepared: &PreparedUpdate) -> PyResult<Stream> {
        Stream::of(py, prepared.version_in_place(py)?, self.threads)
    }

    /// Records that the caller has loaded the whole version. Returns the facts of the switch, as
    /// `switch` does.
    fn finish(&self, py: Python<'_>, prepared: &PreparedUpdate) -> PyResult<SwitchFacts> {
        let version = prepared.version_in_place(py)?;
        let told = self
            .with_into(py, |follower| follower.finish(&version))?
            .map_err(|error| raised(py, &error))?;
        let told = SwitchFacts::of(&told);
        self.switches.fetch_add(1, Ordering::SeqCst);
        *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told.clone());
        Ok(told)
    }

    /// Makes the next version be loaded as a whole, for one of these reasons. `torn`: the content
    /// of the tensors is unknown. `place`: the tensors have moved, or their place is unknown.
    /// `budget`: there was no room for the changes.
    fn doubt(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let is_named = |fallback: &Fallback| fallback.name() == why;
        let why = [Fallback::Torn, Fallback::Place]
            .into_iter()
            .find(is_named)
            .unwrap_or(Fallback::Budget);
        self.with_into(py, |follower| follower.doubt(why))
    }

    /// Visits the progress callback, which may refer to the owner of this object, and so to this
    /// object.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.progress)
    }

    /// The reason why the store does not answer; None if it does. Any thread may read this.
    #[getter]
    fn trouble(&self) -> Option<String> {
        self.asked.trouble()
    }

    /// Closes the copy, its connections, its own threads and its lock.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        close(py, &mut *free(py, &self.copy)?)?;
        let pool = self
            .pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| drop(pool));
        Ok(())
    }
}

impl Follower {
    /// Runs work with the copy. Returns None if [`How::until`] has ended it.
    fn with_copy<T: Send>(
        &self,
        py: Python<'_>,
        how: &How,
        work: impl FnOnce(&mut Keeper, &dyn Observer) -> Result<T> + Send,
    ) -> PyResult<Option<T>> {
        let mut copy = free(py, &self.copy)?;
        let copy = copy.get_mut(py)?;
        run_until(py, how, |watch| work(copy, watch))
    }

    /// Same as [`with_copy`](Self::with_copy), for work that reads the tensors. Fails with
    /// CANCELLED if [`How::until`] has ended it.
    fn compared(
        &self,
        py: Python<'_>,
        how: &How,
        work: impl FnOnce(&mut Keeper, &dyn Observer) -> Result<()> + Send,
    ) -> PyResult<()> {
        self.with_copy(py, how, work)?.ok_or_else(|| cancelled(py))
    }

    /// Returns settings for work on the caller's tensors. Work that `waits` for other processes
    /// gets a pool of its own.
    fn with_caller(&self, py: Python<'_>, how: How, waits: bool) -> PyResult<How> {
        let mut pool = None;
        if waits {
            let mut own = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
            if own.is_none() {
                *own = Some(Arc::new(new_pool(py, self.threads)?));
            }
            pool.clone_from(&own);
        }
        Ok(How {
            caller: Some(Arc::clone(&self.caller)),
            pool,
            ..how
        })
    }

    fn with_into<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut ChainFollower<InPlace<LentMemory>>) -> T,
    ) -> PyResult<T> {
        let mut copy = free(py, &self.copy)?;
        let Keeper::Into(follower) = copy.get_mut(py)? else {
            return Err(not_into(py));
        };
        Ok(work(follower))
    }

    /// Binds tensors that are divided among processes. `all` has the elements in each process.
    fn bind_divided(
        &self,
        py: Python<'_>,
        mut lent: LentMemory,
        own: usize,
        all: &[Vec<Vec<Elements>>],
        needs: impl Fn(&str) -> bool,
    ) -> PyResult<()> {
        let divided = lent.places_mut().divide(own, all, needs);
        divided.map_err(|error| raised(py, &error))?;
        self.with_into(py, |follower| follower.bind(lent))
    }

    /// Returns the processes that hold the tensors together.
    fn peers(&self, ranks: Option<Py<PyAny>>) -> Box<dyn Peers + Send> {
        match ranks {
            Some(ranks) => Box::new(ProcessGroup {
                ranks: Arc::new(ranks),
                caller: Arc::clone(&self.caller),
            }),
            None => Box::new(Alone),
        }
    }

    /// Prepares a version, or the head.
    fn prepared(&self, py: Python<'_>, version: Option<u64>, how: &mut How) -> PyResult<Outcome> {
        let polled = self.with_copy(py, how, |copy, watch| {
            let copy = copy.copy_mut();
            let made = copy.prepare(version, watch);
            Outcome::of(made, |error| copy.is_missing(version, error, watch))
        })?;
        let unsigned = self.unsigned(py)?;
        how.is_unsigned = unsigned.is_some();
        how.waits_for = unsigned.or_else(|| match &polled {
            Some(Outcome::Missing(error)) => Some(format!("{error:#}")),
            _ => None,
        });
        polled.ok_or_else(|| cancelled(py))
    }

    /// Switches the copy. Records the result before anything else can fail, because Ctrl-C ends the
    /// wait for a switch, but not the switch.
    fn exchange(
        &self,
        copy: &mut Keeper,
        made: &mut Pending,
        prepared: &PreparedUpdate,
        peers: &dyn Peers,
        is_half_done: &AtomicBool,
        watch: &Watch,
    ) -> Result<()> {
        let was_torn = self.is_torn.swap(true, Ordering::SeqCst);
        let is_in_memory = !matches!(copy, Keeper::Directory(_));
        is_half_done.store(is_in_memory, Ordering::SeqCst);
        let failed = || Error::usage("the switch to this version failed: prepare it again");
        let told = match (&mut *copy, made) {
            (Keeper::Memory(own), Pending::Memory(patches)) => own
                .apply(patches)
                .map(|switched| SwitchFacts::of(&switched)),
            (Keeper::Into(lent), Pending::Into(version)) => {
                let version =
                    Arc::get_mut(version).ok_or_else(|| Error::usage("the version is being read"));
                version
                    .and_then(|version| lent.apply(version, peers, watch))
                    .map(|switched| SwitchFacts::of(&switched))
            }
            (Keeper::Directory(directory), Pending::Directory(files)) => {
                let files = files.take().ok_or_else(failed);
                files
                    .and_then(|files| directory.apply(files))
                    .map(|switched| SwitchFacts::of(&switched))
            }
            _ => Err(Error::usage(
                "the update was prepared by another subscriber",
            )),
        };
        is_half_done.store(false, Ordering::SeqCst);
        // In memory, an error comes before any change, or the follower knows that its tensors are
        // torn. In a directory, `current` may lead to either version after an error.
        self.is_torn.store(
            told.is_err() && (was_torn || !is_in_memory),
            Ordering::SeqCst,
        );
        let told = told?;
        self.switches.fetch_add(1, Ordering::SeqCst);
        *prepared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        Ok(())
    }

    /// The newest known version if the trusted keys have not signed it.
    fn unsigned(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let copy = free(py, &self.copy)?;
        Ok(copy.get(py)?.copy().unsigned())
    }

    fn how(&self, py: Python<'_>, until: Option<Py<PyAny>>) -> How {
        let progress = self
            .progress
            .as_ref()
            .map(|progress| progress.clone_ref(py));
        How {
            threads: self.threads,
            progress,
            until,
            ..How::default()
        }
    }

    /// Same as [`how`](Self::how), for work that may wait for the store. Clears an earlier stop.
    fn stoppable(&self, py: Python<'_>, until: Option<Py<PyAny>>) -> How {
        self.stop.reset();
        How {
            stop: Some(self.stop.clone()),
            asked: Some(Arc::clone(&self.asked)),
            ..self.how(py, until)
        }
    }
}

/// True if a version has the tensors of these places.
fn fits(places: &Places, version: &LentVersion) -> Result<bool> {
    let is_same = places
        .tensors()
        .iter()
        .eq(version.tensors().into_iter().map(|(info, _)| info));
    if is_same {
        version.check_ties(places).map(|()| true)
    } else {
        Ok(false)
    }
}

/// Takes the tensors that have been found. They can be bound only once.
fn bound_once(py: Python<'_>, placed: &FoundTensors) -> PyResult<LentMemory> {
    let mut found = placed.0.lock().unwrap_or_else(PoisonError::into_inner);
    found
        .take()
        .ok_or_else(|| usage(py, "this has been bound", None))
}

fn not_into(py: Python<'_>) -> PyErr {
    usage(py, "its tensors are not the caller's", None)
}

fn being_read(py: Python<'_>) -> PyErr {
    usage(py, "tensors of the version are still being read", None)
}

fn close(py: Python<'_>, copy: &mut OfProcess<Keeper>) -> PyResult<()> {
    let closed = copy.close(py)?;
    py.detach(|| drop(closed));
    Ok(())
}

/// Returns the time at which a timeout ends; `None` if it never ends.
fn deadline(timeout: Option<f64>) -> Option<Instant> {
    Instant::now().checked_add(Duration::try_from_secs_f64(timeout?.max(0.0)).ok()?)
}

impl SwitchFacts {
    fn of<D>(switched: &SwitchReport<D>) -> Self {
        let times = switched.times;
        let times = SwitchTimes {
            plan: times.plan.as_secs_f64(),
            download: times.download.as_secs_f64(),
            build: times.build.as_secs_f64(),
            switch: times.switch.as_secs_f64(),
        };
        let fallback = switched.fallback.map(Fallback::name);
        Self {
            downloaded: switched.downloaded,
            routes: switched.routes.clone(),
            times,
            fallback,
        }
    }
}

fn read_whole(state: &dyn State, number: usize) -> Result<Vec<u8>> {
    let info = state
        .tensors()
        .get(number)
        .ok_or_else(|| Error::usage("no such tensor"))?;
    let length =
        usize::try_from(info.bytes()).map_err(|_| Error::usage("the tensor is too long"))?;
    let mut bytes = vec![0; length];
    state.read(number, 0, &mut bytes)?;
    Ok(bytes)
}

impl PreparedUpdate {
    /// Converts the prepared version of any kind of copy for Python.
    fn of<P: Place>(version: PreparedVersion<P>) -> Self
    where
        Pending: From<PreparedVersion<P>>,
    {
        let held = version.held();
        Self {
            version: held.version,
            digest: held.state.to_string(),
            commit: held.commit.to_string(),
            metadata: held.metadata.clone(),
            made: Mutex::new(OfProcess::new(version.into())),
            told: Mutex::new(None),
            sums: Mutex::default(),
        }
    }

    /// Returns the version, which must be one for the caller's tensors.
    fn version_in_place(&self, py: Python<'_>) -> PyResult<Arc<LentVersion>> {
        match free(py, &self.made)?.get(py)? {
            Pending::Into(version) => Ok(Arc::clone(version)),
            _ => Err(not_into(py)),
        }
    }
}

#[pymethods]
impl PreparedUpdate {
    /// The directory of the version's files, if it is for a directory and has not been switched to.
    fn directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        let made = free(py, &self.made)?;
        let Pending::Directory(Some(files)) = made.get(py)? else {
            return Ok(None);
        };
        Ok(Some(files.held().directory.clone()))
    }

    /// The tensors of a version for a copy in memory of its own; empty for other versions.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<TensorForm>> {
        let made = free(py, &self.made)?;
        let Pending::Memory(patches) = made.get(py)? else {
            return Ok(Vec::new());
        };
        let tables = patches.patch_sets().iter().map(PatchSet::table);
        Ok(tables.flat_map(|table| forms(&table.tensors)).collect())
    }

    /// Returns patches from number `begin` on, as many as fit one call. There is one patch for each
    /// tensor that changes, in the order of shards and, within a shard, of [`PatchRows::add_set`].
    fn patches(&self, py: Python<'_>, begin: usize) -> PyResult<Vec<TensorPatch>> {
        let guard = free(py, &self.made)?;
        let made = guard.get(py)?;
        let rows = run(py, &How::default(), |_| {
            let mut rows = PatchRows::default();
            let mut passed = begin;
            if let Pending::Memory(patches) = made {
                patches
                    .patch_sets()
                    .iter()
                    .try_for_each(|set| rows.add_set(set, &mut passed))?;
            }
            Ok(rows)
        })?;
        rows.finish(py)
    }

    /// The facts of the switch to this version; None before the switch.
    #[getter]
    fn told(&self) -> Option<SwitchFacts> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// True if the version is applied in place to the caller's tensors, false if it is loaded as a
    /// whole.
    #[getter]
    fn is_in_place(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.version_in_place(py)?.is_whole())
    }

    /// The sums of the old and of the new values that a version writes in place, for each piece of
    /// 16 MiB of each storage; None for a version that is loaded as a whole.
    fn changes(&self, py: Python<'_>) -> PyResult<Option<Vec<PieceSums>>> {
        if self.version_in_place(py)?.is_whole() {
            return Ok(None);
        }
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let sums = sums.iter();
        let pieces = sums.map(|((storage, piece), sums)| PieceSums::of(*storage, *piece, *sums));
        Ok(Some(pieces.collect()))
    }

    /// A digest that is equal in all processes that work from the same table and sums, with the
    /// same links.
    fn agreement(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.version_in_place(py)?.agreement().to_string())
    }

    /// Name, dtype, shape and digest of the version's selected tensors.
    fn table(&self, py: Python<'_>) -> PyResult<Vec<TensorDigest>> {
        let version = self.version_in_place(py)?;
        let tensors = version.tensors().into_iter();
        Ok(tensors
            .map(|(info, digest)| TensorDigest::of(info, digest))
            .collect())
    }
}
