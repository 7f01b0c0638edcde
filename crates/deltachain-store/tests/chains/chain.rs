//! A chain from end to end, by the same calls on an S3 server and in a directory: published,
//! followed, joined late.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use deltachain::Limits;
use deltachain::chain::{Commit, ObjectName};
use deltachain::tensor::StateDigests;
use deltachain_store::{
    Base, Directory, FollowOptions, Follower, FollowerOptions, PublishOptions, Publisher,
    RawObjects, Store, SwitchReport, init,
};

use crate::common::follow;

use crate::support::models::Models;
use crate::support::quick;
use crate::support::s3::S3Server;
use crate::support::verify::{prove, rebuild, shown};
use crate::support::web::WebServer;

const VERSIONS: u64 = 24;

fn subscriber(store: &Store, directory: &Path) -> Follower<Directory> {
    Follower::in_directory(store.clone(), directory, FollowerOptions::default()).unwrap()
}

/// Follows a finished chain up to its head.
fn catch_up(store: &Store, directory: &Path, until: u64) -> Vec<SwitchReport> {
    let mut switches = Vec::new();
    let options = FollowOptions::default()
        .poll(Duration::from_millis(1))
        .until(Some(until));
    let mut note = |_: &Follower<Directory>, switched: &SwitchReport| {
        switches.push(switched.clone());
        Ok(())
    };
    follow(&mut subscriber(store, directory), &options, &(), &mut note).unwrap();
    switches
}

fn step(follower: &mut Follower<Directory>) -> SwitchReport {
    let prepared = follower.prepare(None, &()).unwrap().expect("a new version");
    follower.apply(prepared).unwrap()
}

/// Names and contents of a model's safetensors files. Indexes are left out: an old one stays,
/// though a single file needs none.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let entries = entries.filter(|entry| {
        entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "safetensors")
    });
    entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

/// Bytes that a new reader downloads if it knows only the first route and the routes from the
/// parents.
fn replaying_everything(store: &Store) -> u64 {
    let bytes = (0..VERSIONS).map(|version| {
        let commit = store.get(ObjectName::Commit(version)).unwrap().unwrap();
        let commit = Commit::parse(&commit, &Limits::default()).unwrap();
        let route = commit
            .routes
            .iter()
            .find(|route| route.from == version.checked_sub(1))
            .unwrap();
        u64::try_from(route.bytes()).unwrap()
    });
    bytes.sum()
}

/// Publishes and follows `VERSIONS` versions.
fn publish_and_follow(store: &Store) {
    let scratch = tempfile::tempdir().unwrap();
    let place = |name: &str| scratch.path().join(name);
    let mut models = Models::new(7, 120);
    init(store).unwrap();
    let mut options = PublishOptions::default().skips(vec![4]);
    let mut step_by_step = subscriber(store, &place("step by step"));
    assert!(step_by_step.held().is_none());
    for version in 0..VERSIONS {
        let state = models.save(version, scratch.path());
        options = options.metadata(BTreeMap::from([(
            "step".to_owned(),
            (version * 100).to_string(),
        )]));
        // A new publisher for each version, as after a restart.
        let mut publisher = Publisher::open(store.clone(), options.clone()).unwrap();
        let work = place("work");
        let before = (version > 0).then(|| models.save(version - 1, scratch.path()));
        let base = match &before {
            None => Base::Nothing,
            Some(before) if version % 5 == 1 => Base::State(before.into()),
            Some(_) => Base::Work(&work),
        };
        let published = publisher.publish(&state, base, &()).unwrap();
        let digest = StateDigests::of(models.state(version), &()).unwrap().state;
        assert_eq!(
            (
                published.version,
                published.state,
                published.unchanged_state
            ),
            (version, digest, false)
        );
        assert!(published.changed > 0 && published.changed < published.elements || version == 0);
        let from: Vec<_> = published.routes.iter().map(|route| route.from).collect();
        assert_eq!(
            from.contains(&Some(version.wrapping_sub(4))),
            version > 0 && version % 4 == 0,
            "{from:?}"
        );

        let switched = step(&mut step_by_step);
        assert_eq!(
            (switched.version, switched.state, switched.commit),
            (version, digest, published.commit)
        );
        assert_eq!(
            shown(&place("step by step")).as_ref(),
            Some(models.state(version))
        );
        assert!(
            files(&switched.directory) == files(state.path()),
            "version {version}"
        );
        if version == 0 || version == 7 {
            let mut other = subscriber(store, &place(&format!("from {version}")));
            assert_eq!(step(&mut other).version, version);
        }
    }
    assert_eq!(
        prove(store),
        (0..VERSIONS)
            .map(|version| models.state(version).clone())
            .collect::<Vec<_>>()
    );

    let head = VERSIONS - 1;
    let mut transferred = Vec::new();
    for name in ["from 0", "from 7", "late"] {
        let switches = catch_up(store, &place(name), head);
        // A single switch covers all missing versions.
        let [switched] = &switches[..] else {
            panic!("{} switches", switches.len())
        };
        let start = name
            .strip_prefix("from ")
            .map(|version| version.parse().unwrap());
        assert_eq!((switched.from, switched.version), (start, head));
        assert_eq!(shown(&place(name)).as_ref(), Some(models.state(head)));
        assert!(files(&place(name).join("current")) == files(&place("step by step/current")));
        let last = subscriber(store, &place(name));
        let held = last.held().unwrap();
        assert_eq!(
            (held.version, held.state, held.commit),
            (head, switched.state, switched.commit)
        );
        transferred.push(switched.downloaded);
    }
    let everything = replaying_everything(store);
    println!(
        "{store}: {transferred:?} bytes from version 0, from version 7 and from nothing; \
         {everything} without skips"
    );
    assert!(transferred[2] < everything && transferred[1] < everything);
    // Nothing is left to prepare.
    assert!(
        subscriber(store, &place("late"))
            .prepare(None, &())
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_chain_on_an_s3_server() {
    let server = S3Server::start();
    let store = server.store("some prefix/模型", quick());
    publish_and_follow(&store);
    // No multipart upload is left over, and the prefix has nothing but the chain.
    assert_eq!(
        files_below(&server.directory("some prefix")),
        store.objects().unwrap().len()
    );
}

#[test]
fn a_chain_in_a_directory_and_on_a_web_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chains/模型 é");
    let store = Store::create(path.to_str().unwrap(), quick()).unwrap();
    publish_and_follow(&store);
    assert_eq!(
        files_below(directory.path()),
        store.objects().unwrap().len()
    );

    // A reader that cannot list finds the head, too.
    let server = WebServer::start(directory.path());
    let web = Store::open(&server.url("chains/模型 é"), quick()).unwrap();
    let late = tempfile::tempdir().unwrap();
    let switches = catch_up(&web, late.path(), VERSIONS - 1);
    assert_eq!(switches.len(), 1);
    assert_eq!(shown(late.path()), Some(rebuild(&store, None).unwrap()));
    let mut behind = subscriber(&web, &late.path().join("behind"));
    for version in [2, 9, VERSIONS - 1] {
        let prepared = behind.prepare(Some(version), &()).unwrap().unwrap();
        assert_eq!(behind.apply(prepared).unwrap().version, version);
        assert_eq!(
            shown(&late.path().join("behind")),
            Some(rebuild(&store, Some(version)).unwrap())
        );
    }
}

fn files_below(directory: &Path) -> usize {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|path| if path.is_dir() { files_below(&path) } else { 1 })
        .sum()
}
