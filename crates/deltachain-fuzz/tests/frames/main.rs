//! Decodes zstd frames, good and damaged, with the library, whose decoder is libzstd, and with
//! `ruzstd`, which shares no code with it. The structure of a frame (SPEC section 5) decides what
//! every reader must refuse, whatever its decoder accepts. If the structure is right and the inside
//! of the compressed blocks was not changed, both decoders agree. Elsewhere they may differ
//! (R-STR-07), and these cases are counted: both are lenient, each in its own way.
//!
//! `./task differential --long` runs many more frames than this test does by default.

mod make;
mod structure;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic;

use deltachain::format::{Coding, Positions, Values};
use deltachain::tensor::Dtype;
use deltachain::{ErrorClass, Segment};
use fastrand::Rng;
use ruzstd::decoding::FrameDecoder;

use crate::structure::Structure;

/// Number of frames in a run, unless the environment variable of this name sets another one.
const VARIABLE: &str = "DELTACHAIN_FRAMES";
const FRAMES: u64 = 4000;
/// Outcomes of comparing the decoders on a frame.
const WRONG: &str = "wrong structure";
const PLAIN: &str = "no compressed block";
const VALID: &str = "valid, or of a wrong checksum";
const SAME: &str = "doubtful, both accept";
const BOTH_REFUSE: &str = "doubtful, both refuse";
const OTHER_BYTES: &str = "doubtful, both accept, other bytes";

/// Upper bound for the content of a frame in these tests.
const MOST_BYTES: usize = 1 << 20;

#[test]
fn decoders_differ_only_where_they_may() {
    let frames = std::env::var(VARIABLE).map_or(FRAMES, |number| number.parse().expect(VARIABLE));
    // A failed assertion of ruzstd counts as a refusal; it prints nothing.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info
            .location()
            .is_some_and(|place| place.file().contains("ruzstd"))
        {
            hook(info);
        }
    }));
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..frames {
        *found.entry(compare(seed)).or_default() += 1;
    }
    println!("{frames} frames: {found:#?}");
    // Every outcome occurs, and the decoders rarely differ where they may.
    let count = |outcome: &str| found.get(outcome).copied().unwrap_or(0);
    for outcome in [WRONG, PLAIN, VALID, SAME, BOTH_REFUSE] {
        assert!(count(outcome) >= frames / 50, "{found:?}");
    }
    assert!(count(OTHER_BYTES) <= frames / 100, "{found:?}");
}

/// Makes the frame of this number and compares the results of the decoders.
fn compare(seed: u64) -> &'static str {
    let mut rng = Rng::with_seed(seed);
    let (mut frame, raw) = make::frame(&mut rng);
    let is_good = rng.u32(..10) == 0;
    for _ in 0..if is_good {
        0
    } else {
        [1, 1, 1, 2, 3][rng.usize(..5)]
    } {
        frame.damage(&mut rng);
    }
    let bytes = frame.bytes();
    let theirs = theirs(&bytes);
    // The directory mostly declares the true length of the content.
    let length = match (&theirs, &raw) {
        (Some(theirs), Some(_)) if rng.u32(..10) > 0 => theirs.len(),
        (Some(theirs), None) => theirs.len(),
        (_, Some(raw)) => raw.len(),
        (None, None) => rng.usize(1..5000),
    };
    if bytes.len() >= length {
        return "not shorter than what it gives";
    }
    let context = || {
        let hex = bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        format!("frame {seed}, which is to give {length} bytes: {hex}")
    };
    let theirs = theirs.filter(|theirs| theirs.len() == length);
    let ours = ours(&bytes, length);
    match structure::of(&bytes, length as u64) {
        Structure::Wrong(rule) => {
            assert_eq!(ours.as_ref().err().copied(), Some(rule), "{}", context());
            assert!(!is_good, "{}", context());
            WRONG
        }
        Structure::Right {
            content: Some(content),
        } => {
            // Only the checksum can be wrong.
            assert_eq!(ours.is_ok(), theirs.is_some(), "{}", context());
            assert!(
                ours.is_err() || (ours.as_ref() == Ok(&content) && theirs == Some(content)),
                "{}",
                context()
            );
            PLAIN
        }
        Structure::Right { content: None } => {
            assert!(
                ours.as_ref().is_ok_and(|_| theirs.is_some()) || !is_good,
                "{}",
                context()
            );
            assert!(
                ours.as_ref().err().is_none_or(|rule| *rule == "R-STR-02"),
                "{}",
                context()
            );
            let same = ours.as_ref().ok() == theirs.as_ref();
            assert!(
                !is_good || raw.is_none_or(|raw| ours == Ok(raw)),
                "{}",
                context()
            );
            if !frame.is_doubtful {
                assert!(same, "{}", context());
                return VALID;
            }
            match (ours, theirs) {
                (Ok(_), Some(_)) if same => SAME,
                (Ok(_), Some(_)) => OTHER_BYTES,
                (Err(_), None) => BOTH_REFUSE,
                (Ok(_), None) => "doubtful, only libzstd accepts",
                (Err(_), Some(_)) => "doubtful, only ruzstd accepts",
            }
        }
    }
}

/// Decodes a frame with the library as a stream of this raw length: the one plane of a segment that
/// sets bytes. Returns the rule that the library names if it refuses the frame.
fn ours(frame: &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
    let lanes = u32::try_from(length).unwrap();
    let mut table = vec![1];
    leb128::write::unsigned(&mut table, lanes.into()).unwrap();
    let mut segment = Vec::new();
    for number in [table.len(), table.len(), length, frame.len()] {
        leb128::write::unsigned(&mut segment, number as u64).unwrap();
    }
    let segment = [&segment, &table[..], frame].concat();
    let coding = Coding {
        lane_bytes: 1,
        positions: Positions::Dense,
        values: Values::Absolute,
    };
    let decoded =
        Segment::decode(&segment, 0, coding, vec![(Dtype::U8, lanes)]).map_err(|error| {
            let class = if error.rule() == Some("R-STR-03") {
                ErrorClass::Limit
            } else {
                ErrorClass::Malformed
            };
            assert_eq!(error.class(), class);
            error.rule().unwrap()
        })?;
    let mut bytes = vec![0; length];
    decoded.apply(0, &mut bytes).unwrap();
    Ok(bytes)
}

/// Decodes a frame with `ruzstd`; `None` if it refuses it, or if the frame has a checksum that does
/// not match.
fn theirs(frame: &[u8]) -> Option<Vec<u8>> {
    panic::catch_unwind(|| {
        let mut decoder = FrameDecoder::new();
        let mut bytes = vec![0; MOST_BYTES];
        let length = decoder.decode_all(frame, &mut bytes).ok()?;
        bytes.truncate(length);
        let declared = decoder.get_checksum_from_data();
        (declared.is_none() || declared == decoder.get_calculated_checksum()).then_some(bytes)
    })
    .ok()
    .flatten()
}
