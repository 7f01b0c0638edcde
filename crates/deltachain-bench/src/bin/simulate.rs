//! Simulates one publisher and many followers in four regions: `simulate [NAME=VALUE ...]`. Without
//! values it prints the table of followers in `docs/scaling.md`; `simulate cost DIFF APPLY` prints
//! the table of costs; `simulate check` compares the simulation with a real publisher and real
//! followers of a throttled store.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltachain::files::SafetensorsState;
use deltachain_bench::simulation::{Outcome, REGIONS, Scene, simulate};
use deltachain_bench::{Result, save, synthetic};
use deltachain_store::{
    Base, Follower, FollowerOptions, PublishOptions, Publisher, Store, StoreOptions, init,
};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

/// Round trips before the first byte of a link arrives, as `check` measures them: listings,
/// documents, the link's parts.
const REQUESTS: f64 = 5.0;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => {
            table();
            Ok(())
        }
        [word] if word == "check" => check(),
        [word, speeds @ ..] if word == "cost" => cost(speeds),
        values => {
            let mut scene = default();
            for value in values {
                set(&mut scene, value)?;
            }
            println!("{HEAD}");
            println!("{}", row(&values.join(" "), &simulate(&scene)));
            Ok(())
        }
    }
}

/// Returns the default scene: 70 billion BF16 parameters, 1 % of which change every five minutes,
/// and four regions around the world.
fn default() -> Scene {
    Scene {
        seed: 1,
        followers: 1000,
        versions: 6,
        period: 300.0,
        link: LINK * 140e9,
        model: 140e9,
        poll: 5.0,
        requests: REQUESTS,
        latency: [0.005, 0.040, 0.090, 0.160],
        // 400, 100, 50 and 50 Gbit/s.
        path: [50e9, 12.5e9, 6.25e9, 6.25e9],
        bucket: 50e9,
        // 25 Gbit/s.
        follower: 3.1e9,
        apply: 8e9,
        mirror: None,
    }
}

fn set(scene: &mut Scene, text: &str) -> Result {
    let (name, value) = text
        .split_once('=')
        .ok_or("values are given as NAME=VALUE")?;
    let number: f64 = value.parse()?;
    match name {
        "seed" => scene.seed = value.parse()?,
        "followers" => scene.followers = value.parse()?,
        "versions" => scene.versions = value.parse()?,
        "period" => scene.period = number,
        "link" => scene.link = number,
        "model" => scene.model = number,
        "poll" => scene.poll = number,
        "requests" => scene.requests = number,
        "bucket" => scene.bucket = number,
        "follower" => scene.follower = number,
        "apply" => scene.apply = number,
        "path" => scene.path = [number; REGIONS],
        "latency" => scene.latency = [number; REGIONS],
        "mirror" => scene.mirror = Some(number),
        _ => return Err(format!("there is no value `{name}`").into()),
    }
    Ok(())
}

const HEAD: &str = "| scene | lag, median | 99 % | last | switches that skip versions | from the bucket | requests/s |\n|---|---:|---:|---:|---:|---:|---:|";

fn row(name: &str, outcome: &Outcome) -> String {
    let lag = |part| format!("{:.1} s", outcome.quantile(part));
    format!(
        "| {name} | {} | {} | {} | {} | {:.2} TB | {:.0} |",
        lag(0.5),
        lag(0.99),
        lag(1.0),
        outcome.skipped,
        outcome.bytes / 1e12,
        outcome.requests
    )
}

fn table() {
    println!("{HEAD}");
    for (size, parameters) in [("7B", 7e9), ("70B", 70e9), ("1T", 1e12)] {
        for followers in [100, 1000, 10_000] {
            let model = 2.0 * parameters;
            let scene = Scene {
                followers,
                model,
                link: LINK * model,
                ..default()
            };
            println!(
                "{}",
                row(&format!("{size}, {followers} followers"), &simulate(&scene))
            );
            let mirrored = Scene {
                mirror: Some(50e9),
                ..scene
            };
            println!(
                "{}",
                row(
                    &format!("{size}, {followers} followers, mirrors"),
                    &simulate(&mirrored)
                )
            );
        }
    }
}

/// Prints the cost of a version by model and nodes: `cost DIFF APPLY`, in GB of the model per
/// second and core.
fn cost(speeds: &[String]) -> Result {
    let [diff, apply] = speeds else {
        return Err("give the speeds of diff and apply".into());
    };
    let (diff, apply): (f64, f64) = (diff.parse()?, apply.parse()?);
    println!(
        "| model | BF16 data | link | nodes | diff | upload | download | apply |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    );
    for (name, parameters) in [("7B", 7e9), ("70B", 70e9), ("1T", 1e12)] {
        for nodes in [1.0, 8.0, 64.0] {
            let model = 2.0 * parameters;
            let cores = nodes * NODE_CORES;
            // Cores share the memory bandwidth of their node, which limits its throughput.
            let seconds =
                |speed: f64| model / (speed * 1e9 * cores).min(nodes * NODE_MEMORY / TRAFFIC);
            let network = LINK * model / (nodes * NODE_NETWORK);
            println!(
                "| {name} | {:.0} GB | {:.2} GB | {nodes} | {:.1} s | {network:.2} s | {network:.2} s | {:.1} s |",
                model / 1e9,
                LINK * model / 1e9,
                seconds(diff),
                seconds(apply),
            );
        }
    }
    Ok(())
}

/// Size of a compact link that changes 1 % of a BF16 model, relative to the model.
const LINK: f64 = 0.0041;
/// A node: its free cores, and the bytes per second of its memory and of its network (25 Gbit/s).
const NODE_CORES: f64 = 16.0;
const NODE_MEMORY: f64 = 200e9;
const NODE_NETWORK: f64 = 3.1e9;
/// Memory traffic per byte of the model: base and target are read, and the result is written.
const TRAFFIC: f64 = 3.0;

/// Parameters of the real run: numbers of followers and versions, and seconds between versions.
const FOLLOWERS: usize = 4;
const VERSIONS: u32 = 4;
const PERIOD: f64 = 6.0;
const POLL: f64 = 0.5;
const MEBIBYTES: u64 = 16;
/// Nanoseconds per byte: 62.5 kB/s.
const PER_BYTE: u32 = 16_000;
const LATENCY: [f64; REGIONS] = [0.05, 0.1, 0.2, 0.4];

/// Runs a publisher and followers on a store in memory, which is throttled for each follower as in
/// its region, and compares their lags with the simulation.
fn check() -> Result {
    let place = tempfile::tempdir()?;
    let pair = synthetic("", MEBIBYTES, 0.01)?;
    let files = [&pair.base, &pair.target]
        .into_iter()
        .zip(["0.safetensors", "1.safetensors"]);
    let states = files
        .map(|(state, name)| {
            save(&place.path().join(name), state)?;
            Ok(SafetensorsState::open(place.path().join(name))?)
        })
        .collect::<Result<Vec<_>>>()?;
    let objects = Arc::new(InMemory::new());
    let store = Store::from_objects(objects.clone(), "chain", StoreOptions::default())?;
    init(&store)?;
    let mut publisher = Publisher::open(store, PublishOptions::default())?;
    publisher.publish(&states[0], Base::Nothing, &())?;

    let start = Instant::now();
    let mut commits = Vec::new();
    let mut links = Vec::new();
    let switches = std::thread::scope(|scope| -> Result<Vec<_>> {
        let followers: Vec<_> = (0..FOLLOWERS)
            .map(|number| {
                let objects = objects.clone();
                let place = place.path();
                scope.spawn(move || {
                    real_follower(objects, place, number, start).map_err(|error| error.to_string())
                })
            })
            .collect();
        for version in 1..=VERSIONS {
            // Version 1 waits until all followers hold version 0.
            let due = Duration::from_secs_f64(PERIOD * f64::from(version));
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            let turn = usize::from(version % 2 == 1);
            let published =
                publisher.publish(&states[turn], Base::State((&states[1 - turn]).into()), &())?;
            commits.push(start.elapsed().as_secs_f64());
            links.extend(
                published
                    .routes
                    .iter()
                    .filter(|route| route.from.is_some())
                    .map(|route| route.bytes),
            );
        }
        let all = followers.into_iter().map(|follower| {
            follower
                .join()
                .map_err(|_| "a follower failed")?
                .map_err(Into::into)
        });
        all.collect()
    })?;
    let mut real: Vec<f64> = switches
        .iter()
        .flatten()
        .filter_map(|&(version, at)| {
            Some(at - commits.get(usize::try_from(version).ok()?.checked_sub(1)?)?)
        })
        .collect();
    real.sort_by(f64::total_cmp);

    let link = f64::from(u32::try_from(links.iter().copied().max().unwrap_or(0))?);
    let bytes: u64 = pair.bytes();
    let scene = Scene {
        followers: FOLLOWERS,
        versions: VERSIONS,
        period: PERIOD,
        link,
        model: f64::from(u32::try_from(bytes)?),
        poll: POLL,
        latency: LATENCY,
        path: [1e12; REGIONS],
        bucket: 1e12,
        follower: 1e9 / f64::from(PER_BYTE),
        apply: 0.3e9,
        ..default()
    };
    let simulated = simulate(&scene);
    for (number, switches) in switches.iter().enumerate() {
        let lags = switches.iter().filter_map(|&(version, at)| {
            Some(at - commits.get(usize::try_from(version).ok()?.checked_sub(1)?)?)
        });
        let lags: Vec<String> = lags.map(|lag| format!("{lag:.2} s")).collect();
        println!(
            "real, round trips of {:.2} s: {}",
            LATENCY[number % REGIONS],
            lags.join(", ")
        );
    }
    println!("{FOLLOWERS} followers, {VERSIONS} versions, links of {link} bytes");
    println!(
        "real:      {} switches, median {:.2} s, last {:.2} s",
        real.len(),
        real[real.len() / 2],
        real[real.len() - 1]
    );
    println!(
        "simulated: {} switches, median {:.2} s, last {:.2} s",
        simulated.lags.len(),
        simulated.quantile(0.5),
        simulated.quantile(1.0)
    );
    Ok(())
}

/// Follows the chain; returns the versions with the times at which the follower switched to them.
fn real_follower(
    objects: Arc<InMemory>,
    place: &Path,
    number: usize,
    start: Instant,
) -> Result<Vec<(u64, f64)>> {
    let directory = place.join(format!("follower-{number}"));
    // Versions repeat, and so do their links: a cache would skip the downloads.
    let options = || {
        let mut options = FollowerOptions::default();
        options = options.cache_bytes(Some(0));
        options
    };
    let open = |objects| {
        Follower::in_directory(
            Store::from_objects(objects, "chain", StoreOptions::default())?,
            &directory,
            options(),
        )
    };
    // Version 0 is downloaded at full speed.
    let mut subscriber = open(objects.clone())?;
    if let Some(prepared) = subscriber.prepare(None, &())? {
        subscriber.apply(prepared)?;
    }
    drop(subscriber);
    let latency = Duration::from_secs_f64(LATENCY[number % REGIONS]);
    let slow = ThrottleConfig {
        wait_get_per_call: latency,
        wait_list_per_call: latency,
        wait_list_with_delimiter_per_call: latency,
        wait_get_per_byte: Duration::from_nanos(u64::from(PER_BYTE)),
        ..ThrottleConfig::default()
    };
    let mut subscriber = open(Arc::new(ThrottledStore::new(objects, slow)))?;
    let mut switches = Vec::new();
    while switches
        .last()
        .is_none_or(|&(version, _)| version < u64::from(VERSIONS))
    {
        match subscriber.prepare(None, &())? {
            Some(prepared) => {
                let switched = subscriber.apply(prepared)?;
                switches.push((switched.version, start.elapsed().as_secs_f64()));
            }
            None => std::thread::sleep(Duration::from_secs_f64(POLL)),
        }
    }
    Ok(switches)
}
