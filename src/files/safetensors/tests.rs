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
    assert_eq!(
        state.layout().to_json(),
        r#"{"files":[{"name":null,"metadata":{"format":"pt"},"tensors":null}]}"#
    );
    assert_eq!(state.layout().files()[0].tensors, ["Maß\n", "b", "z"]);

    let mut expected = MemoryState::new();
    expected.insert("z", Dtype::U8, &[], vec![9]).unwrap();
    expected
        .insert("Maß\n", Dtype::BF16, &[0, 3], vec![])
        .unwrap();
    expected
        .insert("b", Dtype::F32, &[1, 2], vec![1, 2, 3, 4, 5, 6, 7, 8])
        .unwrap();
    assert_eq!(MemoryState::copy_of(&state).unwrap(), expected);

    let mut bytes = [0; 3];
    state.read(1, 5, &mut bytes).unwrap();
    assert_eq!(bytes, [6, 7, 8]);
    for (tensor, offset) in [(1, 6), (1, u64::MAX), (2, 0), (3, 0)] {
        assert_eq!(
            state.read(tensor, offset, &mut bytes).unwrap_err().class(),
            ErrorClass::Usage
        );
    }
}

#[test]
fn all_dtypes_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let mut memory = MemoryState::new();
    for dtype in Dtype::all() {
        let length = usize::try_from(dtype.bits()).unwrap();
        memory
            .insert(dtype.name(), dtype, &[2, 4], vec![dtype.code(); length])
            .unwrap();
    }
    let header = FileHeader::build(None, &memory.tensors().iter().collect::<Vec<_>>()).unwrap();
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
    usage(&path, "describes 63 bytes, but it has 64");
    fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
    usage(&path, "beyond the file");
    let huge = fs::File::create(&path).unwrap();
    huge.set_len(MAX_HEADER_BYTES + 9).unwrap();
    std::io::Write::write_all(&mut &huge, &(MAX_HEADER_BYTES + 1).to_le_bytes()).unwrap();
    usage(&path, "longer than 100000000 bytes");
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    usage(&missing, "no such file or directory");
    assert!(
        SafetensorsState::open(&missing)
            .unwrap_err()
            .file()
            .unwrap()
            .ends_with("missing")
    );
    let repository = SafetensorsState::open("Some/Model").unwrap_err();
    assert!(
        repository.message().contains("hf download Some/Model"),
        "{repository}"
    );
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
    assert_eq!(
        (copy.get("a").unwrap().1, copy.get("b").unwrap().1),
        (&[1, 2][..], &[3][..])
    );

    fs::write(
        folder.path().join("3.safetensors"),
        file_of(
            &A.replace('a', "\\u0061")
                .replace("d\\u0061t\\u0061", "data"),
            &[1, 2],
        ),
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

    index(
        r#"{"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors","b":"2.safetensors"},"more":[]}"#,
    );
    let state = SafetensorsState::open(folder.path()).unwrap();
    assert_eq!(state.tensors().len(), 2);
    assert_eq!(state.layout().files().len(), 2);
    assert_eq!(state.other_files(), ["all.safetensors"]);

    index(r#"{"weight_map":{"b":"2.safetensors"}}"#);
    assert_eq!(
        SafetensorsState::open(folder.path())
            .unwrap()
            .tensors()
            .len(),
        1
    );

    for (text, message) in [
        ("", "not an index"),
        ("{}", "not an index"),
        (r#"{"weight_map":{"a":1}}"#, "not an index"),
        (
            r#"{"weight_map":{"a":"1.safetensors","\u0061":"1.safetensors"}}"#,
            "duplicate name",
        ),
        (
            r#"{"weight_map":{"a":"2.safetensors","b":"2.safetensors"}}"#,
            "does not hold the tensor \"a\"",
        ),
        (
            r#"{"weight_map":{"c":"1.safetensors"}}"#,
            "does not say that the tensor \"a\"",
        ),
        (
            r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#,
            "does not say that the tensor",
        ),
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
    usage(folder.path(), "the index names this file");
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
    let a = file_of(A, &[1, 2]);
    let b = file_of(B, &[3]);
    let junk = file_of(B, &[9]);
    let shards = [
        "m-00001-of-00002.safetensors",
        "m-00002-of-00002.safetensors",
    ];
    let index = format!(
        r#"{{"weight_map":{{"a":"{}","b":"{}"}}}}"#,
        shards[0], shards[1]
    );
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
    assert_eq!(
        names,
        ["text 2/a", "text/a", "text/deep/er/b", "unet/a", "unet/b"]
    );
    let copy = MemoryState::copy_of(&state).unwrap();
    assert_eq!(
        (
            copy.get("text 2/a").unwrap().1,
            copy.get("unet/b").unwrap().1
        ),
        (&[1, 2][..], &[3][..])
    );
    assert_eq!(
        state.other_files(),
        [
            "model_index.json",
            "text/vocab.txt",
            "unet/stale.safetensors"
        ]
    );
    assert_eq!(
        state.left_out(),
        [
            "checkpoint-7 (a trainer's checkpoint)",
            "text/.hidden (hidden)"
        ]
    );
    let own = [
        "text 2/a.safetensors",
        "text/a.safetensors",
        "text/deep/er/b.safetensors",
        "unet/m-00001-of-00002.safetensors",
        "unet/m-00002-of-00002.safetensors",
        "unet/m.safetensors.index.json",
    ];
    assert_eq!(state.model_files(), own);
    assert_eq!(
        Layout::parse(&state.layout().to_json(), state.tensors()).unwrap(),
        *state.layout()
    );

    // Opening files by their names does not depend on other files, even in folders that are left
    // out otherwise.
    write(
        root,
        &[("text/chain.json", b""), ("more/x.safetensors", &a)],
    );
    assert_eq!(SafetensorsState::open(root).unwrap().tensors().len(), 4);
    let named = state
        .layout()
        .files()
        .iter()
        .filter_map(|file| file.name.as_deref());
    let again = SafetensorsState::open_files(root, named).unwrap();
    assert_eq!(
        (again.layout(), again.model_files()),
        (state.layout(), state.model_files())
    );
    assert_eq!(MemoryState::copy_of(&again).unwrap(), copy);
    assert_eq!(again.other_files(), [""; 0]);
}

#[test]
fn folders_that_cannot_be_in_a_layout_are_refused() {
    let a = file_of(A, &[1, 2]);
    let b = file_of(B, &[3]);
    let slash = file_of(&A.replace("\"a\"", "\"vae/a\""), &[1, 2]);
    let two_indexes = [
        ("x.safetensors.index.json", &b"{}"[..]),
        ("y.safetensors.index.json", b"{}"),
    ];
    for (files, message) in [
        (
            &[("vae/1.safetensors", &a[..]), ("vae/2.safetensors", &a)][..],
            "\"vae/1.safetensors\" and \"vae/2.safet",
        ),
        (
            &[("1.safetensors", &slash), ("vae/2.safetensors", &a)],
            "\"1.safetensors\" and \"vae/2.safetensors\"",
        ),
        (
            &[("a.safetensors/1.safetensors", &a)],
            "with the name of a file of tensors",
        ),
        (&[("a. /1.safetensors", &a)], "a space or a dot"),
        (&[("con/1.safetensors", &a)], "Windows device name"),
        (&[("a\\b/1.safetensors", &a)], "is a path"),
        (&[("vae/.1.safetensors", &a)], "hidden"),
        (
            &[("1.safetensors", &a), two_indexes[0], two_indexes[1]],
            "duplicate index",
        ),
        (
            &[
                ("vae/1.safetensors", &a),
                (
                    "vae/model.safetensors.index.json",
                    br#"{"weight_map":{"a":"../1.safetensors"}}"#,
                ),
            ],
            "is a path",
        ),
        (
            &[
                ("vae/1.safetensors", &a),
                (
                    "vae/model.safetensors.index.json",
                    br#"{"weight_map":{"b":"1.safetensors"}}"#,
                ),
            ],
            "does not say that the tensor \"a\" is in \"vae/1.safetensors\"",
        ),
        (
            &[("checkpoint-1/1.safetensors", &a)],
            "checkpoint-1 (a trainer's checkpoint)",
        ),
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
        assert_eq!(
            SafetensorsState::open(folder.path()).unwrap().other_files(),
            ["vae\u{fffd}/config.json"]
        );
        fs::write(odd.join("1.safetensors"), a).unwrap();
        usage(folder.path(), "not Unicode");
    }
}

#[test]
fn directories_that_are_not_one_model_are_refused() {
    let a = file_of(A, &[1, 2]);
    let b = file_of(B, &[3]);
    let whole = &br#"{"architectures":["X"]}"#[..];
    let index = &br#"{"weight_map":{"a":"model-00001-of-00001.safetensors"}}"#[..];
    let several = [
        ("x/1/m.safetensors", &a[..]),
        ("x/2/n.safetensors", &a),
        ("x/1/config.json", whole),
    ];
    for (files, message) in [
        (
            &[("deltachain.directory", &b""[..]), ("v/a.safetensors", &a)][..],
            "give its folder \"current\"",
        ),
        (
            &[
                ("chain.json", b""),
                ("commits/0.json", b""),
                ("a.safetensors", &a),
            ],
            "this is a chain",
        ),
        (
            &[
                ("blobs/x", &a),
                ("refs/main", b"1"),
                ("snapshots/1/a.safetensors", &a),
            ],
            "snapshots/REVISION",
        ),
        (
            &[
                ("models--a--b/blobs/x", &a),
                ("models--a--b/snapshots/1/a.safetensors", &a),
            ],
            "in a hub's cache",
        ),
        (
            &[
                several[0],
                several[1],
                several[2],
                ("x/2/config.json", whole),
            ],
            "\"x/1/\" and \"x/2/\" each hold a model",
        ),
        (
            &[
                ("model-00001-of-00001.safetensors", &a),
                (INDEX_NAME, index),
                ("model.safetensors", &a),
            ],
            "out of date",
        ),
        (
            &[
                ("a.safetensors", &a),
                ("config.json", b""),
                ("Config.json", b""),
            ],
            "differ in case only",
        ),
        (
            &[
                ("a.safetensors", &a),
                ("x/config.json", b""),
                ("X/other.json", b""),
            ],
            "differ in case only",
        ),
        (
            &[("._a.safetensors", b"")],
            "left out: ._a.safetensors (hidden)",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        usage(folder.path(), message);
    }
    // The same files in two sibling folders, or in a folder and in one inside it.
    let adapter = |files: &[&'static str]| {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            write(folder.path(), &[(file, &a)]);
        }
        folder
    };
    for (files, message) in [
        (
            &[
                "s/step_10/adapter.safetensors",
                "s/step_20/adapter.safetensors",
            ][..],
            "\"s/step_10/\" and \"s/step_20/\" have the same files",
        ),
        (
            &[
                "1/vae/m.safetensors",
                "1/text/n.safetensors",
                "2/vae/m.safetensors",
                "2/text/n.safetensors",
            ],
            "\"1/\" and \"2/\" have the same files",
        ),
        (
            &["m.safetensors", "best/m.safetensors"],
            "the directory itself and \"best/\" have the same files",
        ),
        (
            &[
                "w/m.safetensors",
                "w/best/m.safetensors",
                "w/best/more/n.safetensors",
            ],
            "\"w/\" and \"w/best/\" have the same files",
        ),
    ] {
        let folder = adapter(files);
        let check = || {
            SafetensorsState::open(folder.path())
                .unwrap()
                .check_one_model()
        };
        let error = check().unwrap_err();
        assert!(error.message().contains(message), "{error}");
        for parts in ["model_index.json", "modules.json"] {
            write(folder.path(), &[(parts, b"[]")]);
            check().unwrap();
            fs::remove_file(folder.path().join(parts)).unwrap();
        }
    }
    // Sentence transformers and pipelines have these: different names of files or tensors,
    // different shapes, or folders that are not siblings.
    let wide = file_of(
        r#"{"a":{"dtype":"U8","shape":[1,2],"data_offsets":[0,2]}}"#,
        &[1, 2],
    );
    for (name, content) in [
        ("2_Dense/n.safetensors", &a),
        ("2_Dense/m.safetensors", &b),
        ("2_Dense/m.safetensors", &wide),
        ("2_Dense/x/m.safetensors", &a),
        ("1_Dense/x/m.safetensors", &b),
    ] {
        let folder = adapter(&["1_Dense/m.safetensors"]);
        write(folder.path(), &[(name, content)]);
        let state = SafetensorsState::open(folder.path()).unwrap();
        state.check_one_model().unwrap();
    }
    // These are accepted: parts with the same tensors that are not all configured as whole models,
    // such parts of a pipeline, and other directories that look unusual.
    for files in [
        &[several[0], several[1]][..],
        &[
            several[0],
            several[1],
            several[2],
            ("x/2/config.json", b"{}"),
        ],
        &[
            several[0],
            several[1],
            several[2],
            ("x/2/config.json", whole),
            ("model_index.json", b"{}"),
        ],
        &[
            several[0],
            several[2],
            ("y/b.safetensors", &b),
            ("y/config.json", whole),
        ],
        &[
            ("a.safetensors", &a),
            ("._a.safetensors", b""),
            ("chain.json", b""),
            ("snapshots/x", b""),
        ],
        &[
            ("model.safetensors", &a),
            ("model-00001-of-00001.safetensors", &b),
        ],
        &[
            ("model.safetensors", &a),
            (
                "x.safetensors.index.json",
                br#"{"weight_map":{"a":"model.safetensors"}}"#,
            ),
        ],
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        SafetensorsState::open(folder.path()).unwrap();
    }
}

/// A change of a file.
#[cfg(unix)]
type Change = fn(&Path);

/// Returns ways to change a file that is being read: overwritten in place, with its modification
/// time restored; replaced by another file; cut; removed.
#[cfg(unix)]
fn changes() -> [(&'static str, Change); 4] {
    use std::os::unix::fs::FileExt;
    [
        ("written", |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            let before = file.metadata().unwrap();
            file.write_all_at(&[9], before.len() - 1).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
            assert_eq!(
                file.metadata().unwrap().modified().unwrap(),
                before.modified().unwrap()
            );
        }),
        ("replaced", |path| {
            fs::copy(path, path.with_extension("new")).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }),
        ("cut", |path| {
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(70)
                .unwrap();
        }),
        ("removed", |path| fs::remove_file(path).unwrap()),
    ]
}

#[cfg(unix)]
#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    use crate::files::{self, FileOptions};
    use crate::table::StateTable;
    use std::sync::atomic::{AtomicBool, Ordering};

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let whole = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#,
        17 << 20
    );
    let model = |name: &str, byte: u8| {
        let mut data = vec![0; 17 << 20];
        data[7] = byte;
        write(
            folder.path(),
            &[
                (&format!("{name}/a.safetensors"), &file_of(&whole, &data)),
                (&format!("{name}/b"), b"b"),
            ],
        );
        at(name)
    };
    files::diff(
        &model("old", 1),
        &model("new", 2),
        &at("link"),
        &FileOptions::default(),
    )
    .unwrap();
    for (how, change) in changes() {
        for (threads, work) in [
            (1, 0),
            (1, 1),
            (1, 2),
            (1, 3),
            (4, 0),
            (4, 1),
            (4, 2),
            (4, 3),
        ] {
            let old = model("old", 1);
            let new = model("new", 2);
            let changed = if work == 0 { new.clone() } else { old.clone() }.join("a.safetensors");
            let once = AtomicBool::new(true);
            // Changes the file in the middle of the work, when a part of it has been read.
            let progress = |bytes: u64| {
                if bytes > 0 && once.swap(false, Ordering::Relaxed) {
                    change(&changed);
                }
                Ok(())
            };
            let options = FileOptions::default().progress(&progress);
            let run = || match work {
                0 => files::diff(&old, &new, &at("out"), &options).map(drop),
                1 => files::snapshot(&old, &at("out"), &options).map(drop),
                2 => files::apply(Some(&old), &[at("link")], &at("out"), &options).map(drop),
                _ => StateTable::of(&SafetensorsState::open(&old)?, &progress).map(drop),
            };
            let error = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap()
                .install(run)
                .unwrap_err();
            assert!(
                error.message().contains("changed while it was being read"),
                "{how} {threads} {work}: {error:?}"
            );
            assert_eq!(
                (error.class(), error.file()),
                (ErrorClass::Io, changed.to_str()),
                "{how} {work}"
            );
            assert!(!at("out").exists(), "{how} {work}");
        }
    }
}

#[cfg(unix)]
#[test]
fn shards_indexes_and_names_are_watched_too() {
    let folder = tempfile::tempdir().unwrap();
    let index = &br#"{"weight_map":{"a":"1.safetensors"}}"#[..];
    let all = [
        ("1.safetensors", &file_of(A, &[1, 2])[..]),
        (INDEX_NAME, index),
        ("config.json", b"{}"),
    ];
    for (name, text) in [
        (INDEX_NAME, "file changed"),
        ("2.safetensors", "were added"),
        ("config.json", ""),
    ] {
        write(folder.path(), &all);
        let state = SafetensorsState::open(folder.path()).unwrap();
        let kept = SafetensorsState::open_files(folder.path(), ["1.safetensors"]).unwrap();
        state.check_unchanged().unwrap();
        write(folder.path(), &[(name, b"other")]);
        // Other files are not part of the state.
        let found = state
            .check_unchanged()
            .map_or_else(|error| error.message().to_owned(), |()| String::new());
        assert!(
            found.contains(text) && found.is_empty() == text.is_empty(),
            "{name}: {found}"
        );
        // A second name for a file of a kept directory changes the file's metadata, but not its
        // content.
        fs::hard_link(
            folder.path().join("1.safetensors"),
            folder.path().join("second"),
        )
        .unwrap();
        kept.check_unchanged().unwrap();
        fs::remove_file(folder.path().join("second")).unwrap();
        let _ = fs::remove_file(folder.path().join("2.safetensors"));
    }
}

#[cfg(unix)]
#[test]
fn outputs_are_never_inputs() {
    use crate::files::{self, FileOptions};
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let old = file_of(A, &[1, 2]);
    let new = file_of(A, &[1, 3]);
    let files = [
        ("old", &old[..]),
        ("new", &new),
        ("dir/a.safetensors", &old),
        ("dir/config.json", b"{}"),
        ("blobs/x", &new),
    ];
    write(folder.path(), &files);
    fs::create_dir(at("hub")).unwrap();
    symlink("../blobs/x", at("hub/a.safetensors")).unwrap();
    symlink("old", at("link to old")).unwrap();
    fs::hard_link(at("old"), at("second name of old")).unwrap();
    let options = FileOptions::default().replace(true);
    files::diff(&at("old"), &at("new"), &at("1"), &options).unwrap();
    files::diff(&at("dir"), &at("hub"), &at("2"), &options).unwrap();
    let before: Vec<_> = files
        .iter()
        .map(|(name, _)| fs::read(at(name)).unwrap())
        .collect();
    let links = [at("1"), at("2")].map(|link| fs::read(link).unwrap());
    let diff = |base: &str, target: &str, out: &str| {
        files::diff(&at(base), &at(target), &at(out), &options).map(drop)
    };
    let apply = |base: &str, link: &str, out: &str| {
        files::apply(Some(&at(base)), &[at(link)], &at(out), &options).map(drop)
    };
    for (number, made) in [
        diff("old", "new", "old"),
        diff("old", "new", "new"),
        diff("old", "new", "link to old"),
        diff("old", "new", "second name of old"),
        diff("link to old", "new", "dir/../old"),
        diff("dir", "hub", "dir/a.safetensors"),
        diff("dir", "hub", "dir/config.json"),
        diff("dir", "hub", "dir/new"),
        diff("dir", "hub", "hub/new"),
        diff("dir", "hub", "blobs/x"),
        files::snapshot(&at("old"), &at("old"), &options).map(drop),
        apply("old", "1", "1"),
        apply("dir", "2", "dir/a.safetensors"),
        apply("dir", "2", "dir/more/new"),
        apply("dir", "2", "."),
    ]
    .into_iter()
    .enumerate()
    {
        let error = made.unwrap_err();
        assert!(
            error.message().contains("the output is the input"),
            "{number}: {error:?}"
        );
        let now: Vec<_> = files
            .iter()
            .map(|(name, _)| fs::read(at(name)).unwrap())
            .collect();
        assert!(
            now == before && [at("1"), at("2")].map(|link| fs::read(link).unwrap()) == links,
            "{number}"
        );
    }
    // The folder that a hub's links lead to must not be replaced as a whole either; a base may be.
    files::diff(&at("hub"), &at("dir"), &at("3"), &options).unwrap();
    assert!(
        apply("hub", "3", "blobs")
            .unwrap_err()
            .message()
            .contains("the output is the input")
    );
    apply("old", "1", "old").unwrap();
    apply("dir", "2", "dir").unwrap();
    assert_eq!(fs::read(at("old")).unwrap(), fs::read(at("new")).unwrap());
    assert_eq!(fs::read(at("dir/a.safetensors")).unwrap(), new);
}
