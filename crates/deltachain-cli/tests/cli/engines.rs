//! `follow --engine`, with servers that record what they are asked and fail as they are told.
#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};

use crate::support::{Folder, Ran, TOOL, bytes_file};

/// A stand-in for a server of vLLM or SGLang, which knows what a version and an adapter are.
struct Engine {
    url: String,
    state: Arc<Mutex<State>>,
    /// Hears of each request.
    asked: Receiver<String>,
}

#[derive(Default)]
struct State {
    /// What it was asked that changes something: path and body.
    calls: Vec<(String, Value)>,
    version: Option<String>,
    model: String,
    paused: bool,
    /// Whether the backend has been told of the chain.
    knows: bool,
    adapters: BTreeMap<String, String>,
    /// Requests that are refused, each as often as it is here.
    refuse: Vec<&'static str>,
    /// Requests that are never answered.
    hang: BTreeSet<&'static str>,
    /// What authorises.
    tokens: BTreeSet<String>,
}

impl Engine {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let (said, asked) = channel();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, said) = (Arc::clone(&shared), said.clone());
                thread::spawn(move || converse(stream, &shared, &said));
            }
        });
        Self { url, state, asked }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What has been asked since the last call, by path.
    fn paths(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls).into_iter().map(|(path, _)| path).collect()
    }

    /// Waits until something is asked of it.
    fn wait_for(&self, path: &str) {
        while self.asked.recv().unwrap() != path {}
    }
}

/// Answers on one connection.
fn converse(stream: TcpStream, state: &Mutex<State>, said: &Sender<String>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut head = Vec::new();
        for line in reader.by_ref().lines().map_while(Result::ok) {
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let Some(first) = head.first() else { return };
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let header = |name: &str| {
            let found = head.iter().filter_map(|line| line.split_once(": "));
            found.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = {
            let mut state = state.lock().unwrap();
            state.tokens.extend(header("authorization"));
            if state.hang.contains(path.as_str()) {
                state.calls.push((path.clone(), body));
                // For as long as the client waits.
                None
            } else if let Some(at) = state.refuse.iter().position(|refused| *refused == path) {
                state.refuse.remove(at);
                state.calls.push((path.clone(), body));
                Some(("500 Internal Server Error", json!({ "error": "as the test said" })))
            } else {
                Some(("200 OK", state.answer(&path, body)))
            }
        }
        .unwrap_or(("", Value::Null));
        said.send(path).ok();
        if status.is_empty() {
            reader.read_to_end(&mut Vec::new()).ok();
            return;
        }
        let answer = answer.to_string();
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).ok();
    }
}

impl State {
    fn answer(&mut self, path: &str, body: Value) -> Value {
        match path {
            "/weight_info" => return json!({ "weight_version": self.version }),
            "/model_info" => return json!({ "weight_version": self.version, "model_path": self.model }),
            "/v1/models" => {
                let adapters = self.adapters.iter().map(|(name, path)| json!({ "id": name, "root": path }));
                return json!({ "data": adapters.chain([json!({ "id": "base", "root": "/base" })]).collect::<Vec<_>>() });
            }
            "/init_weight_transfer_engine" => self.knows = true,
            "/pause?mode=keep" | "/pause_generation" => self.paused = true,
            "/resume" | "/continue_generation" => self.paused = false,
            "/finish_weight_update" => {
                if let Some(version) = body["weight_version"].as_str() {
                    self.version = Some(version.to_owned());
                }
            }
            "/update_weights_from_disk" => {
                // It is there, and whole.
                let model = body["model_path"].as_str().unwrap();
                assert!(Path::new(model).join("model.safetensors").is_file(), "{model}");
                model.clone_into(&mut self.model);
                self.version = body["weight_version"].as_str().map(str::to_owned);
            }
            "/v1/load_lora_adapter" => {
                let path = body["lora_path"].as_str().unwrap();
                assert!(Path::new(path).join("model.safetensors").is_file(), "{path}");
                self.adapters.insert(body["lora_name"].as_str().unwrap().to_owned(), path.to_owned());
            }
            "/v1/unload_lora_adapter" => {
                assert!(self.adapters.remove(body["lora_name"].as_str().unwrap()).is_some());
            }
            "/start_weight_update" | "/update_weights" => {}
            other => panic!("{other}"),
        }
        self.calls.push((path.to_owned(), body));
        json!({})
    }
}

/// All that is asked of a server of vLLM for one version.
const VLLM: [&str; 6] = [
    "/init_weight_transfer_engine",
    "/pause?mode=keep",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/resume",
];

/// A chain with these many versions of one byte each.
fn chain(versions: u8) -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    (0..versions).for_each(|version| publish(&folder, version));
    folder
}

fn publish(folder: &Folder, version: u8) {
    folder.write("model.safetensors", bytes_file(&[("a", &[version])]));
    folder.run(&["publish", "chain", "model.safetensors"]).good();
}

fn arguments<'a>(engine: &'a str, servers: &'a [&Engine]) -> Vec<&'a str> {
    let urls = servers.iter().flat_map(|server| ["--server", server.url.as_str()]);
    let follow = ["follow", "chain", "model", "--engine", engine, "--poll", "0.01", "--json"];
    follow.into_iter().chain(urls).collect()
}

/// Follows until the servers have this version.
fn until(folder: &Folder, engine: &str, version: &str, servers: &[&Engine]) -> Ran {
    folder.run(&[&arguments(engine, servers)[..], &["--until", version]].concat())
}

fn events(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn status(folder: &Folder) -> (Option<i32>, Value) {
    let ran = folder.run(&["status", "model", "--json"]);
    (ran.code, ran.json())
}

fn start(folder: &Folder, engine: &str, servers: &[&Engine], more: &[&str]) -> Child {
    let mut command = Command::new(TOOL);
    command.args(arguments(engine, servers)).args(more).current_dir(folder.at(""));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends a signal.
fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn vllm_is_asked_step_by_step_and_once() {
    let folder = chain(2);
    let server = Engine::start();
    let ran = until(&folder, "vllm", "1", &[&server]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let updated = events(&ran).into_iter().find(|event| event["event"] == "server").unwrap();
    assert_eq!((&updated["result"], &updated["version"]), (&json!("updated"), &json!(1)), "{ran:?}");
    assert!(updated["paused_seconds"].as_f64().unwrap() <= updated["seconds"].as_f64().unwrap());
    let (code, status) = status(&folder);
    assert_eq!((code, &status["servers"][0]["version"]), (Some(0), &json!(1)), "{status}");
    assert_eq!(status["servers"][0]["url"], server.url.as_str());

    let calls = std::mem::take(&mut server.state().calls);
    assert_eq!(calls.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), VLLM);
    let absolute = |name: &str| json!(folder.at(name).canonicalize().unwrap());
    let init = json!({ "init_info": { "chain": absolute("chain"), "host_copy": absolute("model"), "mode": "auto" } });
    assert_eq!(calls[0].1, init);
    assert_eq!(calls[3].1, json!({ "update_info": { "version": 1, "digest": status["state"] } }));
    assert_eq!(calls[4].1, json!({ "weight_version": "1" }));

    // It has the version, also after this program was started again.
    until(&folder, "vllm", "1", &[&server]).good();
    assert_eq!(server.paths(), [""; 0]);
    publish(&folder, 2);
    until(&folder, "vllm", "2", &[&server]).good();
    assert_eq!(server.paths(), VLLM);
}

#[test]
fn sglang_reads_the_directory_of_just_this_version() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "sglang", "0", &[&server]).good();
    let calls = std::mem::take(&mut server.state().calls);
    let paths: Vec<_> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]);
    let resolved = folder.at("model/current").canonicalize().unwrap();
    assert_eq!(calls[1].1, json!({ "model_path": resolved, "weight_version": "0", "flush_cache": true }));
    until(&folder, "sglang", "0", &[&server]).good();
    assert_eq!(server.paths(), [""; 0]);
}

#[test]
fn a_server_that_was_started_again_is_brought_to_the_version() {
    let folder = chain(1);
    let server = Engine::start();
    let mut follow = start(&folder, "vllm", &[&server], &[]);
    server.wait_for("/resume");
    *server.state() = State::default();
    server.wait_for("/resume");
    signal(&follow, "-TERM");
    assert!(follow.wait().unwrap().success());
    assert_eq!(server.paths(), VLLM);
    assert_eq!(server.state().version.as_deref(), Some("0"));
}

#[test]
fn what_is_refused_before_anything_was_touched_goes_on() {
    for refused in &VLLM[..3] {
        let folder = chain(1);
        let server = Engine::start();
        server.state().refuse = vec![refused];
        let ran = folder.run(&[&arguments("vllm", &[&server])[..], &["--once"]].concat());
        assert_eq!(ran.code, Some(1), "{refused}: {ran:?}");
        let failed = events(&ran).into_iter().find(|event| event["result"] == "failed").unwrap();
        assert_eq!(failed["stays_paused"], false, "{refused}: {ran:?}");
        assert!(failed["message"].as_str().unwrap().contains("as the test said"), "{failed}");
        assert!(!server.state().paused && !server.paths().contains(&VLLM[3].to_owned()), "{refused}");
        let (code, found) = status(&folder);
        assert!(code == Some(1) && found["problems"][0].as_str().unwrap().contains(&server.url), "{found}");
        // The next try.
        until(&folder, "vllm", "0", &[&server]).good();
        assert_eq!((server.paths(), status(&folder).0), (VLLM.map(str::to_owned).to_vec(), Some(0)));
    }
}

#[test]
fn what_may_hold_two_versions_stays_paused_until_it_holds_one() {
    for (engine, refused) in
        [("vllm", "/update_weights"), ("vllm", "/finish_weight_update"), ("sglang", "/update_weights_from_disk")]
    {
        let folder = chain(1);
        let server = Engine::start();
        server.state().refuse = vec![refused];
        let ran = folder.run(&[&arguments(engine, &[&server])[..], &["--once"]].concat());
        assert_eq!(ran.code, Some(1), "{refused}: {ran:?}");
        let failed = events(&ran).into_iter().find(|event| event["result"] == "failed").unwrap();
        assert_eq!(failed["stays_paused"], true, "{refused}: {ran:?}");
        assert!(server.state().paused && status(&folder).1["servers"][0]["paused"] == true, "{refused}");
        // Another process, and what the server says of itself is not enough.
        server.state().version = Some("0".to_owned());
        until(&folder, engine, "0", &[&server]).good();
        assert!(!server.state().paused && status(&folder).0 == Some(0), "{refused}");
    }
}

#[test]
fn a_server_that_hangs_or_is_not_there_holds_up_no_other() {
    let folder = chain(1);
    let (good, hanging) = (Engine::start(), Engine::start());
    hanging.state().hang = ["/pause?mode=keep"].into();
    let gone = Engine { url: "http://127.0.0.1:9".to_owned(), ..Engine::start() };
    let mut follow = start(&folder, "vllm", &[&hanging, &gone, &good], &["--server-timeout", "0.2"]);
    good.wait_for("/resume");
    publish(&folder, 1);
    good.wait_for("/resume");
    publish(&folder, 2);
    good.wait_for("/resume");
    hanging.state().hang.clear();
    hanging.wait_for("/finish_weight_update");
    hanging.wait_for("/resume");
    signal(&follow, "-TERM");
    assert!(follow.wait().unwrap().success());
    let versions = [&good, &hanging].map(|server| server.state().version.clone());
    assert_eq!(versions, [Some("2".to_owned()), Some("2".to_owned())], "and it catches up at once");
    let (code, status) = status(&folder);
    assert_eq!((code, &status["servers"][1]["version"]), (Some(1), &Value::Null), "{status}");
}

#[test]
fn a_server_is_not_left_paused_at_the_end() {
    let folder = chain(1);
    let server = Engine::start();
    server.state().hang = ["/update_weights"].into();
    let mut follow = start(&folder, "vllm", &[&server], &["--server-timeout", "0.5"]);
    server.wait_for("/pause?mode=keep");
    signal(&follow, "-TERM");
    assert!(follow.wait().unwrap().success());
    // It may have been touched.
    assert!(server.state().paused);

    // Killed in the middle, and the server has done all that it was told.
    let mut follow = start(&folder, "vllm", &[&server], &[]);
    server.wait_for("/update_weights");
    signal(&follow, "-KILL");
    follow.wait().unwrap();
    server.state().hang.clear();
    server.state().version = Some("0".to_owned());
    server.paths();
    until(&folder, "vllm", "0", &[&server]).good();
    assert_eq!(server.paths(), VLLM);
    assert!(!server.state().paused);
}

#[test]
fn adapters_have_names_with_versions_and_older_ones_stay_for_a_while() {
    let folder = chain(1);
    let (server, other) = (Engine::start(), Engine::start());
    let follow = |version: &str, keep: &str| {
        let more = ["--adapter", "tuned", "--keep-adapters", keep, "--until", version];
        folder.run(&[&arguments("vllm-lora", &[&server, &other])[..], &more].concat()).good();
    };
    let adapters = |server: &Engine| server.state().adapters.keys().cloned().collect::<Vec<_>>();
    let copies = || {
        let names = fs::read_dir(folder.at("model/adapters")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.map(|name| name.rsplit_once('-').unwrap().0.to_owned()).collect::<BTreeSet<_>>()
    };
    follow("0", "1");
    assert_eq!(adapters(&server), ["tuned@0"]);
    for version in 1..4 {
        publish(&folder, version);
        follow(&version.to_string(), "1");
    }
    assert_eq!((adapters(&server), adapters(&other)), (vec!["tuned@2".into(), "tuned@3".into()], adapters(&server)));
    assert_eq!(copies(), ["tuned@2", "tuned@3"].map(str::to_owned).into());
    // Nothing is paused, and what others have loaded stays.
    assert!(!server.paths().iter().any(|path| path.contains("pause")));
    server.state().adapters.insert("mine@1".to_owned(), "/mine".to_owned());
    // A server that was started again.
    server.state().adapters.remove("tuned@3");
    follow("3", "0");
    assert_eq!(adapters(&server), ["mine@1", "tuned@3"]);
    assert_eq!(copies(), ["tuned@3"].map(str::to_owned).into());
}

#[test]
fn a_token_comes_from_the_environment() {
    let folder = chain(1);
    let server = Engine::start();
    let servers = [&server];
    let arguments = [&arguments("sglang", &servers)[..], &["--once", "--server-token-env", "ENGINE_TOKEN"]].concat();
    let ran = folder.run(&arguments);
    assert!(ran.code == Some(2) && ran.stdout.contains("there is no variable ENGINE_TOKEN"), "{ran:?}");
    let mut follow = Command::new(TOOL);
    follow.args(&arguments).env("ENGINE_TOKEN", "secret").current_dir(folder.at(""));
    let ran = Ran::of(follow.output().unwrap());
    assert_eq!(server.state().tokens, ["Bearer secret".to_owned()].into());
    assert!(!ran.good().contains("secret"));
}

#[test]
fn servers_and_engines_belong_together() {
    let folder = chain(1);
    let refused: [&[&str]; 6] = [
        &["--engine", "vllm"],
        &["--server", "http://127.0.0.1:1"],
        &["--engine", "vllm", "--server", "127.0.0.1:1"],
        &["--engine", "vllm", "--server", "http://127.0.0.1:1", "--exec", "true"],
        &["--engine", "vllm", "--server", "http://127.0.0.1:1", "--tensors", "a"],
        &["--engine", "vllm", "--server", "http://127.0.0.1:1", "--server", "http://127.0.0.1:1/"],
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
