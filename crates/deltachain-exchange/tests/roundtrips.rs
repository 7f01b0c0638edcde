//! The reader of each layout reads exactly what the writer writes, and refuses damaged files and
//! other bases where the layout can tell.

use std::fs;
use std::path::{Path, PathBuf};

use deltachain::files::SafetensorsState;
use deltachain::tensor::{Dtype, MemoryState, State};
use deltachain::{Error, ErrorClass, Result, StateTable};
use deltachain_exchange::{Import, Reader, Step, Writer, arc2, pulsept1, slime, trl};
use tempfile::tempdir;

const WRITERS: &[(Writer, Reader)] = &[
    (Writer::Arc2(arc2::Version::V1), Reader::Arc2),
    (Writer::Arc2(arc2::Version::V2), Reader::Arc2),
    (
        Writer::Slime(slime::Encoding::Xor, slime::Checksum::Xxh3),
        Reader::Slime,
    ),
    (
        Writer::Slime(slime::Encoding::Xor, slime::Checksum::Adler32),
        Reader::Slime,
    ),
    (
        Writer::Slime(slime::Encoding::Overwrite, slime::Checksum::Blake3),
        Reader::Slime,
    ),
    (Writer::Pulsept1(pulsept1::Version::V1), Reader::Pulsept1),
    (Writer::Pulsept1(pulsept1::Version::V2), Reader::Pulsept1),
    (Writer::Pulsept1(pulsept1::Version::V3), Reader::Pulsept1),
    (Writer::Trl(trl::Encoding::GapDelta), Reader::Trl),
    (Writer::Trl(trl::Encoding::Raw), Reader::Trl),
];

/// Makes two states of BF16 tensors: a scalar, an empty one, odd lengths, signed zeros, NaN
/// payloads, a name in Unicode, a gap above 2^16, one that is the same in both, and one that
/// changes everywhere.
fn states() -> [MemoryState; 2] {
    let mut states = [MemoryState::new(), MemoryState::new()];
    let mut add = |name: &str, shape: &[u64], bits: &dyn Fn(u32) -> [u16; 2]| {
        for (number, state) in states.iter_mut().enumerate() {
            let elements = u32::try_from(shape.iter().product::<u64>()).unwrap();
            let data = (0..elements)
                .flat_map(|element| bits(element)[number].to_le_bytes())
                .collect();
            state.insert(name, Dtype::BF16, shape, data).unwrap();
        }
    };
    add("a scalar", &[], &|_| [0x3f80, 0xbf80]);
    add("empty", &[3, 0], &|_| [0, 0]);
    add("Maß\n", &[7], &|element| {
        if element == 5 {
            [0, 0x8000]
        } else {
            [0x8000, 0x8000]
        }
    });
    add("nan", &[5], &|element| {
        [
            0x7f81,
            if element < 3 {
                0x7fc1 + low(element)
            } else {
                0x7f81
            },
        ]
    });
    add("same", &[4, 4], &|element| [low(element); 2]);
    add("all", &[301], &|element| {
        [low(element), 0x4000 ^ low(element)]
    });
    let scattered = |element: u32| {
        let old = low(element.wrapping_mul(2_654_435_761) >> 17);
        [
            old,
            if element.is_multiple_of(97) && !(100..80_000).contains(&element) {
                old ^ 3
            } else {
                old
            },
        ]
    };
    add("scattered", &[300, 401], &scattered);
    states
}

/// Converts a number that fits 16 bits.
fn low(number: u32) -> u16 {
    u16::try_from(number).unwrap()
}

fn read(reader: Reader, delta: &Path, base: &MemoryState) -> Result<(MemoryState, Import)> {
    let mut result = MemoryState::zeros(base.tensors())?;
    let applied = reader.apply(delta, base, &result.writer(), &())?;
    Ok((result, applied))
}

fn write(writer: Writer, states: &[MemoryState; 2], folder: &Path) -> Result<PathBuf> {
    let written = writer.write(&states[0], &states[1], &Step::new(7), folder, &())?;
    assert_eq!(
        files(&written.path)
            .iter()
            .map(|path| path.metadata().unwrap().len())
            .sum::<u64>(),
        written.bytes
    );
    Ok(written.path)
}

fn files(path: &Path) -> Vec<PathBuf> {
    match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => vec![path.to_owned()],
    }
}

#[test]
fn what_is_written_is_read() {
    let states = states();
    for &(writer, reader) in WRITERS {
        let folder = tempdir().unwrap();
        let delta = write(writer, &states, folder.path()).unwrap();
        let (result, applied) = read(reader, &delta, &states[0]).unwrap();
        assert!(result == states[1], "{writer:?}");
        assert!(!applied.remarks.is_empty());
        if matches!(reader, Reader::Slime | Reader::Pulsept1) {
            let version = |text: Option<String>| text.unwrap().parse::<u64>().unwrap();
            assert_eq!(
                (version(applied.version), version(applied.base_version)),
                (7, 6)
            );
        }
        // A second write is refused, and leaves the first one as it is.
        assert_eq!(
            write(writer, &states, folder.path()).unwrap_err().class(),
            ErrorClass::Usage
        );
        assert!(read(reader, &delta, &states[0]).is_ok());
    }
}

#[test]
fn nothing_changes() {
    let state = states()[0].clone();
    for &(writer, reader) in WRITERS {
        let folder = tempdir().unwrap();
        let delta = write(writer, &[state.clone(), state.clone()], folder.path()).unwrap();
        assert!(
            read(reader, &delta, &state).unwrap().0 == state,
            "{writer:?}"
        );
    }
}

#[test]
fn damage_is_noticed_where_the_layout_can() {
    let states = states();
    for &(writer, reader) in WRITERS {
        let folder = tempdir().unwrap();
        let delta = write(writer, &states, folder.path()).unwrap();
        for file in files(&delta) {
            let whole = fs::read(&file).unwrap();
            for length in [0, 7, 11, whole.len() / 2, whole.len() - 1] {
                fs::write(&file, &whole[..length]).unwrap();
                assert!(
                    read(reader, &delta, &states[0]).is_err(),
                    "{writer:?} cut to {length}"
                );
            }
            for place in (0..whole.len()).step_by(1.max(whole.len() / 150)) {
                let mut damaged = whole.clone();
                damaged[place] ^= 0x11;
                fs::write(&file, damaged).unwrap();
                match read(reader, &delta, &states[0]) {
                    Err(error) => assert!(error.file().is_some(), "{error}"),
                    // TRL has no checksum; in other layouts, the damaged byte has no influence on
                    // the result.
                    Ok((result, _)) => assert!(
                        reader == Reader::Trl || result == states[1],
                        "{writer:?} {place}"
                    ),
                }
            }
            fs::write(&file, whole).unwrap();
        }
        let mut other = states[0].clone();
        let mut data = other.get("all").unwrap().1.to_vec();
        data[9] ^= 0x40;
        other.insert("all", Dtype::BF16, &[301], data).unwrap();
        let result = read(reader, &delta, &other);
        match (writer, result) {
            // These layouts replace the old values, and the other base differs in a tensor that
            // changes everywhere: the result is right.
            (Writer::Trl(_) | Writer::Slime(slime::Encoding::Overwrite, _), Ok((result, _))) => {
                assert_eq!(result.get("scattered"), states[1].get("scattered"));
            }
            (_, result) => {
                let class = result.unwrap_err().class();
                assert!(
                    matches!(class, ErrorClass::StateMismatch | ErrorClass::WrongBase),
                    "{writer:?}: {class}"
                );
            }
        }
        let mut smaller = states[0].clone();
        smaller.remove("scattered");
        let error = read(reader, &delta, &smaller).unwrap_err();
        assert_eq!(error.class(), ErrorClass::WrongBase, "{writer:?}: {error}");
        assert_eq!(
            error.tensor(),
            Some(if reader == Reader::Pulsept1 {
                "scattered"
            } else {
                error.tensor().unwrap()
            })
        );
    }
}

fn table(state: &MemoryState) -> StateTable {
    StateTable::of(state, &()).unwrap()
}

fn checked(writer: Writer, base: &MemoryState, target: &MemoryState) -> Result<()> {
    let checked = writer.check(&table(base), &table(target));
    let folder = tempdir().unwrap();
    let written = write(writer, &[base.clone(), target.clone()], folder.path());
    assert_eq!(checked.is_ok(), written.is_ok(), "{writer:?}");
    assert!(written.is_ok() || files(folder.path()).is_empty());
    checked
}

#[test]
fn what_a_layout_cannot_carry_is_refused_before_anything_is_written() {
    let [base, target] = states();
    let refused = |result: Result<()>, tensor: &str| {
        let error: Error = result.unwrap_err();
        assert_eq!(
            (error.class(), error.tensor()),
            (ErrorClass::Usage, Some(tensor)),
            "{error}"
        );
    };
    for &(writer, reader) in WRITERS {
        checked(writer, &base, &target).unwrap();
        let mut other = target.clone();
        other.remove("nan");
        refused(checked(writer, &base, &other), "nan");
        refused(checked(writer, &other, &target), "nan");
        other
            .insert("nan", Dtype::BF16, &[5, 1], vec![0; 10])
            .unwrap();
        refused(checked(writer, &base, &other), "nan");

        // A tensor of another dtype, with and without a change.
        let mut base = base.clone();
        let mut target = target.clone();
        base.insert("f32", Dtype::F32, &[1], vec![0; 4]).unwrap();
        target.insert("f32", Dtype::F32, &[1], vec![0; 4]).unwrap();
        let unchanged = checked(writer, &base, &target);
        target.insert("f32", Dtype::F32, &[1], vec![1; 4]).unwrap();
        let changed = checked(writer, &base, &target);
        match reader {
            Reader::Arc2 | Reader::Slime => changed.and(unchanged).unwrap(),
            Reader::Pulsept1 => [changed, unchanged]
                .into_iter()
                .for_each(|result| refused(result, "f32")),
            Reader::Trl => {
                unchanged.unwrap();
                refused(changed, "f32");
            }
        }
    }
    let mut states = [MemoryState::new(), MemoryState::new()];
    states[0]
        .insert("a.idx", Dtype::BF16, &[1], vec![0; 2])
        .unwrap();
    states[1]
        .insert("a.idx", Dtype::BF16, &[1], vec![1; 2])
        .unwrap();
    refused(
        checked(Writer::Trl(trl::Encoding::Raw), &states[0], &states[1]),
        "a.idx",
    );
}

/// Writes a safetensors file with this header and data.
fn envelope(path: &Path, header: &str, data: &[u8]) {
    let mut header = header.to_owned();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    fs::write(
        path,
        [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            data,
        ]
        .concat(),
    )
    .unwrap();
}

#[test]
fn pickles_and_roundings_are_refused_with_the_reason() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d.safetensors");
    let mut base = MemoryState::new();
    base.insert("a", Dtype::F32, &[2], vec![0; 8]).unwrap();
    let refused = |reader, text: &str| {
        let error = read(reader, &path, &base).unwrap_err();
        assert_eq!(
            (error.class(), error.tensor().unwrap_or("a")),
            (ErrorClass::Unsupported, "a"),
            "{error}"
        );
        assert!(error.message().contains(text), "{error}");
    };
    let pickle = b"ARC3_ENVELOPE\0\x80\x04}.";
    let header = format!(
        r#"{{"__metadata__":{{"a":"1"}},"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#,
        pickle.len()
    );
    envelope(&path, &header, pickle);
    refused(Reader::Arc2, "pickled");

    let header = r#"{"__metadata__":{"encoding":"raw"},"a.idx":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},
        "a.val":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}"#;
    envelope(&path, header, &[1, 0, 0, 0, 0x80, 0x3f]);
    refused(Reader::Trl, "rounds");
    envelope(
        &path,
        r#"{"__metadata__":{"encoding":"nvcomp_cascaded"}}"#,
        &[],
    );
    refused(Reader::Trl, "GPU");

    // A patch of the first form.
    let header = r#"{"__metadata__":{"format":"sparse_weight_patch","version":"1","sparse":"True","model_version":"4"},
        "a.indices":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},
        "a.values":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}"#;
    envelope(&path, header, &[1, 0, 0, 0, 0x80, 0x3f]);
    base.insert("a", Dtype::BF16, &[2], vec![0; 4]).unwrap();
    let (result, applied) = read(Reader::Trl, &path, &base).unwrap();
    assert_eq!(result.get("a").unwrap().1, [0, 0, 0x80, 0x3f]);
    assert_eq!(
        (applied.version.as_deref(), applied.remarks.len()),
        (Some("4"), 2)
    );
    envelope(&path, header, &[2, 0, 0, 0, 0x80, 0x3f]);
    assert_eq!(
        read(Reader::Trl, &path, &base).unwrap_err().class(),
        ErrorClass::WrongBase
    );
    envelope(&path, header, &[0xff, 0xff, 0xff, 0xff, 0x80, 0x3f]);
    assert_eq!(
        read(Reader::Trl, &path, &base).unwrap_err().class(),
        ErrorClass::Malformed
    );
}

#[test]
fn arc_keeps_the_files_of_the_base() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    envelope(
        &model.join("x.safetensors"),
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
        &[1, 2],
    );
    envelope(
        &model.join("y.safetensors"),
        r#"{"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#,
        &[3; 8],
    );
    let base = SafetensorsState::open(&model).unwrap();
    let before = MemoryState::copy_of(&base).unwrap();
    let mut target = before.clone();
    target.insert("a", Dtype::U8, &[2], vec![1, 9]).unwrap();
    let step = Step::new(1).layout(Some(base.layout()));
    let written = Writer::Arc2(arc2::Version::V2)
        .write(&base, &target, &step, folder.path(), &())
        .unwrap();
    assert_eq!(
        SafetensorsState::open(&written.path)
            .unwrap()
            .layout()
            .files()[1]
            .name
            .as_deref(),
        Some("y.safetensors")
    );
    assert!(read(Reader::Arc2, &written.path, &before).unwrap().0 == target);

    // ARC has no folders.
    fs::create_dir(model.join("vae")).unwrap();
    envelope(
        &model.join("vae/z.safetensors"),
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        &[7],
    );
    let base = SafetensorsState::open(&model).unwrap();
    let before = MemoryState::copy_of(&base).unwrap();
    target.insert("vae/a", Dtype::U8, &[1], vec![8]).unwrap();
    let step = Step::new(2).layout(Some(base.layout()));
    let written = Writer::Arc2(arc2::Version::V2)
        .write(&base, &target, &step, folder.path(), &())
        .unwrap();
    assert!(written.path.is_file());
    assert!(read(Reader::Arc2, &written.path, &before).unwrap().0 == target);
}
