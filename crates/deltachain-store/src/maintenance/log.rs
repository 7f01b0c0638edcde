//! What a chain's versions are, for people and tools.

use std::collections::BTreeMap;
use std::time::SystemTime;

use deltachain::chain::{Asset, Entry, Listing, Note, ObjectName, Route};
use deltachain::tensor::Digest;
use deltachain::{Limits, Result};

use crate::access::documents::{Documents, Stretch, one, refuse_faults, stretch};
use crate::access::store::{Store, StoredObject};

/// A version as a log shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// The version.
    pub version: u64,
    /// Its state digest.
    pub state: Digest,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// Digest of the bytes of the commit before, or of the chain document.
    pub parent: Digest,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
    /// The routes in force; none if the version has been pruned.
    pub routes: Vec<Route>,
    /// For each of them whether it is known to be direct
    /// ([`Commit::direct_routes`](deltachain::chain::Commit::direct_routes)).
    pub direct: Vec<bool>,
    /// For each of them whether it is known that it can be taken in place
    /// ([`Commit::in_place_routes`](deltachain::chain::Commit::in_place_routes)).
    pub in_place: Vec<bool>,
    /// Its assets, ascending by name.
    pub assets: Vec<Asset>,
    /// The commit's metadata.
    pub metadata: BTreeMap<String, String>,
    /// When the commit was stored, by the store's clock; `None` if the store does not tell.
    pub stored: Option<SystemTime>,
    /// The notes on the commit that readers look at, without those that count for nobody. Ask each which of your trusted
    /// keys it [counts for](Note::counts_for); the names that it has prove nothing by themselves.
    pub notes: Vec<Note>,
}

/// The versions of a chain, the newest first; at most `last` of them.
///
/// # Errors
/// CHAIN, MALFORMED, LIMIT or UNSUPPORTED if the chain document or a commit of these versions has a fault; IO. If the
/// store cannot list, the routes are those in the commits.
pub fn log(store: &Store, last: Option<u64>) -> Result<Vec<LogEntry>> {
    let first = |head: Option<u64>| match (head, last) {
        (Some(head), Some(last)) => (head + 1).saturating_sub(last),
        _ => 0,
    };
    let mut documents = Documents::new();
    let Stretch { objects, mut history, .. } =
        stretch(store, |head| first(head)..=u64::MAX, &mut documents, &Limits::default())?;
    refuse_faults(&mut history)?;
    let mut notes = notes_of(store, &objects, &documents, &history.entries)?;
    let entries = history.entries.into_iter().rev();
    let entry = |(version, entry)| LogEntry::new(version, entry, &objects, notes.remove(&version).unwrap_or_default());
    Ok(entries.map(entry).collect())
}

/// One version, or the head.
///
/// # Errors
/// As for [`log`]; R-CHN-03 (`CHAIN`) if there is no such version.
pub fn show(store: &Store, version: Option<u64>) -> Result<LogEntry> {
    let mut documents = Documents::new();
    let (read, entry) = one(store, version, &mut documents, &Limits::default())?;
    let version = entry.commit.version;
    let mut notes = notes_of(store, &read.objects, &documents, &read.history.entries)?;
    Ok(LogEntry::new(version, entry, &read.objects, notes.remove(&version).unwrap_or_default()))
}

/// The notes on the commits of these versions that readers look at, as far as they have the right form.
pub(crate) fn notes_of(
    store: &Store,
    objects: &[StoredObject],
    documents: &Documents,
    entries: &BTreeMap<u64, Entry>,
) -> Result<BTreeMap<u64, Vec<Note>>> {
    let listing = Listing::default().with(objects.iter().map(|object| object.name));
    let names: Vec<ObjectName> =
        entries.iter().flat_map(|(&version, entry)| listing.notes(version, entry.digest)).collect();
    let mut contents = store.get_all(&names)?;
    contents.sort_unstable_by_key(|(name, _)| *name);
    let mut notes: BTreeMap<u64, Vec<Note>> = BTreeMap::new();
    let Some(chain) = documents.get(&ObjectName::Chain).map(|bytes| Digest::of_bytes(bytes)) else { return Ok(notes) };
    for (name, content) in contents {
        if let (ObjectName::Signature { version, .. }, Some(content)) = (name, content) {
            notes.entry(version).or_default().extend(Note::read(name, chain, &content));
        }
    }
    Ok(notes)
}

impl LogEntry {
    fn new(version: u64, entry: Entry, objects: &[StoredObject], notes: Vec<Note>) -> Self {
        let Entry { digest, commit, routes, direct, .. } = entry;
        let in_place = |route: &Route| {
            commit.routes.iter().zip(commit.in_place_routes()).any(|(own, in_place)| in_place && own == route)
        };
        let in_place = routes.iter().map(in_place).collect();
        let direct = routes.iter().map(|route| direct.contains(route)).collect();
        let place = objects.binary_search_by_key(&ObjectName::Commit(version), |object| object.name);
        Self {
            version,
            state: commit.state,
            commit: digest,
            parent: commit.parent,
            shards: commit.shards,
            routes,
            direct,
            in_place,
            assets: commit.assets,
            metadata: commit.metadata,
            stored: place.ok().map(|place| objects[place].stored).filter(|&time| time > SystemTime::UNIX_EPOCH),
            notes,
        }
    }
}
