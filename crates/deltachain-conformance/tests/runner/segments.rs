//! `segments`: the coding of links.

use std::fs;
use std::path::Path;
use std::process::Command;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{Dtype, MemoryState, State};
use deltachain::{DiffOptions, Profile, diff};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{RUNNER, Ran};

/// Writes a link and runs `segments` on it. Returns the segments, and the number of the link's
/// values.
fn segments(old: &dyn State, new: &dyn State, profile: Profile) -> (Vec<Value>, u64) {
    let mut link = Vec::new();
    let options = DiffOptions::default().profile(profile);
    let report = diff(old, new, &options, &mut link).unwrap();
    let ran = run(&link);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    (serde_json::from_str(&ran.stdout).unwrap(), report.changed)
}

fn run(link: &[u8]) -> Ran {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("link");
    fs::write(&path, link).unwrap();
    let mut command = Command::new(RUNNER);
    Ran::of(command.arg("segments").arg(path).output().unwrap())
}

/// Returns the only segment of a link that makes a few changes to 5000 bytes.
fn only_segment(profile: Profile, changes: &[(usize, u8)]) -> Value {
    let base: Vec<u8> = (0..5000_u32)
        .map(|lane| lane.to_le_bytes()[0] / 2)
        .collect();
    let mut target = base.clone();
    changes.iter().for_each(|&(lane, byte)| target[lane] = byte);
    let [base, target] = [base, target].map(|bytes| {
        let mut state = MemoryState::new();
        state.insert("t", Dtype::U8, &[5000], bytes).unwrap();
        state
    });
    let (segments, _) = segments(&base, &target, profile);
    assert_eq!(segments.len(), 1);
    segments[0].clone()
}

#[test]
fn segments_are_shown_as_they_are_coded() {
    let changes = [(3, 0xAB), (7, 0), (1500, 9), (1501, 9), (4999, 0xFF)];
    let segment = only_segment(Profile::Direct, &changes);
    assert_eq!(
        (&segment["positions"], &segment["values"]),
        (&json!("sparse"), &json!("absolute"))
    );
    let part = &segment["parts"][0];
    assert_eq!(
        (&part["tensor"], &part["piece"], &part["lanes"]),
        (&json!("t"), &json!(0), &json!(5000))
    );
    // With absolute values there is one context, and lanes are known without the base.
    let lane = |lane: u64, bits: &str| {
        let rank = lane;
        json!({ "rank": rank, "lane": lane, "bits": bits, "difference": null })
    };
    let first = [
        lane(3, "AB"),
        lane(7, "00"),
        lane(1500, "09"),
        lane(1501, "09"),
    ];
    assert_eq!(
        part["contexts"],
        json!([{ "count": 5, "coded": 5, "first": first }])
    );

    // The directory names every stream; it and the streams fill the segment.
    let streams = segment["streams"].as_array().unwrap();
    let names: Vec<&str> = streams
        .iter()
        .map(|stream| stream["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "table",
            "bitmap",
            "gap low",
            "gap high",
            "gap escape",
            "plane 0"
        ]
    );
    let sum: u64 = streams
        .iter()
        .map(|stream| stream["stored"].as_u64().unwrap())
        .sum();
    assert_eq!(
        sum + 2 * names.len() as u64,
        segment["bytes"].as_u64().unwrap()
    );

    let small: Vec<(usize, u8)> = (0..40)
        .map(|i| (i * 100, u8::try_from(i * 100 % 256 / 2 + 1).unwrap()))
        .collect();
    let segment = only_segment(Profile::Compact, &small);
    assert_eq!(
        (&segment["positions"], &segment["values"]),
        (&json!("sparse"), &json!("relative small"))
    );
    let first = &segment["parts"][0]["contexts"][0]["first"];
    assert_eq!(
        first[1],
        json!({ "rank": 100, "lane": 100, "bits": null, "difference": 1 })
    );
    assert!(segment["contexts"][0]["symbol_bits"].is_u64());
}

#[test]
fn contexts_are_shown_with_ranks() {
    let [old, new] = ["0", "1"].map(|step| {
        let path = format!("../../testdata/rl3e6_step{step}.safetensors");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        SafetensorsState::open(path).unwrap()
    });
    let (segments, changed) = segments(&old, &new, Profile::Compact);
    let number = |value: &Value| value.as_u64().unwrap();
    let mut coded = 0;
    let mut several = 0;
    for segment in &segments {
        let contexts = segment["contexts"].as_array().unwrap();
        for part in segment["parts"].as_array().unwrap() {
            let own = part["contexts"].as_array().unwrap();
            assert_eq!(
                (own.len(), part["thresholds"].as_array().unwrap().len() + 1),
                (contexts.len(), contexts.len())
            );
            for (context, shape) in own.iter().zip(contexts) {
                let first = context["first"].as_array().unwrap();
                coded += number(&context["coded"]);
                assert_eq!(first.len() as u64, number(&context["coded"]).min(4));
                // Lanes whose positions depend on the base are not shown.
                assert!(
                    first
                        .iter()
                        .all(|lane| lane["lane"].is_null() == (contexts.len() > 1)),
                    "{context}"
                );
                assert!(shape["positions"] != "gaps" || context["count"] == context["coded"]);
            }
            several += u64::from(contexts.len() > 1);
        }
    }
    assert_eq!(coded, changed);
    assert!(several > 0);
}

#[test]
fn a_file_that_is_no_link_is_refused() {
    run(b"no link").says(1, &["R-HDR-01"]);
}
