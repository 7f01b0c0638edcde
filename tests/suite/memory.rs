//! Prepared patches: a failure at any step of preparing leaves memory as it was, and applying makes
//! no allocation that can fail.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::states::{PROFILES, link, special_pair, successor};
use deltachain::memory::PatchSet;
use deltachain::tensor::{MemoryState, State, TensorInfo};
use deltachain::{Error, Limits, LinkReader, Replay, Result, Source, StateTable};

/// Lets a number of steps pass; all steps after that fail.
struct Fuse(AtomicU64);

impl Fuse {
    fn step(&self) -> Result<()> {
        let left = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        left.map(drop)
            .map_err(|_| Error::io("reading", std::io::Error::other("the fuse has blown")))
    }
}

/// A link; each read of it is a step.
struct Fused<'a>(&'a [u8], &'a Fuse);

impl Source for Fused<'_> {
    fn length(&self) -> Result<u64> {
        self.1.step()?;
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.1.step()?;
        self.0.read_at(offset, out)
    }
}

/// A base; each read of it is a step.
struct FusedState<'a>(&'a MemoryState, &'a Fuse);

impl State for FusedState<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        self.0.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.1.step()?;
        self.0.read(tensor, offset, out)
    }
}

fn prepare(base: &MemoryState, files: &[Vec<u8>], fuse: &Fuse) -> Result<PatchSet> {
    let open = |file| LinkReader::open(Fused(file, fuse), &Limits::default());
    let links = files
        .iter()
        .map(|file| open(file))
        .collect::<Result<Vec<_>>>()?;
    let held = FusedState(base, fuse);
    let mut replay = Replay::new(StateTable::of(&held, &|_| fuse.step())?);
    for link in &links {
        replay.push(link)?;
    }
    replay.patches(&held, &held, u64::MAX, &|_| fuse.step())
}

#[test]
fn a_fault_at_any_step_of_preparing_leaves_memory_as_it_was() {
    let (base, second) = special_pair();
    let third = successor(&second, 0x1234_5678, 10, &base);
    for profile in PROFILES {
        let files = [
            link(&base, &second, profile),
            link(&second, &third, profile),
        ];
        let mut memory = base.clone();
        let mut steps = 0;
        let mut set = loop {
            match prepare(&memory, &files, &Fuse(AtomicU64::new(steps))) {
                Ok(set) => break set,
                Err(error) => assert_eq!((error.message(), error.rule()), ("reading", None)),
            }
            assert!(memory == base, "after {steps} steps");
            steps += 1;
        };
        assert!(steps > 40, "only {steps} steps can fail");
        assert!(memory == base);
        set.stage(&mut memory).unwrap().write().unwrap();
        assert!(memory == third);
        set.stage(&mut memory).unwrap().put_back().unwrap();
        assert!(memory == base);
    }
}

#[test]
fn nothing_that_is_not_proven_is_prepared() {
    let (base, target) = special_pair();
    let file = link(&base, &target, PROFILES[0]);
    let reader = LinkReader::open(&file, &Limits::default()).unwrap();
    let mut replay = Replay::new(StateTable::of(&base, &()).unwrap());
    replay.push(&reader).unwrap();
    // The base differs from its table in a tensor that the link changes.
    let mut other = base.clone();
    let (info, data) = base
        .get("weights")
        .map(|(info, data)| (info.clone(), data.to_vec()))
        .unwrap();
    let changed = [&[data[0] ^ 1], &data[1..]].concat();
    other
        .insert(info.name(), info.dtype(), info.shape(), changed)
        .unwrap();
    let error = replay.patches(&other, &other, u64::MAX, &()).unwrap_err();
    assert_eq!(error.tensor(), Some("weights"));
    assert!(error.rule().is_some());
    // A budget that is too small is refused.
    let needed = replay.patches(&base, &base, u64::MAX, &()).unwrap().bytes();
    assert!(replay.patches(&base, &base, needed, &()).is_ok());
    assert_eq!(
        replay
            .patches(&base, &base, needed - 1, &())
            .unwrap_err()
            .class(),
        deltachain::ErrorClass::Usage
    );
}

#[test]
fn a_snapshot_can_be_laid_over_what_memory_holds() {
    let (base, target) = special_pair();
    let file = link(&MemoryState::new(), &target, PROFILES[1]);
    let reader = LinkReader::open(&file, &Limits::default()).unwrap();
    let mut replay = Replay::new(StateTable::new(Vec::new(), Vec::new()));
    replay.push(&reader).unwrap();
    let mut memory = base.clone();
    let mut set = replay
        .patches(&MemoryState::new(), &memory, u64::MAX, &())
        .unwrap();
    set.stage(&mut memory).unwrap().write().unwrap();
    assert!(memory == target);
    set.stage(&mut memory).unwrap().put_back().unwrap();
    assert!(memory == base);
}
