//! The table of a state, and the table after a link: step 7 of SPEC section 10, which needs no
//! decoding.

use crate::error::{Error, Result};
use crate::format::{Start, TensorEntry};
use crate::link::LinkReader;
use crate::progress::Progress;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::tensor::{Digest, State, StateDigests, TensorInfo};

/// The table of a state (SPEC section 2): everything that its digest is computed from. A reader
/// that holds the data of only some tensors keeps the table of all of them, so that it can check
/// links like a reader that holds everything (section 9.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTable {
    /// Name, dtype and shape of each tensor, ascending by name.
    pub tensors: Vec<TensorInfo>,
    /// The digest of each tensor, and the digest of the state.
    pub digests: StateDigests,
}

impl StateTable {
    /// Creates a table from the tensors, ascending by name, and the digest of each. Computes the
    /// digest of the state; if the digests of the tensors come from outside, compare it with the
    /// one that you expect.
    pub fn new(tensors: Vec<TensorInfo>, digests: Vec<Digest>) -> Self {
        let digests = StateDigests::from_tensors(&tensors, digests);
        Self { tensors, digests }
    }

    /// The table of a state. Reads and hashes the whole state; `progress` is called with its bytes.
    ///
    /// # Errors
    /// The errors of reading the state, and of `progress`.
    pub fn of(state: &dyn State, progress: &dyn Progress) -> Result<Self> {
        Ok(Self {
            tensors: state.tensors().to_vec(),
            digests: StateDigests::of(state, progress)?,
        })
    }

    /// Computes the table of a link's target, if this is the table of its base: step 7 of SPEC
    /// section 10, without R-LAY-01.
    ///
    /// Links that are applied one after another are checked before the first of them is applied.
    /// All of them are opened, then comes [`check_sequence`], then this function for each link in
    /// turn. A program that writes files also calls
    /// [`Layout::of_target`](crate::files::Layout::of_target) for each.
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`), R-APP-02, R-APP-05; USAGE if there are not as many digests as
    /// tensors.
    pub fn after<S: Source>(&self, link: &LinkReader<S>) -> Result<Self> {
        target_table(&self.tensors, &self.digests, link).map(|(table, _)| table)
    }

    /// Hashes all of a state and compares it with the table. A state that passes is *hashed* (SPEC
    /// section 24.1). Reports bytes read to `progress`.
    ///
    /// # Errors
    /// R-APP-04 if it is another state, with the first tensor that differs; errors of reading the
    /// state, and of `progress`.
    pub fn check(&self, state: &dyn State, progress: &dyn Progress) -> Result<()> {
        let found = StateDigests::of(state, progress)?;
        let rows = self.tensors.iter().zip(&self.digests.tensors);
        let wrong = state
            .tensors()
            .iter()
            .zip(&found.tensors)
            .zip(rows)
            .find(|(found, expected)| found != expected);
        ensure(found == self.digests, &rules::APP_04, || {
            format!(
                "the memory holds the state {}, not {}",
                found.state, self.digests.state
            )
        })
        .map_err(|error| match wrong {
            Some(((info, _), _)) => error.of_tensor(info.name()),
            None => error,
        })
    }
}

/// Origin of a tensor of the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// The number of the base's tensor that it starts from; `None` if it starts from zeros.
    pub(crate) base: Option<usize>,
    /// The number of the link's entry for it; `None` if the link does not list it.
    pub(crate) entry: Option<usize>,
}

/// Computes the table of the target, and the origin of each of its tensors; `tensors` and `digests`
/// are the base's.
pub(crate) fn target_table<S: Source>(
    tensors: &[TensorInfo],
    digests: &StateDigests,
    link: &LinkReader<S>,
) -> Result<(StateTable, Vec<Origin>)> {
    if tensors.len() != digests.tensors.len() {
        return Err(Error::usage(
            "the digests are not those of the base's tensors",
        ));
    }
    let expected = link.header().base;
    ensure(digests.state == expected, &rules::APP_01, || {
        format!(
            "the link is for base {expected}, this base is {}",
            digests.state
        )
    })?;
    // Both counts are bounded by what has been read.
    let most = tensors.len() + link.index().tensors.len();
    let mut target = Vec::with_capacity(most);
    let mut target_digests = Vec::with_capacity(most);
    let mut origins = Vec::with_capacity(most);
    let mut add = |info: &TensorInfo, digest, origin| {
        target.push(info.clone());
        target_digests.push(digest);
        origins.push(origin);
    };
    let mut bases = tensors.iter().enumerate().peekable();
    for (entry, change) in link.index().tensors.iter().enumerate() {
        while let Some((number, info)) = bases.next_if(|(_, info)| info.name() < change.name()) {
            add(
                info,
                digests.tensors[number],
                Origin {
                    base: Some(number),
                    entry: None,
                },
            );
        }
        let own = bases.next_if(|(_, info)| info.name() == change.name());
        let TensorEntry::Write(written) = change else {
            continue;
        };
        let start = match written.start {
            Start::Zeros => None,
            Start::Base => {
                ensure(
                    own.is_some_and(|(_, old)| written.info.can_patch(old)),
                    &rules::APP_02,
                    || "the base has no such tensor of this dtype and length".into(),
                )
                .map_err(|error| error.of_tensor(change.name()))?;
                own.map(|(number, _)| number)
            }
        };
        add(
            &written.info,
            written.digest(),
            Origin {
                base: start,
                entry: Some(entry),
            },
        );
    }
    for (number, info) in bases {
        add(
            info,
            digests.tensors[number],
            Origin {
                base: Some(number),
                entry: None,
            },
        );
    }
    let table = StateTable::new(target, target_digests);
    let (reached, promised) = (table.digests.state, link.header().target);
    ensure(reached == promised, &rules::APP_05, || {
        format!("the link's tensors give the state {reached}, its header promises {promised}")
    })?;
    Ok((table, origins))
}

/// Checks that each link's base is the target of the link before it.
///
/// # Errors
/// R-APP-06 (`WRONG_BASE`), of the link that does not follow the one before it.
pub fn check_sequence<S: Source>(links: &[&LinkReader<S>]) -> Result<()> {
    for (number, pair) in links.windows(2).enumerate() {
        let (reached, base) = (pair[0].header().target, pair[1].header().base);
        ensure(reached == base, &rules::APP_06, || {
            format!(
                "link {} leads to {reached}, link {} starts from {base}",
                number + 1,
                number + 2
            )
        })
        .map_err(|error| error.of_link(number + 1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::{DiffOptions, diff};
    use crate::format::{HEADER_BYTES, Header, Index};
    use crate::limits::{Limits, address};
    use crate::replay::{Replay, apply};
    use crate::tensor::{Dtype, MemoryState, PIECE_BYTES};

    fn state(tensors: &[(&str, &[u8])]) -> MemoryState {
        let mut state = MemoryState::new();
        for (name, data) in tensors {
            state
                .insert(name, Dtype::U8, &[data.len() as u64], data.to_vec())
                .unwrap();
        }
        state
    }

    fn table(state: &MemoryState) -> StateTable {
        StateTable::of(state, &()).unwrap()
    }

    /// The link from one state to another, with what `edit` makes of its header and index.
    fn link(
        (base, target): (&MemoryState, &MemoryState),
        edit: impl FnOnce(&mut Header, &mut Index),
    ) -> LinkReader<Vec<u8>> {
        let mut file = Vec::new();
        diff(base, target, &DiffOptions::default(), &mut file).unwrap();
        let link = LinkReader::open(&file, &Limits::default()).unwrap();
        let (mut header, mut index) = (link.header().clone(), link.index().clone());
        edit(&mut header, &mut index);
        let segments = &file[address(HEADER_BYTES + link.header().index_stored).unwrap()..];
        let stored = index.to_bytes();
        (header.index_stored, header.index_raw) = (stored.len() as u64, stored.len() as u64);
        header.index_crc = crc32fast::hash(&stored);
        let file = [&header.to_bytes()[..], &stored, segments].concat();
        LinkReader::open(file, &Limits::default()).unwrap()
    }

    fn written<'a>(index: &'a mut Index, name: &str) -> &'a mut crate::format::WrittenTensor {
        let number = index.find(name).unwrap();
        let TensorEntry::Write(written) = &mut index.tensors[number] else {
            panic!("{name} is removed")
        };
        written
    }

    #[test]
    fn what_the_index_promises_is_checked_before_anything_is_decoded() {
        let (base, target) = (
            state(&[("a", &[1]), ("b", &[2]), ("c", &[3])]),
            state(&[("a", &[1]), ("b", &[4])]),
        );
        let good = link((&base, &target), |_, _| ());
        assert_eq!(table(&base).after(&good).unwrap(), table(&target));
        let rules = |link: &LinkReader<Vec<u8>>, base: &MemoryState| {
            let base_table = table(base);
            let planned = base_table.after(link).err().and_then(|error| error.rule());
            let pushed = Replay::new(base_table).push(link);
            assert_eq!(pushed.err().and_then(|error| error.rule()), planned);
            (
                planned,
                apply(base, link).err().and_then(|error| error.rule()),
            )
        };
        assert_eq!(rules(&good, &base), (None, None));
        assert_eq!(rules(&good, &target), (Some("R-APP-01"), Some("R-APP-01")));
        // A digest that leads to another state, although the header names the result.
        let other = link((&base, &target), |_, index| {
            written(index, "b").digests[0].0[0] ^= 1;
        });
        assert_eq!(rules(&other, &base), (Some("R-APP-05"), Some("R-APP-05")));
        // Then the header's too: now only the data tell.
        let consistent = link((&base, &target), |header, index| {
            let promised = written(index, "b");
            promised.digests[0] = Digest::of_bytes(&[5]);
            header.target = table(&state(&[("a", &[1]), ("b", &[5])])).digests.state;
        });
        assert_eq!(rules(&consistent, &base), (None, Some("R-APP-04")));
        // The digest of a tensor without data counts like any other.
        let empty = state(&[("e", &[])]);
        let wrong = link((&MemoryState::new(), &empty), |header, index| {
            let promised = written(index, "e");
            promised.digests[0] = Digest([1; 32]);
            header.target = StateTable::new(vec![promised.info.clone()], vec![Digest([1; 32])])
                .digests
                .state;
        });
        assert_eq!(rules(&wrong, &MemoryState::new()), (None, Some("R-APP-04")));
        // A patch of what the base does not have comes before the result.
        let stray = link((&base, &target), |header, index| {
            written(index, "b").info = TensorInfo::new("b", Dtype::I8, [1]).unwrap();
            header.target = Digest([1; 32]);
        });
        assert_eq!(rules(&stray, &base), (Some("R-APP-02"), Some("R-APP-02")));
        let few = StateDigests {
            tensors: Vec::new(),
            state: table(&base).digests.state,
        };
        let few = StateTable {
            digests: few,
            ..table(&base)
        };
        assert_eq!(Replay::new(few).push(&good).unwrap_err().rule(), None);
    }

    #[test]
    fn each_piece_is_compared() {
        let piece = address(PIECE_BYTES).unwrap();
        let data = |byte: u8| [vec![1; piece], vec![byte]].concat();
        let (base, target) = (state(&[("t", &data(2))]), state(&[("t", &data(3))]));
        assert_eq!(
            apply(&base, &link((&base, &target), |_, _| ())).unwrap(),
            target
        );
        for number in 0..2 {
            let wrong = link((&base, &target), |header, index| {
                let promised = written(index, "t");
                promised.digests[number].0[0] ^= 1;
                header.target =
                    StateTable::new(vec![promised.info.clone()], vec![promised.digest()])
                        .digests
                        .state;
            });
            assert!(table(&base).after(&wrong).is_ok());
            assert_eq!(
                apply(&base, &wrong).unwrap_err().rule(),
                Some("R-APP-04"),
                "piece {number}"
            );
        }
    }

    #[test]
    fn a_part_is_checked_by_the_whole_table() {
        let (base, target) = (
            state(&[("a", &[1]), ("b", &[2])]),
            state(&[("a", &[1]), ("b", &[3]), ("c", &[7])]),
        );
        let (held, expected) = (state(&[("a", &[1])]), state(&[("a", &[1]), ("c", &[7])]));
        let is_taken = |name: &str| name != "b";
        let good = link((&base, &target), |_, _| ());
        let base_table = table(&base);
        let mut replay = Replay::of_part(base_table.clone(), &is_taken);
        replay.push(&good).unwrap();
        let mut out = MemoryState::zeros(&replay.tensors()).unwrap();
        replay.run(&held, &out.writer(), &()).unwrap();
        assert_eq!((&out, replay.table()), (&expected, &table(&target)));
        // Faults that concern the other tensor are found as well.
        let rule = |edit: &dyn Fn(&mut Header, &mut Index)| {
            let link = link((&base, &target), |header, index| edit(header, index));
            Replay::of_part(base_table.clone(), &is_taken)
                .push(&link)
                .unwrap_err()
                .rule()
        };
        assert_eq!(
            rule(&|_, index| written(index, "b").digests[0].0[0] ^= 1),
            Some("R-APP-05")
        );
        let retyped = |index: &mut Index| {
            written(index, "b").info = TensorInfo::new("b", Dtype::I8, [1]).unwrap();
        };
        assert_eq!(rule(&|_, index| retyped(index)), Some("R-APP-02"));
    }

    #[test]
    fn a_sequence_is_checked_by_its_indexes() {
        let states = [
            state(&[]),
            state(&[("a", &[1]), ("b", &[2])]),
            state(&[("a", &[3]), ("b", &[2])]),
            state(&[("b", &[2])]),
        ];
        let links: Vec<_> = states
            .windows(2)
            .map(|pair| link((&pair[0], &pair[1]), |_, _| ()))
            .collect();
        check_sequence(&links.iter().collect::<Vec<_>>()).unwrap();
        let mut reached = StateTable::new(Vec::new(), Vec::new());
        for (link, state) in links.iter().zip(&states[1..]) {
            reached = reached.after(link).unwrap();
            assert_eq!(reached, table(state));
        }
        assert_eq!(
            check_sequence(&[&links[0], &links[2]]).unwrap_err().rule(),
            Some("R-APP-06")
        );
    }
}
