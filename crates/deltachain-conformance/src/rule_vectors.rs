//! The vectors that break each rule, and the rules that may have fewer of them, with the reasons.

use std::collections::BTreeMap;
use std::fs;

use crate::cases::{Beside, Case, Expectation, cases_of};
use crate::index::Vector;
use crate::problem::{Problem, Result};
use crate::spec::Spec;
use crate::suite::Suite;

/// Minimum number of vectors that break a rule: a single one could be refused by chance.
pub(crate) const LEAST: usize = 2;
const EXCEPTIONS: &str = "exceptions.json";

/// Returns the vectors that break a rule, each with the cases that must be refused with a rule.
pub(crate) fn breaking<'a>(suite: &'a Suite, rule: &str) -> Vec<(&'a Vector, Vec<Case<'a>>)> {
    let naming = suite
        .index
        .vectors
        .iter()
        .filter(|vector| vector.rules.iter().any(|named| named == rule));
    let refused = naming.map(|vector| {
        let cases = cases_of(vector, Beside::default()).into_iter();
        let by_rule =
            |case: &Case<'_>| matches!(case.expectation, Expectation::Refusal(refusal) if refusal.rule.is_some());
        (vector, cases.filter(by_rule).collect::<Vec<_>>())
    });
    refused.filter(|(_, cases)| !cases.is_empty()).collect()
}

/// Rules that cannot have two vectors, or whose vectors cannot notice them, with the reason:
/// `exceptions.json`.
#[derive(Debug)]
pub(crate) struct Exceptions(BTreeMap<String, String>);

impl Exceptions {
    pub(crate) fn read(suite: &Suite, spec: &Spec) -> Result<Self> {
        let path = suite.path(EXCEPTIONS);
        let text = fs::read_to_string(&path).map_err(Problem::with_file(&path))?;
        let reasons: BTreeMap<String, String> =
            serde_json::from_str(&text).map_err(Problem::with_file(&path))?;
        let unknown = reasons
            .keys()
            .find(|id| !spec.rules.iter().any(|rule| rule.id == **id));
        match unknown {
            Some(id) => Err(Problem::failed(format!(
                "{}: there is no rule {id}",
                path.display()
            ))),
            None => Ok(Self(reasons)),
        }
    }

    pub(crate) fn reason(&self, rule: &str) -> Option<&str> {
        self.0.get(rule).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_rule_of_a_reader_is_broken_by_enough_vectors() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
        let suite = Suite::load(Some(&folder)).unwrap_or_else(|problem| panic!("{problem}"));
        let spec = Spec::new();
        let exceptions =
            Exceptions::read(&suite, &spec).unwrap_or_else(|problem| panic!("{problem}"));
        let lacking = spec
            .rules
            .iter()
            .map(|rule| (rule.id.as_str(), breaking(&suite, &rule.id).len()));
        let lacking: Vec<_> = lacking
            .filter(|&(id, count)| count < LEAST && exceptions.reason(id).is_none())
            .collect();
        assert!(
            lacking.is_empty(),
            "rules with fewer than {LEAST} vectors that break them: {lacking:?}"
        );
    }
}
