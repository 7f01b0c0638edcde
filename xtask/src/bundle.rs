//! `cargo xtask bundle`: the conformance kit as one archive for people who have neither this repository nor Rust.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::Result;
use crate::python::Python;
use crate::steps::execute;
use crate::workspace::{build_runner, host, root, runner, target};

/// Files and folders of the repository, and where they stand in the bundle.
const CONTENT: [(&str, &str); 21] = [
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("SPEC.md", "SPEC.md"),
    ("SPEC-signatures.md", "SPEC-signatures.md"),
    ("SPEC-in-place.md", "SPEC-in-place.md"),
    ("conformance/README.md", "README.md"),
    ("conformance/example_testee.py", "example_testee.py"),
    ("conformance/fuzz_example.py", "fuzz_example.py"),
    ("conformance/index.json", "index.json"),
    ("conformance/index.schema.json", "index.schema.json"),
    ("conformance/published.sha256", "published.sha256"),
    ("conformance/rules.json", "rules.json"),
    ("conformance/constants.json", "constants.json"),
    ("conformance/decoded.json", "decoded.json"),
    ("conformance/deltachain.h", "deltachain.h"),
    ("conformance/functions.json", "functions.json"),
    ("conformance/registry.json", "registry.json"),
    ("conformance/vectors", "vectors"),
    // What the examples need.
    ("conformance/python/README.md", "python/README.md"),
    ("conformance/python/deltachain_py", "python/deltachain_py"),
    ("conformance/python/requirements.txt", "python/requirements.txt"),
];

/// `cargo xtask bundle`
pub(crate) fn run() -> Result {
    build_runner()?;
    let bundle = write()?;
    println!("{} ({} bytes)", bundle.display(), fs::metadata(&bundle)?.len());
    Ok(())
}

/// Writes the bundle of the runner that was built, and returns its path.
pub(crate) fn write() -> Result<PathBuf> {
    let runner = runner()?;
    let version = Command::new(&runner).arg("--version").output()?;
    let version = String::from_utf8(version.stdout)?;
    let version = version.split_whitespace().last().ok_or("the runner does not say its version")?;
    let name = format!("deltachain-conformance-{version}-{}", host(&mut Command::new("rustc"))?);
    let path = target()?.join(format!("{name}.tar.gz"));
    let program = runner.file_name().ok_or("the runner has no name")?.to_string_lossy().into_owned();
    let mut files = vec![(program.clone(), runner.clone())];
    for (from, to) in CONTENT {
        add(&root()?.join(from), to, &mut files)?;
    }
    files.sort();
    // The same files give the same bytes: no times, no owners.
    let compressed = GzEncoder::new(File::create(&path)?, Compression::best());
    let mut archive = tar::Builder::new(compressed);
    for (inside, file) in files {
        let bytes = fs::read(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(if inside == program { 0o755 } else { 0o644 });
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, format!("{name}/{inside}"), bytes.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()?;
    Ok(path)
}

/// Adds a file, or all files of a folder.
fn add(from: &Path, to: &str, files: &mut Vec<(String, PathBuf)>) -> Result {
    if !from.is_dir() {
        files.push((to.to_owned(), from.to_owned()));
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name != "__pycache__" {
            add(&path, &format!("{to}/{name}"), files)?;
        }
    }
    Ok(())
}

/// Makes the bundle, unpacks it, and measures its example by its runner; for `cargo xtask conformance`, which has built the
/// runner.
pub(crate) fn check(python: &Python) -> Result {
    let path = write()?;
    let bytes = fs::read(&path)?;
    if fs::read(write()?)? != bytes {
        return Err("the same files give another bundle".into());
    }
    let folder = tempfile::tempdir()?;
    let mut unpacked = Vec::new();
    GzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked)?;
    tar::Archive::new(unpacked.as_slice()).unpack(&folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let inside = folder.path().join(name.trim_end_matches(".tar.gz"));
    let runner = runner()?;
    let mut command = Command::new(inside.join(runner.file_name().ok_or("the runner has no name")?));
    let testee = format!("'{}' '{}'", python.path().display(), inside.join("example_testee.py").display());
    // Elsewhere, and without --vectors: the runner finds those beside it.
    command.args(["run", "--only", "links/valid/", "--testee", &testee]).current_dir(&folder);
    execute(command.env("PYTHONDONTWRITEBYTECODE", "1"))
}
