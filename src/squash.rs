//! Joining links: several links in order become one, without the states between them.
//!
//! Absolute values compose: of each lane the last one counts. Relative values with contexts do not, because their
//! positions are known only with the base's lanes; then apply the links and take the difference.

use std::collections::BTreeMap;
use std::io::Write;

use crate::codec::encode::{PieceInput, Profile, encode};
use crate::codec::lane::with_lane;
use crate::error::{Error, Result};
use crate::format::stream::Compressor;
use crate::format::{Index, Start, TensorEntry, WrittenTensor};
use crate::limits::{MAX_SEGMENT_BYTES, MAX_SEGMENT_PARTS, address};
use crate::link::LinkReader;
use crate::link_writer::LinkWriter;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::tensor::{Digest, Dtype, LAYOUT_KEY, Layout, TensorInfo};

/// Checks that each link's base is the target of the link before it.
///
/// # Errors
/// R-APP-06 (`WRONG_BASE`).
pub fn check_sequence<S: Source>(links: &[&LinkReader<S>]) -> Result<()> {
    for (number, pair) in links.windows(2).enumerate() {
        let (reached, base) = (pair[0].header().target, pair[1].header().base);
        ensure(reached == base, &rules::APP_06, || {
            format!("link {} leads to {reached}, link {} starts from {base}", number + 1, number + 2)
        })?;
    }
    Ok(())
}

/// Joins links that follow one another into one link of the direct profile, from the first one's base to the last one's
/// target. Metadata of later links replaces that of earlier ones. Returns the new link's length.
///
/// # Errors
/// R-APP-06 if the links do not follow one another; USAGE if there is none, or if one of them has relative values; those
/// of reading the links and of writing.
pub fn squash<S: Source>(links: &[&LinkReader<S>], out: &mut dyn Write) -> Result<u64> {
    let (Some(first), Some(last)) = (links.first(), links.last()) else {
        return Err(Error::usage("no link to squash"));
    };
    check_sequence(links)?;
    if let Some(number) = links.iter().position(|link| !link.is_direct()) {
        let message = format!("link {} has values relative to its base; squash it with the base at hand", number + 1);
        return Err(Error::usage(message));
    }
    let mut composed: BTreeMap<&str, Vec<(usize, &TensorEntry)>> = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    for (number, link) in links.iter().enumerate() {
        metadata.extend(link.index().metadata.clone());
        for entry in &link.index().tensors {
            composed.entry(entry.name()).or_default().push((number, entry));
        }
    }

    let mut groups = Groups { writer: LinkWriter::new(), open: BTreeMap::new(), entries: Vec::new() };
    let layouts = links.iter().map(|link| {
        let entries = &link.index().tensors;
        let written = entries.iter().filter(|entry| entry.written().is_some()).map(TensorEntry::name).collect();
        let removed = entries.iter().filter(|entry| entry.written().is_none()).map(TensorEntry::name).collect();
        (link.index().metadata.get(LAYOUT_KEY).map(String::as_str), written, removed)
    });
    if let Some(layout) = Layout::through(layouts)? {
        metadata.insert(LAYOUT_KEY.to_owned(), layout);
    }

    let from_nothing = first.header().base == Digest::of_empty_state();
    for (name, history) in composed {
        match history.last() {
            Some((_, TensorEntry::Write(written))) => groups.add(links, &history, written)?,
            // What was added on the way and is gone again was never in an empty base.
            Some((_, TensorEntry::Remove(_))) if !from_nothing => {
                groups.entries.push(TensorEntry::Remove(name.to_owned()));
            }
            _ => {}
        }
    }
    let (writer, tensors) = groups.finish()?;
    let index = Index { metadata, segments: Vec::new(), tensors };
    writer.finish(first.header().base, last.header().target, index, out)
}

/// Pieces of one dtype that wait for a segment.
#[derive(Default)]
struct Group {
    pieces: Vec<Composed>,
    /// Entry and piece of each.
    places: Vec<(usize, u64)>,
    bytes: u64,
}

/// A composed piece, as states whose difference it is.
struct Composed {
    base: Option<Vec<u8>>,
    target: Vec<u8>,
    /// Whether only the differing lanes are known.
    sparse: bool,
}

struct Groups {
    writer: LinkWriter,
    open: BTreeMap<Dtype, Group>,
    entries: Vec<TensorEntry>,
}

impl Groups {
    /// Adds a tensor with its history: the entries of the links that speak of it, the last of which is `last`.
    fn add<S: Source>(
        &mut self,
        links: &[&LinkReader<S>],
        history: &[(usize, &TensorEntry)],
        last: &WrittenTensor,
    ) -> Result<()> {
        // Only what follows the last *set* matters.
        let set = history.iter().rposition(|(_, entry)| entry.written().is_some_and(|w| w.start == Start::Zeros));
        let relevant = &history[set.unwrap_or(0)..];
        let start = if set.is_some() { Start::Zeros } else { Start::Base };
        let number = self.entries.len();
        let pieces = vec![None; address(last.info.pieces())?];
        self.entries.push(TensorEntry::Write(WrittenTensor { start, pieces, ..last.clone() }));
        for piece in 0..last.info.pieces() {
            let touched = relevant.iter().any(|(_, entry)| {
                let pieces = entry.written().map(|written| written.pieces.as_slice()).unwrap_or_default();
                usize::try_from(piece).ok().and_then(|piece| pieces.get(piece)).is_some_and(Option::is_some)
            });
            if touched {
                let composed = compose(links, relevant, &last.info, piece, start)?;
                self.push(&last.info, number, piece, composed)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, info: &TensorInfo, entry: usize, piece: u64, composed: Composed) -> Result<()> {
        let bytes = composed.target.len() as u64;
        let group = self.open.entry(info.dtype()).or_default();
        if group.bytes + bytes > MAX_SEGMENT_BYTES || group.pieces.len() as u64 >= MAX_SEGMENT_PARTS {
            let full = std::mem::take(group);
            self.close(info.dtype(), &full)?;
        }
        let group = self.open.entry(info.dtype()).or_default();
        group.pieces.push(composed);
        group.places.push((entry, piece));
        group.bytes += bytes;
        Ok(())
    }

    fn close(&mut self, dtype: Dtype, group: &Group) -> Result<()> {
        let inputs: Vec<PieceInput<'_>> = group
            .pieces
            .iter()
            .map(|piece| PieceInput { base: piece.base.as_deref(), target: &piece.target, sparse: piece.sparse })
            .collect();
        let compressor = &mut Compressor::new();
        let (segments, _) =
            with_lane!(dtype.lane_bytes(), L => encode::<L>(dtype, &inputs, Profile::Direct, compressor))?;
        for segment in segments {
            let number = self.writer.push(segment.coding, &segment.bytes)?;
            for index in segment.pieces {
                let (entry, piece) = group.places[index];
                if let TensorEntry::Write(written) = &mut self.entries[entry] {
                    written.pieces[address(piece)?] = Some(number);
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(LinkWriter, Vec<TensorEntry>)> {
        for (dtype, group) in std::mem::take(&mut self.open) {
            self.close(dtype, &group)?;
        }
        Ok((self.writer, self.entries))
    }
}

/// Lays the parts of one piece over one another.
fn compose<S: Source>(
    links: &[&LinkReader<S>],
    history: &[(usize, &TensorEntry)],
    info: &TensorInfo,
    piece: u64,
    start: Start,
) -> Result<Composed> {
    let range = info.piece(piece);
    let length = address(range.end - range.start)?;
    let lane_bytes = info.dtype().lane_bytes();
    let mut target = vec![0; length];
    // Where nothing is known of the base, lanes that are written differ from it, and the others do not.
    let mut known = vec![false; length / lane_bytes];
    for &(number, entry) in history {
        let first = range.start / lane_bytes as u64;
        let lanes = first..range.end / lane_bytes as u64;
        for patch in links[number].tensor_patches(entry.name(), lanes, None) {
            let patch = patch?;
            let indices = patch.indices.unwrap_or_else(|| patch.lanes.collect());
            for (index, value) in indices.into_iter().zip(patch.values.chunks_exact(lane_bytes)) {
                let lane = address(index - first)?;
                known[lane] = true;
                target[lane * lane_bytes..(lane + 1) * lane_bytes].copy_from_slice(value);
            }
        }
    }
    if start == Start::Zeros {
        return Ok(Composed { base: None, target, sparse: false });
    }
    let mut base = target.clone();
    for (lane, &known) in base.chunks_exact_mut(lane_bytes).zip(&known) {
        if known {
            lane.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
    Ok(Composed { base: Some(base), sparse: known.contains(&false), target })
}
