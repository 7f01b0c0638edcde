//! Reaches a version, for any destination: plans, fetches, builds, and tries another path if one
//! fails (SPEC section 19).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use deltachain::StateSums;
use deltachain::chain::{
    LayoutProof, ObjectName, Plan, Planner, VersionId, check_held, named_layouts,
};
use deltachain::memory::Proof;
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Result};

use crate::access::copies::FileStores;
use crate::access::store::Store;
use crate::directory::held::{HeldVersion, ShardRecord};
use crate::fallback::Fallback;
use crate::fetching::cache::Cache;
use crate::fetching::links::{Blame, FetchTotals, LinkAccess, Links, OpenedLinks};
use crate::following::replay::{Layouts, PlanReplay, PushedShard};
use crate::following::selection::Selection;
use crate::following::shard::BaseShard;
use crate::following::switched::{PhaseTimes, SwitchReport};
use crate::following::trusting::FollowerTrust;
use crate::observer::Observer;

/// The rules that are broken if documents do not fit each other, or name something that does not
/// exist.
const AT_ODDS: [&str; 7] = [
    "R-CHN-02", "R-CHN-04", "R-CHN-05", "R-CHN-07", "R-CHN-08", "R-CHN-09", "R-CHN-13",
];

/// The rules that are broken if the chain no longer has the held version.
const BEHIND: [&str; 4] = ["R-CHN-04", "R-CHN-05", "R-CHN-13", "R-CHN-14"];

/// Destination of versions: a directory or memory.
pub trait Destination: Sized {
    /// The changes that a prepared version makes.
    type Change;
    /// Place of a version in a [`SwitchReport`].
    type At: Default + Clone;

    /// Whether links are taken in place where that is possible. Their files are then downloaded
    /// whole, and sums are followed.
    const IS_IN_PLACE: bool = false;
    /// Whether files are written by layouts.
    const HAS_FILES: bool = false;

    /// The held version.
    fn held(&self) -> Option<&HeldVersion<Self::At>>;

    /// The held version, if links may start from it.
    fn base(&self) -> Option<&HeldVersion<Self::At>> {
        self.held()
    }

    /// The version below which the chain must not be rolled back, whether it is usable or not.
    fn last(&self) -> Option<&HeldVersion<Self::At>> {
        self.held()
    }

    /// Whether the held version is still in its place. A quick check that does not read the files.
    fn is_there(&self) -> bool {
        true
    }

    /// Same as [`Follower::prepare`](crate::Follower::prepare).
    fn prepare(
        &mut self,
        reader: &ChainReader,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<Self>>> {
        reader.prepare(version, self, observer)
    }

    /// The held shards, as the bases of a plan.
    fn shards(&self, plan: &Plan, selection: &Selection) -> Result<Vec<BaseShard<'_>>>;

    /// Whether the held version lacks something other than tensors.
    fn lacks_files(&self, _plan: &Plan) -> bool {
        false
    }

    /// The reason why the held version must not be changed in place.
    fn fault(&self) -> Option<Fallback> {
        None
    }

    /// Follows a plan, by [`ChainReader::follow`] if it has routes. The totals of downloads are
    /// added to `received`.
    fn make(
        &self,
        reader: &ChainReader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut FetchTotals,
    ) -> Result<(HeldVersion<Self::At>, Self::Change), Blame>;
}

/// A version that is ready: only the switch is left to do. In a directory it is complete and on
/// disk. If it is not applied, the next [`Follower::prepare`](crate::Follower::prepare) that begins
/// to write removes it. Memory that is changed in place is ready if the version is loaded as a
/// whole, or if its changes have been proven.
#[derive(Debug)]
pub struct PreparedVersion<P: Destination> {
    /// The version, as it will be held once it has been applied.
    pub(crate) held: HeldVersion<P::At>,
    pub(crate) change: P::Change,
    /// The report of the switch to it, as far as it is known.
    pub(crate) report: SwitchReport<P::At>,
}

impl<P: Destination> PreparedVersion<P> {
    /// Returns the version, as it will be held once it has been applied. The directory of its files
    /// is complete, but `current` does not lead to it yet.
    pub fn held(&self) -> &HeldVersion<P::At> {
        &self.held
    }
}

/// A prepared version; `None` if it is held already.
type ReachResult<P> = Result<Option<PreparedVersion<P>>>;

/// Maximum number of paths tried for one version, and of faults reported to the observer: a chain
/// may name any number of missing files.
const MOST_PATHS: u32 = 64;
const MOST_TOLD: usize = 20;

/// Number of commits below the head that are read to find the one to which the user allows a
/// rollback.
const LOOK_BACK: u64 = 64;

/// A request for a plan.
#[derive(Clone, Copy)]
struct PlanRequest {
    /// The version; the head if `None`.
    version: Option<u64>,
    /// The version that the chain must go on from.
    held: Option<VersionId>,
    /// The commit to which a rollback is accepted.
    accept: Option<Digest>,
    /// Whether the newest signed head that was seen counts; false if another chain is adopted.
    counts_seen: bool,
}

/// A plan whose links have been applied and proven.
pub(crate) struct FollowedPlan<'a, T> {
    /// The result of applying the links.
    pub(crate) built: T,
    /// The shards after the links have been applied.
    pub(crate) shards: Vec<ShardRecord>,
    pub(crate) links: Links<'a>,
    pub(crate) opened: OpenedLinks,
}

/// An attempt to reach a version.
#[derive(Clone, Copy)]
enum Attempt {
    Usual,
    /// Same as `Usual`, once more.
    Again,
    /// Another chain is adopted.
    OtherChain,
    /// The chain may have been rolled back to `commit`. `is_chain_behind` is true if the previous
    /// attempt failed because the chain no longer has the held version.
    Rollback {
        commit: Digest,
        is_chain_behind: bool,
    },
    /// Same as `Rollback`, but to the version of that commit.
    RollbackTo {
        commit: Digest,
        version: u64,
    },
}

/// Faults reported to the observer: each text once, and not too many.
struct Told<'a> {
    observer: &'a dyn Observer,
    texts: BTreeSet<String>,
}

impl<'a> Told<'a> {
    fn new(observer: &'a dyn Observer) -> Self {
        Self {
            observer,
            texts: BTreeSet::new(),
        }
    }

    fn tell(&mut self, text: &str) {
        if self.texts.len() > MOST_TOLD || !self.texts.insert(text.to_owned()) {
            return;
        }
        if self.texts.len() > MOST_TOLD {
            self.observer.remark("more faults are not shown");
        } else {
            self.observer.remark(text);
        }
    }
}

/// Everything that is needed to reach versions, for any destination.
#[derive(Debug)]
pub(crate) struct ChainReader {
    /// The chain's own store, from which all documents come.
    pub(crate) store: Store,
    pub(crate) files: FileStores,
    pub(crate) cache: Cache,
    pub(crate) selection: Selection,
    pub(crate) limits: Limits,
    /// The trusted keys, if only signed versions are accepted.
    pub(crate) trust: Option<FollowerTrust>,
    /// The commit to which the user allows a rollback.
    pub(crate) rollback: Option<Digest>,
    /// Whether another chain may still be adopted.
    pub(crate) adopt: AtomicBool,
    /// The newest version whose commit has been read, whether it could be reached or not.
    pub(crate) newest: Mutex<Option<u64>>,
}

impl ChainReader {
    /// Returns the version that a plan leads to, which has been hashed. `assets` says whether its
    /// assets are included.
    pub(crate) fn version<P: Destination>(
        &self,
        plan: &Plan,
        to: &P,
        assets: bool,
        shards: Vec<ShardRecord>,
    ) -> HeldVersion<P::At> {
        let last = to.last();
        // The commits to which no rollback is allowed any more once this version is held.
        let mut accepted = last.map(|last| last.accepted.clone()).unwrap_or_default();
        let is_held = |allowed: &Digest| {
            plan.commit == *allowed || last.is_some_and(|last| last.commit == *allowed)
        };
        accepted.extend(self.rollback.filter(is_held));
        let &Plan {
            version,
            commit,
            chain,
            state,
            ..
        } = plan;
        HeldVersion {
            version,
            commit,
            chain,
            state,
            metadata: plan.metadata.clone(),
            of: plan.shards.len(),
            taken: self.selection.patterns.clone(),
            assets,
            accepted,
            files: BTreeMap::new(),
            shards,
            directory: P::At::default(),
            proof: Proof::Hashed,
            sums: Vec::new(),
        }
    }

    /// Prepares a version, or the head; `None` if it is held already.
    ///
    /// # Errors
    /// The rules of SPEC section 19, if no path is left; errors of the destination that are not a
    /// link's fault.
    pub(crate) fn prepare<P: Destination>(
        &self,
        version: Option<u64>,
        to: &P,
        observer: &dyn Observer,
    ) -> ReachResult<P> {
        let mut told = Told::new(observer);
        let mut attempt = Attempt::Usual;
        loop {
            let request = Self::request(attempt, version, to.last());
            let error = match self.reach(request, to, observer, &mut told) {
                Ok(reached) => {
                    // From now on the follower stays with the chain of this version.
                    self.adopt.store(false, Ordering::Relaxed);
                    return Ok(reached);
                }
                Err(error) => error,
            };
            match self.attempt_after(attempt, &error, version, to.last())? {
                Some(next) => attempt = next,
                None => return Err(error),
            }
        }
    }

    /// The attempt after one that failed with this error; `None` if no attempt is left.
    fn attempt_after<At>(
        &self,
        failed: Attempt,
        error: &Error,
        version: Option<u64>,
        last: Option<&HeldVersion<At>>,
    ) -> Result<Option<Attempt>> {
        let next = match failed {
            // A document may have been damaged in transit, or may come from a cache that is older
            // than the other documents.
            Attempt::Usual if error.breaks(&AT_ODDS) => Some(Attempt::Again),
            Attempt::Usual | Attempt::Again => {
                let can_adopt = self.adopt.load(Ordering::Relaxed);
                if error.breaks(&["R-CHN-13"]) && can_adopt {
                    Some(Attempt::OtherChain)
                } else if error.rule().is_some() && (last.is_some() || self.trust.is_some()) {
                    self.new_rollback(last).map(|commit| Attempt::Rollback {
                        commit,
                        is_chain_behind: error.breaks(&BEHIND),
                    })
                } else {
                    None
                }
            }
            // The chain may have gone on from this commit. The first step is then to its version.
            Attempt::Rollback {
                commit,
                is_chain_behind: true,
            } if version.is_none() && error.rule().is_some() => self
                .find(commit)?
                .map(|version| Attempt::RollbackTo { commit, version }),
            Attempt::OtherChain | Attempt::Rollback { .. } | Attempt::RollbackTo { .. } => None,
        };
        Ok(next)
    }

    /// The plan that an attempt asks for.
    fn request<At>(
        attempt: Attempt,
        version: Option<u64>,
        last: Option<&HeldVersion<At>>,
    ) -> PlanRequest {
        let usual = PlanRequest {
            version,
            held: last.map(HeldVersion::held),
            accept: None,
            counts_seen: true,
        };
        match attempt {
            Attempt::Usual | Attempt::Again => usual,
            // Another chain does not go on from the held version.
            Attempt::OtherChain => PlanRequest {
                held: None,
                counts_seen: false,
                ..usual
            },
            Attempt::Rollback { commit, .. } => PlanRequest {
                accept: Some(commit),
                ..usual
            },
            Attempt::RollbackTo { commit, version } => PlanRequest {
                version: Some(version),
                accept: Some(commit),
                ..usual
            },
        }
    }

    /// Returns the commit to which the user allows a rollback, unless it has been held: the
    /// permission works once.
    fn new_rollback<At>(&self, last: Option<&HeldVersion<At>>) -> Option<Digest> {
        let commit = self.rollback?;
        let was_held =
            last.is_some_and(|last| last.commit == commit || last.accepted.contains(&commit));
        (!was_held).then_some(commit)
    }

    /// The version whose commit has this digest, if it is one of the newest.
    fn find(&self, commit: Digest) -> Result<Option<u64>> {
        let Some(head) = self.store.listing(0)?.head() else {
            return Ok(None);
        };
        for version in (head.saturating_sub(LOOK_BACK)..=head).rev() {
            let bytes = self.store.get(ObjectName::Commit(version))?;
            if bytes.is_some_and(|bytes| Digest::of_bytes(&bytes) == commit) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Plans and follows the plan, and plans again as long as there is another path.
    fn reach<P: Destination>(
        &self,
        request: PlanRequest,
        to: &P,
        observer: &dyn Observer,
        told: &mut Told<'_>,
    ) -> ReachResult<P> {
        let mut planner = self.planner::<P>(request);
        let mut times = PhaseTimes::default();
        let mut received = FetchTotals::default();
        let mut failures = 0;
        self.files.begin();
        loop {
            let began = Instant::now();
            let plan = self.plan(&mut planner);
            times.plan += began.elapsed();
            for fault in planner.passed_over() {
                // Without a usable base, paths from the held version are always skipped, and
                // another remark says why the version is loaded as a whole.
                if to.base().is_some() || !fault.breaks(&["R-APP-01"]) {
                    told.tell(&format!("skipped a path: {fault}"));
                }
            }
            let plan = plan?;
            self.note_newest(request.version, &plan);
            if let Some(trust) = &self.trust {
                trust.record(&plan, to.base().map(|held| held.commit), observer)?;
            }
            if let Err(error) = self.check_held(&plan, to) {
                planner.fail_held(error);
                continue;
            }
            if plan.hops.is_empty() && !to.lacks_files(&plan) {
                return Ok(None);
            }
            let began = Instant::now();
            let made = self.make(to, &plan, observer, &mut received);
            times.build += began.elapsed();
            times.download = received.time;
            let failure = match made {
                Ok((held, change)) => {
                    let fallback = why_whole(&plan, to);
                    if let Some(why) = fallback {
                        told.tell(&format!(
                            "version {} is loaded as a whole: {why}",
                            plan.version
                        ));
                    }
                    if let Err(error) = self.cache.trim() {
                        observer.remark(&format!("{error:#}"));
                    }
                    let from = to.held().map(|held| held.version);
                    let report = SwitchReport {
                        times,
                        fallback,
                        ..switch_report(from, &held, &plan, &received)
                    };
                    return Ok(Some(PreparedVersion {
                        held,
                        change,
                        report,
                    }));
                }
                Err(failure) => failure,
            };
            failures += 1;
            match failure {
                Blame::Shard(_, error) | Blame::Other(error) => return Err(error),
                Blame::File(_, error) | Blame::Route(_, error) if failures == MOST_PATHS => {
                    return Err(error);
                }
                Blame::File(file, error) => planner.fail_file(&file, error),
                Blame::Route(hop, error) => planner.fail_route(&hop, error),
                Blame::Held(error) => planner.fail_held(error),
            }
        }
    }

    /// The planner for a request.
    fn planner<P: Destination>(&self, request: PlanRequest) -> Planner {
        let PlanRequest {
            version,
            held,
            accept,
            counts_seen,
        } = request;
        let planner = Planner::new(version, held, accept, &self.limits);
        let planner = planner.shards(self.selection.numbers.iter().flatten().copied());
        let planner = match &self.trust {
            Some(trust) => trust.planner(planner, counts_seen),
            None => planner,
        };
        if P::IS_IN_PLACE {
            planner.in_place()
        } else {
            planner
        }
    }

    /// The next plan, from the documents of the chain's own store.
    fn plan(&self, planner: &mut Planner) -> Result<Plan> {
        let list = |from, notes| {
            if notes {
                self.store.listed_notes(from)
            } else {
                self.store.listing(from)
            }
        };
        planner.plan_with(list, |names, held| self.store.get_all_agreed(names, held))
    }

    /// Checks that a plan can start from the held version, and that the layouts of that version are
    /// right if it stays.
    fn check_held<P: Destination>(&self, plan: &Plan, to: &P) -> Result<()> {
        let Some(shards) = plan.start.as_deref() else {
            return Ok(());
        };
        check_start(shards, to.base())?;
        self.check_layouts(plan, to)
    }

    /// Notes the newest version of the chain. A plan for the head knows it; a plan for another
    /// version only shows that the chain has at least that version.
    fn note_newest(&self, asked: Option<u64>, plan: &Plan) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_none() || *newest < Some(plan.version) {
            *newest = Some(plan.version);
        }
    }

    /// Follows a plan. If that fails, and bytes of copies may be the reason, follows it again with
    /// files of the chain's own store before giving up the plan.
    fn make<P: Destination>(
        &self,
        to: &P,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut FetchTotals,
    ) -> Result<(HeldVersion<P::At>, P::Change), Blame> {
        loop {
            let made = to.make(self, plan, observer, received);
            let may_be_of_copy = made
                .as_ref()
                .is_err_and(|failure| failure.error().class() != ErrorClass::Io);
            if may_be_of_copy && self.files.accuse(None) {
                continue;
            }
            self.files.judge(made.is_ok());
            self.files.tell(observer);
            return made;
        }
    }

    /// The check of layouts at this destination (SPEC section 25.2).
    fn layouts<P: Destination>(&self) -> Option<Layouts> {
        P::HAS_FILES.then_some(if self.trust.is_some() {
            Layouts::Proven
        } else {
            Layouts::Compared
        })
    }

    /// Checks the layouts of the held version, if it stays: R-LAY-03.
    fn check_layouts<P: Destination>(&self, plan: &Plan, to: &P) -> Result<()> {
        if !plan.hops.is_empty() {
            return Ok(());
        }
        let (Some(held), Some(layouts)) = (to.base(), self.layouts::<P>()) else {
            return Ok(());
        };
        let named = named_layouts(&plan.metadata, plan.shards.len());
        held.shards.iter().try_for_each(
            |ShardRecord {
                 number,
                 layout,
                 proven,
                 ..
             }| {
                let mut proof = LayoutProof::held(*proven);
                proof.compare(named.as_ref().and_then(|named| named.get(*number)), || {
                    Digest::of_bytes(layout.as_bytes())
                })?;
                if layouts == Layouts::Proven {
                    proof.check_proven()
                } else {
                    Ok(())
                }
            },
        )
    }

    /// Fetches the links of a plan, applies them with `build`, and proves the result.
    pub(crate) fn follow<'a, P: Destination, T>(
        &'a self,
        plan: &'a Plan,
        to: &P,
        observer: &'a dyn Observer,
        received: &mut FetchTotals,
        build: impl FnOnce(&PlanReplay<'_>, &[PushedShard<'_>]) -> Result<T, Blame>,
    ) -> Result<FollowedPlan<'a, T>, Blame> {
        let wanted = self.selection.shards(plan.version, plan.shards.len())?;
        let (selection, limits) = (&self.selection, &self.limits);
        let layouts = self.layouts::<P>();
        let following = PlanReplay {
            plan,
            wanted: &wanted,
            selection,
            limits,
            layouts,
            observer,
        };
        // If the commit does not name the layouts, files must be hashed as a whole to prove them.
        let names_none = plan.hops.last().is_some_and(|hop| hop.layouts.is_none());
        let is_hashed = P::IS_IN_PLACE || layouts == Some(Layouts::Proven) && names_none;
        let access = LinkAccess {
            stores: &self.files,
            cache: &self.cache,
            observer,
            in_parts: selection.patterns.is_some() && !is_hashed,
        };
        let links = Links::fetch(&access, &plan.hops, &wanted, received)?;
        let shards = self.start(plan, &wanted, to)?;
        let (built, shards, opened) = following.run(&shards, &links, received, |pushed| {
            build(&following, pushed)
        })?;
        Ok(FollowedPlan {
            built,
            shards,
            links,
            opened,
        })
    }

    /// The shards that a plan starts from.
    fn start<'a, P: Destination>(
        &self,
        plan: &Plan,
        wanted: &[usize],
        to: &'a P,
    ) -> Result<Vec<BaseShard<'a>>> {
        match plan.hops.first().and_then(|hop| hop.from) {
            None => {
                let sums = P::IS_IN_PLACE.then(StateSums::default);
                Ok(wanted
                    .iter()
                    .map(|&number| BaseShard::nothing(number, sums.clone()))
                    .collect())
            }
            Some(from) if to.base().is_some_and(|held| held.version == from) => {
                to.shards(plan, &self.selection)
            }
            Some(_) => Err(Error::usage(
                "the plan does not start from the held version",
            )),
        }
    }
}

/// The report on a switch, without the times and the reason of a whole load.
fn switch_report<D: Clone>(
    from: Option<u64>,
    held: &HeldVersion<D>,
    plan: &Plan,
    received: &FetchTotals,
) -> SwitchReport<D> {
    SwitchReport {
        from,
        version: held.version,
        state: held.state,
        commit: held.commit,
        metadata: held.metadata.clone(),
        directory: held.directory.clone(),
        routes: plan
            .hops
            .iter()
            .map(|hop| (hop.from, hop.version))
            .collect(),
        downloaded: received.downloaded,
        from_cache: received.from_cache,
        written: received.written,
        times: PhaseTimes::default(),
        proof: held.proof,
        fallback: None,
        lag: None,
    }
}

/// Returns the reason why a version that could be taken in place is loaded as a whole; `None` if it
/// is not, or is the first one.
fn why_whole<P: Destination>(plan: &Plan, to: &P) -> Option<Fallback> {
    if !P::IS_IN_PLACE || !is_whole(plan) {
        return None;
    }
    to.fault().or(to.base().map(|_| Fallback::NoRoute))
}

/// Whether a plan starts from nothing.
pub(crate) fn is_whole(plan: &Plan) -> bool {
    plan.hops.first().is_some_and(|hop| hop.from.is_none())
}

/// Whether all links of a plan may be taken in place (R-SUM-08).
pub(crate) fn is_trusted(plan: &Plan) -> bool {
    plan.hops.iter().all(|hop| hop.is_in_commit)
}

/// Compares the held shards with the shards that a plan starts from. Without a usable version,
/// there are no held shards.
fn check_start<D>(shards: &[Digest], record: Option<&HeldVersion<D>>) -> Result<()> {
    let held = record.iter().flat_map(|record| &record.shards);
    check_held(
        shards,
        record.map_or(0, |record| record.of),
        held.map(|shard| (shard.number, shard.table.digests.state)),
    )
}
