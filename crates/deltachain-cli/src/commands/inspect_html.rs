//! `inspect --html`: writes a page for browsers that contains a link, or the documents of a chain.
//! The page is `js/inspector/index.html`, which `npm run page` builds. It opens the data between
//! two marks, which is base64.

use std::io::Write;
use std::path::Path;

use base64ct::{Base64, Encoding as _};
use deltachain::files::{OutputFile, check_apart};
use deltachain::{Error, Progress as _, Result, Source as _, without_secrets};
use deltachain_store::read_documents;
use serde_json::json;

use crate::args::InspectArgs;
use crate::inputs::{OpenedLink, refuse_existing};
use crate::numbers::grouped;
use crate::output::{Output, printable_path};

const PAGE: &str = include_str!("../../data/inspector.html");
/// The text between these marks is replaced. The page has each mark once.
const MARKS: [&str; 2] = ["<!--data-->", "<!--/data-->"];
/// Maximum length of the link. Browsers hold a page as text, and fail with texts of more than about
/// 500 MB.
const MOST_BYTES: u64 = 256 << 20;
/// Number of bytes encoded at a time: a multiple of three, so that the base64 parts can be joined.
const STRETCH: usize = 3 << 20;

/// Checks everything that can be checked before the link is read.
///
/// # Errors
/// USAGE if the page exists and `force` is false, or if the link is too large for a page.
pub(crate) fn check(link: &OpenedLink, page: &Path, force: bool) -> Result<()> {
    refuse_existing(page, force)?;
    check_apart(page, [link.path.as_path()])?;
    let bytes = link.reader.header().file_length();
    if bytes > MOST_BYTES {
        let limit = grouped(MOST_BYTES);
        let message = format!(
            "the link has {} bytes, but a page can hold at most {limit}",
            grouped(bytes)
        );
        return Err(Error::usage(message).in_file(&link.path));
    }
    Ok(())
}

/// Writes the page of a link, and reports it.
pub(crate) fn write(link: &OpenedLink, page: &Path, force: bool, output: Output) -> Result<()> {
    let total = link.reader.header().file_length();
    let meter = output.meter("writing", total);
    let name = link.path.file_name().unwrap_or_default().to_string_lossy();
    let mut file = OutputFile::create(page, force)?;
    put_page(&mut file, page, &mut |put| {
        put(&start_of_element(&name, ""))?;
        let mut offset = 0;
        while offset < total {
            let length = usize::try_from(total - offset)
                .unwrap_or(STRETCH)
                .min(STRETCH);
            let mut bytes = vec![0; length];
            link.reader
                .source()
                .read_at(offset, &mut bytes)
                .map_err(|error| error.in_file(&link.path))?;
            put(&Base64::encode_string(&bytes))?;
            offset += length as u64;
            meter.advance(length as u64)?;
        }
        put(END_OF_ELEMENT)
    })?;
    file.commit()?;
    drop(meter);
    report(page, "link", &link.path, output)
}

/// Writes the page of a chain, which contains its documents, and reports it.
///
/// # Errors
/// USAGE if the page exists and is not to be replaced, if it lies in the chain's directory, or if
/// the documents are too large for a page; errors of the chain; IO.
pub(crate) fn write_chain(args: &InspectArgs, page: &Path, output: Output) -> Result<()> {
    refuse_existing(page, args.force)?;
    check_apart(page, [args.path.as_path()])?;
    let url = args
        .path
        .to_str()
        .ok_or_else(|| Error::usage("the chain's path is not Unicode text"))?;
    let documents = read_documents(&args.store.open(url)?)?;
    let bytes: u64 = documents.values().map(|content| content.len() as u64).sum();
    if bytes > MOST_BYTES {
        let limit = grouped(MOST_BYTES);
        return Err(Error::usage(format!(
            "the chain's documents have {} bytes, but a page can hold at most {limit}",
            grouped(bytes)
        )));
    }
    let shown = without_secrets(url);
    let mut file = OutputFile::create(page, args.force)?;
    put_page(&mut file, page, &mut |put| {
        for (name, content) in &documents {
            let chain = if name == "chain.json" { &shown } else { "" };
            put(&start_of_element(name, chain))?;
            put(&Base64::encode_string(content))?;
            put(END_OF_ELEMENT)?;
        }
        Ok(())
    })?;
    file.commit()?;
    report(page, "chain", Path::new(&shown), output)
}

/// Writes one piece of text of a page.
type Put<'a> = &'a mut dyn FnMut(&str) -> Result<()>;

const END_OF_ELEMENT: &str = "</script>\n";

/// Returns the start of an element with data: `js/inspector/embedded.js`. `chain` is the name of
/// the chain for people, if the element is its `chain.json`.
fn start_of_element(name: &str, chain: &str) -> String {
    let chain = if chain.is_empty() {
        String::new()
    } else {
        format!(" data-chain=\"{}\"", escaped(chain))
    };
    format!(
        "\n<script type=\"text/plain\" class=\"data\" data-name=\"{}\"{chain}>",
        escaped(name)
    )
}

/// Writes a page with the elements that `put_data` writes.
fn put_page(
    file: &mut OutputFile,
    page: &Path,
    put_data: &mut dyn FnMut(Put<'_>) -> Result<()>,
) -> Result<()> {
    let mut put = |text: &str| {
        file.write_all(text.as_bytes())
            .map_err(|error| Error::io("writing", error).in_file(page))
    };
    let (before, after) = around_data();
    put(before)?;
    put_data(&mut put)?;
    put(after)
}

/// Reports the page. `kind` says what it is about: "link" or "chain".
fn report(page: &Path, kind: &str, about: &Path, output: Output) -> Result<()> {
    let bytes = std::fs::metadata(page).map_or(0, |status| status.len());
    output.summary(
        || {
            format!(
                "{}: {} bytes; open it in a browser",
                printable_path(page),
                grouped(bytes)
            )
        },
        || json!({ "html": page.to_string_lossy(), "bytes": bytes, kind: about.to_string_lossy() }),
    )
}

/// Returns the page up to the first mark, and from the second mark on, both included.
fn around_data() -> (&'static str, &'static str) {
    let [begin, end] = MARKS.map(|mark| PAGE.find(mark).unwrap_or(PAGE.len()));
    (&PAGE[..begin + MARKS[0].len()], &PAGE[end..])
}

/// Escapes a text for an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_mark_once() {
        for mark in MARKS {
            assert_eq!(PAGE.matches(mark).count(), 1, "{mark}");
        }
        let (before, after) = around_data();
        assert!(before.ends_with(MARKS[0]) && after.starts_with(MARKS[1]));
        assert!(
            !before.contains("class=\"data\"") && !after.contains("class=\"data\" data-name"),
            "the excerpt is gone"
        );
    }

    #[test]
    fn names_cannot_leave_their_attribute() {
        assert_eq!(escaped("a\"><script>&.dcf"), "a&quot;>&lt;script>&amp;.dcf");
    }
}
