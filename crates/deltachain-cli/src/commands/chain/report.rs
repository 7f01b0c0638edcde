//! What a command reports: the tool prints it, and other programs get it as JSON.

use deltachain::Result;
use deltachain_store::{Stop, Store, StoreOptions};
use serde_json::Value;

use crate::chain_args::ChainArgs;
use crate::failure::{FAILURE, SUCCESS};
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
pub(crate) struct Access {
    /// Instead of the command line's.
    pub(crate) options: Option<StoreOptions>,
    /// Ends what is waited for in the store.
    pub(crate) stop: Stop,
}

impl Access {
    pub(crate) fn options(&self, chain: &ChainArgs) -> Result<StoreOptions> {
        self.options.clone().map_or_else(|| chain.store.options(), Ok)
    }

    pub(crate) fn open(&self, chain: &ChainArgs) -> Result<Store> {
        Ok(Store::open(&chain.url, self.options(chain)?)?.with_stop(self.stop.clone()))
    }
}

/// Prints a report, and gives the code to exit with.
pub(crate) fn print(report: &dyn Report, output: Output) -> Result<u8> {
    let (text, json) = (|| report.text(), || report.json());
    if report.is_summary() { output.summary(text, json) } else { output.result(text, json) }?;
    Ok(if report.is_good() { SUCCESS } else { FAILURE })
}
