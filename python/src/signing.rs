//! Keys as Python gives them: who signs, and whom to trust (spec/signatures.md).

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
    /// A secret key, or a public one if there is a function.
    key: String,
    /// The function that signs.
    function: Option<Py<PyAny>>,
}

/// The keys to trust, from the attributes of `deltachain._keys.TrustedKeys`.
#[derive(FromPyObject)]
pub(crate) struct TrustedKeys {
    /// Public keys, each for all chains or followed by those that it is for.
    keys: Vec<String>,
    /// Number of keys that must sign.
    quorum: usize,
}

/// The signers that are given.
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

/// Whom to trust.
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

/// A secret key of this name, as text.
#[pyfunction]
pub(crate) fn secret_key(py: Python<'_>, name: &str, seed: [u8; 32]) -> PyResult<String> {
    let key = SigningKey::from_seed(name, seed).map_err(|error| raised(py, &error))?;
    Ok(key.to_text())
}

/// The public key of a secret one.
#[pyfunction]
pub(crate) fn public_key(py: Python<'_>, secret: &str) -> PyResult<String> {
    let key = SigningKey::parse(secret).map_err(|error| raised(py, &error))?;
    Ok(key.public().to_string())
}

/// A function of Python's that signs.
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
