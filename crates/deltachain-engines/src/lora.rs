//! Adapters for vLLM: each version is an adapter of its own, `NAME@VERSION`. Requests that name an
//! older adapter are served until it is unloaded; nothing is paused.
//!
//! vLLM may read an adapter again at any time, so each one has its own copy in `DIR/adapters` as
//! long as a server has it loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use deltachain::{Error, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::engine::{
    Client, Condition, Engine, Failure, Look, Target, Version, as_text, locked, text,
};
use crate::server::{Ask, Server};

/// Number of digits of a commit's digest in the name of a copy.
const COMMIT_DIGITS: usize = 12;

/// The adapters of one chain in servers of vLLM.
#[derive(Debug)]
struct Lora {
    name: String,
    /// Number of older versions that stay loaded.
    keep: usize,
    /// `DIR/adapters`, an absolute path.
    copies: PathBuf,
    /// Number of servers.
    servers: usize,
    /// The copies that each server has loaded, by its URL; also guards the directory.
    in_use: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

/// The adapters of this chain in a server: for each version, the path that it was read from.
type Adapters = BTreeMap<u64, String>;

impl Engine {
    /// Makes the engine for adapters of vLLM that are the versions of a chain. `directory` is the
    /// absolute path of the directory that follows the chain; adapters are called `NAME@VERSION`,
    /// with a name of [`parse_name`]; `keep` older ones stay loaded; `servers` is the number of
    /// servers.
    pub fn lora(name: String, keep: usize, directory: &Path, servers: usize) -> Self {
        Self {
            client: Box::new(Lora::new(name, keep, directory, servers)),
            refuses: false,
            sends_unchecked: true,
        }
    }
}

impl Lora {
    fn new(name: String, keep: usize, directory: &Path, servers: usize) -> Self {
        Self {
            name,
            keep,
            copies: directory.join("adapters"),
            servers,
            in_use: Mutex::default(),
        }
    }

    /// Returns the name of a version in requests.
    fn adapter(&self, version: u64) -> String {
        format!("{}@{version}", self.name)
    }

    fn copy_of(&self, target: &Target) -> PathBuf {
        let commit: String = target.commit.chars().take(COMMIT_DIGITS).collect();
        self.copies
            .join(format!("{}-{commit}", self.adapter(target.version.number)))
    }

    /// Returns the version in a name such as `NAME@12`.
    fn version_of(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(&self.name)?.strip_prefix('@')?;
        digits
            .parse()
            .ok()
            .filter(|version: &u64| version.to_string() == digits)
    }

    fn loaded(&self, server: &Server) -> Result<Adapters> {
        let models = server.get("/v1/models", Ask::Question)?;
        self.listed(&models)
            .ok_or_else(|| server.failed("/v1/models", "it does not list its models"))
    }

    fn listed(&self, models: &Value) -> Option<Adapters> {
        let found = models["data"].as_array()?.iter().filter_map(|model| {
            self.version_of(text(model, "id"))
                .map(|version| (version, text(model, "root").to_owned()))
        });
        Some(found.collect())
    }

    /// Returns the versions to unload: too old, or newer than the head after a rollback.
    fn surplus(&self, loaded: &Adapters, target: &Target) -> Vec<u64> {
        let newer = loaded
            .keys()
            .filter(|version| **version > target.version.number);
        let older = loaded
            .keys()
            .rev()
            .filter(|version| **version < target.version.number);
        newer.chain(older.skip(self.keep)).copied().collect()
    }

    fn unload(&self, server: &Server, version: u64) -> Result<()> {
        server
            .post(
                "/v1/unload_lora_adapter",
                &json!({ "lora_name": self.adapter(version) }),
                Ask::Once,
            )
            .map(drop)
    }

    /// Copies a version, unless the copy exists.
    fn make_copy(&self, target: &Target) -> Result<PathBuf> {
        let _guard = locked(&self.in_use);
        let copy = self.copy_of(target);
        if !copy.is_dir() {
            self.write_copy(target, &copy)
                .map_err(|error| Error::io("copying an adapter", error).in_file(&copy))?;
        }
        Ok(copy)
    }

    fn write_copy(&self, target: &Target, copy: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.copies)?;
        let beside = TempDir::new_in(&self.copies)?;
        copy_files(Path::new(&target.directory), beside.path())?;
        // The rename makes the whole copy appear at once.
        fs::rename(beside.path(), copy)?;
        let _ = beside.keep();
        Ok(())
    }

    /// Records the copies that this server has loaded; once all servers are known, removes the
    /// copies that none of them has.
    fn remove_copies(&self, server: &Server, loaded: Adapters, target: &Target) -> Result<()> {
        let mut in_use = locked(&self.in_use);
        in_use.insert(server.url.clone(), loaded.into_values().collect());
        if in_use.len() < self.servers {
            return Ok(());
        }
        let in_use: BTreeSet<&Path> = in_use.values().flatten().map(Path::new).collect();
        self.remove_unused(&in_use, &self.copy_of(target))
            .map_err(|error| {
                Error::io("removing adapters that no server has", error).in_file(&self.copies)
            })
    }

    /// Removes the copies of this chain that are neither in use nor the newest.
    fn remove_unused(&self, in_use: &BTreeSet<&Path>, newest: &Path) -> io::Result<()> {
        for entry in fs::read_dir(&self.copies)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_ours = name.rsplit_once('-').is_some_and(|(name, commit)| {
                self.version_of(name).is_some() && commit.len() == COMMIT_DIGITS
            });
            if is_ours && !in_use.contains(path.as_path()) && path != newest {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }
}

impl Client for Lora {
    fn look(&self, server: &Server, target: &Target, known: Option<&Version>) -> Result<Look> {
        let loaded = self.loaded(server)?;
        let seen = known.filter(|known| loaded.contains_key(&known.number));
        let root = loaded.get(&target.version.number);
        let is_there = seen == Some(&target.version)
            && root.is_some_and(|root| Path::new(root) == self.copy_of(target));
        let is_wanted = is_there && self.surplus(&loaded, target).is_empty();
        Ok(if is_wanted {
            Look::Wanted
        } else {
            Look::Other(seen.map(Version::served))
        })
    }

    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool {
        let models = server.glance("/v1/models", is_changing).ok().flatten();
        let loaded = models
            .and_then(|models| self.listed(&models))
            .unwrap_or_default();
        versions
            .iter()
            .any(|version| loaded.contains_key(&version.number))
    }

    fn bring(
        &self,
        server: &Server,
        target: &Target,
        _: Option<&Condition>,
    ) -> Result<Option<Duration>, Failure> {
        let copy = self.make_copy(target)?;
        let path = as_text(&copy)?;
        let mut loaded = self.loaded(server)?;
        let version = target.version.number;
        if loaded.get(&version) != Some(&path) {
            // The loaded adapter has the same number, but comes from before a rollback or from
            // another chain.
            if loaded.remove(&version).is_some() {
                self.unload(server, version)?;
            }
            let adapter = json!({ "lora_name": self.adapter(version), "lora_path": path });
            server.post("/v1/load_lora_adapter", &adapter, Ask::Once)?;
            loaded.insert(version, path);
        }
        for version in self.surplus(&loaded, target) {
            self.unload(server, version)?;
            loaded.remove(&version);
        }
        self.remove_copies(server, loaded, target)?;
        Ok(None)
    }
}

/// Copies a directory and everything in it.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let copy = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            fs::create_dir(&copy)?;
            copy_files(&path, &copy)?;
        } else {
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}

/// Checks the name of an adapter, which becomes part of a file's name and of `NAME@VERSION`.
///
/// # Errors
/// A text for people that describes a valid name.
pub fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.starts_with('.') || !text.chars().all(is_plain) {
        return Err("must be a name of letters, digits, '-', '_' and '.'".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(version: u64) -> Target {
        let version = Version {
            number: version,
            state: "s".into(),
        };
        Target {
            version,
            commit: "0123456789abcdef".into(),
            chain: "c".into(),
            directory: "/d".into(),
        }
    }

    #[test]
    fn older_adapters_are_kept_and_newer_ones_are_not() {
        let lora = Lora::new("a".into(), 2, Path::new("/d"), 1);
        let loaded: Adapters = [1, 2, 3, 4, 7]
            .map(|version| (version, String::new()))
            .into();
        assert_eq!(lora.surplus(&loaded, &target(5)), [7, 2, 1]);
        assert_eq!(lora.surplus(&loaded, &target(7)), [2, 1]);
        assert_eq!(
            lora.copy_of(&target(5)),
            Path::new("/d/adapters/a@5-0123456789ab")
        );
    }

    #[test]
    fn only_names_of_this_chain_count() {
        let lora = Lora::new("a".into(), 2, Path::new("/d"), 1);
        assert_eq!(lora.version_of("a@12"), Some(12));
        for name in [
            "a",
            "a@",
            "a@012",
            "a@+1",
            "b@1",
            "aa@1",
            "a@1-0",
            "a@18446744073709551616",
        ] {
            assert_eq!(lora.version_of(name), None, "{name}");
        }
    }

    #[test]
    fn names_are_parts_of_file_names() {
        assert_eq!(parse_name("run-7.b_1").unwrap(), "run-7.b_1");
        for name in ["", ".", "..", "a/b", "a@b", "a b", ".hidden"] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }
}
