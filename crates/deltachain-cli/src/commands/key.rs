//! `key`: makes and shows keys that sign versions. It prints public keys only.

use deltachain::Result;

use crate::key_args::{KeyArgs, KeyCommand};
use crate::keys::{Keys, as_json, make};
use crate::output::Output;

pub(crate) fn run(args: &KeyArgs, output: Output) -> Result<()> {
    match &args.command {
        KeyCommand::New(args) => {
            let key = make(&args.name, &args.output)?;
            let json = || {
                let mut json = as_json(&key);
                json["file"] = args.output.to_string_lossy().into();
                json
            };
            output.result(|| key.to_string(), json)
        }
        KeyCommand::Show(args) => {
            let keys = Keys::read(&args.file)?;
            keys.public().iter().try_for_each(|key| output.result(|| key.to_string(), || as_json(key)))
        }
    }
}
