//! Whole models that are published after a head with several shards: each tensor stays in its
//! shard.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use deltachain::chain::{Commit, ObjectName};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{MemoryState, State, StateDigests};
use deltachain::{Error, Limits, Profile, Result};
use deltachain_store::{
    Base, Follower, FollowerOptions, FsckOptions, Model, Observer, Phase, PublishOptions,
    PublishReport, Publisher, RawObjects, Snapshots, Store, StoreOptions, fsck, init,
};
use object_store::memory::InMemory;
use tempfile::TempDir;

use crate::common::{Notes, state, union};
use crate::support::faulty::FaultyStore;
use crate::support::models::{Models, save};
use crate::support::{Random, quick};

/// A chain in a directory; its version 0 has these shards.
struct Chain {
    store: Store,
    place: TempDir,
}

impl Chain {
    fn new(shards: &[MemoryState]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("chain");
        let store = Store::create(path.to_str().unwrap(), StoreOptions::default()).unwrap();
        init(&store).unwrap();
        publish_shards(&store, shards);
        Self { store, place }
    }

    fn publish(
        &self,
        options: PublishOptions,
        state: &MemoryState,
        base: Base<'_>,
        observer: &dyn Observer,
    ) -> Result<PublishReport> {
        Publisher::open(self.store.clone(), options)?.publish(state, base, observer)
    }

    fn check(&self) {
        check(&self.store);
    }
}

/// Builds all versions by all routes.
fn check(store: &Store) {
    let scratch = tempfile::tempdir().unwrap();
    let options = FsckOptions::default().deep(Some(scratch.path().to_owned()));
    let report = fsck(store, &options, &()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Publishes shards as the processes of a training run do.
fn publish_shards(store: &Store, shards: &[MemoryState]) {
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
    let models = shards
        .iter()
        .enumerate()
        .map(|(number, shard)| (number, Model::State(shard), Base::Chain));
    let parts = publisher.prepare(models, shards.len(), &()).unwrap();
    publisher.commit(parts, BTreeMap::new(), &()).unwrap();
}

fn commit_of(store: &Store, version: u64) -> Commit {
    let bytes = store.get(ObjectName::Commit(version)).unwrap().unwrap();
    Commit::parse(&bytes, &Limits::default()).unwrap()
}

/// Names of the tensors in each shard of the head.
fn names(store: &Store) -> Vec<BTreeSet<String>> {
    let head = store.listing(0).unwrap().head().unwrap();
    let of = commit_of(store, head).shards.len();
    let names = |shard| {
        let options = FollowerOptions::default().shards(Some(vec![shard]));
        let mut follower = Follower::in_memory(store.clone(), options).unwrap();
        let mut prepared = follower.prepare(Some(head), &()).unwrap().unwrap();
        follower.apply(&mut prepared).unwrap();
        let state = follower.state();
        let names = state.tensors().iter().map(|info| info.name().to_owned());
        names.collect()
    };
    (0..of).map(names).collect()
}

fn digest(state: &dyn State) -> deltachain::tensor::Digest {
    StateDigests::of(state, &()).unwrap().state
}

/// Three shards; the last two have little.
fn first_shards() -> [MemoryState; 3] {
    [
        state(&[("a", &[1; 60]), ("d", &[2; 40])]),
        state(&[("b", &[3; 10])]),
        state(&[("c", &[4; 20])]),
    ]
}

#[test]
fn tensors_stay_in_their_shards() {
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut models = Models::new(seed, 40);
        // A division that this library would not choose.
        let mut shards = vec![MemoryState::new(); 3];
        for (info, data) in models.state(0).iter() {
            let shard = usize::from(info.name() == "embedding");
            shards[shard]
                .insert(info.name(), info.dtype(), info.shape(), data.to_vec())
                .unwrap();
        }
        let chain = Chain::new(&shards);
        let place = chain.place.path().to_owned();
        let options = PublishOptions::default()
            .snapshots(Snapshots::Cost(2.0))
            .skips(vec![2, 4]);
        let options = if seed % 2 == 1 {
            options.profiles(vec![Profile::Local, Profile::Compact])
        } else {
            options
        };
        let mut lasting = Publisher::open(chain.store.clone(), options.clone()).unwrap();
        let mut follower = Follower::in_directory(
            chain.store.clone(),
            &place.join("followed"),
            FollowerOptions::default(),
        )
        .unwrap();
        for version in 1..14 {
            let before = names(&chain.store);
            let last = models.save(version - 1, &place);
            let model = models.save(version, &place);
            let work = place.join("work");
            let base = match random.below(4) {
                0 => Base::Chain,
                1 => Base::Work(&work),
                2 => Base::State((&last).into()),
                _ => Base::Last((&last).into()),
            };
            let published = if random.below(2) == 0 {
                lasting.publish(&model, base, &())
            } else {
                let mut publisher = Publisher::open(chain.store.clone(), options.clone()).unwrap();
                publisher.publish(&model, base, &())
            };
            let published = published.unwrap();
            assert_eq!(published.state, digest(&model));
            let from: Vec<_> = published.routes.iter().map(|route| route.from).collect();
            assert!(from.contains(&Some(version - 1)), "{version}: {from:?}");
            for skip in [2, 4] {
                let is_there = version >= skip && from.contains(&Some(version - skip));
                assert_eq!(is_there, version % skip == 0, "{version}: {from:?}");
            }
            let after = names(&chain.store);
            assert_eq!(after.len(), 3);
            for (before, after) in before.iter().zip(&after) {
                for name in before {
                    let is_there = model.tensors().iter().any(|info| info.name() == name);
                    assert_eq!(after.contains(name), is_there, "{version}: {name}");
                }
            }
            let prepared = follower.prepare(None, &()).unwrap().unwrap();
            follower.apply(prepared).unwrap();
            let followed = SafetensorsState::open(follower.held().unwrap().directory.clone());
            assert_eq!(followed.unwrap().layout(), model.layout(), "{version}");
        }
        chain.check();
    }
}

#[test]
fn a_new_tensor_goes_to_the_shard_with_the_fewest_bytes() {
    let chain = Chain::new(&first_shards());
    let whole = union(&first_shards());
    let mut next = whole.clone();
    next.remove("b");
    for (name, length) in [("x", 15), ("y", 12), ("z", 9)] {
        let more = state(&[(name, &vec![7; length])]);
        next = union(&[next, more]);
    }
    chain
        .publish(PublishOptions::default(), &next, Base::Chain, &())
        .unwrap();
    // Shard 1 has lost b: x goes there; then it has 15 bytes and shard 2 has 20, and so on.
    let expected = [vec!["a", "d"], vec!["x", "y"], vec!["c", "z"]];
    let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
    assert_eq!(names(&chain.store), expected);
    // A shard may be empty, and a version without tensors keeps the number of shards.
    for name in ["x", "y"] {
        next.remove(name);
    }
    for state in [&next, &MemoryState::new(), &whole] {
        let options = PublishOptions::default().allow_empty(true);
        let published = chain.publish(options, state, Base::Chain, &()).unwrap();
        assert_eq!(published.shards.len(), 3);
    }
    chain.check();
}

#[test]
fn a_base_that_is_not_the_head_is_refused() {
    let chain = Chain::new(&first_shards());
    let head = union(&first_shards());
    let next = state(&[("a", &[9; 60])]);
    let more = union(&[head.clone(), state(&[("e", &[1])])]);
    let mut less = head.clone();
    less.remove("c");
    let mut other = head.clone();
    other.remove("c");
    let other = union(&[other, state(&[("c", &[5; 20])])]);
    for wrong in [&more, &less, &other, &next] {
        let error = chain
            .publish(
                PublishOptions::default(),
                &next,
                Base::State(wrong.into()),
                &(),
            )
            .unwrap_err();
        assert_eq!(error.rule(), Some("R-PUB-01"), "{error}");
    }
    let base = Base::State((&head).into());
    let published = chain.publish(PublishOptions::default(), &next, base, &());
    assert_eq!(published.unwrap().routes[0].from, Some(0));
}

/// The guard counts the changed share of the whole model, not of a shard.
#[test]
fn the_guard_is_for_all_shards_together() {
    let head = union(&first_shards());
    let mut removed = head.clone();
    removed.remove("c");
    let others = union(&[removed.clone(), state(&[("c", &[5; 20]), ("e", &[6; 70])])]);
    // Number of elements that differ, and the larger of the numbers of elements before and after.
    for (next, differ, of) in [
        // The whole of shard 2.
        (removed, 20.0, 130.0),
        (others, 90.0, 200.0),
    ] {
        let chain = Chain::new(&first_shards());
        for base in [Base::Chain, Base::State((&head).into())] {
            let most = PublishOptions::default().max_changed(Some(differ / of - 0.001));
            let error = chain.publish(most, &next, base, &()).unwrap_err();
            assert!(error.message().contains("more than the limit"), "{error}");
        }
        assert_eq!(chain.store.listing(0).unwrap().head(), Some(0));
        let most = PublishOptions::default().max_changed(Some(differ / of + 0.001));
        chain.publish(most, &next, Base::Chain, &()).unwrap();
    }
}

#[test]
fn nothing_is_published_if_no_shard_has_changed() {
    let chain = Chain::new(&first_shards());
    let head = union(&first_shards());
    let options = || PublishOptions::default().if_changed(true);
    let objects = chain.store.objects().unwrap().len();
    let work = chain.place.path().join("work");
    for base in [Base::Chain, Base::Work(&work), Base::State((&head).into())] {
        let published = chain.publish(options(), &head, base, &()).unwrap();
        assert!(!published.is_new && published.unchanged_state);
        assert_eq!((published.elements, published.shards.len()), (130, 3));
    }
    assert_eq!(chain.store.objects().unwrap().len(), objects);
    // The last shard changes, so all get links.
    let mut next = head.clone();
    next.remove("c");
    let next = union(&[next, state(&[("c", &[5; 20])])]);
    let published = chain.publish(options(), &next, Base::Work(&work), &());
    let published = published.unwrap();
    assert_eq!((published.is_new, published.changed), (true, 20));
    assert_eq!(published.routes[0].from, Some(0));
    chain.check();
}

/// Tensors that move between files change only the layouts.
#[test]
fn files_alone_may_change() {
    let chain = Chain::new(&first_shards());
    let publish = |name: &str, is_spread| {
        let path = chain.place.path().join(name);
        save(&union(&first_shards()), &path, is_spread);
        let options = PublishOptions::default().if_changed(true);
        let mut publisher = Publisher::open(chain.store.clone(), options).unwrap();
        let model = SafetensorsState::open(&path).unwrap();
        publisher.publish(&model, Base::Chain, &()).unwrap().is_new
    };
    assert!(publish("one", false));
    assert!(!publish("one again", false));
    assert!(publish("two", true));
    assert!(!publish("two again", true));
    chain.check();
}

/// Stops before each write in turn, as after a crash.
#[test]
fn a_crash_between_shards_leaves_the_head() {
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    init(&store).unwrap();
    publish_shards(&store, &first_shards());
    let next = state(&[("a", &[9; 60]), ("b", &[8; 10]), ("e", &[7; 5])]);
    let mut writes = 0;
    loop {
        control.stop_after(writes);
        let published = Publisher::open(store.clone(), PublishOptions::default())
            .and_then(|mut publisher| publisher.publish(&next, Base::Chain, &()));
        control.heal();
        let head = store.listing(0).unwrap().head();
        if published.is_ok() {
            assert_eq!(head, Some(1));
            break;
        }
        // The commit may have been stored although its answer was lost.
        if head == Some(1) {
            break;
        }
        assert_eq!(head, Some(0), "after {writes} writes");
        writes += 1;
    }
    assert!(writes >= 3, "{writes}");
    let again = Publisher::open(store.clone(), PublishOptions::default())
        .and_then(|mut publisher| publisher.publish(&next, Base::Chain, &()));
    assert_eq!(again.unwrap().routes[0].from, Some(1));
    check(&store);
}

/// Publishes another version when the first links are stored.
struct Rival<'a>(Mutex<Option<(&'a Store, &'a MemoryState)>>);

impl Observer for Rival<'_> {
    fn begin(&self, phase: Phase, _: u64) {
        if phase == Phase::Upload
            && let Some((store, state)) = self.0.lock().unwrap().take()
        {
            let options = PublishOptions::default().metadata(step("7"));
            let mut publisher = Publisher::open(store.clone(), options).unwrap();
            publisher.publish(state, Base::Chain, &()).unwrap();
        }
    }
}

fn step(number: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("step".to_owned(), number.to_owned())])
}

#[test]
fn only_one_of_two_publishers_is_first() {
    let chain = Chain::new(&first_shards());
    let next = state(&[("a", &[9; 60]), ("e", &[7; 5])]);
    let publish = |options: PublishOptions| {
        let rival = Rival(Mutex::new(Some((&chain.store, &next))));
        chain.publish(options, &union(&first_shards()), Base::Chain, &rival)
    };
    let error = publish(PublishOptions::default()).unwrap_err();
    assert_eq!(error.rule(), Some("R-PUB-03"), "{error}");
    // The rival publishes the same step.
    let once = || PublishOptions::default().once(Some("step".to_owned()));
    let error = publish(once().metadata(step("8"))).unwrap_err();
    assert_eq!(error.rule(), Some("R-PUB-03"), "{error}");
    let skipped = publish(once().metadata(step("7"))).unwrap();
    assert!(!skipped.is_new, "{skipped:?}");
    // A step that exists creates no objects.
    let objects = chain.store.objects().unwrap().len();
    let skipped = chain
        .publish(once().metadata(step("6")), &next, Base::Chain, &())
        .unwrap();
    assert!(!skipped.is_new && skipped.skipped.unwrap().is_lower);
    assert_eq!(chain.store.objects().unwrap().len(), objects);
    chain.check();
}

/// Removes the links of the head.
fn lose_links(chain: &Chain) {
    let head = commit_of(&chain.store, 0);
    for file in head.routes.iter().flat_map(|route| &route.files) {
        let path = chain
            .place
            .path()
            .join("chain")
            .join(file.name().to_string());
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn after_a_head_that_cannot_be_built_a_snapshot_is_published() {
    let head = union(&first_shards());
    for base in [Base::Chain, Base::State((&head).into()), Base::Nothing] {
        let chain = Chain::new(&first_shards());
        lose_links(&chain);
        let notes = Notes::default();
        let next = state(&[("a", &[9; 60]), ("b", &[3; 10])]);
        let published = chain.publish(PublishOptions::default(), &next, base, &notes);
        let published = published.unwrap();
        assert_eq!(published.shards.len(), 3);
        assert_eq!(published.routes.len(), 1);
        assert_eq!(published.routes[0].from, None);
        let is_told = matches!(base, Base::Nothing) || !notes.remarks().is_empty();
        assert!(is_told);
        let mut follower =
            Follower::in_memory(chain.store.clone(), FollowerOptions::default()).unwrap();
        let mut prepared = follower.prepare(None, &()).unwrap().unwrap();
        follower.apply(&mut prepared).unwrap();
        assert_eq!(digest(&follower.state()), published.state);
    }
}

/// A work directory of one shard, or of a model of one shard, becomes one of all shards.
#[test]
fn a_work_directory_of_one_shard_is_completed() {
    let chain = Chain::new(&first_shards());
    let work = chain.place.path().join("work");
    let shard = &first_shards()[1];
    let mut publisher = Publisher::open(chain.store.clone(), PublishOptions::default()).unwrap();
    publisher
        .prepare([(1, shard.into(), Base::Work(&work))], 3, &())
        .unwrap();
    let next = state(&[("a", &[9; 60]), ("c", &[4; 20])]);
    let notes = Notes::default();
    let published = chain
        .publish(PublishOptions::default(), &next, Base::Work(&work), &notes)
        .unwrap();
    assert_eq!(published.routes[0].from, Some(0));
    let remarks = notes.remarks();
    assert!(
        remarks.len() == 1 && remarks[0].contains("will be recreated"),
        "{remarks:?}"
    );
    let held = SafetensorsState::open(work.join("current")).unwrap();
    assert_eq!(digest(&held), published.state);
}

/// Damaged files of a work directory, and files that have lost a tensor, are rebuilt.
#[test]
fn a_damaged_work_directory_is_built_again() {
    let chain = Chain::new(&first_shards());
    let work = chain.place.path().join("work");
    let publish = |state: &MemoryState| {
        let base = Base::Work(&work);
        chain.publish(PublishOptions::default(), state, base, &())
    };
    let head = union(&first_shards());
    publish(&head).unwrap();
    let before = names(&chain.store);
    // Each shard has a file of its own.
    let file = work.join("current/model-00001-of-00003.safetensors");
    let good = std::fs::read(&file).unwrap();
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    // The header gives d another name.
    let place = good.windows(3).position(|bytes| bytes == b"\"d\"");
    let mut renamed = good.clone();
    renamed[place.unwrap() + 1] = b'e';
    for bad in [damaged, renamed] {
        std::fs::write(&file, bad).unwrap();
        let published = publish(&head).unwrap();
        let head = commit_of(&chain.store, published.version - 1).version;
        assert!(
            published
                .routes
                .iter()
                .any(|route| route.from == Some(head))
        );
        assert_eq!(names(&chain.store), before);
    }
    chain.check();
}

/// A write to a file of the model meanwhile, even of the same bytes.
#[test]
fn a_model_that_changes_while_it_is_read_is_refused() {
    struct Write<'a>(&'a Path);
    impl Observer for Write<'_> {
        fn begin(&self, phase: Phase, _: u64) {
            if phase == Phase::Upload {
                let bytes = std::fs::read(self.0).unwrap();
                std::fs::write(self.0, bytes).unwrap();
            }
        }
    }
    let chain = Chain::new(&first_shards());
    let path = chain.place.path().join("model");
    save(&union(&first_shards()), &path, false);
    let model = SafetensorsState::open(&path).unwrap();
    let mut publisher = Publisher::open(chain.store.clone(), PublishOptions::default()).unwrap();
    let file = path.join("model.safetensors");
    let error: Error = publisher
        .publish(&model, Base::Chain, &Write(&file))
        .unwrap_err();
    assert!(error.message().contains("changed"), "{error}");
    assert_eq!(chain.store.listing(0).unwrap().head(), Some(0));
}
