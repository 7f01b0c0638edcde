//! The workers of a server say which version it holds, and `status` reports exactly that: after
//! kills, refusals, broken connections, and changes by other clients.
#![cfg(unix)]

use std::fs;
use std::time::Duration;

use deltachain::tensor::Digest;
use deltachain_engines::{Pause, Servers};
use serde_json::{Value, json};

use crate::engines::stand_in::{self, Engine, Fate, Model};
use crate::engines::{
    Process, VLLM, arguments, chain, events, follower, healthy, name, publish, start, status, until,
};
use crate::support::{Folder, Ran, bytes_file};

/// Polls once, which updates the server to the newest version or fails.
fn once(folder: &Folder, engine: &str, server: &Engine) -> Ran {
    poll_once(folder, engine, server, "100")
}

/// Like [`once`], with the given pause between two polls.
fn poll_once(folder: &Folder, engine: &str, server: &Engine, poll: &str) -> Ran {
    let servers = [server];
    let mut arguments = arguments(engine, &servers);
    *arguments
        .iter_mut()
        .find(|argument| **argument == "0.01")
        .unwrap() = poll;
    folder.run(&[&arguments[..], &["--once"]].concat())
}

/// The event of the one poll, which failed.
fn failure(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(1), "{ran:?}");
    events(ran)
        .into_iter()
        .find(|event| event["result"] == "failed")
        .unwrap()
}

/// True if the server serves the version that the directory holds, and names it.
fn serves(server: &Engine, folder: &Folder) -> bool {
    let held = status(folder).1;
    let version = held["version"].as_u64().unwrap();
    let model = Model::Version(version, held["state"].as_str().unwrap().to_owned());
    let process = &server.state().process;
    process.workers == [model.clone(), model]
        && process.weight_version == name(version, &held["state"])
        && !process.paused
        && process.session.is_none()
}

#[test]
fn a_server_that_was_started_again_is_brought_to_the_version() {
    let folder = chain(1);
    let server = Engine::start();
    let follow = start(&folder, "vllm", &[&server], &[]);
    server.wait_for("/resume");
    server.state().process = stand_in::Process::default();
    server.wait_for("/resume");
    assert!(follow.end());
    assert_eq!(server.names(), VLLM.repeat(2));
    assert!(serves(&server, &folder));
}

#[test]
fn what_a_killed_follower_has_left_open_is_ended() {
    for (called, in_session) in [
        ("/start_weight_update", false),
        ("/update_weights", true),
        ("/finish_weight_update", true),
        ("/resume", false),
    ] {
        let folder = chain(1);
        let server = Engine::start();
        server.befalls(called, Fate::Hangs);
        let follow = start(&folder, "vllm", &[&server], &[]);
        server.wait_for(called);
        drop(follow);
        assert_eq!(
            server.state().process.session.is_some(),
            in_session,
            "{called}"
        );
        let found = status(&folder);
        assert!(
            found.0 == Some(1) && found.1["servers"][0]["changing"] == true,
            "{called}: {found:?}"
        );
        server.names();
        let ran = once(&folder, "vllm", &server);
        assert_eq!(ran.code, Some(0), "{called}: {ran:?}");
        assert_eq!(server.names(), VLLM, "{called}");
        assert!(serves(&server, &folder), "{called}");
    }
}

#[test]
fn another_version_of_the_same_number_is_not_taken_for_ours() {
    let folder = chain(1);
    let other = Folder::new();
    other.run(&["init", "chain"]).good();
    publish(&other, 100);
    let server = Engine::start();
    until(&folder, "vllm", "0", &[&server]).good();
    until(&other, "vllm", "0", &[&server]).good();
    assert!(serves(&server, &other));
    server.names();
    once(&folder, "vllm", &server).good();
    assert_eq!(server.names(), VLLM);
    assert!(serves(&server, &folder));
}

#[test]
fn a_server_that_somebody_has_paused_goes_on() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "vllm", "0", &[&server]).good();
    server.state().process.paused = true;
    once(&folder, "vllm", &server).good();
    assert!(serves(&server, &folder));
}

/// A server at version 0 that downloads the chain itself and never finishes preparing the next
/// version.
fn downloading() -> (Folder, Engine) {
    let folder = chain(1);
    let server = Engine::start();
    server.state().downloads = true;
    let ran = folder.run(
        &[
            &arguments("vllm", &[&server])[..],
            &["--no-tensors", "--until", "0"],
        ]
        .concat(),
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    server.state().preparing = u64::MAX;
    server.forget();
    (folder, server)
}

#[test]
fn a_server_that_serves_no_version_is_not_waited_for() {
    let spoilt: [fn(&mut stand_in::Process); 3] = [
        |process| process.paused = true,
        |process| process.workers = [Model::Other, Model::Other],
        |process| "mine".clone_into(&mut process.weight_version),
    ];
    std::thread::scope(|scope| {
        for spoil in spoilt {
            scope.spawn(move || {
                let (folder, server) = downloading();
                spoil(&mut server.state().process);
                let follow = start(&folder, "vllm", &[&server], &["--no-tensors"]);
                server.wait_for("deltachain_is_ready");
                // While the follower waits for the server, `status` reports its state.
                let (code, held) = status(&folder);
                assert_eq!(code, Some(1), "{held}");
                server.wait_for("/resume");
                assert!(follow.end());
                assert!(serves(&server, &folder));
            });
        }
    });
}

#[test]
fn a_server_that_serves_a_version_is_waited_for() {
    let (folder, server) = downloading();
    publish(&folder, 1);
    let follow = start(&folder, "vllm", &[&server], &["--no-tensors"]);
    (0..5).for_each(|_| server.wait_for("deltachain_is_ready"));
    assert_eq!(status(&folder).1["servers"][0]["version"], 0);
    server.state().preparing = 0;
    server.wait_for("/resume");
    assert!(follow.end());
    assert!(serves(&server, &folder));
}

#[test]
fn weights_that_somebody_has_changed_are_brought_back() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "vllm", "0", &[&server]).good();
    let held = server.state().process.workers[0].clone();
    for changed in [[Model::Other, Model::Other], [held, Model::Other]] {
        server.state().process.workers = changed;
        once(&folder, "vllm", &server).good();
        assert!(serves(&server, &folder));
    }
    // The client that finishes an update may name any version.
    server.state().process.weight_version = "mine".to_owned();
    once(&folder, "vllm", &server).good();
    assert!(serves(&server, &folder));
}

/// The two programs that update a vLLM server: `deltachain follow`, and a trainer.
enum Face {
    Follower(Folder),
    Trainer(Servers),
}

impl Face {
    /// One of each, with a server of its own at version 0.
    fn both() -> [(Self, Engine); 2] {
        let servers = [Engine::start(), Engine::start()];
        let trainer = Servers::new(
            &[servers[1].url.clone()],
            "{}",
            "trainer".to_owned(),
            Duration::from_mins(1),
            Pause::default(),
        );
        let trainer = trainer.unwrap();
        trainer
            .begin(&|_, _| panic!("nothing to wait for"))
            .unwrap();
        let faces = [Self::Follower(Folder::new()), Self::Trainer(trainer)];
        if let Self::Follower(folder) = &faces[0] {
            folder.run(&["init", "chain"]).good();
        }
        for (face, server) in faces.iter().zip(&servers) {
            face.publish(0);
            assert_eq!(face.bring(server, 0), None);
            server.names();
        }
        let [follower, trainer] = faces;
        let [first, second] = servers;
        [(follower, first), (trainer, second)]
    }

    fn publish(&self, version: u8) {
        if let Self::Follower(folder) = self {
            publish(folder, version);
        }
    }

    /// Updates a server to a version. On failure, returns the reason and whether the server stays
    /// paused.
    fn bring(&self, server: &Engine, version: u8) -> Option<(String, bool)> {
        match self {
            Self::Follower(folder) => {
                let ran = once(folder, "vllm", server);
                (ran.code != Some(0)).then(|| {
                    let failed = failure(&ran);
                    (
                        failed["message"].to_string(),
                        failed["stays_paused"] == true,
                    )
                })
            }
            Self::Trainer(servers) => {
                let digest = format!("{version:064}");
                let brought = servers
                    .start()
                    .and_then(|()| servers.update(version.into(), &digest));
                let brought =
                    brought.and_then(|()| servers.finish(&name(version.into(), &json!(digest))));
                let brought = brought.and_then(|()| servers.resume());
                brought.err().map(|failures| {
                    (
                        format!("{:#}", failures[0].error),
                        failures[0].stays_paused(),
                    )
                })
            }
        }
    }
}

/// Requests to a vLLM server after a failure, besides the question which version it holds.
const RECOVERY: [&str; 3] = ["deltachain_end_update", "/update_weight_version", "/resume"];

/// The version that the server serves after the recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    Before,
    New,
    /// None: the server stays paused.
    Nothing,
}

/// The table in integrations/docs/engines.md, "What is asked of a server of vLLM".
const RULES: [(&str, &[&str], Serves); 10] = [
    ("deltachain_state", &[], Serves::Before),
    ("/weight_info", &[], Serves::Before),
    ("/init_weight_transfer_engine", &RECOVERY, Serves::Before),
    ("/pause?mode=keep", &RECOVERY, Serves::Before),
    ("deltachain_end_update", &RECOVERY, Serves::Before),
    ("/update_weight_version", &RECOVERY, Serves::Before),
    ("/start_weight_update", &RECOVERY, Serves::Before),
    ("/update_weights", &RECOVERY, Serves::Before),
    ("/finish_weight_update", &RECOVERY, Serves::New),
    ("/resume", &[], Serves::Nothing),
];

/// Updates a server to version 1, which fails as described, and then succeeds in a second attempt.
fn fails(face: &Face, server: &Engine, failed: &str, told: &[&str], serves: Serves) {
    let before = server.state().process.workers[0].clone();
    face.publish(1);
    let (text, stays_paused) = face.bring(server, 1).unwrap();
    assert!(text.contains("as the test said"), "{text}");
    let sent = VLLM
        .iter()
        .position(|name| *name == failed)
        .map_or(0, |at| at + 1);
    assert_eq!(server.names(), [&VLLM[..sent], told].concat(), "{failed}");
    let held = server.state().process.workers[0].clone();
    let paused = server.state().process.paused;
    assert_eq!(
        (paused, stays_paused),
        (serves == Serves::Nothing, paused),
        "{failed}"
    );
    match serves {
        Serves::Before => assert_eq!(held, before, "{failed}"),
        Serves::New => assert!(matches!(held, Model::Version(1, _)), "{failed}"),
        Serves::Nothing => {}
    }
    if let (false, Model::Version(version, state)) = (paused, held) {
        assert_eq!(
            server.state().process.weight_version,
            name(version, &json!(state)),
            "{failed}"
        );
        if let (Face::Follower(folder), false) = (face, told.is_empty()) {
            let (code, found) = status(folder);
            assert!(
                code == Some(1) && found["problems"][0].as_str().unwrap().contains(&server.url),
                "{found}"
            );
            assert_eq!(
                (
                    &found["servers"][0]["version"],
                    &found["servers"][0]["state"]
                ),
                (&json!(version), &json!(state))
            );
        }
    }
    assert_eq!(face.bring(server, 1), None, "{failed}");
    let process = &server.state().process;
    let [Model::Version(1, state), other] = &process.workers else {
        panic!("{failed}: {:?}", process.workers)
    };
    assert_eq!(
        (&process.workers[0], process.paused, process.session),
        (other, false, None),
        "{failed}"
    );
    assert_eq!(process.weight_version, name(1, &json!(state)), "{failed}");
}

#[test]
fn what_follows_from_a_request_that_fails() {
    for (failed, told, serves) in RULES {
        for (face, server) in Face::both() {
            server.befalls(failed, Fate::Refused);
            fails(&face, &server, failed, told, serves);
        }
    }
}

#[test]
fn what_follows_from_a_recovery_that_fails() {
    // Request that fails, number of times that it succeeds before, requests that the server
    // receives, and the version that it serves.
    let rules: [(&str, usize, &[&str], Serves); 4] = [
        ("deltachain_end_update", 1, &RECOVERY, Serves::Before),
        ("deltachain_state", 1, &RECOVERY[..1], Serves::Nothing),
        ("/update_weight_version", 1, &RECOVERY[..2], Serves::Nothing),
        ("/resume", 0, &RECOVERY, Serves::Nothing),
    ];
    for (failed, times, told, serves) in rules {
        for (face, server) in Face::both() {
            server.befalls("/update_weights", Fate::Refused);
            (0..times).for_each(|_| server.befalls(failed, Fate::Fine));
            server.befalls(failed, Fate::Refused);
            fails(&face, &server, "/update_weights", told, serves);
        }
    }
}

#[test]
fn what_is_torn_stays_paused_until_it_is_whole() {
    for (face, server) in Face::both() {
        server.befalls("/update_weights", Fate::Torn);
        fails(
            &face,
            &server,
            "/update_weights",
            &RECOVERY[..1],
            Serves::Nothing,
        );
    }
}

/// The table in integrations/docs/engines.md, "What is asked of SGLang, and for adapters": requests
/// that fail, requests that the server receives afterwards, and whether it stays paused.
#[test]
fn what_follows_from_a_request_to_other_engines_that_fails() {
    let rules: [(&str, &[&str], &[&str], bool); 8] = [
        ("sglang", &["/model_info"], &[], false),
        (
            "sglang",
            &["/pause_generation"],
            &["/continue_generation"],
            false,
        ),
        (
            "sglang",
            &["/pause_generation", "/continue_generation"],
            &["/continue_generation"],
            true,
        ),
        ("sglang", &["/update_weights_from_disk"], &[], true),
        ("sglang", &["/continue_generation"], &[], true),
        ("vllm-lora", &["/v1/models"], &[], false),
        ("vllm-lora", &["/v1/load_lora_adapter"], &[], false),
        ("vllm-lora", &["/v1/unload_lora_adapter"], &[], false),
    ];
    for (engine, failed, told, stays_paused) in rules {
        let folder = chain(1);
        let server = Engine::start();
        // The adapters of versions 0 and 1 stay loaded, and version 2 unloads that of version 0.
        for version in 1..3 {
            once(&folder, engine, &server).good();
            publish(&folder, version);
        }
        server.names();
        failed
            .iter()
            .for_each(|name| server.befalls(name, Fate::Refused));
        let ran = failure(&once(&folder, engine, &server));
        assert!(
            ran["message"]
                .as_str()
                .unwrap()
                .contains("as the test said"),
            "{ran}"
        );
        assert_eq!(ran["stays_paused"], stays_paused, "{engine} {failed:?}");
        let calls = server.names();
        let after = calls
            .iter()
            .rposition(|name| *name == failed[0])
            .map_or(0, |at| at + 1);
        assert_eq!(calls[after..], *told, "{engine} {failed:?}: {calls:?}");
        assert_eq!(
            server.state().process.paused,
            stays_paused && failed.len() == 1,
            "{engine} {failed:?}"
        );
        once(&folder, engine, &server).good();
        assert!(!server.state().process.paused, "{engine} {failed:?}");
        let adapters: Vec<_> = server.state().process.adapters.keys().cloned().collect();
        let expected: &[&str] = if engine == "sglang" {
            &[]
        } else {
            &["model@1", "model@2"]
        };
        assert_eq!(adapters, expected, "{failed:?}");
    }
}

#[test]
fn a_server_of_sglang_that_somebody_has_paused_goes_on() {
    let folder = chain(1);
    let server = Engine::start();
    until(&folder, "sglang", "0", &[&server]).good();
    server.names();
    server.state().process.paused = true;
    once(&folder, "sglang", &server).good();
    assert!(!server.state().process.paused && !server.names().is_empty());
}

#[test]
fn a_version_that_does_not_fit_is_not_sent() {
    for engine in ["vllm", "sglang"] {
        let folder = chain(1);
        let server = Engine::start();
        for (own, why) in [
            (
                &[("a", &[1, 2][..])][..],
                "has the shape [2] in its model, and [1] in the version",
            ),
            (&[("a", &[1]), ("b", &[2])], r#"the version has no \"b\""#),
            (
                &[],
                r#"the version has \"a\", which its model does not have"#,
            ),
        ] {
            folder.write("own/model.safetensors", bytes_file(own));
            server.state().process.model = folder.at("own").to_str().unwrap().to_owned();
            let failed = failure(&once(&folder, engine, &server)).to_string();
            assert!(
                failed.contains(why) && server.names().is_empty(),
                "{engine}: {failed}"
            );
        }
        folder.write(
            "own/model.safetensors",
            bytes_file(&[("a", &[7]), ("lm_head.weight", &[1])]),
        );
        once(&folder, engine, &server).good();
    }
}

#[test]
fn a_version_that_cannot_be_compared_is_an_event_and_not_sent_to_sglang() {
    for model in ["", "./own", "tiny/not-here", "/not/here"] {
        for (engine, more, is_sent) in [
            ("vllm", &[][..], true),
            ("sglang", &[], false),
            ("sglang", &["--send-unchecked"], true),
        ] {
            let folder = chain(1);
            let server = Engine::start();
            server.state().process.model = model.to_owned();
            if !is_sent {
                let failed = failure(&once(&folder, engine, &server)).to_string();
                assert!(failed.contains("--send-unchecked"), "{engine}: {failed}");
                assert!(server.names().is_empty(), "{engine}");
                continue;
            }
            let more = [more, &["--until", "0"]].concat();
            let ran = folder.run(&[&arguments(engine, &[&server])[..], &more].concat());
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let results: Vec<_> = events(&ran)
                .into_iter()
                .filter(|event| event["event"] == "server")
                .map(|event| event["result"].clone())
                .collect();
            assert_eq!(results, ["unchecked", "updated"], "{engine} {model}");
        }
    }
    let folder = chain(1);
    let server = Engine::start();
    let more = ["--send-unchecked", "--once"];
    let refused = folder.run(&[&arguments("vllm", &[&server])[..], &more].concat());
    assert_eq!(refused.code, Some(2));
}

#[test]
fn what_workers_say_that_does_not_fit_is_not_sent() {
    let (folder, server) = downloading();
    publish(&folder, 1);
    server.state().preparing = 0;
    server.state().why = Some("it has no \"b\"".to_owned());
    server.names();
    let ran = folder.run(
        &[
            &arguments("vllm", &[&server])[..],
            &["--no-tensors", "--once"],
        ]
        .concat(),
    );
    let failed = failure(&ran).to_string();
    assert!(failed.contains("not sent, since it has no"), "{failed}");
    let names = server.names();
    assert!(
        names.iter().all(|name| name == "deltachain_is_ready"),
        "{names:?}"
    );
}

#[test]
fn a_server_that_downloads_another_chain_is_not_paused() {
    let (folder, server) = downloading();
    publish(&folder, 1);
    server.state().preparing = 0;
    server.names();
    let once = |server: &Engine| {
        let more = ["--no-tensors", "--once"];
        folder.run(&[&arguments("vllm", &[server])[..], &more].concat())
    };
    server.state().chain = Some("25b3".repeat(16));
    let failed = failure(&once(&server)).to_string();
    assert!(
        failed.contains("another chain, s3://models/other") && failed.contains("25b325b325b3"),
        "{failed}"
    );
    let names = server.names();
    assert!(
        names.iter().all(|name| name == "deltachain_is_ready"),
        "{names:?}"
    );
    let own = fs::read(folder.at("chain/chain.json")).unwrap();
    server.state().chain = Some(Digest::of_bytes(&own).to_string());
    assert_eq!(once(&server).code, Some(0));
}

#[test]
fn replicas_that_differ_are_updated_together() {
    let folder = chain(1);
    let server = Engine::start();
    once(&folder, "vllm", &server).good();
    // The first replica holds version 0, and the other one does not.
    server.state().process.replica = Some(json!(["other", null, null]));
    server.names();
    once(&folder, "vllm", &server).good();
    assert_eq!(server.names(), VLLM);
    assert!(serves(&server, &folder));
    // One replica cannot take version 1, so the server stays paused.
    publish(&folder, 1);
    server.state().replica_refuses = 1;
    let failed = failure(&once(&folder, "vllm", &server));
    assert_eq!(failed["stays_paused"], true, "{failed}");
    assert!(server.state().process.paused);
    assert!(status(&folder).0 == Some(1));
    once(&folder, "vllm", &server).good();
    assert!(serves(&server, &folder));
}

#[test]
fn a_server_is_paused_when_all_replicas_are_ready() {
    let (folder, server) = downloading();
    publish(&folder, 1);
    (server.state().preparing, server.state().replica_preparing) = (0, 2);
    let follow = start(&folder, "vllm", &[&server], &["--no-tensors"]);
    server.wait_for("deltachain_are_ready");
    assert!(!server.state().process.paused);
    server.wait_for("/resume");
    assert!(follow.end() && server.state().replica_preparing == 0);
}

#[test]
fn a_server_that_answers_late_and_downloads_the_chain_is_updated() {
    let folder = chain(1);
    let server = Engine::start();
    server.state().downloads = true;
    server.state().is_down = true;
    let follow = start(&folder, "vllm", &[&server], &[]);
    // The follower keeps tensors, since no server tells it that they are not needed.
    while status(&folder).1["servers"][0]["failures"].as_u64() == Some(0)
        || status(&folder).1["version"].is_null()
    {}
    server.state().is_down = false;
    server.wait_for("/resume");
    assert!(follow.end() && serves(&server, &folder));
    let inits: Vec<_> = std::mem::take(&mut server.state().calls)
        .into_iter()
        .filter(|(name, _)| name == "/init_weight_transfer_engine")
        .map(|(_, body)| body["init_info"]["host_copy"].clone())
        .collect();
    assert!(inits.iter().all(Value::is_null), "{inits:?}");
}

#[test]
fn a_server_with_another_package_is_left_alone() {
    let folder = chain(1);
    let server = Engine::start();
    server.state().protocol = Some(1);
    let failed = failure(&once(&folder, "vllm", &server)).to_string();
    assert!(failed.contains("install the same version"), "{failed}");
    assert!(server.names().is_empty());
    server.state().protocol = None;
    once(&folder, "vllm", &server).good();
}

#[test]
fn a_failure_is_said_once_and_does_not_pause_the_server() {
    let (folder, server) = downloading();
    server.state().preparing = 0;
    server.state().why = Some("it has no \"b\"".to_owned());
    server.names();
    publish(&folder, 1);
    let attempts = server.state().attempts;
    let servers = [&server];
    let arguments = [&arguments("vllm", &servers)[..], &["--no-tensors"]].concat();
    let (follow, heard) = Process::heard(&folder, &arguments);
    server.wait_until(|state| state.attempts >= attempts + 4);
    server.state().why = None;
    server.wait_for("/resume");
    assert!(follow.end());
    let names = server.names();
    let pauses = names.iter().filter(|name| name.starts_with("/pause"));
    assert_eq!(pauses.count(), 1, "{names:?}");
    let failed = heard.iter().filter(|event| event["result"] == "failed");
    assert_eq!(failed.count(), 1);
}

#[test]
fn a_server_that_cannot_prepare_a_version_in_time_is_not_paused() {
    let (folder, server) = downloading();
    server.state().why = Some("IO: the store is silent".to_owned());
    // It serves no version, so it is not waited for long.
    server.state().process.workers = [Model::Other, Model::Other];
    publish(&folder, 1);
    server.names();
    let more = ["--no-tensors", "--once"];
    let ran = folder.run(&[&arguments("vllm", &[&server])[..], &more].concat());
    let failed = failure(&ran).to_string();
    assert!(
        failed.contains("not sent, since IO: the store is silent"),
        "{failed}"
    );
    let names = server.names();
    assert!(
        names.iter().all(|name| name == "deltachain_is_ready"),
        "{names:?}"
    );
}

#[test]
fn a_server_that_took_a_version_is_compared_with_it() {
    for engine in ["vllm", "sglang"] {
        let folder = chain(1);
        let server = Engine::start();
        // The server's files are not on this machine.
        server.state().model_at_start = "tiny/not-here".to_owned();
        server.restart();
        let more = if engine == "sglang" {
            &["--send-unchecked"][..]
        } else {
            &[]
        };
        let follow = start(&folder, engine, &[&server], more);
        server.wait_until(|state| {
            let name = &state.process.weight_version;
            name.starts_with("0@") && !state.process.paused
        });
        server.names();
        folder.write("model.safetensors", bytes_file(&[("a", &[1, 2])]));
        let publish = ["publish", "chain", "model.safetensors"];
        folder.run(&publish).good();
        let why = "has the shape [1] in its model, and [2] in the version";
        while !status(&folder).1["problems"].to_string().contains(why) {}
        let names = server.names();
        assert!(
            !names.iter().any(|name| name.starts_with("/pause")),
            "{engine}: {names:?}"
        );
        assert!(follow.end());
    }
}

#[test]
fn why_a_server_cannot_prepare_a_version_is_told() {
    let (folder, server) = downloading();
    server.state().why = Some("IO: the store is silent".to_owned());
    publish(&folder, 1);
    let follow = start(&folder, "vllm", &[&server], &["--no-tensors"]);
    (0..5).for_each(|_| server.wait_for("deltachain_is_ready"));
    let (code, held) = status(&folder);
    assert!(
        code == Some(1) && held["problems"].to_string().contains("the store is silent"),
        "{held}"
    );
    (server.state().why, server.state().preparing) = (None, 0);
    server.wait_for("/resume");
    assert!(follow.end());
    assert_eq!(status(&folder).1["servers"][0]["failures"], 0);
}

#[test]
fn a_server_without_a_version_says_what_it_said_before() {
    for (said, says) in [
        ("default", "default"),
        ("mine", "mine"),
        ("changing", "unknown"),
        ("7@0123456789ab", "unknown"),
    ] {
        let folder = chain(1);
        let server = Engine::start();
        server.state().process.weight_version = said.to_owned();
        server.befalls("/update_weights", Fate::Refused);
        assert_eq!(
            failure(&once(&folder, "vllm", &server))["stays_paused"],
            false
        );
        let process = &server.state().process;
        assert_eq!(
            (process.weight_version.as_str(), process.paused),
            (says, false)
        );
    }
}

#[test]
fn what_may_hold_two_versions_stays_paused_until_it_holds_one() {
    for (engine, called, fate) in [
        ("vllm", "/update_weights", Fate::Torn),
        ("sglang", "/update_weights_from_disk", Fate::Refused),
    ] {
        let folder = chain(1);
        let server = Engine::start();
        server.befalls(called, fate);
        assert_eq!(
            failure(&once(&folder, engine, &server))["stays_paused"],
            true,
            "{engine}"
        );
        let found = status(&folder).1["servers"][0].clone();
        assert!(
            server.state().process.paused && found["paused"] == true,
            "{engine}: {found}"
        );
        assert_eq!(
            (&found["version"], &found["changing"]),
            (&Value::Null, &json!(true)),
            "{engine}"
        );
        // A new process does not rely on the version that the server itself names.
        server.state().process.weight_version = name(0, &status(&folder).1["state"]);
        once(&folder, engine, &server).good();
        assert!(!server.state().process.paused, "{engine}");
        assert_eq!(
            healthy(&folder, engine, &[&server])["servers"][0]["version"],
            0,
            "{engine}"
        );
    }
}

#[test]
fn who_does_not_say_what_he_holds_stays_paused() {
    let folder = chain(1);
    let server = Engine::start();
    // After the timeout, the follower asks the server which version it holds.
    server.befalls("/update_weights", Fate::Hangs);
    let follow = start(&folder, "vllm", &[&server], &["--server-timeout", "2"]);
    server.wait_for("/update_weights");
    server.state().hang.insert("deltachain_state");
    server.wait_for("deltachain_state");
    assert!(follow.end());
    assert!(server.state().process.paused);
    assert_eq!(status(&folder).1["servers"][0]["paused"], true);
    server.state().hang.clear();
    once(&folder, "vllm", &server).good();
    assert!(serves(&server, &folder));
}

#[test]
fn it_says_that_it_is_changing_while_it_loads() {
    let folder = chain(1);
    let server = Engine::start();
    // An update counts as healthy if the server has had a version before.
    for healthy in [false, true] {
        if healthy {
            until(&folder, "vllm", "0", &[&server]).good();
            publish(&folder, 1);
        }
        server.forget();
        server.befalls("/update_weights", Fate::Hangs);
        let follow = start(&folder, "vllm", &[&server], &[]);
        server.wait_for("/update_weights");
        assert_eq!(server.state().process.weight_version, "changing");
        let (code, found) = status(&folder);
        assert_eq!(
            (code, &found["servers"][0]["changing"]),
            (Some(i32::from(!healthy)), &json!(true)),
            "{found}"
        );
        drop(follow);
    }
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    for broken in ["/weight_info", "/is_paused", "deltachain_state"]
        .iter()
        .chain(&VLLM)
    {
        for (face, server) in Face::both() {
            server.befalls(broken, Fate::Broken);
            face.publish(1);
            let failed = face.bring(&server, 1);
            let once = [
                "/start_weight_update",
                "/update_weights",
                "/finish_weight_update",
            ];
            let may_be_repeated = !once.contains(broken);
            assert_eq!(failed.is_none(), may_be_repeated, "{broken}: {failed:?}");
            let calls = server.names();
            let times = calls.iter().filter(|name| name == broken).count();
            assert!(
                times <= if may_be_repeated { 2 } else { 1 },
                "{broken}: {calls:?}"
            );
            // The model is whole, whether or not the server carried out the request.
            assert!(!server.state().process.paused, "{broken}");
            assert_eq!(face.bring(&server, 1), None, "{broken}");
        }
    }
}

#[test]
fn a_server_that_dies_in_an_update_is_brought_to_it_all_the_same() {
    for called in VLLM {
        for (face, server) in Face::both() {
            server.befalls(called, Fate::Dies);
            face.publish(1);
            // The first attempt may succeed: the server may have died before it had anything to
            // lose.
            face.bring(&server, 1);
            assert_eq!(face.bring(&server, 1), None, "{called}");
            let process = &server.state().process;
            assert!(
                matches!(process.workers[0], Model::Version(1, _)) && !process.paused,
                "{called}"
            );
        }
    }
}

#[test]
fn a_second_follower_is_refused_until_the_first_one_is_gone() {
    let folder = chain(1);
    let other = Folder::new();
    other.run(&["init", "chain"]).good();
    publish(&other, 100);
    let server = Engine::start();
    let first = start(&folder, "vllm", &[&server], &[]);
    server.wait_for("/resume");
    server.names();
    let refused = failure(&once(&other, "vllm", &server));
    let text = refused["message"].as_str().unwrap();
    assert!(
        text.contains(&follower(&folder)) && text.contains("48 s"),
        "{text}"
    );
    assert_eq!(server.names(), [""; 0], "the server gets no other request");
    let (code, found) = status(&other);
    assert_eq!(
        (code, &found["servers"][0]["version"]),
        (Some(1), &Value::Null),
        "{found}"
    );
    assert!(
        found["problems"][0]
            .as_str()
            .unwrap()
            .contains(&follower(&folder)),
        "{found}"
    );

    // A killed follower does not give up its lease, so the second one waits until the lease has
    // expired.
    drop(first);
    let second = start(&other, "vllm", &[&server], &[]);
    server.wait_for("deltachain_state");
    assert_eq!(server.names(), [""; 0]);
    server.state().process.owner = None;
    server.wait_for("/resume");
    assert!(serves(&server, &other));
    // A follower gives the server up when it gets the signal to end.
    assert!(second.end());
    once(&folder, "vllm", &server).good();
    assert!(serves(&server, &folder));
}

#[test]
fn a_follower_says_for_how_long_it_brings_a_server() {
    for (poll, lease) in [("0.01", "90"), ("100", "200")] {
        let folder = chain(1);
        let server = Engine::start();
        poll_once(&folder, "vllm", &server, poll).good();
        assert_eq!(
            server.state().leases,
            ["0", lease].map(str::to_owned).into(),
            "{poll}"
        );
    }
}

#[test]
fn a_server_that_hangs_or_is_not_there_holds_up_no_other() {
    let folder = chain(1);
    let good = Engine::start();
    let hanging = Engine::start();
    let gone = Engine::gone();
    hanging.state().hang = ["/pause?mode=keep"].into();
    let follow = start(
        &folder,
        "vllm",
        &[&hanging, &gone, &good],
        &["--server-timeout", "0.2"],
    );
    good.wait_for("/resume");
    publish(&folder, 1);
    good.wait_for("/resume");
    publish(&folder, 2);
    good.wait_for("/resume");
    hanging.state().hang.clear();
    hanging.wait_for("/finish_weight_update");
    hanging.wait_for("/resume");
    assert!(follow.end());
    assert!(
        serves(&good, &folder) && serves(&hanging, &folder),
        "the second server catches up at once"
    );
    let (code, status) = status(&folder);
    assert_eq!(
        (code, &status["servers"][1]["version"]),
        (Some(1), &Value::Null),
        "{status}"
    );
}

#[test]
fn a_server_is_not_left_paused_at_the_end() {
    let folder = chain(1);
    let server = Engine::start();
    server.state().hang = ["/update_weights"].into();
    let follow = start(&folder, "vllm", &[&server], &["--server-timeout", "0.5"]);
    server.wait_for("/update_weights");
    assert!(follow.end());
    assert!(!server.state().process.paused);
}

#[test]
fn people_read_what_a_server_holds() {
    let folder = chain(1);
    let server = Engine::start();
    server.befalls("/update_weights", Fate::Torn);
    assert!(failure(&once(&folder, "vllm", &server))["stays_paused"] == true);
    let line = |start: &str| {
        let text = folder.run(&["status", "model"]).stdout;
        text.lines()
            .find(|line| line.starts_with(start))
            .unwrap()
            .to_owned()
    };
    let head = format!("server    {}: ", server.url);
    assert_eq!(
        line("server"),
        format!("{head}version unknown; paused, and may hold parts of two versions")
    );
    once(&folder, "vllm", &server).good();
    let name = name(0, &status(&folder).1["state"]);
    assert!(
        line("server").starts_with(&format!("{head}version {name}, since ")),
        "{}",
        line("server")
    );
    assert_eq!(
        line("unhealthy"),
        format!(
            "unhealthy: the version of server {} is unknown: no follower is running",
            server.url
        )
    );
}
