//! Compares the parsers of documents with a slow twin: serde reads the text leniently and writes it
//! again; then the bytes are compared.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;

const LARGEST: u64 = (1 << 53) - 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainTwin {
    deltachain: u64,
    chain: String,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitTwin {
    deltachain: u64,
    version: u64,
    parent: String,
    state: String,
    shards: Vec<String>,
    routes: Vec<RouteTwin>,
    assets: Vec<AssetTwin>,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoutesTwin {
    deltachain: u64,
    version: u64,
    generation: u64,
    commit: String,
    routes: Vec<RouteTwin>,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTwin {
    from: Option<u64>,
    files: Vec<FileTwin>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTwin {
    digest: String,
    size: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AssetTwin {
    name: String,
    digest: String,
    size: u64,
}

/// Parses a value; `None` if the bytes are not its only form. Does not check that its members have
/// the values of the table.
fn twin<T: Serialize + for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    (serde_json::to_vec(&value).unwrap() == bytes).then_some(value)
}

fn is_hexadecimal(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte))
}

fn twin_accepts_routes(routes: &[RouteTwin]) -> bool {
    let is_file =
        |file: &FileTwin| is_hexadecimal(&file.digest, 64) && (1..=LARGEST).contains(&file.size);
    routes.iter().all(|route| {
        route.from.is_none_or(|from| from <= LARGEST)
            && !route.files.is_empty()
            && route.files.iter().all(is_file)
    })
}

/// Checks R-DOC-01 to R-DOC-03 in the slow and obvious way.
fn twin_accepts_commit(bytes: &[u8]) -> bool {
    twin::<CommitTwin>(bytes).is_some_and(|commit| {
        let digests = [&commit.parent, &commit.state]
            .into_iter()
            .chain(&commit.shards);
        let is_asset =
            |asset: &AssetTwin| is_hexadecimal(&asset.digest, 64) && asset.size <= 1 << 30;
        commit.deltachain == 1
            && commit.version <= LARGEST
            && digests.into_iter().all(|digest| is_hexadecimal(digest, 64))
            && !commit.shards.is_empty()
            && !commit.routes.is_empty()
            && twin_accepts_routes(&commit.routes)
            && commit.assets.len() <= 256
            && commit.assets.iter().all(is_asset)
    })
}

fn twin_accepts_routes_document(bytes: &[u8]) -> bool {
    twin::<RoutesTwin>(bytes).is_some_and(|document| {
        document.deltachain == 1
            && document.version <= LARGEST
            && (1..=9_999_999_999).contains(&document.generation)
            && is_hexadecimal(&document.commit, 64)
            && twin_accepts_routes(&document.routes)
    })
}

fn twin_accepts_chain(bytes: &[u8]) -> bool {
    twin::<ChainTwin>(bytes)
        .is_some_and(|chain| chain.deltachain == 1 && is_hexadecimal(&chain.chain, 32))
}

/// True if a document has the only form of its content: it breaks no rule, or only a later one.
fn has_the_form<T>(parsed: &Result<T>) -> bool {
    match parsed {
        Ok(_) => true,
        Err(error) => ["R-DOC-04", "R-DOC-05", "R-DOC-06", "R-DOC-07", "R-DOC-08"]
            .contains(&error.rule().unwrap()),
    }
}

fn any_digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

/// Generates strings with many characters that are escaped, or nearly so.
fn any_text() -> impl Strategy<Value = String> {
    let odd: Vec<char> = ('\0'..='#')
        .chain("/\\u\u{7f}\u{80}\u{2028}\u{d7ff}\u{e000}\u{10ffff}é".chars())
        .collect();
    vec(
        prop_oneof![proptest::sample::select(odd), any::<char>()],
        0..6,
    )
    .prop_map(String::from_iter)
}

fn any_routes(version: u64, files: usize) -> impl Strategy<Value = Vec<Route>> {
    let file =
        (any_digest(), 1..=LARGEST).prop_map(|(digest, size)| FileReference { digest, size });
    let from = proptest::option::of(0..version.max(1))
        .prop_map(move |from| from.filter(|&from| from < version));
    let route = (from, vec(file, files)).prop_map(|(from, files)| Route { from, files });
    vec(route, 1..5).prop_map(Route::in_order)
}

fn any_assets() -> impl Strategy<Value = Vec<Asset>> {
    btree_map(
        "([d-f]/)?[a-c]{1,2}( |\\.)[a-z\u{e4}]",
        (any_digest(), 0..=1_u64 << 30),
        0..4,
    )
    .prop_map(|assets| {
        assets
            .into_iter()
            .map(|(name, (digest, size))| Asset {
                name,
                file: FileReference { digest, size },
            })
            .collect()
    })
}

fn any_metadata() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(any_text(), any_text(), 0..4)
}

fn any_commit() -> impl Strategy<Value = Commit> {
    (prop_oneof![0..3_u64, 0..=LARGEST], 1..4_usize)
        .prop_flat_map(|(version, shards)| {
            let digests = (any_digest(), any_digest(), vec(any_digest(), shards));
            (
                Just(version),
                digests,
                any_routes(version, shards),
                any_assets(),
                any_metadata(),
            )
        })
        .prop_map(
            |(version, (parent, state, mut shards), routes, assets, metadata)| {
                if shards.len() == 1 {
                    shards[0] = state;
                }
                Commit {
                    version,
                    parent,
                    state,
                    shards,
                    routes,
                    assets,
                    metadata,
                }
            },
        )
}

fn any_routes_document() -> impl Strategy<Value = RoutesDocument> {
    let generation = prop_oneof![1..=9_999_999_999_u64, Just(9_999_999_999)];
    (
        prop_oneof![0..3_u64, 0..=LARGEST],
        generation,
        1..3_usize,
        any::<bool>(),
        any_digest(),
    )
        .prop_flat_map(|(version, generation, files, pruned, commit)| {
            (
                Just((version, generation, pruned, commit)),
                any_routes(version, files),
                any_metadata(),
            )
        })
        .prop_map(
            |((version, generation, pruned, commit), mut routes, metadata)| {
                if pruned {
                    routes.clear();
                }
                RoutesDocument {
                    version,
                    generation,
                    commit,
                    routes,
                    metadata,
                }
            },
        )
}

/// Changes, removes or inserts one byte.
fn damage(bytes: &[u8], (place, byte, kind): (usize, u8, u8)) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    let place = place % bytes.len();
    match kind {
        0 => damaged[place] = byte,
        1 => drop(damaged.remove(place)),
        _ => damaged.insert(place, byte),
    }
    damaged
}

/// Generates damage in which bytes with a meaning in JSON are more frequent than others.
fn any_damage() -> impl Strategy<Value = (usize, u8, u8)> {
    let byte = prop_oneof![
        any::<u8>(),
        proptest::sample::select(b" 0159afAF-+.eE\"\\/{}[],:nu\n\t".to_vec())
    ];
    (any::<usize>(), byte, 0..3_u8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn chain_documents_have_one_form(chain in any::<u128>(), metadata in any_metadata(), how in any_damage()) {
        let document = ChainDocument { chain, metadata };
        let bytes = document.to_bytes().unwrap();
        prop_assert!(twin_accepts_chain(&bytes));
        prop_assert_eq!(ChainDocument::parse(&bytes, &Limits::default()).unwrap(), document);
        let damaged = damage(&bytes, how);
        let parsed = ChainDocument::parse(&damaged, &Limits::default());
        prop_assert_eq!(has_the_form(&parsed), twin_accepts_chain(&damaged));
        if let Ok(parsed) = parsed {
            prop_assert_eq!(parsed.to_bytes().unwrap(), damaged);
        }
    }

    #[test]
    fn commits_have_one_form(commit in any_commit(), how in any_damage()) {
        let bytes = commit.to_bytes().unwrap();
        prop_assert!(twin_accepts_commit(&bytes));
        prop_assert_eq!(&Commit::parse(&bytes, &Limits::default()).unwrap(), &commit);
        let damaged = damage(&bytes, how);
        let parsed = Commit::parse(&damaged, &Limits::default());
        prop_assert_eq!(has_the_form(&parsed), twin_accepts_commit(&damaged));
        if let Ok(parsed) = parsed {
            prop_assert_eq!(parsed.to_bytes().unwrap(), damaged);
        }
    }

    #[test]
    fn routes_documents_have_one_form(document in any_routes_document(), how in any_damage()) {
        let bytes = document.to_bytes().unwrap();
        prop_assert!(twin_accepts_routes_document(&bytes));
        prop_assert_eq!(&RoutesDocument::parse(&bytes, &Limits::default()).unwrap(), &document);
        let damaged = damage(&bytes, how);
        let parsed = RoutesDocument::parse(&damaged, &Limits::default());
        prop_assert_eq!(has_the_form(&parsed), twin_accepts_routes_document(&damaged));
        if let Ok(parsed) = parsed {
            prop_assert_eq!(parsed.to_bytes().unwrap(), damaged);
        }
    }
}

fn asset(name: &str, size: u64) -> Asset {
    Asset {
        name: name.to_owned(),
        file: FileReference {
            digest: Digest([9; 32]),
            size,
        },
    }
}

fn a_commit() -> Commit {
    let digest = |byte| Digest([byte; 32]);
    let file = |byte| FileReference {
        digest: digest(byte),
        size: 7,
    };
    Commit {
        version: 3,
        parent: digest(1),
        state: digest(2),
        shards: vec![digest(3), digest(4)],
        routes: vec![
            Route {
                from: None,
                files: vec![file(5), file(6)],
            },
            Route {
                from: Some(2),
                files: vec![file(7), file(8)],
            },
        ],
        assets: vec![asset("config.json", 9), asset("tokenizer.json", 0)],
        metadata: BTreeMap::from([
            ("a".to_owned(), "\u{1f}é".to_owned()),
            ("b".to_owned(), String::new()),
        ]),
    }
}

#[test]
fn the_form_is_that_of_the_specification() {
    let hex = |digit: &str| digit.repeat(32);
    let d1 = hex("01");
    let d2 = hex("02");
    let d3 = hex("03");
    let d4 = hex("04");
    let d5 = hex("05");
    let d6 = hex("06");
    let d7 = hex("07");
    let d8 = hex("08");
    let d9 = hex("09");
    let expected = format!(
        "{{\"deltachain\":1,\"version\":3,\"parent\":\"{d1}\",\"state\":\"{d2}\",\"shards\":[\"{d3}\",\"{d4}\"],\
         \"routes\":[\
         {{\"from\":null,\"files\":[{{\"digest\":\"{d5}\",\"size\":7}},{{\"digest\":\"{d6}\",\"size\":7}}]}},\
         {{\"from\":2,\"files\":[{{\"digest\":\"{d7}\",\"size\":7}},{{\"digest\":\"{d8}\",\"size\":7}}]}}],\
         \"assets\":[{{\"name\":\"config.json\",\"digest\":\"{d9}\",\"size\":9}},\
         {{\"name\":\"tokenizer.json\",\"digest\":\"{d9}\",\"size\":0}}],\
         \"metadata\":{{\"a\":\"\\u001fé\",\"b\":\"\"}}}}"
    );
    assert_eq!(
        String::from_utf8(a_commit().to_bytes().unwrap()).unwrap(),
        expected
    );
    let metadata = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    let chain = ChainDocument {
        chain: 0xab,
        metadata: metadata.clone(),
    };
    let expected = "{\"deltachain\":1,\"chain\":\"000000000000000000000000000000ab\",\"metadata\":{\"a\":\"b\"}}";
    assert_eq!(
        String::from_utf8(chain.to_bytes().unwrap()).unwrap(),
        expected
    );
    let routes = RoutesDocument {
        version: 1,
        generation: 2,
        commit: Digest([1; 32]),
        routes: Vec::new(),
        metadata,
    };
    let expected = format!(
        "{{\"deltachain\":1,\"version\":1,\"generation\":2,\"commit\":\"{d1}\",\"routes\":[],\
         \"metadata\":{{\"a\":\"b\"}}}}"
    );
    assert_eq!(
        String::from_utf8(routes.to_bytes().unwrap()).unwrap(),
        expected
    );
}

#[test]
fn the_first_broken_rule_is_reported() {
    let text = String::from_utf8(a_commit().to_bytes().unwrap()).unwrap();
    let cases = [
        // Anything may follow an unknown version.
        (
            "{\"deltachain\":1,",
            "{\"deltachain\":0,\u{0}",
            "R-DOC-02",
            Some(14),
        ),
        (
            "{\"deltachain\":1,",
            "{\"deltachain\":2,",
            "R-DOC-02",
            Some(14),
        ),
        (
            "{\"deltachain\":1,",
            "{\"deltachain\":9007199254740992,",
            "R-DOC-01",
            Some(0),
        ),
        (
            "{\"deltachain\":1,",
            "{\"deltachain\":01,",
            "R-DOC-01",
            Some(0),
        ),
        (
            "{\"deltachain\":1,",
            "{\"deltachain\":-1,",
            "R-DOC-01",
            Some(0),
        ),
        (
            "{\"deltachain\":1,",
            "{\"deltachain\":\"1\",",
            "R-DOC-01",
            Some(0),
        ),
        (
            "{\"deltachain\":1,",
            "{\"deltachain\": 1,",
            "R-DOC-01",
            Some(0),
        ),
        ("{\"deltachain\":1,", "{", "R-DOC-01", Some(0)),
        ("\"version\":3", "\"version\":3.0", "R-DOC-03", Some(26)),
        (
            "\"version\":3",
            "\"version\":9007199254740992",
            "R-DOC-03",
            Some(26),
        ),
        ("\"version\":3", "\"version\":03", "R-DOC-03", Some(26)),
        (
            "\"version\":3",
            "\"version\":3,\"version\":3",
            "R-DOC-03",
            None,
        ),
        (
            "\"version\":3,",
            "",
            "R-DOC-03",
            Some(text.len() as u64 - 12),
        ),
        ("\"from\":null,", "", "R-DOC-03", None),
        ("\"from\":2", "\"from\":\"2\"", "R-DOC-03", None),
        ("\"size\":7}", "\"size\":0}", "R-DOC-03", None),
        ("\"0101", "\"0A01", "R-DOC-03", None),
        ("\"shards\":[", "\"shards\":[],\"x\":[", "R-DOC-03", None),
        ("\\u001f", "\\u001F", "R-DOC-03", None),
        ("\\u001f", "\\u0041", "R-DOC-03", None),
        ("\\u001f", "\\u000a", "R-DOC-03", None),
        ("\\u001f", "\\/", "R-DOC-03", None),
        ("\\u001f", "\u{1f}", "R-DOC-03", None),
        ("\\u001f", "\\ud800", "R-DOC-03", None),
        ("\\u001f", "\\ud83d\\ude00", "R-DOC-03", None),
        ("é", "\\u00e9", "R-DOC-03", None),
        ("\"a\":", "\"b\":", "R-DOC-03", None),
        ("\"a\":", "\"c\":", "R-DOC-03", None),
        ("\"b\":\"\"", "\"b\":null", "R-DOC-03", None),
        (
            "\"b\":\"\"}}",
            "\"b\":\"\"}}\n",
            "R-DOC-03",
            Some(text.len() as u64),
        ),
        (
            "\"b\":\"\"}}",
            "\"b\":\"\"}",
            "R-DOC-03",
            Some(text.len() as u64 - 1),
        ),
        ("\"name\":\"config.json\",", "", "R-DOC-03", None),
        (
            "\"size\":9}",
            "\"size\":9007199254740992}",
            "R-DOC-03",
            None,
        ),
        ("\"size\":9}", "\"size\":1073741825}", "R-LIM-07", None),
        ("\"assets\":", "\"assets\":null,\"x\":", "R-DOC-03", None),
        ("\"from\":2", "\"from\":3", "R-DOC-04", None),
        (
            "\"from\":null",
            "\"from\":9007199254740991",
            "R-DOC-04",
            None,
        ),
    ];
    for (old, new, rule, offset) in cases {
        let broken = text.replacen(old, new, 1);
        assert_ne!(broken, text, "{old}");
        let error = Commit::parse(broken.as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(error.rule(), Some(rule), "{old} {new}: {error}");
        assert!(
            offset.is_none_or(|offset| error.offset() == Some(offset)),
            "{old} {new}: {error}"
        );
    }
    let long = text.replacen(
        "\"version\":3",
        &format!("\"version\":\"\\u0007{}\"", "é".repeat(5000)),
        1,
    );
    let error = Commit::parse(long.as_bytes(), &Limits::default()).unwrap_err();
    assert!(
        error.rule() == Some("R-DOC-03") && error.message().len() < 1000,
        "{error}"
    );
    assert!(!error.message().contains(char::is_control), "{error}");
    let mut not_text = text.clone().into_bytes();
    let last = not_text.len() - 3;
    not_text[last] = 0xff;
    let error = Commit::parse(&not_text, &Limits::default()).unwrap_err();
    assert_eq!(
        (error.rule(), error.offset()),
        (Some("R-DOC-03"), Some(last as u64))
    );
}

#[test]
fn shards_and_files_have_to_agree() {
    let mut commit = a_commit();
    commit.routes[1].files.pop();
    assert_eq!(commit.to_bytes().unwrap_err().rule(), Some("R-DOC-05"));
    let mut commit = a_commit();
    commit.shards.pop();
    commit
        .routes
        .iter_mut()
        .for_each(|route| route.files.truncate(1));
    assert_eq!(commit.to_bytes().unwrap_err().rule(), Some("R-DOC-06"));
    commit.shards[0] = commit.state;
    commit.to_bytes().unwrap();
    commit.routes[0].from = Some(LARGEST + 1);
    assert_eq!(commit.to_bytes().unwrap_err().rule(), Some("R-DOC-03"));
}

#[test]
fn routes_ascend_by_start_bytes_and_digests() {
    let file = |byte, size| FileReference {
        digest: Digest([byte; 32]),
        size,
    };
    let route = |from, first, second| Route {
        from,
        files: vec![first, second],
    };
    let ordered = [
        route(None, file(9, 1), file(9, 1)),
        route(Some(1), file(9, 4), file(9, 4)),
        // The sum of the sizes determines the order, and it is exact.
        route(Some(2), file(5, 9), file(6, 1)),
        route(Some(2), file(5, 2), file(6, 9)),
        route(Some(2), file(5, 3), file(7, 8)),
        route(Some(2), file(6, 10), file(1, 1)),
        route(Some(2), file(1, LARGEST), file(1, LARGEST)),
    ];
    let commit = Commit {
        routes: ordered.to_vec(),
        ..a_commit()
    };
    commit.to_bytes().unwrap();
    for place in 0..ordered.len() - 1 {
        let mut swapped = commit.clone();
        swapped.routes.swap(place, place + 1);
        assert_eq!(
            swapped.to_bytes().unwrap_err().rule(),
            Some("R-DOC-04"),
            "{place}"
        );
        assert_eq!(Route::in_order(swapped.routes), ordered);
    }
    let mut twice = commit.clone();
    twice.routes.push(ordered[6].clone());
    assert_eq!(twice.to_bytes().unwrap_err().rule(), Some("R-DOC-04"));
    assert_eq!(Route::in_order(twice.routes), ordered);
    // The same files with other sizes, but the same sum.
    let mut alike = commit;
    alike
        .routes
        .push(route(Some(2), file(1, LARGEST - 1), file(1, LARGEST)));
    alike.routes[6].files[1].size -= 1;
    assert_eq!(alike.to_bytes().unwrap_err().rule(), Some("R-DOC-04"));
}

#[test]
fn of_routes_that_begin_alike_the_one_with_fewer_files_comes_first() {
    let file = |byte, size| FileReference {
        digest: Digest([byte; 32]),
        size,
    };
    let route = |files: &[FileReference]| Route {
        from: None,
        files: files.to_vec(),
    };
    // The sizes have the same sum, and the second route begins with the digests of the first one.
    let short = route(&[file(9, 10)]);
    let long = route(&[file(9, 7), file(1, 3)]);
    assert!(short.order(&long).is_lt());
    let document = |routes: &[&Route]| RoutesDocument {
        version: 1,
        generation: 1,
        commit: Digest([1; 32]),
        routes: routes.iter().copied().cloned().collect(),
        metadata: BTreeMap::new(),
    };
    document(&[&short, &long]).to_bytes().unwrap();
    assert_eq!(
        document(&[&long, &short]).to_bytes().unwrap_err().rule(),
        Some("R-DOC-04")
    );
    // Digests come before the number of files.
    let lesser = route(&[file(8, 7), file(9, 3)]);
    document(&[&lesser, &short]).to_bytes().unwrap();
}

#[test]
fn more_than_two_to_the_64_bytes_are_added_up_exactly() {
    let file = |size| FileReference {
        digest: Digest([1; 32]),
        size,
    };
    let route = |last| Route {
        from: None,
        files: [vec![file(LARGEST); 2049], vec![file(last)]].concat(),
    };
    assert!(route(1).bytes() > u128::from(u64::MAX));
    assert!(route(1).order(&route(2)).is_lt() && route(2).order(&route(LARGEST)).is_lt());
}

#[test]
fn metadata_that_must_be_understood_is_refused() {
    let metadata = |key: &str| BTreeMap::from([(key.to_owned(), String::new())]);
    let documents = |key: &str| {
        let chain = ChainDocument {
            chain: 1,
            metadata: metadata(key),
        };
        let routes = RoutesDocument {
            version: 1,
            generation: 1,
            commit: Digest([1; 32]),
            routes: Vec::new(),
            metadata: metadata(key),
        };
        [
            chain.to_bytes(),
            Commit {
                metadata: metadata(key),
                ..a_commit()
            }
            .to_bytes(),
            routes.to_bytes(),
        ]
    };
    for key in [
        "",
        "deltachain",
        "deltachain.",
        "deltachain.x!",
        "Deltachain!",
        " deltachain!",
    ] {
        assert!(documents(key).iter().all(Result::is_ok), "{key}");
    }
    for key in ["deltachain!", "deltachain!x"] {
        for document in documents(key) {
            let error = document.unwrap_err();
            assert_eq!(
                (error.rule(), error.class().name()),
                (Some("R-DOC-07"), "UNSUPPORTED"),
                "{key}"
            );
        }
    }
    // The rules that are checked before and after R-DOC-07.
    let mut commit = Commit {
        metadata: metadata("deltachain!"),
        ..a_commit()
    };
    commit.assets[0].name = "..".to_owned();
    assert_eq!(commit.to_bytes().unwrap_err().rule(), Some("R-DOC-07"));
    commit.shards.pop();
    assert_eq!(commit.to_bytes().unwrap_err().rule(), Some("R-DOC-05"));
}

#[test]
fn assets_have_names_of_their_own() {
    let with = |names: &[&str]| {
        let assets = names.iter().map(|name| asset(name, 1)).collect();
        Commit {
            assets,
            ..a_commit()
        }
        .to_bytes()
    };
    with(&[]).unwrap();
    with(&[
        "1_Pooling/config.json",
        "a",
        "a b/c",
        "a-b",
        "aa/b/c/d/e/f/g/h",
        "ab",
        "b/deltachain.json",
    ])
    .unwrap();
    with(&["A.json", "b.json", "\u{c4}", "\u{e4}"]).unwrap();
    with(&[
        "chat_template.jinja",
        "deltachain",
        "model.safetensors.index",
        "model.safetensors.txt",
        "safetensors",
    ])
    .unwrap();
    for names in [
        &["b", "a"][..],
        &["a", "a"],
        &["A", "a"],
        &[""],
        &[".hidden"],
        &["/a"],
        &["a//b"],
        &["../a"],
        &["a/.b"],
        &["a/nul"],
        &["a /b"],
        &["a.safetensors/b"],
        &["a/b/c/d/e/f/g/h/i"],
        &["a/model.safetensors"],
        &["deltachain.d/a"],
        &["a", "a/b"],
        &["A", "B", "a/b"],
        &["a/B/c", "a/b"],
        &["a", "a b", "a/b/c"],
        &["a/b", "A/B"],
        &["nul.txt"],
        &["a "],
        &["a."],
        &["model.safetensors"],
        &["model.SafeTensors"],
        &["model.safetensors.index.json"],
        &["Model.Safetensors.Index.JSON"],
        &["deltachain.json"],
        &["DeltaChain."],
    ] {
        let error = with(names).unwrap_err();
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-DOC-08"), "MALFORMED"),
            "{names:?}"
        );
    }
}

#[test]
fn assets_are_bounded() {
    let bytes = |count: usize, size: u64| {
        let commit = Commit {
            assets: Vec::new(),
            ..a_commit()
        }
        .to_bytes()
        .unwrap();
        let assets = (0..count).map(|number| {
            let asset = format!(
                r#"{{"name":"{number:05}","digest":"{}","size":0}}"#,
                Digest([1; 32])
            );
            if number + 1 == count {
                asset.replace(r#""size":0"#, &format!(r#""size":{size}"#))
            } else {
                asset
            }
        });
        let assets = format!(r#""assets":[{}]"#, assets.collect::<Vec<_>>().join(","));
        String::from_utf8(commit)
            .unwrap()
            .replace(r#""assets":[]"#, &assets)
            .into_bytes()
    };
    let rule = |count, size, limits: Limits| {
        let result =
            Commit::parse(&bytes(count, size), &limits).and_then(|commit| commit.to_bytes());
        result.err().map(|error| error.rule().unwrap_or_default())
    };
    let limit = Some("R-LIM-07");
    // The limits that every reader supports and publishers keep; then the limits of the format.
    assert_eq!(
        rule(Asset::MOST, Asset::MOST_BYTES, Limits::default()),
        None
    );
    for limits in [Limits::default(), Limits::unlimited()] {
        assert_eq!(rule(Asset::MOST + 1, 0, limits), limit);
        assert_eq!(rule(1, Asset::MOST_BYTES + 1, limits), limit);
    }
    let all = |count, size| {
        Commit::parse(&bytes(count, size), &Limits::unlimited()).map_err(|error| error.rule())
    };
    let more = Limits {
        assets: u64::MAX,
        asset_bytes: u64::MAX,
        ..Limits::unlimited()
    };
    assert_eq!(all(1 << 16, 1 << 40).unwrap().assets.len(), 1 << 16);
    assert_eq!(
        [rule((1 << 16) + 1, 0, more), rule(1, (1 << 40) + 1, more)],
        [limit; 2]
    );
    assert_eq!(rule(1, MAX_INTEGER, more), limit);
    assert_eq!(rule(1, MAX_INTEGER + 1, more), Some("R-DOC-03"));
    // R-LIM-07 is the last of all rules.
    let mut named = String::from_utf8(bytes(2, MAX_INTEGER)).unwrap();
    named = named.replace("00001", "..");
    assert_eq!(
        Commit::parse(named.as_bytes(), &Limits::default())
            .unwrap_err()
            .rule(),
        Some("R-DOC-08")
    );
}

#[test]
fn long_documents_are_refused_unread() {
    let mut commit = a_commit();
    let spare = (1 << 24) - commit.to_bytes().unwrap().len();
    commit.metadata.insert("b".to_owned(), "x".repeat(spare));
    let longest = commit.to_bytes().unwrap();
    assert_eq!(Commit::parse(&longest, &Limits::default()).unwrap(), commit);
    // A caller may lower the limit.
    let rule = |bytes: &[u8], document_bytes| {
        let limits = Limits {
            document_bytes,
            ..Limits::default()
        };
        Commit::parse(bytes, &limits)
            .err()
            .map(|error| error.rule().unwrap_or_default())
    };
    assert_eq!(rule(&longest, (1 << 24) - 1), Some("R-LIM-05"));
    // Longer documents may be read, but are not written.
    commit.metadata.insert("c".to_owned(), String::new());
    assert_eq!(commit.to_bytes().unwrap_err().rule(), Some("R-LIM-05"));
    let mut beyond = longest;
    beyond.resize(1 << 26, b' ');
    assert_eq!(rule(&beyond, u64::MAX), Some("R-DOC-03"));
    beyond.push(b' ');
    assert_eq!(rule(&beyond, u64::MAX), Some("R-LIM-05"));
}

#[test]
fn files_are_told_by_size_and_digest() {
    let file = FileReference {
        digest: Digest::of_bytes(b"link"),
        size: 4,
    };
    file.check(4, Digest::of_bytes(b"link")).unwrap();
    for error in [
        file.check(5, Digest::of_bytes(b"link")).unwrap_err(),
        file.check(4, Digest::of_bytes(b"knil")).unwrap_err(),
    ] {
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-CHN-10"), "CORRUPT")
        );
        assert_eq!(error.file(), Some(file.name().to_string().as_str()));
    }
    let text = FileReference {
        digest: Digest::of_bytes(b"text"),
        size: 4,
    };
    let asset = Asset {
        name: "a".to_owned(),
        file: text,
    };
    asset.check(4, Digest::of_bytes(b"text")).unwrap();
    for error in [
        asset.check(5, Digest::of_bytes(b"text")).unwrap_err(),
        asset.check(4, Digest::of_bytes(b"txet")).unwrap_err(),
    ] {
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-CHN-16"), "CORRUPT")
        );
        assert_eq!(error.file(), Some(asset.object_name().to_string().as_str()));
    }
    assert_eq!(asset.missing().rule(), Some("R-CHN-15"));
    assert_eq!(
        asset.missing().file(),
        Some(format!("assets/{}", Digest::of_bytes(b"text")).as_str())
    );
    assert_eq!(file.missing().rule(), Some("R-CHN-09"));
    assert_eq!(
        file.missing().file(),
        Some(format!("files/{}.dcf", Digest::of_bytes(b"link")).as_str())
    );
}
