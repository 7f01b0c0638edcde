//! `init`: begins a chain.

use deltachain::{Error, Result};
use serde_json::json;

use crate::chain_args::InitArgs;
use crate::output::{Output, printable};

pub(crate) fn run(args: &InitArgs, output: Output) -> Result<()> {
    let store = args.chain.create()?;
    let begun = deltachain_store::init(&store)?;
    let begun = begun.ok_or_else(|| Error::usage("there is a chain already").in_file(&args.chain.url))?;
    let chain = format!("{:032x}", begun.chain);
    output.summary(
        || format!("{}: chain {chain}, no versions yet", printable(&args.chain.name())),
        || json!({ "url": args.chain.name(), "chain": chain }),
    )
}
