//! `inspect --html`: writes a page for browsers that contains a link. The page is
//! `js/inspector/index.html`, which `npm run page` builds. It opens the data between two marks,
//! which is base64.

use std::io::Write;
use std::path::Path;

use base64ct::{Base64, Encoding as _};
use deltachain::files::{OutputFile, check_apart};
use deltachain::{Error, Progress as _, Result, Source as _};
use serde_json::json;

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

/// Writes the page, and reports it.
pub(crate) fn write(link: &OpenedLink, page: &Path, force: bool, output: Output) -> Result<()> {
    let total = link.reader.header().file_length();
    let meter = output.meter("writing", total);
    let mut file = OutputFile::create(page, force)?;
    let mut put = |text: &str| {
        file.write_all(text.as_bytes())
            .map_err(|e| Error::io("writing", e).in_file(page))
    };
    let (before, after) = around_data();
    put(before)?;
    let name = link.path.file_name().unwrap_or_default().to_string_lossy();
    put(&format!(
        "\n<script type=\"text/plain\" class=\"data\" data-name=\"{}\">",
        escaped(&name)
    ))?;
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
    put("</script>\n")?;
    put(after)?;
    file.commit()?;
    drop(meter);
    let bytes = std::fs::metadata(page).map_or(0, |status| status.len());
    output.summary(
        || format!("{}: {} bytes; open it in a browser", printable_path(page), grouped(bytes)),
        || json!({ "html": page.to_string_lossy(), "bytes": bytes, "link": link.path.to_string_lossy() }),
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
