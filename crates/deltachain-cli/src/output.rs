//! The output of the program, and where it goes: results on standard output, remarks and progress
//! on standard error.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use deltachain::{Error, Result};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use serde_json::{Value, json};

use crate::progress::Meter;
use crate::shared_args::Global;

/// Settings of the output for the user.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
    quiet: bool,
    bars: bool,
}

impl Output {
    /// Settings from the options. Colours and progress bars are for terminals.
    pub(crate) fn new(options: &Global) -> Self {
        let bars = !options.json && !options.quiet && io::stderr().is_terminal();
        Self {
            json: options.json,
            quiet: options.quiet,
            bars,
        }
    }

    /// Prints nothing: for work that is a step of other work.
    pub(crate) fn silent() -> Self {
        Self {
            json: false,
            quiet: true,
            bars: false,
        }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result, as text or as JSON.
    pub(crate) fn result(
        self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> Result<()> {
        if self.json {
            print_json(&json())
        } else {
            print(&text())
        }
    }

    /// Prints what was done; as text only without `--quiet`.
    ///
    /// # Errors
    /// IO.
    pub fn summary(
        self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> Result<()> {
        if self.quiet && !self.json {
            Ok(())
        } else {
            self.result(text, json)
        }
    }

    /// Prints what was done and cannot be undone. If that fails, `done` is said on standard error
    /// instead, and the command has succeeded: to run it again would do it twice.
    pub fn summary_of_done(
        self,
        done: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) {
        if let Err(error) = self.summary(text, json) {
            let done = done();
            // Nothing else can be told.
            let _ = writeln!(anstream::stderr(), "{done}; its report is lost: {error}");
        }
    }

    /// Says something that is worth knowing on standard error. JSON output has a place of its own
    /// for such things.
    pub fn remark(self, text: &str) {
        if !self.json && !self.quiet {
            // Nothing depends on a remark.
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Begins to show the progress of work on `total` bytes.
    pub fn meter(self, what: &'static str, total: u64) -> Meter {
        Meter::new(
            ProgressBar::with_draw_target(Some(total), self.target()),
            what,
        )
    }

    /// The target of progress bars.
    pub(crate) fn target(self) -> ProgressDrawTarget {
        if self.bars {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        }
    }
}

/// A report as JSON, with the name of the place that it is about.
pub fn report_on(place: (&str, &str), report: &impl Serialize) -> Value {
    let mut json = json!(report);
    json[place.0] = place.1.into();
    json
}

/// Prints a JSON object on a line.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    print(&escaped(&value.to_string()))
}

/// The same JSON with escapes for what could control a terminal or hide itself, which can stand in
/// strings only.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                let escape = format!("\\u{:04x}", u32::from(character));
                text.push_str(&escape);
            }
            _ => text.push(character),
        }
    }
    text
}

/// Prints lines on standard output. A reader that has gone away, such as `head`, is not an error.
fn print(text: &str) -> Result<()> {
    let mut stdout = anstream::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("writing to the standard output", error))
        }
        _ => Ok(()),
    }
}

/// A name as it may be shown on a terminal: what could move the cursor or hide itself is escaped.
/// Quotes can do neither.
pub fn printable(name: &str) -> String {
    name.escape_debug()
        .to_string()
        .replace("\\\"", "\"")
        .replace("\\'", "'")
}

/// A path as it may be shown on a terminal; with single backslashes, which Windows has many of.
pub fn printable_path(path: impl AsRef<Path>) -> String {
    printable(&path.as_ref().to_string_lossy()).replace("\\\\", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_cannot_control_a_terminal() {
        let evil = "a\x1b[2J\u{9b}31m\u{202e}\u{2066}\u{2028}b\u{7f}";
        let json = escaped(&serde_json::json!({ "note": evil }).to_string());
        assert!(json.chars().all(|c| c.is_ascii_graphic()), "{json}");
        let back: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(back["note"], evil);
        assert_eq!(escaped(r#"{"wörter":1}"#), r#"{"wörter":1}"#);
    }

    #[test]
    fn names_cannot_control_a_terminal() {
        assert_eq!(printable("wörter.\u{1F9EE}"), "wörter.\u{1F9EE}");
        let evil = printable("a\x1b[2J\r\n\u{202E}\u{9B}b");
        assert!(
            evil.chars().all(|c| !c.is_control() && c != '\u{202E}'),
            "{evil}"
        );
        assert_eq!(printable(r#"{"it's": "\"}"#), r#"{"it's": "\\"}"#);
        assert_eq!(printable_path("C:\\it's\n"), "C:\\it's\\n");
    }
}
