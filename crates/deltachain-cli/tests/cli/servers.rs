//! Servers that lie about the length of what they say, for every command that asks one.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::thread;

use crate::support::{Folder, TOOL, step};

/// A server that claims to send about 100 GB with each answer, and hangs up after a few bytes.
fn liar(status: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let request = BufReader::new(&stream).lines().map_while(Result::ok);
                request.take_while(|line| !line.is_empty()).for_each(drop);
                // A client that goes away is not a fault.
                let head = format!(
                    "HTTP/1.1 {status}\r\nETag: \"x\"\r\nContent-Length: 99999999999\r\n\r\n<Error/>"
                );
                let _ = stream.write_all(head.as_bytes());
            });
        }
    });
    address
}

#[test]
fn no_answer_of_a_server_ends_a_command_but_by_an_error() {
    let folder = Folder::new();
    folder.run(&["init", "own"]).good();
    folder
        .run(&[
            "publish",
            "own",
            &step(0),
            "--shard",
            "0/1",
            "--part",
            "part.json",
        ])
        .good();
    for status in [
        "200 OK",
        "206 Partial Content",
        "403 Forbidden",
        "404 Not Found",
        "500 Internal Server Error",
    ] {
        let endpoint = format!("--store=endpoint=http://{}", liar(status));
        let store = [
            "s3://bucket/chain",
            &endpoint,
            "--store=aws_access_key_id=a",
            "--store=aws_secret_access_key=b",
            "--store=region=nowhere-1",
            "--store=retries=0",
        ];
        let state = step(0);
        let commands: [&[&str]; 10] = [
            &["init"],
            &["publish", &state],
            &["commit", "part.json"],
            &["log"],
            &["show"],
            &["pull", "directory"],
            &["compact", "--snapshot"],
            &["prune", "--keep-last", "1"],
            &["fsck"],
            &["doctor"],
        ];
        for command in commands {
            let arguments = [&command[..1], &store, &command[1..]].concat();
            let ran = folder.run(&arguments);
            // What is put needs no body to be good.
            assert!(
                matches!(ran.code, Some(0 | 1)),
                "{status} {command:?}: {ran:?}"
            );
        }
        // One that goes on trying has to be ended.
        let mut follow = Command::new(TOOL);
        follow
            .arg("follow")
            .args(store)
            .arg("other")
            .current_dir(folder.at("."));
        let mut follow = follow
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let first = BufReader::new(follow.stderr.take().unwrap())
            .lines()
            .next()
            .unwrap()
            .unwrap();
        assert!(first.contains("will retry"), "{status}: {first}");
        follow.kill().unwrap();
        follow.wait().unwrap();
    }
}

#[test]
fn a_refusal_names_where_credentials_come_from() {
    let folder = Folder::new();
    let endpoint = format!("--store=endpoint=http://{}", liar("403 Forbidden"));
    let settings = [
        "--store=aws_access_key_id=a",
        "--store=aws_secret_access_key=b",
        "--store=region=x",
    ];
    let ran = folder.run(&[&["log", "s3://bucket/chain", &endpoint], &settings[..]].concat());
    assert!(ran.stderr.contains("AWS_ACCESS_KEY_ID"), "{ran:?}");
}

#[test]
fn a_web_server_can_only_be_read() {
    let folder = Folder::new();
    let error = folder.refused(&["init", "http://127.0.0.1:9/chain"], "USAGE", None);
    assert!(
        error["message"].as_str().unwrap().contains("is read-only"),
        "{error}"
    );
}

#[test]
fn a_profile_alone_is_no_credential() {
    let folder = Folder::new();
    let profile = "--store=aws_profile=research";
    let error = folder.refused(&["log", "s3://bucket/chain", profile], "USAGE", None);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("export-credentials --profile research"),
        "{error}"
    );
}

#[test]
fn the_doctor_finds_a_good_directory_good_and_leaves_nothing() {
    let folder = Folder::new();
    folder.write("place/mine", "x");
    let before = folder.contents();
    let found = folder.json(&["doctor", "place"]);
    assert_eq!(found["missing"], 0, "{found}");
    let tried: Vec<_> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["tried"].clone())
        .collect();
    for wanted in [
        "put if absent",
        "put if absent, concurrent",
        "list after write",
        "range of an object",
        "delete",
        "lock",
    ] {
        assert!(
            tried.iter().any(|tried| tried == wanted),
            "{wanted}: {tried:?}"
        );
    }
    assert!(
        folder
            .run(&["doctor", "place"])
            .good()
            .contains("everything needed is there")
    );
    assert_eq!(folder.contents(), before);
    let error = folder.refused(&["doctor", "nowhere"], "USAGE", None);
    assert!(
        error["file"].as_str().unwrap().contains("nowhere"),
        "{error}"
    );
}

#[test]
fn a_proxy_is_asked_if_the_environment_names_one() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let asked = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let request = BufReader::new(&stream).lines().map_while(Result::ok);
        let request: Vec<String> = request.take_while(|line| !line.is_empty()).collect();
        stream
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        request[0].clone()
    });
    let folder = Folder::new();
    let mut pull = Command::new(TOOL);
    pull.args(["pull", "http://models.example/run7", "directory"])
        .current_dir(folder.at("."));
    pull.env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .env("http_proxy", &proxy)
        .env_remove("HTTP_PROXY");
    assert_eq!(pull.output().unwrap().status.code(), Some(1));
    let asked = asked.join().unwrap();
    assert!(
        asked.starts_with("GET http://models.example/run7/"),
        "{asked}"
    );
}
