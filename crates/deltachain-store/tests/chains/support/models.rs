//! Small models that change from version to version: values drift, and tensors appear, vanish and
//! change their dtype.

use std::path::Path;

use deltachain::files::{Layout, LayoutFile, SafetensorsState, StagedSafetensors};
use deltachain::tensor::{Dtype, MemoryState, State, StateWriter};

use super::Random;

/// Versions of a model, from 0 on.
pub(crate) struct Models {
    seed: u64,
    rows: u64,
    states: Vec<MemoryState>,
}

const COLUMNS: u64 = 64;

impl Models {
    /// Creates a model whose largest tensor has this number of rows of 64 BF16 numbers.
    pub(crate) fn new(seed: u64, rows: u64) -> Self {
        Self {
            seed,
            rows,
            states: Vec::new(),
        }
    }

    /// The state of a version.
    pub(crate) fn state(&mut self, version: u64) -> &MemoryState {
        let place = usize::try_from(version).unwrap();
        while self.states.len() <= place {
            let next = self.next();
            self.states.push(next);
        }
        &self.states[place]
    }

    fn next(&self) -> MemoryState {
        let version = self.states.len() as u64;
        let mut random = Random(self.seed << 20 ^ version);
        let mut state = self.states.last().cloned().unwrap_or_default();
        if version == 0 {
            let shape = [self.rows, COLUMNS];
            state
                .insert(
                    "embedding",
                    Dtype::BF16,
                    &shape,
                    weights(&mut random, self.rows * COLUMNS),
                )
                .unwrap();
            for layer in 0..4 {
                let name = format!("layers/{layer}.weight");
                state
                    .insert(
                        &name,
                        Dtype::BF16,
                        &[8, COLUMNS],
                        weights(&mut random, 8 * COLUMNS),
                    )
                    .unwrap();
            }
            state
                .insert(
                    "norm",
                    Dtype::F32,
                    &[COLUMNS],
                    norms(&mut random, Dtype::F32),
                )
                .unwrap();
        }
        let names: Vec<_> = state
            .tensors()
            .iter()
            .map(|info| (info.name().to_owned(), info.clone()))
            .collect();
        for (name, info) in names {
            let mut data = state.get(&name).unwrap().1.to_vec();
            // Change one byte in a hundred.
            for _ in 0..data.len().div_ceil(100) {
                let place = usize::try_from(random.below(data.len() as u64)).unwrap();
                data[place] = data[place].wrapping_add(1);
            }
            state
                .insert(&name, info.dtype(), info.shape(), data)
                .unwrap();
        }
        // Add a tensor that stays for three versions.
        state
            .insert(
                &format!("extra.{version}"),
                Dtype::U8,
                &[100],
                random.bytes(100),
            )
            .unwrap();
        state.remove(&format!("extra.{}", version.wrapping_sub(3)));
        if version % 5 == 4 {
            let dtype = if state.get("norm").unwrap().0.dtype() == Dtype::F32 {
                Dtype::F16
            } else {
                Dtype::F32
            };
            state
                .insert("norm", dtype, &[COLUMNS], norms(&mut random, dtype))
                .unwrap();
        }
        state
    }

    /// Opens the files of a version in a directory below this one, and writes them first if they do
    /// not exist: one file, or in some versions two and one in a folder.
    pub(crate) fn save(&mut self, version: u64, below: &Path) -> SafetensorsState {
        let path = below.join(format!("version {version}"));
        if !path.exists() {
            save(self.state(version), &path, (version / 6) % 2 == 1);
        }
        SafetensorsState::open(&path).unwrap()
    }
}

/// Small numbers; only the top byte is not random.
fn norms(random: &mut Random, dtype: Dtype) -> Vec<u8> {
    let width = usize::try_from(dtype.bits() / 8).unwrap();
    let mut bytes = random.bytes(usize::try_from(COLUMNS).unwrap() * width);
    for number in bytes.chunks_mut(width) {
        number[width - 1] = 0x3c;
    }
    bytes
}

fn weights(random: &mut Random, count: u64) -> Vec<u8> {
    let weight = |_| {
        let bits = random.next();
        // Exponents from 2^-12 to 2^-5.
        let value = (bits & 0x8000) | (115 + (bits >> 16) % 8) << 7 | (bits & 0x7f);
        value.to_le_bytes()[..2].to_vec()
    };
    (0..count).flat_map(weight).collect()
}

/// Writes a state as a new directory.
pub(crate) fn save(state: &MemoryState, path: &Path, is_spread: bool) {
    let tensors = state.tensors();
    let names: Vec<String> = tensors.iter().map(|info| info.name().to_owned()).collect();
    let (layers, others): (Vec<_>, Vec<_>) = names
        .iter()
        .cloned()
        .partition(|name| name.starts_with("layers/"));
    let file = |name: &str, metadata: Option<&str>, tensors: &[String]| LayoutFile {
        name: Some(name.to_owned()),
        metadata: metadata.map(|format| [("format".to_owned(), format.to_owned())].into()),
        tensors: tensors.to_vec(),
    };
    let (first, second) = others.split_at(others.len() / 2);
    let files = if is_spread {
        vec![
            file("layers/model.safetensors", Some("np"), &layers),
            file("model-00001-of-00002.safetensors", Some("pt"), first),
            file("model-00002-of-00002.safetensors", None, second),
        ]
    } else {
        vec![file("model.safetensors", Some("pt"), &names)]
    };
    let layout = Layout::joined(files.iter()).unwrap();
    let staged = StagedSafetensors::create(path, tensors, &layout, None, false).unwrap();
    for (number, (_, data)) in state.iter().enumerate() {
        staged.write(number, 0, data).unwrap();
    }
    staged.commit().unwrap();
}
