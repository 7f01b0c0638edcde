//! `segments`: shows the coding of each segment of a link (SPEC sections 7 and 8), for people who
//! write a reader or look for an error in one.

use std::io::{self, Write};
use std::process::ExitCode;

use deltachain::format::{HEADER_BYTES, PositionCoding, Positions, SegmentEntry, Table, Values};
use deltachain::{FileSource, Limits, LinkReader, StreamLengths};
use serde_json::{Value, json};

use crate::args::SegmentsArgs;
use crate::problem::{Problem, Result};

type Link = LinkReader<FileSource>;

/// Maximum number of coded lanes shown for each part and context.
const FIRST: usize = 4;

/// The content of a segment.
#[derive(Debug)]
struct SegmentView<'a> {
    /// Position in the file.
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

/// The coded lanes of a part in one context.
#[derive(Debug)]
struct Run {
    coded: usize,
    /// Rank and value of the first coded lanes.
    first: Vec<(u64, u64)>,
}

/// Writes all segments to standard output, as an array of JSON.
pub(crate) fn run(args: &SegmentsArgs) -> Result<ExitCode> {
    let failed = |error: deltachain::Error| Problem::from(error.in_file(&args.link));
    let link = FileSource::open(&args.link)
        .and_then(|source| LinkReader::open(source, &Limits::default()))
        .map_err(failed)?;
    let segments: Value = read(&link)
        .map_err(failed)?
        .iter()
        .map(SegmentView::json)
        .collect();
    let text = serde_json::to_string_pretty(&segments).map_err(Problem::failed)?;
    writeln!(io::stdout(), "{text}").map_err(Problem::failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads all segments.
fn read(link: &Link) -> deltachain::Result<Vec<SegmentView<'_>>> {
    let mut offset = HEADER_BYTES + link.header().index_stored;
    let mut segments = Vec::new();
    for number in 0..link.index().segments.len() {
        let segment = read_segment(link, number, offset)?;
        offset += segment.entry.stored_length;
        segments.push(segment);
    }
    Ok(segments)
}

fn read_segment(link: &Link, number: usize, offset: u64) -> deltachain::Result<SegmentView<'_>> {
    let segment = link.segment(number)?;
    let index = link.index();
    let entry = index.segments[number];
    let parts = link
        .parts(number)
        .iter()
        .enumerate()
        .filter_map(|(place, part)| {
            let info = &index.tensors[part.entry].written()?.info;
            let bytes = info.piece(part.piece);
            let lane_bytes = entry.coding.lane_bytes as u64;
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

impl SegmentView<'_> {
    /// Returns the lane's number in its tensor, if it is known without the base.
    fn lane(&self, part: &PartView<'_>, rank: u64) -> Option<u64> {
        (self.table.contexts == 1).then_some(part.begin + rank)
    }

    /// Returns the signed difference, if values are relative.
    fn difference(&self, value: u64) -> Option<i64> {
        let unused = 64 - 8 * self.entry.coding.lane_bytes;
        self.entry
            .coding
            .is_relative()
            .then_some((value << unused).cast_signed() >> unused)
    }

    /// Formats the new lane.
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
            let symbol_bits = self.table.widths.get(context);
            json!({ "positions": positions, "shift": shift, "symbol_bits": symbol_bits })
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
                let lane = self.lane(part, rank);
                json!({ "rank": rank, "lane": lane, "bits": bits, "difference": difference })
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
