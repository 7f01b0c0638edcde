//! The operations on chains, `document`, `plan` and `replay`, with a reader of chains in folders.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use deltachain::chain::{
    Asset, ChainDocument, Commit, FileReference, Hop, Listing, ObjectName, Plan, Planner,
    RoutesDocument, Trust, TrustedKey, VersionId, check_held, check_target, check_union,
};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, FileSource, Limits, LinkReader, Result};
use serde_json::{Value, json};

use crate::testee::link::limits;
use crate::testee::request::Request;
use crate::testee::shard::{LayoutCheck, Shard, Take};

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
    let planner = planner(request)?;
    let mut planner = if request.is_set("direct") {
        planner.direct()
    } else {
        planner
    };
    let plan = chain.plan(&mut planner)?;
    let path: Vec<u64> = plan.hops.iter().map(|hop| hop.version).collect();
    let routes: Vec<Vec<String>> = plan.hops.iter().map(digests_of).collect();
    let bytes = u64::try_from(plan.bytes)
        .map_err(|_| Error::usage("the sizes add up to more than JSON can say"))?;
    Ok(json!({ "version": plan.version, "bytes": bytes, "path": path, "routes": routes }))
}

/// Returns the digests of the files of a route.
fn digests_of(hop: &Hop) -> Vec<String> {
    hop.files
        .iter()
        .map(|file| file.digest.to_string())
        .collect()
}

pub(super) fn replay(request: &Request<'_>) -> Result<Value> {
    replayed(request, false)
}

/// Replays in place: the states of the held version are memory to which links are applied.
pub(super) fn replay_in_place(request: &Request<'_>) -> Result<Value> {
    replayed(request, true)
}

fn replayed(request: &Request<'_>, in_place: bool) -> Result<Value> {
    let version = request.object("held");
    let held = version
        .as_ref()
        .map_or(Ok(Vec::new()), |held| held.paths("shards"))?;
    let looks_at_layouts = request.is_set("layouts");
    let shards = request
        .optional_numbers("shards")?
        .map(|numbers| numbers.into_iter().collect::<BTreeSet<_>>());
    let last = shards
        .iter()
        .flatten()
        .map(|number| usize::try_from(*number).unwrap_or(usize::MAX))
        .max();
    let tensors = request
        .optional_texts("tensors")?
        .map(|names| names.into_iter().collect());
    let replay = Replay {
        chain: Chain(request.path("chain")?),
        held,
        held_layouts: version.as_ref().map_or(Ok(Vec::new()), Request::layouts)?,
        layouts: looks_at_layouts.then(|| request.object("trust").is_some()),
        take: Take { shards, tensors },
        limits: limits(request),
        in_place,
        output: request.path("output")?,
    };
    let planner = planner(request)?.shards(last);
    let (plan, digests) = replay.run(if in_place {
        planner.in_place()
    } else {
        planner
    })?;
    let mut answer = json!({ "version": plan.version, "digest": plan.state.to_string() });
    if looks_at_layouts {
        answer["layouts"] = digests.iter().map(Digest::to_string).collect();
    }
    Ok(answer)
}

fn planner(request: &Request<'_>) -> Result<Planner> {
    let held = request
        .object("held")
        .map(|held| version_held(&held))
        .transpose()?;
    let accept = request.optional_digest("accept")?;
    let planner = Planner::new(
        request.optional_number("version"),
        held,
        accept,
        &Limits::default(),
    );
    let Some(trust) = request.object("trust") else {
        return Ok(planner);
    };
    let keys = trust
        .texts("keys")?
        .iter()
        .map(|key| key.parse())
        .collect::<Result<Vec<TrustedKey>>>()?;
    let quorum = usize::try_from(trust.number("quorum")?).unwrap_or(usize::MAX);
    let seen = trust
        .object("seen")
        .map(|seen| Ok((seen.number("version")?, seen.digest("commit")?)))
        .transpose()?;
    Ok(planner.trust(Trust::new(keys, quorum)?, seen))
}

fn version_held(held: &Request<'_>) -> Result<VersionId> {
    Ok(VersionId {
        version: held.number("version")?,
        commit: held.digest("commit")?,
        chain: held.digest("chain")?,
    })
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

/// A chain in a folder. Objects are regular files, or symbolic links to regular files.
struct Chain<'a>(&'a Path);

impl Chain<'_> {
    fn path(&self, name: ObjectName) -> PathBuf {
        self.0.join(name.to_string())
    }

    fn open(&self, name: ObjectName) -> Result<Option<File>> {
        let path = self.path(name);
        match File::open(&path) {
            Err(error) if is_missing(&error) => Ok(None),
            Ok(file) if !file.metadata().map_err(reading(&path))?.is_file() => Ok(None),
            file => file.map(Some).map_err(reading(&path)),
        }
    }

    fn read(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        let Some(mut file) = self.open(name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(reading(&self.path(name)))?;
        Ok(Some(bytes))
    }

    fn list(&self) -> Result<Listing> {
        let mut names = Vec::new();
        for folder in ["commits", "routes", "signatures"] {
            let path = self.0.join(folder);
            let entries = match fs::read_dir(&path) {
                Err(error) if is_missing(&error) => continue,
                entries => entries.map_err(reading(&path))?,
            };
            for entry in entries {
                let name = entry.map_err(reading(&path))?.file_name();
                if let Some(name) = name.to_str().filter(|name| path.join(name).is_file()) {
                    names.push(format!("{folder}/{name}"));
                }
            }
        }
        Ok(Listing::new(names))
    }

    /// Runs steps 1 to 4 of SPEC section 19.
    fn plan(&self, planner: &mut Planner) -> Result<Plan> {
        let fetch = |names: &[ObjectName], _| {
            names
                .iter()
                .map(|&name| Ok((name, self.read(name)?)))
                .collect()
        };
        planner.plan_with(|_, _| self.list(), fetch)
    }

    /// Returns the path of a link, after checking that it is the one that the route names: step
    /// 5.1.
    fn link(&self, reference: &FileReference) -> Result<PathBuf> {
        let path = self.path(reference.name());
        let file = self
            .open(reference.name())?
            .ok_or_else(|| reference.missing())?;
        let size = file.metadata().map_err(reading(&path))?.len();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(reading(&path))?;
        reference.check(size, Digest(*hasher.finalize().as_bytes()))?;
        Ok(path)
    }

    /// Reads an asset: step 7.
    fn asset(&self, asset: &Asset) -> Result<Vec<u8>> {
        let bytes = self
            .read(asset.object_name())?
            .ok_or_else(|| asset.missing())?;
        asset.check(bytes.len() as u64, Digest::of_bytes(&bytes))?;
        Ok(bytes)
    }
}

fn file_of(folder: &Path, shard: usize) -> PathBuf {
    folder.join(format!("{shard}.safetensors"))
}

/// A replay: all steps of SPEC section 19.
struct Replay<'a> {
    chain: Chain<'a>,
    /// A file for each shard of the held version.
    held: Vec<PathBuf>,
    /// The text of each held shard's layout, and true if it is proven; empty if layouts are not
    /// checked.
    held_layouts: Vec<(String, bool)>,
    /// True if layouts must be proven; `None` if they are not checked.
    layouts: Option<bool>,
    take: Take,
    limits: Limits,
    in_place: bool,
    output: &'a Path,
}

impl Replay<'_> {
    /// Returns the plan that was followed, and the layouts of the selected shards.
    fn run(&self, mut planner: Planner) -> Result<(Plan, Vec<Digest>)> {
        loop {
            let plan = self.chain.plan(&mut planner)?;
            match self.build(&plan) {
                Ok(layouts) => return Ok((plan, layouts)),
                Err(Failure::Held(error)) => planner.fail_held(error),
                Err(Failure::File(file, error)) => planner.fail_file(file, error),
                Err(Failure::Route(hop, error)) => planner.fail_route(hop, error),
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Runs steps 5 to 7; returns the layouts. The output appears when everything has been checked.
    fn build<'p>(&self, plan: &'p Plan) -> Result<Vec<Digest>, Failure<'p>> {
        let folder = self.output.parent().unwrap_or(self.output);
        let scratch = tempfile::tempdir_in(folder).map_err(writing(self.output))?;
        let mut shards = self.start(plan)?;
        for (number, shard) in &mut shards {
            *shard = self.follow(plan, *number, shard, scratch.path())?;
        }
        // A reader of only some shards relies on the commit for the others.
        if shards.len() == plan.shards.len() {
            let tables = shards
                .iter()
                .map(|(_, shard)| (&*shard.table().tensors, &shard.table().digests));
            check_union(plan.state, tables)?;
        }
        for (number, shard) in &shards {
            shard.save(&file_of(scratch.path(), *number))?;
        }
        self.copy_assets(plan, scratch.path())?;
        fs::rename(scratch.path(), self.output).map_err(writing(self.output))?;
        // The folder has been renamed, so there is nothing to remove.
        let _ = scratch.keep();
        Ok(shards
            .iter()
            .filter_map(|(_, shard)| shard.layout())
            .collect())
    }

    /// Returns the selected shards at the beginning of the path, by number: shards of the held
    /// version, or empty states.
    fn start<'p>(&self, plan: &Plan) -> Result<Vec<(usize, Shard)>, Failure<'p>> {
        let taken = (0..plan.shards.len()).filter(|number| self.take.has_shard(*number));
        let Some(named) = &plan.start else {
            return Ok(taken.map(|number| (number, Shard::empty())).collect());
        };
        let held = taken.filter_map(|number| Some((number, self.held.get(number)?)));
        let shards = held.map(|(number, path)| {
            Ok((
                number,
                Shard::open(path, self.held_layouts.get(number), &self.take)?,
            ))
        });
        let shards = shards
            .collect::<Result<Vec<_>>>()
            .map_err(|error| Failure::of(error, Failure::Held))?;
        let digests = shards
            .iter()
            .map(|(number, shard)| (*number, shard.digest()));
        check_held(named, self.held.len(), digests).map_err(Failure::Held)?;
        Ok(shards)
    }

    /// Follows the routes of a plan with one shard; returns the shard of the version that they lead
    /// to.
    fn follow<'p>(
        &self,
        plan: &'p Plan,
        number: usize,
        shard: &Shard,
        scratch: &Path,
    ) -> Result<Shard, Failure<'p>> {
        let refused = |hop: &'p Hop, error: Error| {
            Failure::of(
                error.in_file(hop.files[number].name().to_string()),
                |error| Failure::Route(hop, error),
            )
        };
        if let Some(hop) = plan
            .hops
            .iter()
            .find(|hop| self.in_place && !hop.is_in_commit)
        {
            // Required by R-SUM-08.
            return Err(refused(
                hop,
                Error::refused(
                    ErrorClass::Unsupported,
                    "the commit does not name this route",
                ),
            ));
        }
        let mut links = Vec::with_capacity(plan.hops.len());
        for hop in &plan.hops {
            let (Some(file), Some(target)) = (hop.files.get(number), hop.shards.get(number)) else {
                return Err(Error::usage("a route of the plan lacks a shard").into());
            };
            let path = self
                .chain
                .link(file)
                .map_err(|error| Failure::of(error, |error| Failure::File(file, error)))?;
            let open = || {
                let link = LinkReader::open(FileSource::open(&path)?, &self.limits)?;
                check_target(link.header(), *target)?;
                Ok(link)
            };
            links.push(open().map_err(|error| refused(hop, error))?);
        }
        let check = self.layouts.map(|must_be_proven| LayoutCheck {
            plan,
            shard: number,
            must_be_proven,
        });
        let followed = if self.in_place {
            shard.take_in_place(&links)
        } else {
            shard.follow(&links, check, &self.take, scratch)
        };
        followed.map_err(
            |error| match error.link().and_then(|link| plan.hops.get(link)) {
                Some(hop) => refused(hop, error),
                None if error.breaks(&["R-LAY-03"]) => Failure::Held(error),
                None => Failure::Other(error),
            },
        )
    }

    fn copy_assets(&self, plan: &Plan, scratch: &Path) -> Result<()> {
        let folder = scratch.join("assets");
        for asset in &plan.assets {
            let path = folder.join(&asset.name);
            let bytes = self.chain.asset(asset)?;
            fs::create_dir_all(path.parent().unwrap_or(&folder)).map_err(writing(&path))?;
            fs::write(&path, bytes).map_err(writing(&path))?;
        }
        Ok(())
    }
}

/// Reason why a plan could not be followed.
enum Failure<'p> {
    /// The held state does not match its commit.
    Held(Error),
    /// A file is missing or damaged.
    File(&'p FileReference, Error),
    /// A link was refused.
    Route(&'p Hop, Error),
    /// Another path would not help.
    Other(Error),
}

impl Failure<'_> {
    /// An error of the operating system is no reason to try another path.
    fn of(error: Error, broken: impl FnOnce(Error) -> Self) -> Self {
        let is_fault = error.rule().is_some() || error.class() == ErrorClass::Unsupported;
        if is_fault {
            broken(error)
        } else {
            Self::Other(error)
        }
    }
}

impl From<Error> for Failure<'_> {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

#[cfg(test)]
mod tests;
