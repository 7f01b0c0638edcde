//! Publishing versions (SPEC section 20): links are made and stored, and a commit makes them a version.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::chain::{Asset, Route};
use deltachain::files::SafetensorsState;
use deltachain::tensor::Digest;
use deltachain::{Limits, Profile, Result};

use crate::access::documents;
use crate::access::store::Store;
use crate::observer::Observer;
use crate::publishing::job::{Job, Made};
use crate::publishing::policy::Snapshots;
use crate::publishing::shards::commit;

/// How versions are published.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PublishOptions {
    /// How values may be coded.
    pub profile: Profile,
    /// Metadata of the commit: step number, run name.
    pub metadata: BTreeMap<String, String>,
    /// When a version gets a snapshot.
    pub snapshots: Snapshots,
    /// For each of these distances, a version whose number is a multiple of it gets a link from the version so far before,
    /// for readers that are behind.
    pub skips: Vec<u64>,
    /// Whether the other files of the model's directory, such as configuration and tokenizer, are published as the version's
    /// assets. If there are several shards, they are those of shard 0.
    pub assets: bool,
    /// Limits for documents and links that are read.
    pub limits: Limits,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            metadata: BTreeMap::new(),
            snapshots: Snapshots::default(),
            skips: Vec::new(),
            assets: true,
            limits: Limits::default(),
        }
    }
}

impl PublishOptions {
    deltachain::setters! {
        profile: Profile,
        metadata: BTreeMap<String, String>,
        snapshots: Snapshots,
        skips: Vec<u64>,
        assets: bool,
        limits: Limits,
    }
}

/// Where a publisher finds the state of the head, to make links from.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// Nowhere: the version gets a snapshot and no link from the head, of which there may be none.
    Nothing,
    /// In these files, wherever they are. What the link has been made from is compared with the head by digest.
    State(&'a SafetensorsState),
    /// In the chain, from which the head is built anew in a temporary directory.
    Chain,
    /// In a directory that the publisher keeps as a [`Subscriber`](crate::Subscriber) does, and brings to the head first.
    Work(&'a Path),
}

/// Adds versions to a chain. It remembers nothing from one to the next, so it does not matter whether it has been restarted.
#[derive(Debug)]
pub struct Publisher {
    store: Store,
    options: PublishOptions,
}

/// A version that has been published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The version.
    pub version: u64,
    /// Its state digest.
    pub state: Digest,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// Its routes, those from nothing first.
    pub routes: Vec<PublishedRoute>,
    /// Its assets, ascending by name.
    pub assets: Vec<Asset>,
    /// Lanes that differ from the head that was, or are new.
    pub changed: u64,
    /// Lanes of the version.
    pub elements: u64,
    /// Whether the state is that of the head that was.
    pub unchanged_state: bool,
}

/// A route to a version that has been published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedRoute {
    /// The version that it comes from; `None` for nothing.
    pub from: Option<u64>,
    /// Bytes of its files.
    pub bytes: u64,
}

impl PublishedRoute {
    pub(crate) fn of(route: &Route) -> Self {
        Self { from: route.from, bytes: u64::try_from(route.bytes()).unwrap_or(u64::MAX) }
    }
}

impl Publisher {
    /// A publisher for the chain in this store.
    ///
    /// # Errors
    /// R-CHN-01 to R-CHN-04 (`CHAIN`) and those of documents, if there is no chain or its head cannot be read; IO.
    pub fn open(store: Store, options: PublishOptions) -> Result<Self> {
        documents::head(&store, &options.limits)?;
        Ok(Self { store, options })
    }

    /// Publishes a state as the version after the head. It becomes visible at once and completely; whatever fails before
    /// leaves the chain as it was. A state that equals the head's becomes a version too.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`) if the base is not the head's state; R-PUB-03 (`CHAIN`) if another writer was first; R-CHN and
    /// R-DOC rules if the head cannot be read; USAGE if the files change while they are read, or if there are more other files
    /// than assets can be; those of reading the states; LIMIT; IO; what the observer wants it to end with.
    pub fn publish(&mut self, state: &SafetensorsState, base: Base<'_>, observer: &dyn Observer) -> Result<Published> {
        let Self { store, options } = self;
        let Made { part, work } = Job { store, state, shard: 0, of: 1, options, observer }.run(base)?;
        let published = commit(store, &[part], options)?;
        if let Some(mut work) = work {
            // The version has been published, whatever becomes of the directory.
            if let Err(error) = work.bring_to(published.version, observer) {
                observer.remark(&format!("the work directory stays at the version before for now: {error}"));
            }
        }
        Ok(published)
    }
}
