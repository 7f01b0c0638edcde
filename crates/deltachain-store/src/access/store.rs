//! A store that holds one chain: a directory or a prefix of a bucket (SPEC section 17.1).

use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use deltachain::chain::{Note, ObjectName, foreign_form};
use deltachain::{Error, Result, without_secrets};
use futures_util::future::try_join;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload,
};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::{sleep, sleep_until};

use crate::access::legible::is_legible;
use crate::access::links::{check_links, find_dangling, is_without_links};
use crate::access::opened::{OpenStore, Renewal};
use crate::access::options::{ATTEMPTS, StoreOptions};
use crate::access::pages::{LISTING, Pages};
use crate::access::rate::Rate;
use crate::access::refusal::{Meaning, Refusal, causes, told};
use crate::access::runtime::shared_runtime;
use crate::access::stop::Stop;
use crate::access::traffic::Traffic;
use crate::access::url::{directory_of, open_url};

/// Maximum number of bytes that are read of a document: the default limit of readers, and one byte
/// by which the parser notices a longer document. `Limits::document_bytes` does not raise it: a
/// store is not trusted, and could send any number of long documents.
const DOCUMENT_BYTES: u64 = (1 << 24) + 1;

/// A name in `commits/` that no chain has.
const NEVER_THERE: &str = "does-not-exist.json";

/// A store that holds one chain. Clones share connections and threads.
///
/// All methods block; they must not be called from asynchronous code.
#[derive(Clone)]
pub struct Store {
    pub(super) opened: OpenStore,
    name: String,
    pub(crate) options: Arc<StoreOptions>,
    /// Limits the requests for ranges at the same time to `StoreOptions::parallel`, over all
    /// clones. Requests that wait are served in order.
    ranges: Arc<Semaphore>,
    runtime: Arc<Runtime>,
    pub(crate) stop: Stop,
    /// Stores with copies of the chain's files.
    pub(crate) copies: Arc<[Store]>,
    /// True for a copy, which is given up quickly, because files can come from another store.
    is_copy: bool,
    pub(crate) traffic: Arc<Traffic>,
    trouble: Trouble,
    /// The limit for bytes; requests to servers are paced by [`crate::access::http`].
    rate: Option<Arc<Rate>>,
}

/// Why a store does not answer. Any thread may ask while others wait for the store.
#[derive(Debug, Clone, Default)]
pub struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    /// The reason why the last attempt of a request has failed, also while it is repeated. `None`
    /// once the store has answered.
    pub fn now(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, trouble: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

/// One of a chain's objects as a list shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "raw"),
    expect(unreachable_pub, reason = "the feature raw exports it")
)]
pub struct StoredObject {
    /// Its name.
    pub name: ObjectName,
    /// Its length in bytes.
    pub size: u64,
    /// When it was stored, by the store's clock.
    pub stored: SystemTime,
}

impl Store {
    /// Opens the store that a URL or a path names: a directory, `s3://BUCKET/PREFIX`, `gs://`,
    /// `az://`, or `http(s)://`, which can only be read. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// USAGE if the URL cannot be understood, settings are missing, or the directory does not
    /// exist.
    pub fn open(url: &str, options: StoreOptions) -> Result<Self> {
        Self::new(open_url(url, &options, false)?, url, options)
    }

    /// Same as [`open`](Self::open), but a directory need not exist yet. Until it does, the store
    /// has no chain.
    ///
    /// # Errors
    /// Same errors as [`open`](Self::open).
    pub fn open_awaited(url: &str, options: StoreOptions) -> Result<Self> {
        Self::new(open_url(url, &options, true)?, url, options)
    }

    /// The path of the store, if it is a directory that does not exist.
    pub fn missing_directory(&self) -> Option<PathBuf> {
        self.directory().filter(|directory| !directory.is_dir())
    }

    /// Same as [`open`](Self::open), but creates the directory if the store is a directory that
    /// does not exist.
    ///
    /// # Errors
    /// Same errors as [`open`](Self::open); IO.
    pub fn create(url: &str, options: StoreOptions) -> Result<Self> {
        if let Some(directory) = directory_of(url) {
            find_dangling(&directory)?;
            fs::create_dir_all(&directory)
                .map_err(|error| Error::io("creating", error).in_file(&directory))?;
        }
        Self::open(url, options)
    }

    /// A store that the caller made, below a prefix, which may be empty.
    ///
    /// # Errors
    /// USAGE if the prefix is not a path; IO if no threads can be started.
    pub fn from_objects(
        objects: Arc<dyn ObjectStore>,
        prefix: &str,
        options: StoreOptions,
    ) -> Result<Self> {
        let prefix = Path::parse(prefix).map_err(|error| Error::usage(error.to_string()))?;
        let name = objects.to_string();
        Self::new(OpenStore::new(objects, prefix), &name, options)
    }

    /// The same store, with requests that can be cancelled.
    #[must_use]
    pub fn with_stop(&self, stop: Stop) -> Self {
        Self {
            stop,
            trouble: Trouble::default(),
            ..self.clone()
        }
    }

    /// Returns a handle that shows why the store does not answer. It follows this store and its
    /// clones; the store that [`with_stop`](Self::with_stop) returns has another one.
    pub fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    /// The same store, with [copies](crate::Mirror) of its chain in others. A follower fetches
    /// files from these, in their order, and from the store itself if they lack a file or fail.
    /// Documents come from the store alone, and nothing but a follower uses copies.
    #[must_use]
    pub fn with_copies(&self, copies: Vec<Self>) -> Self {
        Self {
            copies: copies.into(),
            ..self.clone()
        }
    }

    /// The same store, with new counters.
    pub(crate) fn counted(self) -> Self {
        Self {
            traffic: Arc::default(),
            ..self
        }
    }

    /// The same store as a copy of a chain: each request is made once, and given up quickly.
    pub(crate) fn as_copy(&self, stop: Stop) -> Self {
        Self {
            is_copy: true,
            stop,
            trouble: Trouble::default(),
            ..self.with_attempts(1).counted()
        }
    }

    /// The same store, with at most this many attempts for each request.
    pub(crate) fn with_attempts(&self, most: u32) -> Self {
        self.with_options(StoreOptions {
            attempts: self.options.attempts.min(most),
            ..StoreOptions::clone(&self.options)
        })
    }

    /// The same store, with parts of this length, or the shortest that S3 allows.
    pub(crate) fn with_part_bytes(&self, part_bytes: u64) -> Self {
        self.with_options(StoreOptions {
            part_bytes,
            ..StoreOptions::clone(&self.options)
        })
    }

    fn with_options(&self, options: StoreOptions) -> Self {
        Self {
            options: Arc::new(options),
            ..self.clone()
        }
    }

    /// The same store, below another folder.
    pub(crate) fn below(&self, folder: &str) -> Self {
        let directory = self.opened.directory.as_ref();
        let opened = OpenStore {
            prefix: self.opened.prefix.clone().join(folder),
            directory: directory.map(|directory| directory.join(folder)),
            ..self.opened.clone()
        };
        Self {
            opened,
            ..self.clone()
        }
    }

    fn new(opened: OpenStore, name: &str, mut options: StoreOptions) -> Result<Self> {
        if options.max_rate == Some(0) {
            return Err(Error::usage(
                "the limit for bytes per second is 0: give a higher one, or none",
            ));
        }
        // Zero would stall forever.
        options.parallel = options.parallel.max(1);
        options.part_bytes = options.part_bytes.max(1);
        // Requests to a server are paced by the client that sends them.
        let rate = match options.max_rate {
            Some(rate) if !opened.is_watched => Some(Arc::new(Rate::new(rate))),
            _ => None,
        };
        Ok(Self {
            opened,
            name: without_secrets(name),
            ranges: Arc::new(Semaphore::new(options.parallel)),
            options: Arc::new(options),
            runtime: shared_runtime().map_err(|error| Error::io("starting threads", error))?,
            stop: Stop::default(),
            copies: Arc::default(),
            is_copy: false,
            traffic: Arc::default(),
            trouble: Trouble::default(),
            rate,
        })
    }

    /// True if the store can list. A web server cannot: it shows the head, but no routes documents.
    pub(crate) fn can_list(&self) -> bool {
        self.opened.can_list
    }

    /// The content of a document, or `None` if it does not exist. A document that is too long is
    /// cut one byte beyond the limit, so that the parser refuses it.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn get(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        self.block_on(self.get_document(name))
    }

    /// The contents of documents, fetched concurrently, in any order.
    ///
    /// # Errors
    /// Same errors as [`get`](Self::get).
    pub(crate) fn get_all(
        &self,
        names: &[ObjectName],
    ) -> Result<Vec<(ObjectName, Option<Vec<u8>>)>> {
        let fetched = stream::iter(names.to_vec())
            .map(async |name| Ok((name, self.get_document(name).await?)));
        self.block_on(
            fetched
                .buffer_unordered(self.options.parallel)
                .try_collect(),
        )
    }

    async fn get_document(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        let content = self.get_once(name).await?;
        if content
            .as_ref()
            .is_none_or(|content| is_legible(name, content))
        {
            return Ok(content);
        }
        // The bytes may have been damaged in transit: the second read counts.
        self.get_once(name).await
    }

    /// Same as [`get`](Self::get), for a document that no other digest covers: it is read until two
    /// reads match (SPEC section 19). Reads differ if bytes were damaged on the way and still form
    /// a document.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn get_agreed(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        self.block_on(self.get_agreed_document(name))
    }

    /// Same as [`get_all`](Self::get_all), but documents that no digest covers, the highest commit
    /// and the chain document, are read like [`get_agreed`](Self::get_agreed). A reader that holds
    /// a version has the digests of its commit and of the chain document.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn get_all_agreed(
        &self,
        names: &[ObjectName],
        held: Option<u64>,
    ) -> Result<Vec<(ObjectName, Option<Vec<u8>>)>> {
        let is_commit = |name: &&ObjectName| matches!(name, ObjectName::Commit(_));
        let highest = names.iter().filter(is_commit).max().copied();
        let held = held.map(ObjectName::Commit);
        let fetched = stream::iter(names.to_vec()).map(async |name| {
            let content = if is_uncovered(name, highest, held) {
                self.get_agreed_document(name).await?
            } else {
                self.get_document(name).await?
            };
            Ok((name, content))
        });
        self.block_on(
            fetched
                .buffer_unordered(self.options.parallel)
                .try_collect(),
        )
    }

    async fn get_agreed_document(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        for _ in 0..self.options.attempts.max(2) {
            let (first, second) =
                try_join(self.get_document(name), self.get_document(name)).await?;
            if first == second {
                return Ok(first);
            }
        }
        Err(Error::io(
            "reading",
            io::Error::other("the content differs at each read"),
        )
        .in_file(name.to_string()))
    }

    /// Checks, once for each web server, that it does not answer 200 for files that do not exist.
    /// Servers of single-page applications do, and would seem to have every version.
    ///
    /// # Errors
    /// IO.
    pub(super) fn check_missing_is_missing(&self) -> Result<()> {
        if self.opened.knows_missing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = self.opened.prefix.clone().join("commits").join(NEVER_THERE);
        let asked = self.retry(
            async || match if_found(self.opened.objects.get(&path).await)? {
                Some(_) => Err(refused(Meaning::Page, NEVER_THERE)),
                None => Ok(()),
            },
        );
        self.block_on(asked)
            .map_err(|error| self.failed("asking for a file that does not exist", &error, None))?;
        self.opened.knows_missing.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn get_once(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let most = if let ObjectName::Signature { .. } = name {
            Note::MOST_BYTES + 1
        } else {
            DOCUMENT_BYTES
        };
        let got = self.retry(async || {
            // Not a range: a document may be shorter than the range, and then some stores refuse.
            let Some(result) = if_found(self.opened.objects.get(&path).await)? else {
                return Ok(None);
            };
            let size = result.meta.size;
            let mut body = result.into_stream();
            let mut content = Vec::new();
            while let Some(chunk) = body.try_next().await? {
                self.traffic.add_bytes(chunk.len());
                content.extend_from_slice(&chunk);
                if content.len() as u64 >= most {
                    content.truncate(usize::try_from(most).unwrap_or(usize::MAX));
                    break;
                }
            }
            all_came(content.len(), size.min(most))?;
            if !self.opened.can_list
                && matches!(name, ObjectName::Chain | ObjectName::Commit(_))
                && let Some(form) = foreign_form(&content)
            {
                return Err(refused(Meaning::Page, &format!("this is {form}")));
            }
            Ok(Some(content))
        });
        let got = got
            .await
            .map_err(|error| self.failed("downloading", &error, Some(name)))?;
        let bytes = got.as_ref().map_or(0, Vec::len);
        self.pace(bytes as u64).await?;
        Ok(got)
    }

    /// All of the chain's objects, in ascending order of their names. Other objects are left out.
    ///
    /// # Errors
    /// IO; USAGE if the store cannot list.
    pub(crate) fn objects(&self) -> Result<Vec<StoredObject>> {
        Ok(self.objects_and_probes()?.0)
    }

    /// Same as [`objects`](Self::objects), and the probes.
    ///
    /// # Errors
    /// Same errors as [`objects`](Self::objects).
    pub(crate) fn objects_and_probes(&self) -> Result<(Vec<StoredObject>, Vec<ObjectMeta>)> {
        if !self.opened.can_list {
            return Err(Error::usage("this store cannot be listed").in_file(&self.name));
        }
        let select = |meta: &ObjectMeta| {
            if let Some(object) = self.stored_object(meta) {
                return Some(Listed::Object(object));
            }
            if self.is_probe(&meta.location) {
                return Some(Listed::Probe(meta.clone()));
            }
            None
        };
        let (mut objects, mut probes) = (Vec::new(), Vec::new());
        for listed in self.block_on(self.list_with(None, None, usize::MAX, select))? {
            match listed {
                Listed::Object(object) => objects.push(object),
                Listed::Probe(probe) => probes.push(probe),
            }
        }
        objects.sort_unstable_by_key(|object: &StoredObject| object.name);
        Ok((objects, probes))
    }

    /// At most `most` of the chain's objects in one of its folders, after a name.
    pub(crate) async fn list(
        &self,
        folder: Option<&str>,
        after: Option<ObjectName>,
        most: usize,
    ) -> Result<Vec<StoredObject>> {
        self.list_with(folder, after, most, |meta| self.stored_object(meta))
            .await
    }

    /// The values that `select` returns for objects in a folder after a name, at most `most`.
    async fn list_with<T>(
        &self,
        folder: Option<&str>,
        after: Option<ObjectName>,
        most: usize,
        select: impl Fn(&ObjectMeta) -> Option<T>,
    ) -> Result<Vec<T>> {
        let prefix = folder.map_or_else(
            || self.opened.prefix.clone(),
            |folder| self.opened.prefix.clone().join(folder),
        );
        let listed = self.retry(async || {
            let metas = match after {
                Some(after) => self
                    .opened
                    .objects
                    .list_with_offset(Some(&prefix), &self.path(after)),
                None => self.opened.objects.list(Some(&prefix)),
            };
            // Further pages are fetched only if the first ones do not hold enough.
            let objects = metas.try_filter_map(async |meta| {
                let added = LISTING.with(|pages| pages.add_name(meta.location.as_ref()));
                added.map_err(|why| refused(Meaning::Endless, &why))?;
                Ok(select(&meta))
            });
            let listed = objects.take(most).try_collect();
            LISTING.scope(Pages::default(), listed).await
        });
        listed
            .await
            .map_err(|error| self.failed("listing", &error, None))
    }

    fn stored_object(&self, meta: &ObjectMeta) -> Option<StoredObject> {
        let below = meta.location.prefix_match(&self.opened.prefix)?;
        let name = below
            .map(|part| part.as_ref().to_owned())
            .collect::<Vec<_>>()
            .join("/");
        Some(StoredObject {
            name: ObjectName::parse(&name)?,
            size: meta.size,
            stored: meta.last_modified.into(),
        })
    }

    /// One of the chain's objects as a list would show it, or `None` if it does not exist.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn find(&self, name: ObjectName) -> Result<Option<StoredObject>> {
        let path = self.path(name);
        let head = self.retry(async || if_found(self.opened.objects.head(&path).await));
        let head = self
            .block_on(head)
            .map_err(|error| self.failed("examining", &error, Some(name)))?;
        Ok(head.map(|meta| StoredObject {
            name,
            size: meta.size,
            stored: meta.last_modified.into(),
        }))
    }

    /// Creates a document by put-if-absent. `false` if the name is taken, perhaps by an attempt of
    /// this very call whose success was not seen: to know, compare what stands there.
    ///
    /// # Errors
    /// IO; USAGE if the store can only be read.
    pub(crate) fn put_if_absent(&self, name: ObjectName, content: &[u8]) -> Result<bool> {
        self.put_if_absent_while(name, content, &|| true)
    }

    /// Same as [`put_if_absent`](Self::put_if_absent), but calls `may` before each attempt, and
    /// returns `false` if the attempt is not allowed.
    ///
    /// # Errors
    /// Same errors as [`put_if_absent`](Self::put_if_absent).
    pub(crate) fn put_if_absent_while(
        &self,
        name: ObjectName,
        content: &[u8],
        may: &dyn Fn() -> bool,
    ) -> Result<bool> {
        self.check_is_written()?;
        let (path, payload) = (self.path(name), PutPayload::from(content.to_vec()));
        let put = self.retry(async || {
            if !may() {
                return Ok(false);
            }
            let options = PutOptions::from(PutMode::Create);
            match self
                .opened
                .objects
                .put_opts(&path, payload.clone(), options)
                .await
            {
                Ok(_) => Ok(true),
                // S3 also answers this while another client is writing the object, which may still
                // fail.
                Err(
                    error @ (StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }),
                ) => {
                    let there = if_found(self.opened.objects.head(&path).await)?;
                    if there.is_some() {
                        Ok(false)
                    } else {
                        Err(passing("conflict", error.to_string()))
                    }
                }
                Err(error) => Err(error),
            }
        });
        self.block_on(self.pace(content.len() as u64))?;
        self.block_on(put)
            .map_err(|error| self.failed_to_create(&error, name))
    }

    /// The error for a document that was not created. To create one in a directory needs a hard
    /// link.
    fn failed_to_create(&self, error: &StoreError, name: ObjectName) -> Error {
        if let Some(directory) = self.directory()
            && may_lack_links(error)
            && let Err(reason) = check_links(&directory)
        {
            return reason;
        }
        self.failed("storing", error, Some(name))
    }

    /// The `Date` of the last successful answer, if the store is a server.
    pub(crate) fn date(&self) -> Option<SystemTime> {
        *self
            .opened
            .date
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an object, if it is there.
    pub(super) async fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.retry(async || if_found(self.opened.objects.delete(path).await).map(drop))
            .await
    }

    /// Removes objects. One that is not there is removed already.
    ///
    /// # Errors
    /// IO; USAGE if the store can only be read.
    pub(crate) fn delete(&self, names: &[ObjectName]) -> Result<()> {
        self.check_is_written()?;
        let deletions = stream::iter(names.to_vec()).map(async |name| {
            self.remove(&self.path(name))
                .await
                .map_err(|error| self.failed("removing", &error, Some(name)))
        });
        self.block_on(
            deletions
                .buffer_unordered(self.options.parallel)
                .try_collect(),
        )
    }

    /// A range of a file, with the length of all of it; `None` if there is no such file. An answer
    /// that is shorter than it should be is asked for again.
    pub(crate) async fn get_range(
        &self,
        name: ObjectName,
        start: u64,
        end: u64,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        // It is never closed.
        let _permit = self.ranges.acquire().await;
        let got = self.retry(async || {
            let came = AtomicU64::new(0);
            let request = self.get_range_once(name, start..end, &came);
            // A directory gives all bytes at once, so no progress can be seen.
            if self.is_copy && self.opened.directory.is_none() {
                self.traffic.watch(request, &came, &self.options).await
            } else {
                request.await
            }
        });
        let got = got
            .await
            .map_err(|error| self.failed("downloading", &error, Some(name)))?;
        self.pace(got.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64))
            .await?;
        Ok(got)
    }

    /// One request for a range. `came` counts its bytes as they come.
    async fn get_range_once(
        &self,
        name: ObjectName,
        range: Range<u64>,
        came: &AtomicU64,
    ) -> Result<Option<(Vec<u8>, u64)>, StoreError> {
        let path = self.path(name);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        let result = match self.opened.objects.get_opts(&path, options).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            // A HEAD tells an object that is too short from a failure.
            Err(error) if self.may_be_too_short(&error) => {
                match self.opened.objects.head(&path).await {
                    Ok(meta) if meta.size <= range.start => {
                        return Ok(Some((Vec::new(), meta.size)));
                    }
                    _ => return Err(error),
                }
            }
            Err(error) => return Err(error),
            Ok(result) => result,
        };
        let size = result.meta.size;
        let count = |bytes: usize| {
            came.fetch_add(bytes as u64, Ordering::Relaxed);
            self.traffic.add_bytes(bytes);
        };
        let content: Vec<u8> = if self.opened.directory.is_some() {
            let bytes = result.bytes().await?;
            count(bytes.len());
            bytes.into()
        } else {
            let mut body = result.into_stream();
            let mut content = Vec::new();
            while let Some(chunk) = body.try_next().await? {
                count(chunk.len());
                content.extend_from_slice(&chunk);
            }
            content
        };
        all_came(
            content.len(),
            range.end.min(size).saturating_sub(range.start),
        )?;
        Ok(Some((content, size)))
    }

    /// True if a range may have failed because the object is too short. Other kinds of stores than
    /// servers have no common error for that.
    fn may_be_too_short(&self, error: &StoreError) -> bool {
        #[cfg(feature = "servers")]
        if self.opened.is_watched {
            return crate::access::http::may_be_too_short(error);
        }
        let _ = (self, error);
        true
    }

    /// Waits for the time that so many bytes take at the configured rate. The client of a server
    /// does this itself ([`crate::access::http`]).
    ///
    /// # Errors
    /// IO if it is stopped.
    pub(super) async fn pace(&self, bytes: u64) -> Result<()> {
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        if bytes == 0 {
            return Ok(());
        }
        let paid = sleep_until(rate.reserve(bytes).end).map(Ok);
        self.stop
            .unless(paid)
            .await
            .map_err(|error| self.failed("waiting", &error, None))
    }

    /// The directory of the store, if it is one.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.opened.directory.clone()
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    pub(super) fn path(&self, name: ObjectName) -> Path {
        // Names of a chain have no character that must be escaped.
        name.to_string()
            .split('/')
            .fold(self.opened.prefix.clone(), Path::join)
    }

    /// Tries until it succeeds, fails for good, or has used up its attempts.
    pub(super) async fn retry<T>(
        &self,
        mut operation: impl AsyncFnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.retry_whole(async || self.in_time(operation()).await)
            .await
    }

    /// Same as [`retry`](Self::retry), for an operation of several requests that each have their
    /// own time limit.
    pub(super) async fn retry_whole<T>(
        &self,
        mut operation: impl AsyncFnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut attempt = 1;
        let mut renewal = self.opened.renewal.as_ref();
        loop {
            let credentials = renewal.map(Renewal::wanted).unwrap_or_default();
            let error = match operation().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            // A renewal of the credentials is not an attempt.
            if may_be_expired(&error)
                && let Some(renewal) = renewal.take()
            {
                renewal.renew(credentials);
                continue;
            }
            if attempt >= self.options.attempts || !self.should_retry(&error) {
                return Err(error);
            }
            self.pause(attempt).await?;
            attempt += 1;
        }
    }

    /// Notes in `trouble` whether the store has answered.
    fn note<T>(&self, result: &Result<T, StoreError>) {
        if self.stop.is_stopped() {
            return;
        }
        let trouble = match result {
            Err(error) if is_transient(error) => {
                let text = Refusal::of(error).map_or_else(|| told(error), ToString::to_string);
                Some(format!("{}: {}", self.name, without_secrets(&text)))
            }
            _ => None,
        };
        self.trouble.set(trouble);
    }

    /// True if the request that failed is worth another attempt.
    fn should_retry(&self, error: &StoreError) -> bool {
        is_transient(error) && !self.stop.is_stopped()
    }

    /// Waits after an attempt.
    async fn pause(&self, attempt: u32) -> Result<(), StoreError> {
        self.stop
            .unless(sleep(self.options.pause_after(attempt)).map(Ok))
            .await
    }

    /// Makes one attempt within the time limit, and notes whether the store has answered.
    pub(super) async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = self.unless_silent(operation).await;
        self.note(&result);
        result
    }

    async fn unless_silent<T>(
        &self,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let operation = ATTEMPTS.scope(self.options.attempts, self.stop.unless(operation));
        // The client of a server gives up itself when nothing moves.
        if self.opened.is_watched {
            return operation.await;
        }
        tokio::time::timeout(self.options.timeout, operation)
            .await
            .unwrap_or_else(|_| {
                let text = format!(
                    "timeout: no answer within {} s",
                    self.options.timeout.as_secs_f64()
                );
                let source = io::Error::new(io::ErrorKind::TimedOut, text);
                Err(StoreError::Generic {
                    store: "time-out",
                    source: source.into(),
                })
            })
    }

    /// The error for a failure, of an object or of the store. Counts the failure in `traffic`, so
    /// call it once for each.
    pub(super) fn failed(&self, what: &str, error: &StoreError, name: Option<ObjectName>) -> Error {
        let error = match Refusal::of(error) {
            Some(refusal) => refusal.clone().into_io(self.opened.words),
            None => io::Error::new(kind_of(error), without_secrets(&told(error))),
        };
        let error = Error::io(what, error)
            .in_file(name.map_or_else(|| self.name.clone(), |name| name.to_string()));
        if !self.stop.is_stopped() {
            self.traffic.add_failure(format!("{error:#}"));
        }
        error
    }

    /// Checks that the store is not read-only.
    ///
    /// # Errors
    /// USAGE if nothing can be stored or removed.
    pub(crate) fn check_is_written(&self) -> Result<()> {
        if self.opened.can_list {
            Ok(())
        } else {
            Err(Error::usage(
                "a web server is read-only; write to the bucket or directory behind it",
            )
            .in_file(&self.name))
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Shows the URL or path that it was opened by.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// True if new credentials may help.
pub(super) fn may_be_expired(error: &StoreError) -> bool {
    Refusal::of(error).is_some_and(|refusal| refusal.meaning.may_be_expired())
}

/// Kinds of failures that are final: a missing permission, a full disk, or an operation that the
/// server does not have.
const FINAL: [io::ErrorKind; 7] = [
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::ReadOnlyFilesystem,
    io::ErrorKind::StorageFull,
    io::ErrorKind::QuotaExceeded,
    io::ErrorKind::FileTooLarge,
    io::ErrorKind::InvalidFilename,
    io::ErrorKind::Unsupported,
];

/// True if the same request may succeed later.
fn is_transient(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Generic { .. } | StoreError::JoinError { .. }
    ) && Refusal::of(error).is_none()
        && !system_errors(error).any(|kind| FINAL.contains(&kind))
        && !may_lack_links(error)
}

/// True if the system's answer is that of a file system without hard links.
fn may_lack_links(error: &StoreError) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(is_without_links)
}

/// The kind of a failure of the network or the system, as far as the causes tell. `NotFound` among
/// the causes is ignored: the store itself says that an object does not exist.
fn kind_of(error: &StoreError) -> io::ErrorKind {
    let tells =
        |kind: &io::ErrorKind| !matches!(kind, io::ErrorKind::Other | io::ErrorKind::NotFound);
    let kind = match error {
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            Some(io::ErrorKind::PermissionDenied)
        }
        StoreError::NotFound { .. } => Some(io::ErrorKind::NotFound),
        _ => system_errors(error).filter(tells).last(),
    };
    // The system has no kind for a name that is not found, for example.
    #[cfg(feature = "servers")]
    let kind = match crate::access::http::kind_of(error) {
        Some(of_http) if !kind.is_some_and(|kind| OF_NETWORKS.contains(&kind)) => Some(of_http),
        _ => kind,
    };
    kind.unwrap_or(io::ErrorKind::Other)
}

/// Kinds that are more exact than "the server was not reached".
#[cfg(feature = "servers")]
const OF_NETWORKS: [io::ErrorKind; 9] = [
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkUnreachable,
    io::ErrorKind::NetworkDown,
    io::ErrorKind::NotConnected,
    io::ErrorKind::AddrNotAvailable,
    io::ErrorKind::TimedOut,
];

fn system_errors(error: &StoreError) -> impl Iterator<Item = io::ErrorKind> {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

/// True if no digest of another document covers this one. The reader has the digests of the commit
/// that it holds, and of the chain document if it holds a version.
fn is_uncovered(name: ObjectName, highest: Option<ObjectName>, held: Option<ObjectName>) -> bool {
    match name {
        ObjectName::Chain => held.is_none(),
        name => Some(name) == highest && held != highest,
    }
}

/// An object in a list.
enum Listed {
    Object(StoredObject),
    Probe(ObjectMeta),
}

/// The object, or `None` if it does not exist.
fn if_found<T>(found: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match found {
        Err(StoreError::NotFound { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// A transient failure.
fn passing(store: &'static str, message: String) -> StoreError {
    StoreError::Generic {
        store,
        source: message.into(),
    }
}

/// A refusal that ends the retries.
fn refused(meaning: Meaning, words: &str) -> StoreError {
    StoreError::Generic {
        store: "server",
        source: Refusal::new(meaning, words).into(),
    }
}

/// Checks that all bytes came: a body that ends early is not always an error of its own.
fn all_came(came: usize, wanted: u64) -> Result<(), StoreError> {
    if came as u64 == wanted {
        Ok(())
    } else {
        Err(passing(
            "answer",
            format!("received {came} bytes instead of {wanted}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use deltachain_testkit::faulty::{Fault, FaultyStore, Operation};
    use tokio::runtime::Builder;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_directory_keeps_to_the_rate_in_both_directions() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, vec![0; 7000]).unwrap();
        let options = StoreOptions::default().max_rate(Some(1000));
        let mut store = Store::open(place.path().to_str().unwrap(), options).unwrap();
        // Its clock goes on only when nothing else is left to do.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        store.runtime = Arc::new(runtime);
        let mut last = store.block_on(async { Instant::now() });
        let mut passed = || {
            let now = store.block_on(async { Instant::now() });
            now - std::mem::replace(&mut last, now)
        };
        let is = |passed: std::time::Duration, seconds: u128| {
            passed.as_millis().abs_diff(1000 * seconds) < 100
        };
        assert!(
            store
                .put_if_absent(ObjectName::Chain, &[b'x'; 5000])
                .unwrap()
        );
        assert!(is(passed(), 5));
        store.block_on(store.get_once(ObjectName::Chain)).unwrap();
        assert!(is(passed(), 5));
        store
            .upload(&file, ObjectName::Commit(0), 7000, &())
            .unwrap();
        assert!(is(passed(), 7));
        store
            .block_on(store.get_range(ObjectName::Commit(0), 1000, 4000))
            .unwrap();
        assert!(is(passed(), 3));
    }

    #[test]
    fn a_folder_of_a_directory_is_a_directory() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path().to_str().unwrap(), StoreOptions::default()).unwrap();
        let below = store.below("doctor-1").below("store");
        assert_eq!(below.directory(), Some(place.path().join("doctor-1/store")));
        let objects = Arc::new(object_store::memory::InMemory::new());
        let bucket = Store::from_objects(objects, "", StoreOptions::default()).unwrap();
        assert_eq!(bucket.below("doctor-1").directory(), None);
    }

    #[test]
    fn bytes_of_a_document_count_when_they_come() {
        let memory = Arc::new(object_store::memory::InMemory::new());
        let (objects, control) = FaultyStore::new(memory);
        let store = Store::from_objects(objects, "", StoreOptions::default()).unwrap();
        let content = b"{\"a\":1}";
        assert!(store.put_if_absent(ObjectName::Chain, content).unwrap());
        control.plan(|call| {
            (call.operation == Operation::Get && call.number == 0).then_some(Fault::Truncate)
        });
        let got = store.block_on(store.get_once(ObjectName::Chain)).unwrap();
        assert_eq!(got.as_deref(), Some(&content[..]));
        assert!(store.traffic.bytes() > content.len() as u64);
    }

    #[test]
    fn a_full_disk_is_not_tried_again() {
        let failed = |kind| StoreError::Generic {
            store: "disk",
            source: io::Error::from(kind).into(),
        };
        assert!(FINAL.into_iter().all(|kind| !is_transient(&failed(kind))));
        assert!(
            [io::ErrorKind::TimedOut, io::ErrorKind::Other]
                .into_iter()
                .all(|kind| is_transient(&failed(kind)))
        );
    }

    #[test]
    fn a_directory_may_come_later() {
        let place = tempfile::tempdir().unwrap();
        for name in ["later", "a b/%20/c"] {
            let directory = place.path().join(name);
            let url = directory.to_str().unwrap();
            assert!(Store::open(url, StoreOptions::default()).is_err());
            let store = Store::open_awaited(url, StoreOptions::default()).unwrap();
            assert_eq!(store.missing_directory(), Some(directory.clone()));
            assert_eq!(
                (
                    store.get(ObjectName::Chain).unwrap(),
                    store.objects().unwrap()
                ),
                (None, Vec::new())
            );
            let writer = Store::create(url, StoreOptions::default()).unwrap();
            assert!(writer.put_if_absent(ObjectName::Chain, b"x").unwrap());
            assert_eq!(store.missing_directory(), None);
            assert_eq!(
                store.get_all(&[ObjectName::Chain]).unwrap(),
                [(ObjectName::Chain, Some(b"x".to_vec()))]
            );
            assert_eq!(store.objects().unwrap(), writer.objects().unwrap());
        }
    }
}
