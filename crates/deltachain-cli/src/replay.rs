//! Applying links one after another: what `apply` and `squash --base` have in common.

use deltachain::files::Layout;
use deltachain::tensor::{State, StateDigests, StateWriter, TensorInfo};
use deltachain::{Error, Replay, Result, StateTable, check_sequence};

use crate::inputs::{Base, OpenedLink, digests_of};
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
/// is written. `create` makes room for the last state.
pub(crate) fn replay<W: State + StateWriter>(
    base: &Base,
    links: &[OpenedLink],
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
    let base_digests = digests_of(base.state(), output)?;
    let mut replay =
        Replay::new(StateTable { tensors: base.state().tensors().to_vec(), digests: base_digests.clone() });
    let mut layout = base.layout().cloned();
    for link in links {
        let in_link = |error: Error| error.in_file(&link.path);
        replay.push(&link.reader).map_err(in_link)?;
        let metadata = &link.reader.index().metadata;
        layout = Some(Layout::of_target(metadata, layout.as_ref(), &replay.table().tensors).map_err(in_link)?);
    }
    let layout = layout.unwrap_or_else(|| Layout::single_file(&replay.table().tensors));
    let state = create(&replay.tensors(), &layout)?;
    let meter = output.meter("applying", replay.work());
    let digests = replay.run(base.state(), &state, &meter).map_err(|error| {
        let link = error.link().and_then(|number| links.get(number));
        match link {
            Some(link) => error.in_file(&link.path),
            None => error,
        }
    })?;
    Ok(Replayed { state, digests, layout, base_digests })
}
