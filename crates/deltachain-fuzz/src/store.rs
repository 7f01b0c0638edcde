//! Publishing, following, compacting, pruning and checking a chain in a store whose faults the
//! input chooses.
//!
//! The failing store and the check that a version can be built are shared with the tests of the
//! store crate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use deltachain::chain::{ChainDocument, Commit, ObjectName};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, MemoryState, StateDigests};
use deltachain::{Error, ErrorClass, Limits, Result};
use deltachain_store::{
    Base, CompactOptions, Directory, Follower, FollowerOptions, FsckOptions, Keep, Observer, Phase,
    PublishOptions, PublishReport, Publisher, RawObjects, Snapshots, Store, StoreOptions, compact,
    fsck, plan_prune, prune,
};
use deltachain_testkit::faulty::{Control, Fault, FaultyStore, hash};
use deltachain_testkit::verify::{rebuild, shown};
use object_store::memory::InMemory;
use tempfile::TempDir;

use crate::memory::single_threaded;
use crate::states::{Start, Step};
use crate::structured::{folder, write};

/// Maximum number of rounds.
const ROUNDS: usize = 10;

/// Faults of the store: which one a request gets depends on the request and the number of equal
/// ones before it.
type Faults = [u8; 32];

/// One round: an optional publish, and then another operation.
#[derive(Debug, Arbitrary)]
struct Round {
    publish: Option<Publish>,
    then: Operation,
}

#[derive(Debug, Arbitrary)]
struct Publish {
    step: Step,
    base: From,
    snapshots: bool,
    skips: bool,
}

#[derive(Debug, Arbitrary)]
enum From {
    Nothing,
    State,
    Chain,
    Work,
}

#[derive(Debug, Arbitrary)]
enum Operation {
    Pull {
        version: Option<u8>,
        opens: bool,
        keeps_links: bool,
    },
    Compact {
        version: Option<u8>,
        from: Option<u8>,
        snapshot: bool,
    },
    Prune {
        last: u8,
        days_later: bool,
    },
    Fsck {
        deep: bool,
    },
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct Played {
    /// Versions that were published.
    pub versions: usize,
    /// Number of times that the subscriber switched to another version.
    pub switches: usize,
    /// Number of times that each fault occurred.
    pub faults: BTreeMap<String, u64>,
}

/// Runs [`play`], as a target.
pub fn store(data: &[u8]) {
    play(data);
}

/// Runs a few operations on a chain while its store fails, and then checks everything.
pub fn play(data: &[u8]) -> Played {
    single_threaded();
    let mut input = Unstructured::new(data);
    let Ok((faults, start)) = <(Faults, Start)>::arbitrary(&mut input) else {
        return Played::default();
    };
    let mut world = World::new(faults, &start);
    for _ in 0..ROUNDS {
        let Some(round) = (!input.is_empty())
            .then(|| Round::arbitrary(&mut input).ok())
            .flatten()
        else {
            break;
        };
        if let Some(publish) = round.publish {
            world.publish(&publish);
        }
        world.follow(&round.then);
        world.check(None);
    }
    world.prove();
    let faults = world
        .control
        .injected()
        .iter()
        .map(|(fault, &count)| (format!("{fault:?}"), count))
        .collect();
    Played {
        versions: world.versions.len(),
        switches: world.switches,
        faults,
    }
}

/// A chain with one publisher and one subscriber.
struct World {
    folder: TempDir,
    /// The store without faults.
    clean: Store,
    /// The same objects, with faults.
    store: Store,
    control: Arc<Control>,
    /// Hours by which the store's clock has been moved forward.
    hours: i64,
    /// State of the newest training step.
    state: MemoryState,
    versions: Vec<Version>,
    subscriber: Option<Follower<Directory>>,
    switches: usize,
}

/// A version that has been committed.
struct Version {
    state: MemoryState,
    /// Digest of its commit.
    commit: Digest,
    /// True if some prune was allowed to remove the version.
    may_be_gone: bool,
}

impl World {
    fn new(faults: Faults, start: &Start) -> Self {
        let objects = Arc::new(InMemory::new());
        let (failing, control) = FaultyStore::new(objects.clone());
        let options = StoreOptions::default().attempts(2).pause(Duration::ZERO);
        let clean =
            Store::from_objects(objects, "", options.clone()).expect("threads can be started");
        let store = Store::from_objects(failing, "", options).expect("threads can be started");
        let chain = ChainDocument::new(7)
            .to_bytes()
            .expect("it has no metadata");
        assert!(
            clean
                .put_if_absent(ObjectName::Chain, &chain)
                .expect("nothing fails")
        );
        control.plan(move |call| {
            let number =
                usize::try_from(hash(&format!("{call:?}")) % faults.len() as u64).unwrap_or(0);
            // Documents are not flipped: a reader cannot always detect that.
            fault(faults[number])
                .filter(|fault| *fault != Fault::Flip || call.path.contains("files/"))
        });
        let folder = folder();
        let state = start.state();
        let versions = Vec::new();
        let subscriber = None;
        Self {
            folder,
            clean,
            store,
            control,
            hours: 0,
            state,
            versions,
            subscriber,
            switches: 0,
        }
    }

    /// Trains a step and publishes the state, if files can hold it.
    fn publish(
        &mut self,
        Publish {
            step,
            base,
            snapshots,
            skips,
        }: &Publish,
    ) {
        self.state = step.after(&self.state);
        let path = self.folder.path().join("next");
        let _ = std::fs::remove_file(&path);
        let digests = StateDigests::of(&self.state, &()).expect("memory can be read");
        if write(&self.state, &digests, &path).is_err() {
            return;
        }
        let next = SafetensorsState::open(&path).expect("it has just been written");
        let head = self
            .versions
            .last()
            .map(|_| SafetensorsState::open(self.head_path()).expect("it is there"));
        let work = self.folder.path().join("work");
        let base = match (base, &head) {
            (From::Nothing, _) | (From::State, None) => Base::Nothing,
            (From::State, Some(head)) => Base::State(head.into()),
            (From::Chain, _) => Base::Chain,
            (From::Work, _) => Base::Work(&work),
        };
        let options = PublishOptions::default()
            .snapshots(if *snapshots {
                Snapshots::Cost(2.0)
            } else {
                Snapshots::Never
            })
            .skips(if *skips { vec![2] } else { Vec::new() })
            .allow_empty(true);
        let published = Publisher::open(self.store.clone(), options)
            .and_then(|mut publisher| publisher.publish(&next, base, &self.watch()));
        if let Err(error) = &published {
            is_of_the_store(error, &[(true, "R-PUB-08")]);
        }
        self.check(Some((path, digests.state, published)));
    }

    fn follow(&mut self, operation: &Operation) {
        let count = self.versions.len() as u64;
        match *operation {
            Operation::Pull {
                version,
                opens,
                keeps_links,
            } => {
                let version = version.map(|version| u64::from(version) % (count + 1));
                self.pull(version, opens, keeps_links);
            }
            Operation::Compact {
                version,
                from,
                snapshot,
            } => {
                let version = match version {
                    Some(version) if count > 0 => Some(u64::from(version) % count),
                    _ => None,
                };
                let target = version.or(count.checked_sub(1)).unwrap_or(0);
                let from: Vec<u64> = match from {
                    Some(from) if target > 0 => vec![u64::from(from) % target],
                    _ => Vec::new(),
                };
                let options = CompactOptions::new(self.folder.path().join("compact"))
                    .version(version)
                    .snapshot(snapshot || from.is_empty())
                    .from(from);
                if let Err(error) = compact(&self.store, &options, &self.watch()) {
                    let gone = self.versions.iter().any(|version| version.may_be_gone);
                    if gone && error.class() == ErrorClass::Usage {
                        // Without a snapshot, a link to a pruned version is refused.
                        return;
                    }
                    is_of_the_store(
                        &error,
                        &[
                            (count == 0, "R-CHN-03"),
                            (gone, "R-CHN-08"),
                            (true, "R-PUB-08"),
                        ],
                    );
                }
            }
            Operation::Prune { last, days_later } => self.prune((last % 4).into(), days_later),
            Operation::Fsck { deep } => {
                let options =
                    FsckOptions::default().deep(deep.then(|| self.folder.path().join("deep")));
                if let Err(error) = fsck(&self.store, &options, &self.watch()) {
                    is_of_the_store(&error, &[]);
                }
            }
        }
    }

    /// Switches the subscriber to a version, or to the head.
    fn pull(&mut self, version: Option<u64>, opens: bool, keeps_links: bool) {
        if opens {
            // Only one follower of a directory may be open at a time.
            self.subscriber = None;
        }
        let mut subscriber = self.subscriber.take().unwrap_or_else(|| {
            let options =
                FollowerOptions::default().cache_bytes(Some(if keeps_links { 1 << 20 } else { 0 }));
            Follower::in_directory(self.store.clone(), &self.directory(), options)
                .expect("the disk does not fail")
        });
        let before = subscriber.held().map(|held| held.version);
        let prepared = subscriber.prepare(version, &self.watch());
        let wanted = version.or((self.versions.len() as u64).checked_sub(1));
        match prepared.and_then(|prepared| {
            prepared
                .map(|prepared| subscriber.apply(prepared))
                .transpose()
        }) {
            Ok(switched) => {
                let held = subscriber.held().map(|held| held.version);
                assert_eq!(held, wanted, "another version than the wanted one");
                self.switches += usize::from(switched.is_some());
                assert_eq!(
                    switched.map(|switched| switched.version),
                    if held == before { None } else { held }
                );
            }
            Err(error) => {
                let is_there =
                    wanted.and_then(|wanted| self.versions.get(usize::try_from(wanted).ok()?));
                let gone = is_there.is_some_and(|version| version.may_be_gone);
                is_of_the_store(
                    &error,
                    &[(is_there.is_none(), "R-CHN-03"), (gone, "R-CHN-08")],
                );
                assert_eq!(
                    subscriber.held().map(|held| held.version),
                    before,
                    "the update failed, but the version has changed"
                );
            }
        }
        self.subscriber = Some(subscriber);
    }

    /// Prunes the chain; the head and this many of the newest versions must stay.
    fn prune(&mut self, last: u64, days_later: bool) {
        if days_later {
            self.hours += 48;
            self.control.set_clock(self.hours);
        }
        let keep = Keep {
            last,
            ..Keep::default()
        };
        let pruned = plan_prune(&self.store, &keep)
            .and_then(|plan| prune(&self.store, &plan, &self.watch()));
        if let Err(error) = pruned {
            // A failed publish leaves files without a commit, and a fault may have hidden objects
            // from a listing.
            is_of_the_store(&error, &[(true, "R-RET-05")]);
        }
        let kept = usize::try_from(last.max(1)).unwrap_or(usize::MAX);
        let others = self.versions.len().saturating_sub(kept);
        self.versions[..others]
            .iter_mut()
            .for_each(|version| version.may_be_gone = true);
    }

    /// Checks that the old commits are unchanged, with at most a new one that has just been
    /// published, and that the subscriber's directory has the version that the subscriber reports.
    fn check(&mut self, published: Option<(PathBuf, Digest, Result<PublishReport>)>) {
        let objects = self.clean.objects().expect("nothing fails");
        let names = objects
            .iter()
            .map(|object| object.name)
            .filter(|name| matches!(name, ObjectName::Commit(_)));
        let mut commits = names.map(|name| {
            self.clean
                .get(name)
                .expect("nothing fails")
                .expect("it was listed")
        });
        for version in &self.versions {
            let commit = commits.next().map(|commit| Digest::of_bytes(&commit));
            assert_eq!(
                commit,
                Some(version.commit),
                "a commit is missing or has changed"
            );
        }
        let new = commits.next();
        assert!(commits.next().is_none(), "two commits at once");
        match (new, published) {
            (Some(new), Some((path, state, result))) => {
                let commit = Digest::of_bytes(&new);
                let number = self.versions.len() as u64;
                let document =
                    Commit::parse(&new, &Limits::default()).expect("a commit that was written");
                assert_eq!((document.version, document.state), (number, state));
                if let Ok(published) = result {
                    assert_eq!((published.version, published.commit), (number, commit));
                }
                self.versions.push(Version {
                    state: self.state.clone(),
                    commit,
                    may_be_gone: false,
                });
                std::fs::rename(path, self.head_path()).expect("files can be renamed");
            }
            (Some(_), None) => panic!("a commit that was never published"),
            (None, Some((.., Ok(_)))) => {
                panic!("a version was reported as published, but does not exist")
            }
            // R-PUB-08 would say that the version is visible, but it is not.
            (None, Some((.., Err(error)))) => assert_ne!(error.rule(), Some("R-PUB-08")),
            (None, None) => {}
        }
        if let Some(subscriber) = &self.subscriber {
            let held = subscriber.held().map(|held| {
                let version = usize::try_from(held.version)
                    .ok()
                    .and_then(|number| self.versions.get(number));
                let version = version.expect("a version that was committed");
                assert_eq!(held.commit, version.commit);
                &version.state
            });
            assert!(
                shown(&self.directory()).as_ref() == held,
                "the directory does not have the held version"
            );
        }
    }

    /// Ends the faults, and checks that the subscriber reaches the head and that every version that
    /// prune had to keep can be built.
    fn prove(&mut self) {
        self.control.heal();
        if !self.versions.is_empty() {
            self.pull(None, false, true);
            self.check(None);
            let held = self
                .subscriber
                .as_ref()
                .and_then(Follower::held)
                .map(|held| held.version);
            assert_eq!(
                held,
                Some(self.versions.len() as u64 - 1),
                "the head cannot be reached"
            );
        }
        for (number, version) in (0..).zip(&self.versions) {
            match rebuild(&self.clean, Some(number)) {
                Ok(state) => assert!(state == version.state, "version {number} has another state"),
                Err(error) => {
                    assert!(
                        version.may_be_gone && error.rule() == Some("R-CHN-08"),
                        "version {number}: {error:?}"
                    );
                }
            }
        }
        let options = FsckOptions::default().deep(Some(self.folder.path().join("deep")));
        let report = fsck(&self.clean, &options, &self.watch()).expect("nothing fails");
        assert!(
            report.problems.is_empty() && report.versions == self.versions.len(),
            "{report:?}"
        );
    }

    fn watch(&self) -> Watch<'_> {
        let directory = self.directory();
        Watch {
            had: directory.join("current").exists(),
            directory,
            versions: &self.versions,
        }
    }

    /// Returns the subscriber's directory.
    fn directory(&self) -> PathBuf {
        self.folder.path().join("follower")
    }

    /// Returns the path of the file that the head was published from.
    fn head_path(&self) -> PathBuf {
        self.folder.path().join("head")
    }
}

/// Checks the subscriber's directory at every report of progress.
struct Watch<'a> {
    directory: PathBuf,
    /// True if the directory had a version at the beginning.
    had: bool,
    versions: &'a [Version],
}

impl Watch<'_> {
    fn look(&self) {
        let is_whole = match shown(&self.directory) {
            Some(state) => self.versions.iter().any(|version| version.state == state),
            None => !self.had,
        };
        assert!(is_whole, "the directory does not have a version");
    }
}

impl Observer for Watch<'_> {
    fn begin(&self, _phase: Phase, _bytes: u64) {
        self.look();
    }

    fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
        self.look();
        Ok(())
    }

    fn end(&self, _phase: Phase) {
        self.look();
    }

    fn remark(&self, _text: &str) {
        self.look();
    }
}

/// Most bytes are no faults, so that some operations succeed.
fn fault(byte: u8) -> Option<Fault> {
    match byte % 32 {
        1 => Some(Fault::FailBefore),
        2 => Some(Fault::FailAfter),
        3 => Some(Fault::Conflict),
        4 => Some(Fault::Truncate),
        5 => Some(Fault::NoBody),
        6 => Some(Fault::Flip),
        _ => None,
    }
}

/// Checks that the store caused the failure (a request failed, or a file was damaged), or that the
/// error names a rule that may be broken here.
fn is_of_the_store(error: &Error, rules: &[(bool, &str)]) {
    let rule = error.rule().unwrap_or_default();
    let known =
        error.class() == ErrorClass::Io || rule == "R-CHN-10" || rules.contains(&(true, rule));
    assert!(known, "{error:?}");
}
