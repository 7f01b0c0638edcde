//! States for structured inputs: small, made from arbitrary bytes, with every dtype and every kind
//! of change.

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use deltachain::tensor::{DescribedDtype, Dtype, MemoryState, State, StateDigests, TensorInfo};
use deltachain::{DiffOptions, Profile, diff};

/// Maximum number of tensors of a first state, and of tensors that a step adds.
const TENSORS: usize = 6;

/// The recipe for a tensor.
#[derive(Debug, Arbitrary)]
struct Tensor {
    name: Name,
    dtype: u8,
    shape: Shape,
    fill: Fill,
}

/// A name; there are few, so that tensors of two states have the same one.
#[derive(Debug, Arbitrary)]
enum Name {
    Letter(u8),
    Any(String),
}

#[derive(Debug, Arbitrary)]
enum Shape {
    Scalar,
    Empty,
    Line(u8),
    Plane(u8, u8),
    Long(u16),
}

#[derive(Debug, Arbitrary)]
enum Fill {
    Zeros,
    /// Bytes that look random.
    Noise(u32),
    /// These bytes, repeated to the length of the tensor.
    Bytes(Vec<u8>),
}

/// The change of a tensor from one state to the next.
#[derive(Debug, Arbitrary)]
enum Change {
    Nothing,
    Remove,
    Reshape,
    Retype(u8),
    /// About `rarity` lanes in 256 move by at most `reach` in either direction.
    Move {
        seed: u32,
        rarity: u8,
        reach: u16,
    },
    /// Sets single bytes.
    Bytes(Vec<(u16, u8)>),
}

/// The recipe for a state.
#[derive(Debug, Arbitrary)]
pub(crate) struct Start(Vec<Tensor>);

/// The difference between one state and the next.
#[derive(Debug, Arbitrary)]
pub(crate) struct Step {
    changes: Vec<Change>,
    added: Vec<Tensor>,
}

impl Start {
    /// Makes the state.
    pub(crate) fn state(&self) -> MemoryState {
        let mut state = MemoryState::new();
        self.0
            .iter()
            .take(TENSORS)
            .for_each(|tensor| tensor.add_to(&mut state));
        state
    }
}

impl Step {
    /// Makes the state that follows `state`.
    pub(crate) fn after(&self, state: &MemoryState) -> MemoryState {
        let mut next = MemoryState::new();
        for (number, (info, data)) in state.iter().enumerate() {
            let mut dtype = info.dtype();
            let mut shape = info.shape().to_vec();
            let mut data = data.to_vec();
            match self.changes.get(number).unwrap_or(&Change::Nothing) {
                Change::Nothing => {}
                Change::Remove => continue,
                Change::Reshape => shape.insert(0, 1),
                Change::Retype(code) => {
                    dtype = dtype_of(*code);
                    shape = vec![data.len() as u64 * 8 / dtype.bits()];
                    data.truncate(bytes_of(dtype, &shape).unwrap_or(0));
                }
                Change::Move {
                    seed,
                    rarity,
                    reach,
                } => move_lanes(&mut data, dtype, *seed, *rarity, *reach),
                Change::Bytes(changes) => {
                    for &(at, byte) in changes {
                        let length = data.len().max(1);
                        data.get_mut(usize::from(at) % length)
                            .into_iter()
                            .for_each(|old| *old = byte);
                    }
                }
            }
            // Data that fits no shape is dropped with its tensor.
            let _ = next.insert(info.name(), dtype, &shape, data);
        }
        self.added
            .iter()
            .take(TENSORS)
            .for_each(|tensor| tensor.add_to(&mut next));
        next
    }
}

impl Tensor {
    fn add_to(&self, state: &mut MemoryState) {
        let name = match &self.name {
            Name::Letter(letter) => char::from(b'a' + letter % 5).to_string(),
            Name::Any(name) => name.clone(),
        };
        let dtype = dtype_of(self.dtype);
        let mut shape = match self.shape {
            Shape::Scalar => vec![],
            Shape::Empty => vec![7, 0],
            Shape::Line(length) => vec![length.into()],
            Shape::Plane(height, width) => vec![(height % 32).into(), (width % 32).into()],
            Shape::Long(length) => vec![(length % 8192).into()],
        };
        if bytes_of(dtype, &[1]).is_none() {
            shape.push(4);
        }
        let length = bytes_of(dtype, &shape).expect("four packed elements are whole lanes");
        let data = match &self.fill {
            Fill::Zeros => vec![0; length],
            Fill::Noise(seed) => noise(*seed, length),
            Fill::Bytes(bytes) if bytes.is_empty() => vec![0xFF; length],
            Fill::Bytes(bytes) => bytes.iter().copied().cycle().take(length).collect(),
        };
        state
            .insert(&name, dtype, &shape, data)
            .expect("the data fits its shape");
    }
}

/// Returns any dtype of the table, or a described one: elements that are not lanes, and exponents
/// of extreme widths.
fn dtype_of(code: u8) -> Dtype {
    let dtypes: Vec<Dtype> = Dtype::all().chain(described()).collect();
    dtypes[usize::from(code) % dtypes.len()]
}

fn described() -> impl Iterator<Item = Dtype> {
    let all = [
        ("U24", 24, 1, None),
        ("F12", 12, 2, Some(11)),
        ("S32", 32, 4, Some(0)),
        ("F8_E7M0", 8, 1, Some(7)),
        ("Q144", 144, 2, None),
    ];
    all.into_iter()
        .filter_map(|(name, bits, lane, exponent)| DescribedDtype::new(name, bits, lane, exponent))
        .map(Dtype::Described)
}

fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<usize> {
    TensorInfo::new("", dtype, shape).and_then(|info| usize::try_from(info.bytes()).ok())
}

/// Makes bytes that look random; every second one has few values, as exponents do.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed.into());
    (0..length)
        .map(|at| {
            if at % 2 == 1 {
                random.u8(0x3B..0x40)
            } else {
                random.u8(..)
            }
        })
        .collect()
}

fn move_lanes(data: &mut [u8], dtype: Dtype, seed: u32, rarity: u8, reach: u16) {
    let mut random = fastrand::Rng::with_seed(seed.into());
    for lane in data.chunks_exact_mut(dtype.lane_bytes()) {
        if random.u8(..) > rarity {
            continue;
        }
        let mut wide = [0; 8];
        wide[..lane.len()].copy_from_slice(lane);
        let moved = u64::from_le_bytes(wide).wrapping_add(random.u64(0..=u64::from(reach) * 2));
        let moved = moved.wrapping_sub(reach.into()).to_le_bytes();
        lane.copy_from_slice(&moved[..lane.len()]);
    }
}

/// Writes the link from `base` to `target`.
pub(crate) fn link(base: &MemoryState, target: &MemoryState, profile: Profile) -> Vec<u8> {
    let mut file = Vec::new();
    diff(
        base,
        target,
        &DiffOptions::default().profile(profile),
        &mut file,
    )
    .expect("a state has a link");
    file
}

/// Two states with a tensor of every dtype of the table. Each tensor changes, most of them only a
/// little.
pub(crate) static MIXED: LazyLock<(MemoryState, MemoryState)> =
    LazyLock::new(|| mixed(Dtype::all()));

/// Two such states with described dtypes.
pub(crate) static DESCRIBED: LazyLock<(MemoryState, MemoryState)> =
    LazyLock::new(|| mixed(described()));

fn mixed(dtypes: impl Iterator<Item = Dtype>) -> (MemoryState, MemoryState) {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    for dtype in dtypes {
        let length = bytes_of(dtype, &[64]).expect("64 elements are whole bytes");
        let old = noise(dtype.code().into(), length);
        let mut new = old.clone();
        move_lanes(
            &mut new,
            dtype,
            1,
            if dtype.code() % 3 == 0 { 200 } else { 20 },
            2,
        );
        for (state, data) in [(&mut base, old), (&mut target, new)] {
            state
                .insert(dtype.name(), dtype, &[64], data)
                .expect("the data fits its shape");
        }
    }
    (base, target)
}

/// A pair for which the encoder uses contexts: many BF16 lanes, of which those with small exponents
/// change often.
pub(crate) static CONTEXTS: LazyLock<(MemoryState, MemoryState)> = LazyLock::new(|| {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    let mut random = fastrand::Rng::with_seed(1);
    let mut old = Vec::new();
    let mut new = Vec::new();
    for lane in 0..600_u32 {
        let exponent: u8 = if lane % 2 == 0 { 0x3C } else { 0x3F };
        let bytes = [random.u8(..), exponent];
        let changes = random.u32(0..if lane % 2 == 0 { 2 } else { 60 }) == 0;
        old.extend(bytes);
        new.extend([bytes[0] ^ u8::from(changes), exponent]);
    }
    base.insert("w", Dtype::BF16, &[600], old)
        .expect("the data fits its shape");
    target
        .insert("w", Dtype::BF16, &[600], new)
        .expect("the data fits its shape");
    (base, target)
});

/// The possible base states of resealed links, with their digests.
pub(crate) static BASES: LazyLock<Vec<(MemoryState, StateDigests)>> = LazyLock::new(|| {
    let states = [
        MemoryState::new(),
        MIXED.0.clone(),
        CONTEXTS.0.clone(),
        DESCRIBED.0.clone(),
    ];
    states
        .into_iter()
        .map(|state| (digests(&state), state))
        .map(|(digests, state)| (state, digests))
        .collect()
});

/// Number of states at the beginning of [`BASES`] that safetensors files can hold.
pub(crate) const FILE_BASES: usize = 3;

fn digests(state: &impl State) -> StateDigests {
    StateDigests::of(state, &()).expect("memory can be read")
}
