//! Applying links in place: verifying the lanes that they code, and writing these lanes to memory
//! that other code could write to, too.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use deltachain::StateSums;
use deltachain::memory::{Alone, Changes, HostLanes, LentState};
use deltachain::tensor::{MemoryState, State, TensorInfo, total_bytes};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateTable, diff};
use deltachain_bench::{Pair, Result, Walk, synthetic};
use rayon::ThreadPool;

use crate::{Group, group, pools, time};

/// Number of links that are applied in one pass, the part of the model that each changes, and the
/// model's size.
const LINKS: usize = 16;
const PERCENT: f64 = 0.35;
const MEBIBYTES: u64 = 128;

/// A model in buffers, as an engine has it.
struct Engine(Vec<(TensorInfo, Vec<u8>)>);

impl Engine {
    fn of(state: &MemoryState) -> Self {
        Self(
            state
                .iter()
                .map(|(info, data)| (info.clone(), data.to_vec()))
                .collect(),
        )
    }

    fn holds(&self, state: &MemoryState) -> bool {
        self.0
            .iter()
            .map(|(info, data)| (info, data.as_slice()))
            .eq(state.iter())
    }

    fn lend(&mut self) -> deltachain::Result<LentState<&mut [u8]>> {
        LentState::new(
            self.0
                .iter_mut()
                .map(|(info, data)| (info.clone(), data.as_mut_slice())),
        )
    }
}

/// A state whose sums are known, and links from it.
struct Route<'a> {
    base: &'a MemoryState,
    table: StateTable,
    sums: StateSums,
    files: Vec<Vec<u8>>,
}

fn options(profile: Profile) -> DiffOptions<'static> {
    DiffOptions::default().profile(profile).sums(true)
}

impl<'a> Route<'a> {
    fn new(base: &'a MemoryState, files: Vec<Vec<u8>>) -> Result<Self> {
        let (table, sums) = StateSums::hashed(base, &())?;
        Ok(Self {
            base,
            table,
            sums,
            files,
        })
    }

    fn of_pair(base: &'a MemoryState, target: &MemoryState, profile: Profile) -> Result<Self> {
        let mut file = Vec::new();
        diff(base, target, &options(profile), &mut file)?;
        Self::new(base, vec![file])
    }

    /// Opens the links and verifies them against memory.
    fn prove(&self, memory: &mut LentState<&mut [u8]>) -> deltachain::Result<Changes<HostLanes>> {
        let open = |file| LinkReader::open(file, &Limits::unlimited());
        let links = self
            .files
            .iter()
            .map(open)
            .collect::<deltachain::Result<Vec<_>>>()?;
        let mut replay = Replay::new(self.table.clone()).with_sums(self.sums.clone());
        links.iter().try_for_each(|link| replay.push(link))?;
        let mut changes = Changes::new(u64::MAX);
        replay.in_place(memory, &mut changes, &Alone, &())?;
        Ok(changes)
    }

    /// Times the verification, with the threads of a pool.
    fn time(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        pool: &ThreadPool,
        name: &str,
    ) -> Result {
        let mut engine = Engine::of(self.base);
        // The lock is never contended: one thread at a time uses the memory.
        let memory = Mutex::new(engine.lend()?);
        time(group, pool, name, || {
            self.prove(&mut memory.lock().unwrap_or_else(PoisonError::into_inner))
        });
        Ok(())
    }

    /// Returns an error if the links lead to another state.
    fn check(&self, target: &MemoryState) -> Result {
        let mut engine = Engine::of(self.base);
        let mut weights = engine.lend()?;
        self.prove(&mut weights)?.write(&mut weights)?;
        drop(weights);
        if engine.holds(target) {
            Ok(())
        } else {
            Err("what is taken in place is not exact".into())
        }
    }
}

impl Group<'_> {
    /// Times the work of an in-place reader for one step.
    pub(crate) fn in_place(&mut self, pool: &ThreadPool) -> Result {
        let Pair { base, target, .. } = self.pair;
        for profile in [Profile::Local, Profile::Direct] {
            let route = Route::of_pair(base, target, profile)?;
            route.check(target)?;
            route.time(
                &mut self.group,
                pool,
                &format!("in place: prove {}", profile.name()),
            )?;
        }
        Ok(())
    }

    /// Times the pause of serving: old values are read again and compared, and new ones are
    /// written, by one thread.
    pub(crate) fn pause_in_place(&mut self) -> Result {
        let Pair { base, target, .. } = self.pair;
        let mut engine = Engine::of(base);
        let mut weights = engine.lend()?;
        let mut changes = Route::of_pair(base, target, Profile::Local)?.prove(&mut weights)?;
        let mut pause = || -> deltachain::Result<Duration> {
            let start = Instant::now();
            changes.write(&mut weights)?;
            let pause = start.elapsed();
            changes.put_back(&mut weights)?;
            Ok(pause)
        };
        pause()?;
        self.group
            .bench_function("in place: pause, 1 thread", |bencher| {
                // The same write has succeeded above, so it cannot fail here.
                bencher.iter_custom(|times| (0..times).map(|_| pause().unwrap_or_default()).sum());
            });
        Ok(())
    }
}

/// Times many links in one pass, and one link that codes as many lanes.
pub(crate) fn sequence(criterion: &mut Criterion) -> Result {
    let mut walk = Walk::new(MEBIBYTES, PERCENT / 100.0)?;
    let base = walk.state.clone();
    let links = (0..LINKS)
        .map(|_| walk.step(&options(Profile::Local)))
        .collect::<Result<_>>()?;
    let many = Route::new(&base, links)?;
    many.check(&walk.state)?;
    let Pair {
        base: from, target, ..
    } = synthetic("", MEBIBYTES, PERCENT / 100.0 * 16.0)?;
    let one = Route::of_pair(&from, &target, Profile::Local)?;
    one.check(&target)?;
    let name = format!("in place, {MEBIBYTES} MiB, {PERCENT} % each");
    let mut group = group(criterion, &name, total_bytes(base.tensors()));
    for pool in pools()? {
        many.time(&mut group, &pool, "16 links")?;
        one.time(&mut group, &pool, "1 link of as many lanes")?;
    }
    group.finish();
    Ok(())
}
