//! Pairs of neighbouring states: real ones from files, and synthetic ones of any size and density.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use deltachain::files::{Layout, SafetensorsState, StagedSafetensors};
use deltachain::tensor::{Dtype, MemoryState, State, TensorInfo, total_bytes};
use deltachain::{DiffOptions, Limits, LinkReader, Replay, StateTable, diff};
use rayon::prelude::*;

use crate::{Result, weights};

/// Two neighbouring versions of a model, in memory.
#[derive(Debug)]
pub struct Pair<S = MemoryState> {
    /// Name in tables.
    pub name: String,
    /// The older version.
    pub base: S,
    /// The newer version.
    pub target: S,
}

impl<S: State> Pair<S> {
    /// Returns the total size of the target's tensors in bytes.
    pub fn bytes(&self) -> u64 {
        total_bytes(self.target.tensors())
    }
}

impl Pair {
    /// Returns a pair that is this many times as large.
    ///
    /// # Errors
    /// None.
    pub fn repeated(self, name: &str, times: usize) -> Result<Pair<Repeated>> {
        let base = Repeated::new(self.base, times)?;
        let target = Repeated::new(self.target, times)?;
        Ok(Pair {
            name: name.to_owned(),
            base,
            target,
        })
    }
}

/// A state with several copies of each tensor of another one, under different names, that takes no
/// more memory than that one.
#[derive(Debug)]
pub struct Repeated {
    tensors: Vec<TensorInfo>,
    state: MemoryState,
}

impl Repeated {
    fn new(state: MemoryState, times: usize) -> Result<Self> {
        let again = |time: usize, info: &TensorInfo| {
            TensorInfo::new(
                format!("{time:03}.{}", info.name()),
                info.dtype(),
                info.shape(),
            )
        };
        let tensors =
            (0..times).flat_map(|time| state.tensors().iter().map(move |info| again(time, info)));
        Ok(Self {
            tensors: tensors.collect::<Option<_>>().ok_or("no such tensor")?,
            state,
        })
    }
}

impl State for Repeated {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> deltachain::Result<()> {
        self.state
            .read(tensor % self.state.tensors().len(), offset, out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        self.state.bytes(tensor % self.state.tensors().len(), range)
    }
}

/// Opens the pairs among the files `NAME_stepNUMBER.safetensors` of a folder: for each name, the
/// first step with the next one, and with the last one.
///
/// # Errors
/// If the folder or a file cannot be read, or holds no pair.
pub fn real_pairs(folder: &Path) -> Result<Vec<Pair>> {
    let mut steps: BTreeMap<String, BTreeMap<u64, PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry?.path();
        let named = path.file_name().and_then(|name| {
            name.to_str()?
                .strip_suffix(".safetensors")?
                .split_once("_step")
        });
        let step = named.and_then(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
        if let Some((name, number)) = step {
            steps.entry(name).or_default().insert(number, path);
        }
    }
    let mut pairs = Vec::new();
    for (name, steps) in steps {
        let mut later = steps.iter();
        let Some((first, base)) = later.next() else {
            continue;
        };
        let next = later.next();
        for (number, target) in next.into_iter().chain(later.next_back()) {
            pairs.push(Pair {
                name: format!("{name} {first}-{number}"),
                base: MemoryState::copy_of(&SafetensorsState::open(base)?)?,
                target: MemoryState::copy_of(&SafetensorsState::open(target)?)?,
            });
        }
    }
    if pairs.is_empty() {
        Err(format!("{}: no pairs of steps", folder.display()).into())
    } else {
        Ok(pairs)
    }
}

/// Makes a pair of BF16 states with `mebibytes` of data each, in tensors of 32 MiB, in which about
/// `density` of the elements differ.
///
/// # Errors
/// None for sizes that fit in memory.
pub fn synthetic(name: &str, mebibytes: u64, density: f64) -> Result<Pair> {
    let tensors: Vec<u64> = (0..mebibytes)
        .step_by(32)
        .map(|begin| (mebibytes - begin).min(32) << 19)
        .collect();
    of_lanes(name, &tensors, density)
}

/// Makes such a pair with this many equal tensors of `lanes` elements.
///
/// # Errors
/// None for sizes that fit in memory.
pub fn many_tensors(name: &str, tensors: usize, lanes: u64, density: f64) -> Result<Pair> {
    of_lanes(name, &vec![lanes; tensors], density)
}

fn of_lanes(name: &str, tensors: &[u64], density: f64) -> Result<Pair> {
    let data: Vec<(u64, Vec<u8>, Vec<u8>)> = (0_u64..)
        .zip(tensors)
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|(number, &lanes)| {
            let (old, new) = weights::neighbours(number, lanes, density);
            (number, old, new)
        })
        .collect();
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    for ((number, old, new), &lanes) in data.into_iter().zip(tensors) {
        let tensor = format!("layers.{number:05}.weight");
        base.insert(&tensor, Dtype::BF16, &[lanes], old)?;
        target.insert(&tensor, Dtype::BF16, &[lanes], new)?;
    }
    Ok(Pair {
        name: name.to_owned(),
        base,
        target,
    })
}

/// Writes a state to one file.
///
/// # Errors
/// If the file cannot be written.
pub fn save(file: &Path, state: &MemoryState) -> Result {
    let empty = MemoryState::new();
    let mut link = Vec::new();
    diff(&empty, state, &DiffOptions::default(), &mut link)?;
    let link = LinkReader::open(&link, &Limits::unlimited())?;
    let mut replay = Replay::new(StateTable::of(&empty, &())?);
    replay.push(&link)?;
    let layout = Layout::single_file(state.tensors());
    let staged = StagedSafetensors::create(file, &replay.tensors(), &layout, None, true)?;
    replay.run(&empty, &staged, &())?;
    staged.commit()?;
    Ok(())
}

/// A synthetic state that changes step by step, as in training, and the links between its steps.
#[derive(Debug)]
pub struct Walk {
    /// The state after the last step.
    pub state: MemoryState,
    steps: u64,
    density: f64,
}

impl Walk {
    /// Starts with a BF16 state of `mebibytes`. Each step changes about `density` of its elements.
    ///
    /// # Errors
    /// None for sizes that fit in memory.
    pub fn new(mebibytes: u64, density: f64) -> Result<Self> {
        Ok(Self {
            state: synthetic("", mebibytes, density)?.base,
            steps: 0,
            density,
        })
    }

    /// Makes the next step; returns the link that leads to it.
    ///
    /// # Errors
    /// None for sizes that fit in memory.
    pub fn step(&mut self, options: &DiffOptions<'_>) -> Result<Vec<u8>> {
        self.steps += 1;
        let old: Vec<(&TensorInfo, &[u8])> = self.state.iter().collect();
        let seed = self.steps << 16;
        let next = |(number, (_, data)): (usize, &(_, &[u8]))| {
            weights::next(data, seed + number as u64, self.density)
        };
        let new = old.par_iter().enumerate().map(next);
        let new: Vec<Vec<u8>> = new.collect();
        let mut state = MemoryState::new();
        for ((info, _), data) in old.into_iter().zip(new) {
            state.insert(info.name(), info.dtype(), info.shape(), data)?;
        }
        let mut link = Vec::new();
        diff(&self.state, &state, options, &mut link)?;
        self.state = state;
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn densities_are_about_those_asked_for() {
        for density in [0.001, 0.01, 0.05] {
            let pair = synthetic("s", 2, density).unwrap();
            assert_eq!(pair.bytes(), 2 << 20);
            let old = pair.base.iter().next().unwrap().1;
            let new = pair.target.iter().next().unwrap().1;
            let lanes = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
            let changed = u32::try_from(lanes.filter(|(old, new)| old != new).count()).unwrap();
            let found = f64::from(changed) / f64::from(1 << 20);
            assert!(
                (0.8 * density..1.25 * density).contains(&found),
                "{density}: {found}"
            );
        }
    }

    #[test]
    fn each_step_changes_about_as_much() {
        let mut walk = Walk::new(2, 0.01).unwrap();
        for _ in 0..3 {
            let before = walk.state.clone();
            let link = LinkReader::open(
                walk.step(&DiffOptions::default()).unwrap(),
                &Limits::unlimited(),
            )
            .unwrap();
            let bytes = |state: &MemoryState| state.iter().next().unwrap().1.to_vec();
            let old = bytes(&before);
            let new = bytes(&walk.state);
            let changed = old
                .as_chunks::<2>()
                .0
                .iter()
                .zip(new.as_chunks::<2>().0)
                .filter(|(old, new)| old != new);
            assert!((8_000..13_000).contains(&changed.count()));
            assert_eq!(deltachain::apply(&before, &link).unwrap(), walk.state);
        }
    }

    #[test]
    fn the_first_step_is_paired_with_the_next_and_the_last() {
        let pairs = real_pairs(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testdata"
        )))
        .unwrap();
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!(names, ["f32 0-1", "fp8 0-1", "rl3e6 0-1", "rl3e6 0-3"]);
        assert!(
            pairs.iter().all(
                |pair| pair.base.tensors() == pair.target.tensors() && pair.base != pair.target
            )
        );
    }
}
