//! The vectors of this repository, all of which the reference library must pass.

use std::path::Path;

use crate::support::{reference, run};

#[test]
fn the_reference_passes_every_vector() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    assert!(folder.join("index.json").exists(), "there is no conformance/index.json");
    let ran = run(&folder, &reference(), &["--rules", "--require-complete"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
}
