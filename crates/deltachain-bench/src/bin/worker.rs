//! Holds a pair of checkpoints and encodes and decodes it on request, for the comparison with
//! rivals: `worker METHOD BASE TARGET THREADS`. It understands the same requests as
//! `bench/rivals/worker.py`, one per line: `encode`, `prepare`, `decode` and `exact`. It answers
//! each with a line of JSON. For the comparison with Python there are two more: `apply`, which
//! hashes the base and makes a new state, and `follow CHAIN`, which prepares version 1 of a chain
//! for a copy in memory at version 0.
//!
//! Methods:
//!
//! - `compact` and `direct` hash the base, make a link, and apply it to other memory, with all
//!   digests.
//! - The other methods make links like a publisher that keeps the head: the base's digests are
//!   known. `known` is a compact link that is applied like `compact`.
//! - `compact-in-place`, `local-in-place` and `direct-in-place` apply to the only copy of the base
//!   and verify everything first: `compact` with the library's memory and the digests of all
//!   tensors that it touches, the others with caller-provided buffers and the sums of the changes.
//!   Their answers to `decode` include the seconds of the exchange alone, during which the copy
//!   cannot be used.
//! - `patches` writes the values of a direct link into the base in place. This verifies the link's
//!   segments, not the result.

use std::io::Write;
use std::time::Instant;

use deltachain::StateSums;
use deltachain::files::SafetensorsState;
use deltachain::memory::{Alone, Changes, LentState};
use deltachain::tensor::{MemoryState, State, TensorInfo};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateTable, apply, diff};
use deltachain_bench::{Result, output};
use deltachain_store::{Follower, FollowerOptions, Store, StoreOptions};
use serde_json::json;

/// Method of applying a link.
#[derive(Clone, Copy)]
enum Way {
    ToOtherMemory,
    /// Writes the lanes of the link to caller-provided buffers.
    InPlace,
    /// Writes the differences between base and target to memory of the library.
    Patched,
    Unproven,
}

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [method, base, target, threads] = arguments.as_slice() else {
        return Err("usage: worker METHOD BASE TARGET THREADS".into());
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.parse()?)
        .build_global()?;
    let (profile, way) = match method.as_str() {
        "compact" | "known" => (Profile::Compact, Way::ToOtherMemory),
        "local-in-place" => (Profile::Local, Way::InPlace),
        "direct" => (Profile::Direct, Way::ToOtherMemory),
        "compact-in-place" => (Profile::Compact, Way::Patched),
        "direct-in-place" => (Profile::Direct, Way::InPlace),
        "patches" => (Profile::Direct, Way::Unproven),
        _ => return Err(format!("there is no method `{method}`").into()),
    };
    let empty = MemoryState::new();
    let base = MemoryState::copy_of(&SafetensorsState::open(base)?)?;
    let target = MemoryState::copy_of(&SafetensorsState::open(target)?)?;
    // A subscriber knows these of the version that it holds, a publisher of the last version that
    // it published.
    let (table, sums) = StateSums::hashed(&base, &())?;
    let mut room = MemoryState::zeros(target.tensors())?;
    let mut engine = Engine::of(if let Way::InPlace = way {
        &base
    } else {
        &empty
    });
    let is_hashed = matches!(method.as_str(), "compact" | "direct");
    // Compact links are verified with all digests, so they need no sums.
    let has_sums = method.ends_with("-in-place") && profile != Profile::Compact;
    let mut link = Vec::new();

    let mut answers = std::io::stdout();
    writeln!(answers, "{}", json!({ "ready": true }))?;
    for request in std::io::stdin().lines() {
        let start = Instant::now();
        let request = request?;
        let answer = match request.trim() {
            "encode" => {
                link.clear();
                let known = (!is_hashed).then_some(&table.digests);
                let options = DiffOptions::default()
                    .profile(profile)
                    .base_digests(known)
                    .sums(has_sums);
                diff(&base, &target, &options, &mut link)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "bytes": link.len() })
            }
            "prepare" => {
                match way {
                    Way::InPlace => engine.hold(&base),
                    Way::ToOtherMemory | Way::Patched | Way::Unproven => {
                        output::copy(&base, &room.writer())?;
                    }
                }
                json!({ "ready": true })
            }
            "decode" => {
                let pause = match way {
                    Way::InPlace => Some(engine.follow(&link, &table, &sums)?),
                    Way::Patched => Some(patch(&link, &table, &mut room)?),
                    Way::ToOtherMemory | Way::Unproven => {
                        decode(&link, &table, way, &base, &mut room)?;
                        None
                    }
                };
                json!({ "seconds": start.elapsed().as_secs_f64(), "pause": pause })
            }
            "apply" => {
                drop(apply(
                    &base,
                    &LinkReader::open(&link, &Limits::unlimited())?,
                )?);
                json!({ "seconds": start.elapsed().as_secs_f64() })
            }
            request if request.starts_with("follow ") => {
                let store = Store::open(
                    request.trim_start_matches("follow "),
                    StoreOptions::default(),
                )?;
                let mut subscriber = Follower::in_memory(store, FollowerOptions::default())?;
                let mut first = subscriber
                    .prepare(Some(0), &())?
                    .ok_or("version 0 is held already")?;
                subscriber.apply(&mut first)?;
                let start = Instant::now();
                let second = subscriber.prepare(Some(1), &())?;
                let seconds = start.elapsed().as_secs_f64();
                drop(second);
                json!({ "seconds": seconds })
            }
            "exact" => {
                let is_exact = match way {
                    Way::InPlace => engine.holds(&target),
                    Way::ToOtherMemory | Way::Patched | Way::Unproven => {
                        output::holds(&room, &target)
                    }
                };
                json!({ "exact": is_exact })
            }
            other => return Err(format!("there is no request `{other}`").into()),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

/// Turns `room`, which holds the base, into the target.
fn decode(
    link: &[u8],
    table: &StateTable,
    way: Way,
    base: &MemoryState,
    room: &mut MemoryState,
) -> Result {
    let link = LinkReader::open(link, &Limits::unlimited())?;
    if let Way::Unproven = way {
        let infos = room.tensors().to_vec();
        let output = room.writer();
        for patch in link.patches(|_| true, None) {
            output::patch(&output, &infos, &patch?)?;
        }
        return Ok(());
    }
    let mut replay = Replay::new(table.clone());
    replay.push(&link)?;
    replay.run(base, &room.writer(), &())?;
    Ok(())
}

/// Turns `weights`, which hold the base, into the target; returns the seconds of the exchange.
fn patch(link: &[u8], table: &StateTable, weights: &mut MemoryState) -> Result<f64> {
    let link = LinkReader::open(link, &Limits::unlimited())?;
    let mut replay = Replay::new(table.clone());
    replay.push(&link)?;
    let mut patches = replay.patches(weights, weights, u64::MAX, &())?;
    let pause = Instant::now();
    patches.stage(weights)?.write()?;
    Ok(pause.elapsed().as_secs_f64())
}

/// The only copy of a model, in buffers as an engine has it.
struct Engine(Vec<(TensorInfo, Vec<u8>)>);

impl Engine {
    fn of(state: &MemoryState) -> Self {
        Self(
            state
                .iter()
                .map(|(info, data)| (info.clone(), data.to_vec()))
                .collect(),
        )
    }

    /// Copies the bytes of a state with the same tensors.
    fn hold(&mut self, state: &MemoryState) {
        self.0
            .iter_mut()
            .zip(state.iter())
            .for_each(|((_, own), (_, data))| own.copy_from_slice(data));
    }

    fn holds(&self, state: &MemoryState) -> bool {
        self.0
            .iter()
            .map(|(info, data)| (info, data.as_slice()))
            .eq(state.iter())
    }

    /// Applies a link in place; returns the seconds of the exchange.
    fn follow(&mut self, link: &[u8], table: &StateTable, sums: &StateSums) -> Result<f64> {
        let tensors = self
            .0
            .iter_mut()
            .map(|(info, data)| (info.clone(), data.as_mut_slice()));
        let link = LinkReader::open(link, &Limits::unlimited())?;
        let mut memory = LentState::new(tensors)?;
        let mut replay = Replay::new(table.clone()).with_sums(sums.clone());
        replay.push(&link)?;
        let mut changes = Changes::new(u64::MAX);
        replay.in_place(&mut memory, &mut changes, &Alone, &())?;
        let pause = Instant::now();
        changes.write(&mut memory)?;
        Ok(pause.elapsed().as_secs_f64())
    }
}
