//! An engine's memory, changed by an executor.

use super::*;

/// An executor of plans for memory of its own: slow and obvious.
pub(super) struct Executor {
    follower: Follower<Engine>,
    memory: Elsewhere,
    /// The lanes that have been proven: tensor, first lane, numbers, new values.
    proven: Vec<(usize, u64, Vec<u32>, Vec<u8>)>,
}

impl Executor {
    pub(super) fn new(chain: &Chain) -> Self {
        Self::with(chain, FollowerOptions::default())
    }

    fn with(chain: &Chain, options: FollowerOptions) -> Self {
        let follower = Follower::for_engine(chain.store.clone(), options).unwrap();
        Self { follower, memory: Elsewhere::new(&next(None, 99)), proven: Vec::new() }
    }

    /// What is prepared, and why if it is a whole version.
    fn prepare(&mut self, version: u64) -> PreparedRoute {
        self.follower.prepare(Some(version), &()).unwrap().unwrap()
    }

    /// Goes to a version, at the second attempt if the proof fails.
    pub(super) fn go(&mut self, version: u64) -> (How, Option<Fallback>) {
        let mut prepared = self.prepare(version);
        if prepared.kind() == How::InPlace
            && let Err(error) = self.prove(&prepared)
        {
            let is_proof = error.class() == ErrorClass::StateMismatch;
            self.follower.failed(&prepared, if is_proof { Fallback::Proof } else { Fallback::Budget });
            assert_eq!(self.follower.held(), None);
            prepared = self.prepare(version);
        }
        self.write(&prepared);
        let (how, fallback) = (prepared.kind(), prepared.fallback());
        let proof = if how == How::Whole { Proof::Hashed } else { Proof::ChangedLanes };
        let switched = self.follower.switched(prepared, proof).unwrap();
        assert_eq!((switched.version, switched.fallback, switched.proof), (version, fallback, proof));
        assert_eq!(self.follower.held().unwrap().proof, proof);
        (how, fallback)
    }

    fn prove(&mut self, prepared: &PreparedRoute) -> Result<()> {
        self.proven.clear();
        let table = prepared.base_tables().next().unwrap().tensors.clone();
        prepared.plans(&mut |shard, plan| {
            assert_eq!(shard, 0);
            let PiecePlan { tensor, piece, first_lane, lanes, steps } = plan;
            let info = &table[tensor];
            let width = info.dtype().lane_bytes();
            let range = info.piece(piece);
            let all = u32::try_from((range.end - range.start) / width as u64).unwrap();
            let numbers = lanes.unwrap_or_else(|| (0..all).collect());
            let mut values = vec![0; numbers.len() * width];
            self.memory.gather(tensor, &Lanes::numbered(first_lane, &numbers), &mut values)?;
            for step in steps {
                let places = step.places.unwrap_or_else(|| (0..u32::try_from(numbers.len()).unwrap()).collect());
                let own: Vec<u32> = places.iter().map(|&place| numbers[place as usize]).collect();
                let pick = |values: &[u8]| -> Vec<u8> {
                    places.iter().flat_map(|&place| values[place as usize * width..][..width].to_vec()).collect()
                };
                let before = Sums::of_lanes(width, &own, &pick(&values));
                for (&place, value) in places.iter().zip(step.values.chunks(width)) {
                    let lane = &mut values[place as usize * width..][..width];
                    if step.is_relative {
                        let moved = moved(info.dtype(), number(lane), number(value));
                        lane.copy_from_slice(&moved.to_le_bytes()[..width]);
                    } else {
                        lane.copy_from_slice(value);
                    }
                }
                let after = Sums::of_lanes(width, &own, &pick(&values));
                let piece = step.before.minus(before).plus(after);
                if (after, piece) != (step.coded, step.piece) {
                    return Err(Error::refused(ErrorClass::StateMismatch, "the sums differ"));
                }
            }
            self.proven.push((tensor, first_lane, numbers, values));
            Ok(())
        })
    }

    fn write(&mut self, prepared: &PreparedRoute) {
        self.follower.begin(prepared).unwrap();
        assert_eq!((self.follower.held(), self.follower.is_torn()), (None, true));
        if prepared.kind() == How::InPlace {
            for (tensor, first, numbers, values) in &self.proven {
                self.memory.scatter(*tensor, &Lanes::numbered(*first, numbers), values).unwrap();
            }
            return;
        }
        let (mut begin, mut seen) = (Some(0), 0);
        while let Some(next) = begin {
            let (tensors, after) = prepared.tensors(next, 20_000).unwrap();
            for (info, data) in tensors {
                let place = self.memory.infos.iter().position(|own| *own == info).unwrap();
                assert_eq!(place, seen);
                seen += 1;
                self.memory.data.lock().unwrap()[place] = data;
            }
            begin = after;
        }
        assert_eq!(seen, prepared.count());
    }

    /// Compares the memory with the sums and the digests that are said to be its own.
    fn check(&self) {
        let (table, sums) = StateSums::hashed(&self.memory, &()).unwrap();
        assert_eq!(self.follower.tables().collect::<Vec<_>>(), [&table]);
        assert_eq!(self.follower.sums(), [sums]);
    }
}

fn number(lane: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..lane.len()].copy_from_slice(lane);
    u64::from_le_bytes(bytes)
}

/// SPEC section 8.3.
fn moved(dtype: Dtype, old: u64, difference: u64) -> u64 {
    let bits = 8 * dtype.lane_bytes();
    let mask = u64::MAX >> (64 - bits);
    let key = |lane: u64| {
        let is_negative = dtype != Dtype::U8 && lane >> (bits - 1) == 1;
        if is_negative { lane ^ (mask >> 1) } else { lane }
    };
    key(key(old).wrapping_add(difference) & mask)
}

#[test]
fn an_engine_is_followed_without_its_data() {
    let chain = Chain::of(&ALL[..2], 11);
    for step in [1, 2, 5] {
        let mut executor = Executor::new(&chain);
        assert_eq!((executor.follower.held(), executor.follower.is_torn()), (None, false));
        assert_eq!(executor.go(0), (How::Whole, None));
        executor.check();
        for version in (step..11).step_by(step) {
            assert_eq!(executor.go(version as u64), (How::InPlace, None));
            assert_eq!(executor.memory.copy(), chain.states[version]);
            executor.check();
        }
        assert!(executor.follower.prepare(Some(10), &()).unwrap().is_none());
        assert_eq!(executor.go(3), (How::Whole, Some(Fallback::NoRoute)));
        assert_eq!(executor.go(4), (How::InPlace, None));
        // A wrong lane that changes.
        executor.memory.flip(1, lane(&chain, 5, 1, true));
        assert_eq!(executor.go(5), (How::Whole, Some(Fallback::Proof)));
        assert_eq!(executor.memory.copy(), chain.states[5]);
        executor.follower.lost();
        assert_eq!((executor.follower.held(), executor.follower.is_torn()), (None, true));
        assert_eq!(executor.go(5), (How::Whole, Some(Fallback::Torn)));
        executor.follower.checked(Some(Proof::Memory));
        assert_eq!(executor.follower.held().unwrap().proof, Proof::Hashed);
        executor.follower.checked(None);
        assert_eq!(executor.go(6), (How::Whole, Some(Fallback::Check)));
        executor.check();
    }
    let mut executor = Executor::with(&chain, FollowerOptions::default().budget(100));
    executor.go(0);
    assert_eq!(executor.go(1), (How::Whole, Some(Fallback::Budget)));
}

#[test]
fn an_engine_learns_sums_where_links_have_none() {
    let mut chain = Chain::of(&[Profile::Compact], 2);
    chain.options.profiles = vec![Profile::Local];
    chain.publish();
    let mut executor = Executor::new(&chain);
    executor.go(1);
    executor.check();
    assert_eq!(executor.go(2), (How::InPlace, None));
    executor.check();
    // To a version without links in place it goes as a whole, and on from there.
    chain.options.profiles = vec![Profile::Compact];
    chain.publish();
    chain.options.profiles = vec![Profile::Local];
    chain.publish();
    assert_eq!(executor.go(3), (How::Whole, Some(Fallback::NoRoute)));
    assert_eq!(executor.go(4), (How::InPlace, None));
    executor.check();
}

#[test]
fn of_an_engine_only_what_is_prepared_now_counts() {
    let chain = Chain::of(&ALL[..2], 5);
    let mut executor = Executor::new(&chain);
    executor.go(0);
    let follower = &mut executor.follower;
    let [old, first, second] = [1, 1, 2].map(|version| follower.prepare(Some(version), &()).unwrap().unwrap());
    // Processes that start from the same compare equal, and what differs differs.
    assert_eq!(old.agreement(), first.agreement());
    assert_ne!(first.agreement(), second.agreement());
    assert!(first.tensors(0, 1).is_err());
    // Written and undone, by somebody else's fault or not.
    follower.begin(&first).unwrap();
    follower.undone(&first, true).unwrap();
    assert_eq!(follower.held().unwrap().version, 0);
    follower.switched(first, Proof::ChangedLanes).unwrap();
    assert_eq!(follower.begin(&second).unwrap_err().class(), ErrorClass::Usage);
    assert!(follower.undone(&second, true).is_err());
    // What failed before says nothing of now, but to have switched is another matter.
    follower.failed(&second, Fallback::Proof);
    assert_eq!(follower.held().unwrap().version, 1);
    assert!(follower.switched(old, Proof::ChangedLanes).is_err());
    assert!(follower.is_torn());
    let whole = follower.prepare(Some(1), &()).unwrap().unwrap();
    assert_eq!((whole.kind(), whole.fallback()), (How::Whole, Some(Fallback::Torn)));
    assert!(whole.plans(&mut |_, _| Ok(())).is_err() && whole.tensors(whole.count(), 1).is_err());
    follower.begin(&whole).unwrap();
    assert!(follower.undone(&whole, true).is_err());
    follower.switched(whole, Proof::Hashed).unwrap();
    let next = follower.prepare(Some(2), &()).unwrap().unwrap();
    follower.begin(&next).unwrap();
    follower.undone(&next, false).unwrap();
    assert_eq!((follower.held(), follower.is_torn()), (None, false));
    // Nobody but an executor switches.
    let options = FollowOptions::default().poll(Duration::ZERO);
    let error = follower.follow(&options, &(), &mut |_, event| match event {
        FollowEvent::Failed(error) => Err(error),
        _ => Ok(ControlFlow::Continue(())),
    });
    assert_eq!(error.unwrap_err().class(), ErrorClass::Usage);
}

#[test]
fn some_tensors_are_taken_in_place() {
    let chain = Chain::of(&ALL[..1], 5);
    let options = FollowerOptions::default().tensors(Some(vec!["[bc]".to_owned()]));
    let part = |version: usize| {
        let mut part = chain.states[version].clone();
        part.remove("a");
        part.remove("d");
        part
    };
    let mut executor = Executor::with(&chain, options);
    executor.memory = Elsewhere::new(&part(3));
    executor.go(0);
    assert_eq!(executor.memory.copy(), part(0));
}
