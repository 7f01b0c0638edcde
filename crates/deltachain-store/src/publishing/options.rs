//! Options for publishing versions, and bases of links.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltachain::chain::{Signer, Trust};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Profile, Result};

use crate::publishing::model::Model;
use crate::publishing::policy::Snapshots;

deltachain::setters! {
    /// Options for publishing versions.
    #[derive(Debug, Clone)]
    pub struct PublishOptions {
        /// Profiles of links: for each profile a version gets a route from each of its base
        /// versions. So each further profile costs another reading of both versions, and the bytes
        /// of its links. A snapshot is coded with the first profile. If [`Profile::Local`] is among
        /// them, all links carry sums, and the routes that can be taken in place are marked.
        pub profiles: Vec<Profile> = vec![Profile::default()],
        /// Metadata of the commit: step number, run name.
        pub metadata: BTreeMap<String, String> = BTreeMap::new(),
        /// The versions that get a snapshot.
        pub snapshots: Snapshots = Snapshots::default(),
        /// Distances of further links, for readers that are behind. A version whose number is a
        /// multiple of a distance gets a link from the version that many versions before it.
        pub skips: Vec<u64> = Vec::new(),
        /// Whether the other files of the model's directory, such as configuration and tokenizer,
        /// are published as the version's assets: all except the files that a trainer saves beside
        /// the model to resume training, such as `optimizer.pt` and `global_step100/`. If there are
        /// several shards, the assets belong to shard 0.
        pub assets: bool = true,
        /// Patterns of other files that are not published, such as `*.log` or `eval/*`. They match
        /// names below the directory, and `*` matches any characters, including `/`. USAGE if a
        /// pattern matches a file of tensors or an index.
        pub exclude: Vec<String> = Vec::new(),
        /// Publish nothing if state, layout and assets are the head's.
        /// [`PublishReport::is_new`](crate::PublishReport::is_new) says what happened. Does not
        /// apply to [`Publisher::prepare`](crate::Publisher::prepare), whose shards do not know of
        /// each other.
        pub if_changed: bool = false,
        /// The name of a metadata entry, an integer such as the step. Publish nothing if it is not
        /// greater than the head's: a writer that was restarted may repeat steps.
        /// [`PublishReport::is_new`](crate::PublishReport::is_new) says what happened. A version
        /// without the entry is refused as USAGE; a head without it does not count.
        pub once: Option<String> = None,
        /// The share of the elements, from 0 to 1, that may differ from the head: a guard against
        /// publishing another model by mistake, or one that was not loaded. Elements that are
        /// removed or added count. The share is of the elements before or after, whichever are
        /// more.
        pub max_changed: Option<f64> = None,
        /// Whether a version with values that are not finite, NaN or infinities, is refused as
        /// USAGE. This covers all dtypes of the format's table that have such values. Values that
        /// an engine has computed with them may stay in its caches after a rollback.
        pub refuse_nonfinite: bool = false,
        /// Whether a version may have no tensors at all. Readers would empty their models, so it is
        /// refused as USAGE otherwise.
        pub allow_empty: bool = false,
        /// The keys that sign versions. A note with their signatures is stored before the commit:
        /// by one request for the note, and one for each key.
        pub sign: Vec<Arc<dyn Signer>> = Vec::new(),
        /// Without a key that signs, follow even a head that has a note. Otherwise such a head is
        /// refused as USAGE: a key that was not passed on would end a signed chain for followers
        /// with trust. Only the head counts, since a chain whose head has no note already goes on
        /// without signatures. The check costs one list for each head that this publisher has not
        /// made.
        pub unsigned: bool = false,
        /// The trusted keys: they must have signed the head, or R-SIG-03 (`CHAIN`) is reported. The
        /// keys that sign must be among them (USAGE). `None` stands for the keys that sign, of
        /// which one is enough; without any, every head is followed. A publisher that signed the
        /// head itself needs no request for this check; another one needs a list, and a request for
        /// each note.
        pub trust: Option<Trust> = None,
        /// Digest of the bytes of a commit that is followed although it is not signed as
        /// [`trust`](Self::trust) requires. This is how signing begins in an existing chain. A
        /// publisher that signs the next version vouches for this commit, so inspect it before. The
        /// commit is also followed if later versions have been lost; their numbers are then used
        /// again (R-PUB-11). If no commit is left, use the digest of the chain document.
        pub vouch: Option<Digest> = None,
        /// [Prune](crate::prune()) from time to time and keep this many of the newest versions:
        /// after each version whose number is a multiple of a tenth of this. A prune that fails is
        /// reported to the observer, and retried after the next such version.
        pub keep_last: Option<u64> = None,
        /// Without a work directory: the place for links until they are stored, and for versions
        /// that are built to make links from. They lie in a private directory there
        /// ([`Scratch`](crate::Scratch)). `None` stands for the system's directory for temporary
        /// files.
        pub scratch: Option<PathBuf> = None,
        /// Limits for documents and links that are read.
        pub limits: Limits = Limits::default(),
    }
}

impl PublishOptions {
    /// Checks that a version has tensors, or may be empty.
    ///
    /// # Errors
    /// USAGE if it has none, unless that is allowed.
    pub(crate) fn check_empty(&self, is_empty: bool) -> Result<()> {
        if !is_empty || self.allow_empty {
            return Ok(());
        }
        Err(Error::usage(
            "the version has no tensors, so all readers would empty their models: nothing was \
             published; if that is wanted, allow an empty version",
        ))
    }
}

/// The source of the head's state, to make links from.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// No source: the version gets a snapshot and no link from the head. There may be no head.
    Nothing,
    /// This model. The state that the link has been made from is compared with the head by digest.
    State(Model<'a>),
    /// This model, which must be what this publisher published last, unchanged since: it is not
    /// hashed. If it differs, readers will refuse the link. If the publisher has published nothing,
    /// or the head has changed since, the head is built from the chain.
    Last(Model<'a>),
    /// The chain: the head is built in [`PublishOptions::scratch`].
    Chain,
    /// A directory that the publisher keeps as a [`Follower`](crate::Follower) does, and brings to
    /// the head first.
    Work(&'a Path),
}
