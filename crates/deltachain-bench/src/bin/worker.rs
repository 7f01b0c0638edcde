//! A process that holds a pair of checkpoints and encodes and decodes it on request, for the comparison with rivals:
//! `worker METHOD BASE TARGET THREADS`. Speaks what `bench/rivals/worker.py` speaks: `encode`, `prepare`, `decode` and
//! `exact`, a line each, answered by a line of JSON.
//!
//! Methods: `compact` and `direct` make and apply a link, with all digests; `patches` makes a direct link and puts its
//! values into the base in place, which proves the link's segments but not the result.

use std::io::Write;
use std::time::Instant;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{MemoryState, State, StateDigests};
use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateTable, diff};
use deltachain_bench::{Result, output};
use serde_json::json;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [method, base, target, threads] = arguments.as_slice() else {
        return Err("usage: worker METHOD BASE TARGET THREADS".into());
    };
    rayon::ThreadPoolBuilder::new().num_threads(threads.parse()?).build_global()?;
    let profile = match method.as_str() {
        "compact" => Profile::Compact,
        "direct" | "patches" => Profile::Direct,
        _ => return Err(format!("there is no method `{method}`").into()),
    };
    let base = MemoryState::copy_of(&SafetensorsState::open(base)?)?;
    let target = MemoryState::copy_of(&SafetensorsState::open(target)?)?;
    // What a publisher and a subscriber know of the version that they hold.
    let digests = StateDigests::of(&base, &())?;
    let mut room = MemoryState::zeros(target.tensors())?;
    let mut link = Vec::new();

    let mut answers = std::io::stdout();
    writeln!(answers, "{}", json!({ "ready": true }))?;
    for request in std::io::stdin().lines() {
        let start = Instant::now();
        let answer = match request?.trim() {
            "encode" => {
                link.clear();
                let options = DiffOptions::default().profile(profile).base_digests(Some(&digests));
                diff(&base, &target, &options, &mut link)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "bytes": link.len() })
            }
            "prepare" => {
                output::copy(&base, &room.writer())?;
                json!({ "ready": true })
            }
            "decode" => {
                let link = LinkReader::open(&link, &Limits::unlimited())?;
                let output = room.writer();
                if method == "patches" {
                    for patch in link.patches(|_| true, None) {
                        output::patch(&output, target.tensors(), &patch?)?;
                    }
                } else {
                    let mut replay =
                        Replay::new(StateTable { tensors: base.tensors().to_vec(), digests: digests.clone() });
                    replay.push(&link)?;
                    replay.run(&base, &output, &())?;
                }
                json!({ "seconds": start.elapsed().as_secs_f64() })
            }
            "exact" => json!({ "exact": output::holds(&room, &target) }),
            other => return Err(format!("there is no request `{other}`").into()),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}
