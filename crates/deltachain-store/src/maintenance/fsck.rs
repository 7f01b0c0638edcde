//! Checks a chain: its documents, its files, and that links have the bases and targets that their
//! routes say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use deltachain::chain::{
    Asset, FileReference, History, HistoryEntry, Note, ObjectName, Trust, base_lost, check_base,
    check_target, unreachable,
};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, LinkReader, Progress, Result};
use rayon::prelude::*;
use serde::Serialize;

use crate::access::documents::{ChainWindow, Documents, chain_of, whole};
use crate::access::lost::{ends_of, is_lost, versions_of};
use crate::access::store::{Store, StoredObject};
use crate::access::stored_link::StoredLink;
use crate::access::whole::{ChainFile, check_there, check_whole};
use crate::advice::problems;
use crate::maintenance::log::notes_of;
use crate::maintenance::prover::RouteProver;
use crate::maintenance::signers::{SignedVersion, Signers};
use crate::observer::{InPhase, Observer, Phase};
use crate::retention::{bytes_of, is_old, probable_now};
use crate::text;

deltachain::setters! {
    /// Options of a check of a chain.
    #[derive(Debug, Clone)]
    pub struct FsckOptions {
        /// The directory in which versions are built to apply every link; then assets are read,
        /// too. `None` checks only documents, files, the links' headers and indexes, and the sizes
        /// of assets. The built versions are not removed.
        pub deep: Option<PathBuf> = None,
        /// Limits for documents and links.
        pub limits: Limits = Limits::default(),
        /// The keys whose signatures count.
        pub trust: Option<Trust> = None,
    }
}

/// The findings of a check of a chain.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct FsckReport {
    /// Number of versions that have a valid commit.
    pub versions: usize,
    /// Number of these versions that have no routes.
    pub pruned: usize,
    /// Number of files that routes in force name.
    pub files: usize,
    /// Their bytes, as the routes say.
    pub bytes: u64,
    /// Number of assets that versions name, each counted once.
    pub assets: usize,
    /// Number of versions that were built.
    pub rebuilt: usize,
    /// Number of files that no route in force names.
    pub orphans: usize,
    /// Their bytes.
    pub orphan_bytes: u64,
    /// Number of orphans that no document names, not even one that has been replaced: killed
    /// publishers have left them, or their commits are lost. Pruning keeps them, unless
    /// [`Keep::abandoned`](crate::Keep) is set.
    pub unnamed: usize,
    /// Their bytes.
    pub unnamed_bytes: u64,
    /// Parts of objects that killed writers left behind, or that are being written: only a
    /// directory shows them. Pruning removes them when they are old.
    #[serde(rename = "unfinished", serialize_with = "text::count")]
    pub partials: Vec<PathBuf>,
    /// The versions with notes on their commits, ascending.
    pub signatures: Vec<SignedVersion>,
    /// Every fault that was found, with its object.
    #[serde(serialize_with = "problems")]
    pub problems: Vec<Error>,
    /// Signs that a commit or a routes document may have been lost, or that a publisher may have
    /// been interrupted: sentences for people. The loss of the newest documents, together with all
    /// files that only they name, cannot be noticed.
    pub hints: Vec<String>,
}

/// Checks a whole chain and goes on after each fault.
///
/// # Errors
/// IO; the observer's error. Faults of the chain are part of the report. In a store that cannot
/// list, routes documents and files that no route names are not found.
pub fn fsck(store: &Store, options: &FsckOptions, observer: &dyn Observer) -> Result<FsckReport> {
    let mut documents = Documents::new();
    let ChainWindow {
        objects, history, ..
    } = whole(store, &mut documents, &options.limits)?;
    let named = history.named();
    let History {
        entries,
        commit_faults,
        route_faults,
        ..
    } = history;
    let mut faults: Vec<Error> = commit_faults.into_iter().chain(route_faults).collect();
    let in_force = entries
        .iter()
        .map(|(&version, entry)| (version, entry.routes.clone()))
        .collect();
    faults.extend(unreachable(&in_force));

    let uses = uses_of_files(&entries);
    let checked = check_files(store, &objects, &uses, options, observer)?;
    faults.extend(checked.faults);
    // Each object and size is checked once.
    let assets = entries.values().flat_map(|entry| &entry.commit.assets);
    let assets = assets
        .map(|asset| ((asset.object_name(), asset.file.size), asset))
        .collect();
    faults.extend(check_assets(store, &objects, &assets, options, observer)?);
    let rebuilt = match &options.deep {
        Some(place) => RouteProver {
            store,
            entries: &entries,
            place,
            limits: &options.limits,
            observer,
            bad_files: checked.bad,
            kept: BTreeMap::new(),
        }
        .prove_all(&mut faults)?,
        None => 0,
    };
    let needed: BTreeSet<ObjectName> = uses.keys().map(FileReference::name).collect();
    let orphans = orphans(&objects, &needed);
    let unnamed: Vec<StoredObject> = orphans
        .iter()
        .filter(|object| !named.contains(&object.name))
        .copied()
        .collect();
    let notes = notes_of(
        store,
        (chain_of(&documents), &objects),
        &entries,
        options.trust.as_ref(),
    )?;
    let now = probable_now(&objects);
    let old = unnamed.iter().filter(|object| is_old(object.stored, now));
    let (lost, mut hints) = hints(store, &entries, old, observer)?;
    faults.extend(lost);
    hints.extend(hints_of_notes(&objects, &entries, &notes));
    let signatures = signed_versions(&notes, options.trust.as_ref());
    if options.trust.is_some()
        && !entries.is_empty()
        && !signatures
            .iter()
            .any(|version| version.signers.signed == Some(true))
    {
        faults.push(nothing_signed(store));
    }
    Ok(FsckReport {
        versions: entries.len(),
        pruned: entries
            .values()
            .filter(|entry| entry.routes.is_empty())
            .count(),
        files: checked.files,
        bytes: checked.bytes,
        assets: assets.len(),
        rebuilt,
        orphans: orphans.len(),
        orphan_bytes: bytes_of(&orphans),
        unnamed: unnamed.len(),
        unnamed_bytes: bytes_of(&unnamed),
        partials: store
            .partials()?
            .into_iter()
            .map(|partial| partial.path)
            .collect(),
        signatures,
        problems: faults,
        hints,
    })
}

/// The files in the store that no version needs.
fn orphans(objects: &[StoredObject], needed: &BTreeSet<ObjectName>) -> Vec<StoredObject> {
    objects
        .iter()
        .filter(|object| matches!(object.name, ObjectName::File(_)))
        .filter(|object| !needed.contains(&object.name))
        .copied()
        .collect()
}

/// The signers of each version that has notes.
fn signed_versions(notes: &BTreeMap<u64, Vec<Note>>, trust: Option<&Trust>) -> Vec<SignedVersion> {
    notes
        .iter()
        .map(|(&version, notes)| SignedVersion {
            version,
            signers: Signers::of(notes, trust),
        })
        .collect()
}

fn nothing_signed(store: &Store) -> Error {
    let text = "no version is signed by the trusted keys, so followers that trust them accept none";
    Error::refused(ErrorClass::Chain, text)
        .with_advice("check the keys and the URL; `log` says who claims to have signed")
        .in_file(store.to_string())
}

/// Searches old files that no document names for evidence of lost documents. Returns proofs of a
/// loss, and hints that may have other causes.
fn hints<'a>(
    store: &Store,
    entries: &BTreeMap<u64, HistoryEntry>,
    unnamed: impl Iterator<Item = &'a StoredObject>,
    observer: &dyn Observer,
) -> Result<(Vec<Error>, Vec<String>)> {
    let head = entries.iter().next_back();
    let versions = versions_of(entries);
    let (mut lost, mut hints) = (Vec::new(), Vec::new());
    for object in unnamed {
        observer.advance(Phase::Check, 0)?;
        let Some((base, target)) = ends_of(store, object)? else {
            continue;
        };
        if is_lost(base, &versions) {
            lost.push(base_lost(object.name, base));
        } else if let Some(version) = versions.get(&target) {
            hints.push(format!(
                "{}: leads to version {version}, but no route names it: a compaction was \
                 interrupted, or a routes document was lost",
                object.name
            ));
        } else if let Some((version, _)) =
            head.filter(|(_, entry)| entry.commit.shards.contains(&base))
        {
            hints.push(format!(
                "{}: starts from the head, version {version}: a publish was interrupted, or the \
                 next commit was lost",
                object.name
            ));
        }
    }
    Ok((lost, hints))
}

/// Returns hints about notes on commits that are missing, and about notes that do not count.
fn hints_of_notes(
    objects: &[StoredObject],
    entries: &BTreeMap<u64, HistoryEntry>,
    notes: &BTreeMap<u64, Vec<Note>>,
) -> Vec<String> {
    let mut hints = Vec::new();
    let mut found: BTreeMap<u64, usize> = BTreeMap::new();
    for object in objects {
        let ObjectName::Signature {
            version, commit, ..
        } = object.name
        else {
            continue;
        };
        if entries
            .get(&version)
            .is_some_and(|entry| entry.digest == commit)
        {
            *found.entry(version).or_default() += 1;
        } else {
            let text = "is a note on a missing commit: a publish is running or was interrupted, or \
                        another writer was first";
            hints.push(format!("{}: {text}", object.name));
        }
    }
    for (version, found) in found {
        let counting = notes.get(&version).map_or(0, Vec::len);
        if counting < found {
            let others = found - counting;
            hints.push(format!(
                "version {version}: {others} of {found} notes on its commit are not in the \
                 required form, or are too many"
            ));
        }
    }
    hints
}

/// The two ends of a link: the state digests of its base shard, if that is known, and of its target
/// shard.
type Ends = (Option<Digest>, Digest);

/// Every file that a route in force names, with the ends that each such route gives it.
fn uses_of_files(entries: &BTreeMap<u64, HistoryEntry>) -> BTreeMap<FileReference, BTreeSet<Ends>> {
    let mut uses: BTreeMap<FileReference, BTreeSet<Ends>> = BTreeMap::new();
    for entry in entries.values() {
        for route in &entry.routes {
            for ((shard, file), &target) in route.files.iter().enumerate().zip(&entry.commit.shards)
            {
                let base = match route.from {
                    None => Some(Digest::of_empty_state()),
                    Some(from) => entries
                        .get(&from)
                        .and_then(|from| from.commit.shards.get(shard).copied()),
                };
                uses.entry(*file).or_default().insert((base, target));
            }
        }
    }
    uses
}

/// The result of checking files.
struct CheckedFiles {
    /// Number of files.
    files: usize,
    bytes: u64,
    /// Files that have faults.
    bad: BTreeSet<FileReference>,
    faults: Vec<Error>,
}

/// Reads the files that exist, and checks them.
fn check_files(
    store: &Store,
    objects: &[StoredObject],
    uses: &BTreeMap<FileReference, BTreeSet<Ends>>,
    options: &FsckOptions,
    observer: &dyn Observer,
) -> Result<CheckedFiles> {
    let there: BTreeSet<ObjectName> = objects.iter().map(|object| object.name).collect();
    let bytes = uses
        .keys()
        .map(|file| file.size)
        .fold(0, u64::saturating_add);
    let progress = InPhase::begin(observer, Phase::Check, bytes);
    let checked: Result<Vec<Option<Error>>> = uses
        .par_iter()
        .map(|(file, ends)| {
            // If the store cannot list, only reading the files tells whether they are there.
            if store.can_list() && !there.contains(&file.name()) {
                return Ok(Some(file.missing()));
            }
            match check_link(store, *file, ends, (&options.limits, &progress)) {
                Ok(()) => Ok(None),
                Err(error) if error.rule().is_some() => Ok(Some(error)),
                Err(error) => Err(error),
            }
        })
        .collect();
    let mut bad = BTreeSet::new();
    let mut faults = Vec::new();
    for (file, fault) in uses.keys().zip(checked?) {
        if let Some(fault) = fault {
            bad.insert(*file);
            faults.push(fault.in_file(file.name().to_string()));
        }
    }
    Ok(CheckedFiles {
        files: uses.len(),
        bytes,
        bad,
        faults,
    })
}

/// Checks that assets exist and, if everything is read, that they are right. Returns the faults.
fn check_assets(
    store: &Store,
    objects: &[StoredObject],
    assets: &BTreeMap<(ObjectName, u64), &Asset>,
    options: &FsckOptions,
    observer: &dyn Observer,
) -> Result<Vec<Error>> {
    let sizes: BTreeMap<ObjectName, u64> = objects
        .iter()
        .map(|object| (object.name, object.size))
        .collect();
    let mut bytes: u64 = 0;
    if options.deep.is_some() {
        for asset in assets.values() {
            bytes = bytes.saturating_add(asset.file.size);
        }
    }
    let progress = InPhase::begin(observer, Phase::Check, bytes);
    let mut problems = Vec::new();
    for &asset in assets.values() {
        let mut checked = match sizes.get(&asset.object_name()) {
            Some(&size) => asset.check(size, asset.file.digest),
            None if store.can_list() => Err(asset.missing()),
            None => check_there(store, ChainFile::Asset(asset)).map(drop),
        };
        if checked.is_ok() && options.deep.is_some() {
            checked = check_whole(store, ChainFile::Asset(asset), &progress);
        }
        match checked {
            Err(error) if error.rule().is_none() => return Err(error),
            checked => problems.extend(checked.err()),
        }
    }
    Ok(problems)
}

/// Reads a file, and checks that it is a link with all of these ends.
fn check_link(
    store: &Store,
    file: FileReference,
    ends: &BTreeSet<Ends>,
    (limits, progress): (&Limits, &dyn Progress),
) -> Result<()> {
    check_whole(store, ChainFile::Link(file), progress)?;
    let link = LinkReader::open(StoredLink::new(store, file, &()), limits)?;
    for &(base, target) in ends {
        check_target(link.header(), target)?;
        base.map_or(Ok(()), |base| check_base(link.header(), base))?;
    }
    Ok(())
}
