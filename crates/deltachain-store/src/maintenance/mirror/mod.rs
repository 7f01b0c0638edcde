//! Copies a chain to another store. The chain is the authority, and a copy only carries bytes: the
//! documents of the source say what belongs to it. Files are stored first, then the documents of
//! each version with its commit last, so that the copy is valid at any time. `chain.json` is stored
//! last of all, so that an unfinished copy is not a chain yet.

mod comparison;
mod objects;
mod report;
mod writing;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use deltachain::chain::{ObjectName, Parent, Trust};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Result};

use crate::access::store::{Store, StoredObject};
pub use crate::maintenance::mirror::comparison::PromotedVersion;
use crate::maintenance::mirror::comparison::{
    Comparison, ahead, commit_version, signed_head, unsigned,
};
use crate::maintenance::mirror::objects::{
    Listed, ReadDocuments, list_documents, list_folder, read_documents, version_of,
};
pub use crate::maintenance::mirror::report::MirrorReport;
use crate::maintenance::mirror::writing::{Looking, Writing};
use crate::observer::{Observer, Phase};

/// Time after which the whole lists of both stores are compared again: a compaction, a prune or a
/// late signature may have changed what belongs to older versions.
const BETWEEN_COMPARISONS: Duration = Duration::from_hours(1);

/// Same as [`BETWEEN_COMPARISONS`], after a round with problems, which an operator may have
/// repaired meanwhile.
const WITH_PROBLEMS: Duration = Duration::from_mins(5);

/// Number of attempts at a round, which starts over if the source was pruned meanwhile.
const ATTEMPTS: u32 = 5;

deltachain::setters! {
    /// The options of a [`Mirror`].
    #[derive(Debug, Clone)]
    pub struct MirrorOptions {
        /// Copies versions up to the newest one that these keys have signed (SPEC section 23.3),
        /// and none above it.
        pub trust: Option<Trust> = None,
        /// Copies versions up to this one, and none above it: it is promoted. The destination must
        /// not be above it, and gets nothing that readers see unless the version can be reached
        /// there.
        pub up_to: Option<PromotedVersion> = None,
        /// Reads all objects of the destination and replaces damaged ones. Lists do not show damage
        /// if the size is right.
        pub verify: bool = false,
        /// The source is a copy from which the destination, the chain, is repaired: the destination
        /// may be ahead of the copy. Files are repaired by the destination's own routes, and
        /// documents up to the newest common version; nothing is written above it.
        pub restore: bool = false,
    }
}

/// Keeps a copy of a chain in another store.
#[derive(Debug)]
pub struct Mirror {
    source: Store,
    destination: Store,
    options: MirrorOptions,
    /// Documents of the source that were read.
    read: ReadDocuments,
    /// `None` until a round has compared everything.
    known: Option<Known>,
    /// True if the destination has been a whole copy.
    was_finished: bool,
}

/// Findings of the rounds so far.
#[derive(Debug, Clone)]
struct Known {
    /// When everything was compared last.
    compared: Instant,
    /// True if a round since then has met problems.
    has_problems: bool,
    chain: Vec<u8>,
    /// The newest version of the copy; `None` if the copy has no version.
    head: Option<KnownHead>,
    /// Commits and notes of the source above that version.
    above: BTreeMap<ObjectName, u64>,
}

#[derive(Debug, Clone)]
struct KnownHead {
    version: u64,
    commit: Digest,
    /// The commit as the source lists it.
    object: StoredObject,
}

impl Known {
    /// True if it is time to compare everything again.
    fn is_due(&self) -> bool {
        let after = if self.has_problems {
            WITH_PROBLEMS
        } else {
            BETWEEN_COMPARISONS
        };
        self.compared.elapsed() >= after
    }

    /// The findings after a round with this report. `above` is the listing of the source.
    fn after(
        known: Option<&Self>,
        comparison: &Comparison<'_>,
        above: &Listed,
        report: &MirrorReport,
    ) -> Self {
        let newest = comparison
            .documents
            .keys()
            .filter_map(|name| commit_version(*name))
            .filter(|version| Some(*version) <= report.version)
            .max();
        let head = newest.and_then(|version| {
            let name = ObjectName::Commit(version);
            Some(KnownHead {
                version,
                commit: Digest::of_bytes(comparison.documents.get(&name)?),
                object: *above.get(&name)?,
            })
        });
        let head = head.or_else(|| known?.head.clone());
        let next = head
            .as_ref()
            .map_or(0, |head| head.version.saturating_add(1));
        Self {
            compared: known.map_or_else(Instant::now, |known| known.compared),
            has_problems: known.is_some_and(|known| known.has_problems)
                || !report.problems.is_empty(),
            chain: comparison.chain.clone(),
            head,
            above: sizes_above(above, next),
        }
    }

    /// The version after the newest one.
    fn next(&self) -> u64 {
        self.head
            .as_ref()
            .map_or(0, |head| head.version.saturating_add(1))
    }
}

/// Result of a search for something new after the newest version.
enum News {
    Nothing,
    /// New versions or new signatures.
    Something,
    /// The known part of the chain has changed.
    Changed,
}

impl Mirror {
    /// Creates a mirror from a chain to a store. The directory of a destination is created when
    /// something is stored there; its parent must exist.
    pub fn new(source: Store, destination: &Store, options: MirrorOptions) -> Self {
        let destination = destination.with_stop(source.stop.clone());
        Self {
            source,
            destination,
            options,
            read: ReadDocuments::new(),
            known: None,
            was_finished: false,
        }
    }

    /// Copies what is new. Files pass through `scratch`, one at a time, and are hashed on the way.
    /// The first round compares the whole chain with the copy, and so does one round in each hour;
    /// the others only search for something new after the newest version. Nothing is removed from
    /// the copy.
    ///
    /// A file that is missing or damaged, and a document that cannot be copied, become problems in
    /// the report and do not stop the round. A commit that cannot be read ends the round with the
    /// version before it.
    ///
    /// # Errors
    /// R-CHN-01 (`CHAIN`) if there is no chain in the source; `CHAIN` if the destination has
    /// another one, a version above those of the source, or another commit of a version, or if no
    /// version is signed; `CHAIN` if the version to promote does not exist, has another commit, is
    /// not signed, is below the newest version of the destination, or cannot be reached with the
    /// files of the source; R-SIG-05 (`CHAIN`); R-PUB-08 (`CHAIN`) if it took longer than 20 hours:
    /// the next round goes on; USAGE if a store cannot be listed or written, or the parent of the
    /// destination does not exist; IO. What was copied before an error stays, and is right.
    pub fn round(&mut self, scratch: &Path, observer: &dyn Observer) -> Result<MirrorReport> {
        self.destination.check_is_written()?;
        let mut known = self.known.clone();
        if let Some(last) = &known {
            let news = if last.is_due() {
                News::Changed
            } else {
                self.look(last)?
            };
            match news {
                News::Nothing => {
                    let version = last.head.as_ref().map(|head| head.version);
                    return Ok(MirrorReport {
                        version,
                        head: version,
                        ..MirrorReport::default()
                    });
                }
                News::Something if last.head.is_some() && self.has_chain(&last.chain)? => {}
                _ => known = None,
            }
        }
        for _ in 0..ATTEMPTS {
            let attempt = self.copy(known.as_ref(), scratch, observer)?;
            if let Some(report) = attempt {
                return Ok(report);
            }
            // The chain has changed meanwhile.
            known = None;
        }
        let text = "the chain changes faster than it can be copied: retry later";
        Err(Error::refused(ErrorClass::Chain, text).in_file(self.source.to_string()))
    }

    /// True if the destination has this chain document.
    fn has_chain(&self, chain: &[u8]) -> Result<bool> {
        Ok(self.destination.get(ObjectName::Chain)?.as_deref() == Some(chain))
    }

    /// Searches for something new after the newest version, by one GET and one LIST, or with trust
    /// by two LISTs, since unsigned commits may stay above it.
    fn look(&self, known: &Known) -> Result<News> {
        let next = known.next();
        let has_trust = self.options.trust.is_some();
        if !has_trust && self.source.get(ObjectName::Commit(next))?.is_some() {
            return Ok(News::Something);
        }
        // The list begins with the newest version, so that a rollback is noticed.
        let commits = list_folder(&self.source, "commits", next.saturating_sub(1))?;
        if let Some(head) = &known.head {
            let listed = commits.get(&head.object.name);
            if listed.is_none() && self.destination.find(head.object.name)?.is_some() {
                return Err(ahead(head.version));
            }
            if listed != Some(&head.object) {
                return Ok(News::Changed);
            }
        }
        let mut above = sizes_above(&commits, next);
        if has_trust {
            let notes = list_folder(&self.source, "signatures", next)?;
            above.extend(sizes_above(&notes, next));
            if above == known.above {
                return Ok(News::Nothing);
            }
        }
        if above.is_empty() {
            Ok(News::Nothing)
        } else {
            Ok(News::Something)
        }
    }

    /// Copies what comes after the known version, or compares everything if none is known. `None`
    /// if the chain has changed so that everything has to be compared again.
    fn copy(
        &mut self,
        known: Option<&Known>,
        scratch: &Path,
        observer: &dyn Observer,
    ) -> Result<Option<MirrorReport>> {
        observer.advance(Phase::Download, 0)?;
        let from = known.map_or(0, Known::next);
        let head = known.and_then(|known| known.head.as_ref());
        // The destination is listed first: anything that another mirror stores there meanwhile is
        // in the source, too.
        let there = match known {
            Some(_) => list_documents(&self.destination, from)?,
            None => self.list_destination()?,
        };
        let chain = match known {
            Some(known) => known.chain.clone(),
            None => self.read_chain()?,
        };
        let (listed, documents) = read_documents(&self.source, from, &mut self.read)?;
        let above = listed.clone();
        let mut comparison = Comparison {
            source: &self.source,
            destination: &self.destination,
            chain,
            from,
            listed,
            documents,
            there,
            is_finished: known.is_some(),
            problems: Vec::new(),
        };
        if !self.agree(&mut comparison, head)? {
            return Ok(None);
        }
        let Some(report) = self.store(&mut comparison, known, &above, scratch, observer)? else {
            return Ok(None);
        };
        let next = Known::after(known, &comparison, &above, &report);
        self.was_finished = true;
        self.known = Some(next);
        Ok(Some(report))
    }

    /// Checks that both are the same chain, and leaves out what is not to be copied. False if
    /// everything has to be compared again.
    fn agree(&self, comparison: &mut Comparison<'_>, head: Option<&KnownHead>) -> Result<bool> {
        let known = head.map(|head| head.version);
        let newest = comparison.head().max(known);
        if let Some(up_to) = &self.options.up_to {
            comparison.end_with(up_to)?;
        }
        if let Some(trust) = &self.options.trust {
            let signed = signed_head(comparison, trust, known)?;
            // Readers with trust never take a version because a later one is signed.
            if let Some(up_to) = &self.options.up_to
                && signed != Some(up_to.version)
            {
                return Err(unsigned(up_to.version));
            }
            comparison.end_at(signed);
        }
        if let Some(head) = head {
            let goes_on = comparison.goes_on(head.commit);
            if goes_on {
                comparison.check_surplus(newest)?;
            }
            return Ok(goes_on);
        }
        comparison.check_chain()?;
        if self.was_finished && !comparison.is_finished {
            return Err(gone(&self.destination));
        }
        if self.options.restore {
            comparison.repair()?;
        } else {
            comparison.check_surplus(newest)?;
            comparison.common_version()?;
        }
        Ok(true)
    }

    /// Stores what the copy lacks. `None` if the source was pruned meanwhile.
    fn store(
        &self,
        comparison: &mut Comparison<'_>,
        known: Option<&Known>,
        above: &Listed,
        scratch: &Path,
        observer: &dyn Observer,
    ) -> Result<Option<MirrorReport>> {
        let (history, end) = comparison.history();
        let mut problems = std::mem::take(&mut comparison.problems);
        let comparison = &*comparison;
        let is_copied = |version: u64| comparison.is_copied(version, end);
        let up_to = self.options.up_to.map(|up_to| up_to.version);
        if let Some(version) = up_to
            && !is_copied(version)
        {
            return Err(problems.swap_remove(0));
        }
        let looking = match known {
            Some(_) => Looking::Asking,
            None if self.options.verify => Looking::Reading,
            None => Looking::Listed,
        };
        let mut writing = Writing::new(comparison, scratch, observer, looking);
        if !comparison.is_finished
            && is_copied(0)
            && let Some(first) = history.entries.get(&0)
        {
            // Version 0 is stored first: it marks an unfinished copy, so that two chains never mix.
            writing.store_files(first)?;
            writing.store_documents(|version| version == 0)?;
        }
        for entry in history.entries.values() {
            if is_copied(entry.commit.version) {
                writing.store_files(entry)?;
            }
        }
        if writing.lacks_files && self.has_other_routes(comparison.from, above)? {
            return Ok(None);
        }
        match up_to {
            Some(version) => {
                writing.check_path(version)?;
                writing.store_documents_newest_first(is_copied)?;
            }
            None => writing.store_documents(is_copied)?,
        }
        writing.finish()?;
        let mut report = writing.report;
        problems.append(&mut report.problems);
        report.problems = problems;
        report.whole = known.is_none();
        let head = known.and_then(|known| known.head.as_ref());
        let before = head.map(|head| head.version);
        report.head = comparison.head().max(before);
        report.version = comparison.newest_copied(end).max(before);
        Ok(Some(report))
    }

    fn list_destination(&self) -> Result<Listed> {
        let objects = self.destination.objects()?;
        Ok(objects
            .into_iter()
            .map(|object| (object.name, object))
            .collect())
    }

    fn read_chain(&self) -> Result<Vec<u8>> {
        let chain = self.source.get_agreed(ObjectName::Chain)?;
        Parent::read(chain.as_deref(), None, &Limits::default())?;
        Ok(chain.unwrap_or_default())
    }

    /// True if the source has other routes documents than when it was listed: a prune may have
    /// removed the files that are missing.
    fn has_other_routes(&self, from: u64, listed: &Listed) -> Result<bool> {
        let routes = list_folder(&self.source, "routes", from)?;
        let before = listed
            .keys()
            .filter(|name| matches!(name, ObjectName::Routes { .. }));
        Ok(!routes.keys().eq(before))
    }
}

/// The sizes of the commits and notes from a version on.
fn sizes_above(listed: &Listed, from: u64) -> BTreeMap<ObjectName, u64> {
    let is_above = |name: &ObjectName| {
        !matches!(name, ObjectName::Routes { .. }) && version_of(*name) >= Some(from)
    };
    listed
        .values()
        .filter(|object| is_above(&object.name))
        .map(|object| (object.name, object.size))
        .collect()
}

/// Returns the error if a copy that was whole no longer has a chain document.
fn gone(destination: &Store) -> Error {
    let text = "chain.json of the copy was here a moment ago, and is missing now: its disk was \
                unmounted, or the copy was deleted. Start mirror again to begin a new copy";
    Error::refused(ErrorClass::Chain, text).in_file(destination.to_string())
}
