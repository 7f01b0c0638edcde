//! Whether a version fits a server, by the files of the model that it has: known before it is
//! paused.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{State, TensorInfo};
use deltachain::{Error, Result};

use crate::server::Server;

/// The layer that computes logits: files leave it out where it is the embedding, too.
const TIED: &str = "lm_head.weight";

/// The shape of each tensor, by name.
pub type Shapes = BTreeMap<String, Vec<u64>>;

/// Why a version does not fit a server whose model has been read from this directory: tensors that
/// only one of them has, or of other shapes. Nothing if it fits, or if that cannot be known: the
/// directory is not on this machine any more. Dtypes may differ: servers convert.
pub fn misfit(model: &Path, version: &Shapes) -> Option<String> {
    let has = shapes(model)?;
    let mut names = has
        .keys()
        .chain(version.keys())
        .filter(|name| *name != TIED);
    let name = names.find(|name| has.get(*name) != version.get(*name))?;
    Some(match (has.get(name), version.get(name)) {
        (Some(own), Some(other)) => {
            format!("its {name:?} has the shape {own:?}, and that of the version {other:?}")
        }
        (Some(_), None) => format!("the version has no {name:?}"),
        (None, _) => format!("the version has {name:?}, which its model does not have"),
    })
}

/// Compares the version in a directory with the model of a server that says where it has read that
/// from. What is not a whole path, only the server can find.
///
/// # Errors
/// IO if it does not fit, and is not to be sent to this path.
pub(crate) fn refused(server: &Server, path: &str, model: &str, version: &str) -> Result<()> {
    let model = Some(Path::new(model)).filter(|model| model.is_absolute());
    let why = model
        .zip(shapes(Path::new(version)))
        .and_then(|(model, version)| misfit(model, &version));
    why.map_or(Ok(()), |why| Err(not_sent(server, path, &why)))
}

/// Nothing was sent to this path of a server.
pub(crate) fn not_sent(server: &Server, path: &str, why: &str) -> Error {
    server.failed(path, format!("not sent, since {why}"))
}

fn shapes(directory: &Path) -> Option<Shapes> {
    let state = SafetensorsState::open(directory).ok()?;
    Some(
        state
            .tensors()
            .iter()
            .map(|info: &TensorInfo| (info.name().to_owned(), info.shape().to_vec()))
            .collect(),
    )
}
