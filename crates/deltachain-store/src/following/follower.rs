//! The follower, which keeps a directory or memory at a version of a chain (SPEC section 19).

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use deltachain::chain::{Trust, UnsignedVersion};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::copies::FileStores;
use crate::access::store::Store;
use crate::assets::other_files::OtherFiles;
use crate::directory::held::HeldVersion;
use crate::directory::marker::DirectoryKind;
use crate::directory::own::{check_outside, own};
use crate::directory::room::is_in_memory;
use crate::directory::scratch::Scratch;
use crate::fetching::cache::Cache;
use crate::following::reach::{ChainReader, Destination, PreparedVersion};
use crate::following::selection::Selection;
use crate::following::trusting::FollowerTrust;
use crate::observer::Observer;

/// Default maximum of the bytes of links that are kept on a disk.
const CACHE_BYTES: u64 = 1 << 30;

deltachain::setters! {
    /// Options of a follower.
    #[derive(Debug, Clone)]
    pub struct FollowerOptions {
        /// Limits for what documents and links may make the follower allocate and write.
        pub limits: Limits = Limits::default(),
        /// Numbers of the selected shards, counted from 0; all if `None`. Only a follower of all
        /// shards can check that the shards are together the state that the commit names.
        pub shards: Option<Vec<usize>> = None,
        /// Patterns of the names of the selected tensors, such as `model.layers.{0,1}.*`; all if
        /// `None`. An empty list selects none, which is allowed only for a directory: it then has
        /// the other files, and the record of their version. `?` matches one character, `*` any
        /// number of characters, `[a-f]` one of these characters, and `{a,b}` either pattern. If a
        /// link is longer than [`part_bytes`](crate::StoreOptions::part_bytes), only the bytes that
        /// these tensors need are downloaded; SPEC section 19 says what that means for the checks.
        /// For memory that is changed in place, links are downloaded and hashed whole.
        pub tensors: Option<Vec<String>> = None,
        /// Maximum of the bytes of links that are kept after use. `None` stands for 1 GiB, or for 0
        /// in a directory in the machine's memory (tmpfs).
        pub cache_bytes: Option<u64> = None,
        /// Digest of the bytes of a commit to which a rollback is allowed: the chain may end below
        /// the held version, may have another commit for it (a store that was restored and then
        /// written to), or may be another chain. Otherwise R-CHN-14, R-CHN-04, R-CHN-05 or R-CHN-13
        /// is reported, and the held version stays. This works once: when a version with this
        /// commit has been held, which is recorded, the option has no further effect. If the chain
        /// has gone on from this commit, which must be one of the newest, the follower first
        /// switches to the version of this commit.
        pub allow_rollback: Option<Digest> = None,
        /// Whether the first version may belong to another chain than the held version (R-CHN-13).
        /// The follower then stays with that chain. A rollback of the same chain is still refused.
        pub adopt: bool = false,
        /// The trusted keys: only versions that they have signed are accepted, and the head is the
        /// highest of these (SPEC section 23.3). Versions above it are skipped and reported to the
        /// observer. The newest signed head that was seen is recorded: permanently in a directory,
        /// and for the life of the process in memory. R-CHN-14 or R-CHN-05 is reported if the chain
        /// ends below this head or has another commit there. A full poll costs one more request for
        /// each key; if those notes are not enough, it costs one more list and a request for each
        /// note. In a store that cannot list, only the own notes of keys are found, which
        /// publishers store since version 1.2.
        pub trust: Option<Trust> = None,
        /// For a directory: remove its record of trust. Without this, a start without
        /// [`trust`](Self::trust) is refused (USAGE) in a directory that has such a record.
        pub forget_trust: bool = false,
        /// For a directory: do not read its version at the start to check that it is unchanged.
        pub trust_directory: bool = false,
        /// For a directory: the source of the files that hold no tensors.
        pub other_files: OtherFiles = OtherFiles::default(),
        /// For memory: the directory where links are kept, which no other process may use
        /// meanwhile; a temporary one if `None`. A directory is refused (USAGE) if it is not empty
        /// and was not made for such links, or if it lies in the chain's own directory.
        pub cache: Option<PathBuf> = None,
    }
}

impl FollowerOptions {
    /// Returns the reader that reaches versions for memory, and the temporary directory of its
    /// cache, if the caller gave none.
    pub(crate) fn reader_for_memory(
        mut self,
        store: Store,
    ) -> Result<(ChainReader, Option<Scratch>)> {
        let selection = Selection::new(self.shards.take(), self.tensors.take())?;
        if selection.is_none() {
            return Err(Error::usage(
                "no tensor is selected: give at least one pattern",
            ));
        }
        let (cache, scratch) = match self.cache.take() {
            Some(cache) => {
                check_outside(&cache, store.directory().as_deref())?;
                own(&cache, DirectoryKind::Cache)?;
                (cache, None)
            }
            None => {
                let made = Scratch::new(None, &())?;
                (made.path().join("cache"), Some(made))
            }
        };
        let trust = self
            .trust
            .take()
            .map(|trust| FollowerTrust::new(trust, None, None));
        Ok((self.reader(store, cache, selection, trust)?, scratch))
    }

    /// Returns the reader that reaches versions, with links in the directory `cache`.
    pub(crate) fn reader(
        &self,
        store: Store,
        cache: PathBuf,
        selection: Selection,
        trust: Option<FollowerTrust>,
    ) -> Result<ChainReader> {
        let at = cache.parent().unwrap_or(&cache);
        let bytes = self
            .cache_bytes
            .unwrap_or_else(|| if is_in_memory(at) { 0 } else { CACHE_BYTES });
        let cache = Cache::open(cache, bytes)?;
        let files = FileStores::of(store);
        Ok(ChainReader {
            store: files.url.clone(),
            files,
            cache,
            selection,
            limits: self.limits,
            trust,
            rollback: self.allow_rollback,
            adopt: self.adopt.into(),
            newest: Mutex::default(),
        })
    }
}

/// Keeps a [`Directory`](crate::Directory), [`Memory`](crate::Memory), or the caller's memory,
/// [`InPlace`](crate::InPlace), at a version of a chain.
#[derive(Debug)]
pub struct Follower<P> {
    pub(crate) reader: ChainReader,
    pub(crate) place: P,
}

/// Place where a follower keeps its version: a [`Directory`](crate::Directory),
/// [`Memory`](crate::Memory) or memory of the caller, [`InPlace`](crate::InPlace).
pub trait Place: Destination {}

impl<P: Destination> Place for P {}

impl<P: Place> Follower<P> {
    /// Returns the held version. The first [`prepare`](Self::prepare) in a directory checks that
    /// its files are unchanged; if they are not, there is no held version from then on. Memory that
    /// is torn, or is known to differ from its version, has no held version either.
    pub fn held(&self) -> Option<&HeldVersion<P::At>> {
        self.place.held()
    }

    /// Downloads, proves and builds a version, or the head. Everything that can fail happens here;
    /// the held version stays as it is. Returns `None` if the version is held already.
    ///
    /// # Errors
    /// The rules of SPEC section 19, if no path is left or the version does not have a selected
    /// shard; USAGE if it does not have any selected tensor, or if its tensors cannot be written as
    /// safetensors (caller-provided memory with other tensors is refused only when the version is
    /// proven or applied); IO; the observer's error, if it stops the work.
    pub fn prepare(
        &mut self,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<P>>> {
        self.place.prepare(&self.reader, version, observer)
    }

    /// Whether an error of [`prepare`](Self::prepare) says that the version, a signed version, or
    /// the chain does not exist yet. A chain that has lost versions does not count as missing. An
    /// unsigned version is reported to the observer, once.
    pub fn is_missing(&self, version: Option<u64>, error: &Error, observer: &dyn Observer) -> bool {
        let is_new = self.held().is_none();
        let is_missing = error.breaks(&["R-CHN-03", "R-SIG-01"]) && (is_new || version.is_some())
            || error.breaks(&["R-CHN-01"]) && is_new;
        if let Some(trust) = &self.reader.trust
            && is_missing
        {
            trust.tell(error.unsigned(), observer);
        }
        is_missing
    }

    /// Returns the newest version that the trusted keys have not signed, as it was found last. The
    /// follower skips it.
    pub fn unsigned(&self) -> Option<UnsignedVersion> {
        self.reader.trust.as_ref().and_then(FollowerTrust::unsigned)
    }

    /// Returns the newest version whose commit this follower has read, whether it could be built or
    /// not; with trust, the newest signed version.
    pub fn newest(&self) -> Option<u64> {
        *self
            .reader
            .newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.reader.store
    }
}
