//! Stores from which a follower gets the files of a chain: nearby copies, and the chain's own
//! store. Copies are not trusted: a failure caused by their bytes is never blamed on the chain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deltachain::chain::ObjectName;
use deltachain::{Error, Result};
use tokio::time::Instant;

use crate::access::store::Store;
use crate::access::traffic::FailureNote;
use crate::access::whole::{ChainFile, RangeSource, read_whole};
use crate::observer::Observer;

/// A copy that fails is not asked for this long, and twice as long after each further failure.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// No pause is longer. A copy with wrong bytes is not asked for this long.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stores from which a follower gets files. Clones are one.
#[derive(Debug, Clone)]
pub(crate) struct FileStores {
    /// The chain's own store.
    pub(crate) url: Store,
    copies: Arc<[ChainCopy]>,
    doubts: Arc<Mutex<Doubts>>,
}

/// A store with a copy of the chain.
#[derive(Debug)]
struct ChainCopy {
    store: Store,
    state: Mutex<CopyState>,
}

#[derive(Debug, Default)]
struct CopyState {
    /// Failures since the last success.
    failures: u32,
    last_failure: Option<Instant>,
    /// The copy is not asked before this.
    paused_until: Option<Instant>,
    /// Files that the copy did not have.
    missing: u64,
    /// The last time that its bytes were found to be wrong.
    damage: Option<FailureNote>,
    /// A text for people, which they have not been told yet.
    untold: Option<String>,
    last_told: Option<Instant>,
}

/// Files that are not known to be the chain's.
#[derive(Debug, Default)]
struct Doubts {
    /// Files with bytes from copies that have not been proven by a digest, and from which copies.
    unproven: BTreeMap<ObjectName, BTreeSet<usize>>,
    /// Files that only the chain's own store is asked for.
    refused: BTreeSet<ObjectName>,
    /// Copies that are to blame if the work succeeds without them, each with one of the files.
    accused: BTreeMap<usize, ObjectName>,
}

/// The use that a follower has made of a store.
#[derive(Debug, Clone)]
pub(crate) struct StoreUse {
    pub(crate) name: String,
    pub(crate) is_copy: bool,
    pub(crate) bytes: u64,
    pub(crate) missing: u64,
    pub(crate) failures: u64,
    pub(crate) last_failure: Option<FailureNote>,
    pub(crate) damage: Option<FailureNote>,
}

impl FileStores {
    /// The copies of a store, and the store itself.
    pub(crate) fn of(store: Store) -> Self {
        let url = store.counted();
        let copies = url.copies.iter().map(|copy| {
            let store = copy.as_copy(url.stop.clone());
            let untold = store.missing_directory().map(|_| {
                format!("copy {store}: no such directory; files are downloaded from other stores")
            });
            let state = CopyState {
                untold,
                ..CopyState::default()
            };
            ChainCopy {
                store,
                state: Mutex::new(state),
            }
        });
        Self {
            copies: copies.collect(),
            url,
            doubts: Arc::default(),
        }
    }

    /// A file, to be fetched.
    pub(crate) fn file<'a>(&self, file: ChainFile<'a>) -> FileRequest<'a> {
        FileRequest {
            stores: self.clone(),
            file,
            missing_from: Mutex::default(),
        }
    }

    /// Begins work of which nothing is known yet.
    pub(crate) fn begin(&self) {
        *lock(&self.doubts) = Doubts::default();
    }

    /// After a failure of work with this file, or with any if `None`: true if a copy may be to
    /// blame. Then the same work is worth a second try, in which these files come from the chain's
    /// own store.
    pub(crate) fn accuse(&self, file: Option<ObjectName>) -> bool {
        let mut doubts = lock(&self.doubts);
        let unproven = match file {
            Some(name) => doubts.unproven.remove_entry(&name).into_iter().collect(),
            None => std::mem::take(&mut doubts.unproven),
        };
        for (name, copies) in &unproven {
            doubts.refused.insert(*name);
            for number in copies {
                doubts.accused.entry(*number).or_insert(*name);
                self.copies[*number].pause_for_long();
            }
        }
        !unproven.is_empty()
    }

    /// Ends work that has succeeded, or failed also without the files of copies: only then are
    /// accused copies known to be damaged.
    pub(crate) fn judge(&self, has_succeeded: bool) {
        let mut doubts = lock(&self.doubts);
        doubts.unproven.clear();
        let accused = std::mem::take(&mut doubts.accused);
        if has_succeeded {
            for (number, name) in accused {
                self.copies[number].is_damaged(name);
            }
        }
    }

    /// Tells the observer what has happened to copies.
    pub(crate) fn tell(&self, observer: &dyn Observer) {
        for copy in self.copies.iter() {
            let text = copy.state().untold.take();
            if let Some(text) = text {
                observer.remark(&text);
            }
        }
    }

    /// The use that was made of each store: the chain's own is the first.
    pub(crate) fn uses(&self) -> Vec<StoreUse> {
        let mut uses = vec![use_of(&self.url)];
        for copy in self.copies.iter() {
            let state = copy.state();
            uses.push(StoreUse {
                is_copy: true,
                missing: state.missing,
                damage: state.damage.clone(),
                ..use_of(&copy.store)
            });
        }
        uses
    }
}

fn use_of(store: &Store) -> StoreUse {
    StoreUse {
        name: store.to_string(),
        is_copy: false,
        bytes: store.traffic.bytes(),
        missing: 0,
        failures: store.traffic.failures(),
        last_failure: store.traffic.last_failure(),
        damage: None,
    }
}

impl ChainCopy {
    fn state(&self) -> MutexGuard<'_, CopyState> {
        lock(&self.state)
    }

    fn is_paused(&self) -> bool {
        self.state()
            .paused_until
            .is_some_and(|until| Instant::now() < until)
    }

    fn has_succeeded(&self, began: Instant) {
        let mut state = self.state();
        // A request from before the last failure says nothing about the time since.
        if state.last_failure.is_none_or(|failed| failed < began) {
            state.failures = 0;
            state.paused_until = None;
        }
    }

    /// A request that began then has failed.
    fn has_failed(&self, began: Instant, error: &Error) {
        let mut state = self.state();
        // Requests that were under way together have failed for one reason.
        if state.last_failure.is_some_and(|failed| failed >= began) {
            return;
        }
        let now = Instant::now();
        let pause = SHORTEST_PAUSE
            .saturating_mul(1 << state.failures.min(16))
            .min(LONGEST_PAUSE);
        state.failures += 1;
        state.last_failure = Some(now);
        state.paused_until = state.paused_until.max(Some(now + pause));
        // A copy that keeps failing and recovering is reported only now and then.
        if state
            .last_told
            .is_none_or(|told| told.elapsed() >= LONGEST_PAUSE)
        {
            state.last_told = Some(now);
            let name = &self.store;
            state.untold = Some(format!(
                "copy {name}: {error:#}; until it works, files are downloaded from other stores"
            ));
        }
    }

    fn pause_for_long(&self) {
        let now = Instant::now();
        let mut state = self.state();
        state.last_failure = Some(now);
        state.paused_until = Some(now + LONGEST_PAUSE);
    }

    fn is_damaged(&self, name: ObjectName) {
        let mut state = self.state();
        let text = format!("{name} is not the chain's file");
        if state.damage.is_none() {
            let copy = &self.store;
            state.untold = Some(format!(
                "copy {copy} is damaged: {text}; the file was downloaded from another store"
            ));
        }
        state.damage = Some(FailureNote::now(text));
    }
}

/// A file of the chain that is being fetched: each range of it from the first store that has it.
pub(crate) struct FileRequest<'a> {
    stores: FileStores,
    file: ChainFile<'a>,
    /// The copies that do not have the file.
    missing_from: Mutex<BTreeSet<usize>>,
}

impl FileRequest<'_> {
    /// Fetches all of the file, as [`read_whole`] does.
    ///
    /// # Errors
    /// Same errors as [`read_whole`].
    pub(crate) async fn read_whole(
        &self,
        part_bytes: u64,
        take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        read_whole(self, self.file, part_bytes, take).await?;
        lock(&self.stores.doubts).unproven.remove(&self.file.name());
        Ok(())
    }

    /// True if a copy may be asked for the file.
    fn may_ask(&self, number: usize) -> bool {
        let is_refused = lock(&self.stores.doubts)
            .refused
            .contains(&self.file.name());
        !is_refused
            && !lock(&self.missing_from).contains(&number)
            && !self.stores.copies[number].is_paused()
    }

    /// A range of the file from a copy; `None` if another store has to be asked.
    ///
    /// # Errors
    /// IO if the work is stopped.
    async fn get_from_copy(
        &self,
        number: usize,
        (start, end): (u64, u64),
    ) -> Result<Option<Vec<u8>>> {
        let copy = &self.stores.copies[number];
        let name = self.file.name();
        let size = self.file.size();
        let began = Instant::now();
        match copy.store.get_range(name, start, end).await {
            Ok(Some((bytes, stored))) => {
                let mut doubts = lock(&self.stores.doubts);
                if stored == size {
                    copy.has_succeeded(began);
                    doubts.unproven.entry(name).or_default().insert(number);
                    return Ok(Some(bytes));
                }
                copy.pause_for_long();
                doubts.accused.entry(number).or_insert(name);
            }
            Ok(None) => {
                if lock(&self.missing_from).insert(number) {
                    copy.state().missing += 1;
                }
            }
            Err(error) if self.stores.url.stop.is_stopped() => return Err(error),
            Err(error) => copy.has_failed(began, &error),
        }
        Ok(None)
    }
}

impl RangeSource for FileRequest<'_> {
    fn parallel(&self) -> usize {
        self.stores.url.options.parallel
    }

    async fn get_range(
        &self,
        name: ObjectName,
        start: u64,
        end: u64,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        for number in 0..self.stores.copies.len() {
            if self.may_ask(number)
                && let Some(bytes) = self.get_from_copy(number, (start, end)).await?
            {
                return Ok(Some((bytes, self.file.size())));
            }
        }
        self.stores.url.get_range(name, start, end).await
    }
}

#[cfg(test)]
mod tests {
    use deltachain::chain::FileReference;
    use deltachain::tensor::Digest;
    use deltachain_testkit::faulty::{Control, Fault, FaultyStore, Operation};
    use object_store::memory::InMemory;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::access::options::StoreOptions;

    const CONTENT: [u8; 100] = [7; 100];
    const TICK: Duration = Duration::from_secs(1);

    /// A chain's store and a copy, both with one file.
    struct Stores {
        files: FileStores,
        control: Arc<Control>,
        reference: FileReference,
        /// Its clock goes on only when nothing else is left to do.
        runtime: Runtime,
    }

    impl Stores {
        fn new(in_copy: &[u8]) -> Self {
            let reference = FileReference {
                digest: Digest::of_bytes(&CONTENT),
                size: CONTENT.len() as u64,
            };
            let open = |content: &[u8]| {
                let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
                let store = Store::from_objects(objects, "", StoreOptions::default()).unwrap();
                assert!(store.put_if_absent(reference.name(), content).unwrap());
                (store, control)
            };
            let (url, _) = open(&CONTENT);
            let (copy, control) = open(in_copy);
            let runtime = Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap();
            Self {
                files: FileStores::of(url.with_copies(vec![copy])),
                control,
                reference,
                runtime,
            }
        }

        /// Fetches the file: how long it took, and whether the copy was asked.
        fn fetch(&self) -> (Duration, bool) {
            let path = self.reference.name().to_string();
            let asked = || self.control.calls(Operation::Get, &path);
            let before = asked();
            let time = self.runtime.block_on(async {
                let began = Instant::now();
                let request = self.files.file(ChainFile::Link(self.reference));
                let mut content = Vec::new();
                let take = |bytes: &[u8]| {
                    content.extend_from_slice(bytes);
                    Ok(())
                };
                request.read_whole(1 << 20, take).await.unwrap();
                assert_eq!(content, CONTENT);
                began.elapsed()
            });
            (time, asked() > before)
        }

        fn pass(&self, time: Duration) {
            self.runtime
                .block_on(async { tokio::time::sleep(time).await });
        }

        fn of_copy(&self) -> StoreUse {
            self.files.uses().remove(1)
        }
    }

    #[test]
    fn a_copy_that_hangs_is_asked_less_and_less() {
        let stores = Stores::new(&CONTENT);
        assert_eq!(stores.fetch(), (Duration::ZERO, true));
        stores.control.plan(|_| Some(Fault::SilentBefore));
        let mut pauses = Vec::new();
        for failures in 1..=11 {
            let (time, was_asked) = stores.fetch();
            assert!(was_asked);
            assert!(time.abs_diff(Duration::from_secs(10)) < TICK, "{time:?}");
            assert_eq!(stores.of_copy().failures, failures);
            let mut pause = 0;
            while stores
                .runtime
                .block_on(async { stores.files.copies[0].is_paused() })
            {
                assert_eq!(stores.fetch(), (Duration::ZERO, false));
                stores.pass(TICK);
                pause += 1;
            }
            pauses.push(pause);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        // One success, and it is as before.
        stores.control.heal();
        assert_eq!(stores.fetch(), (Duration::ZERO, true));
        stores.control.plan(|_| Some(Fault::FailBefore));
        assert_eq!(stores.fetch(), (Duration::ZERO, true));
        stores.pass(TICK);
        assert_eq!(stores.fetch(), (Duration::ZERO, true));
        // The observer hears of a copy every five minutes at most.
        assert!(stores.files.copies[0].state().untold.is_some());
    }

    #[test]
    fn a_copy_with_wrong_files_is_left_alone_for_long() {
        let stores = Stores::new(&CONTENT[1..]);
        assert_eq!(stores.fetch(), (Duration::ZERO, true));
        // That the chain's file is another one is known when the work has succeeded.
        assert!(stores.of_copy().damage.is_none());
        stores.files.judge(true);
        assert!(stores.of_copy().damage.is_some());
        stores.pass(LONGEST_PAUSE.saturating_sub(TICK));
        assert_eq!(stores.fetch(), (Duration::ZERO, false));
        stores.pass(TICK);
        assert_eq!(stores.fetch(), (Duration::ZERO, true));
    }

    #[test]
    fn a_file_that_is_not_there_is_no_failure() {
        let stores = Stores::new(&CONTENT);
        let copy = &stores.files.copies[0].store;
        copy.delete(&[stores.reference.name()]).unwrap();
        for missing in 1..4 {
            assert_eq!(stores.fetch(), (Duration::ZERO, true));
            let used = stores.of_copy();
            assert_eq!((used.failures, used.missing), (0, missing));
        }
        assert!(stores.files.copies[0].state().untold.is_none());
    }
}
