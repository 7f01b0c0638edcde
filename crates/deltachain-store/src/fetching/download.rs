//! A link that is read while it is still being fetched, so that decoding overlaps the transfer.

use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::chain::FileReference;
use deltachain::{Error, FileSource, Result, Source};
use futures_util::future::{Either, select};
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use crate::access::store::Store;
use crate::access::whole::read_whole;
use crate::fetching::cache::Cache;
use crate::observer::{Observer, Phase};

/// A link is fetched in about this many parts, so that decoding begins long before all of it is there.
const PARTS: u64 = 64;

/// No part is smaller: each is a request.
const LEAST_PART_BYTES: u64 = 256 << 10;

/// How often a waiting thread checks for new data.
const PATIENCE: Duration = Duration::from_millis(100);

/// A link that is being fetched. When all of it has come and is right, it is put into the cache. Dropped, it stops.
pub(crate) struct Download<'a> {
    reference: FileReference,
    observer: &'a dyn Observer,
    /// What has come so far.
    source: FileSource,
    shared: Arc<Shared>,
    fetcher: Fetcher,
}

/// The thread that fetches. It also writes and hashes, because the threads that keep connections going have no time for
/// that. Stops when dropped.
struct Fetcher {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fetcher {
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
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
    /// How many bytes have been written.
    bytes: u64,
    /// How many of these were reported to the observer.
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
        Ok(Self { reference, observer, source, shared, fetcher })
    }

    /// Waits until the first `bytes` bytes are there, or the download has ended. Tells the observer how many bytes have
    /// come.
    fn wait(&self, bytes: u64) -> Result<MutexGuard<'_, Arrived>> {
        let mut arrived = self.shared.lock();
        loop {
            let news = arrived.bytes - arrived.reported;
            arrived.reported = arrived.bytes;
            // Outside the lock: nobody knows what the observer does.
            drop(arrived);
            self.observer.advance(Phase::Download, news)?;
            let is_over = self.fetcher.is_over();
            arrived = self.shared.lock();
            if is_over && arrived.end.is_none() {
                let error = Error::io("fetching", std::io::Error::other("the thread that fetched has failed"));
                arrived.end = Some((Instant::now(), Err(error)));
            }
            if arrived.bytes >= bytes || arrived.end.is_some() {
                return Ok(arrived);
            }
            arrived = self.shared.changed.wait_timeout(arrived, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the end, good or bad.
    ///
    /// # Errors
    /// The observer's.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        self.wait(u64::MAX).map(drop)
    }

    /// The file, as far as it has come.
    pub(crate) fn into_file(self) -> FileSource {
        self.source
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

/// Fetches all of a file and writes it.
async fn fetch(store: &Store, reference: &FileReference, file: &mut NamedTempFile, shared: &Shared) -> Result<()> {
    let part_bytes = reference.size.div_ceil(PARTS).max(LEAST_PART_BYTES).min(store.options().part_bytes);
    let write = |bytes: &[u8]| {
        file.write_all(bytes).map_err(|error| Error::io("writing", error).in_file(file.path()))?;
        shared.change(|arrived| arrived.bytes += bytes.len() as u64);
        Ok(())
    };
    read_whole(store, reference, part_bytes, write).await
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use deltachain::tensor::Digest;

    use super::*;
    use crate::access::options::StoreOptions;

    /// A store with one file, whose bytes come in parts of 10.
    fn stored(folder: &Path, content: &[u8]) -> (Store, Cache, FileReference) {
        let reference = FileReference { digest: Digest::of_bytes(content), size: content.len() as u64 };
        let path = folder.join(reference.name().to_string());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        let options = StoreOptions { part_bytes: 10, attempts: 1, ..StoreOptions::default() };
        let store = Store::open(folder.to_str().unwrap(), options).unwrap();
        (store, Cache::open(folder.join("cache"), u64::MAX).unwrap(), reference)
    }

    #[test]
    fn what_has_come_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..95).collect();
        let (store, cache, reference) = stored(folder.path(), &content);
        assert!(cache.find(&reference).unwrap().is_none());
        let download = Download::start(&store, reference, &cache, &()).unwrap();
        let mut last = [0; 20];
        download.read_at(75, &mut last).unwrap();
        assert_eq!(last, content[75..]);
        let mut first = [0; 15];
        download.read_at(0, &mut first).unwrap();
        assert_eq!(first, content[..15]);
        assert_eq!(download.read_at(90, &mut first).unwrap_err().file(), Some(&*reference.name().to_string()));
        download.verdict().unwrap();
        assert!(!download.has_failed());
        assert!(cache.find(&reference).unwrap().is_some());
    }

    #[test]
    fn another_file_fails_and_is_not_kept() {
        let content = [7; 95];
        let name = |folder: &Path, reference: &FileReference| folder.join(reference.name().to_string());
        for other in [&[8; 95][..], &[7; 94], &[7; 96], &[]] {
            let folder = tempfile::tempdir().unwrap();
            let (store, cache, reference) = stored(folder.path(), &content);
            fs::write(name(folder.path(), &reference), other).unwrap();
            let download = Download::start(&store, reference, &cache, &()).unwrap();
            assert_eq!(download.verdict().unwrap_err().rule(), Some("R-CHN-10"));
            drop(download);
            assert_eq!(fs::read_dir(folder.path().join("cache")).unwrap().count(), 0);
        }
        let folder = tempfile::tempdir().unwrap();
        let (store, cache, reference) = stored(folder.path(), &content);
        fs::remove_file(name(folder.path(), &reference)).unwrap();
        let download = Download::start(&store, reference, &cache, &()).unwrap();
        assert!(download.read_at(0, &mut [0]).unwrap_err().rule().is_none());
        assert!(download.has_failed());
        assert_eq!(download.verdict().unwrap_err().rule(), Some("R-CHN-09"));
    }

    /// Wants everything to end.
    struct Stopping;

    impl Observer for Stopping {
        fn begin(&self, _phase: Phase, _bytes: u64) {}

        fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
            Err(Error::usage("enough"))
        }

        fn end(&self, _phase: Phase) {}

        fn remark(&self, _text: &str) {}
    }

    #[test]
    fn the_observer_can_end_the_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (store, cache, reference) = stored(folder.path(), &[1; 95]);
        let download = Download::start(&store, reference, &cache, &Stopping).unwrap();
        assert_eq!(download.read_at(0, &mut [0]).unwrap_err().message(), "enough");
        // The store may be dropped before the downloads that use it.
        drop(store);
        drop(download);
        assert!(
            !fs::read_dir(folder.path().join("cache"))
                .unwrap()
                .any(|entry| { entry.unwrap().file_name().to_string_lossy().starts_with(".tmp-") })
        );
    }
}
