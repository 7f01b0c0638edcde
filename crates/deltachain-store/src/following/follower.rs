//! A follower: what keeps a directory or memory at a version of a chain (SPEC section 19).

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

/// Bytes of links that are kept on a disk.
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
        /// `None`, none if it is empty, which only a directory may be: it then has the other files,
        /// and which version they belong to. `?` stands for a character, `*` for any number of
        /// them, `[a-f]` for one of these, `{a,b}` for either. Only what these tensors need is
        /// downloaded of a link that is longer than
        /// [`part_bytes`](crate::StoreOptions::part_bytes); what that means for the checks, SPEC
        /// section 19 says. For memory that is changed in place, links are downloaded and hashed
        /// whole.
        pub tensors: Option<Vec<String>> = None,
        /// Bytes of links that are kept when they have been used. If `None`, 1 GiB; none in a
        /// directory in the machine's memory (tmpfs).
        pub cache_bytes: Option<u64> = None,
        /// Digest of the bytes of a commit to which a rollback is allowed: the chain may end below
        /// the held version, may have another commit for it (a store that was restored and then
        /// written to), or may be another chain. Otherwise R-CHN-14, R-CHN-04, R-CHN-05 or R-CHN-13
        /// is reported, and the version held stays. This works once: when a version with this
        /// commit has been held, which is recorded, the option has no further effect. If the chain
        /// has gone on from this commit, which is one of the newest then, its version is reached
        /// first.
        pub allow_rollback: Option<Digest> = None,
        /// Whether the first version that is reached may be of another chain than the version held
        /// (R-CHN-13). From then on that chain is the one that is followed. A rollback of the same
        /// chain is refused all the same.
        pub adopt: bool = false,
        /// Whom to trust: only versions are taken that these keys have signed, and the head is the
        /// highest of them (SPEC section 23.3). Versions above it are skipped, and the observer is
        /// told. The newest signed head that has been met is recorded, in a directory for good, in
        /// memory as long as the process lasts: R-CHN-14 or R-CHN-05 is reported if the chain falls
        /// behind it or has another commit there. A full poll costs one request more for each key,
        /// and one list more and a request for each note if these are not enough. In a store that
        /// cannot list, only the own notes of keys are found, which publishers store since version
        /// 1.2.
        pub trust: Option<Trust> = None,
        /// In a directory: take back that trust was wanted, and forget what was recorded. Without
        /// this, a start without [`trust`](Self::trust) is refused (USAGE) in a directory that has
        /// had it.
        pub forget_trust: bool = false,
        /// In a directory: do not read its version at the start to check that it is unchanged.
        pub trust_directory: bool = false,
        /// In a directory: where the files come from that hold no tensors.
        pub other_files: OtherFiles = OtherFiles::default(),
        /// In memory: the directory where links are kept, which no other process may use meanwhile;
        /// a temporary one if `None`. One that is not empty and that this did not make is refused
        /// (USAGE), and one in the chain's own directory.
        pub cache: Option<PathBuf> = None,
    }
}

impl FollowerOptions {
    /// The reader that reaches versions for memory, and the place of its cache if the caller has
    /// given none.
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

    /// The reader that reaches versions, with links in the directory `cache`.
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

/// Keeps a [`Directory`](crate::Directory), [`Memory`](crate::Memory), or memory of the caller
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
    /// The version held. The first [`prepare`](Self::prepare) in a directory finds out whether its
    /// files are unchanged; if not, there is no held version from then on. Nor is there one in
    /// memory that is torn, or that is known not to hold it.
    pub fn held(&self) -> Option<&HeldVersion<P::At>> {
        self.place.held()
    }

    /// Downloads, proves and builds a version, or the head. Everything that can fail happens here;
    /// the version held stays as it is. `None` if it is this version already.
    ///
    /// # Errors
    /// The rules of SPEC section 19, if no path is left or the version does not have a selected
    /// shard; USAGE if it does not have any selected tensor, if its tensors cannot be written as
    /// safetensors, or if tensors or shards come, go or change their size and the memory is
    /// caller-provided; IO; the observer's error, if it stops the work.
    pub fn prepare(
        &mut self,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<P>>> {
        self.place.prepare(&self.reader, version, observer)
    }

    /// Whether an error of [`prepare`](Self::prepare) says that there is no such version yet, none
    /// that is signed, or no chain. One that has lost versions is something else. The observer is
    /// told of a version that is not signed, once.
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

    /// The newest version that exists and that the trusted keys have not signed, as it was found
    /// last: it is not taken.
    pub fn unsigned(&self) -> Option<UnsignedVersion> {
        self.reader.trust.as_ref().and_then(FollowerTrust::unsigned)
    }

    /// The newest version whose commit this follower has read, whether it could be built or not.
    /// With trust, the newest signed one.
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
