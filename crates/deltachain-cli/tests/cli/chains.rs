//! Chains in a directory, through the tool: publish, pull, follow, compact, prune, fsck.

use std::fs;

use deltachain_store::{Follower, FollowerOptions};
use serde_json::Value;

use crate::support::{Folder, Ran, bytes_file, chain_in, publish_shards, step};

/// Publishes the BF16 checkpoints as versions 0 to 3 of the chain `a chain`.
fn publish_all(folder: &Folder) {
    folder.run(&["init", "a chain"]).good();
    folder
        .run(&["publish", "a chain", &step(0), "--meta", "step=0"])
        .good();
    for number in 1..4 {
        let meta = format!("step={number}");
        let base = step(number - 1);
        folder
            .run(&[
                "publish",
                "a chain",
                &step(number),
                "--base",
                &base,
                "--meta",
                &meta,
            ])
            .good();
    }
}

fn holds(folder: &Folder, directory: &str, number: usize) {
    let file = folder.read(&format!("{directory}/current/model.safetensors"));
    assert!(
        file == fs::read(step(number)).unwrap(),
        "{directory} is not at step {number}"
    );
}

/// The JSON objects on standard output.
fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn versions_come_back() {
    let folder = Folder::new();
    publish_all(&folder);
    let pulled = folder.json(&["pull", "a chain", "Modell \u{1F9EE}", "--version", "1"]);
    assert_eq!(
        (pulled["version"].as_u64(), pulled["from"].as_u64()),
        (Some(1), None)
    );
    holds(&folder, "Modell \u{1F9EE}", 1);
    let pulled = folder.json(&["pull", "a chain", "Modell \u{1F9EE}"]);
    assert_eq!(
        (pulled["version"].as_u64(), pulled["from"].as_u64()),
        (Some(3), Some(1))
    );
    assert_eq!(pulled["routes"].as_array().unwrap().len(), 2);
    let file = fs::read(step(3)).unwrap();
    let header = u64::from_le_bytes(*file.first_chunk().unwrap());
    assert_eq!(
        pulled["written"].as_u64(),
        Some(file.len() as u64 - 8 - header),
        "each byte is written once, whatever the number of links"
    );
    holds(&folder, "Modell \u{1F9EE}", 3);
    // Back to an older version with a snapshot; the second pull has nothing to do.
    folder.json(&["pull", "a chain", "Modell \u{1F9EE}", "--version", "0"]);
    holds(&folder, "Modell \u{1F9EE}", 0);
    assert_eq!(
        folder.json(&["pull", "a chain", "Modell \u{1F9EE}", "--version", "0"])["downloaded"],
        0
    );

    let log = folder.json(&["log", "a chain", "--last", "2"]);
    let versions: Vec<u64> = log["versions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|v| v["version"].as_u64())
        .collect();
    assert_eq!(versions, [3, 2]);
    let shown = folder.json(&["show", "a chain", "--version", "2"]);
    assert_eq!(shown["metadata"]["step"], "2");
    assert_eq!(shown["state"], folder.json(&["digest", &step(2)])["state"]);
}

#[test]
fn a_publisher_needs_no_base_at_hand() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", &step(0)]).good();
    folder.run(&["publish", "chain", &step(1)]).good();
    folder
        .run(&["publish", "chain", &step(2), "--work", "work"])
        .good();
    let published = folder.json(&[
        "publish",
        "chain",
        &step(3),
        "--work",
        "work",
        "--skip-every",
        "3",
    ]);
    let from: Vec<Option<u64>> = published["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["from"].as_u64())
        .collect();
    assert_eq!(from, [Some(0), Some(2)]);
    folder.run(&["pull", "chain", "model"]).good();
    holds(&folder, "model", 3);
    folder.refused(
        &["publish", "chain", &step(0), "--base", &step(1)],
        "CHAIN",
        Some("R-PUB-01"),
    );
}

#[test]
fn several_profiles_are_published_at_once_and_shown() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder
        .run(&["publish", "chain", &step(0), "--profile", "local,compact"])
        .good();
    let profiles = ["--profile", "local", "--profile", "compact"];
    let base = step(0);
    let next = step(1);
    let text = folder
        .run(&[&["publish", "chain", &next, "--base", &base][..], &profiles].concat())
        .good();
    let count = |text: &str, end: &str| {
        text.lines()
            .filter(|line| line.trim_end().ends_with(end))
            .count()
    };
    assert_eq!(
        [" bytes", " bytes, in place"].map(|end| count(&text, end)),
        [1; 2],
        "{text}"
    );
    let kinds = |routes: &Value| {
        let kind = |route: &Value| {
            (
                route["direct"].as_bool().unwrap(),
                route["in_place"].as_bool().unwrap(),
            )
        };
        let mut kinds: Vec<_> = routes.as_array().unwrap().iter().map(kind).collect();
        kinds.sort_unstable();
        kinds
    };
    let all = [(false, false), (false, true)];
    assert_eq!(kinds(&folder.json(&["show", "chain"])["routes"]), all);
    assert_eq!(
        kinds(&folder.json(&["log", "chain"])["versions"][0]["routes"]),
        all
    );
    let text = folder.run(&["show", "chain"]).good();
    assert_eq!(
        ["from 0", "from 0, in place"].map(|line| count(&text, line)),
        [1; 2],
        "{text}"
    );
    assert!(folder.run(&["log", "chain"]).good().contains(", in place)"));
    // Followers of a directory take the shortest route, and report the proof.
    folder
        .run(&["pull", "chain", "model", "--version", "0"])
        .good();
    let pulled = folder.json(&["pull", "chain", "model"]);
    assert_eq!(
        (pulled["routes"].as_array().unwrap().len(), &pulled["proof"]),
        (1, &Value::from("hashed"))
    );
    assert_eq!(folder.json(&["status", "model"])["proof"], "hashed");
    assert!(
        folder
            .run(&["status", "model"])
            .good()
            .contains("proof     hashed")
    );
    holds(&folder, "model", 1);
    // `compact` keeps the routes for updates in place.
    let compacted = folder.json(&["compact", "chain", "--from", "0", "--profile", "compact"]);
    assert_eq!(kinds(&compacted["routes"]), [(false, false)]);
    assert_eq!(kinds(&folder.json(&["show", "chain"])["routes"]), all);
    for refused in ["local,local", "direct"] {
        let ran = folder.run(&["publish", "chain", &step(2), "--profile", refused]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

#[test]
fn an_empty_state_is_published_only_if_that_is_wanted() {
    let folder = Folder::new();
    folder.write("empty.safetensors", bytes_file(&[]));
    folder.write("full.safetensors", bytes_file(&[("a", b"one")]));
    folder.run(&["init", "chain"]).good();
    folder.run(&["publish", "chain", "full.safetensors"]).good();
    let error = folder.refused(&["publish", "chain", "empty.safetensors"], "USAGE", None);
    assert!(
        error["message"].as_str().unwrap().contains("no tensors"),
        "{error}"
    );
    folder
        .run(&["publish", "chain", "empty.safetensors", "--allow-empty"])
        .good();
}

/// A change of the tensor files or of the assets alone counts as a change.
#[test]
fn a_change_of_files_alone_is_published() {
    let folder = Folder::new();
    let model = bytes_file(&[("a", b"one"), ("b", b"two")]);
    folder.write("state/model.safetensors", &model);
    folder.write("state/config.json", "{}");
    folder.run(&["init", "chain"]).good();
    let publish = |more: &[&str]| {
        let ran = folder.run(
            &[
                &["publish", "chain", "state", "--if-changed", "--json"],
                more,
            ]
            .concat(),
        );
        let published: Value = serde_json::from_str(ran.good().lines().last().unwrap()).unwrap();
        (
            published["version"].as_u64().unwrap(),
            published["new"].as_bool().unwrap(),
        )
    };
    let bases = [&[][..], &["--work", "work"], &["--base", "state"]];
    assert_eq!(publish(&[]), (0, true));
    let mut version = 0;
    for (number, base) in bases.iter().enumerate() {
        assert_eq!(publish(base), (version, false), "{base:?}");
        folder.write("state/config.json", number.to_string());
        version += 1;
        assert_eq!(publish(base), (version, true), "{base:?}");
        // Assets that are left out do not count.
        folder.write("state/config.json", "left out");
        assert_eq!(
            publish(&[base, &["--no-assets"][..]].concat()),
            (version, false),
            "{base:?}"
        );
        folder.write("state/config.json", number.to_string());
        assert_eq!(publish(base), (version, false), "{base:?}");
    }
    std::fs::remove_file(folder.at("state/config.json")).unwrap();
    assert_eq!(publish(&[]), (version + 1, true));
    folder.run(&["pull", "chain", "pulled"]).good();
    assert!(!folder.at("pulled/current/config.json").exists());
    // The tensors stay the same and move to other files.
    folder.write("state/model.safetensors", bytes_file(&[("a", b"one")]));
    folder.write("state/other.safetensors", bytes_file(&[("b", b"two")]));
    assert_eq!(publish(&[]), (version + 2, true));
    assert_eq!(publish(&[]), (version + 2, false));
}

#[test]
fn a_lost_version_is_not_published_again() {
    let folder = Folder::new();
    for version in ["0", "1", "2"] {
        folder.write(
            &format!("{version}.safetensors"),
            bytes_file(&[("a", version.as_bytes())]),
        );
    }
    folder.run(&["init", "chain"]).good();
    let publish = |version: &str, more: &[&str]| {
        folder.json(
            &[
                &["publish", "chain", &format!("{version}.safetensors")],
                more,
            ]
            .concat(),
        )
    };
    let commit = publish("0", &["--work", "work"])["commit"]
        .as_str()
        .unwrap()
        .to_owned();
    publish("1", &["--work", "work"]);
    folder.run(&["compact", "chain", "--snapshot"]).good();
    std::fs::remove_file(folder.at("chain/commits/00000000000000000001.json")).unwrap();
    let error = folder.refused(
        &[
            "publish",
            "chain",
            "2.safetensors",
            "--base",
            "0.safetensors",
        ],
        "CHAIN",
        Some("R-PUB-11"),
    );
    assert!(
        error["message"].as_str().unwrap().contains(&commit),
        "{error}"
    );
    // A work directory that held more versions detects the rollback, too.
    let ran = folder.run(&[
        "publish",
        "chain",
        "2.safetensors",
        "--work",
        "work",
        "--vouch",
        &commit,
    ]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("error: CHAIN R-CHN-03"),
        "{ran:?}"
    );
    let published = publish("2", &["--base", "0.safetensors", "--vouch", &commit]);
    assert_eq!(published["version"], 1);
}

/// The base on the command line has the head's tensors, but its files may differ.
#[test]
fn a_pull_has_the_files_that_were_published() {
    let folder = Folder::new();
    for (name, byte) in [("0", &b"one"[..]), ("1", b"two")] {
        folder.write(
            &format!("spread{name}/a.safetensors"),
            bytes_file(&[("a", byte)]),
        );
        folder.write(
            &format!("spread{name}/b.safetensors"),
            bytes_file(&[("b", byte)]),
        );
        folder.write(
            &format!("single{name}/model.safetensors"),
            bytes_file(&[("a", byte), ("b", byte)]),
        );
    }
    for (before, after) in [("spread", "single"), ("single", "spread")] {
        let [chain, early, late] =
            ["chain", "early", "late"].map(|name| format!("{name} {before}"));
        let [first, base, target] = [
            format!("{before}0"),
            format!("{after}0"),
            format!("{after}1"),
        ];
        folder.run(&["init", &chain]).good();
        folder.run(&["publish", &chain, &first]).good();
        folder.run(&["pull", &chain, &early]).good();
        folder
            .run(&[
                "publish",
                &chain,
                &target,
                "--base",
                &base,
                "--snapshot-cost",
                "inf",
            ])
            .good();
        for directory in [&early, &late] {
            folder.run(&["pull", &chain, directory]).good();
            let names: Vec<_> = std::fs::read_dir(folder.at(&format!("{directory}/current")))
                .unwrap()
                .collect();
            for name in ["a.safetensors", "b.safetensors", "model.safetensors"] {
                let pulled = format!("{directory}/current/{name}");
                let published = format!("{target}/{name}");
                assert_eq!(
                    folder.at(&pulled).exists(),
                    folder.at(&published).exists(),
                    "{pulled}: {names:?}"
                );
            }
        }
    }
}

/// Number of shards of the head, and the versions from which its routes start.
fn shards_of_head(folder: &Folder) -> (usize, Vec<Value>) {
    let shown = folder.json(&["show", "chain"]);
    let routes = shown["routes"].as_array().unwrap();
    let from = routes.iter().map(|route| route["from"].clone()).collect();
    (shown["shards"].as_array().unwrap().len(), from)
}

#[test]
fn a_version_has_as_many_shards_as_the_head() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.write("r0.safetensors", bytes_file(&[("a", b"one"), ("c", b"1")]));
    folder.write("r1.safetensors", bytes_file(&[("b", b"two")]));
    folder.write("r2.safetensors", bytes_file(&[("d", b"three")]));
    publish_shards(&folder, &["r0", "r1", "r2"]);
    let tensors = |values: [&'static [u8]; 4]| {
        let names = ["a", "b", "c", "d"];
        bytes_file(&names.into_iter().zip(values).collect::<Vec<_>>())
    };
    let states = [
        ("0", tensors([b"one", b"two", b"2", b"three"])),
        // A tensor with another shape, a new tensor, and a shard that becomes empty.
        (
            "1",
            bytes_file(&[
                ("a", b"one"),
                ("c", b"long"),
                ("e", b"new"),
                ("d", b"three"),
            ]),
        ),
        ("2", tensors([b"ONE", b"TWO", b"3", b"THREE"])),
    ];
    let more: [&[&str]; 3] = [&[], &["--base", "0"], &["--work", "work"]];
    for (version, ((name, state), more)) in states.iter().zip(more).enumerate() {
        folder.write(&format!("{name}/model.safetensors"), state);
        folder
            .run(&[&["publish", "chain", name], more].concat())
            .good();
        let before = Value::from(version);
        let (shards, from) = shards_of_head(&folder);
        assert!(shards == 3 && from.contains(&before), "{name}: {from:?}");
        folder.run(&["pull", "chain", "all"]).good();
        let own = folder.json(&["digest", name]);
        assert_eq!(
            folder.json(&["digest", "all/current"])["state"],
            own["state"]
        );
    }
    folder.run(&["fsck", "chain", "--deep"]).good();
    // Nothing has changed.
    let args = ["publish", "chain", "2", "--if-changed", "--work", "work"];
    assert_eq!(folder.json(&args)["new"], false);
}

/// A directory as `pull --shards`, an option of earlier versions, left it.
#[test]
fn a_directory_of_some_shards_is_completed() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.write("r0.safetensors", bytes_file(&[("a", b"one")]));
    folder.write("r1.safetensors", bytes_file(&[("b", b"two")]));
    publish_shards(&folder, &["r0", "r1"]);
    for trusted in [&[][..], &["--trust-directory"]] {
        let store = chain_in(&folder);
        let options = FollowerOptions::default().shards(Some(vec![1]));
        let directory = folder.at("model");
        let mut follower = Follower::in_directory(store, &directory, options).unwrap();
        let prepared = follower.prepare(None, &()).unwrap().unwrap();
        follower.apply(prepared).unwrap();
        drop(follower);
        folder.write("model/notes.txt", "mine");
        let ran = folder.run(&[&["pull", "chain", "model"], trusted].concat());
        assert!(ran.stderr.contains("will be recreated"), "{ran:?}");
        ran.good();
        assert_eq!(
            folder.json(&["digest", "model/current"])["state"],
            folder.json(&["show", "chain"])["state"]
        );
        assert_eq!(folder.read("model/notes.txt"), b"mine");
        fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn some_tensors_are_taken() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    for (number, value) in ["one", "two"].iter().enumerate() {
        let state = format!("{number}.safetensors");
        folder.write(
            &state,
            bytes_file(&[
                ("a.0", value.as_bytes()),
                ("a.1", b"same"),
                ("b", value.as_bytes()),
            ]),
        );
        folder.run(&["publish", "chain", &state]).good();
    }
    folder.write(
        "part.safetensors",
        bytes_file(&[("a.0", b"two"), ("b", b"two")]),
    );
    folder
        .run(&[
            "pull",
            "chain",
            "model",
            "--tensors",
            "{a.0,x}",
            "--tensors",
            "b*",
        ])
        .good();
    assert_eq!(
        folder.json(&["digest", "model/current"])["state"],
        folder.json(&["digest", "part.safetensors"])["state"]
    );
    let error = lines(&folder.run(&["pull", "chain", "none", "--tensors", "c*", "--json"]))
        .pop()
        .unwrap();
    assert_eq!(error["error"]["class"].as_str(), Some("USAGE"));
    assert!(!folder.at("none/current").exists());
    folder.refused(
        &["pull", "chain", "other", "--tensors", "[c"],
        "USAGE",
        None,
    );
}

#[cfg(unix)]
#[test]
fn a_follower_runs_a_command() {
    let folder = Folder::new();
    publish_all(&folder);
    let script = r#"echo "$DELTACHAIN_VERSION $DELTACHAIN_STATE $DELTACHAIN_DIRECTORY" > seen"#;
    let ran = folder.run(&[
        "follow", "a chain", "model", "--until", "3", "--poll", "0.01", "--exec", script, "--json",
    ]);
    let events = lines(&ran);
    assert_eq!((ran.code, events.len()), (Some(0), 1), "{ran:?}");
    assert_eq!(
        (events[0]["event"].as_str(), events[0]["version"].as_u64()),
        (Some("switched"), Some(3))
    );
    let seen = String::from_utf8(folder.read("seen")).unwrap();
    let directory = events[0]["directory"].as_str().unwrap();
    assert_eq!(
        seen.trim(),
        format!("3 {} {directory}", events[0]["state"].as_str().unwrap())
    );
    holds(&folder, "model", 3);
}

#[test]
fn old_versions_go_and_late_joiners_read_less() {
    let folder = Folder::new();
    publish_all(&folder);
    let keep = ["prune", "a chain", "--keep-last", "1", "--dry-run"];
    assert_eq!(
        folder.json(&keep)["needed"],
        serde_json::json!([0, 1, 2]),
        "the newest version's only path needs their links"
    );
    let text = folder.run(&keep).good();
    assert!(
        text.contains("(0-2) stay") && text.contains("compact --version 3 --snapshot"),
        "{text}"
    );
    let text = folder.run(&["pull", "a chain", "all links"]).good();
    assert!(
        text.contains("path   snapshot of 0, 3 links to 3\n"),
        "{text}"
    );
    let compacted = folder.json(&["compact", "a chain", "--snapshot", "--from", "0"]);
    assert_eq!(compacted["routes"].as_array().unwrap().len(), 2);
    let pulled = folder.json(&["pull", "a chain", "model"]);
    assert_eq!(pulled["routes"].as_array().unwrap().len(), 1);
    let before = folder.contents().len();
    let plan = folder.json(&["prune", "a chain", "--keep-last", "1", "--dry-run"]);
    assert_eq!(
        (plan["done"].as_bool(), folder.contents().len()),
        (Some(false), before)
    );
    folder.run(&["prune", "a chain", "--keep-last", "1"]).good();
    folder.run(&["fsck", "a chain", "--deep"]).good();
    let error = folder.run(&["pull", "a chain", "late", "--version", "1", "--json"]);
    assert_eq!(
        (error.code, error.json()["error"]["rule"].as_str()),
        (Some(1), Some("R-CHN-08"))
    );
    let advice = error.json()["error"]["advice"].to_string();
    assert!(advice.contains("--undo"), "{advice}");
    folder.run(&["pull", "a chain", "late"]).good();
    holds(&folder, "late", 3);

    // The prune was a mistake and is undone.
    assert_eq!(
        folder.json(&["prune", "a chain", "--undo"])["restored"],
        serde_json::json!([0, 1, 2, 3])
    );
    folder
        .run(&["pull", "a chain", "early", "--version", "1"])
        .good();
    assert_eq!(folder.run(&["prune", "a chain", "--undo"]).code, Some(1));
    for options in [
        &["--undo", "--keep-last", "1"][..],
        &[],
        &["--keep-every", "2", "--abandoned"],
    ] {
        assert_eq!(
            folder.run(&[&["prune", "a chain"], options].concat()).code,
            Some(2),
            "{options:?}"
        );
    }
}

#[test]
fn what_no_version_names_is_counted_and_removed_by_hand() {
    let folder = Folder::new();
    publish_all(&folder);
    let age = |name: &str| {
        let file = fs::File::options()
            .write(true)
            .open(folder.at("a chain").join(name))
            .unwrap();
        file.set_modified(
            file.metadata().unwrap().modified().unwrap() - std::time::Duration::from_hours(25),
        )
        .unwrap();
    };
    let left = format!("files/{}.dcf", "0".repeat(64));
    fs::write(folder.at("a chain").join(&left), "not a link").unwrap();
    age(&left);
    let counted =
        |report: &serde_json::Value| (report["unnamed"].as_u64(), report["unnamed_bytes"].as_u64());
    assert_eq!(
        counted(&folder.json(&["fsck", "a chain"])),
        (Some(1), Some(10))
    );
    let text = folder.run(&["fsck", "a chain"]).good();
    assert!(
        text.contains("1 file that no version names (10 bytes) stay"),
        "{text}"
    );
    assert_eq!(
        counted(&folder.json(&["prune", "a chain", "--keep-last", "1"])),
        (Some(1), Some(10))
    );
    let pruned = folder.json(&["prune", "a chain", "--abandoned"]);
    assert_eq!(
        (counted(&pruned), &pruned["removed"]),
        ((Some(0), Some(0)), &serde_json::json!([left]))
    );

    // The commits are lost.
    fs::rename(folder.at("a chain/commits"), folder.at("commits")).unwrap();
    for options in [["--keep-last", "9"], ["--abandoned", "--dry-run"]] {
        let error = folder.run(&[&["prune", "a chain", "--json"], &options[..]].concat());
        assert_eq!(
            (error.code, error.json()["error"]["rule"].as_str()),
            (Some(1), Some("R-RET-05"))
        );
        assert!(
            error.json()["error"]["advice"]
                .as_str()
                .unwrap()
                .contains("--accept-loss")
        );
    }
    fs::remove_file(folder.at("a chain/chain.json")).unwrap();
    let error = folder.run(&["init", "a chain", "--json"]);
    assert_eq!(
        (error.code, error.json()["error"]["rule"].as_str()),
        (Some(1), Some("R-CHN-01"))
    );
}

#[test]
fn damage_is_found_and_named() {
    let folder = Folder::new();
    publish_all(&folder);
    let files = fs::read_dir(folder.at("a chain/files")).unwrap();
    let name = files
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&name).unwrap();
    bytes[1000] ^= 1;
    fs::write(&name, bytes).unwrap();
    let checked = folder.run(&["fsck", "a chain", "--json"]);
    let problem = &checked.json()["problems"][0];
    assert_eq!(
        (checked.code, problem["class"].as_str()),
        (Some(1), Some("CORRUPT"))
    );
    assert!(
        problem["file"]
            .as_str()
            .unwrap()
            .ends_with(name.file_name().unwrap().to_str().unwrap())
    );
    let pulled = folder.run(&["pull", "a chain", "model", "--json"]);
    let error = lines(&pulled).pop().unwrap();
    assert_eq!(
        (pulled.code, error["error"]["rule"].as_str()),
        (Some(1), Some("R-CHN-10"))
    );
    assert!(!folder.at("model/current").exists());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.refused(&["init", "chain"], "USAGE", None);
    folder.refused(&["log", "nowhere"], "USAGE", None);
    folder.refused(&["log", "ftp://somewhere/else"], "USAGE", None);
    folder.refused(&["publish", "chain", "nothing"], "USAGE", None);
    folder.refused(
        &["compact", "chain", "--snapshot"],
        "CHAIN",
        Some("R-CHN-03"),
    );
    fs::create_dir(folder.at("empty")).unwrap();
    folder.refused(&["log", "empty"], "CHAIN", Some("R-CHN-01"));
}

/// Writes a model's directory.
fn write_model(folder: &Folder, name: &str, config: &str) {
    folder.write(
        &format!("{name}/model.safetensors"),
        bytes_file(&[("a", name.as_bytes())]),
    );
    folder.write(&format!("{name}/config.json"), config);
    folder.write(&format!("{name}/tokenizer.json"), "[]");
}

#[test]
fn a_model_comes_with_its_configuration() {
    let folder = Folder::new();
    write_model(&folder, "step0", "{}");
    folder.run(&["init", "chain"]).good();
    let published = folder.json(&["publish", "chain", "step0"]);
    assert_eq!(published["assets"][0]["name"], "config.json");
    write_model(&folder, "step1", "{\"a\":1}");
    folder.write("step1/.hidden", "x");
    let ran = folder.run(&["publish", "chain", "step1", "--base", "step0"]);
    assert!(ran.stderr.contains("not published: .hidden ("), "{ran:?}");
    assert!(
        ran.good()
            .contains("assets       9 bytes, 7 new: config.json, tokenizer.json")
    );
    let shown = folder.json(&["show", "chain"]);
    assert_eq!(
        (
            shown["assets"][1]["name"].as_str(),
            shown["assets"][1]["size"].as_u64()
        ),
        (Some("tokenizer.json"), Some(2))
    );
    assert!(
        folder
            .run(&["show", "chain"])
            .good()
            .contains("asset    config.json")
    );
    assert_eq!(folder.json(&["fsck", "chain", "--deep"])["assets"], 3);

    folder.run(&["pull", "chain", "model"]).good();
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        assert_eq!(
            folder.read(&format!("model/current/{file}")),
            folder.read(&format!("step1/{file}")),
            "{file}"
        );
    }
    folder.run(&["pull", "chain", "bare", "--no-assets"]).good();
    assert!(!folder.at("bare/current/config.json").exists());
    folder
        .run(&[
            "follow",
            "chain",
            "mixed",
            "--with-files",
            "step0",
            "--until",
            "1",
        ])
        .good();
    assert_eq!(folder.read("mixed/current/config.json"), b"{}");
    let both = folder.run(&[
        "pull",
        "chain",
        "bare",
        "--no-assets",
        "--with-files",
        "step0",
    ]);
    assert!(
        both.code == Some(2) && both.stderr.contains("cannot be used with"),
        "{both:?}"
    );

    let ran = folder.run(&["publish", "chain", "step0", "--no-assets"]);
    assert!(
        ran.stderr.contains("config.json, tokenizer.json"),
        "{ran:?}"
    );
    ran.good();
    folder.run(&["pull", "chain", "model"]).good();
    assert!(
        !folder.at("model/current/config.json").exists(),
        "the version has no assets"
    );
}

#[test]
fn nobody_goes_back_unasked() {
    let folder = Folder::new();
    publish_all(&folder);
    folder.run(&["pull", "a chain", "model"]).good();
    let commit = folder.json(&["show", "a chain", "--version", "2"])["commit"]
        .as_str()
        .unwrap()
        .to_owned();
    fs::remove_file(folder.at("a chain/commits/00000000000000000003.json")).unwrap();
    let error = folder.refused(&["pull", "a chain", "model"], "CHAIN", Some("R-CHN-14"));
    assert!(
        error["advice"]
            .as_str()
            .unwrap()
            .contains("--allow-rollback"),
        "{error}"
    );
    holds(&folder, "model", 3);
    let other = "0".repeat(64);
    folder.refused(
        &["pull", "a chain", "model", "--quiet"],
        "CHAIN",
        Some("R-CHN-14"),
    );
    folder.refused(
        &["pull", "a chain", "model", "--allow-rollback", &other],
        "CHAIN",
        Some("R-CHN-14"),
    );
    folder.refused(
        &["pull", "a chain", "model", "--adopt"],
        "CHAIN",
        Some("R-CHN-14"),
    );
    let ran = folder.run(&["pull", "a chain", "model", "--allow-rollback", "0"]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("64 hexadecimal digits"),
        "{ran:?}"
    );
    folder
        .run(&["pull", "a chain", "model", "--allow-rollback", &commit])
        .good();
    holds(&folder, "model", 2);
    // Another chain with fewer versions does not replace the held one.
    folder.run(&["init", "another"]).good();
    folder.run(&["publish", "another", &step(1)]).good();
    let error = folder.refused(
        &["pull", "another", "model", "--quiet"],
        "CHAIN",
        Some("R-CHN-13"),
    );
    assert!(
        error["advice"].as_str().unwrap().contains("--adopt"),
        "{error}"
    );
    folder.run(&["pull", "another", "model", "--adopt"]).good();
    holds(&folder, "model", 1);
    // A publisher's work directory is not reused for another chain, either.
    folder
        .run(&["publish", "a chain", &step(3), "--work", "work"])
        .good();
    let ran = folder.run(&["publish", "another", &step(2), "--work", "work"]);
    assert!(
        ran.code == Some(1)
            && ran.stderr.contains("R-CHN-13")
            && ran.stderr.contains("empty directory"),
        "{ran:?}"
    );
    let ran = folder.run(&["publish", "another", &step(2), "--work", "work", "--quiet"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("R-CHN-13"),
        "{ran:?}"
    );
}

#[test]
fn what_is_somebody_elses_is_not_touched() {
    let folder = Folder::new();
    publish_all(&folder);
    folder.write("home/versions/3.11/python", "k");
    folder.write("home/.tmp-x/f", "k");
    for command in [
        &["pull", "a chain", "home"][..],
        &["follow", "a chain", "home", "--until", "0"],
        &["publish", "a chain", &step(1), "--work", "home"],
    ] {
        let error = folder.refused(command, "USAGE", None);
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("\".tmp-x\", \"versions\""),
            "{error}"
        );
        assert!(error["file"].as_str().unwrap().ends_with("home"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn scratch_is_private_and_goes() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    publish_all(&folder);
    fs::create_dir(folder.at("scratch")).unwrap();
    for command in [
        &["publish", "a chain", &step(1), "--scratch", "scratch"][..],
        &["compact", "a chain", "--snapshot", "--scratch", "scratch"],
        &["fsck", "a chain", "--deep", "--scratch", "scratch"],
    ] {
        folder.run(command).good();
        let private: Vec<_> = fs::read_dir(folder.at("scratch"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(private.len(), 1, "{private:?}");
        assert_eq!(
            fs::metadata(&private[0]).unwrap().permissions().mode() & 0o777,
            0o700
        );
        let left: Vec<_> = fs::read_dir(&private[0])
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["lock"]);
        fs::set_permissions(&private[0], fs::Permissions::from_mode(0o755)).unwrap();
        folder.refused(command, "USAGE", None);
        fs::set_permissions(&private[0], fs::Permissions::from_mode(0o700)).unwrap();
    }
}

/// A visible version counts as published, whatever fails afterwards.
#[test]
fn what_fails_after_the_commit_does_not_undo_it() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    let model = |value: &str| folder.write("m.safetensors", bytes_file(&[("a", value.as_bytes())]));
    let newest = || folder.json(&["show", "chain"])["version"].as_u64();
    model("0");
    folder.run(&["publish", "chain", "m.safetensors"]).good();
    // The clock of a store in a directory is read from a file below `probes`.
    model("1");
    folder
        .run_in_shell("rm -rf chain/probes && touch chain/probes", &[])
        .good();
    let ran = folder.run(&["publish", "chain", "m.safetensors"]);
    assert!(
        ran.code == Some(1)
            && ran.stderr.contains("R-PUB-08")
            && ran.stderr.contains("version 1 is visible")
            && !ran.stderr.contains("retry"),
        "{ran:?}"
    );
    assert_eq!(newest(), Some(1));
    folder.run_in_shell("rm chain/probes", &[]).good();
    // The report cannot be written.
    for (version, more) in [(2, ""), (3, "--json")] {
        model(&version.to_string());
        let script = format!("\"$0\" publish chain m.safetensors {more} > /dev/full");
        let ran = folder.run_in_shell(&script, &[]);
        assert!(
            ran.code == Some(0)
                && ran
                    .stderr
                    .contains(&format!("version {version} of chain is published"))
                && !ran.stderr.contains("retry"),
            "{ran:?}"
        );
        assert_eq!(newest(), Some(version));
    }
}
