//! Reaching a version, wherever it goes: plan, fetch, build, and take another way if one fails (SPEC section 19).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use deltachain::chain::{Held, Plan, Planner, check_held};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::read;
use crate::access::store::Store;
use crate::following::cache::Cache;
use crate::following::held::{Record, ShardRecord};
use crate::following::links::{Failure, Links, Received};
use crate::following::replay::{Following, Pushed, Trouble};
use crate::following::selection::Choice;
use crate::following::shard::Shard;
use crate::following::switched::Trip;
use crate::observer::Observer;

/// What is reported when documents do not fit each other, or name what is not there.
const AT_ODDS: [&str; 7] = ["R-CHN-02", "R-CHN-04", "R-CHN-05", "R-CHN-07", "R-CHN-08", "R-CHN-09", "R-CHN-13"];

/// Where versions go: a directory or memory.
pub(crate) trait Destination {
    /// A version that is complete: nothing but the switch is left to do.
    type Made;

    /// What is held, as far as it is of use.
    fn held(&self) -> Option<&Record>;

    /// The shards held.
    fn shards(&self) -> Result<Vec<Shard<'_>>>;

    /// Whether what is held lacks something of the version that it is, besides tensors.
    fn lacks_files(&self, plan: &Plan) -> bool;

    /// Follows a plan, by [`Reader::follow`] if it has routes. What has been received is added to `received`.
    fn make(
        &self,
        reader: &Reader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Self::Made, Failure>;
}

/// What is needed to reach versions, wherever they go.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) cache: Cache,
    pub(crate) choice: Choice,
    pub(crate) limits: Limits,
    accept: Option<Digest>,
}

impl Reader {
    /// With a cache in a directory of its own, and the bytes that may stay there.
    pub(crate) fn open(
        store: Store,
        cache: (PathBuf, u64),
        choice: Choice,
        limits: Limits,
        accept: Option<Digest>,
    ) -> Result<Self> {
        Ok(Self { store, cache: Cache::open(cache.0, cache.1)?, choice, limits, accept })
    }

    /// Makes a version, or the head, and says how. `None` if it is held already. `known` is the version that the chain must not go
    /// back behind, whether what is held of it is of use or not.
    ///
    /// # Errors
    /// Those of SPEC section 19, if no path is left; those of the destination that are no fault of a link.
    pub(crate) fn prepare<D: Destination>(
        &self,
        version: Option<u64>,
        known: Option<Held>,
        to: &D,
        observer: &dyn Observer,
    ) -> Result<Option<(D::Made, Trip)>> {
        let planner = |accept| Planner::new(version, known, accept, &self.limits);
        let mut told = BTreeSet::new();
        let mut reached = self.reach(planner(None), to, observer, &mut told);
        if reached.as_ref().is_err_and(|error| error.rule().is_some_and(|rule| AT_ODDS.contains(&rule))) {
            // A document may have been damaged on its way, or have come from a cache that is older than the others.
            reached = self.reach(planner(None), to, observer, &mut told);
        }
        match reached {
            // What is held is of use as long as the chain goes on from there.
            Err(error) if self.accept.is_some() && error.rule().is_some() => {
                self.reach(planner(self.accept), to, observer, &mut told)
            }
            result => result,
        }
    }

    /// Plans and follows the plan, and plans again as long as there is another path. `told` holds what has been remarked.
    fn reach<D: Destination>(
        &self,
        mut planner: Planner,
        to: &D,
        observer: &dyn Observer,
        told: &mut BTreeSet<String>,
    ) -> Result<Option<(D::Made, Trip)>> {
        let mut trip = Trip::default();
        loop {
            let began = Instant::now();
            let plan = read::plan(&self.store, &mut planner);
            trip.times.plan += began.elapsed();
            for fault in planner.passed_over() {
                let text = format!("passed over: {fault}");
                if !told.contains(&text) {
                    observer.remark(&text);
                    told.insert(text);
                }
            }
            let plan = plan?;
            if let Some(Err(error)) = plan.start.as_deref().map(|shards| check_start(shards, to.held())) {
                planner.fail_held(error);
                continue;
            }
            if plan.hops.is_empty() && !to.lacks_files(&plan) {
                return Ok(None);
            }
            let began = Instant::now();
            let made = to.make(self, &plan, observer, &mut trip.received);
            trip.times.build += began.elapsed();
            trip.times.download = trip.received.time;
            match made {
                Ok(made) => {
                    self.cache.trim().unwrap_or_else(|error| observer.remark(&format!("{error:#}")));
                    trip.routes = plan.hops.iter().map(|hop| (hop.from, hop.version)).collect();
                    return Ok(Some((made, trip)));
                }
                Err(Failure::File(file, error)) => planner.fail_file(&file, error),
                Err(Failure::Route(hop, error)) => planner.fail_route(&hop, error),
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Fetches the links of a plan, lets `build` make something of them, and says what the shards are then.
    pub(crate) fn follow<T>(
        &self,
        plan: &Plan,
        to: &impl Destination,
        observer: &dyn Observer,
        received: &mut Received,
        build: impl FnOnce(&Following<'_>, &[Pushed<'_>]) -> Result<T, Trouble>,
    ) -> Result<(T, Vec<ShardRecord>), Failure> {
        let wanted = self.choice.shards(plan.version, plan.shards.len())?;
        let (selection, limits) = (self.choice.selection.as_ref(), &self.limits);
        let following = Following { plan, wanted: &wanted, selection, limits, observer };
        let access = (&self.store, &self.cache, observer);
        let links = Links::fetch(access, selection.is_some(), &plan.hops, &wanted, received)?;
        let shards = start(plan, &wanted, to)?;
        following.run(&shards, &links, received, |pushed| build(&following, pushed))
    }
}

/// The shards that a plan starts from.
fn start<'a>(plan: &Plan, wanted: &[usize], to: &'a impl Destination) -> Result<Vec<Shard<'a>>> {
    match plan.hops.first().and_then(|hop| hop.from) {
        None => Ok(wanted.iter().map(|&number| Shard::nothing(number)).collect()),
        Some(from) if to.held().is_some_and(|held| held.version == from) => to.shards(),
        Some(_) => Err(Error::usage("the plan starts from a version that is not held")),
    }
}

/// Compares the shards held with those that a plan starts from. Without any of use, there are none.
fn check_start(shards: &[Digest], record: Option<&Record>) -> Result<()> {
    let held = record.iter().flat_map(|record| &record.shards);
    check_held(
        shards,
        record.map_or(0, |record| record.of),
        held.map(|shard| (shard.number, shard.table.digests.state)),
    )
}
