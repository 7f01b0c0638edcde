//! Attacks on a signed chain by a stranger with write access to the bucket and without a key: none
//! succeeds (SPEC sections 23 and 25).

#![cfg(target_os = "linux")]

use deltachain::tensor::Digest;

use crate::support::{Folder, bytes_file, reseal};

/// Creates a chain that the key `a` signs, and the directories `v0` and `v1` of a model of one
/// file.
fn folder() -> Folder {
    let folder = Folder::new();
    let public = folder.run(&["key", "new", "a", "-o", "a.key"]).good();
    folder.write("a.pub", public);
    folder.run(&["init", "chain"]).good();
    for (version, byte) in [("v0", 1), ("v1", 2)] {
        folder.write(
            &format!("{version}/model.safetensors"),
            model(byte, &["layer.b", "layer.w", "lm_head"]),
        );
    }
    folder
}

fn model(byte: u8, tensors: &[&str]) -> Vec<u8> {
    let data: Vec<[u8; 40]> = tensors
        .iter()
        .map(|name| [byte + name.as_bytes()[6]; 40])
        .collect();
    bytes_file(
        &tensors
            .iter()
            .zip(&data)
            .map(|(name, data)| (*name, data.as_slice()))
            .collect::<Vec<_>>(),
    )
}

fn publish(folder: &Folder, version: &str, more: &[&str]) {
    folder
        .run(&[&["publish", "chain", version, "--sign-key", "a.key"], more].concat())
        .good();
}

fn commit_name(version: u64) -> String {
    format!("chain/commits/{version:020}.json")
}

/// Writes the routes of a version as the stranger does: each starts from a version or from nothing,
/// and has one file.
fn set_routes(
    folder: &Folder,
    version: u64,
    generation: u64,
    mut routes: Vec<(Option<u64>, Vec<u8>)>,
) {
    let commit = Digest::of_bytes(&folder.read(&commit_name(version)));
    routes.sort_by_key(|(from, link)| (*from, link.len()));
    let routes: Vec<String> = routes
        .iter()
        .map(|(from, link)| {
            let digest = Digest::of_bytes(link);
            let size = link.len();
            folder.write(&format!("chain/files/{digest}.dcf"), link);
            let from = from.map_or("null".to_owned(), |from| from.to_string());
            format!(r#"{{"from":{from},"files":[{{"digest":"{digest}","size":{size}}}]}}"#)
        })
        .collect();
    let routes = routes.join(",");
    folder.write(
        &routes_name(version, generation),
        format!(
            r#"{{"deltachain":1,"version":{version},"generation":{generation},"commit":"{commit}","routes":[{routes}],"metadata":{{}}}}"#
        ),
    );
}

fn routes_name(version: u64, generation: u64) -> String {
    format!("chain/routes/{version:020}-{generation:010}.json")
}

/// Writes the stranger's files of version 1: the same state in two files, one of which has the name
/// that loaders look for.
fn evil(folder: &Folder) {
    folder.write("evil/adapter_model.safetensors", model(2, &["layer.b"]));
    folder.write("evil/model.safetensors", model(2, &["layer.w", "lm_head"]));
}

/// Names of the files in a directory's current version.
fn files(folder: &Folder, directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder.at(directory).join("current")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_stranger_does_not_choose_the_files_of_a_model() {
    let folder = folder();
    publish(&folder, "v0", &[]);
    for held in ["held", "untrusting"] {
        folder.run(&["pull", "chain", held]).good();
    }
    publish(&folder, "v1", &["--base", "v0"]);
    evil(&folder);
    folder.run(&["snapshot", "evil", "-o", "whole.dcf"]).good();
    folder.run(&["diff", "v0", "evil", "-o", "step.dcf"]).good();
    let theirs = vec![
        (None, folder.read("whole.dcf")),
        (Some(0), folder.read("step.dcf")),
    ];
    set_routes(&folder, 1, 1, theirs.clone());
    let readers: [(&str, &[&str]); 4] = [
        ("new", &["--trust", "a.pub"]),
        ("newer", &[]),
        ("held", &["--trust", "a.pub"]),
        ("untrusting", &[]),
    ];
    for (directory, options) in readers {
        let said = folder.run(&[&["pull", "chain", directory], options].concat());
        assert!(
            said.code == Some(1) && said.stderr.contains("R-LAY-03"),
            "{directory}: {said:?}"
        );
    }
    let report = folder.run(&["fsck", "chain", "--deep"]);
    assert!(
        report.code == Some(1) && report.stdout.contains("R-LAY-03"),
        "{report:?}"
    );
    // The stranger's routes together with the publisher's own.
    let commit = String::from_utf8(folder.read(&commit_name(1))).unwrap();
    let digest = &commit.split_once(r#""files":[{"digest":""#).unwrap().1[..64];
    let own = (Some(0), folder.read(&format!("chain/files/{digest}.dcf")));
    set_routes(&folder, 1, 2, theirs.into_iter().chain([own]).collect());
    for (directory, options) in readers {
        folder
            .run(&[&["pull", "chain", directory], options].concat())
            .good();
        assert_eq!(
            files(&folder, directory),
            ["model.safetensors"],
            "{directory}"
        );
        assert_eq!(
            folder.read(&format!("{directory}/current/model.safetensors")),
            folder.read("v1/model.safetensors")
        );
    }
}

/// A chain of 1.1 has no digests of layouts. With trust, only files that signed commits name count.
#[test]
fn without_the_key_only_files_of_commits_count() {
    let folder = folder();
    folder.run(&["publish", "chain", "v1"]).good();
    let commit = String::from_utf8(folder.read(&commit_name(0))).unwrap();
    let (before, rest) = commit.split_once(r#""deltachain.layouts":""#).unwrap();
    let old = format!("{before}{}", &rest[rest.find(',').unwrap() + 1..]);
    folder.write(&commit_name(0), &old);
    folder
        .run(&[
            "sign",
            "chain",
            "--sign-key",
            "a.key",
            "--commit",
            &Digest::of_bytes(old.as_bytes()).to_string(),
        ])
        .good();
    evil(&folder);
    folder.run(&["snapshot", "evil", "-o", "whole.dcf"]).good();
    // Without trust, nothing has changed since 1.1. If the directory gets trust later, the version
    // is built again.
    set_routes(&folder, 0, 1, vec![(None, folder.read("whole.dcf"))]);
    folder.run(&["pull", "chain", "late"]).good();
    assert_eq!(files(&folder, "late").len(), 3);
    for directory in ["late", "new"] {
        let said = folder.run(&["pull", "chain", directory, "--trust", "a.pub"]);
        assert!(
            said.code == Some(1) && said.stderr.contains("R-LAY-03"),
            "{said:?}"
        );
    }
    std::fs::remove_file(folder.at(&routes_name(0, 1))).unwrap();
    for directory in ["late", "new"] {
        folder
            .run(&["pull", "chain", directory, "--trust", "a.pub"])
            .good();
        assert_eq!(
            files(&folder, directory),
            ["model.safetensors"],
            "{directory}"
        );
    }
}

/// A pull of some tensors does not hash the whole file, so the store could hold another file of the
/// same length.
#[test]
fn a_file_of_a_signed_commit_is_not_exchanged_for_a_part() {
    let folder = folder();
    let noise: Vec<u8> = (0_u64..(9 << 20) / 8)
        .flat_map(|i| {
            i.wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
                .wrapping_mul(i | 1)
                .to_le_bytes()
        })
        .collect();
    let tensors = bytes_file(&[("a", &noise), ("b", &noise)]);
    folder.write("big/model.safetensors", &tensors);
    folder.write("other/adapter_model.safetensors", &tensors);
    publish(&folder, "big", &[]);
    let name = std::fs::read_dir(folder.at("chain/files"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .file_name();
    let file = format!("chain/files/{}", name.to_str().unwrap());
    folder.run(&["snapshot", "other", "-o", "other.dcf"]).good();
    let mut other = folder.read("other.dcf");
    let room = folder.read(&file).len() - other.len();
    other[112..120].copy_from_slice(&(room as u64).to_le_bytes());
    other.resize(other.len() + room, 0);
    reseal(&mut other);
    let pull = [
        "pull",
        "chain",
        "part",
        "--trust",
        "a.pub",
        "--tensors",
        "a",
    ];
    let own = folder.read(&file);
    folder.write(&file, &other);
    let said = folder.run(&pull);
    assert!(
        said.code == Some(1) && said.stderr.contains("R-LAY-03"),
        "{said:?}"
    );
    folder.write(&file, own);
    folder.run(&pull).good();
    assert_eq!(files(&folder, "part"), ["model.safetensors"]);
}

#[test]
fn a_stranger_who_can_only_add_hides_no_version() {
    let folder = folder();
    publish(&folder, "v0", &[]);
    publish(&folder, "v1", &["--base", "v0"]);
    let commit = Digest::of_bytes(&folder.read(&commit_name(1)));
    for number in 0..64 {
        folder.write(
            &format!("chain/signatures/{:020}-{commit}-{number:064x}", 1),
            "x",
        );
    }
    assert_eq!(
        folder.json(&["pull", "chain", "new", "--trust", "a.pub"])["version"],
        1
    );
}

#[test]
fn trust_that_comes_late_is_unhealthy_until_a_signed_version_is_held() {
    let folder = folder();
    folder.run(&["publish", "chain", "v0"]).good();
    folder.run(&["pull", "chain", "held"]).good();
    let ran = folder.run(&["pull", "chain", "held", "--trust", "a.pub"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("CHAIN R-CHN-14"),
        "{ran:?}"
    );
    let ran = folder.run(&["status", "held"]);
    assert!(
        ran.code == Some(1) && ran.stdout.contains("signed"),
        "{ran:?}"
    );
}
