//! The limits of the machine: descriptors, disks, processes; and files that other programs have
//! left in the places of the tool's own files.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use crate::support::{Folder, Ran, TOOL, bytes_file};

/// Creates a chain with one version of the given number of tensor files.
fn sharded(files: usize) -> Folder {
    let folder = Folder::new();
    for number in 0..files {
        let name = format!("model/model-{number:05}-of-{files:05}.safetensors");
        folder.write(&name, bytes_file(&[(&format!("t{number}"), &[1, 2])]));
    }
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", "model"]).good();
    folder
}

#[test]
fn the_soft_limit_for_open_files_does_not_count() {
    let folder = sharded(40);
    let script = "ulimit -Sn 32; exec \"$0\" \"$@\"";
    folder
        .run_in_shell(script, &["pull", "chain", "out"])
        .good();
    // 40 tensor files and their index.
    assert_eq!(fs::read_dir(folder.at("out/current")).unwrap().count(), 41);
}

#[test]
fn the_hard_limit_for_open_files_is_named() {
    let folder = sharded(40);
    let script = "ulimit -n 32; exec \"$0\" \"$@\"";
    for arguments in [
        &["pull", "chain", "out"][..],
        &["digest", "model"],
        &["publish", "chain", "model", "--base", "model"],
    ] {
        let ran = folder.run_in_shell(script, arguments);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("ulimit -n"),
            "{arguments:?}: {ran:?}"
        );
    }
}

#[test]
fn a_port_that_is_taken_is_not_a_wrong_argument() {
    let folder = sharded(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for arguments in [
        &["follow", "chain", "out", "--listen", &address][..],
        &[
            "mirror", "chain", "copy", "--poll", "1", "--listen", &address,
        ],
    ] {
        let ran = folder.run(arguments);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("another port"),
            "{arguments:?}: {ran:?}"
        );
    }
}

#[test]
fn a_copy_that_follows_links_is_explained() {
    let folder = sharded(1);
    folder.run(&["pull", "chain", "out"]).good();
    // `cp -rL` and `kubectl cp` leave such a directory.
    fs::remove_file(folder.at("out/current")).unwrap();
    fs::create_dir(folder.at("out/current")).unwrap();
    for arguments in [&["pull", "chain", "out"][..], &["follow", "chain", "out"]] {
        let ran = folder.run(arguments);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("remove it"),
            "{arguments:?}: {ran:?}"
        );
    }
    let status = folder.run(&["status", "out"]);
    assert!(
        status.code == Some(1)
            && status.stdout.contains("not a symbolic link")
            && !status.stdout.contains("os error"),
        "{status:?}"
    );
    fs::remove_dir(folder.at("out/current")).unwrap();
    folder.run(&["pull", "chain", "out"]).good();
}

#[test]
fn a_directory_of_another_follower_is_not_a_wrong_argument() {
    let folder = sharded(1);
    folder.run(&["pull", "chain", "out"]).good();
    let lock = fs::File::create(folder.at("out/lock")).unwrap();
    lock.lock().unwrap();
    let ran = folder.run(&["pull", "chain", "out"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("another process"),
        "{ran:?}"
    );
}

#[test]
fn nothing_to_restore_is_not_a_wrong_argument() {
    let folder = sharded(1);
    let ran = folder.run(&["prune", "chain", "--undo"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("no route was withdrawn"),
        "{ran:?}"
    );
}

/// Runs a script as root of a namespace of its own, if this is allowed. `$0` is the tool.
fn in_namespace(folder: &Folder, options: &[&str], script: &str) -> Option<Ran> {
    let namespace = ["--user", "--map-root-user"];
    let unshare = |arguments: &[&str]| {
        Command::new("unshare")
            .args(namespace)
            .args(options)
            .args(arguments)
            .current_dir(folder.at(""))
            .output()
    };
    if !unshare(&["true"]).is_ok_and(|ran| ran.status.success()) {
        println!("SKIPPED: this machine does not allow namespaces of users");
        return None;
    }
    Some(Ran::of(unshare(&["sh", "-c", script, TOOL]).unwrap()))
}

#[test]
fn process_1_lets_orphans_end() {
    let folder = sharded(1);
    // The first version's command leaves an orphan behind, and a second process that publishes the
    // next version when the orphan is gone or has stayed for long.
    let command = r#"[ "$DELTACHAIN_VERSION" = 0 ] || exit 0
        sh -c 'echo $$ > orphan' &
        sh wait &"#;
    let wait = r#"
        until [ -s orphan ] && grep -q "^PPid:.1$" /proc/$$/status; do :; done
        for _ in $(seq 3000); do [ -e "/proc/$(cat orphan)" ] || break; grep -q . \
            chain/chain.json; done
        [ -e "/proc/$(cat orphan)" ] && echo > left
        TOOL publish chain model"#;
    folder.write("command", command);
    folder.write("wait", wait.replace("TOOL", TOOL));
    let script = r#"mount -t proc proc /proc
        exec "$0" follow chain out --poll 0.01 --until 1 --exec "sh command""#;
    let options = ["--pid", "--fork", "--mount"];
    if let Some(ran) = in_namespace(&folder, &options, script) {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(folder.at("orphan").exists() && !folder.at("left").exists());
    }
}

#[test]
fn a_follower_on_a_full_disk_is_unhealthy() {
    let folder = sharded(1);
    folder.write("big.safetensors", bytes_file(&[("t", &vec![7; 4 << 20])]));
    let script = r#"
        set -e
        mkdir disk; mount -t tmpfs -o size=1m tmpfs disk
        "$0" pull chain disk/out >&2
        "$0" follow chain disk/out --once >&2
        "$0" publish chain big.safetensors >&2
        dd if=/dev/zero of=disk/filler bs=4096 2> /dev/null || true
        "$0" follow chain disk/out --once >&2 || true
        "$0" status disk/out --max-lag 0 --json
    "#;
    let Some(ran) = in_namespace(&folder, &["--mount"], script) else {
        return;
    };
    let status = ran.json();
    assert_eq!(ran.code, Some(1), "{status}");
    assert_eq!(status["healthy"], false, "{status}");
    assert_eq!(status["lag_versions"], 1, "{status}");
    let problems = status["problems"].to_string();
    assert!(
        problems.contains("No space left") && problems.contains("1 versions behind"),
        "{problems}"
    );
}
