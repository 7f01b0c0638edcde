//! Right and faulty testees.

use deltachain::sums::Sums;
use deltachain::{DiffOptions, Profile, diff};
use serde_json::{Value, json};

use crate::support::{Ran, Vectors, digest, fake, reference, state};

/// Runs a fake testee with the cases whose id contains the text.
fn with_fake(mode: &str, answer: &Value, only: &str) -> Ran {
    Vectors::tiny().run(&fake(mode, answer), &["--only", only, "--timeout", "1"])
}

fn refusal() -> Value {
    json!({ "result": "invalid", "class": "CORRUPT", "rule": "R-SEG-01" })
}

#[test]
fn the_reference_passes_the_tiny_vectors() {
    let ran = Vectors::tiny().run(&reference(), &["--rules", "--require-complete"]);
    let summary = "conformance with 1.0 and signatures, in-place, signatures-1.2, layouts: 2 \
                   vectors, 6 cases: 6 passed, \
                   0 failed, 0 skipped; rules 1 of";
    assert!(ran.summary(0).starts_with(summary), "{ran:?}");
    let line = format!(
        "\n| deltachain {} | 1.0 and signatures, in-place, signatures-1.2, layouts | check, \
         apply, encode | 6 of 6 | 1 of ",
        env!("CARGO_PKG_VERSION")
    );
    assert!(ran.stdout.contains(&line), "{ran:?}");
}

#[test]
fn only_a_reader_that_passes_gets_a_line_for_the_list() {
    let line = "for conformance/implementations.md:";
    let vectors = Vectors::tiny();
    // The first run covers a part of the suite, the second one fails, and the third one has known
    // failures.
    assert!(
        !vectors
            .run(&reference(), &["--only", "tiny/bad"])
            .stdout
            .contains(line)
    );
    let wrong = fake("answer", &refusal());
    assert!(!vectors.run(&wrong, &[]).stdout.contains(line));
    vectors.write(
        "list.txt",
        b"links/tiny/good#apply\nlinks/tiny/good#check\n",
    );
    let ran = vectors.run(&wrong, &["--expected-failures", "list.txt"]);
    assert!(
        ran.summary(0).contains("2 passed") && !ran.stdout.contains(line),
        "{ran:?}"
    );
}

#[test]
fn states_by_rule_and_sequences_of_links_work() {
    let mut vectors = Vectors::empty();
    let rule =
        r#"{"tensors":[{"name":"t","dtype":"U8","shape":[3],"multiply":2,"add":1,"modulus":4}]}"#;
    let sha256 = vectors.write("vectors/states/rule.json", rule.as_bytes());
    vectors.index["states"]["vectors/states/rule.json"] = json!(sha256);
    // The rule describes the bytes 1, 3, 1.
    let states = [state(&[1, 3, 1]), state(&[1, 3, 2]), state(&[1, 4, 2])];
    for (number, id) in [(0, "links/a/first"), (1, "links/a/second")] {
        let mut link = Vec::new();
        let options = DiffOptions::default().profile(Profile::Direct);
        diff(&states[number], &states[number + 1], &options, &mut link).unwrap();
        vectors.add(id, &link, |vector| {
            let base = digest(&states[number]);
            let target = digest(&states[number + 1]);
            vector["expect"] = json!({ "check": { "base": base, "target": target } });
        });
    }
    vectors.index["vectors"][0]["base"] = json!("vectors/states/rule.json");
    vectors.index["vectors"][0]["then"] = json!(["links/a/second"]);
    vectors.index["vectors"][0]["expect"]["apply"] = json!({ "digest": digest(&states[2]) });
    let hash = blake3::hash(&[2_u64.to_le_bytes().as_slice(), &[2]].concat());
    let patch = json!({ "name": "t", "lanes": 1, "digest": hash.to_hex().as_str() });
    vectors.index["vectors"][0]["expect"]["patches"] = json!({ "patches": [patch] });
    assert!(
        vectors
            .run(&reference(), &[])
            .summary(0)
            .contains("4 cases: 4 passed")
    );
    // Each of these members is compared.
    vectors.index["vectors"][0]["expect"]["patches"]["patches"][0]["lanes"] = json!(2);
    vectors.index["vectors"][0]["expect"]["apply"]["digest"] = json!(digest(&states[1]));
    vectors.index["vectors"][1]["expect"]["check"]["base"] = json!(digest(&states[2]));
    vectors
        .run(&reference(), &[])
        .says(1, &["1 passed, 3 failed"]);
}

#[test]
fn links_in_place_are_asked_of_those_who_name_the_addition() {
    let mut vectors = Vectors::tiny();
    let mut link = Vec::new();
    diff(
        &state(&[1, 2, 3]),
        &state(&[1, 2, 4]),
        &DiffOptions::default().profile(Profile::Local).sums(true),
        &mut link,
    )
    .unwrap();
    let piece = Sums::of_bytes(0, &[1, 2, 4]).numbers();
    let coded = Sums::of_lanes(1, &[2], &[4]).numbers();
    let result = vectors.index["vectors"][0]["expect"]["apply"].clone();
    vectors.index["vectors"] = json!([]);
    vectors.add("links/tiny/sums", &link, |vector| {
        vector["features"] = json!(["in-place"]);
        vector["base"] = json!("vectors/states/old.safetensors");
        let pieces = json!([{ "piece": piece, "coded": coded }]);
        vector["expect"] =
            json!({ "sums": { "sums": [{ "name": "t", "pieces": pieces }] }, "in-place": result });
    });
    vectors
        .run(&reference(), &["--rules", "--require-complete"])
        .says(
            0,
            &[
                "1.0 and signatures, in-place, signatures-1.2, layouts: 1 vectors, 2 cases: 2 \
                    passed",
            ],
        );
    // A testee that does not know the addition.
    let mut hello =
        json!({ "testee": "x", "protocol": 2, "operations": ["sums", "in-place"], "without": [] });
    vectors
        .run(&fake("hello", &hello), &["--require-complete"])
        .says(0, &["conformance with 1.0: ", "2 skipped"]);
    hello["additions"] = json!(["signatures"]);
    vectors
        .run(&fake("hello", &hello), &[])
        .says(0, &["conformance with 1.0 and signatures: ", "2 skipped"]);
    // Each of these members is compared.
    vectors.index["vectors"][0]["expect"]["sums"]["sums"][0]["pieces"][0]["coded"] = json!(null);
    vectors.index["vectors"][0]["expect"]["in-place"]["digest"] = json!(digest(&state(&[1, 2, 3])));
    vectors
        .run(&reference(), &[])
        .says(1, &["0 passed, 2 failed", "instead of TensorSums"]);
    vectors.index["vectors"][0]["expect"]["sums"] = json!({ "sums": null });
    vectors.index["vectors"][0]["base"].take();
    vectors
        .run(&reference(), &[])
        .says(1, &["sums, but the link has none", "WRONG_BASE R-APP-01"]);
    vectors.index["vectors"][0]
        .as_object_mut()
        .unwrap()
        .remove("base");
    vectors
        .run(&reference(), &[])
        .says(1, &["there is no base to apply it to"]);
}

#[test]
fn testees_that_look_at_nothing_fail() {
    let vectors = Vectors::tiny();
    let always = |result: &str| format!("{} --always {result}", reference());
    let ran = vectors.run(&always("valid"), &[]);
    assert!(ran.summary(1).contains("0 passed, 6 failed"), "{ran:?}");
    let ran = vectors.run(&always("invalid"), &[]);
    assert!(ran.summary(1).contains("0 passed, 6 failed"), "{ran:?}");
}

#[test]
fn a_refusal_needs_the_class_and_only_on_demand_the_rule() {
    let ran = with_fake("answer", &refusal(), "tiny/bad#check");
    assert!(ran.summary(0).contains("1 passed"), "{ran:?}");
    let other =
        json!({ "result": "invalid", "class": "CORRUPT", "rule": "R-IDX-01", "message": "text" });
    with_fake("answer", &other, "tiny/bad#check")
        .says(0, &["1 answers have the right class but another rule id"]);
    let none = json!({ "result": "invalid", "class": "CORRUPT" });
    with_fake("answer", &none, "tiny/bad#check")
        .says(0, &["1 have the right class but no rule id"]);
    for answer in [other, none] {
        let ran = Vectors::tiny().run(
            &fake("answer", &answer),
            &["--only", "tiny/bad#check", "--rules"],
        );
        ran.says(1, &["0 passed, 1 failed"]);
    }
    let class = json!({ "result": "invalid", "class": "TRUNCATED", "rule": "R-SEG-01" });
    with_fake("answer", &class, "tiny/bad#check")
        .says(1, &["got       invalid, TRUNCATED R-SEG-01"]);
}

#[test]
fn anything_else_in_an_answer_is_a_failure() {
    for (name, value) in [
        ("extra", json!(1)),
        ("rule", json!(7)),
        ("message", json!(7)),
        ("result", json!("bad")),
    ] {
        let mut answer = refusal();
        answer[name] = value;
        with_fake("answer", &answer, "tiny/bad#check").says(1, &["0 passed, 1 failed"]);
    }
    let digests = json!({ "result": "valid", "base": digest(&state(&[1, 2, 3])), "target": digest(&state(&[1, 2, 4])) });
    with_fake("answer", &digests, "tiny/good#check").says(0, &["1 passed"]);
    let mut extra = digests;
    extra["extra"] = json!("x");
    with_fake("answer", &extra, "tiny/good#check").says(1, &["unknown field `extra`"]);
    with_fake("answer-another", &json!({}), "tiny")
        .says(1, &["another case in the answer", "4 failed, 2 skipped"]);
    // The second line of the first answer does not count as the second answer.
    with_fake("answer-twice", &refusal(), "tiny/bad").says(1, &["1 passed, 1 failed"]);
}

#[test]
fn answers_that_are_no_answers_are_explained() {
    let say = |text: &str| with_fake("say", &json!(text), "tiny/bad#check");
    say("certainly").says(
        1,
        &["the answer is not JSON: expected value at line 1 column 1 in certainly"],
    );
    say("[1]").says(1, &["no JSON object in the answer [1]"]);
    for (class, meaning) in [
        (
            "IO",
            "IO (the testee says that its own operating system failed): text",
        ),
        (
            "USAGE",
            "USAGE (the testee says that it cannot be asked this): text",
        ),
        (
            "BROKEN",
            "BROKEN (an unknown class; the classes are NOT_DCF, TRUNCATED, CORRUPT,",
        ),
    ] {
        let answer = json!({ "result": "invalid", "class": class, "message": "text" });
        with_fake("answer", &answer, "tiny/bad#check").says(1, &[meaning]);
    }
}

#[test]
fn a_refusal_may_have_to_be_without_a_rule() {
    let mut vectors = Vectors::tiny();
    vectors.index["vectors"][1]["expect"]["check"] = json!({ "class": "CORRUPT", "rule": null });
    let run = |answer: &Value| {
        vectors.run(
            &fake("answer", answer),
            &["--only", "tiny/bad#check", "--rules"],
        )
    };
    let mut answer = json!({ "result": "invalid", "class": "CORRUPT" });
    run(&answer).says(0, &["1 passed"]);
    answer["rule"] = json!(null);
    run(&answer).says(0, &["1 passed"]);
    run(&refusal()).says(
        1,
        &[
            "expected  invalid, CORRUPT without a rule",
            "the right class, but R-SEG-01",
        ],
    );
}

#[test]
fn outputs_are_looked_at() {
    with_fake("write-and-answer", &refusal(), "tiny/bad#apply").says(1, &["it has left an output"]);
    with_fake("answer", &refusal(), "tiny/bad#apply").says(0, &["1 passed"]);
    let valid = json!({ "result": "valid", "digest": digest(&state(&[1, 2, 4])) });
    with_fake("answer", &valid, "tiny/good#apply").says(1, &["there is no output file"]);
    with_fake("write-and-answer", &valid, "tiny/good#apply")
        .says(1, &["the output cannot be read"]);
}

#[test]
fn a_testee_that_dies_fails_the_case_and_is_started_again() {
    let hello =
        json!({ "testee": "x", "protocol": 2, "operations": ["check", "apply"], "without": [] });
    let ran = with_fake("die", &hello, "tiny/bad");
    ran.says(
        1,
        &[
            "the testee ended: exit",
            "these are my last words",
            "2 cases: 0 passed, 2 failed",
        ],
    );
}

#[test]
fn a_silent_testee_is_not_waited_for() {
    with_fake("be-silent", &json!({}), "tiny/bad#check")
        .says(1, &["no answer within 1 s", "0 passed, 1 failed"]);
}

#[test]
fn a_testee_must_say_hello() {
    let mut hello = json!({ "testee": "x", "protocol": 2, "operations": ["check"], "without": [] });
    with_fake("hello", &hello, "encode").says(0, &["2 skipped"]);
    hello["operations"] = json!(["chek"]);
    with_fake("hello", &hello, "encode").says(1, &["the operation chek, which does not exist"]);
    hello["operations"] = json!([]);
    hello["without"] = json!(["zst"]);
    with_fake("hello", &hello, "encode").says(1, &["the feature zst, which does not exist"]);
    hello["without"] = json!([]);
    hello["additions"] = json!(["signature"]);
    with_fake("hello", &hello, "encode").says(1, &["the addition signature, which does not exist"]);
    hello["additions"] = json!(["signatures"]);
    hello["protocol"] = json!(1);
    with_fake("hello", &hello, "encode").says(1, &["protocol 1, not 2"]);
    hello["protocol"] = json!(2);
    hello["profile"] = json!("maximal");
    with_fake("hello", &hello, "encode").says(1, &["the profile maximal, which does not exist"]);
    hello["extra"] = json!(2);
    with_fake("hello", &hello, "encode").says(1, &["unknown field `extra`"]);
    Vectors::tiny()
        .run("/no/such/program", &[])
        .says(1, &["starting /no/such/program"]);
}

#[test]
fn chains_are_unpacked() {
    let mut vectors = Vectors::empty();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(2);
    archive
        .append_data(&mut header, "chain.json", b"{}".as_slice())
        .unwrap();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    archive
        .append_link(&mut header, "commits/0.json", "../chain.json")
        .unwrap();
    let plan = json!({ "version": 3, "bytes": 70, "path": [0, 3] });
    vectors.add(
        "chains/tiny/good",
        &archive.into_inner().unwrap(),
        |vector| {
            vector["expect"] = json!({ "plan": plan });
        },
    );
    let mut answer = plan;
    answer["result"] = json!("valid");
    vectors
        .run(&fake("answer", &answer), &[])
        .says(0, &["chain plan", "1 passed"]);
    answer["path"] = json!([3]);
    vectors
        .run(&fake("answer", &answer), &[])
        .says(1, &["path: [3]"]);
}

#[test]
fn routes_are_compared_if_the_testee_names_them() {
    let mut vectors = Vectors::empty();
    let plan = json!({ "version": 0, "bytes": 1, "path": [0] });
    let archive = tar::Builder::new(Vec::new()).into_inner().unwrap();
    vectors.add("chains/tiny/good", &archive, |vector| {
        vector["expect"] = json!({ "plan": plan });
    });
    let first = json!([["0".repeat(64)]]);
    let second = json!([["1".repeat(64)]]);
    vectors.index["routes"] = json!({ "chains/tiny/good": first });
    let mut answer = plan;
    answer["result"] = json!("valid");
    // Testees of older versions do not have this member, and must not have it.
    vectors
        .run(&fake("answer", &answer), &[])
        .says(0, &["1 passed"]);
    vectors
        .run(&fake("routes", &answer), &[])
        .says(1, &["routes: None"]);
    answer["routes"] = first;
    vectors
        .run(&fake("routes", &answer), &[])
        .says(0, &["1 passed"]);
    vectors
        .run(&fake("answer", &answer), &[])
        .says(1, &["1 failed"]);
    answer["routes"] = second;
    vectors
        .run(&fake("routes", &answer), &[])
        .says(1, &["1 failed"]);
}

#[test]
fn a_vector_may_belong_to_an_addition_that_its_features_do_not_name() {
    let mut vectors = Vectors::empty();
    vectors.index["belongs"] = json!({ "layouts": ["chains/tiny/old"] });
    let plan = json!({ "version": 0, "bytes": 1, "path": [0] });
    let archive = tar::Builder::new(Vec::new()).into_inner().unwrap();
    vectors.add("chains/tiny/old", &archive, |vector| {
        vector["features"] = json!(["signatures"]);
        vector["expect"] = json!({ "plan": plan });
    });
    let mut answer = plan;
    answer["result"] = json!("valid");
    let mut hello = json!({ "testee": "x", "protocol": 2, "operations": ["plan"], "without": [] });
    hello["additions"] = json!(["signatures"]);
    vectors
        .run(&fake("hello", &hello), &["--require-complete"])
        .says(0, &["1 skipped"]);
    hello["additions"] = json!(["signatures", "layouts"]);
    vectors
        .run(&fake("hello", &hello), &[])
        .says(1, &["1 failed"]);
}

#[test]
fn a_minimal_chain_reader_may_leave_things_out() {
    let mut vectors = Vectors::empty();
    let plan = json!({ "version": 3, "bytes": 70, "path": [0, 3] });
    let archive = tar::Builder::new(Vec::new()).into_inner().unwrap();
    for (id, feature) in [
        ("a", "skip-routes"),
        ("b", "accept"),
        ("c", "partial"),
        ("d", "routes-documents"),
    ] {
        vectors.add(&format!("chains/tiny/{id}"), &archive, |vector| {
            vector["features"] = json!([feature]);
            vector["expect"] = json!({ "plan": plan });
        });
    }
    vectors.index["minimal"] =
        json!({ "chains/tiny/a": { "plan": { "class": "CHAIN", "rule": "R-CHN-09" } } });
    let run = |mode: &str, answer: &Value| {
        vectors.run(&fake(mode, answer), &["--require-complete", "--rules"])
    };
    // A minimal reader does not get cases that it may leave out; in the other ones, both answers
    // are right.
    let mut valid = plan.clone();
    valid["result"] = json!("valid");
    let refused = |rule: &str| json!({ "result": "invalid", "class": "CHAIN", "rule": rule });
    for answer in [&valid, &refused("R-CHN-09")] {
        run("minimal", answer).says(0, &["1 passed, 0 failed, 3 skipped"]);
    }
    run("minimal", &refused("R-CHN-08")).says(1, &["the right class, but R-CHN-08"]);
    valid["path"] = json!([3]);
    run("minimal", &valid).says(1, &["path: [3]"]);
    // Other readers must know everything.
    run("answer", &refused("R-CHN-09")).says(1, &["0 passed, 4 failed"]);
}

#[test]
fn long_files_are_made_of_short_ones() {
    let mut vectors = Vectors::empty();
    let document =
        br#"{"deltachain":1,"chain":"00112233445566778899aabbccddeeff","metadata":{"a":"x"}}"#;
    for (id, length, expect) in [
        ("chains/long/whole", 1 << 24, json!({})),
        (
            "chains/long/long",
            (1 << 24) + 1,
            json!({ "class": "LIMIT", "rule": "R-LIM-05" }),
        ),
    ] {
        vectors.add(id, document, |vector| {
            vector["kind"] = json!("document");
            vector["document"] = json!("chain");
            vector["grown"] = json!({ "at": document.len() - 4, "length": length });
            vector["expect"] = json!({ "document": expect });
        });
    }
    vectors
        .run(&reference(), &["--rules"])
        .says(0, &["2 passed"]);
    // With another byte it is a different document.
    vectors.index["vectors"][0]["grown"]["at"] = json!(document.len() - 1);
    vectors
        .run(&reference(), &["--rules"])
        .says(1, &["MALFORMED R-DOC-03"]);
    vectors.index["vectors"][0]["grown"]["at"] = json!(document.len());
    vectors
        .run(&reference(), &["--rules"])
        .says(1, &["invalid input"]);
}

#[test]
fn a_request_has_what_the_vector_says() {
    let mut vectors = Vectors::empty();
    vectors.add_state("held", &state(&[1]));
    let digest = |digit: &str| digit.repeat(64);
    vectors.add("chains/tiny/good", &tar::Builder::new(Vec::new()).into_inner().unwrap(), |vector| {
        let shards = ["vectors/states/held.safetensors"];
        vector["held"] = json!({ "version": 4, "commit": digest("a"), "chain": digest("b"), "shards": shards });
        vector["accept"] = json!(digest("c"));
        vector["take"] = json!({ "shards": [0], "tensors": null });
        vector["set_bytes"] = json!(7);
        vector["coded_bytes"] = json!(9);
        vector["direct"] = json!(true);
        let refusal = json!({ "class": "CHAIN", "rule": "R-CHN-01" });
        vector["expect"] = json!({ "plan": refusal, "replay": refusal });
    });
    let hello =
        json!({ "testee": "x", "protocol": 2, "operations": ["plan", "replay"], "without": [] });
    let words = |case: &str| {
        let ran = vectors.run(&fake("die", &hello), &["--only", case]);
        let (_, words) = ran.stdout.split_once("my last words: ").unwrap();
        serde_json::from_str::<Value>(words.lines().next().unwrap()).unwrap()
    };
    let plan = words("#plan");
    let replay = words("#replay");
    for request in [&plan, &replay] {
        assert_eq!(
            (&request["accept"], &request["version"]),
            (&json!(digest("c")), &json!(null))
        );
    }
    assert_eq!(
        plan["held"],
        json!({ "version": 4, "commit": digest("a"), "chain": digest("b") })
    );
    let path = vectors
        .path("vectors/states/held.safetensors")
        .canonicalize()
        .unwrap();
    let held =
        json!({ "version": 4, "commit": digest("a"), "chain": digest("b"), "shards": [path] });
    assert_eq!(replay["held"], held);
    assert_eq!(
        (&replay["shards"], &replay["tensors"], &replay["set_bytes"]),
        (&json!([0]), &json!(null), &json!(7))
    );
    assert_eq!(
        (&replay["coded_bytes"], &plan["direct"]),
        (&json!(9), &json!(true))
    );
    let members = |request: &Value| request.as_object().unwrap().len();
    // The given members, with case and operation, and with the output for `replay`.
    assert_eq!((members(&plan), members(&replay)), (7, 11));
}
