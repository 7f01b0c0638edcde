//! Following a chain: a copy of the model in memory, in a directory or in the caller's own tensors, and what changes in it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deltachain::memory::{LentState, PatchSet};
use deltachain::tensor::{Digest, State, TensorInfo};
use deltachain::{Error, Result};
use deltachain_store::{
    Lag, MemoryOptions, MemorySubscriber, Observer, OtherFiles, Prepared as PreparedFiles, PreparedPatches, Stop,
    Subscriber, SubscriberOptions, Switched, Weights, lag,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{no_pickle, usage};
use crate::memory::{Borrowed, Buffer, Kept};
use crate::operations::rows;
use crate::patches::{Row, Rows};
use crate::store::Store;
use crate::tensors::Lent;
use crate::work::{How, OfProcess, run};

/// What is kept at a version.
enum Copy {
    /// Memory of this process.
    Memory(MemorySubscriber),
    /// A directory, whose `current` is switched.
    Directory(Subscriber),
    /// Tensors of the caller's. Those that keep their memory are dropped last.
    Into(MemorySubscriber<LentState<'static>>, #[expect(dead_code, reason = "keeps the memory")] Vec<Borrowed>),
}

/// A version that has been prepared.
enum Made {
    Memory(PreparedPatches),
    Directory(PreparedFiles),
    Into(PreparedPatches<LentState<'static>>),
}

/// Keeps a copy of a model at a version of a chain. One call at a time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Follower {
    copy: Mutex<OfProcess<Copy>>,
    store: Py<Store>,
    /// Ends what the copy waits for in the store.
    stop: Stop,
}

/// A version that is ready; shared with the buffers that show it.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Prepared {
    made: Arc<Mutex<OfProcess<Made>>>,
    #[pyo3(get)]
    version: u64,
    digest: Digest,
}

/// What is being used by another thread is not waited for: it may itself wait for the interpreter's lock.
fn free<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> PyResult<MutexGuard<'a, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        Err(std::sync::TryLockError::WouldBlock) => Err(usage(py, "another thread is using it", None)),
    }
}

fn hex(py: Python<'_>, text: Option<&str>) -> PyResult<Option<Digest>> {
    let parse = |text| Digest::from_hex(text).ok_or_else(|| usage(py, format!("{text:?} is not a digest"), None));
    text.map(parse).transpose()
}

fn memory_options(
    tensors: Option<Vec<String>>,
    cache: Option<PathBuf>,
    rollback: Option<Digest>,
    adopt: bool,
) -> MemoryOptions {
    MemoryOptions::default().tensors(tensors).cache(cache).allow_rollback(rollback).adopt(adopt)
}

#[pymethods]
impl Follower {
    /// Keeps a copy in a directory if one is given, otherwise in memory.
    #[new]
    #[pyo3(signature = (store, directory, tensors, cache, other_files, allow_rollback, adopt))]
    fn new(
        py: Python<'_>,
        store: Py<Store>,
        directory: Option<PathBuf>,
        tensors: Option<Vec<String>>,
        cache: Option<PathBuf>,
        other_files: bool,
        allow_rollback: Option<&str>,
        adopt: bool,
    ) -> PyResult<Self> {
        let rollback = hex(py, allow_rollback)?;
        let stop = Stop::default();
        let chain = store.get().get(py)?.with_stop(stop.clone());
        let copy = run(py, &How { stop: Some(stop.clone()), ..How::default() }, |_| {
            Ok(match &directory {
                Some(directory) => {
                    let others = if other_files { OtherFiles::Assets } else { OtherFiles::None };
                    let options = SubscriberOptions::default().tensors(tensors).other_files(others);
                    let options = options.allow_rollback(rollback).adopt(adopt);
                    Copy::Directory(Subscriber::open(chain, directory, options)?)
                }
                None => Copy::Memory(MemorySubscriber::open(chain, memory_options(tensors, cache, rollback, adopt))?),
            })
        })?;
        Ok(Self { copy: Mutex::new(OfProcess::new(copy)), store, stop })
    }

    /// Version, digest, and directory of the files if there is one; None if nothing is held.
    fn held(&self, py: Python<'_>) -> PyResult<Option<(u64, String, Option<PathBuf>)>> {
        let copy = free(py, &self.copy)?;
        let in_memory = |held: deltachain_store::HeldVersion<()>| (held.version, held.state.to_string(), None);
        Ok(match copy.get(py)? {
            Copy::Memory(subscriber) => subscriber.held().map(in_memory),
            Copy::Into(subscriber, _) => subscriber.held().map(in_memory),
            Copy::Directory(subscriber) => {
                subscriber.held().map(|held| (held.version, held.state.to_string(), Some(held.directory.clone())))
            }
        })
    }

    /// Fetches and proves a version, or the head. None if it is held already.
    #[pyo3(signature = (version, timeout, threads, progress))]
    fn prepare(
        &self,
        py: Python<'_>,
        version: Option<u64>,
        timeout: Option<f64>,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Option<Prepared>> {
        let mut copy = free(py, &self.copy)?;
        let copy = copy.get_mut(py)?;
        let deadline = deadline(py, timeout)?;
        let how = How { threads, progress, deadline, stop: Some(self.fresh_stop()) };
        let made = run(py, &how, |watch| {
            let watch: &dyn Observer = watch;
            Ok(match copy {
                Copy::Memory(subscriber) => subscriber.prepare(version, watch)?.map(Made::Memory),
                Copy::Directory(subscriber) => subscriber.prepare(version, watch)?.map(Made::Directory),
                Copy::Into(subscriber, _) => subscriber.prepare(version, watch)?.map(Made::Into),
            })
        })?;
        Ok(made.map(Prepared::new))
    }

    /// Makes the copy hold the prepared version. Returns the version before, bytes fetched, routes, seconds of each
    /// phase, directory.
    fn switch<'py>(&self, py: Python<'py>, prepared: &Prepared) -> PyResult<Bound<'py, PyDict>> {
        let mut copy = free(py, &self.copy)?;
        let copy = copy.get_mut(py)?;
        let mut made = free(py, &prepared.made)?;
        if matches!(made.get(py)?, Made::Directory(_)) {
            let Some(Made::Directory(files)) = made.close(py)? else {
                return Err(usage(py, "it has been closed", None));
            };
            let Copy::Directory(subscriber) = copy else { return Err(foreign(py)) };
            let how = How { stop: Some(self.fresh_stop()), ..How::default() };
            let switched = run(py, &how, |_| subscriber.apply(files))?;
            let fields = told(py, &switched)?;
            fields.set_item("directory", switched.directory)?;
            return Ok(fields);
        }
        let made = made.get_mut(py)?;
        let switched = match (copy, made) {
            (Copy::Memory(subscriber), Made::Memory(patches)) => {
                run(py, &How::default(), |_| subscriber.settle(patches))
            }
            (Copy::Into(subscriber, _), Made::Into(patches)) => {
                run(py, &How::default(), |_| subscriber.settle(patches))
            }
            _ => return Err(foreign(py)),
        }?;
        told(py, &switched)
    }

    /// How far a version is behind the head: versions, and seconds since its commit was stored, if the store tells.
    fn lag(&self, py: Python<'_>, version: u64) -> PyResult<(u64, Option<f64>)> {
        let Lag { versions, seconds, .. } = self.store.get().ask(py, |store| Ok(lag(store, version)))?;
        Ok((versions, seconds))
    }

    /// Whether a version follows this one.
    fn has_after(&self, py: Python<'_>, version: u64) -> PyResult<bool> {
        self.store.get().ask(py, |store| store.has_commit_after(version))
    }

    /// Name, dtype and shape of the tensors in memory.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<(String, String, Vec<u64>)>> {
        let copy = free(py, &self.copy)?;
        Ok(match copy.get(py)? {
            Copy::Memory(subscriber) => rows(subscriber.state().tensors()),
            Copy::Into(subscriber, _) => rows(subscriber.state().tensors()),
            Copy::Directory(_) => return Err(usage(py, "its tensors are in files", None)),
        })
    }

    /// A copy of the bytes of a tensor in memory.
    fn read(&self, py: Python<'_>, number: usize) -> PyResult<Buffer> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        let bytes = run(py, &How::default(), |_| match copy {
            Copy::Memory(subscriber) => read_whole(&subscriber.state(), number),
            Copy::Into(subscriber, _) => read_whole(&subscriber.state(), number),
            Copy::Directory(_) => Err(Error::usage("its tensors are in files")),
        })?;
        Ok(Buffer::new(Kept::Bytes(bytes.into())))
    }

    /// Hashes the copy in memory and compares it with the version held.
    fn verify(&self, py: Python<'_>, threads: Option<usize>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let copy = free(py, &self.copy)?;
        let copy = copy.get(py)?;
        run(py, &How { threads, progress, ..How::default() }, |watch| match copy {
            Copy::Memory(subscriber) => subscriber.verify(watch),
            Copy::Into(subscriber, _) => subscriber.verify(watch),
            Copy::Directory(_) => Err(Error::usage("files are verified with the command `fsck --directory`")),
        })
    }

    /// Hands the version over from own memory to tensors of the caller's, which then are the copy. They are overwritten.
    #[pyo3(signature = (tensors, patterns, cache, adopt, threads, progress))]
    fn move_into(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyAny>,
        patterns: Option<Vec<String>>,
        cache: Option<PathBuf>,
        adopt: bool,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let mut copy = free(py, &self.copy)?;
        let copy = copy.get_mut(py)?;
        let Copy::Memory(own) = copy else { return Err(usage(py, "the copy is not in memory of its own", None)) };
        let Some(held) = own.held() else { return Err(usage(py, "nothing is held yet", None)) };
        let lent = Lent::of(tensors)?;
        check_same(py, own.state().tensors(), &lent)?;
        let store = self.store.get().get(py)?.with_stop(self.fresh_stop());
        let selected = patterns.is_some();
        let how = How { threads, progress, stop: Some(self.stop.clone()), ..How::default() };
        let moved = run(py, &how, |watch| {
            let (tensors, owners) = lent.into_parts();
            let mut tensors: BTreeMap<String, (TensorInfo, &'static mut [u8])> =
                tensors.into_iter().map(|(info, bytes)| (info.name().to_owned(), (info, bytes))).collect();
            let mut weights = Vec::new();
            for (memory, table) in own.memories().iter().zip(own.tables()) {
                let mut taken = Vec::new();
                for (number, info) in memory.tensors().iter().enumerate() {
                    let own = tensors.remove(info.name());
                    let (info, bytes) = own.ok_or_else(|| Error::usage("a tensor is missing"))?;
                    memory.read(number, 0, bytes)?;
                    taken.push((info, bytes));
                }
                let lent = LentState::new(taken)?;
                weights.push(if selected { Weights::part(lent, table.clone()) } else { Weights::whole(lent) });
            }
            let options = memory_options(patterns, cache, None, adopt);
            let subscriber = MemorySubscriber::with_weights(store, held.version, weights, options, watch)?;
            Ok((subscriber, owners))
        })?;
        *copy = Copy::Into(moved.0, moved.1);
        Ok(())
    }

    /// Checks that the caller has the tensors of the prepared version, so that they can become the copy.
    #[staticmethod]
    fn check_into(py: Python<'_>, tensors: &Bound<'_, PyAny>, prepared: &Prepared) -> PyResult<()> {
        let made = free(py, &prepared.made)?;
        let Made::Memory(patches) = made.get(py)? else { return Err(foreign(py)) };
        let all = patches.patch_sets().iter().flat_map(|set| {
            // Of a set that begins with nothing, all tensors come whole.
            set.whole_tensors().map(|(info, _)| info.clone())
        });
        let mut all: Vec<TensorInfo> = all.collect();
        all.sort_by(|left, right| left.name().cmp(right.name()));
        check_same(py, &all, &Lent::of(tensors)?)
    }

    /// Gives up the copy, its connections and its lock.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = free(py, &self.copy)?.close(py)?;
        py.detach(|| drop(closed));
        Ok(())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("subscribers"))
    }
}

impl Follower {
    /// What was stopped before goes on now.
    fn fresh_stop(&self) -> Stop {
        self.stop.reset();
        self.stop.clone()
    }
}

/// The lent tensors must be the tensors of the version: the error lists the ones that are not.
fn check_same(py: Python<'_>, wanted: &[TensorInfo], lent: &Lent) -> PyResult<()> {
    let given: Vec<&TensorInfo> = lent.infos().collect();
    let find = |name: &str| given.binary_search_by(|info| info.name().cmp(name)).ok().map(|number| given[number]);
    let is_wanted = |name: &str| wanted.binary_search_by(|info| info.name().cmp(name)).is_ok();
    let mut wrong: Vec<String> = Vec::new();
    for info in wanted {
        match find(info.name()) {
            None => wrong.push(format!("{:?} is missing", info.name())),
            Some(own) if own != info => wrong.push(format!(
                "{:?} is {} {:?}, not {} {:?}",
                info.name(),
                own.dtype(),
                own.shape(),
                info.dtype(),
                info.shape()
            )),
            Some(_) => {}
        }
    }
    let extra = given.iter().filter(|info| !is_wanted(info.name()));
    wrong.extend(extra.map(|info| format!("{:?} is not in the chain", info.name())));
    if wrong.is_empty() {
        return Ok(());
    }
    let more = if wrong.len() > 10 { format!(", and {} more", wrong.len() - 10) } else { String::new() };
    wrong.truncate(10);
    Err(usage(py, format!("the tensors are not those of the chain: {}{more}", wrong.join(", ")), None))
}

fn foreign(py: Python<'_>) -> PyErr {
    usage(py, "this was prepared by another subscriber", None)
}

fn deadline(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let wait = Duration::try_from_secs_f64(seconds.max(0.0));
    let wait = wait.map_err(|error| usage(py, format!("timeout: {error}"), None))?;
    Ok(Instant::now().checked_add(wait))
}

/// What a switch has changed, as a dictionary.
fn told<'py, D>(py: Python<'py>, switched: &Switched<D>) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("from", switched.from)?;
    fields.set_item("downloaded", switched.downloaded)?;
    fields.set_item("from_cache", switched.from_cache)?;
    fields.set_item("written", switched.written)?;
    fields.set_item("routes", switched.routes.clone())?;
    let times = switched.times;
    let seconds = [times.plan, times.download, times.build, times.switch].map(|time| time.as_secs_f64());
    fields.set_item("times", seconds.to_vec())?;
    Ok(fields)
}

fn read_whole(state: &dyn State, number: usize) -> Result<Vec<u8>> {
    let info = state.tensors().get(number).ok_or_else(|| Error::usage("no such tensor"))?;
    let length = usize::try_from(info.bytes()).map_err(|_| Error::usage("the tensor is too long"))?;
    let mut bytes = vec![0; length];
    state.read(number, 0, &mut bytes)?;
    Ok(bytes)
}

impl Prepared {
    fn new(made: Made) -> Self {
        let (version, digest) = match &made {
            Made::Memory(patches) => (patches.version(), patches.state()),
            Made::Into(patches) => (patches.version(), patches.state()),
            Made::Directory(files) => (files.version(), files.state()),
        };
        Self { made: Arc::new(Mutex::new(OfProcess::new(made))), version, digest }
    }
}

#[pymethods]
impl Prepared {
    #[getter]
    fn digest(&self) -> String {
        self.digest.to_string()
    }

    /// The directory of its files, if it is for a directory and has not been switched to.
    fn directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        let made = free(py, &self.made)?;
        Ok(match made.get(py)? {
            Made::Directory(files) => Some(files.directory().to_owned()),
            Made::Memory(_) | Made::Into(_) => None,
        })
    }

    /// How many patches there are.
    fn count(&self, py: Python<'_>) -> PyResult<usize> {
        let made = free(py, &self.made)?;
        Ok(sets(made.get(py)?).iter().map(tensors_of).sum())
    }

    /// Patches number `begin` to `end`: one for each tensor that changes, in the order of shards and names. Where a tensor's
    /// lanes stand in the arenas in one row, they are shown where they are.
    fn patches(&self, py: Python<'_>, begin: usize, end: usize) -> PyResult<Vec<Row>> {
        let guard = free(py, &self.made)?;
        let made = guard.get(py)?;
        let mut rows = Rows::default();
        let mut number = 0;
        for set in sets(made) {
            let all = tensors_of(set);
            let (from, to) = (begin.saturating_sub(number).min(all), end.saturating_sub(number).min(all));
            number += all;
            if from < to {
                rows.add_set(set, from..to, &self.made).map_err(|error| crate::errors::raised(py, &error))?;
            }
        }
        Ok(rows.finish())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("updates"))
    }
}

fn sets(made: &Made) -> &[PatchSet] {
    match made {
        Made::Memory(patches) => patches.patch_sets(),
        Made::Into(patches) => patches.patch_sets(),
        Made::Directory(_) => &[],
    }
}

/// Tensors of a set that have a patch.
fn tensors_of(set: &PatchSet) -> usize {
    set.runs().chunk_by(|left, right| left.tensor == right.tensor).count() + set.whole_tensors().count()
}
