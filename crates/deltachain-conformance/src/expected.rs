//! The list of cases that are known to fail: ids, one per line; `#` begins a comment.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use crate::cases::Case;
use crate::problem::{Problem, Result};

/// Ids of cases that are known to fail.
#[derive(Debug, Default)]
pub(crate) struct ExpectedFailures(HashSet<String>);

impl ExpectedFailures {
    /// Reads a list; all its ids must be ids of cases.
    pub(crate) fn read(path: &Path, cases: &[Case<'_>]) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Problem::with_file(path))?;
        let known: HashSet<&str> = cases.iter().map(|case| case.id.as_str()).collect();
        let mut listed = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let id = without_comment(line);
            if id.is_empty() {
                continue;
            }
            let flaw = if !known.contains(id) {
                "there is no such case"
            } else if listed.insert(id.to_owned(), number).is_some() {
                "listed twice"
            } else {
                continue;
            };
            return Err(Problem::failed(format!(
                "{}, line {number}: {id}: {flaw}",
                path.display()
            )));
        }
        Ok(Self(listed.into_keys().collect()))
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.0.contains(id)
    }
}

/// Removes a comment. Ids contain a `#`, too; the one that begins a comment is the first character
/// of the line or follows a blank.
fn without_comment(line: &str) -> &str {
    let begins = |&(place, _): &(usize, &str)| {
        line[..place]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace)
    };
    let end = line
        .match_indices('#')
        .find(begins)
        .map_or(line.len(), |(place, _)| place);
    line[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_after_a_blank() {
        for (line, id) in [
            ("links/a/b#check", "links/a/b#check"),
            (" links/a/b#check # why", "links/a/b#check"),
            ("# links/a/b#check", ""),
            ("", ""),
        ] {
            assert_eq!(without_comment(line), id);
        }
    }
}
