//! A temporary folder for the inputs and outputs of testees: states made from rules, unpacked
//! chains, outputs.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, StateDigests};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::by_rule;
use crate::cases::{Case, Expectation, Operation};
use crate::index::{Grown, Held, LAYOUTS, Vector};
use crate::problem::{Problem, Result};
use crate::suite::Suite;
use crate::unpack::unpack;

/// Makes requests. Files that are made for one request are kept for others.
#[derive(Debug)]
pub(crate) struct Workshop<'a> {
    suite: &'a Suite,
    folder: TempDir,
    /// Paths of the states as safetensors files.
    states: HashMap<String, PathBuf>,
    digests: HashMap<PathBuf, Digest>,
    /// Paths of the unpacked chains.
    chains: HashMap<String, PathBuf>,
    /// Paths of files that were made from shorter ones, by the id of the vector.
    grown: HashMap<String, PathBuf>,
}

/// A request, and the path of its output.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) json: Value,
    /// Nothing exists there yet; operations without an output leave it so.
    pub(crate) output: PathBuf,
}

impl<'a> Workshop<'a> {
    pub(crate) fn new(suite: &'a Suite) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("deltachain-conformance-")
            .tempdir()
            .map_err(Problem::failed)?;
        Ok(Self {
            suite,
            folder,
            states: HashMap::new(),
            digests: HashMap::new(),
            chains: HashMap::new(),
            grown: HashMap::new(),
        })
    }

    /// Returns the safetensors file of a state.
    pub(crate) fn state(&mut self, name: &str) -> Result<PathBuf> {
        if let Some(known) = self.states.get(name) {
            return Ok(known.clone());
        }
        let mut path = self.suite.path(name);
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let made = self
                .folder
                .path()
                .join(format!("state-{}.safetensors", self.states.len()));
            by_rule::make(&path, &made)?;
            path = made;
        }
        self.states.insert(name.to_owned(), path.clone());
        Ok(path)
    }

    /// Returns the digest of a state.
    pub(crate) fn digest(&mut self, name: &str) -> Result<Digest> {
        let path = self.state(name)?;
        if let Some(&known) = self.digests.get(&path) {
            return Ok(known);
        }
        let digest = StateDigests::of(&SafetensorsState::open(&path)?, &())?.state;
        self.digests.insert(path, digest);
        Ok(digest)
    }

    /// Returns the file of a vector.
    fn file(&mut self, vector: &Vector) -> Result<PathBuf> {
        let path = self.suite.path(&vector.file);
        let Some(grown) = vector.grown else {
            return Ok(path);
        };
        if let Some(known) = self.grown.get(&vector.id) {
            return Ok(known.clone());
        }
        let made = self
            .folder
            .path()
            .join(format!("grown-{}", self.grown.len()));
        grow(&path, grown, &made).map_err(Problem::with_file(&made))?;
        self.grown.insert(vector.id.clone(), made.clone());
        Ok(made)
    }

    fn chain(&mut self, vector: &Vector) -> Result<PathBuf> {
        if let Some(known) = self.chains.get(&vector.file) {
            return Ok(known.clone());
        }
        let path = self
            .folder
            .path()
            .join(format!("chain-{}", self.chains.len()));
        unpack(&self.file(vector)?, &path)?;
        self.chains.insert(vector.file.clone(), path.clone());
        Ok(path)
    }

    /// Makes the request for a case. Removes the output of the previous request.
    pub(crate) fn request(&mut self, case: &Case<'_>) -> Result<Request> {
        let folder = self.folder.path().join("output");
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(Problem::with_file(&folder))?;
        }
        fs::create_dir(&folder).map_err(Problem::with_file(&folder))?;
        let vector = case.vector;
        let (name, mut members) = match case.operation {
            Operation::Check | Operation::Patches | Operation::Sums => {
                let link = text(&self.file(vector)?)?;
                (
                    None,
                    json!({ "link": link, "set_bytes": vector.set_bytes, "coded_bytes": vector.coded_bytes }),
                )
            }
            Operation::Apply | Operation::InPlace => {
                let then = vector.then.iter().filter_map(|id| self.suite.vector(id));
                let links = std::iter::once(vector)
                    .chain(then)
                    .map(|link| text(&self.file(link)?));
                let members = json!({
                    "links": links.collect::<Result<Vec<_>>>()?,
                    "base": self.base(vector)?,
                    "set_bytes": vector.set_bytes,
                    "coded_bytes": vector.coded_bytes,
                });
                (Some("result.safetensors"), members)
            }
            Operation::EncodeCompact | Operation::EncodeDirect | Operation::EncodeLocal => {
                let Expectation::Encode { target } = case.expectation else {
                    return Err(Problem::failed(format!("{}: nothing to encode", case.id)));
                };
                let profile = match case.operation {
                    Operation::EncodeDirect => "direct",
                    Operation::EncodeLocal => "local",
                    _ => "compact",
                };
                let (base, target) = (self.base(vector)?, text(&self.state(target)?)?);
                (
                    Some("result.dcf"),
                    json!({ "base": base, "target": target, "profile": profile }),
                )
            }
            Operation::Document => (
                None,
                json!({ "file": text(&self.file(vector)?)?, "document": vector.document }),
            ),
            Operation::Plan => {
                let members = json!({
                    "chain": text(&self.chain(vector)?)?,
                    "held": vector.held.as_ref().map(held),
                    "version": vector.version,
                    "accept": vector.accept,
                    "direct": vector.direct,
                });
                (None, members)
            }
            Operation::Replay | Operation::ReplayInPlace => {
                let mut held = vector.held.as_ref().map(held);
                if let (Some(members), Some(version)) = (&mut held, &vector.held) {
                    let shards = version.shards.iter().map(|shard| text(&self.state(shard)?));
                    members["shards"] = json!(shards.collect::<Result<Vec<_>>>()?);
                    if let Some(layouts) = &version.layouts {
                        members["layouts"] = json!(layouts);
                    }
                }
                let take = vector.take.as_ref();
                let mut members = json!({
                    "chain": text(&self.chain(vector)?)?,
                    "held": held,
                    "version": vector.version,
                    "accept": vector.accept,
                    "shards": take.and_then(|take| take.shards.as_ref()),
                    "tensors": take.and_then(|take| take.tensors.as_ref()),
                    "set_bytes": vector.set_bytes,
                    "coded_bytes": vector.coded_bytes,
                });
                if vector.features.iter().any(|feature| feature == LAYOUTS) {
                    members["layouts"] = json!(true);
                }
                (Some("result"), members)
            }
        };
        let output = folder.join(name.unwrap_or("nothing"));
        members["case"] = json!(case.id);
        members["operation"] = json!(case.operation.name());
        // Only where it matters, because most readers do not know this member.
        if let (Some(trust), Operation::Plan | Operation::Replay) = (&vector.trust, case.operation)
        {
            members["trust"] = json!(trust);
        }
        if name.is_some() {
            members["output"] = json!(text(&output)?);
        }
        Ok(Request {
            json: members,
            output,
        })
    }

    /// Returns the base of a link for requests: a path, or null for the empty state.
    fn base(&mut self, vector: &Vector) -> Result<Option<String>> {
        vector
            .base
            .state()
            .map(|base| text(&self.state(base)?))
            .transpose()
    }
}

/// Makes a long file from a short one.
fn grow(from: &Path, Grown { at, length }: Grown, to: &Path) -> io::Result<()> {
    let mut bytes = fs::read(from)?;
    let more = length.saturating_sub(bytes.len() as u64);
    let after = usize::try_from(at)
        .ok()
        .filter(|at| *at < bytes.len())
        .map(|at| bytes.split_off(at));
    let after = after.ok_or(io::ErrorKind::InvalidInput)?;
    let mut out = File::create(to)?;
    out.write_all(&bytes)?;
    io::copy(&mut io::repeat(after[0]).take(more), &mut out)?;
    out.write_all(&after)
}

/// Describes the held version for `plan`.
fn held(held: &Held) -> Value {
    json!({ "version": held.version, "commit": held.commit, "chain": held.chain })
}

/// Returns a path as text for requests.
fn text(path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Problem::failed(format!("{}: not Unicode", path.display())))
}
