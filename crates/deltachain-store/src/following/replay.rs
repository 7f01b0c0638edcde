//! Steps 5 and 6 of SPEC section 19: the links of a plan are opened and applied, all of a shard in
//! one pass.

use std::fs;
use std::path::Path;

use deltachain::chain::{Plan, check_target, check_union};
use deltachain::files::{LAYOUT_KEY, Layout, LayoutFile, SafetensorsState, StagedSafetensors};
use deltachain::memory::PatchSet;
use deltachain::tensor::{MemoryState, StateDigests, TensorInfo, total_bytes};
use deltachain::{Error, Limits, LinkReader, Replay, Result, StateTable};

use crate::directory::held::ShardRecord;
use crate::directory::room::check_room;
use crate::fetching::links::{Blame, FetchTotals, FetchedLink, Links, OpenedLinks};
use crate::following::selection::Selection;
use crate::following::shard::BaseShard;
use crate::following::view::View;
use crate::observer::{InPhase, Observer, Phase};

/// A plan being followed.
pub(crate) struct PlanReplay<'a> {
    pub(crate) plan: &'a Plan,
    /// The selected shards, ascending.
    pub(crate) wanted: &'a [usize],
    /// The selected tensors.
    pub(crate) selection: &'a Selection,
    pub(crate) limits: &'a Limits,
    /// The check of layouts, if files are written by them.
    pub(crate) layouts: Option<Layouts>,
    pub(crate) observer: &'a dyn Observer,
}

/// Check of layouts by a tool that writes files (SPEC section 25.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layouts {
    /// Layouts are compared with those that commits name.
    Compared,
    /// Layouts must also be proven, because the follower trusts keys.
    Proven,
}

/// A shard whose links have been pushed.
pub(crate) struct PushedShard<'a> {
    pub(crate) shard: &'a BaseShard<'a>,
    pub(crate) replay: Replay<'a, &'a FetchedLink<'a>>,
    /// The layout of all its tensors, selected or not.
    pub(crate) layout: Layout,
    is_proven: bool,
}

impl PlanReplay<'_> {
    /// Opens the links and passes them to `build`. Returns the result of `build`, the shards
    /// afterwards, and the headers and indexes of the links. The result is proven once this has
    /// returned without error, and not before.
    pub(crate) fn run<T>(
        &self,
        shards: &[BaseShard<'_>],
        links: &Links<'_>,
        received: &mut FetchTotals,
        build: impl FnOnce(&[PushedShard<'_>]) -> Result<T, Blame>,
    ) -> Result<(T, Vec<ShardRecord>, OpenedLinks), Blame> {
        let is_taken = |name: &str| self.selection.takes(name);
        let mut opened = Vec::with_capacity(shards.len());
        for (place, shard) in shards.iter().enumerate() {
            let readers = self.open(shard, links.of_shard(place));
            opened.push(readers.map_err(|error| links.blame(place, error))?);
        }
        let mut pushed = Vec::with_capacity(shards.len());
        for (place, (shard, readers)) in shards.iter().zip(&opened).enumerate() {
            let made = self.push(shard, (readers, links.of_shard(place)), &is_taken);
            let made = made.map_err(|error| links.blame(place, error))?;
            for (number, link) in links.of_shard(place).iter().enumerate() {
                link.expect(made.replay.segment_bytes(number));
            }
            pushed.push(made);
        }
        let built = build(&pushed).map_err(|blame| match blame {
            Blame::Shard(place, error) => links.blame(place, error),
            blame => blame,
        })?;
        links.settle(received)?;
        let shards = pushed.iter().map(|pushed| ShardRecord {
            number: pushed.shard.number,
            table: pushed.replay.table().clone(),
            layout: pushed.layout.to_json(),
            proven: pushed.is_proven,
        });
        let shards = shards.collect();
        drop(pushed);
        let without_sources = |readers: Vec<LinkReader<_>>| {
            readers
                .into_iter()
                .map(|reader| reader.with_source(()))
                .collect()
        };
        let opened = opened.into_iter().map(without_sources).collect();
        Ok((built, shards, opened))
    }

    /// Writes the model directory at `out`, and returns the bytes of its tensors. Blocks until all
    /// of it is on disk. `held` has the files of the held version: files that stay the same get the
    /// same headers, even if nothing is built from that version.
    pub(crate) fn write(
        &self,
        pushed: &[PushedShard<'_>],
        held: Option<&SafetensorsState>,
        out: &Path,
    ) -> Result<u64, Blame> {
        let building = InPhase::begin(self.observer, Phase::Build, 0);
        let (tensors, union) = self.tensors(pushed, &building)?;
        let layouts = pushed.iter().map(|shard| &shard.layout);
        let files: Vec<LayoutFile> = layouts
            .flat_map(Layout::files)
            .filter_map(|file| self.taken_of(file))
            .collect();
        if files.is_empty() {
            // No tensor is selected.
            self.check_union(pushed)?;
            return fs::create_dir(out)
                .map(|()| 0)
                .map_err(|error| Error::io("creating", error).in_file(out).into());
        }
        let layout = Layout::joined(files.iter())?;
        check_room(out.parent().unwrap_or(out), total_bytes(&union))?;
        let mut staged = StagedSafetensors::create(out, &union, &layout, held, false)?;
        // They may include safetensors files that this version no longer has.
        staged.leave_other_files();
        staged.write_back_early()?;
        for (place, (PushedShard { shard, replay, .. }, tensors)) in
            pushed.iter().zip(&tensors).enumerate()
        {
            let built = replay.run(
                &*shard.state,
                &View::part(&staged, &union, tensors),
                &building,
            );
            built.map_err(|error| Blame::Shard(place, error))?;
        }
        self.check_union(pushed)?;
        staged.commit()?;
        Ok(total_bytes(&union))
    }

    /// Prepares the changes for memory: `over` is the memory of each shard.
    pub(crate) fn patch(
        &self,
        pushed: &[PushedShard<'_>],
        over: &[MemoryState],
    ) -> Result<Vec<PatchSet>, Blame> {
        let building = InPhase::begin(self.observer, Phase::Build, 0);
        self.tensors(pushed, &building)?;
        let sets = pushed.iter().zip(over).enumerate().map(
            |(place, (PushedShard { shard, replay, .. }, over))| {
                let set = replay.patches(&*shard.state, over, u64::MAX, &building);
                set.map_err(|error| Blame::Shard(place, error))
            },
        );
        let sets = sets.collect::<Result<_, Blame>>()?;
        self.check_union(pushed)?;
        Ok(sets)
    }

    /// Proves the links of all shards, without a result.
    pub(crate) fn prove(&self, pushed: &[PushedShard<'_>]) -> Result<(), Blame> {
        prove(pushed, &InPhase::begin(self.observer, Phase::Build, 0))
    }

    /// Checks that the shards together are the state that the commit names, and begins the work of
    /// building.
    pub(crate) fn begin(&self, pushed: &[PushedShard<'_>]) -> Result<(), Blame> {
        let building = InPhase::begin(self.observer, Phase::Build, 0);
        self.tensors(pushed, &building)?;
        Ok(self.check_union(pushed)?)
    }

    /// The tensors of each shard that are built, and the tensors of all shards, ascending by name.
    /// Reports the number of their bytes to the observer.
    fn tensors(
        &self,
        pushed: &[PushedShard<'_>],
        building: &InPhase<'_>,
    ) -> Result<(Vec<Vec<TensorInfo>>, Vec<TensorInfo>), Blame> {
        let tensors: Vec<Vec<TensorInfo>> =
            pushed.iter().map(|shard| shard.replay.tensors()).collect();
        let Some(union) = union(&tensors) else {
            return Err(self.tell_apart(pushed, building));
        };
        if union.is_empty() && self.selection.patterns.is_some() && !self.selection.is_none() {
            return Err(Error::usage(format!(
                "version {} has none of the selected tensors: check the patterns",
                self.plan.version
            ))
            .into());
        }
        let work = pushed
            .iter()
            .map(|shard| shard.replay.work())
            .fold(0, u64::saturating_add);
        self.observer.begin(Phase::Build, work);
        Ok((tensors, union))
    }

    /// Checks that the shards together are the state that the commit names. With only some of the
    /// shards, this cannot be checked.
    fn check_union(&self, pushed: &[PushedShard<'_>]) -> Result<()> {
        if self.wanted.len() < self.plan.shards.len() {
            return Ok(());
        }
        check_union(
            self.plan.state,
            rows(pushed.iter().map(|shard| shard.replay.table())),
        )
    }

    /// Finds the fault if two shards have a tensor of the same name, so that they cannot share a
    /// directory. The commit is at fault, unless one of the links does not lead to the state that
    /// it names.
    fn tell_apart(&self, pushed: &[PushedShard<'_>], building: &InPhase<'_>) -> Blame {
        if let Err(blame) = prove(pushed, building) {
            return blame;
        }
        let union = check_union(
            self.plan.state,
            rows(pushed.iter().map(|shard| shard.replay.table())),
        );
        union
            .err()
            .unwrap_or_else(|| Error::usage("duplicate tensor: two shards have one of this name"))
            .into()
    }

    /// Opens the links of a shard.
    fn open<'l>(
        &self,
        shard: &BaseShard<'_>,
        links: &'l [FetchedLink<'l>],
    ) -> Result<Vec<LinkReader<&'l FetchedLink<'l>>>> {
        let hops = self.plan.hops.iter().zip(links).enumerate();
        let readers = hops.map(|(number, (hop, link))| {
            let open = || {
                let reader = LinkReader::open(link, self.limits)?;
                let target = hop
                    .shards
                    .get(shard.number)
                    .ok_or_else(|| Error::usage("missing shard in the route"))?;
                check_target(reader.header(), *target)?;
                Ok(reader)
            };
            open().map_err(|error: Error| error.of_link(number))
        });
        readers.collect()
    }

    /// Does step 7 of SPEC section 10 for the links of a shard, one after another. Checks their
    /// layouts, if files are written by them (SPEC section 25.2).
    fn push<'a>(
        &self,
        shard: &'a BaseShard<'_>,
        (readers, links): (&'a [LinkReader<&'a FetchedLink<'a>>], &[FetchedLink<'_>]),
        is_taken: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> Result<PushedShard<'a>> {
        let mut replay =
            Replay::of_part(shard.table.clone(), is_taken).with_layout(shard.layout.clone());
        if let Some(sums) = &shard.sums {
            replay = replay.with_sums(sums.clone());
        }
        let mut proof = shard.proof.clone();
        for ((reader, link), hop) in readers.iter().zip(links).zip(&self.plan.hops) {
            replay.push(reader)?;
            if let (Some(_), Some(layout)) = (self.layouts, replay.layout()) {
                let states = reader.index().metadata.contains_key(LAYOUT_KEY);
                proof.follow(hop, shard.number, (states, link.is_whole()), || {
                    layout.digest()
                })?;
            }
        }
        if self.layouts == Some(Layouts::Proven) {
            proof.check_proven()?;
        }
        let layout = replay
            .layout()
            .cloned()
            .ok_or_else(|| Error::usage("the plan has no route to follow"))?;
        Ok(PushedShard {
            shard,
            replay,
            layout,
            is_proven: proof.is_proven(),
        })
    }

    /// Returns a layout's file with only the selected tensors; `None` if the patterns select none
    /// of its tensors.
    fn taken_of(&self, file: &LayoutFile) -> Option<LayoutFile> {
        let taken = file
            .tensors
            .iter()
            .filter(|tensor| self.selection.takes(tensor));
        let tensors: Vec<String> = taken.cloned().collect();
        let is_taken = self.selection.patterns.is_none() || !tensors.is_empty();
        is_taken.then(|| LayoutFile {
            tensors,
            ..file.clone()
        })
    }
}

/// Proves the links of all shards. The results are not kept.
fn prove(pushed: &[PushedShard<'_>], building: &InPhase<'_>) -> Result<(), Blame> {
    for (place, PushedShard { shard, replay, .. }) in pushed.iter().enumerate() {
        replay
            .prove(&*shard.state, building)
            .map_err(|error| Blame::Shard(place, error))?;
    }
    Ok(())
}

/// Converts tables to the arguments of [`check_union`].
pub(crate) fn rows<'a>(
    tables: impl Iterator<Item = &'a StateTable>,
) -> impl Iterator<Item = (&'a [TensorInfo], &'a StateDigests)> {
    tables.map(|table| (table.tensors.as_slice(), &table.digests))
}

/// The tensors of all shards, ascending by name; `None` if two have the same name.
fn union(shards: &[Vec<TensorInfo>]) -> Option<Vec<TensorInfo>> {
    let mut all: Vec<TensorInfo> = shards.iter().flatten().cloned().collect();
    all.sort_unstable_by(|left, right| left.name().cmp(right.name()));
    all.is_sorted_by(|left, right| left.name() < right.name())
        .then_some(all)
}
