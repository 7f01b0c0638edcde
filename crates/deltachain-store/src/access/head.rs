//! Lists the versions of a chain, and finds its head by few requests, however many versions there
//! are.

use std::collections::BTreeSet;

use deltachain::Result;
use deltachain::chain::{Listing, ObjectName};
use deltachain::tensor::Digest;
use futures_util::future::try_join_all;

use crate::access::documents::commit_version;
use crate::access::store::{Store, StoredObject};

/// Number of names on a page of most stores. Some list more.
const PAGE: u64 = 1000;

impl Store {
    /// The commits and routes documents of all versions from this one on. If the store cannot list,
    /// the head alone; and nothing if this version has no commit, even if later ones exist.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn listing(&self, from: u64) -> Result<Listing> {
        if !self.opened.can_list {
            let head = self.find_head(from)?;
            return Ok(Listing::of_head(head));
        }
        let commit = from.checked_sub(1).map(ObjectName::Commit);
        let lists = [("commits", commit), ("routes", before_routes(from))];
        let lists = self.block_on(async {
            let lists = lists.map(|(folder, after)| self.list(Some(folder), after, usize::MAX));
            try_join_all(lists).await
        })?;
        let names = lists.iter().flatten().map(|object| object.name);
        Ok(Listing::default().with(names))
    }

    /// The versions from this one on that have routes documents, whatever their content.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn versions_with_routes(&self, from: u64) -> Result<BTreeSet<u64>> {
        let listed = self.block_on(self.list(Some("routes"), before_routes(from), usize::MAX))?;
        let version = |object: &StoredObject| match object.name {
            ObjectName::Routes { version, .. } => Some(version),
            _ => None,
        };
        Ok(listed.iter().filter_map(version).collect())
    }

    /// The notes on all versions from this one on. Call it after [`listing`](Self::listing): notes
    /// are stored before their commit (R-SIG-02), so it then has the notes of each listed commit.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn listed_notes(&self, from: u64) -> Result<Listing> {
        let (commit, note) = (Digest([0xff; 32]), Digest([0xff; 32]));
        let before = from.checked_sub(1).map(|version| ObjectName::Signature {
            version,
            commit,
            note,
        });
        let notes = self.block_on(self.list(Some("signatures"), before, usize::MAX))?;
        Ok(Listing::default().with(notes.iter().map(|object| object.name)))
    }

    /// True if the version after this one has a commit: the cheapest way to find a new version, by
    /// one request. A missing commit proves nothing: versions may have been lost, or the chain
    /// begun again.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn has_commit_after(&self, version: u64) -> Result<bool> {
        let Some(next) = version.checked_add(1) else {
            return Ok(false);
        };
        self.has_commit(next)
    }

    /// The head: the highest version that has a commit. The search begins at `known`, which has or
    /// had a commit. If the store cannot list, it returns `None` if `known` has no commit, even if
    /// later ones exist. Few pages are listed: one from `known` on, and about ten for 100,000
    /// versions more.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn head(&self, known: Option<u64>) -> Result<Option<u64>> {
        if !self.opened.can_list {
            return self.find_head(known.unwrap_or(0));
        }
        let before = known.and_then(|known| known.checked_sub(1));
        let mut found = self.page_of_commits(before)?;
        if found.is_none() && before.is_some() {
            found = self.page_of_commits(None)?;
        }
        let Some((mut low, mut is_all)) = found else {
            return Ok(None);
        };
        // An exponential search beyond the pages so far, then a bisection. The head is not below
        // `low` and not above `high`. Each probe raises `low` or lowers `high`; one at `low` itself
        // is the last.
        let (mut high, mut stride) = (u64::MAX, 8 * PAGE);
        while !is_all && low < high {
            let probe = low.saturating_add(stride.min((high - low).saturating_sub(PAGE) / 2));
            match self.page_of_commits(Some(probe))? {
                Some(found) => (low, is_all) = found,
                None => high = probe,
            }
            stride = stride.saturating_mul(16);
        }
        Ok(Some(low))
    }

    /// A version that has a commit and comes after this one, and whether it is the last. `None` if
    /// there is no such version. Stores may list in any order. A store that lists names from before
    /// the place that it was asked for must not keep the search going, so these do not count.
    fn page_of_commits(&self, after: Option<u64>) -> Result<Option<(u64, bool)>> {
        let most = usize::try_from(PAGE).unwrap_or(usize::MAX);
        let commits =
            self.block_on(self.list(Some("commits"), after.map(ObjectName::Commit), most))?;
        let is_all = commits.len() < most;
        let versions = commits
            .iter()
            .filter_map(|object| commit_version(object.name))
            .filter(|&version| after.is_none_or(|after| version > after));
        Ok(versions.max().map(|version| (version, is_all)))
    }

    /// True if a version has a commit, even a damaged one. A GET is the only request that every web
    /// server answers reliably.
    fn has_commit(&self, version: u64) -> Result<bool> {
        Ok(self
            .block_on(self.get_once(ObjectName::Commit(version)))?
            .is_some())
    }

    /// The head of a chain that cannot be listed: the last version before the first gap, or `None`
    /// if version `known` has no commit, even if later ones exist. A server may claim any version,
    /// so the search ends after some 128 requests whatever it answers.
    fn find_head(&self, known: u64) -> Result<Option<u64>> {
        self.check_missing_is_missing()?;
        if !self.has_commit(known)? {
            return Ok(None);
        }
        let mut low = known;
        let mut stride: u64 = 1;
        while let Some(next) = low.checked_add(stride)
            && self.has_commit(next)?
        {
            low = next;
            stride = stride.saturating_mul(2);
        }
        // `low` exists; `low + stride` does not, or is no number of a version.
        while stride > 1 {
            stride /= 2;
            if let Some(next) = low.checked_add(stride)
                && self.has_commit(next)?
            {
                low = next;
            }
        }
        Ok(Some(low))
    }
}

/// A name before those of all routes documents of versions from this one on.
fn before_routes(from: u64) -> Option<ObjectName> {
    // No generation is higher.
    from.checked_sub(1).map(|version| ObjectName::Routes {
        version,
        generation: 9_999_999_999,
    })
}
