//! The report for programs: one JSON object.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::judge::wanted;
use crate::problem::{Problem, Result};
use crate::report::Report;

/// Writes the report to a file.
pub(crate) fn write(report: &Report<'_>, path: &Path) -> Result {
    let cases: Vec<Value> = report
        .results
        .iter()
        .map(|result| {
            json!({
                "case": result.case.id,
                "status": result.status().name(),
                "expected": wanted(result.case),
                "got": result.got(),
                "seconds": result.time.as_secs_f64(),
            })
        })
        .collect();
    let rules: Vec<Value> = report
        .coverage
        .iter()
        .map(|rule| json!({ "rule": rule.rule, "section": rule.section, "cases": rule.cases, "passed": rule.passed }))
        .collect();
    let counts = report.counts();
    let (other, none) = report.other_rules();
    let whole = json!({
        "good": report.is_good(),
        "spec": report.spec_version,
        "format": report.format,
        "summary": report.summary(),
        "counts": {
            "cases": counts.cases,
            "passed": counts.passed,
            "failed": counts.failed,
            "skipped": counts.skipped,
            "expected_failures": counts.expected_failures,
            "unexpected_passes": counts.unexpected_passes,
            "other_rule": other,
            "no_rule": none,
        },
        "rules": rules,
        "cases": cases,
    });
    fs::write(path, format!("{whole:#}\n")).map_err(Problem::with_file(path))
}
