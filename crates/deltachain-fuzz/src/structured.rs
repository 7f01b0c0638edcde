//! Properties of structured inputs: states, sequences of states, and damaged links between them.

use std::fs;

use arbitrary::{Arbitrary, Unstructured};
use deltachain::files::{Layout, SafetensorsState, StagedSafetensors};
use deltachain::tensor::{MemoryState, State, StateDigests};
use deltachain::{ErrorClass, Limits, LinkReader, Profile, Replay, Result, StateTable};
use tempfile::TempDir;

use crate::memory::single_threaded;
use crate::raw::{limits, refused_by_rule};
use crate::reseal::all_ways;
use crate::states::{BASES, FILE_BASES, Start, Step, link};

/// Writes and applies links from any state to any next one.
pub fn roundtrip(data: &[u8]) {
    single_threaded();
    let Ok((start, step)) = <(Start, Step)>::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let base = start.state();
    let target = step.after(&base);
    for profile in [Profile::Compact, Profile::Direct] {
        let file = link(&base, &target, profile);
        assert_eq!(
            file,
            link(&base, &target, profile),
            "the same states gave different links"
        );
        all_ways(&file, &base, &target);
    }
    let empty = MemoryState::new();
    all_ways(&link(&empty, &target, Profile::Compact), &empty, &target);
}

/// Applies any bytes as a link to a base in a file; the first byte chooses the base.
pub fn apply(data: &[u8]) {
    single_threaded();
    let Some((&chosen, file)) = data.split_first() else {
        return;
    };
    let (base, digests) = &BASES[usize::from(chosen) % FILE_BASES];
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    write(base, digests, &path("base.safetensors")).expect("a state can be written");
    let bytes = fs::read(path("base.safetensors")).expect("it is there");
    let result = apply_files(file, &path("base.safetensors"), &path("out.safetensors"));
    // Safetensors files cannot hold every state.
    if !result
        .as_ref()
        .is_err_and(|error| error.class() == ErrorClass::Usage)
    {
        refused_by_rule(&result);
    }
    assert!(
        fs::read(path("base.safetensors")).expect("it is there") == bytes,
        "the base has changed"
    );
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .expect("it is there")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    names.sort_unstable();
    match result {
        Ok(target) => {
            let out =
                SafetensorsState::open(path("out.safetensors")).expect("the result is a state");
            assert_eq!(
                StateDigests::of(&out, &())
                    .expect("a file can be read")
                    .state,
                target
            );
        }
        Err(_) => assert_eq!(
            names,
            ["base.safetensors"],
            "a refused link has left a file"
        ),
    }
}

/// Applies a link as the command-line tool does.
fn apply_files(
    file: &[u8],
    base: &std::path::Path,
    out: &std::path::Path,
) -> Result<deltachain::tensor::Digest> {
    let link = LinkReader::open(file, &limits())?;
    let base = SafetensorsState::open(base)?;
    let mut replay = Replay::new(StateTable::of(&base, &())?);
    replay.push(&link)?;
    let metadata = &link.index().metadata;
    let tensors = replay.tensors();
    let layout = Layout::of_target(metadata, Some(base.layout()), &tensors)?;
    let staged = StagedSafetensors::create(out, &tensors, &layout, Some(&base), false)?;
    let reached = replay.run(&base, &staged, &())?;
    staged.commit()?;
    Ok(reached.state)
}

/// Makes a temporary folder, in memory if the system has such a place.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder can be made")
}

/// Writes a state to a file.
pub(crate) fn write(
    state: &MemoryState,
    digests: &StateDigests,
    out: &std::path::Path,
) -> Result<()> {
    let layout = Layout::single_file(state.tensors());
    let staged = StagedSafetensors::create(out, state.tensors(), &layout, None, false)?;
    let file = link(&MemoryState::new(), state, Profile::Direct);
    let empty = MemoryState::new();
    let link = LinkReader::open(&file, &Limits::default())?;
    let mut replay = Replay::new(StateTable::of(&empty, &())?);
    replay.push(&link)?;
    assert_eq!(replay.run(&empty, &staged, &())?, *digests);
    staged.commit().map(drop)
}
