//! Compaction: new routes to a version, made from the chain itself, so that late joiners and those behind read less.

use std::path::PathBuf;

use deltachain::chain::{Entry, FileReference, ObjectName, Route, came_late};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Profile, Result};
use serde::Serialize;

use crate::access::attempt::{Attempt, put_routes, was_in_time};
use crate::access::documents::{Documents, one};
use crate::access::store::Store;
use crate::observer::{InPhase, Observer, Phase};
use crate::publishing::kept::{Kept, Place};
use crate::publishing::model::End;
use crate::publishing::new_link::{Coding, NewLink};
use crate::publishing::published::PublishedRoute;

/// How often routes are made anew that came into force too late after their files.
const ROUNDS: u32 = 3;

/// Which routes are made, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactOptions {
    /// The version that gets new routes; `None` for the head.
    pub version: Option<u64>,
    /// Older versions; a link is made from each.
    pub from: Vec<u64>,
    /// Whether a snapshot is made.
    pub snapshot: bool,
    /// How values are coded, as [`PublishOptions::profiles`](crate::PublishOptions::profiles). But the new routes are
    /// never taken in place: readers in place trust the routes of the commit alone.
    pub profiles: Vec<Profile>,
    /// Where states are built: room for two is needed. What is built there is left there.
    pub scratch: PathBuf,
    /// Limits for documents and links that are read.
    pub limits: Limits,
}

impl CompactOptions {
    deltachain::setters! {
        version: Option<u64>,
        from: Vec<u64>,
        snapshot: bool,
        profiles: Vec<Profile>,
        limits: Limits,
    }

    /// For the head, and nothing to be made yet.
    pub fn new(scratch: impl Into<PathBuf>) -> Self {
        Self {
            version: None,
            from: Vec::new(),
            snapshot: false,
            profiles: vec![Profile::default()],
            scratch: scratch.into(),
            limits: Limits::default(),
        }
    }
}

/// What a compaction has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Compacted {
    /// The version.
    pub version: u64,
    /// The new routes, that from nothing first.
    pub routes: Vec<PublishedRoute>,
}

/// Adds routes to a version. They come into force together, after all files have been stored; a route from the same
/// version that was there before is replaced, unless it can be taken in place.
///
/// # Errors
/// USAGE if no route or no profile is asked for, or a profile twice, or a link from a version that is not older or has
/// another number of shards; R-CHN-03 (`CHAIN`) if the version does not exist; errors of building the states; R-PUB-08
/// (`CHAIN`) if it took 20 hours; IO; the observer's error, if it stops the work.
pub fn compact(store: &Store, options: &CompactOptions, observer: &dyn Observer) -> Result<Compacted> {
    let target = entry_of(store, options.version, &options.limits)?;
    let version = target.commit.version;
    let mut sources = vec![None; usize::from(options.snapshot)];
    for &from in &options.from {
        sources.push(Some(check_source(store, from, &target, &options.limits)?));
    }
    sources.sort_by_key(|source| source.as_ref().map(|source| source.commit.version));
    sources.dedup();
    if sources.is_empty() {
        return Err(Error::usage("compact needs a snapshot or links from older versions to add"));
    }

    let codings = Coding::of(&options.profiles)?;
    // For each source, and for each coding but of snapshots.
    let codings = |source: &Option<Entry>| if source.is_some() { &codings[..] } else { &codings[..1] };
    let _uploads = InPhase::begin(observer, Phase::Upload, 0);
    let mut late = None;
    for _ in 0..ROUNDS {
        let mut made: Vec<MadeRoute> = Vec::new();
        for source in &sources {
            let from = source.as_ref().map(|source| source.commit.version);
            let empty = || MadeRoute { route: Route { from, files: Vec::new() }, is_direct: true };
            made.extend(codings(source).iter().map(|_| empty()));
        }
        let attempt = Attempt::begin(store);
        for shard in 0..target.commit.shards.len() {
            let maker = Maker { store, options, shard, observer };
            let mut kept = maker.keep("target", &target)?;
            let state = kept.bring_to(version, None, observer)?;
            let mut made = made.iter_mut();
            for source in &sources {
                let links = maker.make(source.as_ref(), &target, state, codings(source))?;
                for (link, made) in links.iter().zip(&mut made) {
                    made.route.files.push(link.reference);
                    made.is_direct &= link.report.is_direct;
                }
            }
        }
        let (document, is_in_time) = put_in_force(store, version, &made, attempt, &options.limits)?;
        if is_in_time {
            return Ok(Compacted { version, routes: made.iter().map(MadeRoute::published).collect() });
        }
        // Routes that were there before have been withdrawn. The state is here; it must not end like this.
        late = Some(came_late(document));
    }
    Err(late.unwrap_or_else(|| Error::usage("no routes have been made")))
}

/// A route that has been made.
struct MadeRoute {
    route: Route,
    /// Whether all values of its links are absolute.
    is_direct: bool,
}

impl MadeRoute {
    fn published(&self) -> PublishedRoute {
        PublishedRoute::of(&self.route, self.is_direct, false)
    }
}

/// A version, or the head, as it is now.
fn entry_of(store: &Store, version: Option<u64>, limits: &Limits) -> Result<Entry> {
    Ok(one(store, version, &mut Documents::new(), limits)?.1)
}

fn check_source(store: &Store, from: u64, target: &Entry, limits: &Limits) -> Result<Entry> {
    let version = target.commit.version;
    if from >= version {
        return Err(Error::usage(format!("version {from} is not older than version {version}")));
    }
    let source = entry_of(store, Some(from), limits)?;
    let shards = (source.commit.shards.len(), target.commit.shards.len());
    if shards.0 != shards.1 {
        return Err(Error::usage(format!(
            "version {from} has {} shards, version {version} has {}: no link can lead from one to the other",
            shards.0, shards.1
        )));
    }
    Ok(source)
}

/// Makes the links of one shard.
struct Maker<'a> {
    store: &'a Store,
    options: &'a CompactOptions,
    shard: usize,
    observer: &'a dyn Observer,
}

impl Maker<'_> {
    fn keep(&self, name: &str, entry: &Entry) -> Result<Kept> {
        let directory = self.options.scratch.join(format!("{name}-{}", self.shard));
        Kept::open(
            self.store,
            Place::Lasting(&directory),
            (self.shard, entry.commit.shards.len()),
            &self.options.limits,
        )
    }

    /// Makes the links from a version, or from nothing, and stores them.
    fn make(&self, source: Option<&Entry>, target: &Entry, state: End<'_>, codings: &[Coding]) -> Result<Vec<NewLink>> {
        let Self { options, shard, observer, .. } = *self;
        let mut kept = source.map(|source| self.keep("source", source)).transpose()?;
        let base = match (&mut kept, source) {
            (Some(kept), Some(source)) => Some(kept.bring_to(source.commit.version, None, observer)?),
            _ => None,
        };
        let digest_of = |entry: &Entry| entry.commit.shards.get(shard).copied();
        let ends = (source.map_or(Some(Digest::of_empty_state()), digest_of), digest_of(target));
        let make = |&coding: &Coding| {
            let link = NewLink::make(base, state, coding, &options.scratch, observer)?;
            if (Some(link.report.base), Some(link.report.target.state)) != ends {
                return Err(Error::usage("the states have changed while they were read").in_file(&options.scratch));
            }
            link.upload(self.store, observer)?;
            Ok(link)
        };
        codings.iter().map(make).collect()
    }
}

/// Adds routes to those in force: R-PUB-06. By which document, and whether that was stored in time after their files.
fn put_in_force(
    store: &Store,
    version: u64,
    added: &[MadeRoute],
    attempt: Attempt,
    limits: &Limits,
) -> Result<(ObjectName, bool)> {
    loop {
        let entry = entry_of(store, Some(version), limits)?;
        let in_place = entry.commit.routes.iter().zip(entry.commit.in_place_routes());
        let in_place: Vec<&Route> = in_place.filter(|(_, in_place)| *in_place).map(|(route, _)| route).collect();
        let stays =
            |route: &Route| in_place.contains(&route) || !added.iter().any(|added| added.route.from == route.from);
        let mut routes: Vec<Route> = entry.routes.iter().filter(|route| stays(route)).cloned().collect();
        routes.extend(added.iter().map(|added| added.route.clone()));
        let is_direct = |route: &Route| added.iter().any(|added| added.is_direct && added.route == *route);
        let document = entry.successor(routes, is_direct);
        if put_routes(store, &[attempt], &document)? {
            let files = added.iter().flat_map(|added| &added.route.files).map(FileReference::name);
            return Ok((document.name(), was_in_time(store, &[attempt], document.name(), files)?));
        }
    }
}
