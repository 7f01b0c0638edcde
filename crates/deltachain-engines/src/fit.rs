//! Whether a version fits a server, by the files of the model that it has: known before it is
//! paused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use deltachain::files::SafetensorsState;
use deltachain::tensor::{State, TensorInfo};
use deltachain::{Error, Result};

use crate::server::Server;

/// The layer that computes logits: files leave it out where it is the embedding, too.
const TIED: &str = "lm_head.weight";

/// The shape of each tensor, by name.
pub type Shapes = BTreeMap<String, Vec<u64>>;

/// Why a version does not fit a server whose model has been read from this directory, or by this
/// name of the hub: tensors that only one of them has, or of other shapes. Nothing if it fits, or
/// if that cannot be known: the files are not on this machine. Dtypes may differ: servers convert.
pub fn misfit(model: &Path, version: &Shapes) -> Option<String> {
    let has = shapes(model).or_else(|| shapes(&snapshot(model, &hub_cache()?)?))?;
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
/// from: an absolute path, or a name of the hub. Only the server can find another path.
///
/// # Errors
/// IO if it does not fit, and is not to be sent to this path.
pub(crate) fn refused(server: &Server, path: &str, model: &str, version: &str) -> Result<()> {
    let model = Path::new(model);
    let can_be_found = model.is_absolute() || hub_folder(model).is_some();
    if !can_be_found {
        return Ok(());
    }
    let Some(version) = shapes(Path::new(version)) else {
        return Ok(());
    };
    match misfit(model, &version) {
        Some(why) => Err(not_sent(server, path, &why)),
        None => Ok(()),
    }
}

/// The cache of the hub on this machine, as the library `huggingface_hub` finds it.
fn hub_cache() -> Option<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = variable("HF_HUB_CACHE") {
        return Some(cache.into());
    }
    let home = variable("HF_HOME").map(PathBuf::from).or_else(|| {
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(Path::new(&variable("HOME")?).join(".cache")))?;
        Some(cache.join("huggingface"))
    })?;
    Some(home.join("hub"))
}

/// The folder of a model in the hub's cache, if this is a name of the hub, such as
/// `Qwen/Qwen3-0.6B`.
fn hub_folder(model: &Path) -> Option<String> {
    let text = model.to_str()?;
    let parts: Vec<&str> = text.split('/').collect();
    let is_name = |part: &str| {
        let is_usual = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_usual)
    };
    let is_id = parts.len() <= 2 && parts.iter().all(|part| is_name(part));
    is_id.then(|| format!("models--{}", parts.join("--")))
}

/// The files of a model in the hub's cache: the revision that `main` names, or the only one.
fn snapshot(model: &Path, cache: &Path) -> Option<PathBuf> {
    let folder = cache.join(hub_folder(model)?);
    let snapshots = folder.join("snapshots");
    if let Ok(revision) = fs::read_to_string(folder.join("refs").join("main")) {
        let named = snapshots.join(revision.trim());
        // A revision is the name of a folder here, and never a path.
        if named.parent() == Some(&snapshots) && named.is_dir() {
            return Some(named);
        }
    }
    let mut all = fs::read_dir(&snapshots).ok()?;
    let only = all.next()?.ok()?.path();
    match all.next() {
        None => Some(only),
        Some(_) => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub() {
        let folder = |name: &str| hub_folder(Path::new(name));
        assert_eq!(
            folder("Qwen/Qwen3-0.6B").as_deref(),
            Some("models--Qwen--Qwen3-0.6B")
        );
        assert_eq!(folder("gpt2").as_deref(), Some("models--gpt2"));
        for path in ["/models/a", "./a", "../a", "a/b/c", "a/", "", "a/..", "a b"] {
            assert_eq!(folder(path), None, "{path}");
        }
    }

    #[test]
    fn the_snapshot_of_a_name() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--tiny--qwen3");
        let model = Path::new("tiny/qwen3");
        assert_eq!(snapshot(model, cache.path()), None);
        let first = folder.join("snapshots").join("aaa");
        fs::create_dir_all(&first).unwrap();
        assert_eq!(snapshot(model, cache.path()), Some(first.clone()));
        fs::create_dir_all(folder.join("snapshots").join("bbb")).unwrap();
        assert_eq!(snapshot(model, cache.path()), None);
        fs::create_dir_all(folder.join("refs")).unwrap();
        for (revision, found) in [
            ("aaa\n", true),
            ("ccc", false),
            ("../..", false),
            ("", false),
        ] {
            fs::write(folder.join("refs").join("main"), revision).unwrap();
            let expected = found.then(|| first.clone());
            assert_eq!(snapshot(model, cache.path()), expected, "{revision}");
        }
    }
}
