//! The trust of a reader (SPEC section 23.1).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::chain::{ObjectName, VerifierKey, names};
use crate::error::{Error, Result};
use crate::json::text_in_json;
use crate::rules::{self, ensure};
use crate::tensor::Digest;

/// A key that is trusted, for some chains or for all. Displayed and parsed as
/// `NAME+ID+KEY CHAIN CHAIN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// The public key.
    pub key: VerifierKey,
    /// The chains for which the key is trusted, by the digests of the bytes of their chain
    /// documents. If empty, the key is trusted for all chains.
    pub chains: BTreeSet<Digest>,
}

impl From<VerifierKey> for TrustedKey {
    fn from(key: VerifierKey) -> Self {
        Self {
            key,
            chains: BTreeSet::new(),
        }
    }
}

/// The error is USAGE if the text has another form.
impl FromStr for TrustedKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(' ');
        let key = parts.next().unwrap_or_default().parse()?;
        let refused = || {
            Error::usage(format!(
                "a chain of the key {key} is not a digest of 64 lowercase hexadecimal digits"
            ))
        };
        let chains = parts
            .map(names::digest)
            .collect::<Option<_>>()
            .ok_or_else(refused)?;
        Ok(Self { key, chains })
    }
}

text_in_json!(TrustedKey);

impl fmt::Display for TrustedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.key, f)?;
        self.chains
            .iter()
            .try_for_each(|chain| write!(f, " {chain}"))
    }
}

/// The keys that a reader trusts, and how many of them must sign a version that the reader accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trust {
    keys: Vec<TrustedKey>,
    quorum: usize,
}

impl Trust {
    /// Creates trust in these public keys, with a quorum from 1 to the number of keys.
    ///
    /// # Errors
    /// USAGE if a key is given twice, under whatever name, or the quorum is not from 1 to the
    /// number of keys.
    pub fn new(keys: impl IntoIterator<Item: Into<TrustedKey>>, quorum: usize) -> Result<Self> {
        let keys: Vec<TrustedKey> = keys.into_iter().map(Into::into).collect();
        let (mut bytes, mut names) = (BTreeSet::new(), BTreeSet::new());
        for TrustedKey { key, .. } in &keys {
            if !bytes.insert(key.bytes()) || !names.insert((key.name(), key.id())) {
                return Err(Error::usage(format!(
                    "duplicate key: {key} is trusted already"
                )));
            }
        }
        if !(1..=keys.len()).contains(&quorum) {
            let of = keys.len();
            return Err(Error::usage(format!(
                "the quorum is {quorum}; it must be from 1 to the number of keys, {of}"
            )));
        }
        Ok(Self { keys, quorum })
    }

    /// The public keys, in the order in which they were given.
    pub fn keys(&self) -> &[TrustedKey] {
        &self.keys
    }

    /// The keys that are trusted for this chain: `chain` is the digest of the chain document's
    /// bytes.
    pub fn keys_of(&self, chain: Digest) -> impl Iterator<Item = &VerifierKey> {
        let is_for = move |key: &&TrustedKey| key.chains.is_empty() || key.chains.contains(&chain);
        self.keys.iter().filter(is_for).map(|key| &key.key)
    }

    /// Names of the own notes on the commit of a version, by the keys that are trusted for this
    /// chain.
    pub fn own_notes(&self, chain: Digest, version: u64, commit: Digest) -> BTreeSet<ObjectName> {
        self.keys_of(chain)
            .map(|key| key.own_note(version, commit))
            .collect()
    }

    /// Checks that enough keys are trusted for this chain to read it.
    ///
    /// # Errors
    /// R-SIG-05 (`CHAIN`).
    pub fn check_chain(&self, chain: Digest) -> Result<()> {
        let (count, quorum) = (self.keys_of(chain).count(), self.quorum);
        ensure(count >= quorum, &rules::SIG_05, || {
            format!(
                "{count} of the trusted keys are trusted for this chain, {chain}, but the quorum \
                 is {quorum}"
            )
        })
        .map_err(|error| error.in_file(ObjectName::Chain.to_string()))
    }

    /// Number of keys that must sign.
    pub fn quorum(&self) -> usize {
        self.quorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{Signer, SigningKey};
    use crate::error::ErrorClass;

    fn key(name: &str, seed: u8) -> VerifierKey {
        SigningKey::from_seed(name, [seed; 32])
            .unwrap()
            .public()
            .clone()
    }

    #[test]
    fn a_key_is_trusted_once_and_the_quorum_can_be_reached() {
        let refused = |keys: &[VerifierKey], quorum| {
            let error = Trust::new(keys.iter().cloned(), quorum).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Usage);
        };
        refused(&[], 0);
        refused(&[], 1);
        refused(&[key("a", 1)], 0);
        refused(&[key("a", 1)], 2);
        refused(&[key("a", 1), key("a", 1)], 1);
        // Otherwise one owner would be two.
        refused(&[key("a", 1), key("b", 1)], 2);
        let trust = Trust::new([key("a", 1), key("a", 2)], 2).unwrap();
        assert_eq!((trust.keys().len(), trust.quorum()), (2, 2));
    }

    #[test]
    fn a_key_is_trusted_for_its_chains() {
        let one = Digest([1; 32]);
        let two = Digest([0xab; 32]);
        let other = Digest([3; 32]);
        let line = format!("{} {two} {one}", key("a", 1));
        let both: TrustedKey = line.parse().unwrap();
        assert_eq!(both.to_string(), format!("{} {one} {two}", key("a", 1)));
        assert_eq!(both.to_string().parse::<TrustedKey>().unwrap(), both);
        assert_eq!(
            key("a", 1).to_string().parse::<TrustedKey>().unwrap(),
            key("a", 1).into()
        );
        for text in [
            format!("{} ", key("a", 1)),
            format!("{}  {one}", key("a", 1)),
            format!("{} {one} ", key("a", 1)),
            format!("{}\t{one}", key("a", 1)),
            format!("{} {}", key("a", 1), two.to_string().to_uppercase()),
            format!("{} {}", key("a", 1), &one.to_string()[1..]),
            one.to_string(),
        ] {
            assert_eq!(
                text.parse::<TrustedKey>().unwrap_err().class(),
                ErrorClass::Usage,
                "{text}"
            );
        }
        // Also with other chains the same key is one.
        assert!(
            Trust::new(
                [
                    both.clone(),
                    TrustedKey {
                        chains: BTreeSet::from([other]),
                        ..both.clone()
                    }
                ],
                1
            )
            .is_err()
        );
        let trust = |quorum| Trust::new([both.clone(), key("b", 2).into()], quorum).unwrap();
        assert_eq!(
            (
                trust(1).keys_of(one).count(),
                trust(1).keys_of(other).count()
            ),
            (2, 1)
        );
        assert!(trust(2).check_chain(one).is_ok() && trust(1).check_chain(other).is_ok());
        assert!(
            trust(2)
                .check_chain(other)
                .unwrap_err()
                .breaks(&["R-SIG-05"])
        );
        assert_eq!(
            trust(2).own_notes(other, 7, one),
            BTreeSet::from([key("b", 2).own_note(7, one)])
        );
    }
}
