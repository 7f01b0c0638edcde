//! Tests the program from outside: it writes deltas of other systems and reads them back, as links
//! and as versions of a chain, and it refuses unsuitable inputs. `e2e/` proves that the other
//! systems agree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use deltachain::files::{FileOptions, SafetensorsState, diff};
use deltachain::tensor::{State, StateDigests};
use deltachain_store::{
    Base, Follower, FollowerOptions, PublishOptions, Publisher, Store, StoreOptions, init, log,
};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_deltachain-exchange");

const LAYOUTS: [(&str, [&str; 3]); 4] = [
    (
        "slime",
        ["weight_v000001", "weight_v000002", "weight_v000003"],
    ),
    (
        "arc2",
        [
            "step_000001.safetensors",
            "step_000002.safetensors",
            "step_000003.safetensors",
        ],
    ),
    (
        "pulsept1",
        [
            "step_000001.pulse",
            "step_000002.pulse",
            "step_000003.pulse",
        ],
    ),
    (
        "trl",
        [
            "deltas/step_000001.safetensors",
            "deltas/step_000002.safetensors",
            "deltas/step_000003.safetensors",
        ],
    ),
];

/// Returns the path of the BF16 checkpoint after this many steps.
fn step(number: usize) -> String {
    format!(
        "{}/../../testdata/rl3e6_step{number}.safetensors",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// Computes the digest of a state.
fn digest(path: impl AsRef<Path>) -> String {
    StateDigests::of(&SafetensorsState::open(path.as_ref()).unwrap(), &())
        .unwrap()
        .state
        .to_string()
}

/// A directory in which the program runs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Makes a directory with the links 1.dcf, 2.dcf and 3.dcf of the checkpoints.
    fn with_links() -> Self {
        let folder = Self::new();
        for number in 1..4 {
            let base = step(number - 1);
            let target = step(number);
            let link = folder.at(&format!("{number}.dcf"));
            diff(
                Path::new(&base),
                Path::new(&target),
                &link,
                &FileOptions::default(),
            )
            .unwrap();
        }
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM)
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    /// Runs the program with `--json`; it must succeed.
    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert!(
            ran.status.success() && ran.stderr.is_empty(),
            "{arguments:?}: {ran:?}"
        );
        serde_json::from_slice(&ran.stdout).unwrap()
    }

    /// Lists the content of the directory, hidden files included: relative paths and lengths.
    fn contents(&self) -> Vec<(PathBuf, u64)> {
        fn visit(directory: &Path, found: &mut Vec<(PathBuf, u64)>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    visit(&path, found);
                }
                found.push((path.clone(), path.symlink_metadata().unwrap().len()));
            }
        }
        let mut found = Vec::new();
        visit(self.0.path(), &mut found);
        found.sort();
        found
    }

    /// Runs the program twice, for people and for JSON. Both times it must refuse with this class,
    /// rule and exit code, and leave the directory as it was. Returns the JSON error.
    fn refused(&self, arguments: &[&str], class: &str, rule: Option<&str>) -> Value {
        let before = self.contents();
        let code = Some(if class == "USAGE" { 2 } else { 1 });
        let ran = self.run(arguments);
        let headline = rule.map_or_else(
            || format!("error: {class}: "),
            |rule| format!("error: {class} {rule}: "),
        );
        let told = String::from_utf8(ran.stderr).unwrap();
        assert!(
            ran.status.code() == code && told.starts_with(&headline),
            "{arguments:?}: {told}"
        );
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert!(
            ran.status.code() == code && ran.stderr.is_empty(),
            "{arguments:?}: {ran:?}"
        );
        let error = serde_json::from_slice::<Value>(&ran.stdout).unwrap()["error"].take();
        assert_eq!(
            (error["class"].as_str(), error["rule"].as_str()),
            (Some(class), rule),
            "{error}"
        );
        assert_eq!(
            self.contents(),
            before,
            "{arguments:?} changed the directory"
        );
        error
    }

    /// Exports three steps; returns the paths of the new files.
    fn exported(&self, layout: &str, names: [&str; 3]) -> Vec<String> {
        let made = self.json(&[
            "export",
            "--to",
            layout,
            "--base",
            &step(0),
            "1.dcf",
            "2.dcf",
            "3.dcf",
            "-o",
            "out",
        ]);
        let paths = names
            .map(|name| self.at("out").join(name).to_str().unwrap().to_owned())
            .to_vec();
        for (number, path) in paths.iter().enumerate() {
            assert!(
                path.ends_with(made["steps"][number]["output"].as_str().unwrap()),
                "{made}"
            );
        }
        paths
    }
}

#[test]
fn links_come_back_from_every_layout() {
    for (layout, names) in LAYOUTS {
        let folder = Folder::with_links();
        let deltas = folder.exported(layout, names);
        let (base, mut arguments) = (step(0), vec!["import", "--from", layout, "--base"]);
        arguments.push(&base);
        arguments.extend(deltas.iter().map(String::as_str));
        let made = folder.json(&[&arguments[..], &["-o", "back"]].concat());
        for number in 1..4 {
            let link = &made["links"][number - 1];
            assert_eq!(link["target"], digest(step(number)), "{layout} {number}");
            assert_eq!(link["link"], format!("back/{number:06}.dcf"));
            assert_eq!(
                link["bytes"],
                fs::metadata(folder.at(link["link"].as_str().unwrap()))
                    .unwrap()
                    .len()
            );
        }
        folder.refused(&[&arguments[..], &["-o", "back"]].concat(), "USAGE", None);
    }
}

#[test]
fn a_chain_gets_a_version_for_each_delta() {
    let (layout, names) = LAYOUTS[0];
    let folder = Folder::with_links();
    let deltas = folder.exported(layout, names);
    let [first, second, third] = deltas.as_slice() else {
        panic!("three steps")
    };
    let (base, import) = (
        step(0),
        ["import", "--from", layout, "--chain", "the chain", "--base"],
    );
    let store = Store::create(
        folder.at("the chain").to_str().unwrap(),
        StoreOptions::default(),
    )
    .unwrap();
    init(&store).unwrap();

    let made = folder.json(&[&import[..], &[&base, first, second, "--meta", "run=7"]].concat());
    let versions = made["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 3, "{made}");
    for (number, version) in versions.iter().enumerate() {
        assert_eq!(version["version"], number);
        assert_eq!(version["state"], digest(step(number)), "{number}");
    }
    assert_eq!(versions[0]["imported"], Value::Null);
    assert_eq!(versions[2]["imported"]["base_version"], "000001");
    let head = log(&store, Some(1), None).unwrap().remove(0);
    assert_eq!((head.version, head.metadata["run"].as_str()), (2, "7"));

    // The import continues from the head, and from no other version.
    folder.refused(
        &[&import[..], &[&step(1), second]].concat(),
        "CHAIN",
        Some("R-PUB-01"),
    );
    let made = folder.json(&[&import[..], &[&step(2), third]].concat());
    assert_eq!(made["versions"][0]["version"], 3, "{made}");
    let mut follower =
        Follower::in_directory(store, &folder.at("pulled"), FollowerOptions::default()).unwrap();
    let prepared = follower.prepare(None, &()).unwrap().unwrap();
    follower.apply(prepared).unwrap();
    assert_eq!(digest(folder.at("pulled/current")), digest(step(3)));
    assert_eq!(
        folder
            .run(&["import", "--from", layout, "--base", &base, first])
            .status
            .code(),
        Some(2)
    );
}

/// Trainers write a whole checkpoint now and then, as a directory like the others.
#[test]
fn a_whole_checkpoint_between_deltas_is_a_version_as_well() {
    let folder = Folder::with_links();
    let deltas = folder.exported(LAYOUTS[0].0, LAYOUTS[0].1);
    let second = Path::new(&deltas[1]);
    let shard = "model-00001-of-00001.safetensors";
    let write_index = |metadata: &str| {
        let state = SafetensorsState::open(step(2)).unwrap();
        let names: Vec<String> = state
            .tensors()
            .iter()
            .map(|info| format!("{:?}: {shard:?}", info.name()))
            .collect();
        let index = format!(
            "{{\"metadata\": {metadata}, \"weight_map\": {{{}}}}}",
            names.join(", ")
        );
        fs::write(second.join("model.safetensors.index.json"), index).unwrap();
    };
    fs::remove_dir_all(second).unwrap();
    fs::create_dir(second).unwrap();
    fs::copy(step(2), second.join(shard)).unwrap();
    write_index("{\"total_size\": 1}");
    let (base, import) = (step(0), ["import", "--from", "slime", "--base"]);
    let arguments = [
        &import[..],
        &[&base, &deltas[0], &deltas[1], &deltas[2], "-o", "back"],
    ]
    .concat();
    let made = folder.json(&arguments);
    for number in 1..4 {
        assert_eq!(
            made["links"][number - 1]["target"],
            digest(step(number)),
            "{number}"
        );
    }
    assert_eq!(
        made["links"][1]["imported"]["format"],
        "slime, a whole checkpoint"
    );
    // A checkpoint of another model is refused.
    let other = step(0).replace("rl3e6_step0", "f32_step0");
    folder.refused(
        &[&import[..], &[&other, &deltas[1], "-o", "other"]].concat(),
        "WRONG_BASE",
        None,
    );
    // So is one whose index says that it is a delta.
    write_index("{\"delta_encoding\": \"xor\"}");
    folder.refused(
        &[&import[..], &[&base, &deltas[1], "-o", "other"]].concat(),
        "MALFORMED",
        None,
    );
}

/// An encoding or a checksum can only be chosen for its own layout.
#[test]
fn encodings_and_checksums_belong_to_a_layout() {
    let folder = Folder::with_links();
    let base = step(0);
    let export = |to, options: &[&str]| {
        let out = format!("{to}-{}", options.join(""));
        let words = ["export", "--to", to, "--base", &base, "1.dcf", "-o", &out];
        folder.run(&[&words[..], options].concat()).status.code()
    };
    for (to, encodings) in [
        ("arc2", &["zstd", "zlib"][..]),
        ("slime", &["xor", "overwrite"]),
        ("pulsept1", &["v1", "v2", "v3"]),
    ] {
        encodings.iter().for_each(|encoding| {
            assert_eq!(export(to, &["--encoding", encoding]), Some(0), "{encoding}");
        });
        assert_eq!(export(to, &["--encoding", "raw"]), Some(2));
    }
    for checksum in ["xxh3-128", "blake3", "adler32"] {
        assert_eq!(
            export("slime", &["--checksum", checksum]),
            Some(0),
            "{checksum}"
        );
        assert_eq!(
            export("arc2", &["--checksum", checksum]),
            Some(2),
            "{checksum}"
        );
    }
    let index = fs::read_to_string(
        folder.at("slime---checksumblake3/weight_v000001/model.safetensors.index.json"),
    );
    assert!(index.unwrap().contains("blake3"));
    assert_eq!(export("trl", &["--encoding", "gap_delta"]), Some(2));
}

#[test]
fn what_is_no_model_and_outputs_that_are_inputs_are_refused() {
    let folder = Folder::with_links();
    let files = |name: &str, number| {
        fs::create_dir(folder.at(name)).unwrap();
        fs::copy(step(number), folder.at(name).join("a.safetensors")).unwrap();
    };
    files("old", 0);
    files("step_000001", 1);
    for layout in ["arc2", "slime"] {
        let export = ["export", "--to", layout, "--base", "old", "1.dcf", "-o"];
        folder.refused(&[&export[..], &["old"]].concat(), "USAGE", None);
        folder.refused(&[&export[..], &["old/deltas"]].concat(), "USAGE", None);
    }
    // A checkpoint whose name looks like a step is not the rest of an interrupted run.
    folder.refused(
        &[
            "export",
            "--to",
            "arc2",
            "--base",
            "step_000001",
            "2.dcf",
            "-o",
            ".",
        ],
        "USAGE",
        None,
    );

    let store = Store::create(
        folder.at("chain").to_str().unwrap(),
        StoreOptions::default(),
    )
    .unwrap();
    init(&store).unwrap();
    let state = SafetensorsState::open(folder.at("old")).unwrap();
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
    publisher.publish(&state, Base::Nothing, &()).unwrap();
    let mut follower =
        Follower::in_directory(store, &folder.at("followed"), FollowerOptions::default()).unwrap();
    let prepared = follower.prepare(None, &()).unwrap().unwrap();
    follower.apply(prepared).unwrap();
    for arguments in [
        &[
            "export", "--to", "slime", "1.dcf", "--base", "followed", "-o", "out",
        ][..],
        &[
            "import", "--from", "slime", "1.dcf", "--base", "followed", "-o", "out",
        ],
    ] {
        let error = folder.refused(arguments, "USAGE", None);
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("give its folder \"current\""),
            "{error}"
        );
        assert!(
            error["file"].as_str().unwrap().starts_with("followed"),
            "{error}"
        );
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_inputs() {
    let folder = Folder::new();
    fs::copy(step(0), folder.at("good")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(folder.at("pipe"))
            .status()
            .unwrap()
            .success()
    );
    // Nothing writes to the pipe, so opening it would block forever.
    for input in ["pipe", "/dev/zero", "/dev/tty"] {
        for layout in ["pulsept1", "trl"] {
            let arguments = [
                "import", "--from", layout, input, "--base", "good", "-o", "out",
            ];
            assert_eq!(
                folder.refused(&arguments, "USAGE", None)["file"],
                input,
                "{layout}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_base_that_is_cut_while_it_is_read_is_refused() {
    let folder = Folder::with_links();
    let header =
        r#"{"t":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}}       "#;
    assert_eq!(header.len() % 8, 0);
    let path = fs::canonicalize(folder.at(".")).unwrap().join("long");
    fs::write(
        &path,
        [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat(),
    )
    .unwrap();
    // The file has 64 GB, none of which is on the disk: reading all of it takes a minute.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() + (64 << 30))
        .unwrap();
    let mut program = Command::new(PROGRAM);
    program
        .args([
            "export", "--to", "trl", "1.dcf", "--base", "long", "-o", "out",
        ])
        .current_dir(folder.at("."));
    let mut child = program
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let opened = format!("/proc/{}/fd", child.id());
    let has_opened = || {
        fs::read_dir(&opened)
            .unwrap()
            .flatten()
            .any(|e| fs::read_link(e.path()).is_ok_and(|l| l == path))
    };
    while !has_opened() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the program ended before it opened the file"
        );
    }
    file.set_len(1000).unwrap();
    let ran = child.wait_with_output().unwrap();
    let told = String::from_utf8(ran.stderr).unwrap();
    let code = ran.status.code();
    let has_changed = told.contains("changed while it was being read");
    // The other possible error: the file was cut before its header was compared with its length.
    let is_short = told.contains("its header describes");
    assert!(
        (code == Some(1) && has_changed || code == Some(2) && is_short) && told.contains("long"),
        "{told}"
    );
    assert!(!folder.at("out").exists());
}

#[test]
fn help_and_version_are_there() {
    let folder = Folder::new();
    let text = |arguments: &[&str]| String::from_utf8(folder.run(arguments).stdout).unwrap();
    assert!(text(&["--version"]).starts_with("deltachain-exchange "));
    for command in ["import", "export"] {
        let help = text(&["help", command]);
        assert!(
            help.contains("Examples:")
                && help.contains("--json")
                && help.contains("PULSEPT1 of basilica"),
            "{help}"
        );
        // Without arguments, a command says what is missing.
        let ran = folder.run(&[command, "--json"]);
        let said: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(
            (ran.status.code(), said["error"]["class"].as_str()),
            (Some(2), Some("USAGE"))
        );
    }
}
