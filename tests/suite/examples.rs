//! Calls the programs in `examples` as functions.

use std::fs;

use deltachain::files::{self, FileOptions};
use deltachain::tensor::State;

#[path = "../../examples/custom_source.rs"]
#[allow(dead_code, reason = "its main function is for users")]
mod custom_source;
#[path = "../../examples/patch_memory.rs"]
#[allow(dead_code, reason = "its main function is for users")]
mod patch_memory;

/// Returns the path of an excerpt of a real checkpoint.
fn step(number: u32) -> String {
    format!(
        "{}/testdata/rl3e6_step{number}.safetensors",
        env!("CARGO_MANIFEST_DIR")
    )
}

#[test]
fn examples_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let links: Vec<String> = (1..3)
        .map(|number| {
            folder
                .path()
                .join(format!("{number}.dcf"))
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let reports = [1, 2].map(|number| {
        let link = &links[number as usize - 1];
        files::diff(
            step(number - 1).as_ref(),
            step(number).as_ref(),
            link.as_ref(),
            &FileOptions::default(),
        )
        .unwrap()
    });

    let said = patch_memory::patch(&step(0), &links).unwrap();
    assert!(
        said.ends_with(&reports[1].target.state.to_string()),
        "{said}"
    );
    let error = patch_memory::patch(&step(1), &links)
        .unwrap_err()
        .to_string();
    assert!(error.contains("R-APP-01"), "{error}");

    let bytes = fs::read(&links[0]).unwrap();
    let pieces: Vec<_> = bytes
        .chunks(1000)
        .enumerate()
        .map(|(number, piece)| {
            let path = folder.path().join(format!("piece {number}"));
            fs::write(&path, piece).unwrap();
            path
        })
        .collect();
    let names = custom_source::changes(pieces.clone()).unwrap();
    let state = files::SafetensorsState::open(step(0)).unwrap();
    assert!(
        !names.is_empty()
            && names
                .iter()
                .all(|name| state.tensors().iter().any(|info| info.name() == name))
    );
    assert!(custom_source::changes(pieces[1..].to_vec()).is_err());
}
