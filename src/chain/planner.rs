//! Planning (SPEC section 19, steps 1 to 4): from the documents of a chain to the cheapest path.
//!
//! The planner does no IO. It looks at a *window* of versions up to the one wanted: from the version held, or from the one
//! wanted alone. It makes the window larger as long as a cheaper path may begin below, twice as large each time. A path
//! through a version below costs more than what leads from there into the window, so that a long chain is not read to its
//! beginning.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::checks::{check_files, check_parent, check_routes, check_version};
use crate::chain::json::MAX_INTEGER;
use crate::chain::path::{Path, Ways};
use crate::chain::received::{Document, ReadCommit};
use crate::chain::{FileReference, Held, Hop, Listing, ObjectName, Plan, Route, Step};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::rules::{self, ensure};
use crate::tensor::Digest;

/// Above a version held no more commits are asked for at once, so that a gap ends the reading soon.
const MAX_STRIDE: u64 = 1024;

/// Finds the cheapest path to a version of a chain. The documentation of [this module](crate::chain) has an example.
///
/// What is unusable is passed over as long as there is another path (SPEC section 19).
#[derive(Debug)]
pub struct Planner {
    /// `None` if the head is wanted, until it is known.
    wanted: Option<u64>,
    held: Option<Held>,
    limits: Limits,
    /// What was listed last.
    listed: Listing,
    /// The same, without the routes documents that were passed over.
    listing: Listing,
    /// Whether the chain has to be listed.
    must_list: bool,
    /// Whether the last list showed nothing new, and nothing has failed since.
    is_current: bool,
    /// Objects that have been asked for and not been supplied.
    asked: BTreeSet<ObjectName>,
    /// Objects that have been supplied and not been looked at.
    supplied: BTreeMap<ObjectName, Result<Option<Document>>>,
    /// Digest of the chain document.
    chain: Option<Digest>,
    /// Commits of the window, all of which have passed step 3.
    commits: BTreeMap<u64, ReadCommit>,
    /// The lowest version of the window.
    low: u64,
    /// No path may begin below, because a commit there is at fault.
    floor: u64,
    /// Routes in force of the versions of the window, without those that were passed over.
    routes: BTreeMap<u64, RoutesInForce>,
    /// Files that no path may need.
    bad_files: BTreeSet<FileReference>,
    /// Faults of commits that have been passed over, in the order in which they were met.
    faults: Vec<Error>,
    /// Whatever else has been passed over.
    failures: Vec<Error>,
}

#[derive(Debug)]
struct RoutesInForce {
    /// The document that they stand in.
    source: ObjectName,
    routes: Vec<Route>,
}

impl Planner {
    /// Plans how to reach a version, or the head if `wanted` is `None`, from what is held or from nothing. A version held
    /// that is above the one wanted counts as nothing.
    pub fn new(wanted: Option<u64>, held: Option<Held>, limits: &Limits) -> Self {
        Self {
            wanted,
            held,
            limits: *limits,
            listed: Listing::default(),
            listing: Listing::default(),
            must_list: true,
            is_current: false,
            asked: BTreeSet::from([ObjectName::Chain]),
            supplied: BTreeMap::new(),
            chain: None,
            commits: BTreeMap::new(),
            low: 0,
            floor: 0,
            routes: BTreeMap::new(),
            bad_files: BTreeSet::new(),
            faults: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// What to do next. To be called again when that has been done, and after [`fail_file`](Self::fail_file) and
    /// [`fail_route`](Self::fail_route).
    ///
    /// # Errors
    /// If there is no path, one of the failures of steps 1 to 5 of SPEC section 19, those of step 5 being what `fail_file`
    /// and `fail_route` were told. The planner is of no further use then.
    pub fn step(&mut self) -> Result<Step> {
        loop {
            if self.must_list {
                return Ok(Step::List);
            }
            if !self.asked.is_empty() {
                return Ok(Step::Fetch(self.asked.iter().copied().collect()));
            }
            if let Some(plan) = self.advance()? {
                return Ok(Step::Follow(plan));
            }
        }
    }

    /// Takes what the chain's objects are now.
    pub fn list(&mut self, listing: Listing) {
        let is_first = self.chain.is_none();
        self.must_list = false;
        self.is_current = !is_first && listing.has_same_routes_documents(&self.listed);
        if self.is_current {
            return;
        }
        self.listed = listing.clone();
        self.listing = listing;
        if is_first {
            self.begin();
        } else {
            // Again from step 4.
            self.asked.clear();
            self.supplied.clear();
            self.routes.clear();
            self.bad_files.clear();
            self.failures.clear();
        }
    }

    /// Takes the content of an object that was asked for; `None` if there is no such object.
    pub fn supply(&mut self, name: ObjectName, content: Option<&[u8]>) {
        if self.asked.remove(&name) {
            let document = content.map(|bytes| Document::parse(name, bytes, &self.limits)).transpose();
            self.supplied.insert(name, document.map_err(|error| error.in_file(name.to_string())));
        }
    }

    /// Passes over a file of the plan that is missing (R-CHN-09) or another one (R-CHN-10), and so over all routes that
    /// name it.
    pub fn fail_file(&mut self, file: &FileReference, error: Error) {
        self.bad_files.insert(*file);
        self.failures.push(error);
        self.is_current = false;
    }

    /// Passes over a route of the plan because one of its links was refused. Other routes may be right to name it.
    pub fn fail_route(&mut self, hop: &Hop, error: Error) {
        if let Some(RoutesInForce { routes, .. }) = self.routes.get_mut(&hop.version) {
            routes.retain(|route| route.from != hop.from);
        }
        self.failures.push(error);
        self.is_current = false;
    }

    /// What has been passed over so far.
    pub fn passed_over(&self) -> impl Iterator<Item = &Error> {
        self.faults.iter().chain(&self.failures)
    }

    /// Asks for what is needed first.
    fn begin(&mut self) {
        // Documents hold no larger number.
        self.wanted = self.wanted.or(self.listing.head).filter(|&wanted| wanted <= MAX_INTEGER);
        self.held = self.held.filter(|held| Some(held.version) <= self.wanted);
        if let Some(wanted) = self.wanted {
            self.low = self.held.map_or(wanted, |held| held.version);
            self.ask(wanted);
        }
    }

    /// Asks for the documents of a version.
    fn ask(&mut self, version: u64) {
        let name = ObjectName::Commit(version);
        if !self.supplied.contains_key(&name) {
            self.asked.insert(name);
            if self.needs_routes(version) {
                self.asked.extend(self.listing.routes_document(version));
            }
        }
    }

    /// A path through the version held costs more than the rest of it, so routes to that version are of no use.
    fn needs_routes(&self, version: u64) -> bool {
        self.held.is_none_or(|held| held.version != version)
    }

    /// Looks at what has been supplied, and asks for more or finds the path.
    fn advance(&mut self) -> Result<Option<Plan>> {
        self.check_chain()?;
        let wanted = self.wanted.ok_or_else(|| Error::broken(&rules::CHN_03, "the chain has no such version"))?;
        self.check_required_commits(wanted)?;
        if !self.asked.is_empty() {
            return Ok(None);
        }
        self.check_lower_commits();
        self.find_routes_in_force();
        if self.must_list || !self.asked.is_empty() {
            return Ok(None);
        }
        self.pass_over_routes();
        let ways = Ways::find(wanted, self.routes.iter().map(|(&version, known)| (version, known.routes.as_slice())));
        let path = ways.cheapest(self.held.map(|held| held.version));
        let below = ways.least_bytes_from(self.floor..self.low);
        if below.is_some_and(|below| path.as_ref().is_none_or(|path| below < path.bytes)) {
            let low = self.low.saturating_sub(self.commits.len() as u64).max(self.floor);
            (low..self.low).for_each(|version| self.ask(version));
            self.low = low;
            return Ok(None);
        }
        match path {
            Some(path) => self.plan(wanted, &path).map(Some),
            None => self.give_up(wanted),
        }
    }

    /// Step 1.
    fn check_chain(&mut self) -> Result<()> {
        match self.supplied.remove(&ObjectName::Chain).transpose()?.flatten() {
            Some(Document::Chain(digest)) => self.chain = Some(digest),
            _ => ensure(self.chain.is_some(), &rules::CHN_01, || "there is no chain".into())
                .map_err(|error| error.in_file(ObjectName::Chain.to_string()))?,
        }
        Ok(())
    }

    /// Steps 2 and 3, for the version wanted and those down to the version held, where each failure is final.
    fn check_required_commits(&mut self, wanted: u64) -> Result<()> {
        if let Some(Ok(None)) = self.supplied.get(&ObjectName::Commit(wanted)) {
            return Err(no_commit(wanted));
        }
        let start = self.held.map_or(wanted, |held| held.version);
        let mut next = self.commits.last_key_value().map_or(start, |(&last, _)| last + 1);
        while let Some(document) = self.supplied.remove(&ObjectName::Commit(next)) {
            self.check_commit(next, document)?;
            self.check_parent(next)?;
            next += 1;
        }
        (next..=wanted.min(next + MAX_STRIDE)).for_each(|version| self.ask(version));
        Ok(())
    }

    /// Step 3, for commits below. A fault rules out the paths that need the commit.
    fn check_lower_commits(&mut self) {
        for version in self.low.. {
            let document = self.supplied.remove(&ObjectName::Commit(version));
            let supplied = document.is_some();
            if let Some(Err(fault)) = document.map(|document| self.check_commit(version, document)) {
                self.faults.push(fault);
                self.floor = version + 1;
            } else if let Err(fault) = self.check_parent(version) {
                self.faults.push(fault);
                // A path that begins at this version does not need the one before; but version 0 needs the chain.
                self.floor = version.max(1);
            }
            // The one after the last has a parent now.
            if !supplied {
                break;
            }
        }
        self.commits = self.commits.split_off(&self.floor);
        self.low = self.low.max(self.floor);
    }

    fn check_commit(&mut self, version: u64, document: Result<Option<Document>>) -> Result<()> {
        let Some(Document::Commit(checked)) = document? else { return Err(no_commit(version)) };
        check_version(version, &checked.commit)?;
        let recorded = self.held.filter(|held| held.version == version).map_or(checked.digest, |held| held.commit);
        ensure(checked.digest == recorded, &rules::CHN_05, || {
            format!("the version held has the commit {recorded}, this one is {}", checked.digest)
        })
        .map_err(|error| error.in_file(ObjectName::Commit(version).to_string()))?;
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

    /// Step 4, for each version of the window: the usable routes document with the highest generation, or the commit.
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

    /// The routes in force of a version, unless a document has to be supplied first.
    fn routes_of(&mut self, version: u64) -> Option<RoutesInForce> {
        while let Some(source) = self.listing.routes_document(version) {
            let Some(document) = self.supplied.remove(&source) else {
                self.asked.insert(source);
                return None;
            };
            match self.check_routes(version, source, document) {
                Ok(Some(routes)) => return Some(RoutesInForce { source, routes }),
                // It has been removed since it was listed, so there may be a newer one.
                Ok(None) => self.must_list = true,
                Err(error) => self.failures.push(error.in_file(source.to_string())),
            }
            self.listing.forget_routes_document(version);
        }
        let routes = self.commits.get(&version)?.commit.routes.clone();
        Some(RoutesInForce { source: ObjectName::Commit(version), routes })
    }

    fn check_routes(
        &self,
        version: u64,
        source: ObjectName,
        document: Result<Option<Document>>,
    ) -> Result<Option<Vec<Route>>> {
        let Some(Document::Routes(document)) = document? else { return Ok(None) };
        check_routes(source, &document, self.commits.get(&version).map(|commit| commit.digest))?;
        Ok(Some(document.routes))
    }

    /// R-CHN-07, as far as the versions are known that routes come from; and routes that name bad files.
    fn pass_over_routes(&mut self) {
        let Self { commits, routes, bad_files, failures, .. } = self;
        let shards_of = |version: u64| commits.get(&version).map(|checked| checked.commit.shards.len());
        for (&version, RoutesInForce { source, routes }) in routes {
            routes.retain(|route| {
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
        let mut from = path.start;
        let mut hops = Vec::with_capacity(path.versions.len());
        for &version in &path.versions {
            let routes = self.routes.get(&version).map(|known| known.routes.as_slice()).unwrap_or_default();
            let route = routes.iter().find(|route| route.from == from).ok_or_else(missing)?;
            let shards = commit_of(version)?.commit.shards.clone();
            hops.push(Hop { version, from, files: route.files.clone(), shards });
            from = Some(version);
        }
        let ReadCommit { digest, commit } = commit_of(wanted)?;
        Ok(Plan {
            version: wanted,
            commit: *digest,
            state: commit.state,
            shards: commit.shards.clone(),
            bytes: path.bytes,
            hops,
        })
    }

    /// There is no path: reports the first failure, unless a prune may be the reason.
    fn give_up(&mut self, wanted: u64) -> Result<Option<Plan>> {
        let first = self.passed_over().next().and_then(Error::rule);
        if first == Some(rules::CHN_09.id) && !self.is_current {
            self.must_list = true;
            return Ok(None);
        }
        Err(self.faults.drain(..).chain(self.failures.drain(..)).next().unwrap_or_else(|| {
            let message = format!("no path leads to version {wanted}: it has been pruned");
            Error::broken(&rules::CHN_08, message).in_file(ObjectName::Commit(wanted).to_string())
        }))
    }
}

fn no_commit(version: u64) -> Error {
    let message = format!("there is no commit of version {version}");
    Error::broken(&rules::CHN_03, message).in_file(ObjectName::Commit(version).to_string())
}

#[cfg(test)]
mod tests;
