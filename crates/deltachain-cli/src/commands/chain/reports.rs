//! The commands that report.

use deltachain::{Error, Result};
use deltachain_store::Observer;

use crate::args::Command;
use crate::commands::chain::compact::CompactReport;
use crate::commands::chain::doctor::DoctorReport;
use crate::commands::chain::fsck;
use crate::commands::chain::log::Log;
use crate::commands::chain::prune;
use crate::commands::chain::report::{Access, Report};
use crate::commands::chain::show::Shown;
use crate::operation::health::Health;

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
        Command::Prune(args) => prune::report(args, access, observer)?,
        Command::Fsck(args) => fsck::report(args, access, observer)?,
        Command::Doctor(args) => Box::new(DoctorReport::of(args, access)?),
        _ => return Err(Error::usage("this command makes no report")),
    })
}
