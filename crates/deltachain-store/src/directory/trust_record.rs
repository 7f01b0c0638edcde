//! `trust.json`: the keys that a subscriber's directory trusts, and the newest signed head that it
//! has seen (SPEC section 23.3). It is written before a version is built, and a start without trust
//! does not remove it.

use std::fs;
use std::path::Path;

use deltachain::chain::{Trust, TrustedKey, VerifierKey};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::directory::own::{sync_directory, write_own};
use crate::there::if_there;

const FILE: &str = "trust.json";

/// The trusted keys of a directory or memory, and the findings about signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrustRecord {
    pub(crate) keys: Vec<TrustedKey>,
    pub(crate) quorum: usize,
    /// The newest signed head that was seen.
    pub(crate) seen: Option<SeenHead>,
    /// Signers of the commit that was planned last, and of the commit that was held then.
    pub(crate) signed: Vec<SignedCommit>,
    /// The last message about a newer version that is not signed, for people. Records before
    /// version 1.2 do not have it.
    #[serde(default)]
    pub(crate) unsigned: Option<String>,
}

/// A signed head that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeenHead {
    /// The version.
    pub(crate) version: u64,
    /// Digest of its commit.
    pub(crate) commit: Digest,
}

/// A commit, and the trusted keys that have signed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignedCommit {
    pub commit: Digest,
    pub(crate) by: Vec<VerifierKey>,
}

impl TrustRecord {
    /// Creates a record of this trust, which keeps the earlier findings about heads and signers.
    pub(crate) fn new(trust: &Trust, before: Option<Self>) -> Self {
        let (seen, signed) = before
            .map(|before| (before.seen, before.signed))
            .unwrap_or_default();
        Self {
            keys: trust.keys().to_vec(),
            quorum: trust.quorum(),
            seen,
            signed,
            unsigned: None,
        }
    }

    /// Returns the trusted keys and the quorum.
    ///
    /// # Errors
    /// USAGE if so many of these keys cannot sign.
    pub(crate) fn trust(&self) -> Result<Trust> {
        Trust::new(self.keys.iter().cloned(), self.quorum)
    }

    /// Version and commit of the newest signed head that was seen.
    pub(crate) fn seen(&self) -> Option<(u64, Digest)> {
        self.seen
            .map(|SeenHead { version, commit }| (version, commit))
    }

    /// Reads the record of a directory; `None` if no trust was ever recorded there, or it was
    /// forgotten.
    ///
    /// # Errors
    /// IO, also if it is damaged: a damaged record does not count as none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let bytes = if_there(fs::read(&path))
            .map_err(|error| Error::io("reading", error).in_file(&path))?;
        bytes
            .map(|bytes| Self::parse(&bytes))
            .transpose()
            .map_err(|error| error.in_file(&path))
    }

    /// Writes the record of a directory. Blocks until it is on disk.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let bytes = serde_json::to_vec(self).map_err(|error| Error::usage(error.to_string()))?;
        write_own(directory, FILE, &bytes)
            .map_err(|error| Error::io("writing", error).in_file(directory.join(FILE)))
    }

    /// Removes the record of a directory, if there is one.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn remove(directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let removed = if_there(fs::remove_file(&path));
        let removed =
            removed.and_then(|removed| removed.map_or(Ok(()), |()| sync_directory(directory)));
        removed.map_err(|error| Error::io("removing", error).in_file(&path))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let unreadable = |error: serde_json::Error| {
            let advice = "restore the file from a backup; --trust none, in Python \
                          forget_trust=True, forgets the trust of this directory";
            Error::unusable(
                format!("the record of trust cannot be read: {error}"),
                advice,
            )
        };
        let record: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        record.trust().map(|_| record)
    }
}

#[cfg(test)]
mod tests {
    use deltachain::chain::{Signer, SigningKey};

    use super::*;

    #[test]
    fn a_record_comes_back_and_a_damaged_one_is_not_none() {
        let directory = tempfile::tempdir().unwrap();
        let key = SigningKey::from_seed("a", [1; 32])
            .unwrap()
            .public()
            .clone();
        assert_eq!(TrustRecord::read(directory.path()).unwrap(), None);
        TrustRecord::remove(directory.path()).unwrap();
        let commit = Digest::of_bytes(b"commit");
        let mut record = TrustRecord::new(&Trust::new([key.clone()], 1).unwrap(), None);
        for _ in 0..2 {
            record.write(directory.path()).unwrap();
            assert_eq!(
                TrustRecord::read(directory.path()).unwrap().as_ref(),
                Some(&record)
            );
            (record.seen, record.signed) = (
                Some(SeenHead { version: 7, commit }),
                vec![SignedCommit {
                    commit,
                    by: vec![key.clone()],
                }],
            );
        }
        let path = directory.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        for other in [
            "",
            "{}",
            &text[1..],
            &text.replace("\"quorum\":1", "\"quorum\":2"),
            &text.replace("seen", "saw"),
        ] {
            fs::write(&path, other).unwrap();
            assert!(TrustRecord::read(directory.path()).is_err(), "{other}");
        }
        TrustRecord::remove(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
