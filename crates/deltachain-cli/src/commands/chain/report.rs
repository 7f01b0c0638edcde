//! Commands that report: each makes a report, which the tool prints and other programs get as JSON.

use deltachain::{Error, Result};
use deltachain_store::{Observer, Stop, Store, StoreOptions};
use serde_json::Value;

use crate::args::Command;
use crate::chain_args::ChainArgs;
use crate::commands::chain::compact::CompactReport;
use crate::commands::chain::doctor::DoctorReport;
use crate::commands::chain::fsck;
use crate::commands::chain::log::Log;
use crate::commands::chain::prune::PruneReport;
use crate::commands::chain::show::Shown;
use crate::failure::{FAILURE, SUCCESS};
use crate::operation::health::Health;
use crate::output::Output;

/// What a command reports.
pub(crate) trait Report {
    /// For people.
    fn text(&self) -> String;

    /// For programs.
    fn json(&self) -> Value;

    /// Whether everything is as it should be; otherwise the program fails.
    fn is_good(&self) -> bool {
        true
    }

    /// Whether it says what was done, which `--quiet` does not print.
    fn is_summary(&self) -> bool {
        false
    }
}

/// How commands get at a chain.
#[derive(Default)]
pub(crate) struct Access {
    /// Instead of the command line's.
    pub(crate) options: Option<StoreOptions>,
    /// Ends what is waited for in the store.
    pub(crate) stop: Stop,
}

impl Access {
    pub(crate) fn options(&self, chain: &ChainArgs) -> StoreOptions {
        self.options.clone().unwrap_or_else(|| chain.store.options())
    }

    pub(crate) fn open(&self, chain: &ChainArgs) -> Result<Store> {
        Ok(Store::open(&chain.url, self.options(chain))?.with_stop(self.stop.clone()))
    }
}

/// Does what a command says, and reports.
///
/// # Errors
/// USAGE if the command is none that reports.
pub(crate) fn report(command: &Command, access: &Access, observer: &dyn Observer) -> Result<Box<dyn Report>> {
    Ok(match command {
        Command::Log(args) => Box::new(Log::of(args, access)?),
        Command::Show(args) => Box::new(Shown::of(args, access)?),
        Command::Status(args) => Box::new(Health::of(&args.directory, args.max_lag)?),
        Command::Compact(args) => Box::new(CompactReport::of(args, access, observer)?),
        Command::Prune(args) => Box::new(PruneReport::of(args, access, observer)?),
        Command::Fsck(args) => fsck::report(args, access, observer)?,
        Command::Doctor(args) => Box::new(DoctorReport::of(args, access)?),
        _ => return Err(Error::usage("this command makes no report")),
    })
}

/// Prints a report, and gives the code to exit with.
pub(crate) fn print(report: &dyn Report, output: Output) -> Result<u8> {
    let (text, json) = (|| report.text(), || report.json());
    if report.is_summary() { output.summary(text, json) } else { output.result(text, json) }?;
    Ok(if report.is_good() { SUCCESS } else { FAILURE })
}
