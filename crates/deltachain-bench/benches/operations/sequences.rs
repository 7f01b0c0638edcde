//! Catching up: applying several links in one pass, in memory and from file to file.

use std::fs;
use std::path::{Path, PathBuf};

use criterion::Criterion;
use deltachain::files::{self, FileOptions, SafetensorsState};
use deltachain::tensor::{MemoryState, State, total_bytes};
use deltachain::{DiffOptions, Limits, LinkReader, Replay, StateTable};
use deltachain_bench::{Result, Walk, output, save};

use crate::{group, pools, time};

/// Size of the model, and the part of it that each link changes.
const MEBIBYTES: u64 = 128;
const PERCENT: f64 = 0.35;

/// Numbers of links to catch up with.
const COUNTS: [usize; 4] = [1, 4, 16, 64];

/// Times catching up with several compact links in memory, on disk, and on a file system in memory
/// if there is one.
pub(crate) fn catch_up(criterion: &mut Criterion, disk: &Path) -> Result {
    let mut walk = Walk::new(MEBIBYTES, PERCENT / 100.0)?;
    let base = walk.state.clone();
    let mut links = Vec::new();
    let mut targets = Vec::new();
    for count in COUNTS {
        while links.len() < count {
            links.push(walk.step(&DiffOptions::default())?);
        }
        targets.push((count, walk.state.clone()));
    }
    in_memory(criterion, &base, &links, &targets)?;
    in_files(criterion, "on disk", disk, &base, &links, &targets)?;
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        let place = tempfile::tempdir_in(memory)?;
        in_files(criterion, "on tmpfs", place.path(), &base, &links, &targets)?;
    }
    Ok(())
}

/// Number of links that lead to a state, and the state.
type Target = (usize, MemoryState);

fn called(place: &str) -> String {
    format!("catch-up, {MEBIBYTES} MiB, {PERCENT} % each, {place}")
}

fn links_of(count: usize) -> String {
    format!("{count} link{}", if count == 1 { "" } else { "s" })
}

fn in_memory(
    criterion: &mut Criterion,
    base: &MemoryState,
    links: &[Vec<u8>],
    targets: &[Target],
) -> Result {
    let mut group = group(criterion, &called("in memory"), total_bytes(base.tensors()));
    let table = StateTable::of(base, &())?;
    for (count, target) in targets {
        let mut room = MemoryState::zeros(target.tensors())?;
        let output = room.writer();
        let run = || {
            let open = |link| LinkReader::open(link, &Limits::unlimited());
            let links = links[..*count]
                .iter()
                .map(open)
                .collect::<deltachain::Result<Vec<_>>>()?;
            let mut replay = Replay::new(table.clone());
            links.iter().try_for_each(|link| replay.push(link))?;
            replay.run(base, &output, &())
        };
        run()?;
        for pool in pools()? {
            time(&mut group, &pool, &links_of(*count), run);
        }
        if !output::holds(&room, target) {
            return Err(format!("the result of {count} links is not exact").into());
        }
    }
    group.finish();
    Ok(())
}

fn in_files(
    criterion: &mut Criterion,
    name: &str,
    place: &Path,
    base: &MemoryState,
    links: &[Vec<u8>],
    targets: &[Target],
) -> Result {
    let mut group = group(criterion, &called(name), total_bytes(base.tensors()));
    let from = place.join("base.safetensors");
    let to = place.join("target.safetensors");
    save(&from, base)?;
    let paths: Vec<PathBuf> = (0..links.len())
        .map(|number| place.join(format!("{number}.dcf")))
        .collect();
    for (path, link) in paths.iter().zip(links) {
        fs::write(path, link)?;
    }
    for (count, target) in targets {
        let options = FileOptions::default().replace(true);
        let run = || files::apply(Some(&from), &paths[..*count], &to, &options);
        run()?;
        for pool in pools()? {
            time(&mut group, &pool, &links_of(*count), run);
        }
        if MemoryState::copy_of(&SafetensorsState::open(&to)?)? != *target {
            return Err(format!("the result of {count} links {name} is not exact").into());
        }
    }
    group.finish();
    Ok(())
}
