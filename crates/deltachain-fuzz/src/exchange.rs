//! Any bytes as the delta of another system: its reader returns without a panic, refuses the bytes
//! with a class that says why, and allocates within a bound that follows from the lengths of the
//! file and the base.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use deltachain::ErrorClass;
use deltachain::tensor::{Dtype, MemoryState, State};
use deltachain_exchange::{Reader, Step, Writer, arc2, pulsept1, slime, trl};
use tempfile::TempDir;

use crate::memory::{peak_of, single_threaded};

const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00001-of-00001.safetensors";

/// Folder of the inputs while they are read.
static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a temporary folder can be made"));

/// The base and the result of the deltas: a scalar, an empty tensor, a tensor that changes in some
/// places, and one that does not change.
static STATES: LazyLock<[MemoryState; 2]> = LazyLock::new(|| {
    [0, 1].map(|step| {
        let mut state = MemoryState::new();
        let mut add = |name: &str, shape: &[u64], bits: &dyn Fn(u16) -> u16| {
            let elements = u16::try_from(shape.iter().product::<u64>()).expect("tensors are small");
            let data = (0..elements)
                .flat_map(|element| bits(element).to_le_bytes())
                .collect();
            state
                .insert(name, Dtype::BF16, shape, data)
                .expect("the data fits its shape");
        };
        add("a", &[], &|_| 0x3f80 + step);
        add("b", &[0], &|_| 0);
        add("c", &[20, 30], &|element| {
            (element % 5) << 7 | if element % 41 == 3 { step * 3 } else { 0 }
        });
        add("d", &[9], &|element| element);
        state
    })
});

fn check(reader: Reader, path: &Path, length: usize) {
    let base = &STATES[0];
    let mut result = MemoryState::zeros(base.tensors()).expect("there is room");
    let writer = result.writer();
    let (applied, peak) = peak_of(|| reader.apply(path, base, &writer, &()));
    // Decoders have tables of their own; the rest is a small multiple of the base and the file.
    let bound = 64 * length as u64 + (256 << 10);
    assert!(
        peak <= bound,
        "{length} bytes made the reader allocate {peak}, at most {bound}"
    );
    if let Err(error) = applied {
        use ErrorClass::{Corrupt, Io, Malformed, StateMismatch, Unsupported, Usage, WrongBase};
        let classes = [
            Corrupt,
            Malformed,
            StateMismatch,
            Unsupported,
            Usage,
            WrongBase,
        ];
        // An index may name files that do not exist.
        let is_missing = error.class() == Io && matches!(reader, Reader::Slime);
        assert!(
            (classes.contains(&error.class()) || is_missing) && error.file().is_some(),
            "{error}"
        );
    }
}

fn file(reader: Reader, data: &[u8]) {
    single_threaded();
    let path = FOLDER.path().join(format!("{reader:?}"));
    fs::write(&path, data).expect("a temporary file can be written");
    check(reader, &path, data.len());
}

/// Applies bytes as a file of ARC.
pub fn arc2(data: &[u8]) {
    file(Reader::Arc2, data);
}

/// Applies bytes as a file of PULSEPT1.
pub fn pulsept1(data: &[u8]) {
    file(Reader::Pulsept1, data);
}

/// Applies bytes as a file of TRL.
pub fn trl(data: &[u8]) {
    file(Reader::Trl, data);
}

/// Applies bytes as a directory of slime: the length of its index in two bytes, the index, and the
/// file.
pub fn slime(data: &[u8]) {
    single_threaded();
    let Some((length, rest)) = data.split_first_chunk() else {
        return;
    };
    let (index, shard) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let path = FOLDER.path().join("weights");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(path.join(name), bytes).expect("a temporary file can be written");
    };
    fs::create_dir_all(&path).expect("a temporary folder can be made");
    write(INDEX, index);
    write(SHARD, shard);
    check(Reader::Slime, &path, data.len());
}

/// Writes a delta between the two states in each layout; returns them with the names of their
/// targets.
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let writers = [
        ("arc2", Writer::Arc2(arc2::Version::V1)),
        ("arc2", Writer::Arc2(arc2::Version::V2)),
        ("pulsept1", Writer::Pulsept1(pulsept1::Version::V1)),
        ("pulsept1", Writer::Pulsept1(pulsept1::Version::V2)),
        ("pulsept1", Writer::Pulsept1(pulsept1::Version::V3)),
        (
            "slime",
            Writer::Slime(slime::Encoding::Xor, slime::Checksum::Xxh3),
        ),
        (
            "slime",
            Writer::Slime(slime::Encoding::Xor, slime::Checksum::Adler32),
        ),
        (
            "slime",
            Writer::Slime(slime::Encoding::Overwrite, slime::Checksum::Blake3),
        ),
        ("trl", Writer::Trl(trl::Encoding::GapDelta)),
        ("trl", Writer::Trl(trl::Encoding::Raw)),
    ];
    let [base, target] = &*STATES;
    let mut seeds = Vec::new();
    for (name, writer) in writers {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let written = writer
            .write(base, target, &Step::new(1), folder.path(), &())
            .expect("all layouts carry this");
        let read = |path: &Path| fs::read(path).expect("what was written can be read");
        let bytes = if written.path.is_dir() {
            let index = read(&written.path.join(INDEX));
            let shard = read(&written.path.join(SHARD));
            let length = u16::try_from(index.len()).expect("the index is short");
            [&length.to_le_bytes()[..], &index, &shard].concat()
        } else {
            read(&written.path)
        };
        seeds.push((name, bytes));
    }
    seeds
}
