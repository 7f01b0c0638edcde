//! Checks that `adequacy` accepts the vectors, and that it fails where vectors do not notice a rule
//! that is not checked.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::{RUNNER, Ran, Vectors};

fn adequacy(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(RUNNER);
    Ran::of(
        command
            .arg("adequacy")
            .args(arguments)
            .arg("--vectors")
            .arg(folder)
            .output()
            .unwrap(),
    )
}

#[test]
fn every_rule_is_noticed_and_the_table_is_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let ran = adequacy(&folder, &["--check"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
}

#[test]
fn vectors_that_are_not_enough_are_found() {
    let mut vectors = Vectors::tiny();
    vectors.write(
        "maintaining.md",
        b"<!-- adequacy: begin -->\n<!-- adequacy: end -->\n",
    );
    vectors.write(
        "exceptions.json",
        br#"{"R-SEG-01":"tiny","R-HDR-01":"tiny"}"#,
    );
    // This vector claims to break a rule that it does not break.
    vectors.index["vectors"][1]["rules"] = json!(["R-SEG-01", "R-IDX-01"]);
    vectors.write_index();
    let ran = adequacy(&vectors.path(""), &[]);
    ran.says(
        1,
        &[
            "failed: R-HDR-02: 0 vectors break it, less than 2",
            "failed: R-IDX-01: 1 vectors break it",
        ],
    );
    ran.says(
        1,
        &[
            "exception: R-SEG-01: tiny",
            "1 noticed when switched off, 1 by class; of 2 vectors 1 notice",
        ],
    );
    assert!(!ran.stdout.contains("failed: R-SEG-01"), "{ran:?}");
    assert!(!ran.stdout.contains("failed: R-HDR-01"), "{ran:?}");

    vectors.write("exceptions.json", br#"{"R-SEG-99":"tiny"}"#);
    adequacy(&vectors.path(""), &[]).says(1, &["there is no rule R-SEG-99"]);
}
