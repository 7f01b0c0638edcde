//! The library agrees with the tables for implementers in `conformance`, which are made from
//! SPEC.md and by another reader.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use deltachain::chain::{
    ChainDocument, FileReference, Note, ObjectName, Route, RoutesDocument, Signer, SigningKey,
    Trust, VerifierKey,
};
use deltachain::format::{Coding, HEADER_BYTES, MAGIC, Positions, Values};
use deltachain::sums::Sums;
use deltachain::tensor::{DescribedDtype, Digest, Dtype, PIECE_BYTES, TensorInfo};
use deltachain::{ErrorClass, Limits, RULES, Segment, StateTable};
use serde_json::Value;

use crate::specification::maxima;

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conformance")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the rows of a table of functions.
fn rows(table: &str) -> Vec<Value> {
    let rows = read("functions.json")["tables"][table]["rows"]
        .as_array()
        .unwrap()
        .clone();
    assert!(rows.len() >= 6, "{table}");
    rows
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .or_else(|| value.as_str()?.parse().ok())
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn bytes(hexadecimal: &Value) -> Vec<u8> {
    let digits = hexadecimal.as_str().unwrap();
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn digest(value: &Value) -> Digest {
    Digest::from_hex(value.as_str().unwrap()).unwrap()
}

#[test]
fn constants_are_those_of_the_library() {
    let constants = read("constants.json");
    assert_eq!(bytes(&constants["magic"]["link"]), MAGIC);
    assert_eq!(
        number(&constants["link_version"]),
        u64::from(deltachain::format::VERSION)
    );
    assert_eq!(number(&constants["header_bytes"]), HEADER_BYTES);
    assert_eq!(number(&constants["piece_bytes"]), PIECE_BYTES);
    assert_eq!(number(&constants["window_bytes"]), 1 << 25);
    assert_eq!(digest(&constants["empty_state"]), Digest::of_empty_state());
    let context = constants["context_strings"]["state_digest"]
        .as_str()
        .unwrap();
    assert_eq!(
        Digest(blake3::derive_key(context, &[0; 8])),
        Digest::of_empty_state()
    );

    let dtypes: Vec<(u64, String, u64, u64, bool, u64)> = constants["dtypes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let is_sign_magnitude = row["sign_magnitude"].as_bool().unwrap();
            let code = number(&row["code"]);
            let bits = number(&row["bits"]);
            (
                code,
                text(&row["name"]),
                bits,
                number(&row["lane_bytes"]),
                is_sign_magnitude,
                number(&row["exponent_bits"]),
            )
        })
        .collect();
    let known: Vec<_> = Dtype::all()
        .map(|dtype| {
            let name = dtype.name().to_owned();
            let lane_bytes = dtype.lane_bytes() as u64;
            let exponent_bits = dtype.exponent_bits();
            (
                u64::from(dtype.code()),
                name,
                dtype.bits(),
                lane_bytes,
                exponent_bits.is_some(),
                exponent_bits.unwrap_or(0).into(),
            )
        })
        .collect();
    assert_eq!(dtypes, known);
    let described = &constants["described"];
    let is_legal =
        |bits: u64| DescribedDtype::new("X", u32::try_from(bits).unwrap(), 8, None).is_some();
    let [least, most] = numbers(&described["bits"])[..] else {
        panic!("{described}")
    };
    assert_eq!(
        [least - 1, least, most, most + 1].map(is_legal),
        [false, true, true, false]
    );
    let any = Dtype::Described(DescribedDtype::new("X", 8, 1, None).unwrap());
    assert_eq!(number(&described["code"]), u64::from(any.code()));

    let rows = constants["limits"].as_array().unwrap();
    let found: BTreeMap<String, u64> = rows
        .iter()
        .map(|row| (text(&row["quantity"]), number(&row["most"])))
        .collect();
    assert_eq!(found, maxima());

    let rules: BTreeMap<String, String> = constants["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| (text(&rule["id"]), text(&rule["class"])))
        .filter(|(_, class)| class != "writer" && class != "conduct")
        .collect();
    let known: BTreeMap<String, String> = RULES
        .iter()
        .map(|rule| (rule.id.to_owned(), rule.class.name().to_owned()))
        .collect();
    assert_eq!(rules, known);
}

#[test]
fn digests_are_those_of_the_table() {
    for row in rows("tensor_digests") {
        let multiply = number(&row["multiply"]);
        let add = number(&row["add"]);
        let modulus = number(&row["modulus"]);
        let data: Vec<u8> = (0..number(&row["bytes"]))
            .map(|at| u8::try_from((at * multiply + add) % modulus).unwrap())
            .collect();
        assert_eq!(Digest::of_tensor(&data), digest(&row["digest"]), "{row}");
    }
    for row in rows("state_digests") {
        let mut tensors = Vec::new();
        let mut digests = Vec::new();
        for tensor in row["tensors"].as_array().unwrap() {
            let dtype = match &tensor["dtype"] {
                Value::String(name) => Dtype::from_name(name).unwrap(),
                described => {
                    let exponent_bits = u8::try_from(number(&described["exponent_bits"])).unwrap();
                    let exponent_bits = described["sign_magnitude"]
                        .as_bool()
                        .unwrap()
                        .then_some(exponent_bits);
                    let bits = u32::try_from(number(&described["bits"])).unwrap();
                    let lane_bytes = u8::try_from(number(&described["lane_bytes"])).unwrap();
                    let name = described["name"].as_str().unwrap();
                    Dtype::Described(
                        DescribedDtype::new(name, bits, lane_bytes, exponent_bits).unwrap(),
                    )
                }
            };
            let info =
                TensorInfo::new(text(&tensor["name"]), dtype, numbers(&tensor["shape"])).unwrap();
            assert_eq!(info.bytes(), number(&tensor["bytes"]), "{row}");
            tensors.push(info);
            digests.push(digest(&tensor["digest"]));
        }
        assert_eq!(
            StateTable::new(tensors, digests).digests.state,
            digest(&row["digest"]),
            "{row}"
        );
    }
}

fn put_varint(out: &mut Vec<u8>, value: usize) {
    let mut rest = value;
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7F).unwrap() | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
}

/// Decodes the coded ranks and values of each part of a sparse segment with one context and
/// uncompressed streams.
fn decoded(
    values: Values,
    table: &[u8],
    streams: &[Vec<u8>],
    parts: &[(Dtype, u64)],
) -> Vec<Vec<(u64, u64)>> {
    let coding = Coding {
        lane_bytes: parts[0].0.lane_bytes(),
        positions: Positions::Sparse,
        values,
    };
    let mut segment = Vec::new();
    for stream in [table].into_iter().chain(streams.iter().map(Vec::as_slice)) {
        put_varint(&mut segment, stream.len());
        put_varint(&mut segment, stream.len());
    }
    segment.extend_from_slice(table);
    segment.extend(streams.concat());
    let lanes = parts
        .iter()
        .map(|(dtype, lanes)| (*dtype, u32::try_from(*lanes).unwrap()))
        .collect();
    let decoded = Segment::decode(&segment, 0, coding, lanes).unwrap();
    (0..parts.len())
        .map(|part| decoded.ranks(part).into_iter().flatten().collect())
        .collect()
}

/// Returns the ranks of each part, and a value for each rank, so that they can be told apart.
fn ranks_of(row: &Value) -> (Vec<Vec<u64>>, Vec<u8>) {
    let ranks: Vec<Vec<u64>> = row["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(numbers)
        .collect();
    let count = u8::try_from(ranks.iter().map(Vec::len).sum::<usize>() % 251).unwrap();
    let values = (0..ranks.iter().map(Vec::len).sum::<usize>())
        .map(|at| u8::try_from(at % 251).unwrap() ^ count);
    (ranks.clone(), values.collect())
}

#[test]
fn positions_are_those_of_the_table() {
    let check =
        |row: &Value, parameter: u8, counts: &[u64], streams: [Vec<u8>; 4], lanes: &[u64]| {
            let (ranks, values) = ranks_of(row);
            let mut table = vec![1, parameter];
            counts
                .iter()
                .for_each(|&count| put_varint(&mut table, usize::try_from(count).unwrap()));
            let parts: Vec<_> = lanes.iter().map(|&lanes| (Dtype::U8, lanes)).collect();
            let streams: Vec<Vec<u8>> = streams.into_iter().chain([values.clone()]).collect();
            let found = decoded(Values::Absolute, &table, &streams, &parts);
            let positions: Vec<Vec<u64>> = found
                .iter()
                .map(|part| part.iter().map(|(rank, _)| *rank).collect())
                .collect();
            assert_eq!(positions, ranks, "{row}");
            let taken: Vec<u64> = found.iter().flatten().map(|(_, value)| *value).collect();
            assert_eq!(
                taken,
                values.iter().copied().map(u64::from).collect::<Vec<_>>(),
                "{row}"
            );
        };
    for row in rows("bitmaps") {
        let members = numbers(&row["members"]);
        check(
            &row,
            32,
            &members,
            [bytes(&row["bytes"]), vec![], vec![], vec![]],
            &members,
        );
    }
    for row in rows("gaps") {
        let (ranks, _) = ranks_of(&row);
        let counts: Vec<u64> = ranks.iter().map(|ranks| ranks.len() as u64).collect();
        let lanes: Vec<u64> = ranks
            .iter()
            .map(|ranks| ranks.last().map_or(1, |last| last + 1))
            .collect();
        let streams = [
            vec![],
            bytes(&row["gap_low"]),
            bytes(&row["gap_high"]),
            bytes(&row["gap_escape"]),
        ];
        check(
            &row,
            u8::try_from(number(&row["shift"])).unwrap(),
            &counts,
            streams,
            &lanes,
        );
    }
}

#[test]
fn magnitudes_are_those_of_the_table() {
    for row in rows("magnitudes") {
        let differences: Vec<i64> = row["differences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d.as_str().unwrap().parse().unwrap())
            .collect();
        let count = differences.len();
        let mut table = vec![1, 0, u8::try_from(number(&row["bits"])).unwrap()];
        put_varint(&mut table, count);
        let of = |name: &str| bytes(&row[name]);
        let streams = [
            vec![],
            vec![],
            vec![0; count],
            vec![],
            of("sign"),
            of("magnitude"),
            of("magnitude_escape"),
        ];
        let found = decoded(
            Values::RelativeSmall,
            &table,
            &streams,
            &[(Dtype::I64, count as u64)],
        );
        let values: Vec<i64> = found[0]
            .iter()
            .map(|(_, value)| value.cast_signed())
            .collect();
        assert_eq!(values, differences, "{row}");
    }
}

#[test]
fn documents_are_those_of_the_table() {
    for row in rows("json_strings") {
        let written = row["written"].as_str().unwrap();
        let head = r#"{"deltachain":1,"chain":"00112233445566778899aabbccddeeff","metadata":{"":"#;
        let parsed = ChainDocument::parse(
            format!("{head}{written}}}}}").as_bytes(),
            &Limits::default(),
        );
        assert_eq!(parsed.is_ok(), row["legal"].as_bool().unwrap(), "{row}");
        if let Ok(document) = parsed {
            assert_eq!(
                document.metadata[""],
                row["string"].as_str().unwrap(),
                "{row}"
            );
        }
    }
    let routes_of = |row: &Value| {
        let route = |route: &Value| {
            let files = route["files"].as_array().unwrap().iter().flat_map(|file| {
                let reference = FileReference {
                    digest: digest(&file["digest"]),
                    size: number(&file["size"]),
                };
                vec![reference; usize::try_from(number(&file["times"])).unwrap()]
            });
            Route {
                from: route["from"].as_u64(),
                files: files.collect(),
            }
        };
        row["routes"]
            .as_array()
            .unwrap()
            .iter()
            .map(route)
            .collect::<Vec<_>>()
    };
    let document = |routes| RoutesDocument {
        version: 9,
        generation: 1,
        commit: Digest([1; 32]),
        routes,
        metadata: BTreeMap::new(),
    };
    for row in rows("routes") {
        let rule = document(routes_of(&row))
            .to_bytes()
            .err()
            .map(|error| error.rule().unwrap().to_owned());
        let expected = (!row["legal"].as_bool().unwrap()).then(|| "R-DOC-04".to_owned());
        assert_eq!(rule, expected, "{row}");
    }
    for row in rows("direct") {
        let files = |size| {
            vec![FileReference {
                digest: Digest([7; 32]),
                size,
            }]
        };
        let routes = (1..=number(&row["routes"])).map(|size| Route {
            from: Some(1),
            files: files(size),
        });
        let mut marked = document(routes.collect());
        marked
            .metadata
            .insert("deltachain.direct".to_owned(), text(&row["value"]));
        let direct = marked.direct_routes();
        let found: Vec<u64> = (0..)
            .zip(direct)
            .filter(|(_, direct)| *direct)
            .map(|(place, _)| place)
            .collect();
        let expected = if row["numbers"].is_null() {
            Vec::new()
        } else {
            numbers(&row["numbers"])
        };
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn keys_and_notes_are_those_of_the_tables() {
    for row in rows("verifier_keys") {
        let key = text(&row["key"]);
        let read = key.parse::<VerifierKey>();
        if row["legal"] == false {
            assert_eq!(read.unwrap_err().class(), ErrorClass::Usage, "{key:?}");
            continue;
        }
        let read = read.unwrap_or_else(|error| panic!("{key:?}: {error}"));
        assert_eq!(read.to_string(), key);
        assert_eq!(
            (read.name(), read.id().as_str()),
            (row["name"].as_str().unwrap(), row["id"].as_str().unwrap())
        );
        assert_eq!(read.bytes().as_slice(), bytes(&row["public"]));
    }
    let keys = |row: &Value| {
        let keys = row["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| text(key).parse::<VerifierKey>());
        keys.collect::<Result<Vec<_>, _>>()
    };
    for row in rows("trust") {
        let quorum = usize::try_from(number(&row["quorum"])).unwrap();
        let trust = keys(&row).and_then(|keys| Trust::new(keys, quorum));
        assert_eq!(trust.is_ok(), row["legal"] == true, "{row}");
    }
    let signers: [Arc<dyn Signer>; 1] = [Arc::new(SigningKey::from_seed("a", [1; 32]).unwrap())];
    for row in rows("note_texts") {
        let (_, note) = Note::make(
            digest(&row["chain"]),
            number(&row["version"]),
            digest(&row["commit"]),
            &signers,
        )
        .unwrap();
        assert!(
            String::from_utf8(note)
                .unwrap()
                .starts_with(&format!("{}\n", text(&row["text"]))),
            "{row}"
        );
    }
    for row in rows("notes") {
        let trust = Trust::new(keys(&row).unwrap(), 1).unwrap();
        let version = number(&row["version"]);
        let commit = digest(&row["commit"]);
        let content = bytes(&row["note"]);
        let name = ObjectName::Signature {
            version,
            commit,
            note: Digest::of_bytes(&content),
        };
        let notes: Vec<Note> = Note::read(name, digest(&row["chain"]), &content)
            .into_iter()
            .collect();
        let counts: Vec<VerifierKey> = trust.signers(&notes).into_iter().cloned().collect();
        let expected = numbers(&row["counts"])
            .into_iter()
            .map(|place| usize::try_from(place).unwrap());
        assert_eq!(
            counts,
            expected
                .map(|place| trust.keys()[place].key.clone())
                .collect::<Vec<_>>(),
            "{row}"
        );
    }
}

#[test]
fn sums_are_those_of_the_tables() {
    let sums = |value: &Value| {
        let [a, b] = numbers(value).try_into().unwrap();
        Sums::new([a, b].map(|number| u32::try_from(number).unwrap())).unwrap()
    };
    for row in rows("sums") {
        let place = number(&row["place"]);
        let data = bytes(&row["bytes"]);
        let expected = sums(&row["sums"]);
        let lanes: Vec<u32> = (u32::try_from(place).unwrap()..).take(data.len()).collect();
        assert_eq!(Sums::of_lanes(1, &lanes, &data), expected, "{row}");
        if place.is_multiple_of(2) {
            assert_eq!(Sums::of_bytes(place, &data), expected, "{row}");
        }
    }
    for row in rows("piece_sums") {
        let [length, multiply, add, modulus] =
            ["bytes", "multiply", "add", "modulus"].map(|name| number(&row[name]));
        let data: Vec<u8> = (0..length)
            .map(|i| u8::try_from((i * multiply + add) % modulus).unwrap())
            .collect();
        assert_eq!(Sums::of_bytes(0, &data), sums(&row["sums"]), "{row}");
    }
    for row in rows("sums_added") {
        let [one, other, more] = ["one", "other", "more"].map(|name| sums(&row[name]));
        assert_eq!(one.plus(other), more);
    }
}
