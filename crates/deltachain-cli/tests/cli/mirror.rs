//! `mirror`: its reports of faults, its exit codes, and the service.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use deltachain::tensor::Digest;
use serde_json::Value;

use crate::support::{Folder, TOOL, bytes_file, step};

fn chain() -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", &step(0)]).good();
    publish(&folder, 1);
    folder
}

fn publish(folder: &Folder, number: usize) {
    let state = step(number);
    let base = step(number - 1);
    folder
        .run(&["publish", "chain", &state, "--base", &base])
        .good();
}

const COMMIT: &str = "chain/commits/00000000000000000001.json";

#[test]
fn faults_are_named_and_the_exit_code_tells() {
    let folder = chain();
    let file = fs::read_dir(folder.at("chain/files")).unwrap().next();
    let file = file.unwrap().unwrap().path();
    fs::remove_file(&file).unwrap();
    for _ in 0..2 {
        let ran = folder.run(&["mirror", "chain", "copy", "--json"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let report = ran.json();
        assert_eq!(report["version"], 1);
        assert_eq!(report["problems"][0]["rule"], "R-CHN-09");
    }
    let ran = folder.run(&["mirror", "chain", "copy", "--quiet"]);
    assert!(
        ran.code == Some(1) && ran.stdout.contains("R-CHN-09"),
        "{ran:?}"
    );
    // `mirror` does not create the parent directory, and creates nothing if the source has no
    // chain.
    assert_eq!(folder.run(&["mirror", "chain", "a/b"]).code, Some(2));
    folder.write("nothing/x", "");
    assert_eq!(folder.run(&["mirror", "nothing", "b"]).code, Some(1));
    assert!(!folder.at("a").exists() && !folder.at("b").exists());
    let ran = folder.run(&["mirror", "copy", "chain", "--restore", "--trust", "x"]);
    assert_eq!(ran.code, Some(2));
}

#[test]
fn a_copy_that_is_at_odds_is_an_error_with_the_ways_out() {
    let folder = chain();
    folder.run(&["mirror", "chain", "copy"]).good();
    let commit = folder.read(COMMIT);
    fs::remove_file(folder.at(COMMIT)).unwrap();
    let ran = folder.run(&["mirror", "chain", "copy"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("--restore"),
        "{ran:?}"
    );
    let published = ["publish", "chain", &step(1), "--meta", "again=yes"];
    folder.run(&published).good();
    let ran = folder.run(&["mirror", "chain", "copy"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("version 1 has another commit"),
        "{ran:?}"
    );
    assert_eq!(folder.read(&COMMIT.replace("chain/", "copy/")), commit);
    fs::remove_file(folder.at(&COMMIT.replace("chain/", "copy/"))).unwrap();
    folder.run(&["mirror", "chain", "copy"]).good();
    folder.run(&["fsck", "copy", "--deep"]).good();
}

#[test]
fn settings_from_the_environment_are_not_shown() {
    let folder = chain();
    let run = |value: Option<&str>| {
        let mut command = Command::new(TOOL);
        command
            .args(["mirror", "chain", "s3://bucket/copy", "--json"])
            .args(["--to", "secret_access_key=env:COPY_SECRET"])
            .args(["--to", "access_key_id=me", "--to", "retries=0"])
            .args(["--to", "endpoint=http://127.0.0.1:1", "--to", "region=x"])
            .env_remove("COPY_SECRET")
            .current_dir(folder.at(""));
        command.envs(value.map(|value| ("COPY_SECRET", value)));
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    for value in [None, Some("")] {
        let (code, text) = run(value);
        assert!(
            code == Some(2) && text.contains("env:COPY_SECRET"),
            "{text}"
        );
    }
    // With the secret set, the error is the missing server.
    let (code, text) = run(Some("hidden"));
    assert!(code == Some(1) && text.contains("\"IO\""), "{text}");
    assert!(!text.contains("hidden"), "{text}");
    let (code, text) = run(Some("hidden\n"));
    assert!(code == Some(2) && !text.contains("hidden"), "{text}");
}

/// A `mirror` service and its events.
struct Service {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Service {
    fn start(folder: &Folder) -> Self {
        let mut child = Command::new(TOOL)
            .args(["mirror", "chain", "copy", "--json"])
            .args(["--poll", "0.01", "--listen", "0"])
            .current_dir(folder.at(""))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut service = Self {
            child,
            lines,
            address: String::new(),
        };
        let text = service.until("/metrics");
        let address = text["text"].as_str().unwrap();
        let address = address.strip_prefix("serving http://").unwrap();
        let address = address.strip_suffix("/metrics").unwrap();
        address.clone_into(&mut service.address);
        service
    }

    /// Returns the next event that contains this text.
    fn until(&mut self, text: &str) -> Value {
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if line.contains(text) {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    fn get(&self, path: &str) -> String {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    fn metric(&self, name: &str) -> String {
        let answer = self.get("/metrics");
        let start = format!("deltachain_mirror_{name} ");
        let value = answer.lines().find_map(|line| line.strip_prefix(&start));
        value
            .unwrap_or_else(|| panic!("{name}: {answer}"))
            .to_owned()
    }

    fn end(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().unwrap();
        self.child.wait().unwrap().code()
    }
}

#[cfg(unix)]
#[test]
fn a_service_shows_how_the_copy_is() {
    let folder = chain();
    let mut service = Service::start(&folder);
    service.until("\"version\":1");
    assert!(service.get("/healthz").starts_with("HTTP/1.1 200 OK"));
    assert_eq!(service.metric("version"), "1");
    assert_eq!(service.metric("lag_versions"), "0");
    assert_eq!(service.metric("problems"), "0");
    assert_ne!(service.metric("last_success_timestamp_seconds"), "0.0");
    assert_eq!(service.metric("failures_total{class=\"CHAIN\"}"), "0");
    // A rollback is reported once and counted each time.
    let commit = folder.read(COMMIT);
    fs::remove_file(folder.at(COMMIT)).unwrap();
    service.until("the source ends below it");
    let answer = service.get("/healthz");
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("--restore"),
        "{answer}"
    );
    while service.metric("failures_total{class=\"CHAIN\"}") == "1" {}
    folder.write(COMMIT, commit);
    let line = service.lines.next().unwrap().unwrap();
    assert!(line.contains("copies again"), "{line}");
    // An unreadable commit is a problem, and no version is copied.
    folder.write(&COMMIT.replace("001.json", "002.json"), "junk");
    service.until("R-DOC-01");
    let answer = service.get("/healthz");
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("R-DOC-01"),
        "{answer}"
    );
    assert_eq!(service.metric("problems"), "1");
    assert_eq!(service.metric("version"), "1");
    assert_eq!(service.metric("head_version"), "2");
    assert_eq!(service.end(), Some(0));
}

#[test]
fn a_version_is_promoted_with_its_assets_or_not_at_all() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    for (number, config) in [(0, "first"), (1, "second")] {
        folder.write("model/config.json", config);
        folder.write("model/model.safetensors", bytes_file(&[("a", &[number])]));
        folder.run(&["publish", "chain", "model"]).good();
    }
    let commit = |version: &str| {
        let shown = folder.json(&["show", "chain", "--version", version]);
        shown["commit"].as_str().unwrap().to_owned()
    };
    let promote = |version: &str, commit: &str| {
        let words = [
            "mirror", "chain", "stable", "--up-to", version, commit, "--json",
        ];
        folder.run(&words)
    };
    assert_eq!(promote("0", &commit("0")).code, Some(0));
    assert_eq!(folder.json(&["show", "stable"])["version"], 0);
    // The asset of version 1 is lost.
    let digest = Digest::of_bytes(b"second");
    let asset = folder.at(&format!("chain/assets/{digest}"));
    let content = fs::read(&asset).unwrap();
    fs::remove_file(&asset).unwrap();
    let refused = promote("1", &commit("1"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(folder.json(&["show", "stable"])["version"], 0);
    fs::write(&asset, content).unwrap();
    assert_eq!(promote("1", &commit("1")).code, Some(0));
    assert_eq!(folder.json(&["show", "stable"])["version"], 1);
    // Promoting is one run, of a version that is named in full.
    let short = &commit("1")[..12];
    for words in [
        &["--up-to", "1", short][..],
        &["--up-to", "one", &commit("1")],
        &["--up-to", "1"],
        &["--up-to", "1", &commit("1"), "--poll", "1"],
        &["--up-to", "1", &commit("1"), "--restore"],
    ] {
        let ran = folder.run(&[&["mirror", "chain", "stable"], words].concat());
        assert_eq!(ran.code, Some(2), "{words:?}: {ran:?}");
    }
}
