//! Joining links: several links in order become one, without the states between them.
//!
//! Absolute values compose: of each lane the last one counts. Relative values with contexts do not, because their
//! positions are known only with the base's lanes; then apply the links and take the difference.

use std::collections::BTreeMap;
use std::io::Write;

use crate::codec::encode::encode;
use crate::codec::lane::with_lane;
use crate::codec::piece::{PieceInput, Profile};
use crate::error::{Error, Result};
use crate::files::{LAYOUT_KEY, Layout};
use crate::format::stream::Compressor;
use crate::format::{Index, Start, TensorEntry, WrittenTensor};
use crate::groups::Groups;
use crate::limits::address;
use crate::link::LinkReader;
use crate::link_writer::LinkWriter;
use crate::patches::Patches;
use crate::source::Source;
use crate::table::check_sequence;
use crate::tensor::{Digest, Dtype, TensorInfo};

/// Joins links that follow one another into one link of the direct profile, from the first one's base to the last one's
/// target. Metadata of later links replaces that of earlier ones. The new link carries no sums, because no bytes of the
/// target are hashed here (R-SUM-01). Returns the new link's length.
///
/// # Errors
/// R-APP-06 if the links do not follow one another; USAGE if there is no link, or if one of them has relative values;
/// errors of reading the links and of writing.
pub fn squash<S: Source>(links: &[&LinkReader<S>], out: &mut dyn Write) -> Result<u64> {
    let (Some(first), Some(last)) = (links.first(), links.last()) else {
        return Err(Error::usage("no link to squash"));
    };
    check_sequence(links)?;
    if let Some(number) = links.iter().position(|link| !link.is_direct()) {
        let message = format!("link {} has values relative to its base; squash it with the base at hand", number + 1);
        return Err(Error::usage(message));
    }
    // For each name the links that speak of it, and the numbers of their entries.
    let mut histories: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    for (link, reader) in links.iter().enumerate() {
        metadata.extend(reader.index().metadata.clone());
        for (entry, tensor) in reader.index().tensors.iter().enumerate() {
            histories.entry(tensor.name()).or_default().push((link, entry));
        }
    }

    let layouts = links.iter().map(|link| {
        let entries = &link.index().tensors;
        let named = |is_written: bool| {
            entries.iter().filter(move |entry| entry.written().is_some() == is_written).map(TensorEntry::name)
        };
        let layout = link.index().metadata.get(LAYOUT_KEY).map(String::as_str);
        (layout, named(true).collect(), named(false).collect())
    });
    if let Some(layout) = Layout::through(layouts)? {
        metadata.insert(LAYOUT_KEY.to_owned(), layout);
    }

    let from_nothing = first.header().base == Digest::of_empty_state();
    let mut squasher = Squasher {
        links,
        patches: links.iter().map(|link| link.patches(|_| false, None)).collect(),
        writer: LinkWriter::default(),
        groups: Groups::new(),
        entries: Vec::new(),
    };
    for (name, history) in histories {
        match history.last().map(|&(link, entry)| &links[link].index().tensors[entry]) {
            Some(TensorEntry::Write(written)) => squasher.add(&history, written)?,
            // What was added on the way and is gone again was never in an empty base.
            Some(TensorEntry::Remove(_)) if !from_nothing => {
                squasher.entries.push(TensorEntry::Remove(name.to_owned()));
            }
            _ => {}
        }
    }
    let (writer, tensors) = squasher.finish()?;
    let index = Index { metadata, segments: Vec::new(), tensors };
    writer.finish(first.header().base, last.header().target, index, None, out)
}

/// A composed piece, as states whose difference it is.
struct Composed {
    /// Number of its tensor's entry in the new link, and of the piece.
    place: (usize, u64),
    base: Option<Vec<u8>>,
    target: Vec<u8>,
    /// Whether only the differing lanes are known.
    sparse: bool,
}

struct Squasher<'a, S> {
    links: &'a [&'a LinkReader<S>],
    /// One per link: keeps the segments decoded that the next pieces are likely to need.
    patches: Vec<Patches<'a, S>>,
    writer: LinkWriter,
    groups: Groups<Composed>,
    entries: Vec<TensorEntry>,
}

impl<S: Source> Squasher<'_, S> {
    /// Adds a tensor with its history: the links and their entries for it; `last` is the last one.
    fn add(&mut self, history: &[(usize, usize)], last: &WrittenTensor) -> Result<()> {
        let links = self.links;
        let written = |&(link, entry): &(usize, usize)| links[link].index().tensors[entry].written();
        // Only what follows the last *set* matters; everything, if there is none.
        let set = history.iter().rposition(|place| written(place).is_some_and(|w| w.start == Start::Zeros));
        let relevant = &history[set.unwrap_or(0)..];
        let start = if set.is_some() { Start::Zeros } else { Start::Base };
        let number = self.entries.len();
        let pieces = vec![None; address(last.info.pieces())?];
        self.entries.push(TensorEntry::Write(WrittenTensor { start, pieces, ..last.clone() }.into()));
        for piece in 0..last.info.pieces() {
            if let Some(composed) = self.compose(relevant, &last.info, (number, piece), start)? {
                let bytes = composed.target.len() as u64;
                if let Some(group) = self.groups.push(last.info.dtype(), bytes, composed) {
                    encode_group(last.info.dtype(), &group, &mut self.writer, &mut self.entries)?;
                }
            }
        }
        Ok(())
    }

    /// Lays the parts of one piece over one another; `None` if it has none.
    fn compose(
        &mut self,
        history: &[(usize, usize)],
        info: &TensorInfo,
        place: (usize, u64),
        start: Start,
    ) -> Result<Option<Composed>> {
        let range = info.piece(place.1);
        let length = address(range.end - range.start)?;
        let lane_bytes = info.dtype().lane_bytes();
        let first = range.start / lane_bytes as u64;
        let mut target = Vec::new();
        // Where nothing is known of the base, lanes that are written differ from it, and the others do not.
        let mut known = Vec::new();
        for &(link, entry) in history {
            let Some(patch) = self.patches[link].of_piece(entry, place.1)? else { continue };
            target.resize(length, 0);
            known.resize(length / lane_bytes, false);
            let indices = patch.indices.unwrap_or_else(|| patch.lanes.collect());
            for (index, value) in indices.into_iter().zip(patch.values.chunks_exact(lane_bytes)) {
                let lane = address(index - first)?;
                known[lane] = true;
                target[lane * lane_bytes..(lane + 1) * lane_bytes].copy_from_slice(value);
            }
        }
        if target.is_empty() {
            return Ok(None);
        }
        if start == Start::Zeros {
            return Ok(Some(Composed { place, base: None, target, sparse: false }));
        }
        let mut base = target.clone();
        for (lane, &known) in base.chunks_exact_mut(lane_bytes).zip(&known) {
            if known {
                lane.iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        Ok(Some(Composed { place, base: Some(base), sparse: known.contains(&false), target }))
    }

    fn finish(mut self) -> Result<(LinkWriter, Vec<TensorEntry>)> {
        for (dtype, group) in self.groups.finish() {
            encode_group(dtype, &group, &mut self.writer, &mut self.entries)?;
        }
        Ok((self.writer, self.entries))
    }
}

/// Encodes composed pieces of one dtype, and notes in their entries which segments they are in.
fn encode_group(dtype: Dtype, group: &[Composed], writer: &mut LinkWriter, entries: &mut [TensorEntry]) -> Result<()> {
    let inputs: Vec<PieceInput<'_>> = group
        .iter()
        .map(|piece| PieceInput { base: piece.base.as_deref(), target: &piece.target, sparse: piece.sparse })
        .collect();
    let compressor = &mut Compressor::default();
    let (segments, _) = with_lane!(dtype.lane_bytes(), L => {
        encode::<L, ()>(dtype, &inputs, Profile::Direct, compressor, |_| ())
    })?;
    for segment in segments {
        let number = writer.push(segment.coding, segment.bytes)?;
        for index in segment.pieces {
            let (entry, piece) = group[index].place;
            if let TensorEntry::Write(written) = &mut entries[entry] {
                written.pieces[address(piece)?] = Some(number);
            }
        }
    }
    Ok(())
}
