//! Keys that Python passes, to sign with and to trust (spec/signatures.md).

use std::io;
use std::sync::Arc;

use deltachain::chain::{Signer, SigningKey, Trust, TrustedKey, VerifierKey};
use deltachain::{Error, Result};
use pyo3::prelude::*;

use crate::errors::raised;
use crate::gate;

/// A signer, from the attributes of `deltachain._keys.KeySigner`.
#[derive(FromPyObject)]
pub(crate) struct KeySigner {
    /// The secret key, or the public key if `function` signs.
    key: String,
    /// A function that signs.
    function: Option<Py<PyAny>>,
}

/// The keys to trust, from the attributes of `deltachain._keys.TrustedKeys`.
#[derive(FromPyObject)]
pub(crate) struct TrustedKeys {
    /// Public keys. A key is for all chains, or followed by the chains that it is for.
    keys: Vec<String>,
    /// Number of keys that must sign.
    quorum: usize,
}

/// Parses signers.
pub(crate) fn signers(py: Python<'_>, given: Vec<KeySigner>) -> PyResult<Vec<Arc<dyn Signer>>> {
    given
        .into_iter()
        .map(parse_signer)
        .collect::<Result<_>>()
        .map_err(|error| raised(py, &error))
}

fn parse_signer(KeySigner { key, function }: KeySigner) -> Result<Arc<dyn Signer>> {
    Ok(match function {
        None => Arc::new(SigningKey::parse(&key)?),
        Some(function) => Arc::new(SignerFunction {
            public: key.parse()?,
            function,
        }),
    })
}

/// Parses the keys to trust.
pub(crate) fn trust(py: Python<'_>, given: Option<TrustedKeys>) -> PyResult<Option<Trust>> {
    given
        .map(|given| parse_trust(&given))
        .transpose()
        .map_err(|error| raised(py, &error))
}

fn parse_trust(TrustedKeys { keys, quorum }: &TrustedKeys) -> Result<Trust> {
    let keys = keys
        .iter()
        .map(|key| key.parse())
        .collect::<Result<Vec<TrustedKey>>>()?;
    Trust::new(keys, *quorum)
}

/// Encodes a seed as the text of a secret key with this name.
#[pyfunction]
pub(crate) fn secret_key(py: Python<'_>, name: &str, seed: [u8; 32]) -> PyResult<String> {
    let key = SigningKey::from_seed(name, seed).map_err(|error| raised(py, &error))?;
    Ok(key.to_text())
}

/// Returns the public key that belongs to a secret key.
#[pyfunction]
pub(crate) fn public_key(py: Python<'_>, secret: &str) -> PyResult<String> {
    let key = SigningKey::parse(secret).map_err(|error| raised(py, &error))?;
    Ok(key.public().to_string())
}

/// A Python function that signs.
#[derive(Debug)]
struct SignerFunction {
    public: VerifierKey,
    function: Py<PyAny>,
}

impl Signer for SignerFunction {
    fn public(&self) -> &VerifierKey {
        &self.public
    }

    fn sign(&self, text: &[u8]) -> Result<[u8; 64]> {
        let asked: PyResult<_> = gate::attach(|py| {
            let given = self.function.call1(py, (text,))?;
            Ok(given
                .extract::<Vec<u8>>(py)
                .ok()
                .and_then(|bytes| <[u8; 64]>::try_from(bytes).ok()))
        })?;
        let key = self.public.name();
        let given = asked.map_err(|error| {
            Error::io(
                format!("signing with {key}"),
                io::Error::other(error.to_string()),
            )
        })?;
        given.ok_or_else(|| {
            Error::usage(format!(
                "the function that signs with {key} must return 64 bytes"
            ))
        })
    }
}
