//! A store that fails on demand: before or after an operation takes effect, by silence, by wrong
//! bytes, for good.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UploadPart,
};

/// A fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// An error; the call did nothing.
    FailBefore,
    /// An error, although the call took effect.
    FailAfter,
    /// Never an answer; the call did nothing.
    SilentBefore,
    /// Never an answer, although the call took effect.
    SilentAfter,
    /// S3's answer to put-if-absent while another client writes the object; the call did nothing.
    Conflict,
    /// The body ends in the middle.
    Truncate,
    /// The body is empty.
    NoBody,
    /// One bit of the body is flipped.
    Flip,
    /// The answer comes later than the answers to other calls.
    Delay,
}

/// The operation of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Get,
    List,
    Put,
    /// Put-if-absent.
    Create,
    /// The start of a multipart upload.
    Begin,
    Part,
    Complete,
    Delete,
}

/// A call of the store.
#[derive(Debug)]
pub struct Call<'a> {
    pub operation: Operation,
    pub path: &'a str,
    /// Number of earlier calls with this operation and path.
    pub number: u64,
}

type Plan = Box<dyn Fn(&Call<'_>) -> Option<Fault> + Send + Sync>;

type Hidden = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Decides which calls fail, and records the faults.
pub struct Control {
    plan: Mutex<Plan>,
    calls: Mutex<BTreeMap<(Operation, String), u64>>,
    injected: Mutex<BTreeMap<Fault, u64>>,
    writes: AtomicU64,
    last_write: AtomicU64,
    stopped: AtomicBool,
    hours: AtomicI64,
    /// Number of hours by which the clock was wrong when each object was stored.
    stamps: Mutex<BTreeMap<String, i64>>,
    /// Like `stamps`, for objects that were not stored through this store.
    other_stamps: AtomicI64,
    hidden: Mutex<Hidden>,
}

#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    control: Arc<Control>,
}

impl FaultyStore {
    /// Wraps a store. Nothing fails until the control says so.
    pub fn new(inner: Arc<dyn ObjectStore>) -> (Arc<Self>, Arc<Control>) {
        let control = Arc::new(Control {
            plan: Mutex::new(Box::new(|_| None)),
            calls: Mutex::default(),
            injected: Mutex::default(),
            writes: AtomicU64::new(0),
            last_write: AtomicU64::new(u64::MAX),
            stopped: AtomicBool::new(false),
            hours: AtomicI64::new(0),
            stamps: Mutex::default(),
            other_stamps: AtomicI64::new(0),
            hidden: Mutex::new(Arc::new(|_| false)),
        });
        (
            Arc::new(Self {
                inner,
                control: Arc::clone(&control),
            }),
            control,
        )
    }
}

/// Draws the faults of each call from its own name, so that a seed gives the same faults in any
/// order of the calls. Rates are per thousand.
pub fn seeded(
    seed: u64,
    rates: Vec<(Fault, u64)>,
) -> impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync {
    move |call| {
        let mut drawn = hash(&format!("{seed} {call:?}")) % 1000;
        let hit = rates.iter().find(|(_, rate)| {
            let hit = drawn < *rate;
            drawn = drawn.saturating_sub(*rate);
            hit
        });
        hit.map(|(fault, _)| *fault)
    }
}

/// A pseudorandom number that depends only on the text.
pub fn hash(text: &str) -> u64 {
    blake3::hash(text.as_bytes()).as_bytes()[..8]
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Control {
    /// Replaces the plan of faults.
    pub fn plan(&self, plan: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static) {
        *self.plan.lock().unwrap() = Box::new(plan);
    }

    /// Refuses every call after this many further writes, as after a crash: only what was written
    /// stays.
    pub fn stop_after(&self, writes: u64) {
        self.writes.store(0, Ordering::SeqCst);
        self.last_write.store(writes, Ordering::SeqCst);
        self.stopped.store(writes == 0, Ordering::SeqCst);
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.plan(|_| None);
        self.stop_after(u64::MAX);
    }

    /// Number of writes that took effect since [`stop_after`](Self::stop_after).
    pub fn writes(&self) -> u64 {
        self.writes
            .load(Ordering::SeqCst)
            .min(self.last_write.load(Ordering::SeqCst))
    }

    /// Sets the store's clock this many hours ahead of ours; the times of objects stored from now
    /// on show it.
    pub fn set_clock(&self, hours: i64) {
        self.hours.store(hours, Ordering::SeqCst);
    }

    /// Sets the times of objects that were not stored through this store this many hours ahead.
    pub fn set_other_stamps(&self, hours: i64) {
        self.other_stamps.store(hours, Ordering::SeqCst);
    }

    /// Hides the objects for which this is true from lists. They can still be read by name.
    pub fn hide(&self, hidden: impl Fn(&str) -> bool + Send + Sync + 'static) {
        *self.hidden.lock().unwrap() = Arc::new(hidden);
    }

    /// Number of times that each fault was injected.
    pub fn injected(&self) -> BTreeMap<Fault, u64> {
        self.injected.lock().unwrap().clone()
    }

    /// Number of calls of an operation for a path.
    pub fn calls(&self, operation: Operation, path: &str) -> u64 {
        self.calls
            .lock()
            .unwrap()
            .get(&(operation, path.to_owned()))
            .copied()
            .unwrap_or_default()
    }

    /// Draws the fault of the next call of this kind, among the faults that are possible for it.
    fn draw(&self, operation: Operation, path: &Path) -> Option<Fault> {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            let count = calls.entry((operation, path.to_string())).or_default();
            *count += 1;
            *count - 1
        };
        let fault = self.plan.lock().unwrap()(&Call {
            operation,
            path: path.as_ref(),
            number,
        })?;
        let possible = match fault {
            Fault::FailBefore | Fault::SilentBefore | Fault::Delay => true,
            Fault::FailAfter | Fault::SilentAfter => {
                !matches!(operation, Operation::Get | Operation::List)
            }
            Fault::Conflict => operation == Operation::Create,
            Fault::Truncate | Fault::NoBody | Fault::Flip => operation == Operation::Get,
        };
        if !possible {
            return None;
        }
        *self.injected.lock().unwrap().entry(fault).or_default() += 1;
        Some(fault)
    }

    fn alive(&self, path: &Path) -> Result<()> {
        if self.stopped.load(Ordering::SeqCst) {
            return Err(Error::PermissionDenied {
                path: path.to_string(),
                source: "the store has stopped".into(),
            });
        }
        Ok(())
    }

    /// Applies the part of a fault that comes before an operation takes effect.
    async fn before(&self, fault: Option<Fault>, path: &Path) -> Result<()> {
        self.alive(path)?;
        match fault {
            Some(Fault::FailBefore) => Err(lost("before")),
            Some(Fault::SilentBefore) => pending().await,
            Some(Fault::Conflict) => Err(Error::AlreadyExists {
                path: path.to_string(),
                source: "a conflict, try again".into(),
            }),
            Some(Fault::Delay) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Carries out an operation that may change what readers see.
    async fn write<T>(
        &self,
        operation: Operation,
        path: &Path,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let fault = self.draw(operation, path);
        self.before(fault, path).await?;
        // Readers do not see parts.
        if !matches!(operation, Operation::Begin | Operation::Part) {
            let last = self.last_write.load(Ordering::SeqCst);
            if self.writes.fetch_add(1, Ordering::SeqCst) >= last {
                self.stopped.store(true, Ordering::SeqCst);
                self.alive(path)?;
            }
        }
        let result = work.await;
        if result.is_ok() {
            self.stamps
                .lock()
                .unwrap()
                .insert(path.to_string(), self.hours.load(Ordering::SeqCst));
        }
        match fault {
            Some(Fault::FailAfter) => Err(lost("after")),
            Some(Fault::SilentAfter) => pending().await,
            _ => result,
        }
    }

    fn by_its_clock(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let stamp = self
            .stamps
            .lock()
            .unwrap()
            .get(meta.location.as_ref())
            .copied();
        let hours = stamp.unwrap_or_else(|| self.other_stamps.load(Ordering::SeqCst));
        let shift = Duration::from_hours(hours.unsigned_abs());
        if hours < 0 {
            meta.last_modified -= shift;
        } else {
            meta.last_modified += shift;
        }
        meta
    }

    fn list(
        self: &Arc<Self>,
        prefix: Option<&Path>,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let control = Arc::clone(self);
        let prefix = prefix.cloned().unwrap_or_default();
        let shown = Arc::clone(self);
        let hidden = Arc::clone(&self.hidden.lock().unwrap());
        let is_shown = move |meta: &Result<ObjectMeta>| {
            meta.as_ref()
                .map_or(true, |meta| !hidden(meta.location.as_ref()))
        };
        let listed = listed.filter(move |meta| std::future::ready(is_shown(meta)));
        let listed = listed.map(move |meta| meta.map(|meta| shown.by_its_clock(meta)));
        let listed = stream::once(async move {
            let fault = control.draw(Operation::List, &prefix);
            match control.before(fault, &prefix).await {
                Ok(()) => listed.boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        });
        listed.flatten().boxed()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("injected", &self.injected)
            .finish_non_exhaustive()
    }
}

fn lost(when: &str) -> Error {
    Error::Generic {
        store: "faulty",
        source: format!("the connection was lost {when} it was done").into(),
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, with faults", self.inner)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.control.draw(Operation::Get, path);
        self.control.before(fault, path).await?;
        let mut result = self.inner.get_opts(path, options).await?;
        result.meta = self.control.by_its_clock(result.meta);
        let Some(wrong @ (Fault::Truncate | Fault::NoBody | Fault::Flip)) = fault else {
            return Ok(result);
        };
        let meta = result.meta.clone();
        let range = result.range.clone();
        let attributes = result.attributes.clone();
        let extensions = std::mem::take(&mut result.extensions);
        let mut bytes = result.bytes().await?.to_vec();
        let middle = bytes.len() / 2;
        match wrong {
            Fault::NoBody => bytes.clear(),
            Fault::Truncate => bytes.truncate(middle),
            _ => bytes
                .iter_mut()
                .skip(middle)
                .take(1)
                .for_each(|byte| *byte ^= 1),
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes.into())]).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
            extensions,
        })
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let operation = if options.mode == PutMode::Create {
            Operation::Create
        } else {
            Operation::Put
        };
        self.control
            .write(operation, path, self.inner.put_opts(path, payload, options))
            .await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.inner.put_multipart_opts(path, options);
        let inner = self.control.write(Operation::Begin, path, begun).await?;
        Ok(Box::new(FaultyUpload {
            inner,
            control: Arc::clone(&self.control),
            path: path.clone(),
        }))
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let inner = Arc::clone(&self.inner);
        let control = Arc::clone(&self.control);
        let deleted = paths.then(move |path| {
            let inner = Arc::clone(&inner);
            let control = Arc::clone(&control);
            async move {
                let path = path?;
                control
                    .write(Operation::Delete, &path, inner.delete(&path))
                    .await?;
                Ok(path)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.control.list(prefix, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.control
            .list(prefix, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    control: Arc<Control>,
    path: Path,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let control = Arc::clone(&self.control);
        let path = self.path.clone();
        let put = self.inner.put_part(payload);
        Box::pin(async move { control.write(Operation::Part, &path, put).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.control
            .write(Operation::Complete, &self.path, self.inner.complete())
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
