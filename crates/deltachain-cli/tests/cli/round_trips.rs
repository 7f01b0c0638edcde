//! Round trips that must be exact to the bit: links applied one by one, in sequence, joined, and as
//! snapshots.

use std::fs;

use deltachain::tensor::{DescribedDtype, Dtype, MemoryState};
use deltachain::{DiffOptions, diff};

use crate::support::{Folder, bytes_file, excerpt, safetensors, step};

/// Writes the links 0.dcf (a snapshot), 1.dcf, 2.dcf and 3.dcf of the BF16 checkpoints.
pub(crate) fn chain(folder: &Folder, profile: &str) {
    folder.run(&["snapshot", &step(0), "-o", "0.dcf"]).good();
    for number in 1..4 {
        let name = format!("{number}.dcf");
        folder
            .run(&[
                "diff",
                &step(number - 1),
                &step(number),
                "-o",
                &name,
                "--profile",
                profile,
            ])
            .good();
    }
}

fn same(folder: &Folder, name: &str, original: &str) {
    // Not `assert_eq`, which would print megabytes.
    assert!(
        folder.read(name) == fs::read(original).unwrap(),
        "{name} differs from {original}"
    );
}

#[test]
fn every_pair_comes_back() {
    let pairs = [
        (step(0), step(1)),
        (step(3), step(0)),
        (excerpt("fp8_step0"), excerpt("fp8_step1")),
        (excerpt("f32_step0"), excerpt("f32_step1")),
        (excerpt("f32_step0"), excerpt("fp8_step1")),
        (step(2), step(2)),
    ];
    for (base, target) in pairs {
        for profile in ["compact", "direct"] {
            let folder = Folder::new();
            let made = folder.json(&[
                "diff",
                &base,
                &target,
                "-o",
                "link.dcf",
                "--profile",
                profile,
            ]);
            assert_eq!(
                made["bytes"].as_u64(),
                Some(folder.read("link.dcf").len() as u64)
            );
            let built = folder.json(&[
                "apply",
                "--base",
                &base,
                "link.dcf",
                "-o",
                "result.safetensors",
            ]);
            same(&folder, "result.safetensors", &target);
            assert_eq!(built["state"], made["target"]);
            assert_eq!(built["base"], made["base"]);
            assert_eq!(made["base"], folder.json(&["digest", &base])["state"]);
            assert_eq!(made["target"], folder.json(&["digest", &target])["state"]);
            assert_eq!(folder.contents().len(), 2, "files are left behind");
        }
    }
}

#[test]
fn figures_are_right() {
    let folder = Folder::new();
    let made = folder.json(&["diff", &step(0), &step(1), "-o", "1.dcf"]);
    let old = fs::read(step(0)).unwrap();
    let new = fs::read(step(1)).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(old[..8].try_into().unwrap())).unwrap();
    let changed = old[header..]
        .chunks(2)
        .zip(new[header..].chunks(2))
        .filter(|(old, new)| old != new)
        .count();
    assert_eq!(made["changed"].as_u64(), Some(changed as u64));
    assert_eq!(
        made["elements"].as_u64(),
        Some(((new.len() - header) / 2) as u64)
    );
    assert_eq!(
        made["target_bytes"].as_u64(),
        Some((new.len() - header) as u64)
    );
}

#[test]
fn states_on_the_way_need_not_fit_in_files() {
    let folder = Folder::new();
    folder.write("base.safetensors", bytes_file(&[("a", &[1])]));
    // The first link adds a tensor of a described dtype, and the second removes it.
    let state = |byte: u8| {
        let mut state = MemoryState::new();
        state.insert("a", Dtype::U8, &[1], vec![byte]).unwrap();
        state
    };
    let mut between = state(5);
    let described = Dtype::Described(DescribedDtype::new("U24", 24, 1, None).unwrap());
    between.insert("b", described, &[2], vec![6; 6]).unwrap();
    for (name, base, target) in [
        ("0.dcf", &state(1), &between),
        ("1.dcf", &between, &state(9)),
    ] {
        let mut link = Vec::new();
        diff(base, target, &DiffOptions::default(), &mut link).unwrap();
        folder.write(name, link);
    }
    folder
        .run(&[
            "apply",
            "--base",
            "base.safetensors",
            "0.dcf",
            "1.dcf",
            "-o",
            "9.safetensors",
        ])
        .good();
    assert_eq!(folder.read("9.safetensors"), bytes_file(&[("a", &[9])]));
    folder.refused(
        &[
            "apply",
            "--base",
            "base.safetensors",
            "0.dcf",
            "-o",
            "5.safetensors",
        ],
        "USAGE",
        None,
    );
}

#[test]
fn links_apply_in_order() {
    for profile in ["compact", "direct"] {
        let folder = Folder::new();
        chain(&folder, profile);
        folder.run(&["apply", "0.dcf", "-o", "zero"]).good();
        same(&folder, "zero", &step(0));
        folder
            .run(&["apply", "0.dcf", "1.dcf", "2.dcf", "3.dcf", "-o", "three"])
            .good();
        same(&folder, "three", &step(3));
        folder
            .run(&["apply", "--base", "zero", "1.dcf", "2.dcf", "-o", "two"])
            .good();
        same(&folder, "two", &step(2));
        // The base itself may be replaced.
        folder
            .run(&["apply", "--base", "two", "3.dcf", "-o", "two", "--force"])
            .good();
        same(&folder, "two", &step(3));
        assert_eq!(folder.contents().len(), 4 + 3, "files are left behind");
    }
}

#[test]
fn links_do_not_depend_on_threads() {
    let folder = Folder::new();
    for threads in ["1", "2", "5"] {
        folder
            .run(&[
                "diff",
                &step(0),
                &step(1),
                "-o",
                threads,
                "--threads",
                threads,
            ])
            .good();
        assert!(folder.read(threads) == folder.read("1"));
    }
}

#[test]
fn tensors_come_go_and_change_type() {
    let folder = Folder::new();
    let header = r#"{"gone":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"retyped":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]},"reshaped":{"dtype":"U8","shape":[2,1],"data_offsets":[4,6]},"kept":{"dtype":"U8","shape":[],"data_offsets":[6,7]}}"#;
    folder.write("base", safetensors(header, b"1234567"));
    let header = r#"{"__metadata__":{"k":"v"},"retyped":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"reshaped":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"kept":{"dtype":"U8","shape":[],"data_offsets":[4,5]},"new":{"dtype":"U8","shape":[0,9],"data_offsets":[5,5]}}"#;
    folder.write("target", safetensors(header, b"34567"));
    folder.run(&["diff", "base", "target", "-o", "link"]).good();
    folder
        .run(&["apply", "--base", "base", "link", "-o", "result"])
        .good();
    assert_eq!(
        folder.json(&["digest", "result", "--tensors"]),
        folder.json(&["digest", "target", "--tensors"])
    );
    let shown = folder.json(&["inspect", "link"]);
    let operations: Vec<(&str, &str)> = shown["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| {
            (
                tensor["name"].as_str().unwrap(),
                tensor["operation"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        operations,
        [
            ("gone", "remove"),
            ("new", "set"),
            ("reshaped", "patch"),
            ("retyped", "set")
        ]
    );
    assert!(
        String::from_utf8_lossy(&folder.read("result")).contains(r#""__metadata__":{"k":"v"}"#)
    );
}

#[test]
fn any_name_and_any_path_will_do() {
    let folder = Folder::new();
    let names = [
        "",
        " ",
        "wörter/\u{1F9EE}",
        "a\u{1b}[2Jb\n",
        "\u{202E}x",
        "e\u{301}",
        "\u{e9}",
        "\0",
    ];
    let tensors = |byte: u8| {
        names
            .iter()
            .map(|name| (*name, vec![byte; 5]))
            .collect::<Vec<_>>()
    };
    for (file, byte) in [("der Anfang \u{1F9EE}.safetensors", 1), ("das Ende", 2)] {
        let tensors = tensors(byte);
        let tensors: Vec<(&str, &[u8])> = tensors
            .iter()
            .map(|(name, bytes)| (*name, bytes.as_slice()))
            .collect();
        folder.write(file, bytes_file(&tensors));
    }
    folder
        .run(&[
            "diff",
            "der Anfang \u{1F9EE}.safetensors",
            "das Ende",
            "-o",
            "von da nach dort.dcf",
        ])
        .good();
    let base = ["--base", "der Anfang \u{1F9EE}.safetensors"];
    folder
        .run(&[
            "apply",
            "von da nach dort.dcf",
            base[0],
            base[1],
            "-o",
            "./-Ergebnis \u{e4}",
        ])
        .good();
    let digests = folder.json(&["digest", "--tensors", "das Ende"]);
    assert_eq!(
        digests,
        folder.json(&["digest", "--tensors", "./-Ergebnis \u{e4}"])
    );
    assert_eq!(digests["tensors"].as_object().unwrap().len(), names.len());
    for arguments in [
        &["inspect", "von da nach dort.dcf"][..],
        &["digest", "--tensors", "das Ende"],
    ] {
        let shown = folder.run(arguments).good();
        assert!(
            shown
                .chars()
                .all(|c| c == '\n' || (!c.is_control() && c != '\u{202E}')),
            "{shown:?}"
        );
    }
}
