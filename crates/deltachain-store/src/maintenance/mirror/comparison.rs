//! Compares a chain with its copy: whether they are the same chain, and up to which version.

use std::collections::BTreeSet;

use deltachain::chain::{
    Commit, FileReference, History, Listing, Note, ObjectName, Planner, Trust,
};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Result};

use crate::access::documents::Documents;
use crate::access::store::Store;
use crate::maintenance::mirror::objects::{Listed, MOST_DOCUMENT_BYTES, is_usable, version_of};

/// A version that a copy ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromotedVersion {
    /// The version.
    pub version: u64,
    /// Digest of its commit's bytes.
    pub commit: Digest,
}

/// A chain and its copy as a round has found them.
pub(super) struct Comparison<'a> {
    pub(super) source: &'a Store,
    pub(super) destination: &'a Store,
    /// The bytes of the chain document.
    pub(super) chain: Vec<u8>,
    /// The first version that is compared.
    pub(super) from: u64,
    /// Documents and notes that the source lists.
    pub(super) listed: Listed,
    /// The commits and routes documents that the copy should have.
    pub(super) documents: Documents,
    /// Objects in the destination: all of them if everything is compared, otherwise the documents.
    pub(super) there: Listed,
    /// False if the destination has no chain document yet.
    pub(super) is_finished: bool,
    pub(super) problems: Vec<Error>,
}

impl Comparison<'_> {
    pub(super) fn chain_digest(&self) -> Digest {
        Digest::of_bytes(&self.chain)
    }

    /// The newest version of the source that is compared.
    pub(super) fn head(&self) -> Option<u64> {
        newest(self.listed.keys())
    }

    /// Leaves out everything above a version.
    pub(super) fn end_at(&mut self, end: Option<u64>) {
        let is_kept = |name: &ObjectName| version_of(*name) <= end;
        self.listed.retain(|name, _| is_kept(name));
        self.documents.retain(|name, _| is_kept(name));
    }

    /// Leaves out everything above the version that is promoted.
    ///
    /// # Errors
    /// `CHAIN` if the source does not have it, or has another commit of it, or if the destination
    /// is above it.
    pub(super) fn end_with(&mut self, up_to: &PromotedVersion) -> Result<()> {
        let version = up_to.version;
        let name = ObjectName::Commit(version);
        let Some(content) = self.documents.get(&name) else {
            return Err(at_odds(name, "the source has no such version"));
        };
        let commit = Digest::of_bytes(content);
        if commit != up_to.commit {
            let text = format!(
                "this version has the commit {commit} in the source, and not {}: `deltachain show` \
                 shows commits",
                up_to.commit
            );
            return Err(at_odds(name, &text));
        }
        if let Some(newest) = newest(self.there.keys())
            && newest > version
        {
            let text = format!(
                "the destination is at version {newest}, which is above {version}: promoting never \
                 goes back. docs/canaries.md says how a fleet goes back"
            );
            return Err(at_odds(name, &text));
        }
        self.end_at(Some(version));
        Ok(())
    }

    /// Checks that a reader that holds nothing can reach a version of the copy, without the files
    /// that are missing.
    ///
    /// # Errors
    /// `CHAIN` rules of the planner, or the fault of a file.
    pub(super) fn check_path(&self, version: u64, missing: &BTreeSet<FileReference>) -> Result<()> {
        let mut planner = Planner::new(Some(version), None, None, &Limits::default());
        loop {
            let names = self.documents.keys().copied();
            let plan = planner.plan_with(
                |_, _| Ok(Listing::default().with(names.clone())),
                |names, _| Ok(self.contents(names)),
            )?;
            let files = plan.hops.iter().flat_map(|hop| &hop.files);
            let Some(file) = files.into_iter().find(|file| missing.contains(file)) else {
                return Ok(());
            };
            planner.fail_file(file, lacks(file.name()));
        }
    }

    /// Returns the contents of documents.
    fn contents(&self, names: &[ObjectName]) -> Vec<(ObjectName, Option<&[u8]>)> {
        let content = |name: ObjectName| match name {
            ObjectName::Chain => Some(self.chain.as_slice()),
            _ => self.documents.get(&name).map(Vec::as_slice),
        };
        names.iter().map(|&name| (name, content(name))).collect()
    }

    /// Checks that the destination has this chain document, or that it is an unfinished copy.
    ///
    /// # Errors
    /// `CHAIN` if it has another one; IO.
    pub(super) fn check_chain(&mut self) -> Result<()> {
        if !self.there.contains_key(&ObjectName::Chain) {
            return Ok(());
        }
        let found = self.destination.get(ObjectName::Chain)?;
        self.is_finished = found.as_ref() == Some(&self.chain);
        if self.is_finished {
            return Ok(());
        }
        Err(at_odds(
            ObjectName::Chain,
            "the destination has another chain.json than the source: it is another chain, or this \
             object is damaged. Check both places; if the object is damaged, delete it there and \
             mirror again",
        ))
    }

    /// Finds the newest version of which both have the same usable commit.
    ///
    /// # Errors
    /// `CHAIN` if they have different commits of a version, with the lowest such version that was
    /// found; IO.
    pub(super) fn common_version(&self) -> Result<Option<u64>> {
        let common: Vec<u64> = self
            .documents
            .keys()
            .filter(|name| self.there.contains_key(name))
            .filter_map(|name| commit_version(*name))
            .collect();
        for &version in common.iter().rev() {
            match self.compare_commit(version)? {
                Some(true) => return Ok(Some(version)),
                Some(false) => return Err(self.fork(&common, version)?),
                // One of them is damaged, so they cannot be compared.
                None => {}
            }
        }
        Ok(None)
    }

    /// True if both have the same commit; `None` if one of them cannot be used.
    fn compare_commit(&self, version: u64) -> Result<Option<bool>> {
        let name = ObjectName::Commit(version);
        let chain = self.chain_digest();
        let Some(own) = self.documents.get(&name) else {
            return Ok(None);
        };
        let Some(found) = self.destination.get(name)? else {
            return Ok(None);
        };
        if *own == found {
            return Ok(is_usable(name, chain, own).then_some(true));
        }
        if is_usable(name, chain, own) && is_usable(name, chain, &found) {
            return Ok(Some(false));
        }
        Ok(None)
    }

    /// Returns the error for commits that differ, with the lowest such version. `last` is a version
    /// whose commits differ. Commits name their parents, so all commits after the first difference
    /// differ.
    fn fork(&self, common: &[u64], last: u64) -> Result<Error> {
        let mut differing = last;
        let mut low = 0;
        let mut high = common.partition_point(|version| *version < last);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.compare_commit(common[middle])? {
                Some(false) => {
                    differing = common[middle];
                    high = middle;
                }
                _ => low = middle + 1,
            }
        }
        Ok(differs(differing))
    }

    /// Checks that the destination has no version that the source does not have, and notes what
    /// else only the destination has.
    ///
    /// # Errors
    /// `CHAIN` if its newest version is above that of the source.
    pub(super) fn check_surplus(&mut self, newest_of_source: Option<u64>) -> Result<()> {
        if let Some(version) = newest(self.there.keys())
            && Some(version) > newest_of_source
        {
            return Err(ahead(version));
        }
        let mut surplus = Vec::new();
        for &name in self.there.keys() {
            let is_surplus = match name {
                ObjectName::Commit(_) => !self.listed.contains_key(&name),
                // Documents below the one in force stay in the copy until it is pruned, too.
                ObjectName::Routes {
                    version,
                    generation,
                } => generation > self.newest_generation(version),
                _ => false,
            };
            if is_surplus {
                surplus.push(name);
            }
        }
        for name in surplus {
            self.problems.push(at_odds(
                name,
                "the destination has this, and the source does not: it was lost or removed there, \
                 not signed, or something other than mirror writes to the copy (a prune of the \
                 copy must keep all versions). Put it back into the source, or delete it in the \
                 copy",
            ));
        }
        Ok(())
    }

    /// The highest generation of routes documents of a version that the source lists.
    fn newest_generation(&self, version: u64) -> u64 {
        let all = ObjectName::Routes {
            version,
            generation: 0,
        }..=ObjectName::Routes {
            version,
            generation: u64::MAX,
        };
        let newest = self.listed.range(all).next_back();
        newest.map_or(0, |(name, _)| name.generation())
    }

    /// Makes the destination the authority: its own documents count, and the source fills the gaps
    /// up to the newest common version.
    ///
    /// # Errors
    /// `CHAIN` if they have different commits of a version; IO.
    pub(super) fn repair(&mut self) -> Result<()> {
        let own = self.read_own_documents()?;
        let common = self.common_version()?;
        let common = self.newest_named(common, &own);
        if self.head() > common {
            self.problems.push(at_odds(
                ObjectName::Commit(common.map_or(0, |common| common + 1)),
                "the source has this version, and nothing is written above the newest common one: \
                 mirror without --restore to copy newer versions",
            ));
        }
        self.end_at(common);
        // Routes older than those in force would restore nothing.
        self.documents
            .retain(|name, _| !has_newer_routes(&own, *name));
        self.documents.extend(own);
        Ok(())
    }

    /// The commits and routes documents of the destination that can be used.
    fn read_own_documents(&self) -> Result<Documents> {
        let chain = self.chain_digest();
        let names: Vec<ObjectName> = self
            .there
            .keys()
            .copied()
            .filter(|name| matches!(name, ObjectName::Commit(_) | ObjectName::Routes { .. }))
            .collect();
        let mut own = Documents::new();
        for (name, content) in self.destination.get_all(&names)? {
            if let Some(content) = content.filter(|content| is_usable(name, chain, content)) {
                own.insert(name, content);
            }
        }
        Ok(own)
    }

    /// Returns the newest version of the source that the destination's own commits confirm: the
    /// common version, or the last of the lost versions above it, if the next commit that is left
    /// names it as its parent.
    fn newest_named(&self, common: Option<u64>, own: &Documents) -> Option<u64> {
        let first = common.map_or(0, |common| common + 1);
        let mut left = own.range(ObjectName::Commit(first)..=ObjectName::Commit(u64::MAX));
        let Some((ObjectName::Commit(version), content)) = left.next() else {
            return common;
        };
        let before = version.checked_sub(1)?;
        let lost = self.documents.get(&ObjectName::Commit(before));
        let parsed = Commit::parse(content, &Limits::default()).ok();
        match (lost, parsed) {
            (Some(lost), Some(next)) if next.parent == Digest::of_bytes(lost) => Some(before),
            _ => common,
        }
    }

    /// The versions with their routes in force, as the copy should have them, and the first version
    /// that cannot be copied: a commit is missing or damaged in the source, and the destination
    /// does not have it either.
    pub(super) fn history(&mut self) -> (History, Option<u64>) {
        let mut documents = self.documents.clone();
        documents.insert(ObjectName::Chain, self.chain.clone());
        let mut history = History::read(&documents, self.from, &Limits::default());
        let mut bad = BTreeSet::new();
        for fault in &history.commit_faults {
            let Some(ObjectName::Commit(version)) = fault.file().and_then(ObjectName::parse) else {
                continue;
            };
            bad.insert(version);
            // One of the two is wrong, and it is unknown which.
            if fault.breaks(&["R-CHN-04"]) {
                bad.extend(version.checked_sub(1));
            }
        }
        self.problems.append(&mut history.commit_faults);
        let mut next = self.from;
        let mut end = None;
        for name in self.documents.keys() {
            let Some(version) = commit_version(*name) else {
                continue;
            };
            let before = version.checked_sub(1).map(ObjectName::Commit);
            let follows =
                version == next || before.is_some_and(|before| self.there.contains_key(&before));
            if !self.there.contains_key(name) && (!follows || bad.contains(&version)) {
                end = Some(version);
                break;
            }
            next = version.saturating_add(1);
        }
        (history, end)
    }

    /// True if the copy has a version or will get it; `end` is the first version that cannot be
    /// copied.
    pub(super) fn is_copied(&self, version: u64, end: Option<u64>) -> bool {
        end.is_none_or(|end| version < end) || self.there.contains_key(&ObjectName::Commit(version))
    }

    /// The newest version that the copy has after the round.
    pub(super) fn newest_copied(&self, end: Option<u64>) -> Option<u64> {
        self.documents
            .keys()
            .chain(self.there.keys())
            .filter_map(|name| commit_version(*name))
            .filter(|version| self.is_copied(*version, end))
            .max()
    }

    /// True if the first version that is compared names this commit as the one before.
    pub(super) fn goes_on(&self, commit: Digest) -> bool {
        let first = self.documents.get(&ObjectName::Commit(self.from));
        let parsed = first.and_then(|content| Commit::parse(content, &Limits::default()).ok());
        parsed.is_none_or(|first| first.parent == commit)
    }
}

/// Returns the newest version that these keys have signed: a version of the comparison, or `known`,
/// which they have signed, too.
///
/// # Errors
/// R-SIG-05 (`CHAIN`) if too few keys are trusted for this chain; `CHAIN` if no version is signed;
/// IO.
pub(super) fn signed_head(
    comparison: &Comparison<'_>,
    trust: &Trust,
    known: Option<u64>,
) -> Result<Option<u64>> {
    let chain = comparison.chain_digest();
    trust.check_chain(chain)?;
    let listing = Listing::default().with(comparison.listed.keys().copied());
    for (&name, content) in comparison.documents.iter().rev() {
        let ObjectName::Commit(version) = name else {
            continue;
        };
        if content.len() as u64 > MOST_DOCUMENT_BYTES {
            continue;
        }
        let commit = Digest::of_bytes(content);
        let own = trust.own_notes(chain, version, commit);
        let mut notes = Vec::new();
        let names = listing.notes(version, commit, &own);
        for (name, content) in comparison.source.get_all(&names)? {
            if let Some(content) = content {
                notes.extend(Note::read(name, chain, &content));
            }
        }
        if trust.signers(&notes).len() >= trust.quorum() {
            return Ok(Some(version));
        }
    }
    if known.is_some() {
        return Ok(known);
    }
    Err(at_odds(
        ObjectName::Chain,
        "no version of the source is signed by enough of the trusted keys: check the keys and the \
         quorum, and who signs the chain (`deltachain log`)",
    ))
}

pub(super) fn commit_version(name: ObjectName) -> Option<u64> {
    match name {
        ObjectName::Commit(version) => Some(version),
        _ => None,
    }
}

/// The newest version that has a commit among these.
fn newest<'a>(names: impl Iterator<Item = &'a ObjectName>) -> Option<u64> {
    names.filter_map(|name| commit_version(*name)).max()
}

/// Returns the error if a version that is to be promoted is not signed.
pub(super) fn unsigned(version: u64) -> Error {
    at_odds(
        ObjectName::Commit(version),
        "this version is not signed by enough of the trusted keys: sign it (`deltachain sign`), or \
         promote a signed one",
    )
}

/// Returns the error if a file that a version needs is not in the copy.
pub(super) fn lacks(name: ObjectName) -> Error {
    at_odds(
        name,
        "this file is missing or damaged in the source, so the version cannot be promoted",
    )
}

/// Returns the error if the destination has a version above the newest one of the source.
pub(super) fn ahead(version: u64) -> Error {
    at_odds(
        ObjectName::Commit(version),
        "the destination has this version, and the source ends below it. If the source was rolled \
         back, delete the same commits in the copy, or mirror to a new place. If it is the \
         destination that has to be repaired from this source, mirror with --restore",
    )
}

/// Returns the error if the two have different commits of a version.
pub(super) fn differs(version: u64) -> Error {
    at_odds(
        ObjectName::Commit(version),
        &format!(
            "version {version} has another commit in the destination than in the source. If it was \
             replaced in the source, delete this commit and all later ones in the copy and mirror \
             again, or mirror to a new place"
        ),
    )
}

pub(super) fn at_odds(name: ObjectName, text: &str) -> Error {
    Error::refused(ErrorClass::Chain, text).in_file(name.to_string())
}

/// True if the documents have routes of the same version with a higher generation.
fn has_newer_routes(documents: &Documents, name: ObjectName) -> bool {
    let ObjectName::Routes {
        version,
        generation,
    } = name
    else {
        return false;
    };
    let last = ObjectName::Routes {
        version,
        generation: u64::MAX,
    };
    documents
        .range(name..=last)
        .any(|(other, _)| other.generation() > generation)
}
