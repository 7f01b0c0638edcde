//! `explain`: a text for every rule that an error can name, and for every class.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::{Folder, step};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Entries of `explain --json` for these names, by name.
fn explained(names: &[&str]) -> BTreeMap<String, Value> {
    let json = Folder::new().json(&[&["explain"], names].concat());
    let entries = json["errors"].as_array().unwrap().iter();
    entries
        .map(|entry| (entry["name"].as_str().unwrap().to_owned(), entry.clone()))
        .collect()
}

/// Rules that errors of this program can name, including those of writers: the quoted strings in
/// `src/rules.rs`.
fn rules() -> Vec<String> {
    let source = fs::read_to_string(format!("{REPOSITORY}/src/rules.rs")).unwrap();
    let quoted = source
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|text| text.starts_with("R-"));
    let rules: Vec<String> = quoted.map(str::to_owned).collect();
    assert!(rules.len() > 100, "{rules:?}");
    rules
}

#[test]
fn every_rule_and_class_is_explained_and_nothing_else() {
    let all = explained(&[]);
    let spec: Value =
        serde_json::from_slice(&fs::read(format!("{REPOSITORY}/conformance/rules.json")).unwrap())
            .unwrap();
    let mut explained: Vec<&str> = all
        .keys()
        .map(String::as_str)
        .filter(|name| name.starts_with("R-"))
        .collect();
    let mut rules = rules();
    rules.sort_unstable();
    explained.sort_unstable();
    assert_eq!(explained, rules);
    for rule in spec.as_array().unwrap() {
        let Some(entry) = all.get(rule["id"].as_str().unwrap()) else {
            assert!(
                rule["class"] == "writer" || rule["class"] == "conduct",
                "a reader checks {rule}"
            );
            continue;
        };
        assert_eq!(entry["section"], rule["section"], "{entry}");
        if rule["class"] != "writer" && rule["class"] != "conduct" {
            assert_eq!(entry["class"], rule["class"], "{entry}");
        }
    }
    let spec = fs::read_to_string(format!("{REPOSITORY}/SPEC.md")).unwrap();
    let table = spec
        .split("## 11. Error classes")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let mut classes: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
        .collect();
    assert_eq!(classes.remove(0), "class");
    classes.extend(["IO", "USAGE"]);
    classes.sort_unstable();
    assert_eq!(
        all.keys()
            .filter(|name| !name.starts_with("R-"))
            .collect::<Vec<_>>(),
        classes
    );
}

#[test]
fn one_is_explained() {
    let folder = Folder::new();
    let text = folder.run(&["explain", "r-chn-13", "io"]).good();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "R-CHN-13 (CHAIN, section 19 of the specification)"
    );
    assert!(text.contains("\n\nIO\n"), "{text}");
    for label in ["\n  cause  ", "\n  to do  "] {
        assert_eq!(text.matches(label).count(), 2, "{text}");
    }
    // The command is on one line, ready to copy.
    assert!(text.contains("`deltachain pull URL DIR --adopt`"), "{text}");
    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 120, "{text}");
    assert_eq!(explained(&["io"])["IO"]["class"], "IO");
}

#[test]
fn all_are_listed_without_a_name() {
    let text = Folder::new().run(&["explain"]).good();
    for rule in rules() {
        assert_eq!(text.matches(&format!("  {rule} ")).count(), 1, "{rule}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 160),
        "{text}"
    );
}

#[test]
fn unknown_names_are_refused() {
    let error = Folder::new().refused(&["explain", "R-CHN-13", "R-CHN-31\u{1b}"], "USAGE", None);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("R-CHN-01") && message.contains("\\u{1b}"),
        "{message}"
    );
}

#[test]
fn errors_say_where_to_read_on() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", &step(0)]).good();
    folder.run(&["pull", "chain", "served"]).good();
    let files = fs::read_dir(folder.at("chain/files"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files.for_each(|file| fs::write(file, "damaged").unwrap());
    let ran = folder.run(&["fsck", "chain"]);
    assert!(
        ran.stdout
            .contains("\nnote: for more: deltachain explain R-CHN-10"),
        "{ran:?}"
    );
    // Another chain at the same URL.
    fs::remove_dir_all(folder.at("chain")).unwrap();
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", &step(0)]).good();
    folder.refused(&["pull", "chain", "served"], "CHAIN", Some("R-CHN-13"));
    folder.run(&["follow", "chain", "served", "--once"]);
    let status = folder.run(&["status", "served"]);
    assert!(
        status
            .stdout
            .contains("\n          for more: deltachain explain R-CHN-13\n"),
        "{status:?}"
    );
}
