//! Metadata can be read back from every version, and lets each step be published only once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use deltachain::ErrorClass;
use deltachain::tensor::{Dtype, MemoryState};
use deltachain_store::{
    Base, Follower, FollowerOptions, Health, Model, PublishOptions, PublishReport, Publisher,
    RawObjects, Snapshots, Store, find_version, init, log, stored,
};
use object_store::memory::InMemory;

use crate::support::counting::CountingStore;
use crate::support::quick;

type Metadata = BTreeMap<String, String>;

fn state(value: u8) -> MemoryState {
    let mut state = MemoryState::new();
    state.insert("a", Dtype::U8, &[3], vec![value; 3]).unwrap();
    state
}

fn entry(name: &str, value: &dyn ToString) -> Metadata {
    BTreeMap::from([(name.to_owned(), value.to_string())])
}

fn in_memory() -> Store {
    let store = Store::from_objects(Arc::new(InMemory::new()), "", quick()).unwrap();
    init(&store).unwrap();
    store
}

fn publisher(store: &Store, metadata: Metadata) -> Publisher {
    let options = PublishOptions::default()
        .metadata(metadata)
        .once(Some("step".to_owned()))
        .snapshots(Snapshots::Never);
    Publisher::open(store.clone(), options).unwrap()
}

/// Publishes a step with a new publisher, like a restarted trainer.
fn publish(store: &Store, step: i64, value: u8) -> PublishReport {
    publisher(store, entry("step", &step))
        .publish(&state(value), Base::Chain, &())
        .unwrap()
}

fn steps(store: &Store) -> Vec<String> {
    log(store, None, None)
        .unwrap()
        .iter()
        .rev()
        .map(|entry| entry.metadata["step"].clone())
        .collect()
}

#[test]
fn a_follower_has_the_metadata_of_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let store = in_memory();
    // The longest note that a document allows, with characters that JSON escapes.
    let long = "\u{1}\"\\\u{1F9EE}".repeat(1 << 20);
    for (step, note) in [(1, "short".to_owned()), (2, long)] {
        let mut metadata = entry("step", &step);
        metadata.insert("a \"note\"".to_owned(), note);
        let options = PublishOptions::default().metadata(metadata);
        Publisher::open(store.clone(), options)
            .unwrap()
            .publish(&state(step), Base::Chain, &())
            .unwrap();
    }
    let published: Vec<Metadata> = log(&store, None, None)
        .unwrap()
        .into_iter()
        .rev()
        .map(|entry| entry.metadata)
        .collect();
    assert_eq!(
        (&*published[1]["step"], published[1]["a \"note\""].len()),
        ("2", 7 << 20)
    );

    let directory = folder.path().join("model");
    let mut memory = Follower::in_memory(store.clone(), FollowerOptions::default()).unwrap();
    let mut files =
        Follower::in_directory(store.clone(), &directory, FollowerOptions::default()).unwrap();
    for (version, metadata) in (0..).zip(&published) {
        let mut prepared = memory.prepare(Some(version), &()).unwrap().unwrap();
        assert_eq!(&prepared.held().metadata, metadata);
        let switched = memory.apply(&mut prepared).unwrap();
        assert_eq!(
            (prepared.held().commit, &switched.metadata),
            (switched.commit, metadata)
        );
        assert_eq!(&memory.held().unwrap().metadata, metadata);
        let prepared = files.prepare(Some(version), &()).unwrap().unwrap();
        assert_eq!(
            (&prepared.held().metadata, prepared.held().commit),
            (metadata, switched.commit)
        );
        assert_eq!(&files.apply(prepared).unwrap().metadata, metadata);
        assert_eq!(&files.held().unwrap().metadata, metadata);
    }
    drop(files);
    // From the directory alone, and by another process.
    assert_eq!(
        Health::of(&directory, None).unwrap().metadata,
        Some(published[1].clone())
    );
    let here = find_version(&directory, Some(1)).unwrap().unwrap();
    assert_eq!(
        (&here.metadata, here.commit),
        (&published[1], log(&store, Some(1), None).unwrap()[0].commit)
    );
    let files =
        Follower::in_directory(in_memory(), &directory, FollowerOptions::default()).unwrap();
    assert_eq!(files.held().unwrap().metadata, published[1]);

    assert_eq!(
        stored(&store, 1).unwrap(),
        log(&store, Some(1), None).unwrap()[0].stored
    );
    assert_eq!(stored(&store, 2).unwrap(), None);
}

#[test]
fn a_step_is_published_once() {
    let store = in_memory();
    for (step, value, expected) in [
        (-1, 1, (0, true)),
        (0, 2, (1, true)),
        (0, 3, (1, false)),
        (-7, 4, (1, false)),
        (9, 5, (2, true)),
    ] {
        let before = (log(&store, None, None).unwrap(), store.objects().unwrap());
        let published = publish(&store, step, value);
        assert_eq!(
            (published.version, published.is_new),
            expected,
            "step {step}"
        );
        if !published.is_new {
            assert_eq!(
                (log(&store, None, None).unwrap(), store.objects().unwrap()),
                before,
                "a skipped step stores nothing"
            );
            assert_eq!(
                (published.commit, published.state),
                (before.0[0].commit, before.0[0].state)
            );
        }
    }
    assert_eq!(steps(&store), ["-1", "0", "9"]);
    // A running publisher recognizes the step, too, and afterwards need not read the head.
    let mut one = publisher(&store, Metadata::new());
    assert!(
        one.known_repeated(&entry("step", &9)).unwrap().is_none(),
        "nothing has been read yet"
    );
    assert_eq!(
        one.repeated(&entry("step", &9)).unwrap().unwrap().version,
        2
    );
    assert_eq!(
        one.known_repeated(&entry("step", &9))
            .unwrap()
            .unwrap()
            .version,
        2
    );
    assert!(one.known_repeated(&entry("step", &10)).unwrap().is_none());
}

#[test]
fn a_version_without_a_step_is_refused_and_a_head_without_one_does_not_count() {
    let store = in_memory();
    for metadata in [
        Metadata::new(),
        entry("stop", &1),
        entry("step", &"1.0"),
        entry("step", &""),
    ] {
        let error = publisher(&store, metadata)
            .publish(&state(1), Base::Chain, &())
            .unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage);
        assert!(error.message().contains("\"step\""), "{error}");
    }
    let first = state(1);
    let parts = publisher(&store, Metadata::new())
        .prepare([(0, (&first).into(), Base::Nothing)], 1, &())
        .unwrap();
    let error = publisher(&store, Metadata::new())
        .commit(parts, entry("stop", &1), &())
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage);
    assert_eq!(log(&store, None, None).unwrap(), []);
    for other in [Metadata::new(), entry("step", &"first")] {
        let options = PublishOptions::default().metadata(other);
        Publisher::open(store.clone(), options)
            .unwrap()
            .publish(&state(1), Base::Chain, &())
            .unwrap();
        assert!(publish(&store, -5, 2).is_new);
    }
}

#[test]
fn of_two_publishers_with_the_same_step_one_publishes_it() {
    let store = in_memory();
    publish(&store, 0, 0);
    let first = state(1);
    let second = state(2);
    let third = state(3);
    // All publishers have read the same head.
    let mut prepared: Vec<_> = [&first, &second, &third]
        .map(|state| {
            let mut publisher = publisher(&store, Metadata::new());
            assert!(publisher.repeated(&entry("step", &1)).unwrap().is_none());
            let parts = publisher
                .prepare([(0, Model::State(state), Base::Chain)], 1, &())
                .unwrap();
            (publisher, parts)
        })
        .into();
    let mut commit = |number: usize, step: i64| {
        let (publisher, parts) = &mut prepared[number];
        publisher.commit(parts.clone(), entry("step", &step), &())
    };
    let won = commit(0, 1).unwrap();
    assert_eq!((won.version, won.is_new), (1, true));
    let lost = commit(1, 1).unwrap();
    assert_eq!(
        (lost.version, lost.is_new, lost.commit, lost.state),
        (1, false, won.commit, won.state)
    );
    // A step that was not published does not count as published, and a repeated commit is the same
    // commit.
    assert_eq!(commit(2, 2).unwrap_err().rule(), Some("R-PUB-03"));
    assert_eq!(commit(0, 1).unwrap(), won);
    assert_eq!(steps(&store), ["0", "1"]);
}

#[test]
fn parts_of_other_processes_are_committed_once() {
    let store = in_memory();
    publish(&store, 4, 0);
    let next = state(1);
    let parts = publisher(&store, Metadata::new())
        .prepare([(0, (&next).into(), Base::Chain)], 1, &())
        .unwrap();
    let commit = |step: i64| {
        publisher(&store, Metadata::new())
            .commit(parts.clone(), entry("step", &step), &())
            .unwrap()
    };
    let head = commit(4);
    assert_eq!((head.version, head.is_new), (0, false));
    assert_eq!(commit(5).version, 1);
    assert_eq!(steps(&store), ["4", "5"]);
}

#[test]
fn a_step_costs_no_request_more() {
    let requests = |once: bool| -> Vec<u64> {
        let objects = CountingStore::new();
        let store = Store::from_objects(Arc::clone(&objects) as _, "", quick()).unwrap();
        init(&store).unwrap();
        let options = PublishOptions::default().once(once.then(|| "step".to_owned()));
        let mut publisher = Publisher::open(store, options).unwrap();
        let counted = (1..5).map(|step: u8| {
            objects.requests();
            let before = state(step - 1);
            let next = state(step);
            publisher.repeated(&entry("step", &step)).unwrap();
            let parts = publisher
                .prepare([(0, (&next).into(), Base::Last((&before).into()))], 1, &())
                .unwrap();
            assert!(
                publisher
                    .commit(parts, entry("step", &step), &())
                    .unwrap()
                    .is_new
            );
            objects.requests()
        });
        let mut counted: Vec<u64> = counted.collect();
        // Reading the head takes requests; what the publisher knows already takes none.
        let repeated = publisher.known_repeated(&entry("step", &3)).unwrap();
        assert_eq!(
            (repeated.map(|head| head.version), objects.requests()),
            (once.then_some(3), 0)
        );
        assert_eq!(
            publisher.repeated(&entry("step", &3)).unwrap().is_some(),
            once
        );
        counted.push(objects.requests());
        counted
    };
    let with = requests(true);
    let without = requests(false);
    assert_eq!(with[..4], without[..4]);
    assert!(with[4] <= 3 && without[4] == 0, "{with:?} {without:?}");
}

#[test]
fn what_a_directory_says_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let store = in_memory();
    publish(&store, 1, 1);
    let mut files =
        Follower::in_directory(store, folder.path(), FollowerOptions::default()).unwrap();
    let prepared = files.prepare(None, &()).unwrap().unwrap();
    let record = files
        .apply(prepared)
        .unwrap()
        .directory
        .with_file_name("held.json");
    let text = fs::read_to_string(&record).unwrap();
    assert!(text.contains("\"step\":\"1\""), "{text}");
    let refused = |path: &Path| find_version(path, None).unwrap_err().class() == ErrorClass::Io;
    fs::write(&record, text.replace("\"step\":\"1\"", "\"step\":1")).unwrap();
    assert!(refused(folder.path()));
}
