//! `snapshot`: a link that holds all of a state; the difference to the empty one.

use deltachain::files::FileOptions;
use deltachain::{Profile, Result};

use crate::args::SnapshotArgs;
use crate::commands::diff::make;
use crate::output::Output;

pub(crate) fn run(args: &SnapshotArgs, output: Output) -> Result<()> {
    // A snapshot has nothing to be relative to, so the profile makes no difference.
    let options = FileOptions::default().profile(Profile::Direct);
    make(&args.link, (None, &args.state), options, output)
}
