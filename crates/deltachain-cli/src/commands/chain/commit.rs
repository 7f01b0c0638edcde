//! `commit`: makes a version of shards that have been published.

use deltachain::Result;
use deltachain_store::{PublishOptions, Publisher, ShardPart};

use crate::chain_args::CommitArgs;
use crate::commands::chain::publish::{read_part, report};
use crate::commands::diff::notes;
use crate::output::Output;
use crate::watcher::watched;

pub(crate) fn run(args: &CommitArgs, output: Output) -> Result<()> {
    let store = args.chain.open()?;
    let parts = args
        .parts
        .iter()
        .map(|path| read_part(path))
        .collect::<Result<Vec<ShardPart>>>()?;
    let notes = notes(&args.notes)?;
    let options = PublishOptions::default()
        .once(args.once.clone())
        .allow_empty(args.allow_empty)
        .sign(args.signatures.sign.signers()?)
        .unsigned(args.signatures.unsigned)
        .trust(args.signatures.trust.trust()?)
        .vouch(args.signatures.vouch);
    let mut publisher = Publisher::open(store, options)?;
    let published = watched(output, |watcher| publisher.commit(parts, notes, watcher))?;
    report(&args.chain.name(), &published, output);
    Ok(())
}
