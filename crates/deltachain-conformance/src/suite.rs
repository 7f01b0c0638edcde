//! The folder of the vectors: located, read and verified before any of it is used.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::index::{ADDITIONS, Base, Expect, Expected, FEATURES, FORMAT, Index, Kind, Vector};
use crate::problem::{Problem, Result};

const INDEX: &str = "index.json";
/// Maximum length of a file that is made from a short one.
const MOST_GROWN: u64 = 1 << 28;

/// The vectors; all of their files exist and have the SHA-256 that the index names.
#[derive(Debug)]
pub(crate) struct Suite {
    root: PathBuf,
    pub(crate) index: Index,
}

impl Suite {
    /// Reads the vectors from `folder`, from the folder of this program (in a bundle), or from the
    /// nearest `conformance` folder in the current directory or above.
    pub(crate) fn load(folder: Option<&Path>) -> Result<Self> {
        let root = folder.map_or_else(folder_of_vectors, |folder| Ok(folder.to_owned()))?;
        let root = root.canonicalize().map_err(Problem::with_file(&root))?;
        let path = root.join(INDEX);
        let text = fs::read_to_string(&path).map_err(Problem::with_file(&path))?;
        let index: Index = serde_json::from_str(&text).map_err(Problem::with_file(&path))?;
        let suite = Self { root, index };
        suite.check().map_err(Problem::with_file(&path))?;
        suite.verify()?;
        Ok(suite)
    }

    /// Returns the path of a file that the index names.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn vector(&self, id: &str) -> Option<&Vector> {
        self.index.vectors.iter().find(|vector| vector.id == id)
    }

    /// Makes the checks that the schema cannot make: names refer to something, and required members
    /// exist.
    fn check(&self) -> Result<(), String> {
        if self.index.format != FORMAT {
            return Err(format!(
                "format {} is not known to this program",
                self.index.format
            ));
        }
        let mut by_id = HashMap::new();
        for vector in &self.index.vectors {
            if by_id.insert(vector.id.as_str(), vector).is_some() {
                return Err(format!("{} is there twice", vector.id));
            }
        }
        for (id, minimal) in &self.index.minimal {
            let expect = by_id.get(id.as_str()).map(|vector| &vector.expect);
            let fits = |expect: &Expect| {
                (minimal.plan.is_none() || expect.plan.is_some())
                    && (minimal.replay.is_none() || expect.replay.is_some())
            };
            if !expect.is_some_and(fits) {
                return Err(format!("minimal: {id} is not a vector that is asked this"));
            }
        }
        for (id, routes) in &self.index.routes {
            let plan = by_id.get(id.as_str()).map(|vector| &vector.expect.plan);
            let Some(Some(Expected::Valid(plan))) = plan else {
                return Err(format!("routes: {id} has no plan"));
            };
            if routes.len() != plan.path.len() {
                return Err(format!("routes: {id} has a path of another length"));
            }
        }
        for (addition, ids) in &self.index.belongs {
            if !ADDITIONS.contains(&addition.as_str()) {
                return Err(format!("belongs: {addition} is not an addition"));
            }
            if let Some(id) = ids.iter().find(|id| !by_id.contains_key(id.as_str())) {
                return Err(format!("belongs: there is no vector {id}"));
            }
        }
        for vector in &self.index.vectors {
            let flaw = self.flaw(vector, &by_id);
            flaw.map_or(Ok(()), |flaw| Err(format!("{}: {flaw}", vector.id)))?;
        }
        Ok(())
    }

    fn flaw(&self, vector: &Vector, by_id: &HashMap<&str, &Vector>) -> Option<String> {
        let others = vector.twin.iter().chain(&vector.then);
        for other in others {
            if by_id
                .get(other.as_str())
                .is_none_or(|other| other.kind != vector.kind)
            {
                return Some(format!("there is no {} {other}", vector.kind.name()));
            }
        }
        if vector.grown.is_some_and(|grown| grown.length > MOST_GROWN) {
            return Some(format!("a file of more than {MOST_GROWN} bytes"));
        }
        if let Some(unknown) = vector
            .features
            .iter()
            .find(|feature| !FEATURES.contains(&feature.as_str()))
        {
            return Some(format!("{unknown} is not a feature"));
        }
        let results = [&vector.expect.apply, &vector.expect.in_place]
            .into_iter()
            .filter_map(|expected| match expected {
                Some(Expected::Valid(result)) => result.state.as_ref(),
                _ => None,
            });
        let replayed = [&vector.expect.replay, &vector.expect.replay_in_place]
            .into_iter()
            .filter_map(|expected| match expected {
                Some(Expected::Valid(replay)) => Some(replay),
                _ => None,
            });
        let shards = replayed
            .flat_map(|replay| replay.shards.values())
            .filter_map(|shard| shard.state.as_ref());
        let held = vector.held.iter().flat_map(|held| &held.shards);
        let base = vector.base.state();
        let mut states = results
            .chain(shards)
            .chain(held)
            .map(String::as_str)
            .chain(base);
        if let Some(unknown) = states.find(|state| !self.index.states.contains_key(*state)) {
            return Some(format!("{unknown} is not among the states"));
        }
        let expect = &vector.expect;
        let link = expect.check.is_some()
            || expect.apply.is_some()
            || expect.patches.is_some()
            || expect.sums.is_some()
            || expect.in_place.is_some();
        let document = expect.document.is_some();
        let chain =
            expect.plan.is_some() || expect.replay.is_some() || expect.replay_in_place.is_some();
        let fits = match vector.kind {
            Kind::Link => link && !document && !chain,
            Kind::Document => document && !link && !chain && vector.document.is_some(),
            Kind::Chain => chain && !link && !document,
        };
        if !fits {
            return Some(format!(
                "what is expected does not fit a {}",
                vector.kind.name()
            ));
        }
        ((expect.apply.is_some() || expect.in_place.is_some())
            && matches!(vector.base, Base::Absent))
        .then(|| "there is no base to apply it to".to_owned())
    }

    fn verify(&self) -> Result {
        let vectors = self
            .index
            .vectors
            .iter()
            .map(|vector| (&vector.file, &vector.sha256));
        for (name, expected) in vectors.chain(&self.index.states) {
            if !Path::new(name)
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
            {
                return Err(Problem::failed(format!(
                    "{name}: not a path inside the folder"
                )));
            }
            let path = self.path(name);
            let bytes = fs::read(&path).map_err(Problem::with_file(&path))?;
            let found = sha256(&bytes);
            if found != *expected {
                let message = format!(
                    "{}: its SHA-256 is {found}, the index names {expected}",
                    path.display()
                );
                return Err(Problem::failed(message));
            }
        }
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Finds the nearest `conformance` folder with an index.
pub(crate) fn folder_of_vectors() -> Result<PathBuf> {
    let here = std::env::current_dir().map_err(Problem::failed)?;
    let program = std::env::current_exe().ok();
    let bundle = program
        .as_deref()
        .and_then(Path::parent)
        .map(Path::to_owned);
    let folders = here.ancestors().map(|folder| folder.join("conformance"));
    bundle
        .into_iter()
        .chain(folders)
        .find(|folder| folder.join(INDEX).is_file())
        .ok_or_else(|| {
            Problem::usage(
                "there is no index.json beside this program, nor conformance/index.json \
                        here or above: name its folder with --vectors",
            )
        })
}
