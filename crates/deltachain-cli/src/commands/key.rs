//! `key`: makes keys that sign versions, and shows them. Prints only public keys.

use deltachain::Result;
use deltachain_store::chain_digest;

use crate::key_args::KeyCommand;
use crate::keys::{Keys, as_json, make};
use crate::output::Output;

pub(crate) fn run(command: &KeyCommand, output: Output) -> Result<()> {
    match command {
        KeyCommand::New { name, output: file } => {
            let key = make(name, file)?;
            let json = || {
                let mut json = as_json(&key.clone().into());
                json["file"] = file.to_string_lossy().into();
                json
            };
            output.result(|| key.to_string(), json)
        }
        KeyCommand::Show { file, chain, store } => {
            let mut keys = Keys::read(file)?.public();
            if let Some(url) = chain {
                let chain = chain_digest(&store.open(url)?)?;
                keys.iter_mut().for_each(|key| key.chains.extend([chain]));
            }
            keys.iter()
                .try_for_each(|key| output.result(|| key.to_string(), || as_json(key)))
        }
    }
}
