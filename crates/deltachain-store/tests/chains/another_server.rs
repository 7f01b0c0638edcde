//! Tests with another S3 server than the one that the other tests start: its address is in
//! `DELTACHAIN_S3` (`./task endurance` starts moto's). It has a bucket named `bucket` and accepts
//! any credentials.

use std::env;

use deltachain::files::SafetensorsState;
use deltachain_store::{
    Base, CompactOptions, Follower, FollowerOptions, FsckOptions, Keep, PublishOptions, Publisher,
    Store, StoreOptions, compact, doctor, fsck, init, plan_prune, prune,
};

use crate::support::models::Models;
use crate::support::verify::shown;

const VERSIONS: u64 = 6;

#[test]
fn a_chain_lives_at_another_server() {
    let Some(endpoint) = env::var_os("DELTACHAIN_S3") else {
        println!("SKIPPED: DELTACHAIN_S3 names no server");
        return;
    };
    let endpoint = endpoint.into_string().unwrap();
    let settings = [
        ("endpoint", &*endpoint),
        ("region", "us-east-1"),
        ("access_key_id", "any"),
        ("secret_access_key", "any"),
    ];
    let settings = settings
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec();
    let options = StoreOptions::default().settings(settings);
    let url = "s3://bucket/a chain";

    let store = Store::open(url, options).unwrap();
    let findings = doctor(&store).unwrap();
    assert!(
        findings.iter().all(|finding| finding.works),
        "{findings:#?}"
    );

    init(&store).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    // Large enough for files of several parts.
    let mut models = Models::new(13, 100_000);
    let mut before: Option<SafetensorsState> = None;
    for version in 0..VERSIONS {
        let state = models.save(version, scratch.path());
        let base = before
            .as_ref()
            .map_or(Base::Nothing, |base| Base::State(base.into()));
        Publisher::open(store.clone(), PublishOptions::default())
            .unwrap()
            .publish(&state, base, &())
            .unwrap();
        before = Some(state);
    }
    compact(
        &store,
        &CompactOptions::new(scratch.path().join("compact")).snapshot(true),
        &(),
    )
    .unwrap();
    let directory = scratch.path().join("follower");
    let mut follower =
        Follower::in_directory(store.clone(), &directory, FollowerOptions::default()).unwrap();
    for version in [1, VERSIONS - 1] {
        let prepared = follower.prepare(Some(version), &()).unwrap().unwrap();
        follower.apply(prepared).unwrap();
        assert_eq!(shown(&directory).as_ref(), Some(models.state(version)));
    }
    let plan = plan_prune(
        &store,
        &Keep {
            last: 2,
            ..Keep::default()
        },
    )
    .unwrap();
    prune(&store, &plan, &()).unwrap();
    let late = scratch.path().join("late");
    let mut follower =
        Follower::in_directory(store.clone(), &late, FollowerOptions::default()).unwrap();
    let prepared = follower.prepare(None, &()).unwrap().unwrap();
    follower.apply(prepared).unwrap();
    assert_eq!(shown(&late).as_ref(), Some(models.state(VERSIONS - 1)));
    let report = fsck(&store, &FsckOptions::default(), &()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
