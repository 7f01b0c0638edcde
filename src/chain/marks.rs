//! Hints in the metadata of documents: which routes are direct, and which routes of a commit can be
//! taken in place (SPEC section 18, SPEC section 24.5).

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{Commit, Route, RoutesDocument};

/// A mark of routes, by the key of its hint. The value of the hint lists the places of the marked
/// routes.
#[derive(Debug, Clone, Copy)]
struct Mark(&'static str);

const DIRECT: Mark = Mark("deltachain.direct");
const IN_PLACE: Mark = Mark("deltachain.in-place");

impl Mark {
    /// For each of the routes, in order, whether the metadata of their document mark it. A hint in
    /// any other form marks no routes, and routes from nothing are never marked.
    fn of(self, metadata: &BTreeMap<String, String>, routes: &[Route]) -> Vec<bool> {
        let places = metadata.get(self.0).and_then(|text| {
            let places = text
                .split(' ')
                .map(|place| place.parse().ok())
                .collect::<Option<BTreeSet<usize>>>()?;
            let is_legal =
                value(&places) == *text && places.iter().all(|place| *place < routes.len());
            is_legal.then_some(places)
        });
        let places = places.unwrap_or_default();
        (0..)
            .zip(routes)
            .map(|(place, route)| route.from.is_some() && places.contains(&place))
            .collect()
    }

    /// Marks the routes for which `is_marked` returns true, and no others.
    fn set(
        self,
        metadata: &mut BTreeMap<String, String>,
        routes: &[Route],
        is_marked: impl Fn(&Route) -> bool,
    ) {
        let places = (0..)
            .zip(routes)
            .filter(|(_, route)| route.from.is_some() && is_marked(route));
        let places: BTreeSet<usize> = places.map(|(place, _)| place).collect();
        if places.is_empty() {
            metadata.remove(self.0);
        } else {
            metadata.insert(self.0.to_owned(), value(&places));
        }
    }
}

fn value(places: &BTreeSet<usize>) -> String {
    places
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Routes from nothing are direct without a mark.
fn direct(metadata: &BTreeMap<String, String>, routes: &[Route]) -> Vec<bool> {
    routes
        .iter()
        .zip(DIRECT.of(metadata, routes))
        .map(|(route, marked)| route.from.is_none() || marked)
        .collect()
}

impl Commit {
    /// For each of the routes, in order, whether it is known to be direct: all values in its files
    /// are absolute, so that they can be decoded without a base. A route is known to be direct if
    /// it starts from nothing, or if the metadata say so, which is only a hint.
    pub fn direct_routes(&self) -> Vec<bool> {
        direct(&self.metadata, &self.routes)
    }

    /// Marks the direct routes in the metadata. Call it when the routes are in their final order.
    pub fn mark_direct(&mut self, is_direct: impl Fn(&Route) -> bool) {
        DIRECT.set(&mut self.metadata, &self.routes, is_direct);
    }

    /// For each of the routes, in order, whether the metadata say that it can be taken in place,
    /// which is only a hint. Routes from nothing cannot.
    pub fn in_place_routes(&self) -> Vec<bool> {
        IN_PLACE.of(&self.metadata, &self.routes)
    }

    /// Marks the routes that can be taken in place in the metadata. Call it when the routes are in
    /// their final order.
    pub fn mark_in_place(&mut self, is_in_place: impl Fn(&Route) -> bool) {
        IN_PLACE.set(&mut self.metadata, &self.routes, is_in_place);
    }
}

impl RoutesDocument {
    /// Same as [`Commit::direct_routes`], for the routes of this document.
    pub fn direct_routes(&self) -> Vec<bool> {
        direct(&self.metadata, &self.routes)
    }

    /// Same as [`Commit::mark_direct`], for the routes of this document.
    pub fn mark_direct(&mut self, is_direct: impl Fn(&Route) -> bool) {
        DIRECT.set(&mut self.metadata, &self.routes, is_direct);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::FileReference;
    use crate::tensor::Digest;

    fn document(from: &[Option<u64>], metadata: &[(&str, &str)]) -> RoutesDocument {
        let file = |size| FileReference {
            digest: Digest([7; 32]),
            size,
        };
        let routes = (1..).zip(from).map(|(size, &from)| Route {
            from,
            files: vec![file(size)],
        });
        let metadata = metadata
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        RoutesDocument {
            version: 9,
            generation: 1,
            commit: Digest([1; 32]),
            routes: routes.collect(),
            metadata,
        }
    }

    #[test]
    fn marks_are_read_in_their_one_form() {
        let from = [None, Some(1), Some(1), Some(2)];
        let read = |value: &str| document(&from, &[(DIRECT.0, value)]).direct_routes();
        assert_eq!(
            document(&from, &[]).direct_routes(),
            [true, false, false, false]
        );
        assert_eq!(read("1"), [true, true, false, false]);
        assert_eq!(read("0 2"), [true, false, true, false]);
        assert_eq!(read("1 2 3"), [true; 4]);
        for other in [
            "", " ", "1 ", " 1", "1  2", "2 1", "1 1", "01", "+1", "-1", "1,2", "1\t2", "4", "1 4",
            "x", "\u{661}",
        ] {
            assert_eq!(read(other), [true, false, false, false], "{other:?}");
        }
        assert_eq!(
            read(&format!("1 {}", u128::MAX)),
            [true, false, false, false]
        );
        assert!(document(&[], &[(DIRECT.0, "0")]).direct_routes().is_empty());
    }

    #[test]
    fn marks_are_written_where_they_are_needed() {
        let from = [None, Some(1), Some(1), Some(2)];
        let marks = |document: &mut RoutesDocument, direct: &[u64]| {
            document.mark_direct(|route| direct.contains(&route.files[0].size));
            (
                document.metadata.get(DIRECT.0).cloned(),
                document.direct_routes(),
            )
        };
        let mut some = document(&from, &[(DIRECT.0, "0"), ("a", "b")]);
        assert_eq!(
            marks(&mut some, &[1, 3, 4]),
            (Some("2 3".to_owned()), vec![true, false, true, true])
        );
        assert_eq!(
            marks(&mut some, &[1]),
            (None, vec![true, false, false, false])
        );
        assert_eq!(some.metadata.len(), 1);
        let many = vec![Some(0); 12];
        let (value, direct) = marks(&mut document(&many, &[]), &[3, 11, 12]);
        assert_eq!(value.as_deref(), Some("2 10 11"));
        assert_eq!(direct.iter().filter(|direct| **direct).count(), 3);
    }

    #[test]
    fn what_can_be_taken_in_place_never_comes_from_nothing() {
        let RoutesDocument {
            version,
            commit: parent,
            routes,
            metadata,
            ..
        } = document(
            &[None, Some(1), Some(1), Some(2)],
            &[(IN_PLACE.0, "0 2"), (DIRECT.0, "1")],
        );
        let state = parent;
        let shards = vec![parent];
        let assets = Vec::new();
        let mut commit = Commit {
            version,
            parent,
            state,
            shards,
            routes,
            assets,
            metadata,
        };
        assert_eq!(commit.in_place_routes(), [false, false, true, false]);
        commit.mark_in_place(|_| true);
        assert_eq!(commit.metadata[IN_PLACE.0], "1 2 3");
        assert_eq!(
            (commit.in_place_routes(), commit.direct_routes()[1]),
            (vec![false, true, true, true], true)
        );
        commit.mark_in_place(|_| false);
        assert_eq!(commit.metadata.len(), 1);
    }
}
