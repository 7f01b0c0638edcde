//! Compaction: new routes to a version, made from the chain itself, so that late joiners and
//! followers that are behind download less.

use std::io;
use std::path::PathBuf;

use deltachain::chain::{FileReference, HistoryEntry, ObjectName, Route, came_late, time_unknown};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Profile, Result};
use serde::Serialize;

use crate::access::attempt::{Attempt, put_routes, was_in_time};
use crate::access::documents::{Documents, one};
use crate::access::store::Store;
use crate::observer::{InPhase, Observer, Phase};
use crate::publishing::kept::{KeptPlace, KeptVersion};
use crate::publishing::new_link::{NewLink, RouteCoding};
use crate::publishing::published::PublishedRoute;

/// Number of attempts to make routes that come into force in time after their files.
const ROUNDS: u32 = 3;

/// Number of attempts to add routes while other processes keep adding theirs.
const MOST_RACES: u32 = 100;

/// Options of a compaction: the routes to make, and how to make them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactOptions {
    version: Option<u64>,
    from: Vec<u64>,
    snapshot: bool,
    profiles: Vec<Profile>,
    scratch: PathBuf,
    limits: Limits,
}

impl CompactOptions {
    deltachain::setters! {
        /// The version that gets new routes; `None` for the head.
        version: Option<u64>,
        /// Older versions; a link is made from each.
        from: Vec<u64>,
        /// Whether a snapshot is made.
        snapshot: bool,
        /// Profiles of the new routes; see
        /// [`PublishOptions::profiles`](crate::PublishOptions::profiles). The new routes are never
        /// taken in place: readers in place trust only the routes of the commit.
        profiles: Vec<Profile>,
        /// Limits for documents and links that are read.
        limits: Limits,
    }

    /// Options for the head, without any routes to make yet. States are built in `scratch`, which
    /// needs room for two of them, and stay there.
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

/// The report of a compaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CompactReport {
    /// The version.
    pub version: u64,
    /// The new routes; those from nothing come first.
    pub routes: Vec<PublishedRoute>,
}

/// Adds routes to a version. They come into force together, after all files have been stored; an
/// earlier route from the same version is replaced, unless it can be taken in place.
///
/// # Errors
/// USAGE if no route or no profile is requested, if a profile is duplicate, if a link is requested
/// from a version that is not older or has another number of shards, or if the version has been
/// pruned and no snapshot is added; R-CHN-03 (`CHAIN`) if the version does not exist; errors of
/// building the states; R-PUB-08 (`CHAIN`) if it took 20 hours; IO; the observer's error, if it
/// stops the work.
pub fn compact(
    store: &Store,
    options: &CompactOptions,
    observer: &dyn Observer,
) -> Result<CompactReport> {
    let target = entry_of(store, options.version, &options.limits)?;
    let version = target.commit.version;
    let mut sources = vec![None; usize::from(options.snapshot)];
    for &from in &options.from {
        sources.push(Some(check_source(store, from, &target, &options.limits)?));
    }
    sources.sort_by_key(|source| source.as_ref().map(|source| source.commit.version));
    sources.dedup();
    if sources.is_empty() {
        return Err(Error::usage(
            "compact needs a snapshot or links from older versions to add",
        ));
    }

    let codings = RouteCoding::of(&options.profiles)?;
    // There is a route for each source and each coding, but only one snapshot.
    let codings = |source: &Option<HistoryEntry>| {
        if source.is_some() {
            &codings[..]
        } else {
            &codings[..1]
        }
    };
    let _uploads = InPhase::begin(observer, Phase::Upload, 0);
    let mut late = None;
    for _ in 0..ROUNDS {
        let mut made: Vec<MadeRoute> = Vec::new();
        for source in &sources {
            let from = source.as_ref().map(|source| source.commit.version);
            let new = |&coding| MadeRoute {
                coding,
                route: Route {
                    from,
                    files: Vec::new(),
                },
                is_direct: true,
            };
            made.extend(codings(source).iter().map(new));
        }
        let attempt = Attempt::begin(store);
        for shard in 0..target.commit.shards.len() {
            make_links(
                store,
                options,
                (&sources, &target),
                shard,
                &mut made,
                observer,
            )?;
        }
        let (document, is_in_time) = put_in_force(store, version, &made, attempt, &options.limits)?;
        if is_in_time {
            let published =
                |made: &MadeRoute| PublishedRoute::of(&made.route, made.is_direct, false);
            return Ok(CompactReport {
                version,
                routes: made.iter().map(published).collect(),
            });
        }
        // The earlier routes have been withdrawn, so the work must not end here. The states are
        // still there to make the new routes again.
        late = Some(came_late(document));
    }
    Err(late.unwrap_or_else(|| Error::usage("no routes were made")))
}

/// A route that has been made.
struct MadeRoute {
    coding: RouteCoding,
    route: Route,
    /// Whether all values of its links are absolute.
    is_direct: bool,
}

/// Reads a version, or the head, as it is now.
fn entry_of(store: &Store, version: Option<u64>, limits: &Limits) -> Result<HistoryEntry> {
    Ok(one(store, version, &mut Documents::new(), limits)?.1)
}

fn check_source(
    store: &Store,
    from: u64,
    target: &HistoryEntry,
    limits: &Limits,
) -> Result<HistoryEntry> {
    let version = target.commit.version;
    if from >= version {
        return Err(Error::usage(format!(
            "version {from} is not older than version {version}"
        )));
    }
    let source = entry_of(store, Some(from), limits)?;
    let shards = (source.commit.shards.len(), target.commit.shards.len());
    if shards.0 != shards.1 {
        return Err(Error::usage(format!(
            "version {from} has {} shards, version {version} has {}: no link can lead from one to \
             the other",
            shards.0, shards.1
        )));
    }
    Ok(source)
}

/// Makes the links of one shard from each source, or from nothing, stores them, and adds them to
/// their routes.
fn make_links(
    store: &Store,
    options: &CompactOptions,
    (sources, target): (&[Option<HistoryEntry>], &HistoryEntry),
    shard: usize,
    made: &mut [MadeRoute],
    observer: &dyn Observer,
) -> Result<()> {
    let keep = |name: &str, entry: &HistoryEntry| {
        let directory = options.scratch.join(format!("{name}-{shard}"));
        let shard = (shard, entry.commit.shards.len());
        KeptVersion::open(
            store,
            KeptPlace::Lasting(&directory),
            shard,
            &options.limits,
        )
    };
    let digest_of = |entry: &HistoryEntry| entry.commit.shards.get(shard).copied();
    let mut kept = keep("target", target)?;
    let state = kept.bring_to(target.commit.version, None, observer)?;
    for source in sources {
        let mut kept = source
            .as_ref()
            .map(|source| keep("source", source))
            .transpose()?;
        let base = match (&mut kept, source) {
            (Some(kept), Some(source)) => {
                Some(kept.bring_to(source.commit.version, None, observer)?)
            }
            _ => None,
        };
        let ends = (
            source
                .as_ref()
                .map_or(Some(Digest::of_empty_state()), digest_of),
            digest_of(target),
        );
        let from = source.as_ref().map(|source| source.commit.version);
        for made in made.iter_mut().filter(|made| made.route.from == from) {
            let link = NewLink::make(base, state, made.coding, &options.scratch, observer)?;
            if (Some(link.report.base), Some(link.report.target.state)) != ends {
                return Err(Error::changed(&options.scratch));
            }
            link.upload(store, observer)?;
            made.route.files.push(link.reference);
            made.is_direct &= link.report.is_direct;
        }
    }
    Ok(())
}

/// A pruned version that is brought back must have a route from nothing: a link alone would lead
/// from a version that may be pruned, too.
fn check_beginning(entry: &HistoryEntry, added: &[MadeRoute]) -> Result<()> {
    let has_snapshot = added.iter().any(|added| added.route.from.is_none());
    if entry.routes.is_empty() && !has_snapshot {
        return Err(Error::usage(format!(
            "version {} has been pruned: a link to it needs a snapshot beside it",
            entry.commit.version
        )));
    }
    Ok(())
}

/// Adds routes to those in force (R-PUB-06). Returns the name of the routes document, and true if
/// it was stored in time after the files.
fn put_in_force(
    store: &Store,
    version: u64,
    added: &[MadeRoute],
    attempt: Attempt,
    limits: &Limits,
) -> Result<(ObjectName, bool)> {
    for _ in 0..MOST_RACES {
        let entry = entry_of(store, Some(version), limits)?;
        check_beginning(&entry, added)?;
        let in_place = entry
            .commit
            .routes
            .iter()
            .zip(entry.commit.in_place_routes());
        let in_place: Vec<&Route> = in_place
            .filter(|(_, in_place)| *in_place)
            .map(|(route, _)| route)
            .collect();
        let stays = |route: &Route| {
            in_place.contains(&route) || !added.iter().any(|added| added.route.from == route.from)
        };
        let mut routes: Vec<Route> = entry
            .routes
            .iter()
            .filter(|route| stays(route))
            .cloned()
            .collect();
        routes.extend(added.iter().map(|added| added.route.clone()));
        let is_direct = |route: &Route| {
            added
                .iter()
                .any(|added| added.is_direct && added.route == *route)
        };
        let document = entry.successor(routes, is_direct);
        if put_routes(store, &[attempt], &document)? {
            let files = added
                .iter()
                .flat_map(|added| &added.route.files)
                .map(FileReference::name);
            let is_in_time = was_in_time(store, &[attempt], document.name(), files)
                .map_err(|error| time_unknown(document.name(), &error))?;
            return Ok((document.name(), is_in_time));
        }
    }
    let text = "each new name for the routes was taken: other processes keep changing the routes, \
                or the store's list is incomplete";
    let error = io::Error::other(text);
    Err(Error::io("storing routes", error).in_file(store.to_string()))
}
