//! Verifies a chain with the library alone, in memory: builds every version that has a commit by
//! every route.

use std::path::Path;

use deltachain::chain::{
    ChainDocument, Commit, FileReference, Hop, ObjectName, Planner, Route, RoutesDocument,
    check_target,
};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, MemoryState, StateDigests};
use deltachain::{Limits, LinkReader, Result, apply};
use deltachain_store::{RawObjects, Store};

/// Builds a version, or the head, of a chain of one shard, from nothing, on the cheapest path.
///
/// # Errors
/// Errors of the store, of the plan and of applying the links.
pub fn rebuild(store: &Store, version: Option<u64>) -> Result<MemoryState> {
    let mut planner = Planner::new(version, None, None, &Limits::default());
    let plan = planner.plan_with(
        |from, _| store.listing(from),
        |names, _| store.get_all(names),
    )?;
    let mut state = MemoryState::new();
    for Hop { files, shards, .. } in &plan.hops {
        let content = store
            .get(files[0].name())?
            .ok_or_else(|| files[0].missing())?;
        files[0].check(content.len() as u64, Digest::of_bytes(&content))?;
        let link = LinkReader::open(content, &Limits::default())?;
        check_target(link.header(), shards[0])?;
        state = apply(&state, &link)?;
    }
    Ok(state)
}

/// Checks that the versions of a chain of one shard have no gap and no fork, and that each of their
/// routes leads to the state that the commit names. Returns the states. The files must be short
/// enough to be read as documents.
pub fn prove(store: &Store) -> Vec<MemoryState> {
    let mut states: Vec<MemoryState> = Vec::new();
    let chain = store.get(ObjectName::Chain).unwrap().expect("chain.json");
    ChainDocument::parse(&chain, &Limits::default()).unwrap();
    let mut parent = Digest::of_bytes(&chain);
    let objects = store.objects().unwrap();
    let commits: Vec<_> = objects
        .iter()
        .filter(|object| matches!(object.name, ObjectName::Commit(_)))
        .collect();
    for (version, object) in (0..).zip(commits) {
        assert_eq!(object.name, ObjectName::Commit(version), "a gap");
        let bytes = store.get(object.name).unwrap().unwrap();
        let commit = Commit::parse(&bytes, &Limits::default()).unwrap();
        assert_eq!((commit.version, commit.parent), (version, parent));
        parent = Digest::of_bytes(&bytes);
        let mut built = commit
            .routes
            .iter()
            .map(|route| travel(store, route, &states));
        let state = built.next().expect("a route");
        assert!(
            built.all(|other| other == state),
            "two routes to version {version} lead to different states"
        );
        assert_eq!(StateDigests::of(&state, &()).unwrap().state, commit.state);
        states.push(state);
    }
    states
}

fn travel(store: &Store, route: &Route, states: &[MemoryState]) -> MemoryState {
    let content = store
        .get(route.files[0].name())
        .unwrap()
        .expect("a file that a commit names");
    route.files[0]
        .check(content.len() as u64, Digest::of_bytes(&content))
        .unwrap();
    let link = LinkReader::open(content, &Limits::default()).unwrap();
    match route.from {
        None => apply(&MemoryState::new(), &link).unwrap(),
        Some(from) => apply(&states[usize::try_from(from).unwrap()], &link).unwrap(),
    }
}

/// Checks that all commits and routes documents mark exactly their direct routes. Returns the
/// number of direct routes from versions, and of other routes from versions.
pub fn marks(store: &Store) -> (usize, usize) {
    let mut direct = 0;
    let mut other = 0;
    for object in store.objects().unwrap() {
        let bytes = store.get(object.name).unwrap().unwrap();
        let limits = Limits::default();
        let (routes, marks) = match object.name {
            ObjectName::Commit(_) => {
                let commit = Commit::parse(&bytes, &limits).unwrap();
                let marks = commit.direct_routes();
                (commit.routes, marks)
            }
            ObjectName::Routes { .. } => {
                let document = RoutesDocument::parse(&bytes, &limits).unwrap();
                let marks = document.direct_routes();
                (document.routes, marks)
            }
            _ => continue,
        };
        for (route, is_marked) in routes.iter().zip(marks) {
            let link = |file: &FileReference| {
                LinkReader::open(store.get(file.name()).unwrap().unwrap(), &limits).unwrap()
            };
            let is_direct = route.files.iter().all(|file| link(file).is_direct());
            assert_eq!(
                is_marked, is_direct,
                "{}: from {:?}",
                object.name, route.from
            );
            if route.from.is_some() {
                *(if is_direct { &mut direct } else { &mut other }) += 1;
            }
        }
    }
    (direct, other)
}

/// The state in a follower's directory, if it has one.
pub fn shown(directory: &Path) -> Option<MemoryState> {
    let current = directory.join("current");
    current
        .exists()
        .then(|| MemoryState::copy_of(&SafetensorsState::open(current).unwrap()).unwrap())
}
