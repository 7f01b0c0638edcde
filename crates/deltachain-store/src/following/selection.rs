//! The selection of shards and tensors by a subscriber.

use deltachain::{Error, Result};
use globset::{Glob, GlobSet, GlobSetBuilder};

/// The shards and tensors that a subscriber has selected.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// Ascending, each once; all if `None`.
    pub(crate) numbers: Option<Vec<usize>>,
    /// Ascending, each once; all tensors if `None`.
    pub(crate) patterns: Option<Vec<String>>,
    set: GlobSet,
}

impl Selection {
    /// Selects these shards, and the tensors whose names match one of these patterns: all if
    /// `None`, no tensors if the list of patterns is empty.
    ///
    /// # Errors
    /// USAGE if no shard is selected, or a pattern is malformed.
    pub(crate) fn new(numbers: Option<Vec<usize>>, patterns: Option<Vec<String>>) -> Result<Self> {
        let (numbers, patterns) = (numbers.map(ascending), patterns.map(ascending));
        if numbers.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::usage("no shard is selected"));
        }
        let unusable =
            |error: globset::Error| Error::usage(format!("the pattern cannot be used: {error}"));
        let mut set = GlobSetBuilder::new();
        for pattern in patterns.iter().flatten() {
            set.add(Glob::new(pattern).map_err(unusable)?);
        }
        Ok(Self {
            numbers,
            patterns,
            set: set.build().map_err(unusable)?,
        })
    }

    /// Returns the selected shards of a version with `of` shards.
    ///
    /// # Errors
    /// USAGE if it does not have one of them.
    pub(crate) fn shards(&self, version: u64, of: usize) -> Result<Vec<usize>> {
        let Some(wanted) = &self.numbers else {
            return Ok((0..of).collect());
        };
        match wanted.iter().find(|&&shard| shard >= of) {
            Some(shard) => Err(Error::usage(format!(
                "shard {shard} is selected, but version {version} has {of} shards, counted from 0"
            ))),
            None => Ok(wanted.clone()),
        }
    }

    /// Whether no tensor is selected, whatever its name.
    pub(crate) fn is_none(&self) -> bool {
        self.patterns.as_ref().is_some_and(Vec::is_empty)
    }

    pub(crate) fn takes(&self, tensor: &str) -> bool {
        self.patterns.is_none() || self.set.is_match(tensor)
    }
}

fn ascending<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns() {
        let patterns = [
            "lm_head.weight",
            "model.layers.{1,2}.*",
            "model.layers.1?.mlp.*",
            "größe*",
        ];
        let selection = Selection::new(None, Some(patterns.map(str::to_owned).to_vec())).unwrap();
        for taken in [
            "lm_head.weight",
            "model.layers.2.a.b",
            "model.layers.2.a/b",
            "model.layers.12.mlp.up",
            "größer",
        ] {
            assert!(selection.takes(taken), "{taken}");
        }
        for left in [
            "lm_head.weights",
            "model.layers.3.a",
            "model.layers.21.a",
            "model.layers.1.",
            "LM_HEAD.weight",
        ] {
            assert_eq!(selection.takes(left), left == "model.layers.1.", "{left}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for patterns in [&["["][..], &["a", "{b"]] {
            let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
            assert!(Selection::new(None, Some(patterns)).is_err());
        }
        let twice = Selection::new(
            None,
            Some(vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]),
        )
        .unwrap();
        assert_eq!(twice.patterns.unwrap(), ["a", "b"]);
    }
}
