//! A publisher, a follower and a prune at a real S3 server behind a proxy with network faults, in
//! seeded rounds: no wrong state, no loss, and everything continues after the storm.
//! `DELTACHAIN_STORMS` sets the number of rounds, `DELTACHAIN_STORM_SEED` the first seed. Also a
//! line so slow that each part takes longer than the timeout.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use deltachain::Result;
use deltachain::chain::ObjectName;
use deltachain::tensor::Digest;
use deltachain_store::{
    Base, Follower, FollowerOptions, FsckOptions, Keep, PublishOptions, Publisher, RawObjects,
    Store, StoreOptions, fsck, init, plan_prune, prune,
};

use crate::support::models::Models;
use crate::support::proxy::{Fault, Proxy};
use crate::support::s3::{S3Server, store_behind};
use crate::support::verify::shown;
use crate::support::{quick, setting};

/// Attempts to publish per round.
const STEPS: u64 = 12;

fn publish(store: &Store, models: &mut Models, version: u64) -> Result<(u64, Digest)> {
    let before = version
        .checked_sub(1)
        .map(|before| models.state(before).clone());
    let base = before
        .as_ref()
        .map_or(Base::Nothing, |before| Base::State(before.into()));
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
    let published = publisher.publish(models.state(version), base, &())?;
    Ok((published.version, published.commit))
}

fn advance(store: &Store, directory: &Path) -> Result<u64> {
    let mut follower =
        Follower::in_directory(store.clone(), directory, FollowerOptions::default())?;
    if let Some(prepared) = follower.prepare(None, &())? {
        follower.apply(prepared)?;
    }
    Ok(follower.held().expect("a held version").version)
}

fn head(store: &Store) -> u64 {
    store.listing(0).unwrap().head().map_or(0, |head| head + 1)
}

/// Totals of all rounds.
#[derive(Debug, Default)]
struct Tally {
    commits: u64,
    switches: u64,
    prunes: u64,
    refusals: BTreeMap<String, u64>,
}

impl Tally {
    fn count<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                assert!(
                    error.rule().is_some() || error.file().is_some(),
                    "the error names neither rule nor object: {error:?}"
                );
                *self
                    .refusals
                    .entry(format!(
                        "{what} {} {}",
                        error.class(),
                        error.rule().unwrap_or("-")
                    ))
                    .or_default() += 1;
                None
            }
        }
    }
}

#[test]
fn no_fault_of_a_network_makes_a_wrong_state() {
    let server = S3Server::start();
    let mut tally = Tally::default();
    let mut injected = BTreeMap::<Fault, u64>::new();
    let first = setting("DELTACHAIN_STORM_SEED", 1);
    for seed in first..first + setting("DELTACHAIN_STORMS", 6) {
        let proxy = Proxy::start(server.address);
        one_storm(&server, &proxy, seed, &mut tally);
        for (fault, count) in proxy.injected() {
            *injected.entry(fault).or_default() += count;
        }
    }
    println!(
        "{tally:#?}\n{} faults: {injected:?}",
        injected.values().sum::<u64>()
    );
    assert!(tally.commits > 0 && tally.switches > 0 && injected.len() > 10);
}

fn one_storm(server: &S3Server, proxy: &Proxy, seed: u64, tally: &mut Tally) {
    let prefix = format!("chain-{seed}");
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("follower");
    let clean = server.store(&prefix, quick());
    let options = quick().timeout(Duration::from_millis(300));
    let stormy = store_behind(proxy.address, &prefix, options);
    let mut models = Models::new(seed, 20);
    init(&clean).unwrap();
    proxy.storm(seed, [60, 150, 400][usize::try_from(seed % 3).unwrap()]);
    let mut reported = BTreeMap::new();
    for _ in 0..STEPS {
        let version = head(&clean);
        if let Some((published, commit)) =
            tally.count("publish", publish(&stormy, &mut models, version))
        {
            assert_eq!(published, version);
            reported.insert(version, commit);
            tally.commits += 1;
        }
        if head(&clean) == 0 {
            continue;
        }
        let before = shown(&directory);
        let switched = tally.count("follow", advance(&stormy, &directory));
        match switched {
            Some(version) => {
                tally.switches += 1;
                assert_eq!(shown(&directory).as_ref(), Some(models.state(version)));
            }
            None => assert_eq!(shown(&directory), before),
        }
        let keep = Keep {
            last: 3,
            ..Keep::default()
        };
        let pruned = plan_prune(&stormy, &keep).and_then(|plan| prune(&stormy, &plan, &()));
        tally.prunes += u64::from(tally.count("prune", pruned).is_some());
    }
    // The versions that are really in the store.
    proxy.storm(seed, 0);
    let newest = head(&clean);
    if newest == 0 {
        return;
    }
    for (version, commit) in reported {
        let bytes = clean
            .get(ObjectName::Commit(version))
            .unwrap()
            .expect("a commit that was reported");
        assert_eq!(Digest::of_bytes(&bytes), commit);
    }
    let problems = fsck(&clean, &FsckOptions::default(), &()).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(advance(&clean, &directory).unwrap(), newest - 1);
    assert_eq!(shown(&directory).as_ref(), Some(models.state(newest - 1)));
    publish(&clean, &mut models, newest).unwrap();
    assert_eq!(advance(&clean, &directory).unwrap(), newest);
}

/// Each link takes at least a second, and no silence exceeds the timeout.
#[test]
fn a_slow_line_is_none_that_is_silent() {
    let server = S3Server::start();
    let proxy = Proxy::start(server.address);
    let options = StoreOptions::default()
        .timeout(Duration::from_millis(700))
        .attempts(1);
    let slow = store_behind(proxy.address, "slow", options);
    init(&slow).unwrap();
    proxy.bytes_per_second(30_000);
    let mut models = Models::new(9, 500);
    publish(&slow, &mut models, 0).unwrap();
    let stored: u64 = slow
        .objects()
        .unwrap()
        .iter()
        .map(|object| object.size)
        .max()
        .unwrap();
    assert!(stored > 45_000, "{stored}");
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("follower");
    assert_eq!(advance(&slow, &directory).unwrap(), 0);
    assert_eq!(shown(&directory).as_ref(), Some(models.state(0)));
}
