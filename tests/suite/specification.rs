//! SPEC.md and the code agree: these tests compare its tables with the constants and its rules with
//! the rules of the code, and read its worked files.

use std::collections::BTreeMap;

use deltachain::chain::{Asset, ChainDocument, Commit, Route};
use deltachain::format::{HEADER_BYTES, MAGIC, PositionCoding, Start};
use deltachain::tensor::{Digest, Dtype, MemoryState, PIECE_BYTES, StateDigests};
use deltachain::{ErrorClass, Limits, LinkReader, RULES, apply};

const SPEC: &str = concat!(
    include_str!("../../SPEC.md"),
    include_str!("../../spec/publishing.md"),
    include_str!("../../spec/worked-files.md")
);
const SIGNATURES: &str = include_str!("../../spec/signatures.md");
const IN_PLACE: &str = include_str!("../../spec/in-place.md");
const LAYOUTS: &str = include_str!("../../spec/layouts.md");

/// Returns the cells of the table below this heading whose header row begins with this cell.
fn table(heading: &str, first_cell: &str) -> Vec<Vec<String>> {
    let section = SPEC
        .split_once(heading)
        .unwrap_or_else(|| panic!("no heading {heading}"))
        .1;
    let start = format!("| {first_cell} |");
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with(&start))
        .take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<String>> = rows
        .skip(2)
        .map(|row| {
            row.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect();
    assert!(!rows.is_empty(), "no table {first_cell} below {heading}");
    rows
}

/// Parses a number of the tables.
fn number(cell: &str) -> u64 {
    match cell.split_once('^') {
        Some((base, exponent)) => base.parse::<u64>().unwrap().pow(exponent.parse().unwrap()),
        None => cell.parse().unwrap(),
    }
}

/// Returns the bytes of the code block with this tag: everything between the offset and `|` on each
/// line.
fn hexdump(tag: &str) -> Vec<u8> {
    let block = SPEC
        .split_once(&format!("```hexdump {tag}\n"))
        .unwrap_or_else(|| panic!("no hexdump {tag}"))
        .1;
    let mut bytes = Vec::new();
    for line in block.split_once("```").unwrap().0.lines() {
        let (offset, rest) = line.split_once("  ").unwrap();
        assert_eq!(
            usize::from_str_radix(offset, 16).unwrap(),
            bytes.len(),
            "{line}"
        );
        let hex = rest.split('|').next().unwrap();
        bytes.extend(
            hex.split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap()),
        );
    }
    bytes
}

#[test]
fn dtypes_are_those_of_the_table() {
    let mut rows = table("### 2.1 Dtypes", "code");
    assert_eq!(rows.pop().unwrap()[..2], ["255", "*described*"]);
    assert_eq!(rows.len(), Dtype::all().len());
    for (row, dtype) in rows.iter().zip(Dtype::all()) {
        let expected = [
            dtype.code().to_string(),
            dtype.name().to_owned(),
            dtype.bits().to_string(),
            dtype.lane_bytes().to_string(),
            if dtype.exponent_bits().is_some() {
                "yes"
            } else {
                "no"
            }
            .to_owned(),
            dtype.exponent_bits().unwrap_or(0).to_string(),
        ];
        assert_eq!(*row, expected);
    }
}

#[test]
fn the_header_is_that_of_the_table() {
    let rows = table("### 4.1 Header", "offset");
    let mut end = 0;
    for row in &rows {
        assert_eq!(number(&row[0]), end, "{row:?}");
        end += number(&row[1]);
        let sizes = BTreeMap::from([("u32", 4), ("u64", 8), ("digest", 32), ("bytes", 8)]);
        assert_eq!(sizes[row[2].as_str()], number(&row[1]), "{row:?}");
    }
    assert_eq!(end, HEADER_BYTES);
    let magic: Vec<String> = MAGIC.iter().map(|byte| format!("{byte:02X}")).collect();
    assert_eq!(rows[0][4], format!("`{}`", magic.join(" ")));
    // The header has a different byte in every field, so that swapped offsets show.
    let header = deltachain::format::Header {
        compatible_features: 0x0101_0101,
        base: Digest([2; 32]),
        target: Digest([3; 32]),
        index_stored: 0x0404_0404,
        index_raw: 0x0505_0505,
        segments_length: 0x0606_0606,
        extension_length: 0x0707_0707,
        index_crc: 0x0808_0808,
    };
    let bytes = header.to_bytes();
    let fields = [
        ("compatible features", 1),
        ("base", 2),
        ("target", 3),
        ("index stored length", 4),
        ("index raw length", 5),
        ("segments length", 6),
        ("extension length", 7),
        ("index CRC", 8),
    ];
    for (field, byte) in fields {
        let row = rows.iter().find(|row| row[3] == field).unwrap();
        assert_eq!(
            bytes[usize::try_from(number(&row[0])).unwrap()],
            byte,
            "{field}"
        );
    }
}

/// Returns the maxima of the format, by the names of section 13. A test of the library compares
/// them with its own.
pub(crate) fn maxima() -> BTreeMap<String, u64> {
    table("## 13. Limits", "quantity")
        .into_iter()
        .map(|row| (row[0].clone(), number(&row[2])))
        .collect()
}

#[test]
fn limits_of_publishers_and_pieces_are_those_of_the_table() {
    assert!(SPEC.contains("cut at multiples of 2^24") && PIECE_BYTES == 1 << 24);
    let of_publishers = [
        ("assets of a commit", Asset::MOST as u64),
        ("asset, bytes", Asset::MOST_BYTES),
    ];
    for (quantity, most) in of_publishers {
        let row = table("## 13. Limits", "quantity")
            .into_iter()
            .find(|row| row[0] == quantity)
            .unwrap();
        assert_eq!(number(&row[1]), most, "{quantity}");
    }
}

#[test]
fn rules_and_classes_are_those_of_the_code() {
    // Rules are defined as `**R-XXX-00** (CLASS)`. Rules that only bind writers have no class, and
    // no reader checks them.
    let mut defined = BTreeMap::new();
    // A line may end inside a definition.
    let texts = [SPEC, SIGNATURES, IN_PLACE, LAYOUTS]
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    for piece in texts.iter().flat_map(|text| text.split("**R-").skip(1)) {
        let Some((id, rest)) = piece.split_once("**") else {
            continue;
        };
        let class: String = rest
            .trim_start_matches([' ', '('])
            .chars()
            .take_while(|c| c.is_uppercase() || *c == '_')
            .collect();
        if class.len() > 2 && rest.starts_with(" (") {
            assert!(
                defined.insert(format!("R-{id}"), class).is_none(),
                "R-{id} is defined twice"
            );
        }
    }
    let known: BTreeMap<String, String> = RULES
        .iter()
        .map(|rule| (rule.id.to_owned(), rule.class.name().to_owned()))
        .collect();
    assert_eq!(known.len(), RULES.len());
    assert_eq!(defined, known);
}

#[test]
fn classes_are_those_of_the_table() {
    let rows = table("## 11. Error classes", "class");
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let known = [
        ErrorClass::NotDcf,
        ErrorClass::Truncated,
        ErrorClass::Corrupt,
        ErrorClass::Malformed,
        ErrorClass::NonCanonical,
        ErrorClass::Unsupported,
        ErrorClass::Limit,
        ErrorClass::WrongBase,
        ErrorClass::StateMismatch,
        ErrorClass::Chain,
    ];
    assert_eq!(names, known.map(ErrorClass::name));
}

#[test]
fn the_digest_of_the_empty_state_is_right() {
    let text = SPEC
        .split_once("```digest-of-empty-state\n")
        .unwrap()
        .1
        .lines()
        .next()
        .unwrap();
    assert_eq!(Digest::from_hex(text), Some(Digest::of_empty_state()));
    assert_eq!(
        StateDigests::of(&MemoryState::new(), &()).unwrap().state,
        Digest::of_empty_state()
    );
}

#[test]
fn the_smallest_file_is_read() {
    let file = hexdump("smallest");
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    assert!(link.index().tensors.is_empty() && link.index().segments.is_empty());
    assert_eq!(
        apply(&MemoryState::new(), &link).unwrap(),
        MemoryState::new()
    );
}

#[test]
fn the_documents_of_the_smallest_chain_are_read() {
    let document = |tag: &str| {
        SPEC.split_once(&format!("```json {tag}\n"))
            .unwrap()
            .1
            .lines()
            .next()
            .unwrap()
    };
    let chain = document("chain").as_bytes();
    let commit = document("commit").as_bytes();
    let limits = Limits::default();
    let first = ChainDocument::parse(chain, &limits).unwrap();
    assert_eq!(
        (first.chain, first.to_bytes().unwrap()),
        (0x0011_2233_4455_6677_8899_aabb_ccdd_eeff, chain.to_vec())
    );
    let parsed = Commit::parse(commit, &limits).unwrap();
    assert_eq!(parsed.to_bytes().unwrap(), commit);
    // The commit refers to the chain document and to the smallest file.
    assert_eq!(
        (parsed.version, parsed.parent),
        (0, Digest::of_bytes(chain))
    );
    assert_eq!(
        (parsed.state, parsed.shards),
        (Digest::of_empty_state(), vec![Digest::of_empty_state()])
    );
    let [Route { from: None, files }] = &parsed.routes[..] else {
        panic!("{:?}", parsed.routes)
    };
    let smallest = hexdump("smallest");
    files[0]
        .check(smallest.len() as u64, Digest::of_bytes(&smallest))
        .unwrap();
}

#[test]
fn the_file_with_contexts_is_read() {
    let file = hexdump("contexts");
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    link.verify(&()).unwrap();
    // The states in the text of section 16.2.
    let lanes = |tag: &str| -> Vec<u8> {
        let line = SPEC
            .lines()
            .find(|line| line.starts_with(&format!("- {tag}: `")))
            .unwrap();
        let lanes = line.split('`').nth(1).unwrap();
        lanes
            .split(' ')
            .flat_map(|lane| u16::from_str_radix(lane, 16).unwrap().to_le_bytes())
            .collect()
    };
    let state = |data: Vec<u8>| {
        let mut state = MemoryState::new();
        state.insert("t", Dtype::BF16, &[8], data).unwrap();
        state
    };
    assert_eq!(
        apply(&state(lanes("base")), &link).unwrap(),
        state(lanes("target"))
    );
    let segment = link.segment(0).unwrap();
    assert_eq!(segment.table().contexts, 2);
    assert_eq!(
        segment.table().positions,
        [PositionCoding::Bitmap, PositionCoding::Gaps(0)]
    );
    assert_eq!(
        link.index().tensors[0].written().unwrap().start,
        Start::Base
    );
    // The values are differences: with another base they would give another result, so the base's
    // digest refuses it.
    let mut other = lanes("base");
    other[0] ^= 1;
    assert_eq!(
        apply(&state(other), &link).unwrap_err().class(),
        ErrorClass::WrongBase
    );
}

#[test]
fn the_files_with_sums_and_with_two_pieces_are_read() {
    let file = hexdump("described");
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    link.verify(&()).unwrap();
    assert!(link.sums().unwrap().is_some());
    let file = hexdump("pieces");
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    let state = apply(&MemoryState::new(), &link).unwrap();
    let mut expected = vec![0; usize::try_from(PIECE_BYTES).unwrap()];
    expected.push(7);
    let mut target = MemoryState::new();
    let shape = [expected.len() as u64];
    target.insert("t", Dtype::U8, &shape, expected).unwrap();
    assert_eq!(state, target);
}

#[test]
fn the_file_with_escapes_is_read() {
    let file = hexdump("escapes");
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    link.verify(&()).unwrap();
    // The base follows the rule of section 16.3, the target its table.
    let every_third = |lanes: usize, third: u16, other: u16| -> Vec<u16> {
        (0..lanes)
            .map(|lane| if lane % 3 == 0 { third } else { other })
            .collect()
    };
    let base = BTreeMap::from([
        ("a", every_third(3000, 0x4000, 0x3F80)),
        ("b", every_third(12, 0x3F80, 0x3F00)),
    ]);
    let mut target = base.clone();
    for row in table("### 16.3 ", "tensor") {
        let cells: Vec<&str> = row.iter().map(|cell| cell.trim_matches('`')).collect();
        let hex = |cell: &str| u16::from_str_radix(cell, 16).unwrap();
        let lane = &mut target.get_mut(cells[0]).unwrap()[cells[1].parse::<usize>().unwrap()];
        assert_eq!(*lane, hex(cells[2]), "{row:?}");
        *lane = hex(cells[3]);
    }
    let state = |tensors: &BTreeMap<&str, Vec<u16>>| {
        let mut state = MemoryState::new();
        for (&name, lanes) in tensors {
            let data: Vec<u8> = lanes.iter().flat_map(|lane| lane.to_le_bytes()).collect();
            state
                .insert(name, Dtype::BF16, &[lanes.len() as u64], data)
                .unwrap();
        }
        state
    };
    assert_eq!(apply(&state(&base), &link).unwrap(), state(&target));
    let segment = link.segment(0).unwrap();
    assert_eq!(
        segment.table().positions,
        [PositionCoding::Gaps(2), PositionCoding::Gaps(1)]
    );
}
