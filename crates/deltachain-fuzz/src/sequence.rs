//! Sequences of links, good and damaged: all ways of applying them agree, and memory can be patched
//! and restored.

use arbitrary::{Arbitrary, Unstructured};
use deltachain::tensor::MemoryState;
use deltachain::{Error, Limits, LinkReader, Profile, Replay, Result, StateTable};

use crate::memory::single_threaded;
use crate::raw::refused_by_rule;
use crate::seal::Parts;
use crate::states::{Start, Step, link};

/// Up to six links, one after another.
#[derive(Debug, Arbitrary)]
struct Sequence {
    start: Start,
    steps: Vec<(Step, bool)>,
    /// Damage: a link, one of its segments, a byte there, and the number to add to it.
    damage: Option<(u8, u8, u16, u8)>,
}

/// Applies links one by one, in one pass, and as patches of memory.
pub fn sequence(data: &[u8]) {
    single_threaded();
    let Ok(sequence) = Sequence::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let base = sequence.start.state();
    let mut files = Vec::new();
    let mut last = base.clone();
    for (step, is_direct) in sequence.steps.iter().take(6) {
        let next = step.after(&last);
        files.push(link(
            &last,
            &next,
            if *is_direct {
                Profile::Direct
            } else {
                Profile::Compact
            },
        ));
        last = next;
    }
    if let Some((number, segment, place, change)) = sequence.damage
        && let Some(file) = files.get_mut(usize::from(number) % 6)
        && let Some(mut parts) = Parts::of(file)
    {
        let count = parts.segments.len().max(1);
        if let Some(segment) = parts.segments.get_mut(usize::from(segment) % count) {
            let length = segment.len().max(1);
            let place = usize::from(place) % length;
            segment
                .get_mut(place)
                .into_iter()
                .for_each(|byte| *byte = byte.wrapping_add(change));
            *file = parts.join(false);
        }
    }
    let open = |file| LinkReader::open(file, &Limits::default());
    let Ok(links) = files
        .iter()
        .map(open)
        .collect::<Result<Vec<LinkReader<&Vec<u8>>>>>()
    else {
        return;
    };

    let expected = one_by_one(&links, &base);
    let mut replay = Replay::new(table_of(&base));
    if links.iter().try_for_each(|link| replay.push(link)).is_err() {
        return;
    }
    let mut written = MemoryState::zeros(&replay.tensors()).expect("it fits in memory");
    let built = replay.run(&base, &written.writer(), &());
    refused_by_rule(&built);
    let mut memory = base.clone();
    let patches = replay.patches(&base, &memory, u64::MAX, &());
    assert!(memory == base, "memory has changed before it was patched");
    match (built, patches, expected) {
        (Ok(_), Ok(mut set), Ok(state)) => {
            assert!(written == state, "in one pass, links lead to another state");
            assert!(
                sequence.damage.is_some() || state == last,
                "links lead to another state"
            );
            let mut ready = set
                .stage(&mut memory)
                .expect("the set was made for this memory");
            ready.write().expect("nothing else can write to it");
            ready.put_back().expect("nothing else can write to it");
            assert!(memory == base, "undoing does not restore memory");
            set.stage(&mut memory)
                .expect("memory is unchanged")
                .write()
                .expect("nothing else can write to it");
            assert!(memory == state, "patched memory has another state");
        }
        (Err(built), Err(patched), Err((link, one))) => {
            for found in [built, patched] {
                assert_eq!(
                    (found.link(), place_of(&found)),
                    (Some(link), place_of(&one)),
                    "another fault was found"
                );
            }
        }
        // SPEC section 9: the digest of an intermediate state is wrong, and no tensor of the result
        // shows it.
        (Ok(_), Ok(_), Err((link, one))) => {
            assert!(
                one.rule() == Some("R-APP-04") && link + 1 < links.len(),
                "missed: {one}"
            );
        }
        (built, patches, expected) => {
            let results = (built.err(), patches.err(), expected.err());
            panic!("the ways of applying links disagree: {results:?}");
        }
    }
}

fn table_of(state: &MemoryState) -> StateTable {
    StateTable::of(state, &()).expect("memory can be read")
}

fn place_of(error: &Error) -> (Option<&str>, Option<u64>, Option<&str>) {
    (error.rule(), error.offset(), error.tensor())
}

/// Applies one link after another, and compares digests after each. An error comes with the number
/// of the link.
fn one_by_one(
    links: &[LinkReader<&Vec<u8>>],
    base: &MemoryState,
) -> Result<MemoryState, (usize, Error)> {
    let mut state = base.clone();
    for (number, link) in links.iter().enumerate() {
        let apply = || {
            let mut replay = Replay::new(table_of(&state));
            replay.push(link)?;
            let mut next = MemoryState::zeros(&replay.tensors())?;
            replay.run(&state, &next.writer(), &()).map(|_| next)
        };
        state = apply().map_err(|error| (number, error))?;
    }
    Ok(state)
}
