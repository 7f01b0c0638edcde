//! Applying links one after another: what `apply` and `squash --base` have in common.

use std::path::Path;

use deltachain::tensor::{Layout, StagedSafetensors, State, StateDigests, TensorInfo};
use deltachain::{Application, Error, Result, check_sequence};
use tempfile::TempDir;

use crate::inputs::{Base, OpenedLink, digests_of};
use crate::interrupt;
use crate::output::Output;
use crate::output_file::parent_of;

/// Where the last state goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub(crate) path: &'a Path,
    pub(crate) replace: bool,
}

/// What applying links has given.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Not visible before it is committed.
    pub(crate) state: StagedSafetensors,
    pub(crate) digests: StateDigests,
    pub(crate) layout: Layout,
    pub(crate) base_digests: StateDigests,
    /// Holds the states on the way; removed when dropped.
    _scratch: Option<TempDir>,
}

/// Applies the links to the base, in order. That they fit each other and the base is checked before anything is
/// written. States on the way, and the last one if it has no destination, stand in a temporary directory next to `near`.
pub(crate) fn replay(
    base: &Base,
    links: &[OpenedLink],
    destination: Option<Destination<'_>>,
    near: &Path,
    output: Output,
) -> Result<Replayed> {
    let readers: Vec<_> = links.iter().map(|link| &link.reader).collect();
    check_sequence(&readers).map_err(|error| {
        let misfit = links.windows(2).find(|pair| pair[0].reader.header().target != pair[1].reader.header().base);
        match misfit {
            Some(pair) => error.in_file(&pair[1].path),
            None => error,
        }
    })?;
    let first = links.first().ok_or_else(|| Error::usage("no link to apply"))?;
    let base_digests = digests_of(base.state(), output)?;
    // Fails early on a wrong base, before a temporary directory is made.
    Application::new(base.state(), &base_digests, &first.reader).map_err(|error| error.in_file(&first.path))?;

    let needs_scratch = links.len() > 1 || destination.is_none();
    let scratch = needs_scratch.then(|| scratch_directory(near)).transpose()?;
    let mut held: Option<StagedSafetensors> = None;
    let mut digests = base_digests.clone();
    let mut layout = base.layout().cloned();
    for (number, link) in links.iter().enumerate() {
        interrupt::check()?;
        let state: &dyn State = held.as_ref().map_or(base.state(), |held| held);
        let application = Application::new(state, &digests, &link.reader).map_err(|error| error.in_file(&link.path))?;
        let metadata = &link.reader.index().metadata;
        let next_layout = Layout::of_target(metadata, layout.as_ref(), application.tensors())
            .map_err(|error| error.in_file(&link.path))?;
        let last = number + 1 == links.len();
        let staged = match (destination.filter(|_| last), &scratch) {
            (Some(Destination { path, replace }), _) => {
                StagedSafetensors::create(path, application.tensors(), &next_layout, base.files(), replace)?
            }
            (None, Some(scratch)) => stage_between(scratch, number, application.tensors())?,
            // There is a scratch directory whenever a state needs it.
            (None, None) => return Err(Error::usage("no place for the result")),
        };
        let meter = output.meter("applying", application.work());
        digests = application.run(&staged, &meter).map_err(|error| error.in_file(&link.path))?;
        drop(meter);
        held = Some(staged);
        layout = Some(next_layout);
    }
    match (held, layout) {
        (Some(state), Some(layout)) => Ok(Replayed { state, digests, layout, base_digests, _scratch: scratch }),
        _ => Err(Error::usage("no link to apply")),
    }
}

/// A state that is needed for a moment: one file, whatever the layout.
fn stage_between(scratch: &TempDir, number: usize, tensors: &[TensorInfo]) -> Result<StagedSafetensors> {
    let path = scratch.path().join(format!("{number}.safetensors"));
    StagedSafetensors::create(&path, tensors, &Layout::single_file(tensors), None, false)
}

fn scratch_directory(near: &Path) -> Result<TempDir> {
    let parent = parent_of(near);
    tempfile::Builder::new()
        .prefix(".deltachain-")
        .tempdir_in(parent)
        .map_err(|error| Error::io("creating a temporary directory", error).in_file(parent))
}
