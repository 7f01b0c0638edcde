//! `digest`: prints the digest of a state.

use std::fmt::Write as _;

use deltachain::Result;
use deltachain::tensor::State;
use serde_json::{Map, Value, json};

use crate::args::DigestArgs;
use crate::inputs::{digests_of, open_state};
use crate::other_files::remark_left_out;
use crate::output::{Output, printable};

pub(crate) fn run(args: &DigestArgs, output: Output) -> Result<()> {
    let state = open_state(&args.state)?;
    let digests = digests_of(&state, output)?;
    let tensors = || state.tensors().iter().zip(&digests.tensors).filter(|_| args.tensors);
    output.result(
        || {
            let mut text = digests.state.to_string();
            for (info, digest) in tensors() {
                // Writing to a string cannot fail.
                let _ = write!(text, "\n{digest}  {}", printable(info.name()));
            }
            text
        },
        || {
            let mut object = json!({ "state": digests.state.to_string() });
            if args.tensors {
                let tensors: Map<String, Value> =
                    tensors().map(|(info, digest)| (info.name().to_owned(), digest.to_string().into())).collect();
                object["tensors"] = Value::Object(tensors);
            }
            object
        },
    )?;
    remark_left_out(state.left_out(), output);
    Ok(())
}
