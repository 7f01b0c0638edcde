//! `cargo xtask dist`: the tool as one static program for Linux, which needs nothing of the system, in an archive with its
//! licences.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::steps::execute;
use crate::tools::builds_for;
use crate::workspace::{cargo, root, target, version};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// The largest archive that users are to fetch.
const MOST_BYTES: u64 = 12 << 20;

/// What lies beside the program, relative to the root.
const BESIDE: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Why it cannot be built here, if it cannot.
pub(crate) fn missing() -> Option<&'static str> {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return Some("no C compiler for musl (Debian's package musl-tools)");
    }
    (!builds_for(TARGET)).then_some("no standard library of Rust for musl")
}

/// `cargo xtask dist`
pub(crate) fn run() -> Result {
    println!("{}", build()?.display());
    Ok(())
}

/// Builds the archive, and returns its path.
pub(crate) fn build() -> Result<PathBuf> {
    if let Some(reason) = missing() {
        return Err(reason.into());
    }
    execute(&mut cargo(&["build", "--release", "--locked", "--package", "deltachain-cli", "--target", TARGET])?)?;

    let name = format!("deltachain-{}-{TARGET}", version()?);
    let folder = target()?.join("dist").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let program = folder.join("deltachain");
    fs::copy(target()?.join(TARGET).join("release/deltachain"), &program)?;
    for file in BESIDE {
        fs::copy(root()?.join(file), folder.join(file))?;
    }
    // It works, and needs no library of this machine.
    execute(Command::new(&program).args(["demo", "--quiet"]))?;
    let libraries = Command::new("ldd").arg(&program).output()?;
    if libraries.status.success() && !String::from_utf8_lossy(&libraries.stdout).contains("statically") {
        return Err(format!("{} is not static", program.display()).into());
    }
    let archive = folder.with_file_name(format!("{name}.tar.gz"));
    execute(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(target()?.join("dist")).arg(&name))?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{}: {} bytes; {}: {bytes} bytes", program.display(), fs::metadata(&program)?.len(), archive.display());
    if bytes > MOST_BYTES {
        return Err(format!("the archive is longer than {MOST_BYTES} bytes").into());
    }
    Ok(archive)
}
