//! Publishing from memory: models without files, and a base that is the last published state.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use deltachain::chain::{Commit, ObjectName};
use deltachain::files::{Layout, SafetensorsState, StagedSafetensors};
use deltachain::format::Index;
use deltachain::tensor::{
    Digest, Dtype, MemoryState, State, StateDigests, StateWriter, TensorInfo,
};
use deltachain::{Error, ErrorClass, Limits, LinkReader, Result};
use deltachain_store::{
    Base, Model, Observer, Phase, PublishOptions, PublishReport, Publisher, RawObjects, Snapshots,
    Store, init,
};
use object_store::memory::InMemory;

use crate::support::faulty::{Control, Fault, FaultyStore, Operation};
use crate::support::models::Models;
use crate::support::quick;
use crate::support::verify::{prove, rebuild};

fn new_chain() -> (Store, Arc<Control>) {
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    init(&store).unwrap();
    (store, control)
}

fn options() -> PublishOptions {
    PublishOptions::default()
        .snapshots(Snapshots::Every(3))
        .skips(vec![4])
}

fn publisher(store: &Store) -> Publisher {
    Publisher::open(store.clone(), options()).unwrap()
}

fn last(state: Option<&MemoryState>) -> Base<'_> {
    state.map_or(Base::Chain, |state| Base::Last(state.into()))
}

fn commit_of(store: &Store, version: u64) -> Commit {
    let bytes = store.get(ObjectName::Commit(version)).unwrap().unwrap();
    Commit::parse(&bytes, &Limits::default()).unwrap()
}

/// Counts downloaded bytes.
#[derive(Default)]
struct Downloads(AtomicU64);

impl Observer for Downloads {
    fn begin(&self, _phase: Phase, _bytes: u64) {}

    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        if phase == Phase::Download {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, text: &str) {
        // A rival has published another model.
        assert!(
            text.starts_with("the model and the newest version have no tensor name"),
            "{text}"
        );
    }
}

/// Publishes from memory with the last published state as the base. True if nothing was downloaded.
fn publish(
    publisher: &mut Publisher,
    before: Option<&MemoryState>,
    state: &MemoryState,
) -> Result<(PublishReport, bool)> {
    let downloads = Downloads::default();
    let published = publisher.publish(state, last(before), &downloads)?;
    Ok((published, downloads.0.into_inner() == 0))
}

fn save(state: &MemoryState, path: &Path) -> SafetensorsState {
    let staged = StagedSafetensors::create(
        path,
        state.tensors(),
        &Layout::single_file(state.tensors()),
        None,
        false,
    )
    .unwrap();
    for (number, (_, data)) in state.iter().enumerate() {
        staged.write(number, 0, data).unwrap();
    }
    staged.commit().unwrap();
    SafetensorsState::open(path).unwrap()
}

/// Links of a version: the version that each starts from, its base and target, and its index
/// without the nonce.
fn links(store: &Store, version: u64) -> Vec<(Option<u64>, [Digest; 2], Index)> {
    let links = commit_of(store, version).routes.into_iter().map(|route| {
        let file = store.get(route.files[0].name()).unwrap().unwrap();
        let link = LinkReader::open(file, &Limits::default()).unwrap();
        let mut index = link.index().clone();
        index.metadata.remove("deltachain.nonce").unwrap();
        (
            route.from,
            [link.header().base, link.header().target],
            index,
        )
    });
    links.collect()
}

#[test]
fn memory_and_files_give_the_same_links() {
    let place = tempfile::tempdir().unwrap();
    let mut models = Models::new(1, 20);
    let chains = [new_chain().0, new_chain().0, new_chain().0];
    let [mut from_files, mut from_memory, mut from_last] =
        [0, 1, 2].map(|chain| publisher(&chains[chain]));
    let mut before: Option<(SafetensorsState, MemoryState)> = None;
    for version in 0..9 {
        let state = models.state(version).clone();
        let files = save(&state, &place.path().join(version.to_string()));
        let base = before
            .as_ref()
            .map_or(Base::Nothing, |(files, _)| Base::State(files.into()));
        let expected = from_files.publish(&files, base, &()).unwrap();

        let base = before
            .as_ref()
            .map_or(Base::Nothing, |(_, state)| Base::State(state.into()));
        let mut published = vec![from_memory.publish(&state, base, &()).unwrap()];
        published.push(
            from_last
                .publish(&state, last(before.as_ref().map(|(_, state)| state)), &())
                .unwrap(),
        );
        for (store, published) in chains[1..].iter().zip(&published) {
            assert_eq!(published.state, expected.state);
            assert_eq!(
                links(store, version),
                links(&chains[0], version),
                "version {version}"
            );
            assert_eq!(
                (published.changed, published.elements),
                (expected.changed, expected.elements)
            );
        }
        assert_eq!(expected.state, StateDigests::of(&state, &()).unwrap().state);
        before = Some((files, state));
    }
    assert_eq!(prove(&chains[2]).len(), 9);
}

#[test]
fn files_that_were_published_last_are_a_base_with_their_layout() {
    let place = tempfile::tempdir().unwrap();
    let mut models = Models::new(2, 4);
    let (store, _) = new_chain();
    let (other, _) = new_chain();
    let mut from_last = publisher(&store);
    let mut plain = publisher(&other);
    // From version 6 on there are two files.
    let states: Vec<SafetensorsState> = (4..9)
        .map(|version| models.save(version, place.path()))
        .collect();
    let mut base = Base::Nothing;
    let mut last = Base::Nothing;
    for (version, state) in (0..).zip(&states) {
        plain.publish(state, base, &()).unwrap();
        from_last.publish(state, last, &()).unwrap();
        (base, last) = (Base::State(state.into()), Base::Last(state.into()));
        assert_eq!(
            links(&store, version),
            links(&other, version),
            "version {version}"
        );
    }
}

/// Faults during a publish.
#[derive(Debug, Clone, Copy)]
enum Accident {
    HeadIsNotRead,
    LinkIsNotStored,
    CommitIsNotStored,
    SuccessIsNotSeen,
    AnotherIsFirst,
}

/// Publishes a version when another publisher starts to upload its links.
struct Rival(Mutex<Option<(Publisher, MemoryState)>>);

impl Observer for Rival {
    fn begin(&self, phase: Phase, _bytes: u64) {
        if phase == Phase::Upload
            && let Some((mut publisher, state)) = self.0.lock().unwrap().take()
        {
            publisher.publish(&state, Base::Nothing, &()).unwrap();
        }
    }

    fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, _text: &str) {}
}

impl Accident {
    /// Publishes this state while the fault happens.
    fn happen(
        self,
        store: &Store,
        control: &Control,
        publisher: &mut Publisher,
        before: Option<&MemoryState>,
        state: &MemoryState,
    ) -> Error {
        let fails =
            |what: fn(Operation) -> Option<Fault>| control.plan(move |call| what(call.operation));
        match self {
            Self::HeadIsNotRead => {
                fails(|operation| (operation == Operation::List).then_some(Fault::FailBefore));
            }
            Self::LinkIsNotStored => {
                fails(|operation| (operation == Operation::Put).then_some(Fault::FailBefore));
            }
            Self::CommitIsNotStored => {
                fails(|operation| (operation == Operation::Create).then_some(Fault::FailBefore));
            }
            Self::SuccessIsNotSeen => {
                fails(|operation| (operation == Operation::Create).then_some(Fault::FailAfter));
            }
            Self::AnotherIsFirst => {}
        }
        let rival = matches!(self, Self::AnotherIsFirst).then(|| {
            let mut rivals = MemoryState::new();
            rivals
                .insert("a rival's", Dtype::U8, &[1], vec![7])
                .unwrap();
            (
                Publisher::open(store.clone(), PublishOptions::default()).unwrap(),
                rivals,
            )
        });
        let error = publisher
            .publish(state, last(before), &Rival(Mutex::new(rival)))
            .unwrap_err();
        control.heal();
        error
    }
}

#[test]
fn after_an_accident_the_next_version_is_right() {
    use Accident::{AnotherIsFirst, CommitIsNotStored, HeadIsNotRead, LinkIsNotStored};
    for accident in [
        HeadIsNotRead,
        LinkIsNotStored,
        CommitIsNotStored,
        AnotherIsFirst,
    ] {
        let (store, control) = new_chain();
        let mut models = Models::new(3, 10);
        let mut publisher = publisher(&store);
        let mut expected: Vec<MemoryState> = Vec::new();
        let mut is_lost = true;
        // Versions with only a link, with a snapshot, and with a link from an older version.
        for version in 0..8 {
            let state = models.state(version).clone();
            let before = version
                .checked_sub(1)
                .map(|before| models.state(before).clone());
            let (published, is_own) = publish(&mut publisher, before.as_ref(), &state).unwrap();
            assert_eq!(published.version, expected.len() as u64);
            let has_skip = published.version.is_multiple_of(4) && published.version > 0;
            assert!(
                is_own || is_lost || has_skip,
                "{accident:?}: the head is downloaded at {version}"
            );
            assert_eq!(
                published.routes.iter().any(|route| route.from.is_some()),
                version > 0
            );
            expected.push(state.clone());

            let mut failing = models.state(version).clone();
            failing
                .insert("fails", Dtype::U8, &[2], vec![1, 2])
                .unwrap();
            failing.remove("norm");
            let error = accident.happen(&store, &control, &mut publisher, Some(&state), &failing);
            is_lost = matches!(accident, AnotherIsFirst);
            if is_lost {
                assert_eq!(error.rule(), Some("R-PUB-03"), "{error}");
                let mut rivals = MemoryState::new();
                rivals
                    .insert("a rival's", Dtype::U8, &[1], vec![7])
                    .unwrap();
                expected.push(rivals);
            } else {
                assert_eq!(error.class(), ErrorClass::Io, "{error}");
            }
        }
        assert_eq!(prove(&store), expected, "{accident:?}");
    }
}

#[test]
fn a_success_that_was_not_seen_is_found() {
    let (store, control) = new_chain();
    let mut models = Models::new(4, 4);
    let mut publisher = publisher(&store);
    let states = [0, 1, 2].map(|version| models.state(version).clone());
    publish(&mut publisher, None, &states[0]).unwrap();
    let error = Accident::SuccessIsNotSeen.happen(
        &store,
        &control,
        &mut publisher,
        Some(&states[0]),
        &states[1],
    );
    assert_eq!(error.class(), ErrorClass::Io, "{error}");
    let (published, is_own) = publish(&mut publisher, Some(&states[0]), &states[2]).unwrap();
    assert_eq!((published.version, is_own), (2, false));
    let expected = states;
    assert_eq!(prove(&store), expected);
}

/// Memory that is written to all the time.
struct Restless {
    state: MemoryState,
    reads: AtomicU64,
}

impl State for Restless {
    fn tensors(&self) -> &[TensorInfo] {
        self.state.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.state.read(tensor, offset, out)?;
        let [low, high, ..] = self.reads.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        if let Some(byte) = out.get_mut(usize::from(low)) {
            *byte = byte.wrapping_add(low | 1).wrapping_add(high);
        }
        Ok(())
    }

    fn bytes(&self, _tensor: usize, _range: std::ops::Range<u64>) -> Option<&[u8]> {
        panic!("the memory is read in place");
    }
}

#[test]
fn of_a_model_that_changes_meanwhile_one_link_is_right_and_several_are_not_made() {
    let mut models = Models::new(5, 10);
    let reads = |version| AtomicU64::new(version * 41);
    let (store, _) = new_chain();
    let mut publisher = Publisher::open(
        store.clone(),
        options().snapshots(Snapshots::Every(2)).skips(Vec::new()),
    )
    .unwrap();
    let restless = |version, models: &mut Models| Restless {
        state: models.state(version).clone(),
        reads: reads(version),
    };
    publisher
        .publish(Model::State(&restless(0, &mut models)), Base::Chain, &())
        .unwrap();
    publisher
        .publish(Model::State(&restless(1, &mut models)), Base::Chain, &())
        .unwrap();
    let error = publisher
        .publish(Model::State(&restless(2, &mut models)), Base::Chain, &())
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage);
    assert_eq!(prove(&store).len(), 2);
}

#[test]
fn bases_are_hashed_unless_they_were_published_last() {
    let (store, _) = new_chain();
    let mut models = Models::new(6, 4);
    let states: Vec<MemoryState> = (0..3)
        .map(|version| models.state(version).clone())
        .collect();
    let options = PublishOptions::default().snapshots(Snapshots::Never);
    let mut first = Publisher::open(store.clone(), options).unwrap();
    first.publish(&states[0], Base::Nothing, &()).unwrap();
    let error = first
        .publish(&states[1], Base::State((&states[1]).into()), &())
        .unwrap_err();
    assert_eq!(error.rule(), Some("R-PUB-01"), "{error}");
    // Another publisher has nothing of its own, and downloads the head from the chain.
    let downloads = Downloads::default();
    publisher(&store)
        .publish(&states[1], Base::Last((&states[2]).into()), &downloads)
        .unwrap();
    assert!(downloads.0.into_inner() > 0);
    // So does the first one, whose version is no longer the head.
    let downloads = Downloads::default();
    first
        .publish(&states[2], Base::Last((&states[0]).into()), &downloads)
        .unwrap();
    assert!(downloads.0.into_inner() > 0);
    assert_eq!(prove(&store), states);
    // A base that was changed after its publish leads to a version that no reader accepts: its link
    // leaves the change out.
    let mut other = states[2].clone();
    let (info, data) = states[1].get("embedding").unwrap();
    other
        .insert("embedding", info.dtype(), info.shape(), data.to_vec())
        .unwrap();
    first
        .publish(&states[1], Base::Last((&other).into()), &())
        .unwrap();
    assert_eq!(
        rebuild(&store, Some(3)).unwrap_err().rule(),
        Some("R-APP-04")
    );
}
