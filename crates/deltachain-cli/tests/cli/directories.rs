//! Models in several files: shards, indexes, and the files that no link covers.

use serde_json::json;

use crate::support::{Folder, bytes_file};

const INDEX: &str = "model.safetensors.index.json";

/// Writes a directory with two shards, an index and other files.
fn model(folder: &Folder, name: &str, byte: u8, config: &str) {
    let file = |file: &str| format!("{name}/{file}");
    folder.write(&file("model-00001-of-00002.safetensors"), bytes_file(&[("a", &[byte; 40]), ("b", &[7; 3])]));
    folder.write(&file("model-00002-of-00002.safetensors"), bytes_file(&[("c", &[byte, 1, 2])]));
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
    assert_eq!(made["not_covered"], json!(["config.json", "tokenizer.json"]));
    assert_eq!(made["not_covered_differing"], json!([]));
    let built = folder.json(&["apply", "--base", "step 0", "link.dcf", "-o", "result"]);
    assert_eq!(built["copied"], json!(["config.json", "tokenizer.json"]));
    let contents = folder.contents();
    let files = contents.iter().filter(|(path, _)| path.starts_with("result"));
    assert_eq!(built["written"], files.map(|(_, bytes)| bytes.len()).sum::<usize>());
    for (path, bytes) in &contents {
        if let Ok(name) = path.strip_prefix("step 1") {
            assert!(
                contents[&folder.at("result").strip_prefix(folder.at("")).unwrap().join(name)] == *bytes,
                "{name:?}"
            );
        }
    }
    let remarks = folder.run(&["apply", "--base", "step 0", "link.dcf", "-o", "again"]);
    assert!(remarks.stderr.contains("config.json"), "{remarks:?}");
    let quiet = folder.run(&["apply", "--base", "step 0", "link.dcf", "-o", "again", "--force", "--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn files_that_differ_are_named() {
    let folder = Folder::new();
    model(&folder, "base", 1, "old");
    model(&folder, "target", 2, "new");
    folder.write("target/merges.txt", "");
    folder.write("base/gone.py", "");
    let made = folder.json(&["diff", "base", "target", "-o", "link.dcf"]);
    assert_eq!(made["not_covered"], json!(["config.json", "merges.txt", "tokenizer.json"]));
    assert_eq!(made["not_covered_differing"], json!(["config.json", "gone.py", "merges.txt"]));
    let ran = folder.run(&["diff", "base", "target", "-o", "link.dcf", "--force"]);
    assert!(ran.stderr.contains("not the same in base and target: config.json, gone.py, merges.txt"), "{ran:?}");
}

#[test]
fn a_snapshot_keeps_the_layout() {
    let folder = Folder::new();
    model(&folder, "model", 1, "{}");
    let made = folder.json(&["snapshot", "model", "-o", "0.dcf"]);
    assert_eq!(made["not_covered"], json!(["config.json", "tokenizer.json"]));
    let built = folder.json(&["apply", "0.dcf", "-o", "result"]);
    assert_eq!(built["copied"], json!([]));
    for name in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        assert!(folder.read(&format!("result/{name}")) == folder.read(&format!("model/{name}")), "{name}");
    }
    assert!(folder.at("result").join(INDEX).exists() && !folder.at("result/config.json").exists());
}

#[test]
fn one_file_can_become_many_and_back() {
    let folder = Folder::new();
    model(&folder, "many", 1, "{}");
    folder.write("one", bytes_file(&[("a", &[3; 40]), ("b", &[7; 3])]));
    folder.run(&["diff", "one", "many", "-o", "split.dcf"]).good();
    folder.run(&["diff", "many", "one", "-o", "join.dcf"]).good();
    folder.run(&["apply", "--base", "one", "split.dcf", "-o", "new many"]).good();
    let shard = "model-00002-of-00002.safetensors";
    assert!(folder.read(&format!("new many/{shard}")) == folder.read(&format!("many/{shard}")));
    folder.run(&["apply", "--base", "one", "split.dcf", "join.dcf", "-o", "new one"]).good();
    assert_eq!(folder.json(&["digest", "new one"]), folder.json(&["digest", "one"]));
    folder.run(&["squash", "split.dcf", "join.dcf", "--base", "one", "-o", "nothing.dcf"]).good();
    assert_eq!(folder.json(&["inspect", "nothing.dcf"])["tensors"], json!([]));
    // Shards that no index names, and then two that hold the same tensor.
    folder.write("loose/1.safetensors", bytes_file(&[("a", &[3; 40])]));
    folder.write("loose/2.safetensors", bytes_file(&[("b", &[7; 3])]));
    assert_eq!(folder.json(&["digest", "loose"]), folder.json(&["digest", "one"]));
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
    folder.refused(&["apply", "--base", "base", "link", "-o", "out"], "USAGE", None);
    folder.refused(&["apply", "--base", "base", "link", "-o", "out", "--force"], "USAGE", None);
    folder.run(&["apply", "--base", "base", "link", "-o", "base", "--force"]).good();
    assert_eq!(folder.json(&["digest", "base"]), folder.json(&["digest", "target"]));
}
