//! `run`: sends all cases to a testee and reports the results.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::RunArgs;
use crate::cases::{Case, cases};
use crate::expected::ExpectedFailures;
use crate::judge::Verdict;
use crate::problem::{Problem, Result};
use crate::report::{CaseResult, Report, human, json, junit, listing};
use crate::session::{Session, Unasked};
use crate::spec::Spec;
use crate::suite::Suite;
use crate::workshop::Workshop;

/// Runs the selected cases. The exit code says whether anything unexpected happened.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let suite = Suite::load(args.vectors.as_deref())?;
    let all = cases(&suite);
    let expected = args
        .expected_failures
        .as_deref()
        .map(|path| ExpectedFailures::read(path, &all));
    let expected = expected.transpose()?.unwrap_or_default();
    let chosen: Vec<&Case<'_>> = all
        .iter()
        .filter(|case| args.only.as_ref().is_none_or(|text| case.id.contains(text)))
        .collect();
    if chosen.is_empty() {
        return Err(Problem::usage(format!(
            "no case has {:?} in its id",
            args.only.as_deref().unwrap_or_default()
        )));
    }
    let session = Session::start(&args.testee, Duration::from_secs(args.timeout.get()))?;
    let format = session.format();
    let testee = session.name().to_owned();
    let results = ask_all(&chosen, session, &suite, args, &expected)?;
    let spec = Spec::new();
    let report = Report::new(&suite, format, results, &spec);
    if let Some(path) = &args.junit {
        junit::write(&report, path)?;
    }
    if let Some(path) = &args.json {
        json::write(&report, path)?;
    }
    // The list of implementations has rows for whole runs only.
    let line = args
        .only
        .is_none()
        .then(|| listing::line(&testee, &report))
        .flatten();
    human::print(&report, line.as_deref())?;
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn ask_all<'a>(
    chosen: &[&'a Case<'a>],
    mut session: Session,
    suite: &'a Suite,
    args: &RunArgs,
    expected: &ExpectedFailures,
) -> Result<Vec<CaseResult<'a>>> {
    let mut workshop = Workshop::new(suite)?;
    let meter = meter(session.name(), chosen.len());
    let mut results = Vec::with_capacity(chosen.len());
    for &case in chosen {
        let result = match session.unsupported(case) {
            Some(Unasked::Unable(why)) if args.require_complete => CaseResult::failed(case, why),
            Some(Unasked::Unable(why) | Unasked::ByProfile(why)) => CaseResult::skipped(case, why),
            None => {
                let mut asked = session.ask(case, &mut workshop)?;
                if let (Verdict::OtherRule(rule), true) = (&asked.verdict, args.rules) {
                    let rule = rule.as_deref().unwrap_or("no rule");
                    asked.verdict = Verdict::Wrong(format!("the right class, but {rule}"));
                }
                CaseResult::asked(case, asked)
            }
        };
        results.push(result.listed(expected.contains(&case.id)));
        meter.inc(1);
    }
    meter.finish_and_clear();
    Ok(results)
}

/// Makes a progress bar, which is visible on a terminal.
pub(crate) fn meter(name: &str, cases: usize) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(cases as u64), target)
        .with_message(name.escape_debug().to_string());
    // The template is constant and valid; if it were not, the plain bar would do.
    if let Ok(style) =
        ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} cases, {eta} left")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
