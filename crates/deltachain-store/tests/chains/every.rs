//! Followers that load only every Nth version.

use std::num::NonZeroU64;

use deltachain_store::{FollowOptions, Follower, FollowerOptions, Memory, Poller, Snapshots};

use crate::maintenance::Chain;

#[test]
fn only_each_third_version_is_taken() {
    let mut chain = Chain::new(2, Snapshots::Never, &[]);
    let mut follower: Follower<Memory> =
        Follower::in_memory(chain.store.clone(), FollowerOptions::default()).unwrap();
    let mut poller = Poller::new(&FollowOptions::default().every(NonZeroU64::new(3)));
    let mut taken = Vec::new();
    for version in 2..9 {
        if let Some(mut prepared) = poller.poll(&mut follower, &()).unwrap() {
            taken.push(follower.apply(&mut prepared).unwrap().version);
        }
        chain.publish(version);
    }
    // Each multiple of 3 is loaded once, as soon as it is the head.
    assert_eq!(taken, [0, 3, 6]);
}
