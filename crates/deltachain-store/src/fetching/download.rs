//! A link that is read while it is still being downloaded, so that decoding overlaps the transfer.

use std::io::{self, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::chain::FileReference;
use deltachain::{Error, FileSource, Result, Source};
use futures_util::future::{Either, select};
use tempfile::NamedTempFile;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::access::copies::FileStores;
use crate::access::store::Store;
use crate::access::whole::ChainFile;
use crate::fetching::cache::Cache;
use crate::observer::{Observer, Phase};

/// Approximate number of parts in which a link is downloaded, so that decoding begins long before
/// the end.
const PARTS: u64 = 64;

/// Minimum size of a part: each part is a request.
const LEAST_PART_BYTES: u64 = 256 << 10;

/// Interval at which a waiting thread checks for new data.
const PATIENCE: Duration = Duration::from_millis(100);

/// A link that is being downloaded. When it is complete and verified, it moves to the cache.
/// Dropping this stops the download.
pub(crate) struct Download<'a> {
    store: Store,
    reference: FileReference,
    observer: &'a dyn Observer,
    /// The file with the bytes that have arrived so far.
    source: FileSource,
    /// Number of bytes reported to the observer.
    reported: AtomicU64,
    /// The progress of the thread. The thread stops when all receivers are dropped, and drops the
    /// sender when it ends.
    arrived: watch::Receiver<DownloadProgress>,
    thread: DownloadThread,
}

/// The progress of a download.
#[derive(Debug, Default)]
struct DownloadProgress {
    /// Number of bytes written.
    bytes: u64,
    has_failed: bool,
}

/// The end of a download: its time and its result.
type DownloadEnd = (Instant, Result<()>);

/// The thread that downloads. It also writes and hashes, because that would hold up the threads
/// that serve the connections.
struct DownloadThread(Mutex<Option<JoinHandle<DownloadEnd>>>);

impl DownloadThread {
    /// Waits for the end of the thread; `None` if it was joined before.
    fn join(&self) -> Option<thread::Result<DownloadEnd>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .map(JoinHandle::join)
    }
}

impl Drop for DownloadThread {
    fn drop(&mut self) {
        // The thread must not outlive the download.
        self.join();
    }
}

impl<'a> Download<'a> {
    /// Starts to download a file of the chain.
    pub(crate) fn start(
        stores: &FileStores,
        reference: FileReference,
        cache: &Cache,
        observer: &'a dyn Observer,
    ) -> Result<Self> {
        let mut file = cache.create()?;
        let source = FileSource::open(file.path())?;
        let (sender, arrived) = watch::channel(DownloadProgress::default());
        let fetch = {
            let stores = stores.clone();
            let cache = cache.clone();
            move || {
                let fetched = stores.url.block_on(async {
                    match select(
                        pin!(fetch(&stores, &reference, &mut file, &sender)),
                        pin!(sender.closed()),
                    )
                    .await
                    {
                        Either::Left((fetched, _)) => fetched,
                        Either::Right(_) => Err(Error::usage("the download was stopped")),
                    }
                });
                let result = fetched.and_then(|()| cache.keep(file, &reference));
                sender.send_modify(|arrived| arrived.has_failed = result.is_err());
                (Instant::now(), result)
            }
        };
        let thread = thread::Builder::new()
            .name("download".to_owned())
            .spawn(fetch);
        let thread = DownloadThread(Mutex::new(Some(
            thread.map_err(|error| Error::io("starting a thread", error))?,
        )));
        Ok(Self {
            store: stores.url.clone(),
            reference,
            observer,
            source,
            reported: AtomicU64::new(0),
            arrived,
            thread,
        })
    }

    /// Waits until the first `bytes` bytes have arrived, or the download has ended. Reports the
    /// bytes that have arrived to the observer, and returns their number.
    fn wait(&self, bytes: u64) -> Result<u64> {
        let (mut arrived, mut is_over) = (self.arrived.clone(), false);
        loop {
            let come = arrived.borrow().bytes;
            let reported = self.reported.fetch_max(come, Ordering::Relaxed);
            self.observer
                .advance(Phase::Download, come.saturating_sub(reported))?;
            if come >= bytes || is_over {
                return Ok(come);
            }
            let enough = arrived.wait_for(|arrived| arrived.bytes >= bytes);
            is_over = matches!(
                self.store
                    .block_on(async { timeout(PATIENCE, enough).await }),
                Ok(Err(_))
            );
        }
    }

    /// Waits until the download has succeeded or failed.
    ///
    /// # Errors
    /// The observer's error.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        self.wait(u64::MAX).map(drop)
    }

    /// Returns the file with the bytes that have arrived.
    pub(crate) fn into_file(self) -> FileSource {
        self.source
    }

    /// Whether the download has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.arrived.borrow().has_failed
    }

    /// Waits for the end of the download and returns its time. May be called once.
    ///
    /// # Errors
    /// R-CHN-09, R-CHN-10; IO; USAGE if it was called before; the observer's error.
    pub(crate) fn verdict(&self) -> Result<Instant> {
        self.wait_for_end()?;
        let end = self.thread.join();
        let end =
            end.ok_or_else(|| Error::usage("the result of the download was requested twice"))?;
        let failed = |_| {
            Error::io(
                "downloading",
                io::Error::other("the download thread failed"),
            )
        };
        let (when, result) = end.map_err(failed)?;
        result.map(|()| when)
    }
}

impl Source for Download<'_> {
    fn length(&self) -> Result<u64> {
        Ok(self.reference.size)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if self.wait(end)? < end {
            // `verdict` returns the cause.
            let error = io::Error::other("the file could not be downloaded");
            return Err(Error::io("downloading", error).in_file(self.reference.name().to_string()));
        }
        self.source.read_at(offset, out)
    }
}

/// Downloads a whole file and writes it.
async fn fetch(
    stores: &FileStores,
    reference: &FileReference,
    file: &mut NamedTempFile,
    sender: &watch::Sender<DownloadProgress>,
) -> Result<()> {
    let part_bytes = reference
        .size
        .div_ceil(PARTS)
        .max(LEAST_PART_BYTES)
        .min(stores.url.options.part_bytes);
    let write = |bytes: &[u8]| {
        file.write_all(bytes)
            .map_err(|error| Error::io("writing", error).in_file(file.path()))?;
        sender.send_modify(|arrived| arrived.bytes += bytes.len() as u64);
        Ok(())
    };
    let file = stores.file(ChainFile::Link(*reference));
    file.read_whole(part_bytes, write).await
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use deltachain::tensor::Digest;

    use super::*;
    use crate::access::options::StoreOptions;

    /// Returns a store with one file, which is downloaded in parts of 10 bytes.
    fn stored(folder: &Path, content: &[u8]) -> (FileStores, Cache, FileReference) {
        let reference = FileReference {
            digest: Digest::of_bytes(content),
            size: content.len() as u64,
        };
        let path = folder.join(reference.name().to_string());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        let options = StoreOptions {
            part_bytes: 10,
            attempts: 1,
            ..StoreOptions::default()
        };
        let store = Store::open(folder.to_str().unwrap(), options).unwrap();
        (
            FileStores::of(store),
            Cache::open(folder.join("cache"), u64::MAX).unwrap(),
            reference,
        )
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
        assert_eq!(
            download.read_at(90, &mut first).unwrap_err().file(),
            Some(&*reference.name().to_string())
        );
        download.verdict().unwrap();
        assert!(!download.has_failed());
        assert!(cache.find(&reference).unwrap().is_some());
    }

    #[test]
    fn another_file_fails_and_is_not_kept() {
        let content = [7; 95];
        let name =
            |folder: &Path, reference: &FileReference| folder.join(reference.name().to_string());
        for other in [&[8; 95][..], &[7; 94], &[7; 96], &[]] {
            let folder = tempfile::tempdir().unwrap();
            let (store, cache, reference) = stored(folder.path(), &content);
            fs::write(name(folder.path(), &reference), other).unwrap();
            let download = Download::start(&store, reference, &cache, &()).unwrap();
            assert_eq!(download.verdict().unwrap_err().rule(), Some("R-CHN-10"));
            drop(download);
            assert_eq!(
                fs::read_dir(folder.path().join("cache")).unwrap().count(),
                0
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let (store, cache, reference) = stored(folder.path(), &content);
        fs::remove_file(name(folder.path(), &reference)).unwrap();
        let download = Download::start(&store, reference, &cache, &()).unwrap();
        assert!(download.read_at(0, &mut [0]).unwrap_err().rule().is_none());
        assert!(download.has_failed());
        assert_eq!(download.verdict().unwrap_err().rule(), Some("R-CHN-09"));
    }

    /// Stops all work.
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
        assert_eq!(
            download.read_at(0, &mut [0]).unwrap_err().message(),
            "enough"
        );
        // The store may be dropped before the downloads that use it.
        drop(store);
        drop(download);
        assert!(
            !fs::read_dir(folder.path().join("cache"))
                .unwrap()
                .any(|entry| {
                    entry
                        .unwrap()
                        .file_name()
                        .to_string_lossy()
                        .starts_with(".tmp-")
                })
        );
    }
}
