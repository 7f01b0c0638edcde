//! Cases: the questions about each vector, and the expected answers.

use crate::index::{
    Expected, HeaderDigests, IN_PLACE, Index, Kind, Minimal, PatchesResult, PlanResult, Refusal,
    ReplayResult, StateResult, SumsResult, Vector,
};
use crate::suite::Suite;

/// The operations of the protocol; `encode` counts once for each profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Check,
    Apply,
    Patches,
    Sums,
    InPlace,
    EncodeCompact,
    EncodeDirect,
    EncodeLocal,
    Document,
    Plan,
    Replay,
    ReplayInPlace,
}

impl Operation {
    /// Returns the text after the `#` of a case's id.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Apply => "apply",
            Self::Patches => "patches",
            Self::Sums => "sums",
            Self::InPlace => "in-place",
            Self::EncodeCompact => "encode-compact",
            Self::EncodeDirect => "encode-direct",
            Self::EncodeLocal => "encode-local",
            Self::Document => "document",
            Self::Plan => "plan",
            Self::Replay => "replay",
            Self::ReplayInPlace => "replay-in-place",
        }
    }

    /// Returns the name in the protocol.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::EncodeCompact | Self::EncodeDirect | Self::EncodeLocal => "encode",
            other => other.label(),
        }
    }
}

/// The expected answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expectation<'a> {
    Refusal(&'a Refusal),
    Check(&'a HeaderDigests),
    /// The state after `apply` or `in-place`.
    Apply(&'a StateResult),
    Patches(&'a PatchesResult),
    Sums(&'a SumsResult),
    /// A link from the vector's base to this state.
    Encode {
        target: &'a str,
    },
    Document,
    Plan(&'a PlanResult),
    Replay(&'a ReplayResult),
}

/// One question to a testee.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) id: String,
    pub(crate) vector: &'a Vector,
    pub(crate) operation: Operation,
    pub(crate) expectation: Expectation<'a>,
    /// The other answer that a minimal chain reader may give.
    pub(crate) minimal: Option<&'a Refusal>,
    /// The routes that the answer must have if the testee reports routes.
    pub(crate) routes: Option<&'a Vec<Vec<String>>>,
    /// The addition that the case belongs to although the features of the vector do not name it.
    pub(crate) addition: Option<&'a String>,
}

/// The members of the index that concern a vector but are not in its entry, which never changes
/// once it is published.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beside<'a> {
    minimal: Option<&'a Minimal>,
    routes: Option<&'a Vec<Vec<String>>>,
    addition: Option<&'a String>,
}

impl<'a> Beside<'a> {
    fn of(index: &'a Index, id: &str) -> Self {
        let mut additions = index.belongs.iter();
        Self {
            minimal: index.minimal.get(id),
            routes: index.routes.get(id),
            addition: additions
                .find(|(_, ids)| ids.contains(id))
                .map(|(addition, _)| addition),
        }
    }
}

/// Returns all cases of all vectors, in the order of the index.
pub(crate) fn cases(suite: &Suite) -> Vec<Case<'_>> {
    let vectors = suite.index.vectors.iter();
    vectors
        .flat_map(|vector| cases_of(vector, Beside::of(&suite.index, &vector.id)))
        .collect()
}

/// Returns the cases of one vector.
pub(crate) fn cases_of<'a>(vector: &'a Vector, beside: Beside<'a>) -> Vec<Case<'a>> {
    fn asked<'a, T>(
        operation: Operation,
        expected: Option<&'a Expected<T>>,
        valid: impl FnOnce(&'a T) -> Expectation<'a>,
    ) -> Option<(Operation, Expectation<'a>)> {
        expected.map(|expected| match expected {
            Expected::Refusal(refusal) => (operation, Expectation::Refusal(refusal)),
            Expected::Valid(result) => (operation, valid(result)),
        })
    }
    let expect = &vector.expect;
    let encode = encoded(vector).map(|target| Expectation::Encode { target });
    let is_in_place = vector.features.iter().any(|feature| feature == IN_PLACE);
    let encode_local = if is_in_place { encode } else { None };
    let questions = [
        asked(Operation::Check, expect.check.as_ref(), Expectation::Check),
        asked(Operation::Apply, expect.apply.as_ref(), Expectation::Apply),
        asked(
            Operation::Patches,
            expect.patches.as_ref(),
            Expectation::Patches,
        ),
        asked(Operation::Sums, expect.sums.as_ref(), Expectation::Sums),
        asked(
            Operation::InPlace,
            expect.in_place.as_ref(),
            Expectation::Apply,
        ),
        encode.map(|encode| (Operation::EncodeCompact, encode)),
        encode.map(|encode| (Operation::EncodeDirect, encode)),
        encode_local.map(|encode| (Operation::EncodeLocal, encode)),
        asked(Operation::Document, expect.document.as_ref(), |_| {
            Expectation::Document
        }),
        asked(Operation::Plan, expect.plan.as_ref(), Expectation::Plan),
        asked(
            Operation::Replay,
            expect.replay.as_ref(),
            Expectation::Replay,
        ),
        asked(
            Operation::ReplayInPlace,
            expect.replay_in_place.as_ref(),
            Expectation::Replay,
        ),
    ];
    let cases = questions
        .into_iter()
        .flatten()
        .map(|(operation, expectation)| {
            let id = format!("{}#{}", vector.id, operation.label());
            let minimal = beside.minimal.and_then(|minimal| match operation {
                Operation::Plan => minimal.plan.as_ref(),
                Operation::Replay => minimal.replay.as_ref(),
                _ => None,
            });
            Case {
                id,
                vector,
                operation,
                expectation,
                minimal,
                routes: beside.routes,
                addition: beside.addition,
            }
        });
    cases.collect()
}

/// Returns the target for writers, if this is a link vector whose base and result are both
/// safetensors files. States given by rule are too large for writers in slow languages.
fn encoded(vector: &Vector) -> Option<&str> {
    let in_file = |state: &str| state.ends_with(".safetensors");
    let Some(Expected::Valid(result)) = &vector.expect.apply else {
        return None;
    };
    let target = result.state.as_deref()?;
    let in_files =
        vector.kind == Kind::Link && vector.base.state().is_none_or(in_file) && in_file(target);
    in_files.then_some(target)
}
