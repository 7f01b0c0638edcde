//! Checks whether a version fits a server, with the files of the server's model: before the server
//! is paused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use deltachain::Error;
use deltachain::files::SafetensorsState;
use deltachain::tensor::{State, TensorInfo};

use crate::server::Server;

/// The layer that computes logits: files leave it out if it shares its weights with the embedding.
const TIED: &str = "lm_head.weight";

/// The shape of each tensor, by name.
pub type Shapes = BTreeMap<String, Vec<u64>>;

/// Explains why a version does not fit a server that has read its model from this directory, or by
/// this name of the hub: tensors that only one of them has, or that have other shapes. `None` if it
/// fits, or if the model's files are not on this machine. Dtypes may differ: servers convert them.
pub fn misfit(model: &Path, version: &Shapes) -> Option<String> {
    difference(&model_shapes(model)?, version)
}

/// Reads the shapes of a server's model, if its files are on this machine.
fn model_shapes(model: &Path) -> Option<Shapes> {
    shapes(model).or_else(|| shapes(&snapshot(model, &hub_cache()?)?))
}

/// Describes the first tensor that only one of two models has, or that has another shape.
pub fn difference(has: &Shapes, version: &Shapes) -> Option<String> {
    let mut names = has
        .keys()
        .chain(version.keys())
        .filter(|name| *name != TIED);
    let name = names.find(|name| has.get(*name) != version.get(*name))?;
    Some(match (has.get(name), version.get(name)) {
        (Some(own), Some(other)) => {
            format!("{name:?} has the shape {own:?} in its model, and {other:?} in the version")
        }
        (Some(_), None) => format!("the version has no {name:?}"),
        (None, _) => format!("the version has {name:?}, which its model does not have"),
    })
}

/// Result of comparing a version with a server's model, as far as files on this machine allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Both have the same tensors, or the engine needs no comparison here.
    Fits,
    /// The version does not fit, for this reason.
    Misfit(String),
    /// A comparison is impossible, for this reason.
    Unknown(String),
}

/// Compares the version in a directory with the model of a server, which says where it read its
/// model: an absolute path, or a name of the hub. Only the server can resolve other paths.
pub(crate) fn compare(model: &str, version: &str) -> Fit {
    if model.is_empty() {
        return Fit::Unknown("it does not report where it read its model".to_owned());
    }
    let path = Path::new(model);
    if !path.is_absolute() && hub_folder(path).is_none() {
        return Fit::Unknown(format!("only the server can find its model {model:?}"));
    }
    let Some(has) = model_shapes(path) else {
        return Fit::Unknown(format!(
            "the tensors of its model {model:?} are not on this machine"
        ));
    };
    compare_shapes(&has, version)
        .unwrap_or_else(|| Fit::Unknown("the directory of the version cannot be read".to_owned()))
}

/// Compares the version in a directory with a model of these shapes. `None` if the directory cannot
/// be read.
pub(crate) fn compare_shapes(has: &Shapes, version: &str) -> Option<Fit> {
    let version = shapes(Path::new(version))?;
    Some(match difference(has, &version) {
        Some(why) => Fit::Misfit(why),
        None => Fit::Fits,
    })
}

/// Returns the hub's cache on this machine, as the library `huggingface_hub` finds it.
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

/// Returns the folder of a model in the hub's cache, if this is a name of the hub, such as
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

/// Finds the files of a model in the hub's cache: the revision that `main` names, or the only one.
fn snapshot(model: &Path, cache: &Path) -> Option<PathBuf> {
    let folder = cache.join(hub_folder(model)?);
    let snapshots = folder.join("snapshots");
    if let Ok(revision) = fs::read_to_string(folder.join("refs").join("main")) {
        let named = snapshots.join(revision.trim());
        // The revision must be the name of a folder here, not a path.
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

/// Makes the error for a version that was not sent to a server.
pub(crate) fn not_sent(server: &Server, why: &str) -> Error {
    server.failed("an update", format!("not sent, since {why}"))
}

/// Reads the shapes of the model in a directory, if it can be read.
pub(crate) fn shapes(directory: &Path) -> Option<Shapes> {
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
