//! What users can do about a refusal where an option helps. The tool and the Python package name their options
//! differently, so each has a column here.

use std::error::Error as _;

use deltachain::rules::{
    CHN_01, CHN_04, CHN_05, CHN_13, CHN_14, LAY_03, LIM_01, LIM_04, LIM_05, LIM_07, LIM_08, RET_05, Rule, SIG_01,
    SIG_03, SIG_05,
};
use deltachain::{Error, ErrorClass};
use serde::{Serialize, Serializer};

/// Who shows an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Face {
    /// The command-line tool.
    Tool,
    /// The Python package.
    Python,
}

/// What helps against these broken rules: for the tool, for Python.
type Row = (&'static [Rule], &'static str, &'static str);

const BY_RULE: [Row; 11] = [
    (&[CHN_01], NO_CHAIN, NO_CHAIN),
    (
        &[CHN_13],
        "there is another chain now: ask its publisher; --adopt makes pull and follow use it from now on",
        "there is another chain now: ask its publisher; Subscriber(adopt=True) uses it from now on",
    ),
    (
        &[CHN_04, CHN_05, CHN_14],
        "the chain was rolled back or has forked: ask its publisher; --allow-rollback=COMMIT accepts that once: \
         the digest of its newest commit or of one shortly before",
        "the chain was rolled back or has forked: ask its publisher; Subscriber(allow_rollback=COMMIT) accepts that \
         once: the digest of its newest commit or of one shortly before",
    ),
    (
        &[LIM_01],
        "--max-index-bytes raises the limit for indexes if you trust the source; other limits are fixed",
        "if you trust the source, use the command-line tool: its --max-index-bytes raises the limit for indexes",
    ),
    (
        &[LIM_04],
        "--max-new-bytes raises the limit if you trust the source",
        "if you trust the source, use the command-line tool: its --max-new-bytes raises the limit",
    ),
    (&[LIM_08], "--max-coded-bytes is the limit", "the command-line tool has --max-coded-bytes, which is the limit"),
    (&[LIM_05, LIM_07], ALLOWED, ALLOWED),
    (
        &[RET_05],
        "prune again; if it stays so, restore the commits from a copy, or give --accept-loss if they are lost for good",
        "prune again; if it stays so, restore the commits from a copy, or prune with accept_loss=True if they are lost \
         for good",
    ),
    (
        &[SIG_01, SIG_05],
        "check the URL, --trust and --quorum, and ask the publisher: `deltachain log` says who claims to have signed; \
         docs/rotation.md says how keys change",
        "check the URL, and the keys of `trust`: `log()` says who claims to have signed; docs/rotation.md says how keys \
         change",
    ),
    (&[SIG_03], STRANGER, STRANGER),
    (&[LAY_03], OTHER_FILES, OTHER_FILES),
];

const NO_CHAIN: &str = "check the URL, or start the publisher; `deltachain init` begins a chain; if chain.json was lost, put \
                        a copy of it back, byte for byte";
const STRANGER: &str = "somebody else may have published, or the key is another one now: look at the head before you sign \
                        it or publish after it; docs/operating.md and docs/rotation.md say what to do";
const OTHER_FILES: &str = "these are not the publisher's files, or its commit does not name them: `deltachain fsck --deep` tells \
                           which; let a publisher of version 1.2 of the format publish once more";
const ALLOWED: &str = "the format allows more than this program reads and publishes";

/// What may help, in one phrase, which is never empty.
pub fn advice(error: &Error, face: Face) -> &'static str {
    // R-CHN-14 because of signatures is not a rollback.
    let rule = error.unsigned().map_or(error.rule(), |_| Some(SIG_01.id));
    let is_for = |rules: &[Rule]| rules.iter().any(|of| Some(of.id) == rule);
    if let Some((_, tool, python)) = BY_RULE.into_iter().find(|(rules, ..)| is_for(rules)) {
        return match face {
            Face::Tool => tool,
            Face::Python => python,
        };
    }
    match error.class() {
        ErrorClass::Limit if error.rule().is_some() => "the limit is fixed: the program that wrote this has a bug",
        ErrorClass::Usage if face == Face::Tool && !error.is_in_use() => "`deltachain help COMMAND` shows its options",
        _ => error.advice(),
    }
}

/// All that is said of single rules, so that a face can test that it has the options named there.
pub fn advice_by_rule(face: Face) -> impl Iterator<Item = &'static str> {
    BY_RULE.into_iter().map(move |(_, tool, python)| if face == Face::Tool { tool } else { python })
}

/// An error as reports show it, with the tool's advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem<'a> {
    /// Its class (SPEC section 11).
    pub class: &'static str,
    /// The rule that was broken.
    pub rule: Option<&'static str>,
    /// The message, with what the operating system said.
    pub message: String,
    /// The file or object concerned.
    pub file: Option<&'a str>,
    /// The part of the link.
    pub section: Option<String>,
    /// Bytes from the beginning of the file.
    pub offset: Option<u64>,
    /// The tensor concerned.
    pub tensor: Option<&'a str>,
    /// What may help.
    pub advice: &'static str,
}

impl<'a> From<&'a Error> for Problem<'a> {
    fn from(error: &'a Error) -> Self {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Self {
            class: error.class().name(),
            rule: error.rule(),
            message: error.message().to_owned() + &source,
            file: error.file(),
            section: error.section().map(|section| section.to_string()),
            offset: error.offset(),
            tensor: error.tensor(),
            advice: advice(error, Face::Tool),
        }
    }
}

/// Errors as JSON, for serde's `serialize_with`.
pub(crate) fn problems<S: Serializer>(errors: &[Error], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(errors.iter().map(Problem::from))
}
