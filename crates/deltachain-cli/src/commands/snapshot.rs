//! `snapshot`: a link that holds all of a state; the difference to the empty one.

use deltachain::{Profile, Result};

use crate::args::SnapshotArgs;
use crate::commands::diff::run_with_base;
use crate::output::Output;

pub(crate) fn run(args: &SnapshotArgs, output: Output) -> Result<()> {
    // A snapshot has nothing to be relative to, so the profile makes no difference.
    run_with_base(None, &args.state, &args.link, Profile::Direct, output)
}
