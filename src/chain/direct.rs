//! Which routes of a document are direct: a hint in its metadata (SPEC section 18).

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{Commit, Route, RoutesDocument};

/// The key of the hint.
const KEY: &str = "deltachain.direct";

/// The places of the routes that the metadata of their document mark as direct. Any text but the one form of such places is
/// no mark.
fn marked(metadata: &BTreeMap<String, String>, routes: &[Route]) -> BTreeSet<usize> {
    let places = metadata.get(KEY).and_then(|text| {
        let places = text.split(' ').map(|place| place.parse().ok()).collect::<Option<BTreeSet<usize>>>()?;
        let is_legal = value(&places) == *text && places.iter().all(|place| *place < routes.len());
        is_legal.then_some(places)
    });
    places.unwrap_or_default()
}

fn value(places: &BTreeSet<usize>) -> String {
    places.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

/// Marks these of the routes, in the place of what was marked before. Routes from nothing need no mark.
fn mark(metadata: &mut BTreeMap<String, String>, routes: &[Route], is_direct: impl Fn(&Route) -> bool) {
    let places = (0..).zip(routes).filter(|(_, route)| route.from.is_some() && is_direct(route));
    let places: BTreeSet<usize> = places.map(|(place, _)| place).collect();
    if places.is_empty() {
        metadata.remove(KEY);
    } else {
        metadata.insert(KEY.to_owned(), value(&places));
    }
}

/// For each of the routes, in order, whether it is known to be direct.
fn known(metadata: &BTreeMap<String, String>, routes: &[Route]) -> Vec<bool> {
    let marked = marked(metadata, routes);
    (0..).zip(routes).map(|(place, route)| route.from.is_none() || marked.contains(&place)).collect()
}

impl Commit {
    /// For each of the routes, in order, whether it is known to be direct: all values in its files are absolute, so that they
    /// can be decoded without a base. It comes from nothing, or the metadata say so, which are only a hint.
    pub fn direct_routes(&self) -> Vec<bool> {
        known(&self.metadata, &self.routes)
    }

    /// Says which of the routes are direct. To be called when they are in their order.
    pub fn mark_direct(&mut self, is_direct: impl Fn(&Route) -> bool) {
        mark(&mut self.metadata, &self.routes, is_direct);
    }
}

impl RoutesDocument {
    /// As [`Commit::direct_routes`].
    pub fn direct_routes(&self) -> Vec<bool> {
        known(&self.metadata, &self.routes)
    }

    /// As [`Commit::mark_direct`].
    pub fn mark_direct(&mut self, is_direct: impl Fn(&Route) -> bool) {
        mark(&mut self.metadata, &self.routes, is_direct);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::FileReference;
    use crate::tensor::Digest;

    fn document(from: &[Option<u64>], metadata: &[(&str, &str)]) -> RoutesDocument {
        let file = |size| FileReference { digest: Digest([7; 32]), size };
        let routes = (1..).zip(from).map(|(size, &from)| Route { from, files: vec![file(size)] });
        let metadata = metadata.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        RoutesDocument { version: 9, generation: 1, commit: Digest([1; 32]), routes: routes.collect(), metadata }
    }

    #[test]
    fn marks_are_read_in_their_one_form() {
        let from = [None, Some(1), Some(1), Some(2)];
        let read = |value: &str| document(&from, &[(KEY, value)]).direct_routes();
        assert_eq!(document(&from, &[]).direct_routes(), [true, false, false, false]);
        assert_eq!(read("1"), [true, true, false, false]);
        assert_eq!(read("0 2"), [true, false, true, false]);
        assert_eq!(read("1 2 3"), [true; 4]);
        for other in
            ["", " ", "1 ", " 1", "1  2", "2 1", "1 1", "01", "+1", "-1", "1,2", "1\t2", "4", "1 4", "x", "\u{661}"]
        {
            assert_eq!(read(other), [true, false, false, false], "{other:?}");
        }
        assert_eq!(read(&format!("1 {}", u128::MAX)), [true, false, false, false]);
        assert!(document(&[], &[(KEY, "0")]).direct_routes().is_empty());
    }

    #[test]
    fn marks_are_written_where_they_are_needed() {
        let from = [None, Some(1), Some(1), Some(2)];
        let marks = |document: &mut RoutesDocument, direct: &[u64]| {
            document.mark_direct(|route| direct.contains(&route.files[0].size));
            (document.metadata.get(KEY).cloned(), document.direct_routes())
        };
        let mut some = document(&from, &[(KEY, "0"), ("a", "b")]);
        assert_eq!(marks(&mut some, &[1, 3, 4]), (Some("2 3".to_owned()), vec![true, false, true, true]));
        assert_eq!(marks(&mut some, &[1]), (None, vec![true, false, false, false]));
        assert_eq!(some.metadata.len(), 1);
        let many = vec![Some(0); 12];
        let (value, direct) = marks(&mut document(&many, &[]), &[3, 11, 12]);
        assert_eq!(value.as_deref(), Some("2 10 11"));
        assert_eq!(direct.iter().filter(|direct| **direct).count(), 3);
    }
}
