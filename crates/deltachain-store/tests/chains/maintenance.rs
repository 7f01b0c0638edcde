//! Compaction, pruning and checking.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use deltachain::chain::{Commit, FileReference, ObjectName, Plan, Planner, Route, RoutesDocument};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Dtype, MemoryState};
use deltachain::{Error, ErrorClass, Limits, LinkReader, Profile, Result};
use deltachain_store::{
    Base, CompactOptions, CompactReport, FsckOptions, FsckReport, Keep, LogRoute, PrunePlan,
    PublishOptions, Publisher, RawObjects, Snapshots, Store, compact, fsck, init, log, plan_prune,
    prune, show,
};
use futures_util::{FutureExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::losses::DAY;
use crate::support::faulty::{Control, FaultyStore};
use crate::support::models::{Models, save};
use crate::support::quick;
use crate::support::shards::{commit_shards, publish_shard};
use crate::support::verify::{marks, rebuild};

/// A chain in memory whose clock can be set.
pub(crate) struct Chain {
    pub(crate) place: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) control: Arc<Control>,
    pub(crate) models: Models,
    pub(crate) options: PublishOptions,
}

impl Chain {
    pub(crate) fn new(versions: u64, snapshots: Snapshots, skips: &[u64]) -> Self {
        let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
        let store = Store::from_objects(objects, "", quick()).unwrap();
        init(&store).unwrap();
        let options = PublishOptions::default()
            .unsigned(true)
            .snapshots(snapshots)
            .skips(skips.to_vec());
        let place = tempfile::tempdir().unwrap();
        let mut chain = Self {
            place,
            store,
            control,
            models: Models::new(11, 10),
            options,
        };
        for version in 0..versions {
            chain.publish(version);
        }
        chain
    }

    pub(crate) fn publish(&mut self, version: u64) {
        let state = self.models.save(version, self.place.path());
        let work = self.place.path().join("work");
        let mut publisher = Publisher::open(self.store.clone(), self.options.clone()).unwrap();
        assert_eq!(
            publisher
                .publish(&state, Base::Work(&work), &())
                .unwrap()
                .version,
            version
        );
    }

    pub(crate) fn compact(
        &self,
        version: Option<u64>,
        from: &[u64],
        snapshot: bool,
    ) -> Result<CompactReport> {
        let scratch = tempfile::tempdir_in(self.place.path()).unwrap();
        let options = CompactOptions::new(scratch.path())
            .version(version)
            .from(from.to_vec())
            .snapshot(snapshot);
        compact(&self.store, &options, &())
    }

    /// Checks everything, including all links, and expects no problem.
    pub(crate) fn assert_sound(&self) -> FsckReport {
        let report = check(&self.store, Some(self.place.path()));
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.rebuilt, report.versions - report.pruned);
        report
    }

    /// Versions that can be built from nothing; each must match the published state.
    pub(crate) fn reachable(&mut self) -> Vec<u64> {
        let head = show(&self.store, None, None).unwrap().version;
        let mut reachable = Vec::new();
        for version in 0..=head {
            match rebuild(&self.store, Some(version)) {
                Ok(state) => {
                    assert_eq!(&state, self.models.state(version));
                    reachable.push(version);
                }
                Err(error) => assert_eq!(error.rule(), Some("R-CHN-08"), "{error}"),
            }
        }
        reachable
    }
}

pub(crate) fn check(store: &Store, deep: Option<&Path>) -> FsckReport {
    let scratch = deep.map(|place| tempfile::tempdir_in(place).unwrap());
    let options =
        FsckOptions::default().deep(scratch.as_ref().map(|scratch| scratch.path().to_owned()));
    fsck(store, &options, &()).unwrap()
}

pub(crate) fn keep(last: u64, every: Option<u64>, versions: &[u64]) -> Keep {
    Keep {
        last,
        every,
        versions: versions.to_vec(),
        ..Keep::default()
    }
}

pub(crate) fn names(store: &Store) -> BTreeSet<ObjectName> {
    store
        .objects()
        .unwrap()
        .iter()
        .map(|object| object.name)
        .collect()
}

pub(crate) fn files(store: &Store) -> usize {
    names(store)
        .iter()
        .filter(|name| matches!(name, ObjectName::File(_)))
        .count()
}

pub(crate) fn commit_of(store: &Store, version: u64) -> Commit {
    Commit::parse(
        &store.get(ObjectName::Commit(version)).unwrap().unwrap(),
        &Limits::default(),
    )
    .unwrap()
}

/// The plan of a late joiner.
fn plan(store: &Store, version: u64) -> Plan {
    let mut planner = Planner::new(Some(version), None, None, &Limits::default());
    planner
        .plan_with(
            |from, _| store.listing(from),
            |names, _| store.get_all(names),
        )
        .unwrap()
}

fn from(compacted: &CompactReport) -> Vec<Option<u64>> {
    compacted.routes.iter().map(|route| route.from).collect()
}

#[test]
fn a_late_joiner_reads_less_after_a_compaction() {
    let mut chain = Chain::new(12, Snapshots::Never, &[]);
    let before = plan(&chain.store, 11);
    assert_eq!(before.hops.len(), 12);

    let compacted = chain.compact(None, &[8, 2], false).unwrap();
    assert_eq!(
        (compacted.version, from(&compacted)),
        (11, vec![Some(2), Some(8)])
    );
    let skipping = plan(&chain.store, 11);
    assert!(skipping.bytes < before.bytes && skipping.hops.len() < before.hops.len());
    let compacted = chain.compact(Some(11), &[8], true).unwrap();
    assert_eq!(from(&compacted), [None, Some(8)]);
    let entry = show(&chain.store, Some(11), None).unwrap();
    assert_eq!(
        entry
            .routes
            .iter()
            .map(|route| route.from)
            .collect::<Vec<_>>(),
        [None, Some(2), Some(8), Some(10)]
    );
    assert_eq!(plan(&chain.store, 11).hops.len(), 1);
    assert!(plan(&chain.store, 11).bytes < skipping.bytes);
    // The commit and the version are unchanged.
    assert_eq!(commit_of(&chain.store, 11).routes.len(), 1);
    assert_eq!(
        &rebuild(&chain.store, None).unwrap(),
        chain.models.state(11)
    );
    let report = chain.assert_sound();
    // The second link from version 8 has replaced the first.
    assert_eq!((report.versions, report.pruned, report.orphans), (12, 0, 1));
    chain.publish(12);
    assert_eq!(chain.reachable().len(), 13);
}

#[test]
fn direct_routes_are_marked_as_long_as_they_stay() {
    let mut chain = Chain::new(3, Snapshots::Never, &[2]);
    assert_eq!(marks(&chain.store), (0, 3));
    // The publisher changes its profile.
    chain.options = chain.options.profiles(vec![Profile::Direct]);
    chain.publish(3);
    chain.publish(4);
    assert_eq!(marks(&chain.store), (3, 3));
    let commit = commit_of(&chain.store, 4);
    assert_eq!(commit.metadata["deltachain.direct"], "0 1");
    // A routes document marks the remaining routes and the new one.
    let document = |generation| {
        let name = ObjectName::Routes {
            version: 4,
            generation,
        };
        RoutesDocument::parse(&store_bytes(&chain.store, name), &Limits::default()).unwrap()
    };
    let compact = |from: &[u64], profile, generation| {
        let scratch = tempfile::tempdir_in(chain.place.path()).unwrap();
        let options = CompactOptions::new(scratch.path())
            .from(from.to_vec())
            .snapshot(true)
            .profiles(vec![profile]);
        compact(&chain.store, &options, &()).unwrap();
        document(generation)
    };
    // Routes from nothing, 0, 2 and 3; then another route from 2; then also one from 1.
    assert_eq!(
        compact(&[0], Profile::Compact, 1).direct_routes(),
        [true, false, true, true]
    );
    assert_eq!(
        compact(&[2], Profile::Compact, 2).direct_routes(),
        [true, false, false, true]
    );
    assert_eq!(
        compact(&[1], Profile::Direct, 3).direct_routes(),
        [true, false, true, false, true]
    );
    let (direct, others) = marks(&chain.store);
    assert!(direct > 3 && others > 3);
    // A prune removes some routes.
    let plan = plan_prune(&chain.store, &keep(1, None, &[1, 3])).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    marks(&chain.store);
    let routes = show(&chain.store, Some(4), None).unwrap().routes;
    let routes: Vec<_> = routes
        .into_iter()
        .map(|LogRoute { from, files, .. }| Route { from, files })
        .collect();
    assert_eq!(
        routes.iter().map(|route| route.from).collect::<Vec<_>>(),
        [None, Some(1), Some(3)]
    );
    let document = document(4);
    assert_eq!(
        (
            document.routes,
            document.metadata["deltachain.direct"].as_str()
        ),
        (routes, "1 2")
    );
}

#[test]
fn a_compaction_that_makes_no_sense_is_refused() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    let before = names(&chain.store);
    for (version, from, snapshot) in [
        (None, &[][..], false),
        (Some(1), &[1], false),
        (Some(1), &[0, 2], true),
    ] {
        assert_eq!(
            chain.compact(version, from, snapshot).unwrap_err().class(),
            ErrorClass::Usage
        );
    }
    assert_eq!(
        chain.compact(Some(3), &[], true).unwrap_err().rule(),
        Some("R-CHN-03")
    );
    assert_eq!(names(&chain.store), before);
}

#[test]
fn shards_are_compacted_each_by_itself() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::from_objects(Arc::new(InMemory::new()), "", quick()).unwrap();
    init(&store).unwrap();
    let options = PublishOptions::default();
    for (version, of) in [(0_u8, 1), (1, 2), (2, 2), (3, 2)] {
        let parts: Vec<_> = (0..of)
            .map(|shard| {
                let mut state = MemoryState::new();
                let data = (0..=255)
                    .map(|byte: u8| if byte == version { 0 } else { byte })
                    .collect();
                state
                    .insert(&format!("tensor.{shard}"), Dtype::U8, &[256], data)
                    .unwrap();
                let path = place.path().join(format!("{version} {shard}"));
                save(&state, &path, false);
                let state = SafetensorsState::open(&path).unwrap();
                let work = place.path().join(format!("work {shard}"));
                let base = if version < 2 {
                    Base::Nothing
                } else {
                    Base::Work(&work)
                };
                publish_shard(&store, &state, base, shard, of, &options, &()).unwrap()
            })
            .collect();
        commit_shards(&store, &parts, &options, &()).unwrap();
    }
    let scratch = place.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let mut options = CompactOptions::new(scratch).snapshot(true).from(vec![1]);
    assert_eq!(
        from(&compact(&store, &options, &()).unwrap()),
        [None, Some(1)]
    );
    let routes = show(&store, None, None).unwrap().routes;
    assert!(routes.iter().all(|route| route.files.len() == 2));
    options = options.from(vec![0]);
    assert_eq!(
        compact(&store, &options, &()).unwrap_err().class(),
        ErrorClass::Usage
    );
    let report = check(&store, Some(place.path()));
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.rebuilt, 4);
}

/// A route from a pruned version leads nowhere, even if both states are available.
#[test]
fn a_pruned_version_comes_back_with_a_snapshot() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    let scratch = tempfile::tempdir().unwrap();
    let link = CompactOptions::new(scratch.path())
        .version(Some(1))
        .from(vec![0]);
    let snapshot_of_head = CompactOptions::new(scratch.path()).snapshot(true);
    compact(&chain.store, &snapshot_of_head, &()).unwrap();
    compact(&chain.store, &link, &()).unwrap();
    chain.control.set_clock(48);
    let plan = plan_prune(&chain.store, &keep(1, None, &[])).unwrap();
    assert_eq!(prune(&chain.store, &plan, &()).unwrap().withdrawn, [0, 1]);

    let error = compact(&chain.store, &link, &()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    let report = check(&chain.store, None);
    assert!(report.problems.is_empty(), "{:?}", report.problems);

    compact(&chain.store, &link.snapshot(true), &()).unwrap();
    let report = check(&chain.store, Some(chain.place.path()));
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.rebuilt, 2);
}

#[test]
fn what_is_kept_can_be_built_and_the_rest_goes() {
    let mut chain = Chain::new(43, Snapshots::Every(8), &[4]);
    let kept = [0, 10, 20, 30, 40, 41, 42];
    // No file is old enough yet.
    let rule = keep(3, Some(10), &[]);
    let plan = plan_prune(&chain.store, &rule).unwrap();
    let young = &plan.expected;
    assert_eq!((young.done, &young.kept[..]), (false, &kept[..]));
    assert_eq!((young.removed.len(), young.removed_bytes), (0, 0));
    assert!(!young.young.is_empty());
    let before = files(&chain.store);
    let pruned = prune(&chain.store, &plan, &()).unwrap();
    assert_eq!(
        (pruned.done, &pruned.kept, &pruned.withdrawn),
        (true, &young.kept, &young.withdrawn)
    );
    assert_eq!((pruned.removed.len(), files(&chain.store)), (0, before));
    let report = chain.assert_sound();
    assert_eq!(
        (report.pruned, report.orphans),
        (young.withdrawn.len(), pruned.young.len())
    );
    assert_eq!(
        log(&chain.store, None, None)
            .unwrap()
            .iter()
            .filter(|entry| entry.routes.is_empty())
            .count(),
        report.pruned
    );

    // Versions on the paths to kept versions are still there.
    let reachable = chain.reachable();
    assert!(kept.iter().all(|version| reachable.contains(version)));
    assert!(!reachable.contains(&15) && young.withdrawn.contains(&15));
    assert!(
        plan_prune(&chain.store, &rule)
            .unwrap()
            .expected
            .withdrawn
            .is_empty()
    );

    // A day and one version later.
    chain.control.set_clock(25);
    chain.publish(43);
    let plan = plan_prune(&chain.store, &rule).unwrap();
    let expected = &plan.expected;
    assert!(!expected.removed.is_empty() && expected.removed_bytes > 0);
    let all = names(&chain.store);
    let pruned = prune(&chain.store, &plan, &()).unwrap();
    assert_eq!(
        (&pruned.removed, pruned.removed_bytes),
        (&expected.removed, expected.removed_bytes)
    );
    let gone: BTreeSet<ObjectName> = all.difference(&names(&chain.store)).copied().collect();
    assert_eq!(gone, expected.removed.iter().copied().collect());
    assert!(
        gone.iter()
            .all(|name| matches!(name, ObjectName::File(_) | ObjectName::Routes { .. }))
    );
    chain.assert_sound();
    let reachable = chain.reachable();
    assert!(
        [0, 10, 20, 30, 40, 41, 42, 43]
            .iter()
            .all(|version| reachable.contains(version))
    );
    chain.publish(44);
    chain.assert_sound();
}

#[test]
fn what_was_withdrawn_stays_for_a_day_and_a_resting_chain_is_pruned() {
    let mut chain = Chain::new(8, Snapshots::Every(4), &[]);
    let rule = keep(1, None, &[]);
    let pruned_now = |chain: &Chain| {
        prune(&chain.store, &plan_prune(&chain.store, &rule).unwrap(), &()).unwrap()
    };
    // The files were stored long ago, but a reader may just have planned to read them.
    chain.control.set_clock(100);
    let first = pruned_now(&chain);
    assert!(first.removed.is_empty() && !first.young.is_empty() && first.young_bytes > 0);
    chain.control.set_clock(123);
    assert_eq!(pruned_now(&chain).young, first.young);
    // A day has passed without a write to the chain.
    chain.control.set_clock(125);
    let later = pruned_now(&chain);
    assert_eq!((later.removed, later.young), (first.young, Vec::new()));
    assert_eq!(chain.reachable(), [4, 5, 6, 7]);
    chain.assert_sound();

    // The later of two withdrawals counts, and the document between them stays until then.
    chain.compact(Some(7), &[], true).unwrap();
    chain.control.set_clock(150);
    let second = pruned_now(&chain);
    assert!(!second.young.is_empty());
    chain.control.set_clock(173);
    assert_eq!(pruned_now(&chain).young, second.young);
    chain.control.set_clock(175);
    assert_eq!(pruned_now(&chain).young, []);
    assert_eq!(chain.reachable(), [7]);
}

#[test]
fn a_publisher_keeps_the_newest_versions() {
    let place = tempfile::tempdir().unwrap();
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(16, 10);
    let options = PublishOptions::default()
        .snapshots(Snapshots::Every(5))
        .keep_last(Some(10));
    let mut publisher = Publisher::open(store.clone(), options).unwrap();
    for version in 0..40 {
        control.set_clock(i64::try_from(version).unwrap() * 30);
        publisher
            .publish(&models.save(version, place.path()), Base::Chain, &())
            .unwrap();
        let entries = log(&store, None, None).unwrap();
        let whole = entries
            .iter()
            .filter(|entry| !entry.routes.is_empty())
            .count();
        // The kept versions, and the versions on their paths.
        assert!(
            (10.min(entries.len())..=15).contains(&whole),
            "{whole} at {version}"
        );
    }
    assert!(files(&store) <= 15 + 3 + 2, "{}", files(&store));
    rebuild(&store, Some(30)).unwrap();
    assert!(check(&store, None).problems.is_empty());
}

#[test]
fn what_lost_documents_leave_behind_is_told() {
    let chain = Chain::new(5, Snapshots::Never, &[]);
    chain.control.set_clock(-DAY);
    for (name, content) in chain.lose(|_| true) {
        chain.restore(name, &content);
    }
    assert!(check(&chain.store, None).hints.is_empty());
    // The head's commit is lost, and later a routes document.
    let lost = ObjectName::Commit(4);
    let commit = store_bytes(&chain.store, lost);
    chain.store.delete(&[lost]).unwrap();
    let hints = check(&chain.store, None).hints;
    assert!(
        hints.len() == 1 && hints[0].contains("starts from the head, version 3"),
        "{hints:?}"
    );
    assert!(chain.store.put_if_absent(lost, &commit).unwrap());
    chain.compact(Some(4), &[], true).unwrap();
    chain
        .store
        .delete(&[ObjectName::Routes {
            version: 4,
            generation: 1,
        }])
        .unwrap();
    let hints = check(&chain.store, None).hints;
    assert!(
        hints.len() == 1 && hints[0].contains("leads to version 4, but no route names it"),
        "{hints:?}"
    );
}

#[test]
fn unfinished_files_in_a_directory_are_removed_when_they_are_old() {
    let (place, store) = on_disk(2);
    let file = commit_of(&store, 1).routes[0].files[0].name();
    let partial = |number: u64| place.path().join(format!("chain/{file}#{number}"));
    for number in [1, 2] {
        fs::write(partial(number), b"half").unwrap();
    }
    let day_before_yesterday =
        fs::metadata(partial(1)).unwrap().modified().unwrap() - Duration::from_hours(48);
    fs::File::options()
        .write(true)
        .open(partial(1))
        .unwrap()
        .set_modified(day_before_yesterday)
        .unwrap();
    assert_eq!(check(&store, None).partials.len(), 2);
    let pruned = prune(
        &store,
        &plan_prune(&store, &keep(9, None, &[])).unwrap(),
        &(),
    )
    .unwrap();
    assert_eq!(pruned.partials, [partial(1)]);
    assert!(!partial(1).exists() && partial(2).exists());
    assert!(check(&store, None).problems.is_empty());
}

#[test]
fn probes_are_removed_and_nothing_else_is() {
    let place = tempfile::tempdir().unwrap();
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (faulty, control) = FaultyStore::new(Arc::clone(&objects));
    let store = Store::from_objects(faulty, "chain", quick()).unwrap();
    init(&store).unwrap();
    let state = Models::new(15, 10).save(0, place.path());
    Publisher::open(store.clone(), PublishOptions::default())
        .unwrap()
        .publish(&state, Base::Nothing, &())
        .unwrap();
    let left = "0123456789abcdef0123456789abcdef";
    let foreign = [
        format!("chain/probes/{left}0"),
        format!("chain/probes/{left}/{left}"),
        "chain/probes/README".to_owned(),
        format!("probes/{left}"),
        format!("chain/files/{left}"),
    ];
    let put = |name: &str| {
        objects
            .put(&name.into(), "x".into())
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    foreign
        .iter()
        .chain([&format!("chain/probes/{left}")])
        .for_each(|name| drop(put(name)));
    control.set_other_stamps(-30);
    prune(
        &store,
        &plan_prune(&store, &keep(1, None, &[])).unwrap(),
        &(),
    )
    .unwrap();
    let listed: Vec<_> = objects
        .list(None)
        .try_collect()
        .now_or_never()
        .unwrap()
        .unwrap();
    let names: BTreeSet<String> = listed
        .into_iter()
        .map(|meta| meta.location.to_string())
        .collect();
    assert!(foreign.iter().all(|name| names.contains(name)), "{names:?}");
    assert_eq!(names.len(), foreign.len() + 3, "{names:?}");
}

#[test]
fn no_two_attempts_store_a_file_of_the_same_name() {
    let place = tempfile::tempdir().unwrap();
    let mut models = Models::new(13, 10);
    let state = models.save(0, place.path());
    let stored = |number: u64| {
        let chain = place.path().join(format!("chain {number}"));
        let store = Store::create(chain.to_str().unwrap(), quick()).unwrap();
        init(&store).unwrap();
        Publisher::open(store.clone(), PublishOptions::default())
            .unwrap()
            .publish(&state, Base::Nothing, &())
            .unwrap();
        let file = commit_of(&store, 0).routes[0].files[0];
        let link = LinkReader::open(
            std::fs::read(chain.join(file.name().to_string())).unwrap(),
            &Limits::default(),
        );
        (
            file,
            link.unwrap().index().metadata["deltachain.nonce"].clone(),
        )
    };
    let first = stored(0);
    let second = stored(1);
    assert!(first.0 != second.0 && first.1 != second.1);
    for (_, nonce) in [first, second] {
        assert!(
            nonce.len() == 32
                && nonce
                    .bytes()
                    .all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit))
        );
    }
}

#[test]
fn shards_that_were_stored_a_day_ago_are_not_committed() {
    let place = tempfile::tempdir().unwrap();
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(14, 10);
    let state = models.save(0, place.path());
    let options = PublishOptions::default();
    let publish = || publish_shard(&store, &state, Base::Nothing, 0, 1, &options, &()).unwrap();
    let part = publish();
    control.set_clock(20);
    let error = commit_shards(&store, &[part], &options, &()).unwrap_err();
    assert_eq!(
        (error.rule(), error.class()),
        (Some("R-PUB-08"), ErrorClass::Chain)
    );
    let part = publish();
    control.set_clock(39);
    commit_shards(&store, &[part], &options, &()).unwrap();
}

#[test]
fn what_cannot_be_built_cannot_be_kept() {
    let chain = Chain::new(6, Snapshots::Never, &[]);
    chain.compact(Some(4), &[], true).unwrap();
    prune(
        &chain.store,
        &plan_prune(&chain.store, &keep(1, None, &[])).unwrap(),
        &(),
    )
    .unwrap();
    let refused = |keep: &Keep| plan_prune(&chain.store, keep).unwrap_err();
    let error = refused(&keep(1, None, &[2]));
    assert_eq!(
        (error.rule(), error.class()),
        (Some("R-RET-01"), ErrorClass::Chain)
    );
    assert!(error.message().contains("version 2") && error.message().contains("snapshot"));
    assert_eq!(refused(&keep(1, None, &[6])).rule(), Some("R-CHN-03"));
    // But a rule does not need the versions that are gone.
    assert_eq!(
        plan_prune(&chain.store, &keep(4, Some(2), &[]))
            .unwrap()
            .expected
            .kept,
        [4, 5]
    );
}

#[test]
fn a_chain_that_has_changed_is_not_pruned_by_an_old_plan() {
    let mut chain = Chain::new(6, Snapshots::Every(3), &[]);
    chain.control.set_clock(30);
    let rule = keep(1, None, &[]);
    let stale = plan_prune(&chain.store, &rule).unwrap();
    chain.compact(Some(4), &[2], false).unwrap();
    let before = names(&chain.store);
    let error = prune(&chain.store, &stale, &()).unwrap_err();
    assert_eq!(
        (error.rule(), error.class()),
        (Some("R-PUB-06"), ErrorClass::Chain)
    );
    assert_eq!(names(&chain.store), before);

    // A version that appears after the plan is kept, even if it names a file that the plan would
    // remove.
    let orphan = commit_of(&chain.store, 3).routes[1].files[0];
    prune(&chain.store, &plan_prune(&chain.store, &rule).unwrap(), &()).unwrap();
    chain.control.set_clock(60);
    chain.publish(6);
    let plan = plan_prune(&chain.store, &rule).unwrap();
    assert!(plan.expected.removed.contains(&orphan.name()));
    let version = 7;
    let commit = commit_of(&chain.store, 6);
    let parent =
        deltachain::tensor::Digest::of_bytes(&store_bytes(&chain.store, ObjectName::Commit(6)));
    let mut routes = vec![commit.routes[1].clone()];
    routes[0].from = Some(6);
    routes[0].files = vec![orphan];
    let next = Commit {
        version,
        parent,
        routes,
        ..commit
    };
    assert!(
        chain
            .store
            .put_if_absent(ObjectName::Commit(7), &next.to_bytes().unwrap())
            .unwrap()
    );
    let pruned = prune(&chain.store, &plan, &()).unwrap();
    assert_eq!(pruned.removed.len(), plan.expected.removed.len() - 1);
    assert!(names(&chain.store).contains(&orphan.name()));
}

fn store_bytes(store: &Store, name: ObjectName) -> Vec<u8> {
    store.get(name).unwrap().unwrap()
}

#[test]
fn neither_a_wrong_clock_nor_a_leap_makes_files_old() {
    let mut chain = Chain::new(4, Snapshots::Every(1), &[]);
    let removed = |plan: &PrunePlan| {
        plan.expected
            .removed
            .iter()
            .filter(|name| is_file(**name))
            .count()
    };
    // The clock was wrong for one commit.
    chain.control.set_clock(1000);
    chain.publish(4);
    chain.control.set_clock(0);
    chain.publish(5);
    let before = files(&chain.store);
    prune(
        &chain.store,
        &plan_prune(&chain.store, &keep(1, None, &[])).unwrap(),
        &(),
    )
    .unwrap();
    assert_eq!(files(&chain.store), before);
    let plan = plan_prune(&chain.store, &keep(1, None, &[])).unwrap();
    assert!(plan.expected.withdrawn.is_empty() && removed(&plan) > 0);
    prune(&chain.store, &plan, &()).unwrap();
    assert_eq!(files(&chain.store), before);
    chain.assert_sound();
}

fn is_file(name: ObjectName) -> bool {
    matches!(name, ObjectName::File(_))
}

/// A chain in a directory, for tests that damage it.
fn on_disk(versions: u64) -> (tempfile::TempDir, Store) {
    let place = tempfile::tempdir().unwrap();
    let store = Store::create(place.path().join("chain").to_str().unwrap(), quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(12, 10);
    let options = PublishOptions::default().snapshots(Snapshots::Every(4));
    for version in 0..versions {
        let base = version
            .checked_sub(1)
            .map(|before| models.save(before, place.path()));
        let state = models.save(version, place.path());
        let mut publisher = Publisher::open(store.clone(), options.clone()).unwrap();
        publisher
            .publish(
                &state,
                base.as_ref()
                    .map_or(Base::Nothing, |base| Base::State(base.into())),
                &(),
            )
            .unwrap();
    }
    (place, store)
}

fn told(problems: &[Error]) -> Vec<(&str, String)> {
    problems
        .iter()
        .map(|problem| (problem.rule().unwrap(), problem.file().unwrap().to_owned()))
        .collect()
}

#[test]
fn every_fault_is_told() {
    let (place, store) = on_disk(7);
    let path = |name: ObjectName| place.path().join("chain").join(name.to_string());
    let file = |version, route: usize| -> FileReference {
        commit_of(&store, version).routes[route].files[0]
    };
    let whole = check(&store, Some(place.path()));
    assert!(whole.problems.is_empty());
    assert_eq!(
        (whole.versions, whole.files, whole.rebuilt, whole.pruned),
        (7, 8, 7, 0)
    );

    // A flipped bit, a shortened file, a missing one, and two unreferenced ones.
    let flipped = file(1, 0).name();
    let short = file(2, 0).name();
    let missing = file(4, 0).name();
    let mut bytes = fs::read(path(flipped)).unwrap();
    bytes[200] ^= 1;
    fs::write(path(flipped), &bytes).unwrap();
    let bytes = fs::read(path(short)).unwrap();
    fs::write(path(short), &bytes[..bytes.len() - 1]).unwrap();
    fs::remove_file(path(missing)).unwrap();
    fs::write(
        path(ObjectName::File(deltachain::tensor::Digest::of_bytes(b"a"))),
        b"abc",
    )
    .unwrap();
    fs::write(place.path().join("chain/files/note.txt"), b"abc").unwrap();
    for deep in [None, Some(place.path())] {
        let report = check(&store, deep);
        let mut problems = told(&report.problems);
        problems.sort();
        let mut expected = vec![
            ("R-CHN-10", flipped.to_string()),
            ("R-CHN-10", short.to_string()),
            ("R-CHN-09", missing.to_string()),
        ];
        expected.sort();
        assert_eq!(problems, expected);
        assert_eq!((report.orphans, report.orphan_bytes), (1, 3));
        // Versions 1 and 2 cannot be built, nor any later one, since the path to 4 is broken, too.
        assert_eq!(report.rebuilt, usize::from(deep.is_some()));
    }
}

#[test]
fn documents_are_told_that_do_not_fit() {
    let (place, store) = on_disk(6);
    let path = |name: ObjectName| place.path().join("chain").join(name.to_string());
    let commit = commit_of(&store, 3);
    let parent = commit.parent;
    let metadata = BTreeMap::new();
    let routes = RoutesDocument {
        version: 3,
        generation: 2,
        commit: parent,
        routes: commit.routes.clone(),
        metadata,
    };
    let name = ObjectName::Routes {
        version: 3,
        generation: 2,
    };
    fs::create_dir_all(path(name).parent().unwrap()).unwrap();
    fs::write(path(name), routes.to_bytes().unwrap()).unwrap();
    let mut fork = commit_of(&store, 1);
    fork.metadata.insert("who".to_owned(), "another".to_owned());
    fs::write(path(ObjectName::Commit(1)), fork.to_bytes().unwrap()).unwrap();
    fs::remove_file(path(ObjectName::Commit(4))).unwrap();
    let report = check(&store, None);
    assert_eq!(
        told(&report.problems),
        [
            ("R-CHN-03", ObjectName::Commit(4).to_string()),
            ("R-CHN-04", ObjectName::Commit(2).to_string()),
            ("R-CHN-06", name.to_string()),
            ("R-CHN-08", ObjectName::Commit(5).to_string()),
        ]
    );
    // Without the missing commit, the required files are unknown.
    assert_eq!(
        plan_prune(&store, &keep(1, None, &[])).unwrap_err().rule(),
        Some("R-CHN-03")
    );
    assert_eq!(
        log(&store, None, None).unwrap_err().rule(),
        Some("R-CHN-03")
    );
    assert_eq!(log(&store, Some(1), None).unwrap().len(), 1);
}

#[test]
fn links_are_told_that_lead_elsewhere() {
    let (place, store) = on_disk(4);
    // A route from version 1 to 3 by the link to version 2, and one from nothing by the link to
    // version 3.
    let commit = commit_of(&store, 3);
    let mut routes = [
        commit_of(&store, 2).routes[0].clone(),
        commit.routes[0].clone(),
    ];
    (routes[0].from, routes[1].from) = (Some(1), None);
    routes.reverse();
    let digest = deltachain::tensor::Digest::of_bytes(&store_bytes(&store, ObjectName::Commit(3)));
    let metadata = BTreeMap::new();
    let document = RoutesDocument {
        version: 3,
        generation: 1,
        commit: digest,
        routes: routes.to_vec(),
        metadata,
    };
    let name = ObjectName::Routes {
        version: 3,
        generation: 1,
    };
    assert!(
        store
            .put_if_absent(name, &document.to_bytes().unwrap())
            .unwrap()
    );
    for deep in [None, Some(place.path())] {
        let report = check(&store, deep);
        let mut problems = told(&report.problems);
        problems.sort();
        assert_eq!(
            problems,
            [
                ("R-APP-01", routes[0].files[0].name().to_string()),
                ("R-CHN-11", routes[1].files[0].name().to_string())
            ]
        );
    }
    // A file with the digest that the commit names, but not a link.
    let bytes = b"no link".to_vec();
    let reference = FileReference {
        digest: deltachain::tensor::Digest::of_bytes(&bytes),
        size: 7,
    };
    assert!(LinkReader::open(bytes.clone(), &Limits::default()).is_err());
    fs::write(
        place
            .path()
            .join("chain")
            .join(reference.name().to_string()),
        &bytes,
    )
    .unwrap();
    let mut routes = routes.to_vec();
    routes.truncate(1);
    routes[0].files = vec![reference];
    let document = RoutesDocument {
        generation: 2,
        routes,
        ..document
    };
    let name = ObjectName::Routes {
        version: 3,
        generation: 2,
    };
    assert!(
        store
            .put_if_absent(name, &document.to_bytes().unwrap())
            .unwrap()
    );
    assert_eq!(
        told(&check(&store, None).problems),
        [("R-HDR-01", reference.name().to_string())]
    );
}
