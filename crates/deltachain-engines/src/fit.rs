//! Whether a version fits a server, by the files of the model that it has: known before it is paused.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{State, TensorInfo};

/// The layer that computes logits: files leave it out where it is the embedding, too.
const TIED: &str = "lm_head.weight";

/// Why the version in a directory does not fit a server whose model has been read from another one: tensors that only
/// one of them has, or of other shapes. Nothing if it fits, or if that cannot be known: the server's is not on this
/// machine any more. Dtypes may differ: servers convert.
pub(crate) fn misfit(has: &Path, version: &Path) -> Option<String> {
    let (has, version) = (SafetensorsState::open(has).ok()?, SafetensorsState::open(version).ok()?);
    let shapes = |state: &SafetensorsState| -> BTreeMap<String, Vec<u64>> {
        state.tensors().iter().map(|info: &TensorInfo| (info.name().to_owned(), info.shape().to_vec())).collect()
    };
    let (has, version) = (shapes(&has), shapes(&version));
    let mut names = has.keys().chain(version.keys()).filter(|name| *name != TIED);
    let name = names.find(|name| has.get(*name) != version.get(*name))?;
    Some(match (has.get(name), version.get(name)) {
        (Some(own), Some(other)) => format!("its {name:?} has the shape {own:?}, and that of the version {other:?}"),
        (Some(_), None) => format!("the version has no {name:?}"),
        (None, _) => format!("the version has {name:?}, which its model does not have"),
    })
}
