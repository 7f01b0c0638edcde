//! Memory that several processes hold together. Each process is a thread with its share.

use deltachain::tensor::find;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use deltachain::memory::{Elements, Peers, Places, Region};
use deltachain::sums::Sums;
use deltachain_store::{InPlace, PreparedVersion};

use super::*;
use crate::in_place::elsewhere::{GAP, lanes};

/// Time that a process waits for another one. Reaching it is a fault.
const LOST: Duration = Duration::from_mins(1);

/// Message to the other processes.
#[derive(Debug, Clone)]
enum Word {
    Sums(Vec<[Sums; 2]>, Option<(ErrorClass, String)>),
    Vote(Option<(ErrorClass, String)>),
    Agreement(Digest),
    /// The sender is no longer reachable.
    Gone,
}

/// Channels between a process and the others.
struct Seat {
    rank: usize,
    to: Vec<Sender<Word>>,
    from: Vec<Mutex<Receiver<Word>>>,
    /// Number of votes until this process loses the others. If it `breaks`, they lose it, too.
    votes: AtomicUsize,
    breaks: bool,
}

fn lost() -> Error {
    Error::io(
        "asking the other processes",
        std::io::ErrorKind::ConnectionReset.into(),
    )
}

fn said(error: Option<&Error>) -> Option<(ErrorClass, String)> {
    error.map(|error| (error.class(), error.message().to_owned()))
}

impl Seat {
    fn all(count: usize) -> Vec<Self> {
        let mut seats: Vec<Self> = (0..count)
            .map(|rank| Self {
                rank,
                to: vec![],
                from: vec![],
                votes: AtomicUsize::new(usize::MAX),
                breaks: false,
            })
            .collect();
        for from in 0..count {
            for to in 0..count {
                let (sender, receiver) = channel();
                seats[from].to.push(sender);
                seats[to].from.push(Mutex::new(receiver));
            }
        }
        seats
    }

    /// Sends a message to the others, and receives theirs.
    fn exchange(&self, word: &Word) -> Result<Vec<Word>> {
        for (rank, to) in self.to.iter().enumerate() {
            if rank != self.rank {
                to.send(word.clone()).map_err(|_| lost())?;
            }
        }
        let others = self
            .from
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != self.rank);
        others
            .map(|(_, from)| from.lock().unwrap().recv_timeout(LOST).map_err(|_| lost()))
            .collect()
    }

    /// True if all processes have the same digest.
    fn agrees(&self, digest: Digest) -> bool {
        let others = self.exchange(&Word::Agreement(digest)).unwrap();
        others
            .iter()
            .all(|word| matches!(word, Word::Agreement(other) if *other == digest))
    }
}

impl Peers for Seat {
    fn add(&self, sums: &mut [[Sums; 2]], error: Option<&Error>) -> Result<()> {
        let others = self.exchange(&Word::Sums(sums.to_vec(), said(error)))?;
        let mut failed = None;
        for word in others {
            let Word::Sums(other, its_error) = word else {
                panic!("sums were expected: {word:?}")
            };
            if let Some((class, message)) = its_error {
                failed = Some(Error::refused(class, format!("another process: {message}")));
            } else if error.is_none() {
                assert_eq!(other.len(), sums.len());
                other
                    .iter()
                    .zip(&mut *sums)
                    .for_each(|(other, own)| *own = [0, 1].map(|at| own[at].plus(other[at])));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn vote(&self, error: Option<&Error>) -> Result<Option<Error>> {
        let left = self.votes.load(Ordering::SeqCst);
        if left == 0 {
            if self.breaks {
                self.exchange(&Word::Gone)?;
            } else {
                self.exchange(&Word::Vote(said(error)))?;
            }
            return Err(lost());
        }
        self.votes.store(
            left.saturating_sub(usize::from(left < usize::MAX)),
            Ordering::SeqCst,
        );
        let mut failed = None;
        for word in self.exchange(&Word::Vote(said(error)))? {
            match word {
                Word::Vote(None) => {}
                Word::Vote(Some((class, message))) => {
                    failed = Some(Error::refused(class, format!("another process: {message}")));
                }
                Word::Gone => return Err(lost()),
                word => panic!("a vote was expected: {word:?}"),
            }
        }
        Ok(failed)
    }
}

/// One process.
struct Process {
    seat: Seat,
    follower: Follower<InPlace<Elsewhere>>,
    memory: Elsewhere,
}

type Prepared = PreparedVersion<InPlace<Elsewhere>>;

impl Process {
    /// Prepares a version until all processes agree on it.
    fn prepare(&mut self, version: u64) -> Prepared {
        let prepared = self.follower.prepare(Some(version), &()).unwrap().unwrap();
        if self.follower.memory().is_none() {
            self.follower.bind(self.memory.clone());
        }
        if self.seat.agrees(prepared.agreement()) {
            return prepared;
        }
        // One process has to load the whole version, so all do.
        self.follower.doubt(Fallback::Torn);
        let prepared = self.follower.prepare(Some(version), &()).unwrap().unwrap();
        assert!(self.seat.agrees(prepared.agreement()));
        prepared
    }

    fn prove(&mut self, prepared: &mut Prepared) -> Result<()> {
        self.follower.prove(prepared, &self.seat, &())
    }

    fn apply(&mut self, prepared: &mut Prepared) -> Result<SwitchReport<()>> {
        self.follower.apply(prepared, &self.seat, &())
    }

    fn check(&mut self) -> Result<Option<Proof>> {
        self.follower.check(&self.seat, &())
    }

    /// Goes to a version, in a second attempt if the first cannot be proven.
    fn go(&mut self, version: u64) -> SwitchReport<()> {
        let mut prepared = self.prepare(version);
        if self.prove(&mut prepared).is_err() {
            assert!(!self.follower.is_torn());
            prepared = self.prepare(version);
            self.prove(&mut prepared).unwrap();
        }
        self.apply(&mut prepared).unwrap()
    }
}

/// Processes that together hold a version of these states.
struct Group {
    processes: Vec<Process>,
}

/// Regions of a process: the first dimension of "a" and the second of "b" are divided in two, and
/// every process has "c". The first half of "b" is transposed and has gaps in its row. "a" begins
/// in the middle of a row.
fn given(rank: usize, state: &MemoryState) -> (Vec<Region>, Vec<Vec<u8>>) {
    let mut given = Vec::new();
    let lower = rank.is_multiple_of(2);
    let index = if lower { 0..70 } else { 70..150 };
    let shape = vec![index.end - index.start, 200];
    given.push(Region {
        name: "a".into(),
        row: 0,
        first: 5,
        shape,
        strides: None,
        index: vec![index],
    });
    let index = if lower { 0..20 } else { 20..50 };
    let shape = vec![60, index.end - index.start];
    let strides = lower.then(|| vec![2, 130]);
    given.push(Region {
        name: "b".into(),
        row: 1,
        first: 3,
        shape,
        strides,
        index: vec![0..60, index],
    });
    given.push(Region {
        name: "c".into(),
        row: 2,
        first: 0,
        shape: vec![500],
        strides: None,
        index: vec![],
    });
    if rank == 0 {
        given.push(Region {
            name: "d".into(),
            row: 3,
            first: 0,
            shape: vec![0],
            strides: None,
            index: vec![],
        });
    }
    // Each row has more room than its tensor needs.
    let sizes = [(5 + 80 * 200 + 9) * 2, (3 + 130 * 20 + 7) * 4, 500, 0];
    assert_eq!(state.tensors().len(), 4);
    (
        given,
        sizes.into_iter().map(|size| vec![GAP; size]).collect(),
    )
}

impl Group {
    fn new(chain: &Chain, count: usize) -> Self {
        let options = FollowerOptions::default();
        let state = &chain.states[0];
        let own: Vec<(Places, Vec<Vec<u8>>)> = (0..count)
            .map(|rank| {
                let (given, rows) = given(rank, state);
                (Places::new(state.tensors().to_vec(), &given).unwrap(), rows)
            })
            .collect();
        let elements = |places: &Places| -> Vec<Vec<Elements>> {
            let of = |tensor| {
                places
                    .parts(tensor)
                    .iter()
                    .map(|part| part.elements().into())
                    .collect()
            };
            (0..places.tensors().len()).map(of).collect()
        };
        let all: Vec<_> = own.iter().map(|(places, _)| elements(places)).collect();
        let memories = own
            .into_iter()
            .enumerate()
            .map(|(rank, (mut places, rows))| {
                places.divide(rank, &all, |_| true).unwrap();
                Elsewhere::new(places, rows)
            });
        let processes = Seat::all(count)
            .into_iter()
            .zip(memories)
            .map(|(seat, memory)| {
                let follower = Follower::in_place(chain.store.clone(), options.clone()).unwrap();
                Process {
                    seat,
                    follower,
                    memory,
                }
            });
        Self {
            processes: processes.collect(),
        }
    }

    /// Creates a group that holds a version.
    fn at(chain: &Chain, count: usize, version: usize) -> Self {
        let mut group = Self::new(chain, count);
        group.all(|own| assert_eq!(own.go(version as u64).fallback, None));
        group.holds(&chain.states[version]);
        group
    }

    /// Runs `work` in all processes in parallel.
    fn all<T: Send>(&mut self, work: impl Fn(&mut Process) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = self
                .processes
                .iter_mut()
                .map(|own| scope.spawn(move || work(own)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    /// Checks that all processes hold a state, bit for bit, and have written nothing else.
    fn holds(&self, state: &MemoryState) {
        for own in &self.processes {
            assert!(own.memory.holds(state), "{}", own.seat.rank);
        }
    }

    /// Flips a bit in a process's lane that the version changes, or in one that it does not change.
    fn flip(&self, rank: usize, chain: &Chain, version: usize, tensor: usize, changes: bool) {
        let memory = &self.processes[rank].memory;
        let name = memory.places.tensors()[tensor].name();
        let width = memory.places.tensors()[tensor].dtype().lane_bytes();
        let [before, after] =
            [version - 1, version].map(|version| chain.states[version].get(name).unwrap().1);
        let part = &memory.places.parts(tensor)[0];
        let differs = |&(lane, _): &(usize, usize)| {
            (before[lane * width..][..width] != after[lane * width..][..width]) == changes
        };
        let (_, place) = lanes(part).into_iter().find(differs).unwrap();
        memory.flip_at(part.row(), place, width);
    }
}

#[test]
fn processes_follow_a_chain_together() {
    let chain = Chain::of(&ALL[..2], 11);
    for (count, step) in [(2, 1), (3, 2), (4, 5)] {
        let mut group = Group::new(&chain, count);
        for version in (0..11_usize).step_by(step) {
            for switched in group.all(|own| own.go(version as u64)) {
                assert_eq!(
                    (switched.version, switched.fallback),
                    (version as u64, None)
                );
                assert_eq!(
                    switched.from,
                    version.checked_sub(step).map(|from| from as u64)
                );
                let proof = if version == 0 {
                    Proof::Memory
                } else {
                    Proof::ChangedLanes
                };
                assert_eq!(switched.proof, proof);
            }
            group.holds(&chain.states[version]);
            for checked in group.all(Process::check) {
                assert_eq!(checked.unwrap(), Some(Proof::Memory));
            }
        }
        assert!(
            group
                .all(|own| own.follower.prepare(Some(10), &()).unwrap().is_none())
                .iter()
                .all(|held| *held)
        );
        // Back to an older version as a whole, and on from there.
        for (version, fallback) in [(3, Some(Fallback::NoRoute)), (4, None)] {
            let switched = group.all(|own| own.go(version));
            assert!(
                switched
                    .iter()
                    .all(|switched| switched.fallback == fallback)
            );
            group.holds(&chain.states[usize::try_from(version).unwrap()]);
        }
    }
}

#[test]
fn a_wrong_lane_of_one_process_is_found_by_all() {
    let chain = Chain::of(&ALL[..1], 4);
    for (count, rank) in [(2, 0), (2, 1), (4, 3)] {
        // Tensor "a" is divided by rows, "b" by columns, and "c" is in every process.
        for tensor in 0..3 {
            let mut group = Group::at(&chain, count, 2);
            group.flip(rank, &chain, 3, tensor, true);
            let switched = group.all(|own| own.go(3));
            assert!(
                switched
                    .iter()
                    .all(|switched| switched.fallback == Some(Fallback::Proof)),
                "{tensor}"
            );
            group.holds(&chain.states[3]);

            // A check finds a wrong lane that does not change.
            let mut group = Group::at(&chain, count, 2);
            group.flip(rank, &chain, 3, tensor, false);
            let switched = group.all(|own| own.go(3));
            assert!(switched.iter().all(|switched| switched.fallback.is_none()));
            let checked = group.all(Process::check);
            assert_eq!(
                checked[rank].as_ref().unwrap_err().rule(),
                Some("R-SUM-04"),
                "{tensor}"
            );
            assert!(
                checked
                    .iter()
                    .all(|checked| checked.as_ref().unwrap_err().class()
                        == ErrorClass::StateMismatch)
            );
            // That another process does not hold the version says nothing about this one, but all
            // load it again.
            let switched = group.all(|own| {
                own.follower.doubt(Fallback::Torn);
                own.go(3)
            });
            assert!(
                switched
                    .iter()
                    .all(|switched| switched.fallback == Some(Fallback::Torn))
            );
            group.holds(&chain.states[3]);
        }
    }
}

#[test]
fn processes_go_back_together() {
    let chain = Chain::of(&ALL[..1], 4);
    for rank in 0..2 {
        for new_values in 0..2 {
            let mut group = Group::at(&chain, 2, 2);
            group.processes[rank]
                .memory
                .faults
                .new_values
                .store(new_values, Ordering::SeqCst);
            let failed = group.all(|own| {
                let mut prepared = own.prepare(3);
                own.prove(&mut prepared).unwrap();
                let error = own.apply(&mut prepared).unwrap_err();
                assert_eq!(
                    (own.follower.held().unwrap().version, own.follower.is_torn()),
                    (2, false)
                );
                error.class()
            });
            assert_eq!(failed, [ErrorClass::Io; 2]);
            group.holds(&chain.states[2]);
            // The old version is still usable.
            group.processes[rank]
                .memory
                .faults
                .new_values
                .store(usize::MAX, Ordering::SeqCst);
            assert!(
                group
                    .all(|own| own.go(3))
                    .iter()
                    .all(|switched| switched.fallback.is_none())
            );
            group.holds(&chain.states[3]);
        }
        // If the undo fails in one process, all are torn.
        let mut group = Group::at(&chain, 2, 2);
        group.processes[rank]
            .memory
            .faults
            .writes
            .store(1, Ordering::SeqCst);
        group.all(|own| {
            let mut prepared = own.prepare(3);
            own.prove(&mut prepared).unwrap();
            assert_eq!(
                own.apply(&mut prepared).unwrap_err().class(),
                ErrorClass::Io
            );
            assert_eq!((own.follower.held(), own.follower.is_torn()), (None, true));
            own.memory.faults.writes.store(usize::MAX, Ordering::SeqCst);
            assert_eq!(own.go(3).fallback, Some(Fallback::Torn));
        });
        group.holds(&chain.states[3]);
        // An outside writer changes the memory of one process.
        let mut group = Group::at(&chain, 2, 2);
        let mut prepared = group.all(|own| {
            let mut prepared = own.prepare(3);
            own.prove(&mut prepared).unwrap();
            Some(prepared)
        });
        group.flip(rank, &chain, 3, 0, true);
        let prepared = prepared
            .iter_mut()
            .map(|own| Mutex::new(own.take().unwrap()))
            .collect::<Vec<_>>();
        group.all(|own| {
            let error = own
                .apply(&mut prepared[own.seat.rank].lock().unwrap())
                .unwrap_err();
            assert_eq!(error.class(), ErrorClass::WrongBase);
            assert_eq!((own.follower.held(), own.follower.is_torn()), (None, false));
        });
        group.flip(rank, &chain, 3, 0, true);
        group.holds(&chain.states[2]);
        assert!(
            group
                .all(|own| own.go(3))
                .iter()
                .all(|switched| switched.fallback == Some(Fallback::Proof))
        );
        group.holds(&chain.states[3]);
    }
}

#[test]
fn a_vote_that_is_lost_leaves_it_torn() {
    let chain = Chain::of(&ALL[..1], 4);
    for (breaks, of_others) in [(true, true), (false, false)] {
        // In place, and as a whole.
        for to in [3, 1] {
            let mut group = Group::at(&chain, 2, 2);
            group.processes[1].seat.breaks = breaks;
            group.processes[1].seat.votes.store(0, Ordering::SeqCst);
            let results = group.all(|own| {
                let mut prepared = own.prepare(to);
                own.prove(&mut prepared).unwrap();
                let failed = own.seat.rank == 1 || of_others;
                if failed {
                    assert_eq!(
                        own.apply(&mut prepared).unwrap_err().class(),
                        ErrorClass::Io
                    );
                    // The prepared version is no longer proven.
                    if to == 3 {
                        assert!(own.follower.begin(&prepared).is_err());
                    }
                    assert_eq!((own.follower.held(), own.follower.is_torn()), (None, true));
                } else if to == 3 {
                    // This process has received the votes that all have written.
                    assert_eq!(own.apply(&mut prepared).unwrap().version, 3);
                    own.follower.doubt(Fallback::Torn);
                } else {
                    // Here, too, but a whole load would now compare everything with the other
                    // process, so this one only votes.
                    own.seat.vote(None).unwrap();
                    own.follower.doubt(Fallback::Torn);
                }
                failed
            });
            assert_eq!(results, [of_others, true]);
            group.processes[1]
                .seat
                .votes
                .store(usize::MAX, Ordering::SeqCst);
            let switched = group.all(|own| own.go(to));
            assert!(
                switched
                    .iter()
                    .all(|switched| switched.fallback == Some(Fallback::Torn))
            );
            group.holds(&chain.states[usize::try_from(to).unwrap()]);
        }
    }
}

#[test]
fn an_error_of_one_process_is_that_of_all() {
    let chain = Chain::of(&ALL[..1], 4);
    for rank in 0..2 {
        // One process cannot read its memory.
        let mut group = Group::at(&chain, 2, 2);
        group.processes[rank]
            .memory
            .faults
            .reads
            .store(0, Ordering::SeqCst);
        let failed = group.all(|own| {
            let mut prepared = own.prepare(3);
            let error = own.prove(&mut prepared).unwrap_err();
            let checked = own.check().unwrap_err();
            assert_eq!(
                (own.follower.held().unwrap().version, own.follower.is_torn()),
                (2, false)
            );
            (error.class(), checked.class())
        });
        assert_eq!(failed, [(ErrorClass::Io, ErrorClass::Io); 2]);
        group.processes[rank]
            .memory
            .faults
            .reads
            .store(usize::MAX, Ordering::SeqCst);
        assert!(
            group
                .all(|own| own.go(3))
                .iter()
                .all(|switched| switched.fallback.is_none())
        );
        group.holds(&chain.states[3]);

        // One process does not know where its memory is.
        let mut group = Group::at(&chain, 2, 2);
        group.all(|own| {
            let mut prepared = own.prepare(3);
            if own.seat.rank == rank {
                own.follower.doubt(Fallback::Place);
            }
            assert_eq!(
                own.prove(&mut prepared).unwrap_err().class(),
                ErrorClass::Usage
            );
            assert_eq!(own.check().unwrap_err().class(), ErrorClass::Usage);
        });
        let fallbacks: Vec<_> = group
            .all(|own| own.go(3))
            .into_iter()
            .map(|switched| switched.fallback.unwrap())
            .collect();
        assert_eq!(fallbacks[rank], Fallback::Place);
        group.holds(&chain.states[3]);

        // One process has not proven the version that it applies: nothing is written.
        let mut group = Group::at(&chain, 2, 2);
        group.all(|own| {
            let mut prepared = own.prepare(3);
            own.prove(&mut prepared).unwrap();
            if own.seat.rank == rank {
                prepared = own.follower.prepare(Some(3), &()).unwrap().unwrap();
            }
            assert_eq!(
                own.apply(&mut prepared).unwrap_err().class(),
                ErrorClass::Usage
            );
            assert_eq!(
                (own.follower.held().unwrap().version, own.follower.is_torn()),
                (2, false)
            );
        });
        group.holds(&chain.states[2]);

        // One process cannot load a whole version: all are torn.
        let mut group = Group::at(&chain, 2, 2);
        group.processes[rank]
            .memory
            .faults
            .writes
            .store(1, Ordering::SeqCst);
        group.all(|own| {
            let mut prepared = own.prepare(1);
            own.prove(&mut prepared).unwrap();
            assert_eq!(
                own.apply(&mut prepared).unwrap_err().class(),
                ErrorClass::Io
            );
            assert_eq!((own.follower.held(), own.follower.is_torn()), (None, true));
            own.memory.faults.writes.store(usize::MAX, Ordering::SeqCst);
            assert_eq!(own.go(1).fallback, Some(Fallback::Torn));
        });
        group.holds(&chain.states[1]);
    }
}

#[test]
fn whoever_is_stopped_stops_all() {
    let chain = Chain::of(&ALL[..1], 4);
    for rank in 0..2 {
        // In place, and as a whole.
        for to in [3, 1] {
            let mut stop_at = 1;
            let mut seen = [0; 3];
            loop {
                let mut group = Group::at(&chain, 2, 2);
                let stopped = group.all(|own| {
                    let mut prepared = own.prepare(to);
                    let notes = Notes::stopping_at(if own.seat.rank == rank { stop_at } else { 0 });
                    let proven = own.follower.prove(&mut prepared, &own.seat, &notes);
                    let done =
                        proven.and_then(|()| own.follower.apply(&mut prepared, &own.seat, &notes));
                    let held = own
                        .follower
                        .held()
                        .map(|held| (held.version, held.proof == Proof::ChangedLanes));
                    (done.is_err(), held, own.follower.is_torn())
                });
                assert_eq!(stopped[0], stopped[1]);
                match stopped[0] {
                    (true, Some((2, _)), false) => seen[0] += 1,
                    (true, None, true) => seen[1] += 1,
                    // Everything has been written, but not compared.
                    (true, Some((version, true)), false) if version == to => seen[2] += 1,
                    (is_err, ..) => {
                        assert!(!is_err);
                        break;
                    }
                }
                if stopped[0].1.is_none_or(|(version, _)| version != to) {
                    group.all(|own| own.go(to));
                }
                group.holds(&chain.states[usize::try_from(to).unwrap()]);
                stop_at += 1;
            }
            // An update in place does not stop once it writes.
            assert_eq!(
                seen.map(|times| times > 0),
                if to == 3 {
                    [true, false, false]
                } else {
                    [false, true, true]
                }
            );
        }
    }
}

#[test]
fn a_divided_tensor_that_takes_another_shape_is_refused_before_it_is_written() {
    let mut chain = Chain::of(&ALL[..1], 2);
    let mut turned = next(chain.states.last(), 2);
    let data = turned.get("a").unwrap().1.to_vec();
    turned.insert("a", Dtype::BF16, &[200, 150], data).unwrap();
    chain.publish_state(turned);
    let mut group = Group::at(&chain, 2, 1);
    group.all(|own| {
        let mut prepared = own.prepare(2);
        let error = own.prove(&mut prepared).unwrap_err();
        assert_eq!(
            (error.class(), error.tensor()),
            (ErrorClass::Usage, Some("a"))
        );
        assert_eq!(
            own.apply(&mut prepared).unwrap_err().class(),
            ErrorClass::Usage
        );
        assert_eq!(
            (own.follower.held().unwrap().version, own.follower.is_torn()),
            (1, false)
        );
    });
    group.holds(&chain.states[1]);
}

#[test]
fn whoever_starts_from_something_else_does_not_agree() {
    let mut chain = Chain::of(&ALL[..1], 4);
    chain.publish();
    let mut group = Group::at(&chain, 2, 2);
    // One process is behind, so all load the whole version.
    group.all(|own| {
        if own.seat.rank == 1 {
            own.follower.doubt(Fallback::Torn);
        }
        assert_eq!(own.go(3).fallback, Some(Fallback::Torn));
    });
    group.holds(&chain.states[3]);
    let of = |from: u64, to: u64| {
        let mut follower =
            Follower::in_place(chain.store.clone(), FollowerOptions::default()).unwrap();
        let memory = Elsewhere::of(&scribbled(&chain.states[0]), false);
        follower.bind(memory);
        go(&mut follower, from);
        follower
            .prepare(Some(to), &())
            .unwrap()
            .unwrap()
            .agreement()
    };
    assert_eq!(of(2, 3), of(2, 3));
    let all = [of(2, 3), of(1, 3), of(2, 4), of(3, 4), of(3, 1), of(3, 2)];
    for (at, one) in all.iter().enumerate() {
        assert!(all[at + 1..].iter().all(|other| other != one));
    }
}

#[test]
fn what_another_follower_has_prepared_is_refused() {
    let chain = Chain::of(&ALL[..2], 3);
    let [(one, mut first), (other, mut second)] =
        [(); 2].map(|()| elsewhere(&chain, 0, true, FollowerOptions::default()));
    let mut prepared = first.prepare_proven(Some(1), &()).unwrap().unwrap();
    assert_eq!(
        second
            .apply(&mut prepared, &Alone, &())
            .unwrap_err()
            .class(),
        ErrorClass::Usage
    );
    first.apply(&mut prepared, &Alone, &()).unwrap();
    assert_eq!(
        second
            .apply(&mut prepared, &Alone, &())
            .unwrap_err()
            .class(),
        ErrorClass::Usage
    );
    assert_eq!(
        [one.copy(), other.copy()],
        [chain.states[1].clone(), chain.states[0].clone()]
    );
}

#[test]
fn only_what_is_prepared_now_counts() {
    let chain = Chain::of(&ALL[..2], 5);
    let memory = Elsewhere::of(&scribbled(&chain.states[0]), false);
    let mut follower = Follower::in_place(chain.store.clone(), FollowerOptions::default()).unwrap();
    let mut first = follower.prepare(Some(0), &()).unwrap().unwrap();
    // The required tensors are known before there is any memory.
    assert!(
        first
            .tensors()
            .into_iter()
            .map(|(info, _)| info)
            .eq(chain.states[0].tensors())
    );
    assert!(follower.memory().is_none());
    assert_eq!(
        follower.prove(&mut first, &Alone, &()).unwrap_err().class(),
        ErrorClass::Usage
    );
    follower.bind(memory.clone());
    follower.prove(&mut first, &Alone, &()).unwrap();
    follower.apply(&mut first, &Alone, &()).unwrap();
    let [mut old, mut now, mut second] =
        [1, 1, 2].map(|version| follower.prepare(Some(version), &()).unwrap().unwrap());
    // A prepared version must be proven explicitly, and is not applied before.
    assert_eq!(
        follower.apply(&mut now, &Alone, &()).unwrap_err().class(),
        ErrorClass::Usage
    );
    assert_eq!(
        (follower.held().unwrap().version, follower.is_torn()),
        (0, false)
    );
    assert_eq!(
        now.each_tensor(&mut |_, _| Ok(()), &())
            .unwrap_err()
            .class(),
        ErrorClass::Usage
    );
    for prepared in [&mut old, &mut now, &mut second] {
        follower.prove(prepared, &Alone, &()).unwrap();
        follower.prove(prepared, &Alone, &()).unwrap();
    }
    assert_eq!(
        follower.finish(&now).unwrap_err().class(),
        ErrorClass::Usage
    );
    follower.apply(&mut now, &Alone, &()).unwrap();
    for prepared in [&mut old, &mut second] {
        assert_eq!(
            follower.apply(prepared, &Alone, &()).unwrap_err().class(),
            ErrorClass::Usage
        );
        assert_eq!(
            follower.begin(prepared).unwrap_err().class(),
            ErrorClass::Usage
        );
        assert_eq!(
            follower.prove(prepared, &Alone, &()).unwrap_err().class(),
            ErrorClass::Usage
        );
    }
    assert_eq!(
        (follower.held().unwrap().version, memory.copy()),
        (1, chain.states[1].clone())
    );

    // The caller loads a whole version in its own way.
    follower.doubt(Fallback::Torn);
    assert_eq!((follower.held(), follower.is_torn()), (None, true));
    let whole = follower.prepare(Some(1), &()).unwrap().unwrap();
    assert!(whole.is_whole());
    follower.begin(&whole).unwrap();
    let mut seen = Vec::new();
    let mut take = |info: &TensorInfo, data: Vec<u8>| {
        let row = find(memory.places.tensors(), info.name()).unwrap();
        memory.rows.lock().unwrap()[row] = data;
        seen.push(row);
        Ok(())
    };
    whole.each_tensor(&mut take, &()).unwrap();
    assert_eq!((seen.len(), follower.is_torn()), (4, true));
    let switched = follower.finish(&whole).unwrap();
    assert_eq!(
        (switched.fallback, switched.proof),
        (Some(Fallback::Torn), Proof::ChangedLanes)
    );
    assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
    assert!(follower.finish(&whole).is_err() && follower.begin(&whole).is_err());
    // After a failed `compare`, the caller decides what to do; a failed check would mean that no
    // version is held.
    memory.flip(1, 7);
    assert_eq!(
        follower.compare(&Alone, &()).unwrap_err().rule(),
        Some("R-SUM-04")
    );
    assert_eq!(follower.held().unwrap().version, 1);
    memory.flip(1, 7);
    assert_eq!(follower.compare(&Alone, &()).unwrap(), Some(Proof::Memory));
    assert_eq!(follower.held().unwrap().proof, Proof::Memory);
    assert_eq!(
        (memory.copy(), go_proven(&mut follower, 2).fallback),
        (chain.states[1].clone(), None)
    );

    // There was no room for the changes, which says nothing about the memory.
    follower.doubt(Fallback::Budget);
    assert_eq!(
        (
            follower.held().unwrap().version,
            follower.check(&Alone, &()).unwrap()
        ),
        (2, Some(Proof::Memory))
    );
    assert_eq!(go_proven(&mut follower, 3).fallback, Some(Fallback::Budget));
    assert_eq!(memory.copy(), chain.states[3]);

    // The memory has moved.
    follower.doubt(Fallback::Place);
    assert_eq!(
        (
            follower.held(),
            follower.is_torn(),
            follower.memory().is_none()
        ),
        (None, false, true)
    );
    let mut prepared = follower.prepare(Some(4), &()).unwrap().unwrap();
    assert_eq!(
        follower
            .apply(&mut prepared, &Alone, &())
            .unwrap_err()
            .class(),
        ErrorClass::Usage
    );
    let moved = Elsewhere::of(&scribbled(&chain.states[0]), false);
    follower.bind(moved.clone());
    let switched = go_proven(&mut follower, 4);
    assert_eq!(
        (switched.fallback, moved.copy()),
        (Some(Fallback::Place), chain.states[4].clone())
    );
    assert_eq!(memory.copy(), chain.states[3]);
}

/// Goes to a version as a caller that starts the proof itself.
fn go_proven(follower: &mut Follower<InPlace<Elsewhere>>, version: u64) -> SwitchReport<()> {
    let mut prepared = follower.prepare(Some(version), &()).unwrap().unwrap();
    follower.prove(&mut prepared, &Alone, &()).unwrap();
    follower.apply(&mut prepared, &Alone, &()).unwrap()
}

#[test]
fn sums_are_learned_where_links_have_none() {
    let mut chain = Chain::of(&[Profile::Compact], 2);
    chain.options = chain.options.profiles(vec![Profile::Local]);
    chain.publish();
    let mut group = Group::at(&chain, 2, 1);
    assert!(
        group
            .all(|own| own.go(2))
            .iter()
            .all(|switched| switched.fallback.is_none())
    );
    group.holds(&chain.states[2]);
    // A version without links in place is loaded as a whole; the next one is updated in place
    // again.
    chain.options = chain.options.profiles(vec![Profile::Compact]);
    chain.publish();
    chain.options = chain.options.profiles(vec![Profile::Local]);
    chain.publish();
    for (version, fallback) in [(3, Some(Fallback::NoRoute)), (4, None)] {
        assert!(
            group
                .all(|own| own.go(version))
                .iter()
                .all(|switched| switched.fallback == fallback)
        );
        group.holds(&chain.states[usize::try_from(version).unwrap()]);
        for checked in group.all(Process::check) {
            assert_eq!(checked.unwrap(), Some(Proof::Memory));
        }
    }
}

#[test]
fn copies_of_memory_that_can_be_read_are_followed_by_digests() {
    let mut chain = Chain::of(&ALL[..1], 2);
    chain.options = chain.options.profiles(vec![Profile::Compact]);
    chain.publish();
    for wrong in [None, Some(0), Some(1)] {
        // Each process has all tensors.
        let mut group = Group::new(&chain, 2);
        for own in &mut group.processes {
            own.memory = Elsewhere::of(&scribbled(&chain.states[0]), true);
        }
        group.all(|own| own.go(1));
        if let Some(rank) = wrong {
            group.processes[rank]
                .memory
                .flip(0, lane(&chain, 2, 0, true));
        }
        let fallbacks = group.all(|own| own.go(2).fallback);
        assert_eq!(fallbacks, [wrong.map(|_| Fallback::Proof); 2]);
        group.holds(&chain.states[2]);
    }
}
