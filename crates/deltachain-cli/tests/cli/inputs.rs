//! Inputs that the tool must not mistake for something else, or must not touch: directories without
//! a model, files that change, pipes, and outputs that are inputs.

use std::fs;

use crate::round_trips::chain;
use crate::support::{Folder, bytes_file, step};

/// Checks that every command that takes a state refuses this one with this text.
fn no_model(folder: &Folder, state: &str, text: &str) {
    for arguments in [
        &["digest", state][..],
        &["snapshot", state, "-o", "out"],
        &["diff", state, "good", "-o", "out"],
        &["diff", "good", state, "-o", "out"],
        &["apply", "good.dcf", "--base", state, "-o", "out"],
        &["verify", "good.dcf", "--base", state],
        &["publish", "some chain", state],
        &["publish", "some chain", "good", "--base", state],
    ] {
        let error = folder.refused(arguments, "USAGE", None);
        assert!(
            error["message"].as_str().unwrap().contains(text),
            "{arguments:?}: {error}"
        );
        assert!(
            error["file"].as_str().unwrap().starts_with(state),
            "{arguments:?}: {error}"
        );
    }
}

/// Creates a folder with a state, a link and a chain.
fn good() -> Folder {
    let folder = Folder::new();
    folder.write("good", bytes_file(&[("t", b"1")]));
    folder.run(&["snapshot", "good", "-o", "good.dcf"]).good();
    folder.write("next", bytes_file(&[("t", b"2")]));
    folder
        .run(&["diff", "good", "next", "-o", "next.dcf"])
        .good();
    folder.run(&["init", "some chain"]).good();
    folder.run(&["publish", "some chain", "good"]).good();
    folder
}

#[test]
fn folders_that_are_no_model_are_refused_by_name() {
    let folder = good();
    let weights = bytes_file(&[("t", b"1")]);
    let whole = br#"{"architectures":["X"]}"#;
    folder.run(&["pull", "some chain", "followed"]).good();
    no_model(
        &folder,
        "followed",
        "the directory of a follower, not a model: give its folder \"current\"",
    );
    folder.run(&["digest", "followed/current"]).good();
    folder.write("some chain/a.safetensors", &weights);
    no_model(&folder, "some chain", "this is a chain");
    folder.write("models--o--m/blobs/1", &weights);
    folder.write("models--o--m/refs/main", "2");
    folder.write("models--o--m/snapshots/2/model.safetensors", &weights);
    no_model(
        &folder,
        "models--o--m",
        "in a hub's cache, not a model: give its folder snapshots/REVISION",
    );
    folder.run(&["digest", "models--o--m/snapshots/2"]).good();
    for number in [10, 20] {
        folder.write(
            &format!("runs/global_step_{number}/hf/model.safetensors"),
            &weights,
        );
        folder.write(&format!("runs/global_step_{number}/hf/config.json"), whole);
    }
    // Folders with bare numbers for names can be read, but not published.
    folder.write("steps/10/adapter.safetensors", &weights);
    folder.write("steps/20/adapter.safetensors", &weights);
    folder.run(&["digest", "steps"]).good();
    let error = folder.refused(&["publish", "some chain", "steps"], "USAGE", None);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("\"10/\" and \"20/\" have the same files"),
        "{message}"
    );
    no_model(
        &folder,
        "runs",
        "\"global_step_10/hf/\" and \"global_step_20/hf/\" each hold a model",
    );
    // A pipeline's index says how its folders belong together.
    folder.write("runs/model_index.json", "{}");
    folder.run(&["digest", "runs"]).good();
    folder.write("cases/model.safetensors", &weights);
    folder.write("cases/config.json", "{}");
    folder.run(&["digest", "cases"]).good();
    folder.write("cases/Config.json", "{}");
    no_model(
        &folder,
        "cases",
        "\"Config.json\" and \"config.json\" differ in case only",
    );
    for (other, text) in [("cases", "in case only"), ("followed", "not a model")] {
        let ran = folder.run(&["pull", "some chain", "other", "--with-files", other]);
        assert!(ran.code == Some(2) && ran.stderr.contains(text), "{ran:?}");
    }
}

#[test]
fn weights_beside_an_index_that_does_not_name_them_are_refused() {
    let folder = good();
    let index = r#"{"weight_map":{"t":"model-00001-of-00001.safetensors"}}"#;
    folder.write(
        "saved again/model-00001-of-00001.safetensors",
        bytes_file(&[("t", b"old")]),
    );
    folder.write("saved again/model.safetensors.index.json", index);
    folder.run(&["digest", "saved again"]).good();
    // A file with another name is an export of its own.
    folder.write(
        "saved again/model_4bit.safetensors",
        bytes_file(&[("t", b"4")]),
    );
    folder.run(&["digest", "saved again"]).good();
    folder.write(
        "saved again/model.safetensors",
        bytes_file(&[("t", b"new")]),
    );
    no_model(
        &folder,
        "saved again",
        "\"model.safetensors\" lies beside \"model.safetensors.index.json\", which does not name \
         it",
    );
}

#[test]
fn hidden_files_are_left_out_and_listed() {
    let folder = good();
    folder.write("model/model.safetensors", bytes_file(&[("t", b"2")]));
    folder.write("model/._model.safetensors", "a Mac's");
    let ran = folder.run(&["digest", "model"]);
    assert_eq!(ran.stderr, "note: left out: ._model.safetensors (hidden)\n");
    ran.good();
    let made = folder.json(&["diff", "good", "model", "-o", "out"]);
    assert_eq!(
        made["left_out"],
        serde_json::json!(["._model.safetensors (hidden)"])
    );
    let ran = folder.run(&["publish", "some chain", "model"]);
    assert!(
        ran.stderr
            .contains("not published: ._model.safetensors (hidden)"),
        "{ran:?}"
    );
    ran.good();
}

#[test]
fn a_chain_is_not_begun_in_a_followers_directory() {
    let folder = good();
    folder.run(&["pull", "some chain", "followed"]).good();
    let error = folder.refused(&["init", "followed"], "USAGE", None);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("managed by a follower"),
        "{error}"
    );
    folder.refused(&["publish", "followed", "good"], "CHAIN", Some("R-CHN-01"));
    folder.json(&["doctor", "followed"]);
}

#[test]
fn outputs_are_never_inputs() {
    let folder = Folder::new();
    chain(&folder, "direct");
    let files = |name: &str, number| {
        folder.write(
            &format!("{name}/a.safetensors"),
            fs::read(step(number)).unwrap(),
        );
        folder.write(&format!("{name}/config.json"), "{}");
    };
    files("old", 0);
    files("step_000001", 1);
    fs::hard_link(folder.at("old/a.safetensors"), folder.at("second name")).unwrap();
    fs::create_dir(folder.at("out")).unwrap();
    for arguments in [
        &["diff", "old", "step_000001", "-o", "old/a.safetensors"][..],
        &[
            "diff",
            "old",
            "step_000001",
            "-o",
            "step_000001/config.json",
        ],
        &["diff", "old", "step_000001", "-o", "step_000001/new.dcf"],
        &["diff", "old", "step_000001", "-o", "second name"],
        &[
            "snapshot",
            "old/a.safetensors",
            "-o",
            "old/../old/a.safetensors",
        ],
        &["apply", "1.dcf", "--base", "old", "-o", "1.dcf"],
        &["apply", "1.dcf", "--base", "old", "-o", "old/config.json"],
        &["inspect", "1.dcf", "--html", "1.dcf"],
    ] {
        let error = folder.refused(&[arguments, &["--force"]].concat(), "USAGE", None);
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("the output is the input"),
            "{arguments:?}: {error}"
        );
    }
    // The result may replace its base, but not a link inside that base.
    folder
        .run(&["diff", "old", "step_000001", "-o", "directories.dcf"])
        .good();
    folder.write("old/1.dcf", folder.read("directories.dcf"));
    folder.refused(
        &[
            "apply",
            "old/1.dcf",
            "--base",
            "old",
            "-o",
            "old",
            "--force",
        ],
        "USAGE",
        None,
    );
    folder
        .run(&[
            "apply",
            "directories.dcf",
            "--base",
            "old",
            "-o",
            "old",
            "--force",
        ])
        .good();
    assert_eq!(
        folder.read("old/a.safetensors"),
        folder.read("step_000001/a.safetensors")
    );
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_inputs() {
    let folder = good();
    folder.write("directory/model.safetensors", bytes_file(&[("t", b"1")]));
    folder.write(
        "directory/model.safetensors.index.json",
        r#"{"weight_map":{"t":"linked.safetensors"}}"#,
    );
    let made = std::process::Command::new("mkfifo")
        .arg(folder.at("pipe"))
        .status()
        .unwrap();
    assert!(made.success());
    // The pipe has no writer, so opening it would block forever. Its content is not compared.
    for input in ["pipe", "/dev/zero", "/dev/tty"] {
        for arguments in [
            &["inspect", input][..],
            &["verify", input],
            &["verify", "good.dcf", "--base", input],
            &["apply", input, "-o", "out"],
            &["apply", "good.dcf", "--base", input, "-o", "out"],
            &["diff", input, "good", "-o", "out"],
            &["diff", "good", input, "-o", "out"],
            &["digest", input],
            &["log", "some chain", "--trust", input],
            &["key", "show", input],
            &["publish", "some chain", input],
            &["publish", "some chain", "good", "--base", input],
            &["publish", "some chain", "good", "--sign-key", input],
        ] {
            let ran = folder.run(&[arguments, &["--json"]].concat());
            let error = &ran.json()["error"];
            assert_eq!(
                (ran.code, error["class"].as_str()),
                (Some(2), Some("USAGE")),
                "{arguments:?}: {ran:?}"
            );
            assert_eq!(error["file"], input, "{arguments:?}: {ran:?}");
        }
    }
    std::os::unix::fs::symlink("../pipe", folder.at("directory/linked.safetensors")).unwrap();
    let ran = folder.run(&["digest", "directory"]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("error: USAGE: "),
        "{ran:?}"
    );
}

/// True if a process has opened this file.
#[cfg(target_os = "linux")]
fn has_opened(child: &mut std::process::Child, file: &std::path::Path) -> bool {
    assert!(
        child.try_wait().unwrap().is_none(),
        "the tool ended before it opened {}",
        file.display()
    );
    let open = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    open.flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == file))
}

#[cfg(target_os = "linux")]
#[test]
fn a_state_that_is_cut_while_it_is_read_is_refused() {
    use crate::support::{Ran, TOOL, safetensors};
    use std::process::{Command, Stdio};

    let folder = good();
    let header = r#"{"t":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}}"#;
    let path = fs::canonicalize(folder.at(".")).unwrap().join("long");
    for arguments in [
        &["digest", "long"][..],
        &["snapshot", "long", "-o", "out"],
        &["diff", "long", "good", "-o", "out"],
        &["diff", "good", "long", "-o", "out"],
        &["apply", "good.dcf", "--base", "long", "-o", "out"],
        &["verify", "good.dcf", "--base", "long"],
        &["publish", "some chain", "long"],
        &["publish", "some chain", "good", "--base", "long"],
    ] {
        // The file has 64 GB, none of which is on disk. Reading all of it would take a minute.
        folder.write("long", safetensors(header, b""));
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() + (64 << 30))
            .unwrap();
        let before = folder.json(&["log", "some chain"]);
        let mut tool = Command::new(TOOL);
        tool.args(arguments)
            .current_dir(folder.at("."))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = tool.spawn().unwrap();
        while !has_opened(&mut child, &path) {
            std::thread::yield_now();
        }
        file.set_len(1000).unwrap();
        let ran = Ran::of(child.wait_with_output().unwrap());
        let has_changed = ran.stderr.contains("changed while it was being read");
        // The file was cut before its header was compared with its length.
        let is_short = ran.stderr.contains("its header describes");
        assert!(
            (ran.code == Some(1) && has_changed || ran.code == Some(2) && is_short)
                && ran.stderr.contains("long"),
            "{arguments:?}: {ran:?}"
        );
        assert!(
            !folder.at("out").exists() && folder.json(&["log", "some chain"]) == before,
            "{arguments:?}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_that_is_saved_again_is_not_published() {
    use crate::support::{Ran, TOOL};
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;
    use std::process::{Command, Stdio};

    let folder = good();
    for step in [1, 2] {
        folder.write(
            &format!("{step}/model.safetensors"),
            bytes_file(&[("t", &vec![step; 1 << 20])]),
        );
        folder.write(&format!("{step}/.hidden"), "");
    }
    let path = fs::canonicalize(folder.at("1"))
        .unwrap()
        .join("model.safetensors");
    let before = folder.json(&["log", "some chain"]);
    // The pipe for the tool's messages is full, so the tool blocks when it lists the files that it
    // does not publish.
    let (mut told, mut full) = std::io::pipe().unwrap();
    full.write_all(&vec![b'.'; 1 << 16]).unwrap();
    let mut tool = Command::new(TOOL);
    tool.args(["publish", "some chain", "1"])
        .current_dir(folder.at("."))
        .stdout(Stdio::piped())
        .stderr(full);
    let mut child = tool.spawn().unwrap();
    drop(tool);
    while !has_opened(&mut child, &path) {
        std::thread::yield_now();
    }
    // The file is overwritten in place, with the same size and, apparently, at the same time.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let written = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(&folder.read("2/model.safetensors"), 0)
        .unwrap();
    file.set_modified(written).unwrap();
    let stderr = std::io::read_to_string(&mut told).unwrap();
    let ran = Ran {
        stderr,
        ..Ran::of(child.wait_with_output().unwrap())
    };
    assert!(
        ran.code == Some(1) && ran.stderr.contains("changed while it was being read"),
        "{ran:?}"
    );
    assert_eq!(folder.json(&["log", "some chain"]), before);
}

#[cfg(unix)]
#[test]
fn publish_waits_for_a_marker() {
    use crate::support::{Ran, TOOL};
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let folder = good();
    let wait = |name: &str| {
        let mut tool = Command::new(TOOL);
        tool.args(["publish", "some chain", "1", "--wait-for", name])
            .current_dir(folder.at("."));
        let mut child = tool
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        told.read_line(&mut line).unwrap();
        assert_eq!(line, format!("waiting for 1/{name}\n"));
        (child, told)
    };
    let (child, _told) = wait("_SUCCESS");
    folder.write("1/model.safetensors", bytes_file(&[("t", b"2")]));
    folder.write("1/_SUCCESS", "");
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert!(ran.stdout.contains("new: _SUCCESS"), "{ran:?}");
    ran.good();
    folder
        .run(&["publish", "some chain", "1", "--wait-for", "_SUCCESS"])
        .good();
    let (child, _told) = wait(".complete");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(Ran::of(child.wait_with_output().unwrap()).code, Some(130));
    folder.write("1/.complete", "");
    folder
        .run(&["publish", "some chain", "1", "--wait-for", ".complete"])
        .good();
    folder.refused(
        &["publish", "some chain", "good", "--wait-for", "_SUCCESS"],
        "IO",
        None,
    );
}
