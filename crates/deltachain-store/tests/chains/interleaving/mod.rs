//! Concurrent publishers, prunes, compactions and followers: every order of their operations, one
//! by one.
//!
//! An order is a list of choices, and it alone determines what the clients do. The tests try all
//! orders of a kind, or a random sample if there are more orders than `DELTACHAIN_ORDERS` (with
//! sleeps `DELTACHAIN_SLEEPY_ORDERS`); 0 means all. Two orders are equivalent if they differ only
//! in neighbouring operations that are independent of each other. Of all equivalent orders, one is
//! tried: the order in which clients with lower numbers come first. So an order is abandoned as
//! soon as it has such neighbours the wrong way round.

mod stepped;

use std::sync::Arc;
use std::thread;

use deltachain::chain::ObjectName;
use deltachain::tensor::MemoryState;
use deltachain::{Error, ErrorClass, Result};
use deltachain_store::{
    Base, CompactOptions, Follower, FollowerOptions, FsckOptions, Keep, OtherFiles, PublishOptions,
    Publisher, RawObjects, Snapshots, Store, StoreOptions, compact, fsck, init, plan_prune, prune,
    undo_prune,
};
use futures_util::{FutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use crate::interleaving::stepped::{Bucket, Next, Touch};
use crate::support::models::Models;
use crate::support::shards::{commit_shards, publish_shard};
use crate::support::verify::rebuild;
use crate::support::{Random, quick, setting};

/// Work of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Publishes version 4.
    Publish,
    /// Publishes version 4 as the only shard of two processes: one stores it, the other commits it.
    PublishShard,
    /// Keeps the newest two versions.
    Prune,
    /// Keeps all versions from number 2 on.
    PruneLess,
    /// Keeps all versions, and removes old files that no document names.
    PruneAbandoned,
    /// Undoes the withdrawal of versions.
    Undo,
    /// Restores the commit of version 3, which was lost.
    Restore,
    /// Adds a snapshot of version 3.
    Compact,
    /// Loads the head without a base.
    Follow,
}

/// A chain of four versions that was made and pruned long ago, so that a prune has something to
/// remove: withdrawn routes, superseded routes documents, and a link of a publisher that never
/// committed.
struct Start {
    objects: Vec<(Path, PutPayload)>,
    states: Vec<MemoryState>,
}

fn one_by_one() -> StoreOptions {
    quick().parallel(1).part_bytes(1 << 20)
}

fn open(view: Arc<dyn ObjectStore>) -> Store {
    Store::from_objects(view, "", one_by_one()).unwrap()
}

fn publish_options() -> PublishOptions {
    PublishOptions::default().snapshots(Snapshots::Never)
}

fn publish(store: &Store, states: &[MemoryState], version: usize) -> Result<u64> {
    let base = version.checked_sub(1).map_or(Base::Nothing, |before| {
        Base::State((&states[before]).into())
    });
    let mut publisher = Publisher::open(store.clone(), publish_options())?;
    publisher
        .publish(&states[version], base, &())
        .map(|published| published.version)
}

fn prune_to(store: &Store, last: u64) -> Result<()> {
    prune_by(
        store,
        &Keep {
            last,
            ..Keep::default()
        },
    )
}

fn prune_by(store: &Store, keep: &Keep) -> Result<()> {
    prune(store, &plan_prune(store, keep)?, &()).map(drop)
}

fn compact_head(store: &Store) -> Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    compact(
        store,
        &CompactOptions::new(scratch.path())
            .version(Some(3))
            .snapshot(true),
        &(),
    )
    .map(drop)
}

impl Start {
    fn new() -> Self {
        let mut models = Models::new(21, 2);
        let states: Vec<MemoryState> = (0..5)
            .map(|version| models.state(version).clone())
            .collect();
        let bucket = Bucket::new();
        let store = open(bucket.free_view());
        init(&store).unwrap();
        for version in 0..3 {
            publish(&store, &states, version).unwrap();
        }
        let scratch = tempfile::tempdir().unwrap();
        compact(
            &store,
            &CompactOptions::new(scratch.path()).snapshot(true),
            &(),
        )
        .unwrap();
        publish(&store, &states, 3).unwrap();
        // Routes to versions 0 and 1 are withdrawn; their files stay for a day.
        prune_to(&store, 2).unwrap();
        // A link that a publisher left behind.
        publish_shard(
            &store,
            &states[4],
            Base::State((&states[3]).into()),
            0,
            1,
            &publish_options(),
            &(),
        )
        .unwrap();
        let listed: Vec<_> = bucket
            .objects
            .list(None)
            .try_collect()
            .now_or_never()
            .unwrap()
            .unwrap();
        let content = |path: &Path| {
            bucket
                .objects
                .get(path)
                .now_or_never()
                .unwrap()
                .unwrap()
                .bytes()
        };
        let objects = listed.into_iter().map(|meta| {
            let bytes = content(&meta.location).now_or_never().unwrap().unwrap();
            (meta.location, bytes.into())
        });
        Self {
            objects: objects.collect(),
            states,
        }
    }

    fn run(&self, work: Work, store: &Store) -> Result<()> {
        match work {
            Work::Publish => publish(store, &self.states, 4).map(|version| assert_eq!(version, 4)),
            Work::PublishShard => {
                let base = Base::State((&self.states[3]).into());
                let part =
                    publish_shard(store, &self.states[4], base, 0, 1, &publish_options(), &())?;
                commit_shards(store, &[part], &publish_options(), &()).map(drop)
            }
            Work::Prune => prune_to(store, 2),
            Work::PruneLess => prune_by(
                store,
                &Keep {
                    last: 1,
                    versions: vec![2, 3],
                    ..Keep::default()
                },
            ),
            Work::PruneAbandoned => prune_by(
                store,
                &Keep {
                    last: 9,
                    abandoned: true,
                    ..Keep::default()
                },
            ),
            Work::Undo => undo_prune(store, &()).map(drop),
            Work::Restore => self.restore(store),
            Work::Compact => compact_head(store),
            Work::Follow => {
                let directory = tempfile::tempdir().unwrap();
                let options = FollowerOptions::default().other_files(OtherFiles::None);
                let mut subscriber =
                    Follower::in_directory(store.clone(), directory.path(), options)?;
                let prepared = subscriber.prepare(None, &())?.expect("a version");
                let at = usize::try_from(prepared.held().version).unwrap();
                let expected = deltachain::tensor::StateDigests::of(&self.states[at], &())
                    .unwrap()
                    .state;
                assert_eq!(prepared.held().state, expected);
                Ok(())
            }
        }
    }

    /// Stores the commit of version 3, in one operation.
    fn restore(&self, store: &Store) -> Result<()> {
        let name = ObjectName::Commit(3);
        let (_, content) = self
            .objects
            .iter()
            .find(|(path, _)| path.as_ref() == name.to_string())
            .unwrap();
        let content: Vec<u8> = content.iter().flat_map(|part| part.to_vec()).collect();
        store
            .put_if_absent(name, &content)
            .map(|is_new| assert!(is_new))
    }

    /// Carries out an order: each entry is the number of the choice at that step; beyond the end,
    /// the first choice is taken. If this is one of `all` orders, choices that lead to an
    /// equivalent order are left out.
    fn carry_out(&self, works: &[Work], how: How, order: &[usize], all: bool) -> Tried {
        let mut is_new = true;
        let mut last: Option<(usize, Touch)> = None;
        let bucket = Bucket::copy_of(&self.objects, how.late);
        if works.contains(&Work::Restore) {
            open(bucket.free_view())
                .delete(&[ObjectName::Commit(3)])
                .unwrap();
        }
        let mut numbers = Vec::new();
        let mut steps = Vec::new();
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let views: Vec<_> = (0..works.len()).map(|client| bucket.view(client)).collect();
            let clients: Vec<_> = works
                .iter()
                .zip(views)
                .enumerate()
                .map(|(client, (&work, view))| {
                    let bucket = Arc::clone(&bucket);
                    scope.spawn(move || {
                        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            self.run(work, &open(view))
                        }));
                        bucket.end(client);
                        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    })
                })
                .collect();
            loop {
                let mut choices = bucket.choices(how.jumps);
                let Some(&first) = choices.first() else { break };
                choices.retain(|&next| {
                    is_new && !(all && is_wrong_way_round(&bucket, last.as_ref(), next))
                });
                if choices.is_empty() {
                    // Another order is equivalent. This one still runs to its end.
                    is_new = false;
                    choices.push(first);
                }
                let number = order
                    .get(steps.len())
                    .copied()
                    .unwrap_or(0)
                    .min(choices.len() - 1);
                let next = choices[number];
                last = match next {
                    Next::Client(client) => Some((client, bucket.touch(client))),
                    Next::Jump => Some((usize::MAX, Touch::Time)),
                    Next::Late => None,
                };
                numbers.push(choices.len());
                steps.push(next);
                bucket.carry_out(next);
            }
            clients
                .into_iter()
                .map(|client| client.join().unwrap())
                .collect()
        });
        self.check(works, how, &open(bucket.free_view()), &results, &steps);
        Tried {
            numbers,
            counts: (0..works.len())
                .map(|client| bucket.count(client))
                .collect(),
            is_new,
        }
    }

    /// Checks that nothing needed has been lost, and that all clients got what was reported to
    /// them.
    fn check(
        &self,
        works: &[Work],
        how: How,
        store: &Store,
        results: &[Result<()>],
        steps: &[Next],
    ) {
        for (&work, result) in works.iter().zip(results) {
            if let Err(error) = result {
                assert!(
                    may_fail(works, work, how, error),
                    "{work:?}: {error:#}, {steps:?}"
                );
            }
            if let (Work::Publish | Work::PublishShard, Ok(())) = (work, result) {
                let built = rebuild(store, Some(4))
                    .unwrap_or_else(|error| panic!("version 4: {error:#}, {steps:?}"));
                assert!(built == self.states[4], "another state");
            }
        }
        let is_lost =
            works.contains(&Work::Restore) && store.get(ObjectName::Commit(3)).unwrap().is_none();
        for version in if is_lost { 2..3 } else { 2..4 } {
            let built = rebuild(store, Some(version))
                .unwrap_or_else(|error| panic!("version {version}: {error:#}, {steps:?}"));
            assert!(built == self.states[usize::try_from(version).unwrap()]);
        }
        // A version that came too late exists, but its publisher was not told that it can be built.
        let is_late = |result: &Result<()>| {
            result
                .as_ref()
                .is_err_and(|error| error.rule() == Some("R-PUB-08"))
        };
        if !results.iter().any(is_late) {
            let report = fsck(store, &FsckOptions::default(), &()).unwrap();
            assert!(
                report.problems.is_empty(),
                "{:?}, {steps:?}",
                report.problems
            );
        }
    }
}

/// Result of one order.
struct Tried {
    /// Number of choices at each step.
    numbers: Vec<usize>,
    /// Number of operations of each client.
    counts: Vec<usize>,
    /// False if another order is equivalent.
    is_new: bool,
}

/// True if this step is independent of the last one and has a lower client number, so that another
/// order covers it.
fn is_wrong_way_round(bucket: &Bucket, last: Option<&(usize, Touch)>, next: Next) -> bool {
    let (Some((before, touched)), Next::Client(client)) = (last, next) else {
        return false;
    };
    client < *before && bucket.touch(client).commutes(touched)
}

/// Events beside the clients.
#[derive(Debug, Clone, Copy, Default)]
struct How {
    /// Number of times that the clock jumps.
    jumps: usize,
    late: Option<(usize, usize)>,
}

/// True if this client may fail with this error and start over. A client without a rival may not.
fn may_fail(works: &[Work], work: Work, how: How, error: &Error) -> bool {
    let is_maintenance = |work: &&Work| {
        matches!(
            work,
            Work::Prune | Work::PruneLess | Work::PruneAbandoned | Work::Undo
        )
    };
    let has_rival = works.iter().filter(is_maintenance).count() > 1;
    match (work, error.rule()) {
        // Routes have changed since the plan was made.
        (Work::Prune | Work::PruneLess | Work::PruneAbandoned | Work::Undo, Some("R-PUB-06")) => {
            works.contains(&Work::Compact) || has_rival
        }
        // The rival has removed objects of the list.
        (Work::Prune | Work::PruneLess | Work::PruneAbandoned, Some("R-RET-05")) => has_rival,
        // Nothing has been withdrawn yet, or the withdrawal is too old.
        (Work::Undo, None) => error.class() == ErrorClass::Chain,
        // A day passed between the first file and the commit, or between planning and reading.
        (Work::Publish, Some("R-PUB-08"))
        | (Work::PublishShard, Some("R-PUB-08" | "R-CHN-09"))
        | (Work::Follow, Some("R-CHN-09")) => how.jumps > 0,
        // A day passed between storing a probe and reading it, so a prune has removed the probe as
        // an old one.
        (Work::Prune | Work::PruneLess | Work::PruneAbandoned | Work::PublishShard, None) => {
            how.jumps > 0 && error.to_string().contains("asking for the time")
        }
        _ => false,
    }
}

/// Tries all orders of these clients, or a sample if the environment allows fewer.
fn try_orders(works: &[Work], how: How) {
    let start = Start::new();
    // With many sleeps there are too many orders to try them all.
    let most = if how.jumps > 1 {
        setting("DELTACHAIN_SLEEPY_ORDERS", 40)
    } else {
        setting("DELTACHAIN_ORDERS", 150)
    };
    let mut tried = 0;
    let mut count = 0;
    let mut order = Some(Vec::new());
    while let Some(next) = order.take_if(|_| most == 0 || tried < most) {
        let Tried {
            numbers, is_new, ..
        } = start.carry_out(works, how, &next, true);
        tried += 1;
        count += u64::from(is_new);
        order = order_after(next, &numbers);
    }
    let are_all = order.is_none();
    if !are_all {
        let mut random = Random(7);
        for _ in 0..most {
            // A number beyond the last choice means the last one, so all clients get about the same
            // number of turns.
            let clients = works.len().max(2) as u64;
            let order: Vec<usize> = (0..60)
                .map(|_| usize::try_from(random.below(clients)).unwrap())
                .collect();
            start.carry_out(works, how, &order, false);
        }
        count = most;
    }
    println!(
        "{works:?}, {how:?}: {count} orders, which are {}",
        if are_all { "all" } else { "some" }
    );
}

/// The order after this one: the last step that has another choice takes the next one.
fn order_after(mut order: Vec<usize>, numbers: &[usize]) -> Option<Vec<usize>> {
    order.resize(numbers.len(), 0);
    let step = (0..numbers.len())
        .rev()
        .find(|&step| order[step] + 1 < numbers[step])?;
    order.truncate(step + 1);
    order[step] += 1;
    Some(order)
}

#[test]
fn a_publish_and_a_prune() {
    try_orders(&[Work::Publish, Work::Prune], How::default());
}

#[test]
fn a_publish_and_a_prune_a_day_later() {
    try_orders(
        &[Work::Publish, Work::Prune],
        How {
            jumps: 1,
            late: None,
        },
    );
}

#[test]
fn a_prune_and_a_compaction_a_day_later() {
    try_orders(
        &[Work::Prune, Work::Compact],
        How {
            jumps: 1,
            late: None,
        },
    );
}

#[test]
fn a_publish_of_shards_and_a_prune_a_day_later() {
    try_orders(
        &[Work::PublishShard, Work::Prune],
        How {
            jumps: 1,
            late: None,
        },
    );
}

#[test]
fn a_publish_and_a_compaction() {
    try_orders(&[Work::Publish, Work::Compact], How::default());
}

#[test]
fn a_prune_and_a_follower() {
    try_orders(&[Work::Prune, Work::Follow], How::default());
}

#[test]
fn a_prune_and_a_follower_a_day_later() {
    try_orders(
        &[Work::Prune, Work::Follow],
        How {
            jumps: 1,
            late: None,
        },
    );
}

#[test]
fn a_prune_and_a_compaction() {
    try_orders(&[Work::Prune, Work::Compact], How::default());
}

/// Sleeps of a day and of two weeks come between any two operations.
const SLEEPY: How = How {
    jumps: 2,
    late: None,
};

#[test]
fn a_publish_and_a_prune_with_sleeps() {
    try_orders(&[Work::Publish, Work::Prune], SLEEPY);
}

#[test]
fn a_compaction_and_a_prune_with_sleeps() {
    try_orders(&[Work::Compact, Work::Prune], SLEEPY);
}

#[test]
fn a_publish_a_compaction_and_a_prune_with_sleeps() {
    try_orders(&[Work::Publish, Work::Compact, Work::Prune], SLEEPY);
}

#[test]
fn two_prunes_with_sleeps() {
    try_orders(&[Work::Prune, Work::Prune], SLEEPY);
    try_orders(&[Work::Prune, Work::PruneLess], SLEEPY);
}

#[test]
fn a_prune_that_is_taken_back_with_sleeps() {
    try_orders(&[Work::PruneLess, Work::Undo], SLEEPY);
}

#[test]
fn a_commit_that_is_restored_beside_a_prune_with_sleeps() {
    try_orders(&[Work::Restore, Work::Prune], SLEEPY);
    try_orders(&[Work::Restore, Work::Prune, Work::Prune], SLEEPY);
}

#[test]
fn a_publish_a_compaction_and_a_prune_by_hand_with_sleeps() {
    try_orders(&[Work::Publish, Work::PruneAbandoned], SLEEPY);
    try_orders(&[Work::Compact, Work::PruneAbandoned], SLEEPY);
}

#[test]
fn a_publish_a_prune_and_a_follower() {
    try_orders(&[Work::Publish, Work::Prune, Work::Follow], How::default());
}

#[test]
fn a_publish_a_prune_and_a_compaction() {
    try_orders(&[Work::Publish, Work::Prune, Work::Compact], How::default());
}

/// Each operation in turn seems to fail, is retried, and is carried out a second time later: the
/// first request may take effect at any time.
#[test]
fn operations_that_are_carried_out_late() {
    let start = Start::new();
    let works = [Work::Publish, Work::Prune];
    let counts = start.carry_out(&works, How::default(), &[], false).counts;
    let mut random = Random(9);
    let most = setting("DELTACHAIN_LATE_ORDERS", 10);
    let mut count = 0;
    for (client, operations) in counts.into_iter().enumerate() {
        for number in 1..=operations {
            for _ in 0..most {
                let order: Vec<usize> = (0..60)
                    .map(|_| usize::try_from(random.below(3)).unwrap())
                    .collect();
                start.carry_out(
                    &works,
                    How {
                        jumps: 0,
                        late: Some((client, number)),
                    },
                    &order,
                    false,
                );
                count += 1;
            }
        }
    }
    println!("late operations: {count} orders");
}
