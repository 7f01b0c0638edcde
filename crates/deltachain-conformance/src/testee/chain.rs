//! The operations on chains: `document`, `plan`, `replay`, with a reader of chains that lie in a folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use deltachain::chain::{
    ChainDocument, Commit, FileReference, Held, Hop, Listing, Plan, Planner, RoutesDocument, Step, check_target,
    check_union,
};
use deltachain::tensor::{Digest, Layout, MemoryState, SafetensorsState, StagedSafetensors, State, StateDigests};
use deltachain::{Application, Error, FileSource, Limits, LinkReader, Result, Source};
use serde_json::{Value, json};

use crate::testee::request::Request;

pub(super) fn document(request: &Request<'_>) -> Result<Value> {
    let path = request.path("file")?;
    let bytes = fs::read(path).map_err(reading(path))?;
    let limits = Limits::default();
    match request.text("document")? {
        "chain" => ChainDocument::parse(&bytes, &limits).map(drop),
        "commit" => Commit::parse(&bytes, &limits).map(drop),
        "routes" => RoutesDocument::parse(&bytes, &limits).map(drop),
        other => Err(Error::usage(format!("there is no document {other}"))),
    }?;
    Ok(json!({}))
}

pub(super) fn plan(request: &Request<'_>) -> Result<Value> {
    let chain = Chain(request.path("chain")?);
    let held = request.object("held").map(|held| version_held(&held)).transpose()?;
    let mut planner = Planner::new(request.optional_number("version"), held, &Limits::default());
    let plan = chain.plan(&mut planner)?;
    let path: Vec<u64> = plan.hops.iter().map(|hop| hop.version).collect();
    let bytes = u64::try_from(plan.bytes).map_err(|_| Error::usage("the sizes add up to more than JSON can say"))?;
    Ok(json!({ "version": plan.version, "bytes": bytes, "path": path }))
}

pub(super) fn replay(request: &Request<'_>) -> Result<Value> {
    let chain = Chain(request.path("chain")?);
    let plan = chain.replay(request)?;
    Ok(json!({ "version": plan.version, "digest": plan.state.to_string() }))
}

fn version_held(held: &Request<'_>) -> Result<Held> {
    let version = held.optional_number("version").ok_or_else(|| Error::usage("held lacks version"))?;
    let commit = Digest::from_hex(held.text("commit")?).ok_or_else(|| Error::usage("commit is no digest"))?;
    Ok(Held { version, commit })
}

fn reading(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io("reading", error).in_file(path)
}

fn writing(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io("writing", error).in_file(path)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// A shard of a version, on the way to the version wanted.
struct Shard {
    tensors: Tensors,
    digests: StateDigests,
}

enum Tensors {
    None(MemoryState),
    Held(SafetensorsState, PathBuf),
    /// Not visible yet.
    Made(StagedSafetensors),
}

impl Shard {
    /// The shard of the version held, or the empty state.
    fn start(held: Option<&Path>) -> Result<Self> {
        let tensors = match held {
            Some(path) => Tensors::Held(SafetensorsState::open(path)?, path.to_owned()),
            None => Tensors::None(MemoryState::new()),
        };
        let mut shard = Self { tensors, digests: StateDigests::from_tensors(&[], Vec::new()) };
        shard.digests = StateDigests::of(shard.state(), &())?;
        Ok(shard)
    }

    fn state(&self) -> &dyn State {
        match &self.tensors {
            Tensors::None(state) => state,
            Tensors::Held(state, _) => state,
            Tensors::Made(state) => state,
        }
    }

    /// The shard that a link makes of this one. It will be saved in the file `out`, or be the base of the next.
    fn apply(&self, link: &LinkReader<impl Source>, out: &Path) -> Result<Self> {
        let application = Application::new(self.state(), &self.digests, link)?;
        let tensors = application.tensors();
        let staged = StagedSafetensors::create(out, tensors, &Layout::single_file(tensors), None, false)?;
        let digests = application.run(&staged, &())?;
        Ok(Self { tensors: Tensors::Made(staged), digests })
    }

    fn save(self, out: &Path) -> Result<()> {
        match self.tensors {
            Tensors::Made(staged) => staged.commit(),
            Tensors::Held(_, path) => fs::copy(path, out).map(drop).map_err(writing(out)),
            Tensors::None(_) => Err(Error::usage("the version held lacks a shard")),
        }
    }
}

fn file_of(folder: &Path, shard: usize) -> PathBuf {
    folder.join(format!("{shard}.safetensors"))
}

/// A chain in a folder.
struct Chain<'a>(&'a Path);

impl Chain<'_> {
    fn list(&self) -> Result<Listing> {
        let mut names = Vec::new();
        for folder in ["commits", "routes"] {
            let path = self.0.join(folder);
            let entries = match fs::read_dir(&path) {
                Err(error) if is_missing(&error) => continue,
                entries => entries.map_err(reading(&path))?,
            };
            for entry in entries {
                let name = entry.map_err(reading(&path))?.file_name();
                // A folder is no object, whatever its name.
                if let Some(name) = name.to_str().filter(|name| path.join(name).is_file()) {
                    names.push(format!("{folder}/{name}"));
                }
            }
        }
        Ok(Listing::new(names))
    }

    /// Steps 1 to 4 of SPEC section 19.
    fn plan(&self, planner: &mut Planner) -> Result<Plan> {
        loop {
            match planner.step()? {
                Step::Follow(plan) => return Ok(plan),
                Step::List => planner.list(self.list()?),
                Step::Fetch(names) => {
                    for name in names {
                        let path = self.0.join(name.to_string());
                        match fs::read(&path) {
                            Ok(bytes) => planner.supply(name, Some(&bytes)),
                            Err(error) if is_missing(&error) => planner.supply(name, None),
                            Err(error) => return Err(reading(&path)(error)),
                        }
                    }
                }
            }
        }
    }

    /// All steps.
    fn replay(&self, request: &Request<'_>) -> Result<Plan> {
        let held = request.object("held");
        let version = held.as_ref().map(version_held).transpose()?;
        let held_shards = held.map_or(Ok(Vec::new()), |held| held.paths("shards"))?;
        let mut planner = Planner::new(request.optional_number("version"), version, &Limits::default());
        loop {
            let plan = self.plan(&mut planner)?;
            match self.build(&plan, &held_shards, request.path("output")?) {
                Ok(()) => return Ok(plan),
                Err(Failure::File(file, error)) => planner.fail_file(file, error),
                Err(Failure::Route(hop, error)) => planner.fail_route(hop, error),
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Steps 5 and 6. The output appears when everything has been checked.
    fn build<'p>(&self, plan: &'p Plan, held: &[PathBuf], output: &Path) -> Result<(), Failure<'p>> {
        let from_nothing = plan.hops.first().is_some_and(|hop| hop.from.is_none());
        let held = |number: usize| held.get(number).filter(|_| !from_nothing).map(PathBuf::as_path);
        let mut shards = (0..plan.shards.len()).map(|number| Shard::start(held(number))).collect::<Result<Vec<_>>>()?;
        let scratch = tempfile::tempdir_in(output.parent().unwrap_or(output)).map_err(writing(output))?;
        for hop in &plan.hops {
            self.follow(hop, &mut shards, scratch.path())?;
        }
        check_union(plan.state, shards.iter().map(|shard| (shard.state().tensors(), &shard.digests)))?;
        for (number, shard) in shards.into_iter().enumerate() {
            shard.save(&file_of(scratch.path(), number))?;
        }
        fs::rename(scratch.path(), output).map_err(writing(output))?;
        // It has another name now, so there is nothing to remove.
        let _ = scratch.keep();
        Ok(())
    }

    /// Follows one route: the shards become those of the version that it leads to.
    fn follow<'p>(&self, hop: &'p Hop, shards: &mut [Shard], scratch: &Path) -> Result<(), Failure<'p>> {
        for (number, ((file, target), shard)) in hop.files.iter().zip(&hop.shards).zip(shards).enumerate() {
            let path = self.fetch(file).map_err(|error| Failure::of(error, |error| Failure::File(file, error)))?;
            let apply = || {
                let mut limits = Limits::default();
                limits.set_bytes = u64::MAX;
                let link = LinkReader::open(FileSource::open(&path)?, &limits)?;
                check_target(link.header(), *target)?;
                shard.apply(&link, &file_of(scratch, number))
            };
            *shard = apply().map_err(|error| {
                Failure::of(error.in_file(file.name().to_string()), |error| Failure::Route(hop, error))
            })?;
        }
        Ok(())
    }

    /// Where the file is, if it is the one that the route names.
    fn fetch(&self, reference: &FileReference) -> Result<PathBuf> {
        let path = self.0.join(reference.name().to_string());
        let file = match File::open(&path) {
            Err(error) if is_missing(&error) => return Err(reference.missing()),
            file => file.map_err(reading(&path))?,
        };
        let size = file.metadata().map_err(reading(&path))?.len();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(reading(&path))?;
        reference.check(size, Digest(*hasher.finalize().as_bytes()))?;
        Ok(path)
    }
}

/// Why a plan could not be followed.
enum Failure<'p> {
    /// A file is missing or another one.
    File(&'p FileReference, Error),
    /// A link was refused.
    Route(&'p Hop, Error),
    /// No other path will help.
    Other(Error),
}

impl Failure<'_> {
    /// What the operating system refuses is no reason to take another path.
    fn of(error: Error, broken: impl FnOnce(Error) -> Self) -> Self {
        if error.rule().is_some() { broken(error) } else { Self::Other(error) }
    }
}

impl From<Error> for Failure<'_> {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

#[cfg(test)]
mod tests;
