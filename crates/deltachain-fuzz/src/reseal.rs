//! Links whose content is mutated and whose lengths and checksums are then corrected, so that the
//! code behind those checks is reached; and the results on which all ways of reading one link must
//! agree.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use deltachain::format::{Start, TensorEntry};
use deltachain::tensor::{
    Digest, MemoryState, MemoryWriter, PIECE_BYTES, State, StateDigests, StateWriter, TensorInfo,
};
use deltachain::{Limits, LinkReader, Patch, Replay, Result, StateTable};

use crate::memory::single_threaded;
use crate::raw::{limits, refused_by_rule};
use crate::seal::{Parts, Stream, join_streams, streams};
use crate::states::BASES;

/// Maximum number of bytes that one mutation adds to a part of a link.
const ROOM: usize = 32;

/// Mutates a link, the first `size` bytes of `data`, and returns its new length, at most `most`.
/// `plainly` mutates bytes without regard to their meaning.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    most: usize,
    seed: u32,
    plainly: impl Fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut random = fastrand::Rng::with_seed(seed.into());
    // Now and then nothing is corrected, so that readers see damage, too.
    let Some(mut parts) = Parts::of(&data[..size]) else {
        return plainly(data, size, most);
    };
    if random.u8(..16) == 0 {
        return plainly(data, size, most);
    }
    let change = |bytes: &mut Vec<u8>| {
        let before = bytes.len();
        bytes.resize(before + ROOM, 0);
        let after = plainly(bytes, before, before + ROOM);
        bytes.truncate(after);
    };
    let compress = random.u8(..4) == 0;
    let codings = parts.codings();
    let number = random.usize(..codings.len().max(1));
    let chosen = parts.segments.get_mut(number).zip(codings.get(number));
    match (random.u8(..12), chosen) {
        (0, _) => parts.header[24..56]
            .copy_from_slice(&random.choice(&*BASES).expect("there are bases").1.state.0),
        // Features, reserved field and digests.
        (1, _) => parts.header[random.usize(12..88)] = random.u8(..),
        (2, Some((segment, _))) => change(segment),
        (3..9, Some((segment, &coding))) => match streams(segment, coding) {
            Some(mut all) => {
                let stream = random.usize(..all.len());
                let mut raw = all[stream].raw();
                change(&mut raw);
                all[stream] = Stream::of(&raw, compress);
                *segment = join_streams(&all);
            }
            None => change(segment),
        },
        (9, _) => change(&mut parts.extension),
        _ => change(&mut parts.index),
    }
    let mut file = parts.join(compress);
    if let Some(promised) = promised(&file)
        && random.u8(..4) > 0
    {
        parts.header[56..88].copy_from_slice(&promised.0);
        file = parts.join(compress);
    }
    if file.len() > most {
        return plainly(data, size, most);
    }
    data[..file.len()].copy_from_slice(&file);
    file.len()
}

/// Returns the digest of the target that the index of a link describes, if the base is one of ours:
/// without this digest in the header no segment is decoded.
fn promised(file: &[u8]) -> Option<Digest> {
    let link = LinkReader::open(file, &limits()).ok()?;
    let (base, digests) = BASES
        .iter()
        .find(|(_, digests)| digests.state == link.header().base)?;
    let held = base
        .tensors()
        .iter()
        .zip(&digests.tensors)
        .map(|(info, &digest)| (info.name(), (info, digest)));
    let mut tensors: BTreeMap<&str, (&TensorInfo, Digest)> = held.collect();
    for entry in &link.index().tensors {
        match entry.written() {
            Some(written) => tensors.insert(entry.name(), (&written.info, written.digest())),
            None => tensors.remove(entry.name()),
        };
    }
    let (infos, digests): (Vec<TensorInfo>, Vec<Digest>) = tensors
        .into_values()
        .map(|(info, digest)| (info.clone(), digest))
        .unzip();
    Some(StateDigests::from_tensors(&infos, digests).state)
}

/// Reads a link in every possible way, and checks that the results agree.
pub fn reseal(data: &[u8]) {
    single_threaded();
    let link = LinkReader::open(data, &limits());
    refused_by_rule(&link);
    let Ok(link) = link else { return };
    let checked = link.verify(&());
    refused_by_rule(&checked);
    assert_eq!(link.header().to_bytes(), data[..128]);
    for (base, digests) in BASES
        .iter()
        .filter(|(_, digests)| digests.state == link.header().base)
    {
        let Some(patched) = agree(&link, checked.is_ok(), base, digests) else {
            continue;
        };
        let honest = honest(data, &link, &patched);
        let link = LinkReader::open(&honest[..], &limits()).expect("only digests were exchanged");
        let again = agree(&link, link.verify(&()).is_ok(), base, digests)
            .expect("only digests were exchanged");
        assert!(
            again == patched
                && link.header().target == promised(&honest).expect("the base is ours")
        );
    }
}

/// Returns the same link with the digests of the data that its segments make from the base, so that
/// the code behind the digests is reached, too.
fn honest(file: &[u8], link: &LinkReader<&[u8]>, patched: &Patched) -> Vec<u8> {
    let mut index = link.index().clone();
    for entry in &mut index.tensors {
        let TensorEntry::Write(written) = entry else {
            continue;
        };
        let data = patched
            .get(written.info.name())
            .expect("the link writes it");
        let pieces = data.chunks(usize::try_from(PIECE_BYTES).expect("a piece is in memory"));
        written.digests = if data.is_empty() {
            vec![Digest::of_bytes(data)]
        } else {
            pieces.map(Digest::of_bytes).collect()
        };
    }
    let mut parts = Parts::of(file).expect("the link has a header");
    parts.index = index.to_bytes();
    let target = promised(&parts.join(false)).expect("the base is ours");
    parts.header[56..88].copy_from_slice(&target.0);
    parts.join(false)
}

/// Compares the ways of applying a link to its base; `passed` is true if *check* accepts the link.
/// Returns the patched tensors, if the link fits the base and all segments can be decoded; their
/// digests may still be wrong.
fn agree(
    link: &LinkReader<&[u8]>,
    passed: bool,
    base: &MemoryState,
    digests: &StateDigests,
) -> Option<Patched> {
    let mut replay = Replay::new(StateTable {
        tensors: base.tensors().to_vec(),
        digests: digests.clone(),
    });
    let pushed = replay.push(link);
    refused_by_rule(&pushed);
    pushed.ok()?;
    assert_eq!(
        replay.table().digests.state,
        link.header().target,
        "the planned state is not the target"
    );
    let mut written = room(&replay.tensors());
    let counted = Counted {
        writer: written.writer(),
        bytes: AtomicU64::new(0),
    };
    let result = replay.run(base, &counted, &());
    refused_by_rule(&result);
    // Digests are compared only after all segments have been applied. After any other refusal there
    // is nothing to compare.
    let refused = result.as_ref().err();
    if refused.is_some_and(|error| error.rule() != Some("R-APP-04")) {
        return None;
    }
    assert!(passed, "a link was applied although check refuses it");
    // No byte is written twice; the zeros of new tensors may be left unwritten.
    let bytes: u64 = replay.work();
    let times = counted.bytes.into_inner();
    assert!(times <= bytes, "{times} bytes were written for {bytes}");

    let patches = link
        .patches(|_| true, Some(base))
        .collect::<Result<Vec<_>>>()
        .expect("an applied link has patches");
    let mut patched = Patched::new(link, base);
    patches.iter().for_each(|patch| patched.lay(patch));
    match refused {
        Some(error) => {
            let name = error.tensor().expect("a digest is of a tensor");
            let entry = &link.index().tensors[link.index().find(name).expect("the link writes it")];
            let reached = Digest::of_tensor(patched.get(name).expect("the link writes it"));
            assert!(
                entry
                    .written()
                    .is_some_and(|written| written.digest() != reached),
                "a right tensor was refused"
            );
        }
        None => {
            assert_eq!(
                StateDigests::of(&written, &())
                    .expect("memory can be read")
                    .state,
                link.header().target
            );
            for (info, data) in written.iter() {
                let expected = patched
                    .get(info.name())
                    .or(base.get(info.name()).map(|(_, data)| data));
                assert!(
                    expected == Some(data),
                    "patches and application differ in {:?}",
                    info.name()
                );
            }
        }
    }
    // Patches of one tensor at a time, in two ranges that meet at an arbitrary lane, give the same
    // result.
    let mut halves = Patched::new(link, base);
    for info in link
        .index()
        .tensors
        .iter()
        .filter_map(|entry| Some(&entry.written()?.info))
    {
        let cut = u64::from(link.header().index_crc) % (info.lanes() + 1);
        for lanes in [0..cut, cut..info.lanes()] {
            for patch in link.tensor_patches(info.name(), lanes.clone(), Some(base)) {
                let patch = patch.expect("an applied link has patches");
                assert!(patch.lanes.start >= lanes.start && patch.lanes.end <= lanes.end);
                halves.lay(&patch);
            }
        }
    }
    assert!(
        halves == patched,
        "patches by range differ from those in order"
    );
    Some(patched)
}

/// Counts the bytes that an application writes, and accepts them as a file does.
struct Counted<'a> {
    writer: MemoryWriter<'a>,
    bytes: AtomicU64,
}

impl StateWriter for Counted<'_> {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.writer.write(tensor, offset, bytes)
    }
}

/// Allocates a state that an application can write to.
pub(crate) fn room(tensors: &[TensorInfo]) -> MemoryState {
    MemoryState::zeros(tensors).expect("the tensors fit in memory")
}

fn length(info: &TensorInfo) -> usize {
    usize::try_from(info.bytes()).expect("the tensor fits in memory")
}

/// The tensors that a link writes, by name, as its patches change them.
#[derive(PartialEq)]
struct Patched(Vec<(String, Vec<u8>)>);

impl Patched {
    /// Makes the data that the tensors start from.
    fn new(link: &LinkReader<&[u8]>, base: &MemoryState) -> Self {
        let written = link
            .index()
            .tensors
            .iter()
            .filter_map(|entry| entry.written());
        let starts = written.map(|written| {
            let name = written.info.name();
            let data = match written.start {
                Start::Zeros => vec![0; length(&written.info)],
                Start::Base => base
                    .get(name)
                    .expect("the application has found it")
                    .1
                    .to_vec(),
            };
            (name.to_owned(), data)
        });
        Self(starts.collect())
    }

    fn lay(&mut self, patch: &Patch<'_>) {
        let place = self
            .0
            .binary_search_by(|(name, _)| name.as_str().cmp(patch.tensor.name()));
        let data = &mut self.0[place.expect("the link writes the tensor")].1;
        let width = patch.dtype().lane_bytes();
        let indices = patch
            .indices
            .clone()
            .unwrap_or_else(|| patch.lanes.clone().collect());
        assert!(indices.is_sorted_by(|left, right| left < right) && indices.len() == patch.count());
        for (index, value) in indices.iter().zip(patch.values.chunks_exact(width)) {
            assert!(patch.lanes.contains(index));
            let at = usize::try_from(*index).expect("the tensor is in memory") * width;
            data[at..at + width].copy_from_slice(value);
        }
    }

    /// Returns the current data of a tensor, if the link writes it.
    fn get(&self, name: &str) -> Option<&[u8]> {
        let place = self
            .0
            .binary_search_by(|(written, _)| written.as_str().cmp(name));
        place.ok().map(|place| &*self.0[place].1)
    }
}

/// Checks that all ways of reading a good link give the target.
pub(crate) fn all_ways(file: &[u8], base: &MemoryState, target: &MemoryState) {
    let link = LinkReader::open(file, &Limits::default()).expect("a written link can be opened");
    link.verify(&()).expect("a written link passes");
    let digests = StateDigests::of(base, &()).expect("memory can be read");
    let mut replay = Replay::new(StateTable {
        tensors: base.tensors().to_vec(),
        digests: digests.clone(),
    });
    replay.push(&link).expect("the link belongs to its base");
    let mut written = room(&replay.tensors());
    let reached = replay
        .run(base, &written.writer(), &())
        .expect("the link can be applied");
    assert!(written == *target, "the result differs from the target");
    assert_eq!(
        reached,
        StateDigests::of(target, &()).expect("memory can be read")
    );
    agree(&link, true, base, &digests).expect("the link fits its base");
}
