//! Applying links one after another: what `apply` and `squash --base` have in common.

use std::path::Path;

use deltachain::files::{Layout, ScratchState};
use deltachain::tensor::{State, StateDigests, StateWriter, TensorInfo};
use deltachain::{Application, Error, Result, StateTable, check_sequence};

use crate::inputs::{Base, OpenedLink, digests_of};
use crate::interrupt;
use crate::output::Output;

/// What applying links has given.
#[derive(Debug)]
pub(crate) struct Replayed<W> {
    /// Not visible before it is committed.
    pub(crate) state: W,
    pub(crate) digests: StateDigests,
    pub(crate) layout: Layout,
    pub(crate) base_digests: StateDigests,
}

/// Applies the links to the base, in order. What can be checked without decoding them is checked for all of them before anything
/// is written. `create` makes room for the last state; states on the way stand in temporary files in `scratch`.
pub(crate) fn replay<W: State + StateWriter>(
    base: &Base,
    links: &[OpenedLink],
    scratch: &Path,
    create: impl FnOnce(&[TensorInfo], &Layout) -> Result<W>,
    output: Output,
) -> Result<Replayed<W>> {
    let readers: Vec<_> = links.iter().map(|link| &link.reader).collect();
    check_sequence(&readers).map_err(|error| {
        let misfit = links.windows(2).find(|pair| pair[0].reader.header().target != pair[1].reader.header().base);
        match misfit {
            Some(pair) => error.in_file(&pair[1].path),
            None => error,
        }
    })?;
    let (last, between) = links.split_last().ok_or_else(|| Error::usage("no link to apply"))?;
    let base_digests = digests_of(base.state(), output)?;
    let mut table = StateTable { tensors: base.state().tensors().to_vec(), digests: base_digests.clone() };
    let mut layout = base.layout().cloned();
    for link in links {
        let in_link = |error: Error| error.in_file(&link.path);
        table = table.after(&link.reader).map_err(in_link)?;
        let metadata = &link.reader.index().metadata;
        layout = Some(Layout::of_target(metadata, layout.as_ref(), &table.tensors).map_err(in_link)?);
    }
    let layout = layout.unwrap_or_else(|| Layout::single_file(&table.tensors));

    let mut held: Option<ScratchState> = None;
    let mut digests = base_digests.clone();
    for link in between {
        let state: &dyn State = held.as_ref().map_or(base.state(), |held| held);
        let made = apply(state, &digests, link, |tensors| ScratchState::create_in(scratch, tensors), output)?;
        digests = made.1;
        held = Some(made.0);
    }
    let state: &dyn State = held.as_ref().map_or(base.state(), |held| held);
    let (state, digests) = apply(state, &digests, last, |tensors| create(tensors, &layout), output)?;
    Ok(Replayed { state, digests, layout, base_digests })
}

/// Applies one link, into what `create` makes.
fn apply<W: StateWriter>(
    base: &dyn State,
    base_digests: &StateDigests,
    link: &OpenedLink,
    create: impl FnOnce(&[TensorInfo]) -> Result<W>,
    output: Output,
) -> Result<(W, StateDigests)> {
    interrupt::check()?;
    let in_link = |error: Error| error.in_file(&link.path);
    let application = Application::new(base, base_digests, &link.reader).map_err(in_link)?;
    let target = create(application.tensors())?;
    let meter = output.meter("applying", application.work());
    let digests = application.run(&target, &meter).map_err(in_link)?;
    Ok((target, digests))
}
