//! Patterns for the other files that a publisher leaves out.

use deltachain::{Error, Result};
use globset::{Glob, GlobMatcher};

/// Patterns of the names of files that are not published.
#[derive(Debug)]
pub(crate) struct Excluded {
    patterns: Vec<GlobMatcher>,
    /// True for each pattern that has matched a name.
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

    /// Returns the first pattern that matches a name.
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

    /// Returns the patterns that have matched no name.
    pub(crate) fn unused(&self) -> Vec<String> {
        let all = self.patterns.iter().zip(&self.have_fitted);
        all.filter(|(_, has_fitted)| !**has_fitted)
            .map(|(pattern, _)| format!("{:?}", pattern.glob().to_string()))
            .collect()
    }
}
