//! A link that is read while it is still being fetched, so that decoding overlaps the transfer.

use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::chain::FileReference;
use deltachain::tensor::Digest;
use deltachain::{Error, FileSource, Result, Source};
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use crate::cache::Cache;
use crate::observer::{Observer, Phase};
use crate::store::Store;

/// Whoever waits looks up so often whether it is still to wait.
const PATIENCE: Duration = Duration::from_millis(100);

/// A link that is being fetched. When all of it has come and is right, it is put into the cache. Dropped, it stops.
pub(crate) struct Download<'a> {
    reference: FileReference,
    observer: &'a dyn Observer,
    /// What has come so far.
    source: FileSource,
    shared: Arc<Shared>,
    _fetcher: Fetcher,
}

/// The thread that fetches: it writes and hashes, which those that keep connections going have no time for. Stops when
/// dropped.
struct Fetcher {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stop.take();
        // So that nothing is left of it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    /// So many bytes have been written.
    bytes: u64,
    /// So many of these the observer has been told of.
    reported: u64,
    /// When it ended, and how.
    end: Option<(Instant, Result<()>)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Arrived)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl<'a> Download<'a> {
    /// Begins to fetch a file of the chain.
    pub(crate) fn start(
        store: &Store,
        reference: FileReference,
        cache: &Cache,
        observer: &'a dyn Observer,
    ) -> Result<Self> {
        let mut file = cache.create()?;
        let source = FileSource::open(file.path())?;
        let shared = Arc::<Shared>::default();
        let (stop, stopped) = oneshot::channel();
        let fetch = {
            let (store, cache, shared) = (store.clone(), cache.clone(), shared.clone());
            move || {
                let fetched = store.block_on(async {
                    match select(pin!(fetch(&store, &reference, &mut file, &shared)), stopped).await {
                        Either::Left((fetched, _)) => fetched,
                        Either::Right(_) => Err(Error::usage("the download was stopped")),
                    }
                });
                let result = fetched.and_then(|()| cache.keep(file, &reference));
                shared.change(|arrived| arrived.end = Some((Instant::now(), result)));
            }
        };
        let thread = thread::Builder::new().name("download".to_owned()).spawn(fetch);
        let thread = thread.map_err(|error| Error::io("starting a thread", error))?;
        let fetcher = Fetcher { stop: Some(stop), thread: Some(thread) };
        Ok(Self { reference, observer, source, shared, _fetcher: fetcher })
    }

    /// Waits until so many bytes are there, or it has ended. Tells the observer what has come.
    fn wait(&self, bytes: u64) -> Result<MutexGuard<'_, Arrived>> {
        let mut arrived = self.shared.lock();
        loop {
            let news = arrived.bytes - arrived.reported;
            arrived.reported = arrived.bytes;
            // Outside the lock: nobody knows what the observer does.
            drop(arrived);
            self.observer.advance(Phase::Download, news)?;
            arrived = self.shared.lock();
            if arrived.bytes >= bytes || arrived.end.is_some() {
                return Ok(arrived);
            }
            arrived = self.shared.changed.wait_timeout(arrived, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether it has ended, and badly.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.lock().end.as_ref().is_some_and(|(_, result)| result.is_err())
    }

    /// Waits for the end, and says when it was. To be asked once.
    ///
    /// # Errors
    /// R-CHN-09, R-CHN-10; IO; the observer's.
    pub(crate) fn verdict(&self) -> Result<Instant> {
        let end = self.wait(u64::MAX)?.end.take();
        let (when, result) = end.ok_or_else(|| Error::usage("the download was asked for its verdict before"))?;
        result.map(|()| when)
    }
}

impl Source for Download<'_> {
    fn length(&self) -> Result<u64> {
        Ok(self.reference.size)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if self.wait(end)?.bytes < end {
            // Why, verdict() says.
            let error = std::io::Error::other("the file could not be fetched");
            return Err(Error::io("fetching", error).in_file(self.reference.name().to_string()));
        }
        self.source.read_at(offset, out)
    }
}

/// Fetches ranges side by side, writes and hashes them in order, and checks that they are the file.
async fn fetch(store: &Store, reference: &FileReference, file: &mut NamedTempFile, shared: &Shared) -> Result<()> {
    let options = store.options();
    let count = reference.size.div_ceil(options.part_bytes);
    let parts = stream::iter(0..count).map(async |number| {
        let start = number * options.part_bytes;
        let end = reference.size.min(start.saturating_add(options.part_bytes));
        let part = store.get_range(reference.name(), start, end).await?;
        let (bytes, stored) = part.ok_or_else(|| reference.missing())?;
        // Whatever its digest, an object of another length is another one.
        reference.check(stored, reference.digest)?;
        Ok::<_, Error>(bytes)
    });
    let mut parts = pin!(parts.buffered(options.parallel));
    let mut hasher = blake3::Hasher::new();
    while let Some(bytes) = parts.try_next().await? {
        hasher.update(&bytes);
        file.write_all(&bytes).map_err(|error| Error::io("writing", error).in_file(file.path()))?;
        shared.change(|arrived| arrived.bytes += bytes.len() as u64);
    }
    reference.check(reference.size, Digest(*hasher.finalize().as_bytes()))
}
