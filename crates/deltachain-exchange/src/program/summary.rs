//! The summary that both commands print in the end.

use deltachain::Result;
use deltachain_cli::program::Output;
use serde_json::{Value, json};

/// The description of something that has been made, for people and as JSON.
pub(crate) type SummaryPair = (String, Value);

/// Says what has been made.
pub(crate) fn summary(output: Output, key: &str, made: Vec<SummaryPair>) -> Result<()> {
    let (lines, objects): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    output.summary(|| lines.join("\n"), || json!({ key: objects }))
}
