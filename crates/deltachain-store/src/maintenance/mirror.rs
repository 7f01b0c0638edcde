//! Copies of a chain in another store. What is new is stored in the order that publishers use, so
//! that readers of the copy are right at any time: files, then signatures, routes and the commit of
//! each version.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use deltachain::chain::{Asset, FileReference, Listing, ObjectName, Parent};
use deltachain::{Error, ErrorClass, Limits, Progress, Result};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::access::attempt::{Attempt, put_last};
use crate::access::store::{Store, StoredObject};
use crate::access::url::check_links;
use crate::access::whole::{ChainFile, read_whole};
use crate::observer::{InPhase, Observer, Phase};

/// What was copied.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MirrorReport {
    /// The newest version of the copy; `None` if there is none.
    pub version: Option<u64>,
    /// How many documents were copied now: commits, routes and signatures.
    pub documents: usize,
    /// How many files were copied now.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
}

/// Copies a chain, or what is new of it, with its signatures. Files pass through `scratch`, one at
/// a time, and are hashed on their way. What is there already is not read again, and nothing is
/// removed: versions that are pruned in the source are withdrawn in the copy as well, and a prune
/// there that keeps all versions removes their files. Only one process writes to a copy.
///
/// # Errors
/// R-CHN-01 (`CHAIN`) if there is no chain in the source; `CHAIN` if the destination has another
/// one, or documents that the source does not have; R-CHN-10 or R-CHN-16 if a file of the source is
/// damaged; R-PUB-08 if it takes longer than 20 hours: then it goes on when it is called again;
/// USAGE if a store cannot be listed or written; IO. What was copied before an error stays, and is
/// right.
pub fn mirror(
    source: &Store,
    destination: &Store,
    scratch: &Path,
    observer: &dyn Observer,
) -> Result<MirrorReport> {
    let destination = &destination.with_stop(source.stop.clone());
    destination.check_is_written()?;
    let chain = source.get_agreed(ObjectName::Chain)?;
    Parent::read(chain.as_deref(), None, &Limits::default())?;
    // Documents before files, so that the files that they name are listed.
    let mut documents: Vec<ObjectName> =
        source.objects()?.iter().map(|object| object.name).collect();
    documents.retain(|&name| place(name).is_some());
    documents.sort_by_key(|&name| place(name));
    let files = source.objects()?;
    let there: BTreeSet<ObjectName> = destination
        .objects()?
        .iter()
        .map(|object| object.name)
        .collect();
    // The copy has no commit that the source does not have, by its newest one: each names the one
    // before.
    if let Some(head) = Listing::new(there.iter().map(ToString::to_string)).head() {
        let name = ObjectName::Commit(head);
        if !documents.contains(&name) || source.get_agreed(name)? != destination.get_agreed(name)? {
            return Err(at_odds(name));
        }
    }
    if let Some(directory) = destination.directory() {
        check_links(&directory)?;
    }
    let attempt = Attempt::begin(destination);
    put(
        destination,
        &[],
        ObjectName::Chain,
        &chain.unwrap_or_default(),
    )?;
    let mut report = MirrorReport::default();
    for StoredObject { name, size, .. } in files
        .into_iter()
        .filter(|object| !there.contains(&object.name))
    {
        if copy_file((source, destination), (name, size), scratch, observer)? {
            report.files += 1;
            report.bytes += size;
        }
    }
    for name in documents {
        if !there.contains(&name) {
            observer.advance(Phase::Upload, 0)?;
            // It may have been pruned since it was listed.
            source.get_agreed(name)?.map_or(Ok(()), |content| {
                put(destination, &[attempt], name, &content)
            })?;
            report.documents += 1;
        }
        if let ObjectName::Commit(version) = name {
            report.version = Some(version);
        }
    }
    Ok(report)
}

/// When a document is stored: by version, and the commit after what belongs to it, so that whoever
/// finds the commit finds that, too.
fn place(name: ObjectName) -> Option<(u64, u8)> {
    match name {
        ObjectName::Signature { version, .. } => Some((version, 0)),
        ObjectName::Routes { version, .. } => Some((version, 1)),
        ObjectName::Commit(version) => Some((version, 2)),
        _ => None,
    }
}

/// Copies a file or an asset, unless it was pruned since it was listed.
fn copy_file(
    (source, destination): (&Store, &Store),
    (name, size): (ObjectName, u64),
    scratch: &Path,
    observer: &dyn Observer,
) -> Result<bool> {
    let asset;
    let file = match name {
        ObjectName::File(digest) => ChainFile::Link(FileReference { digest, size }),
        ObjectName::Asset(digest) => {
            asset = Asset {
                name: name.to_string(),
                file: FileReference { digest, size },
            };
            ChainFile::Asset(&asset)
        }
        _ => return Ok(false),
    };
    let failed = |error| Error::io("writing", error).in_file(scratch);
    let mut written = NamedTempFile::new_in(scratch).map_err(failed)?;
    let downloading = InPhase::begin(observer, Phase::Download, size);
    let read = read_whole(source, file, source.options.part_bytes, |bytes| {
        written.write_all(bytes).map_err(failed)?;
        downloading.advance(bytes.len() as u64)
    });
    match source.block_on(read) {
        Err(error) if error.breaks(&["R-CHN-09", "R-CHN-15"]) => return Ok(false),
        read => read?,
    }
    drop(downloading);
    let _uploading = InPhase::begin(observer, Phase::Upload, size);
    destination
        .upload(written.path(), name, size, observer)
        .map(|()| true)
}

/// Stores a document, unless it is there.
fn put(destination: &Store, attempts: &[Attempt], name: ObjectName, content: &[u8]) -> Result<()> {
    if put_last(destination, attempts, name, content)?
        || destination
            .get_agreed(name)?
            .is_some_and(|found| found == content)
    {
        return Ok(());
    }
    Err(at_odds(name))
}

/// The destination is not a copy of this chain.
fn at_odds(name: ObjectName) -> Error {
    let text = "the destination has another content than the source here: another chain, or the source was rolled back \
                since it was copied; copy to a new place";
    Error::refused(ErrorClass::Chain, text).in_file(name.to_string())
}
