//! Python environments: virtual environments in the target folder, made when they are missing or when their
//! requirements have changed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::steps::{execute, say};
use crate::workspace::{root, target};

/// What the conformance kit needs, relative to the root. The last file includes the first.
const REQUIREMENTS: [&str; 2] = ["conformance/python/requirements.txt", "conformance/requirements.txt"];

/// A Python interpreter that has what the requirements name.
pub(crate) struct Python(PathBuf);

impl Python {
    /// The environment of the conformance kit.
    pub(crate) fn install() -> Result<Self> {
        Self::with("venv", &REQUIREMENTS)
    }

    /// Makes the environment of this name, or finds it made before. The last of the files of requirements is installed;
    /// it includes the others.
    pub(crate) fn with(name: &str, requirements: &[&str]) -> Result<Self> {
        let folder = target()?.join(name);
        let python = if cfg!(windows) { folder.join("Scripts/python.exe") } else { folder.join("bin/python") };
        let root = root()?;
        let mut wanted = String::new();
        for file in requirements {
            wanted += &fs::read_to_string(root.join(file)).map_err(|error| format!("cannot read {file}: {error}"))?;
        }
        // A copy of the requirements, written when they have been installed.
        let installed = folder.join("installed.txt");
        if python.exists() && fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
            say(format_args!("the requirements were installed before"));
            return Ok(Self(python));
        }
        let interpreter = if cfg!(windows) { "python" } else { "python3" };
        execute(Command::new(interpreter).args(["-m", "venv", "--clear"]).arg(&folder))
            .map_err(|error| format!("{error}; tests need Python 3 with its venv module"))?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        execute(pip.arg(root.join(requirements.last().ok_or("no requirements")?)))?;
        fs::write(installed, wanted)?;
        Ok(Self(python))
    }

    /// An interpreter that was made otherwise.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The interpreter.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs it in a folder of the repository, leaving no caches among the sources.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, folder: &str, arguments: &[S]) -> Result {
        let mut command = Command::new(&self.0);
        execute(command.args(arguments).current_dir(root()?.join(folder)).env("PYTHONDONTWRITEBYTECODE", "1"))
    }
}
