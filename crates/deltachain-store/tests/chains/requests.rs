//! Number of requests of a publish, which is the same for short and long chains, and of a
//! follower's poll of an unchanged chain.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deltachain::chain::{Commit, FileReference, ObjectName, Route};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, Dtype, MemoryState, StateDigests};
use deltachain::{Error, Limits};
use deltachain_store::{
    Base, CompactOptions, Directory, FollowOptions, Follower, FollowerOptions, Keep, Memory,
    Observer, Phase, Poller, PublishOptions, PublishReport, Publisher, RawObjects, Snapshots,
    Store, compact, init, plan_prune, prune,
};

use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutPayload};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::follow;
use crate::support::counting::CountingStore;
use crate::support::models::save;
use crate::support::proxy::Proxy;
use crate::support::quick;
use crate::support::s3::{S3Server, store_behind};

/// Maximum number of requests of a new process, and of a publisher that has just published the
/// version before.
const NEW: u64 = 21;
const WARM: u64 = 8;
/// Maximum number of requests of each further process that stores shards, not counting one for each
/// link and the requests about it.
const FURTHER: u64 = 4;

const KEY: &str = "deltachain.path-bytes";

/// Bytes of version 0 of a chain, and of each link.
const SNAPSHOT: u64 = 1 << 40;
const LINK: u64 = 10;

/// A chain whose versions all have the same state. Only its documents exist.
struct Chain {
    objects: Arc<CountingStore>,
    store: Store,
    state: SafetensorsState,
    digest: Digest,
    versions: u64,
    parent: Digest,
    _folder: TempDir,
}

impl Chain {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut state = MemoryState::new();
        state.insert("a", Dtype::U8, &[3], vec![1, 2, 3]).unwrap();
        save(&state, &folder.path().join("model"), false);
        let objects = CountingStore::new();
        let store = Store::from_objects(Arc::clone(&objects) as _, "prefix", quick()).unwrap();
        let parent = Digest::of_bytes(&init(&store).unwrap().unwrap().to_bytes().unwrap());
        let digest = StateDigests::of(&state, &()).unwrap().state;
        // The link to each version but the first. Publishers check that it exists, but do not read
        // it.
        assert!(
            store
                .put_if_absent(ObjectName::File(digest), &[0; 10])
                .unwrap()
        );
        let state = SafetensorsState::open(folder.path().join("model")).unwrap();
        Self {
            objects,
            store,
            state,
            digest,
            versions: 0,
            parent,
            _folder: folder,
        }
    }

    /// Adds versions up to a number. The cost of the path is recorded in the last one, or nowhere.
    fn grow(&mut self, versions: u64, note: Option<&str>) {
        let state = self.digest;
        while self.versions < versions {
            let version = self.versions;
            let from = version.checked_sub(1);
            let size = if version == 0 { SNAPSHOT } else { LINK };
            let note = if version + 1 == versions { note } else { None };
            let commit = Commit {
                version,
                parent: self.parent,
                state,
                shards: vec![state],
                routes: vec![Route {
                    from,
                    files: vec![FileReference {
                        digest: state,
                        size,
                    }],
                }],
                assets: Vec::new(),
                metadata: note
                    .map(|note| (KEY.to_owned(), note.to_owned()))
                    .into_iter()
                    .collect(),
            };
            let bytes = commit.to_bytes().unwrap();
            self.parent = Digest::of_bytes(&bytes);
            assert!(
                self.store
                    .put_if_absent(ObjectName::Commit(version), &bytes)
                    .unwrap()
            );
            self.versions += 1;
        }
        self.objects.requests();
    }

    fn publisher(&self, snapshots: Snapshots) -> Publisher {
        let options = PublishOptions::default().snapshots(snapshots).assets(false);
        Publisher::open(self.store.clone(), options).unwrap()
    }

    /// Publishes the next version, and returns the number of requests since the last count.
    fn publish(&mut self, publisher: &mut Publisher) -> (PublishReport, u64) {
        let published = publisher
            .publish(&self.state, Base::State((&self.state).into()), &())
            .unwrap();
        let requests = self.objects.requests() - times(published.routes.len());
        self.parent = published.commit;
        self.versions = published.version + 1;
        (published, requests)
    }

    fn metadata(&self, version: u64) -> BTreeMap<String, String> {
        let bytes = self
            .store
            .get(ObjectName::Commit(version))
            .unwrap()
            .unwrap();
        self.objects.requests();
        Commit::parse(&bytes, &Limits::default()).unwrap().metadata
    }
}

/// Requests for the times of the commit and of its files, which a store without dates needs.
/// Servers send dates.
fn times(files: usize) -> u64 {
    1 + files as u64
}

fn link_of(published: &PublishReport) -> u64 {
    published
        .routes
        .iter()
        .find(|route| route.from.is_some())
        .unwrap()
        .bytes
}

#[test]
fn a_publish_takes_as_many_requests_whatever_the_length_of_the_chain() {
    let mut chain = Chain::new();
    for versions in [10, 100, 1_000, 100_000] {
        let whole = SNAPSHOT + (versions - 1) * LINK;
        chain.grow(versions, Some(&format!("{SNAPSHOT} {whole}")));
        let mut publisher = chain.publisher(Snapshots::default());
        let (published, requests) = chain.publish(&mut publisher);
        assert_eq!((published.version, published.routes.len()), (versions, 1));
        assert!(requests <= NEW, "{requests} requests at version {versions}");
        // The next publish need not look back, either.
        let noted = format!("{SNAPSHOT} {}", whole + link_of(&published));
        assert_eq!(chain.metadata(versions)[KEY], noted);

        let (published, requests) = chain.publish(&mut publisher);
        assert_eq!(published.version, versions + 1);
        assert!(
            requests <= WARM,
            "{requests} requests at version {}",
            versions + 1
        );
    }
}

#[test]
fn four_processes_that_publish_eight_shards_take_few_requests_beside_one_for_each_link() {
    const PROCESSES: usize = 4;
    const SHARDS: usize = 8;
    let objects = CountingStore::new();
    let store = Store::from_objects(Arc::clone(&objects) as _, "", quick()).unwrap();
    init(&store).unwrap();
    let options = PublishOptions::default().snapshots(Snapshots::Never);
    let mut publishers: Vec<Publisher> = (0..PROCESSES)
        .map(|process| {
            // The first publisher commits, and checks whether the head is signed.
            let options = options.clone().unsigned(process > 0);
            Publisher::open(store.clone(), options).unwrap()
        })
        .collect();
    let shards = |version: u8| -> Vec<MemoryState> {
        let shard = |number: usize| {
            let mut state = MemoryState::new();
            state
                .insert(
                    &format!("tensor.{number}"),
                    Dtype::U8,
                    &[3],
                    vec![version; 3],
                )
                .unwrap();
            state
        };
        (0..SHARDS).map(shard).collect()
    };
    for version in 0..4_u8 {
        let before = shards(version.saturating_sub(1));
        let states = shards(version);
        let mut parts = Vec::new();
        let mut requests = Vec::new();
        for (process, publisher) in publishers.iter_mut().enumerate() {
            objects.requests();
            let own = (process..SHARDS).step_by(PROCESSES);
            let own = own.map(|shard| {
                (
                    shard,
                    (&states[shard]).into(),
                    Base::Last((&before[shard]).into()),
                )
            });
            let stored = publisher.prepare(own, SHARDS, &()).unwrap();
            requests.push(objects.requests() - stored.len() as u64);
            // Parts go from process to process as JSON.
            parts.extend(
                stored
                    .iter()
                    .map(|part| serde_json::to_string(part).unwrap()),
            );
        }
        let parts = parts
            .iter()
            .map(|part| serde_json::from_str(part).unwrap())
            .collect();
        objects.requests();
        let published = publishers[0].commit(parts, BTreeMap::new(), &()).unwrap();
        let commit = objects.requests();
        publishers[1..]
            .iter_mut()
            .for_each(|other| other.committed(published.version, published.commit));
        assert_eq!(
            (published.version, published.shards.len()),
            (version.into(), SHARDS)
        );
        // A store without dates also gets requests about the links of other processes before the
        // commit.
        let others = (SHARDS - SHARDS / PROCESSES) as u64;
        let first = requests[0] + commit - others - times(SHARDS);
        let further = &requests[1..];
        if version > 1 {
            assert!(
                first < WARM,
                "{first} requests beside links at version {version}"
            );
            assert!(
                further.iter().all(|&requests| requests < FURTHER),
                "{further:?} at version {version}"
            );
        }
    }
}

#[test]
fn a_snapshot_takes_one_request_more() {
    let mut chain = Chain::new();
    for versions in [10, 100, 1_000] {
        chain.grow(versions, Some("10 20"));
        let mut publisher = chain.publisher(Snapshots::Cost(2.0));
        let (published, requests) = chain.publish(&mut publisher);
        assert_eq!(published.routes.len(), 2);
        assert!(requests <= NEW, "{requests} requests at version {versions}");
        // The cost of the cheaper path is recorded.
        let snapshot = published.routes[0].bytes;
        let links = 20 + link_of(&published);
        let noted = if snapshot <= links {
            format!("{snapshot} {snapshot}")
        } else {
            format!("10 {links}")
        };
        assert_eq!(chain.metadata(versions)[KEY], noted);
        let mut publisher = chain.publisher(Snapshots::Every(1));
        chain.publish(&mut publisher);
        let (published, requests) = chain.publish(&mut publisher);
        assert_eq!(published.routes.len(), 2);
        assert!(
            requests <= WARM,
            "{requests} requests at version {}",
            published.version
        );
    }
}

#[test]
fn without_a_note_a_few_commits_are_read() {
    let mut chain = Chain::new();
    // The snapshot is at the limit of the search, and beyond it.
    for versions in [4, 100, 1_000, 100_000] {
        chain.grow(versions, None);
        let mut publisher = chain.publisher(Snapshots::default());
        let (published, requests) = chain.publish(&mut publisher);
        assert!(
            requests <= NEW + 2,
            "{requests} requests at version {versions}"
        );
        let is_found = versions == 4;
        assert_eq!(
            published.routes.len(),
            if is_found { 1 } else { 2 },
            "version {versions}"
        );
        let noted = &chain.metadata(versions)[KEY];
        if is_found {
            assert_eq!(
                *noted,
                format!("{SNAPSHOT} {}", SNAPSHOT + 3 * LINK + link_of(&published))
            );
        } else {
            let snapshot = published.routes[0].bytes;
            assert_eq!(*noted, format!("{snapshot} {snapshot}"));
        }
    }
    // An invalid record counts as missing.
    chain.grow(100_010, Some("about 7"));
    let mut publisher = chain.publisher(Snapshots::default());
    let published = chain.publish(&mut publisher).0;
    assert_eq!(published.routes.len(), 2);
}

#[test]
fn the_head_is_found_whatever_the_length_and_the_order_of_lists() {
    let mut chain = Chain::new();
    let mut warm = chain.publisher(Snapshots::Never);
    for versions in [
        1, 2, 998, 1_000, 1_002, 2_000, 2_999, 8_999, 9_002, 9_999, 10_000, 17_000, 18_000,
    ] {
        chain.grow(versions, None);
        for backwards in [false, true] {
            chain.objects.backwards.store(backwards, Ordering::Relaxed);
            let mut publisher = chain.publisher(Snapshots::Never);
            let expected = chain.versions;
            assert_eq!(
                chain.publish(&mut publisher).0.version,
                expected,
                "{backwards}"
            );
        }
        // Other publishers have published meanwhile.
        let expected = chain.versions;
        let (published, requests) = chain.publish(&mut warm);
        assert_eq!(published.version, expected);
        assert!(requests <= NEW, "{requests}");
    }
    // The newest versions are lost.
    let lost: Vec<ObjectName> = (500..chain.versions).map(ObjectName::Commit).collect();
    chain.store.delete(&lost).unwrap();
    let error = warm.publish(&chain.state, Base::Nothing, &()).unwrap_err();
    assert_eq!(error.rule(), Some("R-PUB-11"), "{error}");
    let mut another = chain.publisher(Snapshots::Never);
    assert_eq!(chain.publish(&mut another).0.version, 500);
}

/// Dates of answers take no requests, and a follower's poll makes none of the requests of a
/// publisher.
#[test]
fn a_server_is_asked_for_no_times() {
    let server = S3Server::start();
    let proxy = Proxy::start(server.address);
    let store = store_behind(proxy.address, "dated", quick());
    init(&store).unwrap();
    let states: Vec<MemoryState> = (0..6_u8)
        .map(|version| {
            let mut state = MemoryState::new();
            state
                .insert("a", Dtype::U8, &[3], vec![version; 3])
                .unwrap();
            state
        })
        .collect();
    let open = || {
        Publisher::open(
            store.clone(),
            PublishOptions::default().snapshots(Snapshots::Never),
        )
        .unwrap()
    };
    let mut publisher = open();
    for (version, state) in states.iter().enumerate() {
        if version == 4 {
            publisher = open();
        }
        proxy.requests();
        let base = version.checked_sub(1).map_or(Base::Nothing, |before| {
            Base::State((&states[before]).into())
        });
        publisher.publish(state, base, &()).unwrap();
        let requests = proxy.requests();
        // A list of commits, the head twice, the link, the commit. For a new publisher also the
        // commit before the head, lists of routes documents and of notes, and a request about the
        // head's link.
        let expected = match version {
            0 => 6,
            4 => 9,
            _ => 5,
        };
        assert_eq!(requests, expected, "version {version}");
    }
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().join("scratch");
    let compacted = |from: u64| {
        proxy.requests();
        compact(&store, &CompactOptions::new(&scratch).from(vec![from]), &()).unwrap();
        proxy.requests()
    };
    println!("compact: {} and {} requests", compacted(2), compacted(3));
}

#[test]
fn names_that_are_no_commits_do_not_hide_the_head() {
    let mut chain = Chain::new();
    chain.grow(3, None);
    let runtime = Runtime::new().unwrap();
    for number in 0..2_500 {
        let other = ObjectPath::from(format!("prefix/commits/other {number}"));
        runtime
            .block_on(chain.objects.put(&other, PutPayload::new()))
            .unwrap();
    }
    for backwards in [false, true] {
        chain.objects.backwards.store(backwards, Ordering::Relaxed);
        let expected = chain.versions;
        let mut publisher = chain.publisher(Snapshots::Never);
        assert_eq!(chain.publish(&mut publisher).0.version, expected);
    }
}

/// Records the requests of each poll of a follower, and stops after a number of polls.
struct Looks<'a> {
    objects: &'a CountingStore,
    requests: Mutex<Vec<u64>>,
    most: usize,
}

impl Observer for Looks<'_> {
    fn begin(&self, phase: Phase, _bytes: u64) {
        if phase == Phase::Wait {
            self.requests.lock().unwrap().push(self.objects.requests());
        }
    }

    fn advance(&self, _phase: Phase, _bytes: u64) -> deltachain::Result<()> {
        if self.requests.lock().unwrap().len() < self.most {
            Ok(())
        } else {
            Err(Error::usage("enough"))
        }
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, text: &str) {
        panic!("{text}");
    }
}

/// Numbers of requests of 41 polls.
fn look(subscriber: &mut Follower<Directory>, objects: &CountingStore) -> Vec<u64> {
    objects.requests();
    let options = FollowOptions::default()
        .poll(Duration::from_micros(1))
        .poll_longest(Duration::from_micros(1));
    let looks = Looks {
        objects,
        requests: Mutex::default(),
        most: 41,
    };
    follow(subscriber, &options, &looks, &mut |_, _| Ok(())).unwrap_err();
    looks.requests.into_inner().unwrap()
}

/// Like [`look`], for memory.
fn look_in_memory(subscriber: &mut Follower<Memory>, objects: &CountingStore) -> Vec<u64> {
    objects.requests();
    let options = FollowOptions::default()
        .poll(Duration::from_micros(1))
        .poll_longest(Duration::from_micros(1));
    let looks = Looks {
        objects,
        requests: Mutex::default(),
        most: 41,
    };
    let mut poller = Poller::new(&options);
    loop {
        if let Some(mut prepared) = poller.poll(subscriber, &looks).unwrap() {
            subscriber.apply(&mut prepared).unwrap();
        }
        if poller
            .wait(&looks, || Ok(ControlFlow::Continue(())))
            .is_err()
        {
            return looks.requests.into_inner().unwrap();
        }
    }
}

#[test]
fn a_look_that_finds_nothing_is_one_request_nearly_always() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = MemoryState::new();
    state.insert("a", Dtype::U8, &[3], vec![1, 2, 3]).unwrap();
    save(&state, &folder.path().join("model"), false);
    let objects = CountingStore::new();
    let store = Store::from_objects(Arc::clone(&objects) as _, "", quick()).unwrap();
    init(&store).unwrap();
    let model = SafetensorsState::open(folder.path().join("model")).unwrap();
    Publisher::open(store.clone(), PublishOptions::default())
        .unwrap()
        .publish(&model, Base::Nothing, &())
        .unwrap();
    let mut subscriber = Follower::in_directory(
        store,
        &folder.path().join("follower"),
        FollowerOptions::default(),
    )
    .unwrap();
    let requests = look(&mut subscriber, &objects);
    let short: Vec<usize> = (0..requests.len())
        .filter(|&look| requests[look] == 1)
        .collect();
    // The first poll loads the version; every 20th lists the chain.
    assert_eq!(
        short,
        (1..20).chain(21..40).collect::<Vec<_>>(),
        "{requests:?}"
    );
    assert!(
        requests.iter().skip(1).all(|&requests| requests <= 4),
        "{requests:?}"
    );
}

#[test]
fn after_a_step_back_that_is_allowed_the_model_is_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let objects = CountingStore::new();
    let store = Store::from_objects(Arc::clone(&objects) as _, "", quick()).unwrap();
    init(&store).unwrap();
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
    let paths = [0, 1].map(|version: u8| folder.path().join(format!("model-{version}")));
    let commits = [0, 1].map(|version: u8| {
        let mut state = MemoryState::new();
        state
            .insert("a", Dtype::U8, &[3], vec![version; 3])
            .unwrap();
        save(&state, &paths[usize::from(version)], false);
        let model = SafetensorsState::open(&paths[usize::from(version)]).unwrap();
        publisher
            .publish(&model, Base::Nothing, &())
            .unwrap()
            .commit
    });
    let is_cheap = |requests: &[u64]| {
        assert!(
            requests.iter().all(|&requests| requests <= 4),
            "{requests:?}"
        );
    };

    let directory = folder.path().join("follower");
    let options = FollowerOptions::default().allow_rollback(Some(commits[0]));
    let mut subscriber =
        Follower::in_directory(store.clone(), &directory, options.clone()).unwrap();
    let in_memory = FollowerOptions::default().allow_rollback(Some(commits[0]));
    let mut memory = Follower::in_memory(store.clone(), in_memory).unwrap();
    look_in_memory(&mut memory, &objects);
    look(&mut subscriber, &objects);
    assert_eq!(
        (
            subscriber.held().unwrap().version,
            memory.held().unwrap().version
        ),
        (1, 1)
    );

    store.delete(&[ObjectName::Commit(1)]).unwrap();
    is_cheap(&look(&mut subscriber, &objects)[1..]);
    is_cheap(&look_in_memory(&mut memory, &objects)[1..]);
    assert_eq!(
        (
            subscriber.held().unwrap().version,
            memory.held().unwrap().version
        ),
        (0, 0)
    );
    // Nor by a new process, which starts from the held version.
    drop(subscriber);
    is_cheap(&look(
        &mut Follower::in_directory(store.clone(), &directory, options).unwrap(),
        &objects,
    ));
}

/// Three lists, a probe (which is stored, read, and removed; removing is free), and documents, each
/// of which is read or written once.
#[test]
fn a_prune_takes_a_list_to_plan_and_two_to_carry_it_out() {
    let folder = tempfile::tempdir().unwrap();
    let objects = CountingStore::new();
    let store = Store::from_objects(Arc::clone(&objects) as _, "", quick()).unwrap();
    init(&store).unwrap();
    let mut publisher = Publisher::open(
        store.clone(),
        PublishOptions::default().snapshots(Snapshots::Every(1)),
    )
    .unwrap();
    for version in 0..4_u8 {
        let mut state = MemoryState::new();
        state
            .insert("a", Dtype::U8, &[3], vec![version; 3])
            .unwrap();
        let path = folder.path().join(version.to_string());
        save(&state, &path, false);
        publisher
            .publish(&SafetensorsState::open(path).unwrap(), Base::Nothing, &())
            .unwrap();
    }
    let requests = |last| {
        objects.requests();
        let plan = plan_prune(
            &store,
            &Keep {
                last,
                ..Keep::default()
            },
        )
        .unwrap();
        let planned = objects.requests();
        prune(&store, &plan, &()).unwrap();
        (planned, objects.requests())
    };
    // Documents: the chain and 4 commits. Three versions are withdrawn, each by a document that is
    // then read.
    assert_eq!(requests(4), (1 + 5, 2 + 2));
    assert_eq!(requests(1), (1 + 5, 2 + 2 + 3 + 3));
    assert_eq!(requests(1), (1 + 8, 2 + 2));
}
