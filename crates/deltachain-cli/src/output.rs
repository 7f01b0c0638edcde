//! The output of the program: results on standard output, remarks and progress on standard error.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use deltachain::{Error, Result};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use serde_json::{Value, json};

use crate::progress::Meter;
use crate::shared_args::Global;

/// Settings of the program's output.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
    quiet: bool,
    bars: bool,
}

impl Output {
    /// Makes the settings from the options. Progress bars are shown only on terminals.
    pub(crate) fn new(options: &Global) -> Self {
        let bars = !options.json && !options.quiet && io::stderr().is_terminal();
        Self {
            json: options.json,
            quiet: options.quiet,
            bars,
        }
    }

    /// Makes settings that print nothing, for work that is a step of other work.
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

    /// Prints a summary of what was done, as JSON or, without `--quiet`, as text.
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

    /// Prints a summary of something that cannot be undone. If that fails, prints `done` on
    /// standard error instead. The command still succeeds, because running it again would do the
    /// same twice.
    pub fn summary_of_done(
        self,
        done: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) {
        if let Err(error) = self.summary(text, json) {
            let done = done();
            // If standard error fails, too, nothing can be printed.
            let _ = writeln!(anstream::stderr(), "{done}; its report is lost: {error}");
        }
    }

    /// Prints a remark on standard error. With JSON, prints nothing, because the output has the
    /// same facts elsewhere.
    pub fn remark(self, text: &str) {
        if !self.json && !self.quiet {
            // Nothing depends on a remark.
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Shows the progress of work on `total` bytes.
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

/// Converts a report to JSON, and adds the place that it is about: its key and its name.
pub fn report_on(place: (&str, &str), report: &impl Serialize) -> Value {
    let mut json = json!(report);
    json[place.0] = place.1.into();
    json
}

/// Prints a JSON object on one line.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    print(&escaped(&value.to_string()))
}

/// Escapes characters in JSON that could control a terminal or be invisible. They can occur only in
/// strings.
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

/// Prints lines on standard output. A reader that has exited, such as `head`, is not an error.
fn print(text: &str) -> Result<()> {
    let mut stdout = anstream::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("writing to the standard output", error))
        }
        _ => Ok(()),
    }
}

/// Escapes a name for a terminal: characters that could move the cursor or be invisible. Quotes
/// stay as they are.
pub fn printable(name: &str) -> String {
    name.escape_debug()
        .to_string()
        .replace("\\\"", "\"")
        .replace("\\'", "'")
}

/// Escapes a path for a terminal. Backslashes stay single, because Windows paths have many.
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
