//! Making and applying a link between two states in memory, and changing memory in place.

use std::hint::black_box;

use deltachain::StateSums;
use deltachain::tensor::{MemoryState, State, StateDigests};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateTable, apply, diff};
use deltachain_bench::{Pair, Result, output};
use rayon::ThreadPool;

use crate::{Group, pool, pools};

/// A link: its name in tables, the table of its base, and its file.
struct Link {
    called: &'static str,
    table: StateTable,
    file: Vec<u8>,
}

impl Link {
    fn of<S: State>(pair: &Pair<S>, profile: Profile) -> Result<Self> {
        let mut file = Vec::new();
        diff(
            &pair.base,
            &pair.target,
            &DiffOptions::default().profile(profile),
            &mut file,
        )?;
        Ok(Self {
            called: profile.name(),
            table: StateTable::of(&pair.base, &())?,
            file,
        })
    }

    fn open(&self) -> deltachain::Result<LinkReader<&Vec<u8>>> {
        LinkReader::open(&self.file, &Limits::unlimited())
    }

    /// Opens the link, as every reader does, and calls `work` with its replay.
    fn replay<T>(
        &self,
        work: impl FnOnce(Replay<'_, &Vec<u8>>) -> deltachain::Result<T>,
    ) -> deltachain::Result<T> {
        let link = self.open()?;
        let mut replay = Replay::new(self.table.clone());
        replay.push(&link)?;
        work(replay)
    }
}

impl<S: State> Group<'_, S> {
    /// Times copying, comparing and hashing the same bytes.
    pub(crate) fn memory(&mut self) -> Result {
        let Pair { base, target, .. } = self.pair;
        let mut room = MemoryState::zeros(base.tensors())?;
        let copies = room.writer();
        // Touches all pages, and shows that the copies below cannot fail.
        output::copy(base, &copies)?;
        for pool in pools()? {
            self.time(&pool, "memcpy", || output::copy(base, &copies).is_ok());
        }
        self.time(&pool(1)?, "memcmp", || {
            output::holds(black_box(&room), base)
        });
        self.time(&pool(1)?, "BLAKE3 of the target", || {
            StateDigests::of(target, &())
        });
        let (_, sums) = StateSums::hashed(base, &())?;
        sums.check(base, &())?;
        self.time(&pool(1)?, "sums of memory", || sums.check(base, &()));
        Ok(())
    }

    /// Times making and applying the link.
    pub(crate) fn links(&mut self, pool: &ThreadPool, profile: Profile) -> Result {
        let Pair { name, base, target } = self.pair;
        let link = Link::of(self.pair, profile)?;
        let called = link.called;
        let options = DiffOptions::default().profile(profile);
        let make = |options: &DiffOptions<'_>| {
            let mut file = Vec::new();
            diff(base, target, options, &mut file).map(|_| file)
        };
        self.time(pool, &format!("diff {called}, base hashed"), || {
            make(&options)
        });
        let known = options.clone().base_digests(Some(&link.table.digests));
        self.time(pool, &format!("diff {called}, base digests known"), || {
            make(&known)
        });
        let with_sums = known.clone().sums(true);
        self.time(
            pool,
            &format!("diff {called} with sums, base digests known"),
            || make(&with_sums),
        );
        let mut room = MemoryState::zeros(target.tensors())?;
        let output = room.writer();
        let run = || link.replay(|replay| replay.run(base, &output, &()));
        self.time(pool, &format!("apply {called}, with result digest"), run);
        run()?;
        if !output::holds(&room, target) {
            return Err(format!("{name}: the result of {called} is not exact").into());
        }
        // Patches are iterated by one thread, whatever the pool.
        if profile == Profile::Direct && pool.current_num_threads() == 1 {
            let patches = || {
                link.open()?
                    .patches(|_| true, None)
                    .map(|patch| Ok(patch?.count()))
                    .sum::<deltachain::Result<usize>>()
            };
            patches()?;
            self.time(pool, "direct to patches", patches);
        }
        Ok(())
    }
}

impl Group<'_> {
    /// Times the work of a subscriber in memory for one step: it verifies a link before it changes
    /// anything.
    pub(crate) fn step(&mut self, pool: &ThreadPool, profile: Profile) -> Result {
        let Pair { base, .. } = self.pair;
        let link = Link::of(self.pair, profile)?;
        let called = link.called;
        let prepare = || link.replay(|replay| replay.patches(base, base, u64::MAX, &()));
        prepare()?;
        self.time(pool, &format!("prepare {called}"), prepare);
        let prove = || link.replay(|replay| replay.prove(base, &()));
        prove()?;
        self.time(pool, &format!("prove {called}"), prove);
        Ok(())
    }

    /// Times the pause of serving: one thread writes the values of a prepared set, or puts the old
    /// ones back. The profile makes no difference.
    pub(crate) fn pause(&mut self) -> Result {
        let Pair { name, base, target } = self.pair;
        let link = Link::of(self.pair, Profile::Compact)?;
        let mut patches = link.replay(|replay| replay.patches(base, base, u64::MAX, &()))?;
        let mut weights = base.clone();
        patches.stage(&mut weights)?.write()?;
        let is_there = output::holds(&weights, target);
        patches.stage(&mut weights)?.put_back()?;
        if !is_there || !output::holds(&weights, base) {
            return Err(format!("{name}: the exchange is not exact").into());
        }
        let mut turn = false;
        self.group.bench_function("the pause, 1 thread", |bencher| {
            bencher.iter(|| -> deltachain::Result<()> {
                turn = !turn;
                let mut ready = patches.stage(&mut weights)?;
                if turn {
                    ready.write()?;
                } else {
                    ready.put_back()?;
                }
                Ok(())
            });
        });
        Ok(())
    }

    /// Times making and applying a snapshot.
    pub(crate) fn states(&mut self, pool: &ThreadPool) -> Result {
        let Pair { name, target, .. } = self.pair;
        let link = |base: &MemoryState, target: &MemoryState| {
            let mut file = Vec::new();
            diff(base, target, &DiffOptions::default(), &mut file).map(|_| file)
        };
        let open = |file| LinkReader::open(file, &Limits::unlimited());
        let empty = MemoryState::new();
        self.time(pool, "snapshot", || link(&empty, target));
        let snapshot = link(&empty, target)?;
        let restore = || apply(&empty, &open(&snapshot)?);
        self.time(pool, "restore", restore);
        if restore()? != *target {
            return Err(format!("{name}: the restored state is not exact").into());
        }
        Ok(())
    }
}
