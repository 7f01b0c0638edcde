//! Servers that lie about the length of their answers, for every command that asks a server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::support::{Folder, TOOL, bytes_file, step};

/// A server that announces about 100 GB with each answer, and hangs up after a few bytes.
fn liar(status: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let request = BufReader::new(&stream).lines().map_while(Result::ok);
                request.take_while(|line| !line.is_empty()).for_each(drop);
                // A client that disconnects is not a fault.
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
        let commands: [&[&str]; 9] = [
            &["init"],
            &["publish", &state],
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
            // A put may succeed, because its answer needs no body.
            assert!(
                matches!(ran.code, Some(0 | 1)),
                "{status} {command:?}: {ran:?}"
            );
        }
        // `follow` retries forever and has to be killed.
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

/// A metadata service that refuses everything, and the number of requests that it received.
fn refusing() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let request = BufReader::new(&stream).lines().map_while(Result::ok);
            request.take_while(|line| !line.is_empty()).for_each(drop);
            count.fetch_add(1, Ordering::SeqCst);
            let answer =
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer);
        }
    });
    (address, asked)
}

/// Runs a command with these variables and without the credentials that the test may have.
fn run_with(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(TOOL);
    command.args(arguments).current_dir(folder.at("."));
    command
        .env_remove("AWS_PROFILE")
        .env("HOME", folder.at("."));
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(!output.status.success());
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(
        !text.contains("panic") && !text.contains("failed unexpectedly"),
        "{text}"
    );
    text
}

#[test]
fn without_credentials_each_command_says_so_and_asks_once() {
    let folder = Folder::new();
    folder.run(&["init", "own"]).good();
    let (address, asked) = refusing();
    let address = format!("http://{address}/");
    let state = step(0);
    let commands: [&[&str]; 9] = [
        &["init", "s3://bucket/chain"],
        &["publish", "s3://bucket/chain", &state],
        &["log", "s3://bucket/chain"],
        &["show", "s3://bucket/chain"],
        &["pull", "s3://bucket/chain", "directory"],
        &["compact", "s3://bucket/chain", "--snapshot"],
        &["prune", "s3://bucket/chain", "--keep-last", "1"],
        &["mirror", "own", "s3://bucket/chain"],
        &["doctor", "s3://bucket/chain"],
    ];
    let common = [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*address),
        // A CI pipeline without its secret sets empty variables.
        ("AWS_ACCESS_KEY_ID", ""),
        ("AWS_SECRET_ACCESS_KEY", ""),
    ];
    let off = ("AWS_EC2_METADATA_DISABLED", "True");
    for command in commands {
        let text = run_with(&folder, command, &common);
        assert!(text.contains("no credentials found"), "{command:?}: {text}");
        // Two lists may be fetched in parallel.
        let requests = asked.swap(0, Ordering::SeqCst);
        assert!((1..=2).contains(&requests), "{command:?}: {requests}");
        let text = run_with(&folder, command, &[&common[..], &[off]].concat());
        assert!(text.contains("AWS_EC2_METADATA_DISABLED is true"), "{text}");
        assert_eq!(asked.swap(0, Ordering::SeqCst), 0, "{command:?}");
    }
}

#[test]
fn credentials_of_each_store_are_named_in_its_words() {
    let folder = Folder::new();
    folder.write("token", "hidden\n");
    folder.write("credentials", "hidden");
    let (address, asked) = refusing();
    let url = format!("http://{address}");
    let host = address.to_string();
    let empty = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    for (chain, variables, said) in [
        (
            "s3://b/c",
            vec![
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*url),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "token"),
            ],
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=token: the token ends with a newline",
        ),
        (
            "s3://b/c",
            vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent"),
                ("AWS_ROLE_ARN", "r"),
            ],
            "AWS_WEB_IDENTITY_TOKEN_FILE=/nonexistent: ",
        ),
        (
            "gs://b/c",
            vec![("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")],
            "GOOGLE_APPLICATION_CREDENTIALS=/nonexistent: ",
        ),
        (
            "gs://b/c",
            vec![("GOOGLE_APPLICATION_CREDENTIALS", "credentials")],
            "GOOGLE_APPLICATION_CREDENTIALS=credentials: ",
        ),
        (
            "gs://b/c",
            vec![("GCE_METADATA_HOST", &*host), ("GCE_METADATA_IP", &*host)],
            "the metadata service that GCE_METADATA_HOST names: HTTP 403",
        ),
        (
            "az://b/c",
            vec![("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=hidden")],
            "AZURE_STORAGE_CONNECTION_STRING: AccountName is missing",
        ),
        (
            "az://b/c",
            vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", "a"),
                ("AZURE_MSI_ENDPOINT", &*url),
            ],
            "the service that AZURE_MSI_ENDPOINT names: HTTP 403",
        ),
        (
            "az://b/c",
            vec![("AZURE_STORAGE_ACCOUNT_KEY", "aGlkZGVu")],
            "AZURE_STORAGE_ACCOUNT_NAME",
        ),
    ] {
        let text = run_with(&folder, &["log", chain], &[&empty[..], &variables].concat());
        assert!(text.contains(said), "{variables:?}: {text}");
        assert!(
            !text.contains("hidden") && !text.contains("aGlkZGVu"),
            "{text}"
        );
        let others = if chain.starts_with("s3") {
            "AZURE_"
        } else {
            "AWS_"
        };
        assert!(!text.contains(others), "{text}");
        assert!(!text.contains("check the disk"), "{text}");
    }
    assert!(asked.load(Ordering::SeqCst) < 5, "{asked:?}");
}

#[test]
fn a_web_server_can_only_be_read() {
    let folder = Folder::new();
    folder.write("m.safetensors", bytes_file(&[("a", b"x")]));
    // No server listens at this address: the tool refuses before it sends a request.
    let url = "http://127.0.0.1:9/chain";
    for arguments in [&["init", url][..], &["publish", url, "m.safetensors"]] {
        let error = folder.refused(arguments, "USAGE", None);
        assert!(
            error["message"].as_str().unwrap().contains("is read-only"),
            "{arguments:?}: {error}"
        );
    }
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
