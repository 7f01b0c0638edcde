//! The cheapest path (SPEC section 19): the least bytes, then the fewest routes, then the lowest
//! versions, then the routes that come first in their documents. For the cheapest direct path, the
//! bytes of routes that are not known to be direct are compared before all that; for the cheapest
//! path in place, the bytes of routes that are not known to be takeable in place.
//!
//! Costs are computed backwards, from the wanted version. So the routes of lower versions are not
//! needed, and the costs so far are a lower bound for the cost of any path through a lower version.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::chain::Route;

/// A route to a version.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) route: Route,
    /// Whether the version's commit names it.
    pub(super) is_in_commit: bool,
    /// Whether it is known to be direct.
    pub(super) is_direct: bool,
    /// Whether it is known that it can be taken in place.
    pub(super) is_in_place: bool,
}

/// Bytes of files on a path. Ordered: the lesser is the cheaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// Bytes of the files of routes that are avoided.
    avoided: u128,
    /// Bytes of the files of all routes.
    bytes: u128,
}

/// Cost and first route of the cheapest path to the wanted version, from another version or from
/// nothing. Ordered: the lesser is the cheaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PathCost {
    cost: Cost,
    routes: u64,
    /// The version that the first route leads to. There is only one cheapest path from there on, so
    /// the lowest version here decides between paths of equal cost.
    next: u64,
    /// The place of the first route among the routes to that version.
    place: usize,
}

/// The cheapest paths to one version, through versions whose routes are known.
#[derive(Debug)]
pub(super) struct Ways {
    wanted: u64,
    /// By the version that the path starts from. The routes to that version need not be known.
    from_version: BTreeMap<u64, PathCost>,
    from_nothing: Option<PathCost>,
}

/// A path: its start, and for each of its routes the version that it leads to and its place among
/// the routes to that version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) cost: Cost,
    pub(super) start: Option<u64>,
    pub(super) routes: Vec<(u64, usize)>,
}

impl Cost {
    const NOTHING: Self = Self {
        avoided: 0,
        bytes: 0,
    };

    /// Adds a route.
    fn and(self, route: &Route, is_avoided: bool) -> Self {
        let bytes = route.bytes();
        let avoided = if is_avoided { bytes } else { 0 };
        Self {
            avoided: self.avoided + avoided,
            bytes: self.bytes + bytes,
        }
    }
}

impl Path {
    /// The key by which paths are ordered: the lesser is the better path. The first route is
    /// enough, because paths of equal cost that lead to the same version first differ only in the
    /// route to it.
    pub(super) fn order(&self) -> (Cost, usize, Option<(u64, usize)>) {
        (self.cost, self.routes.len(), self.routes.first().copied())
    }

    /// Total bytes of the path's files.
    pub(super) fn bytes(&self) -> u128 {
        self.cost.bytes
    }
}

impl Ways {
    /// Finds the paths to `wanted`, given the routes to each version, in the order of their
    /// document, and which of these routes are avoided.
    pub(super) fn find<'a>(
        wanted: u64,
        routes_to: impl DoubleEndedIterator<Item = (u64, &'a [Candidate])>,
        is_avoided: fn(&Candidate) -> bool,
    ) -> Self {
        let mut ways = Self {
            wanted,
            from_version: BTreeMap::new(),
            from_nothing: None,
        };
        // Routes lead to higher versions, so all paths from a version are known when its turn
        // comes.
        for (version, candidates) in routes_to.rev() {
            let (cost, count) = match ways.from_version.get(&version) {
                Some(way) => (way.cost, way.routes),
                None if version == wanted => (Cost::NOTHING, 0),
                None => continue,
            };
            for (place, candidate) in candidates.iter().enumerate() {
                let way = PathCost {
                    cost: cost.and(&candidate.route, is_avoided(candidate)),
                    routes: count + 1,
                    next: version,
                    place,
                };
                match candidate.route.from {
                    None => {
                        ways.from_nothing =
                            Some(ways.from_nothing.map_or(way, |known| known.min(way)));
                    }
                    Some(from) => {
                        ways.from_version
                            .entry(from)
                            .and_modify(|known| *known = way.min(*known))
                            .or_insert(way);
                    }
                }
            }
        }
        ways
    }

    /// The cheapest path from nothing or from the held version.
    pub(super) fn cheapest(&self, held: Option<u64>) -> Option<Path> {
        self.from(None)
            .into_iter()
            .chain(held.and_then(|held| self.from(Some(held))))
            .min_by_key(Path::order)
    }

    /// The cheapest path from this version; from nothing if `start` is `None`.
    pub(super) fn from(&self, start: Option<u64>) -> Option<Path> {
        if start == Some(self.wanted) {
            return Some(Path {
                cost: Cost::NOTHING,
                start,
                routes: Vec::new(),
            });
        }
        let way = start.map_or(self.from_nothing.as_ref(), |start| {
            self.from_version.get(&start)
        });
        let (cost, mut next) = (way?.cost, way);
        let mut routes = Vec::new();
        while let Some(way) = next {
            routes.push((way.next, way.place));
            next = self
                .from_version
                .get(&way.next)
                .filter(|_| way.next != self.wanted);
        }
        Some(Path {
            cost,
            start,
            routes,
        })
    }

    /// A lower bound for the cost of all paths that begin at one of these versions, or begin below
    /// and pass through one of them: the least cost from one of them to the wanted version.
    pub(super) fn least_cost_from(&self, versions: Range<u64>) -> Option<Cost> {
        if versions.is_empty() {
            return None;
        }
        self.from_version
            .range(versions)
            .map(|(_, way)| way.cost)
            .min()
    }
}
