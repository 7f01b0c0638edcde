//! Plans for chains in memory: every rule of steps 1 to 4, and every way around an unusable object.

use super::*;
use crate::chain::{Asset, ChainDocument, Route};

/// The next request of a planner.
#[derive(Debug, PartialEq, Eq)]
enum PlannerStep {
    List { from: u64, notes: bool },
    Fetch(Vec<ObjectName>),
    Follow(Box<Plan>),
}

impl Planner {
    fn step(&mut self) -> Result<PlannerStep> {
        loop {
            if self.must_list {
                return Ok(PlannerStep::List {
                    from: self.list_from,
                    notes: false,
                });
            }
            if self.must_list_notes {
                return Ok(PlannerStep::List {
                    from: self.wanted.unwrap_or(self.list_from),
                    notes: true,
                });
            }
            if !self.asked.is_empty() {
                return Ok(PlannerStep::Fetch(self.asked.iter().copied().collect()));
            }
            if let Some(plan) = self.advance()? {
                return Ok(PlannerStep::Follow(Box::new(plan)));
            }
        }
    }
}

mod held;
mod search;
mod signed;

/// A chain whose objects are in memory. A route is given by the version that it starts from and the
/// sizes of its files.
#[derive(Clone)]
struct Store {
    objects: BTreeMap<String, Vec<u8>>,
    commits: Vec<Commit>,
}

type RouteGiven<'a> = (Option<u64>, &'a [u64]);

impl Store {
    fn new() -> Self {
        let chain = ChainDocument::new(1).to_bytes().unwrap();
        Self {
            objects: BTreeMap::from([(ObjectName::Chain.to_string(), chain)]),
            commits: Vec::new(),
        }
    }

    fn digest(&self, name: ObjectName) -> Digest {
        Digest::of_bytes(&self.objects[&name.to_string()])
    }

    fn put(&mut self, name: ObjectName, bytes: Vec<u8>) {
        self.objects.insert(name.to_string(), bytes);
    }

    fn remove(&mut self, name: ObjectName) {
        self.objects.remove(&name.to_string()).unwrap();
    }

    /// Adds a version with as many shards as its first route has files.
    fn add(self, routes: &[RouteGiven<'_>]) -> Self {
        self.add_in_place(routes, &[])
    }

    /// Adds a version whose commit marks the routes at these places as applicable in place.
    fn add_in_place(mut self, routes: &[RouteGiven<'_>], places: &[usize]) -> Self {
        let version = self.commits.len() as u64;
        let parent = version
            .checked_sub(1)
            .map_or(ObjectName::Chain, ObjectName::Commit);
        let state = Digest::of_bytes(format!("state {version}").as_bytes());
        let mut shards = vec![state; routes[0].1.len()];
        for (number, shard) in shards.iter_mut().enumerate().skip(1) {
            *shard = Digest::of_bytes(format!("shard {number} of {version}").as_bytes());
        }
        let commit = Commit {
            version,
            parent: self.digest(parent),
            state,
            shards,
            routes: routes_of(version, routes),
            assets: Vec::new(),
            metadata: if places.is_empty() {
                BTreeMap::new()
            } else {
                marks("deltachain.in-place", places)
            },
        };
        self.put(ObjectName::Commit(version), commit.to_bytes().unwrap());
        self.commits.push(commit);
        self
    }

    /// Adds a routes document.
    fn with_routes(mut self, version: u64, generation: u64, routes: &[RouteGiven<'_>]) -> Self {
        let commit = self.digest(ObjectName::Commit(version));
        let routes = routes_of(version, routes);
        let metadata = BTreeMap::new();
        let document = RoutesDocument {
            version,
            generation,
            commit,
            routes,
            metadata,
        };
        self.put(
            ObjectName::Routes {
                version,
                generation,
            },
            document.to_bytes().unwrap(),
        );
        self
    }

    /// Marks the routes of a commit or routes document at these places as direct.
    fn mark(&mut self, name: ObjectName, places: &[usize]) {
        let metadata = marks("deltachain.direct", places);
        let bytes = &self.objects[&name.to_string()];
        let bytes = match name {
            ObjectName::Commit(_) => Commit {
                metadata,
                ..Commit::parse(bytes, &Limits::default()).unwrap()
            }
            .to_bytes()
            .unwrap(),
            _ => RoutesDocument {
                metadata,
                ..RoutesDocument::parse(bytes, &Limits::default()).unwrap()
            }
            .to_bytes()
            .unwrap(),
        };
        self.put(name, bytes);
    }

    /// Replaces a commit by a changed one.
    fn change_commit(&mut self, version: u64, change: impl Fn(&mut Commit)) {
        let mut commit = self.commits[usize::try_from(version).unwrap()].clone();
        change(&mut commit);
        self.put(ObjectName::Commit(version), commit.to_bytes().unwrap());
    }

    #[expect(clippy::unnecessary_wraps, reason = "its callers need an option")]
    fn held(&self, version: u64) -> Option<VersionId> {
        let commit = self.digest(ObjectName::Commit(version));
        let chain = self.digest(ObjectName::Chain);
        Some(VersionId {
            version,
            commit,
            chain,
        })
    }

    /// Lists the names from this version on.
    fn listing(&self, from: u64) -> Listing {
        let is_listed = |name: &&String| match ObjectName::parse(name) {
            Some(
                ObjectName::Commit(version)
                | ObjectName::Routes { version, .. }
                | ObjectName::Signature { version, .. },
            ) => version >= from,
            _ => false,
        };
        Listing::new(self.objects.keys().filter(is_listed))
    }

    /// Supplies the objects that the planner asks for until it has a plan; also returns their
    /// number.
    fn drive(&self, planner: &mut Planner) -> Result<(Plan, usize)> {
        let mut count = 0;
        let fetch = |names: &[ObjectName], _| {
            count += names.len();
            // The order of the objects must not matter.
            Ok(names
                .iter()
                .rev()
                .map(|name| (*name, self.objects.get(&name.to_string())))
                .collect())
        };
        let plan = planner.plan_with(|from, _| Ok(self.listing(from)), fetch)?;
        Ok((plan, count))
    }

    fn plan(&self, wanted: Option<u64>, held: Option<VersionId>) -> Result<Plan> {
        self.drive(&mut planner(wanted, held)).map(|(plan, _)| plan)
    }

    /// Returns rule and object of the refusal.
    fn refusal(&self, wanted: Option<u64>, held: Option<VersionId>) -> (&'static str, String) {
        rule_and_file(&self.plan(wanted, held).unwrap_err())
    }
}

fn marks(key: &str, places: &[usize]) -> BTreeMap<String, String> {
    let value = places
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    BTreeMap::from([(key.to_owned(), value)])
}

fn planner(wanted: Option<u64>, held: Option<VersionId>) -> Planner {
    Planner::new(wanted, held, None, &Limits::default())
}

fn passed_over(planner: &Planner) -> Vec<(&'static str, String)> {
    planner.passed_over().map(rule_and_file).collect()
}

fn rule_and_file(error: &Error) -> (&'static str, String) {
    (
        error.rule().unwrap(),
        error.file().unwrap_or_default().to_owned(),
    )
}

fn routes_of(version: u64, routes: &[RouteGiven<'_>]) -> Vec<Route> {
    let file = |from: Option<u64>, number: usize, size: u64| FileReference {
        digest: Digest::of_bytes(format!("{from:?} {version} {number} {size}").as_bytes()),
        size,
    };
    let route = |&(from, sizes): &RouteGiven<'_>| Route {
        from,
        files: sizes
            .iter()
            .enumerate()
            .map(|(number, &size)| file(from, number, size))
            .collect(),
    };
    Route::in_order(routes.iter().map(route).collect())
}

/// Returns the version from which the path starts, and the versions on it.
fn path(plan: &Plan) -> (Option<u64>, Vec<u64>) {
    let mut from = plan.hops.first().and_then(|hop| hop.from);
    let start = from;
    for hop in &plan.hops {
        assert_eq!(hop.from, from);
        from = Some(hop.version);
    }
    assert!(plan.hops.is_empty() || from == Some(plan.version));
    let bytes: u64 = plan
        .hops
        .iter()
        .flat_map(|hop| &hop.files)
        .map(|file| file.size)
        .sum();
    assert_eq!(plan.bytes, u128::from(bytes));
    (start, plan.hops.iter().map(|hop| hop.version).collect())
}

const fn commit(version: u64) -> ObjectName {
    ObjectName::Commit(version)
}

const fn routes(version: u64, generation: u64) -> ObjectName {
    ObjectName::Routes {
        version,
        generation,
    }
}

/// Makes versions 0 to 3: a snapshot, then links of 10 bytes.
fn line() -> Store {
    Store::new()
        .add(&[(None, &[100])])
        .add(&[(Some(0), &[10])])
        .add(&[(Some(1), &[10])])
        .add(&[(Some(2), &[10])])
}

#[test]
fn a_plan_says_what_a_reader_needs() {
    let store = Store::new()
        .add(&[(None, &[100, 200])])
        .add(&[(None, &[150, 250]), (Some(0), &[10, 20])]);
    let plan = store.plan(None, None).unwrap();
    let [first, second] = &store.commits[..] else {
        panic!()
    };
    let hop = |commit: &Commit, from, route: usize| Hop {
        layouts: None,
        version: commit.version,
        from,
        files: commit.routes[route].files.clone(),
        shards: commit.shards.clone(),
        is_in_commit: true,
    };
    let expected = Plan {
        version: 1,
        commit: store.digest(commit(1)),
        chain: store.digest(ObjectName::Chain),
        state: second.state,
        shards: second.shards.clone(),
        assets: Vec::new(),
        metadata: BTreeMap::new(),
        bytes: 330,
        start: None,
        hops: vec![hop(first, None, 0), hop(second, Some(0), 1)],
        signed: None,
    };
    assert_eq!(plan, expected);
    let plan = store.plan(None, store.held(0)).unwrap();
    let hops = vec![hop(second, Some(0), 1)];
    assert_eq!(
        plan,
        Plan {
            bytes: 30,
            start: Some(first.shards.clone()),
            hops,
            ..expected.clone()
        }
    );
    let plan = store.plan(None, store.held(1)).unwrap();
    assert_eq!(
        plan,
        Plan {
            bytes: 0,
            start: Some(second.shards.clone()),
            hops: Vec::new(),
            ..expected.clone()
        }
    );

    let mut store = store.clone();
    let assets = vec![Asset {
        name: "a".to_owned(),
        file: FileReference {
            digest: Digest([1; 32]),
            size: 0,
        },
    }];
    let metadata = BTreeMap::from([("step".to_owned(), "7".to_owned())]);
    store.change_commit(1, |commit| {
        (commit.assets, commit.metadata) = (assets.clone(), metadata.clone());
    });
    let plan = store.plan(None, None).unwrap();
    assert_eq!(
        plan,
        Plan {
            commit: store.digest(commit(1)),
            assets,
            metadata,
            ..expected
        }
    );
}

#[test]
fn older_versions_and_held_ones_can_be_wanted() {
    let store = line();
    assert_eq!(
        path(&store.plan(Some(2), None).unwrap()),
        (None, vec![0, 1, 2])
    );
    assert_eq!(
        path(&store.plan(None, store.held(1)).unwrap()),
        (Some(1), vec![2, 3])
    );
    assert_eq!(
        path(&store.plan(None, store.held(3)).unwrap()),
        (None, vec![])
    );
    assert_eq!(store.plan(None, store.held(3)).unwrap().bytes, 0);
    // No path starts from a newer version.
    assert_eq!(
        path(&store.plan(Some(2), store.held(3)).unwrap()),
        (None, vec![0, 1, 2])
    );
    assert_eq!(
        path(&store.plan(Some(0), store.held(3)).unwrap()),
        (None, vec![0])
    );
}

#[test]
fn routes_from_the_same_version_are_told_apart() {
    let store = line().with_routes(
        3,
        1,
        &[(Some(2), &[10]), (Some(2), &[20]), (Some(2), &[30])],
    );
    let mut planner = planner(None, store.held(2));
    let mut bytes = Vec::new();
    let error = loop {
        match store.drive(&mut planner) {
            Ok((plan, _)) => {
                bytes.push(plan.bytes);
                let hop = &plan.hops[0];
                // Failed files and failed routes are both ruled out.
                match bytes.len() {
                    2 => planner.fail_file(&hop.files[0], hop.files[0].missing()),
                    _ => planner.fail_route(hop, hop.files[0].missing()),
                }
            }
            Err(error) => break error,
        }
    };
    assert_eq!(bytes, [10, 20, 30]);
    assert_eq!(error.rule(), Some("R-CHN-09"));
    // A route with too many files does not affect the others.
    let store = line().with_routes(3, 1, &[(Some(2), &[1, 2]), (Some(2), &[30])]);
    assert_eq!(store.plan(None, store.held(2)).unwrap().bytes, 30);
}

#[test]
fn of_routes_that_cost_the_same_the_first_one_is_taken() {
    let mut store = line();
    let file = |byte| FileReference {
        digest: Digest([byte; 32]),
        size: 10,
    };
    let route = |from, byte| Route {
        from,
        files: vec![file(byte)],
    };
    store.change_commit(3, |commit| {
        commit.routes = vec![route(None, 9), route(Some(2), 3), route(Some(2), 5)];
    });
    // A path from nothing and one from the held version have the same versions.
    let plan = store.plan(None, store.held(2)).unwrap();
    assert_eq!((path(&plan), &plan.start), ((None, vec![3]), &None));
    store.change_commit(3, |commit| {
        commit.routes = vec![route(Some(2), 3), route(Some(2), 5)];
    });
    assert_eq!(
        store.plan(None, store.held(2)).unwrap().hops[0].files,
        [file(3)]
    );
}

#[test]
fn of_equally_many_bytes_fewer_routes_count_then_lower_versions() {
    let store = Store::new()
        .add(&[(None, &[100])])
        .add(&[(None, &[100]), (Some(0), &[10])])
        .add(&[(None, &[100]), (Some(0), &[10]), (Some(1), &[10])])
        .add(&[(Some(0), &[20]), (Some(1), &[10]), (Some(2), &[10])]);
    // The paths 0,1,3 and 0,2,3 and 0,3 take 120 bytes; 1,3 and 2,3 take 110.
    assert_eq!(path(&store.plan(None, None).unwrap()), (None, vec![1, 3]));
    let store = store
        .with_routes(1, 1, &[(Some(0), &[10])])
        .with_routes(2, 1, &[(Some(0), &[10])]);
    assert_eq!(path(&store.plan(None, None).unwrap()), (None, vec![0, 3]));
    let store = store.with_routes(3, 1, &[(Some(1), &[10]), (Some(2), &[10])]);
    assert_eq!(
        path(&store.plan(None, None).unwrap()),
        (None, vec![0, 1, 3])
    );
}

#[test]
fn a_direct_path_avoids_what_is_not_marked() {
    // There are two routes from 2 to 3, of 10 and 15 bytes.
    let mut store = line().with_routes(3, 1, &[(None, &[500]), (Some(2), &[10]), (Some(2), &[15])]);
    let plan = |store: &Store, held| {
        store
            .drive(&mut planner(None, held).direct())
            .map(|(plan, _)| plan)
            .unwrap()
    };
    let taken = |plan: &Plan| (path(plan), plan.bytes);
    // No route is marked. A snapshot has no relative values; every other route is avoided.
    assert_eq!(taken(&plan(&store, store.held(2))), ((None, vec![3]), 500));
    store.mark(routes(3, 1), &[2]);
    assert_eq!(
        taken(&plan(&store, store.held(2))),
        ((Some(2), vec![3]), 15)
    );
    assert_eq!(
        taken(&store.plan(None, store.held(2)).unwrap()),
        ((Some(2), vec![3]), 10)
    );
    // All routes are marked, so the cheapest one is best.
    store.mark(routes(3, 1), &[0, 1, 2]);
    assert_eq!(
        taken(&plan(&store, store.held(2))),
        ((Some(2), vec![3]), 10)
    );
    // The route to 2 is not marked: 500 direct bytes from nothing are better than 20 bytes, of
    // which 10 are not direct.
    assert_eq!(taken(&plan(&store, store.held(1))), ((None, vec![3]), 500));
    let mut store = store.with_routes(3, 2, &[(Some(2), &[10])]);
    assert_eq!(
        taken(&plan(&store, store.held(1))),
        ((Some(1), vec![2, 3]), 20)
    );
    // Marks of a document that is not in force have no effect, and invalid marks are ignored,
    // because they are only hints.
    store.mark(routes(3, 2), &[7]);
    assert_eq!(
        taken(&plan(&store, store.held(1))),
        ((Some(1), vec![2, 3]), 20)
    );
}

#[test]
fn a_direct_path_is_found_below_the_window() {
    // The routes from 0 and 2 to 3 are marked, those to 1 and 2 are not, and the snapshot of 3 is
    // expensive. The planner must read the commits below to find the best path.
    let mut store = line().with_routes(
        3,
        1,
        &[(None, &[1000]), (Some(0), &[300]), (Some(2), &[10])],
    );
    store.mark(routes(3, 1), &[1, 2]);
    let (plan, _) = store.drive(&mut planner(None, None).direct()).unwrap();
    assert_eq!((path(&plan), plan.bytes), ((None, vec![0, 3]), 400));
    assert_eq!(
        path(&store.plan(None, None).unwrap()),
        (None, vec![0, 1, 2, 3])
    );
}

#[test]
fn a_path_in_place_avoids_what_commits_do_not_mark() {
    // There are two routes each from 0 to 1 and from 1 to 2, the longer of which is applicable in
    // place, and a snapshot of each version.
    let routes = |from| {
        [
            (None, &[100][..]),
            (Some(from), &[10][..]),
            (Some(from), &[15][..]),
        ]
    };
    let store = Store::new()
        .add(&[(None, &[100])])
        .add_in_place(&routes(0), &[2])
        .add_in_place(&routes(1), &[2]);
    let plan = |store: &Store, held| {
        store
            .drive(&mut planner(None, held).in_place())
            .map(|(plan, _)| plan)
            .unwrap()
    };
    let taken = |plan: &Plan| {
        (
            path(plan),
            plan.bytes,
            plan.hops.iter().all(|hop| hop.is_in_commit),
        )
    };
    assert_eq!(
        taken(&plan(&store, store.held(0))),
        ((Some(0), vec![1, 2]), 30, true)
    );
    // From nothing, the cheapest path is best, whether or not its later routes are applicable in
    // place.
    assert_eq!(taken(&plan(&store, None)), ((None, vec![2]), 100, true));
    // Routes of a document are never marked, whatever its metadata says; but it may repeat the
    // commit's routes, whose marks remain valid.
    let other = [
        (None, &[100][..]),
        (Some(0), &[1][..]),
        (Some(1), &[10][..]),
        (Some(1), &[15][..]),
    ];
    let mut store = store.with_routes(2, 1, &other);
    let name = ObjectName::Routes {
        version: 2,
        generation: 1,
    };
    let says = marks("deltachain.in-place", &[1]);
    let document =
        RoutesDocument::parse(&store.objects[&name.to_string()], &Limits::default()).unwrap();
    store.put(
        name,
        RoutesDocument {
            metadata: says,
            ..document
        }
        .to_bytes()
        .unwrap(),
    );
    assert_eq!(
        taken(&plan(&store, store.held(0))),
        ((Some(0), vec![1, 2]), 30, true)
    );
    assert_eq!(
        taken(&store.plan(None, store.held(0)).unwrap()),
        ((Some(0), vec![2]), 1, false)
    );
    // Withdrawn routes are not used. Bytes from the held version that cannot be applied in place
    // count like the bytes of a path from nothing.
    let store = store.with_routes(2, 2, &[(None, &[100]), (Some(1), &[10])]);
    assert_eq!(
        taken(&plan(&store, store.held(0))),
        ((Some(0), vec![1, 2]), 25, true)
    );
    let store = store.with_routes(2, 3, &[(None, &[9]), (Some(1), &[10])]);
    assert_eq!(
        taken(&plan(&store, store.held(0))),
        ((None, vec![2]), 9, false)
    );
    let store = store.with_routes(2, 4, &[(Some(1), &[7])]);
    assert_eq!(
        taken(&plan(&store, store.held(0))),
        ((Some(0), vec![1, 2]), 22, false)
    );
}

#[test]
fn a_cheaper_path_is_found_below_a_snapshot() {
    let store = line().add(&[(None, &[132]), (Some(3), &[1])]);
    assert_eq!(
        path(&store.plan(None, None).unwrap()),
        (None, vec![0, 1, 2, 3, 4])
    );
    let store = line().add(&[(None, &[131]), (Some(3), &[1])]);
    assert_eq!(path(&store.plan(None, None).unwrap()), (None, vec![4]));
}

#[test]
fn a_chain_begins_with_its_document() {
    let mut store = line();
    store.remove(ObjectName::Chain);
    assert_eq!(
        store.refusal(None, None),
        ("R-CHN-01", "chain.json".to_owned())
    );
    store.objects.clear();
    assert_eq!(store.refusal(None, None).0, "R-CHN-01");
    store.put(ObjectName::Chain, b"{\"deltachain\":2,".to_vec());
    assert_eq!(
        store.refusal(None, None),
        ("R-DOC-02", "chain.json".to_owned())
    );
}

#[test]
fn the_version_wanted_has_to_exist() {
    assert_eq!(Store::new().refusal(None, None).0, "R-CHN-03");
    for version in [4, MAX_INTEGER, MAX_INTEGER + 1, u64::MAX] {
        assert_eq!(
            line().refusal(Some(version), None).0,
            "R-CHN-03",
            "{version}"
        );
        assert_eq!(
            line().refusal(Some(version), line().held(2)).0,
            "R-CHN-03",
            "{version}"
        );
    }
}

#[test]
fn commits_form_a_chain() {
    let mut gap = line();
    gap.remove(commit(1));
    assert_eq!(gap.refusal(None, None), ("R-CHN-03", commit(1).to_string()));
    assert_eq!(
        gap.refusal(None, gap.held(0)),
        ("R-CHN-03", commit(1).to_string())
    );
    assert_eq!(
        path(&gap.plan(None, gap.held(2)).unwrap()),
        (Some(2), vec![3])
    );

    let mut misplaced = line();
    misplaced.change_commit(2, |commit| commit.version = 5);
    assert_eq!(
        misplaced.refusal(None, None),
        ("R-CHN-02", commit(2).to_string())
    );

    let mut malformed = line();
    malformed.put(commit(3), b"{}".to_vec());
    assert_eq!(
        malformed.refusal(None, None),
        ("R-DOC-01", commit(3).to_string())
    );

    let mut forked = line();
    forked.change_commit(1, |commit| {
        commit.metadata = BTreeMap::from([("other".to_owned(), String::new())]);
    });
    assert_eq!(
        forked.refusal(None, None),
        ("R-CHN-04", commit(2).to_string())
    );
    assert_eq!(
        forked.refusal(None, line().held(1)),
        ("R-CHN-05", commit(1).to_string())
    );
    assert_eq!(
        forked.refusal(Some(1), line().held(1)),
        ("R-CHN-05", commit(1).to_string())
    );
    assert_eq!(
        forked.refusal(None, forked.held(0)),
        ("R-CHN-04", commit(2).to_string())
    );

    let mut other = line();
    other.put(ObjectName::Chain, ChainDocument::new(2).to_bytes().unwrap());
    assert_eq!(
        other.refusal(None, None),
        ("R-CHN-04", commit(0).to_string())
    );
    assert_eq!(
        other.refusal(Some(0), None),
        ("R-CHN-04", commit(0).to_string())
    );
    // The planner reads no more commits than necessary.
    assert_eq!(
        path(&other.plan(None, other.held(1)).unwrap()),
        (Some(1), vec![2, 3])
    );
}

#[test]
fn a_fault_rules_out_the_paths_that_need_the_commit() {
    let mut store = line().add(&[(None, &[1000]), (Some(3), &[10])]);
    store.remove(commit(1));
    let mut planner = planner(None, None);
    assert_eq!(path(&store.drive(&mut planner).unwrap().0), (None, vec![4]));
    assert_eq!(passed_over(&planner), [("R-CHN-03", commit(1).to_string())]);

    // A path that begins at the child does not need the parent.
    let mut store = line().add(&[(None, &[1000]), (Some(3), &[10])]);
    store.change_commit(3, |commit| {
        commit.metadata = BTreeMap::from([("other".to_owned(), String::new())]);
    });
    assert_eq!(path(&store.plan(None, None).unwrap()), (None, vec![4]));
}

#[test]
fn who_holds_a_version_passes_no_fault_over_that_comes_after_it() {
    // A cheap snapshot of the head does not avoid the fault.
    let mut store = line().add(&[(None, &[1]), (Some(3), &[10])]);
    let held = store.held(1);
    store.put(commit(3), b"{}".to_vec());
    assert_eq!(
        store.refusal(None, held),
        ("R-DOC-01", commit(3).to_string())
    );
    // The first of several faults is reported.
    store.change_commit(2, |commit| commit.version = 5);
    assert_eq!(
        store.refusal(None, held),
        ("R-CHN-02", commit(2).to_string())
    );
    store.change_commit(1, |commit| {
        commit.metadata = BTreeMap::from([("other".to_owned(), String::new())]);
    });
    assert_eq!(
        store.refusal(None, held),
        ("R-CHN-05", commit(1).to_string())
    );
    store.remove(commit(1));
    assert_eq!(
        store.refusal(None, held),
        ("R-CHN-03", commit(1).to_string())
    );
    assert_eq!(path(&store.plan(None, None).unwrap()), (None, vec![4]));
}

#[test]
fn unusable_routes_documents_are_passed_over() {
    // The commit's route has 10 bytes, that of generation 1 has 11, and that of generation 3 has
    // 13.
    let good = line()
        .with_routes(3, 1, &[(Some(2), &[11])])
        .with_routes(3, 3, &[(Some(2), &[13])]);
    let bytes = |store: &Store| store.plan(None, store.held(2)).unwrap().bytes;
    assert_eq!(bytes(&good), 13);

    let of_another_commit = {
        let mut store = good.clone();
        let other = line().with_routes(2, 3, &[(None, &[5])]);
        let mut document = RoutesDocument::parse(
            &other.objects[&routes(2, 3).to_string()],
            &Limits::default(),
        )
        .unwrap();
        document.version = 3;
        store.put(routes(3, 3), document.to_bytes().unwrap());
        (store, "R-CHN-06")
    };
    let misplaced = {
        let mut store = good.clone();
        store.put(
            routes(3, 3),
            store.objects[&routes(3, 1).to_string()].clone(),
        );
        (store, "R-CHN-02")
    };
    let malformed = {
        let mut store = good.clone();
        store.put(routes(3, 3), b"{\"deltachain\":1,".to_vec());
        (store, "R-DOC-03")
    };
    for (store, rule) in [of_another_commit, misplaced, malformed] {
        let mut planner = planner(None, store.held(2));
        assert_eq!(store.drive(&mut planner).unwrap().0.bytes, 11);
        assert_eq!(passed_over(&planner), [(rule, routes(3, 3).to_string())]);

        let mut store = store.with_routes(3, 1, &[(Some(2), &[11])]);
        store.put(routes(3, 1), Vec::new());
        assert_eq!(bytes(&store), 10);
        // If no path is left, the first failure is reported.
        let mut store = store.add(&[(Some(3), &[1])]).with_routes(4, 1, &[]);
        store.put(routes(4, 2), Vec::new());
        assert_eq!(
            store.refusal(None, store.held(3)),
            ("R-DOC-01", routes(4, 2).to_string())
        );
    }
}

#[test]
fn the_chain_is_listed_again_when_a_routes_document_has_gone() {
    let mut store =
        line()
            .with_routes(3, 1, &[(Some(2), &[11])])
            .with_routes(3, 2, &[(Some(2), &[12])]);
    let drive = |store: &Store, later: &Store| {
        let mut planner = planner(None, store.held(2));
        assert_eq!(
            planner.step().unwrap(),
            PlannerStep::List {
                from: 2,
                notes: false
            }
        );
        planner.list(store.listing(2));
        (
            later.drive(&mut planner).unwrap().0.bytes,
            passed_over(&planner),
        )
    };
    let before = store.clone();
    store.remove(routes(3, 2));
    // The new list has a newer document, or only the older one.
    assert_eq!(
        drive(
            &before,
            &store.clone().with_routes(3, 3, &[(Some(2), &[13])])
        ),
        (13, Vec::new())
    );
    assert_eq!(drive(&before, &store), (11, Vec::new()));
    // The lists of this store contain an object that does not exist.
    let mut planner = planner(None, before.held(2));
    let fetch = |names: &[ObjectName], _| {
        Ok(names
            .iter()
            .map(|name| (*name, store.objects.get(&name.to_string())))
            .collect())
    };
    assert_eq!(
        planner
            .plan_with(|from, _| Ok(before.listing(from)), fetch)
            .unwrap()
            .bytes,
        11
    );
}

#[test]
fn the_chain_is_listed_again_before_a_file_is_missing() {
    let before = line();
    let mut planner = planner(None, before.held(2));
    let (plan, _) = before.drive(&mut planner).unwrap();
    planner.fail_file(&plan.hops[0].files[0], plan.hops[0].files[0].missing());
    // Meanwhile, another route has replaced the one whose file is missing.
    let now = before.clone().with_routes(3, 1, &[(Some(2), &[20])]);
    let (plan, _) = now.drive(&mut planner).unwrap();
    assert_eq!((path(&plan), plan.bytes), ((Some(2), vec![3]), 20));
    // Then the version is pruned.
    planner.fail_file(&plan.hops[0].files[0], plan.hops[0].files[0].missing());
    let pruned = now.with_routes(3, 2, &[]);
    assert_eq!(
        rule_and_file(&pruned.drive(&mut planner).unwrap_err()),
        ("R-CHN-08", commit(3).to_string())
    );
}

#[test]
fn routes_have_a_file_for_each_shard() {
    let store = Store::new()
        .add(&[(None, &[100])])
        .add(&[(None, &[60, 60]), (Some(0), &[5, 5])]);
    // The version that the route starts from has another number of shards.
    let mut planner = planner(None, None);
    assert_eq!(path(&store.drive(&mut planner).unwrap().0), (None, vec![1]));
    assert_eq!(passed_over(&planner), [("R-CHN-07", commit(1).to_string())]);
    let misfit = store.clone().with_routes(1, 1, &[(Some(0), &[5, 5])]);
    assert_eq!(
        misfit.refusal(None, None),
        ("R-CHN-07", routes(1, 1).to_string())
    );
    assert_eq!(
        misfit.refusal(None, misfit.held(0)),
        ("R-CHN-07", routes(1, 1).to_string())
    );
    // The version that the route leads to has another number of shards.
    let misfit = store.with_routes(1, 1, &[(None, &[5]), (Some(0), &[5])]);
    assert_eq!(
        misfit.refusal(None, None),
        ("R-CHN-07", routes(1, 1).to_string())
    );
}

#[test]
fn pruned_versions_are_told_from_damage() {
    let store = line().with_routes(1, 1, &[]);
    for wanted in 1..=3 {
        assert_eq!(
            store.refusal(Some(wanted), None),
            ("R-CHN-08", commit(wanted).to_string())
        );
    }
    assert_eq!(path(&store.plan(Some(0), None).unwrap()), (None, vec![0]));
    assert_eq!(
        path(&store.plan(None, store.held(1)).unwrap()),
        (Some(1), vec![2, 3])
    );
    assert_eq!(store.refusal(None, store.held(0)).0, "R-CHN-08");
}

#[test]
fn failed_routes_are_passed_over_until_none_is_left() {
    let store = line().add(&[(None, &[1000]), (Some(2), &[30]), (Some(3), &[10])]);
    let mut planner = planner(None, None);
    let mut paths = Vec::new();
    let error = loop {
        match store.drive(&mut planner) {
            Ok((plan, _)) => {
                paths.push(path(&plan).1);
                let failing = plan.hops.last().unwrap();
                planner.fail_route(failing, failing.files[0].missing());
            }
            Err(error) => break error,
        }
    };
    assert_eq!(paths, [vec![0, 1, 2, 3, 4], vec![0, 1, 2, 4], vec![4]]);
    assert_eq!(
        rule_and_file(&error),
        (
            "R-CHN-09",
            store.commits[4].routes[2].files[0].name().to_string()
        )
    );
}

#[test]
fn a_failed_file_rules_out_all_routes_that_name_it() {
    let mut store = line();
    let file = store.commits[1].routes[0].files[0];
    store = store.add(&[(None, &[1000]), (Some(2), &[9]), (Some(3), &[10])]);
    // The routes from 0 to 1 and from 2 to 4 name the same file.
    store.change_commit(4, |commit| commit.routes[1].files[0] = file);
    let mut planner = planner(None, None);
    let (plan, _) = store.drive(&mut planner).unwrap();
    assert_eq!(path(&plan).1, [0, 1, 2, 4]);
    planner.fail_file(&file, file.missing());
    assert_eq!(path(&store.drive(&mut planner).unwrap().0).1, [4]);
}

#[test]
fn a_long_chain_is_not_read_to_its_beginning() {
    let mut store = Store::new().add(&[(None, &[60_000])]);
    for version in 1..10_000_u64 {
        let link: RouteGiven<'_> = (Some(version - 1), &[300]);
        store = if version % 100 == 0 {
            store.add(&[(None, &[60_000]), link])
        } else {
            store.add(&[link])
        };
        if version % 64 == 0 {
            store = store.with_routes(version, 1, &[(Some(version - 64), &[9_000]), link]);
        }
    }
    let count = |wanted, held| store.drive(&mut planner(wanted, held)).unwrap();
    // The path from the nearest snapshot takes 89,700 bytes. As many bytes lead 640 versions down,
    // so nothing below can be cheaper.
    let (plan, objects) = count(None, None);
    assert_eq!(path(&plan).1[0], 9900);
    assert!(objects < 1100, "{objects} objects");
    // A follower reads the chain document, the new commits, and the one that it holds.
    let (plan, objects) = count(None, store.held(9989));
    assert_eq!((plan.hops.len(), objects), (10, 12));
    // A follower that is `LONG_TIME` versions behind still reads all of them; one that is further
    // behind plans from nothing.
    let (plan, objects) = count(None, store.held(9999 - LONG_TIME));
    assert_eq!((path(&plan).1[0], objects > 4096), (9900, true));
    let (plan, objects) = count(None, store.held(9998 - LONG_TIME));
    assert_eq!(path(&plan).1[0], 9900);
    assert!(objects < 1100, "{objects} objects");
}
