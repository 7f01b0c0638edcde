//! A stand-in for a vLLM or SGLang server that forgets, refuses and breaks as vLLM 0.32.0 does. A
//! comment beside each such place names the file below `vllm/` of its source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::bytes_file;

/// A server. Calls are named by their path; `/collective_rpc` by the method that it calls.
pub(crate) struct Engine {
    pub(crate) url: String,
    shared: Arc<Shared>,
    /// Receives the name of each request before the server answers.
    asked: Mutex<Receiver<String>>,
    /// Directory of the model that the server was started with.
    _model: TempDir,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// State of the server, and the faults that tests inject.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(crate) struct State {
    /// Calls that change something: name and body.
    pub(crate) calls: Vec<(String, Value)>,
    /// Faults for the next calls, each used once.
    pub(crate) fates: Vec<(String, Fate)>,
    /// Calls that are never answered and do nothing.
    pub(crate) hang: BTreeSet<&'static str>,
    /// Accepted tokens.
    pub(crate) tokens: BTreeSet<String>,
    /// The server is unreachable: connections break.
    pub(crate) is_down: bool,
    /// Number of times that each follower has asked for the state of the workers.
    pub(crate) looks: BTreeMap<String, u64>,
    /// True if the server was ever resumed with parts of two models.
    pub(crate) has_served_two: bool,
    /// Leases, in seconds, that followers have asked for.
    pub(crate) leases: BTreeSet<String>,
    /// Number of restarts, and the model at each start.
    starts: u64,
    pub(crate) model_at_start: String,
    /// Connections of calls that are never answered.
    hanging: Vec<TcpStream>,
    /// Number of completion requests that have arrived.
    pub(crate) arrived: u64,
    /// Number of tokens that the server still makes before it stalls, if it does.
    pub(crate) tokens_left: Option<u64>,
    /// vLLM 0.33.0, `v1/engine/core.py`, `_reject_add_while_paused`: a paused server refuses
    /// requests unless the mode is "keep". vLLM 0.32.0 lets them wait.
    pub(crate) is_newer: bool,
    /// The server's configuration has the package's backend, which downloads a chain itself.
    /// `preparing` is the number of questions until its second worker answers that it is ready.
    pub(crate) downloads: bool,
    pub(crate) preparing: u64,
    /// Workers' reason why they cannot load a version.
    pub(crate) why: Option<String>,
    /// Digest of the chain that the workers download, if they know it.
    pub(crate) chain: Option<String>,
    /// Protocol of the package in the server, if it is not this one.
    pub(crate) protocol: Option<u64>,
    /// Number of attempts to prepare a version that have begun.
    pub(crate) attempts: u64,
    /// Number of questions until the other replica is ready.
    pub(crate) replica_preparing: u64,
    /// Number of updates that the other replica refuses, after the first one has taken them.
    pub(crate) replica_refuses: u64,
    pub(crate) process: Process,
}

/// An outcome that a test sets for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The call succeeds. Used to skip calls before the one that should fail.
    Fine,
    /// The call is refused and does nothing.
    Refused,
    /// The call does nothing and is never answered.
    Hangs,
    /// The call is carried out, but the connection breaks before the answer.
    Broken,
    /// One of the workers fails half way.
    Torn,
    /// The server dies and is restarted.
    Dies,
}

/// State of a server's process, which a restart loses.
pub(crate) struct Process {
    /// `v1/engine/core.py`, `_weight_version`: a text that is "default" until a request sets it,
    /// whatever the model is.
    pub(crate) weight_version: String,
    /// `v1/engine/core.py`, `is_scheduler_paused`: any client may set and clear it. New requests
    /// wait.
    pub(crate) paused: bool,
    /// `v1/engine/core.py`, `pause_scheduler`: the mode of the pause. With "keep", running requests
    /// stand still; with "wait", they finish first; with "abort", they have ended.
    mode: String,
    /// Number of running completion requests, and how often all of them were aborted.
    running: u64,
    aborts: u64,
    /// `v1/worker/gpu_worker.py`, `_weight_update_active`: `None` without a session, and otherwise
    /// whether the backend has received a version in it.
    pub(crate) session: Option<bool>,
    /// True once the backend knows the chain.
    knows: bool,
    /// Models of the workers.
    pub(crate) workers: [Model; 2],
    /// The follower whose updates worker 0 accepts. Its lease lasts until a test removes it.
    pub(crate) owner: Option<String>,
    /// The state that the other replica reports, if it differs from that of the first one.
    pub(crate) replica: Option<Value>,
    /// Directory that SGLang has loaded, or that vLLM was started with.
    pub(crate) model: String,
    pub(crate) adapters: BTreeMap<String, String>,
}

/// Weights with which a worker answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Model {
    /// The model that the server was started with, or weights that were changed behind the backend.
    Other,
    Version(u64, String),
    Torn,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            weight_version: "default".to_owned(),
            paused: false,
            mode: String::new(),
            running: 0,
            aborts: 0,
            session: None,
            knows: false,
            workers: [Model::Other, Model::Other],
            owner: None,
            replica: None,
            model: String::new(),
            adapters: BTreeMap::new(),
        }
    }
}

impl Engine {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared::default());
        let model = tempfile::tempdir().unwrap();
        let tensors = bytes_file(&[("a", &[0])]);
        fs::write(model.path().join("model.safetensors"), tensors).unwrap();
        {
            let mut state = shared.state.lock().unwrap();
            let path = model.path().to_str().unwrap();
            path.clone_into(&mut state.model_at_start);
            path.clone_into(&mut state.process.model);
        }
        let (said, asked) = channel();
        let answering = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&answering);
                let said = said.clone();
                thread::spawn(move || converse(stream, &shared, &said));
            }
        });
        Self {
            url,
            shared,
            asked: Mutex::new(asked),
            _model: model,
        }
    }

    /// A server that is not reachable.
    pub(crate) fn gone() -> Self {
        Self {
            url: "http://127.0.0.1:9".to_owned(),
            ..Self::start()
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// Kills the server and starts it again.
    pub(crate) fn restart(&self) {
        self.state().restart();
        self.shared.changed.notify_all();
    }

    /// Lets the server make the given number of further tokens, or all of them.
    pub(crate) fn allow(&self, tokens: Option<u64>) {
        self.state().tokens_left = tokens;
        self.shared.changed.notify_all();
    }

    /// Waits until the condition holds.
    pub(crate) fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        drop(
            self.shared
                .changed
                .wait_while(self.state(), |state| !is_so(state))
                .unwrap(),
        );
    }

    /// Names of the recorded calls since the last time they were read.
    pub(crate) fn names(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// Sets the fate of the next call with this name.
    pub(crate) fn befalls(&self, name: &str, fate: Fate) {
        self.state().fates.push((name.to_owned(), fate));
    }

    /// Waits until a call with this name arrives.
    pub(crate) fn wait_for(&self, name: &str) {
        let asked = self.asked.lock().unwrap();
        while asked.recv().unwrap() != name {}
    }

    /// Forgets the calls that have arrived until now.
    pub(crate) fn forget(&self) {
        let asked = self.asked.lock().unwrap();
        while asked.try_recv().is_ok() {}
    }

    /// Waits until a call with this name arrives, up to a time limit.
    pub(crate) fn wait_for_within(&self, name: &str, time: Duration) {
        let end = Instant::now() + time;
        let asked = self.asked.lock().unwrap();
        let next = || asked.recv_timeout(end.saturating_duration_since(Instant::now()));
        while next().is_ok_and(|asked| asked != name) {}
    }
}

/// Serves one connection.
fn converse(stream: TcpStream, shared: &Shared, said: &Sender<String>) {
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
            found
                .into_iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.to_owned())
        };
        let mut body =
            vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
        if reader.read_exact(&mut body).is_err() {
            return; // the client was killed while it sent the body
        }
        let mut body: Value = serde_json::from_slice(&body).unwrap_or_default();
        // The package's plugin for SGLang.
        let is_plugin = path == "/get_weights_by_name";
        if is_plugin {
            body = serde_json::from_str(&text(&body, "name")).unwrap();
        }
        let name = if is_plugin || path == "/collective_rpc" {
            body["method"].as_str().unwrap().to_owned()
        } else {
            path
        };
        let mut now = shared.state.lock().unwrap();
        now.tokens.extend(header("authorization"));
        if name == "deltachain_state" {
            *now.looks
                .entry(text(&body["kwargs"], "follower"))
                .or_default() += 1;
        }
        if now.is_down {
            return;
        }
        // The first question of a follower, before anything else, has no name of a follower and
        // never fails.
        let is_first = body["kwargs"]["follower"] == "";
        let at = now
            .fates
            .iter()
            .position(|(called, _)| *called == name && !is_first);
        let fate = at.map(|at| now.fates.remove(at).1);
        let hangs = fate == Some(Fate::Hangs) || now.hang.contains(name.as_str()) && !is_first;
        let answer = match fate {
            _ if hangs => Err(String::new()),
            Some(Fate::Refused) => Err("as the test said".to_owned()),
            Some(Fate::Dies) => {
                now.restart();
                Err(String::new())
            }
            Some(Fate::Torn) => {
                now.process.workers[1] = Model::Torn;
                now.process.session = None;
                Err("as the test said: it may hold parts of two versions".to_owned())
            }
            _ if name == "/v1/completions" => Ok(Value::Null),
            _ if is_plugin && !now.downloads => Err("Get parameter by name failed".to_owned()),
            _ => now.answer(&name, &body),
        };
        // SGLang's srt/managers/io_struct.py, `GetWeightsByNameReqOutput`: numbers.
        let answer = answer.map(|answer| match answer["results"].as_array() {
            Some(results) if is_plugin => {
                json!(
                    Value::from(results.clone())
                        .to_string()
                        .bytes()
                        .map(f64::from)
                        .collect::<Vec<_>>()
                )
            }
            _ => answer,
        });
        if !matches!(
            name.as_str(),
            "/weight_info"
                | "/model_info"
                | "/health_generate"
                | "/v1/models"
                | "/is_paused"
                | "deltachain_state"
                | "deltachain_agrees"
                | "deltachain_are_ready"
                | "/v1/completions"
        ) {
            now.calls.push((name.clone(), body.clone()));
        }
        now.hanging
            .extend(hangs.then(|| stream.try_clone().unwrap()));
        let starts = now.starts;
        drop(now);
        shared.changed.notify_all();
        said.send(name.clone()).ok();
        if !hangs && name == "/pause?mode=wait" {
            // `entrypoints/rl/online/api_router.py` answers when all requests have ended.
            let has_requests =
                |state: &mut State| state.starts == starts && state.process.running > 0;
            drop(
                shared
                    .changed
                    .wait_while(shared.state.lock().unwrap(), has_requests)
                    .unwrap(),
            );
        }
        let (status, answer) = match answer {
            _ if hangs => return drop(reader.read_to_end(&mut Vec::new())), // for as long as the client waits
            Ok(_) if name == "/v1/completions" => match complete(shared, &body) {
                Some(answered) => answered,
                None => return, // the server died
            },
            _ if matches!(fate, Some(Fate::Broken | Fate::Dies)) => return,
            Ok(answer) => ("200 OK", answer),
            Err(text) => ("500 Internal Server Error", json!({ "error": text })),
        };
        let answer = answer.to_string();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .ok();
        if status.starts_with("500") {
            // `entrypoints/serve/exception_handling/register.py` has a handler for `Exception`:
            // Starlette sends its answer and raises again, and then uvicorn (`run_asgi`) closes the
            // connection. Bytes that a client sends on it meanwhile are lost.
            reader.fill_buf().ok();
            return;
        }
    }
}

/// Answers a completion request token by token: for each, the version whose weights made it. The
/// answer also has what vLLM 0.33.0 reports with `return_weight_versions`
/// (`v1/engine/output_processor.py`). `None` if the server dies.
fn complete(shared: &Shared, body: &Value) -> Option<(&'static str, Value)> {
    let mut state = shared.state.lock().unwrap();
    state.arrived += 1;
    shared.changed.notify_all();
    let starts = state.starts;
    if state.process.paused && state.is_newer && state.process.mode != "keep" {
        return Some((
            "503 Service Unavailable",
            json!({ "error": "Generation is paused." }),
        ));
    }
    state = shared
        .changed
        .wait_while(state, |state| {
            state.starts == starts && state.process.paused
        })
        .unwrap();
    if state.starts != starts {
        return None;
    }
    state.process.running += 1;
    let aborts = state.process.aborts;
    let mut made = Vec::new();
    let mut labels = Vec::new();
    let mut reason = "length";
    while made.len() < usize::try_from(body["max_tokens"].as_u64().unwrap()).unwrap() {
        state = shared
            .changed
            .wait_while(
                state,
                |State {
                     starts: now,
                     process,
                     tokens_left,
                     ..
                 }| {
                    let stands =
                        process.paused && process.mode == "keep" || *tokens_left == Some(0);
                    *now == starts && process.aborts == aborts && stands
                },
            )
            .unwrap();
        if state.starts != starts {
            return None;
        }
        if state.process.aborts != aborts {
            reason = "abort";
            break;
        }
        state.tokens_left = state.tokens_left.map(|left| left - 1);
        made.push(match &state.process.workers[0] {
            Model::Other => "initial".to_owned(),
            Model::Version(version, state) => format!("{version}@{}", &state[..12]),
            Model::Torn => "torn".to_owned(),
        });
        labels.push(state.process.weight_version.clone());
        shared.changed.notify_all();
    }
    state.process.running -= 1;
    shared.changed.notify_all();
    let begins = (0..labels.len()).filter(|at| *at == 0 || labels[*at] != labels[at - 1]);
    let bounds: Vec<_> = begins.chain([labels.len()]).collect();
    let span = |of: &[usize]| json!({ "version": labels[of[0]], "start": of[0], "end": of[1] });
    let spans: Vec<_> = bounds.windows(2).map(span).collect();
    let choice = json!({ "finish_reason": reason, "made_by": made, "weight_versions": spans });
    Some(("200 OK", json!({ "choices": [choice] })))
}

impl State {
    fn restart(&mut self) {
        self.process = Process {
            model: self.model_at_start.clone(),
            ..Process::default()
        };
        self.starts += 1;
        // A server that dies breaks its connections.
        self.hanging
            .drain(..)
            .for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Answers a call; an error becomes a 500.
    fn answer(&mut self, name: &str, body: &Value) -> Result<Value, String> {
        let process = &mut self.process;
        match name {
            // `entrypoints/rl/online/api_router.py`
            "/weight_info" => return Ok(json!({ "weight_version": process.weight_version })),
            "/is_paused" => return Ok(json!({ "is_paused": process.paused })),
            // SGLang's `srt/entrypoints/http_server.py`, `health_generate`: 503 if no token is made
            // within 20 seconds.
            "/health_generate" if process.paused => return Err("no token".to_owned()),
            "/health" | "/health_generate" => {}
            "/pause?mode=keep" | "/pause?mode=wait" | "/pause?mode=abort" => {
                process.paused = true;
                name.rsplit('=')
                    .next()
                    .unwrap()
                    .clone_into(&mut process.mode);
                process.aborts += u64::from(process.mode == "abort");
            }
            // SGLang's `srt/managers/io_struct.py`, `PauseGenerationReqInput`.
            "/pause_generation" => {
                assert!(["abort", "retract", "in_place"].contains(&body["mode"].as_str().unwrap()));
                process.paused = true;
            }
            // Allowed in the middle of an update, too: no server checks that the model is whole.
            "/resume" | "/continue_generation" => {
                process.paused = false;
                self.has_served_two |= process.workers.contains(&Model::Torn);
            }
            "/update_weight_version" => body["new_version"]
                .as_str()
                .unwrap()
                .clone_into(&mut process.weight_version),

            // `entrypoints/serve/dev/rpc/api_router.py`: arguments are strings. The methods are the
            // package's.
            "deltachain_state" => return Ok(self.holds(&body["kwargs"])),
            "deltachain_is_ready" => {
                self.preparing = self.preparing.saturating_sub(1);
                self.attempts += u64::from(text(&body["kwargs"], "begins") == "1");
                let answer = |is_ready| {
                    json!({
                        "ready": is_ready, "why": self.why, "chain": self.chain,
                        "from": "s3://models/other",
                    })
                };
                return Ok(json!({ "results": [answer(true), answer(self.preparing == 0)] }));
            }
            // `v1/engine/core_client.py`, `call_utility_async`: only the reply of the first replica
            // is returned, but an exception of any is raised.
            "deltachain_agrees" => {
                let told: Value = serde_json::from_str(&text(&body["kwargs"], "states")).unwrap();
                let first = &told[0];
                let model = json!([first["state"], first["version"], first["digest"]]);
                if self
                    .process
                    .replica
                    .as_ref()
                    .is_some_and(|replica| *replica != model)
                {
                    return Err("replicas differ".to_owned());
                }
                return Ok(json!({ "results": [null, null] }));
            }
            "deltachain_are_ready" => {
                self.replica_preparing = self.replica_preparing.saturating_sub(1);
                if self.replica_preparing > 0 {
                    return Err("a replica is not ready".to_owned());
                }
                return Ok(json!({ "results": [null, null] }));
            }
            "deltachain_end_update" => {
                process.session = None;
                return Ok(json!({ "results": [null, null] }));
            }

            // The package's backend: requests cannot make it open a chain.
            "/init_weight_transfer_engine" if !body["init_info"]["chain"].is_null() => {
                return Err("a request cannot make this server open a chain".to_owned());
            }
            "/init_weight_transfer_engine"
                if self.downloads && !body["init_info"]["host_copy"].is_null() =>
            {
                return Err("this server downloads the chain itself".to_owned());
            }
            "/init_weight_transfer_engine" => process.knows = true,
            // `v1/worker/gpu_worker.py`, `_start_weight_update`: RuntimeError if a session is open,
            // whichever client opened it.
            "/start_weight_update" if process.session.is_some() => {
                return Err(
                    "start_weight_update called while a weight update is already active".to_owned(),
                );
            }
            "/start_weight_update" => process.session = Some(false),
            // `v1/worker/gpu_worker.py`, `update_weights`: RuntimeError without a session.
            "/update_weights" if process.session.is_none() => {
                return Err("start_weight_update must be called before update_weights".to_owned());
            }
            "/update_weights" => {
                let update = &body["update_info"];
                let is_owner = process.owner.as_deref() == update["follower"].as_str();
                if !process.knows || !is_owner {
                    // `v1/worker/gpu_worker.py`, `update_weights`: any failure ends the session.
                    process.session = None;
                    return Err(
                        "it knows no chain, or another follower brings this server".to_owned()
                    );
                }
                let version =
                    Model::Version(update["version"].as_u64().unwrap(), text(update, "digest"));
                let before = worker_state(&process.workers[0]);
                process.workers = [version.clone(), version];
                process.session = Some(true);
                process.replica = None;
                if self.replica_refuses > 0 {
                    self.replica_refuses -= 1;
                    process.replica = Some(before);
                    process.session = None;
                    return Err("the other replica cannot take the version".to_owned());
                }
            }
            // `v1/worker/gpu_worker.py`, `finish_weight_update`: RuntimeError without a session.
            "/finish_weight_update" if process.session.is_none() => {
                return Err(
                    "finish_weight_update called without a matching start_weight_update".to_owned(),
                );
            }
            // The backend refuses. `v1/worker/gpu_worker.py` ends the session only after the
            // backend's call, so the session stays open.
            "/finish_weight_update" if process.session == Some(false) => {
                return Err("no version has been received".to_owned());
            }
            "/finish_weight_update" => {
                process.session = None;
                // `v1/engine/async_llm.py`, `finish_weight_update`: stores the value without a
                // check.
                if let Some(version) = body["weight_version"].as_str() {
                    version.clone_into(&mut process.weight_version);
                }
            }

            // SGLang.
            "/model_info" => {
                return Ok(
                    json!({ "weight_version": process.weight_version, "model_path": process.model }),
                );
            }
            // The package's plugin.
            "/update_weights_from_tensor" => {
                assert_eq!(text(body, "load_format"), "deltachain");
                let told =
                    Base64::decode_vec(body["serialized_named_tensors"][0].as_str().unwrap())
                        .unwrap();
                let update: Value = serde_json::from_slice(&told).unwrap();
                if process.owner.as_deref() != update["follower"].as_str() {
                    return Err("another follower brings this server".to_owned());
                }
                let version =
                    Model::Version(update["version"].as_u64().unwrap(), text(&update, "digest"));
                process.workers = [version.clone(), version];
                process.weight_version = text(body, "weight_version");
            }
            "/update_weights_from_disk" => {
                // The directory exists and is complete.
                process.model = text(body, "model_path");
                assert!(
                    Path::new(&process.model)
                        .join("model.safetensors")
                        .is_file(),
                    "{}",
                    process.model
                );
                process.weight_version = text(body, "weight_version");
            }

            // Adapters.
            "/v1/models" => {
                let adapters = process
                    .adapters
                    .iter()
                    .map(|(name, path)| json!({ "id": name, "root": path }));
                let base = json!({ "id": "base", "root": process.model });
                let models: Vec<_> = [base].into_iter().chain(adapters).collect();
                return Ok(json!({ "data": models }));
            }
            "/v1/load_lora_adapter" => {
                let path = text(body, "lora_path");
                assert!(
                    Path::new(&path).join("model.safetensors").is_file(),
                    "{path}"
                );
                process.adapters.insert(text(body, "lora_name"), path);
            }
            "/v1/unload_lora_adapter" => {
                assert!(process.adapters.remove(&text(body, "lora_name")).is_some());
            }
            other => panic!("{other}"),
        }
        Ok(json!({}))
    }

    /// Answers with the workers' states, and sets the follower whose updates the server accepts
    /// from now on: integrations/docs/engines.md, "What is asked of a server of vLLM".
    fn holds(&mut self, asked: &Value) -> Value {
        let follower = text(asked, "follower");
        let lease = text(asked, "lease").parse::<f64>().unwrap();
        self.leases.insert(text(asked, "lease"));
        let owner = &mut self.process.owner;
        let other = owner.clone().filter(|owner| *owner != follower);
        if other.is_none() {
            *owner = (lease > 0.0).then_some(follower);
        }
        let result = |(rank, worker): (usize, &Model)| {
            let told = worker_state(worker);
            let owner = if rank == 0 { other.as_ref() } else { None };
            let seconds = owner.map(|_| 47.5);
            json!({
                "protocol": self.protocol.unwrap_or(2), "state": told[0], "version": told[1],
                "digest": told[2], "owner": owner, "owner_seconds": seconds,
                "downloads": self.downloads, "paused": self.process.paused,
            })
        };
        let results: Vec<_> = self
            .process
            .workers
            .iter()
            .enumerate()
            .map(result)
            .collect();
        json!({ "results": results })
    }
}

/// The state, version and digest that a worker reports.
fn worker_state(worker: &Model) -> Value {
    match worker {
        Model::Other => json!(["other", null, null]),
        Model::Version(version, digest) => json!(["held", version, digest]),
        Model::Torn => json!(["torn", null, null]),
    }
}

fn text(body: &Value, key: &str) -> String {
    body[key].as_str().unwrap().to_owned()
}
