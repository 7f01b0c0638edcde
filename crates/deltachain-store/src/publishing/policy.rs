//! The routes that a new version gets in addition to the route from the previous version.

use std::collections::BTreeSet;

use deltachain::chain::{Commit, Parent, Route};
use deltachain::{Limits, Result};

use crate::access::documents::usable_commit;
use crate::access::store::Store;
use crate::observer::Observer;

/// The key of a commit's metadata that notes the cost of the path to its version (SPEC section 20).
pub(crate) const PATH_BYTES_KEY: &str = "deltachain.path-bytes";

/// Maximum number of commits before the head that are read to find the cost of the path to it, if
/// its own commit does not state it.
const LOOK_BACK: u64 = 3;

/// The versions that get a snapshot. Version 0 always has one, and so has a version without a link
/// from its parent.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Snapshots {
    /// Versions whose number is a multiple of this one; none for 0.
    Every(u64),
    /// A version for which a late joiner would otherwise read more than this many times the last
    /// snapshot.
    Cost(f64),
    /// No other version.
    Never,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::Cost(2.0)
    }
}

impl Snapshots {
    /// Whether the version after `parent` gets a snapshot. `link` is the number of bytes of its
    /// link from the parent, and `path` the cost of the path to the parent, if it is known.
    pub(crate) fn want(
        self,
        parent: &Parent,
        path: Option<PathBytes>,
        link: u64,
        observer: &dyn Observer,
    ) -> bool {
        let times = match self {
            Self::Never => return false,
            Self::Every(every) => return every > 0 && parent.next_version().is_multiple_of(every),
            Self::Cost(times) => times,
        };
        match path {
            Some(path) => path.and(link.into()).costs_more_than(times),
            // A snapshot also repairs a chain that late joiners cannot read at all.
            None => {
                observer.remark("the cost for a late joiner is unknown, so a snapshot is added");
                true
            }
        }
    }
}

/// The bytes that a late joiner reads to get to a version: those of the cheapest path from nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathBytes {
    /// Bytes of the route from nothing, with which the path begins.
    snapshot: u128,
    /// Bytes of all routes of the path.
    whole: u128,
}

impl PathBytes {
    /// Returns the cost that a commit states itself: in its metadata, or by a snapshot of its own.
    /// The metadata may be wrong, and decide only when there is a snapshot.
    pub(crate) fn of(commit: &Commit) -> Option<Self> {
        let noted = commit.metadata.get(PATH_BYTES_KEY).and_then(|note| {
            let (snapshot, whole) = note.split_once(' ')?;
            Some(Self {
                snapshot: snapshot.parse().ok()?,
                whole: whole.parse().ok()?,
            })
        });
        noted.or_else(|| Self::after(&commit.routes, |_| Ok(None)).ok().flatten())
    }

    /// The cost as a commit notes it in its metadata.
    pub(crate) fn noted(self) -> String {
        format!("{} {}", self.snapshot, self.whole)
    }

    /// The cost of the path to the head. If its commit does not state it, a few commits before it
    /// are read.
    pub(crate) fn to_head(store: &Store, parent: &Parent, limits: &Limits) -> Result<Option<Self>> {
        let mut commit = parent.head().cloned();
        let mut links = 0_u128;
        for _ in 0..=LOOK_BACK {
            let Some(Commit {
                version, routes, ..
            }) = &commit
            else {
                return Ok(None);
            };
            if let Some(known) = commit.as_ref().and_then(Self::of) {
                return Ok(Some(known.and(links)));
            }
            let Some(before) = version.checked_sub(1) else {
                return Ok(None);
            };
            let Some(link) = routes.iter().find(|route| route.from == Some(before)) else {
                return Ok(None);
            };
            links = links.saturating_add(link.bytes());
            commit = usable_commit(store, before, limits)?;
        }
        Ok(None)
    }

    /// The cost of the path to a version with these routes, as far as the costs of the paths to the
    /// versions that they come from are known.
    pub(crate) fn after(
        routes: &[Route],
        of: impl Fn(u64) -> Result<Option<Self>>,
    ) -> Result<Option<Self>> {
        let mut cheapest: Option<Self> = None;
        for route in routes {
            let nothing = Self {
                snapshot: route.bytes(),
                whole: 0,
            };
            let path = route
                .from
                .map_or(Ok(Some(nothing)), &of)?
                .map(|before| before.and(route.bytes()));
            // The first of equally cheap paths counts: the route from nothing comes before all
            // others.
            cheapest = cheapest
                .into_iter()
                .chain(path)
                .min_by_key(|path| path.whole);
        }
        Ok(cheapest)
    }

    /// The cost of this path with more links, given in bytes.
    fn and(self, links: u128) -> Self {
        Self {
            whole: self.whole.saturating_add(links),
            ..self
        }
    }

    /// Whether it costs more than this many times the snapshot that it begins with.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a few bytes more or less decide nothing"
    )]
    fn costs_more_than(self, times: f64) -> bool {
        self.whole as f64 > times * self.snapshot as f64
    }
}

/// Returns the versions, besides the previous one, from which this version gets a link. `skips` has
/// the distances.
pub(crate) fn skipped_from(version: u64, skips: &[u64]) -> BTreeSet<u64> {
    let due = skips
        .iter()
        .filter(|&&skip| skip > 1 && skip <= version && version.is_multiple_of(skip));
    due.map(|skip| version - skip).collect()
}

#[cfg(test)]
mod tests {
    use deltachain::chain::FileReference;
    use deltachain::tensor::Digest;

    use super::*;

    #[test]
    fn skips_are_due_at_their_multiples() {
        assert_eq!(skipped_from(0, &[4, 16]), [].into());
        assert_eq!(skipped_from(4, &[4, 16]), [0].into());
        assert_eq!(skipped_from(5, &[4, 16]), [].into());
        assert_eq!(skipped_from(16, &[4, 16, 4]), [0, 12].into());
        assert_eq!(skipped_from(6, &[0, 1, 2, 3, 12]), [3, 4].into());
    }

    fn commit(version: u64, routes: &[(Option<u64>, u64)], note: Option<&str>) -> Commit {
        let digest = Digest::of_bytes(b"");
        let route = |&(from, size)| Route {
            from,
            files: vec![FileReference { digest, size }],
        };
        Commit {
            version,
            parent: digest,
            state: digest,
            shards: vec![digest],
            routes: routes.iter().map(route).collect(),
            assets: Vec::new(),
            metadata: note
                .map(|note| (PATH_BYTES_KEY.to_owned(), note.to_owned()))
                .into_iter()
                .collect(),
        }
    }

    #[test]
    fn a_path_costs_more_than_so_many_snapshots() {
        let path = PathBytes {
            snapshot: 100,
            whole: 150,
        };
        assert!(!path.and(50).costs_more_than(2.0));
        assert!(path.and(51).costs_more_than(2.0));
        assert!(!path.and(149).costs_more_than(3.0));
        assert!(path.costs_more_than(1.0));
    }

    #[test]
    fn a_commit_says_what_its_path_costs() {
        let of = |routes: &[_], note| PathBytes::of(&commit(9, routes, note)).map(PathBytes::noted);
        let link = (Some(8), 3);
        assert_eq!(of(&[link], Some("10 25")).as_deref(), Some("10 25"));
        assert_eq!(of(&[(None, 7), link], None).as_deref(), Some("7 7"));
        assert_eq!(of(&[(None, 7), link], Some("x")).as_deref(), Some("7 7"));
        assert_eq!(of(&[link], None), None);
        for note in [
            "",
            "10",
            "10  25",
            "10 25 ",
            "-1 5",
            "10 999999999999999999999999999999999999999999",
        ] {
            assert_eq!(of(&[link], Some(note)), None, "{note:?}");
        }
    }

    #[test]
    fn the_cheapest_path_is_noted() {
        let known = |version| {
            Ok((version != 6).then_some(PathBytes {
                snapshot: 10,
                whole: u128::from(version) * 10,
            }))
        };
        let after = |routes: &[_]| {
            PathBytes::after(&commit(9, routes, None).routes, known)
                .unwrap()
                .map(PathBytes::noted)
        };
        assert_eq!(after(&[(Some(8), 5)]).as_deref(), Some("10 85"));
        assert_eq!(
            after(&[(Some(4), 20), (Some(8), 5)]).as_deref(),
            Some("10 60")
        );
        assert_eq!(
            after(&[(None, 60), (Some(4), 20)]).as_deref(),
            Some("60 60")
        );
        assert_eq!(
            after(&[(None, 61), (Some(4), 20)]).as_deref(),
            Some("10 60")
        );
        assert_eq!(after(&[(Some(6), 1)]), None);
    }
}
