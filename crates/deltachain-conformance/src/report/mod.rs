//! The report of a run: the results of all cases, and the coverage of rules. `human`, `json` and
//! `junit` show it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::cases::{Case, Expectation};
use crate::judge::Verdict;
use crate::session::Asked;
use crate::spec::Spec;
use crate::suite::Suite;

pub(crate) mod human;
pub(crate) mod json;
pub(crate) mod junit;
pub(crate) mod listing;

/// Result of one case.
#[derive(Debug)]
pub(crate) struct CaseResult<'a> {
    pub(crate) case: &'a Case<'a>,
    outcome: Outcome,
    /// True if the case is listed as known to fail.
    listed: bool,
    pub(crate) stderr: Vec<String>,
    pub(crate) time: Duration,
}

#[derive(Debug)]
enum Outcome {
    Right,
    /// The answer is right, except for the rule id, which is wrong or missing.
    OtherRule(Option<String>),
    Failed(String),
    Skipped(String),
}

/// Meaning of a result for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    Passed,
    Failed,
    Skipped,
    /// The case failed, and is listed as known to fail.
    ExpectedFailure,
    /// The case passed although it is listed as known to fail.
    UnexpectedPass,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::ExpectedFailure => "expected failure",
            Self::UnexpectedPass => "unexpected pass",
        }
    }

    fn is_good(self) -> bool {
        !matches!(self, Self::Failed | Self::UnexpectedPass)
    }
}

impl<'a> CaseResult<'a> {
    fn new(case: &'a Case<'a>, outcome: Outcome) -> Self {
        Self {
            case,
            outcome,
            listed: false,
            stderr: Vec::new(),
            time: Duration::ZERO,
        }
    }

    pub(crate) fn skipped(case: &'a Case<'a>, why: String) -> Self {
        Self::new(case, Outcome::Skipped(why))
    }

    pub(crate) fn failed(case: &'a Case<'a>, why: String) -> Self {
        Self::new(case, Outcome::Failed(why))
    }

    pub(crate) fn asked(case: &'a Case<'a>, asked: Asked) -> Self {
        let outcome = match asked.verdict {
            Verdict::Right => Outcome::Right,
            Verdict::OtherRule(rule) => Outcome::OtherRule(rule),
            Verdict::Wrong(wrong) => Outcome::Failed(wrong),
        };
        Self {
            stderr: asked.stderr,
            time: asked.time,
            ..Self::new(case, outcome)
        }
    }

    pub(crate) fn listed(self, listed: bool) -> Self {
        Self { listed, ..self }
    }

    pub(crate) fn status(&self) -> Status {
        match (&self.outcome, self.listed) {
            (Outcome::Right | Outcome::OtherRule(_), false) => Status::Passed,
            (Outcome::Right | Outcome::OtherRule(_), true) => Status::UnexpectedPass,
            (Outcome::Failed(_), false) => Status::Failed,
            (Outcome::Failed(_), true) => Status::ExpectedFailure,
            (Outcome::Skipped(_), _) => Status::Skipped,
        }
    }

    /// Describes the answer, unless it is the expected one.
    pub(crate) fn got(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Right => None,
            Outcome::OtherRule(Some(rule)) => Some(format!("the right class, but {rule}")),
            Outcome::OtherRule(None) => Some("the right class, but no rule".to_owned()),
            Outcome::Failed(why) | Outcome::Skipped(why) => Some(why.clone()),
        }
    }
}

/// All results, and the coverage of the rules that readers check.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) spec_version: &'a str,
    /// The versions of SPEC.md for which the testee was tested.
    pub(crate) format: String,
    pub(crate) spec: &'a Spec,
    pub(crate) results: Vec<CaseResult<'a>>,
    pub(crate) coverage: Vec<RuleCoverage<'a>>,
}

/// The cases in which a rule must be reported.
#[derive(Debug)]
pub(crate) struct RuleCoverage<'a> {
    pub(crate) rule: &'a str,
    pub(crate) section: &'a str,
    pub(crate) cases: usize,
    pub(crate) passed: usize,
}

/// Number of results of each status.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) cases: usize,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) expected_failures: usize,
    pub(crate) unexpected_passes: usize,
}

impl Counts {
    pub(crate) fn add(&mut self, status: Status) {
        self.cases += 1;
        *match status {
            Status::Passed => &mut self.passed,
            Status::Failed => &mut self.failed,
            Status::Skipped => &mut self.skipped,
            Status::ExpectedFailure => &mut self.expected_failures,
            Status::UnexpectedPass => &mut self.unexpected_passes,
        } += 1;
    }
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        suite: &'a Suite,
        format: String,
        results: Vec<CaseResult<'a>>,
        spec: &'a Spec,
    ) -> Self {
        let coverage = spec.rules.iter().map(|rule| {
            let mut coverage = RuleCoverage {
                rule: &rule.id,
                section: &rule.section,
                cases: 0,
                passed: 0,
            };
            for result in &results {
                let Expectation::Refusal(refusal) = result.case.expectation else {
                    continue;
                };
                if refusal.rule.as_ref() == Some(&rule.id) {
                    coverage.cases += 1;
                    coverage.passed += usize::from(matches!(
                        result.outcome,
                        Outcome::Right | Outcome::OtherRule(_)
                    ));
                }
            }
            coverage
        });
        Self {
            spec_version: &suite.index.spec,
            format,
            spec,
            coverage: coverage.collect(),
            results,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.results.iter().all(|result| result.status().is_good())
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.results
            .iter()
            .for_each(|result| counts.add(result.status()));
        counts
    }

    /// Returns the results that make the run fail.
    pub(crate) fn bad(&self) -> impl Iterator<Item = &CaseResult<'a>> {
        self.results
            .iter()
            .filter(|result| !result.status().is_good())
    }

    /// Returns the number of answers with another rule than expected, and of those without a rule.
    pub(crate) fn other_rules(&self) -> (usize, usize) {
        let count = |some: bool| {
            let odd = |result: &&CaseResult<'_>| matches!(&result.outcome, Outcome::OtherRule(rule) if rule.is_some() == some);
            self.results.iter().filter(odd).count()
        };
        (count(true), count(false))
    }

    /// Describes the run in one line.
    pub(crate) fn summary(&self) -> String {
        let vectors: BTreeSet<&str> = self
            .results
            .iter()
            .map(|result| result.case.vector.id.as_str())
            .collect();
        let counts = self.counts();
        let mut text = format!(
            "conformance with {}: {} vectors, {} cases: {} passed, {} failed, {} skipped",
            self.format,
            vectors.len(),
            counts.cases,
            counts.passed,
            counts.failed,
            counts.skipped
        );
        for (count, what) in [
            (counts.expected_failures, "expected failures"),
            (counts.unexpected_passes, "unexpected passes"),
        ] {
            if count > 0 {
                // Writing to a string cannot fail.
                let _ = write!(text, ", {count} {what}");
            }
        }
        let covered = self.coverage.iter().filter(|rule| rule.passed > 0).count();
        // Rounded down, so that 100 % means all rules.
        let percent = 100 * covered / self.coverage.len().max(1);
        format!(
            "{text}; rules {covered} of {} ({percent} %)",
            self.coverage.len()
        )
    }
}
