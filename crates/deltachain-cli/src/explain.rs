//! The explanations of all rules and classes, from the page `explain/errors.md`, which is also part
//! of the documentation. The form of the page:
//!
//! ```text
//! # Errors                              followed by an introduction
//! ## GROUP                              followed by what its parts share: text, cause, remedy
//! ### R-CHN-13  or  ### CHAIN
//! *CHAIN, section 19.* Meaning          class of the rule and section of the specification, meaning
//! **Usual cause.** Text                 replaces the text of the group, as does the next one
//! **What to do.** Text
//! ```

use deltachain::{Error, Result};
use strsim::levenshtein;

const PAGE: &str = include_str!("explain/errors.md");
const CAUSE: &str = "**Usual cause.** ";
const REMEDY: &str = "**What to do.** ";

/// Maximum number of similar names shown for a name that does not exist.
const SIMILAR: usize = 5;

/// The explanation of a rule or a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// The class of a violation, and the section of the specification; `None` for a class.
    pub(crate) rule: Option<(&'static str, &'static str)>,
    /// The heading of its group.
    pub(crate) group: &'static str,
    /// The meaning of the rule or class.
    pub(crate) meaning: String,
    /// The usual cause of such an error.
    pub(crate) cause: String,
    /// The remedy: what the user should do.
    pub(crate) remedy: String,
}

/// Returns all parts, in the order of the page.
pub(crate) fn parts() -> Vec<Part> {
    PAGE.split("\n## ")
        .skip(1)
        .flat_map(parts_of_group)
        .collect()
}

/// Finds the parts with these names, in the order of the names. Case does not matter.
///
/// # Errors
/// USAGE if there is no part with a name.
pub(crate) fn find<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Part>> {
    let parts = parts();
    names
        .into_iter()
        .map(|name| {
            let part = parts
                .iter()
                .find(|part| part.name.eq_ignore_ascii_case(name));
            part.cloned().ok_or_else(|| unknown(name, &parts))
        })
        .collect()
}

fn unknown(name: &str, parts: &[Part]) -> Error {
    let mut names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let wanted = name.to_ascii_uppercase();
    // The sort is stable, so equally similar names keep the order of the page.
    names.sort_by_key(|name| levenshtein(&wanted, name));
    let similar = names.get(..SIMILAR).unwrap_or_default().join(", ");
    Error::usage(format!(
        "{name:?} is not a rule or class of errors; similar ones are {similar}; `deltachain \
         explain` lists all"
    ))
}

fn parts_of_group(text: &'static str) -> Vec<Part> {
    let mut pieces = text
        .split("\n### ")
        .map(|piece| piece.split_once('\n').unwrap_or((piece, "")));
    let (group, shared) = pieces.next().unwrap_or_default();
    let shared = paragraphs(shared);
    pieces
        .map(|(name, text)| parse_part(group, &shared, name, text))
        .collect()
}

/// Parses the part with this name. Without a cause or remedy of its own, it gets that of its group.
fn parse_part(
    group: &'static str,
    [shared_meaning, shared_cause, shared_remedy]: &[String; 3],
    name: &'static str,
    text: &'static str,
) -> Part {
    let or = |own: String, shared: &String| if own.is_empty() { shared.clone() } else { own };
    let text = text.trim_start();
    let (rule, text) = match text
        .strip_prefix('*')
        .and_then(|text| text.split_once(".* "))
    {
        Some((rule, text)) => (rule.split_once(", section "), text),
        None => (None, text),
    };
    let [meaning, cause, remedy] = paragraphs(text);
    Part {
        name,
        rule,
        group,
        meaning: format!("{meaning} {shared_meaning}").trim_end().to_owned(),
        cause: or(cause, shared_cause),
        remedy: or(remedy, shared_remedy),
    }
}

/// Returns meaning, cause and remedy of a text, each without line breaks, and empty if it is
/// missing.
fn paragraphs(text: &str) -> [String; 3] {
    let mut found = [const { String::new() }; 3];
    let [meaning, cause, remedy] = &mut found;
    for paragraph in text.split("\n\n") {
        let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(line) = line.strip_prefix(CAUSE) {
            line.clone_into(cause);
        } else if let Some(line) = line.strip_prefix(REMEDY) {
            line.clone_into(remedy);
        } else if !line.is_empty() {
            if !meaning.is_empty() {
                meaning.push(' ');
            }
            meaning.push_str(&line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory as _;
    use deltachain::RULES;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_part_is_complete() {
        for part in parts() {
            assert!(
                !part.meaning.is_empty() && !part.cause.is_empty() && !part.remedy.is_empty(),
                "{part:?}"
            );
            assert!(
                part.name.starts_with("R-") == part.rule.is_some(),
                "{part:?}"
            );
            let text = [&part.meaning, &part.cause, &part.remedy]
                .map(String::as_str)
                .join(" ");
            assert!(
                !text.contains("**") && text.matches('`').count() % 2 == 0,
                "{part:?}"
            );
        }
    }

    #[test]
    fn every_rule_has_its_class() {
        let parts: BTreeMap<_, _> = parts()
            .into_iter()
            .map(|part| (part.name, part.rule))
            .collect();
        for rule in RULES {
            let (class, _) = parts[rule.id].unwrap();
            assert_eq!(class, rule.class.name(), "{}", rule.id);
        }
        assert!(
            parts
                .values()
                .flatten()
                .all(|(class, _)| parts.contains_key(class))
        );
    }

    /// The commands that the page names exist, with their options.
    #[test]
    fn commands_exist() {
        let mut tool = Cli::command();
        tool.build();
        let mut checked = 0;
        for command in PAGE
            .split('`')
            .skip(1)
            .step_by(2)
            .filter_map(|code| code.strip_prefix("deltachain "))
        {
            let mut words = command.split_whitespace();
            let name = words.next().unwrap();
            if name == "--version" || name == "help" {
                continue;
            }
            let mut found = tool
                .find_subcommand(name)
                .unwrap_or_else(|| panic!("{command}"));
            if found.has_subcommands() {
                found = found
                    .find_subcommand(words.next().unwrap())
                    .unwrap_or_else(|| panic!("{command}"));
            }
            for option in words.filter_map(|word| word.strip_prefix("--")) {
                assert!(
                    found
                        .get_arguments()
                        .any(|argument| argument.get_long() == Some(option)),
                    "{command}"
                );
            }
            checked += 1;
        }
        assert!(checked > 30, "{checked}");
    }

    #[test]
    fn names_that_do_not_exist() {
        let similar = |name| find([name]).unwrap_err().message().to_owned();
        assert!(
            similar("r-chn-99").contains("similar ones are R-CHN-09,"),
            "{}",
            similar("r-chn-99")
        );
        assert!(
            similar("CHIAN").contains("similar ones are CHAIN,"),
            "{}",
            similar("CHIAN")
        );
        assert!(
            similar("").contains("similar ones are IO,"),
            "{}",
            similar("")
        );
        assert_eq!(find(["r-Chn-13", "io", "IO"]).unwrap().len(), 3);
    }
}
