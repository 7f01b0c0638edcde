//! The table of a state, and what a link makes of it: step 7 of SPEC section 10, for which nothing has to be decoded.

use crate::error::{Error, Result};
use crate::format::{Start, TensorEntry};
use crate::link::LinkReader;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::tensor::{Digest, StateDigests, TensorInfo};

/// The table of a state (SPEC section 2): all that its digest is made from. A reader that holds the data of some tensors only
/// keeps it for all of them, so that it can check links like one that holds everything (section 9.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTable {
    /// Name, dtype and shape of each tensor, ascending by name.
    pub tensors: Vec<TensorInfo>,
    /// The digest of each, and that of the state.
    pub digests: StateDigests,
}

impl StateTable {
    /// From the tensors, ascending by name, and the digest of each. Computes the digest of the state, which whoever has read these
    /// somewhere compares with the one that it should be.
    pub fn new(tensors: Vec<TensorInfo>, digests: Vec<Digest>) -> Self {
        let digests = StateDigests::from_tensors(&tensors, digests);
        Self { tensors, digests }
    }

    /// The table of the target of a link whose base has this one: step 7 of SPEC section 10, without R-LAY-01.
    ///
    /// Links that are applied one after another are checked before the first of them is applied: all of them are opened, then
    /// comes [`check_sequence`](crate::check_sequence), then this for each in turn, and with it, where files are written,
    /// [`Layout::of_target`](crate::tensor::Layout::of_target).
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`), R-APP-02, R-APP-05; USAGE if there are not as many digests as tensors.
    pub fn after<S: Source>(&self, link: &LinkReader<S>) -> Result<Self> {
        target_table(&self.tensors, &self.digests, link).map(|(table, _)| table)
    }
}

/// Where a tensor of the target comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin {
    /// The base's tensor with this number, unchanged.
    Base(usize),
    /// The link's entry with this number, on top of the base's tensor or of zeros.
    Link(usize, Option<usize>),
}

/// The table of the target, and where each of its tensors comes from; `tensors` and `digests` are the base's.
pub(crate) fn target_table<S: Source>(
    tensors: &[TensorInfo],
    digests: &StateDigests,
    link: &LinkReader<S>,
) -> Result<(StateTable, Vec<Origin>)> {
    if tensors.len() != digests.tensors.len() {
        return Err(Error::usage("the digests are not those of the base's tensors"));
    }
    let expected = link.header().base;
    ensure(digests.state == expected, &rules::APP_01, || {
        format!("the link is for base {expected}, this base is {}", digests.state)
    })?;
    let mut target = Vec::new();
    let mut origins = Vec::new();
    let mut bases = tensors.iter().enumerate().peekable();
    for (entry, change) in link.index().tensors.iter().enumerate() {
        while let Some((number, info)) = bases.next_if(|(_, info)| info.name() < change.name()) {
            target.push((info.clone(), digests.tensors[number]));
            origins.push(Origin::Base(number));
        }
        let own = bases.next_if(|(_, info)| info.name() == change.name());
        let TensorEntry::Write(written) = change else { continue };
        let start = match written.start {
            Start::Zeros => None,
            Start::Base => {
                ensure(own.is_some_and(|(_, old)| written.info.can_patch(old)), &rules::APP_02, || {
                    "the base has no such tensor of this dtype and length".into()
                })
                .map_err(|error| error.of_tensor(change.name()))?;
                own.map(|(number, _)| number)
            }
        };
        target.push((written.info.clone(), written.digest()));
        origins.push(Origin::Link(entry, start));
    }
    for (number, info) in bases {
        target.push((info.clone(), digests.tensors[number]));
        origins.push(Origin::Base(number));
    }
    let (tensors, digests) = target.into_iter().unzip();
    let table = StateTable::new(tensors, digests);
    let (reached, promised) = (table.digests.state, link.header().target);
    ensure(reached == promised, &rules::APP_05, || {
        format!("the link's tensors give the state {reached}, its header promises {promised}")
    })?;
    Ok((table, origins))
}
