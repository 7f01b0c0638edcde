//! `fleet`: what members hold, by digest; members that hang, lie, or are something else; and waits.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};

use crate::engines::stand_in::{Engine, Model};
use crate::engines::{arguments, chain, publish};
use crate::support::{Folder, Ran, TOOL};

/// A follower with a port, which is killed on drop.
struct Member {
    process: Child,
    address: String,
}

impl Member {
    fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut process = Command::new(TOOL)
            .args(arguments)
            .args(["--listen", "0", "--json"])
            .current_dir(folder.at(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().unwrap().unwrap();
            let Some((_, rest)) = line.split_once("serving http://") else {
                continue;
            };
            if let Some((address, _)) = rest.split_once("/status") {
                break address.to_owned();
            }
        };
        thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A server that gives the same answer to each request; nothing if the answer is empty.
fn answering(answer: &str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let answer = answer.to_owned();
    thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            if answer.is_empty() {
                open.push(stream);
                continue;
            }
            let is_asked = stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0);
            if is_asked {
                stream.write_all(answer.as_bytes()).ok();
            }
        }
    });
    address
}

fn page(kind: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n");
    format!("{head}Connection: close\r\n\r\n{body}")
}

fn fleet(folder: &Folder, words: &[&str]) -> Ran {
    folder.run(&[&["fleet", "chain"], words, &["--json"]].concat())
}

/// Runs `fleet` until its members satisfy a condition; the last result.
fn until(folder: &Folder, words: &[&str], is_so: impl Fn(&Value) -> bool) -> Value {
    loop {
        let found = fleet(folder, words).json();
        if is_so(&found) {
            return found;
        }
    }
}

fn commit(folder: &Folder, version: &str) -> String {
    let shown = folder.json(&["show", "chain", "--version", version]);
    shown["commit"].as_str().unwrap().to_owned()
}

#[test]
fn members_are_compared_with_the_chain_by_digest() {
    let folder = chain(2);
    folder
        .run(&["pull", "chain", "old", "--version", "0"])
        .good();
    folder.run(&["pull", "chain", "new"]).good();
    let member = Member::start(&folder, &["follow", "chain", "model", "--poll", "0.01"]);
    let members = ["./old", "./new", member.address.as_str()];
    let found = until(&folder, &members, |found| {
        found["members"][2]["version"] == json!(1)
    });
    let commits = [commit(&folder, "0"), commit(&folder, "1")];
    assert_eq!(
        (&found["head"], &found["commit"]),
        (&json!(1), &json!(commits[1]))
    );
    let row = |at: usize, key: &str| found["members"][at][key].clone();
    for (at, version) in [(0, 0), (1, 1), (2, 1)] {
        assert_eq!(row(at, "condition"), "holds");
        assert_eq!(row(at, "version"), version);
        assert_eq!(row(at, "commit"), json!(commits[version]));
        assert_eq!(row(at, "behind"), 1 - version);
        assert_eq!(row(at, "proof"), "hashed");
        assert_eq!(row(at, "signed"), Value::Null);
        assert!(row(at, "since").is_string());
    }
    assert_eq!(fleet(&folder, &members).code, Some(0));
    let text = folder
        .run(&[&["fleet", "chain"], &members[..]].concat())
        .good();
    assert!(
        text.contains("2 members with version 1") && text.contains("1 member with version 0"),
        "{text}"
    );
    assert!(text.contains("1 version behind"), "{text}");
    // The chain goes back, so the members hold what it does not have.
    std::fs::remove_file(folder.at("chain/commits/00000000000000000001.json")).unwrap();
    let ran = fleet(&folder, &members[..2]);
    let found = ran.json();
    assert_eq!(ran.code, Some(1));
    assert_eq!(found["members"][0]["condition"], "holds");
    assert_eq!(found["members"][1]["condition"], "foreign");
    // Another chain.
    folder.run(&["init", "other"]).good();
    let other = folder.run(&["fleet", "other", "./old", "--json"]).json();
    assert_eq!(other["members"][0]["condition"], "foreign");
    let problem = other["members"][0]["problem"].as_str().unwrap();
    assert_eq!(problem, "it follows another chain");
}

#[test]
fn members_that_hang_lie_or_are_something_else_are_silent() {
    let folder = chain(1);
    folder.run(&["pull", "chain", "new"]).good();
    let html = answering(&page("text/html", "<html>healthy</html>"));
    let lies = answering(&page(
        "application/json",
        r#"{"healthy": true, "version": "newest"}"#,
    ));
    let other = answering(&page(
        "application/json",
        r#"{"status": "ok", "version": 0}"#,
    ));
    let hangs = answering("");
    let cut = answering("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"healthy\"");
    let endless = answering(&page("application/json", &" ".repeat(5 << 20)));
    let away = answering(
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    );
    let closed = SocketAddr::from(([127, 0, 0, 1], 1));
    let all = [html, lies, other, hangs, cut, endless, away, closed].map(|one| one.to_string());
    let mut words: Vec<&str> = all.iter().map(String::as_str).collect();
    words.extend(["./new", "./nowhere", "--member-timeout", "1"]);
    let ran = fleet(&folder, &words);
    assert_eq!(ran.code, Some(1));
    let members = ran.json()["members"].clone();
    for at in (0..8).chain([9]) {
        assert_eq!(members[at]["condition"], "silent", "{members}");
        assert!(members[at]["problem"].is_string(), "{members}");
    }
    assert_eq!(members[3]["problem"], "no answer in time");
    assert_eq!(members[8]["condition"], "holds");
}

#[test]
fn servers_count_and_not_their_followers() {
    let folder = chain(1);
    let servers = [Engine::start(), Engine::start()];
    let both = [&servers[0], &servers[1]];
    let words = arguments("vllm", &both);
    let words: Vec<&str> = words.into_iter().filter(|word| *word != "--json").collect();
    let member = Member::start(&folder, &words);
    let found = until(&folder, &[&member.address], |found| {
        let members = found["members"].as_array().unwrap();
        members.len() == 2 && members.iter().all(|member| member["condition"] == "holds")
    });
    let own = commit(&folder, "0");
    for (at, server) in servers.iter().enumerate() {
        let row = &found["members"][at];
        assert_eq!(row["server"], server.url);
        assert_eq!((&row["version"], &row["commit"]), (&json!(0), &json!(own)));
    }
    // A server whose workers hold something else is not believed because of its name.
    servers[0].state().hang.insert("/pause?mode=keep");
    servers[0].state().process.workers = [Model::Torn, Model::Torn];
    let found = until(&folder, &[&member.address], |found| {
        found["members"][0]["condition"] == "torn"
    });
    assert_eq!(found["members"][1]["condition"], "holds");
    // The follower is killed: what its servers hold is not known any more.
    let directory = folder.at("model").to_str().unwrap().to_owned();
    drop(member);
    let ran = fleet(&folder, &[&directory]);
    assert_eq!(ran.code, Some(1));
    let members = ran.json()["members"].clone();
    assert!(members[1]["problem"].is_string(), "{members}");
}

#[test]
fn a_script_waits_until_all_hold_a_version() {
    let folder = chain(1);
    let follow = ["follow", "chain", "model", "--poll", "0.01"];
    let member = Member::start(&folder, &follow);
    folder.run(&["pull", "chain", "other"]).good();
    let name = |version: &str| format!("{version}@{}", &commit(&folder, version)[..12]);
    let wait = |named: &str, more: &[&str]| {
        let words = [&[member.address.as_str(), "./other", "--wait", named], more].concat();
        fleet(&folder, &words)
    };
    assert_eq!(wait(&name("0"), &["--expect", "2"]).code, Some(0));
    // More are expected than there are; then one holds another version.
    let short = ["--expect", "3", "--timeout", "0.1"];
    assert_eq!(wait(&name("0"), &short).code, Some(1));
    publish(&folder, 1);
    assert_eq!(wait(&name("1"), &["--timeout", "0.1"]).code, Some(1));
    let later = {
        let at = folder.at("");
        thread::spawn(move || {
            let pull = Command::new(TOOL)
                .args(["pull", "chain", "other"])
                .current_dir(at)
                .output();
            assert!(pull.unwrap().status.success());
        })
    };
    assert_eq!(wait(&name("1"), &["--expect", "2"]).code, Some(0));
    later.join().unwrap();
    assert_eq!(wait(&name("1"), &["--expect", "0"]).code, Some(2));
    // Other names of the version.
    let shown = folder.json(&["show", "chain"]);
    let state = shown["state"].as_str().unwrap();
    for (named, said) in [
        (format!("1@{}", &state[..12]), "the digest of its state"),
        (format!("1@{}", "0".repeat(12)), "another commit"),
        ("1@abc".to_owned(), "12 or more"),
        ("1".to_owned(), "VERSION@COMMIT"),
    ] {
        let ran = wait(&named, &[]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.stderr.contains(said) || ran.stdout.contains(said),
            "{ran:?}"
        );
    }
    assert_eq!(wait(&format!("9@{}", "0".repeat(12)), &[]).code, Some(1));
}

#[test]
fn files_and_names_stand_for_many_members() {
    let folder = chain(1);
    folder.run(&["pull", "chain", "one"]).good();
    folder.run(&["pull", "chain", "two"]).good();
    folder.write("members.txt", "# the fleet\n./one\n\n  ./two  \n");
    let found = fleet(&folder, &["@members.txt"]).json();
    assert_eq!(found["members"].as_array().unwrap().len(), 2);
    for (words, said) in [
        (&["@members.txt", "./one"][..], "named twice"),
        (&["@nowhere.txt"], "reading addresses"),
        (&["one"], "a directory with a slash"),
    ] {
        let ran = fleet(&folder, words);
        assert_ne!(ran.code, Some(0));
        assert!(
            ran.stderr.contains(said) || ran.stdout.contains(said),
            "{ran:?}"
        );
    }
    let closed = fleet(&folder, &["dns:127.0.0.1:1"]).json();
    assert_eq!(closed["members"][0]["address"], "http://127.0.0.1:1");
}
