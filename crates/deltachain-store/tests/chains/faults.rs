//! Publishers and followers over failing stores, in seeded rounds: no committed version is lost or
//! torn. `DELTACHAIN_FAULT_ROUNDS` sets the number of rounds, `DELTACHAIN_FAULT_SEED` the first
//! seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deltachain::chain::ObjectName;
use deltachain::tensor::{Digest, StateDigests};
use deltachain::{Error, ErrorClass, Result};
use deltachain_store::{
    Base, CompactOptions, Directory, Follower, FollowerOptions, FsckOptions, Keep, PublishOptions,
    Publisher, RawObjects, Store, compact, fsck, init, plan_prune, prune,
};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::support::faulty::{Call, Control, Fault, FaultyStore, seeded};
use crate::support::models::Models;
use crate::support::verify::{prove, rebuild, shown};
use crate::support::{Random, quick, setting};

/// Faults per thousand calls, in a calm round.
const RATES: [(Fault, u64); 9] = [
    (Fault::FailBefore, 30),
    (Fault::FailAfter, 30),
    (Fault::Conflict, 30),
    (Fault::Truncate, 30),
    (Fault::Flip, 30),
    (Fault::Delay, 20),
    (Fault::SilentBefore, 4),
    (Fault::SilentAfter, 4),
    (Fault::NoBody, 10),
];

fn rounds() -> std::ops::Range<u64> {
    let first = setting("DELTACHAIN_FAULT_SEED", 1);
    first..first + setting("DELTACHAIN_FAULT_ROUNDS", 12)
}

/// Opens the underlying store, without faults.
fn clean(inner: &Arc<dyn ObjectStore>) -> Store {
    Store::from_objects(Arc::clone(inner), "a chain", quick()).unwrap()
}

fn faulty(inner: &Arc<dyn ObjectStore>) -> (Store, Arc<Control>) {
    let (objects, control) = FaultyStore::new(Arc::clone(inner));
    let options = quick().timeout(Duration::from_millis(100));
    (
        Store::from_objects(objects, "a chain", options).unwrap(),
        control,
    )
}

/// Draws the faults of a seed. In every third round they are so frequent that four attempts are
/// often too few. Damage to a document cannot always be detected, so only files get flipped bits.
fn storm(seed: u64) -> impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static {
    let times = [1, 3, 6][usize::try_from(seed % 3).unwrap()];
    let drawn = seeded(
        seed,
        RATES.map(|(fault, rate)| (fault, rate * times)).to_vec(),
    );
    move |call| drawn(call).filter(|fault| *fault != Fault::Flip || call.path.contains("/files/"))
}

fn subscriber(store: &Store, directory: &Path) -> Result<Follower<Directory>> {
    Follower::in_directory(store.clone(), directory, FollowerOptions::default())
}

/// Brings a follower to the head. False if there was nothing to do.
fn advance(follower: &mut Follower<Directory>) -> Result<bool> {
    let Some(prepared) = follower.prepare(None, &())? else {
        return Ok(false);
    };
    follower.apply(prepared).map(|_| true)
}

fn commits(store: &Store) -> u64 {
    store
        .objects()
        .unwrap()
        .iter()
        .filter(|object| matches!(object.name, ObjectName::Commit(_)))
        .count() as u64
}

/// Publishes the model's version with this number, which is the next one.
fn publish(
    store: &Store,
    models: &mut Models,
    version: u64,
    scratch: &Path,
) -> Result<(u64, Digest)> {
    let options = PublishOptions::default().skips(vec![3]);
    let state = models.save(version, scratch);
    let before = version
        .checked_sub(1)
        .map(|before| models.save(before, scratch));
    let base = before
        .as_ref()
        .map_or(Base::Nothing, |base| Base::State(base.into()));
    let published = Publisher::open(store.clone(), options)?.publish(&state, base, &())?;
    assert_eq!(
        published.state,
        StateDigests::of(models.state(version), &()).unwrap().state
    );
    Ok((published.version, published.commit))
}

/// Totals of all rounds.
#[derive(Debug, Default)]
struct Tally {
    injected: BTreeMap<Fault, u64>,
    commits: u64,
    switches: u64,
    refusals: BTreeMap<String, u64>,
}

impl Tally {
    fn inject(&mut self, control: &Control) {
        for (fault, count) in control.injected() {
            *self.injected.entry(fault).or_default() += count;
        }
    }

    fn refuse(&mut self, error: &Error) {
        *self
            .refusals
            .entry(format!(
                "{} {}",
                error.class(),
                error.rule().unwrap_or_default()
            ))
            .or_default() += 1;
    }
}

/// Checks that an error is one that a faulty store can cause: a failed request, perhaps after a
/// commit, or a damaged file.
fn assert_fault(error: &Error) {
    let known =
        error.class() == ErrorClass::Io || matches!(error.rule(), Some("R-CHN-10" | "R-PUB-08"));
    assert!(known, "{error:?}");
    assert!(error.file().is_some(), "without an object: {error:?}");
}

#[test]
fn a_publisher_and_a_follower_in_the_storm() {
    let mut tally = Tally::default();
    for seed in rounds() {
        println!("seed {seed}");
        one_publisher_one_follower(seed, &mut tally);
    }
    println!("{tally:#?}");
    assert!(tally.commits > 0 && tally.switches > 0 && !tally.injected.is_empty());
}

fn one_publisher_one_follower(seed: u64, tally: &mut Tally) {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("follower");
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let clean = clean(&inner);
    let (writer, writer_control) = faulty(&inner);
    let (reader, reader_control) = faulty(&inner);
    writer_control.plan(storm(seed));
    reader_control.plan(storm(seed + 1_000_000));
    let mut random = Random(seed);
    let mut models = Models::new(seed, 20);
    while let Err(error) = init(&writer) {
        if error.class() == ErrorClass::Usage {
            // An earlier attempt succeeded, but its answer was lost.
            break;
        }
        assert_fault(&error);
    }
    let mut follower = subscriber(&reader, &directory).unwrap();
    let mut reported = BTreeMap::new();
    for _ in 0..10 {
        let version = commits(&clean);
        match publish(&writer, &mut models, version, scratch.path()) {
            Ok((published, commit)) => {
                assert_eq!(published, version);
                reported.insert(version, commit);
                tally.commits += 1;
            }
            Err(error) => {
                assert_fault(&error);
                tally.refuse(&error);
            }
        }
        let held = follower.held().map(|held| held.version);
        match advance(&mut follower) {
            Ok(switched) => tally.switches += u64::from(switched),
            // The chain may have no versions yet.
            Err(error) if commits(&clean) == 0 => {
                assert!(error.rule() == Some("R-CHN-03") || error.rule().is_none());
            }
            Err(error) => {
                assert_fault(&error);
                tally.refuse(&error);
            }
        }
        let now = follower.held().map(|held| held.version);
        assert!(now >= held && now < Some(commits(&clean)));
        let expected = now.map(|version| models.state(version).clone());
        assert_eq!(
            shown(&directory),
            expected,
            "the directory is not at version {now:?}"
        );
        if random.below(4) == 0 {
            drop(follower);
            follower = subscriber(&reader, &directory).unwrap();
            assert_eq!(follower.held().map(|held| held.version), now);
        }
    }
    // The states that are really in the store.
    let states = prove(&clean);
    for (version, state) in (0..).zip(&states) {
        assert_eq!(state, models.state(version));
    }
    for (version, commit) in reported {
        let bytes = clean
            .get(ObjectName::Commit(version))
            .unwrap()
            .expect("a commit that was reported");
        assert_eq!(Digest::of_bytes(&bytes), commit);
    }
    reader_control.heal();
    advance(&mut follower).unwrap();
    assert_eq!(shown(&directory).as_ref(), states.last());
    tally.inject(&writer_control);
    tally.inject(&reader_control);
}

#[test]
fn two_publishers_in_the_storm_make_one_chain() {
    let mut injected = Tally::default();
    let mut commits_of = [0_u64; 2];
    let mut taken = 0;
    for seed in rounds() {
        println!("seed {seed}");
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let clean = clean(&inner);
        init(&clean).unwrap();
        // Publishes that reported success: writer, version, commit and state.
        let published = Mutex::new(Vec::new());
        let refused = Mutex::new(Tally::default());
        std::thread::scope(|scope| {
            for writer in 0..2_u64 {
                let (store, control) = faulty(&inner);
                control.plan(storm(seed + writer * 1_000_000));
                let clean = &clean;
                let published = &published;
                let refused = &refused;
                scope.spawn(move || {
                    let scratch = tempfile::tempdir().unwrap();
                    let work = scratch.path().join("work");
                    let mut models = Models::new(seed * 2 + writer, 10);
                    for attempt in 0..40 {
                        if commits(clean) >= 6 {
                            break;
                        }
                        let state = models.save(attempt, scratch.path());
                        let publisher = Publisher::open(store.clone(), PublishOptions::default());
                        match publisher.and_then(|mut publisher| {
                            publisher.publish(&state, Base::Work(&work), &())
                        }) {
                            Ok(done) => {
                                let state = models.state(attempt).clone();
                                published.lock().unwrap().push((
                                    writer,
                                    done.version,
                                    done.commit,
                                    state,
                                ));
                            }
                            Err(error) => {
                                let lost = error
                                    .rule()
                                    .is_some_and(|rule| ["R-PUB-01", "R-PUB-03"].contains(&rule));
                                if !lost {
                                    assert_fault(&error);
                                }
                                refused.lock().unwrap().refuse(&error);
                            }
                        }
                    }
                    refused.lock().unwrap().inject(&control);
                });
            }
        });
        let states = prove(&clean);
        let mut seen = BTreeSet::new();
        for (writer, version, commit, state) in published.into_inner().unwrap() {
            assert!(
                seen.insert(version),
                "two publishers succeeded with version {version}"
            );
            assert_eq!(states[usize::try_from(version).unwrap()], state);
            assert_eq!(
                Digest::of_bytes(&clean.get(ObjectName::Commit(version)).unwrap().unwrap()),
                commit
            );
            commits_of[usize::try_from(writer).unwrap()] += 1;
        }
        let refused = refused.into_inner().unwrap();
        let rule = |rule: &str| {
            refused
                .refusals
                .get(&format!("CHAIN {rule}"))
                .copied()
                .unwrap_or_default()
        };
        taken += rule("R-PUB-01") + rule("R-PUB-03");
        for (fault, count) in refused.injected {
            *injected.injected.entry(fault).or_default() += count;
        }
    }
    println!(
        "commits by each: {commits_of:?}; the other one was first: {taken}; {:?}",
        injected.injected
    );
    assert!(commits_of.iter().all(|&commits| commits > 0));
}

/// Creates a chain of a few versions in memory, and its model.
fn chain(versions: u64, scratch: &Path) -> (InMemory, Models) {
    let objects = Arc::new(InMemory::new());
    let inner: Arc<dyn ObjectStore> = objects.clone();
    let store = clean(&inner);
    let mut models = Models::new(3, 20);
    init(&store).unwrap();
    for version in 0..versions {
        publish(&store, &mut models, version, scratch).unwrap();
    }
    (objects.fork(), models)
}

/// Stops a writer after 0, 1, 2 and more writes, and each time lets it start over; `check` examines
/// the store.
fn stop_after_each_write(
    chain: &InMemory,
    work: &mut dyn FnMut(&Store, &Control) -> Result<()>,
    check: &mut dyn FnMut(&Store, bool),
) {
    for writes in 0.. {
        let inner: Arc<dyn ObjectStore> = Arc::new(chain.fork());
        let (store, control) = faulty(&inner);
        control.stop_after(writes);
        let done = work(&store, &control);
        if let Err(error) = &done {
            assert_fault(error);
        }
        check(&clean(&inner), false);
        control.stop_after(u64::MAX);
        if done.is_ok() {
            println!("{writes} writes");
            assert!(writes > 1);
            check(&clean(&inner), true);
            return;
        }
        work(&store, &control).unwrap();
        check(&clean(&inner), true);
    }
}

#[test]
fn a_publisher_may_stop_after_any_write() {
    let scratch = tempfile::tempdir().unwrap();
    let (chain, mut models) = chain(6, scratch.path());
    let mut copy = Models::new(3, 20);
    let mut work = |store: &Store, _: &Control| match store.listing(0)?.head() {
        // The stopped attempt succeeded without knowing it.
        Some(6) => Ok(()),
        _ => publish(store, &mut copy, 6, scratch.path()).map(drop),
    };
    stop_after_each_write(&chain, &mut work, &mut |store, done| {
        let states = prove(store);
        assert!(states.len() == 7 || (states.len() == 6 && !done));
        assert!(
            (0..)
                .zip(states)
                .all(|(version, state)| state == *models.state(version))
        );
    });
}

#[test]
fn a_compaction_may_stop_after_any_write() {
    let scratch = tempfile::tempdir().unwrap();
    let (chain, mut models) = chain(6, scratch.path());
    let options = CompactOptions::new(scratch.path().join("compact"))
        .from(vec![0, 2])
        .snapshot(true);
    let mut work = |store: &Store, _: &Control| compact(store, &options, &()).map(drop);
    stop_after_each_write(&chain, &mut work, &mut |store, done| {
        assert_eq!(prove(store).len(), 6);
        for version in 0..6 {
            assert_eq!(
                rebuild(store, Some(version)).unwrap(),
                *models.state(version)
            );
        }
        let routes = store
            .objects()
            .unwrap()
            .iter()
            .any(|object| matches!(object.name, ObjectName::Routes { .. }));
        assert!(routes || !done);
    });
}

#[test]
fn a_prune_may_stop_after_any_write() {
    let scratch = tempfile::tempdir().unwrap();
    let (chain, mut models) = chain(8, scratch.path());
    let kept = [3, 6, 7];
    let keep = Keep {
        last: 2,
        versions: vec![3],
        ..Keep::default()
    };
    let mut work = |store: &Store, control: &Control| {
        control.set_other_stamps(-72);
        // Withdrawn files are removed after a day.
        for day in 0..2 {
            control.set_clock(25 * day);
            prune(store, &plan_prune(store, &keep)?, &())?;
        }
        Ok(())
    };
    let mut least = usize::MAX;
    stop_after_each_write(&chain, &mut work, &mut |store, _| {
        for version in 0..8 {
            match rebuild(store, Some(version)) {
                Ok(state) => assert_eq!(state, *models.state(version)),
                Err(error) => {
                    assert!(!kept.contains(&version), "version {version}: {error:?}");
                    assert_eq!(error.rule(), Some("R-CHN-08"));
                }
            }
        }
        let report = fsck(store, &FsckOptions::default(), &()).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        least = least.min(files(store));
    });
    let inner: Arc<dyn ObjectStore> = Arc::new(chain);
    assert!(least < files(&clean(&inner)), "nothing was removed");
}

#[test]
fn young_files_stay_whatever_the_clock_does() {
    // Hours by which the store's clock is wrong: while the chain was made; when an unreferenced
    // file was stored; and while pruning, two days after routes were withdrawn. The last value is
    // true if old files are removed in the end.
    for (chain_at, file_at, prune_at, removes) in [
        (-72, 0, 0, true),
        (-72, -1, 0, true),
        (0, 0, 0, false),
        (0, 0, -72, false),
        (0, 48, 0, false),
        (72, 0, 0, false),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let (chain, mut models) = chain(5, scratch.path());
        let inner: Arc<dyn ObjectStore> = Arc::new(chain);
        let (store, control) = faulty(&inner);
        control.set_other_stamps(chain_at);
        control.set_clock(chain_at.max(prune_at) - 48);
        let newest = Keep {
            last: 1,
            ..Keep::default()
        };
        prune(&store, &plan_prune(&store, &newest).unwrap(), &()).unwrap();
        control.set_clock(file_at);
        let content = b"a link that will be committed soon";
        let file = scratch.path().join("file");
        std::fs::write(&file, content).unwrap();
        let reference = deltachain::chain::FileReference {
            digest: Digest::of_bytes(content),
            size: content.len() as u64,
        };
        store
            .upload(&file, reference.name(), reference.size, &())
            .unwrap();
        control.set_clock(prune_at);
        let before = files(&store);
        for _ in 0..3 {
            let plan = plan_prune(&store, &newest).unwrap();
            prune(&store, &plan, &()).unwrap();
            assert!(
                store.get(reference.name()).unwrap().is_some(),
                "{chain_at} {file_at} {prune_at}"
            );
            assert_eq!(rebuild(&clean(&inner), None).unwrap(), *models.state(4));
        }
        assert_eq!(
            files(&store) < before,
            removes,
            "{chain_at} {file_at} {prune_at}"
        );
    }
}

fn files(store: &Store) -> usize {
    store
        .objects()
        .unwrap()
        .iter()
        .filter(|object| matches!(object.name, ObjectName::File(_)))
        .count()
}

#[test]
fn turned_bits_in_documents_never_give_a_wrong_state() {
    let mut outcomes = BTreeMap::<String, u64>::new();
    for seed in rounds() {
        let scratch = tempfile::tempdir().unwrap();
        let (chain, mut models) = chain(6, scratch.path());
        let inner: Arc<dyn ObjectStore> = Arc::new(chain);
        let (reader, control) = faulty(&inner);
        let drawn = seeded(seed, vec![(Fault::Flip, 100)]);
        control.plan(move |call| {
            let fault = drawn(call);
            if call.path.contains("/files/") {
                return None;
            }
            fault
        });
        let directory = scratch.path().join("follower");
        for _ in 0..4 {
            let mut follower = subscriber(&reader, &directory).unwrap();
            let outcome = match advance(&mut follower) {
                Ok(_) => "fine".to_owned(),
                Err(error) => {
                    // The error may differ at each read.
                    let is_io = error.class() == ErrorClass::Io;
                    assert!(
                        (error.rule().is_some() || is_io) && error.file().is_some(),
                        "{error:?}"
                    );
                    format!("{} {}", error.class(), error.rule().unwrap_or_default())
                }
            };
            *outcomes.entry(outcome).or_default() += 1;
            if let Some(held) = follower.held() {
                assert_eq!(shown(&directory).as_ref(), Some(models.state(held.version)));
            }
        }
    }
    println!("{outcomes:?}");
    assert!(
        outcomes.len() > 1 && outcomes.contains_key("fine"),
        "{outcomes:?}"
    );
}
