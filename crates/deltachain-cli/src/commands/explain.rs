//! `explain`: shows what rules and classes of errors mean, what usually causes them, and what to
//! do.

use deltachain::Result;
use serde_json::{Value, json};

use crate::args::ExplainArgs;
use crate::explain::{Part, find, parts};
use crate::output::Output;

/// Maximum width of the text.
const WIDTH: usize = 90;
/// Width of the names in the list.
const NAMES: usize = 14;

pub(crate) fn run(args: &ExplainArgs, output: Output) -> Result<()> {
    let is_list = args.names.is_empty();
    let found = if is_list {
        parts()
    } else {
        find(args.names.iter().map(String::as_str))?
    };
    output.result(
        || {
            if is_list {
                list(&found)
            } else {
                found.iter().map(text).collect::<Vec<_>>().join("\n\n")
            }
        },
        || json!({ "errors": found.iter().map(as_json).collect::<Vec<_>>() }),
    )
}

/// Lists the parts, with a line for each.
fn list(parts: &[Part]) -> String {
    let mut lines = Vec::new();
    for group in parts.chunk_by(|left, right| left.group == right.group) {
        lines.extend(group.first().map(|part| format!("{}:", part.group)));
        lines.extend(group.iter().map(|part| {
            let sentence = part
                .meaning
                .split_inclusive(". ")
                .next()
                .unwrap_or_default();
            format!("  {:<NAMES$}  {}", part.name, sentence.trim_end())
        }));
        lines.push(String::new());
    }
    lines
        .push("`deltachain explain NAME` says what usually causes one, and what to do.".to_owned());
    lines.join("\n")
}

fn text(part: &Part) -> String {
    let mut lines = vec![match part.rule {
        Some((class, section)) => format!(
            "{} ({class}, section {section} of the specification)",
            part.name
        ),
        None => part.name.to_owned(),
    }];
    for (label, text) in [
        ("", &part.meaning),
        ("cause", &part.cause),
        ("to do", &part.remedy),
    ] {
        for (place, line) in wrapped(text).iter().enumerate() {
            lines.push(format!(
                "  {:<7}{line}",
                if place == 0 { label } else { "" }
            ));
        }
    }
    lines.join("\n")
}

/// Wraps a text. Commands, which are in backquotes, are not broken.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut is_code = false;
    for word in text.split_inclusive(' ') {
        let starts_in_code = is_code;
        is_code ^= word.matches('`').count() % 2 == 1;
        match lines.last_mut() {
            Some(line) if starts_in_code || line.len() + word.trim_end().len() <= WIDTH => {
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
        .into_iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn as_json(part: &Part) -> Value {
    let (class, section) = part
        .rule
        .map_or((part.name, None), |(class, section)| (class, Some(section)));
    json!({
        "name": part.name,
        "class": class,
        "section": section,
        "meaning": part.meaning,
        "cause": part.cause,
        "remedy": part.remedy,
    })
}
