//! Shows errors, as lines or as JSON, with class, rule, message, places and advice. Chooses the
//! exit code.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use deltachain::{Error, ErrorClass};
use deltachain_store::Problem;
use serde_json::json;

use crate::interrupt;
use crate::output::{Output, print_json, printable, printable_path};

/// Exit code of success.
pub const SUCCESS: u8 = 0;
/// Exit code if something was refused or failed.
pub(crate) const FAILURE: u8 = 1;
const USAGE_EXIT_CODE: u8 = 2;

/// Returns the exit code of a report.
pub(crate) fn code(is_good: bool) -> u8 {
    if is_good { SUCCESS } else { FAILURE }
}

/// Shows the error that ended the program, and returns the exit code.
pub(crate) fn report(error: &Error, output: Output) -> u8 {
    if output.is_json() {
        report_as_json(error);
    } else if interrupt::happened() {
        // The result of an interrupted request is unknown.
        let given_up = (error.class() == ErrorClass::Io)
            .then(|| error.file())
            .flatten();
        let what = given_up.map_or_else(
            || "; nothing is left behind".to_owned(),
            |file| format!(" while {} {}", error.message(), printable_path(file)),
        );
        let _ = writeln!(anstream::stderr(), "interrupted{what}");
    } else {
        let _ = write!(anstream::stderr(), "{}", lines(error));
    }
    if interrupt::happened() {
        interrupt::EXIT_CODE
    } else if error.class() == ErrorClass::Usage && !error.is_in_use() {
        USAGE_EXIT_CODE
    } else {
        FAILURE
    }
}

/// Prints an error as JSON.
pub(crate) fn report_as_json(error: &Error) {
    // If standard output is closed, the message cannot be printed anywhere else.
    let _ = print_json(&json!({ "error": Problem::from(error) }));
}

/// Returns the command that explains these rules, if there are any.
pub(crate) fn more<'a>(rules: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: BTreeSet<&str> = rules.into_iter().collect();
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| format!("deltachain explain {}", names.join(" ")))
}

fn lines(error: &Error) -> String {
    let bad = AnsiColor::Red.on_default().bold();
    let dim = Style::new().dimmed();
    let rule = error
        .rule()
        .map_or_else(String::new, |rule| format!(" {rule}"));
    let Problem {
        message,
        file,
        section,
        offset,
        tensor,
        advice,
        ..
    } = Problem::from(error);
    let mut text = format!("{bad}error{bad:#}: {}{rule}: {message}\n", error.class());
    let places = [
        ("file", file.map(printable_path)),
        ("section", section),
        ("offset", offset.map(|offset| offset.to_string())),
        ("tensor", tensor.map(printable)),
        ("advice", Some(advice.to_owned())),
        ("more", more(error.rule())),
    ];
    for (name, value) in places {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {dim}{name:<8}{dim:#} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use deltachain_store::{Face, advice_by_rule};

    use crate::args::Cli;

    #[test]
    fn advice_names_options_that_exist() {
        let all = Cli::command();
        let options: Vec<&str> = all
            .get_subcommands()
            .flat_map(clap::Command::get_arguments)
            .filter_map(clap::Arg::get_long)
            .collect();
        let words =
            advice_by_rule(Face::Tool).flat_map(|advice| advice.split([' ', '=', ',', ';', '`']));
        let mut named = words.filter_map(|word| word.strip_prefix("--")).peekable();
        assert!(named.peek().is_some());
        named.for_each(|name| assert!(options.contains(&name), "--{name}"));
    }
}
