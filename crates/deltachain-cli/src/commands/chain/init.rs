//! `init`: begins a chain.

use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use serde_json::json;

use crate::chain_args::ChainArgs;
use crate::output::{Output, printable};

pub(crate) fn run(args: &ChainArgs, output: Output) -> Result<()> {
    let store = args.create()?;
    let begun = deltachain_store::init(&store)?;
    let begun = begun.ok_or_else(|| {
        Error::usage("the chain exists already; `init` changes nothing").in_file(&args.url)
    })?;
    let chain = Digest::of_bytes(&begun.to_bytes()?).to_string();
    output.summary(
        || {
            format!(
                "{}: chain {chain}, no versions yet",
                printable(&args.name())
            )
        },
        || json!({ "url": args.name(), "chain": chain }),
    )
}
