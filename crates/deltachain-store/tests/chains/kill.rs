//! `kill -9` at any instant: publishers and followers of a chain in a directory are killed again
//! and again, and continue with what they find. `DELTACHAIN_KILLS` sets the number of kills,
//! `DELTACHAIN_KILL_SEED` the seed of the instants.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use deltachain_store::{
    Base, CompactOptions, Follower, FollowerOptions, FsckOptions, PublishOptions, Publisher,
    RawObjects, Scratch, Store, StoreOptions, compact, fsck, init,
};

use crate::support::child::{child, place};
use crate::support::foreign;
use crate::support::models::Models;
use crate::support::verify::{prove, shown};
use crate::support::{Random, setting};

/// Number of versions that a process publishes or follows before it ends by itself.
const STEPS: u64 = 5;
/// Number of versions of the followed chain.
const VERSIONS: u64 = 9;
const ROWS: u64 = 60;

fn store(place: &Path) -> Store {
    Store::create(
        place.join("store").to_str().unwrap(),
        StoreOptions::default(),
    )
    .unwrap()
}

fn models() -> Models {
    Models::new(11, ROWS)
}

fn head(store: &Store) -> Option<u64> {
    store.listing(0).unwrap().head()
}

/// Publishes the next version.
fn publish(store: &Store, models: &mut Models, place: &Path) {
    let version = head(store).map_or(0, |head| head + 1);
    // A directory of its own, because another process may have been killed while it wrote.
    let scratch = tempfile::tempdir_in(place).unwrap();
    let state = models.save(version, scratch.path());
    fs::create_dir(state.path().join("tokenizer")).unwrap();
    fs::write(state.path().join("tokenizer/version"), version.to_string()).unwrap();
    let options = PublishOptions::default().skips(vec![3]);
    let mut publisher = Publisher::open(store.clone(), options).unwrap();
    let published = publisher
        .publish(&state, Base::Work(&place.join("work")), &())
        .unwrap();
    assert_eq!(published.version, version);
}

#[test]
#[ignore = "a process that is killed"]
fn publisher() {
    let Some(place) = place() else { return };
    let store = store(&place);
    let mut models = models();
    // An earlier process may have been killed before it created the chain.
    let _ = init(&store);
    for _ in 0..STEPS {
        publish(&store, &mut models, &place);
    }
}

#[test]
#[ignore = "a process that is killed"]
fn follower() {
    let Some(place) = place() else { return };
    let mut follower = Follower::in_directory(
        store(&place),
        &place.join("model"),
        FollowerOptions::default(),
    )
    .unwrap();
    for _ in 0..STEPS {
        // From the head, the follower starts over at the first version.
        let next = follower
            .held()
            .map_or(0, |held| (held.version + 1) % VERSIONS);
        let prepared = follower.prepare(Some(next), &()).unwrap().unwrap();
        follower.apply(prepared).unwrap();
    }
}

#[test]
#[ignore = "a process that is killed"]
fn looker() {
    let Some(place) = place() else { return };
    let store = store(&place);
    let mut models = models();
    let _ = init(&store);
    for _ in 0..2 {
        let version = head(&store).map_or(0, |head| head + 1);
        // Few enough versions to check them again and again.
        if version < 6 {
            let options = PublishOptions::default().skips(vec![2]);
            let mut publisher = Publisher::open(store.clone(), options).unwrap();
            publisher
                .publish(models.state(version), Base::Chain, &())
                .unwrap();
        }
        let scratch = Scratch::new(None, &()).unwrap();
        compact(
            &store,
            &CompactOptions::new(scratch.path()).snapshot(true),
            &(),
        )
        .unwrap();
        let report = fsck(
            &store,
            &FsckOptions::default().deep(Some(scratch.path().to_owned())),
            &(),
        )
        .unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let mut follower = Follower::in_memory(store.clone(), FollowerOptions::default()).unwrap();
        assert!(follower.prepare(None, &()).unwrap().is_some());
    }
}

/// Runs one of the processes, and kills it after some time if one is given. True if it was still
/// alive then.
fn run(test: &str, place: &Path, until: Option<Duration>) -> bool {
    // A directory for temporary files, so that leftovers are seen.
    let temporary = place.join("temporary");
    fs::create_dir_all(&temporary).unwrap();
    let mut child = child(&format!("kill::{test}"), place)
        .env("TMPDIR", temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    if let Some(until) = until {
        thread::sleep(until);
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert!(
        status.success() || (until.is_some() && status.code().is_none()),
        "{test}: {status}"
    );
    !status.success()
}

/// Lets a process run to its end once, in a place of its own, to measure the time; then kills it
/// again and again at a random instant of such a run. `check` returns the stage at which it was
/// killed. Returns the place after a last run, which was not killed.
fn kill_again_and_again(
    test: &str,
    prepare: impl Fn(&Path),
    mut check: impl FnMut(&Path) -> u64,
) -> TempDir {
    let other = tempfile::tempdir().unwrap();
    prepare(other.path());
    let start = Instant::now();
    run(test, other.path(), None);
    let whole = start.elapsed();

    let place = tempfile::tempdir().unwrap();
    prepare(place.path());
    let seed = setting("DELTACHAIN_KILL_SEED", 1);
    let mut random = Random(seed);
    let mut kills = 0;
    let mut runs = 0;
    let mut stages: BTreeMap<u64, u64> = BTreeMap::new();
    while kills < setting("DELTACHAIN_KILLS", 12) {
        let micros = u64::try_from(whole.as_micros()).unwrap();
        let killed = run(
            test,
            place.path(),
            Some(Duration::from_micros(random.below(micros))),
        );
        let stage = check(place.path());
        runs += 1;
        if killed {
            kills += 1;
            *stages.entry(stage).or_default() += 1;
        }
        assert!(
            runs < 100 + 10 * kills,
            "the process always ends before it is killed"
        );
    }
    println!(
        "{test}, seed {seed}: {kills} kills in {runs} runs of up to {whole:?}; by versions done \
         before: {stages:?}"
    );
    // A last run succeeds as if nothing had happened.
    run(test, place.path(), None);
    check(place.path());
    place
}

#[test]
fn nothing_that_was_built_for_the_moment_is_left() {
    let place = kill_again_and_again(
        "looker",
        |_| {},
        |place| head(&store(place)).map_or(0, |head| head + 1),
    );
    let temporary = place.path().join("temporary");
    let private = names(&temporary);
    assert!(
        private.len() == 1 && private[0].starts_with("deltachain-scratch"),
        "{private:?}"
    );
    assert_eq!(names(&temporary.join(&private[0])), ["lock"]);
}

#[test]
fn a_publisher_that_is_killed_loses_nothing() {
    let mut models = models();
    let mut before = 0;
    let check = |place: &Path| {
        let store = store(place);
        if head(&store).is_none() {
            return 0;
        }
        let states = prove(&store);
        for (version, state) in (0..).zip(&states) {
            assert_eq!(state, models.state(version), "version {version}");
        }
        let shown = shown(&place.join("work"));
        assert!(
            shown.is_none_or(|shown| states.contains(&shown)),
            "the work directory holds no version"
        );
        let now = states.len() as u64;
        assert!(now >= before);
        now - std::mem::replace(&mut before, now)
    };
    kill_again_and_again("publisher", |_| {}, check);
}

#[test]
fn a_follower_that_is_killed_has_one_version() {
    let mut models = models();
    let prepare = |place: &Path| {
        let store = store(place);
        let mut models = self::models();
        init(&store).unwrap();
        (0..VERSIONS).for_each(|_| publish(&store, &mut models, place));
        drop(
            Follower::in_directory(store, &place.join("model"), FollowerOptions::default())
                .unwrap(),
        );
        foreign::put(&place.join("model"));
    };
    let mut before = VERSIONS - 1;
    let check = |place: &Path| {
        let model = place.join("model");
        foreign::check(&model);
        let Some(state) = shown(&model) else { return 0 };
        let version = (0..VERSIONS)
            .find(|version| *models.state(*version) == state)
            .expect("a version");
        let saved = tempfile::tempdir().unwrap();
        let expected = models.save(version, saved.path());
        // An old index stays, though a single file needs none.
        let files = names(&model.join("current"));
        let needed = names(expected.path());
        assert!(needed.iter().all(|name| files.contains(name)), "{files:?}");
        assert_eq!(
            fs::read_to_string(model.join("current/tokenizer/version")).unwrap(),
            version.to_string()
        );
        // The next follower finds the same version, and cleans up.
        let mut follower =
            Follower::in_directory(store(place), &model, FollowerOptions::default()).unwrap();
        assert_eq!(follower.held().map(|held| held.version), Some(version));
        assert!(follower.prepare(Some(version), &()).unwrap().is_none());
        let left = names(&model)
            .into_iter()
            .filter(|name| name.starts_with(".tmp-deltachain-"))
            .count();
        assert_eq!(left, 1, "only the foreign directory");
        foreign::check(&model);
        let steps = (version + VERSIONS - before) % VERSIONS;
        before = version;
        steps
    };
    kill_again_and_again("follower", prepare, check);
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}
