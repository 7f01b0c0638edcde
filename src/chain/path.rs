//! The cheapest path (SPEC section 19): the least bytes, then the fewest routes, then the lowest versions, then the routes
//! that stand first in their documents. Of the routes from one version to another that is the first, since it is the
//! cheapest (R-DOC-04).
//!
//! Costs are reckoned backwards, from the version wanted. So they need the routes of no version below those looked at, and
//! tell what the cheapest path through a lower version costs at least.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::chain::Route;

/// The cheapest way from somewhere to the version wanted. Ordered: the lesser is the cheaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    bytes: u128,
    routes: u64,
    /// The version that the first route leads to. Ways of equal cost that begin alike go on alike, so that the lowest
    /// version here decides between them.
    next: u64,
}

/// The cheapest ways to one version, through versions whose routes are known.
#[derive(Debug)]
pub(super) struct Ways {
    wanted: u64,
    /// From each version from which one is known; also from versions whose own routes are not known.
    from_version: BTreeMap<u64, Way>,
    from_nothing: Option<Way>,
}

/// A path: where it starts, and the versions that its routes lead to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) bytes: u128,
    pub(super) start: Option<u64>,
    pub(super) versions: Vec<u64>,
}

impl Ways {
    /// Finds the ways to `wanted`, given the routes to each version.
    pub(super) fn find<'a>(wanted: u64, routes_to: impl DoubleEndedIterator<Item = (u64, &'a [Route])>) -> Self {
        let mut ways = Self { wanted, from_version: BTreeMap::new(), from_nothing: None };
        // Routes ascend, so all ways from a version are known when its turn comes.
        for (version, routes) in routes_to.rev() {
            let (bytes, count) = match ways.from_version.get(&version) {
                Some(way) => (way.bytes, way.routes),
                None if version == wanted => (0, 0),
                None => continue,
            };
            for route in routes {
                let way = Way { bytes: bytes + route.bytes(), routes: count + 1, next: version };
                match route.from {
                    None => ways.from_nothing = Some(ways.from_nothing.map_or(way, |known| known.min(way))),
                    Some(from) => {
                        ways.from_version.entry(from).and_modify(|known| *known = way.min(*known)).or_insert(way);
                    }
                }
            }
        }
        ways
    }

    /// The cheapest path from nothing or from the version held.
    pub(super) fn cheapest(&self, held: Option<u64>) -> Option<Path> {
        if held == Some(self.wanted) {
            return Some(Path { bytes: 0, start: held, versions: Vec::new() });
        }
        let from_held = held.and_then(|held| self.from_version.get(&held));
        // Ways of equal cost that begin with the same version differ in the route to it alone, and of these the one from
        // nothing stands first.
        let (start, first) = match (from_held, self.from_nothing.as_ref()) {
            (Some(way), Some(other)) if way < other => (held, way),
            (Some(way), None) => (held, way),
            (_, other) => (None, other?),
        };
        let mut versions = vec![first.next];
        let mut last = first.next;
        while let Some(way) = self.from_version.get(&last).filter(|_| last != self.wanted) {
            last = way.next;
            versions.push(last);
        }
        Some(Path { bytes: first.bytes, start, versions })
    }

    /// What a path that begins at one of these versions, or below and through them, costs more than: the least bytes
    /// from one of them to the version wanted.
    pub(super) fn least_bytes_from(&self, versions: Range<u64>) -> Option<u128> {
        if versions.is_empty() {
            return None;
        }
        self.from_version.range(versions).map(|(_, way)| way.bytes).min()
    }
}
