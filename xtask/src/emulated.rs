//! Python for Linux on aarch64, by qemu's emulation of single processes: Debian's packages, unpacked into the target
//! folder. Nothing is installed on this machine; it needs `qemu-aarch64` (Debian's package qemu-user).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::python::Python;
use crate::steps::execute;
use crate::workspace::{root, target};

/// Debian's Python; the other packages are those that this one needs.
const PACKAGES: [&str; 2] = ["python3.11", "libstdc++6"];
const INTERPRETER: &str = "usr/bin/python3.11";

/// Tests (as pytest names them) that fork a process with threads. qemu itself ends the child, by an assertion of its own.
pub(crate) const FORKING: [&str; 2] = [
    "tests/test_processes.py::test_a_child_cannot_use_its_parents_handles_and_the_parent_goes_on",
    "tests/test_publisher.py::test_a_child_has_no_publisher",
];

/// Why there can be no such Python here, if there cannot.
pub(crate) fn missing() -> Option<&'static str> {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !there("qemu-aarch64") {
        return Some("UNVERIFIED: no qemu-aarch64 (Debian's package qemu-user)");
    }
    if !there("apt-get") || !there("dpkg-deb") {
        return Some("UNVERIFIED: no apt-get, which brings a Python for aarch64");
    }
    None
}

/// An interpreter with a wheel for it, and what the requirements name. `pip` is one of this machine.
pub(crate) fn python(wheel: &Path, requirements: &str, pip: &Python) -> Result<Python> {
    let folder = target()?.join("aarch64");
    let system = folder.join("root");
    if !system.join(INTERPRETER).exists() {
        unpack(&folder, &system)?;
    }
    let packages = folder.join("site");
    if packages.exists() {
        fs::remove_dir_all(&packages)?;
    }
    let mut install = Command::new(pip.path());
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--python-version", "3.11"]);
    install.args(["--only-binary", ":all:"]);
    for platform in ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"] {
        install.args(["--platform", platform]);
    }
    install.arg("--target").arg(&packages).arg("--requirement").arg(root()?.join(requirements)).arg(wheel);
    execute(&mut install)?;

    // What tests start. The other interpreter runs in qemu only.
    let programs = system.join("usr/bin");
    let python = script(
        &programs.join("python3"),
        &format!(
            "PYTHONPATH='{}' exec qemu-aarch64 -L '{}' -0 \"$0\" '{}' \"$@\"",
            packages.display(),
            system.display(),
            system.join(INTERPRETER).display()
        ),
    )?;
    script(&programs.join("deltachain"), &format!("exec '{}' -m deltachain \"$@\"", python.display()))?;
    let python = Python::at(python);
    python
        .run("", &["-c", "import deltachain, platform; assert platform.machine() == 'aarch64', platform.machine()"])?;
    Ok(python)
}

/// Makes a program of a line for the shell. Returns its path.
fn script(path: &Path, line: &str) -> Result<PathBuf> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    execute(Command::new("chmod").arg("+x").arg(path))?;
    Ok(path.to_owned())
}

/// Downloads Debian's packages for aarch64 by an apt of its own, and unpacks them.
fn unpack(folder: &Path, system: &Path) -> Result {
    for part in ["state/lists/partial", "cache/archives/partial", "root"] {
        fs::create_dir_all(folder.join(part))?;
    }
    fs::write(folder.join("state/status"), "")?;
    let apt = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(["--quiet", "-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64"]);
        for (option, part) in [("State", "state"), ("State::status", "state/status"), ("Cache", "cache")] {
            apt.arg("-o").arg(format!("Dir::{option}={}", folder.join(part).display()));
        }
        execute(apt.args(words))
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--download-only", "--no-install-recommends"], &PACKAGES[..]].concat())?;
    for entry in fs::read_dir(folder.join("cache/archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            execute(Command::new("dpkg-deb").arg("--extract").arg(package).arg(system))?;
        }
    }
    Ok(())
}
