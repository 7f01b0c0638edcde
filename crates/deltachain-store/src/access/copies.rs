//! Stores from which a follower gets the files of a chain: nearby copies, and the chain's own
//! store. Copies are not trusted: a failure caused by their bytes is never blamed on the chain.
//!
//! A piece of work calls [`begin`](FileStores::begin), and tries. If that fails and
//! [`accuse`](FileStores::accuse) returns true, it tries again, without the files that are in
//! doubt. When it has succeeded or failed for good, it calls [`judge`](FileStores::judge), then
//! [`tell`](FileStores::tell).

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

/// Pause of a copy after a failure. It is twice as long after each further failure.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause of a copy, and the pause after wrong bytes.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stores from which a follower gets files. Clones share their state, so they do one piece of
/// work at a time.
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

/// Files and copies under suspicion during one piece of work.
#[derive(Debug, Default)]
struct Doubts {
    /// Files with bytes from copies that have not been proven by a digest, and from which copies.
    unproven: BTreeMap<ObjectName, BTreeSet<usize>>,
    /// Files among these that were read as a whole and are wrong.
    wrong: BTreeSet<ObjectName>,
    /// Files that only the chain's own store is asked for.
    refused: BTreeSet<ObjectName>,
    suspicions: Vec<Suspicion>,
}

/// A failure that at least one of these copies has caused, if the work succeeds without them.
#[derive(Debug)]
struct Suspicion {
    copies: BTreeSet<usize>,
    /// One of their files.
    file: ObjectName,
}

impl Doubts {
    /// Takes out the unproven files that may have caused a failure: this file, or the files that
    /// are known to be wrong, or all.
    fn take_suspects(&mut self, file: Option<ObjectName>) -> BTreeMap<ObjectName, BTreeSet<usize>> {
        let mut known = std::mem::take(&mut self.wrong);
        known.extend(file);
        if known.is_empty() {
            return std::mem::take(&mut self.unproven);
        }
        self.unproven
            .extract_if(.., |name, _| known.contains(name))
            .collect()
    }
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
    /// The copies of a store, and the store itself, with new counters.
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

    /// Begins a piece of work.
    pub(crate) fn begin(&self) {
        *lock(&self.doubts) = Doubts::default();
    }

    /// Notes a failure of work with this file, or with any if `None`. Returns true if a copy may be
    /// to blame. Then the same work is worth a second try, in which the files in doubt come from
    /// the chain's own store.
    pub(crate) fn accuse(&self, file: Option<ObjectName>) -> bool {
        let mut doubts = lock(&self.doubts);
        let is_known = file.is_some() || !doubts.wrong.is_empty();
        let suspects = doubts.take_suspects(file);
        for (name, copies) in &suspects {
            doubts.refused.insert(*name);
            for number in copies {
                self.copies[*number].pause_for_long();
            }
        }
        if is_known {
            for (file, copies) in &suspects {
                doubts.suspicions.push(Suspicion {
                    copies: copies.clone(),
                    file: *file,
                });
            }
        } else if let Some(&file) = suspects.keys().next() {
            let copies = suspects.values().flatten().copied().collect();
            doubts.suspicions.push(Suspicion { copies, file });
        }
        !suspects.is_empty()
    }

    /// Ends a piece of work. If it has succeeded, a copy that is suspected alone is damaged. If it
    /// has failed also without the files of copies, nothing is known of them.
    pub(crate) fn judge(&self, has_succeeded: bool) {
        let mut doubts = lock(&self.doubts);
        doubts.unproven.clear();
        doubts.wrong.clear();
        let suspicions = std::mem::take(&mut doubts.suspicions);
        if !has_succeeded {
            return;
        }
        for Suspicion { copies, file } in suspicions {
            let suspects: Vec<&ChainCopy> =
                copies.iter().map(|&number| &self.copies[number]).collect();
            match suspects[..] {
                [copy] => copy.note_damage(file),
                [first, ..] => {
                    let names: Vec<String> =
                        suspects.iter().map(|copy| copy.store.to_string()).collect();
                    first.state().untold = Some(format!(
                        "one of the copies {} is damaged: {file} is not the chain's file; it came \
                         from elsewhere",
                        names.join(", ")
                    ));
                }
                [] => {}
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

    fn note_success(&self, began: Instant) {
        let mut state = self.state();
        // A request from before the last failure says nothing about the time since.
        if state.last_failure.is_none_or(|failed| failed < began) {
            state.failures = 0;
            state.paused_until = None;
        }
    }

    /// A request that began then has failed.
    fn note_failure(&self, began: Instant, error: &Error) {
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

    fn note_damage(&self, name: ObjectName) {
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
        let name = self.file.name();
        let read = read_whole(self, self.file, part_bytes, take).await;
        let mut doubts = lock(&self.stores.doubts);
        match &read {
            Ok(()) => drop(doubts.unproven.remove(&name)),
            Err(error) if error.rule().is_some() => drop(doubts.wrong.insert(name)),
            Err(_) => {}
        }
        read
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
                    copy.note_success(began);
                    doubts.unproven.entry(name).or_default().insert(number);
                    return Ok(Some(bytes));
                }
                copy.pause_for_long();
                doubts.suspicions.push(Suspicion {
                    copies: [number].into(),
                    file: name,
                });
            }
            Ok(None) => {
                if lock(&self.missing_from).insert(number) {
                    copy.state().missing += 1;
                }
            }
            Err(error) if self.stores.url.stop.is_stopped() => return Err(error),
            Err(error) => copy.note_failure(began, &error),
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

    /// Remarks that an observer heard.
    #[derive(Default)]
    struct Remarks(Mutex<Vec<String>>);

    impl Observer for Remarks {
        fn remark(&self, text: &str) {
            lock(&self.0).push(text.to_owned());
        }
    }

    /// The first of two copies has a wrong file, the second one a right one.
    fn good_beside_bad() -> (FileStores, [FileReference; 2]) {
        let contents = [vec![1; 100], vec![2; 100]];
        let files = contents.each_ref().map(|content| FileReference {
            digest: Digest::of_bytes(content),
            size: 100,
        });
        let open = |objects: &[(FileReference, &[u8])]| {
            let options = StoreOptions::default();
            let store = Store::from_objects(Arc::new(InMemory::new()), "", options).unwrap();
            for (file, content) in objects {
                assert!(store.put_if_absent(file.name(), content).unwrap());
            }
            store
        };
        let url = open(&[(files[0], &contents[0]), (files[1], &contents[1])]);
        let copies = vec![
            open(&[(files[0], &CONTENT)]),
            open(&[(files[1], &contents[1])]),
        ];
        (FileStores::of(url.with_copies(copies)), files)
    }

    fn are_damaged(stores: &FileStores) -> Vec<bool> {
        let uses = stores.uses();
        uses[1..].iter().map(|used| used.damage.is_some()).collect()
    }

    #[test]
    fn a_good_copy_is_not_blamed_for_a_wrong_file_of_another() {
        let (stores, [wrong, right]) = good_beside_bad();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        stores.begin();
        let read = async |file: FileReference| {
            let request = stores.file(ChainFile::Link(file));
            request.read_whole(1 << 20, |_| Ok(())).await
        };
        runtime.block_on(async {
            let request = stores.file(ChainFile::Link(right));
            request.get_range(right.name(), 0, 10).await.unwrap();
            read(wrong).await.unwrap_err();
            assert!(stores.accuse(None));
            read(wrong).await.unwrap();
        });
        stores.judge(true);
        assert_eq!(are_damaged(&stores), [true, false]);
    }

    #[test]
    fn of_two_copies_in_doubt_neither_is_called_damaged() {
        let (stores, files) = good_beside_bad();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        stores.begin();
        runtime.block_on(async {
            for file in files {
                let request = stores.file(ChainFile::Link(file));
                request.get_range(file.name(), 0, 10).await.unwrap();
            }
        });
        assert!(stores.accuse(None));
        stores.judge(true);
        assert_eq!(are_damaged(&stores), [false, false]);
        let remarks = Remarks::default();
        stores.tell(&remarks);
        let remarks = lock(&remarks.0).concat();
        assert!(remarks.contains("one of the copies"), "{remarks}");
    }
}
