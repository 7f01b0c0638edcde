//! Advice on what users can do about a refusal where an option helps. The tool and the Python
//! package name their options differently, so each has a column here.

use std::error::Error as _;

use deltachain::{Error, ErrorClass};
use serde::{Serialize, Serializer};

use crate::access::refusal::Refusal;

/// The interface that shows an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Face {
    /// The command-line tool.
    Tool,
    /// The Python package.
    Python,
}

/// Advice about the rules in the first field: for the tool, then for Python.
type RuleAdvice = (&'static [&'static str], &'static str, &'static str);

const BY_RULE: [RuleAdvice; 15] = [
    (&["R-CHN-01"], NO_CHAIN, NO_CHAIN),
    (&["R-DOC-01"], NO_DOCUMENT, NO_DOCUMENT),
    (
        &["R-CHN-13"],
        "there is another chain now: ask its publisher; --adopt makes pull and follow use it from \
         now on",
        "there is another chain now: ask its publisher; Subscriber(adopt=True) uses it from now on",
    ),
    (
        &["R-CHN-04", "R-CHN-05", "R-CHN-14"],
        "the chain was rolled back or has forked: ask its publisher; --allow-rollback=COMMIT \
         accepts that once; COMMIT is the digest of its newest commit or of one shortly before",
        "the chain was rolled back or has forked: ask its publisher; \
         Subscriber(allow_rollback=COMMIT) accepts that once; COMMIT is the digest of its newest \
         commit or of one shortly before",
    ),
    (
        &["R-CHN-08"],
        "`deltachain prune URL --undo` brings back what was pruned within the last 20 hours; a \
        copy of the chain may still have the version: pull it from there, or take a newer one",
        "undo_prune() brings back what was pruned within the last 20 hours; a copy of the chain \
        may still have the version: pull it from there, or take a newer one",
    ),
    (
        &["R-LIM-01"],
        "--limit index=SIZE raises the limit for indexes if you trust the source; other limits are \
         fixed",
        "if you trust the source, use the command-line tool: its --limit index=SIZE raises the \
         limit for indexes",
    ),
    (
        &["R-LIM-04"],
        "--limit new=SIZE raises the limit if you trust the source",
        "if you trust the source, use the command-line tool: its --limit new=SIZE raises the limit",
    ),
    (
        &["R-LIM-08"],
        "raise --limit coded=SIZE, or leave it out",
        "raise the limit: in the command-line tool, --limit coded=SIZE sets it",
    ),
    (&["R-LIM-05", "R-LIM-07"], ALLOWED, ALLOWED),
    (
        &["R-PUB-01"],
        "give the files of the newest version as --base, or leave --base out: then that version is \
         built from the chain",
        "another process publishes to this chain: let only one publish, and publish again",
    ),
    (&["R-PUB-08"], LATE, LATE),
    (
        &["R-RET-05"],
        "prune again; if that fails, too, restore the commits from a copy, or give --accept-loss \
         if they are lost for good",
        "prune again; if that fails, too, restore the commits from a copy, or prune with \
         accept_loss=True if they are lost for good",
    ),
    (
        &["R-SIG-01", "R-SIG-05"],
        "check the URL, --trust and --quorum, and ask the publisher: `deltachain log` says who \
         claims to have signed; docs/rotation.md says how keys change",
        "check the URL, and the keys of `trust`: `log()` says who claims to have signed; \
         docs/rotation.md says how keys change",
    ),
    (
        &["R-SIG-03"],
        "check the head: somebody else may have published it, or the key has changed; if the head \
         is yours, give its commit to --vouch; docs/operating.md and docs/rotation.md say more",
        "check the head: somebody else may have published it, or the key has changed; if the head \
         is yours, give its commit to vouch=; docs/operating.md and docs/rotation.md say more",
    ),
    (&["R-LAY-03"], OTHER_FILES, OTHER_FILES),
];

const NO_CHAIN: &str = "check the URL, or start the publisher; `deltachain init` begins a chain; \
                        if chain.json was lost, restore it from a copy, byte for byte";
const LATE: &str = "run the command again; if the version is visible, the next one gets a \
                    snapshot, which does not need its files";
const NO_DOCUMENT: &str = "check the URL, and anything in front of the store, such as a proxy; if \
                           both are right, restore the object from a copy";
const OTHER_FILES: &str = "the publisher did not make these files, or its commit does not name \
                           them: `deltachain fsck --deep` says which; publish once more with a \
                           publisher of version 1.2 of the format";
const ALLOWED: &str = "the format allows more than this program reads and publishes";

/// Returns advice that may help: one phrase, never empty.
pub fn advice(error: &Error, face: Face) -> &'static str {
    if let Some(refusal) = error.source().and_then(Refusal::of) {
        let (tool, python) = refusal.advice();
        return match face {
            Face::Tool => tool,
            Face::Python => python,
        };
    }
    // An R-CHN-14 that is due to missing signatures is not a rollback.
    let rule = error.unsigned().map_or(error.rule(), |_| Some("R-SIG-01"));
    let is_for = |rules: &[&str]| rule.is_some_and(|rule| rules.contains(&rule));
    if let Some((_, tool, python)) = BY_RULE.into_iter().find(|(rules, ..)| is_for(rules)) {
        return match face {
            Face::Tool => tool,
            Face::Python => python,
        };
    }
    match error.class() {
        ErrorClass::Limit if error.rule().is_some() => {
            "the limit is fixed: the program that wrote this has a bug"
        }
        ErrorClass::Chain if error.rule().is_none() => "docs/copies.md says more",
        ErrorClass::Usage if face == Face::Tool && !error.is_in_use() && error.file().is_none() => {
            "`deltachain help COMMAND` shows its options"
        }
        _ => error.advice(),
    }
}

/// Returns all advice about rules, so that an interface can test that it has the options named
/// there.
pub fn advice_by_rule(face: Face) -> impl Iterator<Item = &'static str> {
    BY_RULE
        .into_iter()
        .map(move |(_, tool, python)| if face == Face::Tool { tool } else { python })
}

/// An error as reports show it, with the tool's advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem<'a> {
    /// Class of the error (SPEC section 11).
    class: &'static str,
    /// The rule that was broken.
    rule: Option<&'static str>,
    /// The message, with that of the underlying error.
    pub message: String,
    /// The file or object concerned.
    pub file: Option<&'a str>,
    /// The section of the link.
    pub section: Option<String>,
    /// Bytes from the beginning of the file.
    pub offset: Option<u64>,
    /// The tensor concerned.
    pub tensor: Option<&'a str>,
    /// Advice that may help.
    pub advice: &'static str,
}

impl<'a> From<&'a Error> for Problem<'a> {
    fn from(error: &'a Error) -> Self {
        let source = error
            .source()
            .map(|source| format!(": {source}"))
            .unwrap_or_default();
        Self {
            class: error.class().name(),
            rule: error.rule(),
            message: error.message().to_owned() + &source,
            file: error.file(),
            section: error.section(),
            offset: error.offset(),
            tensor: error.tensor(),
            advice: advice(error, Face::Tool),
        }
    }
}

/// Serializes errors as [`Problem`]s, for serde's `serialize_with`.
pub(crate) fn problems<S: Serializer>(errors: &[Error], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(errors.iter().map(Problem::from))
}
