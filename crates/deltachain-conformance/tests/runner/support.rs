//! A folder with tiny vectors, and the runner and testees for them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use deltachain::files::{Layout, StagedSafetensors};
use deltachain::tensor::{Dtype, MemoryState, State, StateDigests, StateWriter};
use deltachain::{DiffOptions, diff};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Path of the built runner.
pub(crate) const RUNNER: &str = env!("CARGO_BIN_EXE_deltachain-conformance");

/// Returns the command line of the reference library as a testee.
pub(crate) fn reference() -> String {
    shlex::try_join([RUNNER, "testee"]).unwrap()
}

/// Returns the command line of the testee in `examples`, with its arguments.
pub(crate) fn fake(mode: &str, json: &Value) -> String {
    let folder = Path::new(RUNNER).parent().unwrap().join("examples");
    let path = folder.join(format!("fake_testee{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "there is no {}: run `cargo test -p deltachain-conformance` without --test",
        path.display()
    );
    shlex::try_join([path.to_str().unwrap(), mode, &json.to_string()]).unwrap()
}

/// Result of a run.
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

    /// Returns the last line of a run, which must have this exit code.
    #[track_caller]
    pub(crate) fn summary(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stdout.lines().last().unwrap()
    }

    /// Checks that the run ended with this code, and that its output contains these texts.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for text in texts {
            assert!(
                self.stdout.contains(text) || self.stderr.contains(text),
                "{text:?} is not in {self:?}"
            );
        }
    }
}

/// A folder of vectors.
pub(crate) struct Vectors {
    folder: TempDir,
    pub(crate) index: Value,
}

impl Vectors {
    /// Makes a folder without vectors, which no index may have.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("vectors/states")).unwrap();
        let index = json!({
            "format": 3, "spec": "1.0", "licence": "CC0-1.0", "states": {}, "vectors": [], "minimal": {},
        });
        Self { folder, index }
    }

    /// Makes `links/tiny/good`, a patch of one tensor, and `links/tiny/bad`, the same with a
    /// damaged segment.
    pub(crate) fn tiny() -> Self {
        let mut vectors = Self::empty();
        let old = state(&[1, 2, 3]);
        let new = state(&[1, 2, 4]);
        vectors.add_state("old", &old);
        vectors.add_state("new", &new);
        let mut link = Vec::new();
        let report = diff(&old, &new, &DiffOptions::default(), &mut link).unwrap();
        let base = report.base.to_string();
        let target = report.target.state.to_string();
        vectors.add("links/tiny/good", &link, |vector| {
            vector["base"] = json!("vectors/states/old.safetensors");
            let tensor =
                json!({ "name": "t", "dtype": "U8", "shape": [3], "digest": report.target.tensors[0].to_string() });
            vector["expect"] = json!({
                "check": { "base": base, "target": target },
                "apply": { "digest": target, "tensors": [tensor], "state": "vectors/states/new.safetensors" },
            });
        });
        *link.last_mut().unwrap() ^= 1;
        vectors.add("links/tiny/bad", &link, |vector| {
            vector["twin"] = json!("links/tiny/good");
            vector["section"] = json!("7");
            vector["reason"] = json!("the segment is damaged");
            vector["rules"] = json!(["R-SEG-01"]);
            vector["base"] = json!("vectors/states/old.safetensors");
            let refusal = json!({ "class": "CORRUPT", "rule": "R-SEG-01" });
            vector["expect"] = json!({ "check": refusal, "apply": refusal });
        });
        vectors
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file; returns its SHA-256.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
        let mut sha256 = String::new();
        for byte in Sha256::digest(bytes) {
            write!(sha256, "{byte:02x}").unwrap();
        }
        sha256
    }

    pub(crate) fn add_state(&mut self, name: &str, state: &MemoryState) {
        let name = format!("vectors/states/{name}.safetensors");
        write_state(&self.path(&name), state);
        let bytes = fs::read(self.path(&name)).unwrap();
        self.index["states"][&name] = json!(self.write(&name, &bytes));
    }

    /// Adds a vector; `edit` completes its members.
    pub(crate) fn add(&mut self, id: &str, bytes: &[u8], edit: impl FnOnce(&mut Value)) {
        let (kind, suffix) = if id.starts_with("links/") {
            ("link", "dcf")
        } else {
            ("chain", "tar")
        };
        let file = format!("vectors/{id}.{suffix}");
        let mut vector = json!({
            "id": id, "kind": kind, "sha256": self.write(&file, bytes), "file": file, "section": "9", "rules": [],
            "features": [], "since": "1.0", "generator": "conformance/generator/tiny.py:tiny", "reason": "a test",
            "twin": null, "expect": {},
        });
        edit(&mut vector);
        self.index["vectors"].as_array_mut().unwrap().push(vector);
    }

    pub(crate) fn write_index(&self) {
        self.write("index.json", self.index.to_string().as_bytes());
    }

    /// Runs the runner with these arguments and the current index.
    pub(crate) fn run(&self, testee: &str, arguments: &[&str]) -> Ran {
        self.write_index();
        run(self.folder.path(), testee, arguments)
    }
}

/// Runs the runner on a folder of vectors.
pub(crate) fn run(folder: &Path, testee: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(RUNNER);
    command
        .args(["run", "--testee", testee, "--vectors"])
        .arg(folder)
        .args(arguments);
    Ran::of(command.current_dir(folder).output().unwrap())
}

/// Makes a state with one tensor of bytes, `t`.
pub(crate) fn state(bytes: &[u8]) -> MemoryState {
    let mut state = MemoryState::new();
    state
        .insert("t", Dtype::U8, &[bytes.len() as u64], bytes.to_vec())
        .unwrap();
    state
}

pub(crate) fn digest(state: &MemoryState) -> String {
    StateDigests::of(state, &()).unwrap().state.to_string()
}

fn write_state(path: &Path, state: &MemoryState) {
    let layout = Layout::single_file(state.tensors());
    let staged = StagedSafetensors::create(path, state.tensors(), &layout, None, false).unwrap();
    for (number, (_, bytes)) in state.iter().enumerate() {
        staged.write(number, 0, bytes).unwrap();
    }
    staged.commit().unwrap();
}
