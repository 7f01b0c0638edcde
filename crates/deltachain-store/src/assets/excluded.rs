//! Other files that a publisher leaves out, by patterns of their names.

use deltachain::{Error, Result};
use globset::{Glob, GlobMatcher};

/// Patterns of the names of files that are not published.
#[derive(Debug)]
pub(crate) struct Excluded {
    patterns: Vec<GlobMatcher>,
    /// Which of them have fitted a name.
    have_fitted: Vec<bool>,
}

impl Excluded {
    /// # Errors
    /// USAGE if a pattern is malformed.
    pub(crate) fn new(patterns: &[String]) -> Result<Self> {
        let matcher = |pattern: &String| match Glob::new(pattern) {
            Ok(glob) => Ok(glob.compile_matcher()),
            Err(error) => Err(Error::usage(format!(
                "the pattern of files to leave out cannot be used: {error}"
            ))),
        };
        Ok(Self {
            have_fitted: vec![false; patterns.len()],
            patterns: patterns.iter().map(matcher).collect::<Result<_>>()?,
        })
    }

    /// The first pattern that a name fits.
    pub(crate) fn pattern_of(&mut self, name: &str) -> Option<String> {
        let mut first = None;
        for (pattern, has_fitted) in self.patterns.iter().zip(&mut self.have_fitted) {
            if pattern.is_match(name) {
                *has_fitted = true;
                first = first.or(Some(pattern.glob().to_string()));
            }
        }
        first
    }

    /// The patterns that no name has fitted.
    pub(crate) fn unused(&self) -> Vec<String> {
        let all = self.patterns.iter().zip(&self.have_fitted);
        all.filter(|(_, has_fitted)| !**has_fitted)
            .map(|(pattern, _)| format!("{:?}", pattern.glob().to_string()))
            .collect()
    }
}
