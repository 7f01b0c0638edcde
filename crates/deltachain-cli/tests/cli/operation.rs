//! `follow` as a service: the command of `--exec`, a single poll, the records and `status`,
//! metrics, notifications for systemd.
#![cfg(unix)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Folder, TOOL, bytes_file};

/// Creates a chain with the given number of versions of one byte each.
fn chain(versions: u8) -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    (0..versions).for_each(|version| publish(&folder, version));
    folder
}

fn publish(folder: &Folder, version: u8) {
    let name = format!("{version}.safetensors");
    folder.write(&name, bytes_file(&[("a", &[version])]));
    folder.run(&["publish", "chain", &name]).good();
}

/// Polls once with this command; returns the exit code and the JSON events.
fn once(folder: &Folder, command: &str) -> (Option<i32>, Vec<Value>) {
    let ran = folder.run(&[
        "follow", "chain", "model", "--once", "--exec", command, "--json",
    ]);
    (
        ran.code,
        ran.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

/// Lines that commands have written.
fn seen(folder: &Folder) -> Vec<String> {
    fs::read_to_string(folder.at("seen"))
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Runs `status`; returns the exit code and the JSON.
fn status(folder: &Folder, more: &[&str]) -> (Option<i32>, Value) {
    let ran = folder.run(&[&["status", "model", "--json"], more].concat());
    (ran.code, ran.json())
}

/// Edits the status that `follow` has recorded.
fn change_status(folder: &Folder, change: impl FnOnce(&mut Value)) {
    let mut status: Value = serde_json::from_slice(&folder.read("model/status.json")).unwrap();
    change(&mut status);
    folder.write("model/status.json", status.to_string());
}

/// Starts a follower in the background.
fn start(folder: &Folder, more: &[&str], settings: &[(&str, &str)]) -> Child {
    let mut command = Command::new(TOOL);
    command
        .args(["follow", "chain", "model", "--poll", "0.01", "--json"])
        .args(more);
    command
        .envs(settings.iter().copied())
        .current_dir(folder.at(""));
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Asks a process to end.
fn terminate(child: &Child) {
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
}

const NOTE: &str = r#"echo "$DELTACHAIN_VERSION after $DELTACHAIN_VERSION_BEFORE" >> seen"#;

#[test]
fn a_command_is_run_until_it_succeeds_and_not_again() {
    let folder = chain(2);
    let command = format!("{NOTE}; test -e mended || {{ touch mended; exit 3; }}");
    let follow = [
        "follow", "chain", "model", "--until", "1", "--poll", "0.01", "--exec", &command,
    ];
    let ran = folder.run(&follow);
    assert!(
        ran.code == Some(0)
            && ran
                .stderr
                .contains("version 1: it ended with exit status: 3; retrying"),
        "{ran:?}"
    );
    assert_eq!(seen(&folder), ["1 after ", "1 after "]);
    folder.run(&follow).good();
    assert_eq!(seen(&folder).len(), 2, "also after a restart");
    publish(&folder, 2);
    folder.run(&follow).good();
    assert_eq!(seen(&folder)[2..], ["2 after 1"]);
    // A different command has not run for version 2 yet.
    folder.run(&[&follow[..8], &[NOTE]].concat()).good();
    assert_eq!(seen(&folder)[3..], ["2 after 2"]);
}

#[test]
fn a_command_that_was_never_reached_is_made_good() {
    let folder = chain(1);
    folder.run(&["pull", "chain", "model"]).good();
    // `pull` ran no command, as if a follower had been killed after the switch.
    assert_eq!(once(&folder, NOTE).0, Some(0));
    assert_eq!(seen(&folder), ["0 after "]);
}

#[test]
fn a_newer_version_is_noticed_while_a_command_fails() {
    let folder = chain(1);
    folder.write("1.safetensors", bytes_file(&[("a", b"new")]));
    // For version 0 the command always fails.
    let command = format!(
        "{NOTE}; test $DELTACHAIN_VERSION = 1 || \
         {{ test -e done || {TOOL} publish chain 1.safetensors; touch done; exit 1; }}"
    );
    folder
        .run(&[
            "follow", "chain", "model", "--until", "1", "--poll", "0.01", "--exec", &command,
        ])
        .good();
    assert_eq!(seen(&folder).last().map(String::as_str), Some("1 after "));
}

#[test]
fn what_a_command_prints_does_not_mix_with_events() {
    let folder = chain(1);
    let ran = folder.run(&[
        "follow",
        "chain",
        "model",
        "--once",
        "--exec",
        "echo noise",
        "--json",
    ]);
    assert_eq!(
        (ran.code, ran.json()["event"].as_str(), ran.stderr.as_str()),
        (Some(0), Some("switched"), "noise\n")
    );
    assert!(ran.json()["time"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_all_its_processes() {
    let folder = chain(1);
    assert!(
        Command::new("mkfifo")
            .arg(folder.at("pipe"))
            .status()
            .unwrap()
            .success()
    );
    // A process is alive as long as it holds the pipe open. One of them ignores SIGTERM.
    let command =
        "exec 3>pipe; echo started >&3; (trap '' TERM; sleep 1000; sleep 1000) & sleep 1000";
    let mut child = start(
        &folder,
        &["--once", "--exec-timeout", "3", "--exec", command],
        &[],
    );
    let mut text = String::new();
    File::open(folder.at("pipe"))
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(
        (text.as_str(), child.wait().unwrap().code()),
        ("started\n", Some(1))
    );
    let (code, status) = status(&folder, &[]);
    assert_eq!(
        (
            code,
            status["command"]["failures"].as_u64(),
            status["following"].as_bool()
        ),
        (Some(1), Some(1), Some(false))
    );
}

#[test]
fn a_command_ends_with_the_follower() {
    let folder = chain(1);
    assert!(
        Command::new("mkfifo")
            .arg(folder.at("pipe"))
            .status()
            .unwrap()
            .success()
    );
    let mut child = start(
        &folder,
        &["--exec", "exec 3>pipe; echo started >&3; sleep 1000"],
        &[],
    );
    let mut pipe = BufReader::new(File::open(folder.at("pipe")).unwrap());
    pipe.read_line(&mut String::new()).unwrap();
    let (code, now) = status(&folder, &[]);
    assert_eq!(
        (
            code,
            now["following"].as_bool(),
            now["process"].as_u64(),
            now["command"]["running"].as_bool()
        ),
        (Some(0), Some(true), Some(u64::from(child.id())), Some(true)),
        "{now}"
    );
    terminate(&child);
    assert_eq!(pipe.read_line(&mut String::new()).unwrap(), 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let (code, now) = status(&folder, &[]);
    let problem = now["problems"][0].as_str().unwrap();
    assert!(
        code == Some(1) && problem.contains("has not been run for version 0"),
        "{now}"
    );
}

#[test]
fn one_look_ends_as_pull_does() {
    let folder = chain(0);
    let (code, events) = once(&folder, NOTE);
    assert_eq!(
        (code, events[0]["error"]["rule"].as_str()),
        (Some(1), Some("R-CHN-03"))
    );
    publish(&folder, 0);
    let (code, events) = once(&folder, "exit 7");
    assert_eq!(
        (code, events[0]["event"].as_str()),
        (Some(1), Some("switched"))
    );
    assert!(
        events.last().unwrap()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("exit status: 7"),
        "{events:?}"
    );
    let (code, events) = once(&folder, NOTE);
    assert_eq!(
        (code, events[0]["event"].as_str(), seen(&folder).len()),
        (Some(0), Some("newest"), 1)
    );
    let both = folder.run(&["follow", "chain", "model", "--once", "--until", "1"]);
    assert_eq!(both.code, Some(2));
}

#[test]
fn a_way_back_is_an_event() {
    let folder = chain(3);
    assert_eq!(once(&folder, NOTE).0, Some(0));
    let commit = folder.json(&["show", "chain", "--version", "1"])["commit"]
        .as_str()
        .unwrap()
        .to_owned();
    fs::remove_file(folder.at("chain/commits/00000000000000000002.json")).unwrap();
    let (code, events) = once(&folder, NOTE);
    assert_eq!(
        (code, events.last().unwrap()["error"]["rule"].as_str()),
        (Some(1), Some("R-CHN-14"))
    );
    let (code, unhealthy) = status(&folder, &[]);
    assert_eq!(
        (code, unhealthy["last_error"]["rule"].as_str()),
        (Some(1), Some("R-CHN-14")),
        "{unhealthy}"
    );
    assert_eq!(
        unhealthy["version"].as_u64(),
        Some(2),
        "the held version is still served"
    );
    let ran = folder.run(&[
        "follow",
        "chain",
        "model",
        "--once",
        "--exec",
        NOTE,
        "--allow-rollback",
        &commit,
        "--json",
    ]);
    let events: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        events
            .iter()
            .any(|event| event["event"] == "rolled-back" && event["from"] == 2),
        "{events:?}"
    );
    assert_eq!(seen(&folder), ["2 after ", "1 after 2"]);
    assert_eq!(status(&folder, &[]).0, Some(0));
}

#[test]
fn the_status_of_a_directory_is_told() {
    let folder = chain(3);
    folder.refused(&["status", "model"], "USAGE", None);
    folder.run(&["init", "empty"]).good();
    fs::create_dir(folder.at("model")).unwrap();
    let (code, now) = status(&folder, &[]);
    assert!(
        code == Some(1)
            && now["problems"][0]
                .as_str()
                .unwrap()
                .contains("not a directory that"),
        "{now}"
    );
    folder.run(&["follow", "empty", "model", "--once"]);
    assert_eq!(status(&folder, &[]).1["problems"][0], "it holds no version");
    fs::remove_file(folder.at("model/status.json")).unwrap();
    folder.run(&["pull", "chain", "model"]).good();
    assert_eq!(status(&folder, &[]).0, Some(0), "no follower is needed");
    for lag in ["0", "90s"] {
        assert_eq!(
            status(&folder, &["--max-lag", lag]).0,
            Some(1),
            "the lag is unknown"
        );
    }
    folder.run(&["follow", "chain", "model", "--once"]).good();
    let (code, now) = status(&folder, &["--max-lag", "0"]);
    assert_eq!(
        (code, now["version"].as_u64(), now["lag_versions"].as_u64()),
        (Some(0), Some(2), Some(0)),
        "{now}"
    );
    assert_eq!(now["command"], Value::Null);
    assert_eq!(status(&folder, &["--max-lag", "1h"]).0, Some(0));
    assert!(
        folder
            .run(&["status", "model"])
            .good()
            .ends_with("\nhealthy\n")
    );
    // The last poll is long ago.
    change_status(&folder, |status| {
        status["versions"][0]["newest"] = json!("2026-01-31T12:00:00Z");
    });
    let (code, now) = status(&folder, &["--max-lag", "1h"]);
    assert!(
        code == Some(1)
            && now["problems"][0]
                .as_str()
                .unwrap()
                .contains("no follower is running"),
        "{now}"
    );
    // A network failure is not a fault of the directory, but an invalid chain is one.
    for (class, expected) in [("IO", 0), ("CHAIN", 1)] {
        change_status(&folder, |status| {
            status["failing"] = json!(true);
            status["last_error"] = json!({ "time": "2026-01-31T12:00:00Z", "class": class, "rule": null, "message": "\u{1b}[2J" });
        });
        let ran = folder.run(&["status", "model"]);
        assert!(
            ran.code == Some(expected) && !ran.stdout.contains('\u{1b}'),
            "{ran:?}"
        );
    }
    folder
        .run(&["pull", "chain", "model", "--version", "0"])
        .good();
    change_status(&folder, |status| status["failing"] = json!(false));
    let (code, now) = status(&folder, &["--max-lag", "1"]);
    assert_eq!(
        (
            code,
            now["lag_versions"].as_u64(),
            now["lag_seconds"].as_f64()
        ),
        (Some(1), Some(2), None),
        "{now}"
    );
    assert_eq!(status(&folder, &["--max-lag", "2"]).0, Some(0));
    fs::remove_dir_all(fs::canonicalize(folder.at("model/current")).unwrap()).unwrap();
    assert_eq!(status(&folder, &[]).0, Some(1));
}

#[test]
fn remarks_bear_the_time() {
    let folder = chain(1);
    let ran = folder.run(&["follow", "chain", "model", "--once", "--exec", "exit 1"]);
    let remark = ran.stderr.lines().next().unwrap();
    let (time, text) = remark.split_once(' ').unwrap();
    assert!(
        time.starts_with("20") && time.ends_with('Z') && text.starts_with("note: the command"),
        "{remark}"
    );
    let (_, events) = once(&folder, "exit 1");
    assert!(
        events
            .iter()
            .any(|event| event["event"] == "remark" && event["time"].is_string()),
        "{events:?}"
    );
}

#[test]
fn metrics_are_shown() {
    let folder = chain(2);
    let mut child = start(&folder, &["--listen", "0", "--exec", "true"], &[]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut event = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let urls = [event(), event(), event()].map(|remark| {
        let text = remark["text"].as_str().unwrap();
        text.split_once("http://").unwrap().1.to_owned()
    });
    assert_eq!(event()["event"], "switched");
    // The poll has ended once the result of `--exec` is recorded.
    while status(&folder, &[]).1["command"]["succeeded"].is_null() {}
    let [text, health, shown] = urls.map(|url| {
        let (address, path) = url.split_once('/').unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        write!(connection, "GET /{path} HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        text
    });
    terminate(&child);
    assert!(
        health.starts_with("HTTP/1.1 200") && health.ends_with("\nhealthy\n"),
        "{health}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let (_, body) = shown.split_once("\r\n\r\n").unwrap();
    let shown: Value = serde_json::from_str(body).unwrap();
    let held = status(&folder, &[]).1;
    assert_eq!(
        [&shown["version"], &shown["commit"], &shown["state"]],
        [&json!(1), &held["commit"], &held["state"]]
    );
    let series: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("deltachain_held_info{"))
        .collect();
    let expected = format!(
        "deltachain_held_info{{version=\"1\",commit={},state={},proof=\"hashed\",signed=\"not \
         checked\"}} 1",
        held["commit"], held["state"]
    );
    assert_eq!(series, [expected.as_str()]);
    for line in [
        "deltachain_version 1",
        "deltachain_head_version 1",
        "deltachain_lag_versions 0",
        "deltachain_switches_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    folder.refused(
        &["follow", "chain", "model", "--listen", "192.0.2.1:1"],
        "IO",
        None,
    );
}

#[test]
fn records_of_the_future_are_unhealthy() {
    let folder = chain(1);
    assert_eq!(once(&folder, "true").0, Some(0));
    let future = "2999-01-01T00:00:00.000Z";
    for key in ["last_look", "last_success"] {
        let before = folder.read("model/status.json");
        assert_eq!(status(&folder, &[]).0, Some(0));
        change_status(&folder, |status| status[key] = future.into());
        let (code, seen) = status(&folder, &[]);
        assert!(
            code == Some(1)
                && seen["problems"][0]
                    .as_str()
                    .unwrap()
                    .contains("in the future"),
            "{key}: {seen}"
        );
        folder.write("model/status.json", before);
    }
    change_status(&folder, |status| {
        status["versions"][0]["newest"] = future.into();
    });
    let (code, seen) = status(&folder, &["--max-lag", "10m"]);
    assert!(
        code == Some(1)
            && seen["problems"][0]
                .as_str()
                .unwrap()
                .contains("in the future"),
        "{seen}"
    );
}

#[test]
fn systemd_hears_when_the_directory_is_ready() {
    let folder = chain(1);
    let socket = UnixDatagram::bind(folder.at("notify")).unwrap();
    let path = folder.at("notify");
    let settings = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "3000"),
    ];
    // The command must not send notifications for the follower.
    let command = "test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC\"";
    let mut child = start(&folder, &["--until", "0", "--exec", command], &settings);
    let mut heard = Vec::new();
    let mut message = [0; 4096];
    while heard
        .last()
        .is_none_or(|last: &String| !last.contains("STOPPING=1"))
    {
        let length = socket.recv(&mut message).unwrap();
        heard.push(String::from_utf8(message[..length].to_vec()).unwrap());
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for expected in ["WATCHDOG=1", "READY=1", "STATUS=at version 0"] {
        assert!(
            heard.iter().any(|message| message.contains(expected)),
            "{expected}: {heard:?}"
        );
    }
}

#[test]
fn the_directory_of_a_follower_is_read() {
    let folder = chain(2);
    folder.run(&["pull", "chain", "model"]).good();
    let checked = folder.json(&["fsck", "model"]);
    assert_eq!(
        (
            checked["version"].as_u64(),
            checked["versions"].as_u64(),
            checked["bytes"].as_u64(),
            checked["cached"].as_u64()
        ),
        (Some(1), Some(1), Some(1), Some(1)),
        "{checked}"
    );
    // Damage to a tensor, the length of a file, and a link.
    let model = fs::canonicalize(folder.at("model/current")).unwrap();
    let file = model.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, &bytes).unwrap();
    let link = fs::read_dir(folder.at("model/cache"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(&link, "no").unwrap();
    let before = folder.contents();
    let ran = folder.run(&["fsck", "model", "--json"]);
    assert!(folder.contents() == before, "the directory has changed");
    let problems = ran.json()["problems"].as_array().unwrap().clone();
    assert_eq!((ran.code, problems.len()), (Some(1), 2), "{problems:?}");
    assert!(
        problems[0]["message"]
            .as_str()
            .unwrap()
            .contains("\"a\" has changed"),
        "{problems:?}"
    );
    assert!(
        problems[1]["file"]
            .as_str()
            .unwrap()
            .ends_with(link.file_name().unwrap().to_str().unwrap()),
        "{problems:?}"
    );
    fs::write(&file, [&bytes[..], b"more"].concat()).unwrap();
    fs::remove_file(link).unwrap();
    let ran = folder.run(&["fsck", "model"]);
    assert!(
        ran.code == Some(1) && ran.stdout.contains("when the version was put here"),
        "{ran:?}"
    );
    assert!(
        !ran.stdout.contains("explain"),
        "no rule is broken: {ran:?}"
    );
}
