//! Metadata in the tool's output, steps that are published once, and reports for other programs.

use std::fs;

use deltachain_store::{Stop, StoreOptions};
use serde_json::Value;

use crate::support::{Folder, bytes_file};

/// A chain with steps 10 and 20.
fn chain() -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    for step in ["10", "20"] {
        folder.write("model.safetensors", bytes_file(&[("a", step.as_bytes())]));
        folder.run(&["publish", "chain", "model.safetensors", "--meta", &format!("step={step}")]).good();
    }
    folder
}

#[test]
fn the_step_is_shown_wherever_a_version_is() {
    let folder = chain();
    let pulled = folder.json(&["pull", "chain", "model", "--version", "0"]);
    assert_eq!(pulled["metadata"]["step"], "10");
    assert_eq!(folder.json(&["pull", "chain", "model", "--version", "0"])["metadata"]["step"], "10");
    let followed = folder.json(&["follow", "chain", "model", "--once"]);
    assert_eq!((followed["event"].as_str(), &followed["metadata"]["step"]), (Some("switched"), &Value::from("20")));
    let newest = folder.json(&["follow", "chain", "model", "--once"]);
    assert_eq!((newest["event"].as_str(), &newest["metadata"]["step"]), (Some("newest"), &Value::from("20")));
    // Without the chain.
    fs::remove_dir_all(folder.at("chain")).unwrap();
    assert_eq!(folder.json(&["status", "model"])["metadata"]["step"], "20");
    let status = folder.run(&["status", "model"]).good();
    assert!(status.lines().any(|line| line.starts_with("notes ") && line.contains("step=20")), "{status}");
}

#[test]
fn a_step_is_published_once() {
    let folder = chain();
    folder.write("model.safetensors", bytes_file(&[("a", b"xx")]));
    let publish = |step: &str, more: &[&str]| {
        let step = format!("step={step}");
        folder.json(&[&["publish", "chain", "model.safetensors", "--once", "step", "--meta", &step], more].concat())
    };
    let before = folder.contents();
    let repeated = publish("20", &[]);
    assert_eq!((repeated["new"].as_bool(), repeated["version"].as_u64()), (Some(false), Some(1)));
    let text = folder.run(&["publish", "chain", "model.safetensors", "--once", "step", "--meta", "step=3"]).good();
    assert!(
        text.contains("version 1 of chain has this step, or a later one, already: nothing was published"),
        "{text}"
    );
    assert!(folder.contents() == before, "nothing is stored");
    assert_eq!(publish("21", &["--if-changed"])["version"], 2);
    folder.refused(&["publish", "chain", "model.safetensors", "--once", "step"], "USAGE", None);
    folder.refused(&["publish", "chain", "model.safetensors", "--once", "step", "--meta", "step=x"], "USAGE", None);

    let shard = ["publish", "chain", "model.safetensors", "--shard", "0/1", "--part", "part.json"];
    folder.run(&shard).good();
    let commit = |step| folder.json(&["commit", "chain", "part.json", "--once", "step", "--meta", step]);
    assert_eq!((commit("step=21")["new"].as_bool(), commit("step=22")["version"].as_u64()), (Some(false), Some(3)));
}

#[test]
fn programs_get_the_same_reports() {
    let folder = chain();
    folder.run(&["pull", "chain", "model"]).good();
    let chain = folder.at("chain").to_string_lossy().into_owned();
    let model = folder.at("model").to_string_lossy().into_owned();
    let words = |command: &str, url: &str, more: &[&str]| -> Vec<String> {
        [&[command, url], more].concat().into_iter().map(str::to_owned).collect()
    };
    let report = |words: &[String]| {
        deltachain_cli::report(words.iter().map(Into::into), StoreOptions::default(), &(), Stop::default())
    };
    for words in [
        words("log", &chain, &[]),
        words("log", &chain, &["--last", "1"]),
        words("show", &chain, &["--version", "0"]),
        words("prune", &chain, &["--keep-last", "1", "--dry-run"]),
        words("fsck", &chain, &[]),
        words("fsck", &chain, &["--deep"]),
        words("fsck", &model, &[]),
        words("status", &model, &[]),
        words("doctor", &chain, &[]),
    ] {
        let printed = folder.json(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let (mut printed, mut given) = (printed, report(&words).unwrap());
        // Free space.
        for report in [&mut printed, &mut given] {
            report.as_object_mut().unwrap().remove("findings");
        }
        assert_eq!(given, printed, "{words:?}");
    }
    let compacted = report(&words("compact", &chain, &["--snapshot"])).unwrap();
    assert_eq!((compacted["version"].as_u64(), compacted["routes"][0]["from"].as_u64()), (Some(1), None));
    // What is wrong is reported; what cannot be done is an error, and so is what is no report.
    fs::remove_file(folder.at("model/current").join("model.safetensors")).unwrap();
    assert_eq!(report(&words("status", &model, &[])).unwrap()["healthy"], false);
    assert!(!report(&words("fsck", &model, &[])).unwrap()["problems"].as_array().unwrap().is_empty());
    assert_eq!(report(&words("show", &chain, &["--version", "7"])).unwrap_err().rule(), Some("R-CHN-03"));
    for words in [words("init", &chain, &[]), words("log", &chain, &["--last", "x"]), words("lag", &chain, &[])] {
        assert_eq!(report(&words).unwrap_err().class(), deltachain::ErrorClass::Usage);
    }
}
