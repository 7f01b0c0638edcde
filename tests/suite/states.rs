//! States for the tests: random ones, and a few with every special case.

use deltachain::tensor::{DescribedDtype, Dtype, MemoryState, State, TensorInfo};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, diff};
use proptest::prelude::*;

/// All profiles.
pub(crate) const PROFILES: [Profile; 3] = [Profile::Compact, Profile::Direct, Profile::Local];

/// Writes the link from `base` to `target`.
pub(crate) fn link(base: &MemoryState, target: &MemoryState, profile: Profile) -> Vec<u8> {
    let mut file = Vec::new();
    diff(
        base,
        target,
        &DiffOptions::default().profile(profile),
        &mut file,
    )
    .unwrap();
    file
}

/// Opens a link that is known to be good.
pub(crate) fn open(file: &[u8]) -> LinkReader<&[u8]> {
    LinkReader::open(file, &Limits::default()).unwrap()
}

/// One tensor of a random state: name, dtype, shape, and a seed for its data.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    seed: u64,
}

/// Generates any dtype of the table, or one of a few described ones.
fn dtype() -> impl Strategy<Value = Dtype> {
    let described = [
        ("U24", 24, 1, None),
        ("F12", 12, 2, Some(11)),
        ("S32", 32, 4, Some(0)),
        ("F8_E7M0", 8, 1, Some(7)),
        ("Q144", 144, 2, None),
    ];
    let described = described.map(|(name, bits, lane_bytes, exponent_bits)| {
        Dtype::Described(DescribedDtype::new(name, bits, lane_bytes, exponent_bits).unwrap())
    });
    prop_oneof![
        4 => prop::sample::select(Dtype::all().collect::<Vec<_>>()),
        1 => prop::sample::select(described.to_vec()),
    ]
}

/// Generates shapes from scalars to a few thousand elements, also with zero elements; packed types
/// get whole bytes.
fn spec() -> impl Strategy<Value = Spec> {
    let shape = prop_oneof![
        Just(vec![]),
        Just(vec![0, 3]),
        (0_u64..40).prop_map(|n| vec![n]),
        (1_u64..30, 1_u64..30).prop_map(|(a, b)| vec![a, b]),
        (100_u64..2000).prop_map(|n| vec![n, 2]),
    ];
    // There are few names, so that tensors of two states have the same one.
    let name = prop_oneof![
        Just(String::new()),
        "[a-e]",
        Just("é\u{0}\n𝛼".to_owned()),
        Just("model.layers.0.w".to_owned())
    ];
    (name, dtype(), shape, any::<u64>()).prop_map(|(name, dtype, mut shape, seed)| {
        if TensorInfo::new("", dtype, [1]).is_none() {
            shape.push(4);
        }
        Spec {
            name,
            dtype,
            shape,
            seed,
        }
    })
}

/// Generates a random state.
pub(crate) fn state() -> impl Strategy<Value = MemoryState> {
    prop::collection::vec(spec(), 0..6).prop_map(|specs| {
        let mut state = MemoryState::new();
        for Spec {
            name,
            dtype,
            shape,
            seed,
        } in specs
        {
            let bits = shape.iter().product::<u64>() * dtype.bits();
            state
                .insert(
                    &name,
                    dtype,
                    &shape,
                    noise(seed, usize::try_from(bits / 8).unwrap()),
                )
                .unwrap();
        }
        state
    })
}

/// Makes a state that follows `state`: some lanes change a little; some tensors are added or
/// removed, or change their dtype or shape.
pub(crate) fn successor(
    state: &MemoryState,
    seed: u64,
    rarity: u64,
    other: &MemoryState,
) -> MemoryState {
    let mut next = MemoryState::new();
    for (number, (info, data)) in (0_u64..).zip(state.iter()) {
        let fate = (seed >> (number % 16)) & 0b111;
        let mut data = data.to_vec();
        match fate {
            0 => continue,
            1 => {}
            2 => {
                let shape = vec![1; 1]
                    .into_iter()
                    .chain(info.shape().iter().copied())
                    .collect::<Vec<_>>();
                next.insert(info.name(), info.dtype(), &shape, data)
                    .unwrap();
                continue;
            }
            _ => {
                let width = info.dtype().lane_bytes();
                for (lane, noise) in data
                    .chunks_exact_mut(width)
                    .zip(noise(seed ^ number, 1 << 14).chunks_exact(4))
                {
                    let noise = u64::from(u32::from_le_bytes(noise.try_into().unwrap()));
                    if noise.is_multiple_of(rarity) {
                        lane[0] = lane[0].wrapping_add(u8::try_from(noise >> 30).unwrap() + 1);
                    }
                }
            }
        }
        next.insert(info.name(), info.dtype(), info.shape(), data)
            .unwrap();
    }
    for (number, (info, data)) in (0_u64..).zip(other.iter()) {
        if (seed >> (number % 16 + 20)) & 1 == 1 {
            next.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
                .unwrap();
        }
    }
    next
}

/// Makes bytes that look random, many of them with small magnitudes.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; length];
    hasher.finalize_xof().fill(&mut bytes);
    if seed.is_multiple_of(3) {
        bytes
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|byte| *byte &= 0xBF);
    }
    bytes
}

/// Makes two states with -0, NaN payloads, infinities, scalars, empty tensors, odd names, and all
/// kinds of changes.
pub(crate) fn special_pair() -> (MemoryState, MemoryState) {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    let floats = |bits: &[u32]| {
        bits.iter()
            .flat_map(|bits| bits.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    base.insert(
        "zeros",
        Dtype::F32,
        &[4],
        floats(&[0, 0x8000_0000, 0x7FC0_0000, 0x7F80_0000]),
    )
    .unwrap();
    target
        .insert(
            "zeros",
            Dtype::F32,
            &[4],
            floats(&[0x8000_0000, 0, 0x7FC0_0001, 0xFFC0_0000]),
        )
        .unwrap();
    base.insert("scalar", Dtype::BF16, &[], vec![0x80, 0x3F])
        .unwrap();
    target
        .insert("scalar", Dtype::BF16, &[], vec![0x81, 0x3F])
        .unwrap();
    base.insert("empty", Dtype::I64, &[0, 7], vec![]).unwrap();
    target.insert("empty", Dtype::I64, &[7, 0], vec![]).unwrap();
    base.insert("removed", Dtype::BOOL, &[3], vec![0, 1, 1])
        .unwrap();
    target
        .insert("added\n\u{202e}", Dtype::F4, &[2], vec![0x5A])
        .unwrap();
    base.insert("retyped", Dtype::U8, &[8], (0..8).collect())
        .unwrap();
    target
        .insert("retyped", Dtype::F64, &[1], (0..8).collect())
        .unwrap();
    base.insert("reshaped", Dtype::F6_E2M3, &[4, 4], (0..12).collect())
        .unwrap();
    target
        .insert("reshaped", Dtype::F6_E2M3, &[16], (0..12).collect())
        .unwrap();
    base.insert("same", Dtype::C64, &[2], noise(1, 16)).unwrap();
    target
        .insert("same", Dtype::C64, &[2], noise(1, 16))
        .unwrap();
    let old = noise(3, 4000);
    let mut new = old.clone();
    new.iter_mut().step_by(34).for_each(|byte| *byte ^= 1);
    base.insert("weights", Dtype::BF16, &[40, 50], old).unwrap();
    target
        .insert("weights", Dtype::BF16, &[40, 50], new)
        .unwrap();
    assert!(base.tensors().len() == 8 && target.tensors().len() == 8);
    (base, target)
}
