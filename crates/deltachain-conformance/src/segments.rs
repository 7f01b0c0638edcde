//! `inspect --segments`: each segment as it is coded (SPEC sections 7 and 8), for people who write
//! a reader or look for a fault in one.

use deltachain::format::{HEADER_BYTES, PositionCoding, Positions, SegmentEntry, Table, Values};
use deltachain::{Result, StreamLengths};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::inputs::OpenedLink;
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable};
use crate::table::layout;

/// How many coded lanes of each part and context are shown.
const FIRST: usize = 4;

/// A segment as its bytes say it.
#[derive(Debug)]
pub(crate) struct SegmentView<'a> {
    /// Where it stands in the file.
    offset: u64,
    entry: SegmentEntry,
    table: Table,
    streams: Vec<StreamLengths>,
    parts: Vec<PartView<'a>>,
}

#[derive(Debug)]
struct PartView<'a> {
    tensor: &'a str,
    piece: u64,
    /// First lane of the piece in its tensor.
    begin: u64,
    lanes: u64,
    runs: Vec<Run>,
}

/// The lanes of one context that a part codes.
#[derive(Debug)]
struct Run {
    coded: usize,
    /// Rank and value of the first coded lanes.
    first: Vec<(u64, u64)>,
}

/// Reads all segments.
pub(crate) fn read(link: &OpenedLink, output: Output) -> Result<Vec<SegmentView<'_>>> {
    let (header, index) = (link.reader.header(), link.reader.index());
    let meter = output.meter("reading", header.segments_length);
    let mut offset = HEADER_BYTES + header.index_stored;
    let offsets = index.segments.iter().map(|entry| {
        let own = offset;
        offset += entry.stored_length;
        own
    });
    let offsets: Vec<u64> = offsets.collect();
    let read = |(number, offset): (usize, u64)| {
        let shown = shown(link, number, offset)?;
        deltachain::Progress::advance(&meter, shown.entry.stored_length)?;
        Ok(shown)
    };
    let shown = offsets
        .into_par_iter()
        .enumerate()
        .map(read)
        .collect::<Result<_>>()?;
    interrupt::check()?;
    Ok(shown)
}

fn shown(link: &OpenedLink, number: usize, offset: u64) -> Result<SegmentView<'_>> {
    let segment = link.reader.segment(number)?;
    let index = link.reader.index();
    let entry = index.segments[number];
    let parts = link
        .reader
        .parts(number)
        .iter()
        .enumerate()
        .filter_map(|(place, part)| {
            let info = &index.tensors[part.entry].written()?.info;
            let (bytes, lane_bytes) = (info.piece(part.piece), entry.coding.lane_bytes as u64);
            let runs = segment.ranks(place).into_iter();
            Some(PartView {
                tensor: info.name(),
                piece: part.piece,
                begin: bytes.start / lane_bytes,
                lanes: (bytes.end - bytes.start) / lane_bytes,
                runs: runs
                    .map(|run| Run {
                        coded: run.len(),
                        first: run.take(FIRST).collect(),
                    })
                    .collect(),
            })
        });
    Ok(SegmentView {
        offset,
        entry,
        parts: parts.collect(),
        streams: segment.streams().collect(),
        table: segment.table().clone(),
    })
}

/// All segments for people, two tables each.
pub(crate) fn as_text(segments: &[SegmentView<'_>]) -> String {
    if segments.is_empty() {
        return "no segments: no tensor has coded lanes".to_owned();
    }
    let mut lines: Vec<String> = segments
        .iter()
        .enumerate()
        .map(|(number, segment)| segment.text(number))
        .collect();
    lines.push(
        "first: for each of the first coded lanes its number in the tensor, or, where that depends on the base, its\n\
         rank among the lanes of its context (r5); then its new bits as a hexadecimal number, or its difference."
            .to_owned(),
    );
    lines.join("\n\n")
}

/// All segments for machines.
pub(crate) fn as_json(segments: &[SegmentView<'_>]) -> Value {
    segments.iter().map(SegmentView::json).collect()
}

impl SegmentView<'_> {
    fn text(&self, number: usize) -> String {
        let Self {
            entry:
                SegmentEntry {
                    coding,
                    stored_length,
                    crc,
                },
            offset,
            table,
            ..
        } = self;
        let title = format!(
            "segment {number}  {}, lanes of {}, {}, {}; {} bytes from {} on, CRC {crc:08x}",
            coding.describe(),
            counted(coding.lane_bytes, "byte", "bytes"),
            counted(table.contexts, "context", "contexts"),
            counted(self.parts.len(), "part", "parts"),
            grouped(*stored_length),
            grouped(*offset),
        );
        let streams: Vec<Vec<String>> = self
            .streams
            .iter()
            .map(|stream| {
                vec![
                    grouped(stream.raw),
                    grouped(stream.stored),
                    stream.name.to_owned(),
                ]
            })
            .collect();
        let streams = layout(">raw|>stored|stream", &streams);
        let columns =
            ">part|>piece|>lanes|>context|exponents|positions|symbols|>count|>coded|first|tensor";
        let mut rows = Vec::new();
        for (place, part) in self.parts.iter().enumerate() {
            for (context, run) in part.runs.iter().enumerate() {
                rows.push(vec![
                    grouped(place as u64),
                    grouped(part.piece),
                    grouped(part.lanes),
                    context.to_string(),
                    self.exponents(place, context),
                    self.positions(context),
                    table
                        .widths
                        .get(context)
                        .map_or_else(|| "-".to_owned(), |width| format!("{width} bits")),
                    grouped(table.counts(place)[context].into()),
                    grouped(run.coded as u64),
                    self.first(part, run),
                    printable(part.tensor),
                ]);
            }
        }
        format!("{title}\n{streams}\n{}", layout(columns, &rows))
    }

    /// Exponent fields of the base lanes that a context of a part has as its members.
    fn exponents(&self, part: usize, context: usize) -> String {
        let thresholds = self.table.thresholds(part);
        let begin = context
            .checked_sub(1)
            .map_or(0, |before| thresholds[before]);
        match thresholds.get(context) {
            None if begin == 0 => "all".to_owned(),
            None => format!("{begin}-"),
            Some(&end) if end <= begin => "none".to_owned(),
            Some(&end) => format!("{begin}-{}", end - 1),
        }
    }

    fn positions(&self, context: usize) -> String {
        match self.table.positions.get(context) {
            None => "all".to_owned(),
            Some(PositionCoding::Bitmap) => "bitmap".to_owned(),
            Some(PositionCoding::Gaps(shift)) => format!("gaps, shift {shift}"),
        }
    }

    fn first(&self, part: &PartView<'_>, run: &Run) -> String {
        if run.coded == 0 {
            return "-".to_owned();
        }
        let lane = |rank: u64| match self.lane(part, rank) {
            Some(lane) => lane.to_string(),
            None => format!("r{rank}"),
        };
        let value = |value: u64| match self.difference(value) {
            Some(difference) => format!("{difference:+}"),
            None => self.bits(value),
        };
        let shown = run
            .first
            .iter()
            .map(|&(rank, bits)| format!("{} {}", lane(rank), value(bits)));
        let more = if run.coded > run.first.len() {
            ", ..."
        } else {
            ""
        };
        shown.collect::<Vec<_>>().join(", ") + more
    }

    /// The lane's number in its tensor, if that can be known without the base.
    fn lane(&self, part: &PartView<'_>, rank: u64) -> Option<u64> {
        (self.table.contexts == 1).then_some(part.begin + rank)
    }

    /// The signed difference, if values are relative.
    fn difference(&self, value: u64) -> Option<i64> {
        let unused = 64 - 8 * self.entry.coding.lane_bytes;
        self.entry
            .coding
            .is_relative()
            .then_some((value << unused).cast_signed() >> unused)
    }

    /// The new lane.
    fn bits(&self, value: u64) -> String {
        format!(
            "{value:0digits$X}",
            digits = 2 * self.entry.coding.lane_bytes
        )
    }

    fn json(&self) -> Value {
        let contexts = (0..self.table.contexts).map(|context| {
            let (positions, shift) = match self.table.positions.get(context) {
                None => ("all", None),
                Some(PositionCoding::Bitmap) => ("bitmap", None),
                Some(PositionCoding::Gaps(shift)) => ("gaps", Some(*shift)),
            };
            json!({ "positions": positions, "shift": shift, "symbol_bits": self.table.widths.get(context) })
        });
        let streams = self.streams.iter();
        let streams = streams.map(|s| json!({ "name": s.name, "raw": s.raw, "stored": s.stored }));
        let parts = self
            .parts
            .iter()
            .enumerate()
            .map(|(place, part)| self.part_json(place, part));
        json!({
            "offset": self.offset,
            "bytes": self.entry.stored_length,
            "crc": format!("{:08x}", self.entry.crc),
            "lane_bytes": self.entry.coding.lane_bytes,
            "positions": match self.entry.coding.positions {
                Positions::Dense => "dense",
                Positions::Sparse => "sparse",
            },
            "values": match self.entry.coding.values {
                Values::Absolute => "absolute",
                Values::RelativePlanes => "relative planes",
                Values::RelativeSmall => "relative small",
            },
            "contexts": contexts.collect::<Vec<_>>(),
            "streams": streams.collect::<Vec<_>>(),
            "parts": parts.collect::<Vec<_>>(),
        })
    }

    fn part_json(&self, place: usize, part: &PartView<'_>) -> Value {
        let counts = self.table.counts(place).iter().zip(&part.runs);
        let contexts = counts.map(|(count, run)| {
            let first = run.first.iter().map(|&(rank, value)| {
                let difference = self.difference(value);
                let bits = difference.is_none().then(|| self.bits(value));
                json!({ "rank": rank, "lane": self.lane(part, rank), "bits": bits, "difference": difference })
            });
            json!({ "count": count, "coded": run.coded, "first": first.collect::<Vec<_>>() })
        });
        json!({
            "tensor": part.tensor,
            "piece": part.piece,
            "lanes": part.lanes,
            "thresholds": self.table.thresholds(place),
            "contexts": contexts.collect::<Vec<_>>(),
        })
    }
}
