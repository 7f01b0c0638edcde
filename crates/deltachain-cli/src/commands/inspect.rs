//! `inspect`: shows what a link holds, tensor by tensor.

use std::collections::BTreeSet;
use std::path::Path;

use deltachain::format::{HEADER_BYTES, Start, TensorEntry, VERSION};
use deltachain::{Error, Result};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::commands::inspect_html;
use crate::inputs::OpenedLink;
use crate::interrupt;
use crate::numbers::{bits_each, counted, decimal, grouped, percent, ratio, share_out};
use crate::output::{Output, printable, printable_path};
use crate::table::layout;

/// Longer metadata values are cut for people: a layout of many files can be megabytes.
const SHOWN_CHARACTERS: usize = 160;

pub(crate) fn run(args: &InspectArgs, output: Output) -> Result<()> {
    if is_chain(&args.path) {
        return match &args.html {
            Some(page) => inspect_html::write_chain(args, page, output),
            None => Err(Error::usage("this is a chain, not a link")
                .with_advice("use log or show; or --html FILE for a page")
                .in_file(&args.path)),
        };
    }
    if !args.store.settings.is_empty() {
        return Err(Error::usage("--store is for chains, and this is a link").in_file(&args.path));
    }
    let link = OpenedLink::open(&args.path, &args.limits.limits())?;
    let in_file = |error: deltachain::Error| error.in_file(&link.path);
    // The check comes before the work of reading all segments.
    args.html
        .as_deref()
        .map(|page| inspect_html::check(&link, page, args.force))
        .transpose()?;
    let rows = rows(&link, output).map_err(in_file)?;
    if let Some(page) = &args.html {
        return inspect_html::write(&link, page, args.force, output);
    }
    output.result(|| as_text(&link, &rows), || as_json(&link, &rows))
}

/// True if this is the directory or URL of a chain, and not a link.
fn is_chain(path: &Path) -> bool {
    path.is_dir() || path.to_str().is_some_and(|text| text.contains("://"))
}

/// The effect of the link on a tensor.
#[derive(Debug, Default, Serialize)]
struct Row<'a> {
    name: &'a str,
    operation: &'static str,
    /// Dtype and shape in the target; none for a removed tensor.
    dtype: Option<String>,
    shape: Option<&'a [u64]>,
    lanes: u64,
    /// Number of lanes that the link has values for.
    coded: u64,
    /// The tensor's share of the bytes of the segments.
    bytes: u64,
    codings: BTreeSet<&'static str>,
    /// The highest number of contexts in one segment.
    contexts: usize,
}

impl Row<'_> {
    fn add(&mut self, part: &Row<'_>) {
        self.lanes = self.lanes.saturating_add(part.lanes);
        self.coded = self.coded.saturating_add(part.coded);
        self.bytes = self.bytes.saturating_add(part.bytes);
        self.contexts = self.contexts.max(part.contexts);
        self.codings.extend(&part.codings);
    }
}

fn rows(link: &OpenedLink, output: Output) -> Result<Vec<Row<'_>>> {
    let index = link.reader.index();
    let mut rows: Vec<Row<'_>> = index.tensors.iter().map(start_row).collect();
    let meter = output.meter("reading", link.reader.header().segments_length);
    let parts: Vec<Vec<(usize, Row<'_>)>> = (0..index.segments.len())
        .into_par_iter()
        .map(|number| {
            let parts = segment_parts(link, number)?;
            deltachain::Progress::advance(&meter, index.segments[number].stored_length)?;
            Ok(parts)
        })
        .collect::<Result<_>>()?;
    interrupt::check()?;
    parts
        .iter()
        .flatten()
        .for_each(|(entry, part)| rows[*entry].add(part));
    Ok(rows)
}

fn start_row(entry: &TensorEntry) -> Row<'_> {
    match entry {
        TensorEntry::Remove(name) => Row {
            name,
            operation: "remove",
            ..Row::default()
        },
        TensorEntry::Write(written) => Row {
            name: written.info.name(),
            operation: match written.start {
                Start::Zeros => "set",
                Start::Base => "patch",
            },
            dtype: Some(written.info.dtype().to_string()),
            shape: Some(written.info.shape()),
            lanes: written.info.lanes(),
            ..Row::default()
        },
    }
}

/// Returns what a segment adds to the rows of its tensors, by the tensors' numbers in the index.
fn segment_parts(link: &OpenedLink, number: usize) -> Result<Vec<(usize, Row<'_>)>> {
    let segment = link.reader.segment(number)?;
    let parts = link.reader.parts(number);
    let entry = link.reader.index().segments[number];
    let coded: Vec<u64> = (0..parts.len())
        .map(|part| segment.coded_lanes(part))
        .collect();
    let bytes = share_out(entry.stored_length, &coded);
    let rows = parts
        .iter()
        .zip(coded)
        .zip(bytes)
        .map(|((part, coded), bytes)| {
            let contexts = segment.table().contexts;
            let codings = [entry.coding.describe()].into();
            (
                part.entry,
                Row {
                    coded,
                    bytes,
                    codings,
                    contexts,
                    ..Row::default()
                },
            )
        });
    Ok(rows.collect())
}

fn total(rows: &[Row<'_>]) -> Row<'static> {
    let mut total = Row::default();
    rows.iter().for_each(|row| total.add(row));
    total
}

fn as_text(link: &OpenedLink, rows: &[Row<'_>]) -> String {
    let header = link.reader.header();
    let values = if link.reader.is_direct() {
        "no relative values"
    } else {
        "relative values"
    };
    let features = if header.compatible_features == 0 {
        "no optional features".to_owned()
    } else {
        format!("compatible features {:#x}", header.compatible_features)
    };
    let mut lines = vec![
        format!("link      {}", printable_path(&link.path)),
        format!("format    version {VERSION}, {features}; {values}"),
        format!(
            "base      {}{}",
            header.base,
            if is_snapshot(link) {
                " (the empty state)"
            } else {
                ""
            }
        ),
        format!("target    {}", header.target),
        format!(
            "bytes     {} = header {HEADER_BYTES} + index {} ({} uncompressed) + {} {}{}",
            grouped(header.file_length()),
            grouped(header.index_stored),
            grouped(header.index_raw),
            counted(link.reader.index().segments.len(), "segment", "segments"),
            grouped(header.segments_length),
            match header.extension_length {
                0 => String::new(),
                length => format!(" + extension area {}", grouped(length)),
            },
        ),
    ];
    for (key, value) in &link.reader.index().metadata {
        lines.push(format!(
            "metadata  {} = {}",
            printable(key),
            shortened(value)
        ));
    }
    lines.push(String::new());
    if rows.is_empty() {
        lines.push("no tensors: base and target are equal".to_owned());
        return lines.join("\n");
    }
    lines.push(table(rows));
    lines.push(String::new());
    lines.push(
        "coded: lanes whose values are in the link. A sparse coding holds the lanes that change, a \
         dense one all lanes."
            .to_owned(),
    );
    lines.join("\n")
}

fn table(rows: &[Row<'_>]) -> String {
    let columns = "operation|dtype|shape|>coded|>share|>bytes|>bits/coded|>contexts|coding|tensor";
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let codings: Vec<&str> = row.codings.iter().copied().collect();
            vec![
                row.operation.to_owned(),
                row.dtype.as_deref().unwrap_or("-").to_owned(),
                row.shape.map_or_else(|| "-".to_owned(), shape),
                grouped(row.coded),
                percent(row.coded, row.lanes),
                grouped(row.bytes),
                decimal(bits_each(row.bytes, row.coded)),
                if row.contexts == 0 {
                    "-".to_owned()
                } else {
                    row.contexts.to_string()
                },
                if row.codings.is_empty() {
                    "-".to_owned()
                } else {
                    codings.join(", ")
                },
                printable(row.name),
            ]
        })
        .collect();
    let Row {
        lanes,
        coded,
        bytes,
        ..
    } = total(rows);
    cells.push(vec![
        "total".to_owned(),
        String::new(),
        String::new(),
        grouped(coded),
        percent(coded, lanes),
        grouped(bytes),
        decimal(bits_each(bytes, coded)),
        String::new(),
        String::new(),
        counted(rows.len(), "tensor", "tensors"),
    ]);
    layout(columns, &cells)
}

fn tensor_as_json(row: &Row<'_>) -> Value {
    let mut tensor = json!(row);
    tensor["share"] = ratio(row.coded, row.lanes).into();
    tensor["bits_per_coded"] = bits_each(row.bytes, row.coded).into();
    tensor
}

fn as_json(link: &OpenedLink, rows: &[Row<'_>]) -> Value {
    let header = link.reader.header();
    let Row {
        lanes,
        coded,
        bytes,
        ..
    } = total(rows);
    json!({
        "link": link.path.to_string_lossy(),
        "version": VERSION,
        "compatible_features": header.compatible_features,
        "direct": link.reader.is_direct(),
        "snapshot": is_snapshot(link),
        "base": header.base.to_string(),
        "target": header.target.to_string(),
        "bytes": header.file_length(),
        "index_bytes": header.index_stored,
        "index_raw_bytes": header.index_raw,
        "segments_bytes": header.segments_length,
        "extension_bytes": header.extension_length,
        "segments": link.reader.index().segments.len(),
        "metadata": link.reader.index().metadata,
        "tensors": rows.iter().map(tensor_as_json).collect::<Vec<_>>(),
        "total": { "lanes": lanes, "coded": coded, "bytes": bytes },
    })
}

fn is_snapshot(link: &OpenedLink) -> bool {
    link.reader.header().base == deltachain::tensor::Digest::of_empty_state()
}

/// Formats a shape as `384x384`, or `scalar`.
fn shape(dimensions: &[u64]) -> String {
    if dimensions.is_empty() {
        return "scalar".to_owned();
    }
    dimensions
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join("x")
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!(
            "{}... ({} bytes)",
            printable(&value[..end]),
            grouped(value.len() as u64)
        ),
        None => printable(value),
    }
}
