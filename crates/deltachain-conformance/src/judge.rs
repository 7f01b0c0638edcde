//! Judges answers: their form, their content, and the outputs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use deltachain::StateSums;
use deltachain::files::SafetensorsState;
use deltachain::format::HEADER_BYTES;
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, TensorInfo};
use deltachain::{FileSource, Limits, LinkReader, Replay, Source};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cases::{Case, Expectation, Operation};
use crate::index::{
    HeaderDigests, Nothing, PatchesResult, PlanResult, Refusal, ReplayResult, StateResult,
    SumsResult, Tensor,
};
use crate::process::shortened;
use crate::taken::taken;
use crate::workshop::{Request, Workshop};

/// Verdict about an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    /// The class is right, but the rule is wrong or missing.
    OtherRule(Option<String>),
    /// The defect, in words.
    Wrong(String),
}

/// The folder of the assets in the output of `replay`.
const ASSETS: &str = "assets";

/// Result of a check. A wrong answer is a text, because it does not stop the program.
type Judged<T = ()> = std::result::Result<T, String>;

/// The parts of the right answer that depend on what the testee says about itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms<'a> {
    /// A refusal that is right, too.
    pub(crate) also: Option<&'a Refusal>,
    /// The routes that the answer must have, if any.
    pub(crate) routes: Option<&'a Vec<Vec<String>>>,
}

/// Judges a line with which a testee has answered.
pub(crate) fn judge(
    case: &Case<'_>,
    terms: Terms<'_>,
    request: &Request,
    line: &str,
    workshop: &mut Workshop<'_>,
) -> Verdict {
    let mut verdict = judged(case, terms, request, line, workshop);
    if let (Some(also), true) = (terms.also, verdict != Ok(Verdict::Right)) {
        let also = Case {
            id: case.id.clone(),
            expectation: Expectation::Refusal(also),
            ..*case
        };
        verdict = judged(&also, terms, request, line, workshop).or(verdict);
    }
    verdict.unwrap_or_else(Verdict::Wrong)
}

/// True if the line is an answer to this case at all. If not, the testee is out of step.
pub(crate) fn answers(case: &Case<'_>, line: &str) -> bool {
    Answer::parse(case, line).is_ok()
}

fn judged(
    case: &Case<'_>,
    terms: Terms<'_>,
    request: &Request,
    line: &str,
    workshop: &mut Workshop<'_>,
) -> Judged<Verdict> {
    let answer = Answer::parse(case, line)?;
    match (answer, case.expectation) {
        (Answer::Invalid(refusal), Expectation::Refusal(expected)) => {
            if refusal.class != expected.class {
                return Err(refusal.describe());
            }
            if fs::symlink_metadata(&request.output).is_ok() {
                return Err(format!("{}, but it has left an output", refusal.describe()));
            }
            Ok(if refusal.rule == expected.rule {
                Verdict::Right
            } else {
                Verdict::OtherRule(refusal.rule)
            })
        }
        (Answer::Invalid(refusal), _) => Err(refusal.describe()),
        (Answer::Valid(members), Expectation::Refusal(_)) => Err(format!(
            "valid {}",
            shortened(&Value::Object(members).to_string())
        )),
        (Answer::Valid(members), Expectation::Check(expected)) => {
            let answer: HeaderDigests = typed(members)?;
            same(&answer, expected)
        }
        (Answer::Valid(members), Expectation::Patches(expected)) => {
            let answer: PatchesResult = typed(members)?;
            same_items("patches", &answer.patches, &expected.patches)
        }
        (Answer::Valid(members), Expectation::Sums(expected)) => {
            let answer: SumsResult = typed(members)?;
            match (&answer.sums, &expected.sums) {
                (Some(answer), Some(expected)) => same_items("tensors", answer, expected),
                (answer, expected) if answer == expected => Ok(Verdict::Right),
                (Some(_), _) => Err("sums, but the link has none".to_owned()),
                (None, _) => Err("no sums, but the link has some".to_owned()),
            }
        }
        (Answer::Valid(members), Expectation::Plan(expected)) => {
            let answer: PlanResult = typed(members)?;
            let expected = PlanResult {
                version: expected.version,
                bytes: expected.bytes,
                path: expected.path.clone(),
                routes: terms.routes.cloned(),
            };
            same(&answer, &expected)
        }
        (Answer::Valid(members), Expectation::Document) => {
            let Nothing {} = typed(members)?;
            Ok(Verdict::Right)
        }
        (Answer::Valid(members), Expectation::Apply(expected)) => {
            let answer: AppliedAnswer = typed(members)?;
            same_digest("answer", &answer.digest, &expected.digest)?;
            check_state(&request.output, expected, workshop)?;
            Ok(Verdict::Right)
        }
        (Answer::Valid(members), Expectation::Replay(expected)) => {
            let answer: ReplayedAnswer = typed(members)?;
            if answer.version != expected.version {
                return Err(format!(
                    "version {} instead of {}",
                    answer.version, expected.version
                ));
            }
            same_digest("answer", &answer.digest, &expected.digest)?;
            if answer.layouts != expected.layouts {
                return Err(format!(
                    "layouts {:?} instead of {:?}",
                    answer.layouts, expected.layouts
                ));
            }
            check_version(
                &request.output,
                expected,
                case.vector.take.is_some(),
                workshop,
            )?;
            Ok(Verdict::Right)
        }
        (Answer::Valid(members), Expectation::Encode { target }) => {
            let Nothing {} = typed(members)?;
            let base = case
                .vector
                .base
                .state()
                .map(|base| workshop.state(base))
                .transpose()
                .map_err(|e| e.to_string())?;
            let target = workshop.digest(target).map_err(|e| e.to_string())?;
            check_link(&request.output, base.as_deref(), target, case.operation)
                .map_err(|problem| format!("the link is bad: {problem}"))?;
            Ok(Verdict::Right)
        }
    }
}

/// A line in the form that the protocol requires.
enum Answer {
    /// The members for the operation, not checked yet.
    Valid(Map<String, Value>),
    Invalid(Refused),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    class: String,
    rule: Option<String>,
    message: Option<String>,
}

/// The classes of SPEC section 11, which apply to files.
const CLASSES: [&str; 10] = [
    "NOT_DCF",
    "TRUNCATED",
    "CORRUPT",
    "MALFORMED",
    "NON_CANONICAL",
    "UNSUPPORTED",
    "LIMIT",
    "WRONG_BASE",
    "STATE_MISMATCH",
    "CHAIN",
];

impl Refused {
    fn describe(&self) -> String {
        let rule = self
            .rule
            .as_ref()
            .map_or_else(String::new, |rule| format!(" {rule}"));
        let message = self
            .message
            .as_ref()
            .map_or_else(String::new, |message| format!(": {message}"));
        let meaning = match self.class.as_str() {
            "IO" => " (the testee says that its own operating system failed)".to_owned(),
            "USAGE" => " (the testee says that it cannot be asked this)".to_owned(),
            class if CLASSES.contains(&class) => String::new(),
            _ => format!(
                " (an unknown class; the classes are {})",
                CLASSES.join(", ")
            ),
        };
        format!(
            "invalid, {}{rule}{meaning}{message}",
            shortened(&self.class)
        )
    }
}

impl Answer {
    fn parse(case: &Case<'_>, line: &str) -> Judged<Self> {
        let odd = |what: String| format!("{what} in the answer {}", shortened(line));
        let not_json = |error| format!("the answer is not JSON: {error} in {}", shortened(line));
        let Value::Object(mut members) = serde_json::from_str(line).map_err(not_json)? else {
            return Err(odd("no JSON object".to_owned()));
        };
        if members.remove("case").as_ref().and_then(Value::as_str) != Some(&case.id) {
            return Err(odd("another case".to_owned()));
        }
        match members.remove("result").as_ref().and_then(Value::as_str) {
            Some("valid") => Ok(Self::Valid(members)),
            Some("invalid") => typed(members).map(Self::Invalid).map_err(odd),
            _ => Err(odd("no result".to_owned())),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AppliedAnswer {
    digest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayedAnswer {
    version: u64,
    digest: String,
    layouts: Option<Vec<String>>,
}

fn typed<T: DeserializeOwned>(members: Map<String, Value>) -> Judged<T> {
    serde_json::from_value(Value::Object(members)).map_err(|error| error.to_string())
}

fn same<T: PartialEq + std::fmt::Debug>(answer: &T, expected: &T) -> Judged<Verdict> {
    if answer == expected {
        Ok(Verdict::Right)
    } else {
        Err(format!("{answer:?} instead of {expected:?}"))
    }
}

/// Checks that two lists are equal; if not, the error shows the first items that differ.
fn same_items<T: PartialEq + std::fmt::Debug>(
    what: &str,
    answer: &[T],
    expected: &[T],
) -> Judged<Verdict> {
    if answer.len() != expected.len() {
        return Err(format!(
            "{} {what} instead of {}",
            answer.len(),
            expected.len()
        ));
    }
    let mut pairs = answer.iter().zip(expected);
    pairs
        .find(|(answer, expected)| answer != expected)
        .map_or(Ok(Verdict::Right), |(answer, expected)| {
            same(answer, expected)
        })
}

fn same_digest(whose: &str, found: &str, expected: &str) -> Judged {
    if found == expected {
        Ok(())
    } else {
        Err(format!(
            "the digest of the {whose} is {} instead of {expected}",
            shortened(found)
        ))
    }
}

/// Reads the tensors and digests of a state in a file that a testee has written.
fn read(path: &Path) -> Judged<(Vec<TensorInfo>, StateDigests)> {
    if !path.is_file() {
        return Err("there is no output file".to_owned());
    }
    SafetensorsState::open(path)
        .and_then(|state| Ok((state.tensors().to_vec(), StateDigests::of(&state, &())?)))
        .map_err(|error| format!("the output cannot be read: {error:#}"))
}

/// Compares a state that a testee has written with the expected one. Its digest covers names,
/// types, shapes and all bytes.
fn check_state(
    path: &Path,
    expected: &StateResult,
    workshop: &mut Workshop<'_>,
) -> Judged<(Vec<TensorInfo>, Vec<Digest>)> {
    let (infos, digests) = read(path)?;
    if let Some(tensors) = &expected.tensors {
        let found: Vec<Tensor> = infos
            .iter()
            .zip(&digests.tensors)
            .map(|(info, digest)| described(info, *digest))
            .collect();
        let differing = found
            .iter()
            .zip(tensors)
            .find(|(found, expected)| found != expected);
        if let Some((found, expected)) = differing {
            return Err(format!("the output has {found:?} instead of {expected:?}"));
        }
        if found.len() != tensors.len() {
            return Err(format!(
                "the output has {} tensors instead of {}",
                found.len(),
                tensors.len()
            ));
        }
    }
    same_digest("output", &digests.state.to_string(), &expected.digest)?;
    if let Some(state) = &expected.state {
        let wanted = workshop
            .digest(state)
            .map_err(|problem| problem.to_string())?;
        same_digest("output", &digests.state.to_string(), &wanted.to_string())?;
    }
    Ok((infos, digests.tensors))
}

fn described(info: &TensorInfo, digest: Digest) -> Tensor {
    Tensor {
        name: info.name().to_owned(),
        dtype: info.dtype().name().to_owned(),
        shape: info.shape().to_vec(),
        digest: digest.to_string(),
    }
}

/// Compares the folder of a replayed version with the expected content: a file per selected shard,
/// the assets, and nothing else.
fn check_version(
    folder: &Path,
    expected: &ReplayResult,
    is_part: bool,
    workshop: &mut Workshop<'_>,
) -> Judged {
    let shard_name = |number: &u64| format!("{number}.safetensors");
    let assets = folder.join(ASSETS);
    let named = expected.shards.keys().map(shard_name);
    holds_just(
        folder,
        &named
            .chain((!expected.assets.is_empty()).then(|| ASSETS.to_owned()))
            .collect(),
    )?;
    if !expected.assets.is_empty() {
        check_names(
            &files_below(&assets, "")?,
            &expected.assets.keys().cloned().collect(),
        )?;
    }
    for (name, digest) in &expected.assets {
        let bytes =
            fs::read(assets.join(name)).map_err(|error| format!("the asset {name:?}: {error}"))?;
        same_digest(
            &format!("asset {name:?}"),
            &Digest::of_bytes(&bytes).to_string(),
            digest,
        )?;
    }
    let mut union: Vec<(TensorInfo, Digest)> = Vec::new();
    for (number, shard) in &expected.shards {
        let made = check_state(&folder.join(shard_name(number)), shard, workshop);
        let (infos, digests) = made.map_err(|problem| format!("shard {number}: {problem}"))?;
        union.extend(infos.into_iter().zip(digests));
    }
    if is_part {
        return Ok(());
    }
    union.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
    let (infos, digests): (Vec<TensorInfo>, Vec<Digest>) = union.into_iter().unzip();
    same_digest(
        "output",
        &StateDigests::from_tensors(&infos, digests)
            .state
            .to_string(),
        &expected.digest,
    )
}

/// Checks that a folder has entries with these names and no others.
fn holds_just(folder: &Path, expected: &BTreeSet<String>) -> Judged {
    let found = entries(folder)?;
    check_names(
        &found
            .into_iter()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect(),
        expected,
    )
}

fn entries(folder: &Path) -> Judged<Vec<fs::DirEntry>> {
    let missing =
        |error: std::io::Error| format!("there is no output folder {}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(missing)?;
    entries
        .collect::<Result<_, _>>()
        .map_err(|error: std::io::Error| error.to_string())
}

/// Lists the files below a folder; their names begin with `prefix`. An empty folder counts as a
/// file, because no asset needs it.
fn files_below(folder: &Path, prefix: &str) -> Judged<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in entries(folder)? {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry
            .file_type()
            .map_err(|error| error.to_string())?
            .is_dir()
        {
            let inside = files_below(&entry.path(), &format!("{name}/"))?;
            names.extend(if inside.is_empty() {
                BTreeSet::from([name])
            } else {
                inside
            });
        } else {
            names.insert(name);
        }
    }
    Ok(names)
}

fn check_names(found: &BTreeSet<String>, expected: &BTreeSet<String>) -> Judged {
    if let Some(name) = expected.difference(found).next() {
        return Err(format!("the output lacks {name:?}"));
    }
    match found.difference(expected).next() {
        Some(name) => Err(format!(
            "the output has {name:?}, which does not belong there"
        )),
        None => Ok(()),
    }
}

/// Applies a link that a testee has made, and compares the result with the target.
fn check_link(
    link: &Path,
    base: Option<&Path>,
    target: Digest,
    operation: Operation,
) -> deltachain::Result<()> {
    let link = LinkReader::open(FileSource::open(link)?, &Limits::default())?;
    if operation == Operation::EncodeDirect && !link.is_direct() {
        return Err(deltachain::Error::usage(
            "relative values in a link of the direct profile",
        ));
    }
    check_checksum(&link)?;
    let files = base.map(SafetensorsState::open).transpose()?;
    let empty = MemoryState::new();
    let base: &dyn State = files.as_ref().map_or(&empty, |files| files);
    let (table, sums) = StateSums::hashed(base, &())?;
    let mut replay = Replay::new(table).with_sums(sums);
    replay.push(&link)?;
    replay.prove(base, &())?;
    let reached = replay.table().digests.state;
    if reached != target {
        return Err(deltachain::Error::usage(format!("its target is {reached}")));
    }
    if operation == Operation::EncodeLocal {
        check_sums(base, &replay)
    } else {
        Ok(())
    }
}

/// Checks that a link of the profile `local` has the sums of its target, and that it can be applied
/// in place unless it sets or removes tensors.
fn check_sums(base: &dyn State, replay: &Replay<'_, FileSource>) -> deltachain::Result<()> {
    let mut memory = MemoryState::copy_of(base)?;
    let mut patches = replay.patches(&memory, &memory, u64::MAX, &())?;
    if patches.whole_tensors().next().is_none() && patches.removed().next().is_none() {
        memory = taken(replay, base)?;
    } else {
        patches.stage(&mut memory)?.write()?;
    }
    let sums = replay.sums().cloned().unwrap_or_default();
    sums.check(&memory, &())
}

/// Checks R-STR-08.
fn check_checksum(link: &LinkReader<FileSource>) -> deltachain::Result<()> {
    if link.header().index_stored == link.header().index_raw {
        return Ok(());
    }
    // The descriptor follows the frame's magic.
    let mut descriptor = [0];
    link.source().read_at(HEADER_BYTES + 4, &mut descriptor)?;
    if descriptor[0] & 0b100 != 0 {
        return Ok(());
    }
    Err(deltachain::Error::usage(
        "R-STR-08: the frame of its compressed index has no content checksum",
    ))
}

/// Describes the expected answer.
pub(crate) fn wanted(case: &Case<'_>) -> String {
    match case.expectation {
        Expectation::Refusal(Refusal {
            class,
            rule: Some(rule),
        }) => format!("invalid, {class} {rule}"),
        Expectation::Refusal(Refusal { class, rule: None }) => {
            format!("invalid, {class} without a rule")
        }
        Expectation::Check(expected) => format!("valid, {} to {}", expected.base, expected.target),
        Expectation::Apply(expected) => format!("valid, {}", expected.digest),
        Expectation::Patches(expected) => format!("valid, {} patches", expected.patches.len()),
        Expectation::Sums(SumsResult { sums: None }) => "valid, without sums".to_owned(),
        Expectation::Sums(SumsResult { sums: Some(sums) }) => {
            format!("valid, sums of {} tensors", sums.len())
        }
        Expectation::Encode { target } => format!("a link to {target}"),
        Expectation::Document => "valid".to_owned(),
        Expectation::Plan(expected) => format!("valid, {expected:?}"),
        Expectation::Replay(expected) => format!(
            "valid, version {} with {}",
            expected.version, expected.digest
        ),
    }
}

#[cfg(test)]
mod tests {
    use deltachain::files::{Layout, StagedSafetensors};
    use deltachain::tensor::{Dtype, StateWriter};
    use deltachain::{DiffOptions, Profile, diff};

    use super::*;
    use crate::suite::Suite;

    /// Writes a shard with one empty tensor of this name; returns the expected result.
    fn shard(path: &Path, name: &str) -> StateResult {
        let infos = [TensorInfo::new(name, Dtype::U8, [0]).unwrap()];
        let staged =
            StagedSafetensors::create(path, &infos, &Layout::single_file(&infos), None, false)
                .unwrap();
        staged.commit().unwrap();
        let digest = read(path).unwrap().1.state.to_string();
        StateResult {
            digest,
            tensors: None,
            state: None,
        }
    }

    /// Writes a version with `a` and `b` in two shards, and an asset.
    fn version(folder: &Path) -> ReplayResult {
        let shards = [
            (0, shard(&folder.join("0.safetensors"), "b")),
            (1, shard(&folder.join("1.safetensors"), "a")),
        ];
        fs::create_dir(folder.join("assets")).unwrap();
        fs::write(folder.join("assets/config.json"), "{}").unwrap();
        let assets = [(
            "config.json".to_owned(),
            Digest::of_bytes(b"{}").to_string(),
        )];
        let mut union = MemoryState::new();
        union.insert("a", Dtype::U8, &[0], Vec::new()).unwrap();
        union.insert("b", Dtype::U8, &[0], Vec::new()).unwrap();
        let digest = StateDigests::of(&union, &()).unwrap().state.to_string();
        ReplayResult {
            version: 0,
            digest,
            shards: shards.into(),
            assets: assets.into(),
            layouts: None,
        }
    }

    #[test]
    fn a_compressed_index_needs_a_checksum() {
        let mut state = MemoryState::new();
        for number in 0..50 {
            state
                .insert(&format!("tensor number {number}"), Dtype::U8, &[1], vec![0])
                .unwrap();
        }
        let mut bytes = Vec::new();
        diff(
            &MemoryState::new(),
            &state,
            &DiffOptions::default(),
            &mut bytes,
        )
        .unwrap();
        let target = StateDigests::of(&state, &()).unwrap().state;
        let folder = tempfile::tempdir().unwrap();
        let check = |bytes: &[u8]| {
            let path = folder.path().join("link.dcf");
            fs::write(&path, bytes).unwrap();
            check_link(&path, None, target, Operation::EncodeCompact)
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(&bytes), Ok(()));
        // The same link without the last four bytes of the frame, and without the flag that
        // announces them.
        let stored = u64::from_le_bytes(bytes[88..96].try_into().unwrap());
        let end = 128 + usize::try_from(stored).unwrap();
        bytes.drain(end - 4..end);
        bytes[132] &= !0b100;
        bytes[88..96].copy_from_slice(&(stored - 4).to_le_bytes());
        let crc = crc32fast::hash(&bytes[128..end - 4]);
        bytes[120..124].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
        assert!(check(&bytes).unwrap_err().contains("R-STR-08"));
    }

    #[test]
    fn a_local_link_needs_sums_and_local_parts() {
        let (mut base, mut target) = (MemoryState::new(), MemoryState::new());
        base.insert("t", Dtype::BF16, &[2], vec![1, 0x3C, 1, 0x3F])
            .unwrap();
        target
            .insert("t", Dtype::BF16, &[2], vec![1, 0x3C, 2, 0x3F])
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let paths = ["base", "link"].map(|name| folder.path().join(name));
        let infos = base.tensors();
        let staged =
            StagedSafetensors::create(&paths[0], infos, &Layout::single_file(infos), None, false)
                .unwrap();
        staged.write(0, 0, &[1, 0x3C, 1, 0x3F]).unwrap();
        staged.commit().unwrap();
        let reached = StateDigests::of(&target, &()).unwrap().state;
        let check = |profile, has_sums| {
            let mut file = Vec::new();
            diff(
                &base,
                &target,
                &DiffOptions::default().profile(profile).sums(has_sums),
                &mut file,
            )
            .unwrap();
            fs::write(&paths[1], file).unwrap();
            check_link(&paths[1], Some(&paths[0]), reached, Operation::EncodeLocal)
        };
        check(Profile::Local, true).unwrap();
        check(Profile::Local, false).unwrap_err();
    }

    #[test]
    fn assets_may_lie_in_folders() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in [("a", "1"), ("b/c/d", "2")] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let names = |expected: &[&str]| {
            let expected = expected.iter().map(|&name| name.to_owned()).collect();
            check_names(&files_below(folder.path(), "").unwrap(), &expected)
        };
        assert_eq!(names(&["a", "b/c/d"]), Ok(()));
        assert!(
            names(&["a", "b/c"]).is_err()
                && names(&["a"]).is_err()
                && names(&["a", "b/c/d", "e"]).is_err()
        );
        // An empty folder does not belong there.
        fs::create_dir(folder.path().join("b/e")).unwrap();
        assert_eq!(
            names(&["a", "b/c/d"]),
            Err("the output has \"b/e\", which does not belong there".to_owned())
        );
    }

    #[test]
    fn a_replayed_version_is_its_shards_and_assets_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let index = r#"{"format":3,"spec":"1.0","licence":"CC0-1.0","states":{},"vectors":[],"minimal":{}}"#;
        fs::write(folder.path().join("index.json"), index).unwrap();
        let suite = Suite::load(Some(folder.path())).unwrap();
        let mut workshop = Workshop::new(&suite).unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        let mut expected = version(&out);
        let mut check = |expected: &ReplayResult, is_part| {
            check_version(&out, expected, is_part, &mut workshop)
        };
        let mut refused = |expected: &ReplayResult, problem: &str| {
            let found = check(expected, false).unwrap_err();
            assert!(found.contains(problem), "{found}");
        };

        let state = std::mem::replace(&mut expected.digest, "another".to_owned());
        refused(&expected, "the digest of the output");
        expected.digest = state;
        let last = expected.shards.remove(&1).unwrap();
        refused(
            &expected,
            r#"has "1.safetensors", which does not belong there"#,
        );
        expected.shards.extend([
            (1, last),
            (
                2,
                StateResult {
                    digest: String::new(),
                    tensors: None,
                    state: None,
                },
            ),
        ]);
        refused(&expected, r#"the output lacks "2.safetensors""#);
        let first = expected
            .shards
            .remove(&2)
            .and_then(|_| expected.shards.remove(&0))
            .unwrap();
        let second = expected.shards.insert(1, first).unwrap();
        expected.shards.insert(0, second);
        refused(&expected, "shard 0: the digest of the output");
        let first = expected.shards.remove(&1).unwrap();
        let second = expected.shards.insert(0, first).unwrap();
        expected.shards.insert(1, second);

        let assets = std::mem::take(&mut expected.assets);
        refused(&expected, r#"has "assets", which does not belong there"#);
        expected.assets.insert("other".to_owned(), String::new());
        refused(&expected, r#"the output lacks "other""#);
        expected.assets = [("config.json".to_owned(), "another".to_owned())].into();
        refused(&expected, r#"the digest of the asset "config.json""#);
        expected.assets = assets;
        assert_eq!(check(&expected, false), Ok(()));
        // The digest of the whole version does not apply to a part.
        expected.digest = "another".to_owned();
        assert_eq!(check(&expected, true), Ok(()));
    }
}
