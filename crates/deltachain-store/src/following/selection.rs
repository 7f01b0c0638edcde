//! Which tensors a subscriber takes.

use deltachain::{Error, Result};
use globset::{Glob, GlobSet, GlobSetBuilder};

/// Tensors whose names fit one of several patterns.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// Ascending, each once.
    patterns: Vec<String>,
    set: GlobSet,
}

impl Selection {
    /// # Errors
    /// USAGE if there is no pattern, or one that is none.
    pub(crate) fn new(mut patterns: Vec<String>) -> Result<Self> {
        if patterns.is_empty() {
            return Err(Error::usage("no tensor is wanted"));
        }
        patterns.sort_unstable();
        patterns.dedup();
        let unusable = |error: globset::Error| Error::usage(format!("the pattern cannot be used: {error}"));
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            set.add(Glob::new(pattern).map_err(unusable)?);
        }
        let set = set.build().map_err(unusable)?;
        Ok(Self { patterns, set })
    }

    pub(crate) fn patterns(&self) -> &[String] {
        &self.patterns
    }

    pub(crate) fn takes(&self, tensor: &str) -> bool {
        self.set.is_match(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns() {
        let patterns = ["lm_head.weight", "model.layers.{1,2}.*", "model.layers.1?.mlp.*", "größe*"];
        let selection = Selection::new(patterns.map(str::to_owned).to_vec()).unwrap();
        for taken in ["lm_head.weight", "model.layers.2.a.b", "model.layers.2.a/b", "model.layers.12.mlp.up", "größer"]
        {
            assert!(selection.takes(taken), "{taken}");
        }
        for left in ["lm_head.weights", "model.layers.3.a", "model.layers.21.a", "model.layers.1.", "LM_HEAD.weight"] {
            assert_eq!(selection.takes(left), left == "model.layers.1.", "{left}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for patterns in [&[][..], &["["], &["a", "{b"]] {
            let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
            assert!(Selection::new(patterns).is_err());
        }
        let twice = Selection::new(vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(twice.patterns(), ["a", "b"]);
    }
}
