//! Reads and creates documents of a chain: parents, history windows, `init`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::SystemTime;

use deltachain::chain::{
    ChainDocument, Commit, History, HistoryEntry, ObjectName, Parent, VersionId, chain_lost,
    head_after_gap,
};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Result};

use crate::access::clock::Probe;
use crate::access::links::check_links;
use crate::access::store::{Store, StoredObject};

/// Number of times that the store is listed because a listed document is gone each time. A prune
/// removes a document only after it stored a newer one.
const ATTEMPTS: u32 = 5;

/// Maximum number of commits that a store that cannot list is asked for. A server that lies may
/// claim any number of versions.
const MOST_BY_NAME: u64 = 1_000_000;

/// Begins a chain, with an identifier chosen at random. `None` if there is a chain already.
///
/// # Errors
/// R-CHN-01 (`CHAIN`) if the chain document is missing where other objects of a chain are; USAGE if
/// the store can only be read, or if it is a directory of a file system without hard links; IO.
pub fn init(store: &Store) -> Result<Option<ChainDocument>> {
    store.check_is_written()?;
    // Another process may be creating the chain right now.
    let first = store.block_on(store.list(None, None, 1))?;
    if store.get(ObjectName::Chain)?.is_some() {
        return Ok(None);
    }
    if let Some(object) = first.first() {
        return Err(chain_lost(object.name));
    }
    if let Some(directory) = store.directory() {
        check_links(&directory)?;
    }
    let document = ChainDocument::new(rand::random());
    let bytes = document.to_bytes()?;
    // The attempt that took the name may have been this one.
    let is_own = store.put_if_absent(ObjectName::Chain, &bytes)?
        || store.get(ObjectName::Chain)?.as_ref() == Some(&bytes);
    Ok(is_own.then_some(document))
}

/// The document that the next version names as its parent: the head's commit, or the chain document
/// if there is no commit. `chain` is the content of the chain document; the search for the head
/// starts at the version `known`, which has a commit, or had one.
pub(crate) fn head(
    store: &Store,
    chain: Option<&[u8]>,
    known: Option<u64>,
    limits: &Limits,
) -> Result<Parent> {
    let head = store.head(known)?;
    if let Some((head, before)) = head.and_then(|head| Some((head, head.checked_sub(1)?)))
        && known.is_none_or(|known| known != head && known != before)
        && store.find(ObjectName::Commit(before))?.is_none()
    {
        return Err(head_after_gap(head));
    }
    read_parent(store, chain, head, limits)
}

/// Digest of the bytes of the chain document: which chain it is, as trust and signatures name it
/// (SPEC section 23.2).
///
/// # Errors
/// R-CHN-01 (`CHAIN`) and the rules of documents; IO.
pub fn chain_digest(store: &Store) -> Result<Digest> {
    Ok(parent(store, None, &Limits::default())?.digest())
}

/// The document that the version after this one names as its parent. Without a version it is the
/// chain document.
pub(crate) fn parent(store: &Store, version: Option<u64>, limits: &Limits) -> Result<Parent> {
    read_parent(
        store,
        store.get(ObjectName::Chain)?.as_deref(),
        version,
        limits,
    )
}

fn read_parent(
    store: &Store,
    chain: Option<&[u8]>,
    version: Option<u64>,
    limits: &Limits,
) -> Result<Parent> {
    let Some(head) = version else {
        // The chain document is the parent. No digest covers it, so it is read again until two
        // reads match.
        let chain = if chain.is_some() {
            store.get_agreed(ObjectName::Chain)?
        } else {
            None
        };
        return Parent::read(chain.as_deref(), None, limits);
    };
    let head = Some((head, store.get_agreed(ObjectName::Commit(head))?));
    Parent::read(
        chain,
        head.as_ref()
            .map(|(version, content)| (*version, content.as_deref())),
        limits,
    )
}

/// The commit of a version; `None` if it does not exist or cannot be parsed.
pub(crate) fn usable_commit(
    store: &Store,
    version: u64,
    limits: &Limits,
) -> Result<Option<Commit>> {
    let content = store.get(ObjectName::Commit(version))?;
    Ok(content
        .and_then(|bytes| Commit::parse(&bytes, limits).ok())
        .filter(|commit| commit.version == version))
}

/// The identity of a version, as a reader records it that holds this version.
///
/// # Errors
/// R-CHN-01 to R-CHN-04, R-LIM-05, R-DOC-01 to R-DOC-08; IO.
pub(crate) fn id_of(store: &Store, version: u64, limits: &Limits) -> Result<VersionId> {
    let (chain, content) = (
        store.get_agreed(ObjectName::Chain)?,
        store.get_agreed(ObjectName::Commit(version))?,
    );
    let read = |commit| Parent::read(chain.as_deref(), commit, limits);
    let (start, found) = (read(None)?, read(Some((version, content.as_deref())))?);
    found.head_for_base()?;
    Ok(VersionId {
        version,
        commit: found.digest(),
        chain: start.digest(),
    })
}

/// A stretch of a chain, with all objects of the store.
#[derive(Debug)]
pub(crate) struct ChainWindow {
    pub(crate) objects: Vec<StoredObject>,
    /// The probes that were stored to learn the time.
    pub(crate) probes: Vec<Probe>,
    pub(crate) history: History,
}

/// Contents of documents, by name. They never change.
pub(crate) type Documents = BTreeMap<ObjectName, Vec<u8>>;

/// Digest of the chain document among these, or of nothing: a missing chain document is a fault
/// that another check reports.
pub(crate) fn chain_of(documents: &Documents) -> Digest {
    Digest::of_bytes(documents.get(&ObjectName::Chain).map_or(&[], Vec::as_slice))
}

/// Reads the versions that `select` takes, given the head, if any. Objects in `known` are not
/// fetched again; fetched objects are added to it.
pub(crate) fn stretch(
    store: &Store,
    select: impl Fn(Option<u64>) -> RangeInclusive<u64>,
    known: &mut Documents,
    limits: &Limits,
) -> Result<ChainWindow> {
    if !store.can_list() {
        return stretch_by_name(store, select, known, limits);
    }
    for _ in 0..ATTEMPTS {
        let (objects, probes) = store.objects_and_probes()?;
        let head = objects
            .iter()
            .filter_map(|object| commit_version(object.name))
            .max();
        let versions = select(head);
        let wanted = |name: &ObjectName| match name {
            ObjectName::Chain => true,
            ObjectName::Commit(version) | ObjectName::Routes { version, .. } => {
                versions.contains(version)
            }
            ObjectName::File(_) | ObjectName::Asset(_) | ObjectName::Signature { .. } => false,
        };
        let names: BTreeSet<ObjectName> = objects
            .iter()
            .map(|object| object.name)
            .filter(wanted)
            .collect();
        known.retain(|name, _| names.contains(name));
        let missing: Vec<ObjectName> = names
            .iter()
            .copied()
            .filter(|name| !known.contains_key(name))
            .collect();
        let fetched = store.get_all(&missing)?;
        known.extend(
            fetched
                .into_iter()
                .filter_map(|(name, content)| Some((name, content?))),
        );
        if known.len() == names.len() {
            return Ok(ChainWindow {
                objects,
                probes,
                history: History::read(known, *versions.start(), limits),
            });
        }
    }
    let advice = "retry; if it fails again, `deltachain doctor` checks what the store does";
    let text = "listed documents are missing, or the chain changes too fast";
    Err(Error::refused(ErrorClass::Io, text)
        .with_advice(advice)
        .in_file(store.to_string()))
}

/// Same as [`stretch`], for a store that cannot list: commits are fetched one by one. Routes
/// documents and the times of objects are unknown.
fn stretch_by_name(
    store: &Store,
    select: impl Fn(Option<u64>) -> RangeInclusive<u64>,
    known: &mut Documents,
    limits: &Limits,
) -> Result<ChainWindow> {
    let head = store.head(None)?;
    let versions = select(head);
    let last = head
        .map_or(0, |head| head.saturating_add(1))
        .min(versions.end().saturating_add(1));
    if last.saturating_sub(*versions.start()) > MOST_BY_NAME {
        let text = format!(
            "the store claims to have {last} versions, and cannot list them, so each is requested \
             by name: request at most {MOST_BY_NAME} of them"
        );
        return Err(Error::usage(text).in_file(store.to_string()));
    }
    let names = (*versions.start()..last).map(ObjectName::Commit);
    let names: Vec<ObjectName> = [ObjectName::Chain].into_iter().chain(names).collect();
    let fetched = store.get_all(&names)?;
    *known = fetched
        .into_iter()
        .filter_map(|(name, content)| Some((name, content?)))
        .collect();
    let objects = known.iter().map(|(&name, content)| {
        let size = content.len() as u64;
        StoredObject {
            name,
            size,
            stored: SystemTime::UNIX_EPOCH,
        }
    });
    let history = History::read(known, *versions.start(), limits);
    Ok(ChainWindow {
        objects: objects.collect(),
        probes: Vec::new(),
        history,
    })
}

/// All versions. A document that is in `known` is not fetched again.
pub(crate) fn whole(store: &Store, known: &mut Documents, limits: &Limits) -> Result<ChainWindow> {
    stretch(store, |_| 0..=u64::MAX, known, limits)
}

/// Reads all documents of a chain: `chain.json`, commits, routes documents and notes, by the names
/// of their objects (SPEC section 17). They are not checked.
///
/// # Errors
/// R-CHN-01 (`CHAIN`) if there is no chain; IO.
pub fn read_documents(store: &Store) -> Result<BTreeMap<String, Vec<u8>>> {
    // Without a chain document, there is no chain.
    chain_digest(store)?;
    let mut documents = Documents::new();
    let window = whole(store, &mut documents, &Limits::default())?;
    let notes: Vec<ObjectName> = window
        .objects
        .iter()
        .map(|object| object.name)
        .filter(|name| matches!(name, ObjectName::Signature { .. }))
        .collect();
    // A note that is gone by now was pruned.
    let notes = store.get_all(&notes)?.into_iter();
    documents.extend(notes.filter_map(|(name, content)| Some((name, content?))));
    let named = documents
        .into_iter()
        .map(|(name, content)| (name.to_string(), content));
    Ok(named.collect())
}

/// One version, or the head, with what was read for it.
///
/// # Errors
/// R-CHN-03 (`CHAIN`) if there is no such version; faults of commits; IO.
pub(crate) fn one(
    store: &Store,
    version: Option<u64>,
    known: &mut Documents,
    limits: &Limits,
) -> Result<(ChainWindow, HistoryEntry)> {
    // If the chain has no versions, the lowest version is the one that is missing.
    let select = |head: Option<u64>| version.or(head).unwrap_or(0);
    let mut read = stretch(store, |head| select(head)..=select(head), known, limits)?;
    refuse_faults(&mut read.history)?;
    let version = version
        .or(read.history.entries.keys().copied().next())
        .unwrap_or(0);
    let entry = read.history.entry(version)?.clone();
    Ok((read, entry))
}

pub(crate) fn commit_version(name: ObjectName) -> Option<u64> {
    match name {
        ObjectName::Commit(version) => Some(version),
        _ => None,
    }
}

/// The fault of a commit, if one has a fault.
pub(crate) fn refuse_faults(history: &mut History) -> Result<()> {
    history.commit_faults.drain(..).next().map_or(Ok(()), Err)
}
