//! Whole operations in memory, on real and synthetic pairs, with one thread and with all, beside copying and comparing
//! the same bytes; and a version's way through a chain in a directory, beside copying a file.
//!
//! `DELTACHAIN_BENCH_REAL` names a folder of real checkpoints (the excerpts in `testdata` if it is not set),
//! `DELTACHAIN_BENCH_MEBIBYTES` the sizes of the synthetic pairs whose growth is looked at.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{MemoryState, State, StateDigests};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateTable, apply, diff, squash};
use deltachain_bench::{Pair, Result, many_tensors, output, real_pairs, save, synthetic};
use deltachain_store::{Base, PublishOptions, Publisher, Store, StoreOptions, Subscriber, SubscriberOptions, init};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Size of the synthetic pairs of different densities.
const DENSITIES_MEBIBYTES: u64 = 128;

/// Larger synthetic pairs have the same bytes of about this size several times, which no cache notices.
const REPEATED_MEBIBYTES: u64 = 1024;

fn main() -> Result {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let real = std::env::var_os("DELTACHAIN_BENCH_REAL").map_or(here, Into::into);
    let sizes = std::env::var("DELTACHAIN_BENCH_MEBIBYTES").unwrap_or_else(|_| "64,256,1024".to_owned());

    for pair in real_pairs(&real)? {
        whole(&mut criterion, &pair, true)?;
    }
    for percent in [0.1, 1.0, 5.0, 20.0] {
        let name = format!("{DENSITIES_MEBIBYTES} MiB, {percent} %");
        whole(&mut criterion, &synthetic(&name, DENSITIES_MEBIBYTES, percent / 100.0)?, false)?;
    }
    for size in sizes.split(',') {
        let mebibytes: u64 = size.trim().parse()?;
        let times = (mebibytes / REPEATED_MEBIBYTES).max(1);
        let pair = synthetic("", mebibytes / times, 0.01)?;
        growth(&mut criterion, &pair.repeated(&format!("{mebibytes} MiB, 1 %"), times.try_into()?)?)?;
    }
    // The same number of bytes in many tensors and in one.
    for kibibytes in [2, 16] {
        for (tensors, lanes) in [(70_000, kibibytes << 9), (1, (70_000 * kibibytes) << 9)] {
            let name = format!("{tensors} x {} KiB, 0.1 %", lanes >> 9);
            growth(&mut criterion, &many_tensors(&name, tensors, lanes, 0.001)?)?;
        }
    }
    chain(&mut criterion, &real)?;
    criterion.final_summary();
    Ok(())
}

fn group<'a, S: State>(criterion: &'a mut Criterion, pair: &Pair<S>) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(&pair.name);
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(pair.bytes()));
    group
}

/// Every operation on a pair; with one thread and with all.
fn whole(criterion: &mut Criterion, pair: &Pair, snapshots: bool) -> Result {
    let mut group = Group { group: group(criterion, pair), pair };
    group.memory()?;
    for pool in pools()? {
        group.links(&pool, Profile::Compact)?;
        group.links(&pool, Profile::Direct)?;
        if snapshots {
            group.states(&pool)?;
        }
    }
    Ok(())
}

/// The operations whose time should grow as the bytes do; with one thread.
fn growth<S: State>(criterion: &mut Criterion, pair: &Pair<S>) -> Result {
    let mut group = Group { group: group(criterion, pair), pair };
    group.memory()?;
    group.links(&pool(1)?, Profile::Compact)
}

fn pool(threads: usize) -> Result<ThreadPool> {
    Ok(ThreadPoolBuilder::new().num_threads(threads).build()?)
}

fn pools() -> Result<Vec<ThreadPool>> {
    let all = std::thread::available_parallelism()?.get();
    [1, all].into_iter().take(all.min(2)).map(pool).collect()
}

/// Benchmarks of one pair.
struct Group<'a, S = MemoryState> {
    group: BenchmarkGroup<'a, WallTime>,
    pair: &'a Pair<S>,
}

impl<S: State> Group<'_, S> {
    /// Times work that the threads of a pool do. The number of threads ends its name.
    fn time<T: Send>(&mut self, pool: &ThreadPool, name: &str, work: impl Fn() -> T + Sync) {
        let threads = pool.current_num_threads();
        let name = format!("{name}, {threads} thread{}", if threads == 1 { "" } else { "s" });
        self.group.bench_function(name, |bencher| bencher.iter(|| pool.install(&work)));
    }

    /// What memory does with the same bytes.
    fn memory(&mut self) -> Result {
        let base = &self.pair.base;
        let mut room = MemoryState::zeros(base.tensors())?;
        let copies = room.writer();
        // Touches all pages; and what can be done once fails no more.
        output::copy(base, &copies)?;
        for pool in pools()? {
            self.time(&pool, "memcpy", || output::copy(base, &copies).is_ok());
        }
        self.time(&pool(1)?, "memcmp", || output::holds(black_box(&room), base));
        Ok(())
    }

    fn links(&mut self, pool: &ThreadPool, profile: Profile) -> Result {
        let Pair { name, base, target } = self.pair;
        let called = if profile == Profile::Compact { "compact" } else { "direct" };
        // As for a trainer, which has them from the link before.
        let digests = StateDigests::of(base, &())?;
        let options = DiffOptions::default().profile(profile).base_digests(Some(&digests));
        let make = || {
            let mut file = Vec::new();
            diff(base, target, &options, &mut file).map(|_| file)
        };
        self.time(pool, &format!("diff {called}"), make);
        let file = make()?;
        let open = || LinkReader::open(&file, &Limits::unlimited());
        let mut room = MemoryState::zeros(target.tensors())?;
        let output = room.writer();
        let table = StateTable { tensors: base.tensors().to_vec(), digests: digests.clone() };
        let run = || {
            let link = open()?;
            let mut replay = Replay::new(table.clone());
            replay.push(&link)?;
            replay.run(base, &output, &())
        };
        self.time(pool, &format!("apply {called}, with result digest"), run);
        run()?;
        if !output::holds(&room, target) {
            return Err(format!("{name}: the result of {called} is not exact").into());
        }
        // Iterating uses one thread, whatever the pool.
        if profile == Profile::Direct && pool.current_num_threads() == 1 {
            let patches =
                || open()?.patches(|_| true, None).map(|patch| Ok(patch?.count())).sum::<deltachain::Result<usize>>();
            patches()?;
            self.time(pool, "direct to patches", patches);
        }
        Ok(())
    }
}

impl Group<'_> {
    /// Snapshot, restore, and the squash of the link with the one back.
    fn states(&mut self, pool: &ThreadPool) -> Result {
        let Pair { name, base, target } = self.pair;
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
        // Only absolute values can be squashed without the base.
        let direct = |base: &MemoryState, target: &MemoryState| {
            let options = DiffOptions::default().profile(Profile::Direct);
            let mut file = Vec::new();
            diff(base, target, &options, &mut file).map(|_| file)
        };
        let (there, back) = (direct(base, target)?, direct(target, base)?);
        let both = || squash(&[&open(&there)?, &open(&back)?], &mut Vec::new());
        both()?;
        self.time(pool, "squash of two, direct", both);
        Ok(())
    }
}

/// Publishing a version into a directory and following it there, with everything written to disk, by all threads.
fn chain(criterion: &mut Criterion, real: &Path) -> Result {
    // Next to what is built: a system's folder for temporary files may be memory.
    let place = tempfile::tempdir_in(std::env::current_exe()?.parent().ok_or("no folder")?)?;
    for pair in real_pairs(real)? {
        let path = |name: &str| place.path().join(format!("{}-{name}", pair.name));
        let files = [path("0.safetensors"), path("1.safetensors")];
        for (file, state) in files.iter().zip([&pair.base, &pair.target]) {
            save(file, state)?;
        }
        let states = [SafetensorsState::open(&files[0])?, SafetensorsState::open(&files[1])?];
        let store =
            Store::create(path("chain").to_str().ok_or("the folder's name is not Unicode")?, StoreOptions::default())?;
        init(&store)?;
        let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
        publisher.publish(&states[0], Base::Nothing, &())?;
        let mut subscriber = Subscriber::open(store, &path("follower"), SubscriberOptions::default())?;
        let mut follow = || {
            let prepared = subscriber.prepare(None, &())?.ok_or("nothing new")?;
            Result::Ok(subscriber.apply(prepared)?)
        };
        follow()?;

        let mut group = group(criterion, &pair);
        group.bench_function("copy of a file, 1 thread", |bencher| {
            bencher.iter(|| std::fs::copy(&files[0], path("copy")));
        });
        let mut turn = 0;
        group.bench_function("publish and follow, all threads", |bencher| {
            bencher.iter(|| {
                let (old, new) = (&states[turn % 2], &states[(turn + 1) % 2]);
                turn += 1;
                let published = publisher.publish(new, Base::State(old), &())?;
                let switched = follow()?;
                if switched.state == published.state {
                    Ok(())
                } else {
                    Err("the follower holds another state".into()) as Result
                }
            });
        });
        group.finish();
        if turn == 0 {
            continue;
        }
        follow_is_exact(&states[turn % 2], &path("follower"))?;
    }
    Ok(())
}

fn follow_is_exact(state: &SafetensorsState, directory: &Path) -> Result {
    let held = std::fs::read_dir(directory.join("current"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .ok_or("the follower holds no file")?;
    let held = MemoryState::copy_of(&SafetensorsState::open(held)?)?;
    if held == MemoryState::copy_of(state)? { Ok(()) } else { Err("the follower's state is not exact".into()) }
}
