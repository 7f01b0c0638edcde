//! `key`: makes and shows keys that sign versions. It prints public keys only.

use deltachain::Result;

use crate::key_args::KeyCommand;
use crate::keys::{Keys, as_json, make};
use crate::output::Output;

pub(crate) fn run(command: &KeyCommand, output: Output) -> Result<()> {
    match command {
        KeyCommand::New { name, output: file } => {
            let key = make(name, file)?;
            let json = || {
                let mut json = as_json(&key);
                json["file"] = file.to_string_lossy().into();
                json
            };
            output.result(|| key.to_string(), json)
        }
        KeyCommand::Show { file } => {
            let keys = Keys::read(file)?;
            keys.public().iter().try_for_each(|key| output.result(|| key.to_string(), || as_json(key)))
        }
    }
}
