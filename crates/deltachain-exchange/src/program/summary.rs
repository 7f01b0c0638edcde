//! The summary that both commands print at the end.

use deltachain::Result;
use deltachain_cli::program::Output;
use serde_json::{Value, json};

/// The description of a new link, version or file, for people and as JSON.
pub(crate) type SummaryPair = (String, Value);

/// Prints the descriptions of everything that was made.
pub(crate) fn summary(output: Output, key: &str, made: Vec<SummaryPair>) -> Result<()> {
    let (lines, objects): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    output.summary(|| lines.join("\n"), || json!({ key: objects }))
}
