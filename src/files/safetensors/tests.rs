use super::*;
use crate::error::ErrorClass;
use crate::files::header::file_of;
use crate::tensor::{Dtype, MemoryState};

const A: &str = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
const B: &str = r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;

fn usage(path: &Path, text: &str) {
    let error = SafetensorsState::open(path).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    assert!(error.to_string().contains(text), "{error}");
    let file = error.file().unwrap();
    assert!(file.starts_with(path.to_str().unwrap()), "{file}");
}

#[test]
fn a_file_is_read_by_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Größe 1 \u{1F9EE}.anything");
    let json = r#" {"z":{"shape":[],"dtype":"U8","data_offsets":[0,1]}, "Maß\n":{"dtype":"BF16","shape":[0,3],"data_offsets":[1,1]},
        "b":{"dtype":"F32","shape":[1,2],"data_offsets":[1,9]},"__metadata__":{"format":"pt"}}  "#;
    fs::write(&path, file_of(json, &[9, 1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    let state = SafetensorsState::open(&path).unwrap();
    assert_eq!(state.path(), path);
    assert_eq!(state.other_files(), [""; 0]);
    assert!(!state.layout().is_directory());
    assert_eq!(state.layout().to_json(), r#"{"files":[{"name":null,"metadata":{"format":"pt"},"tensors":null}]}"#);
    assert_eq!(state.layout().files()[0].tensors, ["Maß\n", "b", "z"]);

    let mut expected = MemoryState::new();
    expected.insert("z", Dtype::U8, &[], vec![9]).unwrap();
    expected.insert("Maß\n", Dtype::BF16, &[0, 3], vec![]).unwrap();
    expected.insert("b", Dtype::F32, &[1, 2], vec![1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(MemoryState::copy_of(&state).unwrap(), expected);

    let mut bytes = [0; 3];
    state.read(1, 5, &mut bytes).unwrap();
    assert_eq!(bytes, [6, 7, 8]);
    for (tensor, offset) in [(1, 6), (1, u64::MAX), (2, 0), (3, 0)] {
        assert_eq!(state.read(tensor, offset, &mut bytes).unwrap_err().class(), ErrorClass::Usage);
    }
}

#[test]
fn all_dtypes_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let mut memory = MemoryState::new();
    for dtype in Dtype::all() {
        let length = usize::try_from(dtype.bits()).unwrap();
        memory.insert(dtype.name(), dtype, &[2, 4], vec![dtype.code(); length]).unwrap();
    }
    let header = Header::build(None, &memory.tensors().iter().collect::<Vec<_>>()).unwrap();
    let mut file = header.bytes.clone();
    file.resize(usize::try_from(header.file_bytes).unwrap(), 0);
    for (info, offset) in &header.tensors {
        let start = usize::try_from(*offset).unwrap();
        let data = memory.get(info.name()).unwrap().1;
        file[start..start + data.len()].copy_from_slice(data);
    }
    fs::write(&path, file).unwrap();
    let state = SafetensorsState::open(&path).unwrap();
    assert_eq!(state.tensors().len(), 22);
    assert_eq!(MemoryState::copy_of(&state).unwrap(), memory);
}

#[test]
fn files_of_another_length_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    let whole = file_of(A, &[1, 2]);
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        usage(&path, "not a safetensors file: ");
    }
    fs::write(&path, &whole).unwrap();
    assert!(SafetensorsState::open(&path).is_ok());
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    usage(&path, "calls for 63 bytes, it has 64");
    fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
    usage(&path, "beyond the file");
    let huge = File::create(&path).unwrap();
    huge.set_len(MAX_HEADER_BYTES + 9).unwrap();
    std::io::Write::write_all(&mut &huge, &(MAX_HEADER_BYTES + 1).to_le_bytes()).unwrap();
    usage(&path, "longer than 100000000 bytes");
}

#[test]
fn what_is_not_there_is_an_io_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = SafetensorsState::open(folder.path().join("missing")).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io);
    assert!(error.file().unwrap().ends_with("missing"));
    usage(folder.path(), "holds no .safetensors file");
}

#[test]
fn a_directory_without_index_is_all_its_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("2.safetensors"), file_of(A, &[1, 2])).unwrap();
    fs::write(folder.path().join("1.safetensors"), file_of(B, &[3])).unwrap();
    fs::write(folder.path().join("tokenizer.json"), "").unwrap();
    fs::write(folder.path().join(".hidden"), "").unwrap();
    fs::create_dir(folder.path().join("folder.safetensors")).unwrap();
    let state = SafetensorsState::open(folder.path()).unwrap();
    assert_eq!(
        state.layout().to_json(),
        r#"{"files":[{"name":"1.safetensors","metadata":null,"tensors":["b"]},{"name":"2.safetensors","metadata":null,"tensors":["a"]}]}"#
    );
    assert_eq!(state.other_files(), ["tokenizer.json"]);
    let copy = MemoryState::copy_of(&state).unwrap();
    assert_eq!((copy.get("a").unwrap().1, copy.get("b").unwrap().1), (&[1, 2][..], &[3][..]));

    fs::write(
        folder.path().join("3.safetensors"),
        file_of(&A.replace('a', "\\u0061").replace("d\\u0061t\\u0061", "data"), &[1, 2]),
    )
    .unwrap();
    usage(folder.path(), "duplicate tensor");
    fs::remove_file(folder.path().join("3.safetensors")).unwrap();
    fs::write(folder.path().join("con.safetensors"), file_of("{}", &[])).unwrap();
    usage(folder.path(), "Windows device name");
}

#[test]
fn an_index_says_which_files_count() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("1.safetensors"), file_of(A, &[1, 2])).unwrap();
    fs::write(folder.path().join("2.safetensors"), file_of(B, &[3])).unwrap();
    fs::write(folder.path().join("all.safetensors"), file_of(A, &[1, 2])).unwrap();
    let index = |text: &str| fs::write(folder.path().join(INDEX_NAME), text).unwrap();

    index(r#"{"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors","b":"2.safetensors"},"more":[]}"#);
    let state = SafetensorsState::open(folder.path()).unwrap();
    assert_eq!(state.tensors().len(), 2);
    assert_eq!(state.layout().files().len(), 2);
    assert_eq!(state.other_files(), ["all.safetensors"]);

    index(r#"{"weight_map":{"b":"2.safetensors"}}"#);
    assert_eq!(SafetensorsState::open(folder.path()).unwrap().tensors().len(), 1);

    for (text, message) in [
        ("", "not an index"),
        ("{}", "not an index"),
        (r#"{"weight_map":{"a":1}}"#, "not an index"),
        (r#"{"weight_map":{"a":"1.safetensors","\u0061":"1.safetensors"}}"#, "duplicate name"),
        (r#"{"weight_map":{"a":"2.safetensors","b":"2.safetensors"}}"#, "does not hold the tensor \"a\""),
        (r#"{"weight_map":{"c":"1.safetensors"}}"#, "does not say that the tensor \"a\""),
        (r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#, "does not say that the tensor"),
        (r#"{"weight_map":{"a":"../1.safetensors"}}"#, "is a path"),
        (r#"{"weight_map":{"a":"/1.safetensors"}}"#, "is a path"),
        (r#"{"weight_map":{"a":".."}}"#, "is a path"),
        (r#"{"weight_map":{"a":"1.bin"}}"#, "does not end in"),
        (r#"{"weight_map":{}}"#, "duplicate tensor"),
    ] {
        index(text);
        usage(folder.path(), message);
    }
    index(r#"{"weight_map":{"a":"missing.safetensors"}}"#);
    assert_eq!(SafetensorsState::open(folder.path()).unwrap_err().class(), ErrorClass::Io);
}

fn write(root: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn tensors_of_files_in_folders_carry_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (a, b, junk) = (file_of(A, &[1, 2]), file_of(B, &[3]), file_of(B, &[9]));
    let shards = ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"];
    let index = format!(r#"{{"weight_map":{{"a":"{}","b":"{}"}}}}"#, shards[0], shards[1]);
    write(
        root,
        &[
            ("model_index.json", b"{}"),
            ("text/a.safetensors", &a),
            ("text 2/a.safetensors", &a),
            ("text/deep/er/b.safetensors", &b),
            ("text/.hidden", b""),
            ("text/vocab.txt", b"words"),
            (&format!("unet/{}", shards[0]), &a),
            (&format!("unet/{}", shards[1]), &b),
            ("unet/stale.safetensors", &junk),
            ("unet/m.safetensors.index.json", index.as_bytes()),
            ("checkpoint-7/a.safetensors", &a),
        ],
    );
    let state = SafetensorsState::open(root).unwrap();
    let names: Vec<_> = state.tensors().iter().map(TensorInfo::name).collect();
    assert_eq!(names, ["text 2/a", "text/a", "text/deep/er/b", "unet/a", "unet/b"]);
    let copy = MemoryState::copy_of(&state).unwrap();
    assert_eq!((copy.get("text 2/a").unwrap().1, copy.get("unet/b").unwrap().1), (&[1, 2][..], &[3][..]));
    assert_eq!(state.other_files(), ["model_index.json", "text/vocab.txt", "unet/stale.safetensors"]);
    assert_eq!(state.left_out(), ["checkpoint-7 (a trainer's checkpoint)"]);
    let own = [
        "text 2/a.safetensors",
        "text/a.safetensors",
        "text/deep/er/b.safetensors",
        "unet/m-00001-of-00002.safetensors",
        "unet/m-00002-of-00002.safetensors",
        "unet/m.safetensors.index.json",
    ];
    assert_eq!(state.model_files(), own);
    assert_eq!(Layout::parse(&state.layout().to_json(), state.tensors()).unwrap(), *state.layout());

    // Whatever else lies there, also in folders that are left out otherwise.
    write(root, &[("text/chain.json", b""), ("more/x.safetensors", &a)]);
    assert_eq!(SafetensorsState::open(root).unwrap().tensors().len(), 4);
    let named = state.layout().files().iter().filter_map(|file| file.name.as_deref());
    let again = SafetensorsState::open_files(root, named).unwrap();
    assert_eq!((again.layout(), again.model_files()), (state.layout(), state.model_files()));
    assert_eq!(MemoryState::copy_of(&again).unwrap(), copy);
    assert_eq!(again.other_files(), [""; 0]);
}

#[test]
fn folders_that_cannot_be_in_a_layout_are_refused() {
    let (a, b) = (file_of(A, &[1, 2]), file_of(B, &[3]));
    let slash = file_of(&A.replace("\"a\"", "\"vae/a\""), &[1, 2]);
    let two_indexes = [("x.safetensors.index.json", &b"{}"[..]), ("y.safetensors.index.json", b"{}")];
    for (files, message) in [
        (&[("vae/1.safetensors", &a[..]), ("vae/2.safetensors", &a)][..], "\"vae/1.safetensors\" and \"vae/2.safet"),
        (&[("1.safetensors", &slash), ("vae/2.safetensors", &a)], "\"1.safetensors\" and \"vae/2.safetensors\""),
        (&[("a.safetensors/1.safetensors", &a)], "called like a file of tensors"),
        (&[("a. /1.safetensors", &a)], "a space or a dot"),
        (&[("con/1.safetensors", &a)], "Windows device name"),
        (&[("a\\b/1.safetensors", &a)], "is a path"),
        (&[("vae/.1.safetensors", &a)], "hidden"),
        (&[("1.safetensors", &a), two_indexes[0], two_indexes[1]], "duplicate index"),
        (
            &[
                ("vae/1.safetensors", &a),
                ("vae/model.safetensors.index.json", br#"{"weight_map":{"a":"../1.safetensors"}}"#),
            ],
            "is a path",
        ),
        (
            &[
                ("vae/1.safetensors", &a),
                ("vae/model.safetensors.index.json", br#"{"weight_map":{"b":"1.safetensors"}}"#),
            ],
            "does not say that the tensor \"a\" is in \"vae/1.safetensors\"",
        ),
        (&[("checkpoint-1/1.safetensors", &a)], "checkpoint-1 (a trainer's checkpoint)"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        usage(folder.path(), message);
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;

        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join(OsStr::from_bytes(b"vae\xff"));
        fs::create_dir(&odd).unwrap();
        fs::write(odd.join("config.json"), "{}").unwrap();
        write(folder.path(), &[("b.safetensors", &b)]);
        assert_eq!(SafetensorsState::open(folder.path()).unwrap().other_files(), ["vae\u{fffd}/config.json"]);
        fs::write(odd.join("1.safetensors"), a).unwrap();
        usage(folder.path(), "not Unicode");
    }
}
