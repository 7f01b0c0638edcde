//! A store in memory whose operations are carried out one by one, in an order chosen from outside.
//!
//! Each client has a view of its own. An operation waits until it is its client's turn. A client
//! does one thing after another, so it waits for at most one operation, and an order of the
//! operations is a list of clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Numbers of hours that pass at once.
const SLEEPS: [u64; 2] = [25, 15 * 24];

/// The store that all clients share.
pub(crate) struct Bucket {
    pub(crate) objects: InMemory,
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Waiting clients, with the object that the next operation touches.
    waiting: BTreeMap<usize, Touch>,
    /// Clients that have not ended.
    alive: BTreeSet<usize>,
    /// Client whose turn it is, until its operation has been carried out.
    turn: Option<usize>,
    /// Number of operations of each client so far.
    counts: BTreeMap<usize, usize>,
    /// The operation, by client and number, that seems to fail and is carried out later.
    late: Option<(usize, usize)>,
    postponed: Option<Postponed>,
    /// Number of hours by which the store's clock is ahead, and number of jumps so far.
    hours: u64,
    leaps: usize,
    stored: BTreeMap<Path, SystemTime>,
}

/// An operation that is carried out later.
enum Postponed {
    Put(Path, PutPayload, PutOptions),
    Delete(Path),
}

/// The objects that an operation reads or changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Touch {
    Read(Path),
    Write(Path),
    /// All objects below a prefix.
    List(Path),
    /// The clock, on which only writes of objects depend.
    Time,
}

impl Touch {
    /// True if the order of the two operations makes no difference.
    pub(crate) fn commutes(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Time | Self::Read(_) | Self::List(_),
                Self::Time | Self::Read(_) | Self::List(_),
            ) => true,
            (Self::Time, Self::Write(_)) | (Self::Write(_), Self::Time) => false,
            (Self::Write(written), Self::Read(path) | Self::Write(path))
            | (Self::Read(path), Self::Write(written)) => written != path,
            (Self::Write(written), Self::List(prefix))
            | (Self::List(prefix), Self::Write(written)) => !written.prefix_matches(prefix),
        }
    }
}

/// A possible next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Client(usize),
    /// A day passes; the second time, two weeks.
    Jump,
    /// The postponed operation is carried out.
    Late,
}

impl Bucket {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            objects: InMemory::new(),
            turns: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Creates a bucket with the objects of another one, all of which were stored long ago.
    pub(crate) fn copy_of(
        objects: &[(Path, PutPayload)],
        late: Option<(usize, usize)>,
    ) -> Arc<Self> {
        let bucket = Self::new();
        let long_ago = now() - Duration::from_hours(100);
        for (path, content) in objects {
            bucket
                .objects
                .put(path, content.clone())
                .now_or_never()
                .unwrap()
                .unwrap();
            bucket.turns().stored.insert(path.clone(), long_ago);
        }
        bucket.turns().late = late;
        bucket
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap()
    }

    /// Creates a view for a client. The bucket waits for the client until [`end`](Self::end).
    pub(crate) fn view(self: &Arc<Self>, client: usize) -> Arc<View> {
        self.turns().alive.insert(client);
        Arc::new(View {
            bucket: Arc::clone(self),
            client: Some(client),
        })
    }

    /// Creates a view without turns.
    pub(crate) fn free_view(self: &Arc<Self>) -> Arc<View> {
        Arc::new(View {
            bucket: Arc::clone(self),
            client: None,
        })
    }

    pub(crate) fn end(&self, client: usize) {
        self.turns().alive.remove(&client);
        self.changed.notify_all();
    }

    /// Waits until all clients wait, and returns the possible next steps; none if all clients have
    /// ended.
    pub(crate) fn choices(&self, jumps: usize) -> Vec<Next> {
        let mut turns = self.turns();
        while turns.turn.is_some() || !turns.waiting.keys().eq(&turns.alive) {
            turns = self.changed.wait(turns).unwrap();
        }
        let mut choices: Vec<Next> = turns
            .waiting
            .keys()
            .map(|&client| Next::Client(client))
            .collect();
        choices.extend(turns.postponed.is_some().then_some(Next::Late));
        choices.extend((turns.leaps < jumps && !choices.is_empty()).then_some(Next::Jump));
        choices
    }

    /// The objects that the client's waiting operation touches.
    pub(crate) fn touch(&self, client: usize) -> Touch {
        self.turns().waiting[&client].clone()
    }

    pub(crate) fn carry_out(&self, next: Next) {
        let mut turns = self.turns();
        match next {
            Next::Client(client) => {
                turns.turn = Some(client);
                self.changed.notify_all();
            }
            Next::Jump => {
                turns.hours += SLEEPS[turns.leaps % SLEEPS.len()];
                turns.leaps += 1;
            }
            Next::Late => match turns.postponed.take().expect("an operation is late") {
                Postponed::Put(path, content, options) => {
                    drop(turns);
                    if self
                        .objects
                        .put_opts(&path, content, options)
                        .now_or_never()
                        .unwrap()
                        .is_ok()
                    {
                        self.stamp(&path);
                    }
                }
                Postponed::Delete(path) => drop(self.objects.delete(&path).now_or_never().unwrap()),
            },
        }
    }

    /// Records that an object was stored now.
    fn stamp(&self, path: &Path) {
        let mut turns = self.turns();
        let now = now() + Duration::from_hours(turns.hours);
        turns.stored.insert(path.clone(), now);
    }

    /// Number of operations that a client has carried out.
    pub(crate) fn count(&self, client: usize) -> usize {
        self.turns()
            .counts
            .get(&client)
            .copied()
            .unwrap_or_default()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "files are old or young by the clock that a prune goes by"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

/// A client's view of a bucket.
pub(crate) struct View {
    bucket: Arc<Bucket>,
    client: Option<usize>,
}

impl View {
    /// Waits for the client's turn. True if the operation is to be postponed.
    fn wait(&self, touch: Touch) -> bool {
        let Some(client) = self.client else {
            return false;
        };
        let mut turns = self.bucket.turns();
        turns.waiting.insert(client, touch);
        self.bucket.changed.notify_all();
        while turns.turn != Some(client) {
            turns = self.bucket.changed.wait(turns).unwrap();
        }
        turns.waiting.remove(&client);
        let count = turns.counts.entry(client).or_default();
        *count += 1;
        let number = *count;
        turns.late == Some((client, number))
    }

    /// Carries out an operation at the client's turn.
    async fn step<T>(
        &self,
        touch: Touch,
        work: impl Future<Output = Result<T>>,
        later: Option<Postponed>,
    ) -> Result<T> {
        let is_late = self.wait(touch) && later.is_some();
        let result = if is_late {
            self.bucket.turns().postponed = later;
            Err(Error::Generic {
                store: "stepped",
                source: "the connection was lost".into(),
            })
        } else {
            work.await
        };
        if self.client.is_some() {
            self.bucket.turns().turn = None;
            self.bucket.changed.notify_all();
        }
        result
    }

    fn by_its_clock(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(&stored) = self.bucket.turns().stored.get(&meta.location) {
            meta.last_modified = stored.into();
        }
        meta
    }

    fn list(
        &self,
        prefix: Option<&Path>,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let touch = Touch::List(prefix.cloned().unwrap_or_default());
        let view = Self {
            bucket: Arc::clone(&self.bucket),
            client: self.client,
        };
        let all = async move {
            let all: Vec<ObjectMeta> = view.step(touch, listed.try_collect(), None).await?;
            let all: Vec<Result<ObjectMeta>> = all
                .into_iter()
                .map(|meta| Ok(view.by_its_clock(meta)))
                .collect();
            Ok::<_, Error>(stream::iter(all))
        };
        stream::once(all).try_flatten().boxed()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store in steps")
    }
}

#[async_trait]
impl ObjectStore for View {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        // Objects that never change and are never removed read the same at any time, so the order
        // does not matter.
        let never_changes = path.as_ref() == "chain.json"
            || (path.as_ref().starts_with("commits/")
                && self.bucket.objects.head(path).await.is_ok());
        let get = self.bucket.objects.get_opts(path, options);
        let mut result = if never_changes {
            get.await?
        } else {
            self.step(Touch::Read(path.clone()), get, None).await?
        };
        result.meta = self.by_its_clock(result.meta);
        Ok(result)
    }

    async fn put_opts(
        &self,
        path: &Path,
        content: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let later = Postponed::Put(path.clone(), content.clone(), options.clone());
        let put = async {
            let result = self.bucket.objects.put_opts(path, content, options).await?;
            self.bucket.stamp(path);
            Ok(result)
        };
        self.step(Touch::Write(path.clone()), put, Some(later))
            .await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented {
            operation: "parts".to_owned(),
            implementer: path.to_string(),
        })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let bucket = Arc::clone(&self.bucket);
        let client = self.client;
        let deleted = paths.then(move |path| {
            let view = Self {
                bucket: Arc::clone(&bucket),
                client,
            };
            async move {
                let path = path?;
                let later = Postponed::Delete(path.clone());
                view.step(
                    Touch::Write(path.clone()),
                    view.bucket.objects.delete(&path),
                    Some(later),
                )
                .await?;
                Ok(path)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        View::list(self, prefix, self.bucket.objects.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        View::list(
            self,
            prefix,
            self.bucket.objects.list_with_offset(prefix, offset),
        )
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.bucket.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.bucket.objects.copy_opts(from, to, options).await
    }
}
