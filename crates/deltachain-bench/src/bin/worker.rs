//! A process that holds a pair of checkpoints and encodes and decodes it on request, for the comparison with rivals:
//! `worker METHOD BASE TARGET THREADS`. It understands the same requests as `bench/rivals/worker.py`, one per line:
//! `encode`, `prepare`, `decode` and `exact`. It answers each by a line of JSON. For the comparison with Python there are
//! also `apply`, which hashes the base and makes a new state, and `follow CHAIN`, which prepares version 1 of a chain for
//! a copy in memory at version 0.
//!
//! Methods:
//!
//! - `compact` and `direct` hash the base, make a link, and apply it to other memory, with all digests.
//! - `known` makes a compact link like a publisher that keeps the head: the base's digests are known, and the changes for
//!   the base are found, too. It is applied like the others.
//! - `compact-in-place` and `direct-in-place` apply to the only copy of the base in place: everything is proven and
//!   prepared first. Answers of `decode` also have the seconds of the exchange alone, when nobody can use the copy.
//! - `patches` puts the values of a direct link into the base in place. This proves the link's segments, not the result.

use std::io::Write;
use std::time::Instant;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{MemoryState, State, StateDigests};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateTable, apply, diff};
use deltachain_bench::{Result, output};
use deltachain_store::{Follower, FollowerOptions, Store, StoreOptions};
use serde_json::json;

/// How a link is applied.
#[derive(Clone, Copy)]
enum Way {
    ToOtherMemory,
    InPlace,
    Unproven,
}

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [method, base, target, threads] = arguments.as_slice() else {
        return Err("usage: worker METHOD BASE TARGET THREADS".into());
    };
    rayon::ThreadPoolBuilder::new().num_threads(threads.parse()?).build_global()?;
    let (profile, way) = match method.as_str() {
        "compact" | "known" => (Profile::Compact, Way::ToOtherMemory),
        "direct" => (Profile::Direct, Way::ToOtherMemory),
        "compact-in-place" => (Profile::Compact, Way::InPlace),
        "direct-in-place" => (Profile::Direct, Way::InPlace),
        "patches" => (Profile::Direct, Way::Unproven),
        _ => return Err(format!("there is no method `{method}`").into()),
    };
    let base = MemoryState::copy_of(&SafetensorsState::open(base)?)?;
    let target = MemoryState::copy_of(&SafetensorsState::open(target)?)?;
    // What a subscriber knows of the version that it holds, and a publisher of the version that it published last.
    let digests = StateDigests::of(&base, &())?;
    let table = StateTable { tensors: base.tensors().to_vec(), digests };
    let mut room = MemoryState::zeros(target.tensors())?;
    let mut link = Vec::new();

    let mut answers = std::io::stdout();
    writeln!(answers, "{}", json!({ "ready": true }))?;
    for request in std::io::stdin().lines() {
        let start = Instant::now();
        let request = request?;
        let answer = match request.trim() {
            "encode" => {
                link.clear();
                let known = (method == "known").then_some(&table.digests);
                let options = DiffOptions::default().profile(profile).base_digests(known);
                diff(&base, &target, &options, &mut link)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "bytes": link.len() })
            }
            "prepare" => {
                output::copy(&base, &room.writer())?;
                json!({ "ready": true })
            }
            "decode" => {
                let pause = decode(&link, &table, way, &base, &mut room)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "pause": pause })
            }
            "apply" => {
                drop(apply(&base, &LinkReader::open(&link, &Limits::unlimited())?)?);
                json!({ "seconds": start.elapsed().as_secs_f64() })
            }
            request if request.starts_with("follow ") => {
                let store = Store::open(request.trim_start_matches("follow "), StoreOptions::default())?;
                let mut subscriber = Follower::in_memory(store, FollowerOptions::default())?;
                let mut first = subscriber.prepare(Some(0), &())?.ok_or("version 0 is held already")?;
                subscriber.apply(&mut first)?;
                let start = Instant::now();
                let second = subscriber.prepare(Some(1), &())?;
                let seconds = start.elapsed().as_secs_f64();
                drop(second);
                json!({ "seconds": seconds })
            }
            "exact" => json!({ "exact": output::holds(&room, &target) }),
            other => return Err(format!("there is no request `{other}`").into()),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

/// Makes `room`, which holds the base, hold the target; returns the seconds for which it held neither, if that is not all of the time.
fn decode(
    link: &[u8],
    table: &StateTable,
    way: Way,
    base: &MemoryState,
    room: &mut MemoryState,
) -> Result<Option<f64>> {
    let link = LinkReader::open(link, &Limits::unlimited())?;
    if let Way::Unproven = way {
        let infos = room.tensors().to_vec();
        let output = room.writer();
        for patch in link.patches(|_| true, None) {
            output::patch(&output, &infos, &patch?)?;
        }
        return Ok(None);
    }
    let mut replay = Replay::new(table.clone());
    replay.push(&link)?;
    if let Way::ToOtherMemory = way {
        replay.run(base, &room.writer(), &())?;
        return Ok(None);
    }
    let mut patches = replay.patches(&*room, &*room, u64::MAX, &())?;
    let pause = Instant::now();
    patches.fit(room)?.apply()?;
    Ok(Some(pause.elapsed().as_secs_f64()))
}
