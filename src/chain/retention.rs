//! Retention (SPEC section 21): which routes stay when only some versions are kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{FileReference, ObjectName, Route};
use crate::error::{Error, Result};
use crate::rules;
use crate::tensor::Digest;

/// Selects the routes that stay if these versions are kept: the routes of the cheapest path from
/// nothing to each of them, and every route from one of them to another. `in_force` has the routes
/// in force of every version, and the result has those that stay.
///
/// # Errors
/// R-RET-01 (`CHAIN`) if there is no path from nothing to a version in `keep`.
pub fn retain(
    in_force: &BTreeMap<u64, Vec<Route>>,
    keep: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, Vec<Route>>> {
    let cheapest = cheapest_from_nothing(in_force);
    // For each version on a path, the place of the route that the path takes.
    let mut needed: BTreeMap<u64, usize> = BTreeMap::new();
    for &version in keep {
        let mut next = Some(version);
        while let Some(on_path) = next {
            let Some(way) = cheapest.get(&on_path) else {
                return Err(no_path(version));
            };
            // Two paths are the same from their start to a version that both go through.
            if needed.insert(on_path, way.place).is_some() {
                break;
            }
            next = way.from;
        }
    }
    let retained = in_force.iter().map(|(&version, routes)| {
        let stays = |&(place, route): &(usize, &Route)| {
            let between_kept =
                keep.contains(&version) && route.from.is_some_and(|from| keep.contains(&from));
            between_kept || needed.get(&version) == Some(&place)
        };
        (
            version,
            routes
                .iter()
                .enumerate()
                .filter(stays)
                .map(|(_, route)| route.clone())
                .collect(),
        )
    });
    Ok(retained.collect())
}

/// Finds the versions that cannot be reached from nothing, although they have not been pruned.
/// Returns the failure that a reader without a held version gets for each: R-CHN-08 (`CHAIN`).
/// `in_force` has the routes in force of every version.
pub fn unreachable(in_force: &BTreeMap<u64, Vec<Route>>) -> Vec<Error> {
    let cheapest = cheapest_from_nothing(in_force);
    let cut_off = in_force
        .iter()
        .filter(|(version, routes)| !routes.is_empty() && !cheapest.contains_key(version));
    let failure = |(&version, _): (&u64, &Vec<Route>)| {
        let message =
            format!("version {version} has routes, but no path leads to them from nothing");
        Error::broken(&rules::CHN_08, message).in_file(ObjectName::Commit(version).to_string())
    };
    cut_off.map(failure).collect()
}

/// The last step of the cheapest path from nothing to a version. Ordered: the lesser is the
/// cheaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SnapshotPath {
    bytes: u128,
    routes: u64,
    /// The place of the route among those to its version: several may start from the same version.
    place: usize,
    from: Option<u64>,
}

/// Finds the cheapest path from nothing to every version that has one.
fn cheapest_from_nothing(in_force: &BTreeMap<u64, Vec<Route>>) -> BTreeMap<u64, SnapshotPath> {
    let mut cheapest: BTreeMap<u64, SnapshotPath> = BTreeMap::new();
    // Routes lead to higher versions, so all paths to their starting versions are known.
    for (&version, routes) in in_force {
        let ways = routes.iter().enumerate().filter_map(|(place, route)| {
            let (bytes, count) = match route.from {
                None => (0, 0),
                Some(from) => cheapest.get(&from).map(|way| (way.bytes, way.routes))?,
            };
            Some(SnapshotPath {
                bytes: bytes + route.bytes(),
                routes: count + 1,
                place,
                from: route.from,
            })
        });
        if let Some(way) = ways.min() {
            cheapest.insert(version, way);
        }
    }
    cheapest
}

/// The failure to report if this object shows that commits are missing, or that the store's list is
/// incomplete: R-RET-05.
pub fn commits_missing(name: ObjectName, shows: &str) -> Error {
    let message = format!(
        "{shows}: commits are missing, or the store's list is incomplete, so nothing is removed"
    );
    Error::broken(&rules::RET_05, message).in_file(name.to_string())
}

/// The fault of a chain with this file, whose base is a state that no version has: R-CHN-03.
pub fn base_lost(file: ObjectName, base: Digest) -> Error {
    let message = format!(
        "it starts from the state {base}, which no version has: the commit of that version was \
         lost, and perhaps others"
    );
    Error::broken(&rules::CHN_03, message).in_file(file.to_string())
}

/// The failure to report if a path needs this file, which is missing or truncated: R-RET-01.
/// `error` names the version that the path leads to.
pub fn no_path_without(file: FileReference, error: &Error) -> Error {
    let message = format!(
        "it is missing or cut off, and without it {}",
        error.message()
    );
    Error::broken(&rules::RET_01, message).in_file(file.name().to_string())
}

fn no_path(version: u64) -> Error {
    let message = format!(
        "no path from nothing leads to version {version}, which would be kept: leave it out, or \
         add a snapshot of it first"
    );
    Error::broken(&rules::RET_01, message).in_file(ObjectName::Commit(version).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(routes: &[(u64, Option<u64>, u64)]) -> BTreeMap<u64, Vec<Route>> {
        let mut chain: BTreeMap<u64, Vec<Route>> = BTreeMap::new();
        for &(version, from, size) in routes {
            let files = vec![FileReference {
                digest: Digest::of_bytes(&size.to_le_bytes()),
                size,
            }];
            chain
                .entry(version)
                .or_default()
                .push(Route { from, files });
        }
        chain
    }

    fn retained(routes: &[(u64, Option<u64>, u64)], keep: &[u64]) -> Vec<(u64, Option<u64>)> {
        let retained = retain(&chain(routes), &keep.iter().copied().collect()).unwrap();
        assert_eq!(retained.len(), chain(routes).len());
        retained
            .iter()
            .flat_map(|(&version, routes)| routes.iter().map(move |route| (version, route.from)))
            .collect()
    }

    /// Snapshots of 0 and 3, links between neighbours, and a link from 0 to 4.
    const ROUTES: [(u64, Option<u64>, u64); 8] = [
        (0, None, 100),
        (1, Some(0), 10),
        (2, Some(1), 10),
        (3, None, 100),
        (3, Some(2), 10),
        (4, Some(0), 25),
        (4, Some(3), 10),
        (5, Some(4), 10),
    ];

    #[test]
    fn the_cheapest_path_stays() {
        assert_eq!(retained(&ROUTES, &[3]), [(3, None)]);
        assert_eq!(
            retained(&ROUTES, &[5]),
            [(3, None), (4, Some(3)), (5, Some(4))]
        );
        assert_eq!(
            retained(&ROUTES, &[2]),
            [(0, None), (1, Some(0)), (2, Some(1))]
        );
        assert_eq!(retained(&ROUTES, &[]), []);
    }

    #[test]
    fn routes_between_kept_versions_stay() {
        assert_eq!(
            retained(&ROUTES, &[0, 4, 5]),
            [
                (0, None),
                (3, None),
                (4, Some(0)),
                (4, Some(3)),
                (5, Some(4))
            ]
        );
        let all = retained(&ROUTES, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(all.len(), ROUTES.len());
    }

    #[test]
    fn routes_from_the_same_version_are_told_apart() {
        let routes = [
            (0, None, 100),
            (1, None, 90),
            (1, None, 95),
            (1, Some(0), 5),
            (1, Some(0), 6),
        ];
        let sizes = |keep: &[u64]| -> Vec<u64> {
            let retained = retain(&chain(&routes), &keep.iter().copied().collect()).unwrap();
            retained[&1]
                .iter()
                .map(|route| route.files[0].size)
                .collect()
        };
        // Among the routes from nothing, only the cheapest is on a path.
        assert_eq!(sizes(&[1]), [90]);
        assert_eq!(sizes(&[0, 1]), [90, 5, 6]);
        assert_eq!(sizes(&[0]), [0; 0]);
    }

    #[test]
    fn what_is_retained_is_retained_again() {
        let keep: BTreeSet<u64> = [0, 4, 5].into();
        let once = retain(&chain(&ROUTES), &keep).unwrap();
        assert_eq!(retain(&once, &keep).unwrap(), once);
        for version in &keep {
            let cost = |routes: &BTreeMap<u64, Vec<Route>>| {
                cheapest_from_nothing(routes)
                    .get(version)
                    .map(|way| (way.bytes, way.routes, way.from))
            };
            assert_eq!(cost(&once), cost(&chain(&ROUTES)));
        }
    }

    #[test]
    fn a_version_without_a_path_cannot_be_kept() {
        let mut routes = chain(&ROUTES);
        routes.insert(0, Vec::new());
        let error = retain(&routes, &[2, 4].into()).unwrap_err();
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-RET-01"), "CHAIN")
        );
        assert!(error.message().contains("version 2"));
        assert!(retain(&routes, &[4].into()).is_ok());
        assert!(retain(&routes, &[9].into()).is_err());

        let cut_off = unreachable(&routes);
        assert_eq!(cut_off.iter().filter_map(Error::file).count(), 2);
        assert!(cut_off.iter().all(|error| error.rule() == Some("R-CHN-08")));
        assert!(unreachable(&chain(&ROUTES)).is_empty());
    }
}
