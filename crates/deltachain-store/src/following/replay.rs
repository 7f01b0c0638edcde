//! Steps 5 and 6 of SPEC section 19: the links of a plan are applied, one after another. States on the way are temporary
//! files; the last one is a model directory.

use std::path::Path;

use deltachain::chain::{Hop, Plan, check_target, check_union};
use deltachain::files::{Layout, LayoutFile, ScratchState, StagedSafetensors};
use deltachain::tensor::{State, StateDigests, TensorInfo};
use deltachain::{Application, Error, Limits, LinkReader, Result, StateTable};

use crate::following::held::ShardRecord;
use crate::following::links::{Failure, Link, Links};
use crate::following::selection::Selection;
use crate::following::shard::{HeldModel, PartWriter, Shard};
use crate::observer::{InPhase, Observer, Phase};

/// A plan being followed.
pub(crate) struct Replay<'a> {
    pub(crate) plan: &'a Plan,
    /// The shards that are wanted, ascending.
    pub(crate) wanted: &'a [usize],
    /// The tensors that are taken; all if `None`.
    pub(crate) selection: Option<&'a Selection>,
    pub(crate) limits: &'a Limits,
    /// The version held. Even if nothing is built on it, files that stay the same get the same headers.
    pub(crate) held: Option<&'a HeldModel>,
    /// A directory for states on the way.
    pub(crate) scratch: &'a Path,
    /// Where the model directory is to be made.
    pub(crate) out: &'a Path,
    /// The result of each link is compared with its digests, so that a fault is blamed on the right one. Otherwise all of that
    /// is done in the end, which saves hashing tensors that the next link changes again (SPEC section 9).
    pub(crate) compares_each: bool,
    pub(crate) observer: &'a dyn Observer,
}

type Applied<'a, 'b> = Application<'a, dyn State + 'a, &'b Link<'b>>;

impl Replay<'_> {
    /// Makes the model directory, and gives what the shards are; all of it has reached the disk then.
    pub(crate) fn run(&self, links: &mut Links<'_>) -> Result<Vec<ShardRecord>, Failure> {
        let Some((last, between)) = self.plan.hops.split_last() else {
            return Err(Error::usage("the plan has no route to follow").into());
        };
        let mut shards = self.start()?;
        let building = InPhase::begin(self.observer, Phase::Build, 0);
        for hop in between {
            for shard in &mut shards {
                let link = links.next()?;
                *shard = self.step(hop, shard, &link, self.compares_each, links, &building)?;
            }
        }
        self.finish(last, &shards, links, &building)
    }

    /// The shards that the path starts from.
    fn start(&self) -> Result<Vec<Shard<'_>>> {
        let from = self.plan.hops.first().and_then(|hop| hop.from);
        match self.held {
            Some(held) if from == Some(held.record().version) => held.shards(),
            None | Some(_) if from.is_none() => Ok(self.wanted.iter().map(|&number| Shard::nothing(number)).collect()),
            _ => Err(Error::usage("the plan starts from a version that is not held")),
        }
    }

    /// Follows a route to a version on the way, for one shard.
    fn step(
        &self,
        hop: &Hop,
        shard: &Shard<'_>,
        link: &Link<'_>,
        is_compared: bool,
        links: &mut Links<'_>,
        building: &InPhase<'_>,
    ) -> Result<Shard<'static>, Failure> {
        let apply = || {
            let opened = self.open(hop, shard, link)?;
            let application = self.application(shard, &opened)?;
            let layout = layout(&opened, shard, &application)?;
            let tensors = application.tensors();
            let staged = ScratchState::create_in(self.scratch, tensors)?;
            link.expect(application.segment_bytes());
            self.observer.begin(Phase::Build, application.work());
            let unproven = if is_compared {
                application.run(&staged, building)?;
                Vec::new()
            } else {
                application.run_unproven(&staged, building)?.1
            };
            Ok(Shard::between(shard.number, staged, application.table().clone(), unproven, layout))
        };
        links.judge(hop, link, apply())
    }

    /// Follows the last route, into the model directory.
    fn finish(
        &self,
        hop: &Hop,
        shards: &[Shard<'_>],
        links: &mut Links<'_>,
        building: &InPhase<'_>,
    ) -> Result<Vec<ShardRecord>, Failure> {
        // The tensors of all shards have to be known before the first file can be begun.
        let sources = shards.iter().map(|_| links.next()).collect::<Result<Vec<_>>>()?;
        let mut opened = Vec::with_capacity(shards.len());
        for (shard, source) in shards.iter().zip(&sources) {
            opened.push(self.open(hop, shard, source).map_err(|error| source.blame(hop, error))?);
        }
        let mut applications: Vec<Applied<'_, '_>> = Vec::with_capacity(shards.len());
        let mut layouts = Vec::with_capacity(shards.len());
        for ((shard, link), source) in shards.iter().zip(&opened).zip(&sources) {
            let application = self.application(shard, link).and_then(|application| {
                layouts.push(layout(link, shard, &application)?);
                Ok(application)
            });
            let application = application.map_err(|error| source.blame(hop, error))?;
            source.expect(application.segment_bytes());
            applications.push(application);
        }
        let Some(tensors) = union(applications.iter().map(Application::tensors)) else {
            return Err(self.tell_apart(hop, shards, &sources, links, building));
        };
        let base = self.held.map(|held| &held.files);
        if tensors.is_empty() && self.selection.is_some() {
            return Err(Error::usage(format!("version {} has no tensor that is wanted", self.plan.version)).into());
        }
        let files: Vec<LayoutFile> =
            layouts.iter().flat_map(Layout::files).filter_map(|file| self.taken_of(file)).collect();
        let layout = Layout::joined(files.iter())?;
        let mut staged = StagedSafetensors::create(self.out, &tensors, &layout, base, false)?;
        // Among them may be safetensors files that this version does not have any more.
        staged.leave_other_files();
        staged.write_back_early()?;
        let work = applications.iter().map(Application::work).fold(0, u64::saturating_add);
        self.observer.begin(Phase::Build, work);
        for (application, source) in applications.iter().zip(&sources) {
            let applied = application.run(&PartWriter::new(&staged, application.tensors()), building);
            links.judge(hop, source, applied)?;
        }
        // One that takes some shards only cannot tell.
        if self.wanted.len() == self.plan.shards.len() {
            check_union(self.plan.state, rows(applications.iter().map(Application::table)))?;
        }
        staged.commit()?;
        let known = shards.iter().zip(&applications).zip(&layouts);
        let record = known.map(|((shard, application), layout)| ShardRecord {
            number: shard.number,
            table: application.table().clone(),
            layout: layout.to_json(),
        });
        Ok(record.collect())
    }

    /// Two shards have a tensor of the same name, so they cannot share a directory. The fault is that of the commit, unless
    /// one of the links turns out not to lead where it says.
    fn tell_apart(
        &self,
        hop: &Hop,
        shards: &[Shard<'_>],
        sources: &[Link<'_>],
        links: &mut Links<'_>,
        building: &InPhase<'_>,
    ) -> Failure {
        let step = |(shard, source)| self.step(hop, shard, source, true, links, building);
        let reached = shards.iter().zip(sources).map(step);
        let reached = match reached.collect::<Result<Vec<_>, _>>() {
            Ok(reached) => reached,
            Err(failure) => return failure,
        };
        let union = check_union(self.plan.state, rows(reached.iter().map(|shard| &shard.table)));
        union.err().unwrap_or_else(|| Error::usage("the shards have changed while they were read")).into()
    }

    fn open<'l>(&self, hop: &Hop, shard: &Shard<'_>, source: &'l Link<'l>) -> Result<LinkReader<&'l Link<'l>>> {
        let link = LinkReader::open(source, self.limits)?;
        let target = hop.shards.get(shard.number).ok_or_else(|| Error::usage("the route has no such shard"))?;
        check_target(link.header(), *target)?;
        Ok(link)
    }

    fn application<'s, 'l>(&self, shard: &'s Shard<'_>, link: &'s LinkReader<&'l Link<'l>>) -> Result<Applied<'s, 'l>> {
        let application = Application::of_part(shard.state(), &shard.table, link, &|name| self.takes(name));
        Ok(application?.with_unproven(&shard.unproven))
    }

    fn takes(&self, tensor: &str) -> bool {
        self.selection.is_none_or(|selection| selection.takes(tensor))
    }

    /// What is taken of a file of a layout, if anything is.
    fn taken_of(&self, file: &LayoutFile) -> Option<LayoutFile> {
        let tensors: Vec<String> = file.tensors.iter().filter(|tensor| self.takes(tensor)).cloned().collect();
        let is_taken = self.selection.is_none() || !tensors.is_empty();
        is_taken.then(|| LayoutFile { tensors, ..file.clone() })
    }
}

/// The layout of all tensors of the shard, whichever of them are taken.
fn layout(link: &LinkReader<&Link<'_>>, shard: &Shard<'_>, application: &Applied<'_, '_>) -> Result<Layout> {
    Layout::of_target(&link.index().metadata, shard.layout.as_ref(), &application.table().tensors)
}

/// Tables as [`check_union`] wants them.
fn rows<'a>(
    tables: impl Iterator<Item = &'a StateTable>,
) -> impl Iterator<Item = (&'a [TensorInfo], &'a StateDigests)> {
    tables.map(|table| (table.tensors.as_slice(), &table.digests))
}

/// The tensors of all shards, ascending by name; `None` if two have the same name.
fn union<'a>(shards: impl Iterator<Item = &'a [TensorInfo]>) -> Option<Vec<TensorInfo>> {
    let mut all: Vec<TensorInfo> = shards.flatten().cloned().collect();
    all.sort_unstable_by(|left, right| left.name().cmp(right.name()));
    all.is_sorted_by(|left, right| left.name() < right.name()).then_some(all)
}
