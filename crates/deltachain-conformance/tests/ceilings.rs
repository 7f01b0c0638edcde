//! Checks that the reference library stays below the allocation ceilings that resource vectors
//! state, whatever they declare. A counting allocator measures this, so this is a program of its
//! own with a single test.

use std::path::Path;

use deltachain::{Limits, LinkReader};
use peak_alloc::PeakAlloc;
use serde_json::Value;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[test]
fn no_vector_makes_the_reader_allocate_more_than_its_ceiling() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let index: Value =
        serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let mut measured = 0;
    let mut closest = (0.0, "");
    for vector in index["vectors"].as_array().unwrap() {
        let Some(ceiling) = vector["allocation_ceiling"].as_u64() else {
            continue;
        };
        let id = vector["id"].as_str().unwrap();
        let file = std::fs::read(folder.join(vector["file"].as_str().unwrap())).unwrap();
        let limits = Limits::default()
            .set_bytes(vector["set_bytes"].as_u64().unwrap_or(u64::MAX))
            .coded_bytes(vector["coded_bytes"].as_u64().unwrap_or(u64::MAX));

        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let result = LinkReader::open(&file, &limits).and_then(|link| link.verify(&()));
        let peak = ALLOCATOR.peak_usage().saturating_sub(before) as u64;

        let expected = vector["expect"]["check"]["class"].as_str();
        assert_eq!(
            result.err().map(|error| error.class().name()),
            expected,
            "{id}"
        );
        assert!(peak <= ceiling, "{id}: {peak} bytes, at most {ceiling}");
        measured += 1;
        #[expect(clippy::cast_precision_loss, reason = "a share to show")]
        let share = peak as f64 / ceiling as f64;
        if share > closest.0 {
            closest = (share, id);
        }
    }
    println!(
        "{measured} vectors; {} needs the largest share of its ceiling, {:.2}",
        closest.1, closest.0
    );
    assert!(measured >= 30, "only {measured} vectors state a ceiling");
}
