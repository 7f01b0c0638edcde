//! Wrong indexes, and indexes with wrong files.

use serde_json::{Value, json};

use crate::support::{Vectors, reference};

/// Checks that the runner refuses the tiny index after this edit, and says why.
#[track_caller]
fn refused(edit: impl FnOnce(&mut Value), why: &str) {
    let mut vectors = Vectors::tiny();
    edit(&mut vectors.index);
    vectors.run(&reference(), &[]).says(1, &[why]);
}

#[test]
fn unknown_members_are_refused_everywhere() {
    refused(|index| index["extra"] = json!(1), "unknown field `extra`");
    refused(
        |index| index["vectors"][0]["extra"] = json!(1),
        "unknown field `extra`",
    );
    refused(
        |index| index["vectors"][0]["expect"]["extra"] = json!(1),
        "unknown field `extra`",
    );
    refused(
        |index| index["vectors"][0]["expect"]["check"]["extra"] = json!(1),
        "unknown field `extra`",
    );
    refused(
        |index| index["vectors"][1]["expect"]["check"]["extra"] = json!(1),
        "unknown field `extra`",
    );
    refused(
        |index| index["vectors"][0]["expect"]["apply"]["tensors"][0]["extra"] = json!(1),
        "unknown field `extra`",
    );
}

#[test]
fn missing_members_are_refused() {
    for name in [
        "id", "kind", "file", "sha256", "rules", "reason", "twin", "expect",
    ] {
        let remove =
            |index: &mut Value| drop(index["vectors"][0].as_object_mut().unwrap().remove(name));
        refused(remove, &format!("missing field `{name}`"));
    }
    refused(
        |index| drop(index["vectors"][0].as_object_mut().unwrap().remove("base")),
        "no base to apply it to",
    );
}

#[test]
fn names_must_refer_to_something() {
    refused(
        |index| index["vectors"][1]["id"] = json!("links/tiny/good"),
        "links/tiny/good is there twice",
    );
    refused(
        |index| index["vectors"][1]["twin"] = json!("links/tiny/none"),
        "there is no link links/tiny/none",
    );
    refused(
        |index| index["vectors"][0]["then"] = json!(["links/tiny/none"]),
        "there is no link links/tiny/none",
    );
    refused(
        |index| index["vectors"][0]["base"] = json!("vectors/states/none.json"),
        "is not among the states",
    );
    refused(
        |index| index["vectors"][0]["features"] = json!(["zst"]),
        "zst is not a feature",
    );
    refused(
        |index| index["vectors"][0]["expect"] = json!({ "document": {} }),
        "does not fit a link",
    );
    refused(|index| index["format"] = json!(1), "format 1 is not known");
    refused(
        |index| index["minimal"] = json!({ "links/tiny/none": {} }),
        "links/tiny/none is not a vector",
    );
    let refusal = json!({ "class": "CHAIN", "rule": null });
    refused(
        |index| index["minimal"] = json!({ "links/tiny/good": { "plan": refusal } }),
        "is not a vector that is asked this",
    );
    refused(
        |index| index["routes"] = json!({ "links/tiny/good": [] }),
        "routes: links/tiny/good has no plan",
    );
    refused(
        |index| index["belongs"] = json!({ "zst": ["links/tiny/good"] }),
        "zst is not an addition",
    );
    refused(
        |index| index["belongs"] = json!({ "layouts": ["links/tiny/none"] }),
        "there is no vector links/tiny/none",
    );
    let grown = json!({ "at": 0, "length": 1_u64 << 40 });
    refused(
        |index| index["vectors"][0]["grown"] = grown,
        "a file of more than",
    );
}

#[test]
fn files_must_have_the_digest_of_the_index() {
    let vectors = Vectors::tiny();
    vectors.write("vectors/links/tiny/good.dcf", b"damaged");
    vectors
        .run(&reference(), &["--only", "tiny/bad"])
        .says(1, &["good.dcf", "its SHA-256 is"]);

    let vectors = Vectors::tiny();
    vectors.write("vectors/states/new.safetensors", b"damaged");
    vectors
        .run(&reference(), &[])
        .says(1, &["new.safetensors", "its SHA-256 is"]);

    refused(
        |index| index["vectors"][0]["file"] = json!("vectors/../../good.dcf"),
        "not a path inside the folder",
    );
    refused(
        |index| index["vectors"][0]["file"] = json!("vectors/links/tiny/none.dcf"),
        "none.dcf",
    );
}
