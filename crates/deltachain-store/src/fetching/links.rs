//! Fetches the links of a plan from the store.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use deltachain::chain::{FileReference, Hop};
use deltachain::{Error, FileSource, LinkReader, Result, Source};

use crate::access::copies::{FileRequest, FileStores};
use crate::access::stored_link::StoredLink;
use crate::access::whole::ChainFile;
use crate::fetching::cache::Cache;
use crate::fetching::download::Download;
use crate::observer::{InPhase, Observer, Phase};

/// Maximum number of links that are downloaded at the same time.
const FILES_AT_ONCE: usize = 4;

/// The failure of a plan, by what is to blame.
#[derive(Debug)]
pub(crate) enum Blame {
    /// The links of a shard, by its place among the selected shards. [`Links::blame`] finds out
    /// which link.
    Shard(usize, Error),
    /// A file is missing or has other content.
    File(FileReference, Error),
    /// One of the links of a route was refused.
    Route(Hop, Error),
    /// No path that starts from the held version will help.
    Held(Error),
    /// No other path will help.
    Other(Error),
}

impl Blame {
    /// The error itself.
    pub(crate) fn error(&self) -> &Error {
        match self {
            Self::Shard(_, error)
            | Self::File(_, error)
            | Self::Route(_, error)
            | Self::Held(error)
            | Self::Other(error) => error,
        }
    }
}

impl From<Error> for Blame {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The headers and indexes of the links of each shard.
pub(crate) type OpenedLinks = Vec<Vec<LinkReader<()>>>;

/// The links of a plan.
pub(crate) struct Links<'a> {
    hops: &'a [Hop],
    /// The links of each selected shard, one for each route.
    shards: Vec<Vec<FetchedLink<'a>>>,
    began: Instant,
    _phase: InPhase<'a>,
}

/// Totals of downloads and of built tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FetchTotals {
    /// Bytes of links and assets that were downloaded.
    pub(crate) downloaded: u64,
    /// Bytes of links that were in the cache.
    pub(crate) from_cache: u64,
    /// Bytes of tensors that were built.
    pub(crate) written: u64,
    /// Time from the start to the last byte that arrived.
    pub(crate) time: Duration,
}

impl FetchTotals {
    /// Waits for a link, verifies it and adds it. `began` is the start of the downloads.
    fn add(&mut self, link: &FetchedLink<'_>, began: Instant) -> Result<(), Blame> {
        match &link.bytes {
            LinkBytes::Here(_) => self.from_cache += link.reference.size,
            LinkBytes::Coming(download) => {
                let end = download.verdict().map_err(|error| link.misses(error))?;
                self.downloaded += link.reference.size;
                self.time = self.time.max(end.saturating_duration_since(began));
            }
            LinkBytes::InStore(ranges) => {
                self.downloaded += ranges.fetched();
                self.time = began.elapsed();
            }
        }
        Ok(())
    }
}

/// A link in the cache, in a download, or in the store, where ranges of it are read.
pub(crate) struct FetchedLink<'a> {
    pub(crate) reference: FileReference,
    bytes: LinkBytes<'a>,
}

enum LinkBytes<'a> {
    Here(FileSource),
    Coming(Box<Download<'a>>),
    InStore(Box<StoredLink<'a, FileRequest<'a>>>),
}

/// The sources of links, and the way in which long links are fetched.
pub(crate) struct LinkAccess<'a> {
    pub(crate) stores: &'a FileStores,
    pub(crate) cache: &'a Cache,
    pub(crate) observer: &'a dyn Observer,
    /// Whether only the needed bytes are downloaded of links that are longer than one request.
    pub(crate) in_parts: bool,
}

impl LinkAccess<'_> {
    /// True if a link is downloaded in one go. A file that is a single request anyway is fetched as
    /// a whole, so that its digest can be checked.
    fn is_whole(&self, file: &FileReference) -> bool {
        !self.in_parts || file.size <= self.stores.url.options.part_bytes
    }
}

impl<'a> LinkAccess<'a> {
    /// Opens a link in the cache, or starts to fetch it.
    fn start(&self, file: Option<FileReference>) -> Result<FetchedLink<'a>> {
        let reference = file.ok_or_else(|| Error::usage("missing shard in a route of the plan"))?;
        let bytes = match self.cache.find(&reference)? {
            Some(file) => LinkBytes::Here(file),
            None if self.is_whole(&reference) => LinkBytes::Coming(Box::new(Download::start(
                self.stores,
                reference,
                self.cache,
                self.observer,
            )?)),
            None => LinkBytes::InStore(Box::new(StoredLink::from_source(
                &self.stores.url,
                self.stores.file(ChainFile::Link(reference)),
                reference,
                self.observer,
            ))),
        };
        Ok(FetchedLink { reference, bytes })
    }
}

impl<'a> Links<'a> {
    /// Fetches the links of these routes for the selected shards. Waits for the links of all routes
    /// but the first. Then starts the downloads of the first route, whose links are long if the
    /// path begins with a snapshot: they are read while they arrive.
    pub(crate) fn fetch(
        access: &LinkAccess<'a>,
        hops: &'a [Hop],
        wanted: &[usize],
        received: &mut FetchTotals,
    ) -> Result<Self, Blame> {
        let mut links = Self {
            hops,
            shards: wanted.iter().map(|_| Vec::new()).collect(),
            began: Instant::now(),
            _phase: InPhase::begin(access.observer, Phase::Download, 0),
        };
        let files = |hop: &'a Hop| {
            wanted
                .iter()
                .map(move |&shard| hop.files.get(shard).copied())
        };
        let all = hops.iter().flat_map(files).flatten();
        let to_fetch = all.filter(|file| !access.cache.has(file) && access.is_whole(file));
        access.observer.begin(
            Phase::Download,
            to_fetch.map(|file| file.size).fold(0, u64::saturating_add),
        );

        let Some((first, later)) = hops.split_first() else {
            return Ok(links);
        };
        let mut coming: VecDeque<(usize, FetchedLink<'a>)> = VecDeque::new();
        for (place, file) in later.iter().flat_map(|hop| files(hop).enumerate()) {
            if coming.len() == FILES_AT_ONCE
                && let Some((place, link)) = coming.pop_front()
            {
                links.push(place, link, received)?;
            }
            coming.push_back((place, access.start(file)?));
        }
        for (place, link) in coming {
            links.push(place, link, received)?;
        }
        for (place, file) in files(first).enumerate() {
            if let Some(before) = place.checked_sub(FILES_AT_ONCE) {
                links.shards[before][0].wait()?;
            }
            links.shards[place].insert(0, access.start(file)?);
        }
        Ok(links)
    }

    /// Adds a link of a shard, once it has arrived.
    fn push(
        &mut self,
        place: usize,
        link: FetchedLink<'a>,
        received: &mut FetchTotals,
    ) -> Result<(), Blame> {
        if !matches!(link.bytes, LinkBytes::InStore(_)) {
            received.add(&link, self.began)?;
        }
        self.shards[place].push(link);
        Ok(())
    }

    /// Returns the links of a shard, by its place among the selected shards.
    pub(crate) fn of_shard(&self, place: usize) -> &[FetchedLink<'a>] {
        &self.shards[place]
    }

    /// Checks, after everything has been built, that the links that were read while they arrived
    /// are the ones that the routes name.
    pub(crate) fn settle(&self, received: &mut FetchTotals) -> Result<(), Blame> {
        for links in &self.shards {
            for (number, link) in links.iter().enumerate() {
                if number == 0 || matches!(link.bytes, LinkBytes::InStore(_)) {
                    received.add(link, self.began)?;
                }
            }
        }
        Ok(())
    }

    /// Returns readers of these links in open files, which stay readable when the cache is trimmed.
    /// `opened` has their headers and indexes. All links must have been [settled](Self::settle).
    ///
    /// # Errors
    /// USAGE if only parts of a link were fetched.
    pub(crate) fn into_readers(
        self,
        opened: OpenedLinks,
    ) -> Result<Vec<Vec<LinkReader<FileSource>>>> {
        let file = |link: FetchedLink<'_>| match link.bytes {
            LinkBytes::Here(file) => Ok(file),
            LinkBytes::Coming(download) => Ok(download.into_file()),
            LinkBytes::InStore(_) => Err(Error::usage("only parts of the link were downloaded")),
        };
        let shards = self.shards.into_iter().zip(opened);
        let readers = shards.map(|(links, opened)| {
            let links = links.into_iter().zip(opened);
            links
                .map(|(link, opened)| Ok(opened.with_source(file(link)?)))
                .collect()
        });
        readers.collect()
    }

    /// Finds out why the links of a shard could not be opened or applied. A link that was read
    /// while it arrived is verified first.
    pub(crate) fn blame(&self, place: usize, error: Error) -> Blame {
        // An error without a rule is not a fault of a link, unless the download of the link failed.
        if let Some(link) = self.shards[place].first()
            && let LinkBytes::Coming(download) = &link.bytes
            && (error.rule().is_some() || download.has_failed())
            && let Err(fault) = download.verdict()
        {
            return link.misses(fault);
        }
        let at_fault = error
            .link()
            .and_then(|number| Some((self.shards[place].get(number)?, self.hops.get(number)?)));
        match at_fault {
            // Only links that are fetched in ranges can fail in the middle of the work.
            Some((link, _)) if error.breaks(&["R-CHN-09", "R-CHN-10"]) => link.misses(error),
            Some((link, hop)) if error.rule().is_some() => Blame::Route(
                hop.clone(),
                error.in_file(link.reference.name().to_string()),
            ),
            None if error.breaks(&["R-LAY-03"]) => Blame::Held(error),
            _ => Blame::Other(error),
        }
    }
}

impl FetchedLink<'_> {
    /// Whether the whole link has been hashed once it has [settled](Links::settle).
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.bytes, LinkBytes::InStore(_))
    }

    /// Reports to the observer how many bytes of segments will be downloaded, if ranges are read.
    pub(crate) fn expect(&self, bytes: u64) {
        if let LinkBytes::InStore(ranges) = &self.bytes {
            ranges.observer.begin(Phase::Download, bytes);
        }
    }

    /// Waits until the download of the link, if there is one, has succeeded or failed.
    fn wait(&self) -> Result<()> {
        if let LinkBytes::Coming(download) = &self.bytes {
            download.wait_for_end()
        } else {
            Ok(())
        }
    }

    /// Returns the blame for a link that could not be downloaded.
    fn misses(&self, error: Error) -> Blame {
        if error.rule().is_some() {
            Blame::File(self.reference, error)
        } else {
            Blame::Other(error)
        }
    }
}

impl Source for FetchedLink<'_> {
    fn length(&self) -> Result<u64> {
        Ok(self.reference.size)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.bytes {
            LinkBytes::Here(file) => file.read_at(offset, out),
            LinkBytes::Coming(download) => download.read_at(offset, out),
            LinkBytes::InStore(ranges) => ranges.read_at(offset, out),
        }
    }
}
