//! The log of a chain's versions, for people and tools.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use deltachain::chain::{
    Asset, Commit, FileReference, HistoryEntry, Listing, Note, ObjectName, Route, Trust,
};
use deltachain::tensor::Digest;
use deltachain::{Limits, Result};
use serde::Serialize;

use crate::access::documents::{
    ChainWindow, Documents, chain_of, commit_version, one, refuse_faults, stretch,
};
use crate::access::store::{Store, StoredObject};
use crate::maintenance::signers::Signers;
use crate::text;

/// A version as a log shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogEntry {
    /// The version.
    pub version: u64,
    /// Digest of the bytes of its chain's document.
    pub chain: Digest,
    /// Its state digest.
    pub state: Digest,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// Digest of the bytes of the commit before, or of the chain document.
    pub parent: Digest,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
    /// The routes in force; none if the version has been pruned.
    pub routes: Vec<LogRoute>,
    /// Its assets, ascending by name.
    pub assets: Vec<Asset>,
    /// The commit's metadata.
    pub metadata: BTreeMap<String, String>,
    /// When the commit was stored, by the store's clock; `None` if the store reports no times.
    #[serde(serialize_with = "text::time")]
    pub stored: Option<SystemTime>,
    /// The signers of the version.
    #[serde(flatten)]
    pub signers: Signers,
}

/// A route in force to a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogRoute {
    /// The version that it comes from; `None` for nothing.
    pub from: Option<u64>,
    /// One per shard, in the order of the shards.
    pub files: Vec<FileReference>,
    /// Whether it is known to be direct
    /// ([`Commit::direct_routes`](deltachain::chain::Commit::direct_routes)).
    #[serde(rename = "direct")]
    pub is_direct: bool,
    /// Whether it is known that it can be taken in place
    /// ([`Commit::in_place_routes`](deltachain::chain::Commit::in_place_routes)).
    #[serde(rename = "in_place")]
    pub is_in_place: bool,
}

impl LogRoute {
    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|file| file.size)
            .fold(0, u64::saturating_add)
    }
}

/// Returns the versions of a chain, the newest first; at most `last` of them. `trust` has the keys
/// whose signatures count.
///
/// # Errors
/// CHAIN, MALFORMED, LIMIT or UNSUPPORTED if the chain document or a commit of these versions has a
/// fault; IO. If the store cannot list, the routes are those in the commits.
pub fn log(store: &Store, last: Option<u64>, trust: Option<&Trust>) -> Result<Vec<LogEntry>> {
    let first = |head: Option<u64>| match (head, last) {
        (Some(head), Some(last)) => head.saturating_add(1).saturating_sub(last),
        _ => 0,
    };
    let mut documents = Documents::new();
    let ChainWindow {
        objects,
        mut history,
        ..
    } = stretch(
        store,
        |head| first(head)..=u64::MAX,
        &mut documents,
        &Limits::default(),
    )?;
    refuse_faults(&mut history)?;
    let place = (chain_of(&documents), objects.as_slice());
    let notes = notes_of(store, place, &history.entries, trust)?;
    Ok(history
        .entries
        .into_values()
        .rev()
        .map(|entry| LogEntry::new(entry, place, &notes, trust))
        .collect())
}

/// Returns one version, or the head. `trust` has the keys whose signatures count.
///
/// # Errors
/// Same errors as [`log`]; R-CHN-03 (`CHAIN`) if the version does not exist.
pub fn show(store: &Store, version: Option<u64>, trust: Option<&Trust>) -> Result<LogEntry> {
    let mut documents = Documents::new();
    let (read, entry) = one(store, version, &mut documents, &Limits::default())?;
    let place = (chain_of(&documents), read.objects.as_slice());
    let notes = notes_of(store, place, &read.history.entries, trust)?;
    Ok(LogEntry::new(entry, place, &notes, trust))
}

/// The digests of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionDigests {
    /// The version.
    pub version: u64,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// Its state digest.
    pub state: Digest,
}

/// Returns the digests of these versions, as far as the chain has them, and of the newest one,
/// ascending. Reads only their commits, and lists no files.
///
/// # Errors
/// Rules of documents, if a commit is damaged; IO.
pub fn version_digests(
    store: &Store,
    versions: impl IntoIterator<Item = u64>,
) -> Result<Vec<VersionDigests>> {
    let head = store.head(None)?;
    let wanted = versions
        .into_iter()
        .filter(|version| Some(*version) <= head);
    let names: BTreeSet<ObjectName> = wanted.chain(head).map(ObjectName::Commit).collect();
    let names: Vec<ObjectName> = names.into_iter().collect();
    let mut found = Vec::new();
    // They come in any order.
    for (name, content) in store.get_all(&names)? {
        if let Some(content) = content {
            let commit = Commit::parse(&content, &Limits::default())
                .map_err(|error| error.in_file(name.to_string()))?;
            // A commit of another version is not a version of the chain.
            if commit_version(name) == Some(commit.version) {
                found.push(VersionDigests {
                    version: commit.version,
                    commit: Digest::of_bytes(&content),
                    state: commit.state,
                });
            }
        }
    }
    found.sort_unstable_by_key(|digests| digests.version);
    Ok(found)
}

/// Reads the notes on the commits of these versions, as readers do, and returns those that have the
/// right form.
pub(crate) fn notes_of(
    store: &Store,
    (chain, objects): (Digest, &[StoredObject]),
    entries: &BTreeMap<u64, HistoryEntry>,
    trust: Option<&Trust>,
) -> Result<BTreeMap<u64, Vec<Note>>> {
    let listing = if store.can_list() {
        Listing::default()
    } else {
        Listing::of_head(None)
    };
    let listing = listing.with(objects.iter().map(|object| object.name));
    let names = entries
        .iter()
        .flat_map(|(&version, HistoryEntry { digest, .. })| {
            let own = trust
                .map(|trust| trust.own_notes(chain, version, *digest))
                .unwrap_or_default();
            listing.notes(version, *digest, &own)
        });
    let mut contents = store.get_all(&names.collect::<Vec<_>>())?;
    contents.sort_unstable_by_key(|(name, _)| *name);
    let mut notes: BTreeMap<u64, Vec<Note>> = BTreeMap::new();
    for (name, content) in contents {
        if let (ObjectName::Signature { version, .. }, Some(content)) = (name, content) {
            notes
                .entry(version)
                .or_default()
                .extend(Note::read(name, chain, &content));
        }
    }
    Ok(notes)
}

impl LogEntry {
    fn new(
        HistoryEntry {
            digest,
            commit,
            routes,
            direct,
            ..
        }: HistoryEntry,
        (chain, objects): (Digest, &[StoredObject]),
        notes: &BTreeMap<u64, Vec<Note>>,
        trust: Option<&Trust>,
    ) -> Self {
        let version = commit.version;
        let in_place = |route: &Route| {
            commit
                .routes
                .iter()
                .zip(commit.in_place_routes())
                .any(|(own, in_place)| in_place && own == route)
        };
        let route = |route: Route| {
            let is_direct = direct.contains(&route);
            let is_in_place = in_place(&route);
            LogRoute {
                from: route.from,
                files: route.files,
                is_direct,
                is_in_place,
            }
        };
        let routes = routes.into_iter().map(route).collect();
        let place =
            objects.binary_search_by_key(&ObjectName::Commit(version), |object| object.name);
        Self {
            version,
            chain,
            state: commit.state,
            commit: digest,
            parent: commit.parent,
            shards: commit.shards,
            routes,
            assets: commit.assets,
            metadata: commit.metadata,
            stored: place
                .ok()
                .map(|place| objects[place].stored)
                .filter(|&time| time > SystemTime::UNIX_EPOCH),
            signers: Signers::of(notes.get(&version).map_or(&[], Vec::as_slice), trust),
        }
    }
}
