//! Signals end the tool whatever it waits for, and it runs until then.
#![cfg(unix)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::{Folder, TOOL, bytes_file, step};

/// A server that accepts connections and never answers: its address, and a message for each
/// connection.
fn silent_server() -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, connected) = mpsc::channel();
    thread::spawn(move || {
        let mut open = Vec::new();
        for connection in listener.incoming() {
            open.push(connection);
            let _ = sender.send(());
        }
    });
    (address, connected)
}

/// Starts the tool with settings that make it wait for an answer for a day.
fn start(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(TOOL);
    command
        .args(arguments)
        .current_dir(folder.at(""))
        .stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
        .env("TMPDIR", folder.at(""))
        .env("AWS_ACCESS_KEY_ID", "a")
        .env("AWS_SECRET_ACCESS_KEY", "b");
    command
}

/// Asks a process once to end, and returns its exit code; `None` if it had to be killed.
fn told_to_end(mut child: Child) -> Option<i32> {
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let (ended, ends) = mpsc::channel::<()>();
    let guard = thread::spawn(move || {
        if ends.recv_timeout(Duration::from_mins(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-KILL", &id]).status().unwrap();
        }
    });
    let code = child.wait().unwrap().code();
    drop(ended);
    guard.join().unwrap();
    code
}

#[test]
fn a_store_that_does_not_answer_is_not_waited_for() {
    let folder = Folder::new();
    folder.write("m.safetensors", bytes_file(&[("a", b"x")]));
    let url = "s3://bucket/chain";
    let commands: [&[&str]; 12] = [
        &["follow", url, "model"],
        &["mirror", url, "copy"],
        &["mirror", url, "copy", "--poll", "1"],
        &["pull", url, "model"],
        &["publish", url, "m.safetensors"],
        &["init", url],
        &["log", url],
        &["show", url],
        &["fsck", url],
        &["prune", url, "--keep-last", "1"],
        &["compact", url, "--snapshot"],
        &["doctor", url],
    ];
    for command in commands {
        let (address, connected) = silent_server();
        let endpoint = format!("endpoint={address}");
        let more = ["--store", &endpoint, "--store", "timeout=86400"];
        let child = start(&folder, &[command, &more].concat()).spawn().unwrap();
        connected.recv().unwrap();
        let code = told_to_end(child);
        assert_eq!(
            code,
            Some(if command[0] == "follow" || command.contains(&"--poll") {
                0
            } else {
                130
            }),
            "{command:?}"
        );
    }
}

#[test]
fn systemd_hears_of_a_follower_whose_store_is_silent() {
    let folder = Folder::new();
    let socket = UnixDatagram::bind(folder.at("notify")).unwrap();
    let (address, connected) = silent_server();
    let endpoint = format!("endpoint={address}");
    let arguments = [
        "follow",
        "s3://bucket/chain",
        "model",
        "--store",
        &endpoint,
        "--store",
        "timeout=86400",
    ];
    let mut command = start(&folder, &arguments);
    command
        .env("NOTIFY_SOCKET", folder.at("notify"))
        .env("WATCHDOG_USEC", "30000");
    let child = command.spawn().unwrap();
    connected.recv().unwrap();
    socket
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let mut message = [0; 4096];
    for _ in 0..10 {
        let length = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"WATCHDOG=1\n");
    }
    assert_eq!(told_to_end(child), Some(0));
}

#[test]
fn a_lock_of_others_is_waited_for_with_a_remark() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.write("m.safetensors", bytes_file(&[("a", b"x")]));
    let user = fs::metadata(folder.at("chain")).unwrap().uid();
    let private = folder.at(&format!("deltachain-scratch-{user}"));
    fs::DirBuilder::new().mode(0o700).create(&private).unwrap();
    let lock = File::create(private.join("lock")).unwrap();
    lock.lock().unwrap();
    let waiting = || {
        let mut child = start(&folder, &["publish", "chain", "m.safetensors"])
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("waiting for another process"), "{line}");
        child
    };
    assert_eq!(told_to_end(waiting()), Some(130));
    let mut child = waiting();
    lock.unlock().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn standard_input_is_not_waited_for() {
    let folder = Folder::new();
    let mut child = start(&folder, &["key", "show", "-"]).spawn().unwrap();
    let input = child.stdin.take();
    // The tool installs its signal handler before it reads anything, so it handles the signal from
    // here on.
    while !fs::read_to_string(format!("/proc/{}/status", child.id()))
        .unwrap()
        .lines()
        .any(handles_signals)
    {
        thread::yield_now();
    }
    assert_eq!(told_to_end(child), Some(130));
    drop(input);
}

/// True if a line of a process's status says that the process handles SIGTERM.
fn handles_signals(line: &str) -> bool {
    let caught = line
        .strip_prefix("SigCgt:")
        .map(|caught| u64::from_str_radix(caught.trim(), 16).unwrap());
    caught.is_some_and(|caught| caught & (1 << 14) != 0)
}

#[test]
fn a_rate_of_nothing_is_refused() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    let error = folder.refused(&["log", "chain", "--store", "max-rate=0"], "USAGE", None);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("bytes per second"),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_started_are_an_error() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    let ran = folder.run_in_shell(
        "ulimit -v 1000000; exec \"$0\" \"$@\"",
        &["log", "chain", "--threads", "1024"],
    );
    assert!(
        ran.code == Some(1) && ran.stderr.starts_with("error: IO: starting threads: "),
        "{ran:?}"
    );
    for limit in (20_000..120_000).step_by(2_000) {
        let script = format!("ulimit -v {limit}; exec \"$0\" \"$@\"");
        let ran = folder.run_in_shell(&script, &["log", "chain", "--threads", "4"]);
        assert!(
            ran.code != Some(101) && !ran.stderr.contains("\nthread"),
            "{limit}: {ran:?}"
        );
    }
}

#[test]
fn a_mirror_goes_on_until_it_is_told_to_end() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", &step(0)]).good();
    let once = folder.json(&["mirror", "chain", "copy"]);
    assert_eq!(
        (once["version"].as_u64(), once["documents"].as_u64()),
        (Some(0), Some(1))
    );
    let mut child = start(
        &folder,
        &["mirror", "chain", "copy", "--poll", "0.01", "--json"],
    );
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    folder
        .run(&["publish", "chain", &step(1), "--base", &step(0)])
        .good();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("\"version\":1"));
    assert_eq!(told_to_end(child), Some(0));
    folder.run(&["fsck", "copy", "--deep"]).good();
}
