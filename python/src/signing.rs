//! Keys as Python gives them: who signs, and whom to trust (spec/signatures.md).

use std::io;
use std::sync::Arc;

use deltachain::chain::{Signer, SigningKey, Trust, TrustedKey, VerifierKey};
use deltachain::{Error, Result};
use pyo3::prelude::*;

use crate::errors::raised;
use crate::gate;

/// A signer: a secret key, or a public one and a function that signs with it.
pub(crate) type SignerRow = (String, Option<Py<PyAny>>);

/// Public keys, each for all chains or followed by those that it is for, and how many of them have
/// to sign.
pub(crate) type TrustRow = (Vec<String>, usize);

/// The signers of these rows.
pub(crate) fn signers(py: Python<'_>, rows: Vec<SignerRow>) -> PyResult<Vec<Arc<dyn Signer>>> {
    let signer = |(key, function): SignerRow| -> Result<Arc<dyn Signer>> {
        Ok(match function {
            None => Arc::new(SigningKey::parse(&key)?),
            Some(function) => Arc::new(SignerFunction {
                public: key.parse()?,
                function,
            }),
        })
    };
    rows.into_iter()
        .map(signer)
        .collect::<Result<_>>()
        .map_err(|error| raised(py, &error))
}

/// Whom to trust.
pub(crate) fn trust(py: Python<'_>, given: Option<TrustRow>) -> PyResult<Option<Trust>> {
    let trust = |(keys, quorum): TrustRow| {
        let keys = keys
            .iter()
            .map(|key| key.parse())
            .collect::<Result<Vec<TrustedKey>>>()?;
        Trust::new(keys, quorum)
    };
    given
        .map(trust)
        .transpose()
        .map_err(|error| raised(py, &error))
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
        let failed = |error: PyErr| {
            Error::io(
                format!("signing with {key}"),
                io::Error::other(error.to_string()),
            )
        };
        let refused = || {
            Error::usage(format!(
                "the function that signs with {key} must return 64 bytes"
            ))
        };
        asked.map_err(failed)?.ok_or_else(refused)
    }
}
