//! Publishes the tensors that a training process has in memory: takes snapshots, makes links
//! between them, and commits.
//!
//! Two buffers take turns. One holds the version that was published last, from which links are
//! made; the next snapshot is copied into the other one. After that is published, the snapshot
//! after it overwrites the first buffer.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, MemoryState, State, TensorInfo};
use deltachain::{Error, Result};
use deltachain_store::{
    Base, Model, PublishOptions, PublishReport, Publisher as ChainPublisher, ShardPart,
    SkippedStep, Snapshots, Stop,
};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use rayon::prelude::*;

use crate::errors::{raised, usage};
use crate::forms::TensorForm;
use crate::operations::{ProfileName, digest_of};
use crate::settings::Named;
use crate::signing::{KeySigner, TrustedKeys, signers, trust as trusted};
use crate::store::Store;
use crate::tensors::{Finder, STRETCH, TensorBytes};
use crate::work::{How, OfProcess, Threads, Watch, pool, run, run_until};

/// If more bytes than this are copied, several threads copy them, each this many bytes at a time.
const LARGE: usize = 4 << 20;

/// A tensor to be copied, from the attributes of `deltachain._publisher.GivenTensor`.
#[derive(FromPyObject)]
struct GivenTensor<'py> {
    /// The number of its shard.
    shard: usize,
    name: String,
    tensor: Bound<'py, PyAny>,
    /// `None` for any dtype and shape.
    expected: Option<ExpectedForm>,
}

/// The dtype and shape that a tensor must have.
#[derive(FromPyObject)]
struct ExpectedForm {
    dtype: String,
    shape: Vec<u64>,
}

/// The headers of a checkpoint.
#[derive(IntoPyObject)]
pub(crate) struct Checkpoint {
    /// The tensors, ascending by name.
    tensors: Vec<CheckpointTensor>,
    /// The `__metadata__` of all files together.
    metadata: BTreeMap<String, String>,
}

/// A tensor of a checkpoint.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct CheckpointTensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// The file with the tensor's data.
    path: PathBuf,
    /// The offset of the tensor's first byte in that file.
    offset: u64,
}

impl CheckpointTensor {
    /// Describes the tensor with this number.
    fn of(files: &SafetensorsState, number: usize, info: &TensorInfo) -> Self {
        let TensorForm { name, dtype, shape } = TensorForm::of(info);
        let (path, offset) = files.place(number);
        Self {
            name,
            dtype,
            shape,
            path: path.to_owned(),
            offset,
        }
    }
}

/// Reads the headers of a safetensors file, or of a directory of them. Keys and values of metadata
/// begin with the folder of their file, as the names of tensors do.
#[pyfunction]
pub(crate) fn checkpoint(py: Python<'_>, path: PathBuf) -> PyResult<Checkpoint> {
    let files = run(py, &How::default(), |_| SafetensorsState::open(&path))?;
    let tensors = files.tensors().iter().enumerate();
    let notes = files.layout().files().iter().flat_map(|file| {
        let named = |text: &str| format!("{}{text}", file.folder());
        file.metadata
            .iter()
            .flatten()
            .map(move |(key, value)| (named(key), named(value)))
    });
    Ok(Checkpoint {
        tensors: tensors
            .map(|(number, info)| CheckpointTensor::of(&files, number, info))
            .collect(),
        metadata: notes.collect(),
    })
}

/// Assigns a shard to each tensor, given by name and length in bytes. The result depends only on
/// the arguments, so it is the same in every process with the same tensors.
#[pyfunction]
pub(crate) fn divide(sizes: BTreeMap<String, u64>, shards: usize) -> BTreeMap<String, usize> {
    let tensors: Vec<_> = sizes
        .iter()
        .map(|(name, length)| (name.as_str(), *length))
        .collect();
    let places = deltachain_store::divide(&tensors, shards, &BTreeMap::new());
    sizes.into_keys().zip(places).collect()
}

/// Makes a state of the tensors of a shard.
fn shard_of(tensors: BTreeMap<String, (TensorInfo, Vec<u8>)>) -> Result<MemoryState> {
    let mut shard = MemoryState::new();
    for (info, data) in tensors.into_values() {
        shard.insert(info.name(), info.dtype(), info.shape(), data)?;
    }
    Ok(shard)
}

/// Returns the memory of shards for reuse, by the names of the tensors.
fn spare_of(shards: BTreeMap<usize, MemoryState>) -> HashMap<String, Vec<u8>> {
    let tensors = shards.into_values().flat_map(MemoryState::into_tensors);
    tensors
        .map(|(info, data)| (info.name().to_owned(), data))
        .collect()
}

/// A copy of the trainer's tensors, or of the tensors of its shards, which tensors are added to.
#[pyclass(module = "deltachain._native")]
pub(crate) struct Snapshot {
    shards: BTreeMap<usize, BTreeMap<String, (TensorInfo, Vec<u8>)>>,
    /// Memory of an older snapshot for reuse, by the name of its tensor.
    spare: HashMap<String, Vec<u8>>,
}

#[pymethods]
impl Snapshot {
    /// Copies tensors into the snapshot. Each replaces a tensor of the same name.
    fn add(&mut self, py: Python<'_>, given: Vec<GivenTensor<'_>>) -> PyResult<()> {
        let mut finder = Finder::new(py)?;
        let mut copies = Vec::with_capacity(given.len());
        for tensor in given {
            let GivenTensor {
                shard,
                name,
                tensor,
                expected,
            } = tensor;
            let (info, bytes) = finder.find(&name, &tensor, false)?;
            if let Some(ExpectedForm { dtype, shape }) = &expected
                && (info.dtype().name(), info.shape()) != (dtype, shape)
            {
                let found = format!("{} of shape {:?}", info.dtype(), info.shape());
                let text =
                    format!("the checkpoint has {dtype} of shape {shape:?}, but this is {found}");
                return Err(usage(py, text, Some(&name)));
            }
            let length = usize::try_from(info.bytes())
                .map_err(|_| usage(py, "the tensor is too long", Some(&name)))?;
            let tensors = self.shards.entry(shard).or_default();
            let old = tensors
                .remove(&name)
                .map(|(_, data)| data)
                .or_else(|| self.spare.remove(&name));
            let data = match old {
                Some(data) if data.len() == length => data,
                _ => allocated(py, &name, length)?,
            };
            copies.push(TensorCopy {
                shard,
                name,
                info,
                bytes,
                data,
            });
        }
        fill(py, &mut copies)?;
        for TensorCopy {
            shard,
            name,
            info,
            data,
            ..
        } in copies
        {
            self.shards
                .entry(shard)
                .or_default()
                .insert(name, (info, data));
        }
        Ok(())
    }

    /// True if the snapshot's copy of a tensor has the dtype, shape and bytes of `tensor`.
    fn is_same(
        &self,
        py: Python<'_>,
        shard: usize,
        name: &str,
        tensor: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let Some((own, data)) = self
            .shards
            .get(&shard)
            .and_then(|tensors| tensors.get(name))
        else {
            return Ok(false);
        };
        let (info, bytes) = Finder::new(py)?.find(name, tensor, false)?;
        if (info.dtype(), info.shape()) != (own.dtype(), own.shape()) {
            return Ok(false);
        }
        let (info, other) = (info.clone(), allocated(py, name, data.len())?);
        let mut copies = [TensorCopy {
            shard,
            name: name.to_owned(),
            info,
            bytes,
            data: other,
        }];
        fill(py, &mut copies)?;
        Ok(py.detach(|| copies.iter().all(|copy| copy.data == *data)))
    }
}

fn allocated(py: Python<'_>, name: &str, length: usize) -> PyResult<Vec<u8>> {
    let mut data = Vec::new();
    let room = data.try_reserve_exact(length);
    room.map_err(|error| {
        usage(
            py,
            format!("{length} bytes for a copy: {error}"),
            Some(name),
        )
    })?;
    data.resize(length, 0);
    Ok(data)
}

/// A tensor that is being copied.
struct TensorCopy {
    shard: usize,
    name: String,
    info: TensorInfo,
    bytes: TensorBytes,
    data: Vec<u8>,
}

/// Copies the bytes of tensors. Many bytes are copied by several threads, without the interpreter's
/// lock.
fn fill(py: Python<'_>, copies: &mut [TensorCopy]) -> PyResult<()> {
    let mut stretches = Vec::new();
    let mut length = 0;
    for TensorCopy {
        name, bytes, data, ..
    } in copies
    {
        match bytes {
            TensorBytes::Here(here) => {
                length += data.len();
                stretches.extend(data.chunks_mut(LARGE).zip(here.bytes().chunks(LARGE)));
            }
            TensorBytes::Elsewhere(_) => {
                let mut offset = 0;
                for stretch in data.chunks_mut(STRETCH) {
                    let end = offset + stretch.len() as u64;
                    let read = bytes.read(offset..end, stretch);
                    read.map_err(|error| usage(py, format!("{error:#}"), Some(name)))?;
                    offset = end;
                }
            }
        }
    }
    if length <= LARGE {
        stretches
            .into_iter()
            .for_each(|(to, from)| to.copy_from_slice(from));
        return Ok(());
    }
    let pool = pool(py, None)?;
    py.detach(|| {
        pool.install(|| {
            stretches
                .into_par_iter()
                .for_each(|(to, from)| to.copy_from_slice(from));
        });
    });
    Ok(())
}

/// The publisher of one process, with its copies of the tensors.
struct Inner {
    publisher: ChainPublisher,
    like: Option<SafetensorsState>,
    known: KnownHead,
    /// Memory of an older version, by the names of the tensors, for the next snapshot.
    spare: HashMap<String, Vec<u8>>,
}

/// The head's tensors in this process, and the process's knowledge of the head.
/// `deltachain_store::Publisher` keeps the commits.
#[derive(Default)]
struct KnownHead {
    seen: SeenHead,
    own: OwnVersion,
    prepared: PreparedShards,
}

/// The caller's knowledge of the head.
#[derive(Default)]
struct SeenHead {
    /// True if a step was skipped that is lower than the newest one, and the caller was warned.
    has_warned: bool,
}

/// The tensors of the version that was published last. Links are made from them if that version is
/// still the head.
#[derive(Default)]
struct OwnVersion {
    /// The shards of this process, by their numbers; empty before the first version.
    shards: BTreeMap<usize, MemoryState>,
}

/// The shards whose links have been stored, and that are not committed yet; empty if there are
/// none.
#[derive(Default)]
struct PreparedShards {
    shards: BTreeMap<usize, MemoryState>,
    /// The parts of the shards, in the process that commits.
    parts: Vec<ShardPart>,
}

impl KnownHead {
    /// Records shards that have been stored.
    fn prepare(&mut self, prepared: PreparedShards) {
        self.prepared = prepared;
    }

    /// Takes the parts of the prepared shards, for their commit.
    fn take_parts(&mut self) -> Vec<ShardPart> {
        std::mem::take(&mut self.prepared.parts)
    }

    /// Records that the prepared shards have become the head. Returns the shards that were
    /// published before.
    fn publish(&mut self) -> BTreeMap<usize, MemoryState> {
        let prepared = std::mem::take(&mut self.prepared);
        self.seen.has_warned = false;
        std::mem::replace(&mut self.own.shards, prepared.shards)
    }

    /// Removes the prepared shards, and returns them.
    fn discard(&mut self) -> BTreeMap<usize, MemoryState> {
        std::mem::take(&mut self.prepared).shards
    }
}

/// The settings of a [`Publisher`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PublisherSettings {
    like: Option<PathBuf>,
    profiles: Vec<ProfileName>,
    routes: RoutePlan,
    guard: Guard,
    assets: bool,
    exclude: Vec<String>,
    keep_last: Option<u64>,
    scratch: Option<PathBuf>,
    once: Option<String>,
    sign: Vec<KeySigner>,
    trust: Option<TrustedKeys>,
    vouch: Option<String>,
    unsigned: bool,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
}

/// The routes of versions, from the attributes of `deltachain.RoutePlan`.
#[derive(FromPyObject)]
struct RoutePlan {
    snapshot_cost: Option<f64>,
    snapshot_every: Option<u64>,
    skips: Vec<u64>,
}

/// The conditions on which a version is refused, from the attributes of `deltachain.Guard`.
#[derive(FromPyObject)]
struct Guard {
    max_changed: Option<f64>,
    refuse_nonfinite: bool,
    allow_empty: bool,
}

impl RoutePlan {
    /// Returns when snapshots are added. An infinite cost means never.
    fn snapshots(&self) -> Snapshots {
        match (self.snapshot_cost, self.snapshot_every) {
            (_, Some(every)) => Snapshots::Every(every),
            (Some(cost), None) if cost.is_infinite() => Snapshots::Never,
            (Some(cost), None) => Snapshots::Cost(cost),
            (None, None) => Snapshots::default(),
        }
    }
}

/// The native part of `deltachain.Publisher`.
#[pyclass(module = "deltachain._native")]
pub(crate) struct Publisher {
    inner: OfProcess<Inner>,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
}

#[pymethods]
impl Publisher {
    #[new]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, Store>,
        settings: Named<PublisherSettings>,
    ) -> PyResult<Self> {
        let settings = settings.0;
        let profiles = settings.profiles.into_iter().map(|named| named.0).collect();
        let options = PublishOptions::default()
            .profiles(profiles)
            .snapshots(settings.routes.snapshots())
            .skips(settings.routes.skips)
            .max_changed(settings.guard.max_changed)
            .refuse_nonfinite(settings.guard.refuse_nonfinite)
            .allow_empty(settings.guard.allow_empty)
            .assets(settings.assets)
            .exclude(settings.exclude)
            .keep_last(settings.keep_last)
            .scratch(settings.scratch)
            .once(settings.once)
            .sign(signers(py, settings.sign)?)
            .trust(trusted(py, settings.trust)?)
            .vouch(digest_of(py, settings.vouch.as_deref())?)
            .unsigned(settings.unsigned);
        let like = settings
            .like
            .map(|like| run(py, &How::default(), |_| SafetensorsState::open(&like)))
            .transpose()?;
        let store = store.get().get(py)?;
        let publisher = run(py, &How::default(), |_| {
            ChainPublisher::open(store, options)
        })?;
        Ok(Self {
            inner: OfProcess::new(Inner {
                publisher,
                like,
                known: KnownHead::default(),
                spare: HashMap::new(),
            }),
            threads: settings.threads,
            progress: settings.progress,
        })
    }

    /// Returns the chain's head; None if it has no version yet.
    fn head(&mut self, py: Python<'_>) -> PyResult<Option<Head>> {
        let inner = self.inner.get_mut(py)?;
        let head = run(py, &inner.how(None), |_| inner.publisher.head())?;
        Ok(head.map(|head| Head {
            version: head.version,
            shards: head.shards.len(),
        }))
    }

    /// Returns the newest version, if a version with this metadata would repeat a step. Asks the
    /// store only if `until` is given; the wait ends when `until` returns something true.
    fn repeated(
        &mut self,
        py: Python<'_>,
        metadata: BTreeMap<String, String>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<Option<PublishedVersion>> {
        let inner = self.inner.get_mut(py)?;
        let asks = until.is_some();
        let head = run(py, &inner.how(until), |watch| {
            let head = if asks {
                inner.publisher.repeated(&metadata)?
            } else {
                inner.publisher.known_repeated(&metadata)?
            };
            // Warns once, however many steps a restarted trainer repeats.
            let is_lower = |skipped: &SkippedStep| skipped.is_lower;
            if let Some(head) = &head
                && head.skipped.as_ref().is_some_and(is_lower)
                && !std::mem::replace(&mut inner.known.seen.has_warned, true)
            {
                head.remark_skipped(watch);
            }
            Ok(head)
        })?;
        Ok(head.as_ref().map(PublishedVersion::of))
    }

    /// Allows versions from now on to repeat a step.
    fn repeat(&mut self, py: Python<'_>) -> PyResult<()> {
        self.inner.get_mut(py)?.publisher.repeat();
        Ok(())
    }

    /// Makes an empty snapshot, which reuses the memory of the version before the last.
    fn snapshot(&mut self, py: Python<'_>) -> PyResult<Snapshot> {
        let inner = self.inner.get_mut(py)?;
        Ok(Snapshot {
            shards: BTreeMap::new(),
            spare: std::mem::take(&mut inner.spare),
        })
    }

    /// Takes back the memory of a snapshot that will not be published.
    fn discard(&mut self, py: Python<'_>, snapshot: &mut Snapshot) -> PyResult<()> {
        let inner = self.inner.get_mut(py)?;
        inner.spare = std::mem::take(&mut snapshot.spare);
        let tensors = std::mem::take(&mut snapshot.shards).into_values().flatten();
        inner
            .spare
            .extend(tensors.map(|(name, (_, data))| (name, data)));
        Ok(())
    }

    /// Makes and stores links to the snapshot, for the shards with these numbers of `of` shards in
    /// total. Returns the parts that another process must commit, as a JSON list; no bytes if this
    /// process commits.
    fn store(
        &mut self,
        py: Python<'_>,
        snapshot: &mut Snapshot,
        numbers: Vec<usize>,
        of: usize,
        commits: bool,
        until: Option<Py<PyAny>>,
    ) -> PyResult<Vec<u8>> {
        let progress = self.progress.as_ref();
        let progress = progress.map(|progress| progress.clone_ref(py));
        let inner = self.inner.get_mut(py)?;
        // Frees the memory of tensors that older snapshots had, but this one does not have.
        snapshot.spare.clear();
        let mut tensors = std::mem::take(&mut snapshot.shards);
        let how = How {
            threads: self.threads,
            progress,
            ..inner.how(until)
        };
        run(py, &how, |watch| {
            let shard = |number| {
                let tensors = tensors.remove(&number).unwrap_or_default();
                Ok((number, shard_of(tensors)?))
            };
            let shards = numbers.into_iter().map(shard).collect::<Result<_>>()?;
            inner.store(shards, of, commits, watch)
        })
    }

    /// Commits the next version, from the shards that this process has stored and the parts that
    /// the processes have returned.
    fn commit(
        &mut self,
        py: Python<'_>,
        stored: Vec<PyBackedBytes>,
        metadata: BTreeMap<String, String>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<PublishedVersion> {
        let inner = self.inner.get_mut(py)?;
        let published = run_until(py, &inner.how(until), |watch| {
            let mut all = inner.known.take_parts();
            for parts in stored.iter().filter(|parts| !parts.is_empty()) {
                all.extend(serde_json::from_slice::<Vec<ShardPart>>(parts).map_err(no_parts)?);
            }
            inner.publisher.commit(all, metadata, watch)
        })?;
        // An IO error, because the store may have accepted the commit.
        let published = published
            .ok_or_else(|| raised(py, &Error::io("committing", io::Error::other("stopped"))))?;
        if published.is_new {
            inner.settle();
        } else {
            inner.forget();
        }
        Ok(PublishedVersion::of(&published))
    }

    /// Records that another process has committed the shards that were stored last.
    fn committed(&mut self, py: Python<'_>, version: u64, commit: &str) -> PyResult<()> {
        let inner = self.inner.get_mut(py)?;
        let Some(commit) = Digest::from_hex(commit) else {
            return Err(usage(py, "the text is not a digest", None));
        };
        inner.publisher.committed(version, commit);
        inner.settle();
        Ok(())
    }

    /// Drops the shards that were stored last, because their version is not the head, or may not
    /// be.
    fn forget(&mut self, py: Python<'_>) -> PyResult<()> {
        self.inner.get_mut(py)?.forget();
        Ok(())
    }

    /// Visits the progress callback, which may refer to the object that owns this publisher.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.progress)
    }

    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.close(py)?;
        py.detach(|| drop(inner));
        Ok(())
    }
}

impl Inner {
    /// Returns settings with which waits for the store end when `until` returns something true, or
    /// at Ctrl-C.
    fn how(&mut self, until: Option<Py<PyAny>>) -> How {
        let stop = Stop::default();
        self.publisher.stop_with(stop.clone());
        How {
            stop: Some(stop),
            until,
            ..How::default()
        }
    }

    /// Makes and stores links from the version that was published last, or from the chain if the
    /// process has no such shard.
    fn store(
        &mut self,
        shards: Vec<(usize, MemoryState)>,
        of: usize,
        commits: bool,
        watch: &Watch,
    ) -> Result<Vec<u8>> {
        drop(self.known.discard());
        let Self {
            publisher,
            like,
            known,
            ..
        } = self;
        let model = |shard| {
            like.as_ref()
                .map_or(Model::State(shard), |like| Model::Like(shard, like))
        };
        let own = &known.own.shards;
        let new = shards.iter().map(|(number, shard)| {
            let base = own
                .get(number)
                .map_or(Base::Chain, |own| Base::Last(model(own)));
            (*number, model(shard), base)
        });
        let parts = publisher.prepare(new, of, watch)?;
        let others = if commits {
            Vec::new()
        } else {
            serde_json::to_vec(&parts).map_err(no_parts)?
        };
        known.prepare(PreparedShards {
            shards: shards.into_iter().collect(),
            parts: if commits { parts } else { Vec::new() },
        });
        Ok(others)
    }

    /// Records that the prepared shards have been published.
    fn settle(&mut self) {
        self.spare = spare_of(self.known.publish());
    }

    /// Drops the prepared shards, which have not been published.
    fn forget(&mut self) {
        self.spare = spare_of(self.known.discard());
    }
}

fn no_parts(error: serde_json::Error) -> Error {
    Error::usage(format!("parts: {error}"))
}

/// The newest version of a chain.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct Head {
    version: u64,
    /// Number of shards.
    shards: usize,
}

/// A published version, with the field names of `deltachain.reports.PublishReport`.
#[derive(IntoPyObject)]
struct PublishedVersion {
    version: u64,
    digest: String,
    commit: String,
    bytes: u64,
    changed: u64,
    elements: u64,
    snapshot: bool,
    is_new: bool,
}

impl PublishedVersion {
    fn of(published: &PublishReport) -> Self {
        let routes = &published.routes;
        Self {
            version: published.version,
            digest: published.state.to_string(),
            commit: published.commit.to_string(),
            bytes: routes
                .iter()
                .map(|route| route.bytes)
                .fold(0, u64::saturating_add),
            changed: published.changed,
            elements: published.elements,
            snapshot: routes.iter().any(|route| route.from.is_none()),
            is_new: published.is_new,
        }
    }
}
