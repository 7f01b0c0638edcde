//! Times whole operations in memory, on real and synthetic pairs, with one thread and with all,
//! together with copying, comparing and hashing the same bytes; links applied in place; sequences
//! of links in one pass; and the path of a version through a chain.
//!
//! `DELTACHAIN_BENCH_REAL` names a folder of real checkpoints (by default, the excerpts in
//! `testdata`), `DELTACHAIN_BENCH_MEBIBYTES` the sizes of the synthetic pairs that show how times
//! grow.

mod chain;
mod in_place;
mod links;
mod sequences;

use std::path::Path;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use deltachain::Profile;
use deltachain::tensor::{MemoryState, State};
use deltachain_bench::{Pair, Result, many_tensors, real_pairs, synthetic};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Size of the synthetic pairs with different densities.
const DENSITIES_MEBIBYTES: u64 = 128;

/// Larger synthetic pairs repeat data of about this size, which is too much for any cache to keep.
const REPEATED_MEBIBYTES: u64 = 1024;

fn main() -> Result {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let real = std::env::var_os("DELTACHAIN_BENCH_REAL").map_or(here, Into::into);
    let sizes =
        std::env::var("DELTACHAIN_BENCH_MEBIBYTES").unwrap_or_else(|_| "64,256,1024".to_owned());
    // In the build folder: a system's folder for temporary files may be in memory.
    let disk = tempfile::tempdir_in(std::env::current_exe()?.parent().ok_or("no folder")?)?;

    for pair in real_pairs(&real)? {
        let mut group = whole(&mut criterion, &pair)?;
        for pool in pools()? {
            group.states(&pool)?;
            group.publisher(&pool)?;
        }
        group.chain(disk.path())?;
    }
    for percent in [0.1, 0.35, 1.0, 5.0, 20.0] {
        let name = format!("{DENSITIES_MEBIBYTES} MiB, {percent} %");
        whole(
            &mut criterion,
            &synthetic(&name, DENSITIES_MEBIBYTES, percent / 100.0)?,
        )?;
    }
    for size in sizes.split(',') {
        let mebibytes: u64 = size.trim().parse()?;
        let times = (mebibytes / REPEATED_MEBIBYTES).max(1);
        let pair = synthetic("", mebibytes / times, 0.01)?;
        growth(
            &mut criterion,
            &pair.repeated(&format!("{mebibytes} MiB, 1 %"), times.try_into()?)?,
        )?;
    }
    // The same number of bytes in many tensors and in one.
    for kibibytes in [2, 16] {
        for (tensors, lanes) in [(70_000, kibibytes << 9), (1, (70_000 * kibibytes) << 9)] {
            let name = format!("{tensors} x {} KiB, 0.1 %", lanes >> 9);
            growth(&mut criterion, &many_tensors(&name, tensors, lanes, 0.001)?)?;
        }
    }
    sequences::catch_up(&mut criterion, disk.path())?;
    in_place::sequence(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

/// Times every operation of a step on a pair, with one thread and with all.
fn whole<'a>(criterion: &'a mut Criterion, pair: &'a Pair) -> Result<Group<'a>> {
    let mut group = Group::new(criterion, pair);
    group.memory()?;
    group.pause()?;
    group.pause_in_place()?;
    for pool in pools()? {
        group.in_place(&pool)?;
        for profile in [Profile::Compact, Profile::Direct] {
            group.links(&pool, profile)?;
            group.step(&pool, profile)?;
        }
        group.links(&pool, Profile::Local)?;
    }
    Ok(group)
}

/// Times the operations whose time should grow in proportion to the bytes, with one thread.
fn growth<S: State>(criterion: &mut Criterion, pair: &Pair<S>) -> Result {
    let mut group = Group::new(criterion, pair);
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

/// Makes a group of benchmarks that each process this number of bytes.
fn group<'a>(criterion: &'a mut Criterion, name: &str, bytes: u64) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sampling_mode(SamplingMode::Flat)
        .throughput(Throughput::Bytes(bytes));
    group
}

/// Times work in the threads of a pool. The name ends with the number of threads.
fn time<T: Send>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pool: &ThreadPool,
    name: &str,
    work: impl Fn() -> T + Sync,
) {
    group.bench_function(threaded(pool, name), |bencher| {
        bencher.iter(|| pool.install(&work));
    });
}

fn threaded(pool: &ThreadPool, name: &str) -> String {
    let threads = pool.current_num_threads();
    format!(
        "{name}, {threads} thread{}",
        if threads == 1 { "" } else { "s" }
    )
}

/// Benchmarks of one pair.
struct Group<'a, S = MemoryState> {
    group: BenchmarkGroup<'a, WallTime>,
    pair: &'a Pair<S>,
}

impl<'a, S: State> Group<'a, S> {
    fn new(criterion: &'a mut Criterion, pair: &'a Pair<S>) -> Self {
        Self {
            group: group(criterion, &pair.name, pair.bytes()),
            pair,
        }
    }

    fn time<T: Send>(&mut self, pool: &ThreadPool, name: &str, work: impl Fn() -> T + Sync) {
        time(&mut self.group, pool, name, work);
    }
}
