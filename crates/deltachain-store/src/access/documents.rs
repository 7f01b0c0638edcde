//! Documents of a chain, as those fetch them who write to it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use deltachain::chain::{ChainDocument, Commit, Held, History, ObjectName, Parent};
use deltachain::{Error, Limits, Result};

use crate::access::store::{Store, StoredObject};
use crate::access::url::check_links;

/// How often the store is listed again because a document has gone that it listed. A prune removes one only after a
/// newer one has been stored.
const ATTEMPTS: u32 = 5;

/// Begins a chain, with an identifier chosen at random.
///
/// # Errors
/// USAGE if there is a chain already, if the store can only be read, or if it is a directory of a file system without hard
/// links; IO.
pub fn init(store: &Store) -> Result<ChainDocument> {
    if let Some(directory) = store.directory() {
        check_links(&directory)?;
    }
    let document = ChainDocument::new(rand::random());
    let bytes = document.to_bytes()?;
    // The attempt that took the name may have been this one.
    if store.put_if_absent(ObjectName::Chain, &bytes)? || store.get(ObjectName::Chain)?.as_ref() == Some(&bytes) {
        return Ok(document);
    }
    Err(Error::usage("there is a chain already").in_file(store.to_string()))
}

/// What the next version follows. `chain` is the content of the chain document; `known` is a version that has a commit, or
/// had one: from there on the head is looked for.
pub(crate) fn head(store: &Store, chain: Option<&[u8]>, known: Option<u64>, limits: &Limits) -> Result<Parent> {
    follow(store, chain, store.head(known)?, limits)
}

/// What the version after this one follows; `None` stands for the chain document.
pub(crate) fn parent(store: &Store, version: Option<u64>, limits: &Limits) -> Result<Parent> {
    follow(store, store.get(ObjectName::Chain)?.as_deref(), version, limits)
}

fn follow(store: &Store, chain: Option<&[u8]>, version: Option<u64>, limits: &Limits) -> Result<Parent> {
    let head = version.map(|version| Ok((version, store.get(ObjectName::Commit(version))?))).transpose()?;
    Parent::read(chain, head.as_ref().map(|(version, content)| (*version, content.as_deref())), limits)
}

/// The commit of a version; `None` if there is none, or none that can be read.
pub(crate) fn usable_commit(store: &Store, version: u64, limits: &Limits) -> Result<Option<Commit>> {
    let content = store.get(ObjectName::Commit(version))?;
    Ok(content.and_then(|bytes| Commit::parse(&bytes, limits).ok()).filter(|commit| commit.version == version))
}

/// The commit of a version, and what a reader records that holds this version.
///
/// # Errors
/// R-CHN-01 to R-CHN-04, R-LIM-05, R-DOC-01 to R-DOC-08; IO.
pub(crate) fn commit_of(store: &Store, version: u64, limits: &Limits) -> Result<(Held, Commit)> {
    let (chain, content) = (store.get(ObjectName::Chain)?, store.get(ObjectName::Commit(version))?);
    let read = |commit| Parent::read(chain.as_deref(), commit, limits);
    let (start, found) = (read(None)?, read(Some((version, content.as_deref())))?);
    let commit = found.head_for_base()?.clone();
    Ok((Held { version, commit: found.digest(), chain: Some(start.digest()) }, commit))
}

/// A stretch of a chain, with all objects of the store.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(crate) objects: Vec<StoredObject>,
    pub(crate) history: History,
}

/// Reads the versions that `select` takes, given the head, if any.
pub(crate) fn stretch(
    store: &Store,
    select: impl Fn(Option<u64>) -> RangeInclusive<u64>,
    limits: &Limits,
) -> Result<Stretch> {
    for _ in 0..ATTEMPTS {
        let objects = store.objects()?;
        let head = objects.iter().filter_map(|object| commit_version(object.name)).max();
        let versions = select(head);
        let wanted = |name: &ObjectName| match name {
            ObjectName::Chain => true,
            ObjectName::Commit(version) | ObjectName::Routes { version, .. } => versions.contains(version),
            ObjectName::File(_) | ObjectName::Asset(_) => false,
        };
        let names: Vec<ObjectName> = objects.iter().map(|object| object.name).filter(wanted).collect();
        let fetched = store.get_all(&names)?;
        let documents: Option<BTreeMap<ObjectName, Vec<u8>>> =
            fetched.into_iter().map(|(name, content)| Some((name, content?))).collect();
        if let Some(documents) = documents {
            return Ok(Stretch { objects, history: History::read(&documents, *versions.start(), limits) });
        }
    }
    Err(Error::usage("documents that are listed are not there, or the chain changes too fast")
        .in_file(store.to_string()))
}

/// All versions.
pub(crate) fn whole(store: &Store, limits: &Limits) -> Result<Stretch> {
    stretch(store, |_| 0..=u64::MAX, limits)
}

fn commit_version(name: ObjectName) -> Option<u64> {
    match name {
        ObjectName::Commit(version) => Some(version),
        _ => None,
    }
}
