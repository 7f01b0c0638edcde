//! Reaching a version, wherever it goes: plan, fetch, build, and take another way if one fails (SPEC section 19).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use deltachain::StateSums;
use deltachain::chain::{Held, LayoutProof, ObjectName, Plan, Planner, check_held, named_layouts};
use deltachain::rules::{CHN_02, CHN_04, CHN_05, CHN_07, CHN_08, CHN_09, CHN_13, CHN_14, Rule};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::store::Store;
use crate::directory::record::{Record, ShardRecord};
use crate::fallback::Fallback;
use crate::fetching::cache::Cache;
use crate::fetching::links::{Failure, Links, Received};
use crate::following::replay::{Following, Layouts, Pushed, Trouble};
use crate::following::selection::Choice;
use crate::following::shard::Shard;
use crate::following::switched::Preparation;
use crate::following::trusting::Trusting;
use crate::observer::Observer;

/// The error if documents do not fit each other, or name something that does not exist.
const AT_ODDS: [Rule; 7] = [CHN_02, CHN_04, CHN_05, CHN_07, CHN_08, CHN_09, CHN_13];

/// Where versions go: a directory or memory.
pub(crate) trait Destination {
    /// A version that is complete: nothing but the switch is left to do.
    type Made;

    /// What is held, as far as it is of use.
    fn held(&self) -> Option<&Record>;

    /// The shards held, as the plan may use them.
    fn shards(&self, plan: &Plan) -> Result<Vec<Shard<'_>>>;

    /// Whether the held version lacks something other than tensors.
    fn lacks_files(&self, plan: &Plan) -> bool;

    /// Whether links are taken in place where they can be: then their files are fetched whole, and sums are followed.
    fn is_in_place(&self) -> bool {
        false
    }

    /// Whether files are written by layouts.
    fn has_files(&self) -> bool {
        false
    }

    /// Why what is held must not be changed in place.
    fn fault(&self) -> Option<Fallback> {
        None
    }

    /// Follows a plan, by [`Reader::follow`] if it has routes. What has been received is added to `received`.
    fn make(
        &self,
        reader: &Reader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Self::Made, Failure>;
}

/// How many commits below the head are read to find one to which a user allows to go back.
const LOOK_BACK: u64 = 64;

/// What a user allows that is otherwise refused.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Consent {
    /// The commit to which the chain may have gone back.
    pub(crate) rollback: Option<Digest>,
    /// Whether the chain may be another one than before.
    pub(crate) adopt: bool,
}

/// What has been reached.
pub(crate) enum Reached<T> {
    /// The version is held already.
    Held,
    Made(T, Preparation),
}

/// What is needed to reach versions, wherever they go.
#[derive(Debug)]
pub struct Reader {
    pub(crate) store: Store,
    pub(crate) cache: Cache,
    pub(crate) choice: Choice,
    pub(crate) limits: Limits,
    /// If only signed versions are taken.
    pub(crate) trust: Option<Trusting>,
    rollback: Option<Digest>,
    /// Whether another chain may still be taken.
    adopt: AtomicBool,
}

impl Reader {
    /// With a cache in a directory of its own, and the bytes that may stay there.
    pub(crate) fn open(
        store: Store,
        cache: (PathBuf, u64),
        choice: Choice,
        limits: Limits,
        trust: Option<Trusting>,
        consent: Consent,
    ) -> Result<Self> {
        let Consent { rollback, adopt } = consent;
        let cache = Cache::open(cache.0, cache.1)?;
        Ok(Self { store, cache, choice, limits, trust, rollback, adopt: adopt.into() })
    }

    /// Plans as this reader does. What was seen counts, unless another chain is to be taken.
    fn planner(&self, version: Option<u64>, held: Option<Held>, accept: Option<Digest>, counts_seen: bool) -> Planner {
        let planner = Planner::new(version, held, accept, &self.limits);
        match &self.trust {
            Some(trust) => trust.planner(planner, counts_seen),
            None => planner,
        }
    }

    /// What the version of a plan is, which takes the place of `known`: whether its assets are taken, and its shards.
    pub(crate) fn record(&self, plan: &Plan, known: Option<&Record>, assets: bool, shards: Vec<ShardRecord>) -> Record {
        Record::new(plan, self.choice.patterns(), assets, self.accepted(known, plan.commit), shards)
    }

    /// The commits that are not a way back any more once this one is held in the place of `known`.
    fn accepted(&self, known: Option<&Record>, commit: Digest) -> BTreeSet<Digest> {
        let mut accepted = known.map(|known| known.accepted.clone()).unwrap_or_default();
        let is_held = |allowed: &Digest| commit == *allowed || known.is_some_and(|known| known.commit == *allowed);
        accepted.extend(self.rollback.filter(is_held));
        accepted
    }

    /// Makes a version, or the head, and says how. `known` is the version below which the chain must not go, whether
    /// its files are usable or not.
    ///
    /// # Errors
    /// The rules of SPEC section 19, if no path is left; errors of the destination that are not a link's fault.
    pub(crate) fn prepare<D: Destination>(
        &self,
        version: Option<u64>,
        known: Option<&Record>,
        to: &D,
        observer: &dyn Observer,
    ) -> Result<Reached<D::Made>> {
        let held = known.map(Record::held);
        let planner = |accept| self.planner(version, held, accept, true);
        let mut told = BTreeSet::new();
        let mut result = self.reach(planner(None), to, observer, &mut told);
        let breaks = |result: &Result<Reached<D::Made>>, rules: &[Rule]| {
            result.as_ref().err().is_some_and(|error| error.is_any(rules))
        };
        let breaks_some =
            |result: &Result<Reached<D::Made>>| result.as_ref().err().is_some_and(|error| error.rule().is_some());
        if breaks(&result, &AT_ODDS) {
            // A document may have been damaged on its way, or have come from a cache that is older than the others.
            result = self.reach(planner(None), to, observer, &mut told);
        }
        // What is held is of use as long as the chain goes on from there.
        if breaks(&result, &[CHN_13]) && self.adopt.load(Ordering::Relaxed) {
            result = self.reach(self.planner(version, None, None, false), to, observer, &mut told);
        } else if breaks_some(&result) && (known.is_some() || self.trust.is_some()) {
            // Once, and not again when the version has been held.
            let was_held = |known: &Record, commit| known.commit == commit || known.accepted.contains(&commit);
            let is_new = |commit: &Digest| known.is_none_or(|known| !was_held(known, *commit));
            if let Some(commit) = self.rollback.filter(is_new) {
                let is_back = breaks(&result, &[CHN_04, CHN_05, CHN_13, CHN_14]);
                result = self.reach(planner(Some(commit)), to, observer, &mut told);
                // The chain may have gone on from there. Then the first step is to that version.
                if version.is_none()
                    && is_back
                    && breaks_some(&result)
                    && let Some(older) = self.find(commit)?
                {
                    let planner = self.planner(Some(older), held, Some(commit), true);
                    result = self.reach(planner, to, observer, &mut told);
                }
            }
        }
        if result.is_ok() {
            // Whichever chain that was, it is the one from here on.
            self.adopt.store(false, Ordering::Relaxed);
        }
        result
    }

    /// The version whose commit has this digest, if it is one of the newest.
    fn find(&self, commit: Digest) -> Result<Option<u64>> {
        let Some(head) = self.store.listing(0)?.head() else { return Ok(None) };
        for version in (head.saturating_sub(LOOK_BACK)..=head).rev() {
            let bytes = self.store.get(ObjectName::Commit(version))?;
            if bytes.is_some_and(|bytes| Digest::of_bytes(&bytes) == commit) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Plans and follows the plan, and plans again as long as there is another path. `told` holds what the observer has
    /// been told.
    fn reach<D: Destination>(
        &self,
        planner: Planner,
        to: &D,
        observer: &dyn Observer,
        told: &mut BTreeSet<String>,
    ) -> Result<Reached<D::Made>> {
        let planner = planner.shards(self.choice.numbers.iter().flatten().copied());
        let mut planner = if to.is_in_place() { planner.in_place() } else { planner };
        let mut preparation = Preparation::default();
        let tell = |text: String, told: &mut BTreeSet<String>| {
            if told.insert(text.clone()) {
                observer.remark(&text);
            }
        };
        loop {
            let began = Instant::now();
            let list = |from, notes| if notes { self.store.listed_notes(from) } else { self.store.listing(from) };
            let plan = planner.plan_with(list, |names, held| self.store.get_all_agreed(names, held));
            preparation.times.plan += began.elapsed();
            for fault in planner.passed_over() {
                tell(format!("skipped a path: {fault}"), told);
            }
            let plan = plan?;
            if let Some(trust) = &self.trust {
                trust.record(&plan, to.held().map(|held| held.commit), observer)?;
            }
            let start = plan.start.as_deref().map(|shards| check_start(shards, to.held()));
            if let Some(Err(error)) = start.map(|start| start.and_then(|()| self.check_layouts(&plan, to))) {
                planner.fail_held(error);
                continue;
            }
            if plan.hops.is_empty() && !to.lacks_files(&plan) {
                return Ok(Reached::Held);
            }
            let began = Instant::now();
            let made = to.make(self, &plan, observer, &mut preparation.received);
            preparation.times.build += began.elapsed();
            preparation.times.download = preparation.received.time;
            match made {
                Ok(made) => {
                    if to.is_in_place() && is_whole(&plan) {
                        preparation.fallback = to.fault().or(to.held().map(|_| Fallback::NoRoute));
                    }
                    if let Some(why) = preparation.fallback {
                        tell(format!("version {} is loaded as a whole: {why}", plan.version), told);
                    }
                    self.cache.trim().unwrap_or_else(|error| observer.remark(&format!("{error:#}")));
                    preparation.routes = plan.hops.iter().map(|hop| (hop.from, hop.version)).collect();
                    return Ok(Reached::Made(made, preparation));
                }
                Err(Failure::File(file, error)) => planner.fail_file(&file, error),
                Err(Failure::Route(hop, error)) => planner.fail_route(&hop, error),
                Err(Failure::Held(error)) => planner.fail_held(error),
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// How layouts are looked at there (SPEC section 25.2).
    fn layouts(&self, to: &impl Destination) -> Option<Layouts> {
        to.has_files().then_some(if self.trust.is_some() { Layouts::Proven } else { Layouts::Compared })
    }

    /// Checks the layouts of the version held, if it stays: R-LAY-03.
    fn check_layouts(&self, plan: &Plan, to: &impl Destination) -> Result<()> {
        let (Some(held), Some(layouts)) = (to.held().filter(|_| plan.hops.is_empty()), self.layouts(to)) else {
            return Ok(());
        };
        let named = named_layouts(&plan.metadata, plan.shards.len());
        held.shards.iter().try_for_each(|ShardRecord { number, layout, proven, .. }| {
            let mut proof = LayoutProof::held(*proven);
            proof
                .compare(named.as_ref().and_then(|named| named.get(*number)), || Digest::of_bytes(layout.as_bytes()))?;
            if layouts == Layouts::Proven { proof.check_proven() } else { Ok(()) }
        })
    }

    /// Fetches the links of a plan, lets `build` make something of them, and says what the shards are then. The links
    /// are given back.
    pub(crate) fn follow<'a, T>(
        &'a self,
        plan: &'a Plan,
        to: &impl Destination,
        observer: &'a dyn Observer,
        received: &mut Received,
        build: impl FnOnce(&Following<'_>, &[Pushed<'_>]) -> Result<T, Trouble>,
    ) -> Result<(T, Vec<ShardRecord>, Links<'a>), Failure> {
        let wanted = self.choice.shards(plan.version, plan.shards.len())?;
        let (selection, limits) = (self.choice.selection.as_ref(), &self.limits);
        let layouts = self.layouts(to);
        let following = Following { plan, wanted: &wanted, selection, limits, layouts, observer };
        let access = (&self.store, &self.cache, observer);
        // Where no commit names the layouts, those of files count that are hashed as a whole.
        let names_none = plan.hops.last().is_some_and(|hop| hop.layouts.is_none());
        let is_hashed = to.is_in_place() || layouts == Some(Layouts::Proven) && names_none;
        let in_parts = selection.is_some() && !is_hashed;
        let links = Links::fetch(access, in_parts, &plan.hops, &wanted, received)?;
        let shards = start(plan, &wanted, to)?;
        let (built, shards) = following.run(&shards, &links, received, |pushed| build(&following, pushed))?;
        Ok((built, shards, links))
    }
}

/// The shards that a plan starts from.
fn start<'a>(plan: &Plan, wanted: &[usize], to: &'a impl Destination) -> Result<Vec<Shard<'a>>> {
    match plan.hops.first().and_then(|hop| hop.from) {
        None => {
            let sums = to.is_in_place().then(StateSums::default);
            Ok(wanted.iter().map(|&number| Shard::nothing(number, sums.clone())).collect())
        }
        Some(from) if to.held().is_some_and(|held| held.version == from) => to.shards(plan),
        Some(_) => Err(Error::usage("the plan starts from another version than the held one")),
    }
}

/// Whether a plan starts from nothing.
pub(crate) fn is_whole(plan: &Plan) -> bool {
    plan.hops.first().is_some_and(|hop| hop.from.is_none())
}

/// Whether all links of a plan may be taken in place (R-SUM-08).
pub(crate) fn is_trusted(plan: &Plan) -> bool {
    plan.hops.iter().all(|hop| hop.is_in_commit)
}

/// Compares the held shards with the shards that a plan starts from. Without any of use, there are none.
fn check_start(shards: &[Digest], record: Option<&Record>) -> Result<()> {
    let held = record.iter().flat_map(|record| &record.shards);
    check_held(
        shards,
        record.map_or(0, |record| record.of),
        held.map(|shard| (shard.number, shard.table.digests.state)),
    )
}
