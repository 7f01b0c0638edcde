//! A directory to run the tool in, and files for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use deltachain::files::SafetensorsState;
use deltachain_store::{Base, PublishOptions, Publisher, Store, StoreOptions};
use serde_json::Value;
use tempfile::TempDir;

/// The built program.
pub(crate) const TOOL: &str = env!("CARGO_BIN_EXE_deltachain");

/// Path of an excerpt, `rl3e6_step0` for example.
pub(crate) fn excerpt(name: &str) -> String {
    format!(
        "{}/../../testdata/{name}.safetensors",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// Path of the BF16 checkpoint after this many steps.
pub(crate) fn step(number: usize) -> String {
    excerpt(&format!("rl3e6_step{number}"))
}

/// Result of a run of the tool.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Standard output of a run, which must have succeeded.
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }
}

/// A directory in which the tool runs.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.at(name)).unwrap()
    }

    /// Writes a file, and creates directories as needed.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(
            Command::new(TOOL)
                .args(arguments)
                .current_dir(self.0.path())
                .output()
                .unwrap(),
        )
    }

    /// Runs a shell script in which `"$0"` is the tool and `"$@"` are the arguments.
    #[cfg(target_os = "linux")]
    pub(crate) fn run_in_shell(&self, script: &str, arguments: &[&str]) -> Ran {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, TOOL])
            .args(arguments)
            .current_dir(self.0.path());
        Ran::of(shell.output().unwrap())
    }

    /// Runs the tool with `--json`; it must succeed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        ran.json()
    }

    /// Everything in the directory by relative path, including hidden files.
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn visit(root: &Path, directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().to_owned();
                if path.is_dir() {
                    found.insert(name, Vec::new());
                    visit(root, &path, found);
                } else {
                    found.insert(name, fs::read(&path).unwrap());
                }
            }
        }
        let mut found = BTreeMap::new();
        visit(self.0.path(), self.0.path(), &mut found);
        found
    }

    /// Runs the tool twice, for JSON and for people. Both times it must refuse with this class and
    /// rule, say so in the right place with the right exit code, and leave the directory as it was.
    /// Returns the JSON error.
    pub(crate) fn refused(&self, arguments: &[&str], class: &str, rule: Option<&str>) -> Value {
        let before = self.contents();
        let code = Some(if class == "USAGE" { 2 } else { 1 });
        let for_people = self.run(arguments);
        assert_eq!(
            (for_people.code, for_people.stdout.as_str()),
            (code, ""),
            "{arguments:?}: {for_people:?}"
        );
        let headline = rule.map_or_else(
            || format!("error: {class}: "),
            |rule| format!("error: {class} {rule}: "),
        );
        assert!(
            for_people.stderr.starts_with(&headline),
            "{arguments:?}: {for_people:?}"
        );
        let last = for_people.stderr.lines().last().unwrap();
        assert_eq!(
            last.strip_prefix("  more     deltachain explain "),
            rule,
            "{arguments:?}: {for_people:?}"
        );
        let for_programs = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(
            (for_programs.code, for_programs.stderr.as_str()),
            (code, ""),
            "{arguments:?}: {for_programs:?}"
        );
        let error = for_programs.json()["error"].clone();
        assert_eq!(
            (error["class"].as_str(), error["rule"].as_str()),
            (Some(class), rule),
            "{error}"
        );
        assert!(
            self.contents() == before,
            "{arguments:?} changed the directory: {:?}",
            self.contents().keys()
        );
        error
    }
}

/// Builds a safetensors file with this header.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut header = header.to_owned();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

/// Builds a safetensors file with tensors of bytes in ascending order of names, as the safetensors
/// crate would write it.
pub(crate) fn bytes_file(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut data = Vec::new();
    for (name, bytes) in tensors {
        let name = Value::from(*name);
        let length = bytes.len();
        let start = data.len();
        data.extend_from_slice(bytes);
        let end = data.len();
        entries.push(format!(
            r#"{name}:{{"dtype":"U8","shape":[{length}],"data_offsets":[{start},{end}]}}"#
        ));
    }
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

/// Opens the store of the chain in `chain`.
pub(crate) fn chain_in(folder: &Folder) -> Store {
    let url = folder.at("chain").to_string_lossy().into_owned();
    Store::open(&url, StoreOptions::default()).unwrap()
}

/// Publishes files as the shards of one version, as the processes of a training run do.
pub(crate) fn publish_shards(folder: &Folder, names: &[&str]) {
    let open = |name| SafetensorsState::open(folder.at(&format!("{name}.safetensors"))).unwrap();
    let states: Vec<SafetensorsState> = names.iter().map(open).collect();
    let mut publisher = Publisher::open(chain_in(folder), PublishOptions::default()).unwrap();
    let shards = states
        .iter()
        .enumerate()
        .map(|(number, state)| (number, state.into(), Base::Chain));
    let parts = publisher.prepare(shards, names.len(), &()).unwrap();
    publisher.commit(parts, BTreeMap::new(), &()).unwrap();
}

/// Updates the header's checksum after an edit.
pub(crate) fn reseal(link: &mut [u8]) {
    let crc = crc32fast::hash(&link[..124]);
    link[124..128].copy_from_slice(&crc.to_le_bytes());
}
