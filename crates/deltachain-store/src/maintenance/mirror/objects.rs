//! The objects of a chain and of its copy, as far as a round of copying needs them.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;

use deltachain::chain::{Commit, Note, ObjectName, RoutesDocument};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Result};

use crate::access::documents::Documents;
use crate::access::store::{Store, StoredObject};

/// Objects of one store by name, as its lists show them.
pub(super) type Listed = BTreeMap<ObjectName, StoredObject>;

/// Documents that were read, with their entries in the list at that time, so that a document that
/// was replaced is read again.
pub(super) type ReadDocuments = BTreeMap<ObjectName, (StoredObject, Vec<u8>)>;

/// Number of times that a store is listed again because a listed document is gone.
const ATTEMPTS: u32 = 5;

/// Maximum length of a document that readers accept (R-LIM-05).
pub(super) const MOST_DOCUMENT_BYTES: u64 = 1 << 24;
/// The first bytes of a document that some version of the format may read (R-DOC-01).
const OPENING: &[u8] = b"{\"deltachain\":";
/// The first bytes of a note (SPEC section 23.2).
const NOTE_OPENING: &[u8] = b"deltachain commit v";

/// The version that a document belongs to; `None` for the chain document, files and assets.
pub(super) fn version_of(name: ObjectName) -> Option<u64> {
    match name {
        ObjectName::Commit(version)
        | ObjectName::Routes { version, .. }
        | ObjectName::Signature { version, .. } => Some(version),
        _ => None,
    }
}

/// Position of a document among those of the chain: by version, and the commit after everything
/// else, so that a reader who finds the commit finds the rest.
pub(super) fn place(name: ObjectName) -> Option<(u64, u8)> {
    match name {
        ObjectName::Signature { version, .. } => Some((version, 0)),
        ObjectName::Routes { version, .. } => Some((version, 1)),
        ObjectName::Commit(version) => Some((version, 2)),
        _ => None,
    }
}

/// Lists the commits, routes documents and notes of all versions from this one on. Commits come
/// first: notes and files are stored before them, so whatever belongs to a listed commit is listed.
pub(super) fn list_documents(store: &Store, from: u64) -> Result<Listed> {
    let mut listed = list_folder(store, "commits", from)?;
    listed.extend(list_folder(store, "routes", from)?);
    listed.extend(list_folder(store, "signatures", from)?);
    Ok(listed)
}

/// Lists the objects in a folder of documents, of all versions from this one on.
pub(super) fn list_folder(store: &Store, folder: &str, from: u64) -> Result<Listed> {
    let last = Digest([0xff; 32]);
    let after = from.checked_sub(1).map(|version| match folder {
        "routes" => ObjectName::Routes {
            version,
            generation: 9_999_999_999,
        },
        "signatures" => ObjectName::Signature {
            version,
            commit: last,
            note: last,
        },
        _ => ObjectName::Commit(version),
    });
    let objects = store.block_on(store.list(Some(folder), after, usize::MAX))?;
    Ok(objects
        .into_iter()
        .map(|object| (object.name, object))
        .collect())
}

/// Lists the documents from a version on and reads commits and routes documents. Documents that are
/// in `read` already are not fetched again.
pub(super) fn read_documents(
    store: &Store,
    from: u64,
    read: &mut ReadDocuments,
) -> Result<(Listed, Documents)> {
    if !store.can_list() {
        return Err(Error::usage("this store cannot be listed").in_file(store.to_string()));
    }
    for _ in 0..ATTEMPTS {
        let listed = list_documents(store, from)?;
        let is_document =
            |name: &ObjectName| matches!(name, ObjectName::Commit(_) | ObjectName::Routes { .. });
        let is_known = |object: &&StoredObject| {
            read.get(&object.name)
                .is_some_and(|(known, _)| known == *object)
        };
        let missing: Vec<ObjectName> = listed
            .values()
            .filter(|object| is_document(&object.name) && !is_known(object))
            .map(|object| object.name)
            .collect();
        let mut has_all = true;
        for (name, content) in get_readable(store, &missing)? {
            match (content, listed.get(&name)) {
                (Some(content), Some(object)) => {
                    read.insert(name, (*object, content));
                }
                // A prune removed it after it was listed.
                _ => has_all = false,
            }
        }
        if has_all {
            read.retain(|name, _| version_of(*name) < Some(from) || listed.contains_key(name));
            let documents = read
                .iter()
                .filter(|(name, _)| listed.contains_key(name))
                .map(|(name, (_, content))| (*name, content.clone()))
                .collect();
            return Ok((listed, documents));
        }
    }
    let text = "listed documents are missing, or the chain changes too fast: retry later";
    Err(Error::refused(ErrorClass::Chain, text).in_file(store.to_string()))
}

/// Reads documents. A document that the store does not permit to read counts as empty: a directory
/// may hold a link to a file of another user, which must not stop everything else.
fn get_readable(store: &Store, names: &[ObjectName]) -> Result<Vec<(ObjectName, Option<Vec<u8>>)>> {
    match store.get_all_agreed(names, None) {
        Err(error) if is_forbidden(&error) => {}
        read => return read,
    }
    let mut read = Vec::new();
    for &name in names {
        let content = match store.get_agreed(name) {
            Err(error) if is_forbidden(&error) => Some(Vec::new()),
            content => content?,
        };
        read.push((name, content));
    }
    Ok(read)
}

/// True if the store, or the system, denied permission.
pub(super) fn is_forbidden(error: &Error) -> bool {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::PermissionDenied)
}

/// True if readers can use the document under this name. `chain` is the digest of the chain
/// document.
pub(super) fn is_usable(name: ObjectName, chain: Digest, content: &[u8]) -> bool {
    let limits = Limits::default();
    match name {
        ObjectName::Commit(version) => {
            Commit::parse(content, &limits).is_ok_and(|commit| commit.version == version)
        }
        ObjectName::Routes { .. } => {
            RoutesDocument::parse(content, &limits).is_ok_and(|document| document.name() == name)
        }
        ObjectName::Signature { .. } => Note::read(name, chain, content).is_some(),
        _ => false,
    }
}

/// True if the content may be copied: it has the beginning of a document or of a note, and is no
/// longer than readers accept. A directory may hold a link to any file of this machine.
pub(super) fn may_be_copied(name: ObjectName, content: &[u8]) -> bool {
    let (opening, most) = match name {
        ObjectName::Signature { .. } => (NOTE_OPENING, Note::MOST_BYTES),
        _ => (OPENING, MOST_DOCUMENT_BYTES),
    };
    if content.len() as u64 > most {
        return false;
    }
    let Some(rest) = content.strip_prefix(opening) else {
        return false;
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let end = match name {
        ObjectName::Signature { .. } => b'\n',
        _ => b',',
    };
    digits > 0 && rest.get(digits) == Some(&end)
}
