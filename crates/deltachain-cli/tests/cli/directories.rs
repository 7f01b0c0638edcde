//! Models in several files: shards, indexes, and the files that no link covers.

use serde_json::json;

use crate::support::{Folder, bytes_file};

const INDEX: &str = "model.safetensors.index.json";

/// Writes a directory with two shards, an index and other files.
fn model(folder: &Folder, name: &str, byte: u8, config: &str) {
    let file = |file: &str| format!("{name}/{file}");
    folder.write(
        &file("model-00001-of-00002.safetensors"),
        bytes_file(&[("a", &[byte; 40]), ("b", &[7; 3])]),
    );
    folder.write(
        &file("model-00002-of-00002.safetensors"),
        bytes_file(&[("c", &[byte, 1, 2])]),
    );
    let index = json!({
        "metadata": { "total_size": 46 },
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00001-of-00002.safetensors",
            "c": "model-00002-of-00002.safetensors",
        },
    });
    folder.write(&file(INDEX), index.to_string());
    folder.write(&file("config.json"), config);
    folder.write(&file("tokenizer.json"), "{}");
}

#[test]
fn a_directory_comes_back_with_its_other_files() {
    let folder = Folder::new();
    model(&folder, "step 0", 1, "{}");
    model(&folder, "step 1", 2, "{}");
    let made = folder.json(&["diff", "step 0", "step 1", "-o", "link.dcf"]);
    assert_eq!(
        made["not_covered"],
        json!(["config.json", "tokenizer.json"])
    );
    assert_eq!(made["not_covered_differing"], json!([]));
    let built = folder.json(&["apply", "--base", "step 0", "link.dcf", "-o", "result"]);
    assert_eq!(built["copied"], json!(["config.json", "tokenizer.json"]));
    let contents = folder.contents();
    let files = contents
        .iter()
        .filter(|(path, _)| path.starts_with("result"));
    assert_eq!(
        built["written"],
        files.map(|(_, bytes)| bytes.len()).sum::<usize>()
    );
    for (path, bytes) in &contents {
        if let Ok(name) = path.strip_prefix("step 1") {
            assert!(
                contents[&folder
                    .at("result")
                    .strip_prefix(folder.at(""))
                    .unwrap()
                    .join(name)]
                    == *bytes,
                "{name:?}"
            );
        }
    }
    let remarks = folder.run(&["apply", "--base", "step 0", "link.dcf", "-o", "again"]);
    assert!(remarks.stderr.contains("config.json"), "{remarks:?}");
    let quiet = folder.run(&[
        "apply", "--base", "step 0", "link.dcf", "-o", "again", "--force", "--quiet",
    ]);
    assert_eq!(
        (quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()),
        (Some(0), "", "")
    );
}

#[test]
fn files_that_differ_are_named() {
    let folder = Folder::new();
    model(&folder, "base", 1, "old");
    model(&folder, "target", 2, "new");
    folder.write("target/merges.txt", "");
    folder.write("base/gone.py", "");
    let made = folder.json(&["diff", "base", "target", "-o", "link.dcf"]);
    assert_eq!(
        made["not_covered"],
        json!(["config.json", "merges.txt", "tokenizer.json"])
    );
    assert_eq!(
        made["not_covered_differing"],
        json!(["config.json", "gone.py", "merges.txt"])
    );
    let ran = folder.run(&["diff", "base", "target", "-o", "link.dcf", "--force"]);
    assert!(
        ran.stderr
            .contains("although they differ in base and target: config.json, gone.py, merges.txt"),
        "{ran:?}"
    );
}

#[test]
fn a_snapshot_keeps_the_layout() {
    let folder = Folder::new();
    model(&folder, "model", 1, "{}");
    let made = folder.json(&["snapshot", "model", "-o", "0.dcf"]);
    assert_eq!(
        made["not_covered"],
        json!(["config.json", "tokenizer.json"])
    );
    let built = folder.json(&["apply", "0.dcf", "-o", "result"]);
    assert_eq!(built["copied"], json!([]));
    for name in [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ] {
        assert!(
            folder.read(&format!("result/{name}")) == folder.read(&format!("model/{name}")),
            "{name}"
        );
    }
    assert!(folder.at("result").join(INDEX).exists() && !folder.at("result/config.json").exists());
}

#[test]
fn one_file_can_become_many_and_back() {
    let folder = Folder::new();
    model(&folder, "many", 1, "{}");
    folder.write("one", bytes_file(&[("a", &[3; 40]), ("b", &[7; 3])]));
    folder
        .run(&["diff", "one", "many", "-o", "split.dcf"])
        .good();
    folder
        .run(&["diff", "many", "one", "-o", "join.dcf"])
        .good();
    folder
        .run(&["apply", "--base", "one", "split.dcf", "-o", "new many"])
        .good();
    let shard = "model-00002-of-00002.safetensors";
    assert!(folder.read(&format!("new many/{shard}")) == folder.read(&format!("many/{shard}")));
    folder
        .run(&[
            "apply",
            "--base",
            "one",
            "split.dcf",
            "join.dcf",
            "-o",
            "new one",
        ])
        .good();
    assert_eq!(
        folder.json(&["digest", "new one"]),
        folder.json(&["digest", "one"])
    );
    // Shards without an index; then two shards that hold the same tensor.
    folder.write("loose/1.safetensors", bytes_file(&[("a", &[3; 40])]));
    folder.write("loose/2.safetensors", bytes_file(&[("b", &[7; 3])]));
    assert_eq!(
        folder.json(&["digest", "loose"]),
        folder.json(&["digest", "one"])
    );
    folder.write("loose/3.safetensors", bytes_file(&[("a", &[3; 40])]));
    let error = folder.refused(&["digest", "loose"], "USAGE", None);
    assert_eq!(error["tensor"], "a");
}

#[test]
fn a_directory_that_holds_more_is_not_replaced() {
    let folder = Folder::new();
    model(&folder, "base", 1, "{}");
    model(&folder, "target", 2, "{}");
    folder.run(&["diff", "base", "target", "-o", "link"]).good();
    folder.write("out/sub/precious", "");
    folder.refused(
        &["apply", "--base", "base", "link", "-o", "out"],
        "USAGE",
        None,
    );
    folder.refused(
        &["apply", "--base", "base", "link", "-o", "out", "--force"],
        "USAGE",
        None,
    );
    folder
        .run(&["apply", "--base", "base", "link", "-o", "base", "--force"])
        .good();
    assert_eq!(
        folder.json(&["digest", "base"]),
        folder.json(&["digest", "target"])
    );
}

/// Writes a pipeline: two parts with tensors of the same name, assets in folders, and a checkpoint
/// folder that does not belong to it.
fn pipeline(folder: &Folder, name: &str, byte: u8) {
    let file = |file: &str| format!("{name}/{file}");
    folder.write(&file("model_index.json"), "{}");
    folder.write(
        &file("text/model.safetensors"),
        bytes_file(&[("w", &[byte; 40])]),
    );
    folder.write(
        &file("text 2/model.safetensors"),
        bytes_file(&[("w", &[7; 40])]),
    );
    folder.write(&file("tokenizer/vocab.txt"), [byte]);
    folder.write(
        &file("checkpoint-500/model.safetensors"),
        bytes_file(&[("w", &[9])]),
    );
    folder.write(&file("checkpoint-500/optimizer.pt"), "large");
}

/// Files in a directory, except the checkpoint folder, which does not count.
fn files_of(folder: &Folder, name: &str) -> Vec<(String, Vec<u8>)> {
    let contents = folder.contents().into_iter().filter_map(|(path, bytes)| {
        let name = path.strip_prefix(name).ok()?.to_str()?.to_owned();
        (!name.starts_with("checkpoint-500")).then_some((name, bytes))
    });
    contents.collect()
}

#[test]
fn a_pipeline_comes_back_with_its_folders() {
    let folder = Folder::new();
    pipeline(&folder, "step 0", 1);
    pipeline(&folder, "step 1", 2);
    let left_out = json!(["checkpoint-500 (a trainer's checkpoint)"]);
    let made = folder.json(&[
        "diff",
        "step 0",
        "step 1",
        "-o",
        "link.dcf",
        "--profile",
        "direct",
    ]);
    assert_eq!(
        made["not_covered"],
        json!(["model_index.json", "tokenizer/vocab.txt"])
    );
    assert_eq!(
        made["not_covered_differing"],
        json!(["tokenizer/vocab.txt"])
    );
    assert_eq!(made["left_out"], left_out);
    let built = folder.json(&["apply", "--base", "step 0", "link.dcf", "-o", "result"]);
    assert_eq!(
        built["copied"],
        json!(["model_index.json", "tokenizer/vocab.txt"])
    );
    folder.write("result/tokenizer/vocab.txt", [2]);
    assert_eq!(files_of(&folder, "result"), files_of(&folder, "step 1"));
    let digest = folder.run(&["digest", "step 1", "--tensors"]);
    assert!(
        digest.stderr.contains("left out: checkpoint-500"),
        "{digest:?}"
    );
    let tensors = folder.json(&["digest", "step 1", "--tensors"])["tensors"].clone();
    assert_eq!(
        tensors.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["text 2/w", "text/w"]
    );
    assert_eq!(
        folder.json(&["digest", "result"]),
        folder.json(&["digest", "step 1"])
    );

    // `--force` rebuilds the result over itself, but does not replace a directory whose files would
    // be lost.
    folder
        .run(&[
            "apply", "--base", "step 0", "link.dcf", "-o", "result", "--force",
        ])
        .good();
    let error = folder.refused(
        &[
            "apply", "--base", "step 0", "link.dcf", "-o", "step 0", "--force",
        ],
        "USAGE",
        None,
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("checkpoint-500"),
        "{error}"
    );

    let snapshot = folder.json(&["snapshot", "step 0", "-o", "0.dcf"]);
    assert_eq!(snapshot["left_out"], left_out);
    folder
        .run(&["apply", "0.dcf", "link.dcf", "-o", "from nothing"])
        .good();
    assert_eq!(
        folder.json(&["verify", "link.dcf", "--base", "step 0"])["checked"],
        "target"
    );
    assert!(
        folder.at("from nothing/text 2/model.safetensors").is_file()
            && !folder.at("from nothing/tokenizer").exists()
    );
}

#[test]
fn a_pipeline_is_published_and_pulled() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    pipeline(&folder, "step 0", 1);
    pipeline(&folder, "step 1", 2);
    let published = folder.run(&["publish", "chain", "step 0"]);
    assert!(
        published
            .stderr
            .contains("not published: checkpoint-500 (a trainer's checkpoint)"),
        "{published:?}"
    );
    let published = folder
        .run(&["publish", "chain", "step 1", "--work", "work", "--json"])
        .good();
    let published: serde_json::Value =
        serde_json::from_str(published.lines().last().unwrap()).unwrap();
    let assets: Vec<_> = published["assets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|asset| &asset["name"])
        .collect();
    assert_eq!(assets, ["model_index.json", "tokenizer/vocab.txt"]);
    for (version, step) in [("0", "step 0"), ("1", "step 1")] {
        folder
            .run(&["pull", "chain", "served", "--version", version])
            .good();
        let link = std::fs::canonicalize(folder.at("served/current")).unwrap();
        let current = link
            .strip_prefix(std::fs::canonicalize(folder.at("")).unwrap())
            .unwrap()
            .to_str()
            .unwrap();
        assert_eq!(files_of(&folder, current), files_of(&folder, step));
    }
    folder.run(&["fsck", "served"]).good();
    folder.refused(&["fsck", "served", "--deep"], "USAGE", None);
    folder.run(&["fsck", "chain"]).good();
    folder
        .run(&[
            "pull",
            "chain",
            "text alone",
            "--tensors",
            "text/*",
            "--no-assets",
        ])
        .good();
    let only = folder.json(&["digest", "text alone/current", "--tensors"]);
    assert_eq!(
        only["tensors"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["text/w"]
    );
    let bare = folder.run(&["publish", "chain", "step 1", "--no-assets"]);
    assert!(
        bare.stderr
            .contains("(other files are turned off): model_index.json, tokenizer/vocab.txt"),
        "{bare:?}"
    );
    assert!(
        bare.stderr.contains("not published: checkpoint-500"),
        "{bare:?}"
    );
}

#[test]
fn without_tensors_a_restart_goes_on_from_what_is_held() {
    let folder = crate::engines::chain(1);
    let says = |expected: &str| {
        let ran = folder.run(&["follow", "chain", "held", "--no-tensors", "--once"]);
        assert!(
            ran.stdout.contains(expected) && !ran.stderr.contains("note"),
            "{ran:?}"
        );
    };
    says("version 0 is in held/current: ");
    says("version 0 is in held/current already");
    crate::engines::publish(&folder, 1);
    says("version 1 is in held/current, where version 0 was: ");
}
