//! Metadata in the tool's output, steps that are published once, and reports for other programs.

use std::fs;

use deltachain_store::{
    FsckOptions, Health, Keep, Store, StoreOptions, check_directory, fsck, plan_prune,
};
use serde_json::{Value, json};

use crate::support::{Folder, bytes_file};

/// Creates a chain with steps 10 and 20.
fn chain() -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    for step in ["10", "20"] {
        folder.write("model.safetensors", bytes_file(&[("a", step.as_bytes())]));
        folder
            .run(&[
                "publish",
                "chain",
                "model.safetensors",
                "--meta",
                &format!("step={step}"),
            ])
            .good();
    }
    folder
}

#[test]
fn the_step_is_shown_wherever_a_version_is() {
    let folder = chain();
    let pulled = folder.json(&["pull", "chain", "model", "--version", "0"]);
    assert_eq!(pulled["metadata"]["step"], "10");
    assert_eq!(
        folder.json(&["pull", "chain", "model", "--version", "0"])["metadata"]["step"],
        "10"
    );
    let followed = folder.json(&["follow", "chain", "model", "--once"]);
    assert_eq!(
        (followed["event"].as_str(), &followed["metadata"]["step"]),
        (Some("switched"), &Value::from("20"))
    );
    let newest = folder.json(&["follow", "chain", "model", "--once"]);
    assert_eq!(
        (newest["event"].as_str(), &newest["metadata"]["step"]),
        (Some("newest"), &Value::from("20"))
    );
    // `status` needs no chain.
    fs::remove_dir_all(folder.at("chain")).unwrap();
    assert_eq!(folder.json(&["status", "model"])["metadata"]["step"], "20");
    let status = folder.run(&["status", "model"]).good();
    assert!(
        status
            .lines()
            .any(|line| line.starts_with("notes ") && line.contains("step=20")),
        "{status}"
    );
}

#[test]
fn a_step_is_published_once() {
    let folder = chain();
    folder.write("model.safetensors", bytes_file(&[("a", b"xx")]));
    let publish = |step: &str, more: &[&str]| {
        let step = format!("step={step}");
        folder.json(
            &[
                &[
                    "publish",
                    "chain",
                    "model.safetensors",
                    "--once",
                    "step",
                    "--meta",
                    &step,
                ],
                more,
            ]
            .concat(),
        )
    };
    let before = folder.contents();
    let repeated = publish("20", &[]);
    assert_eq!(
        (repeated["new"].as_bool(), repeated["version"].as_u64()),
        (Some(false), Some(1))
    );
    assert_eq!(repeated["skipped"]["newest"], "20");
    // A run that starts counting from the beginning again gets a warning.
    for (step, warns) in [("step=20", false), ("step=3", true)] {
        let ran = folder.run(&[
            "publish",
            "chain",
            "model.safetensors",
            "--once",
            "step",
            "--meta",
            step,
        ]);
        let text = format!(
            "version 1 of chain stays the newest, and nothing was published: {}, the chain's \
             newest is 20: skipped",
            step.replace('=', " ")
        );
        assert!(ran.code == Some(0) && ran.stdout.contains(&text), "{ran:?}");
        let warned = ran
            .stderr
            .contains("step 3, the chain's newest is 20: skipped")
            && ran.stderr.contains("another run");
        assert_eq!(warned, warns, "{ran:?}");
    }
    assert!(folder.contents() == before, "nothing is stored");
    assert_eq!(publish("21", &["--if-changed"])["version"], 2);
    folder.refused(
        &["publish", "chain", "model.safetensors", "--once", "step"],
        "USAGE",
        None,
    );
    folder.refused(
        &[
            "publish",
            "chain",
            "model.safetensors",
            "--once",
            "step",
            "--meta",
            "step=x",
        ],
        "USAGE",
        None,
    );
}

#[test]
fn programs_get_the_same_reports() {
    let folder = chain();
    folder.run(&["pull", "chain", "model"]).good();
    let url = folder.at("chain").to_string_lossy().into_owned();
    let model = folder.at("model");
    let store = Store::open(&url, StoreOptions::default()).unwrap();
    let printed = |words: &[&str], more: &[&str]| {
        let mut printed = folder.json(words);
        // Remove fields that the tool adds or that differ at each call.
        for name in more {
            assert!(
                printed.as_object_mut().unwrap().remove(*name).is_some(),
                "{words:?}"
            );
        }
        printed
    };
    let log = |last| json!({ "versions": deltachain_store::log(&store, last, None).unwrap() });
    assert_eq!(printed(&["log", &url], &["url"]), log(None));
    assert_eq!(
        printed(&["log", &url, "--last", "1"], &["url"]),
        log(Some(1))
    );
    let shown = deltachain_store::show(&store, Some(0), None).unwrap();
    assert_eq!(
        printed(&["show", &url, "--version", "0"], &[]),
        json!(shown)
    );
    let plan = plan_prune(
        &store,
        &Keep {
            last: 1,
            ..Keep::default()
        },
    )
    .unwrap();
    assert_eq!(
        printed(&["prune", &url, "--keep-last", "1", "--dry-run"], &["url"]),
        json!(plan.expected)
    );
    let checked = fsck(&store, &FsckOptions::default(), &()).unwrap();
    assert_eq!(printed(&["fsck", &url], &["url"]), json!(checked));
    let checked = || json!(check_directory(&model, &()).unwrap());
    assert_eq!(printed(&["fsck", "model"], &["directory"]), checked());
    let ages = ["age_seconds", "lag_seconds", "directory"];
    let mut health = json!(Health::of(&model, None).unwrap());
    ages.iter()
        .for_each(|name| drop(health.as_object_mut().unwrap().remove(*name)));
    assert_eq!(printed(&["status", "model"], &ages), health);
    // Problems are reported, and the tool fails.
    fs::remove_file(model.join("current/model.safetensors")).unwrap();
    let ran = folder.run(&["--json", "fsck", model.to_str().unwrap()]);
    let mut report: Value = serde_json::from_str(&ran.stdout).unwrap();
    report.as_object_mut().unwrap().remove("directory");
    assert_eq!(
        (ran.code, report["problems"].as_array().unwrap().len()),
        (Some(1), 2)
    );
    assert_eq!(report, checked());
    assert!(!Health::of(&model, None).unwrap().healthy);
}
