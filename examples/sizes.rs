//! Prints a table of the sizes of links between pairs of checkpoints, and of XOR + zstd for the
//! same pairs, all measured in one run:
//! `cargo run --release --example sizes -- BASE TARGET [BASE TARGET ...]`

use std::path::Path;
use std::time::{Duration, Instant};

use deltachain::files::SafetensorsState;
use deltachain::tensor::{MemoryState, State};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, apply, diff};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Number of runs of each measurement; the median time is printed.
const RUNS: usize = 5;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() || !arguments.len().is_multiple_of(2) {
        return Err("usage: sizes BASE TARGET [BASE TARGET ...]".into());
    }
    if cfg!(debug_assertions) {
        println!("(built without --release: sizes are right, times are not)");
    }
    println!(
        "{} threads; times are medians of {RUNS} runs, in memory",
        rayon::current_num_threads()
    );
    println!();
    println!(
        "| pair | changed | what | bytes | of the data | bits per changed lane | make | apply |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for pair in arguments.chunks_exact(2) {
        let base = MemoryState::copy_of(&SafetensorsState::open(&pair[0])?)?;
        let target = MemoryState::copy_of(&SafetensorsState::open(&pair[1])?)?;
        let name = |path: &str| {
            Path::new(path)
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Pair {
            name: format!("{} -> {}", name(&pair[0]), name(&pair[1])),
            base,
            target,
        }
        .print()?;
    }
    Ok(())
}

struct Pair {
    name: String,
    base: MemoryState,
    target: MemoryState,
}

/// A row: the method, the size of its output, and the times of making and applying it.
struct Row {
    what: String,
    bytes: usize,
    make: Duration,
    apply: Duration,
}

impl Pair {
    fn print(&self) -> Result {
        let mut changed = 0;
        let mut rows = Vec::new();
        for (what, base, profile) in [
            ("link, compact", &self.base, Profile::Compact),
            ("link, direct", &self.base, Profile::Direct),
            (
                "snapshot of the target",
                &MemoryState::new(),
                Profile::Compact,
            ),
        ] {
            let (row, elements) = self.link(what, base, profile)?;
            // A snapshot changes everything; the pair's figure is that of its links.
            if !base.tensors().is_empty() {
                changed = elements;
            }
            rows.push(row);
        }
        for level in [1, 19] {
            rows.push(self.rival(level, true)?);
        }
        rows.push(self.rival(19, false)?);
        let data: u64 = self
            .target
            .tensors()
            .iter()
            .map(deltachain::tensor::TensorInfo::bytes)
            .sum();
        let lanes: u64 = self
            .target
            .tensors()
            .iter()
            .map(deltachain::tensor::TensorInfo::lanes)
            .sum();
        for Row {
            what,
            bytes,
            make,
            apply,
        } in rows
        {
            println!(
                "| {} | {:.2} % | {what} | {bytes} | {:.4} | {:.2} | {:.3} s | {:.3} s |",
                self.name,
                100.0 * ratio(changed, lanes),
                ratio(bytes as u64, data),
                8.0 * ratio(bytes as u64, changed),
                make.as_secs_f64(),
                apply.as_secs_f64(),
            );
        }
        Ok(())
    }

    /// Makes a link and checks that applying it is exact; returns its row and the number of changed
    /// lanes.
    fn link(&self, what: &str, base: &MemoryState, profile: Profile) -> Result<(Row, u64)> {
        let mut file = Vec::new();
        let mut changed = 0;
        let make = median(|| {
            file.clear();
            let options = DiffOptions::default().profile(profile);
            changed = diff(base, &self.target, &options, &mut file)?.changed;
            Ok(())
        })?;
        let mut exact = true;
        let applied = median(|| {
            let link = LinkReader::open(&file, &Limits::unlimited())?;
            exact &= apply(base, &link)? == self.target;
            Ok(())
        })?;
        if !exact {
            return Err(format!("{}: {what}: the result is not exact", self.name).into());
        }
        Ok((
            Row {
                what: what.to_owned(),
                bytes: file.len(),
                make,
                apply: applied,
            },
            changed,
        ))
    }

    /// Compresses the target's data, or its XOR with the base's, with zstd. Both must have the same
    /// tensors.
    fn rival(&self, level: i32, xor: bool) -> Result<Row> {
        let data = |state: &MemoryState| {
            state
                .iter()
                .flat_map(|(_, data)| data.iter().copied())
                .collect::<Vec<u8>>()
        };
        let old = data(&self.base);
        let new = data(&self.target);
        if self.base.tensors() != self.target.tensors() {
            return Err(format!("{}: the tensors differ", self.name).into());
        }
        let combine = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a ^ b).collect::<Vec<u8>>();
        // Slow levels are timed only once.
        let mut packed = Vec::new();
        let mut once = || {
            packed = if xor {
                zstd::bulk::compress(&combine(&old, &new), level)?
            } else {
                zstd::bulk::compress(&new, level)?
            };
            Ok(())
        };
        let make = if level > 10 {
            timed(&mut once)?
        } else {
            median(&mut once)?
        };
        let mut exact = true;
        let applied = median(|| {
            let unpacked = zstd::bulk::decompress(&packed, new.len())?;
            exact &= if xor {
                combine(&old, &unpacked) == new
            } else {
                unpacked == new
            };
            Ok(())
        })?;
        if !exact {
            return Err(format!("{}: zstd: the result is not exact", self.name).into());
        }
        let what = if xor {
            format!("XOR + zstd -{level}, one thread, no digests")
        } else {
            format!("zstd -{level} of the target")
        };
        Ok(Row {
            what,
            bytes: packed.len(),
            make,
            apply: applied,
        })
    }
}

fn timed(mut work: impl FnMut() -> Result) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn median(mut work: impl FnMut() -> Result) -> Result<Duration> {
    let mut times = (0..RUNS)
        .map(|_| timed(&mut work))
        .collect::<Result<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times[RUNS / 2])
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
