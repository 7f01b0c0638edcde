//! Lists that come in pages. The store says whether another page follows, and it is not trusted: a
//! list that repeats itself, or has hardly any names, must end.
#![cfg_attr(
    not(feature = "servers"),
    allow(dead_code, reason = "only servers have pages")
)]

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Maximum number of names in a list, more than a chain with a million versions has.
const MOST_NAMES: u64 = 5_000_000;

/// Number of pages that may be empty. Stores may leave out objects that have been deleted.
const FREE_PAGES: u64 = 1000;

/// Minimum number of new names on each further page, on average. Stores list at least a thousand.
const NAMES_OF_PAGE: u64 = 10;

tokio::task_local! {
    /// The list that is fetched.
    pub(crate) static LISTING: Pages;
}

/// The pages of a list so far.
#[derive(Default)]
pub(crate) struct Pages(RefCell<Seen>);

#[derive(Default)]
struct Seen {
    hasher: RandomState,
    /// Hashes of the tokens that asked for pages.
    tokens: HashSet<u64>,
    /// Hashes of the names.
    names: HashSet<u64>,
    pages: u64,
    listed: u64,
}

impl Pages {
    /// Notes that a page is asked for, with this query.
    ///
    /// # Errors
    /// The reason why the list does not end.
    #[cfg(feature = "servers")]
    pub(crate) fn add_page(&self, query: &str) -> Result<(), String> {
        let mut seen = self.0.borrow_mut();
        seen.pages += 1;
        if let Some(token) = token_of(query) {
            let token = seen.hasher.hash_one(token);
            if !seen.tokens.insert(token) {
                let page = seen.pages;
                return Err(format!("page {page} was listed before"));
            }
        }
        let names = seen.names.len() as u64;
        if seen.pages > FREE_PAGES + names / NAMES_OF_PAGE {
            return Err(format!("{} pages have {names} names", seen.pages - 1));
        }
        Ok(())
    }

    /// Notes a name.
    ///
    /// # Errors
    /// The reason why the list does not end.
    pub(crate) fn add_name(&self, name: &str) -> Result<(), String> {
        let mut seen = self.0.borrow_mut();
        seen.listed += 1;
        if seen.listed > MOST_NAMES {
            return Err(format!("the list has more than {MOST_NAMES} names"));
        }
        let name = seen.hasher.hash_one(name);
        seen.names.insert(name);
        Ok(())
    }
}

/// The value by which a page is asked for: S3 and Google have a token, Azure a marker.
#[cfg(feature = "servers")]
fn token_of(query: &str) -> Option<&str> {
    query
        .split('&')
        .find_map(|part| match part.split_once('=') {
            Some(("continuation-token" | "marker" | "pageToken", value)) => Some(value),
            _ => None,
        })
}

#[cfg(all(test, feature = "servers"))]
mod tests {
    use super::*;

    fn page(number: u64) -> String {
        format!("list-type=2&continuation-token={number}&prefix=c%2F")
    }

    #[test]
    fn a_page_is_listed_once() {
        let pages = Pages::default();
        pages.add_page("list-type=2").unwrap();
        pages.add_page(&page(1)).unwrap();
        pages.add_page(&page(2)).unwrap();
        let why = pages.add_page(&page(1)).unwrap_err();
        assert!(why.contains("page 4 was listed before"), "{why}");
        let azure = Pages::default();
        azure.add_page("comp=list&marker=m").unwrap();
        assert!(azure.add_page("marker=m&comp=list").is_err());
    }

    #[test]
    fn pages_need_new_names() {
        // None at all, and always the same ones.
        for names in [0, 1000] {
            let pages = Pages::default();
            let fails = (0..10_000).find(|&number| {
                (0..names).for_each(|name| pages.add_name(&format!("{name}")).unwrap());
                pages.add_page(&page(number)).is_err()
            });
            assert!(fails.is_some_and(|page| page <= 1100), "{fails:?}");
        }
        // Full ones may go on.
        let pages = Pages::default();
        for number in 0..3000 {
            pages.add_page(&page(number)).unwrap();
            (0..20).for_each(|name| pages.add_name(&format!("{number} {name}")).unwrap());
        }
    }

    #[test]
    fn a_list_has_an_end_even_if_each_name_is_new() {
        let pages = Pages::default();
        pages.0.borrow_mut().listed = MOST_NAMES;
        assert!(
            pages
                .add_name("another")
                .unwrap_err()
                .contains("5000000 names")
        );
    }
}
