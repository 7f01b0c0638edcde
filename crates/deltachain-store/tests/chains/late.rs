//! A machine that sleeps, or is paused, during one of the last requests of a writer, while files
//! grow old and are removed: a publish that reports success has published a version that can be
//! built (R-PUB-08).

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use deltachain::chain::ObjectName;
use deltachain::tensor::MemoryState;
use deltachain::{ErrorClass, Result};
use deltachain_store::{
    Base, CompactOptions, Follower, FollowerOptions, PublishOptions, PublishReport, Publisher,
    RawObjects, ShardPart, Snapshots, Store, compact, init,
};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use crate::support::faulty::{Control, FaultyStore};
use crate::support::models::Models;
use crate::support::proxy::Proxy;
use crate::support::quick;
use crate::support::s3::{S3Server, store_behind};
use crate::support::shards::{commit_shards, publish_shard};
use crate::support::verify::{prove, rebuild, shown};

/// Moment of a request at which the machine sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// Before the request is carried out.
    Before,
    /// Before the store gets the request; the connection is lost.
    Reset,
    /// After the request is carried out; its answer is lost.
    Lost,
    /// After the answer.
    After,
}

type Hook = Box<dyn FnMut() + Send>;

/// A store whose clients sleep when they store an object below a folder.
struct Sleepy {
    inner: Arc<FaultyStore>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    at: Option<(&'static str, Sleep)>,
    /// Number of sleeps.
    times: u32,
    meanwhile: Option<Hook>,
}

/// A chain of three versions in such a store.
struct Chain {
    store: Store,
    /// The same store without sleeps.
    other: Store,
    control: Arc<Control>,
    plan: Arc<Mutex<Plan>>,
    models: Models,
}

impl Chain {
    fn new() -> Self {
        let (inner, control) = FaultyStore::new(Arc::new(InMemory::new()));
        let plan = Arc::<Mutex<Plan>>::default();
        let sleepy = Arc::new(Sleepy {
            inner: Arc::clone(&inner),
            plan: Arc::clone(&plan),
        });
        let store = Store::from_objects(sleepy, "", quick()).unwrap();
        let other = Store::from_objects(inner, "", quick()).unwrap();
        init(&store).unwrap();
        let mut chain = Self {
            store,
            other,
            control,
            plan,
            models: Models::new(17, 10),
        };
        let mut publisher = chain.publisher();
        (0..3).for_each(|version| drop(chain.publish(&mut publisher, version).unwrap()));
        chain
    }

    fn publisher(&self) -> Publisher {
        Publisher::open(
            self.store.clone(),
            PublishOptions::default().snapshots(Snapshots::Never),
        )
        .unwrap()
    }

    fn state(&mut self, version: u64) -> MemoryState {
        self.models.state(version).clone()
    }

    fn publish(&mut self, publisher: &mut Publisher, version: u64) -> Result<PublishReport> {
        let state = self.state(version);
        let before = version.checked_sub(1).map(|before| self.state(before));
        publisher.publish(
            &state,
            before
                .as_ref()
                .map_or(Base::Chain, |before| Base::Last(before.into())),
            &(),
        )
    }

    /// Lets clients that store an object below this folder sleep for 25 hours, this many times.
    /// Meanwhile unreferenced files are removed.
    fn sleep_at(&self, folder: &'static str, sleep: Sleep, times: u32) {
        let control = Arc::clone(&self.control);
        let other = self.other.clone();
        let needed: BTreeSet<ObjectName> = other
            .objects()
            .unwrap()
            .iter()
            .map(|object| object.name)
            .collect();
        let mut hours = 0;
        let meanwhile = move || {
            hours += 25;
            control.set_clock(hours);
            if sleep == Sleep::Lost {
                return;
            }
            let names = other
                .objects()
                .unwrap()
                .into_iter()
                .map(|object| object.name);
            let unnamed =
                names.filter(|name| matches!(name, ObjectName::File(_)) && !needed.contains(name));
            other.delete(&unnamed.collect::<Vec<_>>()).unwrap();
        };
        let meanwhile: Hook = Box::new(meanwhile);
        *self.plan.lock().unwrap() = Plan {
            at: Some((folder, sleep)),
            times,
            meanwhile: Some(meanwhile),
        };
    }

    /// Checks that a new follower gets the version.
    fn assert_built(&mut self, version: u64, state: u64) {
        let directory = tempfile::tempdir().unwrap();
        let mut follower = Follower::in_directory(
            self.other.clone(),
            directory.path(),
            FollowerOptions::default(),
        )
        .unwrap();
        let prepared = follower
            .prepare(Some(version), &())
            .unwrap_or_else(|error| panic!("{version}: {error:#}"));
        follower.apply(prepared.unwrap()).unwrap();
        assert!(
            shown(directory.path()).as_ref() == Some(self.models.state(state)),
            "version {version}"
        );
    }
}

fn assert_late<T: fmt::Debug>(result: Result<T>, what: &str) {
    let error = result.unwrap_err();
    assert_eq!(
        (error.rule(), error.class()),
        (Some("R-PUB-08"), ErrorClass::Chain),
        "{error}"
    );
    assert!(error.message().contains(what), "{error}");
}

#[test]
fn a_version_that_is_published_can_be_built() {
    for (folder, sleep, is_late) in [
        ("files", Sleep::Before, false),
        ("files", Sleep::After, true),
        ("commits", Sleep::Before, true),
        ("commits", Sleep::Reset, true),
        ("commits", Sleep::Lost, false),
    ] {
        let mut chain = Chain::new();
        let mut publisher = chain.publisher();
        chain.sleep_at(folder, sleep, 1);
        let result = chain.publish(&mut publisher, 3);
        if is_late {
            assert_late(result, "version 3 is visible");
            assert_eq!(
                rebuild(&chain.other, Some(3)).unwrap_err().rule(),
                Some("R-CHN-09")
            );
        } else {
            assert_eq!(result.unwrap().version, 3, "{folder} {sleep:?}");
            chain.assert_built(3, 3);
        }
        // Either publisher's next version can be built, with a snapshot if needed.
        let other = chain.publish(&mut chain.publisher(), 4).unwrap();
        let own = chain.publish(&mut publisher, 5).unwrap();
        assert_eq!((other.version, own.version), (4, 5));
        assert_eq!(
            other.routes.iter().any(|route| route.from.is_none()),
            is_late,
            "{folder} {sleep:?}"
        );
        chain.assert_built(4, 4);
        chain.assert_built(5, 5);
    }
}

/// Options that would skip the publish do not, as long as the existing version may be useless.
#[test]
fn a_version_that_came_late_is_published_again() {
    for is_known in [true, false] {
        let mut chain = Chain::new();
        let options = PublishOptions::default()
            .if_changed(true)
            .once(Some("step".to_owned()));
        let step = |step: u64| [("step".to_owned(), step.to_string())].into();
        let open = |step_number| {
            Publisher::open(
                chain.store.clone(),
                options.clone().metadata(step(step_number)),
            )
            .unwrap()
        };
        let mut publisher = open(3);
        let mut another = open(3);
        chain.sleep_at("commits", Sleep::Reset, 1);
        assert_late(chain.publish(&mut publisher, 3), "version 3 is visible");
        let state = chain.state(3);
        let publisher = if is_known {
            &mut publisher
        } else {
            &mut another
        };
        let published = publisher
            .publish(&state, Base::State((&state).into()), &())
            .unwrap();
        assert_eq!((published.version, published.is_new), (4, true));
        chain.assert_built(4, 3);
        assert!(
            !publisher
                .publish(&state, Base::Last((&state).into()), &())
                .unwrap()
                .is_new
        );
    }
}

#[test]
fn routes_that_come_into_force_can_be_used() {
    for (folder, sleep, times, generations) in [
        ("files", Sleep::Before, 1, Some(1)),
        ("files", Sleep::After, 1, Some(2)),
        ("routes", Sleep::Before, 1, Some(2)),
        // Two sleeps in one request.
        ("routes", Sleep::Reset, 2, Some(2)),
        ("routes", Sleep::Before, 2, Some(3)),
        ("routes", Sleep::Lost, 1, Some(1)),
        ("routes", Sleep::Before, 3, None),
    ] {
        let mut chain = Chain::new();
        let scratch = tempfile::tempdir().unwrap();
        chain.sleep_at(folder, sleep, times);
        let options = CompactOptions::new(scratch.path())
            .snapshot(true)
            .from(vec![0]);
        let result = compact(&chain.store, &options, &());
        match generations {
            Some(generations) => {
                assert_eq!(result.unwrap().routes.len(), 2);
                let is_routes = |name: ObjectName| matches!(name, ObjectName::Routes { .. });
                let documents = chain
                    .other
                    .objects()
                    .unwrap()
                    .iter()
                    .filter(|object| is_routes(object.name))
                    .count();
                assert_eq!(documents, generations, "{folder} {sleep:?}");
                chain.assert_built(2, 2);
                // Each route works on its own.
                prove(&chain.other);
            }
            None => assert_late(result, "the new routes are in force"),
        }
    }
}

#[test]
fn shards_that_are_committed_can_be_built() {
    for (sleep, is_late) in [
        (Sleep::Before, true),
        (Sleep::Reset, true),
        (Sleep::Lost, false),
    ] {
        let mut chain = Chain::new();
        let options = PublishOptions::default().snapshots(Snapshots::Never);
        let shard = |state: &MemoryState, shard: usize| {
            let mut part = MemoryState::new();
            for (_, (info, data)) in state
                .iter()
                .enumerate()
                .filter(|(number, _)| number % 2 == shard)
            {
                part.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
                    .unwrap();
            }
            part
        };
        let parts = |chain: &mut Chain, version: u64| -> Vec<ShardPart> {
            let state = chain.state(version);
            let part = |number: usize| {
                publish_shard(
                    &chain.store,
                    &shard(&state, number),
                    Base::Chain,
                    number,
                    2,
                    &options,
                    &(),
                )
                .unwrap()
            };
            vec![part(0), part(1)]
        };
        let first = parts(&mut chain, 3);
        commit_shards(&chain.store, &first, &options, &()).unwrap();
        chain.sleep_at("commits", sleep, 1);
        let next = parts(&mut chain, 4);
        let result = commit_shards(&chain.store, &next, &options, &());
        if is_late {
            assert_late(result, "version 4 is visible");
        } else {
            assert_eq!(result.unwrap().version, 4);
            chain.assert_built(4, 4);
        }
        // All new processes notice that files are missing.
        let next = parts(&mut chain, 5);
        let published = commit_shards(&chain.store, &next, &options, &()).unwrap();
        assert_eq!(
            published.routes.iter().any(|route| route.from.is_none()),
            is_late
        );
        chain.assert_built(5, 5);
        let next = parts(&mut chain, 6);
        let published = commit_shards(&chain.store, &next, &options, &()).unwrap();
        assert!(published.routes.iter().all(|route| route.from.is_some()));
    }
}

/// Makes all files of a directory 25 hours older.
fn age(directory: &FilePath) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let file = File::options()
            .write(true)
            .open(entry.unwrap().path())
            .unwrap();
        let before = file.metadata().unwrap().modified().unwrap() - Duration::from_hours(25);
        file.set_modified(before).unwrap();
    }
}

/// The dates of a server's answers tell that too much time may have passed, and the times of its
/// objects whether it has.
#[test]
fn a_server_is_asked_for_times_when_its_dates_are_too_far_apart() {
    for (number, is_old) in [false, true].into_iter().enumerate() {
        let server = S3Server::start();
        let proxy = Proxy::start(server.address);
        let prefix = format!("chain-{number}");
        let store = store_behind(proxy.address, &prefix, quick());
        init(&store).unwrap();
        let mut models = Models::new(18, 4);
        let states: Vec<MemoryState> = (0..3)
            .map(|version| models.state(version).clone())
            .collect();
        let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
        publisher.publish(&states[0], Base::Nothing, &()).unwrap();
        let files = server.directory(&prefix).join("files");
        proxy.sleep_at("commits", move || {
            if is_old {
                age(&files);
            }
        });
        proxy.requests();
        let result = publisher.publish(&states[1], Base::Last((&states[0]).into()), &());
        // One failed attempt, and requests for the commit and the link.
        assert_eq!(proxy.requests(), 5 + 1 + 2);
        if is_old {
            assert_late(result, "version 1 is visible");
        } else {
            drop(result.unwrap());
        }
        let next = publisher
            .publish(&states[2], Base::Last((&states[1]).into()), &())
            .unwrap();
        assert_eq!(next.routes.iter().any(|route| route.from.is_none()), is_old);
        // Parts contain the date from which on their links were stored.
        let part = |state: &MemoryState| {
            publish_shard(
                &store,
                state,
                Base::Chain,
                0,
                1,
                &PublishOptions::default(),
                &(),
            )
            .unwrap()
        };
        let parts = [part(&states[0])];
        let files = server.directory(&prefix).join("files");
        proxy.sleep_at("commits", move || {
            if is_old {
                age(&files);
            }
        });
        let result = commit_shards(&store, &parts, &PublishOptions::default(), &());
        if is_old {
            assert_late(result, "version 3 is visible");
        } else {
            drop(result.unwrap());
        }
    }
}

/// In a directory, a file gets its time before it gets its name.
#[test]
fn a_directory_is_asked_for_the_time() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::create(place.path().to_str().unwrap(), quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(19, 4);
    let options = PublishOptions::default();
    let part = |state: &MemoryState| {
        publish_shard(&store, state, Base::Chain, 0, 1, &options, &()).unwrap()
    };
    let mut publisher = Publisher::open(store.clone(), options.clone()).unwrap();
    let parts = publisher
        .prepare([(0, models.state(0).into(), Base::Nothing)], 1, &())
        .unwrap();
    age(&place.path().join("files"));
    // The clock of this process shows nothing unusual.
    assert_late(
        publisher.commit(parts, [].into(), &()),
        "version 0 is visible",
    );
    let parts = [part(models.state(1))];
    age(&place.path().join("files"));
    let error = commit_shards(&store, &parts, &options, &()).unwrap_err();
    assert_eq!(error.rule(), Some("R-PUB-08"));
    assert!(error.message().contains("start over"), "{error}");
    let published = commit_shards(&store, &[part(models.state(1))], &options, &()).unwrap();
    assert_eq!(published.version, 1);
    assert!(
        !place.path().join("probes").exists()
            || std::fs::read_dir(place.path().join("probes"))
                .unwrap()
                .count()
                == 0
    );
}

impl Sleepy {
    /// The sleep during a request that stores this object.
    fn sleep(&self, path: &Path) -> Option<Sleep> {
        let mut plan = self.plan.lock().unwrap();
        let (folder, sleep) = plan.at?;
        if plan.times == 0 || !path.as_ref().starts_with(folder) {
            return None;
        }
        plan.times -= 1;
        Some(sleep)
    }

    /// Sleeps while other clients work in a thread of their own.
    fn fall_asleep(&self) {
        let plan = Arc::clone(&self.plan);
        let meanwhile = thread::spawn(move || {
            let mut meanwhile = plan.lock().unwrap().meanwhile.take().unwrap();
            meanwhile();
            plan.lock().unwrap().meanwhile = Some(meanwhile);
        });
        meanwhile.join().unwrap();
    }
}

impl fmt::Debug for Sleepy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleepy")
    }
}

impl fmt::Display for Sleepy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store whose clients sleep")
    }
}

#[async_trait]
impl ObjectStore for Sleepy {
    async fn put_opts(
        &self,
        path: &Path,
        content: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let sleep = self.sleep(path);
        if let Some(Sleep::Before | Sleep::Reset) = sleep {
            self.fall_asleep();
        }
        let lost = || StoreError::Generic {
            store: "sleepy",
            source: "connection reset".into(),
        };
        if sleep == Some(Sleep::Reset) {
            return Err(lost());
        }
        let result = self.inner.put_opts(path, content, options).await;
        if let Some(Sleep::After | Sleep::Lost) = sleep {
            self.fall_asleep();
        }
        if sleep == Some(Sleep::Lost) {
            Err(lost())
        } else {
            result
        }
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        ObjectStore::list(&*self.inner, prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
