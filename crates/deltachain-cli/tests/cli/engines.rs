//! `follow --engine`, with stand-in servers that record requests and fail on demand.
#![cfg(unix)]

pub(crate) mod stand_in;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::system::uname;
use serde_json::{Value, json};

use crate::engines::stand_in::Engine;
use crate::support::{Folder, Ran, TOOL, bytes_file};

/// Requests that one version needs at a vLLM server, in order.
pub(crate) const VLLM: [&str; 8] = [
    "/init_weight_transfer_engine",
    "/pause?mode=keep",
    "deltachain_end_update",
    "/update_weight_version",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/resume",
];

/// Creates a chain with the given number of versions of one byte each.
pub(crate) fn chain(versions: u8) -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    (0..versions).for_each(|version| publish(&folder, version));
    folder
}

pub(crate) fn publish(folder: &Folder, version: u8) {
    folder.write("model.safetensors", bytes_file(&[("a", &[version])]));
    folder
        .run(&["publish", "chain", "model.safetensors"])
        .good();
}

pub(crate) fn arguments<'a>(engine: &'a str, servers: &'a [&Engine]) -> Vec<&'a str> {
    let urls = servers
        .iter()
        .flat_map(|server| ["--server", server.url.as_str()]);
    let follow = [
        "follow", "chain", "model", "--engine", engine, "--poll", "0.01", "--json",
    ];
    follow.into_iter().chain(urls).collect()
}

/// Follows until the servers have the given version.
pub(crate) fn until(folder: &Folder, engine: &str, version: &str, servers: &[&Engine]) -> Ran {
    folder.run(&[&arguments(engine, servers)[..], &["--until", version]].concat())
}

pub(crate) fn events(ran: &Ran) -> Vec<Value> {
    ran.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(crate) fn status(folder: &Folder) -> (Option<i32>, Value) {
    let ran = folder.run(&["status", "model", "--json"]);
    (ran.code, ran.json())
}

pub(crate) fn start(folder: &Folder, engine: &str, servers: &[&Engine], more: &[&str]) -> Process {
    Process::start(folder, &[&arguments(engine, servers)[..], more].concat())
}

/// A follower, which is killed on drop.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = Command::new(TOOL);
        command
            .args(arguments)
            .current_dir(folder.at(""))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Starts a follower, and also returns its events as they arrive.
    pub(crate) fn heard(folder: &Folder, arguments: &[&str]) -> (Self, Receiver<Value>) {
        let mut command = Command::new(TOOL);
        command
            .args(arguments)
            .current_dir(folder.at(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (heard, events) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.send(serde_json::from_str(&line).unwrap()).ok();
            }
        });
        (Self(child), events)
    }

    /// Sends the signal to end.
    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
    }

    /// Ends the process and waits for it. False if it did not end in order: it may not have started
    /// far enough.
    pub(crate) fn end(self) -> bool {
        self.terminate();
        self.ended()
    }

    /// Waits until the process, which was told to end, has ended. True if it succeeded.
    pub(crate) fn ended(mut self) -> bool {
        self.0.wait().unwrap().success()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Name by which a follower identifies itself to servers.
pub(crate) fn follower(folder: &Folder) -> String {
    follower_in(folder, "model")
}

/// Like [`follower`], for a follower that keeps another directory.
pub(crate) fn follower_in(folder: &Folder, directory: &str) -> String {
    let host = uname().nodename().to_string_lossy().into_owned();
    format!(
        "{host}:{}",
        folder
            .at("")
            .canonicalize()
            .unwrap()
            .join(directory)
            .display()
    )
}

/// Server's name of a version with this state.
pub(crate) fn name(version: u64, state: &Value) -> String {
    format!("{version}@{}", &state.as_str().unwrap()[..12])
}

/// Follows until `status` reports health, and returns that status.
pub(crate) fn healthy(folder: &Folder, engine: &str, servers: &[&Engine]) -> Value {
    let mut follow = start(folder, engine, servers, &[]);
    let found = loop {
        assert!(follow.is_running());
        if let (Some(0), found) = status(folder)
            && found["servers"]
                .as_array()
                .unwrap()
                .iter()
                .all(|server| server["state"] == found["state"])
        {
            break found;
        }
    };
    assert!(follow.end());
    found
}

#[test]
fn vllm_is_asked_step_by_step_and_once() {
    let folder = chain(2);
    let server = Engine::start();
    let ran = until(&folder, "vllm", "1", &[&server]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let updated = events(&ran)
        .into_iter()
        .find(|event| event["event"] == "server")
        .unwrap();
    assert_eq!(
        (&updated["result"], &updated["version"]),
        (&json!("updated"), &json!(1)),
        "{ran:?}"
    );
    assert!(updated["paused_seconds"].as_f64().unwrap() <= updated["seconds"].as_f64().unwrap());
    // No follower runs any more, so changes to the server since the update are unknown.
    let (code, status) = status(&folder);
    assert_eq!(
        (code, &status["servers"][0]["version"]),
        (Some(1), &json!(1)),
        "{status}"
    );
    assert_eq!(status["problems"].as_array().unwrap().len(), 1, "{status}");
    assert!(
        status["problems"][0]
            .as_str()
            .unwrap()
            .contains("no follower is running"),
        "{status}"
    );
    assert_eq!(status["servers"][0]["url"], server.url.as_str());

    let calls = std::mem::take(&mut server.state().calls);
    assert_eq!(
        calls
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        VLLM
    );
    let absolute = |name: &str| json!(folder.at(name).canonicalize().unwrap());
    let init = json!({ "init_info": { "host_copy": absolute("model"), "mode": null } });
    assert_eq!(calls[0].1, init);
    assert_eq!(calls[3].1, json!({ "new_version": "changing" }));
    let host = follower(&folder);
    let state = &status["state"];
    assert_eq!(
        calls[5].1,
        json!({ "update_info": { "version": 1, "digest": state, "follower": host } })
    );
    assert_eq!(calls[6].1, json!({ "weight_version": name(1, state) }));
    assert_eq!(server.state().process.owner, None, "the lease is over");

    // The server keeps the version, and a new follower finds it there.
    let found = healthy(&folder, "vllm", &[&server]);
    assert_eq!(
        (
            &found["servers"][0]["version"],
            &found["servers"][0]["state"]
        ),
        (&json!(1), state),
        "{found}"
    );
    assert_eq!(server.names(), [""; 0]);
    publish(&folder, 2);
    until(&folder, "vllm", "2", &[&server]).good();
    assert_eq!(server.names(), VLLM);
}

#[test]
fn a_server_that_downloads_the_chain_itself_prepares_a_version_before_it_pauses() {
    let folder = chain(2);
    let server = Engine::start();
    server.state().downloads = true;
    server.state().preparing = 3;
    // The tool says so, and keeps no copy of the tensors.
    let ran = folder.run(&[&arguments("vllm", &[&server])[..], &["--once"]].concat());
    assert!(
        ran.code == Some(0) && ran.stdout.contains("downloads the chain itself"),
        "{ran:?}"
    );
    let calls = std::mem::take(&mut server.state().calls);
    let names: Vec<_> = calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [&["deltachain_is_ready"; 3][..], &VLLM].concat());
    let told =
        |begins: &str| json!({ "follower": follower(&folder), "version": "1", "begins": begins });
    let asked: Vec<_> = calls[..3].iter().map(|(_, body)| &body["kwargs"]).collect();
    assert_eq!(asked, [&told("1"), &told("0"), &told("0")]);
    assert_eq!(
        calls[3].1["init_info"],
        json!({ "host_copy": null, "mode": null })
    );
    // The directory holds no tensors, only assets, and this chain has none.
    let held = status(&folder).1;
    assert_eq!(
        (&held["version"], &held["servers"][0]["version"]),
        (&json!(1), &json!(1)),
        "{held}"
    );
    let files: Vec<_> = std::fs::read_dir(folder.at("model/current"))
        .unwrap()
        .collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn a_chain_that_cannot_be_taken_in_place_is_said_to_be() {
    let folder = chain(1);
    let server = Engine::start();
    server.state().downloads = true;
    for (version, profile) in [(0, ""), (1, "compact"), (2, "local")] {
        if version > 0 {
            folder.write("model.safetensors", bytes_file(&[("a", &[version])]));
            folder
                .run(&[
                    "publish",
                    "chain",
                    "model.safetensors",
                    "--profile",
                    profile,
                ])
                .good();
        }
        let ran = folder.run(
            &[
                &arguments("vllm", &[&server])[..],
                &["--no-tensors", "--once"],
            ]
            .concat(),
        );
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let is_told = format!("{ran:?}").contains("--profile local");
        assert_eq!(is_told, profile == "compact", "{ran:?}");
        let whole = status(&folder).1["whole"].to_string();
        assert_eq!(
            whole.contains("--profile local"),
            profile == "compact",
            "{whole}"
        );
    }
}

#[test]
fn sglang_with_the_plugin_downloads_the_chain_itself() {
    let folder = chain(2);
    let server = Engine::start();
    server.state().downloads = true;
    server.state().preparing = 2;
    let ran = folder.run(&[&arguments("sglang", &[&server])[..], &["--once"]].concat());
    assert!(
        ran.code == Some(0) && ran.stdout.contains("downloads the chain itself"),
        "{ran:?}"
    );
    // A server that does not answer yet, after it and the tool were restarted.
    let silent = Engine::start();
    silent.state().is_down = true;
    let ran = folder.run(&[&arguments("sglang", &[&silent])[..], &["--once"]].concat());
    assert!(
        ran.code == Some(1) && ran.stdout.contains("no tensors are kept here"),
        "{ran:?}"
    );
    let calls = [
        "/pause_generation",
        "/update_weight_version",
        "/update_weights_from_tensor",
        "/continue_generation",
    ];
    assert_eq!(
        server.names(),
        [&["deltachain_is_ready"; 2][..], &calls].concat()
    );
    let held = status(&folder).1;
    assert_eq!(
        server.state().process.weight_version,
        name(1, &held["state"])
    );
    // A follower notices what another process has done to the server, and repairs it.
    for is_torn in [false, true] {
        let whole = server.state().process.workers[0].clone();
        server.state().process.paused = true;
        server.state().process.workers[1] = if is_torn {
            stand_in::Model::Torn
        } else {
            whole.clone()
        };
        folder
            .run(&[&arguments("sglang", &[&server])[..], &["--once"]].concat())
            .good();
        healthy(&folder, "sglang", &[&server]);
        assert!(!server.state().process.paused);
        assert_eq!(server.state().process.workers, [whole.clone(), whole]);
    }
    // A server without the plugin reads a directory.
    let folder = chain(1);
    let server = Engine::start();
    folder
        .run(&[&arguments("sglang", &[&server])[..], &["--once"]].concat())
        .good();
    assert!(
        server
            .names()
            .contains(&"/update_weights_from_disk".to_owned())
    );
}

#[test]
fn sglang_reads_the_directory_of_just_this_version() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "sglang", "0", &[&server]).good();
    let calls = std::mem::take(&mut server.state().calls);
    let paths: Vec<_> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/pause_generation",
            "/update_weights_from_disk",
            "/continue_generation"
        ]
    );
    let resolved = folder.at("model/current").canonicalize().unwrap();
    let name = name(0, &status(&folder).1["state"]);
    assert_eq!(
        calls[1].1,
        json!({ "model_path": resolved, "weight_version": name, "flush_cache": true })
    );
    healthy(&folder, "sglang", &[&server]);
    assert_eq!(server.names(), [""; 0]);
}

#[test]
fn adapters_have_names_with_versions_and_older_ones_stay_for_a_while() {
    let folder = chain(1);
    let server = Engine::start();
    let other = Engine::start();
    let follow = |version: &str, keep: &str| {
        let more = [
            "--adapter",
            "tuned",
            "--keep-adapters",
            keep,
            "--until",
            version,
        ];
        folder
            .run(&[&arguments("vllm-lora", &[&server, &other])[..], &more].concat())
            .good();
    };
    let adapters = |server: &Engine| {
        server
            .state()
            .process
            .adapters
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let copies = || {
        let names = fs::read_dir(folder.at("model/adapters")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .map(|name| name.rsplit_once('-').unwrap().0.to_owned())
            .collect::<BTreeSet<_>>()
    };
    follow("0", "1");
    assert_eq!(adapters(&server), ["tuned@0"]);
    for version in 1..4 {
        publish(&folder, version);
        follow(&version.to_string(), "1");
    }
    assert_eq!(
        (adapters(&server), adapters(&other)),
        (vec!["tuned@2".into(), "tuned@3".into()], adapters(&server))
    );
    assert_eq!(copies(), ["tuned@2", "tuned@3"].map(str::to_owned).into());
    // Adapters need no pause, and adapters of other users stay loaded.
    assert!(!server.names().iter().any(|path| path.contains("pause")));
    server
        .state()
        .process
        .adapters
        .insert("mine@1".to_owned(), "/mine".to_owned());
    // A restarted server has lost its adapter and gets it again.
    server.state().process.adapters.remove("tuned@3");
    follow("3", "0");
    assert_eq!(adapters(&server), ["mine@1", "tuned@3"]);
    assert_eq!(copies(), ["tuned@3"].map(str::to_owned).into());
}

#[test]
fn a_token_comes_from_the_environment() {
    let folder = chain(1);
    let server = Engine::start();
    let servers = [&server];
    let arguments = [&arguments("sglang", &servers)[..], &["--once"]].concat();
    let mut follow = Command::new(TOOL);
    follow
        .args(&arguments)
        .env("DELTACHAIN_SERVER_TOKEN", "secret")
        .current_dir(folder.at(""));
    let ran = Ran::of(follow.output().unwrap());
    assert_eq!(server.state().tokens, ["Bearer secret".to_owned()].into());
    assert!(!ran.good().contains("secret"));
}

#[test]
fn servers_and_engines_belong_together() {
    let folder = chain(1);
    let refused: [&[&str]; 9] = [
        &["--engine", "vllm"],
        &["--server", "http://127.0.0.1:1"],
        &["--engine", "vllm", "--server", "127.0.0.1:1"],
        &[
            "--engine",
            "vllm",
            "--server",
            "http://127.0.0.1:1",
            "--exec",
            "true",
        ],
        &[
            "--engine",
            "vllm",
            "--server",
            "http://127.0.0.1:1",
            "--tensors",
            "a",
        ],
        &[
            "--engine",
            "sglang",
            "--server",
            "http://127.0.0.1:1",
            "--no-tensors",
            "--pause",
            "wait",
        ],
        &[
            "--engine",
            "vllm-lora",
            "--server",
            "http://127.0.0.1:1",
            "--no-tensors",
        ],
        &["--no-tensors", "--tensors", "a"],
        &[
            "--engine",
            "vllm",
            "--server",
            "http://127.0.0.1:1",
            "--server",
            "http://127.0.0.1:1/",
        ],
    ];
    for more in refused {
        let ran = folder.run(&[&["follow", "chain", "model", "--once"], more].concat());
        assert_eq!(ran.code, Some(2), "{more:?}: {ran:?}");
    }
}

#[test]
fn servers_are_forgotten_when_nobody_brings_them_anything() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "vllm", "0", &[&server]).good();
    folder.run(&["follow", "chain", "model", "--once"]).good();
    assert_eq!(status(&folder).1["servers"], json!([]));
}
