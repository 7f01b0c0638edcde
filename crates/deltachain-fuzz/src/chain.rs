//! Properties of chains.

use deltachain::chain::{ChainDocument, Commit, RoutesDocument};
use deltachain::{Limits, Result};

use crate::memory::peak_of;
use crate::raw::refused_by_rule;

/// Any bytes as each kind of document.
pub fn document(data: &[u8]) {
    let limits = Limits::default();
    has_one_form(data, || ChainDocument::parse(data, &limits), |document| Ok(document.to_bytes()));
    has_one_form(data, || Commit::parse(data, &limits), Commit::to_bytes);
    has_one_form(data, || RoutesDocument::parse(data, &limits), RoutesDocument::to_bytes);
}

/// What is read takes memory in proportion to its text, and is written as it was.
fn has_one_form<T>(data: &[u8], parse: impl FnOnce() -> Result<T>, write: impl FnOnce(&T) -> Result<Vec<u8>>) {
    let (document, peak) = peak_of(parse);
    refused_by_rule(&document);
    let bound = 4096 + 4 * data.len() as u64;
    assert!(peak <= bound, "{} bytes made the reader allocate {peak}, at most {bound}", data.len());
    if let Ok(document) = document {
        assert_eq!(write(&document).expect("what was read can be written"), data, "the document has another form");
    }
}
