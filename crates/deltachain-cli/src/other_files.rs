//! Tells the user about files of a model's directory that no link covers, such as configuration and
//! tokenizer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use deltachain::Result;
use deltachain::files::SafetensorsState;
use serde_json::{Value, json};

use crate::interrupt;
use crate::output::{Output, printable};

/// Maximum number of names that are shown to people.
const SHOWN: usize = 8;

/// Files that a link does not carry.
#[derive(Debug, Default)]
pub(crate) struct NotCovered {
    /// Other files in the target's directory.
    names: Vec<String>,
    /// Other files of base or target that differ, or are missing in one of them.
    differing: Vec<String>,
    /// Parts of the target's directory that were not read.
    left_out: Vec<String>,
}

impl NotCovered {
    /// Finds the other files of the target, and compares them with those of the base if both are
    /// directories.
    pub(crate) fn by_link(
        base: Option<&SafetensorsState>,
        target: &SafetensorsState,
    ) -> Result<Self> {
        let (names, left_out) = (target.other_files(), target.left_out().to_vec());
        let mut differing = Vec::new();
        if let Some(base) =
            base.filter(|base| base.layout().is_directory() && target.layout().is_directory())
        {
            let all: BTreeSet<String> = base
                .other_files()
                .into_iter()
                .chain(names.iter().cloned())
                .collect();
            for name in all {
                interrupt::check()?;
                // A file that cannot be read counts as different.
                if !same_content(&base.path().join(&name), &target.path().join(&name))
                    .unwrap_or(false)
                {
                    differing.push(name);
                }
            }
        }
        Ok(Self {
            names,
            differing,
            left_out,
        })
    }

    /// Prints remarks for people.
    pub(crate) fn remark(&self, output: Output) {
        if !self.names.is_empty() {
            output.remark(&format!(
                "note: a link carries tensors only; not covered: {}",
                list(&self.names)
            ));
        }
        if !self.differing.is_empty() {
            output.remark(&format!(
                "note: not covered, although they differ in base and target: {}",
                list(&self.differing)
            ));
        }
        remark_left_out(&self.left_out, output);
    }

    /// Adds the names to a JSON object.
    pub(crate) fn add_to(&self, object: &mut Value) {
        object["not_covered"] = json!(self.names);
        object["not_covered_differing"] = json!(self.differing);
        object["left_out"] = json!(self.left_out);
    }
}

/// Prints a remark about parts of a state's directory that were not read.
pub(crate) fn remark_left_out(left_out: &[String], output: Output) {
    if !left_out.is_empty() {
        output.remark(&format!("note: left out: {}", list(left_out)));
    }
}

/// Lists names for a sentence. Cuts a long list.
pub(crate) fn list(names: &[String]) -> String {
    let mut shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| printable(name))
        .collect();
    if names.len() > SHOWN {
        shown.push(format!("and {} more", names.len() - SHOWN));
    }
    shown.join(", ")
}

fn same_content(left: &Path, right: &Path) -> io::Result<bool> {
    let (left, right) = (File::open(left)?, File::open(right)?);
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(false);
    }
    let mut theirs = BufReader::new(right).bytes();
    for byte in BufReader::new(left).bytes() {
        if theirs.next().transpose()? != Some(byte?) {
            return Ok(false);
        }
    }
    Ok(theirs.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_compared() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let long = vec![7; 100_000];
        let mut other = long.clone();
        other[99_999] = 8;
        let a = file("a", &long);
        let b = file("b", &long);
        let c = file("c", &other);
        let d = file("d", b"x");
        assert!(same_content(&a, &b).unwrap());
        assert!(!same_content(&a, &c).unwrap());
        assert!(!same_content(&a, &d).unwrap());
        assert!(same_content(&a, &directory.path().join("missing")).is_err());
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(list(&names), "0, 1, 2, 3, 4, 5, 6, 7, and 2 more");
    }
}
