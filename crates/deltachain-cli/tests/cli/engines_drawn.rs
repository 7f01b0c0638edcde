//! Random sequences of faults of a server and its followers, with calls of `status` in between: the
//! server serves what `status` says, or no follower has polled it since. `DELTACHAIN_ENGINE_STORMS`
//! sets the number of sequences, `DELTACHAIN_ENGINE_SEED` the first seed.
#![cfg(unix)]

use std::collections::VecDeque;
use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use deltachain_testkit::Random;
use serde_json::{Value, json};

use crate::engines::stand_in::{self, Engine, Fate, Model};
use crate::engines::{Process, VLLM, follower_in, name};
use crate::support::{Folder, bytes_file};

/// Maximum number of events in one sequence.
const EVENTS: u64 = 10;

/// Number of sequences that run in parallel. They spend most of their time waiting.
const AT_ONCE: usize = 4;

/// Number of polls after which `status` agrees with the server: one that began before the change,
/// one that began after it, and one whose request shows that the second has ended. A failed attempt
/// asks the workers once more.
const LOOKS: u64 = 4;

/// Upper limit of every wait, also on a busy machine.
const LONGEST: Duration = Duration::from_mins(1);

/// Time to wait for a call that may never arrive.
const SHORT: Duration = Duration::from_millis(500);

/// Requests of one poll.
const LOOK: [&str; 3] = ["deltachain_state", "/weight_info", "/is_paused"];

/// Directories of the two followers.
const DIRECTORIES: [&str; 2] = ["one", "two"];

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

#[test]
fn a_server_serves_what_status_says() {
    let first = setting("DELTACHAIN_ENGINE_SEED", 1);
    let seeds: VecDeque<u64> = (first..first + setting("DELTACHAIN_ENGINE_STORMS", 50)).collect();
    let seeds = Mutex::new(seeds);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().unwrap().pop_front() else {
                        return;
                    };
                    Storm::new(seed).run();
                }
            });
        }
    });
}

/// One random sequence.
struct Storm {
    seed: u64,
    random: Random,
    folder: Folder,
    server: Engine,
    followers: [Option<Process>; 2],
    /// The chains that the followers follow, and the number of versions of each chain.
    chains: [usize; 2],
    versions: [u8; 2],
    /// Log of events, printed when a sequence fails.
    story: Vec<String>,
}

/// The version that is served, or reported as served: number, state digest, and whether the server
/// is paused.
type Served = Option<(u64, String, bool)>;

impl Drop for Storm {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { seed, story, .. } = self;
            eprintln!("DELTACHAIN_ENGINE_SEED={seed} DELTACHAIN_ENGINE_STORMS=1: {story:#?}");
        }
    }
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let chains = [0, usize::from(random.below(2) == 0)];
        let folder = Folder::new();
        let server = Engine::start();
        let mut storm = Self {
            seed,
            random,
            folder,
            server,
            followers: [None, None],
            chains,
            versions: [0, 0],
            story: Vec::new(),
        };
        for chain in 0..=chains[1] {
            storm.folder.run(&["init", &format!("chain{chain}")]).good();
            storm.publish(chain);
        }
        storm
    }

    fn run(mut self) {
        self.start(0);
        for _ in 0..=self.random.below(EVENTS) {
            // In the first case the next event happens at once.
            match self.random.below(4) {
                0 => {}
                1 => self.status_is_right(),
                _ => self.settles(),
            }
            self.event();
        }
        self.status_is_right();
        self.ends();
    }

    fn says(&mut self, text: String) {
        self.story.push(text);
    }

    fn choose<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[usize::try_from(self.random.below(names.len() as u64)).unwrap()]
    }

    fn publish(&mut self, chain: usize) {
        let version = self.versions[chain];
        self.versions[chain] += 1;
        // The versions of the two chains have the same numbers but different bytes.
        let byte = version + if chain == 0 { 0 } else { 100 };
        self.folder
            .write("model.safetensors", bytes_file(&[("a", &[byte])]));
        self.folder
            .run(&["publish", &format!("chain{chain}"), "model.safetensors"])
            .good();
    }

    fn start(&mut self, at: usize) {
        if self.followers[at].is_none() {
            let chain = format!("chain{}", self.chains[at]);
            let more = [
                "--poll",
                "0.02",
                "--server-timeout",
                "0.3",
                "--server",
                &self.server.url,
            ];
            let follow = ["follow", &chain, DIRECTORIES[at], "--engine", "vllm"];
            self.followers[at] = Some(Process::start(&self.folder, &[&follow[..], &more].concat()));
        }
    }

    fn event(&mut self) {
        let at = usize::from(self.random.below(3) == 0);
        match self.random.below(15) {
            0 | 1 => {
                self.says("publish".to_owned());
                (0..=self.chains[1]).for_each(|chain| self.publish(chain));
            }
            2..=4 => {
                let mut called = self.call();
                let fates = [
                    Fate::Refused,
                    Fate::Hangs,
                    Fate::Broken,
                    Fate::Dies,
                    Fate::Torn,
                ];
                let fate = fates[usize::try_from(self.random.below(5)).unwrap()];
                if fate == Fate::Torn {
                    called = "/update_weights";
                }
                self.says(format!("{called}: {fate:?}"));
                self.server.befalls(called, fate);
                // Most faults happen during an update.
                self.publish(self.chains[at]);
            }
            5 | 6 => self.killed(at),
            7 => {
                self.says(format!("follower {at} is there"));
                self.start(at);
            }
            8 => {
                self.says(format!("follower {at} is told to end"));
                let _ = self.followers[at].take().map(Process::end);
            }
            9 => {
                self.says(format!(
                    "follower {at} takes over from one that is not seen"
                ));
                self.followers[1 - at] = None;
                self.server.state().process.owner = None;
                self.start(at);
            }
            10 => {
                let paused = self.random.below(2) == 0;
                self.says(format!("paused: {paused}"));
                self.server.state().process.paused = paused;
            }
            11 | 12 => {
                let rank = usize::try_from(self.random.below(2)).unwrap();
                self.says(format!(
                    "weights changed by somebody else, from rank {rank}"
                ));
                self.server
                    .state()
                    .process
                    .workers
                    .iter_mut()
                    .skip(rank)
                    .for_each(|worker| *worker = Model::Other);
            }
            13 => {
                let state = &mut self.server.state();
                state.process = stand_in::Process::default();
                state.is_down = !state.is_down;
                self.story
                    .push(format!("the server is down: {}", state.is_down));
            }
            _ => {
                self.says("the lease is over, and it says something else".to_owned());
                let process = &mut self.server.state().process;
                process.owner = None;
                "mine".clone_into(&mut process.weight_version);
            }
        }
    }

    fn call(&mut self) -> &'static str {
        match self.random.below(3) {
            0 => self.choose(&LOOK),
            _ => self.choose(&VLLM),
        }
    }

    /// Kills a follower while it makes a request, which the server may or may not carry out.
    fn killed(&mut self, at: usize) {
        if self.followers[at].is_none() {
            return;
        }
        let called = self.call();
        let done = self.random.below(2) == 0;
        self.says(format!("follower {at} is killed at {called}, done: {done}"));
        if !done {
            self.server.befalls(called, Fate::Hangs);
        }
        self.server.forget();
        self.publish(self.chains[at]);
        self.server.wait_for_within(called, SHORT);
        self.followers[at] = None;
    }

    fn status(&self, at: usize) -> Value {
        let ran = self.folder.run(&["status", DIRECTORIES[at], "--json"]);
        if ran.code == Some(2) {
            Value::Null
        } else {
            ran.json()
        }
    }

    /// The version that the server serves, or `None` if its workers do not hold one.
    fn served(&self) -> Served {
        let process = &self.server.state().process;
        match &process.workers {
            [Model::Version(version, state), other] if process.workers[0] == *other => {
                Some((*version, state.clone(), process.paused))
            }
            _ => None,
        }
    }

    /// Checks for each directory that `status` reports what the server serves, or that it does not
    /// know.
    fn status_is_right(&mut self) {
        for (at, directory) in DIRECTORIES.iter().enumerate() {
            let began = Instant::now();
            let follower = follower_in(&self.folder, directory);
            let looks = || {
                self.server
                    .state()
                    .looks
                    .get(&follower)
                    .copied()
                    .unwrap_or_default()
            };
            let mut since = looks();
            let mut before = self.served();
            loop {
                let said = self.status(at);
                let now = looks();
                let served = self.served();
                let claimed = claimed(&said);
                if claimed.is_none() || claimed == before || claimed == served {
                    break;
                }
                if served == before {
                    assert!(now <= since + LOOKS, "served: {before:?}, but {said}");
                } else {
                    (since, before) = (now, served);
                }
                assert!(
                    began.elapsed() < LONGEST,
                    "no follower polls: served: {before:?}, but {said}"
                );
            }
        }
    }

    /// Checks that, when nothing happens for a while, a follower brings the server to its newest
    /// version and `status` reports it.
    fn settles(&mut self) {
        self.says("it settles".to_owned());
        if self.followers.iter().all(Option::is_none) {
            self.start(0);
        }
        {
            let running = |at: &usize| self.followers[*at].is_some();
            let running: Vec<_> = (0..2)
                .filter(running)
                .map(|at| follower_in(&self.folder, DIRECTORIES[at]))
                .collect();
            let state = &mut self.server.state();
            (state.fates, state.is_down) = (Vec::new(), false);
            // The lease of a killed follower expires.
            state
                .process
                .owner
                .take_if(|owner| !running.contains(owner));
        }
        let began = Instant::now();
        while !(0..2).any(|at| self.followers[at].is_some() && self.is_well(at)) {
            assert!(
                began.elapsed() < LONGEST,
                "the server does not settle: {} {}",
                self.status(0),
                self.status(1)
            );
        }
        assert!(!self.server.state().has_served_two);
    }

    /// True if a follower reports its newest version, and the server serves that version and names
    /// it.
    fn is_well(&self, at: usize) -> bool {
        let said = self.status(at);
        let newest = u64::from(self.versions[self.chains[at]] - 1);
        let Some(claimed) =
            claimed(&said).filter(|(version, ..)| *version == newest && said["healthy"] == true)
        else {
            return false;
        };
        let says = name(newest, &json!(claimed.1));
        self.served() == Some(claimed) && self.server.state().process.weight_version == says
    }

    /// Ends the sequence with only the first follower running.
    fn ends(&mut self) {
        self.says("the end".to_owned());
        if let Some(second) = self.followers[1].take() {
            let _ = (self.random.below(2) == 0).then(|| second.end());
        }
        self.start(0);
        self.settles();
        assert!(self.followers[0].take().unwrap().end());
    }
}

/// The version that the server serves according to `status`, or `None` if `status` says that it
/// does not know.
fn claimed(said: &Value) -> Served {
    let server = &said["servers"][0];
    if said["following"] != true || server["changing"] != false {
        return None;
    }
    let version = server["version"].as_u64()?;
    Some((
        version,
        server["state"].as_str().unwrap().to_owned(),
        server["paused"] == true,
    ))
}
