//! `sign`: signs a published version.

use deltachain::chain::ObjectName;
use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use deltachain_store::{LogEntry, Store};
use serde_json::{Value, json};

use crate::commands::chain::log::notes;
use crate::key_args::SignVersionArgs;
use crate::keys::VARIABLE;
use crate::output::{Output, printable};

pub(crate) fn run(args: &SignVersionArgs, output: Output) -> Result<()> {
    let signers = args.sign.signers()?;
    if signers.is_empty() {
        return Err(Error::usage(format!(
            "no key to sign with is given: give --sign-key, or set {VARIABLE}"
        )));
    }
    let store = args.chain.open()?;
    let (entry, commit) = entry(args, &store)?;
    let (note, taken) = deltachain_store::sign(&store, entry.version, commit, &signers)?;
    let by: Vec<String> = signers
        .iter()
        .map(|signer| signer.public().to_string())
        .collect();
    let signature = Signature {
        url: args.chain.name(),
        entry,
        note,
        taken,
        by,
    };
    output.summary(|| signature.as_text(), || signature.as_json())
}

/// The report on a signed version.
struct Signature {
    url: String,
    entry: LogEntry,
    note: ObjectName,
    /// The names for the signature's note that another object has already.
    taken: Vec<ObjectName>,
    /// The public keys.
    by: Vec<String>,
}

impl Signature {
    fn as_text(&self) -> String {
        let Self {
            entry, taken, by, ..
        } = self;
        let mut lines = vec![
            format!(
                "signed version {} of {} and all below it",
                entry.version,
                printable(&self.url)
            ),
            format!("  state   {}", entry.state),
            format!("  commit  {}", entry.commit),
        ];
        if !entry.metadata.is_empty() {
            lines.push(format!("  notes   {}", notes(&entry.metadata)));
        }
        lines.extend(by.iter().map(|key| format!("  by      {}", printable(key))));
        lines.extend(taken.iter().map(|own| {
            format!(
                "  taken   {own}: another object has this name, so readers that cannot list do not \
                 find the signature"
            )
        }));
        lines.join("\n")
    }

    fn as_json(&self) -> Value {
        let Self {
            entry,
            note,
            taken,
            by,
            ..
        } = self;
        json!({
            "url": self.url,
            "version": entry.version,
            "state": entry.state.to_string(),
            "commit": entry.commit.to_string(),
            "note": note.to_string(),
            "taken": taken.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "signed_by": by,
        })
    }
}

/// Returns the version to sign, and the commit that the user has named.
fn entry(args: &SignVersionArgs, store: &Store) -> Result<(LogEntry, Digest)> {
    let entry = deltachain_store::show(store, args.version, None)?;
    let Some(commit) = args.commit else {
        let text = format!(
            "version {} has the commit {commit}: check it (`deltachain show`), and sign it with \
             --commit {commit}",
            entry.version,
            commit = entry.commit,
        );
        return Err(Error::usage(text));
    };
    // If the user named the version, `sign` refuses a wrong commit.
    if entry.commit == commit || args.version.is_some() {
        return Ok((entry, commit));
    }
    let found = deltachain_store::log(store, None, None)?
        .into_iter()
        .find(|entry| entry.commit == commit);
    let Some(found) = found else {
        return Err(Error::usage(format!(
            "no version has the commit {commit}; nothing was signed"
        )));
    };
    Ok((found, commit))
}
