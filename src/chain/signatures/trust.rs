//! Whom a reader trusts (SPEC section 23.1).

use std::collections::BTreeSet;

use crate::chain::VerifierKey;
use crate::error::{Error, Result};

/// The keys that a reader trusts, and how many of them have to sign a version that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    keys: Vec<VerifierKey>,
    quorum: usize,
}

impl Trust {
    /// From public keys and a quorum, from 1 to the number of keys.
    ///
    /// # Errors
    /// USAGE if a key is given twice, under whatever name, or the quorum is not from 1 to the number of keys.
    pub fn new(keys: impl IntoIterator<Item = VerifierKey>, quorum: usize) -> Result<Self> {
        let keys: Vec<VerifierKey> = keys.into_iter().collect();
        let (mut bytes, mut names) = (BTreeSet::new(), BTreeSet::new());
        for key in &keys {
            if !bytes.insert(key.bytes()) || !names.insert((key.name(), key.id())) {
                return Err(Error::usage(format!("duplicate key: {key} is trusted already")));
            }
        }
        if !(1..=keys.len()).contains(&quorum) {
            let of = keys.len();
            return Err(Error::usage(format!("the quorum is {quorum}; it must be from 1 to the number of keys, {of}")));
        }
        Ok(Self { keys, quorum })
    }

    /// The public keys, in the order in which they were given.
    pub fn keys(&self) -> &[VerifierKey] {
        &self.keys
    }

    /// How many of them have to sign.
    pub fn quorum(&self) -> usize {
        self.quorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::SigningKey;
    use crate::error::ErrorClass;

    fn key(name: &str, seed: u8) -> VerifierKey {
        SigningKey::from_seed(name, [seed; 32]).unwrap().public().clone()
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
}
