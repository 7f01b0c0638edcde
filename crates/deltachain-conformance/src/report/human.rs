//! The report for people: a table, the coverage of rules, and details of each failure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};

use crate::judge::wanted;
use crate::problem::{Problem, Result};
use crate::report::{CaseResult, Counts, Report, Status};
use crate::table::{Align, layout};

/// Prints the report on standard output. `line` is the row about this reader for the list of
/// implementations.
pub(crate) fn print(report: &Report<'_>, line: Option<&str>) -> Result {
    let mut text = String::new();
    for result in report.bad() {
        text.push_str(&failure(report, result));
        text.push('\n');
    }
    for part in [operations(report), rules(report), remarks(report)] {
        text.push_str(&part);
        text.push('\n');
    }
    if let Some(line) = line {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "for conformance/implementations.md:\n{line}\n");
    }
    let colour = if report.is_good() {
        AnsiColor::Green
    } else {
        AnsiColor::Red
    };
    let style = colour.on_default().bold();
    show(&format!("{text}{style}{}{style:#}", report.summary()))
}

/// Prints lines on standard output. A closed pipe, as from `head`, is not an error.
pub(crate) fn show(text: &str) -> Result {
    let mut stdout = anstream::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Problem::failed(error)),
        _ => Ok(()),
    }
}

fn operations(report: &Report<'_>) -> String {
    let mut rows: BTreeMap<_, Counts> = BTreeMap::new();
    for result in &report.results {
        rows.entry((result.case.vector.kind, result.case.operation))
            .or_default()
            .add(result.status());
    }
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|((kind, operation), counts)| {
            row(&format!("{} {}", kind.name(), operation.label()), *counts)
        })
        .collect();
    cells.push(row("all", report.counts()));
    let right = |title| (title, Align::Right);
    let columns = [
        ("cases of", Align::Left),
        right("cases"),
        right("passed"),
        right("failed"),
        right("skipped"),
        right("expected failures"),
    ];
    format!("{}\n", layout(&columns, &cells))
}

fn row(name: &str, counts: Counts) -> Vec<String> {
    let failed = counts.failed + counts.unexpected_passes;
    let numbers = [
        counts.cases,
        counts.passed,
        failed,
        counts.skipped,
        counts.expected_failures,
    ];
    std::iter::once(name.to_owned())
        .chain(numbers.iter().map(ToString::to_string))
        .collect()
}

/// Makes a line per section, with the names of the rules that no refusal has shown.
fn rules(report: &Report<'_>) -> String {
    let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
    for chunk in report
        .coverage
        .chunk_by(|left, right| left.section == right.section)
    {
        let section = chunk[0].section;
        let sum = |number: &dyn Fn(&crate::report::RuleCoverage<'_>) -> usize| {
            chunk.iter().map(number).sum::<usize>()
        };
        let missing: Vec<&str> = chunk
            .iter()
            .filter(|rule| rule.passed == 0)
            .map(|rule| rule.rule)
            .collect();
        let title = report.spec.title(section).unwrap_or_default();
        sections.push((
            section,
            vec![
                format!("{section} {title}"),
                chunk.len().to_string(),
                sum(&|rule| usize::from(rule.passed > 0)).to_string(),
                sum(&|rule| rule.cases).to_string(),
                sum(&|rule| rule.passed).to_string(),
                missing.join(" "),
            ],
        ));
    }
    let rows: Vec<Vec<String>> = sections.into_iter().map(|(_, cells)| cells).collect();
    let columns = [
        ("rules of section", Align::Left),
        ("rules", Align::Right),
        ("shown", Align::Right),
        ("cases", Align::Right),
        ("passed", Align::Right),
        ("not shown", Align::Left),
    ];
    format!("{}\n", layout(&columns, &rows))
}

fn remarks(report: &Report<'_>) -> String {
    let (other, none) = report.other_rules();
    if other + none == 0 {
        return String::new();
    }
    format!(
        "{other} answers have the right class but another rule id, {none} have the right class \
         but no rule id\n"
    )
}

fn failure(report: &Report<'_>, result: &CaseResult<'_>) -> String {
    let bad = AnsiColor::Red.on_default().bold();
    let dim = Style::new().dimmed();
    let vector = result.case.vector;
    let mut text = format!(
        "{bad}{}{bad:#}: {}\n",
        result.status().name(),
        result.case.id
    );
    let got = match result.status() {
        Status::UnexpectedPass => {
            "what was expected; take the case off the list of failures".to_owned()
        }
        _ => result.got().unwrap_or_default(),
    };
    let lines = [
        ("expected", Some(wanted(result.case))),
        ("got", Some(got)),
        ("reason", Some(vector.reason.clone())),
        (
            "rules",
            (!vector.rules.is_empty()).then(|| vector.rules.join(" ")),
        ),
        ("file", Some(vector.file.clone())),
        ("twin", vector.twin.clone()),
        ("made by", Some(vector.generator.clone())),
        ("read", Some(report.spec.describe(&vector.section))),
        (
            "stderr",
            (!result.stderr.is_empty()).then(|| result.stderr.join("\n")),
        ),
    ];
    for (name, value) in lines {
        let Some(value) = value else { continue };
        for (place, line) in value.lines().enumerate() {
            let name = if place == 0 { name } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {dim}{name:<9}{dim:#} {}", printable(line));
        }
    }
    text
}

/// Escapes foreign text for a terminal.
fn printable(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}
