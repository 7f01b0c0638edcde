//! The line for a reader that passes, to paste into `conformance/implementations.md`.

use std::collections::BTreeSet;

use crate::cases::Operation;
use crate::report::{Report, Status};

/// Makes a row of that table for the testee of this name; `None` if it failed a case, or passed
/// none.
pub(crate) fn line(testee: &str, report: &Report<'_>) -> Option<String> {
    let counts = report.counts();
    if counts.passed == 0 || counts.passed + counts.skipped < counts.cases {
        return None;
    }
    let passed = report
        .results
        .iter()
        .filter(|result| result.status() == Status::Passed);
    let operations: BTreeSet<_> = passed.map(|result| result.case.operation).collect();
    let mut names: Vec<&str> = operations.into_iter().map(Operation::name).collect();
    names.dedup();
    let rules = report
        .coverage
        .iter()
        .filter(|rule| rule.passed > 0)
        .count();
    Some(format!(
        "| {} | {} | {} | {} of {} | {rules} of {} |",
        cell(testee),
        report.format,
        names.join(", "),
        counts.passed,
        counts.cases,
        report.coverage.len()
    ))
}

/// Escapes foreign text for a row and for a terminal.
fn cell(text: &str) -> String {
    text.escape_debug().to_string().replace('|', "\\|")
}
