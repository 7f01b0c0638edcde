//! `follow --listen`: the answers to a load balancer and its requests to servers, and the effect of
//! an update on running requests.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engines::stand_in::{Engine, Fate, Model};
use crate::engines::{Process, VLLM, arguments, chain, name, publish, status, until};
use crate::support::Folder;

/// Upper limit of every wait, also on a busy machine.
const LONGEST: Duration = Duration::from_mins(1);

/// Sends a request by HTTP. Returns the status and the JSON of the answer, or `None` if there is no
/// complete answer.
fn request(address: SocketAddr, line: &str, body: &str) -> Option<(u16, Value)> {
    let mut connection = TcpStream::connect(address).ok()?;
    send(&mut connection, line, body)?;
    receive(connection)
}

fn send(connection: &mut TcpStream, line: &str, body: &str) -> Option<()> {
    let length = body.len();
    write!(
        connection,
        "{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .ok()
}

/// Reads an answer up to its content length.
fn receive(mut connection: TcpStream) -> Option<(u16, Value)> {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    loop {
        let all = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = all.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .unwrap()
                .1;
            if body.len() >= length.parse().unwrap() {
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                return Some((status, serde_json::from_str(body).unwrap_or_default()));
            }
        }
        match connection.read(&mut part) {
            Ok(count @ 1..) => text.extend_from_slice(&part[..count]),
            _ => return None,
        }
    }
}

/// Asks a server for a completion.
fn complete(address: SocketAddr, tokens: u64) -> Option<(u16, Value)> {
    request(
        address,
        "POST /v1/completions",
        &json!({ "max_tokens": tokens }).to_string(),
    )
}

fn address(server: &Engine) -> SocketAddr {
    server.url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// A follower that tells over HTTP whether its servers are ready.
struct Follower {
    process: Process,
    events: Receiver<Value>,
    ready: SocketAddr,
}

impl Follower {
    fn start(folder: &Folder, servers: &[&Engine], more: &[&str]) -> Self {
        Self::of(folder, "vllm", servers, more)
    }

    fn of(folder: &Folder, engine: &str, servers: &[&Engine], more: &[&str]) -> Self {
        let mut follow = arguments(engine, servers);
        if more.contains(&"--poll") {
            let at = follow
                .iter()
                .position(|argument| *argument == "--poll")
                .unwrap();
            follow.drain(at..at + 2);
        }
        follow.extend(["--listen", "0"].iter().chain(more));
        let (process, events) = Process::heard(folder, &follow);
        let [_, _, remark] = [(); 3].map(|()| events.recv().unwrap());
        let text = remark["text"].as_str().unwrap();
        let ready = text
            .strip_prefix("serving http://")
            .unwrap()
            .strip_suffix("/ready")
            .unwrap()
            .parse()
            .unwrap();
        Self {
            process,
            events,
            ready,
        }
    }

    /// The follower's current answer, or `None` if it does not answer.
    fn answer(&self) -> Option<(u16, Value)> {
        request(self.ready, "GET /ready", "")
    }

    /// Polls until the answer has this status, and returns it.
    fn becomes(&self, status: u16) -> Value {
        let began = Instant::now();
        loop {
            let (found, answer) = self.answer().unwrap();
            assert_eq!(answer["ready"], found == 200, "{answer}");
            if found == status {
                return answer;
            }
            assert!(began.elapsed() < LONGEST, "{answer}");
        }
    }

    /// Polls until all servers are ready and have this version.
    fn brings(&self, version: u64) {
        let began = Instant::now();
        while !self.becomes(200)["servers"]
            .as_array()
            .unwrap()
            .iter()
            .all(|server| server["version"] == version)
        {
            assert!(began.elapsed() < LONGEST);
        }
    }

    /// Reason why its only server is not ready.
    fn reason(&self) -> String {
        self.becomes(503)["servers"][0]["reason"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Waits for an event.
    fn event(&self, is_meant: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = self.events.recv().unwrap();
            if is_meant(&event) {
                return event;
            }
        }
    }
}

/// Runs `status`; returns its exit code and whether the servers are ready.
fn ready_by_status(folder: &Folder, most: &str) -> (Option<i32>, Value) {
    let ran = folder.run(&["status", "model", "--max-lag", most, "--json"]);
    (ran.code, ran.json()["ready"].clone())
}

/// A small load balancer. Before each request it asks whether the servers are ready, and sends the
/// request to one of them.
struct Balancer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    servers: Vec<Engine>,
    ready: SocketAddr,
    next: AtomicUsize,
    /// Held from the question until the request has reached a server, so that no server restarts
    /// between the two.
    gate: Mutex<()>,
}

impl Balancer {
    fn start(servers: Vec<Engine>, ready: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            servers,
            ready,
            next: AtomicUsize::new(0),
            gate: Mutex::new(()),
        });
        let answering = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&answering);
                thread::spawn(move || shared.answer(client));
            }
        });
        Self { address, shared }
    }

    /// Restarts a server, which comes back at once with the model that it was started with.
    fn restart(&self, at: usize) {
        let _gate = self.shared.gate.lock().unwrap();
        self.shared.servers[at].restart();
    }
}

impl Shared {
    fn answer(&self, mut client: TcpStream) {
        let mut request = Vec::new();
        let mut part = [0; 4096];
        while !request.ends_with(b"}") {
            request.extend_from_slice(match client.read(&mut part) {
                Ok(count @ 1..) => &part[..count],
                _ => return,
            });
        }
        let (status, body) = self.ask(&request).unwrap_or((502, Value::Null));
        let body = body.to_string();
        write!(
            client,
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok();
    }

    fn ask(&self, bytes: &[u8]) -> Option<(u16, Value)> {
        let gate = self.gate.lock().unwrap();
        let (200, _) = request(self.ready, "GET /ready", "")? else {
            return Some((503, Value::Null));
        };
        let server = &self.servers[self.next.fetch_add(1, Ordering::Relaxed) % self.servers.len()];
        let before = server.state().arrived;
        let mut connection = TcpStream::connect(address(server)).ok()?;
        connection.write_all(bytes).ok()?;
        server.wait_until(|state| state.arrived > before);
        drop(gate);
        receive(connection)
    }
}

/// Runs `work` while clients send requests through a balancer as fast as they can. `work` can wait
/// for an answer of a server. No answer may come from a model outside the chain.
fn under_load(balancer: &Balancer, work: impl FnOnce(&dyn Fn())) {
    let (ends, (answered, answers)) = (AtomicBool::new(false), channel());
    thread::scope(|scope| {
        for _ in 0..2 {
            let answered = answered.clone();
            let ends = &ends;
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let (status, answer) = complete(balancer.address, 2).unwrap();
                    if status == 200 {
                        answered
                            .send(answer["choices"][0]["made_by"].clone())
                            .unwrap();
                    }
                }
            });
        }
        let check = |made: &Value| {
            let tokens = made.as_array().unwrap();
            assert!(
                tokens.iter().all(|by| by.as_str().unwrap().contains('@')),
                "a request reached a server that is not ready: {made}"
            );
        };
        let wait = || {
            answers.try_iter().for_each(|made| check(&made));
            check(&answers.recv_timeout(LONGEST).unwrap());
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&wait)));
        ends.store(true, Ordering::Relaxed);
        // After a panic, a restart ends the clients that wait for a paused server.
        if done.is_err() {
            balancer.shared.servers.iter().for_each(Engine::restart);
        }
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        answers.try_iter().for_each(|made| check(&made));
    });
}

#[test]
fn a_balancer_sends_nothing_to_a_server_that_was_started_again() {
    let folder = chain(1);
    let servers = vec![Engine::start(), Engine::start()];
    // With polls this rare the follower asks the server only when the balancer asks, so the test
    // measures exactly those questions.
    let follow = Follower::start(
        &folder,
        &servers.iter().collect::<Vec<_>>(),
        &["--poll", "100"],
    );
    let balancer = Balancer::start(servers, follow.ready);
    under_load(&balancer, |wait_for_answer| {
        for round in 0..20 {
            wait_for_answer();
            balancer.restart(round % 2);
            follow.becomes(200);
        }
        wait_for_answer();
    });
    assert!(follow.process.end());
}

#[test]
fn a_balancer_sends_nothing_to_a_server_that_was_started_again_during_an_update() {
    let folder = chain(1);
    let servers = vec![Engine::start(), Engine::start()];
    let follow = Follower::start(
        &folder,
        &servers.iter().collect::<Vec<_>>(),
        &["--server-timeout", "100"],
    );
    let balancer = Balancer::start(servers, follow.ready);
    under_load(&balancer, |wait_for_answer| {
        for round in 0..20_u8 {
            wait_for_answer();
            let at = usize::from(round % 2);
            let called = VLLM[usize::from(round) % VLLM.len()];
            let server = &balancer.shared.servers[at];
            server.forget();
            server.befalls(called, Fate::Hangs);
            publish(&folder, round + 1);
            server.wait_for(called);
            balancer.restart(at);
            follow.becomes(200);
        }
        wait_for_answer();
    });
    assert!(follow.process.end());
}

#[test]
fn before_the_first_look_and_without_an_answer_no_server_is_ready() {
    let folder = chain(1);
    let server = Engine::start();
    server.state().hang.insert("deltachain_state");
    let follow = Follower::start(&folder, &[&server], &["--server-timeout", "0.2"]);
    assert_eq!(follow.answer().unwrap().0, 503);
    server.wait_for("deltachain_state");
    assert_eq!(
        follow.reason(),
        "it does not answer with a version of the chain"
    );
    server.state().hang.clear();
    let answer = follow.becomes(200);
    assert_eq!(
        answer,
        json!({ "ready": true, "servers": [{ "server": server.url, "version": 0, "ready": true }] })
    );
    let event = follow.event(|event| event["event"] == "readiness");
    assert_eq!(
        (&event["ready"], &event["servers"][0]["version"]),
        (&json!(true), &json!(0))
    );

    // The answer changes at once, although the last poll succeeded.
    server.state().is_down = true;
    let (code, answer) = follow.answer().unwrap();
    assert_eq!(
        (code, &answer["servers"][0]["version"]),
        (503, &Value::Null),
        "{answer}"
    );
    let event = follow.event(|event| event["event"] == "readiness");
    assert_eq!(
        (&event["ready"], &event["servers"][0]["ready"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(ready_by_status(&folder, "10m"), (Some(1), json!(false)));
    server.state().is_down = false;
    follow.becomes(200);
    assert_eq!(request(follow.ready, "POST /ready", "").unwrap().0, 405);
    assert_eq!(request(follow.ready, "GET /health", "").unwrap().0, 404);
}

#[test]
fn what_is_torn_or_stays_paused_is_not_ready() {
    for (called, fate, hangs) in [
        ("/update_weights", Some(Fate::Torn), None),
        ("/resume", None, Some("/resume")),
    ] {
        let folder = chain(1);
        let server = Engine::start();
        let follow = Follower::start(&folder, &[&server], &["--server-timeout", "0.2"]);
        follow.becomes(200);
        fate.iter().for_each(|fate| server.befalls(called, *fate));
        // The server cannot be repaired before the test has seen it.
        if fate.is_some() {
            for _ in 0..10_000 {
                server.befalls(called, Fate::Refused);
            }
        }
        server.state().hang.extend(hangs);
        publish(&folder, 1);
        follow.event(|event| event["stays_paused"] == true);
        assert_eq!(follow.answer().unwrap().0, 503, "{called}");
        assert_eq!(
            ready_by_status(&folder, "10m"),
            (Some(1), json!(false)),
            "{called}"
        );
        server.state().fates.clear();
        server.state().hang.clear();
        follow.brings(1);
    }
}

#[test]
fn a_server_that_goes_on_with_an_older_version_is_ready_until_that_is_stale() {
    for (most, is_ready) in [("10m", true), ("1", true), ("0", false)] {
        let folder = chain(1);
        let server = Engine::start();
        let follow = Follower::start(&folder, &[&server], &["--max-lag", most]);
        follow.becomes(200);
        (0..10_000).for_each(|_| server.befalls("/update_weights", Fate::Refused));
        publish(&folder, 1);
        let failed = follow.event(|event| event["result"] == "failed");
        assert_eq!(
            (&failed["version"], &failed["stays_paused"]),
            (&json!(1), &json!(false))
        );
        let (code, answer) = follow.answer().unwrap();
        assert_eq!(
            (code == 200, &answer["servers"][0]["version"]),
            (is_ready, &json!(0)),
            "{answer}"
        );
        // `status` reports a problem in both cases.
        assert_eq!(ready_by_status(&folder, most), (Some(1), json!(is_ready)));
        if !is_ready {
            assert!(
                follow.reason().contains("1 versions behind"),
                "{}",
                follow.reason()
            );
        }
        server.state().fates.clear();
        follow.brings(1);
    }
}

#[test]
fn without_polls_of_the_chain_servers_become_stale() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "vllm", "0", &[&server]).good();
    let mut record: Value = serde_json::from_slice(&folder.read("model/status.json")).unwrap();
    let commits = [folder.at("chain/commits"), folder.at("commits")];
    fs::rename(&commits[0], &commits[1]).unwrap();
    fs::write(&commits[0], "not a directory").unwrap();
    // By the recorded time of the last successful poll, the server is still fresh.
    let follow = Follower::start(&folder, &[&server], &[]);
    follow.brings(0);
    assert!(follow.process.end());
    record["versions"][0]["newest"] = json!("2026-01-31T12:00:00Z");
    folder.write("model/status.json", record.to_string());
    let follow = Follower::start(&folder, &[&server], &[]);
    let is_stale =
        |reason: &str| reason.contains("it was the newest") && reason.contains("more than 600 s");
    let began = Instant::now();
    while !is_stale(&follow.reason()) {
        assert!(began.elapsed() < LONGEST);
    }
    fs::remove_file(&commits[0]).unwrap();
    fs::rename(&commits[1], &commits[0]).unwrap();
    follow.becomes(200);
}

#[test]
fn a_version_of_another_chain_is_not_ready() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "vllm", "0", &[&server]).good();
    let other = Model::Version(0, "f".repeat(64));
    server.state().process.workers = [other.clone(), other];
    server.state().process.weight_version = "0@ffffffffffff".to_owned();
    server.state().hang.insert("/update_weights");
    server.forget();
    let follow = Follower::start(&folder, &[&server], &["--server-timeout", "100"]);
    server.wait_for("/update_weights");
    assert_eq!(
        follow.reason(),
        "the directory never held its version, 0@ffffffffffff"
    );
    assert_eq!(ready_by_status(&folder, "0"), (Some(1), json!(false)));
}

#[test]
fn during_an_update_a_server_is_ready_if_its_requests_wait() {
    for (mode, code) in [("keep", 200), ("wait", 503), ("abort", 503)] {
        let folder = chain(1);
        let server = Engine::start();
        let follow = Follower::start(&folder, &[&server], &["--pause", mode]);
        follow.becomes(200);
        server.forget();
        server.befalls("/update_weights", Fate::Hangs);
        publish(&folder, 1);
        server.wait_for("/update_weights");
        let (found, answer) = follow.answer().unwrap();
        assert_eq!(
            (found, &answer["servers"][0]["version"]),
            (code, &json!(0)),
            "{mode}: {answer}"
        );
        assert_eq!(ready_by_status(&folder, "10m").1, code == 200, "{mode}");
        server.restart();
        follow.brings(1);
    }
}

#[test]
fn a_follower_that_is_killed_or_ends_makes_no_server_ready() {
    let folder = chain(1);
    let server = Engine::start();
    let follow = Follower::start(&folder, &[&server], &[]);
    follow.becomes(200);
    let ready = follow.ready;
    assert_eq!(ready_by_status(&folder, "10m"), (Some(0), json!(true)));
    drop(follow);
    assert_eq!(request(ready, "GET /ready", ""), None);
    assert_eq!(ready_by_status(&folder, "10m"), (Some(1), json!(false)));

    // The follower waits for the running update, and reports that it is not ready before it leaves
    // the server.
    let follow = Follower::start(&folder, &[&server], &["--server-timeout", "100"]);
    follow.becomes(200);
    server.forget();
    server.befalls("/update_weights", Fate::Hangs);
    publish(&folder, 1);
    server.wait_for("/update_weights");
    assert_eq!(follow.answer().unwrap().0, 200);
    follow.process.terminate();
    assert_eq!(follow.reason(), "no follower is running");
    assert!(server.state().process.owner.is_some());
    let ready = follow.ready;
    server.restart();
    assert!(follow.process.ended());
    assert_eq!(
        (
            server.state().process.owner.clone(),
            request(ready, "GET /ready", "")
        ),
        (None, None)
    );
}

#[test]
fn without_its_port_nothing_is_followed() {
    let folder = chain(1);
    let server = Engine::start();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let servers = [&server];
    let follow = [&arguments("vllm", &servers)[..], &["--listen", &address]].concat();
    let ran = folder.run(&follow);
    assert!(
        ran.code == Some(1) && ran.stdout.contains(&format!("--listen {address}")),
        "{ran:?}"
    );
    assert!(server.state().looks.is_empty() && !folder.at("model/servers.json").exists());
    for (more, text) in [
        (vec!["--listen", "0", "--max-lag", "20s"], "--poll"),
        (vec!["--listen", "0", "--max-lag", "soon"], "10m"),
        (vec!["--listen", "0", "--once"], "--once"),
        (vec!["--pause", "hard"], "keep, wait or abort"),
    ] {
        let ran = folder.run(&[&arguments("vllm", &servers)[..], &more].concat());
        assert!(
            ran.code == Some(2) && ran.stdout.contains(text),
            "{more:?}: {ran:?}"
        );
    }
}

#[test]
fn metrics_and_readiness_share_a_port() {
    let folder = chain(1);
    let server = Engine::start();
    let free = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let servers = [&server];
    let follow = [&arguments("vllm", &servers)[..], &["--listen", &free]].concat();
    let (process, events) = Process::heard(&folder, &follow);
    for page in ["metrics", "healthz", "ready"] {
        assert_eq!(
            events.recv().unwrap()["text"],
            format!("serving http://{free}/{page}")
        );
    }
    let follow = Follower {
        process,
        events,
        ready: free.parse().unwrap(),
    };
    follow.becomes(200);
    follow.event(|event| event["event"] == "readiness");
    let mut connection = TcpStream::connect(follow.ready).unwrap();
    send(&mut connection, "GET /metrics", "").unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    let label = format!("{{server=\"{}\"}}", server.url);
    let proof = "deltachain_proof{proof=\"hashed\"} 1".to_owned();
    for line in [
        "deltachain_ready 1".to_owned(),
        format!("deltachain_server_ready{label} 1"),
        proof,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn other_engines_stay_ready_during_an_update() {
    for (engine, called) in [
        ("sglang", "/update_weights_from_disk"),
        ("vllm-lora", "/v1/load_lora_adapter"),
    ] {
        let folder = chain(1);
        let server = Engine::start();
        let follow = Follower::of(&folder, engine, &[&server], &[]);
        follow.becomes(200);
        server.forget();
        server.befalls(called, Fate::Hangs);
        publish(&folder, 1);
        server.wait_for(called);
        let (code, answer) = follow.answer().unwrap();
        assert_eq!(
            (code, &answer["servers"][0]["version"]),
            (200, &json!(0)),
            "{engine}: {answer}"
        );
        server.restart();
        assert_eq!(follow.answer().unwrap().0, 503, "{engine}");
        follow.brings(1);
    }
}

/// Runs a request for 4 tokens that has 2 of them when version 1 arrives. Calls `go_on` when the
/// server has been told to pause. Returns the answer.
fn across_an_update(mode: &str, is_newer: bool, go_on: impl FnOnce(&Engine)) -> Value {
    let folder = chain(1);
    let server = Engine::start();
    server.state().is_newer = is_newer;
    let follow = Follower::start(&folder, &[&server], &["--pause", mode]);
    follow.becomes(200);
    server.allow(Some(2));
    let answer = thread::scope(|scope| {
        let asking = scope.spawn(|| complete(address(&server), 4));
        server.wait_until(|state| state.tokens_left == Some(0));
        server.forget();
        publish(&folder, 1);
        server.wait_for(&format!("/pause?mode={mode}"));
        go_on(&server);
        asking.join().unwrap().unwrap()
    });
    server.allow(None);
    follow.brings(1);
    assert_eq!(answer.0, 200);
    answer.1["choices"][0].clone()
}

#[test]
fn a_running_request_goes_on_ends_first_or_ends_at_once() {
    let versions = |answer: &Value| {
        let made = answer["made_by"].as_array().unwrap();
        let versions: Vec<_> = made
            .iter()
            .map(|by| by.as_str().unwrap().split('@').next().unwrap().to_owned())
            .collect();
        versions.concat()
    };
    let kept = across_an_update("keep", false, |server| server.allow(None));
    assert_eq!(
        (versions(&kept).as_str(), &kept["finish_reason"]),
        ("0011", &json!("length"))
    );
    // vLLM names the versions that made the tokens.
    let spans: Vec<_> = kept["weight_versions"].as_array().unwrap().clone();
    let said: Vec<_> = spans
        .iter()
        .map(|span| (span["version"].clone(), span["start"].clone()))
        .collect();
    assert_eq!(
        said,
        [
            (kept["made_by"][0].clone(), json!(0)),
            (kept["made_by"][2].clone(), json!(2))
        ]
    );

    let waited = across_an_update("wait", false, |server| {
        // The follower sends nothing else before the running request has ended.
        assert_eq!(server.state().calls.last().unwrap().0, "/pause?mode=wait");
        server.allow(None);
    });
    assert_eq!(
        (versions(&waited).as_str(), &waited["finish_reason"]),
        ("0000", &json!("length"))
    );

    let aborted = across_an_update("abort", false, |_| {});
    assert_eq!(
        (versions(&aborted).as_str(), &aborted["finish_reason"]),
        ("00", &json!("abort"))
    );
}

#[test]
fn a_request_that_does_not_end_is_waited_for_no_longer_than_the_timeout() {
    let folder = chain(1);
    let server = Engine::start();
    let follow = Follower::start(
        &folder,
        &[&server],
        &["--pause", "wait", "--server-timeout", "0.3"],
    );
    follow.becomes(200);
    server.allow(Some(2));
    thread::scope(|scope| {
        let asking = scope.spawn(|| complete(address(&server), 4));
        server.wait_until(|state| state.tokens_left == Some(0));
        publish(&folder, 1);
        let failed = follow.event(|event| event["result"] == "failed");
        assert_eq!(failed["stays_paused"], false, "{failed}");
        assert!(
            failed["message"]
                .as_str()
                .unwrap()
                .contains("no answer in time"),
            "{failed}"
        );
        server.allow(None);
        assert_eq!(
            asking.join().unwrap().unwrap().1["choices"][0]["finish_reason"],
            "length"
        );
    });
    follow.brings(1);
}

#[test]
fn while_a_newer_vllm_waits_it_refuses_requests_and_is_not_ready() {
    across_an_update("wait", true, |server| {
        assert_eq!(complete(address(server), 1).unwrap().0, 503);
        server.allow(None);
    });
}

#[test]
fn other_engines_pause_as_they_can() {
    let folder = chain(0);
    let server = Engine::start();
    let servers = [&server];
    for (engine, mode, text) in [
        ("sglang", "wait", "cannot wait"),
        ("vllm-lora", "keep", "without a pause"),
    ] {
        let ran = folder.run(
            &[
                &arguments(engine, &servers)[..],
                &["--pause", mode, "--once"],
            ]
            .concat(),
        );
        assert!(
            ran.code == Some(2) && ran.stdout.contains(text),
            "{engine}: {ran:?}"
        );
    }
    for (mode, told) in [("keep", "retract"), ("abort", "abort")] {
        publish(&folder, u8::from(mode == "abort"));
        folder
            .run(
                &[
                    &arguments("sglang", &servers)[..],
                    &["--pause", mode, "--once"],
                ]
                .concat(),
            )
            .good();
        let calls = std::mem::take(&mut server.state().calls);
        assert_eq!(
            calls[0],
            ("/pause_generation".to_owned(), json!({ "mode": told })),
            "{mode}"
        );
    }
    let found = status(&folder).1;
    assert_eq!(
        server.state().process.weight_version,
        name(1, &found["state"])
    );
}
