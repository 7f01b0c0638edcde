//! Cases that are known to fail, that are not selected, and that a testee does not claim to
//! support.

use serde_json::json;

use crate::support::{Ran, Vectors, fake, reference};

/// Runs a testee that refuses everything as `CORRUPT`, with this list of expected failures.
fn with_list(list: &str, arguments: &[&str]) -> Ran {
    let vectors = Vectors::tiny();
    vectors.write("list.txt", list.as_bytes());
    let testee = fake(
        "answer",
        &json!({ "result": "invalid", "class": "CORRUPT", "rule": "R-SEG-01" }),
    );
    vectors.run(
        &testee,
        &[&["--expected-failures", "list.txt"], arguments].concat(),
    )
}

#[test]
fn an_unexpected_failure_fails_the_run_and_is_explained() {
    let ran = with_list("links/tiny/good#apply", &[]);
    ran.says(
        1,
        &[
            "failed: links/tiny/good#check",
            "got       invalid, CORRUPT R-SEG-01",
            "SPEC.md section 9 (Appl",
        ],
    );
    assert!(
        !ran.stdout.contains("failed: links/tiny/good#apply"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.summary(1)
            .contains("6 cases: 2 passed, 1 failed, 2 skipped, 1 expected failures"),
        "{ran:?}"
    );
}

#[test]
fn listed_failures_are_no_failures() {
    let ran = with_list(
        "# known\nlinks/tiny/good#apply # soon\n\nlinks/tiny/good#check\n",
        &[],
    );
    assert!(
        ran.summary(0)
            .contains("2 passed, 0 failed, 2 skipped, 2 expected failures"),
        "{ran:?}"
    );
}

#[test]
fn a_listed_case_that_passes_fails_the_run() {
    let ran = with_list(
        "links/tiny/good#apply\nlinks/tiny/good#check\nlinks/tiny/bad#check\n",
        &[],
    );
    ran.says(
        1,
        &[
            "unexpected pass: links/tiny/bad#check",
            "1 unexpected passes",
        ],
    );
}

#[test]
fn a_listed_id_that_does_not_exist_fails_the_run() {
    with_list("links/tiny/god#check\n", &[]).says(
        1,
        &["list.txt, line 1: links/tiny/god#check: there is no such case"],
    );
    with_list("links/tiny/good#check\nlinks/tiny/good#check\n", &[])
        .says(1, &["line 2", "listed twice"]);
}

#[test]
fn a_list_is_of_the_whole_suite_whatever_is_chosen() {
    let ran = with_list("links/tiny/good#apply\n", &["--only", "tiny/bad"]);
    assert!(
        ran.summary(0).contains("1 vectors, 2 cases: 2 passed"),
        "{ran:?}"
    );
}

#[test]
fn what_is_not_claimed_is_skipped_unless_it_must_be_complete() {
    let mut vectors = Vectors::tiny();
    vectors.index["vectors"][1]["features"] = json!(["set", "zstd"]);
    let testee = fake(
        "answer",
        &json!({ "result": "invalid", "class": "CORRUPT", "rule": "R-SEG-01" }),
    );
    // Skipped: an operation that the testee does not claim, and a feature that it lacks.
    let ran = vectors.run(&testee, &["--only", "tiny/bad"]);
    assert!(
        ran.summary(0)
            .contains("0 passed, 0 failed, 2 skipped; rules 0 of"),
        "{ran:?}"
    );
    let ran = vectors.run(&testee, &["--only", "encode"]);
    assert!(
        ran.summary(0).contains("0 passed, 0 failed, 2 skipped"),
        "{ran:?}"
    );
    let ran = vectors.run(&testee, &["--only", "encode", "--require-complete"]);
    ran.says(
        1,
        &["does not claim the operation encode", "2 failed, 0 skipped"],
    );
    let ran = vectors.run(&testee, &["--only", "tiny/bad", "--require-complete"]);
    ran.says(1, &["without the feature zstd", "2 failed, 0 skipped"]);
}

#[test]
fn choosing_nothing_is_wrong_usage() {
    Vectors::tiny()
        .run(&reference(), &["--only", "nowhere"])
        .says(2, &["no case has \"nowhere\" in its id"]);
    Vectors::tiny()
        .run("a 'b", &[])
        .says(2, &["not a command line"]);
    Vectors::tiny()
        .run(&reference(), &["--timeout", "0"])
        .says(2, &["--timeout"]);
}
