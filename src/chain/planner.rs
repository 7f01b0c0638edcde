//! Planning (SPEC section 19, steps 1 to 4): from the documents of a chain to the cheapest path.
//!
//! The planner does no IO. It considers a *window* of versions that ends at the wanted one. At
//! first the window begins at the held version, or has only the wanted version. The planner doubles
//! it as long as a cheaper path may begin below. A path through a version below costs at least as
//! much as the rest of the path from that version, which is known, so a long chain is not read to
//! its beginning. Nor is it listed to its beginning: if the window extends below the versions that
//! were listed, the planner asks for a longer list.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::chain::checks::{check_files, check_parent, check_routes, check_version, no_commit};
use crate::chain::path::{Candidate, Cost, Path, Ways};
use crate::chain::received::{ReadCommit, ReceivedDocument};
use crate::chain::signatures::Signatures;
use crate::chain::{
    Commit, FileReference, Hop, Listing, ObjectName, Plan, RoutesDocument, VersionId, named_layouts,
};
use crate::error::{Error, Result};
use crate::json::MAX_INTEGER;
use crate::limits::Limits;
use crate::rules::{self, ensure};
use crate::tensor::Digest;

/// Limit for the commits above the held version that are requested at once, so that a gap ends the
/// reading soon.
const MAX_STRIDE: u64 = 1024;
/// A reader whose held version is further than this below the wanted one has been away for a long
/// time and does not read all commits since.
const LONG_TIME: u64 = 4096;

/// Finds the cheapest path to a version of a chain. The documentation of
/// [this module](crate::chain) has an example.
///
/// Unusable objects and routes are skipped as long as there is another path (SPEC section 19).
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is about something else"
)]
pub struct Planner {
    /// The wanted version; `None` if the head is wanted and not known yet.
    pub(super) wanted: Option<u64>,
    /// The held version, as long as paths may start from it.
    pub(super) held: Option<VersionId>,
    /// Set if only signed versions are accepted.
    pub(super) signatures: Option<Signatures>,
    /// Digest of the commit that the caller accepts, until the commit of the wanted version has
    /// been compared with it.
    accept: Option<Digest>,
    /// The failure to report if the wanted version has another commit.
    doubt: Option<Error>,
    limits: Limits,
    /// Decides which path is the best.
    order: Order,
    /// The highest selected shard, unless all shards are selected.
    last_shard: Option<usize>,
    /// A held version more than this many versions below the wanted one is not used.
    long_time: u64,
    /// The last list of the chain's objects, and the version that it begins with.
    pub(super) listed: Option<(u64, Listing)>,
    /// The version that the next list must begin with.
    pub(super) list_from: u64,
    /// Whether the chain must be listed.
    must_list: bool,
    /// Whether the notes must be listed.
    pub(super) must_list_notes: bool,
    /// Whether the last list showed nothing new, and nothing has failed since.
    is_current: bool,
    /// Whether the chain was listed again because the held version was missing.
    has_looked_twice: bool,
    /// Objects that were requested but not supplied yet.
    pub(super) asked: BTreeSet<ObjectName>,
    /// Objects that were supplied but not read yet.
    pub(super) supplied: BTreeMap<ObjectName, Result<Option<ReceivedDocument>>>,
    /// Digest of the chain document.
    pub(super) chain: Option<Digest>,
    /// Commits of the window. All of them have passed step 3.
    commits: BTreeMap<u64, ReadCommit>,
    /// The lowest version of the window.
    low: u64,
    /// No path may begin below, because a commit there has a fault.
    floor: u64,
    /// Routes in force of the versions of the window, without skipped ones.
    routes: BTreeMap<u64, RoutesInForce>,
    /// Routes documents that were skipped.
    bad_documents: BTreeSet<ObjectName>,
    /// Files that no path may use.
    bad_files: BTreeSet<FileReference>,
    /// Faults of commits and of the held version that did not end the search, in the order in which
    /// they were met.
    faults: Vec<Error>,
    /// Failures of everything else that was skipped.
    failures: Vec<Error>,
}

/// The order of paths, the best one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The least bytes.
    Cheapest,
    /// The least bytes of routes that are not known to be direct, then the least bytes.
    Direct,
    /// The least bytes of routes that are not known to be takeable in place, then the least bytes.
    /// All routes of a path from nothing count as such.
    InPlace,
}

#[derive(Debug)]
struct RoutesInForce {
    /// The document that names the routes.
    source: ObjectName,
    routes: Vec<Candidate>,
}

impl RoutesInForce {
    fn of_commit(source: ObjectName, commit: &Commit) -> Self {
        let known = commit
            .direct_routes()
            .into_iter()
            .zip(commit.in_place_routes());
        let routes = commit
            .routes
            .iter()
            .zip(known)
            .map(|(route, (is_direct, is_in_place))| Candidate {
                route: route.clone(),
                is_in_commit: true,
                is_direct,
                is_in_place,
            });
        Self {
            source,
            routes: routes.collect(),
        }
    }

    /// Routes of a routes document are never trusted to be taken in place, except those that it
    /// repeats from the commit.
    fn of_document(source: ObjectName, document: RoutesDocument, commit: &Commit) -> Self {
        let in_place = commit.in_place_routes();
        let direct = document.direct_routes();
        let routes = document
            .routes
            .into_iter()
            .zip(direct)
            .map(|(route, is_direct)| {
                let place = commit.routes.iter().position(|own| *own == route);
                let is_in_place = place.is_some_and(|place| in_place[place]);
                Candidate {
                    route,
                    is_in_commit: place.is_some(),
                    is_direct,
                    is_in_place,
                }
            });
        Self {
            source,
            routes: routes.collect(),
        }
    }
}

impl Planner {
    /// Plans how to reach a version, or the head if `wanted` is `None`, from the held version or
    /// from nothing. No path starts from a held version above the wanted one, but the commits up to
    /// it are checked nevertheless.
    ///
    /// `accept` is the digest of a commit's bytes. If the wanted version has this commit, the
    /// planner plans as if nothing were held: the chain may then be a different one than before, or
    /// rolled back. Without `accept`, these are errors (R-CHN-13 and R-CHN-14). The digest of the
    /// held version's own commit has no effect.
    ///
    /// No path starts from a held version more than 4096 versions below the wanted one: its commit
    /// is checked, and then the planner continues as if nothing were held.
    pub fn new(
        wanted: Option<u64>,
        held: Option<VersionId>,
        accept: Option<Digest>,
        limits: &Limits,
    ) -> Self {
        let above = held.filter(|held| wanted.is_none_or(|wanted| held.version <= wanted));
        Self {
            wanted,
            held,
            signatures: None,
            accept: accept.filter(|accept| held.is_none_or(|held| held.commit != *accept)),
            doubt: None,
            limits: *limits,
            order: Order::Cheapest,
            last_shard: None,
            long_time: LONG_TIME,
            listed: None,
            list_from: above.map_or(0, |held| held.version),
            must_list: true,
            must_list_notes: false,
            is_current: false,
            has_looked_twice: false,
            asked: BTreeSet::from([ObjectName::Chain]),
            supplied: BTreeMap::new(),
            chain: None,
            commits: BTreeMap::new(),
            low: 0,
            floor: 0,
            routes: BTreeMap::new(),
            bad_documents: BTreeSet::new(),
            bad_files: BTreeSet::new(),
            faults: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Plans the cheapest direct path: the one with the least bytes of routes that may have values
    /// other than absolute ones. Absolute values can be decoded without a base. See
    /// [`Commit::direct_routes`](crate::chain::Commit::direct_routes).
    #[must_use]
    pub fn direct(self) -> Self {
        Self {
            order: Order::Direct,
            ..self
        }
    }

    /// Plans the cheapest path in place: from the held version, the one with the least bytes of
    /// routes that are not known to be takeable in place
    /// ([`Commit::in_place_routes`](crate::chain::Commit::in_place_routes)), or the cheapest path
    /// from nothing if that has fewer bytes. A route that only a routes document names is never
    /// known to be takeable in place ([`Hop::is_in_commit`](crate::chain::Hop::is_in_commit)).
    #[must_use]
    pub fn in_place(self) -> Self {
        Self {
            order: Order::InPlace,
            ..self
        }
    }

    /// Selects these shards. A shard that the version does not have breaks R-CHN-17.
    #[must_use]
    pub fn shards(self, taken: impl IntoIterator<Item = usize>) -> Self {
        Self {
            last_shard: taken.into_iter().max(),
            ..self
        }
    }

    /// Finds the next plan. Call it again after [`fail_file`](Self::fail_file),
    /// [`fail_route`](Self::fail_route) and [`fail_held`](Self::fail_held).
    ///
    /// `list` lists the chain's objects: the commits and routes documents of all versions from the
    /// given one on, or only the notes if its second argument is true; other objects do no harm. A
    /// store that cannot list returns the [head alone](Listing::of_head), and is not asked for
    /// notes.
    ///
    /// `fetch` returns the contents of objects, `None` for each object that does not exist. Its
    /// second argument is the held version, if paths may start from it: that version's record
    /// vouches for its commit and for the chain document by their digests.
    ///
    /// # Errors
    /// If there is no path: one of the failures of steps 1 to 5 of SPEC section 19; those of step 5
    /// were reported with the three functions above. The planner cannot be used afterwards. Also
    /// errors of `list` and `fetch`.
    pub fn plan_with<B: AsRef<[u8]>>(
        &mut self,
        mut list: impl FnMut(u64, bool) -> Result<Listing>,
        mut fetch: impl FnMut(&[ObjectName], Option<u64>) -> Result<Vec<(ObjectName, Option<B>)>>,
    ) -> Result<Plan> {
        loop {
            if self.must_list {
                self.list(list(self.list_from, false)?);
            } else if self.must_list_notes {
                self.list(list(self.wanted.unwrap_or(self.list_from), true)?);
            } else if !self.asked.is_empty() {
                let names: Vec<ObjectName> = self.asked.iter().copied().collect();
                for (name, content) in fetch(&names, self.held.map(|held| held.version))? {
                    self.supply(name, content.as_ref().map(AsRef::as_ref));
                }
            } else if let Some(plan) = self.advance()? {
                return Ok(plan);
            }
        }
    }

    /// Takes a new list of the chain's objects.
    fn list(&mut self, listing: Listing) {
        if let Some(signatures) = self
            .signatures
            .as_mut()
            .filter(|_| mem::take(&mut self.must_list_notes))
        {
            signatures.listed = listing;
            return;
        }
        self.must_list = false;
        let before = self.listed.replace((self.list_from, listing));
        match (&self.listed, before) {
            (Some((from, now)), Some((before_from, before))) => {
                self.is_current = now.has_same_routes_documents(&before, before_from.max(*from));
                if !self.is_current {
                    self.begin_step_4_again();
                }
                if self.wanted.is_none() {
                    self.look_for_signed_head_again();
                }
            }
            // Requested together with the chain document, to save a round trip.
            _ => match self.wanted {
                Some(wanted) => self.want(wanted),
                None if self.signatures.is_some() => self.ask_for_signed_head(),
                None => {
                    if let Some(head) = self.head_not_below_held() {
                        self.want(head);
                    }
                }
            },
        }
    }

    fn begin_step_4_again(&mut self) {
        self.asked.clear();
        self.supplied.clear();
        self.routes.clear();
        self.bad_documents.clear();
        self.bad_files.clear();
        self.failures.clear();
    }

    /// Takes the content of an object that was requested; `None` if the object does not exist.
    fn supply(&mut self, name: ObjectName, content: Option<&[u8]>) {
        if !self.asked.remove(&name) {
            return;
        }
        if let Some(signatures) = &mut self.signatures {
            signatures.supply(name, content, &self.limits);
        }
        if !matches!(name, ObjectName::Signature { .. }) {
            let document = content
                .map(|bytes| ReceivedDocument::parse(name, bytes, &self.limits))
                .transpose();
            self.supplied.insert(
                name,
                document.map_err(|error| error.in_file(name.to_string())),
            );
        }
    }

    /// Skips a file of the plan that is missing (R-CHN-09) or has other bytes (R-CHN-10), and all
    /// routes that name it.
    pub fn fail_file(&mut self, file: &FileReference, error: Error) {
        self.bad_files.insert(*file);
        self.failures.push(error);
        self.is_current = false;
    }

    /// Skips a route of the plan because one of its links was refused. Other routes that name the
    /// link, and other routes from the same version, remain usable.
    pub fn fail_route(&mut self, hop: &Hop, error: Error) {
        if let Some(RoutesInForce { routes, .. }) = self.routes.get_mut(&hop.version) {
            routes.retain(|Candidate { route, .. }| {
                (route.from, &route.files) != (hop.from, &hop.files)
            });
        }
        self.failures.push(error);
        self.is_current = false;
    }

    /// Gives up the held version, because it is not what the plan's `start` says (R-APP-01), and
    /// with it all paths that start from it.
    pub fn fail_held(&mut self, error: Error) {
        self.held = None;
        self.faults.push(error);
    }

    /// The faults and failures of everything that was skipped so far.
    pub fn passed_over(&self) -> impl Iterator<Item = &Error> {
        self.faults.iter().chain(&self.failures)
    }

    /// The highest version that was listed.
    pub(super) fn head(&self) -> Option<u64> {
        self.listed.as_ref().and_then(|(_, listed)| listed.head())
    }

    fn head_not_below_held(&self) -> Option<u64> {
        self.head()
            .filter(|&head| self.held.is_none_or(|held| held.version <= head))
    }

    /// Sets the wanted version.
    fn want(&mut self, version: u64) {
        self.wanted = Some(version);
        self.low = self.lowest_required(version);
        // No document can have a larger number.
        if version <= MAX_INTEGER {
            self.ask(version);
        }
    }

    /// The lowest version whose commit must be checked.
    fn lowest_required(&self, wanted: u64) -> u64 {
        self.known().fold(wanted, u64::min)
    }

    /// The versions whose commits were recorded: the held one, and the signed head that was seen.
    fn known(&self) -> impl Iterator<Item = u64> + use<> {
        let held = self.held.map(|held| held.version);
        held.into_iter().chain(self.seen().map(|(seen, _)| seen))
    }

    /// Asks for the documents of a version.
    fn ask(&mut self, version: u64) {
        let name = ObjectName::Commit(version);
        if !self.supplied.contains_key(&name) {
            self.asked.insert(name);
            if self.needs_routes(version) {
                self.asked.extend(self.routes_document(version));
            }
        }
    }

    /// Whether routes to this version can be part of the best path. Routes to the held version
    /// cannot: a path through it costs more than the rest of the path from there.
    fn needs_routes(&self, version: u64) -> bool {
        Some(version) <= self.wanted && self.held.is_none_or(|held| held.version != version)
    }

    /// The usable routes document of a version with the highest generation.
    fn routes_document(&self, version: u64) -> Option<ObjectName> {
        let (_, listed) = self.listed.as_ref()?;
        listed
            .routes_documents(version)
            .find(|name| !self.bad_documents.contains(name))
    }

    /// Evaluates the objects that have been supplied, and requests more or finds the path.
    fn advance(&mut self) -> Result<Option<Plan>> {
        self.check_chain()?;
        self.find_head()?;
        let Some(wanted) = self.wanted.filter(|_| !self.waits()) else {
            return Ok(None);
        };
        if wanted > MAX_INTEGER
            || matches!(
                self.supplied.get(&ObjectName::Commit(wanted)),
                Some(Ok(None))
            )
        {
            return Err(no_commit(wanted));
        }
        self.check_signed(wanted)?;
        if self.waits() {
            return Ok(None);
        }
        self.compare_with_accepted(wanted)?;
        self.leave_what_is_long_ago(wanted)?;
        if !self.asked.is_empty() {
            return Ok(None);
        }
        self.check_required_commits(wanted)?;
        if !self.asked.is_empty() {
            return Ok(None);
        }
        self.check_shards(wanted)?;
        self.check_lower_commits();
        self.find_routes_in_force();
        if self.waits() {
            return Ok(None);
        }
        self.pass_over_routes();
        let (path, below) = self.best_path(wanted);
        if below.is_some_and(|below| path.as_ref().is_none_or(|path| below < path.cost)) {
            let low = self
                .low
                .saturating_sub(self.commits.len() as u64)
                .max(self.floor);
            if self.listed.as_ref().is_some_and(|(from, _)| low < *from) {
                self.list_from = low;
                self.must_list = true;
                return Ok(None);
            }
            (low..self.low).for_each(|version| self.ask(version));
            self.low = low;
            return Ok(None);
        }
        match path {
            Some(path) => self.plan(wanted, &path).map(Some),
            None => self.give_up(wanted),
        }
    }

    /// Whether something has to be listed or fetched first.
    fn waits(&self) -> bool {
        self.must_list || self.must_list_notes || !self.asked.is_empty()
    }

    /// The best path through the window, and a lower bound for the cost of paths that begin below
    /// it.
    fn best_path(&self, wanted: u64) -> (Option<Path>, Option<Cost>) {
        let routes = || {
            self.routes
                .iter()
                .map(|(&version, known)| (version, known.routes.as_slice()))
        };
        let ways = Ways::find(
            wanted,
            routes(),
            match self.order {
                Order::Cheapest => |_| false,
                Order::Direct => |candidate| !candidate.is_direct,
                Order::InPlace => |_| true,
            },
        );
        let held = self.held.map(|held| held.version);
        let path = if self.order == Order::InPlace {
            let in_place = Ways::find(wanted, routes(), |candidate| !candidate.is_in_place);
            let held = held.and_then(|held| in_place.from(Some(held)));
            held.into_iter()
                .chain(ways.from(None))
                .min_by_key(Path::order)
        } else {
            ways.cheapest(held)
        };
        // The held version is in the window, so paths that begin below the window start from
        // nothing.
        (path, ways.least_cost_from(self.floor..self.low))
    }

    /// Step 1.
    fn check_chain(&mut self) -> Result<()> {
        match self
            .supplied
            .remove(&ObjectName::Chain)
            .transpose()?
            .flatten()
        {
            Some(ReceivedDocument::Chain(digest)) => {
                self.chain = Some(digest);
                // This check is final: `accept` does not set it aside (R-SIG-05).
                self.signatures
                    .iter()
                    .try_for_each(|signatures| signatures.trust.check_chain(digest))?;
                let recorded = self.held.map_or(digest, |held| held.chain);
                ensure(recorded == digest, &rules::CHN_13, || {
                    format!(
                        "the held version belongs to the chain with the document {recorded}; this \
                         chain's is {digest}"
                    )
                })
                .map_err(|error| error.in_file(ObjectName::Chain.to_string()))
                .or_else(|error| self.doubt_held(error))?;
            }
            _ => ensure(self.chain.is_some(), &rules::CHN_01, || {
                "there is no chain".into()
            })
            .map_err(|error| error.in_file(ObjectName::Chain.to_string()))?,
        }
        Ok(())
    }

    /// Reports a failure that says that this is not the chain of the held version; or keeps it for
    /// later, if the caller accepts another chain.
    fn doubt_held(&mut self, error: Error) -> Result<()> {
        if self.accept.is_none() {
            return Err(error);
        }
        self.doubt.get_or_insert(error);
        Ok(())
    }

    /// Step 2, if the head is wanted.
    fn find_head(&mut self) -> Result<()> {
        if self.wanted.is_some() {
            return Ok(());
        }
        let head = if self.signatures.is_some() {
            self.find_signed_head()
        } else {
            self.head()
        };
        if self.waits() {
            return Ok(());
        }
        match self.known().max().filter(|known| head < Some(*known)) {
            // A reader that cannot list may just not have seen the commit yet.
            Some(_) if !self.has_looked_twice => {
                self.has_looked_twice = true;
                self.must_list = true;
                // If the caller accepts another chain, its head may be lower.
                if self.accept.is_some() {
                    self.list_from = 0;
                }
                return Ok(());
            }
            Some(known) => {
                let what = if self.held.is_some_and(|held| held.version == known) {
                    "held"
                } else {
                    "known"
                };
                let refused = |why: &str| {
                    let error = Error::broken(
                        &rules::CHN_14,
                        format!("version {known} is {what}, but {why}"),
                    );
                    error.in_file(ObjectName::Commit(known).to_string())
                };
                self.doubt_held(match self.unsigned_from(known) {
                    None => refused("the chain has no commit from that version on"),
                    Some(unsigned) => refused(&format!(
                        "the chain has no signed commit from that version on: {unsigned}"
                    ))
                    .because_of(unsigned),
                })?;
            }
            None => {}
        }
        self.want(head.ok_or_else(|| self.no_head())?);
        Ok(())
    }

    /// Drops the held version if the commit of the wanted version is the one that the caller
    /// accepts. Otherwise reports the failure that was kept for later, if there is one.
    fn compare_with_accepted(&mut self, wanted: u64) -> Result<()> {
        let Some(accepted) = self.accept.take().filter(|_| self.known().next().is_some()) else {
            return Ok(());
        };
        let name = ObjectName::Commit(wanted);
        let document = self.supplied.remove(&name).transpose()?.flatten();
        let Some(ReceivedDocument::Commit(read)) = document else {
            return Err(no_commit(wanted));
        };
        check_version(wanted, &read.commit)?;
        if read.digest == accepted {
            (self.held, self.doubt) = (None, None);
            self.leave_seen();
            self.signatures
                .iter_mut()
                .for_each(|signatures| signatures.recorded = Some((wanted, accepted)));
            self.low = wanted;
        }
        self.supplied
            .insert(name, Ok(Some(ReceivedDocument::Commit(read))));
        self.doubt.take().map_or(Ok(()), Err)
    }

    /// Drops the held version, after a check of R-CHN-05 alone, if it is far below the wanted one.
    /// Does the same with the signed head that was seen.
    fn leave_what_is_long_ago(&mut self, wanted: u64) -> Result<()> {
        let is_far = |version: u64| wanted.saturating_sub(version) > self.long_time;
        let held = self
            .held
            .map(|held| held.version)
            .filter(|version| is_far(*version));
        let seen = self
            .seen()
            .map(|(version, _)| version)
            .filter(|version| is_far(*version));
        let far: BTreeSet<u64> = held.into_iter().chain(seen).collect();
        if far.is_empty() {
            return Ok(());
        }
        let names = far.iter().map(|&version| ObjectName::Commit(version));
        self.asked
            .extend(names.filter(|name| !self.supplied.contains_key(name)));
        if !self.asked.is_empty() {
            return Ok(());
        }
        for &version in &far {
            let document = self
                .supplied
                .remove(&ObjectName::Commit(version))
                .unwrap_or(Ok(None));
            self.check_commit(version, document)?;
        }
        self.commits.clear();
        self.held = self.held.filter(|_| held.is_none());
        if seen.is_some() {
            self.leave_seen();
        }
        self.low = self.lowest_required(wanted);
        Ok(())
    }

    /// R-CHN-17.
    fn check_shards(&self, wanted: u64) -> Result<()> {
        let of = self
            .commits
            .get(&wanted)
            .map_or(0, |checked| checked.commit.shards.len());
        let last = self.last_shard.unwrap_or_default();
        ensure(
            self.last_shard.is_none() || last < of,
            &rules::CHN_17,
            || format!("shard {last} is selected, but the version has {of} shards, counted from 0"),
        )
        .map_err(|error| error.in_file(ObjectName::Commit(wanted).to_string()))
    }

    /// Steps 2 and 3, for the wanted version and those between it and the held one. Each failure is
    /// final.
    fn check_required_commits(&mut self, wanted: u64) -> Result<()> {
        let last = self.known().fold(wanted, u64::max);
        let first = self.lowest_required(wanted);
        let mut next = self
            .commits
            .last_key_value()
            .map_or(first, |(&last, _)| last + 1);
        while let Some(document) = self.supplied.remove(&ObjectName::Commit(next)) {
            self.check_commit(next, document)?;
            self.check_parent(next)?;
            next += 1;
        }
        (next..=last.min(next + MAX_STRIDE)).for_each(|version| self.ask(version));
        if wanted < last && next > last {
            // No path starts above the wanted version.
            self.held = self.held.filter(|held| held.version <= wanted);
            self.leave_seen();
            self.commits.split_off(&(wanted + 1));
        }
        Ok(())
    }

    /// Step 3, for the commits below the required ones. A fault rules out the paths that need the
    /// commit.
    fn check_lower_commits(&mut self) {
        for version in self.low.. {
            let document = self.supplied.remove(&ObjectName::Commit(version));
            let supplied = document.is_some();
            if let Some(Err(fault)) = document.map(|document| self.check_commit(version, document))
            {
                self.faults.push(fault);
                self.floor = version + 1;
            } else if let Err(fault) = self.check_parent(version) {
                self.faults.push(fault);
                // A path that begins at this version does not need the one before; but version 0
                // needs the chain.
                self.floor = version.max(1);
            }
            // The first commit that was read before has been compared with its parent now, too.
            if !supplied {
                break;
            }
        }
        self.commits = self.commits.split_off(&self.floor);
        self.low = self.low.max(self.floor);
    }

    fn check_commit(
        &mut self,
        version: u64,
        document: Result<Option<ReceivedDocument>>,
    ) -> Result<()> {
        let Some(ReceivedDocument::Commit(checked)) = document? else {
            return Err(no_commit(version));
        };
        check_version(version, &checked.commit)?;
        let held = self
            .held
            .filter(|held| held.version == version)
            .map(|held| held.commit);
        for recorded in held.into_iter().chain(
            self.seen()
                .filter(|seen| seen.0 == version)
                .map(|(_, commit)| commit),
        ) {
            ensure(checked.digest == recorded, &rules::CHN_05, || {
                format!(
                    "version {version} had the commit {recorded}, but now the chain has {}",
                    checked.digest
                )
            })
            .map_err(|error| error.in_file(ObjectName::Commit(version).to_string()))?;
        }
        self.commits.insert(version, checked);
        Ok(())
    }

    /// R-CHN-04, for a version of the window whose parent is known.
    fn check_parent(&self, version: u64) -> Result<()> {
        let known = match version.checked_sub(1) {
            Some(before) => self.commits.get(&before).map(|before| before.digest),
            None => self.chain,
        };
        match (self.commits.get(&version), known) {
            (Some(ReadCommit { commit, .. }), Some(known)) => check_parent(version, commit, known),
            _ => Ok(()),
        }
    }

    /// Step 4, for each version of the window: the usable routes document with the highest
    /// generation, or the commit.
    fn find_routes_in_force(&mut self) {
        let versions: Vec<u64> = self.commits.keys().copied().collect();
        for version in versions {
            if self.routes.contains_key(&version) || !self.needs_routes(version) {
                continue;
            }
            if let Some(found) = self.routes_of(version) {
                self.routes.insert(version, found);
            }
        }
    }

    /// The routes in force of a version; `None` if a document must be fetched first.
    fn routes_of(&mut self, version: u64) -> Option<RoutesInForce> {
        while let Some(source) = self.routes_document(version) {
            let Some(document) = self.supplied.remove(&source) else {
                self.asked.insert(source);
                return None;
            };
            match self.check_routes(version, source, document) {
                Ok(Some(document)) => {
                    let commit = &self.commits.get(&version)?.commit;
                    return Some(RoutesInForce::of_document(source, document, commit));
                }
                // It has been removed since it was listed, so there may be a newer one.
                Ok(None) => self.must_list = true,
                Err(error) => self.failures.push(error.in_file(source.to_string())),
            }
            self.bad_documents.insert(source);
        }
        let commit = &self.commits.get(&version)?.commit;
        Some(RoutesInForce::of_commit(
            ObjectName::Commit(version),
            commit,
        ))
    }

    fn check_routes(
        &self,
        version: u64,
        source: ObjectName,
        document: Result<Option<ReceivedDocument>>,
    ) -> Result<Option<RoutesDocument>> {
        let Some(ReceivedDocument::Routes(document)) = document? else {
            return Ok(None);
        };
        check_routes(
            source,
            &document,
            self.commits.get(&version).map(|commit| commit.digest),
        )?;
        Ok(Some(document))
    }

    /// Skips routes that break R-CHN-07, as far as the versions that they start from are known, and
    /// routes that name bad files.
    fn pass_over_routes(&mut self) {
        let Self {
            commits,
            routes,
            bad_files,
            failures,
            ..
        } = self;
        let shards_of = |version: u64| {
            commits
                .get(&version)
                .map(|checked| checked.commit.shards.len())
        };
        for (&version, RoutesInForce { source, routes }) in routes {
            routes.retain(|Candidate { route, .. }| {
                let fits = check_files(version, route, shards_of);
                let keep = fits.is_ok();
                failures.extend(fits.err().map(|error| error.in_file(source.to_string())));
                keep && route.files.iter().all(|file| !bad_files.contains(file))
            });
        }
    }

    fn plan(&self, wanted: u64, path: &Path) -> Result<Plan> {
        let missing = || Error::usage("the path leads through an unknown version");
        let commit_of = |version: u64| self.commits.get(&version).ok_or_else(missing);
        let mut hops = Vec::with_capacity(path.routes.len());
        for &(version, place) in &path.routes {
            let Candidate {
                route,
                is_in_commit,
                ..
            } = self
                .routes
                .get(&version)
                .and_then(|known| known.routes.get(place))
                .ok_or_else(missing)?;
            let commit = &commit_of(version)?.commit;
            let (files, shards) = (route.files.clone(), commit.shards.clone());
            let layouts = named_layouts(&commit.metadata, shards.len());
            hops.push(Hop {
                version,
                from: route.from,
                files,
                shards,
                layouts,
                is_in_commit: *is_in_commit,
            });
        }
        let ReadCommit { digest, commit } = commit_of(wanted)?;
        Ok(Plan {
            version: wanted,
            commit: *digest,
            chain: self.chain.ok_or_else(missing)?,
            state: commit.state,
            shards: commit.shards.clone(),
            assets: commit.assets.clone(),
            metadata: commit.metadata.clone(),
            bytes: path.bytes(),
            start: path
                .start
                .map(|start| Ok(commit_of(start)?.commit.shards.clone()))
                .transpose()?,
            hops,
            signed: self.signed(wanted),
        })
    }

    /// Reports the first failure, because there is no path; but if a prune may be the reason, has
    /// the chain listed again first.
    fn give_up(&mut self, wanted: u64) -> Result<Option<Plan>> {
        let lacks_file = self
            .failures
            .iter()
            .any(|failure| failure.rule() == Some(rules::CHN_09.id));
        if lacks_file && !self.is_current {
            self.must_list = true;
            return Ok(None);
        }
        Err(self
            .faults
            .drain(..)
            .chain(self.failures.drain(..))
            .next()
            .unwrap_or_else(|| {
                let message = format!("no path leads to version {wanted}: it has been pruned");
                Error::broken(&rules::CHN_08, message)
                    .in_file(ObjectName::Commit(wanted).to_string())
            }))
    }
}

#[cfg(test)]
mod tests;
