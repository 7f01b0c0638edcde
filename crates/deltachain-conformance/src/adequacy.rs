//! `adequacy`: checks that the vectors notice a reader that does not check a rule. It switches each
//! rule off in the reference library in turn; the answers to the vectors that break the rule must
//! then change.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::args::AdequacyArgs;
use crate::cases::{Case, Expectation, cases};
use crate::judge::Verdict;
use crate::problem::{Problem, Result};
use crate::report::human::show;
use crate::rule_vectors::{Exceptions, LEAST, breaking};
use crate::run::meter;
use crate::session::Session;
use crate::spec::{Spec, SpecRule};
use crate::suite::Suite;
use crate::table::{Align, layout};
use crate::workshop::Workshop;

const TIMEOUT: Duration = Duration::from_mins(1);
/// Shorter, because a library that does not check a rule may compute or read forever; that counts
/// as noticed, too.
const TIMEOUT_WITHOUT_A_RULE: Duration = Duration::from_secs(5);

const PAGE: &str = "maintaining.md";
const BEGIN: &str = "<!-- adequacy: begin -->\n";
const END: &str = "<!-- adequacy: end -->";

/// Effect of switching a rule off.
struct Measured<'a> {
    rule: &'a SpecRule,
    /// Number of vectors that break the rule.
    vectors: usize,
    /// Number of vectors with another answer without the rule: another class or rule, acceptance,
    /// or a crash.
    noticed: usize,
    /// Number of vectors among them whose class changes, or that are accepted.
    by_class: usize,
}

/// Measures all rules. The exit code says whether the vectors are good enough.
pub(crate) fn run(args: &AdequacyArgs) -> Result<ExitCode> {
    let suite = Suite::load(args.vectors.as_deref())?;
    let spec = Spec::new();
    let exceptions = Exceptions::read(&suite, &spec)?;
    let mut workshop = Workshop::new(&suite)?;
    let mut flaws = baselines(&cases(&suite), &mut workshop)?;

    let bar = meter("rules", spec.rules.len());
    let mut measured = Vec::with_capacity(spec.rules.len());
    for rule in &spec.rules {
        let result = measure(rule, &suite, &mut workshop)?;
        flaws.extend(flaw(&result, &exceptions));
        measured.push(result);
        bar.inc(1);
    }
    bar.finish_and_clear();

    show(&format!("{}\n", table(&measured, &spec)))?;
    for rule in &spec.rules {
        if let Some(reason) = exceptions.reason(&rule.id) {
            show(&format!("exception: {}: {reason}", rule.id))?;
        }
    }
    let summary = summary(&measured);
    let text = format!("{summary}\n\n{}", markdown(&measured, &spec));
    if flaws.is_empty() {
        flaws.extend(update(&suite.path(PAGE), &text, args.check)?);
    }
    for flaw in &flaws {
        show(&format!("failed: {flaw}"))?;
    }
    show(&summary)?;
    Ok(if flaws.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts this program as a testee.
fn start(arguments: &[&str], timeout: Duration) -> Result<Session> {
    let program = std::env::current_exe().map_err(Problem::failed)?;
    let program = program
        .to_str()
        .ok_or_else(|| Problem::failed("the path of this program is not Unicode"))?;
    let words = [program, "testee"]
        .into_iter()
        .chain(arguments.iter().copied());
    Session::start(&shlex::try_join(words).map_err(Problem::failed)?, timeout)
}

/// Checks three testees: the reference must pass everything, one that accepts everything must fail
/// wherever a refusal is expected, and one that refuses everything must fail wherever none is.
fn baselines(cases: &[Case<'_>], workshop: &mut Workshop<'_>) -> Result<Vec<String>> {
    let is_refusal = |case: &Case<'_>| matches!(case.expectation, Expectation::Refusal(_));
    let all = |_: &Case<'_>| true;
    let accepted = |case: &Case<'_>| !is_refusal(case);
    let mut flaws = Vec::new();
    for (arguments, concerned, must_pass) in [
        (&[][..], &all as &dyn Fn(&Case<'_>) -> bool, true),
        (&["--always", "valid"], &is_refusal, false),
        (&["--always", "invalid"], &accepted, false),
    ] {
        let mut session = start(arguments, TIMEOUT)?;
        let name = format!("testee {}", arguments.join(" "));
        let bar = meter(&name, cases.len());
        for case in cases {
            bar.inc(1);
            if !concerned(case) {
                continue;
            }
            let passes = match session.unsupported(case) {
                Some(_) => false,
                None if must_pass => session.ask(case, workshop)?.verdict == Verdict::Right,
                None => !matches!(session.ask(case, workshop)?.verdict, Verdict::Wrong(_)),
            };
            if passes != must_pass {
                flaws.push(format!(
                    "{}: {name} {}",
                    case.id,
                    if passes { "passes" } else { "does not pass" }
                ));
            }
        }
        bar.finish_and_clear();
    }
    Ok(flaws)
}

fn measure<'a>(
    rule: &'a SpecRule,
    suite: &Suite,
    workshop: &mut Workshop<'_>,
) -> Result<Measured<'a>> {
    let vectors = breaking(suite, &rule.id);
    let mut measured = Measured {
        rule,
        vectors: vectors.len(),
        noticed: 0,
        by_class: 0,
    };
    if vectors.is_empty() {
        return Ok(measured);
    }
    let mut session = start(&["--without-rule", &rule.id], TIMEOUT_WITHOUT_A_RULE)?;
    for (_, cases) in &vectors {
        let mut noticed = false;
        let mut by_class = false;
        for case in cases {
            match session.ask(case, workshop)?.verdict {
                Verdict::Right => {}
                Verdict::OtherRule(_) => noticed = true,
                Verdict::Wrong(_) => (noticed, by_class) = (true, true),
            }
        }
        measured.noticed += usize::from(noticed);
        measured.by_class += usize::from(by_class);
    }
    Ok(measured)
}

/// Returns the defect of a rule's vectors, unless an exception explains it; or the exception, if
/// there is no defect to explain.
fn flaw(measured: &Measured<'_>, exceptions: &Exceptions) -> Option<String> {
    let Measured {
        rule: SpecRule { id, .. },
        vectors,
        noticed,
        ..
    } = measured;
    let lacking = if *vectors < LEAST {
        Some(format!(
            "{id}: {vectors} vectors break it, less than {LEAST}"
        ))
    } else if *noticed == 0 {
        Some(format!(
            "{id}: none of the {vectors} vectors notices that it is not checked"
        ))
    } else {
        None
    };
    match (lacking, exceptions.reason(id)) {
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some(format!(
            "{id}: there is an exception for it, but it needs none"
        )),
        (lacking, None) => lacking,
    }
}

fn cells(measured: &Measured<'_>, spec: &Spec) -> Vec<String> {
    let Measured {
        rule,
        vectors,
        noticed,
        by_class,
    } = measured;
    let section = format!(
        "{} {}",
        rule.section,
        spec.title(&rule.section).unwrap_or_default()
    );
    vec![
        rule.id.clone(),
        vectors.to_string(),
        noticed.to_string(),
        by_class.to_string(),
        section,
    ]
}

const TITLES: [&str; 5] = ["rule", "vectors", "noticed", "by class", "section"];

fn table(measured: &[Measured<'_>], spec: &Spec) -> String {
    let aligns = [
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Left,
    ];
    let columns: Vec<(&str, Align)> = TITLES.into_iter().zip(aligns).collect();
    layout(
        &columns,
        &measured
            .iter()
            .map(|measured| cells(measured, spec))
            .collect::<Vec<_>>(),
    )
}

fn markdown(measured: &[Measured<'_>], spec: &Spec) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = row(&TITLES.map(str::to_owned));
    text.push_str("|---|--:|--:|--:|---|\n");
    text.extend(measured.iter().map(|measured| row(&cells(measured, spec))));
    text
}

fn summary(measured: &[Measured<'_>]) -> String {
    let sum = |number: &dyn Fn(&Measured<'_>) -> usize| measured.iter().map(number).sum::<usize>();
    format!(
        "adequacy: {} rules; {} noticed when switched off, {} by class; of {} vectors {} notice, \
         {} by class",
        measured.len(),
        sum(&|rule| usize::from(rule.noticed > 0)),
        sum(&|rule| usize::from(rule.by_class > 0)),
        sum(&|rule| rule.vectors),
        sum(&|rule| rule.noticed),
        sum(&|rule| rule.by_class),
    )
}

/// Writes the text between the markers of a file, or compares the two. Returns the difference, if
/// there is one.
fn update(path: &Path, text: &str, check: bool) -> Result<Option<String>> {
    let whole = fs::read_to_string(path).map_err(Problem::with_file(path))?;
    let parts = whole
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
    let Some((before, (old, after))) = parts else {
        return Err(Problem::failed(format!(
            "{}: there are no markers for the table",
            path.display()
        )));
    };
    let new = format!("\n{text}\n");
    if old == new {
        return Ok(None);
    }
    if check {
        let message = format!(
            "{}: the table is not this one; run adequacy without --check",
            path.display()
        );
        return Ok(Some(message));
    }
    fs::write(path, format!("{before}{BEGIN}{new}{END}{after}"))
        .map_err(Problem::with_file(path))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_between_its_markers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PAGE);
        fs::write(&path, format!("before\n{BEGIN}{END}\nafter\n")).unwrap();
        assert!(update(&path, "table\n", true).unwrap().is_some());
        assert_eq!(update(&path, "table\n", false).unwrap(), None);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("before\n{BEGIN}\ntable\n\n{END}\nafter\n")
        );
        assert_eq!(update(&path, "table\n", true).unwrap(), None);
        assert!(update(&path, "other\n", true).unwrap().is_some());
        fs::write(&path, "no markers").unwrap();
        assert!(update(&path, "table\n", false).is_err());
    }
}
