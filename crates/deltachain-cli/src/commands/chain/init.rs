//! `init`: begins a chain.

use deltachain::Result;
use serde_json::json;

use crate::chain_args::InitArgs;
use crate::output::{Output, printable};

pub(crate) fn run(args: &InitArgs, output: Output) -> Result<()> {
    let store = args.chain.create()?;
    let chain = format!("{:032x}", deltachain_store::init(&store)?.chain);
    output.summary(
        || format!("{}: chain {chain}, no versions yet", printable(&args.chain.url)),
        || json!({ "url": args.chain.url, "chain": chain }),
    )
}
