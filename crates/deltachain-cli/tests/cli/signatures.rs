//! Signed chains, from the first key to a follower that refuses other publishers. No output of the
//! tool contains a secret.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use deltachain::tensor::Digest;
use serde_json::Value;

use crate::support::{Folder, Ran, TOOL, bytes_file, publish_shards, step};

/// The secret in a key file, without its name and its ID.
fn secret(folder: &Folder, file: &str) -> String {
    let text = String::from_utf8(folder.read(file)).unwrap();
    text.trim().splitn(5, '+').last().unwrap().to_owned()
}

/// Runs the tool with keys in files and checks that it does not print their secrets.
fn run(folder: &Folder, arguments: &[&str]) -> Ran {
    let ran = folder.run(arguments);
    assert_silent(folder, &ran);
    ran
}

fn assert_silent(folder: &Folder, ran: &Ran) {
    for entry in fs::read_dir(folder.at(".")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.strip_suffix(".key").is_some() {
            let secret = secret(folder, &name);
            assert!(
                !ran.stdout.contains(&secret) && !ran.stderr.contains(&secret),
                "{name}: {ran:?}"
            );
        }
    }
}

/// Creates a directory with the keys `a` and `b`, their public keys, and a chain without versions.
fn folder() -> Folder {
    let folder = Folder::new();
    for name in ["a", "b"] {
        let public = run(&folder, &["key", "new", name, "-o", &format!("{name}.key")]).good();
        folder.write(&format!("{name}.pub"), &public);
    }
    folder.run(&["init", "chain"]).good();
    folder
}

fn publish(folder: &Folder, number: usize, options: &[&str]) -> Ran {
    run(
        folder,
        &[&["publish", "chain", &step(number), "--no-assets"], options].concat(),
    )
}

fn commit_of(folder: &Folder, version: &str) -> String {
    let shown = folder.json(&["show", "chain", "--version", version]);
    shown["commit"].as_str().unwrap().to_owned()
}

#[test]
fn a_key_is_made_once_and_shown_without_its_secret() {
    let folder = Folder::new();
    let public = run(
        &folder,
        &["key", "new", "trainer.example/run7", "-o", "run7.key"],
    )
    .good();
    assert!(public.starts_with("trainer.example/run7+"), "{public}");
    let mode = fs::metadata(folder.at("run7.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(run(&folder, &["key", "show", "run7.key"]).good(), public);
    folder.write("run7.pub", &public);
    assert_eq!(run(&folder, &["key", "show", "run7.pub"]).good(), public);
    let piped = folder.run_in_shell("\"$0\" key show - < run7.key", &[]);
    assert_silent(&folder, &piped);
    assert_eq!(piped.good(), public);
    let json = folder.json(&["key", "show", "run7.key"]);
    assert_eq!(
        (json["key"].as_str(), json["name"].as_str()),
        (Some(public.trim()), Some("trainer.example/run7"))
    );
    // Existing files are not replaced, and invalid names are refused.
    folder.refused(&["key", "new", "other", "-o", "run7.key"], "USAGE", None);
    folder.refused(&["key", "new", "other", "-o", "run7.pub"], "USAGE", None);
    for name in ["", "a b", "a+b", "a\nb", "a\u{200b}b"] {
        folder.refused(&["key", "new", name, "-o", "new.key"], "USAGE", None);
    }
    folder.refused(&["key", "show", "none.key"], "USAGE", None);
}

#[test]
fn key_files_may_have_comments_and_ends_of_windows() {
    let folder = folder();
    let text = |file: &str| String::from_utf8(folder.read(file)).unwrap();
    let secret = text("a.key");
    let a = text("a.pub");
    let b = text("b.pub");
    folder.write(
        "edited.key",
        format!("\u{feff}# of the trainer\r\n\r\n  {}  \r\n", secret.trim()),
    );
    fs::set_permissions(folder.at("edited.key"), fs::Permissions::from_mode(0o600)).unwrap();
    publish(&folder, 0, &["--sign-key", "edited.key"]).good();
    folder.write(
        "both.pub",
        format!(
            "\u{feff}# who publishes\r\n{} # a\r\n\r\n\t{}  \r\n",
            a.trim(),
            b.trim()
        ),
    );
    assert_eq!(
        run(&folder, &["key", "show", "both.pub"]).good(),
        format!("{a}{b}")
    );
    let shown = folder.json(&["show", "chain", "--trust", "both.pub"]);
    assert_eq!(
        (shown["signed"].as_bool(), shown["signed_by"][0].as_str()),
        (Some(true), Some(a.trim()))
    );
    // A damaged or mixed-up key is refused, and its text is not shown.
    let damaged = secret.replace("PRIVATE", "RIVATE");
    let cut = secret.trim()[..secret.trim().len() - 2].to_owned();
    for wrong in [
        String::new(),
        "# a\n".to_owned(),
        damaged,
        cut,
        format!("{secret}{a}"),
        format!("{secret}{secret}"),
    ] {
        folder.write("wrong", &wrong);
        fs::set_permissions(folder.at("wrong"), fs::Permissions::from_mode(0o600)).unwrap();
        for arguments in [
            ["pull", "chain", "model", "--trust", "wrong"],
            ["sign", "chain", "--sign-key", "wrong", "-q"],
        ] {
            let ran = run(&folder, &arguments);
            assert_eq!(ran.code, Some(2), "{wrong}: {ran:?}");
        }
        if !wrong.is_empty() && !wrong.starts_with('#') {
            let ran = run(&folder, &["log", "chain", "--trust", wrong.trim()]);
            assert_eq!(ran.code, Some(2), "{wrong}: {ran:?}");
        }
    }
    let ran = run(&folder, &["log", "chain", "--trust", secret.trim()]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    folder.refused(&["log", "chain", "--trust", "a.key"], "USAGE", None);
    folder.refused(&["log", "chain", "--trust", "none.pub"], "USAGE", None);
    folder.refused(
        &["log", "chain", "--trust", "a.pub", "--trust", "both.pub"],
        "USAGE",
        None,
    );
    folder.refused(
        &["log", "chain", "--trust", "a.pub", "--quorum", "2"],
        "USAGE",
        None,
    );
    assert_eq!(
        run(&folder, &["log", "chain", "--quorum", "1"]).code,
        Some(2)
    );
}

#[test]
fn a_secret_that_others_can_read_signs_nothing() {
    let folder = folder();
    for mode in [0o640, 0o604, 0o660, 0o644] {
        fs::set_permissions(folder.at("a.key"), fs::Permissions::from_mode(mode)).unwrap();
        let ran = publish(&folder, 0, &["--sign-key", "a.key"]);
        assert!(
            ran.code == Some(2) && ran.stderr.contains("chmod 600"),
            "{ran:?}"
        );
    }
    fs::set_permissions(folder.at("a.key"), fs::Permissions::from_mode(0o400)).unwrap();
    publish(&folder, 0, &["--sign-key", "a.key"]).good();
    // Kubernetes mounts a secret with a group of the process and root as its owner.
    fs::set_permissions(folder.at("a.key"), fs::Permissions::from_mode(0o440)).unwrap();
    let ran = publish(&folder, 1, &["--sign-key", "a.key"]);
    if fs::metadata(folder.at("a.key")).unwrap().uid() == 0 {
        ran.good();
        let other_group = Some(12345);
        std::os::unix::fs::chown(folder.at("a.key"), None, other_group).unwrap();
        let ran = publish(&folder, 2, &["--sign-key", "a.key"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let other_owner = Some(12345);
        std::os::unix::fs::chown(folder.at("a.key"), other_owner, Some(0)).unwrap();
        let ran = publish(&folder, 2, &["--sign-key", "a.key"]);
        assert!(
            ran.code == Some(2) && ran.stderr.contains("fsGroup") && !ran.stderr.contains("chmod"),
            "{ran:?}"
        );
    } else {
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
    let ran = publish(&folder, 2, &["--sign-key", "a.pub"]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("public key"),
        "{ran:?}"
    );
}

#[test]
fn a_follower_takes_only_what_its_keys_have_signed() {
    let folder = folder();
    publish(&folder, 0, &["--sign-key", "a.key"]).good();
    let pulled = folder.json(&["pull", "chain", "served", "--trust", "a.pub"]);
    let a = String::from_utf8(folder.read("a.pub")).unwrap();
    assert_eq!(
        (pulled["version"].as_u64(), pulled["signed_by"][0].as_str()),
        (Some(0), Some(a.trim()))
    );
    // A publisher without a key publishes.
    let ran = publish(&folder, 1, &[]);
    assert!(
        ran.code == Some(2)
            && ran.stderr.contains("version 0 is signed")
            && ran.stderr.contains("--unsigned"),
        "{ran:?}"
    );
    publish(&folder, 1, &["--unsigned"]).good();
    for _ in 0..2 {
        let followed = run(
            &folder,
            &[
                "follow", "chain", "served", "--once", "--trust", "a.pub", "--json",
            ],
        )
        .good();
        let events: Vec<Value> = followed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(
            events[0]["text"]
                .as_str()
                .unwrap()
                .contains("none of the trusted keys"),
            "{followed}"
        );
        let last = events.last().unwrap();
        assert_eq!(
            (last["version"].as_u64(), last["signed_by"][0].as_str()),
            (Some(0), Some(a.trim())),
            "{followed}"
        );
    }
    let said = run(&folder, &["pull", "chain", "served", "--trust", "a.pub"]);
    assert!(
        said.stderr
            .contains("version 1 exists, but none of the trusted keys has signed it"),
        "{said:?}"
    );
    let status = run(&folder, &["status", "served"]).good();
    assert!(
        status.contains("unsigned  version 1 exists") && status.contains("\nhealthy"),
        "{status}"
    );
    // Trust in another key is no help, and the publisher with a key does not continue the chain.
    let ran = run(&folder, &["pull", "chain", "other", "--trust", "b.pub"]);
    assert!(
        ran.code == Some(1)
            && ran.stderr.contains("CHAIN R-SIG-01")
            && ran.stderr.contains("--trust"),
        "{ran:?}"
    );
    let ran = publish(&folder, 2, &["--sign-key", "a.key"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("CHAIN R-SIG-03"),
        "{ran:?}"
    );
    // The directory keeps its trust if the option is left out.
    for arguments in [
        &["pull", "chain", "served"][..],
        &["follow", "chain", "served", "--once"],
    ] {
        let ran = run(&folder, arguments);
        assert!(
            ran.code == Some(2) && ran.stderr.contains("trust"),
            "{ran:?}"
        );
    }
    let status = folder.json(&["status", "served"]);
    assert_eq!(
        status["trust"]["signed_by"][0].as_str(),
        Some(a.trim()),
        "{status}"
    );
    assert!(
        run(&folder, &["status", "served"])
            .stdout
            .contains("signed    by a;")
    );
    let pulled = folder.json(&["pull", "chain", "served", "--trust", "none"]);
    assert_eq!(
        (pulled["version"].as_u64(), pulled["signed_by"].is_null()),
        (Some(1), true)
    );
    assert!(folder.json(&["status", "served"])["trust"].is_null());
    // A user who has checked the commit vouches for it.
    let commit = commit_of(&folder, "1");
    publish(&folder, 2, &["--sign-key", "a.key", "--vouch", &commit]).good();
    assert_eq!(
        folder.json(&["pull", "chain", "new", "--trust", a.trim()])["version"].as_u64(),
        Some(2)
    );
}

#[test]
fn trust_that_does_not_fit_what_is_held_is_named() {
    let folder = folder();
    publish(&folder, 0, &["--sign-key", "a.key"]).good();
    publish(&folder, 1, &["--sign-key", "a.key"]).good();
    folder.json(&["pull", "chain", "served"]);
    let pull = ["pull", "chain", "served", "--trust", "b.pub"];
    let ran = run(&folder, &pull);
    assert!(
        ran.code == Some(1)
            && ran.stderr.contains("CHAIN R-CHN-14")
            && ran.stderr.contains("--trust"),
        "{ran:?}"
    );
    assert!(
        !ran.stderr.contains("rolled back") && !ran.stderr.contains("--allow-rollback"),
        "{ran:?}"
    );
    let ran = run(&folder, &["status", "served"]);
    assert!(
        ran.code == Some(1)
            && ran
                .stdout
                .contains("unhealthy: the held version is not known to be sign"),
        "{ran:?}"
    );
    // The failure is recorded in `status.json`, which metrics and readiness show.
    assert_eq!(
        run(
            &folder,
            &["follow", "chain", "served", "--once", "--trust", "b.pub"]
        )
        .code,
        Some(1)
    );
    let followed: Value = serde_json::from_slice(&folder.read("served/status.json")).unwrap();
    assert!(
        followed["unsigned"]
            .as_str()
            .is_some_and(|text| text.contains("not known to be signed")),
        "{followed}"
    );
    run(
        &folder,
        &["follow", "chain", "served", "--once", "--trust", "a.pub"],
    )
    .good();
    let followed: Value = serde_json::from_slice(&folder.read("served/status.json")).unwrap();
    assert!(followed["unsigned"].is_null(), "{followed}");
    // A rollback is a separate error.
    folder.run_in_shell("rm chain/commits/*1.json", &[]).good();
    let ran = run(&folder, &["pull", "chain", "served", "--trust", "a.pub"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("--allow-rollback"),
        "{ran:?}"
    );
}

#[test]
fn a_rollback_is_accepted_only_if_it_is_signed() {
    let folder = folder();
    publish(&folder, 0, &["--sign-key", "a.key"]).good();
    folder.run_in_shell("cp -r chain before", &[]).good();
    publish(&folder, 1, &["--sign-key", "a.key"]).good();
    folder.json(&["pull", "chain", "served", "--trust", "a.pub"]);
    folder
        .run_in_shell("mv chain after && cp -r before chain", &[])
        .good();
    publish(&folder, 2, &["--unsigned"]).good();
    let signed = commit_of(&folder, "0");
    let other = commit_of(&folder, "1");
    let pull = ["pull", "chain", "served", "--trust", "a.pub"];
    assert_eq!(run(&folder, &pull).code, Some(1));
    assert_eq!(
        run(
            &folder,
            &[&pull[..], &["--allow-rollback", &other]].concat()
        )
        .code,
        Some(1)
    );
    let pulled = run(
        &folder,
        &[&pull[..], &["--allow-rollback", &signed]].concat(),
    )
    .good();
    assert!(pulled.contains("where version 1 was"), "{pulled}");
}

#[test]
fn both_of_two_have_to_sign() {
    let folder = folder();
    let both = ["--trust", "a.pub", "--trust", "b.pub", "--quorum", "2"];
    publish(&folder, 0, &["--sign-key", "a.key"]).good();
    let pull = [&["pull", "chain", "served"], &both[..]].concat();
    let ran = run(&folder, &pull);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("CHAIN R-SIG-01"),
        "{ran:?}"
    );
    // A publisher that requires both signatures does not continue the chain, either.
    let ran = publish(&folder, 1, &[&["--sign-key", "b.key"], &both[..]].concat());
    assert!(
        ran.code == Some(1) && ran.stderr.contains("CHAIN R-SIG-03"),
        "{ran:?}"
    );
    let commit = commit_of(&folder, "0");
    run(
        &folder,
        &["sign", "chain", "--commit", &commit, "--sign-key", "b.key"],
    )
    .good();
    run(&folder, &pull).good();
    publish(&folder, 1, &[&["--sign-key", "b.key"], &both[..]].concat()).good();
    let held = run(&folder, &pull);
    assert!(
        held.stderr
            .contains("1 of the trusted keys signed it, and the quorum is 2")
            && held.stdout.starts_with("version 0 is in"),
        "{held:?}"
    );
    // The signing key must be among the trusted ones.
    let ran = publish(&folder, 1, &["--sign-key", "b.key", "--trust", "a.pub"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn a_key_is_trusted_for_one_chain() {
    let folder = folder();
    folder.run(&["init", "other"]).good();
    let digest =
        |chain: &str| Digest::of_bytes(&folder.read(&format!("{chain}/chain.json"))).to_string();
    assert!(
        folder
            .run(&["init", "third"])
            .good()
            .contains(&digest("third"))
    );
    folder.run_in_shell("rm -r third", &[]).good();
    assert_eq!(folder.json(&["init", "third"])["chain"], digest("third"));
    publish(&folder, 0, &["--sign-key", "a.key"]).good();
    run(
        &folder,
        &[
            "publish",
            "other",
            &step(0),
            "--no-assets",
            "--sign-key",
            "a.key",
        ],
    )
    .good();
    assert_eq!(folder.json(&["show", "chain"])["chain"], digest("chain"));
    assert!(
        run(&folder, &["show", "chain"])
            .good()
            .contains(&format!("chain    {}", digest("chain")))
    );
    let line = run(&folder, &["key", "show", "a.key", "--chain", "chain"]).good();
    assert_eq!(
        line.trim(),
        format!(
            "{} {}",
            String::from_utf8(folder.read("a.pub")).unwrap().trim(),
            digest("chain")
        )
    );
    folder.write("here.pub", format!("{} # the one\n", line.trim()));
    assert_eq!(run(&folder, &["key", "show", "here.pub"]).good(), line);
    let json = folder.json(&["key", "show", "here.pub", "--chain", "other"]);
    assert_eq!(json["chains"].as_array().unwrap().len(), 2);
    for trust in ["here.pub", line.trim()] {
        folder.json(&["pull", "chain", "served", "--trust", trust]);
    }
    assert_eq!(
        folder.json(&["status", "served"])["trust"]["keys"][0],
        line.trim()
    );
    // Other permissions of the user do not help.
    let commit =
        Digest::of_bytes(&folder.read("other/commits/00000000000000000000.json")).to_string();
    for allowed in [
        &[][..],
        &["--adopt"],
        &["--allow-rollback", &commit],
        &["--adopt", "--allow-rollback", &commit],
    ] {
        let ran = run(
            &folder,
            &[&["pull", "other", "served", "--trust", "here.pub"], allowed].concat(),
        );
        assert!(
            ran.code == Some(1) && ran.stderr.contains("CHAIN R-SIG-05"),
            "{allowed:?}: {ran:?}"
        );
    }
    let ran = run(
        &folder,
        &[
            "publish",
            "other",
            &step(1),
            "--no-assets",
            "--sign-key",
            "a.key",
            "--trust",
            "here.pub",
        ],
    );
    assert!(
        ran.code == Some(1) && ran.stderr.contains("CHAIN R-SIG-05"),
        "{ran:?}"
    );
    run(
        &folder,
        &["pull", "other", "served", "--trust", "a.pub", "--adopt"],
    )
    .good();
}

#[test]
fn a_file_of_keys_that_is_missing_is_said_to_be() {
    let folder = folder();
    for path in ["none.pub", "keys/none", "keys+old/none.pub", "nothing"] {
        let ran = run(&folder, &["log", "chain", "--trust", path]);
        let is_told = ran.stderr.contains("there is no such file") && ran.stderr.contains(path);
        assert!(ran.code == Some(2) && is_told, "{path}: {ran:?}");
    }
    let ran = run(
        &folder,
        &[
            "log",
            "chain",
            "--trust",
            "trainer.example/run7+c74f20a3+AR/c2QcU",
        ],
    );
    assert!(
        ran.code == Some(2) && ran.stderr.contains("not a public key"),
        "{ran:?}"
    );
}

#[test]
fn a_version_of_several_shards_is_signed() {
    let folder = folder();
    folder.write("r0.safetensors", bytes_file(&[("a", b"one")]));
    folder.write("r1.safetensors", bytes_file(&[("b", b"two")]));
    publish_shards(&folder, &["r0", "r1"]);
    let vouched = commit_of(&folder, "0");
    publish(&folder, 0, &["--sign-key", "a.key", "--vouch", &vouched]).good();
    publish(&folder, 1, &["--sign-key", "a.key"]).good();
    assert_eq!(publish(&folder, 2, &[]).code, Some(2));
    assert_eq!(publish(&folder, 2, &["--sign-key", "b.key"]).code, Some(1));
    let shown = folder.json(&["show", "chain", "--trust", "a.pub"]);
    assert_eq!(shown["signed"], true);
    assert_eq!(shown["version"], 2);
    assert_eq!(shown["shards"].as_array().unwrap().len(), 2);
}

#[test]
fn a_version_is_signed_later_if_its_commit_is_named() {
    let folder = folder();
    publish(&folder, 0, &[]).good();
    publish(&folder, 1, &[]).good();
    let first = commit_of(&folder, "0");
    let second = commit_of(&folder, "1");
    // The error names the commit.
    let error = folder.refused(&["sign", "chain", "--sign-key", "a.key"], "USAGE", None);
    assert!(
        error["message"].as_str().unwrap().contains(&second),
        "{error}"
    );
    let error = folder.refused(
        &["sign", "chain", "--version", "0", "--sign-key", "a.key"],
        "USAGE",
        None,
    );
    assert!(
        error["message"].as_str().unwrap().contains(&first),
        "{error}"
    );
    folder.refused(
        &[
            "sign",
            "chain",
            "--version",
            "0",
            "--commit",
            &second,
            "--sign-key",
            "a.key",
        ],
        "USAGE",
        None,
    );
    folder.refused(
        &[
            "sign",
            "chain",
            "--commit",
            &"0".repeat(64),
            "--sign-key",
            "a.key",
        ],
        "USAGE",
        None,
    );
    folder.refused(&["sign", "chain", "--commit", &second], "USAGE", None);
    let signed = folder.json(&["sign", "chain", "--commit", &first, "--sign-key", "a.key"]);
    assert_eq!(signed["version"].as_u64(), Some(0));
    run(
        &folder,
        &[
            "sign",
            "chain",
            "--commit",
            &second,
            "--sign-key",
            "a.key",
            "--sign-key",
            "b.key",
        ],
    )
    .good();
    let both = ["--trust", "a.pub", "--trust", "b.pub", "--quorum", "2"];
    let log = folder.json(&[&["log", "chain"], &both[..]].concat());
    assert_eq!(log["versions"][0]["signed"].as_bool(), Some(true), "{log}");
    assert_eq!(log["versions"][1]["signed"].as_bool(), Some(false), "{log}");
    let text = run(&folder, &[&["log", "chain"], &both[..]].concat()).good();
    assert!(
        text.contains("yes: a, b") && text.contains("1 of 2: a"),
        "{text}"
    );
    assert!(
        run(&folder, &["log", "chain"])
            .good()
            .contains("unverified: a, b")
    );
    assert!(
        run(&folder, &["show", "chain"])
            .good()
            .contains("unverified: a, b")
    );
    let log = folder.json(&["log", "chain"]);
    assert!(
        log["versions"][0]["signed"].is_null()
            && log["versions"][0]["claimed_signers"][1]["name"] == "b"
    );
    let text = run(&folder, &[&["fsck", "chain"], &both[..]].concat()).good();
    assert!(
        text.contains("the newest signed version is 1, yes: a, b"),
        "{text}"
    );
    assert_eq!(
        folder.json(&["fsck", "chain"])["signatures"][0]["claimed_signers"][0]["name"],
        "a"
    );
    folder.json(&[&["pull", "chain", "served"], &both[..]].concat());
    folder.refused(&["fsck", "served", "--trust", "a.pub"], "USAGE", None);
}

#[test]
fn a_key_may_be_in_the_environment() {
    let folder = folder();
    let with = |value: &str, arguments: &[&str]| {
        let mut tool = Command::new(TOOL);
        tool.args(arguments)
            .current_dir(folder.at("."))
            .env("DELTACHAIN_SIGNING_KEY", value);
        let ran = Ran::of(tool.output().unwrap());
        assert_silent(&folder, &ran);
        ran
    };
    let key = String::from_utf8(folder.read("a.key")).unwrap();
    let state = step(0);
    let arguments = ["publish", "chain", &state, "--no-assets"];
    let public = String::from_utf8(folder.read("a.pub")).unwrap();
    for wrong in [&key[1..], &key[..key.len() - 5], &public, "run7.key"] {
        let ran = with(wrong, &arguments);
        assert!(
            ran.code == Some(2) && ran.stderr.contains("DELTACHAIN_SIGNING_KEY"),
            "{ran:?}"
        );
    }
    // A secret that was not passed on must not lead to an unsigned version.
    for empty in ["", " \n"] {
        let ran = with(empty, &arguments);
        assert!(
            ran.code == Some(2) && ran.stderr.contains("DELTACHAIN_SIGNING_KEY is empty"),
            "{ran:?}"
        );
    }
    let ran = with("a.key", &arguments);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("has the path of a file"),
        "{ran:?}"
    );
    with(&key, &arguments).good();
    assert_eq!(
        folder.json(&["show", "chain", "--trust", "a.pub"])["signed"],
        true
    );
    // A key and `--unsigned` contradict each other.
    let ran = with(&key, &[&arguments[..], &["--unsigned"]].concat());
    assert!(
        ran.code == Some(2) && ran.stderr.contains("leave one of the two out"),
        "{ran:?}"
    );
    // Key files on the command line take precedence.
    let commit = commit_of(&folder, "0");
    with(
        &key,
        &["sign", "chain", "--commit", &commit, "--sign-key", "b.key"],
    )
    .good();
    assert_eq!(
        folder.json(&["show", "chain", "--trust", "b.pub"])["signed"],
        true
    );
    assert!(
        !with(&key, &["publish", "--help"])
            .stdout
            .contains("PRIVATE")
    );
}

#[test]
fn a_command_signs_with_a_key_that_is_elsewhere() {
    let folder = folder();
    let sign = |command: &str, more: &[&str]| {
        let options = ["--sign-key", "a.pub", "--sign-command", command];
        publish(&folder, 0, &[&options[..], more].concat())
    };
    for (command, reason) in [
        ("exit 3", "exit status: 3"),
        ("no-such-program-here 2> /dev/null", "exit status: 127"),
        ("echo rubbish", "64 bytes in base64"),
        ("true", "64 bytes in base64"),
        ("head -c 100000 /dev/zero", "64 bytes in base64"),
        ("head -c 64 /dev/zero | base64 -w 0", "sign"),
    ] {
        let ran = sign(command, &[]);
        assert!(
            ran.code != Some(0) && ran.stderr.contains(reason),
            "{command}: {ran:?}"
        );
    }
    let ran = sign("sleep 600", &["--sign-timeout", "0.1"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("did not end within 0.1 s"),
        "{ran:?}"
    );
    let ran = sign("true", &["--sign-key", "b.pub"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let log = folder.json(&["log", "chain"]);
    assert_eq!(log["versions"].as_array().unwrap().len(), 0, "{log}");
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED the command that signs: there is no openssl");
        return;
    }
    // A PKCS #8 key has 16 bytes before the seed; the tool's key has one.
    let script = "{ printf '\\060\\056\\002\\001\\000\\060\\005\\006\\003\\053\\145\\160\\004\\042\\004\\040'; \
                  cut -d+ -f5- a.key | base64 -d | tail -c 32; } > a.der\n\
                  openssl pkey -inform DER -in a.der -out a.pem";
    folder.run_in_shell(script, &[]).good();
    let command = "cat > text && openssl pkeyutl -sign -rawin -in text -inkey a.pem | base64 -w 0";
    sign(command, &["--sign-key", "b.key"]).good();
    let both = ["--trust", "a.pub", "--trust", "b.pub", "--quorum", "2"];
    assert_eq!(
        folder.json(&[&["show", "chain"], &both[..]].concat())["signed"],
        true
    );
    assert!(
        String::from_utf8(folder.read("text"))
            .unwrap()
            .starts_with("deltachain commit v1\n")
    );
}
