//! Forms and digests of tensors, for Python.

use deltachain::tensor::{Digest, TensorInfo};
use pyo3::prelude::*;

/// Name, dtype and shape of a tensor.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct TensorForm {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
}

impl TensorForm {
    pub(crate) fn of(info: &TensorInfo) -> Self {
        Self {
            name: info.name().to_owned(),
            dtype: info.dtype().name().to_owned(),
            shape: info.shape().to_vec(),
        }
    }
}

pub(crate) fn forms<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Vec<TensorForm> {
    tensors.into_iter().map(TensorForm::of).collect()
}

/// A tensor of a state, with its digest.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct TensorDigest {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    digest: String,
}

impl TensorDigest {
    pub(crate) fn of(info: &TensorInfo, digest: Digest) -> Self {
        let TensorForm { name, dtype, shape } = TensorForm::of(info);
        Self {
            name,
            dtype,
            shape,
            digest: digest.to_string(),
        }
    }
}
