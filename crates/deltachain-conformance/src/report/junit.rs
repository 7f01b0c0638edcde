//! The report as `JUnit` XML, which continuous integration can display.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::judge::wanted;
use crate::problem::{Problem, Result};
use crate::report::{Report, Status};

/// Writes the report to a file.
pub(crate) fn write(report: &Report<'_>, path: &Path) -> Result {
    fs::write(path, xml(report)).map_err(Problem::with_file(path))
}

fn xml(report: &Report<'_>) -> String {
    let counts = report.counts();
    let failures = counts.failed + counts.unexpected_passes;
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n\
         <testsuite name=\"deltachain conformance\" tests=\"{}\" failures=\"{failures}\" \
         errors=\"0\" skipped=\"{}\">\n",
        counts.cases,
        counts.skipped + counts.expected_failures
    );
    for result in &report.results {
        let (group, name) = result
            .case
            .id
            .rsplit_once('/')
            .unwrap_or(("", &result.case.id));
        let got = result.got().unwrap_or_default();
        let inner = match result.status() {
            Status::Passed => String::new(),
            Status::Skipped => format!("<skipped message=\"{}\"/>", escaped(&got)),
            Status::ExpectedFailure => {
                format!("<skipped message=\"known to fail: {}\"/>", escaped(&got))
            }
            Status::UnexpectedPass => {
                "<failure message=\"passed although listed as a failure\"/>".to_owned()
            }
            Status::Failed => {
                let details = format!(
                    "expected {}\n{}",
                    wanted(result.case),
                    result.stderr.join("\n")
                );
                format!(
                    "<failure message=\"{}\">{}</failure>",
                    escaped(&got),
                    escaped(&details)
                )
            }
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">{inner}</testcase>",
            escaped(group),
            escaped(name),
            result.time.as_secs_f64()
        );
    }
    text.push_str("</testsuite>\n</testsuites>\n");
    text
}

/// Escapes text for an attribute or an element. XML cannot represent most control characters.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_end_what_it_stands_in() {
        assert_eq!(
            escaped("a<b>&\"c\"\n\u{1B}é"),
            "a&lt;b&gt;&amp;&quot;c&quot;&#10;\u{FFFD}é"
        );
    }
}
