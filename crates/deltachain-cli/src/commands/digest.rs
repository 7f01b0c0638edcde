//! `digest`: prints the digest of a state.

use deltachain::Result;
use deltachain::files::SafetensorsState;
use deltachain::tensor::State;
use serde_json::{Map, Value, json};

use crate::args::DigestArgs;
use crate::inputs::digests_of;
use crate::other_files::remark_left_out;
use crate::output::{Output, printable};

pub(crate) fn run(args: &DigestArgs, output: Output) -> Result<()> {
    let state = SafetensorsState::open(&args.state)?;
    let digests = digests_of(&state, output)?;
    let tensors = || state.tensors().iter().zip(&digests.tensors);
    output.result(
        || {
            let mut lines = vec![digests.state.to_string()];
            if args.tensors {
                lines.extend(
                    tensors().map(|(info, digest)| format!("{digest}  {}", printable(info.name()))),
                );
            }
            lines.join("\n")
        },
        || {
            let mut object = json!({ "state": digests.state.to_string() });
            if args.tensors {
                let tensors: Map<String, Value> = tensors()
                    .map(|(info, digest)| (info.name().to_owned(), digest.to_string().into()))
                    .collect();
                object["tensors"] = Value::Object(tensors);
            }
            object
        },
    )?;
    remark_left_out(state.left_out(), output);
    Ok(())
}
