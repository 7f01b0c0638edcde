//! The links of a plan, in the order in which they are needed; the next ones come while the present one is applied.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use deltachain::chain::{FileReference, Hop};
use deltachain::{Error, FileSource, Result, Source};

use crate::access::store::Store;
use crate::following::cache::Cache;
use crate::following::download::Download;
use crate::following::ranges::Ranges;
use crate::observer::{InPhase, Observer, Phase};

/// Links that are fetched at the same time.
const FILES_AT_ONCE: usize = 4;

/// Why a plan could not be followed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A file is missing or another one.
    File(FileReference, Error),
    /// One of the links of a route was refused.
    Route(Hop, Error),
    /// No other path will help.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Links that will be needed.
pub(crate) struct Links<'a> {
    store: &'a Store,
    cache: &'a Cache,
    observer: &'a dyn Observer,
    /// All of each link is needed.
    whole: bool,
    waiting: VecDeque<FileReference>,
    coming: VecDeque<Link<'a>>,
    received: Received,
    began: Instant,
    _phase: InPhase<'a>,
}

/// What has been fetched.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    /// Bytes of links that came from the store.
    pub(crate) downloaded: u64,
    /// Bytes of links that were there already.
    pub(crate) from_cache: u64,
    /// From the beginning to the last byte that came.
    pub(crate) time: Duration,
}

impl Received {
    pub(crate) fn add(&mut self, more: Self) {
        self.downloaded += more.downloaded;
        self.from_cache += more.from_cache;
        self.time += more.time;
    }
}

/// A link that is in the cache or on its way.
pub(crate) struct Link<'a> {
    pub(crate) reference: FileReference,
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    Here(FileSource),
    Coming(Download<'a>),
    InStore(Ranges<'a>),
}

impl<'a> Links<'a> {
    pub(crate) fn new(
        store: &'a Store,
        cache: &'a Cache,
        observer: &'a dyn Observer,
        whole: bool,
        files: impl Iterator<Item = FileReference>,
    ) -> Self {
        let phase = InPhase::begin(observer, Phase::Download, 0);
        let (coming, received) = (VecDeque::new(), Received::default());
        let waiting: VecDeque<FileReference> = files.collect();
        let links =
            Self { store, cache, observer, whole, waiting, coming, received, began: Instant::now(), _phase: phase };
        let to_fetch = links.waiting.iter().filter(|file| !cache.has(file) && links.is_fetched_whole(file));
        observer.begin(Phase::Download, to_fetch.map(|file| file.size).fold(0, u64::saturating_add));
        links
    }

    /// A link that is a single request anyway is fetched as a whole, so that its digest can be checked.
    fn is_fetched_whole(&self, file: &FileReference) -> bool {
        self.whole || file.size <= self.store.options().part_bytes
    }

    /// The next link. Those after it begin to come.
    pub(crate) fn next(&mut self) -> Result<Link<'a>> {
        while self.coming.len() < FILES_AT_ONCE {
            let Some(reference) = self.waiting.pop_front() else { break };
            let bytes = match self.cache.find(&reference)? {
                Some(file) => Bytes::Here(file),
                None if !self.is_fetched_whole(&reference) => {
                    Bytes::InStore(Ranges::new(self.store, reference, self.observer))
                }
                None => Bytes::Coming(Download::start(self.store, reference, self.cache, self.observer)?),
            };
            self.coming.push_back(Link { reference, bytes });
        }
        self.coming.pop_front().ok_or_else(|| Error::usage("the plan has no more links"))
    }

    /// What comes of applying a link of a route. What counts first is whether it is the file that the route names.
    pub(crate) fn judge<T>(&mut self, hop: &Hop, link: &Link<'_>, applied: Result<T>) -> Result<T, Failure> {
        let result = applied.map_err(|error| link.blame(hop, error))?;
        match &link.bytes {
            Bytes::Here(_) => self.received.from_cache += link.reference.size,
            Bytes::Coming(download) => {
                let end = download.verdict().map_err(|error| link.misses(error))?;
                self.received.downloaded += link.reference.size;
                self.received.time = self.received.time.max(end.saturating_duration_since(self.began));
            }
            Bytes::InStore(ranges) => {
                self.received.downloaded += ranges.fetched();
                self.received.time = self.began.elapsed();
            }
        }
        Ok(result)
    }

    pub(crate) fn received(&self) -> Received {
        self.received
    }
}

impl Link<'_> {
    /// Says how many bytes of segments will be read.
    pub(crate) fn expect(&self, bytes: u64) {
        if let Bytes::InStore(ranges) = &self.bytes {
            ranges.observer.begin(Phase::Download, bytes);
        }
    }

    /// Why the link could not be opened or applied.
    pub(crate) fn blame(&self, hop: &Hop, error: Error) -> Failure {
        // An error without a rule is no fault of the link, unless it says that the link did not come.
        if let Bytes::Coming(download) = &self.bytes
            && (error.rule().is_some() || download.has_failed())
            && let Err(fault) = download.verdict()
        {
            return self.misses(fault);
        }
        match error.rule() {
            // Only what is fetched in ranges is found out about in the middle of it.
            Some("R-CHN-09" | "R-CHN-10") => self.misses(error),
            Some(_) => Failure::Route(hop.clone(), error.in_file(self.reference.name().to_string())),
            None => Failure::Other(error),
        }
    }

    /// Why the file did not come.
    fn misses(&self, error: Error) -> Failure {
        if error.rule().is_some() { Failure::File(self.reference, error) } else { Failure::Other(error) }
    }
}

impl Source for Link<'_> {
    fn length(&self) -> Result<u64> {
        match &self.bytes {
            Bytes::Here(file) => file.length(),
            Bytes::Coming(download) => download.length(),
            Bytes::InStore(ranges) => ranges.length(),
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.bytes {
            Bytes::Here(file) => file.read_at(offset, out),
            Bytes::Coming(download) => download.read_at(offset, out),
            Bytes::InStore(ranges) => ranges.read_at(offset, out),
        }
    }
}
