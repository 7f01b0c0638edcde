//! The command line: arguments and their help.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measures an implementation of the delta chain format, in any language, with the vectors of this
/// repository.
#[derive(Debug, Parser)]
#[command(name = "deltachain-conformance", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Testee(TesteeArgs),
    Segments(SegmentsArgs),
    Rules(RulesArgs),
    #[cfg(deltachain_rule_switch)]
    Adequacy(AdequacyArgs),
    #[cfg(deltachain_mutants)]
    Mutants(MutantsArgs),
}

/// Send all cases to a testee and check its answers
///
/// A testee is a program that answers requests from standard input with lines on standard output;
/// the protocol is in conformance/protocol.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltachain-conformance run --testee \"python3 my_testee.py\"
  deltachain-conformance run --testee \"deltachain-conformance testee\" --rules --require-complete
  deltachain-conformance run --testee ./mine --only links/index --junit report.xml

Exit codes: 0 nothing unexpected happened, 1 something did, 2 wrong usage.")]
pub(crate) struct RunArgs {
    /// The command line of the testee, split at spaces, with quotes as in a shell
    #[arg(long, value_name = "COMMAND")]
    pub(crate) testee: String,
    /// Only cases whose id contains the text
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Ids of cases that are known to fail, one per line; # begins a comment
    #[arg(long, value_name = "FILE")]
    pub(crate) expected_failures: Option<PathBuf>,
    /// Treat cases that the testee does not claim to support as failures
    #[arg(long)]
    pub(crate) require_complete: bool,
    /// Treat a wrong or missing rule id as a failure
    #[arg(long)]
    pub(crate) rules: bool,
    /// Timeout of a case
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    pub(crate) timeout: NonZeroU64,
    /// Write a report as `JUnit` XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Write a report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The folder with index.json
    /// [default: this program's folder, or conformance in this directory or above]
    #[arg(long, value_name = "DIR")]
    pub(crate) vectors: Option<PathBuf>,
}

/// Run the reference library as a testee
#[derive(Debug, Args)]
pub(crate) struct TesteeArgs {
    /// Give the same answer to every request, which no run may accept
    #[arg(long, value_name = "RESULT")]
    pub(crate) always: Option<Always>,
    /// Do not check this rule
    #[cfg(deltachain_rule_switch)]
    #[arg(long, value_name = "ID", conflicts_with = "always")]
    pub(crate) without_rule: Option<String>,
    /// Run this mutant of the library
    #[cfg(deltachain_mutants)]
    #[arg(long, value_name = "NUMBER", conflicts_with = "always")]
    pub(crate) mutant: Option<u32>,
}

/// The answer of a testee that ignores its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Always {
    Valid,
    Invalid,
}

/// Show the coding of each segment of a link, as JSON
///
/// Includes the segment's streams, and its parts with their contexts and first values.
/// `deltachain inspect` shows the effect of a link on each tensor.
#[derive(Debug, Args)]
pub(crate) struct SegmentsArgs {
    /// The link
    pub(crate) link: PathBuf,
}

/// Write rules.json: the rules of the SPEC.md with which this program was built
#[derive(Debug, Args)]
pub(crate) struct RulesArgs {
    /// Compare the file with its expected content, instead of writing it
    #[arg(long)]
    pub(crate) check: bool,
    /// The folder with index.json [default: conformance in this directory or above]
    #[arg(long, value_name = "DIR")]
    pub(crate) vectors: Option<PathBuf>,
}

/// Show that the vectors notice a reader that does not check a rule
///
/// Runs the vectors of each rule against the reference library with that rule switched off. At
/// least one answer must then change.
#[cfg(deltachain_rule_switch)]
#[derive(Debug, Args)]
pub(crate) struct AdequacyArgs {
    /// Compare the table in maintaining.md with the result, instead of writing it there
    #[arg(long)]
    pub(crate) check: bool,
    /// The folder with index.json
    /// [default: this program's folder, or conformance in this directory or above]
    #[arg(long, value_name = "DIR")]
    pub(crate) vectors: Option<PathBuf>,
}

/// Show which small changes of the library the vectors notice
///
/// Runs the vectors against mutants of the reference library, each until one answer changes, and
/// prints a line of JSON for each.
#[cfg(deltachain_mutants)]
#[derive(Debug, Args)]
pub(crate) struct MutantsArgs {
    /// The mutants to run, as tasks/judge.py writes them
    #[arg(long, value_name = "FILE")]
    pub(crate) list: PathBuf,
    /// Number of mutants that run at the same time
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) threads: std::num::NonZeroUsize,
    /// The folder with index.json
    /// [default: this program's folder, or conformance in this directory or above]
    #[arg(long, value_name = "DIR")]
    pub(crate) vectors: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
