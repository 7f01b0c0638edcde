//! Storing what a copy lacks: files first, then documents in the order of versions.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

use deltachain::chain::{Asset, Commit, FileReference, HistoryEntry, ObjectName};
use deltachain::{Error, Limits, Progress as _, Result};
use tempfile::NamedTempFile;

use crate::access::attempt::{Attempt, put_last};
use crate::access::links::{check_links, find_dangling};
use crate::access::store::Store;
use crate::access::whole::{ChainFile, check_there, check_whole, read_whole};
use crate::maintenance::mirror::comparison::{Comparison, at_odds, differs, lacks};
use crate::maintenance::mirror::objects::{
    is_forbidden, is_usable, may_be_copied, place, version_of,
};
use crate::maintenance::mirror::report::MirrorReport;
use crate::observer::{InPhase, Observer, Phase};

/// The rules that a missing or damaged file breaks.
const BAD_FILE: [&str; 4] = ["R-CHN-09", "R-CHN-10", "R-CHN-15", "R-CHN-16"];

/// The way to find out which files the destination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looking {
    /// All of its objects are in the list.
    Listed,
    /// Its documents are in the list, and its files are looked up one by one.
    Asking,
    /// Its files are read.
    Reading,
}

/// Stores what the copy lacks.
pub(super) struct Writing<'a> {
    pub(super) comparison: &'a Comparison<'a>,
    /// The directory for files on their way to the destination.
    pub(super) scratch: &'a Path,
    pub(super) observer: &'a dyn Observer,
    looking: Looking,
    attempt: Attempt,
    /// Objects that were checked or stored already.
    done: BTreeSet<ObjectName>,
    is_prepared: bool,
    pub(super) report: MirrorReport,
    /// True if a file was missing in the source.
    pub(super) lacks_files: bool,
    /// Files of the source that are missing or damaged.
    failed: BTreeSet<FileReference>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(
        comparison: &'a Comparison<'a>,
        scratch: &'a Path,
        observer: &'a dyn Observer,
        looking: Looking,
    ) -> Self {
        Self {
            comparison,
            scratch,
            observer,
            looking,
            attempt: Attempt::begin(comparison.destination),
            done: BTreeSet::new(),
            is_prepared: false,
            report: MirrorReport::default(),
            lacks_files: false,
            failed: BTreeSet::new(),
        }
    }

    fn source(&self) -> &'a Store {
        self.comparison.source
    }

    fn destination(&self) -> &'a Store {
        self.comparison.destination
    }

    /// Stores the files and assets of a version that the destination lacks.
    ///
    /// # Errors
    /// IO; the observer's error. Missing and damaged files become problems in the report.
    pub(super) fn store_files(&mut self, entry: &HistoryEntry) -> Result<()> {
        for route in &entry.routes {
            for file in &route.files {
                self.store_file(ChainFile::Link(*file), file.name(), *file)?;
            }
        }
        for asset in &entry.commit.assets {
            self.store_asset(asset)?;
        }
        Ok(())
    }

    fn store_asset(&mut self, asset: &Asset) -> Result<()> {
        self.store_file(ChainFile::Asset(asset), asset.object_name(), asset.file)
    }

    fn store_file(
        &mut self,
        file: ChainFile<'_>,
        name: ObjectName,
        reference: FileReference,
    ) -> Result<()> {
        if !self.done.insert(name) || self.is_there(file, name, reference)? {
            return Ok(());
        }
        let failed = |error| Error::io("writing", error).in_file(self.scratch);
        let mut written = NamedTempFile::new_in(self.scratch).map_err(failed)?;
        match self.read_file(file, reference.size, &mut written) {
            Ok(()) => {}
            Err(error) if error.breaks(&BAD_FILE) || is_forbidden(&error) => {
                self.lacks_files |= error.breaks(&["R-CHN-09"]);
                self.failed.insert(reference);
                self.report.problems.push(error);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.prepare()?;
        let uploading = InPhase::begin(self.observer, Phase::Upload, reference.size);
        self.destination()
            .upload(written.path(), name, reference.size, self.observer)?;
        drop(uploading);
        self.report.files += 1;
        self.report.bytes = self.report.bytes.saturating_add(reference.size);
        Ok(())
    }

    /// True if the destination has the file.
    fn is_there(
        &self,
        file: ChainFile<'_>,
        name: ObjectName,
        reference: FileReference,
    ) -> Result<bool> {
        let checked = match self.looking {
            Looking::Reading => {
                let checking = InPhase::begin(self.observer, Phase::Check, reference.size);
                check_whole(self.destination(), file, &checking)
            }
            Looking::Listed => {
                let found = self.comparison.there.get(&name);
                return Ok(found.is_some_and(|found| found.size == reference.size));
            }
            Looking::Asking => {
                self.observer.advance(Phase::Check, 0)?;
                check_there(self.destination(), file).map(drop)
            }
        };
        match checked {
            Ok(()) => Ok(true),
            Err(error) if error.breaks(&BAD_FILE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read_file(&self, file: ChainFile<'_>, size: u64, written: &mut NamedTempFile) -> Result<()> {
        let failed = |error| Error::io("writing", error).in_file(self.scratch);
        let downloading = InPhase::begin(self.observer, Phase::Download, size);
        let source = self.source();
        let read = read_whole(source, file, source.options.part_bytes, |bytes| {
            written.write_all(bytes).map_err(failed)?;
            downloading.advance(bytes.len() as u64)
        });
        source.block_on(read)
    }

    /// Stores the documents of these versions that the destination lacks, and replaces unusable
    /// ones.
    ///
    /// # Errors
    /// R-PUB-08 (`CHAIN`) if the round took too long; `CHAIN` if another writer was faster; IO.
    pub(super) fn store_documents(&mut self, versions: impl Fn(u64) -> bool) -> Result<()> {
        let listed = self.comparison.listed.keys();
        let mut names: Vec<ObjectName> = listed
            .copied()
            .filter(|name| version_of(*name).is_some_and(&versions))
            .collect();
        names.sort_by_key(|name| place(*name));
        self.store_in_order(names)
    }

    /// Same as [`store_documents`](Self::store_documents), but commits come last, and the newest
    /// one first, so that no reader ever takes one of the others as the newest version. A round
    /// that is interrupted between two commits leaves a gap (R-CHN-03), which the next one fills;
    /// readers keep what they have.
    ///
    /// # Errors
    /// Same errors as [`store_documents`](Self::store_documents).
    pub(super) fn store_documents_newest_first(
        &mut self,
        versions: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let listed = self.comparison.listed.keys().copied();
        let wanted = listed.filter(|name| version_of(*name).is_some_and(&versions));
        let is_commit = |name: &ObjectName| matches!(name, ObjectName::Commit(_));
        let (mut commits, mut names): (Vec<_>, Vec<_>) = wanted.partition(is_commit);
        names.sort_by_key(|name| place(*name));
        commits.sort_by_key(|name| Reverse(version_of(*name)));
        names.append(&mut commits);
        self.store_in_order(names)
    }

    fn store_in_order(&mut self, names: Vec<ObjectName>) -> Result<()> {
        for name in names {
            if self.done.insert(name) {
                self.store_document(name)?;
            }
        }
        Ok(())
    }

    /// Checks that a version can be reached with the files that were not missing, and that it has
    /// its assets.
    ///
    /// # Errors
    /// `CHAIN` if not.
    pub(super) fn check_path(&self, version: u64) -> Result<()> {
        self.comparison.check_path(version, &self.failed)?;
        let content = self.comparison.documents.get(&ObjectName::Commit(version));
        let commit = content.map(|content| Commit::parse(content, &Limits::default()));
        let assets = commit.transpose()?.map(|commit| commit.assets);
        match assets
            .iter()
            .flatten()
            .find(|asset| self.failed.contains(&asset.file))
        {
            Some(asset) => Err(lacks(asset.object_name())),
            None => Ok(()),
        }
    }

    fn store_document(&mut self, name: ObjectName) -> Result<()> {
        let comparison = self.comparison;
        let found = comparison.there.get(&name);
        let listed = comparison.listed.get(&name).map(|object| object.size);
        if found.is_some()
            && found.map(|object| object.size) == listed
            && self.looking != Looking::Reading
        {
            return Ok(());
        }
        self.observer.advance(Phase::Upload, 0)?;
        let content = match comparison.documents.get(&name) {
            Some(content) => Some(content.clone()),
            None if matches!(name, ObjectName::Signature { .. }) => match self.source().get(name) {
                Err(error) if is_forbidden(&error) => {
                    self.report.problems.push(error);
                    return Ok(());
                }
                content => content?,
            },
            // A restored destination needs no older routes than its own.
            None => return Ok(()),
        };
        // A prune may have removed it since it was listed.
        let Some(content) = content else {
            return Ok(());
        };
        if found.is_some() {
            let there = self.destination().get(name)?;
            if let Some(there) = there {
                return self.compare(name, &content, &there);
            }
        }
        if !may_be_copied(name, &content) {
            self.report.problems.push(at_odds(
                name,
                "this is not a document of a chain, so it is not copied: delete it in the source",
            ));
            return Ok(());
        }
        self.prepare()?;
        self.put(name, &content)?;
        self.report.documents += 1;
        Ok(())
    }

    /// Replaces a document of the destination if it cannot be used and the source's can. If both
    /// can be used, a document that is not a commit is replaced if its size differs; any other
    /// difference is a problem.
    fn compare(&mut self, name: ObjectName, content: &[u8], there: &[u8]) -> Result<()> {
        if content == there {
            return Ok(());
        }
        let chain = self.comparison.chain_digest();
        let is_better = is_usable(name, chain, content);
        let is_good = is_usable(name, chain, there);
        let has_other_size = content.len() != there.len();
        let replaces = match name {
            _ if !is_better => false,
            _ if !is_good => true,
            // R-PUB-05.
            ObjectName::Commit(_) => false,
            _ => has_other_size,
        };
        if replaces {
            self.prepare()?;
            self.replace(name, content)?;
            self.report.documents += 1;
            return Ok(());
        }
        let problem = match name {
            ObjectName::Commit(version) if is_better => differs(version),
            _ if is_better => at_odds(
                name,
                "source and destination differ here, and both can be read: find out which of them \
                 is damaged or was written by another program, delete it there, and mirror again",
            ),
            _ if is_good => at_odds(
                name,
                "this is damaged in the source; the copy has it. Delete it in the source, and \
                 restore it: mirror the copy back with --restore",
            ),
            // Readers can use neither.
            _ => return Ok(()),
        };
        self.report.problems.push(problem);
        Ok(())
    }

    /// Stores a document, unless it is there.
    fn put(&self, name: ObjectName, content: &[u8]) -> Result<()> {
        let destination = self.destination();
        if put_last(destination, &[self.attempt], name, content)?
            || destination.get(name)?.is_some_and(|found| found == content)
        {
            return Ok(());
        }
        self.attempt.check()?;
        Err(at_odds(
            name,
            "another writer has just stored something else here: only mirror may write to a copy",
        ))
    }

    fn replace(&self, name: ObjectName, content: &[u8]) -> Result<()> {
        self.attempt.check()?;
        let failed = |error| Error::io("writing", error).in_file(self.scratch);
        let mut written = NamedTempFile::new_in(self.scratch).map_err(failed)?;
        written.write_all(content).map_err(failed)?;
        let size = content.len() as u64;
        self.destination()
            .upload(written.path(), name, size, self.observer)
    }

    /// Stores the chain document, which makes the copy a chain.
    ///
    /// # Errors
    /// Same errors as [`store_documents`](Self::store_documents).
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.comparison.is_finished {
            return Ok(());
        }
        self.prepare()?;
        self.put(ObjectName::Chain, &self.comparison.chain)
    }

    /// Creates the directory of the destination, and checks that documents can be stored there.
    /// Does so once, before anything is stored.
    fn prepare(&mut self) -> Result<()> {
        if self.is_prepared {
            return Ok(());
        }
        if let Some(directory) = self.destination().missing_directory() {
            find_dangling(&directory)?;
            // The parent is not created: it may be the mount point of a disk that is not mounted.
            match fs::create_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let text = "the parent of this directory does not exist: is its disk mounted?";
                    return Err(Error::usage(text).in_file(&directory));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    made.map_err(|error| Error::io("creating", error).in_file(&directory))?;
                }
            }
        }
        if let Some(directory) = self.destination().directory() {
            check_links(&directory)?;
        }
        self.is_prepared = true;
        Ok(())
    }
}
