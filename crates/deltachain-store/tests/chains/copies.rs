//! Followers that change to copies of their chain.

use std::num::NonZeroU64;

use deltachain::{ErrorClass, Result};
use deltachain_store::{
    FollowOptions, Follower, FollowerOptions, Memory, Poller, Snapshots, Store,
};

use crate::maintenance::Chain;
use crate::mirror::{copy, empty};
use crate::support::faulty::Fault;

fn follower(store: &Store) -> Follower<Memory> {
    Follower::in_memory(store.clone(), FollowerOptions::default()).unwrap()
}

fn advance(follower: &mut Follower<Memory>) -> Result<Option<u64>> {
    let Some(mut prepared) = follower.prepare(None, &())? else {
        return Ok(None);
    };
    follower
        .apply(&mut prepared)
        .map(|report| Some(report.version))
}

#[test]
fn a_follower_asks_the_copies_when_its_store_fails_or_is_behind() {
    let mut chain = Chain::new(3, Snapshots::Never, &[]);
    let (copied, broken) = empty();
    copy(&chain.store, &copied).unwrap();
    let mut follower = follower(&chain.store.with_copies(vec![copied.clone()]));
    // The store comes first.
    chain.publish(3);
    assert_eq!(advance(&mut follower).unwrap(), Some(3));
    // It is down, and the copy is behind: nothing goes back, and the store's failure is told.
    chain.control.plan(|_| Some(Fault::FailBefore));
    let error = advance(&mut follower).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io, "{error:#}");
    // The copy goes on.
    chain.control.heal();
    chain.publish(4);
    copy(&chain.store, &copied).unwrap();
    chain.control.plan(|_| Some(Fault::FailBefore));
    assert_eq!(advance(&mut follower).unwrap(), Some(4));
    assert_eq!(follower.held().unwrap().version, 4);
    // Both are down.
    broken.plan(|_| Some(Fault::FailBefore));
    assert_eq!(advance(&mut follower).unwrap_err().class(), ErrorClass::Io);
    // The store is back.
    chain.control.heal();
    chain.publish(5);
    assert_eq!(advance(&mut follower).unwrap(), Some(5));
}

#[test]
fn only_each_third_version_is_taken() {
    let mut chain = Chain::new(2, Snapshots::Never, &[]);
    let mut follower = follower(&chain.store);
    let mut poller = Poller::new(&FollowOptions::default().every(NonZeroU64::new(3)));
    let mut taken = Vec::new();
    for version in 2..9 {
        if let Some(mut prepared) = poller.poll(&mut follower, &()).unwrap() {
            taken.push(follower.apply(&mut prepared).unwrap().version);
        }
        chain.publish(version);
    }
    // Version 3 was found when 4 was the head; each is found once.
    assert_eq!(taken, [0, 3, 6]);
}
