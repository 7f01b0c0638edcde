use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::error::ErrorClass;
use crate::files::header::file_of;
use crate::files::weight_map::INDEX_NAME;
use crate::tensor::{Dtype, MemoryState, State};

const ODD: &str = r#" {"z":{"shape":[2],"dtype":"U8","data_offsets":[0,2]}, "Ma\u00df":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},
    "none":{"dtype":"BF16","shape":[0,3],"data_offsets":[6,6]}, "__metadata__":{"b":"2","a":"1"}}   "#;
const ODD_DATA: [u8; 6] = [1, 2, 3, 4, 5, 6];
const INDEX: &str = r#"{"weight_map": {"a":"2.safetensors", "b":"1.safetensors"}, "metadata":{"total_size":3,"note":[1]}}"#;

/// Writes all of `state`, byte by byte, and commits.
fn write(state: &impl State, staged: StagedSafetensors) -> Result<u64> {
    for (number, info) in state.tensors().iter().enumerate() {
        for offset in 0..info.bytes() {
            let mut byte = [0];
            state.read(number, offset, &mut byte)?;
            staged.write(number, offset, &byte)?;
        }
    }
    let out = staged.out.clone();
    let expected = MemoryState::copy_of(state)?;
    let written = staged.commit()?;
    assert_eq!(
        MemoryState::copy_of(&SafetensorsState::open(out)?)?,
        expected
    );
    Ok(written)
}

fn rewrite(base: &SafetensorsState, out: &Path, replace: bool) -> Result<u64> {
    write(
        base,
        StagedSafetensors::create(out, base.tensors(), base.layout(), Some(base), replace)?,
    )
}

/// Writes a directory of two shards with an index and other files.
fn make_shards(folder: &Path) -> SafetensorsState {
    fs::create_dir(folder).unwrap();
    let a =
        r#"{ "a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"format":"pt"}}"#;
    fs::write(folder.join("2.safetensors"), file_of(a, &[1, 2])).unwrap();
    let b = r#"{"b" :{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
    fs::write(folder.join("1.safetensors"), file_of(b, &[3])).unwrap();
    fs::write(folder.join(INDEX_NAME), INDEX).unwrap();
    fs::write(folder.join("Wörter buch.json"), "words").unwrap();
    fs::write(folder.join(".hidden"), "").unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    SafetensorsState::open(folder).unwrap()
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap_or_default(),
            )
        })
        .collect()
}

fn refused(result: Result<impl Sized>, text: &str) {
    let error = result.map(|_| ()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    assert!(
        error.to_string().contains(text) && error.file().is_some(),
        "{error}"
    );
}

#[test]
fn an_equal_state_gives_an_equal_file() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("nach her \u{1F9EE}");
    fs::write(&before, file_of(ODD, &ODD_DATA)).unwrap();
    let base = SafetensorsState::open(&before).unwrap();
    rewrite(&base, &after, false).unwrap();
    assert_eq!(fs::read(&before).unwrap(), fs::read(&after).unwrap());
    assert_eq!(contents(folder.path()).len(), 2);
}

#[test]
fn another_header_is_one_of_the_safetensors_crate() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    fs::write(&before, file_of(ODD, &ODD_DATA)).unwrap();
    let base = SafetensorsState::open(&before).unwrap();
    let mut target = MemoryState::copy_of(&base).unwrap();
    target.insert("z", Dtype::U8, &[2, 1], vec![7, 8]).unwrap();
    let layout = base.layout().carried_over(target.tensors()).unwrap();
    write(
        &target,
        StagedSafetensors::create(&after, target.tensors(), &layout, Some(&base), false).unwrap(),
    )
    .unwrap();

    let bytes = fs::read(&after).unwrap();
    let (_, read) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(read.offset_keys(), ["Maß", "none", "z"]);
    assert_eq!(read.metadata().as_ref().unwrap().len(), 2);
    let reopened = SafetensorsState::open(&after).unwrap();
    assert_eq!(MemoryState::copy_of(&reopened).unwrap(), target);
    assert_eq!(*reopened.layout(), layout);
}

#[test]
fn an_equal_directory_is_equal_in_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    let base = make_shards(&before);
    rewrite(&base, &after, false).unwrap();
    let mut expected = contents(&before);
    assert!(expected.remove(".hidden").is_some() && expected.remove("folder").is_some());
    assert_eq!(contents(&after), expected);
    assert_eq!(expected.len(), 4);
    // Replacing the base itself is allowed: everything has been read before.
    let base = SafetensorsState::open(&after).unwrap();
    rewrite(&base, &after, true).unwrap();
    assert_eq!(contents(&after), expected);
    assert_eq!(contents(folder.path()).len(), 2);
}

#[test]
fn other_files_can_be_left() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    let base = make_shards(&before);
    let mut staged =
        StagedSafetensors::create(&after, base.tensors(), base.layout(), Some(&base), false)
            .unwrap();
    assert_eq!(staged.copied_files(), ["Wörter buch.json"]);
    staged.leave_other_files();
    assert_eq!(staged.copied_files(), [""; 0]);
    write(&base, staged).unwrap();
    assert_eq!(
        contents(&after).into_keys().collect::<Vec<_>>(),
        ["1.safetensors", "2.safetensors", INDEX_NAME]
    );
}

#[test]
fn a_changed_directory_gets_a_new_index() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    let base = make_shards(&before);
    let mut wider = MemoryState::copy_of(&base).unwrap();
    wider.insert("b", Dtype::U8, &[3], vec![5; 3]).unwrap();
    let wider_map = serde_json::json!({ "a": "2.safetensors", "b": "1.safetensors" });
    let mut other = MemoryState::copy_of(&base).unwrap();
    other.remove("b");
    other.insert("c", Dtype::U8, &[], vec![5]).unwrap();
    let other_map = serde_json::json!({ "a": "2.safetensors", "c": "2.safetensors" });

    // First the same tensors with another total size, then other tensors with the same one.
    for (target, total_size, weight_map) in [(wider, 5, wider_map), (other, 3, other_map)] {
        let layout = base.layout().carried_over(target.tensors()).unwrap();
        let staged =
            StagedSafetensors::create(&after, target.tensors(), &layout, Some(&base), true)
                .unwrap();
        write(&target, staged).unwrap();
        let index: Value =
            serde_json::from_slice(&fs::read(after.join(INDEX_NAME)).unwrap()).unwrap();
        let metadata = serde_json::json!({ "total_size": total_size, "note": [1] });
        assert_eq!(
            index,
            serde_json::json!({ "metadata": metadata, "weight_map": weight_map })
        );
        assert_eq!(
            MemoryState::copy_of(&SafetensorsState::open(&after).unwrap()).unwrap(),
            target
        );
    }
}

#[test]
fn an_emptied_directory_can_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    let base = make_shards(&before);
    let layout = base.layout().carried_over(&[]).unwrap();
    StagedSafetensors::create(&after, &[], &layout, Some(&base), false)
        .unwrap()
        .commit()
        .unwrap();
    let reopened = SafetensorsState::open(&after).unwrap();
    assert!(reopened.tensors().is_empty());
    assert_eq!(*reopened.layout(), layout);
}

#[test]
fn a_directory_of_one_file_needs_no_index() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut target = MemoryState::new();
    target.insert("Größe", Dtype::F4, &[2], vec![0x21]).unwrap();
    let layout = Layout::parse(
        r#"{"files":[{"name":"m.safetensors","metadata":null,"tensors":null}]}"#,
        target.tensors(),
    )
    .unwrap();
    write(
        &target,
        StagedSafetensors::create(&out, target.tensors(), &layout, None, false).unwrap(),
    )
    .unwrap();
    assert_eq!(
        contents(&out).into_keys().collect::<Vec<_>>(),
        ["m.safetensors"]
    );
    assert_eq!(
        MemoryState::copy_of(&SafetensorsState::open(&out).unwrap()).unwrap(),
        target
    );
}

#[test]
fn other_files_do_not_displace_shards() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    make_shards(&before);
    fs::write(before.join("New.safetensors"), "stale").unwrap();
    let base = SafetensorsState::open(&before).unwrap();
    assert!(base.other_files().contains(&"New.safetensors".to_owned()));
    let layout = Layout::parse(
        r#"{"files":[{"name":"new.safetensors","metadata":null,"tensors":null}]}"#,
        base.tensors(),
    )
    .unwrap();
    write(
        &base,
        StagedSafetensors::create(&after, base.tensors(), &layout, Some(&base), false).unwrap(),
    )
    .unwrap();
    let files = contents(&after);
    assert_eq!(
        files.keys().collect::<Vec<_>>(),
        ["Wörter buch.json", INDEX_NAME, "new.safetensors"]
    );
    assert_ne!(files["new.safetensors"], b"stale");
}

#[test]
fn what_exists_is_kept_unless_it_is_to_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    let out = folder.path().join("out");
    fs::write(&base, file_of(ODD, &ODD_DATA)).unwrap();
    let base = SafetensorsState::open(&base).unwrap();
    let create = |replace| {
        StagedSafetensors::create(&out, base.tensors(), base.layout(), Some(&base), replace)
    };

    // The output appears after the check.
    let staged = create(true).unwrap();
    fs::create_dir(&out).unwrap();
    refused(staged.commit(), "which a file cannot replace");
    fs::remove_dir(&out).unwrap();
    let staged = create(false).unwrap();
    fs::write(&out, "precious").unwrap();
    refused(staged.commit(), "exists");
    refused(create(false), "exists");
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    assert_eq!(contents(folder.path()).len(), 2);

    let staged = create(true).unwrap();
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    write(&base, staged).unwrap();
    assert_eq!(fs::read(&out).unwrap(), file_of(ODD, &ODD_DATA));

    fs::remove_file(&out).unwrap();
    fs::create_dir(&out).unwrap();
    refused(create(true), "which a file cannot replace");
    refused(
        StagedSafetensors::create(Path::new(".."), base.tensors(), base.layout(), None, true),
        "no name",
    );
}

#[test]
fn a_directory_with_files_of_others_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let base = make_shards(&folder.path().join("base"));
    let out = folder.path().join("out");
    let create = |replace| {
        StagedSafetensors::create(&out, base.tensors(), base.layout(), Some(&base), replace)
    };
    refused(rewrite(&base, base.path(), true), "would be lost");

    let staged = create(false).unwrap();
    fs::create_dir(&out).unwrap();
    refused(staged.commit(), "exists");
    refused(create(false), "exists");
    fs::write(out.join("thesis.txt"), "").unwrap();
    refused(create(true), "\"thesis.txt\"");
    fs::remove_file(out.join("thesis.txt")).unwrap();
    fs::write(out.join(".kept.safetensors"), "").unwrap();
    refused(create(true), "\".kept.safetensors\"");
    fs::remove_file(out.join(".kept.safetensors")).unwrap();
    fs::write(out.join("old.safetensors"), "").unwrap();
    let staged = create(true).unwrap();
    fs::create_dir(out.join("sub")).unwrap();
    refused(create(true), "\"sub\"");
    fs::remove_dir(out.join("sub")).unwrap();
    fs::write(out.join(".git"), "").unwrap();
    refused(create(true), "\".git\"");
    fs::remove_file(out.join(".git")).unwrap();
    write(&base, staged).unwrap();
    assert!(!contents(&out).contains_key("old.safetensors"));
    assert_eq!(contents(folder.path()).len(), 2);

    fs::remove_dir_all(&out).unwrap();
    fs::write(&out, "").unwrap();
    refused(create(true), "which a directory cannot replace");
}

#[test]
fn dropping_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let base = make_shards(&folder.path().join("base"));
    let single = Layout::single_file(base.tensors());
    for layout in [base.layout(), &single] {
        let out = folder.path().join("out");
        let staged =
            StagedSafetensors::create(&out, base.tensors(), layout, Some(&base), false).unwrap();
        staged.write(0, 0, &[1]).unwrap();
        assert_eq!(contents(folder.path()).len(), 2);
        assert!(!out.exists());
        drop(staged);
        assert_eq!(contents(folder.path()).len(), 1);
    }
    // The absence of a file of the base is only noticed by the commit.
    fs::write(base.path().join("late"), "").unwrap();
    let base = SafetensorsState::open(base.path()).unwrap();
    let out = folder.path().join("out");
    let staged =
        StagedSafetensors::create(&out, base.tensors(), base.layout(), Some(&base), false).unwrap();
    fs::remove_file(base.path().join("late")).unwrap();
    let error = staged.commit().unwrap_err();
    assert!(error.file().unwrap().ends_with("late"), "{error}");
    assert_eq!(contents(folder.path()).len(), 1);
    let nowhere = folder.path().join("no").join("out");
    let error = StagedSafetensors::create(&nowhere, &[], &Layout::single_file(&[]), None, false)
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io);
}

#[test]
fn what_cannot_be_written_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let info = |name: &str| TensorInfo::new(name, Dtype::U8, [4]).unwrap();
    let create = |tensors: &[TensorInfo], layout: &Layout| {
        StagedSafetensors::create(&out, tensors, layout, None, false)
    };
    let sorted = [info("a"), info("b")];
    let unsorted = [info("b"), info("a")];
    refused(
        create(&unsorted, &Layout::single_file(&unsorted)),
        "ascending",
    );
    refused(
        create(&sorted, &Layout::single_file(&sorted[..1])),
        "does not list the tensor \"b\"",
    );
    refused(
        create(&sorted[..1], &Layout::single_file(&sorted)),
        "does not have",
    );
    let reserved = [info("__metadata__")];
    refused(
        create(&reserved, &Layout::single_file(&reserved)),
        "named __metadata__",
    );
    assert!(contents(folder.path()).is_empty());

    let staged = create(&sorted, &Layout::single_file(&sorted)).unwrap();
    staged.write(1, 1, &[1, 2]).unwrap();
    for (tensor, offset) in [(0, 3), (1, u64::MAX), (2, 0)] {
        assert_eq!(
            staged.write(tensor, offset, &[1, 2]).unwrap_err().class(),
            ErrorClass::Usage
        );
    }
    staged.commit().unwrap();
    let copy = MemoryState::copy_of(&SafetensorsState::open(&out).unwrap()).unwrap();
    assert_eq!(
        (copy.get("a").unwrap().1, copy.get("b").unwrap().1),
        (&[0; 4][..], &[0, 1, 2, 0][..])
    );
}

#[cfg(unix)]
#[test]
fn permissions_are_the_usual_ones() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| {
        fs::metadata(folder.path().join(name))
            .unwrap()
            .permissions()
            .mode()
    };
    fs::write(folder.path().join("plain"), "").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    let named = Layout::parse(
        r#"{"files":[{"name":"m.safetensors","metadata":null,"tensors":null}]}"#,
        &[],
    )
    .unwrap();
    for (name, layout) in [("file", &Layout::single_file(&[])), ("directory", &named)] {
        StagedSafetensors::create(&folder.path().join(name), &[], layout, None, false)
            .unwrap()
            .commit()
            .unwrap();
    }
    assert_eq!(mode("file"), mode("plain"));
    assert_eq!(mode("directory"), mode("folder"));
    assert_eq!(mode("directory/m.safetensors"), mode("plain"));
}

/// Makes a pipeline: two parts with the same tensors, one of them in several files, and a
/// tokenizer.
fn make_pipeline(folder: &Path) -> SafetensorsState {
    let a = file_of(
        r#"{ "a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
        &[1, 2],
    );
    let b = file_of(
        r#"{"b" :{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#,
        &[3],
    );
    let shards = [
        "unet/m-00001-of-00002.safetensors",
        "unet/m-00002-of-00002.safetensors",
    ];
    let index = r#"{"weight_map": {"a":"m-00001-of-00002.safetensors", "b":"m-00002-of-00002.safetensors"}}"#;
    let files: [(&str, &[u8]); 7] = [
        ("config.json", b"{}"),
        ("text/enc/a.safetensors", &a),
        ("text/tokenizer/vocab.txt", b"words"),
        (shards[0], &a),
        (shards[1], &b),
        ("unet/m.safetensors.index.json", index.as_bytes()),
        ("unet/notes", b"{}"),
    ];
    for (name, bytes) in files {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    }
    SafetensorsState::open(folder).unwrap()
}

/// Returns names and contents of the files in a directory and its folders.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = crate::files::ModelListing::of(folder).unwrap().files;
    names
        .iter()
        .map(|name| {
            (
                name.to_str().unwrap().to_owned(),
                fs::read(folder.join(name)).unwrap(),
            )
        })
        .collect()
}

#[test]
fn an_equal_pipeline_is_equal_in_every_folder() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    let base = make_pipeline(&before);
    let expected = tree(&before);
    assert_eq!(expected.len(), 7);
    let written = rewrite(&base, &after, false).unwrap();
    assert_eq!(tree(&after), expected);
    assert_eq!(
        written,
        expected
            .values()
            .map(|bytes| bytes.len() as u64)
            .sum::<u64>()
    );
    // Without the base, headers and index differ and there are no other files, but the tensors are
    // the same.
    fs::remove_dir_all(&after).unwrap();
    write(
        &base,
        StagedSafetensors::create(&after, base.tensors(), base.layout(), None, false).unwrap(),
    )
    .unwrap();
    assert_eq!(
        tree(&after).into_keys().collect::<Vec<_>>(),
        base.model_files()
    );
    let reopened = SafetensorsState::open(&after).unwrap();
    assert_eq!(reopened.layout(), base.layout());
    assert_eq!(
        MemoryState::copy_of(&reopened).unwrap(),
        MemoryState::copy_of(&base).unwrap()
    );
    let index = fs::read(after.join("unet/m.safetensors.index.json")).unwrap();
    let files = serde_json::json!({ "a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors" });
    let index: Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(
        index,
        serde_json::json!({ "metadata": { "total_size": 3 }, "weight_map": files })
    );
    assert_eq!(contents(folder.path()).len(), 2);
}

#[test]
fn a_pipeline_is_replaced_if_no_folder_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let base = make_pipeline(&before);
    let expected = tree(&before);
    rewrite(&base, &before, true).unwrap();
    assert_eq!(tree(&before), expected);

    let base = SafetensorsState::open(&before).unwrap();
    for lost in ["text/other", "checkpoint-1", "unet/.cache"] {
        fs::create_dir(before.join(lost)).unwrap();
        refused(rewrite(&base, &before, true), lost);
        fs::remove_dir(before.join(lost)).unwrap();
    }
    // Without the base, no file would be written to this folder.
    let staged = StagedSafetensors::create(&before, base.tensors(), base.layout(), None, true);
    refused(staged, "\"text/tokenizer\"");
    #[cfg(unix)]
    {
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(before.join("text"), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, before.join("text")).unwrap();
        refused(rewrite(&base, &before, true), "\"text\"");
        assert!(elsewhere.join("enc/a.safetensors").exists());
    }
}

#[test]
fn other_files_do_not_stand_in_the_way_of_folders() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let after = folder.path().join("after");
    fs::create_dir_all(before.join("m.safetensors")).unwrap();
    fs::write(before.join("m.safetensors/notes"), "").unwrap();
    fs::write(before.join("VAE"), "").unwrap();
    fs::write(before.join("vae2"), "").unwrap();
    fs::write(before.join("a.safetensors"), file_of(ODD, &ODD_DATA)).unwrap();
    let base = SafetensorsState::open(&before).unwrap();
    let mut target = MemoryState::new();
    target.insert("vae/x", Dtype::U8, &[1], vec![7]).unwrap();
    target.insert("y", Dtype::U8, &[1], vec![8]).unwrap();
    let layout = r#"{"files":[{"name":"m.safetensors","metadata":null,"tensors":["y"]},{"name":"vae/m.safetensors","metadata":null,"tensors":["vae/x"]}]}"#;
    let layout = Layout::parse(layout, target.tensors()).unwrap();
    let staged =
        StagedSafetensors::create(&after, target.tensors(), &layout, Some(&base), false).unwrap();
    assert_eq!(staged.copied_files(), ["vae2"]);
    write(&target, staged).unwrap();
    assert_eq!(
        tree(&after).into_keys().collect::<Vec<_>>(),
        ["m.safetensors", "vae/m.safetensors", "vae2"]
    );
    assert_eq!(
        MemoryState::copy_of(&SafetensorsState::open(&after).unwrap()).unwrap(),
        target
    );
}
